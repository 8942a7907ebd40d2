//! A tool that asks a person, as an MCP server's would, without a server. Takes what is asked with each call,
//! gives the action as its result and keeps what a person wrote, for the test to look at.

use std::sync::{Arc, Mutex, PoisonError};

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Elicitation, Elicited, Intent, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec};
use serde_json::{Value, json};

pub const NAME: &str = "mcp__clerk__ask";

pub struct Asking {
    spec: ToolSpec,
    elicitation: Elicitation,
    answers: Arc<Mutex<Vec<Elicited>>>,
}

impl Asking {
    /// A tool that asks this.
    pub fn new(elicitation: Elicitation) -> Self {
        let spec = ToolSpec::new(NAME, "Asks a person.", json!({"type": "object", "properties": {}}));
        Self { spec, elicitation, answers: Arc::default() }
    }

    /// What it was answered so far, to be kept.
    pub fn answers(&self) -> Arc<Mutex<Vec<Elicited>>> {
        Arc::clone(&self.answers)
    }
}

impl Tool for Asking {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, _: &Value, _: &Surroundings) -> Result<Intent, InputError> {
        Ok(Intent::titled("asks"))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, _: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let Some(elicit) = &cx.elicit else { return ToolOutput::error("nobody to ask") };
            let answer = tokio::select! {
                biased;
                () = cx.cancel.cancelled() => return ToolOutput::error("interrupted"),
                answer = elicit.ask(self.elicitation.clone()) => answer,
            };
            let text = format!("a person said: {:?}", answer.action);
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
            ToolOutput::text(text)
        })
    }
}
