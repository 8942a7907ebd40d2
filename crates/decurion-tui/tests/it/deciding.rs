//! Who gets a key while a question is open: a script of events and keys, and what is asked of the session.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Answer, Command, Request};
use decurion_tui::app::{App, AppInput, Effect};
use serde_json::{Value, json};

use crate::screens::{Happens, app, asked, elicited};

const SIZE: (u16, u16) = (80, 24);

fn command(text: &str) -> Value {
    json!({"command": text})
}

/// Presses a key; what is asked of the session.
fn press(app: &mut App, code: KeyCode) -> Vec<Command> {
    let effects = app.update(AppInput::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    let sent = |effect| match effect {
        Effect::Send(Request { command, .. }) => Some(command),
        _ => None,
    };
    effects.into_iter().filter_map(sent).collect()
}

/// Types a text; what is asked of the session.
fn write(app: &mut App, text: &str) -> Vec<Command> {
    text.chars().flat_map(|letter| press(app, KeyCode::Char(letter))).collect()
}

/// What is on the screen below the conversation.
fn live(app: &mut App) -> String {
    let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
    app.drawn_once();
    // A terminal of this size shows the last of them.
    let from = lines.len().saturating_sub(usize::from(SIZE.1) - 1);
    lines[from..].iter().map(|line| format!("{line}\n")).collect()
}

fn allows(commands: &[Command]) -> bool {
    matches!(commands, [Command::Answer { answer: Answer::Allow { .. }, .. }])
}

fn take(app: &mut App, event: &Happens) {
    crate::screens::happen(app, 1000, event);
}

#[test]
fn a_question_that_was_never_in_sight_is_not_turned_to() {
    let mut app = app(&[], SIZE);
    write(&mut app, "a draft");
    for event in asked(None, &[], "Bash", &command("make"), &[]) {
        take(&mut app, &event);
    }
    assert_eq!((press(&mut app, KeyCode::Tab), press(&mut app, KeyCode::Char('1'))), (vec![], vec![]));
    assert!(live(&mut app).contains("> a draft1"));
    // In sight: it is.
    press(&mut app, KeyCode::Tab);
    assert!(allows(&press(&mut app, KeyCode::Char('1'))));
}

#[test]
fn a_question_is_drawn_at_once_as_it_is_answered() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &[]), SIZE);
    let first = live(&mut app);
    assert!(!first.contains("tab to answer") && !first.contains("\n> "), "{first}");
    assert_eq!(first, live(&mut app));
}

#[test]
fn a_key_that_takes_a_proposal_turns_to_no_question() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &[]), SIZE);
    write(&mut app, "/comp");
    assert!(live(&mut app).contains("/compact"));
    press(&mut app, KeyCode::Tab);
    assert!(live(&mut app).contains("> /compact"));
    let sent = press(&mut app, KeyCode::Enter);
    assert!(matches!(sent[..], [Command::Compact { .. }]), "{sent:?}");
}

#[test]
fn whoever_writes_on_after_turning_to_a_question_writes_the_prompt() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &[]), SIZE);
    write(&mut app, "run");
    live(&mut app);
    press(&mut app, KeyCode::Tab);
    assert_eq!(write(&mut app, " 1 test"), []);
    assert!(live(&mut app).contains("> run 1 test"));
}

#[test]
fn while_words_are_written_for_an_answer_no_key_changes_the_prompt() {
    let mut app = app(&[], SIZE);
    write(&mut app, "earlier");
    let sent = press(&mut app, KeyCode::Enter);
    let [Command::Submit { line, .. }] = &sent[..] else { panic!("a prompt is sent: {sent:?}") };
    let begun = json!({"type": "message", "message": {"role": "user", "content": "earlier"}, "lines": [line],
        "parent": null, "meta": {"origin": "prompt"}});
    take(&mut app, &(None, begun));
    for event in asked(None, &[], "Bash", &command("make"), &[]) {
        take(&mut app, &event);
    }
    live(&mut app);
    press(&mut app, KeyCode::Char('2'));
    press(&mut app, KeyCode::Up);
    write(&mut app, "use ninja");
    assert!(live(&mut app).contains("tell it: use ninja"));
    let sent = press(&mut app, KeyCode::Enter);
    let [Command::Answer { answer: Answer::Deny { message, .. }, .. }] = &sent[..] else {
        panic!("the words are the answer: {sent:?}")
    };
    assert_eq!(message, "use ninja");
}

