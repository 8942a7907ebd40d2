//! What a host says when it comes. Takes its `initialize` request, gives what of it shapes the session, with what
//! is left out of it; or the one thing that is wrong with it.

use std::time::Duration;

use decurion_protocol::{HookDeclaration, HookEvent, OnFailure};
use serde_json::{Map, Value, json};

/// The longest time that a function of the host may take.
const LONGEST: f64 = 86_400.0;

/// What a host wants of the session that it leads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Initialize {
    /// Its functions that are hooks.
    pub hooks: Vec<HookDeclaration>,
    /// Agents, as `--agents` takes them.
    pub agents: Option<Value>,
    /// MCP servers that live in it, as `--mcp-config` takes them; none where there are none.
    pub servers: Option<Value>,
    /// What those servers said of themselves when the host asked them, by their names.
    pub manifests: Vec<(String, ServerManifest)>,
    pub system: Option<String>,
    /// What is added to the system prompt.
    pub append_system: Option<String>,
    /// What the answer must satisfy.
    pub json_schema: Option<Value>,
    /// The only skills that the session's own agent may see.
    pub skills: Option<Vec<String>>,
    pub plugins: Vec<WantedPlugin>,
    /// Whether the texts of agents that are waited for are shown too.
    pub forward_subagent_text: bool,
    /// What it asked for and does not get, in words.
    pub left_out: Vec<String>,
}

/// What a server in the host says of itself, in the words of MCP.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerManifest {
    /// Its answer to `initialize`.
    pub initialize: Value,
    /// Its answer to `tools/list`, where the host has it whole.
    pub tools: Option<Value>,
}

/// A plugin that a host wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPlugin {
    pub path: String,
    /// Whether the servers that it declares are left alone.
    pub without_servers: bool,
}

impl Initialize {
    pub fn parse(request: &Value) -> Result<Self, String> {
        let mut left_out = Vec::new();
        Ok(Self {
            hooks: hooks(request, &mut left_out)?,
            agents: object(request, "agents")?.map(|agents| Value::Object(agents.clone())),
            servers: servers(request)?,
            manifests: manifests(request),
            system: system(request)?,
            append_system: text(request, "appendSystemPrompt")?.filter(|text| !text.is_empty()),
            json_schema: object(request, "jsonSchema")?.map(|schema| Value::Object(schema.clone())),
            skills: texts(request, "skills")?,
            plugins: plugins(request, &mut left_out)?,
            forward_subagent_text: given(request, "forwardSubagentText").and_then(Value::as_bool)
                == Some(true),
            left_out,
        })
    }

    /// Whether it asks for anything that must be known before the session begins.
    pub fn shapes(&self) -> bool {
        let plain = Self { left_out: self.left_out.clone(), ..Self::default() };
        *self != plain
    }
}

fn given<'a>(value: &'a Value, member: &str) -> Option<&'a Value> {
    value.get(member).filter(|value| !value.is_null())
}

fn object<'a>(request: &'a Value, member: &str) -> Result<Option<&'a Map<String, Value>>, String> {
    match given(request, member) {
        None => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(_) => Err(format!("`request.{member}` is not an object")),
    }
}

fn text(request: &Value, member: &str) -> Result<Option<String>, String> {
    match given(request, member) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`request.{member}` is not a text")),
    }
}

fn texts(request: &Value, member: &str) -> Result<Option<Vec<String>>, String> {
    let Some(value) = given(request, member) else { return Ok(None) };
    let wrong = || format!("`request.{member}` is not a list of texts");
    let items = value.as_array().ok_or_else(wrong)?;
    let texts = items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong));
    texts.collect::<Result<_, _>>().map(Some)
}

/// The pieces of the system prompt as one text; a host that gives none but empty ones wants none.
fn system(request: &Value) -> Result<Option<String>, String> {
    if let Some(Value::String(text)) = given(request, "systemPrompt") {
        return Ok(Some(text.clone()));
    }
    let pieces = texts(request, "systemPrompt")?;
    let whole = |pieces: Vec<String>| {
        pieces.into_iter().filter(|piece| !piece.is_empty()).collect::<Vec<_>>().join("\n\n")
    };
    Ok(pieces.map(whole))
}

