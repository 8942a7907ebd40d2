//! Control groups for commands. Takes the guard process, gives each reaper a group that is born with it; what all
//! commands of a session may use together is a bound on the folder above. Where the system lets us make none, the reapers
//! watch their commands themselves (`meter.rs`).
//!
//! Moving a process takes milliseconds. So the guard itself always lives in the group of the next reaper, which starts
//! its life there, and moves on after each fork: no command waits for it.
//!
//! A session's folder is named for the pid namespace, the process, the time at which that began and the bound. Each guard removes its
//! own groups; those of a session that was killed together with its guards are removed at the next start.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;

use super::meter::{SessionBounds, number_after};
use super::sweep;

/// What the names of our folders begin with.
const PREFIX: &str = "decurion";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// The second version: one hierarchy for everything.
    Unified,
    /// The first version has one for each resource.
    Memory,
    Processes,
}

/// Where groups may be made, found while the file systems are as the machine has them.
pub(super) struct Places(Vec<GroupPlace>);

struct GroupPlace {
    kind: Hierarchy,
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
            let found = [(Hierarchy::Memory, memory), (Hierarchy::Processes, processes)];
            let found = found.map(|(kind, (path, _))| GroupPlace::open(kind, &path, &path));
            let found: Vec<GroupPlace> = found.into_iter().collect::<io::Result<_>>().ok()?;
            return Some(Self(found));
        }
        let (own, root) = folder("")?;
        let parent = unified_parent(&own, &root)?;
        Some(Self(vec![GroupPlace::open(Hierarchy::Unified, parent, &own).ok()?]))
    }
}

/// The nearest folder above a process's own group, or that itself, in which groups can be bounded.
fn unified_parent<'a>(own: &'a Path, root: &Path) -> Option<&'a Path> {
    own.ancestors().take_while(|path| path.starts_with(root)).find(|path| has_controllers(path))
}

/// Whether groups made in a folder can be bounded.
fn has_controllers(folder: &Path) -> bool {
    let enabled = std::fs::read_to_string(folder.join("cgroup.subtree_control")).unwrap_or_default();
    ["memory", "pids"].iter().all(|name| enabled.split_ascii_whitespace().any(|found| found == *name))
}

impl GroupPlace {
    fn open(kind: Hierarchy, parent: &Path, own: &Path) -> io::Result<Self> {
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
    least_memory(&own, &root)
}

/// The lowest bound of a group of the second version and of those above it.
fn least_memory(own: &Path, root: &Path) -> Option<u64> {
    let above = own.ancestors().take_while(|path| path.starts_with(root));
    above.filter_map(|path| std::fs::read_to_string(path.join("memory.max")).ok()?.trim().parse().ok()).min()
}

/// The groups of one guard.
pub(super) struct Groups {
    folders: Rc<[GroupFolder]>,
    bounds: SessionBounds,
    made: u32,
    /// The one of the next reaper, in which the guard is.
    next: Option<ControlGroup>,
}

/// The session's folder in one hierarchy.
struct GroupFolder {
    place: GroupPlace,
    name: String,
    bounds: SessionBounds,
    open: RefCell<OwnedFd>,
}

impl Groups {
    /// Makes the session's folders and the first group, and moves the guard there. None where that is refused.
    pub fn make(places: Places, bounds: SessionBounds) -> Option<Self> {
        let namespace = rustix::fs::stat("/proc/self/ns/pid").ok()?.st_ino;
        let session = rustix::process::getppid()?;
        let name =
            format!("{PREFIX}-{namespace}-{session}-{}-{}", sweep::began(session)?, bounds.memory >> 20);
        for place in &places.0 {
            remove_stale(place.parent.as_fd(), namespace);
        }
        let folders = places.0.into_iter().map(|place| GroupFolder::make(place, &name, bounds));
        let folders: Vec<GroupFolder> = folders.collect::<io::Result<_>>().ok()?;
        let mut groups = Self { folders: folders.into(), bounds, made: 0, next: None };
        groups.advance();
        groups.next.is_some().then_some(groups)
    }

    /// The group that the next reaper will be born in.
    pub fn next(&self) -> Option<&ControlGroup> {
        self.next.as_ref()
    }

