//! A timeline for a terminal. Takes a [`Timeline`] and a number of columns; gives a row of cells for each agent and for each
//! background command, in the order of the tree.

use super::{SpanKind, TimeSpan, Timeline, duration};

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
    pub name: String,
    /// What it did, a cell for each column.
    pub cells: Vec<ChartCell>,
}

/// What an agent did in one column. Of several activities the last in this order, so that short ones are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChartCell {
    /// It was not at work.
    Nothing,
    /// It waited for others.
    Waits,
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
        let scale = ChartScale { begins, length: self.end.saturating_sub(begins).max(1), columns };
        let mut rows = Vec::new();
        for (lane, agent) in self.agents.iter().enumerate() {
            let name = match (agent.depth, agent.description.as_str()) {
                (0, _) | (_, "") => agent.kind.clone(),
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
struct ChartScale {
    begins: u64,
    length: u64,
    columns: usize,
}

impl ChartScale {
    fn cells<'a>(&self, spans: impl Iterator<Item = &'a TimeSpan>) -> Vec<ChartCell> {
        let mut cells = vec![ChartCell::Nothing; self.columns];
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

fn cell(span: &TimeSpan) -> ChartCell {
    match span.kind {
        SpanKind::Permission => ChartCell::Asks,
        // A call of an agent is a wait for it: the work is in the agent's own row.
        SpanKind::Tool if matches!(span.name.as_str(), "Agent" | "Task") => ChartCell::Waits,
        SpanKind::Tool | SpanKind::Shell => ChartCell::Tool,
        SpanKind::Model | SpanKind::Compaction => ChartCell::Model,
        _ => ChartCell::Waits,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::Lane;
    use super::*;

    fn lane(depth: usize, kind: &str, description: &str) -> Lane {
        Lane {
            agent: None,
            path: String::new(),
            kind: kind.to_owned(),
            description: description.to_owned(),
            depth,
            outcome: None,
            tracks: 1,
            shells: 0,
        }
    }

    fn span(lane: usize, kind: SpanKind, name: &str, from: u64, to: u64) -> TimeSpan {
        let (name, facts) = (name.to_owned(), Vec::new());
        TimeSpan { lane, track: 0, kind, name, from, to, facts, unfinished: false }
    }

    fn drawn(chart: &Chart) -> String {
        let sign = |cell: &ChartCell| match cell {
            ChartCell::Nothing => '.',
            ChartCell::Waits => '-',
            ChartCell::Model => 'm',
            ChartCell::Tool => 't',
            ChartCell::Asks => '?',
        };
        let row = |row: &ChartRow| {
            let cells: String = row.cells.iter().map(sign).collect();
            format!("{cells} {}{}\n", "  ".repeat(row.depth), row.name)
        };
        chart.rows.iter().map(row).collect()
    }

    fn timeline() -> Timeline {
        Timeline {
            session: None,
            began: Timestamp::UNIX_EPOCH,
            end: 20_000_000,
            agents: vec![lane(0, "main", "ignored"), lane(1, "Explore", "look"), lane(1, "fork", "")],
            spans: vec![
                span(0, SpanKind::Run, "run", 10_000_000, 18_000_000),
                span(0, SpanKind::Model, "model", 10_000_000, 11_900_000),
                // So short that it is seen only because it matters.
                span(0, SpanKind::Tool, "Read", 11_500_000, 11_500_001),
                span(0, SpanKind::Tool, "Agent", 12_000_000, 14_900_000),
                span(0, SpanKind::Permission, "Edit", 15_000_000, 15_900_000),
                span(0, SpanKind::Shell, "npm test", 16_000_000, 20_000_000),
                span(1, SpanKind::Model, "model", 12_000_000, 14_900_000),
            ],
            flows: Vec::new(),
            instants: Vec::new(),
            counters: Vec::new(),
        }
    }

    #[test]
    fn each_agent_and_command_has_a_row_from_the_first_work_on() {
        let chart = timeline().chart(10);
        let expected = "\
            mt---?---. main\n\
            ......tttt   $ npm test\n\
            ..mmm.....   Explore · look\n\
            ..........   fork\n";
        assert_eq!(drawn(&chart), expected);
        assert_eq!(chart.took, "10 s");
    }

    #[test]
    fn no_columns_and_no_time_are_no_trouble() {
        assert!(timeline().chart(0).rows.iter().all(|row| row.cells.is_empty()));
        let still = Timeline { end: 0, spans: vec![span(0, SpanKind::Model, "m", 0, 0)], ..timeline() };
        assert_eq!(drawn(&still.chart(3)).lines().next(), Some("m.. main"));
    }
}
