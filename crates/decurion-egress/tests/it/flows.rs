//! What the proxy does for clients that keep to the rules: tunnels, requests, half-closed sides, bounds and records.

use std::sync::Arc;
use std::time::Duration;

use decurion_egress::{Ending, Grant, ProxyLimits, Reason, RecordedVerdict, environment};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::certificates::{Authority, client_config, server_config};
use crate::support::*;

const NAMES: &[(&str, &[&str])] = &[("good.com", &["93.184.216.34"])];

async fn world(server: Server) -> World {
    World::new(Net::new(server, NAMES), rules(&["good.com"], &[], false)).await
}

async fn limited(server: Server, limits: ProxyLimits) -> World {
    World::with(Net::new(server, NAMES), rules(&["good.com"], &[], false), None, limits).await
}

async fn read_exactly(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

/// Lets the proxy read what was written so far.
async fn let_proxy_read() {
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
}

/// Sends the bytes in two pieces.
async fn send_split(stream: &mut TcpStream, bytes: &[u8], at: usize) {
    stream.write_all(&bytes[..at]).await.unwrap();
    let_proxy_read().await;
    stream.write_all(&bytes[at..]).await.unwrap();
}

#[tokio::test]
async fn the_head_of_connect_may_be_split_anywhere() {
    let world = world(Server::Echo).await;
    let request = connect("good.com:8080", b"hello")(world.client.token());
    for at in 1..request.len() {
        let mut stream = world.connect().await;
        send_split(&mut stream, &request, at).await;
        read_head(&mut stream).await;
        assert_eq!(read_exactly(&mut stream, 5).await, b"hello", "split at {at}");
    }
}

#[tokio::test]
async fn the_messages_of_socks_may_be_split_anywhere() {
    let world = world(Server::Echo).await;
    let request = socks(Address::Name(b"good.com"), 8080, b"hello")(world.client.token());
    let expected = [&[5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"hello"].concat();
    for at in 1..request.len() {
        let mut stream = world.connect().await;
        send_split(&mut stream, &request, at).await;
        assert_eq!(read_exactly(&mut stream, expected.len()).await, expected, "split at {at}");
    }
}

#[tokio::test]
async fn the_hello_of_a_real_tls_client_may_be_split_anywhere() {
    let world = world(Server::Echo).await;
    let authority = Authority::new();
    let config = client_config(&[&authority]);
    let name = "good.com".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    for at in 1..hello.len() {
        let mut stream = world.tunnel("good.com:443").await;
        send_split(&mut stream, &hello, at).await;
        assert_eq!(read_exactly(&mut stream, hello.len()).await, hello, "split at {at}");
    }
}

#[tokio::test]
async fn a_tls_client_talks_to_its_server_through_the_tunnel() {
    let authority = Authority::new();
    for port in [443, 8443] {
        let world = world(Server::Tls(server_config(&authority, "good.com"))).await;
        let stream = world.tunnel(&format!("good.com:{port}")).await;
        let connector = tokio_rustls::TlsConnector::from(client_config(&[&authority]));
        let mut stream = connector.connect("good.com".try_into().unwrap(), stream).await.unwrap();
        stream.write_all(b"secret words").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"secret words");
        assert!(world.net.reached("secret words", |_| true));
    }
}

#[tokio::test]
async fn a_tls_client_that_names_another_server_gets_an_alert() {
    let authority = Authority::new();
    let world = world(Server::Tls(server_config(&authority, "evil.com"))).await;
    let stream = world.tunnel("good.com:443").await;
    let connector = tokio_rustls::TlsConnector::from(client_config(&[&authority]));
    let error = connector.connect("evil.com".try_into().unwrap(), stream).await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    assert_eq!(world.net.received()[0].1, b"");
}

#[tokio::test]
async fn the_answer_comes_also_after_the_client_has_closed_its_side() {
    let world = world(Server::EchoAtEnd).await;
    let mut stream = world.tunnel("good.com:8080").await;
    stream.write_all(b"all I have to say").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await, b"all I have to say");
}

#[tokio::test]
async fn a_server_may_speak_first_on_other_ports() {
    let world = world(Server::Greet(b"SSH-2.0-x\r\n")).await;
    let mut stream = world.tunnel("good.com:22").await;
    assert_eq!(read_exactly(&mut stream, 11).await, b"SSH-2.0-x\r\n");
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await, b"hello");
}

