//! A plugin's folder told apart. Takes the folder, gives what `plugin.json` and the usual folders declare, in
//! every form that people write, and what is wrong with it. No path leads out of the folder.

use std::collections::{BTreeMap, BTreeSet};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use decurion_protocol::SkillKind;
use serde_json::{Map, Value};

use super::{DeclaredHooks, Plugin, PluginFrom, PluginState};
use crate::agents::definition::{self, name_problem};
use crate::agents::place::OUT_OF_PLUGIN;
use crate::agents::{AgentFolder, AgentOrigin, AgentProblem, PluginPlace, Severity, place, text_of};
use crate::frontmatter;
use crate::jsonc::{self, Kind, Node};
use crate::origin::Origin;
use crate::skills;
use crate::trust::{Part, PartKind, ProjectParts, hex};
use sha2::{Digest, Sha256};

/// Where the manifest may be; ours goes before the ecosystem's.
const MANIFESTS: [&str; 2] = [".decurion-plugin/plugin.json", ".claude-plugin/plugin.json"];
/// Keys that say something to people.
const FOR_PEOPLE: &[&str] =
    &["author", "homepage", "repository", "license", "keywords", "displayName", "icon"];
/// Keys of the ecosystem that bring something which does not exist here.
const NOT_OURS: &[&str] = &[
    "lspServers",
    "outputStyles",
    "dependencies",
    "userConfig",
    "channels",
    "workflows",
    "settings",
    "engines",
    "experimental",
];

pub(super) fn read(root: &Utf8Path) -> Plugin {
    let real = root.canonicalize_utf8().unwrap_or_else(|_| root.to_owned());
    let stem = real.file_name().unwrap_or("plugin").to_owned();
    let mut reader = Reader {
        plugin: Plugin {
            name: stem,
            version: None,
            description: None,
            root: real,
            from: PluginFrom::Added,
            state: PluginState::On,
            default_enabled: true,
            agents: Vec::new(),
            skills: Vec::new(),
            problems: Vec::new(),
            hooks: Vec::new(),
            servers: BTreeMap::new(),
        },
        file: root.to_owned(),
        named: Named::default(),
    };
    reader.whole();
    if !reader.plugin.is_usable() {
        reader.plugin.state = PluginState::Broken;
    }
    reader.plugin
}

/// What a manifest names, before the plugin's name is known.
#[derive(Default)]
struct Named {
    agents: Vec<Utf8PathBuf>,
    skills: Vec<Utf8PathBuf>,
    commands: Vec<Utf8PathBuf>,
    servers: Vec<(String, Value)>,
}

struct Reader {
    plugin: Plugin,
    /// The file that problems are about.
    file: Utf8PathBuf,
    named: Named,
}

impl Reader {
    fn say(&mut self, severity: Severity, line: Option<u32>, text: impl Into<String>) {
        let origin = AgentOrigin::File(self.file.clone());
        self.plugin.problems.push(AgentProblem { severity, origin, line, agent: None, text: text.into() });
    }

    fn warn(&mut self, node: &Node, text: impl Into<String>) {
        self.say(Severity::Warning, Some(node.at.line), text);
    }

    fn whole(&mut self) {
        let root = self.plugin.root.clone();
        if !root.is_dir() {
            return self.say(Severity::Error, None, "there is no such folder");
        }
        let manifest = MANIFESTS.iter().map(|name| root.join(name)).find(|file| file.exists());
        match manifest {
            Some(file) => self.manifest(&file),
            None => self.no_manifest(),
        }
        self.usual("agents", |named| &mut named.agents);
        self.usual("skills", |named| &mut named.skills);
        self.usual("commands", |named| &mut named.commands);
        for (name, is_hooks) in [("hooks/hooks.json", true), (".mcp.json", false)] {
            let file = root.join(name);
            let is_named = self.plugin.hooks.iter().any(|hooks| hooks.file == file);
            if file.exists() && !is_named && self.is_inside(&file, None) {
                self.declaring_file(&file, is_hooks);
            }
        }
        self.settle();
    }

