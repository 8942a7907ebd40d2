//! The one HTTP client: takes a request and gives a response whose body is still coming. Sets time
//! limits, proxies and TLS once, and keeps secrets out of every text that leaves this crate.
//!
//! Connections without TLS do not pay for it: the client that knows certificates is made at the first
//! `https` address.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Body, Client, ClientBuilder, Url};

use crate::reply::{self, Response};
use crate::{Dialect, ModelError, ModelEvent, ModelRequest, RequestTag, Said, StallKind, UnreachableCause};

/// How long the list of a server's models may take.
const LIST_TIME: Duration = Duration::from_secs(20);

/// How connections are made.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// The longest time to get a connection.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// Whether proxies named by the environment are used.
    pub proxies: bool,
    /// Further certificates to trust, in PEM.
    pub extra_roots: Vec<Vec<u8>>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(90),
            proxies: true,
            extra_roots: Vec::new(),
        }
    }
}

/// The client, shared by all providers; clones are the same client.
#[derive(Clone, Default)]
pub struct HttpClient {
    inner: Arc<HttpState>,
}

#[derive(Default)]
struct HttpState {
    settings: HttpSettings,
    plain: OnceLock<Result<Client, ModelError>>,
    secure: OnceLock<Result<Client, ModelError>>,
    /// Set when a plain address turned out to need TLS after all, on the way to its proxy.
    plain_needs_secure: AtomicBool,
}

impl HttpClient {
    /// A client that has not done anything yet.
    pub fn new(settings: HttpSettings) -> Self {
        Self { inner: Arc::new(HttpState { settings, ..HttpState::default() }) }
    }

    fn client(&self, url: &Url) -> Result<Client, ModelError> {
        let inner = &self.inner;
        let secure = url.scheme() == "https" || inner.plain_needs_secure.load(Ordering::Relaxed);
        let slot = if secure { &inner.secure } else { &inner.plain };
        slot.get_or_init(|| if secure { inner.secure() } else { inner.plain() }).clone()
    }

    /// What it means that a request to this address got no response.
    fn not_sent(&self, url: &Url, error: &reqwest::Error) -> ModelError {
        let error = unreachable_or_reset(url, error);
        let needs_secure = matches!(error, ModelError::Unreachable { cause: UnreachableCause::Tls, .. });
        if needs_secure && url.scheme() == "http" {
            self.inner.plain_needs_secure.store(true, Ordering::Relaxed);
        }
        error
    }
}

