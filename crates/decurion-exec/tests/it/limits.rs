//! Commands that use too much: they end, say why, and leave the guard, other commands and no control groups behind. As root
//! the bounds are control groups where the system has them; an ordinary user's commands are watched by their reapers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use decurion_exec::{Exit, Form, Limit, Sandbox, free_bytes};
use rustix::process::{Pid, Signal, kill_process};

use crate::escapes::run_as_user;
use crate::house::{children, wait_for_ends, watch, within};
use crate::sandbox::Room;

const MEBIBYTE: u64 = 1 << 20;

/// Takes 600 MiB, and keeps it until somebody ends it.
const HUNGRY: &str = "perl -e '$x = \"x\" x (300 << 20); sleep 600'";
/// As many processes as it can get.
const BOMB: &str = "bomb() { bomb | bomb & }; bomb; sleep 600";

#[tokio::test]
async fn command_that_takes_too_much_memory_is_ended() {
    let room = Room::new();
    room.house.guard.set_bounds(150 * MEBIBYTE, 4096);
    for sandbox in [Some(room.sandbox()), None] {
        let (output, exit) = room.run(HUNGRY, sandbox.clone()).await;
        assert_eq!(exit, Exit::OverLimit(Limit::Memory { mebibytes: 150 }), "{output}");
        assert_eq!(exit.to_string(), "used more than 150 MiB of memory");
        let (output, exit) = room.run("exit 3", sandbox.clone()).await;
        assert_eq!(exit, Exit::Code(3), "{output}");
        if hierarchy().is_some() {
            // What succeeds although a part of it was ended has succeeded, and the next one is not blamed for it.
            assert_eq!(room.run(&format!("{HUNGRY} || true"), sandbox.clone()).await.1, Exit::Code(0));
            assert_eq!(room.run("exit 3", sandbox).await.1, Exit::Code(3));
        }
    }
    room.house.assert_empty();
}

#[tokio::test]
async fn fork_bomb_is_ended_and_others_go_on() {
    let room = Room::new();
    room.house.guard.set_bounds(4096 * MEBIBYTE, 200);
    for sandbox in [Some(room.sandbox()), None] {
        let mut other = room.launch("echo up; read; exit 7", sandbox.clone());
        other.stdin = decurion_exec::Stdin::Piped;
        let mut other = room.house.guard.start(other).await.unwrap();
        let (output, exit) = room.run(BOMB, sandbox.clone()).await;
        assert_eq!(exit, Exit::OverLimit(Limit::Processes(200)), "{output}");
        assert_eq!(room.run("true", sandbox).await.1, Exit::Code(0));
        drop(other.stdin.take());
        assert_eq!(within(other.wait()).await, Exit::Code(7));
    }
    room.house.assert_empty();
}

#[tokio::test]
async fn file_of_a_sandboxed_command_does_not_fill_the_disk() {
    for form in [Form::Namespaces, Form::Landlock, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let reader = Sandbox { writable: vec![room.path("tmp")], ..room.sandbox() };
        let grow = |size: &str| format!("truncate -s {size} $ROOM/tmp/file");
        assert_eq!(room.run(&grow("1G"), Some(reader.clone())).await.1, Exit::Code(0), "{form:?}");
        let (output, exit) = room.run(&grow("1025M"), Some(reader)).await;
        assert!(!exit.success(), "{form:?}: {output}");
        // Builds may need more, but not the whole disk; and no command gives itself more.
        let free = free_bytes(&room.path("work")).unwrap();
        let (output, _) =
            room.run("ulimit -f; ulimit -f unlimited; ulimit -f; ulimit -c", Some(room.sandbox())).await;
        let lines: Vec<&str> = output.lines().filter(|line| !line.contains("cannot")).collect();
        let most = lines[0].parse::<u64>().unwrap() << 10;
        assert!((1 << 30..=free.max(1 << 30)).contains(&most), "{form:?}: {output}");
        assert_eq!(lines[1..], [lines[0], "0"], "{form:?}: {output}");
        assert_eq!(room.run(&grow("1025M"), None).await.1, Exit::Code(0), "the control");
    }
}

