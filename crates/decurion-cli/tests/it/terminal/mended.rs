//! The session as plain lines, and lists beside which something is wrong.

use super::{READY, Terminal, USUAL};
use crate::stand::Stand;

/// The program as plain lines.
fn plain(script: &str, arguments: &[&str]) -> Terminal {
    let mut all = vec!["--plain"];
    all.extend(arguments);
    Terminal::with(Stand::new(script), &all, USUAL)
}

#[test]
fn the_first_line_after_a_change_of_session_is_not_lost() {
    let terminal = plain("when text=/prompt (\\d+)/\n  say \"answer $1.\"\n", &[]);
    terminal.say("prompt 1");
    terminal.wait_for("answer 1.");
    for number in 2..=3 {
        // It prints its sign once it rests.
        terminal.wait_until("a prompt", |screen| {
            screen.lines().last().is_some_and(|row| row.trim() == READY.trim())
        });
        terminal.say("/clear");
        terminal.wait_until("a new session", |screen| screen.matches("New session.").count() == number - 1);
        terminal.say(&format!("prompt {number}"));
        terminal.wait_for(&format!("answer {number}."));
    }
}

#[test]
fn at_the_end_of_input_the_work_is_finished_first() {
    let script = "when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done; touch $HOME/finished\", \"description\": \"Wait\", \"run_in_background\": true}
when turn=2
  say \"It goes on by itself.\"
when
  say \"Heard of its end.\"
";
    let terminal = plain(script, &["--dangerously-skip-permissions"]);
    terminal.say("go");
    terminal.wait_for("It goes on by itself.");
    terminal.keys("C-d");
    terminal.wait_for("when everything is done");
    let home = terminal.stand.home.home();
    std::fs::write(home.join("go"), "").unwrap();
    assert_eq!(terminal.ended(), 0);
    assert!(home.join("finished").exists());
}

#[test]
fn at_the_end_of_input_one_signal_leaves() {
    let terminal = plain("when\n  say \"I begin\"\n  stall\n", &[]);
    terminal.say("go");
    terminal.keys("C-d");
    terminal.wait_for("when everything is done");
    terminal.keys("C-c");
    assert_eq!(terminal.ended(), 130);
}

#[test]
fn a_prompt_that_a_hook_refuses_is_given_back_with_the_reason() {
    let stand = Stand::new("when\n  say \"Heard.\"\n");
    let hook = r#"{"hooks": {"UserPromptSubmit": [{"hooks": [{"type": "command",
        "command": "if grep -q pears; then echo no fruit today >&2; exit 2; fi"}]}]}}"#;
    super::put_in(&stand.home.state(), "settings.json", hook);
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("count the pears");
    terminal.wait_for("no fruit today");
    terminal.wait_for("> count the pears");
    terminal.keys("C-u");
    terminal.wait_gone("> count");
    terminal.say("count the plums");
    terminal.wait_settled("Heard.");
    assert!(!terminal.screen().contains("next:"));
}

#[test]
fn an_empty_line_decides_nothing() {
    let script = "when turn=1
  call Bash {\"command\": \"echo ran > $HOME/made\", \"description\": \"Make a file\"}
when
  say \"All done.\"
";
    let terminal = plain(script, &[]);
    terminal.say("make it");
    let how = "type a number to answer";
    let screen = terminal.wait_for(how);
    assert!(screen.contains("1. ") && !screen.contains('❯'), "{screen}");
    terminal.keys("Enter");
    terminal.wait_until("the question again", |screen| screen.matches(how).count() == 2);
    // Nor does a letter, which is no prompt either.
    terminal.say("y");
    terminal.wait_until("the question once more", |screen| screen.matches(how).count() == 3);
    let made = terminal.stand.home.home().join("made");
    assert!(!made.exists());
    terminal.say("1");
    terminal.wait_for("All done.");
    assert!(made.exists());
}

#[test]
fn a_number_chooses_and_a_letter_does() {
    let script = "when turn=1
  call Bash {\"command\": \"trap 'touch $HOME/one; exit' TERM; while :; do sleep 0.02; done\", \"description\": \"One\", \"run_in_background\": true}
  call Bash {\"command\": \"trap 'touch $HOME/two; exit' TERM; while :; do sleep 0.02; done\", \"description\": \"Two\", \"run_in_background\": true}
when
  say \"Both run.\"
";
    let terminal = plain(script, &["--dangerously-skip-permissions"]);
    terminal.say("go");
    terminal.wait_for("Both run.");
    terminal.say("/tasks");
    terminal.wait_for("1 is chosen");
    terminal.say("2");
    let screen = terminal.wait_for("2 is chosen");
    assert!(!screen.contains('❯'), "{screen}");
    terminal.say("x");
    terminal.wait_for("stop $ Two? type y, or anything else for no");
    terminal.say("n");
    terminal.wait_until("the choice again", |screen| screen.matches("2 is chosen").count() == 2);
    let home = terminal.stand.home.home();
    assert!(!home.join("two").exists());
    terminal.say("x");
    terminal.wait_until("the question again", |screen| screen.matches("stop $ Two?").count() == 2);
    terminal.say("y");
    terminal.wait_until("the end of the second", |_| home.join("two").exists());
    assert!(!home.join("one").exists());
}

#[test]
fn an_agent_file_with_a_warning_costs_no_row() {
    let stand = Stand::new("when\n  say \"Yes.\"\n");
    let folder = stand.home.home().join(".claude/agents");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("odd.md"), "---\nname: odd\ndescription: Odd: it is\n---\nBe odd.\n").unwrap();
    let terminal = Terminal::with(stand, &[], (100, 40));
    terminal.say("/agents");
    let screen = terminal.wait_for("1 warning; see");
    assert!(screen.contains("Explore") && screen.contains("esc close"), "{screen}");
    assert!(!terminal.scrollback().contains("warning:"), "{}", terminal.scrollback());
}

#[test]
fn an_agent_file_that_cannot_be_used_is_reported_above_the_conversation() {
    let stand = Stand::new("when\n  say \"Yes.\"\n");
    super::put_in(&stand.home.home(), ".claude/agents/bare.md", "---\nname: bare\n---\nBe brief.\n");
    let terminal = Terminal::with(stand, &[], (200, 40));
    terminal.say("go");
    let screen = terminal.wait_settled("Yes.");
    assert_eq!(screen.matches("bare.md:1: error: missing `description`").count(), 1, "{screen}");
}
