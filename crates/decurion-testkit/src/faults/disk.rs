//! T4: a disk that refuses. Takes runs whose n-th write or sync fails, or whose state folder is full, gives
//! whether they said so, waited, went on, and kept every line whole.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use uuid::Uuid;

use super::kill::{Counts, FIRST, Trial, count_calls, filter, script};
use super::stand::{HANG, Stand, brief, ended_well};
use super::{Options, Report, Row, has_program, in_parallel};
use crate::proc::Program;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row {
        id: "T4",
        what: "a disk that is full or fails, at each write and sync of a run",
        run: refusing,
    }]
}

/// Which call fails, and how: once, or so many times in a row.
const FAULTS: [(&str, &str, &str); 6] = [
    ("write", "ENOSPC", ""),
    ("write", "EIO", ""),
    ("write", "EDQUOT", ""),
    ("write", "ENOSPC", "twice"),
    ("fdatasync", "EIO", ""),
    ("ftruncate", "EIO", ""),
];
/// So many writes of a run are made to fail at most.
const MOST: u64 = 200;
/// So many of each kind in the short form.
const SHORT: u64 = 2;
/// Waiting costs no processor, so that more runs than cores may go on at the same time.
const WIDER: usize = 3;
/// What the program says while its disk refuses.
const PAUSED: &str = "session is paused";

fn refusing(options: &Options) -> Report {
    if !has_program("strace") {
        return Report::broken("strace is not installed");
    }
    let mut report = Report::default();
    let mut cases = Vec::new();
    for (call, error, times) in FAULTS {
        // A cut comes only after a failure, so that there is none in an undisturbed run.
        let counted = if call == "ftruncate" { Ok(1) } else { count_calls(options, call, true) };
        match counted {
            Ok(count) => cases.extend(some(options, count.min(MOST)).map(|nth| (call, error, times, nth))),
            Err(problem) => report.add(format_args!("counting {call}"), Err(problem)),
        }
    }
    let counts = Counts::default();
    let results = in_parallel(options.width * WIDER, &cases, |(call, error, times, nth)| {
        let name = format!("{call} {nth} fails with {error} {times}");
        (name, failing(options, call, error, times, *nth, &counts))
    });
    for (name, result) in results {
        report.add(name, result);
    }
    let injected = report.runs;
    report.add("full folder, freed", full_folder(options, Freed::Later, &counts));
    report.add("full folder, SIGTERM", full_folder(options, Freed::Never, &counts));
    report.add("file size limit, raised", size_limit(options, &counts));
    report.add("file size limit, plain output", plain_output(options));
    let failed = report.failures.len();
    let figure = format!(
        "{injected} refused writes and syncs + 4 full disks: {failed} not survived, {} with half lines or lost \
         records",
        report.failures.iter().filter(|one| one.contains("half") || one.contains("lost")).count(),
    );
    report.figure(figure)
}

/// All of them, or in the short form some, from different ends.
fn some(options: &Options, count: u64) -> impl Iterator<Item = u64> + use<> {
    let step = if options.ci { count.div_ceil(SHORT).max(1) } else { 1 };
    let first = if options.ci { 1 + options.seed % step } else { 1 };
    (first..=count).step_by(usize::try_from(step).unwrap_or(1))
}

fn failing(
    options: &Options,
    call: &str,
    error: &str,
    times: &str,
    nth: u64,
    counts: &Counts,
) -> Result<(), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut faults = filter(&stand, &id, if call == "ftruncate" { "write,ftruncate" } else { call }, true);
    let when = if times.is_empty() { format!("{nth}") } else { format!("{nth}..{}", nth + 1) };
    if call == "ftruncate" {
        // A write that took only a part, then a cut that fails, then both work.
        faults.extend(["-e".to_owned(), "inject=write:error=ENOSPC:when=5".to_owned()]);
    }
    faults.extend(["-e".to_owned(), format!("inject={call}:error={error}:when={when}")]);
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let run = stand.traced(&faults, &id, FIRST).run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    let hit = stand.trace().iter().any(|line| line.contains("INJECTED"));
    if call == "write" && hit && !run.lines.iter().any(|line| line.contains(PAUSED)) && nth > 1 {
        return Err("nothing was said about the pause".into());
    }
    whole_lines(&stand.transcript(&id))?;
    trial.after(run, counts)?;
    trial.conclude(counts)?;
    whole_lines(&stand.transcript(&id))
}

/// Every line of a transcript is whole.
pub(super) fn whole_lines(transcript: &Path) -> Result<(), String> {
    let bytes = fs::read(transcript).map_err(|error| format!("lost: the transcript: {error}"))?;
    if bytes.last().is_some_and(|last| *last != b'\n') {
        return Err("half a line at the end of the transcript".into());
    }
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        if serde_json::from_slice::<Value>(line).is_err() {
            return Err(format!("half a line in the transcript: line {}", at + 1));
        }
    }
    Ok(())
}

