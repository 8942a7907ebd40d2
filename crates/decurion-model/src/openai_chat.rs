//! OpenAI-compatible Chat Completions, as OpenAI and many local servers speak it. Writes heads and
//! messages as bytes, reads the stream of a reply in all the ways servers get it slightly wrong, and is the
//! provider that puts the two on a connection.

use std::collections::VecDeque;
use std::fmt::Write as _;

use bytes::Bytes;
use decurion_protocol::{Block, Delta, Message, Role, ToolContent, Usage};
use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use reqwest::header::{HeaderMap, HeaderName};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::http::{ApiSecret, Endpoint, HttpClient, header_value};
use crate::reply::{call, check_content, stream_error, unique_id};
use crate::request::model_member;
use crate::{
    Dialect, Head, ModelError, ModelEvent, ModelProvider, ModelRequest, OutputLimitField, ReplyInfo,
    WireHead, WireMessage, sse,
};

/// The address and the credentials.
#[derive(Clone, Debug)]
pub struct OpenAiChatSettings {
    /// Up to where `/chat/completions` follows, e.g. `http://localhost:11434/v1`.
    pub base_url: String,
    /// The key, sent as `Authorization: Bearer`; local servers need none.
    pub key: Option<ApiSecret>,
    pub headers: Vec<(String, String)>,
}

pub struct OpenAiChat {
    endpoint: Endpoint,
}

impl OpenAiChat {
    /// Checks the settings; does not connect.
    pub fn new(http: HttpClient, settings: OpenAiChatSettings) -> Result<Self, ModelError> {
        let mut headers = HeaderMap::new();
        let mut secrets = Vec::new();
        if let Some(secret) = settings.key {
            headers.insert("authorization", secret.header("authorization", "Bearer ")?);
            secrets.push(secret);
        }
        for (name, value) in &settings.headers {
            let parsed = HeaderName::try_from(name.as_str())
                .map_err(|_| ModelError::Misconfigured { detail: format!("not a header name: {name:?}") })?;
            headers.insert(parsed, header_value(name, value)?);
        }
        let base = settings.base_url.trim_end_matches('/');
        let (url, models) = (format!("{base}/chat/completions"), format!("{base}/models"));
        Ok(Self { endpoint: Endpoint::new(http, &url, &models, headers, secrets)? })
    }
}

impl ModelProvider for OpenAiChat {
    fn dialect(&self) -> Dialect {
        Dialect::OpenAiChat
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.endpoint.stream(Dialect::OpenAiChat, request)
    }

    fn models(&self) -> BoxFuture<'static, Result<Vec<String>, ModelError>> {
        self.endpoint.models()
    }
}

// ---- writing ----

pub(crate) fn write_head(head: &Head) -> WireHead {
    let mut text = model_member(&head.model);
    let mut member = |name: &str, value: &Value| {
        let _ = write!(text, ",{}:{value}", Value::from(name));
    };
    let limit = match head.output_limit_field {
        OutputLimitField::MaxTokens => "max_tokens",
        OutputLimitField::MaxCompletionTokens => "max_completion_tokens",
    };
    if head.max_output_tokens > 0 {
        member(limit, &head.max_output_tokens.into());
    }
    member("stream", &true.into());
    member("stream_options", &json!({"include_usage": true}));
    if let Some(temperature) = head.temperature {
        member("temperature", &temperature.into());
    }
    if !head.tools.is_empty() && refuses_effort_with_tools(&head.model) {
        member("reasoning_effort", &"none".into());
    } else if let Some(effort) = &head.effort {
        // What is above `high` is a word of few servers, and the others refuse it.
        let known = if matches!(effort.as_str(), "max" | "xhigh") { "high" } else { effort.as_str() };
        member("reasoning_effort", &known.into());
    }
    if !head.stop.is_empty() {
        member("stop", &json!(head.stop));
    }
    for (name, value) in &head.extra {
        member(name, value);
    }
    if !head.tools.is_empty() {
        let tools: Vec<Value> = head
            .tools
            .iter()
            .map(|tool| {
                json!({"type":"function","function":{
                    "name":tool.name,"description":tool.description,"parameters":tool.input_schema}})
            })
            .collect();
        member("tools", &Value::Array(tools));
    }
    text.push_str(",\"messages\":[");
    let system = head.system.iter().filter(|block| !block.trim().is_empty()).cloned().collect::<Vec<_>>();
    if !system.is_empty() {
        let _ = write!(text, "{}", json!({"role":"system","content":system.join("\n\n")}));
    }
    WireHead {
        dialect: Dialect::OpenAiChat,
        model: head.model.clone(),
        prefix: text.into(),
        suffix: Bytes::from_static(b"]}"),
        opened: !system.is_empty(),
    }
}

