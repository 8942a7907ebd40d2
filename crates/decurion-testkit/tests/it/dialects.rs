//! What the product writes is what a provider takes: conversations of every shape, written by the real
//! dialects, held against the validator of each.

use std::sync::Arc;

use decurion_model::{Dialect, Head, ModelRequest, ToolSchema};
use decurion_protocol::{Block, CallId, Message, Role, ToolContent};
use decurion_testkit::validate::{ApiError, check_anthropic, check_openai};
use hyper::HeaderMap;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn head() -> Head {
    let tool = |name: &str| ToolSchema {
        name: name.into(),
        description: format!("{name} does things"),
        input_schema: json!({"type": "object", "properties": {"command": {"type": "string"}}}),
    };
    Head {
        model: "test-model".into(),
        system: vec!["You are a tester.".into(), "Today is a day.".into()],
        tools: vec![tool("Bash"), tool("Read")],
        max_output_tokens: 4096,
        ..Head::default()
    }
}

fn body(dialect: Dialect, head: &Head, messages: &[Message]) -> Value {
    let written: Vec<_> = messages.iter().map(|message| dialect.message(message)).collect();
    let request = ModelRequest::new(Arc::new(dialect.head(head)), written);
    let bytes = request.segments().concat();
    assert_eq!(bytes.len() as u64, request.len());
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
}

fn check(dialect: Dialect, body: &Value) -> Result<(), ApiError> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("x-api-key", "test".parse().unwrap());
    headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
    match dialect {
        Dialect::Anthropic => check_anthropic(&headers, body),
        Dialect::OpenAiChat => check_openai(&headers, body),
    }
}

fn is_taken(head: &Head, messages: &[Message]) {
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let body = body(dialect, head, messages);
        check(dialect, &body).unwrap_or_else(|error| panic!("{dialect:?}: {error}\n{body:#}"));
    }
}

#[test]
fn a_first_prompt_is_taken_with_tools_and_without() {
    is_taken(&head(), &[Message::user("go")]);
    is_taken(&Head { tools: Vec::new(), ..head() }, &[Message::user("go")]);
    is_taken(&Head { system: Vec::new(), ..head() }, &[Message::user("go")]);
    let stop =
        Head { stop: vec!["END".into()], temperature: Some(0.5), effort: Some("low".into()), ..head() };
    is_taken(&stop, &[Message::user("go")]);
}

#[test]
fn the_two_dialects_are_not_taken_for_each_other() {
    let messages = [Message::user("go")];
    assert!(check(Dialect::OpenAiChat, &body(Dialect::Anthropic, &head(), &messages)).is_err());
    assert!(check(Dialect::Anthropic, &body(Dialect::OpenAiChat, &head(), &messages)).is_err());
}

/// What a tool may have said, once the engine has seen to it that a failure is never silent.
fn any_content() -> impl Strategy<Value = (ToolContent, bool)> {
    let image = Block::Image { source: json!({"type": "base64", "media_type": "image/png", "data": "aGk="}) };
    prop_oneof![
        ("[a-z\n ]{0,12}", any::<bool>()).prop_map(|(text, failed)| {
            let failed = failed && !text.is_empty();
            (ToolContent::Text(text), failed)
        }),
        Just((ToolContent::Blocks(vec![Block::text("see"), image.clone()]), false)),
        Just((ToolContent::Blocks(vec![image]), false)),
    ]
}

/// One answer of the model and what follows it: calls with their results, and perhaps a note.
#[derive(Clone, Debug)]
struct Turn {
    thinks: bool,
    says: Option<String>,
    results: Vec<(ToolContent, bool)>,
    note: Option<String>,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    (
        any::<bool>(),
        proptest::option::of("[a-z]{1,9}"),
        proptest::collection::vec(any_content(), 0..4),
        proptest::option::of("[a-z]{1,9}"),
    )
        .prop_map(|(thinks, says, results, note)| Turn { thinks, says, results, note })
}

fn conversation(turns: &[Turn]) -> Vec<Message> {
    let mut messages = vec![Message::user("go")];
    for (at, turn) in turns.iter().enumerate() {
        let call = |index: usize| CallId(format!("toolu_{at}_{index}"));
        let mut said = Vec::new();
        if turn.thinks {
            let (thinking, signature) = ("hm".to_owned(), Some(format!("sig_{at}")));
            said.push(Block::Thinking { thinking, signature, extra: Map::new() });
        }
        if turn.says.is_some() || turn.results.is_empty() {
            said.push(Block::text(turn.says.clone().unwrap_or_else(|| "done".into())));
        }
        let mut heard = Vec::new();
        for (index, (content, is_error)) in turn.results.iter().enumerate() {
            said.push(Block::ToolUse {
                id: call(index),
                name: "Bash".into(),
                input: json!({"command": "true"}),
            });
            heard.push(Block::ToolResult { id: call(index), content: content.clone(), is_error: *is_error });
        }
        if heard.is_empty() || turn.note.is_some() {
            heard.push(Block::text(turn.note.clone().unwrap_or_else(|| "go on".into())));
        }
        messages.push(Message::assistant(said));
        messages.push(Message { role: Role::User, blocks: heard });
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_well_formed_conversation_is_taken(turns in proptest::collection::vec(any_turn(), 0..6)) {
        is_taken(&head(), &conversation(&turns));
    }

    #[test]
    fn a_conversation_with_a_result_removed_is_refused(
        turns in proptest::collection::vec(any_turn(), 1..5),
        place in any::<prop::sample::Index>(),
    ) {
        let mut messages = conversation(&turns);
        let is_result = |block: &Block| matches!(block, Block::ToolResult { .. });
        let count = messages.iter().flat_map(|message| &message.blocks).filter(|block| is_result(block)).count();
        prop_assume!(count > 0);
        let mut left = place.index(count);
        for message in &mut messages {
            message.blocks.retain(|block| {
                if !is_result(block) {
                    return true;
                }
                let keep = left != 0;
                left = left.wrapping_sub(1);
                keep
            });
        }
        // Nothing else must be wrong with what is left.
        messages.retain(|message| !message.blocks.is_empty());
        for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
            prop_assert!(check(dialect, &body(dialect, &head(), &messages)).is_err());
        }
    }
}
