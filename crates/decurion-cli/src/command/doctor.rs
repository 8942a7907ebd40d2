//! `decurion doctor`: what this installation has. Takes nothing, prints facts and what to do about them.

use std::sync::Arc;

use decurion_config::{Choice, LoadRequest, Loaded};
use decurion_engine::Models as _;
use decurion_engine::egress::{unusable_host, unusable_secret_host};
use decurion_engine::permission::unknown_tool;
use decurion_exec::Form;
use decurion_model::ModelError;
use decurion_model::http::Http;
use serde_json::{Value, json};

use crate::command::proofs::{self, Proof};
use crate::command::run::block_on;
use crate::models::{self, Configured};
use crate::report::Failure;
use crate::{discover, wire};

/// Prints the facts.
pub fn run(json: bool) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = Arc::new(decurion_config::inspect(&LoadRequest::new(cwd, environment.clone()))?);
    let providers: Vec<Value> = loaded
        .providers
        .list()
        .iter()
        .map(
            |provider| json!({"name": provider.name, "kind": provider.kind.name(), "url": provider.base_url}),
        )
        .collect();
    let local = discover::find(loaded.providers.candidates());
    let state = loaded.paths.prepare();
    let (model, problem) = block_on(model(&loaded))?;
    let proofs = block_on(proofs::run(&loaded, &environment))?;
    let facts = json!({
        "version": wire::VERSION,
        "kernel": kernel(),
        "providers": providers,
        "local": local.as_ref().map(|local| json!({"name": local.name, "url": local.base_url, "model": local.model})),
        "model": model,
        "model_problem": problem,
        "state": loaded.paths.state,
        "state_problem": state.as_ref().err().map(ToString::to_string),
        "project": loaded.paths.root,
        "trusted": loaded.trust.is_trusted(),
        "sandbox": wire::sandbox_name(&loaded),
        "sandbox_problem": wire::sandbox_form(&loaded).err(),
        "sandbox_settings": sandbox_settings(&loaded),
        "sandbox_proofs": proofs.iter().map(Proof::json).collect::<Vec<_>>(),
        "warnings": warnings(&loaded),
    });
    if json {
        say!("{facts}");
    } else {
        print_facts(&facts);
        print_sandbox(&loaded, &proofs);
    }
    let broken = proofs.iter().any(|proof| proof.held == Ok(false));
    let missing = loaded.settings.sandbox.enabled && wire::sandbox_form(&loaded).is_err();
    Ok(u8::from(broken || missing))
}

/// The version of the kernel; none where it does not say.
fn kernel() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned())
}

/// What the settings say about the sandbox, under the names of its keys. What is hidden because it holds a secret is not
/// among it.
fn sandbox_settings(loaded: &Loaded) -> Value {
    let settings = &loaded.settings.sandbox;
    json!({
        "enabled": settings.enabled,
        "required": settings.required,
        "autoAllowBashIfSandboxed": settings.asks_less,
        "allowUnsandboxedCommands": settings.allows_outside,
        "excludedCommands": settings.excluded,
        "filesystem": {"allowWrite": settings.writable, "allowRead": settings.readable},
        "network": {
            "open": settings.network_open,
            "allowedDomains": settings.allowed_hosts,
            "deniedDomains": settings.denied_hosts,
            "allowAllUnixSockets": settings.unix_sockets,
        },
    })
}

/// The facts but for the sandbox, a line each.
fn print_facts(facts: &Value) {
    let text = |key: &str| facts[key].as_str();
    let list = |key: &str| facts[key].as_array().map_or(&[][..], Vec::as_slice);
    say!("Version:  {}", text("version").unwrap_or_default());
    match (text("model"), text("model_problem")) {
        (Some(model), None) => say!("Model:    {model}"),
        (Some(model), Some(problem)) => say!("Model:    {model} (PROBLEM: {problem})"),
        (None, problem) => {
            say!("Model:    NONE: {}", problem.unwrap_or("no model is configured"));
            if list("providers").is_empty() {
                say!(
                    "          export ANTHROPIC_API_KEY=… or OPENAI_API_KEY=…, start Ollama or llama.cpp, or see README.md"
                );
            }
        }
    }
    for provider in list("providers") {
        let part = |key: &str| provider[key].as_str().unwrap_or_default();
        say!("Provider: {} ({}, {})", part("name"), part("kind"), part("url"));
    }
    if let Some(name) = facts["local"]["name"].as_str() {
        let part = |key: &str| facts["local"][key].as_str().unwrap_or_default();
        say!("Found:    {name} on this machine ({}, model {})", part("url"), part("model"));
    }
    match (text("state"), text("state_problem")) {
        (state, Some(problem)) => say!("State:    {} (PROBLEM: {problem})", state.unwrap_or("no folder")),
        (Some(state), None) => say!("State:    {state} (sessions, settings and logs of Decurion)"),
        (None, None) => say!("State:    NONE: there is no home folder"),
    }
    let trusted = facts["trusted"].as_bool() == Some(true);
    let trust =
        if trusted { "trusted" } else { "not trusted: `decurion trust` shows what its settings would do" };
    say!("Project:  {} ({trust})", text("project").unwrap_or_default());
    for warning in list("warnings") {
        say!("Warning:  {}", warning.as_str().unwrap_or_default());
    }
}

