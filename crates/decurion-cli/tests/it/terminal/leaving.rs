//! How a person leaves, and what is left of the terminal.

use super::Terminal;

const ANY: &str = "when\n  say \"Yes.\"\n";
/// What is on the screen as soon as the program has the terminal.
const ASKS: &str = "asks before it acts";

#[test]
fn control_c_twice_leaves_and_once_does_not() {
    let terminal = Terminal::in_shell(ANY);
    terminal.say("$D; echo \"left with $?\"; stty -a | tr -d '\\n' | grep -o ' icanon.* echo '");
    terminal.wait_for(ASKS);
    terminal.write("half a prompt");
    terminal.wait_for("half a prompt");
    terminal.keys("C-c");
    let screen = terminal.wait_for("again to leave");
    assert!(!screen.contains("half a prompt"), "{screen}");
    // Another key takes it back.
    terminal.write("x");
    terminal.wait_gone("again to leave");
    terminal.keys("C-c");
    terminal.wait_for("again to leave");
    terminal.keys("C-c");
    terminal.wait_for("left with 0\n icanon iexten echo");
    assert_eq!((terminal.fact("cursor_flag"), terminal.fact("alternate_on")), ("1".into(), "0".into()));
}

#[test]
fn control_d_in_an_empty_prompt_leaves_and_the_conversation_stays() {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("Yes.");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let screen = terminal.screen();
    assert!(screen.contains("hello") && screen.contains("Yes."), "{screen}");
}

#[test]
fn control_z_gives_the_terminal_to_the_shell_and_fg_comes_back() {
    let terminal = Terminal::in_shell(ANY);
    terminal.say("$D");
    terminal.wait_for(ASKS);
    terminal.write("half a prompt");
    terminal.wait_for("half a prompt");
    terminal.keys("C-z");
    terminal.wait_for("Stopped");
    terminal.say("echo a shell'$'");
    terminal.wait_for("a shell$\n");
    terminal.say("fg");
    terminal.wait_for("> half a prompt");
    terminal.keys("Enter");
    terminal.wait_for("Yes.");
}
