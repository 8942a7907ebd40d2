//! Sessions, events and files to test with.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::event::{MessageMeta, Origin, SessionInfo};
use decurion_protocol::{
    AgentId, Block, CallId, Decision, Envelope, Event, Intent, LineId, Message, Money, RunId, SessionId,
    ToolEffect, ToolOutput, Usage, Verdict,
};
use decurion_store::{
    Journal, Layout, OpenError, ReplayOptions, ReplayReport, Scope, SessionPaths, SessionWriter, replay,
};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

/// A lock that is held longer is held for good.
const HANG: std::time::Duration = std::time::Duration::from_secs(30);

pub fn session(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(0x5e55_0000_0000_0000_0000_0000_0000_0000 + number))
}

pub fn line(number: u128) -> LineId {
    LineId(Uuid::from_u128(0x11e0_0000_0000_0000_0000_0000_0000_0000 + number))
}

pub fn run() -> RunId {
    RunId(Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001))
}

pub fn agent(name: &str) -> AgentId {
    name.parse().unwrap()
}

pub fn date(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(1_794_724_522_000 + millisecond).unwrap()
}

pub fn info(number: u128) -> SessionInfo {
    SessionInfo {
        session: session(number),
        cwd: "/home/someone/projects/a-program-of-sixty-characters-in-all".into(),
        version: "0.1.0".into(),
        git_branch: Some("main".into()),
        entrypoint: "cli".into(),
        imported_from: None,
        forked_from: None,
    }
}

/// A state folder that is gone with the test.
pub struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.folder.path()).unwrap()
    }

    pub fn state(&self) -> Utf8PathBuf {
        self.path().join("state")
    }

    pub fn paths(&self, number: u128) -> SessionPaths {
        Layout::new(self.state()).session(&info(number).cwd, session(number))
    }

    pub fn create(&self, number: u128) -> SessionWriter {
        SessionWriter::create(&self.paths(number), &info(number), date(0)).unwrap()
    }

    pub fn resume(&self, number: u128) -> (SessionWriter, ReplayReport, Vec<Envelope>) {
        let begun = std::time::Instant::now();
        loop {
            let mut events = Vec::new();
            let options = ReplayOptions { structured: true, ..ReplayOptions::default() };
            let take = &mut |envelope| events.push(envelope);
            match SessionWriter::resume(&self.paths(number), &info(number), date(0), &options, take) {
                // Another test of this program starts processes: until such a child has begun its program it
                // holds every lock that was held when it was made, also one that was let go since.
                Err(OpenError::Held { .. }) if begun.elapsed() < HANG => std::thread::yield_now(),
                opened => {
                    let (writer, report) = opened.unwrap();
                    return (writer, report, events);
                }
            }
        }
    }

    /// Everything in a session.
    pub fn read(&self, number: u128) -> (Vec<Envelope>, ReplayReport) {
        read(&self.paths(number), Scope::Everything)
    }

    pub fn transcript(&self, number: u128) -> Vec<u8> {
        std::fs::read(self.paths(number).transcript()).unwrap()
    }
}

pub fn read(paths: &SessionPaths, scope: Scope) -> (Vec<Envelope>, ReplayReport) {
    let mut events = Vec::new();
    let options = ReplayOptions { scope, structured: true, after: 0 };
    let report = replay(paths, &options, &mut |envelope| events.push(envelope)).unwrap();
    (events, report)
}

pub fn envelope(seq: u64, event: Event) -> Envelope {
    Envelope { seq, at: date(i64::try_from(seq).unwrap()), agent: None, run: run(), event }
}

pub fn opened(number: u128) -> Event {
    Event::SessionOpened { info: Box::new(info(number)) }
}

pub fn prompt(id: u128, text: &str) -> Event {
    Event::Message {
        message: Message::user(text),
        lines: vec![line(id)],
        parent: id.checked_sub(1).filter(|parent| *parent > 0).map(line),
        meta: Box::default(),
    }
}

pub fn reply(id: u128, blocks: Vec<Block>) -> Event {
    let lines = (0..blocks.len() as u128).map(|place| line(id + place)).collect();
    let mut usage = Usage { input_tokens: 1200, output_tokens: 50, ..Usage::default() };
    usage.cache_read_input_tokens = 1100;
    Event::Message {
        message: Message::assistant(blocks),
        lines,
        parent: Some(line(id - 1)),
        meta: Box::new(MessageMeta {
            origin: Origin::Model,
            message_id: Some("msg_01AbCdEfGhIjKlMnOpQrStUv".into()),
            request_id: Some("req_011CAbCdEfGhIjKlMnOpQrSt".into()),
            model: Some("some-model-4-5".into()),
            asked_model: None,
            stop_reason: Some("tool_use".into()),
            usage: Some(usage),
            cost: Some(Money(5_816_000)),
            delivers: Vec::new(),
            timing: None,
            error: None,
            error_status: None,
            skills: Vec::new(),
            effects: Vec::new(),
        }),
    }
}

pub fn bash(id: &str, command: &str) -> Block {
    Block::ToolUse { id: CallId(id.into()), name: "Bash".into(), input: json!({"command": command}) }
}

pub fn call_started(id: &str, command: &str) -> Event {
    Event::CallStarted {
        call: CallId(id.into()),
        tool: "Bash".into(),
        intent: Box::new(Intent::titled(format!("$ {command}"))),
        decision: Decision {
            verdict: Verdict::Allow,
            rule: Some("Bash(cargo test *)".into()),
            reason: "an allow rule matches".into(),
            profile: None,
        },
        input: None,
    }
}

pub fn call_ended(id: &str, at: u128, output: ToolOutput) -> Event {
    Event::CallEnded {
        call: CallId(id.into()),
        tool: "Bash".into(),
        line: line(at),
        parent: Some(line(at - 1)),
        output: Box::new(output),
        duration_ms: 1234,
    }
}

pub fn bash_output(text: &str) -> ToolOutput {
    ToolOutput::text(text)
        .with_structured(json!({"stdout": text, "stderr": "", "interrupted": false, "isImage": false}))
        .with_effect(ToolEffect::Moved { cwd: "/tmp".into() })
}

/// The opening and then `rounds` of prompt, reply of two blocks, intent and result: 1 + 4 × rounds events.
pub fn conversation(number: u128, rounds: u64) -> Vec<Envelope> {
    let mut events = vec![envelope(1, opened(number))];
    for round in 0..rounds {
        let id = 10 * (u128::from(round) + 1);
        let call = format!("toolu_{round}");
        let steps = [
            prompt(id, &format!("do step {round}")),
            reply(id + 1, vec![Block::text("Looking."), bash(&call, "cargo test --workspace")]),
            call_started(&call, "cargo test --workspace"),
            call_ended(&call, id + 3, bash_output("test result: ok. 12 passed")),
        ];
        for step in steps {
            let seq = events.len() as u64 + 1;
            events.push(envelope(seq, step));
        }
    }
    events
}

/// A home with one session of this conversation.
pub fn recorded(rounds: u64) -> (Home, Vec<Envelope>) {
    let home = Home::new();
    let events = conversation(1, rounds);
    home.create(1).append(&events).unwrap();
    (home, events)
}

/// Where each line of a file begins and ends, ends included.
pub fn line_spans(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    ends.map(|end| std::mem::replace(&mut start, end)..end).collect()
}
