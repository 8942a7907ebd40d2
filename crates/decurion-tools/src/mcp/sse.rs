//! HTTP with server-sent events, as servers spoke it before streamable HTTP. Takes the address of the stream,
//! gives a transport: what the server says comes as events, what we say is posted to the address that its
//! first event names.

use decurion_protocol::mcp::McpTransport;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::link::{Failure, FailureKind, reached};

const MOST_BYTES: usize = 16 << 20;

/// An open stream, and where to post.
pub(crate) struct SseTransport {
    client: reqwest::Client,
    endpoint: Url,
    headers: HeaderMap,
    messages: mpsc::Receiver<ServerJsonRpcMessage>,
    _reader: AbortOnDropHandle<()>,
}

/// Opens the stream and waits for the event that says where to post.
pub(crate) async fn connect(
    client: reqwest::Client,
    url: &str,
    headers: HeaderMap,
    transport: &McpTransport,
) -> Result<SseTransport, Failure> {
    let failed = |error: reqwest::Error| Failure::passing(reached(&error, transport));
    let request = client.get(url).headers(headers.clone()).header(ACCEPT, "text/event-stream");
    let response = request.send().await.map_err(failed)?;
    let base = response.url().clone();
    if response.status() == reqwest::StatusCode::UNAUTHORIZED {
        let text = "login required (HTTP 401): `decurion mcp login`, or a token in its `headers`".to_owned();
        return Err(Failure { text, kind: FailureKind::Login });
    }
    if !response.status().is_success() {
        return Err(Failure::passing(format!("it answered with HTTP {}", response.status().as_u16())));
    }
    let mut events = Events { response, parser: Parser::default() };
    let named = loop {
        match events.next().await {
            Some((kind, data)) if kind == "endpoint" => break data,
            Some(_) => {}
            None => return Err(Failure::passing("its stream ended before it said where to post")),
        }
    };
    let endpoint = base.join(named.trim()).ok().filter(|endpoint| endpoint.origin() == base.origin());
    let Some(endpoint) = endpoint else {
        return Err(Failure::passing("it wants messages posted to another place than its own"));
    };
    let (sender, messages) = mpsc::channel(64);
    let reader = AbortOnDropHandle::new(tokio::spawn(read(events, sender)));
    Ok(SseTransport { client, endpoint, headers, messages, _reader: reader })
}

async fn read(mut events: Events, messages: mpsc::Sender<ServerJsonRpcMessage>) {
    while let Some((kind, data)) = events.next().await {
        // What is not a message is skipped, as it would be on a pipe.
        if kind == "message"
            && let Ok(message) = serde_json::from_str(&data)
            && messages.send(message).await.is_err()
        {
            return;
        }
    }
}

/// Why a message was not posted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    #[error("the message could not be posted: {0}")]
    Http(#[from] reqwest::Error),
    #[error("the message was answered with HTTP {0}")]
    Status(u16),
}

impl Transport<RoleClient> for SseTransport {
    type Error = PostError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let body = serde_json::to_vec(&message).unwrap_or_default();
        let request = self.client.post(self.endpoint.clone()).headers(self.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        async move {
            let response = request.send().await.map_err(reqwest::Error::without_url)?;
            let status = response.status();
            if status.is_success() { Ok(()) } else { Err(PostError::Status(status.as_u16())) }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.messages.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.messages.close();
        Ok(())
    }
}

struct Events {
    response: reqwest::Response,
    parser: Parser,
}

impl Events {
    async fn next(&mut self) -> Option<(String, String)> {
        loop {
            if let Some(event) = self.parser.next() {
                return Some(event);
            }
            let piece = self.response.chunk().await.ok()??;
            if !self.parser.add(&piece) {
                return None;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Parser {
    bytes: Vec<u8>,
    /// How much of it was looked at.
    read: usize,
    kind: String,
    data: String,
}

impl Parser {
    /// Takes more; false if an event is longer than any should be.
    fn add(&mut self, piece: &[u8]) -> bool {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(piece);
        self.bytes.len() + self.data.len() <= MOST_BYTES + piece.len()
    }

    fn next(&mut self) -> Option<(String, String)> {
        while let Some(length) = memchr::memchr(b'\n', &self.bytes[self.read..]) {
            let line = &self.bytes[self.read..self.read + length];
            self.read += length + 1;
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
            if line.is_empty() {
                let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
                if !data.is_empty() {
                    let kind = if kind.is_empty() { "message".to_owned() } else { kind };
                    return Some((kind, data));
                }
            } else if let Some(value) = field(&line, "event") {
                value.clone_into(&mut self.kind);
            } else if let Some(value) = field(&line, "data") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
        }
        None
    }
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = line.strip_prefix(name)?.strip_prefix(':')?;
    Some(value.strip_prefix(' ').unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_chunking_gives_the_same_events() {
        let text = "event: endpoint\r\ndata: /post?id=1\r\n\r\n: a comment\ndata:{\"a\":1}\n\nid: 5\n\nevent: x\ndata: one\ndata: two\n\n";
        let expected = [("endpoint", "/post?id=1"), ("message", "{\"a\":1}"), ("x", "one\ntwo")];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                assert!(parser.add(piece));
                events.extend(std::iter::from_fn(|| parser.next()));
            }
            let events: Vec<(&str, &str)> =
                events.iter().map(|(kind, data)| (kind.as_str(), data.as_str())).collect();
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let taken = (0..64).take_while(|_| parser.add(&piece) && parser.next().is_none()).count();
        assert!((16..=18).contains(&taken), "{taken}");
    }
}
