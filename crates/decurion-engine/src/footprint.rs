//! What was looked at on the disk to find an answer. Takes looks at paths while an answer is found; tells later, by looking
//! again, whether the answer would be the same.
//!
//! An answer may only be kept if all looks that it depends on go through this module.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use camino::{Utf8DirEntry, Utf8Path, Utf8PathBuf};

/// What was changed this shortly before it was looked at may have been changed again since, at the same time by its file
/// system's clock. Linux moves that clock on at least every 10 ms; this is three times as much.
const UNSURE: Duration = Duration::from_millis(30);
/// The same for file systems that keep whole seconds, or even ones.
const UNSURE_OF_SECONDS: Duration = Duration::from_secs(3);

/// Which file or folder it is, and when it was changed. The last two are times that no program can set.
pub(crate) type Stamp = (u64, u64, i64, i64, i64, i64);

/// All looks of one answer.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    looks: Vec<(PathBuf, Look, Seen)>,
    folders: Vec<Names>,
}

/// Looks at names in one folder. As long as its list of names is as it was, so are they, which is one look for all of them:
/// for the many names in a home folder that most people do not have, and for each folder on the way to a path.
#[derive(Debug)]
struct Names {
    folder: PathBuf,
    /// When all of them were as they should be; none where that was not seen yet.
    unchanged: Mutex<Option<Seen>>,
    looks: Vec<(PathBuf, Look, Seen)>,
}

/// What is noted while an answer is found.
#[derive(Debug, Default)]
struct Noted {
    looks: HashMap<(PathBuf, Look), Seen>,
    /// Folders in which names were looked at, now or earlier, as they were then.
    remembered: HashMap<PathBuf, Stamp>,
}

/// How a path was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Look {
    /// What the name stands for: nothing, a link, a folder or a file.
    Name,
    /// The same, links followed.
    Target,
    /// What is in the file or the folder, links followed.
    Content,
    /// The path without links.
    Place,
    /// Whether its file system can be written.
    Mount,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    /// Something that keeps its kind as long as it is there.
    Kind(u64, u64, FileType),
    Stamp(Stamp),
    Place(PathBuf),
    ReadOnly(bool),
}

thread_local! {
    /// While it matters: what could not be looked at on this thread.
    static CLOSED: RefCell<Option<Vec<Utf8PathBuf>>> = const { RefCell::new(None) };
    static NOTES: RefCell<Notes> = const { RefCell::new(Notes::Off) };
}

/// What is noted on a thread.
#[derive(Debug, Default)]
enum Notes {
    #[default]
    Off,
    /// All looks, while an answer is found.
    On(Noted),
    /// The answer cannot be kept.
    Spoiled,
}

/// Finds an answer, and notes what it depends on; nothing is noted if that may be changing now.
pub(crate) fn noted<T>(answer: impl FnOnce() -> T) -> (T, Option<Footprint>) {
    let outer = Outer(NOTES.replace(Notes::On(Noted::default())));
    let found = answer();
    let notes = NOTES.take();
    drop(outer);
    match notes {
        Notes::On(noted) => (found, noted.footprint()),
        Notes::Off | Notes::Spoiled => (found, None),
    }
}

/// Finds something that an answer depends on and that is settled for good: nothing is noted.
pub(crate) fn unnoted<T>(answer: impl FnOnce() -> T) -> T {
    let _outer = Outer(NOTES.take());
    answer()
}

/// What was noted before, which comes back also after a panic.
struct Outer(Notes);

impl Drop for Outer {
    fn drop(&mut self) {
        NOTES.set(std::mem::take(&mut self.0));
    }
}

/// Finds an answer, and what could not be looked at for it because its mode does not allow that.
pub(crate) fn with_closed<T>(answer: impl FnOnce() -> T) -> (T, Vec<Utf8PathBuf>) {
    CLOSED.set(Some(Vec::new()));
    let found = answer();
    (found, CLOSED.take().unwrap_or_default())
}

/// Notes a look that was not allowed.
pub(crate) fn told<T>(path: &Utf8Path, looked: io::Result<T>) -> io::Result<T> {
    if looked.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        CLOSED.with_borrow_mut(|closed| closed.as_mut().map(|closed| closed.push(path.to_owned())));
    }
    looked
}

