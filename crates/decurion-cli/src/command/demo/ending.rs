//! The terminal after the demo. Takes its recorded session; draws its timeline, offers it as a picture, and lists the
//! next steps.

use std::fmt::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_serve::trace::{Chart, ChartCell, ChartRow};
use decurion_store::SessionPaths;
use decurion_tui::OutsideSignal;
use decurion_tui::text::{cut, width};
use decurion_tui::theme::Shades;
use tokio::sync::mpsc;

use super::DemoCounts;
use crate::command::trace;
use crate::report::{Failure, note, visible};
use crate::screen;

/// The widest that names are.
const NAMES: usize = 34;
/// More columns than these show no more.
const WIDEST: usize = 120;

/// What is known of the session that was shown.
pub struct PlayedSession<'a> {
    pub paths: &'a SessionPaths,
    /// What the terminal can show.
    pub shades: Shades,
    /// How wide it is.
    pub columns: u16,
    /// Where a picture is saved.
    pub cwd: &'a Utf8Path,
}

impl PlayedSession<'_> {
    /// Draws the timeline, and saves it where a person wants that.
    pub async fn show(&self, signals: &mut mpsc::Receiver<OutsideSignal>) -> Result<(), Failure> {
        let timeline = trace::read(self.paths)?;
        let columns = usize::from(self.columns).min(WIDEST);
        let widest = timeline.chart(0).rows.iter().map(|row| width(&name(row))).max().unwrap_or(0);
        let names = widest.min(NAMES).min(columns / 2);
        let chart = timeline.chart(columns.saturating_sub(names + 1));
        let drawn = TimelineDrawing { shades: self.shades, names }.draw(&chart, &DemoCounts::of(self.paths));
        let failed = |error: std::io::Error| Failure::failed(format!("the terminal: {error}"));
        screen::command_terminal(&[drawn.as_bytes()]).map_err(failed)?;
        let picture = free(self.cwd);
        say!("\nPress s to save it as {}, any other key to end.", picture.file_name().unwrap_or_default());
        if decurion_tui::one_key(signals).await.map_err(failed)?.is_some_and(|key| matches!(key, 's' | 'S')) {
            let svg = timeline.svg();
            match trace::save(&picture, false, &mut |out| out.write_all(svg.as_bytes())) {
                Ok(()) => say!("Saved: {}", visible(picture.as_str())),
                Err(failure) => note(failure.message),
            }
        }
        Ok(())
    }
}

/// What to do next.
pub fn invite() {
    say!("\nNow try your own repository:\n\n  cd path/to/your/repository && decurion\n");
}

/// A picture that is not there yet.
fn free(folder: &Utf8Path) -> Utf8PathBuf {
    let names = (2..1_000).map(|count| format!("decurion-demo-{count}.svg"));
    let mut names = std::iter::once("decurion-demo.svg".to_owned()).chain(names);
    let is_free = |name: &String| folder.join(name).symlink_metadata().is_err();
    folder.join(names.find(is_free).unwrap_or_else(|| "decurion-demo.svg".to_owned()))
}

/// The name, indented below the parent.
fn name(row: &ChartRow) -> String {
    format!("{}{}", "  ".repeat(row.depth.min(4)), visible(&row.name))
}

/// A chart as bytes for a terminal.
struct TimelineDrawing {
    shades: Shades,
    names: usize,
}

impl TimelineDrawing {
    fn draw(&self, chart: &Chart, counts: &DemoCounts) -> String {
        let mut out =
            format!("\r\n{}\r\n\r\n", self.styled("1", &format!("Who did what, in {}", chart.took)));
        for row in &chart.rows {
            out.push_str(&self.name(row));
            for run in row.cells.chunk_by(|one, other| one == other) {
                let (sign, style) = self.look(run[0]);
                out.push_str(&self.styled(style, &sign.repeat(run.len())));
            }
            out.push_str("\r\n");
        }
        let legend = [
            (ChartCell::Model, "model writes"),
            (ChartCell::Tool, "tool runs"),
            (ChartCell::Asks, "asks you"),
            (ChartCell::Waits, "waits"),
        ];
        let legend = legend.map(|(cell, words)| {
            let (sign, style) = self.look(cell);
            format!("{} {words}", self.styled(style, sign))
        });
        let _ = write!(out, "\r\n{}\r\n{}\r\n", legend.join("   "), self.styled("2", &counts.to_string()));
        out
    }

    fn name(&self, row: &ChartRow) -> String {
        let name = cut(&name(row), self.names).into_owned();
        format!("{name}{} ", " ".repeat(self.names.saturating_sub(width(&name))))
    }

    /// The sign of a cell, which is another one for each also without colours, and how it is drawn.
    fn look(&self, cell: ChartCell) -> (&'static str, &'static str) {
        let is_dark = self.shades == Shades::Dark;
        match cell {
            ChartCell::Nothing => (" ", ""),
            ChartCell::Waits => ("─", "2"),
            ChartCell::Model => ("▇", if is_dark { "96" } else { "34" }),
            ChartCell::Tool => ("▒", if is_dark { "92" } else { "32" }),
            ChartCell::Asks => ("?", if is_dark { "1;93" } else { "1;35" }),
        }
    }

    /// Text with a style; without colours only weight is left.
    fn styled(&self, style: &str, text: &str) -> String {
        let is_plain = self.shades == Shades::None && !matches!(style, "1" | "2");
        if style.is_empty() || is_plain { text.to_owned() } else { format!("\x1b[{style}m{text}\x1b[0m") }
    }
}
