//! Settings for our git where commands can change those of a checkout. Takes where git is called; gives a folder of ours that
//! stands for the one which all checkouts of the repository share. It has settings of its own, and links to everything else.
//!
//! Commands in a sandbox cannot change the settings of the repository. They can change those of a worktree that came to be
//! while they run (`config.worktree`, where `extensions.worktreeConfig` is set), of its submodules, and of repositories that
//! they make. Our git works outside of the sandbox, and would run the filters that such settings name.

use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::{Git, GitError, Order, odd};

/// The most that is read of a file of settings.
const MOST_BYTES: u64 = 1 << 20;
/// What a folder of git may come to have while git works.
const MAY_COME: [&str; 3] = ["packed-refs", "shallow", "logs"];
/// What is ours in the folder that stands for another one, or belongs to one checkout alone.
const NOT_LINKED: [&str; 5] = ["config", "config.worktree", "commondir", "index", "gitdir"];
/// Settings of a checkout that say how files look, and name no program whatever their value is.
const HARMLESS: [&str; 12] = [
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.protecthfs",
    "core.protectntfs",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
    "index.sparse",
];
/// What says how a repository is kept.
const FORMAT: [&str; 3] =
    ["core.repositoryformatversion", "extensions.objectformat", "extensions.refstorage"];

/// Which settings of a repository hold for a call of git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    /// Those that commands cannot change, and harmless ones of the checkout.
    Usual,
    /// Harmless ones alone: anyone may have written them.
    Harmless,
    /// All: git only says where the repository is.
    Found,
}

/// The folders of git for a checkout.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Folders {
    /// The one for this checkout.
    pub own: Utf8PathBuf,
    /// The one that all checkouts of the repository share, as git made it.
    pub common: Utf8PathBuf,
    /// Whether anyone may have written the settings in it.
    is_open: bool,
}

impl Folders {
    /// Those of the checkout that a folder is in. None where there is no repository.
    pub fn of(at: &Utf8Path) -> Option<Self> {
        let at = at.canonicalize_utf8().ok()?;
        at.ancestors().find_map(|above| {
            if above.join(".git").symlink_metadata().is_ok() {
                return Some(Self::at(above).ok());
            }
            // It is the folder of git itself.
            let is_git = above.join("objects").is_dir() && above.join("HEAD").exists();
            is_git.then(|| {
                Some(Self { own: above.to_owned(), common: above.to_owned(), is_open: is_open(above) })
            })
        })?
    }

    /// Those of a repository in a checkout, about which nothing is believed.
    pub fn nested(top: &Utf8Path) -> Result<Self, String> {
        let found = Self::at(top)?;
        Ok(Self { common: found.own.clone(), is_open: true, ..found })
    }

    fn at(top: &Utf8Path) -> Result<Self, String> {
        let git = top.join(".git");
        let found = git.symlink_metadata().map_err(|error| format!("{git}: {error}"))?;
        if found.is_dir() {
            return Ok(Self { own: git.clone(), common: git, is_open: false });
        }
        let text = read(&git)?;
        let named = text.strip_prefix("gitdir: ").ok_or_else(|| format!("{git} names no folder"))?;
        let named = Utf8Path::new(named.trim_end_matches(['\n', '\r']));
        // The path of a submodule's folder is relative; its name may be anything.
        let own = plain(&top.join(named));
        let all = own.parent().filter(|all| all.file_name() == Some("worktrees") && named.is_absolute());
        let common = all.and_then(Utf8Path::parent).unwrap_or(&own).to_owned();
        let is_open = is_open(&common);
        Ok(Self { own, common, is_open })
    }
}

/// Whether a folder of git is that of a submodule of a worktree: commands that run when the worktree is made can write it.
fn is_open(common: &Utf8Path) -> bool {
    let parts: Vec<&str> = common.components().map(|part| part.as_str()).collect();
    parts.windows(3).any(|parts| parts[0] == "worktrees" && parts[2] == "modules")
}

