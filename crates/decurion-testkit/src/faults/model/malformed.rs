//! Row M5: streams that make no sense. Makes a corpus by damaging valid streams of both dialects, sends each
//! through the whole reading path and the gateway, and three endless ones to the binary itself: a typed error
//! or a recovery, never a panic, never a call with half an input, memory bounded.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use decurion_model::http::Redaction;
use decurion_model::reply::{Response, events};
use decurion_model::script::{Ids, RequestView, Script, WireStep, render};
use decurion_model::{
    BoxStream, Dialect, Gateway, GatewaySettings, ModelError, ModelEvent, ModelProvider, ModelRequest,
};
use decurion_protocol::{Block, Event};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use hyper::HeaderMap;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::{ask, request, simulated};
use crate::faults::stand::{HANG, Stand, brief};
use crate::faults::{Dice, Options, Report, in_parallel};
use crate::proc::{Finished, Program, peak_memory_kib};
use crate::stage::Stage;

/// How many damaged streams there are, half of them in each dialect.
const CORPUS: u64 = 200;
/// How much more memory nonsense may take than sense.
const MORE_KIB: u64 = 32 * 1024;

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let rounds = options.count(1, 50);
    let numbers: Vec<u64> = (0..CORPUS * rounds).collect();
    let mut recovered = 0;
    for (number, result) in numbers.iter().zip(in_parallel(options.width, &numbers, |number| {
        damaged(Dice::new(options.seed, *number), *number)
    })) {
        recovered += u64::from(result == Ok(true));
        report.add(format!("stream {number}"), result.map(drop));
    }
    let bad = report.failures.len();
    let cut = cut_inputs();
    let inputs = cut.as_ref().copied().unwrap_or_default();
    report.add("cut inputs", cut.map(drop));
    let mut grown = Vec::new();
    match plain_rss(options) {
        Err(problem) => report.add("a plain run", Err(problem)),
        Ok(base) => {
            for flood in FLOODS {
                let result = flooded(options, flood, base);
                grown.push(result.as_ref().map_or_else(|_| "?".into(), |more| format!("+{more} KiB")));
                report.add(flood.name, result.map(drop));
            }
        }
    }
    report.figure(format!(
        "{} damaged streams: {bad} panic, hang or are misread ({recovered} read as valid, the rest typed errors); \
         {inputs} cut inputs answered and not run; binary under {}: {} over a plain run (bound 32 MB)",
        numbers.len(),
        FLOODS.iter().map(|flood| flood.name).collect::<Vec<_>>().join(", "),
        grown.join(", ")
    ))
}

// ---- the corpus ----

