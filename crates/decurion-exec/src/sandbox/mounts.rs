//! The files that one command sees. Takes its sandbox and the shared namespaces, works in the command's own mount
//! namespace: afterwards `writable` can be written, `hidden` cannot be read, and a folder above either cannot be moved
//! away.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::enter::{Base, attach_at, bare_copy_of, copy_of};
use super::kernel::{self, NO_DEVICES, READ_ONLY};
use super::{PathError, Sandbox, at};

/// What the private temporary folder of a command stands for.
pub const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// The last of these, which is for memory that processes share: it is always the command's own.
const SHARED_MEMORY: &[&str] = &["/dev/shm"];
const FILES: &[&str] = &["/tmp", "/var/tmp"];

/// The folders in whose place a command's own private folder is, and those in whose place another one is shown to it.
pub(crate) fn covered(sandbox: &Sandbox) -> (&'static [&'static str], &'static [&'static str]) {
    match (&sandbox.tmp, &sandbox.shown_tmp) {
        (None, _) => (&[], &[]),
        (Some(_), None) => (&TEMPORARY, &[]),
        (Some(_), Some(_)) => (SHARED_MEMORY, FILES),
    }
}

/// A view that was made, and what it depends on.
pub(crate) struct View {
    /// The mount that each changed path led to, or that there was none.
    found: Vec<(CString, Option<u64>)>,
    /// Whether a private folder covers those for temporary files.
    covers: bool,
}

impl View {
    /// Whether this is still as it was made. It is not once a process outside has replaced or made one of its paths:
    /// the mount there is gone then, or never existed. Nor is it once its private folder was removed.
    pub fn holds(&self) -> bool {
        self.found.iter().all(|(path, mount)| mount_at(path) == *mount)
            && (!self.covers || TEMPORARY.iter().all(|folder| is_linked(folder)))
    }
}

fn mount_at(path: &CStr) -> Option<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::MNT_ID).ok().map(|found| found.stx_mnt_id)
}

/// Whether a folder, if it exists, was not removed by a process that reaches it under another name.
fn is_linked(folder: &str) -> bool {
    rustix::fs::stat(folder).map_or(true, |about| about.st_nlink > 0)
}

/// Makes the view. Called in the first process of the command's namespaces.
pub(crate) fn make(sandbox: &Sandbox, base: &Base) -> Result<View, PathError> {
    // All of this before anything is covered: a working directory can lie in a folder that is hidden.
    let stand_ins = StandIns::open(base).map_err(at(Path::new("/dev/null")))?;
    let steps = steps(sandbox, base)?;
    let shown = cover_temporary(sandbox, base)?;
    let mut emptied: Vec<(&Path, OwnedFd)> = Vec::new();
    for (index, MountStep { path, change }) in steps.iter().enumerate() {
        let is_below = |step: &MountStep<'_>| step.change.is_shown() && step.path.starts_with(path);
        let made = match change {
            MountChange::Show(mount) => {
                let covered = sandbox.tmp.is_some() && is_temporary(path)
                    || emptied.iter().any(|(folder, _)| path.starts_with(folder));
                show(path, mount, covered).and_then(|()| open_mounts_below(path, sandbox, base))
            }
            MountChange::ShowLink(target) if emptied.iter().any(|(folder, _)| path.starts_with(folder)) => {
                make_link(path, target)
            }
            MountChange::ShowLink(_) => Ok(()),
            MountChange::Hide if steps[index + 1..].iter().any(is_below) => empty(path).map(|mount| {
                emptied.extend(mount.map(|mount| (*path, mount)));
            }),
            MountChange::Hide => hide(path, &stand_ins),
            MountChange::Pin => bind(path, 0),
            MountChange::ReadOnly => bind(path, READ_ONLY),
            MountChange::PinLink => pin_link(path),
        };
        made.map_err(at(path))?;
    }
    for (path, mount) in emptied.iter().chain(&shown) {
        kernel::set_this_mount(mount.as_fd(), READ_ONLY).map_err(at(path))?;
    }
    let names = steps.iter().filter_map(|step| text(step.path.as_os_str()).ok());
    let found = names.map(|path| (mount_at(&path), path)).map(|(mount, path)| (path, mount)).collect();
    Ok(View { found, covers: sandbox.tmp.is_some() })
}

fn is_temporary(path: &Path) -> bool {
    TEMPORARY.iter().any(|folder| path.starts_with(folder))
}

/// One path of the view that is not as it is outside.
struct MountStep<'a> {
    path: &'a Path,
    change: MountChange,
}

enum MountChange {
    /// This mount of it is put there: it can be written, or would be covered otherwise.
    Show(OwnedFd),
    /// It is a symbolic link to this, and is made again in a folder that is hidden.
    ShowLink(PathBuf),
    /// It stays as it is, and cannot be renamed or removed.
    Pin,
    ReadOnly,
    /// It is a symbolic link, and cannot be renamed, removed or replaced.
    PinLink,
    Hide,
}

impl MountChange {
    fn is_shown(&self) -> bool {
        matches!(self, Self::Show(_) | Self::ShowLink(_))
    }
}