/// What keeps this account from a path: the folder that it cannot enter or list, or the file that it cannot read. Links are
/// followed.
pub(crate) fn obstacle(path: &Utf8Path) -> Option<Utf8PathBuf> {
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let found = path.ancestors().find(|above| above.symlink_metadata().is_ok())?;
        if !found.is_symlink() {
            return found.canonicalize_utf8().ok();
        }
        let target = found.parent()?.join(found.read_link_utf8().ok()?);
        path = decurion_tools::bash::normal(&target.join(path.strip_prefix(found).ok()?));
    }
    None
}

/// The answer depends on something that cannot be noted.
pub(crate) fn spoil() {
    NOTES.with_borrow_mut(|notes| {
        if let Notes::On(_) = notes {
            *notes = Notes::Spoiled;
        }
    });
}

impl Footprint {
    /// Whether everything is as it was.
    pub fn holds(&self) -> bool {
        self.folders.iter().all(Names::hold) && self.looks.iter().all(is_as_it_was)
    }
}

impl Names {
    fn hold(&self) -> bool {
        let now = Look::Content.at(&self.folder);
        let mut unchanged = self.unchanged.lock().unwrap_or_else(PoisonError::into_inner);
        if now.is_some() && *unchanged == now {
            return true;
        }
        let hold = self.looks.iter().all(is_as_it_was);
        *unchanged = now.filter(|now| hold && matches!(now, Seen::Stamp(_)));
        hold
    }
}

fn is_as_it_was((path, look, seen): &(PathBuf, Look, Seen)) -> bool {
    look.at(path).as_ref() == Some(seen)
}

impl Noted {
    /// None where a folder has changed since something of it was remembered.
    fn footprint(mut self) -> Option<Footprint> {
        let is_unchanged =
            |(folder, stamp): (&PathBuf, &Stamp)| Look::Content.at(folder) == Some(Seen::Stamp(*stamp));
        if !self.remembered.iter().all(is_unchanged) {
            return None;
        }
        // What is no link is its own target.
        let targets: Vec<PathBuf> = self
            .looks
            .keys()
            .filter(|(_, look)| *look == Look::Target)
            .map(|(path, _)| path.clone())
            .collect();
        for path in targets {
            let seen = |look| self.looks.get(&(path.clone(), look));
            if matches!(seen(Look::Name), Some(Seen::Kind(..))) && seen(Look::Name) == seen(Look::Target) {
                self.looks.remove(&(path.clone(), Look::Target));
            }
        }
        let mut folders: HashMap<PathBuf, Vec<(PathBuf, Look, Seen)>> = HashMap::new();
        let mut looks = Vec::new();
        for ((path, look), seen) in self.looks {
            match folder_that_tells(&path, look, &seen) {
                Some(folder) => folders.entry(folder.to_owned()).or_default().push((path, look, seen)),
                None => looks.push((path, look, seen)),
            }
        }
        let names = |(folder, looks)| Names { folder, unchanged: Mutex::default(), looks };
        Some(Footprint { looks, folders: folders.into_iter().map(names).collect() })
    }
}

/// The folder whose list of names tells what is seen.
fn folder_that_tells<'a>(path: &'a Path, look: Look, seen: &Seen) -> Option<&'a Path> {
    let is_of_kernel = ["/proc", "/sys"].iter().any(|folder| path.starts_with(folder));
    let folder = match (look, seen) {
        _ if is_of_kernel => return None,
        (Look::Name, Seen::Kind(..) | Seen::Stamp(_)) => path.parent()?,
        // Behind a link that leads nowhere, which may be the last name, something may come to be without a change here.
        (_, Seen::Nothing) => path.ancestors().find(|above| above.symlink_metadata().is_ok())?,
        _ => return None,
    };
    folder.is_dir().then_some(folder)
}

