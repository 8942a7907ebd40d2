//! Damaged and foreign transcripts: whatever their blocks hold, the next request is one that a provider accepts, and
//! every block that is whole is still in it. The rules of a request are written down here once more, independently.

use std::collections::HashSet;
use std::sync::Arc;

use decurion_engine::context::{Context, Media};
use decurion_model::{Dialect, Head, ModelRequest};
use decurion_protocol::Event;
use decurion_testkit::validate::{HeaderMap, check_openai};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

/// A recorded message: its role and its blocks.
type Recorded = (&'static str, Vec<Value>);

/// The body of the next request after these messages, and how many blocks were damaged.
fn request(dialect: Dialect, messages: &[Recorded]) -> (Value, u64) {
    let mut context = Context::new(dialect);
    for (index, (role, blocks)) in messages.iter().enumerate() {
        let origin = if *role == "assistant" { "model" } else { "prompt" };
        let line = uuid::Uuid::from_u128(index as u128 + 1);
        let event = json!({"type": "message", "message": {"role": role, "content": blocks}, "lines": [line],
            "parent": null, "meta": {"origin": origin}});
        let event: Event = serde_json::from_value(event).unwrap();
        assert!(matches!(event, Event::Message { .. }), "{event:?}");
        context.apply(&event);
    }
    let head = Head { model: "scripted".into(), max_output_tokens: 10, ..Head::default() };
    let request = ModelRequest::new(Arc::new(dialect.head(&head)), context.request(Media::Sent));
    (serde_json::from_slice(&request.segments().concat()).unwrap(), context.damaged())
}

fn is_text(value: &Value, member: &str) -> bool {
    value[member].as_str().is_some_and(|text| !text.trim().is_empty())
}

fn ensure(holds: bool, what: &str, about: &Value) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what}: {about}")) }
}

/// The rules of Anthropic's Messages API for the messages of a request.
fn check_anthropic(body: &Value) -> Result<(), String> {
    let messages = body["messages"].as_array().ok_or("no messages")?;
    ensure(messages.last().is_some_and(|last| last["role"] == "user"), "the last message", body)?;
    let (mut used, mut provided) = (HashSet::new(), HashSet::new());
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        ensure(message["role"] == role, "roles do not alternate", body)?;
        let blocks = message["content"].as_array().filter(|blocks| !blocks.is_empty());
        let blocks = blocks.ok_or_else(|| format!("no content: {message}"))?;
        // The results come first, one for each call of the message before.
        let mut answered: Vec<&str> = blocks
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .filter_map(|block| block["tool_use_id"].as_str())
            .collect();
        open.sort_unstable();
        answered.sort_unstable();
        ensure(open == answered, "results that are not those of the calls before", message)?;
        open.clear();
        for block in blocks {
            check_block(role, block)?;
            if block["type"] == "tool_use" {
                let id = block["id"].as_str().unwrap();
                ensure(used.insert(id), "an id that is used twice", body)?;
                open.push(id);
            }
            if let (Some(id), true) = (block["id"].as_str(), block["type"] != "tool_use") {
                provided.insert(id);
            }
            let is_provided = block["type"].as_str().is_some_and(|kind| kind.ends_with("_tool_result"));
            if let (true, Some(id)) = (is_provided, block["tool_use_id"].as_str()) {
                ensure(provided.contains(id), "a provider's result without its call", block)?;
            }
        }
        if role == "user" {
            let later = blocks.iter().skip_while(|block| block["type"] == "tool_result");
            let strays = later.filter(|block| block["type"] == "tool_result").count();
            ensure(strays == 0, "a result behind something else", message)?;
        } else {
            let last = &blocks[blocks.len() - 1]["type"];
            ensure(
                last != "thinking" && last != "redacted_thinking",
                "a message that ends in thought",
                message,
            )?;
        }
    }
    ensure(open.is_empty(), "a call without its result", body)
}

