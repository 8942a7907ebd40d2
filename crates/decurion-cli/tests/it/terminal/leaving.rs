//! How a person leaves, and what is left of the terminal.

use super::Terminal;

const ANY: &str = "when\n  say \"Yes.\"\n";
/// What is on the screen as soon as the program has the terminal.
const ASKS: &str = "ask before acting";

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
fn what_was_written_in_an_attached_terminal_outlives_the_session() {
    let owner = Terminal::start(ANY);
    owner.say("hello");
    owner.wait_settled("Yes.");
    let attached = owner.beside(&["attach"]);
    attached.wait_settled("Yes.");
    attached.write("half a thought");
    attached.wait_for("> half a thought");
    owner.keys("C-d");
    assert_eq!(owner.ended(), 0);
    assert_eq!(attached.ended(), 0);
    let screen = attached.screen();
    assert!(screen.contains("not sent: half a thought"), "{screen}");
    assert!(screen.contains("the session has ended"), "{screen}");
    assert!(screen.contains("decurion --resume "), "{screen}");
    let again = owner.beside(&["--continue"]).ready();
    again.keys("Up");
    again.wait_for("> half a thought");
}

#[test]
fn what_was_written_when_somebody_ended_the_program_is_kept() {
    let terminal = Terminal::start(ANY);
    terminal.write("half a thought");
    terminal.wait_for("> half a thought");
    let worker = rustix::process::Pid::from_raw(terminal.worker()).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::TERM).unwrap();
    assert_eq!(terminal.ended(), 143);
    let screen = terminal.screen();
    assert!(screen.contains("not sent: half a thought"), "{screen}");
    let again = terminal.beside(&[]).ready();
    again.keys("Up");
    again.wait_for("> half a thought");
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
