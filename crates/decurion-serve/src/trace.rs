//! Where the time of a session went. Takes its recorded events in order, gives a timeline of every agent below the
//! root, and that as a trace-event file (Perfetto, Chrome) or as a picture.
//!
//! A fold like any other reader: sessions that ended, crashed or still run are treated alike. A span without a recorded
//! end ends at the last known time and is marked.

mod chart;
mod facts;
mod fold;
mod json;
mod svg;

use decurion_protocol::{AgentId, SessionId, WaitKind};
use jiff::Timestamp;
use serde_json::Value;

pub use chart::{Chart, ChartCell, ChartRow};
pub use fold::TimelineFold;

/// A session as spans on tracks. Times are microseconds after the first record.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    pub session: Option<SessionId>,
    /// The date of its first record.
    pub began: Timestamp,
    /// The last known time.
    pub end: u64,
    /// Everyone who worked, each before those it began.
    pub agents: Vec<Lane>,
    /// What they did, in the order it began; of two that begin together the outer one first.
    pub spans: Vec<TimeSpan>,
    /// Which agent started which, and which agent was notified of which end.
    pub flows: Vec<Flow>,
    /// What has no duration.
    pub instants: Vec<Instant>,
    /// What was used so far, whenever that changed.
    pub counters: Vec<Counter>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Which; none is the root.
    pub agent: Option<AgentId>,
    /// The way to it from the root, `main/<agent>/…`.
    pub path: String,
    /// The name of its definition.
    pub kind: String,
    /// Its purpose, in a few words.
    pub description: String,
    /// How deep it is: 0 for the root.
    pub depth: usize,
    /// How it ended, in a word; none where that is not known.
    pub outcome: Option<&'static str>,
    /// How many tracks its own work takes: one, and more where calls ran side by side.
    pub tracks: usize,
    /// How many tracks its background commands take.
    pub shells: usize,
}

/// What someone did for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSpan {
    /// Who, by the place among the agents.
    pub lane: usize,
    /// On which of its tracks, from 0.
    pub track: usize,
    /// What kind of thing.
    pub kind: SpanKind,
    /// What, in a word or a line.
    pub name: String,
    pub from: u64,
    pub to: u64,
    pub facts: SpanFacts,
    /// Whether it has no end on record.
    pub unfinished: bool,
}

/// More about something: short values under short names.
pub type SpanFacts = Vec<(&'static str, Value)>;

/// The kinds of things that take time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpanKind {
    /// One run of an agent, from its prompt to its ending.
    Run,
    /// Waiting for a place among those that run.
    Queue,
    /// One request and the calls it led to.
    Turn,
    /// A request, until its reply was whole.
    Model,
    /// Part of that: others used the provider.
    WaitTurn,
    /// Part of that: the provider's limit.
    WaitLimit,
    /// Part of that: a request that failed is tried again.
    WaitRetry,
    /// Part of that: several of these.
    WaitOther,
    /// A question to a person.
    Permission,
    /// The conversation was shortened.
    Compaction,
    /// A call of a tool.
    Tool,
    /// A command in the background.
    Shell,
}

impl SpanKind {
    /// Every kind, in the order a legend has them.
    pub const ALL: [Self; 12] = [
        Self::Run,
        Self::Queue,
        Self::Turn,
        Self::Model,
        Self::WaitTurn,
        Self::WaitLimit,
        Self::WaitRetry,
        Self::WaitOther,
        Self::Permission,
        Self::Compaction,
        Self::Tool,
        Self::Shell,
    ];

    /// The word for it: the category of a trace event.
    pub fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Queue => "queue",
            Self::Turn => "turn",
            Self::Model => "model",
            Self::WaitTurn => "provider",
            Self::WaitLimit => "rate_limit",
            Self::WaitRetry => "retry",
            Self::WaitOther => "wait",
            Self::Permission => "permission",
            Self::Compaction => "compaction",
            Self::Tool => "tool",
            Self::Shell => "shell",
        }
    }
}

impl From<WaitKind> for SpanKind {
    fn from(kind: WaitKind) -> Self {
        match kind {
            WaitKind::Turn => Self::WaitTurn,
            WaitKind::Limit => Self::WaitLimit,
            WaitKind::Retry => Self::WaitRetry,
            WaitKind::Other => Self::WaitOther,
        }
    }
}

/// An arrow between two moments of two tracks.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// What it stands for.
    pub kind: FlowKind,
    pub from: Moment,
    /// To where; never earlier.
    pub to: Moment,
    /// Whether its end is not on record, and was put at the last known time.
    pub unfinished: bool,
}

/// What an arrow stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// A call began an agent or a command.
    Spawn,
    /// Its end was delivered.
    Report,
}

impl FlowKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::Report => "report",
        }
    }
}

/// A moment on a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub lane: usize,
    /// Which of its tracks.
    pub track: usize,
    pub at: u64,
}

/// Something without a duration, on an agent's first track.
#[derive(Clone, Debug, PartialEq)]
pub struct Instant {
    pub lane: usize,
    pub at: u64,
    pub name: &'static str,
    pub facts: SpanFacts,
}

/// What an agent has used up to a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    pub lane: usize,
    pub at: u64,
    /// Tokens read at full price.
    pub input: u64,
    pub output: u64,
    /// Tokens read from the provider's cache.
    pub cache_read: u64,
    pub cache_write: u64,
    pub cost: f64,
}

/// Microseconds as people read them.
fn duration(microseconds: u64) -> String {
    match microseconds {
        0 => "0".to_owned(),
        1..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => rounded(microseconds, 1_000, "ms"),
        1_000_000..60_000_000 => rounded(microseconds, 1_000_000, "s"),
        60_000_000..3_600_000_000 => {
            let seconds = microseconds / 1_000_000;
            format!("{} min {} s", seconds / 60, seconds % 60)
        }
        _ => {
            let minutes = microseconds / 60_000_000;
            format!("{} h {} min", minutes / 60, minutes % 60)
        }
    }
}

/// A quantity with one digit after the point where it is small.
fn rounded(amount: u64, unit: u64, name: &str) -> String {
    let tenths = (amount * 10 + unit / 2) / unit;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {name}"),
        (whole @ 0..10, rest) => format!("{whole}.{rest} {name}"),
        (whole, rest) => format!("{} {name}", whole + u64::from(rest >= 5)),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_are_short() {
        #[rustfmt::skip]
        let rows = [
            (0, "0"), (999, "999 µs"), (1_000, "1 ms"), (1_499, "1.5 ms"), (12_600, "13 ms"),
            (1_084_000, "1.1 s"), (59_900_000, "60 s"), (61_000_000, "1 min 1 s"), (7_260_000_000, "2 h 1 min"),
        ];
        for (microseconds, words) in rows {
            assert_eq!(duration(microseconds), words);
        }
    }
}
