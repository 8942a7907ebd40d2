//! Which MCP servers there are. Takes what the settings, `.mcp.json`, the command line, plugins and agent
//! definitions declare, gives each server decided (variables expanded, its name for tools chosen) together
//! with whether it may be started, and every problem with its place. A declaration that cannot be used is
//! never dropped silently.

mod declaration;
pub mod edit;
mod written;

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8PathBuf;
use decurion_protocol::mcp::{McpServer, McpSource};
use decurion_protocol::{AgentDefinition, AgentSource};
use serde_json::Value;

use crate::env::Environment;
use crate::jsonc::{self, Member, Node};
use crate::origin::{Layer, Origin};
use crate::read;
use crate::settings::Declared;
use crate::trust::{Trust, TrustState};
use crate::{Loaded, TrustMode};

use declaration::{Around, Read};
pub(crate) use declaration::{HOSTED, hosted};
pub use written::Written;

/// What to take besides the settings.
#[derive(Debug)]
pub struct McpRequest<'a> {
    pub loaded: &'a Loaded,
    /// For variables in declarations.
    pub environment: &'a Environment,
    /// `--mcp-config`: files, or JSON that starts with `{`.
    pub configs: &'a [String],
    /// `--strict-mcp-config`: only those of the command line (and the administrator's).
    pub strict: bool,
    /// What the plugins declare.
    pub plugins: &'a [PluginServers],
    /// Whether the folder is trusted for this run by the command line, which approves its servers too.
    pub trust: TrustMode,
    /// Whether a program leads the session, in which servers of the command line can live.
    pub led: bool,
}

/// The servers that one plugin declares.
#[derive(Clone, Debug)]
pub struct PluginServers {
    pub plugin: String,
    /// Its folder, which `${CLAUDE_PLUGIN_ROOT}` stands for.
    pub root: Utf8PathBuf,
    /// The file that declares them.
    pub file: Utf8PathBuf,
    /// The declaration: with or without the wrapper `mcpServers`.
    pub declared: Value,
}

/// Every server that is declared, by name, and what is wrong with declarations.
#[derive(Clone, Debug, Default)]
pub struct McpServers {
    /// The servers; of two with one name the one from the higher layer.
    pub entries: Vec<McpEntry>,
    /// What is worth saying about declarations.
    pub problems: Vec<McpProblem>,
    policy: Policy,
    around: Around,
}

#[derive(Clone, Debug)]
pub struct McpEntry {
    pub name: String,
    /// Where it came from.
    pub source: McpSource,
    /// File, line and column, or the flag.
    pub place: String,
    /// The server, where its declaration can be used.
    pub server: Option<McpServer>,
    /// A fingerprint of the declaration as written.
    pub hash: String,
    /// The declaration as written.
    pub written: Written,
    /// Whether it may be started.
    pub state: McpState,
    /// Whether all that is wrong with it is a variable that the environment does not have now.
    pub unset: bool,
}

/// Whether a declared server may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpState {
    Ready,
    /// The folder is not trusted.
    Untrusted,
    /// Nobody approved it, or another declaration was approved.
    Unapproved {
        /// Whether an earlier declaration of this name was approved.
        changed: bool,
    },
    /// It is switched off, and by what.
    Disabled(String),
    /// The declaration cannot be used, and why.
    Unusable(String),
}

impl McpState {
    /// One line for people: the state, and what to do about it.
    pub fn describe(&self, name: &str) -> String {
        match self {
            Self::Ready => "ready".to_owned(),
            Self::Untrusted => "blocked until this folder is trusted: run `decurion trust`".to_owned(),
            Self::Unapproved { changed: false } => {
                format!("needs approval: run `decurion mcp approve {name}`")
            }
            Self::Unapproved { changed: true } => {
                format!("changed since it was approved: run `decurion mcp approve {name}`")
            }
            Self::Disabled(by) => format!("disabled: {by}"),
            Self::Unusable(why) => format!("cannot be used: {why}"),
        }
    }
}

/// Something about a declaration that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpProblem {
    /// File, line and column, or the flag.
    pub place: String,
    pub server: String,
    /// What is wrong, and what becomes of it.
    pub text: String,
}

impl std::fmt::Display for McpProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.server.is_empty() {
            return write!(f, "{}: {}", self.place, self.text);
        }
        write!(f, "{}: MCP server {:?}: {}", self.place, self.server, self.text)
    }
}

