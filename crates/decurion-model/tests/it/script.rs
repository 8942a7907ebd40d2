//! The script format: what it says, how it is read, what is wrong with it where.

use std::time::Duration;

use decurion_model::Dialect;
use decurion_model::script::{
    CallInput, CutEnding, CutPoint, CutUnit, Ids, RequestView, Script, ScriptStep, Stall, WireStep, render,
};
use decurion_protocol::{Block, Message, ToolContent};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::json;

use crate::stage::{all, decode, log, request_in};

fn seen(text: &str) -> RequestView {
    RequestView {
        agent: "main".into(),
        path: "main".into(),
        model: "m".into(),
        turn: 1,
        attempt: 1,
        first_text: text.into(),
        last_message: text.into(),
        last_text: text.into(),
        bytes: 400,
        ..RequestView::default()
    }
}

fn said(script: &str, seen: &RequestView) -> String {
    let plan = Script::parse(script).unwrap().reply(seen);
    match plan {
        Err(hole) => hole.to_string(),
        Ok(plan) => plan
            .steps
            .iter()
            .map(|step| match step {
                ScriptStep::Say { text, .. } => text.clone(),
                ScriptStep::Call { name, input: CallInput::Json(input), .. } => {
                    format!("{name}{}", json!(input))
                }
                other => format!("{other:?}"),
            })
            .collect::<Vec<_>>()
            .join("|"),
    }
}

