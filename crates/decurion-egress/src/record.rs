//! What is kept about a connection. Takes the steps of a connection as they happen, gives one record to the recorder when it
//! ends, however it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clients::Client;
use crate::gate::{Grant, Reason};

/// Receives a record of every connection, allowed or refused.
pub trait Recorder: Send + Sync {
    /// Called once per connection, when it has ended. Must not block.
    fn record(&self, connection: &ConnectionRecord);
}

/// A connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Name of the client, if it presented a known token.
    pub client: Option<String>,
    /// The host in normal form if it has one; else as it was written, escaped. Empty if no host was named.
    pub host: String,
    /// The port, or 0 if none was named.
    pub port: u16,
    /// Whether the connection was allowed, and why.
    pub verdict: RecordedVerdict,
    /// Why the gate refused it, if it did.
    pub refusal: Option<Reason>,
    /// The address that was connected to.
    pub address: Option<SocketAddr>,
    /// Bytes sent to the server.
    pub bytes_up: u64,
    /// Bytes received from the server.
    pub bytes_down: u64,
    /// How the connection ended.
    pub ending: Ending,
    /// From accepting the connection to its end.
    pub duration: Duration,
}

/// Whether a connection was allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedVerdict {
    /// It was, for this reason.
    Allowed(Grant),
    /// It was not, for this reason.
    Refused(String),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Both sides closed it.
    Completed,
    Refused,
    /// The client closed it before the server was reached.
    ClientLeft,
    /// No byte passed for the idle time.
    Idle,
    /// The server could not be reached, or one side broke the connection off.
    Failed(String),
    /// The proxy was stopped or the client removed.
    Stopped,
}

/// Bytes that passed, and when the last one did.
#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    up: AtomicU64,
    down: AtomicU64,
    /// Milliseconds after the start.
    last: AtomicU64,
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Up,
    Down,
}

impl Tally {
    fn new() -> Self {
        Self { start: Instant::now(), up: 0.into(), down: 0.into(), last: 0.into() }
    }

    pub(crate) fn count(&self, direction: Direction, bytes: usize) {
        let counter = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.touch();
    }

    /// Notes that something happened.
    pub(crate) fn touch(&self) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    /// Resolves once nothing has happened for this long.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let deadline = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed)) + limit;
            if Instant::now() >= deadline {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

/// The record of a connection that is still open. Dropped, it is recorded as stopped.
pub(crate) struct OpenRecord {
    recorder: Arc<dyn Recorder>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) record: ConnectionRecord,
    /// Whose it is, once that is known.
    client: Option<Arc<Client>>,
}

impl OpenRecord {
    pub(crate) fn begin(recorder: Arc<dyn Recorder>) -> Self {
        let record = ConnectionRecord {
            client: None,
            host: String::new(),
            port: 0,
            verdict: RecordedVerdict::Refused(
                "the connection ended before a request was complete".to_owned(),
            ),
            refusal: None,
            address: None,
            bytes_up: 0,
            bytes_down: 0,
            ending: Ending::Stopped,
            duration: Duration::ZERO,
        };
        Self { recorder, tally: Arc::new(Tally::new()), record, client: None }
    }

    /// Notes whose connection it is.
    pub(crate) fn belongs_to(&mut self, client: &Arc<Client>) {
        self.record.client = Some(client.name().to_owned());
        self.client = Some(client.clone());
    }
}

impl Drop for OpenRecord {
    fn drop(&mut self) {
        self.record.bytes_up = self.tally.up.load(Ordering::Relaxed);
        self.record.bytes_down = self.tally.down.load(Ordering::Relaxed);
        self.record.duration = self.tally.start.elapsed();
        self.recorder.record(&self.record);
    }
}
