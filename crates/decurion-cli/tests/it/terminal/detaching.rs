//! Leaving while something works: it is stopped, waited for, or goes on without a terminal. And processes that die.

use super::{BEHIND, Terminal, USUAL, kill};
use crate::stand::Stand;

/// An agent works in the background, and somebody wants to leave.
fn leaving() -> Terminal {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("It looks.");
    terminal.wait_for("look around  $ while");
    terminal.keys("C-d");
    let list = terminal.wait_for("Still running: Explore · look around");
    assert!(
        list.contains("Keep running in background")
            && list.contains("Wait")
            && list.contains("Stop and quit"),
        "{list}"
    );
    terminal
}

/// The only session that lives, as `decurion ps` shows it.
fn listed(terminal: &Terminal) -> Option<serde_json::Value> {
    let listed = terminal.stand.run(&["ps", "--json"]).output();
    serde_json::from_str(listed.lines().next()?).ok()
}

/// The work was kept and its terminal has ended; the session's id.
fn kept() -> (Terminal, String) {
    let terminal = leaving();
    terminal.keys("Enter");
    assert_eq!(terminal.ended(), 0);
    let screen = terminal.screen();
    assert!(screen.contains("running in the background; reattach: decurion attach"), "{screen}");
    // The agent; the turn that began it is over as soon as that is on record.
    terminal.wait_that("one at work", || listed(&terminal).expect("no session is listed")["working"] == 1);
    let row = listed(&terminal).expect("no session is listed");
    let session = row["session"].as_str().unwrap().to_owned();
    (terminal, session)
}

/// Waits until nothing that was started in this home is left but the terminals.
#[track_caller]
pub fn all_gone(terminal: &Terminal) {
    let left = || {
        let is_ours = |pid: &i32| !super::text_of(format!("/proc/{pid}/comm")).starts_with("tmux");
        terminal.stand.home.processes().into_iter().filter(is_ours).count()
    };
    terminal.wait_that("the end of all processes", || left() == 0);
}

#[test]
fn escape_stays_and_so_does_the_work() {
    let terminal = leaving();
    terminal.keys("Escape");
    terminal.wait_gone("Still running");
    terminal.go();
    terminal.wait_for("It has reported.");
}

#[test]
fn a_turn_that_was_stopped_by_leaving_is_not_continued() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look.\", \"subagent_type\": \"Explore\"}
when agent=Explore
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Wait for it\"}
when text=\"next\"
  say \"Here is the next answer.\"
when
  say \"It was continued.\"
";
    let terminal = Terminal::with(Stand::new(script), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("wait");
    terminal.wait_for("Waiting for 1 agent");
    terminal.keys("C-d");
    terminal.wait_for("Stop and quit");
    terminal.keys("Down Down Enter");
    assert_eq!(terminal.ended(), 0);
    let again = terminal.beside(&["--continue"]).ready();
    again.say("next");
    let screen = again.wait_for("Here is the next answer.");
    assert!(!screen.contains("It was continued."), "{screen}");
}

#[test]
fn what_works_is_stopped_if_that_is_wanted() {
    let terminal = leaving();
    terminal.keys("Down Down Enter");
    assert_eq!(terminal.ended(), 0);
    all_gone(&terminal);
    assert_eq!(listed(&terminal), None);
}

#[test]
fn what_works_is_waited_for_if_that_is_wanted() {
    let terminal = leaving();
    terminal.keys("Down Enter");
    terminal.wait_gone("Still running");
    terminal.go();
    assert_eq!(terminal.ended(), 0);
    assert!(terminal.scrollback().contains("It has reported."), "{}", terminal.scrollback());
    all_gone(&terminal);
}

#[test]
fn what_is_kept_is_attached_to_and_seen_live() {
    let (terminal, session) = kept();
    let attached = terminal.beside(&["attach"]);
    attached.wait_for("It looks.");
    let screen = attached.wait_for("look around  $ while");
    assert_eq!(screen.matches("It looks.").count(), 1, "{screen}");
    // Leaving it ends nothing, and nothing is asked.
    attached.keys("C-d");
    assert_eq!(attached.ended(), 0);
    assert!(attached.screen().contains("still running; reattach: decurion attach"), "{}", attached.screen());
    assert!(listed(&terminal).is_some());
    let again = terminal.beside(&["attach", &session[..8]]);
    again.wait_for("look around  $ while");
    terminal.go();
    again.wait_for("It has reported.");
    // Whoever looks at it last leaves nothing that could be come back to.
    again.keys("C-d");
    assert_eq!(again.ended(), 0);
    let screen = again.screen();
    assert!(screen.contains("the session has ended") && !screen.contains("still running"), "{screen}");
    all_gone(&terminal);
}

#[test]
fn attach_shows_what_has_come_of_the_answer_in_progress() {
    let script = "when\n  say \"The orchard has pears, \"\n  say \"plums and\"\n  stall pings\n";
    let terminal = Terminal::start(script);
    terminal.say("tell me");
    terminal.wait_for("plums and");
    let attached = terminal.beside(&["attach"]);
    attached.wait_for("The orchard has pears,");
    attached.wait_for("plums and");
}

