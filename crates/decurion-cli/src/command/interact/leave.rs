//! The ways out of a session. Takes the way a person wants to leave it; gives why that is impossible, or what comes
//! next, which is opened first if this session could not be reopened: no conversation is lost because the next one does
//! not open.

use std::sync::{Arc, Mutex, PoisonError};

use camino::Utf8PathBuf;
use decurion_protocol::{Link, Mode, OpenSession, Place, SessionId, Start};
use decurion_store::{Archive, Found};
use decurion_tui::app::{Farewell, NextSession};

use crate::report::Failure;

/// The ways out of one session.
pub struct Exits {
    /// Where sessions are opened.
    pub place: Arc<dyn Place>,
    /// How this one was opened.
    pub request: OpenSession,
    pub session: SessionId,
    pub state: Option<Utf8PathBuf>,
    /// The socket through which anybody could come back to it.
    pub door: Option<Utf8PathBuf>,
    /// The session that replaces it, if it was opened first.
    pub next: Mutex<Option<Link>>,
}

impl Exits {
    /// Accepts a way to leave, or says why it is impossible.
    pub async fn take(&self, farewell: &Farewell) -> Result<(), String> {
        match farewell {
            Farewell::Close => Ok(()),
            Farewell::Keep => self.keep(),
            Farewell::Next(next) => self.turn_to(next).await,
        }
    }

    /// Whether the session can be had again by its id.
    pub fn is_on_record(&self) -> bool {
        let found = self.state.as_deref().and_then(|state| Archive::new(state).find(self.session, &[]));
        matches!(found, Some(Found::Ours(_)))
    }

    /// Whether it has no prompt.
    pub fn is_empty(&self) -> bool {
        self.state.as_deref().is_some_and(|state| Archive::new(state).is_empty(self.session))
    }

    /// Removes the files of a session that was left without a prompt, unless its id was chosen: the person may come
    /// back to it.
    pub fn discard_empty(&self) {
        let is_ours = matches!(self.request.start, Start::New { id: None } | Start::Fork { id: None, .. });
        if let (true, Some(state)) = (is_ours, self.state.as_deref())
            && let Err(error) = Archive::new(state).discard_empty(self.session)
        {
            tracing::warn!(%error, session = %self.session, "an empty session could not be removed");
        }
    }

    /// What takes its place, if that is open already.
    pub fn next(&self) -> Option<Link> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self) -> Result<(), String> {
        match &self.door {
            Some(door) if door.symlink_metadata().is_ok() => Ok(()),
            Some(door) => {
                Err(format!("cannot run in the background: the session's control socket is gone: {door}"))
            }
            None => Err("cannot run in the background: the session has no control socket".to_owned()),
        }
    }

    async fn turn_to(&self, next: &NextSession) -> Result<(), String> {
        if self.is_on_record() {
            return Ok(());
        }
        match &next.start {
            Start::Resume { id, .. } if *id == self.session => {
                return Err("no transcript of this session is kept: it cannot be rewound".to_owned());
            }
            Start::Fork { from, .. } if *from == self.session => {
                return Err("no transcript of this session is kept: it cannot be forked".to_owned());
            }
            Start::New { .. } | Start::Resume { .. } | Start::Fork { .. } => {}
        }
        let opened = open(&*self.place, following(self.request.clone(), self.session, next)).await;
        let link = opened.map_err(|failure| failure.message)?;
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
        Ok(())
    }
}

/// The request for the session that replaces this one. A continued conversation keeps its mode, and so does a new one;
/// another session has its own. If the program was started without checks, that mode can be chosen later too.
pub fn following(before: OpenSession, session: SessionId, next: &NextSession) -> OpenSession {
    let bypass = before.bypass || before.mode == Some(Mode::BypassPermissions);
    let mut request = OpenSession { start: next.start.clone(), worktree: None, bypass, ..before };
    let goes_on = match next.start {
        Start::New { .. } => true,
        Start::Resume { id, .. } => id == session,
        Start::Fork { from, .. } => from == session,
    };
    request.mode = goes_on.then_some(next.mode);
    if matches!(next.start, Start::New { .. }) {
        request.model = next.model.clone().or(request.model);
    }
    request
}

pub async fn open(place: &dyn Place, request: OpenSession) -> Result<Link, Failure> {
    place.open(request).await.map_err(|error| {
        let held = matches!(error, decurion_protocol::PlaceError::Held { .. });
        let failure = Failure::from(error);
        if held { failure.hint("decurion attach joins it") } else { failure }
    })
}