#[test]
fn who_asks_what_and_the_chosen_answer_are_in_sight_however_much_there_is() {
    let long = "echo one && ".repeat(60) + "echo two";
    let rules: Vec<String> = (0..8).map(|at| format!("cargo run --example number-{at} --release")).collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    for columns in [44, 80] {
        let mut app = app(&asked(None, &[], "Bash", &command(&long), &rules), (columns, SIZE.1));
        let screen = live(&mut app);
        assert!(screen.contains("? Run this command?"), "{columns}\n{screen}");
        assert!(
            screen.contains("$ echo one") && screen.contains("❯ 1. Yes, this once"),
            "{columns}\n{screen}"
        );
        assert!(screen.contains("ctrl+o to see all"), "{columns}\n{screen}");
        for _ in 0..3 {
            press(&mut app, KeyCode::Down);
        }
        let screen = live(&mut app);
        assert!(screen.contains("$ echo one") && screen.contains("❯ 4. No, and tell"), "{columns}\n{screen}");
    }
}

#[test]
fn in_the_smallest_terminal_the_answer_that_enter_gives_is_in_sight() {
    for (columns, rows) in [(44, 10), (44, 8), (30, 8), (20, 8), (20, 6)] {
        let mut app =
            app(&asked(None, &[], "Bash", &command("touch narrow"), &["touch narrow"]), (columns, rows));
        for (at, words) in ["Yes", "Yes", "Yes", "No", "No"].iter().enumerate() {
            let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
            app.drawn_once();
            let from = lines.len().saturating_sub(usize::from(rows));
            let screen: String = lines[from..].iter().map(|line| format!("{line}\n")).collect();
            let answer = format!("❯ {}. {words}", at + 1);
            assert!(screen.contains(&answer), "{columns}x{rows}, {answer}:\n{screen}");
            let is_named = screen.contains("? Run: touch narrow") || screen.contains("$ touch");
            assert!(screen.contains("? Run") && is_named, "{columns}x{rows}:\n{screen}");
            press(&mut app, KeyCode::Down);
        }
    }
}

#[test]
fn leaving_the_sandbox_is_in_the_title_and_the_answer_however_low_the_terminal() {
    let input = json!({"command": "mkdir -p ~/x", "dangerouslyDisableSandbox": true});
    for rows in [30, 14, 9] {
        let mut app = app(&asked(None, &[], "Bash", &input, &[]), (80, rows));
        let screen = live(&mut app);
        assert!(screen.contains("? Run without the sandbox: mkdir -p ~/x"), "{rows}:\n{screen}");
        assert!(screen.contains("❯ 1. Yes, without the sandbox"), "{rows}:\n{screen}");
    }
}

#[test]
fn a_description_neither_hides_the_command_nor_looks_like_one() {
    let description = format!("{}\n$ ls", "harmless ".repeat(100));
    let input =
        json!({"command": format!("echo one\nrm -rf {}", "x".repeat(60)), "description": description});
    let mut app = app(&asked(None, &[], "Bash", &input, &[]), (80, 20));
    let screen = live(&mut app);
    assert!(screen.contains("  $ echo one\n") && screen.contains("\n  rm -rf x"), "{screen}");
    assert!(screen.contains("  Description: harmless ") && !screen.contains("$ ls"), "{screen}");
}

#[test]
fn a_question_gives_way_to_what_has_the_keys() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &["make"]), (80, 9));
    live(&mut app);
    let control = KeyEvent::new(KeyCode::Char('d'), KeyModifiers::CONTROL);
    app.update(AppInput::Key(control));
    let screen = live(&mut app);
    assert!(screen.contains("still running") && screen.contains("❯ Wait"), "{screen}");
    assert_eq!(screen.matches('❯').count(), 1, "{screen}");
    assert!(screen.contains("? Run: make") && !screen.contains("this once"), "{screen}");
    // Below what is being written it is whole, and takes no key.
    press(&mut app, KeyCode::Esc);
    write(&mut app, "a draft");
    let screen = live(&mut app);
    assert!(screen.contains("1. Yes, this once") && !screen.contains('❯'), "{screen}");
}

