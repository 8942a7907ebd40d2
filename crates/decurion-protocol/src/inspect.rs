//! The state of a session. A command names the part that is wanted, its reply holds one of these; nothing here is
//! recorded.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::{Mode, RuleSet, TaskId, Usage};

/// What can be looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Inspected {
    /// What fills the window of the session's own conversation: a [`ContextUse`].
    Context,
    /// The MCP servers: a list of [`crate::McpDetail`].
    Servers,
    /// The rules in force: a [`RulesInForce`].
    Rules,
    /// The hooks in force: a list of [`crate::HookDeclaration`].
    Hooks,
    /// What is changed in the working tree since its last commit: [`WorkingChanges`].
    Changes,
    /// The end of what a command in the background has printed: a [`TaskOutputEnd`].
    Output { task: TaskId },
}

/// What is changed in a working tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkingChanges {
    /// In git's unified form.
    pub diff: String,
    /// Files that git does not track.
    pub untracked: Vec<String>,
    /// Whether there is more.
    pub is_cut: bool,
}

/// What fills the window of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextUse {
    pub model: String,
    /// How many tokens fit.
    pub window: u64,
    /// How many the next request holds.
    pub total: u64,
    /// From how many on the conversation is shortened by itself; none is never.
    pub compacts_at: Option<u64>,
    /// What they are of. Only the total was ever counted by a provider: the parts are estimates from bytes, made to
    /// add up to it.
    pub parts: Vec<ContextPart>,
    /// What the last reply used, by its provider's count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Usage>,
}

/// A part of what fills a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextPart {
    pub kind: ContextKind,
    /// What, where there is more than one of a kind: a tool, an agent, a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where it comes from: the server of a tool, the source of an agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// How many tokens, estimated.
    pub tokens: u64,
}

/// What can fill a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    System,
    /// The schema of a tool of our own, without what it says of agents and skills.
    Tool,
    /// The schema of a server's tool.
    McpTool,
    /// The description of an agent that is not built in.
    Agent,
    /// The list of skills.
    Skills,
    Memory,
    /// All messages.
    Messages,
}

/// The rules in force, and where they count from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesInForce {
    pub mode: Mode,
    /// The rules, each with its source.
    pub rules: RuleSet,
    /// Where the session was started.
    pub cwd: Utf8PathBuf,
    pub directories: Vec<Utf8PathBuf>,
}

/// The end of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOutputEnd {
    /// The end, as text.
    pub text: String,
    /// How many bytes there are in all.
    pub bytes: u64,
    /// Whether there is more than the end.
    pub cut: bool,
}
