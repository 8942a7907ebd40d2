//! Transcripts of another program. Takes such a file, gives the conversation it holds as events that can be
//! written under the same id into a file of our own. The foreign file is only read.
//!
//! Such a file is a tree, not a list: the conversation is the way from the last line that counts back to the
//! root. A message of the model is spread over lines, and results of calls that ran side by side hang on
//! different ones of them, so both are gathered again around the message they belong to.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::event::{MessageMeta, Origin, SessionInfo};
use decurion_protocol::{
    Block, CallId, Envelope, Event, LineId, Message, Role, RunId, SessionId, ToolOutput, Usage,
};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::folder::{DirHandle, How};
use crate::layout::session_of;
use crate::line::SYNTHETIC_MODEL;
use crate::read::{LineReader, LineSpan};

/// What the file cannot say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportContext {
    /// The id to import under; none keeps the recorded one.
    pub session: Option<SessionId>,
    /// The working directory, where the file names none.
    pub cwd: Utf8PathBuf,
    /// Version of Decurion that imports.
    pub version: String,
    /// Which door it came through.
    pub entrypoint: String,
    /// The run that imports.
    pub run: RunId,
    /// The date of lines that have none.
    pub now: Timestamp,
}

/// A conversation taken from a foreign transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The session as it will be ours.
    pub info: SessionInfo,
    /// What to append to a new file, beginning with the session's opening.
    pub envelopes: Vec<Envelope>,
    pub report: ImportReport,
}

/// What an import read and left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Lines in the file.
    pub lines: u64,
    /// Lines that are no JSON objects.
    pub skipped: u64,
    /// Messages on the way that are not part of what a model reads: made for display, or about failures.
    pub left_out: u64,
    /// Results without a call to answer.
    pub dangling: u64,
    /// Whether the way back ended before a root because a line is missing.
    pub broken_chain: bool,
}

/// Why there is nothing to import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read the transcript {path}: {source}")]
    Io {
        path: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its name is no session id and none was given.
    #[error("the transcript's name is not a session id: {0}")]
    NoId(Utf8PathBuf),
    /// There is no message in it.
    #[error("no conversation in the transcript: {0}")]
    Empty(Utf8PathBuf),
}

/// Reads a foreign transcript and gives its conversation.
pub fn import(path: &Utf8Path, context: &ImportContext) -> Result<Imported, ImportError> {
    let failed = |source| ImportError::Io { path: path.to_owned(), source };
    let name = path.file_name().unwrap_or_default();
    let session = context.session.or_else(|| session_of(name));
    let session = session.ok_or_else(|| ImportError::NoId(path.to_owned()))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_str().is_empty() => parent,
        _ => Utf8Path::new("."),
    };
    let folder = Arc::new(DirHandle::root(folder, false).map_err(failed)?);
    let mut report = ImportReport::default();
    let index = Index::read(&folder, name, &mut report).map_err(failed)?;
    let steps = index.conversation(&mut report);
    let info = SessionInfo {
        session,
        cwd: index.cwd.clone().unwrap_or_else(|| context.cwd.clone()),
        version: context.version.clone(),
        git_branch: index.git_branch.clone(),
        entrypoint: context.entrypoint.clone(),
        imported_from: Some(path.to_string()),
        forked_from: None,
    };
    let file = folder.file(name, How::Read).map_err(failed)?;
    let opened = Event::SessionOpened { info: Box::new(info.clone()) };
    let mut writer = Rebuild::new(&index, file, context, report);
    writer.add(None, opened);
    for step in steps {
        writer.step(step).map_err(failed)?;
    }
    if writer.envelopes.len() < 2 {
        return Err(ImportError::Empty(path.to_owned()));
    }
    Ok(Imported { info, envelopes: writer.envelopes, report: writer.report })
}

/// What is kept of every line while the way through them is looked for.
struct ForeignEntry {
    offset: u64,
    length: usize,
    kind: EntryKind,
    id: LineId,
    parent: Option<LineId>,
    /// The line of the call that a result answers.
    source: Option<LineId>,
    /// The id of the model's message that the line is a part of.
    message: Option<String>,
    is_main: bool,
    is_meta: bool,
    is_summary: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    User,
    Assistant,
    Boundary,
    Other,
}

