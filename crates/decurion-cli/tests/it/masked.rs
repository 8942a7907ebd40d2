//! Masked secrets through the program: a command uses a secret against a TLS server on loopback and never sees it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;

use crate::stand::{LIMIT, Stand, files_below, finished};
use crate::talk::{LED, control, next, prompt};

const SECRET: &str = "canary-Zq83kfhs72ld";

/// A server for `localhost` that repeats the head of each request: in its body, in chunks if the path wants that.
struct Echo {
    port: u16,
    roots: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    fn start() -> Self {
        Self::start_until(None)
    }

    /// With a certificate that was valid until this year.
    fn start_until(year: Option<i32>) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        // With the name of the authority it would be taken for a certificate that signs itself.
        params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        params.not_after = year.map_or(params.not_after, |year| rcgen::date_time_ymd(year, 1, 1));
        let certificate = params.signed_by(&key, &authority).unwrap();
        Self::with(vec![certificate.der().clone()], &key, authority.pem())
    }

    /// With this certificate; `roots` are those that a session trusts besides.
    fn with(chain: Vec<CertificateDer<'static>>, key: &KeyPair, roots: String) -> Self {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, heads) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let (config, kept) = (Arc::new(config), Arc::clone(&heads));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut tls = rustls::StreamOwned::new(connection, stream.unwrap());
                let mut head = Vec::new();
                let mut buffer = [0; 4096];
                while !head.ends_with(b"\r\n\r\n") {
                    match tls.read(&mut buffer) {
                        Ok(length @ 1..) => head.extend_from_slice(&buffer[..length]),
                        _ => break,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let body = if head.starts_with("GET /chunks") {
                    format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{head}\r\n0\r\n\r\n", head.len())
                } else {
                    format!("content-type: text/plain\r\ncontent-length: {}\r\n\r\n{head}", head.len())
                };
                let _ = tls.write_all(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{body}").as_bytes());
                tls.conn.send_close_notify();
                let _ = tls.flush();
                if !head.is_empty() {
                    kept.lock().unwrap().push(head);
                }
            }
        });
        Self { port, roots, heads }
    }

    fn heads(&self) -> String {
        self.heads.lock().unwrap().concat()
    }
}

/// Runs commands, all allowed, in a session with the secret for the server. Gives their results as the model reads them.
fn run(commands: &[String], echo: &Echo, settings: &serde_json::Value) -> (Stand, String) {
    let mut script = String::new();
    for (index, command) in commands.iter().enumerate() {
        script.push_str(&format!(
            "when agent=main turn={}\n  call Bash {}\n",
            index + 1,
            json!({"command": command})
        ));
    }
    script.push_str("when\n  say \"done\"\n");
    let stand = Stand::new(&script);
    fs::write(stand.home.home().join("roots.pem"), &echo.roots).unwrap();
    let program = stand
        .decurion()
        .env("DEPLOY", SECRET)
        .env("SSL_CERT_FILE", stand.home.home().join("roots.pem").to_str().unwrap())
        .args(["-p", "go", "--allowedTools", "Bash", "--settings", &settings.to_string()]);
    let run = finished(program);
    assert!(matches!(run.ending.code(), 0 | 3), "{run:?}");
    let printed = format!("{run:?}");
    assert!(!printed.contains(SECRET), "{printed}");
    let requests = stand.model.requests();
    let last = String::from_utf8(requests.last().unwrap().body.to_vec()).unwrap();
    (stand, last)
}

fn settings(port: u16) -> serde_json::Value {
    let allowed = [format!("127.0.0.1:{port}"), format!("[::1]:{port}")];
    json!({
        "secrets": {"DEPLOY": {"hosts": [format!("localhost:{port}")]}},
        "sandbox": {"network": {"allowedDomains": allowed}, "excludedCommands": ["printenv"]},
    })
}

