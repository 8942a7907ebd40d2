//! Repositories that commands put where a person's git finds them, and files in its folders. Takes a working directory
//! before the first command, looks at what git would find in it later, and moves aside what could make it run a program. The kernel cannot keep
//! commands from making these: they are ordinary files, which become a repository together.
//!
//! After each command it looks at what git finds from the top of a checkout. Repositories in folders below are looked for
//! when that has become cheap beside the time that has passed, and when the session ends.

mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_store::{WatchedFolder, WatchedFolders};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::places::WithinKind;
use super::planted_files::{self, Depth, Files};
use super::{MOST_NESTED, MOST_PROTECTED, first_of, places, unfinished};
use crate::footprint::{Stamp, stamp};
use crate::repository::{self, Purpose};
use saved::Record;

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

/// What was renamed: its new path, or the old one if that failed.
type Renamed = Result<Utf8PathBuf, Utf8PathBuf>;

/// What came of a look.
#[derive(Debug, Default)]
pub(super) struct Moved {
    repositories: Vec<Utf8PathBuf>,
    /// Those of files in folders of git.
    files: Vec<Utf8PathBuf>,
    /// What could not be renamed.
    failed: BTreeSet<Utf8PathBuf>,
    /// Folders that were not looked at as a whole.
    cut: BTreeSet<Utf8PathBuf>,
}

impl Moved {
    pub fn add(&mut self, other: Self) {
        self.repositories.extend(other.repositories);
        self.files.extend(other.files);
        self.failed.extend(other.failed);
        self.cut.extend(other.cut);
    }

    fn add_repositories(&mut self, renamed: impl IntoIterator<Item = Renamed>) {
        for renamed in renamed {
            match renamed {
                Ok(path) => self.repositories.push(path),
                Err(path) => _ = self.failed.insert(path),
            }
        }
    }

    fn add_files(&mut self, renamed: impl IntoIterator<Item = Renamed>) {
        for renamed in renamed {
            match renamed {
                Ok(path) => self.files.push(path),
                Err(path) => _ = self.failed.insert(path),
            }
        }
    }

    /// What a model and a person should know of it; `session` is in which one it was made.
    pub fn text(&self, session: &str) -> Option<String> {
        let repositories = (!self.repositories.is_empty()).then(|| {
            format!(
                "A git repository created during {session} could run programs when git is called in it. Decurion \
                 renamed it: {}. The user can rename it back",
                first_of(&self.repositories, MOST_LISTED)
            )
        });
        let files = (!self.files.is_empty()).then(|| {
            format!(
                "Files or links added to a folder of git during {session} could make git write elsewhere or run a \
                 program. Decurion renamed them: {}. The user can rename them back",
                first_of(&self.files, MOST_LISTED)
            )
        });
        let failed = (!self.failed.is_empty()).then(|| {
            format!(
                "During {session} something was made that could make git run a program or write elsewhere, and Decurion \
                 could not rename it: {}. Look at it, and rename or remove it, before git is called there",
                first_of(&self.failed, MOST_LISTED)
            )
        });
        let cut = (!self.cut.is_empty()).then(|| {
            format!(
                "Decurion could not look for git repositories that were made during {session} in all of {}: there are too \
                 many files or folders, or paths that are too long. Look at the settings of a repository there before you \
                 call git in it",
                first_of(&self.cut, MOST_LISTED)
            )
        });
        let texts: Vec<String> = [repositories, files, failed, cut].into_iter().flatten().collect();
        (!texts.is_empty()).then(|| texts.join(". "))
    }
}

/// What a person should know of programs that were added to an unfinished operation of git.
pub(super) fn text_of_programs(added: &[String]) -> Option<String> {
    if added.is_empty() {
        return None;
    }
    Some(format!(
        "An unfinished rebase runs programs that were added during the session: {}. Look at them with \
         `git rebase --edit-todo` before you continue it",
        first_of(added, MOST_LISTED)
    ))
}

