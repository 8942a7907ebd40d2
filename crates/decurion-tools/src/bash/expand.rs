//! What words become. Takes a parsed word and what is known of variables; gives the fields bash would make
//! of it, each with all the texts it may have, or with none when the text does not tell.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};

use super::syntax::{Part, Word};

/// A word gives at most this many fields, and a field has at most this many possible texts.
const MOST: usize = 64;

/// What a process substitution becomes.
pub(crate) const PIPE: &str = "/dev/fd/63";

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    /// For people and rules: the text where it is known, else as it is written.
    pub text: String,
    /// All it may be. Empty: not known.
    pub options: Vec<Pattern>,
    /// Whether it may turn into several fields, or none.
    pub splits: bool,
    /// Whether, though not known, it is a list of paths from inside the workspace.
    pub listed: bool,
    /// Whether anything in it is an expansion, even one whose value is known.
    pub dynamic: bool,
}

/// One possible text of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pattern {
    /// The text; in a glob, what is not special has a backslash before it where it could be mistaken.
    pub text: String,
    /// Whether bash replaces it by the names of files.
    pub glob: bool,
}

/// What a variable may hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// One of these.
    Known(Vec<Pattern>),
    /// Paths from inside the workspace.
    Listed,
    /// Anything.
    Unknown,
}

/// Variables known from the text.
pub(crate) type Variables = BTreeMap<String, Value>;

/// What expansion needs to know.
pub(crate) struct Expansion<'a> {
    /// Variables set in the text.
    pub variables: &'a Variables,
    /// The home folder.
    pub home: Option<&'a Utf8Path>,
    /// The directory, when there is only one it may be.
    pub directory: Option<&'a Utf8PathBuf>,
    /// Whether command substitutions of this word give paths from inside the workspace.
    pub listed: bool,
}

impl Field {
    /// A field whose text is known.
    pub fn literal(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            options: vec![Pattern { text: text.to_owned(), glob: false }],
            splits: false,
            listed: false,
            dynamic: false,
        }
    }

    /// A field about which nothing is known.
    pub fn unknown(source: &str) -> Self {
        Self { text: source.to_owned(), options: Vec::new(), splits: true, listed: false, dynamic: true }
    }

    /// Its text, where there is exactly one.
    pub fn known(&self) -> Option<&str> {
        match self.options.as_slice() {
            [only] if !only.glob && !self.splits => Some(&only.text),
            _ => None,
        }
    }

    /// Whether it could begin with a dash.
    pub fn may_be_flag(&self) -> bool {
        self.splits
            || self.options.is_empty()
            || self.options.iter().any(|option| {
                option.text.starts_with('-') || (option.glob && option.text.starts_with(['*', '?', '[']))
            })
    }
}

/// The fields of a word, or why they cannot be told.
pub(crate) fn fields(word: &Word, around: &Expansion<'_>) -> Result<Vec<Field>, String> {
    let mut found = Vec::new();
    if word.parts.iter().filter(|part| **part == Part::Mark('{')).count() > 16 {
        return Err("too many braces in one word".to_owned());
    }
    for parts in braces(&word.parts, 0)? {
        if found.len() >= MOST {
            return Err("braces that expand to too many words".to_owned());
        }
        found.push(field(&parts, word, around));
    }
    Ok(found)
}

/// A word where bash makes exactly one field and no globs: an assignment, a here-string.
pub(crate) fn single(word: &Word, around: &Expansion<'_>) -> Value {
    let quoted = word.parts.iter().map(quote).collect::<Vec<_>>();
    let field = field(&quoted, word, around);
    match (field.options.is_empty(), field.listed) {
        (false, _) => Value::Known(field.options),
        (true, true) => Value::Listed,
        (true, false) => Value::Unknown,
    }
}

fn quote(part: &Part) -> Part {
    match part {
        Part::Text { text, .. } => Part::Text { text: text.clone(), quoted: true },
        Part::Glob(mark) | Part::Mark(mark) => Part::Text { text: mark.to_string(), quoted: true },
        Part::Param(param) => {
            let mut param = param.clone();
            param.quoted = true;
            Part::Param(param)
        }
        Part::Command { script, .. } => Part::Command { script: script.clone(), quoted: true },
        other => other.clone(),
    }
}

