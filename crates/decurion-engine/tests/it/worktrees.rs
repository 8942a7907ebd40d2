//! Worktrees with the real git: made from every kind of checkout, or refused with the reason; taken back
//! unchanged or kept with what is in them; cleared after any death.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_engine::worktree::{
    AskerRules, Kept, Made, Released, Wanted, WorktreeError, WorktreeSettings, Worktrees,
};
use decurion_exec::{Git, Guard, GuardProgram};
use decurion_protocol::{AgentId, SessionId};
use decurion_store::{LeaseState, Leases};
use decurion_testkit::repo::Repo;
use tempfile::TempDir;

/// A repository, a state folder and worktrees between them.
pub struct Yard {
    pub repo: Repo,
    pub home: TempDir,
    pub trees: Worktrees,
    pub session: SessionId,
}

pub fn git_for_tests() -> Git {
    let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
    let guard = Guard::new(GuardProgram { program, args: Vec::new() });
    let environment = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        // Must not lead git elsewhere.
        ("GIT_DIR", "/nonexistent"),
    ];
    let environment: Vec<_> = environment.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Git::new(guard, &environment, &Utf8Path::new(env!("CARGO_TARGET_TMPDIR")).join("git"))
}

impl Yard {
    pub fn new(repo: Repo) -> Self {
        Self::with(repo, WorktreeSettings::default())
    }

    pub fn with(repo: Repo, settings: WorktreeSettings) -> Self {
        let home = tempfile::Builder::new().prefix("decurion home ").tempdir().unwrap();
        let leases = Leases::new(utf8(home.path()).join("state"));
        let trees = Worktrees::new(git_for_tests(), leases, settings, Arc::new(Counting::default()));
        Self { repo, home, trees, session: SessionId(uuid()) }
    }

    pub fn wanted(&self, number: u32) -> Wanted {
        Wanted {
            from: utf8(self.repo.path()),
            name: format!("a{number:016x}"),
            session: self.session,
            agent: Some(format!("a{number:016x}").parse::<AgentId>().unwrap()),
            description: format!("task {number}"),
            dirty: false,
            asker: None,
            rules: AskerRules::default(),
        }
    }

    pub async fn make(&self, number: u32) -> Made {
        self.trees.make(&self.wanted(number)).await.unwrap()
    }

    /// What git and the state folder still hold of ours.
    pub fn traces(&self) -> String {
        let listed = self.repo.git(&["worktree", "list", "--porcelain"]).unwrap();
        let trees = listed.lines().filter(|line| line.starts_with("worktree ")).count() - 1;
        let branches =
            self.repo.git(&["branch", "--list", "--format=%(refname:short)", "decurion/*"]).unwrap();
        let (leases, damaged) = self.trees.leases().all(None).unwrap();
        let states: Vec<String> = leases.iter().map(|lease| format!("{:?}", lease.state)).collect();
        assert!(damaged.is_empty(), "{damaged:?}");
        format!("{trees} worktrees, {} branches, leases [{}]", branches.lines().count(), states.join(" "))
    }

    /// Everything that must never change: the checkout's files, index, HEAD and branches of its own.
    pub fn main_checkout(&self) -> String {
        let at = self.repo.path();
        let index = fs::read(at.join(".git/index")).unwrap_or_default();
        let head = fs::read_to_string(at.join(".git/HEAD")).unwrap();
        let branch = self.repo.git(&["rev-parse", "--quiet", "--verify", "HEAD"]).unwrap_or_default();
        let mut files: Vec<String> = Vec::new();
        let mut folders = vec![at.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                if entry.file_name() == ".git" {
                } else if entry.path().is_dir() {
                    folders.push(entry.path());
                } else {
                    files.push(format!("{}={:?}", entry.path().display(), fs::read(entry.path()).unwrap()));
                }
            }
        }
        files.sort();
        format!("{index:?}{head}{branch}{files:?}")
    }
}

pub fn utf8(path: &Path) -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(path.canonicalize().unwrap()).unwrap()
}

