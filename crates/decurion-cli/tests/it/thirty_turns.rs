//! One long run with every tool, parallel calls, errors and a refusal, in both dialects: what is printed is
//! what the stream's schema allows, what is asked is what a provider accepts, and the tools did their work.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use decurion_testkit::proc::Home;
use decurion_testkit::server::FakeModel;
use decurion_testkit::stream_schema::check_line;
use serde_json::{Value, json};

use crate::stand::{Stand, file_in, finished, result, stream};

const FLAGS: &[&str] = &[
    "-p",
    "do all of it",
    "--output-format",
    "stream-json",
    "--verbose",
    "--include-partial-messages",
    "--allowedTools",
    "Bash,Edit,Write,NotebookEdit,WebFetch(domain:127.0.0.1)",
    "--disallowedTools",
    "Bash(rm:*)",
];

/// What comes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    Well,
    Badly,
}
use Comes::{Badly, Well};

/// One call of a turn: the tool, the input as script words, what comes of it and a part of its result.
type Call = (&'static str, String, Comes, &'static str);

fn path(home: &Home, name: &str) -> String {
    json!({"file_path": file_in(home, name)}).to_string()
}

fn edit(home: &Home, name: &str, old: &str, new: &str) -> String {
    json!({"file_path": file_in(home, name), "old_string": old, "new_string": new}).to_string()
}

fn bash(command: &str) -> String {
    json!({"command": command, "description": "a step"}).to_string()
}

