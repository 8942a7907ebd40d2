//! Scripts: what a scripted model answers. Text comes in and becomes a [`Script`]; what a request holds
//! ([`RequestView`]) goes in and a [`AnswerPlan`] of the reply comes out; [`render()`] turns a plan into the bytes a
//! provider of either dialect would send. All of it is pure; playing it is [`crate::scripted`]'s and the
//! loopback server's work. The format is taught in `docs/src/scripts.md`.

mod parse;
mod render;
mod request_view;
mod substitute;

use std::time::Duration;

use decurion_protocol::Usage;
use regex::Regex;
use serde_json::{Map, Value};

pub use render::{Ids, WireStep, render};
pub use request_view::RequestView;

/// A script: rules in order; the first that fits a request answers it.
#[derive(Clone, Debug)]
pub struct Script {
    rules: Vec<ScriptRule>,
}

/// A script that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ScriptError {
    pub line: u32,
    /// Counted in characters from 1.
    pub column: u32,
    /// What is wrong there.
    pub message: String,
}

/// A request that no rule fits: the script has a hole, and its author should see where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no rule of the script fits agent {agent:?} (path {path:?}), turn {turn}, try {attempt}, whose last message is: {last}"
)]
pub struct NoMatch {
    pub agent: String,
    pub path: String,
    pub turn: u32,
    /// Which try of the same request.
    pub attempt: u32,
    /// The beginning of the last message.
    pub last: String,
}

/// How to answer one request: everything decided, all captures filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerPlan {
    /// The line of the rule that decided it.
    pub line: u32,
    /// The answer is this failure instead of a stream.
    pub failure: Option<ScriptedFailure>,
    /// The stream, in order.
    pub steps: Vec<ScriptStep>,
    /// Why the model stops; none means `tool_use` if there is a call, else `end_turn`.
    pub stop: Option<String>,
    /// The usage that the reply reports.
    pub usage: Usage,
    /// The model that the reply names; none means the requested one.
    pub model: Option<String>,
    /// The message's id; none means one made from the request.
    pub message_id: Option<String>,
    /// Where writes are separated.
    pub splits: Vec<WriteSplit>,
    /// Where the stream breaks off.
    pub cut: Option<CutPoint>,
}

/// One step of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptStep {
    Say {
        text: String,
        /// How many characters per piece.
        chunk: usize,
        /// How long to wait before each piece.
        every: Duration,
    },
    Think {
        text: String,
        /// How many characters per piece.
        chunk: usize,
        /// How long to wait before each piece.
        every: Duration,
    },
    Call {
        name: String,
        /// The call's id; none means one made from the request.
        id: Option<String>,
        /// What it is called with.
        input: CallInput,
    },
    /// A content block of any kind, sent as it is (Anthropic only).
    Block(Value),
    Delay(Duration),
    /// An error in mid stream.
    Error {
        /// Its kind, e.g. `overloaded_error`.
        kind: String,
        message: String,
    },
    /// These bytes, unchanged.
    Raw(Vec<u8>),
    /// The connection breaks here.
    Reset,
    /// The provider itself fails here, inside the program.
    Panic,
    /// The stream ends here as if it were complete.
    Close,
    /// Nothing more of substance ever comes.
    Stall(Stall),
}

/// The input of a scripted call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallInput {
    Json(Map<String, Value>),
    /// Text in the place of JSON, for inputs that cannot be parsed.
    Raw(String),
}

/// How a stream stalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    Silent,
    Pings(Duration),
    /// Pieces with nothing in them.
    Empty(Duration),
}

/// An answer that is not a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptedFailure {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: FailureBody,
}

/// The body of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureBody {
    /// An error object as the dialect writes them.
    Error {
        /// Its kind; none means the usual one for the status.
        kind: Option<String>,
        message: String,
    },
    Raw(String),
}

/// Where writes are separated, counted in bytes of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSplit {
    /// After so many bytes.
    At(usize),
    /// After each so many bytes.
    Every(usize),
}

/// Where a stream breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutPoint {
    pub after: usize,
    pub unit: CutUnit,
    pub ending: CutEnding,
}

/// What a cut counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutUnit {
    /// Bytes of the body.
    Bytes,
    /// Events of the stream.
    Events,
}

/// How a stream breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutEnding {
    /// The connection is reset.
    Reset,
    /// The connection is closed in order.
    Close,
    Stall,
}

