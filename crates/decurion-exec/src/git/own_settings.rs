//! Settings for our git where commands can change those of a worktree. Takes the folder where git is called; gives one
//! of our folders in place of the git folder that all worktrees of the repository share. It has its own settings, and
//! links to everything else.
//!
//! Commands in a sandbox cannot change the settings of the repository. They can change those of a worktree that was
//! made while they run (`config.worktree`, if `extensions.worktreeConfig` is set), of its submodules, and of
//! repositories that they make. Our git works outside of the sandbox, and would run the filters that such settings
//! name.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use rustix::fs::OFlags;

use super::private_folder::PrivateGitFolder;
use super::{Git, GitCommand, GitError, MOST_OUTPUT, folder, odd};

/// The most that is read of a file that commands can write.
const MOST_BYTES: u64 = 1 << 20;
/// What a folder of git may come to have while git works.
const MAY_COME: [&str; 3] = ["packed-refs", "shallow", "logs"];
/// Settings of a worktree that affect only how files look, and name no program, with any value.
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
pub(super) enum GitSettings {
    /// Those that commands cannot change, and harmless ones of the checkout.
    Usual,
    /// Harmless ones alone: anyone may have written them.
    Harmless,
    /// All: git only says where the repository is.
    Found,
}

/// The folders of git for a checkout.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GitFolders {
    /// The one for this checkout.
    pub own: Utf8PathBuf,
    /// The one that all checkouts of the repository share, as git made it.
    pub common: Utf8PathBuf,
    /// Whether anyone may have written the settings in it.
    is_open: bool,
}

impl GitFolders {
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
        Ok(Self { is_open: true, ..Self::at(top)? })
    }

    fn at(top: &Utf8Path) -> Result<Self, String> {
        let git = top.join(".git");
        let found = git.symlink_metadata().map_err(|error| format!("{git}: {error}"))?;
        if found.is_dir() {
            return Ok(Self { own: git.clone(), common: git, is_open: false });
        }
        let text = read(&git)?;
        let named = text.strip_prefix("gitdir: ").ok_or_else(|| format!("{git} names no folder"))?;
        let own = plain(&top.join(named.trim_end_matches(['\n', '\r'])));
        let Some(common) = repository_of(&own) else {
            return Ok(Self { is_open: is_open(&own), common: own.clone(), own });
        };
        let real = common.canonicalize_utf8().unwrap_or_else(|_| common.to_owned());
        let own = real.join(own.strip_prefix(common).unwrap_or(&own));
        Ok(Self { own, is_open: is_open(&real), common: real })
    }

    /// Makes the folder of worktrees, where we would not keep what git makes.
    pub fn prepare_worktrees(&self) -> io::Result<()> {
        if self.is_open {
            folder::make(folder::open(&self.common)?.as_fd(), OsStr::new("worktrees"))?;
        }
        Ok(())
    }
}

/// The folder of the repository that has this folder of git for a worktree. None of a submodule, whose name may be anything.
/// The path says it, and not `commondir` in the folder: commands can write or remove that while git works.
fn repository_of(own: &Utf8Path) -> Option<&Utf8Path> {
    let all = own.parent().filter(|all| all.file_name() == Some("worktrees"))?;
    all.parent().filter(|common| is_repository(common))
}

/// Whether git keeps a repository in a folder: one that it only keeps other folders in, as those of submodules, has no such
/// files. Either will do, so that a command that takes one away changes nothing.
fn is_repository(folder: &Utf8Path) -> bool {
    let is_there = |name| folder.join(name).symlink_metadata().is_ok_and(|found| !found.is_dir());
    ["config", "HEAD"].into_iter().any(is_there)
}

/// Whether a folder of git is that of a submodule of a worktree: commands that run when the worktree is made can write it.
/// Of the path, only what lies below the folder of a repository says so.
fn is_open(common: &Utf8Path) -> bool {
    common.ancestors().any(|modules| {
        let all = modules.parent().and_then(Utf8Path::parent);
        modules.file_name() == Some("modules")
            && all.is_some_and(|all| all.file_name() == Some("worktrees"))
            && all.and_then(Utf8Path::parent).is_some_and(is_repository)
    })
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
    String::from_utf8(read_bytes(path)?).map_err(|_| format!("{path} is not UTF-8 text"))
}

/// What is in an ordinary file that is not large.
pub(super) fn read_bytes(path: &Utf8Path) -> Result<Vec<u8>, String> {
    read_file(path, OFlags::NOFOLLOW, MOST_BYTES)
}