#[test]
fn an_attached_session_tells_how_much_of_the_context_is_filled() {
    let terminal = Terminal::start("when\n  say \"Yes.\"\n");
    terminal.say("hello");
    terminal.wait_settled("Yes.");
    terminal.beside(&["attach"]).wait_for("% context");
}

#[test]
fn attach_asks_which_session_where_several_live() {
    let script = "when text=/hello (.+)/\n  say \"I heard $1.\"\n";
    let first = Terminal::start(script);
    first.say("hello first");
    first.wait_for("I heard first.");
    let second = first.beside(&[]).ready();
    second.say("hello second");
    second.wait_for("I heard second.");
    let attached = first.beside(&["attach"]);
    let list = attached.wait_for("Choose 1–2");
    assert!(list.contains("hello first") && list.contains("hello second") && list.contains("idle"), "{list}");
    let row = list.lines().find(|row| row.contains("hello second")).expect("it is listed");
    attached.keys(&format!("{} Enter", &row.trim()[..1]));
    attached.wait_for("I heard second.");
    let other = first.beside(&["attach"]);
    other.wait_for("Choose 1–2");
    other.write("none of them");
    other.keys("Enter");
    other.wait_for("\"none of them\" is not one of the sessions");
}

#[test]
fn attach_to_a_turn_that_waits_for_its_provider_shows_that_it_works() {
    let terminal = Terminal::start("when\n  stall\n");
    terminal.say("hello");
    terminal.wait_for("esc to interrupt");
    let attached = terminal.beside(&["attach"]);
    attached.wait_for("> hello");
    attached.wait_for("esc to interrupt");
}

#[test]
fn what_is_kept_ends_by_itself_with_its_result_on_record() {
    let (terminal, session) = kept();
    terminal.go();
    all_gone(&terminal);
    assert_eq!(listed(&terminal), None);
    let again = terminal.beside(&["--resume", &session]).ready();
    again.wait_for("It has reported.");
}

#[test]
fn a_session_that_lives_elsewhere_is_not_opened_twice() {
    let (terminal, session) = kept();
    let second = terminal.beside(&["--resume", &session]);
    assert_ne!(second.ended(), 0);
    assert!(second.screen().contains("decurion attach"), "{}", second.screen());
    assert!(listed(&terminal).is_some(), "it ended the other one");
    terminal.go();
    all_gone(&terminal);
}

