//! Permission rules as a sandbox. Takes the rules and directories of a run and what the settings say, looks at the
//! disk, and gives what the kernel lets a command do.
//!
//! The analysis of a command's text decides what is asked; this decides what can happen. Neither relies on the other.

mod abandoned;
mod beside;
mod foreseen;
mod ground;
pub(crate) mod hints;
mod kept;
mod opened;
mod places;
mod planted;
mod planted_files;
mod private_folder;
mod programs;
mod refusal;
mod removal;
mod service;
mod unfinished;
mod walk;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::placeholder::{Kind, Placeholders};
use decurion_exec::{Form, Reach, Sandbox};
use decurion_protocol::intent::{ShellCommand, ShellIntent};
use decurion_protocol::{Intent, Mode, Profile, Rule, ToolOutput};
use decurion_store::WatchedFolders;

use crate::confine::Confinement;
use crate::footprint;
use crate::permission::{
    Around, Excluded, NamedWrite, Policy, User, UserFiles, Walls, denied_access, fixed_part, linked_from,
    patterns_of,
};
use crate::symlinks::{Ground, Symlinks};
pub use foreseen::NamedSecrets;
use ground::KeptGround;
use kept::KeptSandboxes;
pub(crate) use places::{checkouts, git_folders, settings_in, top_of};
use planted::{Before, Moved, Planted, text_of_programs};
pub(crate) use private_folder::PrivateFolder;
use programs::{Programs, Variables};
pub use refusal::{Bounds, Cause, Fixed, Refusal, RefusalKind, RefusedHost, Remedy, may_tell, refusal_in};
pub(crate) use service::reported;
pub use service::{ServerCaches, ServiceSandbox};
use walk::Walks;

/// What the kernel keeps commands from in every session of this program, whatever the rules say.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that a person sets on its own")]
pub struct SandboxSettings {
    /// How it is enforced here.
    pub form: Form,
    /// Whether commands that it confines need no question.
    pub asks_less: bool,
    /// Whether a person may let a command run without it.
    pub allows_outside: bool,
    /// Commands that always run without it.
    pub excluded: Vec<String>,
    /// What commands may write besides the working directories.
    pub writable: Vec<Utf8PathBuf>,
    /// What they may not read: secrets, and our own state.
    pub hidden: Vec<Utf8PathBuf>,
    /// What those that nobody was asked about may not read besides: the files of people.
    pub personal: Vec<Utf8PathBuf>,
    /// What they may read all the same: programs.
    pub visible: Vec<Utf8PathBuf>,
    /// The folder in which a private folder for temporary files is made.
    pub temporary: Utf8PathBuf,
    /// Whether they have the network of the machine.
    pub network_open: bool,
    /// Whether they may open Unix sockets.
    pub unix_sockets: bool,
    /// Our own folder, which is hidden; none without a home.
    pub own: Option<OwnFolder>,
    /// Tells a person what was found when the session has ended.
    pub report: fn(&str),
}

#[derive(Clone, Debug)]
pub struct OwnFolder {
    pub folder: Utf8PathBuf,
    /// What hooks and MCP servers may read of it: scripts that they are made of.
    pub shown: Vec<Utf8PathBuf>,
}

/// The sandbox of the commands of a session.
#[derive(Debug)]
pub struct SandboxMaker {
    settings: SandboxSettings,
    excluded: Excluded,
    ground: Arc<KeptGround>,
    kept: KeptSandboxes,
    walks: Walks,
    /// The repositories nested in a folder when it was first worked in. Those that commands make are their own. Behind a
    /// lock for each folder: whoever comes while it is looked at first has to wait for what was found.
    nested: Mutex<HashMap<Utf8PathBuf, Arc<Mutex<KnownNested>>>>,
    tmp: OnceLock<PrivateFolder>,
    /// The same for commands that were not asked about, because they only read: what they leave must not reach others.
    reader_tmp: OnceLock<PrivateFolder>,
    /// The same for hooks and MCP servers.
    service_tmp: OnceLock<PrivateFolder>,
    placeholders: Placeholders,
    planted: Planted,
    told_beside: beside::Told,
    /// Places that rules denied by the name of a link, with these rules. Bubblewrap cannot keep a command from removing the
    /// link, and without it the place would have no denied name.
    denied_by_link: Mutex<BTreeSet<(String, Utf8PathBuf)>>,
}

/// How a command runs.
#[derive(Debug, Default)]
pub struct Compiled {
    /// What the kernel lets it do; none where it runs without a sandbox.
    pub sandbox: Option<Sandbox>,
    /// Variables that are different for it, because it has more rights than other commands.
    pub environment: Vec<(OsString, OsString)>,
    /// What does not exist and cannot be made by it either.
    pub held: Vec<PathBuf>,
}

/// Of as many repositories in a working directory each setting is protected, where it does not exist by a placeholder,
/// which is an open file. Of others the whole folder of git is read-only.
const MOST_NESTED: usize = 150;
/// As many repositories in a working directory are protected: each costs every command a mount.
const MOST_PROTECTED: usize = 5_000;

/// What a command is for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What it would touch, as it was decided about.
    pub seen: &'a Intent,
    /// Paths outside of the working directories that it may write.
    pub opens: &'a [NamedWrite],
    /// Files that are hidden from commands, and that it may read because a person said so.
    pub shows: &'a [Utf8PathBuf],
}

impl<'a> From<&'a Intent> for Wanted<'a> {
    fn from(seen: &'a Intent) -> Self {
        Self { seen, opens: &[], shows: &[] }
    }
}

/// What is known of the repositories in a working directory.
#[derive(Debug, Default)]
enum KnownNested {
    #[default]
    Nothing,
    /// What was found for people to look at. Before the first command it is looked for again.
    Listed(Arc<AllNested>),
    /// What was there before the first command.
    Found(Arc<AllNested>),
}

