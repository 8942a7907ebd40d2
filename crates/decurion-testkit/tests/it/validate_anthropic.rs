//! A table of requests of the Messages dialect: good ones pass, each bad one is refused for its own reason.

use decurion_testkit::validate::{Validator, check_anthropic};
use hyper::HeaderMap;
use serde_json::{Value, json};

type Change = fn(&mut Value);

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("x-api-key", "test".parse().unwrap());
    headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
    headers.insert("content-type", "application/json".parse().unwrap());
    headers
}

/// A conversation with two calls in one message, both answered.
fn good() -> Value {
    json!({
        "model": "claude-test",
        "max_tokens": 1000,
        "stream": true,
        "tools": [
            {"name": "Bash", "description": "runs", "input_schema": {"type": "object", "properties": {}}},
            {"name": "Read", "description": "reads", "input_schema": {"type": "object"}}
        ],
        "system": [{"type": "text", "text": "you are", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "sig"},
                {"type": "text", "text": "looking"},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "t2", "name": "Read", "input": {"file_path": "/a"}}
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a\nb"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "x"}]},
                {"type": "text", "text": "a note", "cache_control": {"type": "ephemeral"}}
            ]}
        ]
    })
}

fn set(body: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match body.pointer_mut(parent).unwrap() {
        Value::Object(members) => {
            members.insert(key.to_owned(), value);
        }
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        other => panic!("{parent} is {other}"),
    }
}

fn remove(body: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match body.pointer_mut(parent).unwrap() {
        Value::Object(members) => {
            members.remove(key).unwrap();
        }
        Value::Array(items) => {
            items.remove(key.parse::<usize>().unwrap());
        }
        other => panic!("{parent} is {other}"),
    }
}

fn push(body: &mut Value, pointer: &str, value: Value) {
    body.pointer_mut(pointer).unwrap().as_array_mut().unwrap().push(value);
}

fn image(source: Value) -> Value {
    json!([{"type": "image", "source": source}])
}

