//! One connection to a server. Takes a server as decided, gives a running protocol over the pipes of a
//! process that `exec` started, over streamable HTTP, over old server-sent events, or with a server that lives in the
//! program that leads the session; or why there is none.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use decurion_exec::{Launch, LaunchError, Output, Process, Stdin};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::mcp::{McpServer, McpTransport};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use rmcp::service::{
    ClientInitializeError, Peer, RoleClient, RunningService, RunningServiceCancellationToken, ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, StreamableHttpClientTransportConfig, StreamableHttpError,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::McpHost;
use super::client::Client;
use super::hosted::HostedTransport;
use super::lines::Lines;
use super::metered::Metered;
use super::ring::Ring;
use super::sse::{self, PostError};
use super::web::{Web, WebError};
use crate::oauth::{self, OauthError};

/// How long a server that is told to end may take to do so by itself.
const GRACE: Duration = Duration::from_secs(2);
/// How long it may take to end when its input does.
pub(crate) const QUIET_END: Duration = Duration::from_secs(1);
/// How long its last words are waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Redirects within one address are followed this often.
const REDIRECTS: usize = 5;
/// A part of an address that is longer may be a key.
const LONGEST_WORD: usize = 20;
/// How much of a foreign error is shown.
const ERROR_CHARS: usize = 500;

/// How much longer than any limit of ours a host may be asked.
const SLACK: Duration = Duration::from_secs(1);

pub(crate) struct Connection {
    pub peer: Peer<RoleClient>,
    /// Done when the protocol is; gone then.
    running: Option<BoxFuture<'static, ()>>,
    end: RunningServiceCancellationToken,
    /// Fires when the server asks more than can be answered.
    flooded: CancellationToken,
}

/// The process behind a connection, where there is one. It is held apart from the connection, by whoever
/// connects, so that one that never answers is ended like any other, and its end waited for.
#[derive(Default)]
pub(crate) struct Program {
    process: Option<Process>,
    errors: Option<AbortOnDropHandle<()>>,
}

impl Connection {
    fn new(service: RunningService<RoleClient, Client>) -> Self {
        let (peer, end) = (service.peer().clone(), service.cancellation_token());
        let running: BoxFuture<'static, ()> = Box::pin(async move { drop(service.waiting().await) });
        Self { peer, running: Some(running), end, flooded: CancellationToken::new() }
    }

    /// Waits until the protocol has ended. Can be cancelled and called again.
    async fn ended(&mut self) {
        if let Some(running) = &mut self.running {
            running.await;
            self.running = None;
        }
    }

    /// Waits until the connection is gone; says why. Can be cancelled and called again.
    pub async fn gone(&mut self, program: &mut Program) -> String {
        let Some(process) = &mut program.process else {
            self.ended().await;
            return "the connection was closed".to_owned();
        };
        let flooded = self.flooded.clone();
        tokio::select! {
            biased;
            // Closing it in peace would wait for a server that reads nothing.
            () = flooded.cancelled() => "it asked more and more and did not read our answers".to_owned(),
            exit = process.wait() => format!("the program ended ({})", describe(exit)),
            () = self.ended() => match tokio::time::timeout(QUIET_END, process.wait()).await {
                Ok(exit) => format!("the program ended ({})", describe(exit)),
                Err(_) => "it closed its output".to_owned(),
            },
        }
    }

    /// Closes the protocol, and with it the input of the program. Bounded, whatever the server does.
    pub async fn close(self) {
        self.end.cancel();
        if let Some(running) = self.running {
            drop(tokio::time::timeout(QUIET_END, running).await);
        }
    }

    /// The same for one that is gone.
    pub fn forget(self) {
        self.end.cancel();
    }
}

impl Program {
    /// Waits for its end by itself, then asks for it, then forces it: it is gone afterwards.
    pub async fn end(&mut self, patience: Duration) {
        if let Some(mut process) = self.process.take()
            && tokio::time::timeout(patience, process.wait()).await.is_err()
        {
            process.stop(GRACE).await;
        }
        if let Some(errors) = self.errors.take() {
            // What it said last is read to its end, unless somebody else holds that open.
            drop(tokio::time::timeout(LAST_WORDS, errors).await);
        }
    }
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub text: String,
    pub kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// Trying again may help.
    Passing,
    Lasting,
    /// Somebody must log in.
    Login,
}

