//! A host that does not read: what waits for it is bounded, what it says is heard, nothing is lost to it, and it is not
//! waited for for ever.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use decurion_protocol::link::Place as _;
use decurion_protocol::{Command, CommandReceiver, Link, Request, RequestId, SessionId};
use decurion_serve::input::HostReader;
use decurion_serve::{
    Finish, Format, Headless, HostOutput, LineWriterQueue, ProgressOutput, StateLines, StopSignal,
    StreamFacts, StreamJson,
};
use decurion_testkit::stage::Stage;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;

use crate::playing::{Kept, stage, values};

/// An output that nobody reads until it is let go.
#[derive(Clone, Default)]
struct Shut {
    kept: Kept,
    is_open: Arc<(Mutex<bool>, Condvar)>,
}

impl Shut {
    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }
}

impl Write for Shut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut is_open = self.is_open.0.lock().unwrap();
        while !*is_open {
            is_open = self.is_open.1.wait(is_open).unwrap();
        }
        drop(is_open);
        self.kept.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Where complaints go; the output is let go with the first one.
#[derive(Clone)]
struct Complaints {
    kept: Kept,
    out: Shut,
}

impl Write for Complaints {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.open();
        self.kept.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets a host say these lines, to a session whose output is shut; `then` says when to hang up.
async fn led(stage: Stage, out: &Shut, said: Vec<Value>, then: impl AsyncFnOnce()) -> (Finish, String) {
    let link = stage.engine().open(stage.request.clone()).await.unwrap();
    let state = StateLines::On;
    let facts = StreamFacts { version: "0".into(), sandbox: "none".into(), state, ..StreamFacts::default() };
    let stream = StreamJson::new(link.session, facts);
    let lines = LineWriterQueue::to(out.clone()).unwrap();
    let headless =
        Headless { link, format: Format::StreamJson, stream, out: lines, progress: ProgressOutput::Off };
    let problems = Kept::default();
    let complaints = Complaints { kept: problems.clone(), out: out.clone() };
    let problems_to = LineWriterQueue::to(complaints).unwrap();
    let (agents, commands, known) =
        (Vec::new(), Vec::new(), std::sync::Arc::new(decurion_serve::NothingKnown));
    let host = HostOutput { agents, commands, known, problems: problems_to, greeted: false };
    // A small pipe: a session that does not listen stops its host.
    let (mut input, ours) = tokio::io::duplex(1 << 10);
    let (_keep, mut signals) = mpsc::channel(1);
    let conversing = Box::pin(headless.converse(host, HostReader::new(BufReader::new(ours)), &mut signals));
    let (finish, ()) = tokio::join!(conversing, async {
        for line in said {
            // A session that has gone listens no more.
            if input.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                break;
            }
        }
        then().await;
        drop(input);
    });
    (finish.unwrap(), problems.text())
}

fn prompt() -> Value {
    json!({"type": "user", "message": {"role": "user", "content": "go"}})
}

/// Each prompt is answered with a tenth of a megabyte.
fn wordy() -> Stage {
    let mut stage = stage(&format!("when\n  say \"{}\"\n", "x".repeat(100_000)));
    stage.request.answers = true;
    stage
}

