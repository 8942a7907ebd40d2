//! `decurion agents explain`: the decisions that a start would take, each with its reason. Takes a definition
//! and the settings, gives them as JSON and as text; the decisions themselves are the engine's own.

use std::fmt::Write as _;

use decurion_config::{Loaded, LoadedAgent, Skills, memory};
use decurion_engine::child::ModeStep;
use decurion_engine::child::{self, AgentInput, BACKGROUND, NEVER_FOR_AGENTS, NEVER_FOR_CUSTOM};
use decurion_engine::ports::Memory;
use decurion_protocol::AgentDefinition;
use serde_json::{Value, json};

use super::agents::tool_names;
use crate::wire;

/// Everything about one agent, started by the session's own.
pub fn explain(agent: &LoadedAgent, loaded: &Loaded, background: Option<bool>, model: Option<&str>) -> Value {
    let definition = &agent.definition;
    let settings = wire::agent_settings(loaded);
    let is_fork = definition.name == decurion_engine::fork::NAME;
    let background = child::background(&settings, background, definition, is_fork);
    let parent = loaded.settings.model.clone().unwrap_or_else(|| "the session's model".to_owned());
    let shares = is_fork || definition.fork_context;
    let model = child::model(&settings, model, definition, shares, &parent);
    let names = tool_names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let may_spawn = child::may_spawn(&settings, definition, 1);
    let remembering = remembering(definition, loaded);
    let tools = child::tools(&names, &remembering, background.value, may_spawn || is_fork);
    let session = loaded.settings.permissions.default_mode;
    let session = (session, wire::undecided(loaded));
    let mode = child::mode(session, &[ModeStep::of(definition)], settings.trusted);
    let limits = child::limits(&AgentInput::default(), definition);
    let hooks = loaded.hooks_of(definition);
    json!({
        "name": definition.name,
        "origin": agent.origin,
        "model": {"value": model.value, "why": model.why},
        "mode": {"value": mode.value, "why": mode.why},
        "background": {"value": background.value, "why": background.why},
        "sees_conversation": shares,
        "may_start_agents": may_spawn,
        "tools": tools.iter().filter(|tool| tool.removed.is_none()).map(|tool| &tool.tool).collect::<Vec<_>>(),
        "removed": tools
            .iter()
            .filter_map(|tool| Some(json!({"tool": tool.tool, "why": tool.removed.as_ref()?})))
            .collect::<Vec<_>>(),
        "limits": limits,
        "sandbox": definition.sandbox,
        "hooks": hooks.declarations.len(),
        "lists": {
            "never_for_agents": NEVER_FOR_AGENTS,
            "never_for_custom": NEVER_FOR_CUSTOM,
            "background": BACKGROUND,
        },
    })
}

/// The definition with what its memory adds to it.
fn remembering(definition: &AgentDefinition, loaded: &Loaded) -> AgentDefinition {
    let mut whole = definition.clone();
    let scope = definition.equipment.memory.as_deref();
    let folder = scope.map(|scope| memory::folder(&loaded.paths, scope, &definition.name, definition.source));
    if let Some(Ok(folder)) = folder {
        child::remember(&mut whole, &Memory { folder, index: String::new() });
    }
    whole
}

/// What it carries: skills, memory, servers, isolation, and what its report must be.
pub fn equipment(explained: &mut Value, definition: &AgentDefinition, loaded: &Loaded, skills: &Skills) {
    let equipment = &definition.equipment;
    let skill = |name: &String| match skills.get(name) {
        Some(skill) => json!({"name": skill.name, "file": skill.path}),
        None => json!({"name": name, "missing": true}),
    };
    explained["skills"] = equipment.skills.iter().map(skill).collect();
    explained["memory"] = equipment.memory.as_deref().map_or(Value::Null, |scope| {
        match memory::folder(&loaded.paths, scope, &definition.name, definition.source) {
            Ok(folder) => json!({"scope": scope, "folder": folder}),
            Err(error) => json!({"scope": scope, "problem": error.to_string()}),
        }
    });
    explained["mcp_servers"] = json!(equipment.mcp_servers.as_ref().map(server_names).unwrap_or_default());
    explained["isolation"] = json!(equipment.isolation);
    explained["output_schema"] = json!(equipment.output_schema.is_some());
}

/// The names of servers; what one is declared with may hold secrets.
fn server_names(servers: &Value) -> Vec<String> {
    match servers {
        Value::String(name) => vec![name.clone()],
        Value::Array(items) => items.iter().flat_map(server_names).collect(),
        Value::Object(members) => members.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// The same for people.
pub fn text(explained: &Value) -> String {
    let mut text = String::new();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{} ({})", word(&explained["name"]), word(&explained["origin"]));
    for (label, key) in [("model", "model"), ("mode", "mode"), ("background", "background")] {
        let _ = writeln!(
            text,
            "  {label:<12} {} – {}",
            word(&explained[key]["value"]),
            word(&explained[key]["why"])
        );
    }
    let list =
        |value: &Value| value.as_array().into_iter().flatten().map(&word).collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "  {:<12} {}", "tools", list(&explained["tools"]));
    for removed in explained["removed"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "  {:<12} {} – {}", "not", word(&removed["tool"]), word(&removed["why"]));
    }
    let limits = explained["limits"].as_object().into_iter().flatten();
    for (name, value) in limits.filter(|(_, value)| !value.is_null()) {
        let _ = writeln!(text, "  {:<12} {name}: {value}", "limit");
    }
    if explained["sees_conversation"] == true {
        let _ = writeln!(text, "  {:<12} its parent's conversation", "sees");
    }
    for skill in explained["skills"].as_array().into_iter().flatten() {
        let file = skill["file"].as_str().unwrap_or("there is no such skill");
        let _ = writeln!(text, "  {:<12} {} – {file}", "skill", word(&skill["name"]));
    }
    if let Some(scope) = explained["memory"]["scope"].as_str() {
        let folder = explained["memory"]["folder"].as_str().or(explained["memory"]["problem"].as_str());
        let _ = writeln!(text, "  {:<12} {scope} – {}", "memory", folder.unwrap_or_default());
    }
    for server in explained["mcp_servers"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "  {:<12} {}", "server", word(server));
    }
    if let Some(isolation) = explained["isolation"].as_str() {
        let _ = writeln!(text, "  {:<12} {isolation}", "isolation");
    }
    if explained["sandbox"]["no_network"] == true {
        let _ = writeln!(text, "  {:<12} no network", "sandbox");
    }
    for hosts in explained["sandbox"]["allowed_hosts"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "  {:<12} reaches only {}", "sandbox", list(hosts));
    }
    for (key, words) in
        [("denied_hosts", "never reaches"), ("deny_read", "cannot read"), ("deny_write", "cannot write")]
    {
        if explained["sandbox"][key].is_array() {
            let _ = writeln!(text, "  {:<12} {words} {}", "sandbox", list(&explained["sandbox"][key]));
        }
    }
    if explained["output_schema"] == true {
        let _ = writeln!(text, "  {:<12} JSON by `output_schema`", "report");
    }
    if explained["hooks"].as_u64().is_some_and(|count| count > 0) {
        let _ = writeln!(text, "  {:<12} its own: {}", "hooks", explained["hooks"]);
    }
    text
}