/// Why the command line's servers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum McpConfigError {
    /// Give a file that exists, or JSON that starts with `{`.
    #[error("--mcp-config: cannot read {file}: {reason}")]
    File {
        file: Utf8PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    #[error("--mcp-config: {place}: {reason}")]
    Json { place: String, reason: String },
}

/// What the JSON of a flag is called.
const INLINE: &str = "the given JSON";

/// One declaration on its way.
struct Found {
    name: String,
    source: McpSource,
    place: String,
    value: Value,
    /// The plugin's folder, for a plugin's.
    root: Option<Utf8PathBuf>,
    /// What it is approved by, where that is not its name: the definition of a project that declares it.
    approved_as: Option<String>,
    /// Whether the user's own answers have written it, so that it does not wait for the folder's trust.
    is_own: bool,
}

/// Reads and decides every declaration but those of agent definitions, for which see [`McpServers::for_agent`].
pub fn servers(request: &McpRequest<'_>) -> Result<McpServers, McpConfigError> {
    let loaded = request.loaded;
    let mut found = Vec::new();
    let mut problems = Vec::new();
    if !request.strict {
        for plugin in request.plugins {
            from_plugin(plugin, &mut found, &mut problems);
        }
    }
    for (name, declared) in &loaded.declared_servers {
        let source = source_of(declared.origin.layer);
        if !request.strict || source == McpSource::Managed {
            found.push(from_settings(name, declared, source));
        }
    }
    for config in request.configs {
        from_flag(config, loaded, &mut found, &mut problems)?;
    }
    let policy = Policy::of(request);
    let around = Around::of(request);
    let entries = decide(found, &policy, &around, &mut problems);
    Ok(McpServers { entries, problems, policy, around })
}

fn source_of(layer: Layer) -> McpSource {
    match layer {
        Layer::Project => McpSource::Project,
        Layer::Local => McpSource::Local,
        Layer::Flag => McpSource::Flag,
        Layer::Managed => McpSource::Managed,
        Layer::Default | Layer::User | Layer::Environment => McpSource::User,
    }
}

fn from_settings(name: &str, declared: &Declared, source: McpSource) -> Found {
    let (name, place, value) = (name.to_owned(), declared.origin.to_string(), declared.value.clone());
    Found { name, source, place, value, root: None, approved_as: None, is_own: declared.is_own }
}

fn from_plugin(plugin: &PluginServers, found: &mut Vec<Found>, problems: &mut Vec<McpProblem>) {
    let servers = plugin.declared.get("mcpServers").unwrap_or(&plugin.declared);
    let place = plugin.file.to_string();
    let Some(servers) = servers.as_object() else {
        let text = "expected an object of name to server; it declares none".to_owned();
        problems.push(McpProblem { place, server: String::new(), text });
        return;
    };
    for (name, value) in servers {
        let name = format!("plugin:{}:{name}", plugin.plugin);
        let (source, root) = (McpSource::Plugin, Some(plugin.root.clone()));
        let (place, value) = (place.clone(), value.clone());
        found.push(Found { name, source, place, value, root, approved_as: None, is_own: false });
    }
}

fn from_flag(
    config: &str,
    loaded: &Loaded,
    found: &mut Vec<Found>,
    problems: &mut Vec<McpProblem>,
) -> Result<(), McpConfigError> {
    let trimmed = config.trim();
    let (text, place) = if trimmed.starts_with('{') {
        (trimmed.to_owned(), INLINE.to_owned())
    } else {
        let file = loaded.paths.expand(trimmed, &loaded.paths.cwd);
        (flag_file(&file)?, file.to_string())
    };
    let parsed = jsonc::parse(&text, 0).map_err(|error| McpConfigError::Json {
        place: format!("{place}:{}", error.at),
        reason: error.message.to_owned(),
    })?;
    let Some(servers) = unwrapped(&parsed.root) else {
        let reason = "expected {\"mcpServers\": {name: server}}".to_owned();
        return Err(McpConfigError::Json { place, reason });
    };
    for Member { key, at, value } in servers.members() {
        let place = if place == INLINE { place.clone() } else { format!("{place}:{at}") };
        if matches!(value.kind, jsonc::Kind::Object(_)) {
            let (name, source) = (key.clone(), McpSource::Flag);
            let (value, root) = (value.to_value(), None);
            found.push(Found { name, source, place, value, root, approved_as: None, is_own: false });
        } else {
            let text = "expected an object; it is ignored".to_owned();
            problems.push(McpProblem { place, server: key.clone(), text });
        }
    }
    Ok(())
}

