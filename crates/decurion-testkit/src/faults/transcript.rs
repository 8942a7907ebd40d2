//! Transcripts that were damaged: torn at the end, or wrong in the middle. Writes a real transcript, damages
//! it in every way of the row, loads it as a resume does, and compares with what was written.

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{
    Block, CallId, Decision, Envelope, Event, Intent, LineId, Message, MessageMeta, Origin, RunId, SessionId,
    ToolOutput, Usage, Verdict,
};
use decurion_store::{
    Journal as _, Layout, ReplayOptions, ReplayReport, Scope, SessionPaths, SessionWriter, replay,
};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::size::plain_parse;
use super::stand::HANG;
use super::{Dice, Options, Report, Row, in_parallel};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "T2", what: "the last record torn at every byte, tails of NULs and garbage", run: torn },
        Row { id: "T3", what: "records damaged, joined, repeated or foreign in the middle", run: damaged },
    ]
}

// ---- T2 ----

/// How many records the transcript has.
const RECORDS: u64 = 200;

fn torn(options: &Options) -> Report {
    let mut report = Report::default();
    let bed = match Bed::new(RECORDS) {
        Ok(bed) => bed,
        Err(problem) => return Report::broken(problem),
    };
    let lines = line_spans(&bed.whole);
    let Some(first) = bed.record_starts(&lines).iter().rev().nth(2).copied() else {
        return Report::broken("too few records");
    };
    let mut cases: Vec<(usize, Vec<u8>)> = (first..=bed.whole.len()).map(|at| (at, Vec::new())).collect();
    let mut dice = Dice::new(options.seed, 2);
    for length in [1, 2, 511, 512, 1_728, 4_096] {
        for at in [bed.whole.len(), bed.whole.len() - 7, first + 40] {
            cases.push((at, vec![0; length]));
            cases.push((at, (0..length).map(|_| dice.next().to_le_bytes()[3]).collect()));
        }
    }
    for _ in 0..options.count(200, 5_000) {
        let at =
            first + usize::try_from(dice.below((bed.whole.len() - first) as u64 + 1)).unwrap_or_default();
        let length = dice.below(4_097);
        let nul = dice.below(2) == 0;
        let byte = |dice: &mut Dice| if nul { 0 } else { dice.next().to_le_bytes()[3] };
        cases.push((at, (0..length).map(|_| byte(&mut dice)).collect()));
    }
    let results = in_parallel(options.width, &cases, |(at, tail)| tear(&bed, *at, tail));
    for ((at, tail), result) in cases.iter().zip(results) {
        report.add(format!("cut at {at}, {} bytes behind it", tail.len()), result);
    }
    let Large { time, plain, size } = match large_load() {
        Ok(measured) => measured,
        Err(problem) => {
            report.add("a file of 10 MB", Err(problem));
            Default::default()
        }
    };
    let hangs = time > HANG + plain * 20;
    report.add("a file of 10 MB in time", if hangs { Err(format!("{time:?}")) } else { Ok(()) });
    let runs = report.runs;
    let loaded = runs - report.failures.len() as u64;
    report.figure(format!(
        "{loaded} of {runs} load ({} cuts, each byte of the last 3 records), at most the torn record lost; a torn \
         file of {size} MB opens in {:.1} ms (reading and parsing each line alone: {:.1} ms)",
        cases.len(),
        time.as_secs_f64() * 1_000.0,
        plain.as_secs_f64() * 1_000.0
    ))
}

