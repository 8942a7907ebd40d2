//! Landlock rules for one command. Takes its sandbox, gives a ruleset that the command's process applies to itself
//! just before it becomes the program.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, Scope,
};
use rustix::fs::FileType;

use super::mounts::{covered, existing, place};
use super::{Form, PathError, Sandbox, at, kernel};

/// The newest version whose rights are used; older kernels enforce those that they know.
const NEWEST: ABI = ABI::V6;
/// Devices that any program may use.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Terminals of the command's own, where it has some.
const TERMINALS: [&str; 2] = ["/dev/ptmx", "/dev/pts"];
/// What no rule allows as a whole: root could read disks there, and others could read what is typed at their terminals.
const ALL_DEVICES: &str = "/dev";

/// The ruleset. `None` where the kernel has no Landlock.
pub(crate) fn ruleset(sandbox: &Sandbox, form: Form) -> Result<Option<OwnedFd>, PathError> {
    let mut rules = LandlockRules::new()?;
    let devices = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev;
    for path in DEVICES {
        rules.allow_if_there(Path::new(path), devices)?;
    }
    match form {
        Form::Namespaces | Form::Bubblewrap => with_mounts(&mut rules, sandbox, devices)?,
        Form::Landlock => alone(&mut rules, sandbox)?,
    }
    Ok(rules.made.into())
}

/// What the rules for Landlock alone were made from: they name files, and what those are called can change.
pub(crate) struct RulesetInputs {
    /// The paths of the sandbox.
    paths: Vec<(PathBuf, Option<FileIdentity>)>,
    /// The folders that were listed.
    folders: Vec<(PathBuf, Option<FolderStamp>)>,
    /// Whether one of these changed so shortly before that its time would not tell of another change.
    is_fresh: bool,
}

/// A folder, and when its entries changed last.
type FolderStamp = (FileIdentity, i64, i64);

/// Times of changes are not finer than this on any usual file system, in nanoseconds.
const GRAIN: i64 = 50_000_000;

impl RulesetInputs {
    /// To be taken before the rules are made.
    pub fn take(sandbox: &Sandbox) -> Self {
        let restricted = sandbox.read_only.iter().chain(&sandbox.hidden);
        let allowed = sandbox.writable.iter().chain(&sandbox.visible).chain(&sandbox.tmp);
        let paths = restricted.clone().chain(allowed).map(|path| (path.clone(), identity_at(path)));
        let above: BTreeSet<&Path> = restricted.flat_map(|path| path.ancestors().skip(1)).collect();
        let above = above.into_iter().chain([Path::new("/")]);
        let folders: Vec<(PathBuf, Option<FolderStamp>)> =
            above.map(|folder| (folder.to_owned(), stamp_at(folder))).collect();
        let now = now();
        let is_fresh = folders.iter().any(|(_, stamp)| {
            stamp.is_some_and(|(_, seconds, fraction)| {
                now.saturating_sub(seconds.saturating_mul(1_000_000_000).saturating_add(fraction)) < GRAIN
            })
        });
        Self { paths: paths.collect(), folders, is_fresh }
    }

    /// Whether the rules would be the same now.
    pub fn holds(&self) -> bool {
        !self.is_fresh
            && self.paths.iter().all(|(path, identity)| identity_at(path) == *identity)
            && self.folders.iter().all(|(folder, stamp)| stamp_at(folder) == *stamp)
    }
}

/// What a path names. A link on the way to it leads to the same file, or to another one, which counts as a change.
fn identity_at(path: &Path) -> Option<FileIdentity> {
    rustix::fs::lstat(path).ok().map(|about| (about.st_dev, about.st_ino))
}

fn stamp_at(folder: &Path) -> Option<FolderStamp> {
    let about = rustix::fs::lstat(folder).ok()?;
    Some(((about.st_dev, about.st_ino), about.st_ctime, i64::try_from(about.st_ctime_nsec).ok()?))
}

/// The time since 1970 in nanoseconds.
fn now() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "it is compared with the times of files, not recorded")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether the kernel enforces such rules.
pub(crate) fn is_supported() -> bool {
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create);
    ruleset.is_ok_and(|ruleset| Option::<OwnedFd>::from(ruleset).is_some())
}

/// All that may be done to files that may be written. Devices cannot be made.
fn changing() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar)
}

/// The rules where mounts hide files and keep them from being written.
fn with_mounts(
    rules: &mut LandlockRules,
    sandbox: &Sandbox,
    devices: BitFlags<AccessFs>,
) -> Result<(), PathError> {
    rules.allow_if_there(Path::new("/"), AccessFs::from_read(NEWEST))?;
    for path in sandbox.writable.iter().chain(&sandbox.tmp) {
        rules.allow(path, changing())?;
    }
    for path in covered(sandbox).0 {
        rules.allow_if_there(Path::new(path), changing())?;
    }
    for path in TERMINALS {
        rules.allow_if_there(Path::new(path), devices)?;
    }
    Ok(())
}

