//! Whole screens at 40, 80 and 200 columns, as a terminal would hold them: a conversation, agents at work, every kind of
//! question, choices and the status line, with text that is wide, combined, turned around and full of escapes.
// Combined characters are what is tried.
#![allow(clippy::unicode_not_nfc)]

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::{Envelope, Event, Intent, RunId};
use decurion_tui::app::{App, AppInput, Effect};
use decurion_tui::completion::Completion;
use decurion_tui::history::History;
use decurion_tui::keymap::Keymap;
use decurion_tui::theme::{Shades, Theme};
use decurion_tui::view::popup::Popup;
use decurion_tui::view::status::Windows;
use expect_test::{Expect, expect};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::text::{Line, Text};
use ratatui_core::widgets::Widget as _;
use serde_json::{Value, json};

/// The rows of a terminal of this width that shows these lines.
pub fn rows(lines: Vec<Line<'static>>, columns: u16) -> String {
    let height = u16::try_from(lines.len()).unwrap().max(1);
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, height));
    Text::from(lines).render(buffer.area, &mut buffer);
    let mut shown = String::new();
    for y in 0..height {
        let mut row = String::new();
        let mut x = 0;
        while x < columns {
            let symbol = buffer[(x, y)].symbol();
            row.push_str(symbol);
            // A wide character has the cell behind it too.
            x += u16::try_from(decurion_tui::text::width(symbol)).unwrap().max(1);
        }
        shown.push_str(row.trim_end());
        shown.push('\n');
    }
    shown
}

/// One event of the root, or of an agent.
pub type Happens = (Option<&'static str>, Value);

pub fn app(events: &[Happens], size: (u16, u16)) -> App {
    app_in(Shades::None, events, size)
}

/// The same in these colours.
pub fn app_in(shades: Shades, events: &[Happens], size: (u16, u16)) -> App {
    let mut app = App::new(Theme::new(shades), Keymap::default(), History::default(), size);
    for (second, happens) in events.iter().enumerate() {
        happen(&mut app, second, happens);
    }
    app
}

/// The event of this number, which is its second too.
pub fn happen(app: &mut App, second: usize, (agent, event): &Happens) {
    let event: Event = serde_json::from_value(event.clone()).unwrap();
    assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
    let at = jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
    let agent = agent.map(|agent| agent.parse().unwrap());
    let envelope = Envelope { seq: second as u64, at, agent, run: RunId(uuid::Uuid::nil()), event };
    app.update(AppInput::Event(envelope.into()));
}

pub fn all(app: &mut App) -> Vec<Line<'static>> {
    let mut lines = app.finished();
    app.drawn_once();
    lines.extend(app.live(jiff::Timestamp::from_second(100).unwrap()).0);
    lines
}

/// The screen after these events and keys.
fn check(events: &[Happens], keys: &[KeyEvent], columns: u16, expected: &Expect) {
    let mut app = app(events, (columns, 50));
    for key in keys {
        app.update(AppInput::Key(*key));
    }
    let lines = all(&mut app);
    for line in &lines {
        assert!(line.width() <= usize::from(columns), "{columns}: {line}");
    }
    expected.assert_eq(&rows(lines, columns));
}

pub fn said(role: &str, origin: &str, content: &Value) -> Happens {
    let line = uuid::Uuid::nil();
    (
        None,
        json!({"type": "message", "message": {"role": role, "content": content}, "lines": [line], "parent": null,
            "meta": {"origin": origin, "model": "anthropic/claude-test-4"}}),
    )
}

pub fn called(call: &str, tool: &str, title: &str, output: &Value) -> [Happens; 2] {
    let allow = json!({"decision": "allow", "rule": null, "reason": "r"});
    [
        (
            None,
            json!({"type": "call_started", "call": call, "tool": tool, "intent": Intent::titled(title), "decision": allow}),
        ),
        (
            None,
            json!({"type": "call_ended", "call": call, "tool": tool, "line": uuid::Uuid::nil(), "parent": null,
                "output": output, "duration_ms": 5}),
        ),
    ]
}

const ANSWER: &str = "\
The parser is **wrong** in one place, see `src/parse.rs`: it counts *bytes*, so 日本語 and e\u{301} and 👩‍💻 are cut.

| text | bytes | columns |
|:--|--:|--:|
| abc | 3 | 3 |
| 日本語 | 9 | 6 |

1. count characters
2. test it
   - with tabs:\tlike this

