//! Everything that can be asked of a session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentId, Answer, Block, HostAnswer, HostRequestId, Inspected, Limits, LineId, McpServer, Mode,
    PermissionUpdate, QuestionId, RequestId, TaskId,
};

/// A command and the id its answer will carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the sender.
    pub id: RequestId,
    pub command: Command,
}

/// How much a model may think from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThinkingChange {
    /// As the session began.
    AsBegun,
    /// So many tokens, 0 being not at all.
    AtMost(u64),
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Work on this. Queued if a turn is under way.
    Prompt {
        /// What to work on.
        blocks: Vec<Block>,
    },
    /// The same, under an id that its sender knows it by. One that was taken before is refused, unless it is on record
    /// and its process died before it was answered: that one is worked on.
    Submit {
        /// The id of its line.
        line: LineId,
        /// What to work on.
        blocks: Vec<Block>,
    },
    /// Take back what was asked for and is not begun; the reply names what was.
    Unqueue {
        /// Which; none is all.
        line: Option<LineId>,
    },
    /// Answer an open question.
    Answer {
        question: QuestionId,
        answer: Answer,
        /// What else changes with it, from the next call on: what an agent in the background asks gives no rights to
        /// the whole session. What cannot be done of it keeps the answer from nothing; the reply names it
        /// (`not_done`).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        updates: Vec<PermissionUpdate>,
        /// Who asked for it, for the journal.
        by: String,
    },
    /// Answer what the session asked of its host.
    AnswerHost {
        request: HostRequestId,
        answer: HostAnswer,
    },
    /// Stop waiting for foreground tasks; they continue in the background.
    Background {
        /// Which, by its own id or that of the call that began it; none is all that the root waits
        /// for.
        target: Option<String>,
    },
    Stop {
        task: TaskId,
    },
    /// Hold an agent: what it has under way comes to its end, and nothing more is begun. Stays so after a restart.
    Pause {
        task: TaskId,
        /// Whether to include all agents below it, and those that they still start.
        #[serde(default)]
        tree: bool,
    },
    /// Resume a paused agent; it waits for a slot if too many work.
    Continue {
        task: TaskId,
        /// Whether all below it too.
        #[serde(default)]
        tree: bool,
    },
    /// Give an agent another budget, up to what is left above it; the reply holds all its limits then.
    Rebudget {
        task: TaskId,
        /// What is given replaces what held, what is not given stays. Tokens and money count all that it has used.
        limits: Limits,
    },
    /// Run a command as the person at the session would in a shell: at once, in the session's folder, without a
    /// question or a time limit; an interrupt ends it. Its output joins the conversation and starts no turn. The reply
    /// names the call that the events belong to.
    Shell {
        /// The command line; `line` on the wire, where `command` says which of these it is.
        #[serde(rename = "line")]
        command: String,
    },
    /// Send an agent a message; one that has ended resumes with it.
    Tell {
        agent: AgentId,
        text: String,
    },
    /// List all tasks; the reply holds them.
    Tasks,
    /// Close as soon as the whole tree is quiet.
    Finish,
    /// Tell how the session stands; the reply holds it.
    Inspect {
        what: Inspected,
    },
    /// End the turn under way and what it runs in the foreground; the reply names what is still queued.
    Interrupt,
    /// Change the permission mode.
    SetMode {
        mode: Mode,
    },
    /// Change what may be done, for the rest of the session: all of it or nothing.
    Permit {
        updates: Vec<PermissionUpdate>,
    },
    /// Change the model from the next turn on.
    SetModel {
        /// To this; `default` is the one that the session began with.
        model: String,
    },
    /// Change how much the model may think, from the next turn on.
    SetThinking {
        /// So many tokens at most, 0 being not at all; none is what the session began with.
        tokens: Option<u64>,
    },
    /// Change several things, from the next turn on: all of them, or none where one cannot be.
    Change {
        /// The model, as with `SetModel`; none leaves it.
        #[serde(default)]
        model: Option<String>,
        /// How much it may think; none leaves it.
        #[serde(default)]
        thinking: Option<ThinkingChange>,
        /// What may be done, as with `Permit`.
        #[serde(default)]
        updates: Vec<PermissionUpdate>,
    },
    /// Use these MCP servers in place of those that were set so before, and of all that live in the host; the
    /// reply names what was added and removed.
    SetServers {
        servers: Vec<McpServer>,
    },
    /// Connect to an MCP server again, also to one that was given up.
    ReconnectServer {
        /// Which, by its name.
        server: String,
    },
    /// Switch an MCP server off for this session, or on again.
    ToggleServer {
        /// Which, by its name.
        server: String,
        /// Whether it is on from now on.
        on: bool,
    },
    /// Put the files that were changed after a prompt back to what they held then; the reply says which they are, or
    /// why they stay. Refused while anyone works.
    Rewind {
        /// The line of the prompt.
        to: LineId,
        /// Whether to say only what would be done.
        dry_run: bool,
    },
    /// Shorten the conversation now.
    Compact {
        /// What to pay attention to.
        instructions: Option<String>,
    },
    /// End the session: cancel what runs, write everything, say goodbye.
    Close {
        /// Why, for the record.
        reason: String,
    },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done, or taken on.
    Done {
        /// What there is to say, by command.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        value: Value,
    },
    Refused {
        reason: String,
    },
}