const BAD: &[(&str, Change)] = &[
    ("Input should be a valid dictionary", |b| *b = json!([])),
    ("model: Field required", |b| remove(b, "/model")),
    ("model: Input should be a valid string", |b| set(b, "/model", json!(3))),
    ("model: String should have at least 1", |b| set(b, "/model", json!(""))),
    ("max_tokens: Field required", |b| remove(b, "/max_tokens")),
    ("max_tokens: Input should be greater", |b| set(b, "/max_tokens", json!(0))),
    ("max_tokens: Input should be greater", |b| set(b, "/max_tokens", json!(-4))),
    ("max_tokens: Input should be a valid integer", |b| set(b, "/max_tokens", json!("9"))),
    ("messages: Field required", |b| remove(b, "/messages")),
    ("messages: Input should be a valid list", |b| set(b, "/messages", json!({}))),
    ("at least one message is required", |b| set(b, "/messages", json!([]))),
    ("stream: Input should be a valid boolean", |b| set(b, "/stream", json!("yes"))),
    ("temperature: range", |b| set(b, "/temperature", json!(1.5))),
    ("top_p: Input should be a valid number", |b| set(b, "/top_p", json!("x"))),
    ("stop_sequences: each stop sequence", |b| set(b, "/stop_sequences", json!([" "]))),
    ("frobnicate: Extra inputs are not permitted", |b| set(b, "/frobnicate", json!(1))),
    ("context_management: Extra inputs", |b| set(b, "/context_management", json!({}))),
    ("metadata.session: Extra inputs", |b| set(b, "/metadata", json!({"session": "x"}))),
    ("metadata.user_id: Input should be a valid string", |b| set(b, "/metadata", json!({"user_id": 1}))),
    ("output_config.effort: Input should be", |b| set(b, "/output_config", json!({"effort": "huge"}))),
    // Thinking as a setting.
    ("thinking: Input tag 'on'", |b| set(b, "/thinking", json!({"type": "on"}))),
    ("thinking.enabled.budget_tokens: Field required", |b| set(b, "/thinking", json!({"type": "enabled"}))),
    ("budget_tokens: Input should be greater", |b| {
        set(b, "/thinking", json!({"type": "enabled", "budget_tokens": 100}));
    }),
    ("`max_tokens` must be greater than", |b| {
        set(b, "/thinking", json!({"type": "enabled", "budget_tokens": 2000}));
    }),
    ("`temperature` may only be set to 1", |b| {
        set(b, "/thinking", json!({"type": "adaptive"}));
        set(b, "/temperature", json!(0.2));
    }),
    ("Thinking may not be enabled when tool_choice", |b| {
        set(b, "/thinking", json!({"type": "adaptive"}));
        set(b, "/tool_choice", json!({"type": "any"}));
    }),
    // Tools.
    ("tools: Input should be a valid list", |b| set(b, "/tools", json!({}))),
    ("Tool names must be unique", |b| set(b, "/tools/1/name", json!("Bash"))),
    ("tools.0.custom.name: Field required", |b| remove(b, "/tools/0/name")),
    ("tools.0.custom.name: String should match", |b| set(b, "/tools/0/name", json!("a b"))),
    ("tools.0.custom.input_schema: Field required", |b| remove(b, "/tools/0/input_schema")),
    ("tools.1.custom.input_schema.type: Input should be 'object'", |b| {
        set(b, "/tools/1/input_schema/type", json!("string"));
    }),
    ("tools.1.custom.input_schema.type: Field required", |b| remove(b, "/tools/1/input_schema/type")),
    ("tools.0.custom.parameters: Extra inputs", |b| set(b, "/tools/0/parameters", json!({}))),
    ("tools.0.custom.description: Input should be", |b| set(b, "/tools/0/description", json!(null))),
    ("tool_choice: Input tag 'required'", |b| set(b, "/tool_choice", json!({"type": "required"}))),
    ("Tool 'Nope' not found", |b| set(b, "/tool_choice", json!({"type": "tool", "name": "Nope"}))),
    ("may only be specified while providing tools", |b| {
        remove(b, "/tools");
        set(b, "/tool_choice", json!({"type": "auto"}));
    }),
    // System.
    ("system: text content blocks must be non-empty", |b| {
        set(b, "/system", json!([{"type": "text", "text": ""}]));
    }),
    ("cache_control cannot be set for empty text blocks", |b| set(b, "/system/0/text", json!(""))),
    ("system: text content blocks must be non-empty", |b| set(b, "/system", json!(""))),
    ("system.0.type: Input should be 'text'", |b| set(b, "/system/0/type", json!("image"))),
    ("system: Input should be a valid list", |b| set(b, "/system", json!(4))),
    // Roles.
    ("messages.0.role: Field required", |b| remove(b, "/messages/0/role")),
    ("Unexpected role \"system\"", |b| set(b, "/messages/0/role", json!("system"))),
    ("messages.0.role: Input should be 'user' or 'assistant'", |b| {
        set(b, "/messages/0/role", json!("tool"));
    }),
    ("first message must use the \"user\" role", |b| remove(b, "/messages/0")),
    ("multiple \"user\" roles in a row", |b| {
        push(b, "/messages", json!({"role": "user", "content": "more"}));
    }),
    ("messages.0.name: Extra inputs", |b| set(b, "/messages/0/name", json!("x"))),
    // Content.
    ("messages.0.content: Field required", |b| remove(b, "/messages/0/content")),
    ("messages.0: all messages must have non-empty content", |b| set(b, "/messages/0/content", json!(""))),
    ("messages.0: all messages must have non-empty content", |b| set(b, "/messages/0/content", json!([]))),
    ("must contain non-whitespace text", |b| set(b, "/messages/0/content", json!(" \n"))),
    ("messages: text content blocks must be non-empty", |b| set(b, "/messages/1/content/1/text", json!(""))),
    ("must contain non-whitespace text", |b| set(b, "/messages/1/content/1/text", json!("\n"))),
    ("messages.0.content: Input should be a valid list", |b| set(b, "/messages/0/content", json!(7))),
    ("messages.1.content.1.type: Field required", |b| remove(b, "/messages/1/content/1/type")),
    ("Input tag 'sound' found", |b| set(b, "/messages/1/content/1", json!({"type": "sound"}))),
    ("messages.1.content.1.text.extra: Extra inputs", |b| set(b, "/messages/1/content/1/extra", json!(1))),
    ("cannot end with trailing whitespace", |b| {
        push(b, "/messages", json!({"role": "assistant", "content": [{"type": "text", "text": "so: "}]}));
    }),
    ("cannot end with trailing whitespace", |b| {
        push(b, "/messages", json!({"role": "assistant", "content": "so: "}));
    }),
    ("`tool_use` blocks can only be in `assistant`", |b| {
        push(b, "/messages/2/content", json!({"type": "tool_use", "id": "t9", "name": "Bash", "input": {}}));
    }),
    ("`tool_result` blocks can only be in `user`", |b| {
        push(b, "/messages/1/content", json!({"type": "tool_result", "tool_use_id": "t1", "content": "x"}));
    }),
    // Calls and results.
    ("without `tool_result` blocks immediately after: t1", |b| remove(b, "/messages/2/content/0")),
    ("without `tool_result` blocks immediately after: t1, t2", |b| remove(b, "/messages/2")),
    ("immediately after: t1, t2", |b| set(b, "/messages/2/content", json!("never mind"))),
    ("immediately after: t1", |b| {
        let content = b.pointer_mut("/messages/2/content").unwrap().as_array_mut().unwrap();
        content.swap(0, 2);
        content.swap(1, 2);
    }),
    ("messages.2.content.0: unexpected `tool_use_id`", |b| {
        set(b, "/messages/2/content/0/tool_use_id", json!("t7"));
    }),
    ("messages.0.content.0: unexpected `tool_use_id`", |b| {
        let orphan = json!([{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]);
        set(b, "/messages/0/content", orphan);
    }),
    ("each tool_use must have a single result", |b| {
        set(b, "/messages/2/content/1/tool_use_id", json!("t1"));
    }),
    ("`tool_use` ids must be unique", |b| {
        set(b, "/messages/1/content/3/id", json!("t1"));
        remove(b, "/messages/2/content/1");
    }),
    ("`tool_use` ids must be unique", |b| {
        let again = json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {}});
        push(b, "/messages", json!({"role": "assistant", "content": [again]}));
        let result = json!({"type": "tool_result", "tool_use_id": "t1", "content": "x"});
        push(b, "/messages", json!({"role": "user", "content": [result]}));
    }),
    ("tool_use.id: String should match pattern", |b| set(b, "/messages/1/content/2/id", json!("t 1"))),
    ("tool_use.input: Input should be a valid dictionary", |b| {
        set(b, "/messages/1/content/2/input", json!("ls"));
    }),
    ("tool_use.input: Input should be a valid dictionary", |b| {
        set(b, "/messages/1/content/2/input", json!(null));
    }),
    ("tool_use.input: Field required", |b| remove(b, "/messages/1/content/2/input")),
    ("tool_use.name: String should have at least 1", |b| set(b, "/messages/1/content/2/name", json!(""))),
    ("tool_use.index: Extra inputs", |b| set(b, "/messages/1/content/2/index", json!(0))),
    ("tool_result.is_error: Input should be a valid boolean", |b| {
        set(b, "/messages/2/content/0/is_error", json!("no"));
    }),
    ("content cannot be empty if `is_error`", |b| {
        set(b, "/messages/2/content/0/is_error", json!(true));
        set(b, "/messages/2/content/0/content", json!(""));
    }),
    ("all content must be type \"text\" if `is_error`", |b| {
        set(b, "/messages/2/content/0/is_error", json!(true));
        let source = json!({"type": "base64", "media_type": "image/png", "data": "aGk="});
        set(b, "/messages/2/content/0/content", image(source));
    }),
    ("messages: text content blocks must be non-empty", |b| {
        set(b, "/messages/2/content/1/content/0/text", json!(""));
    }),
    ("tool_result.content.0: Input tag 'tool_use'", |b| {
        set(b, "/messages/2/content/1/content/0/type", json!("tool_use"));
    }),
    ("tool_result.content: Input should be a valid list", |b| {
        set(b, "/messages/2/content/0/content", json!({"stdout": "x"}));
    }),
    ("tool_result.tool_use_id: Field required", |b| remove(b, "/messages/2/content/0/tool_use_id")),
    // Reasoning.
    ("thinking.signature: Field required", |b| remove(b, "/messages/1/content/0/signature")),
    ("Invalid `signature`", |b| set(b, "/messages/1/content/0/signature", json!(""))),
    ("thinking.cache_control: Extra inputs", |b| {
        set(b, "/messages/1/content/0/cache_control", json!({"type": "ephemeral"}));
    }),
    ("redacted_thinking.data: Field required", |b| {
        set(b, "/messages/1/content/0", json!({"type": "redacted_thinking"}));
    }),
    // Cache breakpoints.
    ("A maximum of 4 blocks with cache_control may be provided. Found 5.", |b| {
        for place in ["/tools/0", "/tools/1", "/messages/1/content/1"] {
            set(b, &format!("{place}/cache_control"), json!({"type": "ephemeral"}));
        }
    }),
    ("cache_control.type: Input should be 'ephemeral'", |b| {
        set(b, "/messages/2/content/2/cache_control", json!({"type": "forever"}));
    }),
    ("ttl: Input should be '5m' or '1h'", |b| {
        set(b, "/system/0/cache_control", json!({"type": "ephemeral", "ttl": "2h"}));
    }),
    ("tools.1.cache_control.type", |b| set(b, "/tools/1/cache_control", json!({"type": "x"}))),
    // Images and documents.
    ("image.source: Field required", |b| set(b, "/messages/0/content", json!([{"type": "image"}]))),
    ("media_type: Input should be 'image/jpeg'", |b| {
        let source = json!({"type": "base64", "media_type": "image/bmp", "data": "aGk="});
        set(b, "/messages/0/content", image(source));
    }),
    ("invalid base64 data", |b| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": "a b"});
        set(b, "/messages/0/content", image(source));
    }),
    ("Only HTTPS URLs", |b| set(b, "/messages/0/content", image(json!({"type": "url", "url": "ftp://x"})))),
    ("document.source.base64.media_type", |b| {
        let source = json!({"type": "base64", "media_type": "text/html", "data": "aGk="});
        set(b, "/messages/0/content", json!([{"type": "document", "source": source}]));
    }),
];

