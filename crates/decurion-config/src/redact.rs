//! Takes text on its way to a transcript, a log or a screen, gives the same text with keys replaced by a
//! placeholder: the exact secrets that are configured, and the shapes of well-known keys.
//!
//! It runs over everything that is written, so it must cost next to nothing where there is no key. Every
//! shape but one is an unbroken run of at least [`HOP`] letters, digits, `-` and `_`; looking at every
//! `HOP`-th byte is enough to find such runs, and only inside of them are shapes compared. The exception,
//! private keys, starts with a line that a vectorised search looks for.
//!
//! Text in pieces must give what the whole text gives. That holds because of two rules which every search
//! here keeps. A secret is found by the byte before it and the bytes from its start on, never by what else
//! was found: secrets may overlap, and are joined at the end. And a search that comes to the end of the text
//! says from where on more text could change its answer; nothing from there on is shown yet.

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
/// By this many bytes a key is known to be one, or it is none. A stream holds back no more than this of what
/// may turn out to be ordinary text; what is known to be a secret it keeps until its end.
const MAX_DOUBT: usize = 64 * 1024;

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
        let found = self.find(text, Before::Apart).ranges;
        if found.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(replace(text, &found)) }
    }

    /// For text that arrives in pieces: a secret cut in two is still found.
    pub fn stream(&self) -> RedactedStream<'_> {
        RedactedStream { redactor: self, held: String::new(), before: Before::Apart }
    }

    /// Where the secrets are, in order and apart from each other.
    fn find(&self, text: &str, before: Before) -> Findings {
        let bytes = text.as_bytes();
        let mut found = Findings { ranges: Vec::new(), open: bytes.len() };
        for finder in &self.exact {
            find_exact(bytes, finder, &mut found);
        }
        // Any of the last bytes may be the beginning of an exact secret.
        found.open = found.open.min(bytes.len().saturating_sub(self.longest.saturating_sub(1)));
        if self.shapes {
            find_private_keys(bytes, &mut found);
            find_tokens(bytes, before, &mut found);
        }
        if found.ranges.len() > 1 {
            join(&mut found.ranges);
        }
        found
    }
}

/// Text in pieces. What could be the beginning of a secret is held back until the next piece.
pub struct RedactedStream<'a> {
    redactor: &'a Redactor,
    held: String,
    before: Before,
}

/// How much is held; not what, it may be half a secret.
impl std::fmt::Debug for RedactedStream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedactedStream {{ held: {} }}", self.held.len())
    }
}

impl RedactedStream<'_> {
    /// Takes the next piece, gives what can be shown by now.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let Findings { mut ranges, open } = self.redactor.find(&self.held, self.before);
        let mut cut = self.held.floor_char_boundary(open);
        // They are apart from each other, so at most one of them is cut.
        if let Some(range) = ranges.iter().find(|range| range.start < cut && cut < range.end) {
            cut = range.start;
        }
        ranges.retain(|range| range.end <= cut);
        let shown = replace(&self.held[..cut], &ranges);
        if let Some(&last) = self.held.as_bytes()[..cut].last() {
            self.before = Before::of(last);
        }
        self.held.drain(..cut);
        shown
    }

    pub fn finish(self) -> String {
        replace(&self.held, &self.redactor.find(&self.held, self.before).ranges)
    }
}

/// What stands before a text: all that a search must know of it.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    /// A letter or digit. No key starts right after it.
    Word,
    /// Anything else, or nothing.
    Apart,
}

impl Before {
    fn of(byte: u8) -> Self {
        if byte.is_ascii_alphanumeric() { Self::Word } else { Self::Apart }
    }
}

/// What is in a text, and how much of that more text could change.
struct Findings {
    ranges: Vec<Range<usize>>,
    /// No secret that starts before this comes, goes or grows when more text follows.
    open: usize,
}

impl Findings {
    fn add(&mut self, start: usize, answer: Answer) {
        if let Some(end) = answer.end {
            self.ranges.push(start..end);
        }
        if answer.open {
            self.open = self.open.min(start);
        }
    }
}

/// What one search says about one place.
#[derive(Clone, Copy)]
struct Answer {
    /// Where the secret ends that starts at the place, if one does.
    end: Option<usize>,
    /// Whether more text could change that.
    open: bool,
}

