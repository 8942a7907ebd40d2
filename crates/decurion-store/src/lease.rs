//! Which session uses a worktree. Takes the facts about each, keeps them as a small file in the state folder, and gives
//! them back with whether the session is alive.
//!
//! A worktree costs no descriptor: its lease is alive as long as the session's lock is held. A session without a
//! transcript holds a lock here instead ([`Leases::hold`]).

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::id::is_name;
use decurion_protocol::{AgentId, SessionId};
use jiff::Timestamp;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::folder::{DirHandle, How, SyncDoubt, random_word};
use crate::layout::{LOCK, PROJECTS};
use crate::{Archive, Found, Holder, Layout, lock, slug};

/// The folder of worktrees in the state folder.
const WORKTREES: &str = "worktrees";
/// The folder of locks in it.
const HOLDERS: &str = "holders";
/// The largest lease that is read.
const LEASE_LIMIT: u64 = 64 << 10;

/// One worktree: whose it is, from where, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its name, and that of its file: the agent's id, or one that a person chose.
    pub name: String,
    /// The session that made it.
    pub session: SessionId,
    /// The agent that works in it; none for the session itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// Its purpose, for people and for commit messages.
    #[serde(default)]
    pub description: String,
    /// How far it has come.
    pub state: LeaseState,
    pub path: Utf8PathBuf,
    pub branch: String,
    /// The commit it began with.
    pub base: String,
    /// The repository: what all its worktrees share.
    pub repository: Utf8PathBuf,
    /// What was copied into it from a checkout with changes, as a tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<String>,
    /// When it was made.
    pub created: Timestamp,
    /// When its agent ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
}

impl Lease {
    /// Whether it was neither given back nor kept for a person.
    pub fn is_open(&self) -> bool {
        self.is_half_made()
            || matches!(self.state, LeaseState::Used | LeaseState::Removing | LeaseState::Discarding)
    }

    /// Whether it is being made, or was when the process died: no agent has worked in it.
    pub fn is_half_made(&self) -> bool {
        matches!(self.state, LeaseState::Making | LeaseState::Remaking)
    }
}

/// How far a worktree has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseState {
    /// It is being made: no agent has worked in it.
    Making,
    /// Someone works in it, or did when the process died.
    Used,
    /// Its agent has ended and left something.
    Kept,
    /// It is being removed, having been found unchanged or merged.
    Removing,
    /// It was unchanged or merged and is gone, while its session could still resume with it.
    Removed,
    /// It is being removed with its content, as a person asked.
    Discarding,
    /// It was removed and is being made again: no agent has worked in it since, but its agent may resume.
    Remaking,
}

/// The leases of a state folder.
#[derive(Clone, Debug)]
pub struct Leases {
    archive: Archive,
    /// Whether a lease is synced before it counts.
    synced: bool,
    /// Whether the names of the folders above leases may be lost.
    doubt: Arc<SyncDoubt>,
}

/// A lock that is held until it is dropped or the process is gone.
#[derive(Debug)]
pub struct Held {
    file: File,
    /// Where its file is, if that goes with it.
    gone_after: Option<(DirHandle, String)>,
}

