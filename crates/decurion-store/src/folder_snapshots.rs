//! What was in a working directory before commands of a session wrote in it. Takes it from the session, and gives it to
//! the next one in that directory if the session was killed, so that it can look at what these commands left.
//!
//! A session has one small file per directory, for its owner alone, which it locks for as long as it lives and removes
//! when it has looked itself. A file that is not locked is that of a killed session.

use std::fs::File;
use std::io;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::folder::{DirHandle, How, random_word};
use crate::layout::slug;

const FOLDER: &str = "watched";
/// The largest that is kept and read.
const LIMIT: u64 = 64 << 20;

/// What is kept of this kind in a state folder.
#[derive(Clone, Debug)]
pub struct WatchedFolders {
    home: Utf8PathBuf,
}

/// What was in a directory, locked until it is dropped or the process is gone.
#[derive(Debug)]
pub struct WatchedFolder {
    folder: DirHandle,
    name: String,
    _locked: File,
}

/// Others wait before they look at what killed sessions left in a working directory.
#[derive(Debug)]
pub struct Looking {
    _locked: DirHandle,
}

impl WatchedFolder {
    /// The look was made: nothing is kept of it.
    pub fn done(self) {
        // Still locked, so that no other session takes it for one of a killed session.
        let _ = self.folder.remove(&self.name);
    }
}

