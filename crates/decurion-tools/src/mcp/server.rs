//! One server: an actor that starts it, asks what it offers, notices when it is gone and starts it again, at
//! most five times in ten minutes. Gives its state to whoever watches, and calls its tools.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decurion_protocol::mcp::{
    Manifest, McpDetail, McpHealth, McpServer, McpStatus, McpTransport, OfferedTool,
};
use rmcp::model::{ClientRequest, ServerResult};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient, ServiceError};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::Client;
use super::link::{self, Connection, Failure, FailureKind, Program, Token};
use super::manifest::{self, MOST_OFFERED};
use super::ring::Ring;
use super::{McpHost, Notice, Sign, prompts};
use crate::ToolContext;

/// The first pause before a restart; each further one is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest, in first ones.
const LONGEST_PAUSE: u32 = 30;
/// How many restarts there may be within [`RESTART_WINDOW`].
const MOST_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_mins(10);
/// However often a server says that its lists changed, they are asked for this often at most.
const RELIST_PAUSE: Duration = Duration::from_secs(1);
/// How long the other side may take to be told that a call is not wanted any more.
const CANCEL_LIMIT: Duration = Duration::from_millis(500);
/// A server that is used for the first time may still be making its lists: what it adds so soon, before anything
/// was called, is part of its first offer.
const FIRST_OFFER: Duration = Duration::from_secs(5);
/// How many pages a list may have.
const MOST_PAGES: usize = 50;

/// A handle on a server. Holding it keeps nothing alive; a [`super::Lease`] does.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    server: McpServer,
    host: McpHost,
    client: Client,
    ring: Arc<Ring>,
    state: watch::Sender<State>,
    /// What was offered when it was approved or first used.
    approved: Mutex<Option<Arc<Manifest>>>,
    /// Whether any of its tools was called.
    called: AtomicBool,
    /// Tools whose change was put before whoever decides about calls.
    told: Mutex<HashSet<String>>,
    /// Fires when the server refuses the login that its connection was made with.
    expired: Notify,
    /// Fires when somebody wants it connected again.
    again: Notify,
    /// Those who tell it that a call is not wanted any more.
    telling: TaskTracker,
}

/// A request that the server works on. When whoever waits for its answer is gone, as at an interrupt, the server
/// is told all the same.
struct UnderWay<'a> {
    telling: &'a TaskTracker,
    handle: Option<RequestHandle<RoleClient>>,
}

impl UnderWay<'_> {
    async fn answer(&mut self) -> Result<ServerResult, ServiceError> {
        let Some(handle) = &mut self.handle else { return Err(ServiceError::TransportClosed) };
        let answer = (&mut handle.rx).await;
        self.handle = None;
        answer.unwrap_or(Err(ServiceError::TransportClosed))
    }

    /// Says that the answer is not wanted any more. A server that reads nothing must not keep us: it is told if
    /// it listens.
    fn stop(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let handle = self.handle.take();
        async move {
            if let Some(handle) = handle {
                let told = handle.cancel(Some("not wanted any more".to_owned()));
                drop(tokio::time::timeout(CANCEL_LIMIT, told).await);
            }
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.handle.is_some() && tokio::runtime::Handle::try_current().is_ok() {
            drop(self.telling.spawn(self.stop()));
        }
    }
}

/// How a server is doing.
#[derive(Clone)]
pub enum State {
    /// It is being started.
    Starting,
    Ready(Ready),
    /// It is gone, and will be started again soon.
    Resting {
        why: String,
    },
    /// It is given up.
    Disabled {
        /// Why, with what it wrote last.
        why: String,
        /// Whether it wants somebody to log in.
        login: bool,
    },
    /// Nobody uses it any more.
    Closed,
}

