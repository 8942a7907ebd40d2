//! Items of a conversation as lines. Takes an item, a width and whether all of it is wanted; gives the lines.

use decurion_protocol::choice::ASK;
use decurion_protocol::outcome::limit_reached;
use decurion_protocol::{Limits, Outcome};
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};

use super::{agents, markdown, todos};
use crate::conversation::{Called, ConversationItem, Greeting, SHELL};
use crate::report::{FinishedTask, SHELL_TOOL, first_sentence};
use crate::text::{cut, one_line, plain, visible, width, wrap};
use crate::theme::Theme;

/// The name of the program.
const NAME: &str = "Decurion";
/// How many lines of a call's output are shown folded.
const FOLDED: usize = 3;
/// The same of a command that a person ran.
const FOLDED_OWN: usize = 16;
/// Shown for a refusal without a reason.
const DECLINED: &str = "you declined";
/// A prompt of more lines than this, such as a long paste, is folded.
const FOLDED_PROMPT: usize = 20;
/// How many lines of a change are shown folded.
const FOLDED_CHANGE: usize = 24;

/// How many steps of a list are shown folded.
const FOLDED_TODOS: usize = 12;

/// How much of an item is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemFolding {
    /// What a reader needs at a glance.
    Folded,
    /// The same, for a person with lines instead of keys.
    Printed,
    /// Everything that is kept.
    Open,
}

impl ItemFolding {
    fn is_folded(self) -> bool {
        self != Self::Open
    }

    /// How what is folded is seen.
    fn hint(self) -> &'static str {
        match self {
            Self::Folded => " (ctrl+o to see)",
            Self::Printed => " (/transcript to see)",
            Self::Open => "",
        }
    }
}

/// The lines of an item, with an empty one above it where it stands apart.
pub fn lines(
    item: &ConversationItem,
    theme: &Theme,
    columns: usize,
    fold: ItemFolding,
) -> Vec<Line<'static>> {
    crate::fault_point::pass("item");
    let mut lines = match item {
        ConversationItem::Greeting(greeting) => self::greeting(greeting, theme, columns),
        ConversationItem::Prompt(text) => prompt(text, theme, columns, fold),
        ConversationItem::Said { text, goes_on } => said(text, *goes_on, theme, columns),
        ConversationItem::Thought(text) => thought(text, theme, columns, fold),
        ConversationItem::Call(called) => call(called, theme, columns, fold),
        ConversationItem::Plan { text, rejected } => plan(text, rejected.as_deref(), theme, columns),
        ConversationItem::Finished(finished) => self::finished(finished, theme, columns, fold),
        ConversationItem::Notice { level, text } => notice(level, text, theme, columns),
        ConversationItem::Shortened { tokens } => {
            let words = format!("── conversation compacted here ({tokens} tokens) ──");
            vec![Line::styled(cut(&words, columns).into_owned(), theme.faint)]
        }
        ConversationItem::Ended(outcome) => ended(outcome, theme, columns),
    };
    let stands_apart = !matches!(item, ConversationItem::Thought(_) | ConversationItem::Notice { .. });
    if stands_apart && !lines.is_empty() {
        lines.insert(0, Line::default());
    }
    lines
}

/// Lines with a mark before the first and room for it before the rest.
fn marked(mark: Span<'static>, lines: Vec<Line<'static>>) -> Vec<Line<'static>> {
    let room = " ".repeat(mark.width());
    let mut mark = Some(mark);
    lines
        .into_iter()
        .map(|line| {
            if mark.is_none() && line.width() == 0 {
                return line;
            }
            let mut spans = vec![mark.take().unwrap_or_else(|| Span::raw(room.clone()))];
            spans.extend(line.spans);
            Line { spans, style: line.style, alignment: None }
        })
        .collect()
}

