//! The journal on disk. Takes envelopes in the session's order, writes each durable one as lines that tools
//! of the ecosystem can read, and gives them back after any kind of death.
//!
//! Nothing else writes under the state folder, and nothing here knows what an event means beyond whether it
//! is kept. [`SessionWriter`] and [`MemoryJournal`] are the two [`Journal`]s, [`Archive`] finds what was
//! written, [`replay`] streams it back, [`import`] reads a transcript of another program, and
//! [`SessionFiles`] keeps what is too large for a line. [`AuditLog`] is the log of all sessions that shows tampering.

mod adopt;
pub mod archive;
pub mod audit;
mod blob;
mod caches;
mod decode;
mod disk;
mod empty;
#[cfg(test)]
mod faults;
mod folder;
mod folder_snapshots;
pub mod import;
pub mod jsonl;
pub mod layout;
pub mod lease;
mod line;
pub mod listing;
pub mod lock;
mod manifests;
pub mod memory;
pub mod output;
pub mod read;
mod remove;
mod repair;
mod tail;

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

use decurion_protocol::Envelope;

pub use adopt::adopt;
pub use archive::{Archive, Found};
pub use audit::{AuditFilter, AuditLog};
pub use caches::ServerCacheFolder;
pub use disk::{SyncJob, Synced};
pub use folder_snapshots::{Looking, WatchedFolder, WatchedFolders};
pub use import::{ImportContext, ImportError, Imported, import};
pub use jsonl::{OpenError, SessionWriter, WriteError, replay_understood};
pub use layout::{Layout, SessionPaths, slug};
pub use lease::{Held, Lease, LeaseState, Leases, Mark};
pub use lock::Holder;
pub use manifests::ManifestFolder;
pub use memory::MemoryJournal;
pub use output::{OutputFile, SessionFiles};
pub use read::{Bookmark, ReplayOptions, ReplayReport, Scope, replay};

/// Where a session's durable events go. `&mut self` is the single-writer rule, checked by the compiler.
pub trait Journal: Send {
    /// Hands the durable events of a batch to the kernel, in order, one write per touched file. Transient events are
    /// skipped.
    ///
    /// After a [`WriteError`] that [`WriteError::holds`] the batch is kept inside and counts as accepted: the next
    /// call, with nothing, with the same batch or with a later one, tries again and writes nothing twice. Durable
    /// events must come with rising `seq`.
    fn append(&mut self, batch: &[Envelope]) -> Result<(), WriteError>;

    /// Makes everything appended so far survive a power loss. After an error nothing may be assumed to be on
    /// disk; calling again repairs and tries again.
    fn sync(&mut self) -> io::Result<()> {
        match self.begin_sync()? {
            Some(job) => self.end_sync(job.run()),
            None => Ok(()),
        }
    }

    /// The same in two halves, so that the slow one can run on another thread: takes what must be synced,
    /// or nothing when there is nothing to do.
    fn begin_sync(&mut self) -> io::Result<Option<SyncJob>>;

    /// Takes note of what a job achieved, and repairs what it could not sync.
    fn end_sync(&mut self, synced: Synced) -> io::Result<()>;

    /// The highest `seq` accepted so far; 0 before the first.
    fn last_seq(&self) -> u64;

    /// Whether what is written goes nowhere that anybody could read it again, though no write fails.
    fn is_gone(&self) -> bool {
        false
    }

    /// Bytes that could not be written yet.
    fn held_bytes(&self) -> usize;

    /// Gives the durable events after `seq`, oldest first, structures included.
    fn since(&self, seq: u64, sink: &mut dyn FnMut(Envelope)) -> io::Result<ReplayReport>;

    /// What is kept, for readers beside the writer; it stays readable after the writer is gone.
    fn record(&self) -> Arc<dyn Record>;
}

/// What a journal has kept, readable piece by piece from any thread while it is written.
pub trait Record: Send + Sync {
    /// Gives the durable events after the bookmark, oldest first, up to the one numbered `until`, which must be written
    /// by then, or until `sink` breaks; the bookmark then follows the last one.
    fn read_on(
        &self,
        bookmark: &mut Bookmark,
        until: u64,
        sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
    ) -> io::Result<()>;
}