/// Each look is a second later, so that what was made first comes first.
#[derive(Default)]
struct Counting(std::sync::atomic::AtomicI64);

impl decurion_protocol::Clock for Counting {
    fn date(&self) -> jiff::Timestamp {
        let seconds = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        jiff::Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

fn uuid() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

fn in_tree(at: &Utf8Path, arguments: &[&str]) -> String {
    #[allow(clippy::disallowed_methods)] // an agent's own git
    let output = std::process::Command::new("git")
        .args(["-c", "user.name=A", "-c", "user.email=a@example.com"])
        .args(arguments)
        .current_dir(at)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const NOTHING: &str = "0 worktrees, 0 branches, leases []";

#[tokio::test]
async fn an_unchanged_worktree_goes_and_a_changed_one_stays_with_what_is_in_it() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n"), (".gitignore", "target/\n")]).unwrap());
    let before = yard.main_checkout();
    let head = yard.repo.git(&["rev-parse", "HEAD"]).unwrap().trim().to_owned();
    let plain = yard.make(1).await;
    assert_eq!(plain.worktree.base, head);
    assert_eq!(plain.worktree.branch, "decurion/a0000000000000001");
    assert_eq!(plain.cwd, plain.worktree.path);
    assert_eq!(fs::read_to_string(plain.cwd.join("a.txt")).unwrap(), "one\n");
    assert!(plain.cwd.starts_with(utf8(yard.home.path())), "{}", plain.cwd);
    let listed = yard.repo.git(&["worktree", "list", "--porcelain"]).unwrap();
    assert!(listed.contains(&format!("locked decurion session {}", yard.session)), "{listed}");
    // What is ignored is nobody's work.
    fs::create_dir(plain.cwd.join("target")).unwrap();
    fs::write(plain.cwd.join("target/x.o"), "built").unwrap();
    assert_eq!(yard.trees.release(&plain.worktree).await, Released::Removed);
    assert_eq!(yard.traces(), NOTHING);

    let committed = yard.make(2).await;
    fs::write(committed.cwd.join("a.txt"), "two\nthree\n").unwrap();
    in_tree(&committed.cwd, &["commit", "-qam", "work"]);
    let Released::Kept(left) = yard.trees.release(&committed.worktree).await else { panic!("gone") };
    assert_eq!(left.to_string(), "1 commit, 1 file changed, +2 -1");

    let untracked = yard.make(3).await;
    fs::write(untracked.cwd.join("new file.txt"), "new").unwrap();
    let Released::Kept(left) = yard.trees.release(&untracked.worktree).await else { panic!("gone") };
    assert_eq!(left.to_string(), "1 untracked, nothing committed");
    assert_eq!(yard.traces(), "2 worktrees, 2 branches, leases [Kept Kept]");
    let listed = yard.repo.git(&["worktree", "list", "--porcelain"]).unwrap();
    assert!(!listed.contains("locked"), "what is kept is the person's: {listed}");
    assert_eq!(yard.main_checkout(), before);
}

#[tokio::test]
async fn what_git_cannot_do_fails_with_the_reason_and_leaves_nothing() {
    let empty = tempfile::tempdir().unwrap();
    let bare = tempfile::tempdir().unwrap();
    in_tree(&utf8(bare.path()), &["init", "-q", "--bare"]);
    let young = tempfile::tempdir().unwrap();
    in_tree(&utf8(young.path()), &["init", "-q"]);
    let gone = utf8(empty.path()).join("gone");
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let rows = [
        (utf8(empty.path()), "not a git repository"),
        (utf8(bare.path()), "this is a bare repository"),
        (utf8(young.path()), "the repository has no commit yet"),
        (gone, "working directory cannot be entered"),
    ];
    for (from, words) in rows {
        let error = yard.trees.make(&Wanted { from, ..yard.wanted(1) }).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let bad = yard.trees.make(&Wanted { name: "../x".to_owned(), ..yard.wanted(1) }).await.unwrap_err();
    assert!(matches!(bad, WorktreeError::Name(_)), "{bad}");
    yard.repo.git(&["branch", "decurion/a0000000000000001"]).unwrap();
    let taken = yard.trees.make(&yard.wanted(1)).await.unwrap_err();
    assert!(matches!(taken, WorktreeError::BranchExists(_)), "{taken}");
    assert_eq!(yard.traces(), "0 worktrees, 1 branches, leases []", "the person's own branch stays");
}

#[tokio::test]
async fn a_worktree_is_never_made_inside_the_checkout() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    let inside = utf8(repo.path()).join("trees");
    let settings = WorktreeSettings { location: Some(inside), ..WorktreeSettings::default() };
    let yard = Yard::with(repo, settings);
    let error = yard.trees.make(&yard.wanted(1)).await.unwrap_err();
    assert!(matches!(error, WorktreeError::Inside { .. }), "{error}");
    assert_eq!(yard.traces(), NOTHING);
}

#[tokio::test]
async fn a_worktree_is_never_made_where_commands_may_write() {
    for by_settings in [false, true] {
        let beside = tempfile::tempdir().unwrap();
        let open = utf8(beside.path());
        let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
        let writable = if by_settings { vec![open.clone()] } else { Vec::new() };
        let location = Some(open.join("trees"));
        let yard = Yard::with(repo, WorktreeSettings { location, writable, ..WorktreeSettings::default() });
        let mut wanted = yard.wanted(1);
        if !by_settings {
            wanted.rules.directories = vec![open.clone()];
        }
        let error = yard.trees.make(&wanted).await.unwrap_err();
        assert!(matches!(error, WorktreeError::Writable { .. }), "{error}");
        assert_eq!(yard.traces(), NOTHING);
    }
}

#[tokio::test]
async fn every_kind_of_checkout_can_be_asked_from() {
    let yard = Yard::new(Repo::with_files(&[("sub/deep/a.txt", "one\n"), ("b.txt", "b\n")]).unwrap());
    // From a folder inside: the same folder in the worktree.
    let from = utf8(yard.repo.path()).join("sub/deep");
    let inside = yard.trees.make(&Wanted { from, ..yard.wanted(1) }).await.unwrap();
    assert_eq!(inside.cwd, inside.worktree.path.join("sub/deep"));
    // From a detached head.
    yard.repo.git(&["checkout", "-q", "--detach"]).unwrap();
    yard.make(2).await;
    // From a worktree: its commit, not the main checkout's, and not inside of it.
    fs::write(inside.worktree.path.join("b.txt"), "changed\n").unwrap();
    in_tree(&inside.worktree.path, &["commit", "-qam", "in the worktree"]);
    let below = yard.trees.make(&Wanted { from: inside.cwd.clone(), ..yard.wanted(3) }).await.unwrap();
    assert_eq!(fs::read_to_string(below.worktree.path.join("b.txt")).unwrap(), "changed\n");
    assert!(!below.worktree.path.starts_with(&inside.worktree.path));
    assert_eq!(below.worktree.repository, inside.worktree.repository);
    // From a repository inside the repository: that one's.
    let nested = utf8(yard.repo.path()).join("nested");
    fs::create_dir(&nested).unwrap();
    in_tree(&nested, &["init", "-q"]);
    in_tree(&nested, &["commit", "-q", "--allow-empty", "-m", "first"]);
    let own = yard.trees.make(&Wanted { from: nested.clone(), ..yard.wanted(4) }).await.unwrap();
    assert_eq!(own.worktree.repository, nested.join(".git"));
}

#[tokio::test]
async fn a_sparse_checkout_and_submodules_come_over() {
    let library = Repo::with_files(&[("lib.txt", "library\n")]).unwrap();
    let repo = Repo::with_files(&[("in/a.txt", "in\n"), ("out/b.txt", "out\n")]).unwrap();
    let url = library.path().to_str().unwrap();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "my lib"]).unwrap();
    repo.commit("with a library").unwrap();
    // The place it came from is gone: only what is here may be used.
    drop(library);
    let yard = Yard::new(repo);
    let whole = yard.make(1).await;
    assert_eq!(fs::read_to_string(whole.cwd.join("my lib/lib.txt")).unwrap(), "library\n");
    assert_eq!(yard.trees.release(&whole.worktree).await, Released::Removed);
    assert_eq!(yard.traces(), NOTHING);
    // A commit that is only in the submodule of the worktree must not go with it.
    let hidden = yard.make(2).await;
    let library = hidden.cwd.join("my lib");
    in_tree(&library, &["checkout", "-q", "-b", "aside"]);
    in_tree(&library, &["commit", "-q", "--allow-empty", "-m", "aside"]);
    in_tree(&library, &["checkout", "-q", "--detach", "HEAD~1"]);
    let released = yard.trees.release(&hidden.worktree).await;
    assert!(matches!(released, Released::Kept(_)), "{released:?}");