/// What there was in a working directory when it was first worked in.
#[derive(Debug)]
struct AllNested {
    repositories: Vec<Nested>,
    /// Folders whose names are not text.
    unnamed: Vec<PathBuf>,
    /// Whether there was more than could be looked at.
    is_cut: bool,
}

/// A repository in a working directory.
#[derive(Debug)]
struct Nested {
    /// Its folder of git, or the file that names it.
    git: Utf8PathBuf,
    /// What its settings name, which commands cannot change.
    named: Vec<(Utf8PathBuf, Option<Kind>)>,
}

/// Why no sandbox can be made that enforces the rules; the command does not run.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no place for temporary files.
    #[error("cannot make a private folder for temporary files in {folder}: {source}")]
    Temporary {
        /// Where it was to be.
        folder: Utf8PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Rules with wildcards cover more than can be looked through.
    #[error(
        "rules with wildcards, such as {rule}, cannot be enforced: there are more than {most} files below {folder}. Name \
         folders in the rules instead of using wildcards"
    )]
    TooMany {
        rule: String,
        /// What was looked through.
        folder: Utf8PathBuf,
        /// How many are looked at.
        most: usize,
    },
    /// A command would remove a part of a repository and fail at what it cannot remove.
    #[error(
        "`{command}` would remove a part of a repository and then fail, because commands cannot change {path}. Nothing was \
         removed. The user can run it, or let it run without the sandbox: call Bash with dangerouslyDisableSandbox, which \
         asks the user"
    )]
    HalfRemoved { command: String, path: Utf8PathBuf },
    /// Something that commands may not make does not exist, and nothing can be put in its place.
    #[error("cannot protect {path} from commands: cannot create its placeholder: {source}")]
    NotHeld {
        /// What commands may not make.
        path: Utf8PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl SandboxMaker {
    /// The maker of sandboxes with these settings.
    pub fn new(settings: SandboxSettings) -> Self {
        Self {
            excluded: Excluded::new(&settings.excluded),
            planted: Planted::new(settings.own.as_ref().map(|own| WatchedFolders::new(&own.folder))),
            settings,
            ground: Arc::default(),
            kept: KeptSandboxes::default(),
            walks: Walks::default(),
            nested: Mutex::default(),
            tmp: OnceLock::new(),
            reader_tmp: OnceLock::new(),
            service_tmp: OnceLock::new(),
            placeholders: Placeholders::default(),
            told_beside: beside::Told::default(),
            denied_by_link: Mutex::default(),
        }
    }

    /// What it was made with.
    pub fn settings(&self) -> &SandboxSettings {
        &self.settings
    }

    /// The private folder for temporary files of allowed commands, made at its first use.
    pub fn temporary(&self) -> Result<&Utf8Path, SandboxError> {
        self.private_folder(&self.tmp)
    }

    /// The same for hooks and MCP servers.
    fn service_temporary(&self) -> Result<&Utf8Path, SandboxError> {
        self.private_folder(&self.service_tmp)
    }

    /// The same if it was made already.
    pub(crate) fn made_temporary(&self) -> Option<&Utf8Path> {
        self.tmp.get().map(PrivateFolder::path)
    }

    fn private_folder<'a>(&self, kept: &'a OnceLock<PrivateFolder>) -> Result<&'a Utf8Path, SandboxError> {
        if kept.get().is_none() {
            let folder = &self.settings.temporary;
            let made = PrivateFolder::make(folder)
                .map_err(|source| SandboxError::Temporary { folder: folder.clone(), source })?;
            // If another was faster, this one is removed again.
            let _ = kept.set(made);
        }
        Ok(kept.get().map_or(Utf8Path::new("/nonexistent"), PrivateFolder::path))
    }

    /// What rules may rely on. Without namespaces a command can change the modes of files, so that none that only looks
    /// as if it reads may go unasked.
    pub fn walls(&self) -> Walls {
        if !self.settings.form.keeps_readers_from_changes() {
            return Walls::Absent;
        }
        // What is excluded runs outside, so that it must be asked about.
        let trusted = self.settings.asks_less && self.settings.excluded.is_empty();
        if trusted { Walls::Trusted } else { Walls::Standing }
    }

    /// What rules must not rely on: commands that run without it.
    pub fn excluded(&self) -> Excluded {
        self.excluded.clone()
    }

    /// Whether [`SandboxMaker::tidy`] has something to look at.
    pub fn has_to_tidy(&self, around: &Around) -> bool {
        !self.planted.watched().is_empty() || self.can_lose(around)
    }

    /// Undoes what a command could do that the kernel does not stop. Gives what a model should know of it, and of what is
    /// lost at the end.
    pub fn tidy(&self, around: &Around, seen: &Intent) -> Vec<String> {
        self.set_aside(false).into_iter().chain(self.lost_beside(around, seen)).collect()
    }

    fn set_aside(&self, is_last: bool) -> Option<String> {
        let mut moved = Moved::default();
        for folder in self.planted.watched() {
            moved.add(self.planted.set_aside(&folder, is_last));
        }
        let texts = self.planted.take_pending().into_iter().chain(moved.text("this session"));
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| texts.join(". "))
    }

    /// How a command with this profile and this environment runs; without one, no program has more rights than others.
    /// Looks at the disk, and holds the places of what the command may not make.
    pub fn compile<'a>(
        &self,
        policy: &Policy,
        profile: Option<Profile>,
        wanted: impl Into<Wanted<'a>>,
        environment: Option<&Variables>,
    ) -> Result<Compiled, SandboxError> {
        let wanted = wanted.into();
        let compiled = self.compile_with(policy, profile, wanted, environment, Holding::Done)?;
        let read_only = compiled.sandbox.iter().flat_map(|sandbox| &sandbox.read_only);
        let shell = wanted.seen.shell.as_ref().filter(|_| profile != Some(Profile::ReadOnly));
        match shell.and_then(|shell| removal::half_way(shell, &policy.around.cwd, &read_only)) {
            Some((command, path)) => Err(SandboxError::HalfRemoved { command, path }),
            None => Ok(compiled),
        }
    }

    /// The same for people to look at: nothing is put in the working directories.
    pub fn explain(
        &self,
        policy: &Policy,
        profile: Option<Profile>,
        wanted: Wanted<'_>,
        environment: &Variables,
    ) -> Result<Compiled, SandboxError> {
        self.compile_with(policy, profile, wanted, Some(environment), Holding::Listed)
    }

    fn compile_with(
        &self,
        policy: &Policy,
        profile: Option<Profile>,
        wanted: Wanted<'_>,
        environment: Option<&Variables>,
        holding: Holding,
    ) -> Result<Compiled, SandboxError> {
        let seen = wanted.seen;
        if profile == Some(Profile::Outside) && self.settings.allows_outside {
            // Of programs that no command can have made, none is found that another command puts in their way meanwhile.
            let all = seen.shell.as_ref().zip(environment);
            let trusted = all.map(|(shell, environment)| self.trusted(policy, shell, environment));
            let environment = trusted.transpose()?.flatten().unwrap_or_default();
            return Ok(Compiled { environment, ..Compiled::default() });
        }
        let reads = profile == Some(Profile::ReadOnly);
        // One that nobody was asked about is excluded only if its text shows that it reads.
        let proven = seen.shell.as_ref().is_some_and(|shell| !is_unclear(shell) && is_proven(shell));
        let excluded = (!reads || proven) && self.is_excluded(seen);
        let lists = reads && lists_machine(seen) && decurion_exec::sandbox::has_landlock();
        let shell = seen.shell.as_ref().filter(|_| excluded || lists).zip(environment);
        let trusted = shell.map(|(shell, environment)| self.trusted(policy, shell, environment));
        let trusted = trusted.transpose()?.flatten();
        if excluded && let Some(environment) = trusted {
            return Ok(Compiled { environment, ..Compiled::default() });
        }
        let (sandbox, held) = self.confine(policy, reads, wanted, holding)?;
        let sandbox = Some(Sandbox { sees_machine: trusted.is_some(), ..sandbox });
        Ok(Compiled { sandbox, environment: trusted.unwrap_or_default(), held })
    }

    /// What a command was kept from, if it says so or the proxy does, and what it would need. Looks at the disk.
    pub fn refused(
        &self,
        output: &ToolOutput,
        hosts: &[RefusedHost],
        sandbox: &Sandbox,
        (policy, profile, seen): (&Policy, Option<Profile>, &Intent),
    ) -> Option<(Refusal, Option<Remedy>)> {
        let reads = profile == Some(Profile::ReadOnly);
        let always_hidden = &self.settings.hidden;
        let own = self.settings.own.as_ref().map(|own| own.folder.as_path());
        let network_open = self.settings.network_open;
        let bounds = Bounds { sandbox, usual: None, policy, always_hidden, own, network_open };
        let refusal = refusal_in(output, hosts, &bounds, &policy.around.cwd);
        let mut refusal = refusal.filter(|refusal| !bounds.is_beside(refusal))?;
        let usual = reads.then(|| self.confine(policy, false, seen.into(), Holding::Listed).ok()).flatten();
        let usual = usual.as_ref().map(|(sandbox, _)| sandbox);
        let remedy = Bounds { usual, ..bounds }.settle(&mut refusal);
        Some((refusal, remedy))
    }

    /// What is different in the environment of a command with more rights than others. None where a command can have
    /// made one of its programs, which would have these rights then.
    fn trusted(
        &self,
        policy: &Policy,
        shell: &ShellIntent,
        environment: &Variables,
    ) -> Result<Option<Vec<(OsString, OsString)>>, SandboxError> {
        let around = &policy.around;
        let policy = Policy { mode: Mode::Default, ..policy.clone() };
        let (usual, _) = self.confine(&policy, false, (&Intent::titled("")).into(), Holding::Listed)?;
        let trails = Symlinks::on_disk();
        let checkouts = around.checkout.iter().flat_map(Confinement::checkouts);
        let folders = around.places().chain(checkouts);
        let worked_in = folders.map(|folder| trails.place(folder).into_std_path_buf()).collect();
        let programs = Programs { environment, cwd: &around.cwd, usual, worked_in, trails: &trails };
        Ok(programs.trusted(shell))
    }

    /// What a command may do that reads only, or has the usual rights, and what does not exist and cannot be made. What was
    /// found for the command before it is used again if the disk and everything else that it depends on are the same.
    fn confine(
        &self,
        policy: &Policy,
        reads: bool,
        wanted: Wanted<'_>,
        holding: Holding,
    ) -> Result<(Sandbox, Vec<PathBuf>), SandboxError> {
        // The rules could not be held against the text, so a repository's history stays closed where a rule forbids
        // to read files.
        let unclear = wanted.seen.shell.as_ref().is_none_or(|shell| is_unclear(shell) || !is_proven(shell));
        let hides_history = unclear && reads;
        if holding == Holding::Listed {
            return self.confine_anew(policy, reads, hides_history, wanted, holding);
        }
        if !wanted.opens.is_empty() || !wanted.shows.is_empty() {
            return self.confine_opening(policy, reads, hides_history, wanted);
        }
        let makes_reader_folder = self.reader_tmp.get().is_some();
        let basis = kept::Basis::new(policy, (reads, hides_history, makes_reader_folder), wanted.seen);
        if let Some(kept) = self.kept.find(&basis) {
            return Ok((kept, Vec::new()));
        }
        let made = || self.confine_opening(policy, reads, hides_history, wanted);
        let (made, footprint) = footprint::noted(made);
        let (sandbox, held) = made?;
        if let Some(footprint) = footprint {
            self.kept.keep(basis, footprint, &sandbox);
        }
        Ok((sandbox, held))
    }

    /// The same as it is found on the disk. What a command has closed, another one could open again, so that it must be
    /// looked into: its owner may do that from now on.
    fn confine_opening(
        &self,
        policy: &Policy,
        reads: bool,
        hides_history: bool,
        wanted: Wanted<'_>,
    ) -> Result<(Sandbox, Vec<PathBuf>), SandboxError> {
        /// Closed folders in closed folders.
        const DEEPEST: usize = 200;
        for _ in 0..DEEPEST {
            let make = || self.confine_anew(policy, reads, hides_history, wanted, Holding::Done);
            let (made, closed) = footprint::with_closed(make);
            let (sandbox, held) = made?;
            let is_writable = |path: &Utf8PathBuf| {
                sandbox.writable.iter().any(|folder| path.as_std_path().starts_with(folder))
            };
            let closed: BTreeSet<Utf8PathBuf> =
                closed.iter().filter_map(|path| footprint::obstacle(path)).collect();
            let opened = closed
                .iter()
                .filter(|path| is_writable(path) && planted::open_to_owner(path.as_std_path()).is_some());
            if opened.count() == 0 {
                return Ok((sandbox, held));
            }
            // What was noted is not so any more.
            footprint::spoil();
        }
        self.confine_anew(policy, reads, hides_history, wanted, Holding::Done)
    }

    fn confine_anew(
        &self,
        policy: &Policy,
        reads: bool,
        hides_history: bool,
        Wanted { seen, opens, shows }: Wanted<'_>,
        holding: Holding,
    ) -> Result<(Sandbox, Vec<PathBuf>), SandboxError> {
        let writes = !reads && policy.mode != Mode::Plan;
        self.ground.begin();
        let trails = Symlinks::over(Arc::clone(&self.ground) as Arc<dyn Ground>);
        let checkouts = policy.around.checkouts.anew();
        let around = Around { trails: trails.clone(), checkouts, ..policy.around.clone() };
        let policy = &Policy { around, ..policy.clone() };
        let mut paths =
            Collected { trails, ground: Arc::clone(&self.ground), holding, ..Collected::default() };
        let (tmp, shown_tmp) = self.add_temporary(&mut paths, reads)?;
        self.add_working_directories(&mut paths, policy, writes);
        if reads {
            paths.show_all(&allowed_to_read(policy));
        } else {
            paths.show_all(policy.around.home.iter().chain(seen.touches.iter().map(|touch| &touch.path)));
        }
        if writes {
            self.open_named_files(&mut paths, opens, &policy.around);
        }
        self.add_rules(&mut paths, policy, hides_history)?;
        let denied = paths.hidden.clone();
        paths.hide(&self.settings.hidden);
        paths.show_hidden(shows, &denied);
        let reads_all = |rule: &Rule| rule.tool == "Read" && rule.specifier.is_none();
        if reads && !policy.rules.allow.iter().any(reads_all) {
            paths.hide_unless_worked_in(&self.settings.personal);
        }
        if let Some(error) = paths.not_held.take() {
            return Err(error);
        }
        let held = native(std::mem::take(&mut paths.held));
        let sandbox = Sandbox {
            links: native(paths.links_to_pin()),
            writable: native(paths.writable),
            read_only: native(paths.read_only).into_iter().chain(paths.unnamed_read_only).collect(),
            hidden: native(paths.hidden).into_iter().chain(paths.unnamed_hidden).collect(),
            visible: native(paths.visible),
            tmp: Some(tmp.into()),
            shown_tmp: shown_tmp.map(Into::into),
            // Without namespaces nothing leads commands through the proxy.
            network: writes && (self.settings.form == Form::Namespaces || self.settings.network_open),
            reach: Reach::Session,
            unix_sockets: self.settings.unix_sockets && writes,
            sees_machine: false,
        };
        Ok((sandbox, held))
    }

    /// Adds the private folders for temporary files: the one that a command writes, and another one that it is shown.
    /// What a reader leaves must not be found by a command that may do more; what that leaves is there to be read.
    fn add_temporary(
        &self,
        paths: &mut Collected,
        reads: bool,
    ) -> Result<(Utf8PathBuf, Option<Utf8PathBuf>), SandboxError> {
        let shared = paths.trails.place(self.temporary()?);
        // Under its own name too, so that files in it have one path for commands and for other tools.
        if reads {
            let own = paths.trails.place(self.private_folder(&self.reader_tmp)?);
            paths.writable.insert(own.clone());
            paths.visible.insert(shared.clone());
            return Ok((own, Some(shared)));
        }
        paths.writable.insert(shared.clone());
        // With Landlock alone a person is asked about readers too.
        if let Some(folder) = self.reader_tmp.get().filter(|_| self.settings.form != Form::Landlock) {
            paths.hidden.insert(paths.trails.place(folder.path()));
        }
        Ok((shared, None))
    }

    /// The sandbox of a program of ours that only looks at a folder.
    pub(crate) fn compile_look(&self, folder: &Utf8Path) -> Result<Sandbox, SandboxError> {
        let around = Around { cwd: folder.to_owned(), root: folder.to_owned(), ..Around::default() };
        let policy = Policy::new(Mode::Plan, Arc::default(), around);
        self.confine(&policy, true, (&Intent::titled("")).into(), Holding::Done).map(|(sandbox, _)| sandbox)
    }

    /// Whether the settings name all commands of a text.
    fn is_excluded(&self, seen: &Intent) -> bool {
        seen.shell.as_ref().is_some_and(|shell| self.excluded.covers(shell))
    }

    fn add_working_directories(&self, paths: &mut Collected, policy: &Policy, writes: bool) {
        let around = &policy.around;
        let own = around.checkout.as_ref().map(|bounds| bounds.tree().clone());
        // The project and the folder that the session began in are mostly the same.
        let granted: BTreeSet<&Utf8Path> = around.granted().collect();
        let folders: Vec<Utf8PathBuf> = match own {
            Some(tree) => vec![tree],
            None => granted.iter().map(|folder| (*folder).to_owned()).collect(),
        };
        for folder in granted.into_iter().chain(around.checkout.iter().flat_map(Confinement::checkouts)) {
            paths.work_in(folder);
        }
        let visible = paths.ground.places(&self.settings.visible, &paths.trails);
        paths.visible.extend(visible.iter().filter(|place| *place != "/").cloned());
        if writes {
            for path in &self.settings.writable {
                paths.write(path);
            }
        }
        for folder in &folders {
            let git = places::git_folders(&paths.trails.place(folder));
            for folder in &git {
                paths.work_in(folder);
            }
            if writes {
                paths.write(folder);
                for folder in &git {
                    paths.write(folder);
                }
                // With Landlock alone nothing can be made in a folder above a restricted one, so that no work could be
                // done in these.
                if self.settings.form == Form::Landlock {
                    continue;
                }
                if around.checkout.is_none() {
                    for path in places::settings_in(folder) {
                        self.hold(paths, &path, Kind::Folder);
                    }
                }
                let made = self.planted.worktrees_made(&paths.trails.place(folder), &git);
                for (path, kind) in git.iter().flat_map(|git| places::git_settings_to_hold(git, &made)) {
                    self.hold(paths, &path, kind);
                }
                paths.restrict_all(git.iter().flat_map(|folder| places::git_settings(folder, &made)));
                let user = around.user();
                let named = places::named_by_git(places::top_of(&paths.trails.place(folder)), &git, user);
                self.add_named(paths, &named);
                let linked: Vec<_> =
                    linked_from(folder, &git, user).into_iter().map(|place| (place, None)).collect();
                self.add_named(paths, &linked);
                // What another checkout has staged and checked out is its own.
                if let [_, common] = &git[..] {
                    paths.restrict_all(["index", "HEAD"].map(|name| common.join(name)));
                }
                self.add_nested(paths, folder, user);
                // In a worktree this is a file that names the repository; it can be a link too.
                paths.pin_links(&folder.join(".git"));
                paths.restrict_all([folder.join(".git")].into_iter().filter(|git| footprint::is_file(git)));
                paths.restrict_all(places::settings_in(folder));
                self.protect_home(paths, folder, user.home, &folders);
            }
        }
        if writes {
            let about_writing = policy.rules.allow.iter().filter(|rule| is_about_writing(rule));
            let by_rule = about_writing.flat_map(|rule| patterns_of(rule, around, false));
            let by_rule: Vec<Utf8PathBuf> = by_rule.filter_map(|pattern| places::whole(&pattern)).collect();
            for folder in &by_rule {
                paths.write(folder);
            }
            let opened: Vec<Utf8PathBuf> =
                folders.iter().chain(&self.settings.writable).chain(&by_rule).cloned().collect();
            for folder in self.settings.writable.iter().chain(&by_rule) {
                self.protect_home(paths, folder, around.home.as_deref(), &opened);
            }
            self.protect_user_files(paths, around, &opened);
        }
    }

    /// Keeps commands from changing or making what variables of the user name, wherever they may write. A folder that they
    /// are to write stays open.
    fn protect_user_files(&self, paths: &mut Collected, around: &Around, opened: &[Utf8PathBuf]) {
        if self.settings.form == Form::Landlock {
            return;
        }
        let UserFiles { git, files, folders } = &*around.user_files;
        let opened: Vec<Utf8PathBuf> = opened.iter().map(|folder| paths.trails.place(folder)).collect();
        let is_file = [(git, true), (files, true), (folders, false)];
        for (path, is_file) in
            is_file.iter().flat_map(|(all, is_file)| all.iter().map(move |path| (path, *is_file)))
        {
            let place = paths.trails.place(path);
            let is_below = opened.iter().any(|folder| place.starts_with(folder));
            if !is_below || opened.iter().any(|folder| folder.starts_with(&place)) {
                continue;
            }
            if is_file {
                self.hold(paths, &place, Kind::File);
            }
            paths.restrict_all([place]);
        }
    }

    /// Keeps commands from changing what shells, git and desktops read in a home folder that they may write. Settings that
    /// are opened by their own names stay open.
    fn protect_home(
        &self,
        paths: &mut Collected,
        folder: &Utf8Path,
        home: Option<&Utf8Path>,
        opened: &[Utf8PathBuf],
    ) {
        // With Landlock alone nothing could be made in the home folder then.
        if self.settings.form == Form::Landlock {
            return;
        }
        for (path, kind) in places::startup_files_to_hold(folder, home) {
            if !opened.contains(&path) {
                self.hold(paths, &path, kind);
            }
        }
        paths.restrict_all(places::dot_names(folder, home, opened));
    }

    /// Holds the place of something that commands may not make, if it is one that they could make.
    fn hold(&self, paths: &mut Collected, path: &Utf8Path, kind: Kind) {
        use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
        let place = paths.trails.place(path);
        let could = place.parent().is_some_and(|folder| paths.is_writable(folder));
        if self.settings.form == Form::Landlock || !could {
            return;
        }
        if paths.holding == Holding::Listed {
            if !paths.exists(&place) || decurion_exec::placeholder::is_placeholder(place.as_std_path()) {
                paths.held.insert(place);
            }
            return;
        }
        let held = self.placeholders.hold(place.as_std_path(), kind);
        // If it is removed the next command needs another one.
        if !footprint::is_there(&place) {
            footprint::spoil();
        }
        // Commands have no more rights than we have, and cannot replace a file by the folder that would be needed: what
        // is above a restricted path stays where it is.
        let could_not = |error: &std::io::Error| {
            matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory)
        };
        if let Some(source) = held.err().filter(|error| !could_not(error)) {
            paths.not_held.get_or_insert(SandboxError::NotHeld { path: place, source });
        }
    }

    /// Keeps commands from changing or making what git's settings name.
    fn add_named(&self, paths: &mut Collected, named: &[(Utf8PathBuf, Option<Kind>)]) {
        for (path, kind) in named {
            // Settings that name all of a working directory would leave nothing to work on.
            let place = paths.trails.place(path);
            if paths.worked_in.iter().any(|folder| folder.starts_with(&place)) {
                continue;
            }
            if let Some(kind) = kind {
                self.hold(paths, path, *kind);
            }
            paths.restrict_all([path.clone()]);
        }
    }

    /// Keeps commands from changing the settings of repositories nested in a folder.
    fn add_nested(&self, paths: &mut Collected, folder: &Utf8Path, user: User<'_>) {
        let place = paths.trails.place(folder);
        let nested = footprint::unnoted(|| self.known_nested(&place, user, paths.holding));
        for (index, Nested { git, named }) in nested.repositories.iter().take(MOST_PROTECTED).enumerate() {
            self.add_named(paths, named);
            match paths.ground.find(git.as_std_path()) {
                ground::Found::Folder if index < MOST_NESTED => {
                    for (path, kind) in places::git_settings_to_hold(git, &BTreeSet::new()) {
                        self.hold(paths, &path, kind);
                    }
                    paths.restrict_all(places::git_settings(git, &BTreeSet::new()));
                }
                ground::Found::Folder | ground::Found::Other => paths.restrict_all([git.clone()]),
                ground::Found::Nothing | ground::Found::Link(_) => paths.pin_links(git),
            }
        }
    }

    /// The repositories nested in a folder. What is found before the first command is believed for the whole session.
    fn known_nested(&self, place: &Utf8Path, user: User<'_>, holding: Holding) -> Arc<AllNested> {
        let known = {
            let mut all = self.nested.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(place.to_owned()).or_default())
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*known, holding) {
            (KnownNested::Found(nested), _) | (KnownNested::Listed(nested), Holding::Listed) => {
                return Arc::clone(nested);
            }
            _ => {}
        }
        if holding == Holding::Listed {
            let nested = Arc::new(find_nested(place, user));
            *known = KnownNested::Listed(Arc::clone(&nested));
            return nested;
        }
        // What is renamed now is not there any more when it is listed.
        self.planted.look_after_killed(place);
        let nested = Arc::new(find_nested(place, user));
        self.planted.watch(
            place,
            Before {
                repositories: nested.repositories.iter().map(|nested| nested.git.clone()).collect(),
                unnamed: nested.unnamed.iter().cloned().collect(),
                is_cut: nested.is_cut,
            },
        );
        *known = KnownNested::Found(Arc::clone(&nested));
        nested
    }

    fn add_rules(&self, paths: &mut Collected, policy: &Policy, unclear: bool) -> Result<(), SandboxError> {
        let around = &policy.around;
        let checkouts = around.checkout.iter().flat_map(Confinement::checkouts);
        let folders: BTreeSet<Utf8PathBuf> =
            around.places().chain(checkouts).map(|folder| paths.trails.place(folder)).collect();
        let folders: Vec<Utf8PathBuf> = folders.into_iter().collect();
        let about_files = |rule: &&Rule| rule.specifier.is_some() && denied_access(&rule.tool).is_some();
        let rules: Vec<&Rule> = policy.rules.deny.iter().filter(about_files).collect();
        let mut wild = Vec::new();
        for rule in &rules {
            for pattern in patterns_of(rule, around, true) {
                match places::whole(&pattern) {
                    Some(path) if path == "/" => {
                        for folder in &folders {
                            self.deny(paths, rule, folder);
                        }
                    }
                    Some(path) => self.deny(paths, rule, &path),
                    None => wild.push((pattern, *rule)),
                }
            }
        }
        self.add_wild(paths, around, &folders, &wild)?;
        self.add_denied_by_link(paths, &rules);
        if unclear && rules.iter().any(|rule| rule.tool == "Read") {
            let git = folders.iter().flat_map(|folder| places::git_folders(folder));
            let objects: Vec<Utf8PathBuf> = git.map(|git| git.join("objects")).collect();
            paths.hide(&objects);
        }
        Ok(())
    }

    /// What rules with wildcards deny, by one walk for all of them.
    fn add_wild(
        &self,
        paths: &mut Collected,
        around: &Around,
        folders: &[Utf8PathBuf],
        wild: &[(String, &Rule)],
    ) -> Result<(), SandboxError> {
        let is_folder = |path: &Utf8PathBuf| paths.ground.find(path.as_std_path()) == ground::Found::Folder;
        let roots = wild.iter().flat_map(|(pattern, rule)| {
            places::roots(pattern, rule.tool == "Read", folders, &paths.writable)
        });
        let roots = walk::outermost(roots.filter(is_folder).collect());
        let patterns: Vec<String> = wild.iter().map(|(pattern, _)| pattern.clone()).collect();
        let covered = self.walks.find(&patterns, &roots).map_err(|folder| {
            let rule = wild.first().map(|(_, rule)| rule.to_string()).unwrap_or_default();
            SandboxError::TooMany { rule, folder, most: walk::MOST }
        })?;
        for ((pattern, rule), covered) in wild.iter().zip(covered) {
            for path in covered {
                match Utf8PathBuf::from_path_buf(path) {
                    Ok(path) => self.deny(paths, rule, &path),
                    Err(path) => paths.deny_unnamed(&path, rule.tool == "Read"),
                }
            }
            // Where the name is at hand it could be made; elsewhere only what exists is kept.
            let name = places::bare_name(pattern).filter(|_| rule.tool != "Read");
            if let Some(name) = &name {
                for folder in [&around.cwd, &around.root] {
                    self.hold(paths, &folder.join(name), Kind::Folder);
                    paths.restrict_all([folder.join(name)]);
                }
            }
        }
        Ok(())
    }

    /// What rules denied before by the name of a link that may be gone.
    fn add_denied_by_link(&self, paths: &mut Collected, rules: &[&Rule]) {
        for (written, place) in self.denied_by_link.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            match rules.iter().find(|rule| rule.to_string() == *written) {
                Some(rule) if rule.tool == "Read" => paths.deny(place),
                Some(_) => paths.restrict_all([place.clone()]),
                None => {}
            }
        }
    }

    /// Hides a path, or keeps commands from changing or making it.
    fn deny(&self, paths: &mut Collected, rule: &Rule, path: &Utf8Path) {
        if self.settings.form == Form::Bubblewrap {
            let place = paths.trails.place(path);
            if place != path && paths.holding == Holding::Done {
                let mut all = self.denied_by_link.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert((rule.to_string(), place));
            }
        }
        if rule.tool == "Read" {
            paths.deny(path);
            return;
        }
        // A rule on `/etc/hosts` means that one, where there is one: no place is held for it in the working directory.
        let absolute =
            rule.specifier.as_deref().filter(|text| text.starts_with('/') && !text.starts_with("//"));
        if !absolute.is_some_and(|text| paths.ground.exists(&fixed_part(text).into_std_path_buf())) {
            self.hold(paths, path, Kind::Folder);
        }
        paths.restrict_all([path.to_owned()]);
    }
}