/// The turns but the last, each with its calls.
fn turns(home: &Home, page: &str) -> Vec<Vec<Call>> {
    let todos = |first: &str| {
        json!({"todos": [
            {"content": "look", "status": first, "activeForm": "looking"},
            {"content": "mend", "status": "pending", "activeForm": "mending"},
        ]})
        .to_string()
    };
    let notebook = |mode: &str, source: &str| {
        json!({"notebook_path": file_in(home, "n.ipynb"), "cell_id": "c1", "new_source": source, "edit_mode": mode,
               "cell_type": "code"})
        .to_string()
    };
    let write =
        |name: &str, text: &str| json!({"file_path": file_in(home, name), "content": text}).to_string();
    let fetch = json!({"url": page, "prompt": "which models"}).to_string();
    let base = vec![
        vec![("Bash", bash("echo one; echo two >&2"), Well, "one")],
        vec![("Write", write("a.txt", "alpha\nbeta\n"), Well, "a.txt")],
        vec![("Read", path(home, "a.txt"), Well, "beta")],
        vec![("Edit", edit(home, "a.txt", "beta", "gamma"), Well, "a.txt")],
        vec![
            ("Glob", json!({"pattern": "**/*.txt"}).to_string(), Well, "a.txt"),
            ("Grep", json!({"pattern": "gam+a", "output_mode": "content"}).to_string(), Well, "gamma"),
            ("Read", path(home, "a.txt"), Well, "gamma"),
        ],
        vec![("TodoWrite", todos("in_progress"), Well, "")],
        vec![("Read", path(home, "n.ipynb"), Well, "print")],
        vec![("NotebookEdit", notebook("replace", "print(2)"), Well, "c1")],
        vec![("WebFetch", fetch, Well, "test-model")],
        vec![("Bash", bash("echo no; exit 3"), Badly, "3")],
        vec![("Read", path(home, "missing.txt"), Badly, "missing.txt")],
        vec![("Bash", bash("rm -rf a.txt"), Badly, "Bash(rm:*)")],
        vec![("Edit", edit(home, "a.txt", "nowhere", "x"), Badly, "a.txt")],
        vec![("Frobnicate", json!({}).to_string(), Badly, "Frobnicate")],
        vec![("Bash", json!({"description": "nothing to run"}).to_string(), Badly, "command")],
        vec![("Bash", r#"raw "{\"command\": \"echo cut"#.to_owned() + "\"", Badly, "JSON")],
        vec![
            ("Read", path(home, "a.txt"), Well, "gamma"),
            ("Read", path(home, "other.md"), Well, "words"),
            ("Bash", bash("cat other.md"), Well, "words"),
            ("Read", path(home, "missing.txt"), Badly, "missing.txt"),
            ("Glob", json!({"pattern": "*.md"}).to_string(), Well, "other.md"),
        ],
        vec![("Bash", bash("seq 1 20000"), Well, "19999")],
        vec![("Bash", bash("mkdir -p sub && cd sub && pwd"), Well, "sub")],
        vec![("Bash", bash("pwd"), Well, "sub")],
        vec![("Bash", bash("cd .. && printf 'é\\0\\xff\\n' "), Well, "é")],
        vec![("Grep", json!({"pattern": "absent from everything"}).to_string(), Well, "")],
        vec![("Grep", json!({"pattern": "("}).to_string(), Badly, "pattern")],
        vec![("TodoWrite", todos("completed"), Well, "")],
        vec![("Write", write("deep/er/b.txt", "new\n"), Well, "b.txt")],
        vec![("Write", write("other.md", "blind\n"), Well, "other.md")],
        vec![("NotebookEdit", notebook("delete", ""), Well, "c1")],
        vec![("Bash", bash("true"), Well, "")],
        vec![("Bash", bash("git --version >/dev/null; echo $((6 * 7))"), Well, "42")],
    ];
    assert_eq!(base.len(), 29);
    base
}

fn script(turns: &[Vec<Call>]) -> String {
    let mut script = String::new();
    for (index, calls) in turns.iter().enumerate() {
        let turn = index + 1;
        writeln!(script, "when turn={turn}").unwrap();
        if turn % 5 == 0 {
            writeln!(script, "  think \"what is turn {turn} for?\"").unwrap();
        }
        if turn % 2 == 1 {
            writeln!(script, "  say chunk=3 \"turn {turn}: ümläute and \\\"quotes\\\"\"").unwrap();
        }
        for (tool, input, _, _) in calls {
            writeln!(script, "  call {tool} {input}").unwrap();
        }
        if turn % 7 == 0 {
            script.push_str("  split every 11\n");
        }
    }
    script.push_str("when turn=30\n  say \"All thirty turns are done.\"\n");
    script
}

fn prepare(stand: &Stand) {
    let notebook = json!({
        "cells": [
            {"cell_type": "code", "id": "c1", "metadata": {}, "source": ["print(1)"], "outputs": [],
             "execution_count": null},
            {"cell_type": "markdown", "id": "c2", "metadata": {}, "source": ["# Title"]},
        ],
        "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5,
    });
    std::fs::write(stand.file("n.ipynb"), notebook.to_string()).unwrap();
    std::fs::write(stand.file("other.md"), "words\n").unwrap();
}

#[test]
fn thirty_turns_with_every_tool_in_the_anthropic_dialect() {
    play(false);
}

#[test]
fn thirty_turns_with_every_tool_in_the_openai_dialect() {
    play(true);
}

fn play(openai: bool) {
    let page = FakeModel::start("when\n say \"never asked\"").unwrap();
    let home = Home::new().unwrap();
    let turns = turns(&home, &format!("{}/v1/models", page.url()));
    let stand = Stand::in_home(home, &script(&turns));
    prepare(&stand);
    let program =
        if openai { stand.decurion_openai().args(["--model", "test-model"]) } else { stand.decurion() };
    let finished = finished(program.args(FLAGS));
    assert_eq!(stand.model.problems(), Vec::<String>::new());
    assert_eq!(finished.ending.code(), 0, "{}", finished.errors);
    for line in &finished.lines {
        check_line(line).unwrap_or_else(|problem| panic!("{problem}\n{line}"));
    }
    let asked = stand.model.requests().iter().filter(|request| request.dialect.is_some()).count();
    assert_eq!(asked, 30);
    let lines = stream(&finished);
    judge_calls(&lines, &turns);
    judge_pieces(&lines);
    judge_result(&result(&finished), &turns, openai);
    judge_files(&stand);
    assert!(stand.home.processes().is_empty());
}

/// Every call has exactly one result, of the right kind, in the order of asking within its turn.
fn judge_calls(lines: &[Value], turns: &[Vec<Call>]) {
    let blocks = |kind: &str, block: &str| -> Vec<Value> {
        let messages = lines.iter().filter(|line| line["type"] == kind);
        let blocks = messages.flat_map(|line| line["message"]["content"].as_array().unwrap());
        blocks.filter(|found| found["type"] == block).cloned().collect()
    };
    let calls = blocks("assistant", "tool_use");
    let mut results: BTreeMap<String, Value> = BTreeMap::new();
    for result in blocks("user", "tool_result") {
        let id = result["tool_use_id"].as_str().unwrap().to_owned();
        assert!(results.insert(id.clone(), result).is_none(), "two results of {id}");
    }
    let expected: Vec<&Call> = turns.iter().flatten().collect();
    assert_eq!((calls.len(), results.len()), (expected.len(), expected.len()));
    for (call, (tool, input, comes, part)) in calls.iter().zip(expected) {
        assert_eq!(call["name"], *tool, "{call}");
        let result = &results[call["id"].as_str().unwrap()];
        let failed = result["is_error"] == true;
        assert_eq!(failed, *comes == Badly, "{tool} {input}: {result}");
        let text = match &result["content"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        assert!(text.contains(part), "{tool} {input}: {part:?} is not in {text:?}");
    }
}

/// The pieces of every reply, put together, are the blocks that were then printed whole.
fn judge_pieces(lines: &[Value]) {
    // By their place in the message: the pieces of calls side by side may come in turns.
    let mut pieces: BTreeMap<u64, (Value, String)> = BTreeMap::new();
    let mut checked = 0;
    for line in lines {
        let event = &line["event"];
        let place = event["index"].as_u64().unwrap_or_default();
        match (line["type"].as_str().unwrap(), event["type"].as_str()) {
            (_, Some("message_start")) => pieces.clear(),
            (_, Some("content_block_start")) => {
                pieces.insert(place, (event["content_block"].clone(), String::new()));
            }
            (_, Some("content_block_delta")) => {
                let (piece, input) = pieces.get_mut(&place).unwrap();
                for member in ["text", "thinking", "signature"] {
                    if let Some(more) = event["delta"][member].as_str() {
                        piece[member] = json!(piece[member].as_str().unwrap_or_default().to_owned() + more);
                    }
                }
                input.push_str(event["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            (_, Some("content_block_stop")) => {
                let (piece, input) = pieces.get_mut(&place).unwrap();
                if piece["type"] == "tool_use" && !input.is_empty() {
                    piece["input"] = serde_json::from_str(input).unwrap_or(json!("cut"));
                }
            }
            ("assistant", _) => {
                let whole = &line["message"]["content"][0];
                let shown = pieces.values().any(|(piece, _)| piece == whole || cut_call(piece, whole));
                assert!(shown, "{whole} is not among the pieces {pieces:?}");
                checked += 1;
            }
            _ => {}
        }
    }
    assert!(checked > 40, "{checked}");
}

/// A call whose input came as broken JSON is kept with an input of our own.
fn cut_call(piece: &Value, whole: &Value) -> bool {
    piece["input"] == "cut" && piece["id"] == whole["id"]
}

fn judge_result(result: &Value, turns: &[Vec<Call>], openai: bool) {
    let calls = turns.iter().flatten().count();
    assert_eq!(result["subtype"], "success");
    assert_eq!(result["is_error"], false);
    assert_eq!(result["result"], "All thirty turns are done.");
    assert_eq!(result["num_turns"], calls + 1);
    assert_eq!(result["outcome"], "completed");
    assert_eq!(result["terminal_reason"], "completed");
    assert_eq!(result["stop_reason"], "end_turn");
    let denials = result["permission_denials"].as_array().unwrap();
    assert_eq!(denials.len(), 1, "{denials:?}");
    assert_eq!(denials[0]["tool_input"]["command"], "rm -rf a.txt");
    let used: Vec<&Value> = result["modelUsage"].as_object().unwrap().values().collect();
    assert_eq!(used.len(), 1);
    assert_eq!(used[0]["inputTokens"], result["usage"]["input_tokens"]);
    assert!(result["usage"]["output_tokens"].as_u64().unwrap() > 100);
    // A price is known for the default model of the one, and not for a model nobody has heard of.
    assert_eq!(result["total_cost_usd"].as_f64().unwrap() > 0.0, !openai, "{result}");
}

fn judge_files(stand: &Stand) {
    let read = |name: &str| std::fs::read_to_string(stand.file(name)).unwrap();
    assert_eq!(read("a.txt"), "alpha\ngamma\n");
    assert_eq!(read("deep/er/b.txt"), "new\n");
    assert_eq!(read("other.md"), "blind\n");
    let notebook: Value = serde_json::from_str(&read("n.ipynb")).unwrap();
    assert_eq!(notebook["cells"].as_array().unwrap().len(), 1);
}
