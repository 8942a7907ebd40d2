//! Leave to use a server that asks for it (OAuth 2.1 as MCP has it). Takes the server's address, gives an
//! address for a person's browser and, once they agreed, tokens; later, fresh tokens for old ones.
//!
//! A public client on this machine: PKCE with S256, a redirect to a loopback port of our own, the resource
//! named in every request, and only https except to this machine.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::mcp::link::with_causes;
use crate::reach::is_local_name;

/// The largest document that is read from a server.
const MOST_BYTES: usize = 256 << 10;
/// The longest request that is read from a browser.
const MOST_REQUEST: usize = 8 << 10;
/// How long each exchange with a server may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Tokens that end sooner than this are renewed first, in seconds.
const EARLY: i64 = 60;

/// Leave that was given: what is kept between sessions, for its owner's eyes only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    pub access_token: String,
    /// What a fresh one is asked for with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
    /// When the access token ends, in seconds since 1970; none if that was not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Where fresh tokens are asked for.
    pub token_endpoint: String,
    /// Who we are there.
    pub client: Client,
    pub resource: String,
}

impl std::fmt::Debug for Leave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leave").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl Leave {
    /// Whether the access token has ended or is about to, at this time.
    pub fn is_over(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|end| end <= now + EARLY)
    }
}

/// Who we are to an authorization server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    pub id: String,
    /// What proves it, where the server insists on giving one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Why there is no leave.
#[derive(Debug, thiserror::Error)]
pub enum OauthError {
    /// An address that must not be used: it is not https, or not an address.
    #[error("not an https address (only this machine may do without): {0}")]
    Address(String),
    /// The server could not be asked: check the network and try again.
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// The server does not say how leave is given: use a header with a token instead.
    #[error(
        "the server does not say where to log in; give a token with --header \"Authorization: Bearer …\": {0}"
    )]
    NoMetadata(String),
    /// The server lacks something we do not do without.
    #[error("the authorization server cannot be used ({what}): {issuer}")]
    Unsuitable {
        issuer: String,
        /// What is missing or wrong.
        what: String,
    },
    #[error("the authorization server refused: {0}")]
    Refused(String),
    /// Nobody answered in the browser.
    #[error("no login in the browser within {0} seconds; try again")]
    Nobody(u64),
    /// The loopback port for the browser could not be used.
    #[error("cannot listen on this machine for the browser: {0}")]
    Listen(#[from] std::io::Error),
}

/// What an authorization server says about itself.
#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    registration_endpoint: Option<String>,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// A login under way: an address for the browser, and a port of this machine where it comes back.
pub struct Login {
    http: reqwest::Client,
    listener: TcpListener,
    metadata: Metadata,
    client: Client,
    redirect: String,
    verifier: String,
    state: String,
    resource: String,
    /// Where a person agrees.
    pub address: String,
}

impl Login {
    /// Finds out where leave is given, makes us known there, and opens a port for the browser's return.
    pub async fn begin(server: &str, scope: Option<&str>) -> Result<Self, OauthError> {
        let resource = address(server)?;
        let http = client()?;
        let metadata = discover(&http, &resource).await?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let redirect = format!("http://127.0.0.1:{}/callback", listener.local_addr()?.port());
        let client = register(&http, &metadata, &redirect).await?;
        let (verifier, state) = (random()?, random()?);
        let resource = resource.to_string();
        let mut url = address(&metadata.authorization_endpoint)?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &client.id)
            .append_pair("redirect_uri", &redirect)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256")
            .append_pair("state", &state)
            .append_pair("resource", &resource)
            .extend_pairs(scope.map(|scope| ("scope", scope)));
        let address = url.to_string();
        Ok(Self { http, listener, metadata, client, redirect, verifier, state, resource, address })
    }

    /// Waits for the browser's return, this long at most, and takes the tokens.
    pub async fn finish(self, patience: Duration, now: i64) -> Result<Leave, OauthError> {
        let nobody = |_| OauthError::Nobody(patience.as_secs());
        let code = tokio::time::timeout(patience, self.code()).await.map_err(nobody)??;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", &self.redirect),
            ("code_verifier", &self.verifier),
            ("resource", &self.resource),
        ];
        let endpoint = &self.metadata.token_endpoint;
        let said = ask_for_tokens(&self.http, endpoint, &self.client, &form).await?;
        said.into_leave(now, endpoint, &self.client, &self.resource, None)
    }

    /// The code that the browser brings. Whoever else knocks is turned away and the wait goes on.
    async fn code(&self) -> Result<String, OauthError> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            let knocked = tokio::time::timeout(Duration::from_secs(5), self.answer(stream)).await;
            if let Ok(Some(code)) = knocked {
                return code;
            }
        }
    }

    async fn answer(&self, mut stream: TcpStream) -> Option<Result<String, OauthError>> {
        let line = request_line(&mut stream).await?;
        let path = line.strip_prefix("GET ")?.split(' ').next()?;
        let url = Url::parse(&format!("http://127.0.0.1{path}")).ok()?;
        let result = (url.path() == "/callback").then(|| self.read(&url)).flatten();
        let (status, text) = match &result {
            Some(Ok(_)) => ("200 OK", "Decurion may use the server now. You can close this window."),
            Some(Err(_)) => ("400 Bad Request", "The login failed; the terminal says why."),
            None => ("404 Not Found", "Nothing is here."),
        };
        let head = "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close";
        let page = format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        // A browser that is gone has told us what we wanted.
        let _ = stream.write_all(page.as_bytes()).await;
        let _ = stream.shutdown().await;
        result
    }

    /// The code or the refusal in the browser's address; none if it is not the answer to our question.
    fn read(&self, url: &Url) -> Option<Result<String, OauthError>> {
        let value = |name: &str| {
            let found = url.query_pairs().find(|(key, _)| key == name);
            found.map(|(_, value)| value.into_owned())
        };
        if value("state").as_deref() != Some(&self.state) {
            return None;
        }
        let other_issuer = match value("iss") {
            Some(issuer) => issuer != self.metadata.issuer,
            None => self.metadata.authorization_response_iss_parameter_supported,
        };
        if other_issuer {
            return Some(Err(unsuitable(&self.metadata, "the answer came from another server")));
        }
        match (value("code"), value("error")) {
            (Some(code), None) => Some(Ok(code)),
            (_, error) => {
                let words = value("error_description").or(error).unwrap_or_else(|| "no code".to_owned());
                Some(Err(OauthError::Refused(short(&words))))
            }
        }
    }
}