impl Held {
    /// Notes the holder, for others that want the lock meanwhile.
    pub fn note(&self, now: Timestamp) {
        lock::leave_note(&self.file, now);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Still locked: a process that opened it before sees that the name means another file, and tries again.
        if let Some((folder, name)) = &self.gone_after {
            let _ = folder.remove(name);
        }
        // Closing it is not enough: a process that is being started by another thread has a copy until its program begins.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// A mark that something is under way which must not be broken off. One that is left tells that it was.
#[derive(Debug)]
pub struct Mark {
    folder: DirHandle,
    name: String,
    file: File,
}

impl Mark {
    /// What it marks is done, well or not. A mark that is only dropped stays: what it marked was broken off.
    pub fn done(self) {
        let _ = self.folder.remove(&self.name);
        for more in self.more() {
            let _ = self.folder.remove(&more);
        }
    }

    /// Notes which reference is moved, to tell its lock from other locks.
    pub fn about(&self, reference: &str) -> io::Result<()> {
        (&self.file).write_all(reference.as_bytes())
    }

    /// Which reference is moved; none if it did not say, or nothing that could be one.
    pub fn reference(&self) -> Option<String> {
        let text = String::from_utf8(self.folder.read(&self.name, LEASE_LIMIT).ok()?).ok()?;
        let plain = text.starts_with("refs/heads/") && !text.contains("..") && !text.contains(['\0', '\n']);
        plain.then_some(text)
    }

    /// Files that go with it: an index that git was given, and git's lock of that.
    fn more(&self) -> [String; 2] {
        let word = self.name.trim_end_matches(".mark");
        [format!("{word}.index"), format!("{word}.index.lock")]
    }

    /// Where git may put an index that goes with this mark.
    pub fn index(&self) -> Utf8PathBuf {
        self.folder.path().join(&self.more()[0])
    }

    /// When it was made.
    pub fn since(&self) -> Option<std::time::SystemTime> {
        self.file.metadata().and_then(|metadata| metadata.modified()).ok()
    }
}

impl Leases {
    /// Those of this state folder, which need not be there.
    pub fn new(home: impl Into<Utf8PathBuf>) -> Self {
        Self { archive: Archive::new(home), synced: false, doubt: Arc::default() }
    }

    /// The same, where leases are to survive a loss of power.
    #[must_use]
    pub fn synced(self, synced: bool) -> Self {
        Self { synced, ..self }
    }

    /// Whether writing a lease waits for the device.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The name of a repository's folder.
    pub fn project(repository: &Utf8Path) -> String {
        let shown = if repository.file_name() == Some(".git") { repository.parent() } else { None };
        slug(shown.unwrap_or(repository).as_str())
    }

    /// Where the worktrees of a repository are, unless a setting moves them. Makes the folder.
    pub fn folder(&self, repository: &Utf8Path) -> io::Result<Utf8PathBuf> {
        Ok(self.open(repository, true)?.path().to_owned())
    }

    /// Writes a lease, new or changed; it is the old one or the new one, never a part.
    pub fn put(&self, lease: &Lease) -> io::Result<()> {
        let (bytes, name) = (serde_json::to_vec(lease)?, file_name(&lease.name)?);
        let folder = self.open(&lease.repository, true)?;
        let replace = || {
            if self.synced {
                return self.sync_after(|| folder.replace_synced(&name, &bytes));
            }
            folder.replace(&name, &bytes).map(drop)
        };
        match replace() {
            // Cleared by another process in the moment before it was locked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => replace(),
            other => other,
        }
    }

    /// Writes a lease so that the folders that lead to it survive a power loss too.
    fn sync_after(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (root, home) = (self.root(false)?, DirHandle::root(self.layout().home(), false)?);
        self.doubt.sync_after(write, &[&root, &home])
    }

    /// Writes a new lease; one of this name that is there stays, and that is an error of the kind
    /// `AlreadyExists`.
    pub fn put_new(&self, lease: &Lease) -> io::Result<()> {
        let bytes = serde_json::to_vec(lease)?;
        let (folder, name) = (self.open(&lease.repository, true)?, file_name(&lease.name)?);
        let put = || folder.put_new(&name, &bytes, self.synced);
        if self.synced { self.sync_after(put) } else { put() }
    }

    pub fn remove(&self, lease: &Lease) -> io::Result<()> {
        let folder = match self.open(&lease.repository, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        match folder.remove(&file_name(&lease.name)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// The lease of this name.
    pub fn get(&self, repository: &Utf8Path, name: &str) -> Option<Lease> {
        read(&self.open(repository, false).ok()?, &file_name(name).ok()?).ok()
    }

    /// The leases of a repository, or all, oldest first; and the names of files that are no leases.
    pub fn all(&self, repository: Option<&Utf8Path>) -> io::Result<(Vec<Lease>, Vec<String>)> {
        let (mut leases, mut damaged) = (Vec::new(), Vec::new());
        for folder in self.projects(repository)? {
            for name in folder.names()?.iter().filter(|name| name.strip_suffix(".json").is_some()) {
                match read(&folder, name) {
                    Ok(lease) => leases.push(lease),
                    // Removed while we looked.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => damaged.push(format!("{}: {error}", folder.path().join(name))),
                }
            }
        }
        leases.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        Ok((leases, damaged))
    }

    /// Whether the session of a lease is alive.
    pub fn is_alive(&self, session: SessionId) -> bool {
        let name = holder_name(session);
        let here = self.root(false).and_then(|root| root.sub(HOLDERS, false));
        here.is_ok_and(|holders| lock::is_held(&holders, &name)) || self.is_session_locked(session)
    }

    /// Whether a session has a transcript that could be resumed.
    pub fn is_on_record(&self, session: SessionId) -> bool {
        self.archive.find(session, &[]).is_some()
    }

    fn is_session_locked(&self, session: SessionId) -> bool {
        let Some(Found::Ours(paths)) = self.archive.find(session, &[]) else { return false };
        let folder = DirHandle::root(paths.home(), false)
            .and_then(|home| home.sub(PROJECTS, false))
            .and_then(|projects| projects.sub(paths.project(), false))
            .and_then(|project| project.sub(&session.to_string(), false));
        folder.is_ok_and(|folder| lock::is_held(&folder, LOCK))
    }

    /// Makes the leases of a session alive that keeps no transcript.
    pub fn hold(&self, session: SessionId) -> io::Result<Held> {
        let name = holder_name(session);
        let held = self.lock(&name)?;
        let mut held = held.ok_or_else(|| io::Error::other("the session is open in another process"))?;
        held.gone_after = Some((self.root(true)?.sub(HOLDERS, true)?, name));
        Ok(held)
    }

    /// A lock of this name for a piece of work that only one may do; none if someone else does it.
    pub fn work_lock(&self, repository: &Utf8Path, what: &str) -> io::Result<Option<Held>> {
        let name = work_name(repository, what);
        for _ in 0..lock::PROBES {
            if let Some(held) = self.lock(&name)? {
                return Ok(Some(held));
            }
            // A process that is just being started has its parent's files for a moment, and so its locks.
            std::thread::sleep(lock::BETWEEN_PROBES);
        }
        self.lock(&name)
    }

    /// Who does such a piece of work now, by its own word.
    pub fn work_holder(&self, repository: &Utf8Path, what: &str) -> Holder {
        let holders = self.root(false).and_then(|root| root.sub(HOLDERS, false));
        holders.map(|folder| lock::holder(&folder, &work_name(repository, what))).unwrap_or_default()
    }

    /// Removes the locks of sessions that are gone.
    pub fn forget_holders(&self) {
        let Ok(folder) = self.root(false).and_then(|root| root.sub(HOLDERS, false)) else { return };
        let names = folder.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.strip_suffix(".lock").is_some()) {
            let Ok(file) = folder.file(name, How::AppendExisting) else { continue };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = folder.remove(name);
            }
        }
    }

    fn lock(&self, name: &str) -> io::Result<Option<Held>> {
        let folder = self.root(true)?.sub(HOLDERS, true)?;
        let mut file = folder.file(name, How::Append)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if lock::is_named(&folder, name, &file)? => {
                    return Ok(Some(Held { file, gone_after: None }));
                }
                Ok(()) => file = folder.file(name, How::Append)?,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Marks that git changes something in a repository which it locks for that.
    pub fn mark(&self, repository: &Utf8Path) -> io::Result<Mark> {
        let folder = self.open(repository, true)?;
        let name = format!(".{}.mark", random_word());
        let file = folder.file(&name, How::New)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Mark { folder, name, file })
    }

    /// The marks in a repository whose work was broken off, taken over until they are dropped or done.
    pub fn left_marks(&self, repository: &Utf8Path) -> Vec<Mark> {
        let Ok(folder) = self.open(repository, false) else { return Vec::new() };
        folder.clear_temporaries();
        let names = folder.names().unwrap_or_default();
        let marks =
            names.into_iter().filter(|name| name.starts_with('.') && name.strip_suffix(".mark").is_some());
        let take = |name: String| {
            let file = folder.file(&name, How::AppendExisting).ok()?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
            Some(Mark { folder: folder.twin().ok()?, name, file })
        };
        marks.filter_map(take).collect()
    }

    fn root(&self, create: bool) -> io::Result<DirHandle> {
        DirHandle::root(self.layout().home(), create)?.sub(WORKTREES, create)
    }

    fn open(&self, repository: &Utf8Path, create: bool) -> io::Result<DirHandle> {
        self.root(create)?.sub(&Self::project(repository), create)
    }

    fn layout(&self) -> &Layout {
        self.archive.layout()
    }

    fn projects(&self, repository: Option<&Utf8Path>) -> io::Result<Vec<DirHandle>> {
        let root = match self.root(false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let names = match repository {
            Some(repository) => vec![Self::project(repository)],
            None => root.names()?.into_iter().filter(|name| name != HOLDERS).collect(),
        };
        Ok(names.iter().filter_map(|name| root.sub(name, false).ok()).collect())
    }
}

fn work_name(repository: &Utf8Path, what: &str) -> String {
    format!("{}.{what}", Leases::project(repository))
}

fn holder_name(session: SessionId) -> String {
    format!("{session}.lock")
}

fn file_name(name: &str) -> io::Result<String> {
    if is_name(name) {
        return Ok(format!("{name}.json"));
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not the name of a worktree: {name:?}")))
}

/// What a file says is believed only as far as it fits its own name: it is ours, but anyone who could write
/// there could point us elsewhere.
fn read(folder: &DirHandle, name: &str) -> io::Result<Lease> {
    let lease: Lease = serde_json::from_slice(&folder.read(name, LEASE_LIMIT)?)?;
    let fits = name.strip_suffix(".json") == Some(lease.name.as_str())
        && is_name(&lease.name)
        && lease.path.is_absolute()
        && lease.repository.is_absolute();
    if fits { Ok(lease) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "not a lease of this name")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::faults;

    #[test]
    fn folder_whose_sync_failed_gets_something_new_to_sync() {
        let state = tempfile::tempdir().unwrap();
        let home = Utf8Path::from_path(state.path()).unwrap();
        let leases = Leases::new(home).synced(true);
        let lease = Lease {
            name: "a1".to_owned(),
            session: SessionId(uuid::Uuid::nil()),
            agent: None,
            description: String::new(),
            state: LeaseState::Making,
            path: "/checkouts/a1".into(),
            branch: "a1".to_owned(),
            base: "0".repeat(40),
            repository: "/repository/.git".into(),
            copied: None,
            created: Timestamp::UNIX_EPOCH,
            ended: None,
        };
        let worktrees = home.join(WORKTREES);
        faults::fail_next_sync(&worktrees);
        leases.put(&lease).unwrap_err();
        leases.put(&lease).unwrap();
        let new: Vec<bool> = faults::syncs(&worktrees).iter().map(|sync| sync.has_new).collect();
        assert_eq!(new, [false, true], "a second sync of what failed proves nothing");
    }
}