impl Script {
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::script(text).map(|rules| Self { rules })
    }

    /// The answer to a request: that of the first rule that fits.
    pub fn reply(&self, seen: &RequestView) -> Result<AnswerPlan, NoMatch> {
        self.rules.iter().find_map(|rule| rule.plan(seen)).ok_or_else(|| NoMatch {
            agent: seen.agent.clone(),
            path: seen.path.clone(),
            turn: seen.turn,
            attempt: seen.attempt,
            last: format!("{:?}", beginning(&seen.last_message, 200)),
        })
    }

    /// Whether a rule asks which try of the same request this is, so that someone must count them.
    pub fn counts_tries(&self) -> bool {
        self.rules.iter().any(|rule| rule.conditions.iter().any(|one| matches!(one, Condition::Try(_))))
    }

    /// Whether a rule asks how long the player has been running.
    pub fn looks_at_time(&self) -> bool {
        self.rules.iter().any(|rule| rule.conditions.iter().any(|one| matches!(one, Condition::Within(_))))
    }
}

/// What must hold, and what is then answered; texts still hold their `$1`s.
#[derive(Clone, Debug)]
struct ScriptRule {
    conditions: Vec<Condition>,
    usage: Option<Usage>,
    template: AnswerPlan,
}

#[derive(Clone, Debug)]
enum Condition {
    /// A glob on type, last part of the path, or path.
    Agent(String),
    /// A glob on the model's name.
    Model(String),
    Turn(ScriptNumbers),
    Try(ScriptNumbers),
    Within(Duration),
    Text(PatternTarget, TextPattern),
}

/// Which text of a request a pattern looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternTarget {
    /// The whole last message.
    Last,
    /// Its text without tool results.
    Text,
    Result,
    /// The text of the first message.
    First,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScriptNumbers {
    from: u32,
    to: u32,
}

#[derive(Clone, Debug)]
enum TextPattern {
    Contains(String),
    Regex(Regex),
}

impl ScriptRule {
    fn plan(&self, seen: &RequestView) -> Option<AnswerPlan> {
        let mut captures = substitute::Captures::new(seen);
        for condition in &self.conditions {
            if !condition.holds(seen, &mut captures) {
                return None;
            }
        }
        let mut plan = self.template.clone();
        substitute::plan(&mut plan, &captures);
        plan.usage = self.usage.clone().unwrap_or_else(|| estimate(&plan, seen));
        Some(plan)
    }
}

impl Condition {
    fn holds(&self, seen: &RequestView, captures: &mut substitute::Captures) -> bool {
        match self {
            Self::Agent(glob) => {
                let name = seen.path.rsplit('/').next().unwrap_or_default();
                [&seen.agent, name, &seen.path].into_iter().any(|text| glob_fits(glob, text))
            }
            Self::Model(glob) => glob_fits(glob, &seen.model),
            Self::Turn(numbers) => numbers.hold(seen.turn),
            Self::Try(numbers) => numbers.hold(seen.attempt),
            Self::Within(time) => seen.elapsed < *time,
            Self::Text(place, pattern) => pattern.fits(place.of(seen), captures),
        }
    }
}

impl PatternTarget {
    fn of(self, seen: &RequestView) -> &str {
        match self {
            Self::Last => &seen.last_message,
            Self::Text => &seen.last_text,
            Self::Result => &seen.last_result,
            Self::First => &seen.first_text,
        }
    }
}

impl ScriptNumbers {
    fn hold(self, number: u32) -> bool {
        (self.from..=self.to).contains(&number)
    }
}

impl TextPattern {
    fn fits(&self, text: &str, captures: &mut substitute::Captures) -> bool {
        match self {
            Self::Contains(part) => text.contains(part.as_str()),
            Self::Regex(regex) => {
                let Some(found) = regex.captures(text) else { return false };
                captures.add(regex, &found);
                true
            }
        }
    }
}

/// Tokens at the usual four bytes each, so that budgets and windows have something to count.
fn estimate(plan: &AnswerPlan, seen: &RequestView) -> Usage {
    let written: usize = plan
        .steps
        .iter()
        .map(|step| match step {
            ScriptStep::Say { text, .. } | ScriptStep::Think { text, .. } => text.len(),
            ScriptStep::Call { name, input: CallInput::Json(input), .. } => {
                name.len() + Value::Object(input.clone()).to_string().len()
            }
            ScriptStep::Call { name, input: CallInput::Raw(text), .. } => name.len() + text.len(),
            _ => 0,
        })
        .sum();
    Usage {
        input_tokens: seen.bytes.div_ceil(4),
        output_tokens: (written as u64).div_ceil(4).max(1),
        ..Usage::default()
    }
}

/// `*` stands for any text, also for slashes; everything else for itself.
fn glob_fits(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    rest.ends_with(last)
}

/// At most so many characters.
fn beginning(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| &text[..end])
}
