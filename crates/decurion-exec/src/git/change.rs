//! Changes to a repository: worktrees, commits made without a checkout, references moved from a known value.
//! Takes decided arguments; a reference that is not where the caller thinks it is stays where it is.

use camino::Utf8Path;

use super::{Git, GitError, Order, object};

/// A worktree to be made.
#[derive(Clone, Debug)]
pub struct NewWorktree<'a> {
    /// Where.
    pub path: &'a Utf8Path,
    /// Its new branch; none leaves it detached.
    pub branch: Option<&'a str>,
    /// From which commit.
    pub base: &'a str,
    /// Why it is locked.
    pub reason: &'a str,
}

impl Git {
    /// Makes a worktree with a branch of its own, locked from the beginning and without its files, which
    /// [`Git::reset_hard`] brings. Sparse patterns of the checkout it is asked from hold in it too (git copies
    /// them).
    pub async fn add_worktree(&self, at: &Utf8Path, new: &NewWorktree<'_>) -> Result<(), GitError> {
        let mut args = vec!["worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", new.reason];
        if let Some(branch) = new.branch {
            args.extend(["--no-track", "-b", branch]);
        } else {
            args.push("--detach");
        }
        args.extend([new.path.as_str(), new.base]);
        self.run(Order::change(at, &args)).await.map(drop)
    }

    /// Takes a worktree away. Git itself refuses one with changes unless `by_force`, which also takes away
    /// one that is half made, gone from the disk or locked.
    pub async fn remove_worktree(
        &self,
        at: &Utf8Path,
        path: &Utf8Path,
        by_force: bool,
    ) -> Result<(), GitError> {
        let mut args = vec!["worktree", "remove"];
        if by_force {
            args.extend(["--force", "--force"]);
        }
        args.push(path.as_str());
        self.run(Order::change(at, &args)).await.map(drop)
    }

    /// Locks a worktree against being forgotten; one that is locked is locked.
    pub async fn lock_worktree(&self, at: &Utf8Path, path: &Utf8Path, reason: &str) -> Result<(), GitError> {
        let locked =
            self.run(Order::change(at, &["worktree", "lock", "--reason", reason, path.as_str()])).await;
        unless(locked, "is already locked")
    }

    /// Takes the lock off; one that is not locked is not locked.
    pub async fn unlock_worktree(&self, at: &Utf8Path, path: &Utf8Path) -> Result<(), GitError> {
        let unlocked = self.run(Order::change(at, &["worktree", "unlock", path.as_str()])).await;
        unless(unlocked, "is not locked")
    }

    /// Moves a reference from a known value to another; `None` is that there is none.
    pub async fn update_reference(
        &self,
        at: &Utf8Path,
        name: &str,
        new: &str,
        old: Option<&str>,
    ) -> Result<(), GitError> {
        // A value of zeros means that it must not exist.
        let zeros = "0".repeat(new.len());
        let args = ["update-ref", "--no-deref", name, new, old.unwrap_or(&zeros)];
        self.run(Order::change(at, &args)).await.map(drop)
    }

    /// Removes a branch that is still at this commit.
    pub async fn delete_branch(&self, at: &Utf8Path, branch: &str, old: &str) -> Result<(), GitError> {
        let name = format!("refs/heads/{branch}");
        self.run(Order::change(at, &["update-ref", "--no-deref", "-d", &name, old])).await.map(drop)
    }

