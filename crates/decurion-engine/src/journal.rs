//! Room 9. Numbers every event, writes it, then publishes it. Takes events from runs, gives them back
//! numbered once they are on record: nobody is shown what a restart would not find.
//!
//! One thread owns the files. It gathers what is waiting into one write (group commit), and while the disk
//! refuses, it holds what it has and tries again; whoever waits for an answer simply waits longer.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use decurion_protocol::link::BoxStream;
use decurion_protocol::{AgentId, Clock, Envelope, Event, RunId, WaitReason};
use decurion_store::{Bookmark, WriteError};
use tokio::sync::oneshot;

use crate::branch::Branches;
use crate::live::Live;

/// How long what is written may stay unsynced.
const SYNC_WITHIN: Duration = Duration::from_millis(200);
/// How often a write that failed is tried again: the one poll in the program.
pub const RETRY_EVERY: Duration = Duration::from_secs(2);
/// How many waiting writes are gathered into one.
const GATHER_AT_MOST: usize = 512;

/// What is told where somebody took the files away.
const GONE: &str = "the transcript of this session was deleted: nothing is recorded any more, and the session cannot be \
    resumed";

/// What is told once where the disk does not sync, and nobody waits for that.
const UNSYNCED: &str = "the disk does not confirm that the transcript is stored; a loss of power could lose the last \
    records, and syncing is tried again";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the kernel: any death of the process is survived. Synced soon after.
    #[default]
    Process,
    /// Synced before anyone sees it: a loss of power is survived.
    Power,
}

/// How a journal behaves.
pub struct JournalOptions {
    /// Where dates come from.
    pub clock: Arc<dyn Clock>,
    pub durability: Durability,
    /// The last number on record.
    pub last_seq: u64,
    /// When to stop trying to write; none is never.
    pub give_up_after: Option<Duration>,
    /// How often a write that failed is tried again.
    pub retry_every: Duration,
    /// Whether each job is done where it is asked for, rather than on a thread of its own: where time is
    /// simulated, a thread would let it run on.
    pub here: bool,
}

#[derive(Clone, Debug)]
pub struct Who {
    pub run: RunId,
    /// The agent; none for the root.
    pub agent: Option<AgentId>,
}

/// The transcript could not be written and nobody tries any more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the transcript cannot be written: {0}")]
pub struct JournalLost(pub Arc<str>);

/// A handle to the journal; everyone has one.
#[derive(Clone)]
pub struct Journal {
    door: Door,
    live: Arc<Live>,
    seq: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    branches: Arc<Branches>,
    lost: Arc<OnceLock<JournalLost>>,
    hurry: Arc<Hurry>,
}

/// Whether the session is to end, so that a disk that refuses is not waited for as long as otherwise.
#[derive(Default)]
struct Hurry {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Hurry {
    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits this long, or until it is set; once it is, a part of that.
    fn pause(&self, time: Duration) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_set {
            drop(is_set);
            std::thread::sleep(time / 4);
        } else {
            drop(self.changed.wait_timeout_while(is_set, time, |is_set| !*is_set));
        }
    }
}

#[derive(Clone)]
enum Door {
    /// To the thread that owns the files.
    Thread(Sender<Job>),
    /// To the files themselves; none once they are closed.
    Here(Arc<Mutex<Option<Writer>>>),
}

impl Door {
    /// Hands a job over; false if nobody takes it.
    fn send(&self, job: Job) -> bool {
        match self {
            Self::Thread(jobs) => jobs.send(job).is_ok(),
            Self::Here(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(open) = writer.as_mut() else { return false };
                if let Some(closed) = open.do_all(VecDeque::from([job])) {
                    *writer = None;
                    let _ = closed.send(());
                }
                true
            }
        }
    }
}

/// What a writer is told: its events as recorded, in order.
type Written = Result<Vec<Arc<Envelope>>, JournalLost>;

/// Something to do with the files by the thread that owns them.
type ReadWork = Box<dyn FnOnce(&dyn decurion_store::Journal) + Send>;

enum Job {
    Write { parts: Vec<(Who, Vec<Event>)>, done: oneshot::Sender<Written> },
    Sync { done: oneshot::Sender<()> },
    Read { work: ReadWork },
    Close { done: oneshot::Sender<()> },
}

