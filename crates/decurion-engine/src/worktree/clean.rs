//! Worktrees that nobody uses. Takes the leases of dead sessions; what is unchanged is removed, what is half
//! made is taken away, what holds work is kept and told.

use std::collections::{BTreeSet, HashMap};
use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::SessionId;
use decurion_store::{Lease, LeaseState};

use super::{Left, Verdict, WorktreeError, Worktrees, locks, state};

/// How many are remembered that are gone and whose agents could go on.
const MOST_REMOVED: usize = 512;

/// One worktree as it is listed.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is on record.
    pub lease: Lease,
    /// What was found or done.
    pub kept: Kept,
}

/// What was found of a worktree, or done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its session is alive.
    InUse,
    /// Nobody uses it, and this is in it.
    Work(Left),
    /// Nobody uses it and it was unchanged or half made; it is gone, or would be.
    Removed,
    /// It cannot be told or done, because of this.
    Broken(String),
}

/// What a cleaning found.
#[derive(Clone, Debug, Default)]
pub struct Cleaned {
    /// The worktrees, oldest first.
    pub rows: Vec<Row>,
    /// Leases that cannot be read.
    pub damaged: Vec<String>,
}

impl Worktrees {
    /// Lists the worktrees of a repository, or all, and changes nothing.
    pub async fn list(&self, repository: Option<&Utf8Path>) -> io::Result<Cleaned> {
        self.walk(repository, true, usize::MAX).await
    }

    /// Removes what nobody uses and nobody would miss, at most so many.
    pub async fn clean(&self, repository: Option<&Utf8Path>, most: usize) -> io::Result<Cleaned> {
        let (leases, _) = self.leases().all(repository)?;
        let repositories: BTreeSet<Utf8PathBuf> = leases.into_iter().map(|lease| lease.repository).collect();
        for repository in repositories {
            self.sweep(&repository).await;
        }
        self.leases().forget_holders();
        self.walk(repository, false, most).await
    }

    /// Takes back what an earlier process of a living session left: half made, or ended. What is in it, if it is
    /// kept.
    pub(crate) async fn settle_own(&self, lease: &Lease) -> Option<Left> {
        let _place = self.place().await;
        locks::clear_shared(self.leases(), &lease.repository, Some(lease));
        locks::clear_own(lease);
        if lease.is_half_made() {
            if let Err(error) = self.undo(lease).await {
                tracing::warn!(%error, worktree = %lease.path, "a half-made worktree stays for now");
            }
            return None;
        }
        let (verdict, left) = self.look_at(lease).await;
        if lease.state == LeaseState::Discarding {
            let removed = self.remove_all(lease).await;
            return match removed {
                Ok(()) => None,
                Err(error) => Some(self.keep(lease.clone(), left, Some(error)).await),
            };
        }
        if verdict == Verdict::Changed {
            return Some(self.keep(lease.clone(), left, None).await);
        }
        match self.remove(lease, None).await {
            Ok(()) => None,
            Err(error) => Some(self.keep(lease.clone(), left, Some(error)).await),
        }
    }

    /// Settles what dead sessions left, as far as nobody has looked at it yet; at a session's start, beside it.
    pub async fn settle_dead(&self, most: usize) {
        let Ok((leases, _)) = self.leases().all(None) else { return };
        let unsettled = leases.into_iter().filter(|lease| lease.state != LeaseState::Kept);
        let dead = unsettled.filter(|lease| !self.leases().is_alive(lease.session));
        let (removed, left): (Vec<Lease>, Vec<Lease>) =
            dead.partition(|lease| lease.state == LeaseState::Removed);
        self.forget_removed(&removed).await;
        let may = |lease: &&Lease| lease.is_half_made() || self.check_trust(&lease.repository).is_ok();
        for lease in left.iter().filter(may).take(most) {
            let _place = self.place().await;
            locks::clear_shared(self.leases(), &lease.repository, None);
            if let Err(error) = self.settle(lease).await {
                tracing::warn!(%error, worktree = %lease.path, "a worktree stays as it is");
            }
        }
    }

    /// Forgets checkouts that are gone and that nobody can go on in, and the oldest of too many.
    async fn forget_removed(&self, removed: &[Lease]) {
        let mut known: HashMap<SessionId, bool> = HashMap::new();
        let too_many = removed.len().saturating_sub(MOST_REMOVED);
        for (number, lease) in removed.iter().enumerate() {
            let on_record =
                *known.entry(lease.session).or_insert_with(|| self.leases().is_on_record(lease.session));
            if on_record && number >= too_many {
                continue;
            }
            let Ok(_alone) = self.alone(&lease.repository).await else { continue };
            let now = self.leases().get(&lease.repository, &lease.name);
            if now.as_ref() == Some(lease) && !self.leases().is_alive(lease.session) {
                let _ = self.leases().remove(lease);
            }
        }
    }

