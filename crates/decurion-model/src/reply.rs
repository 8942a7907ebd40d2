//! From a response to events: takes status, headers and body of an HTTP response (real or scripted) and
//! gives [`ModelEvent`]s or the [`ModelError`] that it means. Provider-neutral; what differs is in the
//! dialects' decoders.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use decurion_protocol::{Block, CallId};
use futures_core::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

use crate::checked::id_with;
use crate::event::UNPARSED_INPUT;
use crate::http::Redaction;
use crate::sse::SseError;
use crate::{
    Accepted, Dialect, ModelError, ModelEvent, RateLimits, Said, UnreachableCause, anthropic, openai_chat,
};

/// The most of a body that is not a stream, and of raw bytes in the debug log.
const MAX_ERROR_BODY: usize = 64 * 1024;
/// The longest list of models that is read.
const MAX_LIST: usize = 4 * 1024 * 1024;
/// How long an error body may take: the status is known by then and matters more.
const ERROR_BODY_TIME: Duration = Duration::from_secs(10);
/// How long the end of a finished stream may take before its connection is given up.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// The most content of one reply.
pub(crate) const MAX_CONTENT: usize = 8 * 1024 * 1024;
/// The most bytes of one stream, keep-alives and all.
const MAX_STREAM: usize = 64 * 1024 * 1024;
/// The most of an unparsable input that is shown to the model again.
const MAX_RAW_INPUT: usize = 10_000;

/// A response as it comes from a connection or from a script.
pub struct Response {
    pub status: u16,
    pub headers: HeaderMap,
    /// The body, in pieces of any size.
    pub body: BoxStream<'static, Result<Bytes, ModelError>>,
}

/// The events of a response. `seed` makes ids where the provider gives none; it must be the same when the
/// same request is sent again.
pub async fn events(
    dialect: Dialect,
    seed: u64,
    redaction: Redaction,
    response: Response,
) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
    let request_id = request_id(&response.headers);
    if !is_stream(&response) {
        let error = failure(response, &redaction).await.with_request_id(request_id.as_deref());
        return stream::once(async { Err(error) }).boxed();
    }
    let accepted = Accepted { request_id: request_id.clone(), limits: rate_limits(&response.headers) };
    let reading = ReplyReading {
        body: Some(response.body),
        decoder: StreamDecoder::new(dialect, seed),
        queue: VecDeque::from([ModelEvent::Accepted(accepted)]),
        failed: None,
        redaction,
        request_id,
    };
    stream::unfold(reading, |mut reading| async move { Some((reading.next().await?, reading)) }).boxed()
}

struct ReplyReading {
    /// None once the reply is complete or has failed.
    body: Option<BoxStream<'static, Result<Bytes, ModelError>>>,
    decoder: StreamDecoder,
    queue: VecDeque<ModelEvent>,
    /// Why the reply failed, to be given after what came before that: it tells what was used.
    failed: Option<ModelError>,
    redaction: Redaction,
    request_id: Option<String>,
}

impl ReplyReading {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(self.identified(event)));
            }
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            let body = self.body.as_mut()?;
            let result = match body.next().await {
                Some(Ok(chunk)) => {
                    let result = self.decoder.feed(&chunk, &mut self.queue);
                    if let Err(ModelError::Malformed { said }) = &result {
                        log_raw(&chunk, &said.message, &self.redaction);
                    }
                    result
                }
                Some(Err(error)) => Err(error),
                None => self.decoder.finish(&mut self.queue),
            };
            if let Err(error) = result {
                self.body = None;
                let error = self.redaction.clean_error(error);
                self.failed = Some(error.with_request_id(self.request_id.as_deref()));
                continue;
            }
            if self.queue.is_empty() && !self.decoder.is_complete() {
                return Some(Ok(ModelEvent::Alive));
            }
            if self.decoder.is_complete()
                && let Some(body) = self.body.take()
            {
                drain(body);
            }
        }
    }

    fn identified(&self, mut event: ModelEvent) -> ModelEvent {
        if let ModelEvent::Completed(reply) = &mut event
            && reply.request_id.is_none()
        {
            reply.request_id.clone_from(&self.request_id);
        }
        event
    }
}

