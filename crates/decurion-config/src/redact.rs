//! Takes text on its way to a transcript, a log or a screen, gives the same text with keys replaced by a
//! placeholder: the exact secrets that are configured, and the shapes of well-known keys.
//!
//! It runs over everything that is written, so it must cost next to nothing where there is no key. Every
//! shape but one is an unbroken run of at least [`HOP`] letters, digits, `-` and `_`; looking at every
//! `HOP`-th byte is enough to find such runs, and only inside of them are shapes compared. The exception,
//! private keys, starts with a line that a vectorised search looks for.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem::Finder;

use crate::secret::Secret;

/// What stands in the place of a secret.
pub const PLACEHOLDER: &str = "[redacted]";

/// Shorter secrets are not looked for: they would be found in ordinary words.
const MIN_SECRET: usize = 8;
/// The shortest run of token characters that can hold a key.
const HOP: usize = 14;
/// How much text a stream holds back at most while it waits for the end of something.
const MAX_HELD: usize = 16 * 1024;

/// Finds secrets in text. Cheap to share, never changed.
#[derive(Clone)]
pub struct Redactor {
    exact: Vec<Finder<'static>>,
    longest: usize,
    shapes: bool,
}

/// How many secrets it knows; not which.
impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor {{ exact: {}, shapes: {} }}", self.exact.len(), self.shapes)
    }
}

impl Redactor {
    /// Looks for these secrets, and for well-known shapes if asked to.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>, shapes: bool) -> Self {
        let mut exact: Vec<Finder<'static>> = Vec::new();
        for secret in secrets {
            let bytes = secret.expose().as_bytes();
            if bytes.len() >= MIN_SECRET && exact.iter().all(|finder| finder.needle() != bytes) {
                exact.push(Finder::new(bytes).into_owned());
            }
        }
        let longest = exact.iter().map(|finder| finder.needle().len()).max().unwrap_or(0);
        Self { exact, longest, shapes }
    }

    /// The text with every secret replaced. Borrowed, and nothing allocated, where there is none.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let found = self.find(text);
        if found.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(replace(text, &found)) }
    }

    /// For text that arrives in pieces: a secret cut in two is still found.
    pub fn stream(&self) -> RedactedStream<'_> {
        RedactedStream { redactor: self, held: String::new() }
    }

    /// Where the secrets are, in order and apart from each other.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for finder in &self.exact {
            let length = finder.needle().len();
            found.extend(finder.find_iter(text.as_bytes()).map(|start| start..start + length));
        }
        if self.shapes {
            find_private_keys(text.as_bytes(), &mut found);
            find_tokens(text.as_bytes(), &mut found);
        }
        if found.len() > 1 {
            join(&mut found);
        }
        found
    }
}

/// Text in pieces. What could be the beginning of a secret is held back until the next piece.
#[derive(Debug)]
pub struct RedactedStream<'a> {
    redactor: &'a Redactor,
    held: String,
}

impl RedactedStream<'_> {
    /// Takes the next piece, gives what can be shown by now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let found = self.redactor.find(&self.held);
        let mut cut = self.safe_cut();
        for range in &found {
            if range.start < cut && cut < range.end {
                cut = range.start;
            }
        }
        let whole: Vec<_> = found.into_iter().filter(|range| range.end <= cut).collect();
        let shown = replace(&self.held[..cut], &whole);
        self.held.drain(..cut);
        shown
    }

    /// The rest.
    pub fn finish(self) -> String {
        self.redactor.redact(&self.held).into_owned()
    }

    /// Up to where no secret can reach that is not whole yet.
    fn safe_cut(&self) -> usize {
        let bytes = self.held.as_bytes();
        let mut cut = bytes.len();
        if self.redactor.shapes {
            // Dots join the parts of a web token.
            cut = bytes.iter().rposition(|&byte| !is_token(byte) && byte != b'.').map_or(0, |last| last + 1);
            if let Some(begin) = open_private_key(bytes) {
                cut = cut.min(begin);
            }
        }
        cut = cut.min(bytes.len().saturating_sub(self.redactor.longest.saturating_sub(1)));
        // A flood without any blank is not a key; showing it late would be worse than showing it.
        cut = cut.max(bytes.len().saturating_sub(MAX_HELD.max(2 * self.redactor.longest)));
        self.held.floor_char_boundary(cut)
    }
}