impl Answer {
    const NO: Self = Self { end: None, open: false };
    const NOT_YET: Self = Self { end: None, open: true };
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

/// Also where it overlaps itself: the second of two must not be shown in part.
fn find_exact(bytes: &[u8], finder: &Finder<'_>, found: &mut Findings) {
    let first = found.ranges.len();
    let mut from = 0;
    while let Some(start) = finder.find(&bytes[from..]).map(|at| from + at) {
        let end = start + finder.needle().len();
        match found.ranges[first..].last_mut() {
            Some(last) if start < last.end => last.end = end,
            _ => found.ranges.push(start..end),
        }
        from = start + 1;
    }
}

/// Looks at every `HOP`-th byte: a run of `HOP` token bytes cannot hide between two that are none.
fn find_tokens(bytes: &[u8], before: Before, found: &mut Findings) {
    let mut start = 0;
    while start + HOP <= bytes.len() {
        let window = &bytes[start..start + HOP];
        if let Some(blank) = window.iter().rposition(|&byte| !is_token(byte)) {
            start += blank + 1;
            continue;
        }
        let run = Run::new(bytes, start);
        start = run.end;
        run.find(before, found);
    }
    // A short run at the end may become a long one.
    start += bytes[start..].iter().rposition(|&byte| !is_token(byte)).map_or(0, |blank| blank + 1);
    Run::new(bytes, start).find(before, found);
}

/// Token bytes with none before and none after. Many places in it are asked the same; what costs a walk is
/// kept, so that no text takes longer than its length.
struct Run<'a> {
    bytes: &'a [u8],
    start: usize,
    end: usize,
    /// There is no digit in here, and one at its end (or the run is over).
    no_digit: Range<usize>,
    tail: Option<WebTail>,
}

impl<'a> Run<'a> {
    fn new(bytes: &'a [u8], start: usize) -> Self {
        let end = start + count(&bytes[start..], is_token);
        Self { bytes, start, end, no_digit: 0..0, tail: None }
    }

    /// Compares the shapes. A key starts where the run does, or after one of the two token characters that
    /// are no letter or digit.
    fn find(mut self, before: Before, found: &mut Findings) {
        // Too short for a key, unless it is still growing.
        let least = if self.is_last() { 1 } else { HOP };
        let begins_inside_a_word = self.start == 0 && before == Before::Word;
        let mut next = if begins_inside_a_word { self.after_joint(0) } else { Some(self.start) };
        while let Some(start) = next.filter(|start| start + least <= self.end) {
            found.add(start, self.key_at(start));
            next = self.after_joint(start);
        }
    }

    fn is_last(&self) -> bool {
        self.end == self.bytes.len()
    }

    fn after_joint(&self, from: usize) -> Option<usize> {
        memchr::memchr2(b'-', b'_', &self.bytes[from..self.end]).map(|joint| from + joint + 1)
    }

    fn first_digit(&mut self, from: usize) -> usize {
        if from < self.no_digit.start || self.no_digit.end < from {
            self.no_digit = from..from + count(&self.bytes[from..self.end], |byte| !byte.is_ascii_digit());
        }
        self.no_digit.end
    }

    /// Whether a key starts here.
    fn key_at(&mut self, start: usize) -> Answer {
        // One look at the first byte settles nearly all of it.
        if !matches!(self.bytes[start], b's' | b'r' | b'g' | b'A' | b'x' | b'n' | b'h' | b'e') {
            return Answer::NO;
        }
        let mut answer = self.web_token_at(start);
        for shape in SHAPES {
            let next = self.shape_at(start, shape);
            answer = Answer { end: answer.end.max(next.end), open: answer.open || next.open };
        }
        answer
    }

