//! How a front end and a session hold each other: a [`Place`] opens sessions, a [`Link`] is one of them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use camino::Utf8PathBuf;
use futures_core::Stream;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentDefinition, CommandSender, Envelope, Limits, LineId, Mode, Rule, SessionId, Thinking, ToolSelection,
};

/// A boxed stream, open about being boxed.
pub type BoxStream<'a, T> = Pin<Box<dyn Stream<Item = T> + Send + 'a>>;
/// A boxed future, open about being boxed.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Subscribes to a session's events: another stream, from now on.
pub type Subscribe = Arc<dyn Fn() -> BoxStream<'static, Arc<Envelope>> + Send + Sync>;

/// All that a front end, or a parent on another machine, ever holds of a session.
pub struct Link {
    pub session: SessionId,
    /// Where commands go. Dropping it asks for nothing: the session ends by [`crate::Command::Close`].
    pub commands: CommandSender,
    /// What happens, from the point of attachment on, without gaps.
    pub events: BoxStream<'static, Arc<Envelope>>,
    /// How to listen once more; none where the session is not in this process.
    pub again: Option<Subscribe>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Somewhere sessions live: this process, its owner's socket, or workers behind a broker.
pub trait Place: Send + Sync {
    /// Opens a session, new or recorded, and attaches to it.
    fn open(&self, request: OpenSession) -> BoxFuture<'_, Result<Link, PlaceError>>;
    /// The sessions known here, newest first.
    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionSummary>, PlaceError>>;
}

/// What a front end knows when it wants a session. The engine turns it into a `RunSpec`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenSession {
    /// New, or which recorded one.
    pub start: Start,
    pub cwd: Utf8PathBuf,
    /// Further directories it may use.
    pub directories: Vec<Utf8PathBuf>,
    /// The name of the worktree that a new session works in; empty means any name. None means no worktree, except a
    /// recorded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worktree: Option<String>,
    pub definition: AgentDefinition,
    /// Replaces the rendered system prompt, if given; may be empty.
    pub system: Option<String>,
    /// Added to the end of the system prompt.
    pub append_system: Option<String>,
    /// The model: alias, id or `provider/model`; none takes the recorded or configured one.
    pub model: Option<String>,
    /// The model to change to when that one stays overloaded.
    pub fallback_model: Option<String>,
    /// Whether the model thinks before it answers; none leaves that to the settings and the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// How hard it tries, in the provider's word; none leaves that to the settings and the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The permission mode; none takes the configured one.
    pub mode: Option<Mode>,
    /// Allow rules of the command line.
    pub allow: Vec<Rule>,
    /// Deny rules of the command line.
    pub deny: Vec<Rule>,
    /// Which of the built-in tools are offered.
    pub tools: ToolSelection,
    /// How much it may use.
    pub limits: Limits,
    /// A JSON Schema that the final answer must satisfy.
    pub output_schema: Option<Value>,
    /// Whether someone at the other end can answer questions.
    pub answers: bool,
    /// The tool of an MCP server that answers them instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_tool: Option<String>,
    /// Whether files are kept as they were before each change, so that they can be put back.
    #[serde(default)]
    pub checkpoints: bool,
    /// Whether the mode `bypassPermissions` may be chosen while it runs, though it is not started with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypass: bool,
    /// Whether a transcript is kept.
    pub persistence: Persistence,
    /// Which door it came through.
    pub entrypoint: String,
}

/// Whether a transcript is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Persistence {
    /// Where the state folder can be written; else the session lives in memory and says so.
    #[default]
    Usual,
    /// Always: a state folder that cannot be written is an error.
    Required,
    Off,
}

/// New, or which recorded session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "start", rename_all = "snake_case")]
pub enum Start {
    /// A new one, with this id if given.
    New {
        /// The id to use.
        id: Option<SessionId>,
    },
    /// This one, continued in its file.
    Resume {
        id: SessionId,
        /// From where, if not from its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<ResumeAt>,
    },
    /// A new one that begins with what this one holds.
    Fork {
        from: SessionId,
        /// The id of the new one.
        id: Option<SessionId>,
        /// Up to where, if not to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at: Option<ResumeAt>,
    },
}

/// The line of a conversation from which it continues; later lines are no longer part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeAt {
    /// The last line that stays: any of the root's own conversation.
    pub line: LineId,
    /// The prompt whose turn is expected to be all that falls away; if more or less would, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<LineId>,
}

/// Why a place cannot open a session.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is no such session here.
    #[error("no session with this id: {0}")]
    NoSuchSession(SessionId),
    /// The id is already in use by a recorded session.
    #[error("a session with this id exists already: {0}")]
    SessionExists(SessionId),
    /// Another process writes it.
    #[error("session {session} is already open in {holder}")]
    Held {
        session: SessionId,
        /// The holder: pid, host, since when.
        holder: String,
    },
    /// The model's name means nothing here.
    #[error("{0}")]
    Model(String),
    /// The request contradicts itself or the configuration.
    #[error("{0}")]
    Usage(String),
    /// A later version wrote records that must be understood and are not.
    #[error(
        "session {session} cannot be continued by this version: Decurion {written_by} wrote records of level {needs}, and \
         this version understands level {reads}; continuing without them could widen rights or repeat work"
    )]
    Newer {
        session: SessionId,
        /// The level of records that is needed.
        needs: u64,
        /// The level that this version understands.
        reads: u64,
        /// The version that wrote to it last.
        written_by: String,
    },
    /// The session's own transcript cannot be opened.
    #[error("cannot open the transcript {path}: {source}")]
    Transcript {
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The state folder cannot be used.
    #[error("cannot use the state folder {path}: {source}")]
    Storage {
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// One line of a list of sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionSummary {
    pub session: SessionId,
    /// Where it was started.
    pub cwd: Utf8PathBuf,
    /// Its first prompt, cut to a line.
    pub title: String,
    /// When it was begun.
    pub created: Option<Timestamp>,
    /// When it was last written.
    pub modified: Option<Timestamp>,
    /// The git branch at the start.
    pub git_branch: Option<String>,
    /// Size of its transcript.
    pub bytes: u64,
    pub path: Utf8PathBuf,
}
