//! SendMessage: a word to another agent. Takes whom and what; one that works hears it at its next step, one
//! that has ended goes on with it in the background.

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{AgentId, Block, Intent, ToolContent, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::session_port::Sent;

const NAME: &str = "SendMessage";
const DESCRIPTION: &str = "Tells another agent something, by its id. An agent that is at work hears it at its \
    next step. One that has ended goes on with its own conversation and this message, in the background, and \
    you are told when it ends again.";

pub struct SendMessage {
    spec: ToolSpec,
}

impl Default for SendMessage {
    fn default() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "minLength": 1, "maxLength": 300},
                "message": {"type": "string", "minLength": 1},
                "summary": {"type": "string"}
            },
            "required": ["to", "message"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, DESCRIPTION, schema) }
    }
}

#[derive(Deserialize)]
struct Input {
    to: String,
    message: String,
}

impl Tool for SendMessage {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        Ok(Intent::titled(format!("message to {}", input.to)))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match typed::parse::<Input>(&self.spec, &input) {
                Ok(input) => send(cx, input).await,
                Err(error) => error.into(),
            }
        })
    }
}

async fn send(cx: &ToolContext, input: Input) -> ToolOutput {
    let Some(caller) = caller(cx) else { return ToolOutput::error(NO_SESSION) };
    let Ok(to) = input.to.parse::<AgentId>() else {
        return ToolOutput::usage_error(format!("No agent found with ID: {}", input.to));
    };
    let run = &caller.run;
    match run.session.mail(run.clone(), to.clone(), input.message).await {
        Some(Ok(sent)) => told(&to, sent),
        Some(Err(reason)) => ToolOutput::usage_error(reason),
        None => ToolOutput::error(NO_SESSION),
    }
}

fn told(to: &AgentId, sent: Sent) -> ToolOutput {
    let message = match sent {
        Sent::Delivered => format!("Agent {to} is at work and will read this at its next step."),
        Sent::Resumed { tells_sender: true } => format!(
            "Agent {to} had ended; it was resumed with this message in the background. You are notified when it ends."
        ),
        Sent::Resumed { tells_sender: false } => format!(
            "Agent {to} had ended; it was resumed with this message in the background. The agent that started it \
             is notified when it ends; ask it to write to you if you need its answer."
        ),
    };
    let mut value = json!({"success": true, "message": message});
    if sent != Sent::Delivered {
        value["resumedAgentId"] = json!(to);
    }
    let content = ToolContent::Blocks(vec![Block::text(value.to_string())]);
    ToolOutput { content, ..ToolOutput::text("") }.with_structured(value)
}
