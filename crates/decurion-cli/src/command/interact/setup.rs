//! Setting up a provider at the terminal. Takes a person's answers, tries them with real requests, and writes settings only
//! once they work; gives the provider that was written.

use decurion_config::{
    BaseUrl, Environment, NewProvider, Paths, ProviderKind, Secret, address_variable, keep_provider,
    key_variable, overriding,
};
use decurion_model::ModelError;
use decurion_model::catalog::{Catalog, conversational};
use decurion_model::http::HttpClient;
use decurion_tui::form::Tone;

use super::first_start::Set;
use super::form::{FormAnswer, FormRow, Questions};
use crate::discover::Local;
use crate::models::{answers, dialect, list};
use crate::report::{Failure, visible};

/// What a person wants to set up.
pub enum WantedProvider {
    /// The provider that this dialect is named after, and whether a key in the environment may be used for it.
    Kind(ProviderKind, bool),
    /// Another server that speaks OpenAI's.
    Server,
    /// A server that runs on this machine.
    Local(Local),
}

/// Why the questions end before there is something to keep.
enum SetupStop {
    /// The person gave up.
    GivenUp,
    /// They want other answers.
    Change,
    /// They cannot be asked.
    Failed(Failure),
}

impl From<Failure> for SetupStop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A provider that answers.
struct ReachedProvider {
    provider: NewProvider,
    /// The models that it lists; empty where it has no list.
    models: Vec<String>,
}

/// Asks for a provider and its key, tries both, asks for the model, tries that and keeps them. None if the person gave up,
/// and nothing was written.
pub async fn provider(
    form: &mut Questions,
    paths: &Paths,
    environment: &Environment,
    wanted: WantedProvider,
) -> Result<Option<Set>, Failure> {
    if paths.state.is_none() {
        return Err(Failure::usage("there is no home folder").hint("set DECURION_HOME"));
    }
    let (provider, model) = loop {
        match working(form, environment, &wanted).await {
            Ok(working) => break working,
            Err(SetupStop::Change) => {}
            Err(SetupStop::GivenUp) => return Ok(None),
            Err(SetupStop::Failed(failure)) => return Err(failure),
        }
    };
    keep(form, paths, &provider)?;
    warn_overridden(form, environment, &provider)?;
    Ok(Some(Set { model: format!("{}/{model}", provider.name), provider: provider.name }))
}

/// A provider and its model, both tried.
async fn working(
    form: &mut Questions,
    environment: &Environment,
    wanted: &WantedProvider,
) -> Result<(NewProvider, String), SetupStop> {
    let ReachedProvider { provider, models } = reach(form, environment, wanted).await?;
    let model = choose_model(form, &provider, &models).await?;
    Ok((NewProvider { model: Some(model.clone()), ..provider }, model))
}

/// Asks until there is a provider that answers.
async fn reach(
    form: &mut Questions,
    environment: &Environment,
    wanted: &WantedProvider,
) -> Result<ReachedProvider, SetupStop> {
    let http = HttpClient::default();
    let mut provider = questions(form, environment, wanted).await?;
    loop {
        let config = provider.config();
        let words = format!("Checking {}", host_of(&config.base_url));
        let Some(listed) = form.wait(&words, list(&http, &config)).await? else {
            return Err(SetupStop::GivenUp);
        };
        let error = match listed {
            Ok(models) => {
                let key = if provider.key.is_some() { "The key works" } else { "The server answers" };
                form.say(Tone::Good, &format!("✓ {key}: {}.", count(&models)))?;
                return Ok(ReachedProvider { provider, models });
            }
            // Where the key comes from was asked just now.
            Err(error) => error.with_key_source(None),
        };
        form.say(Tone::Bad, &format!("✗ This does not work: {}.", visible(&error.to_string())))?;
        match error {
            ModelError::Unauthorized { .. } => {
                // A server that was given no key wants one.
                provider.key = Some(key(form).await?);
                provider.key_variable = None;
            }
            // It may be a server without such a list: the model's name shows whether it converses.
            ModelError::Rejected { .. } | ModelError::ModelNotFound { .. } if provider.address.is_some() => {
                form.say(
                    Tone::Plain,
                    "The server does not list its models there. Is the address right? It often ends in /v1.",
                )?;
                if again(form, "Name the model").await? {
                    return Ok(ReachedProvider { provider, models: Vec::new() });
                }
            }
            _ => {
                again(form, "Try again").await?;
            }
        }
    }
}

