//! An answer in a given shape. Takes a JSON Schema, gives a tool the model must call to end the run with an
//! input that satisfies it.

use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{CallId, Intent, ToolOutput};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec};
use serde_json::Value;

use crate::bench::Call;

pub use crate::child::REPORT_TOOL as NAME;
/// What the model is told when it ends without calling it.
pub const NUDGE: &str = "Give your final answer now by calling the StructuredOutput tool once, with an input \
    that satisfies its schema.";

/// How often an answer may fail to come in its shape: a call that does not satisfy the schema, or none at all.
pub const MOST_TRIES: u32 = 5;

/// The tool that takes the final answer.
pub struct StructuredOutput {
    spec: ToolSpec,
    check: Arc<jsonschema::Validator>,
}

impl StructuredOutput {
    /// A tool for this schema; the error says what is wrong with the schema.
    pub fn new(schema: &Value) -> Result<Self, String> {
        if schema.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "object") {
            return Err("the schema of an answer must be of type object".to_owned());
        }
        let check = jsonschema::validator_for(schema)
            .map_err(|error| format!("not a usable JSON Schema: {error} at {}", error.instance_path()))?;
        let mut input_schema = schema.clone();
        if let Value::Object(members) = &mut input_schema {
            members.entry("type").or_insert_with(|| Value::from("object"));
        }
        let spec = ToolSpec {
            name: NAME.to_owned(),
            description: "Gives your final answer in the required shape and ends the work. Call it once, \
                when you are done, instead of answering in text."
                .to_owned(),
            input_schema,
        };
        Ok(Self { spec, check: Arc::new(check) })
    }

    fn issues(&self, input: &Value) -> Vec<String> {
        self.check
            .iter_errors(input)
            .take(8)
            .map(|error| match error.instance_path().to_string().as_str() {
                "" => error.to_string(),
                path => format!("{path}: {error}"),
            })
            .collect()
    }
}

impl Tool for StructuredOutput {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let issues = self.issues(input);
        if issues.is_empty() {
            Ok(Intent::titled("Answer").together())
        } else {
            Err(InputError { tool: NAME.to_owned(), issues })
        }
    }

    fn run<'a>(&'a self, _cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async { ToolOutput::text("The answer was taken.") })
    }
}

/// The final answers among these calls, last first.
pub fn answers(calls: &[Call]) -> Vec<(CallId, Value)> {
    let answers = calls.iter().rev().filter(|call| call.name == NAME);
    answers.map(|call| (call.id.clone(), call.input.clone())).collect()
}

/// The first of these answers that was taken, as it was taken: one that a rule, a hook or a person refused is none, and
/// whatever they made of it is what counts.
pub fn accepted(answers: Vec<(CallId, Value)>, taken: &[(CallId, Option<Value>)]) -> Option<Value> {
    answers.into_iter().find_map(|(call, input)| {
        let (_, changed) = taken.iter().find(|(known, _)| *known == call)?;
        Some(changed.clone().unwrap_or(input))
    })
}
