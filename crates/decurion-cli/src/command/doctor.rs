//! `decurion doctor`: what this installation has. Takes nothing, prints facts and what to do about them.

use decurion_config::{LoadRequest, ProviderKind};
use serde_json::{Value, json};

use crate::report::Failure;
use crate::{discover, wire};

/// Prints the facts.
pub fn run(json: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::load(&LoadRequest::new(cwd, environment))?;
    let providers: Vec<Value> = loaded
        .providers
        .list()
        .iter()
        .map(|provider| {
            let kind = match provider.kind {
                ProviderKind::Anthropic => "anthropic",
                ProviderKind::OpenAi => "openai",
            };
            json!({"name": provider.name, "kind": kind, "url": provider.base_url})
        })
        .collect();
    let local = discover::find(loaded.providers.candidates());
    let state = loaded.paths.prepare();
    let facts = json!({
        "version": wire::VERSION,
        "providers": providers,
        "local": local.as_ref().map(|local| json!({"name": local.name, "url": local.base_url, "model": local.model})),
        "state": loaded.paths.state,
        "state_problem": state.as_ref().err().map(ToString::to_string),
        "project": loaded.paths.root,
        "trusted": loaded.trust.is_trusted(),
        "sandbox": "none",
        "warnings": loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
    });
    if json {
        say!("{facts}");
    } else {
        for (name, value) in facts.as_object().into_iter().flatten() {
            say!("{name}: {value}");
        }
    }
    Ok(0)
}
