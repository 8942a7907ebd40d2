//! Setting up a provider at the terminal. Takes a person's answers, tries them with real requests, and writes settings only
//! once they work; gives the provider that was written.

use decurion_config::{
    BaseUrl, Environment, NewProvider, Paths, ProviderKind, Secret, keep_provider, overriding,
};
use decurion_model::ModelError;
use decurion_model::catalog::{Catalog, conversational};
use decurion_model::http::Http;

use super::first::{ask, ask_hidden};
use crate::command::run::block_on;
use crate::models::{answers, dialect, list};
use crate::report::{Failure, visible};

/// How many models of a server are shown.
const SHOWN_MODELS: usize = 10;

/// Why the questions end before there is something to keep.
enum Stop {
    /// The person gave up.
    GivenUp,
    /// They cannot be asked.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A provider that answers.
struct Reached {
    provider: NewProvider,
    /// The models that it lists; empty where it has no list.
    models: Vec<String>,
}

/// Asks for a provider and its key, tries both, asks for the model and keeps them. Gives the provider's name; none
/// if the person gave up, and nothing was written.
pub fn provider(
    paths: &Paths,
    environment: &Environment,
    kind: ProviderKind,
) -> Result<Option<&'static str>, Failure> {
    if paths.state.is_none() {
        return Err(Failure::usage("there is no home folder").hint("set DECURION_HOME"));
    }
    let asked = reach(kind).and_then(|Reached { provider, models }| {
        let model = Some(choose_model(&provider, &models)?);
        Ok(NewProvider { model, ..provider })
    });
    match asked {
        Ok(provider) => {
            keep(paths, &provider)?;
            warn_overridden(&overriding(environment, provider.name));
            Ok(Some(provider.name))
        }
        Err(Stop::GivenUp) => Ok(None),
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

/// Asks until there is a provider that answers.
fn reach(kind: ProviderKind) -> Result<Reached, Stop> {
    let http = Http::default();
    let mut provider = questions(kind)?;
    loop {
        say!("Checking …");
        let error = match block_on(list(&http, &provider.config()))? {
            Ok(models) => return Ok(Reached { provider, models }),
            Err(error) => error,
        };
        say!("This does not work: {}.", visible(&error.to_string()));
        match error {
            ModelError::Unauthorized { .. } => provider.key = Some(key()?),
            // It may be a server without such a list: the model's name shows whether it converses.
            ModelError::Rejected { .. } if provider.address.is_some() => {
                say!(
                    "The server does not list its models there. Is the address right? It often ends in /v1."
                );
                match line("c to change the answers, q to quit without saving, or Enter to name the model: ")?
                    .as_str()
                {
                    "" => return Ok(Reached { provider, models: Vec::new() }),
                    "c" => provider = questions(kind)?,
                    _ => return Err(Stop::GivenUp),
                }
            }
            _ => match line("Enter to try again, c to change the answers, q to quit without saving: ")?
                .as_str()
            {
                "" => {}
                "c" => provider = questions(kind)?,
                _ => return Err(Stop::GivenUp),
            },
        }
    }
}

fn line(question: &str) -> Result<String, Stop> {
    ask(question)?.ok_or(Stop::GivenUp)
}

/// The address, where it can be another one, and the key.
fn questions(kind: ProviderKind) -> Result<NewProvider, Stop> {
    let address = match kind {
        ProviderKind::Anthropic => None,
        ProviderKind::OpenAi => address(kind)?,
    };
    let key = if address.is_some() { optional_key()? } else { Some(key()?) };
    Ok(NewProvider { name: kind.name(), kind, address, key, model: None })
}

/// Asks where a server is until that can be kept; none is the usual address.
fn address(kind: ProviderKind) -> Result<Option<BaseUrl>, Stop> {
    loop {
        let given = line(&format!("Address [{}]: ", kind.usual_address()))?;
        if given.is_empty() {
            return Ok(None);
        }
        match BaseUrl::parse(&given) {
            Ok(address) => {
                if address.is_clear_text() {
                    say!(
                        "Warning: http:// is not encrypted. Others on the network can read the key and the code."
                    );
                }
                return Ok(Some(address));
            }
            Err(expected) => say!("That is not {expected}: {}", visible(&given)),
        }
    }
}

fn key() -> Result<Secret, Stop> {
    let given = ask_hidden("API key (hidden; Enter to cancel): ")?.filter(|key| !key.is_empty());
    given.map(Secret::new).ok_or(Stop::GivenUp)
}

/// The key of a server that may need none.
fn optional_key() -> Result<Option<Secret>, Stop> {
    let given = ask_hidden("API key (hidden; Enter for none): ")?.ok_or(Stop::GivenUp)?;
    Ok(Some(given).filter(|key| !key.is_empty()).map(Secret::new))
}

/// Asks for the model until it is one that answers.
fn choose_model(provider: &NewProvider, listed: &[String]) -> Result<String, Stop> {
    let usual = Catalog::choose(dialect(provider.kind), listed);
    let known = conversational(listed);
    if let (None, [_, ..]) = (usual, known.as_slice()) {
        let shown: Vec<String> = known.iter().take(SHOWN_MODELS).map(|id| visible(id)).collect();
        let more = known.len().saturating_sub(SHOWN_MODELS);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        say!("Models: {}{more}", shown.join(", "));
    }
    let question = match usual {
        Some(usual) => format!("Model [{}]: ", visible(usual)),
        None => "Model (q to quit without saving): ".to_owned(),
    };
    loop {
        let id = match (line(&question)?, usual) {
            (given, Some(usual)) if given.is_empty() => usual.to_owned(),
            (given, None) if given == "q" => return Err(Stop::GivenUp),
            (given, None) if given.is_empty() => continue,
            (given, _) => given,
        };
        if listed.contains(&id) {
            return Ok(id);
        }
        say!("Checking …");
        match block_on(answers(&Http::default(), &provider.config(), &id))? {
            Ok(()) => return Ok(id),
            Err(error) => say!("{:?} does not work: {}.", visible(&id), visible(&error.to_string())),
        }
    }
}

/// Says which variables win over what was saved when the program is started the next time.
fn warn_overridden(variables: &[&str]) {
    if variables.is_empty() {
        return;
    }
    say!("{}: set in the environment, ignored by this session.", variables.join(", "));
    say!(
        "At the next start the environment wins over what was saved. To use what was saved: unset {}",
        variables.join(" ")
    );
}

fn keep(paths: &Paths, provider: &NewProvider) -> Result<(), Failure> {
    paths.prepare().map_err(|problem| Failure::failed(problem.to_string()))?;
    let file = keep_provider(paths, provider).map_err(|error| {
        Failure::usage(format!("the provider is not saved: {error}"))
            .hint("correct that file, or add \"providers\" to it yourself; README.md shows how")
    })?;
    let short = paths.home.as_ref().and_then(|home| file.strip_prefix(home).ok());
    let file = short.map_or_else(|| file.to_string(), |rest| format!("~/{rest}"));
    let about_key = if provider.key.is_some() { " (key stored separately, mode 0600)" } else { "" };
    say!("Saved to {file}{about_key}.");
    Ok(())
}