/// The rules for one block.
fn check_block(role: &str, block: &Value) -> Result<(), String> {
    let kind = block["type"].as_str().unwrap_or_default();
    let is_good = match (role, kind) {
        (_, "text") => is_text(block, "text"),
        ("assistant", "thinking") => block["thinking"].is_string() && is_text(block, "signature"),
        ("assistant", "redacted_thinking") => is_text(block, "data"),
        ("assistant", "tool_use" | "server_tool_use" | "mcp_tool_use") => {
            let id = block["id"].as_str().unwrap_or_default();
            let in_alphabet = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            let is_id = (1..=256).contains(&id.len()) && id.chars().all(in_alphabet);
            is_id && is_text(block, "name") && block["input"].is_object()
        }
        ("assistant", kind) if kind.ends_with("_tool_result") => {
            is_text(block, "tool_use_id") && block.get("content").is_some()
        }
        ("user", "image") => is_image(block),
        ("user", "document") => is_base64(&block["source"], "application/pdf"),
        ("user", "tool_result") => is_result(block),
        ("user", "search_result") => is_text(block, "source") && block["content"].is_array(),
        ("user", "container_upload") => is_text(block, "file_id"),
        // What only the provider knows, as it said it.
        ("assistant", "image" | "document" | "tool_result" | "") | ("user", _) => false,
        ("assistant", _) => true,
        _ => false,
    };
    ensure(is_good, &format!("not a block of a {role}"), block)
}

fn is_result(block: &Value) -> bool {
    let is_error = match block.get("is_error") {
        None => false,
        Some(Value::Bool(is_error)) => *is_error,
        Some(_) => return false,
    };
    let is_part = |part: &Value| match part["type"].as_str() {
        Some("text") => is_text(part, "text"),
        Some("image") => !is_error && is_image(part),
        Some("document") => !is_error && is_base64(&part["source"], "application/pdf"),
        Some("search_result") => !is_error && part["content"].is_array(),
        _ => false,
    };
    match &block["content"] {
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => !parts.is_empty() && parts.iter().all(is_part),
        _ => false,
    }
}

fn is_image(block: &Value) -> bool {
    is_base64(&block["source"], "image/png")
}

fn is_base64(source: &Value, media: &str) -> bool {
    source["type"] == "base64" && source["media_type"] == media && is_base64_text(&source["data"])
}

fn is_base64_text(data: &Value) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric();
    data.as_str().is_some_and(|data| !data.is_empty() && data.len() % 4 == 0 && data.bytes().all(is_digit))
}

/// The same for any dialect; the Chat Completions API has its rules in the test kit.
fn check(dialect: Dialect, body: &Value) -> Result<(), String> {
    if dialect == Dialect::Anthropic {
        return check_anthropic(body);
    }
    let mut headers = HeaderMap::new();
    headers.insert("content-type", "application/json".parse().unwrap());
    headers.insert("authorization", "Bearer k".parse().unwrap());
    let mut body = body.clone();
    if body["messages"].to_string().contains("tool") {
        body["tools"] =
            json!([{"type": "function", "function": {"name": "Echo", "parameters": {"type": "object"}}}]);
    }
    check_openai(&headers, &body).map_err(|error| format!("{}: {body}", error.message))
}

/// A conversation in which every kind of block occurs, each with a mark by which it can be found again.
fn whole() -> Vec<Recorded> {
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}});
    vec![
        ("user", vec![json!({"type": "text", "text": "mark-1"}), image.clone()]),
        (
            "assistant",
            vec![
                json!({"type": "thinking", "thinking": "mark-2", "signature": "seal"}),
                json!({"type": "redacted_thinking", "data": "mark-3"}),
                json!({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "mark-4"}}),
                json!({"type": "web_search_tool_result", "tool_use_id": "srv", "content": [{"mark": "mark-5"}]}),
                json!({"type": "some_day", "payload": {"deep": ["mark-6"]}}),
                json!({"type": "text", "text": "mark-7"}),
                json!({"type": "tool_use", "id": "a", "name": "Echo", "input": {"text": "mark-8"}}),
                json!({"type": "tool_use", "id": "b", "name": "Echo", "input": {"text": "mark-9"}}),
            ],
        ),
        (
            "user",
            vec![
                json!({"type": "tool_result", "tool_use_id": "a", "content": "mark-10"}),
                json!({"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "mark-11"}, image]}),
                json!({"type": "text", "text": "mark-12"}),
            ],
        ),
        ("assistant", vec![json!({"type": "text", "text": "mark-13"})]),
        ("user", vec![json!({"type": "text", "text": "mark-14"})]),
    ]
}

