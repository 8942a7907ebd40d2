//! The Messages dialect. Takes headers, a body and what the server said before; gives the first thing that
//! is wrong, in the order the provider looks.

use std::collections::HashSet;

use hyper::HeaderMap;
use serde_json::{Map, Value};

use super::{
    ApiError, IMAGE_TYPES, Said, header, header_has, is_base64, is_name, seal, text, unknown_member,
};

type Checked = Result<(), ApiError>;

pub(super) fn check(headers: &HeaderMap, body: &Value, said: &Said) -> Checked {
    check_headers(headers)?;
    let Value::Object(body) = body else { return bad("Input should be a valid dictionary") };
    check_members(headers, body)?;
    check_settings(body)?;
    check_thinking(body)?;
    let tools = check_tools(body)?;
    check_tool_choice(body, &tools)?;
    check_system(body.get("system"))?;
    let Some(messages) = body.get("messages").and_then(Value::as_array) else {
        return bad("messages: Input should be a valid list");
    };
    check_roles(messages)?;
    for (at, message) in messages.iter().enumerate() {
        check_message(at, message, at + 1 == messages.len(), said)?;
    }
    check_pairs(messages)?;
    check_last_reasoning(messages, said)?;
    check_breakpoints(body)
}

fn bad<T>(message: impl Into<String>) -> Result<T, ApiError> {
    Err(ApiError::invalid(message))
}

fn check_headers(headers: &HeaderMap) -> Checked {
    if header(headers, "x-api-key").is_none() {
        match header(headers, "authorization") {
            None => return Err(ApiError::unauthorized("x-api-key header is required")),
            Some(value) if value.strip_prefix("Bearer ").is_none_or(|key| key.trim().is_empty()) => {
                return Err(ApiError::unauthorized("Invalid bearer token"));
            }
            Some(_) => {}
        }
    }
    if header(headers, "anthropic-version").is_none() {
        return bad("anthropic-version: header is required");
    }
    if header(headers, "anthropic-version") != Some("2023-06-01") {
        return bad("anthropic-version: unknown version");
    }
    if !header_has(headers, "content-type", "application/json") {
        return bad("content-type: should be application/json");
    }
    Ok(())
}

const MEMBERS: [&str; 17] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "thinking",
    "service_tier",
    "output_config",
    "container",
    "inference_geo",
];

/// Members that exist only with a beta header, and the part of the header that turns them on.
const BETA_MEMBERS: [(&str, &str); 2] =
    [("context_management", "context-management-"), ("mcp_servers", "mcp-client-")];

fn check_members(headers: &HeaderMap, body: &Map<String, Value>) -> Checked {
    for required in ["model", "messages", "max_tokens"] {
        if !body.contains_key(required) {
            return bad(format!("{required}: Field required"));
        }
    }
    for key in body.keys() {
        let beta = BETA_MEMBERS.iter().find(|(name, _)| name == key);
        let known = match beta {
            Some((_, flag)) => header_has(headers, "anthropic-beta", flag),
            None => MEMBERS.contains(&key.as_str()),
        };
        if !known {
            return bad(format!("{key}: Extra inputs are not permitted"));
        }
    }
    Ok(())
}

fn check_settings(body: &Map<String, Value>) -> Checked {
    match body.get("model").and_then(Value::as_str) {
        None => return bad("model: Input should be a valid string"),
        Some("") => return bad("model: String should have at least 1 character"),
        Some(_) => {}
    }
    match body.get("max_tokens") {
        Some(Value::Number(number)) if number.as_u64().is_some_and(|tokens| tokens > 0) => {}
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
            return bad("max_tokens: Input should be greater than or equal to 1");
        }
        _ => return bad("max_tokens: Input should be a valid integer"),
    }
    if body.get("stream").is_some_and(|stream| !stream.is_boolean()) {
        return bad("stream: Input should be a valid boolean");
    }
    for (name, most) in [("temperature", 1.0), ("top_p", 1.0)] {
        let Some(value) = body.get(name) else { continue };
        let Some(number) = value.as_f64() else {
            return bad(format!("{name}: Input should be a valid number"));
        };
        if !(0.0..=most).contains(&number) {
            return bad(format!("{name}: range: 0..{most}"));
        }
    }
    if let Some(sequences) = body.get("stop_sequences") {
        let Some(sequences) = sequences.as_array() else {
            return bad("stop_sequences: Input should be a valid list");
        };
        if sequences.iter().any(|sequence| sequence.as_str().is_none_or(|text| text.trim().is_empty())) {
            return bad("stop_sequences: each stop sequence must contain non-whitespace");
        }
    }
    check_metadata(body)
}

