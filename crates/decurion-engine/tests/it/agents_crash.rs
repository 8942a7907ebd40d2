//! Crashes between any two records of a session with agents: what was begun goes on, once, within its limits.

use decurion_engine::AgentSettings;
use decurion_protocol::{AgentId, Envelope, Event, OpenSession, Origin, SessionId, Start, TaskState, Usage};
use decurion_testkit::faults::ledger::Ledger;
use decurion_testkit::stage::{Played, Stage, render};

fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings { max_running: 1, ..AgentSettings::default() };
    stage
}

/// Plays a script to its end; gives the session and all that is on record.
async fn played(stage: &Stage) -> (SessionId, Vec<Envelope>) {
    let session = stage.play("go").await.session;
    (session, stage.recorded(session))
}

/// Takes the session up where a crash after this record would have left it, and lets it finish.
async fn goes_on(stage: &Stage, session: SessionId, after: u64) -> (Stage, Played) {
    let stage = stage.after_crash_at(after);
    let request = OpenSession { start: Start::Resume { id: session, at: None }, ..stage.request.clone() };
    let played = stage.play_all(request, &["are you there?"]).await.unwrap();
    (stage, played)
}

/// What agents' models said, with whose it was.
fn replies(events: &[Envelope]) -> Vec<(AgentId, String)> {
    let reply = |envelope: &Envelope| match (&envelope.agent, &envelope.event) {
        (Some(agent), Event::Message { message, meta, .. }) if meta.origin == Origin::Model => {
            Some((agent.clone(), message.text()))
        }
        _ => None,
    };
    events.iter().filter_map(reply).collect()
}

const TWO: &str = r#"
when agent=worker turn=1
  call Echo {"text": "looking"}
when agent=worker turn=2
  say "found it"
when agent=worker
  say "found it again"
when agent=main turn=1
  call Agent {"description": "one", "prompt": "one", "subagent_type": "worker", "run_in_background": true}
  call Agent {"description": "two", "prompt": "two", "subagent_type": "worker", "run_in_background": true}
when agent=main
  say "heard"
"#;

#[tokio::test(start_paused = true)]
async fn whatever_record_is_the_last_every_agent_begun_reports_once() {
    let first = stage(TWO);
    let (session, whole) = played(&first).await;
    let last = whole.last().unwrap().seq;
    assert!(whole.iter().any(|envelope| matches!(
        envelope.event,
        Event::TaskChanged { state: TaskState::Queued { .. }, .. }
    )));
    for after in 1..last {
        // Its prompt is the last record of the commit that begins an agent.
        let prompted = |envelope: &&Envelope| match &envelope.event {
            Event::Message { meta, .. } => {
                envelope.seq <= after && envelope.agent.is_some() && meta.origin == Origin::Prompt
            }
            _ => false,
        };
        let begun = whole.iter().filter(prompted).count();
        let (second, played) = goes_on(&first, session, after).await;
        let record = second.recorded(session);
        let log = render(&played.events);
        let problems = Ledger::of(&record).problems();
        assert!(problems.is_empty(), "after {after}: {problems:?}\n{log}");
        let replies = replies(&record);
        let said = |words: &str| replies.iter().filter(|(_, text)| text == words).count();
        assert!(said("found it") >= begun, "after {after}: {} of {begun} reported\n{log}", said("found it"));
        assert_eq!(said("found it again"), 0, "after {after}: asked although it had reported\n{log}");
    }
}

/// An agent that would go on for ever, with these limits in its call.
fn endless(limits: &str) -> String {
    format!(
        r#"
when agent=worker
  call Echo {{"text": "again"}}
when agent=main turn=1
  call Agent {{"description": "one", "prompt": "one", "subagent_type": "worker", "run_in_background": true, {limits}}}
when agent=main
  say "heard"
"#
    )
}

/// The most that an agent used, wherever its process died.
async fn most_used(script: &str, used: impl Fn(&[Envelope]) -> u64) -> (u64, u64) {
    let first = stage(script);
    let (session, whole) = played(&first).await;
    let mut most = 0;
    for after in 1..whole.last().unwrap().seq {
        let (second, _) = goes_on(&first, session, after).await;
        most = most.max(used(&second.recorded(session)));
    }
    (used(&whole), most)
}

