//! A head and a body into a definition. Takes the entries with their lines, gives the definition or the
//! reason why there is none; every key is checked here, and what only widens or only narrows is told apart:
//! a limit that cannot be read makes a file unusable, since to leave it out would lift it.

use camino::Utf8Path;
use decurion_protocol::permission::Mode;
use decurion_protocol::{AgentDefinition, AgentSource, Money};
use serde_json::Value;

use crate::agents::{AgentFolder, AgentOrigin, AgentProblem, AgentRequest, Severity, bounds, builtin, tools};
use crate::frontmatter::Entry;
use crate::hooks;
use crate::origin::Origin;
use crate::trust::{Agreed, Part, PartKind, ProjectParts};

/// Every key there is.
pub(crate) const KEYS: &[&str] = &[
    "name",
    "description",
    "tools",
    "disallowedTools",
    "model",
    "permissionMode",
    "maxTurns",
    "skills",
    "mcpServers",
    "hooks",
    "memory",
    "background",
    "isolation",
    "effort",
    "color",
    "forkContext",
    "initialPrompt",
    "criticalSystemReminder",
    "criticalSystemReminder_EXPERIMENTAL",
    "budget",
    "output_schema",
    "max_depth",
    "sandbox",
    HIDDEN,
];

/// Only built-in definitions may be left out of what models are told.
const HIDDEN: &str = "hidden";

/// Other spellings that are as good.
const SPELLINGS: &[(&str, &str)] = &[
    ("outputSchema", "output_schema"),
    ("maxDepth", "max_depth"),
    ("criticalSystemReminder_EXPERIMENTAL", "criticalSystemReminder"),
];

/// Keys of the ecosystem that have no meaning here.
const NOT_OURS: &[&str] = &["omitClaudeMd", "observer", "observerMessage", "autoCompactWindow"];

const MAX_NAME: usize = 128;

/// A definition as written.
pub(crate) struct Draft<'a> {
    pub origin: &'a AgentOrigin,
    pub source: AgentSource,
    pub plugin: Option<&'a str>,
    /// The file's name without its ending, the name of a plugin's definition that has none.
    pub stem: &'a str,
    /// The name and its line, where it is not one of the entries.
    pub name: Option<(&'a str, u32)>,
    pub trust: WaitingParts,
    pub entries: &'a [Entry],
    /// None where there is no prompt at all.
    pub prompt: Option<String>,
}

/// Whether the parts of a definition that wait for trust are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitingParts {
    InForce,
    NotTrusted,
    /// The folder is trusted, but not with these parts.
    Changed,
    /// The plugin is on, but not with these parts.
    ChangedPlugin,
}

impl WaitingParts {
    /// Whether what a file widens is in force. What a repository's file widens must be exactly what the user
    /// agreed to, and what a plugin's widens exactly what it was when the plugin was loaded: a part that an
    /// agent wrote or changed since then is not in force. The user's own files are taken as they are.
    pub(crate) fn of(
        agreed: Option<&Agreed>,
        folder: &AgentFolder,
        file: &Utf8Path,
        add: impl FnOnce(&mut ProjectParts, &str),
    ) -> Self {
        let (agreed, otherwise) = match (folder.source, agreed, folder.agreed.as_deref()) {
            (AgentSource::Project, Some(agreed), _) => (agreed, Self::Changed),
            (AgentSource::Project, None, _) => return Self::NotTrusted,
            (AgentSource::Plugin, _, Some(agreed)) => (agreed, Self::ChangedPlugin),
            _ => return Self::InForce,
        };
        let Ok(name) = file.strip_prefix(&agreed.root) else { return Self::NotTrusted };
        let mut parts = ProjectParts::default();
        add(&mut parts, name.as_str());
        if agreed.covers(&parts) { Self::InForce } else { otherwise }
    }

    /// Why the parts are not in force, if they are not.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::InForce => None,
            Self::NotTrusted => Some("this folder is not trusted (see `decurion trust`)"),
            Self::Changed => Some("it is not what was there when the folder was trusted"),
            Self::ChangedPlugin => {
                Some("it is not what was there when the plugin was loaded (see `decurion plugin enable`)")
            }
        }
    }
}