fn replace(text: &str, found: &[Range<usize>]) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut shown = 0;
    for range in found {
        redacted.push_str(&text[shown..range.start]);
        redacted.push_str(PLACEHOLDER);
        shown = range.end;
    }
    redacted.push_str(&text[shown..]);
    redacted
}

fn join(found: &mut Vec<Range<usize>>) {
    found.sort_unstable_by_key(|range| range.start);
    found.dedup_by(|next, kept| {
        let overlap = next.start < kept.end;
        if overlap {
            kept.end = kept.end.max(next.end);
        }
        overlap
    });
}

fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// A table, because this is asked for every byte of a long run.
static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        byte += 1;
    }
    table
};

/// Looks at every `HOP`-th byte: a run of `HOP` token bytes cannot hide between two that are none.
fn find_tokens(bytes: &[u8], found: &mut Vec<Range<usize>>) {
    let mut start = 0;
    while start + HOP <= bytes.len() {
        let window = &bytes[start..start + HOP];
        if let Some(blank) = window.iter().rposition(|&byte| !is_token(byte)) {
            start += blank + 1;
            continue;
        }
        let length = bytes[start..].iter().position(|&byte| !is_token(byte)).unwrap_or(bytes.len() - start);
        start = find_in_run(bytes, start..start + length, found);
    }
}

/// Compares the shapes inside of one run; gives where to go on. A key starts where the run does, or after one
/// of the two token characters that are no letter or digit.
fn find_in_run(bytes: &[u8], run: Range<usize>, found: &mut Vec<Range<usize>>) -> usize {
    let mut start = run.start;
    while start + HOP <= run.end {
        if let Some(end) = key_at(bytes, start, run.end) {
            found.push(start..end);
            if end >= run.end {
                return end;
            }
            start = end;
        }
        match memchr::memchr2(b'-', b'_', &bytes[start..run.end]) {
            Some(joint) => start += joint + 1,
            None => break,
        }
    }
    run.end
}

/// A shape of key: how it begins, what follows, and how much of that at least.
struct Shape {
    prefix: &'static [u8],
    rest: fn(u8) -> bool,
    least: usize,
    /// At most this many; more is something else.
    most: usize,
    /// Words joined by dashes are not keys: there must be a digit among the rest.
    digit: bool,
}

