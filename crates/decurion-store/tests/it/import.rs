//! Transcripts of another program, in the shapes of an older and a newer version of it.

use camino::Utf8PathBuf;
use decurion_protocol::event::{Event, Origin};
use decurion_protocol::{Block, Role};
use decurion_store::{ImportContext, ImportError, Imported, Journal, Layout, SessionWriter, import};
use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::samples::{Home, date, line, read, run, session};

fn id(number: u128) -> Value {
    json!(line(number).0.to_string())
}

/// The members that every line of the chain has, with these.
fn chain(kind: &str, number: u128, parent: u128, more: &Value) -> Value {
    let parent = if parent == 0 { Value::Null } else { id(parent) };
    let mut all = json!({
        "parentUuid": parent, "isSidechain": false, "type": kind, "uuid": id(number),
        "timestamp": format!("2026-11-15T06:35:{:02}.094Z", number % 60), "userType": "external",
        "entrypoint": "sdk-cli", "cwd": "/work/theirs", "sessionId": session(5).0.to_string(),
        "version": "2.1.325", "gitBranch": "topic",
    });
    for (name, value) in more.as_object().unwrap() {
        all[name] = value.clone();
    }
    all
}

fn user(number: u128, parent: u128, text: &str) -> Value {
    chain("user", number, parent, &json!({"promptId": id(900), "message": {"role": "user", "content": text}}))
}

fn assistant(number: u128, parent: u128, message: &str, block: &Value) -> Value {
    chain(
        "assistant",
        number,
        parent,
        &json!({"requestId": "req_1", "apiBlockIndex": 0, "message": {
            "id": message, "type": "message", "role": "assistant", "model": "some-model", "content": [block],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 100, "output_tokens": 50, "service_tier": "standard"}}}),
    )
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn tool_use(call: &str) -> Value {
    json!({"type": "tool_use", "id": call, "name": "Bash", "input": {"command": call}})
}

fn result(number: u128, parent: u128, call: &str) -> Value {
    chain(
        "user",
        number,
        parent,
        &json!({"message": {"role": "user", "content": [
            {"tool_use_id": call, "type": "tool_result", "content": format!("out of {call}"), "is_error": false}]},
            "toolUseResult": {"stdout": "x"}, "sourceToolAssistantUUID": id(parent)}),
    )
}

fn attachment(number: u128, parent: u128) -> Value {
    chain("attachment", number, parent, &json!({"attachment": {"type": "environment"}, "rendered": "x"}))
}

fn with(mut line: Value, name: &str, value: impl Into<Value>) -> Value {
    line[name] = value.into();
    line
}

fn context() -> ImportContext {
    ImportContext {
        session: None,
        cwd: "/fallback".into(),
        version: "0.1.0".into(),
        entrypoint: "cli".into(),
        run: run(),
        now: date(0),
    }
}

fn write(home: &Home, lines: &[Value]) -> Utf8PathBuf {
    let folder = home.path().join(".claude/projects/-work-theirs");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{}.jsonl", session(5)));
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(&path, text.join("\n") + "\n").unwrap();
    path
}

/// A conversation in a few letters per event.
fn sketch(imported: &Imported) -> String {
    let mut out = String::new();
    for envelope in &imported.envelopes[1..] {
        let said = match &envelope.event {
            Event::Message { message, .. } => {
                let blocks = message.blocks.iter().map(|block| match block {
                    Block::Text { text } => text.clone(),
                    Block::ToolUse { id, .. } => format!("call {id}"),
                    other => format!("{other:?}"),
                });
                let who = if message.role == Role::User { "user" } else { "model" };
                format!("{who}: {}", blocks.collect::<Vec<_>>().join(" | "))
            }
            Event::CallEnded { call, tool, output, .. } => {
                format!("{tool} {call}: {}", output.content.text())
            }
            Event::Compacted { summary, trigger, tokens_before, .. } => {
                format!("compacted by {trigger} at {tokens_before}: {}", summary.text())
            }
            other => format!("{other:?}"),
        };
        out += &said;
        out.push('\n');
    }
    out
}

