//! Hooks out of settings and definitions. Takes them as declared, gives [`HookDeclaration`]s, and a warning
//! that names file, event and place for whatever is not understood; that one hook is then left out.

use std::time::Duration;

use camino::Utf8Path;
use decurion_protocol::permission::{Rule, RuleSource};
use decurion_protocol::{AgentDefinition, AgentSource, HookDeclaration, HookEvent, OnFailure, Skill};
use serde_json::{Map, Value};

use crate::Loaded;
use crate::error::{Warning, WarningKind};
use crate::jsonc::Node;
use crate::origin::{Layer, Origin};
use crate::settings::Settings;

/// The hooks of one source, and what is worth saying about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundHooks {
    /// In the order they were declared.
    pub declarations: Vec<HookDeclaration>,
    /// What was not understood or is not available.
    pub warnings: Vec<Warning>,
}

impl Loaded {
    /// The hooks of the whole session, lowest layer first. Those of a project that is not trusted are not
    /// among the settings to begin with.
    pub fn hooks(&self) -> FoundHooks {
        of_settings(&self.settings)
    }

    /// The hooks of one agent, which run while it does, after the session's.
    pub fn hooks_of(&self, definition: &AgentDefinition) -> FoundHooks {
        let Some(value) = &definition.hooks else { return FoundHooks::default() };
        if self.settings.disable_all_hooks {
            return FoundHooks::default();
        }
        let file = match &definition.path {
            Some(path) => path.to_string(),
            None => format!("agent {:?}", definition.name),
        };
        let managed_only = self.managed_hooks_only() && definition.source != AgentSource::Managed;
        let untrusted = definition.source == AgentSource::Project && !self.trust.is_trusted();
        if managed_only || untrusted {
            let reason =
                if managed_only { "only the administrator's are" } else { "the folder is not trusted" };
            let text = format!("{file}: hooks: not in effect: {reason}");
            let warning = Warning { kind: WarningKind::Ignored, origin: None, text };
            return FoundHooks { declarations: Vec::new(), warnings: vec![warning] };
        }
        of_definition(value, &file)
    }

    /// The hooks of a skill, for whoever follows it. Those of a file that is not trusted are not in it to begin
    /// with.
    pub fn hooks_of_skill(&self, skill: &Skill) -> FoundHooks {
        let Some(value) = &skill.hooks else { return FoundHooks::default() };
        let managed_only = self.managed_hooks_only() && skill.source != AgentSource::Managed;
        let untrusted = skill.source == AgentSource::Project && !self.trust.is_trusted();
        if self.settings.disable_all_hooks || managed_only || untrusted {
            return FoundHooks::default();
        }
        of_skill(value, skill.path.as_str(), skill.plugin_root.as_deref())
    }

    pub(crate) fn managed_hooks_only(&self) -> bool {
        self.tree.get("allowManagedHooksOnly").and_then(Node::bool) == Some(true)
            && self.origin("allowManagedHooksOnly").is_some_and(|origin| origin.layer == Layer::Managed)
    }
}

/// The hooks of settings; none where they are switched off.
pub fn of_settings(settings: &Settings) -> FoundHooks {
    let mut found = FoundHooks::default();
    if settings.disable_all_hooks {
        return found;
    }
    for declared in &settings.hooks {
        let source = Source::Text { origin: &declared.origin, node: &declared.node };
        Reader { source, whose: Whose::Session, plugin: None, found: &mut found }.events(&declared.value);
    }
    found
}

/// The hooks of a definition: what it has under `hooks`, and the file's name for warnings. Its agent is a
/// sub-agent, so there `Stop` means `SubagentStop`.
pub fn of_definition(hooks: &Value, file: &str) -> FoundHooks {
    let mut found = FoundHooks::default();
    let source = Source::File(file);
    Reader { source, whose: Whose::Agent, plugin: None, found: &mut found }.events(hooks);
    found
}

/// The hooks of a plugin, which are those of the session while the plugin is on: as they stand in a file, and
/// with the plugin's folder in its place.
pub(crate) fn of_plugin(hooks: &Value, node: &Node, file: &Utf8Path, root: &Utf8Path) -> FoundHooks {
    let mut found = FoundHooks::default();
    let origin = Origin::in_project_file(file, node.at.line);
    let source = Source::Text { origin: &origin, node };
    Reader { source, whose: Whose::Session, plugin: Some(root), found: &mut found }.events(hooks);
    found
}

