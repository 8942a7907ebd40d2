//! The tree of agents and commands as lines. Takes the session; gives one line for each that is not over, below its
//! parent, with what it does or why it waits, and what it has used; finished ones come after it, or are counted.

use decurion_protocol::view::{Ordered, SessionView, Standing, TaskView, Worker, Writing};
use decurion_protocol::{Money, Outcome, TaskId, TaskState, WaitReason};
use jiff::Timestamp;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::report;
use crate::text::{cut, one_line, width};
use crate::theme::Theme;

/// What stands between two facts.
const SEPARATOR: &str = " · ";
/// How many of those that failed in this turn stay in sight where not all fit.
const MOST_FAILED: usize = 2;
/// So many that are over are shown behind the others without being folded.
const UNFOLDED: usize = 3;

/// The status with which a provider says that it is overloaded.
const OVERLOADED: u16 = 529;

/// How the tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    pub theme: &'a Theme,
    pub columns: usize,
    /// How many lines at most.
    pub most: usize,
    pub now: Timestamp,
    /// The one that is chosen.
    pub chosen: Option<&'a TaskId>,
    /// Whether those that are over are shown too.
    pub all: bool,
}

impl Panel<'_> {
    /// The tree. Those that are over are counted at its end, or shown there where all are wanted: folded into a line until
    /// one of them is chosen. Where there are too many rows, those that matter stay in sight.
    pub fn lines(&self, view: &SessionView) -> Vec<Line<'static>> {
        crate::fault_point::pass("agents");
        let ordered = view.ordered();
        if self.all { self.whole(&ordered) } else { self.short(view, &ordered) }
    }

    /// Who is at work, and counts of all others.
    fn short(&self, view: &SessionView, ordered: &Ordered<'_>) -> Vec<Line<'static>> {
        if ordered.live.is_empty() {
            return Vec::new();
        }
        let fits = ordered.live.len() + usize::from(!ordered.over.is_empty()) <= self.most;
        let picked = if fits { ordered.live.clone() } else { self.pick(view, ordered) };
        let hidden = ordered.all().filter(|task| !picked.iter().any(|(_, shown)| is(shown, task)));
        let hidden: Vec<&TaskView> = hidden.collect();
        let mut lines = self.rows(&picked);
        if !hidden.is_empty() {
            let sum = if fits { String::new() } else { sum(ordered) };
            lines.push(self.counted(&hidden, &sum));
        }
        lines
    }

    /// The rows that are shown where not all fit: who asks, what failed in this turn, and the newest.
    fn pick<'v>(&self, view: &SessionView, ordered: &Ordered<'v>) -> Vec<(usize, &'v TaskView)> {
        let room = self.most.saturating_sub(1);
        let asks = |task: &TaskView| task.standing() == Standing::Asks;
        let is_new =
            |task: &&&TaskView| task.standing() == Standing::Failed && task.worker.ended >= view.root.began;
        let asking = ordered.live.iter().map(|(_, task)| *task).filter(|task| asks(task));
        let failed = ordered.over.iter().filter(is_new).copied().take(MOST_FAILED);
        let others = ordered.live.iter().map(|(_, task)| *task).filter(|task| !asks(task));
        let mut others: Vec<&TaskView> = others.collect();
        others.sort_by_key(|task| std::cmp::Reverse(task.worker.began));
        let picked: Vec<&TaskView> = asking.chain(failed).chain(others).take(room).collect();
        // They stand as they do where all fit.
        let is_picked = |task: &TaskView| picked.iter().any(|other| is(other, task));
        let live = ordered.live.iter().filter(|(_, task)| is_picked(task)).map(|(_, task)| (0, *task));
        live.chain(ordered.over.iter().filter(|task| is_picked(task)).map(|task| (0, *task))).collect()
    }

    /// Everybody, around the chosen one where not all fit.
    fn whole(&self, ordered: &Ordered<'_>) -> Vec<Line<'static>> {
        let over: Vec<(usize, &TaskView)> = ordered.over.iter().map(|task| (0, *task)).collect();
        let is_chosen = |task: &TaskView| self.chosen == Some(&task.record.task);
        let is_folded = over.len() > UNFOLDED
            && self.most < usize::MAX
            && !ordered.live.is_empty()
            && !over.iter().any(|(_, task)| is_chosen(task));
        let mut rows = ordered.live.clone();
        if !is_folded {
            rows.extend(&over);
        }
        let sum = sum(ordered);
        let is_cut = is_folded || rows.len() > self.most;
        let foot = usize::from(is_cut || sum.contains(SEPARATOR) && self.most < usize::MAX);
        let room = self.most.saturating_sub(foot).max(1);
        let chosen = rows.iter().position(|(_, task)| is_chosen(task)).unwrap_or(0);
        let from = if rows.len() > room { chosen.saturating_sub(room / 2).min(rows.len() - room) } else { 0 };
        let shown = &rows[from..rows.len().min(from.saturating_add(room))];
        let mut lines = self.rows(shown);
        if foot > 0 && self.most > 1 {
            let hidden = ordered.all().filter(|task| !shown.iter().any(|(_, shown)| is(shown, task)));
            lines.push(self.counted(&hidden.collect::<Vec<_>>(), &sum));
        }
        lines
    }

    fn rows(&self, rows: &[(usize, &TaskView)]) -> Vec<Line<'static>> {
        rows.iter().map(|(depth, task)| self.row(*depth, task)).collect()
    }

    /// What the lines above do not show, in a few words, and the sum of all.
    fn counted(&self, hidden: &[&TaskView], sum: &str) -> Line<'static> {
        let count = |standing: Standing| hidden.iter().filter(|task| task.standing() == standing).count();
        let (done, stopped, failed) =
            (count(Standing::Done), count(Standing::Stopped), count(Standing::Failed));
        let running = hidden.len() - done - stopped - failed;
        let counts = [(running, "more running"), (done, "done"), (failed, "failed"), (stopped, "stopped")];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
        let counts = if counts.is_empty() { String::new() } else { format!("… {}", counts.join(", ")) };
        let gap = if counts.is_empty() || sum.is_empty() { "" } else { " · " };
        let words = format!("  {counts}{gap}{sum}");
        Line::styled(cut(&words, self.columns).into_owned(), self.theme.faint)
    }

    /// One line: who, what it does, and what it has used.
    fn row(&self, depth: usize, task: &TaskView) -> Line<'static> {
        let standing = task.standing();
        let (mark, style) = mark(standing, self.theme);
        let is_chosen = self.chosen == Some(&task.record.task);
        let lead = format!("{}{} ", "  ".repeat(depth.min(8)), mark);
        let used = used(&task.worker, self.now);
        let room = self.columns.saturating_sub(width(&lead));
        // What it has used gives way first, then what it does.
        let used = if room > width(&used) + 24 { used } else { String::new() };
        let room = room.saturating_sub(width(&used) + if used.is_empty() { 0 } else { 2 });
        let doing = doing(task, self.now);
        let name_room = room.saturating_sub(width(&doing) + 2).max(room.div_ceil(2)).max(room.min(16));
        let name = cut(&name(task), name_room).into_owned();
        let doing_room = room.saturating_sub(width(&name) + 2);
        let doing = if doing_room >= 6 { cut(&doing, doing_room).into_owned() } else { String::new() };
        let filled = width(&name) + if doing.is_empty() { 0 } else { 2 + width(&doing) };
        let gap = if used.is_empty() { 0 } else { room.saturating_sub(filled) + 2 };
        let doing_style = if standing == Standing::Asks { self.theme.asking } else { self.theme.faint };
        let taken = width(&lead) + filled + gap + width(&used);
        let mut spans = vec![Span::styled(lead, style), Span::raw(name)];
        if !doing.is_empty() {
            spans.push(Span::styled(format!("  {doing}"), doing_style));
        }
        if !used.is_empty() {
            spans.push(Span::styled(format!("{}{used}", " ".repeat(gap)), self.theme.faint));
        }
        if !is_chosen {
            return Line::from(spans);
        }
        // The whole row, to the edge, in one colour.
        for span in &mut spans {
            span.style = Style::new();
        }
        spans.push(Span::raw(" ".repeat(self.columns.saturating_sub(taken))));
        Line::from(spans).style(Style::new().add_modifier(Modifier::REVERSED))
    }
}