    yard.repo.git(&["sparse-checkout", "set", "in"]).unwrap();
    let sparse = yard.make(3).await;
    assert!(sparse.cwd.join("in/a.txt").exists() && !sparse.cwd.join("out").exists());
}

#[tokio::test]
async fn a_submodule_that_cannot_be_had_fails_the_worktree_and_leaves_nothing() {
    let library = Repo::with_files(&[("lib.txt", "library\n")]).unwrap();
    let repo = Repo::with_files(&[("a.txt", "a\n")]).unwrap();
    let url = library.path().to_str().unwrap();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "lib"]).unwrap();
    repo.commit("with a library").unwrap();
    // What the commit wants is not among the objects at hand.
    let other = "1234567890123456789012345678901234567890";
    repo.git(&["update-index", "--cacheinfo", &format!("160000,{other},lib")]).unwrap();
    repo.git(&["commit", "-qm", "wants another"]).unwrap();
    let yard = Yard::new(repo);
    let error = yard.trees.make(&yard.wanted(1)).await.unwrap_err();
    assert!(error.to_string().starts_with("the submodule lib cannot be checked out"), "{error}");
    assert_eq!(yard.traces(), NOTHING);
}

#[tokio::test]
async fn changes_come_over_only_when_asked_for_and_count_only_when_changed() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n"), ("gone.txt", "x\n")]).unwrap());
    yard.repo.write("a.txt", "changed\n").unwrap();
    yard.repo.write("new dir/n.txt", "new\n").unwrap();
    fs::remove_file(yard.repo.path().join("gone.txt")).unwrap();
    let before = yard.main_checkout();
    let plain = yard.make(1).await;
    assert_eq!(fs::read_to_string(plain.cwd.join("a.txt")).unwrap(), "one\n");
    assert!(!plain.cwd.join("new dir").exists());

    let dirty = yard.trees.make(&Wanted { dirty: true, ..yard.wanted(2) }).await.unwrap();
    assert_eq!(fs::read_to_string(dirty.cwd.join("a.txt")).unwrap(), "changed\n");
    assert_eq!(fs::read_to_string(dirty.cwd.join("new dir/n.txt")).unwrap(), "new\n");
    assert!(!dirty.cwd.join("gone.txt").exists());
    assert_eq!(yard.main_checkout(), before, "copying touches nothing of the checkout");
    // With just what it was given it is unchanged; with more it is not.
    assert_eq!(yard.trees.release(&dirty.worktree).await, Released::Removed);
    let dirty = yard.trees.make(&Wanted { dirty: true, ..yard.wanted(3) }).await.unwrap();
    fs::write(dirty.cwd.join("a.txt"), "changed again\n").unwrap();
    assert!(matches!(yard.trees.release(&dirty.worktree).await, Released::Kept(_)));
}