/// Reads a finished stream to its end, so that its connection can carry the next request.
fn drain(mut body: BoxStream<'static, Result<Bytes, ModelError>>) {
    if let Some(None) = body.next().now_or_never() {
        return;
    }
    tokio::spawn(async move {
        let end = async {
            let mut left = MAX_ERROR_BODY;
            while let Some(Ok(chunk)) = body.next().await {
                left = match left.checked_sub(chunk.len()) {
                    Some(left) => left,
                    None => return,
                };
            }
        };
        // Late is the same as broken: the connection is dropped.
        let _ = tokio::time::timeout(DRAIN_TIME, end).await;
    });
}

fn log_raw(chunk: &[u8], reason: &str, redaction: &Redaction) {
    let raw = String::from_utf8_lossy(&chunk[..chunk.len().min(MAX_ERROR_BODY)]);
    tracing::debug!(reason, raw = redaction.clean(&raw, MAX_ERROR_BODY), "a reply that makes no sense");
}

/// Whether there is a reply in it: a success whose type is not plainly something else.
fn is_stream(response: &Response) -> bool {
    let kind = header(&response.headers, "content-type").unwrap_or_default().to_ascii_lowercase();
    let other = ["text/html", "application/json", "application/xml", "text/xml", "image/"];
    (200..300).contains(&response.status) && !other.iter().any(|other| kind.starts_with(other))
}

/// The ids in a list of models, as both dialects and the servers that speak them give it.
pub(crate) async fn models(response: Response) -> Result<Vec<String>, ModelError> {
    let Response { status, headers, mut body } = response;
    let mut text: Vec<u8> = Vec::new();
    while let Some(chunk) = body.next().await {
        text.extend_from_slice(&chunk?);
        if text.len() > MAX_LIST {
            return Err(ModelError::malformed(format!("the list of models is longer than {MAX_LIST} bytes")));
        }
    }
    if !(200..300).contains(&status) {
        return Err(match classify(status, &headers, &text) {
            // No model was asked for: there is no list at this address.
            ModelError::ModelNotFound { said } => ModelError::Rejected { status, said },
            error => error,
        });
    }
    let list: Option<Value> = serde_json::from_slice(&text).ok();
    let data = list.as_ref().and_then(|list| list.get("data")?.as_array());
    let data = data.ok_or_else(|| {
        let said = read_error(&text).message;
        ModelError::malformed(format!(
            "a list of models was asked for and this came (status {status}): {said}"
        ))
    })?;
    Ok(data.iter().filter_map(|model| model.get("id")?.as_str()).map(str::to_owned).collect())
}

