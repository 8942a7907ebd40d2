//! MCP servers by address that want a login, lose it, leak it, or say too much.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decurion_protocol::McpHealth;
use decurion_protocol::mcp::{McpServer, McpTransport};
use decurion_tools::mcp::{Lease, Logins, McpHost, Pool, bridge};
use decurion_tools::oauth::Leave;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use crate::mcp::{House, call, ready, text, within};

/// A login that was given once, and whose token has ended or not.
struct Given(Mutex<Leave>);

impl Given {
    fn new(address: &str, token: &str, expires: Option<i64>, resource: &str) -> Arc<Self> {
        let leave = json!({"access_token": token, "refresh_token": "r", "expires_at": expires,
            "token_endpoint": format!("{address}/token"), "client": {"id": "us"}, "resource": resource});
        Arc::new(Self(Mutex::new(serde_json::from_value(leave).unwrap())))
    }

    fn token(&self) -> String {
        self.0.lock().unwrap().access_token.clone()
    }
}

impl Logins for Given {
    fn load(&self, _: &str) -> Option<Leave> {
        Some(self.0.lock().unwrap().clone())
    }
    fn keep(&self, _: &str, leave: &Leave) -> io::Result<()> {
        *self.0.lock().unwrap() = leave.clone();
        Ok(())
    }
    fn now(&self) -> i64 {
        1_000
    }
}

/// A request: its head, and what its body says.
struct Asked {
    head: String,
    body: Value,
}

impl Asked {
    fn is(&self, method: &str) -> bool {
        self.body["method"] == method
    }

    fn carries(&self, token: &str) -> bool {
        self.head.to_lowercase().contains(&format!("authorization: bearer {token}\r\n"))
    }
}

/// A status with further headers, and a body.
type Page = (String, Vec<u8>);

fn page(status: &str, body: impl Into<Vec<u8>>) -> Page {
    (status.to_owned(), body.into())
}

/// What a server says that does everything right.
fn good(asked: &Asked) -> Page {
    let result = match asked.body["method"].as_str() {
        Some("initialize") => {
            json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "stub", "version": "1"}})
        }
        Some("tools/list") => json!({"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}),
        Some("tools/call") => json!({"content": [{"type": "text", "text": "opened"}]}),
        _ => return page("202 Accepted", ""),
    };
    page("200 OK", json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result}).to_string())
}

/// A server at an address of this machine.
async fn serve(answer: impl Fn(&Asked) -> Page + Send + Sync + 'static) -> String {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let Some(asked) = read(&mut stream).await else { return };
                let (status, body) = answer(&asked);
                let kind = "Content-Type: application/json\r\nConnection: close";
                let head = format!("HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            });
        }
    });
    address
}

async fn read(stream: &mut tokio::net::TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0_u8; 4096];
        let length @ 1.. = stream.read(&mut piece).await.ok()? else { return None };
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_lowercase();
        let length = lower.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        if body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0) {
            let body = serde_json::from_str(body).unwrap_or_default();
            return Some(Asked { head: format!("{head}\r\n"), body });
        }
    }
}

/// A server that answers whoever has this token, and gives it for an old one.
async fn guarded(token: &'static str) -> String {
    serve(move |asked| {
        if asked.head.starts_with("POST /token") {
            page("200 OK", json!({"access_token": token, "token_type": "Bearer"}).to_string())
        } else if asked.carries(token) {
            good(asked)
        } else {
            page("401 Unauthorized\r\nWWW-Authenticate: Bearer", "")
        }
    })
    .await
}

fn declared(house: &House, url: String) -> McpServer {
    let patience = Duration::from_secs(3);
    McpServer {
        transport: McpTransport::Http { url, headers: BTreeMap::new() },
        start_timeout: patience,
        ..house.declared("plain")
    }
}

/// The use of a server with a login.
fn lease(house: &House, url: String, given: &Arc<Given>) -> Lease {
    let host = McpHost {
        sandbox: None,
        processes: None,
        environment: Arc::from([]),
        root: house.root(),
        manifests: None,
        logins: Some(Arc::clone(given) as Arc<dyn Logins>),
        leader: None,
        pause: Duration::from_millis(10),
        notice: Arc::new(|_| {}),
    };
    Pool::new(host).lease(&declared(house, url), "a")
}

/// Why a server does not come up, and how it is listed.
async fn fails(lease: &Lease) -> (String, McpHealth) {
    let server = lease.server().unwrap();
    let error = within(server.ready(&CancellationToken::new())).await.err().expect("it works").to_string();
    (error, server.status().status)
}

#[tokio::test]
async fn a_server_that_wants_a_login_says_so_and_is_used_with_one() {
    let address = guarded("fresh").await;
    let url = format!("{address}/mcp");
    let house = House::new();
    let unknown = house.pool.lease(&declared(&house, url.clone()), "a");
    let (error, health) = fails(&unknown).await;
    assert!(error.contains("decurion mcp login plain"), "{error}");
    assert_eq!(health, McpHealth::NeedsAuth);
    within(unknown.release()).await;
    // A token that has ended is renewed before it is used, and what is new is kept.
    for (token, expires) in [("fresh", None), ("old", Some(900))] {
        let given = Given::new(&address, token, expires, &url);
        let lease = lease(&house, url.clone(), &given);
        let server = ready(&lease).await;
        assert_eq!(bridge::tools(&server)[0].spec().name, "mcp__plain__open");
        assert_eq!(given.token(), "fresh");
        within(lease.release()).await;
    }
}