impl Journal {
    /// Starts the thread that owns these files.
    pub fn start(store: Box<dyn decurion_store::Journal>, options: JournalOptions) -> std::io::Result<Self> {
        let (jobs, inbox) = mpsc::channel();
        let live = Arc::new(Live::new(store.record()));
        let seq = Arc::new(AtomicU64::new(options.last_seq));
        let (lost, hurry) = (Arc::default(), Arc::<Hurry>::default());
        let writer = Writer {
            store,
            inbox,
            live: Arc::clone(&live),
            seq: Arc::clone(&seq),
            clock: Arc::clone(&options.clock),
            durability: options.durability,
            give_up_after: options.give_up_after,
            retry_every: options.retry_every,
            unsynced_since: None,
            run: None,
            told_gone: false,
            told_unsynced: false,
            lost: Arc::clone(&lost),
            hurry: Arc::clone(&hurry),
        };
        let door = if options.here {
            Door::Here(Arc::new(Mutex::new(Some(writer))))
        } else {
            std::thread::Builder::new()
                .name("journal".to_owned())
                .stack_size(256 * 1024)
                .spawn(move || writer.work())?;
            Door::Thread(jobs)
        };
        Ok(Self { door, live, seq, clock: options.clock, branches: Arc::default(), lost, hurry })
    }

    /// The session is to end: a disk that refuses is tried for a moment more, then what waits for it is given up, as if
    /// the process had died. Nothing of that was shown.
    pub fn hurry(&self) {
        self.hurry.set();
    }

    /// Whether nothing more can be put on record.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// The same for a session whose conversation went on from earlier lines.
    #[must_use]
    pub fn branched(mut self, branches: Branches) -> Self {
        self.branches = Arc::new(branches);
        self
    }

    /// Where its conversation went on from earlier lines: whoever reads it again must know.
    pub fn branches(&self) -> Arc<Branches> {
        Arc::clone(&self.branches)
    }

    /// Puts events on record, in this order and in one write. When this returns, they are.
    pub async fn write(&self, who: &Who, events: Vec<Event>) -> Result<Vec<Arc<Envelope>>, JournalLost> {
        self.write_all(vec![(who.clone(), events)]).await
    }

    /// The same for events of several: they go into one commit.
    pub async fn write_all(&self, parts: Vec<(Who, Vec<Event>)>) -> Result<Vec<Arc<Envelope>>, JournalLost> {
        let (done, answer) = oneshot::channel();
        let gone = || JournalLost(Arc::from("the writer is gone"));
        if !self.door.send(Job::Write { parts, done }) {
            return Err(gone());
        }
        answer.await.map_err(|_| gone())?
    }

    /// Shows an event that is not kept.
    pub fn publish(&self, who: &Who, event: Event) {
        let seq = self.seq.load(Ordering::Relaxed);
        let (run, agent) = (who.run, who.agent.clone());
        self.live.send(&Arc::new(Envelope { seq, at: self.clock.date(), agent, run, event }));
    }

    /// Returns once everything written so far is synced.
    pub async fn sync(&self) {
        let (done, answer) = oneshot::channel();
        if self.door.send(Job::Sync { done }) {
            let _ = answer.await;
        }
    }

    /// Asks for a sync without waiting for it.
    pub fn sync_soon(&self) {
        let (done, _) = oneshot::channel();
        // A journal that is gone was synced when it went.
        let _ = self.door.send(Job::Sync { done });
    }

    /// Syncs, closes the files and ends the thread.
    pub async fn close(&self) {
        let (done, answer) = oneshot::channel();
        if self.door.send(Job::Close { done }) {
            let _ = answer.await;
        }
    }