    /// Makes a commit of a tree. Someone who has told git no name is named for what made the commit.
    pub async fn commit_tree(
        &self,
        at: &Utf8Path,
        tree: &str,
        parents: &[&str],
        message: &str,
    ) -> Result<String, GitError> {
        let mut args = vec!["commit-tree", "--no-gpg-sign"];
        for parent in parents {
            args.extend(["-p", parent]);
        }
        args.push(tree);
        let mut order = Order::change(at, &args).input(message.as_bytes().to_vec());
        let known = self.once(&Order::look(at, &["var", "GIT_COMMITTER_IDENT"])).await?;
        if known.code != Some(0) {
            for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
                order = order.env(name, "Decurion");
            }
            for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
                order = order.env(name, "decurion@localhost");
            }
        }
        object("git commit-tree", &self.run(order).await?)
    }

    /// Everything in a checkout that is not ignored, as a tree, by way of a copy of its index: neither the
    /// index nor anything else of the checkout changes. The copy knows which files a sparse checkout leaves
    /// out, so that those are not taken for removed ones. Of what is `withheld`, by its path, nothing is read.
    pub async fn tree_of_folder(
        &self,
        at: &Utf8Path,
        index: &Utf8Path,
        withheld: &(dyn Fn(&Utf8Path) -> bool + Sync),
    ) -> Result<String, GitError> {
        self.copy_index(at, index).await?;
        let with = |args: &[&str]| Order::change(at, args).env("GIT_INDEX_FILE", index.as_str());
        let changed = ["ls-files", "--others", "--modified", "--exclude-standard", "--full-name", "-z", ":/"];
        let changed = self.run(with(&changed)).await?;
        let mut wanted = b":/\0".to_vec();
        for path in changed.split(|byte| *byte == 0).filter_map(|path| std::str::from_utf8(path).ok()) {
            if !path.is_empty() && withheld(&at.join(path)) {
                wanted.extend(format!(":(exclude,top,literal){path}\0").into_bytes());
            }
        }
        let add = with(&["add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul"]);
        self.run(add.input(wanted)).await?;
        object("git write-tree", &self.run(with(&["write-tree"])).await?)
    }

    /// Makes the files of a checkout those of a tree, by way of a copy of its index; the index stays as it is.
    pub async fn restore_files(&self, at: &Utf8Path, tree: &str, index: &Utf8Path) -> Result<(), GitError> {
        self.copy_index(at, index).await?;
        let source = format!("--source={tree}");
        let order = Order::change(at, &["restore", &source, "--worktree", "--", ":/"]);
        self.run(order.env("GIT_INDEX_FILE", index.as_str())).await.map(drop)
    }

    /// Copies the index of a checkout to where no command can change it. Git believes the paths in an index that is there,
    /// also those that lead out of the checkout, and would read, write and remove files elsewhere: such an index is refused.
    async fn copy_index(&self, at: &Utf8Path, index: &Utf8Path) -> Result<(), GitError> {
        let own = self.repository(at).await?.own;
        let odd = |what| GitError::Odd { command: "git ls-files".to_owned(), what };
        std::fs::copy(own.join("index"), index)
            .map_err(|error| odd(format!("its index cannot be copied to {index}: {error}")))?;
        let with = |args: &[&str]| Order::change(at, args).env("GIT_INDEX_FILE", index.as_str());
        // A part of it may lie in another file, which commands can change.
        let whole = with(&["update-index", "--no-split-index"]).setting("core.splitIndex=false".to_owned());
        self.run(whole).await?;
        let listed = self.run(with(&["ls-files", "--cached", "-z"])).await?;
        let is_odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
        let mut paths = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        match paths.find(|path| path.split(|byte| *byte == b'/').any(is_odd)) {
            Some(path) => {
                let path = String::from_utf8_lossy(path).escape_debug().to_string();
                Err(odd(format!("its index names a file out of the checkout: {path}")))
            }
            None => Ok(()),
        }
    }

    /// Commits of a checkout's own branches that nothing outside of it has; for a submodule, whose objects go
    /// with its worktree.
    pub async fn own_commits(&self, at: &Utf8Path) -> Result<u64, GitError> {
        let args = ["rev-list", "--count", "--branches", "--not", "--remotes", "HEAD", "--"];
        let output = self.run(Order::look(at, &args)).await?;
        Ok(String::from_utf8_lossy(&output).trim().parse().unwrap_or(u64::MAX))
    }

    /// Brings a checkout's files and index to a commit, whatever is in them, its untracked files excepted.
    pub async fn reset_hard(&self, at: &Utf8Path, commit: &str) -> Result<(), GitError> {
        self.run(Order::change(at, &["reset", "--hard", "--quiet", commit, "--"])).await.map(drop)
    }

    /// Brings a checkout's index to its commit; its files stay.
    pub async fn reset_index(&self, at: &Utf8Path) -> Result<(), GitError> {
        self.run(Order::change(at, &["reset", "--mixed", "--quiet", "--"])).await.map(drop)
    }

    /// Removes untracked files of a checkout; ignored ones stay, so that what was built need not be again.
    pub async fn clean(&self, at: &Utf8Path) -> Result<(), GitError> {
        self.run(Order::change(at, &["clean", "--quiet", "-ffd"])).await.map(drop)
    }

    /// Checks a submodule out as another checkout of the same repository has it, from that one's objects:
    /// nothing is fetched over a network.
    pub async fn copy_submodule(
        &self,
        at: &Utf8Path,
        submodule: &Utf8Path,
        from: &Utf8Path,
    ) -> Result<(), GitError> {
        let name = self.submodule_name(at, submodule).await?;
        let source = self.repository(from).await?.common;
        let args =
            ["submodule", "--quiet", "update", "--init", "--no-recommend-shallow", "--", submodule.as_str()];
        let order = Order::change(at, &args)
            .setting(format!("submodule.{name}.url={source}"))
            .setting(format!("submodule.{name}.update=checkout"))
            .setting("protocol.allow=never".to_owned())
            .setting("protocol.file.allow=always".to_owned());
        self.run(order).await.map(drop)
    }

    async fn submodule_name(&self, at: &Utf8Path, submodule: &Utf8Path) -> Result<String, GitError> {
        let asked = ["config", "--file", ".gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$"];
        let output = self.run(Order::look(at, &asked)).await?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let named = text.split('\0').filter_map(|entry| entry.split_once('\n'));
        let mut found = named.filter(|(_, path)| *path == submodule.as_str());
        let key = found.next().and_then(|(key, _)| key.strip_prefix("submodule.")?.strip_suffix(".path"));
        key.map(str::to_owned).ok_or_else(|| GitError::Odd {
            command: "git config --file .gitmodules".to_owned(),
            what: format!("it does not name the submodule {submodule}"),
        })
    }
}

/// A refusal with these words is what was wanted.
fn unless(result: Result<Vec<u8>, GitError>, words: &str) -> Result<(), GitError> {
    match result {
        Err(GitError::Refused { words: told, .. }) if told.contains(words) => Ok(()),
        other => other.map(drop),
    }
}
