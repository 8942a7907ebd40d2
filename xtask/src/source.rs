//! Rust source as text that can be counted. Takes a checkout, gives each file with code, strings and comments apart, without
//! inline tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub struct Source {
    /// Below the checkout, such as `crates/decurion-cli/src/main.rs`.
    pub path: String,
    /// Its crate, such as `cli`.
    pub krate: String,
    /// Below `src`, such as `run/request.rs`.
    pub name: String,
    /// The text with blanks in place of strings, comments and inline tests: offsets and lines stay.
    pub code: String,
    /// Each string and comment with its line.
    pub texts: Vec<Text>,
    /// Lines that are no inline tests.
    pub lines: usize,
}

pub struct Text {
    pub line: usize,
    pub kind: Kind,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    String,
    /// `///` and `//!`: one text for each block.
    Doc,
    Comment,
    /// A character, whose text does not count.
    Char,
}

impl Source {
    /// Whether it is part of what users get.
    pub fn is_product(&self) -> bool {
        self.krate != "testkit"
    }

    /// The module: the file or folder directly below `src`.
    pub fn module(&self) -> &str {
        self.name.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }
}

/// The sources of all crates of a checkout.
pub fn all(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let folder = root.join("crates");
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let krate = entry?.path();
        let src = krate.join("src");
        let name = krate.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for path in crate::tidy::rust_files(&src)? {
            let text = fs::read_to_string(&path)?;
            let below = |folder: &Path| path.strip_prefix(folder).map(|rest| rest.display().to_string());
            let (path, inner) = (below(root)?, below(&src)?);
            sources.push(parse(path, name.trim_start_matches("decurion-").to_owned(), inner, &text));
        }
    }
    let tests: Vec<PathBuf> = sources.iter().flat_map(test_modules).collect();
    let is_test = |path: &str| tests.iter().any(|test| Path::new(path).with_extension("").starts_with(test));
    sources.retain(|source| !is_test(&source.path));
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(sources)
}

/// Files that are modules of tests: `#[cfg(test)] mod name;`.
fn test_modules(source: &Source) -> Vec<PathBuf> {
    let path = Path::new(&source.path);
    let is_root = ["lib.rs", "main.rs"].iter().any(|root| path.ends_with(root));
    let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
    let names = source.code.split("#[cfg(test)]").skip(1).filter_map(|rest| {
        let (head, _) = rest.split_once(';')?;
        let name = head.trim().trim_start_matches("pub(crate) ").strip_prefix("mod ")?;
        name.chars().all(|letter| letter.is_alphanumeric() || letter == '_').then(|| name.to_owned())
    });
    names.map(|name| folder.join(name)).collect()
}

pub fn parse(path: String, krate: String, name: String, text: &str) -> Source {
    let (mut code, texts) = mask(text);
    let mut test_lines = Vec::new();
    for range in inline_tests(&code) {
        let first = line_of(&code, range.start);
        test_lines.push(first..=line_of(&code, range.end));
        let blank: String = code[range.clone()].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        code.replace_range(range, &blank);
    }
    let is_test = |line: usize| test_lines.iter().any(|lines| lines.contains(&line));
    let texts = texts.into_iter().filter(|text| !is_test(text.line)).collect();
    let tests: usize = test_lines.iter().map(|lines| lines.end() - lines.start() + 1).sum();
    Source { path, krate, name, code, texts, lines: text.lines().count() - tests }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Where `#[cfg(test)] mod … { … }` is.
fn inline_tests(code: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    for (start, mark) in code.match_indices("#[cfg(test)]") {
        let rest = &code[start + mark.len()..];
        let Some(open) = rest.find(['{', ';']).filter(|open| rest[*open..].starts_with('{')) else {
            continue;
        };
        if !rest[..open].contains("mod ") {
            continue;
        }
        let mut depth = 0_usize;
        for (at, letter) in rest[open..].char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                found.push(start..start + mark.len() + open + at + 1);
                break;
            }
        }
    }
    found
}

