//! Where names lead. Takes a path, gives every name it has on its way to the place it stands for: links are followed
//! one by one, also where they lead to nothing yet, and `..` goes up from where a link led.
//!
//! Whoever may write in a folder decides where the links in it lead: in the workspace that is the repository and the
//! model. So a name is held to be another name of a place in two ways. A rule that forbids looks at all of them. What
//! allows looks at the place itself and at the name as its *owner* wrote it: with the links followed that stand
//! outside of the workspace, and no other.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};

use decurion_tools::bash::normal;

/// As many links as the system follows; a path with more leads nowhere.
const MOST_LINKS: usize = 40;
/// As many names as are looked at to find the links among them.
const MOST_NAMES: usize = 20_000;
/// The same for everything that is looked up together, so that a text full of patterns does not take minutes.
const MOST_NAMES_TOGETHER: usize = 10 * MOST_NAMES;

/// What is looked at: the disk, or a picture of one.
pub trait Ground: Send + Sync {
    /// What a link holds; none where the path is no link.
    fn link(&self, path: &Path) -> Option<PathBuf>;

    /// Whether it is known that no link is on the way of a path, nor at its end.
    fn is_straight(&self, _path: &Path) -> bool {
        false
    }

    /// What is in a folder, no more than `most`.
    fn entries(&self, folder: &Path, most: usize) -> Vec<Entry>;

    /// Whether anybody may make links in a folder.
    fn is_shared(&self, folder: &Path) -> bool;
}

/// Something in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: Kind,
}

/// What there may be in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Link,
    Folder,
    /// A file, and everything else.
    Other,
}

/// The disk as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Disk;

impl Ground for Disk {
    fn link(&self, path: &Path) -> Option<PathBuf> {
        std::fs::read_link(path).ok()
    }

    fn entries(&self, folder: &Path, most: usize) -> Vec<Entry> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let kind = |kind: std::fs::FileType| match kind {
            kind if kind.is_symlink() => Kind::Link,
            kind if kind.is_dir() => Kind::Folder,
            _ => Kind::Other,
        };
        let entry = |entry: std::fs::DirEntry| {
            // What cannot be told is looked at as if it were a folder.
            let kind = entry.file_type().map_or(Kind::Folder, kind);
            Entry { name: entry.file_name(), kind }
        };
        entries.take(most).filter_map(|found| found.ok().map(entry)).collect()
    }

    fn is_shared(&self, folder: &Path) -> bool {
        std::fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o002 != 0)
    }
}

/// A link that was followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Where the link is, without links.
    pub link: Utf8PathBuf,
    /// Whether anybody could have put it there.
    pub shared: bool,
    /// What the path is called behind it.
    pub name: Utf8PathBuf,
}

/// Where paths lead, each looked up once: a decision is about one state of the disk. Without a ground nothing is
/// looked up, and every path is its own place.
#[derive(Clone, Default)]
pub struct Symlinks {
    ground: Option<Arc<dyn Ground>>,
    known: Arc<Mutex<HashMap<Utf8PathBuf, Arc<[Step]>>>>,
    /// How many names have been looked at.
    looked: Arc<AtomicUsize>,
}

impl fmt::Debug for Symlinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Symlinks").field("looks", &self.ground.is_some()).finish_non_exhaustive()
    }
}

impl Symlinks {
    /// Those of the disk, from now on.
    pub fn on_disk() -> Self {
        Self::over(Arc::new(Disk))
    }

    /// Those of a ground.
    pub fn over(ground: Arc<dyn Ground>) -> Self {
        Self { ground: Some(ground), ..Self::default() }
    }

    /// Whether anything is looked at.
    pub fn looks(&self) -> bool {
        self.ground.is_some()
    }

    /// The links on the way of a path, in the order they are met; none where it is the place itself.
    pub fn of(&self, path: &Utf8Path) -> Arc<[Step]> {
        let Some(ground) = &self.ground else { return Arc::default() };
        if ground.is_straight(path.as_std_path()) {
            return Arc::default();
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(path) {
            return Arc::clone(found);
        }
        let found: Arc<[Step]> = follow(&**ground, path.as_std_path()).into();
        known().insert(path.to_owned(), Arc::clone(&found));
        found
    }

    /// The place that a path leads to.
    pub fn place(&self, path: &Utf8Path) -> Utf8PathBuf {
        // Without a link on the way `..` means what the text says.
        let without_links = || if path.as_str().contains("..") { normal(path) } else { path.to_owned() };
        self.of(path).last().map_or_else(without_links, |step| step.name.clone())
    }

    /// Whether a folder holds a name like this. None where that cannot be told: nothing is looked at, or there is too
    /// much to look at.
    pub fn holds(&self, folder: &Utf8Path, wanted: &dyn Fn(&str) -> bool) -> Option<bool> {
        let entries = self.search()?.entries(folder.as_std_path())?;
        let found = entries.iter().any(|entry| wanted(&entry.name.to_string_lossy()));
        let told = entries.iter().all(|entry| is_told(&entry.name));
        (found || told).then_some(found)
    }

    /// Whether something below a folder is like this, without following links. None where that cannot be told.
    pub fn any_below(&self, folder: &Utf8Path, wanted: &dyn Fn(&Utf8Path) -> bool) -> Option<bool> {
        let mut search = self.search()?;
        let mut folders = vec![PathBuf::from(folder)];
        while let Some(folder) = folders.pop() {
            for Entry { name, kind } in search.entries(&folder)? {
                let path = folder.join(&name);
                if wanted(&text(&path)) {
                    return Some(true);
                }
                name.to_str()?;
                if kind == Kind::Folder {
                    folders.push(path);
                }
            }
        }
        Some(false)
    }

    /// The links that someone comes across who goes down from a folder. None where there is too much to look at.
    pub fn met(&self, folder: &Utf8Path, reach: &Reach<'_>) -> Option<Vec<Utf8PathBuf>> {
        let Some(mut search) = self.search() else { return Some(Vec::new()) };
        let folder = folder.as_std_path();
        let ended = search.look(folder, reach.parts, reach.matches)
            && (!reach.follows || search.follow(self, folder));
        ended.then_some(search.found)
    }

    fn search(&self) -> Option<Search<'_>> {
        let ground = &**self.ground.as_ref()?;
        Some(Search { ground, left: MOST_NAMES, together: &self.looked, found: Vec::new() })
    }
}