fn print_sandbox(loaded: &Loaded, proofs: &[Proof]) {
    match wire::sandbox_form(loaded) {
        Ok(Form::Landlock) => {
            say!(
                "Sandbox:  on (landlock). It protects less than namespaces; docs/sandbox.md says how to have these"
            );
        }
        Ok(form) => {
            say!("Sandbox:  on ({}). What a command that you allow cannot do, tried just now:", form.name());
        }
        Err(reason) if loaded.settings.sandbox.enabled => {
            say!(
                "Sandbox:  NONE: {reason}. Commands run with all your rights; docs/sandbox.md says what to do"
            );
        }
        Err(reason) => say!("Sandbox:  off ({reason}). Commands run with all your rights"),
    }
    for Proof { promise, held } in proofs {
        match held {
            Ok(true) => say!("  ok         commands cannot {promise}"),
            Ok(false) => {
                say!(
                    "  PROBLEM    a command could {promise}. Please report it with the output of `decurion doctor --json`"
                );
            }
            Err(reason) => say!("  not tried  commands cannot {promise} ({reason})"),
        }
    }
}

/// What is wrong with the settings.
pub fn warnings(loaded: &Loaded) -> Vec<String> {
    stops_nothing(loaded).chain(lost_restrictions(loaded)).chain(unusable_secrets(loaded)).collect()
}

/// What is wrong with the settings and stops nothing.
pub fn stops_nothing(loaded: &Loaded) -> impl Iterator<Item = String> {
    let rules = rules_without_tool(loaded).filter(|problem| !problem.is_lost_restriction);
    let rules = rules.map(|problem| problem.text);
    loaded.warnings.iter().map(ToString::to_string).chain(rules).chain(hosts(loaded))
}

/// Rules that would forbid something or ask about it, if the name of their tool were spelled right.
pub fn lost_restrictions(loaded: &Loaded) -> impl Iterator<Item = String> {
    rules_without_tool(loaded).filter(|problem| problem.is_lost_restriction).map(|problem| problem.text)
}

/// A rule that names no tool.
struct WithoutTool {
    /// Where it is and what is wrong with it.
    text: String,
    /// Whether it was to forbid something or to ask about it, and only the spelling is wrong.
    is_lost_restriction: bool,
}

/// Rules that name no tool and therefore have no effect.
fn rules_without_tool(loaded: &Loaded) -> impl Iterator<Item = WithoutTool> {
    let rules = &loaded.rules;
    let lists = [
        ("allow", &rules.set.allow, &rules.allow_origins),
        ("ask", &rules.set.ask, &rules.ask_origins),
        ("deny", &rules.set.deny, &rules.deny_origins),
    ];
    lists.into_iter().flat_map(|(list, rules, origins)| {
        rules.iter().zip(origins).filter_map(move |(rule, origin)| {
            let problem = unknown_tool(&rule.tool, &[])?;
            let text = format!("{origin}: the {list} rule {rule} has no effect: {problem}");
            Some(WithoutTool { text, is_lost_restriction: list != "allow" && problem.near.is_some() })
        })
    })
}

/// Entries of `secrets` that cannot be used.
pub fn unusable_secrets(loaded: &Loaded) -> impl Iterator<Item = String> {
    loaded.settings.secrets.iter().flat_map(|secret| {
        let key = format!("secrets.{}.hosts", secret.name);
        let above = [key.clone(), format!("secrets.{}", secret.name)];
        let origin = above.iter().find_map(|key| loaded.origin(key));
        let empty = || (origin.clone(), key.clone(), "no host is named that may get the secret".to_owned());
        let item = |(index, host): (usize, &String)| {
            let problem = unusable_secret_host(host)?;
            Some((loaded.origin_of_item(&key, index), format!("{key}[{index}]"), problem))
        };
        let unusable: Vec<_> = secret.hosts.iter().enumerate().filter_map(item).collect();
        let all = secret.hosts.is_empty().then(empty).into_iter().chain(unusable);
        let told = all.map(|(origin, key, problem)| {
            let origin = origin.map(|origin| format!("{origin}: ")).unwrap_or_default();
            format!("{origin}{key}: {problem}")
        });
        told.collect::<Vec<_>>()
    })
}

/// Entries of the lists of hosts that cannot be used.
fn hosts(loaded: &Loaded) -> impl Iterator<Item = String> {
    let settings = &loaded.settings.sandbox;
    let lists = [
        ("allowedDomains", &settings.allowed_hosts, "commands cannot reach it"),
        ("deniedDomains", &settings.denied_hosts, "commands reach no host"),
    ];
    lists.into_iter().flat_map(|(key, hosts, effect)| {
        hosts.iter().filter_map(move |host| {
            let problem = unusable_host(host)?;
            let open = if host == "*" { " (`sandbox.network.open` opens the network)" } else { "" };
            Some(format!("sandbox.network.{key}: {problem}{open}; {effect}"))
        })
    })
}

/// The model that a session would use, and what is wrong with it or with its provider.
async fn model(loaded: &Arc<Loaded>) -> (Option<String>, Option<String>) {
    let mut models = Configured::new(Arc::clone(loaded), None);
    let provider = match loaded.choice() {
        Ok(Choice::Provider { provider, .. }) => provider,
        Ok(Choice::Scripted { .. }) => return (Some(models.default_name()), None),
        Err(error) => return (None, Some(error.to_string())),
    };
    let unusable = match models::list(&Http::default(), provider).await {
        // A server that lists nothing may still converse.
        Ok(_) | Err(ModelError::Rejected { .. }) => None,
        Err(error) => Some(format!("provider {:?}: {error}", provider.name)),
    };
    let decided = match models.ask_server().await {
        Ok(()) => models.main(&models.default_name()),
        Err(failure) => Err(failure.message),
    };
    match decided {
        Ok((model, remark)) => (Some(model.name.clone()), unusable.or(remark)),
        Err(problem) => (None, Some(problem)),
    }
}
