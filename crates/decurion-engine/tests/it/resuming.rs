//! Sessions taken up again: continued, forked, interrupted, compacted.

use std::sync::Arc;

use decurion_protocol::{
    Block, Command, Envelope, Event, LineId, OpenSession, Outcome, Place as _, Reply, Start,
};
use decurion_testkit::stage::{Stage, render, send};
use expect_test::expect;
use futures_util::StreamExt as _;

fn again(stage: &Stage, id: decurion_protocol::SessionId) -> OpenSession {
    OpenSession { start: Start::Resume { id, at: None }, ..stage.request.clone() }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_knows_what_was_said() {
    let stage = Stage::new(
        r#"
when turn=1
  call Echo {"text": "found it"}
when turn=2
  say "first"
when turn=3 match="more"
  say "second, after ${seen.turn} turns"
"#,
    );
    let first = stage.play("go").await;
    let second = stage.play_all(again(&stage, first.session), &["more"]).await.unwrap();
    expect![[r#"
        user   "more"
        model  "second, after 3 turns"
        end    completed "second, after 3 turns"
    "#]]
    .assert_eq(&render(&second.events));
    let last = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    assert!(last.contains("found it") && last.contains("first") && last.contains("more"));
}

#[tokio::test(start_paused = true)]
async fn a_prompt_sent_again_after_a_restart_is_not_taken_again() {
    let stage = Stage::new("when turn=1\n  say \"one\"\nwhen\n  say \"more\"\n");
    let line = LineId(uuid::Uuid::from_u128(7));
    let submit = |line| Command::Submit { line, blocks: vec![Block::text("go")] };
    let said = async |request: OpenSession, lines: &[LineId]| {
        let mut link = stage.engine().open(request).await.unwrap();
        for (id, line) in (1..).zip(lines) {
            send(&link, id, submit(*line)).await;
        }
        send(&link, 99, Command::Finish).await;
        let (mut refused, mut written) = (Vec::new(), Vec::new());
        while let Some(envelope) = link.events.next().await {
            match &envelope.event {
                Event::Replied { request, reply: Reply::Refused { .. } } => refused.push(request.0),
                Event::Replied { request, .. } if request.0 == 99 => break,
                Event::Message { lines, .. } => written.extend(lines.iter().copied()),
                _ => {}
            }
        }
        (link.session, refused, written)
    };
    let (session, refused, written) = said(stage.request.clone(), &[line]).await;
    assert_eq!((refused.len(), written.contains(&line)), (0, true));
    let fresh = LineId(uuid::Uuid::from_u128(8));
    let again = || again(&stage, session);
    let (_, refused, written) = said(again(), &[line, *written.last().unwrap(), fresh]).await;
    assert_eq!(refused, [1, 2], "the prompt's and the reply's");
    assert!(written.contains(&fresh) && !written.contains(&line), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fork_goes_its_own_way_and_leaves_the_first_alone() {
    let stage = Stage::new("when turn=1\n  say \"one\"\nwhen turn=2\n  say \"two\"\n");
    let first = stage.play("go").await;
    let fork = OpenSession {
        start: Start::Fork { from: first.session, id: None, at: None },
        ..stage.request.clone()
    };
    let second = stage.play_all(fork, &["other"]).await.unwrap();
    assert_ne!(first.session, second.session);
    assert_eq!(second.outcome, Outcome::Completed { report: "two".into(), limit: None });
    let third = stage.play_all(again(&stage, first.session), &["again"]).await.unwrap();
    assert_eq!(third.outcome, Outcome::Completed { report: "two".into(), limit: None });
}

#[tokio::test(start_paused = true)]
async fn several_prompts_are_answered_in_turn() {
    let stage = Stage::new("when turn=1\n  say \"one\"\nwhen turn=2\n  say \"two\"\n");
    let played = stage.play_all(stage.request.clone(), &["a", "b"]).await.unwrap();
    expect![[r#"
        user   "a"
        model  "one"
        end    completed "one"
        user   "b"
        model  "two"
        end    completed "two"
    "#]]
    .assert_eq(&render(&played.events));
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_turn_and_the_conversation_stays_usable() {
    let stage = Stage::new(
        r#"
when turn=1
  call Poke {"text": "hang"}
  call Poke {"text": "never"}
when turn=2
  say "good morning"
"#,
    );
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    let mut events = Vec::new();
    send(&link, 1, Command::Prompt { blocks: vec![decurion_protocol::Block::text("go")] }).await;
    loop {
        use futures_util::StreamExt as _;
        let envelope = link.events.next().await.unwrap();
        let started = matches!(envelope.event, Event::CallStarted { .. });
        events.push(envelope);
        if started {
            break;
        }
    }
    send(&link, 2, Command::Interrupt).await;
    let outcome = stage.listen(&mut link, &mut events).await;
    assert_eq!(outcome, Outcome::Killed { by: "an interrupt".into() });
    send(&link, 3, Command::Prompt { blocks: vec![decurion_protocol::Block::text("hello?")] }).await;
    stage.listen(&mut link, &mut events).await;
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"hang"}
        model  calls Poke {"text":"never"}
        start  Poke (Poke)
        ✗      "Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."
        ✗      "Interrupted: this call was not begun."
        end    {"outcome":"killed","by":"an interrupt"}
        user   "hello?"
        model  "good morning"
        end    completed "good morning"
    "#]].assert_eq(&render(&events));
}

#[tokio::test(start_paused = true)]
async fn a_second_opener_is_told_who_holds_the_session() {
    let stage = Stage::new("when\n  say \"x\"\n");
    let engine = stage.engine();
    let link = engine.open(stage.request.clone()).await.unwrap();
    let error = stage.engine().open(again(&stage, link.session)).await.unwrap_err();
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_full_window_is_summarised_and_the_prompt_kept() {
    let mut stage = Stage::new(
        r#"
when match="about to be shortened"
  say "SUMMARY: two prompts, nothing done"
when match="third"
  say "still here"
when
  say repeat=1500 "x"
  usage input=2000 output=500
"#,
    );
    stage.info.window = 5_000;
    let played = stage.play_all(stage.request.clone(), &["first", "second", "third"]).await.unwrap();
    expect![[r#"
        user   "first"
        model  "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
        end    completed "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
        user   "second"
        wait   Compaction
        charge Summary 785 tokens
        compact auto, 1 kept
        model  "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
        end    completed "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
        user   "third"
        wait   Compaction
        charge Summary 806 tokens
        compact auto, 1 kept
        model  "still here"
        end    completed "still here"
    "#]].assert_eq(&render(&played.events));
    let last = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    assert!(last.contains("SUMMARY") && last.contains("third") && !last.contains("first"), "{last}");
    let resumed = stage.play_all(again(&stage, played.session), &["third again"]).await.unwrap();
    assert_eq!(resumed.outcome, Outcome::Completed { report: "still here".into(), limit: None });
    let after = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    assert!(after.contains("SUMMARY") && !after.contains("first"), "{after}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_shown_what_the_record_does_not_hold() {
    let stage = Stage::new("when turn=1\n  call Echo {\"text\": \"a\"}\nwhen turn=2\n  say \"b\"\n");
    let played = stage.play("go").await;
    let archive = stage.archive();
    let paths = match archive.find(played.session, &[]) {
        Some(decurion_store::Found::Ours(paths)) => paths,
        other => panic!("{other:?}"),
    };
    let recorded = archive.since(&paths, 0).unwrap();
    let shown: Vec<_> =
        played.events.iter().filter(|envelope| envelope.event.is_durable()).map(Arc::clone).collect();
    assert_eq!(recorded.len(), shown.len());
    for (recorded, shown) in recorded.iter().zip(&shown) {
        assert_eq!(recorded.seq, shown.seq);
        assert_eq!(std::mem::discriminant(&recorded.event), std::mem::discriminant(&shown.event));
    }
}

/// A prompt whose sender never heard the end of it, wherever the process died: sent again under its id it is on record
/// once, its turn is done, what was done of it is not done again, and it has its result.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_never_answered_is_sent_again() {
    const SCRIPT: &str = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n";
    let line = LineId(uuid::Uuid::from_u128(7));
    let submit = || Command::Submit { line, blocks: vec![Block::text("go")] };
    let stage = Stage::new(SCRIPT);
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, submit()).await;
    stage.listen(&mut link, &mut Vec::new()).await;
    let record = stage.recorded(link.session);
    let is_it = |envelope: &Envelope| matches!(&envelope.event, Event::Message { lines, .. } if lines.contains(&line));
    let said = record.iter().find(|one| is_it(one)).unwrap().seq;
    let mut seen = String::new();
    for crash in said..=record.last().unwrap().seq {
        let stage = stage.after_crash_at(crash);
        let start = Start::Resume { id: link.session, at: None };
        let mut link = stage.engine().open(OpenSession { start, ..stage.request.clone() }).await.unwrap();
        send(&link, 1, submit()).await;
        let (mut reply, mut outcome) = (None, None);
        while reply.is_none() || outcome.is_none() && !matches!(reply, Some(Reply::Refused { .. })) {
            match &link.events.next().await.unwrap().event {
                Event::Replied { request, reply: told } if request.0 == 1 => reply = Some(told.clone()),
                Event::RunEnded { outcome: ended, .. } => outcome = Some(ended.clone()),
                _ => {}
            }
        }
        let after = stage.recorded(link.session);
        assert_eq!(after.iter().filter(|one| is_it(one)).count(), 1, "after {crash}");
        let begun = after.iter().filter(|one| matches!(one.event, Event::CallStarted { .. })).count();
        let ended = after.iter().filter(|one| matches!(one.event, Event::CallEnded { .. })).count();
        assert_eq!(ended, 1, "after {crash}: a call has one result");
        let last = after.iter().rev().find_map(|one| match &one.event {
            Event::CallEnded { output, .. } => Some(output.content.text()),
            _ => None,
        });
        let event = record.iter().find(|one| one.seq == crash).unwrap();
        let event = serde_json::to_value(&event.event).unwrap()["type"].as_str().unwrap().to_owned();
        let told = match (&outcome, &reply) {
            (Some(outcome), _) => format!("{outcome:?}"),
            (None, reply) => format!("{reply:?}"),
        };
        seen.push_str(&format!(
            "after {event}: begun {begun}, {last:?}; {} requests; {told}\n",
            stage.requests().len()
        ));
    }
    expect![[r#"
        after message: begun 1, Some("x"); 2 requests; Completed { report: "done", limit: None }
        after message: begun 1, Some("x"); 1 requests; Completed { report: "done", limit: None }
        after call_started: begun 1, Some("Interrupted before it finished; it may have partly run. Look at what it may have done before doing it again."); 1 requests; Completed { report: "done", limit: None }
        after call_ended: begun 1, Some("x"); 1 requests; Completed { report: "done", limit: None }
        after message: begun 1, Some("x"); 0 requests; Completed { report: "done", limit: None }
        after run_ended: begun 1, Some("x"); 0 requests; Some(Refused { reason: "a message with this id was taken already: 00000000-0000-0000-0000-000000000007" })
    "#]].assert_eq(&seen);
}
