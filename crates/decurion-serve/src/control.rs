//! What a host's requests are answered with. Takes what the session and the command line know, gives it in the shapes
//! that hosts read; and reads from a host's words what of the session is to change.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Command, ContextKind, ContextPart, ContextUse, HookDeclaration, HookEvent, McpDetail, McpServer,
    McpSource, Mode, PermissionUpdate, Rewound, Rule, RuleSet, RulesInForce, TaskOutputEnd, ThinkingChange,
    Totals, Verdict,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// What the command line knows and the session does not.
pub trait HostFacts: Send + Sync {
    /// The models that can be chosen, in the form for hosts.
    fn models(&self) -> Vec<Value> {
        Vec::new()
    }

    /// What is known of who pays.
    fn account(&self) -> Value {
        json!({})
    }

    /// The settings in effect and what each source says, without secrets: `effective` and `sources`.
    fn settings(&self) -> Value {
        json!({"effective": {}, "sources": []})
    }

    /// A text that was written by hand, such as a command, without the secrets in it.
    fn redacted(&self, text: &str) -> String {
        text.to_owned()
    }

    /// MCP servers that the host declares, decided; and by name why one is not to be used.
    fn servers(&self, declared: &Map<String, Value>) -> (Vec<McpServer>, BTreeMap<String, String>) {
        let why = "MCP servers cannot be declared here";
        (Vec::new(), declared.keys().map(|name| (name.clone(), why.to_owned())).collect())
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct NothingKnown;

impl HostFacts for NothingKnown {}

/// What is asked of the command line or of what was seen so far, and not of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The models that can be chosen.
    Models,
    Settings,
    /// What the session has cost, in words.
    Cost,
    /// The same in numbers.
    Usage,
    /// Which version this is.
    Version,
}

/// How the replies to what a request asked of the session become its answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyShape {
    Fixed(Value),
    Merged,
    /// Whether the message was taken back.
    Unqueued,
    /// A model that the session chose.
    Model,
    /// What fills the window.
    Context,
    Servers,
    /// What became of MCP servers that were set, and what was wrong with others before.
    SetServers(BTreeMap<String, String>),
    Rules,
    Hooks,
    /// The end of an output.
    Output,
    /// The result of putting files back.
    Rewound,
}

impl ReplyShape {
    /// The answer, from the values of all replies in order.
    pub fn answer(self, values: Vec<Value>) -> Value {
        match self {
            Self::Fixed(value) => value,
            Self::Merged => {
                let members = values.into_iter().filter_map(|value| match value {
                    Value::Object(members) => Some(members),
                    _ => None,
                });
                Value::Object(members.flatten().collect())
            }
            other => other.of_one(values.into_iter().next().unwrap_or_default()),
        }
    }

    fn of_one(self, value: Value) -> Value {
        match self {
            Self::Fixed(value) => value,
            Self::Merged => value,
            Self::Unqueued => {
                let cancelled = value.get("cancelled").and_then(Value::as_array);
                json!({"cancelled": cancelled.is_some_and(|cancelled| !cancelled.is_empty())})
            }
            Self::Model => json!({"model": value.get("model")}),
            Self::Context => read(value, |used: ContextUse| context(&used)),
            Self::Servers => read(
                value,
                |all: Vec<McpDetail>| json!({"mcpServers": all.iter().map(server).collect::<Vec<_>>()}),
            ),
            Self::SetServers(before) => {
                let mut value = value;
                if let Some(Value::Object(errors)) = value.get_mut("errors") {
                    errors.extend(before.into_iter().map(|(name, error)| (name, Value::String(error))));
                }
                value
            }
            Self::Rules => read(value, |rules: RulesInForce| rules_state(&rules)),
            Self::Hooks => read(value, |hooks: Vec<HookDeclaration>| hooks_listing(&hooks)),
            Self::Rewound => read(value, |rewound: Rewound| rewound_files(&rewound)),
            Self::Output => read(
                value,
                |end: TaskOutputEnd| json!({"output": end.text, "total_bytes": end.bytes, "truncated": end.cut}),
            ),
        }
    }
}

