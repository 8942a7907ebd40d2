//! A model on loopback that plays a script in both dialects. Takes a script and requests over HTTP, gives
//! the scripted replies byte by byte, faults included, and a record of what it was asked.
//!
//! It runs on a thread of its own with a clock of its own, so that a test with paused time can talk to it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use decurion_model::Dialect;
use decurion_model::script::{AnswerPlan, Ids, NoMatch, RequestView, Script, ScriptError, WireStep, render};
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

use crate::proc::canary;
use crate::validate::{ApiError, Validator};

mod hold;
mod load;
mod play;
mod rounds;

pub use hold::Mark;
pub use load::Load;
pub use rounds::Rounds;

use hold::Hold;
use load::{Gate, Tally};

use play::Player;

/// The largest body a provider takes.
const MOST_VALID: usize = 32 * 1024 * 1024;
/// The largest body anyone may send here, checked or not.
const MOST: usize = 512 * 1024 * 1024;

/// How a [`FakeModel`] behaves.
#[derive(Debug)]
pub struct Settings {
    pub answers: Answers,
    /// Whether requests are checked as a provider would.
    pub validate: bool,
    /// Whether requests are kept in memory, to be asked for with [`FakeModel::requests`].
    pub keep: bool,
    /// A file that gets one JSON line per request, written before the request is answered.
    pub log: Option<PathBuf>,
    /// A folder that gets each request's body as `<number>.json`.
    pub bodies: Option<PathBuf>,
    /// The first request of each agent below the root is held until so many of them wait.
    pub gate: Option<u32>,
    /// Each reply to an agent below the root is held until [`FakeModel::let_through`] gives it leave.
    pub hold: bool,
    /// The ids in its list of models.
    pub models: Vec<String>,
    /// The only key it accepts; none accepts every key, and no key.
    pub key: Option<String>,
}

/// Where answers come from.
#[derive(Debug)]
pub enum Answers {
    Script(Script),
    /// From a fixed pattern, cheap enough for benches.
    Rounds(Rounds),
}

impl Settings {
    /// Checks and keeps everything, writes nothing.
    pub fn new(answers: Answers) -> Self {
        Self {
            answers,
            validate: true,
            keep: true,
            log: None,
            bodies: None,
            gate: None,
            hold: false,
            models: vec!["test-model".to_owned()],
            key: None,
        }
    }
}

/// Why a fake model could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The script has to be mended.
    #[error("the script cannot be read: {0}")]
    Script(#[from] ScriptError),
    /// No port, no thread or no log file.
    #[error("the fake model could not start: {0}")]
    Io(#[from] io::Error),
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// From 1, in the order the requests were complete.
    pub number: u64,
    /// Since the server started.
    pub at: Duration,
    /// The dialect, if its path is that of one.
    pub dialect: Option<Dialect>,
    /// The path and query.
    pub path: String,
    /// The way of agents from the root, by the header `x-decurion-agent`.
    pub agent: String,
    /// The headers worth keeping, secrets taken out.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    pub answer: Answered,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// A scripted reply, by the rule on this line.
    Scripted {
        /// The line of the rule.
        line: u32,
    },
    /// A provider would not have taken it.
    Refused(ApiError),
    /// The script has no rule for it.
    NoMatch(String),
    /// Something other than a conversation: a list of models, a path that does not exist.
    Other(u16),
}

impl Recorded {
    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A running model. Dropping it ends it; no request may have held a secret of the test home.
#[derive(Debug)]
pub struct FakeModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    may_leak: AtomicBool,
}

impl FakeModel {
    /// Starts a model that plays this script, checks every request and keeps it.
    pub fn start(script: &str) -> Result<Self, StartError> {
        Self::with(Settings::new(Answers::Script(Script::parse(script)?)))
    }

    /// Starts a model with these settings on a free port of 127.0.0.1.
    pub fn with(settings: Settings) -> Result<Self, StartError> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(settings)?);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fake-model".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, for_thread) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread), may_leak: AtomicBool::new(false) })
    }

    /// `http://127.0.0.1:<port>`, the base of the Messages dialect.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base of the Chat Completions dialect.
    pub fn openai_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The requests so far, in order.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.lock().kept.clone()
    }

    /// Waits until there have been so many requests. Gives those there are when `limit` has passed.
    pub fn wait_for_requests(&self, count: usize, limit: Duration) -> Vec<Recorded> {
        let state = self.shared.lock();
        let waited = self.shared.arrived.wait_timeout_while(state, limit, |state| state.kept.len() < count);
        waited.unwrap_or_else(PoisonError::into_inner).0.kept.clone()
    }

    /// The requests that a provider or the script would not have taken: in most tests, none.
    pub fn problems(&self) -> Vec<String> {
        let describe = |one: &Recorded| match &one.answer {
            Answered::Refused(error) => Some(format!("request {}: {error}", one.number)),
            Answered::NoMatch(message) => Some(format!("request {}: {message}", one.number)),
            Answered::Scripted { .. } | Answered::Other(_) => None,
        };
        self.shared.lock().kept.iter().filter_map(describe).collect()
    }

    /// How many requests are under way, and how many ever were at once.
    pub fn load(&self) -> Load {
        self.shared.tally.load()
    }

    /// Lets so many more replies to the agent with this path go out, where replies are held.
    pub fn let_through(&self, path: &str, replies: u32) {
        if let Some(hold) = &self.shared.hold {
            hold.let_through(path, replies);
        }
    }

    /// The order in which requests began and their replies ended, where requests are kept.
    pub fn course(&self) -> Vec<Mark> {
        self.shared.tally.course()
    }

    /// For tests whose commands print secrets on purpose.
    pub fn let_secrets_leak(&self) {
        self.may_leak.store(true, Ordering::Relaxed);
    }

    /// Waits for the server to end, which it does only if its listener breaks.
    pub fn run_to_end(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if self.may_leak.load(Ordering::Relaxed) || std::thread::panicking() {
            return;
        }
        let leak = self.requests().into_iter().find(|request| canary::is_in(&request.body));
        assert!(leak.is_none(), "a secret of the test home is in a request: {leak:?}");
    }
}