#[tokio::test]
async fn dead_leases_are_settled_and_living_ones_are_not() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let holding = yard.trees.leases().hold(yard.session).unwrap();
    let (unchanged, changed) = (yard.make(1).await, yard.make(2).await);
    fs::write(changed.cwd.join("a.txt"), "two\n").unwrap();
    let kept = yard.trees.clean(None, usize::MAX).await.unwrap();
    assert!(kept.rows.iter().all(|row| row.kept == Kept::InUse), "{kept:?}");
    drop(holding);
    // A git of the agent was killed with the session.
    let admin = yard.repo.path().join(".git/worktrees/a0000000000000002");
    fs::write(admin.join("index.lock"), "").unwrap();
    let listed = yard.trees.list(None).await.unwrap();
    assert_eq!(yard.traces(), "2 worktrees, 2 branches, leases [Used Used]", "a list changes nothing");
    assert!(matches!(listed.rows[0].kept, Kept::Removed), "{listed:?}");
    let settled = yard.trees.clean(None, usize::MAX).await.unwrap();
    assert!(matches!(settled.rows[0].kept, Kept::Removed), "{settled:?}");
    assert!(matches!(&settled.rows[1].kept, Kept::Work(left) if left.dirty), "{settled:?}");
    assert_eq!(yard.traces(), "1 worktrees, 1 branches, leases [Kept]");
    assert!(!unchanged.cwd.exists() && changed.cwd.join("a.txt").exists());
    in_tree(&changed.cwd, &["commit", "-qam", "git works in it again"]);
}

