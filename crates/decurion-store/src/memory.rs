//! The same journal without a disk, for sessions that leave nothing behind or have nowhere to write. Takes
//! envelopes, keeps the newest of them up to a limit.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decurion_protocol::Envelope;

use crate::disk::{SyncJob, Synced};
use crate::{Bookmark, Journal, Record, ReplayReport, WriteError};

/// Keeps events for as long as the process lives.
#[derive(Debug)]
pub struct MemoryJournal {
    kept: MemoryRecords,
    limit: usize,
    dropped: u64,
    last_seq: u64,
}

/// What is kept, shared with its readers.
#[derive(Clone, Debug, Default)]
struct MemoryRecords(Arc<Mutex<Newest>>);

#[derive(Debug, Default)]
struct Newest {
    events: VecDeque<Envelope>,
    /// The last event that is not among them any more; nothing is 0.
    gone: u64,
}

impl MemoryRecords {
    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record for MemoryRecords {
    fn read_on(
        &self,
        bookmark: &mut Bookmark,
        until: u64,
        sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let kept = self.lock();
        let behind = bookmark.after;
        bookmark.lost = Some(kept.gone.min(until)).filter(|lost| *lost > behind);
        for envelope in kept.events.iter().filter(|envelope| envelope.seq > behind && envelope.seq <= until) {
            bookmark.after = envelope.seq;
            if sink(envelope.clone()).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl MemoryJournal {
    /// How many events are kept unless told otherwise.
    pub const DEFAULT_LIMIT: usize = 10_000;

    /// A journal that keeps at most this many events, the newest ones.
    pub fn new(limit: usize) -> Self {
        Self { kept: MemoryRecords::default(), limit, dropped: 0, last_seq: 0 }
    }
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LIMIT)
    }
}

impl Journal for MemoryJournal {
    fn append(&mut self, batch: &[Envelope]) -> Result<(), WriteError> {
        let durable = || batch.iter().filter(|envelope| envelope.event.is_durable());
        let mut last = self.last_seq;
        for envelope in durable() {
            if envelope.seq <= last {
                return Err(WriteError::OutOfOrder { seq: envelope.seq, last });
            }
            last = envelope.seq;
        }
        self.last_seq = last;
        let mut kept = self.kept.lock();
        kept.events.extend(durable().cloned());
        while kept.events.len() > self.limit {
            kept.gone = kept.events.pop_front().map_or(kept.gone, |envelope| envelope.seq);
            self.dropped += 1;
        }
        Ok(())
    }

    fn begin_sync(&mut self) -> io::Result<Option<SyncJob>> {
        Ok(None)
    }

    fn end_sync(&mut self, _synced: Synced) -> io::Result<()> {
        Ok(())
    }

    fn last_seq(&self) -> u64 {
        self.last_seq
    }

    fn held_bytes(&self) -> usize {
        0
    }

    fn since(&self, seq: u64, sink: &mut dyn FnMut(Envelope)) -> io::Result<ReplayReport> {
        let mut report = ReplayReport { last_seq: self.last_seq, gaps: self.dropped, ..Default::default() };
        for envelope in self.kept.lock().events.iter().filter(|envelope| envelope.seq > seq) {
            report.events += 1;
            report.lines += 1;
            sink(envelope.clone());
        }
        Ok(report)
    }
    fn record(&self) -> Arc<dyn Record> {
        Arc::new(self.kept.clone())
    }
}
