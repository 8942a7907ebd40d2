//! The append-only writer. Takes batches of envelopes, hands whole lines to the kernel in one write per
//! touched file, and keeps what could not be written until it can be.
//!
//! A file never keeps half a line: after a failed write it is cut back to its last whole record, or, where
//! even that fails, the very bytes that are missing are written first. Lines of agents are written before the
//! session's own, so that a session record never names a line that is not there.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use decurion_protocol::event::SessionInfo;
use decurion_protocol::{AgentId, Envelope, Event, SessionId};
use jiff::Timestamp;

use crate::blob::{BlobFolder, BlobsOn};
use crate::disk::{DiskAccess, DiskFile, FileKey, FolderRef, RealDisk, SyncFile, SyncJob, Synced};
use crate::folder::{DirHandle, How, random_word};
use crate::import::Imported;
use crate::layout::{PROJECTS, SUBAGENTS, SessionPaths, agent_name, agent_of};
use crate::line::{Encoder, FileEnd, is_conversation};
use crate::lock::{Holder, Lock, LockError};
use crate::read::{self, ReplayOptions, ReplayReport};
use crate::tail::{self, FileTail};
use crate::{Bookmark, Journal, Record, Scope};

/// How much may wait for a disk that takes nothing.
pub const HELD_LIMIT: usize = 64 << 20;
/// How much may be written without being synced; beyond it, appending syncs.
const UNSYNCED_LIMIT: usize = 64 << 20;
/// How many agents' files are kept open.
const OPEN_LIMIT: usize = 64;