/// A connection that answers.
#[derive(Clone)]
pub struct Ready {
    peer: Peer<RoleClient>,
    pub manifest: Arc<Manifest>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Ready(ready) => write!(f, "ready with {} tools", ready.manifest.tools.len()),
            Self::Resting { why } => write!(f, "resting: {why}"),
            Self::Disabled { why, .. } => write!(f, "disabled: {why}"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// Why a request got no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The server is given up, or does not come up in time.
    #[error("{0}")]
    Unreachable(String),
    /// It went away while it worked: whether it did what was asked is not known.
    #[error("{0}")]
    Lost(String),
    /// It answered with an error.
    #[error("{0}")]
    Refused(String),
    /// It took too long.
    #[error("no answer within {0:?}; it was told to stop")]
    Late(Duration),
    /// The caller does not want it any more.
    #[error("interrupted; the server was told to stop")]
    Cancelled,
}

impl Server {
    /// Starts the actor. It ends when `close` fires; the returned future is done when its process is gone.
    pub(crate) fn start(
        server: McpServer,
        host: McpHost,
        close: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        // One of the host is the host's own, and is looked at anew each time.
        let is_hosted = server.transport == McpTransport::Host;
        let host = if is_hosted { McpHost { manifests: None, ..host } } else { host };
        let approved = host.manifests.as_ref().and_then(|kept| kept.load(&server.hash)).map(Arc::new);
        let shared = Arc::new(Shared {
            client: Client::new(&server.name, &host),
            ring: Arc::default(),
            state: watch::Sender::new(State::Starting),
            approved: Mutex::new(approved),
            called: AtomicBool::new(false),
            told: Mutex::default(),
            expired: Notify::new(),
            again: Notify::new(),
            telling: TaskTracker::new(),
            server,
            host,
        });
        // Whoever closes it waits for those that tell it something, however many they are.
        shared.telling.close();
        let actor = Actor {
            shared: Arc::clone(&shared),
            close,
            program: Program::default(),
            restarts: Restarts::default(),
            first_seen: None,
            was_ready: false,
            token: Token::Kept,
        };
        (Self { shared }, actor.live())
    }

    /// The server as declared.
    pub fn declared(&self) -> &McpServer {
        &self.shared.server
    }

    /// Whether both handles are on one server.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether somebody still uses it.
    pub fn is_open(&self) -> bool {
        !matches!(*self.shared.state.borrow(), State::Closed)
    }

    /// How it is doing, to be watched.
    pub fn state(&self) -> watch::Receiver<State> {
        self.shared.state.subscribe()
    }

    /// How it is doing, for a listing.
    pub fn status(&self) -> McpStatus {
        let (status, reason) = match &*self.shared.state.borrow() {
            State::Starting => (McpHealth::Pending, None),
            State::Ready(_) => (McpHealth::Connected, None),
            State::Resting { why } => (McpHealth::Pending, Some(why.clone())),
            State::Disabled { why, login: true } => (McpHealth::NeedsAuth, Some(why.clone())),
            State::Disabled { why, login: false } => (McpHealth::Failed, Some(why.clone())),
            State::Closed => (McpHealth::Disabled, None),
        };
        let server = &self.shared.server;
        McpStatus {
            name: server.name.clone(),
            status,
            source: server.source,
            reason,
            commands: prompts::commands(self),
        }
    }

    /// All that can be told of it.
    pub fn detail(&self) -> McpDetail {
        let calls_itself = match &*self.shared.state.borrow() {
            State::Ready(ready) => ready.peer.peer_info().and_then(|info| {
                let said = info.server_info.as_ref()?;
                Some((link::bounded(&said.name), link::bounded(&said.version)))
            }),
            _ => None,
        };
        McpDetail {
            status: self.status(),
            transport: Some(self.shared.server.transport.name().to_owned()),
            calls_itself,
            tools: self.tools(),
        }
    }

    /// Connects again, also where it was given up; earlier failures are forgotten. Waits for nothing: whoever looks
    /// at its state sees it starting from now on.
    pub fn restart(&self) {
        let is_up = self.shared.state.send_if_modified(|state| {
            let can = !matches!(state, State::Starting | State::Closed);
            if can {
                *state = State::Starting;
            }
            can
        });
        if is_up {
            // Kept for an actor that is busy with the end of the last one.
            self.shared.again.notify_one();
        }
    }

