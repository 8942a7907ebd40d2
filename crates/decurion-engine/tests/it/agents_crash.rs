//! Crashes between any two records of a session with agents: what was begun goes on, once, within its limits.

use decurion_engine::AgentSettings;
use decurion_protocol::{
    AgentId, Envelope, Event, Origin, SessionId, SessionRequest, Start, TaskState, Usage,
};
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
    let request = SessionRequest { start: Start::Resume { id: session }, ..stage.request.clone() };
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
    let tokens = |record: &[Envelope]| {
        let used = |envelope: &Envelope| match (&envelope.agent, &envelope.event) {
            (Some(_), Event::Message { meta, .. }) => meta.usage.as_ref().map(Usage::context_tokens),
            _ => None,
        };
        record.iter().filter_map(used).sum()
    };
    let (alone, most) = most_used(&endless("\"budget\": {\"tokens\": 6000}"), tokens).await;
    assert!(alone > 3_000, "{alone} is no test");
    assert!(most <= 6_000, "{most}");
}
