//! The Chat Completions dialect. Takes headers and a body, gives the first thing that is wrong.
//!
//! A key is not required, because local servers take none; one that is given must be well formed.

use std::collections::HashSet;

use hyper::HeaderMap;
use serde_json::{Map, Value};

use super::{ApiError, header, header_has, is_base64, is_name, text, unknown_member};

type Checked = Result<(), ApiError>;

pub(super) fn check(headers: &HeaderMap, body: &Value) -> Checked {
    check_headers(headers)?;
    let Value::Object(body) = body else {
        return bad("We could not parse the JSON body of your request: expected a JSON object.");
    };
    check_members(body)?;
    check_settings(body)?;
    check_reasoning(body)?;
    let tools = check_tools(body)?;
    check_tool_choice(body, &tools)?;
    let Some(messages) = body.get("messages").and_then(Value::as_array) else {
        return bad("Invalid type for 'messages': expected an array of objects.");
    };
    if messages.is_empty() {
        return bad("Invalid 'messages': empty array. Expected an array with minimum length 1.");
    }
    for (at, message) in messages.iter().enumerate() {
        check_message(at, message)?;
    }
    check_order(messages)?;
    check_pairs(messages)
}

fn bad<T>(message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::invalid(message))
}

fn check_headers(headers: &HeaderMap) -> Checked {
    if let Some(value) = header(headers, "authorization")
        && value.strip_prefix("Bearer ").is_none_or(|key| key.trim().is_empty())
    {
        return Err(ApiError::unauthorized(
            "You didn't provide an API key. You need to provide it in an Authorization header using Bearer auth.",
        ));
    }
    if !header_has(headers, "content-type", "application/json") {
        return bad("Invalid content type. Expected 'application/json'.");
    }
    Ok(())
}

const MEMBERS: [&str; 29] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "n",
    "stop",
    "seed",
    "user",
    "response_format",
    "reasoning_effort",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "metadata",
    "service_tier",
    "store",
    "verbosity",
    "prediction",
    "prompt_cache_key",
    "safety_identifier",
];

fn check_members(body: &Map<String, Value>) -> Checked {
    for required in ["model", "messages"] {
        if !body.contains_key(required) {
            return bad(format!("Missing required parameter: '{required}'."));
        }
    }
    match unknown_member(body, &MEMBERS) {
        Some(key) => bad(format!("Unrecognized request argument supplied: {key}")),
        None => Ok(()),
    }
}

fn check_settings(body: &Map<String, Value>) -> Checked {
    match body.get("model").and_then(Value::as_str) {
        None => return bad("Invalid type for 'model': expected a string."),
        Some("") => return bad("you must provide a model parameter"),
        Some(_) => {}
    }
    for name in ["max_tokens", "max_completion_tokens"] {
        match body.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::Number(number)) if number.as_u64().is_some_and(|tokens| tokens > 0) => {}
            Some(Value::Number(_)) => {
                return bad(format!("Invalid '{name}': integer below minimum value. Expected a value >= 1."));
            }
            Some(_) => return bad(format!("Invalid type for '{name}': expected an integer.")),
        }
    }
    if body.contains_key("max_tokens") && body.contains_key("max_completion_tokens") {
        return bad("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.");
    }
    if body.get("stream").is_some_and(|stream| !stream.is_boolean()) {
        return bad("Invalid type for 'stream': expected a boolean.");
    }
    if let Some(options) = body.get("stream_options") {
        if body.get("stream") != Some(&Value::Bool(true)) {
            return bad("The 'stream_options' parameter is only allowed when 'stream' is enabled.");
        }
        if options.get("include_usage").is_none_or(|flag| !flag.is_boolean()) {
            return bad("Invalid type for 'stream_options.include_usage': expected a boolean.");
        }
    }
    if let Some(value) = body.get("temperature")
        && !value.as_f64().is_some_and(|degrees| (0.0..=2.0).contains(&degrees))
    {
        return bad("Invalid 'temperature': expected a number between 0 and 2.");
    }
    Ok(())
}

/// What OpenAI's reasoning models refuse: the old limit of a reply, and effort beside function tools.
fn check_reasoning(body: &Map<String, Value>) -> Checked {
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
    let is_of = |families: &[&str]| families.iter().any(|family| model.starts_with(family));
    if is_of(&["gpt-5", "gpt-6", "o1", "o3", "o4"]) && body.contains_key("max_tokens") {
        return bad(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        );
    }
    let has_tools = body.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    let without_effort = body.get("reasoning_effort").and_then(Value::as_str) == Some("none");
    if has_tools
        && !without_effort
        && is_of(&["gpt-5.2", "gpt-5.3", "gpt-5.4", "gpt-5.5", "gpt-5.6", "gpt-6"])
    {
        return bad(format!(
            "Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions. To use \
             function tools, use /v1/responses or set reasoning_effort to 'none'."
        ));
    }
    Ok(())
}

