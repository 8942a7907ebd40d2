//! Plugins: folders of agents, skills, commands, hooks and servers that a user added. Takes the folders of
//! `--plugin-dir` and the record of those added before, gives each with what it brings and whether it is on.
//!
//! A plugin runs programs, so it is on only by the user's own act, and only if what it runs or widens is what it
//! was then: its hooks, servers and allow rules, as declared, are bound to a fingerprint that is compared at the
//! start. Its agents and skills are read again while a session runs; what they have come to run or widen since
//! the start is left out, and said. What is inside of the programs it names is not looked at.

mod manifest;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::SkillKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agents::{AgentFolder, AgentProblem, Agents, PluginPlace, Severity};
use crate::error::Warning;
use crate::hooks::{self, FoundHooks};
use crate::jsonc::Node;
use crate::mcp::PluginServers;
use crate::origin::Origin;
use crate::paths::Paths;
use crate::skills::Skills;
use crate::trust::{Agreed, ProjectParts};
use crate::{AgentRequest, Loaded, SkillRequest, record};

/// A plugin as its folder is.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Its name, which stands before the names of all it brings.
    pub name: String,
    /// Its version, as it says.
    pub version: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    pub root: Utf8PathBuf,
    /// Who says that it is to be used.
    pub from: PluginFrom,
    /// Whether it is on.
    pub state: PluginState,
    /// Whether it wants to be on once it was added.
    pub default_enabled: bool,
    pub agents: Vec<AgentFolder>,
    /// Its skills and commands.
    pub skills: Vec<(SkillKind, AgentFolder)>,
    /// What is wrong with it.
    pub problems: Vec<AgentProblem>,
    hooks: Vec<DeclaredHooks>,
    servers: BTreeMap<String, Value>,
}

/// Hooks of a plugin, as declared.
#[derive(Clone)]
struct DeclaredHooks {
    file: Utf8PathBuf,
    value: Value,
    /// The same as written, in which every part knows its place.
    node: Node,
}

impl std::fmt::Debug for DeclaredHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "declared at {}", self.file)
    }
}

/// Who says that a plugin is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginFrom {
    /// `--plugin-dir`, for this run.
    Flag,
    Added,
}

/// Whether a plugin is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginState {
    /// All it brings is in effect.
    On,
    /// The user or the settings switched it off.
    Off,
    /// What it runs is not what the user agreed to: off until `decurion plugin enable`.
    Changed,
    /// Its folder cannot be used.
    Broken,
}

impl PluginState {
    /// The word in listings.
    pub fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Changed => "changed",
            Self::Broken => "broken",
        }
    }
}

impl Plugin {
    /// Reads a plugin's folder. Never fails: what is wrong is among its problems, and a plugin with an error is
    /// broken.
    pub fn read(root: &Utf8Path) -> Self {
        manifest::read(root)
    }

    /// What it runs or allows: hooks, servers and rules, also those of its agents and skills.
    pub fn parts(&self) -> ProjectParts {
        manifest::parts(self)
    }

    /// The same in a few digits: another one where any of it is another.
    pub fn fingerprint(&self) -> String {
        manifest::fingerprint(&self.parts())
    }

    /// The same, and everything in it: what `validate` shows.
    pub fn check(root: &Utf8Path, loaded: &Loaded, tools: &[&str]) -> Self {
        let mut plugin = Self::read(root);
        let mut agents = AgentRequest::new(loaded, tools);
        (agents.folders, agents.plugins) = (Vec::new(), plugin.agents.clone());
        agents.disabled = Vec::new();
        let is_own = |problem: &AgentProblem| problem.origin != crate::AgentOrigin::Builtin;
        plugin.problems.extend(Agents::load(&agents).problems.into_iter().filter(is_own));
        let mut skills = SkillRequest::new(loaded, tools);
        (skills.folders, skills.plugins) = (Vec::new(), plugin.skills.clone());
        plugin.problems.extend(Skills::load(&skills).problems);
        let hooks = plugin.hooks();
        let place = |warning: &Warning| {
            let origin = warning.origin.as_ref();
            (
                origin.and_then(Origin::file).map(Utf8Path::to_owned),
                origin.and_then(Origin::position).map(|at| at.line),
            )
        };
        plugin.problems.extend(hooks.warnings.into_iter().map(|warning| {
            let (file, line) = place(&warning);
            let origin = crate::AgentOrigin::File(file.unwrap_or_else(|| plugin.root.clone()));
            AgentProblem { severity: Severity::Warning, origin, line, agent: None, text: warning.text }
        }));
        plugin
    }

