//! Opening and replacing files. Takes a lexical path and what the run may do; gives an open file, or a
//! target that can be replaced as a whole, without ever being led elsewhere by a link.
//!
//! Permission was decided on the path as written and on what it led to then. Between that and the open stands
//! someone who may change links meanwhile. So the path is resolved again, the result is checked, and exactly that
//! result is opened with no link followed on the way; from there on everything is relative to the open directory.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{Access, ToolOutput};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::files_seen::{FilesSeen, Freshness, content_hash, hex};
use crate::paths::is_inside;
use crate::{Check, PathRules, Surroundings, ToolContext, ToolLimits};

/// What file work needs of a [`ToolContext`], free to go to another thread.
#[derive(Clone)]
pub(crate) struct FileAccess {
    pub around: Surroundings,
    pub rules: Arc<dyn PathRules>,
    pub seen: Arc<FilesSeen>,
    pub limits: Arc<ToolLimits>,
    pub cancel: CancellationToken,
}

impl FileAccess {
    pub fn of(cx: &ToolContext) -> Self {
        Self {
            around: cx.around.clone(),
            rules: Arc::clone(&cx.rules),
            seen: Arc::clone(&cx.seen),
            limits: Arc::clone(&cx.limits),
            cancel: cx.cancel.clone(),
        }
    }
}

/// The former content as a result carries it: left out where it would swell every record of the call.
pub(crate) fn kept_original(access: &FileAccess, original: &str) -> serde_json::Value {
    if original.len() as u64 > access.limits.read_bytes { serde_json::Value::Null } else { original.into() }
}

/// Runs work that only reads on a blocking thread, and stops waiting for it when the call is cancelled.
pub(crate) async fn reading<F>(cx: &ToolContext, work: F) -> ToolOutput
where
    F: FnOnce(&FileAccess) -> Result<ToolOutput, FileError> + Send + 'static,
{
    let access = FileAccess::of(cx);
    let work = tokio::task::spawn_blocking(move || work(&access).unwrap_or_else(ToolOutput::from));
    tokio::select! {
        biased;
        () = cx.cancel.cancelled() => ToolOutput::error("interrupted"),
        output = work => output.unwrap_or_else(crashed),
    }
}

/// Runs work that changes files on a blocking thread, and waits for it even when the call is cancelled:
/// the work itself looks at the token before it changes anything, and only it knows whether it had.
pub(crate) async fn writing<F>(cx: &ToolContext, work: F) -> ToolOutput
where
    F: FnOnce(&FileAccess) -> Result<ToolOutput, FileError> + Send + 'static,
{
    let access = FileAccess::of(cx);
    tokio::task::spawn_blocking(move || work(&access).unwrap_or_else(ToolOutput::from))
        .await
        .unwrap_or_else(crashed)
}

/// Looks on a blocking thread whether work that changes files could be done, and what it would change.
pub(crate) async fn checking<F>(cx: &ToolContext, look: F) -> Check
where
    F: FnOnce(&FileAccess) -> Result<Option<Value>, FileError> + Send + 'static,
{
    let access = FileAccess::of(cx);
    let checked = tokio::task::spawn_blocking(move || match look(&access) {
        Ok(patch) => Check::Works { patch: patch.filter(|patch| *patch != json!([])) },
        Err(error) => Check::Fails(Box::new(error.into())),
    });
    // A check that breaks says nothing: the work itself will.
    checked.await.unwrap_or_default()
}

#[allow(clippy::needless_pass_by_value)]
fn crashed(error: tokio::task::JoinError) -> ToolOutput {
    ToolOutput::error(format!("internal error in the tool: {error}"))
}

