//! Logging in to a server, against an authorization server on loopback that checks what a real one would.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use decurion_tools::oauth::{Leave, Login, OauthError, renew};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const NOW: i64 = 1_800_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// How the authorization server differs from a good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    None,
    OtherIssuer,
    NoPkce,
    NoRegistration,
    NoMetadata,
    Mac,
    Floods,
}

#[derive(Default)]
struct Seen {
    challenge: String,
    redirect: String,
    tokens: Vec<HashMap<String, String>>,
}

/// A server that is its own authorization server below `/as`; gives its address.
async fn server(twist: Twist) -> (String, Arc<Mutex<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (own, kept) = (base.clone(), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, own.clone(), twist, Arc::clone(&kept)));
        }
    });
    (base, seen)
}

async fn serve(mut stream: TcpStream, base: String, twist: Twist, seen: Arc<Mutex<Seen>>) {
    let Some((path, body)) = request(&mut stream).await else { return };
    let (status, value) = answer(&path, &body, &base, twist, &seen);
    let mut text = value.to_string();
    if twist == Twist::Floods && path.contains("oauth-authorization-server") {
        text = " ".repeat(1 << 20) + &text;
    }
    let head = format!("HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let page = format!("{head}content-length: {}\r\n\r\n{text}", text.len());
    let _ = stream.write_all(page.as_bytes()).await;
}

async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(read).ok()?.to_ascii_lowercase();
    let length =
        head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head.split(' ').nth(1)?.to_owned(), String::from_utf8(body).ok()?))
}

fn answer(path: &str, body: &str, base: &str, twist: Twist, seen: &Arc<Mutex<Seen>>) -> (u16, Value) {
    let issuer = format!("{base}/as");
    match path {
        "/.well-known/oauth-protected-resource/mcp" => (200, json!({"authorization_servers": [issuer]})),
        "/.well-known/oauth-authorization-server/as" if twist != Twist::NoMetadata => {
            let mut metadata = json!({
                "issuer": if twist == Twist::OtherIssuer { "https://elsewhere.example" } else { &issuer },
                "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"),
                "registration_endpoint": format!("{issuer}/register"),
                "code_challenge_methods_supported": if twist == Twist::NoPkce { json!(["plain"]) } else { json!(["S256"]) },
            });
            if twist == Twist::NoRegistration {
                metadata["registration_endpoint"] = Value::Null;
            }
            (200, metadata)
        }
        "/as/register" => {
            let value: Value = serde_json::from_str(body).unwrap();
            let redirect = value["redirect_uris"][0].as_str().unwrap();
            redirect.clone_into(&mut seen.lock().unwrap().redirect);
            (201, json!({"client_id": "client-7"}))
        }
        "/as/token" => tokens(body, twist, &mut seen.lock().unwrap()),
        _ => (404, Value::Null),
    }
}

/// Checks a request for tokens as RFC 6749 and 7636 want it.
fn tokens(body: &str, twist: Twist, seen: &mut Seen) -> (u16, Value) {
    let url = Url::parse(&format!("form:?{body}")).unwrap();
    let form: HashMap<String, String> = url.query_pairs().into_owned().collect();
    seen.tokens.push(form.clone());
    let kind = if twist == Twist::Mac { "mac" } else { "Bearer" };
    match form["grant_type"].as_str() {
        "authorization_code" => {
            let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(form["code_verifier"].as_bytes()));
            if challenge != seen.challenge
                || form["code"] != "the-code"
                || form["redirect_uri"] != seen.redirect
            {
                return (400, json!({"error": "invalid_grant", "error_description": "not\u{7} so"}));
            }
            (
                200,
                json!({"access_token": "a1", "token_type": kind, "expires_in": 3600, "refresh_token": "r1"}),
            )
        }
        "refresh_token" if form["refresh_token"] == "r1" => {
            (200, json!({"access_token": "a2", "token_type": "bearer"}))
        }
        _ => (400, json!({"error": "invalid_grant"})),
    }
}

