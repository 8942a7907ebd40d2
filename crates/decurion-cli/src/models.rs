//! Names into models. Takes the configured providers, gives a model for an alias, an id, `provider/model` or
//! `scripted:FILE`; one gateway per provider, however many models and agents use it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decurion_config::{Auth, Choice, Layer, Loaded, ProviderConfig, ProviderKind};
use decurion_engine::{Model, Models};
use decurion_model::anthropic::{Anthropic, AnthropicKey, AnthropicSettings};
use decurion_model::catalog::{self, Alias, Catalog, ModelInfo, Price};
use decurion_model::http::{ApiSecret, HttpClient, HttpSettings};
use decurion_model::openai_chat::{self, OpenAiChat, OpenAiChatSettings};
use decurion_model::pace::Pace;
use decurion_model::script::Script;
use decurion_model::script_provider::ScriptedProvider;
use decurion_model::{
    Dialect, Gateway, GatewaySettings, Head, ModelError, ModelProvider, ModelRequest, OutputLimitField,
    StallKind,
};
use decurion_protocol::Message;
use futures_util::StreamExt as _;

use crate::report::{Failure, note};

/// The most tokens asked for in one reply unless the settings say otherwise.
const USUAL_OUTPUT: u64 = 32_000;
/// The most tokens of a reply that only shows that a model answers, and how long that may take.
const SMALLEST_REPLY: u64 = 16;
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long a start waits to learn whether a server wants a key.
const ACCESS_TIME: Duration = Duration::from_secs(3);
/// What stands for "the provider's default model" where no model is named and the provider has none.
const UNNAMED: &str = "default";
/// How many models of a server a message names.
const NAMED_MODELS: usize = 5;

/// The models of this configuration.
pub struct Configured {
    loaded: Arc<Loaded>,
    catalog: Catalog,
    http: HttpClient,
    /// One per provider or script, made when first used.
    gateways: Mutex<HashMap<String, Arc<Gateway>>>,
    embedded: Option<(&'static str, Pace)>,
    /// The model that was named, if any was.
    named: Option<String>,
    /// What a server was asked about its models, by provider: the one to use, or why there is none.
    asked: HashMap<String, Result<String, String>>,
    /// How long a provider may refuse everything where its settings do not say; none waits for ever.
    patience: Option<Duration>,
}

/// How long a provider may refuse everything while no person watches. Limits by the minute are long over by then, and
/// limits by the day would let a job hang.
const UNWATCHED: Duration = Duration::from_mins(15);

/// What a name comes to.
enum Found<'a> {
    Model(Arc<Model>),
    /// An alias that this provider does not map.
    Unmapped(&'a ProviderConfig),
}

impl Configured {
    /// The models of these settings; `model` is the flag's choice, if any.
    pub fn new(loaded: Arc<Loaded>, model: Option<&str>) -> Self {
        let mut catalog = Catalog::builtin();
        extend(&mut catalog, &loaded);
        let named = model.or(loaded.settings.model.as_deref()).map(str::to_owned);
        let connect_timeout = loaded.providers.list().iter().find_map(|provider| provider.timeouts.connect);
        let usual = HttpSettings::default();
        let http = HttpClient::new(HttpSettings {
            connect_timeout: connect_timeout.unwrap_or(usual.connect_timeout),
            ..usual
        });
        let asked = HashMap::new();
        let gateways = Mutex::default();
        Self { loaded, catalog, http, gateways, embedded: None, named, asked, patience: None }
    }

    /// The same where no person watches and could end the waiting.
    #[must_use]
    pub fn unwatched(self) -> Self {
        Self { patience: Some(UNWATCHED), ..self }
    }

    /// Asks the server of the session's model for its models, if that is needed to choose one: none is named, or an
    /// alias without a mapping, at an unknown address.
    pub async fn ask_server(&mut self) -> Result<(), Failure> {
        let name = self.named.clone();
        let provider = match name.as_deref() {
            None => match self.loaded.providers.choose(None)? {
                Choice::Provider { provider, .. } => provider,
                Choice::Scripted { .. } => return Ok(()),
            },
            Some(name) => match self.find(name).map_err(Failure::usage)? {
                Found::Unmapped(provider) => provider,
                Found::Model(_) => return Ok(()),
            },
        };
        if self.default_model(provider).is_ok() {
            return Ok(());
        }
        let (key, listed) = (provider.name.clone(), list(&self.http, provider).await);
        let chosen = match listed {
            Ok(listed) => choose_listed(provider, &listed),
            // It may be a server without such a list.
            Err(error @ (ModelError::Rejected { .. } | ModelError::ModelNotFound { .. })) => {
                Err(format!("its models cannot be listed: {error}"))
            }
            Err(error) => return Err(unlisted(provider, &error)),
        };
        self.asked.insert(key, chosen);
        Ok(())
    }

