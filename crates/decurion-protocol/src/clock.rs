//! Where time comes from. Library crates are handed a [`Clock`] and never ask the system themselves.

use std::time::Duration;

use jiff::Timestamp;

/// Two kinds of time, told apart because only one of them may jump: dates for people and order-free
/// display, and a monotonic reading for every duration and deadline.
pub trait Clock: Send + Sync {
    /// The date to write beside a record. It may jump; nothing is ordered or timed by it.
    fn date(&self) -> Timestamp;
    /// Time since some fixed moment, never going back.
    fn elapsed(&self) -> Duration;
}