#[tokio::test]
async fn a_large_stream_passes_unchanged_in_both_directions() {
    let mut world = world(Server::Echo).await;
    let stream = world.tunnel("good.com:8080").await;
    let (mut reader, mut writer) = stream.into_split();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    let expected = sent.clone();
    let writing = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut got = Vec::new();
    reader.read_to_end(&mut got).await.unwrap();
    writing.await.unwrap();
    assert!(got == expected);
    let record = world.record().await;
    assert_eq!((record.bytes_up, record.bytes_down), (3_000_000, 3_000_000));
}

#[tokio::test]
async fn a_request_for_a_url_arrives_without_the_token() {
    let world = world(Server::Answer).await;
    let answer = world.exchange(&get("good.com")(world.client.token())).await;
    assert_eq!(answer, ANSWER);
    let (address, bytes) = world.net.received().remove(0);
    assert_eq!(address.to_string(), "93.184.216.34:80");
    let expected = format!("GET /{MARK} HTTP/1.1\r\nhost: good.com\r\nconnection: close\r\n\r\n");
    assert_eq!(String::from_utf8(bytes).unwrap(), expected);
}

#[tokio::test]
async fn a_body_arrives_however_its_length_is_given_and_wherever_it_is_split() {
    let world = world(Server::Answer).await;
    let known = format!("Content-Length: 6\r\n\r\n{FINISH}");
    let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\nFI\r\n4\r\nNISH\r\n0\r\n\r\n".to_owned();
    for (body, expected) in [(known, FINISH), (chunked, "2\r\nFI\r\n4\r\nNISH\r\n0\r\n\r\n")] {
        let request = raw(&format!("POST http://good.com/x HTTP/1.1\r\nHost: good.com\r\n{{login}}{body}"))(
            world.client.token(),
        );
        for at in request.len() - body.len()..request.len() {
            let before = world.net.received().len();
            let mut stream = world.connect().await;
            stream.write_all(&request[..at]).await.unwrap();
            let_proxy_read().await;
            // The server of chunks sees no FINISH in one piece: it is the end of the client that ends this.
            stream.write_all(&request[at..]).await.unwrap();
            wait_for_body(&world, before, expected).await;
        }
    }
}

