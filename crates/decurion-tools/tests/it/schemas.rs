//! The inputs are those of the ecosystem, name by name and type by type.

use serde_json::{Map, Value, json};

use crate::stage::Stage;

#[test]
fn schemas_are_those_that_models_and_programs_know() {
    let expected: Map<String, Value> = serde_json::from_str(include_str!("schemas.json")).unwrap();
    let stage = Stage::new();
    for (name, schema) in &expected {
        let spec = stage.set.get(name).unwrap().spec();
        assert_eq!(&without_descriptions(&spec.input_schema), schema, "{name}");
    }
}

/// Every tool, told with few words: small models pay for each.
#[test]
fn descriptions_are_short_and_there() {
    let stage = Stage::new();
    for tool in stage.set.iter() {
        let spec = tool.spec();
        assert!((40..800).contains(&spec.description.len()), "{}: {}", spec.name, spec.description.len());
        assert_eq!(spec.description.trim(), spec.description);
    }
}

#[test]
fn the_tools_are_in_the_order_shown() {
    let stage = Stage::new();
    let names: Vec<&str> = stage.set.names().collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(names, sorted);
    for name in ["Edit", "Glob", "Grep", "NotebookEdit", "Read", "TodoWrite", "WebFetch", "Write"] {
        assert!(names.contains(&name), "{name}");
    }
}

/// A malformed input is refused in the same words before and while running, and nothing happens.
#[tokio::test]
async fn malformed_inputs_are_refused_alike_by_intent_and_run() {
    let cases = [
        ("Read", json!({}), "`file_path` is missing"),
        ("Read", json!({"file_path": "a", "ofset": 1}), "`ofset` is not a field here"),
        ("Read", json!({"file_path": "a", "limit": 0}), "`limit` must be more than 0"),
        ("Read", json!({"file_path": ""}), "`file_path` is empty"),
        ("Read", json!({"file_path": "a\0b"}), "`file_path` has a NUL"),
        ("Read", json!("a"), "the input must be an object, got a string"),
        ("Write", json!({"file_path": "a"}), "`content` is missing"),
        (
            "Write",
            json!({"file_path": "a", "content": {"a": 1}}),
            "`content` must be a string, got an object",
        ),
        ("Edit", json!({"file_path": "a", "old_string": "x", "new_string": "x"}), "nothing would change"),
        (
            "Edit",
            json!({"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": "yes"}),
            "`replace_all`",
        ),
        ("Glob", json!({"pattern": ""}), "`pattern` is empty"),
        ("Glob", json!({"pattern": "a[", "path": "."}), "`pattern` is not a glob"),
        ("Glob", json!({"pattern": "*/../x"}), "`pattern` goes up"),
        ("Grep", json!({"pattern": "("}), "`pattern` is not a regular expression"),
        ("Grep", json!({"pattern": "a\\nb"}), "set `multiline`"),
        ("Grep", json!({"pattern": "a", "-A": 1.5}), "`-A` must be a whole number"),
        ("Grep", json!({"pattern": "a", "-A": -1}), "`-A` must be a whole number"),
        ("Grep", json!({"pattern": "a", "-C": 1, "context": 2}), "`-C` and `context`"),
        ("Grep", json!({"pattern": "a", "output_mode": "all"}), "`output_mode` must be one of"),
        ("WebFetch", json!({"url": "ftp://a.org", "prompt": "p"}), "`url` must begin with https"),
        (
            "TodoWrite",
            json!({"todos": [{"content": "", "status": "done", "activeForm": "x"}]}),
            "`todos[0].status`",
        ),
        ("NotebookEdit", json!({"notebook_path": "a.txt", "new_source": ""}), ".ipynb"),
        ("NotebookEdit", json!({"notebook_path": "a.ipynb", "new_source": ""}), "`cell_id` is missing"),
        (
            "NotebookEdit",
            json!({"notebook_path": "a.ipynb", "new_source": "", "edit_mode": "insert"}),
            "`cell_type` is missing",
        ),
    ];
    let mut stage = Stage::new();
    for (tool, input, expected) in cases {
        let before = stage.intent(tool, &input).unwrap_err();
        assert!(before.contains(expected), "{before}");
        assert!(
            before.starts_with(&format!(
                "InputValidationError: {tool} failed due to the following issue(s):\n"
            ))
        );
        let text = stage.fails(tool, input).await;
        assert_eq!(text, format!("<tool_use_error>{before}</tool_use_error>"));
    }
    assert_eq!(stage.everything().len(), 1);
}

#[tokio::test]
async fn todos_become_the_runs_state() {
    let mut stage = Stage::new();
    let todos = json!([
        {"content": "a", "status": "completed", "activeForm": "doing a"},
        {"content": "b", "status": "in_progress", "activeForm": "doing b"},
    ]);
    assert_eq!(stage.intent("TodoWrite", &json!({"todos": todos})).unwrap().title, "Todos 1/2");
    let output = stage.run("TodoWrite", json!({"todos": todos})).await;
    assert_eq!(output.content.text(), "The list is kept: 1 of 2 done.");
    assert_eq!(output.structured.unwrap(), json!({"newTodos": todos}));
    assert_eq!(serde_json::to_value(&output.effects).unwrap(), json!([{"effect": "todos", "todos": todos}]));
}

fn without_descriptions(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => Value::Object(
            members
                .iter()
                // A property may be called so; the word of the schema is always text.
                .filter(|(name, value)| *name != "description" || !value.is_string())
                .map(|(name, value)| (name.clone(), without_descriptions(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_descriptions).collect()),
        other => other.clone(),
    }
}
