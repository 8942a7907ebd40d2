//! What is read by the line or by the tag: diffs, Markdown, HTML. Takes the line being read; gives its parts.

use super::{CodeLine, Lexer, LexerState, TokenClass};

impl Lexer {
    /// A line of a diff. Inside of a piece its first character decides, so that what was removed is not a head of a file.
    pub(super) fn diff_line(&mut self, reader: &mut CodeLine<'_>) {
        let line = reader.line;
        let class = match (&mut self.inside, line.as_bytes().first()) {
            (LexerState::Hunk(_, new), Some(b'+')) if *new > 0 => {
                *new -= 1;
                TokenClass::Added
            }
            (LexerState::Hunk(old, _), Some(b'-')) if *old > 0 => {
                *old -= 1;
                TokenClass::Removed
            }
            (LexerState::Hunk(old, new), Some(b' ') | None) if *old > 0 && *new > 0 => {
                (*old, *new) = (*old - 1, *new - 1);
                TokenClass::Plain
            }
            _ if line.starts_with("@@") => {
                self.inside = hunk(line).map_or(LexerState::Code, |(old, new)| LexerState::Hunk(old, new));
                TokenClass::Place
            }
            _ if ["+++ ", "--- ", "diff ", "index "].iter().any(|head| line.starts_with(head)) => {
                TokenClass::Heading
            }
            (_, Some(b'+')) => TokenClass::Added,
            (_, Some(b'-')) => TokenClass::Removed,
            (_, Some(b'\\')) => TokenClass::Comment,
            _ => TokenClass::Plain,
        };
        reader.take(class, line.len());
    }

    /// A line of Markdown.
    pub(super) fn page_line(&mut self, reader: &mut CodeLine<'_>) {
        let (line, words) = (reader.line, reader.line.trim_start());
        let lead = line.len() - words.len();
        let fence = ['`', '~']
            .into_iter()
            .find(|mark| words.chars().take_while(|letter| letter == mark).count() >= 3);
        match (&self.inside, fence) {
            (LexerState::Fence(open), fence) => {
                let is_end = fence == Some(*open) && words.trim_end().chars().all(|letter| letter == *open);
                if is_end {
                    self.inside = LexerState::Code;
                }
                return reader.take(if is_end { TokenClass::Comment } else { TokenClass::Text }, line.len());
            }
            (_, Some(mark)) => {
                self.inside = LexerState::Fence(mark);
                return reader.take(TokenClass::Comment, line.len());
            }
            _ => {}
        }
        if words.starts_with('#') && words.trim_start_matches('#').starts_with([' ', '\t']) {
            return reader.take(TokenClass::Heading, line.len());
        }
        reader.take(TokenClass::Plain, lead);
        let mark = list_mark(words);
        reader.take(TokenClass::Keyword, mark);
        self.spans_of_code(reader);
    }

    /// The rest of a line with what stands between backticks.
    fn spans_of_code(&mut self, reader: &mut CodeLine<'_>) {
        while let Some(at) = reader.rest().find('`') {
            self.steps += at + 1;
            reader.take(TokenClass::Plain, at);
            let Some(end) = reader.rest()[1..].find('`') else { break };
            self.steps += end;
            reader.take(TokenClass::Text, end + 2);
        }
        reader.take(TokenClass::Plain, reader.rest().len());
    }

    /// Text up to the next tag.
    pub(super) fn between_tags(&mut self, reader: &mut CodeLine<'_>) {
        if self.begins_comment(reader) {
            return;
        }
        let rest = reader.rest();
        if rest.starts_with('&')
            && let Some(end) = rest.bytes().take(32).position(|byte| byte == b';')
        {
            return reader.take(TokenClass::Number, end + 1);
        }
        if !rest.starts_with('<') {
            let first = rest.chars().next().map_or(0, char::len_utf8);
            let end = rest[first..].find(['<', '&']).map_or(rest.len(), |at| at + first);
            self.steps += end;
            return reader.take(TokenClass::Plain, end);
        }
        let lead = 1 + usize::from(rest[1..].starts_with(['/', '!', '?']));
        let is_name = |letter: char| letter.is_alphanumeric() || "-._:".contains(letter);
        let end = rest[lead..].find(|letter| !is_name(letter)).map_or(rest.len(), |at| lead + at);
        self.steps += end;
        reader.take(TokenClass::Plain, lead);
        reader.take(TokenClass::Keyword, end - lead);
        if end > lead {
            self.inside = LexerState::Tag;
        }
    }

    /// The next part of a tag.
    pub(super) fn tag(&mut self, reader: &mut CodeLine<'_>) {
        let rest = reader.rest();
        let Some(first) = rest.chars().next() else { return };
        if first == '>' {
            self.inside = LexerState::Code;
            return reader.take(TokenClass::Plain, 1);
        }
        if self.begins_text(reader, 0) {
            return;
        }
        let is_name = |letter: char| letter.is_alphanumeric() || "-._:@".contains(letter);
        let end = rest.find(|letter| !is_name(letter)).unwrap_or(rest.len());
        self.steps += end;
        if end > 0 {
            return reader.take(TokenClass::Key, end);
        }
        reader.take(TokenClass::Plain, first.len_utf8());
    }
}

/// How many old and new lines a piece of a diff has: `@@ -1,3 +1,4 @@`.
fn hunk(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix("@@ -")?.split(' ');
    let count = |range: &str| match range.split_once(',') {
        Some((_, count)) => count.parse().ok(),
        None => Some(1),
    };
    let old = count(words.next()?)?;
    let new = count(words.next()?.strip_prefix('+')?)?;
    Some((old, new))
}

/// How many bytes the marks of a list or of quotes take.
fn list_mark(words: &str) -> usize {
    let digits = words.bytes().take_while(u8::is_ascii_digit).count();
    match words.as_bytes() {
        [b'-' | b'*' | b'+', b' ', ..] | [b'>', ..] => 1,
        bytes if digits > 0 && matches!(bytes.get(digits..digits + 2), Some(b". " | b") ")) => digits + 1,
        _ => 0,
    }
}
