//! Agents as people define them. Takes the places where definitions may be, gives all of them with their
//! origin, which of equal names counts, and everything that is wrong with any file, with its line.
//!
//! No file is dropped without a word: one that cannot be used is an error with its reason, one that was
//! repaired is a warning. Nothing here fails; what to do about a problem is for whoever asks.

mod bounds;
pub(crate) mod builtin;
pub(crate) mod definition;
pub(crate) mod place;
mod render;
pub(crate) mod tools;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::agent::type_behind;
use decurion_protocol::{AgentDefinition, AgentSource};
use serde::Serialize;

pub use place::{AgentFolder, PluginPlace, Stamp};
pub use render::to_markdown;

use crate::frontmatter::{self, Entry, HeadError};
use crate::jsonc::{self, Kind};
use crate::paths::Paths;
use crate::read::{self, ReadError};
use crate::trust::{Agreed, ProjectParts};
use crate::{Layer, Loaded};
use definition::{Draft, WaitingParts};

/// Everything to load definitions from, decided once; kept to load them again when something changed.
#[derive(Clone, Debug)]
pub struct AgentRequest {
    /// `--agents`: a JSON object of name to definition.
    pub flag: Option<String>,
    /// The folders, from the highest to the lowest.
    pub folders: Vec<AgentFolder>,
    /// The folders of plugins, which come after them.
    pub plugins: Vec<AgentFolder>,
    /// Built-in definitions that are switched off.
    pub disabled: Vec<String>,
    /// The names of the tools there are.
    pub tools: Vec<String>,
    /// The names of the skills there are; none where that is not known.
    pub skills: Option<Vec<String>>,
    /// The names of the MCP servers that are declared; none where that is not known.
    pub servers: Option<Vec<String>>,
    /// What the user agreed to of the project's files; none where it is not trusted.
    trusted: Option<Agreed>,
}

impl AgentRequest {
    /// The places of these settings, without `--agents` and plugins.
    pub fn new(loaded: &Loaded, tools: &[&str]) -> Self {
        Self {
            flag: None,
            folders: place::folders(&loaded.paths, &loaded.managed_path, &loaded.layers, "agents"),
            plugins: Vec::new(),
            disabled: loaded.settings.agents.disabled.clone(),
            tools: tools.iter().map(|name| (*name).to_owned()).collect(),
            skills: None,
            servers: None,
            trusted: Agreed::of(loaded),
        }
    }

    fn all_folders(&self) -> impl Iterator<Item = &AgentFolder> {
        self.folders.iter().chain(&self.plugins)
    }

    /// What the folders look like now.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.all_folders().flat_map(|folder| place::walk(&folder.path).take_marks()).collect())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Agents {
    /// All of them, from the highest place to the lowest.
    pub all: Vec<LoadedAgent>,
    /// What is wrong, in the same order.
    pub problems: Vec<AgentProblem>,
    stamp: Stamp,
}

/// A definition and where it came from.
#[derive(Clone, Debug)]
pub struct LoadedAgent {
    pub definition: Arc<AgentDefinition>,
    /// Where it was written.
    pub origin: AgentOrigin,
    /// Where the one is that counts instead, if another of the same name comes first.
    pub shadowed_by: Option<String>,
    /// Whether `dontAsk`, if that is its mode, denies what no rule decides: so mean files under `.claude`.
    pub dont_ask_denies: bool,
}

/// Where a definition was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentOrigin {
    Flag,
    File(Utf8PathBuf),
    Builtin,
}

impl fmt::Display for AgentOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--agents"),
            Self::File(path) => f.write_str(path.as_str()),
            Self::Builtin => f.write_str("built-in"),
        }
    }
}

impl Serialize for AgentOrigin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The definition is not loaded.
    Error,
    /// It is loaded, and not all of it is as written.
    Warning,
    /// It is loaded as written; something of it does nothing yet.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// Something that is wrong with a definition or a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentProblem {
    /// How bad it is.
    pub severity: Severity,
    pub origin: AgentOrigin,
    /// The line, where it is about one.
    pub line: Option<u32>,
    /// The definition's name, where it has one.
    pub agent: Option<String>,
    pub text: String,
}