/// A declaration's variables may lead elsewhere than when somebody logged in.
#[tokio::test]
async fn a_login_is_sent_nowhere_but_where_it_was_given() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&seen);
    let address = serve(move |asked| {
        heard.lock().unwrap().push(asked.head.to_lowercase());
        page("401 Unauthorized", "")
    })
    .await;
    let house = House::new();
    for resource in ["https://example.org/mcp".to_owned(), format!("{address}/other")] {
        let given = Given::new(&address, "secret", Some(900), &resource);
        let lease = lease(&house, format!("{address}/mcp"), &given);
        assert_eq!(fails(&lease).await.1, McpHealth::NeedsAuth);
        within(lease.release()).await;
    }
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|head| !head.contains("authorization")), "{seen:?}");
}

#[tokio::test]
async fn a_login_that_ends_in_mid_session_refuses_one_call_and_is_renewed_for_the_next() {
    let tokens = Arc::new(AtomicUsize::new(1));
    let now = Arc::clone(&tokens);
    let address = serve(move |asked| {
        let token = format!("t{}", now.load(Ordering::SeqCst));
        if asked.head.starts_with("POST /token") {
            page("200 OK", json!({"access_token": token, "token_type": "Bearer"}).to_string())
        } else if asked.carries(&token) {
            good(asked)
        } else {
            page("401 Unauthorized", "")
        }
    })
    .await;
    let house = House::new();
    let url = format!("{address}/mcp");
    let given = Given::new(&address, "t1", None, &url);
    let lease = lease(&house, url, &given);
    let server = ready(&lease).await;
    assert_eq!(text(&call(&house, &server, "open", "x").await), "opened");
    tokens.store(2, Ordering::SeqCst);
    let refused = call(&house, &server, "open", "x").await;
    assert!(refused.is_error && text(&refused).contains("HTTP 401"), "{}", text(&refused));
    assert!(!text(&refused).contains("not known"), "{}", text(&refused));
    assert_eq!(text(&call(&house, &server, "open", "x").await), "opened");
    assert_eq!(given.token(), "t2");
    within(lease.release()).await;
}

/// Only the status says that a login is wanted, whatever words and addresses say.
#[tokio::test]
async fn a_login_is_wanted_where_the_status_says_so() {
    let house = House::new();
    let rows = [
        ("401 Unauthorized", "", true),
        ("401 Unauthorized\r\nWWW-Authenticate: Bearer", "no", true),
        ("404 Not Found", "error 401: Auth required", false),
        ("500 Internal Server Error", "401", false),
    ];
    for (status, body, wanted) in rows {
        let address = serve(move |_| page(status, body)).await;
        let lease = house.pool.lease(&declared(&house, format!("{address}/401")), "a");
        let (error, health) = fails(&lease).await;
        assert_eq!(health == McpHealth::NeedsAuth, wanted, "{status}: {error}");
        within(lease.release()).await;
    }
}

#[tokio::test]
async fn no_error_shows_the_query_of_an_address() {
    let house = House::new();
    // Nobody is at the first address, and the second breaks off.
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let breaks = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let gone = format!("nothing answers at {nobody}/mcp");
    let broken = format!("the connection to {breaks}/mcp broke off");
    for (address, why) in [(nobody, gone), (breaks, broken)] {
        let lease = house.pool.lease(&declared(&house, format!("{address}/mcp?key=hunter2")), "a");
        let (error, _) = fails(&lease).await;
        assert!(error.contains(&why), "{error}");
        assert!(!error.contains("hunter2") && !error.contains("::"), "{error}");
        within(lease.release()).await;
    }
    let address = serve(|asked| if asked.is("tools/call") { page("oh no", "") } else { good(asked) }).await;
    let lease = house.pool.lease(&declared(&house, format!("{address}/mcp?key=hunter2")), "a");
    let server = ready(&lease).await;
    let output = call(&house, &server, "open", "x").await;
    assert!(output.is_error && !text(&output).contains("hunter2"), "{}", text(&output));
    assert!(!text(&output).contains("::") && text(&output).contains("broke off"), "{}", text(&output));
    within(lease.release()).await;
}

#[tokio::test]
async fn an_answer_without_an_end_is_refused() {
    let house = House::new();
    let address = serve(|asked| {
        if asked.is("tools/call") {
            let text = "x".repeat(17 << 20);
            let result = json!({"content": [{"type": "text", "text": text}]});
            let body = json!({"jsonrpc": "2.0", "id": asked.body["id"], "result": result});
            return page("200 OK", body.to_string());
        }
        good(asked)
    })
    .await;
    let lease = house.pool.lease(&declared(&house, format!("{address}/mcp")), "a");
    let server = ready(&lease).await;
    let output = call(&house, &server, "open", "x").await;
    assert!(text(&output).contains("its answer is longer than 16 MiB"), "{}", text(&output));
    within(lease.release()).await;
}