/// How someone goes down from a folder.
pub struct Reach<'a> {
    /// By names of these forms, one below the other.
    pub parts: &'a [&'a str],
    /// Whether a name has a form.
    pub matches: &'a dyn Fn(&str, &str) -> bool,
    /// To the end, and wherever links lead.
    pub follows: bool,
}

/// A search for links.
struct Search<'a> {
    ground: &'a dyn Ground,
    /// How much may still be looked at.
    left: usize,
    /// How much has been looked at, with other searches.
    together: &'a AtomicUsize,
    found: Vec<Utf8PathBuf>,
}

impl Search<'_> {
    /// What is in a folder; none where that is too much.
    fn entries(&mut self, folder: &Path) -> Option<Vec<Entry>> {
        let left = MOST_NAMES_TOGETHER.saturating_sub(self.together.load(Ordering::Relaxed)).min(self.left);
        let entries = self.ground.entries(folder, left + 1);
        // A folder costs something even if it is empty.
        self.together.fetch_add(entries.len() + 1, Ordering::Relaxed);
        self.left = left.checked_sub(entries.len())?;
        Some(entries)
    }

    /// Looks for names of these forms below a folder; false where there is too much of it.
    fn look(&mut self, folder: &Path, parts: &[&str], matches: &dyn Fn(&str, &str) -> bool) -> bool {
        let Some((part, rest)) = parts.split_first() else { return true };
        let Some(entries) = self.entries(folder) else { return false };
        for Entry { name, kind } in entries {
            // What is no text cannot be looked up again by its name.
            let Some(readable) = name.to_str() else { return false };
            // One character of a form may stand for one byte, as the shell's language has it.
            let by_bytes = !readable.is_ascii() && part.contains('?');
            if !by_bytes && !matches(part, readable) {
                continue;
            }
            let path = folder.join(&name);
            if kind == Kind::Link {
                self.found.push(text(&path));
            }
            if kind != Kind::Other && !rest.is_empty() && !self.look(&path, rest, matches) {
                return false;
            }
        }
        true
    }

    /// Looks at everything below a folder and behind the links there; false where there is too much of it.
    fn follow(&mut self, trails: &Symlinks, folder: &Path) -> bool {
        let mut seen = HashSet::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            if !seen.insert(folder.clone()) {
                continue;
            }
            let Some(entries) = self.entries(&folder) else { return false };
            for Entry { name, kind } in entries {
                if name.to_str().is_none() {
                    return false;
                }
                let path = folder.join(&name);
                match kind {
                    Kind::Folder => folders.push(path),
                    Kind::Link => {
                        let link = text(&path);
                        folders.push(trails.place(&link).into());
                        self.found.push(link);
                    }
                    Kind::Other => {}
                }
            }
        }
        true
    }
}

/// Follows the links of an absolute path. A link that cannot be read is none for us, and nothing can be opened behind
/// it either.
fn follow(ground: &dyn Ground, path: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut done = PathBuf::from("/");
    let mut left: Vec<OsString> = Vec::new();
    let mut own = None;
    queue(&mut left, path);
    while let Some(name) = left.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        done.push(&name);
        if is_stream(&done) {
            continue;
        }
        let Some(target) = ground.link(&done) else { continue };
        if steps.len() == MOST_LINKS {
            break;
        }
        let link = text(&done);
        if done.starts_with("/proc") {
            own.get_or_insert_with(|| link.clone());
        }
        done.pop();
        let shared = ground.is_shared(&done);
        if target.is_absolute() {
            done = PathBuf::from("/");
        }
        queue(&mut left, &target);
        let mut rest = done.clone();
        rest.extend(left.iter().rev());
        steps.push(Step { link, shared, name: decurion_tools::bash::normal(&text(&rest)) });
    }
    // A last `..` behind the last link is gone up from where that led; without a link the text says it all.
    if let Some(last) = steps.last_mut().filter(|_| left.is_empty()) {
        last.name = text(&done);
    }
    // These links lead elsewhere for whoever will follow them (`/proc/self/cwd`), so the place is not told by ours.
    steps.extend(own.map(|link| Step { name: link.clone(), shared: true, link }));
    steps
}

/// Puts the names of a path before those that are left, which are in reverse.
fn queue(left: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    left.extend(names);
}

/// Whether a name is the same to a shell of every language, or at least is no option to a program.
fn is_told(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.is_ascii() || !name.starts_with('-'))
}

/// What every process has for itself: ours is not the one that will open it.
fn is_stream(path: &Path) -> bool {
    let own = path.parent().is_some_and(|folder| {
        let ours = || format!("/proc/{}/fd", std::process::id());
        folder.ends_with("fd") && (folder == Path::new("/dev/fd") || folder == Path::new(&ours()))
    });
    own || ["/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"]
        .iter()
        .any(|stream| path == Path::new(stream))
}

/// A path as text. What is no text has no name that a rule could mean, and still is where it is.
fn text(path: &Path) -> Utf8PathBuf {
    path.to_string_lossy().into_owned().into()
}