/// Why file work did not happen, in words for the model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("there is no such file: {0}")]
    NotFound(Utf8PathBuf),
    #[error("this is a directory, not a file: {0}")]
    Directory(Utf8PathBuf),
    #[error("this is not a directory: {0}")]
    NotDirectory(Utf8PathBuf),
    #[error("this is a device, pipe or socket and is not opened: {0}")]
    Special(Utf8PathBuf),
    #[error("this is a link to a file that does not exist: {0}")]
    Dangling(Utf8PathBuf),
    #[error("links on the way changed while the file was being opened; nothing was done: {0}")]
    Raced(Utf8PathBuf),
    #[error(
        "a link on this path leads outside the allowed directories, so it is not followed; if that is meant, name the place itself ({target}): {path}"
    )]
    Escapes { path: Utf8PathBuf, target: Utf8PathBuf },
    #[error("{reason}: {path}")]
    Refused { path: Utf8PathBuf, reason: String },
    #[error("the file has {size} bytes, more than the {limit} that are handled: {path}")]
    TooLarge { path: Utf8PathBuf, size: u64, limit: u64 },
    #[error("the file exists and has not been read yet; read it first, so that nothing unseen is lost: {0}")]
    Unseen(Utf8PathBuf),
    #[error("the file has changed since it was read; read it again before changing it: {0}")]
    Changed(Utf8PathBuf),
    #[error("interrupted before anything was changed: {0}")]
    Interrupted(Utf8PathBuf),
    #[error("cannot use {path}: {source}")]
    Io { path: Utf8PathBuf, source: io::Error },
    /// What only the tool itself can say.
    #[error("{0}")]
    Said(String),
    /// A use of the tool that cannot work, whatever the files are.
    #[error("{0}")]
    Usage(String),
}

impl From<FileError> for ToolOutput {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Usage(text) => Self::usage_error(text),
            error @ (FileError::Unseen(_) | FileError::Changed(_)) => Self::usage_error(error.to_string()),
            other => Self::error(other.to_string()),
        }
    }
}

impl FileError {
    pub fn io(path: &Utf8Path, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        if Errno::from_io_error(&source) == Some(Errno::LOOP) {
            return Self::Raced(path.to_owned());
        }
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound(path.to_owned()),
            io::ErrorKind::IsADirectory => Self::Directory(path.to_owned()),
            io::ErrorKind::NotADirectory => Self::NotDirectory(path.to_owned()),
            _ => Self::Io { path: path.to_owned(), source },
        }
    }
}

/// A file opened for reading.
pub(crate) struct Opened {
    /// Its path without links.
    pub path: Utf8PathBuf,
    pub file: File,
    pub size: u64,
}

/// How often a path whose links keep changing is tried.
const TRIES: usize = 3;

/// Opens a regular file for reading.
pub(crate) fn open_file(access: &FileAccess, lexical: &Utf8Path) -> Result<Opened, FileError> {
    for _ in 0..TRIES {
        let path = readable(access, lexical)?;
        // Non-blocking, so that a pipe without a writer does not hold us before we see that it is one.
        match open_without_links(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(descriptor) => {
                let stat = rustix::fs::fstat(&descriptor).map_err(|error| FileError::io(lexical, error))?;
                let size = regular_size(&stat, lexical)?;
                return Ok(Opened { path, file: File::from(descriptor), size });
            }
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::AGAIN) => {}
            Err(error) => return Err(FileError::io(lexical, error)),
        }
    }
    Err(FileError::Raced(lexical.to_owned()))
}

/// The place a path leads to, checked for reading: a directory to search in, or a file.
pub(crate) fn readable(access: &FileAccess, lexical: &Utf8Path) -> Result<Utf8PathBuf, FileError> {
    let path = canonical(lexical)?;
    let was_inside = is_inside(lexical, &access.around.directories);
    let escapes = path != lexical && was_inside && !is_inside(&path, &real_directories(access));
    if escapes && !access.rules.decided(&path) {
        return Err(FileError::Escapes { path: lexical.to_owned(), target: path });
    }
    if let Some(reason) = refusal(access, &path, Access::Read) {
        return Err(FileError::Refused { path: lexical.to_owned(), reason });
    }
    Ok(path)
}

/// Why a path without links may not be touched, if it may not.
pub(crate) fn refusal(access: &FileAccess, path: &Utf8Path, wanted: Access) -> Option<String> {
    if holds_secrets_of_processes(path) {
        return Some("memory and environment of processes are not opened".to_owned());
    }
    access.rules.refuses(path, wanted)
}