    /// Fails where the session's provider has no key and its server says that it wants one.
    pub async fn check_access(&self) -> Result<(), Failure> {
        let Ok(Choice::Provider { provider, .. }) = self.loaded.providers.choose(self.named.as_deref())
        else {
            return Ok(());
        };
        let has_credentials = provider.auth != Auth::None || !provider.headers.is_empty();
        if has_credentials || self.asked.contains_key(&provider.name) {
            return Ok(());
        }
        match tokio::time::timeout(ACCESS_TIME, list(&self.http, provider)).await {
            Ok(Err(error @ ModelError::Unauthorized { .. })) => Err(unlisted(provider, &error)),
            _ => Ok(()),
        }
    }

    /// The model of this provider where none is named.
    pub fn default_model(&self, provider: &ProviderConfig) -> Result<String, String> {
        if let Some(first) = provider.models.first() {
            return Ok(first.clone());
        }
        if let Some(asked) = self.asked.get(&provider.name) {
            return asked.clone();
        }
        let is_known = match (provider.name.as_str(), provider.kind) {
            // A gateway in front of Anthropic's models has them by their names.
            ("anthropic", ProviderKind::Anthropic) => true,
            ("openai", ProviderKind::OpenAi) => provider.base_url == provider.kind.usual_address(),
            _ => false,
        };
        if is_known {
            return Ok(Catalog::default_model(dialect(provider.kind)).to_owned());
        }
        Err(format!("no default model is known for the provider {:?}", provider.name))
    }

    /// The same with a script that is part of the program, under the name `scripted:demo`, played at this pace.
    #[must_use]
    pub fn with_embedded(mut self, script: &'static str, pace: Pace) -> Self {
        self.embedded = Some((script, pace));
        self
    }

    /// Names that can be chosen: aliases that mean something, and the models of the providers.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        };
        for provider in self.loaded.providers.list() {
            ["opus", "sonnet", "haiku", "fable"]
                .into_iter()
                .filter(|alias| self.catalog.resolve(&provider.name, alias).is_some())
                .for_each(&mut add);
            provider.models.iter().for_each(|model| add(model));
            let has_aliases = self.catalog.resolve(&provider.name, "sonnet").is_some();
            if let (false, Ok(id)) =
                (has_aliases || !provider.models.is_empty(), self.default_model(provider))
            {
                add(&format!("{}/{id}", provider.name));
            }
        }
        self.loaded.settings.models.aliases.keys().for_each(|alias| add(alias));
        names
    }

    /// The whole name of the model that a session begins with.
    pub fn main_name(&self, wanted: Option<&str>) -> Option<String> {
        let name = wanted.map_or_else(|| self.default_name(), str::to_owned);
        self.find_main(&name).ok().map(|(model, _)| model.name.clone())
    }

    /// How many tokens a model can take, by its whole name; also one whose provider is not set up here.
    pub fn window(&self, name: &str) -> u64 {
        let (provider, id) = name.split_once('/').unwrap_or(("anthropic", name));
        let providers = self.loaded.providers.list();
        let dialect = match providers.iter().find(|known| known.name == provider) {
            Some(provider) => dialect(provider.kind),
            None if provider == "anthropic" => Dialect::Anthropic,
            None => Dialect::OpenAiChat,
        };
        self.catalog.model(dialect, id).window
    }

    fn provider_model(&self, provider: &ProviderConfig, id: String) -> Result<Arc<Model>, String> {
        let gateway = self.gateway(&provider.name, || self.connect(provider))?;
        Ok(Arc::new(self.model(format!("{}/{id}", provider.name), id, gateway, provider)))
    }

