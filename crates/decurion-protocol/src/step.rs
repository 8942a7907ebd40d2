//! The steps of an agent's start and end, each named when it was taken: what was done, in which order.

use serde::{Deserialize, Serialize};

/// A step that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step<T> {
    pub step: T,
    /// The result, if it is worth saying: a path, a count, a failure that did not stop the other steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The steps before an agent's first request, in the order they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartStep {
    /// Its definition was found.
    Definition,
    /// Its model was chosen.
    Model,
    /// It has an id.
    Id,
    /// Its tools were chosen.
    Tools,
    /// It has its own worktree.
    Worktree,
    /// Its task is on record.
    Task,
    /// What stands before its conversation is stored.
    SystemPrompt,
    /// Its permission mode was decided.
    Mode,
    /// It can be ended.
    Cancellation,
    /// The MCP servers of its definition serve it.
    Servers,
    /// Hooks of others were told of its start.
    StartHooks,
    /// Its own hooks are active.
    OwnHooks,
    /// Its skills are loaded.
    Skills,
    /// Its conversation is ready.
    Context,
    /// Its first request is sent.
    Request,
}

/// The steps after an agent's last message, in their order; all are taken, however the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseStep {
    /// Its MCP servers no longer serve it.
    Servers,
    /// Its own hooks are no longer active.
    Hooks,
    /// Its share of its parent's prompt cache is released.
    Cache,
    /// Its record of read files is released.
    Files,
    /// Nothing more is traced in its name.
    Trace,
    /// The commands and agents it left running have ended.
    Shells,
    /// Its checkout is removed, or kept because there is work in it.
    Worktree,
}

impl ReleaseStep {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::Servers, Self::Hooks, Self::Cache, Self::Files, Self::Trace, Self::Shells, Self::Worktree];
}

impl<T> Step<T> {
    /// A step with nothing more to say.
    pub fn plain(step: T) -> Self {
        Self { step, note: None }
    }

    /// A step and its result.
    pub fn noted(step: T, note: impl Into<String>) -> Self {
        Self { step, note: Some(note.into()) }
    }
}
