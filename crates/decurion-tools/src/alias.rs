//! Other names for tools and for fields of their inputs. Takes a call as a model wrote it, gives it in the
//! words of the tool that answers it. One table, applied once, before anything is validated.
//!
//! The names are those that models, rules, hooks and agent files of earlier times still use. They are
//! understood, but not offered.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::InputError;

/// A call in the words of the tool that answers it.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved<'a> {
    /// The tool's own name.
    pub tool: &'a str,
    /// The input with its own fields.
    pub input: Cow<'a, Value>,
}

/// The name of the tool that answers to this one; the same where it is nobody's alias.
pub fn tool(called: &str) -> &str {
    TOOLS.iter().find(|alias| alias.called == called).map_or(called, |alias| alias.tool)
}

/// Whether a name is an alias.
pub fn is_alias(called: &str) -> bool {
    TOOLS.iter().any(|alias| alias.called == called)
}

/// Puts a call into the words of its tool. Two spellings of one field that disagree are an error.
pub fn resolve<'a>(called: &'a str, input: &'a Value) -> Result<Resolved<'a>, InputError> {
    let name = tool(called);
    let renamed = FIELDS.iter().filter(|field| field.called == called || field.called == name);
    let defaults = DEFAULTS.iter().filter(|(alias, ..)| *alias == called);
    let Value::Object(members) = input else {
        return Ok(Resolved { tool: name, input: Cow::Borrowed(input) });
    };
    let mut changed: Option<Map<String, Value>> = None;
    for field in renamed {
        let now = changed.as_ref().unwrap_or(members);
        let Some(value) = now.get(field.from) else { continue };
        let value = field.convert(called, value)?;
        if now.get(field.to).is_some_and(|other| *other != value) {
            let issue = format!("`{}` and `{}` mean the same and disagree; give one", field.from, field.to);
            return Err(InputError::new(called, issue));
        }
        let members = changed.get_or_insert_with(|| members.clone());
        members.shift_remove(field.from);
        members.insert(field.to.to_owned(), value);
    }
    for (_, field, value) in defaults {
        if !changed.as_ref().unwrap_or(members).contains_key(*field) {
            changed.get_or_insert_with(|| members.clone()).insert((*field).to_owned(), value.json());
        }
    }
    let input = changed.map_or(Cow::Borrowed(input), |members| Cow::Owned(Value::Object(members)));
    Ok(Resolved { tool: name, input })
}

struct ToolAlias {
    called: &'static str,
    tool: &'static str,
}

/// A field by another name, under a tool's own name or an alias of it.
struct FieldAlias {
    called: &'static str,
    from: &'static str,
    to: &'static str,
    unit: Unit,
}

/// How a field's value changes with its name.
#[derive(PartialEq)]
enum Unit {
    Same,
    SecondsToMilliseconds,
}

/// A value that an alias implies where its caller says nothing.
enum Implied {
    Flag(bool),
    Number(u64),
}

const TOOLS: &[ToolAlias] = &[
    ToolAlias { called: "Task", tool: "Agent" },
    ToolAlias { called: "AgentOutput", tool: "TaskOutput" },
    ToolAlias { called: "AgentOutputTool", tool: "TaskOutput" },
    ToolAlias { called: "BashOutput", tool: "TaskOutput" },
    ToolAlias { called: "KillShell", tool: "TaskStop" },
];

const FIELDS: &[FieldAlias] = &[
    FieldAlias { called: "Agent", from: "background", to: "run_in_background", unit: Unit::Same },
    FieldAlias { called: "AgentOutput", from: "agentId", to: "task_id", unit: Unit::Same },
    FieldAlias {
        called: "AgentOutput",
        from: "wait_up_to",
        to: "timeout",
        unit: Unit::SecondsToMilliseconds,
    },
    FieldAlias { called: "AgentOutputTool", from: "agentId", to: "task_id", unit: Unit::Same },
    FieldAlias {
        called: "AgentOutputTool",
        from: "wait_up_to",
        to: "timeout",
        unit: Unit::SecondsToMilliseconds,
    },
    FieldAlias { called: "BashOutput", from: "bash_id", to: "task_id", unit: Unit::Same },
    FieldAlias { called: "TaskStop", from: "shell_id", to: "task_id", unit: Unit::Same },
];