fn flag_file(file: &camino::Utf8Path) -> Result<String, McpConfigError> {
    let failed = |reason: String| McpConfigError::File { file: file.to_owned(), reason };
    let bytes = read::whole(file, jsonc::MAX_BYTES).map_err(|error| failed(error.to_string()))?;
    let bytes = bytes.ok_or_else(|| failed("there is no such file".to_owned()))?;
    String::from_utf8(bytes).map_err(|_| failed("the file is not UTF-8".to_owned()))
}

/// What a declaration of a server has at least one of.
const SIGNS: [&str; 3] = ["command", "url", "type"];

/// The servers of a document: those under `mcpServers`, or, where that is missing and every member looks
/// like a server, the document itself.
pub(crate) fn unwrapped(root: &Node) -> Option<&Node> {
    if let Some(servers) = root.get("mcpServers") {
        return matches!(servers.kind, jsonc::Kind::Object(_)).then_some(servers);
    }
    let looks_like_server = |member: &Member| SIGNS.iter().any(|key| member.value.get(key).is_some());
    let members = root.members();
    (matches!(root.kind, jsonc::Kind::Object(_)) && members.iter().all(looks_like_server)).then_some(root)
}

/// Decides each. Of several with one name the one from the highest layer counts that may be started, so that
/// a repository that nobody trusts takes no server away; where none may, the highest.
fn decide(
    mut found: Vec<Found>,
    policy: &Policy,
    around: &Around,
    problems: &mut Vec<McpProblem>,
) -> Vec<McpEntry> {
    found.sort_by_key(|found| found.source);
    let mut named: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for found in found {
        named.entry(found.name.clone()).or_default().insert(0, found);
    }
    let mut entries = Vec::with_capacity(named.len());
    for candidates in named.into_values() {
        let is_ready =
            |found: &&Found| entry(found, policy, around, &mut Vec::new()).state == McpState::Ready;
        let chosen = candidates.iter().find(is_ready).or(candidates.first());
        entries.extend(chosen.map(|found| entry(found, policy, around, problems)));
    }
    let ready = entries.iter_mut().filter(|entry| entry.state == McpState::Ready);
    name_for_tools(ready.filter_map(|entry| entry.server.as_mut()).collect(), &mut BTreeSet::new());
    entries
}

/// Gives each its own name in those of tools. Rules hold by that name, so a server takes none away from one
/// that the user has more say in, and a name that is written as it is used goes before one that only becomes it.
fn name_for_tools(mut servers: Vec<&mut McpServer>, taken: &mut BTreeSet<String>) {
    servers.sort_by_key(|server| (say(server.source), server.short != server.name));
    for server in servers {
        server.short = declaration::unique(&server.short, taken);
    }
}

/// How near to the user a declaration is; the lowest is the nearest.
fn say(source: McpSource) -> u8 {
    match source {
        McpSource::Managed => 0,
        McpSource::Flag | McpSource::Sdk => 1,
        McpSource::User => 2,
        McpSource::Plugin => 3,
        McpSource::Local => 4,
        McpSource::Project => 5,
        McpSource::Agent => 6,
    }
}

fn entry(found: &Found, policy: &Policy, around: &Around, problems: &mut Vec<McpProblem>) -> McpEntry {
    let Read { server, hash, notes, failed, unset, off } = declaration::read(found, around);
    let note = |text| McpProblem { place: found.place.clone(), server: found.name.clone(), text };
    problems.extend(notes.into_iter().map(note));
    let state = match (&failed, off) {
        (Some(why), _) => McpState::Unusable(why.clone()),
        (None, true) => McpState::Disabled("its declaration says so".to_owned()),
        (None, false) => policy.state(found, &hash, server.as_ref()),
    };
    if let Some(why) = failed {
        problems.push(note(format!("cannot be used: {why}")));
    }
    McpEntry {
        name: found.name.clone(),
        source: found.source,
        place: found.place.clone(),
        server,
        hash,
        written: Written::new(&found.value),
        state,
        unset,
    }
}

/// What an agent's definition asks for, decided.
#[derive(Clone, Debug, Default)]
pub struct AgentServers {
    /// Servers to connect for it.
    pub servers: Vec<McpServer>,
    /// What it asked for and does not get, and why.
    pub problems: Vec<McpProblem>,
}

