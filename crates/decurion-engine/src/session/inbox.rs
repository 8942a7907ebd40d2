//! The commands of a session. Takes them from front ends, gives them to the session's task in their order; while that
//! waits for something, most of all for a disk that refuses, what must not wait is done at once.

use std::collections::VecDeque;
use std::future::Future;

use decurion_protocol::commands::Queued;
use decurion_protocol::{Command, CommandReceiver, Request};

use crate::journal::Journal;

/// Commands that came, and those that will.
pub struct Inbox {
    /// Front ends hold the other end.
    commands: CommandReceiver,
    /// Those that came while the session's task was busy; each keeps its room until it is handled.
    heard: VecDeque<Queued>,
    is_over: bool,
}

/// What a command can stop beside the session's task.
pub struct Stopper {
    /// Stops the root's turn.
    pub stop_turn: Box<dyn Fn() + Send + Sync>,
    pub journal: Journal,
}

impl Inbox {
    /// The commands of this channel.
    pub fn new(commands: CommandReceiver) -> Self {
        Self { commands, heard: VecDeque::new(), is_over: false }
    }

    /// The next command; none once nobody can send one. May be broken off.
    pub async fn recv(&mut self) -> Option<Request> {
        let queued = match self.heard.pop_front() {
            Some(queued) => Some(queued),
            None if self.is_over => None,
            None => self.commands.recv().await,
        };
        queued.map(|queued| queued.request)
    }

    /// The next command of those up to the last interrupt that came while the session's task was busy.
    pub fn before_interrupt(&mut self) -> Option<Request> {
        let is_interrupt = |queued: &Queued| matches!(queued.request.command, Command::Interrupt);
        if !self.heard.iter().any(is_interrupt) {
            return None;
        }
        self.heard.pop_front().map(|queued| queued.request)
    }

    /// Does `work`. An interrupt that comes meanwhile stops the turn, and the end of the session, or of everybody who
    /// could command it, no longer waits for the disk; both are then handled in their turn.
    pub async fn hear_during<T>(&mut self, stopper: Stopper, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                queued = self.commands.recv(), if !self.is_over => {
                    let Some(queued) = queued else {
                        self.is_over = true;
                        stopper.journal.hurry();
                        continue;
                    };
                    stopper.hear(&queued.request.command);
                    self.heard.push_back(queued);
                }
            }
        }
    }
}

