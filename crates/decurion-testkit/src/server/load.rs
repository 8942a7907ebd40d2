//! How many requests are under way at once, and a gate that lets many begin together. Takes beginnings and
//! endings of requests, gives the count, the peak, and leave to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::sync::watch;

/// Requests that were read and whose replies are not through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Right now.
    pub active: u32,
    /// The most there ever were.
    pub peak: u32,
}

impl Load {
    /// As `GET /peak` answers.
    pub(super) fn json(self) -> Value {
        json!({"active": self.active, "peak": self.peak})
    }
}

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Tally {
    active: AtomicU32,
    peak: AtomicU32,
}

impl Tally {
    /// One more, until what this gives is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> UnderWay {
        let now = self.active.fetch_add(1, Ordering::AcqRel) + 1;
        self.peak.fetch_max(now, Ordering::AcqRel);
        UnderWay(Arc::clone(self))
    }

    /// How it stands.
    pub(super) fn load(&self) -> Load {
        Load { active: self.active.load(Ordering::Acquire), peak: self.peak.load(Ordering::Acquire) }
    }
}

/// One request under way.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Tally>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Holds everyone until enough wait; from then on it is open.
#[derive(Debug)]
pub(super) struct Gate {
    missing: watch::Sender<u32>,
}

impl Gate {
    /// A gate that opens when so many wait.
    pub(super) fn new(count: u32) -> Self {
        Self { missing: watch::Sender::new(count) }
    }

    /// Waits with the others.
    pub(super) async fn wait(&self) {
        let mut watcher = self.missing.subscribe();
        self.missing.send_modify(|missing| *missing = missing.saturating_sub(1));
        // The sender lives as long as this gate.
        let _ = watcher.wait_for(|missing| *missing == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn the_peak_stays_and_the_count_goes_down() {
        let tally = Arc::new(Tally::default());
        let first = tally.enter();
        drop((tally.enter(), first));
        assert_eq!(tally.load(), Load { active: 0, peak: 2 });
        let _third = tally.enter();
        assert_eq!(tally.load(), Load { active: 1, peak: 2 });
    }

    #[test]
    fn a_gate_opens_for_the_last_and_stays_open() {
        let gate = Gate::new(2);
        let mut first = Box::pin(gate.wait());
        assert_eq!((&mut first).now_or_never(), None);
        assert_eq!(gate.wait().now_or_never(), Some(()));
        assert_eq!(first.now_or_never(), Some(()));
        assert_eq!(gate.wait().now_or_never(), Some(()));
    }
}