/// Reads what there is of a body that is no stream and says what it means.
async fn failure(response: Response, redaction: &Redaction) -> ModelError {
    let Response { status, headers, mut body } = response;
    let mut text: Vec<u8> = Vec::new();
    let whole = async {
        while let Some(Ok(chunk)) = body.next().await {
            let room = MAX_ERROR_BODY - text.len();
            text.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if text.len() == MAX_ERROR_BODY {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(ERROR_BODY_TIME, whole).await;
    redaction.clean_error(classify(status, &headers, &text))
}

/// What a status, headers and body mean.
pub fn classify(status: u16, headers: &HeaderMap, body: &[u8]) -> ModelError {
    let mut said = read_error(body);
    if said.request_id.is_none() {
        said.request_id = request_id(headers);
    }
    if (200..300).contains(&status) {
        return success_without_stream(status, body, said);
    }
    if (300..400).contains(&status) {
        let target = header(headers, "location").unwrap_or("an unnamed place");
        said.message = format!("the address redirects, which is not followed with a key, to {target}");
        return ModelError::Rejected { status, said };
    }
    let advice = Advice { after: retry_after(headers), should: header(headers, "x-should-retry") };
    by_status(status, said, &advice)
}

/// What the headers said about trying again.
#[derive(Default)]
struct Advice<'a> {
    after: Option<Duration>,
    should: Option<&'a str>,
}

fn by_status(status: u16, said: Said, advice: &Advice<'_>) -> ModelError {
    let retry = advice.should != Some("false");
    let after = advice.after;
    let kind = said.kind.as_deref().unwrap_or_default();
    match status {
        _ if kind == "insufficient_quota" => ModelError::Unauthorized { status, key: None, said },
        429 | 529 => ModelError::Busy { after, status, retry, said },
        _ if kind == "overloaded_error" => ModelError::Busy { after, status: 529, retry, said },
        413 => ModelError::TooLong { status, said },
        401..=403 => ModelError::Unauthorized { status, key: None, said },
        407 => ModelError::Unreachable { cause: UnreachableCause::Proxy, detail: said.to_string() },
        400 | 404 | 422 if is_model_unknown(&said) => ModelError::ModelNotFound { said },
        400 | 422 | 500 if is_too_long(&said) => ModelError::TooLong { status, said },
        408 | 409 | 425 | 500.. => ModelError::Failed { after, status, retry, said },
        _ if advice.should == Some("true") => ModelError::Failed { after, status, retry, said },
        _ => ModelError::Rejected { status, said },
    }
}

/// What an error inside a stream means.
pub(crate) fn stream_error(error: &Value) -> ModelError {
    let said = said_of(error);
    let code = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    let status = code.filter(|code| (400..600).contains(code)).unwrap_or_else(|| {
        match said.kind.as_deref().unwrap_or_default() {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "billing_error" => 402,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" | "rate_limit_exceeded" => 429,
            "timeout_error" => 504,
            "overloaded_error" => 529,
            _ => 500,
        }
    });
    by_status(status, said, &Advice::default())
}

fn success_without_stream(status: u16, body: &[u8], mut said: Said) -> ModelError {
    if let Ok(value) = serde_json::from_slice::<Value>(body)
        && let Some(error) = value.get("error").filter(|error| !error.is_null())
    {
        return stream_error(error);
    }
    said.message = format!("a stream was asked for and this came (status {status}): {}", said.message);
    ModelError::Malformed { said }
}

fn is_model_unknown(said: &Said) -> bool {
    let kind = said.kind.as_deref().unwrap_or_default();
    let text = said.message.to_lowercase();
    let absent = ["not found", "does not exist", "no such model", "not exist", "model:"];
    kind == "model_not_found"
        || (kind == "not_found_error" && text.contains("model"))
        || (text.contains("model") && absent.iter().any(|absent| text.contains(absent)) && !kind.is_empty())
}

/// Kinds by which providers name a conversation that is too long.
const TOO_LONG_KINDS: [&str; 5] = [
    "context_length_exceeded",
    "exceed_context_size_error",
    "model_max_prompt_tokens_exceeded",
    "request_too_large",
    "string_above_max_length",
];

/// What providers say where a conversation is too long, in lower case.
const TOO_LONG_WORDS: [&str; 24] = [
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input too long",
    "prompt exceeds max length",
    "maximum context length",
    "exceeded max context length",
    "context length exceeded",
    "exceed context limit",
    "exceeds the context",
    "exceed the context",
    "exceeded the context",
    "context window exceeds limit",
    "context window exceeded",
    "context window is full",
    "exceeds the available context size",
    "larger context length",
    "longer than the maximum model length",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "exceeded model token limit",
    "tokens + `max_new_tokens`",
    "reduce the length of the messages",
    "too many tokens",
];

/// Whether the provider says that the conversation does not fit. A limit of the output alone is something else: a
/// shorter conversation would not help.
fn is_too_long(said: &Said) -> bool {
    let kind = said.kind.as_deref().unwrap_or_default();
    let text = said.message.to_lowercase();
    let about_output =
        text.contains("max_tokens is too large") || text.contains("max_completion_tokens' is too large");
    TOO_LONG_KINDS.contains(&kind) || !about_output && TOO_LONG_WORDS.iter().any(|word| text.contains(word))
}

/// The error object of either dialect, or what else the text says.
fn read_error(body: &[u8]) -> Said {
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        let error = value.get("error").filter(|error| !error.is_null()).unwrap_or(&value);
        let mut said = said_of(error);
        said.request_id = value.get("request_id").and_then(Value::as_str).map(str::to_owned);
        return said;
    }
    Said::new(readable(&String::from_utf8_lossy(body)))
}

fn said_of(error: &Value) -> Said {
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    let message = match error {
        Value::String(text) => text.clone(),
        other => text("message").or_else(|| text("detail")).unwrap_or_else(|| other.to_string()),
    };
    // OpenAI's `code` is the finer word; Anthropic has only `type`.
    Said { message, kind: text("code").or_else(|| text("type")), request_id: None }
}

/// The words of a page, without its tags.
fn readable(text: &str) -> String {
    let title = text.find("<title>").and_then(|start| text[start + 7..].split('<').next());
    if let Some(title) = title.filter(|title| !title.trim().is_empty()) {
        return format!("a web page titled {:?}", title.trim());
    }
    let mut inside = false;
    let words: String = text
        .chars()
        .filter(|c| {
            let tag = *c == '<' || inside;
            inside = (inside || *c == '<') && *c != '>';
            !tag
        })
        .collect();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = header(headers, "request-id").or_else(|| header(headers, "x-request-id"))?;
    Some(id.chars().take(200).collect())
}

/// The longest wait that is taken from a header: beyond it a number is a mistake.
const LONGEST_WAIT: Duration = Duration::from_hours(168);

/// How long the provider asked us to wait: in milliseconds, seconds, or until a date, which is measured
/// against the response's own date because ours may be wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(milliseconds) = header(headers, "retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return seconds(milliseconds / 1000.0);
    }
    if let Some(text) = header(headers, "retry-after") {
        return match text.parse::<f64>() {
            Ok(number) => seconds(number),
            Err(_) => until(http_date(text)?, headers),
        };
    }
    rate_limits(headers).reset
}