/// The path without `.` and `..`.
fn plain(path: &Utf8Path) -> Utf8PathBuf {
    let mut plain = Utf8PathBuf::new();
    for part in path.components() {
        match part {
            Utf8Component::CurDir => {}
            Utf8Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The text of an ordinary file that is not large.
pub(super) fn read(path: &Utf8Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{path}: {error}");
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().is_ok_and(|found| found.is_file() && found.len() <= MOST_BYTES) {
        return Err(format!("{path} is no small file"));
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// A folder for us alone, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Private(Utf8PathBuf);

impl Private {
    pub fn new(all: &Utf8Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(all)?;
        sweep(all);
        loop {
            let name = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            let path = all.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                // An earlier process of this number left it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Self(path)),
            }
        }
    }

    pub fn path(&self) -> &Utf8Path {
        &self.0
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // What stays is removed by a later process.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what processes left that were killed.
fn sweep(all: &Utf8Path) {
    for entry in all.read_dir_utf8().into_iter().flatten().flatten() {
        let process = entry.file_name().split('-').next().and_then(|id| id.parse::<u32>().ok());
        let is_gone = |id: u32| {
            Utf8Path::new("/proc/self").exists() && !Utf8Path::new("/proc").join(id.to_string()).exists()
        };
        if process.is_some_and(is_gone) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Git {
    /// The folder that stands for the shared one of a repository; none where commands cannot change any settings.
    pub(super) async fn apart(
        &self,
        order: &Order<'_>,
        folders: &Folders,
    ) -> Result<Option<Private>, GitError> {
        let Folders { own, common, is_open } = folders;
        let failed = |what: String| odd(order, format!("its settings cannot be set apart: {what}"));
        if !is_open && own == common {
            return Ok(None);
        }
        let text = read(&common.join("config")).map_err(failed)?;
        if !is_open && !text.to_lowercase().contains("worktreeconfig") {
            return Ok(None);
        }
        let mut config = String::new();
        for (key, value) in self.listed_settings(order, text).await? {
            let is_wanted = FORMAT.contains(&&*key) || (*is_open && HARMLESS.contains(&&*key));
            // Of other extensions git says itself what it does not know.
            let is_extension = key.starts_with("extensions.") && key != "extensions.worktreeconfig";
            if is_wanted || (is_extension && !is_open) {
                set(&mut config, &key, &value);
            }
        }
        set(&mut config, "core.bare", "false");
        if !is_open {
            // Those of the main checkout are in the second one, and git copies them to a worktree that it makes.
            for name in ["config", "config.worktree"] {
                set(&mut config, "include.path", common.join(name).as_str());
            }
            set(&mut config, "core.sparsecheckout", "false");
            let text = read(&own.join("config.worktree")).unwrap_or_default();
            for (key, value) in self.listed_settings(order, text).await? {
                if HARMLESS.contains(&&*key) {
                    set(&mut config, &key, &value);
                }
            }
        }
        stand_for(common, &config, &self.private).map(Some).map_err(|error| failed(error.to_string()))
    }

    /// What a text says as settings, without what it includes.
    async fn listed_settings(
        &self,
        order: &Order<'_>,
        text: String,
    ) -> Result<Vec<(String, String)>, GitError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let list =
            Order::look(Utf8Path::new("/"), &["config", "--file", "-", "--no-includes", "-z", "--list"]);
        let answer = self.launch(&list.input(text.into_bytes()), None, None).await?;
        if answer.code != Some(0) {
            return Err(odd(order, format!("its settings are not understood: {}", answer.words)));
        }
        let text = String::from_utf8_lossy(&answer.output).into_owned();
        let entries = text.split('\0').filter(|entry| !entry.is_empty());
        let pair = |entry: &str| {
            let (key, value) = entry.split_once('\n').unwrap_or((entry, "true"));
            (key.to_owned(), value.to_owned())
        };
        Ok(entries.map(pair).collect())
    }
}

/// Adds a setting, in a section of its own: the last one holds.
fn set(config: &mut String, key: &str, value: &str) {
    let Some((section, name)) = key.split_once('.').filter(|(_, name)| !name.contains('.')) else { return };
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    config.push_str(&format!("[{section}]\n\t{name} = \"{value}\"\n"));
}

/// A folder with these settings, and links to all else in a folder of git.
fn stand_for(common: &Utf8Path, config: &str, private: &Utf8Path) -> io::Result<Private> {
    let stands = Private::new(private)?;
    fs::write(stands.path().join("config"), config)?;
    let there = common.read_dir_utf8()?.flatten().map(|entry| entry.file_name().to_owned());
    let mut names: Vec<String> = there.chain(MAY_COME.map(str::to_owned)).collect();
    let is_lock = |name: &str| Utf8Path::new(name).extension() == Some("lock");
    names.retain(|name| !NOT_LINKED.contains(&&**name) && !is_lock(name));
    names.sort();
    names.dedup();
    for name in names {
        std::os::unix::fs::symlink(common.join(&name), stands.path().join(&name))?;
    }
    Ok(stands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_that_git_made() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        fs::create_dir_all(root.join("main/.git/objects")).unwrap();
        fs::write(root.join("main/.git/HEAD"), "").unwrap();
        fs::create_dir_all(root.join("tree/src")).unwrap();
        fs::create_dir_all(root.join("tree/sub")).unwrap();
        fs::write(root.join("tree/.git"), format!("gitdir: {root}/main/.git/worktrees/tree\n")).unwrap();
        fs::write(root.join("tree/sub/.git"), "gitdir: ../../main/.git/worktrees/tree/modules/sub\n")
            .unwrap();
        for (at, own, common, open) in [
            ("main", "main/.git", "main/.git", false),
            ("main/.git", "main/.git", "main/.git", false),
            ("tree/src", "main/.git/worktrees/tree", "main/.git", false),
            (
                "tree/sub",
                "main/.git/worktrees/tree/modules/sub",
                "main/.git/worktrees/tree/modules/sub",
                true,
            ),
        ] {
            let expected = Folders { own: root.join(own), common: root.join(common), is_open: open };
            assert_eq!(Folders::of(&root.join(at)), Some(expected), "{at}");
        }
        assert_eq!(Folders::of(&root.join("tree/gone")), None);
    }

    #[test]
    fn what_killed_processes_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let all = Utf8Path::from_path(folder.path()).unwrap().join("git");
        fs::create_dir_all(all.join("4294967295-1")).unwrap();
        let first = Private::new(&all).unwrap();
        let second = Private::new(&all).unwrap();
        assert!(!all.join("4294967295-1").exists() && first.path().is_dir());
        assert_ne!(first.path(), second.path());
        drop(first);
        assert_eq!(all.read_dir_utf8().unwrap().count(), 1);
    }
}
