//! Which folders the user trusts. Takes the parts of a repository's files that run something or widen
//! something, gives whether the user has agreed to exactly these; and records that agreement. What only
//! narrows is not asked about, and what is never taken from a repository cannot be agreed to.
//!
//! A file of the project that the user's own answers have written ("always", `mcp add`) needs no agreement to the
//! folder: the record holds a fingerprint of it, so it counts as long as nothing else has changed it.

mod said;

use std::collections::BTreeMap;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Warning, WarningKind};
use crate::jsonc::{Kind, Member, Node};
use crate::origin::{Origin, Sources};
use crate::paths::Paths;
use crate::record;
use crate::schema::{self, KEYS, Key, Shape};

/// How to find out whether the folder is trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrustMode {
    /// By what the user agreed to before.
    #[default]
    Recorded,
    /// It is, for this run: the user said so on the command line.
    Granted,
    /// It is not, whatever was agreed to.
    Refused,
}

/// Whether the parts of the project that wait for trust are in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustState {
    Trusted,
    Untrusted {
        /// Which; empty if the project's files hold none.
        parts: Vec<Part>,
        /// Whether the folder was trusted before these parts changed.
        changed: bool,
    },
}

impl TrustState {
    /// Whether the folder is trusted.
    pub fn is_trusted(&self) -> bool {
        matches!(self, Self::Trusted)
    }
}

/// One thing in a repository's files that waits for trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What kind of thing.
    pub kind: PartKind,
    /// Its key, with the name or place inside: `permissions.allow[0]`, `hooks.PreToolUse`.
    pub key: String,
    pub origin: Origin,
    /// What it says: names and what is written there, without secrets.
    pub said: Vec<(String, String)>,
}

impl Part {
    /// The part of this kind and key, with what is written there.
    pub(crate) fn new(kind: PartKind, key: &str, origin: Origin, value: &Value) -> Self {
        Self { kind, key: key.to_owned(), origin, said: said::lines(kind, key, value) }
    }
}

/// What trusting a part means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// It runs commands at certain moments.
    Hook,
    /// It runs a command for the line at the bottom of the terminal.
    StatusLine,
    /// It starts a server.
    Server,
    /// It lets calls go ahead without a question.
    AllowRule,
    /// It changes who is asked.
    Mode,
    /// It opens a folder outside of the project.
    Directory,
    /// It sets or passes on a variable in every command.
    Variable,
    /// It changes which model works, and so who sees the code and what it costs.
    Model,
    /// It changes another setting.
    Setting,
}

impl PartKind {
    /// The plural that a one-line summary uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hook => "hooks",
            Self::StatusLine => "status line",
            Self::Server => "servers",
            Self::AllowRule => "allow rules",
            Self::Mode => "permission mode",
            Self::Directory => "directories",
            Self::Variable => "variables",
            Self::Model => "model",
            Self::Setting => "settings",
        }
    }
}

/// All parts of a project that wait for trust, and a fingerprint of each file's.
#[derive(Clone, Default)]
pub struct ProjectParts {
    parts: Vec<Part>,
    counts: BTreeMap<PartKind, usize>,
    files: BTreeMap<String, Sha256>,
}

/// A file made to be long is counted and fingerprinted whole, but nobody reads more than this.
const MAX_LISTED: usize = 1000;

impl std::fmt::Debug for ProjectParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

impl ProjectParts {
    /// Adds a part that stands in `file` (relative to the folder) with all bytes that decide what it does.
    pub fn add(&mut self, file: &str, part: Part, content: &[u8]) {
        let hasher = self.files.entry(file.to_owned()).or_default();
        for field in [part.key.as_bytes(), content] {
            hasher.update((field.len() as u64).to_le_bytes());
            hasher.update(field);
        }
        *self.counts.entry(part.kind).or_default() += 1;
        if self.parts.len() < MAX_LISTED {
            self.parts.push(part);
        }
    }