/// The marks below a value.
fn marks(value: &Value) -> HashSet<String> {
    match value {
        Value::String(text) if text.starts_with("mark-") => HashSet::from([text.clone()]),
        Value::Array(items) => items.iter().flat_map(marks).collect(),
        Value::Object(members) => members.values().flat_map(marks).collect(),
        _ => HashSet::new(),
    }
}

/// What damage can put in the place of a value.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!(true)),
        Just(json!(7)),
        Just(json!("")),
        Just(json!(" ")),
        Just(json!("x y")),
        Just(json!("text")),
        Just(json!("tool_use")),
        Just(json!("tool_result")),
        Just(json!("image")),
        Just(json!([])),
        Just(json!(["x", 1, {"type": "texu"}])),
        Just(json!({})),
        Just(json!({"type": "text", "text": "put in"})),
        Just(json!({"x": {"y": 1}})),
    ]
}

/// One piece of damage: which block, how deep, and what is done there.
#[derive(Clone, Debug)]
enum Damage {
    /// A value at this place below the block is another one.
    Put(prop::sample::Index, prop::sample::Index, Value),
    /// A member is missing.
    Cut(prop::sample::Index, prop::sample::Index),
    /// A block is there that was not.
    Add(prop::sample::Index, Value),
    /// A block is gone.
    Remove(prop::sample::Index),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    use prop::sample::Index;
    prop_oneof![
        4 => (any::<Index>(), any::<Index>(), any_value()).prop_map(|(block, place, value)| Damage::Put(block, place, value)),
        2 => (any::<Index>(), any::<Index>()).prop_map(|(block, place)| Damage::Cut(block, place)),
        2 => (any::<Index>(), any_block()).prop_map(|(block, value)| Damage::Add(block, value)),
        1 => any::<Index>().prop_map(Damage::Remove),
    ]
}

/// Blocks of every kind with members of every type.
fn any_block() -> impl Strategy<Value = Value> {
    let kinds = [
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "image",
        "document",
        "server_tool_use",
        "web_search_tool_result",
        "search_result",
        "container_upload",
        "texu",
        "",
    ];
    let names = [
        "text",
        "thinking",
        "signature",
        "data",
        "id",
        "name",
        "input",
        "tool_use_id",
        "content",
        "source",
        "is_error",
        "title",
        "file_id",
    ];
    let members = prop::collection::vec((prop::sample::select(names.to_vec()), any_value()), 0..7);
    let ids = ["a", "b", "b.c", "b_c", "", "d e", "srv"];
    let id = || prop::sample::select(ids.to_vec());
    let tools = ["Echo", "", "no such: tool", "\u{e9}", "mcp__x__y"];
    let call = (id(), prop::sample::select(tools.to_vec()), any_value())
        .prop_map(|(id, name, input)| json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    let result = (id(), any_value(), any_value())
        .prop_map(|(id, content, failed)| json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": failed}));
    prop_oneof![
        2 => any_value(),
        4 => (prop::sample::select(kinds.to_vec()), members).prop_map(|(kind, members)| {
            let mut block: Map<String, Value> = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            block.insert("type".to_owned(), kind.into());
            Value::Object(block)
        }),
        2 => call,
        2 => result,
    ]
}

/// Every place below a value, itself first.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), found));
        }
        _ => {}
    }
}

