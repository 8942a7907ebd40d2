//! T5: state folders that cannot be used. Takes the ways in which a folder can be missing, wrong or
//! forbidden, gives whether a run went on in memory and said so, or refused in one line.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::stand::{HANG, Stand, brief, ended_well};
use super::{Options, Report, Row, has_program};
use crate::proc::{Finished, Program};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row {
        id: "T5",
        what: "a state folder that is missing, wrong, read-only or without locks",
        run: unusable,
    }]
}

const SCRIPT: &str = "when\n  say \"Here I am.\"\n";
/// A user who owns nothing and has no home.
const NOBODY: &str = "54321";
/// What is said where nothing is kept.
const SAID: &str = "no transcript is kept";
/// What is said where that is a reason not to begin.
const REFUSED: &str = "cannot use the state folder";

/// What is done to the folder.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// Nothing there, but it can be made.
    Missing,
    /// Nothing there, nor its parents.
    MissingDeep,
    /// A file where the folder should be.
    File,
    /// A file where the folder of projects should be.
    FileInside,
    /// A link to nothing.
    DanglingLink,
    /// A link to a folder of ours.
    Link,
    /// No right to write, for a user who is not root.
    NoWrite,
    /// No right to enter.
    NoEnter,
    /// No home at all.
    NoHome,
    /// A file system that is read-only.
    ReadOnly,
    /// A full file system.
    Full,
    NoLocks,
    /// No locks of any kind known.
    LocksUnknown,
    Open,
    /// No more files can be opened for writing there.
    NoRoom,
}

#[derive(Clone, Copy, Debug)]
enum Right {
    /// A transcript is kept all the same.
    Kept,
    /// It runs without one and says so, or refuses if one is required.
    Memory,
    /// It refuses: room may come back, and a transcript that begins in the middle is worth little.
    Refused,
}

/// Each damage, and what is right.
const VARIANTS: [(Damage, Right); 15] = [
    (Damage::Missing, Right::Kept),
    (Damage::MissingDeep, Right::Kept),
    (Damage::File, Right::Memory),
    (Damage::FileInside, Right::Memory),
    (Damage::DanglingLink, Right::Memory),
    (Damage::Link, Right::Kept),
    (Damage::NoWrite, Right::Memory),
    (Damage::NoEnter, Right::Memory),
    (Damage::NoHome, Right::Memory),
    (Damage::ReadOnly, Right::Memory),
    (Damage::Full, Right::Refused),
    (Damage::NoLocks, Right::Memory),
    (Damage::LocksUnknown, Right::Memory),
    (Damage::Open, Right::Kept),
    (Damage::NoRoom, Right::Memory),
];

fn unusable(options: &Options) -> Report {
    let mut report = Report::default();
    for (damage, right) in VARIANTS {
        for required in [false, true] {
            let name = format!("{damage:?}{}", if required { ", persistence required" } else { "" });
            report.add(name, one(options, damage, right, required));
        }
    }
    let right = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{} start-up variants, each with and without --require-persistence: {right} of {} right",
        VARIANTS.len(),
        report.runs
    );
    report.figure(figure)
}

fn one(options: &Options, damage: Damage, right: Right, required: bool) -> Result<(), String> {
    let stand = Stand::new(options, |_| SCRIPT.to_owned()).map_err(|error| error.to_string())?;
    let program = prepare(&stand, damage).map_err(|error| error.to_string())?;
    let program = program.args(["-p", "--output-format", "stream-json", "--verbose"]);
    let program = if required { program.arg("--require-persistence") } else { program };
    let run = program.arg("hello").run(HANG).map_err(|error| error.to_string())?;
    if run.timed_out {
        return Err("hangs".into());
    }
    if run.errors.contains("panicked") {
        return Err(format!("panics: {}", brief(&run.errors)));
    }
    stand.check_left()?;
    match (right, required) {
        (Right::Kept, _) => ended_well(&run),
        (Right::Memory, false) => memory_only(&run),
        (Right::Memory, true) | (Right::Refused, _) => refused(&run),
    }
}