/// Loads what is left of a transcript and goes on with it.
fn tear(bed: &Bed, at: usize, tail: &[u8]) -> Result<(), String> {
    let bytes = [&bed.whole[..at], tail].concat();
    let copy = Bed::of(&bytes)?;
    let (mut writer, report, events) = copy.resume()?;
    // Everything whose last line was whole must be there, and nothing else.
    let kept = bed.events_within(&bytes);
    if events != bed.events[..kept] {
        return Err(format!("{} of {kept} records: {report:?}", events.len()));
    }
    // A line that lost only its end is whole.
    let whole = [bed.ends_at(kept), bed.ends_at(kept).saturating_sub(1)].contains(&bytes.len());
    if whole != report.is_clean() {
        return Err(format!("told {:?}", report.problems()));
    }
    let seq = writer.last_seq() + 1;
    let next = envelope(seq, prompt(9_000, "go on"));
    writer.append(std::slice::from_ref(&next)).map_err(|error| error.to_string())?;
    drop(writer);
    let (after, clean) = copy.read()?;
    // Garbage with line ends is more than one unfinished record: it stays and is counted.
    let litter = clean.skipped > 0 && !tail.contains(&b'\n');
    if after.last() != Some(&next) || after.len() != kept + 1 || clean.torn_bytes > 0 || litter {
        return Err(format!("after going on: {} records, {clean:?}", after.len()));
    }
    Ok(())
}

/// How long a torn file of 10 MB takes to open, and its size.
/// How long a large file takes.
#[derive(Default)]
struct Large {
    time: Duration,
    /// How long it takes to look at every line once.
    plain: Duration,
    size: u64,
}

fn large_load() -> Result<Large, String> {
    let bed = Bed::new(15_000)?;
    let copy = Bed::of(&bed.whole[..bed.whole.len() - 9])?;
    let plain = plain_parse(std::io::Cursor::new(&bed.whole)).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let (_, _, events) = copy.resume()?;
    let time = begun.elapsed();
    if events.len() + 1 != bed.events.len() {
        return Err(format!("{} of {} records", events.len(), bed.events.len()));
    }
    Ok(Large { time, plain, size: bed.whole.len() as u64 / 1_000_000 })
}

// ---- T3 ----

fn damaged(options: &Options) -> Report {
    let mut report = Report::default();
    let bed = match Bed::new(RECORDS) {
        Ok(bed) => bed,
        Err(problem) => return Report::broken(problem),
    };
    let lines = line_spans(&bed.whole);
    let cases: Vec<(usize, How)> =
        (0..lines.len()).flat_map(|line| How::ALL.map(|how| (line, how))).collect();
    let results = in_parallel(options.width, &cases, |(line, how)| hurt(&bed, &lines, *line, *how));
    for ((line, how), result) in cases.iter().zip(results) {
        report.add(format!("line {line}, {how:?}"), result);
    }
    let held = report.runs - report.failures.len() as u64;
    let rounds: Vec<u64> = (0..options.count(2_000, 200_000)).collect();
    let results = in_parallel(options.width, &rounds, |number| {
        mix(&bed, &lines, &mut Dice::new(options.seed ^ 0x7333, *number))
    });
    for (number, result) in rounds.iter().zip(results) {
        report.add(format!("mixture {number}"), result);
    }
    let (events, loaded) = (bed.events.len(), report.runs - report.failures.len() as u64 - held);
    report.figure(format!(
        "{held} of {} damages of {} lines cost the one record at most (of {events}); {loaded} of {} random mixtures \
         load with nothing untrue",
        cases.len(),
        lines.len(),
        rounds.len()
    ))
}

/// What is done to a line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    First,
    Middle,
    Last,
    Nul,
    Removed,
    Twice,
    Joined,
    ForeignBefore,
    LaterBefore,
}

impl How {
    const ALL: [Self; 9] = [
        Self::First,
        Self::Middle,
        Self::Last,
        Self::Nul,
        Self::Removed,
        Self::Twice,
        Self::Joined,
        Self::ForeignBefore,
        Self::LaterBefore,
    ];

    /// Whether the line's record is lost.
    fn loses(self) -> bool {
        self.changes() || matches!(self, Self::Nul | Self::Removed)
    }

    /// Whether a byte of it is another: where the line still parses, it is used as it is now.
    fn changes(self) -> bool {
        matches!(self, Self::First | Self::Middle | Self::Last)
    }

