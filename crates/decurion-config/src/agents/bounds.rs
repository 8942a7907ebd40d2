//! The `sandbox` of a definition. Takes the entry, gives what it takes away from the agent's sandbox. Everything in it
//! forbids, so whatever cannot be read makes the file unusable.

use decurion_protocol::AgentSandbox;
use serde_json::{Map, Value};

use crate::frontmatter::Entry;

/// A problem and its line.
pub(crate) type Problem = (u32, String);

/// Reads the entry; the problems are errors.
pub(crate) fn read(entry: &Entry) -> (AgentSandbox, Vec<Problem>) {
    let mut reader = Reader { entry, found: AgentSandbox::default(), problems: Vec::new() };
    match &entry.value {
        Value::Object(members) => reader.whole(members),
        _ => reader.problem(&entry.key, "expected an object with `network` and `filesystem`"),
    }
    (reader.found, reader.problems)
}

/// The same as it could be written; none where it takes nothing away.
pub(crate) fn write(sandbox: &AgentSandbox) -> Option<Value> {
    let list = |texts: &[String]| (!texts.is_empty()).then(|| Value::from(texts.to_vec()));
    let object = |members: [(&str, Option<Value>); 2]| {
        let members: Map<String, Value> =
            members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        (!members.is_empty()).then_some(Value::Object(members))
    };
    let allowed = sandbox.allowed_hosts.first().map(|hosts| Value::from(hosts.clone()));
    let network = if sandbox.no_network {
        Some(Value::from("none"))
    } else {
        object([("allowedDomains", allowed), ("deniedDomains", list(&sandbox.denied_hosts))])
    };
    let filesystem =
        object([("denyRead", list(&sandbox.deny_read)), ("denyWrite", list(&sandbox.deny_write))]);
    object([("network", network), ("filesystem", filesystem)])
}

struct Reader<'a> {
    entry: &'a Entry,
    found: AgentSandbox,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn whole(&mut self, members: &Map<String, Value>) {
        for (key, value) in members {
            match (key.as_str(), value) {
                ("enabled", Value::Bool(true)) => {}
                ("enabled", _) => {
                    self.problem(
                        key,
                        "the sandbox cannot be switched off for one agent; only true is possible",
                    );
                }
                ("network", Value::String(word)) if word == "none" => self.found.no_network = true,
                ("network", Value::Object(members)) => self.network(members),
                ("network", _) => {
                    self.problem(key, "expected none, or an object with allowedDomains and deniedDomains");
                }
                ("filesystem", Value::Object(members)) => self.filesystem(members),
                ("filesystem", _) => self.problem(key, "expected an object with denyRead and denyWrite"),
                _ => self.unknown(key, "enabled, network, filesystem"),
            }
        }
    }

    fn network(&mut self, members: &Map<String, Value>) {
        for (key, value) in members {
            match key.as_str() {
                "allowedDomains" => {
                    let hosts = self.hosts(key, value);
                    self.found.allowed_hosts = vec![hosts];
                }
                "deniedDomains" => self.found.denied_hosts = self.hosts(key, value),
                _ => self.unknown(key, "allowedDomains, deniedDomains"),
            }
        }
    }

    fn filesystem(&mut self, members: &Map<String, Value>) {
        for (key, value) in members {
            match key.as_str() {
                "denyRead" => self.found.deny_read = self.texts(key, value),
                "denyWrite" => self.found.deny_write = self.texts(key, value),
                _ => self.unknown(key, "denyRead, denyWrite"),
            }
        }
    }

    fn hosts(&mut self, key: &str, value: &Value) -> Vec<String> {
        let hosts = self.texts(key, value);
        let is_host = |host: &&String| !host.contains("://") && !host.contains([' ', '@', '?']);
        if let Some(wrong) = hosts.iter().find(|host| !is_host(host)) {
            self.problem(key, &format!("expected hosts such as example.com or *.example.com, found {wrong}"));
        }
        hosts
    }

    fn texts(&mut self, key: &str, value: &Value) -> Vec<String> {
        let texts: Option<Vec<String>> = match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        let texts = texts.filter(|texts| texts.iter().all(|text| !text.trim().is_empty()));
        texts.unwrap_or_else(|| {
            self.problem(key, "expected a list of texts");
            Vec::new()
        })
    }

    fn unknown(&mut self, key: &str, known: &str) {
        self.problem(key, &format!("unknown key; an agent's sandbox only tightens, and has {known}"));
    }

    fn problem(&mut self, key: &str, text: &str) {
        let is_key = |line: &str| line.trim_matches(['"', '\'']).starts_with(&format!("{key}:"));
        // Within braces all stands in one line.
        let below = self.entry.raw.lines().position(is_key).and_then(|index| u32::try_from(index + 1).ok());
        let line = self.entry.line + below.unwrap_or(0);
        let named = if key == self.entry.key { key.to_owned() } else { format!("{}: {key}", self.entry.key) };
        self.problems.push((line, format!("`{named}`: {text}")));
    }
}
