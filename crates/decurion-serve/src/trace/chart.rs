//! A timeline for a terminal. Takes a [`Timeline`] and a number of columns; gives a row of cells for each agent and for each
//! background command, in the order of the tree.

use super::{Span, SpanKind, Timeline, duration};

/// Who did what when, in columns of the same length.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The agents and commands, each agent before what it began.
    pub rows: Vec<ChartRow>,
    /// How long all of it took, as people read it.
    pub took: String,
}

/// One agent, or one background command.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartRow {
    /// How deep it is: 0 for the main agent.
    pub depth: usize,
    /// Who it is.
    pub name: String,
    /// What it did, a cell for each column.
    pub cells: Vec<Cell>,
}

/// What somebody did in one column. Of several things the last in this order, so that what is short is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cell {
    /// It was not at work.
    Nothing,
    /// It waited for others.
    Waits,
    /// Its model wrote.
    Model,
    /// A tool or a command of its ran.
    Tool,
    /// It waited for a person's answer.
    Asks,
}

impl Timeline {
    /// The timeline in so many columns.
    pub fn chart(&self, columns: usize) -> Chart {
        // What stood still before the first work is no part of it.
        let begins = self.spans.iter().map(|span| span.from).min().unwrap_or(0);
        let scale = Scale { begins, length: self.end.saturating_sub(begins).max(1), columns };
        let mut rows = Vec::new();
        for (lane, agent) in self.agents.iter().enumerate() {
            let name = match (agent.depth, agent.description.as_str()) {
                (0, _) => agent.kind.clone(),
                (_, "") => agent.kind.clone(),
                (_, description) => format!("{} · {description}", agent.kind),
            };
            let spans = || self.spans.iter().filter(move |span| span.lane == lane);
            let own = spans().filter(|span| span.kind != SpanKind::Shell);
            rows.push(ChartRow { depth: agent.depth, name, cells: scale.cells(own) });
            rows.extend(spans().filter(|span| span.kind == SpanKind::Shell).map(|shell| ChartRow {
                depth: agent.depth + 1,
                name: format!("$ {}", shell.name),
                cells: scale.cells(std::iter::once(shell)),
            }));
        }
        Chart { rows, took: duration(scale.length) }
    }
}

/// Where a moment stands.
struct Scale {
    begins: u64,
    length: u64,
    columns: usize,
}

impl Scale {
    fn cells<'a>(&self, spans: impl Iterator<Item = &'a Span>) -> Vec<Cell> {
        let mut cells = vec![Cell::Nothing; self.columns];
        for span in spans {
            let kind = cell(span);
            for cell in cells.iter_mut().take(self.column(span.to) + 1).skip(self.column(span.from)) {
                *cell = (*cell).max(kind);
            }
        }
        cells
    }

    /// The column that a moment falls into; the last moment is in the last one.
    fn column(&self, at: u64) -> usize {
        let columns = u128::try_from(self.columns).unwrap_or(0);
        let column = u128::from(at.saturating_sub(self.begins)) * columns / u128::from(self.length);
        usize::try_from(column).unwrap_or(usize::MAX).min(self.columns.saturating_sub(1))
    }
}

fn cell(span: &Span) -> Cell {
    match span.kind {
        SpanKind::Permission => Cell::Asks,
        // A call of an agent is a wait for it: the work is in the agent's own row.
        SpanKind::Tool if matches!(span.name.as_str(), "Agent" | "Task") => Cell::Waits,
        SpanKind::Tool | SpanKind::Shell => Cell::Tool,
        SpanKind::Model | SpanKind::Compaction => Cell::Model,
        _ => Cell::Waits,
    }
}