fn seconds(number: f64) -> Option<Duration> {
    if number.is_nan() || number < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(number).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT))
}

fn until(then: Timestamp, headers: &HeaderMap) -> Option<Duration> {
    let now = http_date(header(headers, "date")?)?;
    let wait = Duration::try_from(then.duration_since(now)).unwrap_or_default();
    Some(wait.min(LONGEST_WAIT))
}

fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

/// What the headers say about limits that are used up, or the number of requests left.
fn rate_limits(headers: &HeaderMap) -> RateLimits {
    let mut limits = RateLimits::default();
    if header(headers, "anthropic-ratelimit-unified-status") == Some("rejected") {
        limits.remaining = Some(0);
        limits.reset = header(headers, "anthropic-ratelimit-unified-reset")
            .and_then(|text| text.parse().ok())
            .and_then(|second| Timestamp::from_second(second).ok())
            .and_then(|then| until(then, headers));
    }
    for kind in ["requests", "tokens", "input-tokens", "output-tokens"] {
        let remaining = header(headers, &format!("anthropic-ratelimit-{kind}-remaining"));
        let reset = header(headers, &format!("anthropic-ratelimit-{kind}-reset"))
            .and_then(|text| text.parse::<Timestamp>().ok())
            .and_then(|then| until(then, headers));
        note_limit(&mut limits, kind, remaining, reset);
    }
    for kind in ["requests", "tokens"] {
        let remaining = header(headers, &format!("x-ratelimit-remaining-{kind}"));
        let reset = header(headers, &format!("x-ratelimit-reset-{kind}")).and_then(spelled_duration);
        note_limit(&mut limits, kind, remaining, reset);
    }
    limits
}

