//! T7: transcripts that are too large. Takes generated sessions of a gigabyte, of a million records and with
//! a line of ten megabytes, gives how long going on with them takes and how much memory.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use decurion_protocol::{
    Block, Envelope, Event, LineId, Message, MessageMeta, Origin, Role, RunId, SessionId, SessionInfo,
};
use decurion_store::{Journal as _, Layout, ReplayOptions, SessionPaths, SessionWriter};
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::stand::{HANG, Stand, ended_well};
use super::{Options, Report, Row};
use crate::proc::peak_memory_kib;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "T7", what: "a transcript of 1 GB, of 1 M records, with a line of 10 MB", run: large }]
}

/// A reply that waits a little, so that the program can be looked at while it waits.
const SCRIPT: &str =
    "when text=/measure now/\n  delay 500ms\n  say \"Measured.\"\nwhen\n  say \"Here I am.\"\n";
/// Messages between two boundaries.
const STRETCH: u64 = 2_000;
/// Messages after the last boundary.
const TAIL: u64 = 20;
/// What the program may use, whatever the size.
const MEMORY_LIMIT_KIB: u64 = 200 << 10;

fn large(options: &Options) -> Report {
    let megabyte = 1_000_000;
    let cases = [
        ("large", Shape { records: options.count(100_000, 1_000_000), bytes: 1_000, long_line: 0 }),
        ("10 MB line", Shape { records: 2_000, bytes: 300, long_line: 10 * megabyte }),
        ("10 MB foreign line", Shape { records: 2_000, bytes: 300, long_line: 10 * megabyte + 1 }),
        ("many small", Shape { records: options.count(100_000, 1_000_000), bytes: 20, long_line: 0 }),
    ];
    let mut report = Report::default();
    let mut figures = Vec::new();
    for (name, shape) in cases {
        let result = try_one(options, &shape);
        report.add(name, result.map(|figure| figures.push(format!("{name}: {figure}"))));
    }
    report.figure(figures.join("; "))
}

struct Shape {
    records: u64,
    bytes: usize,
    /// 0 for none; odd for one that another program wrote.
    long_line: usize,
}

fn try_one(options: &Options, shape: &Shape) -> Result<String, String> {
    let stand = Stand::new(options, |_| SCRIPT.to_owned()).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let first = stand.run_as(&id, "hello").run(HANG).map_err(|error| error.to_string())?;
    ended_well(&first)?;
    extend(&stand, &id, shape).map_err(|error| error.to_string())?;
    let transcript = stand.transcript(&id);
    let size = std::fs::metadata(&transcript).map_err(|error| error.to_string())?.len();
    let plain = std::fs::File::open(&transcript).and_then(plain_parse).map_err(|error| error.to_string())?;
    let limit = HANG + plain * 20;
    let already = stand.model.requests().len();
    let begun = Instant::now();
    let running = stand.resume(&id, "measure now").start().map_err(|error| error.to_string())?;
    let requests = stand.model.wait_for_requests(already + 1, limit);
    let took = begun.elapsed();
    let rss = peak_memory_kib(running.pid).unwrap_or_default();
    let run = running.finish(limit).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    stand.check_left()?;
    let body = requests.get(already).map(crate::server::Recorded::json).unwrap_or_default();
    let count = body["messages"].as_array().map_or(0, Vec::len) as u64;
    if count + 3 < TAIL || count > TAIL + 3 {
        return Err(format!("the request has {count} messages, not the tail of {TAIL}"));
    }
    if rss > MEMORY_LIMIT_KIB {
        return Err(format!("memory of {rss} KiB for {size} bytes"));
    }
    Ok(format!(
        "{} MB, {} records: {} ms and {} MB to the first request (reading and parsing each line alone: {} ms)",
        size / 1_000_000,
        shape.records,
        took.as_millis(),
        rss >> 10,
        plain.as_millis()
    ))
}

/// What it costs to look at every line once.
pub(super) fn plain_parse(file: impl std::io::Read) -> std::io::Result<Duration> {
    let begun = Instant::now();
    let mut reader = BufReader::with_capacity(256 << 10, file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        std::hint::black_box(serde_json::from_slice::<Value>(&line).is_ok());
        line.clear();
    }
    Ok(begun.elapsed())
}

