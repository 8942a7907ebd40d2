//! The line at the bottom: what it tells, and a person's own in its place.

use super::{Terminal, USUAL, put, put_in, text_of};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n  usage input=100000 output=20000\n";

#[test]
fn mode_model_cost_sandbox_and_agents_are_told() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look.\", \"subagent_type\": \"Explore\", \"run_in_background\": true}
when agent=main
  say \"It looks.\"
  usage input=100000 output=20000
when agent=Explore
  stall
";
    let terminal = Terminal::with(Stand::new(script), &[], (160, 24));
    terminal.say("look");
    terminal.wait_for("It looks.");
    let screen = terminal.wait_until("all of it", |screen| {
        let last = screen.lines().last().unwrap_or_default();
        last.contains("ask before acting") && last.contains("working") && last.contains('$')
    });
    let last = screen.lines().last().unwrap();
    assert!(last.contains("sandbox: ") && last.contains("claude-"), "{last}");
    assert!(last.contains("tok") || last.contains("% context"), "{last}");
}

#[test]
fn a_resumed_session_shows_its_model_and_the_share_of_the_context_as_a_new_one_does() {
    let last_line = |terminal: &Terminal, words: &str| {
        let shows = |screen: &str| screen.lines().last().is_some_and(|last| last.contains(words));
        terminal.wait_until(words, shows);
    };
    let terminal = Terminal::with(Stand::new(ANY), &["--model", "pear-1"], USUAL);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    last_line(&terminal, "pear-1 · 60% context");
    last_line(&terminal.beside(&["attach"]), "pear-1 · 60% context");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let again = terminal.beside(&["--continue"]);
    last_line(&again, "pear-1 · 60% context");
    again.say("/clear");
    again.wait_for("New session.");
    last_line(&again, "ask before acting · pear-1 · sandbox");
}

#[test]
fn the_mode_is_told_before_the_first_prompt() {
    let terminal = Terminal::with(Stand::new(ANY), &["--permission-mode", "plan"], USUAL);
    let screen = terminal.wait_for("plan mode");
    assert!(!screen.contains("I heard"), "{screen}");
    // The next one is the next of this.
    terminal.keys("BTab");
    terminal.wait_for("ask before acting");
}

#[test]
fn the_mode_of_a_session_that_goes_on_is_that_of_now() {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    put_in(&terminal.stand.home.state(), "settings.json", r#"{"permissions": {"defaultMode": "plan"}}"#);
    let again = terminal.beside(&["--continue"]);
    again.wait_for("plan mode");
    // What somebody chose in it stays chosen.
    again.keys("BTab");
    again.wait_for("ask before acting");
    again.keys("C-d");
    assert_eq!(again.ended(), 0);
    let once_more = terminal.beside(&["--continue"]);
    once_more.wait_for("ask before acting");
}

#[test]
fn the_mode_that_was_asked_for_last_is_that_of_the_next_process_too() {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.keys("BTab BTab");
    terminal.wait_for("plan mode");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let again = terminal.beside(&["--continue", "--permission-mode", "acceptEdits"]);
    again.wait_for("auto-accept edits");
    again.say("once more");
    again.wait_settled("I heard: once more");
    again.keys("C-d");
    assert_eq!(again.ended(), 0);
    terminal.beside(&["--continue"]).wait_for("auto-accept edits");
}

#[test]
fn a_conversation_that_goes_on_elsewhere_goes_on_in_the_mode_it_is_in() {
    let script = "when text=/write/\n  call Write {\"file_path\": \"made.txt\", \"content\": \"pears\"}\nwhen\n  say \"Yes.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--permission-mode", "acceptEdits"], USUAL);
    terminal.wait_for("auto-accept edits");
    terminal.keys("BTab BTab");
    terminal.wait_for("ask before acting");
    terminal.say("hello");
    terminal.wait_settled("Yes.");
    for leads in ["/fork", "/clear"] {
        terminal.say(leads);
        terminal.wait_for(if leads == "/fork" {
            "Forked. The original"
        } else {
            "New session. The one above"
        });
        terminal.wait_for("ask before acting");
    }
    terminal.say("write");
    terminal.wait_for("? Write");
}

