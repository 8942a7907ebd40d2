//! A worktree made: the repository looked at, the lease put down, git asked, submodules and changes brought
//! over. Takes a [`Wanted`], gives a [`Made`], or undoes what it did and says why.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::git::NewWorktree;
use decurion_protocol::Worktree;
use decurion_protocol::id::is_name;
use decurion_store::{Lease, LeaseState};

use super::{AskerRules, Made, OLDEST, PREFIX, Wanted, WorktreeError, Worktrees, locks, reason, state};
use crate::withheld::Withheld;

/// Less than this on a disk may be why git fails.
const LITTLE_ROOM: u64 = 64 << 20;
/// How deep submodules of submodules are followed.
const DEEPEST: usize = 8;

/// The checkout that is asked from.
pub(super) struct Origin {
    top: Utf8PathBuf,
    common: Utf8PathBuf,
    base: String,
    /// Where in the checkout the asker is.
    inside: Utf8PathBuf,
}

impl Origin {
    /// The same, from another commit.
    pub(super) fn at_commit(self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self }
    }
}

impl Worktrees {
    /// Makes a worktree. What fails leaves nothing behind.
    pub async fn make(&self, wanted: &Wanted) -> Result<Made, WorktreeError> {
        if !is_name(&wanted.name) {
            return Err(WorktreeError::Name(wanted.name.clone()));
        }
        let _place = self.place().await;
        self.check_version().await?;
        let dirty = wanted.dirty || self.settings.copy_dirty;
        let origin = self.origin(&wanted.from).await?;
        self.swept.get_or_init(|| self.sweep(&origin.common)).await;
        let path = self.place_for(&origin, &wanted.name, &wanted.rules.directories).await?;
        if wanted.agent.is_none()
            && self.leases().get(&origin.common, &wanted.name).is_some()
            && let Some(made) = self.enter_again(wanted, &origin).await?
        {
            return Ok(made);
        }
        let lease = Lease {
            name: wanted.name.clone(),
            session: wanted.session,
            agent: wanted.agent.clone(),
            description: wanted.description.clone(),
            state: LeaseState::Making,
            path,
            branch: format!("{PREFIX}{}", wanted.name),
            base: origin.base.clone(),
            repository: origin.common.clone(),
            copied: None,
            created: self.date(),
            ended: None,
        };
        if self.git().branch(&lease.repository, &lease.branch).await?.is_some() {
            return Err(WorktreeError::BranchExists(lease.branch));
        }
        self.put_new(&lease).await?;
        match self.fill(&origin, &lease, dirty.then_some(&wanted.rules)).await {
            Ok(copied) => {
                self.put(&Lease { state: LeaseState::Used, copied, ..lease.clone() }).await?;
                // Told, so that nobody takes what is committed for what the asker sees.
                let status = if dirty { None } else { self.git().status(&origin.top).await.ok() };
                let without = status.is_some_and(|status| !status.is_clean());
                Ok(Made { without, ..made(&origin, &lease, wanted.asker.as_ref()) })
            }
            Err(error) => {
                // Git often does not say that the disk was full, and by then has made room.
                let error = with_room(error, &lease);
                if let Err(undoing) = self.undo(&lease).await {
                    // Its lease says that it is half made, and the next cleaning tries again.
                    tracing::warn!(%undoing, worktree = %lease.path, "a half-made worktree stays for now");
                }
                Err(error)
            }
        }
    }

    /// Takes away a worktree in which nobody has worked, however far it came.
    pub(super) async fn undo(&self, lease: &Lease) -> Result<(), WorktreeError> {
        self.marked(&lease.repository, self.take_half_made(lease)).await?;
        if lease.state == LeaseState::Remaking {
            // Its agent is on record and can still go on in it.
            return self.put(&Lease { state: LeaseState::Removed, ..lease.clone() }).await;
        }
        self.leases().remove(lease).map_err(state("the lease"))
    }