    /// A folder that only has what plugins usually have is one; any other folder is not.
    fn no_manifest(&mut self) {
        let root = &self.plugin.root;
        let usual = ["agents", "skills", "commands", "hooks/hooks.json", ".mcp.json"];
        if usual.iter().any(|name| root.join(name).exists()) {
            let text = format!("no .claude-plugin/plugin.json; named after its folder: {}", self.plugin.name);
            self.say(Severity::Warning, None, text);
            self.check_name(None);
        } else {
            self.say(Severity::Error, None, "not a plugin: no .claude-plugin/plugin.json");
        }
    }

    fn usual(&mut self, name: &str, of: fn(&mut Named) -> &mut Vec<Utf8PathBuf>) {
        let folder = self.plugin.root.join(name);
        let file = std::mem::replace(&mut self.file, folder.clone());
        if folder.is_dir() && !of(&mut self.named).contains(&folder) && self.is_inside(&folder, None) {
            of(&mut self.named).push(folder);
        }
        self.file = file;
    }

    fn manifest(&mut self, file: &Utf8Path) {
        file.clone_into(&mut self.file);
        let Some(document) = self.document(file, Severity::Error) else { return };
        let Kind::Object(members) = &document.kind else {
            return self.say(Severity::Error, Some(document.at.line), "expected an object: `{` … `}`");
        };
        let mut name_line = None;
        for member in members {
            let node = &member.value;
            match member.key.as_str() {
                "name" => {
                    name_line = Some(node.at.line);
                    match node.text().map(str::trim) {
                        Some(name) if !name.is_empty() => name.clone_into(&mut self.plugin.name),
                        _ => self.say(Severity::Error, name_line, "`name` must be a text"),
                    }
                }
                "version" => self.plugin.version = self.text(node, "version"),
                "description" => self.plugin.description = self.text(node, "description"),
                "defaultEnabled" => match node.bool() {
                    Some(on) => self.plugin.default_enabled = on,
                    None => self.warn(node, "`defaultEnabled` is ignored: expected true or false"),
                },
                "agents" => self.paths(node, "agents", |named| &mut named.agents),
                "skills" => self.paths(node, "skills", |named| &mut named.skills),
                "commands" => self.paths(node, "commands", |named| &mut named.commands),
                "hooks" => self.declarations(node, "hooks", true),
                "mcpServers" => self.declarations(node, "mcpServers", false),
                key if FOR_PEOPLE.contains(&key) => self.for_people(node, key),
                key if NOT_OURS.contains(&key) => {
                    let line = Some(member.at.line);
                    self.say(Severity::Note, line, format!("`{key}` has no effect here"));
                }
                key => self.say(Severity::Note, Some(member.at.line), format!("unknown key: {key}")),
            }
        }
        if name_line.is_none() {
            let text = format!("missing `name`; named after its folder: {}", self.plugin.name);
            self.say(Severity::Warning, Some(document.at.line), text);
        }
        self.check_name(name_line);
    }

    fn check_name(&mut self, line: Option<u32>) {
        let name = self.plugin.name.clone();
        let bad = name.chars().find(|character| character.is_whitespace() || "/\\:@".contains(*character));
        let reason = bad.map(|bad| format!("holds a character that names cannot have: {bad:?}"));
        if let Some(reason) = reason.or_else(|| name_problem(&name)) {
            self.say(Severity::Error, line, format!("`name` {reason}"));
        }
    }

    fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        match &node.kind {
            Kind::Text(text) => Some(text.clone()),
            Kind::Number(number) => Some(number.to_string()),
            _ => {
                self.warn(node, format!("`{key}` is ignored: expected a text"));
                None
            }
        }
    }

    /// An author or a repository is a text or an object, and keywords are a list: whatever it is, it is not ours.
    fn for_people(&mut self, node: &Node, key: &str) {
        if matches!(node.kind, Kind::Bool(_) | Kind::Number(_)) {
            self.warn(node, format!("`{key}` is ignored: expected a text"));
        }
    }

    /// Folders or files, as one text or a list.
    fn paths(&mut self, node: &Node, key: &str, of: fn(&mut Named) -> &mut Vec<Utf8PathBuf>) {
        let nodes: Vec<&Node> = match &node.kind {
            Kind::Text(_) => vec![node],
            Kind::List(items) => items.iter().collect(),
            _ => return self.warn(node, format!("`{key}` is ignored: expected a path or a list of paths")),
        };
        for node in nodes {
            let Some(text) = node.text() else {
                self.warn(node, format!("`{key}` is ignored: expected a path"));
                continue;
            };
            if let Some(path) = self.path(text, node)
                && !of(&mut self.named).contains(&path)
            {
                of(&mut self.named).push(path);
            }
        }
    }

    /// Hooks or servers: declared here, in a file, or a list of both.
    fn declarations(&mut self, node: &Node, key: &str, is_hooks: bool) {
        match &node.kind {
            Kind::Text(text) => {
                if let Some(path) = self.path(text, node) {
                    self.declaring_file(&path, is_hooks);
                }
            }
            Kind::Object(_) => {
                let file = self.file.clone();
                self.declared(&file, node, is_hooks);
            }
            Kind::List(items) => items.iter().for_each(|item| self.declarations(item, key, is_hooks)),
            _ => self.warn(node, format!("`{key}` is ignored: expected a path or an object")),
        }
    }

    /// A path inside of the plugin.
    fn path(&mut self, text: &str, node: &Node) -> Option<Utf8PathBuf> {
        let text = PluginPlace { name: String::new(), root: "".into() }.expand(text);
        let written = Utf8Path::new(text.trim_start_matches('/'));
        let climbs = written.components().any(|part| matches!(part, Utf8Component::ParentDir));
        if climbs || text.starts_with('~') {
            self.say(Severity::Error, Some(node.at.line), format!("{OUT_OF_PLUGIN}: {text}"));
            return None;
        }
        let plain: Utf8PathBuf =
            written.components().filter(|part| matches!(part, Utf8Component::Normal(_))).collect();
        let path = self.plugin.root.join(plain);
        if !path.exists() {
            self.warn(node, format!("there is no such file or folder: {text}"));
            return None;
        }
        self.is_inside(&path, Some(node)).then_some(path)
    }

    fn is_inside(&mut self, path: &Utf8Path, node: Option<&Node>) -> bool {
        let holds = PluginPlace { name: String::new(), root: self.plugin.root.clone() }.holds(path);
        if !holds {
            let line = node.map(|node| node.at.line);
            self.say(Severity::Error, line, format!("{OUT_OF_PLUGIN}: {path}"));
        }
        holds
    }

    fn declaring_file(&mut self, file: &Utf8Path, is_hooks: bool) {
        let before = std::mem::replace(&mut self.file, file.to_owned());
        if let Some(document) = self.document(file, Severity::Warning) {
            self.declared(file, &document, is_hooks);
        }
        self.file = before;
    }

    fn document(&mut self, file: &Utf8Path, severity: Severity) -> Option<Node> {
        let text = match text_of(file) {
            Ok(text) => text,
            Err((line, reason)) => {
                self.say(severity, line, reason);
                return None;
            }
        };
        match jsonc::parse(&text, 0) {
            Ok(document) => Some(document.root),
            Err(error) => {
                self.say(severity, Some(error.at.line), format!("not JSON: {}", error.message));
                None
            }
        }
    }

    /// What a file or a member declares, with or without the wrapper around it.
    fn declared(&mut self, file: &Utf8Path, node: &Node, is_hooks: bool) {
        let Value::Object(mut members) = node.to_value() else {
            return self.say(Severity::Warning, Some(node.at.line), "ignored: expected an object");
        };
        if is_hooks {
            members.remove("description");
            let value = members.remove("hooks").unwrap_or(Value::Object(members));
            let node = node.get("hooks").unwrap_or(node).clone();
            return self.plugin.hooks.push(DeclaredHooks { file: file.to_owned(), value, node });
        }
        let inner = match members.remove("mcpServers") {
            Some(Value::Object(inner)) => inner,
            Some(_) => {
                return self.say(Severity::Warning, Some(node.at.line), "`mcpServers` must be an object");
            }
            None => members,
        };
        self.servers(node, inner);
    }

    fn servers(&mut self, node: &Node, servers: Map<String, Value>) {
        for (name, server) in servers {
            if server.is_object() {
                self.named.servers.push((name, server));
            } else {
                self.warn(node, format!("server {name:?} is left out: expected an object"));
            }
        }
    }

    /// Gives everything the plugin's name and its folder.
    fn settle(&mut self) {
        let place = self.plugin.place();
        let named = std::mem::take(&mut self.named);
        let folder = |path: Utf8PathBuf| AgentFolder::of_plugin(place.clone(), path);
        self.plugin.agents = named.agents.into_iter().map(folder).collect();
        let skills = named.skills.into_iter().map(|path| (SkillKind::Skill, folder(path)));
        let commands = named.commands.into_iter().map(|path| (SkillKind::Command, folder(path)));
        self.plugin.skills = skills.chain(commands).collect();
        for hooks in &mut self.plugin.hooks {
            hooks.value = expanded(&place, std::mem::take(&mut hooks.value));
        }
        let servers = named.servers.into_iter();
        let named =
            servers.map(|(name, server)| (format!("plugin:{}:{name}", place.name), expanded(&place, server)));
        self.plugin.servers = named.collect();
    }
}