impl Drop for SandboxMaker {
    fn drop(&mut self) {
        // Commands in the background have ended by now.
        if let Some(text) = self.set_aside(true) {
            (self.settings.report)(&text);
        }
        let watched = self.planted.watched();
        let added: Vec<String> =
            watched.iter().flat_map(|folder| self.planted.programs_added(folder)).collect();
        if let Some(text) = text_of_programs(&added) {
            (self.settings.report)(&text);
        }
        self.planted.finish();
    }
}

/// What there is of repositories in a folder now, and what the settings of the first ones name.
fn find_nested(place: &Utf8Path, user: User<'_>) -> AllNested {
    let places::Repositories { git, unnamed, is_cut } = places::repositories_in(place, &mut |_| false);
    let repositories = git.into_iter().enumerate().map(|(index, git)| {
        let top = git.parent().filter(|_| git.file_name() == Some(".git"));
        let named = || {
            let folders = top.map_or_else(|| vec![git.clone()], places::git_folders);
            places::named_by_git(top.unwrap_or(&git), &folders, user)
        };
        Nested { named: if index < MOST_NESTED { named() } else { Vec::new() }, git }
    });
    AllNested { repositories: repositories.collect(), unnamed, is_cut }
}

/// The first `most` of names as part of a sentence, and how many there are besides.
pub(crate) fn first_of<'a, T: AsRef<str> + 'a>(
    names: impl IntoIterator<Item = &'a T, IntoIter: ExactSizeIterator>,
    most: usize,
) -> String {
    let names = names.into_iter();
    let more = names.len().saturating_sub(most);
    let named: Vec<&str> = names.take(most).map(AsRef::as_ref).collect();
    match named.as_slice() {
        _ if more > 0 => format!("{} and {more} more", named.join(", ")),
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => named.join(", "),
    }
}

