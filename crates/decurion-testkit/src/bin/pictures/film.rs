//! Screens one after the other as one picture that moves. Takes what a terminal shows, again and again; gives SVG whose only
//! motion is a style sheet's, so that it plays wherever a picture is shown.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::drawing::{LETTER, MARGIN, draw_row, head};

pub struct Film {
    size: (u16, u16),
    /// Each row that was ever seen, once.
    rows: Vec<String>,
    known: HashMap<String, usize>,
    frames: Vec<Frame>,
    /// The frame that is shown where nothing moves.
    poster: usize,
}

/// One screen, and for how long it is shown.
struct Frame {
    rows: Vec<Option<usize>>,
    time: Duration,
}

impl Film {
    /// Of a terminal of this size.
    pub fn new(size: (u16, u16)) -> Self {
        Self { size, rows: Vec::new(), known: HashMap::new(), frames: Vec::new(), poster: 0 }
    }

    /// Takes what is shown for so long.
    pub fn take(&mut self, screen: &vt100::Screen, time: Duration, is_poster: bool) {
        let rows: Vec<Option<usize>> = (0..self.size.1).map(|row| self.row(screen, row)).collect();
        match self.frames.last_mut().filter(|last| last.rows == rows) {
            Some(last) => last.time += time,
            None => self.frames.push(Frame { rows, time }),
        }
        if is_poster {
            self.poster = self.frames.len() - 1;
        }
    }

    /// Which row this is; none for an empty one.
    fn row(&mut self, screen: &vt100::Screen, row: u16) -> Option<usize> {
        let mut drawn = String::new();
        draw_row(&mut drawn, screen, row, (self.size.0, 0.0));
        if drawn.is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(&drawn) {
            return Some(*known);
        }
        self.rows.push(drawn.clone());
        self.known.insert(drawn, self.rows.len() - 1);
        Some(self.rows.len() - 1)
    }

    /// The picture: all frames side by side, of which one is in sight.
    pub fn svg(&self) -> String {
        let (columns, rows) = self.size;
        let (width, height) =
            (f32::from(columns) * LETTER.0 + 2.0 * MARGIN, f32::from(rows) * LETTER.1 + 2.0 * MARGIN);
        let width = width.ceil();
        let whole: Duration = self.frames.iter().map(|frame| frame.time).sum();
        let mut picture = head(width, height);
        let left = |frame: usize| f64::from(width) * u32::try_from(frame).map_or(0.0, f64::from);
        let mut keys = String::new();
        let mut passed = Duration::ZERO;
        for (at, frame) in self.frames.iter().enumerate() {
            let share = 100.0 * passed.as_secs_f64() / whole.as_secs_f64();
            let _ = write!(keys, "{share:.2}%{{transform:translateX(-{:.0}px)}}", left(at));
            passed += frame.time;
        }
        let _ = write!(
            picture,
            "<style>@keyframes play{{{keys}}}#film{{transform:translateX(-{:.0}px);\
             animation:play {:.1}s step-end infinite}}\
             @media (prefers-reduced-motion:reduce){{#film{{animation:none}}}}</style>\n<defs>\n",
            left(self.poster),
            whole.as_secs_f64()
        );
        for (at, row) in self.rows.iter().enumerate() {
            let _ = writeln!(picture, "<g id=\"r{at}\">{}</g>", row.trim_end());
        }
        picture.push_str("</defs>\n<g id=\"film\">\n");
        for (at, frame) in self.frames.iter().enumerate() {
            for (row, drawn) in (0_u16..).zip(&frame.rows) {
                let Some(drawn) = drawn else { continue };
                let y = MARGIN + f32::from(row) * LETTER.1;
                let _ = write!(picture, "<use href=\"#r{drawn}\" x=\"{:.0}\" y=\"{y:.0}\"/>", left(at));
            }
            picture.push('\n');
        }
        picture.push_str("</g>\n</svg>\n");
        picture
    }
}