#[test]
fn a_command_uses_a_secret_that_it_cannot_read() {
    let echo = Echo::start();
    let url = format!("https://localhost:{}", echo.port);
    // Programs skip the proxy for this name, which commands reach within their own network.
    let curl = "curl -sS --noproxy '' -x \"$HTTPS_PROXY\"";
    let commands = [
        format!("{curl} -H \"X-Key: $DEPLOY\" {url}/small; echo \"now $DEPLOY\"; env > env.txt"),
        format!("{curl} -H \"X-Key: $DEPLOY\" {url}/chunks -o got.txt; cat got.txt"),
        format!("{curl} -u \"me:$DEPLOY\" {url}/basic"),
        "cat $SSL_CERT_FILE | grep -c BEGIN; grep -c PRIVATE $SSL_CERT_FILE; echo x >> $SSL_CERT_FILE"
            .to_owned(),
    ];
    let (stand, last) = run(&commands, &echo, &settings(echo.port));
    let heads = echo.heads();
    assert_eq!(heads.matches(&format!("x-key: {SECRET}\r\n")).count(), 2, "{heads} {last}");
    // The login of the third, me:canary-….
    assert!(heads.contains("authorization: Basic bWU6Y2FuYXJ5"), "{heads}");
    assert!(last.contains("now decurion-masked-"), "{last}");
    assert!(last.contains("/chunks"), "{last}");
    assert!(last.contains("Read-only file system"), "{last}");
    // Nowhere: requests to the model, files of the command, transcripts, logs.
    for request in stand.model.requests() {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        assert!(!body.contains(SECRET) && !body.contains("Y2FuYXJ5LVpxODNrZmhzNzJsZ"), "{body}");
    }
    let work = stand.home.work();
    assert!(fs::read_to_string(work.join("env.txt")).unwrap().contains("DEPLOY=decurion-masked-"));
    assert!(fs::read_to_string(work.join("got.txt")).unwrap().contains("***"));
    let files: Vec<_> = files_below(stand.home.path().to_owned());
    assert!(files.len() > 5);
    for file in files {
        let bytes = fs::read(&file).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{file:?}");
    }
}

#[test]
fn other_hosts_and_commands_outside_get_nothing() {
    let echo = Echo::start();
    let url = format!("https://localhost:{}", echo.port);
    let fetch = format!("curl -sS --noproxy '' -x \"$HTTPS_PROXY\" -H \"X-Key: $DEPLOY\" {url}/");
    // The control: for another host the same request carries the sentinel, and the server's own TLS passes.
    let mut elsewhere = settings(echo.port);
    elsewhere["secrets"]["DEPLOY"]["hosts"] = json!(["api.example.com"]);
    elsewhere["sandbox"]["network"]["allowedDomains"]
        .as_array_mut()
        .unwrap()
        .push(json!(format!("localhost:{}", echo.port)));
    let (_, last) =
        run(&[fetch, "printenv DEPLOY; printenv NODE_EXTRA_CA_CERTS".to_owned()], &echo, &elsewhere);
    assert!(echo.heads().contains("X-Key: decurion-masked-"), "{} {last}", echo.heads());
    assert!(!echo.heads().contains(SECRET));
    // What runs outside of the sandbox has neither the sentinel nor the file.
    assert_eq!(last.matches("ca.pem").count(), 0, "{last}");
    assert!(last.contains("Exit code 1"), "{last}");
}

#[test]
fn a_session_answers_while_secrets_are_prepared() {
    let stand =
        Stand::new("when agent=main turn=1\n  call Bash {\"command\":\"touch x\"}\nwhen\n  say \"done\"\n");
    let pipe = stand.home.path().join("roots");
    finished(stand.home.program("mkfifo").arg(&pipe));
    let settings = json!({"secrets": {"DEPLOY": {"hosts": ["api.example.com"]}}}).to_string();
    let program = stand.decurion().env("DEPLOY", SECRET).env("NODE_EXTRA_CA_CERTS", &pipe);
    let program = program.args(["--allowedTools", "Bash", "--settings", &settings]).args(LED);
    let mut run = program.start_talking().unwrap();
    run.say(&prompt("go")).unwrap();
    // Opened once the certificates are read, which takes until it is closed.
    let reading = fs::File::options().write(true).open(&pipe).unwrap();
    run.say(&control("moved", &json!({"subtype": "set_permission_mode", "mode": "acceptEdits"}))).unwrap();
    next(&mut run, |line| line["response"]["request_id"] == "moved");
    drop(reading);
    next(&mut run, |line| line["type"] == "result");
    run.hang_up();
    assert_eq!(run.finish(LIMIT).unwrap().ending.code(), 0);
    assert!(stand.home.work().join("x").exists());
}

