//! What a command may use. Takes the bounds and, where there are control groups, the counters of the reaper's own; tells when
//! a command went beyond a bound. Without groups it adds up the command's processes from time to time, so that commands
//! that end soon cost nothing.

use std::io::{Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Pid, getpid};

use super::groups::{self, ControlGroup};
use super::sweep;
use crate::launch::Limit;
use crate::sys;

/// When a command is looked at for the first time, and how long at most it is left alone after that.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(250);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How many processes and threads a command may have.
const PROCESSES: u32 = 4096;
/// The numbers of the counters in a reaper, below those that it closes.
const MEMORY_NUMBER: i32 = 6;
const PROCESSES_NUMBER: i32 = 7;
const BOUND_NUMBER: i32 = 8;
const LIST_NUMBER: i32 = 9;

/// What the commands of a session may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionBounds {
    /// In bytes. With control groups it is what all commands of the session have together, else what each has.
    pub memory: u64,
    pub processes: u32,
}

impl SessionBounds {
    /// Three quarters of the memory that this machine, or this container, has.
    pub fn of_machine() -> Self {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = number_after(&text, "MemTotal:").map_or(u64::MAX, |kibibytes| kibibytes << 10);
        let total = groups::memory_allowed().map_or(total, |allowed| allowed.min(total));
        Self { memory: total / 4 * 3, processes: PROCESSES }
    }
}

/// How many processes and threads the user of this process may have so that commands are bounded without control
/// groups: those that run now, and some more than a command may have, so that a command over its bound can be told from
/// others. None for root, whom the kernel does not bound this way.
pub(super) fn user_s_processes(bounds: SessionBounds) -> Option<u64> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return None;
    }
    let threads = |pid: Pid| {
        let wanted = StatxFlags::UID | StatxFlags::NLINK;
        let about = statx(CWD, format!("/proc/{pid}/task"), AtFlags::empty(), wanted).ok()?;
        (about.stx_uid == user.as_raw()).then_some(u64::from(about.stx_nlink.saturating_sub(2)))
    };
    let running: u64 = sweep::all_others().into_iter().filter_map(threads).sum();
    let processes = u64::from(bounds.processes);
    Some(running + processes + processes / 4 + 64)
}

/// The number behind a name in a list of the kernel.
pub(super) fn number_after(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', '\t']));
    line?.split_ascii_whitespace().next()?.parse().ok()
}

/// Watches the commands of one reaper.
pub(super) struct Meter {
    bounds: SessionBounds,
    counters: Option<Counters>,
}

struct Counters {
    memory: OwnedFd,
    processes: OwnedFd,
    /// Where the bound on processes is set.
    bound: OwnedFd,
    /// The list of the group's processes.
    list: OwnedFd,
    /// What they said when the latest command ended.
    seen: [u64; 2],
    /// Whether processes are refused because the command is to end.
    stopped: bool,
}

impl Meter {
    /// For a reaper that was born in this group, before it closes what it has from the guard.
    pub fn new(bounds: SessionBounds, group: Option<&ControlGroup>) -> Self {
        let place = |fd: Option<&OwnedFd>, number| sys::place_owned(fd?, number).ok();
        let counters = group.and_then(|group| {
            Some(Counters {
                memory: place(group.memory.as_ref(), MEMORY_NUMBER)?,
                processes: place(group.processes.as_ref(), PROCESSES_NUMBER)?,
                bound: place(group.bound.as_ref(), BOUND_NUMBER)?,
                list: place(group.list.as_ref(), LIST_NUMBER)?,
                seen: [0; 2],
                stopped: false,
            })
        });
        Self { bounds, counters }
    }

    /// Lets nothing of a command that is to end make new processes. The reaper ends after it.
    pub fn stop_forks(&mut self) {
        if let Some(counters) = &mut self.counters {
            counters.stopped = true;
            groups::stop_forks(&counters.bound);
        }
    }

