//! Which recorded blocks a provider accepts. Takes a block as a transcript has it, which a person or another program may
//! have edited, and gives it as it can be sent: one malformed block would make every later request invalid.

use std::collections::HashSet;

use decurion_protocol::{Block, CallId, Role, ToolContent};
use serde_json::{Value, json};

use crate::Dialect;

/// What the model reads in the place of a part that cannot be read.
const UNREADABLE: &str = "[A part of this message cannot be read and was left out.]";
/// The same for an image or document.
const UNREADABLE_MEDIA: &str = "[An image or document was left out: it cannot be sent in this place.]";
/// What stands for the name of a call that has none.
const NO_NAME: &str = "unknown";
/// The longest id of a call.
const LONGEST_ID: usize = 256;

/// An id of a call with something behind it, no longer than providers accept.
pub fn id_with(id: &str, suffix: &str) -> String {
    format!("{}{suffix}", &id[..id.floor_char_boundary(LONGEST_ID.saturating_sub(suffix.len()))])
}

const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// How a block can be sent.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckedBlock {
    Same,
    /// In this form, because the dialect has no place for a part of it. This is no damage.
    Adapted(Block),
    /// In this form, because it is damaged.
    Replaced(Block),
    /// Not at all, because the dialect has no place for it. This is no damage.
    Unsent,
    /// Not at all, because it is damaged or in the wrong place.
    Damaged,
}

impl Dialect {
    /// How a block of a message of this role can be sent. What the model said itself is sent back unchanged, also of a
    /// kind that is not known here.
    pub fn check_block(self, role: Role, block: &Block) -> CheckedBlock {
        match (block, role) {
            (Block::Text { .. }, _) => CheckedBlock::Same,
            (Block::Thinking { signature, .. }, Role::Assistant) => match self {
                Self::Anthropic if signature.as_deref().is_some_and(|seal| !seal.trim().is_empty()) => {
                    CheckedBlock::Same
                }
                Self::Anthropic | Self::OpenAiChat => CheckedBlock::Unsent,
            },
            (Block::ToolUse { id, name, input }, Role::Assistant) => self.check_call(id, name, input),
            (Block::ToolResult { id, content, is_error }, Role::User) => {
                self.check_result(id, content, *is_error)
            }
            (Block::Image { .. } | Block::Document { .. }, Role::User) => self.check_media(block),
            (Block::Opaque(value), Role::Assistant) => self.check_said(value),
            (Block::Opaque(value), Role::User) => self.check_given(value),
            (Block::Thinking { .. } | Block::ToolUse { .. }, Role::User)
            | (Block::ToolResult { .. } | Block::Image { .. } | Block::Document { .. }, Role::Assistant) => {
                CheckedBlock::Damaged
            }
        }
    }

    /// The id of a call as it stands in a request.
    pub fn call_id(self, id: &CallId) -> CallId {
        match self {
            Self::Anthropic => CallId(crate::anthropic::id_in_alphabet(id.as_str())),
            Self::OpenAiChat => id.clone(),
        }
    }

    fn check_call(self, id: &CallId, name: &str, input: &Value) -> CheckedBlock {
        if id.as_str().is_empty() || id.as_str().len() > LONGEST_ID {
            return CheckedBlock::Damaged;
        }
        let (sent, id) = (self.call_name(name), id.clone());
        match (sent == name, input.is_object()) {
            (true, true) => CheckedBlock::Same,
            (false, true) if !name.is_empty() => {
                CheckedBlock::Adapted(Block::ToolUse { id, name: sent, input: input.clone() })
            }
            (_, true) => CheckedBlock::Replaced(Block::ToolUse { id, name: sent, input: input.clone() }),
            (_, false) => {
                let input = json!({"unreadable": input});
                CheckedBlock::Replaced(Block::ToolUse { id, name: sent, input })
            }
        }
    }