/// Why a session cannot be opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Choose another id, or resume it.
    #[error("a session with this id exists already: {0}")]
    Exists(SessionId),
    /// There is nothing to resume.
    #[error("no session with this id: {0}")]
    Missing(SessionId),
    /// Read it, fork it, or ask the holder.
    #[error("session {session} is already open in {holder}")]
    Held { session: SessionId, holder: Holder },
    /// The file system has no locks: continue in memory, or refuse.
    #[error("the state folder is on a file system without locks: {path}")]
    NoLocks { path: String },
    /// A later version wrote what must be understood and is not: read it, or use that version.
    #[error(
        "session {session} needs a version that understands records of level {needs}, as {written_by} does"
    )]
    Newer {
        session: SessionId,
        /// The level of records.
        needs: u64,
        /// The version that wrote to it last.
        written_by: String,
    },
    /// The session's own transcript cannot be opened: the state folder is not to blame.
    #[error("cannot open the transcript {path}: {source}")]
    Transcript {
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The state folder cannot be written: continue in memory, or refuse.
    #[error("cannot use {path}: {source}")]
    Storage {
        path: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a batch is not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is no room. The batch is held; try again later.
    #[error("the disk is full, {held} bytes wait: {source}")]
    Full {
        /// How many bytes wait.
        held: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The disk does not take it. The batch is held; try again later.
    #[error("the transcript cannot be written, {held} bytes wait: {source}")]
    Failed {
        /// How many bytes wait.
        held: usize,
        /// What the system said.
        source: io::Error,
    },
    /// Too much waits already. What of this batch was not taken may be passed again; nothing new may start.
    #[error("write queue full: {held} of at most {HELD_LIMIT} bytes")]
    TooMuchHeld {
        /// How many bytes wait.
        held: usize,
    },
    /// A mistake of the caller: this batch was not taken.
    #[error("events must come in the order of their numbers, after {last}: {seq}")]
    OutOfOrder {
        /// The number that came.
        seq: u64,
        /// The last number taken.
        last: u64,
    },
}

impl WriteError {
    /// Whether the batch is kept inside and the next call will try again.
    pub fn holds(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Failed { .. })
    }
}

/// The one writer of a session's files.
pub struct SessionWriter {
    paths: SessionPaths,
    disk: Box<dyn DiskAccess>,
    encoder: Encoder,
    home: DirHandle,
    projects: DirHandle,
    project: DirHandle,
    session: DirHandle,
    subagents: Option<DirHandle>,
    blobs: BlobFolder,
    root: TargetFile,
    agents: HashMap<AgentId, TargetFile>,
    /// Events taken but not yet turned into lines, because their file could not be opened.
    backlog: VecDeque<Envelope>,
    backlog_bytes: usize,
    last_seq: u64,
    /// Whether the last append failed, so that its batch may come again.
    retrying: bool,
    /// Counts appends, to tell which file was used last.
    tick: u64,
    /// Folders with names that are not synced yet.
    new_names: Vec<FolderRef>,
    /// Those of them whose last sync failed.
    pub(crate) doubtful: Vec<FolderRef>,
    /// Held for the writer's life, and dropped last.
    _lock: Lock,
}

impl SessionWriter {
    /// Begins a new session's file.
    pub fn create(paths: &SessionPaths, info: &SessionInfo, now: Timestamp) -> Result<Self, OpenError> {
        Self::create_on(Box::new(RealDisk), paths, info, now)
    }

    pub(crate) fn create_on(
        disk: Box<dyn DiskAccess>,
        paths: &SessionPaths,
        info: &SessionInfo,
        now: Timestamp,
    ) -> Result<Self, OpenError> {
        let folders = SessionFolders::open(paths, true).map_err(|source| storage(paths, source))?;
        if folders.project.has(&paths.transcript_name()) {
            return Err(OpenError::Exists(paths.session()));
        }
        let lock = folders.lock(paths, now)?;
        let file = match folders.project.file(&paths.transcript_name(), How::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(OpenError::Exists(paths.session()));
            }
            other => other.map_err(|source| storage(paths, source))?,
        };
        let root = TargetFile::new(paths.transcript_name(), disk.adopt(file), FileTail::default());
        Self::assemble(disk, paths, info, folders, lock, root).map_err(|source| storage(paths, source))
    }

    /// Begins a file of another name for a session whose own is to be replaced by it, if `make` finds something to write
    /// there once the session is locked.
    pub(crate) fn beside(
        paths: &SessionPaths,
        name: &str,
        now: Timestamp,
        make: impl FnOnce() -> Result<Option<Imported>, OpenError>,
    ) -> Result<Option<(Self, Imported)>, OpenError> {
        let failed = |source| storage(paths, source);
        let folders = SessionFolders::open(paths, true).map_err(failed)?;
        let lock = folders.lock(paths, now)?;
        let Some(imported) = make()? else { return Ok(None) };
        // Left by a dead process: a living one would hold the lock.
        match folders.project.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = folders.project.file(name, How::New).map_err(failed)?;
        let disk: Box<dyn DiskAccess> = Box::new(RealDisk);
        let root = TargetFile::new(name.to_owned(), disk.adopt(file), FileTail::default());
        let writer = Self::assemble(disk, paths, &imported.info, folders, lock, root).map_err(failed)?;
        Ok(Some((writer, imported)))
    }

    /// Takes up a recorded session: cuts what a crash left unfinished, gives every event that `options` asks
    /// for to `sink`, and is then ready to add. `info` stands on the lines that follow.
    pub fn resume(
        paths: &SessionPaths,
        info: &SessionInfo,
        now: Timestamp,
        options: &ReplayOptions,
        sink: &mut dyn FnMut(Envelope),
    ) -> Result<(Self, ReplayReport), OpenError> {
        Self::resume_on(Box::new(RealDisk), paths, info, now, options, sink)
    }

    pub(crate) fn resume_on(
        disk: Box<dyn DiskAccess>,
        paths: &SessionPaths,
        info: &SessionInfo,
        now: Timestamp,
        options: &ReplayOptions,
        sink: &mut dyn FnMut(Envelope),
    ) -> Result<(Self, ReplayReport), OpenError> {
        let missing = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::Missing(paths.session()),
            _ => OpenError::Transcript { path: paths.transcript().into_string(), source },
        };
        let failed = |source| storage(paths, source);
        let name = paths.transcript_name();
        // Looked at before anything is made, so that asking for what is not there leaves nothing behind.
        read::project_folder(paths).and_then(|project| project.stat(&name)).map_err(missing)?;
        let folders = SessionFolders::open(paths, true).map_err(failed)?;
        let lock = folders.lock(paths, now)?;
        let file = folders.project.file(&name, How::AppendExisting).map_err(missing)?;
        // Read before anything is changed: what a later version wrote may have to be left alone.
        let mut report = replay_understood(paths, options, sink)?;
        let mut tail = tail::find(&file).map_err(failed)?;
        let moved = tail::cut(&folders.project, &name, &file, &mut tail).map_err(failed)?;
        let root = TargetFile::new(name, disk.adopt(file), tail);
        let mut writer = Self::assemble(disk, paths, info, folders, lock, root).map_err(failed)?;
        writer.last_seq = tail.seq;
        let torn = writer.mend_agents(&mut report.copied) + if moved { tail.torn } else { 0 };
        report.torn_bytes = report.torn_bytes.max(torn);
        report.torn_moved = torn > 0;
        report.last_seq = report.last_seq.max(writer.last_seq);
        writer.last_seq = report.last_seq;
        Ok((writer, report))
    }

    fn assemble(
        disk: Box<dyn DiskAccess>,
        paths: &SessionPaths,
        info: &SessionInfo,
        folders: SessionFolders,
        lock: Lock,
        root: TargetFile,
    ) -> io::Result<Self> {
        Ok(Self {
            paths: paths.clone(),
            disk,
            encoder: Encoder::new(info),
            blobs: BlobFolder::new(folders.session.twin()?),
            home: folders.home,
            projects: folders.projects,
            project: folders.project,
            session: folders.session,
            subagents: None,
            root,
            agents: HashMap::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            last_seq: 0,
            retrying: false,
            tick: 0,
            new_names: vec![FolderRef::Home, FolderRef::Projects, FolderRef::Project, FolderRef::Session],
            doubtful: Vec::new(),
            _lock: lock,
        })
    }

    pub fn paths(&self) -> &SessionPaths {
        &self.paths
    }

    /// Cuts the unfinished ends of all agents' files and reads the last number used in them; gives the bytes cut, and
    /// the names of files that were replaced by copies. An agent's line is written before the session's, so theirs may
    /// be the highest. A file that cannot be opened is skipped: the reader of all files reports it.
    fn mend_agents(&mut self, copied: &mut Vec<String>) -> u64 {
        let Ok(folder) = self.session.sub(SUBAGENTS, false) else { return 0 };
        let mut torn = 0;
        for name in folder.names().unwrap_or_default() {
            if agent_of(&name).is_none() {
                continue;
            }
            let opened = folder.file(&name, How::AppendExisting);
            let is_open = opened.is_ok();
            match mend(&folder, &name, opened) {
                Ok((tail, is_cut)) => {
                    copied.extend((!is_open).then_some(name));
                    torn += if is_cut { tail.torn } else { 0 };
                    self.last_seq = self.last_seq.max(tail.seq);
                }
                Err(error) => tracing::warn!(file = name, %error, "an agent's transcript cannot be opened"),
            }
        }
        torn
    }

    /// Takes a batch's durable events that are new, or says which one is out of order.
    fn new_events<'a>(&self, batch: &'a [Envelope]) -> Result<Vec<&'a Envelope>, WriteError> {
        let mut last = self.last_seq;
        let mut events = Vec::with_capacity(batch.len());
        for envelope in batch.iter().filter(|envelope| envelope.event.is_durable()) {
            if envelope.seq > last {
                last = envelope.seq;
                events.push(envelope);
            } else if !(self.retrying && envelope.seq <= self.last_seq) {
                return Err(WriteError::OutOfOrder { seq: envelope.seq, last });
            }
        }
        Ok(events)
    }

    fn append_new(&mut self, events: &[&Envelope]) -> Result<(), WriteError> {
        self.tick += 1;
        if self.held_bytes() > 0
            && let Err(error) = self.flush()
        {
            // In order or not at all: what comes later waits behind what waits already.
            self.hold(events)?;
            return Err(self.refusal(error));
        }
        for (index, envelope) in events.iter().enumerate() {
            if let Err(error) = self.take(envelope) {
                self.hold(&events[index..])?;
                return Err(self.refusal(error));
            }
        }
        self.flush().map_err(|error| self.refusal(error))
    }

    /// Turns one event into lines that wait to be written. On an error nothing has changed.
    fn take(&mut self, envelope: &Envelope) -> io::Result<()> {
        if let Event::SessionOpened { info } = &envelope.event {
            self.encoder = Encoder::new(info);
        }
        let key = envelope.agent.as_ref().filter(|_| is_conversation(&envelope.event));
        if let Some(agent) = key {
            self.open_agent(agent)?;
        }
        let target = match key.and_then(|agent| self.agents.get_mut(agent)) {
            Some(target) => target,
            None => &mut self.root,
        };
        target.used = self.tick;
        let mut blobs = BlobsOn(&mut self.blobs, &*self.disk);
        self.encoder.encode(envelope, &mut target.end, &mut target.pending, &mut blobs)?;
        self.last_seq = self.last_seq.max(envelope.seq);
        Ok(())
    }

    /// Keeps events whose lines could not be made.
    fn hold(&mut self, events: &[&Envelope]) -> Result<(), WriteError> {
        let size = |envelope: &&Envelope| serde_json::to_vec(envelope).map_or(0, |text| text.len());
        let bytes: usize = events.iter().map(size).sum();
        if self.held_bytes() + bytes > HELD_LIMIT {
            return Err(WriteError::TooMuchHeld { held: self.held_bytes() });
        }
        for envelope in events {
            self.last_seq = envelope.seq;
            self.backlog.push_back((*envelope).clone());
        }
        self.backlog_bytes += bytes;
        Ok(())
    }

    /// Writes everything that waits: agents' files first, then the session's.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(envelope) = self.backlog.pop_front() {
            if let Err(error) = self.take(&envelope) {
                self.backlog.push_front(envelope);
                return Err(error);
            }
        }
        self.backlog_bytes = 0;
        let waiting: Vec<AgentId> = self
            .agents
            .iter()
            .filter(|(_, target)| !target.pending.is_empty())
            .map(|(agent, _)| agent.clone())
            .collect();
        for agent in waiting {
            self.open_agent(&agent)?;
            if let Some(target) = self.agents.get_mut(&agent) {
                target.flush()?;
            }
        }
        if !self.root.pending.is_empty() {
            if self.root.file.is_none() {
                let file = self.project.file(&self.root.name, How::AppendExisting)?;
                self.root.file = Some(self.disk.adopt(file));
            }
            self.root.flush()?;
        }
        if self.unsynced_bytes() > UNSYNCED_LIMIT {
            self.sync()?;
        }
        Ok(())
    }

    /// Sees to it that an agent's file is open.
    fn open_agent(&mut self, agent: &AgentId) -> io::Result<()> {
        if self.agents.get(agent).is_some_and(|target| target.file.is_some()) {
            return Ok(());
        }
        self.close_oldest();
        if self.subagents.is_none() {
            self.subagents = Some(self.session.sub(SUBAGENTS, true)?);
            self.has_new_name(FolderRef::Session);
        }
        let Some(folder) = &self.subagents else { return Ok(()) };
        if let Some(target) = self.agents.get_mut(agent) {
            let file = folder.file(&target.name, How::AppendExisting)?;
            target.file = Some(self.disk.adopt(file));
            return Ok(());
        }
        let name = agent_name(agent);
        let file = folder.file(&name, How::Append).or_else(|error| replace_bad(folder, &name, error))?;
        let mut tail = tail::find(&file)?;
        tail::cut(folder, &name, &file, &mut tail)?;
        self.agents.insert(agent.clone(), TargetFile::new(name, self.disk.adopt(file), tail));
        if tail == FileTail::default() {
            self.has_new_name(FolderRef::Subagents);
        }
        Ok(())
    }

    fn has_new_name(&mut self, place: FolderRef) {
        if !self.new_names.contains(&place) {
            self.new_names.push(place);
        }
    }

    /// Closes the file that was used longest ago, when there are too many. One with lines that wait stays.
    fn close_oldest(&mut self) {
        let open = self.agents.values().filter(|target| target.file.is_some()).count();
        if open < OPEN_LIMIT {
            return;
        }
        let idle =
            self.agents.values_mut().filter(|target| target.file.is_some() && target.pending.is_empty());
        if let Some(oldest) = idle.min_by_key(|target| target.used) {
            oldest.file = None;
        }
    }

    fn targets(&self) -> impl Iterator<Item = &TargetFile> {
        std::iter::once(&self.root).chain(self.agents.values())
    }

    fn unsynced_bytes(&self) -> usize {
        self.targets().map(|target| target.unsynced.len()).sum()
    }

    fn refusal(&self, source: io::Error) -> WriteError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let held = self.held_bytes();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => WriteError::Full { held, source },
            _ => WriteError::Failed { held, source },
        }
    }

    fn reopen(&self, key: &FileKey, how: How) -> io::Result<Box<dyn DiskFile>> {
        let file = match key {
            None => self.project.file(&self.root.name, how)?,
            Some(agent) => {
                self.subagents.as_ref().ok_or(io::ErrorKind::NotFound)?.file(&agent_name(agent), how)?
            }
        };
        Ok(self.disk.adopt(file))
    }

    /// A handle of a file whose sync makes its whole content safe. After a failed sync the kernel may have dropped
    /// data, and would report success on the next try: so everything since the last good one is written again, to the
    /// same place, through a fresh handle.
    fn handle_to_sync(&mut self, key: &FileKey) -> io::Result<Option<SyncFile>> {
        let Some(target) = self.target_mut(key) else { return Ok(None) };
        let (through, is_doubtful) = (target.length, target.is_doubtful);
        let twin = target.file.as_ref().filter(|_| !is_doubtful).map(|file| file.twin()).transpose()?;
        let file = match twin {
            Some(file) => file,
            None if is_doubtful => {
                let mut fresh = self.reopen(key, How::InPlace)?;
                let Some(target) = self.target_mut(key) else { return Ok(None) };
                fresh.write_at(&target.unsynced, target.synced)?;
                fresh
            }
            None => self.reopen(key, How::AppendExisting)?,
        };
        Ok(Some(SyncFile { key: key.clone(), file, through }))
    }

    /// Writes again what a failed sync left in doubt, and syncs that.
    fn rewrite(&mut self, key: &FileKey) -> io::Result<()> {
        let Some(SyncFile { mut file, through, .. }) = self.handle_to_sync(key)? else { return Ok(()) };
        file.sync()?;
        if let Some(target) = self.target_mut(key) {
            target.settle(through);
        }
        Ok(())
    }

    /// The folders that have new names, each by a handle whose sync can be trusted.
    fn folders_to_sync(&mut self) -> io::Result<Vec<(FolderRef, DirHandle)>> {
        if std::mem::take(&mut self.blobs.is_new) {
            self.has_new_name(FolderRef::Session);
        }
        if std::mem::take(&mut self.blobs.has_names) {
            self.has_new_name(FolderRef::Blobs);
        }
        let mut folders = Vec::with_capacity(self.new_names.len());
        for place in &self.new_names {
            let folder = match place {
                FolderRef::Home => &self.home,
                FolderRef::Projects => &self.projects,
                FolderRef::Project => &self.project,
                FolderRef::Session => &self.session,
                FolderRef::Subagents => self.subagents.as_ref().unwrap_or(&self.session),
                FolderRef::Blobs => self.blobs.folder().unwrap_or(&self.session),
            };
            let is_doubtful = self.doubtful.contains(place);
            folders.push((*place, if is_doubtful { folder.renewed()? } else { folder.twin()? }));
        }
        self.new_names.clear();
        self.doubtful.clear();
        Ok(folders)
    }

    fn target_mut(&mut self, key: &FileKey) -> Option<&mut TargetFile> {
        match key {
            None => Some(&mut self.root),
            Some(agent) => self.agents.get_mut(agent),
        }
    }
}

