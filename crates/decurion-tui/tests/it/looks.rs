//! The screens that people see most, each in a file of `looks/`: at four widths, and with the styles of each theme at one. A
//! change of a screen is a diff there; `UPDATE_EXPECT=1` writes them anew.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_tui::app::{App, AppInput};
use decurion_tui::conversation::Greeting;
use decurion_tui::theme::Shades;
use expect_test::expect_file;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Line;
use serde_json::{Value, json};

use crate::screens::{Happens, all, app_in, asked, called, control, opened, rows, said};

const WIDTHS: [u16; 4] = [40, 80, 120, 200];
/// At this one the styles are shown.
const STYLED: u16 = 80;
/// How high each terminal is.
const HEIGHT: u16 = 30;

/// A screen: what happened, and what was pressed then.
struct Look {
    name: &'static str,
    events: Vec<Happens>,
    keys: Vec<KeyEvent>,
    /// Whether it begins with the greeting.
    greets: bool,
    /// Whether the main agent works.
    works: bool,
}

impl Look {
    fn of(name: &'static str, events: Vec<Happens>) -> Self {
        Self { name, events, keys: Vec::new(), greets: false, works: false }
    }

    fn app(&self, shades: Shades, columns: u16) -> App {
        let mut app = app_in(shades, &self.events, (columns, HEIGHT));
        "namespaces".clone_into(&mut app.known.sandbox);
        app.known.model = Some("anthropic/claude-sonnet-5-5".to_owned());
        if self.greets {
            app.greet(Greeting {
                version: "1.0.0".to_owned(),
                model: "claude-sonnet-5-5".to_owned(),
                folder: "~/projects/parser".to_owned(),
            });
        }
        if self.works {
            app.view.at_work = true;
            app.view.root.began = jiff::Timestamp::from_second(58).ok();
            app.view.root.heard = jiff::Timestamp::from_second(99).ok();
            app.view.root.ended = None;
        }
        for key in &self.keys {
            app.update(AppInput::Key(*key));
        }
        app
    }
}

fn looks() -> Vec<Look> {
    let prompt = || said("user", "prompt", &json!("make parse_date strict"));
    let text = |text: &str| json!({"type": "delta", "delta": {"delta": "text", "index": 0, "text": text}});
    let mut live = vec![prompt()];
    live.extend(called("c1", "Read", "Read src/parse.rs", &json!({"content": "a\nb\nc\n"})));
    live.push((
        None,
        json!({"type": "delta", "delta": {"delta": "started", "message_id": "m", "model": "m", "usage": {}}}),
    ));
    live.push((None, text("The parser takes whatever stands before the first dash.")));
    let tree = || {
        let mut events = vec![prompt()];
        events.extend(agents());
        events
    };
    let edit = json!({"file_path": "/w/src/parse.rs", "old_string": "    text.len()",
        "new_string": "    text.chars().count()"});
    vec![
        Look { greets: true, ..Look::of("start", Vec::new()) },
        Look { works: true, ..Look::of("live-line", live) },
        Look { works: true, ..Look::of("tree", tree()) },
        Look {
            keys: vec![control('t'), KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)],
            ..Look::of("task-panel", tree())
        },
        Look::of(
            "question",
            question(
                "Bash",
                "$ npm test",
                &json!({"command": "npm test -- --watch=false", "description": "Run the tests once"}),
                &["npm test:*"],
            ),
        ),
        Look::of("edit-question", question("Edit", "Edit src/parse.rs", &edit, &[])),
        Look::of("result", results()),
        Look { works: true, ..Look::of("todo-list", todos()) },
        Look { keys: vec![control('d')], works: true, ..Look::of("leaving", tree()) },
        Look {
            keys: vec![KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE)],
            ..Look::of("help", Vec::new())
        },
    ]
}

/// Agents that work, wait, ask, and have ended in each way.
fn agents() -> Vec<Happens> {
    let allow = json!({"decision": "allow", "rule": null, "reason": "r"});
    let mut events = Vec::new();
    for (task, kind, what) in [
        ("a1", "Explore", "how dates are read"),
        ("a2", "general-purpose", "write the test"),
        ("a3", "Explore", "who calls parse_date"),
        ("a4", "Explore", "who calls parse_date"),
        ("a5", "Plan", "the order of the work"),
        ("a6", "Explore", "old formats"),
    ] {
        events.extend(opened(task, None, Some(kind), what));
    }
    events.extend(opened("b1", Some("a2"), None, "cargo test --quiet parse"));
    let intent = decurion_protocol::Intent::titled("Grep parse_date");
    events.push((
        Some("a1"),
        json!({"type": "call_started", "call": "c", "tool": "Grep", "intent": intent, "decision": allow}),
    ));
    let retry = json!({"reason": "retry", "attempt": 2, "of": 10, "delay_ms": 12_000, "status": 429,
        "error": "slow down", "rate_limited": true});
    events.push((Some("a2"), json!({"type": "waiting", "reason": retry})));
    for (task, tools, tokens) in
        [("a1", 4, 12_400), ("a3", 7, 31_000), ("a4", 2, 9_000), ("a5", 1, 4_000), ("a6", 3, 8_100)]
    {
        events.push((
            None,
            json!({"type": "task_progressed", "task": task,
            "progress": {"tools": tools, "tokens": tokens, "duration_ms": 0, "activities": []}}),
        ));
    }
    for (task, outcome) in [
        (
            "a4",
            json!({"outcome": "completed", "report": "## Findings\n\nTwo callers rely on it. Both are in src/import.rs."}),
        ),
        ("a5", json!({"outcome": "killed", "by": "a person"})),
        ("a6", json!({"outcome": "failed", "error": "the provider did not answer"})),
    ] {
        let mut state: Value = outcome;
        state["state"] = json!("ended");
        events.push((None, json!({"type": "task_changed", "task": task, "state": state})));
    }
    events
}