/// Whether it is not known from a text what its commands are given.
fn is_unclear(shell: &ShellIntent) -> bool {
    let unknown = |command: &ShellCommand| command.doubt.is_some() || !command.unknown.is_empty();
    shell.doubt.is_some() || shell.not_literal.is_some() || shell.commands.iter().any(unknown)
}

/// Whether every command of a text is known only to read. Others run what a script says, or could.
fn is_proven(shell: &ShellIntent) -> bool {
    shell.commands.iter().all(|command| command.read_only || command.wrapper)
}

/// Whether a text asks about the processes or the load of the machine, and is understood well enough to know that it
/// does nothing else: in namespaces of its own it would be told about itself alone.
fn lists_machine(seen: &Intent) -> bool {
    const PROGRAMS: [&str; 12] =
        ["ps", "top", "pgrep", "pidof", "pstree", "lsof", "uptime", "w", "who", "free", "vmstat", "fuser"];
    let Some(shell) = &seen.shell else { return false };
    let asks = |command: &ShellCommand| {
        let program = command.words.get(command.assigned).and_then(|word| word.rsplit('/').next());
        program.is_some_and(|program| PROGRAMS.contains(&program))
    };
    !is_unclear(shell) && is_proven(shell) && shell.commands.iter().any(asks)
}