/// A value of the session's, shaped; one that is not understood goes as it is.
fn read<T: DeserializeOwned>(value: Value, shape: impl FnOnce(T) -> Value) -> Value {
    match serde_json::from_value(value.clone()) {
        Ok(read) => shape(read),
        Err(_) => value,
    }
}

/// The result of putting files back, or why it is impossible.
pub fn rewound_files(rewound: &Rewound) -> Value {
    let mut value = json!({
        "canRewind": rewound.error.is_none(),
        "filesChanged": rewound.files,
        "insertions": rewound.insertions,
        "deletions": rewound.deletions,
    });
    if let Some(error) = &rewound.error {
        value["error"] = json!(error);
    }
    value
}

/// What fills the window, by category.
fn context(used: &ContextUse) -> Value {
    let of = |kind: ContextKind| used.parts.iter().filter(move |part| part.kind == kind);
    let sum = |kind: ContextKind| of(kind).map(|part| part.tokens).sum::<u64>();
    let mut categories: Vec<Value> = CATEGORIES
        .iter()
        .map(|(kind, id, name, color)| (sum(*kind), id, name, color))
        .filter(|(tokens, ..)| *tokens > 0)
        .map(|(tokens, id, name, color)| {
            json!({"id": id, "name": name, "tokens": tokens, "color": color, "kind": "used"})
        })
        .collect();
    let reserve = used.compacts_at.map_or(0, |at| used.window.saturating_sub(at));
    let free = used.window.saturating_sub(used.total).saturating_sub(reserve);
    if reserve > 0 {
        let (id, name) = ("autocompact_buffer", "Kept free for compaction");
        categories
            .push(json!({"id": id, "name": name, "tokens": reserve, "color": "inactive", "kind": "buffer"}));
    }
    categories.push(
        json!({"id": "free_space", "name": "Free space", "tokens": free, "color": "inactive", "kind": "free"}),
    );
    let percentage = (used.total * 100).checked_div(used.window).unwrap_or_default();
    let list = |kind: ContextKind, shape: fn(&ContextPart) -> Value| of(kind).map(shape).collect::<Vec<_>>();
    let mut value = json!({
        "categories": categories,
        "totalTokens": used.total,
        "maxTokens": used.window,
        "rawMaxTokens": used.window,
        "percentage": percentage,
        "gridRows": [],
        "model": used.model,
        "memoryFiles": list(ContextKind::Memory, |part| {
            json!({"path": part.name, "type": "Project", "tokens": part.tokens})
        }),
        "mcpTools": list(ContextKind::McpTool, |part| {
            json!({"name": part.name, "serverName": part.of, "tokens": part.tokens, "isLoaded": true})
        }),
        "systemTools": list(ContextKind::Tool, |part| json!({"name": part.name, "tokens": part.tokens})),
        "agents": list(ContextKind::Agent, |part| {
            json!({"agentType": part.name, "source": part.of, "tokens": part.tokens})
        }),
        "isAutoCompactEnabled": used.compacts_at.is_some(),
        "apiUsage": used.last.as_ref().map(|usage| json!({
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
        })),
        // Ours: only the total is a provider's count, and that only once it has counted.
        "estimated": true,
    });
    if let Some(at) = used.compacts_at {
        value["autoCompactThreshold"] = json!(at);
    }
    value
}

/// Kinds of what fills a window: the id, the name and the colour that hosts know.
const CATEGORIES: [(ContextKind, &str, &str, &str); 7] = [
    (ContextKind::System, "system_prompt", "System prompt", "promptBorder"),
    (ContextKind::Tool, "system_tools", "System tools", "inactive"),
    (ContextKind::McpTool, "mcp_tools", "MCP tools", "cyan"),
    (ContextKind::Agent, "custom_agents", "Custom agents", "permission"),
    (ContextKind::Memory, "memory_files", "Memory files", "claude"),
    (ContextKind::Skills, "skills", "Skills", "warning"),
    (ContextKind::Messages, "messages", "Messages", "purple"),
];

