//! What is on the way of paths that are looked up for every command. Takes paths, gives whether something is there and
//! where links lead, from memory as long as the folder that it lies in has not changed.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::trail::{Disk, Entry, Ground};

/// A folder that was changed this shortly before it was looked at may have been changed again since, at the same time
/// by its file system's clock.
const UNSURE: Duration = Duration::from_secs(2);
/// More names than this are not remembered.
const MOST_NAMES: usize = 20_000;

/// The disk, with a memory.
#[derive(Debug, Default)]
pub(super) struct KeptGround(Mutex<Memory>);

#[derive(Debug)]
struct Memory {
    /// Counts the commands: for each one a folder is looked at once.
    command: u64,
    /// All that is remembered; the first is the root.
    nodes: Vec<Node>,
}

/// A name in a folder. A path is looked up name by name, which costs a tenth of a table of whole paths.
#[derive(Debug)]
struct Node {
    found: Found,
    /// Of a folder: when it was looked at last.
    command: u64,
    stamp: Option<Stamp>,
    names: HashMap<OsString, usize>,
}

/// Which folder it is, and when it was changed. The last two are times that no program can set.
pub(super) type Stamp = (u64, u64, i64, i64, i64, i64);

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Link(PathBuf),
    Folder,
    Other,
}

impl KeptGround {
    /// From now on it is about another command: folders are looked at again.
    pub fn begin(&self) {
        let mut memory = self.memory();
        memory.command += 1;
        if memory.nodes.len() > MOST_NAMES {
            memory.nodes = vec![Node::new(Found::Folder)];
        }
    }

    /// What is at a path, the folders of which are no links.
    pub fn find(&self, path: &Path) -> Found {
        self.memory().find(path).0
    }

    /// Whether something is there.
    pub fn exists(&self, path: &Path) -> bool {
        self.find(path) != Found::Nothing
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self { command: 0, nodes: vec![Node::new(Found::Folder)] }
    }
}

impl Node {
    fn new(found: Found) -> Self {
        Self { found, command: 0, stamp: None, names: HashMap::new() }
    }
}

impl Memory {
    /// What is at a path, and whether it is known that there is no link on the way to it, nor at its end.
    fn find(&mut self, path: &Path) -> (Found, bool) {
        let text = path.as_os_str().as_bytes();
        let names = || text.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        // What processes see there differs from moment to moment.
        if names().next() == Some(b"proc") || names().any(|name| name == b"..") {
            return (look(path), false);
        }
        let mut at = 0;
        for name in names() {
            match self.nodes[at].found {
                Found::Folder => {}
                Found::Nothing | Found::Other => return (Found::Nothing, true),
                // It changed while we looked: nothing that is remembered counts.
                Found::Link(_) => return (look(path), false),
            }
            // Both lie in the same text.
            let begin = name.as_ptr().addr() - text.as_ptr().addr();
            self.check(at, &text[..begin]);
            let name = OsStr::from_bytes(name);
            at = match self.nodes[at].names.get(name) {
                Some(known) => *known,
                None => self.add(at, name, look(Path::new(OsStr::from_bytes(&text[..begin + name.len()])))),
            };
        }
        let found = self.nodes[at].found.clone();
        let straight = !matches!(found, Found::Link(_));
        (found, straight)
    }

    /// Forgets what is known of a folder that has changed, or might have.
    fn check(&mut self, at: usize, path: &[u8]) {
        let folder = &mut self.nodes[at];
        if folder.command == self.command {
            return;
        }
        let stamp = stamp(Path::new(OsStr::from_bytes(path)));
        if stamp.is_none() || folder.stamp != stamp {
            folder.names.clear();
        }
        folder.stamp = stamp;
        folder.command = self.command;
    }

    fn add(&mut self, folder: usize, name: &OsStr, found: Found) -> usize {
        let new = self.nodes.len();
        self.nodes.push(Node::new(found));
        self.nodes[folder].names.insert(name.to_owned(), new);
        new
    }
}

/// None where it cannot be told whether the folder changes.
pub(super) fn stamp(folder: &Path) -> Option<Stamp> {
    let found = folder.symlink_metadata().ok()?;
    #[expect(clippy::disallowed_methods, reason = "compared with the times of files")]
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let changed = u64::try_from(found.mtime().max(found.ctime())).ok()?;
    let stamp =
        (found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec());
    (age > Duration::from_secs(changed) + UNSURE).then_some(stamp)
}

fn look(path: &Path) -> Found {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => std::fs::read_link(path).map_or(Found::Other, Found::Link),
        Ok(found) if found.is_dir() => Found::Folder,
        Ok(_) => Found::Other,
        // What may not be looked at may be there.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Found::Other,
        Err(_) => Found::Nothing,
    }
}

impl Ground for KeptGround {
    fn link(&self, path: &Path) -> Option<PathBuf> {
        match self.find(path) {
            Found::Link(target) => Some(target),
            Found::Nothing | Found::Folder | Found::Other => None,
        }
    }

    fn is_straight(&self, path: &Path) -> bool {
        // A name below stands for something else in each process.
        !path.starts_with("/dev") && self.memory().find(path).1
    }

    fn entries(&self, folder: &Path, most: usize) -> Vec<Entry> {
        Disk.entries(folder, most)
    }

    fn is_shared(&self, folder: &Path) -> bool {
        Disk.is_shared(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder look as if it had not been changed for long.
    fn age(folder: &Path) {
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        std::fs::File::open(folder).unwrap().set_modified(old).unwrap();
    }

    #[test]
    fn changes_are_seen_with_the_next_command() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let ground = KeptGround::default();
        let (below, link) = (root.join("a/b/c"), root.join("link"));
        for _ in 0..2 {
            ground.begin();
            assert_eq!(ground.find(&below), Found::Nothing);
            assert_eq!(ground.find(&link), Found::Nothing);
        }
        std::fs::create_dir_all(&below).unwrap();
        std::os::unix::fs::symlink("a", &link).unwrap();
        ground.begin();
        assert_eq!(ground.find(&below), Found::Folder);
        assert_eq!(ground.find(&link), Found::Link("a".into()));
        age(&root);
        std::fs::remove_dir(&below).unwrap();
        std::fs::write(&below, "").unwrap();
        std::fs::remove_file(&link).unwrap();
        ground.begin();
        assert_eq!((ground.find(&below), ground.find(&link)), (Found::Other, Found::Nothing));
        assert_eq!(ground.find(&below.join("x")), Found::Nothing);
    }
}
