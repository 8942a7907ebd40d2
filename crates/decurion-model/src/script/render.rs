//! Turns a plan into what a provider would put on the wire. In: a plan, a dialect, ids. Out: steps for the player: a
//! head, bytes (each written and flushed on its own), waits, breaks.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use decurion_protocol::Usage;
use serde_json::{Value, json};

use super::request_view::Fnv;
use super::{
    AnswerPlan, CallInput, CutEnding, CutPoint, CutUnit, FailureBody, RequestView, ScriptStep,
    ScriptedFailure, Stall, WriteSplit,
};
use crate::Dialect;

/// One thing to do on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireStep {
    /// Send the head of the response. Always before the first bytes; missing if nothing is answered.
    Head {
        status: u16,
        /// The headers, names in lower case.
        headers: Vec<(String, String)>,
    },
    /// Write these bytes of the body and flush them.
    Bytes(Bytes),
    Wait(Duration),
    /// Break the connection (RST). The last step.
    Reset,
    /// Fail inside the program; a server breaks the connection instead. The last step.
    Panic,
    /// Send nothing more and keep the connection open. The last step.
    Stall,
    /// Write these bytes again and again, for ever. The last step.
    Repeat {
        bytes: Bytes,
        every: Duration,
    },
    /// End the body in order. The last step.
    End,
}

/// The ids of one reply: the same each time its request is sent, different in every other turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    seed: u128,
    /// The model that answers where the plan names none.
    model: String,
}

impl Ids {
    /// The ids for a request.
    pub fn of(seen: &RequestView) -> Self {
        Self { seed: seen.seed(), model: seen.model.clone() }
    }

    pub fn message(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Anthropic => format!("msg_{}", self.hash("message")),
            Dialect::OpenAiChat => format!("chatcmpl-{}", self.hash("message")),
        }
    }

    pub fn request(&self) -> String {
        format!("req_{}", self.hash("request"))
    }

    /// That of the call at this place of the message.
    pub fn call(&self, dialect: Dialect, index: usize) -> String {
        let hash = self.hash(&format!("call {index}"));
        match dialect {
            Dialect::Anthropic => format!("toolu_{hash}"),
            Dialect::OpenAiChat => format!("call_{hash}"),
        }
    }

    fn signature(&self, index: usize) -> String {
        format!("sig_{}", self.hash(&format!("thinking {index}")))
    }

    fn hash(&self, what: &str) -> String {
        let mut hash = Fnv(self.seed);
        hash.add(what.as_bytes());
        format!("{:024x}", hash.0 >> 32)
    }
}

/// What a provider of this dialect would send for this plan.
pub fn render(plan: &AnswerPlan, dialect: Dialect, ids: &Ids) -> Vec<WireStep> {
    if let Some(failure) = &plan.failure {
        return render_failure(plan, failure, dialect, ids);
    }
    let mut stream = Stream { dialect, ids, plan, pieces: Vec::new(), blocks: 0, opened: false };
    stream.play();
    let mut pieces = stream.pieces;
    if let Some(cut) = plan.cut {
        pieces = cut_off(pieces, cut);
    }
    assemble(pieces, &plan.splits, dialect, ids)
}

/// What a stream is made of before it is cut and split.
enum StreamPiece {
    Event(Vec<u8>),
    Wait(Duration),
    Last(WireStep),
}

fn render_failure(
    plan: &AnswerPlan,
    failure: &ScriptedFailure,
    dialect: Dialect,
    ids: &Ids,
) -> Vec<WireStep> {
    let mut steps: Vec<WireStep> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            ScriptStep::Delay(time) => Some(WireStep::Wait(*time)),
            _ => None,
        })
        .collect();
    let (body, kind) = match &failure.body {
        FailureBody::Raw(text) => (text.clone(), "text/plain"),
        FailureBody::Error { kind, message } => {
            let kind = kind.as_deref().unwrap_or_else(|| usual_kind(failure.status));
            (error_body(dialect, kind, message, ids).to_string(), "application/json")
        }
    };
    let mut headers = vec![request_id_header(dialect, ids)];
    if !failure.headers.iter().any(|(name, _)| name == "content-type") {
        headers.push(("content-type".to_owned(), kind.to_owned()));
    }
    headers.extend(failure.headers.iter().cloned());
    steps.push(WireStep::Head { status: failure.status, headers });
    steps.push(WireStep::Bytes(body.into()));
    steps.push(WireStep::End);
    steps
}

/// The name Anthropic gives to a failure with this status.
fn usual_kind(status: u16) -> &'static str {
    match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    }
}

