//! Which answers a question offers: only rules that would have let the call go ahead, and all of them at once.

use super::Terminal;
use crate::stand::Stand;

/// The answers that a screen shows, without their numbers.
fn offers(screen: &str) -> Vec<String> {
    let answer = |row: &str| {
        let (number, words) = row.trim_start_matches(['❯', ' ']).split_once(". ")?;
        number.parse::<u8>().ok().map(|_| words.to_owned())
    };
    screen.lines().filter_map(answer).collect()
}

/// A terminal that is asked about this command, and what it is offered.
fn asked_about(command: &str) -> (Terminal, Vec<String>) {
    let input = serde_json::json!({"command": command, "description": "Try it"});
    let script = format!(
        "when text=/go/\n  call Bash {input}\nwhen result=/./\n  say \"It is over.\"\nwhen\n  say \"Yes.\"\n"
    );
    let terminal = Terminal::with(Stand::new(&script), &[], (140, 30));
    terminal.say("go");
    let screen = terminal.wait_for("No, and tell it what to do instead");
    let offers = offers(&screen);
    (terminal, offers)
}

const ONCE_OR_NOT: [&str; 3] = ["Yes, this once", "No, and tell it what to do instead", "No, and stop (esc)"];

#[test]
fn a_command_that_writes_outside_is_allowed_once_or_not_at_all() {
    // Not below a folder for temporary files, where anybody writes; and one that is not there, so that nothing is left.
    let (terminal, offers) = asked_about("git add pear.txt > /no-such-orchard/made");
    assert_eq!(offers, ONCE_OR_NOT);
    terminal.keys("1");
    terminal.wait_settled("It is over.");
    // It ran, and once is once.
    assert!(terminal.last_request("main").contains("No such file or directory"));
    terminal.say("go on");
    terminal.wait_for("? Run");
}

#[test]
fn a_command_that_nobody_can_read_is_allowed_once_or_not_at_all() {
    let (terminal, offers) = asked_about("$(cat command) --all");
    assert_eq!(offers, ONCE_OR_NOT);
    terminal.keys("2");
    terminal.wait_for("\ntell it:");
    terminal.keys("Enter");
    terminal.wait_for("refused: $ $(cat command) --all");
}

#[test]
fn two_commands_in_one_are_one_answer_with_both_rules() {
    let (terminal, offers) = asked_about("touch pear.txt && mkdir -p orchard");
    let rules = "Bash(touch pear.txt), Bash(mkdir -p orchard)";
    let (session, always) = (
        format!("Yes, for the rest of this session: {rules}"),
        format!("Yes, always in this project: {rules}"),
    );
    assert_eq!(offers, [ONCE_OR_NOT[0], &session, &always, ONCE_OR_NOT[1], ONCE_OR_NOT[2]]);
    let made = || ["pear.txt", "orchard"].map(|name| terminal.stand.home.work().join(name).exists());
    assert_eq!(made(), [false, false]);
    terminal.keys("2");
    terminal.wait_settled("It is over.");
    assert_eq!(made(), [true, true]);
    std::fs::remove_file(terminal.stand.home.work().join("pear.txt")).unwrap();
    std::fs::remove_dir(terminal.stand.home.work().join("orchard")).unwrap();
    terminal.say("go on");
    terminal.wait_until("the end without a question", |screen| {
        screen.matches("It is over.").count() == 2 && !screen.contains('◌')
    });
    assert_eq!(made(), [true, true]);
    // It was for this session.
    assert!(!terminal.stand.home.work().join(".decurion/settings.local.json").exists());
}

/// A terminal where an agent in the background is asked about; the root does the same when it is told to.
fn asked_from_behind() -> (Terminal, Vec<String>) {
    let script = "when agent=main text=/begin/
  call Agent {\"description\": \"leave\", \"prompt\": \"Leave it.\", \"subagent_type\": \"general-purpose\", \"run_in_background\": true}
when agent=main text=/again/
  call Bash {\"command\": \"touch pear.txt\", \"description\": \"Leave it too\"}
when agent=main result=/./
  say \"The main agent is done.\"
when agent=main
  say \"It was told.\"
when turn=1
  call Bash {\"command\": \"touch pear.txt\", \"description\": \"Leave it\"}
when
  say \"Left.\"
";
    let stand = Stand::new(script);
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let terminal = Terminal::with(stand, &[], (140, 30));
    terminal.say("begin");
    let screen = terminal.wait_for("No, and tell it what to do instead");
    assert!(!screen.contains("0 working"), "{screen}");
    let offers = offers(&screen);
    (terminal, offers)
}

#[test]
fn an_agent_in_the_background_is_given_what_the_words_of_the_answer_say() {
    let (terminal, offers) = asked_from_behind();
    let rule = "Bash(touch pear.txt)";
    let [agent, session, always] =
        ["for this agent and its sub-agents", "for the rest of this session", "always in this project"]
            .map(|whom| format!("Yes, {whom}: {rule}"));
    assert_eq!(offers, [ONCE_OR_NOT[0], &agent, &session, &always, ONCE_OR_NOT[1], ONCE_OR_NOT[2]]);
    terminal.keys("2");
    terminal.wait_settled("It was told.");
    // The root was given nothing.
    terminal.say("again");
    terminal.wait_for("? Run");
}

#[test]
fn what_is_always_allowed_to_an_agent_in_the_background_is_allowed_to_all() {
    let (terminal, _) = asked_from_behind();
    terminal.keys("4");
    terminal.wait_settled("It was told.");
    let kept = || super::text_of(terminal.stand.home.work().join(".decurion/settings.local.json"));
    terminal.wait_that("the rule in a file", || kept().contains("\"Bash(touch pear.txt)\""));
    std::fs::remove_file(terminal.stand.home.work().join("pear.txt")).unwrap();
    terminal.say("again");
    terminal.wait_until("the end without a question", |screen| {
        screen.matches("The main agent is done.").count() == 2 && !screen.contains('◌')
    });
    assert!(terminal.stand.home.work().join("pear.txt").exists());
}