    /// The parts, in the order of the files; the first thousand if there are more.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many of each kind there are, for a summary in one line.
    pub fn counts(&self) -> &BTreeMap<PartKind, usize> {
        &self.counts
    }

    /// The parts of one document.
    pub(crate) fn of(file: &str, waiting: &Node, sources: &Sources) -> Self {
        let mut parts = Self::default();
        parts.add_document(file, waiting, sources);
        parts
    }

    /// The same with those of other files.
    pub(crate) fn extend(&mut self, other: Self) {
        let room = MAX_LISTED.saturating_sub(self.parts.len());
        self.parts.extend(other.parts.into_iter().take(room));
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
        self.files.extend(other.files);
    }

    /// The fingerprint of each file's parts, by which a change of them is noticed.
    pub(crate) fn fingerprints(&self) -> BTreeMap<String, String> {
        self.files.iter().map(|(file, hasher)| (file.clone(), hex(&hasher.clone().finalize()))).collect()
    }

    /// Adds every part of a document that waits for trust.
    fn add_document(&mut self, file: &str, waiting: &Node, sources: &Sources) {
        let mut found = Vec::new();
        collect(waiting, KEYS, "", &mut found);
        for (kind, key, node) in found {
            let mut content = Vec::new();
            encode(node, &mut content);
            // What nobody reads is not made readable.
            let value = if self.parts.len() < MAX_LISTED { node.to_value() } else { Value::Null };
            self.add(file, Part::new(kind, &key, sources.origin(node), &value), &content);
        }
    }
}

/// What the user agreed to of a project's or a plugin's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The project's folder, or the plugin's.
    pub root: Utf8PathBuf,
    files: BTreeMap<String, String>,
}

impl Agreed {
    /// Of these settings; none where the folder is not trusted.
    pub(crate) fn of(loaded: &crate::Loaded) -> Option<Self> {
        let files = || loaded.project_parts.fingerprints();
        loaded.trust.is_trusted().then(|| Self { root: loaded.paths.root.clone(), files: files() })
    }

    /// All of these parts, named from inside of a folder.
    pub(crate) fn to(root: &Utf8Path, parts: &ProjectParts) -> Self {
        Self { root: root.to_owned(), files: parts.fingerprints() }
    }