    /// Holds its agents and skills to what they run or widen now.
    fn bind(&mut self, parts: &ProjectParts) {
        let agreed = Arc::new(Agreed::to(&self.root, parts));
        let skills = self.skills.iter_mut().map(|(_, folder)| folder);
        for folder in self.agents.iter_mut().chain(skills) {
            folder.agreed = Some(Arc::clone(&agreed));
        }
    }

    /// Whether its folder can be used.
    pub fn is_usable(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity != Severity::Error)
    }

    /// What stands for it in the names and texts of what it brings.
    pub fn place(&self) -> PluginPlace {
        PluginPlace { name: self.name.clone(), root: self.root.clone() }
    }

    /// Where it came from, as the ecosystem writes it.
    pub fn source(&self) -> String {
        match self.from {
            PluginFrom::Flag => format!("{}@inline", self.name),
            PluginFrom::Added => format!("{}@local", self.name),
        }
    }

    /// Its hooks, and what is worth saying about them.
    pub fn hooks(&self) -> FoundHooks {
        let mut found = FoundHooks::default();
        for declared in &self.hooks {
            let mut more = hooks::of_plugin(&declared.value, &declared.node, &declared.file, &self.root);
            found.declarations.append(&mut more.declarations);
            found.warnings.append(&mut more.warnings);
        }
        found
    }

    /// Its MCP servers as declared, called `plugin:<plugin>:<server>`.
    pub fn servers(&self) -> &BTreeMap<String, Value> {
        &self.servers
    }

    /// The same under their own names.
    pub fn declared_servers(&self) -> PluginServers {
        let own = |name: &String| name.splitn(3, ':').last().unwrap_or_default().to_owned();
        let declared = self.servers.iter().map(|(name, server)| (own(name), server.clone())).collect();
        let (plugin, root, file) = (self.name.clone(), self.root.clone(), self.root.clone());
        PluginServers { plugin, root, file, declared }
    }
}

/// The plugins of a start.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    /// All of them: those of the command line, then those that were added, by name.
    pub all: Vec<Plugin>,
    /// What is worth saying.
    pub warnings: Vec<String>,
}

impl Plugins {
    /// The plugins of these settings and of `--plugin-dir`.
    pub fn load(loaded: &Loaded, directories: &[Utf8PathBuf]) -> Self {
        let mut plugins = Self::default();
        for directory in directories {
            let mut plugin = Plugin::read(&loaded.paths.expand(directory.as_str(), &loaded.paths.cwd));
            plugin.from = PluginFrom::Flag;
            plugin.bind(&manifest::parts(&plugin));
            plugins.add(plugin);
        }
        let (registry, warning) = PluginRegistry::open(&loaded.paths);
        plugins.warnings.extend(warning);
        for (name, entry) in &registry.record.plugins {
            let wanted = switched(loaded, name).unwrap_or(entry.enabled);
            if plugins.all.iter().any(|plugin| plugin.name == *name) {
                continue;
            }
            let mut plugin = Plugin::read(&entry.path);
            let parts = manifest::parts(&plugin);
            plugin.bind(&parts);
            plugin.state = match plugin.state {
                PluginState::Broken => PluginState::Broken,
                _ if plugin.name != *name => PluginState::Changed,
                _ if !wanted => PluginState::Off,
                _ if manifest::fingerprint(&parts) != entry.fingerprint => PluginState::Changed,
                _ => PluginState::On,
            };
            plugin.name.clone_from(name);
            plugins.add(plugin);
        }
        plugins
    }

