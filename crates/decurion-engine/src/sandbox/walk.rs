//! Which files rules with wildcards cover. Takes all patterns together and the folders to look in, walks through them
//! once, and gives what each pattern covers. Folders that have not changed since the last walk are not read again.
//!
//! Links to folders are followed: what a pattern names behind one is covered too. Through one that leads to a folder
//! above itself, `**` does not go: it would cover everything there.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};

use crate::footprint::{self, Stamp, stamp};
use crate::permission::{component_matches, plain};

/// More files than this are not looked through.
pub(super) const MOST: usize = 2_000_000;
/// A folder whose path is longer is covered as a whole by a pattern that may cover something in it: what is further
/// down cannot be named any more.
const LONGEST: usize = 3_600;

/// What was found, for each pattern.
pub(super) type Covered = Vec<BTreeSet<PathBuf>>;

/// The last walks, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct Walks(Mutex<Vec<Memory>>);

/// How many walks are remembered: agents in other folders look for other patterns.
const MOST_WALKS: usize = 8;
/// How many folders are remembered, of all walks together.
const MOST_FOLDERS: usize = 500_000;

#[derive(Debug, Default)]
struct Memory {
    /// What was looked for.
    patterns: Vec<String>,
    folders: HashMap<Visit, Known>,
}

/// A folder without links in its path, and how far the patterns had come there.
type Visit = (PathBuf, States);

/// A folder that was read.
#[derive(Debug)]
struct Known {
    /// None where it may have changed since.
    stamp: Option<Stamp>,
    /// Whether it cannot be listed.
    is_closed: bool,
    /// How many names are in it.
    names: usize,
    /// Folders in it in which a pattern may cover something.
    below: Vec<(OsString, States)>,
    /// Links behind which one may.
    links: Vec<(OsString, States)>,
    covered: Vec<(OsString, Vec<u16>)>,
}

/// How far each pattern has come on the way to a folder.
type States = Box<[(u16, u16)]>;

impl Walks {
    /// Walks through folders, none of which is in another. The error is the folder that has too much in it.
    pub fn find(&self, patterns: &[String], roots: &[Utf8PathBuf]) -> Result<Covered, Utf8PathBuf> {
        let mut covered: Covered = vec![BTreeSet::new(); patterns.len()];
        if patterns.is_empty() {
            return Ok(covered);
        }
        let mut walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = walks.iter().position(|memory| memory.patterns == patterns);
        let before = known.map(|at| walks.remove(at).folders).unwrap_or_default();
        let matcher = Matcher::new(patterns);
        let mut walk =
            Walk { matcher: &matcher, before, after: HashMap::new(), seen: 0, covered: &mut covered };
        let ended = roots.iter().try_for_each(|root| walk.root(root));
        walks.push(Memory { patterns: patterns.to_vec(), folders: walk.after });
        while walks.len() > MOST_WALKS
            || walks.iter().map(|memory| memory.folders.len()).sum::<usize>() > MOST_FOLDERS
        {
            walks.remove(0);
        }
        ended.map(|()| covered)
    }
}

struct Walk<'a> {
    matcher: &'a Matcher,
    before: HashMap<Visit, Known>,
    after: HashMap<Visit, Known>,
    seen: usize,
    covered: &'a mut Covered,
}

