//! Folders in which MCP servers cache what they download. Takes the name of a cache, gives a folder that any later session
//! finds again; one that no session has used for a month is removed.
//!
//! A server may write in its folder, so nothing in it is read or followed here. Its lock is beside it: a process holds it
//! for as long as it may use the folder, and its time says when that was last.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use camino::Utf8PathBuf;
use decurion_protocol::id::is_name;

use crate::folder::{DirHandle, How};

const FOLDER: &str = "mcp-caches";
const LOCK: &str = ".lock";
/// How long a cache stays that is not used.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// The caches in a state folder.
#[derive(Debug)]
pub struct ServerCacheFolder {
    home: Utf8PathBuf,
    /// The locks of those that this process uses.
    held: Mutex<HashMap<String, File>>,
}

impl ServerCacheFolder {
    /// Those of this state folder.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { home: home.into(), held: Mutex::default() }
    }

    /// The folder of this name, for its owner alone. It is not removed while this value lives.
    pub fn folder(&self, name: &str) -> io::Result<Utf8PathBuf> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a cache"));
        }
        let caches = DirHandle::root(&self.home, true)?.sub(FOLDER, true)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.contains_key(name) {
            let mut lock = caches.file(&format!("{name}{LOCK}"), How::Append)?;
            lock.lock_shared()?;
            // Changes its time, which is the clock for all of them.
            lock.set_len(0)?;
            lock.write_all(b"\n")?;
            if held.is_empty() {
                remove_unused(&caches, lock.metadata()?.modified()?);
            }
            held.insert(name.to_owned(), lock);
        }
        Ok(caches.sub(name, true)?.path().to_owned())
    }
}

/// Removes what was not used lately, and is not in use. What cannot be removed is tried again another time.
fn remove_unused(caches: &DirHandle, now: SystemTime) {
    for file in caches.names().unwrap_or_default() {
        let Some(name) = file.strip_suffix(LOCK) else { continue };
        let Ok(lock) = caches.file(&file, How::AppendExisting) else { continue };
        let used = lock.metadata().and_then(|about| about.modified()).unwrap_or(now);
        let is_old = now.duration_since(used).is_ok_and(|age| age > KEPT);
        if is_old && lock.try_lock().is_ok() {
            let removed = std::fs::remove_dir_all(caches.path().join(name));
            if removed.is_ok() || !caches.has(name) {
                let _ = caches.remove(&file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn caches_are_found_again_and_unused_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(folder.path().join("home")).unwrap();
        let first = ServerCacheFolder::new(&home);
        let (one, two) = (first.folder("aa").unwrap(), first.folder("bb").unwrap());
        assert_eq!(std::fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(one.join("x"), "kept").unwrap();
        assert_eq!(first.folder("aa").unwrap(), one);
        assert!(first.folder("../aa").is_err());
        let age = |hash: &str| {
            let lock =
                File::options().write(true).open(home.join(FOLDER).join(format!("{hash}.lock"))).unwrap();
            lock.set_modified(lock.metadata().unwrap().modified().unwrap() - KEPT - KEPT).unwrap();
        };
        age("aa");
        age("bb");
        // In use, however long ago that began.
        ServerCacheFolder::new(&home).folder("cc").unwrap();
        assert!(one.join("x").exists() && two.exists());
        drop(first);
        let next = ServerCacheFolder::new(&home);
        next.folder("bb").unwrap();
        assert!(!one.exists() && two.exists(), "the one that is used again stays");
        assert!(!home.join(FOLDER).join("aa.lock").exists());
    }
}