const DEFAULTS: &[(&str, &str, Implied)] = &[
    ("AgentOutput", "timeout", Implied::Number(150_000)),
    ("AgentOutputTool", "timeout", Implied::Number(150_000)),
    // It only ever looked, it never waited.
    ("BashOutput", "block", Implied::Flag(false)),
];

impl FieldAlias {
    fn convert(&self, called: &str, value: &Value) -> Result<Value, InputError> {
        if self.unit == Unit::Same {
            return Ok(value.clone());
        }
        let seconds = value.as_f64().filter(|seconds| (0.0..=300.0).contains(seconds)).ok_or_else(|| {
            InputError::new(called, format!("`{}` must be a number from 0 to 300, got {value}", self.from))
        })?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let milliseconds = (seconds * 1000.0).round() as u64;
        Ok(json!(milliseconds))
    }
}

impl Implied {
    fn json(&self) -> Value {
        match self {
            Self::Flag(flag) => json!(flag),
            Self::Number(number) => json!(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_put_into_the_words_of_their_tool() {
        let cases = [
            ("Read", json!({"file_path": "a"}), "Read", json!({"file_path": "a"})),
            (
                "Task",
                json!({"prompt": "p", "background": true}),
                "Agent",
                json!({"prompt": "p", "run_in_background": true}),
            ),
            ("Agent", json!({"background": false}), "Agent", json!({"run_in_background": false})),
            (
                "Agent",
                json!({"background": true, "run_in_background": true}),
                "Agent",
                json!({"run_in_background": true}),
            ),
            (
                "Agent",
                json!({"effort": "low", "max_turns": 3}),
                "Agent",
                json!({"effort": "low", "max_turns": 3}),
            ),
            (
                "AgentOutput",
                json!({"agentId": "a1", "wait_up_to": 2}),
                "TaskOutput",
                json!({"task_id": "a1", "timeout": 2000}),
            ),
            (
                "AgentOutputTool",
                json!({"agentId": "a1"}),
                "TaskOutput",
                json!({"task_id": "a1", "timeout": 150_000}),
            ),
            (
                "BashOutput",
                json!({"bash_id": "b1", "filter": "x"}),
                "TaskOutput",
                json!({"filter": "x", "task_id": "b1", "block": false}),
            ),
            ("KillShell", json!({"shell_id": "b1"}), "TaskStop", json!({"task_id": "b1"})),
            ("TaskStop", json!({"shell_id": "b1"}), "TaskStop", json!({"task_id": "b1"})),
            ("Task", json!("text"), "Agent", json!("text")),
        ];
        for (called, input, tool, expected) in cases {
            let resolved = resolve(called, &input).unwrap();
            assert_eq!((resolved.tool, resolved.input.as_ref()), (tool, &expected), "{called} {input}");
        }
    }

    #[test]
    fn contradictions_and_bad_units_name_the_field() {
        let cases = [
            ("Task", json!({"background": true, "run_in_background": false}), "`background`"),
            ("TaskStop", json!({"shell_id": "a", "task_id": "b"}), "`shell_id`"),
            ("AgentOutput", json!({"agentId": "a", "wait_up_to": 301}), "`wait_up_to`"),
            ("AgentOutput", json!({"agentId": "a", "wait_up_to": -1}), "`wait_up_to`"),
            ("AgentOutput", json!({"agentId": "a", "wait_up_to": "5"}), "`wait_up_to`"),
        ];
        for (called, input, field) in cases {
            let error = resolve(called, &input).unwrap_err().to_string();
            assert!(error.contains(field) && error.contains(called), "{error}");
        }
    }

    #[test]
    fn an_input_without_aliases_is_not_copied() {
        let input = json!({"file_path": "a"});
        assert!(matches!(resolve("Read", &input).unwrap().input, Cow::Borrowed(_)));
    }
}
