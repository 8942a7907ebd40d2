//! The journal so far → what the model is shown. Takes events in the order they were written, gives the
//! messages of the next request as bytes.
//!
//! Live and resumed runs use the same fold: an event is applied here after it was written, and on resume it
//! is applied again from the file. Whatever the file holds, the request is one a provider accepts: roles
//! alternate, every call is answered once and at once, nothing is empty.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_model::{CheckedBlock, Dialect, WireMessage, checked};
use decurion_protocol::{
    Block, CallId, Delivery, Event, LineId, Message, MessageMeta, Origin, OwnRules, Role, ToolContent,
    ToolEffect, Usage,
};
use decurion_tools::FilesSeen;
use serde_json::Value;

use crate::branch::{self, Part};
use crate::prompt;

/// What the model reads where a call has no result on record.
pub const NO_RESULT: &str = "No result was recorded for this call: it was interrupted before it ended.";
/// The reason for which a provider stops a reply that it continues when it is sent back.
pub const PAUSED: &str = "pause_turn";
/// What stands in for a beginning that is not there.
const MISSING_START: &str = "(The beginning of this conversation is not available.)";
/// What the model is told when it is asked to go on with nothing new.
const GO_ON: &str = "Continue.";
/// What stands between a summary and the messages kept after it, since roles must alternate.
const SUMMARY_READ: &str = "I have read the summary and continue from it.";
/// Bytes of JSON per token, on the low side, so that an estimate errs towards compaction.
const BYTES_PER_TOKEN: u64 = 3;

/// The conversation of one run as a fold over its events.
#[derive(Debug)]
pub struct Context {
    dialect: Dialect,
    /// Messages that will not change any more, encoded.
    sealed: Vec<Sealed>,
    /// The last message, which may still grow.
    open: Option<Open>,
    /// Every call id of the conversation as it stands in requests, so that one id is never two calls.
    ids: HashSet<CallId>,
    /// The ids of what the provider ran itself.
    provider_ids: HashSet<CallId>,
    /// How many recorded blocks no provider would accept as they are.
    damaged: u64,
    /// The line of each call in the last assistant message: the parent of its result.
    call_lines: HashMap<CallId, LineId>,
    /// Calls of the last assistant message whose intent is on record.
    started: HashSet<CallId>,
    leaf: Option<LineId>,
    kept: RunState,
    fill: Fill,
    /// What the last reply used.
    last_usage: Option<Usage>,
    /// Whether the provider paused the model's last message and continues it when it is sent back.
    paused: bool,
    /// What is replaced by a remark when it is applied.
    omitted: HashSet<Omittable>,
    counted: Option<Box<Counted>>,
    /// The head of the run that goes on now, by name.
    head: Option<Box<str>>,
    /// What its lines have told.
    delivered: HashSet<Delivery>,
}

/// What the provider counted with its last reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How many messages that request had.
    pub messages: usize,
    /// What they are, with their head.
    pub input: u64,
    /// The least to expect of the reply, which stands behind them now: reasoning can be more than the bytes that show it.
    pub hidden: u64,
    /// The model that counted: another counts differently.
    pub model: String,
    /// The head that was counted.
    head: Option<Box<str>>,
    /// Whether the next request has the same head.
    pub same_head: bool,
}

/// A conversation before its last message: what a fork shares with its parent.
#[derive(Debug)]
pub struct Prefix {
    dialect: Dialect,
    sealed: Vec<Sealed>,
    ids: HashSet<CallId>,
    provider_ids: HashSet<CallId>,
    kept: RunState,
    fill: Fill,
    counted: Option<Box<Counted>>,
    head: Option<Box<str>>,
    /// The message whose calls delegate.
    delegating: Message,
    /// The last record that belongs to it.
    pub through: u64,
}

impl Prefix {
    /// The bytes of its messages in a request.
    pub fn bytes(&self) -> u64 {
        self.sealed.iter().map(|sealed| sealed.wire.len()).sum()
    }

    /// The delegating message reduced to one of its calls. Reasoning stays, since providers want it back.
    pub fn delegating(&self, call: &CallId) -> Option<Message> {
        let is_call = |block: &&Block| matches!(block, Block::ToolUse { id, .. } if id == call);
        let call = self.delegating.blocks.iter().find(is_call)?;
        let thinking = self.delegating.blocks.iter().filter(|block| matches!(block, Block::Thinking { .. }));
        Some(Message::assistant(thinking.chain([call]).cloned().collect()))
    }
}

/// A call without a result.
#[derive(Clone, Debug)]
pub struct OpenCall {
    pub id: CallId,
    /// The tool's name, as the model wrote it.
    pub name: String,
    pub input: Value,
    /// The line of its block.
    pub line: Option<LineId>,
    /// Whether its intent is on record, so that it may have had effects.
    pub started: bool,
}

/// Whether a request holds the images and documents of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Sent,
    /// A remark stands in the place of each.
    LeftOut,
}

