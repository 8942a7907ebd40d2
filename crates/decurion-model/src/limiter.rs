//! Whose turn it is. Requests for one model of one key come in, permits go out: all at once until the provider says it
//! is too much, then as many as it bears, the root first and subtrees in turn. A refusal pauses all, and after a pause
//! one request tests whether the provider answers again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::{RateLimits, RequestClass, RequestTag};

/// One limiter; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Limiter {
    shared: Arc<LimiterShared>,
}

#[derive(Default)]
struct LimiterShared {
    state: Mutex<LimiterState>,
    /// Tells everyone in the queue that a pause began, so that each knows when to look again.
    paused: Notify,
}

/// The right to have one request under way. Dropping it lets the next one go.
pub(crate) struct RequestPermit {
    limiter: Limiter,
    facts: PermitFacts,
}

/// A place in the queue. Dropping it gives the place up.
pub(crate) struct QueuedRequest {
    limiter: Limiter,
    key: QueueKey,
    ticket: u64,
    admitted: oneshot::Receiver<RequestPermit>,
}

/// What ended a wait.
pub(crate) enum Woken {
    /// It is our turn.
    Admitted(RequestPermit),
    /// It is not, and the reason to wait may have changed.
    Changed,
}

/// Why a waiter waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCause {
    /// The provider asked us to.
    Paused(Instant),
    /// Others are before us.
    Behind(usize),
}

/// What a limiter does at the moment, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub running: usize,
    pub waiting: usize,
    /// How many may be under way; none until the provider has complained.
    pub limit: Option<usize>,
    /// How long everything is paused.
    pub paused: Option<Duration>,
}

impl Limiter {
    /// A place in the queue. The ticket orders those of the same subtree; a request that is tried again
    /// keeps its own.
    pub fn queue(&self, tag: &RequestTag, ticket: u64) -> QueuedRequest {
        let key = QueueKey::of(tag);
        let (sender, admitted) = oneshot::channel();
        self.lock().queue.add(&key, ticket, sender);
        self.admit();
        QueuedRequest { limiter: self.clone(), key, ticket, admitted }
    }

    pub fn load(&self) -> Load {
        let now = Instant::now();
        let state = self.lock();
        Load {
            running: state.rate.running,
            waiting: state.queue.len(),
            limit: state.rate.whole_limit(),
            paused: state.rate.paused_until(now).map(|until| until - now),
        }
    }

    /// Until when everything is paused, if it is.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.lock().rate.paused_until(now)
    }

    /// When the provider last answered a request for this model.
    pub fn answered_at(&self) -> Option<Instant> {
        self.lock().rate.last_answer
    }

    /// Admits all that may be sent. Permits are sent outside the lock, because one without a receiver comes back at
    /// once.
    fn admit(&self) {
        loop {
            let (sender, facts) = {
                let mut state = self.lock();
                if state.queue.is_empty() {
                    return;
                }
                let Some(facts) = state.rate.start(Instant::now()) else { return };
                let Some(sender) = state.queue.next() else {
                    state.rate.end(&facts);
                    return;
                };
                (sender, facts)
            };
            let _ = sender.send(RequestPermit { limiter: self.clone(), facts });
        }
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        // Every change below is finished before it could panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueuedRequest {
    /// Waits for our turn, or for news about why it has not come. Everyone who waits looks again when a
    /// pause ends, so that it does not matter who of them is still there by then.
    pub async fn wait(&mut self) -> Woken {
        let limiter = self.limiter.clone();
        let mut paused = std::pin::pin!(limiter.shared.paused.notified());
        paused.as_mut().enable();
        let until = limiter.lock().rate.paused_until(Instant::now());
        let pause_ends = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            permit = &mut self.admitted => match permit {
                Ok(permit) => Woken::Admitted(permit),
                // The queue never forgets a sender while its waiter lives.
                Err(_) => Woken::Changed,
            },
            () = pause_ends => {
                limiter.admit();
                self.try_take().map_or(Woken::Changed, Woken::Admitted)
            }
            () = paused => Woken::Changed,
        }
    }

    /// Our turn, if it has come already.
    pub fn try_take(&mut self) -> Option<RequestPermit> {
        self.admitted.try_recv().ok()
    }

    pub fn why(&self) -> WaitCause {
        let state = self.limiter.lock();
        match state.rate.paused_until(Instant::now()) {
            Some(until) => WaitCause::Paused(until),
            None => WaitCause::Behind(state.queue.ahead(&self.key, self.ticket)),
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        self.limiter.lock().queue.remove(&self.key, self.ticket);
    }
}

