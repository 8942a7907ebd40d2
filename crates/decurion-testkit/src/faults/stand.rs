//! Where the binary is damaged: a home that nobody has used, a copy of the binary that only this stand runs,
//! and a loopback model that checks every request. Gives programs to start and what is left of them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decurion_model::script::Script;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::faults::Options;
use crate::proc::{Finished, Home, Program, processes_marked, wait_for_end};
use crate::server::{Answers, FakeModel, Settings};

/// A run that takes longer than this hangs.
pub const HANG: Duration = Duration::from_secs(60);
/// What is left of a program so long after its end stays.
pub const GONE: Duration = Duration::from_secs(5);

/// One place to damage things.
#[derive(Debug)]
pub struct Stand {
    pub home: Home,
    /// The model; its requests are evidence.
    pub model: FakeModel,
    /// The binary under a name that occurs in the command line of no process but those of this stand. The
    /// guard is started with an empty environment, so that the marker alone would not find it.
    binary: PathBuf,
}

impl Stand {
    /// A stand whose model plays what `script` writes for the folder in which the program is started.
    pub fn new(options: &Options, script: impl FnOnce(&Path) -> String) -> io::Result<Self> {
        Self::with(options, script, |_| {})
    }

    /// The same with a model whose usual settings `set` has changed.
    pub fn with(
        options: &Options,
        script: impl FnOnce(&Path) -> String,
        set: impl FnOnce(&mut Settings),
    ) -> io::Result<Self> {
        Self::in_home(Home::new()?, options, script, set)
    }

    /// A stand whose folders commands can see in their sandbox, as far as its rules let them: beside the binaries.
    pub fn seen_by_commands(options: &Options, script: impl FnOnce(&Path) -> String) -> io::Result<Self> {
        let folder = options.binaries.join("homes");
        fs::create_dir_all(&folder)?;
        let home = Home::new_in(&folder)?;
        // Else it is a part of the repository around the binaries.
        let made = home.program("git").args(["init", "-q", "-b", "main"]).run(HANG)?;
        if !made.ending.is_success() {
            return Err(io::Error::other(made.errors));
        }
        Self::in_home(home, options, script, |_| {})
    }

    fn in_home(
        home: Home,
        options: &Options,
        script: impl FnOnce(&Path) -> String,
        set: impl FnOnce(&mut Settings),
    ) -> io::Result<Self> {
        let binary = home.path().join("decurion");
        let original = options.decurion();
        if fs::hard_link(&original, &binary).is_err() {
            fs::copy(&original, &binary)?;
        }
        let script = Script::parse(&script(&home.work())).map_err(io::Error::other)?;
        let mut settings = Settings::new(Answers::Script(script));
        set(&mut settings);
        let model = FakeModel::with(settings).map_err(io::Error::other)?;
        Ok(Self { home, model, binary })
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A program that talks to the model of this stand.
    pub fn program(&self, binary: impl AsRef<std::ffi::OsStr>) -> Program {
        self.home
            .program(binary)
            .env("ANTHROPIC_BASE_URL", self.model.url())
            .env("ANTHROPIC_API_KEY", crate::proc::canary::PROVIDER_KEY)
            .env("NO_PROXY", "*")
    }

    /// A run of `prompt` that prints every event and asks nobody.
    pub fn run(&self, prompt: &str) -> Program {
        self.program(&self.binary).args(RUN).arg(prompt)
    }

    /// The same, in a session with this id.
    pub fn run_as(&self, session: &str, prompt: &str) -> Program {
        self.program(&self.binary).args(RUN).args(["--session-id", session, prompt])
    }

    /// Going on with a session.
    pub fn resume(&self, session: &str, prompt: &str) -> Program {
        self.program(&self.binary).args(RUN).args(["--resume", session, prompt])
    }

    /// A run under `strace` with these options.
    pub fn traced(&self, options: &[String], session: &str, prompt: &str) -> Program {
        self.program("strace")
            .args(["-f", "-qq", "-o"])
            .arg(self.home.path().join("trace"))
            .args(options)
            .arg(&self.binary)
            .args(RUN)
            .args(["--session-id", session, prompt])
    }

    /// The lines of the last trace.
    pub fn trace(&self) -> Vec<String> {
        crate::proc::lines_of(&self.home.path().join("trace"))
    }

    /// Where the transcript of a session is: below the state folder, by its name.
    pub fn transcript(&self, session: &str) -> PathBuf {
        let work = self.home.work().canonicalize().unwrap_or_else(|_| self.home.work());
        let slug = decurion_store::slug(&work.to_string_lossy());
        self.home.state().join("projects").join(slug).join(format!("{session}.jsonl"))
    }

    /// The processes of this stand: those that carry its marker and those that run its binary.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids = processes_marked(self.home.marker());
        pids.extend(self.running_binary(|_| true));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes that run the binary: the program, its guards and their reapers.
    pub fn own_processes(&self) -> Vec<i32> {
        self.running_binary(|_| true)
    }

    /// The guards, without the reapers that they have forked.
    pub fn guards(&self) -> Vec<i32> {
        let all = self.running_binary(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"__guard"));
        all.iter()
            .copied()
            .filter(|pid| parent_of(*pid).is_none_or(|parent| !all.contains(&parent)))
            .collect()
    }

