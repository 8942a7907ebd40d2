//! A provider that a person has just named. Takes what they said of it; writes it into their own settings, and its key
//! into a file beside those that nobody else reads; gives the settings' file.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};

use super::{KeepError, lock, place, placed, text, write};
use crate::check::is_base_url;
use crate::edit::{self, EditError};
use crate::origin::{Layer, Origin};
use crate::paths::Paths;
use crate::provider::{
    Auth, KeySource, ProviderConfig, ProviderKind, Timeouts, host_of, is_clear_text, is_loopback,
};
use crate::record;
use crate::schema::Shape;
use crate::secret::Secret;

/// What is to be known of it.
#[derive(Clone, Debug)]
pub struct NewProvider {
    /// Its name in the settings, which is also that of its key's file.
    pub name: String,
    pub kind: ProviderKind,
    /// Where it is, if not where such providers are.
    pub address: Option<BaseUrl>,
    pub key: Option<Secret>,
    /// The environment variable that holds the key, which is then not saved.
    pub key_variable: Option<&'static str>,
    /// The model to use, as the provider calls it.
    pub model: Option<String>,
}

impl NewProvider {
    /// The provider as it would be loaded from the settings, to be tried before it is kept.
    pub fn config(&self) -> ProviderConfig {
        let address = self.address.as_ref().map_or(self.kind.usual_address(), |address| &address.0);
        ProviderConfig {
            name: self.name.clone(),
            kind: self.kind,
            base_url: address.trim_end_matches('/').to_owned(),
            auth: match (&self.key, self.kind) {
                (None, _) => Auth::None,
                (Some(key), ProviderKind::Anthropic) => Auth::ApiKey(key.clone()),
                (Some(key), ProviderKind::OpenAi) => Auth::Bearer(key.clone()),
            },
            key_source: self.key_variable.map(|name| KeySource::Variable(name.to_owned())),
            headers: Vec::new(),
            betas: Vec::new(),
            models: Vec::new(),
            timeouts: Timeouts::default(),
            max_tokens_field: None,
            origin: Origin::of_user_settings(),
        }
    }
}

/// An address that the settings take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The address, or what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        if is_base_url(text) { Ok(Self(text.to_owned())) } else { Err(Shape::Url.expected()) }
    }

    /// The address as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What a provider at this address is called in the settings, where nobody gave it a name: the host without what all
    /// such hosts have in common.
    pub fn provider_name(&self) -> String {
        let host = host_of(&self.0).to_ascii_lowercase();
        if is_loopback(&self.0) {
            return "local".to_owned();
        }
        let labels: Vec<&str> = host.split('.').collect();
        let name = match labels.as_slice() {
            _ if host.parse::<std::net::IpAddr>().is_ok() => "server",
            [.., name, _top] => name,
            [name] => name,
            [] => "",
        };
        let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        let is_name = !name.is_empty() && name.chars().all(fits);
        if is_name { name.to_owned() } else { "server".to_owned() }
    }

    /// Whether what is sent there can be read by others on its way.
    pub fn is_clear_text(&self) -> bool {
        is_clear_text(&self.0)
    }
}

/// Writes a provider into the user's settings, as the one that is used. What else is there stays as it is written; a link
/// stays one, and the file that it leads to is changed.
pub fn keep_provider(paths: &Paths, provider: &NewProvider) -> Result<Utf8PathBuf, KeepError> {
    let state = paths.state.as_deref().ok_or(KeepError::NoFile("there is no home folder"))?;
    let file = state.join("settings.json");
    let _held = lock(paths)?;
    let place = place(paths, Layer::User, &file)?;
    let before = text(&place)?.unwrap_or_default();
    let changed = with(&before, provider)
        .map_err(|error| KeepError::Text { file: file.clone(), problem: placed(&error) })?;
    // The key first: settings must not name a file that is not there.
    if let (Some(key), None) = (&provider.key, provider.key_variable) {
        keep_key(paths, &state.join(key_file(provider)), key)?;
    }
    write(&place, &changed)?;
    Ok(file)
}

/// The settings with this provider, in the place of one of its name.
fn with(text: &str, provider: &NewProvider) -> Result<String, EditError> {
    let name = provider.name.as_str();
    let mut text = edit::set(text, &["providers", name], &json!({}))?;
    let declared = [
        ("kind", Some(provider.kind.name().to_owned())),
        ("baseUrl", provider.address.as_ref().map(|address| address.0.clone())),
        ("apiKeyEnv", provider.key_variable.map(str::to_owned)),
        (
            "apiKeyFile",
            (provider.key.is_some() && provider.key_variable.is_none()).then(|| key_file(provider)),
        ),
    ];
    for (key, value) in declared {
        if let Some(value) = value {
            text = edit::set(&text, &["providers", name, key], &Value::from(value))?;
        }
    }
    text = edit::set(&text, &["provider"], &Value::from(name))?;
    match &provider.model {
        Some(model) => edit::set(&text, &["model"], &Value::from(format!("{name}/{model}"))),
        None => Ok(text),
    }
}

/// Where its key is, as the settings beside it name it.
fn key_file(provider: &NewProvider) -> String {
    format!("keys/{}", provider.name)
}

/// Settings are shown and shared; a key is kept beside them, for its owner alone.
fn keep_key(paths: &Paths, file: &Utf8Path, key: &Secret) -> Result<(), KeepError> {
    let io = |source| KeepError::Io { file: file.to_owned(), source };
    let place = place(paths, Layer::User, file)?;
    let folder = place.parent().unwrap_or(&place);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
    record::replace(&place, format!("{}\n", key.expose()).as_bytes(), None).map_err(io)
}