/// The servers that live in the host. What they said of themselves beforehand saves asking them.
fn servers(request: &Value) -> Result<Option<Value>, String> {
    let Some(names) = texts(request, "sdkMcpServers")?.filter(|names| !names.is_empty()) else {
        return Ok(None);
    };
    let configs = object(request, "sdkMcpServerConfigs")?;
    let mut servers = Map::new();
    for name in names {
        let timeout = configs.and_then(|configs| configs.get(&name)?.get("timeout")?.as_u64());
        let mut server = json!({"type": "sdk", "name": name});
        if let Some(timeout) = timeout.filter(|timeout| *timeout >= 1000) {
            server["timeout"] = json!(timeout);
        }
        servers.insert(name, server);
    }
    Ok(Some(json!({"mcpServers": servers})))
}

/// What the servers said beforehand. One that is not understood is asked as if nothing had been said.
fn manifests(request: &Value) -> Vec<(String, ServerManifest)> {
    let given = given(request, "sdkMcpServerManifests").and_then(Value::as_object);
    let is_object = |value: &&Value| value.is_object();
    let read = |(name, value): (&String, &Value)| {
        let initialize = value.get("initializeResult").filter(is_object)?.clone();
        let tools = value.get("toolsListResult").filter(is_object).cloned();
        Some((name.clone(), ServerManifest { initialize, tools }))
    };
    given.into_iter().flatten().filter_map(read).collect()
}

fn plugins(request: &Value, left_out: &mut Vec<String>) -> Result<Vec<WantedPlugin>, String> {
    let Some(value) = given(request, "plugins") else { return Ok(Vec::new()) };
    let items = value.as_array().ok_or("`request.plugins` is not a list")?;
    let mut folders = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match (item.get("type").and_then(Value::as_str), item.get("path").and_then(Value::as_str)) {
            (Some("local"), Some(path)) => {
                let without_servers = item.get("skipMcpDiscovery").and_then(Value::as_bool) == Some(true);
                folders.push(WantedPlugin { path: path.to_owned(), without_servers });
            }
            _ => left_out.push(format!("`plugins[{index}]` is not a plugin in a folder")),
        }
    }
    Ok(folders)
}

/// The functions that are hooks: by event, each with its matcher.
fn hooks(request: &Value, left_out: &mut Vec<String>) -> Result<Vec<HookDeclaration>, String> {
    let mut hooks = Vec::new();
    for (name, groups) in object(request, "hooks")?.into_iter().flatten() {
        let Ok(event) = name.parse::<HookEvent>() else {
            left_out.push(format!("`hooks.{name}`: there is no such event here"));
            continue;
        };
        let wrong = |index: usize, what: &str| format!("`request.hooks.{name}[{index}]`: {what}");
        let groups = groups.as_array().ok_or_else(|| format!("`request.hooks.{name}` is not a list"))?;
        for (index, group) in groups.iter().enumerate() {
            let ids = texts(group, "hookCallbackIds")
                .ok()
                .flatten()
                .ok_or_else(|| wrong(index, "`hookCallbackIds` is not a list of texts"))?;
            let matcher = text(group, "matcher").map_err(|_| wrong(index, "`matcher` is not a text"))?;
            let timeout = timeout(group).map_err(|what| wrong(index, what))?;
            let on_failure = on_failure(group);
            let source = format!("the host: hooks.{name}[{index}]");
            hooks.extend(ids.into_iter().map(|id| HookDeclaration {
                matcher: matcher.clone(),
                timeout,
                on_failure,
                source: source.clone(),
                ..HookDeclaration::callback(event, id)
            }));
        }
    }
    Ok(hooks)
}

fn timeout(group: &Value) -> Result<Option<Duration>, &'static str> {
    let Some(value) = given(group, "timeout") else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| *seconds > 0.0 && *seconds <= LONGEST);
    seconds.map(Duration::from_secs_f64).map(Some).ok_or("`timeout` is not a number of seconds")
}

