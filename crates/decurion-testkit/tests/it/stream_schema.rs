//! The schema of stream-json output: it accepts what was captured and what we made ourselves, and rejects
//! each of these once something in it is wrong.

use std::path::PathBuf;

use decurion_testkit::stream_schema::{check_line, check_value, kinds};
use serde_json::{Value, json};

const OURS: &str = include_str!("../fixtures/stream.jsonl");

fn fixtures() -> Vec<Value> {
    OURS.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The captures lie beside the workspace where it was built first; elsewhere there are none.
fn captures() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/interop/captures"));
    folder.is_dir().then_some(folder)
}

#[test]
fn every_line_of_ours_is_accepted() {
    for line in OURS.lines() {
        check_line(line).unwrap_or_else(|reason| panic!("{reason}\n{line}"));
    }
}

#[test]
fn every_captured_line_is_accepted() {
    let Some(folder) = captures() else { return };
    let mut lines = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = || std::fs::read_to_string(&path).unwrap();
        if name.starts_with("stream-") {
            for line in text().lines().filter(|line| !line.is_empty()) {
                check_line(line).unwrap_or_else(|reason| panic!("{name}: {reason}\n{line}"));
                lines += 1;
            }
        }
        // Conversations with a host: pairs of a direction and a line.
        if name.starts_with("sdk-") {
            for line in text().lines() {
                let (direction, value): (String, Value) = serde_json::from_str(line).unwrap();
                if direction == "OUT" {
                    check_value(&value).unwrap_or_else(|reason| panic!("{name}: {reason}\n{line}"));
                    lines += 1;
                }
            }
        }
    }
    assert!(lines > 250, "{lines}");
}

/// What each kind of line must have, apart from `type`, by the documented output and what its readers need.
const REQUIRED: &[(&str, &str)] = &[
    (
        "system/init",
        "subtype cwd tools mcp_servers model permissionMode slash_commands terminal_slash_commands apiKeySource \
         claude_code_version output_style agents skills plugins capabilities memory_paths original_cwd \
         additional_directories messaging_socket_path fast_mode_state view_mode uuid session_id",
    ),
    (
        "assistant",
        "message parent_tool_use_id timestamp uuid session_id message/id message/role message/model \
         message/content message/stop_reason message/usage message/usage/input_tokens message/content/0/type",
    ),
    ("user", "message parent_tool_use_id timestamp uuid session_id message/role message/content"),
    ("stream_event", "event parent_tool_use_id uuid session_id event/type event/index event/delta"),
    (
        "result",
        "subtype is_error duration_ms duration_api_ms num_turns stop_reason terminal_reason total_cost_usd usage \
         modelUsage permission_denials subagent_stats queued_turn_count result_index uuid session_id \
         subagent_stats/spawned subagent_stats/killed/user modelUsage/m-1/costUSD \
         permission_denials/0/tool_use_id usage/output_tokens",
    ),
    (
        "system/task_started",
        "subtype task_id run_id tool_use_id description is_backgrounded task_type uuid session_id",
    ),
    (
        "system/task_progress",
        "task_id run_id tool_use_id description subagent_type usage last_tool_name uuid session_id \
         usage/total_tokens",
    ),
    ("system/task_updated", "task_id run_id patch uuid session_id"),
    ("system/task_notification", "task_id run_id tool_use_id status output_file summary uuid session_id"),
    (
        "system/background_tasks_changed",
        "tasks uuid session_id tasks/0/task_id tasks/0/run_id tasks/0/task_type tasks/0/description",
    ),
    ("system/api_retry", "attempt max_retries retry_delay_ms error_status error uuid session_id"),
    ("system/status", "status uuid session_id"),
    ("system/compact_boundary", "compact_metadata uuid session_id compact_metadata/trigger"),
    ("system/hook_started", "hook_id hook_name hook_event uuid session_id"),
    ("system/hook_response", "hook_id hook_name hook_event stdout stderr output outcome uuid session_id"),
    ("system/permission_denied", "tool_name tool_use_id message uuid session_id"),
    ("system/session_state_changed", "state uuid session_id"),
    ("system/model_fallback", "trigger original_model fallback_model uuid session_id"),
    ("tool_progress", "tool_use_id tool_name parent_tool_use_id elapsed_time_seconds uuid session_id"),
    ("control_response/success", "response response/request_id"),
    ("control_response/error", "response response/request_id response/error"),
    (
        "control_request/can_use_tool",
        "request_id request request/tool_name request/input request/tool_use_id \
         request/permission_suggestions/0/destination",
    ),
    ("control_request/hook_callback", "request_id request/callback_id request/input"),
    ("control_request/mcp_message", "request_id request/server_name request/message request/message/jsonrpc"),
    ("control_cancel_request", "request_id"),
];