/// A part of a call that may be large, and that a conversation can do without.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Omittable {
    Result(CallId),
    Input(CallId),
}

/// A message as bytes, and the same without its images and documents if it holds any.
#[derive(Clone, Debug)]
struct Encoded {
    whole: WireMessage,
    plain: Option<WireMessage>,
}

impl Encoded {
    fn new(dialect: Dialect, message: &Message) -> Self {
        let plain = without_media(message).map(|plain| dialect.message(&plain));
        Self { whole: dialect.message(message), plain }
    }

    fn get(&self, media: Media) -> &WireMessage {
        match (media, &self.plain) {
            (Media::LeftOut, Some(plain)) => plain,
            _ => &self.whole,
        }
    }

    fn len(&self) -> u64 {
        self.whole.bytes.len() as u64
    }

    fn drop_media(&mut self) {
        if let Some(plain) = self.plain.take() {
            self.whole = plain;
        }
    }
}

/// What a run keeps between its calls, rebuilt from their effects.
#[derive(Clone, Debug, Default)]
pub struct RunState {
    /// Files it knows the content of.
    pub seen: Arc<FilesSeen>,
    /// Its shell's directory, once a call moved it.
    pub cwd: Option<Utf8PathBuf>,
    /// Whether it goes on elsewhere and nothing in the conversation says so: the call that moved it has no result.
    pub moved_untold: bool,
    /// Its list of steps.
    pub todos: Option<Value>,
    /// The rules of the skills that it follows until its next prompt.
    pub follows: OwnRules,
    /// Instruction files of folders that it was told of, and still has before it.
    pub instructed: HashSet<Utf8PathBuf>,
    /// Skills that it was told of because of a file, and still has before it.
    pub offered: HashSet<String>,
    /// The skills that it has read itself, in order; what it has from another's conversation is not among them.
    pub skills: Vec<String>,
}

impl RunState {
    fn read_skill(&mut self, name: &str) {
        if !self.skills.iter().any(|known| known == name) {
            self.skills.push(name.to_owned());
        }
    }
}

#[derive(Clone, Debug)]
struct Sealed {
    wire: Encoded,
    line: Option<LineId>,
    prompt: bool,
    start: Start,
    /// The parts of it that can be omitted, with their bytes.
    omittable: Vec<(Omittable, u64)>,
}

/// Whether a conversation can begin with a message.
#[derive(Clone, Debug)]
enum Start {
    Whole,
    /// It answers calls, so only with what else it says.
    Without(Encoded),
    /// It is the model's, or nothing but answers.
    No,
}

/// The last message. A user's holds the answers to the calls before it, in asking order, then its blocks.
#[derive(Debug)]
struct Open {
    message: Message,
    asked: Vec<CallId>,
    answers: HashMap<CallId, Block>,
    line: Option<LineId>,
    prompt: bool,
    encoded: Option<Encoded>,
}

/// How full the window is: what the provider counted last, and the bytes that came since.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    counted: u64,
    bytes_since: u64,
}

