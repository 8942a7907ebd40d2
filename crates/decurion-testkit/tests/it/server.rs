//! The loopback model over real sockets, spoken to in raw bytes so that every write and break can be seen.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use decurion_model::Dialect;
use decurion_model::script::Script;
use decurion_testkit::server::{Answered, Answers, FakeModel, Rounds, Settings, sha256};
use serde_json::{Value, json};

const HELLO: &str = "when turn=1\n  say \"hello\"\n";

/// A client that shows everything.
struct Client {
    stream: TcpStream,
}

impl Client {
    fn new(model: &FakeModel) -> Self {
        let address = model.url().strip_prefix("http://").unwrap().to_owned();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).unwrap();
    }

    fn ask(&mut self, dialect: Dialect, body: &Value) {
        self.ask_as("main", dialect, body);
    }

    fn ask_as(&mut self, agent: &str, dialect: Dialect, body: &Value) {
        let tag = format!("x-decurion-agent: {agent}\r\n");
        match dialect {
            Dialect::Anthropic => {
                let headers = format!("x-api-key: secret-key\r\nanthropic-version: 2023-06-01\r\n{tag}");
                self.send("POST", "/v1/messages", &headers, &body.to_string());
            }
            Dialect::OpenAiChat => {
                let headers = format!("authorization: Bearer secret-key\r\n{tag}");
                self.send("POST", "/v1/chat/completions", &headers, &body.to_string());
            }
        }
    }

    /// Everything up to the end of one chunked or counted response.
    fn response(&mut self) -> String {
        let mut text = String::new();
        let mut buffer = [0; 4096];
        loop {
            let count = self.stream.read(&mut buffer).unwrap();
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                match length {
                    Some(length) => body.len() >= length.parse::<usize>().unwrap(),
                    None => body.ends_with("0\r\n\r\n"),
                }
            });
            if whole || count == 0 {
                return text;
            }
        }
    }

    /// What came before the connection broke, and how it broke.
    fn until_broken(&mut self) -> (String, std::io::ErrorKind) {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("ended in order after {}", String::from_utf8_lossy(&bytes)),
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) => return (String::from_utf8_lossy(&bytes).into_owned(), error.kind()),
            }
        }
    }
}

fn anthropic(messages: Value) -> Value {
    let bash = json!({"name": "Bash", "description": "runs", "input_schema": {"type": "object"}});
    json!({"model": "m", "max_tokens": 100, "stream": true, "tools": [bash], "messages": messages})
}

fn openai(messages: Value) -> Value {
    json!({"model": "m", "stream": true, "messages": messages})
}

fn go() -> Value {
    json!([{"role": "user", "content": "go"}])
}

