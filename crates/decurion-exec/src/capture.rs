//! The output of a command, bounded. Takes bytes at the speed they come; keeps the first and the last of
//! them, counts the rest, and writes all of them to a file once they no longer fit, up to a bound.

use std::io::{self, Write};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// How much is read at once from a command that has little to say, and from one that floods.
const SMALL_READ: usize = 16 << 10;
const LARGE_READ: usize = 256 << 10;

/// What is kept of an output.
#[derive(Clone, Copy, Debug)]
pub struct CaptureBounds {
    /// Bytes kept from the beginning.
    pub head: usize,
    /// Bytes kept from the end.
    pub tail: usize,
    /// Bytes written to the file, if there is one.
    pub file: u64,
}

impl CaptureBounds {
    pub const NOTHING: Self = Self { head: 0, tail: 0, file: 0 };

    /// Enough to show `head` and `tail` characters of any width.
    pub const fn for_chars(head: usize, tail: usize) -> Self {
        Self { head: head * 4, tail: tail * 4, file: 64 << 20 }
    }
}

/// Opens the file for an output that does not fit. It is flushed when the output ends.
pub type OpenSpill = Box<dyn FnOnce() -> io::Result<SpillWriter> + Send>;
/// What an output that does not fit is written to.
pub type SpillWriter = Box<dyn Write + Send>;

/// An output being captured.
pub struct Capture {
    bounds: CaptureBounds,
    head: Vec<u8>,
    /// A ring once it is full: the oldest byte is at `oldest`.
    tail: Vec<u8>,
    oldest: usize,
    total: u64,
    spill: OutputSpill,
    /// Turns true when everything belongs into the file, whether it fits or not.
    divert: Option<watch::Receiver<bool>>,
    diverted: bool,
}

enum OutputSpill {
    Nowhere,
    Ready(OpenSpill),
    Open(SpillWriter, u64),
    Over(u64),
    Failed(io::Error),
}

impl Capture {
    /// A capture that writes no file.
    pub fn new(bounds: CaptureBounds) -> Self {
        Self {
            bounds,
            head: Vec::new(),
            tail: Vec::new(),
            oldest: 0,
            total: 0,
            spill: OutputSpill::Nowhere,
            divert: None,
            diverted: false,
        }
    }

    /// The same, and from the moment this turns true everything is in the file as soon as it came.
    #[must_use]
    pub fn diverted_by(mut self, divert: watch::Receiver<bool>) -> Self {
        self.divert = Some(divert);
        self
    }

    /// A capture that writes everything to a file, opened when the output no longer fits in memory.
    pub fn with_spill(bounds: CaptureBounds, open: OpenSpill) -> Self {
        Self { spill: OutputSpill::Ready(open), ..Self::new(bounds) }
    }

