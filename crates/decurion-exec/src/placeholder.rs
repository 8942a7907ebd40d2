//! Files that commands must not create. Takes paths that do not exist, keeps something empty there while sessions need
//! it: only what exists can be made read-only for a command.
//!
//! A placeholder is an empty folder, which git ignores, or in a git folder a file that changes nothing. Its
//! modification time marks it as ours, since any new content changes that. While we make or change it its mode marks
//! it, from the first moment, so that a session can be killed at any step. Each session that needs it holds a shared
//! lock on it; the last one removes it, and the next session removes what a killed one has left. A session locks it
//! exclusively only for a moment, to remove it. A command of another session can hold a lock for long; then the
//! placeholder is replaced.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// When a placeholder was changed last, in seconds since 1970: a time at which nothing else was.
const MARK: i64 = 314_159_265;
/// The bit that only we set together with no right for anybody but the owner, on what we are working on.
const STICKY: u32 = 0o1000;
/// How often a placeholder is looked at that another process has locked alone, before it is replaced, and the pause
/// between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);
/// A path cannot be held if more folders than this would have to be made for it.
const MOST_FOLDERS: usize = 16;

/// What is put in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Folder,
    File,
    /// A `commondir` of git that names the folder it lies in, where git looks for its settings anyway. Beside an empty
    /// one git does not work.
    CommonDir,
    /// A `.bash_profile` that reads what bash would read without it.
    BashProfile,
    /// The same in place of `.bash_login`.
    BashLogin,
}

impl Kind {
    fn content(self) -> &'static [u8] {
        match self {
            Self::Folder | Self::File => b"",
            Self::CommonDir => b".\n",
            Self::BashProfile => {
                b"if [ -r ~/.bash_login ]; then . ~/.bash_login; elif [ -r ~/.profile ]; then . ~/.profile; fi\n"
            }
            Self::BashLogin => b"if [ -r ~/.profile ]; then . ~/.profile; fi\n",
        }
    }

    /// The mode while we make it.
    fn unfinished(self) -> u32 {
        unfinished(self == Self::Folder)
    }
}

/// The mode of a placeholder while we make or change it.
fn unfinished(is_folder: bool) -> u32 {
    STICKY | if is_folder { 0o700 } else { 0o600 }
}

/// The placeholders of a session, which removes them at its end. Each is locked, so that no other session removes it.
#[derive(Debug, Default)]
pub struct Placeholders(Mutex<BTreeMap<PathBuf, File>>);

