//! The lines at the bottom. Takes the session and the output of a person's own status line; gives model, mode, cost,
//! context and the number of working agents, as much of it as fits, the most important first.

use std::fmt;
use std::sync::Arc;

use decurion_protocol::view::SessionView;
use decurion_protocol::{Mode, Money};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use serde_json::{Value, json};

use super::agents::{money, tokens};
use crate::ansi;
use crate::links::LinkBase;
use crate::terminal::Notices;
use crate::text::{cut, cut_line, one_line, width};
use crate::theme::{Shades, Theme};

/// What is known besides the session.
#[derive(Clone, Debug, Default)]
pub struct StatusFacts {
    /// The model that will answer, before one has.
    pub model: Option<String>,
    pub windows: Windows,
    /// Which sandbox is in force.
    pub sandbox: String,
    /// A word for the moment, in place of everything else.
    pub hint: Option<String>,
    /// What stands before everything else.
    pub lead: String,
    /// In whose process the session is.
    pub home: SessionHome,
    /// Whether the mode that asks about nothing can be chosen.
    pub can_bypass: bool,
    /// Whether nothing on the screen is to move by itself but numbers.
    pub reduced_motion: bool,
    /// Whether the person has configured a status line.
    pub has_own: bool,
    pub own: OwnStatusLine,
    /// What links are relative to; none where the terminal may not understand them.
    pub links: Option<LinkBase>,
    /// How to notify a person who looks elsewhere.
    pub notices: Notices,
    /// The version of the program.
    pub version: String,
    /// Who answers, and where that is.
    pub provider: String,
    /// The colours for the terminal's background.
    pub background: Shades,
}

/// How many tokens a model can take, by its whole name.
#[derive(Clone, Default)]
pub struct Windows(Option<Arc<WindowOf>>);

type WindowOf = dyn Fn(&str) -> u64 + Send + Sync;

impl Windows {
    pub fn new(of: impl Fn(&str) -> u64 + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }

    pub(crate) fn of(&self, model: &str) -> Option<u64> {
        self.0.as_ref().map(|of| of(model)).filter(|window| *window > 0)
    }
}

impl fmt::Debug for Windows {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Windows")
    }
}

/// A person's own status line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnStatusLine {
    /// Not there, or not yet.
    #[default]
    Nothing,
    Says(String),
    /// Why it says nothing.
    Failed(String),
}

/// In whose process a session is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionHome {
    /// Ours, and it ends with us.
    #[default]
    Ours,
    /// Ours, and it can continue without a terminal.
    Kept,
    /// Another's: it continues when we leave.
    Others,
}

impl StatusFacts {
    /// Whether the session continues when we leave.
    pub fn attached(&self) -> bool {
        self.home == SessionHome::Others
    }

    /// How many tokens the session's model can take.
    fn window(&self, view: &SessionView) -> Option<u64> {
        self.windows.of(view.root.model.as_deref()?)
    }
}

/// How many lines a person's own status may take.
const OWN_LINES: usize = 3;
/// And at most which part of the rows: a low terminal has to show the prompt too.
const OWN_PART: usize = 4;

/// The line, or a person's own in place of its facts, on a terminal of this size. Facts that a person must know before
/// sending a prompt are always shown: that calls are not asked about, which agents work, and what waits.
pub fn lines(
    view: &SessionView,
    known: &StatusFacts,
    theme: &Theme,
    (columns, rows): (usize, usize),
) -> Vec<Line<'static>> {
    let usual = || line(view, known, theme, columns);
    if known.hint.is_some() || !view.questions.is_empty() {
        return vec![usual()];
    }
    match &known.own {
        OwnStatusLine::Nothing => vec![usual()],
        OwnStatusLine::Failed(reason) => {
            let words = format!("status line: {}", one_line(reason));
            vec![Line::styled(cut(&words, columns).into_owned(), theme.faint), usual()]
        }
        OwnStatusLine::Says(own) => {
            let most = OWN_LINES.min(rows / OWN_PART).max(1);
            let own = ansi::lines(own, theme, theme.faint, most);
            let mut lines: Vec<Line<'static>> = own.into_iter().map(|line| cut_line(line, columns)).collect();
            let duties = duties(view, known, theme, view.mode != Mode::Default);
            if !duties.is_empty() {
                lines.push(fitting(duties, theme, columns));
            }
            lines
        }
    }
}

/// The input of a person's own status line.
pub fn facts(view: &SessionView, known: &StatusFacts) -> Value {
    let counts = view.standings();
    let info = view.info.as_ref();
    json!({
        "session_id": info.map(|info| info.session.to_string()),
        "cwd": info.map(|info| info.cwd.to_string()),
        "workspace": {"current_dir": info.map(|info| info.cwd.to_string())},
        "model": {"id": view.root.model, "display_name": view.root.model},
        "permission_mode": view.mode.to_string(),
        "cost": {"total_cost_usd": view.cost().dollars()},
        "context": {"tokens": view.root.tokens, "window": known.window(view)},
        "agents": {"working": counts.working, "waiting": counts.waiting, "asking": counts.asking},
        "worktree": view.root.worktree,
        "sandbox": known.sandbox,
    })
}

