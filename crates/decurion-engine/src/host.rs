//! What is asked of the program that leads the session. Takes what a run or a server wants of it, publishes that, and
//! gives the answer, or why there is none. A small leaf: whoever asks waits for itself, the session's task only hands
//! answers in, so that nothing else stands still while a host thinks.
//!
//! Nothing of it is kept. What was asked when the process died is asked anew by whoever needs it then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Event, HostAnswer, HostAsked, HostRequest, HostRequestId};
use decurion_tools::mcp::{HostMessages, Introduction};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::journal::{Journal, Who};

/// What was not answered is shown again after this long, under the same id: a front end that was too far behind to
/// see it the first time, which what is not on record may be, sees it then.
const AGAIN: Duration = Duration::from_secs(10);

/// What was asked of the host and not answered. Clones are the same desk.
#[derive(Clone, Default)]
pub struct HostDesk(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// Where it is published, and in whose name if nobody else's; none before the session is open.
    way: Option<(Journal, Who)>,
    /// Whether nobody leads the session any more.
    is_left: bool,
    open: HashMap<HostRequestId, Open>,
    introductions: HashMap<String, Introduction>,
}

struct Open {
    who: Option<Who>,
    request: HostRequest,
    answer: oneshot::Sender<HostAnswer>,
}

/// Why the host gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFailure {
    /// It says that it could not.
    #[error("the host could not do it: {0}")]
    Failed(String),
    /// It took too long.
    #[error("the host gave no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// Nobody leads the session.
    #[error("host disconnected")]
    Left,
}

/// Something that was asked. Dropping it takes it back.
#[must_use = "what is dropped is taken back"]
pub struct Asked {
    desk: HostDesk,
    id: HostRequestId,
    answered: oneshot::Receiver<HostAnswer>,
}

impl HostDesk {
    /// From now on somebody listens: what was asked before is published.
    pub fn open(&self, journal: &Journal, who: &Who) {
        let mut table = self.lock();
        table.way = Some((journal.clone(), who.clone()));
        for open in table.open.values() {
            table.publish(open.who.as_ref(), asked(&open.request));
        }
    }

    /// What servers of the host said of themselves beforehand.
    pub fn introduce(&self, introductions: impl IntoIterator<Item = (String, Introduction)>) {
        self.lock().introductions.extend(introductions);
    }

    /// Asks, in the name of a run, and waits for the answer, but not longer than that.
    pub async fn ask(&self, who: &Who, asked: HostAsked, limit: Duration) -> Result<Value, HostFailure> {
        self.put(Some(who), asked).answer(limit).await
    }

    /// Asks at once; the answer can be waited for.
    pub fn put(&self, who: Option<&Who>, what: HostAsked) -> Asked {
        let (answer, answered) = oneshot::channel();
        let id = HostRequestId(uuid::Uuid::new_v4());
        let mut table = self.lock();
        // Where nobody leads the session the way to answer it is dropped here.
        if !table.is_left {
            let request = HostRequest { id, asked: what };
            table.publish(who, asked(&request));
            table.open.insert(id, Open { who: who.cloned(), request, answer });
        }
        Asked { desk: self.clone(), id, answered }
    }

    /// Hands in an answer. The error says why nobody wants it.
    pub fn answer(&self, id: HostRequestId, answer: HostAnswer) -> Result<(), String> {
        let taken = self.lock().open.remove(&id).is_some_and(|open| open.answer.send(answer).is_ok());
        taken.then_some(()).ok_or_else(|| {
            format!("no open request with this id (answered already, timed out or withdrawn): {id}")
        })
    }

    /// Nobody leads the session any more: what is open fails now, and what is asked from now on at once.
    pub fn leave(&self) {
        let mut table = self.lock();
        table.is_left = true;
        table.open.clear();
    }

    fn show_again(&self, id: HostRequestId) {
        let table = self.lock();
        if let Some(open) = table.open.get(&id) {
            table.publish(open.who.as_ref(), asked(&open.request));
        }
    }

    fn release(&self, id: HostRequestId) {
        let mut table = self.lock();
        if let Some(open) = table.open.remove(&id) {
            table.publish(open.who.as_ref(), Event::HostReleased { request: id });
        }
    }

    /// Tells whoever listens of something that is not kept.
    pub fn tell(&self, who: &Who, event: Event) {
        self.lock().publish(Some(who), event);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn publish(&self, who: Option<&Who>, event: Event) {
        if let Some((journal, ours)) = &self.way {
            journal.publish(who.unwrap_or(ours), event);
        }
    }
}

fn asked(request: &HostRequest) -> Event {
    Event::HostAsked { request: Box::new(request.clone()) }
}

impl Asked {
    /// Waits for the answer, but not longer than that.
    pub async fn answer(mut self, limit: Duration) -> Result<Value, HostFailure> {
        let start = Instant::now();
        let end = start.checked_add(limit);
        let mut again = start + AGAIN;
        loop {
            let next = end.map_or(again, |end| end.min(again));
            tokio::select! {
                biased;
                answer = &mut self.answered => return match answer {
                    Ok(HostAnswer::Given { value }) => Ok(value),
                    Ok(HostAnswer::Failed { error }) => Err(HostFailure::Failed(error)),
                    Ok(HostAnswer::Gone) | Err(_) => Err(HostFailure::Left),
                },
                () = sleep_until(next) => {
                    if end.is_some_and(|end| end <= next) {
                        return Err(HostFailure::Late(limit));
                    }
                    self.desk.show_again(self.id);
                    again += AGAIN;
                }
            }
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.desk.release(self.id);
    }
}

impl std::fmt::Debug for HostDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostDesk").field("open", &self.lock().open.len()).finish_non_exhaustive()
    }
}

impl HostMessages for HostDesk {
    fn send(
        &self,
        server: &str,
        message: Value,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Value, String>> {
        // Put down now, not when somebody first waits: messages to a server keep their order.
        let asked = self.put(None, HostAsked::Mcp { server: server.to_owned(), message });
        Box::pin(async move { asked.answer(limit).await.map_err(|failure| failure.to_string()) })
    }

    fn introduction(&self, server: &str) -> Option<Introduction> {
        // It is true once: whoever connects again wants to know what is there now.
        self.lock().introductions.remove(server)
    }
}
