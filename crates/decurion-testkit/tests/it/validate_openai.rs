//! A table of requests of the Chat Completions dialect: good ones pass, each bad one is refused for its own
//! reason.

use decurion_testkit::validate::check_openai;
use hyper::HeaderMap;
use serde_json::{Value, json};

type Change = fn(&mut Value);

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer test".parse().unwrap());
    headers.insert("content-type", "application/json".parse().unwrap());
    headers
}

fn call(id: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": "Bash", "arguments": arguments}})
}

fn good() -> Value {
    json!({
        "model": "test",
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 100,
        "tools": [{"type": "function", "function": {
            "name": "Bash", "description": "runs", "parameters": {"type": "object", "properties": {}}
        }}],
        "messages": [
            {"role": "system", "content": "you are"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "looking",
             "tool_calls": [call("c1", "{\"command\":\"ls\"}"), call("c2", "{}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "a"},
            {"role": "tool", "tool_call_id": "c2", "content": "b"},
            {"role": "user", "content": [{"type": "text", "text": "a note"}]}
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

fn push(body: &mut Value, value: Value) {
    body["messages"].as_array_mut().unwrap().push(value);
}

const BAD: &[(&str, Change)] = &[
    ("expected a JSON object", |b| *b = json!("hi")),
    ("Missing required parameter: 'model'", |b| remove(b, "/model")),
    ("Invalid type for 'model'", |b| set(b, "/model", json!(1))),
    ("you must provide a model parameter", |b| set(b, "/model", json!(""))),
    ("Missing required parameter: 'messages'", |b| remove(b, "/messages")),
    ("Invalid type for 'messages'", |b| set(b, "/messages", json!("hi"))),
    ("Invalid 'messages': empty array", |b| set(b, "/messages", json!([]))),
    ("Unrecognized request argument supplied: system", |b| set(b, "/system", json!("x"))),
    ("Invalid 'max_tokens': integer below minimum", |b| set(b, "/max_tokens", json!(0))),
    ("Invalid type for 'max_tokens'", |b| set(b, "/max_tokens", json!("5"))),
    ("at the same time is not supported", |b| set(b, "/max_completion_tokens", json!(5))),
    ("Invalid type for 'stream'", |b| set(b, "/stream", json!(1))),
    ("only allowed when 'stream' is enabled", |b| set(b, "/stream", json!(false))),
    ("stream_options.include_usage", |b| set(b, "/stream_options", json!({}))),
    ("Invalid 'temperature'", |b| set(b, "/temperature", json!(3))),
    // Tools.
    ("Invalid type for 'tools'", |b| set(b, "/tools", json!({}))),
    ("Invalid 'tools': empty array", |b| set(b, "/tools", json!([]))),
    ("'tools[0].type'", |b| set(b, "/tools/0/type", json!("custom"))),
    ("Missing required parameter: 'tools[0].function'", |b| remove(b, "/tools/0/function")),
    ("Missing required parameter: 'tools[0].function.name'", |b| remove(b, "/tools/0/function/name")),
    ("'tools[0].function.name': string does not match", |b| set(b, "/tools/0/function/name", json!("a.b"))),
    ("duplicate function name 'Bash'", |b| {
        let first = b["tools"][0].clone();
        b["tools"].as_array_mut().unwrap().push(first);
    }),
    ("Invalid schema for function 'Bash'", |b| set(b, "/tools/0/function/parameters", json!({}))),
    ("Unknown parameter: 'tools[0].function.input_schema'", |b| {
        set(b, "/tools/0/function/input_schema", json!({}));
    }),
    ("'tool_choice' is only allowed when 'tools'", |b| {
        remove(b, "/tools");
        set(b, "/tool_choice", json!("auto"));
    }),
    ("Invalid value for 'tool_choice'. Supported", |b| set(b, "/tool_choice", json!("any"))),
    ("the function named is not in 'tools'", |b| {
        set(b, "/tool_choice", json!({"type": "function", "function": {"name": "Nope"}}));
    }),
    // Messages.
    ("Missing required parameter: 'messages[1].role'", |b| remove(b, "/messages/1/role")),
    ("Invalid value: 'model'. Supported values", |b| set(b, "/messages/1/role", json!("model"))),
    ("System message must be at the beginning", |b| {
        push(b, json!({"role": "system", "content": "also"}));
    }),
    ("must be from the user", |b| remove(b, "/messages/1")),
    ("no user message found", |b| {
        set(b, "/messages", json!([{"role": "system", "content": "x"}]));
    }),
    ("2 or more assistant messages in a row", |b| {
        push(b, json!({"role": "assistant", "content": "a"}));
        push(b, json!({"role": "assistant", "content": "b"}));
    }),
    ("expected a string, got null", |b| set(b, "/messages/1/content", json!(null))),
    ("expected a string, got null", |b| push(b, json!({"role": "assistant", "content": null}))),
    ("'messages[1].content': empty string", |b| set(b, "/messages/1/content", json!(""))),
    ("'messages[1].content': empty array", |b| set(b, "/messages/1/content", json!([]))),
    ("expected one of a string or array of objects", |b| set(b, "/messages/1/content", json!({}))),
    ("'messages[5].content[0].text': empty string", |b| set(b, "/messages/5/content/0/text", json!(""))),
    ("'messages[5].content[0].type': 'image'", |b| set(b, "/messages/5/content/0/type", json!("image"))),
    ("Unknown parameter: 'messages[1].cache_control'", |b| set(b, "/messages/1/cache_control", json!({}))),
    ("Unknown parameter: 'messages[3].is_error'", |b| set(b, "/messages/3/is_error", json!(true))),
    // Images.
    ("image_url.url'. Expected", |b| {
        let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,a b"}});
        set(b, "/messages/5/content/0", part);
    }),
    ("image_url.url'. Expected", |b| {
        let part = json!({"type": "image_url", "image_url": {"url": "data:text/html;base64,aGk="}});
        set(b, "/messages/5/content/0", part);
    }),
    ("Missing required parameter: 'messages[5].content[0].image_url.url'", |b| {
        set(b, "/messages/5/content/0", json!({"type": "image_url", "image_url": "x"}));
    }),
    ("only supported in messages with role 'user'", |b| {
        let part = json!({"type": "image_url", "image_url": {"url": "https://x/y.png"}});
        set(b, "/messages/3/content", json!([part]));
    }),
    // Calls and their answers.
    ("did not have response messages: c1", |b| remove(b, "/messages/3")),
    ("did not have response messages: c1, c2", |b| {
        b["messages"].as_array_mut().unwrap().truncate(3);
    }),
    ("did not have response messages: c2", |b| {
        let messages = b["messages"].as_array_mut().unwrap();
        messages.swap(4, 5);
    }),
    ("'c9' not found in 'tool_calls'", |b| set(b, "/messages/3/tool_call_id", json!("c9"))),
    ("answered before", |b| set(b, "/messages/4/tool_call_id", json!("c1"))),
    ("must have a 'tool_call_id'", |b| remove(b, "/messages/3/tool_call_id")),
    ("must be a response to a preceeding message", |b| {
        push(b, json!({"role": "tool", "tool_call_id": "c1", "content": "x"}));
    }),
    ("Duplicate value for 'tool_call_id'", |b| set(b, "/messages/2/tool_calls/1/id", json!("c1"))),
    ("'messages[2].tool_calls': empty array", |b| set(b, "/messages/2/tool_calls", json!([]))),
    ("Invalid type for 'messages[2].tool_calls'", |b| set(b, "/messages/2/tool_calls", json!({}))),
    ("'messages[2].tool_calls[0].id'", |b| remove(b, "/messages/2/tool_calls/0/id")),
    ("'messages[2].tool_calls[1].type'", |b| remove(b, "/messages/2/tool_calls/1/type")),
    ("tool_calls[0].function.name'", |b| set(b, "/messages/2/tool_calls/0/function/name", json!(""))),
    ("function.arguments': expected a string", |b| {
        set(b, "/messages/2/tool_calls/0/function/arguments", json!({"command": "ls"}));
    }),
    ("expected a JSON object in a string", |b| {
        set(b, "/messages/2/tool_calls/0/function/arguments", json!("{\"command\":"));
    }),
    ("expected a JSON object in a string", |b| {
        set(b, "/messages/2/tool_calls/0/function/arguments", json!("[]"));
    }),
    ("Unknown parameter: 'messages[1].tool_calls'", |b| {
        set(b, "/messages/1/tool_calls", json!([call("c3", "{}")]));
    }),
];

#[test]
fn each_bad_request_is_refused_for_its_own_reason() {
    assert!(BAD.len() >= 40, "{}", BAD.len());
    for (at, (fragment, change)) in BAD.iter().enumerate() {
        let mut body = good();
        change(&mut body);
        let error = check_openai(&headers(), &body).expect_err(&format!("row {at} ({fragment}) passed"));
        assert!(error.message.contains(fragment), "row {at}: wanted {fragment}\n got {}", error.message);
        assert_eq!(error.status, 400, "row {at}");
    }
}

const GOOD: &[Change] = &[
    |_| {},
    |b| set(b, "/messages", json!([{"role": "user", "content": "hi"}])),
    |b| set(b, "/messages/0/role", json!("developer")),
    |b| remove(b, "/messages/0"),
    |b| {
        remove(b, "/messages/5");
    },
    |b| set(b, "/messages/2/content", json!(null)),
    |b| remove(b, "/messages/2/content"),
    |b| set(b, "/messages/3/content", json!("")),
    |b| {
        b["messages"].as_array_mut().unwrap().swap(3, 4);
    },
    |b| {
        push(b, json!({"role": "user", "content": "and another"}));
    },
    |b| {
        remove(b, "/max_tokens");
        set(b, "/max_completion_tokens", json!(10));
    },
    |b| {
        let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}});
        set(b, "/messages/5/content/0", part);
    },
    |b| set(b, "/tool_choice", json!({"type": "function", "function": {"name": "Bash"}})),
    |b| {
        remove(b, "/tools");
        set(b, "/temperature", json!(0));
    },
];

#[test]
fn good_requests_pass() {
    for (at, change) in GOOD.iter().enumerate() {
        let mut body = good();
        change(&mut body);
        check_openai(&headers(), &body).unwrap_or_else(|error| panic!("row {at}: {error}"));
    }
}

#[test]
fn a_key_is_optional_but_must_be_well_formed() {
    let mut headers = headers();
    headers.remove("authorization");
    check_openai(&headers, &good()).unwrap();
    headers.insert("authorization", "Bearer ".parse().unwrap());
    assert_eq!(check_openai(&headers, &good()).unwrap_err().status, 401);
    headers.remove("authorization");
    headers.remove("content-type");
    assert!(check_openai(&headers, &good()).unwrap_err().message.contains("content type"));
}

#[test]
fn the_error_has_the_provider_s_shape() {
    let error = check_openai(&headers(), &json!({})).unwrap_err();
    let body = error.openai_body();
    assert_eq!(body.pointer("/error/type"), Some(&json!("invalid_request_error")));
    assert_eq!(body.pointer("/error/message"), Some(&json!("Missing required parameter: 'model'.")));
}
