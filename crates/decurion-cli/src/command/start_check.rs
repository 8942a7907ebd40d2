//! Whether a session can start. Takes a request for settings, gives them with a usable model, or the problem and who
//! can solve it.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_config::{Candidate, ConfigError, Layer, LoadRequest, Loaded, NoProvider, Paths};
use decurion_engine::Models as _;
use decurion_protocol::{OpenSession, Start};

use super::run::block_on;
use crate::discover;
use crate::models::Configured;
use crate::report::{Failure, note};

/// Why a session cannot start with these settings.
pub enum Trouble {
    /// They cannot be read; with the file, where it is the user's own.
    Unreadable {
        own_file: Option<Utf8PathBuf>,
        /// What is wrong with it.
        failure: Failure,
    },
    /// No model can be used: none is configured, or what is wrong with the one that is.
    NoModel {
        /// Where settings can be written.
        paths: Box<Paths>,
        /// Servers of this machine that were tried.
        candidates: Vec<Candidate>,
        /// What is wrong with the model that is configured.
        problem: Option<Failure>,
    },
    /// The same where the user's settings decide nothing: a flag, a variable or the project's files do.
    Elsewhere(Failure),
}

impl Trouble {
    /// The failure that ends the program; what was shown already is not repeated.
    pub fn into_failure(self, is_shown: bool) -> Failure {
        match self {
            Self::Unreadable { own_file: Some(_), .. } | Self::NoModel { problem: Some(_), .. }
                if is_shown =>
            {
                Failure::usage("nothing was changed")
            }
            Self::Unreadable { failure, .. } | Self::Elsewhere(failure) => failure,
            Self::NoModel { candidates, problem, .. } => {
                problem.unwrap_or_else(|| NoProvider::Nothing { candidates }.into())
            }
        }
    }
}

/// The settings of this request, if a session can start with them. Whether the model's own provider can say which model
/// it has is tried too where a person can do something about it.
pub fn startable(request: &LoadRequest, try_model: bool) -> Result<Arc<Loaded>, Trouble> {
    let load = |request: &LoadRequest| {
        decurion_config::load(request).map(Arc::new).map_err(|error| unreadable(request, error))
    };
    let loaded = load(request)?;
    let problem = match loaded.choice() {
        Ok(_) if !try_model => return Ok(loaded),
        Ok(_) => {
            let tried = block_on(async {
                let mut models = Configured::new(Arc::clone(&loaded), None);
                models.ask_server().await?;
                models.check_access().await?;
                models.main(&models.default_name()).map(drop).map_err(Failure::usage)
            });
            return match tried.flatten() {
                Ok(()) => Ok(loaded),
                Err(failure) => Err(about_model(&loaded, failure)),
            };
        }
        Err(NoProvider::Nothing { candidates }) => {
            // Nothing is configured: a server on this machine will do.
            if let Some(local) = discover::find(&candidates) {
                note(format!("using {} at {} with the model {}", local.name, local.base_url, local.model));
                return load(&with_local(request.clone(), &local));
            }
            let paths = Box::new(loaded.paths.clone());
            return Err(Trouble::NoModel { paths, candidates, problem: None });
        }
        Err(error) => error,
    };
    Err(about_model(&loaded, problem.into()))
}

/// What to do about a file of the repository.
const WITHOUT_PROJECT: &str = "The file may forbid something, so no session starts without it: correct it, or leave \
                               the folder's settings out with --setting-sources user";

fn unreadable(request: &LoadRequest, error: ConfigError) -> Trouble {
    let Ok(paths) = Paths::discover(&request.cwd, &request.environment) else {
        return Trouble::Unreadable { own_file: None, failure: error.into() };
    };
    let is_project = error.file().is_some_and(|file| file.starts_with(&paths.root));
    let own = paths.state.map(|state| state.join("settings.json"));
    let own_file = own.filter(|own| error.file() == Some(own.as_path()));
    let failure = if own_file.is_none() && is_project && request.flags.settings.is_none() {
        Failure::usage(format!("{error}\n{WITHOUT_PROJECT}"))
    } else {
        error.into()
    };
    Trouble::Unreadable { own_file, failure }
}

/// A model that cannot be used, with the setting that names it.
fn about_model(loaded: &Loaded, failure: Failure) -> Trouble {
    let origin = loaded.origin("model");
    let is_own = origin.as_ref().is_none_or(|origin| matches!(origin.layer, Layer::Default | Layer::User));
    let failure = with_place(loaded, failure);
    if !is_own {
        return Trouble::Elsewhere(failure);
    }
    let candidates = loaded.providers.candidates().to_vec();
    Trouble::NoModel { paths: Box::new(loaded.paths.clone()), candidates, problem: Some(failure) }
}

/// The failure with the place of the setting that names the model.
fn with_place(loaded: &Loaded, failure: Failure) -> Failure {
    match loaded.origin("model") {
        Some(origin) => failure.hint(format!(
            "\"model\" is set in {origin}: change it there, or choose another model with --model"
        )),
        None => failure,
    }
}

/// The models of a session, its own one decided, which may take asking a server what it has.
pub async fn models_of(
    loaded: &Arc<Loaded>,
    request: &mut OpenSession,
    watched: bool,
) -> Result<Configured, Failure> {
    let models = Configured::new(Arc::clone(loaded), request.model.as_deref());
    let mut models = if watched { models } else { models.unwatched() };
    // A resumed session has its model in the journal.
    if matches!(request.start, Start::New { .. }) || request.model.is_some() {
        models.ask_server().await?;
        let decided = models.main(&models.default_name());
        if let (_, Some(remark)) = decided.map_err(|reason| with_place(loaded, Failure::usage(reason)))? {
            note(remark);
        }
    }
    if let Some(names) = &request.fallback_model {
        request.fallback_model = models.fallback(names)?;
    }
    Ok(models)
}

/// The same request with a local server as its provider.
fn with_local(mut request: LoadRequest, local: &discover::Local) -> LoadRequest {
    request.environment = request.environment.with([
        ("OPENAI_BASE_URL", local.base_url.as_str()),
        ("OPENAI_API_KEY", "none"),
        ("OPENAI_MODEL", local.model.as_str()),
    ]);
    request
}