#[test]
fn whoever_waits_to_leave_stays_by_one_key_whatever_is_asked() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &["make"]), SIZE);
    live(&mut app);
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('d'), KeyModifiers::CONTROL)));
    assert_eq!(press(&mut app, KeyCode::Char('1')), []);
    // Also after another key.
    press(&mut app, KeyCode::Down);
    assert!(live(&mut app).contains("leaves when everything is done; esc stays"));
    assert_eq!(press(&mut app, KeyCode::Esc), []);
    let screen = live(&mut app);
    assert!(!screen.contains("leaves when") && screen.contains("❯ 2. Yes"), "{screen}");
}

#[test]
fn in_the_smallest_terminal_what_enter_takes_of_a_list_is_in_sight() {
    for (columns, rows) in [(44, 10), (30, 8), (20, 6)] {
        let mut app = app(&asked(None, &[], "Bash", &command("make"), &["make"]), (columns, rows));
        app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('d'), KeyModifiers::CONTROL)));
        let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
        let from = lines.len().saturating_sub(usize::from(rows));
        let screen: String = lines[from..].iter().map(|line| format!("{line}\n")).collect();
        assert!(screen.contains("❯ Wait"), "{columns}x{rows}:\n{screen}");
    }
}

#[test]
fn a_question_over_which_something_was_written_takes_no_key_by_itself() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &["make"]), SIZE);
    live(&mut app);
    write(&mut app, "abc");
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)));
    assert!(live(&mut app).contains("tab to answer it"));
    assert_eq!(write(&mut app, "2 things"), []);
    assert!(live(&mut app).contains("> 2 things"));
    // Sent, it is still not turned to.
    assert!(matches!(press(&mut app, KeyCode::Enter)[..], [Command::Submit { .. }]));
    live(&mut app);
    assert_eq!(write(&mut app, "1"), []);
    live(&mut app);
    press(&mut app, KeyCode::Tab);
    assert!(allows(&press(&mut app, KeyCode::Char('1'))));
}

#[test]
fn all_of_a_question_is_on_its_page() {
    let input = json!({"file_path": "notes.txt", "content": "one\ntwo\n"});
    let mut app = app(&asked(Some("a1"), &["main", "a1"], "Write", &input, &["notes.txt"]), SIZE);
    live(&mut app);
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('o'), KeyModifiers::CONTROL)));
    let page: String = app.page().unwrap().0.iter().map(|line| format!("{line}\n")).collect();
    assert!(page.contains("Explore · find all callers") && page.contains("content:\none\ntwo\n"), "{page}");
    assert!(page.contains("Reason: no rule allows this"), "{page}");
}

#[test]
fn a_servers_many_words_do_not_hide_that_it_is_a_server() {
    let mut events = elicited(
        &json!({"mode": "form", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}}),
    );
    let question = &mut events.last_mut().unwrap().1["question"];
    question["elicitation"]["message"] = json!("All is well, go on. ".repeat(200));
    let mut app = app(&events, SIZE);
    let screen = live(&mut app);
    assert!(screen.contains("The MCP server notes asks") && screen.contains("❯ 1. "), "{screen}");
}

