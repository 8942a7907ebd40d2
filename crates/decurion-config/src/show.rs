//! What is in effect and why. Takes the layered settings, gives one row per value with its origin, for
//! `decurion config show`; secrets are replaced before anything leaves this file.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use crate::jsonc::Node;
use crate::origin::{Origin, Sources};
use crate::redact::{PLACEHOLDER, Redactor};
use crate::shell_env::is_secret_name;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its key, joined by dots, with places in lists: `permissions.allow[0]`.
    pub key: String,
    /// Its value; secrets are replaced.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

impl Row {
    /// One line for people: key, value, and the origin if asked for.
    pub fn line(&self, with_origin: bool) -> String {
        let value = self.value.to_string();
        if with_origin {
            format!("{} = {value}  ({}: {})", self.key, self.origin.layer, self.origin)
        } else {
            format!("{} = {value}", self.key)
        }
    }
}

/// Every effective value, in the order of its keys.
pub(crate) fn rows(tree: &Node, sources: &Sources, redactor: &Redactor) -> Vec<Row> {
    let mut rows = Vec::new();
    collect(tree, sources, redactor, &mut String::new(), &mut rows);
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    rows
}

/// The whole as it is written, secrets replaced.
pub(crate) fn whole(tree: &Node, redactor: &Redactor) -> Value {
    hide(tree.to_value(), redactor)
}

fn collect(node: &Node, sources: &Sources, redactor: &Redactor, path: &mut String, rows: &mut Vec<Row>) {
    let length = path.len();
    let is_opaque = ["hooks[", "allowedMcpServers[", "mcpServers.", "enabledPlugins", "statusLine"];
    let is_whole = is_opaque.iter().any(|prefix| path.starts_with(prefix));
    if !is_whole && !node.members().is_empty() {
        for member in node.members() {
            if length > 0 {
                path.push('.');
            }
            path.push_str(&member.key);
            collect(&member.value, sources, redactor, path, rows);
            path.truncate(length);
        }
    } else if !is_whole && !node.items().is_empty() {
        for (index, item) in node.items().iter().enumerate() {
            let width = digits(node.items().len());
            let _ = write!(path, "[{index:0width$}]");
            collect(item, sources, redactor, path, rows);
            path.truncate(length);
        }
    } else if length > 0 {
        let value = hide(node.to_value(), redactor);
        // Where nothing of an object is in effect, nothing is.
        if !is_whole && value == Value::Object(serde_json::Map::new()) {
            return;
        }
        rows.push(Row { key: path.clone(), value, origin: sources.origin(node) });
    }
}

/// Places in long lists have leading zeros, so that sorting by key keeps their order.
fn digits(count: usize) -> usize {
    count.saturating_sub(1).max(1).ilog10() as usize + 1
}

/// Replaces what is or may be a secret inside of a declaration.
fn hide(value: Value, redactor: &Redactor) -> Value {
    match value {
        Value::String(text) => Value::String(redactor.redact(&text).into_owned()),
        Value::Array(items) => items.into_iter().map(|item| hide(item, redactor)).collect(),
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(key, value)| {
                    let value = match value {
                        // Variables and headers of servers and hooks are where their keys are.
                        Value::Object(inner) if key == "env" || key == "headers" => Value::Object(
                            inner.into_iter().map(|(name, _)| (name, PLACEHOLDER.into())).collect(),
                        ),
                        Value::String(_) if is_secret_name(&key) => PLACEHOLDER.into(),
                        other => hide(other, redactor),
                    };
                    (key, value)
                })
                .collect(),
        ),
        other => other,
    }
}
