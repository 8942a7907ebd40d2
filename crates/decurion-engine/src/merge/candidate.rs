//! What can be merged: branches of worktrees whose agents have ended, and branches by their names. Takes the
//! leases and names, gives them in the order their agents ended, each with the commit that holds all its work.

use decurion_store::{Lease, LeaseState};

use crate::worktree::WorktreeError;

use super::{MergeError, Merging};

/// A branch to be merged.
pub(super) struct Candidate {
    pub branch: String,
    /// Its worktree; none for a branch that is not ours.
    pub lease: Option<Lease>,
}

impl Candidate {
    pub fn name(&self) -> &str {
        self.lease.as_ref().map_or(&self.branch, |lease| &lease.name)
    }

    pub fn description(&self) -> &str {
        self.lease.as_ref().map_or("", |lease| &lease.description)
    }

    /// Its name as part of a file's.
    pub fn file_name(&self) -> String {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        self.name().chars().map(plain).take(80).collect()
    }

    pub fn merge_message(&self) -> String {
        let about = if self.description().is_empty() { "" } else { ": " };
        format!("Merge {}{about}{}\n", self.branch, self.description())
    }

    fn commit_message(&self) -> String {
        let about = if self.description().is_empty() { self.name() } else { self.description() };
        format!("{about}\n\nWhat {} left without a commit.\n", self.name())
    }
}

impl Merging<'_> {
    /// What was asked for, oldest ending first.
    pub(super) async fn candidates(&self) -> Result<Vec<Candidate>, MergeError> {
        let state = |source| WorktreeError::State { what: "the leases".to_owned(), source };
        let (leases, _) = self.trees.leases().all(Some(&self.common)).map_err(state)?;
        let mut leases: Vec<Lease> = leases.into_iter().filter(is_work).collect();
        leases.sort_by(|a, b| {
            let key = |lease: &Lease| (lease.ended.is_none(), lease.ended, lease.created, lease.name.clone());
            key(a).cmp(&key(b))
        });
        let ended = |lease: &Lease| lease.state == LeaseState::Kept;
        let of = |lease: Lease| Candidate { branch: lease.branch.clone(), lease: Some(lease) };
        if self.request.which.is_empty() {
            return Ok(leases.into_iter().filter(ended).map(of).collect());
        }
        let mut branches = Vec::new();
        for name in &self.request.which {
            if !leases.iter().any(|lease| lease.name == *name || lease.branch == *name) {
                if self.trees.git().branch(&self.common, name).await?.is_none() {
                    return Err(MergeError::Unknown(name.clone()));
                }
                branches.push(Candidate { branch: name.clone(), lease: None });
            }
        }
        let named = |lease: &Lease| {
            self.request.which.iter().any(|name| *name == lease.name || *name == lease.branch)
        };
        Ok(leases.into_iter().filter(named).map(of).chain(branches).collect())
    }

    /// The commit that holds all of a candidate's work; what is not committed is committed first. The error is
    /// why it is not taken.
    pub(super) async fn tip(&self, candidate: &Candidate) -> Result<Result<String, String>, MergeError> {
        let git = self.trees.git();
        let Some(tip) = git.branch(&self.common, &candidate.branch).await? else {
            return Ok(Err("its branch is gone".to_owned()));
        };
        let Some(lease) = &candidate.lease else { return Ok(Ok(tip)) };
        // Its agent may have been taken up again since, and must not be until its branch has moved.
        let _alone = self.trees.alone(&lease.repository).await?;
        let Some(lease) = &self.trees.leases().get(&lease.repository, &lease.name) else {
            return Ok(Err("it was removed meanwhile".to_owned()));
        };
        if lease.state != LeaseState::Kept {
            return Ok(Err("its agent has not ended".to_owned()));
        }
        if !lease.path.exists() {
            return Ok(Ok(tip));
        }
        if !self.trees.is_checkout(lease).await {
            return Ok(Err(format!("git does not know {} any more", lease.path)));
        }
        let head = git.head(&lease.path).await?;
        if head.branch.as_ref() != Some(&lease.branch) {
            return Ok(Err(format!("{} is not on its branch any more", lease.path)));
        }
        self.commit_rest(candidate, lease, tip).await
    }

    /// Commits what a worktree holds besides its branch: from a copy of its index, without hooks, and with its
    /// own files untouched.
    async fn commit_rest(
        &self,
        candidate: &Candidate,
        lease: &Lease,
        tip: String,
    ) -> Result<Result<String, String>, MergeError> {
        let git = self.trees.git();
        let status = git.status(&lease.path).await?;
        if status.is_clean() {
            return Ok(Ok(tip));
        }
        let unmerged = |kind: &[u8; 2]| kind.contains(&b'U') || kind == b"AA" || kind == b"DD";
        if status.changes.iter().any(|change| unmerged(&change.kind)) {
            return Ok(Err(format!("{} has a merge that is not finished", lease.path)));
        }
        let tree = self.trees.snapshot(lease).await?;
        if tree == git.tree_of(&self.common, &tip).await? {
            return Ok(Ok(tip));
        }
        let links = git.new_links(&self.common, &tip, &tree).await?;
        if !links.is_empty() {
            let links = links.join(", ");
            return Ok(Err(format!("it holds repositories or submodule commits of its own: {links}")));
        }
        let commit = git.commit_tree(&self.common, &tree, &[&tip], &candidate.commit_message()).await?;
        if !self.request.dry_run {
            let name = format!("refs/heads/{}", lease.branch);
            git.update_reference(&self.common, &name, &commit, Some(&tip)).await?;
            git.reset_index(&lease.path).await?;
        }
        Ok(Ok(commit))
    }

    /// Removes the worktree and branch of what is merged, unless its session could still go on with it. Whether
    /// it was; what could not be removed is found by the next one.
    pub(super) async fn take_away(&self, candidate: &Candidate) -> bool {
        let Some(lease) = &candidate.lease else { return false };
        if self.trees.leases().is_alive(lease.session) {
            return false;
        }
        match self.trees.remove_merged(lease, &self.request.into).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::warn!(%error, worktree = %lease.path, "a merged worktree stays for now");
                false
            }
        }
    }
}

/// Whether a lease may hold work.
fn is_work(lease: &Lease) -> bool {
    matches!(lease.state, LeaseState::Used | LeaseState::Kept | LeaseState::Removing)
        && !lease.branch.is_empty()
}
