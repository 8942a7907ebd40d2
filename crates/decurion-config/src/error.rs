//! What can go wrong while loading, and what is merely worth saying. Each error names the place a person has
//! to look at; none of them quotes a value that could be a secret.

use std::fmt;
use std::io;

use camino::{Utf8Path, Utf8PathBuf};

use crate::origin::Origin;

/// Loading failed; nothing should start on half of its settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Mend each of these; there are at least two.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<ConfigError>),
    /// Mend the file: it is not JSON (with comments and trailing commas).
    #[error("{origin}: {message}")]
    Syntax {
        origin: Origin,
        /// What was expected there.
        message: &'static str,
    },
    /// Mend the value: it is JSON, but not what this key takes.
    #[error("{origin}: {key}: expected {expected}, found {found}")]
    Value {
        /// Where the value is.
        origin: Origin,
        /// The key's path, joined by dots.
        key: String,
        /// What the key takes.
        expected: String,
        /// What is there, in general words if it could be a secret, and the value that may be meant.
        found: String,
    },
    /// Mend the key: it does not exist, and leaving it out could loosen something.
    #[error("{origin}: unknown key: {key}{}", did_you_mean(near.as_ref()))]
    Key {
        /// Where the key is.
        origin: Origin,
        /// The key's path, joined by dots.
        key: String,
        /// The key that may be meant.
        near: Option<&'static str>,
    },
    #[error("{origin}: {key}: {reason}: {rule:?}")]
    Rule {
        /// Where the rule is.
        origin: Origin,
        key: String,
        /// What is wrong with it.
        reason: &'static str,
        /// The rule as written.
        rule: String,
    },
    /// Mend or unset the environment variable.
    #[error("environment variable {name}: expected {expected}")]
    Variable { name: String, expected: String },
    /// Make the file readable, or remove it.
    #[error("cannot read {file}: {source}")]
    Unreadable {
        file: Utf8PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Replace it by an ordinary file: pipes, devices and folders are not read.
    #[error("not an ordinary file: {file}")]
    NotAFile { file: Utf8PathBuf },
    #[error("longer than {limit} bytes: {file}")]
    TooLarge {
        file: Utf8PathBuf,
        /// How long it may be.
        limit: usize,
    },
    /// Give a file that exists, or JSON that starts with `{`.
    #[error("no such settings file: {file}")]
    NoSuchSettings {
        /// The file that `--settings` named.
        file: Utf8PathBuf,
    },
    /// Use the known words.
    #[error("--setting-sources takes user, project and local, joined by commas, found {word:?}")]
    SettingSources {
        /// The word that is none of them.
        word: String,
    },
    /// Change to a folder that exists.
    #[error("the working directory is gone: {directory}")]
    DirectoryGone {
        /// Where it was, as far as known.
        directory: String,
    },
    /// Make the working directory accessible, or change to another.
    #[error("cannot use the working directory {directory}: {source}")]
    DirectoryUnusable {
        directory: String,
        /// What the system said.
        source: io::Error,
    },
    /// Rename it: paths cross JSON here, so they must be UTF-8.
    #[error("{what} is not UTF-8: {path}")]
    NotUtf8 {
        what: &'static str,
        /// The path with the bad bytes replaced.
        path: String,
    },
}

impl ConfigError {
    /// These problems as one; none if there are none.
    pub(crate) fn of(mut problems: Vec<ConfigError>) -> Option<Self> {
        match problems.len() {
            0 | 1 => problems.pop(),
            _ => Some(Self::Several(problems)),
        }
    }

    pub fn each(&self) -> &[ConfigError] {
        match self {
            Self::Several(problems) => problems,
            one => std::slice::from_ref(one),
        }
    }

    /// The key to correct, where it is one.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Value { key, .. } | Self::Key { key, .. } | Self::Rule { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Where the problem is, where that is known.
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Syntax { origin, .. }
            | Self::Value { origin, .. }
            | Self::Key { origin, .. }
            | Self::Rule { origin, .. } => Some(origin),
            Self::Several(problems) => problems.first().and_then(Self::origin),
            _ => None,
        }
    }

    /// The file to mend, where it is one; that of the first of several problems.
    pub fn file(&self) -> Option<&Utf8Path> {
        match self {
            Self::Syntax { .. } | Self::Value { .. } | Self::Key { .. } | Self::Rule { .. } => {
                self.origin().and_then(Origin::file)
            }
            Self::Several(problems) => problems.first().and_then(Self::file),
            Self::Unreadable { file, .. } | Self::NotAFile { file } | Self::TooLarge { file, .. } => {
                Some(file)
            }
            _ => None,
        }
    }
}

pub(crate) fn did_you_mean(near: Option<impl fmt::Display>) -> String {
    near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default()
}

/// What kind of thing a [`Warning`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WarningKind {
    /// A key that does not exist; probably a spelling mistake.
    UnknownKey,
    /// A key that is given twice; the last one counts.
    RepeatedKey,
    /// A key that is never taken from a repository.
    NotFromProject,
    /// A value that was left out because it is not usable; it widens nothing.
    Ignored,
    /// An environment variable that was left out.
    Variable,
    /// A secret in a place where others may see it.
    ExposedSecret,
    /// A file with rights that are too wide, or that could not be used.
    File,
}

/// Worth saying, once, at the start; nothing stops because of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub kind: WarningKind,
    /// Where, if it is about a place.
    pub origin: Option<Origin>,
    /// One sentence; never holds a value that could be a secret.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}
