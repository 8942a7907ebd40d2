//! Repositories that commands put where a person's git finds them, and files in its folders. Takes a working directory
//! before the first command, looks at what git would find in it later, and moves aside what could make it run a program. The kernel cannot keep
//! commands from making these: they are ordinary files, which become a repository together.
//!
//! After each command it looks at what git finds from the top of a checkout. Repositories in folders below are looked for
//! when that has become cheap beside the time that has passed, and when the session ends.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::places::WithinKind;
use super::planted_files::{self, Depth, Files};
use super::{MOST_NESTED, places, unfinished};
use crate::footprint::{Stamp, stamp};
use crate::repository::{self, Purpose};

/// Folders are looked through if it takes this part of the time since the last time.
const COST: u32 = 50;
/// As many of what was moved are named.
const MOST_LISTED: usize = 5;
/// Closed folders are opened in so many folders above each other.
const MOST_NESTED_CLOSED: usize = 20;
/// So much of a name is kept in the new one: no file system has longer names than 255 bytes.
const LONGEST_KEPT: usize = 200;
/// What is moved has this in its new name.
pub(super) const ASIDE: &str = ".refused-";

/// The new places of what was moved.
#[derive(Debug, Default)]
pub(super) struct Moved {
    repositories: Vec<Utf8PathBuf>,
    /// Files in folders of git.
    files: Vec<Utf8PathBuf>,
}

impl Moved {
    pub fn add(&mut self, other: Self) {
        self.repositories.extend(other.repositories);
        self.files.extend(other.files);
    }

    /// What a model and a person should know of it.
    pub fn text(&self) -> Option<String> {
        let list = |moved: &[Utf8PathBuf]| {
            let names: Vec<&str> = moved.iter().take(MOST_LISTED).map(|path| path.as_str()).collect();
            let more = moved.len().saturating_sub(MOST_LISTED);
            names.join(", ") + &if more > 0 { format!(", and {more} more") } else { String::new() }
        };
        let repositories = (!self.repositories.is_empty()).then(|| {
            format!(
                "During the session a git repository was made whose settings could run programs when git is called \
                 there. Decurion renamed it: {}. The user can rename it back",
                list(&self.repositories)
            )
        });
        let files = (!self.files.is_empty()).then(|| {
            format!(
                "During the session files or links were put into a folder of git that could make git write elsewhere \
                 or run a program when it is called there. Decurion renamed them: {}. The user can rename them back",
                list(&self.files)
            )
        });
        let texts: Vec<String> = repositories.into_iter().chain(files).collect();
        (!texts.is_empty()).then(|| texts.join(". "))
    }
}

/// The working directories that commands have written in.
#[derive(Debug, Default)]
pub(super) struct Planted(Mutex<HashMap<Utf8PathBuf, Watched>>);

#[derive(Debug)]
struct Watched {
    /// The repositories that git looked into before the first command.
    before: Vec<Utf8PathBuf>,
    /// Those that its index named when it was read last.
    nested: Vec<Utf8PathBuf>,
    /// The index then; none where it may have changed since.
    stamp: Option<Stamp>,
    found: Arc<Found>,
    /// When folders below were looked through last, and how long that took.
    looked: Look,
    /// The same of the folder of git.
    looked_at_git: Look,
    /// The repositories that were found then.
    repositories: Vec<Utf8PathBuf>,
}

/// When something was looked through last, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Look(Instant, Duration);

impl Look {
    fn since(began: Instant) -> Self {
        Self(Instant::now(), began.elapsed())
    }

    fn is_due(self) -> bool {
        self.0.elapsed() > self.1 * COST
    }
}

/// What was there before the first command.
#[derive(Debug)]
struct Found {
    /// The folders of git, or the files that name them.
    repositories: BTreeSet<Utf8PathBuf>,
    /// Folders of git without links in their paths, whose settings commands cannot change.
    protected: BTreeSet<Utf8PathBuf>,
    /// What unfinished operations of git ran when they were continued.
    programs: BTreeSet<String>,
    /// By which git wrote elsewhere or ran a program.
    files: Files,
    /// Repositories that commands can change nothing in.
    read_only: BTreeSet<Utf8PathBuf>,
    /// Folders whose names are not text.
    unnamed: BTreeSet<PathBuf>,
}

