//! What the engine is given. Everything a run reaches outside itself comes through here, decided by whoever
//! wires the program: the engine reads no configuration and names no provider.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_model::catalog::ModelInfo;
use decurion_model::checked::id_with;
use decurion_model::{Dialect, Gateway, Head};
use decurion_protocol::agent::type_behind;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    AgentDefinition, AgentId, AuditEntry, CallId, HookDeclaration, LineId, PermissionUpdate, RunId, Skill,
    TaskId,
};

/// A model that can be asked.
pub struct Model {
    pub name: String,
    /// As the provider knows it.
    pub id: String,
    /// The way to it.
    pub gateway: Arc<Gateway>,
    /// How it wants its JSON.
    pub dialect: Dialect,
    /// Its window, output limit and price.
    pub info: ModelInfo,
    /// The template of its request heads: thinking, effort and the like.
    pub head: Head,
}

/// A model to change to while the one that was asked for stays overloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// As the provider knows it.
    pub id: String,
    /// Its window, output limit and price.
    pub info: ModelInfo,
}

/// The models at hand.
pub trait Models: Send + Sync {
    /// The model of this name: an alias, an id, or `provider/model`. The error is for a person.
    fn resolve(&self, name: &str) -> Result<Arc<Model>, String>;
    /// The same for the session's own agent, which an alias that its provider does not map leaves with that provider's
    /// default model; with what a person should know about the choice.
    fn main(&self, name: &str) -> Result<(Arc<Model>, Option<String>), String> {
        self.resolve(name).map(|model| (model, None))
    }
    /// What is known of another model of the same provider, by the provider's name for it.
    fn sibling(&self, of: &Model, id: &str) -> ModelInfo;
    /// The model to use when nobody names one.
    fn default_name(&self) -> String;

    /// The models to change to while one stays overloaded, as a request names them.
    fn fallbacks(&self, of: &Model, names: Option<&str>) -> Arc<[Fallback]> {
        let names = names.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|id| Fallback { id: id.to_owned(), info: self.sibling(of, id) }).collect()
    }
}

/// The agents at hand, as they are now.
pub trait Definitions: Send + Sync {
    /// All of them, those that win first.
    fn all(&self) -> Vec<Arc<AgentDefinition>>;

    /// The one that a name means, without regard to case; aliases stand for what they are aliases of.
    fn find(&self, name: &str) -> Option<Arc<AgentDefinition>> {
        let all = self.all();
        let named = |name: &str| all.iter().find(|one| one.name.eq_ignore_ascii_case(name)).cloned();
        named(name).or_else(|| named(type_behind(name)))
    }

    /// The hooks that a definition declares for its own agents.
    fn hooks_of(&self, _definition: &AgentDefinition) -> Vec<HookDeclaration> {
        Vec::new()
    }
}

/// What agents read besides: skills, commands, memories, instructions of folders; all as they are now.
pub trait Library: Send + Sync {
    /// Whether there can ever be skills here, so that models are offered the tool for them.
    fn has_skills(&self) -> bool {
        false
    }

    /// All skills and commands that count, those that win first.
    fn skills(&self) -> Vec<Arc<Skill>> {
        Vec::new()
    }

    /// The one that a name means: exactly that, else without regard to case.
    fn find(&self, name: &str) -> Option<Arc<Skill>> {
        let all = self.skills();
        let exact = all.iter().find(|skill| skill.name == name);
        exact.or_else(|| all.iter().find(|skill| skill.name.eq_ignore_ascii_case(name))).cloned()
    }

    /// The text of one, as its file is now. The error is for the model.
    fn body(&self, skill: &Skill) -> Result<String, String> {
        Err(format!("{} has no text here", skill.name))
    }

    /// The hooks that a skill brings for whoever follows it; none where they may not run.
    fn hooks_of(&self, _skill: &Skill) -> Vec<HookDeclaration> {
        Vec::new()
    }

    /// The skills that name files like this one in their `paths`.
    fn concerning(&self, _cwd: &Utf8Path, _file: &Utf8Path) -> Vec<Arc<Skill>> {
        Vec::new()
    }

    /// The memory of an agent: `user`, `project` or `local`. The error is for the model.
    fn memory(&self, scope: &str, agent: &AgentDefinition) -> Result<Memory, String> {
        Err(format!("no {scope} memory for {} here", agent.name))
    }