/// The hooks of a skill: what it has under `hooks`, and the file's name for warnings; empty where whoever shows
/// them names it. Who follows the skill decides whether `Stop` is the end of an agent.
pub(crate) fn of_skill(hooks: &Value, file: &str, plugin: Option<&Utf8Path>) -> FoundHooks {
    let mut found = FoundHooks::default();
    let source = Source::File(file);
    Reader { source, whose: Whose::Session, plugin, found: &mut found }.events(hooks);
    found
}

/// Events of the ecosystem at which nothing of ours happens.
const OTHER_EVENTS: &[&str] = &[
    "ConfigChange",
    "CwdChanged",
    "DirectoryAdded",
    "Elicitation",
    "ElicitationResult",
    "FileChanged",
    "InstructionsLoaded",
    "MessageDisplay",
    "PostModelSwitch",
    "PreModelSwitch",
    "Setup",
    "TaskCompleted",
    "TaskCreated",
    "TeammateIdle",
    "UserPromptExpansion",
    "WorktreeCreate",
    "WorktreeRemove",
];

/// Kinds of hooks of the ecosystem that are not commands.
const OTHER_TYPES: &[&str] = &["prompt", "agent", "http", "mcp_tool"];

/// What a hook that is a command may have.
const KEYS: &[&str] = &[
    "type",
    "command",
    "args",
    "if",
    "shell",
    "timeout",
    "onFailure",
    "statusMessage",
    "once",
    "async",
    "asyncRewake",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Session,
    Agent,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    /// In JSON, of which every part knows its line.
    Text { origin: &'a Origin, node: &'a Node },
    /// In the head of this file; empty where whoever shows a warning names it.
    File(&'a str),
}

impl Source<'_> {
    /// Where the hook or key of this path stands, where that is known.
    fn origin(self, key: &str) -> Option<Origin> {
        let Self::Text { origin, node } = self else { return None };
        Some(origin.at(node.position(key.strip_prefix("hooks").unwrap_or(key))))
    }

    /// The same for people.
    fn place(self, key: &str) -> String {
        match (self, self.origin(key)) {
            (_, Some(origin)) => format!("{origin}: {key}"),
            (Self::File(""), None) => key.to_owned(),
            (Self::File(file), None) => format!("{file}: {key}"),
            (Self::Text { origin, .. }, None) => format!("{origin}: {key}"),
        }
    }
}

struct Reader<'a> {
    source: Source<'a>,
    whose: Whose,
    /// The folder of the plugin that they are part of.
    plugin: Option<&'a Utf8Path>,
    found: &'a mut FoundHooks,
}

/// Why a hook is left out.
struct LeftOut(String);

/// What the hooks of one group share.
struct Group {
    event: HookEvent,
    matcher: Option<String>,
}

