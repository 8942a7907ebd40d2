//! Anthropic Messages. Writes heads and messages as bytes, reads the stream of a reply, and is the
//! provider that puts the two on a connection.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use bytes::Bytes;
use decurion_protocol::{Block, Delta, Message, Role, ToolContent, Usage};
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::{ApiSecret, Endpoint, HttpClient, header_value};
use crate::reply::{call, check_content, stream_error, unique_id};
use crate::request::model_member;
use crate::{
    Dialect, Head, ModelError, ModelEvent, ModelProvider, ModelRequest, ReplyInfo, Thinking, WireHead,
    WireMessage, sse,
};

/// The address and the credentials.
#[derive(Clone, Debug)]
pub struct AnthropicSettings {
    /// Up to where `/v1/messages` follows, e.g. `https://api.anthropic.com`.
    pub base_url: String,
    pub key: AnthropicKey,
    pub betas: Vec<String>,
    pub headers: Vec<(String, String)>,
}

/// How a request is signed.
#[derive(Clone, Debug)]
pub enum AnthropicKey {
    ApiKey(ApiSecret),
    Bearer(ApiSecret),
    /// Not at all, for servers that do not ask.
    None,
}

pub struct Anthropic {
    endpoint: Endpoint,
}

impl Anthropic {
    /// Checks the settings; does not connect.
    pub fn new(http: HttpClient, settings: AnthropicSettings) -> Result<Self, ModelError> {
        let mut headers = HeaderMap::new();
        let mut secrets = Vec::new();
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        if !settings.betas.is_empty() {
            headers.insert("anthropic-beta", header_value("anthropic-beta", &settings.betas.join(","))?);
        }
        match settings.key {
            AnthropicKey::ApiKey(secret) => {
                headers.insert("x-api-key", secret.header("x-api-key", "")?);
                secrets.push(secret);
            }
            AnthropicKey::Bearer(secret) => {
                headers.insert("authorization", secret.header("authorization", "Bearer ")?);
                secrets.push(secret);
            }
            AnthropicKey::None => {}
        }
        for (name, value) in &settings.headers {
            let parsed = HeaderName::try_from(name.as_str())
                .map_err(|_| ModelError::Misconfigured { detail: format!("not a header name: {name:?}") })?;
            headers.insert(parsed, header_value(name, value)?);
        }
        let base = settings.base_url.trim_end_matches('/');
        let (url, models) = (format!("{base}/v1/messages"), format!("{base}/v1/models?limit=1000"));
        Ok(Self { endpoint: Endpoint::new(http, &url, &models, headers, secrets)? })
    }
}

impl ModelProvider for Anthropic {
    fn dialect(&self) -> Dialect {
        Dialect::Anthropic
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.endpoint.stream(Dialect::Anthropic, request)
    }

    fn models(&self) -> BoxFuture<'static, Result<Vec<String>, ModelError>> {
        self.endpoint.models()
    }
}

// ---- writing ----

/// The most marks a request may carry, less the moving one.
const SYSTEM_MARKS: usize = 3;

pub(crate) fn write_head(head: &Head) -> WireHead {
    let mut text = model_member(&head.model);
    let mut member = |name: &str, value: &Value| {
        let _ = write!(text, ",{}:{value}", Value::from(name));
    };
    member("max_tokens", &head.max_output_tokens.into());
    member("stream", &true.into());
    if let Some(temperature) = head.temperature {
        member("temperature", &temperature.into());
    }
    if let Some(thinking) = &head.thinking {
        member("thinking", &json!(affordable(thinking, head.max_output_tokens)));
    }
    if let Some(effort) = &head.effort {
        member("output_config", &json!({"effort": effort}));
    }
    if !head.stop.is_empty() {
        member("stop_sequences", &json!(head.stop));
    }
    for (name, value) in &head.extra {
        member(name, value);
    }
    if !head.tools.is_empty() {
        member("tools", &json!(head.tools));
    }
    let said: Vec<&String> = head.system.iter().filter(|block| !block.trim().is_empty()).collect();
    if !said.is_empty() {
        let unmarked = said.len().saturating_sub(SYSTEM_MARKS);
        let blocks: Vec<Value> =
            said.iter().enumerate().map(|(at, text)| system(text, at >= unmarked)).collect();
        member("system", &Value::Array(blocks));
    }
    text.push_str(",\"messages\":[");
    WireHead {
        dialect: Dialect::Anthropic,
        model: head.model.clone(),
        prefix: text.into(),
        suffix: Bytes::from_static(b"]}"),
        opened: false,
    }
}