    fn of(self, whole: &[u8], line: &Range<usize>) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        match self {
            Self::First => bytes[line.start] ^= 1,
            Self::Middle => bytes[usize::midpoint(line.start, line.end)] ^= 1,
            Self::Last => bytes[line.end - 2] ^= 1,
            Self::Nul => bytes[line.start..line.end - 1].fill(0),
            Self::Removed => drop(bytes.drain(line.clone())),
            Self::Twice => drop(bytes.splice(line.end..line.end, whole[line.clone()].to_vec())),
            Self::Joined => drop(bytes.remove(line.end - 1)),
            Self::ForeignBefore => {
                drop(
                    bytes.splice(
                        line.start..line.start,
                        *b"{\"type\":\"custom-title\",\"customTitle\":\"x\"}\n",
                    ),
                );
            }
            Self::LaterBefore => {
                drop(bytes.splice(line.start..line.start, *b"{\"type\":\"later\",\"dv\":99,\"what\":[1]}\n"));
            }
        }
        bytes
    }
}

/// Damages one line and loads: its record is lost at most, all others are there in order, and it is told.
fn hurt(bed: &Bed, lines: &[Range<usize>], line: usize, how: How) -> Result<(), String> {
    let copy = Bed::of(&how.of(&bed.whole, &lines[line]))?;
    let (_, report, events) = copy.resume()?;
    let ours: Vec<Envelope> =
        events.into_iter().filter(|envelope| !matches!(envelope.event, Event::Unknown(_))).collect();
    let record = bed.record_of(&lines[line]);
    let last = line + 1 == lines.len();
    let loses = how.loses();
    let ours: Vec<Envelope> = match how.changes() {
        true if report.edited + report.skipped != 1 => return Err(format!("told {report:?}")),
        true => ours
            .into_iter()
            .filter(|it| bed.events.get(record) != Some(it) && bed.events.contains(it))
            .collect(),
        false => ours,
    };
    let expected: Vec<&Envelope> =
        bed.events.iter().enumerate().filter(|(at, _)| !loses || *at != record).map(|(_, it)| it).collect();
    if ours.iter().collect::<Vec<_>>() != expected {
        return Err(format!("{} of {} records: {report:?}", ours.len(), expected.len()));
    }
    // The last line of all can be gone without a trace; everything else is told.
    let silent = last && how == How::Removed && bed.whole[..lines[line].start].ends_with(b"\n");
    if loses && !silent && report.is_clean() {
        return Err("nobody is told".into());
    }
    Ok(())
}

/// A file of true, changed and foreign pieces in any order: loads, and what is given is in order and true.
fn mix(bed: &Bed, lines: &[Range<usize>], dice: &mut Dice) -> Result<(), String> {
    let mut bytes = Vec::new();
    for _ in 0..dice.below(12) {
        let at = usize::try_from(dice.below(lines.len() as u64)).unwrap_or_default();
        let start = bytes.len();
        bytes.extend_from_slice(&bed.whole[lines[at].clone()]);
        let length = (bytes.len() - start) as u64;
        let place = start + usize::try_from(dice.below(length)).unwrap_or_default();
        match dice.below(5) {
            0 => bytes[place] ^= 1 << dice.below(8),
            1 => bytes.truncate(place),
            2 => bytes.extend((0..dice.below(40)).map(|_| 0)),
            _ => {}
        }
    }
    let copy = Bed::of(&bytes)?;
    let (_, report, events) = copy.resume()?;
    let ours: Vec<&Envelope> =
        events.iter().filter(|envelope| !matches!(envelope.event, Event::Unknown(_))).collect();
    // Which run a record belongs to stands only on the run's first line.
    let written = |it: &Envelope| {
        bed.events.iter().any(|true_one| it.seq == true_one.seq && it.event == true_one.event)
    };
    // A bit that is another may leave a line that parses: it counts as edited, and may cost the lines it is one of.
    let untrue: Vec<_> = ours.iter().filter(|envelope| !written(envelope)).collect();
    if untrue.len() as u64 > report.edited {
        return Err(format!("records that were never written, {} edited: {untrue:?}", report.edited));
    }
    // A line and an edited copy of it are two.
    if report.edited == 0 && ours.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("a record twice".into());
    }
    let (_, clean) = copy.read()?;
    if clean.torn_bytes > 0 { Err(format!("still torn: {clean:?}")) } else { Ok(()) }
}

