//! What the settings say about the sandbox of commands, and which files of a user are secrets or programs. Takes the
//! folders of a start and its environment, gives plain lists of paths.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::env::Environment;
use crate::error::{Warning, WarningKind};
use crate::jsonc::Node;
use crate::moved::Moved;
use crate::origin::Sources;
use crate::paths::Paths;
use crate::secret::{self, Secret};
use crate::shell_env;

#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch that a person sets on its own")]
pub struct SandboxSettings {
    /// Whether commands are sandboxed where the system can.
    pub enabled: bool,
    /// Whether nothing runs where the system cannot.
    pub required: bool,
    /// Whether commands that the sandbox confines need no question.
    pub asks_less: bool,
    /// Whether a person may let a command run without the sandbox.
    pub allows_outside: bool,
    /// Commands that always run without it.
    pub excluded: Vec<String>,
    /// What commands may write besides the working directories.
    pub writable: Vec<Utf8PathBuf>,
    /// What they may read although it is usually hidden.
    pub readable: Vec<Utf8PathBuf>,
    /// Whether they reach every host.
    pub network_open: bool,
    /// Hosts that they may reach besides the usual ones.
    pub allowed_hosts: Vec<String>,
    /// Hosts that they may not.
    pub denied_hosts: Vec<String>,
    /// Whether they may open Unix sockets.
    pub unix_sockets: bool,
}

/// A secret that commands can use and not read: its value is Decurion's own variable of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedSecret {
    pub name: String,
    /// The hosts that may get it.
    pub hosts: Vec<String>,
    /// What they get; none where the variable is not set or cannot be sent.
    pub value: Option<Secret>,
}

/// The `secrets` of the settings with their values. What is wrong with one is a warning: it is kept from commands all the same.
pub(crate) fn masked(
    tree: &Node,
    sources: &Sources,
    environment: &Environment,
    warnings: &mut Vec<Warning>,
) -> Vec<MaskedSecret> {
    let members = tree.get("secrets").map_or(&[][..], Node::members);
    let mut found = Vec::new();
    for member in members {
        let name = &member.key;
        let mut warn = |text: String| {
            let origin = Some(sources.origin(&member.value));
            warnings.push(Warning {
                kind: WarningKind::Ignored,
                origin,
                text: format!("secrets.{name}: {text}"),
            });
        };
        if !shell_env::is_variable_name(name) {
            warn("this is not the name of a variable (letters, digits and `_`)".to_owned());
            continue;
        }
        let items = member.value.get("hosts").map_or(&[][..], Node::items);
        let hosts: Vec<String> = items.iter().filter_map(Node::text).map(str::to_owned).collect();
        let value = match environment.get_os(name).map(OsStr::to_str) {
            None => Err(format!(
                "the variable {name} is not set, so commands do not have it; set it where Decurion is started, or remove \
                 this entry"
            )),
            Some(None) => Err(format!(
                "the value of the variable {name} is not valid UTF-8, so commands do not have it"
            )),
            Some(Some(text)) => match secret::check_header_value(text.trim()) {
                Ok(()) => Ok(Secret::new(text.trim())),
                Err(reason) => {
                    Err(format!("the value of the variable {name} {reason}, so commands do not have it"))
                }
            },
        };
        let value = value.map_err(warn).ok();
        found.push(MaskedSecret { name: name.clone(), hosts, value });
    }
    found
}

/// Keys of the ecosystem that mean nothing here.
pub(crate) const WITHOUT_EFFECT: [&str; 7] = [
    "network.httpProxyPort",
    "network.socksProxyPort",
    "credentials",
    "ignoreViolations",
    "enableWeakerNestedSandbox",
    "bwrapPath",
    "socatPath",
];

