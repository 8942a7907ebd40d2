//! The audit log: permission decisions, sandbox refusals and connections of all sessions of a state folder. Takes
//! entries from any thread without waiting, gives a chain of lines that shows if one of them is changed, removed, added
//! or moved.
//!
//! One thread writes, in batches and under a lock that all processes share. Anyone who can read the key file
//! (`audit.key`) can forge the log; the key distinguishes an edited log from a written one, it is not a secret from its
//! owner.

mod files;
mod line;
mod read;
mod verify;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use camino::Utf8Path;
use decurion_protocol::{AuditEntry, AuditKind};
use jiff::Timestamp;

use files::{Appender, BATCH, LogFiles};

pub use read::{AuditFilter, ReadReport, Recorded};
pub use verify::{Anchor, AuditProblem, AuditReport, InvalidAnchor, ProblemKind};

/// So many entries may wait for the writer, and as many again for a disk that refuses. Beyond that they are counted.
const WAITING: usize = 1024;
/// After so long a write that failed is tried again.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// The audit log of a state folder. Nothing is read or made before the first entry.
pub struct AuditLog {
    files: LogFiles,
    shared: Arc<AuditShared>,
    /// None until the first entry.
    writer: Mutex<Option<Thread>>,
}

/// The way to the thread that writes, and its end.
type Thread = (SyncSender<AuditEntry>, JoinHandle<Option<Unwritten>>);

/// What the writer and those who append both know.
#[derive(Default)]
struct AuditShared {
    /// Entries for which there was no room.
    dropped: AtomicU64,
    /// A problem that was not reported yet.
    problem: Mutex<Option<String>>,
}

/// Entries that could not be written before the log was closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} audit entries could not be written: {reason}")]
pub struct Unwritten {
    pub count: u64,
    pub reason: String,
}

impl AuditLog {
    /// The log of this state folder, which need not be there.
    pub fn open(state: &Utf8Path) -> Self {
        Self::of(LogFiles::new(state, false))
    }

    /// The same, where entries are to survive a loss of power.
    #[must_use]
    pub fn synced(self, synced: bool) -> Self {
        Self::of(LogFiles::new(self.files.state(), synced))
    }

    /// The same with segments of about this length, so that a test has several.
    #[must_use]
    pub fn with_segments_of(self, bytes: u64) -> Self {
        Self::of(self.files.clone().with_segments_of(bytes))
    }

    fn of(files: LogFiles) -> Self {
        Self { files, shared: Arc::default(), writer: Mutex::new(None) }
    }

    /// Hands an entry to the writer; never waits. Gives a sentence for a person, once, if entries cannot be written.
    pub fn append(&self, entry: AuditEntry) -> Option<String> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_none() {
            match self.start() {
                Ok(started) => *writer = Some(started),
                Err(error) => self.shared.report(&error),
            }
        }
        let sent = writer.as_ref().is_some_and(|(sender, _)| sender.try_send(entry.bounded()).is_ok());
        if !sent {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until everything is written, as far as it can be.
    pub fn close(self) -> Result<(), Unwritten> {
        self.finish().map_or(Ok(()), Err)
    }

    /// Gives the entries that a filter wants, oldest first.
    pub fn read(&self, filter: &AuditFilter, sink: &mut dyn FnMut(Recorded)) -> io::Result<ReadReport> {
        self.files.read(filter, sink)
    }

    /// Checks that the log is whole, and holds the noted entry if one is given.
    pub fn verify(&self, anchor: Option<Anchor>) -> io::Result<AuditReport> {
        self.files.verify(anchor)
    }

    fn start(&self) -> io::Result<Thread> {
        let (sender, entries) = sync_channel(WAITING);
        let writer = AuditWriter {
            appender: Appender::new(self.files.clone()),
            shared: Arc::clone(&self.shared),
            kept: Vec::new(),
            lost: 0,
            since: Timestamp::UNIX_EPOCH,
            newest: Timestamp::UNIX_EPOCH,
            failed: None,
        };
        let thread =
            std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&entries))?;
        Ok((sender, thread))
    }

    fn finish(&self) -> Option<Unwritten> {
        let (sender, thread) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        drop(sender);
        thread.join().unwrap_or(None)
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        if let Some(unwritten) = self.finish() {
            tracing::warn!("{unwritten}");
        }
    }
}