    /// Kills all processes of the group but the reaper, and the guard, which may not have left it yet. Where processes
    /// cannot multiply any more this ends them in one step, without a look at each. Gives how many were left.
    pub fn kill_group(&self) -> usize {
        let Some(counters) = &self.counters else { return 0 };
        let spared = [Some(getpid()), rustix::process::getppid()];
        let Ok(list) = counters.list.try_clone() else { return 0 };
        let (mut list, mut text) = (std::fs::File::from(list), String::new());
        // What was read before a failure counts too.
        let _ = list.rewind().and_then(|()| list.read_to_string(&mut text));
        let listed = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?));
        let others: Vec<Pid> = listed.filter(|pid| !spared.contains(&Some(*pid))).collect();
        for pid in &others {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        others.len()
    }

    /// Whether a command that runs is beyond a bound. The kernel itself ends what takes too much memory of a group.
    pub fn look(&mut self) -> Option<Limit> {
        match &self.counters {
            Some(counters) => {
                let [_, refused] = counters.since(counters.read());
                (refused > 0).then_some(Limit::Processes(self.bounds.processes))
            }
            None => self.add_up(),
        }
    }

    /// Whether a command that has ended met a bound. Called once for each command, as the counters are those of all.
    pub fn at_end(&mut self) -> Option<Limit> {
        let counters = self.counters.as_mut()?;
        let found = counters.read();
        let [killed, refused] = counters.since(found);
        counters.seen = found;
        if killed > 0 {
            Some(self.memory())
        } else {
            (refused > 0).then_some(Limit::Processes(self.bounds.processes))
        }
    }

    fn memory(&self) -> Limit {
        Limit::Memory { mebibytes: u32::try_from(self.bounds.memory >> 20).unwrap_or(u32::MAX) }
    }

    /// Adds up the processes below this one.
    fn add_up(&self) -> Option<Limit> {
        // Where the own processes cannot be seen, others could be taken for them.
        let own = std::fs::read_link("/proc/self").ok()?;
        if own.to_str() != Some(&getpid().to_string()) {
            return None;
        }
        let most = usize::try_from(self.bounds.processes).unwrap_or(usize::MAX);
        let found = if getpid() == Pid::INIT { sweep::all_others() } else { descendants(most) };
        if found.len() > most {
            return Some(Limit::Processes(self.bounds.processes));
        }
        // What processes share is counted for each of them, unless that would decide.
        let is_beyond = |used: u64| used > self.bounds.memory;
        let resident: u64 = found.iter().filter_map(|pid| resident(*pid)).sum();
        let beyond =
            is_beyond(resident) && is_beyond(found.iter().filter_map(|pid| proportional(*pid)).sum());
        beyond.then(|| self.memory())
    }
}

/// The processes below this one; those beyond that number are not looked for.
fn descendants(most: usize) -> Vec<Pid> {
    let mut found = sweep::children(getpid());
    let mut at = 0;
    while let Some(&pid) = found.get(at).filter(|_| found.len() <= most) {
        found.extend(sweep::children(pid));
        at += 1;
    }
    found
}

impl Counters {
    fn read(&self) -> [u64; 2] {
        [read(&self.memory, "oom_kill"), read(&self.processes, "max")]
    }

    /// How much of this the command has caused.
    fn since(&self, found: [u64; 2]) -> [u64; 2] {
        let [killed, refused] = [0, 1].map(|at| found[at].saturating_sub(self.seen[at]));
        [killed, if self.stopped { 0 } else { refused }]
    }
}

fn read(counter: &OwnedFd, name: &str) -> u64 {
    let mut bytes = [0_u8; 512];
    let length = rustix::io::pread(counter, &mut bytes, 0).unwrap_or(0);
    std::str::from_utf8(&bytes[..length]).ok().and_then(|text| number_after(text, name)).unwrap_or(0)
}

fn resident(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    number_after(&text, "VmRSS:").map(|kibibytes| kibibytes << 10)
}

/// The memory of a process, with its part of what it shares; all of that where the system does not tell.
fn proportional(pid: Pid) -> Option<u64> {
    let told = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    told.and_then(|text| number_after(&text, "Pss:"))
        .map(|kibibytes| kibibytes << 10)
        .or_else(|| resident(pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_behind_the_whole_name() {
        let text = "low 0\noom 4\noom_kill 3\noom_group_kill 9\n";
        assert_eq!(number_after(text, "oom_kill"), Some(3));
        assert_eq!(number_after(text, "oom"), Some(4));
        assert_eq!(number_after("MemTotal:       16 kB\n", "MemTotal:"), Some(16));
        assert_eq!(number_after(text, "max"), None);
    }
}
