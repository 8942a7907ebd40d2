//! Code in colours. Takes a language's name or a file's, and lines one after the other; gives their parts with styles.
//!
//! One lexer reads every language by what a table says of it (`language.rs`): comments, texts, numbers and words are the
//! same few ideas everywhere. It goes through a line once and carries only where it is from one line to the next, so
//! code that is still being written costs its new lines alone.

mod language;
mod lines;

use std::ops::Range;

use ratatui_core::style::Style;
use ratatui_core::text::Span;

use crate::theme::Theme;
use language::{KeyStyle, Language, LexerKind, Quote};

/// How many texts may stand inside of each other before the innermost is read as plain text.
const MOST_HOLES: usize = 8;

/// What a part of code is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenClass {
    #[default]
    Plain,
    Comment,
    Text,
    Number,
    /// A word of the language's own.
    Keyword,
    Type,
    /// Something that is called.
    Function,
    /// An attribute, a macro, a lifetime.
    Attribute,
    /// A key or a variable.
    Key,
    /// A line that was added.
    Added,
    /// A line that was removed.
    Removed,
    /// What says where a change is.
    Place,
    Heading,
}

impl TokenClass {
    fn style(self, theme: &Theme) -> Style {
        match self {
            Self::Plain => Style::default(),
            Self::Comment => theme.comment,
            Self::Text => theme.literal,
            Self::Number => theme.number,
            Self::Keyword => theme.keyword,
            Self::Type => theme.kind,
            Self::Function | Self::Key => theme.name,
            Self::Attribute => theme.attribute,
            Self::Added => theme.added,
            Self::Removed => theme.removed,
            Self::Place => theme.code,
            Self::Heading => theme.heading,
        }
    }
}

/// One piece of code that is being coloured.
pub struct Highlight {
    lexer: Option<Lexer>,
    theme: Theme,
}

impl Highlight {
    /// For this language, by any of its names; an unknown one stays in one colour.
    pub fn new(language: &str, theme: &Theme) -> Self {
        Self { lexer: Lexer::new(language), theme: theme.clone() }
    }

    /// For the language of this file, by its name.
    pub fn of_file(path: &str, theme: &Theme) -> Self {
        Self { lexer: Lexer::of_file(path), theme: theme.clone() }
    }

    pub fn line(&mut self, line: &str) -> Vec<Span<'static>> {
        let base = if self.lexer.is_some() { Style::default() } else { self.theme.code };
        self.line_over(line, base)
    }

    /// Reads a line that is not shown, for what it means for those below it.
    pub fn pass(&mut self, line: &str) {
        if let Some(lexer) = &mut self.lexer {
            lexer.line(line);
        }
    }

    /// The next line, with this style for parts without one.
    pub fn line_over(&mut self, line: &str, base: Style) -> Vec<Span<'static>> {
        let Some(lexer) = &mut self.lexer else { return vec![Span::styled(line.to_owned(), base)] };
        let parts = lexer.line(line).into_iter();
        let span = |(class, range): (TokenClass, Range<usize>)| {
            Span::styled(line[range].to_owned(), base.patch(class.style(&self.theme)))
        };
        parts.map(span).collect()
    }
}

/// Where the lexer is between two lines.
#[derive(Clone, Debug, Default)]
enum LexerState {
    #[default]
    Code,
    /// In so many comments inside of each other.
    Comment(usize),
    /// In a text, which ends with its quote and so many `#`.
    Text(&'static Quote, usize),
    /// In a text that ends with a line which is this.
    Here(String),
    Tag,
    /// In code that is fenced by this mark.
    Fence(char),
    /// In a piece of a diff, with so many old and new lines to come.
    Hunk(u64, u64),
}

/// Code inside of a text: the text that continues after it, and how many braces are open.
#[derive(Clone, Debug)]
struct Hole {
    quote: &'static Quote,
    braces: usize,
}

/// Reads code line by line.
#[derive(Clone, Debug)]
pub struct Lexer {
    language: &'static Language,
    inside: LexerState,
    holes: Vec<Hole>,
    /// The terminator of a text that ends with its own line; it begins with the next line.
    awaited: Option<String>,
    /// How often something was looked at: what the tests hold against the length.
    steps: usize,
}

/// The line being read.
struct CodeLine<'a> {
    line: &'a str,
    at: usize,
    parts: Vec<(TokenClass, Range<usize>)>,
}