fn greeting(greeting: &Greeting, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let Greeting { version, model, folder } = greeting;
    let faint = |words: String| wrap(Line::styled(words, theme.faint), columns, "");
    let about = format!(" {version} · {}", one_line(model));
    let about = cut(&about, columns.saturating_sub(NAME.len())).into_owned();
    let mut lines =
        vec![Line::from(vec![Span::styled(NAME, theme.accent), Span::styled(about, theme.faint)])];
    lines.extend(faint(one_line(folder)));
    lines.extend(faint("? for help · try: explain this repository".to_owned()));
    lines
}

fn prompt(text: &str, theme: &Theme, columns: usize, fold: ItemFolding) -> Vec<Line<'static>> {
    let text = visible(text);
    let all = text.lines().count();
    let most = if fold.is_folded() && all > FOLDED_PROMPT { FOLDED_PROMPT / 2 } else { all };
    let lines = text.lines().take(most);
    let lines = lines.flat_map(|line| wrap(Line::styled(line.to_owned(), theme.prompt), room(columns), ""));
    let mut lines: Vec<Line<'static>> = lines.collect();
    if all > most {
        let words = format!("… {} more lines{}", all - most, fold.hint());
        lines.push(Line::styled(cut(&words, room(columns)).into_owned(), theme.faint));
    }
    marked(Span::styled("> ", theme.accent), lines)
}

fn said(text: &str, goes_on: bool, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let mark = if goes_on { Span::raw("  ") } else { Span::styled("● ", theme.accent) };
    marked(mark, markdown::lines(text, theme, room(columns)))
}

/// The end of what is being said: the last of the lines that it would have were it finished now, so many at most.
pub fn saying(text: &str, goes_on: bool, theme: &Theme, columns: usize, most: usize) -> Vec<Line<'static>> {
    let lines = markdown::tail(text, theme, room(columns), most);
    let is_whole = lines.len() < most;
    let mark = if goes_on || !is_whole { Span::raw("  ") } else { Span::styled("● ", theme.accent) };
    let mut lines = marked(mark, lines);
    if is_whole && !lines.is_empty() {
        lines.insert(0, Line::default());
    }
    lines
}

fn room(columns: usize) -> usize {
    columns.saturating_sub(2).max(1)
}

fn thought(text: &str, theme: &Theme, columns: usize, fold: ItemFolding) -> Vec<Line<'static>> {
    if fold.is_folded() {
        return Vec::new();
    }
    let text = plain(text);
    let style = theme.comment;
    let lines = text.lines().flat_map(|line| wrap(Line::styled(line.to_owned(), style), room(columns), ""));
    marked(Span::styled("∴ ", theme.faint), lines.collect())
}

fn call(called: &Called, theme: &Theme, columns: usize, fold: ItemFolding) -> Vec<Line<'static>> {
    // Told apart without colours too.
    let mark = match (called.interrupted, called.failed) {
        (true, _) => Span::styled("■ ", theme.warning),
        (false, true) => Span::styled("✗ ", theme.error),
        (false, false) => Span::styled("● ", theme.good),
    };
    let counts = called.change.as_ref().map(|change| change.counts(theme)).unwrap_or_default();
    let taken: usize = counts.iter().map(Span::width).sum::<usize>() + usize::from(!counts.is_empty());
    let title = one_line(&called.title);
    let title = match fold {
        ItemFolding::Folded | ItemFolding::Printed => {
            cut(&title, room(columns).saturating_sub(taken).max(8)).into_owned()
        }
        ItemFolding::Open => title,
    };
    let mut spans = vec![Span::raw(title)];
    if !counts.is_empty() {
        spans.push(Span::raw(" "));
        spans.extend(counts);
    }
    let mut lines = marked(mark, wrap(Line::from(spans), room(columns), ""));
    lines.extend(result(called, theme, columns, fold));
    lines
}