/// Fresh tokens for old ones.
pub async fn renew(leave: &Leave, now: i64) -> Result<Leave, OauthError> {
    let Some(token) = &leave.refresh_token else {
        return Err(OauthError::Refused("the login has ended and cannot be renewed".to_owned()));
    };
    let form = [("grant_type", "refresh_token"), ("refresh_token", token), ("resource", &leave.resource)];
    let said = ask_for_tokens(&client()?, &leave.token_endpoint, &leave.client, &form).await?;
    said.into_leave(now, &leave.token_endpoint, &leave.client, &leave.resource, Some(token))
}

/// What a token endpoint says.
#[derive(Deserialize)]
struct Tokens {
    access_token: String,
    token_type: String,
    expires_in: Option<i64>,
    refresh_token: Option<String>,
}

impl Tokens {
    fn into_leave(
        self,
        now: i64,
        endpoint: &str,
        client: &Client,
        resource: &str,
        old: Option<&str>,
    ) -> Result<Leave, OauthError> {
        if !self.token_type.eq_ignore_ascii_case("bearer") {
            let words = format!("its tokens are not of the kind `Bearer`: {}", short(&self.token_type));
            return Err(OauthError::Refused(words));
        }
        Ok(Leave {
            access_token: self.access_token,
            // A server that gives no new one lets the old one hold.
            refresh_token: self.refresh_token.or_else(|| old.map(str::to_owned)),
            expires_at: self.expires_in.map(|seconds| now.saturating_add(seconds)),
            token_endpoint: endpoint.to_owned(),
            client: client.clone(),
            resource: resource.to_owned(),
        })
    }
}

async fn ask_for_tokens(
    http: &reqwest::Client,
    endpoint: &str,
    client: &Client,
    form: &[(&str, &str)],
) -> Result<Tokens, OauthError> {
    let url = address(endpoint)?;
    let mut body = Url::parse("form:").map_err(|_| OauthError::Address("form:".to_owned()))?;
    {
        let mut pairs = body.query_pairs_mut();
        pairs.extend_pairs(form).append_pair("client_id", &client.id);
        pairs.extend_pairs(client.secret.as_ref().map(|secret| ("client_secret", secret)));
    }
    let request = http
        .post(url.clone())
        .header("content-type", "application/x-www-form-urlencoded")
        .header("accept", "application/json")
        .body(body.query().unwrap_or_default().to_owned());
    let (status, value) = fetch(request, &url).await?;
    if status >= 400 {
        return Err(OauthError::Refused(refusal(status, &value)));
    }
    serde_json::from_value(value)
        .map_err(|error| OauthError::Refused(format!("its answer is no token: {error}")))
}

/// Where leave for a server is given: the server names its authorization server, or is one itself.
async fn discover(http: &reqwest::Client, server: &Url) -> Result<Metadata, OauthError> {
    let mut issuers = Vec::new();
    for url in well_known(server, "oauth-protected-resource") {
        let (status, value) = fetch(http.get(url.clone()), &url).await?;
        let named = value["authorization_servers"].as_array().cloned().unwrap_or_default();
        if status < 400 && !named.is_empty() {
            issuers = named.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            break;
        }
    }
    if issuers.is_empty() {
        issuers.push(server.origin().ascii_serialization());
    }
    for issuer in issuers {
        let at = address(&issuer)?;
        let places = ["oauth-authorization-server", "openid-configuration"];
        for url in places.into_iter().flat_map(|name| well_known(&at, name)) {
            let (status, value) = fetch(http.get(url.clone()), &url).await?;
            if status < 400
                && let Ok(metadata) = serde_json::from_value::<Metadata>(value)
            {
                return suitable(metadata, &issuer);
            }
        }
    }
    Err(OauthError::NoMetadata(shown(server)))
}

