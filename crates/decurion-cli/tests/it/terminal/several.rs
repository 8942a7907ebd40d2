//! Several agents at once: held together, and told apart.

use super::{Terminal, put_in};
use crate::stand::Stand;

/// Waits until no command is left that waits for the file.
#[track_caller]
fn calls_over(terminal: &Terminal) {
    let waits = |pid: &i32| super::text_of(format!("/proc/{pid}/cmdline")).contains("/go");
    terminal.wait_that("the end of their calls", || !terminal.stand.home.processes().iter().any(waits));
}

#[test]
fn an_agent_is_held_with_all_below_it_and_all_go_on() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Go down.\", \"subagent_type\": \"general-purpose\"}
when agent=main
  say \"All are back.\"
when turn=1 first=/Go down/
  call Agent {\"description\": \"second\", \"prompt\": \"Stand still.\", \"subagent_type\": \"Explore\"}
  call Agent {\"description\": \"third\", \"prompt\": \"Stand still.\", \"subagent_type\": \"Plan\"}
when turn=1 first=/Stand still/
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\"}
when
  say \"Done.\"
";
    let stand = Stand::new(script);
    put_in(&stand.home.state(), "settings.json", r#"{"agents": {"maxDepth": 2}}"#);
    let terminal = Terminal::with(stand, &["--dangerously-skip-permissions"], (120, 30));
    terminal.say("go");
    terminal.wait_for("second  $ while");
    terminal.wait_for("third  $ while");
    terminal.keys("C-t");
    terminal.wait_for("enter look");
    terminal.keys("P");
    terminal.wait_for("pause general-purpose · first and its sub-agents?");
    terminal.keys("Enter");
    let is_held = |screen: &str| {
        ["‖ general-purpose · first", "‖ Explore · second", "‖ Plan · third"]
            .iter()
            .all(|row| screen.contains(row))
    };
    terminal.wait_until("all three held", is_held);
    let asked = terminal.stand.model.requests().len();
    terminal.go();
    calls_over(&terminal);
    assert!(is_held(&terminal.screen()), "{}", terminal.screen());
    assert_eq!(terminal.stand.model.requests().len(), asked, "somebody went on");
    terminal.keys("P");
    terminal.wait_for("let general-purpose · first and its sub-agents continue?");
    terminal.keys("Enter");
    terminal.wait_for("All are back.");
    let screen = terminal.wait_until("all three over", |screen| screen.matches('✓').count() == 3);
    assert!(!screen.contains('‖'), "{screen}");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_kind_of_which_two_work_is_no_address_and_an_id_is() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"first\", \"prompt\": \"Look at the pears.\", \"subagent_type\": \"Explore\", \"run_in_background\": true}
  call Agent {\"description\": \"second\", \"prompt\": \"Look at the plums.\", \"subagent_type\": \"Explore\", \"run_in_background\": true}
when agent=main turn=2
  say \"They look.\"
when agent=main
  say \"Somebody has reported.\"
when turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\"}
when
  say \"Nothing here.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], (120, 30));
    terminal.say("look");
    terminal.wait_for("They look.");
    terminal.wait_for("first  $ while");
    terminal.wait_for("second  $ while");
    terminal.say("@Explore mind the wasps");
    let screen = terminal.wait_for("ambiguous; use an id: ");
    assert!(screen.contains("\n> @Explore mind the wasps"), "the words are lost: {screen}");
    let row = screen.lines().find(|row| row.contains("use an id: ")).unwrap();
    let ids: Vec<&str> = row.rsplit("id: ").next().unwrap().split(", ").map(str::trim).collect();
    let [first, second] = ids[..] else { panic!("not two ids: {row}") };
    assert!(first.starts_with('@') && second.starts_with('@') && first != second, "{row}");
    terminal.keys("C-u");
    terminal.wait_gone("> @Explore");
    terminal.say(&format!("{second} mind the wasps"));
    terminal.wait_gone(&format!("> {second}"));
    terminal.go();
    terminal
        .wait_until("both over", |screen| screen.contains("Somebody has reported.") && !screen.contains('◌'));
    let told = |who: &str| {
        let requests = terminal.stand.model.requests();
        let bodies = requests.iter().map(|request| String::from_utf8_lossy(&request.body).into_owned());
        let theirs = bodies.filter(|body| body.contains("mind the wasps"));
        theirs.filter(|body| body.contains(who)).count()
    };
    let of = |id: &str| {
        let shown = terminal.stand.run(&["tasks", "show", id.trim_start_matches('@')]).output();
        if shown.contains("pears") { "Look at the pears" } else { "Look at the plums" }
    };
    let (meant, other) = (of(second), of(first));
    assert_ne!(meant, other);
    assert!(told(meant) > 0, "it never heard");
    assert_eq!(told(other), 0, "the other one heard it");
}