impl fmt::Display for AgentProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.origin)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        // A file is known by its path; in one JSON text only the name tells definitions apart.
        if let (AgentOrigin::Flag, Some(agent)) = (&self.origin, &self.agent) {
            write!(f, " agent {agent:?}:")?;
        }
        write!(f, " {}: {}", self.severity, self.text)
    }
}

impl Agents {
    pub fn load(request: &AgentRequest) -> Self {
        let mut found = Self::default();
        let mut loader = Loader { request, agents: &mut found };
        if let Some(json) = &request.flag {
            loader.flag(json);
        }
        for folder in request.all_folders() {
            loader.folder(folder);
        }
        loader.builtins();
        found.shadow();
        found
    }

    /// Reads files and folders that someone named, as if each stood where it stands, without judging names
    /// against each other. What is not there is a problem too.
    pub fn check(request: &AgentRequest, paths: &[Utf8PathBuf]) -> Self {
        let mut found = Self::default();
        let mut loader = Loader { request, agents: &mut found };
        for path in paths {
            loader.named(path);
        }
        found
    }

    /// Whether anything in the folders has changed since these were read. Looks at names and dates only.
    pub fn is_stale(&self, request: &AgentRequest) -> bool {
        request.stamp() != self.stamp
    }

    /// The definition that counts under a name, without regard to case.
    pub fn get(&self, name: &str) -> Option<&LoadedAgent> {
        let find = |name: &str| self.active().find(|agent| agent.definition.name.eq_ignore_ascii_case(name));
        find(name).or_else(|| find(type_behind(name)))
    }

    /// Those that count, from the highest place to the lowest.
    pub fn active(&self) -> impl Iterator<Item = &LoadedAgent> {
        self.all.iter().filter(|agent| agent.shadowed_by.is_none())
    }

    /// Why a definition of this name could not be loaded, where one was found.
    pub fn unusable(&self, name: &str) -> Option<&AgentProblem> {
        self.problems.iter().find(|problem| {
            problem.severity == Severity::Error
                && problem.agent.as_ref().is_some_and(|agent| agent.eq_ignore_ascii_case(name))
        })
    }

    /// Whether any definition could not be loaded.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Of equal names the first counts. Two in one folder are said to be, since that is hardly meant.
    fn shadow(&mut self) {
        let mut first: HashMap<String, (AgentOrigin, AgentSource)> = HashMap::new();
        for agent in &mut self.all {
            let name = agent.definition.name.to_lowercase();
            let own = (agent.origin.clone(), agent.definition.source);
            let Some((winner, source)) = first.get(&name) else {
                first.insert(name, own);
                continue;
            };
            agent.shadowed_by = Some(winner.to_string());
            if *source == agent.definition.source && is_in_same_folder(winner, &agent.origin) {
                self.problems.push(AgentProblem {
                    severity: Severity::Warning,
                    origin: agent.origin.clone(),
                    line: None,
                    agent: Some(agent.definition.name.clone()),
                    text: format!("not used, because another file here has this name: {winner}"),
                });
            }
        }
        for problem in &mut self.problems {
            let name = problem.agent.as_ref().filter(|_| problem.severity == Severity::Error);
            if let Some((used, _)) = name.and_then(|name| first.get(&name.to_lowercase())) {
                problem.text = format!("{}; used instead: {used}", problem.text);
            }
        }
    }
}

/// Whether two files are below the same folder of definitions.
fn is_in_same_folder(one: &AgentOrigin, other: &AgentOrigin) -> bool {
    let folder = |origin: &AgentOrigin| match origin {
        AgentOrigin::File(path) => {
            path.ancestors().find(|folder| folder.file_name() == Some("agents")).map(Utf8Path::to_owned)
        }
        _ => None,
    };
    folder(one).is_some() && folder(one) == folder(other)
}