fn question(tool: &str, title: &str, input: &Value, rules: &[&str]) -> Vec<Happens> {
    let mut asked = asked(None, &[], tool, input, rules);
    let (_, mut question) = asked.pop().unwrap();
    question["question"]["intent"] = serde_json::to_value(decurion_protocol::Intent::titled(title)).unwrap();
    question["question"]["reason"] = json!("it may change things, and no rule allows it");
    vec![said("user", "prompt", &json!("make parse_date strict")), (None, question)]
}

/// A conversation with a change, a command that failed and one that was interrupted.
fn results() -> Vec<Happens> {
    let mut events = vec![said("user", "prompt", &json!("make parse_date strict"))];
    let patch = json!({"filePath": "/w/src/parse.rs", "structuredPatch": [
        {"oldStart": 11, "oldLines": 3, "newStart": 11, "newLines": 4, "lines": [" fn width(text: &str) -> usize {",
            "-    text.len()", "+    // as people see them", "+    text.chars().count()", " }"]}]});
    events.extend(called(
        "c1",
        "Edit",
        "Edit src/parse.rs",
        &json!({"content": "Edited.", "structured": patch}),
    ));
    events.extend(called("c2", "Bash", "$ cargo test --quiet parse",
        &json!({"content": "Exit code 101\nrunning 2 tests\nF.\nfailures:\n    parse::dates", "is_error": true})));
    events.extend(called(
        "c3",
        "Bash",
        "$ cargo run --example all",
        &json!({"content": "for the model", "is_error": true,
        "structured": {"stdout": "1 of 90\n2 of 90\n3 of 90\n4 of 90", "interrupted": true}}),
    ));
    let used = json!({"content": [{"type": "text", "text": "## Findings\n\nTwo callers rely on it. Both are old."}],
        "structured": {"totalToolUseCount": 7, "totalTokens": 31_000, "totalDurationMs": 12_400}});
    events.extend(called("c4", "Agent", "Explore: who calls parse_date", &used));
    let answer = "One test still fails, see `tests/dates.rs:18:7`:\n\n- it expects **two** digits\n- https://example.org/iso says four\n";
    events.push(said("assistant", "model", &json!([{"type": "text", "text": answer}])));
    events
}

fn todos() -> Vec<Happens> {
    let step = |what: &str, doing: &str, status: &str| json!({"content": what, "activeForm": doing, "status": status});
    let todos = [
        step("Read how dates are parsed", "Reading how dates are parsed", "completed"),
        step("Make it strict, with a test", "Making it strict, with a test", "in_progress"),
        step("Tell the callers", "Telling the callers", "pending"),
    ];
    let output = json!({"content": "kept", "effects": [{"effect": "todos", "todos": todos}]});
    let mut events = vec![said("user", "prompt", &json!("make parse_date strict"))];
    events.extend(called("c1", "TodoWrite", "Todos 1/3", &output));
    events
}

/// Lines with the style of each part that has one, in angle brackets before it.
fn styled(lines: &[Line<'static>]) -> String {
    let mut shown = String::new();
    for line in lines {
        let mut before = Style::default();
        let mut row = String::new();
        for span in &line.spans {
            let style = line.style.patch(span.style);
            if style != before && !span.content.is_empty() {
                row.push_str(&format!("‹{}›", named(style)));
                before = style;
            }
            row.push_str(&span.content);
        }
        shown.push_str(row.trim_end());
        shown.push('\n');
    }
    shown
}

/// A style in a few words; none is a full stop.
fn named(style: Style) -> String {
    let mut words: Vec<String> = style.fg.iter().map(ToString::to_string).collect();
    words.extend(style.bg.iter().map(|color| format!("on {color}")));
    let modifiers = [
        (Modifier::BOLD, "bold"),
        (Modifier::DIM, "dim"),
        (Modifier::ITALIC, "italic"),
        (Modifier::UNDERLINED, "underlined"),
        (Modifier::REVERSED, "reversed"),
        (Modifier::CROSSED_OUT, "struck"),
    ];
    let has = |modifier: &&(Modifier, &str)| style.add_modifier.contains(modifier.0);
    words.extend(modifiers.iter().filter(has).map(|(_, name)| (*name).to_owned()));
    if words.is_empty() { ".".to_owned() } else { words.join(" ").to_lowercase() }
}

#[test]
fn the_screens_that_people_see_most_look_as_they_should() {
    for look in looks() {
        let mut seen = String::new();
        for columns in WIDTHS {
            let mut app = look.app(Shades::None, columns);
            let lines = all(&mut app);
            for line in &lines {
                assert!(line.width() <= usize::from(columns), "{} {columns}: {line}", look.name);
            }
            seen.push_str(&format!("════ {columns} columns\n{}", rows(lines, columns)));
        }
        for (shades, name) in [(Shades::Dark, "dark"), (Shades::Light, "light"), (Shades::None, "NO_COLOR")] {
            let lines = all(&mut look.app(shades, STYLED));
            seen.push_str(&format!("════ {name}\n{}", styled(&lines)));
        }
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/looks")
            .join(format!("{}.txt", look.name));
        expect_file![file].assert_eq(&seen);
    }
}