    fn add(&mut self, plugin: Plugin) {
        let name = &plugin.name;
        match plugin.state {
            PluginState::Broken => {
                let errors = plugin.problems.iter().filter(|problem| problem.severity == Severity::Error);
                self.warnings.extend(errors.map(|problem| format!("plugin {name} is not used: {problem}")));
            }
            PluginState::Changed => self.warnings.push(format!(
                "plugin {name} is off, because what it runs is not what it was when it was enabled; look at it, \
                 then `decurion plugin enable {name}`: {}",
                plugin.root
            )),
            PluginState::On | PluginState::Off => {}
        }
        if let Some(other) = self.all.iter().find(|other| other.name == plugin.name) {
            let text = format!("plugin {name} is there twice; used: {}, not: {}", other.root, plugin.root);
            return self.warnings.push(text);
        }
        self.all.push(plugin);
    }

    /// Those that are on.
    pub fn active(&self) -> impl Iterator<Item = &Plugin> {
        self.all.iter().filter(|plugin| plugin.state == PluginState::On)
    }

    /// The folders of their agents.
    pub fn agents(&self) -> Vec<AgentFolder> {
        self.active().flat_map(|plugin| plugin.agents.iter().cloned()).collect()
    }

    /// The folders of their skills and commands.
    pub fn skills(&self) -> Vec<(SkillKind, AgentFolder)> {
        self.active().flat_map(|plugin| plugin.skills.iter().cloned()).collect()
    }

    /// Their hooks; none where hooks are switched off or only the administrator's run.
    pub fn hooks(&self, loaded: &Loaded) -> FoundHooks {
        let mut found = FoundHooks::default();
        if loaded.settings.disable_all_hooks || loaded.managed_hooks_only() {
            return found;
        }
        for plugin in self.active() {
            let mut more = plugin.hooks();
            found.declarations.append(&mut more.declarations);
            found.warnings.append(&mut more.warnings);
        }
        found
    }

    /// Leaves the servers alone that the plugins in these folders declare.
    pub fn leave_servers_of(&mut self, loaded: &Loaded, folders: &[Utf8PathBuf]) {
        for folder in folders {
            let root = loaded.paths.expand(folder.as_str(), &loaded.paths.cwd);
            let theirs = self.all.iter_mut().filter(|plugin| plugin.root == root);
            theirs.for_each(|plugin| plugin.servers.clear());
        }
    }

    /// Their servers, as the list of MCP servers takes them.
    pub fn servers(&self) -> Vec<PluginServers> {
        let has_any = |plugin: &&Plugin| !plugin.servers.is_empty();
        self.active().filter(has_any).map(Plugin::declared_servers).collect()
    }
}

/// What `enabledPlugins` of the settings says about a plugin: by its name, or `name@somewhere`.
fn switched(loaded: &Loaded, name: &str) -> Option<bool> {
    let declared = loaded.settings.enabled_plugins.as_ref()?.value.as_object()?;
    let is_it = |key: &&String| key.split('@').next() == Some(name);
    declared.keys().find(is_it).and_then(|key| declared[key].as_bool())
}

