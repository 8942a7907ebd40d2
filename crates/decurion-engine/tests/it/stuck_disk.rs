//! Commands that come while the disk does not answer: an interrupt stops the turn at once, and in the order in which
//! commands were sent nothing changes.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    Block, Clock, Command, Event, Intent, Link, Outcome, Place as _, Reply, Rule, ToolOutput,
};
use decurion_testkit::stage::{Plain, Stage, send};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

/// A clock that the journal's thread cannot read while it is stuck: it writes nothing, as over a disk that hangs.
#[derive(Default)]
struct Disk {
    is_stuck: Mutex<bool>,
    changed: Condvar,
}

impl Disk {
    fn set_stuck(&self, is_stuck: bool) {
        *self.is_stuck.lock().unwrap() = is_stuck;
        self.changed.notify_all();
    }
}

impl Clock for Disk {
    fn date(&self) -> Timestamp {
        if std::thread::current().name() == Some("journal") {
            let is_stuck = self.is_stuck.lock().unwrap();
            drop(self.changed.wait_while(is_stuck, |is_stuck| *is_stuck).unwrap());
        }
        Timestamp::UNIX_EPOCH
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// What the test hears of a call.
#[derive(Default)]
struct Calls {
    begun: Notify,
    stopped: Notify,
}

/// A tool that runs until it is stopped.
struct Hold {
    plain: Plain,
    calls: Arc<Calls>,
}

impl Tool for Hold {
    fn spec(&self) -> &ToolSpec {
        self.plain.spec()
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        self.plain.intent(input, around)
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let _stopped = Dropped(&self.calls.stopped);
            self.calls.begun.notify_one();
            cx.cancel.cancelled().await;
            ToolOutput::error("interrupted")
        })
    }
}

/// Tells that a call is over, however it ended.
struct Dropped<'a>(&'a Notify);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// A session in the middle of a call, on a disk that is stuck from now on.
async fn stuck_in_a_call() -> (Stage, Link, Arc<Disk>, Arc<Calls>) {
    let mut stage = Stage::new("when turn=1\n  call Hold {\"text\": \"x\"}\nwhen\n  say \"on\"\n");
    let (disk, calls) = (Arc::<Disk>::default(), Arc::<Calls>::default());
    stage.tools = vec![Arc::new(Hold { plain: Plain::named("Hold"), calls: Arc::clone(&calls) })];
    stage.rules.allow.push(Rule::parse("Hold", Default::default()).unwrap());
    (stage.clock, stage.journal_here) = (Arc::clone(&disk) as _, false);
    let link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 0, prompt("go")).await;
    calls.begun.notified().await;
    disk.set_stuck(true);
    (stage, link, disk, calls)
}

fn prompt(text: &str) -> Command {
    Command::Prompt { blocks: vec![Block::text(text)] }
}

/// Reads until the session rests; gives what request 99 was answered with and how each turn ended.
async fn rest(link: &mut Link) -> (Value, Vec<Outcome>) {
    let (mut answer, mut ends) = (Value::Null, Vec::new());
    loop {
        match &link.events.next().await.unwrap().event {
            Event::Replied { request, reply: Reply::Done { value } } if request.0 == 99 => {
                answer = value.clone();
            }
            Event::RunEnded { outcome, .. } => ends.push(outcome.clone()),
            Event::Quiet { quiet: true, queued: 0 } => return (answer, ends),
            _ => {}
        }
    }
}

#[tokio::test]
async fn an_interrupt_stops_one_turn_while_the_disk_does_not_answer() {
    let (_stage, mut link, disk, calls) = stuck_in_a_call().await;
    for id in 1..=20 {
        send(&link, id, prompt("next")).await;
    }
    send(&link, 99, Command::Interrupt).await;
    calls.stopped.notified().await;
    disk.set_stuck(false);
    let (answer, ends) = rest(&mut link).await;
    assert_eq!(answer["still_queued"].as_array().unwrap().len(), 20, "each was queued before the interrupt");
    let words: Vec<&str> = ends.iter().map(Outcome::word).collect();
    assert_eq!(words, [vec!["killed"], vec!["completed"; 20]].concat());
}

#[tokio::test]
async fn prompts_withdrawn_before_an_interrupt_do_not_begin() {
    let (stage, mut link, disk, calls) = stuck_in_a_call().await;
    for id in 1..=20 {
        send(&link, id, prompt("withdrawn")).await;
    }
    send(&link, 98, Command::Unqueue { line: None }).await;
    send(&link, 99, Command::Interrupt).await;
    calls.stopped.notified().await;
    disk.set_stuck(false);
    let (_, ends) = rest(&mut link).await;
    assert_eq!(ends.iter().map(Outcome::word).collect::<Vec<_>>(), ["killed"]);
    assert_eq!(stage.requests().len(), 1, "no withdrawn prompt reached the model");
}
