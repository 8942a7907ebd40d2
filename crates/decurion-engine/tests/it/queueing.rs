//! What waits while the root works: prompts, as many as there is room for, and whoever wants to see how it stands.

use decurion_protocol::{
    Block, Command, Event, Inspected, LineId, Link, Outcome, Place as _, Reply, RuleSet,
};
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