/// The fewest tokens that the provider takes as a limit of thinking.
const LEAST_THINKING: u64 = 1_024;

/// Thinking that leaves room for an answer: the provider refuses a limit that is not below that of the whole reply.
fn affordable(thinking: &Thinking, most: u64) -> Thinking {
    match thinking {
        Thinking::Enabled { budget_tokens, display } => {
            let budget_tokens = (*budget_tokens).max(LEAST_THINKING).min(most.saturating_sub(1));
            match budget_tokens {
                LEAST_THINKING.. => Thinking::Enabled { budget_tokens, display: display.clone() },
                _ => Thinking::Disabled,
            }
        }
        other => other.clone(),
    }
}

fn system(text: &str, marked: bool) -> Value {
    if marked {
        json!({"type":"text","text":text,"cache_control":{"type":"ephemeral"}})
    } else {
        json!({"type":"text","text":text})
    }
}

/// How much stands after the cut: the end of the last block, of the content, of the message.
const TAIL: usize = "}]}".len();

pub(crate) fn write_message(message: &Message) -> WireMessage {
    let mut text: Vec<u8> = match message.role {
        Role::User => br#"{"role":"user","content":["#.to_vec(),
        Role::Assistant => br#"{"role":"assistant","content":["#.to_vec(),
    };
    let start = text.len();
    let mut last = None;
    for block in &message.blocks {
        let Some(block) = sendable(block) else { continue };
        if text.len() > start {
            text.push(b',');
        }
        // Writing plain data into memory cannot fail.
        if serde_json::to_writer(&mut text, block.as_ref()).is_ok() {
            last = Some(block);
        }
    }
    let Some(last) = last else { return WireMessage::whole(Bytes::new()) };
    let markable = !matches!(last.as_ref(), Block::Thinking { .. } | Block::Opaque(_));
    text.extend_from_slice(b"]}");
    let cut = if markable { text.len() - TAIL } else { text.len() };
    WireMessage { cut, ..WireMessage::whole(text) }
}

/// The block as the provider accepts it: none for text without words and for thinking that it did not
/// seal, which another provider may have left behind; foreign ids in its alphabet.
fn sendable(block: &Block) -> Option<std::borrow::Cow<'_, Block>> {
    use std::borrow::Cow;
    let allowed = |id: &str| !id.is_empty() && id.bytes().all(is_id_byte);
    match block {
        Block::Text { text } if text.trim().is_empty() => None,
        Block::Thinking { signature, .. } if signature.as_deref().is_none_or(str::is_empty) => None,
        Block::ToolUse { id, name, input } if !allowed(id.as_str()) => {
            let id = decurion_protocol::CallId(id_in_alphabet(id.as_str()));
            Some(Cow::Owned(Block::ToolUse { id, name: name.clone(), input: input.clone() }))
        }
        Block::ToolResult { id, content, is_error } if !allowed(id.as_str()) || has_empty_text(content) => {
            let id = if allowed(id.as_str()) {
                id.clone()
            } else {
                decurion_protocol::CallId(id_in_alphabet(id.as_str()))
            };
            Some(Cow::Owned(Block::ToolResult {
                id,
                content: without_empty_text(content),
                is_error: *is_error,
            }))
        }
        other => Some(Cow::Borrowed(other)),
    }
}

fn is_id_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// An id in the alphabet that the provider accepts.
pub(crate) fn id_in_alphabet(id: &str) -> String {
    let mapped: String =
        id.bytes().map(|byte| if is_id_byte(byte) { char::from(byte) } else { '_' }).collect();
    if mapped.is_empty() { "_".to_owned() } else { mapped }
}

fn has_empty_text(content: &ToolContent) -> bool {
    matches!(content, ToolContent::Blocks(blocks) if blocks.iter().any(is_empty_text))
}

fn without_empty_text(content: &ToolContent) -> ToolContent {
    match content {
        ToolContent::Blocks(blocks) => {
            ToolContent::Blocks(blocks.iter().filter(|block| !is_empty_text(block)).cloned().collect())
        }
        ToolContent::Text(text) => ToolContent::Text(text.clone()),
    }
}

