//! A settings file with a small change. Takes its text, gives the same text with a value set, or items added to a list
//! or taken out of it: comments, order and blanks stay where they are. What comes out is read again before it is given;
//! an edit that would say anything else than it should is an error, never a file.

use serde_json::Value;

use crate::jsonc::{self, Kind, Node, Position, SyntaxError};

/// Why a text was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EditError {
    #[error("{0}")]
    Syntax(#[from] SyntaxError),
    #[error("{at}: `{key}` is not {expected}")]
    Shape { at: Position, key: String, expected: &'static str },
    /// Change it by hand.
    #[error("it is written in a way that cannot be changed safely")]
    Unsafe,
}

/// The text with these items in the list at a path of two keys, behind those that are there.
pub(crate) fn add(text: &str, path: [&str; 2], items: &[String]) -> Result<String, EditError> {
    let mut text = text.to_owned();
    for item in items {
        let list = list(&text, path)?;
        if list.as_ref().is_some_and(|list| list.items().iter().any(|one| one.text() == Some(item))) {
            continue;
        }
        let value = Value::String(item.clone()).to_string();
        let expected = with_item(&value_of(&text)?, path, item);
        text = match list {
            None => put(&text, &path, &format!("[{value}]"))?,
            Some(list) => {
                let ends = list.items().iter().map(|one| offset(&text, one.at)).max();
                insert(&text, offset(&text, list.at), ends, &value)
            }
        };
        check(&text, &expected)?;
    }
    Ok(text)
}

/// The text without these items of the list at a path of two keys.
pub(crate) fn remove(text: &str, path: [&str; 2], gone: impl Fn(&str) -> bool) -> Result<String, EditError> {
    let mut text = text.to_owned();
    loop {
        let Some(list) = list(&text, path)? else { return Ok(text) };
        let is_gone = |item: &Node| item.text().is_some_and(&gone);
        let Some(index) = list.items().iter().position(is_gone) else { return Ok(text) };
        let mut expected = value_of(&text)?;
        if let Some(items) = expected[path[0]][path[1]].as_array_mut() {
            items.remove(index);
        }
        let starts: Vec<usize> = list.items().iter().map(|one| offset(&text, one.at)).collect();
        text = without(&text, &starts, index);
        check(&text, &expected)?;
    }
}

/// The text with this value at a path of keys.
pub(crate) fn set(text: &str, path: &[&str], value: &Value) -> Result<String, EditError> {
    let changed = match found(text, path)? {
        None => put(text, path, &value.to_string())?,
        Some(node) => {
            let start = offset(text, node.at);
            format!("{}{value}{}", &text[..start], &text[value_end(text, start)..])
        }
    };
    // Whatever is on the way there is an object, or there was an error.
    let mut expected = value_of(text)?;
    *path.iter().fold(&mut expected, |inner, key| &mut inner[*key]) = value.clone();
    check(&changed, &expected)?;
    Ok(changed)
}

/// What is at a path of keys. What is on the way there must be objects.
fn found(text: &str, path: &[&str]) -> Result<Option<Node>, EditError> {
    let mut node = jsonc::parse(text, 0)?.root;
    let mut above = "the document";
    for key in path {
        node = match object(node, above)?.get(key) {
            Some(inner) => inner.clone(),
            None => return Ok(None),
        };
        above = key;
    }
    Ok(Some(node))
}

/// The texts of the list at a path of two keys, and where each stands.
pub(crate) fn texts(text: &str, path: [&str; 2]) -> Result<Vec<(String, Position)>, EditError> {
    let list = list(text, path)?;
    let items = list.iter().flat_map(Node::items);
    Ok(items.filter_map(|item| Some((item.text()?.to_owned(), item.at))).collect())
}

fn list(text: &str, path: [&str; 2]) -> Result<Option<Node>, EditError> {
    let root = object(jsonc::parse(text, 0)?.root, "the document")?;
    let Some(inner) = root.get(path[0]).cloned() else { return Ok(None) };
    let key = path.join(".");
    match object(inner, path[0])?.get(path[1]) {
        None => Ok(None),
        Some(node) if matches!(node.kind, Kind::List(_)) => Ok(Some(node.clone())),
        Some(node) => Err(EditError::Shape { at: node.at, key, expected: "a list" }),
    }
}

fn object(node: Node, key: &str) -> Result<Node, EditError> {
    if matches!(node.kind, Kind::Object(_)) {
        return Ok(node);
    }
    Err(EditError::Shape { at: node.at, key: key.to_owned(), expected: "an object" })
}

/// Puts a value that is not there yet at a path of keys.
fn put(text: &str, path: &[&str], json: &str) -> Result<String, EditError> {
    let root = object(jsonc::parse(text, 0)?.root, "the document")?;
    if !text[offset(text, root.at).min(text.len())..].starts_with('{') {
        // Nothing but blanks and comments: what is there stays above.
        let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        return put(&format!("{text}{gap}{{}}\n"), path, json);
    }
    let member = |key: &str, value: &str| format!("{}: {value}", Value::from(key));
    let (last, above) = path.split_last().ok_or(EditError::Unsafe)?;
    let mut inner = root;
    for key in above {
        inner = match inner.get(key) {
            Some(there) => object(there.clone(), key)?,
            None => return put(&insert_member(text, &inner, &member(key, "{}")), path, json),
        };
    }
    Ok(insert_member(text, &inner, &member(last, json)))
}

fn insert_member(text: &str, object: &Node, member: &str) -> String {
    let last = object.members().iter().map(|one| (offset(text, one.at), offset(text, one.value.at))).max();
    let start = offset(text, object.at);
    match last {
        None => insert(text, start, None, member),
        Some((key, value)) => insert_behind(text, key, value_end(text, value), member),
    }
}

/// Puts one more item into the brackets that open at `start`, behind the item that begins at `last`.
fn insert(text: &str, start: usize, last: Option<usize>, item: &str) -> String {
    if let Some(last) = last {
        return insert_behind(text, last, value_end(text, last), item);
    }
    let indent = indent_of(text, start);
    let (before, after) = text.split_at(start + 1);
    let close = if after.trim_start_matches([' ', '\t']).starts_with(['\n', '\r']) {
        String::new()
    } else {
        format!("\n{indent}")
    };
    let after = if close.is_empty() { after } else { after.trim_start_matches([' ', '\t']) };
    format!("{before}\n{indent}  {item}{close}{after}")
}

/// Puts one more item behind the one from `start` to `end`, as that one is written: on a line of its own, or beside it.
fn insert_behind(text: &str, start: usize, end: usize, item: &str) -> String {
    let comma = comma_after(text, end);
    let alone = text[line_start(text, start)..start].chars().all(|letter| letter == ' ' || letter == '\t');
    let (head, tail) = text.split_at(comma.map_or(end, |comma| comma + 1));
    let own_comma = if comma.is_some() { "" } else { "," };
    // A comma that nothing follows stays one that nothing follows.
    let last_comma = if comma.is_some() { "," } else { "" };
    if !alone {
        return format!("{head}{own_comma} {item}{last_comma}{tail}");
    }
    let line = tail.find('\n').unwrap_or(tail.len());
    let rest = tail[..line].trim();
    // What is said about an item on its line stays on its line.
    let stays = rest.is_empty() || rest.starts_with("//") || (rest.starts_with("/*") && rest.ends_with("*/"));
    let (beside, below) = if stays { tail.split_at(line) } else { ("", tail) };
    format!("{head}{own_comma}{beside}\n{}{item}{last_comma}{below}", indent_of(text, start))
}

/// Takes an item out of a list, given where each begins.
fn without(text: &str, starts: &[usize], index: usize) -> String {
    let (mut from, end) = (starts[index], value_end(text, starts[index]));
    let mut to = end;
    let mut text = text.to_owned();
    match comma_after(&text, end) {
        Some(comma) => to = comma + 1,
        None if index > 0 => {
            if let Some(comma) = comma_after(&text, value_end(&text, starts[index - 1])) {
                text.remove(comma);
                (from, to) = (from - 1, to - 1);
                from = text[..from].trim_end_matches(' ').len();
            }
        }
        None => {}
    }
    let before = line_start(&text, from);
    let is_alone = before > 0 && text[before..from].trim().is_empty();
    let rest = text[to..].find('\n').map(|line| to + line);
    match rest {
        Some(line) if is_alone && text[to..line].trim().is_empty() => (from, to) = (before, line + 1),
        _ => to += text[to..].len() - text[to..].trim_start_matches(' ').len(),
    }
    text.replace_range(from..to, "");
    text
}

/// Where the comma behind a value is, if there is one.
fn comma_after(text: &str, end: usize) -> Option<usize> {
    let at = skip_blanks(text, end);
    text[at..].starts_with(',').then_some(at)
}

fn skip_blanks(text: &str, mut at: usize) -> usize {
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        at += rest.len() - trimmed.len();
        if trimmed.starts_with("//") {
            at += trimmed.find('\n').unwrap_or(trimmed.len());
        } else if trimmed.starts_with("/*") {
            at += trimmed.find("*/").map_or(trimmed.len(), |end| end + 2);
        } else {
            return at;
        }
    }
}