impl AuditShared {
    /// Stores a problem for the next caller of `append`.
    fn report(&self, error: &io::Error) {
        let text = format!("the audit log cannot be written; entries are kept and counted: {error}");
        tracing::warn!("{text}");
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Whether more entries come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    /// Some may wait already.
    Waits,
    Later,
    Never,
}

/// The thread that writes.
struct AuditWriter {
    appender: Appender,
    shared: Arc<AuditShared>,
    /// Entries that are not written yet.
    kept: Vec<AuditEntry>,
    /// Entries behind them that were not kept, and when the first of them was made.
    lost: u64,
    since: Timestamp,
    /// When the last entry was made.
    newest: Timestamp,
    /// Why the last write failed, if it did.
    failed: Option<String>,
}

impl AuditWriter {
    fn run(mut self, entries: &Receiver<AuditEntry>) -> Option<Unwritten> {
        loop {
            let next = if self.failed.is_some() {
                entries.recv_timeout(BETWEEN_TRIES)
            } else {
                entries.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match next {
                Ok(entry) => self.keep(entry),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let more = self.gather(entries);
            self.write(more != More::Waits);
            if more == More::Never {
                break;
            }
        }
        if self.waiting() > 0 {
            self.write(true);
        }
        let count = self.waiting();
        (count > 0).then(|| Unwritten { count, reason: self.failed.unwrap_or_default() })
    }

    /// Takes what waits, up to a batch.
    fn gather(&mut self, entries: &Receiver<AuditEntry>) -> More {
        for _ in 1..BATCH {
            match entries.try_recv() {
                Ok(entry) => self.keep(entry),
                Err(TryRecvError::Empty) => return More::Later,
                Err(TryRecvError::Disconnected) => return More::Never,
            }
        }
        More::Waits
    }

    fn keep(&mut self, entry: AuditEntry) {
        self.newest = entry.at;
        if self.lost == 0 && self.kept.len() < WAITING {
            return self.kept.push(entry);
        }
        if self.lost == 0 {
            self.since = entry.at;
        }
        self.lost += 1;
    }

    /// How many entries are not written.
    fn waiting(&self) -> u64 {
        self.kept.len() as u64 + self.lost + self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Writes what is kept, then how many were not. Those that found no room in the queue are behind all that is in
    /// it, so they count once it is empty.
    fn write(&mut self, is_drained: bool) {
        // One place in a batch is for the damage that an append may find.
        while !self.kept.is_empty() {
            let count = self.kept.len().min(BATCH - 1);
            if !self.append(count) {
                return;
            }
        }
        let dropped = if is_drained { self.shared.dropped.swap(0, Ordering::Relaxed) } else { 0 };
        let count = self.lost.saturating_add(dropped);
        if count > 0 {
            let at = if self.lost > 0 { self.since } else { self.newest };
            let reason = self.failed.clone().unwrap_or_else(|| "too many entries at once".to_owned());
            self.kept.push(AuditEntry::own(at, AuditKind::Gap { count, reason }));
            let is_written = self.append(1);
            (self.lost, self.since) = (if is_written { 0 } else { count }, at);
            if !is_written {
                // Counted again at the next try: the entry about them is none of them.
                self.kept.clear();
                return;
            }
        }
        self.failed = None;
    }

    /// Writes the first of what is kept. Gives whether that went well.
    fn append(&mut self, count: usize) -> bool {
        match self.appender.append(&self.kept[..count]) {
            Ok(()) => {
                self.kept.drain(..count);
                true
            }
            Err(error) => {
                if self.failed.is_none() {
                    self.shared.report(&error);
                }
                self.failed = Some(error.to_string());
                false
            }
        }
    }
}