impl Draft<'_> {
    /// The definition, if it can be used; what is wrong with it in any case.
    pub(crate) fn decide(
        self,
        request: &AgentRequest,
        problems: &mut Vec<AgentProblem>,
    ) -> Option<AgentDefinition> {
        let mut maker = Maker {
            definition: AgentDefinition { source: self.source, ..AgentDefinition::default() },
            tools_line: None,
            model_line: None,
            found: Vec::new(),
            request,
            draft: &self,
        };
        maker.name();
        for entry in self.entries {
            maker.entry(entry);
        }
        maker.whole();
        let Maker { mut definition, mut found, .. } = maker;
        let name = (!definition.name.is_empty()).then(|| definition.name.clone());
        for problem in &mut found {
            problem.agent.clone_from(&name);
        }
        let usable = found.iter().all(|problem| problem.severity != Severity::Error);
        problems.append(&mut found);
        definition.prompt = self.prompt.unwrap_or_default();
        usable.then_some(definition)
    }
}

struct Maker<'a> {
    definition: AgentDefinition,
    tools_line: Option<u32>,
    model_line: Option<u32>,
    found: Vec<AgentProblem>,
    request: &'a AgentRequest,
    draft: &'a Draft<'a>,
}

impl Maker<'_> {
    fn say(&mut self, severity: Severity, line: impl Into<Option<u32>>, text: impl Into<String>) {
        let (origin, line, text) = (self.draft.origin.clone(), line.into(), text.into());
        self.found.push(AgentProblem { severity, origin, line, agent: None, text });
    }

    fn error(&mut self, line: impl Into<Option<u32>>, text: impl Into<String>) {
        self.say(Severity::Error, line, text);
    }

    fn warn(&mut self, line: impl Into<Option<u32>>, text: impl Into<String>) {
        self.say(Severity::Warning, line, text);
    }

    fn name(&mut self) {
        let entry = self.draft.entries.iter().find(|entry| entry.key == "name");
        let written = entry.and_then(|entry| Some((entry.text()?, entry.line)));
        let stem = self.draft.plugin.map(|_| (self.draft.stem, 1));
        let Some((name, line)) = self.draft.name.or(written).or(stem) else {
            return self.error(entry.map_or(1, |entry| entry.line), "missing `name`");
        };
        if let Some(reason) = name_problem(name) {
            return self.error(line, format!("`name` {reason}"));
        }
        if self.draft.source != AgentSource::Builtin && name.eq_ignore_ascii_case(builtin::FORK) {
            self.error(line, "`name` is that of a built-in agent that cannot be replaced: fork");
        }
        self.definition.name = match self.draft.plugin {
            Some(plugin) => format!("{plugin}:{name}"),
            None => name.to_owned(),
        };
    }

    fn entry(&mut self, entry: &Entry) {
        let Some(key) = self.key(entry) else { return };
        match key {
            "description" => entry.text().unwrap_or_default().clone_into(&mut self.definition.description),
            "tools" => self.tools(entry),
            "disallowedTools" => self.disallowed(entry),
            "model" => self.model(entry),
            "permissionMode" => self.mode(entry),
            "maxTurns" => self.max_turns(entry),
            "background" => self.definition.background = self.switch(entry),
            "forkContext" => self.definition.fork_context = self.switch(entry),
            HIDDEN => self.definition.hidden = self.switch(entry),
            "effort" => self.effort(entry),
            "color" => self.definition.color = entry.text().map(str::to_owned),
            "initialPrompt" => self.definition.initial_prompt = entry.text().map(str::to_owned),
            "criticalSystemReminder" => self.definition.reminder = entry.text().map(str::to_owned),
            "budget" => self.budget(entry),
            "max_depth" => self.max_depth(entry),
            "hooks" => self.hooks(entry),
            "skills" => self.skills(entry),
            "mcpServers" => self.servers(entry),
            "memory" => self.memory(entry),
            "isolation" => self.isolation(entry),
            "output_schema" => self.output_schema(entry),
            "sandbox" => self.sandbox(entry),
            _ => {}
        }
    }

    /// The key an entry means. What is nearly a key is taken for it, because to drop `disallowed-tools`
    /// would give an agent tools that its author took away.
    fn key(&mut self, entry: &Entry) -> Option<&'static str> {
        let allowed = |key: &str| key != HIDDEN || self.draft.source == AgentSource::Builtin;
        let written = entry.key.as_str();
        if let Some((_, key)) = SPELLINGS.iter().find(|(spelling, _)| *spelling == written) {
            return Some(key);
        }
        if let Some(key) = KEYS.iter().find(|key| **key == written && allowed(key)) {
            return Some(key);
        }
        if NOT_OURS.contains(&written) {
            self.say(Severity::Note, entry.line, format!("`{written}` has no effect here"));
            return None;
        }
        let near = KEYS.iter().find(|key| plain(key) == plain(written) && allowed(key)).copied();
        match near {
            Some(key) => self.warn(entry.line, format!("`{written}` is spelled `{key}`")),
            None if plain(written) == "allowedtools" => {
                self.warn(
                    entry.line,
                    format!("unknown key: {written} (an agent's tools are listed in `tools`)"),
                );
            }
            None => self.warn(entry.line, format!("unknown key: {written}")),
        }
        near
    }

    fn names(&mut self, entry: &Entry) -> Option<Vec<String>> {
        let names = tools::texts(entry);
        if names.is_none() {
            self.error(entry.line, format!("`{}` is neither a list of names nor a text", entry.key));
        }
        names
    }

    fn current_names(&mut self, entry: &Entry, key: &str) -> Option<Vec<String>> {
        let names = self.names(entry)?;
        let (names, remarks) = tools::current(names, key, &self.request.tools);
        for (severity, text) in remarks {
            self.say(severity, entry.line, text);
        }
        Some(names)
    }

    fn tools(&mut self, entry: &Entry) {
        self.tools_line = Some(entry.line);
        let Some(names) = self.current_names(entry, "tools") else { return };
        if matches!(entry.value, Value::Null)
            || entry.value.as_str().is_some_and(|text| text.trim().is_empty())
        {
            self.warn(entry.line, "`tools` is empty and counts as not given: the agent has all tools");
        } else if names.is_empty() {
            self.error(entry.line, "`tools` is an empty list, and an agent without tools can do nothing");
        } else if !names.iter().any(|name| name == "*") {
            self.definition.tools.only = Some(names);
        }
    }

    fn disallowed(&mut self, entry: &Entry) {
        self.tools_line = self.tools_line.or(Some(entry.line));
        self.definition.tools.except = self.current_names(entry, "disallowedTools").unwrap_or_default();
    }

    fn model(&mut self, entry: &Entry) {
        self.model_line = Some(entry.line);
        let Some(model) = entry.text() else { return };
        if !is_model_name(entry, model) {
            let text = format!("`model` is no model's name, so the agent inherits its parent's: {model}");
            return self.warn(entry.line, text);
        }
        let lower = model.to_ascii_lowercase();
        let is_alias = ["inherit", "sonnet", "opus", "haiku", "fable"].contains(&lower.as_str());
        self.definition.model = Some(if is_alias { lower } else { model.to_owned() });
    }

    fn effort(&mut self, entry: &Entry) {
        if let Some(problem) = effort_problem(entry) {
            self.warn(entry.line, problem);
        }
        self.definition.effort = entry.text().map(str::to_owned);
    }

    fn mode(&mut self, entry: &Entry) {
        if self.draft.plugin.is_some() {
            return self.warn(entry.line, "`permissionMode` is ignored: a plugin's agent cannot set one");
        }
        let mode = match entry.text().unwrap_or_default().parse::<Mode>() {
            Ok(mode) => mode,
            Err(error) => return self.warn(entry.line, format!("`permissionMode` is ignored: {error}")),
        };
        if widens(mode) && self.waits(entry) {
            return;
        }
        self.definition.mode = Some(mode);
    }

    /// Whether something must be left out because the user did not agree to it; says so.
    fn waits(&mut self, entry: &Entry) -> bool {
        let Some(why) = self.draft.trust.reason() else { return false };
        self.warn(entry.line, format!("`{}` is ignored, because {why}", entry.key));
        true
    }

    fn max_turns(&mut self, entry: &Entry) {
        match integer(entry, 1).and_then(|turns| u32::try_from(turns).ok()) {
            Some(turns) => self.limit_turns(turns),
            None => self.warn(entry.line, "`maxTurns` is ignored: expected a whole number above 0"),
        }
    }

    /// Two limits on the same thing: the smaller holds.
    fn limit_turns(&mut self, turns: u32) {
        let limits = &mut self.definition.limits;
        limits.turns = Some(limits.turns.map_or(turns, |other| other.min(turns)));
    }

    fn switch(&mut self, entry: &Entry) -> bool {
        match entry.text().map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on") => true,
            None | Some("false" | "no" | "off") => false,
            Some(_) => {
                self.warn(entry.line, format!("`{}` is ignored: expected true or false", entry.key));
                false
            }
        }
    }

    fn budget(&mut self, entry: &Entry) {
        let Value::Object(members) = &entry.value else {
            return self.error(entry.line, "`budget` takes tokens, usd, turns, seconds and spawns");
        };
        for (key, value) in members {
            let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
            let number = number.filter(|number| number.is_finite() && *number >= 0.0);
            let Some(number) = number else {
                self.error(entry.line, format!("`budget.{key}`: expected a number, 0 or above"));
                continue;
            };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            // not negative; bounds saturate
            let whole = number as u64;
            let small = u32::try_from(whole).unwrap_or(u32::MAX);
            let limits = &mut self.definition.limits;
            match key.as_str() {
                "usd" | "money" => limits.money = Some(Money::from_dollars(number)),
                "tokens" => limits.tokens = Some(whole),
                "seconds" => limits.seconds = Some(whole),
                "spawns" => limits.spawns = Some(small),
                "turns" => self.limit_turns(small),
                _ => self.error(entry.line, format!("`budget` has no limit of this name: {key}")),
            }
        }
    }

    fn max_depth(&mut self, entry: &Entry) {
        match integer(entry, 0).and_then(|depth| u32::try_from(depth).ok()) {
            Some(depth) => self.definition.max_depth = Some(depth),
            None => self.error(entry.line, format!("`{}`: expected a whole number", entry.key)),
        }
    }

    fn hooks(&mut self, entry: &Entry) {
        let Value::Object(events) = &entry.value else {
            if !entry.value.is_null() {
                self.warn(entry.line, "`hooks` is ignored: expected an object of event to list");
            }
            return;
        };
        if self.draft.plugin.is_some() {
            return self.warn(entry.line, "`hooks` is ignored: a plugin's agent cannot set any");
        }
        if let Some((event, _)) = events.iter().find(|(_, hooks)| !hooks.is_array()) {
            return self
                .warn(entry.line, format!("`hooks` is ignored: expected a list for the event {event}"));
        }
        for warning in hooks::of_definition(&entry.value, "").warnings {
            self.warn(entry.line, warning.text);
        }
        if self.waits(entry) {
            return;
        }
        self.definition.hooks = Some(entry.value.clone());
    }

    fn skills(&mut self, entry: &Entry) {
        let Some(names) = self.names(entry) else { return };
        for name in &names {
            if self.request.skills.as_ref().is_some_and(|known| !known.contains(name)) {
                self.warn(entry.line, format!("`skills`: no such skill: {name}"));
            }
        }
        self.definition.equipment.skills = names;
    }

    fn servers(&mut self, entry: &Entry) {
        let is_fine = match &entry.value {
            Value::Null => return,
            Value::Object(servers) => servers.values().all(Value::is_object),
            Value::Array(servers) => servers.iter().all(|server| match server {
                Value::Object(servers) => servers.values().all(Value::is_object),
                other => other.is_string(),
            }),
            Value::String(_) => true,
            _ => false,
        };
        if !is_fine {
            let text = "`mcpServers` is ignored: expected names, or an object of name to server";
            return self.warn(entry.line, text);
        }
        if declares_servers(&entry.value) && self.waits(entry) {
            return;
        }
        for name in crate::mcp::hosted(&entry.value) {
            self.warn(entry.line, format!("`mcpServers`: {name} cannot be used: {}", crate::mcp::HOSTED));
        }
        let names = |text: &str| text.split(',').map(|name| Value::String(name.trim().to_owned())).collect();
        let servers = match &entry.value {
            Value::String(text) => Value::Array(names(text)),
            other => other.clone(),
        };
        if let Some(known) = &self.request.servers {
            let named = servers.as_array().into_iter().flatten().filter_map(Value::as_str);
            let missing = named.filter(|name| !known.iter().any(|known| known == name));
            for name in missing.map(str::to_owned).collect::<Vec<_>>() {
                self.warn(entry.line, format!("`mcpServers`: no server is declared under this name: {name}"));
            }
        }
        self.definition.equipment.mcp_servers = Some(servers);
    }

    fn memory(&mut self, entry: &Entry) {
        match entry.text() {
            // The user's folder is not the repository's to read and to write.
            Some("user") if self.waits(entry) => {}
            Some(scope @ ("user" | "project" | "local")) => {
                self.definition.equipment.memory = Some(scope.to_owned());
            }
            None => {}
            Some(_) => self.warn(entry.line, "`memory` is ignored: expected user, project or local"),
        }
    }

    /// Another kind of isolation cannot be left out: the agent would work in the shared folder.
    fn isolation(&mut self, entry: &Entry) {
        match entry.text() {
            Some(kind @ ("worktree" | "worktree+dirty")) => {
                self.definition.equipment.isolation = Some(kind.to_owned());
            }
            None => {}
            Some(other) => {
                self.error(
                    entry.line,
                    format!("`isolation`: expected worktree or worktree+dirty, found {other}"),
                );
            }
        }
    }

    fn output_schema(&mut self, entry: &Entry) {
        let from_text = || serde_json::from_str::<Value>(entry.value.as_str()?).ok();
        let schema = if entry.value.is_object() { Some(entry.value.clone()) } else { from_text() };
        match schema.filter(Value::is_object) {
            Some(schema) => {
                self.definition.equipment.output_schema = Some(schema);
            }
            None => {
                self.error(
                    entry.line,
                    format!("`{}`: expected a JSON Schema, which is an object", entry.key),
                );
            }
        }
    }

    fn sandbox(&mut self, entry: &Entry) {
        let (sandbox, problems) = bounds::read(entry);
        self.definition.sandbox = sandbox;
        for (line, text) in problems {
            self.error(line, text);
        }
    }

    /// What only the whole shows.
    fn whole(&mut self) {
        if self.definition.description.is_empty() {
            let entry = self.draft.entries.iter().find(|entry| entry.key == "description");
            let line = entry.map_or(self.draft.name.map_or(1, |(_, line)| line), |entry| entry.line);
            self.error(line, "missing `description`, which says when to use it");
        }
        match self.draft.prompt.as_deref().map(str::trim) {
            None => self.error(self.draft.name.map(|(_, line)| line), "missing `prompt`"),
            Some("") => self.warn(None, "no text below the head: the agent has no instructions"),
            Some(_) => {}
        }
        let failed = self.found.iter().any(|problem| problem.severity == Severity::Error);
        if !failed && !tools::leaves_any(&self.definition.tools, &self.request.tools) {
            self.error(self.tools_line, "none of the tools that `tools` and `disallowedTools` leave exists");
        }
        let inherits = self.definition.model.as_deref().is_none_or(|model| model == "inherit");
        if self.definition.fork_context && !inherits {
            self.warn(
                self.model_line,
                "`model` has no effect with `forkContext`: the conversation is the parent's, and so is the model",
            );
        }
    }
}