/// Whether two are the same task.
fn is(one: &TaskView, other: &TaskView) -> bool {
    // Of one session each is in one place; there may be a thousand.
    std::ptr::eq(one, other)
}

/// What all agents have used together, where there are several: how many, tokens, cost.
fn sum(ordered: &Ordered<'_>) -> String {
    let agents: Vec<&TaskView> = ordered.all().filter(|task| task.is_agent()).collect();
    if agents.len() < 2 {
        return String::new();
    }
    let used = agents.iter().map(|task| task.worker.tokens).sum();
    let cost = agents.iter().fold(Money::default(), |sum, task| sum.plus(task.worker.cost));
    let mut words = vec![format!("{} agents", agents.len())];
    if used > 0 {
        words.push(tokens(used));
    }
    if cost.0 > 0 {
        words.push(money(cost, agents.iter().any(|task| task.worker.cost_is_bound)));
    }
    words.join(SEPARATOR)
}

/// The sign of a status.
pub fn mark(standing: Standing, theme: &Theme) -> (&'static str, Style) {
    match standing {
        Standing::Asks => ("?", theme.asking),
        Standing::Works => ("●", theme.accent),
        Standing::Waits => ("◌", theme.faint),
        Standing::Held => ("‖", theme.warning),
        Standing::Rests => ("○", theme.faint),
        Standing::Done => ("✓", theme.good),
        Standing::Stopped => ("■", theme.faint),
        Standing::Failed => ("✗", theme.error),
    }
}

