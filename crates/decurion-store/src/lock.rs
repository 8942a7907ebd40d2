//! One writer per session. Takes the session's folder, gives a lock that holds as long as the process lives
//! and needs no cleaning up after it, or tells who has it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::folder::{DirHandle, How};
use crate::layout::LOCK;

/// Who writes a session, by its own word. Fields that could not be read are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The process; 0 when it is not known.
    pub pid: u32,
    pub host: String,
    pub since: Option<Timestamp>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another process");
        }
        write!(f, "process {} on {}", self.pid, self.host)?;
        match self.since {
            Some(since) => write!(f, " since {since:.0}"),
            None => Ok(()),
        }
    }
}

/// The lock, held until it is dropped or the process is gone, however it went.
pub(crate) struct Lock {
    file: File,
}

/// Why there is no lock.
pub(crate) enum LockError {
    /// Someone else has it.
    Held(Holder),
    /// The file system has none to give.
    Unsupported,
    /// The file could not be used at all.
    Io(io::Error),
}

/// The longest note a holder leaves.
const NOTE_LIMIT: u64 = 4096;
/// How often a lock file that vanished under us is looked for again.
const TRIES: usize = 16;
/// How often and after which pause a held lock is tried again: a mere reader is gone by then.
pub(crate) const PROBES: usize = 3;
pub(crate) const BETWEEN_PROBES: Duration = Duration::from_millis(2);
/// How often a note that cannot be right is looked at again.
const LOOKS: usize = 50;
/// How long between two looks.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

impl Lock {
    /// Takes the lock or says at once why not.
    pub(crate) fn take(session: &DirHandle, now: Timestamp) -> Result<Self, LockError> {
        let mut probed = 0;
        for _ in 0..TRIES {
            let file = session.file(LOCK, How::Append).map_err(LockError::Io)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // Someone who only looks whether it is held (`lease.rs`) has it for a moment.
                Err(Errno::WOULDBLOCK) if probed < PROBES => {
                    probed += 1;
                    std::thread::sleep(BETWEEN_PROBES);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held(holder(session, LOCK))),
                Err(Errno::INTR) => continue,
                Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Err(LockError::Unsupported),
                Err(error) => return Err(LockError::Io(error.into())),
            }
            if is_still(session, &file).map_err(LockError::Io)? {
                leave_note(&file, now);
                return Ok(Self { file });
            }
        }
        Err(LockError::Io(io::Error::other("the lock file keeps being replaced")))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it is not enough: a process that is being started by another thread has a copy until its program begins.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether the name still means the file we locked; if not, no one else will see our lock.
fn is_still(session: &DirHandle, file: &File) -> io::Result<bool> {
    is_named(session, LOCK, file)
}

/// Whether a name in a folder means this file.
pub(crate) fn is_named(folder: &DirHandle, name: &str, file: &File) -> io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    Ok(folder.stat(name).is_ok_and(|named| (named.st_ino, named.st_dev) == (ours.st_ino, ours.st_dev)))
}

/// Says who we are. A note that cannot be written costs the second comer only a name.
pub(crate) fn leave_note(mut file: &File, now: Timestamp) {
    let holder = Holder {
        pid: rustix::process::getpid().as_raw_nonzero().get().unsigned_abs(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        since: Some(now),
    };
    let note = serde_json::to_vec(&holder).unwrap_or_default();
    if let Err(error) = file.set_len(0).and_then(|()| file.write_all(&note)) {
        tracing::debug!(%error, "the holder's note could not be written");
    }
}

/// The holder of the lock. Its note comes a moment after the lock, and until then there is none, or that of an earlier
/// holder; so an implausible note is read again for a while.
pub(crate) fn holder(folder: &DirHandle, name: &str) -> Holder {
    let mut note = read_note(folder, name);
    for _ in 0..LOOKS {
        if is_alive(&note) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        note = read_note(folder, name);
    }
    note
}

/// Whether a note may be that of a living process; one of another machine always may.
fn is_alive(note: &Holder) -> bool {
    let Some(pid) = i32::try_from(note.pid).ok().and_then(Pid::from_raw) else { return false };
    let here = rustix::system::uname().nodename().to_string_lossy() == note.host;
    !here || rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}

fn read_note(folder: &DirHandle, name: &str) -> Holder {
    let note = folder.read(name, NOTE_LIMIT).unwrap_or_default();
    serde_json::from_slice(&note).unwrap_or_default()
}

/// Whether the lock in this file is held; looking leaves it as it is. A file that cannot be read counts as free only if
/// it does not exist.
pub(crate) fn is_held(folder: &DirHandle, name: &str) -> bool {
    let file = match folder.file(name, How::Read) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return false,
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;

    #[test]
    fn lock_is_free_at_once_although_a_process_being_started_has_a_copy_of_its_file() {
        let state = tempfile::tempdir().unwrap();
        let folder = DirHandle::root(Utf8Path::from_path(state.path()).unwrap(), false).unwrap();
        let take = || Lock::take(&folder, Timestamp::UNIX_EPOCH);
        let lock = take().ok().unwrap();
        let _copy = lock.file.try_clone().unwrap();
        assert!(matches!(take(), Err(LockError::Held(_))));
        drop(lock);
        assert!(take().is_ok());
    }
}
