//! Sub-agents and background commands on the stream of the real program: every line as the schema says, in the
//! order that programs made for that stream expect, and nothing left running.

use decurion_testkit::stream_schema::check_line;
use expect_test::{Expect, expect};
use serde_json::Value;

use crate::stand::{Stand, finished, result, stream};

const FOREGROUND: &str = r#"
when first="look for it" turn=1
  call Bash {"command": "echo here", "description": "look"}
when first="look for it" turn=2
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "general-purpose", "run_in_background": false}
when turn=2
  say "done"
"#;

const BACKGROUND: &str = r#"
when first="look for it"
  delay 2s
  say "found it"
when turn=1
  call Agent {"description": "look", "prompt": "look for it", "subagent_type": "general-purpose", "run_in_background": true}
when turn=2
  say "started"
when turn=3
  say "it is found"
"#;

const SHELL: &str = r#"
when turn=1
  call Bash {"command": "sleep 2; echo tick; exit 3", "description": "ticker", "run_in_background": true}
when turn=2
  say "idle now"
when turn=3
  say "it failed"
"#;

/// The kinds of lines in order, with what tells them apart.
fn told(lines: &[Value]) -> String {
    let line = |line: &Value| {
        let word = |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let whose = if line["parent_tool_use_id"].is_string() { "agent's " } else { "" };
        let more = match word("/subtype") {
            "task_started" => format!(" {} background={}", word("/task_type"), line["is_backgrounded"]),
            "task_progress" => format!(" {:?} {}", word("/description"), line["usage"]["tool_uses"]),
            "task_updated" => format!(" {}", word("/patch/status")),
            "task_notification" => format!(" {} {:?}", word("/status"), word("/summary")),
            "background_tasks_changed" => format!(" {}", line["tasks"].as_array().unwrap().len()),
            _ if word("/type") == "result" => format!(" {:?} {}", word("/result"), word("/origin/kind")),
            _ => format!(" {}", word("/message/content/0/type")),
        };
        let kind = [word("/type"), word("/subtype")].join(" ");
        format!("{whose}{}{}\n", kind.trim(), more.trim_end())
    };
    lines.iter().map(line).collect()
}

fn check(script: &str, expected: &Expect) {
    let stand = Stand::new(script);
    let flags = ["-p", "go", "--allowedTools", "Bash", "--allowedTools", "Agent"];
    let program = stand.decurion().args(flags).args(["--output-format", "stream-json", "--verbose"]);
    let run = finished(program);
    assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{run:?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
    for line in &run.lines {
        check_line(line).unwrap_or_else(|reason| panic!("{reason}\n{line}"));
    }
    expected.assert_eq(&told(&stream(&run)));
    assert!(stand.home.processes().is_empty());
    // The other formats have every answer, too.
    let results: Vec<Value> = stream(&run).into_iter().filter(|line| line["type"] == "result").collect();
    let answers: Vec<&str> = results.iter().map(|line| line["result"].as_str().unwrap()).collect();
    let text = Stand::new(script);
    let text = finished(text.decurion().args(flags));
    assert_eq!(text.output(), answers.join("\n\n"));
    let json = Stand::new(script);
    let json = finished(json.decurion().args(flags).args(["--output-format", "json"]));
    assert_eq!((json.lines.len(), &result(&json)["result"]), (1, &result(&run)["result"]));
    assert_eq!(result(&json)["results"], serde_json::json!(answers));
}

#[test]
fn a_foreground_agent() {
    check(
        FOREGROUND,
        &expect![[r#"
        system init
        assistant tool_use
        system task_started local_agent background=false
        agent's user text
        agent's assistant tool_use
        system task_progress "Running look" 1
        agent's user tool_result
        system task_updated completed
        system task_notification completed "found it"
        user tool_result
        assistant text
        result success "done"
    "#]],
    );
}

#[test]
fn a_background_agent() {
    check(
        BACKGROUND,
        &expect![[r#"
        system init
        assistant tool_use
        system background_tasks_changed 1
        system task_started local_agent background=true
        agent's user text
        user tool_result
        assistant text
        agent's assistant text
        system task_updated completed
        system task_notification completed "found it"
        system background_tasks_changed 0
        system init
        assistant text
        result success "started"
        result success "it is found" task-notification
    "#]],
    );
}

#[test]
fn a_background_command() {
    check(
        SHELL,
        &expect![[r#"
        system init
        assistant tool_use
        system background_tasks_changed 1
        system task_started local_bash background=true
        user tool_result
        assistant text
        system task_updated failed
        system task_notification failed "Background command \"ticker\" failed with exit code 3"
        system background_tasks_changed 0
        system init
        assistant text
        result success "idle now"
        result success "it failed" task-notification
    "#]],
    );
}