impl RequestPermit {
    /// The provider's message about its limits: if nothing is left, no request is sent until there is.
    pub fn limited(&self, limits: &RateLimits) {
        if let (Some(0), Some(reset)) = (limits.remaining, limits.reset)
            && self.limiter.lock().rate.pause(Instant::now() + reset)
        {
            self.limiter.shared.paused.notify_waiters();
        }
    }

    /// The provider answers the request. Its status alone is no answer: an overload may follow it.
    pub fn answered(&mut self) {
        self.limiter.lock().rate.answered(&mut self.facts, Instant::now());
        self.limiter.admit();
    }

    /// The provider refused the request because there are too many: everyone waits, this long, or as long
    /// as `backoff` says for so many refusals in a row.
    pub fn throttled(mut self, after: Option<Duration>, backoff: impl FnOnce(u32) -> Duration) {
        let pauses = self.limiter.lock().rate.throttled(&mut self.facts, after, backoff, Instant::now());
        if pauses {
            self.limiter.shared.paused.notify_waiters();
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.limiter.lock().rate.end(&self.facts);
        self.limiter.admit();
    }
}

#[derive(Default)]
struct LimiterState {
    rate: Rate,
    queue: FairQueue,
}

// ---- how many ----

/// How many may be under way. Pure: time comes in as a value.
#[derive(Debug, Default)]
struct Rate {
    running: usize,
    /// None until the provider has complained, and again when it has not for long.
    limit: Option<f64>,
    paused_until: Option<Instant>,
    /// After a refusal, one goes first.
    probe: Probe,
    /// Refusals in a row, those of one burst counted once.
    refusals: u32,
    /// Counts bursts of refusals: the result of a request that started before one says nothing about it.
    epoch: u64,
    last_refusal: Option<Instant>,
    last_answer: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Probe {
    #[default]
    NotNeeded,
    Needed,
    UnderWay,
}

#[derive(Debug)]
struct PermitFacts {
    epoch: u64,
    probe: bool,
}

/// After so long without a refusal the limit is forgotten.
const FORGET: Duration = Duration::from_mins(10);

impl Rate {
    fn start(&mut self, now: Instant) -> Option<PermitFacts> {
        if self.last_refusal.is_some_and(|last| now.duration_since(last) > FORGET) {
            self.limit = None;
            self.last_refusal = None;
        }
        let full = self.whole_limit().is_some_and(|limit| self.running >= limit);
        if full || self.paused_until(now).is_some() || self.probe == Probe::UnderWay {
            return None;
        }
        self.running += 1;
        let probe = self.probe == Probe::Needed;
        if probe {
            self.probe = Probe::UnderWay;
        }
        Some(PermitFacts { epoch: self.epoch, probe })
    }

    fn end(&mut self, facts: &PermitFacts) {
        self.running = self.running.saturating_sub(1);
        if facts.probe && self.probe == Probe::UnderWay {
            // It ended without an answer to the question.
            self.probe = Probe::Needed;
        }
    }

    fn answered(&mut self, facts: &mut PermitFacts, now: Instant) {
        self.last_answer = Some(now);
        if facts.epoch == self.epoch {
            self.refusals = 0;
            if let Some(limit) = &mut self.limit {
                *limit += (1.0 / *limit).max(0.1);
            }
        }
        if std::mem::take(&mut facts.probe) {
            self.probe = Probe::NotNeeded;
        }
    }

