//! Whether git may be called in a folder nobody has agreed to. Takes the folder where git would begin to look for
//! its repository; gives why a program of the repository's own might run, or nothing where none can.
//!
//! Git runs what a repository's own configuration names: a file monitor, filters, converters for differences, hooks,
//! and the same in the repositories nested in it. The configuration of the user and of the system is the user's own
//! and is not looked at. Attributes only choose among drivers that a configuration defines, so they need no look.
//! What is not understood is a reason to ask.

mod config;
mod index;
mod links;
mod named;
mod remotes;

use std::collections::{BTreeSet, HashMap};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use decurion_protocol::Intent;
use decurion_protocol::intent::{ShellCommand, ShellIntent, ShownFiles};

use crate::permission::add_real_paths;
pub(crate) use crate::small_file::small;
use crate::symlinks::Symlinks;
pub(crate) use named::{Named, named};

/// The most bytes that one look reads of git's lists of files, of all repositories together.
pub const MOST_INDEX_BYTES: u64 = 256 << 20;
/// The same for one rule about files, which is looked up while the session waits.
const MOST_TRACKED_BYTES: u64 = 32 << 20;
/// As many nested repositories as are looked at.
const MOST_NESTED: usize = 500;
/// The hook that a command runs which only reads: git writes down what it learnt about the files.
const HOOK_OF_READERS: &str = "post-index-change";
/// As many names of files as are looked at for repositories that `git add` could add.
const MOST_NAMES: usize = 200_000;
/// As many commands of one text as are looked at without a thread for blocking work.
const FEW: usize = 20;
/// Commands of git that change neither settings nor the files of a checkout.
const KEEPS_SETTINGS: [&str; 7] = ["add", "stage", "commit", "push", "fetch", "tag", "branch"];

/// What git is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It only shows something.
    Look,
    /// It may change something, and run any hook.
    Change,
}

/// Where git is called from.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub cwd: &'a Utf8Path,
    /// The folder that the user has agreed to, if it is this session's.
    pub trusted: Option<&'a Utf8Path>,
    /// Whether the disk is looked at. Without it a repository elsewhere than in the working directory is not known.
    pub looks: bool,
    /// How much of git's lists of files is read, of all repositories together; usually [`MOST_INDEX_BYTES`].
    pub index_bytes: u64,
}

/// The paths of nested repositories as git has them, or why they cannot be told.
type NestedPaths = Result<Vec<Vec<u8>>, String>;

/// What one look has read, and how much more it may read.
struct Look {
    left: u64,
    /// How many names in folders of git it may look at, all repositories together.
    names_left: usize,
    /// The nested repositories of those that were looked at, by their own folder and the length of a hash.
    nested: HashMap<(Utf8PathBuf, usize), NestedPaths>,
    /// What leads elsewhere in the folders of git that were looked at.
    links: HashMap<Utf8PathBuf, Option<String>>,
}

impl Look {
    fn new(left: u64) -> Self {
        Self { left, names_left: MOST_NAMES, nested: HashMap::new(), links: HashMap::new() }
    }

    /// The paths of the repositories nested in one.
    fn nested(&mut self, own: &Utf8Path, hash: usize) -> NestedPaths {
        let left = &mut self.left;
        let entry = self.nested.entry((own.to_owned(), hash));
        entry.or_insert_with(|| index::nested(own, hash, left)).clone()
    }

    /// What in a folder of git makes git read files elsewhere.
    fn links(&mut self, common: &Utf8Path) -> Option<String> {
        let names_left = &mut self.names_left;
        self.links.entry(common.to_owned()).or_insert_with(|| links::within(common, names_left)).clone()
    }
}