#[test]
fn all_rules_of_a_call_are_taken_together() {
    let mut app = app(&asked(None, &[], "Bash", &command("make && ninja"), &["make", "ninja"]), SIZE);
    let screen = live(&mut app);
    assert!(screen.contains("for the rest of this session: Bash(make), Bash(ninja)"), "{screen}");
    let sent = press(&mut app, KeyCode::Char('2'));
    let [Command::Answer { answer: Answer::Allow { rules, .. }, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(rules.len(), 2);
}

#[test]
fn an_answer_holds_for_whom_its_words_say_it_does() {
    let allowed = |behind: bool, number: char| {
        let mut events = asked(None, &[], "Bash", &command("make"), &["make"]);
        events.last_mut().unwrap().1["question"]["behind"] = json!(behind);
        let mut app = app(&events, SIZE);
        live(&mut app);
        match &press(&mut app, KeyCode::Char(number))[..] {
            [Command::Answer { answer: Answer::Allow { rules, everywhere, .. }, .. }] => {
                Some((rules.iter().map(|rule| rule.source).collect::<Vec<_>>(), *everywhere))
            }
            _ => None,
        }
    };
    let (session, file) = (vec![RuleSource::Session], vec![RuleSource::LocalSettings]);
    let (once, for_all, always) = ((vec![], false), (session.clone(), true), (file, true));
    let from_front = ['1', '2', '3', '4'].map(|number| allowed(false, number));
    assert_eq!(from_front, [Some(once.clone()), Some(for_all.clone()), Some(always.clone()), None]);
    let from_behind = ['1', '2', '3', '4', '5'].map(|number| allowed(true, number));
    assert_eq!(from_behind, [Some(once), Some((session, false)), Some(for_all), Some(always), None]);
}

#[test]
fn a_form_that_is_refused_keeps_what_was_written() {
    let form = json!({"mode": "form", "schema": {"type": "object", "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}}}});
    let mut app = app(&elicited(&form), SIZE);
    live(&mut app);
    press(&mut app, KeyCode::Char('1'));
    assert!(live(&mut app).contains("name (2 of 3)"));
    write(&mut app, "Ada");
    press(&mut app, KeyCode::Enter);
    write(&mut app, "many");
    assert_eq!(press(&mut app, KeyCode::Enter).len(), 1);
    // Until it is refused it is not asked again.
    assert!(!live(&mut app).contains("The MCP server notes asks"));
    let refused = json!({"reply": "refused", "reason": "that is no age"});
    take(&mut app, &(None, json!({"type": "replied", "request": 1, "reply": refused})));
    assert!(live(&mut app).contains("The MCP server notes asks"));
    press(&mut app, KeyCode::Char('1'));
    let screen = live(&mut app);
    assert!(screen.contains("answer: Ada"), "{screen}");
}

#[test]
fn a_call_that_is_over_asks_nothing_and_hides_no_other_question() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &[]), SIZE);
    live(&mut app);
    let over = json!({"type": "call_ended", "call": "q", "tool": "Bash", "line": uuid::Uuid::nil(), "parent": null,
        "output": {"content": "interrupted", "is_error": true}, "duration_ms": 5});
    take(&mut app, &(None, over));
    let mut next = asked(None, &[], "Bash", &command("ninja"), &[]).pop().unwrap();
    next.1["question"]["id"] = json!(uuid::Uuid::from_u128(7));
    next.1["question"]["call"] = json!("r");
    take(&mut app, &next);
    let screen = live(&mut app);
    assert!(screen.contains("? Run: ninja") && !screen.contains("make"), "{screen}");
    assert!(allows(&press(&mut app, KeyCode::Char('1'))));
}

#[test]
fn the_next_question_is_there_as_soon_as_one_is_answered() {
    let mut app = app(&asked(None, &[], "Bash", &command("make"), &[]), SIZE);
    let mut next = asked(None, &[], "Bash", &command("ninja"), &[]).pop().unwrap();
    next.1["question"]["id"] = json!(uuid::Uuid::from_u128(7));
    take(&mut app, &next);
    assert!(live(&mut app).contains("? Run: make"));
    assert!(allows(&press(&mut app, KeyCode::Char('1'))));
    // Not before it was in sight.
    assert!(live(&mut app).contains("? Run: ninja"));
    assert!(allows(&press(&mut app, KeyCode::Char('1'))));
    assert!(!live(&mut app).contains("? Run"));
}

#[test]
fn leaving_asks_about_a_turn_too() {
    let mut app = app(&[], SIZE);
    write(&mut app, "work");
    press(&mut app, KeyCode::Enter);
    write(&mut app, "/quit");
    press(&mut app, KeyCode::Enter);
    let screen = live(&mut app);
    assert!(screen.contains("Still running") && screen.contains("Stop and quit"), "{screen}");
}

#[test]
fn a_prompt_that_nobody_began_is_given_back() {
    let mut app = app(&[], SIZE);
    write(&mut app, "/deplooy it");
    let sent = press(&mut app, KeyCode::Enter);
    assert!(matches!(sent[..], [Command::Submit { .. }]), "{sent:?}");
    take(&mut app, &(None, json!({"type": "replied", "request": 1, "reply": {"reply": "done"}})));
    take(&mut app, &(None, json!({"type": "quiet", "quiet": false, "queued": 0})));
    assert!(!live(&mut app).contains("> /deplooy"));
    take(&mut app, &(None, json!({"type": "quiet", "quiet": true, "queued": 0})));
    assert!(live(&mut app).contains("> /deplooy it"));
}
