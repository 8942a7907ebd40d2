//! Time as pixels. Takes a timeline and the two ends of the axis, gives the place of each moment and the ticks.
//!
//! A person may come back after hours: a stretch without work, or one that would leave no room for others, is folded to
//! a narrow band and marked.

use crate::trace::{SpanKind, Timeline};

/// The width of a folded stretch, and the part of the axis that all of them may take.
const FOLDED: f64 = 64.0;
const MOST_FOLDED: f64 = 0.3;
/// How many ticks there are, about.
const TICKS: u64 = 12;

/// A way from time to place that has a straight line for each stretch.
pub struct TimeScale {
    pieces: Vec<ScalePiece>,
    /// Time that is drawn to scale.
    drawn: u64,
}

#[derive(Clone, Copy, Debug)]
struct ScalePiece {
    from: u64,
    to: u64,
    left: f64,
    right: f64,
    folded: bool,
}

impl TimeScale {
    /// The scale for a timeline between these two places.
    pub fn new(timeline: &Timeline, left: f64, right: f64) -> Self {
        let folded = folded(timeline);
        let drawn = timeline.end - folded.iter().map(|(from, to)| to - from).sum::<u64>();
        let bands = (number(folded.len() as u64) * FOLDED).min((right - left) * MOST_FOLDED);
        let band = if folded.is_empty() { 0.0 } else { bands / number(folded.len() as u64) };
        let per_unit = (right - left - bands) / number(drawn.max(1));
        let mut pieces = Vec::new();
        let (mut at, mut x) = (0, left);
        let mut add = |pieces: &mut Vec<ScalePiece>, to: u64, wide: f64, folded: bool| {
            pieces.push(ScalePiece { from: at, to, left: x, right: x + wide, folded });
            (at, x) = (to, x + wide);
        };
        let mut before = 0;
        for (from, to) in folded {
            add(&mut pieces, from, number(from - before) * per_unit, false);
            add(&mut pieces, to, band, true);
            before = to;
        }
        add(&mut pieces, timeline.end, number(timeline.end - before) * per_unit, false);
        Self { pieces, drawn }
    }

    /// Where a moment is.
    pub fn x(&self, at: u64) -> f64 {
        let piece = self.pieces.iter().find(|piece| at <= piece.to).or(self.pieces.last());
        piece.map_or(0.0, |piece| {
            let part =
                number(at.clamp(piece.from, piece.to) - piece.from) / number((piece.to - piece.from).max(1));
            piece.left + part * (piece.right - piece.left)
        })
    }

    /// Round times and where they are.
    pub fn ticks(&self) -> Vec<(f64, u64)> {
        let step = step(self.drawn / TICKS);
        let of = |piece: &ScalePiece| {
            let first = piece.from.div_ceil(step) * step;
            (first..=piece.to).step_by(usize::try_from(step).unwrap_or(usize::MAX)).collect::<Vec<_>>()
        };
        let drawn = self.pieces.iter().filter(|piece| !piece.folded);
        drawn.flat_map(of).map(|at| (self.x(at), at)).collect()
    }

    /// The folded stretches: from where to where, and how long each is.
    pub fn folds(&self) -> Vec<(f64, f64, u64)> {
        let folded = self.pieces.iter().filter(|piece| piece.folded);
        folded.map(|piece| (piece.left, piece.right, piece.to - piece.from)).collect()
    }
}

/// The next round number.
fn step(least: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for digit in [1, 2, 5] {
            let step = power.saturating_mul(digit);
            if step >= least || step == u64::MAX {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The stretches to fold, in order: in none of them anything begins or ends.
fn folded(timeline: &Timeline) -> Vec<(u64, u64)> {
    let mut moments: Vec<u64> = timeline.spans.iter().flat_map(|span| [span.from, span.to]).collect();
    moments.extend([0, timeline.end]);
    moments.sort_unstable();
    moments.dedup();
    let mut worked: Vec<(u64, u64)> = timeline
        .spans
        .iter()
        .filter(|span| span.kind == SpanKind::Run)
        .map(|span| (span.from, span.to))
        .collect();
    worked.sort_unstable();
    let mut stretches: Vec<(u64, u64, bool)> = Vec::new();
    let (mut next, mut busy_until) = (0, 0);
    for pair in moments.windows(2) {
        while worked.get(next).is_some_and(|(from, _)| *from <= pair[0]) {
            busy_until = busy_until.max(worked[next].1);
            next += 1;
        }
        stretches.push((pair[0], pair[1], busy_until >= pair[1]));
    }
    stretches.sort_by_key(|(from, to, _)| std::cmp::Reverse(to - from));
    let mut rest = timeline.end;
    let mut folded = Vec::new();
    for (from, to, is_busy) in stretches {
        let long = to - from;
        let others = rest - long;
        // Work is what a picture is for; it is folded only where nothing else would be seen.
        let is_long = if is_busy { long / 20 > others } else { long > others / 2 };
        if is_long && others > 0 {
            folded.push((from, to));
            rest = others;
        }
    }
    folded.sort_unstable();
    folded
}

#[allow(clippy::cast_precision_loss)] // a pixel is not that exact
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn steps_are_round() {
        let rows = [(0, 1), (1, 1), (3, 5), (11, 20), (999, 1_000), (7_000_000, 10_000_000)];
        for (least, round) in rows {
            assert_eq!(step(least), round);
        }
    }
}
