//! Without anything that moves: plain lines, no colours, narrow and wide terminals.

use super::{Terminal, USUAL};
use crate::stand::Stand;

const SCRIPT: &str = "when text=/make it/
  call Bash {\"command\": \"echo ran >> $EFFECTS; echo done-it\", \"description\": \"Leave a mark\"}
when result=/done-it/
  say \"It was **allowed**.\"
when text=/(.+)$/
  say \"I heard: $1\"
";

/// Everything that plain lines must do, however they were asked for.
fn talks(terminal: &Terminal) {
    terminal.say("hello");
    terminal.wait_for("I heard: hello");
    terminal.say("make it");
    let screen = terminal.wait_for("No, and tell it what to do instead");
    assert!(screen.contains("1. Yes, this once"), "{screen}");
    terminal.say("1");
    terminal.wait_for("It was allowed.");
    assert_eq!(super::text_of(terminal.stand.home.effects()), "ran\n");
    terminal.say("/permissions");
    terminal.wait_for("no rules: every call that may change something");
    terminal.keys("Enter");
    terminal.say("after the list");
    terminal.wait_for("I heard: after the list");
    // Nothing is drawn twice and nothing is coloured.
    let all = terminal.scrollback();
    assert_eq!(all.matches("I heard: hello").count(), 1, "{all}");
    assert_eq!(all.matches("It was allowed.").count(), 1, "{all}");
    assert!(!terminal.coloured().contains('\u{1b}'), "{:?}", terminal.coloured());
    assert_eq!(terminal.fact("alternate_on"), "0");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
}

#[test]
fn plain_lines_talk_ask_list_and_end_with_the_input() {
    talks(&Terminal::with(Stand::new(SCRIPT), &["--plain"], (80, 60)));
}

#[test]
fn a_terminal_that_can_do_nothing_gets_plain_lines() {
    let terminal = Terminal::shell_in(Stand::new(SCRIPT), |program| program);
    terminal.resize(80, 60);
    terminal.say("TERM=dumb exec $D");
    terminal.wait_until("a prompt", |screen| screen.lines().last().is_some_and(|row| row.trim() == ">"));
    talks(&terminal);
}

/// Waits until the screen shows this text so many times.
#[track_caller]
fn wait_times(terminal: &Terminal, text: &str, times: usize) -> String {
    terminal.wait_until(&format!("{text} {times} times"), |screen| screen.matches(text).count() == times)
}

#[test]
fn words_at_a_question_or_a_list_decide_nothing_and_are_no_prompt() {
    let terminal = Terminal::with(Stand::new(SCRIPT), &["--plain"], (80, 100));
    terminal.say("make it");
    let how = "type a number to answer";
    wait_times(&terminal, how, 1);
    let not_one = "that is not the number of an answer (1 to 3)";
    for (times, words) in (1..).zip(["yes please", "9", "1,2", "y"]) {
        terminal.say(words);
        wait_times(&terminal, not_one, times);
        wait_times(&terminal, how, times + 1);
    }
    // A command is what it says, as far as there is room for it.
    terminal.say("/cost");
    terminal.wait_for("this session has cost");
    terminal.say("/permissions");
    terminal.wait_for("what you asked for is ready");
    terminal.say("1");
    terminal.wait_for("It was allowed.");
    terminal.say("/permissions");
    terminal.wait_for("no rules: every call that may change something");
    terminal.say("close it");
    terminal.wait_for("not a number or letter from above (q closes)");
    terminal.say("7");
    terminal.wait_for("nothing above has the number 7");
    terminal.say("q");
    terminal.say("goodbye");
    terminal.wait_for("I heard: goodbye");
    let asked = terminal.last_request("main");
    assert!(asked.contains("goodbye"), "{asked}");
    assert!(!asked.contains("yes please") && !asked.contains("close it"), "{asked}");
    assert_eq!(super::text_of(terminal.stand.home.effects()), "ran\n");
}

#[test]
fn what_is_asked_when_the_input_is_over_is_refused() {
    let script = "when text=/make it/ turn=1\n  call Bash {\"command\": \"echo ran >> $EFFECTS\", \"description\": \"Leave a mark\"}\n\
        when result=/no one can answer/\n  say \"Then not.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--plain"], USUAL);
    terminal.say("make it");
    terminal.wait_for("type a number to answer");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let all = terminal.scrollback();
    let marks = std::fs::read(terminal.stand.home.effects()).unwrap();
    assert!(all.contains("Then not.") && marks.is_empty(), "{all}");
}

