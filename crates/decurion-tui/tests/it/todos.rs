//! The list of steps: in the conversation when it changes, above the prompt while work goes on, and above the tree of
//! tasks.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_tui::app::{App, AppInput};
use expect_test::expect;
use serde_json::{Value, json};

use crate::screens::{Happens, app};

/// A list of so many steps, of which the first ones are done and the next is being worked on.
fn wrote(done: usize, all: usize) -> Happens {
    let step = |at: usize| {
        let status = match at {
            at if at < done => "completed",
            at if at == done => "in_progress",
            _ => "pending",
        };
        json!({"content": format!("Do step {at}\u{1b}[2J"), "activeForm": format!("Doing step {at}"), "status": status})
    };
    let todos: Vec<Value> = (0..all).map(step).collect();
    let output = json!({"content": "kept", "effects": [{"effect": "todos", "todos": todos}]});
    let event = json!({"type": "call_ended", "call": "c1", "tool": "TodoWrite", "line": uuid::Uuid::nil(),
        "parent": null, "output": output, "duration_ms": 5});
    (None, event)
}

fn at_work(events: &[Happens], size: (u16, u16)) -> App {
    let mut app = app(events, size);
    (app.view.at_work, app.view.root.began) = (true, Some(jiff::Timestamp::UNIX_EPOCH));
    app
}

fn live(app: &App) -> String {
    let lines = app.live(jiff::Timestamp::from_second(4).unwrap()).0;
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn told(events: &[Happens]) -> String {
    app(events, (80, 24)).finished().iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn conversation_shows_the_list_when_it_changes() {
    expect![[r#"

        ● TodoWrite
          └ ✓ Do step 0␛[2J
            ▸ Doing step 1
            ○ Do step 2␛[2J
    "#]]
    .assert_eq(&told(&[wrote(1, 3)]));
    // Of a long one, what is done above the step before is counted.
    expect![[r#"

        ● TodoWrite
          └ ✓ 8 done
            ✓ Do step 8␛[2J
            ▸ Doing step 9
            ○ Do step 10␛[2J
            ○ Do step 11␛[2J
            ○ Do step 12␛[2J
            ○ Do step 13␛[2J
            ○ Do step 14␛[2J
            ○ Do step 15␛[2J
            ○ Do step 16␛[2J
            ○ Do step 17␛[2J
            … 2 more
    "#]]
    .assert_eq(&told(&[wrote(9, 20)]));
}

#[test]
fn list_stays_above_the_prompt_while_work_goes_on() {
    expect![[r#"

        ⣾ Waiting for the model… · 4s
          ✓ Do step 0␛[2J
          ▸ Doing step 1
          ○ Do step 2␛[2J

        > 
        ask before acting
    "#]]
    .assert_eq(&live(&at_work(&[wrote(1, 3)], (30, 24))));
    expect![[r#"

        ⣾ Waiting for the model… · 4s
          ✓ 5 done
          ✓ Do step 5␛[2J
          ✓ Do step 6␛[2J
          ▸ Doing step 7
          ○ Do step 8␛[2J

        > 
        ask before acting
    "#]]
    .assert_eq(&live(&at_work(&[wrote(7, 9)], (30, 24))));
    // In a low terminal the step in progress is what is shown.
    for rows in [12, 13, 15] {
        let shown = live(&at_work(&[wrote(5, 20)], (30, rows)));
        assert!(shown.contains("▸ Doing step 5"), "{rows}: {shown}");
    }
    // Nothing is left to do, nobody works, or there is no room.
    for app in
        [at_work(&[wrote(3, 3)], (30, 24)), app(&[wrote(1, 3)], (30, 24)), at_work(&[wrote(1, 3)], (30, 9))]
    {
        let shown = live(&app);
        assert!(!shown.contains("step"), "{shown}");
    }
}

#[test]
fn task_panel_shows_the_list_first() {
    let mut app = app(&[wrote(1, 3)], (60, 24));
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('t'), KeyModifiers::CONTROL)));
    expect![[r#"

        ✓ Do step 0␛[2J
        ▸ Doing step 1
        ○ Do step 2␛[2J
        ↑↓ · enter look, steer · x stop · p pause/resume (P: whole
        subtree) · b background · $ budget · r resume · esc back ·
        other keys write the prompt

        > 
        ask before acting
    "#]]
    .assert_eq(&live(&app));
}

/// A run that ended like this, the next prompt, and the steps that stand above the prompt then.
fn pinned_after(written: Happens, outcome: &Value) -> String {
    let ended =
        json!({"type": "run_ended", "outcome": outcome, "totals": decurion_protocol::Totals::default()});
    let prompt = crate::screens::said("user", "prompt", &json!("and now?"));
    let mut app = app(&[written, (None, ended), prompt], (30, 24));
    (app.view.at_work, app.view.root.ended) = (true, None);
    app.view.root.began = Some(jiff::Timestamp::UNIX_EPOCH);
    live(&app).lines().filter(|line| line.contains("step")).collect::<Vec<_>>().join("\n")
}

#[test]
fn list_of_work_that_is_done_is_not_shown_for_the_next_prompt() {
    let (done, killed) =
        (json!({"outcome": "completed", "report": "r"}), json!({"outcome": "killed", "by": "an interrupt"}));
    assert_eq!(pinned_after(wrote(1, 3), &done), "");
    assert_eq!(pinned_after(wrote(3, 3), &killed), "");
    // What was interrupted may go on with the next prompt.
    assert!(pinned_after(wrote(1, 3), &killed).contains("▸ Doing step 1"));
}
