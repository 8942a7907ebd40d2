//! The shape of every line that headless output may contain. Takes a line, gives nothing back if the schema
//! in `schema/stream-json.json` accepts it and the first few reasons if not.

use std::collections::HashMap;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

/// Checks one line of stream-json output.
pub fn check_line(line: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("not JSON: {error}"))?;
    check_value(&value)
}

/// Checks one line that has been parsed already.
pub fn check_value(value: &Value) -> Result<(), String> {
    let kind = kind(value)?;
    let Some(validator) = VALIDATORS.get(&kind) else {
        return Err(format!("not a kind of line that is known: {kind}"));
    };
    let mut reasons = validator.iter_errors(value).map(|error| {
        let place = error.instance_path().to_string();
        format!("{kind} at {}: {error}", if place.is_empty() { "/" } else { &place })
    });
    match reasons.next() {
        None => Ok(()),
        Some(first) => {
            let rest: Vec<String> = reasons.take(4).collect();
            Err(if rest.is_empty() { first } else { format!("{first}; {}", rest.join("; ")) })
        }
    }
}

/// Every kind of line that is known, `type` or `type/subtype`, sorted.
pub fn kinds() -> Vec<&'static str> {
    let mut kinds: Vec<&str> = VALIDATORS.keys().map(String::as_str).collect();
    kinds.sort_unstable();
    kinds
}

/// What decides which definition a line is held against. A result's subtype is a member like any other.
fn kind(value: &Value) -> Result<String, String> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let kind = text("/type").ok_or("no type")?;
    let subtype = match kind {
        "system" => text("/subtype"),
        "control_request" => text("/request/subtype"),
        "control_response" => text("/response/subtype"),
        _ => return Ok(kind.to_owned()),
    };
    Ok(format!("{kind}/{}", subtype.ok_or_else(|| format!("{kind} without a subtype"))?))
}

const SCHEMA: &str = include_str!("../schema/stream-json.json");

/// One validator for each kind. A schema of ours that does not compile leaves its kind out, which the
/// kit's own tests notice.
static VALIDATORS: LazyLock<HashMap<String, Validator>> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap_or_default();
    let Some(definitions) = schema.get("$defs").and_then(Value::as_object) else { return HashMap::new() };
    definitions
        .iter()
        .filter(|(_, definition)| is_line(definition))
        .filter_map(|(name, _)| {
            let pointer = name.replace('/', "~1");
            let document = json!({"$ref": format!("#/$defs/{pointer}"), "$defs": definitions});
            Some((name.clone(), jsonschema::validator_for(&document).ok()?))
        })
        .collect()
});

/// Lines are told from their parts by what they say of `type`; kinds known by name only refer to `named`.
fn is_line(definition: &Value) -> bool {
    let block = ["text", "image", "document", "tool_use", "tool_result", "thinking", "message"];
    match definition.pointer("/properties/type/const").and_then(Value::as_str) {
        Some(kind) => !block.contains(&kind),
        None => definition.get("$ref").and_then(Value::as_str) == Some("#/$defs/named"),
    }
}