/// What is wrong with a name: it stands in rules (`Agent(name)`), in lists and on the screen.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    if name.len() > MAX_NAME {
        return Some(format!("is longer than {MAX_NAME} bytes"));
    }
    let bad = name.chars().find(|character| character.is_control() || "(),*".contains(*character))?;
    Some(format!("holds a character that names cannot have: {bad:?}"))
}

/// Words for how hard a model thinks that some provider knows.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What is wrong with an `effort`. It is sent as it is written: a provider may know more than we do.
pub(crate) fn effort_problem(entry: &Entry) -> Option<String> {
    let effort = entry.text().filter(|effort| !EFFORTS.contains(effort))?;
    Some(format!("`effort` is sent as it is written, but no provider known here takes it: {effort}"))
}

/// Whether this can be what a model is called; a number is a slip.
pub(crate) fn is_model_name(entry: &Entry, model: &str) -> bool {
    entry.value.is_string() && !model.contains(char::is_whitespace) && !model.starts_with('[')
}

/// A key without regard to case and the signs between words.
pub(crate) fn plain(key: &str) -> String {
    key.chars().filter(|character| !matches!(character, '-' | '_')).flat_map(char::to_lowercase).collect()
}

fn integer(entry: &Entry, least: u64) -> Option<u64> {
    let number = entry.value.as_u64().or_else(|| entry.text()?.parse().ok());
    number.filter(|number| *number >= least)
}

