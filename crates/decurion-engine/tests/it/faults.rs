//! What the model's side may do to a run: retries, resets, odd replies.

use decurion_testkit::stage::{Stage, check};
use expect_test::expect;

#[tokio::test(start_paused = true)]
async fn an_overloaded_provider_is_waited_for() {
    let stage = Stage::new(
        r#"
when try=1
  fail 429 retry-after=7
when try=2
  fail 529
when
  say "there you are"
"#,
    );
    let log = stage.log("go").await;
    assert!(log.contains("wait   try 2") && log.ends_with("end    completed \"there you are\"\n"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_breaks_off_is_asked_for_again_and_no_call_runs_twice() {
    check(
        r#"
when turn=1 try=1
  say "I am about to"
  call Poke {"text": "once"}
  reset after 6 events
when turn=1
  say "again"
  call Poke {"text": "once"}
when turn=2
  say "done"
"#,
        &expect![[r#"
            user   "go"
            wait   try 2 of Some(10) after status None
            charge BrokenOff 240 tokens
            model  "again"
            model  calls Poke {"text":"once"}
            start  Poke (Poke)
            →      "once"
            model  "done"
            end    completed "done"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn blocks_of_unknown_kinds_are_kept_and_sent_back() {
    let stage = Stage::new(
        r#"
when turn=1
  block {"type": "novelty", "data": {"z": 1, "a": [2]}}
  call Echo {"text": "x"}
when turn=2
  say "ok"
"#,
    );
    stage.play("go").await;
    let second = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    assert!(second.contains(r#"{"type":"novelty","data":{"z":1,"a":[2]}}"#), "{second}");
}
