//! The host's messages on standard input. Takes bytes, gives one message for each line, or what is wrong with it; a
//! line that is too long, cut off or not JSON never stops the lines after it.

use std::collections::VecDeque;
use std::time::Duration;

use decurion_protocol::{
    Answer, Block, Changes, Command, ElicitationAction, Elicited, Inspected, LineId, Mode, PermissionUpdate,
    Private, Question, Rewound, Ruling, TaskId, Verdict,
};
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::time::{Instant, timeout_at};

use crate::control::{self, Lookup, ReplyShape};
use crate::converse::misunderstood;
use crate::initialize::Initialize;

/// The longest line that is taken.
pub const MOST_LINE: usize = 16 << 20;

/// How long a greeting is waited for by a host that waits itself.
const GREETED_WITHIN: Duration = Duration::from_secs(1);
/// How many lines may come before a greeting.
const MOST_BEFORE: usize = 64;
/// How many bytes may come before it.
const MOST_BYTES_BEFORE: usize = 1 << 20;

/// Lines of a host, each bounded. Reading can be given up at any await and gone on with later.
pub struct HostReader<R> {
    reader: R,
    line: Vec<u8>,
    /// How much of a line that is too long has gone by, and what it is about.
    dropped: usize,
    about: About,
    number: u64,
    is_over: bool,
    /// How many bytes all lines had so far.
    bytes: usize,
    /// Lines that were looked at and not taken yet.
    held: VecDeque<HostLine>,
}

/// How long a session that has not begun waits for its host's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until there is work, or a request of the host waits for the session.
    Long,
    /// A moment: it may have agents that work in the background.
    Short,
}

#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // one at a time, taken apart at once
pub enum HostLine {
    /// A message that can be acted on.
    Said(HostMessage),
    /// A line that cannot, and why.
    Wrong(Wrong),
    End,
}

/// A line that cannot be acted on.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The subject, so that no one waits for it.
    pub about: About,
    /// The line's number and what is wrong with it.
    pub reason: String,
}

/// What a line is about, as far as that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum About {
    #[default]
    Nothing,
    /// A request of the host, by its id.
    Request(String),
    /// A request of ours that it answers, by its id.
    Answer(String),
    /// Work that cannot be done.
    Prompt,
}

/// What a host says.
#[derive(Debug, PartialEq)]
pub enum HostMessage {
    Work(Command),
    /// Work on this, although part of it was left out.
    Amended {
        work: Command,
        /// The line's member, what is wrong with it, and what was done about that.
        problem: String,
    },
    /// Something that the next prompt begins with, and that is no prompt itself.
    Beforehand(Vec<Block>),
    /// A request of the host.
    Request {
        /// Chosen by the host.
        id: String,
        request: Control,
    },
    /// It no longer wants the answer to one of its requests.
    Cancel(String),
    /// The answer to a request of ours.
    Response {
        id: String,
        /// The answer, or why there is none.
        answer: Result<Value, String>,
    },
    /// Nothing to act on.
    Nothing,
}

/// What a host asks for.
#[derive(Debug, PartialEq)]
pub enum Control {
    /// What there is, and how the session should be.
    Initialize(Box<Initialize>),
    /// Something that the session does.
    Do(Command, ReplyShape),
    /// Several things that it does, in this order.
    All(Vec<Command>, ReplyShape),
    /// Something that is known without it.
    Look(Lookup),
    /// To use these MCP servers, as the host declares them.
    SetServers(serde_json::Map<String, Value>),
    /// Something that cannot be done, and why.
    Refused(String),
    /// Something that is not offered.
    Unsupported(String),
    /// A mode that does not exist.
    BadMode(String),
}