/// One step of the conversation, by the number of its entry.
#[derive(Clone, Copy)]
enum ImportStep {
    /// A boundary and the summary after it.
    Compacted(usize, usize),
    Line(usize),
}

/// The members that the way depends on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ParentLink {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    parent_uuid: Option<String>,
    #[serde(default, rename = "sourceToolAssistantUUID")]
    source: Option<String>,
    #[serde(default)]
    is_sidechain: bool,
    #[serde(default)]
    team_name: Option<String>,
    #[serde(default)]
    is_meta: bool,
    #[serde(default)]
    is_compact_summary: bool,
    #[serde(default)]
    message: Option<LinkMessage>,
    #[serde(default)]
    cwd: Option<Utf8PathBuf>,
    #[serde(default)]
    git_branch: Option<String>,
}

#[derive(Deserialize)]
struct LinkMessage {
    #[serde(default)]
    id: Option<String>,
}

/// All lines that have a place in the tree.
struct Index {
    entries: Vec<ForeignEntry>,
    by_id: HashMap<LineId, usize>,
    /// The lines of each of the model's messages, in file order.
    messages: HashMap<String, Vec<usize>>,
    /// The users' lines that hang on a line, in file order.
    answers: HashMap<LineId, Vec<usize>>,
    preserved: HashMap<usize, PreservedRange>,
    cwd: Option<Utf8PathBuf>,
    git_branch: Option<String>,
}

impl Index {
    fn read(folder: &Arc<DirHandle>, name: &str, report: &mut ImportReport) -> io::Result<Self> {
        let mut index = Self {
            entries: Vec::new(),
            by_id: HashMap::new(),
            messages: HashMap::new(),
            answers: HashMap::new(),
            preserved: HashMap::new(),
            cwd: None,
            git_branch: None,
        };
        let mut lines = LineReader::alone(folder, name.to_owned())?;
        let mut offset = 0;
        while let Some(span) = lines.next()? {
            report.lines += 1;
            let known = match span {
                LineSpan::Whole { start, end } => index.line(&lines.buffer[start..end], offset),
                LineSpan::Torn { .. } | LineSpan::TooLong => None,
            };
            report.skipped += u64::from(known.is_none());
            offset = lines.consumed;
        }
        Ok(index)
    }

    /// Takes note of one line; none if it is not JSON.
    fn line(&mut self, line: &[u8], offset: u64) -> Option<()> {
        let link: ParentLink = serde_json::from_slice(line).ok()?;
        let Some(id) = link.uuid.as_deref().map(line_id) else { return Some(()) };
        let kind = match (link.kind.as_str(), link.subtype.as_deref()) {
            ("user", _) => EntryKind::User,
            ("assistant", _) => EntryKind::Assistant,
            ("system", Some("compact_boundary")) => EntryKind::Boundary,
            ("system" | "attachment" | "progress", _) => EntryKind::Other,
            _ => return Some(()),
        };
        if self.by_id.contains_key(&id) {
            return Some(());
        }
        let number = self.entries.len();
        let is_main = !link.is_sidechain && link.team_name.is_none();
        if is_main && self.cwd.is_none() {
            (self.cwd, self.git_branch) = (link.cwd, link.git_branch);
        }
        let entry = ForeignEntry {
            offset,
            length: line.len(),
            kind,
            id,
            parent: link.parent_uuid.as_deref().map(line_id),
            source: link.source.as_deref().map(line_id),
            message: link.message.and_then(|message| message.id).filter(|_| kind == EntryKind::Assistant),
            is_main,
            is_meta: link.is_meta,
            is_summary: link.is_compact_summary,
        };
        if let Some(message) = &entry.message {
            self.messages.entry(message.clone()).or_default().push(number);
        }
        if let (EntryKind::User, Some(on)) = (kind, entry.source.or(entry.parent)) {
            self.answers.entry(on).or_default().push(number);
        }
        if kind == EntryKind::Boundary {
            preserved(line).and_then(|preserved| self.preserved.insert(number, preserved));
        }
        self.by_id.insert(id, number);
        self.entries.push(entry);
        Some(())
    }