/// A line with the checksum that makes it one of ours: all its members but the last, without the brace at the end.
pub fn sealed(covered: &str) -> String {
    format!("{covered},\"crc\":\"{:08x}\"}}\n", crc32c::crc32c(covered.as_bytes()))
}

// ---- a transcript to damage ----

/// A state folder with one session, what was written into it, and what that became.
struct Bed {
    folder: tempfile::TempDir,
    events: Vec<Envelope>,
    whole: Vec<u8>,
    /// Where each record ends in the file.
    ends: Vec<usize>,
}

impl Bed {
    /// A transcript of so many records.
    fn new(records: u64) -> Result<Self, String> {
        let mut bed = Self::empty()?;
        let mut writer =
            SessionWriter::create(&bed.paths(), &info(), date(0)).map_err(|error| error.to_string())?;
        bed.events = conversation(records);
        // One by one where positions matter, else at once.
        if records <= RECORDS {
            for event in &bed.events {
                writer.append(std::slice::from_ref(event)).map_err(|error| error.to_string())?;
                let length = fs::metadata(bed.paths().transcript()).map_err(|error| error.to_string())?.len();
                bed.ends.push(usize::try_from(length).map_err(|error| error.to_string())?);
            }
        } else {
            writer.append(&bed.events).map_err(|error| error.to_string())?;
        }
        drop(writer);
        bed.whole = fs::read(bed.paths().transcript()).map_err(|error| error.to_string())?;
        Ok(bed)
    }

    /// A session whose transcript is these bytes.
    fn of(bytes: &[u8]) -> Result<Self, String> {
        let bed = Self::empty()?;
        let paths = bed.paths();
        let writer = SessionWriter::create(&paths, &info(), date(0)).map_err(|error| error.to_string())?;
        drop(writer);
        fs::write(paths.transcript(), bytes).map_err(|error| error.to_string())?;
        Ok(bed)
    }

    fn empty() -> Result<Self, String> {
        // In memory where that is possible: what is damaged is the bytes, not the disk.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.map_err(|error| error.to_string())?;
        Ok(Self { folder, events: Vec::new(), whole: Vec::new(), ends: Vec::new() })
    }

    fn paths(&self) -> SessionPaths {
        let home = Utf8PathBuf::from_path_buf(self.folder.path().join("state")).unwrap_or_default();
        Layout::new(home).session(&info().cwd, info().session)
    }

    fn resume(&self) -> Result<(SessionWriter, ReplayReport, Vec<Envelope>), String> {
        let mut events = Vec::new();
        let options = ReplayOptions { structured: true, ..ReplayOptions::default() };
        let paths = self.paths();
        let resumed =
            SessionWriter::resume(&paths, &info(), date(0), &options, &mut |envelope| events.push(envelope));
        let (writer, report) = resumed.map_err(|error| format!("refused: {error}"))?;
        Ok((writer, report, events))
    }

    fn read(&self) -> Result<(Vec<Envelope>, ReplayReport), String> {
        let mut events = Vec::new();
        let options = ReplayOptions { scope: Scope::Session, structured: true, after: 0 };
        let report = replay(&self.paths(), &options, &mut |envelope| events.push(envelope))
            .map_err(|error| format!("refused: {error}"))?;
        Ok((events, report))
    }

    /// How many records lie whole at the beginning of these bytes. One that lost only its line end is whole,
    /// whatever follows it.
    fn events_within(&self, bytes: &[u8]) -> usize {
        let is_whole = |end: usize| bytes.get(..end - 1) == Some(&self.whole[..end - 1]);
        self.ends.iter().filter(|end| is_whole(**end)).count()
    }

