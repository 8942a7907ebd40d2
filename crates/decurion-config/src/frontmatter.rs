//! Markdown with a YAML head, as agents, skills and commands are written. Takes the text of a file, gives the
//! head's entries, each with its line, and the body.
//!
//! People's files are often not YAML: a colon in a description, an unclosed bracket, a missing closing line.
//! So the head is first read strictly; where that fails it is cut into entries line by line, each entry is
//! read strictly on its own, and only the entry that is broken becomes plain text. What was repaired is said
//! once per file.

use serde_json::Value;

/// A file told apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The head's entries, in the order written.
    pub head: Vec<Entry>,
    /// What comes below the head, lines ending in `\n`, without blank lines around it.
    pub body: String,
    /// What had to be repaired.
    pub repair: Option<Repair>,
}

/// One key of a head with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    /// Its line in the file, from 1.
    pub line: u32,
    pub value: Value,
    /// Its value as written, for keys whose value is text whatever YAML makes of it: `[a]`, `1.0`.
    pub raw: String,
}

/// How a file was read although its head is not YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The first line with something to repair.
    pub line: u32,
    /// What was done, in one sentence.
    pub text: String,
}

/// Why a file has no head that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// It is ordinary Markdown.
    #[error("there is no head: the first line is not `---`")]
    NoHead,
    /// There is a head, and nothing in it is an entry.
    #[error("the head has no `key: value` line")]
    NoEntries,
    /// It was not written by a person.
    #[error("the head has more than {MAX_ENTRIES} keys")]
    TooManyEntries,
}

/// More keys than any definition has; each is parsed on its own in a broken head.
const MAX_ENTRIES: usize = 256;

/// Keys whose value is prose, which may go on in lines that look like anything.
const PROSE: &[&str] = &["description", "when_to_use", "initialPrompt", "criticalSystemReminder"];

/// First words of the lines of a conversation, which people put into descriptions.
const DIALOGUE: &[&str] =
    &["user", "assistant", "context", "commentary", "example", "examples", "human", "agent", "note"];

impl Entry {
    /// The value as text: what YAML read where that is text, else what is written. None where there is none.
    pub fn text(&self) -> Option<&str> {
        let text = match &self.value {
            Value::Null => return None,
            Value::String(text) => text,
            // What stands behind or below it is a comment.
            Value::Bool(_) | Value::Number(_) => {
                let line = self.raw.lines().next().unwrap_or_default();
                line.split_once(" #").map_or(line, |(text, _)| text)
            }
            _ => &self.raw,
        };
        let text = text.trim();
        (!text.is_empty()).then_some(text)
    }
}

/// Tells a file apart. `known` are the keys that such a file may have: in a broken head a line that begins
/// with one of them surely begins an entry.
pub fn read(text: &str, known: &[&str]) -> Result<Document, HeadError> {
    let mut repairs = Repairs::default();
    let text = normalized(text, &mut repairs);
    let lines: Vec<&str> = text.lines().collect();
    let opening = lines.iter().position(|line| !line.trim().is_empty()).ok_or(HeadError::NoHead)?;
    if lines[opening].trim_end() != "---" {
        return Err(HeadError::NoHead);
    }
    let first = opening + 1;
    let closing =
        lines.iter().skip(first).position(|line| line.trim_end() == "---").map(|index| first + index);
    let head = Head { lines: &lines[first..closing.unwrap_or(lines.len())], first, known };
    let strict = closing.and_then(|_| head.strict());
    let (entries, end) = match strict {
        Some(entries) => (entries, None),
        None => head.tolerant(closing.is_some(), &mut repairs)?,
    };
    let body_start = match (end, closing) {
        (Some(end), _) => end,
        (None, Some(closing)) => closing + 1,
        (None, None) => lines.len(),
    };
    let body = lines.get(body_start..).unwrap_or_default().join("\n");
    Ok(Document { head: entries, body: body.trim().to_owned(), repair: repairs.done() })
}

/// Without a byte order mark, lines ending in `\n`.
fn normalized(text: &str, repairs: &mut Repairs) -> String {
    let plain = text.strip_prefix('\u{feff}');
    if plain.is_some() {
        repairs.add(1, "the file begins with a byte order mark".to_owned());
    }
    let text = plain.unwrap_or(text);
    if let Some(at) = text.find("\r\n") {
        let line = number(text[..at].matches('\n').count() + 1);
        repairs.add(line, "lines end in CRLF".to_owned());
    }
    text.replace("\r\n", "\n")
}

/// What was repaired, in the order found.
#[derive(Default)]
struct Repairs(Vec<(u32, String)>);

impl Repairs {
    fn add(&mut self, line: u32, text: String) {
        self.0.push((line, text));
    }

    fn done(mut self) -> Option<Repair> {
        self.0.sort_by_key(|(line, _)| *line);
        let line = self.0.first()?.0;
        let texts: Vec<String> = self
            .0
            .into_iter()
            .map(|(at, text)| if at == line { text } else { format!("{text} (line {at})") })
            .collect();
        Some(Repair { line, text: texts.join("; ") })
    }
}

