//! An editor is open, and the program is told to end, or the session goes on: the one is heeded, the other not missed.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Terminal, text_of};

const ANY: &str = "when\n  say \"Yes.\"\n";
/// What is on the screen as soon as the program has the terminal.
const ASKS: &str = "ask before acting";
/// Starts the program, and says how it left and how it left the terminal.
const START: &str = "$D $ARGUMENTS; echo \"left with $?\"; stty -a | tr -d '\\n' | grep -o ' icanon.* echo '";
/// Waits for ever, in the other buffer and with a terminal of its own liking.
const WAITS: &str = "printf '\\033[?1049h\\033[?25l'; stty raw -echo; echo editing; echo $$ > $HOME/editor
exec sleep 1000000
";
/// The same for a terminal that can do nothing.
const WAITS_PLAINLY: &str = "stty -echo; echo $$ > $HOME/editor; exec sleep 1000000\n";
/// As the first, and takes no notice of anybody.
const STUBBORN: &str = "trap '' TERM HUP INT
printf '\\033[?1049h\\033[?25l'; stty raw -echo; echo editing; echo $$ > $HOME/editor
while :; do sleep 1; done
";

/// The program in a shell, where the editor is this script and writes its number down.
fn with_editor(script: &str, arguments: &str) -> Terminal {
    let terminal = Terminal::in_shell(ANY);
    std::fs::write(terminal.stand.file("editor.sh"), script).unwrap();
    terminal.say(&format!("export EDITOR='sh editor.sh' ARGUMENTS={arguments}; unset VISUAL; clear"));
    terminal.wait_gone("export");
    terminal.say(START);
    terminal
}

/// The process of the editor, once it has begun.
fn editor(terminal: &Terminal) -> Pid {
    let number = || text_of(terminal.stand.home.home().join("editor")).trim().parse().ok();
    terminal.wait_that("an editor", || number().is_some());
    number().and_then(Pid::from_raw).unwrap()
}

/// Tells the program to end while its editor waits, and sees what is left.
fn ends(terminal: &Terminal, signal: Signal, code: i32) {
    let editor = editor(terminal);
    assert!(test_kill_process(editor).is_ok());
    // The shell's child is the one that keeps the terminal.
    kill_process(Pid::from_raw(terminal.worker()).unwrap(), signal).unwrap();
    terminal.wait_for(&format!("left with {code}\n icanon iexten echo"));
    terminal.wait_that("the end of the editor", || test_kill_process(editor).is_err());
    assert_eq!((terminal.fact("cursor_flag"), terminal.fact("alternate_on")), ("1".into(), "0".into()));
    terminal.say("echo a shell'$'");
    terminal.wait_for("a shell$\n");
}

#[test]
fn the_program_ends_when_it_is_told_to_and_its_editor_with_it() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        for script in [WAITS, STUBBORN] {
            let terminal = with_editor(script, "");
            terminal.wait_for(ASKS);
            terminal.keys("C-g");
            ends(&terminal, signal, code);
        }
    }
}

#[test]
fn a_prompt_that_is_written_in_an_editor_beside_plain_lines_is_sent() {
    let terminal = with_editor("echo 'count the pears' > \"$1\"\n", "--plain");
    terminal.wait_until("a prompt", |screen| screen.lines().last().is_some_and(|row| row.trim() == ">"));
    // The terminal takes such a key for itself, unless it is told that it is a letter.
    terminal.keys("C-v C-g Enter");
    terminal.wait_for("Yes.");
    assert!(terminal.last_request("main").contains("count the pears"));
}

/// A new agent is being written in this editor, beside plain lines.
fn with_editor_beside_lines(script: &str) -> Terminal {
    let terminal = with_editor(script, "--plain");
    terminal.wait_until("a prompt", |screen| screen.lines().last().is_some_and(|row| row.trim() == ">"));
    terminal.say("/agents");
    terminal.wait_for("general");
    terminal.say("n");
    terminal.wait_for("name of the new agent");
    terminal.say("vintner");
    editor(&terminal);
    terminal
}

#[test]
fn plain_lines_end_with_their_editor_too() {
    let terminal = with_editor_beside_lines(WAITS_PLAINLY);
    ends(&terminal, Signal::TERM, 143);
}

#[test]
fn what_is_typed_in_an_editor_beside_plain_lines_is_the_editors() {
    let terminal =
        with_editor_beside_lines("echo $$ > $HOME/editor; read words; echo \"$words\" > $HOME/got\n");
    terminal.say("for the editor");
    let got = || text_of(terminal.stand.home.home().join("got"));
    terminal.wait_that("what was typed there", || got() == "for the editor\n");
    terminal.wait_for("No problems in 1 definition.");
    terminal.say("q");
    terminal.wait_until("a prompt", |screen| screen.lines().last().is_some_and(|row| row.trim() == ">"));
    terminal.say("for the model");
    terminal.wait_for("Yes.");
    assert!(!terminal.last_request("main").contains("for the editor"));
}

#[test]
fn an_editor_does_not_outlive_the_process_that_keeps_the_terminal() {
    let terminal = with_editor(WAITS, "");
    terminal.wait_for(ASKS);
    terminal.keys("C-g");
    let editor = editor(&terminal);
    super::kill(terminal.worker());
    terminal.wait_that("the end of the editor", || test_kill_process(editor).is_err());
}

#[test]
fn what_is_said_while_an_editor_is_open_is_there_when_it_is_closed() {
    let terminal = Terminal::in_shell(
        "when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Wait for it\"}
when
  say \"It is done.\"
",
    );
    // It is closed once the answer is on record.
    let script = format!(
        "touch $HOME/go
until grep -rqs 'It is done' {}/projects; do sleep 0.02; done
echo 'and what I wrote' > \"$1\"
",
        terminal.stand.home.state().display()
    );
    std::fs::write(terminal.stand.file("editor.sh"), script).unwrap();
    terminal.say("export EDITOR='sh editor.sh'; unset VISUAL; $D --dangerously-skip-permissions");
    terminal.wait_for("bypass permissions");
    terminal.say("wait");
    terminal.wait_for("while [");
    terminal.keys("C-g");
    terminal.wait_for("> and what I wrote");
    terminal.wait_settled("It is done.");
    let all = terminal.scrollback();
    assert_eq!(all.matches("It is done.").count(), 1, "{all}");
}
