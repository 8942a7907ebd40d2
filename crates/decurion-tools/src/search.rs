//! Files below a directory. Takes a place and what to leave out; gives the files there, links not
//! followed, what git ignores and what a rule forbids left out. Shared by Glob and Grep.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::Access;
use ignore::{DirEntry, WalkBuilder, WalkState, overrides::Override, types::Types};

use crate::files::{FileAccess, FileError, open_ordinary, refusal};

/// Files looked at in one walk; a tree beyond this is too large to be listed in one call.
const MAX_FILES: usize = 400_000;
/// A longer file of names to ignore is not read.
const MAX_IGNORE_BYTES: u64 = 8 << 20;
/// Threads that walk or search. More gain little: the directory cache is the limit.
const MAX_THREADS: usize = 4;

/// What to walk, beyond the place.
#[derive(Default)]
pub(crate) struct Filter {
    /// Globs given by the caller, which win over ignore files.
    pub overrides: Option<Override>,
    /// Kinds of files by name.
    pub types: Option<Types>,
    /// How deep to go.
    pub depth: Option<usize>,
    /// Whether to look up when each file was changed.
    pub times: bool,
}

#[derive(Clone)]
pub(crate) struct Found {
    /// Without links: what is opened.
    pub path: Utf8PathBuf,
    /// When it was last changed, if that was asked for and the system says.
    pub modified: Option<SystemTime>,
}

/// What a walk found.
pub(crate) struct Walked {
    pub files: Vec<Found>,
    /// Whether the tree was too large to be walked to its end.
    pub cut: bool,
}

/// How many threads to use.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// The files at or below a place (which holds no links) that `keep` wants, in no order.
pub(crate) fn walk(
    access: &FileAccess,
    root: &Utf8Path,
    filter: Filter,
    keep: &(dyn Fn(&Utf8Path) -> bool + Sync),
) -> Result<Walked, FileError> {
    if let Some(trap) = root.ancestors().find_map(|folder| trap_in(folder.as_std_path())) {
        return Err(trapped(&trap));
    }
    let trap = Arc::new(OnceLock::new());
    let files = Mutex::new(Vec::new());
    let looked_at = AtomicUsize::new(0);
    let cut = AtomicBool::new(false);
    let times = filter.times;
    builder(root, filter, Arc::clone(&trap)).build_parallel().run(|| {
        Box::new(|entry| {
            if access.cancel.is_cancelled() || trap.get().is_some() {
                return WalkState::Quit;
            }
            // A directory that cannot be listed is not a reason to give nothing.
            let Some(path) = entry.as_ref().ok().and_then(regular_file) else { return WalkState::Continue };
            if looked_at.fetch_add(1, Ordering::Relaxed) >= MAX_FILES {
                cut.store(true, Ordering::Relaxed);
                return WalkState::Quit;
            }
            if keep(path) && refusal(access, path, Access::Read).is_none() {
                let modified = entry.as_ref().ok().filter(|_| times).and_then(modified);
                let found = Found { path: path.to_owned(), modified };
                files.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(found);
            }
            WalkState::Continue
        })
    });
    if access.cancel.is_cancelled() {
        return Err(FileError::Interrupted(root.to_owned()));
    }
    if let Some(trap) = trap.get() {
        return Err(trapped(trap));
    }
    let files = files.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Walked { files, cut: cut.into_inner() })
}

/// Newest first; files of one time by name, so that the order is always the same.
pub(crate) fn newest_first(files: &mut [Found]) {
    files.sort_by(|one, other| other.modified.cmp(&one.modified).then_with(|| one.path.cmp(&other.path)));
}

/// A path below the place searched, as the caller would write it.
pub(crate) fn as_asked(path: &Utf8Path, root: &Utf8Path, lexical: &Utf8Path) -> Utf8PathBuf {
    match path.strip_prefix(root) {
        Ok(rest) if rest.as_str().is_empty() => lexical.to_owned(),
        Ok(rest) => lexical.join(rest),
        Err(_) => path.to_owned(),
    }
}

/// What the walker would wait for, or read without an end, when it goes into a folder: a file of names to ignore that is
/// a pipe, a device or far too long. Any command could have made it.
pub fn trap_in(folder: &Path) -> Option<PathBuf> {
    let git = folder.join(".git");
    let lists = [folder.join(".ignore"), folder.join(".gitignore"), git.clone(), git.join("info/exclude")];
    if let Some(trap) = lists.into_iter().find(|path| is_trap(path)) {
        return Some(trap);
    }
    // In a worktree `.git` is a file, and names the folder of git for it, which names the one with the list.
    let own = git.is_file().then(|| first_line(&git)).flatten()?;
    let own = PathBuf::from(own.strip_prefix("gitdir: ")?);
    let common = own.join("commondir");
    if is_trap(&common) {
        return Some(common);
    }
    let list = own.join(first_line(&common)?).join("info/exclude");
    is_trap(&list).then_some(list)
}

fn is_trap(path: &Path) -> bool {
    let Ok(found) = path.metadata() else { return false };
    !found.is_dir() && (!found.is_file() || found.len() > MAX_IGNORE_BYTES)
}

fn first_line(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_ordinary(path).ok()?.take(MAX_IGNORE_BYTES).read_to_string(&mut text).ok()?;
    text.lines().next().map(str::to_owned)
}

fn trapped(path: &Path) -> FileError {
    FileError::Said(format!(
        "this is no ordinary file, or too long, and decides what is searched: {}",
        path.display()
    ))
}

fn builder(root: &Utf8Path, filter: Filter, trap: Arc<OnceLock<PathBuf>>) -> WalkBuilder {
    let mut builder = WalkBuilder::new(root);
    builder
        .follow_links(false)
        // Hidden files are part of a project (.github, .env.example); what is private is ignored by git.
        .hidden(false)
        .require_git(false)
        // The user's own git settings are outside the project, and finding them means the environment.
        .git_global(false)
        .max_depth(filter.depth)
        .threads(threads())
        .filter_entry(move |entry| {
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            if is_folder
                && trap.get().is_none()
                && let Some(found) = trap_in(entry.path())
            {
                let _ = trap.set(found);
            }
            // Nothing more is entered then.
            let enters = !is_folder || trap.get().is_none();
            enters && (entry.depth() == 0 || !is_version_control(entry))
        });
    if let Some(overrides) = filter.overrides {
        builder.overrides(overrides);
    }
    if let Some(types) = filter.types {
        builder.types(types);
    }
    builder
}

fn is_version_control(entry: &DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| matches!(name, ".git" | ".hg" | ".svn" | ".jj"))
}

fn regular_file(entry: &DirEntry) -> Option<&Utf8Path> {
    if entry.file_type()?.is_file() { Utf8Path::from_path(entry.path()) } else { None }
}

fn modified(entry: &DirEntry) -> Option<SystemTime> {
    entry.metadata().ok()?.modified().ok()
}