#[tokio::test]
async fn what_was_half_made_or_half_removed_is_cleared() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let leases = yard.trees.leases().clone();
    let state = |made: &Made, state: LeaseState| {
        let lease = leases.get(&made.worktree.repository, made.worktree.path.file_name().unwrap()).unwrap();
        leases.put(&decurion_store::Lease { state, ..lease }).unwrap();
    };
    // Killed while git made it: everything is there but the word that it may be used.
    let whole = yard.make(1).await;
    state(&whole, LeaseState::Making);
    // Killed before the checkout was there.
    let admin_only = yard.make(2).await;
    state(&admin_only, LeaseState::Making);
    fs::remove_dir_all(&admin_only.cwd).unwrap();
    // Killed before git knew of it.
    let folder_only = yard.make(3).await;
    state(&folder_only, LeaseState::Making);
    fs::remove_dir_all(yard.repo.path().join(".git/worktrees/a0000000000000003")).unwrap();
    // Killed while it was removed: the checkout is gone, the branch is not.
    let removing = yard.make(4).await;
    state(&removing, LeaseState::Removing);
    yard.repo.git(&["worktree", "remove", "-f", "-f", removing.cwd.as_str()]).unwrap();
    // Its folder was deleted by the agent itself, after a commit.
    let deleted = yard.make(5).await;
    in_tree(&deleted.cwd, &["commit", "-q", "--allow-empty", "-m", "work"]);
    fs::remove_dir_all(&deleted.cwd).unwrap();
    let settled = yard.trees.clean(None, usize::MAX).await.unwrap();
    let broken: Vec<_> = settled.rows.iter().filter(|row| matches!(row.kept, Kept::Broken(_))).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let branches = yard.repo.git(&["branch", "--list", "decurion/*", "--format=%(refname:short)"]).unwrap();
    assert_eq!(branches, "decurion/a0000000000000005\n", "a commit is never lost");
    assert!(!folder_only.cwd.exists() && !whole.cwd.exists());
}

#[tokio::test]
async fn locks_of_the_repository_go_only_where_a_mark_of_ours_was_left() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let alive = yard.trees.leases().hold(yard.session).unwrap();
    let made = yard.make(1).await;
    let lock = yard.repo.path().join(".git/packed-refs.lock");
    fs::write(&lock, "").unwrap();
    // A living process of ours marks its own.
    let mark = yard.trees.leases().mark(&made.worktree.repository).unwrap();
    yard.trees.clean(None, 0).await.unwrap();
    assert!(lock.exists(), "nobody knows whose it is");
    // A mark that was left, older than the lock.
    mark.done();
    let left = made.worktree.path.with_file_name(".0000000000000000.mark");
    fs::write(&left, "").unwrap();
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, "").unwrap();
    let held = fs::File::open(&lock).unwrap();
    yard.trees.clean(None, 0).await.unwrap();
    assert!(lock.exists(), "someone has it open");
    drop(held);
    fs::write(&left, "").unwrap();
    fs::remove_file(&lock).unwrap();
    fs::write(&lock, "").unwrap();
    yard.trees.clean(None, 0).await.unwrap();
    assert!(!lock.exists() && !left.exists());
    // An agent of a session that died may have run the git that left it.
    fs::write(&lock, "").unwrap();
    yard.trees.clean(None, 0).await.unwrap();
    assert!(lock.exists(), "its session is alive");
    drop(alive);
    yard.trees.clean(None, 0).await.unwrap();
    assert!(!lock.exists());
}

