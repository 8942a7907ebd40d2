//! A checkout of its own for an agent. Takes who asks and from where, gives a git worktree on a branch of its
//! own from a recorded commit; at the end takes it back: unchanged it is removed, changed it is kept and told.
//!
//! Whatever happens is on record before it is done: a lease (`store/lease.rs`) stands before the first git
//! command and goes after the last, so that whoever comes after a crash knows what is whose. There is no way
//! out into the shared folder: what git cannot do fails, with the reason.

mod clean;
mod decide;
mod integrate;
mod locks;
mod make;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::git::Diffstat;
use decurion_exec::{Git, GitError};
use decurion_protocol::{AgentId, Clock, RuleSet, SessionId, Worktree};
use decurion_store::{Held, Lease, LeaseState, Leases};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

pub use clean::{Cleaned, Kept, Row};
pub use decide::{Facts, Verdict, decide};
pub use integrate::Integration;

/// How many of git's longer works run at once; the disk gains nothing from more.
const AT_ONCE: usize = 8;
/// The oldest git that can forecast a merge without a checkout.
const OLDEST: (u32, u32) = (2, 38);
/// How many files that git ignores are named.
const MOST_NAMED: usize = 5;
/// What our branches begin with.
pub const PREFIX: &str = "decurion/";

/// Makes, watches and takes back worktrees. Cheap to clone.
#[derive(Clone)]
pub struct Worktrees {
    git: Git,
    leases: Leases,
    settings: WorktreeSettings,
    /// The repository of the folder that is trusted, and what its settings were when the session began.
    trusted: Option<(Utf8PathBuf, Option<u64>)>,
    clock: Arc<dyn Clock>,
    places: Arc<Semaphore>,
    /// Whose turn it is to have git make a worktree.
    turn: Arc<Semaphore>,
    /// Whose turn it is to write a lease.
    writes: Arc<Semaphore>,
    /// Whether what killed processes left half made was looked for.
    swept: Arc<OnceCell<()>>,
    checked: Arc<OnceCell<()>>,
    /// What makes leases alive of sessions that keep no transcript.
    held: Arc<Mutex<HashMap<SessionId, Held>>>,
}

/// What the settings say about worktrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorktreeSettings {
    /// Where they are made; none is in the state folder.
    pub location: Option<Utf8PathBuf>,
    /// Where commands may write by the settings.
    pub writable: Vec<Utf8PathBuf>,
    /// The commit they begin with; none is what the asker has checked out.
    pub base: Option<String>,
    /// Whether changes that are not committed are copied over without being asked for.
    pub copy_dirty: bool,
    /// The folder that is trusted, if the session's is; elsewhere git may not run what a repository's own
    /// configuration names.
    pub trusted: Option<Utf8PathBuf>,
}

/// A worktree that is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where the asker works.
    pub from: Utf8PathBuf,
    /// Its name: the agent's id, or one a person chose.
    pub name: String,
    pub session: SessionId,
    /// For which agent; none for the session itself.
    pub agent: Option<AgentId>,
    /// What it is for.
    pub description: String,
    /// Whether changes that are not committed are copied over.
    pub dirty: bool,
    /// The worktree that the asker works in, if it works in one.
    pub asker: Option<Worktree>,
    /// The rules of the asker: what they deny to read is not copied.
    pub rules: AskerRules,
}

/// Rules that deny, and where they count from.
#[derive(Clone, Debug, Default)]
pub struct AskerRules {
    pub rules: Arc<RuleSet>,
    /// What `/x` in one counts from.
    pub root: Utf8PathBuf,
    /// What `~` in one stands for.
    pub home: Option<Utf8PathBuf>,
    /// What commands may write besides the checkout: no worktree is made in there.
    pub directories: Vec<Utf8PathBuf>,
}

/// A worktree that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// As it is recorded.
    pub worktree: Worktree,
    /// Where in it the asker's own folder is.
    pub cwd: Utf8PathBuf,
    /// Whether it was there before: then others may work in it, or have left work in it.
    pub found: bool,
    /// Whether the asker has changes that are not committed and did not come over.
    pub without: bool,
}

