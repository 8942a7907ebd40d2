//! What the rooms of a call share. Takes a run and where it is now, gives each room of its calls the same view.

use std::sync::Arc;

use decurion_protocol::{CallId, LineId, OwnRules, RunSpec, ToolOutput};
use decurion_tools::{FilesSeen, Surroundings};
use serde_json::Value;

use crate::context::{OpenCall, Prefix};
use crate::run_handle::RunHandle;

/// A call as the model asked for it.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: CallId,
    /// The tool's name, as the model wrote it.
    pub name: String,
    pub input: Value,
    /// The line of its block in the transcript.
    pub line: Option<LineId>,
}

impl From<OpenCall> for Call {
    fn from(open: OpenCall) -> Self {
        Self { id: open.id, name: open.name, input: open.input, line: open.line }
    }
}

/// What the rooms of a call share.
#[allow(clippy::struct_field_names)] // what it has seen is called so everywhere
pub struct Bench<'a> {
    /// The run, with where it works now.
    pub spec: Arc<RunSpec>,
    pub run: &'a RunHandle,
    /// Where its calls happen.
    pub around: Surroundings,
    /// What it has read.
    pub seen: Arc<FilesSeen>,
    /// The rules of the skills that it follows.
    pub follows: OwnRules,
    /// Its conversation before the message with these calls; only where one of them starts an agent.
    pub prefix: Option<Arc<Prefix>>,
}

/// What the model reads of a tool that panicked.
pub fn panicked(tool: &str) -> ToolOutput {
    ToolOutput::error(format!("{tool} failed inside Decurion; this is a bug in it."))
}