/// Adds to an intent where its paths lead, and why calls of git must be asked about. Where that may take long, because of
/// patterns or a repository with many files, it is done on a thread for blocking work.
pub async fn look_at_disk(mut intent: Intent, cwd: Utf8PathBuf, trusted: Option<Utf8PathBuf>) -> Intent {
    let takes_long = |command: &ShellCommand| {
        !command.repositories.is_empty() || command.shown.is_some() || !command.wide.is_empty()
    };
    let shell = intent.shell.as_ref();
    if !shell.is_some_and(|shell| shell.commands.len() > FEW || shell.commands.iter().any(takes_long)) {
        add_real_paths(&mut intent, &Symlinks::on_disk());
        return intent;
    }
    let mut looked = intent.clone();
    let look = tokio::task::spawn_blocking(move || {
        add_real_paths(&mut looked, &Symlinks::on_disk());
        let trusted = trusted.as_deref();
        let standing = Standing { cwd: &cwd, trusted, looks: true, index_bytes: MOST_INDEX_BYTES };
        add_repositories(&mut looked, standing);
        looked
    });
    match look.await {
        Ok(looked) => looked,
        Err(error) => {
            intent.doubt = Some(format!("where its paths lead cannot be told: {error}"));
            intent
        }
    }
}

/// Adds to every call of git why it must be asked about, where a program of the repository could run, and which files
/// of the repository it shows.
pub fn add_repositories(intent: &mut Intent, standing: Standing<'_>) {
    let Some(shell) = &mut intent.shell else { return };
    let mut look = Look::new(standing.index_bytes);
    for index in 0..shell.commands.len() {
        let found = doubt_about(shell, index, standing, &mut look);
        let command = &mut shell.commands[index];
        if command.doubt.is_none() {
            command.doubt = found;
        }
        if let Some(shown) = &mut command.shown {
            settle(shown, &command.repositories, standing);
        }
    }
}

/// Tells paths from revisions, and puts the whole repository where no path limits what is shown.
fn settle(shown: &mut ShownFiles, from: &[Utf8PathBuf], standing: Standing<'_>) {
    let there = |path: &Utf8PathBuf| standing.looks && std::fs::symlink_metadata(path).is_ok();
    // Git refuses a word that could be both.
    let (paths, revisions): (Vec<_>, Vec<_>) =
        std::mem::take(&mut shown.perhaps).into_iter().partition(there);
    shown.below.extend(paths);
    let from = if from.is_empty() { vec![standing.cwd.to_owned()] } else { from.to_vec() };
    // A file whose removal is staged is not in the index, and in the last commit: to stage that needs a question.
    let last = |revision: &Utf8PathBuf| from.iter().any(|place| *revision == place.join("HEAD"));
    shown.tracked &= revisions.iter().all(last);
    let limited = !shown.below.is_empty() || (!shown.files.is_empty() && revisions.is_empty());
    if shown.all || !limited {
        let tops = from.iter().filter(|_| standing.looks).filter_map(|place| Some(found(place)?.top));
        shown.below = tops.chain(from.clone()).collect();
        return;
    }
    let is_file = |path: &Utf8PathBuf| {
        standing.looks && std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_dir())
    };
    let (files, folders): (Vec<_>, Vec<_>) = std::mem::take(&mut shown.below).into_iter().partition(is_file);
    shown.files.extend(files);
    shown.below = folders;
}

/// Whether a repository nested in the checkout beside this folder of git, or in one of those, would run programs when
/// git looks at its files. What cannot be told might.
pub(crate) fn nested_run_for_files(common: &Utf8Path) -> bool {
    let Some(top) = common.parent().filter(|_| common.file_name() == Some(".git")) else { return false };
    let mut waiting =
        vec![Repository { top: top.to_owned(), own: common.to_owned(), common: common.to_owned() }];
    let mut seen = 0;
    let mut left = MOST_INDEX_BYTES;
    while let Some(repository) = waiting.pop() {
        seen += 1;
        // The length of an object's name is a setting of the repository.
        let nested =
            [20, 32].into_iter().find_map(|hash| index::nested(&repository.own, hash, &mut left).ok());
        let Some(nested) = nested.filter(|_| seen <= MOST_NESTED) else { return true };
        for path in nested {
            match Repository::at(&repository.top.join(String::from_utf8_lossy(&path).as_ref())) {
                None => {}
                Some(Ok(nested)) if !crate::git::runs_for_files(&nested.common) => waiting.push(nested),
                Some(_) => return true,
            }
        }
    }
    false
}