/// What all connections have in common.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    started: Instant,
    state: Mutex<State>,
    arrived: Condvar,
    tally: Arc<Tally>,
    gate: Option<Gate>,
    hold: Option<Hold>,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    kept: Vec<Recorded>,
    validator: Validator,
    /// How often each request has come.
    tries: HashMap<u128, u32>,
    log: Option<File>,
}

impl Shared {
    fn new(settings: Settings) -> io::Result<Self> {
        let log = settings.log.as_deref().map(private_append).transpose()?;
        if let Some(folder) = &settings.bodies {
            std::fs::create_dir_all(folder)?;
        }
        let state = Mutex::new(State { log, ..State::default() });
        let gate = settings.gate.map(Gate::new);
        let hold = settings.hold.then(Hold::default);
        let tally = Arc::new(Tally::new(settings.keep));
        Ok(Self { settings, started: Instant::now(), state, arrived: Condvar::new(), tally, gate, hold })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a request, logs it and keeps it, before anyone sees an answer.
    fn record(&self, asked: &Asked, answer: &Answered) -> u64 {
        let mut state = self.lock();
        state.count += 1;
        let number = state.count;
        let at = self.started.elapsed();
        if let Some(log) = &mut state.log {
            let mut line = asked.log_line(number, at, answer).to_string();
            line.push('\n');
            // A log that cannot be written is a test that cannot be judged; it will miss this line.
            let _ = log.write_all(line.as_bytes());
        }
        if let Some(folder) = &self.settings.bodies {
            let _ = std::fs::write(folder.join(format!("{number:06}.json")), &asked.body);
        }
        if self.settings.keep {
            state.kept.push(Recorded {
                number,
                at,
                dialect: asked.dialect,
                path: asked.path.clone(),
                agent: asked.agent().to_owned(),
                headers: asked.headers_of_interest(),
                body: asked.body.clone(),
                answer: answer.clone(),
            });
        }
        self.arrived.notify_all();
        number
    }
}

fn private_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(serve(stream, Arc::clone(&shared)));
            }
            // Out of file handles: some connection will end and free one.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Each write of a reply is a segment of its own.
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(Notify::new());
    let for_service = Arc::clone(&reset);
    let service = service_fn(move |request| {
        let (shared, reset) = (Arc::clone(&shared), Arc::clone(&for_service));
        async move { Ok::<_, Infallible>(respond(request, &shared, reset).await) }
    });
    let mut connection = hyper::server::conn::http1::Builder::new()
        .timer(hyper_util::rt::TokioTimer::new())
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        _ = &mut connection => return,
        () = reset.notified() => {}
    }
    // Closing with unsent data thrown away is what makes the peer see a reset instead of an end.
    let stream = connection.into_parts().io.into_inner();
    let _ = stream.set_zero_linger();
}

type Body = Either<Full<Bytes>, Player>;

/// A request that has been read.
struct Asked {
    method: Method,
    path: String,
    dialect: Option<Dialect>,
    headers: HeaderMap,
    body: Bytes,
}