fn count(models: &[String]) -> String {
    match models.len() {
        0 => "it lists no models".to_owned(),
        1 => "1 model".to_owned(),
        more => format!("{more} models"),
    }
}

fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    visible(rest.split('/').next().unwrap_or_default())
}

/// Asks what to do about something that does not work; `yes` continues with the same answers.
async fn again(form: &mut Questions, yes: &str) -> Result<bool, SetupStop> {
    let rows = [
        FormRow::new("yes", yes, ""),
        FormRow::new("change", "Change the answers", ""),
        FormRow::new("quit", "Back, without saving", ""),
    ];
    match form.choose("What now?", &rows, 0, None).await? {
        Some(FormAnswer::Row(id)) if id == "yes" => Ok(true),
        Some(FormAnswer::Row(id)) if id == "change" => Err(SetupStop::Change),
        _ => Err(SetupStop::GivenUp),
    }
}

/// The address, where it can be another one, and the key.
async fn questions(
    form: &mut Questions,
    environment: &Environment,
    wanted: &WantedProvider,
) -> Result<NewProvider, SetupStop> {
    let own = |kind: ProviderKind| kind.name().to_owned();
    match wanted {
        WantedProvider::Kind(kind, offers_key) => {
            // A gateway that everybody there goes through, and whose key it then is.
            let (name, given) = address_variable(environment, *kind).unzip();
            let address = given.and_then(|given| BaseUrl::parse(given).ok());
            if let (Some(name), Some(address)) = (name, &address) {
                form.say(Tone::Plain, &format!("The server is {} ({name}).", visible(address.as_str())))?;
                warn_clear_text(form, address)?;
            }
            let found = key_variable(environment, *kind).filter(|_| *offers_key);
            let (key_variable, key) = match found {
                Some((name, found)) if uses_variable(form, name).await? => (Some(name), found),
                _ => (None, key(form).await?),
            };
            Ok(NewProvider {
                name: own(*kind),
                kind: *kind,
                address,
                key: Some(key),
                key_variable,
                model: None,
            })
        }
        WantedProvider::Server => {
            let address = address(form).await?;
            let key = optional_key(form, "API key (hidden; Enter for none): ").await?;
            let (name, kind) = (address.provider_name(), ProviderKind::OpenAi);
            Ok(NewProvider { name, kind, address: Some(address), key, key_variable: None, model: None })
        }
        WantedProvider::Local(local) => {
            let address = BaseUrl::parse(&local.base_url);
            let address = address.map_err(|expected| Failure::usage(format!("expected {expected}")))?;
            let kind = ProviderKind::OpenAi;
            let name = local.provider_name();
            Ok(NewProvider { name, kind, address: Some(address), key: None, key_variable: None, model: None })
        }
    }
}

/// Asks where a server is until that can be kept.
async fn address(form: &mut Questions) -> Result<BaseUrl, SetupStop> {
    loop {
        let given = form.line("Address (for example https://openrouter.ai/api/v1): ").await?;
        let given = given.filter(|given| !given.is_empty()).ok_or(SetupStop::GivenUp)?;
        match BaseUrl::parse(&given) {
            Ok(address) => {
                warn_clear_text(form, &address)?;
                return Ok(address);
            }
            Err(expected) => {
                form.say(Tone::Bad, &format!("That is not {expected}: {}", visible(&given)))?;
            }
        }
    }
}

fn warn_clear_text(form: &mut Questions, address: &BaseUrl) -> Result<(), Failure> {
    if !address.is_clear_text() {
        return Ok(());
    }
    form.say(
        Tone::Bad,
        "Warning: http:// is not encrypted. Others on the network can read the key and the code.",
    )
}

async fn key(form: &mut Questions) -> Result<Secret, SetupStop> {
    optional_key(form, "API key (hidden; Enter to cancel): ").await?.ok_or(SetupStop::GivenUp)
}

/// Whether the key in this variable is to be used.
async fn uses_variable(form: &mut Questions, name: &str) -> Result<bool, SetupStop> {
    let rows = [
        FormRow::new("yes", "Yes", "the settings will name the variable; the key itself is not saved"),
        FormRow::new("no", "No, enter another key", ""),
    ];
    match form.choose(&format!("{name} is set. Use it?"), &rows, 0, None).await? {
        Some(FormAnswer::Row(id)) => Ok(id == "yes"),
        _ => Err(SetupStop::GivenUp),
    }
}

