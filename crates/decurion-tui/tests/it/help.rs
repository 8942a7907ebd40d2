//! The help: every key with what it does and the name of that, in columns where there is room.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_tui::app::{App, AppInput};
use decurion_tui::history::History;
use decurion_tui::keymap::Keymap;
use decurion_tui::theme::{Shades, Theme};
use expect_test::expect;

/// A screen of a person with keys of their own.
fn app(columns: u16) -> App {
    let mut keymap = Keymap::default();
    keymap.bind("ctrl+t", None).unwrap();
    keymap.bind("ctrl+x", Some("wordRight")).unwrap();
    App::new(Theme::new(Shades::None), keymap, History::default(), (columns, 200))
}

fn text(lines: &[ratatui_core::text::Line<'_>], columns: u16) -> String {
    assert!(lines.iter().all(|line| line.width() <= usize::from(columns)));
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

fn short(columns: u16) -> String {
    let mut app = app(columns);
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE)));
    let lines = app.live(jiff::Timestamp::UNIX_EPOCH).0;
    let help: Vec<_> = lines.into_iter().skip_while(|line| line.width() == 0).collect();
    let end = help.iter().position(|line| line.to_string().contains("any other key closes")).unwrap();
    text(&help[..end], columns)
}

/// What the keys do, of the whole help.
fn help(columns: u16) -> String {
    let mut app = app(columns);
    app.update(AppInput::Paste("/help".to_owned()));
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)));
    app.update(AppInput::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)));
    let (rows, _) = app.page().unwrap();
    let help = text(&rows, columns);
    assert!(help.starts_with("help\nCommands\n  /help"), "{help}");
    help[help.find("Keys\n").unwrap()..]
        .lines()
        .take_while(|line| !line.starts_with("action"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn the_short_help_is_grouped_and_fits_on_a_screen() {
    expect![[r#"
        Commands
          Conversation  /resume /continue /fork /rewind /clear /compact /context /cost
                        /copy /export /transcript
          Work          /tasks /agents /diff /review /init /worktrees /trace /team
          Settings      /model /login /permissions /add-dir /memory /theme /statusline
                        /vim /config /hooks /mcp /skills /plugin
          Program       /help /status /doctor /quit
        Prompt
          @             attach a file, a folder or an image; @ and an agent: tell that
                        agent
          !             run a command in the shell; its output joins the conversation
          #             keep a line in the instructions that every session here reads
        Keys
          enter                          send, or choose
          ctrl+j, alt+enter, shift+enter another line (also \ and enter)
          esc                            interrupt the turn, close what is open; twice:
                                         clear the prompt, or rewind
          ctrl+c                         empty the prompt; twice leaves
          ctrl+b                         move foreground work to the background
          shift+tab                      the next permission mode
          ctrl+o                         the whole conversation, unfolded
          (no key)                       agents and commands
          ctrl+r                         search earlier prompts
          ctrl+g                         write in your editor
          ctrl+z                         suspend (fg to resume)
          tab                            take what is proposed
          up, ctrl+p                     up, or the prompt before
        /help explains every command and key, / searches the commands
    "#]]
    .assert_eq(&short(80));
    for columns in [60, 80, 120, 200] {
        assert!(short(columns).lines().count() <= 40, "{columns}");
    }
}

#[test]
fn keys_names_and_words_stand_in_columns() {
    expect![[r#"
        Keys
          enter                                send, or choose · submit
          ctrl+j, alt+enter, shift+enter       another line (also \ and enter) · newline
          esc                                  interrupt the turn, close what is open;
                                               twice: clear the prompt, or rewind ·
                                               interrupt
          ctrl+c                               empty the prompt; twice leaves · leave
          ctrl+d                               leave · endOfInput
          ctrl+b                               move foreground work to the background ·
                                               background
          shift+tab                            the next permission mode · mode
          ctrl+o                               the whole conversation, unfolded ·
                                               transcript
          (no key)                             agents and commands · tasks
          ctrl+r                               search earlier prompts · history
          f1                                   these keys (also ? in an empty prompt) ·
                                               help
          ctrl+g                               write in your editor · editor
          ctrl+l                               draw everything again · redraw
          ctrl+z                               suspend (fg to resume) · suspend
          tab                                  take what is proposed · complete
          up, ctrl+p                           up, or the prompt before · up
          down, ctrl+n                         down, or the next prompt · down
          pageup                               a page up · pageUp
          pagedown                             a page down · pageDown
          left                                 left · left
          right, ctrl+f                        right · right
          alt+b, alt+left, ctrl+left           a word left · wordLeft
          alt+f, ctrl+x, alt+right, ctrl+right a word right · wordRight
          home, ctrl+a                         to the start of the line · lineStart
          end, ctrl+e                          to the end of the line · lineEnd
          ctrl+home                            to the beginning · start
          ctrl+end                             to the end · end
          ctrl+h, backspace                    delete · deleteLeft
          delete                               delete ahead · deleteRight
          ctrl+w, alt+backspace                cut a word · cutWordLeft
          alt+d                                cut the next word · cutWordRight
          ctrl+u                               cut to the start of the line · cutToStart
          ctrl+k                               cut to the end of the line · cutToEnd
          ctrl+y                               paste what was cut · yank
          ctrl+/, ctrl+7, ctrl+_               undo · undo
          alt+/, alt+_                         redo · redo
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
