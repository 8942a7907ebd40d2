//! A conversation on the screen: what is said, what is called, how it wraps, and where it stays.

use expect_test::expect;

use super::{Terminal, USUAL};
use crate::stand::Stand;

/// An answer with a bit of everything.
const ANSWER: &str = r#"
when text=/hello/
  say chunk=7 <<END
    # A plan

    There are **two** things to do, and `one` of them is small:

    1. read the file
    2. change it

    | file | lines |
    |---|---|
    | a.rs | 10 |

    ```rust
    fn main() {}
    ```

    That is all.
  END
when
  say "Yes?"
"#;

/// What is on the screen of the conversation: without what it begins with, the prompt and the status below it.
fn talk(screen: &str) -> String {
    let end = screen.rfind("\n>").unwrap_or(screen.len());
    let mut rows: Vec<&str> = screen[..end].lines().collect();
    if let Some(at) = rows.iter().position(|row| row.starts_with("? for help")) {
        rows.drain(at.saturating_sub(3)..=at);
    }
    rows.into_iter().map(|row| format!("{}\n", row.trim_end())).collect()
}

#[test]
fn a_prompt_is_answered_in_markdown() {
    let terminal = Terminal::start(ANSWER);
    terminal.say("hello there");
    let screen = terminal.wait_settled("That is all.");
    expect![[r"

        > hello there

        ● A plan

          There are two things to do, and one of them is small:

          1. read the file
          2. change it

          file │ lines
          ─────┼──────
          a.rs │ 10

            fn main() {}

          That is all.
    "]]
    .assert_eq(&talk(&screen));
    terminal.say("and?");
    terminal.wait_for("Yes?");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn an_answer_is_shown_while_it_comes() {
    let script = "when\n  say chunk=4 \"The first half of it, \"\n  delay 60s\n  say \"and the rest.\"\n";
    let terminal = Terminal::start(script);
    terminal.say("go");
    let screen = terminal.wait_for("The first half of it,");
    assert!(!screen.contains("the rest"), "{screen}");
}

#[test]
fn a_call_is_one_line_with_its_title_and_result() {
    let script = "when turn=1\n  call Bash {\"command\": \"seq 1 40\", \"description\": \"Count to forty\"}\nwhen\n  say \"Counted.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("count");
    let screen = terminal.wait_settled("Counted.");
    expect![[r"
        decurion: all permission checks but deny rules are skipped

        > count

        ● $ seq 1 40
          └ 1
            2
            3
            … 37 more lines (ctrl+o to see)

        ● Counted.
    "]]
    .assert_eq(&talk(&screen));
}

#[test]
fn a_resize_wraps_anew_and_loses_nothing() {
    let words: Vec<String> = (1..60).map(|number| format!("word{number}")).collect();
    let script = format!("when\n  say \"{} end.\"\n", words.join(" "));
    let terminal = Terminal::with(Stand::new(&script), &[], (40, 24));
    terminal.say("many words");
    let narrow = terminal.wait_for("end.");
    assert!(narrow.lines().all(|row| row.chars().count() <= 40), "{narrow}");
    terminal.resize(100, 24);
    let wide = terminal.wait_until("wide lines", |screen| {
        screen.lines().any(|row| row.chars().count() > 80 && row.contains("word1 word2"))
    });
    let said = |screen: &str| -> Vec<String> {
        screen
            .split_whitespace()
            .filter(|word| word.starts_with("word") && *word != "words")
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(said(&wide), words, "{wide}");
    // What went up before stays as it was; below it all is there at the new width.
    assert!(said(&terminal.scrollback()).ends_with(&words));
    terminal.resize(40, 10);
    let small =
        terminal.wait_until("narrow lines", |screen| screen.lines().all(|row| row.chars().count() <= 40));
    assert!(small.contains("end."), "{small}");
}

/// Waits until a prompt of many letters is drawn at this width; a row that the terminal has broken itself begins at its
/// edge.
fn is_drawn(terminal: &Terminal, columns: u16) {
    let row = format!("\n> {}\n", "x".repeat(usize::from(columns) - 2));
    terminal.wait_until("this width", |screen| screen.contains(&row) && !screen.contains("\nx"));
}

#[test]
fn a_resize_below_a_page_loses_nothing() {
    let words = "and some more words that take a place ".repeat(2);
    let items: Vec<String> = (1..=40).map(|number| format!("{number}. pear{number}. {words}")).collect();
    let script = format!("when\n  say \"{}\"\n", items.join("\\n"));
    let terminal = Terminal::with(Stand::new(&script), &[], (120, 30));
    terminal.say("many");
    terminal.wait_settled("pear40.");
    terminal.write(&"x".repeat(200));
    is_drawn(&terminal, 120);
    terminal.keys("C-o");
    terminal.wait_fact("alternate_on", |on| on == "1");
    terminal.resize(60, 30);
    let rows = |screen: &str| screen.lines().map(|row| row.chars().count()).max();
    terminal.wait_until("the page at this width", |screen| {
        screen.contains("q or esc back") && rows(screen).is_some_and(|most| most <= 60)
    });
    terminal.keys("Escape");
    is_drawn(&terminal, 60);
    let all = terminal.scrollback();
    let missing: Vec<u16> = (1..=40).filter(|number| !all.contains(&format!(" pear{number}."))).collect();
    assert!(missing.is_empty(), "{missing:?}\n{all}");
}

#[test]
fn resizes_do_not_repeat_a_long_answer_above_the_screen() {
    let items: Vec<String> = (1..=60).map(|number| format!("{number}. pear{number}.")).collect();
    let script = format!("when\n  say \"{}\"\n", items.join("\\n"));
    let terminal = Terminal::with(Stand::new(&script), &[], (100, 30));
    terminal.say("many");
    terminal.wait_settled("pear60.");
    terminal.write(&"x".repeat(200));
    is_drawn(&terminal, 100);
    for (columns, rows) in [(60, 20), (110, 35), (100, 30)] {
        terminal.resize(columns, rows);
        is_drawn(&terminal, columns);
    }
    let all = terminal.scrollback();
    let counts: Vec<usize> = (1..=60).map(|number| all.matches(&format!(" pear{number}.")).count()).collect();
    // A row that was half above may stand there and on the screen, once for each resize.
    assert!(
        counts.iter().all(|count| *count >= 1) && counts.iter().sum::<usize>() <= 63,
        "{counts:?}\n{all}"
    );
}

#[test]
fn the_conversation_is_in_the_scrollback_of_the_normal_screen() {
    let script = "when text=/prompt (\\d+)/\n  say \"answer $1, which\\n\\nhas a few\\n\\nlines\"\n";
    let terminal = Terminal::with(Stand::new(script), &[], (60, 12));
    for number in 1..=6 {
        terminal.say(&format!("prompt {number}"));
        terminal.wait_for(&format!("answer {number},"));
    }
    terminal.wait_until("the end of it", |screen| screen.contains("\n  lines\n\n>") && !screen.contains('◌'));
    assert_eq!(terminal.fact("alternate_on"), "0");
    let all = talk(&terminal.scrollback());
    let rows: Vec<&str> = all.lines().map(str::trim).filter(|row| !row.is_empty()).collect();
    let said = |number| {
        [
            format!("> prompt {number}"),
            format!("● answer {number}, which"),
            "has a few".into(),
            "lines".into(),
        ]
    };
    assert_eq!(rows, (1..=6).flat_map(said).collect::<Vec<_>>(), "{all}");
    assert!(!terminal.screen().contains("answer 1"), "it should have gone up");
}

#[test]
fn nothing_that_a_model_or_a_tool_says_commands_the_terminal() {
    let script = "when turn=1
  say \"\\u001b]0;owned\\u0007before \\u001b[2J\\u001b[Hafter\"
  call Bash {\"command\": \"printf '\\\\033]0;owned\\\\007\\\\033[31mred\\\\033[2J'\", \"description\": \"\\u001b]0;owned\\u0007print\"}
when
  say \"Done.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("go");
    let screen = terminal.wait_for("Done.");
    assert!(screen.contains("before") && screen.contains("after"), "{screen}");
    assert!(!terminal.fact("pane_title").contains("owned"));
}

#[test]
fn a_failure_is_told_once() {
    let terminal = Terminal::start("when\n  fail 400 \"this cannot be\"\n");
    terminal.say("go");
    let screen = terminal.wait_settled("this cannot be");
    assert_eq!(screen.matches("this cannot be").count(), 1, "{screen}");
}