    /// The number of the last event on record.
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Reads what is on record after a number, in order, everything written before this call included.
    /// The state goes to the thread that owns the files and comes back; none if that thread is gone.
    pub async fn fold<S: Send + 'static>(
        &self,
        after: u64,
        mut state: S,
        mut take: impl FnMut(&mut S, Envelope) + Send + 'static,
    ) -> Option<S> {
        let (done, answer) = oneshot::channel();
        let work = Box::new(move |store: &dyn decurion_store::Journal| {
            // A record that cannot be read again is passed over, as a restart would.
            let _ = store.since(after, &mut |envelope| take(&mut state, envelope));
            let _ = done.send(state);
        });
        if !self.door.send(Job::Read { work }) {
            return None;
        }
        answer.await.ok()
    }

    /// The same for the root's own records, beside the thread that owns the files: nobody who writes waits for it.
    pub async fn read_root<S: Send + 'static>(
        &self,
        mut state: S,
        mut take: impl FnMut(&mut S, Envelope) + Send + 'static,
    ) -> Option<S> {
        let (record, until) = (self.live.record(), self.seq());
        let read = tokio::task::spawn_blocking(move || {
            let read = record.read_on(&mut Bookmark::of_root(), until, &mut |envelope| {
                take(&mut state, envelope);
                ControlFlow::Continue(())
            });
            read.ok().map(|()| state)
        });
        read.await.ok().flatten()
    }

    /// Everything from now on, without gaps: a reader that falls behind is given what it missed from the
    /// record, and of the transient events only those that somebody waits for an answer to.
    pub fn subscribe(&self) -> BoxStream<'static, Arc<Envelope>> {
        self.live.subscribe(self.seq())
    }
}

/// A batch as the files get it.
fn on_record(batch: &[Envelope]) -> Cow<'_, [Envelope]> {
    if batch.iter().all(|envelope| envelope.event.on_record().is_none()) {
        return Cow::Borrowed(batch);
    }
    let kept = |envelope: &Envelope| match envelope.event.on_record() {
        Some(event) => Envelope { event, ..envelope.clone() },
        None => envelope.clone(),
    };
    Cow::Owned(batch.iter().map(kept).collect())
}

/// Whether trying again can help.
fn can_wait(error: &WriteError) -> bool {
    error.holds() || matches!(error, WriteError::TooMuchHeld { .. })
}

/// The thread that owns the files.
struct Writer {
    store: Box<dyn decurion_store::Journal>,
    /// Every [`Journal`] handle holds the other end.
    inbox: Receiver<Job>,
    live: Arc<Live>,
    seq: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    durability: Durability,
    give_up_after: Option<Duration>,
    retry_every: Duration,
    unsynced_since: Option<Instant>,
    /// Whose event was written last.
    run: Option<RunId>,
    /// Whether it was told that the files are gone.
    told_gone: bool,
    /// Whether it was told that the disk does not sync.
    told_unsynced: bool,
    lost: Arc<OnceLock<JournalLost>>,
    hurry: Arc<Hurry>,
}

impl Writer {
    fn work(mut self) {
        while let Some(first) = self.next_job() {
            let mut jobs = VecDeque::from([first]);
            while jobs.len() < GATHER_AT_MOST
                && let Ok(job) = self.inbox.try_recv()
            {
                jobs.push_back(job);
            }
            if let Some(done) = self.do_all(jobs) {
                // The files are closed, and their lock free, before anyone hears of it.
                drop(self);
                let _ = done.send(());
                return;
            }
        }
        // Every handle is gone: nobody can be told, but nothing may stay behind.
        let _ = self.store.sync();
    }