fn check_tools(body: &Map<String, Value>) -> Result<HashSet<&str>, ApiError> {
    let mut names = HashSet::new();
    let Some(tools) = body.get("tools") else { return Ok(names) };
    let Some(tools) = tools.as_array() else {
        return bad("Invalid type for 'tools': expected an array of objects.");
    };
    if tools.is_empty() {
        return bad("Invalid 'tools': empty array. Expected an array with minimum length 1.");
    }
    for (at, tool) in tools.iter().enumerate() {
        let name = check_tool(at, tool)?;
        if !names.insert(name) {
            return bad(format!("Invalid 'tools[{at}].function.name': duplicate function name '{name}'."));
        }
    }
    Ok(names)
}

fn check_tool(at: usize, tool: &Value) -> Result<&str, ApiError> {
    if text(tool, "type") != Some("function") {
        return bad(format!("Invalid value for 'tools[{at}].type'. Supported values are: 'function'."));
    }
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return bad(format!("Missing required parameter: 'tools[{at}].function'."));
    };
    let Some(name) = function.get("name").and_then(Value::as_str) else {
        return bad(format!("Missing required parameter: 'tools[{at}].function.name'."));
    };
    if !is_name(name, 64) {
        return bad(format!(
            "Invalid 'tools[{at}].function.name': string does not match pattern. Expected a string that matches \
             the pattern '^[a-zA-Z0-9_-]{{1,64}}$'."
        ));
    }
    if let Some(key) = unknown_member(function, &["name", "description", "parameters", "strict"]) {
        return bad(format!("Unknown parameter: 'tools[{at}].function.{key}'."));
    }
    match function.get("parameters") {
        None => Ok(name),
        Some(schema) if text(schema, "type") == Some("object") => Ok(name),
        Some(schema) => bad(format!(
            "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got \
             'type: {}'.",
            schema.get("type").unwrap_or(&Value::Null)
        )),
    }
}

fn check_tool_choice(body: &Map<String, Value>, tools: &HashSet<&str>) -> Checked {
    for name in ["tool_choice", "parallel_tool_calls"] {
        if body.contains_key(name) && tools.is_empty() {
            return bad(format!(
                "Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            ));
        }
    }
    match body.get("tool_choice") {
        None => Ok(()),
        Some(Value::String(word)) if ["none", "auto", "required"].contains(&word.as_str()) => Ok(()),
        Some(choice @ Value::Object(_)) => match choice.pointer("/function/name").and_then(Value::as_str) {
            Some(name) if tools.contains(name) => Ok(()),
            _ => bad("Invalid value for 'tool_choice': the function named is not in 'tools'."),
        },
        Some(_) => {
            bad("Invalid value for 'tool_choice'. Supported values are: 'none', 'auto', and 'required'.")
        }
    }
}

fn check_message(at: usize, message: &Value) -> Checked {
    let Value::Object(members) = message else {
        return bad(format!("Invalid type for 'messages[{at}]': expected an object."));
    };
    let Some(role) = text(message, "role") else {
        return bad(format!("Missing required parameter: 'messages[{at}].role'."));
    };
    let known: &[&str] = match role {
        "system" | "developer" | "user" => &["role", "content", "name"],
        "assistant" => &["role", "content", "name", "tool_calls", "refusal", "reasoning_content"],
        "tool" => &["role", "content", "tool_call_id"],
        _ => {
            return bad(format!(
                "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'tool', and \
                 'developer'."
            ));
        }
    };
    if role == "tool" && text(message, "tool_call_id").is_none_or(str::is_empty) {
        return bad(
            "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.",
        );
    }
    if let Some(key) = unknown_member(members, known) {
        return bad(format!("Unknown parameter: 'messages[{at}].{key}'."));
    }
    if let Some(calls) = members.get("tool_calls") {
        check_calls(at, calls)?;
    }
    let may_be_absent = members.contains_key("tool_calls");
    check_content(at, role, members.get("content"), may_be_absent)
}

fn check_content(at: usize, role: &str, content: Option<&Value>, may_be_absent: bool) -> Checked {
    match content {
        None | Some(Value::Null) if may_be_absent => Ok(()),
        None | Some(Value::Null) => {
            bad(format!("Invalid value for 'messages[{at}].content': expected a string, got null."))
        }
        // A tool may have nothing to say; nobody else may.
        Some(Value::String(words)) if words.is_empty() && role != "tool" => {
            bad(format!("Invalid 'messages[{at}].content': empty string. Expected a non-empty string."))
        }
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) if parts.is_empty() => bad(format!(
            "Invalid 'messages[{at}].content': empty array. Expected an array with minimum length 1."
        )),
        Some(Value::Array(parts)) => {
            for (index, part) in parts.iter().enumerate() {
                check_part(&format!("messages[{at}].content[{index}]"), role, part)?;
            }
            Ok(())
        }
        Some(_) => bad(format!(
            "Invalid type for 'messages[{at}].content': expected one of a string or array of objects."
        )),
    }
}

fn check_part(place: &str, role: &str, part: &Value) -> Checked {
    match text(part, "type") {
        Some("text") => match text(part, "text") {
            None => bad(format!("Missing required parameter: '{place}.text'.")),
            Some("") => bad(format!("Invalid '{place}.text': empty string. Expected a non-empty string.")),
            Some(_) => Ok(()),
        },
        Some("image_url") if role == "user" => {
            let Some(url) = part.pointer("/image_url/url").and_then(Value::as_str) else {
                return bad(format!("Missing required parameter: '{place}.image_url.url'."));
            };
            check_image(place, url)
        }
        Some(kind @ "image_url") => {
            bad(format!("Invalid '{place}': '{kind}' is only supported in messages with role 'user'."))
        }
        other => bad(format!(
            "Invalid value for '{place}.type': '{}'. Supported values are: 'text' and 'image_url'.",
            other.unwrap_or_default()
        )),
    }
}

fn check_image(place: &str, url: &str) -> Checked {
    let good = match url.strip_prefix("data:") {
        None => url.starts_with("https://") || url.starts_with("http://"),
        Some(rest) => rest
            .split_once(";base64,")
            .is_some_and(|(media, data)| super::IMAGE_TYPES.contains(&media) && is_base64(data)),
    };
    if good {
        return Ok(());
    }
    bad(format!(
        "Invalid '{place}.image_url.url'. Expected a base64-encoded data URL with an image MIME type, or an HTTP \
         URL."
    ))
}

fn check_calls(at: usize, calls: &Value) -> Checked {
    let Some(calls) = calls.as_array() else {
        return bad(format!("Invalid type for 'messages[{at}].tool_calls': expected an array of objects."));
    };
    if calls.is_empty() {
        return bad(format!(
            "Invalid 'messages[{at}].tool_calls': empty array. Expected an array with minimum length 1."
        ));
    }
    for (index, call) in calls.iter().enumerate() {
        let place = format!("messages[{at}].tool_calls[{index}]");
        if text(call, "id").is_none_or(str::is_empty) {
            return bad(format!("Missing required parameter: '{place}.id'."));
        }
        if text(call, "type") != Some("function") {
            return bad(format!("Invalid value for '{place}.type'. Supported values are: 'function'."));
        }
        let function = &call["function"];
        if !text(function, "name").is_some_and(|name| is_name(name, 64)) {
            return bad(format!("Invalid '{place}.function.name': string does not match pattern."));
        }
        let Some(arguments) = text(function, "arguments") else {
            return bad(format!("Invalid type for '{place}.function.arguments': expected a string."));
        };
        if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
            return bad(format!("Invalid '{place}.function.arguments': expected a JSON object in a string."));
        }
    }
    Ok(())
}

