//! Which environment variable is which setting. Takes the environment, gives the environment layer as a
//! settings document, so that variables are checked, layered and listed like everything else. A variable
//! that cannot be used is left out with a warning, except where leaving it out would send data elsewhere.

use serde_json::Number;

use crate::check::{self, is_base_url, is_header_name};
use crate::env::Environment;
use crate::error::{ConfigError, Warning, WarningKind};
use crate::jsonc::{Kind, Member, Node, Position};
use crate::layer::empty;
use crate::origin::{Family, Layer, Place, Sources};
use crate::provider::ProviderKind;
use crate::schema::{self, KEYS, Shape};
use crate::secret::{self, Secret};

/// How a variable's text becomes a value.
#[derive(Clone, Copy)]
enum Take {
    Text,
    Secret,
    Url,
    Integer,
    /// Milliseconds, for a setting in seconds.
    Seconds,
    /// Percent, for a setting that is a share.
    Share,
    /// On unless it says `0`, `false`, `no` or `off`.
    Switch,
    /// The opposite of `Switch`: a variable that disables.
    Off,
    /// Texts joined by commas.
    Commas,
    Headers,
}

/// Variable, key, form. Where two variables name one key the first that is set counts, so ours come first.
const VARIABLES: &[(&str, &str, Take)] = &[
    ("DECURION_MODEL", "model", Take::Text),
    ("ANTHROPIC_MODEL", "model", Take::Text),
    ("OPENAI_MODEL", "model", Take::Text),
    ("DECURION_PROVIDER", "provider", Take::Text),
    ("ANTHROPIC_API_KEY", "providers.anthropic.apiKey", Take::Secret),
    ("ANTHROPIC_AUTH_TOKEN", "providers.anthropic.authToken", Take::Secret),
    ("ANTHROPIC_BASE_URL", "providers.anthropic.baseUrl", Take::Url),
    ("ANTHROPIC_CUSTOM_HEADERS", "providers.anthropic.headers", Take::Headers),
    ("ANTHROPIC_BETAS", "providers.anthropic.betas", Take::Commas),
    ("OPENAI_API_KEY", "providers.openai.apiKey", Take::Secret),
    ("OPENAI_BASE_URL", "providers.openai.baseUrl", Take::Url),
    ("DECURION_MAX_OUTPUT_TOKENS", "limits.maxOutputTokens", Take::Integer),
    ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "limits.maxOutputTokens", Take::Integer),
    ("BASH_DEFAULT_TIMEOUT_MS", "limits.bashTimeoutMs", Take::Integer),
    ("BASH_MAX_TIMEOUT_MS", "limits.bashMaxTimeoutMs", Take::Integer),
    ("BASH_MAX_OUTPUT_LENGTH", "limits.bashOutputChars", Take::Integer),
    ("TASK_MAX_OUTPUT_LENGTH", "limits.taskOutputChars", Take::Integer),
    ("DECURION_DURABILITY", "durability", Take::Text),
    ("DECURION_REDACT_SECRETS", "redactSecrets", Take::Switch),
    ("DISABLE_AUTO_COMPACT", "compaction.enabled", Take::Off),
    ("DISABLE_COMPACT", "compaction.enabled", Take::Off),
    ("CLAUDE_AUTOCOMPACT_PCT_OVERRIDE", "compaction.threshold", Take::Share),
    ("DECURION_SUBAGENT_MODEL", "agents.model", Take::Text),
    ("CLAUDE_CODE_SUBAGENT_MODEL", "agents.model", Take::Text),
    ("DECURION_MAX_DEPTH", "agents.maxDepth", Take::Integer),
    ("CLAUDE_CODE_MAX_SUBAGENT_SPAWN_DEPTH", "agents.maxDepth", Take::Integer),
    ("DECURION_MAX_RUNNING", "agents.maxRunning", Take::Integer),
    ("CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS", "agents.maxRunning", Take::Integer),
    ("DECURION_MAX_TOTAL", "agents.maxTotal", Take::Integer),
    ("CLAUDE_CODE_MAX_SUBAGENTS_PER_SESSION", "agents.maxTotal", Take::Integer),
    ("CLAUDE_CODE_FORK_SUBAGENT", "agents.forkByDefault", Take::Switch),
    ("DECURION_DISABLE_BACKGROUND_TASKS", "backgroundTasks", Take::Off),
    ("CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "backgroundTasks", Take::Off),
    ("DECURION_COORDINATOR", "coordinator", Take::Switch),
    ("CLAUDE_CODE_COORDINATOR_MODE", "coordinator", Take::Switch),
    ("CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS", "print.backgroundWait", Take::Seconds),
    ("CLAUDE_CODE_MAX_TURNS", "budget.turns", Take::Integer),
];

