//! A host of the real binary that dies, or says no more, in the middle of the work: the work is ended or finished, its
//! record is whole, and no process is left.

use std::time::Instant;

use decurion_testkit::proc::processes_marked;
use rustix::process::{Pid, Signal, kill_process};

use crate::stand::{DECURION, LIMIT, Stand, finished};
use crate::talk::{LED, prompt};

const SESSION: &str = "22222222-2222-4222-8222-222222222222";

/// A shell in the background, and an agent that waits for another; both say nothing for as long as they run.
const SILENT: &str = r#"
when text="again"
  say "fine"
when agent=general-purpose
  call Bash {"command": "sleep 302", "description": "wait", "timeout": 600000}
when agent=main turn=1
  call Bash {"command": "sleep 301", "description": "wait", "run_in_background": true}
when agent=main turn=2
  call Agent {"description": "look", "prompt": "look", "subagent_type": "general-purpose"}
when
  say "gone on"
"#;

/// The processes of a stand whose command line ends so.
fn running(stand: &Stand, command: &str) -> Vec<i32> {
    let wanted = command.replace(' ', "\0") + "\0";
    let is = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(wanted.as_bytes()))
    };
    processes_marked(stand.home.marker()).into_iter().filter(is).collect()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_host_that_dies_leaves_no_process_and_a_whole_record() {
    let stand = Stand::new(SILENT);
    std::fs::write(stand.home.work().join("prompt"), format!("{}\n", prompt("go"))).unwrap();
    // Both ends of the host are held open by processes that do nothing else, and end together.
    let pipeline = "{ cat prompt; exec sleep 401; } | \"$@\" | exec sleep 402; exit ${PIPESTATUS[1]}";
    let program = stand.home.program("bash").args(["-c", pipeline, "bash", DECURION]).args(LED);
    let program = program.args(["--session-id", SESSION, "--allowedTools", "Bash"]);
    let program = program
        .env("ANTHROPIC_BASE_URL", stand.model.url())
        .env("ANTHROPIC_API_KEY", decurion_testkit::proc::canary::PROVIDER_KEY);
    let host = program.start().unwrap();
    wait_until("the work never began", || {
        ["sleep 301", "sleep 302"].iter().all(|command| !running(&stand, command).is_empty())
    });
    for command in ["sleep 401", "sleep 402"] {
        for pid in running(&stand, command) {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
    }
    wait_until("processes are left", || processes_marked(stand.home.marker()).is_empty());
    let ended = host.finish(LIMIT).unwrap();
    assert_ne!(ended.ending.code(), 0, "{ended:?}");
    let again = finished(stand.decurion().args(["-p", "--resume", SESSION, "again"]));
    assert_eq!((again.ending.code(), again.output().as_str()), (0, "gone on\n\nfine"), "{again:?}");
    assert!(!again.errors.contains("cut off") && !again.errors.contains("skipped"), "{}", again.errors);
    assert_eq!(stand.model.problems(), Vec::<String>::new());
}

#[test]
fn a_host_that_hangs_up_in_the_middle_of_a_turn_is_told_how_everything_ended() {
    let stand = Stand::new(
        r#"
when agent=general-purpose turn=1
  call Bash {"command": "until [ -e go ]; do sleep 0.02; done", "description": "wait"}
when agent=general-purpose
  say "found it"
when agent=main turn=1
  call Agent {"description": "look", "prompt": "look", "subagent_type": "general-purpose", "run_in_background": true}
when
  say "going on"
"#,
    );
    let mut run = stand.decurion().args(LED).args(["--allowedTools", "Bash"]).start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    run.wait_for_line(LIMIT, |line| line.contains("\"task_started\"")).unwrap();
    // Its last line is cut off by its end.
    run.say_bytes(b"{\"type\":\"user\",\"mess").unwrap();
    run.hang_up();
    std::fs::write(stand.home.work().join("go"), "").unwrap();
    let ended = run.finish(LIMIT).unwrap();
    assert_eq!(ended.ending.code(), 0, "{ended:?}");
    let count = |kind: &str| ended.lines.iter().filter(|line| line.contains(kind)).count();
    assert_eq!(count("\"subtype\":\"task_notification\""), 1, "{}", ended.output());
    assert!(count("\"type\":\"result\"") >= 1, "{}", ended.output());
    assert!(ended.errors.contains("cut off before its end"), "{}", ended.errors);
    assert!(processes_marked(stand.home.marker()).is_empty());
}
