//! What a provider would say to a request. Takes the request's headers and body, gives nothing back if it
//! is good and the provider's own error (status, type, message) if it is not.
//!
//! The checks lean to the strict side (roles alternate, unknown members are refused), but they are not a
//! provider: left alone are models that take no prefilled reply, and calls in a request that offers no tools.
//! The messages are worded like the providers' for clients that read them; the wording is not a promise.

use std::collections::{HashMap, HashSet};

pub use hyper::HeaderMap;
use serde_json::{Map, Value, json};

mod anthropic;
mod openai;

/// A refusal, as a provider would give it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {kind}: {message}")]
pub struct ApiError {
    pub status: u16,
    /// The provider's word for the kind of error, e.g. `invalid_request_error`.
    pub kind: &'static str,
    /// What is wrong, and where.
    pub message: String,
}

impl ApiError {
    /// A request that is wrong in itself.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { status: 400, kind: "invalid_request_error", message: message.into() }
    }

    pub(crate) fn unauthorized(message: &str) -> Self {
        Self { status: 401, kind: "authentication_error", message: message.into() }
    }

    /// The body of the response in the Anthropic dialect.
    pub fn anthropic_body(&self, request_id: &str) -> Value {
        json!({
            "type": "error",
            "error": {"type": self.kind, "message": self.message},
            "request_id": request_id,
        })
    }

    /// The body of the response in the Chat Completions dialect.
    pub fn openai_body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": null, "code": null}})
    }
}

/// Checks a request of the Anthropic dialect that continues nothing this server has said before.
pub fn check_anthropic(headers: &HeaderMap, body: &Value) -> Result<(), ApiError> {
    anthropic::check(headers, body, &Said::default())
}

/// Checks a request of the Chat Completions dialect.
pub fn check_openai(headers: &HeaderMap, body: &Value) -> Result<(), ApiError> {
    openai::check(headers, body)
}

/// Checks requests and remembers what the server has said, so that reasoning which comes back changed, or
/// not at all, is noticed.
#[derive(Debug, Default)]
pub struct Validator {
    said: Said,
}

/// What the server has said and wants back unchanged.
#[derive(Debug, Default)]
struct Said {
    /// Reasoning blocks by their seal (the signature, or the data of a redacted one).
    thinking: HashMap<String, Value>,
    /// For each call, the seals of the reasoning in the same reply.
    before_call: HashMap<String, Vec<String>>,
    /// Every kind of block that was sent, because a client may send it back.
    kinds: HashSet<String>,
}

impl Validator {
    /// A validator that has said nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks a request of the Anthropic dialect.
    pub fn check_anthropic(&self, headers: &HeaderMap, body: &Value) -> Result<(), ApiError> {
        anthropic::check(headers, body, &self.said)
    }

    /// Checks a request of the Chat Completions dialect, which carries no reasoning back.
    pub fn check_openai(&self, headers: &HeaderMap, body: &Value) -> Result<(), ApiError> {
        openai::check(headers, body)
    }

    /// Remembers a whole reply: the blocks of one assistant message, in order.
    pub fn remember(&mut self, blocks: &[Value]) {
        let mut seals = Vec::new();
        for block in blocks {
            let Some(kind) = text(block, "type") else { continue };
            self.said.kinds.insert(kind.to_owned());
            if let Some(seal) = seal(block) {
                self.said.thinking.insert(seal.to_owned(), block.clone());
                seals.push(seal.to_owned());
            }
        }
        for block in blocks {
            if text(block, "type") == Some("tool_use")
                && let Some(id) = text(block, "id")
            {
                self.said.before_call.insert(id.to_owned(), seals.clone());
            }
        }
    }

    /// Remembers a reply from the bytes of its Anthropic event stream. What cannot be read (a reply that
    /// is broken on purpose) is left out.
    pub fn remember_stream(&mut self, stream: &[u8]) {
        let mut blocks: Vec<Value> = Vec::new();
        for line in String::from_utf8_lossy(stream).lines() {
            let Some(data) = line.strip_prefix("data:") else { continue };
            let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
            gather(&mut blocks, &event);
        }
        self.remember(&blocks);
    }
}

/// Adds one stream event to the blocks seen so far.
fn gather(blocks: &mut Vec<Value>, event: &Value) {
    match text(event, "type") {
        Some("content_block_start") => blocks.push(event["content_block"].clone()),
        Some("content_block_delta") => {
            let delta = &event["delta"];
            let (member, more) = match text(delta, "type") {
                Some("thinking_delta") => ("thinking", text(delta, "thinking")),
                Some("signature_delta") => ("signature", text(delta, "signature")),
                _ => return,
            };
            if let (Some(Value::Object(block)), Some(more)) = (blocks.last_mut(), more) {
                let so_far = block.get(member).and_then(Value::as_str).unwrap_or_default();
                let whole = format!("{so_far}{more}");
                block.insert(member.to_owned(), Value::String(whole));
            }
        }
        _ => {}
    }
}

/// What a reasoning block is known by.
fn seal(block: &Value) -> Option<&str> {
    match text(block, "type")? {
        "thinking" => text(block, "signature"),
        "redacted_thinking" => text(block, "data"),
        _ => None,
    }
    .filter(|seal| !seal.is_empty())
}

fn text<'a>(value: &'a Value, member: &str) -> Option<&'a str> {
    value.get(member).and_then(Value::as_str)
}

/// Whether a header lists this word, in part.
fn header_has(headers: &HeaderMap, name: &str, part: &str) -> bool {
    headers.get_all(name).iter().any(|value| value.to_str().is_ok_and(|value| value.contains(part)))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty())
}

/// The first member that is not among the known ones.
fn unknown_member<'a>(object: &'a Map<String, Value>, known: &[&str]) -> Option<&'a str> {
    object.keys().map(String::as_str).find(|key| !known.contains(key))
}

/// Letters, digits, `_` and `-`, from one to `most` of them.
fn is_name(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Standard base64 with padding.
fn is_base64(data: &str) -> bool {
    let bare = data.trim_end_matches('=');
    !bare.is_empty()
        && data.len().is_multiple_of(4)
        && data.len() - bare.len() <= 2
        && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}

const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];
