//! Honest endings: each way a run can end, and what is on record then.

use decurion_protocol::{Limits, Money, Outcome};
use decurion_testkit::stage::{Stage, check};
use expect_test::expect;

const LOOP: &str = "when\n  call Echo {\"text\": \"again ${seen.turn}\"}\n  usage input=1000 output=100\n";

#[tokio::test(start_paused = true)]
async fn the_limit_of_turns_is_exact() {
    let mut stage = Stage::new(LOOP);
    stage.request.limits = Limits { turns: Some(3), ..Limits::default() };
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "turns".into(), partial: String::new() });
    assert_eq!(stage.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn money_is_never_spent_beyond_its_limit() {
    for limit in [1_000_000, 3_000_000, 12_345_678, 40_000_000] {
        let mut stage = Stage::new(LOOP);
        stage.request.limits = Limits { money: Some(Money(limit)), ..Limits::default() };
        let played = stage.play("go").await;
        let spent = totals(&played.events).cost;
        assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "money".into(), partial: String::new() });
        assert!(spent <= Money(limit), "{spent:?} of {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_limited_too() {
    let mut stage = Stage::new(LOOP);
    stage.request.limits = Limits { tokens: Some(20_000), ..Limits::default() };
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::OutOfBudget { budget: "tokens".into(), partial: String::new() });
    assert!(totals(&played.events).usage.context_tokens() <= 20_000);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_request_fails_with_the_providers_words() {
    check(
        "when\n  fail 400\n",
        &expect![[r#"
            user   "go"
            error  "the provider rejected the request (status 400): scripted failure (request id)"
            end    {"outcome":"failed","error":"the provider rejected the request (status 400): scripted failure (request id)"}
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_cut_at_the_output_limit_is_continued_at_most_three_times() {
    check(
        "when\n  say \"and\"\n  stop max_tokens\n",
        &expect![[r#"
            user   "go"
            model  "and"
            note   "Your reply was cut off at the output limit. Continue exactly where it stopped." Note("continue")
            model  "and"
            note   "Your reply was cut off at the output limit. Continue exactly where it stopped." Note("continue")
            model  "and"
            note   "Your reply was cut off at the output limit. Continue exactly where it stopped." Note("continue")
            model  "and"
            end    {"outcome":"failed","error":"the model did not come to an end after 3 reminders: Your reply was cut off at the output limit. Continue exactly where it stopped."}
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_pieces_of_a_cut_reply_are_one_answer() {
    let stage = Stage::new("when turn=1\n  say \"one, \"\n  stop max_tokens\nwhen\n  say \"two\"\n");
    let report = "one, two".to_owned();
    assert_eq!(stage.play("go").await.outcome, Outcome::Completed { report, limit: None });
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_a_failure() {
    check(
        "when\n  say \"no\"\n  stop refusal\n",
        &expect![[r#"
        user   "go"
        model  "no"
        end    {"outcome":"failed","error":"the model refused to answer"}
    "#]],
    )
    .await;
}

fn totals(events: &[std::sync::Arc<decurion_protocol::Envelope>]) -> decurion_protocol::Totals {
    events
        .iter()
        .find_map(|envelope| match &envelope.event {
            decurion_protocol::Event::RunEnded { totals, .. } => Some((**totals).clone()),
            _ => None,
        })
        .expect("a run that ended")
}

#[tokio::test(start_paused = true)]
async fn the_same_call_with_the_same_result_is_noticed_and_then_ended() {
    let stage = Stage::new("when\n  call Echo {\"text\": \"again\"}\n");
    let played = stage.play("go").await;
    assert_eq!(stage.requests().len(), 6);
    assert!(matches!(&played.outcome, Outcome::Stalled { waiting_for } if waiting_for.contains("6 times")));
    let fourth = String::from_utf8(stage.requests()[3].clone()).unwrap();
    assert!(fourth.contains("You have made the same call 3 times in a row"), "{fourth}");
    // Another result, or another call in between, and it is no loop.
    let stage = Stage::new(
        "when turn=3\n  call Echo {\"text\": \"other\"}\nwhen turn=9\n  say \"done\"\nwhen\n  call Echo {\"text\": \"again\"}\n",
    );
    let log = stage.log("go").await;
    assert!(log.contains("end    completed"), "{log}");
}
