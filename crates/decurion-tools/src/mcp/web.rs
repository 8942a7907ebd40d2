//! The HTTP of servers that speak the streamable protocol. Takes the protocol's messages, gives the server's
//! answers: none longer than [`MOST_BYTES`], and no error that names an address, whose query may be a secret.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
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
            return Ok(StreamableHttpPostResponse::Sse(events(pieces(response)), session));
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
            _ => Ok(events(pieces(response))),
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

/// A body as it comes.
pub(super) fn pieces(response: reqwest::Response) -> impl Stream<Item = Result<Bytes, WebError>> {
    response.bytes_stream().map(|piece| Ok(piece?))
}

/// The events of a body, until one is too long.
pub(super) fn events(
    pieces: impl Stream<Item = Result<Bytes, WebError>> + Send + 'static,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut length = EventLength::default();
    let pieces = pieces.map(move |piece| {
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
    use serde_json::json;
    use std::fmt::Debug;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::task::JoinHandle;

    /// A server that gives one answer; what it was asked is for whoever waits for it.
    async fn gives(answer: impl Into<Vec<u8>>) -> (Arc<str>, JoinHandle<String>) {
        let answer = answer.into();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("http://{}/mcp", listener.local_addr().unwrap());
        let asked = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
            while !read.windows(4).any(|end| end == b"\r\n\r\n") {
                let count = stream.read(&mut buffer).await.unwrap();
                read.extend_from_slice(&buffer[..count]);
            }
            // Whoever has had enough hangs up.
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
            String::from_utf8_lossy(&read).to_ascii_lowercase()
        });
        (address.into(), asked)
    }

    fn page(status: &str, kind: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n{body}").into_bytes()
    }

    fn web() -> Web {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Web(reqwest::Client::builder().no_proxy().build().unwrap())
    }

    fn message(asks: bool) -> ClientJsonRpcMessage {
        let message = if asks {
            json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        } else {
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
        };
        serde_json::from_value(message).unwrap()
    }

    fn session(id: &str) -> Option<Arc<str>> {
        (!id.is_empty()).then(|| Arc::from(id))
    }

    fn brief<T, E: Debug>(result: Result<T, E>, good: impl Fn(T) -> String) -> String {
        result.map_or_else(|error| format!("{error:?}").chars().take(60).collect(), good)
    }

    /// What becomes of a message that is answered so.
    async fn posted(answer: Vec<u8>, asks: bool, session_id: &str) -> String {
        let (address, asked) = gives(answer).await;
        let sent =
            web().post_message(address, message(asks), session(session_id), None, HashMap::new()).await;
        let said = brief(sent, |said| match said {
            StreamableHttpPostResponse::Accepted => "accepted".to_owned(),
            StreamableHttpPostResponse::Json(..) => "a message".to_owned(),
            StreamableHttpPostResponse::Sse(..) => "a stream".to_owned(),
            _ => "something else".to_owned(),
        });
        let _ = asked.await;
        said
    }

    #[tokio::test]
    async fn each_answer_to_a_message_is_taken_for_what_it_is() {
        let result = r#"{"jsonrpc": "2.0", "id": 1, "result": {}}"#;
        let login = "401 x\r\nwww-authenticate: Bearer realm=x";
        #[rustfmt::skip]
        let rows = [
            (true, "", page("200 OK", JSON, result), "a message"),
            (true, "", page("200 OK", EVENTS, "data: x"), "a stream"),
            (true, "", page("500 x", EVENTS, "data: x"), "UnexpectedServerResponse(\"HTTP 500"),
            (true, "", page("202 Accepted", JSON, ""), "accepted"),
            (true, "", page("204 No Content", JSON, ""), "accepted"),
            (false, "", page("200 OK", "text/html", "<p>thanks"), "accepted"),
            (true, "", page("200 OK", "text/html", "<p>thanks"), "UnexpectedContentType"),
            (false, "", page("500 x", "text/html", "<p>no"), "UnexpectedServerResponse(\"HTTP 500"),
            (true, "s1", page("404 x", JSON, "gone"), "SessionExpired"),
            (true, "", page("404 x", JSON, "gone"), "UnexpectedServerResponse(\"HTTP 404"),
            (true, "", page(login, JSON, ""), "AuthRequired(AuthRequiredError { www_authenticate_header: \"B"),
            (true, "", page("200 OK", JSON, &" ".repeat(MOST_BYTES + 1)), "Client(TooLong)"),
        ];
        for (asks, session, answer, expected) in rows {
            let start: String = String::from_utf8_lossy(&answer).chars().take(60).collect();
            let said = posted(answer, asks, session).await;
            assert!(said.starts_with(expected), "{start}: {said}");
        }
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_reached_is_not_shown() {
        let nowhere = Arc::from("http://127.0.0.1:1/?key=hunter2");
        let sent = web().post_message(nowhere, message(true), None, None, HashMap::new()).await;
        let error = sent.map(drop).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }

    #[tokio::test]
    async fn a_stream_ends_with_the_event_that_is_too_long() {
        let long = "x".repeat(MOST_BYTES + 1);
        let body = format!("data: one\n\ndata: {long}\n\ndata: three\n\n");
        let (address, _asked) = gives(page("200 OK", EVENTS, &body)).await;
        let stream = web().get_stream(address, None, None, None, HashMap::new()).await.unwrap();
        let events: Vec<_> = stream.take(10).collect().await;
        let data: Vec<_> = events.iter().filter_map(|event| event.as_ref().ok()?.data.clone()).collect();
        assert_eq!((data, events.last().map(Result::is_err)), (vec!["one".to_owned()], Some(true)));
        assert_eq!(events.len(), 2);
    }

    #[tokio::test]
    async fn a_stream_that_is_none_says_what_it_is() {
        let rows = [
            ("405 x", EVENTS, "ServerDoesNotSupportSse"),
            ("500 x", EVENTS, "UnexpectedServerResponse(\"HTTP 500"),
            ("200 OK", "text/html", "UnexpectedContentType(Some(\"text/html"),
            ("200 OK", EVENTS, "a stream"),
        ];
        for (status, kind, expected) in rows {
            let (address, asked) = gives(page(status, kind, "")).await;
            let last = Some("e7".to_owned());
            let stream = web().get_stream(address, session("s1"), last, None, HashMap::new()).await;
            let said = brief(stream, |_| "a stream".to_owned());
            assert!(said.starts_with(expected), "{status} {kind}: {said}");
            let asked = asked.await.unwrap();
            assert!(asked.contains("last-event-id: e7") && asked.contains("mcp-session-id: s1"), "{asked}");
        }
        for (status, is_fine) in [("200 OK", true), ("405 x", true), ("500 x", false)] {
            let (address, _asked) = gives(page(status, JSON, "")).await;
            let deleted = web().delete_session(address, Arc::from("s1"), None, HashMap::new()).await;
            assert_eq!(deleted.is_ok(), is_fine, "{status}");
        }
    }

    #[tokio::test]
    async fn a_request_carries_its_headers_and_none_that_are_the_protocols_own() {
        let headers = |name: &'static str| {
            HashMap::from([(HeaderName::from_static(name), HeaderValue::from_static("mine"))])
        };
        let (address, asked) = gives(page("202 x", JSON, "")).await;
        let token = Some("t1".to_owned());
        web().post_message(address, message(true), session("s1"), token, headers("x-own")).await.unwrap();
        let asked = asked.await.unwrap();
        for line in
            ["x-own: mine", "mcp-session-id: s1", "authorization: bearer t1", "accept: text/event-stream"]
        {
            assert!(asked.contains(line), "{line}: {asked}");
        }
        for name in ["accept", SESSION, LAST_EVENT] {
            let nowhere = Arc::from("http://127.0.0.1:1/");
            let sent = web().post_message(nowhere, message(true), None, None, headers(name)).await;
            let said = brief(sent.map(drop), |()| "sent".to_owned());
            assert!(said.starts_with("ReservedHeaderConflict"), "{name}: {said}");
        }
    }

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
