//! The first run: no model is configured, or the folder is not trusted.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use super::{Terminal, USUAL, put, text_of};
use crate::stand::{DECURION, Stand};

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

/// Nothing is configured, and nobody listens where servers of this machine do.
fn unconfigured() -> Terminal {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::as_told(Arc::clone(&stand), (100, 30), |_| {
        stand.home.program(DECURION).env("OLLAMA_HOST", "127.0.0.1:1").env("LLAMA_ARG_PORT", "1")
    });
    terminal.wait_for("Which (1-4, enter to leave)?");
    terminal
}

fn settings(terminal: &Terminal) -> std::path::PathBuf {
    terminal.stand.home.state().join("settings.json")
}

#[test]
fn a_key_is_asked_for_kept_and_never_shown() {
    let terminal = unconfigured();
    terminal.say("1");
    terminal.wait_for("The key (it is not shown");
    terminal.say("sk-secret-of-the-orchard");
    terminal.wait_for("Its model (enter for the usual one)");
    terminal.keys("Enter");
    terminal.wait_for("asks before it acts");
    assert!(!terminal.scrollback().contains("secret-of"), "{}", terminal.scrollback());
    let kept = text_of(settings(&terminal));
    assert!(kept.contains("anthropic") && !kept.contains("secret-of"), "{kept}");
    let key = terminal.stand.home.state().join("keys/anthropic");
    assert_eq!(text_of(&key).trim(), "sk-secret-of-the-orchard");
    for file in [key, settings(&terminal)] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn another_server_is_named_and_answers() {
    let terminal = unconfigured();
    terminal.say("2");
    terminal.wait_for("Its address (enter for");
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for("The key (it is not shown");
    terminal.say("sk-any");
    terminal.wait_for("Its model");
    terminal.say("pear-1");
    terminal.wait_for("asks before it acts");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    assert!(terminal.last_request("main").contains("pear-1"));
}

#[test]
fn what_cannot_be_kept_is_asked_for_again() {
    let terminal = unconfigured();
    terminal.say("7");
    terminal.wait_for("There is no 7 among them.");
    terminal.say("2");
    terminal.wait_for("Its address (enter for");
    terminal.say("localhost:8080/v1");
    terminal.wait_for("That is not an http or https address without user, query or fragment: localhost");
    terminal.say(&terminal.stand.model.openai_url());
    terminal.wait_for("The key (it is not shown");
    assert!(!settings(&terminal).exists());
    terminal.say("sk-any");
    terminal.wait_for("Its model");
    terminal.say("pear-1");
    terminal.wait_for("asks before it acts");
}

#[test]
fn a_server_that_was_started_meanwhile_is_found() {
    let terminal = unconfigured();
    terminal.say("3");
    terminal.wait_for("Start it (for example");
    terminal.keys("Enter");
    // It was not started: the same question again, and nothing was written.
    terminal.wait_until("the question again", |screen| {
        screen.matches("Which (1-4, enter to leave)?").count() == 2
    });
    assert!(!settings(&terminal).exists());
}

#[test]
fn a_server_on_this_machine_is_used_without_a_question() {
    let stand = Arc::new(Stand::new(ANY));
    let address = stand.model.url().trim_start_matches("http://").to_owned();
    let terminal = Terminal::as_told(Arc::clone(&stand), (120, 24), |_| {
        stand.home.program(DECURION).env("OLLAMA_HOST", address)
    });
    let screen = terminal.wait_for("asks before it acts");
    assert!(screen.contains("using ollama at"), "{screen}");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
}

#[test]
fn a_demo_shows_how_it_works_and_ends() {
    let terminal = unconfigured();
    terminal.say("4");
    assert_eq!(terminal.ended(), 0);
    assert!(!settings(&terminal).exists());
}

#[test]
fn whoever_leaves_is_told_how_to_come_back() {
    let terminal = unconfigured();
    terminal.keys("Enter");
    assert_ne!(terminal.ended(), 0);
    let screen = terminal.screen();
    assert!(screen.contains("ANTHROPIC_API_KEY"), "{screen}");
    assert!(!settings(&terminal).exists());
}

const HOOK: &str =
    r#"{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command", "command": "touch $HOME/ran"}]}]}}"#;

/// A folder whose files would run a program.
fn untrusted() -> Terminal {
    let stand = Stand::new(ANY);
    put(&stand, ".claude/settings.json", HOOK);
    let terminal = Terminal::as_told(stand, USUAL, |program| program);
    let screen = terminal.wait_for("Trust them (y), or go on without (enter)?");
    assert!(screen.contains("touch $HOME/ran"), "it does not say what would run: {screen}");
    terminal
}

fn ran(terminal: &Terminal) -> bool {
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.stand.home.home().join("ran").exists()
}

#[test]
fn a_folder_is_trusted_once() {
    let terminal = untrusted();
    terminal.say("y");
    terminal.wait_for("asks before it acts");
    assert!(ran(&terminal));
    let again = terminal.beside(&[]);
    let screen = again.wait_for("asks before it acts");
    assert!(!screen.contains("Trust them"), "{screen}");
}

#[test]
fn a_folder_that_is_not_trusted_runs_nothing_and_is_asked_about_again() {
    let terminal = untrusted();
    terminal.keys("Enter");
    terminal.wait_for("asks before it acts");
    assert!(!ran(&terminal));
    let again = terminal.beside(&[]);
    again.wait_for("Trust them");
}