impl WatchedFolders {
    /// What is kept in this state folder.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { home: home.into() }
    }

    /// Keeps what was in a working directory.
    pub fn keep(&self, directory: &Utf8Path, bytes: &[u8]) -> io::Result<WatchedFolder> {
        if bytes.len() as u64 > LIMIT {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "there is too much in the directory"));
        }
        let folder = self.folder(directory, true)?;
        folder.clear_temporaries();
        let name = random_word();
        // It is locked before it has this name.
        let locked = folder.replace(&name, bytes)?;
        Ok(WatchedFolder { folder, name, _locked: locked })
    }

    /// Waits until no other session looks at what killed sessions left in a working directory, but not for ever: the other
    /// one may be stopped. Until what this gives is dropped, others wait in the same way.
    pub fn wait_for_look(&self, directory: &Utf8Path) -> io::Result<Looking> {
        // Half a minute.
        const TRIES: usize = 1_500;
        const PAUSE: Duration = Duration::from_millis(20);
        let folder = self.folder(directory, false)?;
        for _ in 0..TRIES {
            if folder.try_lock()? {
                return Ok(Looking { _locked: folder });
            }
            std::thread::sleep(PAUSE);
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// What killed sessions have kept of a working directory, or of another one whose path looks the same.
    pub fn left(&self, directory: &Utf8Path) -> Vec<(Vec<u8>, WatchedFolder)> {
        let Ok(folder) = self.folder(directory, false) else { return Vec::new() };
        let names = folder.names().unwrap_or_default();
        // Those that begin with a dot are being written.
        let names = names.into_iter().filter(|name| !name.starts_with('.'));
        let left = names.filter_map(|name| {
            let locked = folder.file(&name, How::Read).ok()?;
            locked.try_lock().ok()?;
            let bytes = folder.read(&name, LIMIT).ok()?;
            Some((bytes, WatchedFolder { folder: folder.twin().ok()?, name, _locked: locked }))
        });
        left.collect()
    }

    /// Forgets records of killed sessions older than this, if no later session can use them.
    pub fn forget(&self, age: Duration, is_useless: &dyn Fn(&[u8]) -> bool) {
        let all = DirHandle::root(&self.home, false).and_then(|root| root.sub(FOLDER, false));
        let Ok(all) = all else { return };
        let directories = self.home.join(FOLDER).read_dir_utf8().into_iter().flatten().flatten();
        for directory in directories {
            let Ok(folder) = all.sub(directory.file_name(), false) else { continue };
            for name in folder.names().unwrap_or_default().iter().filter(|name| !name.starts_with('.')) {
                let Ok(locked) = folder.file(name, How::Read) else { continue };
                let modified = locked.metadata().and_then(|found| found.modified());
                let is_old = modified.is_ok_and(|at| at.elapsed().is_ok_and(|passed| passed > age));
                // One that is locked is that of a living session.
                if is_old
                    && locked.try_lock().is_ok()
                    && folder.read(name, LIMIT).is_ok_and(|bytes| is_useless(&bytes))
                {
                    let _ = folder.remove(name);
                }
            }
            // It is removed where it is empty.
            let _ = std::fs::remove_dir(directory.path());
        }
    }

    fn folder(&self, directory: &Utf8Path, create: bool) -> io::Result<DirHandle> {
        DirHandle::root(&self.home, create)?.sub(FOLDER, create)?.sub(&slug(directory.as_str()), create)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn old_records_of_directories_that_are_gone_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(folder.path().join("home")).unwrap();
        let all = WatchedFolders::new(&home);
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        let keep = |directory: &str, bytes: &[u8], is_old: bool| {
            let kept = all.keep(Utf8Path::new(directory), bytes).unwrap();
            if is_old {
                let file = home.join(FOLDER).join(slug(directory)).join(&kept.name);
                std::fs::File::options().append(true).open(file).unwrap().set_modified(long_ago).unwrap();
            }
            kept
        };
        let living = keep("/living", b"gone", true);
        for (directory, bytes, is_old) in
            [("/gone", b"gone", true), ("/new", b"gone", false), ("/there", b"used", true)]
        {
            drop(keep(directory, bytes, is_old));
        }
        all.forget(Duration::from_secs(50), &|bytes| bytes == b"gone");
        let left = |directory: &str| all.left(Utf8Path::new(directory)).len();
        assert_eq!(["/gone", "/new", "/there"].map(left), [0, 1, 1]);
        assert!(!home.join(FOLDER).join(slug("/gone")).exists());
        drop(living);
        assert_eq!(left("/living"), 1, "it was in use");
    }

    #[test]
    fn only_what_a_killed_session_kept_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let home = Utf8PathBuf::from_path_buf(folder.path().join("home")).unwrap();
        let all = WatchedFolders::new(&home);
        let directory = Utf8Path::new("/project");
        let living = all.keep(directory, b"living").unwrap();
        let ended = all.keep(directory, b"ended").unwrap();
        let killed = all.keep(directory, b"killed").unwrap();
        let other = all.keep(Utf8Path::new("/other"), b"other").unwrap();
        let file = home.join(FOLDER).join(slug("/project")).join(&killed.name);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        ended.done();
        drop((killed, other));
        let mut left = all.left(directory);
        let (bytes, found) = left.pop().unwrap();
        assert_eq!((bytes.as_slice(), left.len()), (b"killed".as_slice(), 0));
        // Another session looks already.
        assert!(all.left(directory).is_empty());
        found.done();
        drop(living);
        assert_eq!(all.left(directory).pop().unwrap().0, b"living");
        assert!(!file.exists());
    }

    #[test]
    fn one_look_waits_for_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let all = WatchedFolders::new(Utf8PathBuf::from_path_buf(folder.path().join("home")).unwrap());
        let directory = Utf8Path::new("/project");
        // Nothing was left there, so that nothing is looked at.
        assert!(all.wait_for_look(directory).is_err());
        drop(all.keep(directory, b"killed").unwrap());
        let looking = all.wait_for_look(directory).unwrap();
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            assert!(!all.folder(directory, false).unwrap().try_lock().unwrap());
            let (all, second) = (&all, sender.clone());
            scope.spawn(move || {
                let _looking = all.wait_for_look(directory).unwrap();
                second.send(2).unwrap();
            });
            sender.send(1).unwrap();
            drop(looking);
        });
        assert_eq!(ended.try_iter().collect::<Vec<_>>(), [1, 2]);
    }
}