/// A word that is not known is taken for the strictest: a guard must not fail open.
fn on_failure(group: &Value) -> OnFailure {
    match given(group, "onFailure").map(Value::as_str) {
        None => OnFailure::Default,
        Some(Some("continue")) => OnFailure::Continue,
        Some(_) => OnFailure::Block,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_host_wants_is_read_whole() {
        let request = json!({
            "subtype": "initialize",
            "hooks": {
                "PreToolUse": [{"matcher": "Bash", "hookCallbackIds": ["a", "b"], "timeout": 1.5, "onFailure": "block"}],
                "Stop": [{"matcher": null, "hookCallbackIds": ["c"], "onFailure": "continue"}],
                "MoonRise": [{"hookCallbackIds": ["d"]}],
            },
            "agents": {"helper": {"description": "helps", "prompt": "Help."}},
            "sdkMcpServers": ["calc", "other"],
            "sdkMcpServerManifests": {"calc": {"initializeResult": {"a": 1}}, "other": {"toolsListResult": {}}},
            "sdkMcpServerConfigs": {"calc": {"timeout": 5000}, "other": {"timeout": 5}},
            "systemPrompt": ["", "One.", "Two."],
            "appendSystemPrompt": "",
            "jsonSchema": {"type": "object"},
            "skills": ["x"],
            "plugins": [{"type": "local", "path": "/p"}, {"type": "remote"}],
            "forwardSubagentText": true,
            "unknownToUs": 1,
        });
        let read = Initialize::parse(&request).unwrap();
        let hook = |event, id: &str, place: &str| HookDeclaration {
            source: format!("the host: hooks.{place}"),
            ..HookDeclaration::callback(event, id)
        };
        let guard = |id| HookDeclaration {
            matcher: Some("Bash".into()),
            timeout: Some(Duration::from_millis(1500)),
            on_failure: OnFailure::Block,
            ..hook(HookEvent::PreToolUse, id, "PreToolUse[0]")
        };
        let stop = hook(HookEvent::Stop, "c", "Stop[0]");
        let stop = HookDeclaration { on_failure: OnFailure::Continue, ..stop };
        assert_eq!(read.hooks, [guard("a"), guard("b"), stop]);
        assert_eq!(read.agents, Some(request["agents"].clone()));
        let calc = json!({"type": "sdk", "name": "calc", "timeout": 5000});
        let servers = json!({"mcpServers": {"calc": calc, "other": {"type": "sdk", "name": "other"}}});
        assert_eq!(read.servers, Some(servers));
        let manifest = ServerManifest { initialize: json!({"a": 1}), tools: None };
        assert_eq!(read.manifests, [("calc".to_owned(), manifest)]);
        assert_eq!(read.system.as_deref(), Some("One.\n\nTwo."));
        assert_eq!(read.append_system, None);
        assert_eq!(read.json_schema, Some(json!({"type": "object"})));
        let plugin = WantedPlugin { path: "/p".into(), without_servers: false };
        assert_eq!((read.skills.clone(), read.plugins.clone()), (Some(vec!["x".into()]), vec![plugin]));
        assert!(read.forward_subagent_text && read.shapes());
        assert_eq!(
            read.left_out,
            ["`hooks.MoonRise`: there is no such event here", "`plugins[1]` is not a plugin in a folder"]
        );
    }

    #[test]
    fn one_that_wants_nothing_shapes_nothing() {
        for request in [
            json!({"subtype": "initialize"}),
            json!({"hooks": null, "agents": null, "systemPrompt": null, "skills": null, "plugins": [], "sdkMcpServers": []}),
            json!({"hooks": {"MoonRise": []}}),
        ] {
            assert!(!Initialize::parse(&request).unwrap().shapes(), "{request}");
        }
        assert_eq!(Initialize::parse(&json!({"systemPrompt": [""]})).unwrap().system.as_deref(), Some(""));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (request, expected) in [
            (json!({"hooks": []}), "`request.hooks` is not an object"),
            (json!({"hooks": {"Stop": {}}}), "`request.hooks.Stop` is not a list"),
            (
                json!({"hooks": {"Stop": [{}]}}),
                "`request.hooks.Stop[0]`: `hookCallbackIds` is not a list of texts",
            ),
            (
                json!({"hooks": {"Stop": [{"hookCallbackIds": ["a"], "matcher": 1}]}}),
                "`request.hooks.Stop[0]`: `matcher` is not a text",
            ),
            (
                json!({"hooks": {"Stop": [{"hookCallbackIds": ["a"], "timeout": -1}]}}),
                "`request.hooks.Stop[0]`: `timeout` is not a number of seconds",
            ),
            (json!({"agents": []}), "`request.agents` is not an object"),
            (json!({"sdkMcpServers": [1]}), "`request.sdkMcpServers` is not a list of texts"),
            (json!({"systemPrompt": 1}), "`request.systemPrompt` is not a list of texts"),
            (json!({"jsonSchema": "x"}), "`request.jsonSchema` is not an object"),
            (json!({"skills": "all"}), "`request.skills` is not a list of texts"),
            (json!({"plugins": {}}), "`request.plugins` is not a list"),
        ] {
            assert_eq!(Initialize::parse(&request).unwrap_err(), expected);
        }
    }
}