/// OpenAI's reasoning models take `max_completion_tokens` and refuse `max_tokens`; other servers know the latter.
pub fn usual_limit_field(model: &str) -> OutputLimitField {
    let o_series = model.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if o_series || gpt_version(model).is_some_and(|version| version >= (5, 0)) {
        OutputLimitField::MaxCompletionTokens
    } else {
        OutputLimitField::MaxTokens
    }
}

/// From gpt-5.2 on, Chat Completions takes function tools only without reasoning effort; some of these models use one
/// by default unless the request says `none`.
fn refuses_effort_with_tools(model: &str) -> bool {
    gpt_version(model).is_some_and(|version| version >= (5, 2))
}

/// The version in an id such as `gpt-5.4-mini` or `gpt-5-2025-08-07`; none for `gpt-4o` and `gpt-oss`.
fn gpt_version(model: &str) -> Option<(u32, u32)> {
    let version = model.strip_prefix("gpt-")?.split('-').next()?;
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

pub(crate) fn write_message(message: &Message) -> WireMessage {
    let parts = match message.role {
        Role::User => user_messages(&message.blocks),
        Role::Assistant => assistant_message(message).into_iter().collect(),
    };
    let mut text = String::new();
    for part in parts {
        if !text.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "{part}");
    }
    WireMessage::whole(text)
}

/// Results first, each as its own message, then everything else as one user message.
fn user_messages(blocks: &[Block]) -> Vec<Value> {
    let mut messages = Vec::new();
    let mut parts: Vec<Value> = Vec::new();
    for block in blocks {
        match block {
            Block::ToolResult { id, content, is_error } => {
                let text = result_text(content, *is_error);
                messages.push(json!({"role":"tool","tool_call_id":id.as_str(),"content":text}));
                parts.extend(result_images(id.as_str(), content));
            }
            Block::Text { text } if !text.trim().is_empty() => parts.push(text_part(text)),
            Block::Image { source } => parts.push(image_part(source)),
            Block::Document { .. } => {
                parts.push(text_part("[a document was left out: this provider takes none]"));
            }
            Block::Text { .. } | Block::Thinking { .. } | Block::ToolUse { .. } | Block::Opaque(_) => {}
        }
    }
    if !parts.is_empty() {
        messages.push(json!({"role":"user","content":text_or_parts(parts)}));
    }
    messages
}

fn result_text(content: &ToolContent, is_error: bool) -> String {
    let text = match content {
        ToolContent::Text(text) => text.clone(),
        ToolContent::Blocks(blocks) => {
            let texts = blocks.iter().filter_map(|block| match block {
                Block::Text { text } if !text.trim().is_empty() => Some(text.as_str()),
                _ => None,
            });
            texts.collect::<Vec<_>>().join("\n\n")
        }
    };
    let only_images = matches!(content, ToolContent::Blocks(blocks) if !blocks.is_empty());
    match (text.trim().is_empty(), is_error) {
        (true, true) => "Error: the tool failed without a message".to_owned(),
        (true, false) if only_images => "(the result is the image that follows)".to_owned(),
        (true, false) => "(no output)".to_owned(),
        (false, true) if !text.starts_with("Error") && !text.starts_with("<tool_use_error>") => {
            format!("Error: {text}")
        }
        (false, _) => text,
    }
}

/// A tool message holds only text, so images follow in the user message after it, with their origin.
fn result_images(id: &str, content: &ToolContent) -> Vec<Value> {
    let ToolContent::Blocks(blocks) = content else { return Vec::new() };
    let images: Vec<Value> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Image { source } => Some(image_part(source)),
            _ => None,
        })
        .collect();
    if images.is_empty() {
        return images;
    }
    let origin = text_part(&format!("[from the result of the call {id}]"));
    std::iter::once(origin).chain(images).collect()
}

fn text_part(text: &str) -> Value {
    json!({"type":"text","text":text})
}