#[test]
fn the_first_rule_that_fits_answers() {
    let script = r#"
        # agents by type, name or path
        when agent=main turn=1 match="hello"
          say "first"
        when agent=main turn=2..3
          say "second"
        when agent=main/*/deep
          say "deep"
        when agent=explore match=/count (\d+)/i
          say "counted $1"
        when model=gpt-*
          say "a gpt"
        when result=/^exit (?<code>\d+)$/ms
          say "code ${code} in turn ${seen.turn}"
        when text="only text"
          say "text"
        when first=/the (first)/
          say "$1 and $0"
    "#;
    let main = |text: &str, turn: u32| RequestView { turn, ..seen(text) };
    assert_eq!(said(script, &main("oh hello", 1)), "first");
    assert_eq!(said(script, &main("oh hello", 3)), "second");
    let deep = RequestView { agent: "worker".into(), path: "main/a/deep".into(), ..seen("x") };
    assert_eq!(said(script, &deep), "deep");
    let explore =
        RequestView { agent: "explore".into(), path: "main/e1".into(), ..seen("please COUNT 17 files") };
    assert_eq!(said(script, &explore), "counted 17");
    let by_name = RequestView { agent: "worker".into(), path: "main/explore".into(), ..seen("count 2") };
    assert_eq!(said(script, &by_name), "counted 2");
    assert_eq!(said(script, &RequestView { model: "gpt-5".into(), ..main("x", 9) }), "a gpt");
    let result = RequestView { last_result: "noise\nexit 3".into(), ..main("x", 9) };
    assert_eq!(said(script, &result), "code 3 in turn 9");
    assert_eq!(said(script, &main("only text", 9)), "text");
    let first = RequestView { first_text: "the first one".into(), ..main("x", 9) };
    assert_eq!(said(script, &first), "first and the first");
}

#[test]
fn no_rule_is_a_visible_error_that_names_the_request() {
    let hole = said(
        "when turn=2\n say \"x\"",
        &RequestView { agent: "explore".into(), path: "main/e".into(), ..seen("hi") },
    );
    expect![[r#"no rule of the script fits agent "explore" (path "main/e"), turn 1, try 1, whose last message is: "hi""#]]
        .assert_eq(&hole);
}

#[test]
fn captures_go_into_texts_and_inputs_and_other_dollars_stay() {
    let script = r#"
        when match=/(?<dir>\S+) (\S+)/
          say "$2 in ${dir}, $$1 and $${dir} and $9 and ${HOME} and $(pwd) and $"
          call Bash {"command": "echo \"$2\" | awk '{print $9}'", "list": ["$1", {"deep": "${dir}"}], "n": 3}
    "#;
    expect![[r#"b" in a, $1 and ${dir} and $9 and ${HOME} and $(pwd) and $|Bash{"command":"echo \"b\"\" | awk '{print $9}'","list":["a",{"deep":"a"}],"n":3}"#]]
        .assert_eq(&said(script, &seen("a b\"")));
}

#[test]
fn every_step_is_read() {
    let script = r#"
when try=1..2 within=1m
  think chunk=2 "hmm"
  say <<END
    indented
      text with "quotes"

    END of it
  END
  call Write {"file_path": "/x"} content=<<EOF
    line one
    line two
  EOF
  call Bash command="ls" timeout=5 flags=["a", "b"]   # a comment
  call Bash as toolu_same raw "{\"cut"
  block {"type": "redacted_thinking", "data": "zz"}
  delay 1.5s
  error overloaded_error "busy"
  raw "data: x\n\n"
  malformed json
  stop max_tokens
  usage input=1_000 output=20 cache_read=3 cache_write=4
  model other-model
  message-id msg_fixed
  split every 7
  split at 100
  reset after 30 bytes
"#;
    let script = Script::parse(script).unwrap();
    assert!(script.counts_tries() && script.looks_at_time());
    let plan = script.reply(&seen("x")).unwrap();
    assert_eq!(plan.steps[0], ScriptStep::Think { text: "hmm".into(), chunk: 2, every: Duration::ZERO });
    let ScriptStep::Say { text, .. } = &plan.steps[1] else { panic!() };
    assert_eq!(text, "indented\n  text with \"quotes\"\n\nEND of it");
    let ScriptStep::Call { input: CallInput::Json(input), .. } = &plan.steps[2] else { panic!() };
    assert_eq!(json!(input), json!({"file_path": "/x", "content": "line one\nline two"}));
    let ScriptStep::Call { input: CallInput::Json(input), .. } = &plan.steps[3] else { panic!() };
    assert_eq!(json!(input), json!({"command": "ls", "timeout": 5, "flags": ["a", "b"]}));
    let cut = ScriptStep::Call {
        name: "Bash".into(),
        id: Some("toolu_same".into()),
        input: CallInput::Raw("{\"cut".into()),
    };
    assert_eq!(plan.steps[4], cut);
    assert_eq!(plan.steps[6], ScriptStep::Delay(Duration::from_millis(1500)));
    assert_eq!(plan.stop.as_deref(), Some("max_tokens"));
    assert_eq!((plan.usage.input_tokens, plan.usage.cache_creation_input_tokens), (1000, 4));
    assert_eq!(plan.cut, Some(CutPoint { after: 30, unit: CutUnit::Bytes, ending: CutEnding::Reset }));
    assert_eq!(plan.splits.len(), 2);
    assert_eq!(plan.line, 2);
    for (text, stall) in [
        ("stall", Stall::Silent),
        ("stall pings", Stall::Pings(Duration::from_secs(5))),
        ("stall empty every=10ms", Stall::Empty(Duration::from_millis(10))),
    ] {
        let plan = Script::parse(&format!("when\n{text}")).unwrap().reply(&seen("x")).unwrap();
        assert_eq!(plan.steps, [ScriptStep::Stall(stall)]);
    }
}

fn wrong(script: &str, expected: &Expect) {
    expected.assert_eq(&Script::parse(script).unwrap_err().to_string());
}

#[test]
fn mistakes_are_shown_where_they_are() {
    wrong("", &expect!["line 1, column 1: the script has no rule"]);
    wrong("say \"x\"", &expect![[r#"line 1, column 1: a script begins with `when`, not with "say""#]]);
    wrong("when agent", &expect![[r#"line 1, column 6: expected name=value, not "agent""#]]);
    wrong(
        "when who=me",
        &expect![[
            r#"line 1, column 6: no such condition (there are agent, model, turn, try, within, match, text, result, first): "who""#
        ]],
    );
    wrong(
        "when turn=0",
        &expect![[r#"line 1, column 11: expected a number from 1 on, `2..4` or `2..`, not "0""#]],
    );
    wrong("when match=/a(/", &expect!["line 1, column 12: the pattern cannot be read: unclosed group"]);
    wrong("when match=/a", &expect!["line 1, column 12: the pattern has no closing `/`"]);
    wrong(
        "when\n  shout \"x\"",
        &expect![[
            r#"line 2, column 3: no such step (there are say, think, call, block, stop, usage, model, message-id, delay, fail, status, error, raw, malformed, reset, close, stall, panic, split): "shout""#
        ]],
    );
    wrong(
        "when\n  say x",
        &expect!["line 2, column 7: expected a text in double quotes, or <<END and lines up to END"],
    );
    wrong("when\n  say \"x\" y", &expect![[r#"line 2, column 11: expected the end of the line, not "y""#]]);
    wrong("when\n  say <<END\n  text\n", &expect!["line 2, column 7: no line closes this text: END"]);
    wrong(
        "when\n  call Bash {\"a\": 1,\n  }",
        &expect!["line 3, column 3: expected a JSON object: trailing comma"],
    );
    wrong(
        "when\n  call Bash {\"a\": 1} a=2",
        &expect!["line 2, column 22: the input has this member already"],
    );
    wrong(
        "when\n  delay soon",
        &expect![[r#"line 2, column 9: expected a time such as 200ms, 2s or 3m, not "soon""#]],
    );
    wrong("when\n  fail 9999", &expect!["line 2, column 8: not an HTTP status: 9999"]);
    wrong("when\n  fail 429 when=now", &expect![[r#"line 2, column 12: no such part of a failure: "when""#]]);
    wrong(
        "when\n  reset after 3 apples",
        &expect![[r#"line 2, column 17: expected bytes or events, not "apples""#]],
    );
    wrong(
        "when\n  malformed everything",
        &expect![[
            r#"line 2, column 13: no such damage (there are json, utf8, order, html, line N; for other bytes use raw): "everything""#
        ]],
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(when|say|call|[a-z]{1,5}|[ \n\t\"{}/<=#$0-9éß\\\\]){0,60}") {
        let _ = Script::parse(&text);
        let _ = Script::parse(&format!("when\n{text}"));
        let _ = Script::parse(&format!("when {text}"));
    }
}

fn steps(script: &str, dialect: Dialect) -> Vec<WireStep> {
    let seen = seen("x");
    render(&Script::parse(script).unwrap().reply(&seen).unwrap(), dialect, &Ids::of(&seen))
}

fn body(steps: &[WireStep]) -> Vec<u8> {
    let parts = steps.iter().filter_map(|step| match step {
        WireStep::Bytes(bytes) => Some(bytes.to_vec()),
        _ => None,
    });
    parts.collect::<Vec<_>>().concat()
}

const RICH: &str = r#"
when
  think "let me see"
  say chunk=3 "hello you"
  call Read {"file_path": "/a"}
  call Bash {"command": "ls"}
  usage input=10 output=5 cache_read=7
"#;

#[test]
fn both_dialects_of_a_plan_decode_to_the_same_reply() {
    let (events, error) = decode(Dialect::Anthropic, [body(&steps(RICH, Dialect::Anthropic)).as_slice()]);
    assert_eq!(error, None);
    expect![[r#"
        started msg_MESSAGE m
        0 starts {"type":"thinking","thinking":""}
        0 thinking "let me see"
        0 signature SIGNATURE
        0 ends
        0 = {"type":"thinking","thinking":"let me see","signature":"SIGNATURE"}
        1 starts {"type":"text","text":""}
        1 text "hel"
        1 text "lo "
        1 text "you"
        1 ends
        1 = {"type":"text","text":"hello you"}
        2 starts {"type":"tool_use","id":"toolu_2","name":"Read","input":{}}
        2 input {"file_path":"/a"}
        2 ends
        2 = {"type":"tool_use","id":"toolu_2","name":"Read","input":{"file_path":"/a"}}
        3 starts {"type":"tool_use","id":"toolu_3","name":"Bash","input":{}}
        3 input {"command":"ls"}
        3 ends
        3 = {"type":"tool_use","id":"toolu_3","name":"Bash","input":{"command":"ls"}}
        ended Some("tool_use")
        completed msg_MESSAGE m stop Some("tool_use") usage {"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":7}"#]]
    .assert_eq(&anonymous(&log(&events)));
    let (events, error) = decode(Dialect::OpenAiChat, [body(&steps(RICH, Dialect::OpenAiChat)).as_slice()]);
    assert_eq!(error, None);
    expect![[r#"
        started chatcmpl-MESSAGE m
        0 starts {"type":"thinking","thinking":""}
        0 thinking "let me see"
        0 ends
        0 = {"type":"thinking","thinking":"let me see"}
        1 starts {"type":"text","text":""}
        1 text "hel"
        1 text "lo "
        1 text "you"
        1 ends
        1 = {"type":"text","text":"hello you"}
        2 starts {"type":"tool_use","id":"call_0","name":"Read","input":{}}
        2 input {"file_path":"/a"}
        3 starts {"type":"tool_use","id":"call_1","name":"Bash","input":{}}
        3 input {"command":"ls"}
        2 ends
        2 = {"type":"tool_use","id":"call_0","name":"Read","input":{"file_path":"/a"}}
        3 ends
        3 = {"type":"tool_use","id":"call_1","name":"Bash","input":{"command":"ls"}}
        ended Some("tool_use")
        completed chatcmpl-MESSAGE m stop Some("tool_use") usage {"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":7}"#]]
    .assert_eq(&anonymous(&log(&events)));
}

/// The log with ids that do not change when the way to make them does.
fn anonymous(log: &str) -> String {
    let ids = Ids::of(&seen("x"));
    let mut log = log.to_owned();
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let message = ids.message(dialect);
        let prefix = message.split_at(message.len() - 24).0.to_owned();
        log = log.replace(&message, &format!("{prefix}MESSAGE"));
        for index in 0..4 {
            let call = ids.call(dialect, index);
            let prefix = call.split_at(call.len() - 24).0.to_owned();
            log = log.replace(&call, &format!("{prefix}{index}"));
        }
    }
    let signature = log.find("sig_").map(|at| log[at..at + 28].to_owned());
    signature.map_or(log.clone(), |signature| log.replace(&signature, "SIGNATURE"))
}

#[test]
fn pieces_of_a_text_come_one_by_one() {
    for (dialect, verb) in
        [(Dialect::Anthropic, "say"), (Dialect::Anthropic, "think"), (Dialect::OpenAiChat, "say")]
    {
        let script = |every: &str| format!("when\n {verb} chunk=2 {every} \"hello\"");
        let slow = steps(&script("every=40ms"), dialect);
        // A thought is sealed by one piece more.
        let pieces = if verb == "think" { 4 } else { 3 };
        let waits = slow.iter().filter(|step| **step == WireStep::Wait(Duration::from_millis(40))).count();
        assert_eq!(waits, pieces, "{slow:?}");
        assert_eq!(body(&slow), body(&steps(&script(""), dialect)));
    }
    let wrong = Script::parse("when\n say every=fast \"x\"").unwrap_err().to_string();
    assert!(wrong.contains("fast"), "{wrong}");
}

#[test]
fn failures_waits_cuts_and_splits_become_steps() {
    let all =
        steps("when\n delay 2s\n fail 429 retry-after=2 header.X-Test=1 \"slow down\"", Dialect::Anthropic);
    let WireStep::Head { status: 429, headers } = &all[1] else { panic!("{all:?}") };
    assert_eq!(all[0], WireStep::Wait(Duration::from_secs(2)));
    for (name, value) in [("retry-after", "2"), ("x-test", "1"), ("content-type", "application/json")] {
        assert!(headers.contains(&(name.into(), value.into())), "{headers:?}");
    }
    assert!(
        String::from_utf8(body(&all)).unwrap().contains(r#""type":"rate_limit_error","message":"slow down""#)
    );
    assert_eq!(steps("when\n reset", Dialect::Anthropic), [WireStep::Reset]);
    assert_eq!(steps("when\n panic", Dialect::Anthropic), [WireStep::Panic]);
    assert_eq!(steps("when\n stall", Dialect::OpenAiChat), [WireStep::Stall]);
    let whole = body(&steps(RICH, Dialect::Anthropic));
    for at in [0, 1, 77, whole.len(), whole.len() + 9] {
        let cut = steps(&format!("{RICH}\n reset after {at} bytes"), Dialect::Anthropic);
        assert_eq!(body(&cut), whole[..at.min(whole.len())]);
        assert_eq!(cut.last(), Some(&WireStep::Reset));
    }
    let split = steps(&format!("{RICH}\n split every 10\n split at 15"), Dialect::Anthropic);
    assert_eq!(body(&split), whole);
    let lengths: Vec<usize> = split
        .iter()
        .filter_map(|step| if let WireStep::Bytes(bytes) = step { Some(bytes.len()) } else { None })
        .collect();
    assert_eq!(lengths[..4], [10, 5, 5, 10]);
    let page = steps("when\n status 502 content-type=text/html \"<html>\"", Dialect::OpenAiChat);
    assert_eq!(body(&page), b"<html>");
}

#[tokio::test]
async fn what_a_script_sees_is_the_same_in_both_dialects() {
    let call =
        Block::ToolUse { id: decurion_protocol::CallId("t".into()), name: "Bash".into(), input: json!({}) };
    let result = Block::ToolResult {
        id: decurion_protocol::CallId("t".into()),
        content: ToolContent::Text("exit 1".into()),
        is_error: false,
    };
    let messages = [
        Message::user("do it"),
        Message::assistant(vec![call]),
        Message { role: decurion_protocol::Role::User, blocks: vec![result, Block::text("and a note")] },
    ];
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let request = request_in(dialect, &messages);
        let seen = RequestView::from_request(&request).unwrap();
        assert_eq!((seen.turn, seen.first_text.as_str()), (2, "do it"));
        assert_eq!((seen.last_result.as_str(), seen.last_text.as_str()), ("exit 1", "and a note"));
        assert_eq!(seen.last_message, "exit 1\nand a note");
        let body: Vec<u8> = request.segments().concat();
        assert_eq!(RequestView::from_body("main", "main", &body).unwrap(), seen);
    }
}

#[tokio::test]
async fn a_request_sent_again_gets_the_same_reply_with_the_same_ids() {
    let player =
        crate::stage::Player::new("when\n call Bash {\"command\":\"ls\"}\n call Bash {\"command\":\"ls\"}");
    let first = all(&*player, crate::stage::request("go")).await;
    let again = all(&*player, crate::stage::request("go")).await;
    assert_eq!(first, again);
    let other = all(&*player, crate::stage::request("go on")).await;
    assert_ne!(log(&first.0), log(&other.0));
    let ids: Vec<String> = first
        .0
        .iter()
        .filter_map(|event| match event {
            decurion_model::ModelEvent::Block { block: Block::ToolUse { id, .. }, .. } => {
                Some(id.to_string())
            }
            _ => None,
        })
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids[0].starts_with("toolu_"), "{ids:?}");
}

#[test]
fn every_script_of_the_manual_can_be_read() {
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/scripts.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let scripts: Vec<&str> =
        manual.split("```text\n").skip(1).map(|part| part.split("```").next().unwrap()).collect();
    assert!(scripts.len() >= 5);
    for script in &scripts {
        Script::parse(script).unwrap_or_else(|error| panic!("{error} in\n{script}"));
    }
    // The steps in the tables too: each is one in backquotes at the start of a row.
    for row in manual.lines().filter_map(|line| line.strip_prefix("| `")) {
        let first = row.split('`').next().unwrap();
        let script = match first.split_once('=') {
            Some((word, _)) if !word.contains(' ') => format!("when {first}\n say \"x\""),
            _ => format!("when\n {first}"),
        };
        let script =
            script.replace("match=…", "match=x").replace("text=…", "text=x").replace("first=…", "first=x");
        let script = script.replace("result=…", "result=x").replace("{…}", "{}");
        Script::parse(&script).unwrap_or_else(|error| panic!("{error} in {script}"));
    }
    let first = Script::parse(scripts[0]).unwrap();
    let second = RequestView { turn: 2, last_result: "fn add(a: i32)".into(), ..seen("x") };
    let plan = first.reply(&second).unwrap();
    assert_eq!(
        plan.steps[0],
        ScriptStep::Say { text: "The function is add.".into(), chunk: 64, every: Duration::ZERO }
    );
}
