//! A small real git repository in a folder that goes away. Takes files, gives a repository with them
//! committed, made without anyone's own git settings.
#![allow(clippy::disallowed_methods)] // a test makes its repository with the real git

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

#[derive(Debug)]
pub struct Repo {
    folder: TempDir,
}

impl Repo {
    /// One on the branch `main` with these files in its first commit.
    pub fn with_files(files: &[(&str, &str)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("decurion-repo-").tempdir()?;
        let repo = Self { folder };
        repo.git(&["init", "--quiet", "--initial-branch=main"])?;
        for (path, text) in files {
            repo.write(path, text)?;
        }
        repo.commit("first")?;
        Ok(repo)
    }

    /// A shell project whose one test fails until `add.sh` is mended: `sh test.sh` exits with 1.
    pub fn with_failing_test() -> io::Result<Self> {
        Self::with_files(&[
            ("README.md", "# Sum\n\n`sh add.sh A B` prints the sum.\n"),
            ("add.sh", "echo $(($1 - $2))\n"),
            ("test.sh", "test \"$(sh add.sh 2 3)\" = 5 || { echo 'add.sh 2 3 is not 5'; exit 1; }\n"),
        ])
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file, with the folders it needs.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.path().join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)
    }

    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.path().join(path))
    }

    pub fn commit(&self, message: &str) -> io::Result<()> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]).map(drop)
    }

    /// What has changed since the last commit, one line per file; empty if nothing has.
    pub fn status(&self) -> io::Result<String> {
        self.git(&["status", "--porcelain"])
    }

    /// Runs git in it and gives what it printed.
    pub fn git(&self, arguments: &[&str]) -> io::Result<String> {
        Self::git_at(self.path(), arguments)
    }

    /// Runs git anywhere and gives what it printed.
    pub fn git_at(folder: &Path, arguments: &[&str]) -> io::Result<String> {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(folder)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .envs([("GIT_AUTHOR_NAME", "Test"), ("GIT_COMMITTER_NAME", "Test")])
            .envs([("GIT_AUTHOR_EMAIL", "test@example.com"), ("GIT_COMMITTER_EMAIL", "test@example.com")])
            .envs([
                ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
                ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
            ])
            .output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("git {} failed: {}", arguments.join(" "), errors.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_has_its_files_committed_and_says_what_changed() {
        let repo = Repo::with_files(&[("a/b.txt", "one\n")]).unwrap();
        assert_eq!(repo.git(&["show", "HEAD:a/b.txt"]).unwrap(), "one\n");
        assert_eq!(repo.git(&["rev-parse", "--abbrev-ref", "HEAD"]).unwrap(), "main\n");
        assert_eq!(repo.status().unwrap(), "");
        repo.write("a/b.txt", "two\n").unwrap();
        assert_eq!(repo.status().unwrap(), " M a/b.txt\n");
        repo.commit("second").unwrap();
        assert_eq!(repo.git(&["rev-list", "--count", "HEAD"]).unwrap(), "2\n");
    }

    #[test]
    fn two_repositories_of_the_same_files_have_the_same_commit() {
        let head = || Repo::with_failing_test().unwrap().git(&["rev-parse", "HEAD"]).unwrap();
        assert_eq!(head(), head());
    }

    #[test]
    fn what_git_refuses_is_an_error_with_its_words() {
        let repo = Repo::with_files(&[]).unwrap();
        let error = repo.git(&["checkout", "nowhere"]).unwrap_err().to_string();
        assert!(error.contains("git checkout nowhere failed") && error.contains("nowhere"), "{error}");
    }
}