impl Context {
    /// The form it is kept in.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// An empty conversation for this dialect.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            sealed: Vec::new(),
            open: None,
            ids: HashSet::new(),
            provider_ids: HashSet::new(),
            damaged: 0,
            call_lines: HashMap::new(),
            started: HashSet::new(),
            leaf: None,
            kept: RunState::default(),
            fill: Fill::default(),
            last_usage: None,
            paused: false,
            omitted: HashSet::new(),
            counted: None,
            head: None,
            delivered: HashSet::new(),
        }
    }

    /// A conversation that begins with someone else's.
    pub fn after(prefix: &Prefix) -> Self {
        Self {
            sealed: prefix.sealed.clone(),
            ids: prefix.ids.clone(),
            provider_ids: prefix.provider_ids.clone(),
            // Where it works is its own to say: it may have a checkout of its own.
            kept: RunState { skills: Vec::new(), cwd: None, moved_untold: false, ..prefix.kept.clone() },
            fill: prefix.fill,
            counted: prefix.counted.clone(),
            head: prefix.head.clone(),
            ..Self::new(prefix.dialect)
        }
    }

    /// An empty conversation of a run that knows what another has read.
    #[must_use]
    pub fn knowing(mut self, seen: Arc<FilesSeen>) -> Self {
        self.kept.seen = seen;
        self
    }

    /// What comes before the last message, if that is the model's.
    pub fn prefix(&self, through: u64) -> Option<Prefix> {
        let open = self.open.as_ref().filter(|open| open.message.role == Role::Assistant)?;
        let mut ids = self.ids.clone();
        for id in &open.asked {
            ids.remove(&self.dialect.call_id(id));
        }
        Some(Prefix {
            dialect: self.dialect,
            sealed: self.sealed.clone(),
            ids,
            provider_ids: self.provider_ids.clone(),
            kept: self.kept.clone(),
            fill: self.fill,
            counted: self.counted.clone(),
            head: self.head.clone(),
            delegating: open.message.clone(),
            through,
        })
    }

    /// Those of these calls, of the last assistant message, that have no result.
    pub fn open_calls(&self, blocks: &[Block]) -> Vec<OpenCall> {
        let unanswered = self.unanswered();
        let of = |block: &Block| match block {
            Block::ToolUse { id, name, input } => {
                let (_, started) = unanswered.iter().find(|(call, _)| call == id)?;
                let (name, input, line) = (name.clone(), input.clone(), self.call_line(id));
                Some(OpenCall { id: id.clone(), name, input, line, started: *started })
            }
            _ => None,
        };
        blocks.iter().filter_map(of).collect()
    }

    /// What its lines have told.
    pub fn into_delivered(self) -> HashSet<Delivery> {
        self.delivered
    }

    /// The same, and it stays.
    pub fn delivered(&self) -> &HashSet<Delivery> {
        &self.delivered
    }

    /// Takes one event in. Events that are not part of a conversation change nothing.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Message { message, lines, meta, .. } => {
                if meta.origin != Origin::Synthetic {
                    self.message(message, lines, meta);
                    self.paused =
                        message.role == Role::Assistant && meta.stop_reason.as_deref() == Some(PAUSED);
                }
                match &meta.origin {
                    Origin::Prompt => {
                        self.kept.follows = OwnRules::default();
                    }
                    Origin::Note(kind) if kind == prompt::CONTEXT => self.kept.moved_untold = false,
                    Origin::Note(kind) if kind == prompt::INSTRUCTIONS => {
                        let told = message.blocks.iter().filter_map(prompt::instructed);
                        self.kept.instructed.extend(told);
                    }
                    Origin::Note(kind) if kind == prompt::OFFERED => {
                        self.kept.offered.extend(message.blocks.iter().filter_map(prompt::offered));
                    }
                    _ => {}
                }
                self.leaf = lines.last().copied().or(self.leaf);
                self.delivered.extend(meta.delivers.iter().cloned());
                meta.skills.iter().for_each(|name| self.kept.read_skill(name));
                self.effects(&meta.effects);
            }
            Event::RunStarted { spec } => {
                if let Some(counted) = &mut self.counted {
                    counted.same_head = counted.head.as_ref().is_none_or(|head| **head == *spec.head);
                }
                self.head = Some(spec.head.as_str().into());
            }
            Event::CallStarted { call, .. } => {
                self.started.insert(call.clone());
            }
            Event::CallEnded { call, line, output, tool, .. } => {
                self.answer_checked(call, &output.content, output.is_error, *line);
                self.effects(&output.effects);
                // A shell that goes elsewhere says nothing about where the session works.
                if output.effects.iter().any(|effect| matches!(effect, ToolEffect::Moved { .. }))
                    && crate::child::WORKTREE_TOOLS.contains(&tool.as_str())
                {
                    self.kept.moved_untold = false;
                }
                self.leaf = Some(*line);
            }
            Event::Relocated { cwd, .. } => {
                self.kept.cwd = Some(cwd.clone());
                self.kept.moved_untold = true;
            }
            Event::Compacted { line, summary, kept, .. } => {
                self.compact(*line, summary, kept);
                self.leaf = Some(*line);
            }
            Event::MediaOmitted { .. } => self.drop_media(),
            _ => {}
        }
    }

    /// Takes in what of a record is part of the conversation.
    pub fn take(&mut self, part: &Part<'_>) {
        match part {
            Part::Whole(event) => self.apply(event),
            Part::Cut(event, whole) => {
                self.apply(event);
                self.apply_dropped(whole);
            }
            Part::Dropped(event) => self.apply_dropped(event),
        }
    }

    /// Takes in what stays true of an event that is no part of the conversation any more: ids that were used, calls
    /// that were begun, what was told, where the session works.
    fn apply_dropped(&mut self, event: &Event) {
        match event {
            Event::Message { message, meta, .. } => {
                self.ids.extend(branch::calls(&message.blocks).map(|id| self.dialect.call_id(id)));
                self.delivered.extend(meta.delivers.iter().cloned());
            }
            Event::CallEnded { output, .. } => {
                let told = output.effects.iter().filter_map(|effect| match effect {
                    ToolEffect::Delivered { delivery } => Some(delivery.clone()),
                    _ => None,
                });
                self.delivered.extend(told);
            }
            Event::CallStarted { .. } | Event::Relocated { .. } => self.apply(event),
            _ => {}
        }
    }

    /// Takes in what of a record is part of a conversation that stands before this one.
    pub fn take_inherited(&mut self, part: &Part<'_>) {
        let (skills, cwd) = (std::mem::take(&mut self.kept.skills), self.kept.cwd.take());
        let untold = self.kept.moved_untold;
        self.take(part);
        (self.kept.skills, self.kept.cwd, self.kept.moved_untold) = (skills, cwd, untold);
    }

    /// The messages of the next request. Always one that a provider accepts.
    pub fn request(&mut self, media: Media) -> Vec<WireMessage> {
        self.end_with_user();
        let dialect = self.dialect;
        let mut messages = self.sealed_messages(media);
        messages.extend(self.open.as_mut().map(|open| open.encode(dialect).get(media).clone()));
        messages
    }

    /// The same with one more thing said at the end, which does not join the conversation.
    pub fn request_with(&mut self, last: Block, media: Media) -> Vec<WireMessage> {
        self.end_with_user();
        let mut messages = self.sealed_messages(media);
        messages.extend(self.open_with(last, media));
        messages
    }

    /// The same with a text behind what the provider's cache is to keep.
    pub fn request_reminding(&mut self, text: &str, media: Media) -> Vec<WireMessage> {
        let mut messages = self.request(media);
        if let (Some(reminding), Some(last)) = (self.open_with(Block::text(text), media), messages.last_mut())
        {
            // Up to the mark both are the same bytes, unless the dialect writes one text in another way.
            let same = reminding.bytes.get(..last.cut) == last.bytes.get(..last.cut);
            let cut = if same && last.cut < last.bytes.len() { last.cut } else { reminding.bytes.len() };
            *last = WireMessage { cut, ..reminding };
        }
        messages
    }

    /// Like [`Context::request_with`], of the newest messages only: as many as take at most so many bytes and can
    /// begin a conversation. Gives them and how many older ones are missing.
    pub fn request_within(&mut self, most: u64, last: Block, media: Media) -> (Vec<WireMessage>, usize) {
        self.end_with_user();
        let Some(open) = self.open_with(last, media) else { return (Vec::new(), 0) };
        let mut left = most.saturating_sub(open.bytes.len() as u64);
        let mut from = None;
        for (index, sealed) in self.sealed.iter().enumerate().rev() {
            let bytes = sealed.wire.get(media).bytes.len() as u64;
            if bytes > left && from.is_some() {
                break;
            }
            left = left.saturating_sub(bytes);
            if !matches!(sealed.start, Start::No) {
                from = Some(index);
            }
        }
        let from = from.unwrap_or_default();
        let mut messages = self.sealed_messages(media).split_off(from.min(self.sealed.len()));
        if let (Some(Sealed { start: Start::Without(wire), .. }), Some(first)) =
            (self.sealed.get(from), messages.first_mut())
        {
            *first = wire.get(media).clone();
        }
        messages.push(open);
        (messages, from)
    }

    fn sealed_messages(&self, media: Media) -> Vec<WireMessage> {
        self.sealed.iter().map(|sealed| sealed.wire.get(media).clone()).collect()
    }

    /// The last message with one more thing said in it.
    fn open_with(&mut self, last: Block, media: Media) -> Option<WireMessage> {
        if self.is_paused() {
            // What is said now comes after what the provider had begun.
            self.paused = false;
            self.end_with_user();
        }
        let mut message = self.open.as_ref()?.with_answers();
        message.blocks.push(last);
        Some(Encoded::new(self.dialect, &message).get(media).clone())
    }

    /// An empty conversation that replaces these parts by a remark as they come.
    #[must_use]
    pub fn omitting(dialect: Dialect, omitted: HashSet<Omittable>) -> Self {
        Self { omitted, ..Self::new(dialect) }
    }

    /// The parts that the conversation can do without and their bytes: results, oldest first, then inputs.
    pub fn omittable(&self) -> Vec<(Omittable, u64)> {
        let open = self.open.iter().flat_map(Open::omittable);
        let mut all: Vec<_> =
            self.sealed.iter().flat_map(|sealed| sealed.omittable.clone()).chain(open).collect();
        all.sort_by_key(|(part, _)| matches!(part, Omittable::Input(_)));
        all
    }

    /// The bytes of its messages in a request.
    pub fn bytes(&mut self, media: Media) -> u64 {
        self.request(media).iter().map(|message| message.bytes.len() as u64).sum()
    }

    /// Whether there is more in it than what was said last.
    pub fn has_history(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Whether an image or document is in the conversation.
    pub fn has_media(&self) -> bool {
        self.sealed.iter().any(|sealed| sealed.wire.plain.is_some())
            || self.open.as_ref().is_some_and(|open| without_media(&open.with_answers()).is_some())
    }

    /// Leaves the images and documents so far out from now on.
    fn drop_media(&mut self) {
        for sealed in &mut self.sealed {
            sealed.wire.drop_media();
            if let Start::Without(wire) = &mut sealed.start {
                wire.drop_media();
            }
        }
        let Some(open) = &mut self.open else { return };
        open.encoded = None;
        if let Some(plain) = without_media(&open.message) {
            open.message = plain;
        }
        for answer in open.answers.values_mut() {
            if let Some(plain) = block_without_media(answer) {
                *answer = plain;
            }
        }
    }

    /// Calls of the last assistant message that have no result, and whether their intent is on record.
    pub fn unanswered(&self) -> Vec<(CallId, bool)> {
        let Some(open) = &self.open else { return Vec::new() };
        open.asked
            .iter()
            .filter(|call| !open.answers.contains_key(*call))
            .map(|call| (call.clone(), self.started.contains(call)))
            .collect()
    }

    /// Whether this id was used by any call of the conversation.
    pub fn knows_call(&self, call: &CallId) -> bool {
        self.ids.contains(&self.dialect.call_id(call))
    }

    /// The line a call's result hangs on.
    pub fn call_line(&self, call: &CallId) -> Option<LineId> {
        self.call_lines.get(call).copied()
    }

    /// The last line of the chain.
    pub fn leaf(&self) -> Option<LineId> {
        self.leaf
    }

    /// What the run keeps between its calls.
    pub fn state(&self) -> &RunState {
        &self.kept
    }

    /// How many tokens the next request will hold, estimated where the provider has not counted.
    pub fn tokens(&self) -> u64 {
        self.fill.counted + self.fill.bytes_since / BYTES_PER_TOKEN
    }

    /// The same for a request with a head of about so many tokens, which a provider that has counted has counted too.
    pub fn tokens_with(&self, head_tokens: u64) -> u64 {
        self.tokens() + if self.fill.counted == 0 { head_tokens } else { 0 }
    }

    /// About how many tokens the messages are, from their bytes.
    pub fn messages_estimated(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|sealed| sealed.wire.len()).sum();
        let open: u64 = self
            .open
            .as_ref()
            .map_or(0, |open| open.message.blocks.iter().chain(open.answers.values()).map(weight).sum());
        sealed.div_ceil(BYTES_PER_TOKEN) + open.div_ceil(BYTES_PER_TOKEN)
    }

    /// What the last reply used, by its provider's count.
    pub fn last_usage(&self) -> Option<&Usage> {
        self.last_usage.as_ref()
    }

    /// Whether anything was said yet.
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.open.is_none()
    }

    /// The lines of the messages from the last prompt on, if together they are at most this many bytes.
    pub fn tail(&mut self, most_bytes: u64) -> Vec<LineId> {
        let dialect = self.dialect;
        let open = self.open.as_mut().map(|open| {
            let bytes = open.encode(dialect).len();
            (open.line, open.prompt, bytes)
        });
        let all: Vec<(Option<LineId>, bool, u64)> = self
            .sealed
            .iter()
            .map(|sealed| (sealed.line, sealed.prompt, sealed.wire.len()))
            .chain(open)
            .collect();
        let Some(start) = all.iter().rposition(|(_, prompt, _)| *prompt) else { return Vec::new() };
        let bytes: u64 = all[start..].iter().map(|(_, _, bytes)| bytes).sum();
        let lines: Option<Vec<LineId>> = all[start..].iter().map(|(line, _, _)| *line).collect();
        // Keeping everything would make the conversation no shorter.
        if bytes > most_bytes || start == 0 { Vec::new() } else { lines.unwrap_or_default() }
    }

    fn message(&mut self, message: &Message, lines: &[LineId], meta: &MessageMeta) {
        match message.role {
            Role::Assistant => {
                self.say(message, lines);
                let is_count = |usage: &&Usage| usage.context_tokens() > 0 && !usage.is_estimated();
                if let Some(usage) = meta.usage.as_ref().filter(is_count) {
                    self.fill = Fill { counted: usage.context_tokens(), bytes_since: 0 };
                    self.count(message, usage, meta);
                    self.last_usage = Some(usage.clone());
                }
            }
            Role::User => self.hear(message, lines, meta.origin == Origin::Prompt),
        }
    }

    /// Remembers what the provider counted for the messages before its reply.
    fn count(&mut self, reply: &Message, usage: &Usage, meta: &MessageMeta) {
        let hides = |block: &Block| matches!(block, Block::Thinking { .. } | Block::Opaque(_));
        let is_hiding = self.dialect == Dialect::Anthropic && reply.blocks.iter().any(hides);
        let model = meta.asked_model.as_ref().or(meta.model.as_ref());
        self.counted = model.filter(|_| usage.read_tokens() > 0).map(|model| {
            Box::new(Counted {
                messages: self.sealed.len(),
                input: usage.read_tokens(),
                hidden: if is_hiding { usage.output_tokens } else { 0 },
                model: model.clone(),
                head: self.head.clone(),
                same_head: true,
            })
        });
    }

    /// What the provider counted with its last reply; none where it did not, or what it counted is no longer there.
    pub fn counted(&self) -> Option<&Counted> {
        self.counted.as_deref()
    }

    /// A user's message: answers found in it join the calls they belong to, the rest is said after them.
    fn hear(&mut self, message: &Message, lines: &[LineId], prompt: bool) {
        let line = lines.first().copied();
        for block in &message.blocks {
            match self.check(Role::User, block) {
                None => {}
                Some(Block::ToolResult { id, content, is_error }) => {
                    self.answer(&id, content, is_error, line);
                }
                Some(block) => {
                    self.fill.bytes_since += weight(&block);
                    let open = self.user(line);
                    open.prompt |= prompt;
                    open.encoded = None;
                    open.message.blocks.push(block);
                }
            }
        }
    }

    fn say(&mut self, message: &Message, lines: &[LineId]) {
        let mut blocks = Vec::with_capacity(message.blocks.len());
        let mut asked = Vec::new();
        let mut call_lines = HashMap::new();
        let damaged = self.damaged;
        for (index, block) in message.blocks.iter().enumerate() {
            let Some(block) = self.check(Role::Assistant, block) else { continue };
            if let Block::ToolUse { id, .. } = &block {
                // An id can only be twice in a damaged file; the second one was never run.
                if !self.ids.insert(self.dialect.call_id(id)) {
                    continue;
                }
                asked.push(id.clone());
                if let Some(line) = lines.get(index).or(lines.last()) {
                    call_lines.insert(id.clone(), *line);
                }
            }
            let block = self.admit(block);
            self.fill.bytes_since += weight(&block);
            blocks.push(block);
        }
        let is_damaged = self.damaged > damaged;
        let is_known = |id: &CallId| self.provider_ids.contains(id);
        self.damaged += checked::drop_unpaired(&mut blocks, is_known, is_damaged);
        self.provider_ids.extend(blocks.iter().filter_map(checked::provider_call));
        // Providers refuse a message that ends with reasoning: where it was cut, that led to nothing.
        while blocks.last().is_some_and(checked::is_reasoning) {
            blocks.pop();
        }
        if blocks.is_empty() {
            return;
        }
        let open = self.assistant(lines.first().copied());
        open.encoded = None;
        open.message.blocks.append(&mut blocks);
        open.asked.extend(asked);
        self.call_lines = call_lines;
        self.started.clear();
    }

    /// A recorded block as it can be sent; none if it is no part of a request.
    fn check(&mut self, role: Role, block: &Block) -> Option<Block> {
        match self.dialect.check_block(role, block) {
            CheckedBlock::Same if is_blank(block) => None,
            CheckedBlock::Same => Some(block.clone()),
            CheckedBlock::Adapted(block) => Some(block),
            CheckedBlock::Unsent => None,
            CheckedBlock::Replaced(block) => {
                self.damaged += 1;
                Some(block)
            }
            CheckedBlock::Damaged => {
                self.damaged += 1;
                None
            }
        }
    }

    /// How many recorded blocks no provider would accept as they are. They are replaced or left out.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Takes the result of a call in.
    fn answer_checked(&mut self, call: &CallId, content: &ToolContent, is_error: bool, line: LineId) {
        let result = Block::ToolResult { id: call.clone(), content: content.clone(), is_error };
        if let Some(Block::ToolResult { content, .. }) = self.check(Role::User, &result) {
            self.answer(call, content, is_error, Some(line));
        }
    }

    fn answer(&mut self, call: &CallId, content: ToolContent, is_error: bool, line: Option<LineId>) {
        let Some(open) = &self.open else { return };
        // A result whose call is not in the message before it has no place to stand.
        if !open.asked.contains(call) || open.answers.contains_key(call) {
            return;
        }
        let content = match content {
            content if is_silent(&content) => ToolContent::from("(no output)"),
            content => content,
        };
        let block = self.admit(Block::ToolResult { id: call.clone(), content, is_error });
        self.fill.bytes_since += weight(&block);
        let open = self.user(line);
        open.encoded = None;
        open.answers.insert(call.clone(), block);
    }

    /// Lets a block in, or what stands in the place of a part that is omitted.
    fn admit(&self, block: Block) -> Block {
        if self.omitted.is_empty() {
            return block;
        }
        let bytes = weight(&block);
        match block {
            Block::ToolResult { id, is_error, .. }
                if self.omitted.contains(&Omittable::Result(id.clone())) =>
            {
                let content = ToolContent::Text(format!("[This result of {bytes} bytes is left out here.]"));
                Block::ToolResult { id, content, is_error }
            }
            Block::ToolUse { id, name, .. } if self.omitted.contains(&Omittable::Input(id.clone())) => {
                let input = serde_json::json!({"left_out": format!("an input of {bytes} bytes")});
                Block::ToolUse { id, name, input }
            }
            block => block,
        }
    }

    fn effects(&mut self, effects: &[ToolEffect]) {
        self.kept.seen = self.kept.seen.with(effects);
        for effect in effects {
            match effect {
                ToolEffect::Saw { .. } | ToolEffect::Unknown(_) => {}
                ToolEffect::Delivered { delivery } => {
                    self.delivered.insert(delivery.clone());
                }
                ToolEffect::Moved { cwd } => self.kept.cwd = Some(cwd.clone()),
                ToolEffect::Todos { todos } => self.kept.todos = Some(todos.clone()),
                ToolEffect::Follows { skill, rules } => {
                    self.kept.follows.add(rules);
                    self.kept.read_skill(skill);
                }
            }
        }
    }

    /// The open user message, begun if the last one was the model's.
    fn user(&mut self, line: Option<LineId>) -> &mut Open {
        if self.open.as_ref().is_none_or(|open| open.message.role == Role::Assistant) {
            let asked = self.open.as_ref().map(|open| open.asked.clone()).unwrap_or_default();
            self.seal();
            self.open = Some(Open::new(Role::User, asked, line));
        }
        // Just made, if it was not there.
        self.open.get_or_insert_with(|| Open::new(Role::User, Vec::new(), line))
    }

    /// The open assistant message, begun if the last one was the user's or had calls.
    fn assistant(&mut self, line: Option<LineId>) -> &mut Open {
        let must_answer = self
            .open
            .as_ref()
            .is_some_and(|open| open.message.role == Role::Assistant && !open.asked.is_empty());
        if must_answer {
            self.user(None);
        }
        if self.is_empty() {
            self.user(None).message.blocks.push(Block::text(MISSING_START));
        }
        if self.open.as_ref().is_none_or(|open| open.message.role == Role::User) {
            self.seal();
            self.open = Some(Open::new(Role::Assistant, Vec::new(), line));
        }
        self.open.get_or_insert_with(|| Open::new(Role::Assistant, Vec::new(), line))
    }

    fn end_with_user(&mut self) {
        let last_is_model = self.open.as_ref().is_none_or(|open| open.message.role == Role::Assistant);
        if !last_is_model || self.is_paused() {
            return;
        }
        let open = self.user(None);
        if open.asked.is_empty() {
            open.message.blocks.push(Block::text(GO_ON));
        }
    }

    /// Whether the last message is one that the provider continues by itself: it stopped in the middle of work of its
    /// own, which is a block that only it knows. After words it would have to be asked.
    fn is_paused(&self) -> bool {
        let last = self.open.as_ref().filter(|open| open.message.role == Role::Assistant);
        let last = last.and_then(|open| open.message.blocks.last());
        self.paused && matches!(last, Some(Block::Opaque(_)))
    }

    fn seal(&mut self) {
        if let Some(mut open) = self.open.take() {
            let wire = open.encode(self.dialect);
            let start = open.start(self.dialect);
            let omittable = open.omittable();
            self.sealed.push(Sealed { wire, line: open.line, prompt: open.prompt, start, omittable });
        }
    }

    fn compact(&mut self, line: LineId, summary: &Message, kept: &[LineId]) {
        // A summary does not hold them word by word; who reads there again is told again.
        self.kept.instructed.clear();
        self.kept.offered.clear();
        let last = self.keep_tail(kept);
        let mut start = Open::new(Role::User, Vec::new(), Some(line));
        for block in &summary.blocks {
            let block = self.check(Role::User, block);
            start.message.blocks.extend(block.filter(|block| !matches!(block, Block::ToolResult { .. })));
        }
        if start.message.blocks.is_empty() {
            start.message.blocks.push(Block::text(MISSING_START));
        }
        if self.sealed.is_empty() && last.is_none() {
            self.open = Some(start);
        } else {
            let read = Message::assistant(vec![Block::text(SUMMARY_READ)]);
            let sealed =
                |wire, line, start| Sealed { wire, line, prompt: false, start, omittable: Vec::new() };
            let read = sealed(Encoded::new(self.dialect, &read), None, Start::No);
            let start = sealed(start.encode(self.dialect), Some(line), Start::Whole);
            self.sealed.splice(0..0, [start, read]);
            self.open = last;
        }
        let sealed: u64 = self.sealed.iter().map(|sealed| sealed.wire.len()).sum();
        let open = self.open.as_mut().map_or(0, |open| open.encode(self.dialect).len());
        self.fill = Fill { counted: 0, bytes_since: sealed + open };
        self.counted = None;
    }

    /// Leaves the kept messages at the end of the conversation and gives the open one back. What is left is
    /// without holes and begins with something said by the user, whatever was lost from the file: an answer
    /// without its call would be refused, and so would the model speaking twice.
    fn keep_tail(&mut self, kept: &[LineId]) -> Option<Open> {
        let is_kept = |candidate: Option<LineId>| candidate.is_some_and(|line| kept.contains(&line));
        let Some(mut last) = self.open.take().filter(|open| is_kept(open.line)) else {
            self.sealed.clear();
            return None;
        };
        let whole = self.sealed.iter().rposition(|sealed| !is_kept(sealed.line)).map_or(0, |at| at + 1);
        let begins = |sealed: &Sealed| !matches!(sealed.start, Start::No);
        let Some(first) = self.sealed[whole..].iter().position(begins) else {
            self.sealed.clear();
            last.asked.clear();
            last.answers.clear();
            last.encoded = None;
            return Some(last)
                .filter(|last| last.message.role == Role::User && !last.message.blocks.is_empty());
        };
        self.sealed.drain(..whole + first);
        if let Some(sealed) = self.sealed.first_mut()
            && let Start::Without(wire) = std::mem::replace(&mut sealed.start, Start::Whole)
        {
            sealed.wire = wire;
        }
        Some(last)
    }
}

