//! What a session asks of its leading program: to run a hook that is a function of the program, and to carry a message
//! to an MCP server that lives in it. Asked by an event, answered by a command, and not recorded: effects are recorded
//! where they happen.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, HostRequestId};

/// Something asked of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostRequest {
    /// Which its answer names.
    pub id: HostRequestId,
    pub asked: HostAsked,
}

/// What can be asked of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "asked", rename_all = "snake_case")]
pub enum HostAsked {
    /// To call one of its functions as a hook; the answer is what a hook prints.
    Hook {
        /// Its name for the function.
        callback: String,
        /// What a hook reads.
        input: Value,
        /// The call it is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<CallId>,
    },
    /// To give a message to one of its MCP servers; the answer is the server's message, where there is one.
    Mcp {
        /// Its name for the server.
        server: String,
        message: Value,
    },
}

/// What a host answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum HostAnswer {
    Given {
        /// What it is depends on what was asked.
        value: Value,
    },
    Failed {
        /// Why, in its words.
        error: String,
    },
    /// The session has no leading program, or no longer has one.
    Gone,
}
