//! One writer per session. Takes the session's folder, gives a lock that holds as long as the process lives
//! and needs no cleaning up after it, or tells who has it.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};

use jiff::Timestamp;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::folder::{Folder, How};
use crate::layout::LOCK;

/// Who writes a session, by its own word. Fields that could not be read are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The process; 0 when it is not known.
    pub pid: u32,
    /// The machine.
    pub host: String,
    /// Since when.
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
    _file: File,
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

impl Lock {
    /// Takes the lock or says at once why not.
    pub(crate) fn take(session: &Folder, now: Timestamp) -> Result<Self, LockError> {
        for _ in 0..TRIES {
            let file = session.file(LOCK, How::Append).map_err(LockError::Io)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held(read_note(session))),
                Err(Errno::INTR) => continue,
                Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Err(LockError::Unsupported),
                Err(error) => return Err(LockError::Io(error.into())),
            }
            if is_still(session, &file).map_err(LockError::Io)? {
                leave_note(&file, now);
                return Ok(Self { _file: file });
            }
        }
        Err(LockError::Io(io::Error::other("the lock file keeps being replaced")))
    }
}

/// Whether the name still means the file we locked; if not, the lock is on something nobody else will look at.
fn is_still(session: &Folder, file: &File) -> io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    Ok(session.stat(LOCK).is_ok_and(|named| (named.st_ino, named.st_dev) == (ours.st_ino, ours.st_dev)))
}

/// Says who we are. A note that cannot be written costs the second comer only a name.
fn leave_note(mut file: &File, now: Timestamp) {
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

fn read_note(session: &Folder) -> Holder {
    let note = session.read(LOCK, NOTE_LIMIT).unwrap_or_default();
    serde_json::from_slice(&note).unwrap_or_default()
}
