//! What a person is asked.

use std::path::Path;

use super::Terminal;

const SCRIPT: &str = "when turn=1
  call Bash {\"command\": \"echo ran > $HOME/made; echo done-it\", \"description\": \"Make a file\"}
when result=/done-it/
  say \"It was allowed.\"
when result=/not that way/
  say \"It was refused with a reason.\"
when
  say \"It was refused.\"
";

fn asked() -> Terminal {
    let terminal = Terminal::start(SCRIPT);
    terminal.say("make it");
    let screen = terminal.wait_for("echo ran >");
    assert!(screen.contains("1."), "{screen}");
    assert!(!made(&terminal), "it ran before it was allowed");
    terminal
}

fn made(terminal: &Terminal) -> bool {
    Path::new(&terminal.stand.home.home().join("made")).exists()
}

#[test]
fn a_question_is_answered_with_a_key() {
    let terminal = asked();
    terminal.keys("1");
    let screen = terminal.wait_for("It was allowed.");
    assert!(made(&terminal) && !screen.contains("1."), "{screen}");
}

#[test]
fn a_question_survives_a_resize_and_is_answered_by_choosing() {
    let terminal = asked();
    terminal.keys("Down");
    terminal.wait_for("❯ 2.");
    terminal.resize(30, 30);
    // At its new width, with the same answer chosen.
    terminal.wait_until("the question again", |screen| {
        screen.contains("echo ran >") && screen.contains("❯ 2.") && screen.contains("No, and stop (esc)")
    });
    terminal.keys("Up");
    terminal.wait_for("❯ 1. Yes, this once");
    assert!(!made(&terminal));
    terminal.keys("Enter");
    terminal.wait_for("It was allowed.");
    assert!(made(&terminal));
}

#[test]
fn a_question_that_is_interrupted_goes_away_and_the_next_is_answered() {
    let script = "when text=/make that/ turn=1\n  call Bash {\"command\": \"echo ran > $HOME/made; echo done-it\", \"description\": \"Make a file\"}\n\
        when result=/done-it/\n  say \"It was allowed.\"\n\
        when text=/make that/\n  call Bash {\"command\": \"echo ran > $HOME/made; echo done-it\", \"description\": \"Make a file\"}\n\
        when\n  call Bash {\"command\": \"touch $HOME/other\", \"description\": \"Another\"}\n";
    let terminal = Terminal::start(script);
    terminal.say("go");
    terminal.wait_for("touch $HOME/other");
    terminal.keys("C-c");
    terminal.wait_gone("1. Yes");
    terminal.say("make that");
    let screen = terminal.wait_for("1. Yes, this once");
    assert!(screen.contains("echo ran >"), "{screen}");
    terminal.keys("1");
    terminal.wait_for("It was allowed.");
    assert!(made(&terminal) && !terminal.stand.home.home().join("other").exists());
}

#[test]
fn escape_refuses_and_gives_the_prompt_back() {
    let terminal = asked();
    terminal.keys("Escape");
    terminal.wait_for("Declined; stopped.");
    assert!(!terminal.screen().contains("1.") && !made(&terminal), "{}", terminal.screen());
    assert_eq!(terminal.stand.model.requests().len(), 1, "the turn went on");
    terminal.say("what now");
    terminal.wait_for("It was refused");
}

/// The model hears what is wrong with its edit, and a person is asked about the one that fits.
#[test]
fn an_edit_that_cannot_work_is_not_asked_about() {
    let edit = |old: &str| {
        format!("{{\"file_path\": \"notes.txt\", \"old_string\": \"{old}\", \"new_string\": \"two\"}}")
    };
    let script = format!(
        "when turn=1\n  call Edit {unread}\nwhen turn=2 result=/has not been read yet/\n  \
         call Read {{\"file_path\": \"notes.txt\"}}\nwhen turn=3\n  call Edit {missing}\n\
         when turn=4 result=/is not in the file/\n  call Edit {fits}\nwhen result=/Edited/\n  say \"Now it fits.\"\n\
         when\n  say \"Something else.\"\n",
        unread = edit("one"),
        missing = edit("none"),
        fits = edit("one"),
    );
    let stand = crate::stand::Stand::new(&script);
    let notes = stand.home.work().join("notes.txt");
    std::fs::write(&notes, "one\n").unwrap();
    let terminal = Terminal::with(stand, &[], super::USUAL);
    terminal.say("edit it");
    let screen = terminal.wait_for("Edit notes.txt?");
    for words in ["the file exists and has not been read yet", "`old_string` is not in the file"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    assert!(!screen.contains("tool_use_error"), "{screen}");
    terminal.keys("1");
    terminal.wait_for("Now it fits.");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "two\n");
}
