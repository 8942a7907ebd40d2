//! Pages over everything: the whole conversation, one agent's as it goes on, what a command has printed; and what can be
//! done with an agent or a command from the tree.

use super::{Terminal, USUAL};
use crate::stand::Stand;

/// An agent that stands still until a file is there, and what its parent says of it.
const AGENT: &str = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look at the orchard.\", \"subagent_type\": \"Explore\"}
when agent=main turn=2 result=/async_launched|background/
  say \"We need not wait.\"
when agent=main turn=2 result=/Nothing here/
  say \"It found nothing.\"
when agent=main turn=2
  say \"It was stopped.\"
when agent=main
  say \"It has reported.\"
when agent=Explore turn=1
  say \"I shall wait.\"
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done; echo it went\", \"description\": \"Stand still\"}
when
  say \"Nothing here.\"
";

/// The tree is open and the agent is chosen in it.
fn chosen() -> Terminal {
    let terminal = Terminal::with(Stand::new(AGENT), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.keys("C-t");
    terminal.wait_for("enter look");
    terminal
}

#[test]
fn the_whole_conversation_shows_what_is_folded_and_leaves_the_terminal_alone() {
    let script = "when turn=1\n  call Bash {\"command\": \"seq 1 40\"}\nwhen\n  say \"Counted.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("count");
    terminal.wait_settled("Counted.");
    let before = terminal.scrollback();
    assert!(!before.contains("\n    38"), "{before}");
    terminal.keys("C-o");
    let page = terminal.wait_for("q or esc back");
    assert!(page.contains("\n    38") && terminal.fact("alternate_on") == "1", "{page}");
    terminal.keys("PageUp");
    terminal.wait_for("\n    20\n");
    terminal.keys("C-o");
    terminal.wait_gone("q or esc back");
    assert_eq!(terminal.fact("alternate_on"), "0");
    assert_eq!(terminal.scrollback(), before);
}

#[test]
fn an_agent_is_watched_and_told_something_which_its_next_request_carries() {
    let terminal = chosen();
    terminal.keys("Enter");
    let page = terminal.wait_for("I shall wait.");
    assert!(page.starts_with("Explore · look around") && page.contains("Look at the orchard."), "{page}");
    terminal.write("count the pears too");
    terminal.wait_for("Message: count the pears too");
    terminal.keys("Enter");
    terminal.wait_gone("Message: count");
    terminal.wait_for("Queued for its next step: count the pears too");
    terminal.wait_recorded("count the pears too");
    terminal.go();
    let page = terminal.wait_for("Nothing here.");
    assert!(page.contains("it went") && page.contains("count the pears too"), "{page}");
    assert!(!page.contains("at its next step"), "{page}");
    terminal.keys("Escape Escape");
    terminal.wait_settled("It found nothing.");
    assert!(terminal.scrollback().contains("told Explore · look around: count the pears too"));
    let requests = terminal.stand.model.requests();
    let told = requests.iter().rfind(|request| request.agent != "main");
    let told = String::from_utf8_lossy(&told.unwrap().body).into_owned();
    assert!(told.contains("count the pears too"), "{told}");
}

#[test]
fn an_agent_is_stopped_from_the_tree() {
    let terminal = chosen();
    terminal.keys("x");
    terminal.wait_for("stop Explore · look around? (y, then enter · esc: no)");
    // Neither enter alone nor a no stops it, and the question stays for what is pressed next.
    terminal.keys("Enter");
    terminal.wait_for("press y first");
    terminal.keys("n");
    terminal.wait_gone("stop Explore");
    terminal.keys("x n");
    terminal.wait_gone("stop Explore");
    terminal.keys("x y");
    terminal.wait_for("stop Explore · look around? (enter · esc: no)");
    assert!(terminal.screen().contains("● Explore · look around"), "{}", terminal.screen());
    terminal.keys("Enter");
    terminal.wait_for("stopped  ");
    terminal.keys("Escape");
    terminal.wait_for("It was stopped.");
    terminal.wait_that("no process of it is left", || {
        !terminal
            .stand
            .home
            .processes()
            .iter()
            .any(|pid| super::text_of(format!("/proc/{pid}/cmdline")).contains("/go"))
    });
}

#[test]
fn words_typed_over_the_tree_go_to_the_prompt_and_do_nothing_else() {
    let terminal = chosen();
    assert_eq!(terminal.fact("cursor_flag"), "0", "the prompt does not look as if it had the keys");
    for words in ["fix the build", "please", "xylophone", "background", "Print it", "run"] {
        terminal.write(words);
        let screen =
            terminal.wait_until(words, |screen| screen.lines().any(|row| row == format!("> {words}")));
        assert!(!screen.contains("enter look") && !screen.contains('‖'), "{words}: {screen}");
        assert_eq!(terminal.fact("cursor_flag"), "1", "{words}");
        terminal.keys("C-u C-t");
        terminal.wait_for("enter look");
    }
    terminal.paste("x marks the spot");
    terminal.wait_for("> x marks the spot");
    assert!(terminal.screen().contains("● Explore · look around"), "{}", terminal.screen());
    terminal.keys("C-u");
    terminal.go();
    terminal.wait_for("It found nothing.");
    let told = terminal.stand.model.requests();
    assert!(
        told.iter()
            .all(|request| !String::from_utf8_lossy(&request.body).contains("Continue with your work"))
    );
}

#[test]
fn one_agent_goes_to_the_background_from_the_tree() {
    let terminal = chosen();
    terminal.keys("b");
    terminal.wait_for("send Explore · look around to the background?");
    terminal.keys("Enter");
    terminal.wait_for("We need not wait.");
    terminal.keys("Escape");
    terminal.go();
    terminal.wait_for("It has reported.");
}

#[test]
fn an_agent_is_held_and_goes_on() {
    let terminal = chosen();
    terminal.keys("p");
    terminal.wait_for("pause Explore · look around?");
    terminal.keys("Enter");
    terminal.wait_for("‖ Explore");
    terminal.go();
    // Its call ends and it asks nothing: the tree is still, and so it is safe to look.
    terminal.wait_that("the end of its call", || {
        !terminal
            .stand
            .home
            .processes()
            .iter()
            .any(|pid| super::text_of(format!("/proc/{pid}/cmdline")).contains("/go"))
    });
    assert!(terminal.screen().contains("paused"), "{}", terminal.screen());
    terminal.keys("p");
    terminal.wait_for("let Explore · look around continue?");
    terminal.keys("Enter");
    terminal.wait_for("It found nothing.");
}

#[test]
fn what_a_command_has_printed_is_shown() {
    let script = "when turn=1
  call Bash {\"command\": \"seq -f 'row %g' 1 30; touch $HOME/printed; while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"run_in_background\": true, \"description\": \"Count rows\"}
when
  say \"It runs.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("count");
    terminal.wait_for("It runs.");
    let printed = terminal.stand.home.home().join("printed");
    terminal.wait_that("the rows", || printed.exists());
    terminal.say("/tasks");
    let tree = terminal.wait_for("enter look");
    assert!(tree.contains("$ Count rows") || tree.contains("$ seq"), "{tree}");
    terminal.keys("Enter");
    let page = terminal.wait_for("row 20");
    assert!(page.lines().next().unwrap().contains("bytes"), "{page}");
    terminal.keys("PageDown PageDown");
    terminal.wait_for("row 30");
    terminal.keys("q");
    terminal.wait_gone("row 30");
    terminal.keys("x y");
    terminal.wait_for("(enter · esc: no)");
    terminal.keys("Enter");
    terminal.wait_for("stopped  ");
}

#[test]
fn an_agent_gets_another_budget_from_the_tree() {
    let terminal = chosen();
    terminal.keys("$");
    terminal.wait_for("\nbudget:");
    terminal.write("banana");
    terminal.keys("Enter");
    // What is wrong stays, to be corrected.
    let screen = terminal.wait_for("not a budget: \"banana\"");
    assert!(screen.contains("\nbudget: banana"), "{screen}");
    terminal.keys("C-u");
    terminal.write("1 turns");
    terminal.keys("Enter");
    terminal.wait_for("Budget: 1 turns");
    terminal.go();
    terminal.wait_for("It stopped at its limit (turns)");
}

#[test]
fn an_agent_that_has_ended_is_told_to_go_on() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look.\", \"subagent_type\": \"Explore\"}
when agent=main turn=2
  say \"It is back.\"
when agent=main
  say \"It is back again.\"
when agent=Explore text=/Continue with your work/
  say \"There was a pear.\"
when
  say \"Nothing here.\"
";
    let terminal = Terminal::start(script);
    terminal.say("look");
    terminal.wait_settled("It is back.");
    terminal.say("/tasks");
    terminal.wait_for("✓ Explore");
    terminal.keys("r");
    terminal.wait_for("tell Explore · look around to continue?");
    terminal.keys("Enter");
    terminal.wait_settled("It is back again.");
    assert!(terminal.last_request("main").contains("There was a pear."), "{}", terminal.last_request("main"));
}

#[test]
fn the_tree_begins_at_whoever_still_works() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Be quick.\", \"subagent_type\": \"Explore\"}
when agent=main turn=2
  call Agent {\"description\": \"second\", \"prompt\": \"Stand still.\", \"subagent_type\": \"Explore\"}
when agent=main
  say \"It was stopped.\"
when first=/Stand still/
  stall
when
  say \"Done.\"
";
    let terminal = Terminal::start(script);
    terminal.say("go");
    terminal.wait_for("● Explore · second");
    terminal.keys("C-t");
    terminal.wait_for("✓ Explore · first");
    terminal.keys("x y");
    terminal.wait_for("stop Explore · second? (enter");
    terminal.keys("Enter");
    terminal.wait_for("■ Explore · second");
    terminal.wait_for("It was stopped.");
}