/// Variables of ours that are not settings: where the state is, and the marks that our own shells carry.
const OTHER: &[&str] = &["DECURION_HOME", "DECURION_SESSION", "DECURION_AGENT", "DECURION_PROJECT_DIR"];

/// Variables that hold credentials of a provider that is known by name; no child process ever gets them.
pub(crate) const CREDENTIALS: &[&str] = &[
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_CUSTOM_HEADERS",
    "OPENAI_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
];

/// The variables that set a key, the one that counts first, with a remark where their form is another one. `NAME` in the key
/// stands for any.
pub(crate) fn naming(key: &str) -> impl Iterator<Item = String> {
    let remark = |take: Take| match take {
        Take::Seconds => " (milliseconds)",
        Take::Share => " (percent)",
        Take::Off => " (turns it off)",
        Take::Commas => " (joined by commas)",
        Take::Headers => " (lines of `Name: value`)",
        Take::Text | Take::Secret | Take::Url | Take::Integer | Take::Switch => "",
    };
    let (before, after) = key.split_once("NAME").unwrap_or((key, ""));
    let named = VARIABLES.iter().filter(move |(_, of, _)| match after {
        "" => *of == key,
        _ => of.starts_with(before) && of.ends_with(after),
    });
    named.map(move |(name, _, take)| format!("{name}{}", remark(*take)))
}

/// The variable of this environment that says where the provider of a dialect is, and what it says.
pub fn address_variable(environment: &Environment, kind: ProviderKind) -> Option<(&'static str, &str)> {
    let key = format!("providers.{}.baseUrl", kind.name());
    let mut named = VARIABLES.iter().filter(|(_, of, _)| *of == key).map(|(name, ..)| *name);
    named.find_map(|name| environment.get(name).map(|address| (name, address)))
}

/// The variable of this environment that holds the key for the provider of a dialect, and the key, if it can be one.
pub fn key_variable(environment: &Environment, kind: ProviderKind) -> Option<(&'static str, Secret)> {
    let key = format!("providers.{}.apiKey", kind.name());
    let (name, ..) = VARIABLES.iter().find(|(_, of, _)| *of == key)?;
    let value = environment.get(name).filter(|value| !value.trim().is_empty())?;
    Some((name, Secret::for_header(value).ok()?))
}

/// The variables of this environment that win over what a person's settings say of a provider and its model.
pub fn overriding(environment: &Environment, provider: &str) -> Vec<&'static str> {
    let wins = |key: &str| match key.strip_prefix("providers.").and_then(|rest| rest.split_once('.')) {
        Some((name, member)) => name == provider && matches!(member, "apiKey" | "authToken" | "baseUrl"),
        None => matches!(key, "model" | "provider"),
    };
    let set = VARIABLES.iter().filter(|(name, key, _)| wins(key) && environment.get_os(name).is_some());
    set.map(|(name, ..)| *name).collect()
}

pub(crate) fn from_environment(
    environment: &Environment,
    ignored: &[&str],
    sources: &mut Sources,
    warnings: &mut Vec<Warning>,
    problems: &mut Vec<ConfigError>,
) -> Node {
    let mut root = empty();
    for &(name, key, take) in VARIABLES {
        let Some(value) = environment.get_os(name) else { continue };
        if ignored.contains(&name) || root.at_path(key).is_some() {
            continue;
        }
        let read = value.to_str().ok_or_else(|| "UTF-8".to_owned()).and_then(|text| read(text, take, key));
        match usable(name, take, read, warnings) {
            Ok(None) => {}
            Ok(Some(kind)) => {
                let source = sources.add(Layer::Environment, Family::Ours, Place::Variable(name));
                check::put(&mut root, key, placed(kind, Position::default(), source));
            }
            Err(expected) => problems.push(ConfigError::Variable { name: name.to_owned(), expected }),
        }
    }
    warn_unknown(environment, warnings);
    root
}

/// The same for the `env` of a settings document that is not a repository's: people keep their provider's
/// address and key there. The values come from where they stand in the document.
pub(crate) fn from_document(
    document: &Node,
    sources: &Sources,
    warnings: &mut Vec<Warning>,
    problems: &mut Vec<ConfigError>,
) -> Node {
    let mut root = empty();
    let Some(env) = document.get("env") else { return root };
    for &(name, key, take) in VARIABLES {
        let Some(node) = env.get(name).filter(|_| root.at_path(key).is_none()) else { continue };
        let text = match &node.kind {
            Kind::Text(text) => text.as_str(),
            Kind::Secret(secret) => secret.expose(),
            _ => continue,
        };
        if text.trim().is_empty() {
            continue;
        }
        match usable(name, take, read(text, take, key), warnings) {
            Ok(None) => {}
            Ok(Some(kind)) => check::put(&mut root, key, placed(kind, node.at, node.source)),
            Err(expected) => problems.push(ConfigError::Value {
                origin: sources.origin(node),
                key: format!("env.{name}"),
                expected,
                found: "another string".to_owned(),
            }),
        }
    }
    root
}

