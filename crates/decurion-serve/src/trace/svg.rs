//! A timeline as a picture. Takes a [`Timeline`], gives one SVG file that any browser shows: a lane for each agent in
//! the order of the tree, with a legend and arrows, and without scripts, fonts or links to other sites.
//!
//! Everything that came from a model, a file or a person is text here, escaped where it is written.

mod scale;

use std::fmt::Write as _;

use serde_json::Value;

use self::scale::TimeScale;
use super::{Flow, FlowKind, Instant, Lane, SpanKind, TimeSpan, Timeline, duration};

const WIDTH: f64 = 1400.0;
/// Where the names end and time begins, and where time ends.
const LEFT: f64 = 310.0;
const RIGHT: f64 = WIDTH - 30.0;
/// How many agents are drawn, and how many rows of one, for calls and for commands.
const MOST_LANES: usize = 200;
const MOST_ROWS: usize = 10;
const MOST_SHELLS: usize = 4;
/// From how many agents on the rows are low.
const MANY: usize = 40;
/// How far a name is moved in for each level, and up to which level.
const INDENT: f64 = 14.0;
const MOST_INDENT: usize = 8;
/// The width of a letter of the small type, on the wide side: names must not run over their boxes.
const LETTER: f64 = 5.9;
/// The same where the widest of usual fonts must fit.
const WIDE_LETTER: f64 = 6.5;
/// What is narrower than this and touches another of its kind is not drawn again.
const HAIR: f64 = 0.5;

const STYLE: &str = "\
text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#24292f}\
.title{font-size:15px;font-weight:600}.dim{fill:#6a737d}.kind{font-weight:600}\
.name{font-size:10px;pointer-events:none}.light{fill:#fff}\
.grid{stroke:#e3e7ec}.rule{stroke:#eef1f4}\
.spawn{fill:none;stroke:#2e7d5b;stroke-width:1.2}.report{fill:none;stroke:#7b4fa3;stroke-width:1.2;stroke-dasharray:4 2}\
.unfinished{stroke:#c0392b;stroke-dasharray:3 2;stroke-width:1.2}.failed{stroke:#c0392b;stroke-width:1.4}";

impl Timeline {
    pub fn svg(&self) -> String {
        let drawing = SvgDrawing::new(self);
        drawing.draw()
    }
}

struct SvgDrawing<'a> {
    timeline: &'a Timeline,
    scale: TimeScale,
    /// The top of each lane that is drawn.
    tops: Vec<f64>,
    /// The height of a row.
    row: f64,
    bottom: f64,
    out: String,
}

impl<'a> SvgDrawing<'a> {
    fn new(timeline: &'a Timeline) -> Self {
        let shown = timeline.agents.len().min(MOST_LANES);
        let row = if shown > MANY { 13.0 } else { 20.0 };
        let mut bottom = 112.0;
        let mut tops = Vec::with_capacity(shown);
        for lane in &timeline.agents[..shown] {
            tops.push(bottom);
            let (calls, shells) = rows(lane);
            bottom += number(calls + shells) * row + if shown > MANY { 3.0 } else { 10.0 };
        }
        Self { timeline, scale: TimeScale::new(timeline, LEFT, RIGHT), tops, row, bottom, out: String::new() }
    }