impl Placeholders {
    /// Holds the place of something that is not there, and of the folders above it that are not there either. What is
    /// there already, and no placeholder, stays as it is. After an error there may be nothing.
    pub fn hold(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let mut all = self.all();
        if all.get(path).is_some_and(|file| is_same(file, path)) {
            return Ok(());
        }
        match path.symlink_metadata() {
            Ok(found) if !is_marked(&found) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let is_theirs = |above: &Path| above.symlink_metadata().is_ok_and(|found| !is_marked(&found));
        let mut missing: Vec<&Path> =
            path.ancestors().skip(1).take_while(|above| !is_theirs(above)).collect();
        if missing.len() > MOST_FOLDERS {
            return Err(io::Error::other("too many folders above it do not exist"));
        }
        missing.reverse();
        let folders = missing.into_iter().map(|folder| (folder, Kind::Folder));
        let wanted: Vec<(&Path, Kind)> = folders.chain([(path, kind)]).collect();
        for (path, kind) in &wanted {
            if let Some(above) = path.parent().and_then(|above| all.get(above)) {
                begin(above);
            }
            if let Some(file) = claim(path, *kind)? {
                all.insert((*path).to_owned(), file);
            }
        }
        // What is made in a folder changes its time, so that the innermost is finished first.
        wanted.iter().rev().filter_map(|(path, _)| all.get(*path)).for_each(finish);
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<PathBuf, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        // What is in a folder comes after it.
        for (path, file) in std::mem::take(&mut *self.all()).into_iter().rev() {
            // Another session that holds it removes it at its end.
            if file.try_lock().is_ok() && is_same(&file, &path) {
                remove(&path, &file);
            }
        }
    }
}

/// Removes a placeholder, also one that a session has made that needs one of another kind in this place.
fn remove(path: &Path, file: &File) {
    let above = path.parent().and_then(|above| open(above).ok());
    let above = above.filter(|above| above.metadata().is_ok_and(|found| is_marked(&found)));
    if let Some(above) = &above {
        begin(above);
    }
    let _ = match file.metadata() {
        // Fails for a folder that is no longer empty, which is not ours any more.
        Ok(found) if found.is_dir() => std::fs::remove_dir(path),
        Ok(found) if is_marked(&found) && is_empty(path, &found) => std::fs::remove_file(path),
        _ => Ok(()),
    };
    // The folder above was changed by this alone, and stays a placeholder if another session needs it.
    if let Some(above) = &above {
        finish(above);
    }
}

/// Makes a placeholder or takes the one that is there, and locks it. None if something else is there.
fn claim(path: &Path, kind: Kind) -> io::Result<Option<File>> {
    // Another session may remove it between any two of these steps; then it is made again.
    for attempt in 0..2 * TRIES {
        let is_new = match make(path, kind) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true)?,
        };
        let file = match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if lacks_means(&error) => return Err(error),
            // A link, or something that cannot be read.
            Err(_) => return Ok(None),
            Ok(file) => file,
        };
        if is_new {
            // Not every file system keeps modes.
            mark(&file);
        }
        match file.try_lock_shared() {
            Ok(()) if is_same(&file, path) && is_marked(&file.metadata()?) => {
                complete(&file, kind)?;
                return Ok(Some(file));
            }
            Err(std::fs::TryLockError::WouldBlock) if attempt >= TRIES => {
                // No session takes so long, and none that still needs it lets another lock it alone.
                if is_same(&file, path) && is_placeholder(path) {
                    remove(path, &file);
                }
            }
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            // It was removed or made again; otherwise it is not ours.
            Ok(()) => std::thread::yield_now(),
            // Without locks nothing says that another session needs it: it stays.
            Err(std::fs::TryLockError::Error(_)) => {
                finish(&file);
                return Ok(None);
            }
        }
    }
    if is_marked(&path.symlink_metadata()?) {
        // Another session could remove it while commands of this one run.
        return Err(io::Error::other("another process has locked what holds its place"));
    }
    Ok(None)
}

fn make(path: &Path, kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Folder => DirBuilder::new().mode(kind.unfinished()).create(path),
        Kind::File => {
            OpenOptions::new().write(true).create_new(true).mode(kind.unfinished()).open(path).map(drop)
        }
        Kind::CommonDir | Kind::BashProfile | Kind::BashLogin => make_whole(path, kind),
    }
}

/// Makes a file that has its content from the first moment: a program may look at any time. A file system without unnamed files
/// shows it empty for an instant.
fn make_whole(path: &Path, kind: Kind) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    let above = path.parent().unwrap_or(Path::new("."));
    let mode = Mode::from_bits_truncate(kind.unfinished());
    let unnamed = rustix::fs::open(above, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode);
    let Ok(unnamed) = unnamed else {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(kind.unfinished()).open(path)?;
        // On a full disk nothing must stay: beside an empty `commondir` git does not work.
        return file.write_all(kind.content()).inspect_err(|_| drop(std::fs::remove_file(path)));
    };
    let mut file = File::from(unnamed);
    file.write_all(kind.content())?;
    mark(&file);
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Writes the content of a file that a killed session has left empty.
fn complete(file: &File, kind: Kind) -> io::Result<()> {
    if kind.content().is_empty() || !file.metadata().is_ok_and(|found| found.is_file() && found.len() == 0) {
        return Ok(());
    }
    // By the descriptor, so that nothing else is written that took its name.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().write(true).open(same)?.write_all(kind.content())?;
    mark(file);
    Ok(())
}

/// Whether something could not be opened although it may be what we look for.
fn lacks_means(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO];
    Errno::from_io_error(error).is_some_and(|errno| lacking.contains(&errno))
}

/// Opens what is at a path itself, without waiting for anybody.
fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Marks a placeholder for the time in which something in it is made or removed, which changes its time.
fn begin(file: &File) {
    set_mode(file, unfinished);
}

/// Marks a placeholder by its time alone. One of another user cannot be marked, but it exists.
fn finish(file: &File) {
    mark(file);
    set_mode(file, |is_folder| if is_folder { 0o755 } else { 0o644 });
}