impl Found {
    /// What is there besides the repository of the folder itself.
    fn new(folder: &Utf8Path, (repositories, unnamed): (Vec<Utf8PathBuf>, BTreeSet<PathBuf>)) -> Self {
        let own = folder.join(".git");
        let own = own.symlink_metadata().is_ok().then_some(own);
        let tops =
            repositories.iter().filter_map(|git| git.parent().filter(|_| git.file_name() == Some(".git")));
        let named = tops.chain([folder]).flat_map(places::git_folders);
        let folders: BTreeSet<Utf8PathBuf> = named.chain(repositories.iter().cloned()).collect();
        let within: Vec<_> = folders.iter().flat_map(|git| places::folders_within(git)).collect();
        let programs = within.iter().flat_map(|within| unfinished::programs(&within.folder)).collect();
        let protected = within.iter().filter_map(|within| within.folder.canonicalize_utf8().ok()).collect();
        let read_only: BTreeSet<Utf8PathBuf> = repositories.iter().skip(MOST_NESTED).cloned().collect();
        let looked_in = places::git_folders(folder).pop().into_iter().chain(repositories.iter().cloned());
        let looked_in = looked_in.filter(|git| is_folder(git) && !read_only.contains(git));
        let files = looked_in.flat_map(|git| planted_files::find(&git, Depth::Whole)).collect();
        let repositories = repositories.into_iter().chain(own).collect();
        let unnamed = unnamed.into_iter().chain(unnamed_within(&within)).collect();
        Self { repositories, protected, programs, files, read_only, unnamed }
    }

    /// The repositories in a folder, and its own. New folders with repositories whose names are not text are renamed before,
    /// since nothing else would look at them; gives their new names.
    fn repositories_of(
        &self,
        folder: &Utf8Path,
        open: &mut dyn FnMut(&Utf8Path) -> bool,
    ) -> (Vec<Utf8PathBuf>, Vec<Utf8PathBuf>) {
        /// There may be others in those that were renamed.
        const LOOKS: usize = 10;
        let mut renamed = Vec::new();
        for _ in 0..LOOKS {
            let places::Repositories { mut git, unnamed } = places::repositories_in(folder, open);
            let new = unnamed.iter().filter(|path| !self.unnamed.contains(*path));
            let before = renamed.len();
            renamed.extend(new.filter(|path| places::holds_repository(path)).filter_map(|path| {
                let above = path.parent()?;
                aside(above, path.file_name()?, Utf8Path::from_path(above)?)
            }));
            if renamed.len() == before {
                git.extend(Some(folder.join(".git")).filter(|git| git.symlink_metadata().is_ok()));
                return (git, renamed);
            }
        }
        (Vec::new(), renamed)
    }

    /// Which repositories are new and would run something for a person who looks at them.
    fn new_of(&self, repositories: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
        let new = repositories.iter().filter(|git| !self.repositories.contains(*git));
        new.filter(|git| repository::runs_for_looks(git, &self.protected)).cloned().collect()
    }

    /// Moves what is new of the files in a folder of git by which git would write elsewhere or run a program.
    fn set_files_aside(&self, git: &Utf8Path, depth: Depth) -> Vec<Utf8PathBuf> {
        if self.read_only.contains(git) || !is_folder(git) {
            return Vec::new();
        }
        let mut new = Vec::new();
        for _ in 0..MOST_NESTED_CLOSED {
            let found = planted_files::find(git, depth).into_iter().filter(|file| !self.files.contains(file));
            let (closed, others): (Vec<_>, Vec<_>) =
                found.map(|(path, _)| path).partition(|path| path.is_dir() && !path.is_symlink());
            new = others;
            // Git cannot work with them either.
            let opened = closed.iter().filter(|folder| open_to_owner(folder).is_some());
            if opened.count() == 0 {
                break;
            }
        }
        new.iter().filter_map(|path| aside(path.parent()?, path.file_name()?, git)).collect()
    }

