//! Lists for people. Takes heads and cells, prints them in columns: in colour on a terminal, plain for a pipe or a file.
//! Also what cells are made of: short ids and times.

use std::iter::zip;

use decurion_protocol::Clock as _;
use jiff::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use crate::clock::SystemClock;
use crate::report::{self, visible};
use crate::screen::{OutputTerminal, TextStyle};

/// The least of an id that is shown.
const SHORTEST_ID: usize = 8;
/// The last column has at least this many columns, however narrow the terminal is.
const LEAST_LAST: usize = 20;
const GAP: &str = "  ";

#[derive(Clone, Debug)]
pub struct TableCell {
    text: String,
    style: TextStyle,
}

impl TableCell {
    /// A cell in a style. What it says is made visible and put on one line.
    pub fn new(style: TextStyle, text: impl AsRef<str>) -> Self {
        Self { text: visible(text.as_ref()), style }
    }
}

impl<T: AsRef<str>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self::new(TextStyle::Plain, text)
    }
}

pub struct TextTable {
    heads: Vec<&'static str>,
    rows: Vec<Vec<TableCell>>,
    is_cut: bool,
}

impl TextTable {
    /// One with these heads and no rows.
    pub fn new<const N: usize>(heads: [&'static str; N]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new(), is_cut: true }
    }

    /// The same with a last column that is never cut, because it is to be read whole.
    pub fn whole(self) -> Self {
        Self { is_cut: false, ..self }
    }

    /// Adds a row: a cell for each head.
    pub fn row<const N: usize>(&mut self, cells: [TableCell; N]) {
        self.rows.push(Vec::from(cells));
    }

    /// Prints it. Columns in which no row has anything are left out.
    pub fn print(&self) {
        let terminal = OutputTerminal::look();
        for line in self.lines(terminal.width.filter(|_| self.is_cut)) {
            let parts: Vec<(TextStyle, &str)> =
                line.iter().map(|(style, text)| (*style, text.as_str())).collect();
            report::styled_line(&parts, terminal.has_colours);
        }
    }

    /// The lines, each in parts.
    fn lines(&self, width: Option<usize>) -> Vec<Vec<(TextStyle, String)>> {
        let used: Vec<usize> = (0..self.heads.len())
            .filter(|&column| self.rows.iter().any(|row| !row[column].text.is_empty()))
            .collect();
        let widths: Vec<usize> = used
            .iter()
            .map(|&column| {
                let cells = self.rows.iter().map(|row| row[column].text.width());
                cells.chain([self.heads[column].width()]).max().unwrap_or_default()
            })
            .collect();
        let before: usize = widths.iter().rev().skip(1).map(|width| width + GAP.len()).sum();
        let last = width.map(|width| width.saturating_sub(before).max(LEAST_LAST));
        let line = |cells: Vec<(TextStyle, &str)>| {
            let count = cells.len();
            let mut parts = Vec::with_capacity(count);
            for (at, ((style, text), width)) in zip(cells, &widths).enumerate() {
                let is_last = at + 1 == count;
                let text = if is_last { cut(text, last) } else { text.to_owned() };
                let fill = if is_last { 0 } else { (width + GAP.len()).saturating_sub(text.width()) };
                parts.push((style, text));
                parts.push((TextStyle::Plain, " ".repeat(fill)));
            }
            trimmed(parts)
        };
        let heads = line(used.iter().map(|&column| (TextStyle::Faint, self.heads[column])).collect());
        let rows = self.rows.iter().map(|row| {
            line(used.iter().map(|&column| (row[column].style, row[column].text.as_str())).collect())
        });
        if self.rows.is_empty() { Vec::new() } else { [heads].into_iter().chain(rows).collect() }
    }
}

/// The same parts without blanks at the end.
fn trimmed(mut parts: Vec<(TextStyle, String)>) -> Vec<(TextStyle, String)> {
    while let Some((_, text)) = parts.last_mut() {
        text.truncate(text.trim_end().len());
        if !text.is_empty() {
            break;
        }
        parts.pop();
    }
    parts
}

/// The beginning of a text that fits.
fn cut(text: &str, most: Option<usize>) -> String {
    let Some(most) = most.filter(|most| text.width() > *most) else { return text.to_owned() };
    let mut fitting = String::new();
    for letter in text.chars() {
        fitting.push(letter);
        if fitting.width() >= most {
            fitting.pop();
            break;
        }
    }
    fitting + "…"
}

/// How much of each of these ids tells it from the others, and at least eight characters.
pub fn short_ids<'a>(all: impl IntoIterator<Item = &'a str>) -> usize {
    let mut all: Vec<&str> = all.into_iter().collect();
    all.sort_unstable();
    all.dedup();
    let common =
        |pair: &[&str]| zip(pair[0].bytes(), pair[1].bytes()).take_while(|(one, other)| one == other).count();
    let longest = all.windows(2).map(common).max().unwrap_or_default();
    SHORTEST_ID.max(longest + 1)
}

