//! Text that is safe to show and fits. Takes a text from a model, a tool or a file; gives text without terminal
//! commands, and lines no wider than allowed.

use std::borrow::Cow;

pub use decurion_protocol::visible::visible;
use ratatui_core::style::Style;
use ratatui_core::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

/// The same text without the escape sequences that a program meant for a terminal, each line as it looked at its end;
/// other control characters are made visible.
pub fn plain(text: &str) -> Cow<'_, str> {
    if let Cow::Borrowed(same) = visible(text) {
        return Cow::Borrowed(same);
    }
    let mut shown = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            shown.push('\n');
        }
        let line = without_sequences(line.strip_suffix('\r').unwrap_or(line));
        // A program that counts goes back to the beginning of its line each time.
        let last = line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default();
        shown.push_str(&visible(last));
    }
    Cow::Owned(shown)
}

/// One line of text, however many it was: for titles and lists.
pub fn one_line(text: &str) -> String {
    let shown = visible(text);
    let mut words = shown.split_whitespace();
    let mut line = words.next().unwrap_or_default().to_owned();
    for word in words {
        line.push(' ');
        line.push_str(word);
    }
    line
}

/// A line without whole escape sequences.
pub(crate) fn without_sequences(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['\u{1b}', '\u{9b}']) {
        kept.push_str(&rest[..at]);
        let sequence = sequence_length(&rest[at..]);
        if sequence == 0 {
            // Not one: what introduces it is shown.
            let introduces = rest[at..].chars().next().map_or(0, char::len_utf8);
            kept.push_str(&rest[at..at + introduces]);
            rest = &rest[at + introduces..];
        } else {
            rest = &rest[at + sequence..];
        }
    }
    kept.push_str(rest);
    kept
}

/// How many bytes the escape sequence at the beginning of a text takes; 0 if it is none, or not whole.
fn sequence_length(text: &str) -> usize {
    let (introducer, rest) = if let Some(rest) = text.strip_prefix('\u{9b}') {
        ('[', rest)
    } else {
        let mut letters = text[1..].chars();
        let Some(letter) = letters.next() else { return 0 };
        (letter, letters.as_str())
    };
    let before = text.len() - rest.len();
    match introducer {
        '[' => {
            let end = rest.find(|letter: char| !matches!(letter, '\u{20}'..='\u{3f}'));
            end.filter(|end| matches!(rest.as_bytes()[*end], 0x40..=0x7e)).map_or(0, |end| before + end + 1)
        }
        // Texts for the terminal: up to a bell or the end of a string.
        ']' | 'P' | 'X' | '^' | '_' => {
            let bell = rest.find('\u{7}').map(|at| at + 1);
            let end = rest.find("\u{1b}\\").map(|at| at + 2);
            bell.into_iter().chain(end).min().map_or(0, |end| before + end)
        }
        '(' | ')' | '*' | '+' | '#' | '%' | ' ' => {
            rest.chars().next().filter(char::is_ascii_graphic).map_or(0, |letter| before + letter.len_utf8())
        }
        '\u{30}'..='\u{7e}' => before,
        _ => 0,
    }
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    text.width()
}

/// As much of a text as fits, with `…` where something is missing.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if text.width() <= columns {
        return Cow::Borrowed(text);
    }
    let Some(room) = columns.checked_sub(1) else { return Cow::Borrowed("") };
    let mut taken = 0;
    let fits = text.grapheme_indices(true).find(|(_, grapheme)| {
        taken += grapheme.width();
        taken > room
    });
    Cow::Owned(format!("{}…", &text[..fits.map_or(text.len(), |(at, _)| at)]))
}

