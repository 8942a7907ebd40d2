//! Where the process at the other end of a socket comes from. Takes the socket; says whether the process is a
//! descendant of this one, at any depth.
//!
//! A process can leave its group, its session and its parent, but not its ancestors: reapers adopt all processes that a
//! command leaves, and they are ours. A process that another program starts for it (such as a user's own daemon) is
//! that program's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::sys;

/// How often a line of ancestors is looked at that changes meanwhile.
const TRIES: usize = 8;
/// No line of ancestors is longer.
const LONGEST: usize = 10_000;

/// Whether the process that connected to a socket is a descendant of this one, or that is unknown: it has ended, or
/// runs where we cannot see it.
pub fn is_from_below(socket: impl AsFd) -> bool {
    let Ok(Some(peer)) = sys::peer(&socket) else { return true };
    // Kernels before 6.5 do not say which process it was, only which number it had.
    let process = match sys::peer_process(&socket) {
        Ok(process) => Some(process),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
        Err(_) => return true,
    };
    let below = (0..TRIES).find_map(|_| stands_below(peer, getpid()));
    // Its number may be another's by now, whose ancestors we have looked at then.
    below.unwrap_or(true) || process.as_ref().is_some_and(has_ended)
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

/// Whether a process has an ancestor; none where its ancestors changed while we looked.
fn stands_below(process: Pid, ancestor: Pid) -> Option<bool> {
    let mut line = vec![process];
    while line.len() < LONGEST {
        let last = *line.last()?;
        match parent_of(last) {
            Ok(Some(parent)) if parent == ancestor => return Some(true),
            Ok(Some(parent)) => line.push(parent),
            Ok(None) => break,
            Err(Unseen::Others) if line.len() > 1 => break,
            Err(_) => return None,
        }
    }
    // A parent that ended meanwhile left its child to another, and perhaps its number too. One that is still the parent
    // was so all the time.
    let same = line.windows(2).all(|pair| parent_of(pair[0]).is_ok_and(|parent| parent == Some(pair[1])));
    same.then_some(false)
}

/// Why a process cannot be looked at.
enum Unseen {
    Gone,
    /// It is another user's, and this system hides those.
    Others,
}

/// The parent of a process; none for one that has none here.
fn parent_of(process: Pid) -> Result<Option<Pid>, Unseen> {
    let hidden = |_: io::Error| match test_kill_process(process) {
        Err(Errno::PERM) => Unseen::Others,
        _ => Unseen::Gone,
    };
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).map_err(hidden)?;
    // The name, in parentheses, may contain anything; the fields after it are state and parent.
    let fields = stat.rsplit_once(')').ok_or(Unseen::Gone)?.1;
    let parent = fields.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    parent.map(Pid::from_raw).ok_or(Unseen::Gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a child of the test itself, ended by it")]
    fn a_line_of_ancestors_is_followed_to_its_end() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert_eq!(stands_below(pid, getpid()), Some(true));
        assert_eq!(stands_below(getpid(), pid), Some(false));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(stands_below(pid, getpid()), None, "it has ended");
    }

    #[test]
    fn we_are_not_below_ourselves() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!is_from_below(&ours));
    }

    #[test]
    fn what_is_no_such_socket_is_from_below() {
        assert!(is_from_below(std::fs::File::open("/dev/null").unwrap()));
    }
}
