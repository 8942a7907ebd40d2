//! JSON with comments and trailing commas. Takes text, gives a tree in which every key and every value knows
//! its line and column.
//!
//! Written by hand because settings grant permissions: an error must name file, line, column and key long after
//! parsing, and what is no JSON must be an error. `jsonc-parser` (0.34) knows positions too, but of the texts that the
//! tests below call wrong it reads a line end, a control character or an unknown escape inside quotes, and a number that
//! is infinite; it wants no byte order mark, and its depth is fixed at 512. A second check of all that would be this
//! parser again, and editing with that crate beside this reader would be two readings of one file. The input is untrusted
//! (a repository's settings are read before anyone trusts it), so text and depth are bounded, and nothing of the text is
//! quoted in an error.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::secret::Secret;

/// The longest text that is parsed.
pub const MAX_BYTES: usize = 1 << 20;
/// How deep lists and objects may be in each other.
pub const MAX_DEPTH: usize = 64;

/// Reads one document. `source` is a number of the caller's that every node will carry. Text with nothing but
/// blanks and comments is an empty object, since that is what a person who emptied the file meant.
pub fn parse(text: &str, source: u16) -> Result<Document, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(SyntaxError { at: Position { line: 1, column: 1 }, message: "the text is too long" });
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser {
        text,
        offset: 0,
        at: Position { line: 1, column: 1 },
        source,
        depth: 0,
        repeated: Vec::new(),
    };
    parser.skip_blanks()?;
    let root = if parser.peek().is_none() {
        Node { at: parser.at, source, kind: Kind::Object(Vec::new()) }
    } else {
        parser.value()?
    };
    parser.skip_blanks()?;
    if parser.peek().is_some() {
        return Err(parser.error("unexpected content after the end of the JSON document"));
    }
    Ok(Document { root, repeated: parser.repeated })
}

/// A line and a column, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Where reading stopped and what was expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {message}")]
pub struct SyntaxError {
    pub at: Position,
    pub message: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub root: Node,
    /// Keys given more than once in one object, with the position of the later one, which counts.
    pub repeated: Vec<(String, Position)>,
}

/// A value and where it stands.
#[derive(Clone, PartialEq)]
pub struct Node {
    pub at: Position,
    /// The number given to [`parse`].
    pub source: u16,
    pub kind: Kind,
}

/// What a value is.
#[derive(Clone, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    /// A text that must not be shown; put in place of a `Text` once its key is known.
    Secret(Secret),
    List(Vec<Node>),
    /// An object, in the order written.
    Object(Vec<Member>),
}

/// A key with its value.
#[derive(Clone, PartialEq)]
pub struct Member {
    pub key: String,
    /// Where the key stands.
    pub at: Position,
    pub value: Node,
}

impl Node {
    /// The member of this name, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.members().iter().find(|member| member.key == key).map(|member| &member.value)
    }

    /// The value at a path of keys joined by dots.
    pub fn at_path(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// Where the value at a path like `a.b[2].c` stands, or the last thing on the way to it that is there. A
    /// key may hold any sign; of several that fit, the longest is meant.
    pub(crate) fn position(&self, path: &str) -> Position {
        let next = match &self.kind {
            Kind::List(items) => path.strip_prefix('[').and_then(|rest| {
                let (index, rest) = rest.split_once(']')?;
                let item = items.get(index.parse::<usize>().ok()?)?;
                Some((item.at, item, rest))
            }),
            Kind::Object(members) => {
                let path = path.strip_prefix('.').unwrap_or(path);
                let ends = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
                let fits = |member: &&Member| path.strip_prefix(&member.key).is_some_and(ends);
                let member = members.iter().filter(fits).max_by_key(|member| member.key.len());
                member.map(|member| (member.at, &member.value, &path[member.key.len()..]))
            }
            _ => None,
        };
        match next {
            Some((at, _, "")) => at,
            Some((_, node, rest)) => node.position(rest),
            None => self.at,
        }
    }

    /// The members, if this is an object, else none.
    pub fn members(&self) -> &[Member] {
        if let Kind::Object(members) = &self.kind { members } else { &[] }
    }

    /// The items, if this is a list, else none.
    pub fn items(&self) -> &[Node] {
        if let Kind::List(items) = &self.kind { items } else { &[] }
    }

    /// The text, if this is one and may be shown.
    pub fn text(&self) -> Option<&str> {
        if let Kind::Text(text) = &self.kind { Some(text) } else { None }
    }

    /// The truth value, if this is one.
    pub fn bool(&self) -> Option<bool> {
        if let Kind::Bool(value) = self.kind { Some(value) } else { None }
    }

    /// The number, if this is a whole one and not negative. `3.0` counts as whole.
    pub fn integer(&self) -> Option<u64> {
        let Kind::Number(number) = &self.kind else { return None };
        number.as_u64().or_else(|| whole(number.as_f64()?))
    }

    /// The number, if this is one.
    pub fn number(&self) -> Option<f64> {
        if let Kind::Number(number) = &self.kind { number.as_f64() } else { None }
    }

    /// The same value without positions. Secrets become their placeholder.
    pub fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::Secret(_) => Value::String(crate::redact::PLACEHOLDER.to_owned()),
            Kind::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Kind::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|member| (member.key.clone(), member.value.to_value()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// What kind of value this is, for an error.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::Text(_) | Kind::Secret(_) => "a string",
            Kind::List(_) => "an array",
            Kind::Object(_) => "an object",
        }
    }
}

