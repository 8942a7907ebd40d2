//! Guard and reaper are killed together, by the command itself: what it left behind is found and ended all the same, and
//! nothing else is.

use std::process::{Command, Stdio};

use decurion_exec::{Aftermath, Exit, Launch, Stdin, adopt_orphans};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;

use crate::house::{House, children, describe, wait_for_ends, watch, within};

/// Ways to leave something behind. `@` is the time that the test sleeps, by which it is known: an environment may be
/// emptied.
const LEAVES: &[(&str, &str)] = &[
    ("session", "setsid sleep @ &"),
    ("forked session", "setsid -f sleep @"),
    ("session of a session", "setsid setsid -f setsid sleep @"),
    ("hangups ignored", "nohup sleep @ > /dev/null 2>&1 &"),
    ("disowned", "sleep @ & disown"),
    ("forked twice", "( ( sleep @ & ) & )"),
    ("no environment", "env -i setsid sleep @ &"),
    ("no descriptors", "setsid sleep @ <&- >&- 2>&- &"),
    (
        "daemon",
        "perl -MPOSIX -e 'fork and exit; setsid; fork and exit; chdir q(/); umask 0; POSIX::close($_) for 0..9; exec qw(sleep @)'",
    ),
    ("signals ignored", "(trap '' TERM HUP INT QUIT; setsid sleep @ &)"),
    ("stopped", "setsid sh -c 'sleep @ & kill -STOP $! $$' &"),
    ("many", "for i in {1..100}; do setsid sleep @ & done"),
    (
        "runs away",
        "perl -MPOSIX -e 'unless (fork) { setsid; for (1..3) { next if fork; while (1) { fork and _exit(0); setsid } } exec qw(sleep @) }' &",
    ),
    ("other name", "(exec -a decurion-guard sleep @ & exec -a '' setsid -f sleep @)"),
    ("own group", "set -m; sleep @ & sleep @ | sleep @ &"),
    ("in a pipe", "setsid sleep @ | setsid sleep @ &"),
];
/// Ways to kill both. The shell itself dies with its reaper, so others do what comes after that.
const KILLS: &[&str] = &[
    "kill -9 $(ps -o ppid= -p $PPID) $PPID",
    "setsid sh -c \"kill -9 $(ps -o ppid= -p $PPID) $PPID\"",
    "g=$(ps -o ppid= -p $PPID); sh -c \"kill -STOP $g $PPID; kill -9 $PPID; kill -9 $g\"",
    "g=$(ps -o ppid= -p $PPID); setsid sh -c \"kill -STOP $g $PPID; kill -9 $g; kill -9 $PPID\"",
];

/// The living processes whose command line has a text.
fn running(text: &str) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| describe(*pid).contains(text)).collect()
}

/// A time to sleep that nothing else on this machine sleeps.
fn time(house: &House) -> String {
    format!("1000.{}", house.mark.trim_start_matches("mark-").replace('-', "0"))
}

#[tokio::test]
async fn what_guard_and_reaper_leave_is_ended_when_both_are_killed() {
    adopt_orphans();
    // These have nothing to do with it: a child of this process, and a command of another guard.
    let bystander = House::new();
    let mut own = Command::new("sleep");
    own.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut own = own.spawn().unwrap();
    let launch =
        Launch { stdin: Stdin::Piped, ..bystander.bash("setsid sleep 1000 & echo up; read; exit 8") };
    let mut other = bystander.guard.start(launch).await.unwrap();
    within(other.stdout.as_mut().unwrap().read_exact(&mut [0; 3])).await.unwrap();
    let before = bystander.alive().len();
    let mut found = 0;
    for (index, (name, leave)) in LEAVES.iter().enumerate() {
        let house = House::new();
        let time = time(&house);
        let command = format!("{}\n{}\nsleep {time}", leave, KILLS[index % KILLS.len()]).replace('@', &time);
        let mut process = house.guard.start(house.bash(&command)).await.unwrap();
        assert_eq!(within(process.wait()).await, Exit::Unknown, "{name}");
        let left: Vec<String> = running(&time).into_iter().map(describe).collect();
        assert_eq!(left, [""; 0], "{name}");
        let Aftermath::Swept { killed, left } = process.aftermath() else { panic!("{name}: {process:?}") };
        assert!(left.is_empty(), "{name}: {left:?}");
        found += killed;
        let (output, exit) = house.run(house.bash("echo again")).await;
        assert_eq!((output.as_str(), exit), ("again\n", Exit::Code(0)), "{name}");
    }
    // What other tests leave to this process is ended at the same time, by whoever comes first.
    assert!(found > 0);
    assert_eq!(own.try_wait().unwrap(), None, "a child of this process was killed");
    assert_eq!(bystander.alive().len(), before, "a command of another guard was killed");
    drop(other.stdin.take());
    assert_eq!(within(other.wait()).await, Exit::Code(8));
    own.kill().unwrap();
    own.wait().unwrap();
}

