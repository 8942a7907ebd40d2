//! A line as an event. Takes the bytes of one line without its end, gives what it says, or that it is not to
//! be trusted. Never fails in any other way.

use std::borrow::Cow;
use std::fmt;

use decurion_protocol::event::{Event, MessageMeta, Origin, RECORD_LEVEL, Timing};
use decurion_protocol::{
    AgentId, Block, CallId, Decision, Envelope, Intent, LineId, Message, Money, Role, RunId, ToolContent,
    ToolEffect, ToolOutput, Usage,
};
use jiff::Timestamp;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::blob;
use crate::folder::DirHandle;
use crate::line::{SYNTHETIC_MODEL, VERSION};
use crate::repair;

/// `,"crc":"` + 8 + `"}`.
const SEAL_LENGTH: usize = 8 + 8 + 2;

/// The end of one of our lines: its run, if it says, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) run: Option<RunId>,
    pub(crate) seq: u64,
    pub(crate) ordinal: u64,
}

/// What a line turned out to be.
#[derive(Debug, PartialEq)]
pub(crate) enum DecodedLine {
    /// One of ours, unharmed.
    Ours(Trailer),
    /// One of ours that was changed after it was written: JSON with our members and a wrong checksum.
    Edited(Claimed),
    /// A whole JSON object that some other program added.
    Foreign(Value),
    Empty,
    Bad,
}

/// What an edited line says of itself. It may be wrong, so that its place in the file counts for more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimed {
    pub(crate) run: Option<RunId>,
    pub(crate) seq: Option<u64>,
}

/// A claimed number this far beyond the one before it is not believed: no session writes so many records.
const FARTHEST_CLAIM: u64 = 1 << 32;

impl Claimed {
    /// The number of this line after one with the number `last`: the claimed one if it is from `least` on and
    /// plausible, else the next.
    pub(crate) fn seq_after(&self, last: u64, least: u64) -> u64 {
        let farthest = last.saturating_add(FARTHEST_CLAIM);
        self.seq.filter(|seq| (least..=farthest).contains(seq)).unwrap_or(last.saturating_add(1))
    }
}