    /// How many bytes came.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The memory it holds.
    pub fn memory(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    /// Takes everything from a stream, to its end or its first error.
    pub(crate) async fn drain(&mut self, stream: Option<pipe::Receiver>, mut observe: impl FnMut(&[u8])) {
        let Some(mut stream) = stream else { return };
        let mut buffer = Vec::with_capacity(SMALL_READ);
        loop {
            tokio::select! {
                biased;
                () = told(&mut self.divert), if !self.diverted => {
                    self.diverted = true;
                    self.write_down(Vec::new()).await;
                    continue;
                }
                read = stream.read_buf(&mut buffer) => if !matches!(read, Ok(1..)) {
                    return;
                },
            }
            observe(&buffer);
            let filled = buffer.len() == buffer.capacity();
            buffer = self.take(buffer).await;
            if filled && buffer.capacity() < LARGE_READ {
                buffer = Vec::with_capacity(LARGE_READ);
                // More room in the pipe spares the writer from waiting for us; refused when scarce.
                let _ = rustix::pipe::fcntl_setpipe_size(&stream, LARGE_READ);
            }
        }
    }

    /// Takes a piece and gives its buffer back, empty. Files are written on a thread made for blocking.
    pub async fn take(&mut self, mut piece: Vec<u8>) -> Vec<u8> {
        let room = self.bounds.head + self.bounds.tail;
        let fits = self.total + piece.len() as u64 <= room as u64;
        if !fits || self.diverted {
            piece = self.write_down(piece).await;
        }
        self.keep(&piece);
        piece.clear();
        piece
    }

    /// Writes what is held, if it is not in the file yet, and a piece to the file; gives the piece back.
    async fn write_down(&mut self, piece: Vec<u8>) -> Vec<u8> {
        let earlier = match self.spill {
            OutputSpill::Ready(_) => self.kept(),
            OutputSpill::Open(..) => Vec::new(),
            OutputSpill::Nowhere | OutputSpill::Over(_) | OutputSpill::Failed(_) => return piece,
        };
        let spill = std::mem::replace(&mut self.spill, OutputSpill::Nowhere);
        let bound = self.bounds.file;
        let writing = tokio::task::spawn_blocking(move || {
            let spill = spill.write(&earlier, bound).write(&piece, bound);
            (spill, piece)
        });
        match writing.await {
            Ok((spill, piece)) => {
                self.spill = spill;
                piece
            }
            // Only when the runtime is being shut down; the piece is lost with everything else.
            Err(error) => {
                self.spill = OutputSpill::Failed(io::Error::other(error));
                Vec::new()
            }
        }
    }

    fn keep(&mut self, mut piece: &[u8]) {
        self.total += piece.len() as u64;
        let (head, rest) = piece.split_at(piece.len().min(self.bounds.head - self.head.len()));
        self.head.extend_from_slice(head);
        piece = &rest[rest.len().saturating_sub(self.bounds.tail)..];
        if piece.len() == self.bounds.tail {
            self.tail.clear();
            self.oldest = 0;
        }
        let (fresh, over) = piece.split_at(piece.len().min(self.bounds.tail - self.tail.len()));
        self.tail.extend_from_slice(fresh);
        // Full: what comes goes where the oldest was, in at most two runs.
        let (first, second) = over.split_at(over.len().min(self.tail.len() - self.oldest));
        self.tail[self.oldest..self.oldest + first.len()].copy_from_slice(first);
        self.tail[..second.len()].copy_from_slice(second);
        if !over.is_empty() {
            self.oldest = (self.oldest + over.len()) % self.tail.len();
        }
    }

    fn kept(&self) -> Vec<u8> {
        let (newer, older) = self.tail.split_at(self.oldest);
        [&self.head, older, newer].concat()
    }

    pub fn finish(mut self) -> Captured {
        self.tail.rotate_left(self.oldest);
        let (file_bytes, file_error) = match self.spill {
            OutputSpill::Open(mut file, written) => match file.flush() {
                Ok(()) => (Some(written), None),
                Err(error) => (None, Some(error)),
            },
            OutputSpill::Over(written) => (Some(written), None),
            OutputSpill::Failed(error) => (None, Some(error)),
            OutputSpill::Nowhere | OutputSpill::Ready(_) => (None, None),
        };
        Captured { head: self.head, tail: self.tail, total: self.total, file_bytes, file_error }
    }
}

/// Waits until it turns true; for ever if that cannot happen.
async fn told(divert: &mut Option<watch::Receiver<bool>>) {
    if let Some(divert) = divert
        && divert.wait_for(|diverted| *diverted).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl OutputSpill {
    fn write(self, bytes: &[u8], bound: u64) -> Self {
        let (mut file, written) = match self {
            Self::Open(file, written) => (file, written),
            Self::Ready(open) => match open() {
                Ok(file) => (file, 0),
                Err(error) => return Self::Failed(error),
            },
            other => return other,
        };
        let room = usize::try_from(bound - written).unwrap_or(usize::MAX);
        let piece = &bytes[..bytes.len().min(room)];
        match file.write_all(piece) {
            Err(error) => Self::Failed(error),
            Ok(()) if piece.len() < bytes.len() => match file.flush() {
                Err(error) => Self::Failed(error),
                Ok(()) => Self::Over(bound),
            },
            Ok(()) => Self::Open(file, written + piece.len() as u64),
        }
    }
}

/// What was kept of an output.
#[derive(Debug)]
pub struct Captured {
    pub head: Vec<u8>,
    /// The last bytes that are not in `head`.
    pub tail: Vec<u8>,
    /// How many there were in all.
    pub total: u64,
    /// How many are in the file, if one was begun.
    pub file_bytes: Option<u64>,
    /// Why the file is not complete, although it is within its bound.
    pub file_error: Option<io::Error>,
}

/// An output as text, perhaps with its middle cut out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// All of it, or its beginning.
    pub head: String,
    /// Its end, if something was cut.
    pub tail: String,
    /// How many bytes were cut between them.
    pub cut: u64,
}

impl Captured {
    /// All of it, if nothing is missing.
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.missing() == 0).then(|| [&self.head[..], &self.tail].concat())
    }

    fn missing(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// As text: all of it up to `most` characters, else `head` characters from the beginning and `tail`
    /// from the end. What is not UTF-8 becomes U+FFFD, a NUL its picture; no character is cut in two.
    pub fn render(&self, most: usize, head: usize, tail: usize) -> Rendered {
        let whole = self.whole();
        if let Some(whole) = &whole {
            if characters(whole).nth(most).is_none() {
                return Rendered { head: text(whole), tail: String::new(), cut: 0 };
            }
            return cut(whole, whole, head, tail, 0);
        }
        cut(without_torn_end(&self.head), without_torn_start(&self.tail), head, tail, self.total)
    }
}