impl McpServers {
    /// Those that may be started.
    pub fn ready(&self) -> impl Iterator<Item = &McpServer> {
        self.entries
            .iter()
            .filter(|entry| entry.state == McpState::Ready)
            .filter_map(|entry| entry.server.as_ref())
    }

    /// The entry of this name.
    pub fn get(&self, name: &str) -> Option<&McpEntry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// What a declaration would be that is not written yet, in the file of this scope.
    pub fn checked(&self, name: &str, declared: &Value, scope: edit::Scope) -> McpEntry {
        let source = match scope {
            edit::Scope::User => McpSource::User,
            edit::Scope::Project => McpSource::Project,
            edit::Scope::Local => McpSource::Local,
        };
        let (name, place) = (name.to_owned(), String::new());
        let (value, root) = (declared.clone(), None);
        let found = Found { name, source, place, value, root, approved_as: None, is_own: false };
        entry(&found, &self.policy, &self.around, &mut Vec::new())
    }

    /// What a definition's `mcpServers` means: names of servers that are declared elsewhere, and servers
    /// of its own.
    pub fn for_agent(&self, definition: &AgentDefinition) -> AgentServers {
        let mut wanted = AgentServers::default();
        let Some(declared) = &definition.equipment.mcp_servers else { return wanted };
        let place = place_of(definition);
        for name in names(declared) {
            self.named(name, &place, &mut wanted);
        }
        for found in own(definition, declared) {
            let entry = entry(&found, &self.policy, &self.around, &mut wanted.problems);
            match (entry.state, entry.server) {
                (McpState::Ready, Some(server)) => wanted.servers.push(server),
                (McpState::Unusable(_), _) => {}
                (state, _) => wanted.problems.push(McpProblem {
                    place: found.place.clone(),
                    server: found.name.clone(),
                    text: state.describe(found.approved_as.as_ref().unwrap_or(&found.name)),
                }),
            }
        }
        let own = wanted.servers.iter_mut().filter(|server| server.source == McpSource::Agent);
        name_for_tools(own.collect(), &mut self.taken());
        wanted
    }

    /// What the program that leads the session declares while it runs, decided as if the command line had; and by
    /// name why one is not to be used.
    pub fn for_host(
        &self,
        declared: &serde_json::Map<String, Value>,
    ) -> (Vec<McpServer>, BTreeMap<String, String>) {
        let (mut servers, mut errors) = (Vec::new(), BTreeMap::new());
        for (name, value) in declared {
            let (source, place) = (McpSource::Flag, "mcp_set_servers".to_owned());
            let (name, value) = (name.clone(), value.clone());
            let (approved_as, is_own) = (None, false);
            let found = Found { name, source, place, value, root: None, approved_as, is_own };
            let entry = entry(&found, &self.policy, &self.around, &mut Vec::new());
            match (entry.state, entry.server) {
                (McpState::Ready, Some(server)) => servers.push(server),
                (state, _) => drop(errors.insert(entry.name.clone(), state.describe(&entry.name))),
            }
        }
        (servers, errors)
    }

    /// Adds what the project's definitions declare themselves, under the names that they are approved by, for
    /// whoever lists or approves servers.
    pub fn add_definitions<'a>(&mut self, definitions: impl Iterator<Item = &'a AgentDefinition>) {
        for definition in definitions {
            let Some(declared) = &definition.equipment.mcp_servers else { continue };
            for found in own(definition, declared) {
                let Some(name) = found.approved_as.clone() else { continue };
                let entry = entry(&found, &self.policy, &self.around, &mut self.problems);
                self.entries.push(McpEntry { name, ..entry });
            }
        }
    }

    /// The names that no agent's own server gets: those in use, and those that are the user's even while their
    /// servers are off. A repository that nobody trusts holds none.
    fn taken(&self) -> BTreeSet<String> {
        let counts =
            |entry: &&McpEntry| entry.state == McpState::Ready || say(entry.source) <= say(McpSource::User);
        let names = self.entries.iter().filter(counts).filter_map(|entry| entry.server.as_ref());
        names.map(|server| server.short.clone()).collect()
    }

    fn named(&self, name: &str, place: &str, wanted: &mut AgentServers) {
        let problem = |text: String| McpProblem { place: place.to_owned(), server: name.to_owned(), text };
        match self.get(name) {
            None => {
                let known: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                wanted.problems.push(problem(format!("unknown server; declared: {known}")));
            }
            Some(entry) => match (&entry.state, &entry.server) {
                (McpState::Ready, Some(server)) => wanted.servers.push(server.clone()),
                (state, _) => wanted.problems.push(problem(state.describe(name))),
            },
        }
    }
}