/// Does the damage; gives what it may have cost.
fn damage(messages: &mut [Recorded], damage: &Damage) -> HashSet<String> {
    let (Damage::Put(block, ..) | Damage::Cut(block, _) | Damage::Add(block, _) | Damage::Remove(block)) =
        damage;
    let blocks: Vec<(usize, usize)> = messages
        .iter()
        .enumerate()
        .flat_map(|(message, (_, blocks))| (0..blocks.len()).map(move |block| (message, block)))
        .collect();
    let Some((message, at)) = (!blocks.is_empty()).then(|| *block.get(&blocks)) else {
        return HashSet::new();
    };
    let blocks = &mut messages[message].1;
    let mut cost = if matches!(damage, Damage::Add(..)) { HashSet::new() } else { marks(&blocks[at]) };
    // A provider's call and its result go together, and so do a call and its result.
    for pair in [["mark-4", "mark-5"], ["mark-8", "mark-10"], ["mark-9", "mark-11"]] {
        if pair.iter().any(|mark| cost.contains(*mark)) {
            cost.extend(pair.map(str::to_owned));
        }
    }
    match damage {
        Damage::Put(_, place, value) => {
            let mut all = Vec::new();
            places(&blocks[at], "", &mut all);
            *blocks[at].pointer_mut(&all[place.index(all.len())]).unwrap() = value.clone();
        }
        Damage::Cut(_, place) => {
            if let Value::Object(members) = &mut blocks[at] {
                let names: Vec<String> = members.keys().cloned().collect();
                if !names.is_empty() {
                    members.remove(&names[place.index(names.len())]);
                }
            }
        }
        Damage::Add(_, value) => {
            // An id counts once, and where it stands first.
            let takes = |id: &str| [&value["id"], &value["tool_use_id"]].contains(&&json!(id));
            let owners =
                [("srv", ["mark-4", "mark-5"]), ("a", ["mark-8", "mark-10"]), ("b", ["mark-9", "mark-11"])];
            for (_, marks) in owners.iter().filter(|(id, _)| takes(id)) {
                cost.extend(marks.map(str::to_owned));
            }
            blocks.insert(at, value.clone());
        }
        Damage::Remove(_) => drop(blocks.remove(at)),
    }
    cost
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn a_whole_conversation_is_sent_as_it_is() {
    let (body, damaged) = request(Dialect::Anthropic, &whole());
    assert_eq!(damaged, 0);
    let sent: Vec<Value> =
        body["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect();
    let mut recorded: Vec<Value> = whole().into_iter().map(|(_, blocks)| Value::Array(blocks)).collect();
    // The last block of all is marked for the cache.
    recorded.last_mut().unwrap()[0]["cache_control"] = sent.last().unwrap()[0]["cache_control"].clone();
    assert_eq!(sent, recorded);
    check_anthropic(&body).unwrap();
}

#[test]
fn damage_costs_no_block_but_the_damaged_one() {
    let dialects = prop_oneof![Just(Dialect::Anthropic), Just(Dialect::OpenAiChat)];
    runner(1_000)
        .run(&(any_damage(), dialects), |(one, dialect)| {
            let mut messages = whole();
            let (before, _) = request(dialect, &messages);
            let cost = damage(&mut messages, &one);
            let (body, _) = request(dialect, &messages);
            check(dialect, &body).map_err(TestCaseError::fail)?;
            for mark in marks_in(&before) {
                let is_there = body.to_string().contains(&format!("{mark}\""))
                    || body.to_string().contains(&format!("{mark}\\"));
                prop_assert!(is_there || cost.contains(&mark), "{} is lost: {:?}: {}", mark, one, body);
            }
            Ok(())
        })
        .unwrap();
}

/// The marks in a request, also in strings of its own.
fn marks_in(body: &Value) -> Vec<String> {
    let text = body.to_string();
    (1..=14).map(|number| format!("mark-{number}")).filter(|mark| text.contains(mark.as_str())).collect()
}

#[test]
fn any_damage_leaves_a_valid_request() {
    let dialects = prop_oneof![Just(Dialect::Anthropic), Just(Dialect::OpenAiChat)];
    runner(1_000)
        .run(&(prop::collection::vec(any_damage(), 1..8), dialects), |(all, dialect)| {
            let mut messages = whole();
            for one in &all {
                damage(&mut messages, one);
            }
            let (body, _) = request(dialect, &messages);
            check(dialect, &body).map_err(TestCaseError::fail)
        })
        .unwrap();
}

#[test]
fn any_blocks_make_a_valid_request() {
    let role = prop_oneof![Just("user"), Just("assistant")];
    let messages = prop::collection::vec((role, prop::collection::vec(any_block(), 0..5)), 0..6);
    let dialects = prop_oneof![Just(Dialect::Anthropic), Just(Dialect::OpenAiChat)];
    runner(1_000)
        .run(&(messages, dialects), |(messages, dialect)| {
            let (body, _) = request(dialect, &messages);
            check(dialect, &body).map_err(TestCaseError::fail)
        })
        .unwrap();
}

#[test]
fn damaged_blocks_are_counted_and_their_words_stay() {
    let blocks = vec![
        json!({"type": "text", "text": "hello"}),
        json!(7),
        json!("bare words"),
        json!({"type": "texu", "text": "misspelled"}),
        json!({"type": "text", "text": 5}),
        json!({"type": "image", "source": 1}),
        json!({"type": "text", "text": " "}),
    ];
    let (body, damaged) = request(Dialect::Anthropic, &[("user", blocks)]);
    assert_eq!(damaged, 5, "a blank text is no damage");
    let body = body.to_string();
    assert!(["hello", "bare words", "misspelled"].iter().all(|words| body.contains(words)), "{body}");
    assert!(!body.contains("texu"), "{body}");
}

/// What a provider said is sent back to it, also where this program does not know what it is.
#[test]
fn unknown_blocks_of_the_model_are_sent_back_unchanged() {
    let unknown = json!({"type": "brand_new", "nested": {"list": [1, null, {"a": "b"}]}, "id": 9});
    let messages = [
        ("user", vec![json!({"type": "text", "text": "go"})]),
        ("assistant", vec![unknown.clone(), json!({"type": "text", "text": "so"})]),
        ("user", vec![json!({"type": "text", "text": "on"}), unknown.clone()]),
    ];
    let (body, damaged) = request(Dialect::Anthropic, &messages);
    assert_eq!(body["messages"][1]["content"][0], unknown);
    assert!(!body["messages"][2].to_string().contains("brand_new"), "{body}");
    assert_eq!(damaged, 1, "only the model may send unknown blocks");
}

/// A picture of a failed call, or of a type that the provider does not take, is an everyday result of a tool.
#[test]
fn what_a_provider_does_not_take_is_left_out_and_no_damage() {
    let image = |media: &str| json!({"type": "image", "source": {"type": "base64", "media_type": media, "data": "QUJD"}});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "odd.name", "input": {}});
    let words = json!({"type": "text", "text": "words"});
    let results = vec![
        json!({"type": "tool_result", "tool_use_id": "a", "content": [words, image("image/png")], "is_error": true}),
        json!({"type": "tool_result", "tool_use_id": "b", "content": [words, image("image/svg+xml")]}),
    ];
    let messages =
        [("user", vec![words.clone()]), ("assistant", vec![call("a"), call("b")]), ("user", results)];
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let (body, damaged) = request(dialect, &messages);
        check(dialect, &body).unwrap();
        assert_eq!((damaged, body.to_string().contains("QUJD")), (0, false), "{body}");
        assert_eq!(body.to_string().matches("words").count(), 3, "{body}");
    }
}