/// Files and folders in a home folder that hold keys, tokens, passwords or cookies.
const SECRETS: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/sops",
    ".config/doctl",
    ".config/rclone",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/Bitwarden",
    ".config/1Password",
    ".mozilla",
    ".thunderbird",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".pypirc",
    ".vault-token",
    ".terraform.d",
    ".terraformrc",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".m2/settings-security.xml",
    ".pgpass",
    ".my.cnf",
    ".boto",
    ".s3cfg",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".claude.json",
    ".codex",
    ".config/glab-cli",
    ".config/github-copilot",
    ".config/containers/auth.json",
    ".config/helm/registry",
    ".config/composer/auth.json",
    ".composer/auth.json",
    ".config/stripe",
    ".config/ngrok",
    ".ngrok2",
    ".config/netlify",
    ".config/age",
    ".config/solana",
    ".local/share/com.vercel.cli",
    ".local/share/fish/fish_history",
    ".netlify",
    ".fly",
    ".oci",
    ".kaggle",
    ".databrickscfg",
    ".snowflake",
    ".huggingface",
    ".cache/huggingface/token",
];
/// Files that tools need for other settings, and the words by which they hold a credential: only then they are hidden.
const PERHAPS_SECRETS: &[(&str, &[&str])] = &[
    (".npmrc", &["_authtoken", "_auth", "_password"]),
    (".yarnrc", &["_authtoken", "_auth", "_password"]),
    (".yarnrc.yml", &["npmauthtoken", "npmauthident"]),
    (".bunfig.toml", &["token", "password"]),
    (".m2/settings.xml", &["<password>", "<privatekey>", "<passphrase>"]),
    (".gradle/gradle.properties", &["password", "token", "secret"]),
    (".nuget/NuGet/NuGet.Config", &["cleartextpassword", "\"password\""]),
    (".pip/pip.conf", &["@"]),
    (".config/pip/pip.conf", &["@"]),
    (".condarc", &["@", "/t/"]),
];
/// The most that is read of such a file.
const MOST_BYTES: usize = 256 << 10;
/// The same for the whole system, where root works.
const SYSTEM_SECRETS: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/krb5.keytab",
    "/etc/letsencrypt",
    "/etc/wireguard",
    "/etc/NetworkManager/system-connections",
    "/etc/rancher",
    "/etc/kubernetes",
    // Message queues of other programs, where they are mounted as files.
    "/dev/mqueue",
    "/run/secrets",
    "/run/credentials",
    "/var/lib/kubelet",
];
/// Folders of the system itself, which hold nothing of a person.
const SYSTEM: &[&str] = &[
    "bin", "dev", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "proc", "run", "sbin",
    "snap", "sys", "tmp", "usr", "var",
];
/// Where people and services keep their own files nevertheless.
const PERSONAL: &[&str] = &["/var/log", "/var/mail", "/var/spool", "/var/backups", "/var/www", "/run/user"];
/// Folders of a home folder in which version managers and package managers keep programs.
const PROGRAMS: &[&str] = &[
    ".cargo",
    ".rustup",
    ".pyenv",
    ".nvm",
    ".volta",
    ".fnm",
    ".bun",
    ".deno",
    ".rbenv",
    ".rvm",
    ".asdf",
    ".sdkman",
    ".nodenv",
    ".goenv",
    ".local/bin",
    ".local/lib",
    ".local/share/mise",
    ".local/share/uv",
    ".local/share/fnm",
    ".local/share/pnpm",
    "go",
    ".gitconfig",
    ".config/git",
];

/// A path as people write it in these settings; `//x` is absolute, as in rules.
pub(crate) fn place(text: &str, paths: &Paths) -> Utf8PathBuf {
    let text = text.strip_suffix("/**").unwrap_or(text);
    match text.strip_prefix("//") {
        Some(rest) => Utf8PathBuf::from(format!("/{rest}")),
        None => paths.expand(text, &paths.root),
    }
}

/// What no command may read: secrets of the user and of the system, and our own settings and sessions.
pub fn secrets(paths: &Paths) -> Vec<Utf8PathBuf> {
    let home = paths.home.iter().flat_map(|home| SECRETS.iter().map(|name| home.join(name)));
    let of_user: Vec<Utf8PathBuf> =
        home.chain(moved_secrets(&paths.moved).filter(|place| !holds_work(place, paths))).collect();
    let linked = linked_secrets(&of_user, paths);
    let own = paths.state.iter().cloned();
    let shared = paths.shared.iter().map(|folder| folder.join(".credentials.json"));
    let system = SYSTEM_SECRETS.iter().map(Utf8PathBuf::from);
    let perhaps = paths.home.iter().flat_map(|home| perhaps_secrets(home));
    of_user.into_iter().chain(linked).chain(perhaps).chain(own).chain(shared).chain(system).collect()
}

