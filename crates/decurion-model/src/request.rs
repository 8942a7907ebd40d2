//! The whole input of a model request, as bytes. A head and each message are written once, by their
//! dialect, when they enter the conversation; a request is a list of those bytes and is sent without being
//! joined. So a turn costs what is new in it, and an equal prefix is equal by construction.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use decurion_protocol::Message;
pub use decurion_protocol::Thinking;
use http_body::{Body, Frame, SizeHint};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::weight::{self, MediaWeight};
use crate::{anthropic, openai_chat};

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// Everything before the conversation.
    pub head: Arc<WireHead>,
    /// The conversation; cloning it copies no text.
    pub messages: Arc<[WireMessage]>,
    pub tag: RequestTag,
    /// The models of the same provider to change to while this one stays overloaded, one after the other, with commas
    /// between them.
    pub fallback: Option<String>,
}

/// What stands before a conversation and is frozen for a run: settings, tools, system prompt.
/// It is plain data, to be stored; a dialect makes the same bytes of it each time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Head {
    /// The model's name as the provider knows it.
    pub model: String,
    /// The system prompt in blocks, the most stable first.
    pub system: Vec<String>,
    /// The tools, in the order the model is shown them.
    pub tools: Vec<ToolSchema>,
    /// The most tokens the reply may have.
    pub max_output_tokens: u64,
    /// Whether and how the model may think first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// How much effort, in the provider's word (`low`, `medium`, `high` …).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Texts at which the model stops.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// What Chat Completions servers call the output limit.
    pub output_limit_field: OutputLimitField,
    /// Further members of the request, as they are.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// A tool as a model is shown it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSchema {
    pub name: String,
    /// When and how to use it.
    pub description: String,
    /// A JSON Schema of an object.
    pub input_schema: Value,
}

/// What Chat Completions servers call the output limit: the old name is known to all local servers, the
/// new one is demanded by OpenAI's reasoning models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLimitField {
    #[default]
    MaxTokens,
    MaxCompletionTokens,
}

/// Who asks, for fairness, traces and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTag {
    /// `main`, or the agent's type.
    pub agent: String,
    /// The way from the root, `main` or `main/<agent>/<agent>`: the parts are names or ids.
    pub path: String,
    /// Which class of asker.
    pub class: RequestClass,
}

/// Which class of asker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestClass {
    /// The root's own conversation.
    #[default]
    #[serde(rename = "main")]
    Main,
    /// An agent that is part of Decurion.
    #[serde(rename = "agent:builtin")]
    AgentBuiltin,
    /// An agent from a file.
    #[serde(rename = "agent:custom")]
    AgentCustom,
}

/// How a provider wants its JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    Anthropic,
    OpenAiChat,
}

/// A head in a provider's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireHead {
    /// The dialect of the text.
    pub dialect: Dialect,
    /// The model asked for.
    pub model: String,
    /// From `{"model":…` to `…"messages":[`, and perhaps a first message.
    pub prefix: Bytes,
    /// What closes the request.
    pub suffix: Bytes,
    /// Whether the prefix already holds a message, so that the next needs a comma.
    pub opened: bool,
}

/// A message in a provider's bytes. One message of ours may be several there, joined by commas, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireMessage {
    pub bytes: Bytes,
    /// Where the moving `cache_control` goes if this is the last message; `bytes.len()` if it cannot.
    pub cut: usize,
    /// What of it is images and documents.
    pub media: MediaWeight,
}

impl Dialect {
    pub fn head(self, head: &Head) -> WireHead {
        match self {
            Self::Anthropic => anthropic::write_head(head),
            Self::OpenAiChat => openai_chat::write_head(head),
        }
    }

    pub fn message(self, message: &Message) -> WireMessage {
        let written = match self {
            Self::Anthropic => anthropic::write_message(message),
            Self::OpenAiChat => openai_chat::write_message(message),
        };
        WireMessage { media: weight::media(self, message), ..written }
    }
}

