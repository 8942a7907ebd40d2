//! Programs under test, seen from outside. Takes a binary and a fresh home, gives its output, what it used,
//! and ways to count, measure and kill it. Nothing here reads what the program believes about itself.
#![allow(clippy::disallowed_methods)] // a test starts and looks at real processes; it is not part of the product

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

use crate::sys::{self, Ending, Used};

mod audit;
pub mod canary;

pub use audit::{Evidence, Verdict};
use canary::Printed;

/// The environment variable that marks every process of a run. Not one of the program's own names, which it
/// would warn about.
pub const MARKER: &str = "TEST_RUN_MARKER";

/// The name of the state folder: the one that users have, since names of folders decide about rights.
const STATE: &str = ".decurion";

/// A home folder that nobody has used, and a marker that no other process carries. Its secrets must stay where they are:
/// when it is dropped, no file in it may hold a copy, and no program that was started in it may have printed one.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
    marker: String,
    printed: Printed,
}

impl Home {
    /// A fresh one, 0700, with `home`, `.decurion`, `work` and `tmp` in it.
    pub fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    /// A fresh one in this folder. Sandboxed commands see nothing of the system's folder for temporary files, so a home
    /// that they are to attack must not lie there.
    pub fn new_in(folder: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("decurion-test-").tempdir_in(folder)?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700))?;
        for name in ["home", STATE, "work", "tmp"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let marker = uuid::Uuid::new_v4().simple().to_string();
        let home = Self { folder, marker, printed: Printed::default() };
        canary::plant(&home.home())?;
        // What commands leave there is evidence, so their sandbox must let them.
        fs::write(home.effects(), "")?;
        let open =
            serde_json::json!({"sandbox": {"filesystem": {"allowWrite": [home.effects(), home.home()]}}});
        fs::create_dir(home.home().join(".claude"))?;
        fs::write(home.home().join(".claude/settings.json"), open.to_string())?;
        Ok(home)
    }

    /// For tests whose commands copy secrets on purpose.
    pub fn let_secrets_leak(&self) {
        self.printed.let_secrets_leak();
    }

    /// Lets commands run as on a system that has no sandbox.
    pub fn switch_sandbox_off(&self) -> io::Result<()> {
        fs::write(self.home().join(".claude/settings.json"), r#"{"sandbox": {"enabled": false}}"#)
    }

    /// The folder that holds everything.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    pub fn state(&self) -> PathBuf {
        self.path().join(STATE)
    }

    /// Where the program is started.
    pub fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// The file to which scripted calls append one line each: evidence outside of the state folder.
    pub fn effects(&self) -> PathBuf {
        self.path().join("effects")
    }

    /// What every process started here carries in its environment.
    pub fn marker(&self) -> &str {
        &self.marker
    }

    /// The processes that are left of everything started here.
    pub fn processes(&self) -> Vec<i32> {
        processes_marked(&self.marker)
    }

    /// A binary to be run in this home, with a small fixed environment.
    pub fn program(&self, binary: impl AsRef<OsStr>) -> Program {
        let mut command = Command::new(binary);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("HOME", self.home())
            .env("DECURION_HOME", self.state())
            .env("TMPDIR", self.path().join("tmp"))
            .env("EFFECTS", self.effects())
            .env(MARKER, &self.marker)
            .current_dir(self.work());
        Program { command, input: None, printed: self.printed.clone() }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.printed.may_leak() || std::thread::panicking() {
            return;
        }
        let files = canary::files_with_one(self.path(), &canary::file_in(&self.home()));
        assert!(files.is_empty(), "secrets of the test home are in {files:?}");
        let programs = self.printed.leaks();
        assert!(programs.is_empty(), "secrets of the test home were printed by {programs:?}");
    }
}

/// A binary about to be run.
#[derive(Debug)]
pub struct Program {
    command: Command,
    input: Option<Vec<u8>>,
    printed: Printed,
}