```rust
fn width(text: &str) -> usize {
\ttext.chars().count() // not bytes, and a comment that is too long for a narrow terminal
}
```

A right-to-left word שלום and one that turns the rest \u{202e}around\u{1b}[31m.
";

fn conversation() -> Vec<Happens> {
    let mut events = vec![
        said("user", "prompt", &json!("Why is 日本語 cut?\n\n\tLook at\u{1b}[2J the parser first.")),
        said(
            "assistant",
            "model",
            &json!([{"type": "thinking", "thinking": "It might count bytes.\nOr columns."}, {"type": "text", "text": "I look at it."}]),
        ),
    ];
    let text = |lines: usize| (0..lines).map(|at| format!("line {at}\n")).collect::<String>();
    events.extend(called("c1", "Read", "Read src/parse.rs", &json!({"content": text(120)})));
    events.extend(called(
        "c2",
        "Bash",
        "$ cargo test --workspace --all-features 2>&1 | tail -n 40 # a long command line",
        &json!({"content": "\u{1b}[31mfailed\u{1b}[0m: 日本語\n10 %\r100 %\nthree\nfour\nfive\n", "is_error": true}),
    ));
    events.extend(called(
        "c3",
        "Edit",
        "Edit src/parse.rs",
        &json!({"content": "Edited.", "structured": {"filePath": "/w/src/parse.rs", "structuredPatch": [
            {"oldStart": 98, "oldLines": 3, "newStart": 98, "newLines": 4, "lines": [" fn width(text: &str) -> usize {",
                "-\ttext.len()", "+\t// 文字を数える: as people see them, not as they are kept", "+\ttext.chars().count()", " }"]}]}}),
    ));
    events.push((None, json!({"type": "notice", "level": "warning", "text": "the model answers slowly"})));
    events.push(said("assistant", "model", &json!([{"type": "text", "text": ANSWER}])));
    events
}

#[test]
fn a_conversation() {
    check(
        &conversation(),
        &[],
        40,
        &expect![[r#"

            > Why is 日本語 cut?

                  Look at␛[2J the parser first.

            ● I look at it.

            ● Read src/parse.rs
              └ 120 lines

            ✗ $ cargo test --workspace --all-featur…
              └ failed: 日本語 · … 1 line above (ct…
                three
                four
                five

            ● Edit src/parse.rs  +2 −1
                 98   fn width(text: &str) -> usize
                      {
                 99 -     text.len()
                 99 +     // 文字を数える: as people
                      see them, not as they are kept
                100 +     text.chars().count()
                101   }
            · the model answers slowly

            ● The parser is wrong in one place, see
              src/parse.rs: it counts bytes, so 日本
              語 and é and 👩‍💻 are cut.

              text   │ bytes │ columns
              ───────┼───────┼────────
              abc    │     3 │       3
              日本語 │     9 │       6

              1. count characters
              2. test it
                 • with tabs:    like this

                fn width(text: &str) -> usize {
                    text.chars().count() // not
                  bytes, and a comment that is too
                  long for a narrow terminal
                }

              A right-to-left word שלום and one that
              turns the rest �around.

            >
            ask before acting
        "#]],
    );
    check(
        &conversation(),
        &[],
        80,
        &expect![[r#"

            > Why is 日本語 cut?

                  Look at␛[2J the parser first.

            ● I look at it.

            ● Read src/parse.rs
              └ 120 lines

            ✗ $ cargo test --workspace --all-features 2>&1 | tail -n 40 # a long command li…
              └ failed: 日本語 · … 1 line above (ctrl+o to see)
                three
                four
                five

            ● Edit src/parse.rs  +2 −1
                 98   fn width(text: &str) -> usize {
                 99 -     text.len()
                 99 +     // 文字を数える: as people see them, not as they are kept
                100 +     text.chars().count()
                101   }
            · the model answers slowly

            ● The parser is wrong in one place, see src/parse.rs: it counts bytes, so 日本語
              and é and 👩‍💻 are cut.

              text   │ bytes │ columns
              ───────┼───────┼────────
              abc    │     3 │       3
              日本語 │     9 │       6

              1. count characters
              2. test it
                 • with tabs:    like this

                fn width(text: &str) -> usize {
                    text.chars().count() // not bytes, and a comment that is too long for a
                  narrow terminal
                }

              A right-to-left word שלום and one that turns the rest �around.

            >
            ask before acting
        "#]],
    );
    check(
        &conversation(),
        &[],
        200,
        &expect![[r#"

            > Why is 日本語 cut?

                  Look at␛[2J the parser first.

            ● I look at it.

            ● Read src/parse.rs
              └ 120 lines

            ✗ $ cargo test --workspace --all-features 2>&1 | tail -n 40 # a long command line
              └ failed: 日本語 · … 1 line above (ctrl+o to see)
                three
                four
                five

            ● Edit src/parse.rs  +2 −1
                 98   fn width(text: &str) -> usize {
                 99 -     text.len()
                 99 +     // 文字を数える: as people see them, not as they are kept
                100 +     text.chars().count()
                101   }
            · the model answers slowly

            ● The parser is wrong in one place, see src/parse.rs: it counts bytes, so 日本語 and é and 👩‍💻 are cut.

              text   │ bytes │ columns
              ───────┼───────┼────────
              abc    │     3 │       3
              日本語 │     9 │       6

              1. count characters
              2. test it
                 • with tabs:    like this

                fn width(text: &str) -> usize {
                    text.chars().count() // not bytes, and a comment that is too long for a narrow terminal
                }

              A right-to-left word שלום and one that turns the rest �around.

            >
            ask before acting
        "#]],
    );
}

pub fn opened(task: &str, parent: Option<&str>, kind: Option<&str>, description: &str) -> [Happens; 2] {
    let work = if kind.is_some() { "local_agent" } else { "local_bash" };
    [
        (
            None,
            json!({"type": "task_opened", "record": {
                "task": task, "kind": work, "description": description, "prompt": "p", "parent": parent,
                "depth": 1, "attention": "background", "output_file": "/x", "agent_type": kind,
            }}),
        ),
        (
            None,
            json!({"type": "task_changed", "task": task, "state": {"state": "running", "attention": "background"}}),
        ),
    ]
}

pub fn agents() -> Vec<Happens> {
    let allow = json!({"decision": "allow", "rule": null, "reason": "r"});
    let call = |title: &str| json!({"type": "call_started", "call": "c", "tool": "Grep", "intent": Intent::titled(title), "decision": allow});
    let mut events = vec![said("user", "prompt", &json!("Look everywhere."))];
    events.extend(opened("a1", None, Some("Explore"), "find all callers of the old parser"));
    events.push((Some("a1"), call("Grep fn parse")));
    events.extend(opened("a2", Some("a1"), Some("general-purpose"), "次の段落を調べて、全部直す"));
    let retry = json!({"reason": "retry", "attempt": 2, "of": 10, "delay_ms": 12_000, "status": 429,
        "error": "slow down", "rate_limited": true});
    events.push((Some("a2"), json!({"type": "waiting", "reason": retry})));
    events.extend(opened("b3", Some("a2"), None, "cargo test\t--workspace"));
    events.extend(opened("a4", None, Some("Plan"), "\u{202e}turned\u{1b}[2J"));
    let ended = json!({"state": "ended", "outcome": "failed", "error": "e"});
    events.push((None, json!({"type": "task_changed", "task": "a4", "state": ended})));
    events
}

pub fn control(letter: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)
}

#[test]
fn agents_at_work() {
    check(
        &agents(),
        &[],
        40,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all cal…  Grep fn parse
              ◌ general-purpose…  rate limi…  1m 36s
                ● $ cargo test --w…  running  1m 33s
              … 1 failed

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
    check(
        &agents(),
        &[],
        80,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all callers of the old parser  Grep fn parse    1 tool · 1m 39s
              ◌ general-purpose · 次の段落を調べ…  rate limited, retry 2 of 10 in 1…  1m 36s
                ● $ cargo test --workspace  running                                   1m 33s
              … 1 failed

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
    check(
        &agents(),
        &[],
        200,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all callers of the old parser  Grep fn parse                                                                                                                            1 tool · 1m 39s
              ◌ general-purpose · 次の段落を調べて、全部直す  rate limited, retry 2 of 10 in 12s                                                                                                              1m 36s
                ● $ cargo test --workspace  running                                                                                                                                                           1m 33s
              … 1 failed

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
}

/// Whatever is typed while the tree has the keys, nothing is sent before an enter.
#[test]
fn letters_over_the_tree_send_nothing() {
    let letters = ['x', 'y', 'n', 'p', 'P', 'b', 'r', '$', 's', 'a', ' ', 'é'];
    for number in 0..letters.len().pow(3) {
        let word = [number % 12, number / 12 % 12, number / 144].map(|at| letters[at]);
        let mut app = app(&agents(), (80, 50));
        app.update(AppInput::Key(control('t')));
        for letter in word {
            let effects = app.update(AppInput::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::NONE)));
            let is_sent = |effect: &Effect| matches!(effect, Effect::Send(_));
            assert!(!effects.iter().any(is_sent), "{word:?}: {effects:?}");
        }
    }
}

#[test]
fn the_view_of_tasks() {
    check(
        &agents(),
        &[control('t')],
        40,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all cal…  Grep fn parse
              ◌ general-purpose…  rate limi…  1m 36s
                ● $ cargo test --w…  running  1m 33s
            ✗ Plan · �turned␛[2J  failed: e       2s
            ↑↓ · enter look, steer · x stop · p
            pause/resume (P: whole subtree) · b
            background · $ budget · r resume · esc
            back · other keys write the prompt

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
    check(
        &agents(),
        &[control('t')],
        80,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all callers of the old parser  Grep fn parse    1 tool · 1m 39s
              ◌ general-purpose · 次の段落を調べ…  rate limited, retry 2 of 10 in 1…  1m 36s
                ● $ cargo test --workspace  running                                   1m 33s
            ✗ Plan · �turned␛[2J  failed: e                                               2s
            ↑↓ · enter look, steer · x stop · p pause/resume (P: whole subtree) · b
            background · $ budget · r resume · esc back · other keys write the prompt

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
    check(
        &agents(),
        &[control('t')],
        200,
        &expect![[r#"

            > Look everywhere.

            ● Explore · find all callers of the old parser  Grep fn parse                                                                                                                            1 tool · 1m 39s
              ◌ general-purpose · 次の段落を調べて、全部直す  rate limited, retry 2 of 10 in 12s                                                                                                              1m 36s
                ● $ cargo test --workspace  running                                                                                                                                                           1m 33s
            ✗ Plan · �turned␛[2J  failed: e                                                                                                                                                                       2s
            ↑↓ · enter look, steer · x stop · p pause/resume (P: whole subtree) · b background · $ budget · r resume · esc back · other keys write the prompt

            >
            ask before acting · 2 working, 1 waiting
        "#]],
    );
}

/// A question about a call, by whom on which path.
pub fn asked(
    agent: Option<&'static str>,
    path: &[&str],
    tool: &str,
    input: &Value,
    rules: &[&str],
) -> Vec<Happens> {
    let mut events = agents();
    let suggestions: Vec<Value> =
        rules.iter().map(|rule| json!({"tool": tool, "specifier": rule, "source": "session"})).collect();
    let question = json!({"id": uuid::Uuid::nil(), "agent": agent, "path": path, "call": "q", "tool": tool, "input": input,
        "intent": Intent::titled(format!("{tool} something")), "reason": "no rule allows this", "suggestions": suggestions});
    events.push((agent, json!({"type": "asked", "question": question})));
    events
}

/// A question of a server.
pub fn elicited(wanted: &Value) -> Vec<Happens> {
    let mut events = asked(None, &[], "mcp__notes__add", &json!({}), &[]);
    let mut asks = json!({"server": "notes", "message": "The server wants to know who you are.", "calls": 1});
    asks.as_object_mut().unwrap().extend(wanted.as_object().unwrap().clone());
    events.last_mut().unwrap().1["question"]["elicitation"] = asks;
    events
}

const PLAN: &str =
    "## Plan\n\n1. count *characters*\n2. test with 日本語\n\n```sh\ncargo test\u{1b}[2J\n```\n";

/// Every kind of question, one below the other.
fn questions(columns: u16) -> String {
    let content = (0..40).fold(String::new(), |text, at| format!("{text}x_{at} = \"日本\"\n"));
    let choices = json!({"questions": [
        {"question": "Which parser, 新しい or old?", "header": "Parser", "multiSelect": true, "options": [
            {"label": "The new one", "description": "counts characters as people see them, and is slower by a little"},
            {"label": "古い方", "description": "counts bytes\u{1b}[2J"}]},
        {"question": "When?", "header": "Time", "multiSelect": false, "options": [
            {"label": "Now", "description": ""}, {"label": "Later", "description": ""}]},
    ]});
    let kinds = [
        asked(
            None,
            &[],
            "Bash",
            &json!({"command": "rm -rf target && \\\n\techo \u{1b}[8mhidden\u{202e} >> 'ノート.txt'"}),
            &["rm:*"],
        ),
        asked(
            Some("a2"),
            &["Explore", "general-purpose"],
            "Edit",
            &json!({"file_path": "/w/src/parse.rs", "old_string": "\ttext.len()", "new_string": "\ttext.chars().count() // 文字, as people see them"}),
            &[],
        ),
        asked(None, &[], "Write", &json!({"file_path": "/w/新しい.py", "content": content}), &[]),
        asked(None, &[], "mcp__notes__add", &json!({"title": "e\u{301}\u{200b}", "tags": ["a", "b"]}), &[]),
        asked(None, &[], "AskUserQuestion", &choices, &[]),
        asked(Some("a1"), &["Explore"], "ExitPlanMode", &json!({"plan": PLAN}), &[]),
        elicited(&json!({"mode": "form", "schema": {"type": "object", "required": ["名前"], "properties": {
            "名前": {"type": "string", "description": "who you are\u{1b}[2J"}, "agrees": {"type": "boolean"}}}})),
        elicited(
            &json!({"mode": "url", "url": "https://example.org/a/rather/long/way?to=\u{202e}somewhere", "elicitation_id": "e"}),
        ),
    ];
    let shown = kinds.iter().map(|events| {
        let mut app = app(events, (columns, 50));
        app.drawn_once();
        let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
        assert!(lines.iter().all(|line| line.width() <= usize::from(columns)), "{lines:?}");
        // What is above the question is shown elsewhere.
        let from = lines.iter().rposition(|line| line.to_string().starts_with("? ")).unwrap();
        rows(lines[from..].to_vec(), columns)
    });
    shown.collect::<Vec<_>>().join("──\n")
}

#[test]
fn every_kind_of_question() {
    expect![[r#"
        ? Run this command?
          $ rm -rf target && \
              echo ␛[8mhidden� >> 'ノート.txt'
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, for the rest of this session:
             Bash(rm:*)
          3. Yes, always in this project:
             Bash(rm:*)
          4. No, and tell it what to do instead
          5. No, and stop (esc)
        1 question · ask before acting
        ──
        ? Explore › general-purpose › Edit
          something?
          /w/src/parse.rs
          -     text.len()
          +     text.chars().count() // 文字, as
            people see them
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting
        ──
        ? Write something?
          /w/新しい.py
           1 + x_0 = "日本"
           2 + x_1 = "日本"
           3 + x_2 = "日本"
           4 + x_3 = "日本"
           5 + x_4 = "日本"
           6 + x_5 = "日本"
           7 + x_6 = "日本"
           8 + x_7 = "日本"
           9 + x_8 = "日本"
          10 + x_9 = "日本"
          11 + x_10 = "日本"
          12 + x_11 = "日本"
          13 + x_12 = "日本"
          14 + x_13 = "日本"
          15 + x_14 = "日本"
          16 + x_15 = "日本"
          17 + x_16 = "日本"
          18 + x_17 = "日本"
          19 + x_18 = "日本"
          20 + x_19 = "日本"
          21 + x_20 = "日本"
          22 + x_21 = "日本"
          23 + x_22 = "日本"
          24 + x_23 = "日本"
          25 + x_24 = "日本"
          26 + x_25 = "日本"
          27 + x_26 = "日本"
          28 + x_27 = "日本"
          29 + x_28 = "日本"
          30 + x_29 = "日本"
          31 + x_30 = "日本"
          32 + x_31 = "日本"
          33 + x_32 = "日本"
          34 + x_33 = "日本"
          35 + x_34 = "日本"
          36 + x_35 = "日本"
          37 + x_36 = "日本"
          38 + x_37 = "日本"
          … 2 more lines (ctrl+o to see all)
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, and all edits in this session
          3. No, and tell it what to do instead
          4. No, and stop (esc)
        1 question · ask before acting
        ──
        ? mcp__notes__add something?
          {
            "title": "é�",
            "tags": [
              "a",
              "b"
            ]
          }
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting
        ──
        ? The model has a question
          [Parser] · Time · Send
          Which parser, 新しい or old? (1 of 2)
        ❯ 1. [ ] The new one
             counts characters as people see
             them, and is slower by a little
          2. [ ] 古い方
             counts bytes␛[2J
          3. Other…
          space to select, enter to confirm
        1 question · ask before acting
        ──
        ? Explore › Start with this plan?
          Plan

          1. count characters
          2. test with 日本語

            cargo test␛[2J
        ────────────────────────────────────────
        ❯ 1. Yes, and auto-accept edits
          2. Yes, and ask before each change
          3. No, keep planning: tell it what to
             change
          4. No, and stop (esc)
        1 question · ask before acting
        ──
        ? The MCP server notes asks
          The server wants to know who you are.
          (1 of 3)
        ❯ 1. Answer it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting
        ──
        ? The MCP server notes asks
          The server wants to know who you are.
          https://example.org/a/rather/long/way?
          to=�somewhere
        ❯ 1. I have opened it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting
    "#]]
    .assert_eq(&questions(40));
    expect![[r#"
        ? Run this command?
          $ rm -rf target && \
              echo ␛[8mhidden� >> 'ノート.txt'
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, for the rest of this session: Bash(rm:*)
          3. Yes, always in this project: Bash(rm:*)
          4. No, and tell it what to do instead
          5. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? Explore › general-purpose › Edit something?
          /w/src/parse.rs
          -     text.len()
          +     text.chars().count() // 文字, as people see them
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting · 2 working
        ──
        ? Write something?
          /w/新しい.py
           1 + x_0 = "日本"
           2 + x_1 = "日本"
           3 + x_2 = "日本"
           4 + x_3 = "日本"
           5 + x_4 = "日本"
           6 + x_5 = "日本"
           7 + x_6 = "日本"
           8 + x_7 = "日本"
           9 + x_8 = "日本"
          10 + x_9 = "日本"
          11 + x_10 = "日本"
          12 + x_11 = "日本"
          13 + x_12 = "日本"
          14 + x_13 = "日本"
          15 + x_14 = "日本"
          16 + x_15 = "日本"
          17 + x_16 = "日本"
          18 + x_17 = "日本"
          19 + x_18 = "日本"
          20 + x_19 = "日本"
          21 + x_20 = "日本"
          22 + x_21 = "日本"
          23 + x_22 = "日本"
          24 + x_23 = "日本"
          25 + x_24 = "日本"
          26 + x_25 = "日本"
          27 + x_26 = "日本"
          28 + x_27 = "日本"
          29 + x_28 = "日本"
          30 + x_29 = "日本"
          31 + x_30 = "日本"
          32 + x_31 = "日本"
          33 + x_32 = "日本"
          34 + x_33 = "日本"
          35 + x_34 = "日本"
          36 + x_35 = "日本"
          37 + x_36 = "日本"
          38 + x_37 = "日本"
          … 2 more lines (ctrl+o to see all)
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, and all edits in this session
          3. No, and tell it what to do instead
          4. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? mcp__notes__add something?
          {
            "title": "é�",
            "tags": [
              "a",
              "b"
            ]
          }
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? The model has a question
          [Parser] · Time · Send
          Which parser, 新しい or old? (1 of 2)
        ❯ 1. [ ] The new one
             counts characters as people see them, and is slower by a little
          2. [ ] 古い方
             counts bytes␛[2J
          3. Other…
          space to select, enter to confirm
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? Explore › Start with this plan?
          Plan

          1. count characters
          2. test with 日本語

            cargo test␛[2J
        ────────────────────────────────────────
        ❯ 1. Yes, and auto-accept edits
          2. Yes, and ask before each change
          3. No, keep planning: tell it what to change
          4. No, and stop (esc)
        1 question · ask before acting · 1 working, 1 waiting
        ──
        ? The MCP server notes asks
          The server wants to know who you are. (1 of 3)
        ❯ 1. Answer it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? The MCP server notes asks
          The server wants to know who you are.
          https://example.org/a/rather/long/way?to=�somewhere
        ❯ 1. I have opened it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting · 2 working, 1 waiting
    "#]]
    .assert_eq(&questions(80));
    expect![[r#"
        ? Run this command?
          $ rm -rf target && \
              echo ␛[8mhidden� >> 'ノート.txt'
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, for the rest of this session: Bash(rm:*)
          3. Yes, always in this project: Bash(rm:*)
          4. No, and tell it what to do instead
          5. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? Explore › general-purpose › Edit something?
          /w/src/parse.rs
          -     text.len()
          +     text.chars().count() // 文字, as people see them
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting · 2 working
        ──
        ? Write something?
          /w/新しい.py
           1 + x_0 = "日本"
           2 + x_1 = "日本"
           3 + x_2 = "日本"
           4 + x_3 = "日本"
           5 + x_4 = "日本"
           6 + x_5 = "日本"
           7 + x_6 = "日本"
           8 + x_7 = "日本"
           9 + x_8 = "日本"
          10 + x_9 = "日本"
          11 + x_10 = "日本"
          12 + x_11 = "日本"
          13 + x_12 = "日本"
          14 + x_13 = "日本"
          15 + x_14 = "日本"
          16 + x_15 = "日本"
          17 + x_16 = "日本"
          18 + x_17 = "日本"
          19 + x_18 = "日本"
          20 + x_19 = "日本"
          21 + x_20 = "日本"
          22 + x_21 = "日本"
          23 + x_22 = "日本"
          24 + x_23 = "日本"
          25 + x_24 = "日本"
          26 + x_25 = "日本"
          27 + x_26 = "日本"
          28 + x_27 = "日本"
          29 + x_28 = "日本"
          30 + x_29 = "日本"
          31 + x_30 = "日本"
          32 + x_31 = "日本"
          33 + x_32 = "日本"
          34 + x_33 = "日本"
          35 + x_34 = "日本"
          36 + x_35 = "日本"
          37 + x_36 = "日本"
          38 + x_37 = "日本"
          … 2 more lines (ctrl+o to see all)
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. Yes, and all edits in this session
          3. No, and tell it what to do instead
          4. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? mcp__notes__add something?
          {
            "title": "é�",
            "tags": [
              "a",
              "b"
            ]
          }
          Reason: no rule allows this
        ❯ 1. Yes, this once
          2. No, and tell it what to do instead
          3. No, and stop (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? The model has a question
          [Parser] · Time · Send
          Which parser, 新しい or old? (1 of 2)
        ❯ 1. [ ] The new one
             counts characters as people see them, and is slower by a little
          2. [ ] 古い方
             counts bytes␛[2J
          3. Other…
          space to select, enter to confirm
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? Explore › Start with this plan?
          Plan

          1. count characters
          2. test with 日本語

            cargo test␛[2J
        ────────────────────────────────────────
        ❯ 1. Yes, and auto-accept edits
          2. Yes, and ask before each change
          3. No, keep planning: tell it what to change
          4. No, and stop (esc)
        1 question · ask before acting · 1 working, 1 waiting
        ──
        ? The MCP server notes asks
          The server wants to know who you are. (1 of 3)
        ❯ 1. Answer it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting · 2 working, 1 waiting
        ──
        ? The MCP server notes asks
          The server wants to know who you are.
          https://example.org/a/rather/long/way?to=�somewhere
        ❯ 1. I have opened it
          2. Decline
          3. Neither (esc)
        1 question · ask before acting · 2 working, 1 waiting
    "#]]
    .assert_eq(&questions(200));
}

#[test]
fn choices_of_files_and_agents() {
    let choice =
        |(text, words): (&str, &str)| Completion { text: text.to_owned(), description: words.to_owned() };
    let choices: Vec<Completion> = [
        ("src/parse.rs", ""),
        ("src/深い/場所/とても長い名前のファイル.rs", ""),
        ("reviewer", "reads what others wrote, and says what is wrong with it before anybody else has to"),
        ("e\u{301}te\u{301}.md\u{1b}[2J", ""),
        ("a\tb \u{202e}c", "👩‍💻"),
        ("five", ""),
        ("six", ""),
        ("seven", ""),
        ("eight", ""),
        ("nine", ""),
    ]
    .map(choice)
    .into();
    let shown = |columns: u16| {
        let theme = Theme::new(Shades::None);
        let popup = Popup { theme: &theme, columns: usize::from(columns), most: 8, sign: "@", chosen: 2 };
        rows(popup.lines(&choices.iter().collect::<Vec<_>>()), columns)
    };
    expect![[r#"
          @src/parse.rs
          @src/深い/場所/と…
        ❯ @reviewer            reads what other…
          @été.md␛[2J
          @a b �c              👩‍💻
          @five
          @six
          … 3 more
    "#]]
    .assert_eq(&shown(40));
    expect![[r#"
          @src/parse.rs
          @src/深い/場所/とても長い名前のファイ…
        ❯ @reviewer                                reads what others wrote, and says wh…
          @été.md␛[2J
          @a b �c                                  👩‍💻
          @five
          @six
          … 3 more
    "#]]
    .assert_eq(&shown(80));
    expect![[r#"
          @src/parse.rs
          @src/深い/場所/とても長い名前のファイル.rs
        ❯ @reviewer                                   reads what others wrote, and says what is wrong with it before anybody else has to
          @été.md␛[2J
          @a b �c                                     👩‍💻
          @five
          @six
          … 3 more
    "#]].assert_eq(&shown(200));
}

#[test]
fn the_status_line() {
    let usual = |app: &mut App| {
        app.known.windows =
            Windows::new(|model| if model == "anthropic/claude-test-4" { 200_000 } else { 0 });
        app.known.sandbox = "landlock".to_owned();
        app.view.root.model = Some("anthropic/claude-test-4".to_owned());
        app.view.root.tokens = 170_000;
    };
    let status = |columns: u16| {
        let mut shown = String::new();
        for events in
            [Vec::new(), conversation(), agents(), asked(None, &[], "Bash", &json!({"command": "x"}), &[])]
        {
            let mut app = app(&events, (columns, 50));
            usual(&mut app);
            let last = app.live(jiff::Timestamp::from_second(100).unwrap()).0.pop().unwrap();
            assert!(last.width() <= usize::from(columns));
            shown.push_str(&rows(vec![last], columns));
        }
        shown
    };
    expect![[r#"
        ask before acting · sandbox: landlock
        ask before acting · sandbox: landlock
        ask before acting · sandbox: landlock
        1 question · ask before acting
    "#]]
    .assert_eq(&status(40));
    expect![[r#"
        ask before acting · claude-test-4 · 85% context · sandbox: landlock
        ask before acting · claude-test-4 · 85% context · sandbox: landlock
        ask before acting · 2 working, 1 waiting · claude-test-4 · sandbox: landlock
        1 question · ask before acting · 2 working, 1 waiting · sandbox: landlock
    "#]]
    .assert_eq(&status(80));
    expect![[r#"
        ask before acting · claude-test-4 · 85% context · sandbox: landlock
        ask before acting · claude-test-4 · 85% context · sandbox: landlock
        ask before acting · 2 working, 1 waiting · claude-test-4 · 85% context · sandbox: landlock
        1 question · ask before acting · 2 working, 1 waiting · claude-test-4 · 85% context · sandbox: landlock
    "#]]
    .assert_eq(&status(200));
}

#[test]
fn no_terminal_is_too_small_and_nothing_commands_it() {
    let screens = [
        conversation(),
        agents(),
        asked(
            Some("a2"),
            &["Explore"],
            "Bash",
            &json!({"command": "echo \u{1b}[2J\u{9b}31m日本"}),
            &["echo:*"],
        ),
        asked(
            None,
            &[],
            "Edit",
            &json!({"file_path": "/日本", "old_string": "a\u{1b}", "new_string": "b\r\nc"}),
            &[],
        ),
    ];
    for events in &screens {
        for columns in (1..60).chain([79, 133, 400]) {
            for height in [1, 2, 5, 50] {
                let mut app = app(events, (columns, height));
                for line in all(&mut app) {
                    let text = line.to_string();
                    assert!(!text.contains(|letter: char| letter.is_control()), "{columns}: {text:?}");
                    // Below that the margins alone take more, and the screen cuts what it is given.
                    assert!(line.width() <= usize::from(columns).max(12), "{columns}: {text:?}");
                }
            }
        }
    }
}

/// What is drawn again at another width, of an answer whose last lines are on the screen.
fn drawn_again(text: &str, (before, after): (u16, u16), lines: usize) -> (String, String) {
    let events = [said("user", "prompt", &json!("Tell me.")), said("assistant", "model", &json!(text))];
    let mut app = app(&events, (before, 50));
    let shown = |lines: Vec<Line<'static>>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let mut all = app.finished();
    let on_screen = all.split_off(all.len() - lines);
    let place = app.place_of_line(lines, usize::from(before));
    app.resize((after, 50));
    (shown(on_screen), shown(app.finished_from(place)))
}

#[test]
fn what_is_drawn_again_begins_where_the_screen_did() {
    let text: String = (1..=40).map(|number| format!("- pear {number} and a few more words\n")).collect();
    let (before, after) = drawn_again(&text, (80, 40), 5);
    assert_eq!(before, after);
    assert!(before.contains("pear 36 ") && !before.contains("pear 35 "), "{before}");
}

#[test]
fn a_table_that_is_laid_out_otherwise_is_drawn_whole() {
    let row = |number: u32| format!("| pear{number}. | {} |\n", "long words in a cell ".repeat(3));
    let rows: String = (1..=30).map(row).collect();
    let text = format!("| the name of the fruit | what is known of it |\n|---|---|\n{rows}");
    let (before, after) = drawn_again(&text, (12, 120), 40);
    for number in 1..=30 {
        let name = format!("pear{number}.");
        assert!(!before.contains(&name) || after.contains(&name), "{name}\n{before}\n{after}");
    }
    assert!(after.contains("the name of the fruit"), "{after}");
}