/// The value, or none with a warning; what was expected is an error where going on without it would be wrong.
fn usable(
    name: &str,
    take: Take,
    read: Result<Kind, String>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Kind>, String> {
    match read {
        Ok(kind) => Ok(Some(kind)),
        // Ignoring an address or a key would mean talking to someone else.
        Err(expected) if matches!(take, Take::Url | Take::Secret | Take::Headers) => Err(expected),
        Err(expected) => {
            let text = format!("environment variable {name} is ignored: expected {expected}");
            warnings.push(Warning { kind: WarningKind::Variable, origin: None, text });
            Ok(None)
        }
    }
}

/// A value, and the members it may have, with their source.
fn placed(kind: Kind, at: Position, source: u16) -> Node {
    let kind = match kind {
        Kind::List(items) => {
            Kind::List(items.into_iter().map(|item| placed(item.kind, at, source)).collect())
        }
        Kind::Object(members) => Kind::Object(
            members
                .into_iter()
                .map(|member| Member { key: member.key, at, value: placed(member.value.kind, at, source) })
                .collect(),
        ),
        other => other,
    };
    Node { at, source, kind }
}

fn read(text: &str, take: Take, key: &str) -> Result<Kind, String> {
    let shape = shape_of(key);
    let text = text.trim();
    let kind = match take {
        Take::Text => Kind::Text(text.to_owned()),
        Take::Secret => {
            secret::check_header_value(text).map_err(|reason| format!("a key, but this one {reason}"))?;
            Kind::Secret(Secret::new(text))
        }
        Take::Url if is_base_url(text) => Kind::Text(text.to_owned()),
        Take::Url => return Err(Shape::Url.expected()),
        Take::Integer => whole(text.parse().ok(), shape)?,
        Take::Seconds => {
            whole(text.parse::<u64>().ok().map(|milliseconds| milliseconds.div_ceil(1000)), shape)?
        }
        Take::Share => share(text)?,
        Take::Switch => Kind::Bool(is_on(text)),
        Take::Off => Kind::Bool(!is_on(text)),
        Take::Commas => Kind::List(
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(text_node).collect(),
        ),
        Take::Headers => headers(text)?,
    };
    match (shape, &kind) {
        (Some(shape @ Shape::Word(words)), Kind::Text(text)) if !words.contains(&text.as_str()) => {
            Err(shape.expected())
        }
        _ => Ok(kind),
    }
}

fn shape_of(key: &str) -> Option<&'static Shape> {
    let mut keys = KEYS;
    let mut shape = None;
    for name in key.split('.') {
        let found = &schema::find(keys, name)?.shape;
        shape = Some(found);
        keys = if let Shape::Object(inner) = found { inner } else { &[] };
    }
    shape
}

fn whole(number: Option<u64>, shape: Option<&Shape>) -> Result<Kind, String> {
    let Some(shape @ Shape::Integer(least, most)) = shape else { return Err("a number".to_owned()) };
    match number.filter(|number| (least..=most).contains(&number)) {
        Some(number) => Ok(Kind::Number(Number::from(number))),
        None => Err(shape.expected()),
    }
}

fn share(text: &str) -> Result<Kind, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (10.0..=99.0).contains(percent));
    let number = percent.and_then(|percent| Number::from_f64(percent / 100.0));
    number.map(Kind::Number).ok_or_else(|| "a number from 10 to 99".to_owned())
}

fn is_on(text: &str) -> bool {
    !["0", "false", "no", "off"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

fn text_node(text: &str) -> Node {
    Node { kind: Kind::Text(text.to_owned()), ..empty() }
}

fn headers(text: &str) -> Result<Kind, String> {
    let wrong = || "lines of the form `Name: value`".to_owned();
    let mut members: Vec<Member> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        if !is_header_name(name) || secret::check_header_value(value).is_err() {
            return Err(wrong());
        }
        members.retain(|member| !member.key.eq_ignore_ascii_case(name));
        let value = Node { kind: Kind::Secret(Secret::new(value)), ..empty() };
        members.push(Member { key: name.to_owned(), at: Position::default(), value });
    }
    Ok(Kind::Object(members))
}

/// A variable with our name that nobody reads is a spelling mistake.
fn warn_unknown(environment: &Environment, warnings: &mut Vec<Warning>) {
    for (name, _) in environment.iter() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("DECURION_")) else { continue };
        let known = OTHER.contains(&name) || VARIABLES.iter().any(|(known, ..)| *known == name);
        if !known {
            let text = format!("unknown environment variable: {name}");
            warnings.push(Warning { kind: WarningKind::Variable, origin: None, text });
        }
    }
}
