//! The door from other terminals. Takes a live session (a sender of commands and a way to get its events)
//! and a path, and speaks [`Request`] and [`Envelope`] there as JSON lines, for as many clients as come;
//! [`connect`] is the other side and gives a [`decurion_protocol::Link`].
//!
//! What goes over the wire, each on a line of its own:
//!
//! | who | what |
//! |---|---|
//! | owner, first | [`Hello`]: from here on the client misses nothing |
//! | client | [`Request`], with ids of its own choice |
//! | owner | [`Envelope`]; of the replies only those to this client, with its own ids |
//! | owner, last | `{"error": "…"}`, where it ends the connection |
//!
//! A request longer than [`LONGEST_REQUEST`] whose line begins with its id has a refusal as its reply.
//!
//! Only a person answers for a person: what the session itself started may look, and is refused everything else.

mod address;
mod client;
mod lines;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::commands::NO_ROOM;
use decurion_protocol::link::BoxStream;
use decurion_protocol::link::Subscribe;
use decurion_protocol::{
    Command, CommandSender, Envelope, Event, Inspected, Reply, Request, RequestId, RunId, SessionId,
    WeakCommandSender,
};
use futures_util::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::io::{BufReader, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use address::{SocketAddress, SocketIdentity};
use lines::{Outbox, SocketLine, next_line, skip_line};

pub use client::{AttachedSession, ConnectError, LiveSessions, connect};

/// The longest request of a client: a prompt with pictures, as on standard input.
pub const LONGEST_REQUEST: usize = crate::input::MOST_LINE;
/// The longest request of a client that may only look.
const LONGEST_LOOK: usize = 1 << 20;
/// While more than this waits for a client, no further events are queued for it.
pub const LONGEST_BACKLOG: usize = 8 << 20;
/// How long a client with such a backlog may read nothing before it is dropped.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// How many refusals of one client wait to be queued.
const MOST_REFUSALS: usize = 16;
/// How many clients there may be at once.
pub const MOST_CLIENTS: usize = 64;
/// The first request id that a client's request is given; those below belong to the session's own front end.
pub const FIRST_REQUEST: u64 = 1 << 52;
/// How many requests of one client may wait for their reply.
const MOST_PENDING: usize = 1024;
/// How long the last words to a client may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long between two looks at whether a client that says nothing more still reads.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// How long to wait after the system refused to accept a connection.
const BETWEEN_ACCEPTS: Duration = Duration::from_millis(100);

/// What leads into a live session.
#[derive(Clone)]
pub struct SessionSocket {
    pub session: SessionId,
    pub cwd: Utf8PathBuf,
    /// Where its commands go. The listener does not keep it: a session that everyone else has left still ends.
    pub commands: CommandSender,
    /// Where its events come from, once more for every client.
    pub events: Subscribe,
    /// Whether a client is a descendant of the session itself, or its origin is unknown.
    pub from_below: fn(BorrowedFd<'_>) -> bool,
}

/// Who answers at a socket: its first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub session: SessionId,
    pub cwd: Utf8PathBuf,
    /// The process that owns it.
    pub pid: u32,
}

/// A socket that is listened on. Dropping it ends every connection and removes the socket's file.
pub struct Listener {
    address: SocketAddress,
    identity: SocketIdentity,
    closing: watch::Sender<bool>,
    clients: watch::Receiver<usize>,
    accepting: Option<JoinHandle<()>>,
}

/// Listens for clients of a session. The caller owns the session, under its lock where it has one; so a socket
/// that is there already was left by an owner who is gone, and is replaced. Needs a running runtime.
pub fn listen(path: &Utf8Path, door: SessionSocket) -> io::Result<Listener> {
    let address = SocketAddress::for_owner(path)?;
    address.remove()?;
    let listener = UnixListener::bind(address.reach())?;
    let identity = address.protect()?;
    let (closing, closed) = watch::channel(false);
    let hello = Hello { session: door.session, cwd: door.cwd, pid: std::process::id() };
    let inside = Arc::new(SocketState {
        hello,
        commands: door.commands.downgrade(),
        events: door.events,
        next: AtomicU64::new(FIRST_REQUEST),
        uid: rustix::process::geteuid().as_raw(),
        from_below: door.from_below,
    });
    let (counted, clients) = watch::channel(0);
    let accepting = Some(tokio::spawn(accept(listener, inside, closed, counted)));
    Ok(Listener { address, identity, closing, clients, accepting })
}

impl Listener {
    pub fn path(&self) -> &Utf8Path {
        self.address.path()
    }

    /// How many clients there are, as they come and go.
    pub fn clients(&self) -> watch::Receiver<usize> {
        self.clients.clone()
    }

    /// Ends it once every client was given what has happened so far, as far as it reads it soon.
    pub async fn finish(mut self) {
        self.closing.send_replace(true);
        if let Some(accepting) = self.accepting.as_mut() {
            let _ = tokio::time::timeout(LAST_WORDS * 2, accepting).await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        // The next owner may have put its own socket there by now.
        if self.address.identity().is_ok_and(|found| found == self.identity)
            && let Err(error) = self.address.remove()
        {
            tracing::warn!(path = %self.address.path(), %error, "the socket could not be removed");
        }
    }
}

/// What every connection shares.
struct SocketState {
    hello: Hello,
    commands: WeakCommandSender,
    events: Subscribe,
    /// The id of the next request, so that no two clients share one.
    next: AtomicU64,
    uid: u32,
    from_below: fn(BorrowedFd<'_>) -> bool,
}

/// What a client may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientRights {
    Owner,
    /// Look: the session itself started it, a command, a hook or a server. What it could see here it could read in the
    /// record as well; what it could change is for a person to change.
    Below,
}

/// The requests of one client that wait for their reply: our id, and its own.
type PendingReplies = Mutex<HashMap<RequestId, RequestId>>;

async fn accept(
    listener: UnixListener,
    inside: Arc<SocketState>,
    mut closing: watch::Receiver<bool>,
    counted: watch::Sender<usize>,
) {
    let mut clients = JoinSet::new();
    let for_clients = closing.clone();
    loop {
        counted.send_if_modified(|count| std::mem::replace(count, clients.len()) != clients.len());
        tokio::select! {
            biased;
            () = closed(&mut closing) => break,
            Some(_) = clients.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let admitted = admit(&stream, &inside, clients.len());
                    clients.spawn(attend(stream, admitted, Arc::clone(&inside), for_clients.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(BETWEEN_ACCEPTS).await;
                }
            },
        }
    }
    drop(listener);
    while clients.join_next().await.is_some() {}
}

/// Waits for the listener to close.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Whether a client may stay, or why not.
fn admit(stream: &UnixStream, inside: &SocketState, others: usize) -> Result<ClientRights, String> {
    let peer = stream.peer_cred().map_err(|error| format!("cannot tell who connects: {error}"))?;
    check_peer(peer.uid(), inside.uid)?;
    if others >= MOST_CLIENTS {
        return Err(format!("too many clients at once: {others}"));
    }
    Ok(if (inside.from_below)(stream.as_fd()) { ClientRights::Below } else { ClientRights::Owner })
}

/// A session answers to its own user only. The file's mode says the same; this holds where modes do not.
fn check_peer(peer: u32, own: u32) -> Result<(), String> {
    if peer == own { Ok(()) } else { Err(format!("not permitted for this user: {peer}")) }
}

/// Whether a command changes nothing, and tells nothing that a rule may hide from the session's own commands: changes of
/// the working tree are of all its files.
fn only_looks(command: &Command) -> bool {
    match command {
        Command::Inspect { what } => *what != Inspected::Changes,
        command => *command == Command::Tasks,
    }
}

/// Why a connection ends.
enum ConnectionEnd {
    /// The client is gone, or reads too slowly to be waited for.
    Gone,
    /// The session has nothing more to say.
    Over,
    Closing,
    /// The client did something that is not allowed.
    Refused(String),
}

/// One client, from its hello to its end.
async fn attend(
    stream: UnixStream,
    admitted: Result<ClientRights, String>,
    inside: Arc<SocketState>,
    mut closing: watch::Receiver<bool>,
) {
    let (reader, writer) = stream.into_split();
    let mut outbox = Outbox::default();
    let mut end = ConnectionEnd::Over;
    let pending = PendingReplies::default();
    if let Ok(standing) = admitted {
        // Subscribed before the hello is sent: what happens after it is not missed.
        let mut events = (inside.events)();
        outbox.push(&inside.hello);
        let (refuse, mut refusals) = mpsc::channel(MOST_REFUSALS);
        let mut sources = ClientSources { events: &mut events, refusals: &mut refusals };
        end = tokio::select! {
            end = hear(reader, standing, &inside, (&pending, refuse)) => end,
            end = tell(&writer, &mut outbox, &mut sources, &pending) => end,
            () = closed(&mut closing) => ConnectionEnd::Closing,
        };
        if matches!(end, ConnectionEnd::Closing) {
            take_ready(&mut events, &mut outbox, &pending);
        }
    } else if let Err(reason) = admitted {
        end = ConnectionEnd::Refused(reason);
    }
    match end {
        ConnectionEnd::Gone => return,
        ConnectionEnd::Over | ConnectionEnd::Closing => {}
        ConnectionEnd::Refused(error) => outbox.push(&SocketRefusal { error }),
    }
    let _ = tokio::time::timeout(LAST_WORDS, outbox.flush(&writer)).await;
}

/// Takes the client's requests until one is not acceptable or the client is gone.
async fn hear(
    reader: OwnedReadHalf,
    standing: ClientRights,
    inside: &SocketState,
    (pending, refuse): (&PendingReplies, mpsc::Sender<Envelope>),
) -> ConnectionEnd {
    let longest = match standing {
        ClientRights::Owner => LONGEST_REQUEST,
        ClientRights::Below => LONGEST_LOOK,
    };
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        match next_line(&mut reader, &mut line, longest).await {
            Ok(SocketLine::Whole) if line.trim_ascii().is_empty() => {}
            Ok(SocketLine::Whole) => match serde_json::from_slice(&line) {
                Ok(request) => {
                    match inside.ask(request, standing, pending) {
                        Ok(None) => {}
                        // The connection is read on: the next request may be an interrupt.
                        Ok(Some(refusal)) => {
                            if refuse.send(refusal).await.is_err() {
                                return ConnectionEnd::Gone;
                            }
                        }
                        Err(reason) => return ConnectionEnd::Refused(reason),
                    }
                }
                Err(error) => return ConnectionEnd::Refused(format!("not a request: {error}")),
            },
            Ok(SocketLine::TooLong) => {
                let reason = format!("a request is longer than {longest} bytes");
                let id = id_of(&line).filter(|_| standing == ClientRights::Owner);
                let Some(id) = id else { return ConnectionEnd::Refused(reason) };
                if refuse.send(refusal(id, reason)).await.is_err() || skip_line(&mut reader).await.is_err() {
                    return ConnectionEnd::Gone;
                }
            }
            Ok(SocketLine::End) => break,
            Err(_) => return ConnectionEnd::Gone,
        }
    }
    // A client that only stopped writing may still want to read; but a client that leaves closes its two halves one
    // after the other, and would be counted as connected until the next event.
    while let Ok(ready) = reader.get_ref().ready(Interest::WRITABLE).await
        && !ready.is_write_closed()
    {
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    ConnectionEnd::Gone
}

/// The id of a request that is too long to be read whole; clients write it first.
fn id_of(line: &[u8]) -> Option<RequestId> {
    let digits = line.strip_prefix(br#"{"id":"#)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok().map(RequestId)
}

/// The reply to a request that the session never sees.
fn refusal(request: RequestId, reason: String) -> Envelope {
    let event = Event::Replied { request, reply: Reply::Refused { reason } };
    Envelope { seq: 0, at: Timestamp::UNIX_EPOCH, agent: None, run: RunId(Uuid::nil()), event }
}

/// What a client is given.
struct ClientSources<'a> {
    events: &'a mut BoxStream<'static, Arc<Envelope>>,
    /// Replies of the connection itself.
    refusals: &'a mut mpsc::Receiver<Envelope>,
}

/// Gives the client what happens, until one of them ends. The session waits for no client: what is not taken from its
/// events here is bounded there.
async fn tell(
    writer: &OwnedWriteHalf,
    outbox: &mut Outbox,
    ClientSources { events, refusals }: &mut ClientSources<'_>,
    pending: &PendingReplies,
) -> ConnectionEnd {
    loop {
        tokio::select! {
            // Writing first: only what the client does not take piles up.
            biased;
            ready = writer.writable(), if !outbox.is_empty() => {
                if ready.and_then(|()| outbox.write_some(writer)).is_err() {
                    return ConnectionEnd::Gone;
                }
            }
            // Begins anew whenever the client has read something.
            () = tokio::time::sleep(READ_WITHIN), if outbox.len() > LONGEST_BACKLOG => return ConnectionEnd::Gone,
            Some(refusal) = refusals.recv(), if outbox.len() <= LONGEST_BACKLOG => outbox.push(&refusal),
            envelope = events.next(), if outbox.len() <= LONGEST_BACKLOG => match envelope {
                Some(envelope) => outbox.envelope(&envelope, pending),
                None => return ConnectionEnd::Over,
            },
        }
    }
}

/// What has happened by now and was not told yet.
fn take_ready(events: &mut BoxStream<'static, Arc<Envelope>>, outbox: &mut Outbox, pending: &PendingReplies) {
    while outbox.len() <= LONGEST_BACKLOG
        && let Some(Some(envelope)) = events.next().now_or_never()
    {
        outbox.envelope(&envelope, pending);
    }
}

impl SocketState {
    /// Sends a client's request into the session, under an id that no other client uses. Gives the refusal of one that the session has
    /// no room for.
    fn ask(
        &self,
        request: Request,
        standing: ClientRights,
        pending: &PendingReplies,
    ) -> Result<Option<Envelope>, String> {
        if standing == ClientRights::Below && !only_looks(&request.command) {
            return Err(
                "a session takes no orders from what it started itself (a command, a hook, a server); \
                 use another terminal"
                    .to_owned(),
            );
        }
        let ended = || format!("session {} has ended", self.hello.session);
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        if lock(pending).len() >= MOST_PENDING {
            return Err(format!("too many requests wait for their reply: {MOST_PENDING}"));
        }
        lock(pending).insert(id, request.id);
        let commands = self.commands.upgrade().ok_or_else(ended)?;
        match commands.try_send(Request { id, command: request.command }) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(_)) => {
                lock(pending).remove(&id);
                Ok(Some(refusal(request.id, NO_ROOM.to_owned())))
            }
            Err(TrySendError::Closed(_)) => Err(ended()),
        }
    }
}

impl Outbox {
    /// Queues an event; of the replies only those to this client, under its own ids.
    fn envelope(&mut self, envelope: &Envelope, pending: &PendingReplies) {
        let Event::Replied { request, reply } = &envelope.event else {
            return self.push(envelope);
        };
        let theirs = lock(pending).remove(request);
        if let Some(request) = theirs {
            let event = Event::Replied { request, reply: reply.clone() };
            self.push(&Envelope { event, agent: envelope.agent.clone(), ..*envelope });
        }
    }
}

fn lock(pending: &PendingReplies) -> MutexGuard<'_, HashMap<RequestId, RequestId>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last line of a connection that the owner ends.
#[derive(Serialize, Deserialize)]
struct SocketRefusal {
    error: String,
}

#[cfg(test)]
mod tests {
    use super::check_peer;

    #[test]
    fn another_user_is_turned_away_whoever_it_is() {
        assert_eq!(check_peer(1000, 1000), Ok(()));
        for (peer, own) in [(1001, 1000), (0, 1000), (1000, 0), (u32::MAX, 1000)] {
            assert_eq!(check_peer(peer, own), Err(format!("not permitted for this user: {peer}")));
        }
    }
}
