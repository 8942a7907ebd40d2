//! Output lines. Takes whole lines, gives them in order to a reader that may be slow, may stop reading or may be gone:
//! the number of waiting bytes is bounded, and a producer can check it before it makes more.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::Notify;

/// While so many bytes wait, nothing is made that can wait itself.
const ENOUGH: usize = 256 << 10;
/// While this many bytes wait, no request that needs an answer is read. Well below the limit, so that the last answer
/// has room.
const MUCH: usize = 4 << 20;
/// While so many bytes wait, nothing more is taken.
const MOST: usize = 8 << 20;
/// How much goes out in one write.
const WRITE: usize = 64 << 10;

/// Where lines go, each whole.
pub struct LineWriterQueue {
    shared: Arc<LineQueue>,
    writer: Option<std::thread::JoinHandle<io::Result<()>>>,
}

#[derive(Default)]
struct LineQueue {
    waiting: Mutex<WaitingLines>,
    /// For the thread that writes.
    more: Condvar,
    /// For those who wait for room.
    room: Notify,
}

#[derive(Default)]
struct WaitingLines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How much was written since the beginning.
    written: u64,
    /// No more lines come.
    is_closed: bool,
    /// The reader is gone.
    is_broken: bool,
    /// The pipe says so itself.
    is_unread: bool,
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, WaitingLines> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What goes out in one write, once there is something; none at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let mut waiting = self.lock();
        while waiting.lines.is_empty() && !waiting.is_closed {
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let mut line = waiting.lines.pop_front()?;
        while line.len() < WRITE
            && let Some(more) = waiting.lines.pop_front()
        {
            line.extend_from_slice(&more);
        }
        Some(line)
    }

    fn write(&self, writer: &mut impl Write) -> io::Result<()> {
        while let Some(line) = self.next() {
            let written = writer.write_all(&line).and_then(|()| writer.flush());
            let mut waiting = self.lock();
            waiting.bytes -= line.len();
            waiting.written += line.len() as u64;
            waiting.is_broken = written.is_err();
            if waiting.is_broken {
                (waiting.lines, waiting.bytes) = (VecDeque::new(), 0);
            }
            drop(waiting);
            self.room.notify_waiters();
            written?;
        }
        Ok(())
    }
}

impl LineWriterQueue {
    /// Lines to this writer. A thread writes them, so that a reader that stops reading stops nothing but
    /// the next line.
    pub fn to(mut writer: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(LineQueue::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lines".to_owned()).stack_size(128 * 1024);
        let writer = thread.spawn(move || theirs.write(&mut writer))?;
        Ok(Self { shared, writer: Some(writer) })
    }

    /// The same, told by the pipe itself when its other end is closed, also while there is nothing to write. Takes a
    /// thread that waits for nothing else; what cannot be closed at another end says nothing.
    pub fn watching(self, pipe: OwnedFd) -> io::Result<Self> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("unread".to_owned()).stack_size(64 * 1024);
        thread.spawn(move || {
            // The end of the pipe is always reported; no other event is wanted.
            let mut watched = [PollFd::new(&pipe, PollFlags::empty())];
            while poll(&mut watched, None) == Err(rustix::io::Errno::INTR) {}
            if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                shared.lock().is_unread = true;
                shared.room.notify_waiters();
            }
        })?;
        Ok(self)
    }

    /// Queues one line; tells whether anyone still reads.
    pub(crate) async fn send(&self, mut line: Vec<u8>) -> bool {
        line.push(b'\n');
        loop {
            let room = self.shared.room.notified();
            match self.push(line, MOST) {
                Ok(is_read) => return is_read,
                Err(back) => line = back,
            }
            room.await;
        }
    }

    /// Queues one line if there is room: what a reader that does not read misses here is no loss.
    pub(crate) fn try_send(&self, mut line: Vec<u8>) {
        line.push(b'\n');
        let _ = self.push(line, ENOUGH);
    }

    /// Queues a line unless this much waits; tells whether anyone still reads, or gives it back.
    fn push(&self, line: Vec<u8>, most: usize) -> Result<bool, Vec<u8>> {
        let mut waiting = self.shared.lock();
        if waiting.is_broken {
            return Ok(false);
        }
        if waiting.bytes >= most {
            return Err(line);
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line);
        drop(waiting);
        self.shared.more.notify_one();
        Ok(true)
    }

    /// Whether so little waits that more may be made. Nothing waits for a reader that is gone.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.lock().bytes < ENOUGH
    }

    /// Whether the queue is short enough to read requests, which need answers.
    pub(crate) fn has_room_for_answers(&self) -> bool {
        self.shared.lock().bytes < MUCH
    }

    /// Returns once nothing keeps more from being made.
    pub(crate) async fn room(&self) {
        self.wait_for(|waiting| waiting.bytes < ENOUGH).await;
    }

    /// Returns once everything is written, or the reader is gone.
    pub(crate) async fn written_out(&self) {
        self.wait_for(|waiting| waiting.bytes == 0).await;
    }

    async fn wait_for(&self, holds: impl Fn(&WaitingLines) -> bool) {
        loop {
            let news = self.shared.room.notified();
            if holds(&self.shared.lock()) {
                return;
            }
            news.await;
        }
    }

    /// How much was written so far.
    pub(crate) fn written(&self) -> u64 {
        self.shared.lock().written
    }

    /// Returns when the pipe reports that its reader is gone.
    pub(crate) async fn unread(&self) {
        self.wait_for(|waiting| waiting.is_unread).await;
    }

    /// Waits until everything is written.
    pub fn finish(mut self) -> io::Result<()> {
        self.close();
        self.writer.take().map_or(Ok(()), |writer| writer.join().unwrap_or(Ok(())))
    }

    fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.more.notify_one();
    }
}

impl Drop for LineWriterQueue {
    fn drop(&mut self) {
        self.close();
    }
}