fn error_body(dialect: Dialect, kind: &str, message: &str, ids: &Ids) -> Value {
    match dialect {
        Dialect::Anthropic => {
            json!({"type":"error","error":{"type":kind,"message":message},"request_id":ids.request()})
        }
        Dialect::OpenAiChat => json!({"error":{"message":message,"type":kind,"param":null,"code":null}}),
    }
}

fn request_id_header(dialect: Dialect, ids: &Ids) -> (String, String) {
    let name = match dialect {
        Dialect::Anthropic => "request-id",
        Dialect::OpenAiChat => "x-request-id",
    };
    (name.to_owned(), ids.request())
}

/// A reply being written.
struct Stream<'a> {
    dialect: Dialect,
    ids: &'a Ids,
    plan: &'a AnswerPlan,
    pieces: Vec<StreamPiece>,
    /// How many content blocks (Anthropic) or calls (Chat Completions) there are so far.
    blocks: usize,
    opened: bool,
}

impl Stream<'_> {
    fn play(&mut self) {
        for step in &self.plan.steps {
            // Before any output, a wait or a break belongs to the connection, not to the stream.
            let speaks = !matches!(
                step,
                ScriptStep::Delay(_)
                    | ScriptStep::Reset
                    | ScriptStep::Panic
                    | ScriptStep::Close
                    | ScriptStep::Raw(_)
                    | ScriptStep::Stall(Stall::Silent)
            );
            if speaks {
                self.open();
            }
            match step {
                ScriptStep::Say { text, chunk, every } => self.say(text, *chunk, *every),
                ScriptStep::Think { text, chunk, every } => self.think(text, *chunk, *every),
                ScriptStep::Call { name, id, input } => self.call(name, id.as_deref(), input),
                ScriptStep::Block(block) => self.block(block),
                ScriptStep::Delay(time) => self.pieces.push(StreamPiece::Wait(*time)),
                ScriptStep::Error { kind, message } => self.error(kind, message),
                ScriptStep::Raw(bytes) => self.pieces.push(StreamPiece::Event(bytes.clone())),
                ScriptStep::Reset => return self.pieces.push(StreamPiece::Last(WireStep::Reset)),
                ScriptStep::Panic => return self.pieces.push(StreamPiece::Last(WireStep::Panic)),
                ScriptStep::Close => return self.pieces.push(StreamPiece::Last(WireStep::End)),
                ScriptStep::Stall(stall) => return self.stall(*stall),
            }
        }
        self.open();
        self.finish();
        self.pieces.push(StreamPiece::Last(WireStep::End));
    }

    fn open(&mut self) {
        if self.opened {
            return;
        }
        self.opened = true;
        let id = self.plan.message_id.clone().unwrap_or_else(|| self.ids.message(self.dialect));
        match self.dialect {
            Dialect::Anthropic => {
                let usage = anthropic_usage(&Usage { output_tokens: 1, ..self.plan.usage.clone() });
                self.event(&json!({"type":"message_start","message":{
                    "id":id,"type":"message","role":"assistant","model":self.model(),"content":[],
                    "stop_reason":null,"stop_sequence":null,"usage":usage}}));
            }
            Dialect::OpenAiChat => self.delta(&json!({"role":"assistant","content":""}), None),
        }
    }

    fn say(&mut self, text: &str, chunk: usize, every: Duration) {
        match self.dialect {
            Dialect::Anthropic => {
                let pieces = chunks(text, chunk).map(|part| json!({"type":"text_delta","text":part}));
                self.whole_block(&json!({"type":"text","text":""}), pieces, every);
            }
            Dialect::OpenAiChat => {
                for part in chunks(text, chunk) {
                    self.wait(every);
                    self.delta(&json!({"content":part}), None);
                }
            }
        }
    }

    fn think(&mut self, text: &str, chunk: usize, every: Duration) {
        match self.dialect {
            Dialect::Anthropic => {
                let seal = json!({"type":"signature_delta","signature":self.ids.signature(self.blocks)});
                let pieces = chunks(text, chunk).map(|part| json!({"type":"thinking_delta","thinking":part}));
                self.whole_block(
                    &json!({"type":"thinking","thinking":"","signature":""}),
                    pieces.chain([seal]),
                    every,
                );
            }
            Dialect::OpenAiChat => {
                for part in chunks(text, chunk) {
                    self.wait(every);
                    self.delta(&json!({"reasoning_content":part}), None);
                }
            }
        }
    }

    fn call(&mut self, name: &str, id: Option<&str>, input: &CallInput) {
        let id = id.map_or_else(|| self.ids.call(self.dialect, self.blocks), str::to_owned);
        let text = match input {
            CallInput::Json(members) => Value::Object(members.clone()).to_string(),
            CallInput::Raw(text) => text.clone(),
        };
        match self.dialect {
            Dialect::Anthropic => {
                let pieces =
                    chunks(&text, 256).map(|part| json!({"type":"input_json_delta","partial_json":part}));
                self.whole_block(
                    &json!({"type":"tool_use","id":id,"name":name,"input":{}}),
                    pieces,
                    Duration::ZERO,
                );
            }
            Dialect::OpenAiChat => {
                let index = self.blocks;
                self.blocks += 1;
                self.delta(
                    &json!({"tool_calls":[{"index":index,"id":id,"type":"function",
                        "function":{"name":name,"arguments":""}}]}),
                    None,
                );
                for part in chunks(&text, 256) {
                    let piece = json!({"tool_calls":[{"index":index,"function":{"arguments":part}}]});
                    self.delta(&piece, None);
                }
            }
        }
    }

    fn block(&mut self, block: &Value) {
        // Chat Completions has no such thing.
        if self.dialect == Dialect::Anthropic {
            self.whole_block(block, std::iter::empty(), Duration::ZERO);
        }
    }

    fn error(&mut self, kind: &str, message: &str) {
        let body = error_body(self.dialect, kind, message, self.ids);
        self.event(&body);
    }

    fn stall(&mut self, stall: Stall) {
        let last = match (stall, self.dialect) {
            (Stall::Silent, _) => WireStep::Stall,
            (Stall::Pings(every), Dialect::Anthropic) => {
                WireStep::Repeat { bytes: framed(&json!({"type":"ping"})).into(), every }
            }
            (Stall::Pings(every), Dialect::OpenAiChat) => {
                WireStep::Repeat { bytes: Bytes::from_static(b": keep-alive\n\n"), every }
            }
            (Stall::Empty(every), Dialect::Anthropic) => {
                let start = json!({"type":"content_block_start","index":self.blocks,
                    "content_block":{"type":"text","text":""}});
                self.event(&start);
                let empty = json!({"type":"content_block_delta","index":self.blocks,
                    "delta":{"type":"text_delta","text":""}});
                WireStep::Repeat { bytes: framed(&empty).into(), every }
            }
            (Stall::Empty(every), Dialect::OpenAiChat) => {
                WireStep::Repeat { bytes: self.chunk(&json!({"content":""}), None).into(), every }
            }
        };
        self.pieces.push(StreamPiece::Last(last));
    }

    fn finish(&mut self) {
        let called = self.plan.steps.iter().any(|step| matches!(step, ScriptStep::Call { .. }));
        let stop = self.plan.stop.as_deref().unwrap_or(if called { "tool_use" } else { "end_turn" });
        match self.dialect {
            Dialect::Anthropic => {
                let usage = anthropic_usage(&self.plan.usage);
                self.event(&json!({"type":"message_delta",
                    "delta":{"stop_reason":stop,"stop_sequence":null},"usage":usage}));
                self.event(&json!({"type":"message_stop"}));
            }
            Dialect::OpenAiChat => {
                let reason = match stop {
                    "end_turn" => "stop",
                    "tool_use" => "tool_calls",
                    "max_tokens" => "length",
                    "refusal" => "content_filter",
                    other => other,
                };
                self.delta(&json!({}), Some(reason));
                // Servers that ignore `stream_options` say nothing of it.
                if self.plan.usage != Usage::default() {
                    let mut last = self.envelope(json!([]));
                    last["usage"] = openai_usage(&self.plan.usage);
                    self.pieces.push(StreamPiece::Event(format!("data: {last}\n\n").into_bytes()));
                }
                self.pieces.push(StreamPiece::Event(b"data: [DONE]\n\n".to_vec()));
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        if !time.is_zero() {
            self.pieces.push(StreamPiece::Wait(time));
        }
    }

    /// One Anthropic block from start to stop, with this wait before each piece of it.
    fn whole_block(&mut self, start: &Value, pieces: impl Iterator<Item = Value>, every: Duration) {
        let index = self.blocks;
        self.blocks += 1;
        self.event(&json!({"type":"content_block_start","index":index,"content_block":start}));
        for delta in pieces {
            self.wait(every);
            self.event(&json!({"type":"content_block_delta","index":index,"delta":delta}));
        }
        self.event(&json!({"type":"content_block_stop","index":index}));
    }

    fn event(&mut self, data: &Value) {
        let bytes = match self.dialect {
            Dialect::Anthropic => framed(data),
            Dialect::OpenAiChat => format!("data: {data}\n\n").into_bytes(),
        };
        self.pieces.push(StreamPiece::Event(bytes));
    }

    /// One Chat Completions chunk.
    fn delta(&mut self, delta: &Value, finish: Option<&str>) {
        let bytes = self.chunk(delta, finish);
        self.pieces.push(StreamPiece::Event(bytes));
    }

    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Vec<u8> {
        let chunk = self.envelope(json!([{"index":0,"delta":delta,"finish_reason":finish}]));
        format!("data: {chunk}\n\n").into_bytes()
    }

    fn envelope(&self, choices: Value) -> Value {
        let id = self.plan.message_id.clone().unwrap_or_else(|| self.ids.message(self.dialect));
        let mut chunk = json!({"id":id,"object":"chat.completion.chunk","created":0,"model":self.model()});
        chunk["choices"] = choices;
        chunk
    }

    fn model(&self) -> &str {
        self.plan.model.as_deref().unwrap_or(&self.ids.model)
    }
}

/// An Anthropic event: its name, then its data.
fn framed(data: &Value) -> Vec<u8> {
    let mut text = String::new();
    let kind = data.get("type").and_then(Value::as_str).unwrap_or_default();
    let _ = write!(text, "event: {kind}\ndata: {data}\n\n");
    text.into_bytes()
}

fn anthropic_usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "output_tokens": usage.output_tokens,
    })
}