fn set_mode(file: &File, mode: impl Fn(bool) -> u32) {
    let _ =
        file.metadata().and_then(|found| file.set_permissions(Permissions::from_mode(mode(found.is_dir()))));
}

fn mark(file: &File) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MARK.unsigned_abs());
    let _ = file.set_modified(time);
}

fn is_marked(found: &Metadata) -> bool {
    let has_time = found.mtime() == MARK && found.mtime_nsec() == 0;
    // A folder may inherit the bit for its group from the one above.
    let has_mode = found.mode() & 0o1777 == unfinished(found.is_dir());
    (found.is_dir() || found.is_file()) && (has_time || has_mode)
}

fn is_empty(path: &Path, found: &Metadata) -> bool {
    if found.is_dir() {
        return std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    }
    let kinds = [Kind::File, Kind::CommonDir, Kind::BashProfile, Kind::BashLogin];
    found.is_file() && kinds.iter().any(|kind| holds(path, found, *kind))
}

/// Whether a file holds what we put into one of this kind.
fn holds(path: &Path, found: &Metadata, kind: Kind) -> bool {
    let content = kind.content();
    found.len() == content.len() as u64
        && (content.is_empty() || std::fs::read(path).is_ok_and(|read| read == content))
}

/// Whether a path still leads to what was opened there.
fn is_same(file: &File, path: &Path) -> bool {
    let identity = |found: Metadata| (found.dev(), found.ino());
    let (opened, found) = (file.metadata().map(identity), path.symlink_metadata().map(identity));
    matches!((opened, found), (Ok(opened), Ok(found)) if opened == found)
}

/// Whether there is nothing at a path but one of our placeholders.
pub fn is_placeholder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| is_marked(&found) && is_empty(path, &found))
}

/// Removes the placeholder at a path, if there is one, for something that may be made there.
pub fn give_way(path: &Path) {
    if is_placeholder(path) {
        // An empty file need not give way.
        let _ = std::fs::remove_dir(path);
    }
}