fn check_metadata(body: &Map<String, Value>) -> Checked {
    if let Some(metadata) = body.get("metadata") {
        let Value::Object(metadata) = metadata else {
            return bad("metadata: Input should be a valid dictionary");
        };
        if let Some(key) = unknown_member(metadata, &["user_id"]) {
            return bad(format!("metadata.{key}: Extra inputs are not permitted"));
        }
        if metadata.get("user_id").is_some_and(|id| !id.is_string() && !id.is_null()) {
            return bad("metadata.user_id: Input should be a valid string");
        }
    }
    if let Some(config) = body.get("output_config") {
        let Value::Object(config) = config else {
            return bad("output_config: Input should be a valid dictionary");
        };
        if let Some(key) = unknown_member(config, &["effort", "format"]) {
            return bad(format!("output_config.{key}: Extra inputs are not permitted"));
        }
        if let Some(effort) = config.get("effort")
            && !effort.as_str().is_some_and(|word| ["low", "medium", "high", "xhigh", "max"].contains(&word))
        {
            return bad("output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'");
        }
    }
    Ok(())
}

fn check_thinking(body: &Map<String, Value>) -> Checked {
    let Some(thinking) = body.get("thinking") else { return Ok(()) };
    match text(thinking, "type") {
        Some("disabled") => return Ok(()),
        Some("adaptive") => {
            if thinking.get("budget_tokens").is_some() {
                return bad("thinking.adaptive.budget_tokens: Extra inputs are not permitted");
            }
        }
        Some("enabled") => {
            let Some(budget) = thinking.get("budget_tokens").and_then(Value::as_u64) else {
                return bad("thinking.enabled.budget_tokens: Field required");
            };
            if budget < 1024 {
                return bad("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024");
            }
            if body.get("max_tokens").and_then(Value::as_u64).is_some_and(|most| most <= budget) {
                return bad("`max_tokens` must be greater than `thinking.budget_tokens`");
            }
        }
        other => {
            let found = other.unwrap_or_default();
            return bad(format!(
                "thinking: Input tag '{found}' found using 'type' does not match any of the expected tags: \
                 'adaptive', 'disabled', 'enabled'"
            ));
        }
    }
    if body.get("temperature").and_then(Value::as_f64).is_some_and(|degrees| degrees < 1.0) {
        return bad("`temperature` may only be set to 1 when thinking is enabled");
    }
    if matches!(body.get("tool_choice").and_then(|choice| text(choice, "type")), Some("any" | "tool")) {
        return bad("Thinking may not be enabled when tool_choice forces tool use.");
    }
    Ok(())
}

/// The names of the tools, once they are known to be good.
fn check_tools(body: &Map<String, Value>) -> Result<HashSet<&str>, ApiError> {
    let mut names = HashSet::new();
    let Some(tools) = body.get("tools") else { return Ok(names) };
    let Some(tools) = tools.as_array() else { return bad("tools: Input should be a valid list") };
    for (at, tool) in tools.iter().enumerate() {
        let name = check_tool(at, tool)?;
        if !names.insert(name) {
            return bad("tools: Tool names must be unique.");
        }
    }
    Ok(names)
}

const TOOL_MEMBERS: [&str; 10] = [
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "defer_loading",
    "input_examples",
    "allowed_callers",
    "eager_input_streaming",
];