fn openai_usage(usage: &Usage) -> Value {
    let prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens;
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_input_tokens},
    })
}

/// Parts of so many characters; nothing for an empty text.
fn chunks(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let part = super::beginning(rest, size);
        rest = &rest[part.len()..];
        Some(part)
    })
}

/// Keeps what comes before a cut and ends there.
fn cut_off(pieces: Vec<StreamPiece>, cut: CutPoint) -> Vec<StreamPiece> {
    let ending = match cut.ending {
        CutEnding::Reset => WireStep::Reset,
        CutEnding::Close => WireStep::End,
        CutEnding::Stall => WireStep::Stall,
    };
    let mut left = cut.after;
    let mut kept = Vec::new();
    for piece in pieces {
        let StreamPiece::Event(mut bytes) = piece else {
            kept.push(piece);
            continue;
        };
        let weight = match cut.unit {
            CutUnit::Events => 1,
            CutUnit::Bytes => bytes.len(),
        };
        if weight > left {
            bytes.truncate(if cut.unit == CutUnit::Bytes { left } else { 0 });
            if !bytes.is_empty() {
                kept.push(StreamPiece::Event(bytes));
            }
            kept.push(StreamPiece::Last(ending));
            return kept;
        }
        left -= weight;
        kept.push(StreamPiece::Event(bytes));
    }
    // A stream that is shorter than its cut breaks off at its end.
    if matches!(kept.last(), Some(StreamPiece::Last(_))) {
        kept.pop();
    }
    kept.push(StreamPiece::Last(ending));
    kept
}

