//! What a person writes: help, history, pastes, more than one line.

use super::Terminal;

/// The last line of the prompt; what is told of the folder stands above it.
const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

#[test]
fn a_question_mark_shows_the_keys_and_goes_away_again() {
    let terminal = Terminal::start(ANY);
    terminal.write("?");
    let help = terminal.wait_for("/rewind");
    assert!(help.contains("Conversation") && help.contains("↓ "), "{help}");
    terminal.keys("PageDown PageDown");
    terminal.wait_for("shift+tab");
    terminal.keys("Escape");
    terminal.wait_gone("shift+tab");
    // Within a text it is a letter.
    terminal.say("really?");
    terminal.wait_for("I heard: really?");
}

#[test]
fn earlier_prompts_come_back_with_up_and_by_search() {
    let terminal = Terminal::start(ANY);
    for prompt in ["first of all", "second thoughts", "third time"] {
        terminal.say(prompt);
        terminal.wait_for(&format!("I heard: {prompt}"));
    }
    terminal.keys("Up Up");
    terminal.wait_for("> second thoughts");
    terminal.keys("Down");
    terminal.wait_until("the third", |screen| screen.matches("> third time").count() == 2);
    terminal.keys("Down");
    terminal.wait_until("the third gone", |screen| screen.matches("> third time").count() == 1);
    terminal.keys("C-r");
    terminal.write("irst");
    terminal.wait_until("the first found", |screen| screen.matches("first of all").count() >= 3);
    terminal.keys("Enter");
    terminal.wait_until("the first written", |screen| screen.matches("> first of all").count() == 2);
}

#[test]
fn a_long_paste_is_folded_and_sent_whole() {
    let terminal = Terminal::start("when text=/line 1\\n.*line 5000$/s\n  say \"All of it.\"\n");
    let text: Vec<String> = (1..=5000).map(|number| format!("line {number}")).collect();
    terminal.write("this: ");
    terminal.paste(&text.join("\n"));
    let screen = terminal.wait_for("5000 lines");
    assert!(screen.lines().count() < 10, "{screen}");
    terminal.keys("Enter");
    let screen = terminal.wait_for("All of it.");
    assert!(screen.contains("… 4990 more lines"), "{screen}");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_prompt_may_have_several_lines() {
    let terminal = Terminal::start("when text=/one\\ntwo\\nthree$/\n  say \"Three lines.\"\n");
    terminal.write("one\\");
    terminal.keys("Enter");
    terminal.write("two");
    terminal.keys("C-j");
    terminal.say("three");
    terminal.wait_for("Three lines.");
}