const ANY: usize = usize::MAX;

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    Shape { prefix: b"sk-ant-",     rest: is_token, least: 8,  most: ANY, digit: false },
    Shape { prefix: b"sk-proj-",    rest: is_token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-svcacct-", rest: is_token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-admin-",   rest: is_token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-or-v1-",   rest: is_token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-",         rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"sk_live_",    rest: is_alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk_test_",    rest: is_alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"rk_live_",    rest: is_alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"github_pat_", rest: is_token, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghp_",        rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"gho_",        rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghu_",        rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghs_",        rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghr_",        rest: is_alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"glpat-",      rest: is_token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"AKIA",        rest: is_upper_or_digit, least: 16, most: 16, digit: false },
    Shape { prefix: b"ASIA",        rest: is_upper_or_digit, least: 16, most: 16, digit: false },
    Shape { prefix: b"AIza",        rest: is_token, least: 30, most: 40, digit: true },
    Shape { prefix: b"xoxb-",       rest: is_token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxp-",       rest: is_token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxa-",       rest: is_token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxs-",       rest: is_token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxr-",       rest: is_token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"npm_",        rest: is_alphanumeric, least: 30, most: 60, digit: true },
    Shape { prefix: b"hf_",         rest: is_alphanumeric, least: 30, most: 60, digit: false },
];

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_upper_or_digit(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

/// The end of the key that starts here, if one does.
fn key_at(bytes: &[u8], start: usize, run_end: usize) -> Option<usize> {
    // One look at the first byte settles nearly all of it.
    if !matches!(bytes[start], b's' | b'r' | b'g' | b'A' | b'x' | b'n' | b'h' | b'e') {
        return None;
    }
    let run = &bytes[start..run_end];
    if run.starts_with(b"eyJ") {
        return web_token_end(bytes, start);
    }
    SHAPES.iter().find_map(|shape| {
        let rest = run.strip_prefix(shape.prefix)?;
        let length = rest.iter().position(|&byte| !(shape.rest)(byte)).unwrap_or(rest.len());
        // A shape that ends in letters and digits is not a key if more of them follow.
        let whole = rest.get(length).is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let fits = (shape.least..=shape.most).contains(&length) && whole;
        let digits = !shape.digit || rest[..length].iter().any(u8::is_ascii_digit);
        (fits && digits).then_some(start + shape.prefix.len() + length)
    })
}

/// `eyJ….eyJ….…`: three long parts, of which two begin like encoded objects.
fn web_token_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut end = start;
    for part in 0..3 {
        if part > 0 {
            if bytes.get(end) != Some(&b'.') {
                return None;
            }
            end += 1;
        }
        let rest = &bytes[end..];
        if part < 2 && !rest.starts_with(b"eyJ") {
            return None;
        }
        let length = rest.iter().position(|&byte| !is_token(byte)).unwrap_or(rest.len());
        if length < 13 {
            return None;
        }
        end += length;
    }
    Some(end)
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const PRIVATE: &[u8] = b"PRIVATE KEY";

fn find_private_keys(bytes: &[u8], found: &mut Vec<Range<usize>>) {
    let mut from = 0;
    while let Some(begin) = memchr::memmem::find(&bytes[from..], BEGIN).map(|at| from + at) {
        from = begin + BEGIN.len();
        if let Some(body) = private_key_body(&bytes[from..]) {
            from = private_key_end(bytes, from + body);
            found.push(begin..from);
        }
    }
}

/// After `-----BEGIN `: where the body starts, if this is a private key.
fn private_key_body(after: &[u8]) -> Option<usize> {
    let label = memchr::memmem::find(&after[..after.len().min(64)], b"-----")?;
    let name = after[..label].strip_suffix(b" BLOCK").unwrap_or(&after[..label]);
    name.ends_with(PRIVATE).then_some(label + 5)
}

/// The end of the closing line, or of what looks like a key's body where that line is missing.
fn private_key_end(bytes: &[u8], body: usize) -> usize {
    // The backslash is for text in which line ends are written `\n`.
    let is_body = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\\ \t\r\n:-,".contains(&byte);
    let length = bytes[body..].iter().position(|&byte| !is_body(byte)).unwrap_or(bytes.len() - body);
    let text = &bytes[body..body + length];
    let Some(end) = memchr::memmem::find(text, END) else { return body + length };
    let label = end + END.len();
    let closing = memchr::memmem::find(&text[label..text.len().min(label + 64)], b"-----");
    body + closing.map_or(length, |at| label + at + 5)
}

/// Where a private key begins whose end has not come yet.
fn open_private_key(bytes: &[u8]) -> Option<usize> {
    let begin = memchr::memmem::rfind(bytes, BEGIN)?;
    let after = &bytes[begin + BEGIN.len()..];
    match private_key_body(after) {
        Some(body) => memchr::memmem::find(&after[body..], END)
            .is_none_or(|end| memchr::memmem::find(&after[body + end + END.len()..], b"-----").is_none())
            .then_some(begin),
        // The label itself may still be on its way.
        None => (after.len() < 64).then_some(begin),
    }
}