fn read_file(path: &Utf8Path, flags: OFlags, most: u64) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{path}: {error}");
    let file = open_ordinary(path, flags).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > most {
        return Err(format!("{path} has more than {most} bytes"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Opens a file to read it. A command may have put a pipe in its place, which would be waited for.
pub(super) fn open_ordinary(path: &Utf8Path, flags: OFlags) -> io::Result<fs::File> {
    let flags = i32::try_from((flags | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not an ordinary file")) }
}

impl Git {
    /// The folder that stands for the shared one of a repository; none where commands cannot change any settings.
    pub(super) async fn apart(
        &self,
        order: &GitCommand<'_>,
        folders: &GitFolders,
    ) -> Result<Option<PrivateGitFolder>, GitError> {
        let GitFolders { own, common, is_open } = folders;
        let failed = |what: String| odd(order, format!("its settings cannot be set apart: {what}"));
        if !is_open && own == common {
            return Ok(None);
        }
        let config = common.join("config");
        // Commands cannot write the one of a repository: it may be what git takes.
        let text = if *is_open {
            read_bytes(&config)
        } else {
            read_file(&config, OFlags::empty(), MOST_OUTPUT as u64)
        };
        let text = text.map_err(failed)?;
        let name = b"worktreeconfig";
        if !is_open && !text.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name)) {
            return Ok(None);
        }
        let mut config = Vec::new();
        for (key, value) in self.listed_settings(order, text).await? {
            let is_wanted = FORMAT.contains(&&*key) || (*is_open && HARMLESS.contains(&&*key));
            // Of other extensions git says itself what it does not know.
            let is_extension = key.starts_with("extensions.") && key != "extensions.worktreeconfig";
            if is_wanted || (is_extension && !is_open) {
                set(&mut config, &key, &value);
            }
        }
        set(&mut config, "core.bare", b"false");
        if !is_open {
            // Those of the main checkout are in the second one, and git copies them to a worktree that it makes.
            for name in ["config", "config.worktree"] {
                set(&mut config, "include.path", common.join(name).as_str().as_bytes());
            }
            set(&mut config, "core.sparsecheckout", b"false");
            let text = read_bytes(&own.join("config.worktree")).unwrap_or_default();
            for (key, value) in self.listed_settings(order, text).await? {
                if HARMLESS.contains(&&*key) {
                    set(&mut config, &key, &value);
                }
            }
        }
        let made = PrivateGitFolder::stand_for(&self.private, common, &MAY_COME);
        let written = made.and_then(|made| fs::write(made.path().join("config"), config).map(|()| made));
        written.map(Some).map_err(|error| failed(error.to_string()))
    }

    /// What a text says as settings, without what it includes.
    async fn listed_settings(
        &self,
        order: &GitCommand<'_>,
        text: Vec<u8>,
    ) -> Result<Vec<(String, Vec<u8>)>, GitError> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let list =
            GitCommand::look(Utf8Path::new("/"), &["config", "--file", "-", "--no-includes", "-z", "--list"]);
        let answer = self.launch(&list.input(text), None, None).await?;
        if answer.code != Some(0) {
            return Err(odd(order, format!("its settings are not understood: {}", answer.words)));
        }
        let entries = answer.output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        let pair = |entry: &[u8]| {
            let mut parts = entry.splitn(2, |byte| *byte == b'\n');
            let key = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
            (key, parts.next().unwrap_or(b"true").to_vec())
        };
        Ok(entries.map(pair).collect())
    }
}

/// Adds a setting, in a section of its own, because the last one wins.
fn set(config: &mut Vec<u8>, key: &str, value: &[u8]) {
    let Some((section, name)) = key.split_once('.').filter(|(_, name)| !name.contains('.')) else { return };
    config.extend(format!("[{section}]\n\t{name} = \"").bytes());
    for byte in value {
        match byte {
            b'\n' => config.extend(b"\\n"),
            b'\\' | b'"' => config.extend([b'\\', *byte]),
            byte => config.push(*byte),
        }
    }
    config.extend(b"\"\n");
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
        fs::write(root.join("tree/.git"), format!("gitdir: {root}/main/.git/worktrees/tree\n")).unwrap();
        for (name, git) in [
            ("tree/sub", "../../main/.git/worktrees/tree/modules/sub"),
            ("relative", "../main/.git/worktrees/tree"),
            ("main/worktrees", "../.git/modules/worktrees/x"),
            ("main/open", "../.git/modules/worktrees/x/modules/y"),
        ] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join(".git"), format!("gitdir: {git}\n")).unwrap();
        }
        for (at, own, common, open) in [
            ("main", "main/.git", "main/.git", false),
            ("main/.git", "main/.git", "main/.git", false),
            ("tree/src", "main/.git/worktrees/tree", "main/.git", false),
            ("relative", "main/.git/worktrees/tree", "main/.git", false),
            ("main/worktrees", "main/.git/modules/worktrees/x", "main/.git/modules/worktrees/x", false),
            (
                "main/open",
                "main/.git/modules/worktrees/x/modules/y",
                "main/.git/modules/worktrees/x/modules/y",
                false,
            ),
            (
                "tree/sub",
                "main/.git/worktrees/tree/modules/sub",
                "main/.git/worktrees/tree/modules/sub",
                true,
            ),
        ] {
            let expected = GitFolders { own: root.join(own), common: root.join(common), is_open: open };
            assert_eq!(GitFolders::of(&root.join(at)), Some(expected), "{at}");
        }
        assert_eq!(GitFolders::of(&root.join("tree/gone")), None);
    }
}