fn is_empty_text(block: &Block) -> bool {
    matches!(block, Block::Text { text } if text.trim().is_empty())
}

// ---- reading ----

/// The most blocks of one reply.
const MAX_BLOCKS: u32 = 10_000;

/// Reads one reply's stream.
pub(crate) struct AnthropicDecoder {
    parser: sse::SseParser,
    state: AnthropicState,
}

#[derive(Default)]
struct AnthropicState {
    seed: u64,
    started: bool,
    complete: bool,
    reply: ReplyInfo,
    open: BTreeMap<u32, OpenBlock>,
    /// The next index that may begin.
    next: u32,
    ids: Vec<String>,
    content: usize,
}

/// A block that is still coming.
enum OpenBlock {
    Text(String),
    Thinking { thinking: String, signature: Option<String>, extra: Map<String, Value> },
    Call { id: String, name: String, json: String, given: Map<String, Value> },
    Other { value: Value, json: String },
}

#[derive(Deserialize)]
struct MessageEvent {
    #[serde(rename = "type", default)]
    kind: BlockKind,
    index: Option<u32>,
    message: Option<MessageStart>,
    content_block: Option<Value>,
    delta: Option<BlockDelta>,
    usage: Option<Map<String, Value>>,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlockKind {
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Error,
    /// Pings, and what is not invented yet.
    #[default]
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default)]
    id: String,
    #[serde(default)]
    model: String,
    usage: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct BlockDelta {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    partial_json: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    stop_reason: Option<String>,
}

impl AnthropicDecoder {
    pub fn new(seed: u64) -> Self {
        Self {
            parser: sse::SseParser::default(),
            state: AnthropicState { seed, ..AnthropicState::default() },
        }
    }

    pub fn feed(&mut self, chunk: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let state = &mut self.state;
        self.parser.push(chunk, |frame| state.frame(frame, out))
    }

    pub fn finish(&self) -> Result<(), ModelError> {
        if self.state.complete {
            Ok(())
        } else {
            Err(ModelError::reset("the stream ended without message_stop"))
        }
    }

    pub fn is_complete(&self) -> bool {
        self.state.complete
    }
}

type AnthropicEvents = VecDeque<ModelEvent>;

