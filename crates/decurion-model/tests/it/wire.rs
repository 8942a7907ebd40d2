//! What goes onto the wire: heads, messages, the moving cache mark, and bodies that are never joined.

use std::sync::Arc;

use decurion_model::openai_chat::usual_limit_field;
use decurion_model::{
    Dialect, Head, ModelRequest, OutputLimitField, RequestTag, Thinking, ToolSchema, WireMessage,
};
use decurion_protocol::{Block, CallId, Message, Role, ToolContent};
use expect_test::expect;
use http_body::Body;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::stage::request_in;

fn rich_head() -> Head {
    Head {
        model: "m\"1".into(),
        system: vec!["one".into(), " ".into(), "two".into()],
        tools: vec![ToolSchema {
            name: "Bash".into(),
            description: "run".into(),
            input_schema: json!({"type":"object","properties":{"z":{},"a":{}}}),
        }],
        max_output_tokens: 99,
        thinking: Some(Thinking::Adaptive { display: None }),
        effort: Some("high".into()),
        temperature: Some(0.5),
        stop: vec!["STOP".into()],
        output_limit_field: OutputLimitField::MaxCompletionTokens,
        extra: json!({"metadata":{"user_id":"u"}}).as_object().unwrap().clone(),
    }
}

fn body_of(request: &ModelRequest) -> String {
    String::from_utf8(request.segments().concat()).unwrap()
}

