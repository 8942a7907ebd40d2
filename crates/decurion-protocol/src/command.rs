//! Everything that can be asked of a session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AgentId, Answer, Block, HostAnswer, HostRequestId, Mode, QuestionId, RequestId, TaskId};

/// A command and the id its answer will carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the sender.
    pub id: RequestId,
    /// What is asked.
    pub command: Command,
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
    /// Answer an open question.
    Answer {
        /// Which.
        question: QuestionId,
        /// How.
        answer: Answer,
        /// By whom, for the record.
        by: String,
    },
    /// Answer what the session asked of its host.
    AnswerHost {
        /// Which.
        request: HostRequestId,
        /// How.
        answer: HostAnswer,
    },
    /// Stop waiting for foreground tasks; they go on.
    Background {
        /// Which, by its own id or that of the call that began it; none is all of them.
        target: Option<String>,
    },
    /// End a task.
    Stop {
        /// Which.
        task: TaskId,
    },
    /// Tell an agent something; one that has ended goes on with it.
    Tell {
        /// Which.
        agent: AgentId,
        /// What.
        text: String,
    },
    /// List all tasks; the reply holds them.
    Tasks,
    /// Close as soon as the whole tree is quiet.
    Finish,
    /// End the turn under way and what it runs in the foreground.
    Interrupt,
    /// Change the permission mode.
    SetMode {
        /// To this.
        mode: Mode,
    },
    /// Change the model from the next turn on.
    SetModel {
        /// To this.
        model: String,
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

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Done, or taken on.
    Done {
        /// What there is to say, by command.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        value: Value,
    },
    /// Not possible.
    Refused {
        /// Why.
        reason: String,
    },
}