/// All changes, folders before what they contain. Folders between a writable one and a restricted path are pinned: if
/// they could be moved, the path could be too, and the next command would find it under a name without rules.
fn steps<'a>(sandbox: &'a Sandbox, base: &Base) -> Result<Vec<MountStep<'a>>, PathError> {
    let open = |(path, plan): (&'a Path, PathPlan)| {
        let mount = match plan {
            PathPlan::Write => writable(path, base),
            PathPlan::Show => match std::fs::read_link(path) {
                Ok(target) => return Ok(Some(MountStep { path, change: MountChange::ShowLink(target) })),
                Err(_) => readable(path),
            },
            PathPlan::Pin => return Ok(Some(MountStep { path, change: MountChange::Pin })),
            PathPlan::ReadOnly => return Ok(Some(MountStep { path, change: MountChange::ReadOnly })),
            PathPlan::PinLink => return Ok(Some(MountStep { path, change: MountChange::PinLink })),
            PathPlan::Hide => return Ok(Some(MountStep { path, change: MountChange::Hide })),
        };
        Ok(mount.map_err(at(path))?.map(|mount| MountStep { path, change: MountChange::Show(mount) }))
    };
    plan(sandbox).into_iter().map(open).filter_map(Result::transpose).collect()
}

/// What to do with a path. If there are several for one, the strictest comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathPlan {
    Write,
    Show,
    Pin,
    ReadOnly,
    /// Of a symbolic link.
    PinLink,
    Hide,
}

/// The paths of [`steps`], in their order.
pub(crate) fn plan(sandbox: &Sandbox) -> Vec<(&Path, PathPlan)> {
    let mut steps: Vec<(&Path, PathPlan)> =
        sandbox.writable.iter().map(|path| (path.as_path(), PathPlan::Write)).collect();
    let temporary = TEMPORARY.iter().filter(|_| sandbox.tmp.is_some()).map(Path::new);
    let covers: Vec<&Path> = sandbox.hidden.iter().map(PathBuf::as_path).chain(temporary).collect();
    // What lies in a writable folder is in sight with it, unless something between them covers it.
    let covered = |path: &&PathBuf| {
        let depth = |folder: &Path| path.starts_with(folder).then(|| folder.components().count());
        let covered = covers
            .iter()
            .filter(|folder| **folder != path.as_path())
            .filter_map(|folder| depth(folder))
            .max();
        let open = sandbox.writable.iter().filter_map(|folder| depth(folder)).max();
        covered.is_some() && open < covered
    };
    steps.extend(sandbox.visible.iter().filter(covered).map(|path| (path.as_path(), PathPlan::Show)));
    let restricted = sandbox.read_only.iter().chain(&sandbox.links).chain(&sandbox.hidden);
    let restricted: BTreeSet<&Path> = restricted.map(PathBuf::as_path).collect();
    let is_writable = |path: &Path| sandbox.writable.iter().any(|folder| path.starts_with(folder));
    let above = |path: &&'_ Path| path.ancestors().skip(1).take_while(|above| is_writable(above)).count();
    let pinned: BTreeSet<&Path> =
        restricted.iter().flat_map(|path| path.ancestors().skip(1).take(above(path))).collect();
    let pinned = pinned.into_iter().filter(|path| !sandbox.writable.iter().any(|folder| folder == path));
    steps.extend(pinned.map(|path| (path, PathPlan::Pin)));
    steps.extend(sandbox.read_only.iter().map(|path| (path.as_path(), PathPlan::ReadOnly)));
    steps.extend(sandbox.links.iter().map(|path| (path.as_path(), PathPlan::PinLink)));
    steps.extend(sandbox.hidden.iter().map(|path| (path.as_path(), PathPlan::Hide)));
    steps.sort_by_key(|(path, plan)| (path.components().count(), *plan));
    steps
}

/// A mount of a path that can be written if it can be outside; none if it is not there. What is mounted below it is
/// not opened with it.
fn writable(path: &Path, base: &Base) -> io::Result<Option<OwnedFd>> {
    let Some(mount) = readable(path)? else { return Ok(None) };
    if !base.is_read_only(path) {
        kernel::make_writable(mount.as_fd())?;
    }
    Ok(Some(mount))
}

