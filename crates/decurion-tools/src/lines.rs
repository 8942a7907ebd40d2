//! Lines of a file. Takes its bytes piece by piece; gives a range of lines, numbered, within bounds, and
//! what is to be known of the rest. Memory is bounded by what is given, not by the file.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::files_seen::hex;

/// Which lines, and how much of them.
pub(crate) struct Range {
    pub first: u64,
    pub count: u64,
    /// The most text to give.
    pub bytes: u64,
    /// Where a long line is cut.
    pub line_chars: usize,
}

/// The reader's state between two pieces.
pub(crate) struct Lines {
    range: Range,
    hasher: Option<Sha256>,
    /// The line being read, from 1.
    number: u64,
    /// Its bytes so far, as many as could be shown, and how many more there are.
    line: Vec<u8>,
    dropped: usize,
    content: String,
    given: u64,
    /// No line fits any more.
    full: bool,
    lossy: bool,
    bytes_seen: u64,
}

pub(crate) struct LinesRead {
    /// The lines without numbers.
    pub content: String,
    pub first: u64,
    pub count: u64,
    /// How many lines the file has, if it was read to its end.
    pub total: Option<u64>,
    /// Hash of everything taken.
    pub hash: Option<String>,
    full: bool,
    lossy: bool,
    empty: bool,
}

impl Lines {
    pub fn new(range: Range, hashed: bool) -> Self {
        Self {
            range,
            hasher: hashed.then(Sha256::new),
            number: 1,
            line: Vec::new(),
            dropped: 0,
            content: String::new(),
            given: 0,
            full: false,
            lossy: false,
            bytes_seen: 0,
        }
    }

    /// Takes the next piece of the file.
    pub fn take(&mut self, piece: &[u8]) {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(piece);
        }
        self.bytes_seen += piece.len() as u64;
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.extend_line(&rest[..end]);
            self.end_line();
            rest = &rest[end + 1..];
        }
        self.extend_line(rest);
    }

    /// Whether nothing that follows would be given.
    pub fn is_done(&self) -> bool {
        self.full || self.number >= self.range.first.saturating_add(self.range.count)
    }

    /// Ends the last line, which may be empty, and gives the result.
    pub fn finish(mut self, ended: bool) -> LinesRead {
        if ended {
            self.end_line();
        }
        LinesRead {
            content: self.content,
            first: self.range.first,
            count: self.given,
            total: ended.then_some(self.number - 1),
            hash: self.hasher.map(|hasher| hex(&hasher.finalize())),
            full: self.full,
            lossy: self.lossy,
            empty: self.bytes_seen == 0,
        }
    }

    fn is_wanted(&self) -> bool {
        self.number >= self.range.first && !self.is_done()
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        if !self.is_wanted() {
            return;
        }
        // No character has more than four bytes, so this is enough for all that is shown of the line.
        let room = (self.range.line_chars * 4).saturating_sub(self.line.len());
        let kept = bytes.len().min(room);
        self.line.extend_from_slice(&bytes[..kept]);
        self.dropped += bytes.len() - kept;
    }

    fn end_line(&mut self) {
        if self.is_wanted() {
            self.give_line();
        }
        self.line.clear();
        self.dropped = 0;
        self.number += 1;
    }

    fn give_line(&mut self) {
        let mut bytes = self.line.as_slice();
        if self.number == 1 {
            bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        }
        if self.dropped == 0 {
            bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        self.lossy |= self.dropped == 0 && matches!(text, std::borrow::Cow::Owned(_));
        let shown = text.char_indices().nth(self.range.line_chars).map_or(text.len(), |(index, _)| index);
        if (self.content.len() + shown) as u64 > self.range.bytes && self.given > 0 {
            self.full = true;
            return;
        }
        if self.given > 0 {
            self.content.push('\n');
        }
        self.content.push_str(&text[..shown]);
        let cut = text.len() - shown + self.dropped;
        if cut > 0 {
            // Writing to a String cannot fail.
            let _ = write!(self.content, "… [{cut} more bytes in this line]");
        }
        self.given += 1;
    }
}

impl LinesRead {
    /// The lines with their numbers, and notes where something is not as one would think.
    pub fn for_model(&self, shown: &str) -> String {
        if self.empty {
            return format!("[the file is empty: {shown}]");
        }
        if self.count == 0 {
            let total = self.total.unwrap_or_default();
            return format!("[the file has {total} lines; there is none at {}: {shown}]", self.first);
        }
        let mut text =
            String::with_capacity(self.content.len() + 8 * usize::try_from(self.count).unwrap_or(0));
        for (number, line) in (self.first..).zip(self.content.split('\n')) {
            if number > self.first {
                text.push('\n');
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "{number}\t{line}");
        }
        if self.full {
            let next = self.first + self.count;
            let of = self.total.map_or_else(String::new, |total| format!(" of {total}"));
            let _ = write!(text, "\n[cut before line {next}{of}; read on with offset {next}]");
        }
        if self.lossy {
            text.push_str("\n[the file is not valid UTF-8; what could not be read is shown as �]");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(content: &[u8], first: u64, count: u64, bytes: u64, piece: usize) -> LinesRead {
        let mut lines = Lines::new(Range { first, count, bytes, line_chars: 10 }, true);
        for piece in content.chunks(piece.max(1)) {
            lines.take(piece);
        }
        lines.finish(true)
    }

    #[test]
    fn lines_are_numbered_bounded_and_explained() {
        let cases: &[(&[u8], u64, u64, u64, &str)] = &[
            (b"", 1, 9, 99, "[the file is empty: f]"),
            (b"a", 1, 9, 99, "1\ta"),
            (b"a\n", 1, 9, 99, "1\ta\n2\t"),
            (b"a\r\nb\r\n", 1, 9, 99, "1\ta\n2\tb\n3\t"),
            (b"a\nb\nc\nd", 2, 2, 99, "2\tb\n3\tc"),
            (b"a\nb", 9, 2, 99, "[the file has 2 lines; there is none at 9: f]"),
            (b"\xef\xbb\xbfa", 1, 9, 99, "1\ta"),
            (b"0123456789abc\nx", 1, 9, 99, "1\t0123456789… [3 more bytes in this line]\n2\tx"),
            (b"aaa\nbbb\nccc", 1, 9, 7, "1\taaa\n2\tbbb\n[cut before line 3 of 3; read on with offset 3]"),
            (
                b"a\xffb",
                1,
                9,
                99,
                "1\ta\u{fffd}b\n[the file is not valid UTF-8; what could not be read is shown as \u{fffd}]",
            ),
        ];
        for (content, first, count, bytes, expected) in cases {
            for piece in [1, 3, 100] {
                assert_eq!(read(content, *first, *count, *bytes, piece).for_model("f"), *expected);
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_a_whole_read_is_the_file(
            content in "[a-cé\n]{0,9}(\n[a-cé]{0,9}){0,5}", piece in 1_usize..9, first in 1_u64..9, count in 1_u64..9
        ) {
            let bytes = content.as_bytes();
            let whole = read(bytes, 1, u64::MAX, 1 << 20, piece);
            prop_assert_eq!(&whole.content, &content);
            prop_assert_eq!(whole.total, Some(content.split('\n').count() as u64));
            prop_assert_eq!(whole.hash, Some(crate::files_seen::content_hash(bytes)));
            let part = read(bytes, first, count, 1 << 20, piece);
            let expected: Vec<&str> = content.split('\n')
                .skip(usize::try_from(first - 1).unwrap()).take(usize::try_from(count).unwrap()).collect();
            prop_assert_eq!(part.content, expected.join("\n"));
        }
    }
}
