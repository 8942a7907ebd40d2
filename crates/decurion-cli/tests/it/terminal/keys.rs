//! Keys of a person's own, the terminal's title, and its bell.

use super::{Terminal, USUAL, put_in};
use crate::stand::Stand;

const ANY: &str = "when text=/(.+)$/\n  say \"I heard: $1\"\n";

#[test]
fn keys_are_what_a_file_says() {
    let stand = Stand::new(ANY);
    put_in(&stand.home.state(), "keys.json", r#"{"ctrl+q": "leave", "ctrl+c": null, "f2": "help"}"#);
    let terminal = Terminal::with(stand, &[], USUAL);
    terminal.write("half");
    terminal.keys("C-c");
    terminal.write(" a thought");
    terminal.wait_for("> half a thought");
    terminal.keys("F2 PageDown PageDown");
    terminal.wait_for("ctrl+q");
    terminal.keys("Escape");
    terminal.wait_gone("ctrl+q  ");
    terminal.keys("C-q");
    let screen = terminal.wait_for("again to leave");
    assert!(!screen.contains("half a thought"), "{screen}");
    terminal.keys("C-q");
    assert_eq!(terminal.ended(), 0);
}

#[test]
fn a_wrong_file_of_keys_is_told_with_its_name() {
    for (text, reason) in [
        (r#"{"ctrl+q": "fly"}"#, "no action has this name: \"fly\"; the names are submit, newline, "),
        (r#"{"hyper+q": "leave"}"#, "not a key: \"hyper+q\""),
        ("{", "EOF"),
    ] {
        let stand = Stand::new(ANY);
        put_in(&stand.home.state(), "keys.json", text);
        let terminal = Terminal::as_told(stand, (200, 24), |program| program);
        assert_eq!(terminal.ended(), 2, "{text}");
        let screen = terminal.screen();
        assert!(screen.contains("keys.json") && screen.contains(reason), "{screen}");
        assert!(screen.contains("\"ctrl+q\": \"leave\""), "it does not say how it is written: {screen}");
    }
}

#[test]
fn the_title_says_where_it_is_and_whether_somebody_is_needed() {
    let script = "when turn=1
  call Bash {\"command\": \"echo ran > $EFFECTS\"}
when
  say \"It is over.\"\n";
    let terminal = Terminal::start(script);
    terminal.wait_fact("pane_title", |title| title == "work");
    assert_eq!(terminal.fact("window_bell_flag"), "0");
    terminal.say("go");
    terminal.wait_fact("pane_title", |title| title == "? work");
    terminal.wait_fact("window_bell_flag", |rung| rung == "1");
    terminal.keys("1");
    terminal.wait_settled("It is over.");
    terminal.wait_fact("pane_title", |title| title == "work");
}

#[test]
fn work_is_in_the_title_and_its_end_rings() {
    let script = "when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\"}
when
  say \"It is over.\"\n";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("go");
    terminal.wait_fact("pane_title", |title| title == "● work");
    assert_eq!(terminal.fact("window_bell_flag"), "0");
    terminal.go();
    terminal.wait_settled("It is over.");
    terminal.wait_fact("window_bell_flag", |rung| rung == "1");
}

/// A shell whose window has a title of its own, with one more put aside, and this line in it.
fn titled(line: &str) -> Terminal {
    let terminal = Terminal::in_shell("when\n  say \"I begin\"\n  stall\n");
    terminal.say(r"printf '\033]0;another\007\033[22;0t\033]0;my own title\007'");
    terminal.wait_fact("pane_title", |title| title == "my own title");
    terminal.say(line);
    terminal
}

/// The title is what it was before.
#[track_caller]
fn is_back(terminal: &Terminal) {
    terminal.wait_fact("pane_title", |title| title == "my own title");
}

#[test]
fn the_shell_has_its_title_again() {
    let terminal = titled("$D");
    terminal.wait_fact("pane_title", |title| title == "work");
    terminal.keys("C-z");
    terminal.wait_for("Stopped");
    is_back(&terminal);
    terminal.say("fg");
    terminal.wait_fact("pane_title", |title| title == "work");
    terminal.keys("C-c C-c");
    is_back(&terminal);
}

#[test]
fn the_title_of_work_goes_where_the_work_is_left_or_killed() {
    for is_kept in [true, false] {
        let terminal = titled("exec $D");
        terminal.wait_fact("pane_title", |title| title == "work");
        terminal.say("go");
        terminal.wait_for("I begin");
        terminal.wait_fact("pane_title", |title| title == "● work");
        if is_kept {
            terminal.keys("C-d");
            terminal.wait_for("Keep running");
            terminal.keys("Enter");
        } else {
            terminal.kill_worker();
        }
        assert_eq!(terminal.ended(), if is_kept { 0 } else { 137 });
        is_back(&terminal);
    }
}

#[test]
fn plain_lines_leave_the_title_alone() {
    let terminal = titled("exec $D --plain");
    terminal.wait_until("a prompt", |screen| screen.lines().last().is_some_and(|row| row.trim() == ">"));
    assert_eq!(terminal.fact("pane_title"), "my own title");
    terminal.kill_worker();
    assert_eq!(terminal.ended(), 137);
    assert_eq!(terminal.fact("pane_title"), "my own title");
}

/// Says a part of an answer, then nothing more; whatever comes later is answered at once.
const HALF: &str =
    "when text=/tell me$/\n  say \"Once upon a time\"\n  stall\nwhen text=/(.+)$/\n  say \"I heard: $1\"\n";

#[test]
fn what_an_interrupted_answer_cost_is_shown_as_a_bound_where_the_provider_does_not_say() {
    let stand = Stand::new(HALF);
    let program = stand.decurion_openai().args(["--model", "gpt-5.4"]);
    let terminal = Terminal::as_told(stand, USUAL, |_| program).ready();
    terminal.say("what is left");
    let screen = terminal.wait_settled("I heard: what is left");
    assert!(screen.contains(" $0.") && !screen.contains("at most"), "{screen}");
    terminal.say("tell me");
    terminal.wait_for("Once upon a time");
    terminal.keys("Escape");
    terminal.wait_settled("Interrupted.");
    terminal.wait_for("at most $0.");
    terminal.say("/cost");
    terminal.wait_for("this session has cost at most $0.");
}

#[test]
fn an_interrupted_answer_stays_in_the_conversation_and_the_model_knows() {
    let terminal = Terminal::start(HALF);
    terminal.say("tell me");
    terminal.wait_for("Once upon a time");
    terminal.keys("Escape");
    terminal.wait_settled("Interrupted.");
    terminal.wait_recorded("Once upon a time");
    // As after a crash: nothing more is written by this process.
    let again = terminal.beside(&["--continue", "--fork-session"]);
    again.wait_settled("Once upon a time");
    for one in [&again, &terminal] {
        one.say("something else");
        one.wait_settled("I heard: something else");
        let request: serde_json::Value = serde_json::from_str(&one.last_request("main")).unwrap();
        let messages = request["messages"].as_array().unwrap();
        let [.., asked, partial, next] = messages.as_slice() else { panic!("{request}") };
        assert!(asked["role"] == "user" && asked.to_string().contains("tell me"), "{request}");
        assert_eq!(partial["role"], "assistant", "{request}");
        assert!(partial.to_string().contains("Once upon a time"), "{request}");
        let next = next.to_string();
        assert!(
            next.contains("the user stopped this turn here") && next.contains("something else"),
            "{next}"
        );
        assert_eq!(one.scrollback().matches("Once upon a time").count(), 1, "{}", one.scrollback());
    }
}
