//! Budgets that are hard and fair: what a request is weighed as, and who waits for whom.

use std::sync::Arc;
use std::time::Duration;

use decurion_model::Dialect;
use decurion_model::catalog::Price;
use decurion_protocol::{
    Block, ChargeKind, Command, Envelope, Event, Limits, Money, OpenSession, Outcome, Place as _, SessionId,
    Start, TaskId, WaitReason,
};
use decurion_testkit::stage::{Played, Stage, render, send};

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
async fn a_reply_that_is_sent_back_is_bounded_by_its_bytes_unless_it_holds_hidden_reasoning() {
    let script = "when turn=1\n  call Echo {\"text\": \"LONG\"}\n  usage input=1000 output=10\n\
         when turn=2\n  FIRST\n  call Echo {\"text\": \"x\"}\n  usage input=2600 output=3000\n\
         when\n  say \"done\"\n  usage input=2900 output=10\n";
    let rows = [
        (Dialect::Anthropic, "say \"looking\"", true),
        // The provider keeps more of it than it shows, and reads that again.
        (Dialect::Anthropic, "think \"so\"", false),
        // This dialect sends no reasoning back.
        (Dialect::OpenAiChat, "think \"so\"", true),
    ];
    for (dialect, first, fits) in rows {
        let mut stage = stage(&script.replace("FIRST", first).replace("LONG", &"x".repeat(3_000)));
        stage.dialect = dialect;
        // 3,390 are left for the last request.
        stage.request.limits = tokens(10_000);
        let played = stage.play("go").await;
        assert_eq!(played.outcome == done("done"), fits, "{dialect:?} {first}: {:?}", played.outcome);
    }
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
    nested(", \"budget\": {\"tokens\": 12000}")
}