impl Look {
    /// What is seen now; none if it may be changing, or cannot be told.
    fn at(self, path: &Path) -> Option<Seen> {
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + 1);
        let seen = match self {
            Self::Name => path.symlink_metadata().map(|found| {
                // Another link may be made in place of one, with the same number.
                if found.is_symlink() { stamp_of(&found).map(Seen::Stamp) } else { Some(kind_of(&found)) }
            }),
            Self::Target => path.metadata().map(|found| Some(kind_of(&found))),
            Self::Content => path.metadata().map(|found| stamp_of(&found).map(Seen::Stamp)),
            Self::Place => path.canonicalize().map(|place| Some(Seen::Place(place))),
            Self::Mount => Ok(Some(Seen::ReadOnly(decurion_exec::is_read_only(path)))),
        };
        match seen {
            Ok(seen) => seen,
            Err(error) if is_absence(&error) => Some(Seen::Nothing),
            Err(_) => None,
        }
    }

    /// Notes a look that is about to be made.
    fn note(self, path: &Path) {
        NOTES.with_borrow_mut(|notes| {
            let Notes::On(noted) = notes else { return };
            let key = (path.to_owned(), self);
            if noted.looks.contains_key(&key) {
                return;
            }
            let Some(seen) = self.at(path) else {
                *notes = Notes::Spoiled;
                return;
            };
            // What is renamed away and back while the answer is found leaves no other trace.
            let is_settled = folder_that_tells(path, self, &seen).is_none_or(|folder| {
                noted.remembered.contains_key(folder)
                    || folder.metadata().ok().and_then(|found| stamp_of(&found)).is_some_and(|stamp| {
                        noted.remembered.insert(folder.to_owned(), stamp);
                        true
                    })
            });
            noted.looks.insert(key, seen);
            if !is_settled {
                *notes = Notes::Spoiled;
            }
        });
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn kind_of(found: &Metadata) -> Seen {
    Seen::Kind(found.dev(), found.ino(), found.file_type())
}

/// What a folder's list of names is known by; none where it may be changing, or is not there.
pub(crate) fn stamp(folder: &Path) -> Option<Stamp> {
    stamp_after(folder, Duration::ZERO)
}

/// The same as it would be after this time.
pub(crate) fn stamp_after(folder: &Path, time: Duration) -> Option<Stamp> {
    stamp_at(&folder.symlink_metadata().ok()?, now()? + time)
}

fn stamp_of(found: &Metadata) -> Option<Stamp> {
    stamp_at(found, now()?)
}

fn now() -> Option<Duration> {
    #[expect(clippy::disallowed_methods, reason = "compared with the times of files")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
    #[cfg(test)]
    let now = now.map(|now| now + tests::LATER.get());
    now
}

fn stamp_at(found: &Metadata, now: Duration) -> Option<Stamp> {
    is_settled(found, now).then(|| {
        (found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec())
    })
}

/// Whether a change from now on gives another time.
fn is_settled(found: &Metadata, now: Duration) -> bool {
    let changed = (found.mtime(), found.mtime_nsec()).max((found.ctime(), found.ctime_nsec()));
    // A clock that tells microseconds apart shows some, but for one time in a thousand.
    let unsure = if changed.1 % 1_000_000 == 0 { UNSURE_OF_SECONDS } else { UNSURE };
    let (Ok(seconds), Ok(part)) = (u64::try_from(changed.0), u32::try_from(changed.1)) else { return false };
    now > Duration::new(seconds, part) + unsure
}

/// What a name stands for, links not followed.
pub(crate) fn name(path: &Utf8Path) -> io::Result<Metadata> {
    Look::Name.note(path.as_std_path());
    told(path, path.symlink_metadata())
}

/// Whether a name stands for something.
pub(crate) fn is_there(path: &Utf8Path) -> bool {
    name(path).is_ok()
}

/// Whether there is a folder, links followed.
pub(crate) fn is_folder(path: &Utf8Path) -> bool {
    Look::Target.note(path.as_std_path());
    told(path, path.metadata()).is_ok_and(|found| found.is_dir())
}

/// Whether there is anything, links followed.
pub(crate) fn leads_somewhere(path: &Utf8Path) -> bool {
    Look::Target.note(path.as_std_path());
    told(path, path.metadata()).is_ok()
}

/// Whether there is a file, links followed.
pub(crate) fn is_file(path: &Utf8Path) -> bool {
    Look::Target.note(path.as_std_path());
    told(path, path.metadata()).is_ok_and(|found| found.is_file())
}

/// A path without links.
pub(crate) fn place(path: &Utf8Path) -> io::Result<Utf8PathBuf> {
    Look::Place.note(path.as_std_path());
    told(path, path.canonicalize_utf8())
}

/// What is in a folder; nothing if it cannot be read.
pub(crate) fn entries(folder: &Utf8Path) -> impl Iterator<Item = Utf8DirEntry> + use<> {
    Look::Content.note(folder.as_std_path());
    told(folder, folder.read_dir_utf8()).into_iter().flatten().flatten()
}

/// A folder was looked at that had this stamp before.
pub(crate) fn note_stamp(folder: &Path, stamp: Option<Stamp>) {
    NOTES.with_borrow_mut(|notes| {
        let Notes::On(noted) = notes else { return };
        let seen = stamp.map(Seen::Stamp);
        let before = seen.clone().map(|seen| noted.looks.insert((folder.to_owned(), Look::Content), seen));
        // It has changed between two looks.
        if before.is_none_or(|before| before.is_some() && before != seen) {
            *notes = Notes::Spoiled;
        }
    });
}

/// What is in a folder is told from memory, which is right as long as the folder has this stamp.
pub(crate) fn note_remembered(folder: &Path, stamp: Option<Stamp>) {
    NOTES.with_borrow_mut(|notes| {
        let Notes::On(noted) = notes else { return };
        let before = stamp.map(|stamp| noted.remembered.insert(folder.to_owned(), stamp));
        // It has changed between two looks.
        if before.is_none_or(|before| before.is_some() && before != stamp) {
            *notes = Notes::Spoiled;
        }
    });
}

/// It is about to be asked where a path leads.
pub(crate) fn note_place(path: &Path) {
    Look::Place.note(path);
}

/// It is about to be asked what is behind a path.
pub(crate) fn note_target(path: &Path) {
    Look::Target.note(path);
}

/// Whether nothing can be written below a path because of how its file system is mounted.
pub(crate) fn is_read_only(path: &Path) -> bool {
    Look::Mount.note(path);
    decurion_exec::is_read_only(path)
}

/// Whether a folder cannot be listed, so that nobody knows what is in it.
pub(crate) fn is_closed(folder: &Utf8Path) -> bool {
    Look::Content.note(folder.as_std_path());
    folder.read_dir_utf8().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether names in a folder are not text, so that [`entries`] leaves them out.
pub(crate) fn has_unnamed(folder: &Utf8Path) -> bool {
    Look::Content.note(folder.as_std_path());
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().is_none())
}

/// A name is about to be looked at.
pub(crate) fn note_name(path: &Path) {
    Look::Name.note(path);
}

/// The content of a file or a folder is about to be read.
pub(crate) fn note_content(path: &Path) {
    Look::Content.note(path);
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How much later it is on this thread than the clock says.
        pub(crate) static LATER: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        /// How often something was looked at.
        pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
    }

    /// Gives a file or folder another time of change, whatever the clock of its file system tells apart.
    pub(crate) fn touch(path: &Utf8Path) {
        thread_local!(static NEXT: Cell<u64> = const { Cell::new(1_000_000_000) });
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(NEXT.replace(NEXT.get() + 1));
        std::fs::File::open(path).unwrap().set_modified(time).unwrap();
    }

    type Answer = fn(&Utf8Path) -> String;
    /// Gives what has another time of change then.
    type Change = fn(&Utf8Path) -> Utf8PathBuf;

    const LIST: Answer = |root| {
        let mut names: Vec<_> = entries(root).map(|entry| entry.file_name().to_owned()).collect();
        names.sort();
        names.join(" ")
    };
    const KIND: Answer = |root| format!("{:?}", name(&root.join("a")).map(|found| found.is_dir()).ok());
    const LEADS: Answer = |root| format!("{:?}", place(&root.join("link")).ok());
    const TEXT: Answer = |root| crate::repository::small(&root.join("b")).unwrap_or_default();

    const CHANGES: [Change; 4] = [
        |root| {
            std::fs::create_dir(root.join("new")).unwrap();
            root.to_owned()
        },
        |root| {
            std::fs::rename(root.join("a"), root.join("old")).unwrap();
            std::fs::write(root.join("a"), "").unwrap();
            root.to_owned()
        },
        |root| {
            std::fs::remove_file(root.join("link")).unwrap();
            std::os::unix::fs::symlink("b", root.join("link")).unwrap();
            root.to_owned()
        },
        |root| {
            std::fs::write(root.join("b"), "other").unwrap();
            root.join("b")
        },
    ];

    #[test]
    fn footprint_holds_as_long_as_the_answer_is_the_same() {
        for (name, answer, holds, is_kept_at_once) in [
            ("names in a folder", LIST, [false, false, false, true], false),
            ("kind of a folder", KIND, [true, false, true, true], false),
            ("place behind a link", LEADS, [true, true, false, true], true),
            ("text of a file", TEXT, [true, true, true, false], false),
        ] {
            for (change, holds) in CHANGES.iter().zip(holds) {
                let folder = tempfile::tempdir().unwrap();
                let root = &Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
                std::fs::create_dir(root.join("a")).unwrap();
                std::fs::write(root.join("b"), "text").unwrap();
                std::os::unix::fs::symlink("a", root.join("link")).unwrap();
                // What was just made may be made again at the same time.
                assert_eq!(noted(|| answer(root)).1.is_some(), is_kept_at_once, "{name}");
                LATER.set(Duration::from_secs(3600));
                let (before, footprint) = noted(|| answer(root));
                let footprint = footprint.unwrap();
                assert!(footprint.holds(), "{name}");
                touch(&change(root));
                assert_eq!(footprint.holds(), holds, "{name}");
                assert!(!holds || answer(root) == before, "{name}");
                LATER.set(Duration::ZERO);
            }
        }
    }

    #[test]
    fn absent_names_are_looked_at_as_one_until_something_comes_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let root = &Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir(root.join("home")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("home/dangling")).unwrap();
        let names = ["a", "b", "c/d", "dangling/e"].map(|name| root.join("home").join(name));
        LATER.set(Duration::from_secs(3600));
        let footprint = noted(|| names.iter().for_each(|path| assert!(!is_folder(path)))).1.unwrap();
        assert_eq!(footprint.folders.iter().map(|names| names.looks.len()).collect::<Vec<_>>(), [3]);
        assert!(footprint.holds());
        // Another name in the folder.
        std::fs::write(root.join("home/other"), "").unwrap();
        touch(&root.join("home"));
        assert!(footprint.holds());
        std::fs::create_dir_all(root.join("home/nowhere/e")).unwrap();
        assert!(!footprint.holds());
        std::fs::remove_dir_all(root.join("home/nowhere")).unwrap();
        assert!(footprint.holds());
        std::fs::create_dir_all(root.join("home/c/d")).unwrap();
        assert!(!footprint.holds());
        LATER.set(Duration::ZERO);
    }

    #[test]
    fn names_in_a_folder_cost_one_look_until_the_folder_changes() {
        let folder = tempfile::tempdir().unwrap();
        let root = &Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir(root.join("a")).unwrap();
        std::fs::write(root.join("b"), "").unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        LATER.set(Duration::from_secs(3600));
        let names = ["a", "b", "link", "none", "none/deep"].map(|name| root.join(name));
        let (_, footprint) = noted(|| {
            for path in &names {
                _ = name(path);
            }
            is_folder(&names[0])
        });
        let footprint = footprint.unwrap();
        let looks = || {
            LOOKS.set(0);
            assert!(footprint.holds());
            LOOKS.get()
        };
        assert_eq!((looks(), looks()), (6, 1));
        std::fs::write(root.join("other"), "").unwrap();
        touch(root);
        assert_eq!((looks(), looks()), (6, 1));
        std::fs::remove_file(root.join("b")).unwrap();
        std::fs::create_dir(root.join("b")).unwrap();
        touch(root);
        assert!(!footprint.holds() && !footprint.holds());
        LATER.set(Duration::ZERO);
    }

    #[test]
    fn nothing_is_kept_where_a_folder_changed_after_something_was_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let root = &Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        LATER.set(Duration::from_secs(3600));
        let remembered = || note_remembered(root.as_std_path(), stamp(root.as_std_path()));
        assert!(noted(remembered).1.is_some());
        assert!(noted(|| (remembered(), touch(root))).1.is_none());
        assert!(noted(|| note_remembered(root.as_std_path(), None)).1.is_none());
        LATER.set(Duration::ZERO);
    }

    #[test]
    fn nothing_is_kept_of_an_answer_that_is_spoiled() {
        let root = Utf8Path::new("/");
        assert!(noted(|| is_folder(root)).1.is_some());
        assert!(noted(|| (is_folder(root), spoil())).1.is_none());
        let (_, footprint) = noted(|| unnoted(|| (is_folder(root), spoil())));
        let footprint = footprint.unwrap();
        assert_eq!((footprint.looks.len(), footprint.folders.len()), (0, 0));
    }
}
