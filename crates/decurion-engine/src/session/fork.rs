//! A copy of an agent's conversation with a task of its own. Takes the parent's side, gives what the fork
//! begins with and how much of its first request the provider has seen before, byte for byte.

use std::fmt;

use decurion_model::WireHead;
use decurion_protocol::{AgentDefinition, AgentSource, CallId, Message, Mode, ToolOutput, ToolSelection};
use serde_json::json;

use crate::context::Prefix;
use crate::session::run_task::Entry;

pub use crate::child::FORK as NAME;

const ENTERED: &str = "You are now the agent that this call started. Everything above is your parent's \
    conversation, for context only: it may show tools that you do not have and work that is not yours. Do only \
    the task that follows, then give one report with what you found or did. Do not start agents of your own \
    and do not address the user.";

/// The definition of a fork, where the settings have none of their own.
pub fn definition() -> AgentDefinition {
    AgentDefinition {
        name: NAME.to_owned(),
        description: "A copy of the agent that starts it".to_owned(),
        tools: ToolSelection { only: Some(vec!["*".to_owned()]), except: Vec::new() },
        mode: Some(Mode::Bubble),
        source: AgentSource::Builtin,
        fork_context: true,
        hidden: true,
        ..AgentDefinition::default()
    }
}

/// How a fork enters: its own call of the delegating message, answered.
pub fn entry(delegating: Message, call: CallId, description: &str) -> Entry {
    let structured = json!({"status": "sub_agent_entered", "description": description, "message": ENTERED});
    Entry { delegating, call, output: ToolOutput::text(ENTERED).with_structured(structured) }
}

/// Bytes of a fork's first request that its parent's last one had too, and about how many it has in all.
pub fn share(head: &WireHead, prefix: &Prefix, directive: &str) -> (u64, u64) {
    let shared = head.prefix.len() as u64 + prefix.bytes();
    (shared, shared + (ENTERED.len() + directive.len() + head.suffix.len()) as u64)
}

/// How two requests begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Bytes from the start that are the same.
    pub shared: usize,
    /// Bytes of the second request.
    pub total: usize,
    /// Where they part: a path into the request, where it can be told.
    pub parts_at: Option<String>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes are the same", self.shared, self.total)?;
        match &self.parts_at {
            Some(place) => write!(f, "; they part at {place}"),
            None => Ok(()),
        }
    }
}

/// Compares two requests as bytes, with the moving `cache_control` left out of both.
pub fn compare(parent: &[u8], child: &[u8]) -> Identity {
    let (parent, child) = (without_marks(parent), without_marks(child));
    let shared = parent.iter().zip(&child).take_while(|(one, other)| one == other).count();
    Identity { shared, total: child.len(), parts_at: place(&child, shared) }
}

/// Requests without the mark that says up to where the provider should cache messages: it moves with each.
fn without_marks(body: &[u8]) -> Vec<u8> {
    const MARK: &[u8] = br#","cache_control":{"type":"ephemeral"}"#;
    let messages = memchr::memmem::find(body, br#""messages":["#).unwrap_or(0);
    let (head, rest) = body.split_at(messages);
    let mut clean = head.to_vec();
    let mut from = 0;
    for at in memchr::memmem::find_iter(rest, MARK) {
        clean.extend_from_slice(&rest[from..at]);
        from = at + MARK.len();
    }
    clean.extend_from_slice(&rest[from..]);
    clean
}

/// The path to a byte of a JSON text: `tools[3].description`.
fn place(body: &[u8], at: usize) -> Option<String> {
    let mut path: Vec<Step> = Vec::new();
    let mut key = String::new();
    let mut text: Option<String> = None;
    let mut escaped = false;
    for byte in body.get(..at)? {
        if let Some(open) = &mut text {
            match (escaped, byte) {
                (true, _) => escaped = false,
                (false, b'\\') => escaped = true,
                (false, b'"') => key = std::mem::take(open),
                (false, other) => open.push(char::from(*other)),
            }
            if !escaped && *byte == b'"' {
                text = None;
            }
            continue;
        }
        match byte {
            b'"' => text = Some(String::new()),
            b'{' => path.push(Step::Member(String::new())),
            b'[' => path.push(Step::Item(0)),
            b'}' | b']' => drop(path.pop()),
            b':' => {
                if let Some(Step::Member(name)) = path.last_mut() {
                    *name = std::mem::take(&mut key);
                }
            }
            b',' => {
                if let Some(Step::Item(index)) = path.last_mut() {
                    *index += 1;
                }
            }
            _ => {}
        }
    }
    let mut written = String::new();
    for step in path {
        match step {
            Step::Member(name) if written.is_empty() => written = name,
            Step::Member(name) => written = format!("{written}.{name}"),
            Step::Item(index) => written = format!("{written}[{index}]"),
        }
    }
    Some(format!("{written} (byte {at})"))
}

enum Step {
    Member(String),
    Item(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_reported_with_its_place() {
        let one = br#"{"model":"m","tools":[{"name":"A","description":"x, \"y\": z"},{"name":"B","description":"looks"}],"messages":[{"content":"hi","cache_control":{"type":"ephemeral"}}]}"#;
        let text = String::from_utf8_lossy(one).replace("looks", "lurks");
        let identity = compare(one, text.as_bytes());
        assert_eq!(identity.parts_at.as_deref(), Some("tools[1].description (byte 91)"));
        let marked = String::from_utf8_lossy(one).replace(r#","cache_control":{"type":"ephemeral"}"#, "");
        let same = compare(one, marked.as_bytes());
        assert_eq!(same.shared, same.total, "the mark does not count");
    }
}