/// A server in the form for hosts. Its address, variables and headers are left out: they may be secrets.
fn server(detail: &McpDetail) -> Value {
    let status = &detail.status;
    let tool = |tool: &decurion_protocol::mcp::OfferedTool| {
        let annotations = if tool.read_only { json!({"readOnly": true}) } else { json!({}) };
        json!({"name": tool.name, "description": tool.description, "annotations": annotations})
    };
    let scope = match status.source {
        McpSource::Sdk | McpSource::Flag | McpSource::Plugin => "dynamic",
        other => other.name(),
    };
    let source = if status.source == McpSource::Flag { "dynamic" } else { status.source.name() };
    let mut value = json!({"name": status.name, "status": status.status, "scope": scope, "source": source});
    if let Some(transport) = &detail.transport {
        value["transport"] = json!(transport);
    }
    if let Some((name, version)) = &detail.calls_itself {
        value["serverInfo"] = json!({"name": name, "version": version});
    }
    if !detail.tools.is_empty() {
        value["tools"] = detail.tools.iter().map(tool).collect();
    }
    if let Some(reason) = &status.reason {
        value["error"] = json!(reason);
    }
    value
}

fn rules_state(rules: &RulesInForce) -> Value {
    let RuleSet { allow, ask, deny } = &rules.rules;
    let row = |behavior: &'static str| {
        move |rule: &Rule| {
            let editability = match rule.source {
                RuleSource::UserSettings | RuleSource::ProjectSettings | RuleSource::LocalSettings => {
                    "persistent"
                }
                RuleSource::CliArg | RuleSource::Session => "session",
                _ => "readonly",
            };
            json!({
                "behavior": behavior, "source": rule.source, "rule": rule.to_string(), "editability": editability,
            })
        }
    };
    let rows = allow.iter().map(row("allow")).chain(ask.iter().map(row("ask")));
    let rows: Vec<Value> = rows.chain(deny.iter().map(row("deny"))).collect();
    let directory = |path: &Utf8PathBuf| json!({"path": path, "source": "session"});
    json!({"state": {
        "rules": rows,
        "workspaceDirectories": rules.directories.iter().map(directory).collect::<Vec<_>>(),
        "originalCwd": rules.cwd,
        "managedOnly": false,
        "mode": rules.mode,
    }})
}

/// A list of hooks without the secrets that are written into their commands.
pub fn without_secrets(mut listing: Value, known: &dyn HostFacts) -> Value {
    for hook in listing.get_mut("hooks").and_then(Value::as_array_mut).into_iter().flatten() {
        for member in ["displayText", "commandText"] {
            if let Some(text) = hook.get(member).and_then(Value::as_str) {
                hook[member] = json!(known.redacted(text));
            }
        }
    }
    listing
}

fn hooks_listing(hooks: &[HookDeclaration]) -> Value {
    let catalog =
        |event: &HookEvent| json!({"name": event.to_string(), "summary": "", "supportsMatcher": true});
    let events = HookEvent::ALL.iter().filter_map(|event| {
        let count = hooks.iter().filter(|hook| hook.event == *event).count();
        let mut row = catalog(event);
        row["hookCount"] = json!(count);
        (count > 0).then_some(row)
    });
    let row = |hook: &HookDeclaration| {
        let (kind, text, label) = match &hook.callback {
            Some(callback) => ("callback", callback, "Callback"),
            None => ("command", &hook.command, "Command"),
        };
        let mut row = json!({
            "event": hook.event.to_string(),
            "matcher": hook.matcher.as_deref().unwrap_or_default(),
            "source": if hook.callback.is_some() { "sessionHook" } else { "settings" },
            "sourceLabel": hook.source,
            "type": kind,
            "displayText": text,
            "commandText": text,
            "contentLabel": label,
        });
        if let Some(timeout) = hook.timeout {
            row["timeout"] = json!(timeout.as_secs());
        }
        row
    };
    json!({
        "events": events.collect::<Vec<_>>(),
        "hooks": hooks.iter().map(row).collect::<Vec<_>>(),
        "eventCatalog": HookEvent::ALL.iter().map(catalog).collect::<Vec<_>>(),
        "policy": {
            "disabledByPolicy": false, "managedOnly": false, "pluginOnly": false, "allDisabled": false,
            "policyHookCount": 0,
        },
    })
}

