//! Names into models. Takes the configured providers, gives a model for an alias, an id, `provider/model` or
//! `scripted:FILE`; one gateway per provider, however many models and agents use it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use decurion_config::{Auth, Choice, Loaded, ProviderConfig, ProviderKind};
use decurion_engine::{Model, Models};
use decurion_model::anthropic::{Anthropic, AnthropicKey, AnthropicSettings};
use decurion_model::catalog::{Alias, Catalog, ModelInfo, Price};
use decurion_model::http::{Http, HttpSettings, Secret};
use decurion_model::openai_chat::{OpenAiChat, OpenAiChatSettings};
use decurion_model::script::Script;
use decurion_model::scripted::ScriptedProvider;
use decurion_model::{Gateway, GatewaySettings, Head, ModelProvider, OutputLimitField};

/// The most tokens asked for in one reply unless the settings say otherwise.
const USUAL_OUTPUT: u64 = 32_000;
/// The model asked for where nobody names one, as an alias.
const USUAL_MODEL: &str = "sonnet";

/// The models of this configuration.
pub struct Configured {
    loaded: Arc<Loaded>,
    catalog: Catalog,
    http: Http,
    /// One per provider or script, made when first used.
    gateways: Mutex<HashMap<String, Arc<Gateway>>>,
    embedded: Option<&'static str>,
    default: String,
}

impl Configured {
    /// The models of these settings; `model` is the flag's choice, if any.
    pub fn new(loaded: Arc<Loaded>, model: Option<&str>) -> Self {
        let mut catalog = Catalog::builtin();
        extend(&mut catalog, &loaded);
        let default = model.or(loaded.settings.model.as_deref()).unwrap_or(USUAL_MODEL).to_owned();
        let connect_timeout = loaded.providers.list().iter().find_map(|provider| provider.timeouts.connect);
        let usual = HttpSettings::default();
        let http = Http::new(HttpSettings {
            connect_timeout: connect_timeout.unwrap_or(usual.connect_timeout),
            ..usual
        });
        Self { loaded, catalog, http, gateways: Mutex::default(), embedded: None, default }
    }

    /// The same with a script that is part of the program, under the name `scripted:demo`.
    #[must_use]
    pub fn with_embedded(mut self, script: &'static str) -> Self {
        self.embedded = Some(script);
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
        }
        self.loaded.settings.models.aliases.keys().for_each(|alias| add(alias));
        names
    }

    /// How many tokens each can take, by its whole name.
    pub fn windows(&self) -> BTreeMap<String, u64> {
        let models = std::iter::once(self.default_name()).chain(self.names());
        let windows = models.filter_map(|name| self.resolve(&name).ok());
        windows.map(|model| (model.name.clone(), model.info.window)).collect()
    }

    fn provider_model(&self, provider: &ProviderConfig, name: Option<&str>) -> Result<Arc<Model>, String> {
        let name = name.unwrap_or(USUAL_MODEL);
        let id = self.model_id(provider, name)?;
        let gateway = self.gateway(&provider.name, || self.connect(provider))?;
        Ok(Arc::new(self.model(format!("{}/{id}", provider.name), id, gateway, provider)))
    }

    /// What a provider calls a model. An alias that means nothing there falls back to its first model.
    fn model_id(&self, provider: &ProviderConfig, name: &str) -> Result<String, String> {
        let aliases = &self.loaded.settings.models;
        if let Some(id) = aliases.alias(&provider.name, name) {
            return Ok(id.to_owned());
        }
        if let Some(id) = self.catalog.resolve(&provider.name, name) {
            return Ok(id.to_owned());
        }
        if !self.catalog.is_alias(name) {
            return Ok(name.to_owned());
        }
        provider.models.first().cloned().ok_or_else(|| {
            format!(
                "the alias {name:?} means no model of the provider {:?}; name a model with --model, or map the \
                 alias under \"models\": {{\"aliases\": …}} in the settings",
                provider.name
            )
        })
    }

    fn model(&self, name: String, id: String, gateway: Arc<Gateway>, provider: &ProviderConfig) -> Model {
        let dialect = gateway.dialect();
        let info = self.catalog.model(dialect, &id);
        let output = self.loaded.settings.limits.max_output_tokens.map_or(USUAL_OUTPUT, u64::from);
        let output_limit_field = match provider.max_tokens_field.as_deref() {
            Some("max_completion_tokens") => OutputLimitField::MaxCompletionTokens,
            _ => OutputLimitField::MaxTokens,
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
        let wrong = |error: decurion_model::ModelError| format!("provider {:?}: {error}", config.name);
        let headers: Vec<(String, String)> =
            config.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
        let base_url = config.base_url.clone();
        let http = self.http.clone();
        let provider: Arc<dyn ModelProvider> = match config.kind {
            ProviderKind::Anthropic => {
                let key = match &config.auth {
                    Auth::ApiKey(secret) => AnthropicKey::ApiKey(Secret::new(secret.expose())),
                    Auth::Bearer(secret) => AnthropicKey::Bearer(Secret::new(secret.expose())),
                    Auth::None => AnthropicKey::None,
                };
                let settings = AnthropicSettings { base_url, key, betas: config.betas.clone(), headers };
                Arc::new(Anthropic::new(http, settings).map_err(wrong)?)
            }
            ProviderKind::OpenAi => {
                let key = match &config.auth {
                    Auth::ApiKey(secret) | Auth::Bearer(secret) => Some(Secret::new(secret.expose())),
                    Auth::None => None,
                };
                let settings = OpenAiChatSettings { base_url, key, headers };
                Arc::new(OpenAiChat::new(http, settings).map_err(wrong)?)
            }
        };
        Ok(Arc::new(Gateway::new(provider, gateway_settings(config))))
    }

    fn scripted(&self, file: &str) -> Result<Arc<Model>, String> {
        let gateway = self.gateway(&format!("scripted:{file}"), || {
            let text = match self.embedded.filter(|_| file == "demo") {
                Some(script) => script.to_owned(),
                None => std::fs::read_to_string(file)
                    .map_err(|error| format!("cannot read the script {file}: {error}"))?,
            };
            let script = Script::parse(&text).map_err(|error| format!("{file}: {error}"))?;
            let provider = Arc::new(ScriptedProvider::new(script));
            Ok(Arc::new(Gateway::new(provider, GatewaySettings::default())))
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
        match self.loaded.providers.choose(Some(name)).map_err(|error| error.to_string())? {
            Choice::Scripted { file } => self.scripted(&file),
            Choice::Provider { provider, model } => self.provider_model(provider, model.as_deref()),
        }
    }

    fn default_name(&self) -> String {
        self.default.clone()
    }
}

fn gateway_settings(config: &ProviderConfig) -> GatewaySettings {
    let usual = GatewaySettings::default();
    GatewaySettings {
        first_event: config.timeouts.first_event.unwrap_or(usual.first_event),
        content: config.timeouts.idle.unwrap_or(usual.content),
        turn: config.timeouts.turn.unwrap_or(usual.turn),
        // Two processes that start together must not retry together.
        seed: u64::from(std::process::id()),
        ..usual
    }
}

/// Adds what the settings say about models.
fn extend(catalog: &mut Catalog, loaded: &Loaded) {
    let models = &loaded.settings.models;
    let entries = models.catalogue.iter().map(|(name, entry)| {
        let usual = catalog.model(decurion_model::Dialect::Anthropic, name);
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
