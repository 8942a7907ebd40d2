//! The other side of the door. Takes the path of a live session's socket, gives a [`Link`] like any other;
//! [`LiveSessions`] is the folder of all of them, as a [`Place`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::{BoxFuture, BoxStream};
use decurion_protocol::{
    Command, CommandReceiver, Envelope, Event, Link, OpenSession, Place, PlaceError, Reply, Request,
    RequestId, RunId, SessionId, SessionSummary, Start,
};
use futures_util::{StreamExt as _, future, stream};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use uuid::Uuid;

use super::address::SocketAddress;
use super::lines::{SocketLine, next_line};
use super::{Hello, SocketRefusal, check_peer};

/// How long an owner may take to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// The longest first line.
const LONGEST_HELLO: usize = 64 << 10;
/// The longest event; as long as the longest line of a transcript.
const LONGEST_EVENT: usize = 256 << 20;

/// A live session of another process.
#[derive(Debug)]
pub struct AttachedSession {
    pub hello: Hello,
    /// The session, from the hello on without gaps. Its events end when the owner is gone.
    pub link: Link,
    sent: u64,
}

/// Why there is no way to a live session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no live session listens at {path}")]
    NotLive { path: Utf8PathBuf },
    /// It is another user's.
    #[error("not permitted to use {path}: {reason}")]
    NotPermitted { path: Utf8PathBuf, reason: String },
    /// Its owner turned us away.
    #[error("the owner of {path} refused: {reason}")]
    Refused { path: Utf8PathBuf, reason: String },
    /// Its owner does not say hello, or says something else.
    #[error("the owner of {path} does not answer: {reason}")]
    Silent { path: Utf8PathBuf, reason: String },
    #[error("cannot connect to {path}: {source}")]
    System { path: Utf8PathBuf, source: io::Error },
}

/// Attaches to the live session whose socket this is.
pub async fn connect(path: &Utf8Path) -> Result<AttachedSession, ConnectError> {
    let address = SocketAddress::open(path).map_err(|source| system(path, source))?;
    let stream = UnixStream::connect(address.reach()).await.map_err(|source| system(path, source))?;
    let peer = stream.peer_cred().map_err(|source| system(path, source))?;
    check_peer(peer.uid(), rustix::process::geteuid().as_raw())
        .map_err(|reason| ConnectError::NotPermitted { path: path.to_owned(), reason })?;
    let (reader, writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let silent = |reason: String| ConnectError::Silent { path: path.to_owned(), reason };
    let hello = match tokio::time::timeout(HELLO_WITHIN, first(&mut reader)).await {
        Ok(Ok(FirstLine::Hello(hello))) => hello,
        Ok(Ok(FirstLine::Refusal(SocketRefusal { error: reason }))) => {
            return Err(ConnectError::Refused { path: path.to_owned(), reason });
        }
        Ok(Err(error)) => return Err(silent(error.to_string())),
        Err(_) => return Err(silent(format!("nothing came within {} seconds", HELLO_WITHIN.as_secs()))),
    };
    let (commands, requests) = decurion_protocol::commands::channel();
    tokio::spawn(send(writer, requests));
    let link = Link { session: hello.session, commands, events: events(reader), again: None };
    Ok(AttachedSession { hello, link, sent: 0 })
}

impl AttachedSession {
    /// Sends a command and waits for the reply; other events are skipped. If the owner ends the connection over it, its
    /// reason is the reply. None if the session ended before it replied.
    pub async fn ask(&mut self, command: Command) -> Option<Reply> {
        self.sent += 1;
        let id = RequestId(self.sent);
        self.link.commands.send(Request { id, command }).await.ok()?;
        let mut last_words = None;
        while let Some(envelope) = self.link.events.next().await {
            last_words = None;
            match &envelope.event {
                Event::Replied { request, reply } if *request == id => return Some(reply.clone()),
                Event::Notice { level, text } if level == "error" => last_words = Some(text.clone()),
                _ => {}
            }
        }
        last_words.map(|reason| Reply::Refused { reason })
    }
}

fn system(path: &Utf8Path, source: io::Error) -> ConnectError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ConnectError::NotLive { path },
        io::ErrorKind::PermissionDenied => {
            ConnectError::NotPermitted { path, reason: "permission denied".to_owned() }
        }
        _ => ConnectError::System { path, source },
    }
}

/// What an owner says first.
#[derive(Deserialize)]
#[serde(untagged)]
enum FirstLine {
    Hello(Hello),
    Refusal(SocketRefusal),
}

