//! The content of the terminal. Takes finished lines, which go above for good, and live lines, which are below them and
//! change; gives the bytes that make the terminal show that, and no more than needed.
//!
//! Everything happens in the terminal's normal buffer, so that its own scrollback, search and copying work. Movement is
//! relative to where the cursor was left, so the terminal need not be asked for it.

use std::collections::VecDeque;
use std::io::{self, Write};

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::Line;
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

use crate::links::{self, LinkBase};

/// More rows than any terminal has.
const MOST_ROWS: usize = 1024;

/// Begin and end of a synchronized update, for terminals that support it.
const BEGIN: &str = "\x1b[?2026h\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[?7h\x1b[?2026l";

/// The terminal, as far as it is ours.
pub struct TerminalScreen<W> {
    out: W,
    size: (u16, u16),
    /// The live lines as they are shown now, each as the bytes that show it.
    live: Vec<String>,
    /// The live row that the cursor is in.
    row: usize,
    bytes: String,
    /// How wide the last finished lines are, as far as they may be on the screen.
    above: VecDeque<usize>,
    /// The rows of the page that is over everything, while there is one.
    over: Option<Vec<String>>,
    /// What links are relative to, where the terminal follows them.
    links: Option<LinkBase>,
}

/// Where the cursor is shown: row and column of the live lines.
pub type CursorPosition = Option<(usize, usize)>;

impl<W: Write> TerminalScreen<W> {
    /// A terminal of this size, its cursor at the beginning of an empty line.
    pub fn new(out: W, size: (u16, u16)) -> Self {
        Self {
            out,
            size,
            live: Vec::new(),
            row: 0,
            bytes: String::new(),
            above: VecDeque::new(),
            over: None,
            links: None,
        }
    }