    /// Moves new worktrees and submodules in these folders of git that would run something.
    fn set_within_aside(&self, folders: Vec<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
        // Names that are not text become text, so that what has them is looked at.
        let within: Vec<_> = folders.iter().flat_map(|git| places::folders_within(git)).collect();
        let unnamed = unnamed_within(&within).into_iter().filter(|path| !self.unnamed.contains(path));
        let renamed = unnamed.filter_map(|path| {
            let above = path.parent()?;
            aside(above, path.file_name()?, Utf8Path::from_path(above)?)
        });
        let renamed: Vec<Utf8PathBuf> = renamed.collect();
        let within = self.new_within(folders);
        let moved =
            within.iter().filter_map(|(git, within)| aside(within.parent()?, within.file_name()?, git));
        renamed.into_iter().chain(moved).collect()
    }

    /// New worktrees and submodules in the folders of git of a checkout that would run something, with those folders.
    fn new_within(&self, folders: Vec<Utf8PathBuf>) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
        let is_new =
            |git: &Utf8PathBuf| git.canonicalize_utf8().is_ok_and(|place| !self.protected.contains(&place));
        let runs = |within: &places::Within| {
            match within.kind {
                WithinKind::Worktree => repository::runs_for_looks(&within.folder, &self.protected),
                WithinKind::Repository => repository::runs_for_submodules(&within.folder, &self.protected),
                // Commands cannot change what is in it.
                WithinKind::Closed => false,
            }
        };
        let mut found = Vec::new();
        for git in folders {
            let within = places::folders_within(&git).into_iter();
            let new = within.filter(|within| is_new(&within.folder) && runs(within));
            // The folder itself is looked at as a repository.
            let new = new.filter(|within| within.folder != git);
            found.extend(new.map(|within| (git.clone(), within.folder)));
        }
        found
    }
}

impl Planted {
    /// Remembers a working directory before commands write in it, with the repositories in it.
    /// Takes also the folders whose names are not text.
    pub(super) fn watch(
        &self,
        folder: &Utf8Path,
        repositories: impl FnOnce() -> (Vec<Utf8PathBuf>, BTreeSet<PathBuf>),
    ) {
        if self.all().contains_key(folder) {
            return;
        }
        let began = Instant::now();
        let found = Arc::new(Found::new(folder, repositories()));
        let nested = repository::gitlinks(folder);
        let before = nested.iter().filter(|nested| has_git(nested)).cloned().collect();
        let (looked, looked_at_git) = (Look::since(began), Look::since(Instant::now()));
        let repositories = Vec::new();
        let watched = Watched { before, nested, stamp: None, found, looked, looked_at_git, repositories };
        self.all().entry(folder.to_owned()).or_insert(watched);
    }

    /// All that are watched.
    pub(super) fn watched(&self) -> Vec<Utf8PathBuf> {
        self.all().keys().cloned().collect()
    }

    /// The worktrees in a working directory that commands made during the session. Their settings are looked at after each
    /// command, so that commands may remove them.
    pub(super) fn worktrees_made(&self, folder: &Utf8Path, git: &[Utf8PathBuf]) -> BTreeSet<Utf8PathBuf> {
        let Some(found) = self.all().get(folder).map(|watched| Arc::clone(&watched.found)) else {
            return BTreeSet::new();
        };
        let below = git.iter().flat_map(|git| places::worktrees_below(git, folder));
        // One that is a link may lead to another.
        let is_new = |worktree: &Utf8PathBuf| {
            worktree
                .canonicalize_utf8()
                .is_ok_and(|place| place == *worktree && !found.protected.contains(&place))
        };
        below.filter(is_new).collect()
    }