    /// The name of a tool that was called, in the alphabet and length that the provider accepts.
    fn call_name(self, name: &str) -> String {
        let (longest, is_accepted): (usize, fn(char) -> bool) = match self {
            Self::Anthropic => (200, |_| true),
            Self::OpenAiChat => (64, |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')),
        };
        let whole = name.chars().map(|c| if is_accepted(c) { c } else { '_' });
        let mut left = longest;
        let sent: String = whole
            .take_while(|c| {
                let fits = c.len_utf8() <= left;
                left = left.saturating_sub(c.len_utf8());
                fits
            })
            .collect();
        if sent.trim().is_empty() { NO_NAME.to_owned() } else { sent }
    }

    fn check_result(self, id: &CallId, content: &ToolContent, is_error: bool) -> CheckedBlock {
        let ToolContent::Blocks(blocks) = content else { return CheckedBlock::Same };
        let parts: Vec<CheckedBlock> = blocks.iter().map(|part| self.check_part(part, is_error)).collect();
        if parts.iter().all(|part| *part == CheckedBlock::Same) {
            return CheckedBlock::Same;
        }
        let is_damaged = parts.iter().any(|part| matches!(part, CheckedBlock::Replaced(_)));
        let parts = parts.into_iter().zip(blocks).map(|(part, block)| match part {
            CheckedBlock::Adapted(part) | CheckedBlock::Replaced(part) => part,
            CheckedBlock::Same | CheckedBlock::Unsent | CheckedBlock::Damaged => block.clone(),
        });
        let content = ToolContent::Blocks(parts.collect());
        let result = Block::ToolResult { id: id.clone(), content, is_error };
        if is_damaged { CheckedBlock::Replaced(result) } else { CheckedBlock::Adapted(result) }
    }

    /// How a part of a result can be sent: as it is, or something in its place.
    fn check_part(self, part: &Block, is_error: bool) -> CheckedBlock {
        let unreadable = || Block::text(UNREADABLE);
        match part {
            Block::Text { .. } => CheckedBlock::Same,
            // Providers take the result of a failed call in words alone.
            Block::Image { .. } | Block::Document { .. } if is_error => {
                CheckedBlock::Adapted(Block::text(UNREADABLE_MEDIA))
            }
            Block::Image { .. } | Block::Document { .. } => self.check_media(part),
            Block::Opaque(value) if !is_error && is_search_result(value) => CheckedBlock::Same,
            Block::Opaque(value) => CheckedBlock::Replaced(words_of(value).unwrap_or_else(unreadable)),
            Block::Thinking { .. } | Block::ToolUse { .. } | Block::ToolResult { .. } => {
                CheckedBlock::Replaced(unreadable())
            }
        }
    }

    fn check_media(self, block: &Block) -> CheckedBlock {
        let is_good = match (self, block) {
            (_, Block::Image { source }) if is_base64(source, &IMAGES) => true,
            (Self::Anthropic, Block::Image { source }) => is_stored_elsewhere(source),
            (Self::OpenAiChat, Block::Image { source }) => {
                let url = text(source, "url").unwrap_or_default();
                kind(source) == Some("url") && (url.starts_with("https://") || url.starts_with("http://"))
            }
            // A remark is sent for each of them.
            (Self::OpenAiChat, _) => true,
            (Self::Anthropic, Block::Document { source }) => is_document(source),
            (Self::Anthropic, _) => false,
        };
        let remark = Block::text(UNREADABLE_MEDIA);
        match block {
            _ if is_good => CheckedBlock::Same,
            // Of a type that this provider does not take.
            Block::Image { source } | Block::Document { source }
                if says(source, "url") || says(source, "media_type") && says(source, "data") =>
            {
                CheckedBlock::Adapted(remark)
            }
            _ => CheckedBlock::Replaced(remark),
        }
    }

    /// A block of the model's that is not one of the known kinds: either of a kind that only its provider knows, which
    /// wants it back unchanged, or damaged.
    fn check_said(self, value: &Value) -> CheckedBlock {
        let Some(kind) = kind(value) else {
            return words_of(value).map_or(CheckedBlock::Damaged, CheckedBlock::Replaced);
        };
        let is_sound = match kind {
            "tool_use" => return self.repair_call(value),
            "" | "text" | "thinking" | "tool_result" | "image" | "document" => false,
            "redacted_thinking" => says(value, "data"),
            _ if is_server_use(value) => {
                let is_id = text(value, "id").is_some_and(|id| crate::anthropic::id_in_alphabet(id) == id);
                is_id && says(value, "name") && value.get("input").is_some_and(Value::is_object)
            }
            kind if kind.ends_with("_tool_result") => {
                let content = value.get("content");
                says(value, "tool_use_id")
                    && content.is_some_and(|content| {
                        content.is_string() || content.is_array() || content.is_object()
                    })
            }
            _ => true,
        };
        match (is_sound, self) {
            (false, _) => CheckedBlock::Damaged,
            (true, Self::Anthropic) => CheckedBlock::Same,
            (true, Self::OpenAiChat) => CheckedBlock::Unsent,
        }
    }

    /// A damaged call. With its id it keeps its place, and so does its result.
    fn repair_call(self, value: &Value) -> CheckedBlock {
        let Some(id) = text(value, "id") else { return CheckedBlock::Damaged };
        let (id, name) = (CallId(id.to_owned()), text(value, "name").unwrap_or_default());
        let input = value.get("input").cloned().unwrap_or_else(|| json!({}));
        match self.check_call(&id, name, &input) {
            CheckedBlock::Adapted(call) => CheckedBlock::Replaced(call),
            CheckedBlock::Same => CheckedBlock::Replaced(Block::ToolUse { id, name: name.to_owned(), input }),
            checked => checked,
        }
    }

    /// A damaged result. With the id of its call it keeps its place.
    fn repair_result(self, value: &Value) -> CheckedBlock {
        let Some(id) = text(value, "tool_use_id") else { return CheckedBlock::Damaged };
        let content = value.get("content").unwrap_or(&Value::Null);
        let content =
            serde_json::from_value(content.clone()).unwrap_or_else(|_| ToolContent::from(UNREADABLE));
        let (id, is_error) = (CallId(id.to_owned()), value.get("is_error") == Some(&Value::Bool(true)));
        match self.check_result(&id, &content, is_error) {
            CheckedBlock::Same => CheckedBlock::Replaced(Block::ToolResult { id, content, is_error }),
            CheckedBlock::Adapted(result) => CheckedBlock::Replaced(result),
            checked => checked,
        }
    }

    /// A block of a user's message that is none of the known kinds as they should be: nothing but known kinds is sent. Words in it stay.
    fn check_given(self, value: &Value) -> CheckedBlock {
        let is_sound = match kind(value) {
            Some("search_result") => is_search_result(value),
            Some("container_upload") => says(value, "file_id"),
            Some("tool_result") => return self.repair_result(value),
            _ => false,
        };
        match (is_sound, self) {
            (true, Self::Anthropic) => CheckedBlock::Same,
            (true, Self::OpenAiChat) => CheckedBlock::Unsent,
            (false, _) => CheckedBlock::Replaced(words_of(value).unwrap_or_else(|| Block::text(UNREADABLE))),
        }
    }
}

/// Removes from the model's message the halves of the provider's own calls: results whose call is neither here nor
/// known from before, and, if the message is damaged, calls without a result. Gives how many it removed.
pub fn drop_unpaired(blocks: &mut Vec<Block>, is_known: impl Fn(&CallId) -> bool, is_damaged: bool) -> u64 {
    let before = blocks.len();
    let here: HashSet<CallId> = blocks.iter().filter_map(provider_call).collect();
    blocks.retain(|block| provider_result(block).is_none_or(|call| here.contains(&call) || is_known(&call)));
    if is_damaged {
        let answered: HashSet<CallId> = blocks.iter().filter_map(provider_result).collect();
        let is_call = |block: &Block| matches!(block, Block::Opaque(value) if is_server_use(value));
        blocks.retain(|block| {
            !is_call(block) || provider_call(block).is_some_and(|call| answered.contains(&call))
        });
    }
    (before - blocks.len()) as u64
}

/// The id of a block that only the provider knows, to which one of its results may refer.
pub fn provider_call(block: &Block) -> Option<CallId> {
    let Block::Opaque(value) = block else { return None };
    text(value, "id").map(|id| CallId(id.to_owned()))
}

/// The id of the call that a result of the provider's own answers.
fn provider_result(block: &Block) -> Option<CallId> {
    let Block::Opaque(value) = block else { return None };
    let is_result = kind(value).is_some_and(|kind| kind.ends_with("_tool_result"));
    is_result.then(|| text(value, "tool_use_id")).flatten().map(|id| CallId(id.to_owned()))
}

fn is_server_use(value: &Value) -> bool {
    matches!(kind(value), Some("server_tool_use" | "mcp_tool_use"))
}

/// Whether a block is reasoning, shown or not.
pub fn is_reasoning(block: &Block) -> bool {
    match block {
        Block::Thinking { .. } => true,
        Block::Opaque(value) => kind(value) == Some("redacted_thinking"),
        _ => false,
    }
}

/// The words of a damaged block, if it has any.
fn words_of(value: &Value) -> Option<Block> {
    let words = value.as_str().or_else(|| text(value, "text"))?;
    (!words.trim().is_empty()).then(|| Block::text(words))
}

fn kind(value: &Value) -> Option<&str> {
    text(value, "type")
}

/// Whether a member is a text with something in it.
fn says(value: &Value, name: &str) -> bool {
    text(value, name).is_some_and(|text| !text.trim().is_empty())
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn is_search_result(value: &Value) -> bool {
    kind(value) == Some("search_result")
        && ["source", "title"].iter().all(|name| says(value, name))
        && value
            .get("content")
            .and_then(Value::as_array)
            .is_some_and(|parts| parts.iter().all(|part| kind(part) == Some("text") && says(part, "text")))
}

fn is_document(source: &Value) -> bool {
    match kind(source) {
        Some("text") => says(source, "data"),
        Some("content") => {
            source.get("content").is_some_and(|content| content.is_string() || content.is_array())
        }
        _ => is_base64(source, &["application/pdf"]) || is_stored_elsewhere(source),
    }
}

fn is_stored_elsewhere(source: &Value) -> bool {
    match kind(source) {
        Some("url") => text(source, "url").is_some_and(|url| url.starts_with("https://")),
        Some("file") => says(source, "file_id"),
        _ => false,
    }
}

fn is_base64(source: &Value, types: &[&str]) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let is_good = |data: &str| {
        let digits = data.trim_end_matches('=');
        let padding = data.len() - digits.len();
        !digits.is_empty() && padding <= 2 && data.len().is_multiple_of(4) && digits.bytes().all(is_digit)
    };
    kind(source) == Some("base64")
        && text(source, "media_type").is_some_and(|media| types.contains(&media))
        && text(source, "data").is_some_and(is_good)
}