/// A line without what editors, other systems and a loss of power put around it: a byte order mark, a
/// carriage return, NULs where a lost line was.
pub(crate) fn bare(line: &[u8]) -> &[u8] {
    let line = without_end(line);
    let line = &line[line.iter().take_while(|byte| **byte == 0).count()..];
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

fn without_end(line: &[u8]) -> &[u8] {
    line[..line.len() - nulls_at_end(line)].trim_ascii_end()
}

fn nulls_at_end(line: &[u8]) -> usize {
    line.iter().rev().take_while(|byte| **byte == 0).count()
}

/// Tells our own unharmed lines from others. Takes a [`bare`] line; only one without our seal is parsed here.
pub(crate) fn check(line: &[u8]) -> DecodedLine {
    if let Some(covered) = covered(line) {
        return match trailer(covered) {
            Some(trailer) => DecodedLine::Ours(trailer),
            None => DecodedLine::Bad,
        };
    }
    if line.iter().all(u8::is_ascii_whitespace) {
        return DecodedLine::Empty;
    }
    match serde_json::from_slice::<Value>(line) {
        Ok(value) if value.get("ordinal").is_some() || value.get("crc").is_some() => {
            let run = value.get("run").and_then(|run| RunId::deserialize(run).ok());
            DecodedLine::Edited(Claimed { run, seq: value.get("seq").and_then(Value::as_u64) })
        }
        Ok(value) if value.is_object() => DecodedLine::Foreign(value),
        _ => DecodedLine::Bad,
    }
}

/// The bytes before the last member, if the line ends with a checksum that is right.
fn covered(line: &[u8]) -> Option<&[u8]> {
    let (covered, seal) = line.split_at_checked(line.len().checked_sub(SEAL_LENGTH)?)?;
    let digits = seal.strip_prefix(br#","crc":""#)?.strip_suffix(br#""}"#)?;
    let text = std::str::from_utf8(digits).ok()?;
    let checksum = u32::from_str_radix(text, 16).ok()?;
    (checksum == crc32c::crc32c(covered)).then_some(covered)
}

/// Reads `,"run":"…","seq":n,"ordinal":n` from the end.
fn trailer(covered: &[u8]) -> Option<Trailer> {
    let (rest, ordinal) = trailing_number(covered)?;
    let (rest, seq) = trailing_number(rest.strip_suffix(br#","ordinal":"#)?)?;
    let rest = rest.strip_suffix(br#","seq":"#)?;
    Some(Trailer { run: trailing_run(rest), seq, ordinal })
}

fn trailing_run(bytes: &[u8]) -> Option<RunId> {
    let (rest, id) = bytes.strip_suffix(b"\"")?.split_last_chunk::<36>()?;
    rest.strip_suffix(br#","run":""#)?;
    Uuid::try_parse_ascii(id).ok().map(RunId)
}

fn trailing_number(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let digits = bytes.iter().rev().take(20).take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, digits) = bytes.split_at(bytes.len() - digits);
    Some((rest, std::str::from_utf8(digits).ok()?.parse().ok()?))
}

/// Whether a line is one of the agent whose file it is in: any of the chain, and of our own type those that
/// name no other agent.
pub(crate) fn is_of_file(line: &[u8], agents_file: bool) -> bool {
    if agents_file || !line.starts_with(br#"{"type":"decurion""#) {
        return true;
    }
    // Only the few members before the event are looked at; what is inside it is not ours to read.
    let head = memchr::memmem::find(line, br#","event":"#).map_or(line, |at| &line[..at]);
    memchr::memmem::find(head, br#","agentId":"#).is_none()
}

/// The lines that a lost line end joined, if so: whole JSON texts one after the other, then anything that does not
/// parse.
pub(crate) fn split_joined(line: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut texts = serde_json::Deserializer::from_slice(line).into_iter::<de::IgnoredAny>();
    while let Some(Ok(_)) = texts.next() {
        let end = texts.byte_offset();
        // Anything but objects is no line of anybody: numbers in garbage are not.
        if line[start..end].trim_ascii_start().first() != Some(&b'{') {
            break;
        }
        parts.push(line[start..end].trim_ascii_start());
        start = end;
    }
    if start > 0 && !bare(&line[start..]).is_empty() {
        parts.push(&line[start..]);
    }
    if parts.len() > 1 { parts } else { Vec::new() }
}

/// How many bytes at the end of a last line without a line end are an incomplete record: all of it, the part after
/// joined whole records, or none if it lost only its end.
pub(crate) fn unfinished(line: &[u8]) -> usize {
    let text = bare(line);
    match check(text) {
        DecodedLine::Empty if line.contains(&0) => line.len(),
        DecodedLine::Bad => match split_joined(text).last() {
            None => line.len(),
            Some(last) if check(bare(last)) == DecodedLine::Bad => {
                last.len() + line.len() - without_end(line).len()
            }
            Some(_) => 0,
        },
        _ => nulls_at_end(line),
    }
}

/// What one unharmed line of ours says.
pub(crate) enum Decoded {
    Whole(Envelope),
    /// One line of several that make an event.
    Part(LinePart),
    /// It passed its checksum and yet makes no sense.
    Nonsense,
}

/// One line of several.
pub(crate) struct LinePart {
    pub(crate) envelope: Envelope,
    pub(crate) index: usize,
    pub(crate) count: usize,
    /// Whether its number is only claimed, or guessed from its place.
    pub(crate) edited: bool,
}

impl LinePart {
    /// Adds the next line; false when it does not belong.
    pub(crate) fn join(&mut self, next: Self) -> bool {
        let same = self.envelope.seq == next.envelope.seq || self.edited || next.edited;
        if self.edited && !next.edited {
            self.count = next.count;
        }
        if !same || self.count != next.count || self.index + 1 != next.index {
            return false;
        }
        if !next.edited {
            (self.envelope.seq, self.edited) = (next.envelope.seq, false);
        }
        let joined = match (&mut self.envelope.event, next.envelope.event) {
            (
                Event::Message { message, lines, meta, .. },
                Event::Message { message: more, lines: ids, meta: last, .. },
            ) => {
                message.blocks.extend(more.blocks);
                lines.extend(ids);
                *meta = last;
                true
            }
            (Event::Compacted { summary, line, .. }, Event::Message { message, lines, .. }) => {
                *summary = message;
                lines.first().is_some_and(|id| {
                    *line = *id;
                    true
                })
            }
            _ => false,
        };
        self.index = next.index;
        joined
    }

    /// Whether all lines are here.
    pub(crate) fn is_whole(&self) -> bool {
        self.index + 1 == self.count
    }
}

/// What decoding needs to know beside the line.
pub(crate) struct LineDecoder<'a> {
    /// Whether results for programs are wanted.
    pub(crate) structured: bool,
    /// The session's folder, for blobs.
    pub(crate) session: Option<&'a DirHandle>,
    /// Counts blobs that could not be found.
    pub(crate) missing_blobs: &'a mut u64,
    /// The run of a line that does not say.
    pub(crate) run: RunId,
    /// The date of a line that does not say.
    pub(crate) date: Timestamp,
    /// Whether the line was changed after it was written, so that its version says nothing.
    pub(crate) edited: bool,
    /// The level of a record that must be understood and is not.
    pub(crate) needs: Option<u64>,
}

impl LineDecoder<'_> {
    /// Reads a line that passed [`check`].
    pub(crate) fn decode(&mut self, line: &[u8], trailer: Trailer) -> Decoded {
        let event = match serde_json::from_slice::<RawLine<'_>>(line) {
            Ok(raw) if raw.blobs.is_none() => self.event(raw, trailer),
            _ => None,
        };
        event.or_else(|| self.decode_unusual(line, trailer)).unwrap_or(Decoded::Nonsense)
    }

    /// A line whose large strings are in files, or with members that we did not write: a change by a person or a later
    /// version costs the member, not the line.
    fn decode_unusual(&mut self, line: &[u8], trailer: Trailer) -> Option<Decoded> {
        let mut record: Value = serde_json::from_slice(line).ok()?;
        let names: Vec<String> =
            record.get("blobs").and_then(|names| Vec::deserialize(names).ok()).unwrap_or_default();
        if !names.is_empty() {
            *self.missing_blobs += blob::resolve(&mut record, &names, self.session) as u64;
        }
        repair::line(&mut record, self.date, line);
        let whole = serde_json::to_vec(&record).ok()?;
        self.event(serde_json::from_slice(&whole).ok()?, trailer)
    }

    fn event(&mut self, mut raw: RawLine<'_>, trailer: Trailer) -> Option<Decoded> {
        let must = raw.must;
        if self.edited {
            raw.v = Some(VERSION);
        }
        let decoded = raw.into_event(trailer, trailer.run.unwrap_or(self.run), self.structured)?;
        self.needs = must.filter(|must| *must > RECORD_LEVEL || decoded.is_unknown());
        Some(decoded)
    }

    /// A record that passed its checksum and says nothing that this version knows.
    pub(crate) fn unknown(&mut self, line: &[u8], trailer: Trailer, at: Timestamp) -> Option<Envelope> {
        let value: Value = serde_json::from_slice(line).ok()?;
        self.needs = value.get("must").map(|must| must.as_u64().unwrap_or(u64::MAX));
        let at = value.get("timestamp").and_then(|date| Timestamp::deserialize(date).ok()).unwrap_or(at);
        let agent = value.get("agentId").and_then(|agent| AgentId::deserialize(agent).ok());
        let (seq, run) = (trailer.seq, trailer.run.unwrap_or(self.run));
        Some(Envelope { seq, at, agent, run, event: Event::Unknown(value) })
    }
}

impl Decoded {
    /// Whether part of it is of a kind that this version does not know.
    pub(crate) fn is_unknown(&self) -> bool {
        let (Self::Whole(envelope) | Self::Part(LinePart { envelope, .. })) = self else { return true };
        match &envelope.event {
            Event::Unknown(_) => true,
            Event::CallEnded { output, .. } => {
                output.effects.iter().any(|effect| matches!(effect, ToolEffect::Unknown(_)))
            }
            _ => false,
        }
    }
}

/// Every member we write, on any kind of line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawLine<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    parent_uuid: Option<LineId>,
    #[serde(default)]
    logical_parent_uuid: Option<LineId>,
    #[serde(default)]
    agent_id: Option<AgentId>,
    #[serde(default)]
    message: Option<RawMessage>,
    #[serde(default)]
    uuid: Option<LineId>,
    timestamp: Timestamp,
    #[serde(default)]
    v: Option<u64>,
    #[serde(default)]
    must: Option<u64>,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_use_result: Option<&'a RawValue>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    duration_ms: Option<u64>,
    #[serde(default)]
    effects: Vec<ToolEffect>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    from: Option<Origin>,
    #[serde(default)]
    meta: Option<Box<MessageMeta>>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    is_api_error_message: bool,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    api_error_status: Option<u16>,
    #[serde(default)]
    cost_nanos: Option<Money>,
    #[serde(default)]
    asked_model: Option<String>,
    #[serde(default)]
    timing: Option<Timing>,
    #[serde(default)]
    block: usize,
    #[serde(default)]
    blocks: Option<usize>,
    #[serde(default)]
    compact_metadata: Option<CompactMetadata>,
    #[serde(default)]
    checkpoint: Option<Value>,
    #[serde(borrow, default)]
    blobs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawMessage {
    role: Role,
    content: MessageContent,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Option<QuickUsage>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompactMetadata {
    trigger: String,
    pre_tokens: u64,
    preserved_messages: PreservedMessages,
}

#[derive(Deserialize)]
struct PreservedMessages {
    uuids: Vec<LineId>,
}

impl RawLine<'_> {
    fn into_event(mut self, trailer: Trailer, run: RunId, structured: bool) -> Option<Decoded> {
        let (at, agent) = (self.timestamp, self.agent_id.take());
        let (index, count) = (self.block, self.blocks);
        let event = match &*self.kind {
            "decurion" => self.ours()?,
            "user" if self.tool.is_some() => self.call_ended(structured)?,
            "user" => self.user()?,
            "assistant" => self.assistant()?,
            "system" => self.boundary()?,
            _ => return None,
        };
        let envelope = Envelope { seq: trailer.seq, at, agent, run, event };
        Some(match count {
            Some(count) if count != 1 => Decoded::Part(LinePart { envelope, index, count, edited: false }),
            _ => Decoded::Whole(envelope),
        })
    }

    fn ours(self) -> Option<Event> {
        let event = self.event?.get();
        if self.v == Some(VERSION) {
            if let Some(intent) = quick_intent(event) {
                return Some(intent);
            }
            if let Ok(event) = serde_json::from_str(event) {
                return Some(event);
            }
        }
        Some(Event::Unknown(serde_json::from_str(event).ok()?))
    }

    fn user(self) -> Option<Event> {
        let message = self.message?;
        let mut meta = self.meta.unwrap_or_default();
        meta.origin = match (self.note, self.from) {
            (Some(kind), _) => Origin::Note(kind),
            (None, Some(origin)) => origin,
            (None, None) => Origin::Prompt,
        };
        let message = Message { role: message.role, blocks: message.content.0 };
        Some(Event::Message { message, lines: vec![self.uuid?], parent: self.parent_uuid, meta })
    }

    fn assistant(self) -> Option<Event> {
        let message = self.message?;
        let origin = match self.from {
            Some(origin) => origin,
            None if self.is_api_error_message => Origin::Synthetic,
            None => Origin::Model,
        };
        let made_up = origin == Origin::Synthetic && message.model.as_deref() == Some(SYNTHETIC_MODEL);
        let meta = MessageMeta {
            origin,
            message_id: message.id,
            request_id: self.request_id,
            model: if made_up { None } else { message.model },
            asked_model: self.asked_model,
            stop_reason: message.stop_reason,
            usage: message.usage.map(|usage| usage.0),
            cost: self.cost_nanos,
            delivers: Vec::new(),
            timing: self.timing,
            error: self.error.and_then(|error| error.as_str().map(str::to_owned)),
            error_status: self.api_error_status,
            skills: Vec::new(),
            effects: Vec::new(),
        };
        Some(Event::Message {
            message: Message { role: message.role, blocks: message.content.0 },
            lines: vec![self.uuid?],
            parent: self.parent_uuid,
            meta: Box::new(meta),
        })
    }

    fn call_ended(self, structured: bool) -> Option<Event> {
        let block = self.message?.content.0.into_iter().next()?;
        let Block::ToolResult { id, content, is_error } = block else { return None };
        let structured = match self.tool_use_result {
            // For a failure without a structure, that member only repeats the text.
            Some(raw) if structured && !(is_error && raw.get().starts_with(r#""Error: "#)) => {
                serde_json::from_str(raw.get()).ok()
            }
            _ => None,
        };
        Some(Event::CallEnded {
            call: id,
            tool: self.tool?,
            line: self.uuid?,
            parent: self.parent_uuid,
            output: Box::new(ToolOutput { content, is_error, structured, effects: self.effects }),
            duration_ms: self.duration_ms?,
        })
    }

    /// The first half of a compaction; its summary is on the next line.
    fn boundary(self) -> Option<Event> {
        let metadata = self.compact_metadata?;
        Some(Event::Compacted {
            boundary: self.uuid?,
            line: self.uuid?,
            logical_parent: self.logical_parent_uuid,
            summary: Message { role: Role::User, blocks: Vec::new() },
            kept: metadata.preserved_messages.uuids,
            trigger: metadata.trigger,
            tokens_before: metadata.pre_tokens,
            checkpoint: self.checkpoint.unwrap_or(Value::Null),
        })
    }
}

/// The event that is on every other line, without first reading it into a tree to look for its type.
fn quick_intent(event: &str) -> Option<Event> {
    #[derive(Deserialize)]
    struct Started {
        call: CallId,
        tool: String,
        intent: Box<Intent>,
        decision: Decision,
        #[serde(default)]
        input: Option<Value>,
    }
    if !event.starts_with(r#"{"type":"call_started","#) {
        return None;
    }
    let Started { call, tool, intent, decision, input } = serde_json::from_str(event).ok()?;
    Some(Event::CallStarted { call, tool, intent, decision, input })
}

/// The same for what a response used.
struct QuickUsage(Usage);

impl<'de> Deserialize<'de> for QuickUsage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UsageVisitor).map(QuickUsage)
    }
}

struct UsageVisitor;

impl<'de> Visitor<'de> for UsageVisitor {
    type Value = Usage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counts of tokens")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Usage, A::Error> {
        let mut usage = Usage::default();
        while let Some(MemberName(name)) = members.next_key::<MemberName<'de>>()? {
            match &*name {
                "input_tokens" => usage.input_tokens = members.next_value()?,
                "output_tokens" => usage.output_tokens = members.next_value()?,
                "cache_creation_input_tokens" => {
                    usage.cache_creation_input_tokens = members.next_value()?;
                }
                "cache_read_input_tokens" => usage.cache_read_input_tokens = members.next_value()?,
                _ => {
                    usage.other.insert(name.into_owned(), members.next_value()?);
                }
            }
        }
        Ok(usage)
    }
}

