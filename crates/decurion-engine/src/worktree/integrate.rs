//! A worktree for judging merges, and the end of those that are merged. Takes a commit, gives a checkout that is
//! nobody's work: whoever finds it after a crash takes it away.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::SessionId;
use decurion_store::{Lease, LeaseState};

use super::{Verdict, WorktreeError, Worktrees, locks};

/// The name of the worktree in which merges are judged.
const NAME: &str = "merging";
/// How many names are tried where a person's worktree has that one.
const MOST_NAMES: usize = 100;

/// A worktree in which merges are judged.
pub struct Integration {
    lease: Lease,
}

impl Integration {
    pub fn path(&self) -> &Utf8Path {
        &self.lease.path
    }
}

impl Worktrees {
    /// The repository of a folder.
    pub async fn repository(&self, at: &Utf8Path) -> Result<Utf8PathBuf, WorktreeError> {
        let no_repository = |source| WorktreeError::NoRepository { path: at.to_owned(), source };
        Ok(self.git().repository(at).await.map_err(no_repository)?.common)
    }

    /// Makes the worktree in which merges are judged. Its lease says that nobody works in it.
    pub(crate) async fn begin_integration(
        &self,
        at: &Utf8Path,
        base: &str,
        session: SessionId,
    ) -> Result<Integration, WorktreeError> {
        let origin = self.origin(at).await?.at_commit(base);
        let repository = self.repository(at).await?;
        // Without a branch it is nobody's work, and one of that kind was left by a merge that is gone: only one
        // merges at a time.
        let is_free = |name: &String| {
            self.leases()
                .get(&repository, name)
                .is_none_or(|left| left.branch.is_empty() && left.agent.is_none())
        };
        let names = (1..MOST_NAMES).map(|number| format!("{NAME}-{number}"));
        let mut names = std::iter::once(NAME.to_owned()).chain(names);
        let name = names.find(is_free).ok_or_else(|| WorktreeError::Name(NAME.to_owned()))?;
        let lease = Lease {
            name: name.clone(),
            session,
            agent: None,
            description: "merges are judged here".to_owned(),
            state: LeaseState::Making,
            path: self.place_for(&origin, &name, &[]).await?,
            branch: String::new(),
            base: base.to_owned(),
            repository,
            copied: None,
            created: self.date(),
            ended: None,
        };
        if let Some(left) = self.leases().get(&lease.repository, &name) {
            self.undo(&left).await?;
        }
        self.put_new(&lease).await?;
        let made = self.fill(&origin, &lease, None).await;
        let integration = Integration { lease };
        if let Err(error) = made {
            self.end_integration(integration).await;
            return Err(error);
        }
        Ok(integration)
    }

    pub(crate) async fn end_integration(&self, integration: Integration) {
        if let Err(error) = self.undo(&integration.lease).await {
            tracing::warn!(%error, worktree = %integration.lease.path, "it stays until the next cleaning");
        }
    }

    /// Removes a worktree whose branch is contained in another and that holds nothing else. Whether it did.
    pub(crate) async fn remove_merged(&self, lease: &Lease, into: &str) -> Result<bool, WorktreeError> {
        let _alone = self.alone(&lease.repository).await?;
        // Its agent may have been taken up again meanwhile.
        let now = self.leases().get(&lease.repository, &lease.name);
        if now.is_none_or(|now| now.state != LeaseState::Kept || now.session != lease.session) {
            return Ok(false);
        }
        let at = &lease.repository;
        let Some(tip) = self.git().branch(at, &lease.branch).await? else { return Ok(false) };
        let Some(target) = self.git().branch(at, into).await? else { return Ok(false) };
        if !self.git().is_ancestor(at, &tip, &target).await? {
            return Ok(false);
        }
        locks::clear_own(lease);
        // Submodule commits live in the worktree: a branch that points to new ones keeps it.
        if !self.git().new_links(at, &lease.base, &tip).await?.is_empty() {
            return Ok(false);
        }
        // Everything since its beginning is in the target; what counts is what came after its branch.
        let merged = Lease { base: tip.clone(), copied: None, ..lease.clone() };
        let (verdict, _) = self.look_at(&merged).await;
        if verdict == Verdict::Unchanged {
            self.remove(&merged, Some(&tip)).await?;
        }
        Ok(verdict == Verdict::Unchanged)
    }
}
