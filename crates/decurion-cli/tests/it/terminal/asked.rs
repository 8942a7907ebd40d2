//! More that a person is asked: choices, several questions at once, rules, other places that answer, crashes.

use super::{Terminal, USUAL, put, text_of};
use crate::stand::Stand;

/// One line is added to a file outside of the state folder for each time that the call ran.
const EFFECT: &str = "when turn=1
  call Bash {\"command\": \"echo ran >> $EFFECTS\", \"description\": \"Leave a mark\"}
when result=/./
  say \"It is over.\"
when
  say \"Yes.\"
";

fn effects(terminal: &Terminal) -> usize {
    text_of(terminal.stand.home.effects()).lines().count()
}

fn choices(questions: &str) -> Terminal {
    let script = format!(
        "when turn=1\n  call AskUserQuestion {{\"questions\": [{questions}]}}\nwhen\n  say \"Well chosen.\"\n"
    );
    let terminal = Terminal::start(&script);
    terminal.say("begin");
    terminal
}

const FRUIT: &str = r#"{"question": "Which fruit?", "header": "fruit", "multiSelect": false, "options": [
    {"label": "Pear", "description": "sweet"}, {"label": "Quince", "description": "sour"}]}"#;
const TOOLS: &str = r#"{"question": "Which tools?", "header": "tools", "multiSelect": true, "options": [
    {"label": "Ladder", "description": "to climb"}, {"label": "Basket", "description": "to fill"}, {"label": "Saw", "description": "to cut"}]}"#;

#[test]
fn a_choice_is_made_with_a_key() {
    let terminal = choices(FRUIT);
    let screen = terminal.wait_for("Which fruit?");
    assert!(screen.contains("1. Pear") && screen.contains("sour"), "{screen}");
    terminal.keys("2");
    terminal.wait_settled("Well chosen.");
    assert!(
        terminal.last_request("main").contains("Which fruit?\\n  Quince"),
        "{}",
        terminal.last_request("main")
    );
}