impl Failure {
    pub fn passing(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Passing }
    }

    fn lasting(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Lasting }
    }

    /// The server of this name wants somebody to log in.
    pub fn login(name: &str) -> Self {
        let text = log_in(name, "login required (HTTP 401)");
        Self { text, kind: FailureKind::Login }
    }
}

/// Which token a login is used with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Token {
    /// The one that is kept.
    #[default]
    Kept,
    /// A fresh one: the server refused the kept one.
    Fresh,
}

/// Connects. Dropping the future ends what was started.
pub(crate) async fn connect(
    server: &McpServer,
    host: &McpHost,
    client: Client,
    ring: &Arc<Ring>,
    program: &mut Program,
    token: Token,
) -> Result<Connection, Failure> {
    match &server.transport {
        McpTransport::Stdio { .. } => stdio(server, host, client, ring, program).await,
        McpTransport::Http { url, headers } => {
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
            config.custom_headers = header_map(&with_login(server, host, url, headers, token).await?)?;
            let transport = StreamableHttpClientTransport::with_client(Web(http()?), config);
            let service = rmcp::serve_client(client, transport)
                .await
                .map_err(|error| initialize_failure(server, &error))?;
            Ok(Connection::new(service))
        }
        McpTransport::Sse { url, headers } => {
            let headers = with_login(server, host, url, headers, token).await?;
            let headers: HeaderMap = header_map(&headers)?.into_iter().collect();
            let transport = sse::connect(http()?, url, headers, &server.transport).await?;
            let service = rmcp::serve_client(client, transport)
                .await
                .map_err(|error| initialize_failure(server, &error))?;
            Ok(Connection::new(service))
        }
        McpTransport::Host => {
            let leader = host.leader.clone();
            let leader =
                leader.ok_or_else(|| Failure::lasting("this session has no host that could serve it"))?;
            let limit = server.call_timeout.max(server.start_timeout).saturating_add(SLACK);
            let transport = HostedTransport::new(&server.name, leader, limit);
            let service = rmcp::serve_client(client, transport)
                .await
                .map_err(|error| initialize_failure(server, &error))?;
            Ok(Connection::new(service))
        }
    }
}

/// The headers of a server, with the leave that was given for it. Leave that is over is renewed first. A
/// declaration may name another address than when somebody logged in, through its variables: leave goes
/// nowhere but where it was given.
async fn with_login(
    server: &McpServer,
    host: &McpHost,
    url: &str,
    headers: &BTreeMap<String, String>,
    token: Token,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut headers = headers.clone();
    let is_given = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
    let logins = host.logins.as_ref().filter(|_| !is_given);
    let Some((logins, mut leave)) = logins.and_then(|logins| Some((logins, logins.load(&server.hash)?)))
    else {
        return Ok(headers);
    };
    if !reqwest::Url::parse(url).is_ok_and(|url| url.as_str() == leave.resource) {
        return Ok(headers);
    }
    if token == Token::Fresh || leave.is_over(logins.now()) {
        leave = oauth::renew(&leave, logins.now()).await.map_err(|error| match error {
            OauthError::Unreachable { .. } => Failure::passing(error.to_string()),
            error => Failure { text: log_in(&server.name, &error.to_string()), kind: FailureKind::Login },
        })?;
        // One that cannot be kept is asked for again next time.
        let _ = logins.keep(&server.hash, &leave);
    }
    headers.insert("Authorization".to_owned(), format!("Bearer {}", leave.access_token));
    Ok(headers)
}

/// What to do where a server wants somebody to log in.
fn log_in(name: &str, why: &str) -> String {
    format!("{why}; log in with `decurion mcp login {name}`, or give a token in its `headers`")
}

