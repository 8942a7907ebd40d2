//! Control groups for commands. Takes the guard process, gives each reaper a group that is born with it; what all
//! commands of a session may use together is a bound on the folder above. Where the system lets us make none, the reapers
//! watch their commands themselves (`meter.rs`).
//!
//! Moving a process takes milliseconds. So the guard itself always lives in the group of the next reaper, which starts
//! its life there, and moves on after each fork: no command waits for it.
//!
//! A session's folder is named for the pid namespace, the process, the time at which that began and the bound. Each guard removes its
//! own groups; those of a session that was killed together with its guards are removed at the next start.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;

use super::meter::{Bounds, number_after};
use super::sweep;

/// What the names of our folders begin with.
const PREFIX: &str = "decurion";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The second version: one hierarchy for everything.
    Unified,
    /// The first version has one for each resource.
    Memory,
    Processes,
}

/// Where groups may be made, found while the file systems are as the machine has them.
pub(super) struct Places(Vec<Place>);

struct Place {
    kind: Kind,
    /// The folder in which that of the session is made.
    parent: OwnedFd,
    /// The list of processes of the group in which this one began, to go back to.
    home: OwnedFd,
}

impl Places {
    /// None where the system has no groups that we may use.
    pub fn find() -> Option<Self> {
        let (mounts, own) =
            (std::fs::read("/proc/self/mountinfo").ok()?, std::fs::read("/proc/self/cgroup").ok()?);
        let folder = |controller: &str| folder_of(controller, &mounts, &own);
        if let (Some(memory), Some(processes)) = (folder("memory"), folder("pids")) {
            let found = [(Kind::Memory, memory), (Kind::Processes, processes)];
            let found = found.map(|(kind, (path, _))| Place::open(kind, &path, &path));
            let found: Vec<Place> = found.into_iter().collect::<io::Result<_>>().ok()?;
            return Some(Self(found));
        }
        let (own, root) = folder("")?;
        let above = own.ancestors().take_while(|path| path.starts_with(&root));
        let parent = above.into_iter().find(|path| has_controllers(path))?;
        Some(Self(vec![Place::open(Kind::Unified, parent, &own).ok()?]))
    }
}

/// Whether groups made in a folder can be bounded.
fn has_controllers(folder: &Path) -> bool {
    let enabled = std::fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    ["memory", "pids"].iter().all(|name| enabled.split_ascii_whitespace().any(|found| found == *name))
}

impl Place {
    fn open(kind: Kind, parent: &Path, own: &Path) -> io::Result<Self> {
        let flags = OFlags::CLOEXEC | OFlags::DIRECTORY;
        let parent = rustix::fs::open(parent, flags, Mode::empty())?;
        let home =
            rustix::fs::open(own.join("cgroup.procs"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { kind, parent, home: home? })
    }
}

/// The folder of this process's group for a controller of the first version, or in the second one if it has no name; and
/// where that hierarchy is mounted.
fn folder_of(controller: &str, mounts: &[u8], own: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let is_unified = controller.is_empty();
    let lines = |text: &'_ [u8]| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let path = lines(own).iter().find_map(|line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (id, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = if is_unified { id == b"0" } else { lists(names, controller) };
        fits.then(|| PathBuf::from(OsStr::from_bytes(path)))
    })?;
    let (root, point) = lines(mounts).iter().find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (kind, options) = (*fields.get(dash + 1)?, *fields.get(dash + 3)?);
        let fits =
            if is_unified { kind == b"cgroup2" } else { kind == b"cgroup" && lists(options, controller) };
        let path = |at: usize| fields.get(at).map(|path| PathBuf::from(OsStr::from_bytes(path)));
        fits.then(|| path(3).zip(path(4)))?
    })?;
    Some((point.join(path.strip_prefix(root).ok()?), point))
}

fn lists(names: &[u8], wanted: &str) -> bool {
    names.split(|byte| *byte == b',').any(|name| name == wanted.as_bytes())
}

