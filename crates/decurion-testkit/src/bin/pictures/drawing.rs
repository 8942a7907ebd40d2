//! A screen as a picture. Takes what a terminal shows, with the sequences that colour it; gives SVG.

use std::fmt::Write as _;

pub const LETTER: (f32, f32) = (8.4, 18.0);
pub const MARGIN: f32 = 14.0;
const BACKGROUND: &str = "#16181d";
const FOREGROUND: &str = "#d7dae0";
const PALETTE: [&str; 16] = [
    "#16181d", "#e06c75", "#98c379", "#d19a66", "#61afef", "#c678dd", "#56b6c2", "#abb2bf", "#5c6370",
    "#ff7b86", "#b5e890", "#ffd479", "#7cc7ff", "#e29bff", "#7fe5f0", "#ffffff",
];

pub fn svg(coloured: &str, (columns, rows): (u16, u16)) -> String {
    let mut terminal = vt100::Parser::new(rows, columns, 0);
    terminal.process(coloured.replace('\n', "\r\n").as_bytes());
    let screen = terminal.screen();
    let used = (0..rows)
        .rev()
        .find(|row| !row_text(screen, *row, columns).trim().is_empty())
        .map_or(1, |row| row + 1);
    let (width, height) =
        (f32::from(columns) * LETTER.0 + 2.0 * MARGIN, f32::from(used) * LETTER.1 + 2.0 * MARGIN);
    let mut picture = head(width, height);
    for row in 0..used {
        draw_row(&mut picture, screen, row, (columns, MARGIN + f32::from(row) * LETTER.1));
    }
    picture.push_str("</svg>\n");
    picture
}

/// The beginning of a picture of this size: an empty terminal.
pub fn head(width: f32, height: f32) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    )
}

fn row_text(screen: &vt100::Screen, row: u16, columns: u16) -> String {
    (0..columns).filter_map(|column| screen.cell(row, column)).map(vt100::Cell::contents).collect()
}

/// One run of letters that look the same.
struct Run {
    from: u16,
    to: u16,
    text: String,
    look: Look,
}

#[derive(Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // each is what a terminal can do to a letter
struct Look {
    color: String,
    behind: Option<String>,
    bold: bool,
    faint: bool,
    italic: bool,
    underlined: bool,
}

/// Draws a row of so many columns, this far from the top.
pub fn draw_row(picture: &mut String, screen: &vt100::Screen, row: u16, (columns, top): (u16, f32)) {
    for run in runs(screen, row, columns) {
        let left = MARGIN + f32::from(run.from) * LETTER.0;
        let wide = f32::from(run.to - run.from) * LETTER.0;
        if let Some(behind) = &run.look.behind {
            let _ = writeln!(
                picture,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{behind}\"/>",
                LETTER.1
            );
        }
        if run.text.trim().is_empty() {
            continue;
        }
        let mut style = String::new();
        for (wanted, attribute) in [
            (run.look.bold, " font-weight=\"bold\""),
            (run.look.faint, " opacity=\"0.6\""),
            (run.look.italic, " font-style=\"italic\""),
            (run.look.underlined, " text-decoration=\"underline\""),
        ] {
            style.push_str(if wanted { attribute } else { "" });
        }
        let text = run.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            picture,
            "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{wide:.1}\" lengthAdjust=\"spacingAndGlyphs\" \
             fill=\"{}\" xml:space=\"preserve\"{style}>{text}</text>",
            top + 13.5,
            run.look.color
        );
    }
}

fn runs(screen: &vt100::Screen, row: u16, columns: u16) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for column in 0..columns {
        let Some(cell) = screen.cell(row, column) else { continue };
        let look = look(cell);
        let text = match cell.contents() {
            "" if cell.is_wide_continuation() => "",
            "" => " ",
            text => text,
        };
        match runs.last_mut() {
            Some(run) if run.look == look => {
                run.text.push_str(text);
                run.to = column + 1;
            }
            _ => runs.push(Run { from: column, to: column + 1, text: text.to_owned(), look }),
        }
    }
    runs
}

fn look(cell: &vt100::Cell) -> Look {
    let (front, behind) = (color(cell.fgcolor()), color(cell.bgcolor()));
    let (front, behind) = if cell.inverse() {
        (behind.unwrap_or(BACKGROUND), Some(front.unwrap_or(FOREGROUND)))
    } else {
        (front.unwrap_or(FOREGROUND), behind)
    };
    Look {
        color: front.to_owned(),
        behind: behind.map(str::to_owned),
        bold: cell.bold(),
        faint: cell.dim(),
        italic: cell.italic(),
        underlined: cell.underline(),
    }
}

fn color(color: vt100::Color) -> Option<&'static str> {
    match color {
        vt100::Color::Idx(index) => PALETTE.get(usize::from(index)).copied(),
        vt100::Color::Default | vt100::Color::Rgb(..) => None,
    }
}
