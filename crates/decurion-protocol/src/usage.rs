//! Tokens and money. Takes what a provider reports, gives sums that are exact.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Tokens of one response by cache class, as the provider reported them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens read at full price.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Input tokens put into the provider's cache.
    pub cache_creation_input_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read_input_tokens: u64,
    /// What the provider said besides (service tier, cache classes, server tools), kept in its shape.
    #[serde(flatten, skip_serializing_if = "serde_json::Map::is_empty")]
    pub other: serde_json::Map<String, Value>,
}

impl Usage {
    /// The member that says that it is not a provider's count. No provider sets it.
    pub const ESTIMATED: &str = "estimated";

    /// The size of the context after this response: everything read and written.
    pub fn context_tokens(&self) -> u64 {
        self.input_tokens
            + self.cache_creation_input_tokens
            + self.cache_read_input_tokens
            + self.output_tokens
    }

    pub fn read_tokens(&self) -> u64 {
        self.context_tokens() - self.output_tokens
    }

    /// Whether the provider did not say it, so that it is what the response used at most.
    pub fn is_estimated(&self) -> bool {
        self.other.get(Self::ESTIMATED) == Some(&Value::Bool(true))
    }

    /// Marks it as what the response used at most, because the provider did not say it.
    pub fn mark_estimated(&mut self) {
        self.other.insert(Self::ESTIMATED.to_owned(), Value::Bool(true));
    }

    /// All that the ecosystem has in a usage; null what the provider does not give.
    pub fn whole(&self) -> Value {
        let mut value = serde_json::json!(self);
        if let Value::Object(members) = &mut value {
            for name in ["server_tool_use", "service_tier", "cache_creation"] {
                members.entry(name).or_insert(Value::Null);
            }
        }
        value
    }

    /// Adds the counts; what the provider said besides is that of the later one.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.cache_creation_input_tokens += other.cache_creation_input_tokens;
        self.cache_read_input_tokens += other.cache_read_input_tokens;
        if !other.other.is_empty() {
            self.other.clone_from(&other.other);
        }
    }
}

/// An amount of money in nano-dollars, so that sums of tiny prices are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(pub u64);

impl Money {
    /// From dollars, rounded to the nano-dollar; negative or absurd values become the nearest bound.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn from_dollars(dollars: f64) -> Self {
        Self((dollars * 1e9).round() as u64)
    }

    /// In dollars, for display and for fields whose shape is a number.
    #[allow(clippy::cast_precision_loss)]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The sum, stopping at the largest amount.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
