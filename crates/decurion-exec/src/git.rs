//! The git commands Decurion uses for worktrees and merging. Takes a folder and typed arguments, runs the user's own
//! `git` under the guard with bounds on time and output, gives parsed answers or git's own words.
//!
//! Commands run without pager, prompt, hooks, fsmonitor and background upkeep, so that our own housekeeping starts no
//! program of the repository. Filters stay, since a checkout without them is not the user's. Of settings that commands
//! of an agent can change, git sees only harmless ones (`own_settings.rs`). Nothing here decides anything.

mod change;
mod folder;
mod own_settings;
mod private_folder;
mod query;
mod submodule;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

pub use change::NewWorktree;
pub use query::{
    ChangedPath, CheckedOut, Diffstat, Forecast, GitRepository, ListedWorktree, Submodule, WorktreeStatus,
};

use self::own_settings::{GitFolders, GitSettings};
use self::private_folder::PrivateGitFolder;
use crate::{Capture, CaptureBounds, Exit, Guard, Launch, LaunchError, Output, Sandbox, Stdin, sandbox};

/// How long a command may take that only looks.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// How long one may take that changes something: a checkout of a large tree takes a while.
const CHANGE_LIMIT: Duration = Duration::from_secs(600);
/// The most that is read of an answer, and of git's complaints.
const MOST_OUTPUT: usize = 16 << 20;
const MOST_WORDS: usize = 4 << 10;
/// How often a command that found one of git's lock files is run again, and the first pause.
const LOCK_TRIES: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(15);
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// How long git may clean up after a request to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Set on every command: no program of the repository runs, and nothing outlives the command.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
    "submodule.recurse=false",
    "worktree.useRelativePaths=false",
];

/// Variables of git that say who and how; all others of the name `GIT_…` say *where*, which is ours to say.
const KEPT: &[&str] =
    &["GIT_CONFIG", "GIT_AUTHOR", "GIT_COMMITTER", "GIT_SSH", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR"];

/// Runs git. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Git {
    guard: Guard,
    env: Arc<[(OsString, OsString)]>,
    /// Where it keeps what commands must not reach.
    private: Arc<Utf8Path>,
}

/// Why git did not do it.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// Install git, or put it into `PATH`.
    #[error("git is not installed, or not in PATH")]
    NoGit,
    /// It could not be started: see why.
    #[error("`{command}` could not be started: {source}")]
    Launch { command: String, source: LaunchError },
    /// Git refused: its words say why.
    #[error("`{command}` failed ({exit}): {words}")]
    Refused {
        command: String,
        /// Its exit code or signal.
        exit: String,
        /// What git said, one line.
        words: String,
    },
    /// It took too long and was stopped: look for a slow disk, a lock or a filter that hangs.
    #[error("`{command}` took longer than {seconds} s and was stopped")]
    Late {
        command: String,
        /// How long it had.
        seconds: u64,
    },
    /// It said more than is taken: the repository is too large for this.
    #[error("`{command}` gave more than {MOST_OUTPUT} bytes")]
    Flood { command: String },
    /// It said something that cannot be understood: another version, or damage.
    #[error("`{command}` gave something unexpected: {what}")]
    Odd { command: String, what: String },
    /// A path that no setting or record could hold: rename it.
    #[error("the path is not one line of UTF-8 text, which worktrees need: {path}")]
    Path {
        /// As far as it can be shown.
        path: String,
    },
}

impl GitError {
    /// Whether another git blocked this one, perhaps only for a moment: by a lock file, or by a worktree that it is
    /// making or removing, which git cannot read meanwhile.
    fn is_busy(&self) -> bool {
        let Self::Refused { words, .. } = self else { return false };
        let in_the_way = words.contains(".lock") || words.contains("packed-refs.new");
        (in_the_way && words.contains("File exists"))
            || words.contains("could not lock config file")
            || (words.contains("worktrees/") && words.contains("failed to read"))
    }
}

/// One command, ready to run.
struct GitCommand<'a> {
    at: &'a Utf8Path,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    settings: Vec<String>,
    stdin: Stdin,
    changes: bool,
    settings_from: GitSettings,
    /// Where it writes besides the repository.
    writes: Vec<Utf8PathBuf>,
}

impl<'a> GitCommand<'a> {
    /// A command that only looks: it takes no lock, not even to refresh the index.
    fn look(at: &'a Utf8Path, args: &[&str]) -> Self {
        let args = args.iter().map(OsString::from).collect();
        let stdin = Stdin::Empty;
        let (settings_from, writes) = (GitSettings::Usual, Vec::new());
        Self { at, args, env: Vec::new(), settings: Vec::new(), stdin, changes: false, settings_from, writes }
    }

