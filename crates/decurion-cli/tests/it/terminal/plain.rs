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
    let screen = terminal.wait_for("No, and say what to do instead");
    assert!(screen.contains("1. Yes, this once"), "{screen}");
    terminal.say("1");
    terminal.wait_for("It was allowed.");
    assert_eq!(super::text_of(terminal.stand.home.effects()), "ran\n");
    terminal.say("/permissions");
    terminal.wait_for("no rules: whatever may change something");
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
    assert!(words.contains("No, and say what to do instead (esc)"), "{screen}");
    assert!(screen.contains("echo ran"), "{screen}");
    terminal.keys("1");
    terminal.wait_for("It was allowed.");
    terminal.say("/help");
    let help = terminal.wait_for("↓ ");
    assert!(help.contains("interrupt the"), "{help}");
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