    /// Moves what commands have put there.
    pub(super) fn set_aside(&self, folder: &Utf8Path, is_last: bool) -> Moved {
        let known = self.all().get(folder).map(|watched| {
            let due = |look: Look| is_last || look.is_due();
            (Arc::clone(&watched.found), due(watched.looked), due(watched.looked_at_git))
        });
        let Some((found, is_due, git_is_due)) = known else { return Moved::default() };
        let mut moved =
            Moved { repositories: self.set_repositories_aside(folder, &found), files: Vec::new() };
        let own = places::git_folders(folder).pop();
        if let Some(git) = &own {
            let began = Instant::now();
            let depth = if git_is_due { Depth::Whole } else { Depth::Top };
            moved.files.extend(found.set_files_aside(git, depth));
            if let Some(watched) = self.all().get_mut(folder).filter(|_| git_is_due) {
                watched.looked_at_git = Look::since(began);
            }
        }
        if is_due || self.has_unnamed_nested(folder) {
            let began = Instant::now();
            let mut unlocked = Unlocked { root: folder, folders: Vec::new() };
            let mut open = |closed: &Utf8Path| is_last && unlocked.unlock(closed);
            let (repositories, renamed) = found.repositories_of(folder, &mut open);
            moved.repositories.extend(renamed);
            moved.repositories.extend(found.new_of(&repositories).iter().filter_map(|git| refuse(git)));
            let others = repositories.iter().filter(|git| own.as_ref() != Some(*git));
            moved.files.extend(others.flat_map(|git| found.set_files_aside(git, Depth::Whole)));
            let others = repositories.iter().filter(|git| own.as_ref() != Some(*git) && is_folder(git));
            moved.repositories.extend(found.set_within_aside(others.cloned().collect()));
            if let Some(watched) = self.all().get_mut(folder) {
                (watched.looked, watched.repositories) = (Look::since(began), repositories);
            }
        }
        moved
    }

    /// Moves repositories that git finds from the top of a checkout.
    fn set_repositories_aside(&self, folder: &Utf8Path, found: &Found) -> Vec<Utf8PathBuf> {
        let mut moved = Vec::new();
        // Where `.git` is broken, git takes the folder itself for the repository.
        if has_git(folder) && repository::is_bare_by_accident(folder) {
            moved.extend(aside(folder, "HEAD", folder));
        }
        // Git looks into these when it is called in the outer repository.
        let new = self.new_nested(folder).into_iter().filter(|nested| has_git(nested));
        let doubtful = new.filter(|nested| repository::doubt(nested, Purpose::Change, None).is_some());
        moved.extend(doubtful.filter_map(|nested| refuse(&nested.join(".git"))));
        // Git would still know them where they are.
        moved.extend(found.set_within_aside(places::git_folders(folder)));
        moved
    }

    /// Gives the programs that unfinished operations of git run when they are continued, and that are new. Looks at the
    /// repositories that were found last.
    pub(super) fn programs_added(&self, folder: &Utf8Path) -> Vec<String> {
        let known = self.all().get(folder).map(|watched| {
            let repositories = watched.found.repositories.iter().chain(&watched.repositories).cloned();
            (Arc::clone(&watched.found), repositories.collect::<Vec<_>>())
        });
        let Some((found, repositories)) = known else { return Vec::new() };
        let folders = places::git_folders(folder).into_iter().chain(repositories);
        let folders: BTreeSet<Utf8PathBuf> = folders.filter(|git| git.is_dir()).collect();
        let within = folders.iter().flat_map(|git| places::folders_within(git));
        let programs: BTreeSet<String> =
            within.flat_map(|within| unfinished::programs(&within.folder)).collect();
        programs.difference(&found.programs).cloned().collect()
    }

    /// What the index of a checkout names as repositories, and was none before.
    fn new_nested(&self, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
        // The first is that of this checkout.
        let Some(own) = super::git_folders(folder).into_iter().next() else { return Vec::new() };
        let now = stamp(own.join("index").as_std_path());
        let mut all = self.all();
        let Some(watched) = all.get_mut(folder) else { return Vec::new() };
        if now.is_none() || watched.stamp != now {
            (watched.stamp, watched.nested) = (now, repository::gitlinks(folder));
        }
        watched.nested.iter().filter(|nested| !watched.before.contains(nested)).cloned().collect()
    }