impl Journal for SessionWriter {
    fn append(&mut self, batch: &[Envelope]) -> Result<(), WriteError> {
        let events = self.new_events(batch)?;
        let result = self.append_new(&events);
        self.retrying = result.is_err();
        result
    }

    fn begin_sync(&mut self) -> io::Result<Option<SyncJob>> {
        let keys: Vec<FileKey> = std::iter::once(None)
            .filter(|_| !self.root.unsynced.is_empty())
            .chain(
                self.agents
                    .iter()
                    .filter(|(_, target)| !target.unsynced.is_empty())
                    .map(|(agent, _)| Some(agent.clone())),
            )
            .collect();
        if keys.is_empty() && self.blobs.unsynced.is_empty() && self.doubtful.is_empty() {
            return Ok(None);
        }
        let mut files = Vec::with_capacity(keys.len());
        for key in keys {
            files.extend(self.handle_to_sync(&key)?);
        }
        // Before the folders, because a blob that is written anew has a new name; and nothing can fail once those are
        // taken, so that none of them is forgotten.
        self.blobs.renew_unsynced(&*self.disk)?;
        let folders = self.folders_to_sync()?;
        let blobs = std::mem::take(&mut self.blobs.unsynced);
        Ok(Some(SyncJob { files, blobs, folders }))
    }