/// What stands in a name for what is not text.
pub(crate) const UNNAMED: char = char::REPLACEMENT_CHARACTER;

/// Where git looks into another repository when it is called in the checkout of a folder. None where that cannot be told.
pub(crate) fn gitlinks(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let Some(repository) = found(folder) else { return Vec::new() };
    let mut left = MOST_INDEX_BYTES;
    // The length of an object's name is a setting of the repository.
    let paths = [20, 32].into_iter().find_map(|hash| index::nested(&repository.own, hash, &mut left).ok());
    let paths = paths.unwrap_or_default().into_iter();
    // A command can write an index that names this repository itself, or a folder elsewhere. Git looks into neither.
    let below = |path: &Utf8PathBuf| {
        let mut parts = path.components().peekable();
        parts.peek().is_some()
            && parts.all(|part| matches!(part, Utf8Component::Normal(name) if name != ".git"))
    };
    // A name that is not text stands for one that does not exist, and shows by [`UNNAMED`] that it is there.
    let paths = paths.map(|path| Utf8PathBuf::from(String::from_utf8_lossy(&path).into_owned()));
    paths.filter(below).map(|path| repository.top.join(path)).collect()
}

/// By what git's list of the files of a checkout makes git write, read or remove files elsewhere: the first such path, or
/// that the list is not understood. `own` is the folder of git for the checkout.
pub(crate) fn stray_path(own: &Utf8Path) -> Option<String> {
    let mut left = MOST_INDEX_BYTES;
    // The length of an object's name is a setting of the repository.
    let read = [20, 32].map(|hash| index::stray(own, hash, &mut left));
    match read.into_iter().reduce(Result::or) {
        Some(Ok(stray)) => stray,
        Some(Err(problem)) => Some(problem),
        None => None,
    }
}

/// Whether git takes a folder itself for a repository because the `.git` in it is none.
pub(crate) fn is_bare_by_accident(folder: &Utf8Path) -> bool {
    let has_repository = || matches!(Repository::at(folder), Some(Ok(found)) if found.is_certain());
    looks_like_git_folder(folder) && !has_repository()
}

/// Whether git runs a program when a person only looks at a repository: `git status`, `git diff`, `git log`; or has its
/// checkout out of the working directory `folder`. `git` is its folder of git, or the file that names it; `known` are
/// folders of git whose settings commands cannot change.
pub(crate) fn runs_for_looks(git: &Utf8Path, folder: &Utf8Path, known: &BTreeSet<Utf8PathBuf>) -> bool {
    let top = git.parent().filter(|_| git.file_name() == Some(".git")).unwrap_or(git);
    let Ok(found) = Repository::of(top, git.to_owned()) else {
        // A file that names no folder of git is nothing to git.
        return small(git).is_none_or(|text| text.starts_with("gitdir: "));
    };
    if !looks_like_git_folder(&found.own) {
        return false;
    }
    let is_known = |folder: &Utf8Path| folder.canonicalize_utf8().is_ok_and(|place| known.contains(&place));
    let mut files = found.settings_files();
    // Commands cannot change those.
    files.retain(|file| !file.parent().is_some_and(is_known));
    let usual = config::Settings { usual: Some(folder.to_owned()), ..config::Settings::default() };
    let Ok(settings) = found.read(usual, &files) else { return true };
    let named = settings.hooks.iter().map(|path| found.top.join(path));
    let mut hooks =
        named.chain([found.common.join("hooks")].into_iter().filter(|_| !is_known(&found.common)));
    hooks.any(|folder| hook(&folder, Purpose::Look, false).is_some())
}

/// Whether a folder in which git keeps one of its worktrees says that it is for another repository than `git`.
pub(crate) fn is_of_another(worktree: &Utf8Path, git: &Utf8Path) -> bool {
    // Git makes the file before it writes it, and does nothing for a worktree in which it is empty.
    let text = small(&worktree.join("commondir")).filter(|text| !text.is_empty());
    let named =
        text.and_then(|text| worktree.join(text.trim_end_matches(['\n', '\r'])).canonicalize_utf8().ok());
    named.is_some_and(|named| git.canonicalize_utf8().ok() != Some(named))
}

