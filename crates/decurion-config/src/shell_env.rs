//! What the processes we start may see of the environment. Takes the environment and the settings, gives the
//! complete environment of a shell (everything but secrets) or of a hook or server (an allow-list). Keys of
//! providers and masked secrets are in neither, whatever the settings say.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::env::Environment;
use crate::provider::Providers;
use crate::redact::Redactor;
use crate::settings::{EnvValue, Settings};
use crate::variables;

/// The complete environment of a child process. Prints its names only.
#[derive(Clone, PartialEq, Eq)]
pub struct ChildEnvironment(Vec<(OsString, OsString)>);

impl ChildEnvironment {
    /// Names and values, sorted by name.
    pub fn pairs(&self) -> &[(OsString, OsString)] {
        &self.0
    }

    /// The same, to be owned.
    pub fn into_pairs(self) -> Vec<(OsString, OsString)> {
        self.0
    }

    /// The value of one variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }
}

impl fmt::Debug for ChildEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Variables by which words mean something else to a shell or its programs than they say: where `cd` looks and what `..`
/// is, which files a glob finds, which words are options, which repository git uses. What may run is decided by the words.
const CHANGE_WORDS: [&str; 25] = [
    "BASHOPTS",
    "BASH_COMPAT",
    "CDPATH",
    "EXECIGNORE",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
    "GLOBIGNORE",
    "GREP_OPTIONS",
    "OLDPWD",
    "POSIXLY_CORRECT",
    "PWD",
    "SHELLOPTS",
];

/// The environment of shells: all of it, less secrets and what changes the meaning of commands, plus what the settings add, plus `DECURION=1`.
pub fn shell_environment(
    environment: &Environment,
    settings: &Settings,
    providers: &Providers,
) -> ChildEnvironment {
    build(environment, settings, providers, |name| !CHANGE_WORDS.contains(&name))
}

/// The environment of hooks and servers: an allow-list, plus what the settings add, plus `DECURION=1`.
pub fn service_environment(
    environment: &Environment,
    settings: &Settings,
    providers: &Providers,
) -> ChildEnvironment {
    build(environment, settings, providers, is_ordinary)
}

fn build(
    environment: &Environment,
    settings: &Settings,
    providers: &Providers,
    inherits: impl Fn(&str) -> bool,
) -> ChildEnvironment {
    let passed = |name: &str| settings.env_pass.iter().any(|pass| pass == name);
    let filter = Filter { providers, settings };
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
    for (name, value) in environment.iter() {
        // A name that is not UTF-8 cannot be compared; it matches none of the secret words as far as it can
        // be read, and the shell may have use for it.
        let readable = name.to_string_lossy();
        let inherited =
            inherits(&readable) && !is_secret_name(&readable) && !is_secret_value(&readable, value);
        let wanted = passed(&readable) || inherited;
        if wanted && !filter.forbids(&readable, value) {
            variables.insert(name.to_owned(), value.to_owned());
        }
    }
    for (name, value) in &settings.env {
        let wanted = match value {
            EnvValue::Plain(_) => true,
            EnvValue::Secret(_) => passed(name),
        };
        if wanted && !filter.forbids(name, OsStr::new(value.expose())) {
            variables.insert(name.into(), value.expose().into());
        }
    }
    variables.insert("DECURION".into(), "1".into());
    ChildEnvironment(variables.into_iter().collect())
}

/// The names in `envPass` that are a provider's credentials, and so are not passed on.
pub(crate) fn not_passed<'a>(
    settings: &'a Settings,
    providers: &'a Providers,
) -> impl Iterator<Item = &'a str> {
    let filter = Filter { providers, settings };
    settings.env_pass.iter().map(String::as_str).filter(move |name| filter.is_credential(name))
}

/// What no setting can add back.
struct Filter<'a> {
    providers: &'a Providers,
    settings: &'a Settings,
}

impl Filter<'_> {
    fn forbids(&self, name: &str, value: &OsStr) -> bool {
        self.is_credential(name) || self.holds_key(value)
    }

    fn is_credential(&self, name: &str) -> bool {
        variables::CREDENTIALS.contains(&name)
            || self.providers.key_variables().any(|variable| variable == name)
            || self.settings.secrets.iter().any(|secret| secret.name == name)
    }

    /// A key may also be there under another name.
    fn holds_key(&self, value: &OsStr) -> bool {
        let value = value.as_encoded_bytes();
        let masked = self.settings.secrets.iter().filter_map(|secret| secret.value.as_ref());
        self.providers.secrets().chain(masked).any(|secret| {
            let key = secret.expose().as_bytes();
            key.len() >= 8 && memchr::memmem::find(value, key).is_some()
        })
    }
}