fn holds_secrets_of_processes(path: &Utf8Path) -> bool {
    path.starts_with("/proc") && matches!(path.file_name(), Some("environ" | "mem" | "kcore"))
}

fn canonical(lexical: &Utf8Path) -> Result<Utf8PathBuf, FileError> {
    lexical.canonicalize_utf8().map_err(|error| FileError::io(lexical, error))
}

/// The allowed directories without links; one that is gone allows nothing.
fn real_directories(access: &FileAccess) -> Vec<Utf8PathBuf> {
    access.around.directories.iter().filter_map(|directory| directory.canonicalize_utf8().ok()).collect()
}

fn regular_size(stat: &Stat, lexical: &Utf8Path) -> Result<u64, FileError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => Err(FileError::Directory(lexical.to_owned())),
        FileType::Symlink => Err(FileError::Raced(lexical.to_owned())),
        _ => Err(FileError::Special(lexical.to_owned())),
    }
}

/// Opens a path that holds no links; one that appeared meanwhile is an error, wherever on the way it is.
fn open_without_links(path: &Utf8Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(CWD, path.as_str(), flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Older kernels and some containers do not offer it.
            Err(Errno::NOSYS | Errno::PERM) => {}
            other => return other,
        }
    }
    walk_without_links(path, flags)
}

/// The same name by name, where the system cannot do it in one step.
fn walk_without_links(path: &Utf8Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut directory = rustix::fs::openat(CWD, "/", PASSING, Mode::empty())?;
    let mut names = path.as_str().split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let flags = if names.peek().is_some() { PASSING } else { flags };
        directory =
            rustix::fs::openat(&directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    }
    Ok(directory)
}