/// It runs, and says that nothing is kept.
fn memory_only(run: &Finished) -> Result<(), String> {
    ended_well(run)?;
    if run.lines.iter().any(|line| line.contains(SAID) && !line.contains("\"init\"")) {
        return Ok(());
    }
    Err(format!("does not say that nothing is kept: {} {}", brief(&run.errors), brief(&run.output())))
}

/// It does not run: exit code 2 and one line that says why, whatever else there was to say.
fn refused(run: &Finished) -> Result<(), String> {
    match (run.ending.code(), run.errors.lines().filter(|line| line.contains(REFUSED)).count()) {
        (2, 1) => Ok(()),
        (code, lines) => Err(format!("ends with {code} and {lines} reasons: {}", brief(&run.errors))),
    }
}

fn prepare(stand: &Stand, damage: Damage) -> std::io::Result<Program> {
    let state = stand.home.state();
    let direct = || stand.program(stand.binary());
    match damage {
        Damage::Missing => {
            fs::remove_dir(&state)?;
            Ok(direct())
        }
        Damage::MissingDeep => Ok(direct().env("DECURION_HOME", state.join("a/b/c"))),
        Damage::File => {
            fs::remove_dir(&state)?;
            fs::write(&state, "not a folder")?;
            Ok(direct())
        }
        Damage::FileInside => {
            fs::write(state.join("projects"), "not a folder")?;
            Ok(direct())
        }
        Damage::DanglingLink => {
            fs::remove_dir(&state)?;
            symlink("/nonexistent/place", &state)?;
            Ok(direct())
        }
        Damage::Link => {
            let real = stand.home.path().join("real");
            fs::rename(&state, &real)?;
            symlink(&real, &state)?;
            Ok(direct())
        }
        Damage::NoWrite => {
            fs::set_permissions(&state, fs::Permissions::from_mode(0o555))?;
            Ok(as_nobody(stand, &[])?.arg(stand.binary()))
        }
        Damage::NoEnter => {
            fs::set_permissions(&state, fs::Permissions::from_mode(0o000))?;
            Ok(as_nobody(stand, &[])?.arg(stand.binary()))
        }
        Damage::NoHome => {
            // Not the home of whoever runs this: a user without one.
            let program = as_nobody(stand, &["env", "-u", "HOME", "-u", "DECURION_HOME"])?;
            Ok(program.arg(stand.binary()))
        }
        Damage::ReadOnly => Ok(mounted(stand, "-o ro,size=64k")),
        Damage::Full => Ok(mounted(stand, "-o size=4k")),
        Damage::NoLocks => Ok(without_locks(stand, "ENOLCK")),
        Damage::LocksUnknown => Ok(without_locks(stand, "EOPNOTSUPP")),
        Damage::Open => {
            fs::set_permissions(&state, fs::Permissions::from_mode(0o777))?;
            Ok(direct())
        }
        Damage::NoRoom => Ok(mounted(stand, "-o nr_inodes=1")),
    }
}

/// As a user who is not root, in folders that this user may enter. The program itself is to be added.
fn as_nobody(stand: &Stand, through: &[&str]) -> std::io::Result<Program> {
    let open = |path: PathBuf| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    open(stand.home.path().to_owned())?;
    open(stand.home.work())?;
    if !rustix::process::getuid().is_root() {
        return Err(std::io::Error::other("only root can run a program as another user"));
    }
    if !has_program("setpriv") {
        return Err(std::io::Error::other("setpriv is not installed"));
    }
    let program = stand.program("setpriv").args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    Ok(program.args(through))
}

/// With a file system of its own as the state folder.
fn mounted(stand: &Stand, how: &str) -> Program {
    let mount = format!("mount -t tmpfs {how} none \"$DECURION_HOME\" && exec \"$@\"");
    stand.program("unshare").args(["-Urm", "sh", "-c", &mount, "sh"]).arg(stand.binary())
}

fn without_locks(stand: &Stand, error: &str) -> Program {
    let inject = format!("inject=flock:error={error}");
    let program = stand.program("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=flock", "-e"]);
    program.arg(inject).arg(stand.binary())
}