/// What a browser does: opens the address, and is sent back with a code.
async fn browse(
    login_address: &str,
    seen: &Arc<Mutex<Seen>>,
    change: impl Fn(&mut Vec<(String, String)>),
) -> String {
    let url = Url::parse(login_address).unwrap();
    let asked: HashMap<String, String> = url.query_pairs().into_owned().collect();
    assert_eq!((asked["client_id"].as_str(), asked["response_type"].as_str()), ("client-7", "code"));
    assert_eq!(asked["code_challenge_method"], "S256");
    seen.lock().unwrap().challenge.clone_from(&asked["code_challenge"]);
    let mut answers =
        vec![("code".to_owned(), "the-code".to_owned()), ("state".to_owned(), asked["state"].clone())];
    change(&mut answers);
    let mut back = Url::parse(&asked["redirect_uri"]).unwrap();
    back.query_pairs_mut().extend_pairs(answers);
    let address = format!("{}:{}", back.host_str().unwrap(), back.port().unwrap());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let line = format!("GET {}?{} HTTP/1.1\r\nhost: x\r\n\r\n", back.path(), back.query().unwrap());
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).await.unwrap();
    page.split("\r\n").next().unwrap().to_owned()
}

async fn logged_in() -> (Leave, Arc<Mutex<Seen>>) {
    let (base, seen) = server(Twist::None).await;
    let login = Login::begin(&format!("{base}/mcp"), Some("files")).await.unwrap();
    assert!(login.address.contains("scope=files"), "{}", login.address);
    let address = login.address.clone();
    let finishing = tokio::spawn(login.finish(PATIENCE, NOW));
    assert_eq!(browse(&address, &seen, |_| {}).await, "HTTP/1.1 200 OK");
    (finishing.await.unwrap().unwrap(), seen)
}

#[tokio::test]
async fn a_person_agrees_and_tokens_are_given_and_renewed() {
    let (leave, seen) = logged_in().await;
    assert_eq!((leave.access_token.as_str(), leave.refresh_token.as_deref()), ("a1", Some("r1")));
    assert_eq!(leave.expires_at, Some(NOW + 3600));
    assert!(leave.resource.ends_with("/mcp"));
    assert_eq!(seen.lock().unwrap().tokens[0]["resource"], leave.resource);
    assert_eq!([0, 3539, 3540].map(|after| leave.is_over(NOW + after)), [false, false, true]);
    let fresh = renew(&leave, NOW + 3600).await.unwrap();
    assert_eq!((fresh.access_token.as_str(), fresh.refresh_token.as_deref()), ("a2", Some("r1")));
    assert!(fresh.expires_at.is_none() && !fresh.is_over(i64::MAX - 60));
    assert!(!format!("{leave:?}").contains("a1"), "a secret is not printed: {leave:?}");
    let spent = Leave { refresh_token: Some("r0".into()), ..leave.clone() };
    assert_eq!(
        renew(&spent, NOW).await.unwrap_err().to_string(),
        "the authorization server refused: invalid_grant (HTTP 400)"
    );
    let none = Leave { refresh_token: None, ..leave };
    assert!(renew(&none, NOW).await.unwrap_err().to_string().contains("cannot be renewed"));
}

#[tokio::test]
async fn only_the_answer_to_our_question_counts() {
    let (base, seen) = server(Twist::None).await;
    let login = Login::begin(&format!("{base}/mcp"), None).await.unwrap();
    let address = login.address.clone();
    let finishing = tokio::spawn(login.finish(PATIENCE, NOW));
    let forged = |answers: &mut Vec<(String, String)>| answers[1].1 = "guessed".to_owned();
    assert_eq!(browse(&address, &seen, forged).await, "HTTP/1.1 404 Not Found");
    assert!(!finishing.is_finished(), "the wait goes on");
    let other = |answers: &mut Vec<(String, String)>| {
        answers.push(("iss".into(), "https://elsewhere.example".into()));
    };
    assert_eq!(browse(&address, &seen, other).await, "HTTP/1.1 400 Bad Request");
    assert!(matches!(finishing.await.unwrap(), Err(OauthError::Unsuitable { .. })));
}

