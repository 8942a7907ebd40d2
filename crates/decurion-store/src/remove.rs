//! Sessions that a person removes. Takes the paths of one, removes its files; the transcript goes after everything beside it,
//! so that a removal that is cut off leaves a session that is still listed and can be removed again.

use std::io;

use jiff::Timestamp;
use rustix::fs::FileType;

use crate::folder::DirHandle;
use crate::layout::LOCK;
use crate::lock::{Lock, LockError};
use crate::read::project_folder;
use crate::{OpenError, SessionPaths};

/// Removes every file of a session that no other process has open.
pub(crate) fn session(paths: &SessionPaths) -> Result<(), OpenError> {
    let failed = |source| OpenError::Storage { path: paths.folder().into_string(), source };
    let project = project_folder(paths).map_err(failed)?;
    let own = paths.session().to_string();
    let folder = project.sub(&own, true).map_err(failed)?;
    let lock = match Lock::take(&folder, Timestamp::UNIX_EPOCH) {
        Ok(lock) => lock,
        Err(LockError::Held(holder)) => return Err(OpenError::Held { session: paths.session(), holder }),
        Err(LockError::Io(error)) => return Err(failed(error)),
        Err(LockError::Unsupported) => {
            return Err(OpenError::NoLocks { path: paths.folder().into_string() });
        }
    };
    let removed = || {
        clear(&folder, &[LOCK])?;
        project.remove(&paths.transcript_name())?;
        folder.remove(LOCK)
    };
    removed().map_err(failed)?;
    drop(lock);
    project.remove_folder(&own).map_err(failed)
}

/// Removes everything in a folder but these names. No link is followed.
fn clear(folder: &DirHandle, but: &[&str]) -> io::Result<()> {
    for name in folder.names()?.iter().filter(|name| !but.contains(&name.as_str())) {
        if FileType::from_raw_mode(folder.stat(name)?.st_mode) == FileType::Directory {
            clear(&folder.sub(name, false)?, &[])?;
            folder.remove_folder(name)?;
        } else {
            folder.remove(name)?;
        }
    }
    Ok(())
}
