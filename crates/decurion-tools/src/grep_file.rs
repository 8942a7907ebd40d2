//! Searching in files. Takes files in order; gives what was found in each, in that order, searching
//! several at once and stopping soon after the caller has enough.

use std::io;

use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};

use crate::files::{FileAccess, FileError, open_found};
use crate::search::{Found, threads};

/// Characters shown of a matching line.
const LINE_CHARS: usize = 500;
/// Text kept of one file.
const FILE_BYTES: usize = 1 << 20;
/// Files searched by one thread before the results are handed on.
const BATCH: usize = 64;

/// What is wanted of each file.
pub(crate) struct Wanted {
    pub before: usize,
    pub after: usize,
    pub numbers: bool,
    pub only_matching: bool,
    pub multiline: bool,
    pub depth: Depth,
}

/// How much of a file's matches is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Whether there is one.
    Any,
    /// How many there are.
    Count,
    Lines,
}

/// What was found in one file.
#[derive(Default)]
pub(crate) struct FileHits {
    /// Lines with a match, or matches where only those are wanted.
    pub matches: u64,
    pub lines: Vec<Line>,
    /// Whether there is more than was kept.
    pub cut: bool,
}

/// One line of the output.
pub(crate) struct Line {
    number: u64,
    text: String,
    kind: LineKind,
}

enum LineKind {
    Match,
    Context,
    Break,
}

impl Line {
    /// As grep writes it: `path:12:text`, `path-12-text` for context, `--` for a gap.
    pub fn written(&self, path: &str, numbers: bool, alone: bool) -> String {
        let mark = match self.kind {
            LineKind::Match => ':',
            LineKind::Context => '-',
            LineKind::Break => return "--".to_owned(),
        };
        let text = &self.text;
        let number = if numbers { format!("{}{mark}", self.number) } else { String::new() };
        if alone { format!("{number}{text}") } else { format!("{path}{mark}{number}{text}") }
    }
}

/// What came of looking at one file.
enum Looked {
    Hits(FileHits),
    /// It has none, or is no text.
    Nothing,
    /// It is larger than what is searched.
    TooLarge,
}

/// Searches the files in order and gives each that has a match to `give`, which says whether to go on. Gives those that
/// were too large to be searched.
pub(crate) fn search_all(
    access: &FileAccess,
    matcher: &RegexMatcher,
    wanted: &Wanted,
    candidates: &[Found],
    enough: usize,
    give: &mut dyn FnMut(&Found, FileHits) -> bool,
) -> Result<Vec<Found>, FileError> {
    let threads = threads();
    let mut too_large = Vec::new();
    let search = |files: &[Found]| -> Vec<Looked> {
        let mut searcher = searcher(access, wanted);
        files.iter().map(|found| search_one(access, &mut searcher, matcher, wanted, enough, found)).collect()
    };
    for batch in candidates.chunks(BATCH * threads) {
        let share = batch.len().div_ceil(threads).max(BATCH / 4);
        let results: Vec<Looked> = if batch.len() <= share {
            search(batch)
        } else {
            std::thread::scope(|scope| {
                let handles: Vec<_> = batch.chunks(share).map(|part| scope.spawn(|| search(part))).collect();
                handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect()
            })
        };
        if let Some(found) = batch.first().filter(|_| access.cancel.is_cancelled()) {
            return Err(FileError::Interrupted(found.path.clone()));
        }
        for (found, looked) in batch.iter().zip(results) {
            match looked {
                Looked::Hits(hits) => {
                    if !give(found, hits) {
                        return Ok(too_large);
                    }
                }
                Looked::TooLarge => too_large.push(found.clone()),
                Looked::Nothing => {}
            }
        }
    }
    Ok(too_large)
}

fn searcher(access: &FileAccess, wanted: &Wanted) -> Searcher {
    let heap = usize::try_from(access.limits.grep_file_bytes).unwrap_or(usize::MAX);
    SearcherBuilder::new()
        .line_number(true)
        .before_context(wanted.before)
        .after_context(wanted.after)
        .multi_line(wanted.multiline)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(heap))
        .build()
}

