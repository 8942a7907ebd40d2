//! Questions to a repository. Takes a folder, gives facts; takes no lock and changes nothing.

use camino::{Utf8Path, Utf8PathBuf};

use super::{Git, GitCommand, GitError, object, path};

/// What differs in a checkout; of repositories in it, only which commit they are at.
const STATUS: [&str; 6] = [
    "status",
    "--porcelain=v1",
    "-z",
    "--no-renames",
    "--untracked-files=normal",
    "--ignore-submodules=dirty",
];
/// What the index has.
pub(super) const LISTED: [&str; 3] = ["ls-files", "--stage", "-z"];
/// As many submodules of submodules are looked into.
const MOST_NESTED: usize = 1000;

/// Where a folder belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitRepository {
    /// The top of the checkout; none in a bare repository.
    pub top: Option<Utf8PathBuf>,
    /// What all worktrees of the repository share.
    pub common: Utf8PathBuf,
    /// What belongs to this worktree alone.
    pub own: Utf8PathBuf,
}

/// What is checked out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedOut {
    /// The commit; none where there is no commit yet.
    pub commit: Option<String>,
    /// The branch, without `refs/heads/`; none if detached.
    pub branch: Option<String>,
}

/// What has changed in a checkout and is not committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorktreeStatus {
    /// Each change; ignored files are none.
    pub changes: Vec<ChangedPath>,
}

/// One path that differs from the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPath {
    /// The two letters of git's short form.
    pub kind: [u8; 2],
    /// Where, from the top; a folder that is wholly new ends with a slash.
    pub path: Vec<u8>,
}

impl WorktreeStatus {
    pub fn is_clean(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many paths git does not know.
    pub fn untracked(&self) -> usize {
        self.changes.iter().filter(|change| &change.kind == b"??").count()
    }
}

/// One worktree as git lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedWorktree {
    /// Where; not checked to be there.
    pub path: Utf8PathBuf,
    /// Its commit; none if there is none.
    pub commit: Option<String>,
    /// Its branch, without `refs/heads/`.
    pub branch: Option<String>,
    /// Why it is locked; empty without a reason.
    pub locked: Option<String>,
    /// Why git would forget it.
    pub prunable: Option<String>,
}

/// What a merge would give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forecast {
    Clean(String),
    /// Conflicts in these files.
    Conflicts(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diffstat {
    pub files: u64,
    pub insertions: u64,
    pub deletions: u64,
}

/// A repository inside a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submodule {
    /// Where, from the top.
    pub path: Utf8PathBuf,
    /// Whether it is checked out.
    pub initialised: bool,
}

impl Git {
    /// Git's version: major and minor.
    pub async fn version(&self) -> Result<(u32, u32), GitError> {
        let output = self.run(GitCommand::look(Utf8Path::new("/"), &["version"])).await?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let numbers: Vec<u32> = text
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .split('.')
            .map_while(|part| part.parse().ok())
            .collect();
        match numbers[..] {
            [major, minor, ..] => Ok((major, minor)),
            _ => Err(GitError::Odd { command: "git version".to_owned(), what: text }),
        }
    }

    /// The repository that a folder belongs to.
    pub async fn repository(&self, at: &Utf8Path) -> Result<GitRepository, GitError> {
        let asked =
            ["rev-parse", "--path-format=absolute", "--is-inside-work-tree", "--git-common-dir", "--git-dir"];
        let output = self.run(GitCommand::look(at, &asked).found()).await?;
        let lines: Vec<&[u8]> =
            output.strip_suffix(b"\n").unwrap_or(&output).split(|b| *b == b'\n').collect();
        let [inside, common, own] = lines[..] else {
            return Err(GitError::Path { path: String::from_utf8_lossy(&output).escape_debug().to_string() });
        };
        let top = if inside == b"true" {
            let asked = ["rev-parse", "--path-format=absolute", "--show-toplevel"];
            let output = self.run(GitCommand::look(at, &asked).found()).await?;
            Some(path(output.strip_suffix(b"\n").unwrap_or(&output))?)
        } else {
            None
        };
        Ok(GitRepository { top, common: path(common)?, own: path(own)? })
    }

    /// What is checked out in a worktree.
    pub async fn head(&self, at: &Utf8Path) -> Result<CheckedOut, GitError> {
        let commit = self.commit(at, "HEAD").await?;
        let branch = self.ask(GitCommand::look(at, &["symbolic-ref", "--quiet", "HEAD"])).await?;
        let branch = branch.map(|name| String::from_utf8_lossy(&name).trim().to_owned());
        let branch = branch.and_then(|name| name.strip_prefix("refs/heads/").map(str::to_owned));
        Ok(CheckedOut { commit, branch })
    }

