//! A head into a skill or a command. Takes the entries with their lines and the place they stand in, gives the
//! skill or the reason why there is none; every key is checked here. What only narrows and cannot be read
//! makes a file unusable, since to leave it out would widen it.

use camino::Utf8Path;
use decurion_protocol::{Invocable, Skill, SkillKind};
use serde_json::Value;

use super::SkillRequest;
use crate::agents::definition::{WaitingParts, effort_problem, is_model_name, name_problem, plain};
use crate::agents::{AgentFolder, AgentOrigin, AgentProblem, Severity, tools};
use crate::frontmatter::{Document, Entry};
use crate::hooks;
use crate::origin::Origin;
use crate::trust::{Part, PartKind, ProjectParts};

/// Every key that a skill or a command may have.
pub(crate) const KEYS: &[&str] = &[
    "name",
    "description",
    "when_to_use",
    "allowed-tools",
    "disallowed-tools",
    "argument-hint",
    "arguments",
    "model",
    "effort",
    "context",
    "agent",
    "hooks",
    "user-invocable",
    "disable-model-invocation",
    "paths",
    "shell",
    "version",
    "license",
    "metadata",
];

/// Keys that say something to people and nothing to us.
const FOR_PEOPLE: &[&str] =
    &["version", "license", "metadata", "author", "compatibility", "tags", "category"];

/// Other spellings that are as good.
const SPELLINGS: &[(&str, &str)] = &[
    ("allowedTools", "allowed-tools"),
    ("allowed_tools", "allowed-tools"),
    ("disallowedTools", "disallowed-tools"),
    ("argumentHint", "argument-hint"),
    ("argument_hint", "argument-hint"),
    ("when-to-use", "when_to_use"),
    ("userInvocable", "user-invocable"),
    ("disableModelInvocation", "disable-model-invocation"),
];

/// The first line of a text as a description: how much of it.
const MOST_FIRST_LINE: usize = 200;

/// A skill or a command as written.
pub(crate) struct Draft<'a> {
    pub kind: SkillKind,
    pub folder: &'a AgentFolder,
    pub file: &'a Utf8Path,
    /// The name by its place.
    pub name: &'a str,
    pub trust: WaitingParts,
    pub document: &'a Document,
}

impl Draft<'_> {
    /// The skill, if it can be used; what is wrong with it in any case.
    pub(crate) fn decide(self, request: &SkillRequest, problems: &mut Vec<AgentProblem>) -> Option<Skill> {
        let skill = Skill {
            kind: self.kind,
            source: self.folder.source,
            path: self.file.to_owned(),
            folder: self.file.parent().unwrap_or(self.file).to_owned(),
            plugin_root: self.folder.plugin.as_ref().map(|plugin| plugin.root.clone()),
            ..Skill::default()
        };
        let mut maker = Maker { skill, user: true, model: true, found: Vec::new(), request, draft: &self };
        maker.name();
        for entry in &self.document.head {
            maker.entry(entry);
        }
        maker.whole();
        let Maker { mut skill, user, model, mut found, .. } = maker;
        skill.invocable = Invocable::of(user, model);
        for problem in &mut found {
            problem.agent = (!skill.name.is_empty()).then(|| skill.name.clone());
        }
        let usable = found.iter().all(|problem| problem.severity != Severity::Error);
        problems.append(&mut found);
        usable.then_some(skill)
    }
}

struct Maker<'a> {
    skill: Skill,
    user: bool,
    model: bool,
    found: Vec<AgentProblem>,
    request: &'a SkillRequest,
    draft: &'a Draft<'a>,
}

