//! Who serves models. Takes the layered settings (in which environment variables are a layer), gives the
//! providers that can be used, each with its address and credentials decided, and the one to use for a model
//! name. Nothing is contacted: whether a local server answers is for the caller to try.

use std::fmt;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use crate::env::Environment;
use crate::error::{Warning, WarningKind};
use crate::jsonc::{Kind, Member, Node};
use crate::origin::{Layer, Origin, Place, Sources};
use crate::paths::Paths;
use crate::secret::{self, Secret};
use crate::variables::CREDENTIALS;

/// Which wire dialect a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    Anthropic,
    OpenAi,
}

impl ProviderKind {
    /// The word for it in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
        }
    }

    /// Where the provider is that this dialect is named after.
    pub fn usual_address(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com",
            Self::OpenAi => "https://api.openai.com/v1",
        }
    }
}

/// How requests say who they are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    ApiKey(Secret),
    Bearer(Secret),
    None,
}

/// Where a provider's credential comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Variable(String),
    /// A file that holds nothing else.
    File(Utf8PathBuf),
    /// A line of the settings.
    Settings(Origin),
}

impl fmt::Display for KeySource {
    /// The source and how to change the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "from the environment variable {name}; change or unset it"),
            Self::File(path) => write!(f, "from the file {path}"),
            Self::Settings(origin) => write!(f, "from {origin}; change it there"),
        }
    }
}

/// How long to wait for what; none leaves it to the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Option<Duration>,
    /// For the first event of a reply.
    pub first_event: Option<Duration>,
    /// For the next sign of life of a reply; keep-alives are one.
    pub idle: Option<Duration>,
    /// For the next content of a reply.
    pub content: Option<Duration>,
    /// For a whole turn.
    pub turn: Option<Duration>,
    /// For a provider that refuses everything, because of its limits or because it is overloaded.
    pub patience: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderConfig {
    /// Its name, the part before the slash of `provider/model`.
    pub name: String,
    pub kind: ProviderKind,
    /// Where requests go, without a slash at the end.
    pub base_url: String,
    pub auth: Auth,
    /// Where they come from; none if it has none, or if they were typed just now.
    pub key_source: Option<KeySource>,
    /// Further headers; any of them may be a credential.
    pub headers: Vec<(String, Secret)>,
    /// Names of betas to ask for.
    pub betas: Vec<String>,
    /// The models it serves, the preferred one first; empty if not said.
    pub models: Vec<String>,
    pub timeouts: Timeouts,
    /// The field that bounds a reply, where the server insists on one (`max_tokens`, `max_completion_tokens`).
    pub max_tokens_field: Option<String>,
    /// Where its address was set.
    pub origin: Origin,
}

/// A model name, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// A model of a provider; none leaves the model to the catalogue.
    Provider {
        provider: &'a ProviderConfig,
        /// The model or alias, without the provider's name.
        model: Option<String>,
    },
    /// The built-in model that plays a script.
    Scripted { file: String },
}

/// A server that may run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: &'static str,
    pub kind: ProviderKind,
    /// Where it would answer.
    pub base_url: String,
}

/// Why there is no provider for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProvider {
    /// Set a key, declare a provider, or start one of the local servers.
    #[error("no model provider is configured")]
    Nothing {
        /// Local servers to try.
        candidates: Vec<Candidate>,
    },
    /// Do what the reason says about this one provider.
    #[error("the model provider {name:?} cannot be used: {reason}")]
    Unusable { name: String, reason: String },
    /// Declare the provider that the model's name begins with, or name one that there is.
    #[error("no provider {name:?} for the model {model:?}; {}", hint(.name, .model, .known))]
    Unknown {
        /// What the model's name begins with.
        name: String,
        model: String,
        /// The providers that can be used, the default one first.
        known: Vec<String>,
    },
}

/// What to do about a model's name that begins with no provider.
fn hint(name: &str, model: &str, known: &[String]) -> String {
    let declare =
        format!("declare \"providers\": {{\"{name}\": {{\"kind\": …, \"baseUrl\": …}}}} in the settings");
    match known {
        [] => declare,
        [default, ..] => format!(
            "the known ones are {}; {declare}, or write {default}/{model} if that is a model of {default:?}",
            known.join(", ")
        ),
    }
}

