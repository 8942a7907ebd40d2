//! Events of the terminal. Takes its keys, pastes and sizes as they come; gives them in order, and stops reading while
//! another program reads there.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crossterm::event::{Event as Happening, EventStream};
use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

/// How many are read ahead.
const MOST: usize = 1024;

/// Read on a separate thread: the terminal's stream spins once the terminal is gone, and loses the waker of a caller
/// that polls once.
pub(crate) struct TerminalEvents {
    /// Events that were read before the terminal was released, and not taken.
    ahead: VecDeque<io::Result<Happening>>,
    happenings: mpsc::Receiver<io::Result<Happening>>,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
}

impl TerminalEvents {
    pub fn new() -> io::Result<Self> {
        // From here on a resize is noticed, not only once the thread runs.
        let _ = crossterm::event::poll(Duration::ZERO)?;
        Self::of(EventStream::new)
    }

    /// What this stream gives.
    fn of<S>(stream: impl FnOnce() -> S + Send + 'static) -> io::Result<Self>
    where
        S: Stream<Item = io::Result<Happening>> + Unpin,
    {
        let (sender, happenings) = mpsc::channel(MOST);
        let (stop, mut stopped) = oneshot::channel::<()>();
        let (ending, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let mut stream = stream();
                loop {
                    let happening = tokio::select! {
                        biased;
                        _ = &mut stopped => return,
                        happening = stream.next() => happening,
                    };
                    let Some(happening) = happening else { return };
                    if sender.send(happening).await.is_err() {
                        return;
                    }
                }
            });
            let _ = ending.send(());
        })?;
        Ok(Self { ahead: VecDeque::new(), happenings, stop: Some(stop), ended })
    }

    /// The next one; none once the terminal is gone. Cancelling the wait loses none.
    pub async fn next(&mut self) -> Option<io::Result<Happening>> {
        match self.ahead.pop_front() {
            Some(happening) => Some(happening),
            None => self.happenings.recv().await,
        }
    }

    /// The next one, if it is there already.
    pub fn ready(&mut self) -> Option<io::Result<Happening>> {
        self.ahead.pop_front().or_else(|| self.happenings.try_recv().ok())
    }

    /// Stops reading: later keys are for another program. Events that were read stay.
    pub async fn end(&mut self) {
        drop(self.stop.take());
        // The thread may be waiting for room.
        while let Some(happening) = self.happenings.recv().await {
            self.ahead.push_back(happening);
        }
        let _ = (&mut self.ended).await;
    }

    pub fn go_on(&mut self) -> io::Result<()> {
        self.follow(Self::new()?);
        Ok(())
    }

    /// What this one reads comes after what was read before.
    fn follow(&mut self, next: Self) {
        *self = Self { ahead: std::mem::take(&mut self.ahead), ..next };
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    /// So many events in order, and then none.
    fn counting(range: std::ops::Range<u16>) -> TerminalEvents {
        TerminalEvents::of(move || {
            stream::iter(range.map(|count| Ok(Happening::Resize(count, 1)))).chain(stream::pending())
        })
        .unwrap()
    }

    fn count(happening: Option<&io::Result<Happening>>) -> Option<u16> {
        match happening {
            Some(Ok(Happening::Resize(count, 1))) => Some(*count),
            _ => None,
        }
    }

    #[tokio::test]
    async fn what_was_read_ahead_is_not_lost_and_holds_nobody_up() {
        let most = u16::try_from(MOST).unwrap();
        let mut keys = counting(0..3 * most);
        // The thread has filled the room that there is.
        while keys.happenings.len() < MOST {
            tokio::task::yield_now().await;
        }
        assert_eq!(count(keys.ready().as_ref()), Some(0));
        while keys.happenings.len() < MOST {
            tokio::task::yield_now().await;
        }
        let ended = tokio::time::timeout(Duration::from_secs(60), keys.end()).await;
        assert!(ended.is_ok(), "it waits for its thread, which waits for room");
        let read = u16::try_from(keys.ahead.len()).unwrap();
        assert!(read >= most, "{read}");
        keys.follow(counting(read + 1..read + 3));
        for expected in 1..read + 3 {
            assert_eq!(count(keys.next().await.as_ref()), Some(expected));
        }
    }
}
