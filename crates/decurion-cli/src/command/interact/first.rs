//! What is asked before anything is shown: which model to use where none is configured, and whether to trust the folder.
//! Takes what was found, asks at the terminal in plain lines, gives what was decided.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use decurion_config::{
    BaseUrl, Candidate, Loaded, NewProvider, Paths, Secret, Trust, TrustState, keep_provider,
};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::report::{Failure, note, visible};

/// What somebody without a model wants.
pub enum Begin {
    /// A provider was written into the settings.
    Configured,
    /// A server on this machine was started meanwhile: look again.
    LookAgain,
    /// To see it work first.
    Demo,
    /// Nothing.
    Leave,
}

/// Whether there is somebody to ask.
pub fn somebody() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Asks which model to use.
pub fn choose(paths: &Paths, candidates: &[Candidate]) -> Result<Begin, Failure> {
    let tried: Vec<&str> = candidates.iter().map(|local| local.base_url.as_str()).collect();
    say!("Welcome to Decurion. It needs a model, and none is configured yet.\n");
    say!("  1  a key for Anthropic");
    say!("  2  a key for OpenAI, or another server that speaks its protocol");
    say!("  3  a server on this machine (Ollama, llama.cpp); nothing answered at {}", tried.join(", "));
    say!("  4  see it work first: a demo, offline, without a key\n");
    loop {
        return match asked("Which (1-4, enter to leave)? ")?.as_str() {
            "1" => provider(paths, "anthropic", "anthropic", None),
            "2" => provider(paths, "openai", "openai", address()?),
            "3" => {
                asked("Start it (for example `ollama serve`), then press enter: ")?;
                Ok(Begin::LookAgain)
            }
            "4" => Ok(Begin::Demo),
            "" => Ok(Begin::Leave),
            other => {
                say!("There is no {} among them.", visible(other));
                continue;
            }
        };
    }
}

/// Asks where a server is until that can be kept: settings that cannot be read would be the end of every later start.
fn address() -> Result<Option<BaseUrl>, Failure> {
    loop {
        let given = asked("Its address (enter for https://api.openai.com/v1): ")?;
        if given.is_empty() {
            return Ok(None);
        }
        match BaseUrl::parse(&given) {
            Ok(address) => return Ok(Some(address)),
            Err(expected) => say!("That is not {expected}: {}", visible(&given)),
        }
    }
}

fn provider(
    paths: &Paths,
    name: &'static str,
    kind: &'static str,
    address: Option<BaseUrl>,
) -> Result<Begin, Failure> {
    let key = secret("The key (it is not shown; enter to leave): ")?;
    if key.is_empty() && address.is_none() {
        return Ok(Begin::Leave);
    }
    let model = asked("Its model (enter for the usual one): ")?;
    if paths.state.is_none() {
        return Err(Failure::usage("there is no home folder").hint("set DECURION_HOME"));
    }
    paths.prepare().map_err(|problem| Failure::failed(problem.to_string()))?;
    let key = (!key.is_empty()).then(|| Secret::new(key));
    let about_key =
        if key.is_some() { "; the key is in a file beside it that only you can read" } else { "" };
    let provider =
        NewProvider { name, kind, address, key, model: Some(model).filter(|model| !model.is_empty()) };
    let file = keep_provider(paths, &provider).map_err(|error| {
        Failure::usage(format!("the provider is not kept: {error}"))
            .hint("mend that file, or add \"providers\" to it yourself; README.md shows how")
    })?;
    note(format!("kept in {file}{about_key}"));
    Ok(Begin::Configured)
}

/// Shows what this folder's files would do and asks whether they may. A no changes nothing, and is asked again next time.
pub fn trust(loaded: &Loaded) -> Result<bool, Failure> {
    let parts = loaded.project_parts.parts().len();
    let (TrustState::Untrusted { changed, .. }, 1..) = (&loaded.trust, parts) else { return Ok(false) };
    let since = if *changed { " (they have changed since you trusted them)" } else { "" };
    say!("The files of this folder would run programs or widen what is allowed{since}:\n");
    super::super::trust::show(&loaded.project_parts);
    say!("");
    let answer = asked("Trust them (y), or go on without (enter)? ")?;
    if !matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(false);
    }
    let (mut trust, _) = Trust::open(&loaded.paths);
    trust
        .trust_folder(&loaded.paths.root, &loaded.project_parts)
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(true)
}

/// A line from the terminal.
fn asked(question: &str) -> Result<String, Failure> {
    let gone = |error: std::io::Error| Failure::failed(format!("nobody answers: {error}"));
    let mut out = std::io::stdout();
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(gone)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(gone)?;
    Ok(line.trim().to_owned())
}

/// The same without showing what is typed.
fn secret(question: &str) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    let before = tcgetattr(&stdin).ok();
    if let Some(before) = &before {
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(&stdin, OptionalActions::Flush, &hidden);
    }
    let answer = asked(question);
    if let Some(before) = &before {
        let _ = tcsetattr(&stdin, OptionalActions::Flush, before);
    }
    say!("");
    answer
}