impl Reader<'_> {
    fn events(&mut self, value: &Value) {
        let Value::Object(events) = value else {
            return self.left_out("hooks", &format!("expected an object, found {}", kind(value)));
        };
        for (name, groups) in events {
            let key = format!("hooks.{name}");
            match self.event(name) {
                Ok(event) => self.groups(event, &key, groups),
                Err(LeftOut(reason)) => self.left_out(&key, &reason),
            }
        }
    }

    fn event(&self, name: &str) -> Result<HookEvent, LeftOut> {
        match name.parse() {
            Ok(HookEvent::Stop) if self.whose == Whose::Agent => Ok(HookEvent::SubagentStop),
            Ok(event) => Ok(event),
            Err(_) if OTHER_EVENTS.contains(&name) => {
                Err(LeftOut("this event is not available in this version".to_owned()))
            }
            Err(_) => {
                let known = HookEvent::ALL.into_iter().map(HookEvent::name);
                let near = decurion_protocol::nearest(name, known).into_iter().next();
                let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
                Err(LeftOut(format!("unknown event{near}")))
            }
        }
    }

    fn groups(&mut self, event: HookEvent, key: &str, groups: &Value) {
        let Value::Array(groups) = groups else {
            return self.left_out(key, &format!("expected a list, found {}", kind(groups)));
        };
        for (index, group) in groups.iter().enumerate() {
            let key = format!("{key}[{index}]");
            match group_of(event, group) {
                Ok((group, hooks)) => self.hooks(&group, &key, hooks),
                Err(LeftOut(reason)) => self.left_out(&key, &reason),
            }
        }
    }

    fn hooks(&mut self, group: &Group, key: &str, hooks: &[Value]) {
        for (index, hook) in hooks.iter().enumerate() {
            let key = format!("{key}.hooks[{index}]");
            match self.hook(group, &key, hook) {
                Ok(declaration) => self.found.declarations.push(declaration),
                Err(LeftOut(reason)) => self.left_out(&key, &reason),
            }
        }
    }

    fn hook(&mut self, group: &Group, key: &str, hook: &Value) -> Result<HookDeclaration, LeftOut> {
        let Value::Object(fields) = hook else {
            return Err(LeftOut(format!("expected an object, found {}", kind(hook))));
        };
        check_type(fields)?;
        let command = text(fields, "command")?.filter(|command| !command.trim().is_empty());
        let command = command.ok_or_else(|| LeftOut("it has no `command`".to_owned()))?;
        let declaration = HookDeclaration {
            event: group.event,
            matcher: group.matcher.clone(),
            command,
            callback: None,
            args: arguments(fields)?,
            timeout: self.timeout(key, fields),
            if_rule: rule(group.event, fields)?,
            on_failure: self.on_failure(key, fields),
            once: self.switch(key, fields, "once"),
            source: self.source.place(key),
            plugin_root: self.plugin.map(Utf8Path::to_owned),
        };
        for name in ["async", "asyncRewake"] {
            if self.switch(key, fields, name) {
                self.warn(key, &format!("`{name}` is not available in this version: the hook is waited for"));
            }
        }
        for name in fields.keys().filter(|name| !KEYS.contains(&name.as_str())) {
            self.note(WarningKind::UnknownKey, &format!("{key}.{name}"), "unknown key");
        }
        Ok(declaration)
    }

    /// One that makes no sense leaves the usual time: the hook itself is understood.
    fn timeout(&mut self, key: &str, fields: &Map<String, Value>) -> Option<Duration> {
        let value = present(fields, "timeout")?;
        let seconds = value.as_f64().filter(|seconds| *seconds > 0.0);
        let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if timeout.is_none() {
            self.warn(key, "`timeout` is not a number of seconds, the usual time is used");
        }
        timeout
    }

    fn on_failure(&mut self, key: &str, fields: &Map<String, Value>) -> OnFailure {
        match present(fields, "onFailure").map(Value::as_str) {
            None => OnFailure::Default,
            Some(Some("continue")) => OnFailure::Continue,
            Some(Some("block")) => OnFailure::Block,
            Some(_) => {
                self.warn(key, "`onFailure` is neither \"continue\" nor \"block\", the default is used");
                OnFailure::Default
            }
        }
    }

    fn switch(&mut self, key: &str, fields: &Map<String, Value>, name: &str) -> bool {
        match present(fields, name) {
            None => false,
            Some(Value::Bool(on)) => *on,
            Some(_) => {
                self.warn(key, &format!("`{name}` is neither true nor false, false is used"));
                false
            }
        }
    }

    fn left_out(&mut self, key: &str, reason: &str) {
        self.warn(key, &format!("left out: {reason}"));
    }

    fn warn(&mut self, key: &str, what: &str) {
        self.note(WarningKind::Ignored, key, what);
    }

    fn note(&mut self, kind: WarningKind, key: &str, what: &str) {
        let origin = self.source.origin(key);
        let place = if origin.is_some() { key.to_owned() } else { self.source.place(key) };
        self.found.warnings.push(Warning { kind, origin, text: format!("{place}: {what}") });
    }
}

fn group_of(event: HookEvent, group: &Value) -> Result<(Group, &[Value]), LeftOut> {
    let Value::Object(fields) = group else {
        return Err(LeftOut(format!("expected an object, found {}", kind(group))));
    };
    let matcher = text(fields, "matcher")?;
    match fields.get("hooks") {
        Some(Value::Array(hooks)) => Ok((Group { event, matcher }, hooks)),
        Some(other) => Err(LeftOut(format!("`hooks` must be a list, found {}", kind(other)))),
        None => Err(LeftOut("it has no list `hooks`".to_owned())),
    }
}

