//! One session in the place of another: an earlier one, a copy, a new one.

use super::{Terminal, USUAL};
use crate::stand::Stand;

/// The last line of the prompt; what is told of the folder stands above it.
const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

/// A terminal in a folder in which something was asked before, and something now.
fn second() -> Terminal {
    let stand = Stand::new(ANY);
    assert!(stand.run(&["-p", "peel the pomegranate"]).ending.is_success());
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("count the kumquats");
    terminal.wait_settled("I heard: count the kumquats");
    terminal
}

/// Asks one thing more, which was not asked before; gives the request that the model got.
fn next_request(terminal: &Terminal, text: &str) -> String {
    terminal.say(text);
    terminal.wait_settled(&format!("I heard: {text}"));
    terminal.last_request("main")
}

#[test]
fn an_earlier_session_is_chosen_and_goes_on() {
    let terminal = second();
    terminal.say("/resume");
    let list = terminal.wait_for("Sessions in this folder");
    assert!(list.contains("❯ peel the pomegranate"), "{list}");
    assert!(!list.contains("  count the kumquats "), "it lists itself: {list}");
    terminal.keys("Enter");
    terminal.wait_for("\n> peel the pomegranate");
    let request = next_request(&terminal, "one thing more");
    assert!(request.contains("pomegranate") && !request.contains("kumquats"), "{request}");
}

#[test]
fn the_session_before_goes_on_and_where_there_is_none_that_is_said() {
    let terminal = second();
    terminal.write("half a thought");
    terminal.keys("C-a C-k");
    terminal.say("/continue");
    terminal.wait_for("I heard: peel the pomegranate");
    let request = next_request(&terminal, "one thing more");
    assert!(request.contains("pomegranate") && !request.contains("kumquats"), "{request}");
    let alone = Terminal::start(ANY);
    alone.say("/continue");
    alone.wait_for("no other sessions in this folder");
}

#[test]
fn a_copy_goes_its_own_way() {
    let terminal = second();
    terminal.say("/fork");
    terminal.wait_for("Forked. The original session is unchanged.");
    let request = next_request(&terminal, "one thing more");
    assert!(!terminal.screen().contains("its work continues"), "{}", terminal.screen());
    assert!(request.contains("kumquats"), "{request}");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let listed = terminal.stand.run(&["sessions", "list", "--json"]).output();
    assert_eq!(listed.matches("kumquats").count(), 2, "{listed}");
    assert_eq!(listed.lines().count(), 3, "{listed}");
}

#[test]
fn a_new_conversation_knows_nothing_of_the_old_one_and_has_its_mode_and_model() {
    let terminal = second();
    terminal.say("/model claude-opus-4-8");
    let chosen = terminal.wait_for("claude-opus-4-8 answers from the next prompt on");
    assert!(chosen.lines().last().is_some_and(|status| status.contains("claude-opus-4-8")), "{chosen}");
    terminal.keys("BTab");
    terminal.wait_for("auto-accept edits");
    let before = next_request(&terminal, "with another model");
    assert!(before.contains("claude-opus-4-8"), "{before}");
    terminal.say("/clear");
    terminal.wait_for("New session. The one above is kept");
    let request = next_request(&terminal, "one thing more");
    assert!(!request.contains("kumquats") && request.contains("claude-opus-4-8"), "{request}");
    assert!(terminal.screen().contains("auto-accept edits"));
    terminal.say("/resume");
    let list = terminal.wait_for("Sessions in this folder");
    assert!(list.contains("count the kumquats  ") && list.contains("peel the pomegranate  "), "{list}");
}

#[test]
fn nothing_takes_the_place_of_a_session_that_works() {
    let script = "when turn=1\n  say \"I begin\"\n  stall\n";
    let terminal = Terminal::start(script);
    terminal.say("go");
    terminal.wait_for("I begin");
    terminal.say("/clear");
    terminal.wait_for("work is still running here");
}