const REPLY: &str = "when
  think chunk=5 \"a thought about it\"
  say chunk=6 \"Ünïcödé, quotes \\\" and a tail\"
  call Bash {\"command\": \"echo one\", \"description\": \"first\"}
  call Read {\"file_path\": \"/a/b\"}
";

fn valid(dialect: Dialect) -> Result<Vec<u8>, String> {
    let script = Script::parse(REPLY).map_err(|error| error.to_string())?;
    let seen = RequestView { turn: 1, attempt: 1, ..RequestView::default() };
    let plan = script.reply(&seen).map_err(|error| error.to_string())?;
    let steps = render(&plan, dialect, &Ids::of(&seen));
    let pieces = steps.iter().filter_map(|step| match step {
        WireStep::Bytes(bytes) => Some(&bytes[..]),
        _ => None,
    });
    Ok(pieces.collect::<Vec<_>>().concat())
}

/// What was done to a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    Flips,
    Truncated,
    BadText,
    Order,
    Twice,
    Dropped,
    Foreign,
    Noise,
    Numbers,
    Nested,
}

impl Damage {
    const ALL: [Self; 10] = [
        Self::Flips,
        Self::Truncated,
        Self::BadText,
        Self::Order,
        Self::Twice,
        Self::Dropped,
        Self::Foreign,
        Self::Noise,
        Self::Numbers,
        Self::Nested,
    ];

    fn of(self, whole: &[u8], dice: &mut Dice) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        let at = below(dice, bytes.len());
        match self {
            Self::Flips => {
                for _ in 0..=dice.below(8) {
                    let at = below(dice, bytes.len());
                    bytes[at] ^= 1 << dice.below(8);
                }
            }
            Self::Truncated => bytes.truncate(at),
            Self::BadText => {
                let bad: [&[u8]; 4] = [b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80"];
                bytes.splice(at..at, bad[below(dice, 4)].iter().copied());
            }
            Self::Order | Self::Twice | Self::Dropped => return self.of_events(whole, dice),
            Self::Foreign => {
                let html: &[u8] = b"<html><body>502 Bad Gateway</body></html>";
                let words = [html, b"\n\ndata: null\n\n", b"\0\0\0\0", b"\n\ndata: []\n\nevent: \n\n"];
                bytes.splice(at..at, words[below(dice, 4)].iter().copied());
            }
            Self::Noise => {
                let length = 1 + below(dice, 4_000);
                bytes = (0..length).map(|_| dice.next().to_le_bytes()[0]).collect();
            }
            Self::Numbers => {
                let numbers = ["-1", "99999999999999999999", "1e400", "null", "\"0\"", "4294967296"];
                let text = String::from_utf8_lossy(whole);
                let number = numbers[below(dice, numbers.len())];
                let which = ["\"index\":1", "\"output_tokens\":", "\"index\":0"][below(dice, 3)];
                let key = which.trim_end_matches(|c: char| c.is_ascii_digit());
                bytes = text
                    .replacen(which, &format!("{key}{number}, \"was\":0"), 1 + below(dice, 3))
                    .into_bytes();
            }
            Self::Nested => {
                let deep = format!("\n\ndata: {}{}\n\n", "[".repeat(3_000), "]".repeat(3_000));
                bytes.splice(at..at, deep.into_bytes());
            }
        }
        bytes
    }

    fn of_events(self, whole: &[u8], dice: &mut Dice) -> Vec<u8> {
        let text = String::from_utf8_lossy(whole).into_owned();
        let mut events: Vec<&str> = text.split_inclusive("\n\n").collect();
        let (one, other) = (below(dice, events.len()), below(dice, events.len()));
        match self {
            Self::Order => events.swap(one, other),
            Self::Twice => events.insert(other, events[one]),
            _ => drop(events.remove(one)),
        }
        events.concat().into_bytes()
    }
}

fn below(dice: &mut Dice, end: usize) -> usize {
    usize::try_from(dice.below(end as u64)).unwrap_or_default()
}

/// A provider that answers everything with the same bytes, in pieces.
struct Broken {
    dialect: Dialect,
    pieces: Vec<Bytes>,
    requests: AtomicUsize,
}

impl ModelProvider for Broken {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn stream(&self, _: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        let body = stream::iter(self.pieces.clone().into_iter().map(Ok)).boxed();
        let dialect = self.dialect;
        async move { events(dialect, 7, Redaction::default(), Response { status: 200, headers, body }).await }
            .flatten_stream()
            .boxed()
    }
}

/// Sends one damaged stream through the gateway; says whether it was read as a valid reply.
fn damaged(mut dice: Dice, number: u64) -> Result<bool, String> {
    let dialect = if number.is_multiple_of(2) { Dialect::Anthropic } else { Dialect::OpenAiChat };
    let damage = Damage::ALL[usize::try_from(number / 2 % 10).unwrap_or_default()];
    let whole = valid(dialect)?;
    let bytes = damage.of(&whole, &mut dice);
    let size = 1 + below(&mut dice, 700);
    let pieces = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
    let provider = Arc::new(Broken { dialect, pieces, requests: AtomicUsize::new(0) });
    let gateway = Gateway::new(Arc::clone(&provider) as Arc<dyn ModelProvider>, GatewaySettings::default());
    let asked = simulated(async {
        // On a task of its own, so that a panic is an answer too.
        let asking = tokio::spawn(async move { ask(&gateway, request(dialect, "main", "go")).await });
        tokio::time::timeout(Duration::from_mins(60), asking).await
    })?;
    let name = format!("{damage:?} in {dialect:?}");
    let outcome = match asked {
        Err(_) => return Err(format!("{name}: it does not end")),
        Ok(Err(panic)) => return Err(format!("{name}: {panic}")),
        Ok(Ok(outcome)) => outcome,
    };
    let requests = provider.requests.load(Ordering::Relaxed);
    let most = if matches!(outcome, Err(ModelError::Malformed { .. })) { 3 } else { 10 };
    if requests > most {
        return Err(format!("{name}: asked {requests} times"));
    }
    match outcome {
        Err(_) => Ok(false),
        Ok(blocks) => check_blocks(&name, &blocks, damage, &bytes, &whole).map(|()| true),
    }
}

/// A reply that was accepted holds whole inputs only, and none of a stream that lost its end.
fn check_blocks(
    name: &str,
    blocks: &[Block],
    damage: Damage,
    bytes: &[u8],
    whole: &[u8],
) -> Result<(), String> {
    for block in blocks {
        if let Block::ToolUse { input, .. } = block
            && !input.is_object()
        {
            return Err(format!("{name}: accepted the input {input}"));
        }
    }
    // Only the reason of the stop tells that a reply is whole; what comes after it may be lost.
    let text = String::from_utf8_lossy(whole);
    let end = text.rfind("_reason\":\"").unwrap_or(text.len());
    if damage == Damage::Truncated && bytes.len() < end {
        return Err(format!("{name}: accepted {} of {} bytes: {blocks:?}", bytes.len(), whole.len()));
    }
    Ok(())
}

// ---- inputs ----

/// Every proper prefix of an input reaches the loop and none of them runs.
fn cut_inputs() -> Result<usize, String> {
    let whole = r#"{"text": "poke it", "more": [1, {"a": "b"}]}"#;
    let mut tried = 0;
    for (end, _) in whole.char_indices().skip(1) {
        let raw = serde_json::Value::from(&whole[..end]);
        for stop in ["", "  stop max_tokens\n"] {
            let script = format!("when turn=1\n  call Poke raw {raw}\n{stop}when\n  say \"so\"\n");
            let stage = Stage::new(&script);
            let played = simulated(stage.play("go"))?;
            let started = played.events.iter().any(|it| matches!(it.event, Event::CallStarted { .. }));
            let answered = played
                .events
                .iter()
                .any(|it| matches!(&it.event, Event::CallEnded { output, .. } if output.is_error));
            if started || !answered {
                return Err(format!("{raw}{stop}: started {started}, answered {answered}"));
            }
            tried += 1;
        }
    }
    Ok(tried)
}

// ---- floods ----

struct Flood {
    name: &'static str,
    /// What is sent first.
    start: &'static str,
    /// What is sent then, over and over.
    again: &'static str,
    /// How many bytes of it.
    bytes: usize,
}

const HEAD: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\
    \"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\
    \"stop_sequence\":null,\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\nevent: content_block_start\n\
    data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";

const FLOODS: &[Flood] = &[
    Flood { name: "a line of 10 MB", start: "data: ", again: "aaaaaaaaaaaaaaaa", bytes: 10 << 20 },
    Flood {
        name: "100 MB of text",
        start: HEAD,
        again: "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
            {\"type\":\"text_delta\",\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}\n\n",
        bytes: 100 << 20,
    },
    Flood {
        name: "100 MB of keep-alives",
        start: HEAD,
        again: "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        bytes: 100 << 20,
    },
];

/// A server that floods whoever asks. Its thread ends with the process.
fn flooding(flood: &'static Flood) -> std::io::Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::Builder::new().name("flood".into()).spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || pour(socket, flood));
        }
    })?;
    Ok(url)
}