#[tokio::test]
async fn a_host_that_says_everything_before_it_reads_anything_is_answered_all_of_it() {
    const PROMPTS: usize = 120;
    let out = Shut::default();
    let mut said = vec![prompt(); PROMPTS];
    for index in 0..PROMPTS {
        let request = json!({"subtype": "initialize", "padding": "y".repeat(5000)});
        said.push(json!({"type": "control_request", "request_id": format!("r{index}"), "request": request}));
    }
    let (finish, problems) = led(wordy(), &out, said, async || out.open()).await;
    assert_eq!((finish.outcome.exit_code(), finish.unread, problems.as_str()), (0, false, ""));
    let lines = values(&out.kept.text());
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((count("result"), count("assistant"), count("control_response")), (PROMPTS, PROMPTS, PROMPTS));
    // That it works is said before the first result, that it rests after the last one.
    let told = |line: &&Value| line["type"] == "result" || line["subtype"] == "session_state_changed";
    let mut told: Vec<&Value> = lines.iter().filter(told).collect();
    told.dedup_by(|next, line| next["type"] == "result" && line["type"] == "result");
    let word = |line: &Value| line["state"].as_str().map_or("result".to_owned(), str::to_owned);
    let told: Vec<String> = told.into_iter().map(word).collect();
    assert_eq!(told, ["running", "result", "idle"]);
    let last = lines.iter().rfind(|line| line["type"] == "result").unwrap();
    assert_eq!(last["queued_turn_count"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_reads_is_not_waited_for_for_ever() {
    let out = Shut::default();
    let said = vec![prompt(); 20];
    let (finish, problems) = led(wordy(), &out, said, async || {
        // Not before the session has gone does the host.
        tokio::time::sleep(Duration::from_secs(3600)).await;
    })
    .await;
    assert_eq!(finish.signal, Some(StopSignal::Hangup));
    assert!(problems.contains("the host has read nothing for 10 minutes"), "{problems}");
}

/// Answers are not cut short and not thrown away, so a host that only asks is listened to no more at some point, and
/// then waited for as any other.
#[tokio::test(start_paused = true)]
async fn a_host_that_asks_and_never_reads_is_not_waited_for_for_ever() {
    let out = Shut::default();
    let request = json!({"subtype": "y".repeat(200_000)});
    let said = vec![json!({"type": "control_request", "request_id": "r", "request": request}); 100];
    let led = led(wordy(), &out, said, async || ());
    let ended = tokio::time::timeout(Duration::from_secs(7200), led).await;
    let Ok((finish, problems)) = ended else {
        out.open();
        panic!("it waits for ever")
    };
    assert_eq!(finish.signal, Some(StopSignal::Hangup));
    assert!(problems.contains("the host has read nothing for 10 minutes"), "{problems}");
}

/// A session that takes one thing and nothing more, as behind a disk that is full, and the host that leads it.
struct Stalled {
    input: tokio::io::DuplexStream,
    signal: mpsc::Sender<StopSignal>,
    reader: io::PipeReader,
    inbox: CommandReceiver,
}

/// Lets `then` do something to a stalled session that a host has asked for more than it takes, and keep what it does not
/// end; gives how the session was left.
async fn stalled(then: impl AsyncFnOnce(Stalled) -> Option<Stalled>) -> Finish {
    let session = SessionId(Default::default());
    let (commands, inbox) = decurion_protocol::commands::channel();
    for id in 0..511 {
        commands.try_send(Request { id: RequestId(1 << 32 | id), command: Command::Tasks }).unwrap();
    }
    let link = Link { session, commands, events: Box::pin(stream::pending()), again: None };
    let (reader, writer) = io::pipe().unwrap();
    let pipe = writer.try_clone().unwrap().into();
    let out = LineWriterQueue::to(writer).unwrap().watching(pipe).unwrap();
    let stream = StreamJson::new(session, StreamFacts::default());
    let headless = Headless { link, format: Format::StreamJson, stream, out, progress: ProgressOutput::Off };
    let known = Arc::new(decurion_serve::NothingKnown);
    let problems = LineWriterQueue::to(Kept::default()).unwrap();
    let host = HostOutput { agents: Vec::new(), commands: Vec::new(), known, problems, greeted: false };
    let (mut input, ours) = tokio::io::duplex(1 << 16);
    let (signal, mut signals) = mpsc::channel(4);
    let conversing = Box::pin(headless.converse(host, HostReader::new(BufReader::new(ours)), &mut signals));
    let (finish, _kept) = tokio::join!(conversing, async {
        for index in 0..70 {
            let asked = json!({"type": "control_request", "request_id": format!("r{index}"), "request": {"subtype": "mcp_status"}});
            input.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
        }
        then(Stalled { input, signal, reader, inbox }).await
    });
    finish.unwrap()
}

#[tokio::test(start_paused = true)]
async fn signals_are_heard_while_the_session_takes_no_more() {
    for given in [StopSignal::Terminate, StopSignal::Hangup, StopSignal::Interrupt] {
        let finish = stalled(async |stalled: Stalled| {
            for _ in 0..2 {
                let _ = stalled.signal.send(given).await;
            }
            Some(stalled)
        });
        let finish = tokio::time::timeout(Duration::from_secs(3600), finish).await;
        assert_eq!(finish.expect("it waits for ever").signal, Some(given));
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_reaches_a_session_that_has_no_room_for_what_came_before_it() {
    let finish = stalled(async |mut stalled: Stalled| {
        // What was received keeps its room.
        let mut waiting = Vec::new();
        for _ in 0..512 {
            waiting.push(stalled.inbox.recv().await);
        }
        // Time passes only once all that can happen has happened: the host's next request waits for room.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stalled.signal.send(StopSignal::Interrupt).await.unwrap();
        let next = stalled.inbox.recv().await.unwrap();
        assert_eq!(next.request.command, Command::Interrupt);
        stalled.signal.send(StopSignal::Interrupt).await.unwrap();
        drop(waiting);
        Some(stalled)
    });
    let finish = tokio::time::timeout(Duration::from_secs(3600), finish).await;
    assert_eq!(finish.expect("the interrupt does not reach the session").signal, Some(StopSignal::Interrupt));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_dies_is_not_waited_for_though_the_session_takes_no_more() {
    let finish = stalled(async |Stalled { input, signal, reader, .. }: Stalled| {
        drop((input, signal, reader));
        None
    });
    assert_eq!(finish.await.signal, Some(StopSignal::Hangup));
}
