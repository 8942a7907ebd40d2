//! For any script: folding the journal gives the live conversation at every prefix, and any prefix, also one
//! with any record removed, yields a request that the provider's own rules accept.

use decurion_engine::context::{Context, Media};
use decurion_model::{Dialect, Head, ModelRequest};
use decurion_protocol::{Envelope, Event, Role};
use decurion_testkit::stage::Stage;
use decurion_testkit::validate::HeaderMap;
use decurion_testkit::validate::{check_anthropic, check_openai};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::fmt::Write as _;
use std::sync::Arc;

/// One step of a scripted turn.
#[derive(Clone, Debug)]
enum Step {
    Say(String),
    Think(String),
    Call { tool: &'static str, text: &'static str },
    Raw,
}

fn any_step() -> impl Strategy<Value = Step> {
    let text = prop_oneof![Just(" ".to_owned()), "[a-z\u{e9}\u{1F600} \\\\]{1,12}"];
    prop_oneof![
        3 => text.clone().prop_map(Step::Say),
        1 => "[a-z]{1,8}".prop_map(Step::Think),
        5 => (
            prop_oneof![Just("Echo"), Just("Poke"), Just("Nothing")],
            prop_oneof![Just("a"), Just("fail"), Just("panic"), Just(""), Just("see /x")],
        )
            .prop_map(|(tool, text)| Step::Call { tool, text }),
        1 => Just(Step::Raw),
    ]
}

fn script(turns: &[Vec<Step>]) -> String {
    let mut script = String::new();
    for (index, steps) in turns.iter().enumerate() {
        writeln!(script, "when turn={}", index + 1).unwrap();
        for step in steps {
            match step {
                Step::Say(text) => writeln!(script, "  say {}", serde_json::json!(text)),
                Step::Think(text) => writeln!(script, "  think {}", serde_json::json!(text)),
                Step::Call { tool, text } => {
                    writeln!(script, "  call {tool} {{\"text\": {}}}", serde_json::json!(text))
                }
                Step::Raw => writeln!(script, "  call Echo raw \"{{\""),
            }
            .unwrap();
        }
        if !steps.iter().any(|step| matches!(step, Step::Say(text) if !text.trim().is_empty())) {
            writeln!(script, "  say \"so\"").unwrap();
        }
    }
    script.push_str("when\n  say \"the end\"\n");
    script
}

fn body(dialect: Dialect, context: &mut Context) -> Vec<u8> {
    let head = Head { model: "scripted".into(), max_output_tokens: 10, ..Head::default() };
    ModelRequest::new(Arc::new(dialect.head(&head)), context.request(Media::Sent)).segments().concat()
}

fn valid(dialect: Dialect, context: &mut Context) -> Result<(), String> {
    let body: serde_json::Value =
        serde_json::from_slice(&body(dialect, context)).map_err(|e| e.to_string())?;
    let mut headers = HeaderMap::new();
    headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
    headers.insert("x-api-key", "k".parse().unwrap());
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("authorization", "Bearer k".parse().unwrap());
    let mut body = body;
    if body["messages"].to_string().contains("tool") {
        // A request that holds calls must name tools; this property is about the messages.
        body["tools"] = match dialect {
            Dialect::Anthropic => serde_json::json!([{"name": "Echo", "input_schema": {"type": "object"}}]),
            Dialect::OpenAiChat => serde_json::json!([{"type": "function",
                "function": {"name": "Echo", "parameters": {"type": "object"}}}]),
        };
    }
    let checked = match dialect {
        Dialect::Anthropic => check_anthropic(&headers, &body),
        Dialect::OpenAiChat => check_openai(&headers, &body),
    };
    checked.map_err(|error| format!("{}: {body}", error.message))
}

fn fold<'a>(dialect: Dialect, events: impl IntoIterator<Item = &'a Envelope>) -> Context {
    let mut context = Context::new(dialect);
    events.into_iter().for_each(|envelope| context.apply(&envelope.event));
    context
}

/// The messages part of a request body.
fn messages(body: &[u8]) -> serde_json::Value {
    let mut body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let mut messages = body["messages"].take();
    if let Some(list) = messages.as_array_mut() {
        list.retain(|message| message["role"] != "system");
    }
    messages
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn folding_the_journal_gives_the_live_conversation_at_every_prefix() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut prefixes = 0u64;
    let mut removed = 0u64;
    let turns = prop::collection::vec(prop::collection::vec(any_step(), 0..4), 0..5);
    let dialects = prop_oneof![Just(Dialect::Anthropic), Just(Dialect::OpenAiChat)];
    let mut runner = runner(120);
    let counts = std::cell::RefCell::new((&mut prefixes, &mut removed));
    runner
        .run(&(turns, dialects), |(turns, dialect)| {
            let mut stage = Stage::new(&script(&turns));
            stage.dialect = dialect;
            let events = runtime.block_on(async {
                let played = stage.play("go").await;
                let archive = stage.archive();
                let Some(decurion_store::Found::Ours(paths)) = archive.find(played.session, &[]) else {
                    panic!("no transcript");
                };
                archive.since(&paths, 0).unwrap()
            });
            let live = stage.requests();
            let mut asked = 0;
            for length in 0..=events.len() {
                let mut context = fold(dialect, &events[..length]);
                valid(dialect, &mut context).map_err(TestCaseError::fail)?;
                *counts.borrow_mut().0 += 1;
                let is_reply = events.get(length).is_some_and(|envelope| {
                    matches!(&envelope.event, Event::Message { message, .. } if message.role == Role::Assistant)
                });
                if is_reply {
                    let folded = messages(&body(dialect, &mut fold(dialect, &events[..length])));
                    prop_assert_eq!(&folded, &messages(&live[asked]), "request {}", asked);
                    asked += 1;
                }
            }
            prop_assert_eq!(asked, live.len());
            for without in 0..events.len() {
                let rest = events.iter().enumerate().filter(|(index, _)| *index != without).map(|(_, e)| e);
                valid(dialect, &mut fold(dialect, rest)).map_err(TestCaseError::fail)?;
                *counts.borrow_mut().1 += 1;
            }
            Ok(())
        })
        .unwrap();
    println!("{prefixes} prefixes, {removed} with a record removed, all valid");
}
