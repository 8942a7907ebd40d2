//! TodoWrite: the run's own list of steps. Takes the whole list, gives it back as an effect; the run keeps
//! it and shows it.

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, ToolEffect, ToolOutput};
use serde_json::{Value, json};

use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};

const NAME: &str = "TodoWrite";

#[derive(Debug)]
pub struct TodoWrite {
    spec: ToolSpec,
}

impl Default for TodoWrite {
    fn default() -> Self {
        let input_schema = json!({
            "type": "object",
            "properties": {
                "todos": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "content": {"type": "string", "minLength": 1},
                            "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                            "activeForm": {"type": "string", "minLength": 1}
                        },
                        "required": ["content", "status", "activeForm"],
                        "additionalProperties": false
                    }
                }
            },
            "required": ["todos"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, include_str!("todo.md"), input_schema) }
    }
}

impl Tool for TodoWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        typed::check(&self.spec, input)?;
        let (done, all) = counts(input);
        // Two lists written by one message must end as the later one says, so it runs alone.
        Ok(Intent::titled(format!("Todos {done}/{all}")))
    }

    fn run<'a>(&'a self, _cx: &'a ToolContext, mut input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            if let Err(error) = typed::check(&self.spec, &input) {
                return error.into();
            }
            let (done, all) = counts(&input);
            let todos = input.get_mut("todos").map(Value::take).unwrap_or_default();
            ToolOutput::text(format!("The list is kept: {done} of {all} done."))
                .with_structured(json!({"newTodos": todos}))
                .with_effect(ToolEffect::Todos { todos })
        })
    }
}

/// How many are done, and how many there are.
fn counts(input: &Value) -> (usize, usize) {
    let todos = input.get("todos").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let done = todos.iter().filter(|todo| todo.get("status") == Some(&json!("completed"))).count();
    (done, todos.len())
}
