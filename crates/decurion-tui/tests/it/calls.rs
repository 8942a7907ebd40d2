//! Calls as they are told once they are over: what was read, and what was refused.

use expect_test::expect;
use serde_json::{Value, json};

use crate::screens::{Happens, app, asked};

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

fn refused(call: &str, tool: &str, input: &Value) -> [Happens; 2] {
    let decision = json!({"decision": "deny", "rule": null, "reason": "r"});
    let event =
        json!({"type": "call_refused", "call": call, "tool": tool, "input": input, "decision": decision});
    let output = json!({"content": "You may not.", "is_error": true});
    [(None, event), ended(call, tool, &output)]
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

#[test]
fn what_is_refused_says_what_it_was() {
    // Asked about, and so looked at: it has the title that it would have had.
    let mut events = asked(None, &[], "Bash", &json!({"command": "make all"}), &[]);
    let (_, question) = events.last().unwrap();
    let call = question["question"]["call"].as_str().unwrap().to_owned();
    events.extend(refused(&call, "Bash", &json!({"command": "make all"})));
    for (at, (tool, input)) in [
        ("Bash", json!({"command": "rm -r /"})),
        ("Write", json!({"file_path": "/etc/passwd", "content": "x"})),
        ("Mystery", json!({})),
    ]
    .iter()
    .enumerate()
    {
        events.extend(refused(&format!("r{at}"), tool, input));
    }
    let told = told(&events);
    let titles: String =
        told.lines().filter(|line| line.starts_with('●')).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        ● refused: Bash something
        ● refused: $ rm -r /
        ● refused: Write /etc/passwd
        ● refused: Mystery
    "#]]
    .assert_eq(&titles);
}
