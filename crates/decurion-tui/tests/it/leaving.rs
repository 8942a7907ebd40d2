//! When the program may leave by itself: a script of what comes in, and what is wanted done.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::{Command, Envelope, Event, LineId, Request, RequestId, RunId};
use decurion_tui::app::{App, AppInput, Effect, Farewell};
use decurion_tui::history::History;
use decurion_tui::keymap::Keymap;
use decurion_tui::theme::{Shades, Theme};
use serde_json::{Value, json};

/// What the app wants after an event of the session's own agent.
fn after(app: &mut App, event: Value) -> Vec<Effect> {
    let event: Event = serde_json::from_value(event).unwrap();
    assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
    let (seq, at) = (0, jiff::Timestamp::UNIX_EPOCH);
    let envelope = Envelope { seq, at, agent: None, run: RunId(uuid::Uuid::nil()), event };
    let mut effects = app.update(AppInput::Event(envelope.into()));
    effects.retain(|effect| !matches!(effect, Effect::Errand(..) | Effect::Call));
    effects
}

/// The line of the prompt that was sent.
fn submitted(effects: &[Effect]) -> LineId {
    let line = effects.iter().find_map(|effect| match effect {
        Effect::Send(Request { command: Command::Submit { line, .. }, .. }) => Some(*line),
        _ => None,
    });
    line.expect("a prompt is sent")
}

#[test]
fn a_prompt_that_is_sent_is_begun_and_done_first() {
    let mut app = App::new(Theme::new(Shades::None), Keymap::default(), History::default(), (80, 24));
    app.update(AppInput::Paste("go".to_owned()));
    let sent = app.update(AppInput::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)));
    let line = submitted(&sent);
    assert_eq!(app.leave_when_done(), []);
    // The session has it, and nobody has begun with it.
    let quiet = |quiet| json!({"type": "quiet", "quiet": quiet, "queued": 0});
    assert_eq!(after(&mut app, quiet(false)), []);
    let begun = json!({"type": "message", "message": {"role": "user", "content": "go"}, "lines": [line], "parent": null,
        "meta": {"origin": "prompt"}});
    assert_eq!(after(&mut app, begun), []);
    let asked = after(&mut app, quiet(true));
    let [Effect::Send(Request { id, command: Command::Tasks })] = asked.as_slice() else {
        panic!("the session is asked whether anybody works: {asked:?}")
    };
    assert_eq!(after(&mut app, reply(*id)), [Effect::Leave(Farewell::Close)]);
}

#[test]
fn a_paste_takes_a_first_press_of_the_key_that_leaves_back() {
    let mut app = App::new(Theme::new(Shades::None), Keymap::default(), History::default(), (80, 24));
    let leave = || AppInput::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    app.update(AppInput::Paste("first".to_owned()));
    assert_eq!(app.update(leave()), []);
    app.update(AppInput::Paste("second".to_owned()));
    assert_eq!(app.update(leave()), [], "it empties the prompt");
    assert!(!app.update(leave()).is_empty(), "and only now leaves");
}

/// A prompt of the command line is not one that was typed here: only the session knows of it.
#[test]
fn a_prompt_that_only_the_session_knows_of_is_done_first() {
    let mut app = App::new(Theme::new(Shades::None), Keymap::default(), History::default(), (80, 24));
    let asked = app.leave_when_done();
    let [Effect::Send(Request { id, command: Command::Tasks })] = asked.as_slice() else {
        panic!("the session is asked whether anybody works: {asked:?}")
    };
    assert_eq!(after(&mut app, json!({"type": "quiet", "quiet": false, "queued": 0})), []);
    assert_eq!(after(&mut app, reply(*id)), []);
}

/// Whoever presses the key that leaves once too often loses no work by it.
#[test]
fn what_works_in_the_background_is_stopped_by_no_key_that_was_meant_to_leave() {
    let mut app = crate::screens::app(&crate::screens::agents(), (80, 24));
    let mut press = || {
        let mut effects = app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        effects.retain(|effect| matches!(effect, Effect::Leave(_)));
        let shown = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
        (effects, shown.iter().map(|line| format!("{line}\n")).collect::<String>())
    };
    let (effects, shown) = press();
    assert!(effects.is_empty() && shown.contains("press again to leave"), "{shown}");
    let (effects, shown) = press();
    assert!(effects.is_empty() && shown.contains("still running"), "{shown}");
    let (effects, shown) = press();
    assert!(effects.is_empty() && shown.contains("press again to stop it and leave"), "{shown}");
    assert_eq!(press().0, [Effect::Leave(Farewell::Close)]);
}

/// The first press took only what was written: the turn goes on, and is asked about.
#[test]
fn a_turn_is_asked_about_where_the_first_press_took_a_draft() {
    let mut app = App::new(Theme::new(Shades::None), Keymap::default(), History::default(), (80, 24));
    app.update(AppInput::Paste("go".to_owned()));
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)));
    app.update(AppInput::Paste("a draft".to_owned()));
    let leave = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(app.update(AppInput::Key(leave)), []);
    assert_eq!(app.update(AppInput::Key(leave)), []);
    let shown = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
    let shown: String = shown.iter().map(|line| format!("{line}\n")).collect();
    assert!(shown.contains("Still running: go"), "{shown}");
}

fn reply(request: RequestId) -> Value {
    json!({"type": "replied", "request": request, "reply": {"reply": "done", "value": []}})
}

/// A prompt that an earlier process had accepted waits in this one, and can be taken back here.
#[test]
fn a_prompt_that_was_queued_in_an_earlier_process_can_be_taken_back() {
    let envelope = |event: Value| Envelope {
        seq: 1,
        at: jiff::Timestamp::UNIX_EPOCH,
        agent: None,
        run: RunId(uuid::Uuid::nil()),
        event: serde_json::from_value(event).unwrap(),
    };
    let line = |id: u128| LineId(uuid::Uuid::from_u128(id));
    let queued = |id: u128, text: &str| {
        envelope(json!({"type": "queued", "line": line(id), "blocks": [{"type": "text", "text": text}]}))
    };
    let said = json!({"type": "message", "message": {"role": "user", "content": "begun"}, "lines": [line(1)],
        "parent": null, "meta": {"origin": "prompt"}});
    let past = [
        queued(1, "begun"),
        envelope(said),
        queued(2, "taken back"),
        envelope(json!({"type": "unqueued", "lines": [line(2)]})),
        queued(3, "waits"),
    ];
    let mut app = App::new(Theme::new(Shades::None), Keymap::default(), History::default(), (80, 24));
    app.recall(&past);
    app.begin();
    let effects = app.update(AppInput::Key(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE)));
    let taken: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send(Request { id, command: Command::Unqueue { line } }) => Some((*id, *line)),
            _ => None,
        })
        .collect();
    let [(id, Some(own))] = taken.as_slice() else { panic!("{effects:?}") };
    assert_eq!(*own, line(3));
    let done = json!({"type": "replied", "request": id,
        "reply": {"reply": "done", "value": {"cancelled": [line(3)]}}});
    after(&mut app, done);
    assert_eq!(app.take_draft().as_deref(), Some("waits"));
}