/// Where the value ends that begins here; of a text that was parsed.
fn value_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (start, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = text_end(bytes, at),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ if depth > 0 => {
                let next = skip_blanks(text, at);
                at = if next == at { at + 1 } else { next };
                continue;
            }
            _ => {
                let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
                return at + bytes[at..].iter().position(|byte| !is_part(*byte)).unwrap_or(bytes.len() - at);
            }
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

fn text_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |line| line + 1)
}

/// The blanks that the line begins with on which this stands.
fn indent_of(text: &str, at: usize) -> &str {
    let line = &text[line_start(text, at)..at];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The byte at which a position is.
fn offset(text: &str, at: Position) -> usize {
    let mark = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut start = mark;
    for _ in 1..at.line {
        start += text[start..].find('\n').map_or(text.len() - start, |line| line + 1);
    }
    let column = usize::try_from(at.column.saturating_sub(1)).unwrap_or(usize::MAX);
    start + text[start..].char_indices().nth(column).map_or(text.len() - start, |(byte, _)| byte)
}

fn value_of(text: &str) -> Result<Value, EditError> {
    Ok(jsonc::parse(text, 0)?.root.to_value())
}

fn with_item(value: &Value, path: [&str; 2], item: &str) -> Value {
    let mut value = value.clone();
    match value[path[0]][path[1]].as_array_mut() {
        Some(items) => items.push(Value::from(item)),
        None => value[path[0]][path[1]] = Value::from(vec![item]),
    }
    value
}

fn check(text: &str, expected: &Value) -> Result<(), EditError> {
    match value_of(text) {
        Ok(value) if value == *expected => Ok(()),
        _ => Err(EditError::Unsafe),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const ALLOW: [&str; 2] = ["permissions", "allow"];

    const WRITTEN: [&str; 11] = [
        "",
        "// mine\n",
        "{}",
        "{\n}\n",
        "{\"model\": \"x\"}\n",
        "{\n  \"model\": \"x\" // the best\n}\n",
        "{\n  // rules\n  \"permissions\": {\n    \"allow\": [\n      \"Read\", // files\n      \"Bash(ls)\" // list\n    ],\n    \"deny\": []\n  }\n}\n",
        "{\"permissions\": {\"allow\": [\"Read\", \"Bash(ls)\"]}}",
        "{\n\t\"permissions\": {\n\t\t\"allow\": [\n\t\t\t\"Read\",\n\t\t\t\"Bash(ls)\",\n\t\t],\n\t},\n}\n",
        "\u{feff}{\r\n  \"permissions\": { \"allow\": [ /* none */ ] }\r\n}\r\n",
        "{\"é\": \"ü\", \"permissions\": {\"allow\": [\"Bash(echo \\\"]}\\\" // é)\"]}}",
    ];

    #[test]
    fn an_edit_changes_what_it_should_and_nothing_else() {
        let mut seen = String::new();
        for text in WRITTEN {
            let added = add(text, ALLOW, &["Edit".to_owned(), "Read".to_owned()]).unwrap();
            let taken = remove(&added, ALLOW, |item| item == "Read").unwrap();
            let moded = set(&taken, &["permissions", "defaultMode"], &Value::from("plan")).unwrap();
            seen.push_str(&format!(
                "{text}\n--- add\n{added}\n--- remove\n{taken}\n--- set\n{moded}\n=====\n"
            ));
        }
        expect![[r#"

            --- add
            {
              "permissions": {
                "allow": ["Edit", "Read"]
              }
            }

            --- remove
            {
              "permissions": {
                "allow": ["Edit"]
              }
            }

            --- set
            {
              "permissions": {
                "allow": ["Edit"],
                "defaultMode": "plan"
              }
            }

            =====
            // mine

            --- add
            // mine
            {
              "permissions": {
                "allow": ["Edit", "Read"]
              }
            }

            --- remove
            // mine
            {
              "permissions": {
                "allow": ["Edit"]
              }
            }

            --- set
            // mine
            {
              "permissions": {
                "allow": ["Edit"],
                "defaultMode": "plan"
              }
            }

            =====
            {}
            --- add
            {
              "permissions": {
                "allow": ["Edit", "Read"]
              }
            }
            --- remove
            {
              "permissions": {
                "allow": ["Edit"]
              }
            }
            --- set
            {
              "permissions": {
                "allow": ["Edit"],
                "defaultMode": "plan"
              }
            }
            =====
            {
            }

            --- add
            {
              "permissions": {
                "allow": ["Edit", "Read"]
              }
            }

            --- remove
            {
              "permissions": {
                "allow": ["Edit"]
              }
            }

            --- set
            {
              "permissions": {
                "allow": ["Edit"],
                "defaultMode": "plan"
              }
            }

            =====
            {"model": "x"}

            --- add
            {"model": "x", "permissions": {
              "allow": ["Edit", "Read"]
            }}

            --- remove
            {"model": "x", "permissions": {
              "allow": ["Edit"]
            }}

            --- set
            {"model": "x", "permissions": {
              "allow": ["Edit"],
              "defaultMode": "plan"
            }}

            =====
            {
              "model": "x" // the best
            }

            --- add
            {
              "model": "x", // the best
              "permissions": {
                "allow": ["Edit", "Read"]
              }
            }

            --- remove
            {
              "model": "x", // the best
              "permissions": {
                "allow": ["Edit"]
              }
            }

            --- set
            {
              "model": "x", // the best
              "permissions": {
                "allow": ["Edit"],
                "defaultMode": "plan"
              }
            }

            =====
            {
              // rules
              "permissions": {
                "allow": [
                  "Read", // files
                  "Bash(ls)" // list
                ],
                "deny": []
              }
            }

            --- add
            {
              // rules
              "permissions": {
                "allow": [
                  "Read", // files
                  "Bash(ls)", // list
                  "Edit"
                ],
                "deny": []
              }
            }

            --- remove
            {
              // rules
              "permissions": {
                "allow": [
                  // files
                  "Bash(ls)", // list
                  "Edit"
                ],
                "deny": []
              }
            }

            --- set
            {
              // rules
              "permissions": {
                "allow": [
                  // files
                  "Bash(ls)", // list
                  "Edit"
                ],
                "deny": [],
                "defaultMode": "plan"
              }
            }

            =====
            {"permissions": {"allow": ["Read", "Bash(ls)"]}}
            --- add
            {"permissions": {"allow": ["Read", "Bash(ls)", "Edit"]}}
            --- remove
            {"permissions": {"allow": ["Bash(ls)", "Edit"]}}
            --- set
            {"permissions": {"allow": ["Bash(ls)", "Edit"], "defaultMode": "plan"}}
            =====
            {
            →"permissions": {
            →→"allow": [
            →→→"Read",
            →→→"Bash(ls)",
            →→],
            →},
            }

            --- add
            {
            →"permissions": {
            →→"allow": [
            →→→"Read",
            →→→"Bash(ls)",
            →→→"Edit",
            →→],
            →},
            }

            --- remove
            {
            →"permissions": {
            →→"allow": [
            →→→"Bash(ls)",
            →→→"Edit",
            →→],
            →},
            }

            --- set
            {
            →"permissions": {
            →→"allow": [
            →→→"Bash(ls)",
            →→→"Edit",
            →→],
            →→"defaultMode": "plan",
            →},
            }

            =====
            ﻿{␍
              "permissions": { "allow": [ /* none */ ] }␍
            }␍

            --- add
            ﻿{␍
              "permissions": { "allow": [
                "Edit",
                "Read"
              /* none */ ] }␍
            }␍

            --- remove
            ﻿{␍
              "permissions": { "allow": [
                "Edit"
              /* none */ ] }␍
            }␍

            --- set
            ﻿{␍
              "permissions": { "allow": [
                "Edit"
              /* none */ ], "defaultMode": "plan" }␍
            }␍

            =====
            {"é": "ü", "permissions": {"allow": ["Bash(echo \"]}\" // é)"]}}
            --- add
            {"é": "ü", "permissions": {"allow": ["Bash(echo \"]}\" // é)", "Edit", "Read"]}}
            --- remove
            {"é": "ü", "permissions": {"allow": ["Bash(echo \"]}\" // é)", "Edit"]}}
            --- set
            {"é": "ü", "permissions": {"allow": ["Bash(echo \"]}\" // é)", "Edit"], "defaultMode": "plan"}}
            =====
        "#]]
        .assert_eq(&seen.replace('\r', "␍").replace('\t', "→"));
    }

    #[test]
    fn what_is_no_list_stays_as_it_is() {
        for text in ["{", "[]", "{\"permissions\": []}", "{\"permissions\": {\"allow\": \"Read\"}}"] {
            let error = add(text, ALLOW, &["Edit".to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with("1:"), "{text}: {error}");
        }
    }
}
