//! Row M7: any prefix of any transcript, with any record removed, yields a request that a provider takes.
//! Makes transcripts by chance as the engine writes them (and as a damaged or foreign file may hold them),
//! folds what is left, and lets the validator judge the request.

use std::sync::Arc;

use decurion_engine::context::{Context, Media};
use decurion_model::{Dialect, Head, ModelRequest, ToolSchema};
use decurion_protocol::{
    Block, CallId, Decision, Event, Intent, LineId, Message, MessageMeta, Origin, ToolContent, ToolOutput,
    Usage, Verdict,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::faults::{Dice, Options, Report, in_parallel};
use crate::validate::{HeaderMap, check_anthropic, check_openai};

/// Failures that are described; more of them say nothing new.
const DESCRIBED: usize = 10;

pub(super) fn row(options: &Options) -> Report {
    let cases = options.count(3_000, 100_000);
    let batches: Vec<u64> = (0..cases.div_ceil(500)).collect();
    let results = in_parallel(options.width, &batches, |batch| {
        let all = (0..500).map(|number| case(options.seed, batch * 500 + number));
        let mut failures: Vec<String> = Vec::new();
        let mut bad = 0;
        for failure in all.filter_map(Result::err) {
            bad += 1;
            if failures.len() < DESCRIBED {
                failures.push(failure);
            }
        }
        (bad, failures)
    });
    let mut report = Report { runs: batches.len() as u64 * 500, ..Report::default() };
    let mut invalid = 0;
    for (bad, failures) in results {
        invalid += bad;
        report.failures.extend(failures);
    }
    report.failures.truncate(DESCRIBED);
    let runs = report.runs;
    report.figure(format!("{runs} prefixes with a record removed, both dialects: {invalid} invalid requests"))
}

/// One transcript, cut and with a hole, in either dialect.
fn case(seed: u64, number: u64) -> Result<(), String> {
    let mut dice = Dice::new(seed, number);
    let events = Maker::new(&mut dice).transcript();
    let cut = 1 + below(&mut dice, events.len());
    // One case in eight has no hole.
    let hole = Some(below(&mut dice, cut)).filter(|_| dice.below(8) > 0);
    let dialect = if dice.below(2) == 0 { Dialect::Anthropic } else { Dialect::OpenAiChat };
    let mut context = Context::new(dialect);
    for (place, event) in events[..cut].iter().enumerate() {
        if Some(place) != hole {
            context.apply(event);
        }
    }
    check(dialect, &mut context).map_err(|problem| {
        let kinds: Vec<&str> = events[..cut].iter().map(kind).collect();
        format!("case {number} ({dialect:?}, without {hole:?} of {}): {problem}", kinds.join(" "))
    })
}

fn check(dialect: Dialect, context: &mut Context) -> Result<(), String> {
    let schema = json!({"type": "object"});
    let tool = ToolSchema { name: "Echo".into(), description: "says it again".into(), input_schema: schema };
    let head = Head { model: "m".into(), max_output_tokens: 10, tools: vec![tool], ..Head::default() };
    let request = ModelRequest::new(Arc::new(dialect.head(&head)), context.request(Media::Sent));
    let body: Value =
        serde_json::from_slice(&request.segments().concat()).map_err(|error| error.to_string())?;
    let checked = match dialect {
        Dialect::Anthropic => check_anthropic(&headers(), &body),
        Dialect::OpenAiChat => check_openai(&headers(), &body),
    };
    checked.map_err(|error| format!("{}: {}", error.message, brief(&body["messages"])))
}

/// The headers of every request.
pub(super) fn headers() -> HeaderMap {
    let pairs = [
        ("anthropic-version", "2023-06-01"),
        ("x-api-key", "k"),
        ("content-type", "application/json"),
        ("authorization", "Bearer k"),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.insert(name, hyper::header::HeaderValue::from_static(value));
    }
    headers
}

fn brief(value: &Value) -> String {
    value.to_string().chars().take(1_500).collect()
}

fn below(dice: &mut Dice, end: usize) -> usize {
    usize::try_from(dice.below(end as u64)).unwrap_or_default()
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Message { meta, .. } => match meta.origin {
            Origin::Prompt => "prompt",
            Origin::Model => "reply",
            Origin::Note(_) => "note",
            Origin::Shell => "shell",
            Origin::Synthetic => "synthetic",
        },
        Event::CallStarted { .. } => "start",
        Event::CallRefused { .. } => "refusal",
        Event::CallEnded { .. } => "result",
        Event::Compacted { .. } => "compaction",
        _ => "other",
    }
}

struct Maker<'a> {
    dice: &'a mut Dice,
    events: Vec<Event>,
    lines: u128,
    calls: u32,
    /// The first line of every message since the last prompt, that one included: what a compaction keeps.
    tail: Vec<LineId>,
    leaf: Option<LineId>,
}

impl<'a> Maker<'a> {
    fn new(dice: &'a mut Dice) -> Self {
        Self { dice, events: Vec::new(), lines: 0, calls: 0, tail: Vec::new(), leaf: None }
    }

    fn transcript(mut self) -> Vec<Event> {
        for _ in 0..=self.dice.below(3) {
            self.prompt();
            for _ in 0..self.dice.below(4) {
                self.turn();
                if self.dice.below(8) == 0 {
                    self.compaction();
                }
            }
            if self.dice.below(6) == 0 {
                self.compaction();
            }
        }
        self.events
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.dice.below(one_in) == 0
    }

    fn line(&mut self) -> LineId {
        self.lines += 1;
        LineId(Uuid::from_u128(0x11e0_0000 + self.lines))
    }

    fn text(&mut self) -> String {
        ["a", " ", "\n", "é \u{1F600}", "line\nline", "\u{0}\u{1b}[0m", "\u{2028}"][below(self.dice, 7)]
            .to_owned()
    }