    /// Whether all of these parts were there.
    pub(crate) fn covers(&self, parts: &ProjectParts) -> bool {
        parts.fingerprints().iter().all(|(name, fingerprint)| self.files.get(name) == Some(fingerprint))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits =
        bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}

/// Takes a document apart into the things a person would count.
fn collect<'a>(
    object: &'a Node,
    keys: &'static [Key],
    path: &str,
    found: &mut Vec<(PartKind, String, &'a Node)>,
) {
    for Member { key: name, value, .. } in object.members() {
        let Some(key) = schema::find(keys, name) else { continue };
        let path = format!("{path}{name}");
        let kind = part_kind(&path);
        match &key.shape {
            Shape::Object(inner) => collect(value, inner, &format!("{path}."), found),
            Shape::Variables | Shape::Each(_) => {
                found.extend(
                    value
                        .members()
                        .iter()
                        .map(|member| (kind, format!("{path}.{}", member.key), &member.value)),
                );
            }
            Shape::Gathered => {
                let events = value.items().iter().flat_map(Node::members);
                found.extend(events.map(|event| (kind, format!("{path}.{}", event.key), &event.value)));
            }
            Shape::Rules | Shape::AddedTexts => {
                let items = value.items().iter().enumerate();
                found.extend(items.map(|(index, item)| (kind, format!("{path}[{index}]"), item)));
            }
            _ => found.push((kind, path, value)),
        }
    }
}

fn part_kind(path: &str) -> PartKind {
    match path {
        "hooks" => PartKind::Hook,
        "statusLine" => PartKind::StatusLine,
        "mcpServers" | "enableAllProjectMcpServers" | "enabledMcpjsonServers" => PartKind::Server,
        "permissions.allow" => PartKind::AllowRule,
        "permissions.defaultMode" | "permissions.dontAsk" => PartKind::Mode,
        "permissions.additionalDirectories" => PartKind::Directory,
        "env" | "envPass" => PartKind::Variable,
        "model" | "fallbackModel" | "agents.model" | "agents.defaultModel" => PartKind::Model,
        _ => PartKind::Setting,
    }
}

/// Writes a value so that two values are equal if and only if their bytes are: a tag, then lengths before
/// contents. Positions and comments do not count; a secret counts by its text.
fn encode(node: &Node, bytes: &mut Vec<u8>) {
    let mut text = |tag: u8, text: &str| {
        bytes.push(tag);
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    match &node.kind {
        Kind::Null => text(b'0', ""),
        Kind::Bool(value) => text(b'b', if *value { "1" } else { "0" }),
        Kind::Number(number) => text(b'n', &number.to_string()),
        Kind::Text(value) => text(b's', value),
        Kind::Secret(value) => text(b's', value.expose()),
        Kind::List(items) => {
            text(b'l', &items.len().to_string());
            for item in items {
                encode(item, bytes);
            }
        }
        Kind::Object(members) => {
            text(b'o', &members.len().to_string());
            for member in members {
                bytes.extend((member.key.len() as u64).to_le_bytes());
                bytes.extend(member.key.as_bytes());
                encode(&member.value, bytes);
            }
        }
    }
}

/// Why an agreement could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// Set `HOME` or `DECURION_HOME`, or trust the folder for this run alone.
    #[error("there is no state folder to remember trust in")]
    NoState,
    /// Look at what the system says about the file.
    #[error("cannot record trust in {file}: {source}")]
    Write {
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the user agreed to, by folder.
#[derive(Debug, Default)]
pub struct Trust {
    file: Option<Utf8PathBuf>,
    record: Record,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// Folder to file (relative to the folder) to fingerprint.
    folders: BTreeMap<String, BTreeMap<String, String>>,
    /// Folder to MCP server to the fingerprint of the declaration that was approved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    servers: BTreeMap<String, BTreeMap<String, String>>,
    /// Folder to file to its fingerprint as the user's own answers left it; while one is written, before and after.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    own: BTreeMap<String, BTreeMap<String, Vec<String>>>,
    /// Folder to file to fingerprint: what the user was shown and did not agree to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    declined: BTreeMap<String, BTreeMap<String, String>>,
}

const VERSION: u32 = 1;

impl Trust {
    /// Reads the record. One that cannot be read, or that others could have written, counts as empty: then
    /// nothing is trusted, and the warning says why.
    pub fn open(paths: &Paths) -> (Self, Option<Warning>) {
        let Some(file) = paths.trust_file() else { return (Self::default(), None) };
        let (record, problem) = match read_record(&file) {
            Ok(record) => (record, None),
            Err(problem) => (Record::default(), Some(problem)),
        };
        let warning = problem.map(|problem| Warning {
            kind: WarningKind::File,
            origin: None,
            text: format!("no folder counts as trusted, because {problem}: {file}"),
        });
        (Self { file: Some(file), record }, warning)
    }

    /// Whether the user agreed to exactly these parts of this folder.
    pub fn check(&self, folder: &Utf8Path, parts: &ProjectParts) -> TrustState {
        let recorded = self.record.folders.get(folder.as_str());
        let agreed = recorded.is_some_and(|files| {
            parts.fingerprints().iter().all(|(file, fingerprint)| {
                files.get(file) == Some(fingerprint) || self.is_own(folder, file, fingerprint)
            })
        });
        if agreed {
            TrustState::Trusted
        } else {
            TrustState::Untrusted { parts: parts.parts.clone(), changed: recorded.is_some() }
        }
    }

    /// Records that the user agrees to these parts of this folder, in place of what was agreed before.
    pub fn trust_folder(&mut self, folder: &Utf8Path, parts: &ProjectParts) -> Result<(), TrustError> {
        let fingerprints = parts.fingerprints();
        self.change(|record| {
            record.declined.remove(folder.as_str());
            record.folders.insert(folder.to_string(), fingerprints);
        })
    }

    /// Records that the user was asked about these parts and did not agree, so that the question is not asked again.
    pub fn decline(&mut self, folder: &Utf8Path, parts: &ProjectParts) -> Result<(), TrustError> {
        let fingerprints = parts.fingerprints();
        self.change(|record| {
            record.declined.insert(folder.to_string(), fingerprints);
        })
    }

    /// Whether the user was asked about exactly these parts and did not agree.
    pub fn is_declined(&self, folder: &Utf8Path, parts: &ProjectParts) -> bool {
        self.record.declined.get(folder.as_str()) == Some(&parts.fingerprints())
    }

    /// Whether a file of a folder with this fingerprint holds exactly what the user's own answers have written into it.
    pub(crate) fn is_own(&self, folder: &Utf8Path, file: &str, fingerprint: &str) -> bool {
        let recorded = self.record.own.get(folder.as_str()).and_then(|files| files.get(file));
        recorded.is_some_and(|recorded| recorded.iter().any(|known| known == fingerprint))
    }

    /// Records that these are the fingerprints of a file as the user's own answers leave it; none forgets the file.
    pub(crate) fn record_own(
        &mut self,
        folder: &Utf8Path,
        file: &str,
        fingerprints: Vec<String>,
    ) -> Result<(), TrustError> {
        let recorded = self.record.own.get(folder.as_str()).and_then(|files| files.get(file));
        if recorded.map_or(&[][..], Vec::as_slice) == fingerprints {
            return Ok(());
        }
        self.change(|record| {
            let files = record.own.entry(folder.to_string()).or_default();
            files.insert(file.to_owned(), fingerprints);
            files.retain(|_, fingerprints| !fingerprints.is_empty());
            record.own.retain(|_, files| !files.is_empty());
        })
    }

    /// Records that the user wants this declaration of an MCP server of this folder started, in place of
    /// what was approved under its name before.
    pub fn approve_server(&mut self, folder: &Utf8Path, name: &str, hash: &str) -> Result<(), TrustError> {
        self.change(|record| {
            let servers = record.servers.entry(folder.to_string()).or_default();
            servers.insert(name.to_owned(), hash.to_owned());
        })
    }

    /// The servers of a folder that were approved: name to the declaration's fingerprint.
    pub fn approved_servers(&self, folder: &Utf8Path) -> BTreeMap<String, String> {
        self.record.servers.get(folder.as_str()).cloned().unwrap_or_default()
    }

    /// Takes the agreement back, with the approval of the folder's servers and what the user's own answers have written
    /// there; says whether there was any.
    pub fn revoke(&mut self, folder: &Utf8Path) -> Result<bool, TrustError> {
        let mut found = false;
        self.change(|record| {
            found = record.own.remove(folder.as_str()).is_some();
            for records in [&mut record.folders, &mut record.servers] {
                found |= records.remove(folder.as_str()).is_some();
            }
            record.declined.remove(folder.as_str());
        })?;
        Ok(found)
    }

    /// The folders with an agreement.
    pub fn folders(&self) -> impl Iterator<Item = &Utf8Path> {
        self.record.folders.keys().map(|folder| Utf8Path::new(folder.as_str()))
    }

    /// Changes the record as it is on disk now, under a lock, and writes it whole.
    fn change(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), TrustError> {
        let file = self.file.clone().ok_or(TrustError::NoState)?;
        let changed = record::change(&file, || {
            let mut record = read_record(&file).unwrap_or_default();
            change(&mut record);
            record.version = VERSION;
            record
        });
        self.record = changed.map_err(|source| TrustError::Write { file, source })?;
        Ok(())
    }
}

fn read_record(file: &Utf8Path) -> Result<Record, String> {
    record::read(file, |record: &Record| record.version == VERSION)
}