/// What rules allow to read outside of the working directories.
fn allowed_to_read(policy: &Policy) -> Vec<Utf8PathBuf> {
    let reading = policy.rules.allow.iter().filter(|rule| rule.tool == "Read");
    let patterns = reading.flat_map(|rule| patterns_of(rule, &policy.around, false));
    patterns.filter_map(|pattern| places::whole(&pattern)).collect()
}

fn is_about_writing(rule: &Rule) -> bool {
    matches!(rule.tool.as_str(), "Edit" | "Write") && rule.specifier.is_some()
}

fn native(paths: BTreeSet<Utf8PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().map(Into::into).collect()
}

/// What is done about paths that commands may not make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holding {
    /// Their places are held.
    #[default]
    Done,
    /// They are only listed.
    Listed,
}

/// Paths without links, each once.
#[derive(Default)]
struct Collected {
    trails: Symlinks,
    holding: Holding,
    /// With [`Holding::Listed`], what would be held.
    held: BTreeSet<Utf8PathBuf>,
    /// The first path whose place could not be held.
    not_held: Option<SandboxError>,
    ground: Arc<KeptGround>,
    writable: BTreeSet<Utf8PathBuf>,
    read_only: BTreeSet<Utf8PathBuf>,
    /// On the way to what is read-only.
    links: BTreeSet<Utf8PathBuf>,
    hidden: BTreeSet<Utf8PathBuf>,
    visible: BTreeSet<Utf8PathBuf>,
    /// Paths that are not text.
    unnamed_read_only: Vec<PathBuf>,
    unnamed_hidden: Vec<PathBuf>,
    /// The working directories, and what git keeps of them.
    worked_in: BTreeSet<Utf8PathBuf>,
}

