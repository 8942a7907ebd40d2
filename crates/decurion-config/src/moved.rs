//! What variables of the user move elsewhere. Takes the environment, gives the places of keys that are not where their
//! programs usually keep them, and the files that programs run or read as settings.
//!
//! A word too many costs a file that commands cannot read or write, a word too few is a hole.

use camino::{Utf8Path, Utf8PathBuf};

use crate::env::Environment;

/// Places that variables name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Keys, tokens and passwords, in files or whole folders.
    pub secrets: Vec<Utf8PathBuf>,
    /// Where settings that usually are below `~/.config` are.
    pub config_home: Option<Utf8PathBuf>,
    /// The same for `~/.local/share`.
    pub data_home: Option<Utf8PathBuf>,
    pub git: Vec<Utf8PathBuf>,
    /// Programs, and files that programs run or read as settings.
    pub files: Vec<Utf8PathBuf>,
    /// Folders of such files, and files in folders that programs make themselves.
    pub folders: Vec<Utf8PathBuf>,
}

/// Variables with files or folders of keys; several are separated by colons.
const SECRETS: &[&str] = &[
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_CONFIG_DIR",
    "BOTO_CONFIG",
    "CLOUDSDK_CONFIG",
    "CODEX_HOME",
    "CONSUL_HTTP_TOKEN_FILE",
    "DATABRICKS_CONFIG_FILE",
    "GH_CONFIG_DIR",
    "GLAB_CONFIG_DIR",
    "GNUPGHOME",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_TOKEN_PATH",
    "HISTFILE",
    "KAGGLE_CONFIG_DIR",
    "KUBECONFIG",
    "MYSQL_HISTFILE",
    "NETRC",
    "NODE_REPL_HISTORY",
    "OCI_CLI_CONFIG_FILE",
    "PASSWORD_STORE_DIR",
    "PGPASSFILE",
    "PGSERVICEFILE",
    "PSQL_HISTORY",
    "PYTHON_HISTORY",
    "RCLONE_CONFIG",
    "REGISTRY_AUTH_FILE",
    "SNOWFLAKE_HOME",
    "SOPS_AGE_KEY_FILE",
    "TF_CLI_CONFIG_FILE",
    "VAULT_TOKEN_FILE",
];
/// Variables with a folder, and the file in it that has the keys.
const SECRETS_IN: &[(&str, &str)] = &[
    ("CARGO_HOME", "credentials"),
    ("CARGO_HOME", "credentials.toml"),
    ("CURL_HOME", ".netrc"),
    ("DOCKER_CONFIG", "config.json"),
    ("GEM_HOME", "credentials"),
    ("HELM_CONFIG_HOME", "registry"),
    ("HF_HOME", "token"),
    ("ZDOTDIR", ".zsh_history"),
];
/// Variables with programs, or with files that programs run or read as settings.
const PROGRAMS: &[&str] = &[
    "BASH_ENV",
    "BROWSER",
    "EDITOR",
    "ENV",
    "GIT_ASKPASS",
    "GIT_EDITOR",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_PROXY_COMMAND",
    "GIT_SEQUENCE_EDITOR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "INPUTRC",
    "LD_AUDIT",
    "LD_PRELOAD",
    "LESSOPEN",
    "MANPAGER",
    "NODE_OPTIONS",
    "NPM_CONFIG_GLOBALCONFIG",
    "NPM_CONFIG_USERCONFIG",
    "PAGER",
    "PERL5OPT",
    "PIP_CONFIG_FILE",
    "PROMPT_COMMAND",
    "PYTHONSTARTUP",
    "RIPGREP_CONFIG_PATH",
    "RUBYOPT",
    "SHELL",
    "SSH_ASKPASS",
    "STARSHIP_CONFIG",
    "SUDO_ASKPASS",
    "VISUAL",
    "WGETRC",
    "npm_config_globalconfig",
    "npm_config_userconfig",
];
/// Variables with a folder, and the files in it that programs run or read as settings.
const PROGRAMS_IN: &[(&str, &[&str])] = &[
    ("CARGO_HOME", &["bin", "config", "config.toml", "env"]),
    ("CURL_HOME", &[".curlrc"]),
    ("GIT_EXEC_PATH", &[""]),
    ("GIT_TEMPLATE_DIR", &[""]),
    ("ZDOTDIR", &[".zlogin", ".zlogout", ".zprofile", ".zshenv", ".zshrc"]),
];

