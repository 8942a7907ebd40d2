//! Whether git may be called in a folder nobody has agreed to. Takes the folder where git would begin to look for
//! its repository; gives why a program of the repository's own might run, or nothing where none can.
//!
//! Git runs what a repository's own configuration names: a file monitor, filters, converters for differences, hooks,
//! and the same in the repositories nested in it. The configuration of the user and of the system is the user's own
//! and is not looked at. Attributes only choose among drivers that a configuration defines, so they need no look.
//! What is not understood is a reason to ask.

mod config;
mod index;

use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::Intent;
use decurion_protocol::intent::{ShellCommand, ShellIntent};

/// The most that is read of a small file.
const MOST_BYTES: u64 = 256 << 10;
/// As many nested repositories as are looked at.
const MOST_NESTED: usize = 500;
/// The hook that a command runs which only reads: git writes down what it learnt about the files.
const HOOK_OF_READERS: &str = "post-index-change";
/// Commands of git that change neither settings, nor the files of a checkout, nor which repositories are nested in
/// it by more than what is added.
const KEEPS_SETTINGS: [&str; 7] = ["add", "stage", "commit", "push", "fetch", "tag", "branch"];

/// What git is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It only shows something.
    Look,
    /// It may change something, and run any hook.
    Change,
}

/// Where git is called from.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// The working directory.
    pub cwd: &'a Utf8Path,
    /// The folder that the user has agreed to, if it is this session's.
    pub trusted: Option<&'a Utf8Path>,
    /// Whether the disk is looked at. Without it a repository elsewhere than in the working directory is not known.
    pub looks: bool,
}

/// Adds to every call of git why it must be asked about, where a program of the repository could run.
pub fn add_repositories(intent: &mut Intent, standing: Standing<'_>) {
    let Some(shell) = &mut intent.shell else { return };
    for index in 0..shell.commands.len() {
        let found = doubt_about(shell, index, standing);
        let command = &mut shell.commands[index];
        if command.doubt.is_none() {
            command.doubt = found;
        }
    }
}

fn doubt_about(shell: &ShellIntent, index: usize, standing: Standing<'_>) -> Option<String> {
    let command = &shell.commands[index];
    let purpose = if command.read_only { Purpose::Look } else { Purpose::Change };
    let Standing { cwd, trusted, looks } = standing;
    for place in &command.repositories {
        if crate::permission::normal(place) != cwd && !(looks && place.is_dir()) {
            return Some(format!("which repository git would find there is not known: {place}"));
        }
        if !looks {
            continue;
        }
        if let Some(doubt) = doubt(place, purpose, trusted) {
            return Some(doubt);
        }
        let changes = |(other, by): (usize, &ShellCommand)| {
            let around = command.inside.as_ref().is_some_and(|inside| inside.command == other);
            other != index && !around && !by.read_only && !keeps_settings(by)
        };
        if shell.commands.iter().enumerate().any(changes) && !is_covered(place, trusted) {
            return Some(
                "it changes files and calls git in one text, so the settings that git will find are not known; \
                 call git by itself"
                    .to_owned(),
            );
        }
    }
    None
}

/// Whether a command is a call of git after which another finds the same settings, or only prints its words, whatever
/// they are.
fn keeps_settings(command: &ShellCommand) -> bool {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    let prints = words.first() == Some(&"echo") && command.redirections == 0;
    prints || matches!(words.as_slice(), ["git", subcommand, ..] if KEEPS_SETTINGS.contains(subcommand))
}

/// Why a program of the repository might run when git is called in a folder.
pub(crate) fn doubt(from: &Utf8Path, purpose: Purpose, trusted: Option<&Utf8Path>) -> Option<String> {
    // Git goes up from where it really is. What does not exist cannot be gone to.
    let from = from.canonicalize_utf8().ok()?;
    for folder in from.ancestors() {
        if let Some(found) = Repository::at(folder) {
            let found = match found {
                Ok(found) => found,
                Err(doubt) => return Some(doubt),
            };
            if !found.is_trusted(trusted)
                && let Some(doubt) = found.doubt(purpose, &mut 0)
            {
                return Some(format!("{doubt}, and this folder is not trusted (see `decurion trust`)"));
            }
            // Git passes over what is no repository to it.
            if found.is_certain() {
                return None;
            }
        }
        if looks_like_git_folder(folder) {
            return Some(format!(
                "the folder is itself a repository, whose settings are among its files: {folder}"
            ));
        }
    }
    None
}

/// Whether the repository that git finds from here is the one of a folder that is trusted.
fn is_covered(from: &Utf8Path, trusted: Option<&Utf8Path>) -> bool {
    let Ok(from) = from.canonicalize_utf8() else { return false };
    let found = from.ancestors().find_map(Repository::at);
    matches!(found, Some(Ok(found)) if found.is_certain() && found.is_trusted(trusted))
}

/// The folders of git for one checkout.
struct Repository {
    /// The checkout.
    top: Utf8PathBuf,
    /// The folder of git for this checkout.
    own: Utf8PathBuf,
    /// The folder that all checkouts of the repository share; often the same.
    common: Utf8PathBuf,
}