/// The working directories that commands have written in.
#[derive(Debug, Default)]
pub(super) struct Planted {
    watched: Mutex<HashMap<Utf8PathBuf, Watched>>,
    /// What could not be renamed and was reported.
    reported: Mutex<BTreeSet<Utf8PathBuf>>,
    /// Where it is kept what was there before, in case this session is killed; none without a state folder.
    kept: Option<WatchedFolders>,
    /// What was found of killed sessions, and not reported yet.
    pending: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Watched {
    /// The repositories that git looked into before the first command.
    before: Vec<Utf8PathBuf>,
    /// Those that its index named when it was read last.
    nested: Vec<Utf8PathBuf>,
    /// The index then; none where it may have changed since.
    stamp: Option<Stamp>,
    /// The index, if it named files out of the checkout then, with the first of these.
    stray: Option<(PathBuf, OsString)>,
    found: Arc<Found>,
    /// When folders below were looked through last, and how long that took.
    looked: Look,
    /// The same of the folder of git.
    looked_at_git: Look,
    /// The same of the worktrees and submodules in it.
    looked_within: Look,
    /// The repositories that were found then.
    repositories: Vec<Utf8PathBuf>,
    /// What is kept of it in case this session is killed.
    kept: Option<WatchedFolder>,
}

impl Watched {
    /// A folder in which this was found, and the repositories in its index.
    fn new(found: Found, before: Vec<Utf8PathBuf>) -> Self {
        let looked = Look::since(Instant::now());
        Self {
            before,
            nested: Vec::new(),
            stamp: None,
            stray: None,
            found: Arc::new(found),
            looked,
            looked_at_git: looked,
            looked_within: Look(Instant::now(), Duration::ZERO),
            repositories: Vec::new(),
            kept: None,
        }
    }
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

/// By what a file or folder is known when another one lies at its path: its inode, and when it was made where that is
/// known. The number of its device is another one after the machine was started again.
type Identity = (u64, Option<Duration>);

fn identity(path: &Utf8Path) -> Option<Identity> {
    let found = path.symlink_metadata().ok()?;
    let born = found.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    Some((found.ino(), born))
}

/// What was there before the first command.
#[derive(Debug)]
struct Found {
    folder: Utf8PathBuf,
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
    /// Whether there was more than could be looked at.
    is_cut: bool,
}

impl Found {
    /// What is there besides the repository of the folder itself.
    fn new(folder: &Utf8Path, Before { mut repositories, unnamed, is_cut }: Before) -> Self {
        // Commands can change the settings of these.
        let unprotected = repositories.split_off(repositories.len().min(MOST_PROTECTED));
        let own = folder.join(".git");
        let own = own.symlink_metadata().is_ok().then_some(own);
        let (common, nothing) = (places::git_folders(folder), BTreeSet::new());
        let within = within_all(&repositories, &common);
        let within_unprotected = within_all(&unprotected, &[]);
        let all_within = || within.iter().chain(&within_unprotected);
        let programs = all_within().flat_map(|within| unfinished::programs(&within.folder)).collect();
        // What runs something before the first command does so for a person.
        let runs_already = |within: &&places::Within| {
            within.kind == WithinKind::Closed
                || repository::runs_for_submodules(&within.folder, folder, &nothing)
        };
        let protected = within.iter().chain(within_unprotected.iter().filter(runs_already));
        let protected = protected.filter_map(|within| within.folder.canonicalize_utf8().ok()).collect();
        let read_only: BTreeSet<Utf8PathBuf> = repositories.iter().skip(MOST_NESTED).cloned().collect();
        let looked_in = common.last().into_iter().chain(&repositories).chain(&unprotected);
        let looked_in = looked_in.filter(|git| is_folder(git) && !read_only.contains(*git));
        let (mut files, mut is_cut) = (Files::new(), is_cut);
        for git in looked_in {
            let (found, git_is_cut) = planted_files::find(git, Depth::Whole);
            files.extend(found);
            is_cut |= git_is_cut;
        }
        let unnamed = unnamed.into_iter().chain(unnamed_within(all_within())).collect();
        let runs_already = |git: &Utf8PathBuf| repository::runs_for_looks(git, folder, &nothing);
        let unprotected = unprotected.into_iter().filter(runs_already);
        let repositories = repositories.into_iter().chain(own).chain(unprotected).collect();
        let folder = folder.to_owned();
        Self { folder, repositories, protected, programs, files, read_only, unnamed, is_cut }
    }