async fn stdio(
    server: &McpServer,
    host: &McpHost,
    client: Client,
    ring: &Arc<Ring>,
    program: &mut Program,
) -> Result<Connection, Failure> {
    let Some(guard) = &host.processes else {
        return Err(Failure::lasting("no processes can be started in this session"));
    };
    let launch = launch(server, host).ok_or_else(|| Failure::lasting("it has no command"))?;
    let launch = confine(server, host, launch).await.map_err(Failure::lasting)?;
    let mut process = guard.start(launch).await.map_err(|error| match error {
        LaunchError::NoProgram { .. }
        | LaunchError::NotExecutable { .. }
        | LaunchError::Unpassable { .. } => Failure::lasting(error.to_string()),
        error => Failure::passing(error.to_string()),
    })?;
    program.errors = process.stderr.take().map(|stream| {
        let ring = Arc::clone(ring);
        AbortOnDropHandle::new(tokio::spawn(async move { ring.drain(stream).await }))
    });
    let pipes = (process.stdout.take(), process.stdin.take());
    let process = program.process.insert(process);
    let (Some(output), Some(input)) = pipes else {
        return Err(Failure::passing("it was started without pipes"));
    };
    let flooded = CancellationToken::new();
    let transport = Metered::new(AsyncRwTransport::new(Lines::new(output), input), flooded.clone());
    match rmcp::serve_client(client, transport).await {
        Ok(service) => Ok(Connection { flooded, ..Connection::new(service) }),
        Err(error) => match tokio::time::timeout(QUIET_END, process.wait()).await {
            Ok(exit) => {
                Err(Failure::passing(format!("the program ended ({}) before it answered", describe(exit))))
            }
            Err(_) => Err(initialize_failure(server, &error)),
        },
    }
}

fn launch(server: &McpServer, host: &McpHost) -> Option<Launch> {
    let McpTransport::Stdio { command, args, env, cwd } = &server.transport else { return None };
    let mut variables: BTreeMap<_, _> = host.environment.iter().cloned().collect();
    variables.extend(env.iter().map(|(name, value)| (name.into(), value.into())));
    let cwd = cwd.as_ref().unwrap_or(&host.root);
    Some(Launch {
        stdin: Stdin::Piped,
        output: Output::Separate,
        ..Launch::new(command, cwd.as_std_path()).args(args).env(variables)
    })
}

/// Puts a program into its sandbox. Beside the runtime: it looks at the disk.
async fn confine(server: &McpServer, host: &McpHost, launch: Launch) -> Result<Launch, String> {
    let Some(sandbox) = host.sandbox.clone() else { return Ok(launch) };
    let server = server.clone();
    let confined = tokio::task::spawn_blocking(move || sandbox.confine(&server, launch)).await;
    confined.map_err(|error| error.to_string())?
}

/// How a program ended, in words.
pub(crate) fn describe(exit: decurion_exec::Exit) -> String {
    exit.to_string()
}

fn initialize_failure(server: &McpServer, error: &ClientInitializeError) -> Failure {
    if error.is_authorization_required() || wants_login(error) {
        return Failure::login(&server.name);
    }
    let text = match error {
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => {
            return Failure::lasting(bounded(&error.to_string()));
        }
        ClientInitializeError::ConnectionClosed(_) => {
            "it closed the connection while it was greeted".to_owned()
        }
        ClientInitializeError::TransportError { error, .. } => {
            transport_failure(&*error.error, &server.transport)
        }
        ClientInitializeError::JsonRpcError(error) => {
            format!("it refused the greeting: {} (code {})", error.message, error.code.0)
        }
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_)
        | ClientInitializeError::ConflictInitResponseId(..)
        | ClientInitializeError::UncorrelatedErrorResponse { .. } => {
            "it answered the greeting with something else; is it an MCP server?".to_owned()
        }
        error => with_causes(error),
    };
    Failure::passing(bounded(&text))
}

