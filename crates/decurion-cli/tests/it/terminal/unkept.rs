//! A session of which no transcript is kept, or none any more: what would need one is refused, nothing is promised, and
//! the conversation stays.

use super::{BEHIND, Terminal, USUAL};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

/// Begins a second session beside one that lives, keeping nothing; something was asked in both.
fn beside_another() -> (Terminal, Terminal) {
    let first = Terminal::start(ANY);
    first.say("peel the pomegranate");
    first.wait_settled("I heard: peel the pomegranate");
    let unkept = first.beside(&["--no-session-persistence"]).ready();
    unkept.say("count the kumquats");
    unkept.wait_settled("I heard: count the kumquats");
    (first, unkept)
}

/// Asks one thing more: the model still knows what was said before.
#[track_caller]
fn goes_on(terminal: &Terminal, before: &str) {
    terminal.say("one thing more");
    terminal.wait_settled("I heard: one thing more");
    let request = terminal.last_request("main");
    assert!(request.contains(before), "the conversation is lost: {request}");
}

#[test]
fn there_is_no_way_back_and_no_copy_and_the_conversation_stays() {
    let (_first, unkept) = beside_another();
    unkept.say("sort the quinces");
    unkept.wait_settled("I heard: sort the quinces");
    unkept.say("/fork");
    unkept.wait_for("no transcript of this session is kept: it cannot be forked");
    unkept.say("/rewind");
    unkept.wait_for("Back to before which prompt?");
    unkept.keys("c");
    unkept.wait_for("no transcript of this session is kept: it cannot be rewound");
    // Were the prompt written again, this would be added to it.
    goes_on(&unkept, "count the kumquats");
}

#[test]
fn files_that_are_not_put_back_leave_the_conversation_where_it_is() {
    let home = decurion_testkit::proc::Home::new().unwrap();
    let notes = crate::stand::file_in(&home, "notes.txt");
    let script = format!(
        "when text=/write (\\w+)$/\n  call Write {{\"file_path\": \"{notes}\", \"content\": \"$1\\n\"}}\n\
         when result=/./\n  say \"Written.\"\nwhen text=/(.+)$/\n  say \"I heard: $1\"\n"
    );
    let told = ["--no-session-persistence", "--permission-mode", "acceptEdits"];
    let terminal = Terminal::with(Stand::in_home(home, &script), &told, USUAL);
    terminal.say("please write kumquat");
    terminal.wait_settled("Written.");
    terminal.say("/rewind");
    terminal.wait_for("Back to before which prompt?");
    terminal.keys("Enter");
    let screen = terminal.wait_for("the conversation stays where it is too");
    assert!(screen.contains("files were not put back: "), "{screen}");
    assert!(!screen.contains("are as they were"), "{screen}");
    goes_on(&terminal, "please write kumquat");
}

#[test]
fn a_session_that_does_not_open_costs_nothing() {
    let (first, unkept) = beside_another();
    unkept.say("/resume");
    unkept.wait_for("❯ peel the pomegranate");
    unkept.keys("Enter");
    unkept.wait_for("is already open in");
    goes_on(&unkept, "count the kumquats");
    // Once it is free, it opens.
    first.keys("C-d");
    assert_eq!(first.ended(), 0);
    unkept.say("/resume");
    unkept.wait_for("❯ peel the pomegranate");
    unkept.keys("Enter");
    // (What the list shows of it is indented.)
    unkept.wait_for("\n> peel the pomegranate");
    unkept.say("and now");
    unkept.wait_settled("I heard: and now");
    let request = unkept.last_request("main");
    assert!(request.contains("pomegranate") && !request.contains("kumquats"), "{request}");
}

#[test]
fn nothing_is_said_to_be_on_record_that_is_not() {
    let terminal = Terminal::with(Stand::new(ANY), &["--no-session-persistence"], USUAL);
    terminal.say("count the kumquats");
    terminal.wait_settled("I heard: count the kumquats");
    terminal.say("/clear");
    let screen = terminal.wait_for("New session. No transcript of the one above is kept.");
    assert!(!screen.contains("stays on record"), "{screen}");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.screen().contains("--resume"), "{}", terminal.screen());
}

#[test]
fn a_record_that_was_taken_away_is_not_promised() {
    let terminal = Terminal::start(ANY);
    terminal.say("count the kumquats");
    terminal.wait_settled("I heard: count the kumquats");
    terminal.lose_state();
    terminal.say("/fork");
    terminal.wait_for("no transcript of this session is kept: it cannot be forked");
    goes_on(&terminal, "count the kumquats");
    terminal.wait_for("the transcript of this session was deleted");
    terminal.say("the last thing");
    terminal.wait_settled("I heard: the last thing");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let told = terminal.scrollback().matches("transcript of this session was deleted").count();
    assert_eq!(told, 1, "{}", terminal.scrollback());
    assert!(!terminal.screen().contains("--resume"), "{}", terminal.screen());
}

#[test]
fn work_to_which_nobody_could_come_back_is_not_kept() {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.wait_recorded("It looks.");
    terminal.lose_state();
    terminal.keys("C-d");
    terminal.wait_for("Keep running");
    terminal.keys("Enter");
    terminal.wait_for("cannot run in the background");
    terminal.go();
    terminal.wait_for("It has reported.");
}

#[test]
fn a_state_folder_that_cannot_be_written_promises_nothing_in_plain_lines_either() {
    let stand = Stand::new(ANY);
    // Whoever runs this may be one whom no permission stops.
    super::put_in(&stand.home.state(), "projects", "");
    let terminal = Terminal::with(stand, &["--plain"], USUAL);
    terminal.wait_for("no transcript is kept");
    let answered = |text: &str| {
        terminal.wait_until(text, |screen| screen.contains(text) && screen.trim_end().ends_with("\n>"));
    };
    terminal.say("count the kumquats");
    answered("I heard: count the kumquats");
    terminal.say("/fork");
    answered("no transcript of this session is kept: it cannot be forked");
    terminal.say("one thing more");
    answered("I heard: one thing more");
    assert!(terminal.last_request("main").contains("count the kumquats"));
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.screen().contains("--resume"), "{}", terminal.screen());
}