/// Whoever kills them from outside may hit the guards' commands in any state, and nobody may be waiting for them.
#[tokio::test]
async fn what_they_leave_is_ended_where_nobody_waits_for_the_command() {
    adopt_orphans();
    for waits in [true, false] {
        let house = House::new();
        let time = time(&house);
        let mut processes = Vec::new();
        for _ in 0..5 {
            let command = format!("setsid sleep {time} & echo up; sleep {time}");
            let mut process = house.guard.start(house.bash(&command)).await.unwrap();
            within(process.stdout.as_mut().unwrap().read_exact(&mut [0; 3])).await.unwrap();
            processes.push(process);
        }
        let watches = watch(&running(&time));
        assert!(watches.len() >= 5, "{}", watches.len());
        let guard = house.guard.pid().unwrap();
        let all = [children(guard), vec![Pid::from_raw(guard.cast_signed()).unwrap()]].concat();
        for pid in &all {
            kill_process(*pid, Signal::KILL).unwrap();
        }
        if waits {
            for process in &mut processes {
                assert_eq!(within(process.wait()).await, Exit::Unknown);
            }
            assert_eq!(running(&time), []);
        }
        drop((processes, house));
        wait_for_ends(&watches);
    }
}

#[tokio::test]
async fn a_command_that_stops_guard_and_reaper_is_ended_all_the_same() {
    let house = House::new();
    let time = time(&house);
    let stops = "kill -STOP $(ps -o ppid= -p $PPID) $PPID";
    let command = format!("setsid sleep {time} & {stops}; echo up; sleep {time}");
    let mut process = house.guard.start(house.bash(&command)).await.unwrap();
    within(process.stdout.as_mut().unwrap().read_exact(&mut [0; 3])).await.unwrap();
    let watches = watch(&house.alive());
    drop(process);
    wait_for_ends(&watches);
}

/// A session that was begun outside of the pid namespace has no number in there; `docker exec` can do that. Nothing is
/// shown where this system allows nobody to make a namespace.
#[test]
#[expect(clippy::disallowed_methods, reason = "these tests once more, elsewhere")]
fn they_are_ended_in_a_pid_namespace_with_a_session_from_outside() {
    let inside = |program: &str, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]);
        // The first process in there is the one to which every orphan comes.
        command.args(["sh", "-c", "\"$@\"; exit $?", "sh", program]).args(args);
        command.output().unwrap()
    };
    if !inside("true", &[]).status.success() {
        eprintln!("no namespaces here");
        return;
    }
    let tests = std::env::current_exe().unwrap();
    let output = inside(tests.to_str().unwrap(), &["orphans::what_", "scopes::"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("what_guard_and_reaper_leave"), "{output:?}");
}

/// A guard may be killed while it ends everything. What a reaper watches must be gone before the reaper is.
#[tokio::test]
async fn reaper_outlives_what_it_watches_when_decurion_is_gone() {
    let house = House::new();
    let launch = house.bash("for i in {1..300}; do setsid sleep 1000 & done; echo up; sleep 1000");
    let mut process = house.guard.start(launch).await.unwrap();
    within(process.stdout.as_mut().unwrap().read_exact(&mut [0; 3])).await.unwrap();
    let reaper = watch(&children(house.guard.pid().unwrap()));
    assert_eq!(reaper.len(), 1);
    let mark = house.mark.clone();
    drop((process, house));
    wait_for_ends(&reaper);
    let left = crate::house::marked(&mark);
    assert!(left.is_empty(), "{} left by the reaper", left.len());
}