#[tokio::test]
async fn a_refusal_is_passed_on_in_one_line() {
    let (base, seen) = server(Twist::None).await;
    let login = Login::begin(&format!("{base}/mcp"), None).await.unwrap();
    let address = login.address.clone();
    let finishing = tokio::spawn(login.finish(PATIENCE, NOW));
    let denied = |answers: &mut Vec<(String, String)>| {
        answers[0] = ("error".into(), "access_denied".into());
        answers.push(("error_description".into(), "the user\nsaid no".into()));
    };
    assert_eq!(browse(&address, &seen, denied).await, "HTTP/1.1 400 Bad Request");
    let error = finishing.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the authorization server refused: the usersaid no");
}

#[tokio::test]
async fn servers_that_cannot_be_used_say_why() {
    #[rustfmt::skip]
    let rows = [
        (Twist::OtherIssuer, "it calls itself by another name"),
        (Twist::NoPkce, "it does not do PKCE with S256"),
        (Twist::NoRegistration, "does not let programs make themselves known"),
        (Twist::NoMetadata, "does not say where to log in"),
        (Twist::Floods, "its answer is too long"),
    ];
    for (twist, words) in rows {
        let (base, _) = server(twist).await;
        let error = Login::begin(&format!("{base}/mcp"), None).await.err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(words)), "{twist:?}: {error:?}");
    }
    for address in ["http://example.org/mcp", "ftp://127.0.0.1/", "nothing"] {
        let error = Login::begin(address, None).await.err().map(|error| error.to_string()).unwrap();
        assert!(error.contains("not an https address"), "{address}: {error}");
    }
}

/// People put keys into addresses, and errors go to logs and screens.
#[tokio::test]
async fn no_error_shows_what_may_be_a_secret_in_an_address() {
    let (silent, _) = server(Twist::NoMetadata).await;
    let (floods, _) = server(Twist::Floods).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let with_secrets =
        |base: &str| format!("{}/mcp?key=hunter2#hunter2", base.replacen("://", "://me:hunter2@", 1));
    let rows = [
        (with_secrets(&silent), "does not say where to log in"),
        (with_secrets(&floods), "its answer is too long"),
        (with_secrets(&nobody), "cannot reach http://127.0.0.1:"),
        (with_secrets("http://example.org"), "not an https address"),
        ("me:hunter2@example.org?key=hunter2".to_owned(), "not an https address"),
        ("https://me:hunter2@[?hunter2".to_owned(), "not an https address"),
        ("hunter2@example.org/mcp#hunter2".to_owned(), "not an https address"),
    ];
    for (address, words) in rows {
        let error = Login::begin(&address, None).await.err().map(|error| error.to_string()).unwrap();
        assert!(error.contains(words), "{address}: {error}");
        assert!(!error.contains("hunter2"), "{address}: {error}");
    }
}

#[tokio::test]
async fn tokens_of_another_kind_are_refused() {
    let (base, seen) = server(Twist::Mac).await;
    let login = Login::begin(&format!("{base}/mcp"), None).await.unwrap();
    let address = login.address.clone();
    let finishing = tokio::spawn(login.finish(PATIENCE, NOW));
    browse(&address, &seen, |_| {}).await;
    assert!(finishing.await.unwrap().unwrap_err().to_string().contains("not of the kind `Bearer`: mac"));
}

#[tokio::test]
async fn nobody_who_agrees_ends_the_wait() {
    let (base, _) = server(Twist::None).await;
    let login = Login::begin(&format!("{base}/mcp"), None).await.unwrap();
    tokio::time::pause();
    assert!(matches!(login.finish(PATIENCE, NOW).await, Err(OauthError::Nobody(30))));
}
