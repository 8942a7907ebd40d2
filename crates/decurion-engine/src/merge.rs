//! Finished agents' branches, merged one after the other. Takes the branches and where they should go; forecasts
//! each against what is merged so far, merges what is clean, lets a gate command judge it, and moves the target
//! by one whole merge at a time. What conflicts or fails is told and left as it was.
//!
//! Nothing here touches a checkout of the person's: merges are made of trees, the gate runs in a worktree of
//! its own, and the target only moves from the value it was last seen at. Killed anywhere, the target is at a
//! whole merge and everything else is where it was.

mod candidate;
mod gate;

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::GitError;
use decurion_exec::git::Forecast;
use decurion_protocol::SessionId;
use decurion_store::{Held, Holder};
use serde::Serialize;

use crate::worktree::{Integration, WorktreeError, Worktrees};

use candidate::Candidate;
pub use gate::Gate;

/// Where merges go unless it is said otherwise.
pub const TARGET: &str = "decurion/merged";

/// What is to be merged.
#[derive(Clone, Debug)]
pub struct MergeRequest {
    /// A folder of the repository.
    pub at: Utf8PathBuf,
    /// Names of agents, worktrees or branches; none is all that have ended.
    pub which: Vec<String>,
    /// The branch that moves.
    pub into: String,
    /// What must succeed after each merge.
    pub gate: Option<Gate>,
    /// Whether nothing is changed, only told.
    pub dry_run: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Merged {
    pub target: String,
    /// Where it was; none if there was no such branch.
    pub from: Option<String>,
    /// Where it is now, or would be.
    pub to: Option<String>,
    /// Each branch in the order it was taken.
    pub rows: Vec<MergeRow>,
}

/// What came of one branch.
#[derive(Clone, Debug, Serialize)]
pub struct MergeRow {
    /// The agent or worktree, or the branch itself.
    pub name: String,
    pub branch: String,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: MergeOutcome,
    /// Whether its worktree and branch were removed, being merged.
    pub removed: bool,
}

/// What can come of a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum MergeOutcome {
    /// It is in the target, by this commit.
    Merged { commit: String },
    /// The target has it already.
    Contained,
    /// These files conflict with what is merged.
    Conflicts { files: Vec<String> },
    /// The gate did not let it through.
    Refused {
        /// What the gate did.
        gate: String,
        output: Utf8PathBuf,
    },
    /// It was not tried, because of this.
    Skipped { reason: String },
}

impl MergeOutcome {
    /// Whether the target has it.
    pub fn is_in(&self) -> bool {
        matches!(self, Self::Merged { .. } | Self::Contained)
    }
}

/// Why nothing was merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("another merge of this repository is under way, by {0}; wait for it to end")]
    UnderWay(Holder),
    /// Merge into another branch.
    #[error("the branch {branch} is checked out in {path}, and no checkout is changed here")]
    CheckedOut { branch: String, path: Utf8PathBuf },
    /// Name one that there is.
    #[error("no such agent, worktree or branch: {0}")]
    Unknown(String),
    #[error("not a branch that can be merged into: {0:?}")]
    Target(String),
    /// Someone else moved it: see what they did, and run it again.
    #[error("{branch} was moved by someone else meanwhile; what was merged so far stands: {source}")]
    Moved { branch: String, source: GitError },
    #[error(transparent)]
    Worktree(#[from] WorktreeError),
    /// See what git says.
    #[error(transparent)]
    Git(#[from] GitError),
}

/// One merging, under way.
struct Merging<'a> {
    trees: &'a Worktrees,
    request: &'a MergeRequest,
    common: Utf8PathBuf,
    /// Where the target is on disk; none if there is no such branch yet.
    target: Option<String>,
    /// What is merged so far.
    head: String,
    /// Where the gate runs, once it does.
    integration: Option<Integration>,
    session: SessionId,
    /// Whoever looks whether the worktree for the gate is in use finds that it is.
    _alive: Option<Held>,
}

/// Merges what a request names.
pub async fn merge(trees: &Worktrees, request: &MergeRequest) -> Result<Merged, MergeError> {
    let found = trees.repository(&request.at).await?;
    trees.check_trust(&found)?;
    let state = |source| WorktreeError::State { what: "the folder of worktrees".to_owned(), source };
    let by_other = || MergeError::UnderWay(trees.leases().work_holder(&found, "merge"));
    let alone = trees.leases().work_lock(&found, "merge").map_err(state)?.ok_or_else(by_other)?;
    alone.note(trees.date());
    if !request.dry_run {
        // What a killed merge or session left, so that nothing of it is in the way.
        let cleaned = trees.clean(Some(&found), usize::MAX).await;
        tracing::debug!(?cleaned, "cleaned before merging");
    }
    let (target, head) = beginning(trees, request, &found).await?;
    // The worktree for the gate is leased like any other.
    let session = SessionId(uuid::Uuid::new_v4());
    let alive = match (&request.gate, request.dry_run) {
        (Some(_), false) => Some(trees.leases().hold(session).map_err(state)?),
        _ => None,
    };
    let from = target.clone();
    let mut merging =
        Merging { trees, request, common: found, target, head, integration: None, session, _alive: alive };
    let rows = merging.all().await;
    if let Some(integration) = merging.integration.take() {
        trees.end_integration(integration).await;
    }
    let to = if request.dry_run { Some(merging.head) } else { merging.target };
    Ok(Merged { target: request.into.clone(), from, to, rows: rows? })
}