/// Whether no process that we start is given a variable, because it is a secret or holds a provider's key or a masked secret.
pub fn is_withheld(name: &OsStr, value: &OsStr, settings: &Settings, providers: &Providers) -> bool {
    let name = name.to_string_lossy();
    let filter = Filter { providers, settings };
    is_secret_name(&name) || is_secret_value(&name, value) || filter.forbids(&name, value)
}

/// Whether a variable's name says that its value is a secret.
pub fn is_secret_name(name: &str) -> bool {
    /// Anywhere in the name.
    const WORDS: &[&str] = &[
        "KEY",
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "CREDENTIAL",
        "SSHPASS",
        "CONNECTIONSTRING",
        "CONNECTION_STRING",
        "CONNSTR",
        "CONN_STR",
        "KUBECONFIG_DATA",
    ];
    /// Between underscores: in longer words they mean something else, as in `PATH` and `AUTHOR`.
    const PARTS: &[&str] = &[
        "AUTH",
        "OAUTH",
        "AUTHORIZATION",
        "BEARER",
        "JWT",
        "COOKIE",
        "WEBHOOK",
        "DSN",
        "PAT",
        "PASS",
        "CREDS",
        "PW",
        "PRIVATE",
        "SALT",
        "ACCESS",
        "SIGNING",
    ];
    /// With `URL` or `URI` at the end: such addresses hold the password of a database.
    const STORES: &[&str] = &[
        "DATABASE",
        "DB",
        "MONGO",
        "MONGODB",
        "REDIS",
        "AMQP",
        "RABBITMQ",
        "BROKER",
        "POSTGRES",
        "POSTGRESQL",
        "PG",
        "MYSQL",
        "MARIADB",
    ];
    let upper = name.to_ascii_uppercase();
    // The socket of an agent that signs: no secret itself, and what `git push` needs.
    if upper.ends_with("AUTH_SOCK") {
        return false;
    }
    let parts: Vec<&str> = upper.split('_').collect();
    let has = |list: &[&str]| parts.iter().any(|part| list.contains(part));
    let ends_in = |list: &[&str]| parts.last().is_some_and(|last| list.contains(last));
    WORDS.iter().any(|word| upper.contains(word))
        || variables::CREDENTIALS.contains(&upper.as_str())
        || has(PARTS)
        || (ends_in(&["PWD"]) && parts.len() > 1)
        || (ends_in(&["URL", "URI"]) && has(STORES))
}

/// Whether a value is a secret whatever its variable is called: a well-known kind of key, an address with a password, or
/// a list of settings that has one. A proxy's address is passed on, since commands cannot reach the network without it.
fn is_secret_value(name: &str, value: &OsStr) -> bool {
    const SETTINGS: &[&str] =
        &["password=", "pwd=", "accountkey=", "sharedaccesskey=", "sharedaccesssignature="];
    let Some(text) = value.to_str() else { return false };
    let lower = text.to_ascii_lowercase();
    let is_proxy = name.to_ascii_lowercase().ends_with("_proxy");
    let is_key = matches!(Redactor::new([], true).redact(text), Cow::Owned(_));
    is_key || (!is_proxy && has_password(text)) || SETTINGS.iter().any(|setting| lower.contains(setting))
}

/// Whether an address in a text has a password: `scheme://user:password@host`, or for the web `https://token@host`.
fn has_password(text: &str) -> bool {
    text.match_indices("://").any(|(at, _)| {
        let rest = &text[at + 3..];
        let authority = rest.split(['/', '?', '#', ' ', '"', '\'']).next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        let before = text[..at].to_ascii_lowercase();
        let is_web = before.ends_with("http") || before.ends_with("https");
        user.is_some_and(|user| match user.split_once(':') {
            Some((_, password)) if !password.is_empty() => true,
            _ => is_web && !user.is_empty(),
        })
    })
}

/// Whether a name can be a variable's.
pub(crate) fn is_variable_name(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && !name.as_bytes()[0].is_ascii_digit()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether a variable decides where requests go, with which key, or where state is kept: by these names a
/// repository could change that for every program of ours that its commands start.
pub(crate) fn is_protected(name: &str) -> bool {
    const PREFIXES: &[&str] = &["ANTHROPIC_", "OPENAI_", "DECURION", "CLAUDE_", "OLLAMA_"];
    let upper = name.to_ascii_uppercase();
    PREFIXES.iter().any(|prefix| upper.starts_with(prefix)) || upper == "HOME"
}

/// The allow-list for hooks and servers, and for what anyone may see of the process that only keeps a terminal.
pub fn is_ordinary(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "TERM",
        "COLORTERM",
        "NO_COLOR",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "TZ",
        "PWD",
        "XDG_RUNTIME_DIR",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    NAMES.contains(&name) || name.starts_with("LC_")
}