    async fn take_half_made(&self, lease: &Lease) -> Result<(), WorktreeError> {
        locks::forget(lease).map_err(state("what git keeps of a worktree"))?;
        if lease.path.symlink_metadata().is_ok() {
            std::fs::remove_dir_all(&lease.path).map_err(state("a half-made worktree"))?;
        }
        if !lease.branch.is_empty()
            && self.git().branch(&lease.repository, &lease.branch).await?.as_ref() == Some(&lease.base)
        {
            self.git().delete_branch(&lease.repository, &lease.branch, &lease.base).await?;
        }
        Ok(())
    }

    /// Makes a worktree again that was removed unchanged while its session was away, with the changes that it was
    /// given; one whose making or removal was broken off is begun anew.
    pub(super) async fn make_again(&self, lease: &Lease) -> Result<(), WorktreeError> {
        let making = Lease { state: LeaseState::Remaking, ..lease.clone() };
        self.put(&making).await?;
        if lease.is_half_made() || lease.state == LeaseState::Removing {
            locks::clear_own(lease);
            self.marked(&lease.repository, self.take_half_made(lease)).await?;
        }
        let top = self.main_top(&lease.repository).await?;
        let origin = Origin {
            top,
            common: lease.repository.clone(),
            base: lease.base.clone(),
            inside: Utf8PathBuf::new(),
        };
        let filling = async {
            self.fill(&origin, &making, None).await?;
            self.give_again(&making).await
        };
        match filling.await {
            Ok(()) => self.put(&Lease { state: LeaseState::Used, ..making }).await,
            Err(error) => {
                if let Err(undoing) = self.undo(&making).await {
                    // Its lease says that it is half made, and the next try begins with this.
                    tracing::warn!(%undoing, worktree = %lease.path, "a half-made worktree stays for now");
                }
                Err(error)
            }
        }
    }

    /// The changes that a worktree was given when it was made, as they were then.
    async fn give_again(&self, lease: &Lease) -> Result<(), WorktreeError> {
        let Some(copied) = &lease.copied else { return Ok(()) };
        let gone = |source| WorktreeError::CopiedGone { path: lease.path.clone(), source };
        match self.restore(lease, copied).await {
            Err(WorktreeError::Git(source)) => Err(gone(source)),
            restored => restored,
        }
    }

    /// A worktree of this name that a person made earlier and that nobody uses is entered again; none if it is gone
    /// by now.
    async fn enter_again(&self, wanted: &Wanted, origin: &Origin) -> Result<Option<Made>, WorktreeError> {
        // Looked at under the lock: another session may be on its way into it.
        let _alone = self.alone(&origin.common).await?;
        let Some(lease) = self.leases().get(&origin.common, &wanted.name) else { return Ok(None) };
        let in_use = lease.session != wanted.session && self.leases().is_alive(lease.session);
        if in_use || lease.agent.is_some() {
            return Err(WorktreeError::InUse { name: lease.name, session: lease.session });
        }
        if lease.state == LeaseState::Discarding {
            self.remove_all(&lease).await?;
            return Ok(None);
        }
        // Nothing of a dead session runs any more, but agents of this one may be at work in it.
        let is_left = lease.session != wanted.session;
        let mut lease = Lease { session: wanted.session, ended: None, ..lease };
        if lease.state == LeaseState::Removed {
            // Nothing is in it, so it begins with what the asker has now.
            (lease.base, lease.copied) = (origin.base.clone(), None);
        }
        if lease.state == LeaseState::Removed || lease.is_half_made() {
            self.make_again(&lease).await?;
            return Ok(Some(made(origin, &lease, wanted.asker.as_ref())));
        }
        if self.is_checkout(&lease).await {
            if is_left {
                locks::clear_own(&lease);
            }
            self.git().lock_worktree(&lease.repository, &lease.path, &reason(&lease)).await?;
            self.put(&Lease { state: LeaseState::Used, ..lease.clone() }).await?;
        } else {
            return Err(WorktreeError::Gone(lease.path));
        }
        Ok(Some(Made { found: true, ..made(origin, &lease, wanted.asker.as_ref()) }))
    }

