//! A definition as a file. Takes a definition, gives the Markdown that reads back as the same: what `agents
//! show` prints, whether it was built in, given as JSON or found in a file.

use decurion_protocol::AgentDefinition;
use serde_json::{Map, Value, json};

/// The definition as Markdown with a head. Values are in JSON's form where that is also YAML's.
pub fn to_markdown(definition: &AgentDefinition) -> String {
    let mut text = "---\n".to_owned();
    for (key, value) in head(definition) {
        text += &format!("{key}: {}\n", scalar(&value));
    }
    text += "---\n\n";
    text += definition.prompt.trim();
    text.push('\n');
    text
}

/// The keys and values of a head that says what this definition is.
pub(crate) fn head(definition: &AgentDefinition) -> Map<String, Value> {
    let equipment = &definition.equipment;
    let names = |names: &[String]| (!names.is_empty()).then(|| json!(names));
    let flag = |on: bool| on.then_some(Value::Bool(true));
    let text = |text: &Option<String>| text.as_ref().map(|text| json!(text));
    let limits = &definition.limits;
    let budget: Map<String, Value> = [
        ("usd", limits.money.map(|money| json!(money.dollars()))),
        ("tokens", limits.tokens.map(|tokens| json!(tokens))),
        ("seconds", limits.seconds.map(|seconds| json!(seconds))),
        ("spawns", limits.spawns.map(|spawns| json!(spawns))),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    .collect();
    [
        ("name", Some(json!(definition.name))),
        ("description", Some(json!(definition.description))),
        ("tools", definition.tools.only.as_ref().map(|only| json!(only))),
        ("disallowedTools", names(&definition.tools.except)),
        ("model", text(&definition.model)),
        ("permissionMode", definition.mode.map(|mode| json!(mode.name()))),
        ("maxTurns", limits.turns.map(|turns| json!(turns))),
        ("budget", (!budget.is_empty()).then_some(Value::Object(budget))),
        ("background", flag(definition.background)),
        ("forkContext", flag(definition.fork_context)),
        ("hidden", flag(definition.hidden)),
        ("max_depth", definition.max_depth.map(|depth| json!(depth))),
        ("effort", text(&definition.effort)),
        ("criticalSystemReminder", text(&definition.reminder)),
        ("initialPrompt", text(&definition.initial_prompt)),
        ("color", text(&definition.color)),
        ("hooks", definition.hooks.clone()),
        ("skills", names(&equipment.skills)),
        ("mcpServers", equipment.mcp_servers.clone()),
        ("memory", text(&equipment.memory)),
        ("isolation", text(&equipment.isolation)),
        ("output_schema", equipment.output_schema.clone()),
        ("sandbox", super::bounds::write(&definition.sandbox)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    .collect()
}

/// A word as it is, everything else as JSON.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether YAML reads a text as itself without quotes: a word of letters that is none of its own.
fn is_plain(text: &str) -> bool {
    let own = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/".contains(&byte))
        && !own.contains(&text.to_ascii_lowercase().as_str())
}
