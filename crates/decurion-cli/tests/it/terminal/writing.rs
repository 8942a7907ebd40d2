//! More of the prompt: what is proposed, what is kept, other ways to write, and to whom.

use super::{BEHIND, Terminal, USUAL, put, text_of};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

#[test]
fn files_are_proposed_after_an_at_sign() {
    let stand = Stand::new(ANY);
    put(&stand, "orchard/quince.txt", "yellow\n");
    put(&stand, "cellar/jam.txt", "sweet\n");
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.write("look at @quin");
    terminal.wait_for("❯ @orchard/quince.txt");
    terminal.keys("Tab");
    terminal.wait_for("> look at @orchard/quince.txt");
    terminal.wait_gone("❯");
    terminal.say("please");
    terminal.wait_settled("I heard:");
    assert!(
        terminal.last_request("main").contains("look at @orchard/quince.txt please"),
        "{}",
        terminal.last_request("main")
    );
}

#[test]
fn agents_and_commands_are_proposed_and_can_be_sent_away() {
    let terminal = Terminal::start(ANY);
    terminal.write("ask @Explo");
    let screen = terminal.wait_for("❯ @Explore");
    assert!(screen.contains("agent ·"), "{screen}");
    terminal.keys("Tab");
    terminal.wait_for("> ask @Explore");
    terminal.keys("C-u");
    terminal.write("/co");
    let screen = terminal.wait_for("❯ /co");
    assert!(
        screen.contains("/cost") && screen.contains("/compact") && screen.contains("/context"),
        "{screen}"
    );
    terminal.keys("Escape");
    terminal.wait_gone("❯");
    terminal.write("s");
    terminal.wait_for("❯ /cost");
    terminal.keys("Enter");
    terminal.wait_for("this session has cost");
}

#[test]
fn prompts_are_there_again_in_the_next_process() {
    let terminal = Terminal::start(ANY);
    terminal.say("count the kumquats");
    terminal.wait_settled("I heard: count the kumquats");
    terminal.keys("C-d");
    assert_eq!(terminal.ended(), 0);
    let next = terminal.beside(&[]).ready();
    next.keys("Up");
    next.wait_for("> count the kumquats");
    next.keys("C-c");
    next.wait_gone("> count the kumquats");
    next.keys("C-r");
    next.write("kumq");
    next.wait_for("reverse-search \"kumq\": count the kumquats");
    next.keys("Enter");
    next.wait_for("> count the kumquats");
    let file = std::fs::metadata(next.stand.home.state().join("prompts.jsonl")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777, 0o600);
}

#[test]
fn a_prompt_is_written_in_an_editor() {
    let stand = Stand::new(ANY);
    put(&stand, "editor.sh", "echo \"$(cat \"$1\") in the cellar\" > \"$1\"\necho edited > $HOME/edited\n");
    let terminal = Terminal::as_told(stand, USUAL, |program| program.env("EDITOR", "sh ./editor.sh")).ready();
    terminal.write("count the jars");
    terminal.keys("C-g");
    terminal.wait_for("> count the jars in the cellar");
    assert_eq!(text_of(terminal.stand.home.home().join("edited")), "edited\n");
    terminal.keys("Enter");
    terminal.wait_settled("I heard: count the jars in the cellar");
}

#[test]
fn an_editor_that_fails_loses_nothing() {
    let terminal =
        Terminal::as_told(Stand::new(ANY), USUAL, |program| program.env("EDITOR", "no-such-editor")).ready();
    terminal.write("count the jars");
    terminal.keys("C-g");
    let screen = terminal.wait_for("set EDITOR to another one");
    assert!(screen.contains("> count the jars"), "{screen}");
    terminal.keys("Enter");
    terminal.wait_settled("I heard: count the jars");
}