async fn first(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<FirstLine> {
    let mut line = Vec::new();
    match next_line(reader, &mut line, LONGEST_HELLO).await? {
        SocketLine::Whole => serde_json::from_slice(&line).map_err(io::Error::from),
        SocketLine::TooLong => Err(io::Error::other("its first line is too long")),
        SocketLine::End => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes requests as they come. An owner that is gone shows itself by the end of the events.
async fn send(mut writer: OwnedWriteHalf, mut requests: CommandReceiver) {
    while let Some(queued) = requests.recv().await {
        let Ok(mut line) = serde_json::to_vec(&queued.request) else { continue };
        line.push(b'\n');
        if writer.write_all(&line).await.is_err() {
            return;
        }
    }
}

/// The rest of the connection, event by event.
fn events(reader: BufReader<OwnedReadHalf>) -> BoxStream<'static, Arc<Envelope>> {
    let incoming = Incoming {
        reader,
        line: Vec::new(),
        seq: 0,
        at: Timestamp::UNIX_EPOCH,
        run: RunId(Uuid::nil()),
        over: false,
    };
    Box::pin(stream::unfold(incoming, |mut incoming| async move {
        incoming.next().await.map(|envelope| (Arc::new(envelope), incoming))
    }))
}

struct Incoming {
    reader: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
    /// Of the last event, for what the connection itself has to say.
    seq: u64,
    at: Timestamp,
    run: RunId,
    over: bool,
}

impl Incoming {
    async fn next(&mut self) -> Option<Envelope> {
        if self.over {
            return None;
        }
        // A connection that breaks is an owner that is gone, like one that ends.
        let read =
            next_line(&mut self.reader, &mut self.line, LONGEST_EVENT).await.unwrap_or(SocketLine::End);
        let line = match read {
            SocketLine::Whole => &self.line,
            SocketLine::TooLong => {
                return Some(self.last_words("an event is too long to be read".to_owned()));
            }
            SocketLine::End => return None,
        };
        match serde_json::from_slice::<Envelope>(line) {
            Ok(envelope) => {
                (self.seq, self.at, self.run) = (envelope.seq, envelope.at, envelope.run);
                Some(envelope)
            }
            Err(error) => Some(match serde_json::from_slice::<SocketRefusal>(line) {
                Ok(refusal) => self.last_words(refusal.error),
                Err(_) => self.last_words(format!("not an event: {error}")),
            }),
        }
    }

    fn last_words(&mut self, text: String) -> Envelope {
        self.over = true;
        let event = Event::Notice { level: "error".to_owned(), text };
        Envelope { seq: self.seq, at: self.at, agent: None, run: self.run, event }
    }
}

/// The live sessions of one state folder: a place to attach to them, not to begin any.
#[derive(Clone, Debug)]
pub struct LiveSessions {
    folder: Utf8PathBuf,
}

impl LiveSessions {
    /// Those of this state folder.
    pub fn new(home: &Utf8Path) -> Self {
        Self { folder: home.join("run") }
    }

    /// Where a session's owner listens.
    pub fn socket(&self, session: SessionId) -> Utf8PathBuf {
        self.folder.join(format!("{session}.sock"))
    }

    pub async fn attach(&self, session: SessionId) -> Result<AttachedSession, ConnectError> {
        connect(&self.socket(session)).await
    }

    /// All owners that greet, by session. Stale sockets are skipped.
    pub async fn hellos(&self) -> io::Result<Vec<Hello>> {
        let entries = match self.folder.read_dir_utf8() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut paths: Vec<Utf8PathBuf> = entries.flatten().map(camino::Utf8DirEntry::into_path).collect();
        paths.retain(|path| path.extension() == Some("sock"));
        paths.sort_unstable();
        let attached = future::join_all(paths.iter().map(|path| connect(path))).await;
        Ok(attached.into_iter().flatten().map(|attached| attached.hello).collect())
    }
}

impl Place for LiveSessions {
    fn open(&self, request: OpenSession) -> BoxFuture<'_, Result<Link, PlaceError>> {
        Box::pin(async move {
            let Start::Resume { id, at: None } = request.start else {
                return Err(PlaceError::Usage(
                    "only a session that is live already can be attached to".to_owned(),
                ));
            };
            self.attach(id).await.map(|attached| attached.link).map_err(|error| match error {
                ConnectError::NotLive { .. } => PlaceError::NoSuchSession(id),
                other => PlaceError::Usage(other.to_string()),
            })
        })
    }

    /// What an owner does not say in its hello is left empty.
    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionSummary>, PlaceError>> {
        Box::pin(async move {
            let storage = |source| PlaceError::Storage { path: self.folder.to_string(), source };
            let hellos = self.hellos().await.map_err(storage)?;
            Ok(hellos.into_iter().map(|hello| self.summary(hello)).collect())
        })
    }
}

impl LiveSessions {
    fn summary(&self, hello: Hello) -> SessionSummary {
        SessionSummary {
            session: hello.session,
            cwd: hello.cwd,
            title: String::new(),
            created: None,
            modified: None,
            git_branch: None,
            bytes: 0,
            path: self.socket(hello.session),
        }
    }
}
