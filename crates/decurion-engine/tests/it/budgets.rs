//! Budgets that are hard and fair: what a request is weighed as, and who waits for whom.

use std::sync::Arc;

use decurion_model::catalog::Price;
use decurion_protocol::{
    Block, Command, Envelope, Event, Limits, Money, Outcome, Place as _, TaskId, WaitReason,
};
use decurion_testkit::stage::{Played, Stage, send};

use crate::support::{Playing, stage};

fn tokens(most: u64) -> Limits {
    Limits { tokens: Some(most), ..Limits::default() }
}

/// A picture of 1,000 by 1,000 pixels in so many characters of base64.
fn picture(size: usize) -> Block {
    let header = "iVBORw0KGgoAAAANSUhEUgAAA+gAAAPo";
    let data = header.to_owned() + &"A".repeat(size - header.len());
    Block::Image { source: serde_json::json!({"type": "base64", "media_type": "image/png", "data": data}) }
}

fn waits(events: &[Arc<Envelope>]) -> usize {
    let is_wait = |envelope: &&Arc<Envelope>| {
        matches!(envelope.event, Event::Waiting { reason: Some(WaitReason::Budget) })
    };
    events.iter().filter(is_wait).count()
}

/// How the agents ended.
fn endings(played: &Played) -> Vec<&Outcome> {
    let ending = |envelope: &'_ Arc<Envelope>| envelope.agent.is_some();
    let ended = played.events.iter().filter(|envelope| ending(envelope));
    ended
        .filter_map(|envelope| match &envelope.event {
            Event::RunEnded { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_image_is_weighed_by_its_pixels_and_not_by_its_bytes() {
    let mut stage = stage("when\n  say \"a cat\"\n  usage input=2000 output=10\n");
    stage.request.limits = tokens(50_000);
    let mut playing = Playing::with(&stage, stage.request.clone()).await;
    let blocks = vec![Block::text("what is this?"), picture(3_200_000)];
    send(&playing.link, 1, Command::Prompt { blocks }).await;
    let outcome = playing
        .until(|envelope| match &envelope.event {
            Event::RunEnded { outcome, .. } => Some(outcome.clone()),
            _ => None,
        })
        .await;
    assert_eq!(outcome, Outcome::Completed { report: "a cat".into(), limit: None });
}

#[tokio::test(start_paused = true)]
async fn a_request_that_could_be_a_token_per_byte_is_not_sent_beyond_the_limit() {
    let mut stage = stage("when\n  say \"read\"\n  usage input=40000 output=10\n");
    stage.request.limits = tokens(30_000);
    let played = stage.play(&"🎉".repeat(10_000)).await;
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
    assert_eq!(stage.requests().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_what_the_provider_has_not_counted_is_bounded_by_its_bytes() {
    let script = r#"
when turn=1
  call Echo {"text": "LONG"}
  usage input=900 output=10
when turn=5
  say "done"
  usage input=16000 output=10
when
  call Echo {"text": "${seen.turn}"}
  usage input=16000 output=10
"#;
    let mut stage = stage(&script.replace("LONG", &"x".repeat(50_000)));
    stage.request.limits = tokens(140_000);
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::Completed { report: "done".into(), limit: None });
}

#[tokio::test(start_paused = true)]
async fn siblings_with_the_same_head_reserve_it_as_it_was_counted() {
    let call = r#"  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}"#;
    let script = format!(
        "when agent=worker\n  say \"found\"\n  usage input=1000 output=10\nwhen turn=3\n  say \"done\"\n  usage input=100 output=1\nwhen\n{call}\n  usage input=100 output=1\n"
    );
    let mut stage = stage(&script);
    let mut worker = crate::support::worker();
    worker.prompt = "You do a part of the work. ".repeat(2_000);
    stage.agents = vec![Arc::new(worker)];
    // The head alone is 54,000 bytes, and each agent uses 1,010 tokens.
    stage.request.limits = tokens(64_000);
    let played = stage.play("go").await;
    let completed = Outcome::Completed { report: "found".into(), limit: None };
    assert_eq!(endings(&played), [&completed, &completed]);
    // The second would not have fitted by its bytes.
    stage.request.limits = tokens(30_000);
    assert!(matches!(endings(&stage.play("go").await)[..], [Outcome::OutOfBudget { .. }, ..]));
}

/// A root that begins so many workers at once; each takes two turns of about a thousand tokens.
fn parallel(count: usize) -> Stage {
    let call = r#"  call Agent {"description": "d", "prompt": "p", "subagent_type": "worker"}"#;
    let calls = format!("{call}\n").repeat(count);
    stage(&format!(
        "when agent=worker turn=1\n  delay 1s\n  call Echo {{\"text\": \"x\"}}\n  usage input=900 output=100\n\
         when agent=worker\n  delay 1s\n  say \"found\"\n  usage input=1000 output=100\n\
         when turn=1\n{calls}  usage input=900 output=10\nwhen\n  say \"done\"\n  usage input=2000 output=10\n"
    ))
}

#[tokio::test(start_paused = true)]
async fn parallel_agents_wait_for_what_others_only_reserved() {
    let mut stage = parallel(10);
    // All use 23,920 in all; each request reserves more than 4,000 for its output alone.
    stage.request.limits = tokens(30_000);
    let played = stage.play("go").await;
    let completed = Outcome::Completed { report: "found".into(), limit: None };
    assert_eq!(endings(&played), vec![&completed; 10]);
    assert_eq!(played.outcome, Outcome::Completed { report: "done".into(), limit: None });
    assert!(waits(&played.events) > 0);
}

#[tokio::test(start_paused = true)]
async fn output_is_not_cut_for_what_others_only_reserved() {
    let mut stage = parallel(10);
    stage.request.limits = Limits { money: Some(Money(90_000_000)), ..Limits::default() };
    let played = stage.play("go").await;
    assert_eq!(endings(&played).len(), 10);
    assert!(waits(&played.events) > 0);
    let cut = |body: &&Vec<u8>| memchr::memmem::find(body, b"\"max_tokens\":4000,").is_none();
    assert_eq!(stage.requests().iter().filter(cut).count(), 0);
}

/// An agent with a budget and two below it: the first takes long, and the second must wait for what it reserved.
fn waiting() -> Stage {
    let call = |prompt: &str| {
        format!(
            "  call Agent {{\"description\": \"{prompt}\", \"prompt\": \"{prompt}\", \"subagent_type\": \"worker\"}}\n"
        )
    };
    let mut stage = stage(&format!(
        "when agent=worker first=\"long\"\n  delay 50s\n  say \"long done\"\n  usage input=900 output=100\n\
         when agent=worker first=\"short\"\n  say \"short done\"\n  usage input=900 output=100\n\
         when agent=worker first=\"outer\" turn=1\n{}{}  usage input=900 output=100\n\
         when agent=worker\n  say \"outer done\"\n  usage input=900 output=100\n\
         when turn=1\n  call Agent {{\"description\": \"outer\", \"prompt\": \"outer\", \"subagent_type\": \"worker\", \
         \"run_in_background\": true, \"budget\": {{\"tokens\": 12000}}}}\n\
         when\n  say \"done\"\n",
        call("long"),
        call("short"),
    ));
    stage.agent_settings.max_depth = 2;
    stage
}

impl Playing {
    /// Until one waits for budget; gives its task.
    async fn waiting(&mut self) -> TaskId {
        self.until(|envelope| match &envelope.event {
            Event::Waiting { reason: Some(WaitReason::Budget) } => envelope.agent.clone().map(TaskId::from),
            _ => None,
        })
        .await
    }

    /// Until an agent ends; gives how.
    async fn ended(&mut self, task: &TaskId) -> Outcome {
        self.until(|envelope| match &envelope.event {
            Event::RunEnded { outcome, .. }
                if envelope.agent.clone().map(TaskId::from).as_ref() == Some(task) =>
            {
                Some(outcome.clone())
            }
            _ => None,
        })
        .await
    }

    fn nth_task(&self, nth: usize) -> TaskId {
        let task = |envelope: &Arc<Envelope>| match &envelope.event {
            Event::TaskOpened { record } => Some(record.task.clone()),
            _ => None,
        };
        self.events.iter().filter_map(task).nth(nth).expect("a task")
    }
}

fn done(report: &str) -> Outcome {
    Outcome::Completed { report: report.into(), limit: None }
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_goes_on_when_the_other_is_stopped() {
    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    let short = playing.waiting().await;
    let long = playing.nth_task(1);
    assert_ne!(long, short);
    playing.ask(Command::Stop { task: long.clone() }).await.unwrap();
    assert_eq!(playing.ended(&short).await, done("short done"));
}

#[tokio::test(start_paused = true)]
async fn a_raised_budget_ends_the_wait_and_a_lowered_one_ends_the_agent() {
    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    let short = playing.waiting().await;
    let outer = playing.nth_task(0);
    playing.ask(Command::Rebudget { task: outer.clone(), limits: tokens(60_000) }).await.unwrap();
    assert_eq!(playing.ended(&short).await, done("short done"));

    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    let short = playing.waiting().await;
    let outer = playing.nth_task(0);
    playing.ask(Command::Rebudget { task: outer.clone(), limits: tokens(1_500) }).await.unwrap();
    let ended = playing.ended(&short).await;
    assert_eq!(ended, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_can_be_stopped_paused_and_continued() {
    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    let short = playing.waiting().await;
    playing.ask(Command::Pause { task: short.clone(), tree: false }).await.unwrap();
    // The other ends, and the budget is there: one that is held does not take it.
    let long = playing.nth_task(1);
    assert_eq!(playing.ended(&long).await, done("long done"));
    playing.settle().await;
    playing.ask(Command::Continue { task: short.clone(), tree: false }).await.unwrap();
    assert_eq!(playing.ended(&short).await, done("short done"));

    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    let short = playing.waiting().await;
    playing.ask(Command::Stop { task: short.clone() }).await.unwrap();
    assert!(matches!(playing.ended(&short).await, Outcome::Killed { .. }));
    let outer = playing.nth_task(0);
    assert_eq!(playing.ended(&outer).await, done("outer done"));
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_waits_for_is_shown_with_its_task() {
    let stage = waiting();
    let mut playing = Playing::open(&stage).await;
    playing.waiting().await;
    let tasks = playing.ask(Command::Tasks).await.unwrap().to_string();
    assert!(tasks.contains("budget that other requests have reserved"), "{tasks}");
}

/// A model that stays overloaded, and a dearer one to change to.
fn overloaded() -> Stage {
    let mut stage = stage(
        "when model=scripted\n  fail 529\nwhen\n  say \"from the other\"\n  usage input=1000 output=100\n",
    );
    stage.models = vec!["dear".into()];
    let dear = Price { input: 10_000, output: 50_000, cache_read: 1_000, ..Price::default() };
    stage.prices = [("dear".to_owned(), dear)].into();
    stage.request.fallback_model = Some("dear".into());
    stage
}

#[tokio::test(start_paused = true)]
async fn a_fallback_model_is_billed_and_reserved_at_its_own_price() {
    let stage = overloaded();
    let played = stage.play("go").await;
    let costs: Vec<u64> = played
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Message { meta, .. } => meta.cost.map(|cost| cost.0),
            Event::RunEnded { totals, .. } => Some(totals.cost.0),
            _ => None,
        })
        .collect();
    assert_eq!(costs, [15_000_000, 15_000_000], "1,000 tokens in, 100 out");
    // The least that the cheaper model writes costs $0.00128, of the dearer one $0.0128.
    let mut stage = stage.resuming("when\n  say \"done\"\n  usage input=100 output=10\n");
    stage.request.limits = Limits { money: Some(Money(12_000_000)), ..Limits::default() };
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "money".into(), partial: String::new() });
    stage.request.fallback_model = None;
    assert_eq!(stage.play("go").await.outcome, done("done"));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_model_without_a_price_is_refused_with_a_money_budget() {
    let mut stage = overloaded();
    stage.models = vec!["unpriced".into()];
    stage.request.fallback_model = Some("unpriced".into());
    stage.request.limits = Limits { money: Some(Money(1_000_000_000)), ..Limits::default() };
    let refused = stage.engine().open(stage.request.clone()).await.map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("price of the fallback model") && refused.ends_with("unpriced"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_summary_asks_for_no_more_output_than_is_reserved() {
    let mut stage = stage("when\n  say \"said\"\n  usage input=4000 output=1000\n");
    stage.request.limits = tokens(12_000);
    let mut playing = Playing::open(&stage).await;
    playing.until(|envelope| matches!(envelope.event, Event::RunEnded { .. }).then_some(())).await;
    playing.ask(Command::Compact { instructions: None }).await.unwrap();
    playing.until(|envelope| matches!(envelope.event, Event::Compacted { .. }).then_some(())).await;
    let request = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    let (_, after) = request.split_once("\"max_tokens\":").unwrap();
    let asked: u64 = after.split(',').next().unwrap().parse().unwrap();
    // 7,000 are unspent, and 4,000 of them were counted as its input.
    assert!((256..3_000).contains(&asked), "{asked}");
}