    /// Takes away what killed processes left half made in a repository: git may be unable to work beside it.
    pub(super) async fn sweep(&self, repository: &Utf8Path) {
        locks::clear_shared(self.leases(), repository, None);
        let (leases, _) = self.leases().all(Some(repository)).unwrap_or_default();
        let half_made = leases.iter().filter(|lease| lease.is_half_made());
        for lease in half_made.filter(|lease| !self.leases().is_alive(lease.session)) {
            if let Err(error) = self.settle(lease).await {
                tracing::warn!(%error, worktree = %lease.path, "a half-made worktree stays for now");
            }
        }
    }

    async fn walk(&self, repository: Option<&Utf8Path>, dry: bool, most: usize) -> io::Result<Cleaned> {
        let (leases, damaged) = self.leases().all(repository)?;
        let mut rows = Vec::new();
        let mut done = 0;
        for lease in leases {
            if self.leases().is_alive(lease.session) {
                if lease.state == LeaseState::Removed {
                    continue;
                }
                rows.push(Row { kept: Kept::InUse, lease });
                continue;
            }
            if done == most {
                break;
            }
            done += 1;
            let _place = self.place().await;
            let found = if dry { self.would_be(&lease).await } else { self.settle(&lease).await };
            let kept = found.unwrap_or_else(|error| Kept::Broken(error.to_string()));
            if lease.state != LeaseState::Removed || kept != Kept::Removed {
                rows.push(Row { lease, kept });
            }
        }
        Ok(Cleaned { rows, damaged })
    }

    /// What would become of a lease without a living session.
    async fn would_be(&self, lease: &Lease) -> Result<Kept, WorktreeError> {
        if lease.is_half_made() || matches!(lease.state, LeaseState::Removed | LeaseState::Discarding) {
            return Ok(Kept::Removed);
        }
        if !lease.repository.exists() {
            return repository_gone(lease);
        }
        self.check_trust(&lease.repository)?;
        let (verdict, left) = self.look_at(lease).await;
        Ok(if verdict == Verdict::Unchanged { Kept::Removed } else { Kept::Work(left) })
    }

    /// Deals with a lease without a living session, alone, and as it stands now.
    async fn settle(&self, lease: &Lease) -> Result<Kept, WorktreeError> {
        let _alone = self.alone(&lease.repository).await?;
        let Some(lease) = self.leases().get(&lease.repository, &lease.name) else { return Ok(Kept::Removed) };
        if self.leases().is_alive(lease.session) {
            return Ok(Kept::InUse);
        }
        if !lease.repository.exists() {
            let kept = repository_gone(&lease)?;
            self.leases().remove(&lease).map_err(state("the lease"))?;
            return Ok(kept);
        }
        match lease.state {
            LeaseState::Removed => {
                // It stays only as long as its session could go on.
                if !self.leases().is_on_record(lease.session) {
                    self.leases().remove(&lease).map_err(state("the lease"))?;
                }
                return Ok(Kept::Removed);
            }
            LeaseState::Making | LeaseState::Remaking => {
                locks::clear_own(&lease);
                self.undo(&lease).await?;
                return Ok(Kept::Removed);
            }
            LeaseState::Discarding => {
                locks::clear_own(&lease);
                self.remove_all(&lease).await?;
                return Ok(Kept::Removed);
            }
            LeaseState::Used | LeaseState::Kept | LeaseState::Removing => locks::clear_own(&lease),
        }
        self.check_trust(&lease.repository)?;
        let (verdict, left) = self.look_at(&lease).await;
        if verdict == Verdict::Unchanged {
            self.remove(&lease, None).await?;
            return Ok(Kept::Removed);
        }
        Ok(Kept::Work(self.keep(lease, left, None).await))
    }
}

/// Without its repository a checkout is a folder of files, which are somebody's.
fn repository_gone(lease: &Lease) -> Result<Kept, WorktreeError> {
    if lease.path.exists() {
        let source =
            io::Error::new(io::ErrorKind::NotFound, "its repository is gone; its files are still there");
        return Err(WorktreeError::State { what: lease.path.to_string(), source });
    }
    Ok(Kept::Removed)
}
