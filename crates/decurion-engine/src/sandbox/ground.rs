//! What is on the way of paths that are looked up for every command. Takes paths, gives whether something is there and
//! where links lead, from memory as long as the folder that it lies in has not changed.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;

use crate::footprint::{self, Stamp, stamp_after};
use crate::symlinks::{Disk, Entry, Ground, Symlinks};

/// More names than this are not remembered.
const MOST_NAMES: usize = 20_000;

/// The disk, with a memory.
#[derive(Debug, Default)]
pub(super) struct KeptGround {
    memory: Mutex<Memory>,
    /// Held while the folders are noted that an answer depends on.
    noting: Mutex<()>,
}

#[derive(Debug)]
struct Memory {
    /// Counts the commands: for each one a folder is looked at once.
    command: u64,
    /// All that is remembered; the first is the root.
    nodes: Vec<Node>,
    /// While an answer is found that is to be kept; none if it cannot be kept.
    noted: Option<Noted>,
    kept: Vec<Kept>,
    /// How much later it is than the clock says, in tests.
    later: Duration,
}

/// Where the paths of a list lead, of those that exist.
#[derive(Debug)]
struct Kept {
    list: Vec<Utf8PathBuf>,
    places: Arc<[Utf8PathBuf]>,
    from: Noted,
}

/// What an answer depends on.
#[derive(Debug, Default)]
struct Noted {
    /// The folders that were looked into, by their nodes, as they were then.
    folders: HashMap<usize, (PathBuf, Stamp)>,
    /// The names that were looked up in them.
    names: HashSet<PathBuf>,
}

/// So many lists are remembered: those of the settings.
const MOST_LISTS: usize = 8;

/// A name in a folder. A path is looked up name by name, which costs a tenth of a table of whole paths.
#[derive(Debug)]
struct Node {
    found: Found,
    /// Of a folder: when it was looked at last.
    command: u64,
    stamp: Option<Stamp>,
    names: HashMap<OsString, usize>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Link(PathBuf),
    Folder,
    Other,
}

/// Where a path leads by what is remembered.
enum Way {
    To(usize),
    Nowhere,
    /// To a link that more names follow.
    Link,
    /// It does not say.
    Untold,
}

impl KeptGround {
    /// From now on it is about another command: folders are looked at again.
    pub fn begin(&self) {
        let mut memory = self.memory();
        memory.command += 1;
        if memory.nodes.len() > MOST_NAMES {
            memory.nodes = vec![Node::new(Found::Folder)];
            (memory.noted, memory.kept) = (None, Vec::new());
        }
    }

    /// Where the paths of a list lead, of those that exist. A list that was asked for before costs one look at each of the
    /// folders that tell the answer.
    pub fn places(&self, list: &[Utf8PathBuf], trails: &Symlinks) -> Arc<[Utf8PathBuf]> {
        if let Some(places) = self.memory().kept(list) {
            return places;
        }
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        self.memory().noted = Some(Noted::default());
        let places = list.iter().map(|path| trails.place(path));
        let places: Arc<[Utf8PathBuf]> = places.filter(|place| self.exists(place.as_std_path())).collect();
        self.memory().keep(list, &places);
        places
    }

    /// What is at a path, the folders of which are no links.
    pub fn find(&self, path: &Path) -> Found {
        self.memory().find(path)
    }