#[test]
fn commands_without_a_proxy_have_no_placeholders() {
    let command = json!({"command": "echo \"[${DEPLOY-unset}]\""});
    let stand = Stand::new(&format!("when agent=main turn=1\n  call Bash {command}\nwhen\n  say \"done\"\n"));
    let settings = json!({"secrets": {"DEPLOY": {"hosts": ["api.example.com"]}}}).to_string();
    let program = stand.landlock_alone().env("DEPLOY", SECRET).args(["-p", "go"]);
    let run = finished(program.args(["--allowedTools", "Bash", "--settings", &settings]));
    assert_eq!(run.ending.code(), 0, "{run:?}");
    let told = format!("{run:?}");
    assert!(told.contains("`secrets` has no effect"), "{told}");
    let requests = stand.model.requests();
    let last = String::from_utf8(requests.last().unwrap().body.to_vec()).unwrap();
    assert!(last.contains("[unset]"), "{last}");
}

#[test]
fn secrets_that_cannot_be_used_are_reported() {
    let stand = Stand::new("when\n  say \"done\"\n");
    let started = |secrets: &serde_json::Value, more: &[&str]| {
        let settings = json!({"secrets": secrets}).to_string();
        let run = finished(
            stand.decurion().env("DEPLOY", SECRET).args(["-p", "go", "--settings", &settings]).args(more),
        );
        (run.ending.code(), format!("{run:?}"))
    };
    let (code, told) = started(&json!({"ABSENT": {"hosts": ["x.example"]}}), &[]);
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("the variable ABSENT is not set"), "{told}");
    for (hosts, key, problem) in [
        (json!(["a.example", "https://x.example/"]), "hosts[1]", "this is the address of a page"),
        (json!(["x.example/v1"]), "hosts[0]", "this is the address of a page"),
        (json!(["10.0.0.1"]), "hosts[0]", "this is an address; name the host"),
        (json!([]), "hosts", "no host is named that may get the secret"),
    ] {
        let (code, told) = started(&json!({"DEPLOY": {"hosts": hosts}}), &[]);
        assert_eq!(code, 2, "{told}");
        assert!(told.contains(&format!("secrets.DEPLOY.{key}: {problem}")), "{told}");
        assert!(told.contains("--settings:1:") && told.contains("expected a list of hosts like"), "{told}");
    }
    // A value that is not set is no reason to pass over what is wrong with the hosts.
    let (code, told) = started(&json!({"ABSENT": {"hosts": ["https://x.example/"]}}), &[]);
    assert!(code == 2 && told.contains("secrets.ABSENT.hosts[0]"), "{told}");
}

/// A server whose certificate is the problem is told in a sentence.
#[test]
fn a_certificate_that_cannot_be_verified_is_told_in_a_sentence() {
    let of = |make: &dyn Fn(&mut CertificateParams)| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        make(&mut params);
        let certificate = params.self_signed(&key).unwrap();
        (certificate, key)
    };
    let alone = of(&|params| params.distinguished_name.push(rcgen::DnType::CommonName, "alone"));
    let authority = || of(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    for (certificate, key) in [alone, authority()] {
        // The system trusts another one.
        let echo = Echo::with(vec![certificate.der().clone()], &key, authority().0.pem());
        let url = format!("https://localhost:{}", echo.port);
        let fetch = format!("curl -sS --noproxy '' -x \"$HTTPS_PROXY\" -H \"X-Key: $DEPLOY\" {url}/");
        let (_, last) = run(&[fetch], &echo, &settings(echo.port));
        let told = "decurion: cannot open TLS to localhost: its certificate is self-signed, or signed by an authority \
                    that this system does not trust";
        assert!(last.contains(told), "{last}");
    }
    let expired = Echo::start_until(Some(2001));
    let url = format!("https://localhost:{}", expired.port);
    let fetch = format!("curl -sS --noproxy '' -x \"$HTTPS_PROXY\" -H \"X-Key: $DEPLOY\" {url}/");
    let (_, last) = run(&[fetch], &expired, &settings(expired.port));
    assert!(last.contains("decurion: cannot open TLS to localhost: its certificate has expired\""), "{last}");
}

#[test]
fn a_secret_that_is_not_utf_8_is_reported_as_such() {
    use std::os::unix::ffi::OsStrExt as _;
    let stand = Stand::new("when\n  say \"done\"\n");
    let settings = json!({"secrets": {"TOKEN": {"hosts": ["api.example.com"]}}});
    fs::create_dir_all(stand.home.path().join(".decurion")).unwrap();
    fs::write(stand.home.path().join(".decurion/settings.json"), settings.to_string()).unwrap();
    let value = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let run = finished(stand.decurion().env("TOKEN", value).args(["-p", "go"]));
    assert!(
        run.errors.contains("secrets.TOKEN: the value of the variable TOKEN is not valid UTF-8"),
        "{run:?}"
    );
}