/// The shape only: a settings file may hold keys, and this may end in a log.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind_name(), self.at)
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked first")]
fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64)
}

struct Parser<'text> {
    text: &'text str,
    offset: usize,
    at: Position,
    source: u16,
    depth: usize,
    repeated: Vec<(String, Position)>,
}

impl Parser<'_> {
    fn value(&mut self) -> Result<Node, SyntaxError> {
        let at = self.at;
        let kind = match self.peek() {
            Some(b'{') => self.nested(Self::object)?,
            Some(b'[') => self.nested(Self::list)?,
            Some(b'"') => Kind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => Kind::Number(self.number()?),
            Some(b'a'..=b'z') => self.word()?,
            _ => return Err(self.error("expected a value")),
        };
        Ok(Node { at, source: self.source, kind })
    }

    fn nested(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Kind, SyntaxError>,
    ) -> Result<Kind, SyntaxError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error("arrays and objects are nested too deeply"));
        }
        self.depth += 1;
        self.advance();
        let kind = read(self)?;
        self.depth -= 1;
        Ok(kind)
    }

    fn object(&mut self) -> Result<Kind, SyntaxError> {
        let mut members: Vec<Member> = Vec::new();
        // Looking a key up in the list is fine for people's files; a file made to be slow gets an index.
        let mut places = std::collections::HashMap::new();
        loop {
            self.skip_blanks()?;
            if self.take(b'}') {
                return Ok(Kind::Object(members));
            }
            let at = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes or `}`"));
            }
            let key = self.string()?;
            self.skip_blanks()?;
            if !self.take(b':') {
                return Err(self.error("expected `:` after the key"));
            }
            self.skip_blanks()?;
            let value = self.value()?;
            if let Some(&place) = places.get(&key) {
                self.repeated.push((key.clone(), at));
                members[place] = Member { key, at, value };
            } else {
                places.insert(key.clone(), members.len());
                members.push(Member { key, at, value });
            }
            self.separator(b'}', "expected `,` or `}`")?;
        }
    }

    fn list(&mut self) -> Result<Kind, SyntaxError> {
        let mut items = Vec::new();
        loop {
            self.skip_blanks()?;
            if self.take(b']') {
                return Ok(Kind::List(items));
            }
            items.push(self.value()?);
            self.separator(b']', "expected `,` or `]`")?;
        }
    }

    /// A comma, or the closing bracket, which is left for the caller.
    fn separator(&mut self, close: u8, message: &'static str) -> Result<(), SyntaxError> {
        self.skip_blanks()?;
        if self.take(b',') || self.peek() == Some(close) { Ok(()) } else { Err(self.error(message)) }
    }

    fn word(&mut self) -> Result<Kind, SyntaxError> {
        let rest = &self.text[self.offset..];
        let end = rest.bytes().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let kind = match &rest[..end] {
            "true" => Kind::Bool(true),
            "false" => Kind::Bool(false),
            "null" => Kind::Null,
            _ => return Err(self.error("expected a value")),
        };
        self.advance_by(end);
        Ok(kind)
    }

    fn number(&mut self) -> Result<Number, SyntaxError> {
        let rest = &self.text[self.offset..];
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
        let end = rest.bytes().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        let number = rest[..end].parse().map_err(|_| self.error("not a number, or one that is too large"))?;
        self.advance_by(end);
        Ok(number)
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let opening = self.at;
        self.advance();
        let mut text = String::new();
        loop {
            // Whole stretches at a time: most texts have no escapes.
            let rest = &self.text[self.offset..];
            let plain = rest
                .bytes()
                .position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20)
                .ok_or(SyntaxError { at: opening, message: "this text is not closed" })?;
            text.push_str(&rest[..plain]);
            self.advance_by(plain);
            match self.peek() {
                Some(b'"') => {
                    self.advance();
                    return Ok(text);
                }
                Some(b'\\') => text.push(self.escape()?),
                Some(b'\n' | b'\r') => {
                    return Err(SyntaxError { at: opening, message: "this text is not closed on its line" });
                }
                _ => return Err(self.error("a control character in a text must be written as an escape")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let at = self.at;
        self.advance();
        let plain = match self.peek() {
            Some(b'u') => return self.unicode_escape(at),
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(SyntaxError { at, message: "an escape that JSON does not have" }),
        };
        self.advance();
        Ok(plain)
    }

    fn unicode_escape(&mut self, at: Position) -> Result<char, SyntaxError> {
        let broken = SyntaxError { at, message: "an escape that is not a character" };
        let first = self.hex().ok_or(broken)?;
        let code = if (0xd800..0xdc00).contains(&first) {
            if !(self.take(b'\\') && self.peek() == Some(b'u')) {
                return Err(broken);
            }
            let second = self.hex().filter(|code| (0xdc00..0xe000).contains(code)).ok_or(broken)?;
            0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        char::from_u32(code).ok_or(broken)
    }

    /// `uXXXX`, standing at the `u`.
    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.offset + 1..self.offset + 5)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let code = u32::from_str_radix(digits, 16).ok()?;
        self.advance_by(5);
        Some(code)
    }

    fn skip_blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.advance(),
                Some(b'/') => self.comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let rest = &self.text[self.offset..];
        if rest.starts_with("//") {
            self.advance_by(rest.find('\n').unwrap_or(rest.len()));
        } else if let Some(inside) = rest.strip_prefix("/*") {
            let end = inside.find("*/").ok_or_else(|| self.error("this comment is not closed"))?;
            self.advance_by(end + 4);
        } else {
            return Err(self.error("expected a value; a comment starts with `//` or `/*`"));
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.offset).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.advance();
        }
        there
    }

    fn advance(&mut self) {
        self.advance_by(1);
    }

    /// The only place where the offset moves, so that line and column always agree with it.
    fn advance_by(&mut self, bytes: usize) {
        for &byte in &self.text.as_bytes()[self.offset..self.offset + bytes] {
            if byte == b'\n' {
                self.at = Position { line: self.at.line + 1, column: 1 };
            } else if byte & 0xc0 != 0x80 {
                // Bytes that continue a character are not columns of their own.
                self.at.column += 1;
            }
        }
        self.offset += bytes;
    }

    fn error(&self, message: &'static str) -> SyntaxError {
        SyntaxError { at: self.at, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        parse(text, 0).unwrap().root.to_value()
    }

    #[test]
    fn comments_and_trailing_commas_are_read_over() {
        let text = "\u{feff}// head\n{ /* a */ \"a\": [1, 2.5, -3,], // x\n \"b\": {\"c\": null,}, }\n// end";
        assert_eq!(value(text), json!({"a": [1, 2.5, -3], "b": {"c": null}}));
        assert_eq!(value(" // nothing\n"), json!({}));
        assert_eq!(
            value(r#"{"s": "\u00e9\ud83d\ude00\n\/ // no comment"}"#),
            json!({"s": "é😀\n/ // no comment"})
        );
    }

    #[test]
    fn every_key_and_value_knows_its_place() {
        let root = parse("{\n  \"é😀\": {\"x\": [\n    true,\n    \"y\"]}\n}", 7).unwrap().root;
        let member = &root.members()[0];
        assert_eq!((member.at, member.value.at), (at(2, 3), at(2, 9)));
        let x = &member.value.members()[0];
        assert_eq!((x.at, x.value.at), (at(2, 10), at(2, 15)));
        assert_eq!(x.value.items()[1].at, at(4, 5));
        assert_eq!(x.value.items()[1].source, 7);
    }

    #[test]
    fn a_path_leads_to_its_place_or_as_near_as_there_is() {
        let root = parse("{\n \"a\": [\n  {\"b\": 1},\n  {\"b.c\":\n   2, \"b\": {}}]}", 0).unwrap().root;
        for (path, line, column) in [
            ("a", 2, 2),
            (".a", 2, 2),
            ("a[0]", 3, 3),
            ("a[0].b", 3, 4),
            ("a[1].b.c", 4, 4),
            ("a[1].b", 5, 7),
            ("a[1].b.d", 5, 12),
            ("a[7].b", 2, 7),
            ("a[x]", 2, 7),
            ("other", 1, 1),
            ("", 1, 1),
        ] {
            assert_eq!(root.position(path), at(line, column), "{path}");
        }
    }

    fn at(line: u32, column: u32) -> Position {
        Position { line, column }
    }

    #[test]
    fn errors_stand_where_a_person_would_look() {
        let deep = "[".repeat(MAX_DEPTH + 1);
        let rows: &[(&str, u32, u32, &str)] = &[
            ("{\"a\" 1}", 1, 6, "`:`"),
            ("{\"a\": 1 \"b\": 2}", 1, 9, "`,` or `}`"),
            ("{\n  a: 1\n}", 2, 3, "double quotes"),
            ("{\"a\": }", 1, 7, "value"),
            ("{\"a\": tru}", 1, 7, "value"),
            ("{\"a\": 01}", 1, 7, "number"),
            ("{\"a\": 1e999}", 1, 7, "number"),
            ("{\"a\": \"x\n\"}", 1, 7, "not closed"),
            ("{\"a\": \"x", 1, 7, "not closed"),
            ("{\"a\": \"x\\q\"}", 1, 9, "escape"),
            ("{\"a\": \"\\ud800x\"}", 1, 8, "escape"),
            ("{\"a\": \"\\u00g0\"}", 1, 8, "escape"),
            ("{\"a\": \"\u{1}\"}", 1, 8, "control"),
            ("{} x", 1, 4, "after the end"),
            ("/* x", 1, 1, "comment"),
            ("{\"a\": 1 / 2}", 1, 9, "comment"),
            ("[1, 2", 1, 6, "`]`"),
            ("{'a': 1}", 1, 2, "double quotes"),
            (&deep, 1, 65, "deep"),
        ];
        for (text, line, column, words) in rows {
            let error = parse(text, 0).unwrap_err();
            assert_eq!(error.at, at(*line, *column), "{text}: {error}");
            assert!(error.message.contains(words), "{text}: {error}");
        }
        assert!(parse(&" ".repeat(MAX_BYTES + 1), 0).is_err());
    }

    #[test]
    fn the_later_of_two_equal_keys_counts_and_is_named() {
        let document = parse("{\"a\": 1, \"b\": 2,\n \"a\": 3}", 0).unwrap();
        assert_eq!(document.root.to_value(), json!({"a": 3, "b": 2}));
        assert_eq!(document.repeated, [("a".to_owned(), at(2, 2))]);
    }

    #[test]
    fn numbers_that_are_whole_are_integers() {
        let root = parse("[3, 3.0, 3.5, -1, 1e3, 18446744073709551615]", 0).unwrap().root;
        let integers: Vec<_> = root.items().iter().map(Node::integer).collect();
        assert_eq!(integers, [Some(3), Some(3), None, None, Some(1000), Some(u64::MAX)]);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_json_is_read_as_json(json in any_json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&json) } else { serde_json::to_string(&json) };
            prop_assert_eq!(parse(&text.unwrap(), 0).unwrap().root.to_value(), json);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[\\[\\]{}:,\"\\\\/*a-z0-9 \n\u{e9}.-]{0,60}") {
            let ours = parse(&text, 0);
            if let Ok(json) = serde_json::from_str::<Value>(&text) {
                prop_assert_eq!(ours.unwrap().root.to_value(), json);
            }
        }
    }
}
