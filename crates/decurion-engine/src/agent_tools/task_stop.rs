//! TaskStop: the end of a background task, and of everything below it. Takes its id, gives what was stopped.

use std::time::Duration;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Delivery, Intent, TaskId, TaskKind, ToolEffect, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::session_port::Looked;

const NAME: &str = "TaskStop";
const DESCRIPTION: &str =
    "Stops a background task by its id: a command with all its processes, or an agent with all it started.";
/// How long a task is given to be over before it is said to be stopping.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct TaskStop {
    spec: ToolSpec,
}

impl Default for TaskStop {
    fn default() -> Self {
        let schema = json!({
            "type": "object",
            "properties": {"task_id": {"type": "string", "minLength": 1}},
            "required": ["task_id"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, DESCRIPTION, schema) }
    }
}

#[derive(Deserialize)]
struct Input {
    task_id: String,
}

impl Tool for TaskStop {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        Ok(Intent::titled(format!("stop {}", input.task_id)))
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match typed::parse::<Input>(&self.spec, &input) {
                Ok(input) => stop(cx, &input.task_id).await,
                Err(error) => error.into(),
            }
        })
    }
}

async fn stop(cx: &ToolContext, id: &str) -> ToolOutput {
    let Some(caller) = caller(cx) else { return ToolOutput::error(NO_SESSION) };
    let run = &caller.run;
    let unknown = || ToolOutput::usage_error(format!("No task found with ID: {id}"));
    let Ok(task) = id.parse::<TaskId>() else { return unknown() };
    let by = format!("TaskStop of {}", run.lineage.path);
    let mut looked = match run.session.stop(task, by).await {
        Some(Ok(looked)) => looked,
        Some(Err(reason)) => return ToolOutput::usage_error(reason),
        None => return ToolOutput::error(NO_SESSION),
    };
    let over = ended(cx, &mut looked).await;
    let record = &looked.record;
    let message = if over { "The task is stopped." } else { "The task is being stopped." };
    let command = if record.kind == TaskKind::LocalBash { &record.prompt } else { &record.description };
    let value = json!({"message": message, "task_id": record.task, "task_type": record.kind.word(), "command": command});
    let mut output = ToolOutput::text(value.to_string()).with_structured(value);
    // Whoever stops a shell knows that it ended; what an agent had by then is still worth telling.
    let ending = looked.view.borrow().ending.clone();
    if let (TaskKind::LocalBash, Some(ending)) = (record.kind, ending)
        && record.parent == run.who.agent
    {
        let delivery = Delivery::Ending(ending.id.clone());
        if run.session.claim(delivery.clone()).await == Some(true) {
            output = output.with_effect(ToolEffect::Delivered { delivery });
        }
    }
    output
}

async fn ended(cx: &ToolContext, looked: &mut Looked) -> bool {
    let ended = async { looked.view.wait_for(|view| view.state.is_ended()).await.is_ok() };
    tokio::select! {
        biased;
        ended = ended => ended,
        () = cx.cancel.cancelled() => false,
        () = tokio::time::sleep(PATIENCE) => false,
    }
}
