//! A server's declaration for a person's eyes. Takes the JSON as somebody wrote it, gives what it says: variables
//! stay `${NAME}`, and what looks like a secret is not shown.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::redact::{PLACEHOLDER, Redactor};
use crate::shell_env::is_secret_name;

/// Literal text beside a variable that is shown, as in `Bearer ${TOKEN}`.
const MOST_BESIDE: usize = 8;

/// A declaration as it is written.
#[derive(Clone, PartialEq)]
pub struct Written(Value);

impl Written {
    pub fn new(declared: &Value) -> Self {
        Self(declared.clone())
    }

    /// Everything that decides what is run or reached, in JSON.
    pub fn shown(&self) -> Value {
        let mut shown = Map::new();
        let mut add = |key: &str, value: Option<Value>| {
            shown.extend(value.map(|value| (key.to_owned(), value)));
        };
        let command = self.0.get("command");
        add(
            "command",
            command.map(|command| match command {
                Value::Array(words) => arguments(words),
                command => json!(plain(command)),
            }),
        );
        add("args", self.0.get("args").and_then(Value::as_array).map(|args| arguments(args)));
        add("cwd", self.0.get("cwd").map(|cwd| json!(plain(cwd))));
        add(
            "env",
            self.pairs("env", |name, value| if is_secret_name(name) { secret(value) } else { text(value) }),
        );
        add("url", self.0.get("url").map(|url| json!(address(&plain(url)))));
        add("headers", self.pairs("headers", |_, value| secret(value)));
        Value::Object(shown)
    }

    /// The same as lines: what, and what is written there.
    pub fn lines(&self) -> Vec<(String, String)> {
        let Value::Object(shown) = self.shown() else { return Vec::new() };
        let line = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut lines = Vec::new();
        for (key, value) in &shown {
            match value {
                Value::Object(pairs) => {
                    let word = if key == "env" { "env" } else { "header" };
                    lines.extend(pairs.iter().map(|(name, value)| (format!("{word} {name}"), line(value))));
                }
                value => lines.push((key.clone(), line(value))),
            }
        }
        lines
    }

    /// The command with its arguments, or the address, in one line.
    pub fn summary(&self) -> String {
        let shown = self.shown();
        let words = |key: &str| match &shown[key] {
            Value::String(word) => vec![word.clone()],
            Value::Array(words) => words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        ["command", "args", "url"].into_iter().flat_map(words).collect::<Vec<_>>().join(" ")
    }

    fn pairs(&self, key: &str, show: impl Fn(&str, &str) -> String) -> Option<Value> {
        let pairs = self.0.get(key)?.as_object()?;
        let shown = pairs.iter().map(|(name, value)| (name.clone(), json!(show(name, &raw(value)))));
        Some(Value::Object(shown.collect()))
    }
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())
    }
}

fn raw(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn plain(value: &Value) -> String {
    text(&raw(value))
}

/// A text without what has the shape of a key.
fn text(text: &str) -> String {
    Redactor::new([], true).redact(text).into_owned()
}

/// Arguments; what is given to one that is called like a secret is one.
fn arguments(words: &[Value]) -> Value {
    let mut after_secret = false;
    let mut shown = Vec::new();
    for word in words.iter().map(raw) {
        let is_flag = word.starts_with('-');
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        shown.push(match value {
            Some(value) if is_secret_name(name) => format!("{name}={}", secret(value)),
            _ if after_secret && !is_flag => secret(&word),
            _ => text(&word),
        });
        after_secret = is_flag && value.is_none() && is_secret_name(name);
    }
    json!(shown)
}

/// What stands where secrets do: its variables are shown, and hardly more.
fn secret(written: &str) -> String {
    if !written.contains("${") {
        return PLACEHOLDER.to_owned();
    }
    let mut shown = String::new();
    let mut rest = written;
    while let Some((before, inside, after)) = next_variable(rest) {
        shown.push_str(beside(before));
        match inside.split_once(":-") {
            Some((name, _)) => shown.push_str(&format!("${{{name}:-{PLACEHOLDER}}}")),
            None => shown.push_str(&format!("${{{inside}}}")),
        }
        rest = after;
    }
    shown.push_str(beside(rest));
    shown
}

fn next_variable(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("${")?;
    let (inside, after) = rest.split_once('}')?;
    Some((before, inside, after))
}

fn beside(literal: &str) -> &str {
    if literal.chars().count() < MOST_BESIDE { literal } else { PLACEHOLDER }
}

/// An address without the secrets that people put into it: a password before the host, and values of its query.
fn address(url: &str) -> String {
    let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    let mut shown = match place.split_once("://") {
        Some((scheme, rest)) => {
            let host = rest.find('/').unwrap_or(rest.len());
            match rest[..host].rfind('@') {
                Some(at) => format!("{scheme}://{}@{}", secret(&rest[..at]), &rest[at + 1..]),
                None => place.to_owned(),
            }
        }
        None => place.to_owned(),
    };
    if let Some(query) = query {
        let pair = |pair: &str| match pair.split_once('=') {
            Some((name, value)) => format!("{name}={}", secret(value)),
            None => secret(pair),
        };
        shown = format!("{shown}?{}", query.split('&').map(pair).collect::<Vec<_>>().join("&"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stay_and_secrets_do_not() {
        let rows = [
            (
                json!({"command": "npx", "args": ["-y", "x", "--api-key", "hunter2hunter2", "--token=abc", "${HOME}"],
                    "cwd": "sub", "env": {"NODE_OPTIONS": "--require ./a.js", "API_TOKEN": "abc", "TOKEN": "${MINE}"}}),
                r#"{"command":"npx","args":["-y","x","--api-key","[redacted]","--token=[redacted]","${HOME}"],"cwd":"sub","env":{"API_TOKEN":"[redacted]","NODE_OPTIONS":"--require ./a.js","TOKEN":"${MINE}"}}"#,
            ),
            (
                json!({"type": "http", "url": "https://me:pw@example.org/mcp?key=abc&t=${T}",
                    "headers": {"Authorization": "Bearer ${TOKEN:-fallback}", "X-Team": "abc"}}),
                r#"{"url":"https://[redacted]@example.org/mcp?key=[redacted]&t=${T}","headers":{"Authorization":"Bearer ${TOKEN:-[redacted]}","X-Team":"[redacted]"}}"#,
            ),
            (
                json!({"command": ["run", "ghp_0123456789abcdefghijABCDEFGHIJ012345"]}),
                r#"{"command":["run","[redacted]"]}"#,
            ),
        ];
        for (declared, expected) in rows {
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(Written::new(&declared).shown(), expected);
        }
    }
}