    /// Whether the index of a checkout names repositories by names that are not text.
    fn has_unnamed_nested(&self, folder: &Utf8Path) -> bool {
        let all = self.all();
        let nested = all.get(folder).map(|watched| watched.nested.as_slice()).unwrap_or_default();
        nested.iter().any(|nested| nested.as_str().contains(repository::UNNAMED))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Utf8PathBuf, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Folders whose owner may read them for now, with the modes that they get back.
#[derive(Debug)]
struct Unlocked<'a> {
    /// The folder that is looked through. None above it is changed.
    root: &'a Utf8Path,
    folders: Vec<(File, u32)>,
}

/// As many folders are opened: each is an open file until the end of the look.
const MOST_UNLOCKED: usize = 500;

impl Unlocked<'_> {
    /// Lets the owner read a folder, and go through the one above. Gives whether anything has changed.
    fn unlock(&mut self, folder: &Utf8Path) -> bool {
        let before = self.folders.len();
        let above = folder.parent().filter(|above| above.starts_with(self.root));
        for folder in [above, Some(folder)].into_iter().flatten() {
            if self.folders.len() < MOST_UNLOCKED {
                self.folders.extend(open_to_owner(folder.as_std_path()));
            }
        }
        self.folders.len() > before
    }
}

impl Drop for Unlocked<'_> {
    fn drop(&mut self) {
        for (file, mode) in &self.folders {
            let _ = set_mode(file, *mode);
        }
    }
}

/// Lets the owner of a folder list and change it, or read a file. Gives it and the mode that it had, if that was another.
pub(super) fn open_to_owner(path: &Path) -> Option<(File, u32)> {
    let file = located(path)?;
    let found = file.metadata().ok()?;
    let (mode, wanted) = (found.permissions().mode(), if found.is_dir() { 0o700 } else { 0o400 });
    (mode & wanted != wanted && set_mode(&file, mode | wanted).is_ok()).then_some((file, mode))
}

/// Changes the mode of what was opened, whatever is at its path now.
fn set_mode(file: &File, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path_of(file), Permissions::from_mode(mode))
}

/// What has a name that is not text in folders for worktrees and submodules.
fn unnamed_within(within: &[places::Within]) -> Vec<PathBuf> {
    let closed = within.iter().filter(|within| within.kind == WithinKind::Closed);
    let entries = closed.flat_map(|within| std::fs::read_dir(&within.folder).into_iter().flatten().flatten());
    entries.filter(|entry| entry.file_name().to_str().is_none()).map(|entry| entry.path()).collect()
}

fn is_folder(path: &Utf8Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn has_git(folder: &Utf8Path) -> bool {
    folder.join(".git").symlink_metadata().is_ok()
}

/// Makes a repository one that git does not find, whichever way it looks.
fn refuse(git: &Utf8Path) -> Option<Utf8PathBuf> {
    // Under another name it would be a repository without a checkout.
    let without_head = is_folder(git).then(|| aside(git, "HEAD", git)).flatten();
    let folder = git.parent().filter(|_| git.file_name() == Some(".git"));
    folder.and_then(|folder| aside(folder, ".git", folder)).or(without_head)
}

/// Renames what is in a folder, and moves it to another one. Does nothing where a command has put a link in the way of
/// either.
fn aside(folder: impl AsRef<Path>, name: impl AsRef<OsStr>, to: &Utf8Path) -> Option<Utf8PathBuf> {
    let name = name.as_ref();
    // The new name is text, so that everything else finds it.
    let mut text = name.to_string_lossy().into_owned();
    text.truncate(text.floor_char_boundary(LONGEST_KEPT));
    let aside = format!("{text}{ASIDE}{}", uuid::Uuid::new_v4().simple());
    let ((from_folder, from_path), (into_folder, into_path)) =
        (opened(folder.as_ref())?, opened(to.as_std_path())?);
    let rename = || std::fs::rename(from_path.join(name), into_path.join(&aside));
    let renamed = rename().or_else(|_| {
        // A command may have taken away the right to change its folder.
        for folder in [&from_folder, &into_folder] {
            let mode = folder.metadata()?.permissions().mode();
            folder.set_permissions(Permissions::from_mode(mode | 0o300))?;
        }
        rename()
    });
    renamed.ok().map(|()| to.join(aside))
}

/// What is at a path that need not be readable. None if there is a link on the way.
fn located(path: &Path) -> Option<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve).ok()?;
    Some(file.into())
}

fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A folder, and a path that leads to it whatever is put in its place.
fn opened(folder: &Path) -> Option<(File, PathBuf)> {
    // Only a folder can be opened so, and no pipe.
    let file = File::open(folder.join(".")).ok()?;
    let path = path_of(&file);
    (path.read_link().ok()? == folder).then_some((file, path))
}