fn check_tool(at: usize, tool: &Value) -> Result<&str, ApiError> {
    let Value::Object(members) = tool else {
        return bad(format!("tools.{at}: Input should be a valid dictionary"));
    };
    let Some(name) = text(tool, "name") else {
        return bad(format!("tools.{at}.custom.name: Field required"));
    };
    if !is_name(name, 128) {
        return bad(format!(
            "tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        ));
    }
    // A tool that the provider runs has a dated type and no schema of ours.
    if text(tool, "type").is_some_and(|kind| kind != "custom") {
        return Ok(name);
    }
    if let Some(key) = unknown_member(members, &TOOL_MEMBERS) {
        return bad(format!("tools.{at}.custom.{key}: Extra inputs are not permitted"));
    }
    if members.get("description").is_some_and(|description| !description.is_string()) {
        return bad(format!("tools.{at}.custom.description: Input should be a valid string"));
    }
    let Some(schema) = members.get("input_schema") else {
        return bad(format!("tools.{at}.custom.input_schema: Field required"));
    };
    if !schema.is_object() {
        return bad(format!("tools.{at}.custom.input_schema: Input should be a valid dictionary"));
    }
    match schema.get("type") {
        None => bad(format!("tools.{at}.custom.input_schema.type: Field required")),
        Some(Value::String(kind)) if kind == "object" => Ok(name),
        Some(_) => bad(format!("tools.{at}.custom.input_schema.type: Input should be 'object'")),
    }
}

fn check_tool_choice(body: &Map<String, Value>, tools: &HashSet<&str>) -> Checked {
    let Some(choice) = body.get("tool_choice") else { return Ok(()) };
    if tools.is_empty() {
        return bad("tool_choice: may only be specified while providing tools");
    }
    match text(choice, "type") {
        Some("auto" | "any" | "none") => Ok(()),
        Some("tool") => match text(choice, "name") {
            None => bad("tool_choice.tool.name: Field required"),
            Some(name) if !tools.contains(name) => bad(format!("Tool '{name}' not found in provided tools")),
            Some(_) => Ok(()),
        },
        other => bad(format!(
            "tool_choice: Input tag '{}' found using 'type' does not match any of the expected tags: \
             'auto', 'any', 'tool', 'none'",
            other.unwrap_or_default()
        )),
    }
}

fn check_system(system: Option<&Value>) -> Checked {
    match system {
        Some(Value::String(text)) if text.is_empty() => bad("system: text content blocks must be non-empty"),
        None | Some(Value::String(_)) => Ok(()),
        Some(Value::Array(blocks)) => {
            for (at, block) in blocks.iter().enumerate() {
                if text(block, "type") != Some("text") {
                    return bad(format!("system.{at}.type: Input should be 'text'"));
                }
                check_text(&format!("system.{at}"), "system", block)?;
            }
            Ok(())
        }
        Some(_) => bad("system: Input should be a valid list"),
    }
}

fn check_roles(messages: &[Value]) -> Checked {
    if messages.is_empty() {
        return bad("messages: at least one message is required");
    }
    let mut before = "";
    for (at, message) in messages.iter().enumerate() {
        let Value::Object(members) = message else {
            return bad(format!("messages.{at}: Input should be a valid dictionary"));
        };
        if let Some(key) = unknown_member(members, &["role", "content"]) {
            return bad(format!("messages.{at}.{key}: Extra inputs are not permitted"));
        }
        let role = match text(message, "role") {
            None => return bad(format!("messages.{at}.role: Field required")),
            Some(role @ ("user" | "assistant")) => role,
            Some("system") => {
                return bad(
                    "messages: Unexpected role \"system\". The Messages API accepts a top-level `system` \
                     parameter, not \"system\" as an input message role.",
                );
            }
            Some(_) => return bad(format!("messages.{at}.role: Input should be 'user' or 'assistant'")),
        };
        if at == 0 && role != "user" {
            return bad("messages: first message must use the \"user\" role");
        }
        if role == before {
            return bad(format!(
                "messages: roles must alternate between \"user\" and \"assistant\", but found multiple \
                 \"{role}\" roles in a row"
            ));
        }
        before = role;
    }
    Ok(())
}

fn check_message(at: usize, message: &Value, is_last: bool, said: &Said) -> Checked {
    let assistant = text(message, "role") == Some("assistant");
    let trailing = || bad("messages: final assistant content cannot end with trailing whitespace");
    match message.get("content") {
        None => bad(format!("messages.{at}.content: Field required")),
        Some(Value::String(words)) => {
            if words.is_empty() && !(is_last && assistant) {
                return bad(format!(
                    "messages.{at}: all messages must have non-empty content except for the optional final \
                     assistant message"
                ));
            }
            if words.trim().is_empty() && !words.is_empty() {
                return bad("messages: text content blocks must contain non-whitespace text");
            }
            if is_last && assistant && words.ends_with(char::is_whitespace) { trailing() } else { Ok(()) }
        }
        Some(Value::Array(blocks)) => {
            if blocks.is_empty() {
                return bad(format!(
                    "messages.{at}: all messages must have non-empty content except for the optional final \
                     assistant message"
                ));
            }
            for (index, block) in blocks.iter().enumerate() {
                check_block(&format!("messages.{at}.content.{index}"), block, assistant, said)?;
            }
            let last = blocks.last().and_then(|block| text(block, "text"));
            if is_last && assistant && last.is_some_and(|words| words.ends_with(char::is_whitespace)) {
                return trailing();
            }
            Ok(())
        }
        Some(_) => bad(format!("messages.{at}.content: Input should be a valid list")),
    }
}

const SERVER_BLOCKS: [&str; 7] = [
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
];

fn check_block(place: &str, block: &Value, assistant: bool, said: &Said) -> Checked {
    if !block.is_object() {
        return bad(format!("{place}: Input should be a valid dictionary"));
    }
    let Some(kind) = text(block, "type") else { return bad(format!("{place}.type: Field required")) };
    match (kind, assistant) {
        ("text", _) => check_text(place, "messages", block),
        ("thinking" | "redacted_thinking", true) => check_reasoning(place, kind, block, said),
        ("tool_use", true) => check_call(place, block),
        ("tool_result", false) => check_result(place, block),
        ("image", false) => check_image(place, block),
        ("document", false) => check_document(place, block),
        ("tool_use" | "thinking" | "redacted_thinking", false) => {
            bad(format!("{place}: `{kind}` blocks can only be in `assistant` messages"))
        }
        ("tool_result" | "image" | "document", true) => {
            bad(format!("{place}: `{kind}` blocks can only be in `user` messages"))
        }
        _ if SERVER_BLOCKS.contains(&kind) || said.kinds.contains(kind) => Ok(()),
        _ => bad(format!(
            "{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags: \
             'document', 'image', 'redacted_thinking', 'text', 'thinking', 'tool_result', 'tool_use'"
        )),
    }
}

/// A cache breakpoint has a known type and life time, and stands on a block that has a place for it.
fn check_members_of(place: &str, kind: &str, block: &Value, known: &[&str]) -> Checked {
    let Value::Object(members) = block else {
        return bad(format!("{place}: Input should be a valid dictionary"));
    };
    if let Some(key) = unknown_member(members, known) {
        return bad(format!("{place}.{kind}.{key}: Extra inputs are not permitted"));
    }
    match members.get("cache_control") {
        None | Some(Value::Null) => Ok(()),
        Some(control) => check_cache_control(place, control),
    }
}

fn check_cache_control(place: &str, control: &Value) -> Checked {
    let Value::Object(members) = control else {
        return bad(format!("{place}.cache_control: Input should be a valid dictionary"));
    };
    if members.get("type").and_then(Value::as_str) != Some("ephemeral") {
        return bad(format!("{place}.cache_control.type: Input should be 'ephemeral'"));
    }
    if let Some(ttl) = members.get("ttl")
        && !matches!(ttl.as_str(), Some("5m" | "1h"))
    {
        return bad(format!("{place}.cache_control.ephemeral.ttl: Input should be '5m' or '1h'"));
    }
    match unknown_member(members, &["type", "ttl", "scope"]) {
        Some(key) => bad(format!("{place}.cache_control.ephemeral.{key}: Extra inputs are not permitted")),
        None => Ok(()),
    }
}

fn check_text(place: &str, whose: &str, block: &Value) -> Checked {
    match block.get("text") {
        None => return bad(format!("{place}.text.text: Field required")),
        Some(Value::String(words)) if words.is_empty() => {
            if block.get("cache_control").is_some() {
                return bad(format!("{place}.text: cache_control cannot be set for empty text blocks"));
            }
            return bad(format!("{whose}: text content blocks must be non-empty"));
        }
        Some(Value::String(words)) if words.trim().is_empty() => {
            return bad(format!("{whose}: text content blocks must contain non-whitespace text"));
        }
        Some(Value::String(_)) => {}
        Some(_) => return bad(format!("{place}.text.text: Input should be a valid string")),
    }
    check_members_of(place, "text", block, &["type", "text", "cache_control", "citations"])
}

fn check_reasoning(place: &str, kind: &str, block: &Value, said: &Said) -> Checked {
    let required: &[&str] = if kind == "thinking" { &["thinking", "signature"] } else { &["data"] };
    for member in required {
        match block.get(*member) {
            None => return bad(format!("{place}.{kind}.{member}: Field required")),
            Some(Value::String(_)) => {}
            Some(_) => return bad(format!("{place}.{kind}.{member}: Input should be a valid string")),
        }
    }
    let Some(seal) = seal(block) else {
        return bad(format!("{place}: Invalid `signature` in `thinking` block"));
    };
    match said.thinking.get(seal) {
        Some(original) if original == block => Ok(()),
        Some(_) => modified(place),
        None => check_members_of(place, kind, block, &["type", "thinking", "signature", "data"]),
    }
}

fn modified(place: &str) -> Checked {
    bad(format!(
        "{place}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. \
         These blocks must remain as they were in the original response."
    ))
}

fn check_call(place: &str, block: &Value) -> Checked {
    for member in ["id", "name", "input"] {
        if block.get(member).is_none() {
            return bad(format!("{place}.tool_use.{member}: Field required"));
        }
    }
    if !text(block, "id").is_some_and(|id| is_name(id, 256)) {
        return bad(format!("{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"));
    }
    if !text(block, "name").is_some_and(|name| (1..=200).contains(&name.len())) {
        return bad(format!("{place}.tool_use.name: String should have at least 1 character"));
    }
    if !block["input"].is_object() {
        return bad(format!("{place}.tool_use.input: Input should be a valid dictionary"));
    }
    check_members_of(place, "tool_use", block, &["type", "id", "name", "input", "cache_control", "caller"])
}

fn check_result(place: &str, block: &Value) -> Checked {
    if text(block, "tool_use_id").is_none_or(str::is_empty) {
        return bad(format!("{place}.tool_result.tool_use_id: Field required"));
    }
    if block.get("is_error").is_some_and(|flag| !flag.is_boolean()) {
        return bad(format!("{place}.tool_result.is_error: Input should be a valid boolean"));
    }
    let failed = block.get("is_error") == Some(&Value::Bool(true));
    match block.get("content") {
        Some(Value::String(words)) if failed && words.is_empty() => {
            return bad(format!("{place}.tool_result: content cannot be empty if `is_error` is true"));
        }
        None | Some(Value::String(_)) => {}
        Some(Value::Array(blocks)) => {
            for (index, inner) in blocks.iter().enumerate() {
                check_result_part(&format!("{place}.tool_result.content.{index}"), inner, failed)?;
            }
        }
        Some(_) => return bad(format!("{place}.tool_result.content: Input should be a valid list")),
    }
    let known = ["type", "tool_use_id", "content", "is_error", "cache_control"];
    check_members_of(place, "tool_result", block, &known)
}

fn check_result_part(place: &str, block: &Value, failed: bool) -> Checked {
    match text(block, "type") {
        Some("text") => check_text(place, "messages", block),
        Some("image" | "document" | "search_result") if failed => {
            bad(format!("{place}: all content must be type \"text\" if `is_error` is true"))
        }
        Some("image") => check_image(place, block),
        Some("document") => check_document(place, block),
        Some("search_result" | "tool_reference") => Ok(()),
        other => bad(format!(
            "{place}: Input tag '{}' found using 'type' does not match any of the expected tags: 'document', \
             'image', 'search_result', 'text'",
            other.unwrap_or_default()
        )),
    }
}

fn check_image(place: &str, block: &Value) -> Checked {
    check_source(place, "image", block, &IMAGE_TYPES)?;
    check_members_of(place, "image", block, &["type", "source", "cache_control"])
}

fn check_document(place: &str, block: &Value) -> Checked {
    check_source(place, "document", block, &["application/pdf"])?;
    let known = ["type", "source", "title", "context", "citations", "cache_control"];
    check_members_of(place, "document", block, &known)
}

fn check_source(place: &str, kind: &str, block: &Value, types: &[&str]) -> Checked {
    let Some(source) = block.get("source").filter(|source| source.is_object()) else {
        return bad(format!("{place}.{kind}.source: Field required"));
    };
    match text(source, "type") {
        Some("base64") => {
            if !text(source, "media_type").is_some_and(|media| types.contains(&media)) {
                return bad(format!(
                    "{place}.{kind}.source.base64.media_type: Input should be '{}'",
                    types.join("', '")
                ));
            }
            if !text(source, "data").is_some_and(is_base64) {
                return bad(format!("{place}.{kind}.source.base64: invalid base64 data"));
            }
            Ok(())
        }
        Some("url") => match text(source, "url") {
            Some(url) if url.starts_with("https://") => Ok(()),
            _ => bad(format!("{place}.{kind}.source.url: Only HTTPS URLs are supported.")),
        },
        Some("file") if text(source, "file_id").is_some() => Ok(()),
        Some("text" | "content") if kind == "document" => Ok(()),
        other => bad(format!(
            "{place}.{kind}.source: Input tag '{}' found using 'type' does not match any of the expected tags: \
             'base64', 'url', 'file'",
            other.unwrap_or_default()
        )),
    }
}

fn blocks(message: &Value) -> &[Value] {
    message.get("content").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The ids of the blocks of one kind, with their place.
fn ids<'a>(message: &'a Value, kind: &'a str, member: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    blocks(message)
        .iter()
        .enumerate()
        .filter(move |(_, block)| text(block, "type") == Some(kind))
        .filter_map(move |(index, block)| Some((index, text(block, member)?)))
}

/// Every call is answered exactly once, in the next message, before anything else in it; every result
/// answers a call of the message before.
fn check_pairs(messages: &[Value]) -> Checked {
    let mut seen = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let mut answered = HashSet::new();
        for (index, id) in ids(message, "tool_result", "tool_use_id") {
            if !open.contains(&id) {
                return bad(format!(
                    "messages.{at}.content.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. \
                     Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                ));
            }
            if !answered.insert(id) {
                return bad(format!(
                    "messages.{at}.content.{index}: each tool_use must have a single result. Found multiple \
                     `tool_result` blocks with id: {id}"
                ));
            }
            // Other content before a result separates it from its call.
            if blocks(message)[..index].iter().any(|block| text(block, "type") != Some("tool_result")) {
                return unanswered(at - 1, &[id]);
            }
        }
        let missing: Vec<&str> = open.iter().copied().filter(|id| !answered.contains(id)).collect();
        if !missing.is_empty() {
            return unanswered(at - 1, &missing);
        }
        open.clear();
        for (index, id) in ids(message, "tool_use", "id") {
            if !seen.insert(id) {
                return bad(format!("messages.{at}.content.{index}: `tool_use` ids must be unique"));
            }
            open.push(id);
        }
    }
    if open.is_empty() { Ok(()) } else { unanswered(messages.len() - 1, &open) }
}

fn unanswered(at: usize, ids: &[&str]) -> Checked {
    bad(format!(
        "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each \
         `tool_use` block must have a corresponding `tool_result` block in the next message.",
        ids.join(", ")
    ))
}

/// The reasoning that led to the calls being answered now must still be there, in its order.
fn check_last_reasoning(messages: &[Value], said: &Said) -> Checked {
    let Some((at, last)) =
        messages.iter().enumerate().rev().find(|(_, message)| text(message, "role") == Some("assistant"))
    else {
        return Ok(());
    };
    let Some(expected) = ids(last, "tool_use", "id").find_map(|(_, id)| said.before_call.get(id)) else {
        return Ok(());
    };
    let present: Vec<&str> = blocks(last).iter().filter_map(seal).collect();
    if present.iter().eq(expected.iter()) { Ok(()) } else { modified(&format!("messages.{at}.content")) }
}

fn check_breakpoints(body: &Map<String, Value>) -> Checked {
    let marked = |value: &&Value| value.get("cache_control").is_some_and(|control| !control.is_null());
    let list = |name: &str| body.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let tools = list("tools");
    for (at, tool) in tools.iter().enumerate() {
        if let Some(control) = tool.get("cache_control").filter(|control| !control.is_null()) {
            check_cache_control(&format!("tools.{at}"), control)?;
        }
    }
    let in_messages = list("messages").iter().flat_map(blocks).map(|block| {
        let inner = block.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        usize::from(marked(&block)) + inner.iter().filter(marked).count()
    });
    let found = tools.iter().filter(marked).count()
        + list("system").iter().filter(marked).count()
        + in_messages.sum::<usize>();
    if found > 4 {
        return bad(format!("A maximum of 4 blocks with cache_control may be provided. Found {found}."));
    }
    Ok(())
}