impl Open {
    fn new(role: Role, asked: Vec<CallId>, line: Option<LineId>) -> Self {
        let message = Message { role, blocks: Vec::new() };
        Self { message, asked, answers: HashMap::new(), line, prompt: false, encoded: None }
    }

    fn encode(&mut self, dialect: Dialect) -> Encoded {
        if let Some(encoded) = &self.encoded {
            return encoded.clone();
        }
        let encoded = if self.message.role == Role::User && !self.asked.is_empty() {
            Encoded::new(dialect, &self.with_answers())
        } else {
            Encoded::new(dialect, &self.message)
        };
        self.encoded = Some(encoded.clone());
        encoded
    }

    fn start(&self, dialect: Dialect) -> Start {
        match (self.message.role, self.asked.is_empty(), self.message.blocks.is_empty()) {
            (Role::Assistant, _, _) | (Role::User, false, true) => Start::No,
            (Role::User, true, _) => Start::Whole,
            (Role::User, false, false) => Start::Without(Encoded::new(dialect, &self.message)),
        }
    }

    /// The parts of it that can be omitted, with their bytes.
    fn omittable(&self) -> Vec<(Omittable, u64)> {
        let results = self.asked.iter().filter_map(|id| {
            let answer = self.answers.get(id)?;
            Some((Omittable::Result(id.clone()), weight(answer)))
        });
        let inputs = self.message.blocks.iter().filter_map(|block| match block {
            Block::ToolUse { id, .. } => Some((Omittable::Input(id.clone()), weight(block))),
            _ => None,
        });
        results.chain(inputs).collect()
    }

