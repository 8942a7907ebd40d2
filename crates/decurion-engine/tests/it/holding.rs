//! Agents that a person holds and lets go on: what they still do, what they do not, and that it stays so.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::AgentSettings;
use decurion_protocol::{
    Clock, Command, Envelope, Event, Origin, Outcome, RuleSet, SessionId, TaskId, TaskState,
};
use decurion_testkit::faults::ledger::Ledger;
use decurion_testkit::stage::{Plain, Stage};
use expect_test::expect;
use jiff::Timestamp;

use crate::support::{Playing, stage, with_processes};

/// An agent whose first calls must be allowed by a person.
const ASKING: &str = r#"
when agent=worker turn=1
  call Write {"text": "one"}
  call Write {"text": "two"}
when agent=worker
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker", "run_in_background": true}
when
  say "heard"
"#;

impl Playing {
    async fn pause(&mut self, task: &TaskId, tree: bool) -> Result<serde_json::Value, String> {
        self.ask(Command::Pause { task: task.clone(), tree }).await
    }

    async fn go_on(&mut self, task: &TaskId, tree: bool) -> Result<serde_json::Value, String> {
        self.ask(Command::Continue { task: task.clone(), tree }).await
    }
}

/// Where a task stands by the record.
fn standing(stage: &Stage, session: SessionId, task: &TaskId) -> TaskState {
    let change = |envelope: Envelope| match envelope.event {
        Event::TaskChanged { task: of, state } if of == *task => Some(state),
        Event::TaskOpened { record } if record.task == *task => Some(TaskState::Pending),
        Event::RunEnded { outcome, .. }
            if envelope.agent.clone().map(TaskId::from).as_ref() == Some(task) =>
        {
            Some(TaskState::Ended(outcome))
        }
        _ => None,
    };
    stage.recorded(session).into_iter().filter_map(change).last().unwrap_or(TaskState::Pending)
}

fn asking(script: &str) -> Stage {
    let mut stage = stage(script);
    stage.rules = RuleSet::default();
    stage.request.answers = true;
    // A tool that agents in the background have too.
    stage.tools = vec![Arc::new(Plain::named("Write"))];
    stage
}

/// A root that begins two such agents.
fn two() -> String {
    ASKING.replace(
        "when\n",
        "when turn=2\n  call Agent {\"description\": \"too\", \"prompt\": \"second\", \"subagent_type\": \"worker\", \"run_in_background\": true}\nwhen\n",
    )
}

/// How often the agent's model was asked.
fn requests(stage: &Stage) -> usize {
    let is_worker = |body: &&Vec<u8>| memchr::memmem::find(body, b"You do a part of the work").is_some();
    stage.requests().iter().filter(is_worker).count()
}