/// The beginning of an id.
pub fn short(id: &str, length: usize) -> &str {
    id.get(..length).unwrap_or(id)
}

/// How long ago a time was.
pub fn ago(then: Option<Timestamp>) -> String {
    then.map(|then| ago_at(then, SystemClock::new().date())).unwrap_or_default()
}

fn ago_at(then: Timestamp, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let seconds = now.duration_since(then).as_secs();
    match seconds {
        ..0 => then.strftime("%Y-%m-%d %H:%M").to_string(),
        0..10 => "just now".to_owned(),
        10..MINUTE => format!("{seconds} s ago"),
        MINUTE..HOUR => format!("{} min ago", seconds / MINUTE),
        HOUR..DAY => format!("{} h ago", seconds / HOUR),
        _ if seconds < 2 * DAY => "1 day ago".to_owned(),
        _ if seconds < 30 * DAY => format!("{} days ago", seconds / DAY),
        _ => then.strftime("%Y-%m-%d").to_string(),
    }
}

/// A size in bytes.
pub fn size(bytes: u64) -> String {
    match bytes.div_ceil(1024) {
        kilobytes @ 0..10_240 => format!("{kilobytes} KB"),
        kilobytes => format!("{} MB", kilobytes / 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &TextTable, width: Option<usize>) -> String {
        let line =
            |parts: Vec<(TextStyle, String)>| parts.into_iter().map(|(_, text)| text).collect::<String>();
        table.lines(width).into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_the_last_is_cut_to_the_terminal() {
        let mut table = TextTable::new(["ID", "NONE", "WHEN", "TITLE"]);
        table.row(["a1".into(), "".into(), "3 min ago".into(), "日本語 and some more words".into()]);
        table.row(["b123".into(), "".into(), "now".into(), "a\u{1b}[2Jb".into()]);
        table.row(["c".into(), "".into(), "now".into(), "".into()]);
        expect_test::expect![[r"
            ID    WHEN       TITLE
            a1    3 min ago  日本語 and some more words
            b123  now        a\u{1b}[2Jb
            c     now"]]
        .assert_eq(&shown(&table, None));
        expect_test::expect![[r"
            ID    WHEN       TITLE
            a1    3 min ago  日本語 and some mor…
            b123  now        a\u{1b}[2Jb
            c     now"]]
        .assert_eq(&shown(&table, Some(10)));
        assert_eq!(shown(&TextTable::new(["ID"]), None), "");
    }

    #[test]
    fn an_id_is_as_short_as_tells_it_from_the_others() {
        assert_eq!(short_ids(["11111111-2222", "22222222-2222"]), 8);
        assert_eq!(short_ids(["11111111-2222", "11111111-2232", "x"]), 12);
        assert_eq!((short_ids([]), short_ids(["a", "a"])), (8, 8));
        assert_eq!((short("abc", 8), short("abcdefghij", 8)), ("abc", "abcdefgh"));
    }

    #[test]
    fn a_time_is_told_by_how_long_ago_it_was() {
        let now: Timestamp = "2026-05-31T10:00:00Z".parse().unwrap();
        for (then, told) in [
            ("2026-05-31T09:59:55Z", "just now"),
            ("2026-05-31T09:59:20Z", "40 s ago"),
            ("2026-05-31T09:57:00Z", "3 min ago"),
            ("2026-05-31T07:01:00Z", "2 h ago"),
            ("2026-05-30T09:00:00Z", "1 day ago"),
            ("2026-05-20T09:00:00Z", "11 days ago"),
            ("2026-01-20T09:00:00Z", "2026-01-20"),
            ("2026-06-20T09:00:00Z", "2026-06-20 09:00"),
        ] {
            assert_eq!(ago_at(then.parse().unwrap(), now), told);
        }
    }
}