/// How a directory is opened that is only passed through: without the right to list it, where possible.
#[cfg(target_os = "linux")]
const PASSING: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const PASSING: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a file that a search came across, below a directory without links.
pub(crate) fn open_found(path: &Utf8Path) -> io::Result<File> {
    let descriptor = open_without_links(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    Ok(File::from(descriptor))
}

/// Opens an ordinary file, following links. A pipe that nobody writes to is an error, and not waited for.
pub fn open_ordinary(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not an ordinary file")) }
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_all(opened: Opened, lexical: &Utf8Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let too_large = |size| FileError::TooLarge { path: lexical.to_owned(), size, limit };
    if opened.size > limit {
        return Err(too_large(opened.size));
    }
    let mut content = Vec::with_capacity(usize::try_from(opened.size).unwrap_or(0) + 1);
    // One byte more than allowed tells a file that grew, or one whose size is not told, from one that fits.
    opened.file.take(limit + 1).read_to_end(&mut content).map_err(|error| FileError::io(lexical, error))?;
    if content.len() as u64 > limit { Err(too_large(content.len() as u64)) } else { Ok(content) }
}

/// A file to be created or replaced: its directory is open, so what happens to the path above it no longer
/// matters.
pub(crate) struct Target {
    /// Its path without links.
    pub path: Utf8PathBuf,
    /// The path as it was asked for, for messages.
    lexical: Utf8PathBuf,
    directory: OwnedFd,
    /// Directories between the open one and the file that do not exist yet.
    missing: Vec<String>,
    name: String,
}

/// What a target holds now.
pub(crate) struct Existing {
    pub content: Vec<u8>,
    pub hash: String,
    stat: Stat,
}

impl Existing {
    pub fn mode(&self) -> u32 {
        // Narrower than 32 bits on some systems.
        #[allow(clippy::useless_conversion)]
        u32::from(self.stat.st_mode & 0o777)
    }
}

impl Target {
    /// Resolves and checks a path for writing. Nothing is created yet.
    pub fn open(access: &FileAccess, lexical: &Utf8Path) -> Result<Self, FileError> {
        for _ in 0..TRIES {
            let (parent, missing, name) = split_for_writing(lexical)?;
            let mut path = parent.clone();
            path.extend(&missing);
            path.push(&name);
            check_writable(access, lexical, &path)?;
            match open_without_links(&parent, PASSING) {
                Ok(directory) => {
                    return Ok(Self { path, lexical: lexical.to_owned(), directory, missing, name });
                }
                Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT | Errno::AGAIN) => {}
                Err(error) => return Err(FileError::io(lexical, error)),
            }
        }
        Err(FileError::Raced(lexical.to_owned()))
    }

    /// What is there now, if anything.
    pub fn existing(&self, limit: u64) -> Result<Option<Existing>, FileError> {
        if !self.missing.is_empty() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = match rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(FileError::io(&self.lexical, error)),
        };
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| FileError::io(&self.lexical, error))?;
        let size = regular_size(&stat, &self.lexical)?;
        let opened = Opened { path: self.path.clone(), file: File::from(descriptor), size };
        let content = read_all(opened, &self.lexical, limit)?;
        let hash = content_hash(&content);
        Ok(Some(Existing { content, hash, stat }))
    }

    /// The stale-read guard: refuses a file that the run has not seen as it is now.
    pub fn require_fresh(&self, access: &FileAccess, existing: &Existing) -> Result<(), FileError> {
        match access.seen.freshness(&self.path, &existing.hash) {
            Freshness::Current => Ok(()),
            Freshness::Changed => Err(FileError::Changed(self.lexical.clone())),
            Freshness::Unseen => Err(FileError::Unseen(self.lexical.clone())),
        }
    }

    /// Puts this content there, all of it or nothing, in place of what `existing` says is there. Gives the
    /// content's hash.
    pub fn write(
        self,
        access: &FileAccess,
        content: &[u8],
        existing: Option<&Existing>,
    ) -> Result<String, FileError> {
        let lexical = self.lexical.clone();
        self.replace(access, content, existing).map_err(|error| match error {
            Stop::Interrupted => FileError::Interrupted(lexical),
            Stop::Changed => FileError::Changed(lexical),
            Stop::Failed(error) => FileError::io(&lexical, error),
        })?;
        Ok(content_hash(content))
    }

    fn replace(
        mut self,
        access: &FileAccess,
        content: &[u8],
        existing: Option<&Existing>,
    ) -> Result<(), Stop> {
        if access.cancel.is_cancelled() {
            return Err(Stop::Interrupted);
        }
        self.make_directories(access.limits.new_directory_mode)?;
        let temporary = Temporary::create(&self.directory)?;
        let mut file = &temporary.file;
        file.write_all(content).map_err(Stop::Failed)?;
        give_attributes(file, existing, access.limits.new_file_mode)?;
        if access.cancel.is_cancelled() {
            return Err(Stop::Interrupted);
        }
        if !self.is_still(existing)? {
            return Err(Stop::Changed);
        }
        temporary.rename_to(&self.name, existing.is_some())
    }

    /// Takes the file away, if it is still what `existing` says is there.
    pub fn remove(self, existing: &Existing) -> Result<(), FileError> {
        match self.is_still(Some(existing)) {
            Ok(true) => rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty())
                .map_err(|error| FileError::io(&self.lexical, error)),
            Ok(false) | Err(Stop::Changed | Stop::Interrupted) => Err(FileError::Changed(self.lexical)),
            Err(Stop::Failed(error)) => Err(FileError::io(&self.lexical, error)),
        }
    }

    fn make_directories(&mut self, mode: u32) -> Result<(), Stop> {
        for name in std::mem::take(&mut self.missing) {
            let made = match rustix::fs::mkdirat(&self.directory, &name, mode_of(mode)) {
                Ok(()) => true,
                // Another call made it meanwhile; then it has whatever permissions that one gave it.
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            self.directory = rustix::fs::openat(&self.directory, &name, flags, Mode::empty())?;
            if made {
                rustix::fs::fchmod(&self.directory, mode_of(mode))?;
            }
        }
        Ok(())
    }

    /// Whether the name still stands for what was read, so that a change made meanwhile is not overwritten.
    fn is_still(&self, existing: Option<&Existing>) -> Result<bool, Stop> {
        match (rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW), existing) {
            (Ok(now), Some(existing)) => Ok(identity(&now) == identity(&existing.stat)),
            (Err(Errno::NOENT), None) => Ok(true),
            (Ok(_), None) | (Err(Errno::NOENT), Some(_)) => Ok(false),
            (Err(error), _) => Err(error.into()),
        }
    }
}