/// [`runs_for_looks`] for a new folder of git in which a submodule is kept, whose hooks run when that is checked out.
pub(crate) fn runs_for_submodules(git: &Utf8Path, folder: &Utf8Path, known: &BTreeSet<Utf8PathBuf>) -> bool {
    runs_for_looks(git, folder, known) || hook(&git.join("hooks"), Purpose::Change, false).is_some()
}

/// The repository that git finds from a folder, if it certainly takes it for one.
fn found(from: &Utf8Path) -> Option<Repository> {
    let from = from.canonicalize_utf8().ok()?;
    let found = from.ancestors().find_map(Repository::at)?.ok()?;
    found.is_certain().then_some(found)
}

/// Whether git has a file like this in its index, below a folder. None where that cannot be told.
pub(crate) fn any_tracked(folder: &Utf8Path, wanted: &dyn Fn(&Utf8Path) -> bool) -> Option<bool> {
    let repository = found(folder)?;
    let folder = folder.canonicalize_utf8().ok()?;
    let mut any = false;
    let mut look = |path: &[u8]| {
        let path = repository.top.join(String::from_utf8_lossy(path).as_ref());
        any |= path.starts_with(&folder) && wanted(&path);
    };
    // The length of an object's name is a setting of the repository.
    let mut left = MOST_TRACKED_BYTES;
    let read =
        [20, 32].into_iter().any(|hash| index::files(&repository.own, hash, &mut left, &mut look).is_ok());
    read.then_some(any)
}

fn doubt_about(shell: &ShellIntent, index: usize, standing: Standing<'_>, look: &mut Look) -> Option<String> {
    let command = &shell.commands[index];
    let purpose = if command.read_only { Purpose::Look } else { Purpose::Change };
    let Standing { cwd, trusted, looks, .. } = standing;
    for place in &command.repositories {
        if decurion_tools::bash::normal(place) != cwd && !(looks && place.is_dir()) {
            return Some(format!("cannot tell which repository git would use there: {place}"));
        }
        if !looks {
            continue;
        }
        if let Some(doubt) = doubt_within(place, purpose, trusted, look) {
            return Some(doubt);
        }
        if !is_covered(place, trusted)
            && let Some(doubt) = remotes::doubt(command, place)
        {
            return Some(format!("{doubt}, and this folder is not trusted (see `decurion trust`)"));
        }
        let changes = |(other, by): (usize, &ShellCommand)| {
            let around = command.inside.as_ref().is_some_and(|inside| inside.command == other);
            other != index && !around && !by.read_only && !keeps_settings(by)
        };
        if shell.commands.iter().enumerate().any(changes) && !is_covered(place, trusted) {
            return Some(
                "it changes files and calls git in one text, so the settings that git will find are not known; \
                 call git by itself"
                    .to_owned(),
            );
        }
        // `git add` itself looks into none of what it adds.
        let adds = |(other, by): (usize, &ShellCommand)| {
            adds(by) && (other != index || by.words.iter().any(|word| word == "commit"))
        };
        if shell.commands.iter().enumerate().any(adds)
            && !is_covered(place, trusted)
            && let Some(doubt) = found(place).and_then(|found| found.embedded_doubt(purpose, look))
        {
            return Some(format!("{doubt}, and what is added to the index may be that; call git by itself"));
        }
    }
    None
}

/// Whether a command is a call of git after which another finds the same settings, or only prints its words, whatever
/// they are.
fn keeps_settings(command: &ShellCommand) -> bool {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    let prints = words.first() == Some(&"echo") && command.redirections == 0;
    prints || matches!(words.as_slice(), ["git", subcommand, ..] if KEEPS_SETTINGS.contains(subcommand))
}

