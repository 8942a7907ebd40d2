//! Core files, as a part of X4. Takes processes with a secret in their environment, commands and our own, ends them with
//! signals that dump core; gives the files in which the secret turned up. The same signal ends a program that is not ours,
//! to see that its core file would be found: where the system writes core files elsewhere, nothing is proven here.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::canaries::{CANARY, files_below};
use super::{Start, bash, run_session, script_of};
use crate::faults::Options;
use crate::faults::stand::Stand;
use crate::proc::{Program, lines_of};

/// What takes longer never happens.
const HANG: Duration = Duration::from_secs(30);
/// Lets the program that follows dump core, as far as the system allows it.
const UNLIMITED: &str = "ulimit -c unlimited; exec \"$0\" \"$@\"";
/// Commands that end by such a signal.
const COMMANDS: [&str; 3] = [
    "ulimit -c unlimited; bash -c 'kill -ABRT $$'; ls",
    "python3 -c 'import resource, os; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1)); os.abort()'; ls",
    "cd \"$TMPDIR\"; (ulimit -c $(ulimit -Hc); sh -c 'kill -SEGV $$'); ls; cat core*",
];

#[derive(Debug, Default)]
pub(super) struct Found {
    /// The files with the secret, or what else a core file was seen by.
    pub(super) cores: Vec<String>,
    /// How many processes were ended.
    pub(super) ended: usize,
    /// Whether the core file of a program that is not ours is found.
    pub(super) control: bool,
}

pub(super) fn search(options: &Options) -> Result<Found, String> {
    let mut found = Found { control: control(options)?, ..Found::default() };
    of_commands(options, &mut found)?;
    of_our_own(options, &mut found)?;
    Ok(found)
}

/// A program that is not ours, in the same folder.
fn control(options: &Options) -> Result<bool, String> {
    let stand = Stand::seen_by_commands(options, |_| script_of(&[])).map_err(|error| error.to_string())?;
    let sleep = dumping(stand.home.program("sleep")).arg("60").start().map_err(|error| error.to_string())?;
    wait_for(|| {
        fs::read(format!("/proc/{}/cmdline", sleep.pid)).is_ok_and(|line| line.starts_with(b"sleep"))
    })?;
    abort(sleep.pid)?;
    sleep.finish(HANG).map_err(|error| error.to_string())?;
    Ok(!with_secret(&stand).is_empty())
}

fn of_commands(options: &Options, found: &mut Found) -> Result<(), String> {
    let calls: Vec<_> = COMMANDS.iter().map(|command| bash(command)).collect();
    let stand = Stand::seen_by_commands(options, |_| script_of(&calls)).map_err(|error| error.to_string())?;
    let start = Start::new(json!({})).arguments(&["--dangerously-skip-permissions"]);
    // A secret that commands may have, so that a core file is found by it.
    let start = start.environment("NAME", secret());
    let outcomes = run_session(&stand, calls.len(), &start)?;
    found.ended += calls.len();
    for (command, outcome) in COMMANDS.iter().zip(outcomes) {
        let seen =
            |line: &str| line.starts_with("core") || line.contains("core dumped") || line.contains(CANARY);
        if outcome.text.lines().any(seen) {
            found.cores.push(format!("a core file of {command}"));
        }
    }
    found.cores.extend(with_secret(&stand));
    Ok(())
}

/// The program, its guards and their reapers, while a command runs.
fn of_our_own(options: &Options, found: &mut Found) -> Result<(), String> {
    let call = bash("echo up >> $EFFECTS; sleep 60");
    let stand =
        Stand::seen_by_commands(options, |_| script_of(&[call])).map_err(|error| error.to_string())?;
    let running = dumping(stand.run("go")).start().map_err(|error| error.to_string())?;
    wait_for(|| !lines_of(&stand.home.effects()).is_empty())?;
    let own = stand.own_processes();
    if own.len() < 3 {
        return Err(format!("only {} processes of ours: {own:?}", own.len()));
    }
    let folders: Vec<PathBuf> =
        own.iter().filter_map(|pid| fs::read_link(format!("/proc/{pid}/cwd")).ok()).collect();
    let cores = || folders.iter().flat_map(|folder| cores_in(folder)).collect::<Vec<_>>();
    let before = cores();
    for pid in own {
        // One may have ended with another.
        found.ended += usize::from(abort(pid).is_ok());
    }
    running.finish(HANG).map_err(|error| error.to_string())?;
    stand.wait_until_gone(HANG)?;
    found.cores.extend(with_secret(&stand));
    let new = cores().into_iter().filter(|core| !before.contains(core));
    found.cores.extend(new.map(|core| format!("{} of our own", core.display())));
    Ok(())
}

fn secret() -> String {
    format!("{CANARY}core")
}

/// The program with a secret, and without a bound on its core files.
fn dumping(program: Program) -> Program {
    let words = [program.command().get_program()].into_iter().chain(program.command().get_args());
    let words: Vec<_> = words.map(ToOwned::to_owned).collect();
    program.env("NAME", secret()).instead("bash").args(["-c", UNLIMITED]).args(words)
}

fn abort(pid: i32) -> Result<(), String> {
    let pid = Pid::from_raw(pid).ok_or("no such process")?;
    kill_process(pid, Signal::ABORT).map_err(|error| error.to_string())
}

fn with_secret(stand: &Stand) -> Vec<String> {
    let holds = |file: &PathBuf| {
        fs::read(file).is_ok_and(|bytes| memchr::memmem::find(&bytes, CANARY.as_bytes()).is_some())
    };
    files_below(stand.home.path()).into_iter().filter(holds).map(|file| file.display().to_string()).collect()
}

fn cores_in(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("core"));
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .map(|entry| entry.path())
        .collect()
}

fn wait_for(mut comes: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + HANG;
    while !comes() {
        if Instant::now() > deadline {
            return Err("a process did not start".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