    /// What a name comes to: a model, or an alias that its provider does not map.
    fn find(&self, name: &str) -> Result<Found<'_>, String> {
        let choose = |name: &str| self.loaded.providers.choose(Some(name)).map_err(|error| error.to_string());
        let (provider, name) = match choose(name)? {
            Choice::Scripted { file } => return self.scripted(&file).map(Found::Model),
            Choice::Provider { provider, model } => (provider, model.unwrap_or_default()),
        };
        let settings = &self.loaded.settings.models;
        let own = settings.provider_aliases.get(&provider.name).and_then(|aliases| aliases.get(&name));
        let id = match (own, settings.aliases.get(&name), self.catalog.resolve(&provider.name, &name)) {
            (Some(id), _, _) => id.clone(),
            // An alias for all providers stands for a whole name, whose prefix is binding like any other's.
            (None, Some(other), _) => match choose(other)? {
                Choice::Scripted { file } => return self.scripted(&file).map(Found::Model),
                Choice::Provider { model, .. } if !other.contains('/') => model.unwrap_or_default(),
                Choice::Provider { provider, model } => {
                    return self.provider_model(provider, model.unwrap_or_default()).map(Found::Model);
                }
            },
            (None, None, Some(id)) => id.to_owned(),
            (None, None, None) if self.catalog.is_alias(&name) => return Ok(Found::Unmapped(provider)),
            (None, None, None) => name,
        };
        self.provider_model(provider, id).map(Found::Model)
    }

    /// The model of the session's own agent, and what a person should know about the choice.
    fn find_main(&self, name: &str) -> Result<(Arc<Model>, Option<String>), String> {
        let provider = if name == UNNAMED {
            match self.loaded.providers.choose(None).map_err(|error| error.to_string())? {
                Choice::Provider { provider, .. } => provider,
                Choice::Scripted { file } => return Ok((self.scripted(&file)?, None)),
            }
        } else {
            match self.find(name)? {
                Found::Model(model) => return Ok((model, None)),
                Found::Unmapped(provider) => provider,
            }
        };
        let id = self.default_model(provider).map_err(|reason| no_default(provider, &reason))?;
        let model = self.provider_model(provider, id)?;
        let remark = (name != UNNAMED).then(|| {
            format!(
                "{name:?} is not a model of the provider {:?}; using {} (choose with --model, or map {name:?} under \
                 \"models\": {{\"aliases\": …}} in the settings)",
                provider.name, model.id
            )
        });
        Ok((model, remark))
    }

    /// Models to change to when the session's own stays overloaded, as their provider calls them. Only that provider is
    /// asked then, so a model of another one is an error; an alias that the provider does not map is left out.
    pub fn fallback(&self, names: &str) -> Result<Option<String>, Failure> {
        let (main, _) = self.main(&self.default_name()).map_err(Failure::usage)?;
        let provider = |model: &Model| model.name.strip_suffix(&model.id).map(str::to_owned);
        let mut ids: Vec<String> = Vec::new();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let wrong = |reason: String| Failure::usage(format!("the fallback model {name:?}: {reason}"));
            match self.find(name).map_err(wrong)? {
                Found::Model(model) if provider(&model) == provider(&main) => ids.push(model.id.clone()),
                Found::Model(_) => {
                    return Err(wrong(format!("it is not of the same provider as {}", main.name)));
                }
                Found::Unmapped(provider) => note(format!(
                    "the fallback model {name:?} is left out: it is not a model of the provider {:?}",
                    provider.name
                )),
            }
        }
        Ok(Some(ids.join(",")).filter(|ids| !ids.is_empty()))
    }

    fn model(&self, name: String, id: String, gateway: Arc<Gateway>, provider: &ProviderConfig) -> Model {
        let dialect = gateway.dialect();
        let info = self.catalog.model(dialect, &id);
        let output = self.loaded.settings.limits.max_output_tokens.map_or(USUAL_OUTPUT, u64::from);
        let output_limit_field = match provider.max_tokens_field.as_deref() {
            Some("max_completion_tokens") => OutputLimitField::MaxCompletionTokens,
            Some(_) => OutputLimitField::MaxTokens,
            None => openai_chat::usual_limit_field(&id),
        };
        let head = Head {
            model: id.clone(),
            max_output_tokens: output.min(info.max_output),
            effort: self.loaded.settings.effort.clone(),
            output_limit_field,
            ..Head::default()
        };
        Model { name, id, gateway, dialect, info, head }
    }

    fn gateway(
        &self,
        key: &str,
        connect: impl FnOnce() -> Result<Arc<Gateway>, String>,
    ) -> Result<Arc<Gateway>, String> {
        let mut gateways = self.gateways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gateway) = gateways.get(key) {
            return Ok(Arc::clone(gateway));
        }
        let gateway = connect()?;
        gateways.insert(key.to_owned(), Arc::clone(&gateway));
        Ok(gateway)
    }

    fn connect(&self, config: &ProviderConfig) -> Result<Arc<Gateway>, String> {
        let provider =
            connected(&self.http, config).map_err(|error| format!("provider {:?}: {error}", config.name))?;
        Ok(Arc::new(Gateway::new(provider, self.gateway_settings(config))))
    }

    fn gateway_settings(&self, config: &ProviderConfig) -> GatewaySettings {
        let (usual, timeouts) = (GatewaySettings::default(), &config.timeouts);
        GatewaySettings {
            first_event: timeouts.first_event.unwrap_or(usual.first_event),
            idle: timeouts.idle.unwrap_or(usual.idle),
            content: timeouts.content.unwrap_or(usual.content),
            turn: timeouts.turn.unwrap_or(usual.turn),
            patience: timeouts.patience.or(self.patience),
            provider: config.name.clone(),
            key_source: Some(access_words(config)),
            // Two processes that start together must not retry together.
            seed: u64::from(std::process::id()),
            ..usual
        }
    }

    fn scripted(&self, file: &str) -> Result<Arc<Model>, String> {
        let gateway = self.gateway(&format!("scripted:{file}"), || {
            let embedded = self.embedded.as_ref().filter(|_| file == "demo");
            let text = match embedded {
                Some((script, _)) => (*script).to_owned(),
                None => std::fs::read_to_string(file)
                    .map_err(|error| format!("cannot read the script {file}: {error}"))?,
            };
            let pace = embedded.map(|(_, pace)| pace.clone()).unwrap_or_default();
            let script = Script::parse(&text).map_err(|error| format!("{file}: {error}"))?;
            let provider = Arc::new(ScriptedProvider::new(script).with_pace(pace));
            let settings = GatewaySettings { patience: self.patience, ..GatewaySettings::default() };
            Ok(Arc::new(Gateway::new(provider, settings)))
        })?;
        let dialect = gateway.dialect();
        let info = self.catalog.model(dialect, "scripted");
        let head = Head { model: "scripted".into(), max_output_tokens: 8_192, ..Head::default() };
        let name = format!("scripted:{file}");
        Ok(Arc::new(Model { name, id: "scripted".into(), gateway, dialect, info, head }))
    }
}