    /// The next job; while something is unsynced, waits no longer than that may stay so.
    fn next_job(&mut self) -> Option<Job> {
        while let Some(since) = self.unsynced_since {
            match self.inbox.recv_timeout(SYNC_WITHIN.saturating_sub(since.elapsed())) {
                Ok(job) => return Some(job),
                Err(RecvTimeoutError::Timeout) => self.sync(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        self.inbox.recv().ok()
    }

    /// Does these jobs in order; gives whoever wants to know that the journal is closed, if it is to be.
    fn do_all(&mut self, mut jobs: VecDeque<Job>) -> Option<oneshot::Sender<()>> {
        let mut batch = Vec::new();
        let mut waiting = Vec::new();
        while let Some(job) = jobs.pop_front() {
            match job {
                Job::Write { parts, done } => {
                    waiting.push((parts.iter().map(|(_, events)| events.len()).sum(), done));
                    for (who, events) in parts {
                        for event in events {
                            batch.push(self.envelope(&who, event, batch.len()));
                        }
                    }
                }
                Job::Sync { done } => {
                    self.commit(std::mem::take(&mut batch), std::mem::take(&mut waiting));
                    self.sync();
                    self.look();
                    let _ = done.send(());
                }
                Job::Read { work } => {
                    self.commit(std::mem::take(&mut batch), std::mem::take(&mut waiting));
                    work(&*self.store);
                }
                Job::Close { done } => {
                    self.commit(std::mem::take(&mut batch), std::mem::take(&mut waiting));
                    self.sync();
                    return Some(done);
                }
            }
        }
        self.commit(batch, waiting);
        None
    }

    fn envelope(&self, who: &Who, event: Event, ahead: usize) -> Envelope {
        let seq = self.seq.load(Ordering::Relaxed) + ahead as u64 + 1;
        Envelope { seq, at: self.clock.date(), agent: who.agent.clone(), run: who.run, event }
    }

    fn commit(&mut self, batch: Vec<Envelope>, waiting: Vec<(usize, oneshot::Sender<Written>)>) {
        if waiting.is_empty() {
            return;
        }
        if let Err(lost) = self.write_until_done(&batch) {
            for (_, done) in waiting {
                let _ = done.send(Err(lost.clone()));
            }
            return;
        }
        let mut written = batch.into_iter().map(|envelope| self.show(envelope));
        for (count, done) in waiting {
            let _ = done.send(Ok(written.by_ref().take(count).collect()));
        }
    }

    fn show(&mut self, envelope: Envelope) -> Arc<Envelope> {
        self.seq.store(envelope.seq, Ordering::Relaxed);
        self.run = Some(envelope.run);
        let envelope = Arc::new(envelope);
        self.live.send(&envelope);
        envelope
    }

    /// Puts a batch on record as durably as was asked for; while the disk refuses that, waits and says so.
    fn write_until_done(&mut self, batch: &[Envelope]) -> Result<(), JournalLost> {
        if let Some(lost) = self.lost.get() {
            return Err(lost.clone());
        }
        let started = Instant::now();
        let mut told = false;
        let kept = on_record(batch);
        let mut rest = &kept[..];
        loop {
            let Err((error, can_wait)) = self.try_once(&mut rest) else {
                if told {
                    self.tell(batch, None);
                }
                return Ok(());
            };
            let patience = if self.hurry.is_set() { Some(self.retry_every) } else { self.give_up_after };
            let give_up = patience.is_some_and(|limit| started.elapsed() >= limit);
            if give_up || !can_wait {
                let lost = JournalLost(Arc::from(error));
                return Err(self.lost.get_or_init(|| lost).clone());
            }
            if !told {
                self.tell(batch, Some(WaitReason::Disk { error }));
                told = true;
            }
            self.hurry.pause(self.retry_every);
        }
    }

    /// Hands over what is left of a batch, and syncs it where it must survive a loss of power; or says what the disk
    /// said, and whether trying again can help.
    fn try_once(&mut self, rest: &mut &[Envelope]) -> Result<(), (String, bool)> {
        self.store.append(rest).map_err(|error| (error.to_string(), can_wait(&error)))?;
        *rest = &[];
        self.unsynced_since.get_or_insert_with(Instant::now);
        if self.durability == Durability::Power {
            let failed = |error| (format!("the transcript cannot be synced: {error}"), true);
            self.store.sync().map_err(failed)?;
            self.unsynced_since = None;
        }
        Ok(())
    }

    fn tell(&self, batch: &[Envelope], reason: Option<WaitReason>) {
        let Some(first) = batch.first() else { return };
        self.live.send(&Arc::new(Envelope {
            seq: self.seq.load(Ordering::Relaxed),
            event: Event::Waiting { reason },
            ..first.clone()
        }));
    }

    /// Tells, once, that the files were taken away. Only where a turn ends: no write shows it.
    fn look(&mut self) {
        if !self.told_gone && self.store.is_gone() {
            self.told_gone = self.warn(GONE.to_owned());
        }
    }

    /// Puts a warning on record and shows it; false where nothing is on record yet that it could be about.
    fn warn(&mut self, text: String) -> bool {
        let Some(run) = self.run else { return false };
        let level = "warning".to_owned();
        let notice = self.envelope(&Who { run, agent: None }, Event::Notice { level, text }, 0);
        if self.write_until_done(std::slice::from_ref(&notice)).is_ok() {
            self.show(notice);
        }
        true
    }

    /// Syncs what is written, where nobody waits for that. What fails is tried again later; the store rewrites what is
    /// in doubt.
    fn sync(&mut self) {
        let Err(error) = self.store.sync() else {
            self.unsynced_since = None;
            return;
        };
        if !self.told_unsynced && self.durability == Durability::Process {
            // Before the notice, which is written by the same way.
            self.told_unsynced = true;
            self.told_unsynced = self.warn(format!("{UNSYNCED}: {error}"));
        }
        self.unsynced_since = Some(Instant::now());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
pub(crate) mod tests {
    use decurion_store::{MemoryJournal, Record, ReplayReport, SyncJob, Synced};
    use futures_util::StreamExt as _;
    use uuid::Uuid;

    use super::*;

    /// Files that give nothing before they are let.
    struct Slow {
        inner: MemoryJournal,
        gate: Arc<Gate>,
    }

    struct Gate(Mutex<Receiver<()>>);

    impl Gate {
        fn pass(&self) -> std::io::Result<()> {
            let gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            gate.recv_timeout(Duration::from_secs(5)).map_err(std::io::Error::other)
        }
    }

    struct SlowRecord(Arc<dyn Record>, Arc<Gate>);

    impl Record for SlowRecord {
        fn read_on(
            &self,
            bookmark: &mut Bookmark,
            until: u64,
            sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
        ) -> std::io::Result<()> {
            self.1.pass()?;
            self.0.read_on(bookmark, until, sink)
        }
    }

    impl decurion_store::Journal for Slow {
        fn append(&mut self, batch: &[Envelope]) -> Result<(), WriteError> {
            self.inner.append(batch)
        }
        fn begin_sync(&mut self) -> std::io::Result<Option<SyncJob>> {
            self.inner.begin_sync()
        }
        fn end_sync(&mut self, synced: Synced) -> std::io::Result<()> {
            self.inner.end_sync(synced)
        }
        fn last_seq(&self) -> u64 {
            self.inner.last_seq()
        }
        fn held_bytes(&self) -> usize {
            self.inner.held_bytes()
        }
        fn since(&self, seq: u64, sink: &mut dyn FnMut(Envelope)) -> std::io::Result<ReplayReport> {
            self.gate.pass()?;
            self.inner.since(seq, sink)
        }
        fn record(&self) -> Arc<dyn Record> {
            Arc::new(SlowRecord(self.inner.record(), Arc::clone(&self.gate)))
        }
    }

    struct NoTime;

    impl Clock for NoTime {
        fn date(&self) -> jiff::Timestamp {
            jiff::Timestamp::UNIX_EPOCH
        }
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    fn options(durability: Durability) -> JournalOptions {
        JournalOptions {
            clock: Arc::new(NoTime),
            durability,
            last_seq: 0,
            give_up_after: None,
            retry_every: Duration::from_millis(1),
            here: false,
        }
    }

    pub(crate) fn who() -> Who {
        Who { run: RunId(Uuid::nil()), agent: None }
    }

    pub(crate) fn notice() -> Vec<Event> {
        vec![Event::Notice { level: "info".to_owned(), text: "x".to_owned() }]
    }

    /// Files on a disk that does not sync while it is told not to.
    struct Unsynced {
        inner: MemoryJournal,
        refuses: Arc<std::sync::atomic::AtomicBool>,
        /// How far the files are on the device.
        synced: Arc<AtomicU64>,
    }

    impl decurion_store::Journal for Unsynced {
        fn append(&mut self, batch: &[Envelope]) -> Result<(), WriteError> {
            self.inner.append(batch)
        }
        fn sync(&mut self) -> std::io::Result<()> {
            if self.refuses.load(Ordering::SeqCst) {
                return Err(std::io::Error::other("no such luck"));
            }
            self.synced.store(self.inner.last_seq(), Ordering::SeqCst);
            Ok(())
        }
        fn begin_sync(&mut self) -> std::io::Result<Option<SyncJob>> {
            self.inner.begin_sync()
        }
        fn end_sync(&mut self, synced: Synced) -> std::io::Result<()> {
            self.inner.end_sync(synced)
        }
        fn last_seq(&self) -> u64 {
            self.inner.last_seq()
        }
        fn held_bytes(&self) -> usize {
            self.inner.held_bytes()
        }
        fn since(&self, seq: u64, sink: &mut dyn FnMut(Envelope)) -> std::io::Result<ReplayReport> {
            self.inner.since(seq, sink)
        }
        fn record(&self) -> Arc<dyn Record> {
            self.inner.record()
        }
    }

    pub(crate) fn unsynced(
        durability: Durability,
    ) -> (Journal, Arc<std::sync::atomic::AtomicBool>, Arc<AtomicU64>) {
        let (refuses, synced) = (Arc::default(), Arc::default());
        let inner = MemoryJournal::default();
        let store = Unsynced { inner, refuses: Arc::clone(&refuses), synced: Arc::clone(&synced) };
        (Journal::start(Box::new(store), options(durability)).unwrap(), refuses, synced)
    }

    #[tokio::test]
    async fn nothing_is_shown_that_power_could_take_back() {
        let (journal, refuses, synced) = unsynced(Durability::Power);
        let mut seen = journal.subscribe();
        journal.write(&who(), notice()).await.unwrap();
        let next = |seen: Option<Arc<Envelope>>| seen.unwrap().event.clone();
        assert!(matches!(next(seen.next().await), Event::Notice { .. }));
        refuses.store(true, Ordering::SeqCst);
        let writing = tokio::spawn({
            let journal = journal.clone();
            async move { journal.write(&who(), notice()).await.unwrap()[0].seq }
        });
        let Event::Waiting { reason: Some(WaitReason::Disk { error }) } = next(seen.next().await) else {
            panic!("what is shown first is that the disk is waited for")
        };
        assert!(error.contains("cannot be synced: no such luck"), "{error}");
        assert_eq!((journal.seq(), writing.is_finished(), synced.load(Ordering::SeqCst)), (1, false, 1));
        refuses.store(false, Ordering::SeqCst);
        assert_eq!(writing.await.unwrap(), 2);
        assert_eq!(synced.load(Ordering::SeqCst), 2, "it is on the device before anybody hears of it");
        assert_eq!(next(seen.next().await), Event::Waiting { reason: None });
        assert!(matches!(next(seen.next().await), Event::Notice { .. }));
    }

    #[tokio::test]
    async fn a_session_that_is_to_end_does_not_wait_for_a_disk_that_refuses() {
        let (journal, refuses, _) = unsynced(Durability::Power);
        let mut seen = journal.subscribe();
        refuses.store(true, Ordering::SeqCst);
        let writing = tokio::spawn({
            let journal = journal.clone();
            async move { journal.write(&who(), notice()).await }
        });
        let first = seen.next().await.unwrap().event.clone();
        assert!(matches!(first, Event::Waiting { reason: Some(WaitReason::Disk { .. }) }), "{first:?}");
        assert!(!writing.is_finished(), "without an end, it waits");
        journal.hurry();
        assert!(writing.await.unwrap().is_err());
        assert!(journal.is_lost());
    }

    #[tokio::test]
    async fn a_disk_that_does_not_sync_is_told_once() {
        let (journal, refuses, _) = unsynced(Durability::Process);
        let mut seen = journal.subscribe();
        refuses.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            journal.write(&who(), notice()).await.unwrap();
            journal.sync().await;
        }
        journal.publish(&who(), Event::Waiting { reason: None });
        let mut warnings = Vec::new();
        while let Some(Event::Notice { level, text }) = seen.next().await.map(|seen| seen.event.clone()) {
            warnings.extend((level == "warning").then_some(text));
        }
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("no such luck"), "{warnings:?}");
    }

    #[tokio::test]
    async fn nobody_who_writes_waits_for_one_who_reads() {
        let (open, gate) = mpsc::channel();
        let gate = Arc::new(Gate(Mutex::new(gate)));
        let journal = Journal::start(
            Box::new(Slow { inner: MemoryJournal::default(), gate }),
            options(Durability::Process),
        )
        .unwrap();
        journal.write(&who(), notice()).await.unwrap();
        let take = |seen: &mut Vec<u64>, envelope: Envelope| seen.push(envelope.seq);
        let reading = tokio::spawn({
            let journal = journal.clone();
            async move { journal.read_root(Vec::new(), take).await }
        });
        tokio::task::yield_now().await;
        journal.write(&who(), notice()).await.unwrap();
        open.send(()).unwrap();
        assert_eq!(reading.await.unwrap(), Some(vec![1]), "what was on record when it was asked for");
    }
}