    /// Says whether a pause began or grew.
    fn throttled(
        &mut self,
        facts: &mut PermitFacts,
        after: Option<Duration>,
        backoff: impl FnOnce(u32) -> Duration,
        now: Instant,
    ) -> bool {
        let news = facts.epoch == self.epoch;
        // A lone request that is refused says nothing about how many would be too many.
        if news && !facts.probe {
            let bearable = f64::from(u32::try_from(self.running).unwrap_or(u32::MAX)) / 2.0;
            self.limit = Some(self.limit.map_or(bearable, |limit| limit.min(bearable)).max(1.0));
        }
        if news {
            self.epoch += 1;
            self.refusals = self.refusals.saturating_add(1);
        }
        if std::mem::take(&mut facts.probe) || self.probe == Probe::NotNeeded {
            self.probe = Probe::Needed;
        }
        self.last_refusal = Some(now);
        let wait = after.or_else(|| news.then(|| backoff(self.refusals - 1)));
        wait.is_some_and(|wait| self.pause(now + wait))
    }

    /// Says whether that is longer than what was known.
    fn pause(&mut self, until: Instant) -> bool {
        let grows = self.paused_until < Some(until);
        self.paused_until = self.paused_until.max(Some(until));
        grows
    }

    fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small and positive by construction
    fn whole_limit(&self) -> Option<usize> {
        self.limit.map(|limit| limit as usize)
    }
}

// ---- who ----

/// The queue of a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum QueueKey {
    Root,
    /// By the first agent below the root.
    Subtree(String),
}

impl QueueKey {
    fn of(tag: &RequestTag) -> Self {
        if tag.class == RequestClass::Main {
            return Self::Root;
        }
        let mut parts = tag.path.split('/');
        let first = parts.next().unwrap_or_default();
        Self::Subtree(parts.next().unwrap_or(first).to_owned())
    }
}

/// Who waits, in which order they go: the root's own requests, then one of each subtree in turn.
#[derive(Default)]
struct FairQueue {
    root: LimiterHandle,
    subtrees: VecDeque<(String, LimiterHandle)>,
}

type LimiterHandle = BTreeMap<u64, oneshot::Sender<RequestPermit>>;

impl FairQueue {
    fn add(&mut self, key: &QueueKey, ticket: u64, sender: oneshot::Sender<RequestPermit>) {
        let line = match key {
            QueueKey::Root => &mut self.root,
            QueueKey::Subtree(name) => {
                if let Some(place) = self.subtrees.iter().position(|(other, _)| other == name) {
                    &mut self.subtrees[place].1
                } else {
                    self.subtrees.push_back((name.clone(), LimiterHandle::new()));
                    let last = self.subtrees.len() - 1;
                    &mut self.subtrees[last].1
                }
            }
        };
        line.insert(ticket, sender);
    }

    fn next(&mut self) -> Option<oneshot::Sender<RequestPermit>> {
        if let Some((_, sender)) = self.root.pop_first() {
            return Some(sender);
        }
        let (name, mut line) = self.subtrees.pop_front()?;
        let next = line.pop_first();
        if !line.is_empty() {
            self.subtrees.push_back((name, line));
        }
        next.map(|(_, sender)| sender)
    }

    fn remove(&mut self, key: &QueueKey, ticket: u64) {
        match key {
            QueueKey::Root => {
                self.root.remove(&ticket);
            }
            QueueKey::Subtree(name) => {
                if let Some((_, line)) = self.subtrees.iter_mut().find(|(other, _)| other == name) {
                    line.remove(&ticket);
                }
                self.subtrees.retain(|(_, line)| !line.is_empty());
            }
        }
    }

    /// How many go before this one, if no others arrive.
    fn ahead(&self, key: &QueueKey, ticket: u64) -> usize {
        let QueueKey::Subtree(name) = key else { return self.root.range(..ticket).count() };
        let Some(place) = self.subtrees.iter().position(|(other, _)| other == name) else { return 0 };
        let own = self.subtrees[place].1.range(..ticket).count();
        let others = self.subtrees.iter().enumerate().filter(|(other, _)| *other != place);
        let rounds = |other: usize| own + usize::from(other < place);
        self.root.len() + own + others.map(|(other, (_, line))| line.len().min(rounds(other))).sum::<usize>()
    }

    fn len(&self) -> usize {
        self.root.len() + self.subtrees.iter().map(|(_, line)| line.len()).sum::<usize>()
    }

    fn is_empty(&self) -> bool {
        self.root.is_empty() && self.subtrees.is_empty()
    }
}
