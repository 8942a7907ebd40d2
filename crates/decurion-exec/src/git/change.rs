//! Changes to a repository: worktrees, commits made without a checkout, references moved from a known value.
//! Takes decided arguments; a reference that is not where the caller thinks it is stays where it is.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::{fs, io};

use camino::{Utf8Path, Utf8PathBuf};

use super::own_settings::{self, GitFolders};
use super::private_folder::PrivateGitFolder;
use super::query::LISTED;
use super::{FIRST_PAUSE, Git, GitCommand, GitError, LOCK_TRIES, MOST_PAUSE, folder, object, path};

/// A worktree to be made.
#[derive(Clone, Debug)]
pub struct NewWorktree<'a> {
    pub path: &'a Utf8Path,
    /// Its new branch; none leaves it detached.
    pub branch: Option<&'a str>,
    pub base: &'a str,
    /// Why it is locked.
    pub reason: &'a str,
}

impl Git {
    /// Makes a worktree with a new branch, locked from the start and without its files, which [`Git::reset_hard`] adds.
    /// Sparse patterns of the current worktree apply in it too (git copies them).
    pub async fn add_worktree(&self, at: &Utf8Path, new: &NewWorktree<'_>) -> Result<(), GitError> {
        let mut args = vec!["worktree", "add", "--quiet", "--no-checkout", "--lock", "--reason", new.reason];
        if let Some(branch) = new.branch {
            args.extend(["--no-track", "-b", branch]);
        } else {
            args.push("--detach");
        }
        args.extend([new.path.as_str(), new.base]);
        let odd = |what: String| GitError::Odd { command: "git worktree add".to_owned(), what };
        let from = GitFolders::of(at);
        if let Some(from) = &from {
            from.prepare_worktrees().map_err(|error| odd(format!("its folder cannot be made: {error}")))?;
        }
        // A command may have put a link in the place of a log that is to be.
        let unlogged = "core.logAllRefUpdates=false".to_owned();
        self.run(GitCommand::change(at, &args).making(new.path).setting(unlogged)).await?;
        from.map_or(Ok(()), |from| self.connect_worktree(&from, new.path).map_err(odd))
    }

    /// Sets the git folder of a new worktree if git was called with one of our folders in place of the shared one, and
    /// gives it the settings of the current worktree, which git did not see then.
    fn connect_worktree(&self, from: &GitFolders, path: &Utf8Path) -> Result<(), String> {
        let git = path.join(".git");
        let text = own_settings::read(&git)?;
        let named = Utf8Path::new(text.strip_prefix("gitdir: ").unwrap_or_default().trim_end());
        let stands = self.private.canonicalize_utf8().ok().and_then(|all| named.strip_prefix(all).ok());
        let Some(within) = stands else {
            let common =
                from.common.canonicalize_utf8().map_err(|error| format!("{}: {error}", from.common))?;
            let is_there = named.strip_prefix(common).is_ok_and(|within| within.starts_with("worktrees"));
            return is_there.then_some(()).ok_or_else(|| format!("{git} names another folder: {named}"));
        };
        let own = from.common.join(within.components().skip(1).collect::<Utf8PathBuf>());
        let failed =
            |error: io::Error| format!("its folder of git and its settings cannot be written: {error}");
        // A command can put a link in the place of either.
        let real = path.parent().unwrap_or(path).canonicalize_utf8().map_err(failed)?;
        let top = folder::open(&real.join(path.file_name().unwrap_or_default())).map_err(failed)?;
        let text = format!("gitdir: {own}\n");
        folder::replace_file(top.as_fd(), OsStr::new(".git"), text.as_bytes()).map_err(failed)?;
        let Ok(settings) = own_settings::read_bytes(&from.own.join("config.worktree")) else { return Ok(()) };
        let own = folder::open(&own).map_err(failed)?;
        folder::create_file(own.as_fd(), OsStr::new("config.worktree"), &settings).map_err(failed)
    }

    /// Takes a worktree away. One with changes is refused unless `by_force`, which also takes away one that is half made,
    /// gone from the disk or locked.
    pub async fn remove_worktree(
        &self,
        at: &Utf8Path,
        path: &Utf8Path,
        by_force: bool,
    ) -> Result<(), GitError> {
        let mut args = vec!["worktree", "remove", "--force"];
        if by_force {
            args.push("--force");
        } else if !self.status(path).await?.is_clean() {
            // Git would look with the settings that the worktree has now.
            let what = format!("{path} contains modified or untracked files");
            return Err(GitError::Odd { command: "git worktree remove".to_owned(), what });
        }
        args.push(path.as_str());
        self.run(GitCommand::change(at, &args).making(path)).await.map(drop)
    }