fn note_limit(limits: &mut RateLimits, kind: &str, remaining: Option<&str>, reset: Option<Duration>) {
    let Some(remaining) = remaining.and_then(|text| text.parse::<u64>().ok()) else { return };
    if remaining == 0 {
        limits.remaining = Some(0);
        limits.reset = limits.reset.max(reset);
    } else if kind == "requests" && limits.remaining.is_none() {
        limits.remaining = Some(remaining);
    }
}

/// `1s`, `6m0s`, `20ms`, `1h2m3.5s`.
fn spelled_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..letters] {
                "ms" => 0.001,
                "s" | "" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    seconds(total)
}

/// Bytes of a stream in, events out. Pure: the whole of a dialect's reading without any connection.
pub struct StreamDecoder {
    inner: ReplyPhase,
    bytes: usize,
}

enum ReplyPhase {
    Anthropic(Box<anthropic::AnthropicDecoder>),
    OpenAiChat(Box<openai_chat::ChatDecoder>),
}

impl StreamDecoder {
    /// For one reply. About the seed see [`events`].
    pub fn new(dialect: Dialect, seed: u64) -> Self {
        let inner = match dialect {
            Dialect::Anthropic => ReplyPhase::Anthropic(Box::new(anthropic::AnthropicDecoder::new(seed))),
            Dialect::OpenAiChat => ReplyPhase::OpenAiChat(Box::new(openai_chat::ChatDecoder::new(seed))),
        };
        Self { inner, bytes: 0 }
    }

    /// Takes the next bytes, in any cut. After an error nothing more can be taken.
    pub fn feed(&mut self, chunk: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.bytes += chunk.len();
        if self.bytes > MAX_STREAM {
            return Err(ModelError::malformed(format!("the stream is longer than {MAX_STREAM} bytes")));
        }
        match &mut self.inner {
            ReplyPhase::Anthropic(decoder) => decoder.feed(chunk, out),
            ReplyPhase::OpenAiChat(decoder) => decoder.feed(chunk, out),
        }
    }

    /// The stream ended; an error if the reply did not.
    pub fn finish(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        match &mut self.inner {
            ReplyPhase::Anthropic(decoder) => decoder.finish(),
            ReplyPhase::OpenAiChat(decoder) => decoder.finish(out),
        }
    }

    /// Whether [`ModelEvent::Completed`] is out.
    pub fn is_complete(&self) -> bool {
        match &self.inner {
            ReplyPhase::Anthropic(decoder) => decoder.is_complete(),
            ReplyPhase::OpenAiChat(decoder) => decoder.is_complete(),
        }
    }
}

impl From<SseError> for ModelError {
    fn from(error: SseError) -> Self {
        Self::malformed(error.to_string())
    }
}

/// A reply's content may not grow without bound.
pub(crate) fn check_content(length: usize) -> Result<(), ModelError> {
    if length > MAX_CONTENT {
        return Err(ModelError::malformed(format!("the reply is longer than {MAX_CONTENT} bytes")));
    }
    Ok(())
}

/// A call from its parts: an input that is not an object is kept as text, for the model to see.
pub(crate) fn call(id: String, name: String, input: &str, given: Map<String, Value>) -> Block {
    let input = match (input.trim().is_empty(), serde_json::from_str(input)) {
        (true, _) => Value::Object(given),
        (false, Ok(Value::Object(members))) => Value::Object(members),
        (false, _) => {
            let raw: String = input.chars().take(MAX_RAW_INPUT).collect();
            json!({UNPARSED_INPUT: {"raw": raw, "len": input.len()}})
        }
    };
    Block::ToolUse { id: CallId(id), name, input }
}

/// A given id unless it is empty or was used in this message already, in which case it is changed.
pub(crate) fn unique_id(given: Option<String>, seed: u64, used: &mut Vec<String>) -> String {
    let place = used.len();
    let given = given.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{seed:016x}_{place}"));
    let mut id = id_with(&given, "");
    let mut again = 2;
    while used.contains(&id) {
        id = id_with(&given, &format!("_{again}"));
        again += 1;
    }
    used.push(id.clone());
    id
}
