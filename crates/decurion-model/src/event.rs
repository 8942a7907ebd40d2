//! What a provider gives back, in our words: the whole output of [`crate::ModelProvider::stream`].

use std::time::Duration;

use decurion_protocol::{Block, Delta, Usage};

/// One piece of a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    /// The provider took the request; nothing of the reply is known yet. The gateway keeps this to itself.
    Accepted(Accepted),
    /// Something came that is no part of the reply: a keep-alive, or part of what is still to come.
    Alive,
    /// Part of the reply, to show while it comes. Void if the reply is not completed.
    Delta(Delta),
    /// A block is whole. A call whose input was not a JSON object arrives with the input
    /// `{"__unparsedToolInput":{"raw":…,"len":N}}` (see [`unparsed_input`]) and must not be executed.
    Block {
        /// Its place in the message.
        index: u32,
        block: Block,
    },
    /// The reply is whole. Always the last event.
    Completed(ReplyInfo),
}

/// What the provider said about a reply as a whole. Its blocks came before, as [`ModelEvent::Block`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplyInfo {
    /// The provider's id of the message.
    pub message_id: String,
    /// The model that answered, by its own word.
    pub model: String,
    /// The provider's id of the request, if it gave one.
    pub request_id: Option<String>,
    /// Why the model stopped, in Anthropic's words (`end_turn`, `tool_use`, `max_tokens`, `refusal` …);
    /// one we do not know is passed as it came.
    pub stop_reason: Option<String>,
    pub usage: Usage,
}

/// What the head of a successful response said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Accepted {
    /// The provider's id of the request, if it gave one.
    pub request_id: Option<String>,
    /// What it said about its limits.
    pub limits: RateLimits,
}

/// What a response's headers said about how much more may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests left before the provider refuses, the smallest of the kinds it counts.
    pub remaining: Option<u64>,
    /// When that number is full again, counted from the response.
    pub reset: Option<Duration>,
}

/// The member under which input that is not a JSON object is kept.
pub const UNPARSED_INPUT: &str = "__unparsedToolInput";

/// The raw text of a call's input, if that was not a JSON object.
pub fn unparsed_input(input: &serde_json::Value) -> Option<&str> {
    input.get(UNPARSED_INPUT)?.get("raw")?.as_str()
}
