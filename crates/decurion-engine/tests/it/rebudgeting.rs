//! Another budget for an agent while it works, from a person: it holds at once, after a crash too, and never beyond what
//! is left above.

use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::{
    Answer, Command, Envelope, Event, Limits, Money, OpenSession, Outcome, QuestionId, RuleSet, Start, TaskId,
};
use decurion_testkit::stage::{Plain, Stage, render, send};
use expect_test::expect;

use crate::support::{Playing, stage};

/// An agent that asks before each of its calls and would go on for ever; every turn of it takes 1,000 tokens.
fn endless(inputs: &str) -> Stage {
    let mut stage = stage(&format!(
        r#"
when agent=worker first="inner"
  say "so far"
  call Write {{"text": "${{seen.turn}}"}}
  usage input=900 output=100
when agent=worker first="outer" turn=1
  call Agent {{"description": "inner", "prompt": "inner", "subagent_type": "worker", "budget": {{"tokens": 8000}}}}
  usage input=900 output=100
when agent=worker
  say "so far"
  call Write {{"text": "${{seen.turn}}"}}
  usage input=900 output=100
when turn=1
  call Agent {{"description": "look", "subagent_type": "worker"{inputs}}}
  usage input=900 output=100
when
  say "heard"
"#
    ));
    stage.rules = RuleSet::default();
    stage.request.answers = true;
    stage.tools = vec![Arc::new(Plain::named("Write"))];
    stage
}

impl Playing {
    /// Which task was opened as the so-manieth.
    fn opened(&self, nth: usize) -> TaskId {
        let task = |envelope: &Arc<Envelope>| match &envelope.event {
            Event::TaskOpened { record } => Some(record.task.clone()),
            _ => None,
        };
        self.events.iter().filter_map(task).nth(nth).expect("a task")
    }

    async fn rebudget(&mut self, task: &TaskId, limits: Limits) -> Result<serde_json::Value, String> {
        self.ask(Command::Rebudget { task: task.clone(), limits }).await
    }

    /// The next question, or how the agent ended instead.
    async fn question_or_end(&mut self) -> Result<QuestionId, Outcome> {
        self.until(|envelope| match &envelope.event {
            Event::Asked { question } => Some(Ok(question.id)),
            Event::RunEnded { outcome, .. } if envelope.agent.is_some() => Some(Err(outcome.clone())),
            _ => None,
        })
        .await
    }

    async fn allow_unheard(&mut self, question: QuestionId) {
        let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
        let command = Command::Answer { question, answer, updates: Vec::new(), by: "test".into() };
        send(&self.link, 2, command).await;
    }

    /// Allows what is asked until the agent ends; gives how many turns that took, and how it ended.
    async fn end(&mut self) -> (usize, Outcome) {
        let mut turns = 0;
        loop {
            match self.question_or_end().await {
                Ok(question) => self.allow_unheard(question).await,
                Err(outcome) => return (turns, outcome),
            }
            turns += 1;
        }
    }
}

fn turns(most: u32) -> Limits {
    Limits { turns: Some(most), ..Limits::default() }
}

fn tokens(most: u64) -> Limits {
    Limits { tokens: Some(most), ..Limits::default() }
}