#[test]
fn a_question_of_kept_work_waits_and_is_answered_by_whoever_attaches() {
    let script = "when agent=main turn=1
  call Agent {\"description\": \"leave a mark\", \"prompt\": \"Mark.\", \"subagent_type\": \"general-purpose\", \"run_in_background\": true}
when agent=main turn=2
  say \"It begins.\"
when agent=main
  say \"It has reported.\"
when turn=1
  call Bash {\"command\": \"./wait.sh\", \"description\": \"Wait\"}
when turn=2
  call Bash {\"command\": \"echo ran >> $EFFECTS\", \"description\": \"Leave a mark\"}
when
  say \"Done.\"
";
    let stand = Stand::new(script);
    super::put(&stand, "wait.sh", "#!/bin/sh\nwhile [ ! -e $HOME/go ]; do sleep 0.02; done\n");
    let path = stand.home.work().join("wait.sh");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let terminal = Terminal::with(stand, &["--allowedTools", "Bash(./wait.sh)"], USUAL);
    terminal.say("mark");
    terminal.wait_recorded("It begins.");
    terminal.wait_for("leave a mark  $ ./wait.sh");
    terminal.keys("C-c");
    terminal.wait_for("again to leave");
    terminal.keys("C-c");
    terminal.wait_for("Keep running");
    terminal.keys("Enter");
    assert_eq!(terminal.ended(), 0);
    terminal.go();
    terminal
        .wait_that("a question on the list", || listed(&terminal).is_some_and(|row| row["questions"] == 1));
    let attached = terminal.beside(&["attach"]);
    let screen = attached.wait_for("› Run");
    assert!(screen.contains("echo ran >> $EFFECTS"), "{screen}");
    attached.keys("1");
    attached.wait_for("It has reported.");
    assert_eq!(super::text_of(terminal.stand.home.effects()), "ran\n");
    attached.keys("C-d");
    assert_eq!(attached.ended(), 0);
    all_gone(&terminal);
}

#[test]
fn a_turn_under_way_is_on_the_list() {
    let terminal = Terminal::start("when\n  say \"I begin\"\n  stall\n");
    assert_eq!(listed(&terminal).expect("no session is listed")["working"], 0);
    terminal.say("go");
    terminal.wait_for("I begin");
    assert_eq!(listed(&terminal).expect("no session is listed")["working"], 1);
}

#[test]
fn kept_work_whose_record_is_taken_away_ends() {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.wait_recorded("It looks.");
    terminal.keys("C-d");
    terminal.wait_for("Keep running");
    terminal.keys("Enter");
    assert_eq!(terminal.ended(), 0);
    terminal.lose_state();
    terminal.go();
    all_gone(&terminal);
}

#[test]
fn no_terminal_is_an_end_that_leaves_nothing_behind() {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    terminal.wait_recorded("It looks.");
    kill(terminal.keeper());
    all_gone(&terminal);
    assert_eq!(listed(&terminal), None);
    let again = terminal.beside(&["--continue"]).ready();
    let screen = again.wait_for("It looks.");
    assert!(!screen.contains("$ while"), "a call that is gone is shown as if it ran: {screen}");
}

#[test]
fn an_agent_whose_process_died_goes_on_when_its_session_does() {
    let terminal = Terminal::with(Stand::new(BEHIND), &["--dangerously-skip-permissions"], USUAL);
    terminal.say("look");
    terminal.wait_for("It looks.");
    terminal.wait_for("look around  $ while");
    terminal.kill_worker();
    assert_eq!(terminal.ended(), 137);
    all_gone(&terminal);
    let again = terminal.beside(&["--continue"]).ready();
    let screen = again.wait_for("It looks.");
    // The call that it was in is gone, and not shown as if it ran.
    assert!(!screen.contains("$ while"), "{screen}");
    again.wait_for("It has reported.");
    // It said the last word itself; that it is gone would have been told too.
    let told = again.last_request("main");
    assert!(told.contains("Nothing here."), "{told}");
    assert_eq!(again.stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_keeper_that_is_killed_takes_its_worker_along_where_the_terminal_stays() {
    let terminal = Terminal::in_shell(BEHIND);
    terminal.say("$D --dangerously-skip-permissions");
    terminal.wait_for("bypass permissions");
    terminal.say("look");
    terminal.wait_for("look around  $ while");
    let line = |pid: &i32| super::text_of(format!("/proc/{pid}/cmdline"));
    let is_ours = |pid: &i32| line(pid).starts_with(crate::stand::DECURION);
    let left = || terminal.stand.home.processes();
    // The keeper shows nothing of its environment, by which processes of this home are known; the worker names it.
    let kept_by = |pid: i32| {
        let line = line(&pid);
        line.split_once("--kept-by\0")?.1.split('\0').next()?.parse::<i32>().ok()
    };
    kill(left().into_iter().find_map(kept_by).expect("no process keeps the terminal"));
    terminal.wait_that("the end of the worker and its work", || {
        !left().iter().any(|pid| is_ours(pid) || line(pid).contains("/go"))
    });
    terminal.say("echo a shell'$'");
    terminal.wait_for("a shell$\n");
}

#[test]
fn a_worker_that_is_killed_leaves_a_usable_terminal() {
    let terminal = Terminal::in_shell("when\n  say \"I begin\"\n  stall\n");
    terminal.say("stty -a > $HOME/before; $D; echo \"left with $?\"; stty -a > $HOME/after");
    terminal.wait_for("ask before acting");
    terminal.say("go");
    terminal.wait_for("I begin");
    // What it had changed of the terminal is the most it ever changes.
    terminal.keys("C-o");
    terminal.wait_fact("alternate_on", |on| on == "1");
    let worker = terminal.stand.home.processes().into_iter().find(|pid| {
        let line = super::text_of(format!("/proc/{pid}/cmdline"));
        line.contains("--kept-by")
    });
    kill(worker.expect("nobody works"));
    let screen = terminal.wait_for("left with 137");
    assert!(screen.contains("resume with: decurion --continue"), "{screen}");
    let stty = |name: &str| super::text_of(terminal.stand.home.home().join(name));
    terminal.wait_that("the terminal's state", || !stty("after").is_empty());
    assert_eq!(stty("before"), stty("after"));
    assert_eq!((terminal.fact("cursor_flag"), terminal.fact("alternate_on")), ("1".into(), "0".into()));
    terminal.say("echo typed");
    terminal.wait_for("\ntyped");
}

/// Lets files of a process grow no further than this; none is as far as there is room.
fn limit_files(process: i32, bytes: Option<u64>) {
    let process = rustix::process::Pid::from_raw(process);
    let limit = rustix::process::Rlimit { current: bytes, maximum: None };
    rustix::process::prlimit(process, rustix::process::Resource::Fsize, limit).unwrap();
}

#[test]
fn what_is_kept_waits_for_room_on_a_full_disk_and_then_goes_on() {
    let (terminal, session) = kept();
    let process = i32::try_from(listed(&terminal).unwrap()["pid"].as_i64().unwrap()).unwrap();
    let attached = terminal.beside(&["attach"]);
    attached.wait_for("look around  $ while");
    limit_files(process, Some(1));
    terminal.go();
    attached.wait_for("look around  cannot write the t");
    // Why it waits is told to whoever looks at that moment, and is neither on this list nor told later.
    assert_eq!(listed(&terminal).expect("it ended")["working"], 1);
    attached.keys("C-d");
    assert_eq!(attached.ended(), 0);
    limit_files(process, None);
    all_gone(&terminal);
    let again = terminal.beside(&["--resume", &session]).ready();
    again.wait_for("It has reported.");
    assert_eq!(terminal.stand.model.problems(), Vec::<String>::new());
}