fn kind(line: &Value) -> String {
    let text = |pointer: &str| line.pointer(pointer).and_then(Value::as_str);
    let kind = text("/type").unwrap();
    let subtype = match kind {
        "system" => text("/subtype"),
        "control_request" => text("/request/subtype"),
        "control_response" => text("/response/subtype"),
        _ => None,
    };
    subtype.map_or(kind.to_owned(), |subtype| format!("{kind}/{subtype}"))
}

fn without(line: &Value, place: &str) -> Value {
    let mut line = line.clone();
    let (parent, key) = place.rsplit_once('/').unwrap_or(("", place));
    let parent = if parent.is_empty() { String::new() } else { format!("/{parent}") };
    let removed = line.pointer_mut(&parent).unwrap().as_object_mut().unwrap().remove(key);
    assert!(removed.is_some(), "{place} is not in {line}");
    line
}

fn rejected(line: &Value, why: &str) {
    assert!(check_value(line).is_err(), "accepted with {why}: {line}");
}

#[test]
fn a_line_without_something_required_is_rejected() {
    let mut mutations = 0;
    let mut covered = Vec::new();
    for line in fixtures() {
        let kind = kind(&line);
        let (_, required) = REQUIRED.iter().find(|(name, _)| *name == kind).expect(&kind);
        // Only the first fixture of a kind has all the places named.
        if covered.contains(&kind) {
            continue;
        }
        for place in required.split_whitespace() {
            rejected(&without(&line, place), &format!("no {place}"));
            mutations += 1;
        }
        covered.push(kind);
    }
    assert_eq!(covered.len(), REQUIRED.len());
    assert!(mutations >= 50, "{mutations}");
}

#[test]
fn an_unknown_member_is_rejected_wherever_the_schema_is_closed() {
    let inner =
        ["", "/message", "/message/usage", "/patch", "/compact_metadata", "/response", "/request", "/usage"];
    for line in fixtures() {
        for place in inner {
            let mut line = line.clone();
            if let Some(Value::Object(members)) = line.pointer_mut(place) {
                members.insert("surprise".into(), json!(1));
                rejected(&line, &format!("a surprise at {place}"));
            }
        }
    }
}

/// A value of another type than the one given.
fn other_type(value: &Value) -> Value {
    match value {
        Value::String(_) => json!(17),
        Value::Null => json!([17]),
        Value::Number(_) | Value::Object(_) => json!("text"),
        Value::Bool(_) => json!("true"),
        Value::Array(_) => json!({}),
    }
}

#[test]
fn a_member_of_another_type_is_rejected() {
    // Whatever a tool returns is passed on as it is.
    let free = ["tool_use_result"];
    for line in fixtures() {
        for key in line.as_object().unwrap().keys().filter(|key| !free.contains(&key.as_str())) {
            let mut changed = line.clone();
            changed[key] = other_type(&line[key]);
            rejected(&changed, &format!("{key} of another type"));
        }
    }
}