    fn draw(mut self) -> String {
        let left_out = self.timeline.agents.len() - self.tops.len();
        let height = self.bottom + if left_out > 0 { 44.0 } else { 24.0 };
        self.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" width="{WIDTH}" height="{height:.0}" role="img">"#
        ));
        self.line(format_args!("<title>{}</title>", escape(&self.heading())));
        self.line(format_args!("<style>{STYLE}</style>"));
        self.line(format_args!(
            "<defs>{}{}</defs>",
            arrow_head("spawn", "#2e7d5b"),
            arrow_head("report", "#7b4fa3")
        ));
        self.line(format_args!(r##"<rect width="{WIDTH}" height="{height:.0}" fill="#ffffff"/>"##));
        self.line(format_args!(r#"<text class="title" x="20" y="30">{}</text>"#, escape(&self.heading())));
        self.legend();
        self.axis();
        self.lanes();
        self.spans();
        self.flows();
        self.marks();
        if left_out > 0 {
            let y = self.bottom + 24.0;
            self.line(format_args!(
                r#"<text class="dim" x="20" y="{y:.1}">… and {left_out} more agents, left out of the picture; the trace file has them all</text>"#
            ));
        }
        self.out.push_str("</svg>\n");
        self.out
    }

    fn line(&mut self, parts: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{parts}");
    }

    fn heading(&self) -> String {
        let timeline = self.timeline;
        let session = timeline.session.map_or_else(String::new, |id| format!(" {id}"));
        let agents = match timeline.agents.len() {
            1 => "1 agent".to_owned(),
            many => format!("{many} agents"),
        };
        format!(
            "Session{session} · {} · {agents} · {}",
            timeline.began.strftime("%Y-%m-%d %H:%M:%S UTC"),
            duration(timeline.end)
        )
    }

    /// The colours of what there is, and the two arrows.
    fn legend(&mut self) {
        let mut x = 20.0;
        let there = |kind: &SpanKind| self.timeline.spans.iter().any(|span| span.kind == *kind);
        let kinds: Vec<SpanKind> = SpanKind::ALL.into_iter().filter(there).collect();
        for kind in kinds {
            let (fill, words) = (colour(kind), words(kind));
            self.line(format_args!(
                r##"<rect x="{x:.1}" y="46" width="12" height="12" rx="2" fill="{fill}" stroke="#8894a3" stroke-width="0.5"/><text x="{:.1}" y="56">{words}</text>"##,
                x + 17.0
            ));
            x += 33.0 + length(words) * WIDE_LETTER;
        }
        for (class, words) in [("spawn", "begins"), ("report", "is notified")] {
            if self.timeline.flows.iter().any(|flow| flow.kind.word() == class) {
                self.line(format_args!(
                    r#"<path class="{class}" d="M{x:.1} 52h22" marker-end="url(#{class})"/><text x="{:.1}" y="56">{words}</text>"#,
                    x + 30.0
                ));
                x += 46.0 + length(words) * WIDE_LETTER;
            }
        }
        let note = [
            (self.timeline.spans.iter().any(|span| span.unfinished), "unfinished", "unfinished"),
            (self.timeline.spans.iter().any(is_failed), "failed", "failed"),
        ];
        for (_, class, words) in note.into_iter().filter(|(there, ..)| *there) {
            self.line(format_args!(
                r##"<rect class="{class}" x="{x:.1}" y="46" width="12" height="12" rx="2" fill="#ffffff"/><text x="{:.1}" y="56">{words}</text>"##,
                x + 17.0
            ));
            x += 33.0 + length(words) * WIDE_LETTER;
        }
    }

    fn axis(&mut self) {
        let (top, bottom) = (100.0, self.bottom);
        let mut free = LEFT - 30.0;
        for (x, at) in self.scale.ticks() {
            self.line(format_args!(
                r#"<line class="grid" x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{bottom:.1}"/>"#
            ));
            let label = duration(at);
            let half = length(&label) * LETTER / 2.0;
            if x - half > free {
                free = x + half + 6.0;
                self.line(format_args!(
                    r#"<text class="dim" x="{x:.1}" y="94" text-anchor="middle">{label}</text>"#
                ));
            }
        }
        for (from, to, length) in self.scale.folds() {
            let (x, wide) = (from, to - from);
            let label = format!("{} not drawn to scale", duration(length));
            self.line(format_args!(
                r##"<rect x="{x:.1}" y="{top}" width="{wide:.1}" height="{:.1}" fill="#f3f0e6"><title>{label}</title></rect>"##,
                bottom - top
            ));
            self.line(format_args!(
                r#"<text class="dim" x="{:.1}" y="78" text-anchor="middle">⋯ {} ⋯</text>"#,
                x + wide / 2.0,
                duration(length)
            ));
        }
    }

    /// The names at the left.
    fn lanes(&mut self) {
        for place in 0..self.tops.len() {
            let (lane, top) = (&self.timeline.agents[place], self.tops[place]);
            let indent = 20.0 + number(lane.depth.min(MOST_INDENT)) * INDENT;
            let outcome = lane.outcome.unwrap_or("unfinished");
            let room = LEFT - 16.0 - indent - length(outcome) * WIDE_LETTER - 12.0;
            let kind = fit(&lane.kind, room);
            let rest = (room - (length(&kind) + 0.5) * (WIDE_LETTER + 0.5)) * LETTER / WIDE_LETTER;
            let description = fit(&lane.description, rest);
            let middle = top + self.row / 2.0 + 4.0;
            let about = about_lane(lane);
            self.line(format_args!(
                r#"<line class="rule" x1="20" y1="{0:.1}" x2="{RIGHT}" y2="{0:.1}"/>"#,
                top - if self.row > 15.0 { 5.0 } else { 1.5 }
            ));
            self.line(format_args!(
                r#"<text x="{indent:.1}" y="{middle:.1}"><title>{}</title><tspan class="kind">{}</tspan> <tspan>{}</tspan></text>"#,
                escape(&about),
                escape(&kind),
                escape(&description)
            ));
            let fill = if outcome == "completed" { "#2e7d5b" } else { "#c0392b" };
            self.line(format_args!(
                r#"<text x="{:.1}" y="{middle:.1}" text-anchor="end" style="fill:{fill}">{outcome}</text>"#,
                LEFT - 16.0
            ));
        }
    }

    /// The middle of a track of a lane, and whether that is drawn; those that are too many are the last one.
    fn middle(&self, lane: usize, track: usize) -> Option<(f64, bool)> {
        let top = self.tops.get(lane)?;
        let lane = &self.timeline.agents[lane];
        let (calls, shells) = rows(lane);
        let (row, drawn) = match track.checked_sub(lane.tracks) {
            Some(shell) => (calls + shell.min(shells.saturating_sub(1)), shell < shells),
            None => (track.min(calls - 1), track < calls),
        };
        Some((top + (number(row) + 0.5) * self.row, drawn))
    }

    fn spans(&mut self) {
        // Outer ones first, so that inner ones are seen; the last end drawn of each row and kind.
        let mut drawn: std::collections::HashMap<(usize, usize, SpanKind), f64> =
            std::collections::HashMap::new();
        for span in &self.timeline.spans {
            let Some((middle, true)) = self.middle(span.lane, span.track) else { continue };
            let (from, to) = (self.scale.x(span.from), self.scale.x(span.to));
            let end = drawn.entry((span.lane, span.track, span.kind)).or_insert(f64::MIN);
            if to - *end < HAIR && to - from < HAIR {
                continue;
            }
            *end = to.max(from + HAIR);
            self.span(span, middle, from, (to - from).max(1.2));
        }
    }

    fn span(&mut self, span: &TimeSpan, middle: f64, x: f64, wide: f64) {
        let high = match span.kind {
            SpanKind::Run => self.row,
            SpanKind::Turn => self.row - 3.0,
            SpanKind::Model | SpanKind::Tool | SpanKind::Shell | SpanKind::Permission => self.row - 6.0,
            _ => self.row - 8.0,
        };
        let class = match (span.unfinished, is_failed(span)) {
            (true, _) => r#" class="unfinished""#,
            (_, true) => r#" class="failed""#,
            _ => "",
        };
        // A call of an agent is a wait for it: the work is in the agent's own lane.
        let waits = span.kind == SpanKind::Tool && matches!(span.name.as_str(), "Agent" | "Task");
        let fill = if waits { "#bfe0cc" } else { colour(span.kind) };
        let y = middle - high / 2.0;
        let title = escape(&about_span(span));
        self.line(format_args!(
            r#"<rect{class} x="{x:.1}" y="{y:.1}" width="{wide:.1}" height="{high:.1}" rx="2" fill="{fill}"><title>{title}</title></rect>"#
        ));
        if matches!(span.kind, SpanKind::Run | SpanKind::Turn) || self.row < 15.0 {
            return;
        }
        let title =
            span.facts.iter().find(|(name, _)| *name == "title").and_then(|(_, value)| value.as_str());
        let words = title.filter(|title| fits(title, wide)).unwrap_or(&span.name);
        if fits(words, wide) {
            let light = if is_dark(span.kind) && !waits { " light" } else { "" };
            self.line(format_args!(
                r#"<text class="name{light}" x="{:.1}" y="{:.1}">{}</text>"#,
                x + 3.0,
                middle + 3.5,
                escape(words)
            ));
        }
    }

    fn flows(&mut self) {
        let faint = if self.tops.len() > MANY { 0.3 } else { 0.85 };
        self.line(format_args!(r#"<g opacity="{faint}">"#));
        for flow in &self.timeline.flows {
            let (Some((from, _)), Some((to, _))) =
                (self.middle(flow.from.lane, flow.from.track), self.middle(flow.to.lane, flow.to.track))
            else {
                continue;
            };
            let (x1, x2) = (self.scale.x(flow.from.at), self.scale.x(flow.to.at));
            let (class, about) = (flow.kind.word(), about_flow(self.timeline, flow));
            let bend = ((to - from).abs() / 3.0).clamp(6.0, 26.0);
            let unfinished =
                if flow.unfinished { r#" style="stroke:#c0392b;stroke-dasharray:2 3""# } else { "" };
            self.line(format_args!(
                r#"<path class="{class}"{unfinished} d="M{x1:.1} {from:.1}C{:.1} {from:.1} {:.1} {to:.1} {x2:.1} {to:.1}" marker-end="url(#{class})"><title>{}</title></path>"#,
                x1 + bend,
                x2 - bend,
                escape(&about)
            ));
        }
        self.line(format_args!("</g>"));
    }

    /// Refusals and notices, which are seldom and matter.
    fn marks(&mut self) {
        let seldom = |instant: &&Instant| matches!(instant.name, "refused" | "notice");
        for instant in self.timeline.instants.iter().filter(seldom) {
            let Some((middle, _)) = self.middle(instant.lane, 0) else { continue };
            let (x, y) = (self.scale.x(instant.at), middle - self.row / 2.0);
            let fill = if instant.name == "refused" { "#c0392b" } else { "#e69f00" };
            let about = format!("{}\n{}", instant.name, facts(&instant.facts));
            self.line(format_args!(
                r#"<path d="M{x:.1} {y:.1}l-4 -6h8z" fill="{fill}"><title>{}</title></path>"#,
                escape(&about)
            ));
        }
    }
}

/// How many rows of an agent are drawn, for its calls and for its commands.
fn rows(lane: &Lane) -> (usize, usize) {
    (lane.tracks.clamp(1, MOST_ROWS), lane.shells.min(MOST_SHELLS))
}

fn is_failed(span: &TimeSpan) -> bool {
    let failed = |name: &str, value: &Value| match name {
        "is_error" => *value == Value::Bool(true),
        "outcome" => span.kind != SpanKind::Turn && value.as_str().is_some_and(|word| word != "completed"),
        "error" => true,
        _ => false,
    };
    span.facts.iter().any(|(name, value)| failed(name, value))
}

fn colour(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Run => "#f0f3f7",
        SpanKind::Queue => "#a9b3be",
        SpanKind::Turn => "#dde5ee",
        SpanKind::Model => "#3f7fc4",
        SpanKind::WaitTurn => "#f3dc55",
        SpanKind::WaitLimit => "#d1495b",
        SpanKind::WaitRetry => "#ee964b",
        SpanKind::WaitOther => "#f6c58f",
        SpanKind::Permission => "#b565a7",
        SpanKind::Compaction => "#2aa1a1",
        SpanKind::Tool => "#4a9e6b",
        SpanKind::Shell => "#8d7261",
    }
}

/// Whether light letters are read on it.
fn is_dark(kind: SpanKind) -> bool {
    use SpanKind::{Compaction, Model, Permission, Shell, Tool, WaitLimit};
    matches!(kind, Compaction | Model | Permission | Shell | Tool | WaitLimit)
}

fn words(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Run => "run",
        SpanKind::Queue => "waits for a place",
        SpanKind::Turn => "turn",
        SpanKind::Model => "model",
        SpanKind::WaitTurn => "waits for the provider",
        SpanKind::WaitLimit => "rate limit",
        SpanKind::WaitRetry => "tries again",
        SpanKind::WaitOther => "several waits",
        SpanKind::Permission => "asks a person",
        SpanKind::Compaction => "compaction",
        SpanKind::Tool => "tool",
        SpanKind::Shell => "background command",
    }
}

fn about_lane(lane: &Lane) -> String {
    format!("{} {}\n{}\n{}", lane.kind, lane.description, lane.path, lane.outcome.unwrap_or("unfinished"))
}

fn about_span(span: &TimeSpan) -> String {
    let unfinished = if span.unfinished { " (unfinished)" } else { "" };
    let took = duration(span.to - span.from);
    let head =
        format!("{}: {} — {took} from {}{unfinished}", words(span.kind), span.name, duration(span.from));
    if span.facts.is_empty() { head } else { format!("{head}\n{}", facts(&span.facts)) }
}

fn about_flow(timeline: &Timeline, flow: &Flow) -> String {
    let name = |lane: usize| timeline.agents.get(lane).map_or("", |lane| lane.kind.as_str());
    let (from, to) = (name(flow.from.lane), name(flow.to.lane));
    let words = match flow.kind {
        FlowKind::Spawn => format!("{from} begins {to}"),
        FlowKind::Report => format!("{to} is notified of the end of {from}"),
    };
    if flow.unfinished { format!("{words} (not on record)") } else { words }
}

fn facts(facts: &super::SpanFacts) -> String {
    let one = |(name, value): &(&'static str, Value)| match value {
        Value::String(text) => format!("{name}: {text}"),
        other => format!("{name}: {other}"),
    };
    facts.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn arrow_head(id: &str, colour: &str) -> String {
    format!(
        r#"<marker id="{id}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>"#
    )
}

/// Text as XML takes it: marked-up characters named, those that no XML may hold left out.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push('\n'),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => {}
            other => out.push(other),
        }
    }
    out
}

/// As much of a text as fits so many pixels.
fn fit(text: &str, room: f64) -> String {
    if length(text) * LETTER <= room {
        return text.to_owned();
    }
    let mut cut = String::new();
    for character in text.chars() {
        if (length(&cut) + 2.0) * LETTER > room {
            break;
        }
        cut.push(character);
    }
    if cut.is_empty() { cut } else { cut + "…" }
}

fn fits(text: &str, wide: f64) -> bool {
    length(text) * (LETTER - 0.3) + 6.0 <= wide
}

fn length(text: &str) -> f64 {
    number(text.chars().count())
}

#[allow(clippy::cast_precision_loss)] // far below what a float counts exactly
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::{escape, fit};

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            escape("</text><script>\"'&\u{1b}\u{0}\u{ffff}é"),
            "&lt;/text&gt;&lt;script&gt;&quot;&#39;&amp;é"
        );
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        assert_eq!(fit("Look at the files", 200.0), "Look at the files");
        assert_eq!(fit("Look at the files", 60.0), "Look at t…");
        assert_eq!(fit("Look", 1.0), "");
    }
}
