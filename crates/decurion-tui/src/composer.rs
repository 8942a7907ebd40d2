//! The prompt being written. Takes edits; gives the text, where its cursor is, and its rows at a width.
//!
//! Large pastes are folded: one of them is a single character of a private range here, which the cursor passes in one
//! step and one key deletes. A crate's text area cannot hold such a character, nor move by the rows it is wrapped to.

pub mod vim;

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

use crate::text::visible;

/// A paste of more lines or bytes than this is folded.
const FOLDED_LINES: usize = 5;
const FOLDED_BYTES: usize = 1000;
/// The characters that stand for pastes.
const FIRST: u32 = 0xF_0000;
const MOST_PASTES: usize = 1000;
/// How many changes can be taken back.
const MOST_UNDONE: usize = 200;

/// What is being written.
#[derive(Clone, Debug, Default)]
pub struct Composer {
    text: String,
    cursor: usize,
    pastes: Vec<String>,
    /// What was cut last.
    cut: String,
    /// The column that going up and down keeps to.
    column: Option<usize>,
    done: Vec<(String, usize)>,
    undone: Vec<(String, usize)>,
    /// Whether the next letter belongs to the change before it.
    typing: bool,
}

/// One change or move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComposerEdit {
    Type(char),
    Delete(CursorMotion),
    /// Delete and keep for [`ComposerEdit::Yank`].
    Cut(CursorMotion),
    Move(CursorMotion),
    /// Put what was cut.
    Yank,
    Undo,
    Redo,
}

/// From the cursor to somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorMotion {
    Left,
    Right,
    /// To the beginning of a word.
    WordLeft,
    WordRight,
    /// To the beginning of the line.
    LineStart,
    LineEnd,
    /// To the beginning of everything.
    Start,
    End,
}

/// One row of the text as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComposerRow {
    /// Which part of the text.
    pub range: Range<usize>,
    /// As it is shown.
    pub shown: String,
}

impl Composer {
    /// One with this text, the cursor at its end.
    pub fn with(text: &str) -> Self {
        let mut composer = Self::default();
        composer.insert(text);
        composer
    }