    /// The repositories in the folder, and its own. New folders with repositories whose names are not text are renamed
    /// before, since nothing else would look at them.
    fn repositories_now(
        &self,
        moved: &mut Moved,
        open: &mut dyn FnMut(&Utf8Path) -> bool,
    ) -> Vec<Utf8PathBuf> {
        /// There may be others in those that were renamed.
        const LOOKS: usize = 10;
        let mut looks = 0..LOOKS;
        loop {
            let places::Repositories { mut git, unnamed, is_cut } =
                places::repositories_in(&self.folder, open);
            let is_last = looks.next().is_none();
            let new = unnamed.iter().filter(|path| !self.unnamed.contains(*path));
            let before = moved.repositories.len();
            moved.add_repositories(new.filter(|path| places::holds_repository(path)).filter_map(|path| {
                let above = path.parent()?;
                aside(above, path.file_name()?, Utf8Path::from_path(above)?)
            }));
            let has_renamed = moved.repositories.len() > before;
            if is_last || !has_renamed {
                let is_cut = has_renamed || is_cut && !self.is_cut;
                moved.cut.extend(Some(self.folder.clone()).filter(|_| is_cut));
                git.extend(Some(self.folder.join(".git")).filter(|git| git.symlink_metadata().is_ok()));
                return git;
            }
        }
    }

    /// Moves what is new in repositories of the folder, but for its own folder of git. Gives all repositories.
    fn set_all_aside(&self, own: Option<&Utf8Path>, is_last: bool, moved: &mut Moved) -> Vec<Utf8PathBuf> {
        let mut unlocked = Unlocked { root: &self.folder, folders: Vec::new() };
        let mut open = |closed: &Utf8Path| is_last && unlocked.unlock(closed);
        let repositories = self.repositories_now(moved, &mut open);
        moved.add_repositories(self.new_of(&repositories).iter().filter_map(|git| refuse(git)));
        let others = || repositories.iter().filter(|git| own != Some(git.as_path()) && is_folder(git));
        others().for_each(|git| self.set_files_aside(git, Depth::Whole, moved));
        self.set_within_aside(&others().cloned().collect::<Vec<_>>(), moved);
        repositories
    }

    /// Which repositories are new and would run something for a person who looks at them.
    fn new_of(&self, repositories: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
        let new = repositories.iter().filter(|git| !self.repositories.contains(*git));
        new.filter(|git| repository::runs_for_looks(git, &self.folder, &self.protected)).cloned().collect()
    }

    /// Moves what is new of the files in a folder of git by which git would write elsewhere or run a program.
    fn set_files_aside(&self, git: &Utf8Path, depth: Depth, moved: &mut Moved) {
        if self.read_only.contains(git) || !is_folder(git) {
            return;
        }
        let (mut new, mut is_cut) = (Vec::new(), false);
        for _ in 0..MOST_NESTED_CLOSED {
            let (found, cut) = planted_files::find(git, depth);
            let found = found.into_iter().filter(|file| !self.files.contains(file));
            let (closed, others): (Vec<_>, Vec<_>) =
                found.map(|(path, _)| path).partition(|path| path.is_dir() && !path.is_symlink());
            (new, is_cut) = (others, cut);
            // Git cannot work with them either.
            let opened = closed.iter().filter(|folder| open_to_owner(folder).is_some());
            if opened.count() == 0 {
                break;
            }
        }
        moved.cut.extend(Some(git.to_owned()).filter(|_| is_cut && !self.is_cut));
        moved.add_files(new.iter().filter_map(|path| aside(path.parent()?, path.file_name()?, git)));
    }

