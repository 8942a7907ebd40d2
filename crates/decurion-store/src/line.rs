//! One event as lines. Takes a durable envelope, gives the bytes that go into its file: in the ecosystem's
//! shape where that shape can say it, else in a line type of ours that other readers skip.
//!
//! A line of ours that a reader must understand before it may continue the session says `"must":level`.
//!
//! Every line ends `,"run":"…","seq":n,"ordinal":n,"crc":"xxxxxxxx"}`: the run, left out on a line of the chain
//! where two lines of the same agent before it have said it; the place in the session; the place in the file;
//! and CRC32C over all bytes before the last member.

use std::io::{self, Write as _};

use decurion_protocol::event::{RECORD_LEVEL, SessionInfo};
use decurion_protocol::{
    Block, Envelope, Event, LineId, Message, MessageMeta, Origin, Role, RunId, ToolContent, ToolOutput,
};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::blob::{self, BlobStore, LINE_LIMIT};

/// The version of our own line type.
pub(crate) const VERSION: u64 = 1;
/// What a message that the model did not write says for its model.
pub(crate) const SYNTHETIC_MODEL: &str = "<synthetic>";
/// How much of an error's text is repeated for programs; the whole is in the result itself.
const ERROR_LIMIT: usize = 400;

/// Whether an event is part of a conversation, and so belongs into its agent's own file.
pub(crate) fn is_conversation(event: &Event) -> bool {
    matches!(event, Event::Message { .. } | Event::CallEnded { .. } | Event::Compacted { .. })
}

/// Writes lines for one session.
pub(crate) struct Encoder {
    /// The members that are the same on every line of the chain, ready to be copied.
    constant: Vec<u8>,
    session: Uuid,
}

impl Encoder {
    pub(crate) fn new(info: &SessionInfo) -> Self {
        let mut constant = Vec::with_capacity(256);
        let mut line = LineWriter { out: &mut constant };
        line.raw(r#","userType":"external""#);
        line.text("entrypoint", &info.entrypoint);
        line.text("cwd", info.cwd.as_str());
        line.id("sessionId", info.session.0);
        line.text("version", &info.version);
        if let Some(branch) = &info.git_branch {
            line.text("gitBranch", branch);
        }
        Self { constant, session: info.session.0 }
    }

    /// Adds the lines of one envelope to `out`. On an error neither that nor the file's end has changed.
    pub(crate) fn encode(
        &self,
        envelope: &Envelope,
        end: &mut FileEnd,
        out: &mut Vec<u8>,
        blobs: &mut dyn BlobStore,
    ) -> io::Result<()> {
        let (start, before) = (out.len(), *end);
        let mut pen = EventWriter { encoder: self, envelope, end, out, blobs };
        let result = pen.envelope();
        if result.is_err() {
            out.truncate(start);
            *end = before;
        }
        result
    }
}

/// What the next line of a file depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileEnd {
    /// The count of its last line.
    pub(crate) ordinal: u64,
    /// The run of the last line of the agent whose file it is, where this process wrote it.
    pub(crate) run: Option<RunId>,
    /// How many lines of the chain have said that run.
    pub(crate) said: u8,
}

impl FileEnd {
    /// Takes note of a line of this run; gives whether the chain still has to name it. It is named twice, so that a
    /// single damaged line cannot lose it.
    fn must_say(&mut self, run: RunId) -> bool {
        if self.run.replace(run) != Some(run) {
            self.said = 0;
        }
        self.said < 2
    }
}

/// The state while one envelope is written.
struct EventWriter<'a> {
    encoder: &'a Encoder,
    envelope: &'a Envelope,
    end: &'a mut FileEnd,
    out: &'a mut Vec<u8>,
    blobs: &'a mut dyn BlobStore,
}

/// Which of how many lines of one record.
#[derive(Clone, Copy)]
struct PartOf {
    index: usize,
    count: usize,
}

