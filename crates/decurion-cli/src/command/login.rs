//! `decurion login`: sets up a model provider at any time. Takes a person's answers at the terminal, gives settings that
//! work; the same questions as at the first start.

use decurion_config::{LoadRequest, Loaded, Paths};
use decurion_exec::keeper::Leash;

use super::interact::first_start::{self, Begin, Set, SetupReason};
use super::interact::form::Questions;
use super::interact::{self, keep};
use super::run::block_on;
use crate::args::LoginArgs;
use crate::report::{Failure, note};
use crate::wire;

/// Asks, tries and writes.
pub fn run(args: &LoginArgs) -> Result<u8, Failure> {
    if !first_start::somebody() {
        return Err(Failure::usage("not a terminal: `decurion login` asks questions")
            .hint("without one, set ANTHROPIC_API_KEY, or OPENAI_API_KEY (and OPENAI_BASE_URL for another server),")
            .hint("or write \"providers\" into ~/.decurion/settings.json (docs/src/models.md shows how)"));
    }
    // Who waits for us gives the terminal back, however this ends.
    let Some(keeper) = args.kept_by else { return keep(1) };
    let _leash = Leash::to(keeper).map_err(|error| {
        Failure::failed(format!("the process that keeps the terminal, {keeper}: {error}"))
    })?;
    let (cwd, environment) = wire::surroundings()?;
    let request = LoadRequest::new(cwd, environment.clone());
    let plain = args.plain || interact::is_dumb(&environment);
    let set = block_on(async {
        let mut form = Questions::take(&environment, plain, None)?;
        let asked = ask(&mut form, &request).await;
        form.end().await?;
        asked
    })??;
    let Some(set) = set else {
        note("nothing was changed");
        return Ok(1);
    };
    let loaded = decurion_config::inspect(&request)?;
    if let Some(origin) = loaded.origin("model")
        && loaded.settings.model.as_deref() != Some(&set.model)
    {
        note(format!("\"model\" is also set in {origin}, which wins here over {}", set.model));
    }
    say!("`decurion` starts a conversation with {}.", crate::report::visible(&set.model));
    Ok(0)
}

/// Asks with the settings as they are, until they can be read.
async fn ask(form: &mut Questions, request: &LoadRequest) -> Result<Option<Set>, Failure> {
    let loaded: Loaded = loop {
        let error = match decurion_config::inspect(request) {
            Ok(loaded) => break loaded,
            Err(error) => error,
        };
        let paths = Paths::discover(&request.cwd, &request.environment)?;
        let own = paths.state.map(|state| state.join("settings.json"));
        match own.filter(|own| error.file() == Some(own.as_path())) {
            Some(own) => match first_start::correct(form, &own, &error.into()).await? {
                Begin::LookAgain => {}
                _ => return Ok(None),
            },
            None => return Err(error.into()),
        }
    };
    let now = loaded.settings.model.as_deref();
    let around = (&loaded.paths, &request.environment);
    match first_start::choose(form, around, loaded.providers.candidates(), SetupReason::Wished(now)).await? {
        Begin::Use(set) => Ok(Some(set)),
        _ => Ok(None),
    }
}