    /// The same with links in what is finished: live lines change too often for them.
    #[must_use]
    pub fn linking(self, links: Option<LinkBase>) -> Self {
        Self { links, ..self }
    }

    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Shows finished lines above the live ones, and these.
    pub fn draw(
        &mut self,
        finished: &[Line<'_>],
        live: &[Line<'_>],
        cursor: CursorPosition,
    ) -> io::Result<()> {
        self.leave_page();
        let all = live.len();
        let live: Vec<String> =
            self.fitting(live).iter().map(|line| bytes_of(line, self.columns())).collect();
        let cut = all - live.len();
        let cursor = cursor.map(|(row, column)| (row.saturating_sub(cut), column));
        if finished.is_empty() && live == self.live {
            return self.only_cursor(cursor);
        }
        self.bytes.push_str(BEGIN);
        if finished.is_empty() {
            self.change(&live);
        } else {
            self.go_top();
            self.erase(self.live.len());
            // A character that the terminal takes for wider than we do is wrapped here, not cut.
            self.bytes.push_str("\x1b[?7h");
            for line in finished {
                self.above.push_back(line.width());
                self.bytes.push_str(&linked_bytes_of(line, usize::MAX, self.links.as_ref()));
                self.bytes.push_str("\r\n");
            }
            let most = self.above.len().saturating_sub(MOST_ROWS);
            self.above.drain(..most);
            self.bytes.push_str("\x1b[?7l");
            self.live.clear();
            self.change(&live);
        }
        self.live = live;
        self.put_cursor(cursor);
        self.bytes.push_str(END);
        self.flush()
    }

    /// Begins anew at another size: what the terminal made of the lines above is not known.
    pub fn repaint(
        &mut self,
        size: (u16, u16),
        finished: &[Line<'_>],
        live: &[Line<'_>],
        cursor: CursorPosition,
    ) -> io::Result<()> {
        self.leave_page();
        let (lines, rows) = self.reach(size);
        self.size = size;
        self.bytes.push_str("\x1b[?25l\r");
        if rows + 1 >= usize::from(size.1) {
            self.bytes.push_str("\x1b[H");
            self.erase(usize::from(size.1));
        } else {
            if rows > 0 {
                self.bytes.push_str(&format!("\x1b[{rows}A"));
            }
            self.erase(usize::from(size.1));
        }
        self.above.truncate(self.above.len() - lines);
        (self.live, self.row) = (Vec::new(), 0);
        self.draw(finished, live, cursor)
    }

    /// Clears so many rows from the cursor's on, which stays. Row by row: what is cleared as a whole goes into some
    /// terminals' scrollback, once more.
    fn erase(&mut self, rows: usize) {
        self.bytes.push_str("\x1b7");
        for _ in 0..rows {
            self.bytes.push_str("\x1b[2K\x1b[1B");
        }
        self.bytes.push_str("\x1b8");
    }

    /// How many finished lines are on a screen of this size, and will be drawn again by [`Self::repaint`].
    pub fn owned(&self, size: (u16, u16)) -> usize {
        self.reach(size).0
    }

    /// How many finished lines are on the screen, and how many rows they and the live ones above the cursor take, now
    /// that the terminal has wrapped lines that were too wide.
    fn reach(&self, size: (u16, u16)) -> (usize, usize) {
        let (columns, most) = (usize::from(size.0.max(1)), usize::from(size.1).saturating_sub(1));
        let taken = |wide: usize| wide.div_ceil(columns).max(1);
        let mut rows: usize = self.live.iter().take(self.row).map(|line| taken(shown_width(line))).sum();
        let mut lines = 0;
        for wide in self.above.iter().rev() {
            if rows >= most {
                break;
            }
            rows += taken(*wide);
            lines += 1;
        }
        (lines, rows.min(most))
    }

    /// Takes the size of a terminal that is as wide as before; says whether all can stay as it is.
    pub fn set_rows(&mut self, rows: u16) -> bool {
        self.size.1 = rows;
        self.live.len() < usize::from(rows)
    }

    /// Takes the live lines away, with the cursor where they began: what others write follows what is finished.
    pub fn leave(&mut self) -> io::Result<()> {
        self.leave_page();
        self.go_top();
        self.let_go("\x1b[J\x1b[?25h")
    }

    /// Leaves the live lines where they are: a terminal that is a shell's again may hold its words already, and only what
    /// is below the cursor goes.
    pub fn abandon(&mut self) -> io::Result<()> {
        self.leave_page();
        self.let_go("\r\n\x1b[J\x1b[?25h")
    }

    fn let_go(&mut self, last: &str) -> io::Result<()> {
        self.bytes.push_str(last);
        self.above.clear();
        (self.live, self.row) = (Vec::new(), 0);
        self.flush()
    }

    /// Shows these rows over everything, beside the normal buffer, which stays as it is.
    pub fn page(&mut self, rows: &[Line<'_>], cursor: CursorPosition) -> io::Result<()> {
        self.bytes.push_str("\x1b[?2026h");
        let before = self.over.take().unwrap_or_else(|| {
            self.bytes.push_str("\x1b[?1049h\x1b[2J");
            Vec::new()
        });
        self.bytes.push_str("\x1b[?25l\x1b[?7l");
        let most = usize::from(self.size.1.max(1));
        let shown = |row| linked_bytes_of(row, self.columns(), self.links.as_ref());
        let rows: Vec<String> = rows.iter().take(most).map(shown).collect();
        for (at, row) in rows.iter().enumerate() {
            if before.get(at) != Some(row) {
                self.bytes.push_str(&format!("\x1b[{};1H\x1b[2K{row}", at + 1));
            }
        }
        if before.len() > rows.len() {
            self.bytes.push_str(&format!("\x1b[{};1H\x1b[J", rows.len() + 1));
        }
        if let Some((row, column)) = cursor {
            let column = column.min(self.columns().saturating_sub(1));
            self.bytes.push_str(&format!("\x1b[{};{}H\x1b[?25h", row + 1, column + 1));
        }
        self.over = Some(rows);
        self.bytes.push_str(END);
        self.flush()
    }

    /// The same on a screen of another size.
    pub fn repaint_page(
        &mut self,
        size: (u16, u16),
        rows: &[Line<'_>],
        cursor: CursorPosition,
    ) -> io::Result<()> {
        self.size = size;
        if let Some(over) = &mut self.over {
            over.clear();
            self.bytes.push_str("\x1b[2J");
        }
        self.page(rows, cursor)
    }

    fn leave_page(&mut self) {
        if self.over.take().is_some() {
            self.bytes.push_str("\x1b[?1049l");
        }
    }

    fn columns(&self) -> usize {
        usize::from(self.size.0.max(1))
    }

    /// The last of the lines, where there are more than rows: one row stays for what is above.
    fn fitting<'a, 'b>(&self, lines: &'a [Line<'b>]) -> &'a [Line<'b>] {
        let most = usize::from(self.size.1).saturating_sub(1).max(1);
        &lines[lines.len().saturating_sub(most)..]
    }

    /// Writes those live lines that are other than they were.
    fn change(&mut self, live: &[String]) {
        self.go_top();
        let last = live.len().saturating_sub(1);
        for (at, line) in live.iter().enumerate() {
            if self.live.get(at) != Some(line) {
                self.bytes.push('\r');
                self.bytes.push_str("\x1b[2K");
                self.bytes.push_str(line);
            }
            if at < last {
                self.bytes.push_str("\r\n");
            }
        }
        self.row = last;
        if self.live.len() > live.len() {
            if live.is_empty() {
                self.bytes.push_str("\r\x1b[J");
            } else {
                self.bytes.push_str("\r\n\x1b[J\x1b[1A");
            }
        }
    }

    /// To the first column of the first live line.
    fn go_top(&mut self) {
        if self.row > 0 {
            self.bytes.push_str(&format!("\x1b[{}A", self.row));
        }
        self.bytes.push('\r');
        self.row = 0;
    }

    fn move_by(&mut self, down: usize) {
        if down > 0 {
            self.bytes.push_str(&format!("\x1b[{down}B"));
        }
    }

    fn put_cursor(&mut self, cursor: CursorPosition) {
        let Some((row, column)) = cursor else { return };
        let row = row.min(self.live.len().saturating_sub(1));
        if row < self.row {
            self.bytes.push_str(&format!("\x1b[{}A", self.row - row));
        } else {
            self.move_by(row - self.row);
        }
        self.row = row;
        self.bytes.push('\r');
        let column = column.min(self.columns().saturating_sub(1));
        if column > 0 {
            self.bytes.push_str(&format!("\x1b[{column}C"));
        }
        self.bytes.push_str("\x1b[?25h");
    }

    fn only_cursor(&mut self, cursor: CursorPosition) -> io::Result<()> {
        self.put_cursor(cursor);
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(self.bytes.as_bytes()).and_then(|()| self.out.flush());
        self.bytes.clear();
        written
    }
}

/// How wide a line is that was made for the terminal.
fn shown_width(bytes: &str) -> usize {
    let mut wide = 0;
    let mut rest = bytes;
    while let Some(at) = rest.find('\x1b') {
        wide += rest[..at].width();
        // Only colours stand in such a line, and each ends with this letter.
        rest = rest[at..].split_once('m').map_or("", |(_, rest)| rest);
    }
    wide + rest.width()
}

/// A line as bytes: styled, cut at this many columns, and plain at its end.
fn bytes_of(line: &Line<'_>, columns: usize) -> String {
    linked_bytes_of(line, columns, None)
}

/// The same with what leads somewhere as links.
fn linked_bytes_of(line: &Line<'_>, columns: usize, links: Option<&LinkBase>) -> String {
    let found = links.map(|links| links.of(&line.to_string())).unwrap_or_default();
    let mut found = found.into_iter().peekable();
    let mut bytes = String::new();
    let (mut used, mut shown) = (0, Style::default());
    // Where the text of the line stands, and where the link ends that is open.
    let (mut at, mut end) = (0, None);
    for span in &line.spans {
        if used >= columns {
            break;
        }
        let style = line.style.patch(span.style);
        if style != shown {
            bytes.push_str(&escape(style));
            shown = style;
        }
        for grapheme in span.content.graphemes(true) {
            if end.take_if(|end| at >= *end).is_some() {
                bytes.push_str(links::END);
            }
            if let Some((range, begin)) = found.next_if(|(range, _)| at >= range.start && used < columns) {
                bytes.push_str(&begin);
                end = Some(range.end);
            }
            at += grapheme.len();
            // The last gate: no control character passes, from any source.
            if grapheme.contains(char::is_control) {
                continue;
            }
            used += grapheme.width();
            if used > columns {
                break;
            }
            bytes.push_str(grapheme);
        }
    }
    if end.is_some() {
        bytes.push_str(links::END);
    }
    if shown != Style::default() {
        bytes.push_str("\x1b[0m");
    }
    bytes
}

/// The sequence that sets a style and nothing of the one before.
fn escape(style: Style) -> String {
    let mut codes = vec!["0".to_owned()];
    let modifiers = [
        (Modifier::BOLD, 1),
        (Modifier::DIM, 2),
        (Modifier::ITALIC, 3),
        (Modifier::UNDERLINED, 4),
        (Modifier::REVERSED, 7),
        (Modifier::CROSSED_OUT, 9),
    ];
    codes.extend(
        modifiers
            .iter()
            .filter(|(modifier, _)| style.add_modifier.contains(*modifier))
            .map(|(_, code)| code.to_string()),
    );
    codes.extend(style.fg.and_then(|color| color_code(color, 30)));
    codes.extend(style.bg.and_then(|color| color_code(color, 40)));
    format!("\x1b[{}m", codes.join(";"))
}

/// The code of a colour: of one of the terminal's own sixteen, or of one that a person's own program wants.
fn color_code(color: Color, base: u8) -> Option<String> {
    let (index, bright) = match color {
        Color::Black => (0, false),
        Color::Red => (1, false),
        Color::Green => (2, false),
        Color::Yellow => (3, false),
        Color::Blue => (4, false),
        Color::Magenta => (5, false),
        Color::Cyan => (6, false),
        Color::Gray => (7, false),
        Color::DarkGray => (0, true),
        Color::LightRed => (1, true),
        Color::LightGreen => (2, true),
        Color::LightYellow => (3, true),
        Color::LightBlue => (4, true),
        Color::LightMagenta => (5, true),
        Color::LightCyan => (6, true),
        Color::White => (7, true),
        Color::Indexed(index) => return Some(format!("{};5;{index}", base + 8)),
        Color::Rgb(red, green, blue) => return Some(format!("{};2;{red};{green};{blue}", base + 8)),
        Color::Reset => return None,
    };
    Some((base + index + if bright { 60 } else { 0 }).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::text::Span;

    /// A terminal that is looked at.
    struct Seen {
        screen: TerminalScreen<Vec<u8>>,
        terminal: vt100::Parser,
    }

    impl Seen {
        fn new(columns: u16, rows: u16) -> Self {
            let mut terminal = vt100::Parser::new(rows, columns, 1000);
            terminal.process(b"$ decurion\r\n");
            Self { screen: TerminalScreen::new(Vec::new(), (columns, rows)), terminal }
        }

        fn draw(&mut self, finished: &[&str], live: &[&str], cursor: CursorPosition) -> usize {
            let lines =
                |texts: &[&str]| texts.iter().map(|text| Line::raw((*text).to_owned())).collect::<Vec<_>>();
            self.screen.draw(&lines(finished), &lines(live), cursor).unwrap();
            self.process()
        }

        fn process(&mut self) -> usize {
            let bytes = std::mem::take(&mut self.screen.out);
            self.terminal.process(&bytes);
            bytes.len()
        }

        /// What is shown, row by row, without empty rows at the end.
        fn shown(&self) -> Vec<String> {
            let contents = self.terminal.screen().contents();
            contents.trim_end().split('\n').map(|row| row.trim_end().to_owned()).collect()
        }

        fn cursor(&self) -> (u16, u16) {
            self.terminal.screen().cursor_position()
        }
    }

    #[test]
    fn live_lines_stay_below_what_is_finished() {
        let mut seen = Seen::new(20, 6);
        seen.draw(&[], &["> ", "status"], Some((0, 2)));
        assert_eq!(
            (seen.shown(), seen.cursor()),
            (vec!["$ decurion".into(), ">".into(), "status".into()], (1, 2))
        );
        seen.draw(&["hello"], &["> a", "status"], Some((0, 3)));
        assert_eq!(seen.shown(), ["$ decurion", "hello", "> a", "status"]);
        // More than fits: the first goes to the scrollback.
        seen.draw(&["one", "two", "three"], &["> ab", "two", "status"], Some((1, 1)));
        assert_eq!(seen.shown(), ["one", "two", "three", "> ab", "two", "status"]);
        assert_eq!(seen.cursor(), (4, 1));
        seen.draw(&[], &["> "], Some((0, 2)));
        assert_eq!(
            (seen.shown(), seen.cursor()),
            (vec!["one".into(), "two".into(), "three".into(), ">".into()], (3, 2))
        );
        seen.terminal.screen_mut().set_scrollback(2);
        assert_eq!(seen.shown()[..2], ["$ decurion", "hello"]);
    }

    #[test]
    fn only_what_changes_is_written() {
        let mut seen = Seen::new(40, 10);
        let first = seen.draw(&[], &["a long line that stays", "another that stays", "> "], Some((2, 2)));
        let nothing = seen.draw(&[], &["a long line that stays", "another that stays", "> "], Some((2, 2)));
        let key = seen.draw(&[], &["a long line that stays", "another that stays", "> x"], Some((2, 3)));
        assert!(key < first && nothing < key && nothing < 20, "{first} {key} {nothing}");
        assert_eq!(seen.shown()[3], "> x");
    }

    #[test]
    fn a_repaint_starts_from_nothing_and_more_than_fits_shows_its_end() {
        let mut seen = Seen::new(20, 4);
        seen.draw(&["x"], &["a", "b", "c", "d", "e", "f"], Some((5, 0)));
        assert_eq!(seen.shown(), ["x", "d", "e", "f"]);
        seen.terminal.screen_mut().set_size(5, 10);
        let (above, live) = ([Line::raw("0123456789"), Line::raw("y")], [Line::raw("> 日本語日本語")]);
        seen.screen.repaint((10, 5), &above, &live, Some((0, 30))).unwrap();
        seen.process();
        assert_eq!(seen.shown(), ["0123456789", "y", "> 日本語日"]);
        assert_eq!(seen.cursor(), (2, 9));
    }

    #[test]
    fn nothing_passes_that_commands_the_terminal_and_styles_end_with_their_line() {
        let style = Style::new().fg(Color::LightRed).add_modifier(Modifier::BOLD);
        let line = Line::from(vec![Span::raw("a\x1b[2Jb\u{9b}"), Span::styled("red", style)]);
        assert_eq!(bytes_of(&line, 80), "a[2Jb\x1b[0;1;91mred\x1b[0m");
        assert_eq!(bytes_of(&line, 2), "a[");
        let other = Style::new().fg(Color::Indexed(208)).bg(Color::Rgb(1, 2, 3));
        assert_eq!(bytes_of(&Line::styled("x", other), 80), "\x1b[0;38;5;208;48;2;1;2;3mx\x1b[0m");
    }

    #[test]
    fn links_stand_in_finished_lines_alone_and_are_closed_where_they_are_cut() {
        let links = LinkBase { host: "h".to_owned(), folder: "/w".to_owned() };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let line = Line::from(vec![Span::raw("in src/"), Span::styled("a.rs:3", bold), Span::raw(" it")]);
        let begin = "\x1b]8;;file://h/w/src/a.rs\x1b\\";
        assert_eq!(
            linked_bytes_of(&line, 80, Some(&links)),
            format!("in {begin}src/\x1b[0;1ma.rs:3\x1b[0m{} it", links::END)
        );
        assert_eq!(linked_bytes_of(&line, 5, Some(&links)), format!("in {begin}sr{}", links::END));
        let mut screen = TerminalScreen::new(Vec::new(), (80, 5)).linking(Some(links));
        screen.draw(std::slice::from_ref(&line), std::slice::from_ref(&line), None).unwrap();
        let bytes = String::from_utf8(screen.out).unwrap();
        assert_eq!(bytes.matches(begin).count(), 1, "{bytes:?}");
    }

    #[test]
    fn leaving_takes_the_live_lines_away() {
        let mut seen = Seen::new(20, 6);
        seen.draw(&["done"], &["> ", "status"], Some((0, 2)));
        let began = seen.cursor().0;
        seen.screen.leave().unwrap();
        seen.process();
        assert_eq!((seen.shown().last().map(String::as_str), seen.cursor()), (Some("done"), (began, 0)));
    }
}