/// The plugin's folder in the place of the names for it, in every text.
fn expanded(place: &PluginPlace, value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(place.expand(&text)),
        Value::Array(items) => items.into_iter().map(|item| expanded(place, item)).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, expanded(place, value))).collect()
        }
        other => other,
    }
}

/// What a plugin runs or widens: hooks, servers, also those of its agents, and allow rules.
pub(super) fn parts(plugin: &Plugin) -> ProjectParts {
    let mut parts = ProjectParts::default();
    let mut add = |file: &str, kind, key: &str, content: String| {
        let origin = Origin::in_project_file(Utf8Path::new(file), 1);
        parts.add(file, Part::new(kind, key, origin, &Value::Null), content.as_bytes());
    };
    for hooks in &plugin.hooks {
        add(named(plugin, &hooks.file), PartKind::Hook, "hooks", hooks.value.to_string());
    }
    for (name, server) in &plugin.servers {
        add("servers", PartKind::Server, name, server.to_string());
    }
    // A plugin may name a folder and a file in it; each is read once.
    let files = |folder: &AgentFolder| place::walk(&folder.path).files;
    let agents: BTreeSet<Utf8PathBuf> = plugin.agents.iter().flat_map(files).collect();
    for file in &agents {
        let Ok(document) = text_of(file).map(|text| frontmatter::read(&text, definition::KEYS)) else {
            continue;
        };
        let entries = document.map(|document| document.head).unwrap_or_default();
        definition::add_parts(&mut parts, named(plugin, file), file, &entries);
    }
    let files = |(kind, folder): &(_, AgentFolder)| skills::files(*kind, &folder.path);
    let skills: BTreeSet<Utf8PathBuf> = plugin.skills.iter().flat_map(files).collect();
    for file in &skills {
        skills::add_parts(file, named(plugin, file), &mut parts);
    }
    parts
}

/// A file's name inside of a plugin.
fn named<'a>(plugin: &Plugin, file: &'a Utf8Path) -> &'a str {
    file.strip_prefix(&plugin.root).unwrap_or(file).as_str()
}

/// The same in a few digits.
pub(super) fn fingerprint(parts: &ProjectParts) -> String {
    let mut hasher = Sha256::new();
    for (file, fingerprint) in parts.fingerprints() {
        hasher.update(format!("{file}\0{fingerprint}\0"));
    }
    hex(&hasher.finalize())
}