    /// The program itself, where it is a descendant of what was started.
    pub fn main(&self) -> Option<i32> {
        self.running_binary(|line| line.split(|byte| *byte == 0).nth(1) == Some(b"-p")).first().copied()
    }

    fn running_binary(&self, fits: impl Fn(&[u8]) -> bool) -> Vec<i32> {
        let Ok(inode) = fs::metadata(&self.binary).map(|status| status.ino()) else { return Vec::new() };
        let wanted = self.binary.as_os_str().as_encoded_bytes();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                // A zombie has no command line.
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(wanted) && fits(&line))
                    && fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ino() == inode)
            })
            .collect()
    }

    /// Waits until nothing of this stand runs: how long that took, or what is left after `limit`.
    pub fn wait_until_gone(&self, limit: Duration) -> Result<Duration, String> {
        let begun = Instant::now();
        loop {
            let left = self.processes();
            let Some(first) = left.first() else { return Ok(begun.elapsed()) };
            let time = limit.saturating_sub(begun.elapsed());
            if time.is_zero() {
                let names: Vec<String> = left.iter().map(|pid| named(*pid)).collect();
                self.end_all();
                return Err(format!("{} processes left: {}", left.len(), names.join("; ")));
            }
            wait_for_end(*first, time).map_err(|error| error.to_string())?;
        }
    }

    /// Ends what should have ended by itself.
    pub fn end_all(&self) {
        for pid in self.processes() {
            kill(pid);
        }
    }

    /// The processes that are left and requests that were refused, as problems.
    pub fn check_left(&self) -> Result<(), String> {
        self.wait_until_gone(GONE)?;
        match self.model.problems().first() {
            Some(problem) => Err(format!("the model refused: {problem}")),
            None => Ok(()),
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// How every run is started. Retries are not waited for: the loopback model refuses only what is wrong.
pub const RUN: [&str; 6] = [
    "-p",
    "--output-format",
    "stream-json",
    "--verbose",
    "--dangerously-skip-permissions",
    "--require-persistence",
];

pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn named(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let text: String = words.join(" ").chars().take(80).collect();
    format!("{pid} {}", text.trim())
}

/// The session that a run's first line names.
pub fn session_of(lines: &[String]) -> Option<String> {
    let text = |line: &String| {
        let line: Value = serde_json::from_str(line).ok()?;
        line.get("session_id")?.as_str().map(str::to_owned)
    };
    lines.iter().find_map(text)
}

/// The result line of a run.
pub fn result_of(lines: &[String]) -> Option<Value> {
    lines.iter().rev().find_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        (line.get("type")?.as_str()? == "result").then_some(line)
    })
}

/// That a run ended well: exit code 0 and a result that is no error.
pub fn ended_well(run: &Finished) -> Result<(), String> {
    if run.timed_out {
        return Err(format!("hangs; errors: {}", brief(&run.errors)));
    }
    if !run.ending.is_success() {
        let last = run.lines.last().map(|line| brief(line)).unwrap_or_default();
        return Err(format!("ended with {:?}: {} {last}", run.ending, brief(&run.errors)));
    }
    match result_of(&run.lines) {
        None => Err("no result line".into()),
        Some(result) if result["is_error"] == true => Err(format!("the result is an error: {result}")),
        Some(_) => Ok(()),
    }
}

/// The beginning of a text, on one line.
pub fn brief(text: &str) -> String {
    text.trim().replace('\n', " | ").chars().take(300).collect()
}