#[test]
fn keys_of_vi_work_where_they_are_wanted() {
    let terminal = Terminal::start(ANY);
    terminal.say("/vim");
    terminal.wait_for("vim mode on");
    terminal.write("count the old jars");
    terminal.keys("Escape");
    // Escape and a letter that come at once are that letter with alt.
    terminal.wait_for("normal");
    terminal.write("bdw0cwmind");
    terminal.wait_for("> mind the old");
    terminal.keys("Escape");
    terminal.wait_for("normal");
    terminal.keys("Enter");
    terminal.wait_settled("I heard: mind the old");
    terminal.write("i/vim");
    terminal.keys("Enter");
    terminal.wait_for("vim mode off");
}

#[test]
fn a_line_is_kept_in_the_instructions() {
    let terminal = Terminal::start(ANY);
    terminal.say("# jars are counted twice");
    terminal.wait_for("(takes effect next session):");
    assert_eq!(text_of(terminal.stand.home.work().join("AGENTS.md")), "- jars are counted twice\n");
    let next = terminal.beside(&[]).ready();
    next.say("hello");
    next.wait_settled("I heard: hello");
    assert!(next.last_request("main").contains("jars are counted twice"));
}

#[test]
fn prompts_wait_while_it_works_and_are_taken_back() {
    let script = "when text=/second/\n  say \"Heard the second.\"\nwhen text=/third/\n  say \"Heard the third.\"\nwhen turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Wait\"}
when
  say \"The first is done.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("go");
    terminal.wait_for("◌ $ while");
    terminal.say("the second");
    terminal.say("the third");
    let screen = terminal.wait_for("Queued: the third");
    assert!(screen.contains("Queued: the second") && screen.contains("(↑ to edit)"), "{screen}");
    terminal.keys("Up");
    terminal.wait_until("both in the prompt", |screen| {
        screen.contains("> the second") && !screen.contains("Queued:") && screen.contains("  the third")
    });
    terminal.keys("C-c");
    terminal.wait_gone("> the second");
    terminal.say("the third after all");
    terminal.wait_for("Queued: the third after all");
    terminal.go();
    terminal.wait_settled("Heard the third.");
    assert!(!terminal.last_request("main").contains("the second"));
}

#[test]
fn a_live_agent_is_told_something_by_its_kind() {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("It looks.");
    terminal.wait_for("look around  $ while");
    terminal.say("@Explore mind the pears");
    terminal.wait_for("told Explore · look around: mind the pears");
    terminal.wait_recorded("mind the pears");
    terminal.go();
    terminal.wait_for("It has reported.");
    let requests = terminal.stand.model.requests();
    let to = |agent: bool| {
        let told = requests.iter().filter(|request| (request.agent == "main") != agent);
        told.filter(|request| String::from_utf8_lossy(&request.body).contains("mind the pears")).count()
    };
    assert!(to(true) >= 1, "the agent never heard it");
    assert_eq!(to(false), 0, "the main agent heard it too");
}

#[test]
fn wide_letters_are_typed_and_deleted_whole() {
    let terminal = Terminal::start(ANY);
    terminal.write("梨と林檎 👩‍🌾 é!");
    terminal.wait_for("> 梨と林檎 👩‍🌾 é!");
    terminal.keys("BSpace BSpace BSpace BSpace BSpace");
    terminal.wait_until("the farmer gone", |screen| screen.lines().any(|row| row == "> 梨と林檎"));
    terminal.keys("Left Left BSpace");
    terminal.write("の");
    terminal.wait_for("> 梨の林檎");
    terminal.keys("Enter");
    terminal.wait_settled("I heard: 梨の林檎");
}

#[test]
fn a_command_of_ones_own_is_run_and_read_by_the_model() {
    let terminal = Terminal::start(ANY);
    terminal.say("hello");
    terminal.wait_settled("I heard: hello");
    terminal.say("!echo $((6 * 7)) jars");
    terminal.wait_settled("42 jars");
    terminal.say("how many");
    terminal.wait_settled("I heard: how many");
    let request: serde_json::Value = serde_json::from_str(&terminal.last_request("main")).unwrap();
    let said = request["messages"].to_string();
    let (printed, asked) = (said.find("42 jars"), said.find("how many"));
    assert!(printed.is_some() && printed < asked, "{said}");
}