    /// Waits until its start has come to something, this time: it answers, or why it does not.
    pub async fn settled(&self) -> Result<(), String> {
        let mut state = self.state();
        let Ok(state) = state.wait_for(|state| !matches!(state, State::Starting)).await else {
            return Err("it is closed".to_owned());
        };
        match &*state {
            State::Ready(_) => Ok(()),
            State::Resting { why } | State::Disabled { why, .. } => Err(why.clone()),
            State::Starting | State::Closed => Err("it is closed".to_owned()),
        }
    }

    /// What it was approved with; none for a server that was never seen.
    pub fn approved(&self) -> Option<Arc<Manifest>> {
        lock(&self.shared.approved).clone()
    }

    /// What it offers now, if it answers.
    pub fn offered(&self) -> Option<Arc<Manifest>> {
        match &*self.shared.state.borrow() {
            State::Ready(ready) => Some(Arc::clone(&ready.manifest)),
            _ => None,
        }
    }

    /// The tools to show models: in words that were approved. Empty until it is known what it offers.
    pub fn tools(&self) -> Vec<OfferedTool> {
        match (self.approved(), self.offered()) {
            (Some(approved), Some(now)) => {
                now.tools.iter().map(|tool| manifest::shown(&approved, tool)).collect()
            }
            (Some(known), None) | (None, Some(known)) => known.tools.clone(),
            (None, None) => Vec::new(),
        }
    }

    /// How this tool differs from the approved one, as far as is known now. Whoever asks is about to decide
    /// about a call, so the change counts as told from here on.
    pub fn changed(&self, tool: &str) -> Option<String> {
        let text = self.change(tool)?;
        lock(&self.shared.told).insert(tool.to_owned());
        Some(text)
    }

    fn change(&self, tool: &str) -> Option<String> {
        let (approved, offered) = (self.approved()?, self.offered()?);
        let name = &self.shared.server.name;
        let text = manifest::change(&approved, offered.tool(tool)?)?;
        Some(format!("MCP server {name:?}: {text}\nTo accept it: decurion mcp approve {name}"))
    }

    /// The last lines it wrote to its standard error.
    pub fn stderr(&self) -> String {
        self.shared.ring.end()
    }

    /// Why a call failed, if that was surely its sandbox.
    pub(crate) fn explain(&self, result: &str) -> Option<String> {
        self.shared.explain(result, Sign::Sure)
    }

    /// Waits until it answers, for as long as it may take to start.
    pub async fn ready(&self, cancel: &CancellationToken) -> Result<Ready, RequestError> {
        let limit = self.shared.server.start_timeout;
        let mut state = self.state();
        let settled = state.wait_for(|state| match state {
            // One whose end nobody has noticed yet would take the call and lose it.
            State::Ready(ready) => !ready.peer.is_transport_closed(),
            State::Disabled { .. } | State::Closed => true,
            State::Starting | State::Resting { .. } => false,
        });
        let settled = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(RequestError::Cancelled),
            settled = tokio::time::timeout(limit, settled) => settled,
        };
        let name = &self.shared.server.name;
        match settled {
            Ok(Ok(state)) => match &*state {
                State::Ready(ready) => Ok(ready.clone()),
                State::Disabled { why, .. } => Err(RequestError::Unreachable(format!(
                    "MCP server {name:?} is switched off: {why}\nTo look into it: decurion mcp test {name}"
                ))),
                _ => Err(RequestError::Unreachable(format!("MCP server {name:?} is closed"))),
            },
            Ok(Err(_)) => Err(RequestError::Unreachable(format!("MCP server {name:?} is closed"))),
            Err(_) => Err(RequestError::Unreachable(format!(
                "MCP server {name:?} is not ready after {limit:?}{}",
                match &*self.shared.state.borrow() {
                    State::Resting { why } => format!(": {why}"),
                    _ => String::new(),
                }
            ))),
        }
    }