/// The content of a message, read straight into blocks: most of a transcript is here, and the way through a
/// tree of values would copy it twice.
struct MessageContent(Vec<Block>);

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = MessageContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or blocks")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<MessageContent, E> {
        Ok(MessageContent(vec![Block::text(text)]))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<MessageContent, E> {
        Ok(MessageContent(vec![Block::Text { text }]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<MessageContent, A::Error> {
        let mut blocks = Vec::new();
        while let Some(QuickBlock(block)) = items.next_element()? {
            blocks.push(block);
        }
        Ok(MessageContent(blocks))
    }
}

/// A block in the member order we write, without a detour; any other is read the protocol's own way.
struct QuickBlock(Block);

impl<'de> Deserialize<'de> for QuickBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BlockVisitor).map(QuickBlock)
    }
}

struct BlockVisitor;

impl<'de> Visitor<'de> for BlockVisitor {
    type Value = Block;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a block")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Block, A::Error> {
        let mut seen = Map::new();
        match members.next_key::<MemberName<'de>>()? {
            None => return Ok(Block::Opaque(Value::Object(seen))),
            Some(MemberName(first)) if first == "type" => {}
            Some(MemberName(first)) => {
                seen.insert(first.into_owned(), members.next_value()?);
                return rest(seen, members);
            }
        }
        let kind: Value = members.next_value()?;
        match kind.as_str() {
            Some("text") => text_block(kind, members),
            Some("tool_use") => tool_use_block(kind, members),
            Some("tool_result") => tool_result_block(kind, members),
            _ => {
                seen.insert("type".to_owned(), kind);
                rest(seen, members)
            }
        }
    }

    // A block that is no object is kept as it is.
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Block, E> {
        Ok(Block::Opaque(Value::from(text)))
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Block, E> {
        Ok(Block::Opaque(Value::from(number)))
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Block, E> {
        Ok(Block::Opaque(Value::from(number)))
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Block, E> {
        Ok(Block::Opaque(Value::from(number)))
    }
    fn visit_bool<E: de::Error>(self, truth: bool) -> Result<Block, E> {
        Ok(Block::Opaque(Value::from(truth)))
    }
    fn visit_unit<E: de::Error>(self) -> Result<Block, E> {
        Ok(Block::Opaque(Value::Null))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Block, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<Value>()? {
            all.push(item);
        }
        Ok(Block::Opaque(Value::Array(all)))
    }
}

/// A member's name, borrowed where it can be.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

/// The slow way: everything into a tree, then the protocol decides.
fn rest<'de, A: MapAccess<'de>>(mut seen: Map<String, Value>, mut members: A) -> Result<Block, A::Error> {
    while let Some((name, value)) = members.next_entry::<String, Value>()? {
        seen.insert(name, value);
    }
    Ok(Block::from_value(Value::Object(seen)))
}

/// Reads the members of a known kind into their places; `build` makes the block of them, or returns them if they do not
/// fit. Anything unusual takes the slow way.
fn known<'de, A: MapAccess<'de>, const N: usize>(
    kind: Value,
    names: [&str; N],
    mut members: A,
    build: impl FnOnce([Option<Value>; N]) -> Result<Block, [Option<Value>; N]>,
) -> Result<Block, A::Error> {
    let tree = |places: [Option<Value>; N]| {
        let mut seen = Map::new();
        seen.insert("type".to_owned(), kind);
        for (name, value) in names.iter().zip(places) {
            value.and_then(|value| seen.insert((*name).to_owned(), value));
        }
        seen
    };
    let mut places = [const { None }; N];
    while let Some(MemberName(name)) = members.next_key::<MemberName<'de>>()? {
        match names.iter().position(|known| *known == name) {
            Some(place) if places[place].is_none() => places[place] = Some(members.next_value()?),
            _ => {
                let mut seen = tree(places);
                seen.insert(name.into_owned(), members.next_value()?);
                return rest(seen, members);
            }
        }
    }
    Ok(build(places).unwrap_or_else(|places| Block::from_value(Value::Object(tree(places)))))
}

fn text_block<'de, A: MapAccess<'de>>(kind: Value, members: A) -> Result<Block, A::Error> {
    known(kind, ["text"], members, |places| match places {
        [Some(Value::String(text))] => Ok(Block::Text { text }),
        other => Err(other),
    })
}

// The members that do not fit are given back by value, once, on a rare path.
#[allow(clippy::result_large_err)]
fn tool_use_block<'de, A: MapAccess<'de>>(kind: Value, members: A) -> Result<Block, A::Error> {
    known(kind, ["id", "name", "input"], members, |places| match places {
        [Some(Value::String(id)), Some(Value::String(name)), Some(input)] => {
            Ok(Block::ToolUse { id: CallId(id), name, input })
        }
        other => Err(other),
    })
}

// The members that do not fit are given back by value, once, on a rare path.
#[allow(clippy::result_large_err)]
fn tool_result_block<'de, A: MapAccess<'de>>(kind: Value, members: A) -> Result<Block, A::Error> {
    known(kind, ["tool_use_id", "content", "is_error"], members, |places| match places {
        [Some(Value::String(id)), Some(Value::String(text)), None] => {
            Ok(Block::ToolResult { id: CallId(id), content: ToolContent::Text(text), is_error: false })
        }
        [Some(Value::String(id)), Some(Value::String(text)), Some(Value::Bool(is_error))] => {
            Ok(Block::ToolResult { id: CallId(id), content: ToolContent::Text(text), is_error })
        }
        other => Err(other),
    })
}