/// What an agent left in its worktree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub path: Utf8PathBuf,
    pub branch: String,
    pub base: String,
    pub commits: u64,
    /// What differs from the beginning, committed or not.
    pub stat: Diffstat,
    /// Paths git does not know.
    pub untracked: usize,
    /// What git ignores and would be lost with it, where that counts: an agent's are its own passing files, a
    /// person's may be the only ones there are.
    pub ignored: Vec<String>,
    /// Whether something is not committed.
    pub dirty: bool,
    /// What could not be found out or done.
    pub problem: Option<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |number: u64, what: &str| match number {
            0 => None,
            1 => Some(format!("1 {what}")),
            more => Some(format!("{more} {what}s")),
        };
        let Diffstat { files, insertions, deletions } = self.stat;
        let changed =
            counted(files, "file").map(|files| format!("{files} changed, +{insertions} -{deletions}"));
        let untracked = (self.untracked > 0).then(|| format!("{} untracked", self.untracked));
        let (named, more) = self.ignored.split_at(self.ignored.len().min(MOST_NAMED));
        let ignored = (!named.is_empty()).then(|| {
            let and = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            format!("ignored by git: {}{and}", named.join(", "))
        });
        let loose = self.dirty.then(|| {
            let all = self.commits == 0;
            if all { "nothing committed" } else { "not all committed" }.to_owned()
        });
        let said: Vec<String> = [counted(self.commits, "commit"), changed, untracked, ignored, loose]
            .into_iter()
            .flatten()
            .collect();
        f.write_str(if said.is_empty() { "no changes" } else { "" })?;
        f.write_str(&said.join(", "))?;
        if let Some(problem) = &self.problem {
            write!(f, " ({problem})")?;
        }
        Ok(())
    }
}

/// What became of a worktree at its agent's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was unchanged and is gone, with its branch.
    Removed,
    /// It is kept, with what is in it.
    Kept(Left),
}

/// Why it is not known whether there is a repository; nothing where git says that there is none.
fn besides(error: &GitError) -> String {
    match error {
        GitError::Refused { .. } => String::new(),
        other => format!(" ({other})"),
    }
}

