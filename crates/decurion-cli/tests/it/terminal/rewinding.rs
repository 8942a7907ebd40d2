//! Back to before a prompt: the conversation, the files, both.

use super::{Terminal, USUAL, text_of};
use crate::stand::Stand;

/// Writes what it is asked to, and says so.
const SCRIPT: &str = "when text=/write (\\w+)$/
  call Write {\"file_path\": \"notes.txt\", \"content\": \"$1\\n\"}
when result=/./
  say \"Written.\"
when text=/(.+)$/
  say \"I heard: $1\"
";

/// A file was written twice, the second time over what it held.
fn twice() -> Terminal {
    let home = decurion_testkit::proc::Home::new().unwrap();
    let notes = crate::stand::file_in(&home, "notes.txt");
    let script = SCRIPT.replace("notes.txt", &notes);
    let terminal =
        Terminal::with(Stand::in_home(home, &script), &["--permission-mode", "acceptEdits"], USUAL);
    for (count, word) in ["pomegranate", "kumquat"].into_iter().enumerate() {
        terminal.say(&format!("please write {word}"));
        terminal.wait_until("written", |screen| screen.matches("Written.").count() == count + 1);
        terminal.wait_settled("Written.");
        assert_eq!(notes_of(&terminal), format!("{word}\n"));
    }
    terminal.say("/rewind");
    let list = terminal.wait_for("Back to before which prompt?");
    assert!(list.contains("❯ please write kumquat"), "{list}");
    terminal
}

fn notes_of(terminal: &Terminal) -> String {
    text_of(terminal.stand.home.work().join("notes.txt"))
}

/// Sends what is in the prompt; gives the request that the model got.
fn next_request(terminal: &Terminal) -> String {
    terminal.keys("C-a C-k");
    terminal.say("and now");
    terminal.wait_settled("I heard: and now");
    terminal.last_request("main")
}

#[test]
fn conversation_and_files_go_back() {
    let terminal = twice();
    terminal.keys("Enter");
    let screen = terminal.wait_until("the prompt in the composer", |screen| {
        screen.lines().rev().take(3).any(|row| row == "> please write kumquat")
    });
    assert!(screen.contains("files were put back: "), "{screen}");
    assert_eq!(notes_of(&terminal), "pomegranate\n");
    let request = next_request(&terminal);
    assert!(request.contains("pomegranate") && !request.contains("kumquat"), "{request}");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn the_conversation_alone_goes_back() {
    let terminal = twice();
    terminal.keys("c");
    terminal.wait_for("Rewound to here. Later messages stay in the transcript.");
    // What is shown again ends where the conversation does.
    let all = terminal.scrollback();
    assert_eq!(all.matches("+ kumquat").count(), 1, "{all}");
    assert_eq!(all.matches("+ pomegranate").count(), 2, "{all}");
    terminal.wait_until("the prompt in the composer", |screen| {
        screen.lines().rev().take(3).any(|row| row == "> please write kumquat")
    });
    assert_eq!(notes_of(&terminal), "kumquat\n");
    let request = next_request(&terminal);
    assert!(request.contains("pomegranate") && !request.contains("kumquat"), "{request}");
}

#[test]
fn the_files_alone_go_back() {
    let terminal = twice();
    terminal.keys("f");
    terminal.wait_for("1 file(s) are as they were");
    assert_eq!(notes_of(&terminal), "pomegranate\n");
    let request = next_request(&terminal);
    assert!(request.contains("pomegranate") && request.contains("kumquat"), "{request}");
}

#[test]
fn with_the_record_taken_away_neither_goes_back() {
    let terminal = twice();
    terminal.lose_state();
    terminal.keys("Enter");
    terminal.wait_for("the conversation stays where it is too");
    assert_eq!(notes_of(&terminal), "kumquat\n");
}

#[test]
fn back_to_before_the_first_prompt_is_a_new_conversation() {
    let terminal = twice();
    terminal.keys("Up Enter");
    terminal.wait_until("the prompt in the composer", |screen| {
        screen.lines().rev().take(3).any(|row| row == "> please write pomegranate")
    });
    assert_eq!(notes_of(&terminal), "", "there was no file before");
    let request = next_request(&terminal);
    assert!(!request.contains("pomegranate") && !request.contains("kumquat"), "{request}");
}