impl AnthropicState {
    fn frame(&mut self, frame: sse::Frame<'_>, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        if self.complete {
            return Ok(());
        }
        let event: MessageEvent = serde_json::from_slice(frame.data)
            .map_err(|error| ModelError::malformed(format!("an event that cannot be read: {error}")))?;
        match event.kind {
            BlockKind::MessageStart => self.start(event, out),
            BlockKind::ContentBlockStart => self.block_start(event, out),
            BlockKind::ContentBlockDelta => self.block_delta(event, out),
            BlockKind::ContentBlockStop => {
                let index = self.index(event.index)?;
                self.block_stop(index, out)
            }
            BlockKind::MessageDelta => self.message_delta(event),
            BlockKind::MessageStop => self.stop(out),
            BlockKind::Error => Err(stream_error(&event.error.unwrap_or_default())),
            BlockKind::Other => Ok(()),
        }
    }

    fn start(&mut self, event: MessageEvent, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        let Some(message) = event.message else { return Err(missing("message_start has no message")) };
        if std::mem::replace(&mut self.started, true) {
            return Err(missing("the message starts twice"));
        }
        merge_usage(&mut self.reply.usage, message.usage);
        self.reply.message_id = message.id;
        self.reply.model = message.model;
        out.push_back(ModelEvent::Delta(Delta::Started {
            message_id: self.reply.message_id.clone(),
            model: self.reply.model.clone(),
            usage: self.reply.usage.clone(),
        }));
        Ok(())
    }

    fn block_start(&mut self, event: MessageEvent, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        let Some(start) = event.content_block else { return Err(missing("a block starts with nothing")) };
        let index = event.index.unwrap_or(self.next);
        if !self.started || index < self.next || index >= MAX_BLOCKS {
            return Err(missing(&format!("a block starts out of order, index {index}")));
        }
        self.next = index + 1;
        self.count(start.get("text").and_then(Value::as_str).map_or(0, str::len))?;
        let block = self.opened(start)?;
        out.push_back(ModelEvent::Delta(Delta::BlockStarted { index, block: block.shown() }));
        // A first piece may already be in the start.
        match &block {
            OpenBlock::Text(text) if !text.is_empty() => {
                out.push_back(ModelEvent::Delta(Delta::Text { index, text: text.clone() }));
            }
            OpenBlock::Thinking { thinking, .. } if !thinking.is_empty() => {
                out.push_back(ModelEvent::Delta(Delta::Thinking { index, text: thinking.clone() }));
            }
            _ => {}
        }
        self.open.insert(index, block);
        Ok(())
    }

    fn opened(&mut self, mut start: Value) -> Result<OpenBlock, ModelError> {
        let kind = start.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let text = |value: &mut Value, name: &str| match value.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        Ok(match kind.as_str() {
            "text" => OpenBlock::Text(text(&mut start, "text").unwrap_or_default()),
            "thinking" => {
                let thinking = text(&mut start, "thinking").unwrap_or_default();
                let signature = text(&mut start, "signature").filter(|seal| !seal.is_empty());
                let Value::Object(mut extra) = start else {
                    return Err(missing("a block that is no object"));
                };
                extra.retain(|name, _| !matches!(name.as_str(), "type" | "thinking" | "signature"));
                OpenBlock::Thinking { thinking, signature, extra }
            }
            "tool_use" => {
                let Some(name) = text(&mut start, "name").filter(|name| !name.is_empty()) else {
                    return Err(missing("a call without a tool's name"));
                };
                let id = unique_id(text(&mut start, "id"), self.seed, &mut self.ids);
                let given = match start.get_mut("input").map(Value::take) {
                    Some(Value::Object(members)) => members,
                    _ => Map::new(),
                };
                OpenBlock::Call { id, name, json: String::new(), given }
            }
            _ if start.is_object() => OpenBlock::Other { value: start, json: String::new() },
            _ => return Err(missing("a block that is no object")),
        })
    }

    fn block_delta(&mut self, event: MessageEvent, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        let Some(change) = event.delta else { return Err(missing("a delta with nothing in it")) };
        let index = self.index(event.index)?;
        let piece = match change.kind.as_deref().unwrap_or_default() {
            "text_delta" => change.text,
            "thinking_delta" => change.thinking,
            "signature_delta" => change.signature,
            "input_json_delta" => change.partial_json,
            // Citations, and kinds that are not invented yet.
            _ => return Ok(()),
        }
        .unwrap_or_default();
        self.count(piece.len())?;
        let Some(block) = self.open.get_mut(&index) else { return Err(missing("a delta of no block")) };
        let kind = change.kind.as_deref().unwrap_or_default();
        let delta = match (block, kind) {
            (OpenBlock::Text(text), "text_delta") => {
                text.push_str(&piece);
                Delta::Text { index, text: piece }
            }
            (OpenBlock::Thinking { thinking, .. }, "thinking_delta") => {
                thinking.push_str(&piece);
                Delta::Thinking { index, text: piece }
            }
            (OpenBlock::Thinking { signature, .. }, "signature_delta") => {
                signature.get_or_insert_default().push_str(&piece);
                Delta::Signature { index, signature: piece }
            }
            (OpenBlock::Call { json, .. }, "input_json_delta") => {
                json.push_str(&piece);
                Delta::Input { index, json: piece }
            }
            (OpenBlock::Other { json, .. }, "input_json_delta") => {
                json.push_str(&piece);
                return Ok(());
            }
            (OpenBlock::Other { value, .. }, "text_delta") => {
                append(value, "text", &piece);
                return Ok(());
            }
            (OpenBlock::Other { .. }, _) => return Ok(()),
            _ => return Err(missing(&format!("a {kind} in a block of another kind"))),
        };
        out.push_back(ModelEvent::Delta(delta));
        Ok(())
    }

    fn block_stop(&mut self, index: u32, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        let Some(block) = self.open.remove(&index) else { return Err(missing("the end of no block")) };
        out.push_back(ModelEvent::Delta(Delta::BlockEnded { index }));
        if let Some(block) = block.closed() {
            out.push_back(ModelEvent::Block { index, block });
        }
        Ok(())
    }

    fn message_delta(&mut self, event: MessageEvent) -> Result<(), ModelError> {
        if !self.started {
            return Err(missing("the message changes before it starts"));
        }
        merge_usage(&mut self.reply.usage, event.usage);
        if let Some(reason) = event.delta.and_then(|delta| delta.stop_reason) {
            self.reply.stop_reason = Some(reason);
        }
        Ok(())
    }

    fn stop(&mut self, out: &mut AnthropicEvents) -> Result<(), ModelError> {
        if !self.started {
            return Err(missing("the message stops before it starts"));
        }
        // A server that forgets to end its blocks has still said that the message is whole.
        while let Some(index) = self.open.keys().next().copied() {
            self.block_stop(index, out)?;
        }
        self.complete = true;
        out.push_back(ModelEvent::Delta(Delta::Ended {
            stop_reason: self.reply.stop_reason.clone(),
            usage: self.reply.usage.clone(),
        }));
        out.push_back(ModelEvent::Completed(std::mem::take(&mut self.reply)));
        Ok(())
    }

    /// Which block an event is about; one that does not say is about the only one open.
    fn index(&self, given: Option<u32>) -> Result<u32, ModelError> {
        let index = given.or_else(|| match self.open.len() {
            1 => self.open.keys().next().copied(),
            _ => None,
        });
        match index {
            Some(index) if self.open.contains_key(&index) => Ok(index),
            _ => Err(missing(&format!("an event of a block that is not open, index {given:?}"))),
        }
    }

    fn count(&mut self, length: usize) -> Result<(), ModelError> {
        self.content += length;
        check_content(self.content)
    }
}

