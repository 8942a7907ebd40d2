//! The environment, read once. Takes the variables of the process (or of a test), gives lookups; no other
//! file reads a variable. What a variable means as a setting is the table in `variables.rs`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

/// The variables of the process as they were at the start.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    /// The home folder of the account, asked for only when `HOME` is not set.
    account_home: Option<OsString>,
}

impl Environment {
    /// Takes the variables of this process.
    #[allow(clippy::disallowed_methods, reason = "this is the one place where the environment is read")]
    pub fn capture() -> Self {
        let variables: BTreeMap<_, _> = std::env::vars_os().collect();
        let has_home = variables.get(OsStr::new("HOME")).is_some_and(|home| !home.is_empty());
        let account_home =
            if has_home { None } else { std::env::home_dir().map(std::path::PathBuf::into_os_string) };
        Self { variables, account_home }
    }

    /// These variables and no others.
    pub fn from_pairs<K: Into<OsString>, V: Into<OsString>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let variables = pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { variables, account_home: None }
    }

    /// The same with these variables set as well.
    #[must_use]
    pub fn with<'a>(mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        self.variables.extend(pairs.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// The value of a variable. One that is empty counts as not set; one that is not UTF-8 cannot be used.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.get_os(name).and_then(OsStr::to_str)
    }

    /// The same for values that may not be UTF-8.
    pub fn get_os(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The home folder as it is given, unchecked: `HOME`, else that of the account.
    pub(crate) fn home_os(&self) -> Option<&OsStr> {
        self.get_os("HOME").or(self.account_home.as_deref())
    }

    /// All variables, for this program once more.
    pub fn pairs(&self) -> Vec<(OsString, OsString)> {
        self.variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// All variables, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

/// How many there are: values, and some names, are nobody's business.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment {{ variables: {} }}", self.variables.len())
    }
}