impl Program {
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Another folder to start in.
    #[must_use]
    pub fn cwd(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// What it reads before its input ends. Without this, its input is empty; see also
    /// [`Program::start_talking`].
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Runs it to its end, or kills it (and every process that carries its marker) after `limit`.
    pub fn run(self, limit: Duration) -> io::Result<Finished> {
        self.start()?.finish(limit)
    }

    /// Another binary in the same surroundings, without arguments.
    #[must_use]
    pub fn instead(self, binary: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(binary);
        command.env_clear().envs(self.command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = self.command.get_current_dir() {
            command.current_dir(folder);
        }
        Self { command, input: self.input, printed: self.printed }
    }

    /// What would be run, for whoever starts it in another way.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Where what it prints is searched.
    pub(crate) fn printed(&self) -> &Printed {
        &self.printed
    }

    /// Starts it in a process group of its own.
    pub fn start(mut self) -> io::Result<Running> {
        let input = self.input.take();
        self.command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut running = self.spawn()?;
        if let (Some(bytes), Some(mut pipe)) = (input, running.input.take()) {
            // On a thread of its own: a program that does not read must not hold up the test.
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        Ok(running)
    }

    /// Starts it with its input open, to be written to with [`Running::say`].
    pub fn start_talking(mut self) -> io::Result<Running> {
        self.command.stdin(Stdio::piped());
        self.spawn()
    }

    fn spawn(mut self) -> io::Result<Running> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let started = Instant::now();
        let mut child = self.command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line).into_owned();
                if sender.send((started.elapsed(), text)).is_err() {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = BufReader::new(errors).read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let marker = self.command.get_envs().find(|(name, _)| *name == OsStr::new(MARKER));
        let marker = marker.and_then(|(_, value)| value).map(OsStr::to_owned);
        Ok(Running {
            pid,
            started,
            input: child.stdin.take(),
            lines,
            seen: Vec::new(),
            errors: Some(errors),
            marker,
            name: self.command.get_program().display().to_string(),
            printed: self.printed,
            ended: false,
        })
    }
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    /// Its process id, which is also its group's.
    pub pid: i32,
    started: Instant,
    input: Option<ChildStdin>,
    /// Lines come from a thread that ends with the output.
    lines: Receiver<(Duration, String)>,
    seen: Vec<String>,
    /// Gives the error output when that ends; none once it has been taken.
    errors: Option<JoinHandle<String>>,
    marker: Option<OsString>,
    name: String,
    printed: Printed,
    ended: bool,
}

/// When to kill a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long after its start.
    After(Duration),
    /// When it has printed so many lines.
    Lines(usize),
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    pub ending: Ending,
    /// The lines it printed.
    pub lines: Vec<String>,
    /// What it printed as errors.
    pub errors: String,
    /// What it and the descendants it waited for used.
    pub used: Used,
    /// From start to end.
    pub wall: Duration,
    /// Whether it had to be killed because it took too long.
    pub timed_out: bool,
}

impl Finished {
    pub fn output(&self) -> String {
        self.lines.join("\n")
    }
}

impl Running {
    /// Writes a line to its input.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let pipe = self.input.as_mut().ok_or_else(|| io::Error::other("its input is closed"))?;
        pipe.write_all(line.as_bytes())?;
        pipe.write_all(b"\n")
    }

