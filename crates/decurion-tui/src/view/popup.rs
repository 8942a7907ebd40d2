//! Choices as lines. Takes those that fit, the best first, and which one is chosen; gives a few rows around it.

use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::completion::Completion;
use crate::text::{cut, one_line, width};
use crate::theme::Theme;

/// How choices are shown.
#[derive(Clone, Copy, Debug)]
pub struct Popup<'a> {
    pub theme: &'a Theme,
    pub columns: usize,
    /// How many rows at most.
    pub most: usize,
    /// What stands before each: `/` or `@`.
    pub sign: &'a str,
    /// Which one is chosen.
    pub chosen: usize,
}

impl Popup<'_> {
    /// A row for each, those around the chosen one where there are too many; the last row counts the rest.
    pub fn lines(&self, choices: &[&Completion]) -> Vec<Line<'static>> {
        let most = self.most.max(1);
        let fits = choices.len() <= most;
        let room = if fits { choices.len() } else { most.saturating_sub(1).max(1) };
        let chosen = self.chosen.min(choices.len().saturating_sub(1));
        let from = chosen.saturating_sub(room / 2).min(choices.len().saturating_sub(room));
        let shown = &choices[from..from + room];
        let named: Vec<String> =
            shown.iter().map(|choice| format!("{}{}", self.sign, one_line(&choice.text))).collect();
        let widest = named.iter().map(|name| width(name)).max().unwrap_or(0);
        // Names have at most half of the room where there is something to say about them.
        let has_words = shown.iter().any(|choice| !choice.description.is_empty());
        let left = self.columns.saturating_sub(2);
        let name_room = if has_words && left >= 24 { widest.min(left.div_ceil(2)) } else { left };
        let rows = named.iter().zip(shown).enumerate();
        let mut lines: Vec<Line<'static>> =
            rows.map(|(at, (name, choice))| self.row(from + at == chosen, name, choice, name_room)).collect();
        if !fits && most > 1 {
            let words = format!("  … {} more", choices.len() - room);
            lines.push(Line::styled(cut(&words, self.columns).into_owned(), self.theme.faint));
        }
        lines
    }

    fn row(&self, is_chosen: bool, name: &str, choice: &Completion, name_room: usize) -> Line<'static> {
        let (mark, style) = if is_chosen { ("❯ ", self.theme.accent) } else { ("  ", Style::default()) };
        let name = cut(name, name_room).into_owned();
        let gap = name_room.saturating_sub(width(&name)) + 2;
        let room = self.columns.saturating_sub(2 + width(&name) + gap);
        let words = one_line(&choice.description);
        let mut spans =
            vec![Span::styled(cut(mark, self.columns).into_owned(), style), Span::styled(name, style)];
        if !words.is_empty() && room >= 8 {
            spans.push(Span::raw(" ".repeat(gap)));
            let style =
                if is_chosen { Style::new().add_modifier(Modifier::ITALIC) } else { self.theme.faint };
            spans.push(Span::styled(cut(&words, room).into_owned(), style));
        }
        Line::from(spans)
    }
}