fn pour(mut socket: TcpStream, flood: &Flood) -> std::io::Result<()> {
    let mut request = vec![0; 1 << 16];
    // Whatever of the request has come is enough to answer it; the rest is taken when there is time.
    let _ = socket.read(&mut request)?;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    socket.write_all(head.as_bytes())?;
    socket.write_all(flood.start.as_bytes())?;
    let block = flood.again.repeat((1 << 16) / flood.again.len());
    let mut left = flood.bytes;
    while left > 0 {
        socket.write_all(block.as_bytes())?;
        left = left.saturating_sub(block.len());
    }
    Ok(())
}

/// Runs a program and watches its memory: how it ended, and the peak in KiB. What the system says after the
/// end is no use, since a process begins with the peak of the one that started it.
fn watched(program: Program) -> Result<(Finished, u64), String> {
    let running = program.start().map_err(|error| error.to_string())?;
    let (pid, ended) = (running.pid, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut peak = 0;
            while !ended.load(Ordering::Relaxed) {
                peak = peak_memory_kib(pid).map_or(peak, |now| peak.max(now));
                std::thread::sleep(Duration::from_millis(1));
            }
            peak
        });
        let run = running.finish(HANG * 2).map_err(|error| error.to_string());
        ended.store(true, Ordering::Relaxed);
        let peak = watching.join().map_err(|_| "nobody watched its memory".to_owned())?;
        Ok((run?, peak))
    })
}

fn plain_rss(options: &Options) -> Result<u64, String> {
    let stand = Stand::new(options, |_| "when\n say \"ok\"".into()).map_err(|error| error.to_string())?;
    let (run, peak) = watched(stand.run("go"))?;
    if run.ending.is_success() && peak > 0 { Ok(peak) } else { Err(brief(&run.errors)) }
}

/// The binary against a flood: ends with code 1 and a typed message; gives by how much more memory it took.
fn flooded(options: &Options, flood: &'static Flood, base: u64) -> Result<u64, String> {
    let stand = Stand::new(options, |_| "when\n say \"ok\"".into()).map_err(|error| error.to_string())?;
    let url = flooding(flood).map_err(|error| error.to_string())?;
    let (run, peak) = watched(stand.run("go").env("ANTHROPIC_BASE_URL", url).env("NO_PROXY", "*"))?;
    let more = peak.saturating_sub(base);
    if run.timed_out || run.ending.code() != 1 || run.errors.contains("panicked") {
        return Err(format!("{:?}: {}", run.ending, brief(&run.errors)));
    }
    if more > MORE_KIB { Err(format!("{} MB more than a plain run", more / 1024)) } else { Ok(more) }
}