    /// Calls a tool, in the name of the call that this context is for.
    pub async fn call(&self, tool: &str, input: Value, cx: &ToolContext) -> Result<Value, RequestError> {
        let ready = self.ready(&cx.cancel).await?;
        if !ready.manifest.tools.iter().any(|offered| offered.name == tool) {
            let name = &self.shared.server.name;
            return Err(RequestError::Refused(format!(
                "MCP server {name:?} no longer offers this tool: {tool}"
            )));
        }
        // It may have come up only now, with something else than what was decided about.
        if !lock(&self.shared.told).contains(tool)
            && let Some(change) = self.changed(tool)
        {
            let text = format!("{change}\nThe call was not made. Calling again asks about it.");
            return Err(RequestError::Refused(text));
        }
        self.shared.called.store(true, Ordering::Relaxed);
        let mut params = json!({"name": tool, "arguments": input});
        if self.shared.is_hosted() {
            // Hosts know calls by the ids that models gave them.
            params["_meta"] = json!({"claudecode/toolUseId": cx.call});
        }
        self.request(&ready, "tools/call", params, &cx.cancel, Some(cx)).await
    }

    /// Sends any other request.
    pub async fn ask(
        &self,
        method: &'static str,
        params: Value,
        cancel: &CancellationToken,
    ) -> Result<Value, RequestError> {
        let ready = self.ready(cancel).await?;
        self.request(&ready, method, params, cancel, None).await
    }

    async fn request(
        &self,
        ready: &Ready,
        method: &'static str,
        params: Value,
        cancel: &CancellationToken,
        cx: Option<&ToolContext>,
    ) -> Result<Value, RequestError> {
        let (limit, client) = (self.shared.server.call_timeout, &self.shared.client);
        let calling = client.calling(cx.and_then(|cx| cx.elicit.as_ref()));
        let sent =
            ready.peer.send_cancellable_request(request(method, &params)?, PeerRequestOptions::no_options());
        let handle = sent.await.map_err(|error| self.failed(&error))?;
        let _following = cx.map(|cx| client.follow(handle.progress_token.clone(), cx.progress.clone()));
        let mut under_way = UnderWay { telling: &self.shared.telling, handle: Some(handle) };
        let error = tokio::select! {
            biased;
            answer = under_way.answer() => {
                return answer.map(|result| value_of(&result)).map_err(|error| self.failed(&error));
            }
            () = cancel.cancelled() => RequestError::Cancelled,
            () = calling.time_is_up(limit) => RequestError::Late(limit),
        };
        // What it asked a person is taken back first.
        drop(calling);
        under_way.stop().await;
        Err(error)
    }