    /// The instructions of the folders between a working directory and a file below it.
    fn nested(&self, _cwd: &Utf8Path, _file: &Utf8Path) -> Vec<Instructions> {
        Vec::new()
    }
}

/// A library without anything in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLibrary;

impl Library for NoLibrary {}

/// An agent's own memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The folder it is kept in.
    pub folder: Utf8PathBuf,
    /// What its index says, bounded; empty where there is none yet.
    pub index: String,
}

/// A text that instructs every agent of the project or user, such as AGENTS.md.
#[derive(Clone, Debug)]
pub struct Instructions {
    /// Where it came from, for the model to know.
    pub path: Utf8PathBuf,
    /// Where its links led when it was read.
    pub place: Utf8PathBuf,
    /// The file that imports it; none for one that is read because of where it stands.
    pub imported_by: Option<Utf8PathBuf>,
    pub text: String,
}

/// The settings that outlast a session.
pub trait Settings: Send + Sync {
    /// Writes a change into the settings of a source. May wait a moment for others who write; called on a thread of its
    /// own. The error says why it is not written, for a person.
    fn keep(&self, at: RuleSource, update: &PermissionUpdate) -> Result<Kept, String>;
}

/// What was written into settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub file: Utf8PathBuf,
    /// Why it does not hold yet, or not wholly, if so.
    pub remark: Option<String>,
}

/// Settings that nobody writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSettings;

impl Settings for NoSettings {
    fn keep(&self, _at: RuleSource, _update: &PermissionUpdate) -> Result<Kept, String> {
        Err("settings are not written here".to_owned())
    }
}

/// Where decisions are recorded that may have to be accounted for later.
pub trait Audit: Send + Sync {
    /// Records an entry without waiting for it to be written. Gives a sentence for people, once, when entries cannot be
    /// written.
    fn record(&self, entry: AuditEntry) -> Option<String>;

    /// Whether entries are kept at all; where not, none need be made.
    fn is_kept(&self) -> bool {
        true
    }
}

/// An audit log that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAudit;

impl Audit for NoAudit {
    fn record(&self, _entry: AuditEntry) -> Option<String> {
        None
    }

    fn is_kept(&self) -> bool {
        false
    }
}

/// Takes secrets out of a text; none where there are none.
pub type Redact = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// When conversations are shortened.
#[derive(Clone, Copy, Debug)]
pub struct Compaction {
    /// Whether it happens by itself.
    pub automatic: bool,
    /// At which share of the window less the output limit, in percent.
    pub at_percent: u64,
}

impl Default for Compaction {
    fn default() -> Self {
        Self { automatic: true, at_percent: 80 }
    }
}

/// New ids. Random or time-ordered; nothing depends on which.
pub fn new_line() -> LineId {
    LineId(uuid::Uuid::new_v4())
}

/// A new run's id.
pub fn new_run() -> RunId {
    RunId(uuid::Uuid::now_v7())
}

/// A new agent's id: `a` and 16 hexadecimal digits.
pub fn new_agent() -> AgentId {
    let digits = format!("a{:016x}", uuid::Uuid::new_v4().as_u64_pair().1);
    digits.parse().unwrap_or_else(|_| unreachable!("a letter and digits are a name"))
}

/// A new shell's id: `b` and 8 base-36 digits.
pub fn new_shell() -> TaskId {
    let mut number = uuid::Uuid::new_v4().as_u128();
    let digit = |value: u128| char::from_digit(u32::try_from(value % 36).unwrap_or(0), 36).unwrap_or('0');
    let mut name = String::from("b");
    for _ in 0..8 {
        name.push(digit(number));
        number /= 36;
    }
    name.parse().unwrap_or_else(|_| unreachable!("a letter and digits are a name"))
}

/// A call's id that is not in use: the model's own, or that with a number behind it.
pub fn unused_call(wanted: &CallId, in_use: impl Fn(&CallId) -> bool) -> CallId {
    let mut candidate = wanted.clone();
    let mut number = 2;
    while in_use(&candidate) {
        candidate = CallId(id_with(wanted.as_str(), &format!("-{number}")));
        number += 1;
    }
    candidate
}