/// The lines between the two `---`; `first` is the index of the first in the file.
struct Head<'a> {
    lines: &'a [&'a str],
    first: usize,
    known: &'a [&'a str],
}

/// The lines of one entry.
struct Piece<'a> {
    key: &'a str,
    index: usize,
    /// What stands behind the colon.
    value: &'a str,
    rest: Vec<&'a str>,
    /// How many examples are open, in which every line is someone's words.
    examples: isize,
}

impl<'a> Head<'a> {
    fn line(&self, index: usize) -> u32 {
        number(self.first + index + 1)
    }

    /// All of it as YAML, if it is.
    fn strict(&self) -> Option<Vec<Entry>> {
        let Value::Object(members) = parse(&self.lines.join("\n")).ok()? else { return None };
        let is_speech = |key: &String| !self.is_known(key) && is_dialogue(key);
        if members.is_empty() || members.len() > MAX_ENTRIES || members.keys().any(is_speech) {
            return None;
        }
        let pieces = self.plain_pieces();
        let entry = |(key, value): (String, Value)| {
            // A later piece of the same name is inside of a text that looks like one.
            let piece = pieces.iter().find(|piece| piece.key == key);
            let line = piece.map_or_else(|| self.line_of(&key), |piece| self.line(piece.index));
            Entry { line, raw: piece.map(Piece::raw).unwrap_or_default(), key, value }
        };
        Some(members.into_iter().map(entry).collect())
    }

    /// The line of a key that is not a plain word: several words, or indented.
    fn line_of(&self, key: &str) -> u32 {
        let begins = |line: &&str| line.trim_start().trim_start_matches(['"', '\'']).starts_with(key);
        self.line(self.lines.iter().position(begins).unwrap_or(0))
    }

    /// The entries of a head that is YAML: every unindented key begins one.
    fn plain_pieces(&self) -> Vec<Piece<'a>> {
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        for (index, line) in self.lines.iter().copied().enumerate() {
            match split_key(line) {
                Some((key, value)) => pieces.push(Piece::new(key, index, value)),
                None => pieces.iter_mut().last().into_iter().for_each(|piece| piece.add(line)),
            }
        }
        pieces
    }

    /// Entry by entry. Gives the index of the body's first line too, where the closing line is missing.
    fn tolerant(
        &self,
        closed: bool,
        repairs: &mut Repairs,
    ) -> Result<(Vec<Entry>, Option<usize>), HeadError> {
        let (pieces, end) = self.pieces(closed, repairs);
        if !closed || end.is_some() {
            let line = self.line(end.unwrap_or(self.lines.len()).saturating_sub(1));
            repairs.add(line, "the head is not closed by `---`".to_owned());
        }
        if pieces.is_empty() {
            return Err(HeadError::NoEntries);
        }
        if pieces.len() > MAX_ENTRIES {
            return Err(HeadError::TooManyEntries);
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let line = self.line(piece.index);
            let entry = Entry {
                key: piece.key.to_owned(),
                line,
                value: self.value(&piece, repairs),
                raw: piece.raw(),
            };
            match entries.iter_mut().find(|other| other.key == entry.key) {
                Some(earlier) => {
                    repairs.add(line, format!("`{}` is given twice, the last one counts", entry.key));
                    *earlier = entry;
                }
                None => entries.push(entry),
            }
        }
        Ok((entries, end.map(|end| self.first + end)))
    }

    fn value(&self, piece: &Piece<'_>, repairs: &mut Repairs) -> Value {
        let text = piece.text();
        let (line, reason) = match parse(&text) {
            Ok(Value::Object(mut members)) if members.len() == 1 => {
                return members.shift_remove(piece.key).unwrap_or(Value::Null);
            }
            Ok(_) => (0, "its lines look like keys".to_owned()),
            Err(problem) => problem,
        };
        let at = self.line(piece.index).saturating_add(line);
        if let Some(items) = piece.items() {
            repairs.add(at, format!("`{}` is not YAML ({reason}) and is read as a list of texts", piece.key));
            return Value::Array(items.into_iter().map(Value::String).collect());
        }
        repairs.add(at, format!("`{}` is not YAML ({reason}) and is read as plain text", piece.key));
        Value::String(piece.prose())
    }

    /// Cuts the head into entries by what a reader would take for one.
    fn pieces(&self, closed: bool, repairs: &mut Repairs) -> (Vec<Piece<'a>>, Option<usize>) {
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        let mut after_blank = false;
        for (index, line) in self.lines.iter().copied().enumerate() {
            let was_blank = std::mem::replace(&mut after_blank, line.trim().is_empty());
            let current = pieces.last_mut();
            let belongs = match (&current, line_kind(line)) {
                (Some(piece), LineKind::Key(key, value)) => {
                    let begins = self.is_known(key)
                        || !(is_dialogue(key) || piece.in_example() || (!closed && was_blank));
                    if begins {
                        pieces.push(Piece::new(key, index, value));
                        continue;
                    }
                    !was_blank || closed || piece.in_example()
                }
                (None, LineKind::Key(key, value)) => {
                    pieces.push(Piece::new(key, index, value));
                    continue;
                }
                (_, LineKind::Blank | LineKind::Indented) => true,
                (Some(piece), LineKind::Item) if piece.value.is_empty() => true,
                (Some(piece), LineKind::Item | LineKind::Other) => {
                    piece.is_prose() && (closed || !was_blank || piece.in_example())
                }
                (_, LineKind::Comment) if !was_blank => continue,
                _ => false,
            };
            match current {
                Some(piece) if belongs => piece.add(line),
                None if belongs => {}
                Some(_) if was_blank => return (pieces, Some(index)),
                _ if !closed => return (pieces, Some(index)),
                _ => repairs.add(self.line(index), "a line that belongs to no key is left out".to_owned()),
            }
        }
        (pieces, None)
    }

    fn is_known(&self, key: &str) -> bool {
        self.known.contains(&key)
    }
}