    /// A command that changes something.
    fn change(at: &'a Utf8Path, args: &[&str]) -> Self {
        Self { changes: true, ..Self::look(at, args) }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn setting(mut self, setting: String) -> Self {
        self.settings.push(setting);
        self
    }

    /// In a repository whose settings anyone may have written.
    fn nested(mut self) -> Self {
        self.settings_from = GitSettings::Harmless;
        self
    }

    /// With the folders of git as git finds them.
    fn found(mut self) -> Self {
        self.settings_from = GitSettings::Found;
        self
    }

    /// It makes or removes this.
    fn making(mut self, path: &Utf8Path) -> Self {
        self.writes.extend(path.parent().map(Utf8Path::to_owned));
        self
    }

    fn input(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Stdin::Bytes(bytes);
        self
    }

    fn limit(&self) -> Duration {
        if self.changes { CHANGE_LIMIT } else { LOOK_LIMIT }
    }

    /// The command as people are shown it.
    fn shown(&self) -> String {
        let mut text = String::from("git");
        for arg in &self.args {
            let arg = String::from_utf8_lossy(arg.as_bytes());
            text.push(' ');
            text.extend(arg.chars().take(80).map(|c| if c.is_control() { '?' } else { c }));
        }
        text.chars().take(240).collect()
    }
}

/// What a command said and how it ended.
struct GitAnswer {
    code: Option<i32>,
    exit: Exit,
    output: Vec<u8>,
    words: String,
}

impl Git {
    /// Git under this guard. Of the environment, variables that would point git at another repository are
    /// left out. `private` is a folder that commands cannot reach; it is made when it is needed.
    pub fn new(guard: Guard, environment: &[(OsString, OsString)], private: &Utf8Path) -> Self {
        let is_kept = |name: &OsString| {
            let name = name.to_string_lossy();
            !name.starts_with("GIT_") || KEPT.iter().any(|kept| name.starts_with(kept))
        };
        let ours =
            [("GIT_TERMINAL_PROMPT", "0"), ("GIT_PAGER", "cat"), ("GIT_EDITOR", "true"), ("LC_ALL", "C")];
        let env = environment.iter().filter(|(name, _)| is_kept(name) && name != "LC_ALL").cloned();
        let env = env.chain(ours.iter().map(|(name, value)| (name.into(), value.into()))).collect();
        Self { guard, env, private: private.into() }
    }