/// Whether a command is a call of git that may add to the index: a repository that lies in the checkout becomes nested
/// in it, and the next call, or the same one, looks into it.
fn adds(command: &ShellCommand) -> bool {
    const ADDS_NOTHING: [&str; 7] =
        ["-m", "--message", "-q", "--quiet", "--amend", "--no-edit", "--allow-empty"];
    let words: Vec<&str> = command.words[command.assigned..].iter().map(String::as_str).collect();
    match words.as_slice() {
        ["git", "add" | "stage", ..] => true,
        // What follows `-m` is a message.
        ["git", "commit", rest @ ..] => {
            let is_message = |at: usize| at > 0 && matches!(rest[at - 1], "-m" | "--message");
            !(0..rest.len()).all(|at| ADDS_NOTHING.contains(&rest[at]) || is_message(at))
        }
        _ => false,
    }
}

/// Why a program of the repository might run when git is called in a folder.
pub(crate) fn doubt(from: &Utf8Path, purpose: Purpose, trusted: Option<&Utf8Path>) -> Option<String> {
    doubt_within(from, purpose, trusted, &mut Look::new(MOST_INDEX_BYTES))
}

fn doubt_within(
    from: &Utf8Path,
    purpose: Purpose,
    trusted: Option<&Utf8Path>,
    look: &mut Look,
) -> Option<String> {
    // Git goes up from where it really is. What does not exist cannot be gone to.
    if is_absent(from) {
        return None;
    }
    let Ok(from) = from.canonicalize_utf8() else {
        return Some(format!("cannot tell which repository git would use there: {from}"));
    };
    for folder in from.ancestors() {
        if let Some(found) = Repository::at(folder) {
            let found = match found {
                Ok(found) => found,
                Err(doubt) => return Some(doubt),
            };
            if !found.is_trusted(trusted)
                && let Some(doubt) = found.doubt(purpose, &mut 0, look)
            {
                return Some(format!("{doubt}, and this folder is not trusted (see `decurion trust`)"));
            }
            // Git passes over what is no repository to it.
            if found.is_certain() {
                return None;
            }
        }
        if looks_like_git_folder(folder) {
            return Some(format!(
                "the folder is itself a repository, whose settings are among its files: {folder}"
            ));
        }
    }
    None
}

/// Whether the repository that git finds from here is the one of a folder that is trusted.
fn is_covered(from: &Utf8Path, trusted: Option<&Utf8Path>) -> bool {
    let Ok(from) = from.canonicalize_utf8() else { return false };
    let found = from.ancestors().find_map(Repository::at);
    matches!(found, Some(Ok(found)) if found.is_certain() && found.is_trusted(trusted))
}

/// The folders of git for one checkout.
struct Repository {
    top: Utf8PathBuf,
    /// The folder of git for this checkout.
    own: Utf8PathBuf,
    /// The folder that all checkouts of the repository share; often the same.
    common: Utf8PathBuf,
}

impl Repository {
    /// The one whose checkout a folder is; the error is why that cannot be told.
    fn at(top: &Utf8Path) -> Option<Result<Self, String>> {
        let git = top.join(".git");
        (!is_absent(&git)).then(|| Self::of(top, git))
    }

    fn of(top: &Utf8Path, git: Utf8PathBuf) -> Result<Self, String> {
        let odd = |path: &Utf8Path| format!("cannot tell which repository git would use: {path}");
        let own = if git.is_dir() {
            git
        } else {
            let text = small(&git).ok_or_else(|| odd(&git))?;
            let name = text.strip_prefix("gitdir: ").ok_or_else(|| odd(&git))?;
            top.join(name.trim_end_matches(['\n', '\r']))
        };
        let common = own.join("commondir");
        let common = if names_another(&common) {
            own.join(small(&common).ok_or_else(|| odd(&common))?.trim_end_matches(['\n', '\r']))
        } else {
            own.clone()
        };
        Ok(Self { top: top.to_owned(), own, common })
    }

