//! Folders that commands cannot reach, each for one process. Takes the folder that holds them all; a folder that stands for
//! another one gives back what came to be in it.
//!
//! Each has a file that is locked while it is used. The kernel takes the lock off when the process ends, however it ends, so
//! a lock that can be taken says that the folder was left. The number of a process would not: processes in containers that
//! share the state folder have numbers of their own. In the file is the folder that the private one stands for.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::folder;

/// The file that is locked.
const LOCK: &str = "decurion.lock";
/// What is ours in the folder that stands for another one, or belongs to one checkout alone.
const NOT_SHARED: [&str; 5] = ["config", "config.worktree", "commondir", "index", "gitdir"];

/// A folder for us alone, removed when it is dropped.
#[derive(Debug)]
pub(super) struct PrivateGitFolder {
    path: Utf8PathBuf,
    lock: File,
}

impl PrivateGitFolder {
    pub fn new(all: &Utf8Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(all)?;
        // As git names it.
        let all = all.canonicalize_utf8()?;
        sweep(&all);
        loop {
            let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            let path = all.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                // An earlier process of this number left it, or one in another container uses it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // None if another process took it for one that was left.
            if let Some(lock) = take(&path)? {
                return Ok(Self { path, lock });
            }
        }
    }

    /// One that stands for a shared folder of git: has links to what is in it.
    pub fn stand_for(all: &Utf8Path, shared: &Utf8Path, may_come: &[&str]) -> io::Result<Self> {
        let mut private = Self::new(all)?;
        private.lock.write_all(shared.as_str().as_bytes())?;
        let there = shared.read_dir_utf8()?.flatten().map(|entry| entry.file_name().to_owned());
        let mut names: Vec<String> = there.chain(may_come.iter().map(|&name| name.to_owned())).collect();
        names.retain(|name| !is_not_shared(OsStr::new(name)));
        names.sort();
        names.dedup();
        for name in names {
            std::os::unix::fs::symlink(shared.join(&name), private.path.join(&name))?;
        }
        Ok(private)
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Removes it, once what others put into it is in the folder that it stands for. If that fails, it stays.
    pub fn close(self) -> Result<(), String> {
        give_back(&self.path).map_err(|error| {
            let path = &self.path;
            format!("files of a filter cannot be moved to the repository: {error}; they stay in {path}")
        })
    }
}

impl Drop for PrivateGitFolder {
    fn drop(&mut self) {
        // What stays is removed by a later process.
        let _ = remove(&self.path);
    }
}

fn is_not_shared(name: &OsStr) -> bool {
    NOT_SHARED.iter().any(|ours| name == *ours) || Path::new(name).extension() == Some(OsStr::new("lock"))
}

/// Takes the lock of a private folder; none where it is used or just removed.
fn take(folder: &Utf8Path) -> io::Result<Option<File>> {
    let path = folder.join(LOCK);
    let mut options = fs::OpenOptions::new();
    let file = match options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    // Who had it before may have removed the folder.
    let locked = file.metadata()?;
    let is_there = path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(file))
}

/// Removes what processes left that were killed.
fn sweep(all: &Utf8Path) {
    for entry in all.read_dir_utf8().into_iter().flatten().flatten() {
        let is_ours = entry.file_name().split('-').all(|number| number.parse::<u32>().is_ok());
        if is_ours && let Ok(Some(_locked)) = take(entry.path()) {
            let _ = remove(entry.path());
        }
    }
}

fn remove(private: &Utf8Path) -> io::Result<()> {
    give_back(private)?;
    fs::remove_dir_all(private)
}

/// Moves what is in a private folder and not ours to the folder that it stands for.
fn give_back(private: &Utf8Path) -> io::Result<()> {
    let shared = fs::read_to_string(private.join(LOCK)).unwrap_or_default();
    if shared.is_empty() {
        return Ok(());
    }
    let from = folder::open(private)?;
    let is_ours = |name: &OsStr| {
        let link = fs::read_link(private.as_std_path().join(name));
        is_not_shared(name) || link.is_ok_and(|link| link == Path::new(&shared).join(name))
    };
    let mut names = folder::names(from.as_fd())?;
    names.retain(|name| !is_ours(name));
    if names.is_empty() {
        return Ok(());
    }
    let to = folder::open(Utf8Path::new(&shared))?;
    names.iter().try_for_each(|name| folder::merge(from.as_fd(), name, to.as_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_processes_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let all = Utf8Path::from_path(folder.path()).unwrap().join("git");
        fs::create_dir_all(all.join("4294967295-1")).unwrap();
        let first = PrivateGitFolder::new(&all).unwrap();
        let second = PrivateGitFolder::new(&all).unwrap();
        assert!(!all.join("4294967295-1").exists() && first.path().is_dir());
        assert_ne!(first.path(), second.path());
        drop(first);
        assert_eq!(all.read_dir_utf8().unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_process_stored_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let (all, shared) = (root.join("git"), root.join("shared"));
        fs::create_dir_all(shared.join("objects")).unwrap();
        let left = PrivateGitFolder::stand_for(&all, &shared, &["logs"]).unwrap();
        fs::create_dir(left.path().join("lfs")).unwrap();
        fs::write(left.path().join("lfs/object"), "text").unwrap();
        fs::write(left.path().join("config"), "").unwrap();
        // As the kernel does for one that is killed.
        rustix::fs::flock(&left.lock, FlockOperation::Unlock).unwrap();
        drop(PrivateGitFolder::new(&all).unwrap());
        assert_eq!(fs::read_to_string(shared.join("lfs/object")).unwrap(), "text");
        assert_eq!(shared.read_dir_utf8().unwrap().count(), 2);
        assert_eq!(all.read_dir_utf8().unwrap().count(), 0);
    }
}