impl Models for Configured {
    fn resolve(&self, name: &str) -> Result<Arc<Model>, String> {
        if name == UNNAMED {
            return self.find_main(name).map(|(model, _)| model);
        }
        match self.find(name)? {
            Found::Model(model) => Ok(model),
            Found::Unmapped(provider) => {
                Err(format!("{name:?} is not a model of the provider {:?}", provider.name))
            }
        }
    }

    fn main(&self, name: &str) -> Result<(Arc<Model>, Option<String>), String> {
        self.find_main(name)
    }

    fn sibling(&self, of: &Model, id: &str) -> ModelInfo {
        self.catalog.model(of.dialect, id)
    }

    fn default_name(&self) -> String {
        self.named.clone().unwrap_or_else(|| UNNAMED.to_owned())
    }
}

/// A provider of this configuration; nothing is sent yet.
fn connected(http: &HttpClient, config: &ProviderConfig) -> Result<Arc<dyn ModelProvider>, ModelError> {
    let headers: Vec<(String, String)> =
        config.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
    let base_url = config.base_url.clone();
    let http = http.clone();
    Ok(match config.kind {
        ProviderKind::Anthropic => {
            let key = match &config.auth {
                Auth::ApiKey(secret) => AnthropicKey::ApiKey(ApiSecret::new(secret.expose())),
                Auth::Bearer(secret) => AnthropicKey::Bearer(ApiSecret::new(secret.expose())),
                Auth::None => AnthropicKey::None,
            };
            let settings = AnthropicSettings { base_url, key, betas: config.betas.clone(), headers };
            Arc::new(Anthropic::new(http, settings)?)
        }
        ProviderKind::OpenAi => {
            let key = match &config.auth {
                Auth::ApiKey(secret) | Auth::Bearer(secret) => Some(ApiSecret::new(secret.expose())),
                Auth::None => None,
            };
            let settings = OpenAiChatSettings { base_url, key, headers };
            Arc::new(OpenAiChat::new(http, settings)?)
        }
    })
}

/// Asks a provider for its models.
pub async fn list(http: &HttpClient, config: &ProviderConfig) -> Result<Vec<String>, ModelError> {
    let listed = connected(http, config)?.models().await;
    listed.map_err(|error| error.with_key_source(Some(&access_words(config))))
}

/// Where a provider's key and address come from and how to change them, for a person whose key was refused.
fn access_words(config: &ProviderConfig) -> String {
    let key = config.key_source.as_ref().map_or_else(|| "no key is set".to_owned(), ToString::to_string);
    let address = match config.origin.layer {
        Layer::Default => String::new(),
        _ => format!("; address {} from {}", config.base_url, config.origin),
    };
    format!("{key}{address}; `decurion login`, in a conversation /login, sets up a provider")
}