/// What each agent has cost, the dearest first.
pub fn costs(view: &SessionView) -> String {
    let is_used = view.root.tokens > 0 || view.tasks().iter().any(|task| task.worker.tokens > 0);
    let total = match view.cost() {
        Money(0) if is_used => {
            "no price is known for this model (set models.catalogue.NAME.prices)".to_owned()
        }
        cost => format!("this session has cost {}", money(cost, view.cost_is_bound())),
    };
    let of = |cost: Money, is_bound: bool, used: u64| match cost {
        Money(0) if used > 0 => "no price".to_owned(),
        cost => money(cost, is_bound),
    };
    let root = &view.root;
    let main = of(root.cost, root.cost_is_bound, root.tokens);
    let mut lines = vec![total, format!("  {main:>8}  {:>10}  the main agent", tokens(root.tokens))];
    let mut tasks: Vec<_> = view.tasks().iter().filter(|task| task.is_agent()).collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(task.worker.cost.0));
    lines.extend(tasks.iter().take(20).map(|task| {
        let worker = &task.worker;
        let (cost, used) = (of(worker.cost, worker.cost_is_bound, worker.tokens), tokens(worker.tokens));
        format!("  {cost:>8}  {used:>10}  {}", super::agents::name(task))
    }));
    lines.join("\n")
}

pub fn line(view: &SessionView, known: &StatusFacts, theme: &Theme, columns: usize) -> Line<'static> {
    crate::fault_point::pass("status");
    if let Some(hint) = &known.hint {
        return Line::styled(cut(&one_line(hint), columns).into_owned(), theme.warning);
    }
    let mut parts = duties(view, known, theme, true);
    parts.extend(others(view, known, theme));
    fitting(parts, theme, columns)
}

/// As many of these as fit, those that matter most first.
fn fitting(parts: Vec<StatusPart>, theme: &Theme, columns: usize) -> Line<'static> {
    let mut by_weight: Vec<usize> = (0..parts.len()).collect();
    by_weight.sort_by_key(|at| parts[*at].matters);
    let (mut used, mut is_shown) = (0, vec![false; parts.len()]);
    for at in by_weight {
        let wide = width(&parts[at].words) + if used == 0 { 0 } else { 3 };
        if used + wide <= columns {
            used += wide;
            is_shown[at] = true;
        }
    }
    let mut spans: Vec<Span<'static>> = Vec::new();
    for (part, _) in parts.into_iter().zip(is_shown).filter(|(_, is_shown)| *is_shown) {
        if !spans.is_empty() {
            spans.push(Span::styled(" · ", theme.faint));
        }
        spans.push(Span::styled(part.words, part.style));
    }
    Line::from(spans)
}

/// A part of the line.
struct StatusPart {
    words: String,
    style: Style,
    matters: Matters,
}

/// The priority of a part: what needs an answer, then the permission mode, then the state of the work, then the rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Matters {
    Asked,
    Mode,
    Sandbox,
    Work,
    Fact,
}

fn part(words: impl Into<String>, style: Style, matters: Matters) -> StatusPart {
    StatusPart { words: words.into(), style, matters }
}

/// The parts that are shown even with a person's own status line, the most important first.
fn duties(view: &SessionView, known: &StatusFacts, theme: &Theme, with_mode: bool) -> Vec<StatusPart> {
    let mut parts = Vec::new();
    let counts = view.standings();
    let asking = view.questions.len();
    if !known.lead.is_empty() {
        parts.push(part(known.lead.clone(), theme.accent, Matters::Asked));
    }
    if asking > 0 {
        let words = if asking == 1 { "1 question".to_owned() } else { format!("{asking} questions") };
        parts.push(part(words, theme.asking, Matters::Asked));
    }
    if with_mode {
        parts.push(part(mode_words(view.mode), mode_style(view.mode, theme), Matters::Mode));
    }
    if counts.working + counts.waiting > 0 {
        let mut words = format!("{} working", counts.working);
        if counts.waiting > 0 {
            words.push_str(&format!(", {} waiting", counts.waiting));
        }
        parts.push(part(words, theme.accent, Matters::Work));
    }
    if view.queued > 0 {
        parts.push(part(format!("{} queued", view.queued), theme.accent, Matters::Work));
    }
    parts
}

/// The facts, which a person may want told in other words.
fn others(view: &SessionView, known: &StatusFacts, theme: &Theme) -> Vec<StatusPart> {
    let mut parts = Vec::new();
    if let Some(model) = view.root.model.as_ref().or(known.model.as_ref()) {
        let name = model.rsplit('/').next().unwrap_or(model);
        parts.push(part(one_line(name), theme.faint, Matters::Fact));
    }
    if view.root.tokens > 0 {
        let share = known.window(view).map(|window| view.root.tokens * 100 / window);
        let words = share.map_or_else(|| tokens(view.root.tokens), |share| format!("{share}% context"));
        let style = if share.is_some_and(|share| share >= 80) { theme.warning } else { theme.faint };
        parts.push(part(words, style, Matters::Fact));
    }
    let cost = view.cost();
    if cost.0 > 0 {
        parts.push(part(money(cost, view.cost_is_bound()), theme.faint, Matters::Fact));
    }
    if let Some(branch) = &view.root.worktree {
        parts.push(part(format!("worktree {}", one_line(branch)), theme.faint, Matters::Fact));
    }
    if !known.sandbox.is_empty() {
        let words = format!("sandbox: {}", one_line(&known.sandbox));
        parts.push(part(words, theme.faint, Matters::Sandbox));
    }
    parts
}

/// A mode in words.
pub fn mode_words(mode: Mode) -> &'static str {
    match mode {
        Mode::Default => "ask before acting",
        Mode::AcceptEdits => "auto-accept edits",
        Mode::Plan => "plan mode",
        Mode::BypassPermissions => "⚠ bypass permissions",
        Mode::DontAsk => "deny without asking",
        Mode::Bubble => "ask here for all agents",
    }
}

fn mode_style(mode: Mode, theme: &Theme) -> Style {
    match mode {
        Mode::Default | Mode::Bubble => theme.faint,
        Mode::Plan => theme.accent,
        Mode::AcceptEdits => theme.good,
        Mode::BypassPermissions | Mode::DontAsk => theme.warning,
    }
}