/// Why a message did not get through, without the names of our own types.
pub(crate) fn transport_failure(error: &(dyn Error + 'static), transport: &McpTransport) -> String {
    if let Some(PostError::Http(error)) = error.downcast_ref::<PostError>() {
        return reached(error, transport);
    }
    match error.downcast_ref::<StreamableHttpError<WebError>>() {
        Some(StreamableHttpError::Client(WebError::Request(error))) => reached(error, transport),
        Some(StreamableHttpError::Client(error)) => error.to_string(),
        Some(StreamableHttpError::UnexpectedServerResponse(text)) => format!("it answered otherwise: {text}"),
        Some(StreamableHttpError::UnexpectedContentType(kind)) => {
            format!("it answered with {}, which is no message", kind.as_deref().unwrap_or("no type"))
        }
        _ => with_causes(error),
    }
}

/// Why a request got no answer, in the same words.
pub(crate) fn service_failure(error: &ServiceError, transport: &McpTransport) -> String {
    bounded(&match error {
        ServiceError::TransportSend(error) => transport_failure(&*error.error, transport),
        ServiceError::McpError(error) => format!("{} (code {})", error.message, error.code.0),
        error => with_causes(error),
    })
}

/// Why an address gave no answer.
pub(crate) fn reached(error: &reqwest::Error, transport: &McpTransport) -> String {
    let place = match transport {
        McpTransport::Http { url, .. } | McpTransport::Sse { url, .. } => shown(url),
        McpTransport::Stdio { .. } | McpTransport::Host => "its address".to_owned(),
    };
    // The error itself may name the whole address; what caused it does not.
    let mut innermost = error.source();
    while let Some(cause) = innermost.and_then(Error::source) {
        innermost = Some(cause);
    }
    let is_refused = innermost
        .and_then(|cause| cause.downcast_ref::<std::io::Error>())
        .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    let why = innermost.filter(|_| !is_refused).map(|cause| format!(": {cause}")).unwrap_or_default();
    if error.is_connect() {
        format!("nothing answers at {place}{why}")
    } else if error.is_timeout() {
        format!("no answer in time from {place}")
    } else {
        format!("the connection to {place} broke off{why}")
    }
}

/// An address without what may be a secret in it: user, query, and parts of its path that are no words.
fn shown(url: &str) -> String {
    let Ok(url) = reqwest::Url::parse(url) else { return "its address".to_owned() };
    let part = |part: &str| if part.len() > LONGEST_WORD { "…".to_owned() } else { part.to_owned() };
    let path: Vec<String> = url.path_segments().into_iter().flatten().map(part).collect();
    format!("{}/{}", url.origin().ascii_serialization(), path.join("/"))
}

/// Whether an answer of HTTP 401 is what an error comes from.
pub(crate) fn wants_login(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<AuthRequiredError>()
            || matches!(error.downcast_ref::<PostError>(), Some(PostError::Status(401)))
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An error with what caused it: the outermost alone seldom says what to do.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

/// Enough of a text that somebody else wrote.
pub(crate) fn bounded(text: &str) -> String {
    let clean: String = text.chars().filter(|character| !character.is_control()).take(ERROR_CHARS).collect();
    clean
}

fn header_map(headers: &BTreeMap<String, String>) -> Result<HashMap<HeaderName, HeaderValue>, Failure> {
    let mut map = HashMap::new();
    for (name, value) in headers {
        let parsed = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
        let (Ok(name), Ok(mut value)) = parsed else {
            return Err(Failure::lasting(format!("this header cannot be sent: {name}")));
        };
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

/// The client for servers. Unlike that of the tools it may reach this machine: a person declared the address.
fn http() -> Result<reqwest::Client, Failure> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // It fails only where a provider is installed already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let made = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("decurion/", env!("CARGO_PKG_VERSION")))
        .referer(false)
        .redirect(reqwest::redirect::Policy::custom(same_place))
        .build()
        .map_err(|error| Failure::lasting(with_causes(&error)))?;
    Ok(CLIENT.get_or_init(|| made).clone())
}

/// Headers may be secrets, so they follow a redirect only to where they were meant for.
fn same_place(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let same = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    let keeps_method = matches!(attempt.status().as_u16(), 307 | 308);
    if same && keeps_method && attempt.previous().len() <= REDIRECTS {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn an_address_is_shown_without_what_may_be_secret() {
        for (url, expected) in [
            ("http://127.0.0.1:3999/mcp", "http://127.0.0.1:3999/mcp"),
            ("https://me:hunter2@a.example/mcp?key=hunter2#x", "https://a.example/mcp"),
            ("https://a.example/s/0123456789abcdef0123456789abcdef/mcp", "https://a.example/s/…/mcp"),
            ("https://a.example", "https://a.example/"),
            ("nonsense", "its address"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }
}
