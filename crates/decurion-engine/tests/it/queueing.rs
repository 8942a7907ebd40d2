//! What waits while the root works: prompts, as many as there is room for, and whoever wants to see how it stands.

use decurion_protocol::{
    Block, Command, Envelope, Event, Inspected, LineId, Link, OpenSession, Origin, Outcome, Place as _,
    Reply, RuleSet, SessionId, Start,
};
use decurion_store::{Found, Journal as _, ReplayOptions, SessionWriter};
use decurion_testkit::stage::{Stage, send};
use futures_util::StreamExt as _;

/// A stage on which the first turn waits for an answer that nobody gives.
fn holding() -> Stage {
    let mut stage = Stage::new("when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"on\"\n");
    stage.rules = RuleSet::default();
    stage.request.answers = true;
    stage
}

async fn working(stage: &Stage) -> Link {
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 0, prompt("go")).await;
    while !matches!(link.events.next().await.unwrap().event, Event::RunStarted { .. }) {}
    link
}

fn prompt(text: &str) -> Command {
    Command::Prompt { blocks: vec![Block::text(text)] }
}

async fn reply(link: &mut Link, id: u64) -> Reply {
    loop {
        if let Event::Replied { request, reply } = &link.events.next().await.unwrap().event
            && request.0 == id
        {
            return reply.clone();
        }
    }
}

/// Interrupts the turn; gives how many prompts wait.
async fn interrupt(link: &mut Link) -> usize {
    send(link, 99_999, Command::Interrupt).await;
    let Reply::Done { value } = reply(link, 99_999).await else { panic!("not interrupted") };
    value["still_queued"].as_array().unwrap().len()
}

