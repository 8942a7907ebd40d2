//! The lines at the bottom with a person's own among them: what those replace, and what they never hide.

use decurion_protocol::Mode;
use decurion_tui::app::App;
use decurion_tui::view::status::OwnStatusLine;
use expect_test::expect;
use serde_json::json;

use crate::screens::{Happens, agents, app, asked};

/// The lines below the prompt.
fn bottom(app: &App) -> String {
    let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
    let prompt = lines.iter().rposition(|line| line.to_string().starts_with('>')).unwrap();
    lines[prompt + 1..].iter().map(|line| format!("{line}\n")).collect()
}

/// What is below the prompt after these events, in this mode, with a line of a person's own.
fn shown(events: &[Happens], mode: Mode, own: &OwnStatusLine, size: (u16, u16)) -> String {
    let mut app = app(events, size);
    (app.view.mode, app.known.own) = (mode, own.clone());
    app.view.root.model = Some("anthropic/claude-test-4".to_owned());
    bottom(&app)
}

#[test]
fn a_line_of_ones_own_hides_neither_the_mode_nor_who_works() {
    let own = OwnStatusLine::Says("one\ntwo\nthree\nfour".to_owned());
    let mut all = String::new();
    for (what, events) in [("nobody works", Vec::new()), ("some work", agents())] {
        for mode in [Mode::Default, Mode::AcceptEdits, Mode::BypassPermissions] {
            let shown = shown(&events, mode, &own, (80, 24));
            all.push_str(&format!("-- {what}, {mode}\n{shown}"));
        }
    }
    expect![[r#"
        -- nobody works, default
        one
        two
        three
        -- nobody works, acceptEdits
        one
        two
        three
        auto-accept edits
        -- nobody works, bypassPermissions
        one
        two
        three
        ⚠ bypass permissions
        -- some work, default
        one
        two
        three
        2 working, 1 waiting
        -- some work, acceptEdits
        one
        two
        three
        auto-accept edits · 2 working, 1 waiting
        -- some work, bypassPermissions
        one
        two
        three
        ⚠ bypass permissions · 2 working, 1 waiting
    "#]]
    .assert_eq(&all);
}

#[test]
fn a_low_terminal_shows_less_of_it_and_the_mode_all_the_same() {
    let own = OwnStatusLine::Says("one\ntwo\nthree".to_owned());
    let low = |rows| shown(&[], Mode::BypassPermissions, &own, (20, rows));
    assert_eq!(low(8), "one\ntwo\n⚠ bypass permissions\n");
    assert_eq!(low(3), "one\n⚠ bypass permissions\n");
}

#[test]
fn one_that_fails_leaves_the_usual_line_and_says_why() {
    let own = OwnStatusLine::Failed("the command\u{1b}[2J ended with 3".to_owned());
    expect![[r#"
        status line: the command␛[2J ended with 3
        plan mode · claude-test-4
    "#]]
    .assert_eq(&shown(&[], Mode::Plan, &own, (80, 24)));
}

#[test]
fn a_question_and_a_hint_are_told_in_its_place() {
    let own = OwnStatusLine::Says("mine".to_owned());
    let mut app = app(&asked(None, &[], "Bash", &json!({"command": "x"}), &[]), (80, 24));
    app.known.own = own.clone();
    let last = app.live(jiff::Timestamp::from_second(100).unwrap()).0.pop().unwrap().to_string();
    assert!(last.starts_with("1 question · ask before acting"), "{last}");
    let mut app = crate::screens::app(&[], (80, 24));
    (app.known.own, app.known.hint) = (own, Some("press again to leave".to_owned()));
    assert_eq!(bottom(&app), "press again to leave\n");
}

#[test]
fn its_colours_are_seen_and_what_else_it_sends_is_made_visible() {
    let own = OwnStatusLine::Says("\u{1b}[31mred\u{1b}[0m\u{1b}[2J and what does not fit".to_owned());
    assert_eq!(shown(&[], Mode::Default, &own, (20, 24)), "red␛[2J and what do…\n");
}
