//! Commands that tell something: costs, context, settings, the installation; and those that write a file.

use super::{Terminal, USUAL, put_in, text_of};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n  usage input=1000 output=2000\n";

fn asked() -> Terminal {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal
}

#[test]
fn what_it_has_cost_is_told() {
    let terminal = asked();
    terminal.say("/cost");
    let screen = terminal.wait_for("this session has cost $");
    let cost = screen.split("has cost $").nth(1).and_then(|rest| rest.split_whitespace().next());
    assert!(cost.is_some_and(|cost| cost.parse::<f64>().is_ok_and(|cost| cost > 0.0)), "{screen}");
    assert!(screen.contains("the main agent") && screen.contains("tok"), "{screen}");
}

#[test]
fn what_fills_the_context_is_listed() {
    let terminal = asked();
    terminal.say("/context");
    let screen = terminal.wait_for("Context of ");
    assert!(screen.contains("system prompt") || screen.contains("tool "), "{screen}");
    terminal.keys("Escape");
    terminal.wait_gone("Context of ");
}

#[test]
fn settings_and_the_installation_are_pages_with_an_end() {
    let terminal = asked();
    for (command, shows) in [("/config", "config show --origin"), ("/doctor", "doctor")] {
        terminal.say(command);
        terminal.wait_until(shows, |screen| screen.starts_with(shows));
        assert_eq!(terminal.fact("alternate_on"), "1");
        terminal.keys("q");
        let screen = terminal.wait_for("I heard: hello");
        assert!(!screen.starts_with(shows), "{screen}");
        assert_eq!(terminal.fact("alternate_on"), "0");
    }
}

#[test]
fn a_conversation_is_shortened_on_demand() {
    let script =
        "when text=/kumquats/\n  say \"They said hello.\"\nwhen text=/(.+)$/\n  say \"I heard: $1\"\n";
    let terminal = Terminal::start(script);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.say("/compact mind the kumquats");
    terminal.wait_for("shortened");
    assert!(terminal.last_request("main").contains("mind the kumquats"));
    terminal.say("and now");
    terminal.wait_settled("I heard: and now");
    assert!(terminal.last_request("main").contains("They said hello."));
}

#[test]
fn a_trace_and_a_copy_are_written_where_they_are_wanted() {
    let terminal = asked();
    let file = |name: &str| terminal.stand.home.work().join(name);
    terminal.say("/trace here.json");
    terminal.wait_that("a trace", || text_of(file("here.json")).contains("traceEvents"));
    terminal.say("/export there.jsonl");
    terminal.wait_that("a copy", || text_of(file("there.jsonl")).contains("I heard: hello"));
}

#[test]
fn a_team_that_is_not_there_is_said() {
    let terminal = asked();
    terminal.say("/team");
    terminal.wait_for("no team is at work");
}

#[test]
fn a_status_line_is_set_up_by_an_agent() {
    let terminal = Terminal::start("when text=/statusline-setup/\n  say \"I shall.\"\n");
    terminal.say("/statusline with the branch");
    terminal.wait_settled("I shall.");
    assert!(terminal.last_request("main").contains("with the branch"));
}

#[test]
fn help_has_every_command_and_goes_away() {
    let terminal = Terminal::start(ANY);
    terminal.resize(100, 90);
    terminal.wait_until("a wide screen", |_| terminal.fact("pane_width") == "100");
    terminal.say("/help");
    let screen = terminal.wait_for("/quit");
    for command in ["/agents", "/tasks", "/resume", "/continue", "/fork", "/rewind", "/model", "/permissions"]
        .into_iter()
        .chain(["/hooks", "/mcp", "/skills", "/plugin", "/cost", "/context", "/compact", "/clear", "/config"])
        .chain(["/statusline", "/export", "/doctor", "/trace", "/team", "/worktrees", "ctrl+b", "ctrl+o"])
    {
        assert!(screen.contains(command), "{command}: {screen}");
    }
    terminal.keys("Escape");
    terminal.wait_gone("/quit");
}

#[test]
fn another_model_answers_from_the_next_turn_on() {
    let terminal = asked();
    terminal.say("/model claude-opus-4-1");
    terminal.say("again");
    terminal.wait_settled("I heard: again");
    assert!(terminal.last_request("main").contains("claude-opus-4-1"), "{}", terminal.last_request("main"));
    terminal.say("/model");
    let list = terminal.wait_for("Models · now");
    assert!(list.contains("❯ "), "{list}");
    terminal.keys("o");
    terminal.write("claude-haiku-4-5");
    terminal.keys("Enter");
    terminal.wait_gone("Models · now");
    terminal.say("once more");
    terminal.wait_settled("I heard: once more");
    assert!(terminal.last_request("main").contains("claude-haiku-4-5"), "{}", terminal.last_request("main"));
}

#[test]
fn skills_and_commands_of_ones_own_are_proposed_and_run() {
    let stand = Stand::new("when text=/Look at (\\w+) closely/\n  say \"I looked at $1.\"\n");
    super::put(
        &stand,
        ".claude/commands/inspect.md",
        "---\ndescription: Look closely\n---\nLook at $ARGUMENTS closely.\n",
    );
    put_in(
        &stand.home.home(),
        ".claude/skills/knots/SKILL.md",
        "---\nname: knots\ndescription: All about knots\n---\nTie.\n",
    );
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.write("/insp");
    let screen = terminal.wait_for("❯ /inspect");
    assert!(screen.contains("Look closely"), "{screen}");
    terminal.keys("Tab");
    terminal.wait_for("> /inspect");
    terminal.say("everything");
    terminal.wait_settled("I looked at everything.");
    terminal.say("/skills");
    let list = terminal.wait_for("Skills and commands");
    assert!(list.contains("/inspect") && list.contains("/knots"), "{list}");
    terminal.keys("Escape");
    terminal.wait_gone("Skills and commands");
}
