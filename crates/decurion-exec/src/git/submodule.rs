//! Submodules of a worktree. Takes where another checkout has one; puts the same there, from that one's objects: nothing is
//! fetched over a network.
//!
//! `git submodule update` makes the repository where commands can write it, and checks it out with the filters that its
//! settings name by then. So it is made in a folder that commands cannot reach, and moved when it is done.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::private_folder::PrivateGitFolder;
use super::{Git, GitCommand, GitError, folder, object};

impl Git {
    /// Checks a submodule out as another checkout of the same repository has it.
    pub async fn copy_submodule(
        &self,
        at: &Utf8Path,
        submodule: &Utf8Path,
        from: &Utf8Path,
    ) -> Result<(), GitError> {
        let name = self.submodule_name(at, submodule).await?;
        let source = self.repository(from).await?.common;
        let own = self.repository(at).await?.own;
        let wanted = format!("HEAD:{submodule}");
        let wanted =
            self.run(GitCommand::look(at, &["rev-parse", "--verify", "--end-of-options", &wanted])).await?;
        let commit = object("git rev-parse", &wanted)?;
        let failed = |error: io::Error| GitError::Odd {
            command: "git submodule update".to_owned(),
            what: format!("the submodule {submodule} cannot be put in its place: {error}"),
        };
        let place =
            at.canonicalize_utf8().and_then(|at| folder::open(&at.join(submodule))).map_err(failed)?;
        let private = PrivateGitFolder::new(&self.private).map_err(failed)?;
        let made = private.path().join("made");
        let clone = ["clone", "--quiet", "--no-checkout", "--", source.as_str(), made.as_str()];
        self.run(from_this_machine(GitCommand::change(private.path(), &clone).found())).await?;
        let (git, top) = (made.join(".git"), at.join(submodule));
        let of_made = |args: &[&str]| {
            let order = GitCommand::change(&top, args).found();
            order
                .env("GIT_DIR", git.as_str())
                .env("GIT_WORK_TREE", top.as_str())
                .env("GIT_COMMON_DIR", git.as_str())
        };
        if self.ask(of_made(&["cat-file", "-e", &commit])).await.ok().flatten().is_none() {
            self.run(from_this_machine(of_made(&["fetch", "--quiet", "origin", &commit]))).await?;
        }
        self.run(of_made(&["checkout", "--quiet", "--force", "--detach", &commit])).await?;
        let name = Utf8Path::new("modules").join(&name);
        let (back, worktree) = (relative(&top, &own.join(&name)), relative(&own.join(&name), &top));
        self.run(of_made(&["config", "core.worktree", worktree.as_str()])).await?;
        put(&made, &own, &name).map_err(failed)?;
        let text = format!("gitdir: {back}\n");
        folder::replace_file(place.as_fd(), OsStr::new(".git"), text.as_bytes()).map_err(failed)
    }

    async fn submodule_name(&self, at: &Utf8Path, submodule: &Utf8Path) -> Result<String, GitError> {
        let asked = ["config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$"];
        let output = self.run(GitCommand::look(at, &asked)).await?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let named = text.split('\0').filter_map(|entry| entry.split_once('\n'));
        let mut found = named.filter(|(_, path)| *path == submodule.as_str());
        let key = found.next().and_then(|(key, _)| key.strip_prefix("submodule.")?.strip_suffix(".path"));
        // Git takes no other names either.
        let is_below = |name: &&str| {
            let mut parts = Utf8Path::new(name).components();
            !name.is_empty() && parts.all(|part| matches!(part, Utf8Component::Normal(_)))
        };
        key.filter(is_below).map(str::to_owned).ok_or_else(|| GitError::Odd {
            command: "git config --file .gitmodules".to_owned(),
            what: format!("it does not name the submodule {submodule}"),
        })
    }
}

fn from_this_machine(order: GitCommand<'_>) -> GitCommand<'_> {
    order.setting("protocol.allow=never".to_owned()).setting("protocol.file.allow=always".to_owned())
}

/// Moves the folder of git of a checkout to its place in another one. A command can put a link there, to any folder.
fn put(made: &Utf8Path, own: &Utf8Path, place: &Utf8Path) -> io::Result<()> {
    let (made, mut to) = (folder::open(made)?, folder::open(own)?);
    let (all, name) = (place.parent().unwrap_or(place), OsStr::new(place.file_name().unwrap_or_default()));
    for part in all.components() {
        to = folder::make(to.as_fd(), OsStr::new(part.as_str()))?;
    }
    let git = OsStr::new(".git");
    match rustix::fs::renameat(&made, git, &to, name) {
        Err(rustix::io::Errno::XDEV) => folder::copy_entry(made.as_fd(), git, to.as_fd(), name),
        moved => Ok(moved?),
    }
}

/// The way from one folder to another.
fn relative(from: &Utf8Path, to: &Utf8Path) -> Utf8PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(from, to)| from == to).count();
    let up = from.components().skip(shared).map(|_| Utf8Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}
