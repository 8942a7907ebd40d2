//! Real connections to a server on this machine that speaks raw bytes: what is sent, what is kept alive,
//! and every fault below the stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use decurion_model::anthropic::{Anthropic, AnthropicKey, AnthropicSettings};
use decurion_model::http::{ApiSecret, HttpClient, HttpSettings};
use decurion_model::openai_chat::{OpenAiChat, OpenAiChatSettings};
use decurion_model::script::{Ids, RequestView, Script, WireStep, render};
use decurion_model::{
    Dialect, Gateway, GatewaySettings, ModelError, ModelEvent, ModelProvider, ModelRequest, StallKind,
    UnreachableCause,
};
use decurion_protocol::{Block, Message};
use expect_test::expect;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::stage::{all, kept, log, request, request_in, tagged, turn};

/// What the server does with a request.
#[derive(Clone)]
enum Answer {
    /// These bytes, each piece written on its own, then the connection stays.
    Keep(Vec<Vec<u8>>),
    /// These bytes, then it is closed.
    Close(Vec<u8>),
    /// These bytes, then it is reset.
    Reset(Vec<u8>),
    /// These bytes, then nothing.
    Hang(Vec<u8>),
}

struct Server {
    url: String,
    requests: mpsc::UnboundedReceiver<String>,
    /// One word for each connection that the other side closed while we were silent.
    closed: mpsc::UnboundedReceiver<()>,
    connections: Arc<AtomicUsize>,
}

async fn serve(answers: Vec<Answer>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (heard, requests) = mpsc::unbounded_channel();
    let (left, closed) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let next = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(converse(socket, answers.clone(), next.clone(), heard.clone(), left.clone()));
        }
    });
    Server { url, requests, closed, connections }
}

async fn converse(
    mut socket: TcpStream,
    answers: Vec<Answer>,
    next: Arc<AtomicUsize>,
    heard: mpsc::UnboundedSender<String>,
    left: mpsc::UnboundedSender<()>,
) {
    socket.set_nodelay(true).unwrap();
    while let Some(request) = read_request(&mut socket).await {
        heard.send(request).unwrap();
        let place = next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
        match &answers[place] {
            Answer::Keep(pieces) => {
                for piece in pieces {
                    socket.write_all(piece).await.unwrap();
                    socket.flush().await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
            Answer::Close(bytes) => return socket.write_all(bytes).await.unwrap(),
            Answer::Reset(bytes) => {
                socket.write_all(bytes).await.unwrap();
                socket.set_zero_linger().unwrap();
                return;
            }
            Answer::Hang(bytes) => {
                socket.write_all(bytes).await.unwrap();
                let mut rest = [0; 64];
                while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
                left.send(()).unwrap();
                return;
            }
        }
    }
}

async fn read_request(socket: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut part = vec![0; 16_384];
        let count = socket.read(&mut part).await.ok()?;
        if count == 0 {
            return None;
        }
        text.extend_from_slice(&part[..count]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(whole);
            }
        }
    }
}

fn http() -> HttpClient {
    HttpClient::new(HttpSettings { proxies: false, ..HttpSettings::default() })
}

const KEY: &str = "sk-very-secret-key";

fn anthropic(url: &str) -> Anthropic {
    let settings = AnthropicSettings {
        base_url: format!("{url}/"),
        key: AnthropicKey::ApiKey(ApiSecret::new(KEY)),
        betas: vec!["one".into(), "two".into()],
        headers: vec![("x-custom".into(), "yes".into())],
    };
    Anthropic::new(http(), settings).unwrap()
}

fn chat(url: &str) -> OpenAiChat {
    let settings = OpenAiChatSettings {
        base_url: format!("{url}/v1"),
        key: Some(ApiSecret::new(KEY)),
        headers: Vec::new(),
    };
    OpenAiChat::new(http(), settings).unwrap()
}

