//! Secrets that the proxy puts into requests, over real TLS on both sides.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use decurion_egress::{Masked, RecordedVerdict, Secret, environment_for_ca};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::certificates::{Authority, client_config, client_config_of, server_config};
use crate::support::*;

const SECRET: &str = "s3cret-of-the-user";
const NAMES: &[(&str, &[&str])] = &[
    ("api.good.com", &["93.184.216.34"]),
    ("good.com", &["93.184.216.35"]),
    ("other.com", &["93.184.216.36"]),
];

struct Stage {
    world: World,
    sentinel: String,
    trusted: Arc<rustls::ClientConfig>,
}

/// A proxy with one secret for api.good.com, and servers with certificates that it trusts.
async fn stage(host: &str, respond: fn(&str) -> String) -> Stage {
    let authority = Authority::new();
    stage_with(&authority.pem(), Server::Http(server_config(&authority, host), respond)).await
}

async fn stage_with(roots: &str, server: Server) -> Stage {
    let hosts = vec!["api.good.com".to_owned()];
    let secret = Secret { name: "API_KEY".to_owned(), value: SECRET.to_owned(), hosts };
    // Verified by today's clock, so a day of this century that tests will not outlive would be wrong.
    let masked = Arc::new(Masked::new(vec![secret], roots, now()).unwrap());
    let (name, sentinel) = masked.environment().remove(0);
    assert_eq!(name, "API_KEY");
    assert!(sentinel.starts_with("decurion-masked-") && !sentinel.contains(SECRET));
    let rules = rules(&["*.good.com", "other.com"], &[], false);
    let trusted = client_config_of(&masked.ca_pem());
    let world = World::with_masked(Net::new(server, NAMES), rules, masked).await;
    Stage { world, sentinel, trusted }
}

#[allow(clippy::disallowed_methods, reason = "certificates are verified by the real clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

impl Stage {
    async fn tls(
        &self,
        host: &'static str,
        trusted: &Arc<rustls::ClientConfig>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = self.world.tunnel(&format!("{host}:443")).await;
        tokio_rustls::TlsConnector::from(trusted.clone()).connect(host.try_into().unwrap(), stream).await
    }

    fn received(&self) -> String {
        self.world
            .net
            .received()
            .iter()
            .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }
}

/// Sends a request and reads its response up to the end of its body.
async fn exchange(stream: &mut TlsStream<TcpStream>, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut response = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&response).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.is_some_and(|length| length.parse() == Ok(body.len())) {
                return String::from_utf8(response).unwrap();
            }
        }
        match stream.read_u8().await {
            Ok(byte) => response.push(byte),
            Err(_) => return String::from_utf8(response).unwrap(),
        }
    }
}