#[test]
fn each_bad_request_is_refused_for_its_own_reason() {
    assert!(BAD.len() >= 40, "{}", BAD.len());
    for (at, (fragment, change)) in BAD.iter().enumerate() {
        let mut body = good();
        change(&mut body);
        let error = check_anthropic(&headers(), &body).expect_err(&format!("row {at} ({fragment}) passed"));
        assert!(error.message.contains(fragment), "row {at}: wanted {fragment}\n got {}", error.message);
        assert_eq!((error.status, error.kind), (400, "invalid_request_error"), "row {at}");
    }
}

const GOOD: &[Change] = &[
    |_| {},
    |b| set(b, "/messages", json!([{"role": "user", "content": "hi"}])),
    |b| set(b, "/system", json!("you are")),
    |b| remove(b, "/system"),
    |b| {
        remove(b, "/tools");
        set(b, "/messages", json!([{"role": "user", "content": [{"type": "text", "text": "sum up"}]}]));
    },
    |b| set(b, "/thinking", json!({"type": "adaptive", "display": "updates"})),
    |b| {
        set(b, "/thinking", json!({"type": "enabled", "budget_tokens": 1024}));
        set(b, "/max_tokens", json!(4096));
    },
    |b| set(b, "/tool_choice", json!({"type": "tool", "name": "Read"})),
    |b| set(b, "/messages/1/content/0", json!({"type": "redacted_thinking", "data": "xx"})),
    |b| set(b, "/messages/2/content/0/content", json!("")),
    |b| remove(b, "/messages/2/content/0/content"),
    |b| {
        set(b, "/messages/2/content/0/is_error", json!(true));
    },
    |b| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": "aGk="});
        set(b, "/messages/2/content/1/content", image(source));
    },
    |b| push(b, "/messages", json!({"role": "assistant", "content": "{"})),
    |b| push(b, "/tools", json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 3})),
    |b| {
        set(b, "/metadata", json!({"user_id": "{\"session\":\"x\"}"}));
        set(b, "/output_config", json!({"effort": "medium"}));
        set(b, "/temperature", json!(1));
    },
    |b| {
        for place in ["/tools/1", "/messages/2/content/1"] {
            set(b, &format!("{place}/cache_control"), json!({"type": "ephemeral", "ttl": "1h"}));
        }
    },
];

