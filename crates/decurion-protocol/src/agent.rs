//! What an agent *is*: its definition, loaded once, shared, never changed.

use serde::{Deserialize, Serialize};

use crate::{Limits, Mode};

/// An agent's definition, as a Markdown file with a head declares it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentDefinition {
    /// Its name; looked up without regard to case.
    pub name: String,
    /// When to use it, for the model that delegates.
    pub description: String,
    /// Its system prompt.
    pub prompt: String,
    /// Which tools it may use.
    pub tools: ToolSelection,
    /// Its model; none inherits the parent's.
    pub model: Option<String>,
    /// Its permission mode; none runs in the parent's.
    pub mode: Option<Mode>,
    /// Its limits.
    pub limits: Limits,
    /// Where it came from, which decides what it may widen.
    pub source: AgentSource,
}

/// Which tools out of those at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolSelection {
    /// Only these, if given.
    pub only: Option<Vec<String>>,
    /// Never these.
    pub except: Vec<String>,
}

/// Where a definition came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentSource {
    /// Part of Decurion.
    #[default]
    Builtin,
    /// The user's folder, or the command line.
    User,
    /// The project's folder: part of a repository, so not trusted to widen anything.
    Project,
    /// A plugin.
    Plugin,
    /// The administrator.
    Managed,
}