    fn message(&mut self, message: Message, lines: Vec<LineId>, origin: Origin) {
        let parent = self.leaf;
        self.leaf = lines.last().copied().or(parent);
        let usage = (origin == Origin::Model).then(|| Usage {
            input_tokens: 9,
            output_tokens: 1,
            ..Usage::default()
        });
        let meta = Box::new(MessageMeta { origin, usage, ..MessageMeta::default() });
        self.events.push(Event::Message { message, lines, parent, meta });
    }

    fn prompt(&mut self) {
        let line = self.line();
        let mut message = Message::user(self.text());
        if self.chance(6) {
            message.blocks.push(image());
        }
        self.tail = vec![line];
        self.message(message, vec![line], Origin::Prompt);
        if self.chance(3) {
            let (line, text) = (self.line(), self.text());
            self.message(Message::user(text), vec![line], Origin::Note("context".into()));
        }
    }

    /// A reply and what came of its calls.
    fn turn(&mut self) {
        let mut blocks = Vec::new();
        if self.chance(4) {
            let (thinking, signature) = (self.text(), Some("c2VhbA==".to_owned()));
            blocks.push(Block::Thinking { thinking, signature, extra: Map::new() });
        }
        for _ in 0..self.dice.below(3) {
            blocks.push(Block::text(self.text()));
        }
        let calls: Vec<CallId> = (0..self.dice.below(4)).map(|_| self.call()).collect();
        let input = json!({"text": self.text()});
        blocks.extend(calls.iter().map(|id| Block::ToolUse {
            id: id.clone(),
            name: "Echo".into(),
            input: input.clone(),
        }));
        if self.chance(12) {
            let (line, said) = (self.line(), vec![Block::text("the provider failed")]);
            self.message(Message::assistant(said), vec![line], Origin::Synthetic);
        }
        if blocks.is_empty() {
            return;
        }
        let lines: Vec<LineId> = blocks.iter().map(|_| self.line()).collect();
        self.tail.push(lines[0]);
        self.message(Message::assistant(blocks), lines, Origin::Model);
        self.results(&calls);
        if self.chance(8) {
            let (line, text) = (self.line(), self.text());
            self.message(Message::user(text), vec![line], Origin::Note("reminder".into()));
        }
    }

    /// Mostly new; now and then one that is taken, as a damaged or foreign file may have it.
    fn call(&mut self) -> CallId {
        if self.calls > 0 && self.chance(20) {
            return CallId(format!("toolu_{}", self.dice.below(u64::from(self.calls))));
        }
        self.calls += 1;
        CallId(format!("toolu_{}", self.calls - 1))
    }

    /// The calls' results, in any order, a few of them missing.
    fn results(&mut self, calls: &[CallId]) {
        let mut order: Vec<&CallId> = calls.iter().collect();
        for place in (1..order.len()).rev() {
            order.swap(place, below(self.dice, place + 1));
        }
        // A foreign transcript holds results as blocks of a user's message.
        if !order.is_empty() && self.chance(6) {
            let line = self.line();
            let results = order.iter().map(|id| Block::ToolResult {
                id: (*id).clone(),
                content: ToolContent::from("found"),
                is_error: false,
            });
            let message = Message { blocks: results.collect(), ..Message::user("") };
            self.tail.push(line);
            self.message(message, vec![line], Origin::Prompt);
            return;
        }
        for (place, call) in order.into_iter().enumerate() {
            if self.chance(25) {
                continue;
            }
            let decision =
                Decision { verdict: Verdict::Allow, rule: None, reason: "it may".into(), profile: None };
            let tool = "Echo".to_owned();
            if self.chance(8) {
                let refused = Event::CallRefused {
                    call: call.clone(),
                    tool,
                    input: json!({}),
                    decision,
                    unanswerable: false,
                };
                self.events.push(refused);
            } else {
                let intent = Box::new(Intent::titled("Echo"));
                self.events.push(Event::CallStarted {
                    call: call.clone(),
                    tool,
                    intent,
                    decision,
                    input: None,
                });
            }
            self.ended(call.clone(), place == 0);
        }
    }

    fn ended(&mut self, call: CallId, first: bool) {
        let output = match self.dice.below(6) {
            0 => ToolOutput::error("failed"),
            1 => ToolOutput::text(""),
            2 => {
                let content = ToolContent::Blocks(vec![Block::text("seen"), image()]);
                ToolOutput { content, ..ToolOutput::text("") }
            }
            _ => ToolOutput::text(self.text()),
        };
        let line = self.line();
        // All results of a turn are one message, named by its first line.
        if first {
            self.tail.push(line);
        }
        let parent = self.leaf;
        self.leaf = Some(line);
        let output = Box::new(output);
        self.events.push(Event::CallEnded {
            call,
            tool: "Echo".into(),
            line,
            parent,
            output,
            duration_ms: 1,
        });
    }

    fn compaction(&mut self) {
        let (boundary, line) = (self.line(), self.line());
        let kept = if self.chance(3) { Vec::new() } else { self.tail.clone() };
        self.events.push(Event::Compacted {
            boundary,
            line,
            logical_parent: self.leaf,
            summary: Message::user("what was said so far"),
            kept,
            trigger: "auto".into(),
            tokens_before: 100,
            checkpoint: Value::Null,
        });
        self.leaf = Some(line);
    }
}

fn image() -> Block {
    Block::Image { source: json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcripts_by_chance_hold_every_kind_of_record() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..200 {
            let mut dice = Dice::new(7, number);
            seen.extend(Maker::new(&mut dice).transcript().iter().map(kind));
        }
        let all = ["compaction", "note", "prompt", "refusal", "reply", "result", "start", "synthetic"];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    }
}
