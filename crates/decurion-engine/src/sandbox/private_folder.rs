//! A private folder for temporary files. Takes the folder to make it in; it is removed when it is dropped, or by the next
//! process if this one is killed.
//!
//! Commands can do what they like with the contents, also while they are removed, so nothing here relies on them: whether
//! a folder is in use is told by a lock on the folder itself, and what is below is reached from open folders alone. A path
//! would be followed through links that a command puts there meanwhile.

use std::ffi::CString;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, renameat, unlinkat};

const PREFIX: &str = "decurion-sandbox-";
/// How often it is tried: another process may remove a folder between its making and its locking.
const TRIES: usize = 8;
/// How often a folder is emptied again because something in it lay too deeply.
const MOST_ROUNDS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct PrivateFolder {
    path: Utf8PathBuf,
    /// Locked for as long as the folder is used.
    _lock: File,
}

impl PrivateFolder {
    pub fn make(parent: &Utf8Path) -> io::Result<Self> {
        for _ in 0..TRIES {
            let path = parent.join(format!("{PREFIX}{}", uuid::Uuid::new_v4().simple()));
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            let lock = open_folder(&path).and_then(|lock| lock.lock().map(|()| lock));
            let Ok(lock) = lock else { continue };
            let own = lock.metadata()?;
            if path.symlink_metadata().is_ok_and(|found| found.ino() == own.ino()) {
                sweep(parent, &own);
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::Error::other("another process removes it"))
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes what processes of the same user that were killed have left.
fn sweep(parent: &Utf8Path, own: &Metadata) {
    let entries = parent.read_dir_utf8().into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().starts_with(PREFIX)) {
        let path = entry.path();
        let Ok(folder) = open_below(CWD, path.as_std_path()) else { continue };
        let found = File::from(folder).metadata();
        let is_ours = |found: Metadata| found.uid() == own.uid() && found.ino() != own.ino();
        if !found.is_ok_and(is_ours) {
            continue;
        }
        let Ok(lock) = open_folder(path) else { continue };
        if lock.try_lock().is_ok() {
            // Locked until it is gone: a process that has just made it waits in `make`, and makes another.
            remove(path);
        }
    }
}

/// Opens a folder to read it, and nothing else: a named pipe would block, and a link could lead anywhere.
fn open_folder(path: &Utf8Path) -> io::Result<File> {
    Ok(readable(&open_below(CWD, path.as_std_path())?)?.into())
}

/// A handle on a folder, whatever its mode is. A link is none.
fn open_below(folder: impl AsFd, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

/// The same folder to be read and changed; one that a command closed is opened.
fn readable(folder: &OwnedFd) -> io::Result<OwnedFd> {
    // The name in `/proc` leads to this very folder. Fails for a folder of another user, which root can open all the same.
    let own_name = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let _ = rustix::fs::chmod(own_name, Mode::RWXU);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(folder, c".", flags, Mode::empty())?)
}

/// Removes a folder with all in it, also what a command nested too deeply, or made unreadable.
fn remove(root: &Utf8Path) {
    let Ok(folder) = open_folder(root) else { return };
    let folder = OwnedFd::from(folder);
    // What was moved up is there for another round; one that nests on and on meanwhile is left in the end.
    let _ = (0..MOST_ROUNDS).find(|_| empty(&folder, &folder, 0) == Emptied::Done);
    let _ = std::fs::remove_dir(root);
}

/// What emptying a folder came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// All that can be removed is.
    Done,
    /// Folders that lay too deeply are in the uppermost one now.
    Again,
}

/// Removes what is in a folder. Each folder on the way is open, so those that lie deeper than this are moved up.
fn empty(root: &OwnedFd, folder: &OwnedFd, depth: usize) -> Emptied {
    const DEEPEST: usize = 64;
    let mut came = Emptied::Done;
    for (name, is_folder) in entries(folder) {
        if !is_folder {
            let _ = unlinkat(folder, &name, AtFlags::empty());
            continue;
        }
        if depth >= DEEPEST {
            let above = uuid::Uuid::new_v4().simple().to_string();
            // A folder that cannot be changed cannot be moved to another one either.
            let _ = open_below(folder, &name).and_then(|inner| readable(&inner));
            if renameat(folder, &name, root, above).is_ok() {
                came = Emptied::Again;
            }
            continue;
        }
        if let Ok(inner) = open_below(folder, &name).and_then(|inner| readable(&inner))
            && empty(root, &inner, depth + 1) == Emptied::Again
        {
            came = Emptied::Again;
        }
        let _ = unlinkat(folder, &name, AtFlags::REMOVEDIR);
    }
    came
}

/// The names in a folder, and whether each is a folder.
fn entries(folder: &OwnedFd) -> Vec<(CString, bool)> {
    let listed = Dir::read_from(folder).into_iter().flatten().flatten();
    let named = listed.map(|entry| (entry.file_name().to_owned(), entry.file_type()));
    let told = named.map(|(name, kind)| {
        // Some file systems do not say what an entry is.
        let is_folder = match kind {
            FileType::Unknown => open_below(folder, &name).is_ok(),
            kind => kind == FileType::Directory,
        };
        (name, is_folder)
    });
    told.filter(|(name, _)| !matches!(name.to_bytes(), b"." | b"..")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn parent() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        (folder, path)
    }

    fn names(parent: &Utf8Path) -> usize {
        parent.read_dir_utf8().unwrap().count()
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_others_stay() {
        let (_kept, parent) = parent();
        let used = PrivateFolder::make(&parent).unwrap();
        let left = parent.join(format!("{PREFIX}left"));
        std::fs::create_dir_all(left.join("a/b")).unwrap();
        std::fs::set_permissions(left.join("a"), Permissions::from_mode(0o500)).unwrap();
        std::fs::set_permissions(&left, Permissions::from_mode(0o000)).unwrap();
        let other = PrivateFolder::make(&parent).unwrap();
        assert!(!left.exists());
        assert!(used.path.is_dir() && other.path.is_dir());
        drop((used, other));
        assert_eq!(names(&parent), 0);
    }

    #[test]
    fn what_lies_deep_is_removed_and_links_are_not_followed() {
        let (_kept, parent) = parent();
        let outside = parent.join("outside");
        std::fs::create_dir_all(outside.join("precious")).unwrap();
        std::fs::set_permissions(&outside, Permissions::from_mode(0o755)).unwrap();
        let left = parent.join(format!("{PREFIX}left"));
        std::fs::create_dir_all(left.join("links")).unwrap();
        for name in ["links/a", "b"] {
            std::os::unix::fs::symlink(&outside, left.join(name)).unwrap();
        }
        // Deeper than paths can name, step by step as a command would.
        let mut folder = open_below(CWD, left.as_std_path()).unwrap();
        for _ in 0..300 {
            rustix::fs::mkdirat(&folder, "n".repeat(30), Mode::RWXU).unwrap();
            folder = open_below(&folder, "n".repeat(30)).unwrap();
        }
        drop(folder);
        // A link with the name of a private folder leads nowhere either.
        std::os::unix::fs::symlink(&outside, parent.join(format!("{PREFIX}link"))).unwrap();
        drop(PrivateFolder::make(&parent).unwrap());
        assert!(!left.exists());
        assert!(outside.join("precious").is_dir());
        assert_eq!(outside.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        remove(&parent.join(format!("{PREFIX}link")));
        assert!(outside.join("precious").is_dir());
    }

    #[test]
    fn processes_that_start_at_once_leave_each_other_their_folders() {
        let (_kept, parent) = parent();
        let start = || {
            for _ in 0..200 {
                let folder = PrivateFolder::make(&parent).unwrap();
                // The others look for what is left meanwhile.
                PrivateFolder::make(&parent).unwrap();
                assert!(folder.path.is_dir());
            }
        };
        std::thread::scope(|scope| {
            for thread in [(); 8].map(|()| scope.spawn(start)) {
                thread.join().unwrap();
            }
        });
        assert_eq!(names(&parent), 0);
    }

    #[test]
    fn what_a_command_puts_into_its_folder_does_not_matter() {
        let (_kept, parent) = parent();
        let used = PrivateFolder::make(&parent).unwrap();
        for name in [".lock", "lock"] {
            std::fs::write(used.path.join(name), "").unwrap();
            std::fs::remove_file(used.path.join(name)).unwrap();
        }
        std::fs::set_permissions(&used.path, Permissions::from_mode(0o000)).unwrap();
        let other = PrivateFolder::make(&parent).unwrap();
        assert!(used.path.is_dir());
        // A file and a link with such a name are not touched.
        std::fs::write(parent.join(format!("{PREFIX}file")), "").unwrap();
        std::os::unix::fs::symlink(&other.path, parent.join(format!("{PREFIX}link"))).unwrap();
        drop(PrivateFolder::make(&parent).unwrap());
        assert!(other.path.is_dir());
        drop((used, other));
        assert_eq!(names(&parent), 2);
    }

    #[test]
    fn folders_nested_beyond_the_longest_path_are_removed() {
        let (_kept, parent) = parent();
        let folder = PrivateFolder::make(&parent).unwrap();
        let deep = "12345678901234567890/".repeat(40);
        // From the inside out: no path of the whole could be named.
        for _ in 0..10 {
            let inner = folder.path.join("inner");
            let outer = folder.path.join("outer").join(&deep);
            std::fs::create_dir_all(&outer).unwrap();
            std::fs::write(outer.join("file"), "").unwrap();
            if inner.exists() {
                std::fs::rename(&inner, outer.join("inner")).unwrap();
            }
            std::fs::rename(folder.path.join("outer"), &inner).unwrap();
        }
        drop(folder);
        assert_eq!(names(&parent), 0);
    }
}
