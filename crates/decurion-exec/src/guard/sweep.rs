//! Ends everything below a process. Takes the processes to spare, gives those that were killed.
//!
//! A process can hide from its group (setsid), from its parent (forking twice) and from a list (forking while one
//! looks), but not from the nearest subreaper: its children become ours when it ends. So: kill all that can be seen,
//! from the top down, and look again until there are none.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

use crate::sys;

/// How long to wait at first, and at most, before looking again at what does not end.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(1);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// More than this many in one look are left for the next one.
const MOST: usize = 65_536;

/// Kills every descendant of the calling process that is neither in `spared` nor below one of them.
pub(crate) fn strike(spared: &[Pid]) -> Vec<Pid> {
    let own_group = sys::group(None).ok().flatten();
    let mut groups: Vec<Pid> = Vec::new();
    let mut found: Vec<Pid> = children(getpid());
    found.retain(|pid| !spared.contains(pid));
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        // First its children, while it still has them; then the process, before it can make more.
        if found.len() < MOST {
            found.extend(children(pid));
        }
        // A whole group is struck in one step that no fork can slip through. A process may have joined
        // our own group, but no other group outside: those are in other sessions.
        if let Ok(Some(group)) = sys::group(Some(pid))
            && Some(group) != own_group
            && !groups.contains(&group)
        {
            groups.push(group);
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = kill_process(pid, Signal::KILL);
        at += 1;
    }
    found
}

/// Waits after a kill until a process ended, or for `pause`; gives the next pause. An ending process sends a signal,
/// but a process that becomes our child does not, and one that cannot be ended must not keep us busy.
pub(crate) fn rest(signals: &OwnedFd, pause: Duration) -> Duration {
    let waited = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&timespec(pause)));
    while sys::next_signal(signals).is_some() {}
    if waited == Ok(0) { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: duration.subsec_nanos().into() }
}

/// The children of all threads of a process.
pub(crate) fn children(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        match std::fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(parse)),
            // A kernel built without these lists still has parents in every process's status.
            Err(_) if task.path().exists() => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    found
}

fn children_by_parent(parent: Pid) -> Vec<Pid> {
    all_others().into_iter().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// All processes that can be seen but this one.
pub(crate) fn all_others() -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbered = processes.flatten().filter_map(|entry| parse(entry.file_name().to_str()?));
    numbered.filter(|pid| *pid != getpid()).collect()
}

/// A time since the system was started, in hundredths of a second, which is the unit of `/proc`.
pub(crate) type Ticks = u64;

pub(crate) fn ticks_now() -> Option<Ticks> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    uptime.split_ascii_whitespace().next()?.replace('.', "").parse().ok()
}

/// The parent of a process.
pub(crate) fn parent_of(pid: Pid) -> Option<Pid> {
    Stat::read(pid)?.field(4).and_then(parse)
}

/// When a process began.
pub(crate) fn began(pid: Pid) -> Option<Ticks> {
    Stat::read(pid)?.field(22)?.parse().ok()
}

/// Whether a process has ended or is about to: what it had open may be closed already, and its children not yet
/// another's.
pub(crate) fn is_ending(pid: Pid) -> bool {
    const EXITING: u32 = 4;
    let Some(stat) = Stat::read(pid) else { return true };
    let flags: Option<u32> = stat.field(9).and_then(|flags| flags.parse().ok());
    matches!(stat.field(3), None | Some("Z" | "X")) || flags.is_none_or(|flags| flags & EXITING != 0)
}

/// What the system says about a process, in `/proc/PID/stat`.
struct Stat(String);

impl Stat {
    fn read(pid: Pid) -> Option<Self> {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().map(Self)
    }

    /// A field by its number in the manual. The name, the second, is in parentheses and may contain anything.
    fn field(&self, number: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_ascii_whitespace().nth(number - 3)
    }
}

fn parse(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "children of the test itself, ended by it")]
    fn both_ways_to_find_children_agree() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(children(getpid()).contains(&pid));
        assert!(children_by_parent(getpid()).contains(&pid));
        assert_eq!(parent_of(pid), Some(getpid()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!children(getpid()).contains(&pid));
    }
}