impl EventWriter<'_> {
    fn envelope(&mut self) -> io::Result<()> {
        match &self.envelope.event {
            Event::Message { message, lines, parent, meta } => match message.role {
                Role::User if lines.len() == 1 => self.user(message, lines[0], *parent, meta),
                Role::Assistant if !lines.is_empty() && lines.len() == message.blocks.len() => {
                    self.assistant(message, lines, *parent, meta)
                }
                _ => self.ours(),
            },
            Event::CallEnded { .. } => self.call_ended(),
            Event::Compacted { .. } => self.compacted(),
            _ => self.ours(),
        }
    }

    fn user(
        &mut self,
        message: &Message,
        id: LineId,
        parent: Option<LineId>,
        meta: &MessageMeta,
    ) -> io::Result<()> {
        self.chain("user", id, parent, |line| {
            line.raw(r#","message":{"role":"user","content":"#);
            line.content(message)?;
            line.raw("}");
            match &meta.origin {
                Origin::Prompt => {}
                Origin::Note(kind) => {
                    line.raw(r#","isMeta":true"#);
                    line.text("note", kind);
                }
                other => line.json("from", other)?,
            }
            // A message of a user has none of this in its usual shape.
            let rest = MessageMeta { origin: Origin::Prompt, ..meta.clone() };
            if rest != MessageMeta::default() {
                line.json("meta", &rest)?;
            }
            Ok(())
        })
    }

    fn assistant(
        &mut self,
        message: &Message,
        lines: &[LineId],
        parent: Option<LineId>,
        meta: &MessageMeta,
    ) -> io::Result<()> {
        let count = lines.len();
        let mut parent = parent;
        for (index, (block, id)) in message.blocks.iter().zip(lines).enumerate() {
            self.chain("assistant", *id, parent, |line| {
                line.assistant(block, meta, PartOf { index, count })
            })?;
            parent = Some(*id);
        }
        Ok(())
    }

    fn call_ended(&mut self) -> io::Result<()> {
        let Event::CallEnded { call, tool, line: id, parent, output, duration_ms } = &self.envelope.event
        else {
            return self.ours();
        };
        self.chain("user", *id, *parent, |line| {
            line.raw(r#","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"#);
            line.value(call)?;
            line.raw(r#","content":"#);
            line.value(&output.content)?;
            if output.is_error {
                line.raw(r#","is_error":true"#);
            }
            line.raw("}]}");
            line.structured(output)?;
            if let Some(parent) = parent {
                line.id("sourceToolAssistantUUID", parent.0);
            }
            line.text("tool", tool);
            line.json("durationMs", duration_ms)?;
            if !output.effects.is_empty() {
                line.json("effects", &output.effects)?;
            }
            Ok(())
        })
    }

    fn compacted(&mut self) -> io::Result<()> {
        let Event::Compacted {
            boundary,
            line: id,
            logical_parent,
            summary,
            kept,
            trigger,
            tokens_before,
            checkpoint,
        } = &self.envelope.event
        else {
            return self.ours();
        };
        self.chain("system", *boundary, None, |line| {
            line.raw(r#","subtype":"compact_boundary","content":"Conversation compacted","isMeta":false"#);
            line.raw(r#","level":"info""#);
            if let Some(parent) = logical_parent {
                line.id("logicalParentUuid", parent.0);
            }
            line.raw(r#","compactMetadata":{"trigger":"#);
            line.value(trigger)?;
            line.json("preTokens", tokens_before)?;
            line.raw(r#","preservedMessages":{"anchorUuid":"#);
            line.value(id)?;
            line.json("uuids", kept)?;
            line.raw("}}");
            line.json("checkpoint", checkpoint)?;
            line.raw(r#","block":0,"blocks":2"#);
            Ok(())
        })?;
        self.chain("user", *id, Some(*boundary), |line| {
            line.raw(r#","message":{"role":"#);
            line.value(&summary.role)?;
            line.raw(r#","content":"#);
            line.content(summary)?;
            line.raw(r#"},"isCompactSummary":true,"isVisibleInTranscriptOnly":true,"block":1,"blocks":2"#);
            Ok(())
        })
    }

    /// A line that takes part in the chain of parents.
    fn chain(
        &mut self,
        kind: &str,
        id: LineId,
        parent: Option<LineId>,
        body: impl FnOnce(&mut LineWriter<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let start = self.out.len();
        let mut line = LineWriter { out: self.out };
        line.raw(r#"{"parentUuid":"#);
        line.value(&parent)?;
        line.raw(if self.envelope.agent.is_some() {
            r#","isSidechain":true"#
        } else {
            r#","isSidechain":false"#
        });
        if let Some(agent) = &self.envelope.agent {
            line.text("agentId", agent.as_str());
        }
        line.text("type", kind);
        body(&mut line)?;
        line.id("uuid", id.0);
        line.date(self.envelope.at)?;
        line.bytes(&self.encoder.constant);
        // Most lines are of the same run, and forty bytes on each of them add up.
        let say = self.end.must_say(self.envelope.run);
        self.end.said += u8::from(say);
        self.finish(start, say.then_some(self.envelope.run))
    }

    /// A line of our own type.
    fn ours(&mut self) -> io::Result<()> {
        let start = self.out.len();
        let mut line = LineWriter { out: self.out };
        line.raw(r#"{"type":"decurion","v":1"#);
        if self.envelope.event.must_be_understood() {
            line.json("must", &RECORD_LEVEL)?;
        }
        line.id("sessionId", self.encoder.session);
        line.date(self.envelope.at)?;
        if let Some(agent) = &self.envelope.agent {
            line.text("agentId", agent.as_str());
        }
        line.json("event", &self.envelope.event)?;
        if self.envelope.agent.is_none() || is_conversation(&self.envelope.event) {
            self.end.must_say(self.envelope.run);
        }
        self.finish(start, Some(self.envelope.run))
    }

    /// Spills what is too long, then seals the line.
    fn finish(&mut self, start: usize, run: Option<RunId>) -> io::Result<()> {
        if self.out.len() - start > LINE_LIMIT {
            self.spill(start)?;
        }
        if let Some(run) = run {
            LineWriter { out: self.out }.id("run", run.0);
        }
        self.end.ordinal += 1;
        write!(self.out, r#","seq":{},"ordinal":{}"#, self.envelope.seq, self.end.ordinal)?;
        seal(self.out, start)
    }

    fn spill(&mut self, start: usize) -> io::Result<()> {
        self.out.push(b'}');
        let mut record: Value = serde_json::from_slice(&self.out[start..])?;
        let names = blob::spill(&mut record, self.blobs)?;
        self.out.truncate(start);
        let mut line = LineWriter { out: self.out };
        line.value(&record)?;
        line.out.pop();
        if !names.is_empty() {
            line.json("blobs", &names)?;
        }
        Ok(())
    }
}

/// Ends a line that has all its members but the last with its checksum.
pub(crate) fn seal(out: &mut Vec<u8>, start: usize) -> io::Result<()> {
    let checksum = crc32c::crc32c(&out[start..]);
    writeln!(out, r#","crc":"{checksum:08x}"}}"#)
}

/// A line while it is written. Members are `,"name":value`.
struct LineWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl LineWriter<'_> {
    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut *self.out, value)?)
    }

    fn name(&mut self, name: &str) {
        self.raw(",\"");
        self.raw(name);
        self.raw("\":");
    }

    fn json<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> io::Result<()> {
        self.name(name);
        self.value(value)
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        // Text always has a JSON form and the buffer always takes it.
        let _ = serde_json::to_writer(&mut *self.out, text);
    }

    fn id(&mut self, name: &str, id: Uuid) {
        self.name(name);
        self.raw("\"");
        self.raw(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        self.raw("\"");
    }

    fn date(&mut self, at: jiff::Timestamp) -> io::Result<()> {
        write!(self.out, r#","timestamp":"{at:.3}""#)
    }

    /// The content of a message: a bare string where it is one text.
    fn content(&mut self, message: &Message) -> io::Result<()> {
        match message.blocks.as_slice() {
            [Block::Text { text }] => self.value(text),
            blocks => self.value(blocks),
        }
    }

    /// The body of one block's line. What belongs to the whole message stands on the last one.
    fn assistant(&mut self, block: &Block, meta: &MessageMeta, part: PartOf) -> io::Result<()> {
        let last = part.index + 1 == part.count;
        let synthetic = meta.origin == Origin::Synthetic;
        self.raw(r#","message":{"role":"assistant""#);
        if let Some(id) = &meta.message_id {
            self.text("id", id);
        }
        if let Some(model) = meta.model.as_deref().or(synthetic.then_some(SYNTHETIC_MODEL)) {
            self.text("model", model);
        }
        self.raw(r#","content":["#);
        self.value(block)?;
        self.raw("]");
        if last {
            self.json("stop_reason", &meta.stop_reason)?;
            if let Some(usage) = &meta.usage {
                self.json("usage", usage)?;
            }
        }
        self.raw("}");
        if let Some(request) = &meta.request_id {
            self.text("requestId", request);
        }
        match &meta.origin {
            Origin::Model => {}
            Origin::Synthetic => self.raw(r#","isApiErrorMessage":true"#),
            other => self.json("from", other)?,
        }
        if let Some(error) = &meta.error {
            self.text("error", error);
        }
        if let Some(status) = meta.error_status {
            self.json("apiErrorStatus", &status)?;
        }
        if last && let Some(cost) = meta.cost {
            self.json("costNanos", &cost)?;
        }
        if last && let Some(model) = &meta.asked_model {
            self.text("askedModel", model);
        }
        if last && let Some(timing) = &meta.timing {
            self.json("timing", timing)?;
        }
        if part.count > 1 {
            write!(self.out, r#","block":{},"blocks":{}"#, part.index, part.count)?;
        }
        Ok(())
    }

    /// A call's result for programs.
    fn structured(&mut self, output: &ToolOutput) -> io::Result<()> {
        match &output.structured {
            Some(structured) => self.json("toolUseResult", structured),
            None if output.is_error => {
                let text = match &output.content {
                    ToolContent::Text(text) => cut(text, ERROR_LIMIT).to_owned(),
                    blocks @ ToolContent::Blocks(_) => cut(&blocks.text(), ERROR_LIMIT).to_owned(),
                };
                self.json("toolUseResult", &format!("Error: {text}"))
            }
            None => Ok(()),
        }
    }
}

/// The longest beginning of at most `limit` bytes that is whole characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit.min(text.len()))]
}