/// All providers that can be used.
#[derive(Clone, Debug, Default)]
pub struct Providers {
    list: Vec<ProviderConfig>,
    unusable: Vec<(String, String)>,
    default: Option<String>,
    key_variables: Vec<String>,
    /// Every credential that was met, also of providers that lost or cannot be used.
    secrets: Vec<Secret>,
    candidates: Vec<Candidate>,
}

impl Providers {
    /// The provider of this name.
    pub fn get(&self, name: &str) -> Option<&ProviderConfig> {
        self.list.iter().find(|provider| provider.name == name)
    }

    /// All of them: the built-in ones first, then in the order declared.
    pub fn list(&self) -> &[ProviderConfig] {
        &self.list
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Servers that may run on this machine.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Every secret of every provider, for redaction; also those that another one won over.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.secrets.iter()
    }

    /// The variables that settings name as holding a key.
    pub(crate) fn key_variables(&self) -> impl Iterator<Item = &str> {
        self.key_variables.iter().map(String::as_str)
    }

    /// Which provider serves a model name: `scripted:FILE`, `provider/model`, or a name for the default provider. What
    /// stands before the first slash is binding: a name that is meant for one server must never be sent to another.
    /// Ids that hold a slash themselves are written behind their provider (`router/maker/model`), or are among the
    /// `models` that a provider declares.
    pub fn choose(&self, model: Option<&str>) -> Result<Choice<'_>, NoProvider> {
        if let Some(file) = model.and_then(|model| model.strip_prefix("scripted:")) {
            return Ok(Choice::Scripted { file: file.to_owned() });
        }
        if let Some(whole) = model
            && let Some((name, rest)) = whole.split_once('/')
        {
            let (provider, id) = self.prefixed(whole, name, rest)?;
            return Ok(Choice::Provider { provider, model: Some(id.to_owned()) });
        }
        let provider = self.require_default()?;
        let model = model.map(str::to_owned).or_else(|| provider.models.first().cloned());
        Ok(Choice::Provider { provider, model })
    }

    /// The provider of a name with a slash in it, and what that provider calls the model.
    fn prefixed<'n>(
        &self,
        whole: &'n str,
        name: &str,
        rest: &'n str,
    ) -> Result<(&ProviderConfig, &'n str), NoProvider> {
        let declares = |provider: &&ProviderConfig| provider.models.iter().any(|model| model == whole);
        if let Some(provider) = self.get(name) {
            return Ok((provider, if declares(&provider) { whole } else { rest }));
        }
        if let Some((name, reason)) = self.unusable.iter().find(|(unusable, _)| unusable == name) {
            return Err(NoProvider::Unusable { name: name.clone(), reason: reason.clone() });
        }
        let all = || self.default_provider().into_iter().chain(&self.list);
        if let Some(provider) = all().find(declares) {
            return Ok((provider, whole));
        }
        let mut known: Vec<String> = Vec::new();
        all().for_each(|provider| {
            if !known.contains(&provider.name) {
                known.push(provider.name.clone());
            }
        });
        Err(NoProvider::Unknown { name: name.to_owned(), model: whole.to_owned(), known })
    }

    fn default_provider(&self) -> Option<&ProviderConfig> {
        match &self.default {
            Some(name) => self.get(name),
            None => self.list.first(),
        }
    }

    fn require_default(&self) -> Result<&ProviderConfig, NoProvider> {
        if let Some(provider) = self.default_provider() {
            return Ok(provider);
        }
        match &self.default {
            None => Err(NoProvider::Nothing { candidates: self.candidates.clone() }),
            Some(name) => {
                let reason = self.unusable.iter().find(|(unusable, _)| unusable == name);
                let reason =
                    reason.map_or("it is not declared in the settings", |(_, reason)| reason).to_owned();
                Err(NoProvider::Unusable { name: name.clone(), reason })
            }
        }
    }

    pub(crate) fn from_tree(
        tree: &Node,
        sources: &Sources,
        environment: &Environment,
        paths: &Paths,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let mut decide = Decide { sources, environment, paths, warnings };
        let mut providers = Self { candidates: candidates(environment), ..Self::default() };
        providers.default = default_name(tree, sources);
        for member in tree.get("providers").map_or(&[][..], Node::members) {
            let named = ["apiKeyEnv", "authTokenEnv"].iter().filter_map(|key| member.value.get(key)?.text());
            providers.key_variables.extend(named.map(str::to_owned));
            collect_secrets(&member.value, &mut providers.secrets);
            match decide.provider(member) {
                Ok(provider) => {
                    if let Auth::ApiKey(secret) | Auth::Bearer(secret) = &provider.auth {
                        providers.secrets.push(secret.clone());
                    }
                    providers.list.push(provider);
                }
                Err(reason) => providers.unusable.push((member.key.clone(), reason)),
            }
        }
        providers.declare_variable_model(tree, sources);
        let variables = providers.key_variables.iter().map(String::as_str).chain(CREDENTIALS.iter().copied());
        providers.secrets.extend(
            variables.filter_map(|name| environment.get(name)).map(|value| Secret::new(value.trim())),
        );
        providers
    }
}