/// Lets what is mounted below a writable path be written too, where that is possible outside.
fn open_mounts_below(path: &Path, sandbox: &Sandbox, base: &Base) -> io::Result<()> {
    if !sandbox.writable.iter().any(|folder| folder == path) {
        return Ok(());
    }
    for point in base.writable_below(path) {
        // It may be covered by now, or lie on a removed path.
        let Ok(place) = place(point) else { continue };
        match kernel::make_writable(place.as_fd()) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn readable(path: &Path) -> io::Result<Option<OwnedFd>> {
    existing(path)?.map(copy_of).transpose()
}

/// Puts private folders in place of all folders for temporary files. Gives the mounts that are only shown: they are to be
/// made read-only once the places of other mounts were made there.
fn cover_temporary<'a>(sandbox: &'a Sandbox, base: &Base) -> Result<Vec<(&'a Path, OwnedFd)>, PathError> {
    let Some(tmp) = &sandbox.tmp else { return Ok(Vec::new()) };
    let open = |path: &'a PathBuf| {
        let mount = writable(path, base).and_then(|mount| mount.ok_or(io::ErrorKind::NotFound.into()));
        mount.map(|mount| (path.as_path(), mount)).map_err(at(path))
    };
    // Both before one covers the other.
    let (own, shown) = (open(tmp)?, sandbox.shown_tmp.as_ref().map(open).transpose()?);
    let (of_own, of_shown) = covered(sandbox);
    cover(of_own, own.1).map_err(at(tmp))?;
    let Some((path, shown)) = shown else { return Ok(Vec::new()) };
    let mounts = cover(of_shown, shown).map_err(at(path))?;
    Ok(mounts.into_iter().map(|mount| (path, mount)).collect())
}

/// Puts a mount in place of these folders, as far as they are there. Kernels before 6.15 copy no mount that is attached
/// nowhere, so the copies are made from the first place.
fn cover(folders: &[&str], mount: OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut attached = Vec::new();
    let mut next = mount;
    for place in folders.iter().filter_map(|folder| place(Path::new(folder)).ok()) {
        attach_at(&next, &place)?;
        let copy = copy_of(&next)?;
        attached.push(std::mem::replace(&mut next, copy));
    }
    Ok(attached)
}

/// Makes an empty file or folder to put this mount on, with the folders above it.
fn make_place(path: &Path, mount: &OwnedFd) -> io::Result<()> {
    if is_folder(mount)? {
        return std::fs::create_dir_all(path);
    }
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::fs::OpenOptions::new().create(true).append(true).open(path).map(drop)
}

fn make_link(path: &Path, target: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    std::os::unix::fs::symlink(target, path)
}

fn is_folder(place: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(place)?.st_mode) == FileType::Directory)
}

/// What is put in place of hidden files and folders.
struct StandIns {
    folder: OwnedFd,
    /// The null device. Mounted where devices cannot be opened, it cannot be read, not even by root.
    file: OwnedFd,
}

impl StandIns {
    fn open(base: &Base) -> io::Result<Self> {
        Ok(Self { folder: kernel::open_place(base.empty)?, file: kernel::open_place(c"/dev/null")? })
    }
}

/// Puts a mount at its path. Below a cover the path is made first, unless a folder above it was shown there before: that
/// has it, and is perhaps read-only.
fn show(path: &Path, mount: &OwnedFd, covered: bool) -> io::Result<()> {
    if covered && existing(path)?.is_none() {
        make_place(path, mount)?;
    }
    attach_at(mount, &place(path)?)
}

/// Mounts a path on itself, with these attributes.
fn bind(path: &Path, attributes: u64) -> io::Result<()> {
    let Some(place) = existing(path)? else { return Ok(()) };
    let mount = copy_of(&place)?;
    if attributes != 0 {
        kernel::set_mount(mount.as_fd(), attributes)?;
    }
    attach_at(&mount, &place)
}

/// Mounts a symbolic link on itself: a mount point is neither removed nor renamed. Something else that took its place
/// since the sandbox was decided on becomes read-only.
fn pin_link(path: &Path) -> io::Result<()> {
    let link = match kernel::open_link(&text(path.as_os_str())?) {
        Ok(link) => link,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mount = bare_copy_of(&link)?;
    kernel::set_mount(mount.as_fd(), READ_ONLY)?;
    attach_at(&mount, &link)
}

fn hide(path: &Path, stand_ins: &StandIns) -> io::Result<()> {
    let Some(place) = existing(path)? else { return Ok(()) };
    let mount = bare_copy_of(if is_folder(&place)? { &stand_ins.folder } else { &stand_ins.file })?;
    kernel::set_mount(mount.as_fd(), READ_ONLY | NO_DEVICES)?;
    attach_at(&mount, &place)
}

/// Puts an empty folder in which places can be made in place of one.
fn empty(path: &Path) -> io::Result<Option<OwnedFd>> {
    let Some(place) = existing(path)? else { return Ok(None) };
    let mount = kernel::new_folder()?;
    attach_at(&mount, &place)?;
    Ok(Some(mount))
}

/// Opens a path; none if it is not there, or lies in a folder of another account that this one cannot enter.
pub(crate) fn existing(path: &Path) -> io::Result<Option<OwnedFd>> {
    match place(path) {
        Ok(place) => Ok(Some(place)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_foreign(path) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether another account keeps this one from a path. What this one has closed itself, a command could open again.
fn is_foreign(path: &Path) -> bool {
    let closed = path.ancestors().skip(1).find_map(|above| rustix::fs::lstat(above).ok());
    closed.is_some_and(|closed| closed.st_uid != rustix::process::geteuid().as_raw())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR))
}

/// Opens a path that contains no symbolic link.
pub(crate) fn place(path: &Path) -> io::Result<OwnedFd> {
    kernel::open_place(&text(path.as_os_str())?)
}

fn text(path: &OsStr) -> io::Result<CString> {
    CString::new(path.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