fn image_part(source: &Value) -> Value {
    let member = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
    let url = match member("type") {
        "url" => member("url").to_owned(),
        _ => format!("data:{};base64,{}", member("media_type"), member("data")),
    };
    json!({"type":"image_url","image_url":{"url":url}})
}

/// Plain text where that is all there is, since many servers' templates know only that.
fn text_or_parts(parts: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> =
        parts.iter().map(|part| part.get("text").and_then(Value::as_str)).collect();
    match texts {
        Some(texts) => Value::String(texts.join("\n\n")),
        None => Value::Array(parts),
    }
}

/// None if nothing is left of it: thinking is not sent back in this dialect.
fn assistant_message(message: &Message) -> Option<Value> {
    let calls: Vec<Value> = message
        .calls()
        .map(|(id, name, input)| {
            json!({"id":id.as_str(),"type":"function",
                "function":{"name":name,"arguments":input.to_string()}})
        })
        .collect();
    let text = message.text();
    let content = if text.trim().is_empty() { Value::Null } else { Value::String(text) };
    match (calls.is_empty(), content.is_null()) {
        (true, true) => None,
        (true, false) => Some(json!({"role":"assistant","content":content})),
        (false, _) => Some(json!({"role":"assistant","content":content,"tool_calls":calls})),
    }
}

// ---- reading ----

/// The most calls of one reply.
const MAX_CALLS: usize = 1_000;

/// Reads one reply's stream.
pub(crate) struct ChatDecoder {
    parser: sse::SseParser,
    state: ChatState,
}

