//! The help: every key with what it does and the name of that, in columns where there is room.

use decurion_tui::app::{App, Input};
use decurion_tui::history::History;
use decurion_tui::keymap::Keymap;
use decurion_tui::theme::{Shades, Theme};
use expect_test::expect;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The help of a person with keys of their own, without what is not about keys.
fn help(columns: u16) -> String {
    let mut keymap = Keymap::default();
    keymap.bind("ctrl+t", None).unwrap();
    keymap.bind("ctrl+x", Some("wordRight")).unwrap();
    let mut app = App::new(Theme::new(Shades::None), keymap, History::default(), (columns, 200));
    app.update(Input::Key(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE)));
    let lines = app.live(jiff::Timestamp::UNIX_EPOCH).0;
    assert!(lines.iter().all(|line| line.width() <= usize::from(columns)));
    let lines = lines.iter().map(ToString::to_string).skip_while(String::is_empty);
    lines.take_while(|line| !line.starts_with('!')).map(|line| line + "\n").collect()
}

#[test]
fn keys_names_and_words_stand_in_columns() {
    expect![[r#"
        enter                                send, or choose · submit
        ctrl+j, alt+enter, shift+enter       another line (also \ and enter) · newline
        esc                                  interrupt the turn, or close what is open ·
                                             interrupt
        ctrl+c                               empty the prompt; twice leaves · leave
        ctrl+d                               leave · endOfInput
        ctrl+b                               go on while foreground work runs in the
                                             background · background
        shift+tab                            the next permission mode · mode
        ctrl+o                               the whole conversation, unfolded ·
                                             transcript
        (no key)                             agents and commands · tasks
        ctrl+r                               search earlier prompts · history
        f1                                   these keys (also ? in an empty prompt) ·
                                             help
        ctrl+g                               write in your editor · editor
        ctrl+l                               draw everything again · redraw
        ctrl+z                               back to the shell; fg comes back · suspend
        tab                                  take what is proposed · complete
        up, ctrl+p                           up, or the prompt before · up
        down, ctrl+n                         down, or the next prompt · down
        pageup                               a page up · pageUp
        pagedown                             a page down · pageDown
        left                                 left · left
        right, ctrl+f                        right · right
        alt+b, alt+left, ctrl+left           a word left · wordLeft
        alt+f, ctrl+x, alt+right, ctrl+right a word right · wordRight
        home, ctrl+a                         to the beginning of the line · lineStart
        end, ctrl+e                          to its end · lineEnd
        ctrl+home                            to the beginning · start
        ctrl+end                             to the end · end
        ctrl+h, backspace                    delete · deleteLeft
        delete                               delete ahead · deleteRight
        ctrl+w, alt+backspace                cut a word · cutWordLeft
        alt+d                                cut the next word · cutWordRight
        ctrl+u                               cut to the beginning of the line ·
                                             cutToStart
        ctrl+k                               cut to its end · cutToEnd
        ctrl+y                               put what was cut · yank
        ctrl+/, ctrl+7, ctrl+_               take back · undo
        alt+/, alt+_                         and again · redo
    "#]]
    .assert_eq(&help(80));
}

#[test]
fn a_narrow_terminal_has_all_of_it_too() {
    let help = help(40);
    for name in ["submit", "tasks", "wordRight", "redo"] {
        assert!(help.contains(&format!("· {name}")), "{name}: {help}");
    }
}