fn search_one(
    access: &FileAccess,
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    wanted: &Wanted,
    enough: usize,
    found: &Found,
) -> Looked {
    if access.cancel.is_cancelled() {
        return Looked::Nothing;
    }
    // A file that vanished or may not be read is no match; the search goes on.
    let Ok(file) = open_found(&found.path) else { return Looked::Nothing };
    let Some(metadata) = file.metadata().ok().filter(std::fs::Metadata::is_file) else {
        return Looked::Nothing;
    };
    if metadata.len() > access.limits.grep_file_bytes {
        return Looked::TooLarge;
    }
    let mut hits =
        Hits { access, matcher, wanted, enough, kept: FileHits::default(), bytes: 0, binary: false };
    let searched = searcher.search_file(matcher, &file, &mut hits);
    if searched.is_ok() && !hits.binary && hits.kept.matches > 0 {
        Looked::Hits(hits.kept)
    } else {
        Looked::Nothing
    }
}

/// Collects what one file gives.
struct Hits<'a> {
    access: &'a FileAccess,
    matcher: &'a RegexMatcher,
    wanted: &'a Wanted,
    enough: usize,
    kept: FileHits,
    bytes: usize,
    binary: bool,
}

impl Hits<'_> {
    /// Keeps a line; tells whether another may come.
    fn keep(&mut self, number: u64, bytes: &[u8], kind: LineKind) -> bool {
        if self.kept.lines.len() >= self.enough || self.bytes > FILE_BYTES {
            self.kept.cut = true;
            return false;
        }
        let text = shown(bytes);
        self.bytes += text.len();
        self.kept.lines.push(Line { number, text, kind });
        true
    }

    fn keep_match(&mut self, found: &SinkMatch<'_>) -> io::Result<bool> {
        let number = found.line_number().unwrap_or(0);
        if self.wanted.only_matching {
            return self.keep_parts(number, found.bytes());
        }
        let mut more = true;
        for (number, line) in (number..).zip(found.lines()) {
            more = self.keep(number, line, LineKind::Match);
        }
        Ok(more)
    }

    fn keep_parts(&mut self, first: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut parts = Vec::new();
        let searched = self.matcher.find_iter(bytes, |part| {
            parts.push(part);
            parts.len() < self.enough
        });
        searched.map_err(io::Error::other)?;
        let mut more = true;
        for part in parts {
            let line = memchr::memchr_iter(b'\n', &bytes[..part.start()]).count() as u64;
            more = self.keep(first + line, &bytes[part], LineKind::Match);
        }
        Ok(more)
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.kept.matches += 1;
        if self.access.cancel.is_cancelled() {
            return Ok(false);
        }
        match self.wanted.depth {
            Depth::Any => Ok(false),
            Depth::Count => Ok(true),
            Depth::Lines => self.keep_match(found),
        }
    }

    fn context(&mut self, _searcher: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let is_context = !matches!(context.kind(), SinkContextKind::Other);
        Ok(!is_context || self.keep(context.line_number().unwrap_or(0), context.bytes(), LineKind::Context))
    }

    fn context_break(&mut self, _searcher: &Searcher) -> io::Result<bool> {
        Ok(self.keep(0, b"", LineKind::Break))
    }

    fn binary_data(&mut self, _searcher: &Searcher, _offset: u64) -> io::Result<bool> {
        self.binary = true;
        Ok(false)
    }

    fn finish(&mut self, _searcher: &Searcher, finish: &SinkFinish) -> io::Result<()> {
        self.binary |= finish.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A line without its end, cut where it is long.
fn shown(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let (head, dropped) = bytes.split_at(bytes.len().min(LINE_CHARS * 4));
    let text = String::from_utf8_lossy(head);
    match text.char_indices().nth(LINE_CHARS) {
        None if dropped.is_empty() => text.into_owned(),
        None => format!("{text}…"),
        Some((index, _)) => format!("{}…", &text[..index]),
    }
}