    fn failed(&self, error: &ServiceError) -> RequestError {
        match error {
            ServiceError::McpError(error) => {
                RequestError::Refused(format!("{} (code {})", link::bounded(&error.message), error.code.0))
            }
            ServiceError::TransportSend(error) if link::wants_login(error) => {
                // Whoever calls next waits for the connection that is made now.
                self.shared.state.send_if_modified(|state| {
                    let is_ready = matches!(state, State::Ready(_));
                    if is_ready {
                        *state = State::Starting;
                    }
                    is_ready
                });
                self.shared.expired.notify_one();
                RequestError::Refused(
                    "the server no longer accepts the login (HTTP 401), so nothing was done; the login is \
                     being renewed: call again"
                        .to_owned(),
                )
            }
            error => {
                let text = "the server went away while it worked; whether it did what was asked is not known";
                let cause = match error {
                    ServiceError::TransportClosed => String::new(),
                    error => format!(" ({})", link::service_failure(error, &self.shared.server.transport)),
                };
                RequestError::Lost(self.shared.with_stderr(&format!("{text}{cause}")))
            }
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.shared.server, *self.shared.state.borrow())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn request(method: &'static str, params: &Value) -> Result<ClientRequest, RequestError> {
    serde_json::from_value(json!({"method": method, "params": params}))
        .map_err(|error| RequestError::Refused(format!("the input cannot be sent: {error}")))
}

/// Results are read leniently, as the server wrote them.
fn value_of(result: &ServerResult) -> Value {
    serde_json::to_value(result).unwrap_or_default()
}

struct Actor {
    shared: Arc<Shared>,
    close: CancellationToken,
    program: Program,
    restarts: Restarts,
    /// When it was seen for the first time ever, if that was now.
    first_seen: Option<Instant>,
    /// Whether it has answered before.
    was_ready: bool,
    /// Which token the next connection is made with.
    token: Token,
}

/// How a connection was over.
enum Served {
    Gone(Failure),
    /// The server refuses its login.
    Expired,
    /// Somebody wants it connected again.
    Again,
    /// Nobody wants it any more.
    Closed,
}

/// When a server was started again.
#[derive(Default)]
struct Restarts(Vec<Instant>);

impl Restarts {
    fn lately(&mut self, now: Instant) -> usize {
        self.0.retain(|restart| now.duration_since(*restart) < RESTART_WINDOW);
        self.0.len()
    }

    /// How many first pauses to wait before the next; none if there is none.
    fn pause(&mut self, now: Instant) -> Option<u32> {
        let tries = self.lately(now);
        (tries < MOST_RESTARTS).then(|| (1 << tries).min(LONGEST_PAUSE))
    }
}

impl Actor {
    async fn live(mut self) {
        while !self.close.is_cancelled() {
            self.shared.state.send_replace(State::Starting);
            // Whoever wanted it connected again until now has that.
            pin!(self.shared.again.notified()).enable();
            let limit = self.shared.server.start_timeout;
            let close = self.close.clone();
            let started = tokio::select! {
                biased;
                () = close.cancelled() => break,
                started = tokio::time::timeout(limit, self.start()) => started,
            };
            let failure = match started {
                Ok(Ok((connection, ready))) => match self.serve(connection, ready).await {
                    Served::Gone(failure) => failure,
                    Served::Expired => {
                        self.token = Token::Fresh;
                        continue;
                    }
                    Served::Again => {
                        self.program.end(link::QUIET_END).await;
                        self.restarts = Restarts::default();
                        continue;
                    }
                    Served::Closed => break,
                },
                Ok(Err(failure)) => failure,
                Err(_) => Failure::passing(format!("it did not say what it offers within {limit:?}")),
            };
            self.program.end(Duration::ZERO).await;
            if !self.rest(failure).await {
                break;
            }
        }
        self.program.end(link::QUIET_END).await;
        self.shared.state.send_replace(State::Closed);
    }

    async fn start(&mut self) -> Result<(Connection, Ready), Failure> {
        let shared = &self.shared;
        let client = shared.client.clone();
        let connection =
            link::connect(&shared.server, &shared.host, client, &shared.ring, &mut self.program, self.token)
                .await?;
        self.token = Token::Kept;
        let peer = connection.peer.clone();
        match list(&peer, &shared.server).await {
            Ok(manifest) => Ok((connection, Ready { peer, manifest: Arc::new(manifest) })),
            Err(failure) => {
                connection.close().await;
                Err(failure)
            }
        }
    }

    /// Watches over a connection until it is over.
    async fn serve(&mut self, mut connection: Connection, mut ready: Ready) -> Served {
        self.publish(&ready);
        self.was_ready = true;
        let (shared, close) = (Arc::clone(&self.shared), self.close.clone());
        loop {
            // Whatever the server does with a question of ours, its end and ours are seen meanwhile.
            let listing = async {
                shared.client.changed().await;
                tokio::time::sleep(RELIST_PAUSE).await;
                tokio::time::timeout(shared.server.start_timeout, list(&ready.peer, &shared.server)).await
            };
            let listed = tokio::select! {
                biased;
                () = close.cancelled() => {
                    shared.telling.wait().await;
                    connection.close().await;
                    return Served::Closed;
                }
                why = connection.gone(&mut self.program) => {
                    connection.forget();
                    return Served::Gone(Failure::passing(why));
                }
                () = shared.expired.notified() => {
                    connection.close().await;
                    return Served::Expired;
                }
                () = shared.again.notified() => {
                    connection.close().await;
                    return Served::Again;
                }
                listed = listing => listed,
            };
            // A list that does not come leaves what is known as it is.
            if let Ok(Ok(manifest)) = listed {
                ready.manifest = Arc::new(manifest);
                self.publish(&ready);
            }
        }
    }

    /// Makes known what it offers. The first time ever that becomes what it is held to.
    fn publish(&mut self, ready: &Ready) {
        let shared = Arc::clone(&self.shared);
        let hash = &shared.server.hash;
        // Somebody may have approved what it offers now since we looked.
        let kept = shared.host.manifests.as_ref().and_then(|kept| kept.load(hash));
        let mut approved = lock(&shared.approved);
        if let Some(kept) = kept {
            *approved = Some(Arc::new(kept));
        }
        let is_first = self.first_seen.is_some_and(|seen| seen.elapsed() < FIRST_OFFER)
            && !shared.called.load(Ordering::Relaxed);
        let is_first = is_first || shared.is_hosted();
        match approved.clone().filter(|_| !is_first) {
            None => {
                self.first_seen.get_or_insert_with(Instant::now);
                *approved = Some(Arc::clone(&ready.manifest));
                let keep = shared.host.manifests.as_ref().map(|kept| kept.keep(hash, &ready.manifest));
                if let Some(Err(error)) = keep {
                    self.notice(format!(
                        "what it offers cannot be kept, so changes will go unnoticed: {error}"
                    ));
                }
            }
            Some(before) => {
                let changes = manifest::changes(&before, &ready.manifest);
                if !changes.is_empty() && shared.offers_otherwise(&ready.manifest) {
                    let name = &shared.server.name;
                    self.notice(format!(
                        "it offers something else than what was approved ({} differences); each use of a changed \
                         tool is asked about. To see and accept it: decurion mcp approve {name}",
                        changes.len()
                    ));
                }
            }
        }
        drop(approved);
        shared.state.send_replace(State::Ready(ready.clone()));
    }

    /// Waits before the next start; false if there is none.
    async fn rest(&mut self, failure: Failure) -> bool {
        let shared = Arc::clone(&self.shared);
        let why = shared.with_stderr(&failure.text);
        // A host that failed once would fail again: it knows no more than before.
        let again = failure.kind == FailureKind::Passing && !shared.is_hosted();
        let pause = self.restarts.pause(Instant::now()).filter(|_| again);
        if let Some(pause) = pause {
            // Told once: whoever waits for its tools should know before the last of the tries.
            if !self.was_ready && self.restarts.0.is_empty() {
                self.notice(format!("failed to start, retrying: {why}"));
            }
            shared.state.send_replace(State::Resting { why });
            tokio::select! {
                biased;
                () = self.close.cancelled() => return false,
                () = shared.again.notified() => {
                    self.restarts = Restarts::default();
                    return true;
                }
                () = tokio::time::sleep(shared.host.pause.saturating_mul(pause)) => {}
            }
            self.restarts.0.push(Instant::now());
            return true;
        }
        let tries = self.restarts.lately(Instant::now());
        let why = if tries > 0 { format!("started {} times in vain; last: {why}", tries + 1) } else { why };
        self.notice(format!("disabled: {why}"));
        let login = failure.kind == FailureKind::Login;
        shared.state.send_replace(State::Disabled { why, login });
        tokio::select! {
            biased;
            () = self.close.cancelled() => false,
            () = shared.again.notified() => {
                self.restarts = Restarts::default();
                true
            }
        }
    }

    fn notice(&self, text: String) {
        let server = self.shared.server.name.clone();
        (self.shared.host.notice)(Notice { server, text });
    }
}

impl Shared {
    /// A failure with what the program wrote last, and what its sandbox has to do with it.
    fn with_stderr(&self, text: &str) -> String {
        let end = self.ring.end();
        let last = if end.is_empty() { String::new() } else { format!("\nIt wrote last:\n{end}") };
        let sandbox = self.explain(&end, Sign::Likely).map(|text| format!("\n{text}")).unwrap_or_default();
        format!("{text}{last}{sandbox}")
    }

    fn explain(&self, printed: &str, sign: Sign) -> Option<String> {
        let sandbox = self.host.sandbox.as_ref()?;
        let is_program = matches!(self.server.transport, McpTransport::Stdio { .. });
        if is_program { sandbox.explain(&self.server, printed, sign) } else { None }
    }

    fn is_hosted(&self) -> bool {
        self.server.transport == McpTransport::Host
    }

    /// Whether this is another offer than the one published last: the same change is told once.
    fn offers_otherwise(&self, manifest: &Manifest) -> bool {
        match &*self.state.borrow() {
            State::Ready(ready) => *ready.manifest != *manifest,
            _ => true,
        }
    }
}

/// Everything a server offers.
async fn list(peer: &Peer<RoleClient>, server: &McpServer) -> Result<Manifest, Failure> {
    let capabilities =
        peer.peer_info().map(|info| serde_json::to_value(&info.capabilities).unwrap_or_default());
    let can =
        |what: &str| capabilities.as_ref().is_some_and(|all| all.get(what).is_some_and(|one| !one.is_null()));
    let mut manifest = Manifest { resources: can("resources"), ..Manifest::default() };
    if can("tools") {
        let tools = pages(peer, server, "tools/list", "tools").await?;
        manifest.tools = tools.iter().filter_map(manifest::tool).collect();
    }
    if can("prompts") {
        let prompts = pages(peer, server, "prompts/list", "prompts").await?;
        manifest.prompts = prompts.iter().filter_map(manifest::prompt).collect();
    }
    Ok(manifest::settle(manifest))
}

async fn pages(
    peer: &Peer<RoleClient>,
    McpServer { name, transport, .. }: &McpServer,
    method: &'static str,
    key: &str,
) -> Result<Vec<Value>, Failure> {
    let mut items = Vec::new();
    let mut params = json!({});
    for _ in 0..MOST_PAGES {
        let request = request(method, &params).map_err(|error| Failure::passing(error.to_string()))?;
        let failed = |error: ServiceError| match &error {
            ServiceError::TransportSend(cause) if link::wants_login(cause) => Failure::login(name),
            error => Failure::passing(format!("{method}: {}", link::service_failure(error, transport))),
        };
        let page = value_of(&peer.send_request(request).await.map_err(failed)?);
        items.extend(page.get(key).and_then(Value::as_array).into_iter().flatten().cloned());
        match page.get("nextCursor").and_then(Value::as_str) {
            Some(cursor) if items.len() < MOST_OFFERED => params = json!({"cursor": cursor}),
            _ => break,
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn five_restarts_in_ten_minutes_each_after_a_longer_pause() {
        let mut restarts = Restarts::default();
        let mut pauses = Vec::new();
        while let Some(pause) = restarts.pause(Instant::now()) {
            pauses.push(pause);
            tokio::time::advance(FIRST_PAUSE * pause).await;
            restarts.0.push(Instant::now());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16]);
        tokio::time::advance(RESTART_WINDOW.checked_sub(Duration::from_secs(31)).unwrap()).await;
        assert_eq!(restarts.pause(Instant::now()), None);
        // The first of them is ten minutes ago: one more, after the longest pause there is.
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(restarts.pause(Instant::now()), Some(16));
        tokio::time::advance(RESTART_WINDOW).await;
        assert_eq!(restarts.pause(Instant::now()), Some(1));
    }
}
