//! HTTP with server-sent events, as servers spoke it before streamable HTTP. Takes the address of the stream,
//! gives a transport: what the server says comes as events, what we say is posted to the address that its
//! first event names.

use decurion_protocol::mcp::McpTransport;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::Sse;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::link::{Failure, FailureKind, reached};
use super::web;

/// What the server says, no event longer than [`web::MOST_BYTES`].
type Events = BoxStream<'static, Result<Sse, SseError>>;

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
    let mut events = web::events(web::pieces(response));
    let named = loop {
        match next(&mut events).await {
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
    while let Some((kind, data)) = next(&mut events).await {
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

/// The next event that says something: its kind and its data. None at the end of the stream, and where an event is too
/// long.
async fn next(events: &mut Events) -> Option<(String, String)> {
    loop {
        match events.next().await? {
            Ok(Sse { event, data: Some(data), .. }) if !data.is_empty() => {
                let kind = event.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "message".to_owned());
                return Some((kind, data));
            }
            Err(SseError::Body(_)) => return None,
            // A line that the format does not have, or an event without data.
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::web::WebError;
    use bytes::Bytes;
    use futures_util::stream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn in_pieces(text: &[u8], size: usize) -> Events {
        let pieces: Vec<_> = text.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        web::events(stream::iter(pieces))
    }

    #[tokio::test]
    async fn any_chunking_gives_the_same_events() {
        let text = "event: endpoint\r\ndata: /post?id=1\r\n\r\n: a comment\ndata:{\"a\":1}\n\nid: 5\n\nevent: x\ndata: one\ndata: two\n\n";
        let expected = [("endpoint", "/post?id=1"), ("message", "{\"a\":1}"), ("x", "one\ntwo")];
        for size in 1..text.len() {
            let mut stream = in_pieces(text.as_bytes(), size);
            let mut events = Vec::new();
            while let Some(event) = next(&mut stream).await {
                events.push(event);
            }
            let events: Vec<(&str, &str)> =
                events.iter().map(|(kind, data)| (kind.as_str(), data.as_str())).collect();
            assert_eq!(events, expected, "{size}");
        }
    }

    #[tokio::test]
    async fn a_line_that_is_none_ends_nothing() {
        let mut stream = in_pieces(b"what\n\ndata: one\n\n", 5);
        assert_eq!(next(&mut stream).await, Some(("message".to_owned(), "one".to_owned())));
    }

    #[tokio::test]
    async fn an_event_without_an_end_is_given_up() {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = taken.clone();
        let pieces = stream::iter(0..64).map(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, WebError>(Bytes::from(vec![b'x'; 1 << 20]))
        });
        assert_eq!(next(&mut web::events(pieces)).await, None);
        let taken = taken.load(Ordering::Relaxed);
        assert!((16..=18).contains(&taken), "{taken}");
    }
}