#[test]
fn several_are_marked_and_other_words_are_written() {
    let terminal = choices(&format!("{TOOLS}, {FRUIT}"));
    terminal.wait_for("Which tools? (1 of 2)");
    terminal.keys("Space Down Down Space");
    let screen = terminal.wait_for("3. [x] Saw");
    assert!(screen.contains("1. [x] Ladder") && screen.contains("2. [ ] Basket"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_for("Which fruit? (2 of 2)");
    terminal.keys("3");
    terminal.wait_for("\nanswer:");
    terminal.write("a plum, ripe");
    terminal.keys("Enter");
    let screen = terminal.wait_for("Send these answers?");
    assert!(screen.contains("tools: Ladder, Saw") && screen.contains("fruit: a plum, ripe"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_settled("Well chosen.");
    // The call itself names all that could be chosen, so that a word alone would prove nothing.
    let request = terminal.last_request("main");
    assert!(request.contains("Which tools?\\n  Ladder, Saw\\n"), "{request}");
    assert!(request.contains("Which fruit?\\n  a plum, ripe"), "{request}");
}

#[test]
fn what_is_marked_stands_beside_other_words() {
    let terminal = choices(TOOLS);
    terminal.wait_for("Which tools?");
    terminal.keys("1 4");
    terminal.wait_for("\nanswer:");
    terminal.write("a rope");
    terminal.keys("Enter");
    terminal.wait_settled("Well chosen.");
    let request = terminal.last_request("main");
    assert!(request.contains("Ladder, a rope"), "{request}");
}

#[test]
fn two_agents_ask_at_once_and_each_is_named() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Leave one\", \"subagent_type\": \"general-purpose\"}
  call Agent {\"description\": \"second\", \"prompt\": \"Leave two\", \"subagent_type\": \"general-purpose\"}
when agent=main
  say \"Both are done.\"
when turn=1 first=/Leave (\\w+)/
  call Bash {\"command\": \"echo $1 >> $EFFECTS\"}
when
  say \"Done.\"
";
    let terminal = Terminal::start(script);
    terminal.say("both");
    let screen = terminal.wait_for("(1 of 2)");
    assert!(screen.contains("2 questions"), "{screen}");
    let head = |screen: &str| screen.lines().find(|row| row.contains("› Run")).map(str::to_owned);
    let first = head(&screen).unwrap();
    terminal.keys("1");
    let is_alone = |screen: &str| head(screen).is_some() && !screen.contains("(1 of 2)");
    let second = head(&terminal.wait_until("the other alone", is_alone)).unwrap();
    let mut named = [first, second].map(|row| row.split(" › Run").next().unwrap().to_owned());
    named.sort();
    assert!(named[0].ends_with("general-purpose · first"), "{named:?}");
    assert!(named[1].ends_with("general-purpose · second"), "{named:?}");
    terminal.wait_that("the first to run", || effects(&terminal) == 1);
    terminal.keys("1");
    terminal.wait_settled("Both are done.");
    let mut lines: Vec<String> = text_of(terminal.stand.home.effects()).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
}

#[test]
fn an_answer_for_the_session_settles_the_equal_questions_of_other_agents() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Make it.\", \"subagent_type\": \"general-purpose\"}
  call Agent {\"description\": \"second\", \"prompt\": \"Make it.\", \"subagent_type\": \"general-purpose\"}
when agent=main
  say \"Both are done.\"
when turn=1
  call Bash {\"command\": \"touch pear.txt\"}
when
  say \"Done.\"
";
    let terminal = Terminal::start(script);
    terminal.say("both");
    let screen = terminal.wait_for("(1 of 2)");
    let row =
        screen.lines().find(|row| row.contains("for the rest of this session")).unwrap().trim().to_owned();
    terminal.keys(row.split('.').next().unwrap());
    terminal.wait_settled("Both are done.");
    assert!(terminal.stand.home.work().join("pear.txt").exists());
}

#[test]
fn another_mode_settles_the_question_that_it_answers() {
    let script = "when turn=1
  call Write {\"file_path\": \"pear.txt\", \"content\": \"ripe\"}
when
  say \"It is over.\"
";
    let terminal = Terminal::start(script);
    terminal.say("write it");
    terminal.wait_for("? Write pear.txt?");
    terminal.keys("BTab");
    terminal.wait_settled("It is over.");
    assert_eq!(text_of(terminal.stand.home.work().join("pear.txt")), "ripe");
}

#[test]
fn whoever_asks_far_below_is_named_by_its_path() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Go down.\", \"subagent_type\": \"general-purpose\"}
when agent=main
  say \"Both are back.\"
when turn=1 first=/Go down/
  call Agent {\"description\": \"second\", \"prompt\": \"Leave a mark.\", \"subagent_type\": \"Verification\"}
when turn=1 first=/Leave a mark/
  call Bash {\"command\": \"echo ran >> $EFFECTS\"}
when
  say \"Done.\"
";
    let stand = Stand::new(script);
    super::put_in(&stand.home.state(), "settings.json", r#"{"agents": {"maxDepth": 2}}"#);
    let terminal = Terminal::with(stand, &[], (120, 30));
    terminal.say("go");
    let screen = terminal.wait_for("› Run");
    let head = screen.lines().find(|row| row.contains("› Run")).unwrap();
    assert!(
        head.contains("general-purpose") && head.contains(" › ") && head.contains("Verification"),
        "{head}"
    );
    terminal.keys("1");
    terminal.wait_settled("Both are back.");
    assert_eq!(effects(&terminal), 1);
}

#[test]
fn a_question_that_comes_while_somebody_writes_takes_no_key() {
    let stand = Stand::new(
        "when turn=1
  call Bash {\"command\": \"./wait.sh\", \"description\": \"Wait\"}
when turn=2
  call Bash {\"command\": \"echo ran >> $EFFECTS\", \"description\": \"Leave a mark\"}
when
  say \"It is over.\"\n",
    );
    put(&stand, "wait.sh", "#!/bin/sh\nwhile [ ! -e $HOME/go ]; do sleep 0.02; done\n");
    let path = stand.home.work().join("wait.sh");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let terminal = Terminal::with(stand, &["--allowedTools", "Bash(./wait.sh)"], USUAL);
    terminal.say("go");
    terminal.wait_for("◌ $ ./wait.sh");
    terminal.write("page ");
    terminal.wait_for("> page");
    terminal.go();
    terminal.wait_for("(tab to answer it)");
    terminal.write("1 of 2");
    terminal.wait_for("> page 1 of 2");
    assert_eq!(effects(&terminal), 0);
    terminal.keys("Tab");
    terminal.wait_gone("(tab to answer it)");
    terminal.keys("1");
    let screen = terminal.wait_for("It is over.");
    assert!(screen.contains("> page 1 of 2"), "what was written is lost: {screen}");
    assert_eq!(effects(&terminal), 1);
}

#[test]
fn always_is_the_rule_that_was_shown_and_holds_in_the_next_process() {
    let stand = Stand::new(
        "when turn=1\n  call Bash {\"command\": \"touch made\", \"description\": \"Make a file\"}\nwhen\n  say \"It is over.\"\n",
    );
    // Whoever trusts a folder goes on trusting it with what they add.
    assert!(stand.run(&["trust", "--yes"]).ending.is_success());
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.say("go");
    let screen = terminal.wait_for("always in this project");
    let row = screen.lines().find(|row| row.contains("always in this project")).unwrap().trim();
    let (number, words) = row.trim_start_matches('❯').trim().split_once('.').unwrap();
    let rule = words.rsplit("project: ").next().unwrap().to_owned();
    assert!(rule.starts_with("Bash(touch"), "{screen}");
    terminal.keys(number);
    terminal.wait_settled("It is over.");
    let kept = || text_of(terminal.stand.home.work().join(".decurion/settings.local.json"));
    terminal.wait_that("the rule in a file", || kept().contains(&format!("\"{rule}\"")));
    std::fs::remove_file(terminal.stand.home.work().join("made")).unwrap();
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let again = terminal.beside(&[]).ready();
    again.say("go");
    again.wait_settled("It is over.");
    assert!(again.stand.home.work().join("made").exists());
}

#[test]
fn a_refusal_can_say_what_to_do_instead() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    let screen = terminal.wait_for("No, and tell it what to do instead");
    let row = screen.lines().find(|row| row.contains("No, and tell it")).unwrap().trim().to_owned();
    terminal.keys(row.split('.').next().unwrap());
    terminal.wait_for("\ntell it:");
    terminal.write("use a pencil");
    terminal.keys("Enter");
    terminal.wait_settled("It is over.");
    assert!(terminal.last_request("main").contains("use a pencil"));
    assert_eq!(effects(&terminal), 0);
}

#[test]
fn a_question_that_was_answered_elsewhere_goes_away() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    terminal.wait_for("? Run");
    let answered = terminal.stand.run(&["tasks", "answer", "main", "allow"]);
    assert!(answered.ending.is_success(), "{answered:?}");
    let screen = terminal.wait_settled("It is over.");
    assert!(!screen.contains("? Run"), "{screen}");
    assert_eq!(effects(&terminal), 1);
}

#[test]
fn a_crash_asks_again_and_the_answer_counts_once() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    terminal.wait_for("? Run");
    terminal.kill_worker();
    assert_eq!(terminal.ended(), 137);
    let again = terminal.beside(&["--continue"]);
    again.wait_for("? Run");
    assert_eq!(effects(&again), 0);
    again.keys("1");
    again.wait_settled("It is over.");
    assert_eq!(effects(&again), 1);
    assert_eq!(again.stand.model.problems(), Vec::<String>::new());
}

/// Kills the process that a shell waits for, and waits until all that it started has ended.
fn end(terminal: &Terminal) {
    super::kill(terminal.keeper());
    super::detaching::all_gone(terminal);
}

#[test]
fn a_question_that_is_open_when_the_program_is_killed_is_asked_again() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    terminal.wait_for("? Run");
    end(&terminal);
    let again = terminal.beside(&["--continue"]);
    let screen = again.wait_for("? Run");
    assert!(screen.contains("Stopped: the session was closed."), "{screen}");
    assert!(!screen.contains("interrupt"), "{screen}");
    assert_eq!(effects(&again), 0);
    again.keys("1");
    again.wait_settled("It is over.");
    assert_eq!(effects(&again), 1);
    assert_eq!(again.stand.model.problems(), Vec::<String>::new());
}

/// The end of the command in the background wakes the agent; the question comes first.
#[test]
fn a_question_is_asked_again_also_if_a_command_ran_in_the_background() {
    let begin =
        "when agent=main turn=1\n  call Bash {\"command\": \"sleep 1000\", \"run_in_background\": true}\n";
    let ask =
        "when agent=main turn=2\n  call Bash {\"command\": \"echo ran >> $EFFECTS\"}\nwhen\n  say \"Yes.\"\n";
    let terminal = Terminal::start(&format!("{begin}{ask}"));
    terminal.say("go");
    terminal.wait_for("? Run");
    end(&terminal);
    let again = terminal.beside(&["--continue"]);
    again.wait_for("? Run");
    assert_eq!(effects(&again), 0);
    again.keys("1");
    again.wait_settled("Yes.");
    assert_eq!(effects(&again), 1);
    assert_eq!(again.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_choice_that_is_open_when_the_program_is_killed_is_asked_again() {
    let terminal = choices(FRUIT);
    terminal.wait_for("Which fruit?");
    end(&terminal);
    let again = terminal.beside(&["--continue"]);
    again.wait_for("1. Pear");
    again.keys("2");
    again.wait_settled("Well chosen.");
    assert!(again.last_request("main").contains("Quince"));
    assert_eq!(again.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_question_of_a_turn_that_was_stopped_on_leaving_is_not_asked_again() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    terminal.wait_for("? Run");
    terminal.keys("C-d");
    terminal.wait_for("Still running");
    terminal.keys("Down Down Enter");
    assert_eq!(terminal.ended(), 0);
    let again = terminal.beside(&["--continue"]).ready();
    let screen = again.wait_for("Interrupted.");
    assert!(!screen.contains("its work continues"), "{screen}");
    again.say("what now");
    again.wait_settled("It is over.");
    assert_eq!(effects(&again), 0);
}

#[test]
fn a_new_prompt_takes_the_place_of_a_question_that_was_left_open() {
    let terminal = Terminal::start(EFFECT);
    terminal.say("go");
    terminal.wait_for("? Run");
    end(&terminal);
    let run = terminal.stand.run(&["-p", "--continue", "something else"]);
    assert_eq!((run.ending.code(), run.output().trim()), (0, "It is over."), "{run:?}");
    assert!(terminal.last_request("main").contains("this call was not begun"));
    assert_eq!(effects(&terminal), 0);
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_plan_is_agreed_to_or_sent_back() {
    let script = "when result=/(?s)orchard first/
  call ExitPlanMode {\"plan\": \"# Second plan\\n\\nOrchard, then cellar.\"}
when turn=1
  call ExitPlanMode {\"plan\": \"# First plan\\n\\nCellar, then orchard.\"}
when
  say \"Off we go.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--permission-mode", "plan"], USUAL);
    terminal.say("plan it");
    let screen = terminal.wait_for("Start with this plan?");
    assert!(screen.contains("Cellar, then orchard."), "{screen}");
    terminal.keys("3");
    terminal.wait_for("\ntell it:");
    terminal.write("orchard first");
    terminal.keys("Enter");
    terminal.wait_for("Orchard, then cellar.");
    terminal.keys("1");
    let screen = terminal.wait_settled("Off we go.");
    assert!(screen.contains("auto-accept edits"), "{screen}");
}