/// Blanks in place of strings and comments (one for each byte), and these.
fn mask(text: &str) -> (String, Vec<Text>) {
    let bytes = text.as_bytes();
    let (mut code, mut texts) = (bytes.to_vec(), Vec::<Text>::new());
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let (length, inner) = token(rest, at.checked_sub(1).map(|before| bytes[before]));
        let Some((kind, inner)) = inner else {
            line += usize::from(bytes[at] == b'\n');
            at += length;
            continue;
        };
        match texts.last_mut() {
            // Lines of one comment are one text.
            Some(last)
                if matches!(kind, Kind::Doc | Kind::Comment)
                    && last.kind == kind
                    && last.line + last.text.matches('\n').count() + 1 == line =>
            {
                last.text.push('\n');
                last.text.push_str(inner);
            }
            _ if kind == Kind::Char => {}
            _ => texts.push(Text { line, kind, text: inner.to_owned() }),
        }
        code[at..at + length].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        line += rest[..length].matches('\n').count();
        at += length;
    }
    (String::from_utf8_lossy(&code).into_owned(), texts)
}

/// How long the next token is, and its text where it is a string or a comment.
fn token(rest: &str, before: Option<u8>) -> (usize, Option<(Kind, &str)>) {
    let is_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if rest.starts_with("//") {
        let end = rest.find('\n').unwrap_or(rest.len());
        let is_doc = rest.starts_with("//!") || rest.starts_with("///") && !rest.starts_with("////");
        let kind = if is_doc { Kind::Doc } else { Kind::Comment };
        return (end, Some((kind, rest[2..end].trim_start_matches(['/', '!']).trim())));
    }
    if rest.starts_with("/*") {
        let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
        return (end, Some((Kind::Comment, rest[2..end].trim_end_matches("*/"))));
    }
    let raw = rest.trim_start_matches(['b', 'c']).strip_prefix('r').filter(|_| !is_word);
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(inner) = raw[hashes..].strip_prefix('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let end = inner.find(&close).unwrap_or(inner.len());
            let head = rest.len() - inner.len();
            return ((head + end + close.len()).min(rest.len()), Some((Kind::String, &inner[..end])));
        }
    }
    if let Some(inner) = rest.strip_prefix('"') {
        let mut escaped = false;
        let is_end = |letter: char| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        };
        let end = inner.find(is_end).unwrap_or(inner.len());
        return ((end + 2).min(rest.len()), Some((Kind::String, &inner[..end])));
    }
    // A character, not a lifetime.
    if let Some(inner) = rest.strip_prefix('\'') {
        let length = match inner.strip_prefix('\\') {
            Some(escape) => escape.get(1..).and_then(|tail| tail.find('\'')).map(|end| end + 2),
            None => {
                inner.chars().next().map(char::len_utf8).filter(|length| inner[*length..].starts_with('\''))
            }
        };
        if let Some(length) = length {
            return (length + 2, Some((Kind::Char, "")));
        }
    }
    (rest.chars().next().map_or(1, char::len_utf8), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_comments_and_tests_are_no_code() {
        let text = "/// Doc.\n/// More.\nfn f<'a>() { let s = \"a \\\" // {\"; let c = '\\''; /* { */ r#\"} \"# }\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nstruct S; // end\n";
        let source = parse("a.rs".to_owned(), "a".to_owned(), "a.rs".to_owned(), text);
        let code: String = source.code.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(code, "fn f<'a>() { let s = ; let c = ; } struct S;");
        let texts: Vec<(usize, &str)> =
            source.texts.iter().map(|text| (text.line, text.text.as_str())).collect();
        assert_eq!(texts, [(1, "Doc.\nMore."), (3, "a \\\" // {"), (3, " { "), (3, "} "), (8, "end")]);
        assert_eq!(source.lines, 4);
    }
}
