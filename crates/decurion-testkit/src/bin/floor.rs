//! The floor under every measurement: the same requests, shells and transcript as the product, and nothing
//! else. Takes a model's address, plays one conversation (or many at once) and prints what it cost as one
//! line of JSON.
#![allow(clippy::disallowed_methods)] // a program for tests, not part of the product

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use decurion_testkit::sys;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

const USAGE: &str = "usage: floor one-turn --url URL [OPTIONS]
       floor rounds   --url URL --rounds N [OPTIONS]
       floor agents   --url URL --rounds N --agents N [OPTIONS]
       floor resume   --url URL --transcript FILE [OPTIONS]

  --url URL          http://HOST:PORT of a model that speaks the Messages dialect
  --rounds N         the most turns to take
  --agents N         so many conversations at once
  --transcript FILE  where messages are appended, or read from (default: none, /dev/null)
  --system-bytes N   the size of the system prompt (default: 8000)
  --tools-bytes N    the size of the tool schemas (default: 16000)
  --prompt TEXT      the first message (default: go)";

fn main() -> ExitCode {
    let started = Instant::now();
    let outcome = Options::read(std::env::args().skip(1)).and_then(|options| run(options, started));
    match outcome {
        Ok(figures) => {
            let line = serde_json::to_string(&figures).unwrap_or_default();
            let _ = writeln!(io::stdout(), "{line}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            let _ = writeln!(io::stderr(), "floor: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// What a run cost.
#[derive(Serialize)]
struct Figures {
    mode: &'static str,
    requests: u64,
    /// From the beginning of the program to the moment the first request has been handed over.
    first_request_ms: f64,
    wall_ms: f64,
    /// User and system time with that of the shells.
    cpu_ms: f64,
    max_rss_kib: u64,
    transcript_bytes: u64,
    sent_bytes: u64,
}

fn run(options: Options, started: Instant) -> Result<Figures, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let mode = options.mode.name();
    let tally = runtime.block_on(play(options, started)).map_err(|error| error.to_string())?;
    let cpu = sys::used_by_self().cpu() + sys::used_by_children().cpu();
    Ok(Figures {
        mode,
        requests: tally.requests,
        first_request_ms: milliseconds(tally.first_request),
        wall_ms: milliseconds(started.elapsed()),
        cpu_ms: milliseconds(cpu),
        max_rss_kib: peak_rss_kib(),
        transcript_bytes: tally.written,
        sent_bytes: tally.sent,
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The peak of this program's own memory. `getrusage` would count what the starter held as well.
fn peak_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// What happened in all conversations together.
#[derive(Default)]
struct Tally {
    requests: u64,
    first_request: Duration,
    written: u64,
    sent: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.written += other.written;
        self.sent += other.sent;
        if self.first_request.is_zero() || other.first_request < self.first_request {
            self.first_request = other.first_request;
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn play(options: Options, started: Instant) -> Result<Tally, Failure> {
    let prefix = Bytes::from(prefix(options.system_bytes, options.tools_bytes));
    // One agent is still an agent: the model tells it from the root by its path.
    if options.mode != Mode::Agents {
        let mut conversation = Conversation::open(&options, prefix, "main".into(), started).await?;
        conversation.play(&options).await?;
        return Ok(conversation.tally);
    }
    let options = std::sync::Arc::new(options);
    let mut running = tokio::task::JoinSet::new();
    for number in 1..=options.agents {
        let (options, prefix) = (options.clone(), prefix.clone());
        running.spawn(async move {
            let path = format!("main/agent-{number}");
            let mut conversation = Conversation::open(&options, prefix, path, started).await?;
            conversation.play(&options).await?;
            Ok::<_, Failure>(conversation.tally)
        });
    }
    let mut tally = Tally::default();
    while let Some(one) = running.join_next().await {
        tally.add(&one??);
    }
    Ok(tally)
}

/// Everything before the messages, of the size asked for.
fn prefix(system_bytes: usize, tools_bytes: usize) -> String {
    let tool = |name: &str, size: usize| {
        format!(
            r#"{{"name":"{name}","description":"{}","input_schema":{{"type":"object","properties":{{"command":{{"type":"string"}}}}}}}}"#,
            "d".repeat(size.saturating_sub(110).max(1))
        )
    };
    format!(
        r#"{{"model":"test-model","max_tokens":32000,"stream":true,"tools":[{},{}],"system":[{{"type":"text","text":"{}","cache_control":{{"type":"ephemeral"}}}}],"messages":["#,
        tool("Bash", tools_bytes / 2),
        tool("Read", tools_bytes / 2),
        "s".repeat(system_bytes.max(1))
    )
}

/// One conversation with the model.
struct Conversation {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    path: String,
    prefix: Bytes,
    /// The messages so far, as they stand in a request.
    messages: Vec<u8>,
    transcript: File,
    started: Instant,
    tally: Tally,
}

impl Conversation {
    async fn open(options: &Options, prefix: Bytes, path: String, started: Instant) -> Result<Self, Failure> {
        let host = options.url.strip_prefix("http://").ok_or("the url does not begin with http://")?;
        let host = host.trim_end_matches('/').to_owned();
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let reads = options.mode == Mode::Resume;
        let file = if reads { "/dev/null" } else { options.transcript.as_deref().unwrap_or("/dev/null") };
        let transcript = OpenOptions::new().create(true).append(true).mode(0o600).open(file)?;
        let tally = Tally::default();
        Ok(Self { sender, host, path, prefix, messages: Vec::new(), transcript, started, tally })
    }

    async fn play(&mut self, options: &Options) -> Result<(), Failure> {
        if let (Mode::Resume, Some(file)) = (options.mode, &options.transcript) {
            self.read_transcript(file)?;
            return self.turn().await.map(drop);
        }
        self.add(&message("user", &[Block::Text { text: options.prompt.clone() }])?)?;
        for _ in 0..options.rounds.saturating_add(1) {
            let calls = self.turn().await?;
            if calls.is_empty() {
                break;
            }
            let mut results = Vec::with_capacity(calls.len());
            for (id, command) in calls {
                let content = run_shell(&command).await?;
                results.push(Block::ToolResult { tool_use_id: id, content });
            }
            self.add(&message("user", &results)?)?;
        }
        Ok(())
    }

    /// One request and its reply; gives the shell calls in it.
    async fn turn(&mut self) -> Result<Vec<(String, String)>, Failure> {
        let mut body = Vec::with_capacity(self.prefix.len() + self.messages.len() + 2);
        body.extend_from_slice(&self.prefix);
        body.extend_from_slice(&self.messages);
        body.extend_from_slice(b"]}");
        self.tally.sent += body.len() as u64;
        let request = Request::post("/v1/messages")
            .header("host", &self.host)
            .header("content-type", "application/json")
            .header("x-api-key", "floor")
            .header("anthropic-version", "2023-06-01")
            .header("x-decurion-agent", &self.path)
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request);
        if self.tally.requests == 0 {
            self.tally.first_request = self.started.elapsed();
        }
        self.tally.requests += 1;
        let response = response.await?;
        if !response.status().is_success() {
            let body = response.into_body().collect().await?.to_bytes();
            return Err(String::from_utf8_lossy(&body).into_owned().into());
        }
        let mut reply = Reply::default();
        let mut stream = response.into_body();
        while let Some(frame) = stream.frame().await {
            if let Ok(data) = frame?.into_data() {
                reply.read(&data)?;
            }
        }
        self.add(&message("assistant", &reply.blocks)?)?;
        Ok(reply.calls())
    }

    /// Adds a message to the conversation and writes it down with one `write`.
    fn add(&mut self, message: &str) -> io::Result<()> {
        if !self.messages.is_empty() {
            self.messages.push(b',');
        }
        self.messages.extend_from_slice(message.as_bytes());
        let mut line = Vec::with_capacity(message.len() + 1);
        line.extend_from_slice(message.as_bytes());
        line.push(b'\n');
        self.tally.written += line.len() as u64;
        self.transcript.write_all(&line)
    }

    /// Reads a transcript, ours or one whose lines hold a `message`, and parses every line of it.
    fn read_transcript(&mut self, file: &str) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Line<'a> {
            role: Option<&'a str>,
            #[serde(borrow)]
            message: Option<&'a RawValue>,
        }
        let text = std::fs::read_to_string(file)?;
        self.messages.reserve_exact(text.len());
        for line in text.lines() {
            let parsed: Line = serde_json::from_str(line)?;
            let message = match parsed {
                Line { role: Some(_), .. } => line,
                Line { message: Some(message), .. } => message.get(),
                _ => continue,
            };
            if !self.messages.is_empty() {
                self.messages.push(b',');
            }
            self.messages.extend_from_slice(message.as_bytes());
        }
        Ok(())
    }
}

async fn run_shell(command: &str) -> Result<String, Failure> {
    let shell = sys::start_shell(command)?;
    let mut output = tokio::net::unix::pipe::Receiver::from_owned_fd(shell.output)?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes).await?;
    // A shell that has closed its output is ending; this hardly waits.
    sys::wait_for(Some(shell.pid))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text { text: String },
    ToolUse { id: String, name: String, input: Box<RawValue> },
    ToolResult { tool_use_id: String, content: String },
}

fn message(role: &str, blocks: &[Block]) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Message<'a> {
        role: &'a str,
        content: &'a [Block],
    }
    serde_json::to_string(&Message { role, content: blocks })
}

/// A reply being read from its event stream.
#[derive(Default)]
struct Reply {
    line: Vec<u8>,
    blocks: Vec<Block>,
    /// The input of the call that is being read.
    input: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StreamEvent {
    ContentBlockStart {
        content_block: Start,
    },
    ContentBlockDelta {
        delta: Piece,
    },
    ContentBlockStop,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Start {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Piece {
    TextDelta {
        text: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    #[serde(other)]
    Other,
}

impl Reply {
    fn read(&mut self, data: &[u8]) -> Result<(), Failure> {
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if let Some(event) = line.strip_prefix(b"data: ") {
                    self.take(serde_json::from_slice(event)?)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, event: StreamEvent) -> Result<(), Failure> {
        match event {
            StreamEvent::ContentBlockStart { content_block: Start::Text { text } } => {
                self.blocks.push(Block::Text { text });
            }
            StreamEvent::ContentBlockStart { content_block: Start::ToolUse { id, name } } => {
                self.input.clear();
                self.blocks.push(Block::ToolUse { id, name, input: RawValue::from_string("{}".into())? });
            }
            StreamEvent::ContentBlockDelta { delta: Piece::TextDelta { text: more } } => {
                if let Some(Block::Text { text }) = self.blocks.last_mut() {
                    text.push_str(&more);
                }
            }
            StreamEvent::ContentBlockDelta { delta: Piece::InputJsonDelta { partial_json } } => {
                self.input.push_str(&partial_json);
            }
            StreamEvent::ContentBlockStop => {
                if let Some(Block::ToolUse { input, .. }) = self.blocks.last_mut()
                    && !self.input.is_empty()
                {
                    *input = RawValue::from_string(std::mem::take(&mut self.input))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The shell calls: id and command.
    fn calls(&self) -> Vec<(String, String)> {
        #[derive(Deserialize)]
        struct Input {
            command: String,
        }
        let call = |block: &Block| match block {
            Block::ToolUse { id, name, input } if name == "Bash" => {
                let input: Input = serde_json::from_str(input.get()).ok()?;
                Some((id.clone(), input.command))
            }
            _ => None,
        };
        self.blocks.iter().filter_map(call).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    OneTurn,
    Rounds,
    Agents,
    Resume,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::OneTurn => "one-turn",
            Self::Rounds => "rounds",
            Self::Agents => "agents",
            Self::Resume => "resume",
        }
    }
}

struct Options {
    mode: Mode,
    url: String,
    rounds: u32,
    agents: u32,
    transcript: Option<String>,
    system_bytes: usize,
    tools_bytes: usize,
    prompt: String,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mode = arguments.next().unwrap_or_default();
        let modes = [Mode::OneTurn, Mode::Rounds, Mode::Agents, Mode::Resume];
        let Some(mode) = modes.into_iter().find(|one| one.name() == mode) else {
            return Err(format!("no such mode: {mode}\n\n{USAGE}"));
        };
        let mut options = Self {
            mode,
            url: String::new(),
            rounds: 0,
            agents: 1,
            transcript: None,
            system_bytes: 8000,
            tools_bytes: 16000,
            prompt: "go".into(),
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("no value is given for {name}"))?;
            match name.as_str() {
                "--url" => options.url = value,
                "--rounds" => options.rounds = number(&value)?,
                "--agents" => options.agents = number(&value)?,
                "--transcript" => options.transcript = Some(value),
                "--system-bytes" => options.system_bytes = number(&value)?,
                "--tools-bytes" => options.tools_bytes = number(&value)?,
                "--prompt" => options.prompt = value,
                _ => return Err(format!("no such option: {name}\n\n{USAGE}")),
            }
        }
        if mode == Mode::Resume && options.transcript.is_none() {
            return Err("resume needs --transcript".into());
        }
        Ok(options)
    }
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}