    /// Writes bytes to its input that need not be lines.
    pub fn say_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let pipe = self.input.as_mut().ok_or_else(|| io::Error::other("its input is closed"))?;
        pipe.write_all(bytes)
    }

    pub fn hang_up(&mut self) {
        self.input = None;
    }

    /// Waits for the first line that fits, keeping the ones before it; none if there is none in time.
    pub fn wait_for_line(&mut self, limit: Duration, fits: impl Fn(&str) -> bool) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let (_, line) =
                self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
            self.seen.push(line.clone());
            if fits(&line) {
                return Some(line);
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or_else(|| io::Error::other("no such process"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// What it has read and written so far.
    pub fn io(&self) -> io::Result<Io> {
        Io::of(self.pid)
    }

    /// Kills it with SIGKILL at a moment, and only it: what becomes of its descendants is for the test to
    /// see. If it ends before the moment comes, that is its end; `limit` is for one that hangs.
    pub fn kill_at(mut self, moment: Moment, limit: Duration) -> io::Result<Finished> {
        let limit = self.started + limit;
        let end = match moment {
            Moment::After(time) => self.started + time,
            Moment::Lines(_) => limit,
        };
        loop {
            if matches!(moment, Moment::Lines(count) if self.seen.len() >= count) {
                break;
            }
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((_, line)) => self.seen.push(line),
                // Its output has ended, but perhaps not the program.
                Err(RecvTimeoutError::Disconnected) if Instant::now() < end && self.is_alive() => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(_) => break,
            }
        }
        if self.is_alive() {
            self.signal(Signal::KILL)?;
        }
        self.finish(limit.saturating_duration_since(Instant::now()))
    }

    /// Waits for its end and takes all its output; kills it after `limit`.
    pub fn finish(mut self, limit: Duration) -> io::Result<Finished> {
        self.input = None;
        let deadline = Instant::now() + limit;
        let timed_out = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(Duration::from_millis(2))) {
                Ok((_, line)) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break !self.ends_before(deadline),
                // A descendant may hold the output open after the program itself has ended.
                Err(RecvTimeoutError::Timeout) if !self.is_alive() => break false,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => break true,
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if timed_out {
            let _ = self.signal(Signal::KILL);
            for pid in self.descendants() {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
        let (_, ending, used) = sys::wait_for(Some(self.pid))?;
        self.ended = true;
        let wall = self.started.elapsed();
        self.take_rest();
        let lines = std::mem::take(&mut self.seen);
        // A descendant that is left may hold the pipe open for ever; its words are not waited for.
        let errors = self.errors.take().filter(|thread| self.is_through(thread));
        let errors = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
        for text in lines.iter().chain([&errors]) {
            self.printed.search(&self.name, text.as_bytes());
        }
        Ok(Finished { ending, lines, errors, used, wall, timed_out })
    }

    /// Takes the lines that are on their way: up to the end of the output, or, where a descendant holds it
    /// open, until nothing more comes.
    fn take_rest(&mut self) {
        let patience = if self.descendants().is_empty() { 1000 } else { 20 };
        while let Ok((_, line)) = self.lines.recv_timeout(Duration::from_millis(patience)) {
            self.seen.push(line);
        }
    }

    /// Whether the error output has ended, or will because nobody is left to hold it open.
    fn is_through(&self, errors: &JoinHandle<String>) -> bool {
        let patience = Instant::now() + Duration::from_millis(500);
        while !errors.is_finished() && Instant::now() < patience {
            if self.descendants().is_empty() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        errors.is_finished()
    }

    fn descendants(&self) -> Vec<i32> {
        self.marker.as_ref().and_then(|text| text.to_str()).map(processes_marked).unwrap_or_default()
    }

    fn is_alive(&self) -> bool {
        state_of(self.pid).is_some_and(|state| state != 'Z')
    }

    fn ends_before(&self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.signal(Signal::KILL);
            let _ = sys::wait_for(Some(self.pid));
        }
    }
}

/// What a process has read and written, as `/proc/<pid>/io` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Bytes asked for by reading calls.
    pub read_chars: u64,
    /// Bytes given to writing calls.
    pub written_chars: u64,
    pub read_calls: u64,
    pub write_calls: u64,
    /// Bytes fetched from storage.
    pub read_bytes: u64,
    /// Bytes sent towards storage.
    pub written_bytes: u64,
}

impl Io {
    /// Those of a process that runs.
    pub fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/io"))?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
        };
        Ok(Self {
            read_chars: value("rchar"),
            written_chars: value("wchar"),
            read_calls: value("syscr"),
            write_calls: value("syscw"),
            read_bytes: value("read_bytes"),
            written_bytes: value("write_bytes"),
        })
    }
}

/// The processes whose environment carries this marker, zombies left out.
pub fn processes_marked(marker: &str) -> Vec<i32> {
    let wanted = format!("{MARKER}={marker}");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|block| block.split(|byte| *byte == 0).any(|part| part == wanted.as_bytes()))
        })
        .filter(|pid| state_of(*pid).is_some_and(|state| state != 'Z'))
        .collect()
}

/// The letter of a process's state; none if there is no such process.
fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Waits until no process carries the marker; gives those that still do after `limit`.
pub fn wait_until_gone(marker: &str, limit: Duration) -> Vec<i32> {
    let deadline = Instant::now() + limit;
    loop {
        let left = processes_marked(marker);
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The peak of a running process's own memory in KiB: without what is mapped from files, of which the system
/// keeps as much in memory as it likes.
pub fn peak_memory_kib(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    Some(field("VmHWM")?.saturating_sub(field("RssFile")?))
}

/// Waits until other processes have appended so many lines to a file. Gives how many there are, which is fewer after `limit`.
pub fn wait_for_lines(path: &Path, count: usize, limit: Duration) -> io::Result<usize> {
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, path, inotify::WatchFlags::MODIFY)?;
    let deadline = Instant::now() + limit;
    loop {
        let found = lines_of(path).len();
        let left = deadline.saturating_duration_since(Instant::now());
        if found >= count || left.is_zero() {
            return Ok(found);
        }
        wait_until_readable(&changes, left)?;
        while rustix::io::read(&changes, &mut [0; 4096][..]).is_ok() {}
    }
}

/// Waits until a process has ended, or for `limit`.
pub fn wait_for_end(pid: i32, limit: Duration) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Ok(()),
        process => wait_until_readable(&process?, limit),
    }
}

fn wait_until_readable(file: &impl std::os::fd::AsFd, limit: Duration) -> io::Result<()> {
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit)))?;
    Ok(())
}

/// The lines of a file; none if there is no such file.
pub fn lines_of(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}
