//! A private folder for temporary files. Takes the folder to make it in; it is removed when it is dropped, or by the next
//! process if this one is killed.
//!
//! Commands can do what they like with the contents, so nothing here relies on them: whether a folder is in use is told
//! by a lock on the folder itself.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use camino::{Utf8Path, Utf8PathBuf};

const PREFIX: &str = "decurion-sandbox-";
/// How often it is tried: another process may remove a folder between its making and its locking.
const TRIES: usize = 8;

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
        let is_ours =
            |found: Metadata| found.is_dir() && found.uid() == own.uid() && found.ino() != own.ino();
        // A folder that a command made unreadable is opened with its mode set back.
        let open =
            || open_folder(path).or_else(|_| allow_all(path.as_std_path()).and_then(|()| open_folder(path)));
        if !path.symlink_metadata().is_ok_and(is_ours) {
            continue;
        }
        let Ok(lock) = open() else { continue };
        if lock.try_lock().is_ok() {
            // Locked until it is gone: a process that has just made it waits in `make`, and makes another.
            remove(path);
        }
    }
}

/// Opens a folder, and nothing else: a named pipe would block.
fn open_folder(path: &Utf8Path) -> io::Result<File> {
    File::open(path.join("."))
}

fn allow_all(folder: &Path) -> io::Result<()> {
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

/// Removes a folder with all in it, also what a command nested too deeply for its path, or made unreadable.
fn remove(root: &Utf8Path) {
    /// Beyond this length folders are moved up.
    const LONGEST: usize = 2_000;
    let root = root.as_std_path();
    let mut left = vec![root.to_owned()];
    // Each after the one it lies in.
    let mut emptied = Vec::new();
    while let Some(folder) = left.pop() {
        let _ = allow_all(&folder);
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = std::fs::remove_file(&path);
                continue;
            }
            let above = root.join(uuid::Uuid::new_v4().simple().to_string());
            let is_long = path.as_os_str().len() > LONGEST;
            left.push(if is_long && std::fs::rename(&path, &above).is_ok() { above } else { path });
        }
        emptied.push(folder);
    }
    for folder in emptied.iter().rev() {
        let _ = std::fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
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