#[test]
fn several_answers_are_several_numbers() {
    let script = "when turn=1
  call AskUserQuestion {\"questions\": [{\"question\": \"Which fruit?\", \"header\": \"Fruit\", \"multiSelect\": true, \"options\": [{\"label\": \"pears\", \"description\": \"P\"}, {\"label\": \"plums\", \"description\": \"Q\"}, {\"label\": \"figs\", \"description\": \"R\"}]}]}
when
  say \"Bought.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--plain"], (80, 60));
    terminal.say("buy");
    let screen = terminal.wait_for("type the numbers to select, such as 1,2");
    assert!(!screen.contains("space to select"), "{screen}");
    terminal.say("1, 3");
    terminal.wait_for("an empty line confirms the selection");
    let screen = wait_times(&terminal, "[x]", 2);
    assert!(screen.contains("[x] pears") && screen.contains("[x] figs"), "{screen}");
    // One too many: it goes again.
    terminal.say("2 3");
    wait_times(&terminal, "[x]", 4);
    terminal.keys("Enter");
    terminal.wait_for("Bought.");
    let asked = terminal.last_request("main");
    assert!(asked.contains("pears, plums"), "{asked}");
}

#[test]
fn a_prompt_that_waits_says_so() {
    let script = "when text=/hello/
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Wait\"}
when result=/./
  say \"I waited.\"
when text=/(.+)$/
  say \"I heard: $1\"
";
    let arguments = ["--plain", "--dangerously-skip-permissions"];
    let terminal = Terminal::with(Stand::new(script), &arguments, USUAL);
    terminal.say("hello");
    terminal.wait_recorded("call_started");
    terminal.say("and then");
    let screen = terminal.wait_for("queued: sent when the agent is done");
    assert!(!screen.contains("I waited."), "{screen}");
    terminal.go();
    terminal.wait_for("I heard: and then");
    assert_eq!(terminal.scrollback().matches("queued").count(), 1);
}

#[test]
fn all_that_is_folded_and_all_help_can_be_read() {
    let script = "when turn=1\n  say \"I heard one.\"\nwhen\n  say \"I heard two.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--plain"], (80, 24));
    let is_row = |number: &str| terminal.scrollback().lines().any(|row| row.trim() == number);
    terminal.say("!seq 1 30");
    terminal.wait_for("… 14 more lines (/transcript to see)");
    assert!(!is_row("17"));
    terminal.say("/transcript");
    wait_times(&terminal, "end of the conversation", 1);
    assert!(is_row("17") && is_row("30"), "{}", terminal.scrollback());
    // It is over at once: the next line is a prompt.
    terminal.say("hello");
    terminal.wait_for("I heard one.");
    // The key does what it does elsewhere, and is no prompt.
    terminal.keys("C-o Enter");
    let twice = || terminal.scrollback().matches("end of the conversation").count() == 2;
    terminal.wait_that("the conversation again", twice);
    terminal.say("/help");
    terminal.wait_for("action names for keys.json");
    let all = terminal.scrollback();
    assert!(all.contains("the next permission mode") && all.contains("/doctor"), "{all}");
    assert!(!all.contains("any other key closes"), "{all}");
    terminal.say("bye");
    terminal.wait_for("I heard two.");
    assert_eq!(terminal.stand.model.requests().len(), 2);
}

