//! Keys while something works: into the background, interrupted, another mode.

use super::{Terminal, USUAL};
use crate::stand::Stand;

#[test]
fn foreground_work_goes_to_the_background() {
    let script = "when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done; echo late\", \"description\": \"Wait for it\"}
when turn=2 result=/background/i
  say \"It goes on by itself.\"
when text=/late|completed/
  say \"Heard of its end.\"
when
  say \"Something else.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("wait");
    terminal.wait_for("while [");
    terminal.keys("C-b");
    terminal.wait_for("It goes on by itself.");
    terminal.go();
    terminal.wait_for("Heard of its end.");
}

#[test]
fn an_agent_in_the_foreground_goes_to_the_background() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look.\", \"subagent_type\": \"Explore\"}
when agent=main turn=2
  say \"We need not wait.\"
when agent=main
  say \"It has reported.\"
when agent=Explore turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Stand still\"}
when
  say \"Nothing here.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.keys("C-b");
    terminal.wait_for("We need not wait.");
    terminal.go();
    terminal.wait_settled("It has reported.");
    // The agent went on waiting for its own command, and heard of its end.
    let requests = terminal.stand.model.requests();
    let last = requests.iter().rfind(|request| request.agent != "main").expect("it asked the model");
    let heard = String::from_utf8_lossy(&last.body);
    assert!(!heard.contains("sent to the background"), "{heard}");
}

#[test]
fn escape_interrupts_the_turn_and_nothing_else() {
    let script = "when text=/again/
  say \"Here I am.\"
when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done; touch $HOME/went\", \"run_in_background\": true}
when turn=2
  say \"I begin\"
  stall
when
  say \"Heard of its end.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("go");
    terminal
        .wait_until("that it goes on", |screen| screen.contains("I begin") && screen.contains("Writing…"));
    terminal.keys("Escape");
    terminal.wait_for("Interrupted.");
    terminal.say("again");
    terminal.wait_for("Here I am.");
    // What runs in the background went on all the time.
    let home = terminal.stand.home.home();
    std::fs::write(home.join("go"), "").unwrap();
    terminal.wait_for("Heard of its end.");
    assert!(home.join("went").exists());
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn shift_tab_goes_through_the_modes() {
    let terminal = Terminal::start("when\n  say \"Yes.\"\n");
    for mode in ["auto-accept edits", "plan mode", "ask before acting", "auto-accept edits"] {
        terminal.keys("BTab");
        terminal.wait_for(mode);
    }
}

#[test]
fn an_interrupted_command_keeps_what_it_had_printed() {
    let script = "when text=/again/
  say \"I know.\"
when turn=1
  call Bash {\"command\": \"for n in 1 2 3; do echo tick $n; done; touch $HOME/ticked; while :; do sleep 1; done\"}
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("go");
    let ticked = terminal.stand.home.home().join("ticked");
    terminal.wait_that("its output", || ticked.exists());
    terminal.keys("Escape");
    terminal.wait_for("Interrupted.");
    let screen = terminal.screen();
    for words in ["└ interrupted", "tick 1", "tick 3"] {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    terminal.say("again");
    terminal.wait_for("I know.");
    let requests = terminal.stand.model.requests();
    let heard = String::from_utf8_lossy(&requests.last().expect("no request").body).into_owned();
    assert!(heard.contains("the command was stopped before it ended") && heard.contains("tick 3"), "{heard}");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}