const WRONG: &[(&str, &str, &str)] = &[
    ("system/init", "/permissionMode", "\"yolo\""),
    ("system/init", "/claude_code_version", "\"new\""),
    ("system/init", "/tools/0", "4"),
    ("system/init", "/session_id", "\"s\""),
    ("assistant", "/message/role", "\"user\""),
    ("assistant", "/message/content", "[]"),
    (
        "assistant",
        "/message/content",
        "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]",
    ),
    ("assistant", "/message/content", "\"text\""),
    (
        "assistant",
        "/message/content/0",
        "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"B\",\"input\":\"{}\"}",
    ),
    ("assistant", "/message/content/0", "{\"type\":\"tool_result\",\"tool_use_id\":\"t\"}"),
    ("assistant", "/timestamp", "\"yesterday\""),
    ("user", "/message/content", "[]"),
    ("user", "/message/role", "\"assistant\""),
    ("user", "/message/content/0", "{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"B\",\"input\":{}}"),
    ("stream_event", "/event/type", "\"content_block_surprise\""),
    ("result", "/subtype", "\"error\""),
    ("result", "/subtype", "\"error_max_turns\""),
    ("result", "/num_turns", "-1"),
    ("result", "/total_cost_usd", "-0.5"),
    ("system/task_started", "/task_type", "\"agent\""),
    ("system/task_updated", "/patch", "{}"),
    ("system/task_updated", "/patch/status", "\"stopped\""),
    ("system/task_notification", "/status", "\"killed\""),
    ("system/task_notification", "/usage/tool_uses", "\"1\""),
    ("system/background_tasks_changed", "/tasks/0/task_type", "\"shell\""),
    ("system/api_retry", "/attempt", "0"),
    ("system/status", "/status", "\"thinking\""),
    ("system/compact_boundary", "/compact_metadata/trigger", "\"user\""),
    ("system/hook_response", "/outcome", "\"ok\""),
    ("system/session_state_changed", "/state", "\"busy\""),
    ("system/session_state_changed", "/subtype", "\"session_state\""),
    ("tool_progress", "/elapsed_time_seconds", "-1"),
    ("control_response/success", "/response/subtype", "\"ok\""),
    ("control_response/error", "/response/error", "\"\""),
    ("control_request/can_use_tool", "/request/permission_suggestions/0/type", "\"allow\""),
    ("control_request/can_use_tool", "/request/permission_suggestions/0/destination", "\"disk\""),
    ("control_request/mcp_message", "/request/message/jsonrpc", "\"1.0\""),
    ("control_cancel_request", "/type", "\"control_cancel\""),
];

#[test]
fn a_value_outside_its_range_is_rejected() {
    let lines = fixtures();
    for (name, place, value) in WRONG {
        let mut line = lines.iter().find(|line| kind(line) == *name).expect(name).clone();
        *line.pointer_mut(place).expect(place) = serde_json::from_str(value).unwrap();
        rejected(&line, &format!("{place} = {value}"));
    }
}

#[test]
fn what_is_no_line_at_all_is_rejected_with_a_reason() {
    for (line, reason) in [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("{\"type\":\"assistant\"", "not JSON"),
        ("[]", "no type"),
        ("{\"type\":5}", "no type"),
        ("{\"type\":\"system\"}", "without a subtype"),
        ("{\"type\":\"weather\"}", "not a kind of line that is known: weather"),
        ("{\"type\":\"system\",\"subtype\":\"weather\"}", "known: system/weather"),
    ] {
        let error = check_line(line).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
    let error = check_line("{\"type\":\"control_cancel_request\"}").unwrap_err();
    assert!(error.contains("control_cancel_request at /: \"request_id\" is a required property"), "{error}");
}

#[test]
fn every_definition_compiles() {
    let schema: Value = serde_json::from_str(include_str!("../../schema/stream-json.json")).unwrap();
    let known = kinds();
    for name in schema["$defs"].as_object().unwrap().keys().filter(|name| name.contains('/')) {
        assert!(known.contains(&name.as_str()), "{name} did not compile");
    }
    for (name, _) in REQUIRED {
        assert!(known.contains(name), "{name} did not compile");
    }
}
