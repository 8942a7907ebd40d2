//! What is asked before anything is shown: which model to use where none is configured, and whether to trust the folder.
//! Takes what was found, asks at the terminal in plain lines, gives what was decided.

use std::io::{BufRead as _, Write as _};

use camino::Utf8Path;
use decurion_config::{Candidate, Environment, Loaded, Paths, ProviderKind, Trust, TrustState};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::setup;
use crate::report::{Failure, visible};
use crate::screen;

/// What a person without a working model wants.
pub enum Begin {
    /// Settings were written, a server was started or a file was changed meanwhile: look again.
    LookAgain,
    /// A provider of this name was set up and tried: use it, whatever the environment says.
    Use(&'static str),
    /// To see it work first.
    Demo,
    /// Nothing.
    Leave,
}

/// Whether there is somebody to ask.
pub fn somebody() -> bool {
    screen::is_interactive()
}

/// Asks which model to use; `problem` says why the one that is configured cannot be, if one is.
pub fn choose(
    (paths, environment): (&Paths, &Environment),
    candidates: &[Candidate],
    problem: Option<&Failure>,
) -> Result<Begin, Failure> {
    let tried: Vec<&str> = candidates.iter().map(|local| local.base_url.as_str()).collect();
    match problem {
        None => say!("Welcome to Decurion. No model is configured yet. Choose one:\n"),
        Some(problem) => {
            problem.print();
            say!("\nSet up a model again:\n");
        }
    }
    say!("  1  Anthropic, with an API key");
    say!("  2  OpenAI, or another server that speaks its protocol");
    say!("  3  a server on this machine (Ollama, llama.cpp); nothing answered at {}", tried.join(", "));
    say!("  4  see it work first: a demo, offline, without a key\n");
    loop {
        let Some(answer) = ask("Choose 1–4 (Enter to quit): ")? else { return Ok(Begin::Leave) };
        let kind = match answer.as_str() {
            "1" => ProviderKind::Anthropic,
            "2" => ProviderKind::OpenAi,
            "3" => {
                let started = ask("Start it (for example `ollama serve`), then press Enter: ")?;
                return Ok(if started.is_some() { Begin::LookAgain } else { Begin::Leave });
            }
            "4" => return Ok(Begin::Demo),
            "" => return Ok(Begin::Leave),
            other => {
                say!("{:?} isn't one of the options.", visible(other));
                continue;
            }
        };
        if let Some(name) = setup::provider(paths, environment, kind)? {
            return Ok(Begin::Use(name));
        }
        say!("Nothing was saved.");
    }
}

/// Asks what to do about settings of the user's that cannot be read.
pub fn correct(file: &Utf8Path, problem: &Failure) -> Result<Begin, Failure> {
    problem.print();
    say!("\nCorrect {file} in another terminal or an editor.");
    let answer = ask("Enter to try again, m to move the file aside and set up again, q to quit: ")?;
    match answer.as_deref() {
        Some("") => Ok(Begin::LookAgain),
        Some("m") => {
            let free = |path: &String| !Utf8Path::new(path).exists();
            let aside = (1..1_000).map(|count| format!("{file}.broken{count}")).find(free);
            let aside = aside.ok_or_else(|| Failure::failed(format!("too many broken copies of {file}")))?;
            std::fs::rename(file, &aside)
                .map_err(|error| Failure::failed(format!("cannot move {file} to {aside}: {error}")))?;
            say!("Moved to {aside}.");
            Ok(Begin::LookAgain)
        }
        _ => Ok(Begin::Leave),
    }
}

/// Shows what this folder's files would do and asks whether they may. A no changes nothing, and is asked again next time.
pub fn trust(loaded: &Loaded) -> Result<bool, Failure> {
    let parts = loaded.project_parts.parts().len();
    let (TrustState::Untrusted { changed, .. }, 1..) = (&loaded.trust, parts) else { return Ok(false) };
    let since = if *changed { " (they have changed since you trusted them)" } else { "" };
    say!("The files of this folder would run programs or widen what is allowed{since}:\n");
    super::super::trust::show(&loaded.project_parts);
    say!("");
    let answer = ask("Trust them (y), or go on without (enter)? ")?.unwrap_or_default();
    if !matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(false);
    }
    let (mut trust, _) = Trust::open(&loaded.paths);
    trust
        .trust_folder(&loaded.paths.root, &loaded.project_parts)
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(true)
}

/// A line from the terminal; none at the end of input.
pub fn ask(question: &str) -> Result<Option<String>, Failure> {
    let gone = |error: std::io::Error| Failure::failed(format!("the terminal cannot be read: {error}"));
    let mut out = screen::stdout();
    out.write_all(question.as_bytes()).and_then(|()| out.flush()).map_err(gone)?;
    let mut line = String::new();
    let count = std::io::stdin().lock().read_line(&mut line).map_err(gone)?;
    Ok((count > 0).then(|| line.trim().to_owned()))
}

/// The same without showing what is typed.
pub fn ask_hidden(question: &str) -> Result<Option<String>, Failure> {
    let stdin = std::io::stdin();
    let before = tcgetattr(&stdin).ok();
    if let Some(before) = &before {
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        let _ = tcsetattr(&stdin, OptionalActions::Flush, &hidden);
    }
    let answer = ask(question);
    if let Some(before) = &before {
        let _ = tcsetattr(&stdin, OptionalActions::Flush, before);
    }
    say!("");
    answer
}