/// Secrets where variables say that they are.
fn moved_secrets(moved: &Moved) -> impl Iterator<Item = Utf8PathBuf> {
    let homes = [(&moved.config_home, ".config/"), (&moved.data_home, ".local/share/")];
    let below = homes.into_iter().filter_map(|(folder, usual)| Some((folder.as_deref()?, usual)));
    let below = below.flat_map(|(folder, usual)| {
        SECRETS.iter().filter_map(move |name| Some(folder.join(name.strip_prefix(usual)?)))
    });
    moved.secrets.iter().cloned().chain(below)
}

/// Where links in these folders lead, such as those that a manager of dotfiles makes. What everyone may read is no secret,
/// and what holds the home folder or the project is left out.
fn linked_secrets(folders: &[Utf8PathBuf], paths: &Paths) -> Vec<Utf8PathBuf> {
    const DEEPEST: usize = 2;
    /// Of each folder, nearer ones first.
    const MOST_NAMES: usize = 1_000;
    let is_public = |place: &Utf8Path| {
        let first = place.components().nth(1).map(|part| part.as_str());
        let is_personal = || PERSONAL.iter().chain(&["/tmp"]).any(|own| place.starts_with(own));
        let of_system = first.is_none_or(|first| SYSTEM.contains(&first) && !is_personal());
        of_system && place.metadata().is_ok_and(|found| found.permissions().mode() & 0o004 != 0)
    };
    let mut found = Vec::new();
    for folder in folders {
        let mut left = MOST_NAMES;
        let mut waiting = VecDeque::from([(folder.clone(), 0)]);
        while let Some((folder, depth)) = waiting.pop_front() {
            for entry in folder.read_dir_utf8().into_iter().flatten().flatten().take(left) {
                left -= 1;
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_symlink() {
                    let place = entry.path().canonicalize_utf8().ok();
                    found.extend(place.filter(|place| !is_public(place) && !holds_work(place, paths)));
                } else if kind.is_dir() && depth < DEEPEST {
                    waiting.push_back((entry.into_path(), depth + 1));
                }
            }
        }
    }
    found
}

/// Whether the home folder, the project or our own folder is in a folder, or is that folder.
fn holds_work(place: &Utf8Path, paths: &Paths) -> bool {
    let kept = [Some(&paths.cwd), Some(&paths.root), paths.home.as_ref(), paths.state.as_ref()];
    kept.into_iter().flatten().any(|kept| kept.starts_with(place))
}

fn perhaps_secrets(home: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    let named = PERHAPS_SECRETS.iter().map(move |(name, words)| (home.join(name), *words));
    named.filter(|(file, words)| holds_credential(file, words)).map(|(file, _)| file)
}

/// Whether a file has a line with one of these words and a value that is not taken from the environment. One that
/// cannot be read might.
fn holds_credential(file: &Utf8Path, words: &[&str]) -> bool {
    let Ok(bytes) = crate::read::whole(file, MOST_BYTES) else { return true };
    let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).to_lowercase();
    let tells = |line: &str| {
        let is_comment = line.trim_start().starts_with(['#', ';', '!']);
        !is_comment && !line.contains("${") && words.iter().any(|word| line.contains(word))
    };
    text.lines().any(tells)
}

/// What hooks and MCP servers may read of our own folder: scripts that they are made of.
pub fn scripts(state: &Utf8Path) -> Vec<Utf8PathBuf> {
    ["hooks", "scripts", "bin", "plugins", "skills"].map(|name| state.join(name)).to_vec()
}