/// Removes the placeholder at a path, and those above it that are empty then, if no session needs them: a killed one has
/// left them.
pub fn remove_abandoned(path: &Path) {
    for path in path.ancestors() {
        let Ok(file) = open(path) else { return };
        if !is_placeholder(path) || file.try_lock().is_err() || !is_same(&file, path) {
            return;
        }
        remove(path, &file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    #[test]
    fn nothing_is_left_of_them() {
        let (_folder, room) = room();
        let own = Placeholders::default();
        std::fs::create_dir(room.join("git")).unwrap();
        own.hold(&room.join("a/b/c"), Kind::Folder).unwrap();
        own.hold(&room.join("git/config"), Kind::File).unwrap();
        for name in ["a", "a/b/c", "git/config"] {
            let path = room.join(name);
            assert!(path.symlink_metadata().is_ok_and(|found| is_marked(&found)), "{name}");
        }
        assert!(is_placeholder(&room.join("a/b/c")) && !is_placeholder(&room.join("a")));
        drop(own);
        assert!(!room.join("a").exists() && !room.join("git/config").exists());
        assert!(room.join("git").exists());
    }

    #[test]
    fn those_of_a_killed_session_are_removed_and_those_in_use_stay() {
        let (_folder, room) = room();
        let (killed, living) = (Placeholders::default(), Placeholders::default());
        killed.hold(&room.join("a/b"), Kind::Folder).unwrap();
        killed.hold(&room.join("file"), Kind::CommonDir).unwrap();
        living.hold(&room.join("used"), Kind::Folder).unwrap();
        std::fs::create_dir(room.join("theirs")).unwrap();
        // A killed process leaves its files and closes its descriptors.
        drop(std::mem::take(&mut *killed.all()));
        for name in ["a/b", "file", "used", "theirs", "absent"] {
            remove_abandoned(&room.join(name));
        }
        let left = ["a", "file", "used", "theirs"].map(|name| room.join(name).exists());
        assert_eq!(left, [false, false, true, true]);
    }

    #[test]
    fn what_belongs_to_others_stays() {
        let (_folder, room) = room();
        for name in ["theirs", "used", "replaced"] {
            std::fs::create_dir(room.join(name)).unwrap();
        }
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(room.join("theirs")).unwrap().set_modified(old).unwrap();
        std::fs::write(room.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", room.join("link")).unwrap();
        for name in ["used", "replaced"] {
            std::fs::remove_dir(room.join(name)).unwrap();
        }
        let own = Placeholders::default();
        for name in ["theirs", "used", "replaced", "file", "link", "written"] {
            let kind = if name == "written" { Kind::File } else { Kind::Folder };
            own.hold(&room.join(name), kind).unwrap();
        }
        std::fs::write(room.join("used/file"), "x").unwrap();
        std::fs::remove_dir(room.join("replaced")).unwrap();
        std::fs::write(room.join("replaced"), "").unwrap();
        std::fs::write(room.join("written"), "x").unwrap();
        drop(own);
        for name in ["theirs", "used/file", "replaced", "file", "written"] {
            assert!(room.join(name).exists(), "{name}");
        }
        assert!(room.join("link").is_symlink());
    }

    #[test]
    fn the_last_session_removes_them_and_the_next_one_what_was_left() {
        let (_folder, room) = room();
        let path = room.join(".mcp.json");
        let (first, second) = (Placeholders::default(), Placeholders::default());
        first.hold(&path, Kind::Folder).unwrap();
        second.hold(&path, Kind::Folder).unwrap();
        drop(first);
        assert!(is_placeholder(&path));
        drop(second);
        assert!(!path.exists());
        // As a process that was killed leaves it.
        std::fs::create_dir(&path).unwrap();
        mark(&File::open(&path).unwrap());
        let next = Placeholders::default();
        next.hold(&path, Kind::Folder).unwrap();
        drop(next);
        assert!(!path.exists());
    }

    /// A rule holds a place with a folder, and in a home folder the same place is held with a file.
    #[test]
    fn placeholder_of_another_kind_is_removed_too() {
        let kinds = [Kind::Folder, Kind::File, Kind::CommonDir, Kind::BashProfile];
        for (made, wanted) in kinds.iter().flat_map(|made| kinds.iter().map(move |wanted| (*made, *wanted))) {
            let (_folder, room) = room();
            let path = room.join("place");
            let (first, second) = (Placeholders::default(), Placeholders::default());
            first.hold(&path, made).unwrap();
            second.hold(&path, wanted).unwrap();
            let found = path.symlink_metadata().unwrap();
            assert_eq!(
                found.mode() & 0o7777,
                if found.is_dir() { 0o755 } else { 0o644 },
                "{made:?} {wanted:?}"
            );
            drop(first);
            assert!(is_placeholder(&path), "{made:?} {wanted:?}");
            drop(second);
            assert!(!path.exists(), "{made:?} {wanted:?}");
        }
    }

    /// As a command of a session elsewhere can lock what a killed session has left.
    #[test]
    fn placeholder_that_another_process_locks_is_replaced() {
        for kind in [Kind::Folder, Kind::File, Kind::CommonDir] {
            let (_folder, room) = room();
            let (outer, inner) = (room.join("outer"), room.join("outer/inner"));
            std::fs::create_dir(&outer).unwrap();
            make(&inner, kind).unwrap();
            finish(&File::open(&inner).unwrap());
            finish(&File::open(&outer).unwrap());
            let theirs = File::open(&inner).unwrap();
            theirs.lock().unwrap();
            let own = Placeholders::default();
            own.hold(&inner, kind).unwrap();
            let other = File::open(&inner).unwrap();
            assert!(is_placeholder(&inner), "{kind:?}");
            assert!(matches!(other.try_lock(), Err(std::fs::TryLockError::WouldBlock)), "{kind:?}");
            drop(own);
            assert!(!outer.exists(), "{kind:?}");
        }
        // One that is not empty stays, and no command may rely on it.
        let (_folder, room) = room();
        let (outer, inner) = (room.join("outer"), room.join("outer/inner"));
        std::fs::create_dir_all(&inner).unwrap();
        for path in [&inner, &outer] {
            finish(&File::open(path).unwrap());
        }
        let theirs = File::open(&outer).unwrap();
        theirs.lock().unwrap();
        assert!(Placeholders::default().hold(&inner, Kind::Folder).is_err());
    }

    /// Stops at each step of making and removing a placeholder in a folder that is one too.
    #[test]
    fn a_session_that_is_killed_at_any_step_leaves_nothing_for_good() {
        type Step<'a> = &'a dyn Fn(&Path, &Path);
        let unfinished = |path: &Path, kind: Kind| make(path, kind).unwrap();
        let marked = |path: &Path| mark(&File::open(path).unwrap());
        let finished = |path: &Path| finish(&File::open(path).unwrap());
        let changed = |path: &Path| begin(&File::open(path).unwrap());
        let steps: [Step<'_>; 7] = [
            &|outer, _| unfinished(outer, Kind::Folder),
            &|outer, _| marked(outer),
            &|_, inner| unfinished(inner, Kind::File),
            &|_, inner| finish(&File::open(inner).unwrap()),
            &|outer, _| finished(outer),
            &|outer, _| changed(outer),
            &|_, inner| std::fs::remove_file(inner).unwrap(),
        ];
        for killed_after in 1..=steps.len() {
            let (_folder, room) = room();
            let (outer, inner) = (room.join("outer"), room.join("outer/inner"));
            steps[..killed_after].iter().for_each(|step| step(&outer, &inner));
            let next = Placeholders::default();
            next.hold(&inner, Kind::File).unwrap();
            assert!(is_placeholder(&inner), "{killed_after}");
            drop(next);
            assert!(!outer.exists(), "{killed_after}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test looks from outside, as a person's git does")]
    fn git_works_beside_a_common_folder_that_is_held() {
        let (_folder, room) = room();
        let git = |arguments: &[&str]| {
            let config = ["-c", "user.name=n", "-c", "user.email=e@x"];
            let done =
                std::process::Command::new("git").args(config).args(arguments).current_dir(&room).output();
            let done = done.unwrap();
            assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        git(&["init", "-q"]);
        let path = room.join(".git/commondir");
        let (first, second) = (Placeholders::default(), Placeholders::default());
        first.hold(&path, Kind::CommonDir).unwrap();
        second.hold(&path, Kind::CommonDir).unwrap();
        assert!(is_placeholder(&path));
        git(&["commit", "-q", "--allow-empty", "-m", "one"]);
        git(&["worktree", "add", "-q", "tree"]);
        git(&["config", "user.name", "n"]);
        assert_eq!(git(&["rev-parse", "--git-common-dir"]).trim(), room.join(".git").to_str().unwrap());
        drop(first);
        assert!(is_placeholder(&path));
        drop(second);
        assert!(!path.exists());
        // What belongs to a worktree stays.
        let theirs = room.join(".git/worktrees/tree/commondir");
        let own = Placeholders::default();
        own.hold(&theirs, Kind::CommonDir).unwrap();
        drop(own);
        assert!(theirs.exists());
    }

    #[test]
    fn a_file_that_was_left_empty_gets_its_content() {
        let (_folder, room) = room();
        for kind in [Kind::CommonDir, Kind::BashProfile, Kind::BashLogin] {
            let path = room.join("file");
            OpenOptions::new().write(true).create_new(true).mode(kind.unfinished()).open(&path).unwrap();
            let own = Placeholders::default();
            own.hold(&path, kind).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), kind.content());
            assert!(is_placeholder(&path));
            drop(own);
            assert!(!path.exists());
        }
    }

    #[test]
    fn what_cannot_be_held_is_an_error() {
        let (_folder, room) = room();
        let deep = (0..40).fold(room.clone(), |path, _| path.join("d"));
        assert!(Placeholders::default().hold(&deep, Kind::Folder).is_err());
        std::fs::write(room.join("file"), "").unwrap();
        assert!(Placeholders::default().hold(&room.join("file/x"), Kind::Folder).is_err());
    }

    #[test]
    fn sessions_that_come_and_go_at_once_agree() {
        let (_folder, room) = room();
        let path = room.join("x/y");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let own = Placeholders::default();
                        // A folder above may be removed by another just now.
                        let _ = own.hold(&path, Kind::Folder);
                    }
                });
            }
        });
        let last = Placeholders::default();
        last.hold(&path, Kind::Folder).unwrap();
        drop(last);
        assert!(!path.exists());
    }
}