#[test]
fn good_requests_pass() {
    for (at, change) in GOOD.iter().enumerate() {
        let mut body = good();
        change(&mut body);
        check_anthropic(&headers(), &body).unwrap_or_else(|error| panic!("row {at}: {error}"));
    }
}

#[test]
fn headers_are_looked_at_before_the_body() {
    let refused = |name: &'static str, value: Option<&str>| {
        let mut headers = headers();
        headers.remove(name);
        if let Some(value) = value {
            headers.insert(name, value.parse().unwrap());
        }
        check_anthropic(&headers, &json!([])).unwrap_err()
    };
    assert_eq!(refused("x-api-key", None).status, 401);
    assert!(refused("anthropic-version", None).message.contains("header is required"));
    assert!(refused("anthropic-version", Some("2022-01-01")).message.contains("unknown version"));
    assert!(refused("content-type", Some("text/plain")).message.contains("application/json"));

    let mut bearer = headers();
    bearer.remove("x-api-key");
    bearer.insert("authorization", "Bearer token".parse().unwrap());
    check_anthropic(&bearer, &good()).unwrap();
    bearer.insert("authorization", "Basic x".parse().unwrap());
    assert_eq!(check_anthropic(&bearer, &good()).unwrap_err().status, 401);

    let mut beta = headers();
    beta.insert("anthropic-beta", "other-1,context-management-2025-06-27".parse().unwrap());
    let mut body = good();
    set(&mut body, "/context_management", json!({"edits": []}));
    check_anthropic(&beta, &body).unwrap();
}