    async fn check_version(&self) -> Result<(), WorktreeError> {
        let check = || async {
            let version = self.git().version().await?;
            if version < OLDEST { Err(WorktreeError::Old(version.0, version.1)) } else { Ok(()) }
        };
        self.checked.get_or_try_init(check).await.map(drop)
    }

    pub(super) async fn origin(&self, from: &Utf8Path) -> Result<Origin, WorktreeError> {
        let no_repository = |source| WorktreeError::NoRepository { path: from.to_owned(), source };
        let found = self.git().repository(from).await.map_err(no_repository)?;
        let top = found.top.ok_or_else(|| WorktreeError::Bare(found.common.clone()))?;
        self.check_trust(&found.common)?;
        let head = self.git().head(from).await?.commit.ok_or_else(|| WorktreeError::NoCommit(top.clone()))?;
        let base = match &self.settings.base {
            None => head,
            Some(name) => {
                let found = self.git().commit(from, name).await?;
                found.ok_or_else(|| WorktreeError::NoBase(name.clone()))?
            }
        };
        let real = from.canonicalize_utf8().unwrap_or_else(|_| from.to_owned());
        let inside = real.strip_prefix(&top).map(Utf8Path::to_owned).unwrap_or_default();
        Ok(Origin { top, common: found.common, base, inside })
    }

    /// Where the worktree will be: never inside a checkout that is there for others.
    pub(super) async fn place_for(
        &self,
        origin: &Origin,
        name: &str,
        directories: &[Utf8PathBuf],
    ) -> Result<Utf8PathBuf, WorktreeError> {
        let usual = self.leases().folder(&origin.common).map_err(state("the folder of worktrees"))?;
        let folder = match &self.settings.location {
            None => usual,
            Some(location) => {
                let folder = location.join(usual.file_name().unwrap_or("worktrees"));
                std::fs::create_dir_all(&folder).map_err(state("`worktree.location`"))?;
                folder
            }
        };
        let folder = folder.canonicalize_utf8().map_err(state("the folder of worktrees"))?;
        let main = self.main_top(&origin.common).await?;
        for top in [&origin.top, &main] {
            if folder.starts_with(top) {
                return Err(WorktreeError::Inside { path: folder, top: top.clone() });
            }
        }
        // Without a location it is the state folder, which commands cannot reach.
        let writable = directories.iter().chain(&self.settings.writable);
        let mut writable = writable.filter_map(|path| path.canonicalize_utf8().ok());
        let is_ours = self.settings.location.is_none();
        if let Some(top) = writable.find(|top| !is_ours && folder.starts_with(top)) {
            return Err(WorktreeError::Writable { path: folder, top });
        }
        Ok(folder.join(name))
    }

    /// The repository's first checkout.
    async fn main_top(&self, common: &Utf8Path) -> Result<Utf8PathBuf, WorktreeError> {
        if let (Some(".git"), Some(top)) = (common.file_name(), common.parent()) {
            return Ok(top.to_owned());
        }
        let listed = self.git().worktrees(common).await?;
        Ok(listed.into_iter().next().map_or_else(|| common.to_owned(), |main| main.path))
    }

