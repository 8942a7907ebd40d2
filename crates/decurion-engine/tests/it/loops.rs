//! The loop: turns, calls, their order and their answers.

use decurion_engine::permission::Undecided;
use decurion_protocol::{Answer, Block, Command, Event, Mode, PermissionUpdate, Place as _, Reply};
use decurion_testkit::stage::{Stage, check, send};
use expect_test::expect;
use futures_util::StreamExt as _;

#[tokio::test(start_paused = true)]
async fn a_reply_without_calls_ends_the_run() {
    check(
        r#"
when turn=1
  say "hello"
"#,
        &expect![[r#"
            user   "go"
            model  "hello"
            end    completed "hello"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn reads_overlap_and_effects_run_alone_in_asking_order() {
    let stage = Stage::new(
        r#"
when turn=1
  say "looking"
  call Echo {"text": "one"}
  call Echo {"text": "two"}
  call Poke {"text": "three"}
  call Echo {"text": "four"}
when turn=2
  say "done"
"#,
    );
    let log = stage.log("go").await;
    let lines: Vec<&str> = log.lines().skip(6).collect();
    // The two reads may end in either order; nothing else has a choice.
    let mut reads = lines[..4].to_vec();
    reads.sort_unstable();
    assert_eq!(
        reads,
        ["start  Echo (Echo)", "start  Echo (Echo)", "→      \"one\"", "→      \"two\""],
        "{log}"
    );
    expect![[r#"
        start  Poke (Poke)
        →      "three"
        start  Echo (Echo)
        →      "four"
        model  "done"
        end    completed "done""#]]
    .assert_eq(&lines[4..].join("\n"));
    // Whatever the order of their ends, the model reads the answers in the order it asked.
    let second = String::from_utf8(stage.requests().pop().unwrap()).unwrap();
    let place = |text: &str| second.find(&format!("\"content\":\"{text}\"")).expect(text);
    assert!(place("one") < place("two") && place("two") < place("three") && place("three") < place("four"));
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_got_wrong_is_an_answer_and_the_run_goes_on() {
    check(
        r#"
when turn=1
  call Poke {"text": "fail"}
  call Poke {"text": "panic"}
  call Echo {"wrong": 1}
  call Nothing {"x": 1}
  call Echo raw "{\"text\": \"cut of"
when turn=2
  say "I see"
"#,
        &expect![[r#"
            user   "go"
            model  calls Poke {"text":"fail"}
            model  calls Poke {"text":"panic"}
            model  calls Echo {"wrong":1}
            model  calls Nothing {"x":1}
            model  calls Echo {"__unparsedToolInput":{"raw":"{\"text\": \"cut of","len":16}}
            start  Poke (Poke)
            ✗      "failed as asked"
            start  Poke (Poke)
            ✗      "Poke failed inside Decurion; this is a bug in it."
            ✗      "<tool_use_error>InputValidationError: Echo failed due to the following issue(s):\nthe required field `text` is missing</tool_use_error>"
            ✗      "<tool_use_error>Error: No such tool available: Nothing. The tools are: Echo, Poke</tool_use_error>"
            ✗      "<tool_use_error>InputValidationError: the input of Echo is not a JSON object. It was cut off or malformed, and was not run. It began: {\"text\": \"cut of</tool_use_error>"
            model  "I see"
            end    completed "I see"
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_must_be_asked_about_is_refused_where_nobody_is() {
    let mut stage = Stage::new(
        r#"
when turn=1
  call Poke {"text": "x"}
when turn=2
  say "I could not"
"#,
    );
    stage.rules.allow.clear();
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"x"}
        refuse Poke: no rule allows this tool; permission cannot be requested in this non-interactive session
        ✗      "Permission denied: no rule allows this tool; permission cannot be requested in this non-interactive session"
        model  "I could not"
        end    {"outcome":"denied","reason":"Poke was not allowed: no rule allows this tool; permission cannot be requested in this non-interactive session","partial":"I could not"}
    "#]].assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn a_question_waits_for_its_answer() {
    let mut stage = Stage::new(
        r#"
when turn=1
  call Poke {"text": "x"}
when turn=2
  say "done"
"#,
    );
    stage.rules.allow.clear();
    stage.request.answers = true;
    stage.answer =
        Some(decurion_protocol::Answer::Allow { input: None, rules: Vec::new(), everywhere: false });
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"x"}
        wait   for an answer
        ask    Poke: no rule allows this tool
        answer by test
        start  Poke (no rule)
        →      "x"
        model  "done"
        end    completed "done"
    "#]]
    .assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn a_denial_with_interrupt_ends_the_turn() {
    let mut stage = Stage::new("when turn=1\n  call Poke {\"text\": \"x\"}\n");
    stage.rules.allow.clear();
    stage.request.answers = true;
    stage.answer = Some(decurion_protocol::Answer::Deny { message: "not now".into(), interrupt: true });
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"x"}
        wait   for an answer
        ask    Poke: no rule allows this tool
        answer by test
        refuse Poke: not now
        ✗      "Permission denied: not now"
        end    {"outcome":"killed","by":"the answer to a question"}
    "#]]
    .assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn the_same_id_twice_becomes_two_ids() {
    let stage = Stage::new(
        r#"
when turn=1
  call Echo as same {"text": "one"}
  call Echo as same {"text": "two"}
when turn=2
  call Echo as same {"text": "three"}
when turn=3
  say "done"
"#,
    );
    let played = stage.play("go").await;
    let ids: Vec<String> = played
        .events
        .iter()
        .filter_map(|envelope| match &envelope.event {
            decurion_protocol::Event::CallEnded { call, .. } => Some(call.to_string()),
            _ => None,
        })
        .collect();
    // Within one reply the decoder renames; across replies the loop does.
    assert_eq!(ids, ["same", "same_2", "same-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_structured_answer_ends_the_run_when_it_fits_its_schema() {
    let mut stage = Stage::new(
        r#"
when turn=1
  say "the answer is 7"
when turn=2
  call StructuredOutput {"number": "seven"}
when turn=3
  call StructuredOutput {"number": 7}
"#,
    );
    stage.request.output_schema = Some(serde_json::json!({
        "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"],
    }));
    expect![[r#"
        user   "go"
        model  "the answer is 7"
        note   "Give your final answer now by calling the StructuredOutput tool once, with an input that satisfies its schema." Note("continue")
        model  calls StructuredOutput {"number":"seven"}
        ✗      "<tool_use_error>InputValidationError: StructuredOutput failed due to the following issue(s):\n/number: \"seven\" is not of type \"integer\"</tool_use_error>"
        model  calls StructuredOutput {"number":7}
        start  StructuredOutput (no rule)
        →      "The answer was taken."
        end    completed "{\"number\":7}"
    "#]].assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn a_question_with_a_time_limit_is_answered_by_nobody() {
    let mut stage = Stage::new(
        r#"
when turn=1
  call Poke {"text": "x"}
when turn=2
  say "done"
"#,
    );
    stage.rules.allow.clear();
    stage.request.answers = true;
    stage.answer_timeout = Some(std::time::Duration::from_secs(30));
    expect![[r#"
        user   "go"
        model  calls Poke {"text":"x"}
        wait   for an answer
        ask    Poke: no rule allows this tool
        answer by nobody
        refuse Poke: no answer within 30 seconds (`permissions.answerTimeout`)
        ✗      "Permission denied: no answer within 30 seconds (`permissions.answerTimeout`)"
        model  "done"
        end    completed "done"
    "#]]
    .assert_eq(&stage.log("go").await);
}

#[tokio::test(start_paused = true)]
async fn dont_ask_denies_what_is_undecided_where_the_settings_say_so() {
    let script = "when turn=1\n  call Poke {\"text\": \"x\"}\nwhen turn=2\n  say \"done\"\n";
    for (undecided, result) in
        [(Undecided::Allow, "→      \"x\""), (Undecided::Deny, "✗      \"Permission denied")]
    {
        let mut stage = Stage::new(script);
        stage.rules.allow.clear();
        stage.request.mode = Some(Mode::DontAsk);
        stage.undecided = undecided;
        let log = stage.log("go").await;
        assert!(log.contains(result), "{undecided:?}:\n{log}");
    }
}

/// Whoever starts a session decides whether it may ever work without asking: later only what was started for it.
#[tokio::test(start_paused = true)]
async fn bypass_is_chosen_later_only_where_the_session_was_started_for_it() {
    let (bypass, plan) = (Some(Mode::BypassPermissions), Some(Mode::Plan));
    for (started, allowed, wanted) in
        [(None, false, false), (plan, false, false), (None, true, true), (bypass, false, true)]
    {
        let update = PermissionUpdate::SetMode { mode: Mode::BypassPermissions };
        let commands =
            [Command::SetMode { mode: Mode::BypassPermissions }, Command::Permit { updates: vec![update] }];
        for command in commands {
            let mut stage = Stage::new("when turn=1\n  say \"done\"\n");
            stage.request.mode = started;
            stage.request.bypass = allowed;
            let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
            send(&link, 1, Command::SetMode { mode: Mode::AcceptEdits }).await;
            send(&link, 2, command.clone()).await;
            let reply = loop {
                let envelope = link.events.next().await.unwrap();
                if let Event::Replied { request, reply } = &envelope.event
                    && request.0 == 2
                {
                    break reply.clone();
                }
            };
            let refused =
                matches!(&reply, Reply::Refused { reason } if reason.contains("--allow-dangerously"));
            assert_eq!(!refused, wanted, "{started:?} {allowed} {command:?}: {reply:?}");
            assert_eq!(matches!(reply, Reply::Done { .. }), wanted);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bypass_that_is_switched_off_is_refused_at_the_start_and_later() {
    let mut stage = Stage::new("when turn=1\n  say \"done\"\n");
    stage.bypass = false;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::SetMode { mode: Mode::BypassPermissions }).await;
    let refused = loop {
        let envelope = link.events.next().await.unwrap();
        if let Event::Replied { reply, .. } = &envelope.event {
            break reply.clone();
        }
    };
    assert!(matches!(&refused, Reply::Refused { reason } if reason.contains("disableBypass")), "{refused:?}");
    stage.request.mode = Some(Mode::BypassPermissions);
    let error = stage.engine().open(stage.request.clone()).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("disableBypassPermissionsMode"), "{error}");
}

/// A turn that is under way keeps its model; the conversation it leaves is the next one's, in that one's form.
#[tokio::test(start_paused = true)]
async fn a_model_of_another_dialect_set_in_the_middle_of_a_turn_reads_what_was_said() {
    let mut stage = Stage::new("when turn=1\n  call Poke {\"text\": \"x\"}\nwhen\n  say \"done\"\n");
    stage.models.push("chat/other".into());
    stage.rules.allow.clear();
    stage.request.answers = true;
    let mut link = stage.engine().open(stage.request.clone()).await.unwrap();
    send(&link, 1, Command::Prompt { blocks: vec![Block::text("go")] }).await;
    while let Some(envelope) = link.events.next().await {
        match &envelope.event {
            Event::Asked { question } => {
                send(&link, 2, Command::SetModel { model: "chat/other".into() }).await;
                let answer = Answer::Allow { input: None, rules: Vec::new(), everywhere: false };
                let command = Command::Answer {
                    question: question.id,
                    answer,
                    updates: Vec::new(),
                    by: "a test".into(),
                };
                send(&link, 3, command).await;
            }
            Event::RunEnded { .. } => break,
            _ => {}
        }
    }
    send(&link, 4, Command::Prompt { blocks: vec![Block::text("again")] }).await;
    stage.listen(&mut link, &mut Vec::new()).await;
    let bodies: Vec<String> =
        stage.requests().into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    let forms = bodies.iter().map(|body| (body.contains("\"tool_use\""), body.contains("\"tool_calls\"")));
    assert_eq!(forms.collect::<Vec<_>>(), [(false, false), (true, false), (false, true)]);
}