async fn wait_for_body(world: &World, index: usize, expected: &str) {
    loop {
        let received = world.net.received();
        if received
            .get(index)
            .is_some_and(|(_, bytes)| bytes.ends_with(format!("\r\n\r\n{expected}").as_bytes()))
        {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_refusal_names_the_host_and_the_setting() {
    let mut world = world(Server::Answer).await;
    let token = world.client.token().to_owned();
    for bytes in [get("evil.com")(&token), connect("evil.com:443", &[])(&token)] {
        let answer = String::from_utf8(world.exchange(&bytes).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        for part in [head.lines().next().unwrap(), body] {
            assert!(part.contains("evil.com") && part.contains("sandbox.network.allowedDomains"), "{part}");
        }
        let record = world.record().await;
        assert_eq!((record.client.as_deref(), record.host.as_str()), (Some("agent"), "evil.com"));
        let RecordedVerdict::Refused(reason) = record.verdict else { panic!("{:?}", record.verdict) };
        assert!(reason.contains("not allowed"), "{reason}");
        assert_eq!((record.ending, record.address), (Ending::Refused, None));
    }
}

#[tokio::test]
async fn socks_clients_get_the_reply_that_fits() {
    let world = world(Server::Refuse).await;
    let net = Net::new(Server::Answer, NAMES);
    let allowed = World::new(net, rules(&["good.com", "gone.com"], &[], false)).await;
    let name = |name: &'static [u8]| Address::Name(name);
    let token = world.client.token();
    let answer = |bytes: Vec<u8>| bytes.get(5).copied();
    assert_eq!(answer(world.exchange(&socks(name(b"evil.com"), 80, &[])(token)).await), Some(2));
    assert_eq!(answer(world.exchange(&socks(name(b"good.com"), 80, &[])(token)).await), Some(5));
    assert_eq!(
        answer(allowed.exchange(&socks(name(b"gone.com"), 80, &[])(allowed.client.token())).await),
        Some(4)
    );
    assert_eq!(world.exchange(&[5, 1, 0]).await, [5, 0xff]);
    let stranger = [&[5, 1, 2][..], &socks_login("stranger")].concat();
    assert_eq!(world.exchange(&stranger).await, [5, 2, 1, 1]);
}

#[tokio::test]
async fn failures_that_are_no_refusals_are_answered_as_such() {
    let mut world = world(Server::Refuse).await;
    let answer = world.exchange(&get("good.com")(world.client.token())).await;
    assert!(answer.starts_with(b"HTTP/1.1 502 "));
    let record = world.record().await;
    assert_eq!(record.verdict, RecordedVerdict::Allowed(Grant::Listed));
    assert_eq!(record.ending, Ending::Failed("cannot connect to good.com:80: connection refused".to_owned()));
    let answer = world.exchange(b"GET http://good.com/ HTTP/1.1\r\nHost: good.com\r\n\r\n").await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 407 ") && answer.contains("Proxy-Authenticate: Basic"), "{answer}");
    assert_eq!(world.record().await.client, None);
    assert!(world.exchange(b"\x16\x03\x01").await.starts_with(b"HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_no_refusal() {
    let net = Net::new(Server::Answer, NAMES);
    let mut world = World::new(net, rules(&["gone.com"], &[], false)).await;
    let answer = String::from_utf8(world.exchange(&get("gone.com")(world.client.token())).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("cannot resolve gone.com"), "{answer}");
    let record = world.record().await;
    assert_eq!((record.verdict, record.refusal), (RecordedVerdict::Allowed(Grant::Listed), None));
    let Ending::Failed(problem) = record.ending else { panic!("{:?}", record.ending) };
    assert!(problem.starts_with("cannot resolve gone.com: "), "{problem}");
}

#[tokio::test]
async fn a_record_says_what_passed_and_how_it_ended() {
    let mut world = world(Server::EchoAtEnd).await;
    let mut stream = world.tunnel("GOOD.com.:8080").await;
    stream.write_all(b"twelve bytes").await.unwrap();
    stream.shutdown().await.unwrap();
    read_all(&mut stream).await;
    let record = world.record().await;
    assert_eq!(
        (record.client.as_deref(), record.host.as_str(), record.port),
        (Some("agent"), "good.com", 8080)
    );
    assert_eq!(record.verdict, RecordedVerdict::Allowed(Grant::Listed));
    assert_eq!(record.address, Some("93.184.216.34:8080".parse().unwrap()));
    assert_eq!((record.bytes_up, record.bytes_down, record.ending), (12, 12, Ending::Completed));
}

#[tokio::test]
async fn a_flood_instead_of_a_head_is_cut_off() {
    let world = world(Server::Answer).await;
    let answer = world.exchange(&vec![b'A'; 200_000]).await;
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{:?}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_flood_instead_of_a_hello_is_cut_off() {
    let mut world = world(Server::Echo).await;
    let mut message = hello_with(&[]);
    message[1..4].copy_from_slice(&[0, 0xff, 0xff]);
    message.resize(60_000, 0);
    let flood = [connect("good.com:443", &[])(world.client.token()), tls_records(&message, 1)].concat();
    world.exchange(&flood).await;
    let RecordedVerdict::Refused(reason) = world.record().await.verdict else { panic!() };
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(world.net.received()[0].1, b"");
}

#[tokio::test(start_paused = true)]
async fn slow_heads_and_hellos_are_cut_off() {
    let mut world = world(Server::Echo).await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET http://good.com/ HT").await.unwrap();
    assert!(read_all(&mut stream).await.starts_with(b"HTTP/1.1 408 "));
    let RecordedVerdict::Refused(reason) = world.record().await.verdict else { panic!() };
    assert!(reason.contains("not complete in time"), "{reason}");
    for (port, part) in [(443, 0), (443, 20), (8443, 20)] {
        let request =
            connect(&format!("good.com:{port}"), &hello(Some("good.com"))[..part])(world.client.token());
        let mut stream = world.connect().await;
        stream.write_all(&request).await.unwrap();
        read_all(&mut stream).await;
        let RecordedVerdict::Refused(reason) = world.record().await.verdict else { panic!("{port} {part}") };
        assert!(reason.contains("hello was not complete in time"), "{reason}");
    }
    assert!(world.net.received().iter().all(|(_, bytes)| bytes.is_empty()));
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let limits = ProxyLimits { idle_time: Duration::from_secs(60), ..ProxyLimits::default() };
    let mut world = limited(Server::Echo, limits).await;
    let mut stream = world.tunnel("good.com:8080").await;
    stream.write_all(b"x").await.unwrap();
    assert_eq!(read_exactly(&mut stream, 1).await, b"x");
    tokio::time::pause();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(40)).await;
        stream.write_all(b"y").await.unwrap();
        assert_eq!(read_exactly(&mut stream, 1).await, b"y");
    }
    assert_eq!(read_all(&mut stream).await, b"");
    assert_eq!(world.record().await.ending, Ending::Idle);
}

#[tokio::test]
async fn more_connections_than_allowed_wait() {
    let world = limited(Server::Echo, ProxyLimits { connections: 2, ..ProxyLimits::default() }).await;
    let (first, _second) = (world.tunnel("good.com:8080").await, world.tunnel("good.com:8080").await);
    let mut third = world.connect().await;
    third.write_all(&connect("good.com:8080", b"third")(world.client.token())).await.unwrap();
    for _ in 0..200 {
        let_proxy_read().await;
    }
    assert_eq!(world.net.received().len(), 2);
    drop(first);
    read_head(&mut third).await;
    assert_eq!(read_exactly(&mut third, 5).await, b"third");
}

#[tokio::test]
async fn dropping_the_proxy_ends_its_connections() {
    let mut world = world(Server::Echo).await;
    let mut stream = world.tunnel("good.com:8080").await;
    drop(world.proxy.take());
    assert_eq!(read_all(&mut stream).await, b"");
    assert_eq!(world.record().await.ending, Ending::Stopped);
    assert!(TcpStream::connect(("127.0.0.1", world.port)).await.is_err());
}

#[tokio::test]
async fn removing_a_client_ends_its_connections() {
    let mut world = world(Server::Echo).await;
    let mut stream = world.tunnel("good.com:8080").await;
    world.gate.clients().remove(world.client.token());
    assert_eq!(read_all(&mut stream).await, b"");
    assert_eq!(world.record().await.ending, Ending::Stopped);
}

#[tokio::test]
async fn rules_that_change_hold_for_the_next_connection() {
    let world = world(Server::Answer).await;
    world.client.set_rules(rules(&[], &[], false));
    let answer = world.exchange(&get("good.com")(world.client.token())).await;
    assert!(answer.starts_with(b"HTTP/1.1 403 "));
}

#[tokio::test]
async fn the_next_address_is_tried_if_one_cannot_be_reached() {
    let net = Net::new(Server::Answer, &[("good.com", &["93.184.216.34,93.184.216.35"])]);
    let failing = FirstFails(net.clone(), std::sync::atomic::AtomicBool::new(true));
    let clients = decurion_egress::Clients::default();
    let client = clients.add("agent", rules(&["good.com"], &[], false)).unwrap();
    let gate = Arc::new(decurion_egress::Gate::new(clients, net.clone(), None));
    let mut parts = decurion_egress::ProxyParts::new(gate, Arc::new(Ignore));
    parts.dialer = Arc::new(failing);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = decurion_egress::Proxy::start(listener, parts).unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    stream.write_all(&get("good.com")(client.token())).await.unwrap();
    assert_eq!(read_all(&mut stream).await, ANSWER);
    assert_eq!(net.received()[0].0.to_string(), "93.184.216.35:80");
}

struct Ignore;

impl decurion_egress::Recorder for Ignore {
    fn record(&self, _: &decurion_egress::ConnectionRecord) {}
}

struct FirstFails(Arc<Net>, std::sync::atomic::AtomicBool);

impl decurion_egress::Dial for FirstFails {
    fn dial(
        &self,
        address: std::net::SocketAddr,
    ) -> futures_util::future::BoxFuture<'static, std::io::Result<TcpStream>> {
        if self.1.swap(false, std::sync::atomic::Ordering::Relaxed) {
            return Box::pin(async { Err(std::io::ErrorKind::HostUnreachable.into()) });
        }
        self.0.dial(address)
    }
}

#[tokio::test]
async fn the_check_for_tools_gives_vetted_addresses_or_the_reason() {
    let net =
        Net::new(Server::Answer, &[("good.com", &["10.0.0.5,93.184.216.34"]), ("in.com", &["10.0.0.5"])]);
    let world = World::new(net, rules(&["good.com", "in.com"], &[], false)).await;
    let found = world.gate.check(&world.client, "Good.com", 443).await.unwrap();
    assert_eq!(found, ["93.184.216.34:443".parse().unwrap()]);
    let refusal = world.gate.check(&world.client, "in.com", 443).await.unwrap_err();
    assert!(matches!(refusal.reason, Reason::SpecialAddress { kind: "private", .. }), "{refusal}");
    assert!(refusal.hint().unwrap().contains("10.0.0.5"));
    let refusal = world.gate.check(&world.client, "evil.com", 443).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::NotAllowed);
    let refusal = world.gate.check(&world.client, "a\u{7}b", 443).await.unwrap_err();
    assert_eq!(refusal.host, "a\\u{7}b");
}

#[test]
fn the_environment_names_the_proxy_in_both_cases() {
    let variables = environment(8118, "abc");
    let value = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| value.as_str());
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        assert_eq!(value(name), Some("http://abc:x@127.0.0.1:8118"));
    }
    assert_eq!(value("ALL_PROXY"), Some("socks5h://abc:x@127.0.0.1:8118"));
    assert_eq!(value("no_proxy"), Some("localhost,127.0.0.1,::1"));
}