/// Adds records to a session that the program itself has begun.
fn extend(stand: &Stand, id: &str, shape: &Shape) -> Result<(), Box<dyn std::error::Error>> {
    let text = |path: PathBuf| Utf8PathBuf::from_path_buf(path).map_err(|path| path.display().to_string());
    let session: SessionId = id.parse()?;
    let cwd = text(stand.home.work())?;
    let paths = Layout::new(text(stand.home.state())?).session(&cwd, session);
    if shape.long_line % 2 == 1 {
        foreign_line(&paths, shape.long_line)?;
    }
    let info = SessionInfo {
        session,
        cwd,
        version: "0".into(),
        git_branch: None,
        entrypoint: "test".into(),
        imported_from: None,
        forked_from: None,
    };
    let now = Timestamp::from_millisecond(1_800_000_000_000)?;
    let (mut writer, report) =
        SessionWriter::resume(&paths, &info, now, &ReplayOptions::default(), &mut |_| {})?;
    let mut maker = Maker {
        seq: report.last_seq,
        at: now,
        run: RunId(Uuid::from_u128(7 << 76 | 1 << 127 | 1)),
        parent: None,
        shape,
    };
    if shape.long_line > 0 && shape.long_line.is_multiple_of(2) {
        writer.append(&[maker.message(0, &"x".repeat(shape.long_line))])?;
    }
    let mut batch = Vec::new();
    for nth in 0..shape.records {
        let is_boundary = nth % STRETCH == STRETCH - 1 && nth + TAIL < shape.records;
        if is_boundary || nth + TAIL == shape.records {
            batch.push(maker.boundary());
        } else {
            let words = "word ".repeat(shape.bytes / 5);
            batch.push(maker.message(nth, &words));
        }
        if batch.len() >= 500 {
            writer.append(&batch)?;
            batch.clear();
        }
    }
    writer.append(&batch)?;
    writer.sync()?;
    Ok(())
}

/// A line that some other program added.
fn foreign_line(paths: &SessionPaths, length: usize) -> std::io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(paths.transcript())?;
    writeln!(file, "{{\"type\":\"unheard-of\",\"content\":\"{}\"}}", "y".repeat(length))
}

struct Maker<'a> {
    seq: u64,
    at: Timestamp,
    run: RunId,
    parent: Option<LineId>,
    shape: &'a Shape,
}

impl Maker<'_> {
    fn envelope(&mut self, event: Event) -> Envelope {
        self.seq += 1;
        Envelope { seq: self.seq, at: self.at, agent: None, run: self.run, event }
    }

    /// Prompts and replies in turn.
    fn message(&mut self, nth: u64, text: &str) -> Envelope {
        let line = LineId(Uuid::from_u128(u128::from(self.seq) + (1 << 100)));
        let (role, origin) = if nth.is_multiple_of(2) {
            (Role::User, Origin::Prompt)
        } else {
            (Role::Assistant, Origin::Model)
        };
        let parent = self.parent.replace(line);
        let meta = Box::new(MessageMeta { origin, ..MessageMeta::default() });
        let message = Message { role, blocks: vec![Block::text(text)] };
        self.envelope(Event::Message { message, lines: vec![line], parent, meta })
    }

    fn boundary(&mut self) -> Envelope {
        let boundary = LineId(Uuid::from_u128(u128::from(self.seq) + (1 << 101)));
        let line = LineId(Uuid::from_u128(u128::from(self.seq) + (1 << 102)));
        let logical_parent = self.parent.replace(line);
        let summary = format!("A summary of {} records.", self.shape.records);
        self.envelope(Event::Compacted {
            boundary,
            line,
            logical_parent,
            summary: Message { role: Role::User, blocks: vec![Block::text(summary)] },
            kept: Vec::new(),
            trigger: "auto".into(),
            tokens_before: 100_000,
            checkpoint: Value::Null,
        })
    }
}