/// What a command that was not asked about may not read besides, but for the working directories and programs: the
/// home folder, and every folder that is not the system's own.
pub fn personal(paths: &Paths) -> Vec<Utf8PathBuf> {
    let top = Utf8Path::new("/").read_dir_utf8().into_iter().flatten().flatten();
    let others = top.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let others =
        others.filter(|entry| !SYSTEM.contains(&entry.file_name())).map(camino::Utf8DirEntry::into_path);
    let mut found: Vec<Utf8PathBuf> = others.chain(PERSONAL.iter().map(Utf8PathBuf::from)).collect();
    let hidden = |home: &&Utf8PathBuf| !found.iter().any(|folder| home.starts_with(folder));
    let home = paths.home.iter().find(hidden).cloned();
    found.extend(home);
    found
}

/// Programs of the user, and git's settings: what commands need of the home folder and of the folders in `PATH`.
pub fn programs(paths: &Paths, environment: &Environment) -> Vec<Utf8PathBuf> {
    let home = paths.home.as_deref();
    let mut found: Vec<Utf8PathBuf> =
        home.iter().flat_map(|home| PROGRAMS.iter().map(|name| home.join(name))).collect();
    let path = environment.get_os("PATH").and_then(|path| path.to_str()).unwrap_or_default();
    let holds_home = |folder: &Utf8Path| home.is_some_and(|home| home.starts_with(folder));
    for folder in path.split(':').map(Utf8Path::new).filter(|folder| folder.is_absolute()) {
        // Next to `bin` is what its programs load, but for folders that hold other things too.
        let of_programs = |above: &&Utf8Path| {
            let inside = home.is_some_and(|home| above.starts_with(home));
            let named = matches!(folder.file_name(), Some("bin" | "sbin" | "shims"));
            !holds_home(above) && (inside || named && above.components().count() > 2)
        };
        let folder = folder.parent().filter(of_programs).unwrap_or(folder);
        if !holds_home(folder) && !found.iter().any(|known| folder.starts_with(known)) {
            found.push(folder.to_owned());
        }
    }
    found
}

/// Where private folders for temporary files are made.
pub fn temporary(environment: &Environment) -> Utf8PathBuf {
    let named = environment.get_os("TMPDIR").and_then(|folder| folder.to_str()).map(Utf8PathBuf::from);
    named.filter(|folder| folder.is_absolute() && folder.is_dir()).unwrap_or_else(|| "/tmp".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_variables_or_links_move_are_secret_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        for name in ["home/.ssh/deep", "home/.aws", "project", "dotfiles"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("dotfiles/key"), "key").unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        link("../../../dotfiles/key", "home/.ssh/deep/id");
        link("../..", "home/.aws/everything");
        link("/usr/bin/env", "home/.aws/program");
        let environment = Environment::from_pairs([
            ("HOME", root.join("home").as_str()),
            ("KUBECONFIG", "/elsewhere/config"),
            ("XDG_CONFIG_HOME", "/moved"),
        ]);
        let paths = Paths::discover(&root.join("project"), &environment).unwrap();
        let found = secrets(&paths);
        for name in ["/elsewhere/config", "/moved/gh", root.join("dotfiles/key").as_str()] {
            assert!(found.contains(&name.into()), "{name}");
        }
        assert!(!found.contains(&root) && !found.contains(&"/usr/bin/env".into()), "{found:?}");
    }

    #[test]
    fn settings_of_tools_are_hidden_only_with_a_credential() {
        let folder = tempfile::tempdir().unwrap();
        let home = Utf8Path::from_path(folder.path()).unwrap();
        let found = |text: &str| {
            std::fs::write(home.join(".npmrc"), text).unwrap();
            perhaps_secrets(home).collect::<Vec<_>>()
        };
        assert!(found("registry=https://registry.example/\nfund=false\n").is_empty());
        assert!(found("//registry.example/:_authToken=${NPM_TOKEN}\n# _authToken=old\n").is_empty());
        assert_eq!(found("fund=false\n//registry.example/:_authToken=abc\n"), [home.join(".npmrc")]);
        assert_eq!(found("_auth = dTpw\n"), [home.join(".npmrc")]);
    }
}