    /// Everything that belongs into the checkout, with what is not committed where rules are given that say what of it may
    /// be read; gives the tree of what was copied.
    pub(super) async fn fill(
        &self,
        origin: &Origin,
        lease: &Lease,
        dirty: Option<&AskerRules>,
    ) -> Result<Option<String>, WorktreeError> {
        let git = self.git();
        let reason = reason(lease);
        let new = NewWorktree {
            path: &lease.path,
            branch: Some(lease.branch.as_str()).filter(|branch| !branch.is_empty()),
            base: &lease.base,
            reason: &reason,
        };
        let adding = async {
            // Two that git makes at once trip over each other; their files may come at the same time.
            let _turn = self.turn.acquire().await;
            git.add_worktree(&origin.top, &new).await.map_err(WorktreeError::from)
        };
        self.marked(&lease.repository, adding).await?;
        git.reset_hard(&lease.path, &lease.base).await?;
        if git.sparse(&origin.top).await? != git.sparse(&lease.path).await? {
            return Err(WorktreeError::Sparse);
        }
        self.copy_submodules(&origin.top, &lease.path).await?;
        let Some(AskerRules { rules, root, home, .. }) = dirty else { return Ok(None) };
        if git.status(&origin.top).await?.is_clean() {
            return Ok(None);
        }
        if git.head(&origin.top).await?.commit.as_ref() != Some(&lease.base) {
            return Err(WorktreeError::DirtyBase);
        }
        // Git's objects can be read by commands that may not read the file itself.
        let denied = Withheld::new(rules, root, &origin.top, None, home.as_deref());
        let withheld = |path: &Utf8Path| denied.named(path).is_some();
        let tree = self.snapshot_of(&origin.top, &origin.common, &withheld).await?;
        self.restore(lease, &tree).await?;
        Ok(Some(self.snapshot(lease).await?))
    }

    /// The submodules that are checked out in one folder, checked out in the other, from the same objects.
    async fn copy_submodules(&self, from: &Utf8Path, to: &Utf8Path) -> Result<(), WorktreeError> {
        let mut pairs = vec![(from.to_owned(), to.to_owned(), 0)];
        while let Some((from, to, depth)) = pairs.pop() {
            let theirs = self.git().submodules(&from).await?;
            if theirs.iter().all(|submodule| !submodule.initialised) || depth == DEEPEST {
                continue;
            }
            let ours = self.git().submodules(&to).await?;
            for submodule in theirs.iter().filter(|found| found.initialised) {
                let path = &submodule.path;
                if !ours.iter().any(|own| own.path == *path) {
                    continue;
                }
                let failed = |source| WorktreeError::Submodule { path: path.clone(), source };
                let (theirs, common) = (from.join(path), self.git().repository(&from).await?.common);
                let copying = async { self.git().copy_submodule(&to, path, &theirs).await.map_err(failed) };
                self.marked(&common, copying).await?;
                pairs.push((from.join(path), to.join(path), depth + 1));
            }
        }
        Ok(())
    }
}

/// The error, with how little room there is, if there is little.
fn with_room(error: WorktreeError, lease: &Lease) -> WorktreeError {
    let scarce = |path: &Utf8PathBuf| {
        let free = decurion_exec::free_bytes(path.as_std_path()).filter(|free| *free < LITTLE_ROOM)?;
        Some((path.clone(), free / 1024))
    };
    match [&lease.path, &lease.repository].into_iter().find_map(scarce) {
        Some((path, free)) => WorktreeError::Room { path, free, source: Box::new(error) },
        None => error,
    }
}

fn made(origin: &Origin, lease: &Lease, asker: Option<&Worktree>) -> Made {
    let cwd = lease.path.join(&origin.inside);
    let cwd = if cwd.is_dir() { cwd } else { lease.path.clone() };
    // A path joined with nothing ends with a slash.
    let cwd = if origin.inside.as_str().is_empty() { lease.path.clone() } else { cwd };
    // From a submodule of its checkout, the same submodule of those above.
    let within = |asker: &Worktree| origin.top.strip_prefix(&asker.path).ok().map(Utf8Path::to_owned);
    let above = asker.and_then(|asker| {
        let inside = within(asker)?;
        let same =
            |top: &Utf8PathBuf| if inside.as_str().is_empty() { top.clone() } else { top.join(&inside) };
        Some(asker.origins().map(same).collect())
    });
    let worktree = Worktree {
        path: lease.path.clone(),
        branch: lease.branch.clone(),
        base: lease.base.clone(),
        repository: lease.repository.clone(),
        origin: origin.top.clone(),
        above: above.unwrap_or_default(),
    };
    Made { worktree, cwd, found: false, without: false }
}