/// Reads until everyone rests; gives how each turn of the root ended.
async fn endings(link: &mut Link) -> Vec<Outcome> {
    let mut ends = Vec::new();
    loop {
        match &link.events.next().await.unwrap().event {
            Event::RunEnded { outcome, .. } => ends.push(outcome.clone()),
            Event::Quiet { quiet: true, .. } => return ends,
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn prompts_that_wait_are_bounded_and_each_has_its_ending() {
    let stage = holding();
    let mut link = working(&stage).await;
    while !matches!(link.events.next().await.unwrap().event, Event::Asked { .. }) {}
    let long = "y".repeat(4 << 20);
    let line = |id: u64| LineId(uuid::Uuid::from_u128(id.into()));
    let submit = |id, text: &str| Command::Submit { line: line(id), blocks: vec![Block::text(text)] };
    for id in 1..=12 {
        send(&link, id, submit(id, &long)).await;
        assert!(matches!(reply(&mut link, id).await, Reply::Done { .. }), "each has its turn");
    }
    for id in 1..=12 {
        send(&link, 20 + id, Command::Unqueue { line: Some(line(id)) }).await;
        let Reply::Done { value } = reply(&mut link, 20 + id).await else { panic!("not understood") };
        let count = value["cancelled"].as_array().unwrap().len();
        assert_eq!(count, usize::from(id <= 8), "{id}: of 4 MiB each there is room for 32 MiB");
    }
    assert_eq!(interrupt(&mut link).await, 0);
    let ends = endings(&mut link).await;
    let words: Vec<&str> = ends.iter().map(Outcome::word).collect();
    assert_eq!(words, ["killed", "failed", "failed", "failed", "failed"]);
    let Outcome::Failed { error } = &ends[4] else { panic!("{ends:?}") };
    assert!(error.starts_with("there was no room for this prompt: "), "{error}");
    assert_eq!(stage.requests().len(), 1, "what was refused cost nothing");
    // It was never taken, so that it can be sent again; and there is room again.
    send(&link, 13, submit(12, "again")).await;
    assert!(matches!(reply(&mut link, 13).await, Reply::Done { .. }));
    assert_eq!(endings(&mut link).await.iter().map(Outcome::word).collect::<Vec<_>>(), ["completed"]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_small_prompts_is_refused_at_last() {
    let stage = holding();
    let mut link = working(&stage).await;
    while !matches!(link.events.next().await.unwrap().event, Event::Asked { .. }) {}
    let mut refused = 0;
    for id in 1..=10_010 {
        send(&link, id, prompt("x")).await;
        refused += usize::from(matches!(reply(&mut link, id).await, Reply::Refused { .. }));
    }
    assert_eq!((interrupt(&mut link).await, refused), (1_000, 10));
    send(&link, 20_000, Command::Unqueue { line: None }).await;
    reply(&mut link, 20_000).await;
    send(&link, 20_001, prompt("x")).await;
    assert!(matches!(reply(&mut link, 20_001).await, Reply::Done { .. }), "there is room again");
    assert!(matches!(endings(&mut link).await.last(), Some(Outcome::Completed { .. })));
}

#[tokio::test]
async fn everyone_who_asks_what_fills_the_window_while_the_root_works_is_answered() {
    for here in [true, false] {
        let mut stage = Stage::new("when turn=1\n  say \"on\"\nwhen\n  stall\n");
        stage.journal_here = here;
        let mut link = working(&stage).await;
        endings(&mut link).await;
        let inspect = || Command::Inspect { what: Inspected::Context };
        send(&link, 1, inspect()).await;
        let Reply::Done { value: resting } = reply(&mut link, 1).await else { panic!("not told") };
        send(&link, 2, prompt("and now?")).await;
        while !matches!(link.events.next().await.unwrap().event, Event::Message { .. }) {}
        let mut told = Vec::new();
        for id in 10..60 {
            send(&link, id, inspect()).await;
        }
        for id in 10..60 {
            let Reply::Done { value } = reply(&mut link, id).await else { panic!("not told") };
            told.push(value["total"].as_u64().unwrap());
        }
        let before = resting["total"].as_u64().unwrap();
        assert!(before > 0 && told.iter().all(|total| *total > before), "{before} {told:?}");
    }
}

/// A turn that takes long enough for prompts to come meanwhile.
const SLOW: &str = "when turn=1\n  delay 5s\n  call Echo {\"text\": \"a\"}\nwhen\n  say \"on\"\n";

fn line(id: u128) -> LineId {
    LineId(uuid::Uuid::from_u128(id))
}

fn submit(id: u128, text: &str) -> Command {
    Command::Submit { line: line(id), blocks: vec![Block::text(text)] }
}

/// Opens the session again as it is on this stage.
async fn resumed(stage: &Stage, session: SessionId) -> Link {
    let start = Start::Resume { id: session, at: None };
    stage.engine().open(OpenSession { start, ..stage.request.clone() }).await.unwrap()
}

/// Lets the session finish all that it has to do, and close.
async fn finished(mut link: Link) {
    send(&link, 88_888, Command::Finish).await;
    reply(&mut link, 88_888).await;
}

/// The texts of the prompts that are in the conversation, in order.
fn prompted(record: &[Envelope]) -> Vec<String> {
    let text = |envelope: &Envelope| match &envelope.event {
        Event::Message { message, meta, .. } if meta.origin == Origin::Prompt => Some(message.text()),
        _ => None,
    };
    record.iter().filter_map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn an_accepted_prompt_survives_a_crash_and_is_worked_on() {
    let stage = Stage::new(SLOW);
    let mut link = working(&stage).await;
    send(&link, 1, submit(1, "second")).await;
    send(&link, 2, submit(2, "third")).await;
    send(&link, 3, submit(3, "taken back")).await;
    send(&link, 4, Command::Unqueue { line: Some(line(3)) }).await;
    for id in 1..=4 {
        assert!(matches!(reply(&mut link, id).await, Reply::Done { .. }));
    }
    // All that is there when the last reply came is what a kill would leave.
    let after = stage.after_crash(SLOW);
    let mut link = resumed(&after, link.session).await;
    // A sender that does not know whether it arrived sends it again; it is taken once.
    send(&link, 5, submit(2, "third")).await;
    assert!(matches!(reply(&mut link, 5).await, Reply::Done { .. }));
    let session = link.session;
    finished(link).await;
    let record = after.recorded(session);
    assert_eq!(prompted(&record), ["go", "second", "third"]);
    let words = record.iter().filter_map(|one| match &one.event {
        Event::RunEnded { outcome, .. } => Some(outcome.word()),
        _ => None,
    });
    assert_eq!(words.collect::<Vec<_>>(), ["completed"; 3], "each has a turn, also the one that was cut off");
    // Nothing is left for the next process.
    let stage = after.after_crash(SLOW);
    finished(resumed(&stage, session).await).await;
    assert_eq!(prompted(&stage.recorded(session)), ["go", "second", "third"]);
    assert_eq!(stage.requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn whatever_record_is_the_last_every_accepted_prompt_is_worked_on_once() {
    let stage = Stage::new(SLOW);
    let mut link = working(&stage).await;
    send(&link, 1, submit(1, "second")).await;
    send(&link, 2, submit(2, "taken back")).await;
    send(&link, 3, submit(3, "third")).await;
    send(&link, 4, Command::Unqueue { line: Some(line(2)) }).await;
    reply(&mut link, 4).await;
    let session = link.session;
    finished(link).await;
    let whole = stage.recorded(session);
    let seq = |fits: &dyn Fn(&Event) -> bool| whole.iter().find(|one| fits(&one.event)).unwrap().seq;
    let queued =
        |id: u128| seq(&move |event| matches!(event, Event::Queued { line: own, .. } if *own == line(id)));
    let unqueued = seq(&|event| matches!(event, Event::Unqueued { .. }));
    for crash in 1..=whole.last().unwrap().seq {
        let stage = stage.after_crash_at(crash);
        finished(resumed(&stage, session).await).await;
        let record = stage.recorded(session);
        let taken_back = crash >= queued(2) && crash < unqueued;
        let wanted = [
            (true, "go"),
            (crash >= queued(1), "second"),
            (taken_back, "taken back"),
            (crash >= queued(3), "third"),
        ];
        let wanted: Vec<_> =
            wanted.iter().filter(|(is_queued, _)| *is_queued).map(|(_, text)| *text).collect();
        let begins = seq(&|event| matches!(event, Event::Queued { .. }));
        if crash >= begins {
            assert_eq!(prompted(&record), wanted, "after {crash}");
        }
        if crash >= queued(1) {
            let last = record.iter().rev().find_map(|one| match &one.event {
                Event::RunEnded { outcome, .. } => Some(outcome.word()),
                _ => None,
            });
            assert_eq!(last, Some("completed"), "after {crash}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn withdrawal_behind_the_prompts_own_message_does_not_let_it_begin_twice() {
    let stage = Stage::new(SLOW);
    let mut link = working(&stage).await;
    send(&link, 1, submit(1, "second")).await;
    reply(&mut link, 1).await;
    let session = link.session;
    finished(link).await;
    // What an interrupt leaves that comes while the disk holds up the prompt's message.
    let record = stage.recorded(session);
    let (info, last) = match (&record[0].event, record.last()) {
        (Event::SessionOpened { info }, Some(last)) => (info, last),
        other => panic!("{other:?}"),
    };
    let Some(Found::Ours(paths)) = stage.archive().find(session, &[]) else { panic!("no transcript") };
    let (mut writer, _) =
        SessionWriter::resume(&paths, info, last.at, &ReplayOptions::default(), &mut drop).unwrap();
    let event = Event::Unqueued { lines: vec![line(1)] };
    writer.append(&[Envelope { seq: last.seq + 1, agent: None, event, ..last.clone() }]).unwrap();
    writer.sync().unwrap();
    drop(writer);
    // Its sender, who was not answered, sends it again.
    let mut link = resumed(&stage, session).await;
    send(&link, 2, submit(1, "second")).await;
    let answer = reply(&mut link, 2).await;
    finished(link).await;
    assert_eq!(prompted(&stage.recorded(session)), ["go", "second"], "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fork_leaves_the_queue_behind() {
    let stage = Stage::new(SLOW);
    let mut link = working(&stage).await;
    send(&link, 1, submit(1, "second")).await;
    reply(&mut link, 1).await;
    let after = stage.after_crash(SLOW);
    let start = Start::Fork { from: link.session, id: None, at: None };
    let fork = after.engine().open(OpenSession { start, ..after.request.clone() }).await.unwrap();
    let session = fork.session;
    finished(fork).await;
    assert_eq!(prompted(&after.recorded(session)), ["go"]);
}