    /// Moves new worktrees and submodules in these folders of git that would run something, or that are not known because
    /// there are too many or they lie too deep.
    fn set_within_aside(&self, folders: &[Utf8PathBuf], moved: &mut Moved) {
        open_within(folders);
        // Names that are not text become text, so that what has them is looked at.
        let within: Vec<_> = folders.iter().flat_map(|git| places::all_within(git)).collect();
        let unnamed = unnamed_within(within.iter()).into_iter().filter(|path| !self.unnamed.contains(path));
        moved.add_repositories(unnamed.filter_map(|path| {
            let above = path.parent()?;
            aside(above, path.file_name()?, Utf8Path::from_path(above)?)
        }));
        let new = self.new_within(folders);
        // One that lies in another is gone with it.
        moved.add_repositories(
            new.iter().filter_map(|(git, within)| aside(within.parent()?, within.file_name()?, git)),
        );
    }

    /// New worktrees and submodules in the folders of git of a checkout that would run something, with those folders.
    fn new_within(&self, folders: &[Utf8PathBuf]) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
        let is_new =
            |git: &Utf8PathBuf| git.canonicalize_utf8().is_ok_and(|place| !self.protected.contains(&place));
        let (bounds, known) = (&self.folder, &self.protected);
        let runs = |git: &Utf8Path, within: &places::Within| {
            let folder = &within.folder;
            match within.kind {
                WithinKind::Worktree => {
                    repository::is_of_another(folder, git)
                        || repository::runs_for_looks(folder, bounds, known)
                }
                WithinKind::Repository => repository::runs_for_submodules(folder, bounds, known),
                // Nobody knows what is in it.
                WithinKind::Closed => true,
            }
        };
        let mut found = Vec::new();
        for git in folders {
            let within = places::all_within(git).into_iter();
            let new = within.filter(|within| is_new(&within.folder) && runs(git, within));
            // The folder itself is looked at as a repository.
            let new = new.filter(|within| within.folder != *git);
            found.extend(new.map(|within| (git.clone(), within.folder)));
        }
        found
    }
}

/// What is in a working directory before commands write in it.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The folders of git in it, or the files that name them.
    pub repositories: Vec<Utf8PathBuf>,
    /// Folders whose names are not text.
    pub unnamed: BTreeSet<PathBuf>,
    /// Whether there is more than could be looked at.
    pub is_cut: bool,
}