/// Who it is: the kind of agent and what for, or the command; with a number where another one looks the same.
pub fn name(task: &TaskView) -> String {
    let what = one_line(&task.record.description);
    // Before the description, which may be cut.
    let number = task.twin.map(|number| format!(" #{number}")).unwrap_or_default();
    match &task.record.agent_type {
        Some(kind) if task.is_agent() => format!("{}{number} · {what}", one_line(kind)),
        _ if number.is_empty() => format!("$ {what}"),
        _ => format!("${number} · {what}"),
    }
}

/// What it does now, or why it does nothing.
pub fn doing(task: &TaskView, now: Timestamp) -> String {
    match &task.state {
        TaskState::Ended(outcome) => over(outcome),
        TaskState::Pending => "starting".to_owned(),
        TaskState::Queued { .. } => "queued".to_owned(),
        TaskState::Idle => "idle".to_owned(),
        TaskState::Waiting { reason, .. } => format!("waiting for {}", one_line(reason)),
        TaskState::Paused { reason, until, .. } => match until {
            Some(until) => format!("{}, for {}", paused(reason), span(now, *until)),
            None => paused(reason),
        },
        TaskState::Running { .. } if task.worker.asks > 0 => "waiting for you".to_owned(),
        TaskState::Running { .. } if !task.is_agent() => "running".to_owned(),
        TaskState::Running { .. } => busy(&task.worker),
    }
}

/// The result: its last message, if known, after how it ended, unless it ended well.
fn over(outcome: &Outcome) -> String {
    match (report::ending(outcome), report::says(outcome)) {
        (_, Some(said)) if Standing::after(outcome) == Standing::Done => said,
        (ending, Some(said)) => format!("{ending}: {said}"),
        (ending, None) => ending,
    }
}

/// That it is paused, and why unless a person did it.
fn paused(reason: &str) -> String {
    match one_line(reason) {
        reason if reason.starts_with("paused") => "paused".to_owned(),
        reason => format!("paused: {reason}"),
    }
}

/// What an agent does or waits for.
pub fn busy(worker: &Worker) -> String {
    match &worker.waits {
        None | Some(WaitReason::Model) => {}
        Some(reason) => return waiting(reason),
    }
    let mut calls = worker.calls();
    if let Some(first) = calls.next() {
        let more = calls.count();
        let title = one_line(first);
        return if more > 0 { format!("{title} (and {more} more)") } else { title };
    }
    match worker.writes {
        Some(Writing::Thought) => "thinking",
        Some(Writing::Text) => "writing",
        Some(Writing::Call) => "preparing a tool call",
        None => "waiting for the model",
    }
    .to_owned()
}

/// Why an agent waits, in words.
pub fn waiting(reason: &WaitReason) -> String {
    match reason {
        WaitReason::Model => "waiting for the model".to_owned(),
        WaitReason::Retry { attempt, of, delay_ms, error, rate_limited, status } => {
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            let retry = format!("retry {attempt}{of} in {}", duration(*delay_ms));
            // What is long comes last, where it may be cut.
            match status {
                Some(OVERLOADED) => format!("provider overloaded, {retry}"),
                _ if *rate_limited => format!("rate limited, {retry}"),
                _ => format!("{retry}: {}", one_line(error)),
            }
        }
        WaitReason::Turn { ahead } => format!("queued, {ahead} ahead"),
        WaitReason::Disk { error } => format!("cannot write the transcript: {}", one_line(error)),
        WaitReason::Permission { .. } => "waiting for you".to_owned(),
        WaitReason::Compaction => "compacting the conversation".to_owned(),
        WaitReason::Budget => "waiting for budget that other requests have reserved".to_owned(),
    }
}

/// What an agent has used, in short.
pub fn used(worker: &Worker, now: Timestamp) -> String {
    let mut words = Vec::new();
    if worker.tools > 0 {
        let plural = if worker.tools == 1 { "" } else { "s" };
        words.push(format!("{} tool{plural}", worker.tools));
    }
    if worker.tokens > 0 {
        words.push(tokens(worker.tokens));
    }
    if worker.cost.0 > 0 {
        words.push(money(worker.cost, worker.cost_is_bound));
    }
    if let Some(began) = worker.began {
        words.push(span(began, worker.ended.unwrap_or(now)));
    }
    words.join(" · ")
}

/// A number of tokens, short.
pub fn tokens(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} tok"),
        1_000..100_000 => format!("{}.{}k tok", count / 1_000, count % 1_000 / 100),
        100_000..1_000_000 => format!("{}k tok", count / 1_000),
        _ => format!("{}.{}M tok", count / 1_000_000, count % 1_000_000 / 100_000),
    }
}

/// An amount, with as many digits as it is worth.
pub fn money(amount: Money, is_bound: bool) -> String {
    let (dollars, bound) = (amount.dollars(), if is_bound { "at most " } else { "" });
    if dollars < 0.1 { format!("{bound}${dollars:.3}") } else { format!("{bound}${dollars:.2}") }
}

/// From one moment to another, short.
pub fn span(from: Timestamp, to: Timestamp) -> String {
    let ms = to.as_millisecond().saturating_sub(from.as_millisecond());
    duration(u64::try_from(ms).unwrap_or(0))
}

/// So many milliseconds, short.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}