    /// The text with what is folded in it.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.text.len());
        for letter in self.text.chars() {
            match self.paste(letter) {
                Some(paste) => text.push_str(paste),
                None => text.push(letter),
            }
        }
        text
    }

    /// The text as it is written, folds as one character each.
    pub fn raw(&self) -> &str {
        &self.text
    }

    /// Where the cursor is in [`Self::raw`].
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Empties it and gives the text; that can be taken back.
    pub fn take(&mut self) -> String {
        let text = self.text();
        self.remember(false);
        self.text.clear();
        self.cursor = 0;
        text
    }

    /// Another text in place of this one.
    pub fn set(&mut self, text: &str) {
        self.remember(false);
        self.text = Self::taken(text);
        self.cursor = self.text.len();
    }

    /// Puts a text before what is written.
    pub fn put_before(&mut self, text: &str) {
        if self.is_empty() {
            return self.set(text);
        }
        let all = format!("{text}\n\n{}", self.text());
        self.set(&all);
    }

    fn paste(&self, letter: char) -> Option<&str> {
        let index = u32::from(letter).checked_sub(FIRST)?;
        self.pastes.get(usize::try_from(index).ok()?).map(String::as_str)
    }

    /// Text from outside: no character of it stands for a paste.
    fn taken(text: &str) -> String {
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        text.chars().map(|letter| if u32::from(letter) >= FIRST { '\u{fffd}' } else { letter }).collect()
    }

    /// Writes a text at the cursor.
    pub fn insert(&mut self, text: &str) {
        self.remember(false);
        let text = Self::taken(text);
        self.put(&text);
    }

    /// Writes a paste, folded if it is large.
    pub fn paste_text(&mut self, text: &str) {
        let text = Self::taken(text);
        let is_large = text.len() > FOLDED_BYTES || text.lines().count() > FOLDED_LINES;
        let letter = u32::try_from(self.pastes.len()).ok().and_then(|count| char::from_u32(FIRST + count));
        match letter.filter(|_| is_large && self.pastes.len() < MOST_PASTES) {
            Some(letter) => {
                self.remember(false);
                self.pastes.push(text);
                self.put(letter.encode_utf8(&mut [0; 4]));
            }
            None => self.insert(&text),
        }
    }

    fn put(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
        self.column = None;
    }

    /// Replaces a part of the text, as completions do.
    pub fn replace(&mut self, range: Range<usize>, text: &str) {
        self.remember(false);
        let text = Self::taken(text);
        self.cursor = range.start + text.len();
        self.text.replace_range(range, &text);
        self.column = None;
    }

    pub fn edit(&mut self, edit: ComposerEdit) {
        match edit {
            ComposerEdit::Type(letter) => {
                let typing = !letter.is_whitespace();
                self.remember(typing);
                self.put(&Self::taken(letter.encode_utf8(&mut [0; 4])));
            }
            ComposerEdit::Delete(motion) => {
                self.remove(motion);
            }
            ComposerEdit::Cut(motion) => {
                let cut = self.remove(motion);
                if !cut.is_empty() {
                    self.cut = cut;
                }
            }
            ComposerEdit::Move(motion) => self.go(self.target(motion)),
            ComposerEdit::Yank => {
                self.remember(false);
                let cut = self.cut.clone();
                self.put(&cut);
            }
            ComposerEdit::Undo => self.undo(),
            ComposerEdit::Redo => self.redo(),
        }
    }

    fn go(&mut self, to: usize) {
        (self.cursor, self.column, self.typing) = (to, None, false);
    }

    /// Takes out what is between the cursor and where the motion leads.
    fn remove(&mut self, motion: CursorMotion) -> String {
        let mut to = self.target(motion);
        if to == self.cursor && motion == CursorMotion::LineEnd {
            // At the end of a line its end is what is left to take.
            to = self.target(CursorMotion::Right);
        }
        let range = to.min(self.cursor)..to.max(self.cursor);
        self.remove_range(range)
    }

    fn remove_range(&mut self, range: Range<usize>) -> String {
        if range.is_empty() {
            return String::new();
        }
        self.remember(false);
        self.cursor = range.start;
        self.column = None;
        self.text.drain(range).collect()
    }

    /// Where a motion leads.
    fn target(&self, motion: CursorMotion) -> usize {
        let (before, after) = self.text.split_at(self.cursor);
        let line = before.rfind('\n').map_or(0, |at| at + 1);
        match motion {
            CursorMotion::Left => before.grapheme_indices(true).next_back().map_or(0, |(at, _)| at),
            CursorMotion::Right => self.cursor + after.graphemes(true).next().map_or(0, str::len),
            CursorMotion::WordLeft => {
                let mut words = before.split_word_bound_indices().rev();
                words.find(|(_, word)| is_word(word)).map_or(0, |(at, _)| at)
            }
            CursorMotion::WordRight => {
                let mut words = after.split_word_bound_indices();
                let word = words.find(|(_, word)| is_word(word));
                word.map_or(self.text.len(), |(at, word)| self.cursor + at + word.len())
            }
            CursorMotion::LineStart => line,
            CursorMotion::LineEnd => self.cursor + after.find('\n').unwrap_or(after.len()),
            CursorMotion::Start => 0,
            CursorMotion::End => self.text.len(),
        }
    }

    /// Remembers how it is before a change. Letters typed one after the other are one change.
    fn remember(&mut self, typing: bool) {
        if !(typing && self.typing) {
            self.done.push((self.text.clone(), self.cursor));
            if self.done.len() > MOST_UNDONE {
                self.done.remove(0);
            }
        }
        self.typing = typing;
        self.undone.clear();
    }

    fn undo(&mut self) {
        if let Some((text, cursor)) = self.done.pop() {
            self.undone.push((std::mem::replace(&mut self.text, text), self.cursor));
            self.go(cursor);
        }
    }

    fn redo(&mut self) {
        if let Some((text, cursor)) = self.undone.pop() {
            self.done.push((std::mem::replace(&mut self.text, text), self.cursor));
            self.go(cursor);
        }
    }

    /// What stands for a character.
    fn shown(&self, grapheme: &str) -> String {
        let letter = grapheme.chars().next().unwrap_or_default();
        match self.paste(letter) {
            Some(paste) => {
                let number = u32::from(letter) - FIRST + 1;
                match paste.lines().count() {
                    0 | 1 => format!("[Pasted text #{number}, {} characters]", paste.chars().count()),
                    lines => format!("[Pasted text #{number}, {lines} lines]"),
                }
            }
            None => visible(grapheme).into_owned(),
        }
    }

    /// The text as rows no wider than this.
    pub fn rows(&self, columns: usize) -> Vec<ComposerRow> {
        crate::fault_point::pass("composer");
        let columns = columns.max(2);
        let mut rows = Vec::new();
        let mut start = 0;
        for line in self.text.split_inclusive('\n') {
            self.line_rows(start, line.strip_suffix('\n').unwrap_or(line), columns, &mut rows);
            start += line.len();
        }
        if self.text.is_empty() || self.text.ends_with('\n') {
            rows.push(ComposerRow { range: start..start, shown: String::new() });
        }
        rows
    }

    fn line_rows(&self, start: usize, line: &str, columns: usize, rows: &mut Vec<ComposerRow>) {
        let (mut row, mut shown, mut used) = (0..0, String::new(), 0);
        for word in line.split_word_bounds() {
            let wide: usize = word.graphemes(true).map(|grapheme| self.shown(grapheme).width()).sum();
            if used > 0 && used + wide > columns && wide <= columns && !word.trim().is_empty() {
                let range = start + row.start..start + row.end;
                rows.push(ComposerRow { range, shown: std::mem::take(&mut shown) });
                (row.start, used) = (row.end, 0);
            }
            for grapheme in word.graphemes(true) {
                let piece = self.shown(grapheme);
                if used > 0 && used + piece.width() > columns {
                    let range = start + row.start..start + row.end;
                    rows.push(ComposerRow { range, shown: std::mem::take(&mut shown) });
                    (row.start, used) = (row.end, 0);
                }
                used += piece.width();
                shown.push_str(&piece);
                row.end += grapheme.len();
            }
        }
        rows.push(ComposerRow { range: start + row.start..start + row.end, shown });
    }

    /// The row and column of the cursor among these rows.
    pub fn place(&self, rows: &[ComposerRow]) -> (usize, usize) {
        // At the end of a wrapped row the cursor is at the beginning of the next.
        let row = rows.iter().rposition(|row| row.range.start <= self.cursor).unwrap_or(0);
        let before =
            rows.get(row).map_or("", |row| &self.text[row.range.start..self.cursor.min(row.range.end)]);
        (row, before.graphemes(true).map(|grapheme| self.shown(grapheme).width()).sum())
    }

    /// Goes up or down one row of this width; says whether there was one.
    pub fn vertical(&mut self, down: bool, columns: usize) -> bool {
        let rows = self.rows(columns);
        let (row, column) = self.place(&rows);
        let wanted = self.column.unwrap_or(column);
        let next = if down { row + 1 } else { row.wrapping_sub(1) };
        let Some(target) = rows.get(next) else { return false };
        let mut at = target.range.start;
        let mut used = 0;
        for grapheme in self.text[target.range.clone()].graphemes(true) {
            used += self.shown(grapheme).width();
            if used > wanted {
                break;
            }
            at += grapheme.len();
        }
        // The end of a wrapped row is the beginning of the next.
        let is_wrapped = rows.get(next + 1).is_some_and(|below| below.range.start == target.range.end);
        if is_wrapped && at == target.range.end && at > target.range.start {
            at = self.text[..at].grapheme_indices(true).next_back().map_or(0, |(at, _)| at);
        }
        self.go(at);
        self.column = Some(wanted);
        true
    }
}