/// The result of a call, below its title.
fn result(called: &Called, theme: &Theme, columns: usize, fold: ItemFolding) -> Vec<Line<'static>> {
    let room = columns.saturating_sub(4).max(1);
    let mark = Span::styled("  └ ", theme.faint);
    if let Some(change) = &called.change {
        let most = if fold.is_folded() { FOLDED_CHANGE } else { usize::MAX };
        return marked(Span::raw("    "), change.lines(theme, room, most, fold.hint()));
    }
    if let Some(todos) = &called.todos {
        let most = if fold.is_folded() { FOLDED_TODOS } else { usize::MAX };
        return marked(mark, todos::lines(todos, theme, room, most));
    }
    let style = if called.failed { theme.error } else { theme.faint };
    let in_short = summary(called).filter(|_| fold.is_folded() && !called.failed);
    if let Some(words) = in_short {
        return marked(mark, vec![Line::styled(cut(&words, room).into_owned(), style)]);
    }
    let text = plain(&called.output);
    let all: Vec<&str> = text.trim_end().lines().collect();
    // What a person has chosen is theirs to read again.
    if called.tool == ASK && !called.failed {
        let lines = all.iter().flat_map(|line| wrap(Line::styled((*line).to_owned(), style), room, "  "));
        return marked(mark, lines.collect());
    }
    let most = if fold.is_folded() { folded(&called.tool) } else { usize::MAX };
    if called.interrupted {
        let lines = (all.as_slice(), called.lines);
        return marked(mark, tail("interrupted", lines, (theme.warning, theme.faint), room, fold));
    }
    if let (SHELL_TOOL, true, [head, rest @ ..]) = (called.tool.as_str(), called.failed, all.as_slice()) {
        let lines = (rest, called.lines.saturating_sub(1));
        return marked(mark, tail(head, lines, (theme.error, theme.faint), room, fold));
    }
    let shown = all.iter().take(most).flat_map(|line| match fold {
        ItemFolding::Folded | ItemFolding::Printed => vec![Line::styled(cut(line, room).into_owned(), style)],
        ItemFolding::Open => wrap(Line::styled((*line).to_owned(), style), room, ""),
    });
    let mut shown: Vec<Line<'static>> = shown.collect();
    let kept = all.len().min(most);
    if called.lines > kept {
        let missing = called.lines - kept;
        let words = format!("… {missing} more lines{}", fold.hint());
        shown.push(Line::styled(cut(&words, room).into_owned(), theme.faint));
    }
    if shown.is_empty() {
        shown.push(Line::styled(cut("(nothing)", room).into_owned(), theme.faint));
    }
    marked(mark, shown)
}

/// The result of a command that did not end well: how it ended, and the last of its output, where people look first.
fn tail(
    head: &str,
    (kept, of): (&[&str], usize),
    styles: (Style, Style),
    room: usize,
    fold: ItemFolding,
) -> Vec<Line<'static>> {
    let most = if fold.is_folded() { FOLDED } else { usize::MAX };
    let shown = &kept[kept.len().saturating_sub(most)..];
    let hidden = of.saturating_sub(shown.len());
    let mut words = head.to_owned();
    if hidden > 0 {
        let plural = if hidden == 1 { "" } else { "s" };
        words.push_str(&format!(" · … {hidden} line{plural} above{}", fold.hint()));
    }
    let line = |line: &str, style| {
        let line = if fold.is_folded() { cut(line, room).into_owned() } else { line.to_owned() };
        wrap(Line::styled(line, style), room, "")
    };
    let mut lines = line(&words, styles.0);
    lines.extend(shown.iter().flat_map(|shown| line(shown, styles.1)));
    lines
}

/// How many lines of a call's output are shown folded.
fn folded(tool: &str) -> usize {
    match tool {
        // What a person ran or chose is what he wants to see.
        SHELL => FOLDED_OWN,
        ASK => usize::MAX,
        _ => FOLDED,
    }
}

/// A call's result in a few words, for tools whose output is rarely read.
fn summary(called: &Called) -> Option<String> {
    let lines = called.lines;
    let plural = |what: &str| if lines == 1 { format!("1 {what}") } else { format!("{lines} {what}s") };
    match called.tool.as_str() {
        "Read" => Some(plural("line")),
        "Grep" | "Glob" if lines > FOLDED => Some(plural("line")),
        // The whole report is the model's to tell.
        "Agent" | "Task" => {
            let said = first_sentence(&called.output);
            let words = called.used.iter().cloned().chain(said);
            Some(words.collect::<Vec<_>>().join(" — ")).filter(|words| !words.is_empty())
        }
        _ => None,
    }
}