    fn shape_at(&mut self, start: usize, shape: &Shape) -> Answer {
        let from = match self.after_prefix(start, shape.prefix) {
            Ok(from) => from,
            Err(answer) => return answer,
        };
        let length = match shape.rest {
            Rest::Token => self.end - from,
            Rest::Alphanumeric => count(&self.bytes[from..self.end], |byte| byte.is_ascii_alphanumeric()),
            Rest::UpperOrDigit => count(&self.bytes[from..self.end], is_upper_or_digit),
        };
        let end = from + length;
        let growing = end == self.bytes.len();
        if length > shape.most || (length < shape.least && !growing) {
            return Answer::NO;
        }
        // A shape that ends in letters and digits is not a key if more of them follow.
        let whole = self.bytes.get(end).is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let known = if shape.digit { self.first_digit(from) } else { from };
        // Without a digit by then, none of the later ones will do either.
        if !whole || known >= start + MAX_DOUBT {
            return Answer::NO;
        }
        let is_key = length >= shape.least && known < end;
        Answer { end: is_key.then_some(end), open: growing }
    }

    /// Where the rest starts, after this prefix.
    fn after_prefix(&self, start: usize, prefix: &[u8]) -> Result<usize, Answer> {
        let run = &self.bytes[start..self.end];
        if run.starts_with(prefix) {
            Ok(start + prefix.len())
        } else if self.is_last() && prefix.starts_with(run) {
            Err(Answer::NOT_YET)
        } else {
            Err(Answer::NO)
        }
    }

    /// `eyJ….eyJ….…`: three long parts, of which two begin like encoded objects.
    fn web_token_at(&mut self, start: usize) -> Answer {
        if let Err(answer) = self.after_prefix(start, WEB) {
            return answer;
        }
        let tail = *self.tail.get_or_insert_with(|| web_tail(self.bytes, self.end));
        match tail {
            WebTail::Not => Answer::NO,
            WebTail::Cut => Answer { end: None, open: self.bytes.len() < start + MAX_DOUBT },
            WebTail::Known { by, .. } if by > start + MAX_DOUBT => Answer::NO,
            WebTail::Known { end, .. } => Answer { end: Some(end), open: end == self.bytes.len() },
        }
    }
}

/// How many bytes at the beginning are like this.
fn count(bytes: &[u8], is_like_this: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|&byte| !is_like_this(byte)).unwrap_or(bytes.len())
}

/// A shape of key: how it begins, what follows, and how much of that at least.
struct Shape {
    prefix: &'static [u8],
    rest: Rest,
    least: usize,
    /// At most this many; more is something else.
    most: usize,
    /// Words joined by dashes are not keys: there must be a digit among the rest.
    digit: bool,
}

/// What the rest of a key is made of.
enum Rest {
    Token,
    Alphanumeric,
    UpperOrDigit,
}