impl<'a> CodeLine<'a> {
    fn rest(&self) -> &'a str {
        &self.line[self.at..]
    }

    fn before(&self) -> Option<char> {
        self.line[..self.at].chars().next_back()
    }

    /// Takes the next bytes as this.
    fn take(&mut self, class: TokenClass, bytes: usize) {
        let end = self.at + bytes;
        match self.parts.last_mut() {
            _ if bytes == 0 => {}
            Some((last, range)) if *last == class => range.end = end,
            _ => self.parts.push((class, self.at..end)),
        }
        self.at = end;
    }
}

impl Lexer {
    /// For this language; none if it is not known.
    pub fn new(language: &str) -> Option<Self> {
        Language::named(language).map(Self::of)
    }

    /// For the language of this file, by its name.
    pub fn of_file(path: &str) -> Option<Self> {
        Language::of_file(path).map(Self::of)
    }

    fn of(language: &'static Language) -> Self {
        Self { language, inside: LexerState::Code, holes: Vec::new(), awaited: None, steps: 0 }
    }

    /// The parts of the next line, in order and without a gap.
    pub fn line(&mut self, line: &str) -> Vec<(TokenClass, Range<usize>)> {
        let mut reader = CodeLine { line, at: 0, parts: Vec::new() };
        match self.language.kind {
            LexerKind::Diff => self.diff_line(&mut reader),
            LexerKind::Page => self.page_line(&mut reader),
            LexerKind::Markup | LexerKind::Program => self.read(&mut reader),
        }
        self.steps += line.len();
        reader.parts
    }

    fn read(&mut self, reader: &mut CodeLine<'_>) {
        if let LexerState::Here(end) = &self.inside {
            let is_end = reader.line.trim().trim_end_matches(';') == end;
            reader.take(TokenClass::Text, reader.line.len());
            if is_end {
                self.inside = LexerState::Code;
            }
            return;
        }
        let mut goes_on = false;
        while reader.at < reader.line.len() {
            self.steps += 1;
            match self.inside {
                LexerState::Comment(depth) => self.comment(reader, depth),
                LexerState::Text(quote, hashes) => goes_on = self.text(reader, quote, hashes),
                LexerState::Tag => self.tag(reader),
                _ if self.language.kind == LexerKind::Markup => self.between_tags(reader),
                _ => self.code(reader),
            }
        }
        self.end_of_line(goes_on);
    }

    /// What of the state does not reach beyond a line.
    fn end_of_line(&mut self, goes_on: bool) {
        if matches!(self.inside, LexerState::Text(quote, _) if !quote.lines && !goes_on) {
            self.inside = LexerState::Code;
        }
        if self.holes.iter().any(|hole| !hole.quote.lines) {
            self.holes.clear();
        }
        if let Some(end) = self.awaited.take() {
            self.inside = LexerState::Here(end);
        }
    }

    /// Up to the end of a comment, or what changes how deep it is.
    fn comment(&mut self, reader: &mut CodeLine<'_>, depth: usize) {
        let Some((open, close)) = self.language.block else { return self.inside = LexerState::Code };
        let rest = reader.rest();
        let nested = self.language.nested;
        for (at, _) in rest.char_indices() {
            self.steps += 1;
            if rest[at..].starts_with(close) {
                self.inside = if depth > 1 { LexerState::Comment(depth - 1) } else { LexerState::Code };
                return reader.take(TokenClass::Comment, at + close.len());
            }
            if nested && rest[at..].starts_with(open) {
                self.inside = LexerState::Comment(depth + 1);
                return reader.take(TokenClass::Comment, at + open.len());
            }
        }
        reader.take(TokenClass::Comment, rest.len());
    }

