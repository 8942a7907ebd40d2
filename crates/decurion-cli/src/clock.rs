//! The real clock: the one place where the program asks the system for the time.

use std::time::{Duration, Instant};

use decurion_protocol::Clock;
use jiff::Timestamp;

/// Dates from the system, durations from its monotonic clock.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that counts from now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // this is the Clock
    fn date(&self) -> Timestamp {
        Timestamp::try_from(std::time::SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