/// Why the record of plugins could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Set `HOME` or `DECURION_HOME`.
    #[error("there is no state folder to remember plugins in")]
    NoState,
    #[error("not a usable plugin: {0}")]
    Unusable(String),
    /// Add it first, or look at the list.
    #[error("no plugin of this name was added: {0}")]
    Unknown(String),
    /// Remove the other first.
    #[error("another plugin of this name was added from {0}")]
    Taken(Utf8PathBuf),
    /// Look at what the system says about the file.
    #[error("cannot record plugins in {file}: {source}")]
    Write {
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The plugins that the user added.
#[derive(Debug, Default)]
pub struct PluginRegistry {
    file: Option<Utf8PathBuf>,
    record: Record,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    plugins: BTreeMap<String, Added>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Added {
    path: Utf8PathBuf,
    enabled: bool,
    /// What it ran when the user enabled it.
    fingerprint: String,
}

const VERSION: u32 = 1;

impl PluginRegistry {
    /// Reads the record. One that cannot be read, or that others could have written, counts as empty, and the
    /// warning says why.
    pub fn open(paths: &Paths) -> (Self, Option<String>) {
        let Some(file) = paths.state.as_ref().map(|state| state.join("plugins.json")) else {
            return (Self::default(), None);
        };
        let (record, warning) = match read_record(&file) {
            Ok(record) => (record, None),
            Err(problem) => {
                (Record::default(), Some(format!("no plugin is used, because {problem}: {file}")))
            }
        };
        (Self { file: Some(file), record }, warning)
    }

    /// Adds a plugin and switches it on as it is now, unless it wants to be off at first.
    pub fn add(&mut self, plugin: &Plugin) -> Result<bool, PluginError> {
        self.check(plugin)?;
        let added = Added {
            path: plugin.root.clone(),
            enabled: plugin.default_enabled,
            fingerprint: plugin.fingerprint(),
        };
        self.change(|record| drop(record.plugins.insert(plugin.name.clone(), added)))?;
        Ok(plugin.default_enabled)
    }

    /// Whether a plugin can be added.
    pub fn check(&self, plugin: &Plugin) -> Result<(), PluginError> {
        refuse_broken(plugin)?;
        let other = self.record.plugins.get(&plugin.name).map(|entry| entry.path.clone());
        match other.filter(|other| *other != plugin.root) {
            Some(other) => Err(PluginError::Taken(other)),
            None => Ok(()),
        }
    }

    /// A plugin that was added, as it is now.
    pub fn find(&self, name: &str) -> Result<Plugin, PluginError> {
        let entry = self.record.plugins.get(name).ok_or_else(|| PluginError::Unknown(name.to_owned()))?;
        let plugin = Plugin::read(&entry.path);
        refuse_broken(&plugin)?;
        Ok(plugin)
    }

    /// Switches a plugin on as it was read.
    pub fn enable(&mut self, name: &str, plugin: &Plugin) -> Result<(), PluginError> {
        let fingerprint = plugin.fingerprint();
        self.change(|record| {
            if let Some(entry) = record.plugins.get_mut(name) {
                (entry.enabled, entry.fingerprint) = (true, fingerprint);
            }
        })
    }

    /// Switches a plugin off.
    pub fn disable(&mut self, name: &str) -> Result<(), PluginError> {
        if !self.record.plugins.contains_key(name) {
            return Err(PluginError::Unknown(name.to_owned()));
        }
        self.change(|record| {
            record.plugins.get_mut(name).into_iter().for_each(|entry| entry.enabled = false);
        })
    }

    /// Forgets a plugin; its folder stays.
    pub fn remove(&mut self, name: &str) -> Result<(), PluginError> {
        let mut found = false;
        self.change(|record| found = record.plugins.remove(name).is_some())?;
        if found { Ok(()) } else { Err(PluginError::Unknown(name.to_owned())) }
    }

    fn change(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), PluginError> {
        let file = self.file.clone().ok_or(PluginError::NoState)?;
        let changed = record::change(&file, || {
            let mut record = read_record(&file).unwrap_or_default();
            change(&mut record);
            record.version = VERSION;
            record
        });
        self.record = changed.map_err(|source| PluginError::Write { file, source })?;
        Ok(())
    }
}

fn read_record(file: &Utf8Path) -> Result<Record, String> {
    record::read(file, |record: &Record| record.version == VERSION)
}

fn refuse_broken(plugin: &Plugin) -> Result<(), PluginError> {
    match plugin.problems.iter().find(|problem| problem.severity == Severity::Error) {
        Some(problem) => Err(PluginError::Unusable(problem.to_string())),
        None => Ok(()),
    }
}