    fn with_answers(&self) -> Message {
        let missing = |id: &CallId| Block::ToolResult {
            id: id.clone(),
            content: ToolContent::from(NO_RESULT),
            is_error: true,
        };
        let answers =
            self.asked.iter().map(|id| self.answers.get(id).cloned().unwrap_or_else(|| missing(id)));
        Message { role: Role::User, blocks: answers.chain(self.message.blocks.iter().cloned()).collect() }
    }
}

const MEDIA_LEFT_OUT: &str = "[An image or document was left out: the provider rejected it.]";

/// A message without its images and documents; none if it holds none.
fn without_media(message: &Message) -> Option<Message> {
    let plain: Vec<_> = message.blocks.iter().map(block_without_media).collect();
    if plain.iter().all(Option::is_none) {
        return None;
    }
    let blocks = plain.into_iter().zip(&message.blocks);
    let blocks = blocks.map(|(plain, block)| plain.unwrap_or_else(|| block.clone())).collect();
    Some(Message { role: message.role, blocks })
}

/// The same for a block, also one that holds others.
fn block_without_media(block: &Block) -> Option<Block> {
    match block {
        Block::Image { .. } | Block::Document { .. } => Some(Block::text(MEDIA_LEFT_OUT)),
        Block::ToolResult { id, content: ToolContent::Blocks(blocks), is_error }
            if blocks.iter().any(|block| matches!(block, Block::Image { .. } | Block::Document { .. })) =>
        {
            let inner = without_media(&Message { role: Role::User, blocks: blocks.clone() })?;
            let content = ToolContent::Blocks(inner.blocks);
            Some(Block::ToolResult { id: id.clone(), content, is_error: *is_error })
        }
        _ => None,
    }
}