#[test]
fn ordinary_user_s_commands_are_bounded_too() {
    let tests = ["command_that_takes_too_much_memory_is_ended", "fork_bomb_is_ended_and_others_go_on"];
    let tests = tests.map(|test| format!("limits::{test}"));
    let Some((passed, text)) = run_as_user(&[&tests[0], &tests[1]], &[]) else { return };
    assert!(passed && text.contains("2 passed"), "{text}");
}

/// Where the groups of this process's commands are made, if the system has a hierarchy for processes and lets us.
fn hierarchy() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.split_once(":pids:"))?.1.trim_start_matches('/').to_owned();
    let folder = Path::new("/sys/fs/cgroup/pids").join(own);
    let probe = folder.join(format!("decurion_test_{}", std::process::id()));
    std::fs::create_dir(&probe).ok()?;
    std::fs::remove_dir(probe).ok()?;
    Some(folder)
}

/// The name of a session's folder.
fn session(pid: u32, began: &str) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    format!("decurion-{namespace}-{pid}-{began}-")
}

fn own_session() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let began = stat.rsplit(')').next().unwrap().split_whitespace().nth(22 - 3).unwrap().to_owned();
    session(std::process::id(), &began)
}

/// The groups of a guard.
fn groups(folder: &Path, guard: u32) -> Vec<PathBuf> {
    let begin_with = |folder: &Path, start: &str| -> Vec<PathBuf> {
        let found = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        found.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(start)).collect()
    };
    let sessions = begin_with(folder, &own_session());
    sessions.iter().flat_map(|session| begin_with(session, &format!("{guard}-"))).collect()
}

#[tokio::test]
async fn groups_are_removed_with_their_guard() {
    let Some(folder) = hierarchy() else { return println!("skipped: no control groups can be made here") };
    let room = Room::new();
    assert_eq!(room.run("true", Some(room.sandbox())).await.1, Exit::Code(0));
    let guard = room.house.guard.sandbox_pid().unwrap();
    // One of the reaper, and one for the next, in which the guard waits.
    let found = groups(&folder, guard);
    assert_eq!(found.len(), 2, "{found:?}");
    let listed = |group: &Path| std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let all: String = found.iter().map(|group| listed(group)).collect();
    for pid in children(guard).into_iter().map(|pid| pid.to_string()).chain([guard.to_string()]) {
        assert!(all.lines().any(|line| line == pid), "{pid}: {all}");
    }
    let ended = watch(&[Pid::from_raw(guard.cast_signed()).unwrap()]);
    drop(room);
    wait_for_ends(&ended);
    assert_eq!(groups(&folder, guard), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn groups_of_sessions_that_were_killed_are_removed_and_no_others() {
    let Some(folder) = hierarchy() else { return println!("skipped: no control groups can be made here") };
    // One whose process is gone, with a group; and one of a process that lives but is not ours.
    let stale = folder.join(format!("{}1", session(std::process::id(), "1")));
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let began = stat.rsplit(')').next().unwrap().split_whitespace().nth(22 - 3).unwrap().to_owned();
    let living = folder.join(format!("{}1", session(child.id(), &began)));
    for folder in [&stale, &living] {
        std::fs::create_dir_all(folder.join("17-1")).unwrap();
    }
    let room = Room::new();
    assert_eq!(room.run("true", None).await.1, Exit::Code(0));
    let (is_gone, is_kept) = (!stale.exists(), living.join("17-1").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_dir(living.join("17-1"));
    let _ = std::fs::remove_dir(living);
    assert!(is_gone && is_kept, "{is_gone} {is_kept}");
}

/// A guard and a reaper that are killed leave groups, which the next guard of another session removes; nothing else that
/// this one does may fail for it.
#[tokio::test]
async fn commands_start_after_a_guard_was_killed() {
    let room = Room::new();
    for _ in 0..3 {
        assert_eq!(room.run("true", Some(room.sandbox())).await.1, Exit::Code(0));
        let guard = room.house.guard.sandbox_pid().unwrap();
        let ended = watch(&[Pid::from_raw(guard.cast_signed()).unwrap()]);
        kill_process(Pid::from_raw(guard.cast_signed()).unwrap(), Signal::KILL).unwrap();
        wait_for_ends(&ended);
    }
    let mut process = room.house.guard.start(room.launch("sleep 600", Some(room.sandbox()))).await.unwrap();
    assert_eq!(within(process.stop(Duration::ZERO)).await, Exit::Signal(9));
}