    /// Whether git will certainly take it for a repository.
    fn is_certain(&self) -> bool {
        let head = small(&self.own.join("HEAD")).unwrap_or_default();
        let hex = head.trim_end();
        let points = head.starts_with("ref: refs/")
            || (matches!(hex.len(), 40 | 64) && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        points && self.common.join("objects").is_dir() && self.common.join("refs").is_dir()
    }

    /// Whether it belongs to a folder that is trusted: it is that folder's own repository or nested in it, or the
    /// folder has none and it lies below.
    fn is_trusted(&self, trusted: Option<&Utf8Path>) -> bool {
        let Some(folder) = trusted else { return false };
        let Ok(common) = self.common.canonicalize_utf8() else { return false };
        match crate::git::common(folder) {
            Some(own) => common.starts_with(own),
            None => folder.canonicalize_utf8().is_ok_and(|folder| common.starts_with(folder)),
        }
    }

    /// What its own settings say; the error is what in them could run a program, or is not understood.
    fn settings(&self) -> Result<config::Settings, String> {
        self.read(config::Settings::default(), &self.settings_files())
    }

    fn settings_files(&self) -> Vec<Utf8PathBuf> {
        let all =
            [("config", &self.common), ("config.worktree", &self.common), ("config.worktree", &self.own)];
        all.map(|(name, folder)| folder.join(name)).into()
    }

    fn read(
        &self,
        mut settings: config::Settings,
        files: &[Utf8PathBuf],
    ) -> Result<config::Settings, String> {
        for file in files.iter().filter(|file| !is_absent(file)) {
            let text = small(file).ok_or_else(|| format!("it is not a small file of text: {file}"))?;
            settings.read(&text, &self.top, &self.own).map_err(|what| format!("{what} ({file})"))?;
        }
        Ok(settings)
    }

    /// Why a program of its own might run. `seen` counts the repositories looked at.
    fn doubt(&self, purpose: Purpose, seen: &mut usize, look: &mut Look) -> Option<String> {
        *seen += 1;
        if *seen > MOST_NESTED {
            return Some(format!("more than {MOST_NESTED} repositories are nested in it"));
        }
        let settings = match self.settings() {
            Ok(settings) => settings,
            Err(doubt) => return Some(doubt),
        };
        if let Some(doubt) = self.leads_elsewhere(settings.stands_here, look) {
            return Some(doubt);
        }
        // Git pushes from and fetches into nested repositories by itself.
        let nested = *seen > 1 && purpose == Purpose::Change;
        if let Some(doubt) = settings.addresses.iter().filter(|_| nested).find_map(|url| remotes::local(url))
        {
            return Some(doubt);
        }
        let named = settings.hooks.iter().map(|path| (self.top.join(path), true));
        let hooks = named.chain([(self.common.join("hooks"), false)]);
        let found = hooks.into_iter().find_map(|(folder, named)| hook(&folder, purpose, named));
        if let Some(hook) = found {
            return Some(format!("git would run a hook of the repository ({hook})"));
        }
        self.nested(settings.hash.unwrap_or(20), purpose, seen, look)
    }

    /// Why git might read files there that are not of this repository. `stands_here` is whether its settings say that
    /// it is checked out here.
    fn leads_elsewhere(&self, stands_here: bool, look: &mut Look) -> Option<String> {
        if !links::is_own(&self.top, &self.own, &self.common, stands_here) {
            return Some(format!("its folder of git is elsewhere and does not belong to it ({})", self.own));
        }
        look.links(&self.common).or_else(|| links::beside(&self.top))
    }

    /// The same for every repository whose checkout lies in this one, whether it is in the index or not.
    fn embedded_doubt(&self, purpose: Purpose, look: &mut Look) -> Option<String> {
        let (mut folders, mut names, mut seen) = (vec![self.top.clone()], 0, 0);
        while let Some(folder) = folders.pop() {
            let Ok(entries) = folder.read_dir_utf8() else {
                return Some(format!("whether a repository lies there is not known: {folder}"));
            };
            for entry in entries {
                names += 1;
                let Some(entry) = entry.ok().filter(|_| names <= MOST_NAMES) else {
                    return Some(format!("whether a repository lies there is not known: {folder}"));
                };
                if entry.file_name() == ".git" && folder != self.top {
                    let doubt = match Self::at(&folder) {
                        Some(Ok(embedded)) => embedded.doubt(purpose, &mut seen, look),
                        Some(Err(doubt)) => Some(doubt),
                        None => None,
                    };
                    if doubt.is_some() {
                        return doubt;
                    }
                }
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder && entry.file_name() != ".git" {
                    folders.push(entry.into_path());
                }
            }
        }
        None
    }

    /// The same for the repositories nested in it, in which git calls itself.
    fn nested(&self, hash: usize, purpose: Purpose, seen: &mut usize, look: &mut Look) -> Option<String> {
        let paths = match look.nested(&self.own, hash) {
            Ok(paths) => paths,
            Err(what) => return Some(format!("{what} ({})", self.own.join("index"))),
        };
        for path in paths {
            // The name of a file need not be text, and then is not one that we could look at.
            let Ok(path) = String::from_utf8(path) else {
                return Some("a repository is nested in it whose path is not text".to_owned());
            };
            match Self::at(&self.top.join(path)) {
                None => {}
                Some(Err(doubt)) => return Some(doubt),
                Some(Ok(nested)) => {
                    if let Some(doubt) = nested.doubt(purpose, seen, look) {
                        return Some(doubt);
                    }
                }
            }
        }
        None
    }
}

/// A hook that git could run.
fn hook(folder: &Utf8Path, purpose: Purpose, named: bool) -> Option<Utf8PathBuf> {
    match purpose {
        Purpose::Look => {
            let hook = folder.join(HOOK_OF_READERS);
            (!is_absent(&hook)).then_some(hook)
        }
        Purpose::Change if named => Some(folder.to_owned()),
        Purpose::Change => {
            if is_absent(folder) {
                return None;
            }
            // Hooks in a folder that cannot be listed may still be run.
            let Ok(names) = folder.read_dir_utf8() else { return Some(folder.to_owned()) };
            let mut names = names.map(|entry| match entry {
                Ok(entry) => entry.into_path(),
                // Its name is not text.
                Err(_) => folder.to_owned(),
            });
            names.find(|path| !path.as_str().ends_with(".sample"))
        }
    }
}

/// Whether git takes a folder for a repository by what is in it.
pub(crate) fn looks_like_git_folder(folder: &Utf8Path) -> bool {
    let is_there = |name: &str| !is_absent(&folder.join(name));
    is_there("HEAD") && (is_there("commondir") || (is_there("objects") && is_there("refs")))
}

/// Whether nothing is certainly at a path. What cannot be looked at for any other reason may be there for git.
fn is_absent(path: &Utf8Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    std::fs::symlink_metadata(path).is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

/// Whether a `commondir` names a folder other than the one that it lies in. The sandbox holds its place with one that
/// names no other.
fn names_another(commondir: &Utf8Path) -> bool {
    !is_absent(commondir) && small(commondir).is_none_or(|text| text.trim_end_matches(['\n', '\r']) != ".")
}

/// The sandbox in which git may look at a working directory, if it needs one; the error says why it may not.
pub(crate) async fn sandbox_to_look(
    cwd: &Utf8Path,
    trusted: bool,
    maker: Option<std::sync::Arc<crate::sandbox::SandboxMaker>>,
) -> Result<Option<std::sync::Arc<decurion_exec::Sandbox>>, String> {
    let from = cwd.to_owned();
    let look = tokio::task::spawn_blocking(move || {
        let Some(doubt) = doubt(&from, Purpose::Look, None) else {
            return Ok(None);
        };
        if !trusted {
            return Err(format!("{doubt}; `decurion trust` lets git run here"));
        }
        // A command of an earlier session may have made the repository in a folder that was trusted then.
        let sandbox = maker.map(|maker| maker.compile_look(&from)).transpose();
        sandbox.map_err(|error| error.to_string())
    });
    Ok(look.await.map_err(|error| error.to_string())??.map(std::sync::Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with this in its list of files besides the repositories nested in it.
    fn repository(top: &Utf8Path, nested: &[&str], bytes: usize) {
        let git = top.join(".git");
        for folder in ["objects", "refs"] {
            std::fs::create_dir_all(git.join(folder)).unwrap();
        }
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        let entries: Vec<_> = nested.iter().map(|path| (0o160_000, *path)).collect();
        let length = u32::try_from(bytes).unwrap().to_be_bytes();
        let padding = [b"PADD".as_slice(), &length, &vec![0; bytes]].concat();
        std::fs::write(git.join("index"), index::tests::list(2, &entries, &padding)).unwrap();
    }

    fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        (folder, path)
    }

    fn called(command: &str, cwd: &Utf8Path) -> Intent {
        let surroundings =
            decurion_tools::Surroundings { cwd: cwd.to_owned(), home: None, directories: Vec::new() };
        let mut intent = Intent::titled("");
        intent.shell = Some(decurion_tools::bash::analyse(command, &surroundings));
        intent
    }

    fn doubts(
        command: &str,
        cwd: &Utf8Path,
        trusted: Option<&Utf8Path>,
        index_bytes: u64,
    ) -> Vec<Option<String>> {
        let mut intent = called(command, cwd);
        add_repositories(&mut intent, Standing { cwd, trusted, looks: true, index_bytes });
        intent.shell.unwrap().commands.into_iter().map(|command| command.doubt).collect()
    }

    #[test]
    fn lists_of_nested_repositories_together_are_not_read_beyond_the_allowance() {
        let (_folder, top) = folder();
        repository(&top, &["a", "b"], 1000);
        repository(&top.join("a"), &["c"], 1000);
        repository(&top.join("b"), &[], 1000);
        repository(&top.join("a/c"), &[], 1000);
        assert_eq!(doubts("git status", &top, None, 10_000), [None]);
        // Each fits, and together they do not.
        for allowance in [3999, 3000, 2000, 1500, 0] {
            let found = doubts("git status", &top, None, allowance);
            let doubt = found[0].as_deref().unwrap_or_default();
            assert!(doubt.contains("too long") && doubt.contains("`decurion trust`"), "{allowance}: {doubt}");
        }
        assert_eq!(
            doubts("git status", &top, Some(&top), 0),
            [None],
            "a trusted folder is not looked through"
        );
        // A list is read once for the whole text.
        assert_eq!(doubts("git status; git diff; git commit -m x", &top, None, 5000), [None, None, None]);
    }

    #[test]
    fn repository_that_cannot_be_read_leaves_its_remotes_in_doubt() {
        let (_folder, top) = folder();
        assert_eq!(doubts("git push origin main", &top, None, 10_000), [None], "no repository");
        assert_eq!(doubts("git push origin main", &top.join("absent"), None, 10_000), [None], "no folder");
        repository(&top, &[], 0);
        assert_eq!(doubts("git push origin main", &top, None, 10_000), [None], "no remote");
        std::fs::create_dir(top.join(".git/config")).unwrap();
        let loops = top.join("loops");
        std::os::unix::fs::symlink("loops", &loops).unwrap();
        for place in [&top, &loops] {
            let pushes = called("git push origin main", place).shell.unwrap();
            let doubt = remotes::doubt(&pushes.commands[0], place).unwrap_or_default();
            assert!(doubt.contains("which repository"), "{place}: {doubt}");
        }
    }

    /// With the one thread for blocking work taken, a look does not end, and what else the runtime has to do does.
    #[test]
    fn runtime_is_free_while_a_repository_is_looked_at() {
        let (_folder, top) = folder();
        repository(&top, &[], 1000);
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            for command in ["git status", "cat */*"] {
                let (free, taken) = std::sync::mpsc::channel::<()>();
                let other = tokio::task::spawn_blocking(move || taken.recv());
                let look = tokio::spawn(look_at_disk(called(command, &top), top.clone(), None));
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                assert!(!look.is_finished(), "{command}: it was looked at on the runtime's own thread");
                free.send(()).unwrap();
                other.await.unwrap().unwrap();
                assert_eq!(look.await.unwrap().shell.unwrap().commands[0].doubt, None);
            }
            // What calls no git and has no patterns is looked up at once.
            let mut plain = Box::pin(look_at_disk(called("ls", &top), top.clone(), None));
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(plain.as_mut().poll(cx))).await;
            assert!(polled.is_ready());
        });
    }
}