/// How much memory this process can have at most by the groups it is in.
pub(super) fn memory_allowed() -> Option<u64> {
    let (mounts, own) =
        (std::fs::read("/proc/self/mountinfo").ok()?, std::fs::read("/proc/self/cgroup").ok()?);
    if let Some((folder, _)) = folder_of("memory", &mounts, &own) {
        let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
        return number_after(&stat, "hierarchical_memory_limit");
    }
    let (own, root) = folder_of("", &mounts, &own)?;
    let above = own.ancestors().take_while(|path| path.starts_with(&root));
    above.filter_map(|path| std::fs::read_to_string(path.join("memory.max")).ok()?.trim().parse().ok()).min()
}

/// The groups of one guard.
pub(super) struct Groups {
    folders: Rc<[Folder]>,
    bounds: Bounds,
    made: u32,
    /// The one of the next reaper, in which the guard is.
    next: Option<Group>,
}

/// The session's folder in one hierarchy.
struct Folder {
    place: Place,
    name: String,
    open: OwnedFd,
}

impl Groups {
    /// Makes the session's folders and the first group, and moves the guard there. None where that is refused.
    pub fn make(places: Places, bounds: Bounds) -> Option<Self> {
        let namespace = rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino;
        let session = rustix::process::getppid()?;
        let name =
            format!("{PREFIX}-{namespace}-{session}-{}-{}", sweep::began(session)?, bounds.memory >> 20);
        for place in &places.0 {
            remove_stale(place.parent.as_fd(), namespace);
        }
        let folders = places.0.into_iter().map(|place| Folder::make(place, &name, bounds));
        let folders: Vec<Folder> = folders.collect::<io::Result<_>>().ok()?;
        let mut groups = Self { folders: folders.into(), bounds, made: 0, next: None };
        groups.advance();
        groups.next.is_some().then_some(groups)
    }

    /// The group that the next reaper will be born in.
    pub fn next(&self) -> Option<&Group> {
        self.next.as_ref()
    }

    /// Gives away the group of a reaper that was just born, and moves the guard to a new one. Where that fails there is
    /// no next: the groups are to be given up.
    pub fn advance(&mut self) -> Option<Group> {
        self.made += 1;
        let name = format!("{}-{}", rustix::process::getpid(), self.made);
        let made = Group::make(&self.folders, name, self.bounds).ok();
        std::mem::replace(&mut self.next, made)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in self.folders.iter() {
            let _ = rustix::io::write(&folder.place.home, b"0");
        }
        self.next = None;
        for folder in self.folders.iter() {
            // The last guard of the session removes it.
            let _ = unlinkat(&folder.place.parent, &folder.name, AtFlags::REMOVEDIR);
        }
    }
}

impl Folder {
    fn make(place: Place, name: &str, bounds: Bounds) -> io::Result<Self> {
        let folder = open_new(place.parent.as_fd(), name)?;
        let memory = bounds.memory.to_string();
        match place.kind {
            Kind::Unified => {
                set(folder.as_fd(), "cgroup.subtree_control", b"+memory +pids")?;
                set(folder.as_fd(), "memory.max", memory.as_bytes())?;
            }
            Kind::Memory => {
                // Kernels that know nothing else do not have it, or refuse it.
                let _ = set(folder.as_fd(), "memory.use_hierarchy", b"1");
                set(folder.as_fd(), "memory.limit_in_bytes", memory.as_bytes())?;
            }
            Kind::Processes => {}
        }
        Ok(Self { place, name: name.to_owned(), open: folder })
    }
}

/// The group of one reaper and its commands. Dropping it removes it, once no process is in it.
pub(super) struct Group {
    name: String,
    folders: Rc<[Folder]>,
    /// Where the kernel counts the processes that it killed for want of memory.
    pub memory: Option<OwnedFd>,
    /// Where it counts the processes that it refused.
    pub processes: Option<OwnedFd>,
    /// Where the bound on processes is set.
    pub bound: Option<OwnedFd>,
    /// The list of its processes.
    pub list: Option<OwnedFd>,
}

