//! The program and the shell it was started from: what a person's commands and their editor find, who hears the keys that
//! stop and interrupt, and what is said where there is no shell.

use super::{Terminal, USUAL};
use crate::stand::Stand;

const ANY: &str = "when\n  say \"Yes.\"\n";
/// What is on the screen as soon as the program has the terminal.
const ASKS: &str = "ask before acting";
/// A start with no model that could be asked.
const FIRST_START: &str = "env -u ANTHROPIC_API_KEY -u ANTHROPIC_BASE_URL OLLAMA_HOST=127.0.0.1:1 LLAMA_ARG_PORT=1 $D; echo \"left with $?\"";

/// The program in a shell, where the editor is this script.
fn with_editor(script: &str, line: &str) -> Terminal {
    let terminal = Terminal::in_shell(ANY);
    std::fs::write(terminal.stand.file("editor"), script).unwrap();
    terminal.say(&format!("export EDITOR='sh editor'; unset VISUAL; {line}"));
    terminal.wait_for(ASKS);
    terminal
}

#[test]
fn commands_and_the_editor_find_the_mask_and_the_limit_of_the_shell() {
    let script = "echo \"editor: $(umask) $(ulimit -Sn)\" > \"$1\"\n";
    let terminal = with_editor(script, "umask 0027; ulimit -Sn 512; $D");
    terminal.say("!echo command: $(umask) $(ulimit -Sn)");
    terminal.wait_for("command: 0027 512");
    terminal.keys("C-g");
    terminal.wait_for("> editor: 0027 512");
}

#[test]
fn control_z_in_the_editor_stops_both_and_fg_comes_back_to_it() {
    let script = "echo editing\nread line\necho \"said: $line\" > \"$1\"\n";
    let terminal = with_editor(script, "$D");
    terminal.keys("C-g");
    terminal.wait_for("editing");
    for time in ["first", "second"] {
        terminal.keys("C-z");
        terminal.wait_for("Stopped");
        terminal.say(&format!("clear; echo the {time} time'$'"));
        terminal.wait_for(&format!("the {time} time$\nshell$"));
        terminal.say("fg");
        terminal.wait_for("$ fg\n");
        // The editor has the terminal, and everybody goes on.
        terminal.wait_fact("pane_current_command", |name| name == "sh");
        terminal.wait_that("it goes on", || !terminal.stand.home.processes().into_iter().any(is_stopped));
    }
    terminal.say("hello");
    terminal.wait_for("> said: hello");
}

/// Whether a process is held.
fn is_stopped(pid: i32) -> bool {
    let stat = super::text_of(format!("/proc/{pid}/stat"));
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[test]
fn an_editor_in_the_background_takes_the_terminal_from_nobody() {
    let script = "echo editing\nread line\necho \"said: $line\" > \"$1\"\n";
    let terminal = with_editor(script, "$D");
    terminal.keys("C-g");
    terminal.wait_for("editing");
    terminal.keys("C-z");
    terminal.wait_for("Stopped");
    terminal.say("clear; bg; wait; clear; echo a shell'$'");
    terminal.wait_for("a shell$\n");
    terminal.say("fg");
    terminal.wait_for("$ fg\n");
    terminal.say("hello");
    terminal.wait_for("> said: hello");
}

#[test]
fn control_c_in_the_editor_is_the_editors() {
    let script =
        "trap 'echo caught' INT\necho editing\nuntil read line; do :; done\necho \"said: $line\" > \"$1\"\n";
    let terminal = with_editor(script, "$D");
    terminal.keys("C-g");
    terminal.wait_for("editing");
    terminal.keys("C-c");
    terminal.wait_for("caught");
    terminal.say("hello");
    let screen = terminal.wait_for("> said: hello");
    assert!(!screen.contains("again to leave"), "{screen}");
}

#[test]
fn control_z_where_there_is_no_shell_says_so() {
    for arguments in [&[][..], &["--plain"]] {
        let terminal = Terminal::with(Stand::new(ANY), arguments, USUAL);
        terminal.keys("C-z");
        terminal.wait_for("there is no shell to go back to");
        terminal.say("hello");
        terminal.wait_for("Yes.");
    }
}

#[test]
fn control_z_at_the_first_question_stops_and_fg_comes_back() {
    let terminal = Terminal::in_shell(ANY);
    terminal.say(FIRST_START);
    terminal.wait_for("1. Anthropic");
    terminal.keys("C-z");
    terminal.wait_for("Stopped");
    terminal.say("clear; fg; echo \"came back with $?\"");
    // What the shell says itself; what was typed stands behind its prompt.
    let begins = |screen: &str, with: &str| screen.lines().any(|row| row.starts_with(with));
    terminal.wait_until("fg", |screen| begins(screen, "env -u ANTHROPIC_API_KEY"));
    terminal.wait_for("❯ 1. Anthropic");
    terminal.keys("Escape");
    let screen = terminal.wait_until("its end", |screen| begins(screen, "came back with "));
    assert!(!screen.contains("killed"), "{screen}");
}

#[test]
fn control_c_at_the_first_question_leaves_without_a_word() {
    let terminal = Terminal::in_shell(ANY);
    terminal.say(FIRST_START);
    terminal.wait_for("1. Anthropic");
    terminal.keys("C-c");
    let screen = terminal.wait_for("left with 130");
    assert!(!screen.contains("killed") && !screen.contains("--continue"), "{screen}");
}

#[test]
fn without_its_keeper_nothing_begins() {
    let terminal = Terminal::in_shell(ANY);
    terminal.say("$D --kept-by 1; echo \"left with $?\"");
    let screen = terminal.wait_for("left with 1\n");
    assert!(screen.contains("the process that keeps the terminal, 1: it is gone"), "{screen}");
}

#[test]
fn work_that_nobody_could_come_back_to_is_not_kept() {
    let stand = Stand::new(
        "when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Wait for it\"}
when
  say \"It goes on by itself.\"
",
    );
    // Where the doors of sessions are made.
    std::fs::create_dir_all(stand.home.state()).unwrap();
    std::fs::write(stand.home.state().join("run"), "").unwrap();
    let terminal = Terminal::with(stand, &["--dangerously-skip-permissions"], USUAL);
    terminal.say("wait");
    terminal.wait_for("while [");
    terminal.keys("C-b");
    terminal.wait_for("It goes on by itself.");
    terminal.keys("C-d");
    let screen = terminal.wait_for("Stop and quit");
    assert!(!screen.contains("Keep running"), "{screen}");
    terminal.go();
}