    /// The commit that a name means; none if it means none.
    pub async fn commit(&self, at: &Utf8Path, name: &str) -> Result<Option<String>, GitError> {
        let wanted = format!("{name}^{{commit}}");
        let asked = ["rev-parse", "--quiet", "--verify", "--end-of-options", &wanted];
        let found = self.ask(GitCommand::look(at, &asked)).await?;
        found.map(|bytes| object("git rev-parse", &bytes)).transpose()
    }

    /// Whether a reference may have this name.
    pub async fn is_reference_name(&self, at: &Utf8Path, name: &str) -> Result<bool, GitError> {
        Ok(self.ask(GitCommand::look(at, &["check-ref-format", name])).await?.is_some())
    }

    /// The tree of a commit.
    pub async fn tree_of(&self, at: &Utf8Path, commit: &str) -> Result<String, GitError> {
        let wanted = format!("{commit}^{{tree}}");
        let found =
            self.run(GitCommand::look(at, &["rev-parse", "--verify", "--end-of-options", &wanted])).await?;
        object("git rev-parse", &found)
    }

    /// The commit of a branch; none if there is no such branch.
    pub async fn branch(&self, at: &Utf8Path, branch: &str) -> Result<Option<String>, GitError> {
        self.commit(at, &format!("refs/heads/{branch}")).await
    }

