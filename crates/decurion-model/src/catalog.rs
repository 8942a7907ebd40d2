//! What is known about models: takes a name, gives its window, output limit and price, resolves aliases and prices a
//! reply's usage. Built-in knowledge is a table; users add to it as data. An unknown model gets cautious numbers and no
//! price.

use decurion_protocol::{Money, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Dialect;

/// What is known, the user's additions first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    models: Vec<ModelInfo>,
    aliases: Vec<Alias>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name, without a date.
    pub name: String,
    /// How many tokens fit, what it reads and writes together.
    pub window: u64,
    /// How many tokens it can write.
    pub max_output: u64,
    /// What it costs; none is unknown, and then costs count as nothing and must be shown as unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// Prices in nano-dollars per token: a dollar per million tokens is 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Read at full price.
    pub input: u64,
    pub output: u64,
    /// Read from the cache.
    #[serde(default)]
    pub cache_read: u64,
    /// Written to the cache for some minutes.
    #[serde(default)]
    pub cache_write: u64,
    /// Written to the cache for an hour.
    #[serde(default)]
    pub cache_write_hour: u64,
}

/// A short name for a model at one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// The provider's name in the settings.
    pub provider: String,
    pub alias: String,
    pub model: String,
}

impl Catalog {
    /// What Decurion knows by itself.
    pub fn builtin() -> Self {
        Self::default()
    }

    /// Adds models and aliases, which win over those known before.
    pub fn extend(&mut self, models: Vec<ModelInfo>, aliases: Vec<Alias>) {
        self.models.splice(0..0, models);
        self.aliases.splice(0..0, aliases);
    }

    /// What is known of a model; cautious numbers without a price if nothing is.
    pub fn model(&self, dialect: Dialect, name: &str) -> ModelInfo {
        if let Some(known) = self.models.iter().find(|known| same_model(&known.name, name)) {
            return known.clone();
        }
        if let Some(row) = BUILTIN.iter().find(|row| same_model(row.name, name)) {
            return row.info();
        }
        let (window, max_output) = match dialect {
            Dialect::Anthropic => (200_000, 32_000),
            Dialect::OpenAiChat => (128_000, 8_192),
        };
        ModelInfo { name: base_name(name).to_owned(), window, max_output, price: None }
    }

    /// The model an alias stands for at a provider; none if it is no alias there.
    pub fn resolve<'a>(&'a self, provider: &str, alias: &str) -> Option<&'a str> {
        let alias = alias.trim();
        let own = self.aliases.iter().find(|known| {
            known.provider.eq_ignore_ascii_case(provider) && known.alias.eq_ignore_ascii_case(alias)
        });
        if let Some(own) = own {
            return Some(&own.model);
        }
        let known = BUILTIN_ALIASES
            .iter()
            .find(|(at, known, _)| at.eq_ignore_ascii_case(provider) && known.eq_ignore_ascii_case(alias));
        known.map(|(_, _, model)| *model)
    }

    /// The model to use at a server of this dialect where none is named.
    pub fn default_model(dialect: Dialect) -> &'static str {
        let row = DEFAULTS.iter().find(|(known, _)| *known == dialect);
        row.map_or("", |(_, model)| model)
    }

    /// The model to use of those that a server lists, where none is named: the usual one, or the only one that can
    /// hold a conversation. None where there is a choice, which is a person's.
    pub fn choose(dialect: Dialect, listed: &[String]) -> Option<&str> {
        let usual = Self::default_model(dialect);
        if let Some(usual) = listed.iter().find(|id| same_model(id, usual)) {
            return Some(usual);
        }
        match conversational(listed).as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether a word is an alias somewhere, so that it cannot be meant as a model's name.
    pub fn is_alias(&self, word: &str) -> bool {
        let own = self.aliases.iter().any(|known| known.alias.eq_ignore_ascii_case(word));
        own || BUILTIN_ALIASES.iter().any(|(_, known, _)| known.eq_ignore_ascii_case(word))
    }
}

impl ModelInfo {
    /// What a reply cost; nothing if the price is unknown.
    pub fn cost(&self, usage: &Usage) -> Money {
        let Some(price) = self.price else { return Money::default() };
        let hour = usage
            .other
            .get("cache_creation")
            .and_then(|classes| classes.get("ephemeral_1h_input_tokens"))
            .and_then(Value::as_u64)
            .unwrap_or(0)
            .min(usage.cache_creation_input_tokens);
        let parts = [
            (usage.input_tokens, price.input),
            (usage.output_tokens, price.output),
            (usage.cache_read_input_tokens, price.cache_read),
            (usage.cache_creation_input_tokens - hour, price.cache_write),
            (hour, price.cache_write_hour),
        ];
        Money(parts.iter().fold(0, |sum: u64, (count, each)| sum.saturating_add(count.saturating_mul(*each))))
    }
}

