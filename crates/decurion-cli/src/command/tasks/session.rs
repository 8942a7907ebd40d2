//! Which session is meant. Takes the state folder, the working directory and perhaps an id, gives the one
//! session: attached to where it is live, and its record where it keeps one.

use camino::Utf8Path;
use decurion_protocol::{PlaceError, SessionId};
use decurion_serve::socket::{AttachedSession, ConnectError, LiveSessions};
use decurion_store::{Archive, Found, SessionPaths};

use crate::report::Failure;

/// The session that is meant.
pub struct ChosenSession {
    pub id: SessionId,
    /// The connection to its owner, from before anything was read; none if it does not listen.
    pub live: Option<AttachedSession>,
    /// What it recorded; none where it keeps nothing.
    pub record: Option<SessionPaths>,
}

/// The session of this id; without one, the live session of this folder, else its latest.
pub async fn choose(home: &Utf8Path, cwd: &Utf8Path, wanted: Option<&str>) -> Result<ChosenSession, Failure> {
    let archive = Archive::new(home);
    let sockets = LiveSessions::new(home);
    let id = match wanted {
        Some(text) => named(&archive, &sockets, text).await?,
        None => default(&archive, &sockets, cwd).await?,
    };
    let live = match sockets.attach(id).await {
        Ok(live) => Some(live),
        Err(ConnectError::NotLive { .. }) => None,
        Err(error) => return Err(Failure::failed(error.to_string())),
    };
    let record = match archive.find(id, &[]) {
        Some(Found::Ours(paths)) => Some(paths),
        _ => None,
    };
    if live.is_none() && record.is_none() {
        return Err(PlaceError::NoSuchSession(id).into());
    }
    Ok(ChosenSession { id, live, record })
}

/// The session of this id, or the only one, on record or running, whose id begins so.
async fn named(archive: &Archive, sockets: &LiveSessions, text: &str) -> Result<SessionId, Failure> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let running = sockets.hellos().await.unwrap_or_default();
    let begins = |id: &SessionId| !text.is_empty() && id.to_string().starts_with(&text.to_ascii_lowercase());
    let running: Vec<SessionId> = running.iter().map(|hello| hello.session).filter(begins).collect();
    match running.as_slice() {
        [only] => Ok(*only),
        _ => super::super::sessions::named(archive, text),
    }
}

async fn default(archive: &Archive, sockets: &LiveSessions, cwd: &Utf8Path) -> Result<SessionId, Failure> {
    let unreadable =
        |error| Failure::failed(format!("cannot read the state folder {}: {error}", archive.layout().home()));
    let hellos = sockets.hellos().await.map_err(unreadable)?;
    let here: Vec<SessionId> =
        hellos.iter().filter(|hello| hello.cwd == cwd).map(|hello| hello.session).collect();
    match here.as_slice() {
        [only] => Ok(*only),
        [] => archive.latest(cwd).map_err(unreadable)?.map(|summary| summary.session).ok_or_else(|| {
            Failure::usage("no sessions in this folder")
                .hint("--session ID names one of another folder; `decurion sessions list --all` lists them")
        }),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!(
                "several sessions are running in this folder: {}",
                several.join(", ")
            ))
            .hint("name one with --session ID"))
        }
    }
}
