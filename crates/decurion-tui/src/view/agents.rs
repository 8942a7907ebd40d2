//! The tree of agents and commands as lines. Takes the session as it stands; gives one line for each that is not over,
//! below whoever began it, with what it does or why it waits, and what it has used.

use decurion_protocol::view::{SessionView, Standing, TaskView, Worker, Writing};
use decurion_protocol::{Money, TaskId, TaskState, WaitReason};
use jiff::Timestamp;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use crate::text::{cut, one_line, width};
use crate::theme::Theme;

/// The status with which a provider says that it is overloaded.
const OVERLOADED: u16 = 529;

/// How the tree is shown.
#[derive(Clone, Copy, Debug)]
pub struct Panel<'a> {
    /// The colours.
    pub theme: &'a Theme,
    /// How wide.
    pub columns: usize,
    /// How many lines at most.
    pub most: usize,
    /// The time.
    pub now: Timestamp,
    /// The one that is chosen.
    pub chosen: Option<&'a TaskId>,
    /// Whether those that are over are shown too.
    pub all: bool,
}

impl Panel<'_> {
    /// The tree. Those that are over are counted at its end, unless all are wanted; where there are too many, those that
    /// ask stay in sight.
    pub fn lines(&self, view: &SessionView) -> Vec<Line<'static>> {
        crate::fuse::pass("agents");
        let rows = view.rows();
        let is_over = |task: &TaskView| task.state.is_ended();
        let shown: Vec<(usize, &TaskView)> =
            rows.iter().filter(|(_, task)| self.all || !is_over(task)).copied().collect();
        let over = rows.len() - shown.len();
        let counted = usize::from(over > 0);
        let fits = shown.len() + counted <= self.most;
        let room = if fits { shown.len() } else { self.most.saturating_sub(1) };
        let picked = self.pick(&shown, room);
        let mut lines: Vec<Line<'static>> =
            picked.iter().map(|(depth, task)| self.row(*depth, task)).collect();
        let hidden = shown.len() - picked.len();
        if (over > 0 || hidden > 0) && !(rows.is_empty() || shown.is_empty() && !self.all) {
            lines.push(self.rest(&rows, hidden));
        }
        lines
    }

    /// The rows that are shown where not all fit: around the chosen one, or from the beginning, and whoever asks.
    fn pick<'v>(&self, rows: &[(usize, &'v TaskView)], room: usize) -> Vec<(usize, &'v TaskView)> {
        if rows.len() <= room {
            return rows.to_vec();
        }
        let chosen =
            self.chosen.and_then(|chosen| rows.iter().position(|(_, task)| task.record.task == *chosen));
        if let Some(at) = chosen {
            let from = at.saturating_sub(room / 2).min(rows.len() - room);
            return rows[from..from + room].to_vec();
        }
        let asks = |task: &TaskView| task.standing() == Standing::Asks;
        let asking = rows.iter().filter(|(_, task)| asks(task)).count().min(room);
        let mut others = room - asking;
        let mut asked = asking;
        let keep = rows.iter().filter(|(_, task)| {
            let left = if asks(task) { &mut asked } else { &mut others };
            let fits = *left > 0;
            *left = left.saturating_sub(1);
            fits
        });
        keep.copied().collect()
    }

    /// What the lines above do not show, in a few words.
    fn rest(&self, rows: &[(usize, &TaskView)], hidden: usize) -> Line<'static> {
        let count = |standing: Standing| rows.iter().filter(|(_, task)| task.standing() == standing).count();
        let mut words = Vec::new();
        if hidden > 0 {
            words.push(if self.all { format!("{hidden} more") } else { format!("{hidden} more running") });
        }
        let (done, failed) = (count(Standing::Done), count(Standing::Failed));
        if !self.all && done > 0 {
            words.push(format!("{done} done"));
        }
        if !self.all && failed > 0 {
            words.push(format!("{failed} failed"));
        }
        Line::styled(cut(&format!("  … {}", words.join(", ")), self.columns).into_owned(), self.theme.faint)
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
        let room = room.saturating_sub(width(&used) + usize::from(!used.is_empty()));
        let doing = doing(task, self.now);
        let name_room = room.saturating_sub(width(&doing) + 2).max(room.div_ceil(2)).max(room.min(16));
        let name = cut(&name(task), name_room).into_owned();
        let doing_room = room.saturating_sub(width(&name) + 2);
        let doing = if doing_room >= 6 { cut(&doing, doing_room).into_owned() } else { String::new() };
        let filled = width(&name) + if doing.is_empty() { 0 } else { 2 + width(&doing) };
        let gap = if used.is_empty() { 0 } else { room.saturating_sub(filled) + 1 };
        let weight = if is_chosen { Modifier::REVERSED } else { Modifier::empty() };
        let doing_style = if standing == Standing::Asks { self.theme.asking } else { self.theme.faint };
        let mut spans =
            vec![Span::styled(lead, style), Span::styled(name, Style::new().add_modifier(weight))];
        if !doing.is_empty() {
            spans.push(Span::styled(format!("  {doing}"), doing_style));
        }
        if !used.is_empty() {
            spans.push(Span::styled(format!("{}{used}", " ".repeat(gap)), self.theme.faint));
        }
        Line::from(spans)
    }
}

/// The sign of where somebody stands.
pub fn mark(standing: Standing, theme: &Theme) -> (&'static str, Style) {
    match standing {
        Standing::Asks => ("?", theme.asking),
        Standing::Works => ("●", theme.accent),
        Standing::Waits => ("◌", theme.faint),
        Standing::Held => ("‖", theme.warning),
        Standing::Rests => ("○", theme.faint),
        Standing::Done => ("✓", theme.good),
        Standing::Failed => ("✗", theme.error),
    }
}

/// Who it is: the kind of agent and what for, or the command.
pub fn name(task: &TaskView) -> String {
    let what = one_line(&task.record.description);
    match &task.record.agent_type {
        Some(kind) if task.is_agent() => format!("{} · {what}", one_line(kind)),
        _ => format!("$ {what}"),
    }
}

/// What it does now, or why it does nothing.
pub fn doing(task: &TaskView, now: Timestamp) -> String {
    match &task.state {
        TaskState::Ended(outcome) => outcome.word().replace('_', " "),
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

/// That it is paused, and why unless a person did it.
fn paused(reason: &str) -> String {
    match one_line(reason) {
        reason if reason.starts_with("paused") => "paused".to_owned(),
        reason => format!("paused: {reason}"),
    }
}

/// What somebody at work does or waits for.
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

/// Why somebody waits, in words.
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

/// What somebody has used, in short.
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