#[tokio::test]
async fn the_secret_reaches_its_host_in_headers_and_nowhere_else() {
    let stage = stage("api.good.com", |_| ok("fine")).await;
    let sentinel = &stage.sentinel;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    let basic = STANDARD.encode(format!("me:{sentinel}"));
    let body = format!("body {sentinel}.");
    let request = format!(
        "POST /path?key={sentinel} HTTP/1.1\r\nHost: api.good.com\r\nX-Key: {sentinel}\r\nAuthorization: Basic {basic}\r\n\
         Proxy-Authorization: Basic x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(exchange(&mut stream, &request).await.ends_with("\r\n\r\nfine"));
    let received = stage.received();
    assert!(received.contains(&format!("x-key: {SECRET}\r\n")), "{received}");
    let expected = STANDARD.encode(format!("me:{SECRET}"));
    assert!(received.contains(&format!("authorization: Basic {expected}\r\n")), "{received}");
    assert!(received.starts_with(&format!("POST /path?key={sentinel} HTTP/1.1\r\n")), "{received}");
    assert!(received.ends_with(&body), "{received}");
    assert!(!received.contains("proxy-authorization"));
}

#[tokio::test]
async fn other_hosts_get_the_sentinel_and_their_own_tls() {
    let authority = Authority::new();
    let server = Server::Http(server_config(&authority, "other.com"), |_| ok("fine"));
    let stage = stage_with(&authority.pem(), server).await;
    // Only the server's authority is trusted, so the proxy has not touched this connection.
    let mut stream = stage.tls("other.com", &client_config(&[&authority])).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: other.com\r\nX-Key: {}\r\n\r\n", stage.sentinel);
    exchange(&mut stream, &request).await;
    assert!(stage.received().contains(&stage.sentinel));
    assert!(!stage.received().contains(SECRET));
}

#[tokio::test]
async fn plain_requests_to_the_same_host_carry_the_sentinel() {
    let stage = stage_with("", Server::Answer).await;
    let text = format!(
        "GET http://api.good.com/{MARK} HTTP/1.1\r\nHost: api.good.com\r\n{{login}}X-Key: {}\r\n\r\n",
        stage.sentinel
    );
    stage.world.exchange(&raw(&text)(stage.world.client.token())).await;
    assert!(stage.received().contains(&stage.sentinel));
    assert!(!stage.received().contains(SECRET));
}

#[tokio::test]
async fn a_server_that_cannot_be_verified_gets_nothing() {
    let stranger = Authority::new();
    let wrong_name = Authority::new();
    let cases = [(String::new(), &stranger, "api.good.com"), (wrong_name.pem(), &wrong_name, "evil.com")];
    for (roots, authority, name) in cases {
        let stage = stage_with(&roots, Server::Http(server_config(authority, name), |_| ok("fine"))).await;
        let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: api.good.com\r\nX-Key: {}\r\n\r\n", stage.sentinel);
        let response = exchange(&mut stream, &request).await;
        assert!(response.starts_with("HTTP/1.1 502 ") && response.contains("api.good.com"), "{response}");
        assert_eq!(stage.received(), "");
    }
}

#[tokio::test]
async fn a_client_that_does_not_trust_the_session_is_not_served() {
    let authority = Authority::new();
    let server = Server::Http(server_config(&authority, "api.good.com"), |_| ok("fine"));
    let stage = stage_with(&authority.pem(), server).await;
    let error = stage.tls("api.good.com", &client_config(&[&authority])).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert_eq!(stage.received(), "");
}

#[tokio::test]
async fn an_echoed_secret_is_masked_in_headers_and_small_text() {
    let stage = stage("api.good.com", |head| {
        let key = head.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap();
        let body = format!("{{\"key\": \"{key}\"}}");
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nX-Echo: {key}\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: {length}\r\n\r\n{body}")
    })
    .await;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: api.good.com\r\nX-Key: {}\r\n\r\n", stage.sentinel);
    let response = exchange(&mut stream, &request).await;
    assert!(stage.received().contains(SECRET));
    assert!(!response.contains(SECRET), "{response}");
    assert_eq!(response.matches(&stage.sentinel).count(), 2, "{response}");
}

#[tokio::test]
async fn an_echoed_secret_is_not_in_the_status_line_nor_in_names_of_headers() {
    let stage = stage("api.good.com", |head| {
        let key = head.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap();
        format!("HTTP/1.1 400 bad key {key}\r\nX-{key}: 1\r\nX-Other: 2\r\nContent-Length: 2\r\n\r\nno")
    })
    .await;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: api.good.com\r\nX-Key: {}\r\n\r\n", stage.sentinel);
    let response = exchange(&mut stream, &request).await;
    assert!(stage.received().contains(SECRET));
    let lower = response.to_ascii_lowercase();
    assert!(!lower.contains(&SECRET.to_ascii_lowercase()), "{response}");
    assert!(response.starts_with("HTTP/1.1 400 ") && lower.contains("x-other: 2"), "{response}");
}

#[tokio::test]
async fn requests_share_a_connection_until_the_server_closes_it() {
    let stage = stage("api.good.com", |head| {
        let close = if head.contains("/last") { "Connection: close\r\n" } else { "" };
        format!("HTTP/1.1 200 OK\r\n{close}Content-Length: 4\r\n\r\nfine")
    })
    .await;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    for path in ["first", "second", "last"] {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: api.good.com\r\n\r\n");
        let response = exchange(&mut stream, &request).await;
        assert!(response.ends_with("\r\n\r\nfine"), "{path}: {response}");
    }
    assert_eq!(stage.world.net.received().len(), 1);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_response_without_length_passes_as_it_comes() {
    let stage = stage("api.good.com", |_| {
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nfine\r\n0\r\n\r\n"
            .to_owned()
    })
    .await;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: api.good.com\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    assert!(response.ends_with(b"4\r\nfine\r\n0\r\n\r\n"), "{}", String::from_utf8_lossy(&response));
}

#[tokio::test]
async fn requests_for_another_host_inside_the_tunnel_are_refused() {
    let requests = [
        "GET / HTTP/1.1\r\nHost: evil.com\r\nX-Key: {}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.good.com\r\nHost: evil.com\r\nX-Key: {}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.good.com:8443\r\nX-Key: {}\r\n\r\n",
        "GET / HTTP/1.1\r\nX-Key: {}\r\n\r\n",
        "GET https://evil.com/ HTTP/1.1\r\nHost: api.good.com\r\nX-Key: {}\r\n\r\n",
        "CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com:443\r\nX-Key: {}\r\n\r\n",
    ];
    for request in requests {
        let stage = stage("api.good.com", |_| ok("fine")).await;
        let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
        let response = exchange(&mut stream, &request.replace("{}", &stage.sentinel)).await;
        assert!(response.starts_with("HTTP/1.1 4"), "{request} {response}");
        assert_eq!(stage.received(), "", "{request}");
        // The control: the same request for the right host arrives.
        let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
        let right = format!("GET / HTTP/1.1\r\nHost: api.good.com:443\r\nX-Key: {}\r\n\r\n", stage.sentinel);
        exchange(&mut stream, &right).await;
        assert!(stage.received().contains(SECRET));
    }
}

#[tokio::test]
async fn the_name_in_the_hello_is_checked_here_too() {
    let mut stage = stage("api.good.com", |_| ok("fine")).await;
    let stream = stage.world.tunnel("api.good.com:443").await;
    let connector = tokio_rustls::TlsConnector::from(stage.trusted.clone());
    assert!(connector.connect("evil.com".try_into().unwrap(), stream).await.is_err());
    assert!(matches!(stage.world.record().await.verdict, RecordedVerdict::Refused(_)));
}

#[tokio::test]
async fn an_exchange_that_falls_silent_is_closed() {
    let mut stage = stage("api.good.com", |_| ok("fine")).await;
    let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
    exchange(&mut stream, "GET / HTTP/1.1\r\nHost: api.good.com\r\n\r\n").await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(601)).await;
    let record = stage.world.record().await;
    assert_eq!(record.ending, decurion_egress::Ending::Idle);
    assert!(record.bytes_up > 0 && record.bytes_down > 0);
}

#[test]
fn the_bundle_holds_the_roots_of_the_system_and_ours() {
    let authority = Authority::new();
    let masked = Masked::new(Vec::new(), "", now()).unwrap();
    let bundle = masked.bundle_pem(authority.pem().trim_end());
    assert_eq!(bundle.matches("-----BEGIN CERTIFICATE-----").count(), 2);
    assert!(bundle.contains(&masked.ca_pem()));
    client_config_of(&bundle);
    assert!(environment_for_ca("/x/ca.pem").contains(&("SSL_CERT_FILE", "/x/ca.pem".to_owned())));
}

/// A response that repeats the key of the request, in chunks that cut it in two, or long.
#[tokio::test]
async fn an_echoed_secret_is_overwritten_in_every_body_that_is_not_compressed() {
    let stage = stage("api.good.com", |head| {
        let key = head.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap();
        assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
        if head.contains("/long") {
            let body = format!("{}{key}{}", "a".repeat(1 << 20), "b".repeat(100));
            let length = body.len();
            return format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
        let (one, two) = key.split_at(5);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n",
            one.len(),
            two.len()
        )
    })
    .await;
    for path in ["/chunks", "/long"] {
        let mut stream = stage.tls("api.good.com", &stage.trusted).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: api.good.com\r\nAccept-Encoding: gzip\r\nX-Key: {}\r\n\r\n",
            stage.sentinel
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        let text = String::from_utf8_lossy(&response);
        assert!(text.contains(&"*".repeat(SECRET.len())), "{path}: {}", &text[..text.len().min(500)]);
        assert!(!text.contains(SECRET));
    }
    assert_eq!(stage.received().matches(SECRET).count(), 2);
}