#[derive(Default)]
struct ChatState {
    seed: u64,
    progress: ChatProgress,
    has_usage: bool,
    refused: bool,
    reply: ReplyInfo,
    /// The index of the next block.
    next: u32,
    speech: Option<Speech>,
    calls: Vec<PartialCall>,
    ids: Vec<String>,
    content: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ChatProgress {
    #[default]
    Before,
    Speaking,
    /// The model has stopped; its usage may still come.
    Stopped,
    Complete,
}

/// The text or thinking block that is open.
struct Speech {
    index: u32,
    thinking: bool,
    text: String,
}

struct PartialCall {
    /// The server's number for it, and its id as the server gave it.
    number: Option<u32>,
    given: Option<String>,
    index: u32,
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk {
    id: Option<String>,
    model: Option<String>,
    #[serde(default)]
    choices: Option<Vec<ReplyChoice>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ReplyChoice {
    #[serde(default)]
    index: Option<u32>,
    #[serde(alias = "message")]
    delta: Option<ChoiceDelta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChoiceDelta {
    content: Option<Value>,
    reasoning_content: Option<String>,
    reasoning: Option<Value>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallChange>>,
    function_call: Option<Function>,
}

#[derive(Deserialize)]
struct CallChange {
    index: Option<u32>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<Value>,
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl ChatDecoder {
    pub fn new(seed: u64) -> Self {
        Self { parser: sse::SseParser::default(), state: ChatState { seed, ..ChatState::default() } }
    }

    pub fn feed(&mut self, chunk: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let state = &mut self.state;
        self.parser.push(chunk, |frame| state.frame(frame, out))
    }

    /// A server may close without a word once it has said why the model stopped.
    pub fn finish(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        match self.state.progress {
            ChatProgress::Complete => Ok(()),
            ChatProgress::Stopped => {
                self.state.end(out);
                Ok(())
            }
            ChatProgress::Before | ChatProgress::Speaking => {
                Err(ModelError::reset("the stream ended without a finish_reason"))
            }
        }
    }

    pub fn is_complete(&self) -> bool {
        self.state.progress == ChatProgress::Complete
    }
}

type ChatEvents = VecDeque<ModelEvent>;

impl ChatState {
    fn frame(&mut self, frame: sse::Frame<'_>, out: &mut ChatEvents) -> Result<(), ModelError> {
        if self.progress == ChatProgress::Complete {
            return Ok(());
        }
        if frame.data.trim_ascii() == b"[DONE]" {
            return self.done(out);
        }
        let chunk: Chunk = serde_json::from_slice(frame.data)
            .map_err(|error| ModelError::malformed(format!("a chunk that cannot be read: {error}")))?;
        if let Some(error) = chunk.error.as_ref().filter(|error| !error.is_null()) {
            return Err(stream_error(error));
        }
        self.start(&chunk, out);
        if let Some(usage) = chunk.usage {
            self.has_usage = true;
            self.reply.usage = usage.ours();
        }
        // Only one choice is ever asked for.
        let choice = chunk.choices.into_iter().flatten().find(|choice| choice.index.unwrap_or(0) == 0);
        if let Some(choice) = choice {
            if let Some(change) = choice.delta {
                self.change(change, out)?;
            }
            if let Some(reason) = choice.finish_reason {
                self.stopped(&reason, out);
            }
        }
        if self.progress == ChatProgress::Stopped && self.has_usage {
            self.end(out);
        }
        Ok(())
    }

    fn start(&mut self, chunk: &Chunk, out: &mut ChatEvents) {
        if self.progress != ChatProgress::Before {
            return;
        }
        self.progress = ChatProgress::Speaking;
        let id = chunk.id.clone().filter(|id| !id.is_empty());
        self.reply.message_id = id.unwrap_or_else(|| format!("msg_{:016x}", self.seed));
        self.reply.model = chunk.model.clone().unwrap_or_default();
        out.push_back(ModelEvent::Delta(Delta::Started {
            message_id: self.reply.message_id.clone(),
            model: self.reply.model.clone(),
            usage: Usage::default(),
        }));
    }

    fn change(&mut self, change: ChoiceDelta, out: &mut ChatEvents) -> Result<(), ModelError> {
        let reasoning = change.reasoning_content.or_else(|| change.reasoning.as_ref().map(text_in));
        if let Some(text) = reasoning {
            self.speak(true, text, out)?;
        }
        if let Some(content) = &change.content {
            self.speak(false, text_in(content), out)?;
        }
        if let Some(refusal) = change.refusal.filter(|text| !text.is_empty()) {
            self.refused = true;
            self.speak(false, refusal, out)?;
        }
        for call in change.tool_calls.into_iter().flatten() {
            self.call(call, out)?;
        }
        if let Some(function) = change.function_call {
            self.call(CallChange { index: Some(0), id: None, function: Some(function) }, out)?;
        }
        Ok(())
    }

    fn speak(&mut self, thinking: bool, text: String, out: &mut ChatEvents) -> Result<(), ModelError> {
        if text.is_empty() {
            return Ok(());
        }
        self.count(text.len())?;
        if self.speech.as_ref().is_some_and(|speech| speech.thinking != thinking) {
            self.end_speech(out);
        }
        let speech = match &mut self.speech {
            Some(speech) => speech,
            none => {
                let index = self.next;
                self.next += 1;
                let speech = Speech { index, thinking, text: String::new() };
                let block = speech.block(String::new());
                out.push_back(ModelEvent::Delta(Delta::BlockStarted { index, block }));
                none.insert(speech)
            }
        };
        speech.text.push_str(&text);
        let index = speech.index;
        out.push_back(ModelEvent::Delta(if thinking {
            Delta::Thinking { index, text }
        } else {
            Delta::Text { index, text }
        }));
        Ok(())
    }

    fn end_speech(&mut self, out: &mut ChatEvents) {
        if let Some(mut speech) = self.speech.take() {
            let text = std::mem::take(&mut speech.text);
            out.push_back(ModelEvent::Delta(Delta::BlockEnded { index: speech.index }));
            out.push_back(ModelEvent::Block { index: speech.index, block: speech.block(text) });
        }
    }

    fn call(&mut self, change: CallChange, out: &mut ChatEvents) -> Result<(), ModelError> {
        let given = change.id.filter(|id| !id.is_empty());
        let function = change.function.unwrap_or(Function { name: None, arguments: None });
        let name = function.name.filter(|name| !name.is_empty());
        let arguments = match function.arguments {
            Some(Value::String(text)) => text,
            None | Some(Value::Null) => String::new(),
            Some(whole) => whole.to_string(),
        };
        self.count(arguments.len() + name.as_ref().map_or(0, String::len))?;
        let known = self.known_call(change.index, given.as_deref(), name.is_some());
        let place = match (known, name) {
            (Some(place), _) => place,
            (None, Some(name)) => self.begin_call(change.index, given, name, out)?,
            (None, None) => return Err(ModelError::malformed("a call without a tool's name")),
        };
        let call = &mut self.calls[place];
        if !arguments.is_empty() {
            call.arguments.push_str(&arguments);
            out.push_back(ModelEvent::Delta(Delta::Input { index: call.index, json: arguments }));
        }
        Ok(())
    }

    /// Which call a piece belongs to. Servers number calls, or repeat their ids, or send them one after
    /// another, or give every call the number 0 and a new id.
    fn known_call(&self, number: Option<u32>, given: Option<&str>, named: bool) -> Option<usize> {
        if let Some(number) = number {
            let place = self.calls.iter().rposition(|call| call.number == Some(number))?;
            let other_id =
                given.is_some_and(|id| self.calls[place].given.as_deref().is_some_and(|old| old != id));
            return (!other_id).then_some(place);
        }
        if let Some(given) = given {
            return self.calls.iter().position(|call| call.given.as_deref() == Some(given));
        }
        if named { None } else { self.calls.len().checked_sub(1) }
    }

    fn begin_call(
        &mut self,
        number: Option<u32>,
        given: Option<String>,
        name: String,
        out: &mut ChatEvents,
    ) -> Result<usize, ModelError> {
        if self.calls.len() >= MAX_CALLS {
            return Err(ModelError::malformed(format!("more than {MAX_CALLS} calls in one reply")));
        }
        self.end_speech(out);
        let id = unique_id(given.clone(), self.seed, &mut self.ids);
        let index = self.next;
        self.next += 1;
        let block = call(id.clone(), name.clone(), "", Map::new());
        out.push_back(ModelEvent::Delta(Delta::BlockStarted { index, block }));
        self.calls.push(PartialCall { number, given, index, id, name, arguments: String::new() });
        Ok(self.calls.len() - 1)
    }

    fn stopped(&mut self, reason: &str, out: &mut ChatEvents) {
        if self.progress == ChatProgress::Stopped {
            return;
        }
        self.progress = ChatProgress::Stopped;
        let has_calls = !self.calls.is_empty();
        self.end_speech(out);
        for one in std::mem::take(&mut self.calls) {
            out.push_back(ModelEvent::Delta(Delta::BlockEnded { index: one.index }));
            let block = call(one.id, one.name, &one.arguments, Map::new());
            out.push_back(ModelEvent::Block { index: one.index, block });
        }
        let reason = match reason {
            _ if self.refused => "refusal",
            // Some servers say `stop` after calls too.
            "stop" | "eos" | "" | "tool_calls" | "function_call" if has_calls => "tool_use",
            "stop" | "eos" | "" | "tool_calls" | "function_call" => "end_turn",
            "length" | "max_output_tokens" | "insufficient_system_resource" => "max_tokens",
            "content_filter" | "safety" | "sensitive" => "refusal",
            "model_length" => "model_context_window_exceeded",
            other => other,
        };
        self.reply.stop_reason = Some(reason.to_owned());
    }

    /// `[DONE]` also ends a reply whose server never says why it stopped.
    fn done(&mut self, out: &mut ChatEvents) -> Result<(), ModelError> {
        if self.progress == ChatProgress::Before {
            return Err(ModelError::malformed("the stream is done before it starts"));
        }
        self.stopped("stop", out);
        self.end(out);
        Ok(())
    }

    fn end(&mut self, out: &mut ChatEvents) {
        self.progress = ChatProgress::Complete;
        out.push_back(ModelEvent::Delta(Delta::Ended {
            stop_reason: self.reply.stop_reason.clone(),
            usage: self.reply.usage.clone(),
        }));
        out.push_back(ModelEvent::Completed(std::mem::take(&mut self.reply)));
    }

    fn count(&mut self, length: usize) -> Result<(), ModelError> {
        self.content += length;
        check_content(self.content)
    }
}

impl Speech {
    fn block(&self, text: String) -> Block {
        if self.thinking {
            Block::Thinking { thinking: text, signature: None, extra: Map::new() }
        } else {
            Block::Text { text }
        }
    }
}

impl WireUsage {
    fn ours(self) -> Usage {
        let cached = self.prompt_tokens_details.and_then(|details| details.cached_tokens);
        let cached = cached.or(self.prompt_cache_hit_tokens).unwrap_or(0);
        Usage {
            input_tokens: self.prompt_tokens.unwrap_or(0).saturating_sub(cached),
            output_tokens: self.completion_tokens.unwrap_or(0),
            cache_read_input_tokens: cached,
            ..Usage::default()
        }
    }
}

/// The text of a content that is a string or a list of parts.
fn text_in(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect()
        }
        _ => String::new(),
    }
}
