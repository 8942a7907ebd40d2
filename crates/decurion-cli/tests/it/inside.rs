//! WebFetch and this machine, through the real program: a server on loopback counts who asks it.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::stand::Stand;

/// A server that answers every request with a canary.
fn server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = stream.read(&mut [0; 2048]);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\n";
            let _ = stream.write_all(format!("{head}CANARY").as_bytes());
        }
    });
    (port, asked)
}

#[test]
fn only_a_rule_that_names_this_machine_lets_it_be_fetched() {
    let (port, asked) = server();
    for (host, rules, fetched) in [
        ("127.0.0.1", &["--allowedTools", "WebFetch"][..], false),
        ("localhost", &["--allowedTools", "WebFetch"], false),
        ("[::ffff:127.0.0.1]", &["--allowedTools", "WebFetch(domain:*)"], false),
        ("0.0.0.0", &["--allowedTools", "WebFetch"], false),
        ("127.0.0.1", &["--permission-mode", "dontAsk"], false),
        ("localhost", &["--allowedTools", "WebFetch(domain:localhost)"], true),
        ("127.0.0.1", &["--allowedTools", "WebFetch(domain:127.0.0.1)"], true),
        ("127.0.0.1", &["--allowedTools", "WebFetch(domain:127.0.0.0/8)"], true),
        ("127.0.0.1", &["--permission-mode", "bypassPermissions"], true),
        (
            "localhost",
            &["--permission-mode", "bypassPermissions", "--disallowedTools", "WebFetch(domain:127.0.0.1)"],
            false,
        ),
        (
            "[::ffff:127.0.0.1]",
            &["--permission-mode", "bypassPermissions", "--disallowedTools", "WebFetch(domain:localhost)"],
            false,
        ),
        (
            "0.0.0.0",
            &["--permission-mode", "bypassPermissions", "--disallowedTools", "WebFetch(domain:127.0.0.1)"],
            false,
        ),
    ] {
        let before = asked.load(Ordering::Relaxed);
        let script = format!(
            "when turn=1\n  call WebFetch {{\"url\": \"http://{host}:{port}/\", \"prompt\": \"p\"}}\nwhen\n  say \"done\"\n"
        );
        let stand = Stand::new(&script);
        let run = stand.run(&[&["-p", "go"], rules].concat());
        let body = String::from_utf8_lossy(&stand.model.requests()[1].body).into_owned();
        assert_eq!(asked.load(Ordering::Relaxed) > before, fetched, "{host} {rules:?}: {run:?} {body}");
        assert_eq!(body.contains("CANARY"), fetched, "{host} {rules:?}: {body}");
    }
}
