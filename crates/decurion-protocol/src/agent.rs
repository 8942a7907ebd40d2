//! What an agent *is*: its definition, loaded once, shared, never changed.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Limits, Mode};

/// An agent's definition, as a Markdown file with a head declares it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a key that a file sets on its own")]
pub struct AgentDefinition {
    /// Its name; looked up without regard to case.
    pub name: String,
    /// When to use it, for the model that delegates.
    pub description: String,
    pub prompt: String,
    /// Which tools it may use.
    pub tools: ToolSelection,
    /// Its model; none inherits the parent's.
    pub model: Option<String>,
    /// Its permission mode; none runs in the parent's.
    pub mode: Option<Mode>,
    pub limits: Limits,
    /// Where it came from, which decides what it may widen.
    pub source: AgentSource,
    /// The file it was read from; none for those built in or given as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Utf8PathBuf>,
    /// Whether it runs in the background without being asked to.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Whether it sees its parent's conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fork_context: bool,
    /// Whether models do not see it in the list.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// How deep its own agents may nest below it; none leaves it to the settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// How hard its model should think, in its provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// A short text given again with each turn's input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reminder: Option<String>,
    /// The prompt it begins with where it is the main agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_prompt: Option<String>,
    /// Whether the mode `dontAsk`, if it is its own, denies what no rule decides.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dont_ask_denies: bool,
    /// How it is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
    /// Hooks that are active while it runs, as declared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Value>,
    /// What its sandbox forbids besides the session's, with what its parents' forbid.
    #[serde(skip_serializing_if = "AgentSandbox::is_empty")]
    pub sandbox: AgentSandbox,
    /// What is declared and belongs to its equipment: MCP servers, skills, memory, isolation, output schema.
    #[serde(skip_serializing_if = "Equipment::is_empty")]
    pub equipment: Equipment,
}

/// What a definition takes away from the sandbox of its agent. It never adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentSandbox {
    /// Whether no host may be reached.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_network: bool,
    /// Lists of hosts; a host must be in each of them. None leaves it to the session.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<Vec<String>>,
    /// Hosts that may not be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denied_hosts: Vec<String>,
    /// Files and folders that may not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_read: Vec<String>,
    /// Files and folders that may not be written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_write: Vec<String>,
}

impl AgentSandbox {
    /// Whether it forbids nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What this and its parent's forbid.
    #[must_use]
    pub fn within(&self, parent: &Self) -> Self {
        fn both<T: Clone + PartialEq>(one: &[T], other: &[T]) -> Vec<T> {
            let more = other.iter().filter(|item| !one.contains(item));
            one.iter().chain(more).cloned().collect()
        }
        Self {
            no_network: self.no_network || parent.no_network,
            allowed_hosts: both(&parent.allowed_hosts, &self.allowed_hosts),
            denied_hosts: both(&parent.denied_hosts, &self.denied_hosts),
            deny_read: both(&parent.deny_read, &self.deny_read),
            deny_write: both(&parent.deny_write, &self.deny_write),
        }
    }
}

/// What an agent carries besides its tools, as declared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Equipment {
    /// Skills loaded into its opening.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// MCP servers, by name or inline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Value>,
    /// `user`, `project` or `local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// The JSON Schema its report must satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

impl Equipment {
    /// Whether nothing is declared.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which tools out of those at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolSelection {
    /// Only these, if given.
    pub only: Option<Vec<String>>,
    pub except: Vec<String>,
}

impl ToolSelection {
    /// The same less these.
    #[must_use]
    pub fn without(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.except.extend(names);
        self
    }
}

/// Where a definition came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSource {
    #[default]
    Builtin,
    /// The user's folder, or the command line.
    User,
    /// The project's folder: part of a repository, so not trusted to widen anything.
    Project,
    Plugin,
    Managed,
}

/// Other names of built-in types, used where no definition has that name itself.
const TYPE_ALIASES: &[(&str, &str)] = &[("claude-code-guide", "guide")];

/// The type that a name stands for: the name itself unless it is an alias.
pub fn type_behind(name: &str) -> &str {
    TYPE_ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name)).map_or(name, |(_, name)| name)
}

/// Every name under which a rule may mean this type: the name, the type behind it and that type's aliases. Letter case
/// does not matter, as in the look-up of definitions.
pub fn type_names(name: &str) -> Vec<&str> {
    let behind = type_behind(name);
    let aliases = TYPE_ALIASES.iter().filter(|(_, of)| of.eq_ignore_ascii_case(behind));
    [name, behind].into_iter().chain(aliases.map(|(alias, _)| *alias)).collect()
}

/// Whether two names mean the same type.
pub fn is_same_type(one: &str, other: &str) -> bool {
    type_names(one).iter().any(|name| name.eq_ignore_ascii_case(other))
}