/// Only commands for bash can be run.
fn check_type(fields: &Map<String, Value>) -> Result<(), LeftOut> {
    match text(fields, "type")?.as_deref() {
        None | Some("command") => {}
        Some(other) if OTHER_TYPES.contains(&other) => {
            return Err(LeftOut(format!("hooks of type `{other}` are not available in this version")));
        }
        Some(_) => return Err(LeftOut("unknown hook type".to_owned())),
    }
    match text(fields, "shell")?.as_deref() {
        None | Some("bash") => Ok(()),
        Some(_) => Err(LeftOut("`shell`: only bash is available in this version".to_owned())),
    }
}

fn arguments(fields: &Map<String, Value>) -> Result<Option<Vec<String>>, LeftOut> {
    let wrong = || LeftOut("`args` must be a list of texts".to_owned());
    let Some(value) = present(fields, "args") else { return Ok(None) };
    let items = value.as_array().ok_or_else(wrong)?.iter();
    items.map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>().map(Some)
}

fn rule(event: HookEvent, fields: &Map<String, Value>) -> Result<Option<String>, LeftOut> {
    let Some(rule) = text(fields, "if")? else { return Ok(None) };
    if !event.is_about_a_call() {
        return Err(LeftOut("`if` chooses among calls, and this event is not about one".to_owned()));
    }
    match Rule::parse(&rule, RuleSource::Session) {
        Ok(_) => Ok(Some(rule)),
        Err(error) => Err(LeftOut(format!("`if`: {}", error.reason))),
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, LeftOut> {
    match present(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(LeftOut(format!("`{name}` must be a text, found {}", kind(other)))),
    }
}

/// A field that is there and says something.
fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// What a value is, in general words: values themselves may be secrets.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(found: &FoundHooks) -> Vec<String> {
        let hooks = found.declarations.iter().map(|hook| {
            let HookDeclaration {
                event,
                matcher,
                command,
                args,
                timeout,
                if_rule,
                on_failure,
                once,
                source,
                plugin_root: _,
                callback: _,
            } = hook;
            let details = [
                args.as_ref().map(|args| format!("args {args:?}")),
                timeout.map(|timeout| format!("within {timeout:?}")),
                if_rule.as_ref().map(|rule| format!("if {rule}")),
                (*on_failure != OnFailure::Default).then(|| format!("{on_failure:?}")),
                once.then(|| "once".to_owned()),
            ];
            let details: String = details.into_iter().flatten().map(|detail| format!(" {detail}")).collect();
            format!("{event} {} {command:?}{details} at {source}", matcher.as_deref().unwrap_or("-"))
        });
        hooks.chain(found.warnings.iter().map(|warning| format!("! {warning}"))).collect()
    }

    fn check(hooks: &Value, expected: &[&str]) {
        assert_eq!(lines(&of_definition(hooks, "f.md")), expected, "{hooks}");
    }

    /// One hook of an event, in a group of its own.
    fn one(event: &str, hook: &Value) -> Value {
        json!({event: [{"matcher": "M", "hooks": [hook]}]})
    }

    #[test]
    fn all_that_is_understood_is_kept_in_order() {
        check(
            &json!({
                "PreToolUse": [
                    {"matcher": "Bash|Edit", "hooks": [
                        {"type": "command", "command": "a", "timeout": 1.5, "onFailure": "block", "if": "Bash(git *)"},
                        {"type": "command", "command": "b", "args": ["x", "$y"], "once": true, "shell": "bash"},
                    ]},
                    {"hooks": [{"command": "c", "onFailure": "continue", "statusMessage": "wait", "timeout": null}]},
                ],
                "Stop": [{"matcher": "", "hooks": [{"type": "command", "command": "d"}]}],
                "Notification": [],
            }),
            &[
                "PreToolUse Bash|Edit \"a\" within 1.5s if Bash(git *) Block at f.md: hooks.PreToolUse[0].hooks[0]",
                "PreToolUse Bash|Edit \"b\" args [\"x\", \"$y\"] once at f.md: hooks.PreToolUse[0].hooks[1]",
                "PreToolUse - \"c\" Continue at f.md: hooks.PreToolUse[1].hooks[0]",
                "SubagentStop  \"d\" at f.md: hooks.Stop[0].hooks[0]",
            ],
        );
    }

    #[test]
    fn what_is_not_understood_is_left_out_and_named() {
        let at = "! f.md: hooks.PreToolUse[0].hooks[0]: left out: ";
        let rows = [
            (json!(7), "expected an object, found a number"),
            (json!({"type": "command"}), "it has no `command`"),
            (json!({"type": "command", "command": " "}), "it has no `command`"),
            (json!({"command": ["a"]}), "`command` must be a text, found a list"),
            (
                json!({"type": "prompt", "prompt": "p"}),
                "hooks of type `prompt` are not available in this version",
            ),
            (json!({"type": "http", "url": "u"}), "hooks of type `http` are not available in this version"),
            (json!({"type": "odd", "command": "a"}), "unknown hook type"),
            (json!({"type": 1, "command": "a"}), "`type` must be a text, found a number"),
            (
                json!({"command": "a", "shell": "powershell"}),
                "`shell`: only bash is available in this version",
            ),
            (json!({"command": "a", "args": "x"}), "`args` must be a list of texts"),
            (json!({"command": "a", "args": [1]}), "`args` must be a list of texts"),
            (json!({"command": "a", "if": "Bash("}), "`if`: a rule's `(` is not closed"),
            (json!({"command": "a", "if": true}), "`if` must be a text, found true or false"),
        ];
        for (hook, reason) in rows {
            check(&one("PreToolUse", &hook), &[&format!("{at}{reason}")]);
        }
        let rows = [
            (json!([]), "hooks: left out: expected an object, found a list"),
            (json!({"Setup": []}), "hooks.Setup: left out: this event is not available in this version"),
            (
                json!({"preToolUse": []}),
                "hooks.preToolUse: left out: unknown event (did you mean PreToolUse?)",
            ),
            (json!({"Stop": {}}), "hooks.Stop: left out: expected a list, found an object"),
            (json!({"Stop": [null]}), "hooks.Stop[0]: left out: expected an object, found nothing"),
            (json!({"Stop": [{}]}), "hooks.Stop[0]: left out: it has no list `hooks`"),
            (
                json!({"Stop": [{"hooks": {}}]}),
                "hooks.Stop[0]: left out: `hooks` must be a list, found an object",
            ),
            (
                json!({"Stop": [{"matcher": 1, "hooks": []}]}),
                "hooks.Stop[0]: left out: `matcher` must be a text, found a number",
            ),
            (
                one("Stop", &json!({"command": "a", "if": "Bash"})),
                "hooks.Stop[0].hooks[0]: left out: `if` chooses among calls, and this event is not about one",
            ),
        ];
        for (hooks, warning) in rows {
            check(&hooks, &[&format!("! f.md: {warning}")]);
        }
    }

    #[test]
    fn a_hook_with_an_odd_detail_is_kept() {
        let at = "f.md: hooks.PostToolUse[0].hooks[0]";
        let rows = [
            (
                json!({"command": "a", "timeout": "5"}),
                ": `timeout` is not a number of seconds, the usual time is used",
            ),
            (
                json!({"command": "a", "timeout": 0}),
                ": `timeout` is not a number of seconds, the usual time is used",
            ),
            (
                json!({"command": "a", "timeout": 1e300}),
                ": `timeout` is not a number of seconds, the usual time is used",
            ),
            (
                json!({"command": "a", "onFailure": "deny"}),
                ": `onFailure` is neither \"continue\" nor \"block\", the default is used",
            ),
            (json!({"command": "a", "once": 1}), ": `once` is neither true nor false, false is used"),
            (
                json!({"command": "a", "async": true}),
                ": `async` is not available in this version: the hook is waited for",
            ),
            (json!({"command": "a", "timeOut": 5}), ".timeOut: unknown key"),
        ];
        for (hook, warning) in rows {
            let kept = format!("PostToolUse M \"a\" at {at}");
            check(&one("PostToolUse", &hook), &[&kept, &format!("! {at}{warning}")]);
        }
    }
}
