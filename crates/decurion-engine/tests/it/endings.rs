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

/// A block of the provider's own work, as it stands at the end of a reply that was paused.
const OWN_WORK: &str =
    r#"block {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}"#;

#[tokio::test(start_paused = true)]
async fn a_paused_reply_is_sent_back_and_continued() {
    let script =
        format!("when turn=1\n  say \"one, \"\n  {OWN_WORK}\n  stop pause_turn\nwhen\n  say \"two\"\n");
    let stage = Stage::new(&script);
    let played = stage.play("go").await;
    assert_eq!(played.outcome, Outcome::Completed { report: "one, two".to_owned(), limit: None });
    let second: serde_json::Value = serde_json::from_slice(&stage.requests()[1]).unwrap();
    let last = second["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "assistant", "nothing is said to a reply that the provider continues");
    assert_eq!(last["content"][1]["type"], "server_tool_use");
    // After a crash between the two replies it is sent back just so.
    let paused = played.events.iter().find(|one| is_reply(&one.event)).unwrap().seq;
    let stage = stage.after_crash_at(paused);
    let start = decurion_protocol::Start::Resume { id: played.session, at: None };
    let request = decurion_protocol::OpenSession { start, ..stage.request.clone() };
    let resumed = stage.play_all(request, &["hello?"]).await.unwrap();
    assert_eq!(resumed.outcome, Outcome::Completed { report: "two".to_owned(), limit: None });
}

fn is_reply(event: &decurion_protocol::Event) -> bool {
    matches!(event, decurion_protocol::Event::Message { message, .. }
        if message.role == decurion_protocol::Role::Assistant)
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_paused_for_ever_is_a_failure() {
    let stage = Stage::new(&format!("when\n  {OWN_WORK}\n  stop pause_turn\n"));
    let outcome = stage.play("go").await.outcome;
    assert!(matches!(&outcome, Outcome::Failed { error } if error.contains("paused")), "{outcome:?}");
    assert_eq!(stage.requests().len(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_reply_cut_by_a_full_window_is_not_the_end() {
    let mut stage = Stage::new(
        "when match=\"about to be shortened\"\n  say \"SUMMARY\"\nwhen first=\"Summary of the conversation\"\n  say \"and the rest\"\n\
         when\n  say \"the report begins \"\n  stop model_context_window_exceeded\n  usage input=190000 output=10000\n",
    );
    let played = stage.play("go").await;
    let report = "the report begins and the rest".to_owned();
    assert_eq!(played.outcome, Outcome::Completed { report, limit: None });
    // One that never ends is no success.
    stage = Stage::new("when\n  say \"and\"\n  stop model_context_window_exceeded\n");
    let outcome = stage.play("go").await.outcome;
    assert!(
        matches!(&outcome, Outcome::Failed { error } if error.contains("window was full")),
        "{outcome:?}"
    );
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