#[tokio::test]
async fn an_agent_goes_on_in_its_worktree_or_is_told_that_it_is_gone() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let made = yard.make(1).await;
    let admin = yard.repo.path().join(".git/worktrees/a0000000000000001");
    fs::write(admin.join("index.lock"), "").unwrap();
    yard.trees.take_up(&made.worktree, yard.session).await.unwrap();
    assert!(!admin.join("index.lock").exists());
    fs::remove_dir_all(&made.cwd).unwrap();
    let error = yard.trees.take_up(&made.worktree, yard.session).await.unwrap_err();
    assert_eq!(error.to_string(), format!("working directory is gone: {}", made.cwd));
    assert!(!made.cwd.exists());
}

/// Puts a session on record, as one that could be taken up again.
fn on_record(yard: &Yard, session: SessionId) {
    let project = yard.home.path().join("state/projects/p");
    fs::create_dir_all(&project).unwrap();
    fs::write(project.join(format!("{session}.jsonl")), "").unwrap();
}

fn lease_of(yard: &Yard, made: &Made) -> decurion_store::Lease {
    let name = made.worktree.path.file_name().unwrap();
    yard.trees.leases().get(&made.worktree.repository, name).unwrap()
}

#[tokio::test]
async fn making_again_that_was_broken_off_is_begun_anew() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    on_record(&yard, yard.session);
    let made = yard.make(1).await;
    assert_eq!(yard.trees.release(&made.worktree).await, Released::Removed);
    let (path, branch) = (made.worktree.path.as_str(), made.worktree.branch.as_str());
    for by in ["its own agent", "a cleaning", "the next session"] {
        // Killed when git knew it, and before its files were there.
        let lease = lease_of(&yard, &made);
        assert_eq!(lease.state, LeaseState::Removed, "{by}");
        yard.trees.leases().put(&decurion_store::Lease { state: LeaseState::Remaking, ..lease }).unwrap();
        yard.repo.git(&["worktree", "add", "-q", "--no-checkout", "--lock", "-b", branch, path]).unwrap();
        match by {
            "a cleaning" => drop(yard.trees.clean(None, usize::MAX).await.unwrap()),
            "the next session" => yard.trees.settle_dead(64).await,
            _ => {}
        }
        yard.trees.take_up(&made.worktree, yard.session).await.unwrap();
        assert_eq!(fs::read_to_string(made.cwd.join("a.txt")).unwrap(), "one\n", "{by}");
        assert_eq!(in_tree(&made.cwd, &["status", "--porcelain"]), "", "{by}");
        assert_eq!(lease_of(&yard, &made).state, LeaseState::Used, "{by}");
        assert_eq!(yard.trees.release(&made.worktree).await, Released::Removed);
    }
}