    /// Locks a worktree against being forgotten; one that is locked is locked.
    pub async fn lock_worktree(&self, at: &Utf8Path, path: &Utf8Path, reason: &str) -> Result<(), GitError> {
        let locked =
            self.run(GitCommand::change(at, &["worktree", "lock", "--reason", reason, path.as_str()])).await;
        unless(locked, "is already locked")
    }

    /// Takes the lock off; one that is not locked is not locked.
    pub async fn unlock_worktree(&self, at: &Utf8Path, path: &Utf8Path) -> Result<(), GitError> {
        let unlocked = self.run(GitCommand::change(at, &["worktree", "unlock", path.as_str()])).await;
        unless(unlocked, "is not locked")
    }

    /// Moves a reference from a known value to another; `None` means that it does not exist.
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
        self.run(GitCommand::change(at, &args)).await.map(drop)
    }

    /// Removes a branch that is still at this commit.
    pub async fn delete_branch(&self, at: &Utf8Path, branch: &str, old: &str) -> Result<(), GitError> {
        let name = format!("refs/heads/{branch}");
        self.run(GitCommand::change(at, &["update-ref", "--no-deref", "-d", &name, old])).await.map(drop)
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
        let mut order = GitCommand::change(at, &args).input(message.as_bytes().to_vec());
        let known = self.once(&GitCommand::look(at, &["var", "GIT_COMMITTER_IDENT"])).await?;
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
        let nested = self.copy_index(at, index).await?;
        let with = |args: &[&str]| GitCommand::change(at, args).env("GIT_INDEX_FILE", index.as_str());
        let changed = ["ls-files", "--others", "--modified", "--exclude-standard", "--full-name", "-z", ":/"];
        let changed = self.run(with(&changed)).await?;
        let mut wanted = b":/\0".to_vec();
        let mut moved = Vec::new();
        let except = |path: &str| format!(":(exclude,top,literal){path}\0").into_bytes();
        // `git add` calls git in the repositories of the index, with the settings that those have now.
        wanted.extend(nested.iter().flat_map(|path| except(path.as_str())));
        for path in changed.split(|byte| *byte == 0).filter_map(|path| std::str::from_utf8(path).ok()) {
            let is_withheld = !path.is_empty() && withheld(&at.join(path));
            if nested.iter().any(|nested| nested == path) {
                moved.extend(path.bytes().filter(|_| !is_withheld));
                moved.extend((!is_withheld).then_some(0));
            } else if is_withheld {
                wanted.extend(except(path));
            }
        }
        let add = with(&["add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul"]);
        self.run(add.input(wanted)).await?;
        if !moved.is_empty() {
            let update = with(&["update-index", "--add", "--remove", "--replace", "-z", "--stdin"]);
            self.run(update.input(moved)).await?;
        }
        object("git write-tree", &self.run(with(&["write-tree"])).await?)
    }

    /// Makes the files of a checkout those of a tree, by way of a copy of its index; the index stays as it is.
    pub async fn restore_files(&self, at: &Utf8Path, tree: &str, index: &Utf8Path) -> Result<(), GitError> {
        self.copy_index(at, index).await?;
        let source = format!("--source={tree}");
        let order = GitCommand::change(at, &["restore", &source, "--worktree", "--", ":/"]);
        self.run(order.env("GIT_INDEX_FILE", index.as_str())).await.map(drop)
    }

    /// Copies the index of a worktree to a place that commands cannot change. Git believes the paths in an index, also
    /// those that lead out of the worktree, and would read, write and remove files there: such an index is refused.
    /// Gives the other repositories in it.
    async fn copy_index(&self, at: &Utf8Path, index: &Utf8Path) -> Result<Vec<Utf8PathBuf>, GitError> {
        let own = self.repository(at).await?.own;
        let odd = |what| GitError::Odd { command: "git ls-files".to_owned(), what };
        let (from, to) = (own.join("index"), index.to_owned());
        let copy = move || {
            let mut file = own_settings::open_ordinary(&from, rustix::fs::OFlags::NOFOLLOW)?;
            let mut copy = fs::File::create(to)?;
            io::copy(&mut file, &mut copy)?;
            // By this time git knows which files may have changed in the second in which the index was written.
            copy.set_modified(file.metadata()?.modified()?)
        };
        let copying = tokio::task::spawn_blocking(copy).await;
        copying
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| odd(format!("its index cannot be copied to {index}: {error}")))?;
        let with = |args: &[&str]| GitCommand::change(at, args).env("GIT_INDEX_FILE", index.as_str());
        // A part of it may lie in another file, which commands can change.
        let whole = with(&["update-index", "--no-split-index"]).setting("core.splitIndex=false".to_owned());
        self.run(whole).await?;
        let listed = self.run(with(&LISTED)).await?;
        let is_odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
        let mut nested = Vec::new();
        for entry in listed.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
            let name = entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default();
            if name.split(|byte| *byte == b'/').any(is_odd) {
                let name = String::from_utf8_lossy(name).escape_debug().to_string();
                return Err(odd(format!("its index names a file out of the checkout: {name}")));
            }
            if entry.starts_with(b"160000 ") {
                nested.push(path(name)?);
            }
        }
        Ok(nested)
    }

    /// Commits of a checkout's own branches that nothing outside of it has; for a submodule, whose objects go
    /// with its worktree.
    pub async fn own_commits(&self, at: &Utf8Path) -> Result<u64, GitError> {
        let args = ["rev-list", "--count", "--branches", "--not", "--remotes", "HEAD", "--"];
        let output = self.run(GitCommand::look(at, &args).nested()).await?;
        Ok(String::from_utf8_lossy(&output).trim().parse().unwrap_or(u64::MAX))
    }

    /// Sets the files and index of a worktree that has no branch, or is at this commit, to a commit; untracked files
    /// stay. Works on a copy of the index, like [`Git::restore_files`].
    pub async fn reset_hard(&self, at: &Utf8Path, commit: &str) -> Result<(), GitError> {
        let odd = |error: io::Error| GitError::Odd {
            command: "git reset".to_owned(),
            what: format!("the index of {at} cannot be written: {error}"),
        };
        let own = GitFolders::of(at).ok_or_else(|| odd(io::ErrorKind::NotFound.into()))?.own;
        let private = PrivateGitFolder::new(&self.private).map_err(odd)?;
        let index = private.path().join("index");
        let lock = IndexLock::take(&own).await.map_err(odd)?;
        if own.join("index").symlink_metadata().is_ok() {
            self.copy_index(at, &index).await?;
        }
        // `git reset` would write a line to a log in whose place a command may have put a link.
        let order = GitCommand::change(at, &["read-tree", "--reset", "-u", commit]);
        self.run(order.env("GIT_INDEX_FILE", index.as_str())).await?;
        let head = object("git rev-parse", &self.run(GitCommand::look(at, &["rev-parse", "HEAD"])).await?)?;
        if head != commit {
            self.update_reference(at, "HEAD", commit, Some(&head)).await?;
        }
        lock.replace_by(&index).map_err(odd)
    }

    /// Brings a checkout's index to its commit; its files stay.
    pub async fn reset_index(&self, at: &Utf8Path) -> Result<(), GitError> {
        self.run(GitCommand::change(at, &["read-tree", "--reset", "HEAD"])).await.map(drop)
    }

    /// Removes untracked files of a checkout; ignored ones stay, so that what was built need not be again.
    pub async fn clean(&self, at: &Utf8Path) -> Result<(), GitError> {
        self.run(GitCommand::change(at, &["clean", "--quiet", "-ffd"])).await.map(drop)
    }
}