/// A scripted reply as a whole HTTP response, chunked like a real one.
fn scripted(script: &str, dialect: Dialect) -> Vec<Vec<u8>> {
    let seen = RequestView { model: "m".into(), turn: 1, ..RequestView::default() };
    let plan = Script::parse(script).unwrap().reply(&seen).unwrap();
    let steps = render(&plan, dialect, &Ids::of(&seen));
    let mut pieces = Vec::new();
    for step in steps {
        match step {
            WireStep::Head { status, headers } => {
                let mut head = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n");
                for (name, value) in headers {
                    head += &format!("{name}: {value}\r\n");
                }
                pieces.push((head + "\r\n").into_bytes());
            }
            WireStep::Bytes(bytes) => {
                let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
                chunk.extend_from_slice(&bytes);
                chunk.extend_from_slice(b"\r\n");
                pieces.push(chunk);
            }
            WireStep::End => pieces.push(b"0\r\n\r\n".to_vec()),
            other => panic!("{other:?}"),
        }
    }
    pieces
}

fn plain(status: &str, kind: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Close(
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes(),
    )
}

async fn error_of(answer: Answer) -> ModelError {
    let server = serve(vec![answer]).await;
    all(&anthropic(&server.url), request("x")).await.1.unwrap()
}

#[tokio::test]
async fn a_request_carries_its_headers_and_its_exact_body() {
    let mut server = serve(vec![Answer::Keep(scripted("when\n say \"hi\"", Dialect::Anthropic))]).await;
    let long = tagged("main/größe/2", &"x".repeat(300_000));
    let body = String::from_utf8(long.segments().concat()).unwrap();
    let (events, error) = all(&anthropic(&server.url), long).await;
    assert_eq!(error, None);
    assert!(matches!(events.last(), Some(ModelEvent::Completed(reply)) if reply.request_id.is_some()));
    let sent = server.requests.recv().await.unwrap();
    let (head, sent_body) = sent.split_once("\r\n\r\n").unwrap();
    assert_eq!(sent_body, body);
    let mut head: Vec<String> = head
        .lines()
        .filter(|line| !line.starts_with("host:"))
        .map(|line| line.replace(&body.len().to_string(), "LENGTH"))
        .collect();
    head[1..].sort();
    expect![[r"
        POST /v1/messages HTTP/1.1
        accept: text/event-stream
        anthropic-beta: one,two
        anthropic-version: 2023-06-01
        content-length: LENGTH
        content-type: application/json
        user-agent: decurion/0.0.0
        x-api-key: sk-very-secret-key
        x-custom: yes
        x-decurion-agent-type: worker
        x-decurion-agent: main/gr??e/2"]]
    .assert_eq(&head.join("\n"));
}

#[tokio::test]
async fn a_chat_request_goes_to_its_own_address() {
    let answer = Answer::Keep(scripted("when\n say \"hi\"\n call A {\"b\":1}", Dialect::OpenAiChat));
    let mut server = serve(vec![answer]).await;
    let (events, error) =
        all(&chat(&server.url), request_in(Dialect::OpenAiChat, &[Message::user("x")])).await;
    assert_eq!(error, None);
    assert!(log(&events).contains(r#"= {"type":"text","text":"hi"}"#));
    let sent = server.requests.recv().await.unwrap();
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("authorization: Bearer sk-very-secret-key\r\n"), "{sent}");
}

#[tokio::test]
async fn a_finished_reply_leaves_its_connection_for_the_next() {
    let server = serve(vec![Answer::Keep(scripted("when\n say \"hi\"", Dialect::Anthropic))]).await;
    let gateway = Gateway::new(Arc::new(anthropic(&server.url)), GatewaySettings::default());
    for round in 0..5 {
        let (events, error) = turn(&gateway, request(&format!("round {round}"))).await;
        assert_eq!((error, kept(&events).len()), (None, 1));
        // The last bytes of a reply come after its last event; the next request is later in any real turn.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_connection_is_kept_though_its_last_bytes_come_after_the_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go, mut gate) = mpsc::channel::<()>(1);
    let (told, mut written) = mpsc::channel::<()>(1);
    let mut pieces = scripted("when\n say \"hi\"", Dialect::Anthropic);
    let last = pieces.pop().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        // Without this the kernel may hold the last bytes back until the first are acknowledged.
        socket.set_nodelay(true).unwrap();
        let mut requests = 0;
        while read_request(&mut socket).await.is_some() {
            requests += 1;
            socket.write_all(&pieces.concat()).await.unwrap();
            gate.recv().await;
            socket.write_all(&last).await.unwrap();
            told.send(()).await.unwrap();
        }
        requests
    });
    let gateway = Gateway::new(Arc::new(anthropic(&url)), GatewaySettings::default());
    for _ in 0..3 {
        // Nobody else accepts connections: a second one would get no answer.
        let reply = tokio::time::timeout(Duration::from_secs(20), turn(&gateway, request("x")));
        assert_eq!(reply.await.expect("the same connection").1, None);
        go.send(()).await.unwrap();
        written.recv().await;
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
    drop(gateway);
    assert_eq!(server.await.unwrap(), 3);
}

#[tokio::test]
async fn bytes_one_by_one_are_the_same_reply() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAiChat] {
        let script = "when\n think \"größer\"\n say \"🦀\"\n call A {\"b\":\"é\"}";
        let whole = serve(vec![Answer::Keep(scripted(script, dialect))]).await;
        let split = format!("{script}\n split every 1");
        let pieces = serve(vec![Answer::Keep(scripted(&split, dialect))]).await;
        let ask = |url: String| async move {
            let request = request_in(dialect, &[Message::user("x")]);
            match dialect {
                Dialect::Anthropic => all(&anthropic(&url), request).await,
                Dialect::OpenAiChat => all(&chat(&url), request).await,
            }
        };
        assert_eq!(ask(whole.url).await, ask(pieces.url).await);
    }
}

#[tokio::test]
async fn what_a_server_says_instead_of_a_reply() {
    let page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>";
    let error = error_of(plain("502 Bad Gateway", "text/html", page)).await;
    expect![[r#"the provider failed (status 502): a web page titled "502 Bad Gateway""#]]
        .assert_eq(&error.to_string());
    let error = error_of(plain(
        "200 OK",
        "text/html; charset=utf-8",
        "<html><body>Please <b>log in</b></body></html>",
    ))
    .await;
    assert!(matches!(error, ModelError::Malformed { .. }));
    expect!["malformed response from the provider: a stream was asked for and this came (status 200): Please log in"].assert_eq(&error.to_string());
    let error = error_of(plain(
        "200 OK",
        "application/json",
        r#"{"error":{"message":"Overloaded","type":"overloaded_error"}}"#,
    ))
    .await;
    assert!(matches!(error, ModelError::Busy { status: 529, .. }), "{error:?}");
    let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: empty"},"request_id":"req_9"}"#;
    let error = error_of(plain("400 Bad Request", "application/json", body)).await;
    expect!["the provider rejected the request (status 400): messages: empty (request id req_9)"]
        .assert_eq(&error.to_string());
    assert_eq!((error.request_id(), error.status()), (Some("req_9"), Some(400)));
    let body = r#"{"error":{"message":"This model's maximum context length is 8192 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
    assert!(matches!(error_of(plain("400 X", "application/json", body)).await, ModelError::TooLong { .. }));
    let body = r#"{"error":{"message":"model \"qwen\" not found, try pulling it first","type":"api_error","param":null,"code":null}}"#;
    assert!(matches!(
        error_of(plain("404 X", "application/json", body)).await,
        ModelError::ModelNotFound { .. }
    ));
    let body = r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    assert!(matches!(
        error_of(plain("429 X", "application/json", body)).await,
        ModelError::Unauthorized { .. }
    ));
    assert!(matches!(
        error_of(plain("404 X", "text/plain", "404 page not found")).await,
        ModelError::Rejected { .. }
    ));
    // A 302 is the one that a client would follow with a request of another kind.
    let moved = Answer::Close(
        b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".to_vec(),
    );
    expect!["the provider rejected the request (status 302): the address redirects, which is not followed with a key, to http://127.0.0.1:1/"].assert_eq(&error_of(moved).await.to_string());
}

#[tokio::test]
async fn a_key_is_never_in_an_error() {
    let body =
        format!(r#"{{"error":{{"type":"authentication_error","message":"invalid x-api-key: {KEY}"}}}}"#);
    let error = error_of(plain("401 X", "application/json", &body)).await;
    expect!["authentication failed (401), check your API key: invalid x-api-key: [redacted]"]
        .assert_eq(&error.to_string());
    assert!(!format!("{error:?} {:?}", ApiSecret::new(KEY)).contains(KEY));
    let page = error_of(plain("500 X", "text/plain", &format!("{} {KEY}", "long ".repeat(10_000)))).await;
    assert!(page.to_string().len() < 2_200, "{}", page.to_string().len());
    let wrong = AnthropicSettings {
        base_url: "http://x".into(),
        key: AnthropicKey::ApiKey(ApiSecret::new("bad\nkey")),
        betas: Vec::new(),
        headers: Vec::new(),
    };
    let error = Anthropic::new(http(), wrong).err().unwrap();
    expect!["the provider's settings are wrong: the value of this header cannot be sent: x-api-key"]
        .assert_eq(&error.to_string());
}

#[tokio::test]
async fn connections_that_cannot_be_made_say_which_part_failed() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let cause = |url: String| async move {
        match all(&anthropic(&url), request("x")).await.1 {
            Some(ModelError::Unreachable { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cause(format!("http://{closed}")).await, UnreachableCause::Connect);
    assert_eq!(cause("http://nobody.invalid".into()).await, UnreachableCause::Dns);
    let said = |error: ModelError| error.to_string();
    let refused = said(anthropic(&format!("http://{closed}")).models().await.unwrap_err());
    assert!(refused.starts_with(&format!("cannot connect to the provider: {closed}: ")), "{refused}");
    let unknown = said(chat("http://nobody.invalid").models().await.unwrap_err());
    let expected = "cannot resolve the provider's host name (are you online?): nobody.invalid: ";
    assert!(unknown.starts_with(expected), "{unknown}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut hello = [0; 1024];
            let _ = socket.read(&mut hello).await;
            let _ = socket.write_all(b"HTTP/1.1 400 this is not TLS\r\n\r\n").await;
        }
    });
    assert_eq!(cause(url).await, UnreachableCause::Tls);
    let wrong = |url: &str| {
        let settings = OpenAiChatSettings { base_url: url.into(), key: None, headers: Vec::new() };
        OpenAiChat::new(http(), settings).err().unwrap()
    };
    assert!(matches!(wrong("ftp://x"), ModelError::Misconfigured { .. }));
    assert!(matches!(wrong("not an address"), ModelError::Misconfigured { .. }));
}

#[tokio::test]
async fn a_server_lists_its_models() {
    let list = r#"{"object":"list","data":[{"id":"one"},{"id":"maker/two"},{"name":"no id"}]}"#;
    for is_chat in [true, false] {
        let server = serve(vec![plain("200 OK", "application/json", list)]).await;
        let listed =
            if is_chat { chat(&server.url).models().await } else { anthropic(&server.url).models().await };
        assert_eq!(listed, Ok(vec!["one".to_owned(), "maker/two".to_owned()]));
    }
    for (status, kind, body, expected) in [
        (
            "401 X",
            "application/json",
            r#"{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}"#,
            "authentication failed (401), check your API key: Incorrect API key provided",
        ),
        (
            "404 X",
            "text/plain",
            "404 page not found",
            "the provider rejected the request (status 404): 404 page not found",
        ),
        (
            "200 OK",
            "text/html",
            "<html><title>Welcome</title></html>",
            "malformed response from the provider: a list of models was asked for and this came (status 200): a web page \
          titled \"Welcome\"",
        ),
    ] {
        let server = serve(vec![plain(status, kind, body)]).await;
        let error = chat(&server.url).models().await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn a_connection_that_breaks_is_a_reset_and_tried_again() {
    let whole = scripted("when\n say chunk=1 \"hello\"", Dialect::Anthropic).concat();
    let good = Answer::Keep(vec![whole.clone()]);
    for cut in [0, 10, 200, whole.len() / 2, whole.len() - 8] {
        for broken in [Answer::Reset(whole[..cut].to_vec()), Answer::Close(whole[..cut].to_vec())] {
            let server = serve(vec![broken.clone()]).await;
            let (_, error) = all(&anthropic(&server.url), request("x")).await;
            assert!(matches!(error, Some(ModelError::Reset { .. })), "cut at {cut}: {error:?}");
            let server = serve(vec![broken, good.clone()]).await;
            let settings = GatewaySettings { backoff: Duration::ZERO, ..GatewaySettings::default() };
            let gateway = Gateway::new(Arc::new(anthropic(&server.url)), settings);
            let (events, error) = turn(&gateway, request("x")).await;
            assert_eq!((error, kept(&events)), (None, vec![Block::text("hello")]), "cut at {cut}");
        }
    }
}

#[tokio::test]
async fn silence_before_and_after_the_head_is_a_stall() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
    for silence in [Vec::new(), head] {
        let server = serve(vec![Answer::Hang(silence)]).await;
        let settings = GatewaySettings {
            first_event: Duration::from_millis(50),
            tries: 2,
            backoff: Duration::ZERO,
            ..GatewaySettings::default()
        };
        let gateway = Gateway::new(Arc::new(anthropic(&server.url)), settings);
        let (_, error) = turn(&gateway, request("x")).await;
        assert!(matches!(error, Some(ModelError::Stalled { what: StallKind::FirstEvent, .. })), "{error:?}");
    }
}

#[tokio::test]
async fn dropping_a_stream_closes_its_connection() {
    let start = scripted("when\n say \"hello\"", Dialect::Anthropic)[0].clone();
    let mut server = serve(vec![Answer::Hang(start)]).await;
    let mut stream = anthropic(&server.url).stream(request("x"));
    assert!(matches!(stream.next().await, Some(Ok(ModelEvent::Accepted(_)))));
    drop(stream);
    server.closed.recv().await.unwrap();
}

#[tokio::test]
async fn many_requests_are_really_under_way_at_once() {
    let (arrived, mut count) = mpsc::unbounded_channel();
    let (go, _) = tokio::sync::broadcast::channel::<()>(1);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let reply = scripted("when\n say \"hi\"", Dialect::Anthropic).concat();
    let gate = go.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (arrived, mut open, reply) = (arrived.clone(), gate.subscribe(), reply.clone());
            tokio::spawn(async move {
                read_request(&mut socket).await.unwrap();
                arrived.send(()).unwrap();
                let _ = open.recv().await;
                socket.write_all(&reply).await.unwrap();
            });
        }
    });
    let gateway = Gateway::new(Arc::new(anthropic(&url)), GatewaySettings::default());
    let tasks: Vec<_> = (0..100)
        .map(|number| {
            let (gateway, request) = (gateway.clone(), tagged(&format!("main/{number}"), "x"));
            tokio::spawn(async move { turn(&gateway, request).await.1 })
        })
        .collect();
    for _ in 0..100 {
        count.recv().await.unwrap();
    }
    go.send(()).unwrap();
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
}

#[test]
fn a_request_needs_a_runtime_only_when_polled() {
    let request: ModelRequest = request("x");
    drop(anthropic("http://127.0.0.1:9").stream(request));
}