/// The places where a document about an address may be: with its path behind the name, before it, and without.
fn well_known(server: &Url, name: &str) -> Vec<Url> {
    let path = server.path().trim_end_matches('/');
    let with = |path: String| {
        let mut url = server.clone();
        url.set_path(&path);
        url.set_query(None);
        url.set_fragment(None);
        url
    };
    let mut places = vec![with(format!("/.well-known/{name}{path}"))];
    if !path.is_empty() {
        if name == "openid-configuration" {
            places.push(with(format!("{path}/.well-known/{name}")));
        }
        places.push(with(format!("/.well-known/{name}")));
    }
    places
}

/// Refuses a server that is not who it should be, or that would let a stolen code be used.
fn suitable(metadata: Metadata, issuer: &str) -> Result<Metadata, OauthError> {
    if metadata.issuer.trim_end_matches('/') != issuer.trim_end_matches('/') {
        return Err(unsuitable(&metadata, "it calls itself by another name"));
    }
    if !metadata.code_challenge_methods_supported.iter().any(|method| method == "S256") {
        return Err(unsuitable(&metadata, "it does not do PKCE with S256"));
    }
    Ok(metadata)
}

fn unsuitable(metadata: &Metadata, what: &str) -> OauthError {
    OauthError::Unsuitable { issuer: shown_text(&metadata.issuer), what: what.to_owned() }
}

async fn register(http: &reqwest::Client, metadata: &Metadata, redirect: &str) -> Result<Client, OauthError> {
    let Some(endpoint) = &metadata.registration_endpoint else {
        return Err(unsuitable(metadata, "it does not let programs make themselves known"));
    };
    let url = address(endpoint)?;
    let body = json!({
        "client_name": "Decurion",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    });
    let request = http.post(url.clone()).header("content-type", "application/json").body(body.to_string());
    let (status, value) = fetch(request, &url).await?;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    match text("client_id") {
        Some(id) if status < 400 => Ok(Client { id, secret: text("client_secret") }),
        _ => Err(OauthError::Refused(refusal(status, &value))),
    }
}

/// What a server answers, bounded; what is not JSON counts as nothing.
async fn fetch(request: reqwest::RequestBuilder, url: &Url) -> Result<(u16, Value), OauthError> {
    let unreachable = |reason: String| OauthError::Unreachable { url: shown(url), reason };
    let failed = |error: reqwest::Error| unreachable(with_causes(&error.without_url()));
    let mut response = request.timeout(PATIENCE).send().await.map_err(failed)?;
    let status = response.status().as_u16();
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > MOST_BYTES {
            return Err(unreachable("its answer is too long".to_owned()));
        }
    }
    Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
}

fn refusal(status: u16, value: &Value) -> String {
    let words = value["error_description"].as_str().or_else(|| value["error"].as_str());
    format!("{} (HTTP {status})", short(words.unwrap_or("no reason given")))
}

/// A stranger's words, fit for one line.
fn short(words: &str) -> String {
    words.chars().filter(|letter| !letter.is_control()).take(300).collect()
}

/// An address that secrets may be sent to.
fn address(text: &str) -> Result<Url, OauthError> {
    let url = Url::parse(text).map_err(|_| OauthError::Address(shown_text(text)))?;
    let host = url.host_str().unwrap_or_default();
    let here = is_local_name(host) || host == "127.0.0.1" || host == "[::1]";
    match url.scheme() {
        "https" => Ok(url),
        "http" if here => Ok(url),
        _ => Err(OauthError::Address(shown_text(text))),
    }
}

/// An address for people, without what may be a secret in it: user, password, query and fragment.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These fail for addresses that have no host, which have no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    short(url.as_str())
}

/// The same for what may be no address at all.
fn shown_text(text: &str) -> String {
    let place = text.split(['?', '#']).next().unwrap_or_default();
    match Url::parse(place) {
        Ok(url) if url.has_host() => shown(&url),
        // Whatever stands before the last `@` may be a password.
        _ => short(place.rsplit('@').next().unwrap_or_default()),
    }
}

/// A client that follows nobody elsewhere.
fn client() -> Result<reqwest::Client, OauthError> {
    // It fails only where a provider is installed already, and then that one is used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(10))
        .user_agent(concat!("decurion/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| OauthError::Unreachable { url: String::new(), reason: error.to_string() })
}

/// 256 bits that nobody can guess, as text.
fn random() -> Result<String, OauthError> {
    let mut bytes = [0_u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|error| OauthError::Listen(error.into()))?;
    }
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

async fn request_line(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    let mut buffer = [0; 1024];
    // A browser that is answered before it was heard out would show an error instead of the page.
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).await.ok()?;
        if count == 0 || read.len() + count > MOST_REQUEST {
            return None;
        }
        read.extend_from_slice(&buffer[..count]);
    }
    let end = read.iter().position(|byte| *byte == b'\r')?;
    String::from_utf8(read[..end].to_vec()).ok()
}