/// `total` is 0 where both are the same bytes.
fn cut(first: &[u8], last: &[u8], head: usize, tail: usize, total: u64) -> Rendered {
    let total = if total == 0 { first.len() as u64 } else { total };
    let head_end: usize = characters(first).take(head).map(|(_, length)| length).sum();
    let skipped = characters(last).count().saturating_sub(tail);
    let tail_start: usize = characters(last).take(skipped).map(|(_, length)| length).sum();
    let shown = (head_end + last.len() - tail_start) as u64;
    Rendered {
        head: text(&first[..head_end]),
        tail: text(&last[tail_start..]),
        cut: total.saturating_sub(shown),
    }
}

/// Bytes as characters, each with the number of bytes it stands for.
fn characters(bytes: &[u8]) -> impl Iterator<Item = (char, usize)> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(|character| (shown(character), character.len_utf8()));
        let invalid =
            (!chunk.invalid().is_empty()).then_some((char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
        valid.chain(invalid)
    })
}

fn shown(character: char) -> char {
    if character == '\0' { '\u{2400}' } else { character }
}

fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(valid) if !valid.contains('\0') => valid.to_owned(),
        _ => characters(bytes).map(|(character, _)| character).collect(),
    }
}

/// Without a character at the end whose other bytes were not kept.
fn without_torn_end(bytes: &[u8]) -> &[u8] {
    let end = bytes.len();
    let start = (end.saturating_sub(3)..end).rev().find(|at| bytes[*at] & 0xC0 != 0x80);
    match start {
        Some(at) if width(bytes[at]) > end - at => &bytes[..at],
        _ => bytes,
    }
}

/// Without bytes at the start whose first byte was not kept.
fn without_torn_start(bytes: &[u8]) -> &[u8] {
    let torn = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    &bytes[torn..]
}

