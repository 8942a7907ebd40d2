//! What a person is told who opens a session again whose process did not end by itself.

use super::Terminal;

const TWO_AGENTS: &str = "when agent=main turn=1
  call Agent {\"description\": \"Fix lint\", \"prompt\": \"Wait.\", \"subagent_type\": \"general-purpose\", \"run_in_background\": true}
  call Agent {\"description\": \"Run tests\", \"prompt\": \"Wait.\", \"subagent_type\": \"general-purpose\", \"run_in_background\": true}
when agent=main
  say \"Both work.\"
when turn=1
  call Bash {\"command\": \"sleep 1000\", \"description\": \"Wait\"}
when
  say \"Done.\"
";

/// A terminal in which both agents work.
fn at_work() -> Terminal {
    let terminal =
        Terminal::with(crate::stand::Stand::new(TWO_AGENTS), &["--allowedTools", "Bash"], (120, 30));
    terminal.say("go");
    terminal.wait_for("Both work.");
    terminal.wait_that("both agents at work", || {
        let requests = terminal.stand.model.requests();
        requests.iter().filter(|request| request.agent != "main").count() >= 2
    });
    terminal
}

#[test]
fn a_session_whose_process_was_killed_says_what_continues() {
    let terminal = at_work();
    terminal.kill_worker();
    assert_eq!(terminal.ended(), 137);
    let again = terminal.beside(&["--continue", "--allowedTools", "Bash"]);
    let screen = again.wait_for("The process of this session was killed.");
    assert!(screen.contains("Continuing: Fix lint, Run tests."), "{screen}");
}

#[test]
fn agents_that_were_stopped_with_the_session_are_named_with_how_to_resume_one() {
    let terminal = at_work();
    super::kill(terminal.keeper());
    super::detaching::all_gone(&terminal);
    let again = terminal.beside(&["--continue"]);
    let screen = again.wait_for("Stopped when the session ended:");
    assert!(screen.contains("ended: Fix lint, Run tests. To resume one: Ctrl+T"), "{screen}");
    assert!(!screen.contains("interrupt"), "{screen}");
    // It is said once: what is asked next is a new piece of work.
    again.say("more");
    again.wait_settled("Both work.");
    again.keys("C-d");
    assert_eq!(again.ended(), 0);
    let third = again.beside(&["--continue"]).ready();
    assert!(!third.screen().contains("Stopped when the session ended:"), "{}", third.screen());
}

#[test]
fn a_prompt_on_the_command_line_is_told_what_continues() {
    let stand = crate::stand::Stand::new(super::BEHIND);
    let terminal = Terminal::with(stand, &["--dangerously-skip-permissions"], super::USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.kill_worker();
    assert_eq!(terminal.ended(), 137);
    terminal.go();
    let run = terminal.stand.run(&["-p", "--continue", "more", "--allowedTools", "Bash"]);
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let told = "decurion: The process of this session was killed. Continuing: look around.";
    assert!(run.errors.contains(told), "{}", run.errors);
    // It is said once.
    let run = terminal.stand.run(&["-p", "--continue", "more", "--allowedTools", "Bash"]);
    assert!(!run.errors.contains("was killed"), "{}", run.errors);
}

#[test]
fn a_prompt_on_the_command_line_is_told_which_agents_were_stopped() {
    let terminal = at_work();
    super::kill(terminal.keeper());
    super::detaching::all_gone(&terminal);
    let run = terminal.stand.run(&["-p", "--continue", "more"]);
    let told =
        "Stopped when the session ended: Fix lint, Run tests. To resume one: ask for it in the prompt.";
    assert!(run.errors.contains(told), "{}", run.errors);
}