impl Maker<'_> {
    fn say(&mut self, severity: Severity, line: impl Into<Option<u32>>, text: impl Into<String>) {
        let origin = AgentOrigin::File(self.draft.file.to_owned());
        self.found.push(AgentProblem { severity, origin, line: line.into(), agent: None, text: text.into() });
    }

    fn warn(&mut self, line: impl Into<Option<u32>>, text: impl Into<String>) {
        self.say(Severity::Warning, line, text);
    }

    /// A skill is called by what its head says where that can be typed, else by its folder; a command by its
    /// place alone.
    fn name(&mut self) {
        let entry = self.draft.document.head.iter().find(|entry| entry.key == "name");
        let written = entry.and_then(|entry| Some((entry.text()?.to_owned(), entry.line)));
        let mut name = self.draft.name.to_owned();
        match (self.draft.kind, written) {
            (SkillKind::Skill, Some((own, line))) => match typed_problem(&own) {
                None => {
                    if own != name {
                        let text = format!("`name` is not its folder's, {name}: it is called /{own}");
                        self.say(Severity::Note, line, text);
                    }
                    name = own;
                }
                Some(reason) => self.warn(line, format!("`name` {reason}; the folder's is used: {name}")),
            },
            (SkillKind::Command, Some((own, line))) if own != name => {
                self.warn(line, format!("`name` is ignored: a command is called by its file, {name}"));
            }
            _ => {}
        }
        if let Some(reason) = typed_problem(&name) {
            let what =
                if self.draft.kind == SkillKind::Skill { "the folder's name" } else { "the file's name" };
            return self.say(Severity::Error, None, format!("{what} {reason}: {name:?}"));
        }
        self.skill.name = match &self.draft.folder.plugin {
            Some(plugin) => format!("{}:{name}", plugin.name),
            None => name,
        };
    }

    fn entry(&mut self, entry: &Entry) {
        let Some(key) = self.key(entry) else { return };
        match key {
            "description" => entry.text().unwrap_or_default().clone_into(&mut self.skill.description),
            "when_to_use" => self.skill.when_to_use = entry.text().map(str::to_owned),
            // `[a] [b]` is text whatever YAML makes of it.
            "argument-hint" => self.skill.argument_hint = hint(entry),
            "arguments" => self.skill.arguments = self.names(entry).unwrap_or_default(),
            "allowed-tools" => self.allowed(entry),
            "disallowed-tools" => self.disallowed(entry),
            "model" => self.model(entry),
            "effort" => self.effort(entry),
            "context" => self.context(entry),
            "agent" => self.agent(entry),
            "user-invocable" => self.user = self.switch(entry, true),
            "disable-model-invocation" => self.model = !self.switch(entry, false),
            "hooks" => self.hooks(entry),
            "paths" => self.paths(entry),
            "shell" if entry.text().is_none_or(|shell| shell == "bash") => {}
            "shell" => self.warn(entry.line, "`shell` is ignored: inline commands run in bash"),
            _ => {}
        }
    }

    /// The key an entry means, with the same patience as for agents.
    fn key(&mut self, entry: &Entry) -> Option<&'static str> {
        let written = entry.key.as_str();
        if let Some((_, key)) = SPELLINGS.iter().find(|(spelling, _)| *spelling == written) {
            return Some(key);
        }
        if let Some(key) = KEYS.iter().find(|key| **key == written) {
            return Some(key);
        }
        if FOR_PEOPLE.contains(&written) {
            return None;
        }
        let near = KEYS.iter().find(|key| plain(key) == plain(written)).copied();
        match near {
            Some(key) => self.warn(entry.line, format!("`{written}` is spelled `{key}`")),
            None if plain(written) == "tools" => self.warn(
                entry.line,
                format!("unknown key: {written} (what may be used is listed in `allowed-tools`)"),
            ),
            None => self.warn(entry.line, format!("unknown key: {written}")),
        }
        near
    }

    fn names(&mut self, entry: &Entry) -> Option<Vec<String>> {
        let names = tools::texts(entry);
        if names.is_none() {
            let text = format!("`{}` is ignored: neither a list of names nor a text", entry.key);
            self.warn(entry.line, text);
        }
        names
    }

    fn tool_names(&mut self, entry: &Entry, key: &str) -> Option<Vec<String>> {
        let names = self.names(entry)?;
        let (names, remarks) = tools::current(names, key, &self.request.tools);
        for (severity, text) in remarks {
            self.say(severity, entry.line, text);
        }
        Some(names)
    }

    fn allowed(&mut self, entry: &Entry) {
        let Some(names) = self.tool_names(entry, "allowed-tools") else { return };
        if let Some(why) = self.draft.trust.reason() {
            return self.warn(entry.line, format!("`{}` is ignored, because {why}", entry.key));
        }
        self.skill.allowed_tools = names;
    }

    /// Hooks run programs, so they wait for trust as those of a definition do.
    fn hooks(&mut self, entry: &Entry) {
        if entry.value.is_null() {
            return;
        }
        let found = hooks::of_skill(&entry.value, "", None);
        for warning in found.warnings {
            self.warn(entry.line, warning.text);
        }
        if found.declarations.is_empty() {
            return;
        }
        if let Some(why) = self.draft.trust.reason() {
            return self.warn(entry.line, format!("`{}` is ignored, because {why}", entry.key));
        }
        self.skill.hooks = Some(entry.value.clone());
    }

    /// Patterns that cannot be read are left out; a skill that is about nothing is told of as any other.
    fn paths(&mut self, entry: &Entry) {
        let Some(written) = patterns(&entry.value) else {
            return self
                .warn(entry.line, "`paths` is ignored: expected a pattern of files, or a list of them");
        };
        let (fine, wrong): (Vec<_>, Vec<_>) =
            written.into_iter().partition(|pattern| super::concerned(pattern).is_some());
        for pattern in wrong {
            self.warn(entry.line, format!("`paths`: not a pattern of files: {pattern}"));
        }
        self.skill.paths = fine;
    }

    fn disallowed(&mut self, entry: &Entry) {
        if tools::texts(entry).is_some() {
            self.skill.disallowed_tools = self.tool_names(entry, "disallowedTools").unwrap_or_default();
            return;
        }
        let text = format!("`{}` is neither a list of names nor a text", entry.key);
        self.say(Severity::Error, entry.line, text);
    }

    fn model(&mut self, entry: &Entry) {
        let Some(model) = entry.text() else { return };
        if !is_model_name(entry, model) {
            return self
                .warn(entry.line, format!("`model` is ignored, because it is no model's name: {model}"));
        }
        self.skill.model = Some(model.to_owned());
    }

    fn effort(&mut self, entry: &Entry) {
        if let Some(problem) = effort_problem(entry) {
            self.warn(entry.line, problem);
        }
        self.skill.effort = entry.text().map(str::to_owned);
    }

    /// An agent that is not there is told when the skill is called; whoever checks files is told before.
    fn agent(&mut self, entry: &Entry) {
        let Some(agent) = entry.text() else { return };
        let is_agent = |known: &Vec<String>| known.iter().any(|known| known.eq_ignore_ascii_case(agent));
        if self.request.agents.as_ref().is_some_and(|known| !is_agent(known)) {
            self.warn(entry.line, format!("`agent`: no such agent: {agent}"));
        }
        self.skill.agent = Some(agent.to_owned());
    }

    fn context(&mut self, entry: &Entry) {
        match entry.text() {
            Some("fork") => self.skill.fork = true,
            None | Some("inline") => {}
            Some(_) => self.warn(entry.line, "`context` is ignored: expected fork"),
        }
    }

    fn switch(&mut self, entry: &Entry, otherwise: bool) -> bool {
        match entry.text().map(str::to_ascii_lowercase).as_deref() {
            Some("true" | "yes" | "on") => true,
            Some("false" | "no" | "off") => false,
            None => otherwise,
            Some(_) => {
                self.warn(entry.line, format!("`{}` is ignored: expected true or false", entry.key));
                otherwise
            }
        }
    }

    /// What only the whole shows.
    fn whole(&mut self) {
        let head = &self.draft.document.head;
        let line = |key: &str| head.iter().find(|entry| entry.key == key).map(|entry| entry.line);
        if self.draft.document.body.is_empty() {
            self.say(Severity::Error, None, "no text below the head, so there is nothing to do");
        }
        if self.skill.description.is_empty() {
            self.skill.description = first_line(&self.draft.document.body);
            if self.draft.kind == SkillKind::Skill {
                let text = "no `description`; its first line is used";
                self.warn(line("description").unwrap_or(1), text);
            }
        }
        if !self.skill.fork {
            for (key, is_set) in
                [("agent", self.skill.agent.is_some()), ("effort", self.skill.effort.is_some())]
            {
                if is_set {
                    let text = format!("`{key}` has no effect without `context: fork`");
                    self.say(Severity::Note, line(key), text);
                }
            }
        }
    }
}