const ANY: usize = usize::MAX;

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    Shape { prefix: b"sk-ant-",     rest: Rest::Token, least: 8,  most: ANY, digit: false },
    Shape { prefix: b"sk-proj-",    rest: Rest::Token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-svcacct-", rest: Rest::Token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-admin-",   rest: Rest::Token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-or-v1-",   rest: Rest::Token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk-",         rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"sk_live_",    rest: Rest::Alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"sk_test_",    rest: Rest::Alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"rk_live_",    rest: Rest::Alphanumeric, least: 16, most: ANY, digit: true },
    Shape { prefix: b"github_pat_", rest: Rest::Token, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghp_",        rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"gho_",        rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghu_",        rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghs_",        rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"ghr_",        rest: Rest::Alphanumeric, least: 20, most: ANY, digit: true },
    Shape { prefix: b"glpat-",      rest: Rest::Token, least: 16, most: ANY, digit: true },
    Shape { prefix: b"AKIA",        rest: Rest::UpperOrDigit, least: 16, most: 16, digit: false },
    Shape { prefix: b"ASIA",        rest: Rest::UpperOrDigit, least: 16, most: 16, digit: false },
    Shape { prefix: b"AIza",        rest: Rest::Token, least: 30, most: 40, digit: true },
    Shape { prefix: b"xoxb-",       rest: Rest::Token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxp-",       rest: Rest::Token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxa-",       rest: Rest::Token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxs-",       rest: Rest::Token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"xoxr-",       rest: Rest::Token, least: 10, most: ANY, digit: true },
    Shape { prefix: b"npm_",        rest: Rest::Alphanumeric, least: 30, most: 60, digit: true },
    Shape { prefix: b"hf_",         rest: Rest::Alphanumeric, least: 30, most: 60, digit: false },
];

fn is_upper_or_digit(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

/// How an encoded object begins.
const WEB: &[u8] = b"eyJ";
/// The shortest part of a web token.
const WEB_PART: usize = 13;

/// The second and third part of a web token, with their dots.
#[derive(Clone, Copy)]
enum WebTail {
    Not,
    /// The text ends before this is known.
    Cut,
    /// There is one: known as such by this byte, and reaching until that one.
    Known {
        by: usize,
        end: usize,
    },
}

fn web_tail(bytes: &[u8], first_end: usize) -> WebTail {
    let mut end = first_end;
    let mut by = first_end;
    for prefix in [WEB, b""] {
        match bytes.get(end) {
            None => return WebTail::Cut,
            Some(b'.') => {}
            Some(_) => return WebTail::Not,
        }
        let part = end + 1;
        let length = count(&bytes[part..], is_token);
        end = part + length;
        by = part + WEB_PART;
        let compared = length.min(prefix.len());
        if bytes[part..part + compared] != prefix[..compared] {
            return WebTail::Not;
        }
        if length < WEB_PART {
            return if end == bytes.len() { WebTail::Cut } else { WebTail::Not };
        }
    }
    WebTail::Known { by, end }
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";
const PRIVATE: &[u8] = b"PRIVATE KEY";
/// How far the dashes may be that close such a line.
const LABEL: usize = 64;

fn find_private_keys(bytes: &[u8], found: &mut Findings) {
    let mut body = Body { reach: 0..0, closing: None };
    let mut from = 0;
    while let Some(begin) = memchr::memmem::find(&bytes[from..], BEGIN).map(|at| from + at) {
        // Not from the end of the key: its last dashes may be the first ones of the next.
        from = begin + BEGIN.len();
        let answer = match private_key_label(&bytes[from..]) {
            Label::Private { length } => body.private_key_end(bytes, from + length),
            Label::Cut => Answer::NOT_YET,
            Label::Other => Answer::NO,
        };
        found.add(begin, answer);
    }
    if let Some(part) = (1..BEGIN.len()).rev().find(|&part| bytes.ends_with(&BEGIN[..part])) {
        found.add(bytes.len() - part, Answer::NOT_YET);
    }
}

/// What comes after `-----BEGIN `.
enum Label {
    /// This is a private key, and its body comes after so many bytes.
    Private {
        length: usize,
    },
    Other,
    /// The text ends before this is known.
    Cut,
}

fn private_key_label(after: &[u8]) -> Label {
    let Some(length) = find_dashes(after) else {
        return if after.len() < LABEL { Label::Cut } else { Label::Other };
    };
    let name = after[..length].strip_suffix(b" BLOCK").unwrap_or(&after[..length]);
    if name.ends_with(PRIVATE) { Label::Private { length: length + DASHES.len() } } else { Label::Other }
}

fn find_dashes(after: &[u8]) -> Option<usize> {
    memchr::memmem::find(&after[..after.len().min(LABEL)], DASHES)
}

/// What looks like a key's body. Kept from key to key, because one may begin inside of the other.
struct Body {
    reach: Range<usize>,
    /// The first closing line that starts after where the last key's body does.
    closing: Option<usize>,
}

impl Body {
    /// The end of the closing line, or of what looks like a key's body where that line is missing.
    fn private_key_end(&mut self, bytes: &[u8], start: usize) -> Answer {
        if !(self.reach.start..=self.reach.end).contains(&start) {
            self.reach = start..start + count(&bytes[start..], is_body);
            self.closing = find_closing(bytes, &self.reach);
        } else if self.closing.is_some_and(|closing| closing < start) {
            self.closing = find_closing(bytes, &(start..self.reach.end));
        }
        let label = self.closing.map_or(self.reach.end, |closing| closing + END.len());
        match find_dashes(&bytes[label..self.reach.end]) {
            Some(dashes) => Answer { end: Some(label + dashes + DASHES.len()), open: false },
            // The body goes on as long as it looks like one.
            None => Answer { end: Some(self.reach.end), open: self.reach.end == bytes.len() },
        }
    }
}

fn find_closing(bytes: &[u8], within: &Range<usize>) -> Option<usize> {
    memchr::memmem::find(&bytes[within.clone()], END).map(|at| within.start + at)
}

/// The backslash is for text in which line ends are written `\n`.
fn is_body(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=\\ \t\r\n:-,".contains(&byte)
}