/// Longer than any file a person wrote.
const MAX_BYTES: usize = 1 << 20;

struct Loader<'a> {
    request: &'a AgentRequest,
    agents: &'a mut Agents,
}

impl Loader<'_> {
    fn problem(&mut self, severity: Severity, origin: &AgentOrigin, line: Option<u32>, text: String) {
        let origin = origin.clone();
        self.agents.problems.push(AgentProblem { severity, origin, line, agent: None, text });
    }

    fn folder(&mut self, folder: &AgentFolder) {
        // The stamp is as old as the reading or older: a change in between is noticed later, never missed.
        let mut walk = place::walk(&folder.path);
        self.agents.stamp.0.extend(walk.take_marks());
        self.agents.problems.append(&mut walk.problems);
        for file in &walk.files {
            self.file(folder, file);
        }
    }

    fn named(&mut self, path: &Utf8Path) {
        let absolute = path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
        let folder = self.request.all_folders().find(|folder| absolute.starts_with(&folder.path));
        let folder = folder.cloned().unwrap_or_else(|| AgentFolder {
            shared: absolute.components().any(|part| part.as_str() == ".claude"),
            ..AgentFolder::shared(path, AgentSource::User)
        });
        if absolute.is_dir() {
            self.folder(&AgentFolder { path: absolute, ..folder });
        } else {
            self.file(&folder, path);
        }
    }

    fn file(&mut self, folder: &AgentFolder, file: &Utf8Path) {
        let origin = AgentOrigin::File(file.to_owned());
        if let Some(reason) = folder.refuses(file) {
            return self.problem(Severity::Error, &origin, None, reason.to_owned());
        }
        let text = match text_of(file) {
            Ok(text) => text,
            Err((line, reason)) => return self.problem(Severity::Error, &origin, line, reason),
        };
        let document = match frontmatter::read(&text, definition::KEYS) {
            Ok(document) => document,
            // A page about the definitions beside them, most likely.
            Err(error @ HeadError::NoHead) => {
                return self.problem(
                    Severity::Warning,
                    &origin,
                    Some(1),
                    format!("not an agent, because {error}"),
                );
            }
            Err(error) => return self.problem(Severity::Error, &origin, Some(1), error.to_string()),
        };
        if let Some(repair) = document.repair {
            self.problem(Severity::Warning, &origin, Some(repair.line), repair.text);
        }
        let draft = Draft {
            origin: &origin,
            source: folder.source,
            plugin: folder.plugin.as_ref().map(|plugin| plugin.name.as_str()),
            stem: file.file_stem().unwrap_or_default(),
            name: None,
            trust: self.request.trust_of(folder, file, &document.head),
            entries: &document.head,
            prompt: Some(match &folder.plugin {
                Some(plugin) => plugin.expand(&document.body),
                None => document.body,
            }),
        };
        self.definition(draft, folder.shared, Some(file));
    }

    fn definition(&mut self, draft: Draft<'_>, shared: bool, file: Option<&Utf8Path>) {
        let origin = draft.origin.clone();
        let definition = draft.decide(self.request, &mut self.agents.problems);
        if let Some(mut definition) = definition {
            definition.path = file.map(Utf8Path::to_owned);
            self.agents.all.push(LoadedAgent {
                definition: Arc::new(definition),
                origin,
                shadowed_by: None,
                dont_ask_denies: shared,
            });
        }
    }

    /// `--agents`: an object of name to definition, each as a head would say it, with its `prompt`.
    fn flag(&mut self, json: &str) {
        let origin = AgentOrigin::Flag;
        let document = match jsonc::parse(json, 0) {
            Ok(document) => document,
            Err(error) => return self.problem(Severity::Error, &origin, None, format!("not JSON: {error}")),
        };
        let Kind::Object(members) = document.root.kind else {
            let text = "expected an object of name to definition".to_owned();
            return self.problem(Severity::Error, &origin, None, text);
        };
        for (key, at) in document.repeated {
            let text = format!("given twice, the last one counts: {key}");
            self.problem(Severity::Warning, &origin, Some(at.line), text);
        }
        for member in members {
            let Kind::Object(fields) = &member.value.kind else {
                let text = format!("expected an object as the definition of {:?}", member.key);
                self.problem(Severity::Error, &origin, Some(member.at.line), text);
                continue;
            };
            let is_prompt = |field: &&jsonc::Member| field.key == "prompt";
            let prompt = fields.iter().find(is_prompt).and_then(|field| field.value.text());
            let entries: Vec<Entry> =
                fields.iter().filter(|field| !is_prompt(field)).map(json_entry).collect();
            let draft = Draft {
                origin: &origin,
                source: AgentSource::User,
                plugin: None,
                stem: "",
                name: Some((&member.key, member.at.line)),
                trust: WaitingParts::InForce,
                entries: &entries,
                prompt: prompt.map(str::to_owned),
            };
            self.definition(draft, false, None);
        }
    }

    fn builtins(&mut self) {
        for name in &self.request.disabled {
            let is = |known: &str| known.eq_ignore_ascii_case(type_behind(name));
            if !is("fork") && !builtin::ALL.iter().any(|(known, _)| is(known)) {
                let text = format!("`agents.disabled` in the settings names no built-in agent: {name}");
                self.problem(Severity::Warning, &AgentOrigin::Builtin, None, text);
            }
        }
        for (name, text) in builtin::ALL {
            let is_off = |off: &String| type_behind(off).eq_ignore_ascii_case(name);
            if self.request.disabled.iter().any(is_off) {
                continue;
            }
            let Ok(document) = frontmatter::read(text, definition::KEYS) else { continue };
            let draft = Draft {
                origin: &AgentOrigin::Builtin,
                source: AgentSource::Builtin,
                plugin: None,
                stem: name,
                name: None,
                trust: WaitingParts::InForce,
                entries: &document.head,
                prompt: Some(document.body),
            };
            self.definition(draft, false, None);
        }
    }
}