impl OpenBlock {
    /// The block as it begins, empty where its pieces follow.
    fn shown(&self) -> Block {
        match self {
            Self::Text(_) => Block::text(""),
            Self::Thinking { extra, .. } => {
                Block::Thinking { thinking: String::new(), signature: None, extra: extra.clone() }
            }
            Self::Call { id, name, .. } => call(id.clone(), name.clone(), "", Map::new()),
            Self::Other { value, .. } => Block::Opaque(value.clone()),
        }
    }

    /// The whole block; none if it is a text with nothing in it.
    fn closed(self) -> Option<Block> {
        match self {
            Self::Text(text) if text.is_empty() => None,
            Self::Text(text) => Some(Block::Text { text }),
            Self::Thinking { thinking, signature, extra } => {
                Some(Block::Thinking { thinking, signature, extra })
            }
            Self::Call { id, name, json, given } => Some(call(id, name, &json, given)),
            Self::Other { mut value, json } => {
                if let (false, Ok(input)) = (json.is_empty(), serde_json::from_str::<Value>(&json)) {
                    value["input"] = input;
                }
                Some(Block::Opaque(value))
            }
        }
    }
}

fn append(value: &mut Value, name: &str, piece: &str) {
    match value.get_mut(name) {
        Some(Value::String(text)) => text.push_str(piece),
        _ => value[name] = piece.into(),
    }
}

/// Later counts replace earlier ones: the provider's are running totals.
fn merge_usage(usage: &mut Usage, given: Option<Map<String, Value>>) {
    for (name, value) in given.into_iter().flatten() {
        let slot = match name.as_str() {
            "input_tokens" => &mut usage.input_tokens,
            "output_tokens" => &mut usage.output_tokens,
            "cache_creation_input_tokens" => &mut usage.cache_creation_input_tokens,
            "cache_read_input_tokens" => &mut usage.cache_read_input_tokens,
            _ if value.is_null() || name == Usage::ESTIMATED => continue,
            _ => {
                usage.other.insert(name, value);
                continue;
            }
        };
        if let Some(count) = value.as_u64() {
            *slot = count;
        }
    }
}

fn missing(message: &str) -> ModelError {
    ModelError::malformed(message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_we_mark_a_usage_as_estimated() {
        let mut usage = Usage::default();
        let Value::Object(given) = json!({"input_tokens": 3, "estimated": true, "service_tier": "x"}) else {
            panic!()
        };
        merge_usage(&mut usage, Some(given));
        assert!(!usage.is_estimated() && usage.input_tokens == 3 && usage.other.len() == 1, "{usage:?}");
    }
}
