//! A list of steps as lines. Takes the steps and how many lines there may be; gives a line for each, and counts of those
//! that do not fit.

use decurion_protocol::{Todo, TodoStatus};
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::text::{cut, one_line};
use crate::theme::Theme;

/// The steps, at most this many lines. Where they do not all fit, the one in progress stays in sight, with what follows it
/// before what is done.
pub fn lines(todos: &[Todo], theme: &Theme, columns: usize, most: usize) -> Vec<Line<'static>> {
    crate::fault_point::pass("todos");
    if most == 0 || todos.is_empty() {
        return Vec::new();
    }
    let (above, shown) = window(todos, most);
    let below = todos.len() - above - shown.len();
    if most < 3 && shown.len() < todos.len() {
        return shown.iter().map(|todo| line(todo, theme, columns)).collect();
    }
    let mut lines = Vec::new();
    if above > 0 {
        let done = todos[..above].iter().all(|todo| todo.status == TodoStatus::Completed);
        let words = if done { format!("✓ {above} done") } else { format!("… {above} above") };
        lines.push(Line::styled(cut(&words, columns).into_owned(), theme.faint));
    }
    lines.extend(shown.iter().map(|todo| line(todo, theme, columns)));
    if below > 0 {
        lines.push(Line::styled(cut(&format!("… {below} more"), columns).into_owned(), theme.faint));
    }
    lines.truncate(most);
    lines
}

/// How many steps are above those that are shown, and those.
fn window(todos: &[Todo], most: usize) -> (usize, &[Todo]) {
    if todos.len() <= most {
        return (0, todos);
    }
    let now = todos.iter().position(|todo| todo.status != TodoStatus::Completed).unwrap_or(todos.len() - 1);
    // A line each for what is above and below, where there is room for them.
    let room = if most < 3 { 1 } else { most - 2 };
    // The step before shows where the work stands.
    let from = if room < 2 { now } else { now.saturating_sub(1) };
    let from = from.min(todos.len() - room);
    (from, &todos[from..from + room])
}

fn line(todo: &Todo, theme: &Theme, columns: usize) -> Line<'static> {
    let (mark, style, words) = match todo.status {
        TodoStatus::Completed => ("✓", theme.good, &todo.content),
        TodoStatus::InProgress => ("▸", theme.accent, &todo.active_form),
        TodoStatus::Pending => ("○", theme.faint, &todo.content),
    };
    let weight = match todo.status {
        TodoStatus::Completed => theme.faint,
        TodoStatus::InProgress => Style::new().add_modifier(Modifier::BOLD),
        TodoStatus::Pending => Style::new(),
    };
    let words = one_line(words);
    let words = cut(&words, columns.saturating_sub(2)).into_owned();
    Line::from(vec![Span::styled(format!("{mark} "), style), Span::styled(words, weight)])
}