/// A provider that cannot be asked for its models. Without a cause that naming a model would help against, this is what
/// ends the start.
fn unlisted(provider: &ProviderConfig, error: &ModelError) -> Failure {
    match error {
        ModelError::Unauthorized { .. } => Failure::failed(error.to_string()),
        ModelError::Unreachable { .. } | ModelError::Stalled { .. } | ModelError::Reset { .. } => {
            Failure::failed(format!("the server at {} does not answer: {error}", provider.base_url))
                .hint(format!("check that it runs; its address is from {}", provider.origin))
        }
        _ => Failure::failed(format!(
            "the models of the server at {} cannot be listed: {error}",
            provider.base_url
        )),
    }
}

/// Whether a model answers, found out with the smallest request there is.
pub async fn answers(http: &HttpClient, config: &ProviderConfig, id: &str) -> Result<(), ModelError> {
    let provider = connected(http, config)?;
    let head = Head {
        model: id.to_owned(),
        max_output_tokens: SMALLEST_REPLY,
        output_limit_field: openai_chat::usual_limit_field(id),
        ..Head::default()
    };
    let dialect = dialect(config.kind);
    let messages = vec![dialect.message(&Message::user("hi"))];
    let mut reply = provider.stream(ModelRequest::new(Arc::new(dialect.head(&head)), messages));
    // That it is accepted is answer enough; dropping the stream ends the rest.
    match tokio::time::timeout(ANSWER_TIME, reply.next()).await {
        Ok(Some(Err(error))) => Err(error),
        Ok(Some(Ok(_))) => Ok(()),
        Ok(None) => Err(ModelError::Empty { request_id: None }),
        Err(_) => {
            Err(ModelError::Stalled { what: StallKind::FirstEvent, after: ANSWER_TIME, request_id: None })
        }
    }
}

/// The one of a server's models to use where none is named.
fn choose_listed(provider: &ProviderConfig, listed: &[String]) -> Result<String, String> {
    if let Some(id) = Catalog::choose(dialect(provider.kind), listed) {
        return Ok(id.to_owned());
    }
    let usable = catalog::conversational(listed);
    let some: Vec<&str> = usable.iter().take(NAMED_MODELS).copied().collect();
    Err(match usable.len() {
        0 => format!("the server at {} lists no model", provider.base_url),
        count => {
            format!("the server at {} has {count} models, such as {}", provider.base_url, some.join(", "))
        }
    })
}

/// That a provider has no default model, why, and what to do.
fn no_default(provider: &ProviderConfig, reason: &str) -> String {
    format!(
        "no default model for the provider {:?}: {reason}; choose one with --model, or set \"model\": \"{}/…\" in the \
         settings",
        provider.name, provider.name
    )
}

pub fn dialect(kind: ProviderKind) -> Dialect {
    match kind {
        ProviderKind::Anthropic => Dialect::Anthropic,
        ProviderKind::OpenAi => Dialect::OpenAiChat,
    }
}

/// Adds what the settings say about models.
fn extend(catalog: &mut Catalog, loaded: &Loaded) {
    let models = &loaded.settings.models;
    let entries = models.catalogue.iter().map(|(name, entry)| {
        let usual = catalog.model(Dialect::Anthropic, name);
        let nano = |dollars: Option<f64>, usual: u64| dollars.map_or(usual, nano_dollars_per_token);
        let known = usual.price.unwrap_or_default();
        let priced = entry.input_price.is_some() || entry.output_price.is_some() || usual.price.is_some();
        let input = nano(entry.input_price, known.input);
        let price = Price {
            input,
            output: nano(entry.output_price, known.output),
            cache_read: nano(entry.cache_read_price, known.cache_read),
            cache_write: nano(entry.cache_write_price, known.cache_write.max(input)),
            cache_write_hour: nano(entry.cache_write_price, known.cache_write_hour.max(input)),
        };
        ModelInfo {
            name: name.clone(),
            window: entry.window.unwrap_or(usual.window),
            max_output: entry.max_output.unwrap_or(usual.max_output),
            price: priced.then_some(price),
        }
    });
    let entries = entries.collect();
    let aliases = models.provider_aliases.iter().flat_map(|(provider, aliases)| {
        aliases.iter().map(|(alias, model)| Alias {
            provider: provider.clone(),
            alias: alias.clone(),
            model: model.clone(),
        })
    });
    catalog.extend(entries, aliases.collect());
}

/// A dollar per million tokens is 1,000 nano-dollars per token.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // prices are small and checked
fn nano_dollars_per_token(dollars_per_million: f64) -> u64 {
    (dollars_per_million * 1_000.0).round() as u64
}
