//! Commands that try to stay: whatever they do, nothing of them is left when they end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use decurion_exec::{Exit, Launch, Stdin};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;

use crate::house::{House, children, wait_for_ends, wait_for_some_ends, watch, within};

/// Commands that end by themselves and leave something behind.
#[rustfmt::skip]
const LEAVERS: &[(&str, &str)] = &[
    ("background", "sleep 1000 >/dev/null 2>&1 & echo up"),
    ("holds stdout after the exit", "sleep 1000 & echo up"),
    ("setsid", "setsid sleep 1000 & setsid -f sleep 1000; echo up"),
    ("double fork", "( ( sleep 1000 & ) & ); echo up"),
    ("nohup", "nohup sleep 1000 >/dev/null 2>&1 & echo up"),
    ("disown", "sleep 1000 & disown -h; disown -a; echo up"),
    ("own groups", "set -m; sleep 1000 & (sleep 1000 & sleep 1000) & set +m; echo up"),
    ("ignores every signal", "(trap '' TERM INT HUP QUIT; while :; do sleep 1; done) & echo up"),
    ("one thousand children", "for i in {1..1000}; do sleep 1000 & done; echo up"),
    ("daemon", "perl -MPOSIX -e 'fork and exit; setsid; fork and exit; chdir q(/); close STDIN; close STDOUT; \
                close STDERR; sleep 1000'; echo up"),
    ("respawner", "(while :; do sleep 1000 & wait $!; done) & echo up"),
    ("deep tree", "f() { if [ $1 -gt 0 ]; then f $(($1 - 1)) & wait; else sleep 1000; fi; }; f 40 & echo up"),
    ("stopped", "sleep 1000 & kill -STOP $!; echo up"),
    ("clears its environment", "env -i sleep 1000 & echo up"),
    ("joins its reaper's group", "perl -e 'setpgrp(0, getppid) or die; fork or sleep 1000; exec q(echo), q(up)'"),
    ("children of threads", "perl -e 'for (1..20) { fork or do { fork; fork; sleep 1000 } }'; echo up"),
];

#[tokio::test]
async fn nothing_is_left_of_a_command_that_ends() {
    let house = House::new();
    for (name, command) in LEAVERS {
        let (output, exit) = house.run(house.bash(command)).await;
        assert_eq!((output.as_str(), exit), ("up\n", Exit::Code(0)), "{name}");
        let left = house.alive();
        assert!(left.is_empty(), "{name} left {}", left.len());
        assert_no_descendants(&house);
    }
}

/// Commands that do not end by themselves. Each says `up` when it is.
#[rustfmt::skip]
const STAYERS: &[(&str, &str)] = &[
    ("ignores TERM", "trap '' TERM; echo up; while :; do sleep 1000; done"),
    ("catches everything", "trap 'echo caught' TERM INT HUP QUIT; echo up; while :; do sleep 0.01; done"),
    ("stops itself", "echo up; kill -STOP $$; exit 3"),
    ("reads what never comes", "echo up; cat; sleep 1000"),
    ("in its reaper's group", "exec perl -e '$| = 1; setpgrp(0, getppid) or die; fork; $SIG{TERM} = q(IGNORE); print qq(up\n); sleep 1000'"),
    ("detached helper", "setsid sleep 1000 & echo up; sleep 1000"),
    // Each generation leaves its group and its session and ends: there is never anything to hold on to.
    ("runs away", "echo up; exec perl -MPOSIX -e 'for (1..3) { next if fork; while (1) { fork and _exit(0); setsid } } sleep 1000'"),
    ("breeds", "echo up; exec perl -MPOSIX -e '$| = 1; for (1..8) { last if !fork } while (1) { my $n = fork; \
                if (defined $n && $n == 0) { setsid; fork and _exit(0) } else { select undef, undef, undef, 0.002 } }'"),
];