impl<R: AsyncBufRead + Unpin> HostReader<R> {
    /// The lines of this reader.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            line: Vec::new(),
            dropped: 0,
            about: About::Nothing,
            number: 0,
            is_over: false,
            bytes: 0,
            held: VecDeque::new(),
        }
    }

    /// What the host wants of the session, if it says so before the first work. Earlier messages are kept, and so is
    /// the greeting; only a request that is not understood, which may be a greeting that is corrected next, is answered
    /// at once. A host that asks for something else first may wait for that answer, so the wait for a greeting ends
    /// soon after.
    pub async fn greeting(
        &mut self,
        patience: Patience,
        answer: &mut dyn FnMut(Vec<u8>),
    ) -> Option<&Initialize> {
        let soon = || Instant::now() + GREETED_WITHIN;
        let mut until = (patience == Patience::Short).then(soon);
        while self.awaits_greeting() {
            let heard = match until {
                None => self.read().await,
                Some(until) => match timeout_at(until, self.read()).await {
                    Ok(heard) => heard,
                    Err(_) => break,
                },
            };
            self.held.push_back(match heard {
                HostLine::Wrong(Wrong { about: About::Request(id), reason }) => {
                    answer(misunderstood(&id, &reason));
                    HostLine::Wrong(Wrong { about: About::Nothing, reason })
                }
                HostLine::Said(HostMessage::Nothing) => continue,
                heard => heard,
            });
            if let Some(HostLine::Said(HostMessage::Request { .. })) = self.held.back() {
                until = until.or_else(|| Some(soon()));
            }
        }
        match self.held.back() {
            Some(HostLine::Said(HostMessage::Request { request: Control::Initialize(wanted), .. })) => {
                Some(wanted)
            }
            _ => None,
        }
    }

    /// Whether the last line that was looked at leaves it open whether a greeting comes.
    fn awaits_greeting(&self) -> bool {
        let has_room = self.held.len() < MOST_BEFORE && self.bytes < MOST_BYTES_BEFORE;
        has_room
            && match self.held.back() {
                Some(HostLine::Wrong(Wrong { about, .. })) => *about != About::Prompt,
                Some(HostLine::Said(HostMessage::Request { request, .. })) => {
                    !matches!(request, Control::Initialize(_))
                }
                Some(HostLine::Said(HostMessage::Work(_) | HostMessage::Amended { .. }) | HostLine::End) => {
                    false
                }
                None
                | Some(HostLine::Said(
                    HostMessage::Beforehand(_)
                    | HostMessage::Cancel(_)
                    | HostMessage::Response { .. }
                    | HostMessage::Nothing,
                )) => true,
            }
    }

    /// The id of the request that the greeting is, so that it can be answered without a session too.
    pub fn greeting_id(&self) -> Option<&str> {
        match self.held.back() {
            Some(HostLine::Said(HostMessage::Request { id, request: Control::Initialize(_) })) => Some(id),
            _ => None,
        }
    }

    /// The next line; after the end, the end again.
    pub async fn next(&mut self) -> HostLine {
        match self.held.pop_front() {
            Some(held) => held,
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> HostLine {
        while !self.is_over {
            let bytes = match self.reader.fill_buf().await {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.is_over = true;
                    return self.wrong(About::Nothing, &format!("standard input cannot be read: {error}"));
                }
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.dropped > 0 || self.line.len() + piece.len() > MOST_LINE {
                self.dropped += self.line.len() + piece.len();
                if !self.line.is_empty() {
                    self.about = about(&std::mem::take(&mut self.line));
                }
            } else {
                self.line.extend_from_slice(piece);
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.is_over = bytes.is_empty();
            self.reader.consume(taken);
            if (end.is_some() || self.is_over)
                && let Some(heard) = self.whole()
            {
                return heard;
            }
        }
        HostLine::End
    }

    /// What the line gathered so far says; none if there is nothing in it.
    fn whole(&mut self) -> Option<HostLine> {
        let line = std::mem::take(&mut self.line);
        self.bytes = self.bytes.saturating_add(line.len());
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.number += 1;
            let about = std::mem::take(&mut self.about);
            return Some(self.wrong(about, &format!("longer than {MOST_LINE} bytes: {dropped}")));
        }
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        if is_blank && self.is_over {
            return None;
        }
        self.number += 1;
        if is_blank {
            return None;
        }
        let read = serde_json::from_slice::<Value>(&line);
        let read = read.or_else(|error| {
            // Half a character is what is left of a text that a program cut in the middle of one.
            let mended = with_whole_characters(&line).ok_or(error)?;
            serde_json::from_slice(&mended)
        });
        Some(match read {
            Ok(value) => match parse(&value) {
                Ok(HostMessage::Amended { work, problem }) => {
                    let problem = format!("input line {}: {problem}", self.number);
                    HostLine::Said(HostMessage::Amended { work, problem })
                }
                Ok(said) => HostLine::Said(said),
                Err(reason) => self.wrong(about(&line), &reason),
            },
            Err(error) if self.is_over => {
                self.wrong(about(&line), &format!("cut off before its end: {error}"))
            }
            Err(error) => self.wrong(about(&line), &format!("not JSON: {error}")),
        })
    }

    fn wrong(&self, about: About, reason: &str) -> HostLine {
        HostLine::Wrong(Wrong { about, reason: format!("input line {}: {reason}", self.number) })
    }
}

/// The line with U+FFFD for every escape that is half a character; none if there is none.
fn with_whole_characters(line: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let digits = line.get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    let (mut mended, mut at, mut is_mended) = (Vec::with_capacity(line.len()), 0, false);
    while at < line.len() {
        let length = match (line[at], unit(at), unit(at + 6)) {
            (b'\\', Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (b'\\', Some(0xD800..=0xDFFF), _) => {
                mended.extend_from_slice("\u{fffd}".as_bytes());
                (at, is_mended) = (at + 6, true);
                continue;
            }
            (b'\\', Some(_), _) => 6,
            (b'\\', None, _) => 2,
            _ => 1,
        };
        let end = line.len().min(at + length);
        mended.extend_from_slice(&line[at..end]);
        at = end;
    }
    is_mended.then_some(mended)
}

/// The subject of a line, even if the rest of it is wrong.
fn about(line: &[u8]) -> About {
    let mut seen = SeenLine::default();
    // It ends where the line can be read no further; what was seen until then counts.
    let _ = seen.deserialize(&mut serde_json::Deserializer::from_slice(line));
    match (seen.kind.as_deref(), seen.id, seen.answered) {
        (Some("control_request"), Some(id), _) => About::Request(id),
        (Some("control_response"), _, Some(id)) => About::Answer(id),
        (Some("user"), ..) => About::Prompt,
        _ => About::Nothing,
    }
}

/// What was seen of a line so far.
#[derive(Default)]
struct SeenLine {
    is_inside: bool,
    kind: Option<String>,
    id: Option<String>,
    /// The id inside of its `response`.
    answered: Option<String>,
}

impl<'de> DeserializeSeed<'de> for &mut SeenLine {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut SeenLine {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            match (name.as_str(), self.is_inside) {
                ("type", false) => self.kind = members.next_value()?,
                ("request_id", false) => self.id = members.next_value()?,
                ("request_id", true) => self.answered = members.next_value()?,
                ("response", false) => {
                    self.is_inside = true;
                    members.next_value_seed(&mut *self)?;
                    self.is_inside = false;
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// What a line says.
fn parse(value: &Value) -> Result<HostMessage, String> {
    let kind = text(value, "type").ok_or("`type` is missing")?;
    match kind {
        "user" => user(value),
        "control_request" => {
            let id = text(value, "request_id").ok_or("`request_id` is missing")?.to_owned();
            let request = value.get("request").ok_or("`request` is missing")?;
            Ok(HostMessage::Request { id, request: control(request)? })
        }
        "control_response" => {
            let response = value.get("response").ok_or("`response` is missing")?;
            let id = text(response, "request_id").ok_or("`response.request_id` is missing")?.to_owned();
            let answer = match text(response, "subtype") {
                Some("success") => Ok(response.get("response").cloned().unwrap_or_default()),
                Some("error") => Err(text(response, "error").unwrap_or("it did not say why").to_owned()),
                _ => return Err("`response.subtype` is neither `success` nor `error`".to_owned()),
            };
            Ok(HostMessage::Response { id, answer })
        }
        "control_cancel_request" => {
            let id = text(value, "request_id").ok_or("`request_id` is missing")?;
            Ok(HostMessage::Cancel(id.to_owned()))
        }
        "keep_alive" => Ok(HostMessage::Nothing),
        other => Err(format!("not a kind of message that is known: {other:?}")),
    }
}

/// A message of the user: text, or blocks of text, images and documents.
fn user(value: &Value) -> Result<HostMessage, String> {
    let message = value.get("message").ok_or("`message` is missing")?;
    if text(message, "role").is_some_and(|role| role != "user") {
        return Err("`message.role` is not `user`".to_owned());
    }
    let blocks = match message.get("content") {
        Some(Value::String(text)) => vec![Block::text(text.as_str())],
        Some(Value::Array(blocks)) => blocks
            .iter()
            .enumerate()
            .map(|(index, block)| user_block(index, block))
            .collect::<Result<_, _>>()?,
        _ => return Err("`message.content` is neither text nor a list of blocks".to_owned()),
    };
    let is_empty = |block: &Block| matches!(block, Block::Text { text } if text.trim().is_empty());
    if blocks.iter().all(is_empty) {
        return Err("`message.content` is empty".to_owned());
    }
    match value.get("shouldQuery") {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(Value::Bool(false)) => return Ok(HostMessage::Beforehand(blocks)),
        Some(_) => return Err("`shouldQuery` is neither true nor false".to_owned()),
    }
    let line = match value.get("uuid") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(uuid)) => uuid.parse::<LineId>().map(Some).map_err(|error| error.to_string()),
        Some(_) => Err("it is not a text".to_owned()),
    };
    Ok(match (work(blocks), line) {
        (Command::Prompt { blocks }, Ok(Some(line))) => HostMessage::Work(Command::Submit { line, blocks }),
        (work, Ok(_)) => HostMessage::Work(work),
        // The sender waits for its result.
        (work, Err(error)) => {
            HostMessage::Amended { work, problem: format!("`uuid`: {error}; the message has another id") }
        }
    })
}

fn user_block(index: usize, value: &Value) -> Result<Block, String> {
    let wrong = |reason: &str| format!("`message.content[{index}]`: {reason}");
    let block: Block = serde_json::from_value(value.clone()).map_err(|error| wrong(&error.to_string()))?;
    match block {
        Block::Text { .. } | Block::Image { .. } | Block::Document { .. } => Ok(block),
        _ => Err(wrong("neither text, image nor document")),
    }
}

/// What a prompt asks for: work, or the one command that is typed like a prompt.
fn work(blocks: Vec<Block>) -> Command {
    if let [Block::Text { text }] = blocks.as_slice()
        && let Some(rest) = text.trim().strip_prefix("/compact")
        && (rest.is_empty() || rest.starts_with(char::is_whitespace))
    {
        let instructions = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
        return Command::Compact { instructions };
    }
    Command::Prompt { blocks }
}

/// What a request asks for.
fn control(request: &Value) -> Result<Control, String> {
    let subtype = text(request, "subtype").ok_or("`request.subtype` is missing")?;
    let wish = KindedRequest { request, subtype };
    Ok(match subtype {
        "initialize" => Control::Initialize(Box::new(Initialize::parse(request)?)),
        "interrupt" | "cancel_async_message" => wish.to_stop()?,
        "stop_task" | "background_tasks" | "get_task_output" => wish.about_a_task()?,
        "set_permission_mode" => match wish.needed("mode")?.parse::<Mode>() {
            Ok(mode) => Control::Do(Command::SetMode { mode }, ReplyShape::Fixed(json!({"mode": mode}))),
            Err(error) => Control::BadMode(error.to_string()),
        },
        "set_model" | "set_max_thinking_tokens" => wish.about_the_model()?,
        "apply_flag_settings" => {
            let settings = request.get("settings").and_then(Value::as_object);
            let settings = settings.ok_or("`request.settings` is missing or not an object")?;
            match control::flag_settings(settings) {
                Ok(command) => Control::All(command.into_iter().collect(), nothing()),
                Err(reason) => Control::Refused(reason),
            }
        }
        "rewind_files" => wish.to_rewind()?,
        "mcp_set_servers" | "mcp_reconnect" | "mcp_toggle" => wish.about_servers()?,
        "get_context_usage" => look_at(Inspected::Context, ReplyShape::Context),
        "mcp_status" => look_at(Inspected::Servers, ReplyShape::Servers),
        "list_permission_rules" => look_at(Inspected::Rules, ReplyShape::Rules),
        "get_hooks_listing" => look_at(Inspected::Hooks, ReplyShape::Hooks),
        "list_models" => Control::Look(Lookup::Models),
        "get_settings" => Control::Look(Lookup::Settings),
        "get_session_cost" => Control::Look(Lookup::Cost),
        "get_usage" => Control::Look(Lookup::Usage),
        "get_binary_version" => Control::Look(Lookup::Version),
        other => Control::Unsupported(other.to_owned()),
    })
}

/// A request and the kind of it.
struct KindedRequest<'a> {
    request: &'a Value,
    subtype: &'a str,
}

impl KindedRequest<'_> {
    fn needed(&self, member: &str) -> Result<&str, String> {
        let missing = || format!("`request.{member}` is missing, which {} needs", self.subtype);
        text(self.request, member).ok_or_else(missing)
    }

    fn to_stop(&self) -> Result<Control, String> {
        if self.subtype == "cancel_async_message" {
            let line: LineId = self.needed("message_uuid")?.parse().map_err(|error| format!("{error}"))?;
            return Ok(Control::Do(Command::Unqueue { line: Some(line) }, ReplyShape::Unqueued));
        }
        let unqueues = self.request.get("cancel_queued").and_then(Value::as_bool) == Some(true);
        Ok(if unqueues {
            Control::All(vec![Command::Unqueue { line: None }, Command::Interrupt], ReplyShape::Merged)
        } else {
            Control::Do(Command::Interrupt, ReplyShape::Merged)
        })
    }

    fn about_a_task(&self) -> Result<Control, String> {
        if self.subtype == "background_tasks" {
            let target = text(self.request, "tool_use_id").map(str::to_owned);
            return Ok(Control::Do(Command::Background { target }, nothing()));
        }
        let task: TaskId = self.needed("task_id")?.parse().map_err(|error| format!("{error}"))?;
        Ok(match self.subtype {
            "stop_task" => Control::Do(Command::Stop { task }, nothing()),
            _ => look_at(Inspected::Output { task }, ReplyShape::Output),
        })
    }

    fn about_the_model(&self) -> Result<Control, String> {
        if self.subtype == "set_max_thinking_tokens" {
            return Ok(match self.request.get("max_thinking_tokens") {
                Some(Value::Null) => Control::Do(Command::SetThinking { tokens: None }, nothing()),
                Some(tokens) if tokens.is_u64() => {
                    Control::Do(Command::SetThinking { tokens: tokens.as_u64() }, nothing())
                }
                Some(_) => {
                    return Err("`request.max_thinking_tokens` is neither a number nor null".to_owned());
                }
                // It only asks how thinking is shown, which has no effect here.
                None => Control::All(Vec::new(), nothing()),
            });
        }
        Ok(match self.request.get("model") {
            None | Some(Value::Null) => {
                Control::Do(Command::SetModel { model: "default".to_owned() }, ReplyShape::Model)
            }
            Some(_) => {
                let model = self.needed("model")?.to_owned();
                let answer = ReplyShape::Fixed(json!({"model": model}));
                Control::Do(Command::SetModel { model }, answer)
            }
        })
    }

    fn to_rewind(&self) -> Result<Control, String> {
        let dry_run = self.request.get("dry_run").and_then(Value::as_bool).unwrap_or_default();
        Ok(match self.needed("user_message_id")?.parse::<LineId>() {
            Ok(to) => Control::Do(Command::Rewind { to, dry_run }, ReplyShape::Rewound),
            Err(error) => {
                let failed = Rewound::failed(format!("`user_message_id`: {error}"));
                Control::All(Vec::new(), ReplyShape::Fixed(control::rewound_files(&failed)))
            }
        })
    }

    fn about_servers(&self) -> Result<Control, String> {
        if self.subtype == "mcp_set_servers" {
            let servers = self.request.get("servers").and_then(Value::as_object);
            let servers = servers.ok_or("`request.servers` is missing or not an object")?;
            return Ok(Control::SetServers(servers.clone()));
        }
        let server = self.needed("serverName")?.to_owned();
        if self.subtype == "mcp_reconnect" {
            return Ok(Control::Do(Command::ReconnectServer { server }, nothing()));
        }
        let on = self.request.get("enabled").and_then(Value::as_bool);
        let on = on.ok_or("`request.enabled` is missing or not a truth value")?;
        Ok(Control::Do(Command::ToggleServer { server, on }, nothing()))
    }
}

fn look_at(what: Inspected, shape: ReplyShape) -> Control {
    Control::Do(Command::Inspect { what }, shape)
}

/// An answer that says no more than that it is done.
fn nothing() -> ReplyShape {
    ReplyShape::Fixed(json!({}))
}

/// What a host's answer to a question means: what else is to change, and what of it is not obeyed. An answer that is not understood
/// is a refusal: the call must not wait for ever, and must not run on a guess.
pub fn answer(question: &Question, response: Result<Value, String>) -> HostReply {
    if question.elicitation.is_some() {
        let (elicited, problem) = elicited(response);
        let problems = problem.into_iter().collect();
        return HostReply { answer: Answer::Elicited(elicited), updates: Vec::new(), problems };
    }
    let response = match response {
        Ok(response) => response,
        Err(error) => return HostReply::deny(format!("the host could not answer: {error}"), None),
    };
    match Ruling::read(&response) {
        Ok(Ruling::Allow { input, changes, .. }) => {
            allow(input.filter(|input| *input != question.input), changes)
        }
        Ok(Ruling::Deny { message, interrupt }) => {
            let message = message.unwrap_or_else(|| "the host denied it".to_owned());
            let answer = Answer::Deny { message, interrupt };
            HostReply { answer, updates: Vec::new(), problems: Vec::new() }
        }
        Err(problem) => {
            let problem = format!("{problem}, which counts as a refusal");
            HostReply::deny("the host's answer was not understood".to_owned(), Some(problem))
        }
    }
}

/// The meaning of a host's answer to a server's question, and what is wrong with it. One that is not understood counts
/// as no answer. Its content is never reported: it is for the server alone.
fn elicited(response: Result<Value, String>) -> (Elicited, Option<String>) {
    let nothing = |problem: String| (Elicited::plain(ElicitationAction::Cancel), Some(problem));
    let response = match response {
        Ok(response) => response,
        Err(error) => return nothing(format!("the host could not answer: {error}")),
    };
    let action = match text(&response, "action") {
        Some("accept") => ElicitationAction::Accept,
        Some("decline") => ElicitationAction::Decline,
        Some("cancel") => ElicitationAction::Cancel,
        _ => return nothing("`action` must be `accept`, `decline` or `cancel`".to_owned()),
    };
    match response.get("content") {
        None | Some(Value::Null) => (Elicited::plain(action), None),
        Some(content @ Value::Object(_)) => {
            (Elicited { action, content: Some(Private(content.clone())) }, None)
        }
        Some(_) => nothing("`content` is not an object".to_owned()),
    }
}

/// A host's answer, understood.
#[derive(Debug, PartialEq)]
pub struct HostReply {
    /// The answer for the call.
    pub answer: Answer,
    /// What else is to change with it.
    pub updates: Vec<PermissionUpdate>,
    /// Problems to report.
    pub problems: Vec<String>,
}

impl HostReply {
    fn deny(message: String, problem: Option<String>) -> Self {
        let problems = problem.into_iter().collect();
        Self { answer: Answer::Deny { message, interrupt: false }, updates: Vec::new(), problems }
    }
}

/// Allows a call. Rules that allow something go with the answer: whose they are depends on who asked.
fn allow(input: Option<Value>, changes: Changes) -> HostReply {
    let Changes { updates: given, missed, problems } = changes;
    let (mut rules, mut updates) = (Vec::new(), Vec::new());
    for update in given {
        match update {
            PermissionUpdate::AddRules { behavior: Verdict::Allow, rules: more } => rules.extend(more),
            update => updates.push(update),
        }
    }
    if missed {
        updates.retain(PermissionUpdate::narrows);
        let message = "the host allows it with less rights than now, and which was not understood".to_owned();
        return HostReply { answer: Answer::Deny { message, interrupt: false }, updates, problems };
    }
    HostReply { answer: Answer::Allow { input, rules, everywhere: false }, updates, problems }
}

fn text<'a>(value: &'a Value, member: &str) -> Option<&'a str> {
    value.get(member).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::with_whole_characters;

    #[test]
    fn half_a_character_is_replaced_and_nothing_else() {
        for (line, expected) in [
            (r#"{"a":"hello \ud83d"}"#, Some("{\"a\":\"hello \u{fffd}\"}")),
            (
                r#"{"a":"\ude00 \ud83d\ude00 \ud83d\ud83d\ude00"}"#,
                Some("{\"a\":\"\u{fffd} \\ud83d\\ude00 \u{fffd}\\ud83d\\ude00\"}"),
            ),
            (r#"{"a":"\ud83d\ude00"}"#, None),
            (r#"{"a":"\\ud83d"}"#, None),
            (r#"{"a":"\\\ud83d"}"#, Some("{\"a\":\"\\\\\u{fffd}\"}")),
            (r"\ud8", None),
            (r"\", None),
        ] {
            let mended = with_whole_characters(line.as_bytes());
            assert_eq!(mended.as_deref(), expected.map(str::as_bytes), "{line}");
        }
    }
}