/// The lock that git takes for the index of a checkout.
struct IndexLock {
    own: Utf8PathBuf,
    file: fs::File,
    is_done: bool,
}

impl IndexLock {
    /// Takes it, as soon as no other git has it.
    async fn take(own: &Utf8Path) -> io::Result<Self> {
        // A command can put a link there, to any folder.
        if own.canonicalize_utf8()? != *own {
            return Err(io::Error::other(format!("there is a link on the way to {own}")));
        }
        let path = own.join("index.lock");
        let mut pause = FIRST_PAUSE;
        for left in (0..LOCK_TRIES).rev() {
            match fs::OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { own: own.to_owned(), file, is_done: false }),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) if left > 0 => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
            pause = (pause * 2).min(MOST_PAUSE);
        }
        Err(io::Error::other(format!("another git has locked it: {path}")))
    }

    /// Puts another file in the place of the index.
    fn replace_by(mut self, index: &Utf8Path) -> io::Result<()> {
        io::copy(&mut fs::File::open(index)?, &mut self.file)?;
        fs::rename(self.own.join("index.lock"), self.own.join("index"))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for IndexLock {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = fs::remove_file(self.own.join("index.lock"));
        }
    }
}

/// A refusal with these words is what was wanted.
fn unless(result: Result<Vec<u8>, GitError>, words: &str) -> Result<(), GitError> {
    match result {
        Err(GitError::Refused { words: told, .. }) if told.contains(words) => Ok(()),
        other => other.map(drop),
    }
}
