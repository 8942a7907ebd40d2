//! Sessions that are opened and left without a word: nothing of them is kept, listed or continued.

use std::sync::Arc;

use rustix::process::Signal;

use super::{READY, Terminal, USUAL};
use crate::stand::{LIMIT, Stand, finished, result};
use crate::talk::LED;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";
const ID: &str = "11111111-2222-4333-8444-555555555555";

/// The transcripts of a home.
fn transcripts(stand: &Stand) -> Vec<std::path::PathBuf> {
    let is_one = |path: &std::path::PathBuf| path.extension().is_some_and(|kind| kind == "jsonl");
    stand.written().into_iter().filter(|path| is_one(path) && !path.ends_with("prompts.jsonl")).collect()
}

fn listed(stand: &Stand) -> usize {
    let run = stand.run(&["sessions", "list", "--all", "--json"]);
    run.lines.join("\n").matches("\"session\"").count()
}

/// A home with one session in it, in which "apples" was said.
fn with_a_session() -> Arc<Stand> {
    let stand = Arc::new(Stand::new(ANY));
    assert_eq!(stand.run(&["-p", "apples"]).ending.code(), 0);
    assert_eq!((transcripts(&stand).len(), listed(&stand)), (1, 1));
    stand
}

#[test]
fn a_session_without_a_word_is_not_kept_and_does_not_take_continue() {
    let stand = with_a_session();
    let terminal = Terminal::with(Arc::clone(&stand), &[], USUAL);
    // Neither a mode nor a draft is a word.
    terminal.keys("BTab");
    terminal.wait_for("auto-accept edits");
    assert_eq!(listed(&stand), 1, "it is not listed while it is open either");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.screen().contains("--resume"), "{}", terminal.screen());
    assert_eq!(transcripts(&stand).len(), 1, "{:?}", stand.written());
    let again = terminal.beside(&["--continue"]).ready();
    again.wait_for("I heard: apples");
}

#[test]
fn a_session_without_a_word_that_was_killed_is_neither_listed_nor_continued() {
    let stand = with_a_session();
    let mut run = stand.decurion().args(LED).start_talking().unwrap();
    run.say(&crate::talk::initialize("one", serde_json::json!({}))).unwrap();
    crate::talk::next(&mut run, |line| line["type"] == "control_response");
    run.signal(Signal::KILL).unwrap();
    run.finish(LIMIT).unwrap();
    assert_eq!((transcripts(&stand).len(), listed(&stand)), (2, 1));
    let more = stand.run(&["-p", "-c", "pears", "--output-format", "json"]);
    assert_eq!(more.ending.code(), 0, "{more:?}");
    let conversation = String::from_utf8_lossy(&stand.model.requests().last().unwrap().body).into_owned();
    assert!(conversation.contains("apples") && conversation.contains("pears"), "{conversation}");
}

#[test]
fn an_id_that_was_chosen_stays_on_record() {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::with(Arc::clone(&stand), &["--session-id", ID], USUAL);
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert_eq!((transcripts(&stand).len(), listed(&stand)), (1, 0));
    let run = finished(stand.decurion().args(["-p", "pears", "--resume", ID, "--output-format", "json"]));
    assert_eq!(result(&run)["session_id"], ID);
    assert_eq!(listed(&stand), 1);
}

#[test]
fn a_command_of_a_persons_own_is_a_word() {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::with(Arc::clone(&stand), &[], USUAL);
    terminal.say("!echo $((40 + 2))");
    terminal.wait_settled("42");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert!(terminal.screen().contains("--resume"), "{}", terminal.screen());
    assert_eq!((transcripts(&stand).len(), listed(&stand)), (1, 1));
}

#[test]
fn slash_clear_and_slash_fork_work_before_the_first_word() {
    let stand = Arc::new(Stand::new(ANY));
    let terminal = Terminal::with(Arc::clone(&stand), &[], USUAL);
    for command in ["/clear", "/fork", "/clear"] {
        terminal.say(command);
        terminal.wait_until("an empty prompt", |screen| {
            screen.lines().any(|row| row.trim_end() == READY.trim_end())
        });
        terminal.wait_that("one transcript", || transcripts(&stand).len() == 1);
    }
    terminal.say("apples");
    terminal.wait_settled("I heard: apples");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert_eq!((transcripts(&stand).len(), listed(&stand)), (1, 1), "{:?}", stand.written());
}