impl WireHead {
    /// The same with another model: all bytes after the model's name stay as they are.
    #[must_use]
    pub fn with_model(&self, model: &str) -> Self {
        let old = model_member(&self.model);
        let new = model_member(model);
        let rest = self.prefix.strip_prefix(old.as_bytes()).unwrap_or(&self.prefix);
        let mut prefix = BytesMut::with_capacity(new.len() + rest.len());
        prefix.put_slice(new.as_bytes());
        prefix.put_slice(rest);
        Self { model: model.to_owned(), prefix: prefix.freeze(), ..self.clone() }
    }
}

/// How every request begins.
pub(crate) fn model_member(model: &str) -> String {
    format!("{{\"model\":{}", Value::String(model.to_owned()))
}

impl WireMessage {
    /// A message without a place for the cache mark.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { cut: bytes.len(), bytes, media: MediaWeight::default() }
    }
}

static COMMA: Bytes = Bytes::from_static(b",");
static CACHE_MARK: Bytes = Bytes::from_static(br#","cache_control":{"type":"ephemeral"}"#);

impl ModelRequest {
    /// A request of the root without a fallback.
    pub fn new(head: Arc<WireHead>, messages: impl Into<Arc<[WireMessage]>>) -> Self {
        Self { head, messages: messages.into(), tag: RequestTag::default(), fallback: None }
    }

    /// The body, in order. The moving cache mark is a separate segment.
    pub fn segments(&self) -> Vec<Bytes> {
        let mut body = self.body();
        let mut segments = Vec::with_capacity(self.messages.len() * 2 + 4);
        while let Some(segment) = body.segment().map(Segment::shared) {
            segments.push(segment);
            body.advance();
        }
        segments
    }

    /// The length of the body in bytes.
    #[allow(clippy::len_without_is_empty)] // a body is never empty
    pub fn len(&self) -> u64 {
        let written = self.messages.iter().filter(|message| !message.bytes.is_empty());
        let (count, length) = written
            .fold((0_usize, 0_usize), |(count, length), message| (count + 1, length + message.bytes.len()));
        let commas = if self.head.opened { count } else { count.saturating_sub(1) };
        let mark = if self.marked().is_some() { CACHE_MARK.len() } else { 0 };
        (self.head.prefix.len() + length + commas + mark + self.head.suffix.len()) as u64
    }

    /// The body, to be sent.
    pub fn body(&self) -> RequestBody {
        RequestBody {
            head: Arc::clone(&self.head),
            messages: Arc::clone(&self.messages),
            marked: self.marked(),
            opened: self.head.opened,
            at: At::Prefix,
            left: self.len(),
        }
    }

    /// How many bytes at the front are the same as another request's, the moving cache mark left out.
    /// Equal bytes that are shared are found by address, so this costs nothing for a fork.
    pub fn shared_prefix(&self, other: &Self) -> u64 {
        let heads_differ = !Arc::ptr_eq(&self.head, &other.head) && self.head.prefix != other.head.prefix;
        if heads_differ {
            return common(&self.head.prefix, &other.head.prefix);
        }
        let mut shared = self.head.prefix.len() as u64;
        let mut opened = self.head.opened;
        let mine = self.messages.iter().filter(|message| !message.bytes.is_empty());
        let theirs = other.messages.iter().filter(|message| !message.bytes.is_empty());
        for (mine, theirs) in mine.zip(theirs) {
            shared += u64::from(opened);
            opened = true;
            let same = common(&mine.bytes, &theirs.bytes);
            shared += same;
            if same < mine.bytes.len() as u64 || mine.bytes.len() != theirs.bytes.len() {
                break;
            }
        }
        shared
    }

    /// The last message that can carry the cache mark.
    fn marked(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.cut < message.bytes.len())
    }
}

fn common(mine: &Bytes, theirs: &Bytes) -> u64 {
    let same_place = mine.as_ptr() == theirs.as_ptr() && mine.len() == theirs.len();
    if same_place || mine == theirs {
        return mine.len() as u64;
    }
    mine.iter().zip(theirs.iter()).take_while(|(mine, theirs)| mine == theirs).count() as u64
}

