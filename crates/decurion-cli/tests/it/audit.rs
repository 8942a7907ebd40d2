//! `decurion audit` and what sessions leave there: decisions of real sessions, several processes at once, processes that
//! are killed, logs that are edited or cannot be written.

use std::fs;
use std::path::PathBuf;

use decurion_testkit::proc::{Finished, Home, Program};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stand::{DECURION, LIMIT, finished};

const SESSION: &str = "11111111-2222-4333-8444-555555555555";

/// A home in which a script is played.
struct Played {
    home: Home,
}

impl Played {
    fn new(script: &str) -> Self {
        let home = Home::new().unwrap();
        fs::write(home.work().join("s.script"), script).unwrap();
        Self { home }
    }

    /// A run of the script.
    fn session(&self, more: &[&str]) -> Program {
        self.home.program(DECURION).args(["-p", "go", "--model", "scripted:s.script"]).args(more)
    }

    fn audit(&self, arguments: &[&str]) -> Finished {
        finished(self.home.program(DECURION).arg("audit").args(arguments))
    }

    fn entries(&self, more: &[&str]) -> Vec<Value> {
        let run = self.audit(&[&["show", "--json"], more].concat());
        assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{run:?}");
        run.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The report about a log that must be whole.
    fn whole(&self) -> Value {
        let run = self.audit(&["verify", "--json"]);
        assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{run:?}");
        serde_json::from_str(&run.lines[0]).unwrap()
    }

    fn segment(&self) -> PathBuf {
        self.home.state().join("audit/000001.jsonl")
    }
}

/// A script that makes so many calls, one turn each.
fn calls(count: usize) -> String {
    let turns =
        (1..=count).map(|turn| format!("when turn={turn}\n  call Bash {{\"command\": \"echo {turn}\"}}\n"));
    turns.chain(["when\n  say \"done\"\n".to_owned()]).collect()
}

#[test]
fn decisions_of_a_session_are_shown_and_whole() {
    let script = "when turn=1
  call Bash {\"command\": \"echo hello\"}
  call Bash {\"command\": \"rm -rf \\u001b[31mx\"}
  call Write {\"file_path\": \"new.txt\", \"content\": \"x\"}
when
  say \"done\"
";
    let played = Played::new(script);
    assert_eq!(played.whole()["entries"], 0, "no log is a whole log");
    let run = finished(played.session(&["--session-id", SESSION, "--disallowedTools", "Bash(rm:*)"]));
    assert_eq!(run.ending.code(), 3, "{run:?}");
    let entries = played.entries(&[]);
    let made: Vec<(&Value, &Value, &Value)> = entries
        .iter()
        .map(|line| &line["entry"])
        .map(|entry| (&entry["tool"], &entry["decision"], &entry["by"]))
        .collect();
    let expected = [
        (&json!("Bash"), &json!("allow"), &json!("policy")),
        (&json!("Bash"), &json!("deny"), &json!("rule")),
        (&json!("Write"), &json!("deny"), &json!("nobody")),
    ];
    assert_eq!(made, expected, "{entries:#?}");
    assert!(entries.iter().all(|line| line["entry"]["session"] == SESSION && line["believed"] == true));
    assert_eq!(entries[1]["entry"]["rule"], "Bash(rm:*)");
    // The same for people, with nothing in it that commands a terminal.
    let shown = played.audit(&["show", "--session", &SESSION[..6], "--kind", "permission", "--since", "1h"]);
    assert_eq!((shown.ending.code(), shown.lines.len()), (0, 4), "{shown:?}");
    assert!(shown.lines[0].starts_with("WHEN") && shown.lines[2].contains(&SESSION[..8]), "{shown:?}");
    assert!(
        shown.lines[2].contains("  deny    Bash: ") && shown.lines[2].contains("by rule Bash(rm:*)"),
        "{shown:?}"
    );
    assert!(!shown.output().contains('\u{1b}'), "{shown:?}");
    assert_eq!(played.entries(&["--last", "1"])[0]["seq"], 3);
    assert_eq!(played.entries(&["--kind", "egress"]), Vec::<Value>::new());
    assert_eq!(played.entries(&["--session", "2222"]), Vec::<Value>::new());
    let whole = played.audit(&["verify"]);
    assert_eq!(whole.ending.code(), 0, "{whole:?}");
    assert!(whole.output().contains("intact: 3 entries in 1 file"), "{whole:?}");
    let bad = played.audit(&["show", "--since", "yesterday"]);
    assert_eq!(bad.ending.code(), 2, "{bad:?}");
    assert!(bad.errors.contains("yesterday") && bad.errors.contains("2h"), "{bad:?}");
}

#[test]
fn a_session_that_is_not_kept_leaves_no_entry() {
    let played = Played::new(&calls(2));
    finished(played.session(&["--no-session-persistence"]));
    assert_eq!(played.whole()["entries"], 0);
    finished(played.session(&[]));
    assert_eq!(played.whole()["entries"], 2);
}

#[test]
fn an_edited_log_is_named_with_file_and_line_and_exit_code() {
    let played = Played::new(&calls(4));
    finished(played.session(&[]));
    let anchor = played.whole()["anchor"].as_str().unwrap().to_owned();
    let text = fs::read_to_string(played.segment()).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for (edited, line, kind) in [
        (text.replace("echo 2", "echo 9"), 2, "changed"),
        ([lines[0], lines[2], lines[3]].concat(), 2, "deleted"),
        ([lines[0], lines[2], lines[1], lines[3]].concat(), 2, "reordered"),
        ([lines[0], "{}\n", lines[1], lines[2], lines[3]].concat(), 2, "inserted"),
        (lines[..3].concat(), 3, "truncated"),
    ] {
        fs::write(played.segment(), edited).unwrap();
        let run = played.audit(&["verify"]);
        let place = format!("audit/000001.jsonl:{line}: {kind}: ");
        assert_eq!(run.ending.code(), 1, "{kind}: {run:?}");
        assert!(run.errors.contains(&place) && run.errors.contains("copy "), "{kind}: {run:?}");
    }
    let shown = played.audit(&["show"]);
    assert_eq!((shown.ending.code(), shown.lines.len()), (0, 4), "{shown:?}");
    fs::write(played.segment(), text).unwrap();
    let run = played.audit(&["verify", "--anchor", &anchor]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let run = played.audit(&["verify", "--anchor", &format!("9{anchor}")]);
    assert!(run.ending.code() == 1 && run.errors.contains("rolled back"), "{run:?}");
    let run = played.audit(&["verify", "--anchor", "x"]);
    assert!(run.ending.code() == 2 && run.errors.contains("NUMBER:HASH"), "{run:?}");
}

#[test]
fn several_processes_at_once_make_one_chain() {
    let played = Played::new(&calls(12));
    let running: Vec<_> = (0..4).map(|_| played.session(&[]).start().unwrap()).collect();
    for session in running {
        let run = session.finish(LIMIT).unwrap();
        assert_eq!((run.ending.code(), run.errors.as_str()), (0, ""), "{run:?}");
    }
    assert_eq!(played.whole()["entries"], 4 * 12);
    let entries = played.entries(&[]);
    let sessions: std::collections::HashSet<&str> =
        entries.iter().map(|line| line["entry"]["session"].as_str().unwrap()).collect();
    assert_eq!(sessions.len(), 4);
}

#[test]
fn a_killed_process_leaves_a_whole_log_that_the_next_one_continues() {
    let played = Played::new(&calls(30));
    let mut before = 0;
    for round in 1..=8 {
        let stream = ["--output-format", "stream-json", "--verbose"];
        let mut running = played.session(&stream).start().unwrap();
        // At another call each time.
        let mut calls = 0;
        while calls < round {
            running.wait_for_line(LIMIT, |line| line.contains("tool_result")).unwrap();
            calls += 1;
        }
        running.signal(Signal::KILL).unwrap();
        running.finish(LIMIT).unwrap();
        let entries = played.whole()["entries"].as_u64().unwrap();
        assert!(entries >= before, "round {round}: {entries} after {before}");
        before = entries;
    }
    assert!(before > 0, "something was written before the kills");
    // A kill in the middle of a write leaves a part of a line.
    let mut torn = fs::read(played.segment()).unwrap();
    let part = torn[..100].to_vec();
    torn.extend(part);
    fs::write(played.segment(), torn).unwrap();
    assert_eq!(played.whole()["unfinished_bytes"], 100);
    finished(played.session(&[]));
    let report = played.whole();
    assert_eq!((&report["entries"], &report["unfinished_bytes"]), (&json!(before + 30), &json!(0)));
}

#[test]
fn a_log_that_cannot_be_written_is_reported_and_stops_nothing() {
    let played = Played::new(&calls(3));
    fs::create_dir_all(played.home.state()).unwrap();
    fs::write(played.home.state().join("audit"), "in the way").unwrap();
    let run = finished(played.session(&[]));
    assert_eq!((run.ending.code(), run.output().trim()), (0, "done"), "{run:?}");
    assert!(run.errors.contains("3 audit entries could not be written"), "{run:?}");
    let verify = played.audit(&["verify"]);
    assert_eq!(verify.ending.code(), 1, "{verify:?}");
}