    /// The way from the root to the last line that counts, with what a compaction preserved in its place.
    fn conversation(&self, report: &mut ImportReport) -> Vec<ImportStep> {
        let counts = |entry: &ForeignEntry| {
            entry.is_main && !entry.is_meta && matches!(entry.kind, EntryKind::User | EntryKind::Assistant)
        };
        let Some(leaf) = self.entries.iter().rposition(counts) else { return Vec::new() };
        let way = self.way_back(leaf, None, report);
        let mut steps = Vec::with_capacity(way.len());
        let mut way = way.into_iter().peekable();
        while let Some(number) = way.next() {
            if self.entries[number].kind != EntryKind::Boundary {
                steps.push(ImportStep::Line(number));
                continue;
            }
            // Lines that only show something may stand between the boundary and its summary.
            while way.peek().is_some_and(|next| self.entries[*next].kind == EntryKind::Other) {
                way.next();
            }
            if let Some(summary) = way.next_if(|next| self.entries[*next].is_summary) {
                steps.push(ImportStep::Compacted(number, summary));
            }
            steps.extend(self.preserved_lines(number, report).into_iter().map(ImportStep::Line));
        }
        steps
    }

    /// The numbers of the lines from `from` up to the root, or up to `last`, oldest first.
    fn way_back(&self, from: usize, last: Option<LineId>, report: &mut ImportReport) -> Vec<usize> {
        let mut way = Vec::new();
        let mut seen = HashSet::new();
        let mut next = Some(from);
        while let Some(number) = next.filter(|number| seen.insert(*number)) {
            way.push(number);
            let entry = &self.entries[number];
            if Some(entry.id) == last {
                break;
            }
            next = entry.parent.and_then(|parent| self.by_id.get(&parent).copied());
            report.broken_chain |= entry.parent.is_some() && next.is_none();
        }
        way.reverse();
        way
    }

    /// What stays of the conversation before a boundary, in file order.
    fn preserved_lines(&self, boundary: usize, report: &mut ImportReport) -> Vec<usize> {
        let known = |id: &LineId| self.by_id.get(id).copied();
        let mut lines: Vec<usize> = match self.preserved.get(&boundary) {
            Some(PreservedRange::Lines(ids)) => ids.iter().filter_map(known).collect(),
            Some(PreservedRange::Between(head, tail)) => {
                known(tail).map(|tail| self.way_back(tail, Some(*head), report)).unwrap_or_default()
            }
            None => Vec::new(),
        };
        lines.sort_unstable();
        lines.dedup();
        lines
    }
}

/// What a boundary says is preserved.
enum PreservedRange {
    Lines(Vec<LineId>),
    /// Everything from the one to the other.
    Between(LineId, LineId),
}

fn preserved(line: &[u8]) -> Option<PreservedRange> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Boundary {
        compact_metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        #[serde(default)]
        preserved_messages: Option<Messages>,
        #[serde(default)]
        preserved_segment: Option<Segment>,
    }
    #[derive(Deserialize)]
    struct Messages {
        uuids: Vec<String>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Segment {
        head_uuid: String,
        tail_uuid: String,
    }
    let boundary: Boundary = serde_json::from_slice(line).ok()?;
    match (boundary.compact_metadata.preserved_messages, boundary.compact_metadata.preserved_segment) {
        (Some(messages), _) => {
            Some(PreservedRange::Lines(messages.uuids.iter().map(|id| line_id(id)).collect()))
        }
        (None, Some(segment)) => {
            Some(PreservedRange::Between(line_id(&segment.head_uuid), line_id(&segment.tail_uuid)))
        }
        (None, None) => None,
    }
}

/// The members that a conversation is made of.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ForeignContent {
    #[serde(default)]
    message: Option<ContentMessage>,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    tool_use_result: Option<Value>,
    /// What kind of note it is, where it is one of ours.
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    is_api_error_message: bool,
    #[serde(default)]
    compact_metadata: Option<Value>,
    #[serde(default)]
    logical_parent_uuid: Option<String>,
}

#[derive(Deserialize)]
struct ContentMessage {
    #[serde(flatten)]
    message: Message,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Option<Usage>,
}

