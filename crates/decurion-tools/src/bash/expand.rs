//! What words become. Takes a parsed word; gives the fields bash would make of it, each with its text, or with
//! none where the text alone does not tell.

use camino::Utf8Path;

use super::syntax::{Part, Word};

/// A word gives at most this many fields.
const MOST: usize = 64;

/// What a process substitution becomes.
pub(crate) const PIPE: &str = "/dev/fd/63";

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    /// For people and rules: the text where it is known, else as it is written.
    pub text: String,
    /// Its text. None: not known.
    pub pattern: Option<Pattern>,
    /// Whether it may turn into several fields, or none.
    pub splits: bool,
    /// Whether it stands in the command as it is: plain or quoted characters, globs and the user's own `~`.
    pub literal: bool,
}

/// The text of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    /// The text; in a glob, what is not special has a backslash before it where it could be mistaken.
    pub text: String,
    /// Whether bash replaces it by the names of files.
    pub glob: bool,
}

impl Field {
    /// A field whose text is known.
    pub fn literal(text: &str) -> Self {
        let pattern = Some(Pattern { text: text.to_owned(), glob: false });
        Self { text: text.to_owned(), pattern, splits: false, literal: true }
    }

    /// A field about which nothing is known.
    pub fn unknown(source: &str) -> Self {
        Self { text: source.to_owned(), pattern: None, splits: true, literal: false }
    }

    /// Its text, where it is exactly that.
    pub fn known(&self) -> Option<&str> {
        let pattern = self.pattern.as_ref().filter(|pattern| !pattern.glob && !self.splits)?;
        Some(&pattern.text)
    }

    /// Whether it certainly becomes exactly one word, so that those after it stay in their places.
    pub fn is_one_word(&self) -> bool {
        !self.splits && !self.is_glob()
    }

    /// Whether bash replaces it by the names of files.
    pub fn is_glob(&self) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.glob)
    }

    /// Whether it could begin with a dash. A glob that begins with a wildcard finds such names only where they
    /// exist, which is looked up when the call is decided: see [`Field::may_find_flag`].
    pub fn may_be_flag(&self) -> bool {
        self.splits || self.pattern.as_ref().is_none_or(|pattern| pattern.text.starts_with('-'))
    }

    /// Whether it is a glob that a file with a name like a flag would match.
    pub fn may_find_flag(&self) -> bool {
        let finds = |pattern: &Pattern| pattern.glob && pattern.text.starts_with(['*', '?', '[']);
        self.pattern.as_ref().is_some_and(finds)
    }
}

/// The fields of a word, or why they cannot be told.
pub(crate) fn fields(word: &Word, home: Option<&Utf8Path>) -> Result<Vec<Field>, String> {
    if word.parts.iter().filter(|part| **part == Part::Mark('{')).count() > 16 {
        return Err("too many braces in one word".to_owned());
    }
    // An alternative that is empty and stands alone gives no word at all.
    let expanded: Vec<_> = braces(&word.parts, 0)?.into_iter().filter(|parts| !parts.is_empty()).collect();
    if expanded.len() > MOST {
        return Err("braces that expand to too many words".to_owned());
    }
    // Where a line is continued inside a word, bash itself does not always agree on what that means.
    let whole = expanded.as_slice() == [word.parts.clone()] && !word.source.contains("\\\n");
    let mut found = Vec::new();
    for parts in expanded {
        let field = field(&parts, word, home);
        found.push(Field { literal: field.literal && whole, ..field });
    }
    Ok(found)
}

/// The text of a word where bash makes exactly one field and no globs: an assignment, a here-string. None where
/// it is not known.
pub(crate) fn single(word: &Word, home: Option<&Utf8Path>) -> Option<String> {
    let mut text = String::new();
    for part in &word.parts {
        match part {
            Part::Glob(mark) => text.push(*mark),
            part => text.push_str(&value(part, home)?.text),
        }
    }
    Some(text)
}

/// The parts with a `[` that nothing closes, which is no glob, as text.
fn settled(parts: &[Part]) -> Vec<Part> {
    let closes = |part: &Part| match part {
        Part::Text { text, .. } | Part::Ansi(text) => text.contains(']'),
        Part::Glob(_) | Part::Mark(_) | Part::Tilde(_) => false,
        _ => true,
    };
    parts
        .iter()
        .enumerate()
        .map(|(index, part)| match part {
            Part::Glob('[') if !parts[index + 1..].iter().any(closes) => {
                Part::Text { text: "[".to_owned(), quoted: true }
            }
            part => part.clone(),
        })
        .collect()
}

fn field(parts: &[Part], word: &Word, home: Option<&Utf8Path>) -> Field {
    let parts = &settled(parts);
    let literal = parts.iter().enumerate().all(|(index, part)| match part {
        Part::Text { .. } | Part::Mark(_) | Part::Glob(_) => true,
        Part::Tilde(name) => index == 0 && name.is_empty(),
        _ => false,
    });
    let values: Option<Vec<Pattern>> = parts.iter().map(|part| value(part, home)).collect();
    let Some(values) = values else {
        let splits = parts.iter().any(splitting);
        return Field { text: word.source.clone(), pattern: None, splits, literal: false };
    };
    let glob = values.iter().any(|value| value.glob);
    let text: String = values
        .iter()
        .map(|value| if glob && !value.glob { escape(&value.text) } else { value.text.clone() })
        .collect();
    let shown = if glob { word.source.clone() } else { text.clone() };
    Field { text: shown, pattern: Some(Pattern { text, glob }), splits: false, literal }
}