/// Why a replacement stopped; the path is added outside.
enum Stop {
    Interrupted,
    Changed,
    Failed(io::Error),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

fn mode_of(mode: u32) -> Mode {
    // Narrower than 32 bits on some systems; permissions fit everywhere.
    Mode::from_raw_mode((mode & 0o777) as rustix::fs::RawMode)
}

fn identity(stat: &Stat) -> impl PartialEq + use<> {
    (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
}

/// A replaced file keeps its permissions and, where we may, its owner.
fn give_attributes(file: &File, existing: Option<&Existing>, new_mode: u32) -> Result<(), Stop> {
    if let Some(existing) = existing {
        let mine = rustix::fs::fstat(file)?;
        if (mine.st_uid, mine.st_gid) != (existing.stat.st_uid, existing.stat.st_gid) {
            let owner = (Uid::from_raw(existing.stat.st_uid), Gid::from_raw(existing.stat.st_gid));
            // Only root may give files away; for others the file becomes theirs, as with any editor.
            let _ = rustix::fs::fchown(file, Some(owner.0), Some(owner.1));
        }
    }
    // Bits that hand on rights (set-uid, set-gid) do not survive a change of content.
    let mode =
        existing.map_or(mode_of(new_mode), |existing| Mode::from_raw_mode(existing.stat.st_mode & 0o777));
    Ok(rustix::fs::fchmod(file, mode)?)
}

/// A file under a name nobody can guess, gone again unless it is renamed.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    name: String,
    file: File,
    kept: bool,
}

impl<'a> Temporary<'a> {
    fn create(directory: &'a OwnedFd) -> Result<Self, Stop> {
        let name = format!(".decurion-{}.tmp", random_name()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(directory, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { directory, name, file: File::from(descriptor), kept: false })
    }

    fn rename_to(mut self, name: &str, replace: bool) -> Result<(), Stop> {
        let renamed = if replace {
            rustix::fs::renameat(self.directory, &self.name, self.directory, name)
        } else {
            rename_to_new(self.directory, &self.name, name)
        };
        match renamed {
            Ok(()) => {
                self.kept = true;
                Ok(())
            }
            Err(Errno::EXIST) => Err(Stop::Changed),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing can be done about a leftover that cannot be removed either.
            let _ = rustix::fs::unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Renames only where nothing of the new name exists, where the file system can tell.
fn rename_to_new(directory: &OwnedFd, from: &str, to: &str) -> Result<(), Errno> {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    match rustix::fs::renameat_with(directory, from, directory, to, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    rustix::fs::renameat(directory, from, directory, to)
}

/// Sixteen random hexadecimal digits.
pub(crate) fn random_name() -> Result<String, Errno> {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex(&bytes))
}

/// Where a path leads, also one that does not exist yet.
pub(crate) fn leads_to(lexical: &Utf8Path) -> Result<Utf8PathBuf, FileError> {
    let (mut path, missing, name) = split_for_writing(lexical)?;
    path.extend(&missing);
    path.push(&name);
    Ok(path)
}

/// Takes a path apart into the deepest directory that exists (without links), the directories that do not,
/// and the file's name.
fn split_for_writing(lexical: &Utf8Path) -> Result<(Utf8PathBuf, Vec<String>, String), FileError> {
    match lexical.canonicalize_utf8() {
        Ok(path) => {
            let name = path.file_name().map(str::to_owned);
            return match (path.parent(), name) {
                (Some(parent), Some(name)) => Ok((parent.to_owned(), Vec::new(), name)),
                _ => Err(FileError::Directory(lexical.to_owned())),
            };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(FileError::io(lexical, error)),
    }
    if lexical.is_symlink() {
        return Err(FileError::Dangling(lexical.to_owned()));
    }
    let mut names = Vec::new();
    for ancestor in lexical.ancestors() {
        match ancestor.canonicalize_utf8() {
            Ok(parent) => {
                names.reverse();
                let name = names.pop().unwrap_or_default();
                return Ok((parent, names, name));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                names.push(ancestor.file_name().unwrap_or_default().to_owned());
            }
            Err(error) => return Err(FileError::io(lexical, error)),
        }
    }
    Err(FileError::NotFound(lexical.to_owned()))
}

/// A write may go where the path says, or, led by links, to somewhere inside the allowed directories or to the very
/// place that was decided about.
fn check_writable(access: &FileAccess, lexical: &Utf8Path, path: &Utf8Path) -> Result<(), FileError> {
    let escapes = path != lexical && !is_inside(path, &real_directories(access));
    if escapes && !access.rules.decided(path) {
        return Err(FileError::Escapes { path: lexical.to_owned(), target: path.to_owned() });
    }
    match refusal(access, path, Access::Write) {
        Some(reason) => Err(FileError::Refused { path: lexical.to_owned(), reason }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project() -> (tempfile::TempDir, FileAccess) {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let around = Surroundings { cwd: root.clone(), home: None, directories: vec![root] };
        let access = FileAccess {
            around,
            rules: Arc::new(crate::NoRules),
            seen: Arc::default(),
            limits: Arc::default(),
            cancel: CancellationToken::new(),
        };
        (folder, access)
    }

    fn names(access: &FileAccess) -> Vec<String> {
        let entries = access.around.cwd.read_dir_utf8().unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_owned()).collect()
    }

    /// Between looking at a file and replacing it someone else may be quicker; their work stays.
    #[test]
    fn a_change_made_meanwhile_is_not_overwritten() {
        let (_folder, access) = project();
        let path = access.around.cwd.join("f");
        std::fs::write(&path, "seen").unwrap();
        let target = Target::open(&access, &path).unwrap();
        let existing = target.existing(99).unwrap().unwrap();
        std::fs::write(&path, "longer than before").unwrap();
        let error = target.write(&access, b"ours", Some(&existing)).unwrap_err();
        assert!(matches!(error, FileError::Changed(_)), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "longer than before");
        assert_eq!(names(&access), ["f"]);
    }

    #[test]
    fn a_file_that_appears_or_vanishes_meanwhile_is_left_so() {
        let (_folder, access) = project();
        let path = access.around.cwd.join("f");
        let target = Target::open(&access, &path).unwrap();
        assert!(target.existing(99).unwrap().is_none());
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(target.write(&access, b"ours", None), Err(FileError::Changed(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");

        let target = Target::open(&access, &path).unwrap();
        let existing = target.existing(99).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(target.write(&access, b"ours", Some(&existing)), Err(FileError::Changed(_))));
        assert!(names(&access).is_empty());
    }

    /// The last step of a new file cannot replace anything, even if it appeared after the last look.
    #[test]
    fn a_new_file_never_replaces_one() {
        let (_folder, access) = project();
        let root = &access.around.cwd;
        std::fs::write(root.join("from"), "ours").unwrap();
        std::fs::write(root.join("to"), "theirs").unwrap();
        let directory = open_without_links(root, PASSING).unwrap();
        assert_eq!(rename_to_new(&directory, "from", "to"), Err(Errno::EXIST));
        assert_eq!(std::fs::read_to_string(root.join("to")).unwrap(), "theirs");
    }

    #[test]
    fn bits_that_hand_on_rights_are_not_kept() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let (_folder, access) = project();
        let path = access.around.cwd.join("f");
        std::fs::write(&path, "x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6755)).unwrap();
        let target = Target::open(&access, &path).unwrap();
        let existing = target.existing(99).unwrap();
        target.write(&access, b"y", existing.as_ref()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    }

    #[test]
    fn walking_name_by_name_refuses_links_like_the_system_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::fs::write(root.join("real/file"), "x").unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        std::os::unix::fs::symlink("file", root.join("real/alias")).unwrap();
        for open in [walk_without_links, open_without_links] {
            assert!(open(&root.join("real/file"), OFlags::RDONLY).is_ok());
            assert!(open(&root.join("link/file"), OFlags::RDONLY).is_err());
            assert!(open(&root.join("real/alias"), OFlags::RDONLY).is_err());
        }
    }
}