impl Group {
    /// Makes one and moves this process there.
    fn make(folders: &Rc<[Folder]>, name: String, bounds: Bounds) -> io::Result<Self> {
        let mut group =
            Self { name, folders: folders.clone(), memory: None, processes: None, bound: None, list: None };
        for Folder { place, name, open } in folders.iter() {
            let own = match open_new(open.as_fd(), &group.name) {
                // Another guard of the session, which ended, took it for unused.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    open_new(open_new(place.parent.as_fd(), name)?.as_fd(), &group.name)?
                }
                own => own?,
            };
            let read = |file: &str| openat(&own, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            if place.kind != Kind::Memory {
                let bound = openat(&own, "pids.max", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::write(&bound, bounds.processes.to_string().as_bytes())?;
                group.bound = Some(bound);
                group.processes = Some(read("pids.events")?);
                group.list = Some(read("cgroup.procs")?);
            }
            if place.kind != Kind::Processes {
                let file = if place.kind == Kind::Memory { "memory.oom_control" } else { "memory.events" };
                group.memory = Some(read(file)?);
            }
            set(own.as_fd(), "cgroup.procs", b"0")?;
        }
        Ok(group)
    }

    /// Lets no process of it make others, so that all can be found and ended.
    pub fn stop_forks(&self) {
        if let Some(bound) = &self.bound {
            stop_forks(bound);
        }
    }
}

/// The same for who has only the file that sets the bound.
pub(super) fn stop_forks(bound: &OwnedFd) {
    let _ = rustix::io::write(bound, b"0");
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in self.folders.iter() {
            let _ = unlinkat(&folder.open, &self.name, AtFlags::REMOVEDIR);
        }
    }
}

/// Makes a folder, if it is not there, and opens it.
fn open_new(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(openat(parent, name, OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())?)
}

fn set(folder: BorrowedFd<'_>, file: &str, value: &[u8]) -> io::Result<()> {
    let file = openat(folder, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, value)?;
    Ok(())
}

/// Removes what sessions left that were killed with their guards. The kernel keeps groups that have processes, and a guard
/// that lives is always in one: so those of living sessions stay, also of pid namespaces whose processes we do not see.
fn remove_stale(parent: BorrowedFd<'_>, namespace: u64) {
    for name in names_in(parent) {
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|owner| owner.strip_prefix('-')) else {
            continue;
        };
        let numbers: Option<Vec<u64>> = owner.split('-').map(|number| number.parse().ok()).collect();
        let Some([of, pid, began, _]) = numbers.as_deref() else { continue };
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        if *of == namespace && pid.and_then(sweep::began) == Some(*began) {
            continue;
        }
        let flags = OFlags::CLOEXEC | OFlags::DIRECTORY;
        if let Ok(folder) = openat(parent, &name, flags, Mode::empty()) {
            for group in names_in(folder.as_fd()) {
                let _ = unlinkat(&folder, &group, AtFlags::REMOVEDIR);
            }
        }
        let _ = unlinkat(parent, &name, AtFlags::REMOVEDIR);
    }
}

/// The names in a folder that can be ours.
fn names_in(folder: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = Dir::read_from(folder) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    names.filter(|name| name.contains('-')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_both_versions() {
        let mounts = b"25 20 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n\
            26 25 0:23 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 none rw\n\
            27 25 0:24 /box /sys/fs/cgroup/cpu rw - cgroup none rw,cpu,cpuacct\n";
        let own = b"3:cpu,cpuacct:/box/one\n0::/user.slice/a:b\n";
        let found = |name: &str| folder_of(name, mounts, own).map(|(folder, _)| folder);
        assert_eq!(found("cpu"), Some("/sys/fs/cgroup/cpu/one".into()));
        assert_eq!(found(""), Some("/sys/fs/cgroup/unified/user.slice/a:b".into()));
        assert_eq!(found("memory"), None);
    }
}