impl Providers {
    /// `OPENAI_MODEL` and `ANTHROPIC_MODEL` name a model as their provider calls it, slashes and all.
    fn declare_variable_model(&mut self, tree: &Node, sources: &Sources) {
        let Some(node) = tree.get("model") else { return };
        let (Some(name), Some(model)) = (variable_provider(node, sources), node.text()) else { return };
        let Some(provider) = self.list.iter_mut().find(|provider| provider.name == name) else { return };
        if model.contains('/') && !provider.models.iter().any(|known| known == model) {
            provider.models.push(model.to_owned());
        }
    }
}

/// The sealed values of a provider. Short header values are words like `true`, not credentials.
fn collect_secrets(provider: &Node, secrets: &mut Vec<Secret>) {
    for member in provider.members() {
        if let Kind::Secret(secret) = &member.value.kind {
            secrets.push(secret.clone());
        }
    }
    secrets.extend(
        headers(provider).into_iter().map(|(_, value)| value).filter(|value| value.expose().len() >= 12),
    );
}

/// The provider that settings name, or the one whose variable names the model.
fn default_name(tree: &Node, sources: &Sources) -> Option<String> {
    if let Some(name) = tree.get("provider").and_then(Node::text) {
        return Some(name.to_owned());
    }
    variable_provider(tree.get("model")?, sources).map(str::to_owned)
}

/// The provider whose variable a model comes from.
fn variable_provider(model: &Node, sources: &Sources) -> Option<&'static str> {
    match sources.get(model.source).place {
        Place::Variable("ANTHROPIC_MODEL") => Some("anthropic"),
        Place::Variable("OPENAI_MODEL") => Some("openai"),
        _ => None,
    }
}

struct Decide<'a> {
    sources: &'a Sources,
    environment: &'a Environment,
    paths: &'a Paths,
    warnings: &'a mut Vec<Warning>,
}