fn check(lines: &[Value], expected: &Expect) -> Imported {
    let home = Home::new();
    let path = write(&home, lines);
    let before = std::fs::read(&path).unwrap();
    let imported = import(&path, &context()).unwrap();
    expected.assert_eq(&sketch(&imported));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    // It can be written as it is, and read back, and the chain of parents is whole.
    let paths = Layout::new(home.state()).session(&imported.info.cwd, imported.info.session);
    SessionWriter::create(&paths, &imported.info, date(0)).unwrap().append(&imported.envelopes).unwrap();
    let (events, report) = read(&paths, decurion_store::Scope::Session);
    assert_eq!(events, imported.envelopes);
    assert!(report.is_clean());
    let written = std::fs::read_to_string(paths.transcript()).unwrap();
    let mut known = vec![Value::Null];
    for line in written.lines().skip(1) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(known.contains(&line["parentUuid"]), "{line}");
        assert!(!known.contains(&line["uuid"]), "{line}");
        known.push(line["uuid"].clone());
    }
    imported
}

#[test]
fn an_older_versions_session() {
    let lines = [
        json!({"type": "queue-operation", "operation": "enqueue", "content": "go"}),
        user(1, 0, "go"),
        assistant(2, 1, "m1", &tool_use("c1")),
        chain("progress", 3, 2, &json!({"data": {"type": "hook_progress"}})),
        result(4, 2, "c1"),
        assistant(5, 4, "m2", &text("done")),
    ];
    let imported = check(
        &lines,
        &expect![[r"
            user: go
            model: call c1
            Bash c1: out of c1
            model: done
        "]],
    );
    assert_eq!(imported.info.session, session(5));
    assert_eq!(imported.info.cwd, "/work/theirs");
    assert_eq!(imported.info.git_branch.as_deref(), Some("topic"));
    assert!(imported.info.imported_from.as_ref().unwrap().contains("-work-theirs"));
    assert_eq!(imported.report.lines, 6);
    let Event::Message { meta, .. } = &imported.envelopes[2].event else { panic!() };
    assert_eq!(meta.origin, Origin::Model);
    assert_eq!(meta.message_id.as_deref(), Some("m1"));
    assert_eq!(meta.usage.as_ref().unwrap().input_tokens, 100);
    assert_eq!(imported.envelopes[1].at.to_string(), "2026-11-15T06:35:01.094Z");
}

#[test]
fn a_newer_versions_session_with_attachments_between() {
    let lines = [
        user(1, 0, "go"),
        attachment(2, 1),
        attachment(3, 2),
        json!({"type": "api-request-blob", "hash": "x", "message": {"role": "user", "content": "not this"}}),
        assistant(4, 3, "m1", &json!({"type": "thinking", "thinking": "hm", "signature": "s"})),
        assistant(5, 4, "m1", &text("looking")),
        assistant(6, 5, "m1", &tool_use("c1")),
        result(7, 6, "c1"),
        attachment(8, 7),
        assistant(9, 8, "m2", &text("done")),
        attachment(10, 9),
        json!({"type": "last-prompt", "lastPrompt": "go", "leafUuid": id(10)}),
    ];
    check(
        &lines,
        &expect![[r#"
            user: go
            model: Thinking { thinking: "hm", signature: Some("s"), extra: {} } | looking | call c1
            Bash c1: out of c1
            model: done
        "#]],
    );
}

#[test]
fn results_of_parallel_calls_are_joined_again_whichever_the_chain_goes_through() {
    for through in [6, 7, 8] {
        let lines = [
            user(1, 0, "go"),
            assistant(2, 1, "m1", &text("three at once")),
            assistant(3, 2, "m1", &tool_use("c1")),
            assistant(4, 3, "m1", &tool_use("c2")),
            assistant(5, 4, "m1", &tool_use("c3")),
            result(8, 5, "c3"),
            result(6, 3, "c1"),
            result(7, 4, "c2"),
            assistant(9, through, "m2", &text("done")),
        ];
        check(
            &lines,
            &expect![[r"
                user: go
                model: three at once | call c1 | call c2 | call c3
                Bash c1: out of c1
                Bash c2: out of c2
                Bash c3: out of c3
                model: done
            "]],
        );
    }
}

#[test]
fn results_on_one_line_come_in_the_order_of_their_calls() {
    let on_last = |number, call| with(result(number, 4, call), "sourceToolAssistantUUID", Value::Null);
    let lines = [
        user(1, 0, "go"),
        assistant(2, 1, "m1", &tool_use("c1")),
        assistant(3, 2, "m1", &tool_use("c2")),
        assistant(4, 3, "m1", &tool_use("c3")),
        on_last(5, "c3"),
        on_last(6, "c1"),
        on_last(7, "c2"),
        assistant(8, 7, "m2", &text("done")),
    ];
    check(
        &lines,
        &expect![[r"
            user: go
            model: call c1 | call c2 | call c3
            Bash c1: out of c1
            Bash c2: out of c2
            Bash c3: out of c3
            model: done
        "]],
    );
}

#[test]
fn a_call_without_a_result_stays_open_and_a_result_without_a_call_is_dropped() {
    let lines = [
        user(1, 0, "go"),
        result(2, 1, "never asked"),
        assistant(3, 2, "m1", &tool_use("c1")),
        assistant(4, 3, "m1", &tool_use("c2")),
        result(5, 4, "c2"),
    ];
    let imported = check(
        &lines,
        &expect![[r"
            user: go
            model: call c1 | call c2
            Bash c2: out of c2
        "]],
    );
    assert_eq!(imported.report.dangling, 1);
}

#[test]
fn the_last_leaf_wins_and_what_is_not_the_conversation_stays_out() {
    let lines = [
        user(1, 0, "first try"),
        assistant(2, 1, "m1", &text("abandoned")),
        user(3, 0, "second try"),
        with(user(4, 3, "only shown"), "isMeta", true),
        with(user(90, 3, "a sub-agent's"), "isSidechain", true),
        assistant(5, 4, "m2", &text("kept")),
        with(assistant(6, 5, "m3", &text("API Error: 529")), "isApiErrorMessage", true),
        user(7, 6, "again"),
        with(assistant(91, 90, "m9", &text("a sub-agent's")), "isSidechain", true),
        with(user(92, 7, "a team's"), "teamName", "t"),
        with(user(93, 7, "only shown"), "isMeta", true),
    ];
    let imported = check(
        &lines,
        &expect![[r"
            user: second try
            model: kept
            user: again
        "]],
    );
    assert_eq!(imported.report.left_out, 2);
}

fn boundary(number: u128, metadata: &Value) -> Value {
    let more = json!({"subtype": "compact_boundary", "content": "Conversation compacted",
        "logicalParentUuid": id(6), "compactMetadata": metadata});
    chain("system", number, 0, &more)
}

#[test]
fn a_compaction_is_the_summary_and_the_preserved_tail() {
    let uuids = json!({"trigger": "manual", "preTokens": 180, "preservedMessages": {
        "anchorUuid": id(11), "uuids": [id(4), id(5), id(6)], "allUuids": [id(4)]}});
    let segment = json!({"trigger": "manual", "preTokens": 180, "preservedSegment": {
        "headUuid": id(4), "anchorUuid": id(11), "tailUuid": id(6)}});
    for metadata in [uuids, segment] {
        let lines = [
            user(1, 0, "old"),
            assistant(2, 1, "m1", &text("old answer")),
            user(3, 2, "old too"),
            assistant(4, 3, "m2", &tool_use("c1")),
            result(5, 4, "c1"),
            chain("system", 6, 5, &json!({"subtype": "stop_hook_summary"})),
            boundary(10, &metadata),
            with(user(11, 10, "what happened so far"), "isCompactSummary", true),
            with(user(12, 11, "caveat"), "isMeta", true),
            attachment(13, 12),
            user(14, 13, "go on"),
            assistant(15, 14, "m3", &text("going on")),
        ];
        check(
            &lines,
            &expect![[r"
                compacted by manual at 180: what happened so far
                model: call c1
                Bash c1: out of c1
                user: go on
                model: going on
            "]],
        );
    }
}

#[test]
fn damage_and_circles_end_somewhere() {
    let home = Home::new();
    let lines =
        [user(1, 2, "a"), user(2, 1, "b"), user(3, 77, "lost its parent"), assistant(4, 3, "m", &text("x"))];
    let path = write(&home, &lines);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(b"\0\0garbage\n[1]\n{\"type\":\"user\",\"uuid\":\"not-a-uuid\",\"torn");
    std::fs::write(&path, &bytes).unwrap();
    let imported = import(&path, &context()).unwrap();
    assert_eq!(sketch(&imported), "user: lost its parent\nmodel: x\n");
    assert!(imported.report.broken_chain);
    assert_eq!(imported.report.skipped, 3);

    let path = write(&home, &lines[..2]);
    assert_eq!(sketch(&import(&path, &context()).unwrap()), "user: a\nuser: b\n");
    let path = write(&home, &[json!({"type": "summary", "summary": "x"})]);
    assert!(matches!(import(&path, &context()), Err(ImportError::Empty(_))));
    let named = path.with_file_name("notes.jsonl");
    std::fs::rename(&path, &named).unwrap();
    assert!(matches!(import(&named, &context()), Err(ImportError::NoId(_))));
    assert!(matches!(import(&path, &context()), Err(ImportError::Io { .. })));
}

#[test]
fn ids_that_are_no_uuids_and_lines_of_several_blocks_are_taken_too() {
    let mut one = assistant(2, 1, "m1", &text("a"));
    one["uuid"] = json!("line-two");
    one["message"]["content"] = json!([text("a"), tool_use("c1"), tool_use("c2")]);
    let mut both = result(3, 2, "c1");
    both["parentUuid"] = json!("line-two");
    both["sourceToolAssistantUUID"] = Value::Null;
    let more = json!({"type": "tool_result", "tool_use_id": "c2", "content": "two"});
    both["message"]["content"].as_array_mut().unwrap().extend([more, text("and a word")]);
    let mut context = context();
    context.session = Some(session(6));
    let home = Home::new();
    let path = write(&home, &[user(1, 0, "go"), one.clone(), both.clone()]);
    assert_eq!(import(&path, &context).unwrap().info.session, session(6));
    check(
        &[user(1, 0, "go"), one, both],
        &expect![[r"
            user: go
            model: a | call c1 | call c2
            Bash c1: out of c1
            Bash c2: two
            user: and a word
        "]],
    );
}

/// For transcripts at hand: imports every one below a folder and prints what it took from it.
#[test]
#[ignore = "needs DECURION_TEST_TRANSCRIPTS to name a folder"]
fn transcripts_at_hand() {
    #[allow(clippy::disallowed_methods)]
    let Ok(folder) = std::env::var("DECURION_TEST_TRANSCRIPTS") else { return };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = Utf8PathBuf::from_path_buf(entry.unwrap().path()).unwrap();
        if path.extension() == Some("jsonl") {
            let mut context = context();
            context.session = Some(session(7));
            match import(&path, &context) {
                Ok(imported) => println!("== {path}\n{:?}\n{}", imported.report, sketch(&imported)),
                Err(error) => println!("== {path}: {error}"),
            }
        }
    }
}