#[tokio::test]
async fn changes_that_were_given_come_again_or_their_loss_is_the_reason() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n"), ("gone.txt", "x\n")]).unwrap());
    on_record(&yard, yard.session);
    yard.repo.write("a.txt", "changed\n").unwrap();
    yard.repo.write("new.txt", "new\n").unwrap();
    fs::remove_file(yard.repo.path().join("gone.txt")).unwrap();
    let dirty = yard.trees.make(&Wanted { dirty: true, ..yard.wanted(1) }).await.unwrap();
    assert_eq!(yard.trees.release(&dirty.worktree).await, Released::Removed);
    // What the person does to the checkout meanwhile is not what was given.
    yard.repo.write("a.txt", "later\n").unwrap();
    yard.trees.take_up(&dirty.worktree, yard.session).await.unwrap();
    assert_eq!(fs::read_to_string(dirty.cwd.join("a.txt")).unwrap(), "changed\n");
    assert_eq!(fs::read_to_string(dirty.cwd.join("new.txt")).unwrap(), "new\n");
    assert!(!dirty.cwd.join("gone.txt").exists());
    assert_eq!(yard.trees.release(&dirty.worktree).await, Released::Removed, "it is as it was given");
    yard.repo.git(&["prune", "--expire=now"]).unwrap();
    let error = yard.trees.take_up(&dirty.worktree, yard.session).await.unwrap_err();
    assert!(
        error.to_string().starts_with("the uncommitted changes that the worktree started from are gone"),
        "{error}"
    );
    assert_eq!(yard.traces(), "0 worktrees, 0 branches, leases [Removed]");
}

#[tokio::test]
async fn leases_that_stay_on_purpose_do_not_stop_the_cleaning() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    on_record(&yard, yard.session);
    for number in 1..=3 {
        let made = yard.make(number).await;
        assert_eq!(yard.trees.release(&made.worktree).await, Released::Removed);
    }
    let dead = yard.make(4).await;
    yard.trees.settle_dead(2).await;
    assert!(!dead.cwd.exists(), "it is the only one with something to do");
    assert_eq!(yard.traces(), "0 worktrees, 0 branches, leases [Removed Removed Removed Removed]");
    // There is a bound on them, and the oldest go.
    let newest = yard.trees.leases().get(&dead.worktree.repository, "a0000000000000004").unwrap();
    for number in 5..=520 {
        let name = format!("a{number:016x}");
        yard.trees.leases().put(&decurion_store::Lease { name, ..newest.clone() }).unwrap();
    }
    yard.trees.settle_dead(2).await;
    let (leases, _) = yard.trees.leases().all(None).unwrap();
    assert_eq!(leases.len(), 512);
    assert_eq!(leases[0].name, "a0000000000000009");
    // Whose session was deleted goes.
    fs::remove_file(yard.home.path().join(format!("state/projects/p/{}.jsonl", yard.session))).unwrap();
    yard.trees.settle_dead(2).await;
    assert_eq!(yard.traces(), NOTHING);
}

#[tokio::test]
async fn what_the_repository_would_run_is_not_run_before_trust() {
    let repo = Repo::with_files(&[("a.txt", "one\n"), (".gitattributes", "*.txt filter=x\n")]).unwrap();
    let before = Yard::new(repo);
    let old = before.make(1).await;
    let taken = before.make(2).await;
    let marker = before.home.path().join("ran");
    let run = format!("sh -c 'touch \"{}\"; cat'", marker.display());
    for kind in ["smudge", "clean"] {
        before.repo.git(&["config", &format!("filter.x.{kind}"), &run]).unwrap();
    }
    let refused = "runs programs";
    let error = before.trees.make(&before.wanted(3)).await.unwrap_err();
    assert!(error.to_string().contains(refused), "{error}");
    let error = before.trees.take_up(&taken.worktree, before.session).await.unwrap_err();
    assert!(error.to_string().contains(refused), "{error}");
    // Git would hash a file again whose times changed, which runs the filter.
    fs::write(old.cwd.join("a.txt"), "one\n").unwrap();
    let rows = before.trees.clean(None, usize::MAX).await.unwrap().rows;
    assert!(
        rows.iter().all(|row| matches!(&row.kept, Kept::Broken(why) if why.contains(refused))),
        "{rows:?}"
    );
    before.trees.settle_dead(64).await;
    before.trees.list(None).await.unwrap();
    let released = before.trees.release(&old.worktree).await;
    assert!(matches!(&released, Released::Kept(left) if left.to_string().contains(refused)), "{released:?}");
    assert!(!marker.exists(), "it ran");
    // Where the person trusts the folder it does, and the checkout is what it should be.
    let settings =
        WorktreeSettings { trusted: Some(utf8(before.repo.path())), ..WorktreeSettings::default() };
    let trusting = Yard::with(before.repo, settings);
    trusting.make(9).await;
    assert!(marker.exists());
}