    /// Up to the end of a text, or to code inside of it. Gives whether it continues in the next line.
    fn text(&mut self, reader: &mut CodeLine<'_>, quote: &'static Quote, hashes: usize) -> bool {
        let rest = reader.rest();
        let bytes = rest.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            self.steps += 1;
            let here = &bytes[at..];
            if quote.escapes && hashes == 0 && here[0] == b'\\' {
                let next = rest[at + 1..].chars().next();
                at += 1 + next.map_or(0, char::len_utf8);
                if next.is_none() {
                    reader.take(TokenClass::Text, at);
                    return true;
                }
                continue;
            }
            if here.starts_with(quote.close.as_bytes()) {
                let after = &here[quote.close.len()..];
                let found = after.iter().take(hashes).take_while(|byte| **byte == b'#').count();
                self.steps += found;
                if found == hashes {
                    reader.take(TokenClass::Text, at + quote.close.len() + hashes);
                    let is_tag = self.language.kind == LexerKind::Markup;
                    self.inside = if is_tag { LexerState::Tag } else { LexerState::Code };
                    return false;
                }
            }
            if let Some(hole) = quote.hole
                && here.starts_with(hole.as_bytes())
                && self.holes.len() < MOST_HOLES
            {
                reader.take(TokenClass::Text, at);
                reader.take(TokenClass::Attribute, hole.len());
                self.holes.push(Hole { quote, braces: 0 });
                self.inside = LexerState::Code;
                return false;
            }
            at += 1;
        }
        reader.take(TokenClass::Text, rest.len());
        false
    }

    /// The next part of a program.
    fn code(&mut self, reader: &mut CodeLine<'_>) {
        let rest = reader.rest();
        let Some(first) = rest.chars().next() else { return };
        if first.is_whitespace() {
            let end = rest.find(|letter: char| !letter.is_whitespace()).unwrap_or(rest.len());
            self.steps += end;
            return reader.take(TokenClass::Plain, end);
        }
        if self.begins_comment(reader) || self.begins_text(reader, 0) {
            return;
        }
        if first.is_alphabetic() || first == '_' {
            return self.word(reader);
        }
        if first.is_ascii_digit() {
            return self.number(reader);
        }
        match first {
            '{' | '}' if !self.holes.is_empty() => self.brace(reader, first),
            '#' | '[' if self.bracketed(reader) => {}
            '<' if self.language.tags && self.tag_name(reader) => {}
            '<' if self.language.here && self.here(reader) => {}
            // Outside of texts a backslash takes a quote's meaning, as in a shell.
            '\\' if rest[1..].starts_with(['\'', '"']) => reader.take(TokenClass::Plain, 2),
            '\'' if self.language.lifetimes && self.lifetime(reader) => {}
            _ => self.sign(reader, first),
        }
    }

    fn begins_comment(&mut self, reader: &mut CodeLine<'_>) -> bool {
        let rest = reader.rest();
        if let Some((open, _)) = self.language.block
            && rest.starts_with(open)
        {
            self.inside = LexerState::Comment(1);
            reader.take(TokenClass::Comment, open.len());
            return true;
        }
        // In a shell a `#` inside of a word is a part of it.
        let apart = !self.language.apart || reader.before().is_none_or(char::is_whitespace);
        let is_comment = apart && self.language.comments.iter().any(|mark| rest.starts_with(mark));
        if is_comment {
            reader.take(TokenClass::Comment, rest.len());
        }
        is_comment
    }

    /// Begins a text whose quote stands this far ahead.
    fn begins_text(&mut self, reader: &mut CodeLine<'_>, ahead: usize) -> bool {
        let rest = &reader.rest()[ahead..];
        let Some(quote) = self.language.quotes.iter().find(|quote| rest.starts_with(quote.open)) else {
            return false;
        };
        if quote.open == "'" && ahead == 0 {
            // An apostrophe in a word, or between digits.
            let in_word = reader.before().is_some_and(char::is_alphanumeric);
            if in_word || self.language.lifetimes && is_lifetime(rest) {
                return false;
            }
        }
        let length = ahead + quote.open.len();
        // In JSON and its like the text before a colon is the name of what follows.
        if self.language.keys != KeyStyle::None
            && !quote.lines
            && let Some(end) = closed(reader.rest(), length, quote)
            && self.language.keys.follow_text(&reader.rest()[end..])
        {
            self.steps += end;
            reader.take(TokenClass::Key, end);
            return true;
        }
        self.inside = LexerState::Text(quote, 0);
        reader.take(TokenClass::Text, length);
        true
    }

    /// A word: what it is follows from the table, and from what stands behind it.
    fn word(&mut self, reader: &mut CodeLine<'_>) {
        let rest = reader.rest();
        let language = self.language;
        let end = rest.find(|letter| !language.is_word(letter)).unwrap_or(rest.len());
        self.steps += end;
        let (word, after) = rest.split_at(end);
        if language.prefixes.contains(&word) && self.begins_text(reader, end) {
            return;
        }
        if language.lifetimes && matches!(word, "r" | "br" | "cr") && self.raw(reader, after, end) {
            return;
        }
        let is_member = reader.before() == Some('.');
        if language.is_keyword(word) && (!is_member || word == "await") {
            return reader.take(TokenClass::Keyword, end);
        }
        if language.macros && after.starts_with('!') && !after.starts_with("!=") {
            return reader.take(TokenClass::Attribute, end + 1);
        }
        let class = if language.types.contains(&word) {
            TokenClass::Type
        } else if language.keys.follow(after) {
            TokenClass::Key
        } else if after.starts_with('(') || is_defined(reader) {
            TokenClass::Function
        } else if language.capitals && is_type(word) {
            TokenClass::Type
        } else {
            TokenClass::Plain
        };
        reader.take(class, end);
    }

    /// A raw text: `r"…"`, or with as many `#` as it likes.
    fn raw(&mut self, reader: &mut CodeLine<'_>, after: &str, ahead: usize) -> bool {
        let hashes = after.bytes().take_while(|byte| *byte == b'#').count();
        self.steps += hashes;
        if !after[hashes..].starts_with('"') {
            return false;
        }
        self.inside = LexerState::Text(&language::RAW, hashes);
        reader.take(TokenClass::Text, ahead + hashes + 1);
        true
    }

    fn number(&mut self, reader: &mut CodeLine<'_>) {
        let bytes = reader.rest().as_bytes();
        let is_hexadecimal = bytes.starts_with(b"0x") || bytes.starts_with(b"0X");
        let mut end = 1;
        while let Some(byte) = bytes.get(end) {
            self.steps += 1;
            let next_is_digit = bytes.get(end + 1).is_some_and(u8::is_ascii_digit);
            let goes_on = match byte {
                b'.' | b'\'' => next_is_digit,
                b'+' | b'-' => !is_hexadecimal && matches!(bytes[end - 1], b'e' | b'E') && next_is_digit,
                b'%' => self.language.word.contains('-'),
                _ => byte.is_ascii_alphanumeric() || *byte == b'_',
            };
            if !goes_on {
                break;
            }
            end += 1;
        }
        reader.take(TokenClass::Number, end);
    }

    /// A brace in code that stands inside of a text: the last one ends it.
    fn brace(&mut self, reader: &mut CodeLine<'_>, brace: char) {
        if let Some(hole) = self.holes.last_mut() {
            if brace == '}' && hole.braces == 0 {
                self.inside = LexerState::Text(hole.quote, 0);
                self.holes.pop();
                return reader.take(TokenClass::Attribute, 1);
            }
            hole.braces = if brace == '{' { hole.braces + 1 } else { hole.braces - 1 };
        }
        reader.take(TokenClass::Plain, 1);
    }

    /// An attribute or the head of a section, up to its closing bracket.
    fn bracketed(&mut self, reader: &mut CodeLine<'_>) -> bool {
        let rest = reader.rest();
        let opens = if self.language.macros {
            rest.starts_with("#[") || rest.starts_with("#![")
        } else {
            self.language.sections && rest.starts_with('[') && reader.line[..reader.at].trim().is_empty()
        };
        if !opens {
            return false;
        }
        let mut depth = 0usize;
        let end = rest.char_indices().find_map(|(at, letter)| {
            match letter {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            (letter == ']' && depth == 0).then_some(at + 1)
        });
        let end = end.unwrap_or(rest.len());
        self.steps += end;
        reader.take(TokenClass::Attribute, end);
        true
    }

    /// A tag's name between code, as in JSX. A `<` behind a word compares or begins parameters.
    fn tag_name(&mut self, reader: &mut CodeLine<'_>) -> bool {
        if reader.before().is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            return false;
        }
        let rest = reader.rest();
        let lead = if rest.starts_with("</") { 2 } else { 1 };
        if !rest[lead..].starts_with(|letter: char| letter.is_ascii_alphabetic()) {
            return false;
        }
        let is_name = |letter: char| letter.is_alphanumeric() || "-._:".contains(letter);
        let end = rest[lead..].find(|letter| !is_name(letter)).map_or(rest.len(), |at| lead + at);
        self.steps += end;
        reader.take(TokenClass::Plain, lead);
        reader.take(TokenClass::Keyword, end - lead);
        true
    }

    /// `<<END`: a text begins with the next line and ends with a line that is `END`.
    fn here(&mut self, reader: &mut CodeLine<'_>) -> bool {
        let rest = reader.rest();
        let Some(after) = rest.strip_prefix("<<<").or_else(|| rest.strip_prefix("<<")) else { return false };
        let name = after.trim_start_matches(['-', '~', ' ', '\'', '"', '\\']);
        let lead = rest.len() - name.len();
        let end = name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let name = &name[..end.unwrap_or(name.len())];
        self.steps += lead + name.len();
        // Shifts and appends look the same; a text's end is nearly always in capitals or quoted.
        let is_named = name.starts_with(|letter: char| letter.is_ascii_uppercase())
            || !name.is_empty() && rest[..lead].ends_with(['\'', '"']);
        if !is_named || rest.starts_with("<<<") && !self.language.word.contains('$') {
            return false;
        }
        self.awaited = Some(name.to_owned());
        let closing = usize::from(rest[lead + name.len()..].starts_with(['\'', '"']));
        reader.take(TokenClass::Text, lead + name.len() + closing);
        true
    }

    fn lifetime(&mut self, reader: &mut CodeLine<'_>) -> bool {
        let rest = reader.rest();
        if !is_lifetime(rest) {
            return false;
        }
        let end = rest[1..].find(|letter| !self.language.is_word(letter)).map_or(rest.len(), |at| at + 1);
        self.steps += end;
        reader.take(TokenClass::Attribute, end);
        true
    }

    /// A sign that makes the word behind it something, or a sign.
    fn sign(&mut self, reader: &mut CodeLine<'_>, sign: char) {
        let rest = reader.rest();
        let after = &rest[sign.len_utf8()..];
        let meaning = self.language.sigils.iter().find(|(sigil, _)| *sigil == sign);
        let is_word = after.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
        match meaning {
            Some((_, class)) if is_word && reader.before() != Some(sign) => {
                let end = after.find(|letter| !self.language.is_word(letter)).unwrap_or(after.len());
                self.steps += end;
                reader.take(*class, sign.len_utf8() + end);
            }
            _ => reader.take(TokenClass::Plain, sign.len_utf8()),
        }
    }
}