    /// Gives away the group of a reaper that was just born, and moves the guard to a new one. Where that fails there is
    /// no next: the groups are to be given up.
    pub fn advance(&mut self) -> Option<ControlGroup> {
        self.made += 1;
        let name = format!("{}-{}", rustix::process::getpid(), self.made);
        let made = ControlGroup::make(&self.folders, name, self.bounds).ok();
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

impl GroupFolder {
    fn make(place: GroupPlace, name: &str, bounds: SessionBounds) -> io::Result<Self> {
        let open = RefCell::new(place.make(name, bounds)?);
        Ok(Self { place, name: name.to_owned(), bounds, open })
    }

    /// Makes a group in it. Where it is gone, since another guard of the session took it for unused as that one ended, it
    /// is made again, with its bounds.
    fn make_group(&self, name: &str) -> io::Result<OwnedFd> {
        match open_new(self.open.borrow().as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            made => return made,
        }
        self.open.replace(self.place.make(&self.name, self.bounds)?);
        open_new(self.open.borrow().as_fd(), name)
    }
}

impl GroupPlace {
    /// Makes the session's folder, or takes the one that is there, and bounds it.
    fn make(&self, name: &str, bounds: SessionBounds) -> io::Result<OwnedFd> {
        let folder = open_new(self.parent.as_fd(), name)?;
        let memory = bounds.memory.to_string();
        match self.kind {
            Hierarchy::Unified => {
                set(folder.as_fd(), "cgroup.subtree_control", b"+memory +pids")?;
                set(folder.as_fd(), "memory.max", memory.as_bytes())?;
                // It is a bound besides that on memory.
                set_if_there(folder.as_fd(), "memory.swap.max", b"0")?;
            }
            Hierarchy::Memory => {
                // Kernels that know nothing else do not have it, or refuse it.
                let _ = set(folder.as_fd(), "memory.use_hierarchy", b"1");
                set(folder.as_fd(), "memory.limit_in_bytes", memory.as_bytes())?;
                // It is a bound on both together, and cannot be lower than that on memory.
                set_if_there(folder.as_fd(), "memory.memsw.limit_in_bytes", memory.as_bytes())?;
            }
            Hierarchy::Processes => {}
        }
        Ok(folder)
    }
}

/// The group of one reaper and its commands. Dropping it removes it, once no process is in it.
pub(super) struct ControlGroup {
    name: String,
    folders: Rc<[GroupFolder]>,
    /// Where the kernel counts the processes that it killed for want of memory.
    pub memory: Option<OwnedFd>,
    /// Where it counts the processes that it refused.
    pub processes: Option<OwnedFd>,
    /// Where the bound on processes is set.
    pub bound: Option<OwnedFd>,
    /// The list of its processes.
    pub list: Option<OwnedFd>,
}

impl ControlGroup {
    /// Makes one and moves this process there.
    fn make(folders: &Rc<[GroupFolder]>, name: String, bounds: SessionBounds) -> io::Result<Self> {
        let mut group =
            Self { name, folders: folders.clone(), memory: None, processes: None, bound: None, list: None };
        for folder in folders.iter() {
            let (own, kind) = (folder.make_group(&group.name)?, folder.place.kind);
            let read = |file: &str| openat(&own, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            if kind != Hierarchy::Memory {
                let bound = openat(&own, "pids.max", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::write(&bound, bounds.processes.to_string().as_bytes())?;
                group.bound = Some(bound);
                group.processes = Some(read("pids.events")?);
                group.list = Some(read("cgroup.procs")?);
            }
            if kind != Hierarchy::Processes {
                let file = if kind == Hierarchy::Memory { "memory.oom_control" } else { "memory.events" };
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

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for folder in self.folders.iter() {
            let _ = unlinkat(&*folder.open.borrow(), &self.name, AtFlags::REMOVEDIR);
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

/// The same for what a kernel without swap does not have.
fn set_if_there(folder: BorrowedFd<'_>, file: &str, value: &[u8]) -> io::Result<()> {
    match set(folder, file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Removes what sessions left that were killed with their guards. The kernel keeps groups that have processes, and a
/// living guard is always in one: so those of living sessions stay, also of pid namespaces whose processes we do not
/// see.
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

    const BOUNDS: SessionBounds = SessionBounds { memory: 5 << 20, processes: 7 };

    /// A folder of the kernel: files that can be written and read.
    fn folder_with(path: &Path, files: &[(&str, &str)]) {
        std::fs::create_dir_all(path).unwrap();
        for (name, text) in files {
            std::fs::write(path.join(name), text).unwrap();
        }
    }

    /// What the kernel puts in a session's folder and in a group of the second version.
    fn unified(session: &Path) {
        let all = [("cgroup.subtree_control", ""), ("memory.max", ""), ("memory.swap.max", "")];
        folder_with(session, &all);
        let files = ["pids.max", "pids.events", "cgroup.procs", "memory.events"].map(|name| (name, ""));
        folder_with(&session.join("1-1"), &files);
    }

    fn place(kind: Hierarchy, root: &Path) -> GroupPlace {
        folder_with(root, &[("cgroup.procs", "")]);
        GroupPlace::open(kind, root, root).unwrap()
    }

    #[test]
    fn groups_of_the_second_version_are_bounded_also_when_they_are_made_again() {
        let root = tempfile::tempdir().unwrap();
        let session = root.path().join("session");
        let read = |name: &str| std::fs::read_to_string(session.join(name)).unwrap();
        unified(&session);
        let folder = GroupFolder::make(place(Hierarchy::Unified, root.path()), "session", BOUNDS).unwrap();
        let folders: Rc<[GroupFolder]> = [folder].into();
        let bounded = [
            ("cgroup.subtree_control", "+memory +pids"),
            ("memory.max", "5242880"),
            ("memory.swap.max", "0"),
        ];
        assert_eq!(bounded.map(|(name, _)| read(name)), bounded.map(|(_, text)| text.to_owned()));
        for round in 0..2 {
            let group = ControlGroup::make(&folders, "1-1".to_owned(), BOUNDS).unwrap();
            assert_eq!((read("1-1/pids.max"), read("1-1/cgroup.procs")), ("7".into(), "0".into()), "{round}");
            assert!(group.memory.is_some() && group.processes.is_some() && group.list.is_some());
            group.stop_forks();
            assert!(read("1-1/pids.max").contains('0'));
            // As another guard removes it that ends.
            std::fs::remove_dir_all(&session).unwrap();
            unified(&session);
        }
        ControlGroup::make(&folders, "1-1".to_owned(), BOUNDS).unwrap();
        assert_eq!(bounded.map(|(name, _)| read(name)), bounded.map(|(_, text)| text.to_owned()));
        // One that cannot be bounded is given up.
        std::fs::remove_dir_all(&session).unwrap();
        assert!(ControlGroup::make(&folders, "1-1".to_owned(), BOUNDS).is_err());
    }

    #[test]
    fn swap_is_bounded_with_the_memory_where_there_is_some() {
        for swap in [true, false] {
            let root = tempfile::tempdir().unwrap();
            let session = root.path().join("session");
            let names = ["memory.use_hierarchy", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
            let names = &names[..if swap { 3 } else { 2 }];
            folder_with(&session, &names.iter().map(|name| (*name, "")).collect::<Vec<_>>());
            GroupFolder::make(place(Hierarchy::Memory, root.path()), "session", BOUNDS).unwrap();
            for name in &names[1..] {
                assert_eq!(std::fs::read_to_string(session.join(name)).unwrap(), "5242880", "{name}");
            }
        }
    }

    #[test]
    fn groups_of_the_second_version_are_made_where_they_can_be_bounded() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = root.join("delegated/app/own");
        for (path, enabled, most) in [
            ("", "cpu memory pids", "max"),
            ("delegated", "pids memory\n", "9000\n"),
            ("delegated/app", "memory", "8000\n"),
            ("delegated/app/own", "", "max\n"),
        ] {
            folder_with(&root.join(path), &[("cgroup.subtree_control", enabled), ("memory.max", most)]);
        }
        assert_eq!(unified_parent(&own, root), Some(root.join("delegated").as_path()));
        // Nothing is made above what the process sees.
        assert_eq!(unified_parent(&own, &root.join("delegated/app")), None);
        assert_eq!(least_memory(&own, root), Some(8000));
        assert_eq!(least_memory(&own, &own), None);
    }
}