/// A plan as it was answered: whole, so that it can be read again.
fn plan(text: &str, rejected: Option<&str>, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let (mark, words, style) = match rejected {
        None => ("● ", "Plan approved", theme.good),
        Some(_) => ("✗ ", "Plan rejected", theme.error),
    };
    let head = Line::from(vec![Span::styled(mark, style), Span::raw(words)]);
    let mut lines = vec![head, Line::default()];
    lines.extend(marked(Span::raw("  "), markdown::lines(text, theme, room(columns))));
    if let Some(reason) = rejected.filter(|reason| !reason.is_empty() && *reason != DECLINED) {
        lines.push(Line::default());
        let reason = visible(reason);
        let reason = reason
            .lines()
            .flat_map(|line| wrap(Line::styled(line.to_owned(), theme.faint), columns.saturating_sub(4), ""));
        lines.extend(marked(Span::styled("  └ ", theme.faint), reason.collect()));
    }
    lines
}

/// A background agent or command that has ended, and why the model begins to speak.
fn finished(finished: &FinishedTask, theme: &Theme, columns: usize, fold: ItemFolding) -> Vec<Line<'static>> {
    let (sign, style) = agents::mark(finished.standing(), theme);
    let name = cut(&finished.name, room(columns).max(16) / 2).into_owned();
    let mut words = format!(" {}", finished.ending());
    if !finished.used.is_empty() {
        words.push_str(&format!(" · {}", finished.used));
    }
    let words = cut(&words, room(columns).saturating_sub(width(&name))).into_owned();
    let line = Line::from(vec![Span::raw(name), Span::styled(words, theme.faint)]);
    let mut lines = marked(Span::styled(format!("{sign} "), style), vec![line]);
    if let Some(said) = finished.says() {
        let room = columns.saturating_sub(4).max(1);
        let said =
            Line::styled(if fold.is_folded() { cut(&said, room).into_owned() } else { said }, theme.faint);
        lines.extend(marked(Span::styled("  └ ", theme.faint), wrap(said, room, "")));
    }
    lines
}

fn notice(level: &str, text: &str, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let style = match level {
        "error" => theme.error,
        "warning" => theme.warning,
        _ => theme.faint,
    };
    let text = visible(text);
    let lines = text.lines().flat_map(|line| wrap(Line::styled(line.to_owned(), style), room(columns), ""));
    marked(Span::styled("· ", style), lines.collect())
}

/// Who has stopped a run, by the words on record.
fn stopped(by: &str) -> String {
    match by {
        "an interrupt" => "Interrupted.".to_owned(),
        "the answer to a question" => "Declined; stopped.".to_owned(),
        "a person" => "Stopped.".to_owned(),
        by if by.starts_with("the end of the session") => "Stopped: the session was closed.".to_owned(),
        by => format!("Stopped by {by}."),
    }
}

/// A phrase as a sentence.
fn sentence(phrase: &str) -> String {
    let mut letters = phrase.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// How a run ended that did not end well, and what to do about it.
fn ended(outcome: &Outcome, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
    let (level, text) = match outcome {
        Outcome::Completed { limit, .. } => {
            ("warning", format!("Stopped at its limit of {}.", limit.as_deref().unwrap_or("turns")))
        }
        Outcome::Failed { error } => ("error", error.clone()),
        Outcome::Killed { by } => ("warning", stopped(by)),
        Outcome::Stalled { waiting_for } => ("error", format!("Gave up waiting for {waiting_for}.")),
        Outcome::OutOfBudget { budget, .. } => {
            ("warning", sentence(&limit_reached(budget, &Limits::default())))
        }
        Outcome::Denied { reason, .. } => ("warning", format!("Refused: {reason}")),
        Outcome::Lost => ("error", "The process died before this ended.".to_owned()),
    };
    notice(level, &text, theme, columns)
}
