//! What is asked before anything is shown: which model to use where none can be, and whether to trust the folder. Takes
//! what was found; asks at the terminal; gives what was decided.

use camino::Utf8Path;
use decurion_config::{Candidate, Environment, Loaded, Paths, ProviderKind, Trust, TrustState};
use decurion_tui::form::Tone;

use super::form::{FormAnswer, FormRow, Questions};
use super::setup::{self, WantedProvider};
use crate::discover;
use crate::report::{Failure, visible};
use crate::screen;

/// What a person without a working model wants.
pub enum Begin {
    /// A server was started or a file was changed meanwhile: look again.
    LookAgain,
    /// This provider was set up and tried: use it, even against the environment.
    Use(Set),
    /// To see it work first.
    Demo,
    Leave,
}

/// A provider that was set up.
pub struct Set {
    pub provider: String,
    /// The model, behind that name.
    pub model: String,
}

/// Whether there is a person to ask.
pub fn somebody() -> bool {
    screen::is_interactive()
}

/// The reason to ask for a provider.
pub enum SetupReason<'a> {
    First,
    /// The one that is configured cannot be used.
    Problem(&'a Failure),
    /// The person wants another one; the model that is used now, if any.
    Wished(Option<&'a str>),
}

/// Asks for a provider until one is set up, or the person leaves.
pub async fn choose(
    form: &mut Questions,
    (paths, environment): (&Paths, &Environment),
    candidates: &[Candidate],
    why: SetupReason<'_>,
) -> Result<Begin, Failure> {
    // One that is set and does not work is not offered.
    let offers_key = !matches!(why, SetupReason::Problem(_));
    let title = match why {
        SetupReason::First => {
            form.say(Tone::Plain, "Welcome to Decurion. No model is configured yet.")?;
            "Choose a model provider:".to_owned()
        }
        SetupReason::Problem(problem) => {
            form.say_failure(problem)?;
            form.say(Tone::Plain, "")?;
            "Set up a model again:".to_owned()
        }
        SetupReason::Wished(now) => {
            let now = now.map(|now| format!(" (now: {})", visible(now))).unwrap_or_default();
            format!("Choose a model provider{now}:")
        }
    };
    loop {
        let found = discover::find_all(candidates);
        let mut rows = vec![
            FormRow::new("anthropic", "Anthropic", "with an API key"),
            FormRow::new("openai", "OpenAI", "with an API key"),
        ];
        rows.extend(found.iter().map(|local| {
            FormRow::new(&local.base_url, local.name, format!("running at {}", local.base_url))
        }));
        rows.push(FormRow::new(
            "server",
            "Another server",
            "OpenAI-compatible: its address, and a key if it needs one",
        ));
        if found.is_empty() {
            rows.push(FormRow::new(
                "look",
                "A local server",
                "Ollama, llama.cpp, LM Studio or vLLM; none is running",
            ));
        }
        if !matches!(why, SetupReason::Wished(_)) {
            rows.push(FormRow::new("demo", "Demo", "see it work first, offline and without a key"));
        }
        let Some(FormAnswer::Row(id)) = form.choose(&title, &rows, 0, None).await? else {
            return Ok(Begin::Leave);
        };
        let wanted = match id.as_str() {
            "anthropic" => WantedProvider::Kind(ProviderKind::Anthropic, offers_key),
            "openai" => WantedProvider::Kind(ProviderKind::OpenAi, offers_key),
            "server" => WantedProvider::Server,
            "demo" => return Ok(Begin::Demo),
            "look" => {
                let question = "Start it (for example `ollama serve`), then press Enter: ";
                if form.line(question).await?.is_some() && discover::find_all(candidates).is_empty() {
                    form.say(Tone::Bad, &format!("Nothing answers on {}.", discover::ports(candidates)))?;
                }
                continue;
            }
            address => match found.into_iter().find(|local| local.base_url == address) {
                Some(local) => WantedProvider::Local(local),
                None => continue,
            },
        };
        if let Some(set) = setup::provider(form, paths, environment, wanted).await? {
            return Ok(Begin::Use(set));
        }
        form.say(Tone::Plain, "Nothing was saved.")?;
    }
}

/// Asks what to do about settings of the user's that cannot be read.
pub async fn correct(form: &mut Questions, file: &Utf8Path, problem: &Failure) -> Result<Begin, Failure> {
    form.say_failure(problem)?;
    let rows = [
        FormRow::new("again", "Try again", "once it is corrected, in another terminal or an editor"),
        FormRow::new("aside", "Move the file aside", "and set up again; nothing in it is lost"),
        FormRow::new("quit", "Quit", ""),
    ];
    let question = format!("What about {}?", visible(file.as_str()));
    match form.choose(&question, &rows, 0, None).await? {
        Some(FormAnswer::Row(id)) if id == "again" => Ok(Begin::LookAgain),
        Some(FormAnswer::Row(id)) if id == "aside" => {
            let free = |path: &String| !Utf8Path::new(path).exists();
            let aside = (1..1_000).map(|count| format!("{file}.broken{count}")).find(free);
            let aside = aside.ok_or_else(|| Failure::failed(format!("too many broken copies of {file}")))?;
            std::fs::rename(file, &aside)
                .map_err(|error| Failure::failed(format!("cannot move {file} to {aside}: {error}")))?;
            form.say(Tone::Plain, &format!("Moved to {aside}."))?;
            Ok(Begin::LookAgain)
        }
        _ => Ok(Begin::Leave),
    }
}

/// Whether this folder's files hold something that was neither trusted nor declined.
pub fn is_undecided(loaded: &Loaded) -> bool {
    let (trust, _) = Trust::open(&loaded.paths);
    matches!(loaded.trust, TrustState::Untrusted { .. })
        && !loaded.project_parts.parts().is_empty()
        && !trust.is_declined(&loaded.paths.root, &loaded.project_parts)
}

/// Shows what this folder's files would do and asks whether they may; remembers either answer. Without an answer the
/// question comes again next time.
pub async fn trust(form: &mut Questions, loaded: &Loaded) -> Result<bool, Failure> {
    let since = match loaded.trust {
        TrustState::Untrusted { changed: true, .. } => " They have changed since you trusted them.",
        _ => "",
    };
    form.say(
        Tone::Plain,
        &format!("This folder's settings would run programs or grant permissions.{since}\n"),
    )?;
    for line in super::super::trust::lines(&loaded.project_parts) {
        form.say(Tone::Plain, &line)?;
    }
    form.say(Tone::Plain, "")?;
    let rows = [
        FormRow::new("no", "No, continue without them", "`decurion trust` changes that"),
        FormRow::new("yes", "Yes, trust this folder", "you'll be asked again if any of this changes"),
    ];
    let question = format!("Trust {}?", visible(loaded.paths.root.as_str()));
    let Some(FormAnswer::Row(answer)) = form.choose(&question, &rows, 0, None).await? else {
        return Ok(false);
    };
    let (mut trust, _) = Trust::open(&loaded.paths);
    let (root, parts) = (&loaded.paths.root, &loaded.project_parts);
    let recorded = match answer.as_str() {
        "yes" => trust.trust_folder(root, parts),
        _ => trust.decline(root, parts),
    };
    recorded.map_err(|error| Failure::usage(error.to_string()))?;
    Ok(answer == "yes")
}