#[tokio::test]
async fn two_hundred_at_once_are_all_made_and_all_taken_back() {
    let yard = Arc::new(Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap()));
    let before = yard.main_checkout();
    let mut making = tokio::task::JoinSet::new();
    for number in 1..=200 {
        let yard = Arc::clone(&yard);
        making.spawn(async move { yard.make(number).await });
    }
    let made: Vec<Made> = making.join_all().await;
    assert_eq!(yard.traces().split(", leases").next(), Some("200 worktrees, 200 branches"));
    let mut taking = tokio::task::JoinSet::new();
    for made in made {
        let yard = Arc::clone(&yard);
        taking.spawn(async move { yard.trees.release(&made.worktree).await });
    }
    let kept: Vec<Released> =
        taking.join_all().await.into_iter().filter(|released| *released != Released::Removed).collect();
    assert_eq!(kept, []);
    assert_eq!(yard.traces(), NOTHING);
    assert_eq!(yard.main_checkout(), before);
}

#[tokio::test]
async fn changes_are_not_copied_onto_another_commit_than_they_were_made_on() {
    let repo = Repo::with_files(&[("a.txt", "one\n")]).unwrap();
    fs::write(repo.path().join("a.txt"), "two\n").unwrap();
    repo.commit("second").unwrap();
    fs::write(repo.path().join("a.txt"), "three\n").unwrap();
    let settings =
        WorktreeSettings { base: Some("HEAD~1".to_owned()), copy_dirty: true, ..WorktreeSettings::default() };
    let yard = Yard::with(repo, settings);
    let error = yard.trees.make(&yard.wanted(1)).await.unwrap_err();
    assert!(error.to_string().contains("leave `worktree.baseRef` out"), "{error}");
    assert_eq!(yard.traces(), NOTHING);
    yard.repo.git(&["checkout", "--quiet", "."]).unwrap();
    yard.make(2).await;
}

#[tokio::test]
async fn another_repository_in_its_place_is_somebodys_and_stays() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let made = yard.make(1).await;
    fs::remove_file(made.cwd.join(".git")).unwrap();
    Repo::git_at(made.cwd.as_std_path(), &["init", "--quiet"]).unwrap();
    Repo::git_at(made.cwd.as_std_path(), &["add", "--all"]).unwrap();
    Repo::git_at(made.cwd.as_std_path(), &["commit", "--quiet", "--message", "mine"]).unwrap();
    let released = yard.trees.release(&made.worktree).await;
    let said = |released: &Released| matches!(released, Released::Kept(left) if left.to_string().contains("git does not know it any more"));
    assert!(said(&released), "{released:?}");
    let gone = yard.trees.take_up(&made.worktree, yard.session).await.unwrap_err();
    assert!(gone.to_string().starts_with("working directory is gone"), "{gone}");
    assert!(made.cwd.join("a.txt").exists() && made.cwd.join(".git").is_dir());
}

#[tokio::test]
async fn without_its_repository_a_checkout_is_somebodys_files_and_is_not_forgotten() {
    let yard = Yard::new(Repo::with_files(&[("a.txt", "one\n")]).unwrap());
    let made = yard.make(1).await;
    fs::remove_dir_all(yard.repo.path().join(".git")).unwrap();
    for _ in 0..2 {
        let rows = yard.trees.clean(None, usize::MAX).await.unwrap().rows;
        let told = |row: &decurion_engine::worktree::Row| matches!(&row.kept, Kept::Broken(why) if why.contains("its repository is gone"));
        assert!(rows.len() == 1 && told(&rows[0]), "{rows:?}");
    }
    assert!(made.cwd.join("a.txt").exists());
}