/// A server that gives each call the same long id: every call that ran is in the requests after it.
#[tokio::test(start_paused = true)]
async fn calls_with_the_same_long_id_stay_in_the_conversation() {
    let wide = "é".repeat(200);
    for id in ["x".repeat(256), "x".repeat(255), wide] {
        let call = format!("  call Echo as {id} {{\"text\": \"same\"}}\n");
        let stage = crate::support::stage(&format!("when turn=4\n  say \"done\"\nwhen\n{call}{call}"));
        stage.play("go").await;
        let requests = stage.requests();
        let counted: Vec<(usize, usize)> = requests
            .iter()
            .map(|body| String::from_utf8_lossy(body.as_ref()).into_owned())
            .map(|body| (body.matches("\"tool_use\"").count(), body.matches("\"tool_result\"").count()))
            .collect();
        assert_eq!(counted, [(0, 0), (2, 2), (4, 4), (6, 6)], "{}", id.len());
    }
}

/// Both ids are `a_b` in a request to Anthropic.
#[tokio::test(start_paused = true)]
async fn calls_whose_ids_become_the_same_stay_in_the_conversation() {
    let calls = "  call Echo as a.b {\"text\": \"one\"}\n  call Echo as a_b {\"text\": \"two\"}\n";
    let stage = crate::support::stage(&format!("when turn=1\n{calls}when\n  say \"done\"\n"));
    stage.play("go").await;
    let requests = stage.requests();
    let last = String::from_utf8_lossy(requests.last().unwrap().as_ref()).into_owned();
    assert_eq!(
        (last.matches("\"tool_use\"").count(), last.matches("\"tool_result\"").count()),
        (2, 2),
        "{last}"
    );
}