#[tokio::test]
async fn nothing_is_left_of_a_command_that_is_stopped() {
    let house = House::new();
    for (name, command) in STAYERS {
        for grace in [Duration::ZERO, Duration::from_millis(50)] {
            let launch = Launch { stdin: Stdin::Piped, ..house.bash(command) };
            let mut process = house.guard.start(launch).await.unwrap();
            let mut stdout = process.stdout.take().unwrap();
            within(stdout.read_exact(&mut [0; 3])).await.unwrap();
            let exit = within(process.stop(grace)).await;
            // One that breeds may have met its bound before it was stopped.
            let ended = matches!(exit, Exit::Signal(9 | 15) | Exit::OverLimit(_));
            assert!(ended, "{name}: {exit:?}");
            let left = house.alive();
            assert!(left.is_empty(), "{name} left {}", left.len());
            assert_no_descendants(&house);
        }
    }
}

#[tokio::test]
async fn a_dropped_process_ends_with_all_it_started() {
    let house = House::new();
    for (_, command) in STAYERS.iter().take(5) {
        let mut process = house.guard.start(house.bash(command)).await.unwrap();
        within(process.stdout.take().unwrap().read_exact(&mut [0; 3])).await.unwrap();
        // The mark must be seen for its absence to mean anything; on a busy machine one look may miss it.
        within(async {
            while house.alive().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // A reaper ends when nothing is left below it.
        let reapers = watch(&children(house.guard.pid().unwrap()));
        drop(process);
        wait_for_ends(&reapers);
        house.assert_empty();
    }
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    let house = House::new();
    house.guard.warm().await.unwrap();
    let guard = house.guard.pid().unwrap();
    for polls in 0..12 {
        let mut start = Box::pin(house.guard.start(house.bash("sleep 1000")));
        for _ in 0..polls {
            tokio::select! { biased; _ = &mut start => break, () = tokio::task::yield_now() => {} }
        }
        drop(start);
        // The guard serves in order: when this one is done, the dropped one was taken up too.
        let idle = clean_run(&house).await;
        let reapers: Vec<Pid> = children(guard).into_iter().filter(|pid| *pid != idle).collect();
        wait_for_ends(&watch(&reapers));
        house.assert_empty();
    }
}

#[tokio::test]
async fn a_command_that_kills_its_reaper_is_ended_by_the_guard() {
    let house = House::new();
    let command = "setsid sleep 1000 & sleep 1000 & (sleep 1000 & sleep 1000) & kill -9 $PPID; sleep 1000";
    let (_, exit) = house.run(house.bash(command)).await;
    assert_eq!(exit, Exit::Unknown);
    house.assert_empty();
    // So many that the guard takes a while: the end is told when it is done.
    let many = "for i in {1..300}; do setsid sleep 1000 & done; kill -9 $PPID; sleep 1000";
    assert_eq!(house.run(house.bash(many)).await.1, Exit::Unknown);
    house.assert_empty();
    // Others of the same guard are not touched by that.
    let mut other =
        house.guard.start(Launch { stdin: Stdin::Piped, ..house.bash("cat; exit 8") }).await.unwrap();
    assert_eq!(house.run(house.bash(command)).await.1, Exit::Unknown);
    drop(other.stdin.take());
    assert_eq!(within(other.wait()).await, Exit::Code(8));
    drop(other);
    // One that ends with something left takes the place of the reaper that waits for more, and ends.
    assert_eq!(house.run(house.bash("setsid sleep 1000 &")).await.1, Exit::Code(0));
    assert_no_descendants(&house);
}

/// Runs a command that leaves nothing: the reaper it had.
async fn clean_run(house: &House) -> Pid {
    let (output, exit) = house.run(house.bash("echo $PPID")).await;
    assert_eq!(exit, Exit::Code(0));
    Pid::from_raw(output.trim().parse().unwrap()).unwrap()
}

#[tokio::test]
async fn a_reaper_serves_again_only_after_a_clean_end() {
    let house = House::new();
    let mut reaper = clean_run(&house).await;
    for _ in 0..20 {
        assert_eq!(clean_run(&house).await, reaper);
    }
    assert_eq!(house.run(house.bash("exit 3")).await.1, Exit::Code(3));
    assert_eq!(house.run(house.bash("kill -9 $$")).await.1, Exit::Signal(9));
    assert_eq!(clean_run(&house).await, reaper);
    for dirty in [
        "sleep 1000 &",
        "setsid sleep 1000 & exit 5",
        "perl -e 'fork; exit 0'; exit 0",
        "kill -STOP $PPID; exit 3",
        "kill -TERM $PPID; sleep 1000",
        "kill -KILL $PPID; sleep 1000",
        "no directory",
        "stopped",
        "dropped",
    ] {
        let watches = watch(&[reaper]);
        match dirty {
            "no directory" => {
                house.guard.start(Launch::new("true", "/no/such/folder")).await.unwrap_err();
            }
            "stopped" => {
                let mut process = house.guard.start(house.bash("sleep 1000")).await.unwrap();
                assert_eq!(within(process.stop(Duration::from_secs(30))).await, Exit::Signal(15));
            }
            "dropped" => drop(house.guard.start(house.bash("sleep 1000")).await.unwrap()),
            command => drop(house.run(house.bash(command)).await),
        }
        wait_for_ends(&watches);
        house.assert_empty();
        let fresh = clean_run(&house).await;
        assert_ne!(fresh, reaper, "{dirty}");
        assert_eq!(clean_run(&house).await, fresh, "{dirty}");
        reaper = fresh;
    }
}

#[tokio::test]
async fn an_idle_reaper_that_is_killed_does_no_harm() {
    let house = House::new();
    for signal in [Signal::KILL, Signal::TERM, Signal::STOP, Signal::SEGV] {
        let idle = clean_run(&house).await;
        // A stopped one is woken by the guard, and ends since somebody tampered with it.
        let watches = watch(&[idle]);
        kill_process(idle, signal).unwrap();
        wait_for_ends(&watches);
        let fresh = clean_run(&house).await;
        assert_ne!(fresh, idle, "{signal:?}");
        assert_eq!(clean_run(&house).await, fresh);
    }
    // Others of the same guard are not touched by that.
    let mut other =
        house.guard.start(Launch { stdin: Stdin::Piped, ..house.bash("cat; exit 8") }).await.unwrap();
    let idle = clean_run(&house).await;
    let watches = watch(&[idle]);
    kill_process(idle, Signal::KILL).unwrap();
    wait_for_ends(&watches);
    assert_ne!(clean_run(&house).await, idle);
    drop(other.stdin.take());
    assert_eq!(within(other.wait()).await, Exit::Code(8));
}

#[tokio::test]
async fn a_crowd_of_commands_leaves_only_a_few_reapers_and_they_end_with_the_guard() {
    let house = House::new();
    let mut processes = Vec::new();
    for _ in 0..20 {
        let launch = Launch { stdin: Stdin::Piped, ..house.bash("read; exit 2") };
        processes.push(house.guard.start(launch).await.unwrap());
    }
    let guard = house.guard.pid().unwrap();
    let reapers = children(guard);
    assert_eq!(reapers.len(), 20);
    let watches = watch(&reapers);
    for process in &mut processes {
        drop(process.stdin.take());
        assert_eq!(within(process.wait()).await, Exit::Code(2));
    }
    // All but eight go once nothing has happened for a while.
    let resting = wait_for_some_ends(watches, 12);
    assert!(reapers.contains(&clean_run(&house).await));
    assert_eq!(children(guard).len(), 8);
    drop((processes, house));
    wait_for_ends(&resting);
}

#[tokio::test]
async fn a_reaper_keeps_nothing_of_the_commands_before() {
    let house = House::new();
    let reaper = clean_run(&house).await;
    let look = house.bash("umask; ulimit -f; ulimit -c; pwd; ls /proc/self/fd");
    let seen = house.run(look.clone()).await;
    let open = descriptors(&house, reaper).await;
    for telling in [false, true] {
        let mut launch = decurion_exec::shell::bash("cd /tmp; umask 0; ulimit -f 1", "/", telling);
        launch.limits.file_bytes = Some(4096);
        assert_eq!(house.run(launch.env(house.env())).await.1, Exit::Code(0));
        assert_eq!(house.run(look.clone()).await, seen);
        assert_eq!(descriptors(&house, reaper).await, open);
    }
    assert_eq!(clean_run(&house).await, reaper);
}

/// The descriptors a reaper has open while its command runs.
async fn descriptors(house: &House, reaper: Pid) -> BTreeSet<OsString> {
    let launch = Launch { stdin: Stdin::Piped, ..house.bash("exec >&- 2>&-; read; exit 0") };
    let mut process = house.guard.start(launch).await.unwrap();
    // At the end of the output nobody has it any more, so the reaper has let go of what is the command's.
    within(process.stdout.take().unwrap().read_to_end(&mut Vec::new())).await.unwrap();
    let listed = std::fs::read_dir(format!("/proc/{reaper}/fd")).unwrap();
    let open = listed.map(|entry| entry.unwrap().file_name()).collect();
    drop(process.stdin.take());
    assert_eq!(within(process.wait()).await, Exit::Code(0));
    open
}

#[tokio::test]
async fn a_command_cannot_freeze_its_reaper() {
    let house = House::new();
    let (_, exit) = house.run(house.bash("kill -STOP $PPID; exit 3")).await;
    assert_eq!(exit, Exit::Code(3));
    let (_, exit) = house.run(house.bash("while kill -STOP $PPID; do sleep 0.01; done; sleep 1000")).await;
    assert_eq!(exit, Exit::Unknown);
    house.assert_empty();
}

#[tokio::test]
async fn a_killed_guard_takes_its_commands_along_and_is_replaced() {
    let house = House::new();
    for signal in [Signal::KILL, Signal::TERM] {
        let mut processes = Vec::new();
        for command in
            ["sleep 1000", "setsid sleep 1000 & sleep 1000", "trap '' TERM; while :; do sleep 1; done"]
        {
            let mut process = house.guard.start(house.bash(&format!("echo up; {command}"))).await.unwrap();
            within(process.stdout.take().unwrap().read_exact(&mut [0; 3])).await.unwrap();
            processes.push(process);
        }
        let first = house.guard.pid().unwrap();
        kill_process(Pid::from_raw(first.cast_signed()).unwrap(), signal).unwrap();
        for process in &mut processes {
            assert_eq!(within(process.wait()).await, Exit::Unknown);
        }
        house.assert_empty();
        let (output, exit) = house.run(house.bash("echo again")).await;
        assert_eq!((output.as_str(), exit), ("again\n", Exit::Code(0)));
        assert_ne!(house.guard.pid().unwrap(), first);
    }
}

#[tokio::test]
async fn the_guard_ends_with_its_last_user_and_is_buried() {
    let house = House::new();
    let mut process = house.guard.start(house.bash("echo up; sleep 1000")).await.unwrap();
    within(process.stdout.take().unwrap().read_exact(&mut [0; 3])).await.unwrap();
    let guard = Pid::from_raw(house.guard.pid().unwrap().cast_signed()).unwrap();
    let watches = watch(&[guard]);
    let House { guard: handle, mark } = house;
    drop(handle);
    // The process alone keeps it alive.
    assert!(!crate::house::marked(&mark).is_empty());
    assert_eq!(process.stop(Duration::ZERO).await, Exit::Signal(9));
    drop(process);
    wait_for_ends(&watches);
}

/// Besides the mark, since some clear their environment: what is below the guard ends by itself.
#[track_caller]
fn assert_no_descendants(house: &House) {
    wait_for_ends(&watch(&children(house.guard.pid().unwrap())));
}
