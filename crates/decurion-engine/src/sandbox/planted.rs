//! Repositories that commands put where a person's git finds them. Takes a working directory before the first command,
//! looks at what git would find in it later, and moves aside what could make it run a program. The kernel cannot keep
//! commands from making these: they are ordinary files, which become a repository together.
//!
//! After each command it looks at what git finds from the top of a checkout. Repositories in folders below are looked for
//! when that has become cheap beside the time that has passed, and when the session ends.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Permissions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use super::ground::{Stamp, stamp};
use super::{places, unfinished};
use crate::repository::{self, Purpose};

/// Folders below are looked through if it takes this part of the time since the last time.
const COST: u32 = 50;

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
    looked: (Instant, Duration),
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
}

impl Found {
    /// What is there besides the repository of the folder itself.
    fn new(folder: &Utf8Path, repositories: Vec<Utf8PathBuf>) -> Self {
        let own = folder.join(".git");
        let own = own.symlink_metadata().is_ok().then_some(own);
        let tops =
            repositories.iter().filter_map(|git| git.parent().filter(|_| git.file_name() == Some(".git")));
        let named = tops.chain([folder]).flat_map(places::git_folders);
        let folders: BTreeSet<Utf8PathBuf> = named.chain(repositories.iter().cloned()).collect();
        let within: Vec<_> = folders.iter().flat_map(|git| places::folders_within(git)).collect();
        let programs = within.iter().flat_map(|within| unfinished::programs(&within.folder)).collect();
        let protected = within.iter().filter_map(|within| within.folder.canonicalize_utf8().ok()).collect();
        let repositories = repositories.into_iter().chain(own).collect();
        Self { repositories, protected, programs }
    }

    /// Which repositories are new and would run something for a person who looks at them.
    fn new_of(&self, repositories: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
        let new = repositories.iter().filter(|git| !self.repositories.contains(*git));
        new.filter(|git| repository::runs_for_looks(git, &self.protected)).cloned().collect()
    }

    /// New worktrees and submodules in the folders of git of a checkout that would run something, with those folders.
    fn new_within(&self, folder: &Utf8Path) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
        let is_new =
            |git: &Utf8PathBuf| git.canonicalize_utf8().is_ok_and(|place| !self.protected.contains(&place));
        let runs = |within: &places::Within| {
            if within.is_worktree {
                repository::runs_for_looks(&within.folder, &self.protected)
            } else {
                repository::runs_for_submodules(&within.folder, &self.protected)
            }
        };
        let mut found = Vec::new();
        for git in places::git_folders(folder) {
            let within = places::folders_within(&git).into_iter();
            let new = within.filter(|within| is_new(&within.folder) && runs(within));
            found.extend(new.map(|within| (git.clone(), within.folder)));
        }
        found
    }
}

impl Planted {
    /// Remembers a working directory before commands write in it, with the repositories in it.
    pub(super) fn watch(&self, folder: &Utf8Path, repositories: impl FnOnce() -> Vec<Utf8PathBuf>) {
        if self.all().contains_key(folder) {
            return;
        }
        let began = Instant::now();
        let found = Arc::new(Found::new(folder, repositories()));
        let nested = repository::gitlinks(folder);
        let before = nested.iter().filter(|nested| has_git(nested)).cloned().collect();
        let looked = (Instant::now(), began.elapsed());
        let watched = Watched { before, nested, stamp: None, found, looked };
        self.all().entry(folder.to_owned()).or_insert(watched);
    }

    /// All that are watched.
    pub(super) fn watched(&self) -> Vec<Utf8PathBuf> {
        self.all().keys().cloned().collect()
    }

    /// Gives the new places of what was moved.
    pub(super) fn set_aside(&self, folder: &Utf8Path, is_last: bool) -> Vec<Utf8PathBuf> {
        let mut moved = Vec::new();
        let due = |watched: &Watched| is_last || watched.looked.0.elapsed() > watched.looked.1 * COST;
        let known = self.all().get(folder).map(|watched| (Arc::clone(&watched.found), due(watched)));
        let Some((found, is_due)) = known else { return moved };
        // Where `.git` is broken, git takes the folder itself for the repository.
        if has_git(folder) && repository::is_bare_by_accident(folder) {
            moved.extend(aside(folder, "HEAD", folder));
        }
        // Git looks into these when it is called in the outer repository.
        let new = self.new_nested(folder).into_iter().filter(|nested| has_git(nested));
        let doubtful = new.filter(|nested| repository::doubt(nested, Purpose::Change, None).is_some());
        moved.extend(doubtful.filter_map(|nested| refuse(&nested.join(".git"))));
        // Git would still know them where they are.
        let within = found.new_within(folder);
        moved.extend(
            within.iter().filter_map(|(git, within)| aside(within.parent()?, within.file_name()?, git)),
        );
        if is_due {
            let began = Instant::now();
            moved.extend(found.new_of(&repositories_of(folder)).iter().filter_map(|git| refuse(git)));
            if let Some(watched) = self.all().get_mut(folder) {
                watched.looked = (Instant::now(), began.elapsed());
            }
        }
        moved
    }

    /// Gives the programs that unfinished operations of git run when they are continued, and that are new.
    pub(super) fn programs_added(&self, folder: &Utf8Path) -> Vec<String> {
        let Some(found) = self.all().get(folder).map(|watched| Arc::clone(&watched.found)) else {
            return Vec::new();
        };
        let folders = places::git_folders(folder).into_iter().chain(found.repositories.iter().cloned());
        let folders: BTreeSet<Utf8PathBuf> = folders.filter(|git| git.is_dir()).collect();
        let within = folders.iter().flat_map(|git| places::folders_within(git));
        let programs = within.flat_map(|within| unfinished::programs(&within.folder));
        programs.filter(|program| !found.programs.contains(program)).collect()
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

    fn all(&self) -> MutexGuard<'_, HashMap<Utf8PathBuf, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The repositories in a folder, and its own.
fn repositories_of(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let own = [folder.join(".git")].into_iter().filter(|git| git.symlink_metadata().is_ok());
    places::repositories_in(folder).into_iter().chain(own).collect()
}

fn has_git(folder: &Utf8Path) -> bool {
    folder.join(".git").symlink_metadata().is_ok()
}

/// Makes a repository one that git does not find, whichever way it looks.
fn refuse(git: &Utf8Path) -> Option<Utf8PathBuf> {
    let is_folder = git.symlink_metadata().is_ok_and(|found| found.is_dir());
    // Under another name it would be a repository without a checkout.
    let without_head = is_folder.then(|| aside(git, "HEAD", git)).flatten();
    let folder = git.parent().filter(|_| git.file_name() == Some(".git"));
    folder.and_then(|folder| aside(folder, ".git", folder)).or(without_head)
}

/// Renames what is in a folder, and moves it to another one. Does nothing where a command has put a link in the way of
/// either.
fn aside(folder: &Utf8Path, name: &str, to: &Utf8Path) -> Option<Utf8PathBuf> {
    let aside = format!("{name}.refused-{}", uuid::Uuid::new_v4().simple());
    let ((from_folder, from_path), (into_folder, into_path)) = (opened(folder)?, opened(to)?);
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

/// A folder, and a path that leads to it whatever is put in its place.
fn opened(folder: &Utf8Path) -> Option<(File, PathBuf)> {
    // Only a folder can be opened so, and no pipe.
    let file = File::open(folder.join(".")).ok()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (path.read_link().ok()? == folder.as_std_path()).then_some((file, path))
}