/// When a full folder gets room again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freed {
    /// Once the program has said that it waits.
    Later,
    /// Not before it is told to end.
    Never,
}

/// A state folder of a few KB in a namespace of its own, most of it taken.
fn full_folder(options: &Options, freed: Freed, counts: &Counts) -> Result<(), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let state = stand.home.state();
    let mount = "mount -t tmpfs -o size=256k,mode=700 none \"$DECURION_HOME\" && \
                 head -c 200k /dev/zero > \"$DECURION_HOME/ballast\" && \"$@\"; code=$?; \
                 rm -f \"$DECURION_HOME/ballast\"; cp -r \"$DECURION_HOME/.\" \"$KEPT\"; exit $code";
    let kept = stand.home.path().join("kept");
    fs::create_dir(&kept).map_err(|error| error.to_string())?;
    let program = stand
        .program("unshare")
        .env("KEPT", &kept)
        .args(["-Urm", "sh", "-c", mount, "sh"])
        .arg(stand.binary());
    let program = program.args(super::stand::RUN).args(["--session-id", &id, FIRST]);
    let mut running = program.start().map_err(|error| error.to_string())?;
    let told = running.wait_for_line(HANG, |line| line.contains(PAUSED) || line.contains("\"result\""));
    if !told.is_some_and(|line| line.contains(PAUSED)) {
        let end = running.finish(HANG).map_err(|error| error.to_string())?;
        return Err(format!("no word about the pause: {:?} {}", end.ending, brief(&end.errors)));
    }
    let main = stand.main().ok_or("the program is gone while it should wait")?;
    let begun = Instant::now();
    match freed {
        Freed::Later => {
            let ballast = format!("/proc/{main}/root{}/ballast", state.display());
            fs::remove_file(&ballast).map_err(|error| format!("{ballast}: {error}"))?;
        }
        Freed::Never => send(main, Signal::TERM),
    }
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if run.timed_out {
        return Err("hangs".into());
    }
    // What the namespace held goes to where the next runs look.
    fs::remove_dir(&state).and_then(|()| fs::rename(&kept, &state)).map_err(|error| error.to_string())?;
    match freed {
        Freed::Later => ended_well(&run)?,
        Freed::Never if run.ending.code() != 143 => {
            return Err(format!("SIGTERM: ended with {:?}", run.ending));
        }
        Freed::Never if begun.elapsed() > Duration::from_secs(40) => return Err("SIGTERM: hangs".into()),
        Freed::Never => {}
    }
    if freed == Freed::Later {
        whole_lines(&stand.transcript(&id))?;
    }
    trial.after(run, counts)?;
    trial.conclude(counts)
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Files may not grow beyond a limit: a write takes a part, the next one nothing. Then the limit is raised.
fn size_limit(options: &Options, counts: &Counts) -> Result<(), String> {
    if !has_program("prlimit") {
        return Err("prlimit is not installed".into());
    }
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let id = Uuid::new_v4().to_string();
    let mut trial = Trial::new(&stand, &id);
    drop(trial.next_program());
    let program = stand.program("prlimit").args(["--fsize=20000:unlimited", "--"]).arg(stand.binary());
    let program: Program = program.args(super::stand::RUN).args(["--session-id", &id, FIRST]);
    let mut running = program.start().map_err(|error| error.to_string())?;
    let told = running.wait_for_line(HANG, |line| line.contains(PAUSED) || line.contains("\"result\""));
    if !told.is_some_and(|line| line.contains(PAUSED)) {
        let end = running.finish(HANG).map_err(|error| error.to_string())?;
        return Err(format!("no word about the pause: {:?} {}", end.ending, brief(&end.errors)));
    }
    raise_limit(&stand, running.pid)?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    whole_lines(&stand.transcript(&id))?;
    trial.after(run, counts)?;
    trial.conclude(counts)
}

fn raise_limit(stand: &Stand, pid: i32) -> Result<(), String> {
    let raise = stand.home.program("prlimit").args(["--fsize=unlimited:unlimited", "--pid"]);
    raise.arg(pid.to_string()).run(HANG).map(drop).map_err(|error| error.to_string())
}

/// The same where only the answer is printed: the pause is reported on the error output.
fn plain_output(options: &Options) -> Result<(), String> {
    let stand = Stand::new(options, script).map_err(|error| error.to_string())?;
    let program = stand.program("sh").args(["-c", "exec \"$@\" 2>&1", "sh", "prlimit"]);
    let program = program.args(["--fsize=20000:unlimited", "--"]).arg(stand.binary());
    let program = program.args(["-p", "--dangerously-skip-permissions", FIRST]);
    let mut running = program.start().map_err(|error| error.to_string())?;
    let told = running.wait_for_line(HANG, |line| line.contains(PAUSED));
    raise_limit(&stand, running.pid)?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    told.map(drop).ok_or_else(|| format!("no word about the pause: {:?} {}", run.ending, run.output()))?;
    if run.ending.code() != 0 { Err(format!("ended with {:?}", run.ending)) } else { Ok(()) }
}