/// Whether fewer questions are asked in this mode than in `default`.
fn widens(mode: Mode) -> bool {
    match mode {
        Mode::AcceptEdits | Mode::BypassPermissions | Mode::DontAsk => true,
        Mode::Default | Mode::Plan | Mode::Bubble => false,
    }
}

/// Whether servers are declared rather than named.
fn declares_servers(value: &Value) -> bool {
    match value {
        Value::Object(servers) => !servers.is_empty(),
        Value::Array(servers) => servers.iter().any(Value::is_object),
        _ => false,
    }
}

/// Adds what a definition runs or widens to the parts that wait for trust.
pub(crate) fn add_parts(parts: &mut ProjectParts, name: &str, file: &Utf8Path, entries: &[Entry]) {
    for entry in entries {
        let (kind, key) = match plain(&entry.key).as_str() {
            "permissionmode" if entry.text().and_then(|mode| mode.parse().ok()).is_some_and(widens) => {
                (PartKind::Mode, "permissionMode")
            }
            "hooks" if entry.value.is_object() => (PartKind::Hook, "hooks"),
            "memory" if entry.text() == Some("user") => (PartKind::Directory, "memory"),
            "mcpservers" if declares_servers(&entry.value) => (PartKind::Server, "mcpServers"),
            _ => continue,
        };
        let content = entry.value.to_string();
        let origin = Origin::in_project_file(file, entry.line);
        parts.add(name, Part::new(kind, key, origin, &entry.value), content.as_bytes());
    }
}
