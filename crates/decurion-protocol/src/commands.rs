//! The channel of commands to a session. Takes requests from any number of front ends, gives them to one receiver in
//! their order. What waits is bounded in number and in bytes: a request beyond that waits at its sender, or is refused
//! where the sender cannot wait. Interrupts and the end of the session have room apart from all others: they must reach
//! a session that is busy, most of all one whose disk refuses.

use std::sync::Arc;

use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc};

use crate::size::size_of;
use crate::{Command, Request};

/// A request takes one unit of room for each so many bytes that it begins.
const UNIT: usize = 64 * 1024;
/// How many units wait at most: 512 requests, 32 MiB.
const UNITS: u32 = 512;
/// How many interrupts wait at most, and how many ends: where so many wait, the next one has nothing to add.
const URGENT: usize = 64;

/// Why a request is refused that finds no room, and what to do.
pub const NO_ROOM: &str = "not sent: the session is busy, and 512 commands or 32 MiB wait for it already; \
                           send it again later (interrupts still work; if the disk is full, free some space)";

/// A channel of commands.
pub fn channel() -> (CommandSender, CommandReceiver) {
    let (queue, received) = mpsc::unbounded_channel();
    let room = |units| Arc::new(Semaphore::new(units));
    let room = Room { usual: room(UNITS as usize), interrupts: room(URGENT), ends: room(URGENT) };
    (CommandSender { queue, room: room.clone() }, CommandReceiver { queue: received, room })
}

/// Where commands go in. Clones lead to the same session.
#[derive(Clone, Debug)]
pub struct CommandSender {
    queue: mpsc::UnboundedSender<Queued>,
    room: Room,
}

/// The same without keeping the channel open.
#[derive(Clone, Debug)]
pub struct WeakCommandSender {
    queue: mpsc::WeakUnboundedSender<Queued>,
    room: Room,
}

/// Where commands come out.
#[derive(Debug)]
pub struct CommandReceiver {
    queue: mpsc::UnboundedReceiver<Queued>,
    room: Room,
}

/// A request that waits to be handled. Its room is free once it is dropped.
#[derive(Debug)]
pub struct Queued {
    pub request: Request,
    _room: OwnedSemaphorePermit,
}

#[derive(Clone, Debug)]
struct Room {
    usual: Arc<Semaphore>,
    interrupts: Arc<Semaphore>,
    ends: Arc<Semaphore>,
}

impl Room {
    /// The room of what must not wait behind others.
    fn urgent(&self, request: &Request) -> Option<&Arc<Semaphore>> {
        match &request.command {
            Command::Interrupt => Some(&self.interrupts),
            Command::Close { reason } if reason.len() < UNIT => Some(&self.ends),
            _ => None,
        }
    }

    /// Which room a request takes, and how much of it. The longest fits if nothing else waits.
    fn of(&self, request: &Request) -> (&Arc<Semaphore>, u32) {
        if let Some(room) = self.urgent(request) {
            return (room, 1);
        }
        (&self.usual, u32::try_from(size_of(&request.command) / UNIT + 1).unwrap_or(u32::MAX).min(UNITS))
    }
}

impl CommandSender {
    /// Sends a request, as soon as there is room for it. Gives it back if the session is gone.
    pub async fn send(&self, request: Request) -> Result<(), SendError<Request>> {
        let (room, units) = self.room.of(&request);
        match Arc::clone(room).acquire_many_owned(units).await {
            Ok(room) => self.queue(request, room).map_err(SendError),
            Err(_) => Err(SendError(request)),
        }
    }

    /// The same without waiting.
    #[allow(clippy::result_large_err)] // the request is given back, as tokio's own channels do
    pub fn try_send(&self, request: Request) -> Result<(), TrySendError<Request>> {
        let (room, units) = self.room.of(&request);
        match Arc::clone(room).try_acquire_many_owned(units) {
            Ok(room) => self.queue(request, room).map_err(TrySendError::Closed),
            Err(TryAcquireError::NoPermits) => Err(TrySendError::Full(request)),
            Err(TryAcquireError::Closed) => Err(TrySendError::Closed(request)),
        }
    }

    /// Whether a request has room apart from those that wait, so that it need not wait behind them.
    pub fn is_urgent(&self, request: &Request) -> bool {
        self.room.urgent(request).is_some()
    }

    /// Waits until there is room for a request, or the session is gone.
    pub async fn room_for(&self, request: &Request) {
        let (room, units) = self.room.of(request);
        drop(room.acquire_many(units).await);
    }

    /// Waits until the session is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// The same without keeping the channel open.
    pub fn downgrade(&self) -> WeakCommandSender {
        WeakCommandSender { queue: self.queue.downgrade(), room: self.room.clone() }
    }

    #[allow(clippy::result_large_err)] // as above
    fn queue(&self, request: Request, room: OwnedSemaphorePermit) -> Result<(), Request> {
        self.queue.send(Queued { request, _room: room }).map_err(|SendError(queued)| queued.request)
    }
}

impl WeakCommandSender {
    /// A sender, while another keeps the channel open.
    pub fn upgrade(&self) -> Option<CommandSender> {
        Some(CommandSender { queue: self.queue.upgrade()?, room: self.room.clone() })
    }
}

impl CommandReceiver {
    /// The next request; none once all senders are gone. Cancel safe.
    pub async fn recv(&mut self) -> Option<Queued> {
        self.queue.recv().await
    }
}

impl Drop for CommandReceiver {
    /// Those that wait for room learn that the session is gone.
    fn drop(&mut self) {
        for room in [&self.room.usual, &self.room.interrupts, &self.room.ends] {
            room.close();
        }
    }
}