impl Collected {
    /// Shows a folder in which the run works, whatever hides a folder above it.
    fn work_in(&mut self, path: &Utf8Path) {
        self.show(path);
        let place = self.trails.place(path);
        self.worked_in.insert(place);
    }

    fn show(&mut self, path: &Utf8Path) {
        let place = self.trails.place(path);
        // What is not there cannot be shown, and nobody works in the whole system.
        if place != "/" && self.exists(&place) {
            self.visible.insert(place);
        }
    }

    fn show_all<'a>(&mut self, paths: impl IntoIterator<Item = &'a Utf8PathBuf>) {
        for path in paths {
            self.show(path);
        }
    }

    fn write(&mut self, path: &Utf8Path) {
        let place = self.trails.place(path);
        if place != "/" && self.exists(&place) && !footprint::is_read_only(place.as_std_path()) {
            self.writable.insert(place);
        }
    }

    fn restrict_all(&mut self, paths: impl IntoIterator<Item = Utf8PathBuf>) {
        for path in paths {
            // Of a link both are kept: the place that it leads to, and in the folder above it the link.
            self.pin_links(&path);
            self.read_only.insert(self.trails.place(&path));
        }
    }

    /// Keeps the links on the way to a path from being replaced.
    fn pin_links(&mut self, path: &Utf8Path) {
        self.links.extend(self.trails.of(path).iter().map(|step| step.link.clone()));
    }

    fn is_writable(&self, path: &Utf8Path) -> bool {
        self.writable.iter().any(|folder| path.starts_with(folder))
    }

    /// The links that a command could replace.
    fn links_to_pin(&self) -> BTreeSet<Utf8PathBuf> {
        let could = |link: &&Utf8PathBuf| link.parent().is_some_and(|folder| self.is_writable(folder));
        self.links.iter().filter(could).cloned().collect()
    }

    /// Hides what a rule denies, also a working directory.
    fn deny(&mut self, path: &Utf8Path) {
        // Without its links the path would lead elsewhere, and what it led to would have no denied name.
        self.pin_links(path);
        let place = self.trails.place(path);
        if self.exists(&place) {
            self.visible.retain(|path| !path.starts_with(&place));
            self.hidden.insert(place);
        }
    }

    /// Hides secrets, also where they would be shown for another reason, but for the working directories.
    fn hide(&mut self, paths: &[Utf8PathBuf]) {
        for place in self.ground.places(paths, &self.trails).iter() {
            if self.worked_in.contains(place) {
                continue;
            }
            let kept = |path: &Utf8PathBuf| self.worked_in.contains(path) || !path.starts_with(place);
            self.visible.retain(kept);
            self.hidden.insert(place.clone());
        }
    }

    /// Shows what is hidden, but for what rules deny. A link in a hidden folder is shown with the place that it leads to.
    fn show_hidden(&mut self, paths: &[Utf8PathBuf], denied: &BTreeSet<Utf8PathBuf>) {
        for path in paths {
            let place = self.trails.place(path);
            let is_denied = |path: &Utf8Path| denied.iter().any(|denied| path.starts_with(denied));
            if is_denied(&place) || is_denied(path) {
                continue;
            }
            if place == *path {
                self.hidden.remove(&place);
                self.show(&place);
            } else if paths.contains(&place) && path.is_symlink() {
                // Its folder may be reached by a link as well.
                let folder = path.parent().map(|folder| self.trails.place(folder));
                self.visible.extend(folder.zip(path.file_name()).map(|(folder, name)| folder.join(name)));
            }
        }
    }

    /// Hides folders with what is personal, but not those in which the run works or that it works inside of.
    fn hide_unless_worked_in(&mut self, paths: &[Utf8PathBuf]) {
        let outside = |path: &&Utf8PathBuf| {
            let place = self.trails.place(path);
            !self.visible.iter().any(|folder| place.starts_with(folder))
        };
        let hidden: Vec<Utf8PathBuf> =
            paths.iter().filter(outside).map(|path| self.trails.place(path)).collect();
        let hidden: Vec<Utf8PathBuf> = hidden.into_iter().filter(|path| self.exists(path)).collect();
        self.hidden.extend(hidden);
    }

    /// Denies a path that is not text, or what it leads to.
    fn deny_unnamed(&mut self, path: &Path, reading: bool) {
        footprint::note_place(path);
        let Ok(place) = path.canonicalize() else { return };
        if reading { self.unnamed_hidden.push(place) } else { self.unnamed_read_only.push(place) }
    }

    /// Whether something is at a place.
    fn exists(&self, place: &Utf8Path) -> bool {
        self.ground.exists(place.as_std_path())
    }
}