fn is_dialogue(key: &str) -> bool {
    DIALOGUE.contains(&key.to_ascii_lowercase().as_str())
}

/// How many more examples a line opens than it closes.
fn examples(line: &str) -> isize {
    let count = |what: &str| isize::try_from(line.matches(what).count()).unwrap_or(0);
    count("<example>") - count("</example>")
}

impl<'a> Piece<'a> {
    fn new(key: &'a str, index: usize, value: &'a str) -> Self {
        Self { key, index, value, rest: Vec::new(), examples: examples(value) }
    }

    fn add(&mut self, line: &'a str) {
        self.examples += examples(line);
        self.rest.push(line);
    }

    /// The entry as a document of its own.
    fn text(&self) -> String {
        let mut text = format!("{}: {}", quoted(self.key), self.value);
        for line in &self.rest {
            text.push('\n');
            text.push_str(line);
        }
        text
    }

    fn raw(&self) -> String {
        let value = self.value.trim();
        let rest = self.rest.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        let lines: Vec<&str> = std::iter::once(value).filter(|value| !value.is_empty()).chain(rest).collect();
        lines.join("\n")
    }

    /// The value as plain text: quotes around it and the sign of a block text are no part of it.
    fn prose(&self) -> String {
        let raw = self.raw();
        let block = [">", "|", ">-", "|-", ">+", "|+"].contains(&self.value.trim());
        let text = if block { raw.split_once('\n').map_or("", |(_, rest)| rest) } else { &raw };
        unquoted(text.trim()).to_owned()
    }

    /// The items, if the entry is nothing but a list of lines.
    fn items(&self) -> Option<Vec<String>> {
        let lines: Vec<&str> =
            self.rest.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
        if !self.value.is_empty() || lines.is_empty() {
            return None;
        }
        lines.iter().map(|line| Some(unquoted(line.strip_prefix('-')?.trim()).to_owned())).collect()
    }

    fn is_prose(&self) -> bool {
        PROSE.contains(&self.key)
    }

    fn in_example(&self) -> bool {
        self.is_prose() && self.examples > 0
    }
}

/// What a line looks like on its own.
enum LineKind<'a> {
    Blank,
    Indented,
    Item,
    Comment,
    Key(&'a str, &'a str),
    Other,
}

fn line_kind(line: &str) -> LineKind<'_> {
    if line.trim().is_empty() {
        LineKind::Blank
    } else if line.starts_with([' ', '\t']) {
        LineKind::Indented
    } else if line == "-" || line.starts_with("- ") {
        LineKind::Item
    } else if line.starts_with('#') {
        LineKind::Comment
    } else if let Some((key, value)) = split_key(line) {
        LineKind::Key(key, value)
    } else {
        LineKind::Other
    }
}

/// An unindented `key: value` or `key:`, the key a word.
fn split_key(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    if !(value.is_empty() || value.starts_with([' ', '\t'])) || key.starts_with([' ', '\t']) {
        return None;
    }
    let key = unquoted(key.trim_end());
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (!key.is_empty() && !key.starts_with('-') && key.bytes().all(is_word)).then(|| (key, value.trim()))
}

/// A key that YAML would not take for a number or a list.
fn quoted(key: &str) -> String {
    format!("\"{key}\"")
}

/// Without the quotes around it, if there are such.
pub(crate) fn unquoted(text: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(text)
}

/// Strict YAML, within bounds that no definition comes near. The error is the line (from 0) and the reason.
fn parse(text: &str) -> Result<Value, (u32, String)> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 20_000, max_depth: 64 },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Value>(text, options).map_err(|error| {
        let line = error.location().map_or(0, |at| number(usize::try_from(at.line()).unwrap_or(0)));
        let words = error.to_string();
        (line.saturating_sub(1), reason(words.lines().next().unwrap_or_default()).to_owned())
    })
}

/// What is wrong, without the place, which is named in the file's own lines instead.
fn reason(words: &str) -> &str {
    let words = words.strip_prefix("error: ").unwrap_or(words);
    words.rsplit_once(" at line ").map_or(words, |(reason, _)| reason)
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