/// Instructions come first, then the user; the model does not speak twice running.
fn check_order(messages: &[Value]) -> Checked {
    let role = |message| text(message, "role").unwrap_or_default();
    let is_head = |role| matches!(role, "system" | "developer");
    let head = messages.iter().take_while(|message| is_head(role(message))).count();
    let Some(first) = messages.get(head) else {
        return bad("Invalid 'messages': no user message found.");
    };
    if messages[head..].iter().any(|message| is_head(role(message))) {
        return bad("System message must be at the beginning.");
    }
    // A stray tool result is reported as such, by the check of pairs.
    if role(first) == "assistant" {
        return bad("Invalid 'messages': the first message after the system message must be from the user.");
    }
    if messages.windows(2).any(|pair| role(&pair[0]) == "assistant" && role(&pair[1]) == "assistant") {
        return bad("Cannot have 2 or more assistant messages in a row.");
    }
    Ok(())
}

/// Right after a message with calls come the tool messages that answer each exactly once.
fn check_pairs(messages: &[Value]) -> Checked {
    let mut seen = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    let mut calls = 0;
    for (at, message) in messages.iter().enumerate() {
        if text(message, "role") == Some("tool") {
            let id = text(message, "tool_call_id").unwrap_or_default();
            if calls == 0 {
                return bad(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message \
                     with 'tool_calls'.",
                );
            }
            let Some(index) = open.iter().position(|call| *call == id) else {
                return bad(format!(
                    "Invalid 'messages[{at}].tool_call_id': '{id}' not found in 'tool_calls' of the previous \
                     message, or answered before."
                ));
            };
            open.swap_remove(index);
            continue;
        }
        if !open.is_empty() {
            return unanswered(&open);
        }
        calls = 0;
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let id = text(call, "id").unwrap_or_default();
            if !seen.insert(id) {
                return bad(format!("Duplicate value for 'tool_call_id' of '{id}' in 'messages[{at}]'."));
            }
            open.push(id);
            calls += 1;
        }
    }
    if open.is_empty() { Ok(()) } else { unanswered(&open) }
}

fn unanswered(open: &[&str]) -> Checked {
    bad(format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each \
         'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        open.join(", ")
    ))
}