/// The same with this budget.
fn nested(budget: &str) -> Stage {
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
         \"run_in_background\": true{budget}}}\n\
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

/// What was charged besides the replies, and what the run took in all.
fn charges(played: &Played) -> (Vec<(ChargeKind, u64)>, u64) {
    let charge = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Charged { charge } => Some((charge.kind, charge.usage.context_tokens())),
        _ => None,
    };
    let total = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::RunEnded { totals, .. } => Some(totals.usage.context_tokens()),
        _ => None,
    };
    (played.events.iter().filter_map(charge).collect(), played.events.iter().find_map(total).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_try_that_broke_off_counts_what_it_was_told_and_what_it_wrote() {
    let script = "when try=1..2\n  say \"0123456789\"\n  usage input=1000 output=10\n  reset after 4 events\nwhen\n  say \"done\"\n  usage input=1000 output=10\n";
    let played = stage(script).play("go").await;
    let (charged, total) = charges(&played);
    assert_eq!(charged.len(), 2);
    assert!(charged.iter().all(|(kind, tokens)| *kind == ChargeKind::BrokenOff && *tokens >= 1_000));
    assert_eq!(total, charged.iter().map(|(_, tokens)| tokens).sum::<u64>() + 1_010);
}

#[tokio::test(start_paused = true)]
async fn an_empty_reply_costs_what_the_provider_counted_at_its_end() {
    let script = "when try=1\n  say \"\"\n  usage input=700 output=5\nwhen\n  say \"done\"\n  usage input=700 output=10\n";
    let mut stage = stage(script);
    stage.dialect = Dialect::OpenAiChat;
    let played = stage.play("go").await;
    let (charged, total) = charges(&played);
    assert_eq!((charged, total), (vec![(ChargeKind::BrokenOff, 705)], 705 + 710));
}

#[tokio::test(start_paused = true)]
async fn tries_that_break_off_never_pass_a_limit() {
    let mut stage =
        stage("when\n  say \"0123456789\"\n  usage input=1000 output=10\n  reset after 4 events\n");
    stage.request.limits = tokens(6_000);
    let played = stage.play("go").await;
    let (charged, total) = charges(&played);
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
    assert!(total <= 6_000 && charged.len() >= 2, "{charged:?}");
}

#[tokio::test(start_paused = true)]
async fn tries_that_leave_less_of_a_budget_are_retried_like_others() {
    let mut stage = stage("when\n  say \"0123456789\"\n  usage input=10 output=1\n  reset after 4 events\n");
    // What is left pays for less output with every try, and for dozens of them.
    stage.request.limits = tokens(6_000);
    let played = stage.play("go").await;
    assert!(matches!(played.outcome, Outcome::Failed { .. }), "{:?}", played.outcome);
    let retry = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Waiting { reason: Some(WaitReason::Retry { attempt, delay_ms, .. }) } => {
            Some((*attempt, *delay_ms))
        }
        _ => None,
    };
    let (attempts, delays): (Vec<u32>, Vec<u64>) = played.events.iter().filter_map(retry).unzip();
    assert_eq!((stage.requests().len(), attempts), (10, (2..=10).collect()));
    assert!(delays.iter().max() > Some(&8_000), "waits grow: {delays:?}");
    let asked: Vec<u64> = stage
        .requests()
        .iter()
        .map(|body| {
            serde_json::from_slice::<serde_json::Value>(body).unwrap()["max_tokens"].as_u64().unwrap()
        })
        .collect();
    assert!(asked.is_sorted_by(|one, next| one > next), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fallback_model_stays_when_less_is_left_of_a_budget() {
    let script = "when model=scripted\n  fail 529\n\
         when try=4..5\n  say \"0123456789\"\n  usage input=10 output=1\n  reset after 4 events\n\
         when\n  say \"from the other\"\n  usage input=10 output=10\n";
    let mut stage = stage(script);
    stage.models = vec!["other".into()];
    stage.request.fallback_model = Some("other".into());
    stage.request.limits = tokens(6_000);
    let played = stage.play("go").await;
    assert_eq!(played.outcome, done("from the other"));
    // Three times overloaded, two broken off, and the reply.
    assert_eq!(stage.requests().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_given_up_is_not_asked_for_again_from_what_is_left() {
    let script =
        "when\n  say \"0123456789\"\n  error invalid_request_error \"no\"\n  usage input=1000 output=10\n";
    let mut stage = stage(script);
    // What is left after the first try pays for a smaller one.
    stage.request.limits = tokens(6_000);
    let played = stage.play("go").await;
    assert!(matches!(played.outcome, Outcome::Failed { .. }), "{:?}", played.outcome);
    assert_eq!(stage.requests().len(), 1);
    assert_eq!(charges(&played).0.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_stopped_and_a_summary_are_charged_and_on_record() {
    let script = "when text=\"about to be shortened\"\n  say \"summary\"\n  usage input=1500 output=20\n\
         when text=\"again\"\n  say \"0123456789\"\n  usage input=1100 output=10\n  stall after 4 events\n\
         when\n  say \"first\"\n  usage input=1000 output=10\n";
    let stage = stage(script);
    let mut playing = Playing::open(&stage).await;
    let ended = |envelope: &Envelope| match &envelope.event {
        Event::RunEnded { totals, .. } => Some(totals.usage.context_tokens()),
        _ => None,
    };
    assert_eq!(playing.until(ended).await, 1_010);
    send(&playing.link, 7, Command::Prompt { blocks: vec![Block::text("again")] }).await;
    playing.until(|envelope| matches!(envelope.event, Event::Delta { .. }).then_some(())).await;
    playing.ask(Command::Interrupt).await.unwrap();
    assert!(playing.until(ended).await >= 1_100);
    playing.ask(Command::Compact { instructions: None }).await.unwrap();
    playing.until(|envelope| matches!(envelope.event, Event::Compacted { .. }).then_some(())).await;
    let kinds: Vec<ChargeKind> = stage
        .recorded(playing.link.session)
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Charged { charge } => Some(charge.kind),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [ChargeKind::Stopped, ChargeKind::Summary]);
}

/// A root that calls a tool nine times and ends; its provider says nothing of what that used.
const UNCOUNTED: &str = "when turn=10\n  say \"done\"\n  usage\n\
     when\n  say \"more\"\n  call Echo {\"text\": \"${seen.turn}\"}\n  usage\n";

#[tokio::test(start_paused = true)]
async fn replies_without_usage_are_charged_their_bounds() {
    let mut first = stage(UNCOUNTED);
    first.dialect = Dialect::OpenAiChat;
    let free = first.play("go").await;
    assert_eq!(free.outcome, done("done"));
    let used: Vec<(u64, u64, bool, bool)> = free
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Message { meta, .. } => meta.usage.as_ref().map(|usage| (usage, meta.cost.is_some())),
            _ => None,
        })
        .map(|(usage, has_cost)| (usage.input_tokens, usage.output_tokens, usage.is_estimated(), has_cost))
        .collect();
    let bytes: Vec<u64> = first.requests().iter().map(|body| body.len() as u64).collect();
    assert_eq!((used.len(), bytes.len()), (10, 10));
    for ((input, output, is_estimated, has_cost), bytes) in used.iter().zip(bytes) {
        assert!((bytes - 20..=bytes).contains(input), "{input} of {bytes} bytes");
        assert!((4..=40).contains(output), "{output}");
        assert!(is_estimated & has_cost);
    }
    let total: u64 = used.iter().map(|(input, output, ..)| input + output).sum();
    let mut second = stage(UNCOUNTED);
    second.dialect = Dialect::OpenAiChat;
    second.request.limits = tokens(total / 2);
    let bound = second.play("go").await;
    assert!(matches!(bound.outcome, Outcome::OutOfBudget { .. }), "{:?}", bound.outcome);
    assert!((3..10).contains(&second.requests().len()));
    assert!(charges(&bound).1 <= total / 2);
    // A process that continues the session knows it too.
    let again = second.play_all(resumed(&second, bound.session), &["go on"]).await.unwrap();
    assert!(matches!(again.outcome, Outcome::OutOfBudget { .. }), "{:?}", again.outcome);
}

/// A root that never ends; each request is billed as 1,010 tokens.
const ENDLESS: &str =
    "when\n  say \"more\"\n  call Echo {\"text\": \"${seen.turn}\"}\n  usage input=1000 output=10\n";

fn resumed(stage: &Stage, session: SessionId) -> OpenSession {
    OpenSession { start: Start::Resume { id: session, at: None }, ..stage.request.clone() }
}

fn sent(record: &[Envelope]) -> usize {
    let sends = |envelope: &&Envelope| matches!(envelope.event, Event::Reserved { charge: Some(_) });
    record.iter().filter(sends).count()
}

#[tokio::test(start_paused = true)]
async fn wherever_its_process_dies_a_session_has_one_budget() {
    let mut first = stage(ENDLESS);
    first.request.limits = tokens(6_000);
    let played = first.play("go").await;
    let whole = first.recorded(played.session);
    let (alone, last) = (sent(&whole), whole.last().unwrap().seq);
    assert_eq!(alone, first.requests().len(), "each request is on record before it is sent");
    assert!((2..=5).contains(&alone), "{alone} is no test");
    for after in 1..last {
        let second = first.after_crash_at(after);
        let request = resumed(&second, played.session);
        let again = second.play_all(request, &["are you there?"]).await.unwrap();
        let before: Vec<Envelope> = whole.iter().filter(|one| one.seq <= after).cloned().collect();
        let requests = sent(&before) + second.requests().len();
        assert!(requests * 1_010 <= 6_000, "after {after}: {requests} requests\n{}", render(&again.events));
        let lost = matches!(before.last().unwrap().event, Event::Reserved { charge: Some(_) });
        let charged = charges(&again).0.iter().filter(|(kind, _)| *kind == ChargeKind::Lost).count();
        assert_eq!(charged, usize::from(lost), "after {after}");
        assert!(matches!(again.outcome, Outcome::OutOfBudget { .. }), "after {after}: {:?}", again.outcome);
        // And the process after that knows the same.
        let third = second.play_all(resumed(&second, played.session), &["and now?"]).await.unwrap();
        assert!(matches!(third.outcome, Outcome::OutOfBudget { .. }), "after {after}: {:?}", third.outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn agents_that_die_with_the_process_have_spent_from_the_budget_of_the_session() {
    let mut first = parallel(3);
    first.request.limits = tokens(13_000);
    let played = first.play("go").await;
    let whole = first.recorded(played.session);
    let billed = |record: &[Envelope]| -> u64 {
        let of = |envelope: &Envelope| match &envelope.event {
            Event::Message { meta, .. } => {
                meta.usage.as_ref().map_or(0, decurion_protocol::Usage::context_tokens)
            }
            Event::Charged { charge } => charge.usage.context_tokens(),
            _ => 0,
        };
        record.iter().map(of).sum()
    };
    assert!(billed(&whole) > 9_000, "{} is no test", billed(&whole));
    for after in 1..whole.last().unwrap().seq {
        let second = first.after_crash_at(after);
        let again = second.play_all(resumed(&second, played.session), &["go on"]).await.unwrap();
        let used = billed(&second.recorded(played.session));
        assert!(used <= 13_000, "after {after}: {used}\n{}", render(&again.events));
    }
}

/// An agent without a budget, and one below it whose request is under way when the first is given one.
#[tokio::test(start_paused = true)]
async fn a_request_that_a_limit_finds_under_way_is_charged_if_its_process_dies() {
    let first = nested("");
    let mut playing = Playing::open(&first).await;
    let of = |envelope: &Envelope| envelope.agent.clone().map(TaskId::from);
    playing
        .until(|envelope| match &envelope.event {
            Event::RunStarted { spec } if spec.depth == 2 => Some(()),
            _ => None,
        })
        .await;
    let (outer, long) = (playing.nth_task(0), playing.nth_task(1));
    // The paused clock moves once everyone waits: for the reply, which takes 50 seconds.
    tokio::time::sleep(Duration::from_secs(10)).await;
    playing.ask(Command::Rebudget { task: outer.clone(), limits: tokens(60_000) }).await.unwrap();
    assert_eq!(playing.ended(&long).await, done("long done"));
    let whole = first.recorded(playing.link.session);
    let since = whole.iter().find(|one| matches!(one.event, Event::Rebudgeted { .. })).unwrap().seq;
    let reserved =
        whole.iter().filter(|one| of(one).as_ref() == Some(&long)).find_map(|one| match &one.event {
            Event::Reserved { charge: Some(charge) } => Some((one.seq, charge.usage.context_tokens())),
            _ => None,
        });
    let (seq, most) = reserved.expect("it is on record as under way");
    assert!(seq > since && most > 1_000, "{seq} {most}");

    let second = first.after_crash_at(seq);
    let again = second.play_all(resumed(&second, playing.link.session), &["go on"]).await.unwrap();
    let lost = again.events.iter().find_map(|one| match &one.event {
        Event::Charged { charge } if of(one).as_ref() == Some(&long) => {
            Some((charge.kind, charge.usage.context_tokens()))
        }
        _ => None,
    });
    assert_eq!(lost, Some((ChargeKind::Lost, most)), "{}", render(&again.events));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_out_a_refusal_is_not_lost_with_its_process() {
    let script =
        "when try=1\n  fail 429 retry-after=600\nwhen\n  say \"done\"\n  usage input=1000 output=10\n";
    let mut first = stage(script);
    first.request.limits = tokens(6_000);
    let played = first.play("go").await;
    let whole = first.recorded(played.session);
    let refused = whole.iter().find(|one| matches!(one.event, Event::Reserved { charge: None })).unwrap().seq;
    let second = first.after_crash_at(refused);
    let again = second.play_all(resumed(&second, played.session), &["go on"]).await.unwrap();
    assert_eq!(charges(&again).0, []);
    assert!(matches!(again.outcome, Outcome::Completed { .. }), "{:?}", again.outcome);
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_a_budget_for_itself_and_a_resume_says_what_is_used() {
    let mut first = stage("when\n  say \"done\"\n  usage input=3000 output=10\n");
    first.request.limits = tokens(6_000);
    let played = first.play("go").await;
    let start = Start::Fork { from: played.session, id: None, at: None };
    let fork = OpenSession { start, ..first.request.clone() };
    let forked = first.play_all(fork, &["go"]).await.unwrap();
    assert!(matches!(forked.outcome, Outcome::Completed { .. }), "{:?}", forked.outcome);
    let again = first.play_all(resumed(&first, played.session), &["go"]).await.unwrap();
    assert!(matches!(again.outcome, Outcome::OutOfBudget { .. }), "{:?}", again.outcome);
    let told = |envelope: &Arc<Envelope>| match &envelope.event {
        Event::Notice { text, .. } => text.contains("has used 3010 of 6000 tokens before"),
        _ => false,
    };
    assert!(again.events.iter().any(told));
    assert!(!forked.events.iter().any(told));
}

/// The provider takes the request and says nothing for minutes: it may have worked unseen all the time.
#[tokio::test(start_paused = true)]
async fn a_request_that_stays_without_an_answer_counts_as_the_most_it_can_use() {
    let mut stage = stage("when\n  say \"x\"\n  usage input=1000 output=10\n  stall after 0 events\n");
    stage.request.limits = tokens(9_000);
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
    assert_eq!(stage.requests().len(), 1, "what is left does not pay for a second one");
    let (charged, total) = charges(&played);
    let [(ChargeKind::BrokenOff, used)] = charged[..] else { panic!("{charged:?}") };
    assert!(used > 8_000 && used <= 9_000 && used == total, "{used} of {total}");
}

/// It is not known whether the provider had begun to read.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_stopped_before_its_answer_counts_as_read() {
    let stage = stage("when\n  say \"x\"\n  stall after 0 events\n");
    let mut playing = Playing::open(&stage).await;
    while stage.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    playing.ask(Command::Interrupt).await.unwrap();
    let total = playing
        .until(|envelope| match &envelope.event {
            Event::RunEnded { totals, .. } => Some(totals.usage.clone()),
            _ => None,
        })
        .await;
    assert!(total.input_tokens > 0 && total.output_tokens == 0 && total.is_estimated(), "{total:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_costs_nothing() {
    for refusal in ["fail 400 \"no\"", "fail 401 should-retry=false \"no\"", "fail 503 \"no\""] {
        let played = stage(&format!("when\n  {refusal}\n")).play("go").await;
        assert_eq!(charges(&played), (Vec::new(), 0), "{refusal}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_request_cost_is_shown_as_a_bound() {
    let mut first = stage(ENDLESS);
    first.request.limits = tokens(6_000);
    let played = first.play("go").await;
    let whole = first.recorded(played.session);
    let is_reserved = |envelope: &&Envelope| matches!(envelope.event, Event::Reserved { charge: Some(_) });
    let after = whole.iter().rev().find(is_reserved).unwrap().seq;
    let second = first.after_crash_at(after);
    let again = second.play_all(resumed(&second, played.session), &["are you there?"]).await.unwrap();
    let mut view = decurion_protocol::view::SessionView::default();
    again.events.iter().for_each(|envelope| view.take(envelope));
    assert!(charges(&again).0.iter().any(|(kind, _)| *kind == ChargeKind::Lost));
    assert!(view.cost_is_bound());
}