impl Repository {
    /// The one whose checkout a folder is; the error is why that cannot be told.
    fn at(top: &Utf8Path) -> Option<Result<Self, String>> {
        let git = top.join(".git");
        std::fs::symlink_metadata(&git).ok()?;
        Some(Self::of(top, git))
    }

    fn of(top: &Utf8Path, git: Utf8PathBuf) -> Result<Self, String> {
        let odd = |path: &Utf8Path| format!("which repository git would use is not known: {path}");
        let own = if git.is_dir() {
            git
        } else {
            let text = small(&git).ok_or_else(|| odd(&git))?;
            let name = text.strip_prefix("gitdir: ").ok_or_else(|| odd(&git))?;
            top.join(name.trim_end_matches(['\n', '\r']))
        };
        let common = own.join("commondir");
        let common = if common.exists() {
            own.join(small(&common).ok_or_else(|| odd(&common))?.trim_end_matches(['\n', '\r']))
        } else {
            own.clone()
        };
        Ok(Self { top: top.to_owned(), own, common })
    }

    /// Whether git will certainly take it for a repository.
    fn is_certain(&self) -> bool {
        let head = small(&self.own.join("HEAD")).unwrap_or_default();
        let hex = head.trim_end();
        let points = head.starts_with("ref: refs/")
            || (matches!(hex.len(), 40 | 64) && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        points && self.common.join("objects").is_dir() && self.common.join("refs").is_dir()
    }

    /// Whether it belongs to a folder that is trusted: it is that folder's own repository or nested in it, or the
    /// folder has none and it lies below.
    fn is_trusted(&self, trusted: Option<&Utf8Path>) -> bool {
        let Some(folder) = trusted else { return false };
        let Ok(common) = self.common.canonicalize_utf8() else { return false };
        match crate::git::common(folder) {
            Some(own) => common.starts_with(own),
            None => folder.canonicalize_utf8().is_ok_and(|folder| common.starts_with(folder)),
        }
    }

    /// Why a program of its own might run. `seen` counts the repositories looked at.
    fn doubt(&self, purpose: Purpose, seen: &mut usize) -> Option<String> {
        *seen += 1;
        if *seen > MOST_NESTED {
            return Some(format!("more than {MOST_NESTED} repositories are nested in it"));
        }
        let mut settings = config::Settings::default();
        let files =
            [("config", &self.common), ("config.worktree", &self.common), ("config.worktree", &self.own)];
        for file in files.map(|(name, folder)| folder.join(name)) {
            if std::fs::symlink_metadata(&file).is_err() {
                continue;
            }
            let read = small(&file).ok_or_else(|| format!("it is not a small file of text: {file}"));
            if let Err(what) = read.and_then(|text| settings.read(&text, &self.top, &self.own)) {
                return Some(format!("{what} ({file})"));
            }
        }
        let named = settings.hooks.iter().map(|path| (self.top.join(path), true));
        let hooks = named.chain([(self.common.join("hooks"), false)]);
        let found = hooks.into_iter().find_map(|(folder, named)| hook(&folder, purpose, named));
        if let Some(hook) = found {
            return Some(format!("git would run a hook of the repository ({hook})"));
        }
        self.nested(settings.hash.unwrap_or(20), purpose, seen)
    }

    /// The same for the repositories nested in it, in which git calls itself.
    fn nested(&self, hash: usize, purpose: Purpose, seen: &mut usize) -> Option<String> {
        let paths = match index::nested(&self.own, hash) {
            Ok(paths) => paths,
            Err(what) => return Some(format!("{what} ({})", self.own.join("index"))),
        };
        for path in paths {
            // The name of a file need not be text, and then is not one that we could look at.
            let Ok(path) = String::from_utf8(path) else {
                return Some("a repository is nested in it whose path is not text".to_owned());
            };
            match Self::at(&self.top.join(path)) {
                None => {}
                Some(Err(doubt)) => return Some(doubt),
                Some(Ok(nested)) => {
                    if let Some(doubt) = nested.doubt(purpose, seen) {
                        return Some(doubt);
                    }
                }
            }
        }
        None
    }
}

/// A hook that git could run.
fn hook(folder: &Utf8Path, purpose: Purpose, named: bool) -> Option<Utf8PathBuf> {
    match purpose {
        Purpose::Look => {
            let hook = folder.join(HOOK_OF_READERS);
            std::fs::symlink_metadata(&hook).is_ok().then_some(hook)
        }
        Purpose::Change if named => Some(folder.to_owned()),
        Purpose::Change => {
            let mut names = folder.read_dir_utf8().ok()?.map(|entry| match entry {
                Ok(entry) => entry.into_path(),
                // Its name is not text.
                Err(_) => folder.to_owned(),
            });
            names.find(|path| !path.as_str().ends_with(".sample"))
        }
    }
}

/// Whether git takes a folder for a repository by what is in it.
fn looks_like_git_folder(folder: &Utf8Path) -> bool {
    let is_there = |name: &str| std::fs::symlink_metadata(folder.join(name)).is_ok();
    is_there("HEAD") && (is_there("commondir") || (is_there("objects") && is_there("refs")))
}

/// The text of a small file; none for everything else.
fn small(path: &Utf8Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return None;
    }
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}