#[tokio::test(start_paused = true)]
async fn turns_are_raised_and_lowered_while_an_agent_works() {
    let raised = endless(", \"prompt\": \"p\", \"max_turns\": 2");
    let mut playing = Playing::open(&raised).await;
    let first = playing.question_or_end().await.unwrap();
    playing.allow_unheard(first).await;
    // It was told that this turn is its last.
    let second = playing.question_or_end().await.unwrap();
    let task = playing.opened(0);
    let told = playing.rebudget(&task, turns(4)).await.unwrap();
    assert_eq!(
        told,
        serde_json::json!({"turns": 4, "money": null, "tokens": null, "seconds": null, "spawns": null})
    );
    playing.allow_unheard(second).await;
    let (more, outcome) = playing.end().await;
    assert_eq!(
        (more, &outcome),
        (2, &Outcome::Completed { report: "so far".into(), limit: Some("turns".into()) })
    );
    let log = render(&playing.events);
    let notes: String = log
        .lines()
        .filter(|line| line.contains("note ") || line.contains("budget"))
        .map(|line| format!("{line}\n"))
        .collect();
    expect![[r#"
            #1 note   "Your budget (turns) allows one more turn. Do not call tools now: report what you have found or done so far, and what is missing." Note("budget")
        budget #1 turns=4
            #1 note   "Your budget was raised: there is more than one turn left. Go on with your work." Note("budget")
            #1 note   "Your budget (turns) allows one more turn. Do not call tools now: report what you have found or done so far, and what is missing." Note("budget")
    "#]].assert_eq(&notes);

    let lowered = endless(", \"prompt\": \"p\", \"max_turns\": 50");
    let mut playing = Playing::open(&lowered).await;
    let first = playing.question_or_end().await.unwrap();
    let task = playing.opened(0);
    playing.rebudget(&task, turns(2)).await.unwrap();
    playing.allow_unheard(first).await;
    assert_eq!(playing.end().await.0, 1, "{}", render(&playing.events));
}

#[tokio::test(start_paused = true)]
async fn tokens_and_money_are_given_up_to_what_is_left_above() {
    let mut stage = endless(", \"prompt\": \"outer\", \"budget\": {\"tokens\": 20000}");
    stage.agent_settings.max_depth = 2;
    stage.rules.allow.push(decurion_protocol::Rule::parse("Agent", Default::default()).unwrap());
    stage.request.limits =
        Limits { tokens: Some(40_000), money: Some(Money::from_dollars(1.0)), ..Limits::default() };
    let mut playing = Playing::open(&stage).await;
    let first = playing.question_or_end().await.unwrap();
    let (outer, inner) = (playing.opened(0), playing.opened(1));
    let name = |text: String| text.replace(outer.as_str(), "OUTER").replace(inner.as_str(), "INNER");
    let mut log = String::new();
    for (task, limits) in [
        (&inner, tokens(30_000)),
        (&inner, tokens(12_000)),
        (&outer, tokens(100_000)),
        (&outer, tokens(35_000)),
        (&inner, tokens(30_000)),
        (&outer, Limits { money: Some(Money::from_dollars(0.5)), ..Limits::default() }),
        (&outer, Limits { money: Some(Money::from_dollars(2.0)), ..Limits::default() }),
        (&outer, Limits { turns: Some(0), ..Limits::default() }),
        (&outer, Limits::default()),
    ] {
        log += &match playing.rebudget(task, limits).await {
            Ok(value) => format!("{value}\n"),
            Err(reason) => name(format!("! {reason}\n")),
        };
    }
    expect![[r#"
        ! OUTER, for which INNER works, has 18000 tokens left: give INNER at most 19000 tokens in all, or OUTER more first
        {"turns":null,"money":null,"tokens":12000,"seconds":null,"spawns":null}
        ! the session has 37000 tokens left: give OUTER at most 39000 tokens in all, or begin a session with more
        {"turns":null,"money":null,"tokens":35000,"seconds":null,"spawns":null}
        {"turns":null,"money":null,"tokens":30000,"seconds":null,"spawns":null}
        {"turns":null,"money":500000000,"tokens":35000,"seconds":null,"spawns":null}
        ! the session has $0.9958 left: give OUTER at most $0.9986 in all, or begin a session with more
        ! `turns` must be more than 0; to end an agent, stop it
        ! nothing is to change: give turns, money, tokens, seconds or spawns
    "#]].assert_eq(&log);
    // What was given can be spent, and no more.
    playing.allow_unheard(first).await;
    let (turns, outcome) = playing.end().await;
    assert!(matches!(&outcome, Outcome::OutOfBudget { budget, .. } if budget == "tokens"), "{outcome:?}");
    assert!((20..30).contains(&turns), "{turns}");
}

#[tokio::test(start_paused = true)]
async fn time_is_given_to_one_that_waits() {
    let stage = endless(", \"prompt\": \"p\", \"budget\": {\"seconds\": 100}");
    let mut playing = Playing::open(&stage).await;
    let first = playing.question_or_end().await.unwrap();
    let task = playing.opened(0);
    tokio::time::advance(Duration::from_secs(90)).await;
    let limits = Limits { seconds: Some(1_000), ..Limits::default() };
    playing.rebudget(&task, limits).await.unwrap();
    tokio::time::advance(Duration::from_secs(300)).await;
    playing.allow_unheard(first).await;
    assert!(playing.question_or_end().await.is_ok(), "{}", render(&playing.events));
    let limits = Limits { seconds: Some(1), ..Limits::default() };
    playing.rebudget(&task, limits).await.unwrap();
    let outcome = playing.question_or_end().await.unwrap_err();
    assert!(matches!(&outcome, Outcome::OutOfBudget { budget, .. } if budget == "time"), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_given_is_there_after_any_crash_and_for_one_that_goes_on() {
    let first = endless(", \"prompt\": \"p\", \"run_in_background\": true, \"max_turns\": 1");
    let mut playing = Playing::open(&first).await;
    let session = playing.link.session;
    playing.question_or_end().await.unwrap();
    let task = playing.opened(0);
    playing.rebudget(&task, turns(3)).await.unwrap();
    let record = first.recorded(session);
    let given =
        record.iter().find(|envelope| matches!(envelope.event, Event::Rebudgeted { .. })).unwrap().seq;
    for (after, most) in [(given - 1, 1), (given, 3)] {
        let second = first.after_crash_at(after);
        let start = Start::Resume { id: session, at: None };
        let mut playing = Playing::with(&second, OpenSession { start, ..second.request.clone() }).await;
        let (turns, outcome) = playing.end().await;
        assert_eq!(turns, most, "{}", render(&playing.events));
        assert_eq!(outcome.word(), "completed");
        // One that has ended is given more, and goes on with it.
        let more = Limits { turns: Some(5), ..Limits::default() };
        playing.rebudget(&task, more).await.unwrap();
        let agent = task.as_str().parse().unwrap();
        playing.ask(Command::Tell { agent, text: "go on".into() }).await.unwrap();
        assert_eq!(playing.end().await.0, 5, "{}", render(&playing.events));
    }
}
