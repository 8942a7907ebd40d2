//! What a leading program can ask of the command line: the models, the settings, the account, and the policy for its
//! MCP servers. Takes the loaded settings; secrets never leave it.

use std::collections::BTreeMap;
use std::sync::Arc;

use decurion_config::{Loaded, McpServers};
use decurion_engine::Models;
use decurion_protocol::mcp::McpServer;
use decurion_serve::HostFacts;
use serde_json::{Map, Value, json};

use crate::models::Configured;

/// What the command line knows.
pub struct CommandLine {
    pub loaded: Arc<Loaded>,
    pub models: Arc<Configured>,
    /// The declared MCP servers, by whose policy others are judged.
    pub servers: McpServers,
    /// Where the key came from.
    pub key_source: String,
}

impl HostFacts for CommandLine {
    fn models(&self) -> Vec<Value> {
        let row = |value: String| {
            let name = if value == "default" { self.models.default_name() } else { value.clone() };
            let model = self.models.resolve(&name).ok()?;
            let price = model.info.price.map(|price| {
                let dollars = |nano: u64| format!("${}.{:02}", nano / 1000, nano % 1000 / 10);
                format!(", {} in, {} out per million tokens", dollars(price.input), dollars(price.output))
            });
            let description = format!("{} tokens{}", model.info.window, price.unwrap_or_default());
            Some(json!({
                "value": value, "resolvedModel": model.id, "displayName": value, "description": description,
            }))
        };
        let mut names = vec!["default".to_owned()];
        names.extend(self.models.names());
        names.into_iter().filter_map(row).collect()
    }

    fn account(&self) -> Value {
        json!({"apiKeySource": self.key_source})
    }

    fn settings(&self) -> Value {
        let mut sources: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for row in self.loaded.rows() {
            sources.entry(row.origin.layer.name().to_owned()).or_default().insert(row.key, row.value);
        }
        let source = |(source, settings): (String, Map<String, Value>)| json!({"source": source, "settings": settings});
        json!({"effective": self.loaded.shown(), "sources": sources.into_iter().map(source).collect::<Vec<_>>()})
    }

    fn redacted(&self, text: &str) -> String {
        self.loaded.redactor().redact(text).into_owned()
    }

    fn servers(&self, declared: &Map<String, Value>) -> (Vec<McpServer>, BTreeMap<String, String>) {
        self.servers.for_host(declared)
    }
}