impl Stopper {
    fn hear(&self, command: &Command) {
        match command {
            Command::Interrupt => (self.stop_turn)(),
            Command::Close { .. } => self.journal.hurry(),
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test fails by panicking
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use decurion_protocol::commands::channel;
    use decurion_protocol::{Block, RequestId};
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::journal::tests::{notice, unsynced, who};
    use crate::journal::{Durability, JournalLost};

    fn request(number: u64, command: Command) -> Request {
        Request { id: RequestId(number), command }
    }

    fn stopper(journal: &Journal) -> (Stopper, Arc<AtomicBool>) {
        let stopped = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stopped);
        let stop_turn = Box::new(move || flag.store(true, Ordering::SeqCst));
        (Stopper { stop_turn, journal: journal.clone() }, stopped)
    }

    #[tokio::test]
    async fn an_interrupt_is_heard_while_the_session_waits_and_keeps_its_place() {
        let (journal, ..) = unsynced(Durability::Process);
        let (sender, commands) = channel();
        let mut inbox = Inbox::new(commands);
        let (stopper, stopped) = stopper(&journal);
        sender.send(request(1, Command::Unqueue { line: None })).await.unwrap();
        sender.send(request(2, Command::Interrupt)).await.unwrap();
        let (done, waiting) = oneshot::channel();
        let is_stopped = Arc::clone(&stopped);
        tokio::spawn(async move {
            while !is_stopped.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
            done.send(()).unwrap();
        });
        inbox.hear_during(stopper, waiting).await.unwrap();
        assert!(stopped.load(Ordering::SeqCst));
        let order = [inbox.recv().await.unwrap().id, inbox.recv().await.unwrap().id];
        assert_eq!(order, [RequestId(1), RequestId(2)], "each is handled in its turn");
    }

    /// A prompt of so many bytes.
    fn prompt(number: u64, bytes: usize) -> Request {
        request(number, Command::Prompt { blocks: vec![Block::text("x".repeat(bytes))] })
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_an_interrupt_is_still_heard() {
        let (journal, ..) = unsynced(Durability::Process);
        let (sender, commands) = channel();
        let mut inbox = Inbox::new(commands);
        let (stopper, stopped) = stopper(&journal);
        let large = 10 << 20;
        let work = async {
            let mut sent = 0;
            while sender.send(prompt(sent, large)).now_or_never().is_some() {
                sent += 1;
                tokio::task::yield_now().await;
                assert!(sent < 100, "all are taken");
            }
            assert!(!stopped.load(Ordering::SeqCst));
            sender.send(request(99, Command::Interrupt)).await.unwrap();
            while !stopped.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
            sent
        };
        let sent = inbox.hear_during(stopper, work).await;
        assert_eq!(sent, 3, "about 32 MiB");
        // Nothing that was accepted is lost, and what was refused fits as soon as one is handled.
        assert_eq!(inbox.recv().await.unwrap().id, RequestId(0));
        sender.send(prompt(sent, large)).await.unwrap();
        for expected in [1, 2, 99, 3] {
            assert_eq!(inbox.recv().await.unwrap().id, RequestId(expected));
        }
    }

    #[tokio::test]
    async fn commands_are_bounded_in_number_and_the_end_of_a_session_is_still_heard() {
        let (journal, ..) = unsynced(Durability::Process);
        let (sender, commands) = channel();
        let mut inbox = Inbox::new(commands);
        let (stopper, _) = stopper(&journal);
        let work = async {
            let mut sent = 0;
            while sender.try_send(request(sent, Command::Tasks)).is_ok() {
                sent += 1;
                tokio::task::yield_now().await;
                assert!(sent < 10_000, "all are taken");
            }
            // Interrupts are bounded too, and take no room from the end.
            while sender.try_send(request(sent, Command::Interrupt)).is_ok() {
                sent += 1;
                assert!(sent < 10_000, "all are taken");
            }
            let end = |length| Command::Close { reason: "x".repeat(length) };
            sender.try_send(request(sent, end(1 << 20))).unwrap_err();
            sender.try_send(request(sent, end(0))).unwrap();
            sent
        };
        let sent = inbox.hear_during(stopper, work).await;
        for expected in 0..=sent {
            assert_eq!(inbox.recv().await.unwrap().id, RequestId(expected));
        }
        // One that is longer than all there is room for passes alone.
        sender.send(prompt(1, 40 << 20)).await.unwrap();
        assert!(sender.send(prompt(2, 1)).now_or_never().is_none());
        // One that waits for room learns that the session is gone.
        let waiting = sender.send(prompt(3, 1));
        let (sent, ()) = tokio::join!(waiting, async { drop(inbox) });
        assert!(sent.is_err());
    }

    #[tokio::test]
    async fn an_end_is_heard_while_the_disk_refuses() {
        for is_asked_for in [true, false] {
            let (journal, refuses, _) = unsynced(Durability::Power);
            refuses.store(true, Ordering::SeqCst);
            let (sender, commands) = channel();
            let mut inbox = Inbox::new(commands);
            let (stopper, _) = stopper(&journal);
            if is_asked_for {
                sender.send(request(1, Command::Close { reason: String::new() })).await.unwrap();
            } else {
                drop(sender);
            }
            let who = who();
            let written = inbox.hear_during(stopper, journal.write(&who, notice())).await;
            assert!(matches!(written, Err(JournalLost(_))), "it is given up: {is_asked_for}");
            assert_eq!(inbox.recv().await.is_some(), is_asked_for);
        }
    }
}