async fn respond(request: Request<Incoming>, shared: &Shared, reset: Arc<Notify>) -> Response<Body> {
    let asked = match Asked::read(request).await {
        Ok(asked) => asked,
        Err(asked) => {
            let error =
                ApiError { status: 413, kind: "request_too_large", message: "Request too large".into() };
            shared.record(&asked, &Answered::Refused(error.clone()));
            return refuse(&asked, &error);
        }
    };
    if let Some(error) = asked.wrong_key(shared.settings.key.as_deref()) {
        shared.record(&asked, &Answered::Refused(error.clone()));
        return refuse(&asked, &error);
    }
    let Some(dialect) = asked.dialect else { return other(&asked, shared) };
    let under_way = shared.tally.enter(asked.agent());
    match answer(&asked, dialect, shared) {
        Ok((plan, ids, is_opening)) => {
            shared.record(&asked, &Answered::Scripted { line: plan.line });
            let steps = render(&plan, dialect, &ids);
            if shared.settings.validate && dialect == Dialect::Anthropic {
                remember(&steps, shared);
            }
            if let Some(gate) = shared.gate.as_ref().filter(|_| is_opening) {
                gate.wait().await;
            }
            if let Some(hold) = shared.hold.as_ref().filter(|_| asked.agent().contains('/')) {
                hold.wait(asked.agent()).await;
            }
            play::start(steps, reset, under_way).await
        }
        Err(answered) => {
            shared.record(&asked, &answered);
            let error = match answered {
                Answered::Refused(error) => error,
                Answered::NoMatch(message) => ApiError::invalid(message),
                Answered::Scripted { .. } | Answered::Other(_) => ApiError::invalid("not a conversation"),
            };
            refuse(&asked, &error)
        }
    }
}

/// What to answer: the plan and the ids of the reply, and whether it is the first of an agent below the root;
/// or why not.
fn answer(asked: &Asked, dialect: Dialect, shared: &Shared) -> Result<(AnswerPlan, Ids, bool), Answered> {
    if shared.settings.validate {
        check(asked, dialect, shared).map_err(Answered::Refused)?;
    }
    let is_opening = |seen: &RequestView| seen.turn == 1 && seen.path.contains('/');
    match &shared.settings.answers {
        Answers::Rounds(rounds) => {
            let seen = Rounds::seen(asked.agent(), &asked.body);
            Ok((rounds.plan(&seen), Ids::of(&seen), is_opening(&seen)))
        }
        Answers::Script(script) => {
            let seen = see(asked, script, shared)
                .map_err(|error| Answered::Refused(ApiError::invalid(format!("not a request: {error}"))))?;
            match script.reply(&seen) {
                Ok(plan) => Ok((plan, Ids::of(&seen), is_opening(&seen))),
                Err(hole) => Err(Answered::NoMatch(no_match(&hole))),
            }
        }
    }
}

fn no_match(hole: &NoMatch) -> String {
    format!("script: {hole}")
}

fn see(asked: &Asked, script: &Script, shared: &Shared) -> Result<RequestView, serde_json::Error> {
    let kind = header(&asked.headers, "x-decurion-agent-type").unwrap_or("main");
    let mut seen = RequestView::from_body(kind, asked.agent(), &asked.body)?;
    seen.elapsed = shared.started.elapsed();
    if script.counts_tries() {
        let mut state = shared.lock();
        let tries = state.tries.entry(seen.seed()).or_default();
        *tries += 1;
        seen.attempt = *tries;
    }
    Ok(seen)
}

fn check(asked: &Asked, dialect: Dialect, shared: &Shared) -> Result<(), ApiError> {
    if asked.body.len() > MOST_VALID {
        let message = "Request exceeds the maximum size".into();
        return Err(ApiError { status: 413, kind: "request_too_large", message });
    }
    let body: Value = serde_json::from_slice(&asked.body)
        .map_err(|error| ApiError::invalid(format!("The request body is not valid JSON: {error}")))?;
    let state = shared.lock();
    match dialect {
        Dialect::Anthropic => state.validator.check_anthropic(&asked.headers, &body)?,
        Dialect::OpenAiChat => state.validator.check_openai(&asked.headers, &body)?,
    }
    if body.get("stream") == Some(&Value::Bool(true)) {
        return Ok(());
    }
    Err(ApiError::invalid("stream: this server answers only with streams"))
}

/// Keeps what a reply says, so that its reasoning can be compared when it comes back.
fn remember(steps: &[WireStep], shared: &Shared) {
    let mut stream = Vec::new();
    for step in steps {
        if let WireStep::Bytes(bytes) = step {
            stream.extend_from_slice(bytes);
        }
    }
    shared.lock().validator.remember_stream(&stream);
}

/// Paths that are no conversation.
fn other(asked: &Asked, shared: &Shared) -> Response<Body> {
    let path = asked.path.split('?').next().unwrap_or_default();
    let (status, body) = match (&asked.method, path) {
        // Looking does not count as a request.
        (&Method::GET, "/peak") => return json_response(200, &shared.tally.load().json()),
        (&Method::GET, "/v1/models" | "/models") => (200, models(&shared.settings.models)),
        (&Method::POST, "/v1/messages/count_tokens") => (200, json!({"input_tokens": asked.body.len() / 4})),
        _ => {
            let error =
                ApiError { status: 404, kind: "not_found_error", message: format!("no such path: {path}") };
            (404, error.anthropic_body("req_none"))
        }
    };
    shared.record(asked, &Answered::Other(status));
    json_response(status, &body)
}