impl Walk<'_> {
    fn root(&mut self, root: &Utf8Path) -> Result<(), Utf8PathBuf> {
        let mut states = self.matcher.start();
        for part in root.components().skip(1) {
            let (next, covers) = self.matcher.step(&states, OsStr::new(part.as_str()));
            self.cover(root.as_std_path(), &covers);
            states = next;
        }
        // Each with the name that leads there and its place, which differ behind links.
        let mut folders = vec![(root.as_std_path().to_owned(), (root.as_std_path().to_owned(), states))];
        while let Some((name, visit)) = folders.pop() {
            if visit.1.is_empty() || self.after.contains_key(&visit) {
                continue;
            }
            if name.as_os_str().len() > LONGEST {
                let open: Vec<u16> = visit.1.iter().map(|(pattern, _)| *pattern).collect();
                self.cover(&name, &open);
                continue;
            }
            let known = self.read(&visit);
            if known.is_closed {
                // Its owner may open it in the next moment, and what is in it has no name that could be looked for.
                let open: Vec<u16> = visit.1.iter().map(|(pattern, _)| *pattern).collect();
                self.cover(&name, &open);
            }
            self.seen += known.names + 1;
            if self.seen > MOST {
                return Err(root.to_owned());
            }
            for (entry, patterns) in &known.covered {
                self.cover(&name.join(entry), patterns);
                // The links in the name may lead elsewhere by the time that it is looked up.
                self.cover(&visit.0.join(entry), patterns);
            }
            let below = known.below.iter();
            folders
                .extend(below.map(|(entry, next)| (name.join(entry), (visit.0.join(entry), next.clone()))));
            for (entry, next) in &known.links {
                let behind = self.behind(&visit.0, entry, next);
                folders.extend(behind.map(|behind| (name.join(entry), behind)));
            }
            self.after.insert(visit, known);
        }
        Ok(())
    }

    /// Where a walk goes on behind a link to a folder.
    fn behind(&self, folder: &Path, link: &OsStr, states: &States) -> Option<Visit> {
        let link = folder.join(link);
        footprint::note_place(&link);
        footprint::note_target(&link);
        let place = link.canonicalize().ok().filter(|place| place.is_dir())?;
        // What is there is no file of anybody.
        if ["/proc", "/sys", "/dev"].iter().any(|system| place.starts_with(system)) {
            return None;
        }
        let goes_up = folder.starts_with(&place);
        let states = states.iter().filter(|state| !goes_up || self.matcher.ends(**state)).copied();
        Some((place, states.collect()))
    }

    fn cover(&mut self, path: &Path, patterns: &[u16]) {
        for pattern in patterns {
            self.covered[usize::from(*pattern)].insert(path.to_owned());
        }
    }

    fn read(&mut self, visit: &Visit) -> Known {
        let (folder, states) = visit;
        let stamp = stamp(folder);
        footprint::note_stamp(folder, stamp);
        let known = self.before.remove(visit).filter(|known| stamp.is_some() && known.stamp == stamp);
        if let Some(known) = known {
            return known;
        }
        let entries = std::fs::read_dir(folder);
        let is_closed =
            entries.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
        let mut known =
            Known { stamp, is_closed, names: 0, below: Vec::new(), links: Vec::new(), covered: Vec::new() };
        for entry in entries.into_iter().flatten().flatten() {
            known.names += 1;
            let name = entry.file_name();
            let (next, covers) = self.matcher.step(states, &name);
            if !covers.is_empty() {
                known.covered.push((name.clone(), covers));
            }
            match entry.file_type() {
                _ if next.is_empty() => {}
                Ok(kind) if kind.is_dir() => known.below.push((name, next)),
                Ok(kind) if kind.is_symlink() => known.links.push((name, next)),
                _ => {}
            }
        }
        known
    }
}

/// All patterns, taken apart once.
struct Matcher(Vec<Vec<Part>>);

/// One name of a pattern, in small letters: what is forbidden is so whatever the case.
enum Part {
    Deep,
    Name(String),
    Suffix(String),
    Glob(String),
}

impl Part {
    fn new(text: &str) -> Self {
        let text = text.to_lowercase();
        match (plain(&text), text.strip_prefix('*').and_then(plain)) {
            _ if text == "**" => Self::Deep,
            (Some(name), _) => Self::Name(name),
            (None, Some(suffix)) => Self::Suffix(suffix),
            (None, None) => Self::Glob(text),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Deep => true,
            Self::Name(wanted) => name == wanted,
            Self::Suffix(suffix) => name.ends_with(suffix.as_str()),
            Self::Glob(glob) => component_matches(glob, name),
        }
    }
}

impl Matcher {
    fn new(patterns: &[String]) -> Self {
        let parts = |pattern: &String| {
            let mut parts = Vec::new();
            for part in pattern.split('/').filter(|part| !part.is_empty() && *part != ".") {
                if part == ".." {
                    parts.pop();
                } else {
                    parts.push(Part::new(part));
                }
            }
            parts
        };
        Self(patterns.iter().map(parts).collect())
    }

    /// Whether a pattern ends a known number of names further down.
    fn ends(&self, (pattern, at): (u16, u16)) -> bool {
        let parts = self.0.get(usize::from(pattern)).and_then(|parts| parts.get(usize::from(at)..));
        parts.is_some_and(|rest| !rest.iter().any(|part| matches!(part, Part::Deep)))
    }

    fn start(&self) -> States {
        let mut states = Vec::new();
        for pattern in 0..self.0.len() {
            self.add(&mut states, &mut Vec::new(), u16::try_from(pattern).unwrap_or(u16::MAX), 0);
        }
        states.into()
    }