/// Those of these models that can hold a conversation, as far as their ids tell.
pub fn conversational(listed: &[String]) -> Vec<&str> {
    let converses = |id: &&str| {
        let id = id.to_ascii_lowercase();
        !OTHER_USES.iter().any(|part| id.contains(part))
    };
    listed.iter().map(String::as_str).filter(converses).collect()
}

/// Whether two names mean the same model: dates and the like at the end make no difference.
pub fn same_model(one: &str, other: &str) -> bool {
    base_name(one).eq_ignore_ascii_case(base_name(other))
}

/// A name without `-20251001`, `@20251001`, `-2024-08-06`, `-latest` or `[1m]` at its end.
fn base_name(name: &str) -> &str {
    let name = name.trim();
    let name = name.split_once('[').filter(|(_, tail)| tail.ends_with(']')).map_or(name, |(head, _)| head);
    let name = name.strip_suffix("-latest").unwrap_or(name);
    let digits =
        |text: &str, count: usize| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((head, tail)) = name.rsplit_once(['-', '@'])
        && digits(tail, 8)
    {
        return head;
    }
    let mut parts = name.rsplitn(4, '-');
    if let (Some(day), Some(month), Some(year), Some(head)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
        && digits(day, 2)
        && digits(month, 2)
        && digits(year, 4)
    {
        return head;
    }
    name
}

struct CatalogRow {
    name: &'static str,
    window: u64,
    max_output: u64,
    /// Dollars per million tokens times 1,000: input, output, cache read, cache write.
    price: (u64, u64, u64, u64),
}

impl CatalogRow {
    fn info(&self) -> ModelInfo {
        let (input, output, cache_read, cache_write) = self.price;
        let price = Price { input, output, cache_read, cache_write, cache_write_hour: input * 2 };
        ModelInfo {
            name: self.name.to_owned(),
            window: self.window,
            max_output: self.max_output,
            price: Some(price),
        }
    }
}

const fn row(name: &'static str, window: u64, max_output: u64, price: (u64, u64, u64, u64)) -> CatalogRow {
    CatalogRow { name, window, max_output, price }
}

/// Lists change; what a user sets wins over this.
const BUILTIN: &[CatalogRow] = &[
    row("claude-opus-5-5", 1_000_000, 128_000, (4_000, 20_000, 200, 5_000)),
    row("claude-sonnet-5-5", 1_000_000, 128_000, (2_000, 10_000, 100, 2_500)),
    row("claude-haiku-5-5", 1_000_000, 128_000, (100, 500, 10, 125)),
    row("claude-fable-5-2", 1_000_000, 128_000, (10_000, 50_000, 1_000, 12_500)),
    row("claude-fable-5-1", 1_000_000, 128_000, (10_000, 50_000, 1_000, 12_500)),
    row("claude-fable-5", 1_000_000, 128_000, (10_000, 50_000, 1_000, 12_500)),
    row("claude-opus-4-8", 1_000_000, 128_000, (5_000, 25_000, 500, 6_250)),
    row("claude-opus-4-7", 1_000_000, 128_000, (5_000, 25_000, 500, 6_250)),
    row("claude-opus-4-6", 200_000, 128_000, (5_000, 25_000, 500, 6_250)),
    row("claude-opus-4-5", 200_000, 64_000, (5_000, 25_000, 500, 6_250)),
    row("claude-opus-4-1", 200_000, 32_000, (15_000, 75_000, 1_500, 18_750)),
    row("claude-opus-4", 200_000, 32_000, (15_000, 75_000, 1_500, 18_750)),
    row("claude-sonnet-4-6", 200_000, 64_000, (3_000, 15_000, 300, 3_750)),
    row("claude-sonnet-4-5", 200_000, 64_000, (3_000, 15_000, 300, 3_750)),
    row("claude-sonnet-4", 200_000, 64_000, (3_000, 15_000, 300, 3_750)),
    row("claude-haiku-4-5", 200_000, 64_000, (1_000, 5_000, 100, 1_250)),
    row("gpt-5.5", 1_000_000, 128_000, (5_000, 30_000, 500, 5_000)),
    row("gpt-5.4", 1_000_000, 128_000, (2_500, 15_000, 250, 2_500)),
    row("gpt-5.4-mini", 400_000, 128_000, (750, 4_500, 75, 750)),
    row("gpt-5.4-nano", 400_000, 128_000, (200, 1_250, 20, 200)),
    row("gpt-5", 400_000, 128_000, (1_250, 10_000, 125, 1_250)),
    row("gpt-4.1", 1_000_000, 32_768, (2_000, 8_000, 500, 2_000)),
    row("gpt-4o", 128_000, 16_384, (2_500, 10_000, 1_250, 2_500)),
    row("gpt-4o-mini", 128_000, 16_384, (150, 600, 75, 150)),
];

/// The model where none is named. OpenAI's must take function tools in Chat Completions.
const DEFAULTS: &[(Dialect, &str)] =
    &[(Dialect::Anthropic, "claude-sonnet-5-5"), (Dialect::OpenAiChat, "gpt-5.4")];

/// Parts of the ids of models that do something other than converse.
const OTHER_USES: &[&str] = &[
    "embed",
    "rerank",
    "whisper",
    "tts",
    "transcribe",
    "dall-e",
    "image",
    "moderation",
    "realtime",
    "audio",
];

const BUILTIN_ALIASES: &[(&str, &str, &str)] = &[
    ("anthropic", "opus", "claude-opus-5-5"),
    ("anthropic", "sonnet", "claude-sonnet-5-5"),
    ("anthropic", "haiku", "claude-haiku-5-5"),
    ("anthropic", "fable", "claude-fable-5-2"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dates_and_marks_at_the_end_of_a_name_make_no_difference() {
        for (one, other) in [
            ("claude-haiku-4-5", "claude-haiku-4-5-20251001"),
            ("claude-haiku-4-5", "claude-haiku-4-5@20251001"),
            ("gpt-4o", "gpt-4o-2024-08-06"),
            ("claude-opus-5-5", "claude-opus-5-5[1m]"),
            ("claude-opus-5-5", "Claude-Opus-5-5-latest"),
        ] {
            assert!(same_model(one, other), "{one} {other}");
        }
        for (one, other) in
            [("claude-opus-4", "claude-opus-4-5"), ("gpt-4o", "gpt-4o-mini"), ("a-2024", "a"), ("x", "y")]
        {
            assert!(!same_model(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_reply_is_priced_by_class() {
        let info = Catalog::builtin().model(Dialect::Anthropic, "claude-opus-5-5-20261001");
        let mut usage = Usage {
            input_tokens: 100,
            output_tokens: 50,
            cache_read_input_tokens: 20,
            cache_creation_input_tokens: 10,
            ..Usage::default()
        };
        assert_eq!(info.cost(&usage), Money::from_dollars(0.001_454));
        usage.other.insert("cache_creation".into(), json!({"ephemeral_1h_input_tokens": 10}));
        assert_eq!(info.cost(&usage), Money::from_dollars(0.001_484));
        usage.input_tokens = u64::MAX;
        assert_eq!(info.cost(&usage), Money(u64::MAX));
    }

    #[test]
    fn an_unknown_model_gets_cautious_numbers_and_no_price() {
        let catalog = Catalog::builtin();
        let anthropic = catalog.model(Dialect::Anthropic, "claude-next");
        assert_eq!((anthropic.window, anthropic.price), (200_000, None));
        let local = catalog.model(Dialect::OpenAiChat, "qwen3-coder:30b");
        assert_eq!((local.window, local.price), (128_000, None));
        assert_eq!(local.cost(&Usage { input_tokens: 5, ..Usage::default() }), Money(0));
    }

    #[test]
    fn of_a_list_the_usual_model_or_the_only_conversational_one_is_chosen() {
        let choose = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            Catalog::choose(Dialect::OpenAiChat, &ids).map(str::to_owned)
        };
        assert_eq!(choose(&["qwen3-coder"]).as_deref(), Some("qwen3-coder"));
        assert_eq!(choose(&["nomic-embed-text", "qwen3", "whisper-1"]).as_deref(), Some("qwen3"));
        assert_eq!(choose(&["gpt-4o", "gpt-5.4-2026-03-05"]).as_deref(), Some("gpt-5.4-2026-03-05"));
        assert_eq!(choose(&["llama", "qwen"]), None);
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn every_default_model_is_in_the_catalog() {
        for (dialect, model) in DEFAULTS {
            assert!(Catalog::builtin().model(*dialect, model).price.is_some(), "{model}");
        }
    }

    #[test]
    fn what_a_user_adds_wins() {
        let mut catalog = Catalog::builtin();
        assert_eq!(catalog.resolve("anthropic", "Sonnet"), Some("claude-sonnet-5-5"));
        assert_eq!(catalog.resolve("local", "sonnet"), None);
        assert!(catalog.is_alias("haiku") && !catalog.is_alias("gpt-5"));
        catalog.extend(
            serde_json::from_value(json!([{"name":"gpt-5","window":10,"max_output":5}])).unwrap(),
            serde_json::from_value(json!([{"provider":"local","alias":"sonnet","model":"qwen"}])).unwrap(),
        );
        assert_eq!(catalog.resolve("local", "sonnet"), Some("qwen"));
        assert_eq!(catalog.model(Dialect::OpenAiChat, "gpt-5").window, 10);
    }
}