/// The stream of a reply that thought, then called, with the reasoning in two pieces.
const STREAM: &str = r#"event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"h"}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"m"}}

data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"sig"}}

data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t1","name":"Bash","input":{}}}

data: {"type":"content_block_start","index":2,"content_block":{"type":"novelty","data":1}}

data: {broken

"#;

#[test]
fn reasoning_must_come_back_as_it_was_sent() {
    let mut validator = Validator::new();
    validator.remember_stream(STREAM.as_bytes());
    validator.check_anthropic(&headers(), &good()).unwrap();

    let refused = |change: Change| {
        let mut body = good();
        change(&mut body);
        // Without a memory nothing is wrong with it.
        check_anthropic(&headers(), &body).unwrap();
        let error = validator.check_anthropic(&headers(), &body).unwrap_err();
        assert!(error.message.contains("cannot be modified"), "{error}");
    };
    refused(|b| set(b, "/messages/1/content/0/thinking", json!("hm!")));
    refused(|b| set(b, "/messages/1/content/0/signature", json!("forged")));
    refused(|b| remove(b, "/messages/1/content/0"));
}

#[test]
fn a_block_of_a_kind_the_server_sent_may_come_back() {
    let mut body = good();
    push(&mut body, "/messages/1/content", json!({"type": "novelty", "data": 1}));
    assert!(check_anthropic(&headers(), &body).unwrap_err().message.contains("Input tag 'novelty'"));
    let mut validator = Validator::new();
    validator.remember_stream(STREAM.as_bytes());
    validator.check_anthropic(&headers(), &body).unwrap();
}

#[test]
fn the_error_has_the_provider_s_shape() {
    let error = check_anthropic(&headers(), &json!({})).unwrap_err();
    assert_eq!(
        error.anthropic_body("req_1"),
        json!({
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "model: Field required"},
            "request_id": "req_1"
        })
    );
}