/// The parts with a `[` that nothing closes, which is no glob, as text.
fn settled(parts: &[Part]) -> Vec<Part> {
    let closes = |part: &Part| match part {
        Part::Text { text, .. } => text.contains(']'),
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

fn field(parts: &[Part], word: &Word, around: &Expansion<'_>) -> Field {
    let parts = &settled(parts);
    let mut options = vec![Pattern { text: String::new(), glob: false }];
    let dynamic = parts.iter().any(|part| !matches!(part, Part::Text { .. } | Part::Mark(_)));
    let mut field = Field { text: String::new(), options: Vec::new(), splits: false, listed: false, dynamic };
    let globs = parts.iter().any(|part| matches!(part, Part::Glob(_)));
    for part in parts {
        match values(part, around, &mut field, globs) {
            Some(values) if options.len() * values.len() <= MOST => {
                options = join(&options, &values);
            }
            _ => {
                options = Vec::new();
                break;
            }
        }
    }
    if options.is_empty() {
        // A word that is more than the one expansion may lead out of the place it names.
        let only = parts.len() == 1;
        let splits = parts.iter().any(splitting);
        return Field {
            text: word.source.clone(),
            options,
            splits: splits || field.splits,
            listed: field.listed && only,
            dynamic: true,
        };
    }
    field.text = match options.as_slice() {
        [only] if !only.glob => only.text.clone(),
        _ => word.source.clone(),
    };
    field.options = options;
    field.listed = false;
    field
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

fn join(left: &[Pattern], right: &[Pattern]) -> Vec<Pattern> {
    let mut joined = Vec::with_capacity(left.len() * right.len());
    for a in left {
        for b in right {
            let glob = a.glob || b.glob;
            let mut text = if glob && !a.glob { escape(&a.text) } else { a.text.clone() };
            if glob && !b.glob {
                text.push_str(&escape(&b.text));
            } else {
                text.push_str(&b.text);
            }
            joined.push(Pattern { text, glob });
        }
    }
    joined
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

/// The values one part may have.
fn values(part: &Part, around: &Expansion<'_>, field: &mut Field, globs: bool) -> Option<Vec<Pattern>> {
    let plain = |text: &str| Some(vec![Pattern { text: text.to_owned(), glob: false }]);
    match part {
        // Without a glob in the word an unquoted `]` and the like are only themselves.
        Part::Text { text, quoted } if globs && !quoted => {
            Some(vec![Pattern { text: text.clone(), glob: false }])
        }
        Part::Text { text, .. } => plain(text),
        Part::Mark(mark) => plain(mark.encode_utf8(&mut [0; 4])),
        Part::Glob(mark) => Some(vec![Pattern { text: mark.to_string(), glob: true }]),
        Part::Tilde(name) if name.is_empty() => plain(around.home?.as_str()),
        // The name of a pipe, whatever its number.
        Part::Process(_) => plain(PIPE),
        Part::Tilde(_) | Part::Arithmetic(_) => None,
        Part::Command { quoted, .. } => {
            field.listed = around.listed;
            field.splits |= !quoted;
            None
        }
        Part::Param(param) => {
            if !param.plain {
                return None;
            }
            match around.variables.get(&param.name) {
                Some(Value::Known(values)) => known(values, param.quoted, field),
                Some(Value::Listed) => {
                    field.listed = true;
                    field.splits |= !param.quoted;
                    None
                }
                Some(Value::Unknown) => None,
                None => match param.name.as_str() {
                    "PWD" => plain(around.directory?.as_str())
                        .filter(|values| param.quoted || unsplit(&values[0].text)),
                    "HOME" => {
                        plain(around.home?.as_str()).filter(|values| param.quoted || unsplit(&values[0].text))
                    }
                    _ => None,
                },
            }
        }
    }
}

/// A variable's known values, as they come out with or without quotes.
fn known(values: &[Pattern], quoted: bool, field: &mut Field) -> Option<Vec<Pattern>> {
    if quoted {
        return Some(values.to_vec());
    }
    // Without quotes a name found by a glob may contain blanks, and a text with blanks or glob characters
    // is taken apart.
    if values.iter().any(|value| value.glob) {
        field.splits = true;
        field.listed = values.iter().all(|value| within(&value.text));
        return None;
    }
    values.iter().all(|value| unsplit(&value.text)).then(|| values.to_vec())
}

/// Whether a value stays one field without quotes.
fn unsplit(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '\t', '\n', '*', '?', '[', '\\'])
}

/// Whether a relative glob stays where it starts.
fn within(pattern: &str) -> bool {
    !pattern.starts_with('/') && !pattern.split('/').any(|component| component == "..")
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
    // An alternative that is empty and stands alone gives no word at all.
    Ok(all.into_iter().filter(|parts| !parts.is_empty()).collect())
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

/// `{1..5}`.
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