/// A key; none if nothing was written.
async fn optional_key(form: &mut Questions, question: &str) -> Result<Option<Secret>, SetupStop> {
    loop {
        let given = form.hidden(question).await?.ok_or(SetupStop::GivenUp)?;
        if given.trim().is_empty() {
            return Ok(None);
        }
        match Secret::for_header(&given) {
            Ok(key) => return Ok(Some(key)),
            Err(reason) => form.say(Tone::Bad, &format!("This key {reason}. Try again."))?,
        }
    }
}

/// Asks for the model until it is one that answers.
async fn choose_model(
    form: &mut Questions,
    provider: &NewProvider,
    listed: &[String],
) -> Result<String, SetupStop> {
    let known = conversational(listed);
    let usual = Catalog::choose(dialect(provider.kind), listed);
    let usual = usual.and_then(|usual| known.iter().position(|id| *id == usual));
    let rows: Vec<FormRow> = known
        .iter()
        .enumerate()
        .map(|(at, id)| FormRow::new(*id, visible(id), if Some(at) == usual { "recommended" } else { "" }))
        .collect();
    loop {
        let chosen = match rows.as_slice() {
            [] => form.line("Model: ").await?.filter(|id| !id.is_empty()).map(FormAnswer::Written),
            // There is nothing to choose.
            [only] if provider.key.is_none() => Some(FormAnswer::Row(only.id.clone())),
            rows => form.choose("Model:", rows, usual.unwrap_or(0), Some("model id")).await?,
        };
        let id = match chosen {
            None => return Err(SetupStop::GivenUp),
            // That of a server on this machine may have to be loaded first, and costs nothing to have.
            Some(FormAnswer::Row(id)) if provider.key.is_none() => return Ok(id),
            Some(FormAnswer::Row(id) | FormAnswer::Written(id)) => id,
        };
        let words = format!("Checking {} with a short request", visible(&id));
        let tried = form.wait(&words, answers(&HttpClient::default(), &provider.config(), &id)).await?;
        match tried {
            None => return Err(SetupStop::GivenUp),
            Some(Ok(())) => {
                form.say(Tone::Good, &format!("✓ {} answers.", visible(&id)))?;
                return Ok(id);
            }
            Some(Err(error)) => {
                let text = format!("✗ {} does not work: {}.", visible(&id), visible(&error.to_string()));
                form.say(Tone::Bad, &text)?;
                again(form, "Choose another model, or try again").await?;
            }
        }
    }
}

/// Says which variables win over what was saved when the program is started the next time.
fn warn_overridden(
    form: &mut Questions,
    environment: &Environment,
    provider: &NewProvider,
) -> Result<(), Failure> {
    let mut variables = overriding(environment, &provider.name);
    // What says the same as what was saved changes nothing.
    let same = |name: &str| {
        provider.key_variable == Some(name)
            || environment.get(name) == provider.address.as_ref().map(BaseUrl::as_str)
    };
    variables.retain(|name| !same(name));
    if variables.is_empty() {
        return Ok(());
    }
    form.say(
        Tone::Bad,
        &format!(
            "{}: set in the environment, ignored by this session.\nAt the next start the environment wins over what \
             was saved. To use what was saved:\n  unset {}",
            variables.join(", "),
            variables.join(" ")
        ),
    )
}

fn keep(form: &mut Questions, paths: &Paths, provider: &NewProvider) -> Result<(), Failure> {
    paths.prepare().map_err(|problem| Failure::failed(problem.to_string()))?;
    let file = keep_provider(paths, provider).map_err(|error| {
        Failure::usage(format!("the provider is not saved: {error}"))
            .hint("correct that file, or add \"providers\" to it yourself; docs/src/models.md shows how")
    })?;
    let short = paths.home.as_ref().and_then(|home| file.strip_prefix(home).ok());
    let file = short.map_or_else(|| file.to_string(), |rest| format!("~/{rest}"));
    let about_key = match (provider.key_variable, &provider.key) {
        (Some(name), _) => format!(" (key: {name})"),
        (None, Some(_)) => " (key stored separately, mode 0600)".to_owned(),
        (None, None) => String::new(),
    };
    form.say(Tone::Good, &format!("✓ Saved to {file}{about_key}."))
}