/// The rules where there is nothing else. Landlock has no rule that takes away, and a rule for a folder holds for all
/// below it. So in each folder above a restricted path all others are allowed one by one, and nothing can be made there.
fn alone(rules: &mut LandlockRules, sandbox: &Sandbox) -> Result<(), PathError> {
    let (read_only, mut hidden) = (Restricted::find(&sandbox.read_only)?, Restricted::find(&sandbox.hidden)?);
    rules.allow_if_there(Path::new("/"), AccessFs::ReadDir | AccessFs::Execute)?;
    let mut written = read_only.with(&hidden);
    written.paths.extend(sandbox.links.iter().map(PathBuf::as_path));
    hidden.paths.push(Path::new(ALL_DEVICES));
    let everything = PathBuf::from("/");
    for path in all_but(&hidden.paths, sandbox.visible.iter().chain([&everything])) {
        rules.allow_entry(&path, AccessFs::ReadFile.into(), &hidden.files)?;
    }
    for path in all_but(&written.paths, sandbox.writable.iter().chain(&sandbox.tmp)) {
        if sandbox.writable.contains(&path) || sandbox.tmp.as_ref() == Some(&path) {
            rules.allow(&path, changing())?;
        } else {
            rules.allow_entry(&path, changing(), &written.files)?;
        }
    }
    Ok(())
}

/// Paths that rules must leave out.
struct Restricted<'a> {
    paths: Vec<&'a Path>,
    /// What they name now.
    files: Vec<FileIdentity>,
}

impl<'a> Restricted<'a> {
    /// Fails for a path that is a link, or is reached by one: leaving it out would leave out something else.
    fn find(paths: &'a [PathBuf]) -> Result<Self, PathError> {
        let places: Result<Vec<_>, _> = paths.iter().map(|path| existing(path).map_err(at(path))).collect();
        let files = places?.iter().flatten().filter_map(identity).collect();
        Ok(Self { paths: paths.iter().map(PathBuf::as_path).collect(), files })
    }

    fn with(&self, others: &Self) -> Self {
        Self {
            paths: [&self.paths[..], &others.paths].concat(),
            files: [&self.files[..], &others.files].concat(),
        }
    }
}

/// The shortest list of paths that covers these folders but for some.
fn all_but<'a>(except: &[&Path], folders: impl Iterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let above: BTreeSet<&Path> = except.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    let mut left: Vec<PathBuf> = folders.cloned().collect();
    let mut found = Vec::new();
    while let Some(path) = left.pop() {
        if except.contains(&path.as_path()) {
            continue;
        }
        if above.contains(path.as_path()) {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else {
            found.push(path);
        }
    }
    found
}

/// A ruleset that is being written.
struct LandlockRules {
    made: RulesetCreated,
    /// The folder of the latest entry: the next one mostly lies in it too.
    folder: Option<(PathBuf, OwnedFd)>,
}

impl LandlockRules {
    fn new() -> Result<Self, PathError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(NEWEST))
            .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
            .and_then(Ruleset::create);
        let made = rules.map_err(|_| at(Path::new(""))(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))?;
        Ok(Self { made, folder: None })
    }

    /// Allows this below a path that contains no symbolic link. What is not there needs no rule.
    fn allow(&mut self, path: &Path, access: BitFlags<AccessFs>) -> Result<(), PathError> {
        match existing(path).map_err(at(path))? {
            Some(place) => self.add(&place, access).map_err(at(path)),
            None => Ok(()),
        }
    }

    /// The same for a path that was not requested: a link is skipped.
    fn allow_if_there(
        &mut self,
        path: &Path,
        access: impl Into<BitFlags<AccessFs>>,
    ) -> Result<(), PathError> {
        place(path).map_or(Ok(()), |place| self.add(&place, access.into()).map_err(at(path)))
    }

    /// The same for an entry of a folder above restricted paths. A rule covers a file under all its names: one for
    /// another name of a restricted file would cover both.
    fn allow_entry(
        &mut self,
        path: &Path,
        access: BitFlags<AccessFs>,
        restricted: &[FileIdentity],
    ) -> Result<(), PathError> {
        let Ok(entry) = self.open(path) else { return Ok(()) };
        if identity(&entry).is_none_or(|entry| restricted.contains(&entry)) {
            return Ok(());
        }
        self.add(&entry, access).map_err(at(path))
    }

    /// Opens an entry of a folder, neither of which is reached by a symbolic link.
    fn open(&mut self, entry: &Path) -> io::Result<OwnedFd> {
        let (Some(above), Some(name)) = (entry.parent(), entry.file_name()) else { return place(entry) };
        let known = self.folder.take_if(|(folder, _)| folder == above).map(|(_, folder)| Ok(folder));
        let folder = known.unwrap_or_else(|| place(above))?;
        let opened = kernel::open_entry(folder.as_fd(), name);
        self.folder = Some((above.to_owned(), folder));
        opened
    }

    fn add(&mut self, place: &OwnedFd, access: BitFlags<AccessFs>) -> io::Result<()> {
        let about = rustix::fs::fstat(place)?;
        let is_folder = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
        let access = if is_folder { access } else { access & AccessFs::from_file(NEWEST) };
        let added: Result<_, RulesetError> =
            (&mut self.made).add_rule(PathBeneath::new(place.as_fd(), access));
        added.map(drop).map_err(io::Error::other)
    }
}

/// The identity of a file, independent of its name: its file system and its number there.
type FileIdentity = (u64, u64);

fn identity(place: &OwnedFd) -> Option<FileIdentity> {
    rustix::fs::fstat(place).ok().map(|about| (about.st_dev, about.st_ino))
}