/// Gathers events into writes, separated where the plan says so, and puts the head before the first.
fn assemble(pieces: Vec<StreamPiece>, splits: &[WriteSplit], dialect: Dialect, ids: &Ids) -> Vec<WireStep> {
    let head = WireStep::Head {
        status: 200,
        headers: vec![
            ("content-type".to_owned(), "text/event-stream".to_owned()),
            ("cache-control".to_owned(), "no-cache".to_owned()),
            request_id_header(dialect, ids),
        ],
    };
    let mut head = Some(head);
    let mut steps = Vec::new();
    let mut gathered = Vec::new();
    let mut written = 0;
    for piece in pieces {
        match piece {
            StreamPiece::Event(bytes) => gathered.extend_from_slice(&bytes),
            StreamPiece::Wait(time) => {
                flush(&mut steps, &mut head, &mut gathered, &mut written, splits);
                steps.push(WireStep::Wait(time));
            }
            StreamPiece::Last(last) => {
                flush(&mut steps, &mut head, &mut gathered, &mut written, splits);
                if matches!(last, WireStep::End | WireStep::Repeat { .. }) {
                    steps.extend(head.take());
                }
                steps.push(last);
            }
        }
    }
    steps
}

fn flush(
    steps: &mut Vec<WireStep>,
    head: &mut Option<WireStep>,
    gathered: &mut Vec<u8>,
    written: &mut usize,
    splits: &[WriteSplit],
) {
    if gathered.is_empty() {
        return;
    }
    steps.extend(head.take());
    let mut rest = Bytes::from(std::mem::take(gathered));
    while !rest.is_empty() {
        let part = rest.split_to(next_split(*written, splits).min(rest.len()));
        *written += part.len();
        steps.push(WireStep::Bytes(part));
    }
}

/// How many bytes may be written before the next separation.
fn next_split(written: usize, splits: &[WriteSplit]) -> usize {
    let gaps = splits.iter().filter_map(|split| match *split {
        WriteSplit::At(at) => at.checked_sub(written).filter(|gap| *gap > 0),
        WriteSplit::Every(every) => Some(every - written % every),
    });
    gaps.min().unwrap_or(usize::MAX)
}