    /// The guard that its processes run under.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Runs a command that must succeed, again while another git holds a lock it needs.
    async fn run(&self, order: GitCommand<'_>) -> Result<Vec<u8>, GitError> {
        let order = &order;
        let mut pause = FIRST_PAUSE;
        for left in (0..LOCK_TRIES).rev() {
            let answer = self.once(order).await?;
            if answer.code == Some(0) {
                return Ok(answer.output);
            }
            let error = refused(order, &answer);
            if left == 0 || !error.is_busy() {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
        Err(GitError::Odd { command: order.shown(), what: "no answer".to_owned() })
    }

    /// Runs a command whose exit code 1 is an answer.
    async fn ask(&self, order: GitCommand<'_>) -> Result<Option<Vec<u8>>, GitError> {
        let answer = self.once(&order).await?;
        match answer.code {
            Some(0) => Ok(Some(answer.output)),
            Some(1) => Ok(None),
            _ => Err(refused(&order, &answer)),
        }
    }

    async fn once(&self, order: &GitCommand<'_>) -> Result<GitAnswer, GitError> {
        let folders = match order.settings_from {
            GitSettings::Found => None,
            GitSettings::Usual => GitFolders::of(order.at),
            GitSettings::Harmless => Some(GitFolders::nested(order.at).map_err(|what| odd(order, what))?),
        };
        let Some(folders) = folders else {
            return self.launch(order, None, self.bounds(order, None)).await;
        };
        let apart = self.apart(order, &folders).await?;
        let common = apart.as_ref().map_or(&*folders.common, |apart| apart.path());
        let bounds = self.bounds(order, Some(&folders));
        let answer = self.launch(order, Some(common), bounds).await?;
        apart.map_or(Ok(()), PrivateGitFolder::close).map_err(|what| odd(order, what))?;
        Ok(answer)
    }

    /// Where a command that changes something may write, with the filters that it calls: in the repository, in the checkout
    /// and in folders for temporary files and caches. Git follows links, and commands of agents that run meanwhile can put
    /// some in its way. None where the kernel has no Landlock.
    fn bounds(&self, order: &GitCommand<'_>, folders: Option<&GitFolders>) -> Option<Arc<Sandbox>> {
        if !order.changes || !sandbox::has_landlock() {
            return None;
        }
        let own = folders.into_iter().flat_map(|folders| {
            let objects = folders.common.join("objects");
            [folders.own.clone(), folders.common.clone(), objects]
        });
        let named = |names: &'static [&str], env: &[(OsString, OsString)]| -> Vec<Utf8PathBuf> {
            let named = env.iter().filter(|(name, _)| names.iter().any(|wanted| name == wanted));
            named.filter_map(|(_, value)| Utf8PathBuf::from_path_buf(value.into()).ok()).collect()
        };
        let index = named(&["GIT_INDEX_FILE"], &order.env);
        let index = index.iter().filter_map(|path| path.parent().map(Utf8Path::to_owned));
        let home = named(&["HOME"], &self.env).into_iter().map(|home| home.join(".cache"));
        let passing = ["/tmp", "/var/tmp"].map(Utf8PathBuf::from).into_iter();
        let passing = passing.chain(named(&["TMPDIR", "XDG_CACHE_HOME"], &self.env)).chain(home);
        let checkout = named(&["GIT_DIR", "GIT_WORK_TREE"], &order.env).into_iter();
        let checkout = checkout.chain([order.at.to_owned(), self.private.to_path_buf()]);
        let all = own.chain(index).chain(passing).chain(checkout).chain(order.writes.iter().cloned());
        let all: BTreeSet<PathBuf> = all.filter_map(|path| path.canonicalize().ok()).collect();
        let writable = all.into_iter().filter(|path| path.parent().is_some()).collect();
        let (network, unix_sockets, sees_machine) = (true, true, true);
        Some(Arc::new(Sandbox { writable, network, unix_sockets, sees_machine, ..Sandbox::default() }))
    }

    /// `common` is the git folder that all worktrees of the repository share. While git works, a command of a session
    /// may write the name of another folder to the `commondir` of a new worktree, and git would obey the settings
    /// there.
    async fn launch(
        &self,
        order: &GitCommand<'_>,
        common: Option<&Utf8Path>,
        bounds: Option<Arc<Sandbox>>,
    ) -> Result<GitAnswer, GitError> {
        let mut launch = Launch::new("git", order.at.as_std_path());
        launch.sandbox = bounds;
        launch.output = Output::Separate;
        launch.stdin = order.stdin.clone();
        let settings = SETTINGS.iter().copied().chain(order.settings.iter().map(String::as_str));
        launch = launch.args(["--no-pager"]);
        for setting in settings {
            launch = launch.args(["-c", setting]);
        }
        launch = launch.args(order.args.iter().cloned()).env(self.env.iter().cloned());
        launch.env.extend(order.env.iter().cloned());
        launch.env.extend(common.map(|common| ("GIT_COMMON_DIR".into(), common.into())));
        if !order.changes {
            launch.env.push(("GIT_OPTIONAL_LOCKS".into(), "0".into()));
        }
        let failed = |source| match source {
            LaunchError::NoProgram { .. } => GitError::NoGit,
            source => GitError::Launch { command: order.shown(), source },
        };
        let mut process = self.guard.start(launch).await.map_err(failed)?;
        let mut output = Capture::new(CaptureBounds { head: MOST_OUTPUT, tail: 0, file: 0 });
        let mut words = Capture::new(CaptureBounds { head: MOST_WORDS, tail: MOST_WORDS, file: 0 });
        let limit = order.limit();
        let running = process.collect(&mut output, Some(&mut words), |_| {});
        let Ok(exit) = tokio::time::timeout(limit, running).await else {
            process.stop(STOP_GRACE).await;
            return Err(GitError::Late { command: order.shown(), seconds: limit.as_secs() });
        };
        if output.total() > MOST_OUTPUT as u64 {
            return Err(GitError::Flood { command: order.shown() });
        }
        let words = words.finish();
        let words = [words.head, words.tail].concat();
        let code = if let Exit::Code(code) = exit { Some(code) } else { None };
        Ok(GitAnswer { code, exit, output: output.finish().head, words: one_line(&words) })
    }
}

fn odd(order: &GitCommand<'_>, what: String) -> GitError {
    GitError::Odd { command: order.shown(), what }
}

fn refused(order: &GitCommand<'_>, answer: &GitAnswer) -> GitError {
    GitError::Refused { command: order.shown(), exit: answer.exit.to_string(), words: answer.words.clone() }
}

/// What git said, as one line: progress and hints are left out.
fn one_line(words: &[u8]) -> String {
    let words = String::from_utf8_lossy(words);
    let lines = words.split(['\n', '\r']).map(str::trim);
    let told = lines.filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    let line: String = told.collect::<Vec<_>>().join("; ");
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect();
    if line.is_empty() { "git said nothing".to_owned() } else { line }
}

/// A path as git gave it; one that is not a line of text is refused by name.
fn path(bytes: &[u8]) -> Result<Utf8PathBuf, GitError> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(['\n', '\r', '\0']) => Ok(Utf8PathBuf::from(text)),
        _ => Err(GitError::Path { path: String::from_utf8_lossy(bytes).escape_debug().to_string() }),
    }
}

/// A commit's, tree's or object's full name.
fn object(command: &str, bytes: &[u8]) -> Result<String, GitError> {
    let text = String::from_utf8_lossy(bytes).trim().to_owned();
    let fits = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if fits {
        return Ok(text);
    }
    Err(GitError::Odd { command: command.to_owned(), what: text.chars().take(80).collect() })
}