/// Where a credential may come from, as declared.
enum Given<'a> {
    Value(&'a Secret),
    Variable(&'a str),
    File(&'a str),
}

impl Decide<'_> {
    fn provider(&mut self, member: &Member) -> Result<ProviderConfig, String> {
        let (name, node) = (&member.key, &member.value);
        let kind = match node.get("kind").and_then(Node::text) {
            Some("anthropic") => ProviderKind::Anthropic,
            Some(_) => ProviderKind::OpenAi,
            None => return Err(self.unusable(member, "it has no kind (anthropic or openai)")),
        };
        let Some(address) = node.get("baseUrl") else {
            return Err(self.unusable(member, "it has no baseUrl"));
        };
        let (auth, key_source) =
            self.auth(name, kind, node).map_err(|reason| self.unusable(member, &reason))?;
        // The built-in ones are in the list only if someone uses them.
        if auth == Auth::None && self.sources.layer_of(address) == Layer::Default {
            return Err(format!("it has no key (set {}_API_KEY)", name.to_uppercase()));
        }
        let base_url = address.text().unwrap_or_default().trim_end_matches('/').to_owned();
        self.warn_clear_text(member, &base_url, &auth);
        let milliseconds = |key| node.at_path(key).and_then(Node::integer).map(Duration::from_millis);
        Ok(ProviderConfig {
            name: name.clone(),
            kind,
            base_url,
            auth,
            key_source,
            headers: headers(node),
            betas: texts(node, "betas"),
            models: texts(node, "models"),
            timeouts: Timeouts {
                connect: milliseconds("timeouts.connectMs"),
                first_event: milliseconds("timeouts.firstEventMs"),
                idle: milliseconds("timeouts.idleMs"),
                content: milliseconds("timeouts.contentMs"),
                turn: milliseconds("timeouts.turnMs"),
                patience: milliseconds("timeouts.patienceMs"),
            },
            max_tokens_field: node.get("maxTokensField").and_then(Node::text).map(str::to_owned),
            origin: self.sources.origin(address),
        })
    }

    /// The credential of the highest layer; in one layer a token goes before a key, and a key by reference
    /// before one written down.
    fn auth(
        &mut self,
        name: &str,
        kind: ProviderKind,
        node: &Node,
    ) -> Result<(Auth, Option<KeySource>), String> {
        let keys = ["authToken", "authTokenEnv", "apiKeyEnv", "apiKeyFile", "apiKey"];
        let mut chosen: Option<(&str, &Node)> = None;
        for key in keys {
            let Some(value) = node.get(key) else { continue };
            let higher =
                chosen.is_none_or(|(_, other)| self.sources.layer_of(value) > self.sources.layer_of(other));
            if higher {
                chosen = Some((key, value));
            }
        }
        let Some((key, value)) = chosen else { return Ok((Auth::None, None)) };
        let given = match (&value.kind, key) {
            (Kind::Secret(secret), _) => Given::Value(secret),
            (Kind::Text(text), "apiKeyFile") => Given::File(text),
            (Kind::Text(text), _) => Given::Variable(text),
            _ => return Ok((Auth::None, None)),
        };
        let secret = self.resolve(name, &given, value)?;
        let source = Some(self.key_source(&given, value));
        let is_token = key.starts_with("authToken") || kind == ProviderKind::OpenAi;
        Ok((if is_token { Auth::Bearer(secret) } else { Auth::ApiKey(secret) }, source))
    }

    fn key_source(&self, given: &Given<'_>, node: &Node) -> KeySource {
        let origin = self.sources.origin(node);
        match (given, origin.variable()) {
            (Given::Variable(name), _) => KeySource::Variable((*name).to_owned()),
            (Given::File(text), _) => KeySource::File(self.paths.expand(text, &self.folder_of(node))),
            (Given::Value(_), Some(name)) => KeySource::Variable(name.to_owned()),
            (Given::Value(_), None) => KeySource::Settings(origin),
        }
    }

    fn resolve(&mut self, name: &str, given: &Given<'_>, node: &Node) -> Result<Secret, String> {
        match given {
            Given::Value(secret) => Ok((*secret).clone()),
            Given::Variable(variable) => {
                let value = self.environment.get(variable).map(str::trim);
                let value = value
                    .ok_or_else(|| format!("the variable that holds its key is not set ({variable})"))?;
                secret::check_header_value(value)
                    .map_err(|reason| format!("the key in {variable} {reason}"))?;
                Ok(Secret::new(value))
            }
            Given::File(text) => {
                let path = self.paths.expand(text, &self.folder_of(node));
                let (secret, exposed) = secret::from_file(&path)?;
                if exposed {
                    let text = format!(
                        "others can read the file that holds the key of {name:?} (chmod 600): {path}"
                    );
                    self.warn(WarningKind::ExposedSecret, node, text);
                }
                Ok(secret)
            }
        }
    }

    fn folder_of(&self, node: &Node) -> Utf8PathBuf {
        match &self.sources.get(node.source).place {
            Place::File(file) => file.parent().map_or_else(|| self.paths.cwd.clone(), Utf8Path::to_owned),
            _ => self.paths.cwd.clone(),
        }
    }

    /// A provider that someone declared and that cannot be used is worth a word, also if it is not chosen.
    fn unusable(&mut self, member: &Member, reason: &str) -> String {
        let text = format!("provider {:?} cannot be used: {reason}", member.key);
        self.warn(WarningKind::Ignored, &member.value, text);
        reason.to_owned()
    }

    fn warn_clear_text(&mut self, member: &Member, base_url: &str, auth: &Auth) {
        if *auth != Auth::None && is_clear_text(base_url) {
            let text = format!("the key of {:?} is sent without encryption to {base_url}", member.key);
            self.warn(WarningKind::ExposedSecret, &member.value, text);
        }
    }

    fn warn(&mut self, kind: WarningKind, node: &Node, text: String) {
        self.warnings.push(Warning { kind, origin: Some(self.sources.origin(node)), text });
    }
}

fn texts(node: &Node, key: &str) -> Vec<String> {
    let items = node.get(key).map_or(&[][..], Node::items);
    items.iter().filter_map(Node::text).map(str::to_owned).collect()
}

fn headers(node: &Node) -> Vec<(String, Secret)> {
    let members = node.get("headers").map_or(&[][..], Node::members);
    let secrets = members.iter().filter_map(|member| match &member.value.kind {
        Kind::Secret(secret) => Some((member.key.clone(), secret.clone())),
        _ => None,
    });
    secrets.collect()
}

pub(crate) fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether what is sent to this address can be read by others on its way.
pub(crate) fn is_clear_text(url: &str) -> bool {
    url.starts_with("http://") && !is_loopback(url)
}

pub(crate) fn is_loopback(url: &str) -> bool {
    let host = host_of(url);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Servers that people run locally, at their usual places.
fn candidates(environment: &Environment) -> Vec<Candidate> {
    let ollama = environment.get("OLLAMA_HOST").and_then(ollama_address);
    let ollama = ollama.unwrap_or_else(|| "http://127.0.0.1:11434".to_owned());
    let port = |port: &str| format!("http://127.0.0.1:{port}");
    let own = environment.get("LLAMA_ARG_PORT").filter(|port| port.parse::<u16>().is_ok());
    let places = [
        ("ollama", ollama),
        ("llama.cpp", port(own.unwrap_or("8080"))),
        ("LM Studio", port("1234")),
        ("vLLM", port("8000")),
    ];
    let candidate = |(name, address): (&'static str, String)| Candidate {
        name,
        kind: ProviderKind::OpenAi,
        base_url: format!("{address}/v1"),
    };
    places.into_iter().map(candidate).collect()
}

/// `OLLAMA_HOST` says where the server listens: `host`, `host:port`, `:port` or an address; every interface
/// means this machine to a client.
fn ollama_address(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches('/');
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port)
        }
        _ => (rest, "11434"),
    };
    let host = if matches!(host, "" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { host };
    let address = format!("{scheme}://{host}:{port}");
    crate::check::is_base_url(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_ollama_listens_is_where_we_ask() {
        for (text, expected) in [
            ("0.0.0.0", Some("http://127.0.0.1:11434")),
            ("0.0.0.0:8000", Some("http://127.0.0.1:8000")),
            (":9999", Some("http://127.0.0.1:9999")),
            ("box", Some("http://box:11434")),
            ("https://box.example:443/", Some("https://box.example:443")),
            ("[::1]:11434", Some("http://[::1]:11434")),
            ("[::]:1", Some("http://127.0.0.1:1")),
            ("user:x@evil", None),
            ("ftp://x", None),
            ("a b", None),
        ] {
            assert_eq!(ollama_address(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_usual_addresses_are_those_of_the_defaults() {
        let defaults = include_str!("defaults.jsonc");
        for kind in [ProviderKind::Anthropic, ProviderKind::OpenAi] {
            let declared =
                format!(r#""{0}": {{ "kind": "{0}", "baseUrl": "{1}" }}"#, kind.name(), kind.usual_address());
            assert!(defaults.contains(&declared), "{declared}");
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for url in ["http://localhost:1/v1", "http://127.0.0.1", "http://127.9.9.9:80", "http://[::1]:8/v1"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://127.0.0.1.evil.org", "http://10.0.0.1", "http://localhost.evil", "http://[::2]"] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