    /// How far the patterns have come behind a name, and which of them cover it. Those are done with.
    fn step(&self, states: &States, name: &OsStr) -> (States, Vec<u16>) {
        let lossy = name.to_string_lossy();
        let is_small = lossy.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        let name = if is_small { lossy } else { lossy.to_lowercase().into() };
        let (mut next, mut covers) = (Vec::new(), Vec::new());
        for (pattern, at) in states {
            let part = self.0.get(usize::from(*pattern)).and_then(|parts| parts.get(usize::from(*at)));
            match part {
                Some(Part::Deep) => self.add(&mut next, &mut covers, *pattern, *at),
                Some(part) if part.matches(&name) => self.add(&mut next, &mut covers, *pattern, at + 1),
                _ => {}
            }
        }
        next.retain(|(pattern, _)| !covers.contains(pattern));
        (next.into(), covers)
    }

    /// Adds a state, and those that follow from it without another name. A pattern that is at its end covers.
    fn add(&self, states: &mut Vec<(u16, u16)>, covers: &mut Vec<u16>, pattern: u16, at: u16) {
        let parts = self.0.get(usize::from(pattern)).map(|parts| &parts[usize::from(at).min(parts.len())..]);
        let Some(rest) = parts else { return };
        if rest.iter().all(|part| matches!(part, Part::Deep)) {
            if !covers.contains(&pattern) {
                covers.push(pattern);
            }
            return;
        }
        if !states.contains(&(pattern, at)) {
            states.push((pattern, at));
        }
        if matches!(rest.first(), Some(Part::Deep)) {
            self.add(states, covers, pattern, at + 1);
        }
    }
}

/// Folders, without those that are in another of them.
pub(super) fn outermost(mut folders: Vec<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
    folders.sort();
    folders.dedup();
    let mut found: Vec<Utf8PathBuf> = Vec::new();
    for folder in folders {
        if !found.iter().any(|above| folder.starts_with(above)) {
            found.push(folder);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;
    use std::time::{Duration, SystemTime};

    fn find(walks: &Walks, root: &Utf8Path, patterns: &[&str]) -> Vec<Vec<String>> {
        let patterns: Vec<String> =
            patterns.iter().map(|pattern| pattern.replace("ROOT", root.as_str())).collect();
        let covered = walks.find(&patterns, &[root.to_owned()]).unwrap();
        let shown = |path: &PathBuf| path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        covered.iter().map(|paths| paths.iter().map(shown).collect()).collect()
    }

    #[test]
    fn all_patterns_are_found_at_once_and_as_things_are_now() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("keys/x")).unwrap();
        for name in [".env", "a/.ENV", "a/b/x.pem", "a/b/y", "keys/k", "a/ab1"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        std::fs::write(root.as_std_path().join(OsStr::from_bytes(b"a/\xff.pem")), "").unwrap();
        let patterns =
            ["/**/.env", "ROOT/a/**/*.pem", "ROOT/a/[ab]?[0-9]", "ROOT/k*/**", "ROOT/*/b/y", "/other/**/x"];
        let walks = Walks::default();
        let expected = |envs: &[&str]| -> Vec<Vec<String>> {
            let rows: [&[&str]; 6] =
                [envs, &["a/b/x.pem", "a/\u{fffd}.pem"], &["a/ab1"], &["keys"], &["a/b/y"], &[]];
            rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
        };
        assert_eq!(find(&walks, &root, &patterns), expected(&[".env", "a/.ENV"]));
        for path in ["", "a", "a/b", "keys"] {
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            std::fs::File::open(root.join(path)).unwrap().set_modified(old).unwrap();
        }
        assert_eq!(find(&walks, &root, &patterns), expected(&[".env", "a/.ENV"]));
        std::fs::write(root.join("a/b/.env"), "").unwrap();
        assert_eq!(find(&walks, &root, &patterns), expected(&[".env", "a/.ENV", "a/b/.env"]));
        assert_eq!(find(&walks, &root, &["ROOT/a/**/y"]), [["a/b/y"]]);
    }

    #[test]
    fn a_folder_too_deep_to_be_named_is_covered_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let mut deep = root.clone();
        while deep.as_str().len() < LONGEST {
            deep.push("d".repeat(200));
        }
        std::fs::create_dir_all(&deep).unwrap();
        let covered = Walks::default().find(&["/**/*.pem".to_owned()], &[root]).unwrap();
        assert_eq!(covered[0].iter().collect::<Vec<_>>(), [deep.as_std_path()]);
    }
}
