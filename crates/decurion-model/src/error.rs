//! Why there is no reply. A variant exists because a caller acts differently on it; the text is for a
//! person and names the provider's request id where there is one. Secrets never get in here: texts from
//! outside pass [`crate::http::Redaction`] first and are cut to a readable length.

use std::fmt;
use std::time::Duration;

/// A failed attempt, or, from the gateway, the reason it gave up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// A limit or overload: wait, then ask again, without counting tries.
    #[error("the provider asked us to wait (status {status}): {said}")]
    Busy {
        /// How long, if it said so.
        after: Option<Duration>,
        /// 429, 529, or what an error event stood for.
        status: u16,
        /// False if the provider said not to try again.
        retry: bool,
        said: Said,
    },
    /// It refused for longer than we are to wait, or asks for longer than is left of that: a person decides.
    #[error(
        "{} refuses requests (status {status}), gave up after {}{}: {said}. Try again later, choose another model, or \
         wait longer with timeouts.patienceMs in the provider's settings",
        named(&.wait.provider), span(.wait.waited), more(.wait.asked)
    )]
    Impatient {
        /// That of the last refusal.
        status: u16,
        /// The provider, and how long.
        wait: Box<VainWait>,
        said: Said,
    },
    /// The provider failed: try again a bounded number of times.
    #[error("the provider failed (status {status}): {said}")]
    Failed {
        /// How long to wait, if it said so.
        after: Option<Duration>,
        /// 5xx, 408, 409, or what an error event stood for.
        status: u16,
        /// False if the provider said not to try again.
        retry: bool,
        said: Said,
    },
    /// The conversation no longer fits: shorten it, then ask again.
    #[error("the conversation is too long for the model: {said}")]
    TooLong {
        status: u16,
        /// What the provider said.
        said: Said,
    },
    /// The credentials are missing, wrong or not enough: a person must act.
    #[error("{}{}: {said}", refusal(*.status), .key.as_ref().map(|key| format!(" ({key})")).unwrap_or_default())]
    Unauthorized {
        /// 401, 402 or 403.
        status: u16,
        /// Where a key that is wrong comes from and how to change it, if that is known.
        key: Option<String>,
        /// What the provider said.
        said: Said,
    },
    /// There is no such model here: choose another.
    #[error("the provider does not know this model: {said}")]
    ModelNotFound {
        /// What the provider said.
        said: Said,
    },
    /// The request itself is wrong: repair it or stop; sending it again gives the same answer.
    #[error("the provider rejected the request (status {status}): {said}")]
    Rejected {
        status: u16,
        /// What the provider said.
        said: Said,
    },
    /// No connection: try again, and tell the person which part failed.
    #[error("{cause}: {detail}")]
    Unreachable {
        cause: UnreachableCause,
        /// What the system said.
        detail: String,
    },
    /// The connection ended before the reply did: try again.
    #[error("the connection ended before the reply was complete: {said}")]
    Reset {
        /// What the system said.
        said: Said,
    },
    /// Nothing came for too long: try again.
    #[error(
        "{what} within {} s{}; if the model needs longer, raise timeouts.{} in the provider's settings",
        .after.as_secs(), id_suffix(.request_id.as_deref()), .what.setting()
    )]
    Stalled {
        /// What did not come.
        what: StallKind,
        /// How long was waited.
        after: Duration,
        /// The provider's id of the request.
        request_id: Option<String>,
    },
    /// What came is not a reply: try again a few times.
    #[error("malformed response from the provider: {said}")]
    Malformed {
        /// What was wrong with it.
        said: Said,
    },
    /// The reply was complete and held nothing: try once more.
    #[error("the model's reply was empty{}", id_suffix(.request_id.as_deref()))]
    Empty {
        /// The provider's id of the request.
        request_id: Option<String>,
    },
    /// The settings cannot work: correct them.
    #[error("the provider's settings are wrong: {detail}")]
    Misconfigured { detail: String },
}

/// A wait that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VainWait {
    /// The provider's name; may be empty.
    pub provider: String,
    /// How long was waited.
    pub waited: Duration,
    /// How long it asks to wait from now on.
    pub asked: Duration,
}

/// What a provider said about a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// In words, redacted and bounded.
    pub message: String,
    /// Its own name for the kind of failure, e.g. `overloaded_error`.
    pub kind: Option<String>,
    /// Its id of the request.
    pub request_id: Option<String>,
}

/// Which part of getting a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnreachableCause {
    /// The name has no address.
    Dns,
    /// Nothing answers at the address.
    Connect,
    /// The encrypted connection could not be made, for example because of its certificate.
    Tls,
    /// The proxy did not let us through.
    Proxy,
}

/// What did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallKind {
    /// The first event of the reply.
    FirstEvent,
    /// Anything at all, in the middle of a reply.
    Sign,
    /// More content, while keep-alives or empty pieces came.
    Content,
    /// The end of the turn.
    Turn,
}

