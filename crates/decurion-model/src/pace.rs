//! How fast a script plays. In: how long a script wants to wait. Out: a wait that others can shorten while it lasts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Waits shorter than this are left out: a timer cannot keep them, and a fast script has many.
const SHORTEST: Duration = Duration::from_millis(1);

/// The speed of a script and of what plays along with it. Copies have the same speed.
#[derive(Clone, Debug)]
pub struct Pace(Arc<watch::Sender<u32>>);

impl Default for Pace {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Pace {
    /// So many times as fast as the script says.
    pub fn new(speed: u32) -> Self {
        Self(Arc::new(watch::Sender::new(speed.max(1))))
    }

    /// Goes at another speed from now on, also through waits that have begun.
    pub fn set(&self, speed: u32) {
        self.0.send_replace(speed.max(1));
    }

    /// Waits so long, as time goes at this speed.
    pub async fn wait(&self, time: Duration) {
        let mut speeds = self.0.subscribe();
        let mut left = time;
        loop {
            let speed = *speeds.borrow_and_update();
            if left / speed < SHORTEST {
                return;
            }
            let since = Instant::now();
            tokio::select! {
                () = sleep(left / speed) => return,
                // The sender is ours: it cannot be gone.
                _ = speeds.changed() => left = left.saturating_sub(since.elapsed() * speed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_has_begun_is_shortened() {
        let pace = Pace::default();
        let began = Instant::now();
        let waits = tokio::spawn({
            let pace = pace.clone();
            async move { pace.wait(Duration::from_secs(10)).await }
        });
        sleep(Duration::from_secs(2)).await;
        pace.set(8);
        waits.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        pace.set(1_000_000);
        pace.wait(Duration::from_secs(100)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }
}