/// What is wrong with a name that is typed behind a slash and stands in rules.
fn typed_problem(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is empty".to_owned());
    }
    if let Some(bad) = name.chars().find(|character| character.is_whitespace() || *character == '/') {
        return Some(format!("holds a character that cannot be typed in a command: {bad:?}"));
    }
    name_problem(name)
}

/// A hint as written: quotes around it are YAML's.
fn hint(entry: &Entry) -> Option<String> {
    match &entry.value {
        Value::Null => None,
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        _ => Some(entry.raw.trim().to_owned()),
    }
}

/// The patterns of a text or a list; a comma inside braces is part of a pattern.
fn patterns(value: &Value) -> Option<Vec<String>> {
    let split = |text: &str| {
        let mut depth = 0_i32;
        let pieces = text.split(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            letter == ',' && depth <= 0
        });
        pieces.map(|piece| piece.trim().to_owned()).filter(|piece| !piece.is_empty()).collect::<Vec<_>>()
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => Some(split(text)),
        Value::Array(items) => {
            let items = items.iter().map(|item| item.as_str().map(split));
            Some(items.collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}

/// The first line that says something, without the marks of a heading.
fn first_line(body: &str) -> String {
    let line = body.lines().map(|line| line.trim_start_matches('#').trim()).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(MOST_FIRST_LINE).collect()
}

/// Adds what a skill or command widens to the parts that wait for trust.
pub(crate) fn add_parts(parts: &mut ProjectParts, name: &str, file: &Utf8Path, entries: &[Entry]) {
    for entry in entries {
        let (kind, key) = match plain(&entry.key).as_str() {
            "allowedtools" if tools::texts(entry).is_some_and(|names| !names.is_empty()) => {
                (PartKind::AllowRule, "allowed-tools")
            }
            "hooks" if entry.value.is_object() => (PartKind::Hook, "hooks"),
            _ => continue,
        };
        let origin = Origin::in_project_file(file, entry.line);
        let part = Part::new(kind, key, origin, &entry.value);
        parts.add(name, part, entry.value.to_string().as_bytes());
    }
}