/// Text that providers refuse because there is nothing in it.
fn is_blank(block: &Block) -> bool {
    matches!(block, Block::Text { text } if text.trim().is_empty())
}

/// Whether a result has nothing that a model could read.
fn is_silent(content: &ToolContent) -> bool {
    match content {
        ToolContent::Text(text) => text.is_empty(),
        ToolContent::Blocks(blocks) => blocks.iter().all(is_blank),
    }
}

/// About how many tokens a text of so many bytes is.
pub fn estimate(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

/// Roughly how many bytes a block takes on the wire.
fn weight(block: &Block) -> u64 {
    let bytes = match block {
        Block::Text { text } => text.len(),
        Block::Thinking { thinking, signature, .. } => {
            thinking.len() + signature.as_ref().map_or(0, String::len)
        }
        Block::ToolUse { name, input, .. } => name.len() + json_weight(input) + 60,
        Block::ToolResult { content: ToolContent::Text(text), .. } => text.len() + 60,
        Block::ToolResult { content: ToolContent::Blocks(blocks), .. } => {
            return blocks.iter().map(weight).sum::<u64>() + 60;
        }
        // An image costs by its size in pixels, not by its bytes; this is about what a large one takes.
        Block::Image { .. } => 4_800,
        Block::Document { source } => json_weight(source) / 10,
        Block::Opaque(value) => json_weight(value),
    };
    bytes as u64
}

fn json_weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_weight(item) + 1).sum::<usize>() + 2,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + json_weight(value) + 4).sum::<usize>() + 2
        }
    }
}