#[tokio::test(start_paused = true)]
async fn a_crash_gives_no_turns_back() {
    let turns = |record: &[Envelope]| replies(record).len() as u64;
    assert_eq!(most_used(&endless("\"max_turns\": 3"), turns).await, (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_crash_gives_no_tokens_back() {
    let (alone, most) = most_used(&endless("\"budget\": {\"tokens\": 6000}"), tokens).await;
    assert!(alone > 3_000, "{alone} is no test");
    assert!(most <= 6_000, "{most}");
}

/// The tokens that all agents together used.
fn tokens(record: &[Envelope]) -> u64 {
    let used = |envelope: &Envelope| match (&envelope.agent, &envelope.event) {
        (Some(_), Event::Message { meta, .. }) => meta.usage.as_ref().map(Usage::context_tokens),
        _ => None,
    };
    record.iter().filter_map(used).sum()
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_an_agent_still_pays_from_its_parents_account() {
    let script = r#"
when agent=worker first="inner"
  call Echo {"text": "again"}
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker
  say "outer done"
when agent=main turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker", "budget": {"tokens": 9000}}
when agent=main
  say "heard"
"#;
    // Which of the two comes first in the table is chance; four times is enough to see both.
    for _ in 0..4 {
        let mut first = stage(script);
        first.agent_settings.max_depth = 2;
        let (session, whole) = played(&first).await;
        for after in 1..whole.last().unwrap().seq {
            let (second, _) = goes_on(&first, session, after).await;
            let used = tokens(&second.recorded(session));
            assert!(used <= 9_000, "after {after}: {used}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_began_does_not_go_on_after_a_crash_once_it_has_ended() {
    let script = r#"
when agent=worker first="inner"
  stall
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker", "run_in_background": true}
when agent=worker
  stall
when agent=main turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker", "run_in_background": true}
when agent=main turn=2 result=/agentId: (\w+)/
  call TaskOutput {"task_id": "$1", "timeout": 1000}
  call TaskStop {"task_id": "$1"}
when agent=main
  say "heard"
"#;
    let mut first = stage(script);
    first.agent_settings = AgentSettings { max_depth: 2, ..AgentSettings::default() };
    let (session, whole) = played(&first).await;
    let ends =
        |envelope: &&Envelope| matches!(envelope.event, Event::RunEnded { .. }) && envelope.agent.is_some();
    let ended: Vec<u64> = whole.iter().filter(ends).map(|envelope| envelope.seq).collect();
    assert_eq!(ended.len(), 2);
    let (second, played) = goes_on(&first, session, ended[0]).await;
    let log = render(&played.events);
    let begun = |envelope: &&Envelope| {
        envelope.seq > ended[0]
            && envelope.agent.is_some()
            && matches!(envelope.event, Event::RunStarted { .. })
    };
    let parents: Vec<_> = whole
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::TaskOpened { record } => Some((record.task.clone(), record.parent.clone())),
            _ => None,
        })
        .collect();
    let outer_first = whole.iter().find(ends).and_then(|envelope| envelope.agent.clone());
    // Whichever ended first; only if it was the outer one is the inner one left behind.
    if parents.iter().any(|(_, parent)| *parent == outer_first && parent.is_some()) {
        assert_eq!(second.recorded(session).iter().filter(begun).count(), 0, "{log}");
        assert!(log.contains("the end of its parent"), "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_the_ending_is_recorded_does_not_make_it_a_better_one() {
    let script = r#"
when agent=worker turn=1
  say "part one "
  stop max_tokens
when agent=worker turn=2
  say "and two"
  call Skill {"text": "x"}
when agent=worker
  say "I may not"
when agent=main turn=1
  call Agent {"description": "one", "prompt": "one", "subagent_type": "worker", "run_in_background": true}
when agent=main
  say "heard"
"#;
    let mut first = stage(script);
    first.tools.push(std::sync::Arc::new(decurion_testkit::stage::Plain::named("Skill")));
    let (session, whole) = played(&first).await;
    let outcomes = |record: &[Envelope]| -> Vec<String> {
        let outcome = |envelope: &Envelope| match (&envelope.agent, &envelope.event) {
            (Some(_), Event::RunEnded { outcome, .. }) => Some(format!("{outcome:?}")),
            _ => None,
        };
        record.iter().filter_map(outcome).collect()
    };
    let alone = outcomes(&whole);
    assert!(alone[0].contains("Denied") && alone[0].contains("I may not"), "{alone:?}");
    for after in 1..whole.last().unwrap().seq {
        let (second, played) = goes_on(&first, session, after).await;
        let ended = outcomes(&second.recorded(session));
        assert!(
            ended.iter().all(|outcome| *outcome == alone[0] || outcome == "Lost"),
            "after {after}: {ended:?}\n{}",
            render(&played.events)
        );
    }
}