#[test]
fn an_anthropic_head_has_the_order_model_settings_tools_system() {
    let head = Dialect::Anthropic.head(&rich_head());
    expect![[r#"{"model":"m\"1","max_tokens":99,"stream":true,"temperature":0.5,"thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"stop_sequences":["STOP"],"metadata":{"user_id":"u"},"tools":[{"name":"Bash","description":"run","input_schema":{"type":"object","properties":{"z":{},"a":{}}}}],"system":[{"type":"text","text":"one","cache_control":{"type":"ephemeral"}},{"type":"text","text":"two","cache_control":{"type":"ephemeral"}}],"messages":["#]]
        .assert_eq(std::str::from_utf8(&head.prefix).unwrap());
    let other = head.with_model("other");
    assert!(other.prefix.starts_with(b"{\"model\":\"other\",\"max_tokens\":99,"));
    assert_eq!(other.prefix.len(), head.prefix.len() - "m\\\"1".len() + "other".len());
}

#[test]
fn no_more_than_four_cache_marks_are_ever_sent() {
    let system = (0..6).map(|number| format!("block {number}")).collect();
    let head = Head { system, ..rich_head() };
    let dialect = Dialect::Anthropic;
    let messages: Vec<_> = (0..9).map(|_| dialect.message(&Message::user("x"))).collect();
    let body = body_of(&ModelRequest::new(Arc::new(dialect.head(&head)), messages));
    assert_eq!(body.matches("cache_control").count(), 4, "{body}");
}

#[test]
fn a_chat_head_holds_the_system_prompt_as_first_message() {
    let head = Dialect::OpenAiChat.head(&rich_head());
    expect![[r#"{"model":"m\"1","max_completion_tokens":99,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"reasoning_effort":"high","stop":["STOP"],"metadata":{"user_id":"u"},"tools":[{"type":"function","function":{"name":"Bash","description":"run","parameters":{"type":"object","properties":{"z":{},"a":{}}}}}],"messages":[{"role":"system","content":"one\n\ntwo"}"#]]
        .assert_eq(std::str::from_utf8(&head.prefix).unwrap());
    assert!(head.opened);
}

fn conversation() -> Vec<Message> {
    let id = || CallId("t1".into());
    let image = || Block::Image { source: json!({"type":"base64","media_type":"image/png","data":"AAAA"}) };
    vec![
        Message { role: Role::User, blocks: vec![Block::text("look"), Block::text(""), image()] },
        Message::assistant(vec![
            Block::Thinking {
                thinking: "hm".into(),
                signature: Some("s".into()),
                extra: serde_json::Map::new(),
            },
            Block::Thinking { thinking: "unsealed".into(), signature: None, extra: serde_json::Map::new() },
            Block::Opaque(json!({"type":"redacted_thinking","data":"zz"})),
            Block::text("I look"),
            Block::ToolUse { id: id(), name: "Bash".into(), input: json!({"z":1,"a":"b"}) },
            Block::ToolUse { id: CallId("f.B:0".into()), name: "Read".into(), input: json!({}) },
        ]),
        Message {
            role: Role::User,
            blocks: vec![
                Block::ToolResult {
                    id: id(),
                    content: ToolContent::Blocks(vec![Block::text("seen"), Block::text(""), image()]),
                    is_error: false,
                },
                Block::ToolResult { id: CallId("f.B:0".into()), content: "gone".into(), is_error: true },
                Block::text("a note"),
            ],
        },
    ]
}

/// OpenAI refuses tools together with reasoning effort from gpt-5.2 on, and some models have one unless told otherwise.
#[test]
fn newer_models_of_openai_are_asked_without_effort_where_there_are_tools() {
    let effort = |model: &str, tools: bool| {
        let mut head = Head { model: model.into(), effort: Some("high".into()), ..rich_head() };
        if !tools {
            head.tools.clear();
        }
        let text = String::from_utf8(Dialect::OpenAiChat.head(&head).prefix.to_vec()).unwrap();
        let at = text.find("\"reasoning_effort\":\"").unwrap() + "\"reasoning_effort\":\"".len();
        text[at..].split('"').next().unwrap().to_owned()
    };
    for (model, tools, expected) in [
        ("gpt-5.4", true, "none"),
        ("gpt-5.4-mini-2026-03-17", true, "none"),
        ("gpt-6.1-terra", true, "none"),
        ("gpt-5.4", false, "high"),
        ("gpt-5", true, "high"),
        ("openai/gpt-5.4", true, "high"),
        ("qwen3", true, "high"),
    ] {
        assert_eq!(effort(model, tools), expected, "{model} {tools}");
    }
    for (model, field) in [
        ("gpt-5.4", OutputLimitField::MaxCompletionTokens),
        ("o3-mini", OutputLimitField::MaxCompletionTokens),
        ("gpt-4o", OutputLimitField::MaxTokens),
        ("gpt-oss:20b", OutputLimitField::MaxTokens),
        ("olmo", OutputLimitField::MaxTokens),
    ] {
        assert_eq!(usual_limit_field(model), field, "{model}");
    }
}

#[test]
fn an_anthropic_conversation() {
    let body = body_of(&request_in(Dialect::Anthropic, &conversation()));
    let value: Value = serde_json::from_str(&body).unwrap();
    expect![[r#"
        {"role":"user","content":[{"type":"text","text":"look"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"zz"},{"type":"text","text":"I look"},{"type":"tool_use","id":"t1","name":"Bash","input":{"z":1,"a":"b"}},{"type":"tool_use","id":"f_B_0","name":"Read","input":{}}]}
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"seen"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},{"type":"tool_result","tool_use_id":"f_B_0","content":"gone","is_error":true},{"type":"text","text":"a note","cache_control":{"type":"ephemeral"}}]}"#]]
    .assert_eq(&lines(&value));
}

#[test]
fn a_chat_conversation() {
    let body = body_of(&request_in(Dialect::OpenAiChat, &conversation()));
    let value: Value = serde_json::from_str(&body).unwrap();
    expect![[r#"
        {"role":"system","content":"be brief"}
        {"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}
        {"role":"assistant","content":"I look","tool_calls":[{"id":"t1","type":"function","function":{"name":"Bash","arguments":"{\"z\":1,\"a\":\"b\"}"}},{"id":"f.B:0","type":"function","function":{"name":"Read","arguments":"{}"}}]}
        {"role":"tool","tool_call_id":"t1","content":"seen"}
        {"role":"tool","tool_call_id":"f.B:0","content":"Error: gone"}
        {"role":"user","content":[{"type":"text","text":"[from the result of the call t1]"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"text","text":"a note"}]}"#]]
    .assert_eq(&lines(&value));
}

fn lines(request: &Value) -> String {
    let messages = request["messages"].as_array().unwrap();
    messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn small_rules_of_chat_messages() {
    let one = |blocks: Vec<Block>, role: Role| {
        let message = Dialect::OpenAiChat.message(&Message { role, blocks });
        String::from_utf8(message.bytes.to_vec()).unwrap()
    };
    let result = |content: ToolContent, is_error: bool| {
        vec![Block::ToolResult { id: CallId("t".into()), content, is_error }]
    };
    let call = vec![Block::ToolUse { id: CallId("t".into()), name: "B".into(), input: json!({}) }];
    expect![[r#"{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"B","arguments":"{}"}}]}"#]].assert_eq(&one(call, Role::Assistant));
    expect![[r#"{"role":"tool","tool_call_id":"t","content":"(no output)"}"#]]
        .assert_eq(&one(result("".into(), false), Role::User));
    expect![[r#"{"role":"tool","tool_call_id":"t","content":"<tool_use_error>x</tool_use_error>"}"#]]
        .assert_eq(&one(result("<tool_use_error>x</tool_use_error>".into(), true), Role::User));
    let thinking = Block::Thinking { thinking: "x".into(), signature: None, extra: serde_json::Map::new() };
    assert_eq!(one(vec![thinking], Role::Assistant), "");
    expect![[r#"{"role":"user","content":"a\n\nb"}"#]]
        .assert_eq(&one(vec![Block::text("a"), Block::text("b")], Role::User));
    let document = Block::Document { source: json!({}) };
    assert!(one(vec![document], Role::User).contains("a document was left out"));
    let linked = Block::Image { source: json!({"type":"url","url":"https://x/y.png"}) };
    assert!(one(vec![linked], Role::User).contains(r#"{"url":"https://x/y.png"}"#));
}

#[test]
fn the_cache_mark_moves_and_nothing_else_changes() {
    let dialect = Dialect::Anthropic;
    let head = Arc::new(dialect.head(&crate::stage::head()));
    let mut messages = vec![dialect.message(&Message::user("a"))];
    let first = ModelRequest::new(head.clone(), messages.clone());
    messages.push(dialect.message(&Message::assistant(vec![Block::text("b")])));
    messages.push(dialect.message(&Message::user("c")));
    let second = ModelRequest::new(head.clone(), messages.clone());
    let mark = r#","cache_control":{"type":"ephemeral"}"#;
    let (one, two) = (body_of(&first), body_of(&second));
    assert!(one.ends_with(&format!(r#"{{"type":"text","text":"a"{mark}}}]}}]}}"#)), "{one}");
    assert!(two.ends_with(&format!(r#"{{"type":"text","text":"c"{mark}}}]}}]}}"#)), "{two}");
    let system = "\"messages\":[";
    let unmarked = |text: &str| text.split_once(system).unwrap().1.replace(mark, "");
    assert!(unmarked(&two).starts_with(unmarked(&one).trim_end_matches("]}")));
    // The bytes are shared, not copied.
    assert_eq!(first.segments()[1].as_ptr(), second.segments()[1].as_ptr());
    assert_eq!(second.shared_prefix(&first), (head.prefix.len() + first.messages[0].bytes.len()) as u64);
    assert_eq!(second.shared_prefix(&second), (two.len() - mark.len() - 2) as u64);
}

#[test]
fn a_message_that_cannot_be_marked_leaves_the_mark_to_one_before() {
    let dialect = Dialect::Anthropic;
    let sealed = Block::Thinking {
        thinking: String::new(),
        signature: Some("s".into()),
        extra: serde_json::Map::new(),
    };
    let messages = [Message::user("a"), Message::assistant(vec![sealed])];
    let body = body_of(&request_in(dialect, &messages));
    assert!(body.contains(r#"{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}"#), "{body}");
    assert!(body.ends_with(r#","signature":"s"}]}]}"#), "{body}");
    let nothing = request_in(dialect, &[Message::assistant(vec![Block::text(" ")]), Message::user("b")]);
    let value: Value = serde_json::from_str(&body_of(&nothing)).unwrap();
    assert_eq!(value["messages"].as_array().unwrap().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_body_has_exactly_its_length_and_is_whole(
        lengths in prop::collection::vec(0_usize..200_000, 0..8),
        small in prop::collection::vec(0_usize..300, 0..300),
        chat: bool,
    ) {
        let dialect = if chat { Dialect::OpenAiChat } else { Dialect::Anthropic };
        let messages: Vec<WireMessage> = small.iter().chain(&lengths)
            .map(|length| dialect.message(&Message::user("x".repeat(*length)))).collect();
        let request = ModelRequest {
            tag: RequestTag::default(),
            ..ModelRequest::new(Arc::new(dialect.head(&crate::stage::head())), messages)
        };
        let whole = request.segments().concat();
        prop_assert_eq!(request.len(), whole.len() as u64);
        prop_assert!(serde_json::from_slice::<Value>(&whole).is_ok());
        let mut body = request.body();
        prop_assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        let mut sent = Vec::new();
        let mut frames = 0;
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        while let std::task::Poll::Ready(Some(Ok(frame))) = std::pin::Pin::new(&mut body).poll_frame(&mut context) {
            let data = frame.into_data().unwrap();
            prop_assert!(!data.is_empty());
            sent.extend_from_slice(&data);
            frames += 1;
        }
        prop_assert_eq!(body.size_hint().exact(), Some(0));
        prop_assert!(sent == whole);
        // Small segments are gathered: large ones stand alone, between them at most one gathered frame and a
        // rest, and nothing is sent in crumbs.
        prop_assert!(frames <= 2 * lengths.len() + 4 + whole.len() / 32_768, "{} frames for {}", frames, whole.len());
    }
}