/// What a killed session has kept of a folder that is gone is kept for so long.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Planted {
    /// Nothing is watched yet. Without a place to keep what was there before, nobody looks after a session that is killed.
    pub(super) fn new(kept: Option<WatchedFolders>) -> Self {
        Self { kept, ..Self::default() }
    }

    /// Remembers a working directory before commands write in it. This is called once for a folder: what another call
    /// kept for the next session would be taken for that of a killed one.
    pub(super) fn watch(&self, folder: &Utf8Path, before: Before) {
        let began = Instant::now();
        let found = Found::new(folder, before);
        let nested = repository::gitlinks(folder);
        let before: Vec<Utf8PathBuf> = nested.iter().filter(|nested| has_git(nested)).cloned().collect();
        let kept = self.kept.as_ref().and_then(|kept| {
            let kept = kept.keep(folder, &saved::bytes_of(&found, &before)?);
            let unkept = |error: &std::io::Error| {
                let text = format!(
                    "Decurion cannot record what is in {folder} now ({error}). If it is killed, no later session looks at \
                     what its commands left there for git"
                );
                self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(text);
            };
            kept.inspect_err(unkept).ok()
        });
        let watched = Watched { looked: Look::since(began), kept, nested, ..Watched::new(found, before) };
        self.all().insert(folder.to_owned(), watched);
    }

    /// Looks in a working directory at what the commands of killed sessions have left there, as these would have done at
    /// their end. What was found is given by [`Planted::take_pending`].
    pub(super) fn look_after_killed(&self, folder: &Utf8Path) {
        // Another session that looks now renames what must not be listed before.
        let _looking = self.kept.as_ref().and_then(|all| all.wait_for_look(folder).ok());
        for (bytes, kept) in self.kept.iter().flat_map(|all| all.left(folder)) {
            let (found, before) = match saved::read(&bytes, folder) {
                Record::Of(found, before) => (*found, before),
                // A session in that folder looks at it.
                Record::OfOtherFolder => continue,
                Record::Useless => {
                    kept.done();
                    continue;
                }
            };
            let killed = Self::default();
            killed.all().insert(folder.to_owned(), Watched::new(found, before));
            // What came after it was killed cannot be told from that.
            let moved = killed.set_aside(folder, true).text("that session or after it");
            let texts = moved.into_iter().chain(text_of_programs(&killed.programs_added(folder)));
            let texts = texts.map(|text| format!("A session in {folder} was killed. {text}"));
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).extend(texts);
            kept.done();
        }
        // The disk of a folder may be away for a while.
        self.kept.iter().for_each(|all| all.forget(KEPT_FOR, &saved::is_useless));
    }

    /// What was found of killed sessions since this was called last.
    pub(super) fn take_pending(&self) -> Vec<String> {
        std::mem::take(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The last look was made: the next session has nothing to look at.
    pub(super) fn finish(&self) {
        for (_, watched) in self.all().drain() {
            watched.kept.into_iter().for_each(WatchedFolder::done);
        }
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
            let within = due(watched.looked_within);
            (Arc::clone(&watched.found), due(watched.looked), due(watched.looked_at_git), within)
        });
        let Some((found, is_due, git_is_due, within_is_due)) = known else { return Moved::default() };
        let mut moved = Moved::default();
        self.set_repositories_aside(folder, &found, &mut moved);
        let folders = places::git_folders(folder);
        if within_is_due {
            let began = Instant::now();
            // Git would still know new repositories where they are.
            found.set_within_aside(&folders, &mut moved);
            if let Some(watched) = self.all().get_mut(folder) {
                watched.looked_within = Look::since(began);
            }
        }
        let own = folders.last();
        if let Some(git) = own {
            let began = Instant::now();
            let depth = if git_is_due { Depth::Whole } else { Depth::Top };
            found.set_files_aside(git, depth, &mut moved);
            if let Some(watched) = self.all().get_mut(folder).filter(|_| git_is_due) {
                watched.looked_at_git = Look::since(began);
            }
        }
        if is_due || self.has_unnamed_nested(folder) {
            let began = Instant::now();
            let repositories = found.set_all_aside(own.map(Utf8PathBuf::as_path), is_last, &mut moved);
            if let Some(watched) = self.all().get_mut(folder) {
                (watched.looked, watched.repositories) = (Look::since(began), repositories);
            }
        }
        if !is_last {
            // Both are said once, and what is left of the look when the session ends.
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            moved.failed.retain(|path| reported.insert(path.clone()));
            moved.cut.clear();
        }
        moved
    }

    /// Moves repositories that git finds from the top of a checkout.
    fn set_repositories_aside(&self, folder: &Utf8Path, found: &Found, moved: &mut Moved) {
        // Where `.git` is broken, git takes the folder itself for the repository.
        if has_git(folder) && repository::is_bare_by_accident(folder) {
            moved.add_repositories(aside(folder, "HEAD", folder));
        }
        // Git looks into these when it is called in the outer repository.
        let (new, stray) = self.new_in_index(folder);
        let new = new.into_iter().filter(|nested| has_git(nested));
        let doubtful = new.filter(|nested| repository::doubt(nested, Purpose::Change, None).is_some());
        moved.add_repositories(doubtful.filter_map(|nested| refuse(&nested.join(".git"))));
        let index = stray.filter(|file| !found.files.contains(file)).and_then(|(path, _)| {
            let own = Utf8Path::from_path(path.parent()?)?;
            aside(own, path.file_name()?, own)
        });
        moved.add_files(index);
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
        let within = folders.iter().flat_map(|git| places::all_within(git));
        let programs: BTreeSet<String> =
            within.flat_map(|within| unfinished::programs(&within.folder)).collect();
        programs.difference(&found.programs).cloned().collect()
    }

    /// What the index of a checkout names as repositories, and was none before; and the index if it names files elsewhere.
    fn new_in_index(&self, folder: &Utf8Path) -> (Vec<Utf8PathBuf>, Option<(PathBuf, OsString)>) {
        // The first is that of this checkout.
        let Some(own) = super::git_folders(folder).into_iter().next() else { return Default::default() };
        let now = stamp(own.join("index").as_std_path());
        let mut all = self.all();
        let Some(watched) = all.get_mut(folder) else { return Default::default() };
        if now.is_none() || watched.stamp != now {
            (watched.stamp, watched.nested) = (now, repository::gitlinks(folder));
            watched.stray = planted_files::list_of_files(&own);
        }
        let new = watched.nested.iter().filter(|nested| !watched.before.contains(nested)).cloned().collect();
        (new, watched.stray.clone())
    }

    /// Whether the index of a checkout names repositories by names that are not text.
    fn has_unnamed_nested(&self, folder: &Utf8Path) -> bool {
        let all = self.all();
        let nested = all.get(folder).map(|watched| watched.nested.as_slice()).unwrap_or_default();
        nested.iter().any(|nested| nested.as_str().contains(repository::UNNAMED))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Utf8PathBuf, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Lets the owner look into what a command has closed where git keeps worktrees and submodules. Git cannot work with
/// it either.
fn open_within(folders: &[Utf8PathBuf]) {
    for _ in 0..MOST_NESTED_CLOSED {
        let within = folders.iter().flat_map(|git| places::all_within(git));
        let closed = within.filter(|within| within.kind == WithinKind::Closed);
        let opened = closed.filter(|within| open_to_owner(within.folder.as_std_path()).is_some());
        if opened.count() == 0 {
            return;
        }
    }
}

/// What lies in these folders of git, and in those of these repositories.
fn within_all(repositories: &[Utf8PathBuf], common: &[Utf8PathBuf]) -> Vec<places::Within> {
    let tops = repositories.iter().filter(|git| git.file_name() == Some(".git"));
    let named = tops.filter_map(|git| git.parent()).flat_map(places::git_folders);
    let folders = named.chain(common.iter().chain(repositories).cloned());
    let folders: BTreeSet<Utf8PathBuf> = folders.collect();
    folders.iter().flat_map(|git| places::all_within(git)).collect()
}

/// What has a name that is not text in folders for worktrees and submodules.
fn unnamed_within<'a>(within: impl Iterator<Item = &'a places::Within>) -> Vec<PathBuf> {
    let closed = within.filter(|within| within.kind == WithinKind::Closed);
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
fn refuse(git: &Utf8Path) -> Option<Renamed> {
    // Under another name it would be a repository without a checkout.
    let without_head = is_folder(git).then(|| aside(git, "HEAD", git)).flatten();
    let folder = git.parent().filter(|_| git.file_name() == Some(".git"));
    let whole = folder.and_then(|folder| aside(folder, ".git", folder));
    match (whole, without_head) {
        // Either is enough.
        (Some(Err(_)), Some(Ok(path))) => Some(Ok(path)),
        (whole, without_head) => whole.or(without_head),
    }
}

/// Renames what is in a folder, and moves it to another one. Does nothing where a command has put a link in the way of
/// either. None where there is nothing any more.
fn aside(folder: impl AsRef<Path>, name: impl AsRef<OsStr>, to: &Utf8Path) -> Option<Renamed> {
    let (folder, name) = (folder.as_ref(), name.as_ref());
    if let Some(path) = renamed(folder, name, to) {
        return Some(Ok(path));
    }
    let path = folder.join(name);
    let is_there = path.symlink_metadata().is_ok();
    is_there.then(|| Err(Utf8PathBuf::from(path.to_string_lossy().into_owned())))
}

fn renamed(folder: &Path, name: &OsStr, to: &Utf8Path) -> Option<Utf8PathBuf> {
    // The new name is text, so that everything else finds it.
    let mut text = name.to_string_lossy().into_owned();
    text.truncate(text.floor_char_boundary(LONGEST_KEPT));
    let aside = format!("{text}{ASIDE}{}", uuid::Uuid::new_v4().simple());
    let ((from_folder, from_path), (into_folder, into_path)) = (opened(folder)?, opened(to.as_std_path())?);
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
