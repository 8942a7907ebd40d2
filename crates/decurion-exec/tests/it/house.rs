//! What the tests share: a guard, marked environments, and a look at who is still alive.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use decurion_exec::{Capture, CaptureBounds, Exit, Guard, GuardProgram, Launch, shell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Nothing in these tests takes this long unless it hangs.
pub const HANG: Duration = Duration::from_mins(1);

pub fn program() -> GuardProgram {
    GuardProgram { program: PathBuf::from(env!("CARGO_BIN_EXE_decurion-guard")), args: Vec::new() }
}

/// A guard, and a mark that every process started for a test carries in its environment.
pub struct House {
    pub guard: Guard,
    pub mark: String,
}

impl House {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("mark-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self { guard: Guard::new(program()), mark }
    }

    pub fn env(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
            ("DECURION_TEST_MARK".into(), self.mark.clone().into()),
        ]
    }

    pub fn bash(&self, command: &str) -> Launch {
        shell::bash(command, "/", false).env(self.env())
    }

    /// Runs a command to its end: its output, and how it ended.
    pub async fn run(&self, launch: Launch) -> (String, Exit) {
        let mut process = self.guard.start(launch).await.unwrap();
        let mut capture = Capture::new(CaptureBounds { head: 1 << 20, tail: 0, file: 0 });
        let exit = within(process.collect(&mut capture, None, |_| {})).await;
        (String::from_utf8_lossy(&capture.finish().head).into_owned(), exit)
    }

    /// The living processes that carry the mark.
    pub fn alive(&self) -> Vec<Pid> {
        marked(&self.mark)
    }

    pub fn assert_empty(&self) {
        let alive = self.alive();
        assert!(
            alive.is_empty(),
            "left behind: {:?}",
            alive.iter().map(|pid| describe(*pid)).collect::<Vec<_>>()
        );
    }
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.expect("hangs")
}

/// The living processes with this text in their environment.
pub fn marked(mark: &str) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let wanted = format!("DECURION_TEST_MARK={mark}");
    pids.filter(|pid| {
        environment(*pid)
            .split(|byte| *byte == 0)
            .any(|variable| variable == std::ffi::OsStr::new(&wanted).as_bytes())
    })
    .collect()
}

/// The environment of a process. One that has ended and was not buried has none any more; one that is just becoming
/// another program has none yet, nor a command line, and is looked at again, unless it stays so.
fn environment(pid: Pid) -> Vec<u8> {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    for _ in 0..10_000 {
        let environment = read("environ");
        let is_alive = std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
        if !environment.is_empty() || !is_alive || !read("cmdline").is_empty() {
            return environment;
        }
        std::thread::yield_now();
    }
    Vec::new()
}

pub fn describe(pid: Pid) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&line).replace('\0', " "))
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<Pid> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Something to wait on for the end of each process.
pub fn watch(pids: &[Pid]) -> Vec<OwnedFd> {
    pids.iter().filter_map(|pid| pidfd_open(*pid, PidfdFlags::empty()).ok()).collect()
}

/// Waits until so many of them have ended, and gives the others.
pub fn wait_for_some_ends(mut watches: Vec<OwnedFd>, count: usize) -> Vec<OwnedFd> {
    let left = watches.len() - count;
    while watches.len() > left {
        let limit = Timespec { tv_sec: HANG.as_secs().cast_signed(), tv_nsec: 0 };
        let mut fds: Vec<_> = watches.iter().map(|watch| PollFd::new(watch, PollFlags::IN)).collect();
        assert_ne!(poll(&mut fds, Some(&limit)).unwrap(), 0, "too few processes ended");
        let mut ended = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
        watches.retain(|_| !ended.next().unwrap());
    }
    assert_eq!(watches.len(), left, "too many processes ended");
    watches
}

/// Waits until all of them have ended.
pub fn wait_for_ends(watches: &[OwnedFd]) {
    for watch in watches {
        let limit = Timespec { tv_sec: HANG.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&limit)).unwrap();
        assert_eq!(ready, 1, "a process did not end");
    }
}
