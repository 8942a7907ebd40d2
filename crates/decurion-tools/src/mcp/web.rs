//! The HTTP of servers that speak the streamable protocol. Takes the protocol's messages, gives the server's
//! answers: none longer than [`MOST_BYTES`], and no error that names an address, whose query may be a secret.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

/// The longest answer, and the longest event of a stream.
pub(super) const MOST_BYTES: usize = 16 << 20;
/// How much of an answer that is no message is shown.
const MOST_SHOWN: usize = 200;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "text/event-stream, application/json";
const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";

/// A client whose answers are bounded.
#[derive(Clone)]
pub(super) struct Web(pub reqwest::Client);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebError {
    /// It was not reached, or broke off.
    #[error("{0}")]
    Request(reqwest::Error),
    /// It goes on and on.
    #[error("its answer is longer than {} MiB", MOST_BYTES >> 20)]
    TooLong,
}

type Failed = StreamableHttpError<WebError>;

impl From<reqwest::Error> for WebError {
    fn from(error: reqwest::Error) -> Self {
        Self::Request(error.without_url())
    }
}

fn failed(error: reqwest::Error) -> Failed {
    StreamableHttpError::Client(error.into())
}

fn odd(text: String) -> Failed {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(text))
}

impl Web {
    /// Sends a request with everything it carries. What wants a login is told apart, whatever it says about it.
    async fn send(
        request: reqwest::RequestBuilder,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<reqwest::Response, Failed> {
        let ours = |name: &&HeaderName| [ACCEPT.as_str(), SESSION, LAST_EVENT].contains(&name.as_str());
        if let Some(name) = headers.keys().find(ours) {
            return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
        }
        let mut request = request.headers(headers.into_iter().collect::<HeaderMap>());
        if let Some(session) = session {
            request = request.header(SESSION, session.as_ref());
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(failed)?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let header = response.headers().get(WWW_AUTHENTICATE);
            let header = header.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(header)));
        }
        Ok(response)
    }
}

impl StreamableHttpClient for Web {
    type Error = WebError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let has_session = session.is_some();
        let body = serde_json::to_vec(&message)?;
        let request = self.0.post(uri.as_ref()).header(ACCEPT, BOTH).header(CONTENT_TYPE, JSON).body(body);
        let response = Self::send(request, session, token, headers).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let kind = content_type(&response);
        if status.is_success() && kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(events(response), session));
        }
        let body = whole(response).await.map_err(StreamableHttpError::Client)?;
        // Whoever is not asked need not answer with anything that means something.
        if status.is_success() && !matches!(message, ClientJsonRpcMessage::Request(_)) {
            let said = serde_json::from_slice(&body);
            return Ok(said.map_or(StreamableHttpPostResponse::Accepted, |said| {
                StreamableHttpPostResponse::Json(said, session)
            }));
        }
        answer(status, &kind, &body).map(|said| StreamableHttpPostResponse::Json(said, session))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let response = Self::send(self.0.delete(uri.as_ref()), Some(session), token, headers).await?;
        match response.status() {
            status if status.is_success() || status == StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status => Err(odd(format!("HTTP {}", status.as_u16()))),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let mut request = self.0.get(uri.as_ref()).header(ACCEPT, BOTH);
        if let Some(id) = last_event {
            request = request.header(LAST_EVENT, id);
        }
        let response = Self::send(request, session, token, headers).await?;
        let kind = content_type(&response);
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(odd(format!("HTTP {}", status.as_u16()))),
            _ if !kind.starts_with(EVENTS) => {
                Err(StreamableHttpError::UnexpectedContentType(Some(shown(kind.as_bytes()))))
            }
            _ => Ok(events(response)),
        }
    }
}

fn content_type(response: &reqwest::Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(kind).to_ascii_lowercase()
}

/// The message in an answer to a request. Servers put errors of the protocol under any status.
fn answer(status: StatusCode, kind: &str, body: &[u8]) -> Result<ServerJsonRpcMessage, Failed> {
    let said = serde_json::from_slice::<ServerJsonRpcMessage>(body);
    let number = status.as_u16();
    match said {
        Ok(said @ ServerJsonRpcMessage::Error(_)) if status != StatusCode::FORBIDDEN => Ok(said),
        Ok(said) if status.is_success() => Ok(said),
        _ if !status.is_success() => Err(odd(format!("HTTP {number}: {}", shown(body)))),
        _ if !kind.starts_with(JSON) => {
            Err(StreamableHttpError::UnexpectedContentType(Some(shown(kind.as_bytes()))))
        }
        Err(error) => Err(odd(format!("its answer is no message ({error}): {}", shown(body)))),
        Ok(_) => Err(odd(format!("HTTP {number}"))),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_SHOWN)]).into_owned()
}

/// All of a body, unless it is too much.
async fn whole(mut response: reqwest::Response) -> Result<Vec<u8>, WebError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > MOST_BYTES {
            return Err(WebError::TooLong);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// The events of a body, until one is too long.
fn events(response: reqwest::Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut length = EventLength::default();
    let pieces = response.bytes_stream().map(move |piece| {
        let piece = piece?;
        if length.add(&piece) { Ok(piece) } else { Err(WebError::TooLong) }
    });
    let mut over = false;
    let pieces = pieces.take_while(move |piece| {
        let goes_on = !over;
        over = piece.is_err();
        std::future::ready(goes_on)
    });
    SseStream::from_bytes_stream(pieces).boxed()
}

/// How long the event is that is being read.
#[derive(Default)]
struct EventLength {
    bytes: usize,
    line: usize,
}

impl EventLength {
    /// Takes more; false if an event is longer than any should be.
    fn add(&mut self, piece: &[u8]) -> bool {
        for byte in piece.iter().filter(|byte| **byte != b'\r') {
            if *byte != b'\n' {
                self.line += 1;
            } else if std::mem::take(&mut self.line) == 0 {
                self.bytes = 0;
            }
            self.bytes += 1;
            if self.bytes > MOST_BYTES {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_bounded_and_a_stream_is_not() {
        let event = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\r\n\r\n"].concat();
        let mut length = EventLength::default();
        assert!((0..40).all(|_| length.add(&event)));
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        let taken = (0..40).take_while(|_| length.add(&line)).count();
        assert_eq!(taken, 15);
    }

    #[test]
    fn errors_of_the_protocol_are_answers_and_everything_else_says_its_status() {
        let error = r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no"}}"#;
        let result = r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#;
        let rows = [
            (200, result, "a message"),
            (200, error, "a message"),
            (400, error, "a message"),
            (403, error, "unexpected server response: HTTP 403: {"),
            (500, result, "unexpected server response: HTTP 500: {"),
            (500, "", "unexpected server response: HTTP 500: "),
            (200, "<html>", "unexpected server response: its answer is no message"),
        ];
        for (status, body, expected) in rows {
            let said = answer(StatusCode::from_u16(status).unwrap(), JSON, body.as_bytes());
            let said = said.map_or_else(|error| error.to_string(), |_| "a message".to_owned());
            assert!(said.starts_with(expected), "{status} {body}: {said}");
        }
    }
}