/// The conversation while it is put together.
struct Rebuild<'a> {
    index: &'a Index,
    file: File,
    context: &'a ImportContext,
    report: ImportReport,
    envelopes: Vec<Envelope>,
    /// The last line of the chain so far.
    parent: Option<LineId>,
    /// Lines that are in already.
    used: HashSet<usize>,
    /// Calls without a result so far: the line and the tool of each.
    open: HashMap<CallId, (LineId, String)>,
}

impl<'a> Rebuild<'a> {
    fn new(index: &'a Index, file: File, context: &'a ImportContext, report: ImportReport) -> Self {
        Self {
            index,
            file,
            context,
            report,
            envelopes: Vec::new(),
            parent: None,
            used: HashSet::new(),
            open: HashMap::new(),
        }
    }

    fn add(&mut self, date: Option<&str>, event: Event) {
        let at = date.and_then(|text| text.parse().ok()).unwrap_or(self.context.now);
        let seq = self.envelopes.len() as u64 + 1;
        self.envelopes.push(Envelope { seq, at, agent: None, run: self.context.run, event });
    }

    fn step(&mut self, step: ImportStep) -> io::Result<()> {
        match step {
            ImportStep::Compacted(boundary, summary) => self.compacted(boundary, summary),
            ImportStep::Line(number) if !self.used.insert(number) => Ok(()),
            ImportStep::Line(number) => match self.index.entries[number].kind {
                EntryKind::Assistant => self.assistant(number),
                EntryKind::User => self.user(number),
                EntryKind::Boundary | EntryKind::Other => Ok(()),
            },
        }
    }

    fn content(&self, number: usize) -> io::Result<Option<ForeignContent>> {
        let entry = &self.index.entries[number];
        let mut line = vec![0; entry.length];
        self.file.read_exact_at(&mut line, entry.offset)?;
        Ok(serde_json::from_slice(&line).ok())
    }

    fn compacted(&mut self, boundary: usize, summary: usize) -> io::Result<()> {
        let (Some(edge), Some(text)) = (self.content(boundary)?, self.content(summary)?) else {
            return Ok(());
        };
        let Some(message) = text.message else { return Ok(()) };
        let member = |name: &str| edge.compact_metadata.as_ref().and_then(|metadata| metadata.get(name));
        let line = self.index.entries[summary].id;
        let event = Event::Compacted {
            boundary: self.index.entries[boundary].id,
            line,
            logical_parent: edge.logical_parent_uuid.as_deref().map(line_id),
            summary: message.message,
            // Preserved messages follow separately.
            kept: Vec::new(),
            trigger: member("trigger").and_then(Value::as_str).unwrap_or("auto").to_owned(),
            tokens_before: member("preTokens").and_then(Value::as_u64).unwrap_or(0),
            checkpoint: Value::Null,
        };
        self.add(edge.timestamp.as_deref(), event);
        self.parent = Some(line);
        Ok(())
    }

