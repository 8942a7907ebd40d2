//! Errors into words. Takes what went wrong, prints one clear message and hints about what to do, gives the
//! exit code.

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

use decurion_config::{ConfigError, NoProvider};
use decurion_protocol::PlaceError;
use decurion_protocol::visible::is_hidden;

use crate::screen::{self, TextStyle};

/// Something a person must know before the program ends.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    /// What to do about it, one line each.
    pub hints: Vec<String>,
    pub code: u8,
}

/// The exit code of usage and configuration errors.
pub const USAGE: u8 = 2;
/// The exit code of work that failed.
pub const FAILED: u8 = 1;
/// The exit code when the reader of the output is gone: that of a program that SIGPIPE ended.
const READER_GONE: i32 = 141;

impl Failure {
    /// The command line or configuration is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), hints: Vec::new(), code: USAGE }
    }

    /// Something did not work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), hints: Vec::new(), code: FAILED }
    }

    /// The same with one more hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Prints it and gives its exit code.
    pub fn report(self) -> ExitCode {
        self.print();
        ExitCode::from(self.code)
    }

    pub fn print(&self) {
        note(&self.message);
        for hint in &self.hints {
            let _ = screen::stderr().write_all(format!("  {hint}\n").as_bytes());
        }
    }
}

/// A stranger's text, fit for a terminal: what would move the cursor, hide text or turn it around is seen.
pub fn visible(text: &str) -> String {
    let mut seen = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            seen.extend(character.escape_default());
        } else {
            seen.push(character);
        }
    }
    seen
}

/// The same for a text of several lines.
pub fn visible_lines(text: &str) -> String {
    text.lines().map(visible).collect::<Vec<_>>().join("\n")
}

/// Prints a line on standard output, as `println!` does but for a reader that has gone.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::report::line(format_args!($($text)*))
    };
}

/// One line on standard output.
pub fn line(text: std::fmt::Arguments<'_>) {
    written(screen::stdout().write_all(format!("{text}\n").as_bytes()));
}

/// One line of parts on standard output, each in its style where colours are shown.
pub fn styled_line(parts: &[(TextStyle, &str)], has_colours: bool) {
    written(screen::write_styled(parts, has_colours));
}

/// A reader that has gone, such as `head`, has seen enough: the program ends as others do then. Other write errors are
/// reported.
fn written(result: std::io::Result<()>) {
    let Err(error) = result else { return };
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(READER_GONE);
    }
    note(format_args!("standard output cannot be written: {error}"));
    std::process::exit(i32::from(FAILED));
}

/// One line on standard error. A terminal that is gone reads nothing, and that is no reason to fail.
pub fn note(text: impl Display) {
    let _ = screen::stderr().write_all(format!("decurion: {text}\n").as_bytes());
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let problems = error.each();
        if let [only] = problems {
            return Self::usage(only.to_string());
        }
        let failure = Self::usage(format!("the settings have {} problems:", problems.len()));
        problems.iter().fold(failure, |failure, problem| failure.hint(problem.to_string()))
    }
}

impl From<NoProvider> for Failure {
    fn from(error: NoProvider) -> Self {
        match error {
            NoProvider::Unusable { .. } | NoProvider::Unknown { .. } => Self::usage(error.to_string()),
            NoProvider::Nothing { candidates } => {
                let tried: Vec<&str> = candidates.iter().map(|local| local.base_url.as_str()).collect();
                Self::usage("no model provider is configured; there are three ways to get one:")
                    .hint("1. a key: export ANTHROPIC_API_KEY=… or OPENAI_API_KEY=… (OPENAI_BASE_URL for others)")
                    .hint(format!(
                        "2. a local server: start Ollama or llama.cpp; nothing answered at {}",
                        tried.join(", ")
                    ))
                    .hint("3. a provider of your own: \"providers\" in ~/.decurion/settings.json (see docs/src/models.md)")
                    .hint("At a terminal, `decurion login` asks for one and tries it; `decurion demo` needs none")
            }
        }
    }
}

impl From<PlaceError> for Failure {
    fn from(error: PlaceError) -> Self {
        let message = error.to_string();
        match error {
            PlaceError::NoSuchSession(_) => {
                Self::usage(message).hint("`decurion sessions list --all` lists the sessions")
            }
            PlaceError::SessionExists(_) => {
                Self::usage(message).hint("--resume ID resumes it; leave --session-id out to start a new one")
            }
            PlaceError::Held { session, .. } => Self::usage(message)
                .hint(format!("`decurion attach {session}` joins it"))
                .hint("a copy starts with --resume ID --fork-session"),
            PlaceError::Model(_) | PlaceError::Usage(_) => Self::usage(message),
            PlaceError::Newer { session, written_by, .. } => Self::usage(message)
                .hint(format!("install Decurion {written_by} or later to continue it"))
                .hint(format!("`decurion sessions show {session}` and `export` still read it")),
            PlaceError::Transcript { .. } => Self::usage(message)
                .hint("check that it is a regular file which you own; other sessions are not affected"),
            PlaceError::Storage { .. } => Self::usage(message)
                .hint("set DECURION_HOME to a folder you can write, or run with --no-session-persistence"),
        }
    }
}
