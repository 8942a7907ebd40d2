//! Calls as they are told once they are over: what was read.

use serde_json::{Value, json};

use crate::screens::{Happens, app};

/// What stands in the conversation after these events.
fn told(events: &[Happens]) -> String {
    app(events, (80, 24)).finished().iter().map(|line| format!("{line}\n")).collect()
}

fn ended(call: &str, tool: &str, output: &Value) -> Happens {
    let line = uuid::Uuid::nil();
    let event = json!({"type": "call_ended", "call": call, "tool": tool, "line": line, "parent": null,
        "output": output, "duration_ms": 5});
    (None, event)
}

#[test]
fn a_file_has_as_many_lines_as_people_count() {
    for (content, words) in [("a\nb\n", "2 lines"), ("a\nb", "2 lines"), ("a\n", "1 line"), ("", "0 lines")] {
        let file = json!({"filePath": "/w/f", "content": content, "numLines": 3});
        let output = json!({"content": "1\ta\n2\tb\n3\t", "structured": {"type": "text", "file": file}});
        let told = told(&[ended("c1", "Read", &output)]);
        assert!(told.ends_with(&format!("└ {words}\n")), "{content:?}: {told}");
    }
}