    /// Whether something is there.
    pub fn exists(&self, path: &Path) -> bool {
        self.find(path) != Found::Nothing
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Memory {
    fn default() -> Self {
        let (noted, kept, later) = (None, Vec::new(), Duration::ZERO);
        Self { command: 0, nodes: vec![Node::new(Found::Folder)], noted, kept, later }
    }
}

impl Node {
    fn new(found: Found) -> Self {
        Self { found, command: 0, stamp: None, names: HashMap::new() }
    }
}

impl Memory {
    /// Where a list led when it was asked for before, if no folder has changed since.
    fn kept(&mut self, list: &[Utf8PathBuf]) -> Option<Arc<[Utf8PathBuf]>> {
        let at = self.kept.iter().position(|kept| kept.list == list)?;
        let kept = self.kept.remove(at);
        for (node, (path, stamp)) in &kept.from.folders {
            self.check(*node, path.as_os_str().as_bytes());
            if self.nodes[*node].stamp.as_ref() != Some(stamp) {
                return None;
            }
        }
        kept.from.names.iter().for_each(|path| footprint::note_name(path));
        let places = Arc::clone(&kept.places);
        self.kept.push(kept);
        Some(places)
    }

    fn keep(&mut self, list: &[Utf8PathBuf], places: &Arc<[Utf8PathBuf]>) {
        let Some(from) = self.noted.take() else { return };
        if self.kept.len() >= MOST_LISTS {
            self.kept.remove(0);
        }
        self.kept.push(Kept { list: list.to_vec(), places: Arc::clone(places), from });
    }

    fn find(&mut self, path: &Path) -> Found {
        match self.walk(path) {
            Way::To(node) => self.nodes[node].found.clone(),
            Way::Nowhere => Found::Nothing,
            // What is remembered does not tell it.
            Way::Link | Way::Untold => {
                self.noted = None;
                look(path)
            }
        }
    }

    /// Goes to a path name by name.
    fn walk(&mut self, path: &Path) -> Way {
        let text = path.as_os_str().as_bytes();
        let names = || text.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        // What processes see there differs from moment to moment.
        if names().next() == Some(b"proc") || names().any(|name| name == b"..") {
            return Way::Untold;
        }
        let mut at = 0;
        for name in names() {
            match self.nodes[at].found {
                Found::Folder => {}
                Found::Nothing | Found::Other => return Way::Nowhere,
                Found::Link(_) => return Way::Link,
            }
            // Both lie in the same text.
            let begin = name.as_ptr().addr() - text.as_ptr().addr();
            self.check(at, &text[..begin]);
            let (name, path) = (OsStr::from_bytes(name), OsStr::from_bytes(&text[..begin + name.len()]));
            if let Some(noted) = &mut self.noted {
                noted.names.insert(PathBuf::from(path));
            }
            at = match self.nodes[at].names.get(name) {
                Some(known) => {
                    footprint::note_name(Path::new(path));
                    *known
                }
                None => self.add(at, name, look(Path::new(path))),
            };
        }
        Way::To(at)
    }

    /// Whether it is known that there is no link on the way to a path, nor at its end.
    fn is_straight(&mut self, path: &Path) -> bool {
        match self.walk(path) {
            Way::To(node) => !matches!(self.nodes[node].found, Found::Link(_)),
            Way::Nowhere => true,
            Way::Link | Way::Untold => false,
        }
    }

    /// Forgets what is known of a folder that has changed, or might have.
    fn check(&mut self, at: usize, path: &[u8]) {
        let path = Path::new(OsStr::from_bytes(path));
        let folder = &mut self.nodes[at];
        if folder.command != self.command {
            let stamp = stamp_after(path, self.later);
            if stamp.is_none() || folder.stamp != stamp {
                folder.names.clear();
            }
            folder.stamp = stamp;
            folder.command = self.command;
        }
        footprint::note_remembered(path, folder.stamp);
        if let Some(noted) = &mut self.noted {
            match folder.stamp {
                Some(stamp) => _ = noted.folders.entry(at).or_insert_with(|| (path.to_owned(), stamp)),
                None => self.noted = None,
            }
        }
    }

    fn add(&mut self, folder: usize, name: &OsStr, found: Found) -> usize {
        let new = self.nodes.len();
        self.nodes.push(Node::new(found));
        self.nodes[folder].names.insert(name.to_owned(), new);
        new
    }
}

fn look(path: &Path) -> Found {
    footprint::note_name(path);
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
        !path.starts_with("/dev") && self.memory().is_straight(path)
    }

    fn entries(&self, folder: &Path, most: usize) -> Vec<Entry> {
        footprint::note_content(folder);
        Disk.entries(folder, most)
    }

    fn is_shared(&self, folder: &Path) -> bool {
        footprint::note_content(folder);
        Disk.is_shared(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    /// Gives a folder another time of change, whatever the clock of its file system tells apart.
    fn touch(folder: &Path, time: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + time);
        std::fs::File::open(folder).unwrap().set_modified(time).unwrap();
    }

    /// One for which all that is on disk has been as it is for long.
    fn after_an_hour() -> KeptGround {
        let ground = KeptGround::default();
        ground.memory().later = Duration::from_secs(3600);
        ground
    }

    #[test]
    fn changes_are_seen_with_the_next_command() {
        for ground in [KeptGround::default(), after_an_hour()] {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            let (below, link) = (root.join("a/b/c"), root.join("link"));
            for _ in 0..2 {
                ground.begin();
                assert_eq!(ground.find(&below), Found::Nothing);
                assert_eq!(ground.find(&link), Found::Nothing);
            }
            std::fs::create_dir_all(&below).unwrap();
            std::os::unix::fs::symlink("a", &link).unwrap();
            touch(&root, 1);
            for _ in 0..2 {
                ground.begin();
                assert_eq!(ground.find(&below), Found::Folder);
                assert_eq!(ground.find(&link), Found::Link("a".into()));
            }
            std::fs::remove_dir(&below).unwrap();
            std::fs::write(&below, "").unwrap();
            std::fs::remove_file(&link).unwrap();
            touch(&root, 2);
            touch(&root.join("a/b"), 2);
            ground.begin();
            assert_eq!((ground.find(&below), ground.find(&link)), (Found::Other, Found::Nothing));
            assert_eq!(ground.find(&below.join("x")), Found::Nothing);
        }
    }

    #[test]
    fn list_is_looked_up_again_when_a_folder_on_its_way_changed() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let ground = Arc::new(after_an_hour());
        let list = ["a/key", "link/key", "none/deep/key"].map(|name| root.join(name));
        let mut time = 0;
        let mut places = || {
            time += 1;
            ["", "a", "none", "none/deep"]
                .map(|name| root.join(name))
                .iter()
                .filter(|path| path.is_dir())
                .for_each(|path| touch(path.as_std_path(), time));
            let look = || {
                ground.begin();
                let trails = Symlinks::over(Arc::clone(&ground) as Arc<dyn Ground>);
                ground.places(&list, &trails).to_vec()
            };
            let first = look();
            assert_eq!(look(), first, "and again, from memory");
            assert_eq!(ground.memory().kept.len(), 1);
            first
        };
        assert!(places().is_empty());
        let key = root.join("a/key");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        std::fs::write(&key, "").unwrap();
        assert_eq!(places(), [key.clone(), key.clone()]);
        std::fs::remove_file(root.join("link")).unwrap();
        assert_eq!(places(), std::slice::from_ref(&key));
        std::fs::remove_file(&key).unwrap();
        std::fs::create_dir_all(root.join("none/deep")).unwrap();
        std::fs::write(root.join("none/deep/key"), "").unwrap();
        assert_eq!(places(), [root.join("none/deep/key")]);
    }

    #[test]
    fn answer_from_a_folder_that_may_be_changing_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let ground = Arc::new(KeptGround::default());
        let trails = Symlinks::over(Arc::clone(&ground) as Arc<dyn Ground>);
        ground.begin();
        ground.places(&[root.join("key")], &trails);
        assert!(ground.memory().kept.is_empty());
    }
}
