//! Tables as lines. Takes cells row by row; gives columns as wide as they must be, or one block per row where there is
//! no room for columns.

use pulldown_cmark::Alignment;
use ratatui_core::style::Modifier;
use ratatui_core::text::{Line, Span};

use crate::text::wrap;
use crate::theme::Theme;

/// What stands between two columns.
const BETWEEN: usize = 3;
/// A column is never narrower than this because of another one.
const LEAST: usize = 6;

#[derive(Clone, Debug, Default)]
pub struct MarkdownCell(Line<'static>);

impl MarkdownCell {
    /// A cell with this text.
    pub fn new(spans: Vec<Span<'static>>) -> Self {
        Self(Line::from(spans))
    }

    /// How wide its longest word is.
    fn longest_word(&self) -> usize {
        let text = self.0.to_string();
        text.split_whitespace().map(crate::text::width).max().unwrap_or(0)
    }
}

/// A table that is being read. Its first row is the head.
#[derive(Debug, Default)]
pub struct MarkdownTable {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<MarkdownCell>>,
    row: Vec<MarkdownCell>,
}

impl MarkdownTable {
    /// One with these columns.
    pub fn new(alignments: Vec<Alignment>) -> Self {
        Self { alignments, ..Self::default() }
    }

    /// The next cell of this row.
    pub fn push(&mut self, cell: MarkdownCell) {
        self.row.push(cell);
    }

    /// The row is whole.
    pub fn end_row(&mut self) {
        let mut row = std::mem::take(&mut self.row);
        row.resize(self.alignments.len(), MarkdownCell::default());
        self.rows.push(row);
    }

    /// The table within these columns.
    pub fn lines(mut self, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
        crate::fault_point::pass("table");
        if !self.row.is_empty() {
            self.end_row();
        }
        match self.widths(columns) {
            Some(widths) => self.side_by_side(theme, &widths),
            None => self.one_by_one(theme, columns),
        }
    }

    /// How wide each column is; none if they do not fit. Those that want more than their share give way, the widest
    /// first.
    fn widths(&self, columns: usize) -> Option<Vec<usize>> {
        let count = self.alignments.len();
        let room = columns.checked_sub(count.checked_sub(1)? * BETWEEN)?;
        let each = |of: &dyn Fn(&MarkdownCell) -> usize| -> Vec<usize> {
            let widest = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(of).max();
            (0..count).map(|at| widest(at).unwrap_or(0).max(1)).collect()
        };
        let mut widths = each(&|cell: &MarkdownCell| cell.0.width());
        let least: Vec<usize> =
            each(&|cell: &MarkdownCell| cell.longest_word().min(LEAST * 3)).into_iter().collect();
        while widths.iter().sum::<usize>() > room {
            let can_give = widths.iter().enumerate().filter(|(at, wide)| **wide > least[*at].max(LEAST));
            let at = can_give.max_by_key(|(_, wide)| **wide)?.0;
            widths[at] -= 1;
        }
        Some(widths)
    }

    fn side_by_side(&self, theme: &Theme, widths: &[usize]) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<Vec<Line<'static>>> =
                row.iter().zip(widths).map(|(cell, wide)| wrap(cell.0.clone(), *wide, "")).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                lines.push(self.line(theme, &cells, widths, at, index == 0));
            }
            if index == 0 {
                let rules: Vec<String> = widths.iter().map(|wide| "─".repeat(*wide)).collect();
                lines.push(Line::styled(rules.join("─┼─"), theme.faint));
            }
        }
        lines
    }

    /// One line of one row.
    fn line(
        &self,
        theme: &Theme,
        cells: &[Vec<Line<'static>>],
        widths: &[usize],
        at: usize,
        is_head: bool,
    ) -> Line<'static> {
        let mut spans = Vec::new();
        for (column, (cell, wide)) in cells.iter().zip(widths).enumerate() {
            if column > 0 {
                spans.push(Span::styled(" │ ", theme.faint));
            }
            let mut text = cell.get(at).cloned().unwrap_or_default();
            if is_head {
                text = text.patch_style(Modifier::BOLD);
            }
            if text.width() == 0 && column + 1 == widths.len() {
                continue;
            }
            let spare = wide.saturating_sub(text.width());
            let before = match self.alignments.get(column) {
                Some(Alignment::Right) => spare,
                Some(Alignment::Center) => spare / 2,
                _ => 0,
            };
            spans.push(Span::raw(" ".repeat(before)));
            let style = text.style;
            spans.extend(text.spans.into_iter().map(|span| Span { style: style.patch(span.style), ..span }));
            if column + 1 < widths.len() {
                spans.push(Span::raw(" ".repeat(spare - before)));
            }
        }
        spans.retain(|span| !span.content.is_empty());
        Line::from(spans)
    }

    /// Each row as lines `head: cell`.
    fn one_by_one(&self, theme: &Theme, columns: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let Some((head, rows)) = self.rows.split_first() else { return lines };
        for (index, row) in rows.iter().enumerate() {
            if index > 0 {
                lines.push(Line::styled("─".repeat(columns.min(8)), theme.faint));
            }
            for (name, cell) in head.iter().zip(row) {
                let mut spans = vec![Span::styled(format!("{}: ", name.0), Modifier::BOLD)];
                spans.extend(cell.0.spans.clone());
                lines.extend(wrap(Line::from(spans), columns, "  "));
            }
        }
        lines
    }
}