#[test]
fn a_command_of_ones_own_takes_its_place_and_is_told_what_is_so() {
    let stand = Stand::new(ANY);
    let own = r#"{"statusLine": {"type": "command", "command": "tee $HOME/told; echo; echo 'MY OWN LINE'"}}"#;
    put_in(
        &stand.home.state(),
        "settings.json",
        &own.replace("tee $HOME/told; echo", "cat > $HOME/told.new; mv $HOME/told.new $HOME/told"),
    );
    let terminal = Terminal::with(stand, &[], USUAL);
    let screen = terminal.wait_for("MY OWN LINE");
    assert!(!screen.contains("ask before acting"), "{screen}");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    let told = terminal.stand.home.home().join("told");
    terminal.wait_that("what it is told", || {
        let told: serde_json::Value = serde_json::from_str(&text_of(&told)).unwrap_or_default();
        told["cost"]["total_cost_usd"].as_f64().is_some_and(|cost| cost > 0.0)
            && told["model"]["id"].as_str().is_some_and(|id| id.contains("claude"))
            && told["permission_mode"] == "default"
            && told["workspace"]["current_dir"].as_str().is_some_and(|folder| folder.ends_with("work"))
    });
    terminal.keys("C-c");
    terminal.wait_for("again to leave");
}

#[test]
fn a_command_that_fails_is_told_and_nothing_else_suffers() {
    let stand = Stand::new(ANY);
    put_in(
        &stand.home.state(),
        "settings.json",
        r#"{"statusLine": {"type": "command", "command": "exit 3"}}"#,
    );
    let terminal = Terminal::with(stand, &[], USUAL);
    let screen = terminal.wait_for("status line: the command ended with 3");
    assert!(screen.contains("ask before acting"), "{screen}");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
}

#[test]
fn a_line_of_ones_own_does_not_hide_that_nothing_is_asked_about() {
    let stand = Stand::new(ANY);
    put_in(
        &stand.home.state(),
        "settings.json",
        r#"{"permissions": {"defaultMode": "bypassPermissions"},
            "statusLine": {"type": "command", "command": "echo MY OWN LINE"}}"#,
    );
    let terminal = Terminal::with(stand, &[], USUAL);
    let both = |mode: &str| {
        terminal.wait_until(mode, |screen| screen.contains("MY OWN LINE") && screen.contains(mode))
    };
    both("bypass permissions");
    // The mode in which all is asked about needs no word.
    terminal.keys("BTab");
    terminal.wait_gone("bypass permissions");
    terminal.keys("BTab");
    let screen = both("auto-accept edits");
    // What the session begins with stays as it was.
    let below = screen.rsplit("? for help").next().unwrap();
    assert!(!below.contains("claude-"), "{screen}");
}

#[test]
fn colours_of_ones_own_are_seen_unless_nobody_wants_any() {
    let own = r#"{"statusLine": {"type": "command",
        "command": "printf 'L1 \\033[31mred\\033[0m \\033[1;38;5;208morange\\033[0m \\033[2Jend'"}}"#;
    let seen =
        |wants_none: bool| {
            let stand = Stand::new(ANY);
            put_in(&stand.home.state(), "settings.json", own);
            let terminal = Terminal::as_told(stand, USUAL, |program| {
                if wants_none { program.env("NO_COLOR", "1") } else { program }
            });
            terminal.wait_for("L1 red orange ␛[2Jend");
            let coloured = terminal.coloured();
            coloured.lines().find(|row| row.contains("L1 ")).unwrap().to_owned()
        };
    let row = seen(false);
    assert!(row.contains("[31m") && row.contains("[38;5;208m"), "{row:?}");
    let row = seen(true);
    assert!(!row.contains("31m") && !row.contains("208"), "{row:?}");
}

#[test]
fn a_folder_that_nobody_trusts_puts_no_command_there() {
    let stand = Stand::new(ANY);
    // That of the person's own comes in its place, and so it is known when one could be there.
    let own = r#"{"statusLine": {"type": "command", "command": "echo MY OWN LINE"}}"#;
    put_in(&stand.home.state(), "settings.json", own);
    put(
        &stand,
        ".claude/settings.json",
        r#"{"statusLine": {"type": "command", "command": "touch $HOME/ran; echo OWNED"}}"#,
    );
    let terminal = Terminal::as_told(stand, USUAL, |program| program);
    terminal.wait_for("❯ 1. No, continue without them");
    terminal.keys("Enter");
    terminal.wait_for("MY OWN LINE");
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    assert!(!terminal.stand.home.home().join("ran").exists());
}