#[test]
fn one_script_is_played_in_both_dialects() {
    let model = FakeModel::start(HELLO).unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let reply = client.response();
    assert!(reply.starts_with("HTTP/1.1 200 OK"), "{reply}");
    assert!(reply.contains("content-type: text/event-stream") && reply.contains("message_stop"), "{reply}");
    assert!(reply.contains(r#"{"type":"text_delta","text":"hello"}"#), "{reply}");
    // The same connection, kept open.
    client.ask(Dialect::OpenAiChat, &openai(go()));
    let reply = client.response();
    assert!(reply.contains(r#""delta":{"content":"hello"}"#) && reply.contains("data: [DONE]"), "{reply}");

    let requests = model.requests();
    let dialects: Vec<_> = requests.iter().map(|request| request.dialect.unwrap()).collect();
    assert_eq!(dialects, [Dialect::Anthropic, Dialect::OpenAiChat]);
    assert_eq!(requests[0].answer, Answered::Scripted { line: 1 });
    assert!(model.problems().is_empty());
}

#[test]
fn a_bad_request_is_refused_in_the_words_of_its_dialect() {
    let model = FakeModel::start(HELLO).unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(json!([])));
    let reply = client.response();
    assert!(reply.starts_with("HTTP/1.1 400 ") && reply.contains("x-should-retry: false"), "{reply}");
    assert!(reply.contains(r#""message":"messages: at least one message is required""#), "{reply}");
    client.ask(Dialect::OpenAiChat, &openai(json!([])));
    assert!(client.response().contains(r#"{"error":{"message":"Invalid 'messages': empty array."#));
    client.send("POST", "/v1/messages", "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n", "{");
    assert!(client.response().contains("not valid JSON"));
    client.send("POST", "/v1/messages", "", "{}");
    assert!(client.response().starts_with("HTTP/1.1 401 "));
    let mut whole = anthropic(go());
    whole["stream"] = json!(false);
    client.ask(Dialect::Anthropic, &whole);
    assert!(client.response().contains("only with streams"));
    assert_eq!(model.problems().len(), 5);
}

#[test]
fn without_validation_anything_is_answered() {
    let script = Script::parse(HELLO).unwrap();
    let settings = Settings { validate: false, ..Settings::new(Answers::Script(script)) };
    let model = FakeModel::with(settings).unwrap();
    let mut client = Client::new(&model);
    client.send("POST", "/v1/messages", "", r#"{"messages":[]}"#);
    assert!(client.response().starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn a_request_that_no_rule_fits_is_a_visible_error() {
    let model = FakeModel::start("when agent=nobody\n  say \"hello\"\n").unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let reply = client.response();
    assert!(reply.contains("no rule of the script fits") && reply.contains("turn 1"), "{reply}");
    assert_eq!(model.problems().len(), 1);
    assert!(FakeModel::start("say").is_err());
}

#[test]
fn a_request_sent_again_gets_the_same_bytes() {
    let model = FakeModel::start("when turn=1\n  call Bash {\"command\":\"true\"}\n").unwrap();
    let mut replies = Vec::new();
    for _ in 0..2 {
        let mut client = Client::new(&model);
        client.ask(Dialect::Anthropic, &anthropic(go()));
        let reply = client.response();
        replies.push(reply.split_once("\r\n\r\n").unwrap().1.to_owned());
    }
    assert_eq!(replies[0], replies[1]);
}

#[test]
fn tries_of_the_same_request_are_counted_where_a_rule_asks() {
    let model = FakeModel::start("when try=1\n  fail 529\nwhen turn=1\n  say \"at last\"\n").unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let reply = client.response();
    assert!(reply.starts_with("HTTP/1.1 529") && reply.contains("overloaded_error"), "{reply}");
    client.ask(Dialect::Anthropic, &anthropic(go()));
    assert!(client.response().contains("at last"));
}

#[test]
fn a_failure_has_its_status_and_headers() {
    let model = FakeModel::start("when turn=1\n  fail 429 retry-after=7\n").unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::OpenAiChat, &openai(go()));
    let reply = client.response();
    assert!(reply.starts_with("HTTP/1.1 429 ") && reply.contains("retry-after: 7"), "{reply}");
}

#[test]
fn a_reset_comes_after_exactly_the_bytes_asked_for() {
    for after in [0, 1, 40, 400] {
        let script = format!("when turn=1\n  say \"hello\"\n  reset after {after} bytes\n");
        let model = FakeModel::start(&script).unwrap();
        let mut client = Client::new(&model);
        client.ask(Dialect::Anthropic, &anthropic(go()));
        let (text, kind) = client.until_broken();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "{after}");
        assert_eq!(unchunked(&text).len(), after, "{text}");
    }
}

/// The body without the chunk sizes.
fn unchunked(response: &str) -> String {
    let Some((_, mut rest)) = response.split_once("\r\n\r\n") else { return String::new() };
    let mut body = String::new();
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&more[..size]);
        rest = more[size..].strip_prefix("\r\n").unwrap();
    }
    body
}

#[test]
fn writes_are_separated_where_the_script_says() {
    let model = FakeModel::start("when turn=1\n  say \"hello\"\n  split every 50\n").unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let reply = client.response();
    let (_, body) = reply.split_once("\r\n\r\n").unwrap();
    // Each piece is a chunk of its own: 0x32 bytes.
    let chunks = body.matches("\r\n32\r\n").count() + usize::from(body.starts_with("32\r\n"));
    assert!(chunks > 5, "{body}");
    assert!(unchunked(&reply).contains("message_stop"));
}

#[test]
fn a_stall_holds_the_connection_until_the_client_leaves() {
    let model = FakeModel::start("when turn=1\n  say \"hello\"\n  stall\n").unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("content_block_stop") {
        let count = client.stream.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    client.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let error = client.stream.read(&mut buffer).unwrap_err();
    assert!(matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut), "{error}");
    assert!(!text.contains("message_stop"));
}

#[test]
fn reasoning_is_remembered_over_the_wire() {
    let model = FakeModel::start(
        "when turn=1\n  think \"let me see\"\n  call Bash {\"command\":\"true\"}\nwhen turn=2\n  say \"done\"\n",
    )
    .unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    let reply = unchunked(client.response().trim_end_matches("0\r\n\r\n"));
    let find = |name: &str| {
        let (_, rest) =
            reply.split_once(&format!("\"{name}\":\"")).unwrap_or_else(|| panic!("{name}: {reply}"));
        rest.split('"').next().unwrap().to_owned()
    };
    let signature = {
        let (_, rest) = reply.split_once("signature_delta").unwrap();
        rest.split_once("\"signature\":\"").unwrap().1.split('"').next().unwrap().to_owned()
    };
    let call = reply
        .split_once("\"tool_use\",\"id\":\"")
        .map_or_else(|| find("id"), |(_, rest)| rest.split('"').next().unwrap().to_owned());
    let next = |thinking: &str| {
        anthropic(json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": thinking, "signature": signature},
                {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "true"}}
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": ""}]}
        ]))
    };
    client.ask(Dialect::Anthropic, &next("let me look"));
    assert!(client.response().contains("cannot be modified"));
    client.ask(Dialect::Anthropic, &next("let me see"));
    assert!(client.response().contains("done"));
}

#[test]
fn models_are_listed_and_other_paths_do_not_exist() {
    let model = FakeModel::start(HELLO).unwrap();
    let mut client = Client::new(&model);
    client.send("GET", "/v1/models", "", "");
    assert!(client.response().contains(r#""data":[{"id":"test-model""#));
    client.send("GET", "/v1/weather", "", "");
    let reply = client.response();
    assert!(reply.starts_with("HTTP/1.1 404 ") && reply.contains("/v1/weather"), "{reply}");
    let answers: Vec<_> = model.requests().into_iter().map(|request| request.answer).collect();
    assert_eq!(answers, [Answered::Other(200), Answered::Other(404)]);
}

#[test]
fn the_log_has_a_line_per_request_and_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let (log, bodies) = (folder.path().join("log.jsonl"), folder.path().join("bodies"));
    let settings = Settings {
        log: Some(log.clone()),
        bodies: Some(bodies.clone()),
        ..Settings::new(Answers::Script(Script::parse(HELLO).unwrap()))
    };
    let model = FakeModel::with(settings).unwrap();
    let mut client = Client::new(&model);
    let body = anthropic(go());
    client.ask_as("main/explore", Dialect::Anthropic, &body);
    client.response();
    client.ask(Dialect::OpenAiChat, &openai(json!([])));
    client.response();

    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("secret-key"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["number"], 1);
    assert_eq!(lines[0]["dialect"], "anthropic");
    assert_eq!(lines[0]["agent"], "main/explore");
    assert_eq!(lines[0]["headers"]["x-api-key"], "<redacted>");
    assert_eq!(lines[0]["sha256"], sha256(body.to_string().as_bytes()));
    assert_eq!(lines[0]["problem"], Value::Null);
    assert_eq!(lines[1]["answer"], "refused");
    assert!(lines[1]["problem"].as_str().unwrap().contains("empty array"));
    assert_eq!(std::fs::read_to_string(bodies.join("000001.json")).unwrap(), body.to_string());
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&log).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_test_can_wait_for_requests() {
    let model = FakeModel::start(HELLO).unwrap();
    assert!(model.wait_for_requests(1, Duration::ZERO).is_empty());
    let mut client = Client::new(&model);
    client.ask_as("main/a1", Dialect::Anthropic, &anthropic(go()));
    let requests = model.wait_for_requests(1, Duration::from_secs(20));
    assert_eq!(requests[0].agent, "main/a1");
    assert_eq!(requests[0].json()["messages"][0]["content"], "go");
}

#[test]
fn rounds_are_answered_until_there_are_enough() {
    let settings = Settings::new(Answers::Rounds(Rounds::new(2)));
    let model = FakeModel::with(settings).unwrap();
    let mut client = Client::new(&model);
    let mut messages = vec![json!({"role": "user", "content": "go \"role\":\"assistant\""})];
    let mut ids = Vec::new();
    for _ in 0..2 {
        client.ask(Dialect::Anthropic, &anthropic(json!(messages)));
        let reply = client.response();
        let id =
            reply.split_once("\"tool_use\",\"id\":\"").expect(&reply).1.split('"').next().unwrap().to_owned();
        let call = json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "true"}});
        messages.push(json!({"role": "assistant", "content": [call]}));
        messages.push(
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": ""}]}),
        );
        ids.push(id);
    }
    client.ask(Dialect::Anthropic, &anthropic(json!(messages)));
    assert!(client.response().contains("all rounds are done"));
    assert_ne!(ids[0], ids[1]);
    assert!(model.problems().is_empty(), "{:?}", model.problems());
}

#[test]
fn the_root_starts_agents_where_the_pattern_has_some() {
    let rounds = Rounds { agents: 3, ..Rounds::new(1) };
    let model = FakeModel::with(Settings::new(Answers::Rounds(rounds))).unwrap();
    let mut client = Client::new(&model);
    client.ask(Dialect::Anthropic, &anthropic(go()));
    assert_eq!(client.response().matches("\"name\":\"Agent\"").count(), 3);
    client.ask_as("main/worker-1", Dialect::Anthropic, &anthropic(go()));
    assert!(client.response().contains("\"name\":\"Bash\""));
}
