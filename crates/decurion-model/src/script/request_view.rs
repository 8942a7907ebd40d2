//! What a script may look at. Takes a request of either dialect, gives the few texts and numbers in it
//! that rules can ask for; the same for the built-in player and the loopback server.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ModelRequest;

/// What a request holds, as far as a script can ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestView {
    /// `main`, or the agent's type.
    pub agent: String,
    /// The way from the root.
    pub path: String,
    /// The model asked for.
    pub model: String,
    /// 1 + the number of assistant messages in the request; so a request sent again is the same turn.
    pub turn: u32,
    /// How often this same request has come, from 1. The player counts.
    pub attempt: u32,
    /// How long the player has been running.
    pub elapsed: Duration,
    /// The text of the first user message.
    pub first_text: String,
    /// Everything after the last assistant message: results and text, in order, one per line.
    pub last_message: String,
    /// The text of that without tool results.
    pub last_text: String,
    /// The tool results of that.
    pub last_result: String,
    /// The length of the request.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct RequestBodyView<'a> {
    #[serde(default)]
    model: String,
    #[serde(borrow, default)]
    messages: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct RoleOnly {
    role: String,
}

#[derive(Deserialize)]
struct WholeMessage {
    role: String,
    #[serde(default)]
    content: Value,
}

impl RequestView {
    /// Reads the body of a request; who asks is in its headers `x-decurion-agent` (the path) and
    /// `x-decurion-agent-type`.
    pub fn from_body(agent: &str, path: &str, body: &[u8]) -> Result<Self, serde_json::Error> {
        let parsed: RequestBodyView<'_> = serde_json::from_slice(body)?;
        let mut seen = Self::of(agent, path, &parsed.model, body.len() as u64);
        for message in &parsed.messages {
            seen.add(message.get().as_bytes())?;
        }
        Ok(seen)
    }

    /// Reads a request before it is sent, without joining it.
    pub fn from_request(request: &ModelRequest) -> Result<Self, serde_json::Error> {
        let mut seen = Self::of(&request.tag.agent, &request.tag.path, &request.head.model, request.len());
        for message in request.messages.iter() {
            let list = [b"[".as_slice(), &message.bytes, b"]"].concat();
            let parts: Vec<&RawValue> = serde_json::from_slice(&list)?;
            for part in parts {
                seen.add(part.get().as_bytes())?;
            }
        }
        Ok(seen)
    }

    /// A name for the request that is the same each time it is sent, and differs from turn to turn.
    pub fn seed(&self) -> u128 {
        let mut hash = Fnv::default();
        for text in [&self.path, &self.agent, &self.first_text, &self.last_message] {
            hash.add(text.as_bytes());
            hash.add(&[0]);
        }
        hash.add(&self.turn.to_le_bytes());
        hash.0
    }

    fn of(agent: &str, path: &str, model: &str, bytes: u64) -> Self {
        Self {
            agent: agent.to_owned(),
            path: path.to_owned(),
            model: model.to_owned(),
            turn: 1,
            attempt: 1,
            bytes,
            ..Self::default()
        }
    }

    fn add(&mut self, message: &[u8]) -> Result<(), serde_json::Error> {
        // Nothing an assistant said is looked at, so its content is skipped rather than read.
        if serde_json::from_slice::<RoleOnly>(message)?.role == "assistant" {
            self.turn += 1;
            self.last_message.clear();
            self.last_text.clear();
            self.last_result.clear();
            return Ok(());
        }
        let message: WholeMessage = serde_json::from_slice(message)?;
        match message.role.as_str() {
            "user" => {
                let is_first = self.turn == 1 && self.first_text.is_empty();
                self.add_user(&message.content);
                if is_first {
                    self.first_text.clone_from(&self.last_text);
                }
            }
            "tool" => self.add_result(&text_of(&message.content)),
            _ => {}
        }
        Ok(())
    }

    fn add_user(&mut self, content: &Value) {
        if let Value::String(text) = content {
            return self.add_text(text);
        }
        for block in content.as_array().into_iter().flatten() {
            match block.get("type").and_then(Value::as_str) {
                Some("text") => self.add_text(block.get("text").and_then(Value::as_str).unwrap_or_default()),
                Some("tool_result") => {
                    self.add_result(&text_of(block.get("content").unwrap_or(&Value::Null)));
                }
                _ => {}
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        push_line(&mut self.last_text, text);
        push_line(&mut self.last_message, text);
    }

    fn add_result(&mut self, text: &str) {
        push_line(&mut self.last_result, text);
        push_line(&mut self.last_message, text);
    }
}

fn push_line(all: &mut String, text: &str) {
    if !all.is_empty() {
        all.push('\n');
    }
    all.push_str(text);
}

/// The text of a content that is a string or a list of blocks.
fn text_of(content: &Value) -> String {
    if let Value::String(text) = content {
        return text.clone();
    }
    let mut all = String::new();
    for block in content.as_array().into_iter().flatten() {
        if let Some(text) = block.get("text").and_then(Value::as_str) {
            push_line(&mut all, text);
        }
    }
    all
}

/// FNV-1a in 128 bits: small, and the same on every machine and in every version.
pub(super) struct Fnv(pub u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u128::from(*byte);
            self.0 = self.0.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}