fn width(first: u8) -> usize {
    match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(bounds: CaptureBounds, pieces: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(bounds);
        for piece in pieces {
            capture.keep(piece);
        }
        capture.finish()
    }

    #[test]
    fn head_and_tail_are_what_they_say_for_every_way_to_cut_the_stream() {
        let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (head, tail) in [(0, 0), (0, 7), (7, 0), (10, 16), (1, 1), (500, 500), (999, 1), (2000, 2000)] {
            let bounds = CaptureBounds { head, tail, file: 0 };
            for size in [1, 2, 3, 7, 15, 16, 17, 100, 999, 1000] {
                let pieces: Vec<&[u8]> = all.chunks(size).collect();
                let kept = captured(bounds, &pieces);
                let head_end = head.min(all.len());
                let tail_start = head_end.max(all.len().saturating_sub(tail));
                assert_eq!(kept.head, &all[..head_end], "{head}+{tail} by {size}");
                assert_eq!(kept.tail, &all[tail_start..], "{head}+{tail} by {size}");
                assert_eq!(kept.total, 1000);
                assert_eq!(kept.whole().is_some(), head + tail >= 1000);
            }
        }
    }

    #[test]
    fn text_is_cut_between_characters_and_every_byte_is_accounted_for() {
        let all = "aé€😀".repeat(50).into_bytes();
        for (head, tail) in [(40, 80), (41, 81), (42, 82), (43, 83)] {
            let kept = captured(CaptureBounds { head, tail, file: 0 }, &[&all]);
            let rendered = kept.render(30, 10, 20);
            assert_eq!(rendered.head.chars().count(), 10);
            assert_eq!(rendered.tail.chars().count(), 20);
            assert!(!rendered.head.contains('\u{FFFD}') && !rendered.tail.contains('\u{FFFD}'));
            let bytes = rendered.head.len() + rendered.tail.len();
            assert_eq!(bytes as u64 + rendered.cut, all.len() as u64);
        }
    }

    #[test]
    fn what_fits_is_shown_whole_and_what_has_one_character_more_is_not() {
        let bounds = CaptureBounds::for_chars(10, 20);
        let fits = captured(bounds, &[&"€".repeat(30).into_bytes()]).render(30, 10, 20);
        assert_eq!(fits, Rendered { head: "€".repeat(30), tail: String::new(), cut: 0 });
        let over = captured(bounds, &[&"€".repeat(31).into_bytes()]).render(30, 10, 20);
        assert_eq!(over, Rendered { head: "€".repeat(10), tail: "€".repeat(20), cut: 3 });
    }

    #[test]
    fn what_is_not_text_is_shown_as_far_as_it_can_be() {
        let bounds = CaptureBounds::for_chars(10, 20);
        let rendered = captured(bounds, &[b"a\0b\xff\xe2\x82c\xf0\x9f\x98"]).render(30, 10, 20);
        assert_eq!(rendered.head, "a\u{2400}b\u{FFFD}\u{FFFD}c\u{FFFD}");
        let garbage = captured(bounds, &[&[0x80; 1000]]).render(30, 10, 20);
        assert_eq!((garbage.head.chars().count(), garbage.tail.chars().count()), (10, 20));
        assert_eq!(garbage.cut, 970);
    }

    #[tokio::test]
    async fn the_file_holds_everything_up_to_its_bound_and_only_exists_when_needed() {
        for (total, expected) in
            [(30_u64, None), (31, Some(31)), (100, Some(100)), (101, Some(100)), (5000, Some(100))]
        {
            let file = tempfile::NamedTempFile::new().unwrap();
            let copy = file.reopen().unwrap();
            let bounds = CaptureBounds { head: 10, tail: 20, file: 100 };
            let mut capture = Capture::with_spill(bounds, Box::new(move || Ok(Box::new(copy))));
            let all: Vec<u8> = (0..total).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut buffer = Vec::new();
            for piece in all.chunks(7) {
                buffer.extend_from_slice(piece);
                buffer = capture.take(buffer).await;
            }
            let captured = capture.finish();
            assert_eq!((captured.total, captured.file_bytes), (total, expected), "{total}");
            let length = usize::try_from(expected.unwrap_or(0)).unwrap();
            assert_eq!(std::fs::read(file.path()).unwrap(), &all[..length], "{total}");
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_does_not_stop_the_capture() {
        let bounds = CaptureBounds { head: 1, tail: 1, file: 100 };
        let mut capture = Capture::with_spill(bounds, Box::new(|| Err(io::ErrorKind::StorageFull.into())));
        for _ in 0..10 {
            capture.take(vec![b'x'; 10]).await;
        }
        let captured = capture.finish();
        assert_eq!(captured.total, 100);
        assert_eq!(captured.file_error.unwrap().kind(), io::ErrorKind::StorageFull);
    }
}