/// What the session has cost, in words.
pub fn cost_text(totals: &Totals) -> String {
    let models = totals.models.iter().map(|(model, used)| {
        let usage = &used.usage;
        format!(
            "\n  {model}: {} input, {} output, {} cache read, {} cache write (${:.4})",
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens,
            usage.cache_creation_input_tokens,
            used.cost.dollars()
        )
    });
    let seconds = totals.api_duration_ms / 1000;
    format!("Total cost: ${:.4}\nTime at models: {seconds} s", totals.cost.dollars())
        + &models.collect::<String>()
}

/// What `apply_flag_settings` asks for, as one command, so that all of it is done or nothing; none if it asks for
/// nothing. An error names what cannot be changed while a session runs. A value of null asks for what holds without it,
/// and changes nothing here unless it is the model or how much it thinks.
pub fn flag_settings(settings: &Map<String, Value>) -> Result<Option<Command>, String> {
    let (mut model, mut thinking, mut updates) = (None, None, Vec::new());
    for (key, value) in settings {
        match (key.as_str(), value) {
            ("model", Value::String(name)) => model = Some(name.clone()),
            ("model", Value::Null) => model = Some("default".to_owned()),
            ("maxThinkingTokens", Value::Null) => thinking = Some(ThinkingChange::AsBegun),
            ("maxThinkingTokens", Value::Number(number)) if number.is_u64() => {
                thinking = number.as_u64().map(ThinkingChange::AtMost);
            }
            ("permissions", Value::Object(permissions)) => updates = flag_permissions(permissions)?,
            (_, Value::Null) => {}
            (key, _) => {
                return Err(format!(
                    "this setting cannot be changed while a session runs (model, maxThinkingTokens and permissions \
                     can): {key}"
                ));
            }
        }
    }
    let is_something = model.is_some() || thinking.is_some() || !updates.is_empty();
    Ok(is_something.then_some(Command::Change { model, thinking, updates }))
}

fn flag_permissions(permissions: &Map<String, Value>) -> Result<Vec<PermissionUpdate>, String> {
    let source = RuleSource::FlagSettings;
    let mut updates = Vec::new();
    for (key, value) in permissions {
        let texts = || {
            let items = value.as_array().ok_or_else(|| format!("permissions.{key} is not a list"))?;
            let text = |item: &Value| item.as_str().map(str::to_owned);
            items
                .iter()
                .map(text)
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| format!("permissions.{key} holds no text"))
        };
        let rules = |behavior: Verdict| {
            let parse = |text: String| Rule::parse(&text, source).map_err(|error| error.to_string());
            let rules = texts()?.into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, String>(PermissionUpdate::ReplaceRules { behavior, source, rules })
        };
        updates.push(match (key.as_str(), value) {
            (_, Value::Null) => continue,
            ("allow", _) => rules(Verdict::Allow)?,
            ("ask", _) => rules(Verdict::Ask)?,
            ("deny", _) => rules(Verdict::Deny)?,
            ("defaultMode", Value::String(mode)) => {
                let mode: Mode = mode.parse().map_err(|error| format!("permissions.defaultMode: {error}"))?;
                PermissionUpdate::SetMode { mode }
            }
            ("additionalDirectories", _) => {
                let directories = texts()?.into_iter().map(Utf8PathBuf::from).collect();
                PermissionUpdate::AddDirectories { directories }
            }
            (key, _) => {
                return Err(format!(
                    "this setting cannot be changed while a session runs: permissions.{key}"
                ));
            }
        });
    }
    Ok(updates)
}
