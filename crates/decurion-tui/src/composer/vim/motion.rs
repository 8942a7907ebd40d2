//! Where motions and objects lead. Takes a text and a place in it; gives another place, or a range. Places are always
//! between characters as people see them.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

use super::Composer;
use super::parse::{Find, Object};

/// The place behind the character here.
pub(super) fn next(text: &str, at: usize) -> usize {
    at + text[at..].graphemes(true).next().map_or(0, str::len)
}

/// The place before the character before this.
pub(super) fn previous(text: &str, at: usize) -> usize {
    text[..at].grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
}

/// The line around a place, without its end.
pub(super) fn line(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
    start..at + text[at..].find('\n').unwrap_or(text.len() - at)
}

/// The first character of a line that is no space; its last where all are.
pub(super) fn first(text: &str, at: usize) -> usize {
    let line = line(text, at);
    let spaces = text[line.clone()].find(|letter: char| !letter.is_whitespace());
    spaces.map_or(line.end, |spaces| line.start + spaces)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Space,
    Word,
    Mark,
}

fn class(text: &str, at: usize, big: bool) -> CharClass {
    match text[at..].chars().next() {
        None => CharClass::Space,
        Some(letter) if letter.is_whitespace() => CharClass::Space,
        // What stands for a paste is a word.
        Some(letter)
            if big
                || letter.is_alphanumeric()
                || letter == '_'
                || u32::from(letter) >= super::super::FIRST =>
        {
            CharClass::Word
        }
        Some(_) => CharClass::Mark,
    }
}

/// Whether an empty line is here: that is a word too.
fn is_empty_line(text: &str, at: usize) -> bool {
    text[at..].starts_with('\n') && (at == 0 || text[..at].ends_with('\n'))
}

/// The beginning of the next word.
pub(super) fn word(text: &str, from: usize, big: bool) -> usize {
    let here = class(text, from, big);
    let mut at = from;
    while at < text.len() && here != CharClass::Space && class(text, at, big) == here {
        at = next(text, at);
    }
    while at < text.len() && class(text, at, big) == CharClass::Space {
        if at > from && is_empty_line(text, at) {
            break;
        }
        at = next(text, at);
    }
    at
}

/// The beginning of this word, or of the one before.
pub(super) fn back(text: &str, from: usize, big: bool) -> usize {
    let mut at = previous(text, from);
    while at > 0 && class(text, at, big) == CharClass::Space && !is_empty_line(text, at) {
        at = previous(text, at);
    }
    let here = class(text, at, big);
    while at > 0 && here != CharClass::Space && class(text, previous(text, at), big) == here {
        at = previous(text, at);
    }
    at
}

/// The last character of this word, or of the next.
pub(super) fn end(text: &str, from: usize, big: bool) -> usize {
    let mut at = next(text, from);
    while at < text.len() && class(text, at, big) == CharClass::Space {
        at = next(text, at);
    }
    let here = class(text, at, big);
    loop {
        let after = next(text, at);
        if after >= text.len() || class(text, after, big) != here {
            return at;
        }
        at = after;
    }
}

/// Where a character stands on this line for the so many-th time. One that is searched again is not found where the
/// search before stopped short of it.
pub(super) fn find(text: &str, from: usize, find: Find, count: usize, again: bool) -> Option<usize> {
    let line = line(text, from);
    let skip = usize::from(again && find.till && count == 1);
    let is_it = |(_, grapheme): &(usize, &str)| grapheme.starts_with(find.letter);
    if find.back {
        let before = &text[line.start..from];
        let mut places = before.grapheme_indices(true).rev().skip(skip).filter(is_it);
        let at = line.start + places.nth(count - 1)?.0;
        return Some(if find.till { next(text, at) } else { at });
    }
    let start = next(text, from).min(line.end);
    let mut places = text[start..line.end].grapheme_indices(true).skip(skip).filter(is_it);
    let at = start + places.nth(count - 1)?.0;
    Some(if find.till { previous(text, at) } else { at })
}

