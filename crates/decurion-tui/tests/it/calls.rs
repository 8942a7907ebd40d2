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
        told.lines().filter(|line| line.starts_with('✗')).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        ✗ refused: Bash something
        ✗ refused: $ rm -r /
        ✗ refused: Write /etc/passwd
        ✗ refused: Mystery
    "#]]
    .assert_eq(&titles);
}

#[test]
fn background_work_that_ended_is_named_before_the_model_speaks_of_it() {
    let record = |task: &str, kind: &str, agent: Option<&str>, description: &str| {
        (
            None,
            json!({"type": "task_opened", "record": {"task": task, "kind": kind, "description": description,
                "prompt": "p", "parent": null, "depth": 1, "attention": "background", "output_file": "/x",
                "agent_type": agent}}),
        )
    };
    let ended = |task: &str, outcome: Value| {
        let mut state = outcome;
        state["state"] = json!("ended");
        (None, json!({"type": "task_changed", "task": task, "state": state}))
    };
    let told = |tasks: &[&str]| {
        let delivers: Vec<Value> = tasks.iter().map(|task| json!({"ending": {"task": task}})).collect();
        let text = "<task-notification>\n<task-id>a1</task-id>\n</task-notification>";
        (
            None,
            json!({"type": "message", "lines": [uuid::Uuid::nil()], "parent": null,
                "message": {"role": "user", "content": text},
                "meta": {"origin": {"note": "notification"}, "delivers": delivers}}),
        )
    };
    let report = "## Findings\n\nTwo callers use it. Both are old.";
    let events = [
        record("a1", "local_agent", Some("Explore"), "find the callers"),
        record("b2", "local_bash", None, "npm test"),
        record("a3", "local_agent", Some("Plan"), "think"),
        ended("a1", json!({"outcome": "completed", "report": report})),
        ended("b2", json!({"outcome": "failed", "error": "exit code 1"})),
        told(&["a1", "b2"]),
        ended("a3", json!({"outcome": "killed", "by": "a person"})),
        told(&["a3"]),
    ];
    expect![[r#"

        ✓ Explore · find the callers finished · 3s
          └ Two callers use it.

        ✗ $ npm test failed · 3s
          └ exit code 1

        ■ Plan · think stopped · 4s
    "#]]
    .assert_eq(&self::told(&events));
}

#[test]
fn results_are_told_to_people_without_what_only_the_model_has_to_know() {
    let agent = json!({"content": [{"type": "text", "text": "# Report\n\nIt works. All of it."},
        {"type": "text", "text": "agentId: a1 (for `resume`)"}], "structured": {"status": "completed",
        "content": [{"type": "text", "text": "# Report\n\nIt works. All of it."}], "totalToolUseCount": 3,
        "totalTokens": 5200, "totalDurationMs": 12_400}});
    let launched =
        json!({"content": "agentId: a2", "structured": {"isAsync": true, "status": "async_launched"}});
    let command = json!({"content": "The command runs. ID: b1", "structured": {"backgroundTaskId": "b1"}});
    let wrong = json!({"content": "<tool_use_error>File not found</tool_use_error>", "is_error": true});
    let declined = "Permission denied: The user does not want this call, and wants you to stop and wait.";
    let declined = json!({"content": declined, "is_error": true});
    let events = [
        ended("c1", "Agent", &agent),
        ended("c2", "Agent", &launched),
        ended("c3", "Bash", &command),
        ended("c4", "Read", &wrong),
        ended("c5", "Edit", &declined),
    ];
    expect![[r#"

        ● Agent
          └ 3 tools · 5.2k tok · 12s — It works.

        ● Agent
          └ running in the background

        ● Bash
          └ running in the background

        ✗ Read
          └ File not found

        ✗ Edit
          └ you declined
    "#]]
    .assert_eq(&told(&events));
}

#[test]
fn a_command_that_was_interrupted_keeps_the_end_of_its_output() {
    let begun = json!({"type": "call_started", "call": "c1", "tool": "Bash",
        "intent": decurion_protocol::Intent::titled("$ make all"),
        "decision": {"decision": "allow", "rule": null, "reason": "r"}});
    let output = json!({"content": "Interrupted: for the model", "is_error": true,
        "structured": {"stdout": "tick 1\ntick 2\ntick 3\ntick 4\ntick 5", "interrupted": true}});
    // Whoever closes it for the command does not say which tool it was.
    let ended = json!({"type": "run_ended", "outcome": {"outcome": "killed", "by": "an interrupt"},
        "totals": decurion_protocol::Totals::default()});
    let unknown =
        json!({"content": format!("{} Look.", decurion_protocol::output::CUT_OFF), "is_error": true});
    let events =
        [(None, begun), self::ended("c1", "", &output), self::ended("c2", "", &unknown), (None, ended)];
    expect![[r#"

        ■ $ make all
          └ interrupted · … 2 lines above (ctrl+o to see)
            tick 3
            tick 4
            tick 5

        ✗ 
          └ Interrupted before it finished; it may have partly run.

        · Interrupted.
    "#]]
    .assert_eq(&told(&events));
}

#[test]
fn a_plan_stays_readable_after_yes_and_after_no() {
    let plan = "# Move to SQLite\n\n1. change `db.rs`\n2. **test** it";
    let agreed =
        json!({"content": "The user agreed to the plan. Do the work now.", "structured": {"plan": plan}});
    let no = |reason: &str| {
        let event = json!({"type": "call_refused", "call": "p1", "tool": "ExitPlanMode", "input": {"plan": plan},
            "decision": {"decision": "deny", "rule": null, "reason": reason}});
        let output = json!({"content": "The plan was not agreed to", "is_error": true});
        [(None, event), ended("p1", "ExitPlanMode", &output)]
    };
    let mut events = vec![ended("p0", "ExitPlanMode", &agreed)];
    events.extend(no("keep the old files"));
    events.extend(no("the user refused this call"));
    expect![[r#"

        ● Plan approved

          Move to SQLite

          1. change db.rs
          2. test it

        ✗ Plan rejected

          Move to SQLite

          1. change db.rs
          2. test it

          └ keep the old files

        ✗ Plan rejected

          Move to SQLite

          1. change db.rs
          2. test it
    "#]]
    .assert_eq(&told(&events));
}

#[test]
fn what_tools_say_to_the_model_is_not_what_people_read() {
    let text = |text: &str, structured: Value| json!({"content": text, "structured": structured});
    let sent = json!({"success": true, "message": "Agent a1 is at work"});
    let asked =
        json!({"answers": {"Which colour?": "red, blue", "How many?": "4", "Why?": "so", "When?": "now"}});
    let looked = json!({"retrieval_status": "success",
        "task": {"description": "npm test", "status": "completed", "output": "ok\n"}});
    let edit = json!({"content": "<tool_use_error>not there: src/x.rs</tool_use_error>\n[Commands have a /tmp.]",
        "is_error": true});
    let failed =
        json!({"content": "The agent failed: no model\nagentId: a1\nIts transcript: /x", "is_error": true});
    let wanted = json!({"type": "message", "lines": [uuid::Uuid::nil()], "parent": null,
        "message": {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c6", "name": "Edit", "input": {"file_path": "src/x.rs"}}]},
        "meta": {"origin": "model"}});
    let chosen = "What the user chose:\n- Which colour?\n  red, blue\n  They add: not too dark";
    let events = [
        ended("c1", "SendMessage", &text("{\"success\":true}", sent)),
        ended("c2", "AskUserQuestion", &text(chosen, asked)),
        ended("c3", "TaskOutput", &text("<retrieval_status>success</retrieval_status>", looked)),
        ended("c4", "TaskStop", &text("{\"task_id\":\"b1\"}", json!({"message": "The task is stopped."}))),
        ended("c5", "Skill", &json!({"content": "Follow the skill x now."})),
        (None, wanted),
        ended("c6", "Edit", &edit),
        ended("c7", "Agent", &failed),
        ended("c8", "EnterPlanMode", &json!({"content": "You are planning now"})),
    ];
    expect![[r#"

        ● SendMessage
          └ delivered

        ● AskUserQuestion
          └ - Which colour?
              red, blue
              They add: not too dark

        ● TaskOutput
          └ npm test: completed
            ok

        ● TaskStop
          └ stopped

        ● Skill
          └ instructions read

        ✗ Edit src/x.rs
          └ not there: src/x.rs
            [Commands have a /tmp.]

        ✗ Agent
          └ The agent failed: no model

        ● EnterPlanMode
          └ nothing is changed until you agree to a plan
    "#]]
    .assert_eq(&told(&events));
}