impl HttpState {
    /// A client without trusted certificates: for plain addresses, and cheap to make.
    fn plain(&self) -> Result<Client, ModelError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| misconfigured(&error))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        self.builder().tls_backend_preconfigured(config).build().map_err(|error| misconfigured(&error))
    }

    fn secure(&self) -> Result<Client, ModelError> {
        // Another part of the program may have chosen already; then that choice holds.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = self.builder();
        for root in &self.settings.extra_roots {
            let certificates =
                reqwest::Certificate::from_pem_bundle(root).map_err(|error| misconfigured(&error))?;
            builder = builder.tls_certs_merge(certificates);
        }
        builder.build().map_err(|error| misconfigured(&error))
    }

    #[allow(clippy::disallowed_methods)] // this is the one place
    fn builder(&self) -> ClientBuilder {
        let builder = Client::builder()
            .user_agent(concat!("decurion/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.settings.connect_timeout)
            .pool_idle_timeout(self.settings.idle_timeout)
            .pool_max_idle_per_host(usize::MAX)
            .tcp_nodelay(true)
            // A silent provider may be thinking; one that is gone is noticed by this within a minute and a half.
            .tcp_keepalive(Duration::from_secs(30))
            .tcp_keepalive_interval(Duration::from_secs(15))
            .tcp_keepalive_retries(4)
            // A redirect would send the key to an address that is not configured.
            .redirect(reqwest::redirect::Policy::none())
            // Trying again is the gateway's.
            .retry(reqwest::retry::never())
            .http1_only();
        if self.settings.proxies { builder } else { builder.no_proxy() }
    }
}

fn misconfigured(error: &(dyn Error + 'static)) -> ModelError {
    ModelError::Misconfigured { detail: chain(error) }
}

/// One address with its headers.
pub(crate) struct Endpoint {
    http: HttpClient,
    url: Url,
    /// Where the list of models is.
    models: Url,
    headers: HeaderMap,
    redaction: Redaction,
}

impl Endpoint {
    pub fn new(
        http: HttpClient,
        url: &str,
        models: &str,
        mut headers: HeaderMap,
        secrets: Vec<ApiSecret>,
    ) -> Result<Self, ModelError> {
        let redaction = Redaction::new(secrets);
        let wrong = |reason: String| ModelError::Misconfigured { detail: redaction.clean(&reason, MAX_TEXT) };
        let parse =
            |url: &str| Url::parse(url).map_err(|error| wrong(format!("the address {url:?}: {error}")));
        let (url, models) = (parse(url)?, parse(models)?);
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(format!("the address is neither http nor https: {url}")));
        }
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("accept", HeaderValue::from_static("text/event-stream"));
        Ok(Self { http, url, models, headers, redaction })
    }

    /// Sends a request and reads its reply. Nothing happens before the stream is polled.
    pub fn stream(
        &self,
        dialect: Dialect,
        request: ModelRequest,
    ) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let (http, url, redaction) = (self.http.clone(), self.url.clone(), self.redaction.clone());
        let mut headers = self.headers.clone();
        tag_headers(&request.tag, &mut headers);
        let open = async move {
            let seed = seed(&request);
            match send(&http, url, headers, request).await {
                Ok(response) => reply::events(dialect, seed, redaction, response).await,
                Err(error) => {
                    let error = redaction.clean_error(error);
                    futures_util::stream::once(async { Err(error) }).boxed()
                }
            }
        };
        open.flatten_stream().boxed()
    }

    /// Asks the server for its models. Nothing happens before the future is polled.
    pub fn models(&self) -> BoxFuture<'static, Result<Vec<String>, ModelError>> {
        let (http, url, redaction) = (self.http.clone(), self.models.clone(), self.redaction.clone());
        let mut headers = self.headers.clone();
        headers.insert("accept", HeaderValue::from_static("application/json"));
        let asked = async move {
            let sending = http.client(&url)?.get(url.clone()).headers(headers).send();
            let response = sending.await.map_err(|error| http.not_sent(&url, &error))?;
            reply::models(received(response)).await
        };
        let late =
            |_| ModelError::Stalled { what: StallKind::FirstEvent, after: LIST_TIME, request_id: None };
        async move {
            let listed = tokio::time::timeout(LIST_TIME, asked).await.map_err(late).flatten();
            listed.map_err(|error| redaction.clean_error(error))
        }
        .boxed()
    }
}

async fn send(
    http: &HttpClient,
    url: Url,
    headers: HeaderMap,
    request: ModelRequest,
) -> Result<Response, ModelError> {
    let client = http.client(&url)?;
    let target = url.clone();
    let body = Body::wrap(request.body());
    let length = request.len();
    let sending = client.post(url).headers(headers).header("content-length", length).body(body).send();
    let response = sending.await.map_err(|error| http.not_sent(&target, &error))?;
    Ok(received(response))
}

fn received(response: reqwest::Response) -> Response {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = response.bytes_stream().map_err(|error| ModelError::reset(chain(&error))).boxed();
    Response { status, headers, body }
}

/// The headers by which a server can tell who asks: scripts and logs of local servers use them.
fn tag_headers(tag: &RequestTag, headers: &mut HeaderMap) {
    for (name, text) in [("x-decurion-agent", &tag.path), ("x-decurion-agent-type", &tag.agent)] {
        let printable: String =
            text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(512).collect();
        if let Ok(value) = HeaderValue::try_from(printable) {
            headers.insert(name, value);
        }
    }
}