    fn ends_at(&self, records: usize) -> usize {
        records.checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or_default()
    }

    fn record_starts(&self, lines: &[Range<usize>]) -> Vec<usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.filter(|start| lines.iter().any(|line| line.start == *start)).collect()
    }

    fn record_of(&self, line: &Range<usize>) -> usize {
        self.ends.iter().filter(|end| **end <= line.start).count()
    }
}

fn line_spans(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut start = 0;
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
}

fn info() -> SessionInfo {
    SessionInfo {
        session: SessionId(Uuid::from_u128(0x5e55_0000_0000_4000_8000_0000_0000_0001)),
        cwd: "/home/someone/a-project".into(),
        version: "0".into(),
        git_branch: Some("main".into()),
        entrypoint: "cli".into(),
        imported_from: None,
        forked_from: None,
    }
}

fn date(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(1_794_724_522_000 + millisecond).unwrap_or_default()
}

fn line(number: u64) -> LineId {
    LineId(Uuid::from_u128(0x11e0_0000_0000_4000_8000_0000_0000_0000 + u128::from(number)))
}

fn envelope(seq: u64, event: Event) -> Envelope {
    let run = RunId(Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001));
    Envelope { seq, at: date(i64::try_from(seq).unwrap_or_default()), agent: None, run, event }
}

fn prompt(id: u64, text: &str) -> Event {
    let parent = id.checked_sub(1).map(line);
    Event::Message { message: Message::user(text), lines: vec![line(id)], parent, meta: Box::default() }
}

/// A conversation of so many records: an opening, then prompts, replies with a call, intents and results.
fn conversation(records: u64) -> Vec<Envelope> {
    let mut events = vec![envelope(1, Event::SessionOpened { info: Box::new(info()) })];
    let mut round = 0;
    while (events.len() as u64) < records {
        let id = 10 * (round + 1);
        let call = CallId(format!("toolu_{round}"));
        for event in [
            prompt(id, &format!("do step {round}: é and \"quotes\"")),
            reply(id + 1, &call),
            started(&call),
            Event::CallEnded {
                call: call.clone(),
                tool: "Bash".into(),
                line: line(id + 3),
                parent: Some(line(id + 2)),
                output: Box::new(
                    ToolOutput::text("12 passed\n")
                        .with_structured(json!({"stdout": "12 passed\n", "stderr": ""})),
                ),
                duration_ms: 12,
            },
        ] {
            let seq = events.len() as u64 + 1;
            events.push(envelope(seq, event));
        }
        round += 1;
    }
    events.truncate(usize::try_from(records).unwrap_or(usize::MAX));
    events
}

fn reply(id: u64, call: &CallId) -> Event {
    let input = json!({"command": "cargo test", "description": "run the tests"});
    let blocks =
        vec![Block::text("Looking."), Block::ToolUse { id: call.clone(), name: "Bash".into(), input }];
    let meta = MessageMeta {
        origin: Origin::Model,
        message_id: Some("msg_1".into()),
        model: Some("a-model".into()),
        stop_reason: Some("tool_use".into()),
        usage: Some(Usage { input_tokens: 1_200, output_tokens: 50, ..Usage::default() }),
        ..MessageMeta::default()
    };
    Event::Message {
        message: Message::assistant(blocks),
        lines: vec![line(id), line(id + 1)],
        parent: Some(line(id - 1)),
        meta: Box::new(meta),
    }
}

fn started(call: &CallId) -> Event {
    Event::CallStarted {
        call: call.clone(),
        tool: "Bash".into(),
        intent: Box::new(Intent::titled("$ cargo test")),
        decision: Decision {
            verdict: Verdict::Allow,
            rule: Some("Bash".into()),
            reason: "allowed".into(),
            profile: None,
        },
        input: None,
    }
}