fn is_word(word: &str) -> bool {
    word.chars().any(|letter| letter.is_alphanumeric() || u32::from(letter) >= FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with `|` where the cursor is, pastes as they are shown.
    fn shown(composer: &Composer) -> String {
        let (before, after) = composer.text.split_at(composer.cursor);
        let all =
            |text: &str| text.graphemes(true).map(|grapheme| composer.shown(grapheme)).collect::<String>();
        format!("{}|{}", all(before), all(after))
    }

    /// Starts with the cursor at `|`, does the edits and gives what is there then.
    fn check(start: &str, edits: &[ComposerEdit], expected: &str) {
        let (before, after) = start.split_once('|').unwrap();
        let mut composer = Composer::with(&format!("{before}{after}"));
        composer.cursor = before.len();
        for edit in edits {
            composer.edit(*edit);
        }
        assert_eq!(shown(&composer), expected, "{start} {edits:?}");
    }

    #[test]
    fn edits_move_and_change_by_what_people_see() {
        use ComposerEdit::{Cut, Delete, Move, Redo, Type, Undo, Yank};
        use CursorMotion::{End, Left, LineEnd, LineStart, Right, Start, WordLeft, WordRight};
        check("|", &[Type('a'), Type('é'), Type('日')], "aé日|");
        check("a👨‍👩‍👧b|", &[Delete(Left), Delete(Left)], "a|");
        check("e\u{301}|x", &[Move(Left), Delete(Right)], "|x");
        check("one two  three|", &[Move(WordLeft), Move(WordLeft)], "one |two  three");
        check("|one, two", &[Move(WordRight), Move(WordRight)], "one, two|");
        check("one two|", &[Cut(WordLeft), Yank, Yank], "one twotwo|");
        check("a\nb|c\nd", &[Move(LineStart), Type('>'), Move(LineEnd), Type('<')], "a\n>bc<|\nd");
        check("a|b\nc", &[Cut(LineEnd), Cut(LineEnd), Yank], "a\n|c");
        check("ab|\nc", &[Cut(LineStart), Move(End), Yank, Move(Start)], "|\ncab");
        check("|", &[Type('a'), Type('b'), Type(' '), Type('c'), Undo, Undo], "ab|");
        check("|", &[Type('a'), Undo, Redo], "a|");
        check("|", &[Undo, Redo, Delete(Left), Cut(Right), Yank, Move(WordLeft), Move(WordRight)], "|");
    }

    #[test]
    fn a_large_paste_is_one_step_and_comes_back_whole() {
        let mut composer = Composer::with("see ");
        let log = "line\r\n".repeat(10);
        composer.paste_text(&log);
        composer.paste_text("small");
        composer.paste_text(&"x".repeat(2000));
        assert_eq!(shown(&composer), "see [Pasted text #1, 10 lines]small[Pasted text #2, 2000 characters]|");
        assert_eq!(composer.text(), format!("see {}small{}", "line\n".repeat(10), "x".repeat(2000)));
        composer.edit(ComposerEdit::Delete(CursorMotion::Left));
        composer.edit(ComposerEdit::Delete(CursorMotion::WordLeft));
        composer.edit(ComposerEdit::Delete(CursorMotion::Left));
        assert_eq!(composer.text(), "see ");
        composer.edit(ComposerEdit::Undo);
        assert_eq!(composer.text(), format!("see {}", "line\n".repeat(10)));
        // Nobody can write a character that stands for a paste.
        composer.set("\u{f0000}");
        assert_eq!(composer.text(), "\u{fffd}");
        // Nor can the name of a file, whose place in the text is that of what stands for it.
        composer.replace(0..3, "a\u{f0001}\r\n");
        assert_eq!(shown(&composer), "a\u{fffd}\n|");
    }

    #[test]
    fn rows_fit_and_the_cursor_is_in_one_of_them() {
        let texts = [
            "",
            "a",
            "one two three four five",
            "日本語の文章です",
            "a\n\nb\n",
            "aaaaaaaaaaaaaaaaaaaaaaaaaa b",
            "x\t\u{1b}y",
        ];
        for text in texts {
            for columns in 2..24 {
                let mut composer = Composer::with(text);
                let rows = composer.rows(columns);
                let joined: String = rows.iter().map(|row| &composer.text[row.range.clone()]).collect();
                assert_eq!(joined, text.replace('\n', ""), "{columns}");
                for row in &rows {
                    assert!(row.shown.width() <= columns.max(4), "{columns} {row:?}");
                }
                for at in text.grapheme_indices(true).map(|(at, _)| at).chain([text.len()]) {
                    composer.cursor = at;
                    let (row, column) = composer.place(&rows);
                    assert!(row < rows.len() && column <= columns.max(4), "{text:?} {columns} {at}");
                }
                // Up and down go through all rows and stop.
                composer.cursor = text.len();
                composer.column = None;
                let mut steps = 0;
                while composer.vertical(false, columns) {
                    steps += 1;
                }
                assert_eq!(steps + 1, rows.len(), "{text:?} {columns}");
                while composer.vertical(true, columns) {
                    steps -= 1;
                }
                assert_eq!(steps, 0, "{text:?} {columns}");
            }
        }
    }

    #[test]
    fn going_down_keeps_the_column() {
        let mut composer = Composer::with("abcdef\nab\nabcdef");
        composer.cursor = 4;
        assert!(composer.vertical(true, 80));
        assert_eq!(shown(&composer), "abcdef\nab|\nabcdef");
        assert!(composer.vertical(true, 80));
        assert_eq!(shown(&composer), "abcdef\nab\nabcd|ef");
        assert!(!composer.vertical(true, 80));
    }
}
