//! How many requests are under way at once, and a gate that lets many begin together. Takes beginnings and
//! endings of requests, gives the count, the peak, and leave to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::sync::watch;

use super::hold::{Course, Mark};

/// Requests that were read and whose replies are not through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
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

#[derive(Debug, Default)]
pub(super) struct Tally {
    active: AtomicU32,
    peak: AtomicU32,
    /// Their order, where requests are kept; a bench with millions of them would only grow.
    course: Option<Course>,
}

impl Tally {
    /// A tally that keeps the order too, or not.
    pub(super) fn new(keep: bool) -> Self {
        Self { course: keep.then(Course::default), ..Self::default() }
    }

    /// One more of this agent, until what this gives is dropped.
    pub(super) fn enter(self: &Arc<Self>, agent: &str) -> UnderWay {
        let now = self.active.fetch_add(1, Ordering::AcqRel) + 1;
        self.peak.fetch_max(now, Ordering::AcqRel);
        if let Some(course) = &self.course {
            course.note(Mark::Begins(agent.to_owned()));
        }
        UnderWay { tally: Arc::clone(self), agent: agent.to_owned() }
    }

    /// What began and ended so far, in order.
    pub(super) fn course(&self) -> Vec<Mark> {
        self.course.as_ref().map(Course::marks).unwrap_or_default()
    }

    pub(super) fn load(&self) -> Load {
        Load { active: self.active.load(Ordering::Acquire), peak: self.peak.load(Ordering::Acquire) }
    }
}

/// One request under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    tally: Arc<Tally>,
    agent: String,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.tally.active.fetch_sub(1, Ordering::AcqRel);
        if let Some(course) = &self.tally.course {
            course.note(Mark::Ends(std::mem::take(&mut self.agent)));
        }
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
        let first = tally.enter("main");
        drop((tally.enter("main"), first));
        assert_eq!(tally.load(), Load { active: 0, peak: 2 });
        let _third = tally.enter("main");
        assert_eq!(tally.load(), Load { active: 1, peak: 2 });
        assert_eq!(tally.course(), [], "a bench keeps no order");
    }

    #[test]
    fn the_order_is_kept_where_requests_are() {
        let tally = Arc::new(Tally::new(true));
        let first = tally.enter("a");
        drop((tally.enter("b"), first));
        let [begins, ends] = [Mark::Begins, Mark::Ends];
        assert_eq!(
            tally.course(),
            [begins("a".into()), begins("b".into()), ends("b".into()), ends("a".into())]
        );
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
