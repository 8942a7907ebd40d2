//! A session that is only a stage: it replies to every command with the command itself, and says what it is
//! told to say.

use std::sync::{Arc, Mutex};

use camino::Utf8PathBuf;
use decurion_protocol::{
    Command, CommandReceiver, Envelope, Event, Reply, Request, RequestId, RunId, SessionId, commands,
};
use decurion_serve::socket::{Listener, SessionSocket, listen};
use futures_util::stream;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::broadcast;

pub const ID: &str = "11111111-2222-4333-8444-555555555555";

/// What was sent into the session: ids as the session saw them.
pub type Seen = Arc<Mutex<Vec<Request>>>;

pub struct Stage {
    pub folder: TempDir,
    pub path: Utf8PathBuf,
    pub door: SessionSocket,
    pub seen: Seen,
    events: broadcast::Sender<Arc<Envelope>>,
}

impl Stage {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("run").join(format!("{ID}.sock"))).unwrap();
        let (events, _) = broadcast::channel::<Arc<Envelope>>(1 << 16);
        let (commands, inbox) = commands::channel();
        let seen = Seen::default();
        tokio::spawn(echo(inbox, events.clone(), Arc::clone(&seen)));
        let source = events.clone();
        let door = SessionSocket {
            session: ID.parse().unwrap(),
            cwd: "/repo".into(),
            commands,
            events: Arc::new(move || {
                Box::pin(stream::unfold(source.subscribe(), |mut live| async move {
                    live.recv().await.ok().map(|envelope| (envelope, live))
                }))
            }),
            from_below: |_| false,
        };
        Self { folder, path, door, seen, events }
    }

    pub fn listen(&self) -> Listener {
        listen(&self.path, self.door.clone()).unwrap()
    }

    /// Says something to everyone.
    pub fn say(&self, text: &str) {
        let event = Event::Notice { level: "info".to_owned(), text: text.to_owned() };
        let _ = self.events.send(envelope(event));
    }

    pub fn session(&self) -> SessionId {
        self.door.session
    }
}

async fn echo(mut inbox: CommandReceiver, events: broadcast::Sender<Arc<Envelope>>, seen: Seen) {
    while let Some(request) = inbox.recv().await.map(|queued| queued.request) {
        seen.lock().unwrap().push(request.clone());
        let reply = Reply::Done { value: serde_json::to_value(&request.command).unwrap() };
        let _ = events.send(envelope(Event::Replied { request: request.id, reply }));
    }
}

fn envelope(event: Event) -> Arc<Envelope> {
    let run = RunId(Default::default());
    Arc::new(Envelope { seq: 7, at: Default::default(), agent: None, run, event })
}

/// A request that can be told from others.
pub fn request(id: u64, text: &str) -> Request {
    Request { id: RequestId(id), command: Command::SetModel { model: text.to_owned() } }
}

/// A client that writes bytes, not requests.
pub struct Raw(pub UnixStream);

impl Raw {
    pub async fn new(stage: &Stage) -> Self {
        Self(UnixStream::connect(&stage.path).await.unwrap())
    }

    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Everything until the other side ends it; a reset at the end is an end.
    pub async fn rest(mut self) -> Vec<String> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = self.0.read(&mut chunk).await {
            bytes.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    pub async fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            match self.0.read_u8().await {
                Ok(b'\n') | Err(_) => return String::from_utf8(line).unwrap(),
                Ok(byte) => line.push(byte),
            }
        }
    }
}