    /// A message of the model from all its lines, and right after it the results of its calls.
    fn assistant(&mut self, number: usize) -> io::Result<()> {
        let entry = &self.index.entries[number];
        let alone = [number];
        let numbers = entry.message.as_ref().and_then(|id| self.index.messages.get(id));
        let numbers = numbers.map_or(&alone[..], Vec::as_slice);
        let (mut blocks, mut lines, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let mut meta = MessageMeta { origin: Origin::Model, ..MessageMeta::default() };
        meta.message_id.clone_from(&entry.message);
        let mut date = None;
        for &number in numbers {
            self.used.insert(number);
            let Some(content) = self.content(number)? else { continue };
            let Some(message) = content.message else { continue };
            if content.is_api_error_message || message.model.as_deref() == Some(SYNTHETIC_MODEL) {
                self.report.left_out += 1;
                continue;
            }
            let id = self.index.entries[number].id;
            for (place, block) in message.message.blocks.into_iter().enumerate() {
                let line = derived(id, place);
                if let Block::ToolUse { id: call, name, .. } = &block {
                    self.open.insert(call.clone(), (line, name.clone()));
                    calls.push(call.clone());
                }
                lines.push(line);
                blocks.push(block);
            }
            date = date.or(content.timestamp);
            meta.request_id = content.request_id.or(meta.request_id);
            meta.model = message.model.or(meta.model);
            meta.stop_reason = message.stop_reason.or(meta.stop_reason);
            meta.usage = message.usage.or(meta.usage);
        }
        let Some(&last) = lines.last() else { return Ok(()) };
        let message = Message { role: Role::Assistant, blocks };
        let parent = self.parent.replace(last);
        self.add(date.as_deref(), Event::Message { message, lines, parent, meta: Box::new(meta) });
        self.results(numbers, &calls)
    }

    /// The results of these calls, wherever in the tree they hang, in the order of the calls.
    fn results(&mut self, numbers: &[usize], calls: &[CallId]) -> io::Result<()> {
        let index = self.index;
        let mut found: Vec<(usize, usize, ForeignContent)> = Vec::new();
        let hanging = numbers.iter().filter_map(|number| index.answers.get(&index.entries[*number].id));
        for &number in hanging.flatten() {
            if self.used.contains(&number) || index.entries[number].is_meta {
                continue;
            }
            let Some(content) = self.content(number)? else { continue };
            if let Some(call) = content.message.as_ref().and_then(|message| answered(&message.message))
                && let Some(place) = calls.iter().position(|known| known == call)
            {
                found.push((place, number, content));
            }
        }
        found.sort_by_key(|(place, number, _)| (*place, *number));
        for (_, number, content) in found {
            self.used.insert(number);
            self.user_content(number, content);
        }
        Ok(())
    }

    fn user(&mut self, number: usize) -> io::Result<()> {
        let entry = &self.index.entries[number];
        match self.content(number)? {
            // One of our notes, in a file that others copied from ours, was part of what the model saw.
            Some(content) if !entry.is_meta || content.note.is_some() => self.user_content(number, content),
            _ => self.report.left_out += 1,
        }
        Ok(())
    }

    /// The results in a user's line, each as the end of its call, and the rest as a message.
    fn user_content(&mut self, number: usize, content: ForeignContent) {
        let id = self.index.entries[number].id;
        let date = content.timestamp.as_deref();
        let Some(message) = content.message else { return };
        let mut structured = content.tool_use_result;
        let (mut rest, mut ended) = (Vec::new(), false);
        for (place, block) in message.message.blocks.into_iter().enumerate() {
            let Block::ToolResult { id: call, content, is_error } = block else {
                rest.push(block);
                continue;
            };
            let Some((parent, tool)) = self.open.remove(&call) else {
                self.report.dangling += 1;
                continue;
            };
            let line = derived(id, place);
            let output = ToolOutput { content, is_error, structured: structured.take(), effects: Vec::new() };
            let (parent, output) = (Some(parent), Box::new(output));
            self.add(date, Event::CallEnded { call, tool, line, parent, output, duration_ms: 0 });
            self.parent = Some(line);
            ended = true;
        }
        if rest.is_empty() {
            return;
        }
        // The line's own id is taken where it held a result too.
        let line = derived(id, if ended { usize::MAX } else { 0 });
        let message = Message { role: Role::User, blocks: rest };
        let parent = self.parent.replace(line);
        let origin = content.note.map_or(Origin::Prompt, Origin::Note);
        let meta = Box::new(MessageMeta { origin, ..MessageMeta::default() });
        self.add(date, Event::Message { message, lines: vec![line], parent, meta });
    }
}

/// The first call that a message answers.
fn answered(message: &Message) -> Option<&CallId> {
    message.blocks.iter().find_map(|block| match block {
        Block::ToolResult { id, .. } => Some(id),
        _ => None,
    })
}

/// A line's id; one that is no UUID gets one that depends on nothing else.
fn line_id(text: &str) -> LineId {
    LineId(Uuid::try_parse(text).unwrap_or_else(|_| hashed(text.as_bytes())))
}

/// The id of a further line made from one: itself for the first.
fn derived(id: LineId, place: usize) -> LineId {
    if place == 0 {
        return id;
    }
    let mut bytes = id.0.as_bytes().to_vec();
    bytes.extend(place.to_le_bytes());
    LineId(hashed(&bytes))
}

fn hashed(bytes: &[u8]) -> Uuid {
    let mut id = [0; 16];
    id.copy_from_slice(&Sha256::digest(bytes)[..16]);
    Uuid::from_bytes(id)
}