/// The same for the same request; see [`reply::events`].
pub(crate) fn seed(request: &ModelRequest) -> u64 {
    let last = request.messages.last().map(|message| message.bytes.as_ref()).unwrap_or_default();
    let tail = &last[last.len().saturating_sub(4096)..];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in tail.iter().chain(&request.messages.len().to_le_bytes()).chain(request.tag.path.as_bytes()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// What a failure to get a response from this address means.
fn unreachable_or_reset(url: &Url, error: &reqwest::Error) -> ModelError {
    let detail = chain(error);
    if error.is_builder() {
        return ModelError::Misconfigured { detail };
    }
    let text = detail.to_lowercase();
    let cause = if error.is_dns() || text.contains("dns error") || text.contains("failed to lookup") {
        UnreachableCause::Dns
    } else if text.contains("proxy") || text.contains("tunnel") {
        UnreachableCause::Proxy
    } else if is_tls(error) {
        UnreachableCause::Tls
    } else if error.is_connect() || error.is_timeout() {
        UnreachableCause::Connect
    } else {
        return ModelError::reset(detail);
    };
    // What the libraries call their own layers says nothing to a person.
    let reason = detail.trim_start_matches("no connection: ").trim_start_matches("client error (Connect): ");
    let reason = match cause {
        UnreachableCause::Dns => reason.rsplit(": ").next().unwrap_or(reason),
        _ => reason,
    };
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    ModelError::Unreachable { cause, detail: format!("{host}{port}: {reason}") }
}

/// Whether TLS is among the causes; an I/O error hides what it wraps from its own chain.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>()
        || wrapped.is_some_and(|inner| is_tls(inner))
        || error.source().is_some_and(is_tls)
}

/// An error with its causes, without the address, which may hold a key.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let part = match error.downcast_ref::<reqwest::Error>() {
            Some(error) => reqwest_words(error).to_owned(),
            None => error.to_string(),
        };
        if !part.is_empty() && !text.ends_with(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}

fn reqwest_words(error: &reqwest::Error) -> &'static str {
    match () {
        () if error.is_builder() => "the request cannot be built",
        () if error.is_timeout() => "time-out",
        () if error.is_connect() => "no connection",
        () if error.is_body() || error.is_decode() => "the response broke off",
        () => "the request failed",
    }
}

/// A header's value, or an error that names the header and not the value.
pub(crate) fn header_value(name: &str, value: &str) -> Result<HeaderValue, ModelError> {
    HeaderValue::try_from(value).map_err(|_| ModelError::Misconfigured {
        detail: format!("the value of this header cannot be sent: {name}"),
    })
}

/// A key. It can be sent and compared, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiSecret(Arc<str>);

impl ApiSecret {
    /// Takes charge of a key; white space around it is a copying mistake.
    pub fn new(text: &str) -> Self {
        Self(text.trim().into())
    }

    pub(crate) fn header(&self, name: &str, prefix: &str) -> Result<HeaderValue, ModelError> {
        let mut value = header_value(name, &format!("{prefix}{}", self.0))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for ApiSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The longest text of an error.
const MAX_TEXT: usize = 2_000;

/// What must not be read in any text that leaves.
#[derive(Clone, Debug, Default)]
pub struct Redaction {
    secrets: Arc<[ApiSecret]>,
}

impl Redaction {
    /// These must not be read.
    pub fn new(secrets: Vec<ApiSecret>) -> Self {
        Self { secrets: secrets.into() }
    }

    /// The text without secrets, at most so many bytes of it.
    pub fn clean(&self, text: &str, length: usize) -> String {
        let mut text = text.to_owned();
        for ApiSecret(secret) in self.secrets.iter() {
            // A shorter one would blacken ordinary words.
            if secret.len() >= 6 {
                text = text.replace(secret.as_ref(), "[redacted]");
            }
        }
        if text.len() > length {
            let mut end = length;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push('…');
        }
        text
    }

    pub(crate) fn clean_error(&self, mut error: ModelError) -> ModelError {
        match &mut error {
            ModelError::Busy { said, .. }
            | ModelError::Impatient { said, .. }
            | ModelError::Failed { said, .. }
            | ModelError::TooLong { said, .. }
            | ModelError::Unauthorized { said, .. }
            | ModelError::ModelNotFound { said }
            | ModelError::Rejected { said, .. }
            | ModelError::Reset { said }
            | ModelError::Malformed { said } => self.clean_said(said),
            ModelError::Unreachable { detail, .. } | ModelError::Misconfigured { detail } => {
                *detail = self.clean(detail, MAX_TEXT);
            }
            ModelError::Stalled { .. } | ModelError::Empty { .. } => {}
        }
        error
    }

    fn clean_said(&self, said: &mut Said) {
        said.message = self.clean(&said.message, MAX_TEXT);
        said.kind = said.kind.take().map(|kind| self.clean(&kind, 100));
    }
}