fn place_of(definition: &AgentDefinition) -> String {
    definition.path.as_ref().map_or_else(|| definition.name.clone(), ToString::to_string)
}

/// The servers that a definition names.
fn names(declared: &Value) -> Vec<&str> {
    match declared {
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    }
}

/// The servers that a definition declares itself. Those of a repository's file wait for approval like all that
/// a repository declares.
fn own(definition: &AgentDefinition, declared: &Value) -> Vec<Found> {
    let servers = match declared {
        Value::Array(items) => items.iter().filter_map(Value::as_object).flatten().collect::<Vec<_>>(),
        one => one.as_object().into_iter().flatten().collect(),
    };
    let is_projects = definition.source == AgentSource::Project;
    let found = |(name, value): (&String, &Value)| Found {
        name: name.clone(),
        source: McpSource::Agent,
        place: place_of(definition),
        value: value.clone(),
        root: None,
        approved_as: is_projects.then(|| format!("agent:{}:{name}", definition.name)),
        is_own: false,
    };
    servers.into_iter().map(found).collect()
}

/// Who may be started.
#[derive(Clone, Debug, Default)]
struct Policy {
    trusted: bool,
    granted: bool,
    enable_all: bool,
    enabled: Vec<String>,
    disabled: Vec<String>,
    denied: Vec<Value>,
    /// A list per layer that has one; a server must be in each.
    allowed: Vec<Vec<Value>>,
    approved: BTreeMap<String, String>,
}

impl Policy {
    fn of(request: &McpRequest<'_>) -> Self {
        let loaded = request.loaded;
        let settings = &loaded.settings;
        // The record was read when the settings were; a problem with it was said then.
        let (trust, _) = Trust::open(&loaded.paths);
        Self {
            trusted: loaded.trust == TrustState::Trusted,
            granted: request.trust == TrustMode::Granted,
            enable_all: settings.enable_all_project_mcp_servers,
            enabled: settings.enabled_mcp_servers.clone(),
            disabled: settings.disabled_mcp_servers.clone(),
            denied: settings.denied_mcp_servers.clone(),
            allowed: settings.allowed_mcp_servers.clone(),
            approved: trust.approved_servers(&loaded.paths.root),
        }
    }

    fn state(&self, found: &Found, hash: &str, server: Option<&McpServer>) -> McpState {
        if let Some(server) = server {
            if self.denied.iter().any(|matcher| declaration::matches(matcher, server)) {
                return McpState::Disabled("`deniedMcpServers` names it".to_owned());
            }
            let may = |allowed: &Vec<Value>| allowed.iter().any(|one| declaration::matches(one, server));
            if found.source != McpSource::Managed && !self.allowed.iter().all(may) {
                return McpState::Disabled("`allowedMcpServers` does not name it".to_owned());
            }
        }
        if !matches!(found.source, McpSource::Project | McpSource::Local) && found.approved_as.is_none() {
            return McpState::Ready;
        }
        if self.disabled.contains(&found.name) {
            return McpState::Disabled("`disabledMcpjsonServers` names it".to_owned());
        }
        if !self.trusted && !found.is_own {
            return McpState::Untrusted;
        }
        let approved = self.approved.get(found.approved_as.as_ref().unwrap_or(&found.name));
        if self.granted
            || self.enable_all
            || self.enabled.contains(&found.name)
            || approved.is_some_and(|approved| approved == hash)
        {
            McpState::Ready
        } else {
            McpState::Unapproved { changed: approved.is_some() }
        }
    }
}

/// The servers that a checked document declares, with their places.
pub(crate) fn declared_in(document: &Node, origin: impl Fn(&Node) -> Origin) -> Vec<(String, Declared)> {
    let members = document.get("mcpServers").map_or(&[][..], Node::members);
    members
        .iter()
        .map(|member| {
            let node = member.value.clone();
            let declared = Declared { value: node.to_value(), origin: origin(&node), node, is_own: false };
            (member.key.clone(), declared)
        })
        .collect()
}