/// Where the target is, and what is merged onto: that, or what is checked out where that has everything of it.
async fn beginning(
    trees: &Worktrees,
    request: &MergeRequest,
    common: &Utf8Path,
) -> Result<(Option<String>, String), MergeError> {
    let git = trees.git();
    let name = format!("refs/heads/{}", request.into);
    if !git.is_reference_name(common, &name).await? {
        return Err(MergeError::Target(request.into.clone()));
    }
    let listed = git.worktrees(common).await?;
    if let Some(there) = listed.into_iter().find(|listed| listed.branch.as_ref() == Some(&request.into)) {
        return Err(MergeError::CheckedOut { branch: request.into.clone(), path: there.path });
    }
    let checked_out = git.head(&request.at).await?.commit;
    let target = git.branch(common, &request.into).await?;
    let head = match (&target, checked_out) {
        (None, None) => return Err(WorktreeError::NoCommit(request.at.clone()).into()),
        (None, Some(commit)) => commit,
        (Some(target), Some(commit)) if git.is_ancestor(common, target, &commit).await? => commit,
        (Some(target), _) => target.clone(),
    };
    Ok((target, head))
}

impl Merging<'_> {
    async fn all(&mut self) -> Result<Vec<MergeRow>, MergeError> {
        let mut rows = Vec::new();
        for candidate in self.candidates().await? {
            let outcome = match self.one(&candidate).await {
                Ok(outcome) => outcome,
                Err(error @ MergeError::Moved { .. }) => return Err(error),
                // What is wrong with one says nothing about the others.
                Err(error) => MergeOutcome::Skipped { reason: error.to_string() },
            };
            let removed = outcome.is_in() && !self.request.dry_run && self.take_away(&candidate).await;
            rows.push(MergeRow {
                name: candidate.name().to_owned(),
                branch: candidate.branch.clone(),
                description: candidate.description().to_owned(),
                outcome,
                removed,
            });
        }
        Ok(rows)
    }

    async fn one(&mut self, candidate: &Candidate) -> Result<MergeOutcome, MergeError> {
        let tip = match self.tip(candidate).await? {
            Ok(tip) => tip,
            Err(reason) => return Ok(MergeOutcome::Skipped { reason }),
        };
        let git = self.trees.git();
        if git.is_ancestor(&self.common, &tip, &self.head).await? {
            return Ok(MergeOutcome::Contained);
        }
        let tree = match git.forecast(&self.common, &self.head, &tip).await? {
            Forecast::Conflicts(files) => return Ok(MergeOutcome::Conflicts { files }),
            Forecast::Clean(tree) => tree,
        };
        let message = candidate.merge_message();
        let commit = git.commit_tree(&self.common, &tree, &[&self.head, &tip], &message).await?;
        if let Some(refused) = self.judge(candidate, &commit).await? {
            return Ok(refused);
        }
        self.advance(&commit).await?;
        Ok(MergeOutcome::Merged { commit })
    }

    /// Moves the target to a merge that stands.
    async fn advance(&mut self, commit: &str) -> Result<(), MergeError> {
        if !self.request.dry_run {
            let name = format!("refs/heads/{}", self.request.into);
            let state = |source| WorktreeError::State { what: "the folder of worktrees".to_owned(), source };
            let mark = self.trees.leases().mark(&self.common).map_err(state)?;
            mark.about(&name).map_err(state)?;
            let old = self.target.as_deref();
            let moved = self.trees.git().update_reference(&self.common, &name, commit, old).await;
            mark.done();
            moved.map_err(|source| MergeError::Moved { branch: self.request.into.clone(), source })?;
            self.target = Some(commit.to_owned());
        }
        commit.clone_into(&mut self.head);
        Ok(())
    }

    /// What the gate says to a merge; none is that it may stand.
    async fn judge(
        &mut self,
        candidate: &Candidate,
        commit: &str,
    ) -> Result<Option<MergeOutcome>, MergeError> {
        let Some(gate) = self.request.gate.as_ref().filter(|_| !self.request.dry_run) else {
            return Ok(None);
        };
        if self.integration.is_none() {
            let made = self.trees.begin_integration(&self.request.at, &self.head, self.session).await?;
            self.integration = Some(made);
        }
        let Some(place) = &self.integration else { return Ok(None) };
        self.trees.git().reset_hard(place.path(), commit).await?;
        self.trees.git().clean(place.path()).await?;
        let state = |source| WorktreeError::State { what: "the gate's output".to_owned(), source };
        let folder = self.trees.leases().folder(&self.common).map_err(state)?;
        let output = folder.join(format!("gate-{}.log", candidate.file_name()));
        let refusal = gate.run(self.trees.git().guard(), place.path(), &output).await;
        Ok(refusal.map(|gate| MergeOutcome::Refused { gate, output }))
    }
}

/// How long a gate may run unless it is said otherwise.
pub const GATE_TIMEOUT: Duration = Duration::from_secs(1800);