impl Default for RequestTag {
    fn default() -> Self {
        Self { agent: "main".to_owned(), path: "main".to_owned(), class: RequestClass::Main }
    }
}

impl RequestClass {
    /// The name in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::AgentBuiltin => "agent:builtin",
            Self::AgentCustom => "agent:custom",
        }
    }
}

impl fmt::Display for RequestClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body as frames: a large segment is one frame, small ones are gathered. It walks through the messages
/// without a list of its segments, so that a turn in a long conversation does not count references to each of them.
#[derive(Debug)]
pub struct RequestBody {
    head: Arc<WireHead>,
    messages: Arc<[WireMessage]>,
    /// The message with the cache mark.
    marked: Option<usize>,
    /// Whether the next message needs a comma before it.
    opened: bool,
    at: At,
    left: u64,
}

/// The next segment of a body.
#[derive(Clone, Copy, Debug)]
enum At {
    Prefix,
    /// The comma before this message.
    Comma(usize),
    /// This message, up to the cache mark if it has one.
    Message(usize),
    Mark(usize),
    /// The message behind its mark.
    Rest(usize),
    Suffix,
    End,
}

struct Segment<'a> {
    bytes: &'a Bytes,
    range: Range<usize>,
}

impl<'a> Segment<'a> {
    fn whole(bytes: &'a Bytes) -> Self {
        Self { bytes, range: 0..bytes.len() }
    }

    fn shared(self) -> Bytes {
        self.bytes.slice(self.range)
    }
}

/// A frame is filled up to this size; a segment from a quarter of it on is sent uncopied.
const FRAME_SIZE: usize = 64 * 1024;

impl RequestBody {
    fn segment(&self) -> Option<Segment<'_>> {
        Some(match self.at {
            At::Prefix => Segment::whole(&self.head.prefix),
            At::Comma(_) => Segment::whole(&COMMA),
            At::Message(at) if self.marked == Some(at) => {
                Segment { range: 0..self.messages[at].cut, ..Segment::whole(&self.messages[at].bytes) }
            }
            At::Message(at) => Segment::whole(&self.messages[at].bytes),
            At::Mark(_) => Segment::whole(&CACHE_MARK),
            At::Rest(at) => {
                let bytes = &self.messages[at].bytes;
                Segment { bytes, range: self.messages[at].cut..bytes.len() }
            }
            At::Suffix => Segment::whole(&self.head.suffix),
            At::End => return None,
        })
    }

    fn advance(&mut self) {
        self.at = match self.at {
            At::Prefix => self.message_from(0),
            At::Comma(at) => At::Message(at),
            At::Message(at) if self.marked == Some(at) => At::Mark(at),
            At::Mark(at) => At::Rest(at),
            At::Message(at) | At::Rest(at) => self.message_from(at + 1),
            At::Suffix | At::End => At::End,
        };
    }

    /// Where the first message from this one on begins that has any bytes.
    fn message_from(&mut self, first: usize) -> At {
        let Some(further) = self.messages[first..].iter().position(|message| !message.bytes.is_empty())
        else {
            return At::Suffix;
        };
        let at = first + further;
        if std::mem::replace(&mut self.opened, true) { At::Comma(at) } else { At::Message(at) }
    }

    fn next_frame(&mut self) -> Option<Bytes> {
        let mut frame = BytesMut::new();
        while let Some(segment) = self.segment() {
            let size = segment.range.len();
            if frame.is_empty() && size >= FRAME_SIZE / 4 {
                let large = segment.shared();
                self.advance();
                return Some(large);
            }
            if size >= FRAME_SIZE / 4 || frame.len() + size > FRAME_SIZE {
                break;
            }
            if frame.is_empty() {
                let gathered = self.left.min(FRAME_SIZE as u64);
                frame = BytesMut::with_capacity(usize::try_from(gathered).unwrap_or(FRAME_SIZE));
            }
            frame.put_slice(&segment.bytes[segment.range]);
            self.advance();
        }
        (!frame.is_empty()).then(|| frame.freeze())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = self.next_frame();
        if let Some(frame) = &frame {
            self.left -= frame.len() as u64;
        }
        Poll::Ready(frame.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