/// The same for a line with styles.
pub fn cut_line(line: Line<'static>, columns: usize) -> Line<'static> {
    if line.width() <= columns {
        return line;
    }
    let mut room = columns;
    let mut spans = Vec::new();
    for span in line.spans {
        // Text that fits exactly is cut too: more follows, or it would not be too wide.
        let is_last = span.width() >= room;
        let text = if is_last {
            cut(&format!("{}…", span.content), room).into_owned()
        } else {
            span.content.into()
        };
        room -= width(&text).min(room);
        spans.push(Span::styled(text, span.style));
        if is_last {
            break;
        }
    }
    Line { spans, style: line.style, alignment: line.alignment }
}

/// Breaks a line into those that fit, at spaces if possible, so that addresses, paths and `file:line` stay whole and
/// clickable. Every line but the first begins with `hang`.
pub fn wrap(line: Line<'static>, columns: usize, hang: &str) -> Vec<Line<'static>> {
    let columns = columns.max(1);
    if line.width() <= columns {
        return vec![line];
    }
    let hang = if hang.width() * 2 > columns { "" } else { hang };
    let mut wrapper =
        Wrapper { columns, hang, style: line.style, done: Vec::new(), now: Vec::new(), used: 0 };
    for span in line.spans {
        let mut rest: &str = &span.content;
        while !rest.is_empty() {
            let word = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
            if is_whole(word) && word.width() <= columns - hang.width() {
                wrapper.piece(word, span.style);
            } else {
                word.split_word_bounds().for_each(|piece| wrapper.piece(piece, span.style));
            }
            rest = &rest[word.len()..];
            let space = &rest[..rest.find(|letter: char| !letter.is_whitespace()).unwrap_or(rest.len())];
            space.split_word_bounds().for_each(|piece| wrapper.piece(piece, span.style));
            rest = &rest[space.len()..];
        }
    }
    wrapper.finish()
}

/// Whether a word is broken only where it is wider than a line: not in a script that writes words without spaces.
fn is_whole(word: &str) -> bool {
    word.is_ascii() || word.contains('/')
}

/// Lines that are being filled.
struct Wrapper<'a> {
    columns: usize,
    hang: &'a str,
    style: Style,
    done: Vec<Line<'static>>,
    now: Vec<Span<'static>>,
    used: usize,
}

impl Wrapper<'_> {
    /// A word, a space or a mark.
    fn piece(&mut self, piece: &str, style: Style) {
        let wide = piece.width();
        let is_space = piece.chars().all(char::is_whitespace);
        if self.used + wide <= self.columns {
            // A continued line does not begin with the space that it was broken at.
            if !(is_space && !self.done.is_empty() && self.used == self.beginning()) {
                self.push(piece, style, wide);
            }
            return;
        }
        if is_space {
            self.turn();
            return;
        }
        // A mark stays with the word before it, where that word is not a whole line.
        let sticks = piece
            .chars()
            .all(|letter| letter.is_ascii_punctuation() || "，。、；：！？）」』】".contains(letter));
        let carried = if sticks { self.last_word() } else { Vec::new() };
        if self.used > self.beginning() {
            self.turn();
        }
        for span in carried {
            let wide = span.content.width();
            self.push(&span.content, span.style, wide);
        }
        if self.used + wide <= self.columns {
            self.push(piece, style, wide);
            return;
        }
        for grapheme in piece.graphemes(true) {
            let wide = grapheme.width();
            if self.used + wide > self.columns && self.used > self.beginning() {
                self.turn();
            }
            self.push(grapheme, style, wide);
        }
    }

    /// Takes back what stands behind the last space of this line; nothing if there is no space.
    fn last_word(&mut self) -> Vec<Span<'static>> {
        let is_space = |span: &Span<'static>| span.content.ends_with(char::is_whitespace);
        let Some(at) = self.now.iter().rposition(is_space) else { return Vec::new() };
        if self.now[at + 1..].iter().map(Span::width).sum::<usize>() * 2 > self.columns {
            return Vec::new();
        }
        self.now.split_off(at + 1)
    }

    /// How much of a line is used before anything is on it.
    fn beginning(&self) -> usize {
        if self.done.is_empty() { 0 } else { self.hang.width() }
    }

    fn push(&mut self, text: &str, style: Style, wide: usize) {
        self.used += wide;
        match self.now.last_mut() {
            // Words stay apart from spaces, so that the last word can be found.
            Some(last)
                if last.style == style
                    && last.content.ends_with(char::is_whitespace) == text.ends_with(char::is_whitespace) =>
            {
                last.content.to_mut().push_str(text);
            }
            _ => self.now.push(Span::styled(text.to_owned(), style)),
        }
    }

    fn turn(&mut self) {
        let mut spans = std::mem::take(&mut self.now);
        if let Some(last) = spans.last_mut() {
            let kept = last.content.trim_end().len();
            last.content.to_mut().truncate(kept);
        }
        self.done.push(Line { spans, style: self.style, alignment: None });
        self.used = 0;
        if !self.hang.is_empty() {
            self.push(self.hang, Style::default(), self.hang.width());
        }
    }

    fn finish(mut self) -> Vec<Line<'static>> {
        if self.used > self.beginning() || self.done.is_empty() {
            let spans = std::mem::take(&mut self.now);
            self.done.push(Line { spans, style: self.style, alignment: None });
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_commands_the_terminal() {
        let table = [
            ("plain text, ünïcode, 日本", "plain text, ünïcode, 日本", "plain text, ünïcode, 日本"),
            ("two\nlines", "two\nlines", "two\nlines"),
            ("\u{1b}[31mred\u{1b}[0m", "␛[31mred␛[0m", "red"),
            ("\u{1b}]0;title\u{7}x", "␛]0;title␇x", "x"),
            ("\u{1b}]8;;http://a\u{1b}\\b", "␛]8;;http://a␛\\b", "b"),
            ("\u{1b}]0;no end", "␛]0;no end", "␛]0;no end"),
            ("\u{1b}[2", "␛[2", "␛[2"),
            ("\u{1b}", "␛", "␛"),
            ("\u{1b}[2\u{7}J", "␛[2␇J", "␛[2␇J"),
            ("\u{9b}2Jx", "\u{fffd}2Jx", "x"),
            ("\u{1b}Pq#1\u{1b}\\y", "␛Pq#1␛\\y", "y"),
            ("\u{1b}(0q", "␛(0q", "q"),
            ("\u{1b}cx", "␛cx", "x"),
            ("10 %\r20 %\r100 %\r\ndone", "10 %␍20 %␍100 %␍\ndone", "100 %\ndone"),
            ("a\tb\u{8}c\u{7f}", "a    b␈c␡", "a    b␈c␡"),
            ("rm \u{202e}txt.exe", "rm \u{fffd}txt.exe", "rm \u{fffd}txt.exe"),
            ("a\u{200b}b\u{feff}", "a\u{fffd}b\u{fffd}", "a\u{fffd}b\u{fffd}"),
            ("r\u{ad}m\u{3164}x", "r\u{fffd}m\u{fffd}x", "r\u{fffd}m\u{fffd}x"),
            ("r\u{fe0f}m \u{200d}a", "r\u{fffd}m \u{fffd}a", "r\u{fffd}m \u{fffd}a"),
            ("日\u{e0100}\u{e0101}", "日\u{e0100}\u{fffd}", "日\u{e0100}\u{fffd}"),
            (
                "👩\u{200d}💻 ❤\u{fe0f}\u{200d}🔥 1\u{fe0f}\u{20e3}",
                "👩\u{200d}💻 ❤\u{fe0f}\u{200d}🔥 1\u{fe0f}\u{20e3}",
                "👩\u{200d}💻 ❤\u{fe0f}\u{200d}🔥 1\u{fe0f}\u{20e3}",
            ),
        ];
        for (text, seen, program) in table {
            assert_eq!((visible(text).as_ref(), plain(text).as_ref()), (seen, program), "{text:?}");
        }
    }

    fn wrapped(text: &str, columns: usize, hang: &str) -> Vec<String> {
        wrap(Line::raw(text.to_owned()), columns, hang).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lines_break_at_spaces_where_they_can_and_are_never_too_wide() {
        assert_eq!(wrapped("one two three", 8, ""), ["one two", "three"]);
        assert_eq!(wrapped("one two three", 8, "  "), ["one two", "  three"]);
        assert_eq!(wrapped("one two, three", 7, ""), ["one", "two,", "three"]);
        assert_eq!(wrapped("abcdefghij", 4, ""), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("日本語の文章", 5, ""), ["日本", "語の", "文章"]);
        assert_eq!(wrapped("a  👨‍👩‍👧 b", 4, ""), ["a", "👨‍👩‍👧 b"]);
        assert_eq!(wrapped("", 4, ""), [""]);
        assert_eq!(wrapped("日", 1, ""), ["日"]);
        for columns in 1..30 {
            for line in
                wrapped("it's a /very/long/path/to.rs, (with) 混ざった text — and more…", columns, "  ")
            {
                assert!(width(&line) <= columns.max(2), "{columns}: {line:?}");
            }
        }
    }

    #[test]
    fn addresses_and_places_in_files_stay_whole_where_they_fit() {
        assert_eq!(
            wrapped("see https://ui.perfetto.dev now", 24, ""),
            ["see", "https://ui.perfetto.dev", "now"]
        );
        let shown = wrapped("in src/日本/main.rs:18:07, again", 25, "  ");
        assert_eq!(shown, ["in", "  src/日本/main.rs:18:07,", "  again"]);
        assert_eq!(wrapped("at https://example.com/a", 12, ""), ["at https://", "example.com/", "a"]);
    }

    #[test]
    fn nothing_is_lost_by_wrapping() {
        let text = "the quick (brown) fox, 日本語 jumps over   the lazy dog; really-long-words-are-broken";
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        for columns in 2..100 {
            assert_eq!(letters(&wrapped(text, columns, " ").join(" ")), letters(text), "{columns}");
        }
    }

    #[test]
    fn a_cut_says_so() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("x", 0), "");
        let parts = || Line::from(vec![Span::raw("one "), Span::raw("日本"), Span::raw(" two")]);
        let table = [
            (12, "one 日本 two"),
            (11, "one 日本 t…"),
            (8, "one 日…"),
            (7, "one 日…"),
            (5, "one …"),
            (4, "one…"),
            (1, "…"),
            (0, ""),
        ];
        for (columns, seen) in table {
            assert_eq!(cut_line(parts(), columns).to_string(), seen, "{columns}");
        }
    }
}
