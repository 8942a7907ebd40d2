//! One run with every decision already taken: the loop looks nothing up.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::{AgentDefinition, AgentId, CallId, McpStatus, Mode, Money, Rule, RunId, SessionId};

/// What the loop is given. The root and every kind of sub-agent are different ways to *build* one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// This start or resume.
    pub run: RunId,
    /// The session it belongs to.
    pub session: SessionId,
    /// The agent; none for the root.
    pub agent: Option<AgentId>,
    pub parent: Option<RunId>,
    /// How deep in the tree: 0 for the root.
    pub depth: u32,
    /// Which kind of run.
    pub pattern: Pattern,
    pub definition: Arc<AgentDefinition>,
    /// Name of the stored head (system prompt and tool schemas), frozen for the run.
    pub head: String,
    /// The tools offered, in the order the model is shown them.
    pub tools: Arc<[String]>,
    /// How the conversation begins.
    pub opening: Opening,
    /// The model asked for, `provider/model`.
    pub model: String,
    /// Why that one, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_why: Option<String>,
    /// The model to change to when that one stays overloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<String>,
    /// The permission mode at the start.
    pub mode: Mode,
    pub cwd: Utf8PathBuf,
    /// Further directories it may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<Utf8PathBuf>,
    /// The worktree it works in, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<Box<Worktree>>,
    pub limits: Limits,
    /// How the session's MCP servers were doing when it began; the root's only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<McpStatus>,
    /// Its own rules, besides those of the session.
    #[serde(default, skip_serializing_if = "OwnRules::is_empty")]
    pub own_rules: OwnRules,
    /// The session's own model, if a command uses another one for its turn: agents that outlive the turn use this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_model: Option<String>,
}

/// Rules that hold for one run, or for as long as a skill is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnRules {
    /// What needs no question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Rule>,
    /// Whether they stand in the place of what was allowed in the session; what is denied or asked about stays.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub instead: bool,
}

impl OwnRules {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what others say.
    pub fn add(&mut self, more: &Self) {
        self.allow.extend(more.allow.iter().cloned());
        self.deny.extend(more.deny.iter().cloned());
        self.instead |= more.instead;
    }
}

/// A worktree that a run works in. The run may not change anything outside of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worktree {
    /// The top of the checkout.
    pub path: Utf8PathBuf,
    pub branch: String,
    /// The commit it began with.
    pub base: String,
    /// The repository: what all its worktrees share.
    pub repository: Utf8PathBuf,
    /// The top of the checkout that it was made from, whose paths mean those here.
    pub origin: Utf8PathBuf,
    /// The tops of the checkouts that `origin` itself was made from, the nearest first: their paths mean those
    /// here too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<Utf8PathBuf>,
}

impl Worktree {
    /// Every checkout whose paths mean those here, the nearest first.
    pub fn origins(&self) -> impl Iterator<Item = &Utf8PathBuf> {
        std::iter::once(&self.origin).chain(&self.above)
    }

    /// The path of the main checkout that corresponds to a path in this worktree; other paths stay as they are.
    pub fn home(&self, path: &Utf8Path) -> Utf8PathBuf {
        let top = self.above.last().unwrap_or(&self.origin);
        path.strip_prefix(&self.path).map_or_else(|_| path.to_owned(), |below| top.join(below))
    }
}

/// Which kind of run: how it was started, and so what happens with its ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// The session's own conversation.
    Root,
    /// An agent by its definition.
    Named,
    /// A copy of its parent's conversation with a directive.
    Fork,
    Worker,
    /// A member of a team.
    Member {
        team: String,
    },
}

/// How a run's conversation begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "opening", rename_all = "snake_case")]
pub enum Opening {
    /// With nothing before its first prompt.
    Fresh,
    /// With its parent's conversation as it stood, a reference so that no history is stored twice.
    Fork {
        /// Whose conversation; none is the root's.
        parent: Option<AgentId>,
        /// The last record of it that is seen.
        through: u64,
        call: CallId,
    },
    /// With what the journal holds of this agent.
    Resumed {
        /// The run that wrote it last, where known.
        from: Option<RunId>,
    },
}

/// Whether a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thinking {
    /// As much as it finds right.
    Adaptive {
        /// How its thoughts are given, in the provider's word (`summarized`, `omitted`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        display: Option<String>,
    },
    /// Up to so many tokens.
    Enabled {
        budget_tokens: u64,
        /// How its thoughts are given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        display: Option<String>,
    },
    Disabled,
}

/// How much a run may use. `None` is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub turns: Option<u32>,
    pub money: Option<Money>,
    /// Tokens, all classes together.
    pub tokens: Option<u64>,
    /// Wall time in seconds.
    pub seconds: Option<u64>,
    pub spawns: Option<u32>,
}
