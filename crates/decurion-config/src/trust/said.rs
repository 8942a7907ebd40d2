//! What a part says, for the person who is asked to trust it. Takes the part's value, gives lines of a name and
//! what is written there: nothing is left out but secrets, for what is not seen cannot be agreed to.

use serde_json::Value;

use super::PartKind;
use crate::mcp::Written;
use crate::redact::{PLACEHOLDER, Redactor};
use crate::shell_env::is_secret_name;

/// What a part of this kind and key says.
pub(crate) fn lines(kind: PartKind, key: &str, value: &Value) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    match (kind, value) {
        (PartKind::Server, Value::Object(_)) if key != DECLARED => Written::new(value).lines(),
        (PartKind::Server, _) if key == DECLARED => {
            servers(value, &mut lines);
            lines
        }
        // In a head they stand by their events; in settings each event is a part.
        (PartKind::Hook, Value::Object(events)) if key == HOOKS => {
            for (event, hooks) in events {
                lines.push(("at".to_owned(), event.clone()));
                leaves("hooks", hooks, &mut lines);
            }
            lines
        }
        _ => {
            // `permissions.allow[3]` is called `allow`: the place in the file is told besides.
            let name = key.rsplit('.').next().unwrap_or(key);
            leaves(name.split('[').next().unwrap_or(name), value, &mut lines);
            lines
        }
    }
}

/// The key of a definition under which hooks stand by their events.
const HOOKS: &str = "hooks";
/// The key of a definition under which servers stand by name, or lists of such.
const DECLARED: &str = "mcpServers";

fn servers(value: &Value, lines: &mut Vec<(String, String)>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| servers(item, lines)),
        Value::Object(named) => {
            for (name, declared) in named {
                lines.push(("server".to_owned(), name.clone()));
                lines.extend(Written::new(declared).lines());
            }
        }
        _ => {}
    }
}

/// Every text, number and answer in a value, each under the key it stands at.
fn leaves(key: &str, value: &Value, lines: &mut Vec<(String, String)>) {
    let plain = match value {
        Value::Object(members) => {
            let is_secret = key.eq_ignore_ascii_case("headers");
            for (name, inner) in members {
                if is_secret && !inner.is_object() {
                    lines.push((name.clone(), PLACEHOLDER.to_owned()));
                } else {
                    leaves(name, inner, lines);
                }
            }
            return;
        }
        Value::Array(items) => return items.iter().for_each(|item| leaves(key, item, lines)),
        Value::String(_) if is_secret_name(key) => PLACEHOLDER.to_owned(),
        Value::String(text) => Redactor::new([], true).redact(text).into_owned(),
        other => other.to_string(),
    };
    lines.push((key.to_owned(), plain));
}