    /// The branches whose names begin so, with their commits.
    pub async fn branches(&self, at: &Utf8Path, prefix: &str) -> Result<Vec<(String, String)>, GitError> {
        let below = format!("refs/heads/{prefix}");
        let asked = ["for-each-ref", "--format=%(objectname) %(refname)", &below];
        let output = self.run(GitCommand::look(at, &asked)).await?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let rows = text.lines().filter_map(|line| line.split_once(" refs/heads/"));
        Ok(rows.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// What differs from the last commit, untracked files included, ignored ones not. Git itself would look into
    /// submodules with their own settings, which commands may have written.
    pub async fn status(&self, at: &Utf8Path) -> Result<WorktreeStatus, GitError> {
        let mut found = self.status_of_one(GitCommand::look(at, &STATUS)).await?;
        let nested = match self.gitlinks(GitCommand::look(at, &LISTED)).await {
            // Too long a list to be looked through where no submodules are declared.
            Err(GitError::Flood { .. }) if !at.join(".gitmodules").exists() => Vec::new(),
            nested => nested?,
        };
        for nested in nested.into_iter().filter(|path| at.join(path).join(".git").exists()) {
            let path = nested.as_str().as_bytes();
            let is_known = found.changes.iter().any(|change| change.path == path);
            if !is_known && self.is_changed_within(&at.join(&nested)).await? {
                found.changes.push(ChangedPath { kind: *b" M", path: path.to_vec() });
            }
        }
        Ok(found)
    }

    async fn status_of_one(&self, order: GitCommand<'_>) -> Result<WorktreeStatus, GitError> {
        Ok(status(&self.run(order).await?))
    }

    /// Whether anything differs from the last commit in a submodule or in those within.
    async fn is_changed_within(&self, at: &Utf8Path) -> Result<bool, GitError> {
        let mut waiting = vec![at.to_owned()];
        let mut seen = 0;
        while let Some(at) = waiting.pop() {
            seen += 1;
            // What is not looked at may be changed.
            if seen > MOST_NESTED
                || !self.status_of_one(GitCommand::look(&at, &STATUS).nested()).await?.is_clean()
            {
                return Ok(true);
            }
            let within = self.gitlinks(GitCommand::look(&at, &LISTED).nested()).await?;
            waiting.extend(
                within.into_iter().map(|path| at.join(path)).filter(|path| path.join(".git").exists()),
            );
        }
        Ok(false)
    }

    /// What is in a checkout and ignored, from the top; a folder that is wholly ignored ends with a slash.
    pub async fn ignored(&self, at: &Utf8Path) -> Result<Vec<String>, GitError> {
        let asked = [
            "ls-files",
            "--others",
            "--ignored",
            "--exclude-standard",
            "--directory",
            "--no-empty-directory",
            "-z",
        ];
        let output = self.run(GitCommand::look(at, &asked)).await?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// The worktrees of a repository, the main one first.
    pub async fn worktrees(&self, at: &Utf8Path) -> Result<Vec<ListedWorktree>, GitError> {
        let output = self.run(GitCommand::look(at, &["worktree", "list", "--porcelain", "-z"])).await?;
        Ok(listed(&output))
    }

    /// Whether one commit is part of another's history.
    pub async fn is_ancestor(&self, at: &Utf8Path, old: &str, new: &str) -> Result<bool, GitError> {
        Ok(self.ask(GitCommand::look(at, &["merge-base", "--is-ancestor", old, new])).await?.is_some())
    }

    /// How many commits are in one and not in the other.
    pub async fn count(&self, at: &Utf8Path, base: &str, tip: &str) -> Result<u64, GitError> {
        let range = format!("{base}..{tip}");
        let output = self.run(GitCommand::look(at, &["rev-list", "--count", &range, "--"])).await?;
        let text = String::from_utf8_lossy(&output).trim().to_owned();
        text.parse().map_err(|_| GitError::Odd { command: "git rev-list --count".to_owned(), what: text })
    }

    /// How much differs between a commit and another, or what is in the folder.
    pub async fn diffstat(&self, at: &Utf8Path, base: &str, tip: Option<&str>) -> Result<Diffstat, GitError> {
        let mut asked =
            vec!["diff", "--shortstat", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", base];
        asked.extend(tip);
        asked.push("--");
        let output = self.run(GitCommand::look(at, &asked)).await?;
        Ok(diffstat(&String::from_utf8_lossy(&output)))
    }

    /// What a merge would give, without doing it. Writes objects, which nothing refers to.
    pub async fn forecast(&self, at: &Utf8Path, ours: &str, theirs: &str) -> Result<Forecast, GitError> {
        let asked = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs];
        let order = GitCommand::change(at, &asked);
        let answer = self.once(&order).await?;
        let mut parts = answer.output.split(|byte| *byte == 0);
        let tree = parts.next().unwrap_or_default();
        match answer.code {
            Some(0) => Ok(Forecast::Clean(object("git merge-tree", tree)?)),
            // Also the code for a commit that is not there; then there is no tree.
            Some(1) if object("git merge-tree", tree).is_ok() => {
                let names = parts.filter(|name| !name.is_empty());
                let mut names: Vec<String> =
                    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
                names.dedup();
                Ok(Forecast::Conflicts(names))
            }
            _ => Err(super::refused(&order, &answer)),
        }
    }

    /// The submodules of a checkout; none where there is no `.gitmodules`.
    pub async fn submodules(&self, at: &Utf8Path) -> Result<Vec<Submodule>, GitError> {
        if !at.join(".gitmodules").exists() {
            return Ok(Vec::new());
        }
        // The index says where they are, and a checked-out one has its own `.git`.
        let links = self.gitlinks(GitCommand::look(at, &LISTED)).await?;
        let is_initialised = |path: &Utf8Path| at.join(path).join(".git").exists();
        Ok(links.into_iter().map(|path| Submodule { initialised: is_initialised(&path), path }).collect())
    }

    /// Where other repositories stand in a checkout, as its index has it.
    pub(super) async fn gitlinks(&self, list: GitCommand<'_>) -> Result<Vec<Utf8PathBuf>, GitError> {
        let output = self.run(list).await?;
        let links = output.split(|byte| *byte == 0).filter(|entry| entry.starts_with(b"160000 "));
        links.map(|entry| path(entry.splitn(2, |byte| *byte == b'\t').nth(1).unwrap_or_default())).collect()
    }

    /// The patterns of a sparse checkout as git lists them; none where everything is checked out.
    pub async fn sparse(&self, at: &Utf8Path) -> Result<Option<String>, GitError> {
        let asked = ["config", "--type=bool", "--get", "core.sparseCheckout"];
        let on = self.ask(GitCommand::look(at, &asked)).await?;
        if on.as_deref() != Some(b"true\n") {
            return Ok(None);
        }
        let output = self.run(GitCommand::look(at, &["sparse-checkout", "list"])).await?;
        Ok(Some(String::from_utf8_lossy(&output).into_owned()))
    }

    /// Links to other repositories that one tree has and another has not, or has otherwise.
    pub async fn new_links(&self, at: &Utf8Path, old: &str, new: &str) -> Result<Vec<String>, GitError> {
        let asked = ["diff-tree", "-r", "-z", "--no-renames", "--no-commit-id", old, new];
        let output = self.run(GitCommand::look(at, &asked)).await?;
        let mut links = Vec::new();
        let mut parts = output.split(|byte| *byte == 0);
        while let (Some(facts), Some(name)) = (parts.next(), parts.next()) {
            // ":old-mode new-mode old-object new-object letter"
            if facts.split(|byte| *byte == b' ').nth(1) == Some(b"160000") {
                links.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(links)
    }
}

fn status(output: &[u8]) -> WorktreeStatus {
    let entries = output.split(|byte| *byte == 0).filter(|entry| entry.len() > 3);
    let change = |entry: &[u8]| ChangedPath { kind: [entry[0], entry[1]], path: entry[3..].to_vec() };
    WorktreeStatus { changes: entries.map(change).collect() }
}

/// Attributes end with a NUL each, worktrees with one more. One whose path cannot be a record of ours is left
/// out: it is not ours.
fn listed(output: &[u8]) -> Vec<ListedWorktree> {
    let mut all: Vec<ListedWorktree> = Vec::new();
    let mut usable = false;
    for attribute in output.split(|byte| *byte == 0).filter(|attribute| !attribute.is_empty()) {
        if let Some(name) = attribute.strip_prefix(b"worktree ") {
            let place = path(name);
            usable = place.is_ok();
            all.extend(place.map(|path| ListedWorktree { path, ..ListedWorktree::default() }));
            continue;
        }
        let Some(last) = all.last_mut().filter(|_| usable) else { continue };
        let text = String::from_utf8_lossy(attribute);
        let (key, value) = text.split_once(' ').unwrap_or((&text, ""));
        match key {
            "HEAD" if value.bytes().any(|byte| byte != b'0') => last.commit = Some(value.to_owned()),
            "branch" => last.branch = value.strip_prefix("refs/heads/").map(str::to_owned),
            "locked" => last.locked = Some(value.to_owned()),
            "prunable" => last.prunable = Some(value.to_owned()),
            _ => {}
        }
    }
    all
}

/// "3 files changed, 5 insertions(+), 1 deletion(-)", each part only where it is not zero.
fn diffstat(text: &str) -> Diffstat {
    let mut stat = Diffstat::default();
    for part in text.trim().split(", ") {
        let mut words = part.split(' ');
        let Some(number) = words.next().and_then(|word| word.parse().ok()) else { continue };
        match words.next().unwrap_or_default() {
            word if word.starts_with("file") => stat.files = number,
            word if word.starts_with("insertion") => stat.insertions = number,
            word if word.starts_with("deletion") => stat.deletions = number,
            _ => {}
        }
    }
    stat
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_keeps_every_path_as_it_is() {
        let found = status(b" M a b\0?? new\nline/\0?? \xff\0");
        assert_eq!(found.changes.len(), 3);
        assert_eq!(found.changes[1], ChangedPath { kind: *b"??", path: b"new\nline/".to_vec() });
        assert_eq!(found.untracked(), 2);
        assert!(status(b"").is_clean());
    }

    #[test]
    fn worktrees_are_told_apart_by_what_git_says_of_them() {
        let text = b"worktree /a b\0HEAD 1111111111111111111111111111111111111111\0branch refs/heads/x/y\0\0\
            worktree /c\0HEAD 0000000000000000000000000000000000000000\0detached\0locked\0prunable gone\0\0\
            worktree /bad\npath\0HEAD 1\0branch refs/heads/z\0\0";
        let found = listed(text);
        assert_eq!(found.len(), 2, "one of a strange name is not ours: {found:?}");
        assert_eq!(found[0].branch.as_deref(), Some("x/y"));
        assert_eq!(found[1].commit, None);
        assert_eq!(found[1].locked.as_deref(), Some(""));
        assert_eq!(found[1].prunable.as_deref(), Some("gone"));
    }

    #[test]
    fn a_diffstat_has_its_parts_in_any_combination() {
        let rows = [
            ("", (0, 0, 0)),
            (" 1 file changed, 2 insertions(+)", (1, 2, 0)),
            (" 3 files changed, 1 insertion(+), 9 deletions(-)\n", (3, 1, 9)),
            (" 2 files changed, 1 deletion(-)", (2, 0, 1)),
        ];
        for (text, (files, insertions, deletions)) in rows {
            assert_eq!(diffstat(text), Diffstat { files, insertions, deletions }, "{text}");
        }
    }
}