/// Where a text ends that begins here and ends on this line.
fn closed(rest: &str, from: usize, quote: &Quote) -> Option<usize> {
    let bytes = rest.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote.escapes => at += 2,
            _ if bytes[at..].starts_with(quote.close.as_bytes()) => return Some(at + quote.close.len()),
            _ => at += 1,
        }
    }
    None
}

/// Whether a `'` begins a name rather than a character.
fn is_lifetime(rest: &str) -> bool {
    let mut letters = rest.chars().skip(1);
    let is_name = letters.next().is_some_and(|letter| letter.is_alphabetic() || letter == '_');
    is_name && letters.next() != Some('\'')
}

/// Whether the word that comes is the name of a function being defined.
fn is_defined(reader: &CodeLine<'_>) -> bool {
    match reader.parts.as_slice() {
        [.., (TokenClass::Keyword, word), (TokenClass::Plain, gap)] => {
            matches!(&reader.line[word.clone()], "fn" | "func" | "fun" | "function" | "def")
                && reader.line[gap.clone()].trim().is_empty()
        }
        _ => false,
    }
}

/// Whether a word looks like a type: `Name` and `T`, not `NAME`.
fn is_type(word: &str) -> bool {
    let mut letters = word.chars();
    letters.next().is_some_and(char::is_uppercase) && (word.len() == 1 || letters.any(char::is_lowercase))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[rustfmt::skip]
    const LANGUAGES: &[&str] = &[
        "rust", "python", "tsx", "go", "c", "java", "csharp", "swift", "zig", "ruby", "php", "sh", "sql",
        "json", "yaml", "toml", "html", "css", "markdown", "diff", "dockerfile", "make", "lua", "haskell",
        "terraform",
    ];

    #[test]
    fn every_row_of_the_table_is_among_those_tested() {
        let rows: std::collections::BTreeSet<_> =
            LANGUAGES.iter().map(|name| std::ptr::from_ref(Language::named(name).unwrap())).collect();
        assert_eq!(rows.len(), LANGUAGES.len());
        assert_eq!(rows.len(), language::count());
    }

    /// Reads lines; gives how often something was looked at. Fails where a part is missing.
    fn read(language: &str, text: &str) -> usize {
        let mut lexer = Lexer::new(language).unwrap();
        for line in text.split('\n') {
            let parts = lexer.line(line);
            let joined: String = parts.iter().map(|(_, range)| &line[range.clone()]).collect();
            assert_eq!(joined, line, "{language}");
            assert!(parts.iter().all(|(_, range)| !range.is_empty()), "{language}: {line:?} {parts:?}");
            let mut pairs = parts.windows(2);
            assert!(
                pairs.all(|pair| pair[0].0 != pair[1].0 && pair[0].1.end == pair[1].1.start),
                "{parts:?}"
            );
        }
        lexer.steps
    }

    /// What the lexer has a special eye on, and what may stand around it.
    #[rustfmt::skip]
    const PIECES: &[&str] = &[
        "\"", "'", "`", "${", "#{", "{", "}", "\\", "/*", "*/", "//", "#", "#[", "[", "]", "<", "</", "<!--",
        "-->", "<<", "<<EOF", "EOF", "\n", "\"\"\"", "'''", "r", "r#\"", "\"#", "b", "'a", "&", ";", ":", "=",
        "@", "$", "!", "(", ")", ".", "--", "[[", "]]", "```", "~~~", "@@ -1,2 +3 @@", "+", "-", "0x1f",
        "1e+5", "1.5", " ", "\t", "fn", "Name", "日本", "é", "\u{301}", "👩‍💻", "\u{0}", "\r",
    ];

    proptest! {
        #[test]
        fn nothing_is_lost_whatever_is_read(text in any::<String>()) {
            for language in LANGUAGES {
                read(language, &text);
            }
        }

        #[test]
        fn every_line_is_gone_through_a_few_times_at_most(
            pieces in prop::collection::vec(prop::sample::select(PIECES), 0..200),
        ) {
            let text = pieces.concat();
            for language in LANGUAGES {
                let steps = read(language, &text);
                let bytes = text.len();
                prop_assert!(steps <= 6 * bytes + 16, "{language}: {steps} steps for {bytes} bytes: {text:?}");
            }
        }
    }

    #[test]
    fn a_long_line_of_anything_costs_its_length() {
        for language in LANGUAGES {
            for piece in
                PIECES.iter().chain(&["<<\"", "\"a", "'a ", "a (", "r##", "#[[", "&a", "a`", "x[", "<a"])
            {
                let text = piece.repeat(1_000);
                let (steps, bytes) = (read(language, &text), text.len());
                assert!(steps <= 6 * bytes + 16, "{language}: {steps} steps for {bytes} bytes of {piece:?}");
            }
        }
    }
}