/// Why there is no worktree. The words are for the model and for people.
#[derive(Debug, thiserror::Error)]
pub enum WorktreeError {
    /// Work without one, or in a repository.
    #[error("not a git repository: {path}{}", besides(source))]
    NoRepository {
        /// Where one was looked for.
        path: Utf8PathBuf,
        source: GitError,
    },
    /// Work in a checkout.
    #[error("a worktree is made from a checkout, and this is a bare repository: {0}")]
    Bare(Utf8PathBuf),
    #[error("the repository has no commit yet, so a worktree would have nothing to begin with: {0}")]
    NoCommit(Utf8PathBuf),
    #[error("`worktree.baseRef` names no commit of this repository: {0}")]
    NoBase(String),
    /// Install a newer git.
    #[error("git {0}.{1} is too old for worktrees here; 2.38 or newer is needed")]
    Old(u32, u32),
    /// Set `worktree.location` to a folder outside.
    #[error(
        "worktrees would be inside the checkout {top}; set `worktree.location` to a folder outside: {path}"
    )]
    Inside {
        /// Where they would be.
        path: Utf8PathBuf,
        top: Utf8PathBuf,
    },
    #[error(
        "worktrees would be inside {top}, where commands may write while they are made; set `worktree.location` to a \
         folder outside: {path}"
    )]
    Writable {
        /// Where they would be.
        path: Utf8PathBuf,
        top: Utf8PathBuf,
    },
    /// Choose another name, or end the session that has it.
    #[error("the worktree {name} is in use by session {session}")]
    InUse { name: String, session: SessionId },
    /// Choose another name, or remove the branch.
    #[error("there is a branch {0} already; choose another name, or remove it")]
    BranchExists(String),
    /// Name one that there is.
    #[error("worktree not found: {0}")]
    Unknown(String),
    /// Merge it, or say that it may be lost.
    #[error("the worktree {name} has work in it that is not merged: {left}")]
    Unmerged {
        name: String,
        /// What is in it.
        left: Box<Left>,
    },
    /// Choose a name of letters, digits, `_` and `-`.
    #[error("not a name for a worktree (letters, digits, `_` and `-`, at most 64): {0:?}")]
    Name(String),
    /// See what git says about the submodule.
    #[error("the submodule {path} cannot be checked out from the objects at hand: {source}")]
    Submodule { path: Utf8PathBuf, source: GitError },
    /// Changes that are not committed belong to what is checked out.
    #[error(
        "uncommitted changes can only be copied onto what they were made on; leave `worktree.baseRef` out"
    )]
    DirtyBase,
    /// Look at the configuration, then trust the folder.
    #[error(
        "the configuration of the repository {0} runs programs for files (filters, merge drivers, or what it \
         includes), and the folder is not trusted, or the configuration was changed since the session began; look at \
         it, then run `decurion trust` or begin another session"
    )]
    Untrusted(Utf8PathBuf),
    /// Begin another agent with the changes as they are now.
    #[error("the uncommitted changes that the worktree started from are gone: {path} ({source})")]
    CopiedGone { path: Utf8PathBuf, source: GitError },
    /// Make room on the disk.
    #[error("{source}; there may be no space left on the disk of {path}: {free} KiB are free")]
    Room {
        /// What should have been written.
        path: Utf8PathBuf,
        /// How much is free, in KiB.
        free: u64,
        source: Box<WorktreeError>,
    },
    /// The sparse patterns did not come over.
    #[error("the sparse checkout could not be repeated in the worktree")]
    Sparse,
    /// It was there, and is not any more.
    #[error("working directory is gone: {0}")]
    Gone(Utf8PathBuf),
    /// See what git says.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The state folder or the place for worktrees cannot be written.
    #[error("cannot use {what}: {source}")]
    State {
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Worktrees {
    /// Worktrees whose leases are in this state folder.
    pub fn new(git: Git, leases: Leases, settings: WorktreeSettings, clock: Arc<dyn Clock>) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let trusted = settings.trusted.as_deref().and_then(crate::git::common);
        let trusted = trusted.map(|common| (common.clone(), crate::git::settings_mark(&common)));
        Self {
            trusted,
            git,
            leases,
            settings,
            clock,
            places,
            turn: Arc::new(Semaphore::new(1)),
            writes: Arc::new(Semaphore::new(1)),
            swept: Arc::default(),
            checked: Arc::default(),
            held: Arc::default(),
        }
    }

    /// The git in use.
    pub fn git(&self) -> &Git {
        &self.git
    }

    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Makes the leases of a session alive that keeps no transcript, as long as this process lives.
    pub fn hold_for(&self, session: SessionId) -> Result<(), WorktreeError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(entry) = held.entry(session) {
            entry.insert(self.leases.hold(session).map_err(state("the folder of worktrees"))?);
        }
        Ok(())
    }

    /// The session has ended, though this process may live on.
    pub(crate) fn let_go(&self, session: SessionId) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
    }

    /// Nothing of a repository runs before its folder is trusted, and git would run filters.
    pub(crate) fn check_trust(&self, repository: &Utf8Path) -> Result<(), WorktreeError> {
        // What a command made or changed since the session began was not there to be trusted.
        let is_trusted = |known: &(Utf8PathBuf, Option<u64>)| {
            known.0 == repository && known.1.is_some() && known.1 == crate::git::settings_mark(repository)
        };
        let runs =
            || crate::git::runs_for_files(repository) || crate::repository::nested_run_for_files(repository);
        if self.trusted.as_ref().is_some_and(is_trusted) || !runs() {
            return Ok(());
        }
        Err(WorktreeError::Untrusted(repository.to_owned()))
    }

    /// Removes a kept worktree and its branch by its name. Work that is in no other branch is refused, unless it is to
    /// be lost; gives what was in it.
    pub async fn remove_named(
        &self,
        at: &Utf8Path,
        name: &str,
        discard: bool,
    ) -> Result<Left, WorktreeError> {
        let repository = self.repository(at).await?;
        self.check_trust(&repository)?;
        let _place = self.place().await;
        let unknown = || WorktreeError::Unknown(name.to_owned());
        let alone = self.alone(&repository).await?;
        let lease = self.leases.get(&repository, name).ok_or_else(unknown)?;
        if lease.state == LeaseState::Removed {
            return Err(unknown());
        }
        if self.leases.is_alive(lease.session) {
            return Err(WorktreeError::InUse { name: lease.name, session: lease.session });
        }
        locks::clear_own(&lease);
        let (verdict, left) = self.look_at(&lease).await;
        if lease.is_half_made() {
            self.undo(&lease).await?;
        } else if discard || lease.state == LeaseState::Discarding {
            self.remove_all(&lease).await?;
        } else if verdict == Verdict::Unchanged {
            self.remove(&lease, None).await?;
        } else {
            // The lock is taken for each branch that may have it.
            drop(alone);
            let branch = self.git.head(at).await?.branch;
            for into in [Some(crate::merge::TARGET.to_owned()), branch].into_iter().flatten() {
                if into != lease.branch && self.remove_merged(&lease, &into).await? {
                    return Ok(left);
                }
            }
            return Err(WorktreeError::Unmerged { name: lease.name, left: Box::new(left) });
        }
        Ok(left)
    }

    pub(crate) fn date(&self) -> jiff::Timestamp {
        self.clock.date()
    }

    /// Takes a worktree back whose agent has ended and nothing of it runs any more. Never fails: what cannot
    /// be decided is kept, and said.
    pub async fn release(&self, worktree: &Worktree) -> Released {
        let Some(name) = worktree.path.file_name() else {
            return Released::Kept(unknown(worktree, "no name"));
        };
        let Some(lease) = self.leases.get(&worktree.repository, name) else {
            return if worktree.path.exists() {
                Released::Kept(unknown(worktree, "its lease is gone"))
            } else {
                Released::Removed
            };
        };
        let _place = self.place().await;
        let (verdict, left) = self.look_at(&lease).await;
        if verdict == Verdict::Unchanged {
            return match self.remove(&lease, None).await {
                Ok(()) => Released::Removed,
                // Others that end at the same moment may have been in git's way.
                Err(_) if self.look_at(&lease).await.0 == Verdict::Unchanged => {
                    match self.remove(&lease, None).await {
                        Ok(()) => Released::Removed,
                        Err(error) => Released::Kept(self.keep(lease, left, Some(error)).await),
                    }
                }
                Err(error) => Released::Kept(self.keep(lease, left, Some(error)).await),
            };
        }
        Released::Kept(self.keep(lease, left, None).await)
    }

    /// Takes back a worktree that was made or entered for somebody who does not come: one that was there before stays.
    pub(crate) async fn give_back(&self, made: &Made) {
        if made.found {
            self.keep_as_it_is(&made.worktree).await;
        } else {
            self.release(&made.worktree).await;
        }
    }

    /// What is in a worktree, and whether anything would be lost with it.
    pub async fn look(&self, worktree: &Worktree) -> (Verdict, Left) {
        match self.lease_of(worktree) {
            Some(lease) => {
                let _place = self.place().await;
                self.look_at(&lease).await
            }
            None => (Verdict::Changed, unknown(worktree, "its lease is gone")),
        }
    }

    /// Takes a worktree back and keeps it, whatever is in it.
    pub async fn keep_as_it_is(&self, worktree: &Worktree) -> Left {
        let Some(lease) = self.lease_of(worktree) else { return unknown(worktree, "its lease is gone") };
        let _place = self.place().await;
        let (_, left) = self.look_at(&lease).await;
        self.keep(lease, left, None).await
    }

    /// Takes a worktree back with all that is in it, because somebody wants just that. What cannot be removed is
    /// kept, and said.
    pub async fn discard(&self, worktree: &Worktree) -> Released {
        let Some(lease) = self.lease_of(worktree) else {
            return Released::Kept(unknown(worktree, "its lease is gone"));
        };
        let _place = self.place().await;
        let (_, left) = self.look_at(&lease).await;
        match self.remove_all(&lease).await {
            Ok(()) => Released::Removed,
            Err(error) => Released::Kept(self.keep(lease, left, Some(error)).await),
        }
    }

    /// Removes a worktree with all that is in it. Can be broken off anywhere: its lease says what is wanted, and whoever
    /// comes next goes on with it.
    pub(super) async fn remove_all(&self, lease: &Lease) -> Result<(), WorktreeError> {
        self.check_trust(&lease.repository)?;
        self.put(&Lease { state: LeaseState::Discarding, ..lease.clone() }).await?;
        let tip = self.git.branch(&lease.repository, &lease.branch).await?;
        self.marked(&lease.repository, self.take_away(lease, tip.as_deref(), true)).await?;
        self.leases.remove(lease).map_err(state("the lease"))
    }

    fn lease_of(&self, worktree: &Worktree) -> Option<Lease> {
        self.leases.get(&worktree.repository, worktree.path.file_name()?)
    }

    /// A worktree that a resumed agent had: it must be there and be what it was. One that was removed
    /// unchanged meanwhile, or is only half made again, is made again.
    pub async fn take_up(&self, worktree: &Worktree, session: SessionId) -> Result<(), WorktreeError> {
        let gone = || WorktreeError::Gone(worktree.path.clone());
        let name = worktree.path.file_name().ok_or_else(gone)?;
        self.check_trust(&worktree.repository)?;
        let _place = self.place().await;
        let _alone = self.alone(&worktree.repository).await?;
        let lease = self.leases.get(&worktree.repository, name).ok_or_else(gone)?;
        if lease.session != session && self.leases.is_alive(lease.session) {
            return Err(WorktreeError::InUse { name: lease.name, session: lease.session });
        }
        let lease = Lease { session, ended: None, ..lease };
        // One whose removal was broken off was found unchanged, and may be gone already.
        if lease.state == LeaseState::Discarding {
            return Err(gone());
        }
        let half_gone = lease.state == LeaseState::Removing && lease.path.symlink_metadata().is_err();
        if lease.state == LeaseState::Removed || lease.is_half_made() || half_gone {
            locks::clear_shared(&self.leases, &lease.repository, Some(&lease));
            return self.make_again(&lease).await;
        }
        if !self.is_checkout(&lease).await {
            return Err(gone());
        }
        locks::clear_shared(&self.leases, &lease.repository, Some(&lease));
        locks::clear_own(&lease);
        self.git.lock_worktree(&lease.repository, &lease.path, &reason(&lease)).await?;
        self.put(&Lease { state: LeaseState::Used, ..lease }).await
    }

    /// Whether a lease's checkout is there and git knows it. A folder without its `.git` would be taken for a
    /// part of whatever repository is above it.
    pub(crate) async fn is_checkout(&self, lease: &Lease) -> bool {
        let Ok(found) = self.git.repository(&lease.path).await else { return false };
        found.common == lease.repository && found.top.as_deref() == Some(&lease.path)
    }

    /// What is in a worktree, and what that means.
    async fn look_at(&self, lease: &Lease) -> (Verdict, Left) {
        let mut left = Left {
            path: lease.path.clone(),
            branch: lease.branch.clone(),
            base: lease.base.clone(),
            commits: 0,
            stat: Diffstat::default(),
            untracked: 0,
            ignored: Vec::new(),
            dirty: false,
            problem: None,
        };
        match self.facts(lease, &mut left).await {
            Ok(facts) => (decide(&facts), left),
            Err(error) => {
                left.problem = Some(error.to_string());
                (Verdict::Changed, left)
            }
        }
    }

    async fn facts(&self, lease: &Lease, left: &mut Left) -> Result<Facts, WorktreeError> {
        let at = &lease.repository;
        self.check_trust(at)?;
        let tip = self.git.branch(at, &lease.branch).await?;
        let on_disk = lease.path.exists();
        let known = on_disk && self.is_checkout(lease).await;
        let mut facts =
            Facts { base: lease.base.clone(), tip, on_disk, known, head: None, clean: true, hidden: false };
        if let Some(tip) = &facts.tip {
            left.commits = self.git.count(at, &lease.base, tip).await?;
        }
        if !known {
            let tip = facts.tip.clone().unwrap_or_else(|| lease.base.clone());
            left.stat = self.git.diffstat(at, &lease.base, Some(&tip)).await?;
            let why = if on_disk { "git does not know it any more" } else { "its folder is gone" };
            left.problem = Some(why.to_owned());
            return Ok(facts);
        }
        facts.head = self.git.head(&lease.path).await?.commit;
        let status = self.git.status(&lease.path).await?;
        left.dirty = !status.is_clean();
        left.untracked = status.untracked();
        if lease.agent.is_none() {
            left.ignored = self.git.ignored(&lease.path).await?;
        }
        facts.clean = left.ignored.is_empty() && (!left.dirty || self.is_as_copied(lease).await?);
        for submodule in self.git.submodules(&lease.path).await?.iter().filter(|found| found.initialised) {
            facts.hidden |= self.git.own_commits(&lease.path.join(&submodule.path)).await? > 0;
        }
        left.stat = self.git.diffstat(&lease.path, &lease.base, None).await?;
        Ok(facts)
    }

    /// Whether a worktree that was given changes has just those.
    async fn is_as_copied(&self, lease: &Lease) -> Result<bool, WorktreeError> {
        let Some(copied) = &lease.copied else { return Ok(false) };
        Ok(self.snapshot(lease).await? == *copied)
    }

    /// All that is in a worktree and not ignored, as a tree.
    pub(crate) async fn snapshot(&self, lease: &Lease) -> Result<String, WorktreeError> {
        self.snapshot_of(&lease.path, &lease.repository, &|_| false).await
    }

    async fn snapshot_of(
        &self,
        at: &Utf8Path,
        repository: &Utf8Path,
        withheld: &(dyn Fn(&Utf8Path) -> bool + Sync),
    ) -> Result<String, WorktreeError> {
        let mark = self.leases.mark(repository).map_err(state("the folder of worktrees"))?;
        let tree = self.git.tree_of_folder(at, &mark.index(), withheld).await;
        mark.done();
        Ok(tree?)
    }

    /// Makes the files of a worktree those of a tree.
    async fn restore(&self, lease: &Lease, tree: &str) -> Result<(), WorktreeError> {
        let mark = self.leases.mark(&lease.repository).map_err(state("the folder of worktrees"))?;
        let restored = self.git.restore_files(&lease.path, tree, &mark.index()).await;
        mark.done();
        Ok(restored?)
    }

    /// Keeps a worktree that has something in it: it belongs to the person now.
    async fn keep(&self, lease: Lease, mut left: Left, error: Option<WorktreeError>) -> Left {
        if let Some(error) = error {
            left.problem = Some(format!("it could not be removed: {error}"));
        }
        let ended = lease.ended.or_else(|| Some(self.date()));
        let kept = Lease { state: LeaseState::Kept, ended, ..lease };
        let written = self.put(&kept).await;
        if let Err(error) = self.git.unlock_worktree(&kept.repository, &kept.path).await
            && left.problem.is_none()
            && kept.path.exists()
        {
            left.problem = Some(format!("it is still locked: {error}"));
        }
        if let (Err(error), None) = (written, &left.problem) {
            left.problem = Some(error.to_string());
        }
        left
    }

    /// Removes a worktree and its branch, which must be at `tip`, or else at its base. Git itself looks once
    /// more whether the checkout is clean. Can be broken off anywhere and begun again.
    pub(crate) async fn remove(&self, lease: &Lease, tip: Option<&str>) -> Result<(), WorktreeError> {
        self.put(&Lease { state: LeaseState::Removing, ..lease.clone() }).await?;
        self.marked(&lease.repository, self.take_away(lease, tip, false)).await?;
        // An agent can be told more after its end, or go on in another process: then it is made again, of one that
        // was merged from where it came to.
        if self.leases.is_on_record(lease.session) || self.leases.is_alive(lease.session) {
            return self.put(&Lease { state: LeaseState::Removed, ..lease.clone() }).await;
        }
        self.leases.remove(lease).map_err(state("the lease"))
    }

    async fn take_away(&self, lease: &Lease, tip: Option<&str>, all: bool) -> Result<(), WorktreeError> {
        let at = &lease.repository;
        if self.is_checkout(lease).await {
            self.git.unlock_worktree(at, &lease.path).await?;
            // Git removes no worktree with submodules unless it is forced; it was looked at a moment ago.
            let submodules = self.git.submodules(&lease.path).await?;
            let by_force = all || lease.copied.is_some() || submodules.iter().any(|found| found.initialised);
            self.git.remove_worktree(at, &lease.path, by_force).await?;
        } else {
            locks::forget(lease).map_err(state("what git keeps of a worktree"))?;
            // What is left of a removal that was broken off; another repository in its place is somebody's.
            if all && lease.path.is_dir() && lease.path.join(".git").symlink_metadata().is_err() {
                std::fs::remove_dir_all(&lease.path).map_err(state("a worktree that is removed"))?;
            }
        }
        let expected = tip.unwrap_or(&lease.base);
        if let Some(tip) = self.git.branch(at, &lease.branch).await?
            && tip == expected
        {
            // Each removal locks what all of them share.
            let _turn = self.turn.acquire().await;
            self.git.delete_branch(at, &lease.branch, expected).await?;
        }
        Ok(())
    }

    /// Does something for which git locks what the whole repository shares. If it is broken off, by a kill or by
    /// being dropped, a mark says that what is locked then may be nobody's.
    pub(crate) async fn marked<T, E: From<WorktreeError>>(
        &self,
        repository: &Utf8Path,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mark = self.leases.mark(repository).map_err(state("the folder of worktrees"))?;
        let done = work.await;
        mark.done();
        done
    }

    async fn put(&self, lease: &Lease) -> Result<(), WorktreeError> {
        let lease = lease.clone();
        self.write(move |leases| leases.put(&lease)).await
    }

    async fn put_new(&self, lease: &Lease) -> Result<(), WorktreeError> {
        let lease = lease.clone();
        self.write(move |leases| leases.put_new(&lease)).await
    }

    /// Writes a lease; where that waits for the device, on a thread for such work. In the order of asking, also where
    /// the one who asked first has gone: what is written last must be what was asked for last.
    async fn write(
        &self,
        write: impl FnOnce(&Leases) -> io::Result<()> + Send + 'static,
    ) -> Result<(), WorktreeError> {
        if !self.leases.is_synced() {
            return write(&self.leases).map_err(state("the lease"));
        }
        // The semaphore is never closed.
        let (turn, leases) = (Arc::clone(&self.writes).acquire_owned().await.ok(), self.leases.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            write(&leases)
        });
        writing.await.map_err(io::Error::other).flatten().map_err(state("the lease"))
    }

    /// A place among those who keep the disk busy. The semaphore is never closed.
    async fn place(&self) -> Option<SemaphorePermit<'_>> {
        self.places.acquire().await.ok()
    }

    /// The lock under which leases without a living session change hands.
    pub(crate) async fn alone(&self, repository: &Utf8Path) -> Result<Held, WorktreeError> {
        for _ in 0..600 {
            let held =
                self.leases.work_lock(repository, "clean").map_err(state("the folder of worktrees"))?;
            if let Some(held) = held {
                return Ok(held);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let source = io::Error::new(io::ErrorKind::TimedOut, "another process is cleaning up");
        Err(WorktreeError::State { what: "the folder of worktrees".to_owned(), source })
    }
}

/// What git shows as the reason why a worktree is locked.
fn reason(lease: &Lease) -> String {
    format!("decurion session {}", lease.session)
}

fn state(what: &'static str) -> impl Fn(io::Error) -> WorktreeError {
    move |source| WorktreeError::State { what: what.to_owned(), source }
}

fn unknown(worktree: &Worktree, problem: &str) -> Left {
    Left {
        path: worktree.path.clone(),
        branch: worktree.branch.clone(),
        base: worktree.base.clone(),
        commits: 0,
        stat: Diffstat::default(),
        untracked: 0,
        ignored: Vec::new(),
        dirty: false,
        problem: Some(problem.to_owned()),
    }
}