    fn end_sync(&mut self, synced: Synced) -> io::Result<()> {
        let mut failure = synced.error;
        self.blobs.unsynced.extend(synced.blobs);
        for place in synced.folders {
            self.has_new_name(place);
            self.doubtful.push(place);
        }
        for (key, through, result) in synced.files {
            let Some(target) = self.target_mut(&key) else { continue };
            let result = match result {
                Ok(()) => {
                    target.settle(through);
                    Ok(())
                }
                Err(error) => {
                    tracing::warn!(%error, "a sync failed; the end of the file is written again");
                    (target.is_doubtful, target.file) = (true, None);
                    self.rewrite(&key)
                }
            };
            if let Err(error) = result {
                failure = Some(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn last_seq(&self) -> u64 {
        self.last_seq
    }

    fn is_gone(&self) -> bool {
        // A file without a name takes all that is written to it.
        let found = self.project.stat(&self.root.name);
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn held_bytes(&self) -> usize {
        self.backlog_bytes + self.targets().map(|target| target.pending.len()).sum::<usize>()
    }

    fn since(&self, seq: u64, sink: &mut dyn FnMut(Envelope)) -> io::Result<ReplayReport> {
        let options = ReplayOptions { scope: Scope::Everything, structured: true, after: seq };
        read::replay(&self.paths, &options, sink)
    }

    fn record(&self) -> Arc<dyn Record> {
        Arc::new(SessionFileSet(self.paths.clone()))
    }
}

/// The files of a session, for readers beside the writer.
struct SessionFileSet(SessionPaths);

impl Record for SessionFileSet {
    fn read_on(
        &self,
        bookmark: &mut Bookmark,
        until: u64,
        sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
    ) -> io::Result<()> {
        read::read_on(&self.0, bookmark, until, sink)
    }
}

/// One file and what is known of it.
struct TargetFile {
    name: String,
    /// None while closed to keep the number of open files down.
    file: Option<Box<dyn DiskFile>>,
    /// How long the file is when it holds whole batches only.
    length: u64,
    /// Its last line, those that wait included.
    end: FileEnd,
    /// Whole lines that wait to be written.
    pending: Vec<u8>,
    /// How many of those bytes are in the file and could not be taken back.
    written: usize,
    /// Up to where the file is known to be on the device.
    synced: u64,
    /// The bytes from there to `length`.
    unsynced: Vec<u8>,
    /// Whether a sync failed since then: only what is written again can be synced.
    is_doubtful: bool,
    /// When it was last used.
    used: u64,
}

impl TargetFile {
    fn new(name: String, file: Box<dyn DiskFile>, tail: FileTail) -> Self {
        Self {
            name,
            file: Some(file),
            length: tail.length,
            end: FileEnd { ordinal: tail.ordinal, ..FileEnd::default() },
            // The last line of the file lost its end.
            pending: if tail.is_open { vec![b'\n'] } else { Vec::new() },
            written: 0,
            synced: tail.length,
            unsynced: Vec::new(),
            is_doubtful: false,
            used: 0,
        }
    }

    /// Writes what waits, all of it or, as far as the disk allows, nothing.
    fn flush(&mut self) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        while self.written < self.pending.len() {
            let error = match file.write(&self.pending[self.written..]) {
                Ok(0) => io::Error::from(io::ErrorKind::WriteZero),
                Ok(count) => {
                    self.written += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            // Half a line may be in the file. It is taken back, or finished by the next try.
            if self.written > 0 && file.truncate(self.length).is_ok() {
                self.written = 0;
            }
            return Err(error);
        }
        self.length += self.pending.len() as u64;
        self.unsynced.append(&mut self.pending);
        self.written = 0;
        Ok(())
    }

    /// Takes note that the file is on the device up to here.
    fn settle(&mut self, through: u64) {
        let count = usize::try_from(through.saturating_sub(self.synced)).unwrap_or(usize::MAX);
        let count = count.min(self.unsynced.len());
        self.unsynced.drain(..count);
        self.synced += count as u64;
        self.is_doubtful = false;
    }
}

/// The folders a session's files are in.
struct SessionFolders {
    home: DirHandle,
    projects: DirHandle,
    project: DirHandle,
    session: DirHandle,
}

impl SessionFolders {
    fn open(paths: &SessionPaths, create: bool) -> io::Result<Self> {
        let home = DirHandle::root(paths.home(), create)?;
        let projects = home.sub(PROJECTS, create)?;
        let project = projects.sub(paths.project(), create)?;
        let session = project.sub(&paths.session().to_string(), create)?;
        Ok(Self { home, projects, project, session })
    }

    fn lock(&self, paths: &SessionPaths, now: Timestamp) -> Result<Lock, OpenError> {
        Lock::take(&self.session, now).map_err(|error| match error {
            LockError::Held(holder) => OpenError::Held { session: paths.session(), holder },
            LockError::Unsupported => OpenError::NoLocks { path: paths.lock().into_string() },
            LockError::Io(source) => OpenError::Storage { path: paths.lock().into_string(), source },
        })
    }
}

/// Reads a session to continue or to copy it; refuses where a record is not understood that must be.
pub fn replay_understood(
    paths: &SessionPaths,
    options: &ReplayOptions,
    sink: &mut dyn FnMut(Envelope),
) -> Result<ReplayReport, OpenError> {
    let mut written_by = String::from("of a later version");
    let mut note = |envelope: Envelope| {
        if let Event::SessionOpened { info } = &envelope.event {
            written_by.clone_from(&info.version);
        }
        sink(envelope);
    };
    let report = read::replay(paths, options, &mut note).map_err(|source| storage(paths, source))?;
    match report.needs {
        Some(needs) => Err(OpenError::Newer { session: paths.session(), needs, written_by }),
        None => Ok(report),
    }
}

/// Cuts the unfinished end of an agent's file; gives what its end says, and whether something was cut. A file that can
/// be read but not written is replaced by a copy.
fn mend(folder: &DirHandle, name: &str, opened: io::Result<File>) -> io::Result<(FileTail, bool)> {
    let file = opened.or_else(|error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        if is_denied { folder.replace_by_copy(name) } else { Err(error) }
    })?;
    let mut tail = tail::find(&file)?;
    let is_cut = tail::cut(folder, name, &file, &mut tail)?;
    Ok((tail, is_cut))
}

/// Begins an agent's file anew where something else has its name that can never be written: a link, a folder, a file of
/// another user. That keeps its content under another name, or in the new file if it can be read. An error of the disk
/// is none of these.
fn replace_bad(folder: &DirHandle, name: &str, error: io::Error) -> io::Result<File> {
    use io::ErrorKind::{InvalidInput, IsADirectory, PermissionDenied};
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    if !is_link && !matches!(error.kind(), InvalidInput | IsADirectory | PermissionDenied) {
        return Err(error);
    }
    if error.kind() == PermissionDenied && folder.file(name, How::Read).is_ok() {
        tracing::warn!(file = name, %error, "an agent's transcript is read-only; it is replaced by a copy");
        return folder.replace_by_copy(name);
    }
    let aside = format!("{name}.{}.bad", random_word());
    tracing::warn!(file = name, %error, aside, "an agent's transcript cannot be written; it is begun anew");
    folder.rename(name, &aside)?;
    folder.file(name, How::Append)
}

fn storage(paths: &SessionPaths, source: io::Error) -> OpenError {
    OpenError::Storage { path: paths.folder().into_string(), source }
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;

    use super::*;

    const NAME: &str = "agent-a1.jsonl";

    /// What the system answers for a file that may only be read. Tests may run as a user who may write everything.
    fn denied() -> io::Error {
        io::ErrorKind::PermissionDenied.into()
    }

    #[test]
    fn read_only_agent_transcript_is_replaced_by_a_copy() {
        let state = tempfile::tempdir().unwrap();
        let folder = DirHandle::root(Utf8Path::from_path(state.path()).unwrap(), false).unwrap();
        for open in [
            |folder: &DirHandle| assert!(replace_bad(folder, NAME, denied()).is_ok()),
            |folder: &DirHandle| assert!(mend(folder, NAME, Err(denied())).is_ok()),
        ] {
            std::fs::write(state.path().join(NAME), "history\n").unwrap();
            let old = folder.stat(NAME).unwrap().st_ino;
            open(&folder);
            assert_ne!(folder.stat(NAME).unwrap().st_ino, old, "it is another file");
            assert_eq!(folder.names().unwrap(), [NAME], "nothing is set aside");
            assert_eq!(folder.read(NAME, 100).unwrap(), b"history\n");
        }
    }
}