impl Moved {
    /// What the variables of this environment name.
    pub(crate) fn of(environment: &Environment) -> Self {
        let value = |name: &str| environment.get_os(name).and_then(|value| value.to_str());
        let folder = |name: &str| value(name).map(Utf8PathBuf::from).filter(|path| path.is_absolute());
        let listed = |name: &&str| value(name).into_iter().flat_map(|list| list.split(':'));
        let secrets = SECRETS.iter().flat_map(listed).map(Utf8PathBuf::from);
        let in_folders =
            SECRETS_IN.iter().filter_map(|(name, file)| folder(name).map(|folder| folder.join(file)));
        let config_home = folder("XDG_CONFIG_HOME");
        let git = ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].into_iter().filter_map(folder);
        let beside = config_home.iter().map(|folder| folder.join("git/config"));
        let whole = |text: &str| Some(Utf8PathBuf::from(text)).filter(|path| path.is_absolute());
        let named = PROGRAMS.iter().filter_map(|name| value(name));
        let words = named.flat_map(|text| words(text).chain(whole(text)));
        let programs_in = PROGRAMS_IN.iter().flat_map(|(name, files)| {
            folder(name).into_iter().flat_map(|folder| files.iter().map(move |file| folder.join(file)))
        });
        let settings = config_home.iter().map(|folder| folder.join("git/hooks"));
        Self {
            secrets: secrets.chain(in_folders).filter(|path| is_place(path)).collect(),
            git: git.chain(beside).chain(git_values(environment, true)).collect(),
            files: words.chain(git_values(environment, false)).filter(|path| is_place(path)).collect(),
            folders: programs_in.chain(settings).filter(|path| is_place(path)).collect(),
            data_home: folder("XDG_DATA_HOME"),
            config_home,
        }
    }
}

/// The values of `GIT_CONFIG_KEY_0`, `GIT_CONFIG_VALUE_0` and so on that are paths: those of further settings, or all others.
fn git_values(environment: &Environment, of_settings: bool) -> Vec<Utf8PathBuf> {
    let all = environment.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)));
    let values = all.filter_map(|(name, value)| Some((name.strip_prefix("GIT_CONFIG_VALUE_")?, value)));
    let is_settings = |number: &str| {
        let key = environment.get_os(&format!("GIT_CONFIG_KEY_{number}")).and_then(|key| key.to_str());
        let key = key.unwrap_or_default().to_ascii_lowercase();
        key.starts_with("include") && key.rsplit('.').next() == Some("path")
    };
    values
        .filter(|(number, _)| is_settings(number) == of_settings)
        .flat_map(|(_, value)| words(value))
        .collect()
}

/// The whole paths in a command line or a list.
fn words(text: &str) -> impl Iterator<Item = Utf8PathBuf> {
    let words = text.split(|letter: char| letter.is_whitespace() || "'\":;|&()<>=`$%".contains(letter));
    words.filter(|word| word.starts_with('/')).map(Utf8PathBuf::from)
}

/// Whether a path names a file or folder of a user. `/dev/null` switches settings off.
fn is_place(path: &Utf8Path) -> bool {
    path.is_absolute() && path.parent().is_some() && !path.starts_with("/dev")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_name_places_of_keys_and_of_programs() {
        let environment = Environment::from_pairs([
            ("KUBECONFIG", "/a/one:/a/two:relative"),
            ("HISTFILE", "/dev/null"),
            ("DOCKER_CONFIG", "/d"),
            ("XDG_CONFIG_HOME", "/x"),
            ("GIT_CONFIG_GLOBAL", "/g"),
            ("GIT_CONFIG_KEY_0", "include.path"),
            ("GIT_CONFIG_VALUE_0", "/more"),
            ("GIT_CONFIG_KEY_1", "core.pager"),
            ("GIT_CONFIG_VALUE_1", "/pager --plain"),
            ("BASH_ENV", "/my env/x"),
            ("ZDOTDIR", "/z"),
        ]);
        let moved = Moved::of(&environment);
        assert_eq!(moved.secrets, ["/a/one", "/a/two", "/d/config.json", "/z/.zsh_history"]);
        assert_eq!(moved.git, ["/g", "/x/git/config", "/more"]);
        assert_eq!(moved.config_home.as_deref(), Some(Utf8Path::new("/x")));
        assert!(
            moved.folders.contains(&"/z/.zshrc".into()) && moved.folders.contains(&"/x/git/hooks".into())
        );
        assert!(moved.files.contains(&"/pager".into()) && moved.files.contains(&"/my env/x".into()));
    }
}