/// The range of an object around a place.
pub(super) fn object(text: &str, at: usize, kind: Object, around: bool) -> Option<Range<usize>> {
    match kind {
        Object::Word { big } => Some(word_around(text, at, big, around)),
        Object::Quotes(quote) => quoted(text, at, quote, around),
        Object::Brackets(open, close) => bracketed(text, at, (open, close), around),
    }
}

fn word_around(text: &str, at: usize, big: bool, around: bool) -> Range<usize> {
    let line = line(text, at);
    let run = |from: usize| {
        let here = class(text, from, big);
        let (mut start, mut end) = (from, from);
        while start > line.start && class(text, previous(text, start), big) == here {
            start = previous(text, start);
        }
        while end < line.end && class(text, end, big) == here {
            end = next(text, end);
        }
        start..end
    };
    let word = run(at);
    if !around {
        return word;
    }
    let is_space = |at: usize| class(text, at, big) == CharClass::Space;
    if is_space(at) {
        return if word.end < line.end { word.start..run(word.end).end } else { word };
    }
    if word.end < line.end && is_space(word.end) {
        return word.start..run(word.end).end;
    }
    if word.start > line.start && is_space(previous(text, word.start)) {
        return run(previous(text, word.start)).start..word.end;
    }
    word
}

/// A text between quotes on this line: the one around the place, or the next.
fn quoted(text: &str, at: usize, quote: char, around: bool) -> Option<Range<usize>> {
    let line = line(text, at);
    let mut marks = Vec::new();
    let mut escaped = false;
    for (place, letter) in text[line.clone()].char_indices() {
        if letter == quote && !escaped {
            marks.push(line.start + place);
        }
        escaped = letter == '\\' && !escaped;
    }
    let pair = marks.chunks_exact(2).find(|pair| pair[1] >= at)?;
    let (open, close) = (pair[0], pair[1]);
    if !around {
        return Some(open + 1..close);
    }
    let spaces = text[close + 1..line.end].bytes().take_while(|byte| *byte == b' ').count();
    Some(open..close + 1 + spaces)
}

/// What stands between brackets around the place.
fn bracketed(text: &str, at: usize, (open, close): (char, char), around: bool) -> Option<Range<usize>> {
    let mut depth = 0usize;
    let starts_here = text[at..].starts_with(open);
    let start = if starts_here {
        at
    } else {
        text[..at].char_indices().rev().find_map(|(place, letter)| {
            if letter == close {
                depth += 1;
            } else if letter == open {
                if depth == 0 {
                    return Some(place);
                }
                depth -= 1;
            }
            None
        })?
    };
    let mut depth = 0usize;
    let length = text[start..].char_indices().find_map(|(place, letter)| {
        if letter == open {
            depth += 1;
        } else if letter == close {
            depth -= 1;
            return (depth == 0).then_some(place);
        }
        None
    })?;
    let end = start + length;
    Some(if around { start..end + 1 } else { start + 1..end })
}

/// How many columns stand before the cursor on its line.
pub(super) fn column(composer: &Composer) -> usize {
    let start = line(&composer.text, composer.cursor).start;
    composer.text[start..composer.cursor]
        .graphemes(true)
        .map(|grapheme| composer.shown(grapheme).width())
        .sum()
}

/// The place in this column so many lines down or up; none if there are not so many.
pub(super) fn vertical(composer: &Composer, down: bool, count: usize, column: usize) -> Option<usize> {
    let text = composer.text.as_str();
    let mut at = composer.cursor;
    for _ in 0..count {
        let here = line(text, at);
        at = if down {
            (here.end < text.len()).then_some(here.end + 1)?
        } else {
            here.start.checked_sub(1)?
        };
    }
    let target = line(text, at);
    let mut used = 0usize;
    let place = text[target.clone()].grapheme_indices(true).find(|(_, grapheme)| {
        used = used.saturating_add(composer.shown(grapheme).width());
        used > column
    });
    Some(place.map_or(target.end, |(at, _)| target.start + at))
}

/// The beginning of a line by its number, or of the last one.
pub(super) fn nth_line(text: &str, number: usize) -> usize {
    let mut starts =
        std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).take(number + 1);
    starts.by_ref().last().unwrap_or(0)
}