impl ModelError {
    /// Whether the provider did not take the request, or said that it does nothing with it.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Reset { .. } | Self::Stalled { .. } | Self::Malformed { .. } | Self::Empty { .. }
        )
    }

    /// The provider's id of the request, to quote in a report.
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Stalled { request_id, .. } | Self::Empty { request_id } => request_id.as_deref(),
            other => other.said()?.request_id.as_deref(),
        }
    }

    /// The HTTP status, if the failure has one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Busy { status, .. }
            | Self::Impatient { status, .. }
            | Self::Failed { status, .. }
            | Self::TooLong { status, .. }
            | Self::Unauthorized { status, .. }
            | Self::Rejected { status, .. } => Some(*status),
            Self::ModelNotFound { .. } => Some(404),
            _ => None,
        }
    }

    /// The word that programs reading our output know this failure by.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Busy { status: 529, .. } | Self::Impatient { status: 529, .. } => "overloaded",
            Self::Busy { .. } | Self::Impatient { .. } => "rate_limit",
            Self::TooLong { .. } | Self::Rejected { .. } => "invalid_request",
            Self::Unauthorized { status: 402, .. } => "billing_error",
            Self::Unauthorized { .. } => "authentication_failed",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::Failed { .. } | Self::Reset { .. } | Self::Stalled { .. } | Self::Unreachable { .. } => {
                "server_error"
            }
            Self::Malformed { .. } | Self::Empty { .. } | Self::Misconfigured { .. } => "unknown",
        }
    }

    /// The same with the source of the key, if it was the key that was refused.
    #[must_use]
    pub fn with_key_source(mut self, source: Option<&str>) -> Self {
        if let Self::Unauthorized { status: 401, key, .. } = &mut self {
            *key = source.map(str::to_owned);
        }
        self
    }

    /// What the provider said, where it said something.
    pub fn said(&self) -> Option<&Said> {
        match self {
            Self::Busy { said, .. }
            | Self::Impatient { said, .. }
            | Self::Failed { said, .. }
            | Self::TooLong { said, .. }
            | Self::Unauthorized { said, .. }
            | Self::ModelNotFound { said }
            | Self::Rejected { said, .. }
            | Self::Reset { said }
            | Self::Malformed { said } => Some(said),
            Self::Unreachable { .. }
            | Self::Stalled { .. }
            | Self::Empty { .. }
            | Self::Misconfigured { .. } => None,
        }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed { said: Said::new(message) }
    }

    pub(crate) fn reset(message: impl Into<String>) -> Self {
        Self::Reset { said: Said::new(message) }
    }

    /// Fills in the request id where the failure was found by code that did not know it.
    #[must_use]
    pub(crate) fn with_request_id(mut self, id: Option<&str>) -> Self {
        let slot = match &mut self {
            Self::Busy { said, .. }
            | Self::Impatient { said, .. }
            | Self::Failed { said, .. }
            | Self::TooLong { said, .. }
            | Self::Unauthorized { said, .. }
            | Self::ModelNotFound { said }
            | Self::Rejected { said, .. }
            | Self::Reset { said }
            | Self::Malformed { said } => &mut said.request_id,
            Self::Stalled { request_id, .. } | Self::Empty { request_id } => request_id,
            Self::Unreachable { .. } | Self::Misconfigured { .. } => return self,
        };
        if slot.is_none() {
            *slot = id.map(str::to_owned);
        }
        self
    }
}

impl Said {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), kind: None, request_id: None }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, self.message.is_empty()) {
            (Some(kind), true) => f.write_str(kind)?,
            (None, true) => f.write_str("no message")?,
            (_, false) => f.write_str(&self.message)?,
        }
        f.write_str(&id_suffix(self.request_id.as_deref()))
    }
}

impl fmt::Display for UnreachableCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "cannot resolve the provider's host name (are you online?)",
            Self::Connect => "cannot connect to the provider",
            Self::Tls => "no secure connection to the provider",
            Self::Proxy => "the proxy did not connect us to the provider",
        })
    }
}

impl StallKind {
    /// The setting that says how long is waited for it.
    fn setting(self) -> &'static str {
        match self {
            Self::FirstEvent => "firstEventMs",
            Self::Sign => "idleMs",
            Self::Content => "contentMs",
            Self::Turn => "turnMs",
        }
    }
}

impl fmt::Display for StallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstEvent => "the provider did not begin to answer",
            Self::Sign => "the provider sent nothing more",
            Self::Content => "the provider sent nothing of substance",
            Self::Turn => "the reply did not end",
        })
    }
}

/// What a refused request means, and what to check.
fn refusal(status: u16) -> String {
    match status {
        401 => "authentication failed (401), check your API key".to_owned(),
        402 => "payment required (402)".to_owned(),
        403 => "access denied (403), check what your API key may do".to_owned(),
        _ => format!("no credit or quota left ({status})"),
    }
}

fn named(provider: &str) -> String {
    if provider.is_empty() { "the provider".to_owned() } else { format!("the provider {provider:?}") }
}

/// A time for people, in its two largest units.
fn span(time: Duration) -> String {
    let seconds = (time + Duration::from_millis(500)).as_secs();
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, 0, _) => format!("{hours} h"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn more(asked: Duration) -> String {
    if asked.is_zero() { String::new() } else { format!(" and it asks to wait {} more", span(asked)) }
}

fn id_suffix(id: Option<&str>) -> String {
    id.map(|id| format!(" (request id {id})")).unwrap_or_default()
}