#[test]
fn keys_are_no_part_of_a_prompt() {
    let terminal = Terminal::with(Stand::new(SCRIPT), &["--plain"], USUAL);
    terminal.write("left");
    terminal.keys("Up");
    terminal.say(" right");
    terminal.wait_for("keys that are not text were dropped from this line");
    terminal.wait_for("I heard: left right");
    assert!(!terminal.last_request("main").contains("\\u001b"));
    // Alone they are nothing at all.
    terminal.keys("Up Enter");
    wait_times(&terminal, "were dropped", 2);
    terminal.say("hello");
    terminal.wait_for("I heard: hello");
    assert_eq!(terminal.stand.model.requests().len(), 2);
}

#[test]
fn a_long_command_is_asked_about_whole() {
    let script = "when
  call Bash {\"command\": \"cat > $EFFECTS <<E\\n$(seq 60)\\nE\"}
";
    let lines: Vec<String> = (1..=60).map(|number| format!("row {number}")).collect();
    let script = script.replace("$(seq 60)", &lines.join("\\n"));
    let terminal = Terminal::with(Stand::new(&script), &["--plain"], (80, 24));
    terminal.say("go");
    terminal.wait_for("type a number to answer");
    let all = terminal.scrollback();
    assert!(lines.iter().all(|line| all.contains(line)) && !all.contains("ctrl+o"), "{all}");
}

#[test]
fn nothing_is_coloured_where_nobody_wants_colours() {
    let script = "when turn=1
  say \"# A *plan*\\n\\n```rust\\nfn main() {}\\n```\"
  call Bash {\"command\": \"seq 1 3\"}
when
  say \"Counted.\"
";
    let coloured = Terminal::with(Stand::new(script), &["--allowedTools", "Bash"], USUAL);
    coloured.say("go");
    coloured.wait_settled("Counted.");
    let is_coloured =
        |screen: &str| screen.contains("\u{1b}[3") || screen.contains("\u{1b}[9") || screen.contains(";3");
    assert!(is_coloured(&coloured.coloured()), "colours are never seen here: {:?}", coloured.coloured());
    let plain = Terminal::as_told(Stand::new(script), USUAL, |program| {
        program.env("NO_COLOR", "1").args(["--allowedTools", "Bash"])
    })
    .ready();
    plain.say("go");
    plain.wait_settled("Counted.");
    let screen = plain.coloured();
    // Weight and slant are no colours: 1 to 9 and what ends them.
    for sequence in screen.split("\u{1b}[").skip(1) {
        let codes = sequence.split('m').next().unwrap_or_default();
        for code in codes.split(';').filter(|code| !code.is_empty()) {
            let code: u32 = code.parse().unwrap();
            assert!(code < 30 || code == 39 || code == 49, "{code} in {screen:?}");
        }
    }
}

#[test]
fn twenty_columns_are_enough_to_talk_and_to_decide() {
    let terminal = Terminal::with(Stand::new(SCRIPT), &[], (20, 24));
    terminal.say("hello there");
    terminal.wait_for("I heard: hello");
    terminal.say("make it");
    let screen = terminal.wait_for("1. Yes, this once");
    // Wrapped, not cut: whoever decides reads all of it.
    let words = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("No, and stop (esc)"), "{screen}");
    assert!(screen.contains("echo ran"), "{screen}");
    terminal.keys("1");
    terminal.wait_for("It was allowed.");
    terminal.write("?");
    let help = terminal.wait_for("↓ ");
    assert!(help.contains("/resume") && help.contains("Conversation"), "{help}");
    terminal.keys("Escape");
    terminal.wait_gone("↓ ");
    terminal.say("/agents");
    terminal.wait_for("❯ general");
}

#[test]
fn three_hundred_columns_are_used() {
    let script = format!("when\n  say \"{}end.\"\n", "word ".repeat(45));
    let terminal = Terminal::with(Stand::new(&script), &[], (300, 50));
    terminal.say("go");
    let screen = terminal.wait_settled("end.");
    assert!(screen.lines().any(|row| row.matches("word").count() == 45), "{screen}");
}