/// Whether a part without quotes may become several fields.
fn splitting(part: &Part) -> bool {
    match part {
        // These are numbers.
        Part::Param(param) if matches!(param.name.as_str(), "?" | "#" | "$" | "!") && param.plain => false,
        Part::Param(param) => !param.quoted || param.name == "@" || param.name.ends_with(']'),
        Part::Command { quoted, .. } => !quoted,
        _ => false,
    }
}

/// The text with what a glob would take as special made plain.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// The text of one part, where it is known.
fn value(part: &Part, home: Option<&Utf8Path>) -> Option<Pattern> {
    let plain = |text: &str| Some(Pattern { text: text.to_owned(), glob: false });
    match part {
        Part::Text { text, .. } | Part::Ansi(text) => plain(text),
        Part::Mark(mark) => plain(mark.encode_utf8(&mut [0; 4])),
        Part::Glob(mark) => Some(Pattern { text: mark.to_string(), glob: true }),
        Part::Tilde(name) if name.is_empty() => plain(home?.as_str()),
        // The name of a pipe, whatever its number.
        Part::Process(_) => plain(PIPE),
        Part::Tilde(_) | Part::Arithmetic(_) | Part::Command { .. } | Part::Param(_) => None,
    }
}

/// Brace expansion: the words that one word becomes.
fn braces(parts: &[Part], depth: usize) -> Result<Vec<Vec<Part>>, String> {
    if depth > 8 {
        return Err("braces nested too deeply".to_owned());
    }
    let Some(open) = parts.iter().position(|part| *part == Part::Mark('{')) else {
        return Ok(vec![parts.to_vec()]);
    };
    let unclear = || Err("braces that are not understood".to_owned());
    let Some((close, commas)) = closing(parts, open) else {
        // Not closed: bash leaves it as it is, unless something after it is a pair of its own.
        let marks = parts[open + 1..].iter().any(|part| matches!(part, Part::Mark('{' | '}')));
        return if marks { unclear() } else { Ok(vec![parts.to_vec()]) };
    };
    if commas.is_empty() {
        let inner = &parts[open + 1..close];
        let range = inner
            .iter()
            .any(|part| matches!(part, Part::Text { text, quoted: false } if text.contains("..")));
        let marks = inner.iter().any(|part| matches!(part, Part::Mark(_)));
        if range {
            return sequence(parts, open, close, depth);
        }
        // A later comma or brace that belongs to nothing changes what this one belongs to.
        if marks || stray(&parts[close + 1..]) {
            return unclear();
        }
        let mut all = Vec::new();
        for tail in braces(&parts[close + 1..], depth)? {
            all.push([&parts[..=close], tail.as_slice()].concat());
        }
        return Ok(all);
    }
    let mut all = Vec::new();
    let mut start = open + 1;
    let tails = braces(&parts[close + 1..], depth)?;
    for end in commas.into_iter().chain([close]) {
        for middle in braces(&parts[start..end], depth + 1)? {
            for tail in &tails {
                if all.len() >= MOST {
                    return Err("braces that expand to too many words".to_owned());
                }
                all.push([&parts[..open], middle.as_slice(), tail.as_slice()].concat());
            }
        }
        start = end + 1;
    }
    Ok(all)
}

/// Whether a comma or a closing brace stands outside of any pair.
fn stray(parts: &[Part]) -> bool {
    let mut nested = 0usize;
    for part in parts {
        match part {
            Part::Mark('{') => nested += 1,
            Part::Mark('}') if nested > 0 => nested -= 1,
            Part::Mark('}' | ',') if nested == 0 => return true,
            _ => {}
        }
    }
    false
}

/// The `}` that closes the `{` at `open`, and the commas between them.
fn closing(parts: &[Part], open: usize) -> Option<(usize, Vec<usize>)> {
    let mut nested = 0usize;
    let mut commas = Vec::new();
    for (index, part) in parts.iter().enumerate().skip(open + 1) {
        match part {
            Part::Mark('{') => nested += 1,
            Part::Mark('}') if nested == 0 => return Some((index, commas)),
            Part::Mark('}') => nested -= 1,
            Part::Mark(',') if nested == 0 => commas.push(index),
            _ => {}
        }
    }
    None
}

fn sequence(parts: &[Part], open: usize, close: usize, depth: usize) -> Result<Vec<Vec<Part>>, String> {
    let unclear = || "a range in braces that is not understood".to_owned();
    let [Part::Text { text, quoted: false }] = &parts[open + 1..close] else { return Err(unclear()) };
    let (from, to) = text.split_once("..").ok_or_else(unclear)?;
    let plain = |number: &str| {
        let fits = number.len() <= 4 && (number == "0" || !number.starts_with('0'));
        number.parse::<u32>().ok().filter(|_| fits && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (Some(from), Some(to)) = (plain(from), plain(to)) else { return Err(unclear()) };
    if from > to || (to - from) as usize >= MOST {
        return Err(unclear());
    }
    let tails = braces(&parts[close + 1..], depth)?;
    let mut all = Vec::new();
    for number in from..=to {
        for tail in &tails {
            let middle = Part::Text { text: number.to_string(), quoted: true };
            all.push([&parts[..open], std::slice::from_ref(&middle), tail.as_slice()].concat());
        }
    }
    Ok(all)
}
