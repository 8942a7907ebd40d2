//! Messages of a conversation, provider-neutral. Takes and gives the JSON shape that transcripts use. A block of an
//! unknown kind is kept unchanged, and sent back unchanged if it came from the model.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::CallId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, a tool's result, or a note from the runtime.
    User,
    Assistant,
}

/// One message: who, and what in which order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    /// The content, in order. Also read from the short form, a bare string.
    #[serde(rename = "content", deserialize_with = "blocks_or_text")]
    pub blocks: Vec<Block>,
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Text {
        text: String,
    },
    /// The model's reasoning; sent back exactly as it came, `extra` included.
    Thinking {
        thinking: String,
        /// The provider's seal over it, if it gave one.
        signature: Option<String>,
        /// Members we do not know, kept in order.
        extra: Map<String, Value>,
    },
    ToolUse {
        /// The call's id, unique in its conversation.
        id: CallId,
        name: String,
        /// Its input; always an object once it has been accepted.
        input: Value,
    },
    /// The answer to a tool call.
    ToolResult {
        id: CallId,
        /// What the model reads.
        content: ToolContent,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// An image, with its source object as providers take it.
    Image {
        /// `{"type":"base64","media_type":…,"data":…}` or a URL source.
        source: Value,
    },
    /// A document such as a PDF, with its source object.
    Document {
        source: Value,
    },
    /// A block of a kind we do not know, whole.
    Opaque(Value),
}

/// What a tool result holds: text, or several blocks (text and images).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ToolContent {
    Text(String),
    Blocks(Vec<Block>),
}

impl Message {
    /// A user message of one text block.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, blocks: vec![Block::text(text)] }
    }

    /// An assistant message of these blocks.
    pub fn assistant(blocks: Vec<Block>) -> Self {
        Self { role: Role::Assistant, blocks }
    }

    /// The ids of the tool calls in it, in asking order.
    pub fn calls(&self) -> impl Iterator<Item = (&CallId, &str, &Value)> {
        self.blocks.iter().filter_map(|block| match block {
            Block::ToolUse { id, name, input } => Some((id, name.as_str(), input)),
            _ => None,
        })
    }

    /// Its text blocks, joined by blank lines.
    pub fn text(&self) -> String {
        let mut all = String::new();
        for block in &self.blocks {
            if let Block::Text { text } = block {
                if !all.is_empty() {
                    all.push_str("\n\n");
                }
                all.push_str(text);
            }
        }
        all
    }
}

impl Block {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

impl ToolContent {
    /// The text in it; images are left out.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Blocks(blocks) => Message { role: Role::User, blocks: blocks.clone() }.text(),
        }
    }

    /// Whether there is nothing in it that a model could read.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Blocks(blocks) => blocks.is_empty(),
        }
    }
}

impl From<&str> for ToolContent {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for ToolContent {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The wire form of the kinds we know. `Opaque` holds every other kind.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Known {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        #[serde(flatten)]
        extra: Map<String, Value>,
    },
    ToolUse {
        id: CallId,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: CallId,
        #[serde(default = "no_content")]
        content: ToolContent,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    Image {
        source: Value,
    },
    Document {
        source: Value,
    },
}

/// The same, borrowed, so that writing a message copies nothing.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum KnownRef<'a> {
    Text {
        text: &'a str,
    },
    Thinking {
        thinking: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<&'a str>,
        #[serde(flatten)]
        extra: &'a Map<String, Value>,
    },
    ToolUse {
        id: &'a CallId,
        name: &'a str,
        input: &'a Value,
    },
    ToolResult {
        tool_use_id: &'a CallId,
        content: &'a ToolContent,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
    Image {
        source: &'a Value,
    },
    Document {
        source: &'a Value,
    },
}

fn no_content() -> ToolContent {
    ToolContent::Text(String::new())
}

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let known = match self {
            Self::Text { text } => KnownRef::Text { text },
            Self::Thinking { thinking, signature, extra } => {
                KnownRef::Thinking { thinking, signature: signature.as_deref(), extra }
            }
            Self::ToolUse { id, name, input } => KnownRef::ToolUse { id, name, input },
            Self::ToolResult { id, content, is_error } => {
                KnownRef::ToolResult { tool_use_id: id, content, is_error: *is_error }
            }
            Self::Image { source } => KnownRef::Image { source },
            Self::Document { source } => KnownRef::Document { source },
            Self::Opaque(value) => return value.serialize(serializer),
        };
        known.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self::from_value(value))
    }
}

impl Block {
    /// Reads a block; one that does not fit a known kind exactly becomes [`Block::Opaque`].
    pub fn from_value(value: Value) -> Self {
        if let Value::Object(members) = &value
            && let (Some(Value::String(kind)), Some(Value::String(_)), 2) =
                (members.get("type"), members.get("text"), members.len())
            && kind == "text"
            && let Value::Object(mut members) = value
        {
            // Most of a transcript is text: take the string, do not copy it.
            return match members.remove("text") {
                Some(Value::String(text)) => Self::Text { text },
                _ => Self::Text { text: String::new() },
            };
        }
        match Known::deserialize(&value) {
            Ok(Known::Text { text }) => Self::Text { text },
            Ok(Known::Thinking { thinking, signature, extra }) => {
                Self::Thinking { thinking, signature, extra }
            }
            Ok(Known::ToolUse { id, name, input }) => Self::ToolUse { id, name, input },
            Ok(Known::ToolResult { tool_use_id, content, is_error }) => {
                Self::ToolResult { id: tool_use_id, content, is_error }
            }
            Ok(Known::Image { source }) => Self::Image { source },
            Ok(Known::Document { source }) => Self::Document { source },
            Err(_) => Self::Opaque(value),
        }
    }
}

fn blocks_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Block>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Blocks(Vec<Block>),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::Text(text) => vec![Block::Text { text }],
        Either::Blocks(blocks) => blocks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn known_blocks_round_trip_and_unknown_ones_pass_through() {
        let blocks = json!([
            {"type":"text","text":"hi"},
            {"type":"thinking","thinking":"hm","signature":"s","later":{"z":1,"a":2}},
            {"type":"redacted_thinking","data":"xx"},
            {"type":"tool_use","id":"t1","name":"Bash","input":{"command":"ls"}},
            {"type":"tool_result","tool_use_id":"t1","content":"ok"},
            {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"x"}],"is_error":true},
            {"type":"server_tool_use","id":"s","name":"web_search","input":{}}
        ]);
        let message = json!({"role":"assistant","content":blocks});
        let parsed: Message = serde_json::from_value(message.clone()).unwrap();
        assert!(matches!(parsed.blocks[2], Block::Opaque(_)));
        assert_eq!(serde_json::to_value(&parsed).unwrap(), message);
        assert_eq!(serde_json::to_string(&parsed).unwrap(), message.to_string());
    }

    #[test]
    fn a_bare_string_is_one_text_block() {
        let parsed: Message = serde_json::from_str(r#"{"role":"user","content":"hi"}"#).unwrap();
        assert_eq!(parsed, Message::user("hi"));
    }
}
