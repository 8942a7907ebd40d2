//! What people type: files and pictures that a prompt names, commands, keys that are pressed twice, and being told while
//! they look elsewhere.

use std::os::unix::fs::PermissionsExt as _;

use decurion_testkit::pty::Pty;
use decurion_testkit::repo::Repo;
use rustix::process::Signal;

use super::{PATIENCE, Terminal, USUAL, put, put_in, text_of};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";
const ASKS: &str = "when turn=1
  call Bash {\"command\": \"touch mark\", \"description\": \"Leave a mark\"}
when
  say \"It is over.\"
";
const FOCUS_ON: &str = "\x1b[?1004h";
const FOCUS_OFF: &str = "\x1b[?1004l";

#[test]
fn a_file_that_a_prompt_names_reaches_the_model() {
    let stand = Stand::new("when text=/^2\\tkumquats/m\n  say \"I saw them.\"\nwhen\n  say \"Nothing.\"\n");
    put(&stand, "fruit/list.txt", "pears\nkumquats\n");
    put(&stand, ".env", "never\n");
    put_in(&stand.home.state(), "settings.json", "{\"permissions\": {\"deny\": [\"Read(.env)\"]}}");
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("count @fruit/list.txt and @.env, @fruit/lst.txt and @someone/else");
    let screen = terminal.wait_settled("I saw them.");
    assert!(screen.contains("· attached fruit/list.txt (2 lines)"), "{screen}");
    assert!(screen.contains("· not attached: .env: "), "{screen}");
    assert!(screen.contains("· not attached: fruit/lst.txt: no such file"), "{screen}");
    assert!(!screen.contains("not attached: someone"), "{screen}");
    assert!(!terminal.last_request("main").contains("never"));
}

#[test]
fn a_picture_that_is_dropped_on_the_terminal_is_asked_about_and_attached() {
    let stand = Stand::new("when text=/shot/\n  say \"I saw it.\"\n");
    let picture = stand.home.home().join("my shot.png");
    std::fs::write(&picture, b"\x89PNG\r\n\x1a\n0000").unwrap();
    let terminal = Terminal::with(stand, &[], (100, 30));
    terminal.paste(&picture.to_str().unwrap().replace(' ', "\\ "));
    terminal.wait_for("> @\"");
    terminal.say("what is this?");
    terminal.wait_for("1. Yes, this once");
    terminal.keys("1");
    terminal.wait_settled("I saw it.");
    let request = terminal.last_request("main");
    assert!(request.contains("\"media_type\":\"image/png\""), "{request}");
}

#[test]
fn a_command_that_nobody_knows_is_not_sent() {
    let terminal = Terminal::start(ANY);
    terminal.say("/hlep");
    let screen = terminal.wait_for("Did you mean /help?");
    assert!(screen.contains("> /hlep"), "{screen}");
    terminal.keys("Escape");
    terminal.wait_for("press esc again to clear the prompt");
    terminal.keys("Escape");
    terminal.wait_until("an empty prompt", |screen| !screen.contains("> /hlep"));
    // One that is near to nothing is for the session to judge, which gives it back.
    terminal.say("/frobnicate it");
    let screen = terminal.wait_until("what was given back", |screen| screen.contains("> /frobnicate it"));
    assert!(screen.contains("Unknown command /frobnicate."), "{screen}");
    assert_eq!(terminal.stand.model.requests().len(), 0);
}

#[test]
fn a_theme_is_kept_for_later_sessions() {
    let terminal = Terminal::start(ANY);
    terminal.say("/theme");
    terminal.wait_for("❯ dark ");
    terminal.keys("Down");
    terminal.wait_for("❯ light ");
    terminal.keys("Enter");
    terminal.wait_for("theme light, kept in");
    let settings = terminal.stand.home.state().join("settings.json");
    assert!(text_of(settings).contains("\"theme\": \"light\""));
    // Of the same process, and of the next.
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.say("/clear");
    terminal.wait_for("New session.");
    terminal.write("/co");
    terminal.wait_for("❯ /co");
    let light = "\u{1b}[1m\u{1b}[34m❯";
    assert!(terminal.coloured().contains(light), "{:?}", terminal.coloured());
}

#[test]
fn a_conversation_is_exported_where_a_person_says() {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.say("/export");
    terminal.wait_for("> /export ~/session-");
    terminal.keys("C-u");
    terminal.say("/export ~/talk.md");
    terminal.wait_for("· wrote ");
    let file = terminal.stand.home.home().join("talk.md");
    let text = text_of(&file);
    assert_eq!(text, "# Conversation\n\n## Prompt\n\n> hello\n\nI heard: hello\n");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    terminal.say("/export ~/talk.md");
    terminal.wait_for("exists already");
}

#[test]
fn instructions_are_opened_in_the_editor() {
    let terminal = Terminal::in_shell(ANY);
    put(&terminal.stand, "editor.sh", "echo 'use tabs' > \"$1\"");
    terminal.say("export EDITOR='sh editor.sh'; unset VISUAL; clear; $D");
    terminal.wait_for("? for help");
    terminal.say("/memory");
    let screen = terminal.wait_for("project instructions (new)");
    assert!(screen.contains("your instructions (new)"), "{screen}");
    terminal.keys("Enter");
    let file = terminal.stand.home.work().join("AGENTS.md");
    terminal.wait_that("the instructions", || text_of(&file) == "use tabs\n");
}

#[test]
fn changes_in_the_working_tree_are_shown() {
    let stand = Stand::new(ANY);
    let work = stand.home.work();
    let git = |arguments: &[&str]| Repo::git_at(&work, arguments).unwrap();
    git(&["init", "-q"]);
    put(&stand, "a.txt", "one\ntwo\n");
    git(&["add", "."]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]);
    put(&stand, "a.txt", "one\nthree\n");
    put(&stand, "b.txt", "new\n");
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("/diff");
    let screen = terminal.wait_for("+ three");
    for words in ["a.txt +1 −1", "- two", "Not tracked by git:", "b.txt"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    terminal.keys("q");
    terminal.wait_gone("+ three");
    // What git would run for a file is nothing that a look may start.
    git(&["config", "filter.x.clean", "touch $HOME/ran; cat"]);
    git(&["config", "core.fsmonitor", "touch $HOME/ran"]);
    put(&terminal.stand, ".gitattributes", "* filter=x\n");
    terminal.say("/diff");
    terminal.wait_for("/diff: ");
    assert!(!terminal.stand.home.home().join("ran").exists());
}

#[test]
fn an_earlier_session_is_found_by_a_word_and_previewed() {
    let terminal = Terminal::start(ANY);
    terminal.say("mend the parser");
    terminal.wait_settled("I heard: mend the parser");
    terminal.say("/clear");
    terminal.wait_for("New session.");
    terminal.say("write the docs");
    terminal.wait_settled("I heard: write the docs");
    terminal.say("/clear");
    terminal.wait_until("another new session", |screen| screen.matches("New session.").count() == 2);
    terminal.say("/resume");
    terminal.wait_for("Sessions in this folder");
    terminal.write("parser");
    let screen = terminal.wait_for("search: parser");
    assert!(screen.contains("❯ mend the parser  just now"), "{screen}");
    terminal.wait_for("    ● I heard: mend the parser");
    terminal.keys("Enter");
    terminal.wait_for("\n> mend the parser");
    terminal.say("and on");
    terminal.wait_settled("I heard: and on");
    assert!(terminal.last_request("main").contains("mend the parser"));
}

#[test]
fn a_typed_prompt_is_printed_once_as_plain_lines() {
    let terminal = Terminal::with(Stand::new(ANY), &["--plain"], USUAL);
    terminal.say("hello there");
    terminal.wait_for("I heard: hello there");
    let all = terminal.scrollback();
    assert_eq!(all.matches("hello there").count(), 2, "the echo and the answer: {all}");
}

/// The program in a terminal of this kind, at its prompt.
fn in_terminal(stand: &Stand, kind: &str) -> Pty {
    let program = stand.decurion().env("TERM_PROGRAM", kind).env("TERM", "xterm-256color");
    let mut pty = Pty::start(&program, USUAL).unwrap();
    pty.wait_for("ask before acting", PATIENCE).unwrap();
    pty
}

fn written(pty: &Pty) -> String {
    String::from_utf8_lossy(pty.written()).into_owned()
}

#[test]
fn somebody_who_looks_elsewhere_is_told_of_a_question() {
    for (focus, told) in [("\x1b[O", true), ("\x1b[O\x1b[I", false), ("", false)] {
        let stand = Stand::new(ASKS);
        let mut pty = in_terminal(&stand, "WezTerm");
        assert!(written(&pty).contains(FOCUS_ON));
        pty.write(focus).unwrap();
        pty.write("leave a mark\r").unwrap();
        pty.wait_for("1. Yes, this once", PATIENCE).unwrap();
        let notice = "\x1b]777;notify;Decurion;Question: Run: touch mark\x07";
        assert_eq!(written(&pty).contains("\x1b]777"), told, "{focus:?}");
        assert_eq!(written(&pty).contains(notice), told, "{focus:?}: {}", written(&pty));
        pty.signal(Signal::TERM).unwrap();
        assert!(pty.end(PATIENCE).unwrap().is_some());
        assert_eq!(pty.left_behind(), Vec::<String>::new());
        assert!(written(&pty).contains(FOCUS_OFF));
    }
}

#[test]
fn a_terminal_that_is_not_known_to_tell_anybody_is_not_asked_to() {
    for (kind, settings) in [("", "{}"), ("WezTerm", "{\"notifications\": \"off\"}")] {
        let stand = Stand::new(ASKS);
        put_in(&stand.home.state(), "settings.json", settings);
        let mut pty = in_terminal(&stand, kind);
        pty.write("\x1b[O").unwrap();
        pty.write("leave a mark\r").unwrap();
        pty.wait_for("1. Yes, this once", PATIENCE).unwrap();
        let written = written(&pty);
        assert!(!written.contains(FOCUS_ON) && !written.contains("\x1b]777"), "{kind}: {written}");
        // Somebody who wants no notices wants no bell either.
        let rings =
            written.replace("\x1b]0;", "").matches('\x07').count() > written.matches("\x1b]0;").count();
        assert_eq!(rings, kind.is_empty(), "{kind}: {written:?}");
    }
}

#[test]
fn the_focus_is_not_reported_any_more_once_the_program_is_killed() {
    let stand = Stand::new(ANY);
    let mut pty = in_terminal(&stand, "WezTerm");
    let keeper = pty.pid();
    let children = text_of(format!("/proc/{keeper}/task/{keeper}/children"));
    super::kill(children.split_whitespace().next().unwrap().parse().unwrap());
    assert!(pty.end(PATIENCE).unwrap().is_some());
    assert_eq!(pty.left_behind(), Vec::<String>::new());
    assert!(written(&pty).contains(FOCUS_OFF));
}