fn models(ids: &[String]) -> Value {
    let model = |id: &String| {
        json!({"id": id, "type": "model", "object": "model", "display_name": id, "created": 0, "owned_by": "test",
               "created_at": "2026-01-01T00:00:00Z"})
    };
    json!({"object": "list", "data": ids.iter().map(model).collect::<Vec<_>>(), "has_more": false,
           "first_id": ids.first(), "last_id": ids.last()})
}

fn refuse(asked: &Asked, error: &ApiError) -> Response<Body> {
    let body = match asked.dialect {
        Some(Dialect::OpenAiChat) => error.openai_body(),
        _ => error.anthropic_body("req_refused"),
    };
    let mut response = json_response(error.status, &body);
    // The same request would be refused again.
    response.headers_mut().insert("x-should-retry", hyper::header::HeaderValue::from_static("false"));
    response
}

fn json_response(status: u16, body: &Value) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(Bytes::from(body.to_string()))));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    response
}

impl Asked {
    /// Reads the whole request; one that is too large is given back as an error, without its body.
    async fn read(request: Request<Incoming>) -> Result<Self, Self> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
        let dialect = match (&parts.method, parts.uri.path()) {
            (&Method::POST, "/v1/messages" | "/messages") => Some(Dialect::Anthropic),
            (&Method::POST, "/v1/chat/completions" | "/chat/completions") => Some(Dialect::OpenAiChat),
            _ => None,
        };
        let mut asked =
            Self { method: parts.method, path, dialect, headers: parts.headers, body: Bytes::new() };
        match Limited::new(body, MOST).collect().await {
            Ok(body) => {
                asked.body = body.to_bytes();
                Ok(asked)
            }
            Err(error) if error.is::<LengthLimitError>() => Err(asked),
            // The client went away in the middle; nobody will read the answer.
            Err(_) => Ok(asked),
        }
    }

    fn agent(&self) -> &str {
        header(&self.headers, "x-decurion-agent").unwrap_or("main")
    }

    /// The refusal of a key that is not the one that is accepted, in the words of either provider.
    fn wrong_key(&self, accepted: Option<&str>) -> Option<ApiError> {
        let accepted = accepted?;
        let key = header(&self.headers, "x-api-key");
        let token = header(&self.headers, "authorization").and_then(|value| value.strip_prefix("Bearer "));
        if key == Some(accepted) || token == Some(accepted) {
            return None;
        }
        Some(ApiError::unauthorized(match (key, token) {
            (Some(_), _) => "invalid x-api-key",
            (None, Some(_)) => "Incorrect API key provided",
            (None, None) => "You didn't provide an API key",
        }))
    }

    fn headers_of_interest(&self) -> Vec<(String, String)> {
        let kept = [
            "user-agent",
            "content-type",
            "anthropic-version",
            "anthropic-beta",
            "x-api-key",
            "authorization",
        ];
        self.headers
            .iter()
            .filter(|(name, _)| kept.contains(&name.as_str()) || name.as_str().starts_with("x-decurion"))
            .map(|(name, value)| {
                let secret = matches!(name.as_str(), "x-api-key" | "authorization");
                let value = if secret { "<redacted>" } else { value.to_str().unwrap_or("<not text>") };
                (name.as_str().to_owned(), value.to_owned())
            })
            .collect()
    }

    fn log_line(&self, number: u64, at: Duration, answer: &Answered) -> Value {
        let headers: serde_json::Map<String, Value> = self
            .headers_of_interest()
            .into_iter()
            .map(|(name, value)| (name, Value::String(value)))
            .collect();
        let (outcome, problem) = match answer {
            Answered::Scripted { line } => (format!("line {line}"), None),
            Answered::Refused(error) => ("refused".into(), Some(error.to_string())),
            Answered::NoMatch(message) => ("no match".into(), Some(message.clone())),
            Answered::Other(status) => (format!("status {status}"), None),
        };
        json!({
            "number": number,
            "ms": at.as_secs_f64() * 1000.0,
            "time": jiff::Timestamp::now().to_string(),
            "dialect": match self.dialect {
                Some(Dialect::Anthropic) => "anthropic",
                Some(Dialect::OpenAiChat) => "openai_chat",
                None => "none",
            },
            "path": self.path,
            "agent": self.agent(),
            "headers": headers,
            "bytes": self.body.len(),
            "sha256": sha256(&self.body),
            "answer": outcome,
            "problem": problem,
        })
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The hash of these bytes in lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