#[tokio::test(start_paused = true)]
async fn one_that_is_held_ends_what_is_under_way_and_begins_nothing_more() {
    let stage = asking(ASKING);
    let mut playing = Playing::open(&stage).await;
    let task = playing.task().await;
    let question = playing.question().await;
    assert_eq!(playing.pause(&task, false).await.unwrap(), 1);
    assert_eq!(playing.pause(&task, false).await.unwrap(), 0, "it is held already");
    playing.allow(question).await;
    playing.settle().await;
    assert_eq!(requests(&stage), 1);
    // What it is told meanwhile it hears when it goes on, before its next request.
    let agent = task.as_str().parse().unwrap();
    playing.ask(Command::Tell { agent, text: "hurry".into() }).await.unwrap();
    playing.settle().await;
    assert_eq!(playing.go_on(&task, false).await.unwrap(), 1);
    assert_eq!(playing.go_on(&task, false).await.unwrap(), 0);
    let question = playing.question().await;
    playing.allow(question).await;
    expect![[r#"
        user   "go"
        model  calls Agent {"description":"look","prompt":"look for it","subagent_type":"worker","run_in_background":true}
        start  Agent (no rule)
        begin  #1 local_agent Background
            #1 user   "look for it"
            #1 model  calls Write {"text":"one"}
            #1 model  calls Write {"text":"two"}
            #1 wait   for an answer
        →      "The agent works in the background now.\nagentId: #1 (for `resume` or SendMessage, if its work should go on; not for the user)\nIts report will come to you by itself as a notification when…"
            #1 ask    Write: the path is not known
        told   "Agent #1 (\"look\") is still at work: 2 more tool uses, 509 more tokens. There is no need to read its file; a notification follows when it ends."
        model  "heard"
        end    completed "heard"
        task   #1 Paused { reason: "paused by a person", until: None, attention: Background }
        answer by test
            #1 start  Write (no rule)
            #1 →      "one"
        mail   "hurry"
        task   #1 Running { attention: Background }
            #1 wait   for an answer
            #1 ask    Write: the path is not known
        answer by test
            #1 start  Write (no rule)
            #1 →      "two"
            #1 told   "<message from=\"main\">\nhurry\n</message>"
            #1 model  "found it"
            #1 end    completed "found it"
        told   #1 completed "found it"
        model  "heard"
        end    completed "heard"
    "#]].assert_eq(&playing.finish().await);
    assert_eq!(requests(&stage), 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_held_can_be_stopped_and_interrupted_and_ends_with_its_session() {
    let foreground = ASKING.replace(", \"run_in_background\": true", "");
    for (script, how, by) in [
        (ASKING, "stop", "a person"),
        (&foreground, "stop", "a person"),
        (&foreground, "interrupt", "an interrupt"),
        (ASKING, "close", "the end of the session"),
    ] {
        let stage = asking(script);
        let mut playing = Playing::open(&stage).await;
        let session = playing.link.session;
        let task = playing.task().await;
        playing.question().await;
        playing.pause(&task, true).await.unwrap();
        let command = match how {
            "stop" => Command::Stop { task: task.clone() },
            "interrupt" => Command::Interrupt,
            _ => Command::Close { reason: String::new() },
        };
        playing.ask(command).await.unwrap();
        if how != "close" {
            playing.finish().await;
        }
        assert_eq!(
            standing(&stage, session, &task),
            TaskState::Ended(Outcome::Killed { by: by.into() }),
            "{how}"
        );
        let problems = Ledger::of(&stage.recorded(session)).problems();
        assert!(problems.is_empty() || how == "close", "{how}: {problems:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_held_is_held_after_any_crash_and_then_goes_on_once() {
    let first = asking(ASKING);
    let mut playing = Playing::open(&first).await;
    let session = playing.link.session;
    let task = playing.task().await;
    let question = playing.question().await;
    playing.pause(&task, false).await.unwrap();
    playing.allow(question).await;
    playing.settle().await;
    let record = first.recorded(session);
    let is_pause = |envelope: &&Envelope| {
        matches!(&envelope.event, Event::TaskChanged { state: TaskState::Paused { .. }, .. })
    };
    let from = record.iter().find(is_pause).unwrap().seq;
    let last = record.last().unwrap().seq;
    assert!(last > from + 1, "{}", playing.log());
    for after in from..=last {
        let second = first.after_crash_at(after);
        let mut playing = Playing::again(&second, session).await;
        playing.settle().await;
        let held = standing(&second, session, &task);
        assert!(matches!(held, TaskState::Paused { .. }), "after {after}: {held:?}");
        assert!(playing.open.is_empty() && requests(&second) == 0, "after {after}:\n{}", playing.log());
        playing.go_on(&task, false).await.unwrap();
        // What was allowed and not seen to its end is not done again.
        while requests(&second) == 0 {
            let question = playing.question().await;
            playing.allow(question).await;
            playing.settle().await;
        }
        let log = playing.finish().await;
        let record = second.recorded(session);
        let problems = Ledger::of(&record).problems();
        assert!(problems.is_empty(), "after {after}: {problems:?}\n{log}");
        let reports = record.iter().filter(|envelope| match (&envelope.agent, &envelope.event) {
            (Some(_), Event::Message { meta, .. }) => meta.origin == Origin::Model,
            _ => false,
        });
        assert_eq!(reports.count(), 2, "after {after}:\n{log}");
    }
}

/// Two agents, of which only one has a place.
#[tokio::test(start_paused = true)]
async fn one_that_is_held_gives_up_its_place_and_waits_for_another() {
    let mut stage = asking(&two());
    stage.agent_settings = AgentSettings { max_running: 1, ..AgentSettings::default() };
    let mut playing = Playing::open(&stage).await;
    let session = playing.link.session;
    let one = playing.task().await;
    let first = playing.question().await;
    let two = playing.task().await;
    playing.settle().await;
    assert!(matches!(standing(&stage, session, &two), TaskState::Queued { .. }));
    playing.pause(&one, false).await.unwrap();
    let second = playing.question().await;
    assert!(matches!(standing(&stage, session, &two), TaskState::Running { .. }));
    // The first may go on, but the only place is taken.
    playing.go_on(&one, false).await.unwrap();
    assert!(matches!(standing(&stage, session, &one), TaskState::Queued { .. }));
    playing.allow(first).await;
    playing.allow(second).await;
    playing.settle().await;
    assert_eq!(requests(&stage), 2, "one waits for its place, the other for an answer");
    let second = playing.question().await;
    // The one at work is held in its turn: now the first has the place.
    playing.pause(&two, false).await.unwrap();
    assert!(matches!(standing(&stage, session, &one), TaskState::Running { .. }));
    let question = playing.question().await;
    playing.allow(question).await;
    playing.settle().await;
    assert!(standing(&stage, session, &one).is_ended(), "{}", playing.log());
    playing.go_on(&two, false).await.unwrap();
    playing.allow(second).await;
    let log = playing.finish().await;
    assert!(standing(&stage, session, &two).is_ended(), "{log}");
}

/// One that is held before it has begun does not begin.
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_its_first_place_can_be_held_and_stopped() {
    for stops in [true, false] {
        let mut stage = asking(&two());
        stage.agent_settings = AgentSettings { max_running: 1, ..AgentSettings::default() };
        let mut playing = Playing::open(&stage).await;
        let session = playing.link.session;
        let one = playing.task().await;
        let two = playing.task().await;
        playing.settle().await;
        playing.pause(&two, false).await.unwrap();
        playing.ask(Command::Stop { task: one.clone() }).await.unwrap();
        playing.settle().await;
        assert!(standing(&stage, session, &one).is_ended());
        assert_eq!(requests(&stage), 1, "the place is free, and nobody takes it");
        if stops {
            playing.ask(Command::Stop { task: two.clone() }).await.unwrap();
        } else {
            playing.go_on(&two, false).await.unwrap();
            playing.question().await;
            playing.ask(Command::Stop { task: two.clone() }).await.unwrap();
        }
        playing.finish().await;
        let ended = TaskState::Ended(Outcome::Killed { by: "a person".into() });
        assert_eq!(standing(&stage, session, &two), ended);
        let problems = Ledger::of(&stage.recorded(session)).problems();
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_tree_is_held_with_whatever_it_still_begins() {
    let mut stage = stage(
        r#"
when agent=worker first="inner"
  say "inner done"
when agent=worker turn=1
  call Poke {"text": "may I"}
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker"}
when agent=worker
  say "outer done"
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "done"
"#,
    );
    stage.rules = RuleSet::default();
    stage.request.answers = true;
    stage.agent_settings.max_depth = 2;
    // The question about the call of Agent is answered after all is held: that call is under way.
    stage.rules.allow.push(decurion_protocol::Rule::parse("Poke", Default::default()).unwrap());
    stage.rules.ask.push(decurion_protocol::Rule::parse("Agent", Default::default()).unwrap());
    let mut playing = Playing::open(&stage).await;
    let session = playing.link.session;
    let question = playing.question().await;
    playing.allow(question).await;
    let outer = playing.task().await;
    let question = playing.question().await;
    assert_eq!(playing.pause(&outer, true).await.unwrap(), 1);
    playing.allow(question).await;
    let inner = playing.task().await;
    playing.settle().await;
    assert!(matches!(standing(&stage, session, &inner), TaskState::Paused { .. }));
    assert_eq!(requests(&stage), 1);
    assert_eq!(playing.go_on(&outer, true).await.unwrap(), 2);
    let log = playing.finish().await;
    assert!(log.contains("inner done") && log.contains("end    completed \"done\""), "{log}");
}

/// An agent that waits for its own agents is held: it hears of their end when it goes on.
#[tokio::test(start_paused = true)]
async fn one_that_waits_for_its_own_is_held_and_hears_of_them_later() {
    let mut stage = stage(
        r#"
when agent=worker first="inner" turn=1
  call Write {"text": "may I"}
when agent=worker first="inner"
  say "inner done"
when agent=worker turn=1
  call Agent {"description": "inner", "prompt": "inner", "subagent_type": "worker", "run_in_background": true}
when agent=worker turn=2
  say "I wait"
when agent=worker
  say "outer done"
when turn=1
  call Agent {"description": "outer", "prompt": "outer", "subagent_type": "worker"}
when
  say "done"
"#,
    );
    stage.rules = RuleSet::default();
    stage.rules.allow.push(decurion_protocol::Rule::parse("Agent", Default::default()).unwrap());
    stage.tools = vec![Arc::new(Plain::named("Write"))];
    stage.request.answers = true;
    stage.agent_settings.max_depth = 2;
    let mut playing = Playing::open(&stage).await;
    let session = playing.link.session;
    let outer = playing.task().await;
    let question = playing.question().await;
    playing.settle().await;
    playing.pause(&outer, false).await.unwrap();
    playing.allow(question).await;
    playing.settle().await;
    let before = requests(&stage);
    assert!(matches!(standing(&stage, session, &outer), TaskState::Paused { .. }), "{}", playing.log());
    assert_eq!(before, 4, "the inner one came to its end: {}", playing.log());
    playing.go_on(&outer, false).await.unwrap();
    let log = playing.finish().await;
    assert_eq!(requests(&stage), 5);
    assert!(log.contains("outer done") && log.contains("end    completed \"done\""), "{log}");
}

/// A request that stands in line takes nobody's place there while its agent is held.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_taken_back() {
    let stage = stage(
        r#"
when agent=worker turn=1 try=1
  fail 429 retry-after=60 "slow down"
when agent=worker
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "worker"}
when
  say "done"
"#,
    );
    let mut playing = Playing::open(&stage).await;
    let task = playing.task().await;
    playing
        .until(|envelope| match &envelope.event {
            Event::Waiting { reason: Some(decurion_protocol::WaitReason::Retry { .. }) } => Some(()),
            _ => None,
        })
        .await;
    playing.pause(&task, false).await.unwrap();
    playing.settle().await;
    assert_eq!(requests(&stage), 1, "{}", playing.log());
    assert!(!playing.ask(Command::Tasks).await.unwrap().to_string().contains("waiting:"));
    playing.go_on(&task, false).await.unwrap();
    let log = playing.finish().await;
    assert!(log.contains("#1 end    completed \"found it\""), "{log}");
}

/// A clock that goes with the tests' time.
struct Virtual(tokio::time::Instant);

impl Clock for Virtual {
    fn date(&self) -> Timestamp {
        let passed = i64::try_from(self.elapsed().as_millis()).unwrap();
        Timestamp::from_millisecond(1_800_000_000_000 + passed).unwrap()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_in_which_one_is_held_is_not_its_own() {
    let limited = ASKING.replace("\"subagent_type\"", "\"budget\": {\"seconds\": 100}, \"subagent_type\"");
    let mut stage = asking(&limited);
    stage.clock = Arc::new(Virtual(tokio::time::Instant::now()));
    let mut playing = Playing::open(&stage).await;
    let session = playing.link.session;
    let task = playing.task().await;
    let question = playing.question().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    playing.pause(&task, false).await.unwrap();
    playing.allow(question).await;
    playing.settle().await;
    assert!(matches!(standing(&stage, session, &task), TaskState::Paused { .. }), "{}", playing.log());
    playing.go_on(&task, false).await.unwrap();
    playing.question().await;
    tokio::time::advance(Duration::from_secs(30)).await;
    playing.ask(Command::Tasks).await.unwrap();
    assert!(matches!(standing(&stage, session, &task), TaskState::Running { .. }), "{}", playing.log());
    playing.settle().await;
    let ended = standing(&stage, session, &task);
    assert!(
        matches!(&ended, TaskState::Ended(Outcome::OutOfBudget { budget, .. }) if budget == "time"),
        "{ended:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_held_is_refused_with_the_reason() {
    let mut stage = with_processes(stage(
        "when turn=1\n  call Bash {\"command\": \"sleep 600\", \"run_in_background\": true}\nwhen\n  say \"done\"\n",
    ));
    stage.tools = decurion_tools::builtin_with(true);
    stage.rules.allow.push(decurion_protocol::Rule::parse("Bash", Default::default()).unwrap());
    let mut playing = Playing::open(&stage).await;
    let shell = playing.task().await;
    let reason = playing.pause(&shell, true).await.unwrap_err();
    assert_eq!(
        reason,
        format!("{shell} is a command, and only agents can be paused: stop it, or let it run")
    );
    let nobody: TaskId = "a0000000000000000".parse().unwrap();
    assert_eq!(playing.pause(&nobody, true).await.unwrap_err(), "no task with this id: a0000000000000000");
    playing.ask(Command::Stop { task: shell }).await.unwrap();
    playing.finish().await;
    let stage = crate::support::stage(
        "when agent=worker\n  say \"x\"\nwhen turn=1\n  call Agent {\"description\": \"d\", \"prompt\": \"p\", \"subagent_type\": \"worker\"}\nwhen\n  say \"done\"\n",
    );
    let mut playing = Playing::open(&stage).await;
    let task = playing.task().await;
    playing
        .until(|envelope| {
            let ended = matches!(envelope.event, Event::RunEnded { .. }) && envelope.agent.is_none();
            ended.then_some(())
        })
        .await;
    let reason = playing.go_on(&task, false).await.unwrap_err();
    assert_eq!(reason, format!("{task} has ended already: completed"));
}