impl AgentRequest {
    /// Whether what a file widens is in force.
    fn trust_of(&self, folder: &AgentFolder, file: &Utf8Path, entries: &[Entry]) -> WaitingParts {
        WaitingParts::of(self.trusted.as_ref(), folder, file, |parts, name| {
            definition::add_parts(parts, name, file, entries);
        })
    }
}

/// Adds what the project's definitions widen to the parts that the user is asked to trust.
pub(crate) fn add_project_parts(paths: &Paths, layers: &[Layer], parts: &mut ProjectParts) {
    let folders = place::folders(paths, Utf8Path::new(""), layers, "agents");
    for folder in folders.iter().filter(|folder| folder.source == AgentSource::Project) {
        // Only what is inside the folder that is trusted.
        let files = place::walk(&folder.path).files;
        for file in files.into_iter().filter(|file| folder.refuses(file).is_none()) {
            let Ok(name) = file.strip_prefix(&paths.root) else { continue };
            let Ok(text) = text_of(&file) else { continue };
            let Ok(document) = frontmatter::read(&text, definition::KEYS) else { continue };
            definition::add_parts(parts, name.as_str(), &file, &document.head);
        }
    }
}

/// The text of a definition file; the error is the line, where it is about one, and the reason.
pub(crate) fn text_of(file: &Utf8Path) -> Result<String, (Option<u32>, String)> {
    let bytes = match read::whole(file, MAX_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err((None, "there is no such file".to_owned())),
        Err(error @ (ReadError::NotAFile | ReadError::TooLarge(_))) => return Err((None, error.to_string())),
        Err(ReadError::Io(error)) => return Err((None, format!("cannot be read: {error}"))),
    };
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = memchr::memchr_iter(b'\n', good).count() + 1;
        (u32::try_from(line).ok(), "the file is not UTF-8".to_owned())
    })
}

fn json_entry(field: &jsonc::Member) -> Entry {
    let value = field.value.to_value();
    let raw = match &value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Entry { key: field.key.clone(), line: field.at.line, value, raw }
}
