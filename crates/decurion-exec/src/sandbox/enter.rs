//! The namespaces that all sandboxed commands of a session share. Takes the guard process itself, once, before it
//! starts anything; afterwards every mount is read-only for it, and its network has nothing but a loopback interface.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

use super::kernel::{self, NO_DEVICES, NO_PROGRAMS, NO_SUID, READ_ONLY};

/// Devices that stay usable; all others do not, since root could read disks through them.
const DEVICES: [&CStr; 6] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];
/// Folders of which one surely exists, to mount an empty folder on.
const FOR_EMPTY: [&CStr; 5] = [c"/dev/shm", c"/mnt", c"/media", c"/srv", c"/opt"];

/// How many processes and threads a command may have at a time, with the 300 numbers that the kernel does not use again.
const MOST_PROCESSES: &[u8] = b"4396";

/// What root keeps of its capabilities, so that it can work on files of other users as it is used to.
pub(super) const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// What the commands' own namespaces are made from.
pub(crate) struct Base {
    /// An empty folder that cannot be written, to put in place of hidden ones.
    pub empty: &'static CStr,
    mounts: Mounts,
}

impl Base {
    /// Whether a path is on a mount that is read-only outside too.
    pub fn is_read_only(&self, path: &Path) -> bool {
        let above = path.ancestors().find_map(|above| self.mounts.0.get(above));
        above.is_some_and(|mount| *mount == NamespaceAccess::ReadOnly)
    }

    /// The mounts below a path that can be written outside.
    pub fn writable_below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Path> {
        let below = self.mounts.0.iter().filter(move |(point, _)| point.starts_with(path) && *point != path);
        below.filter(|(_, access)| **access == NamespaceAccess::Writable).map(|(point, _)| point.as_path())
    }
}

/// Where something is mounted, as it was before everything became read-only.
struct Mounts(BTreeMap<PathBuf, NamespaceAccess>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum NamespaceAccess {
    Writable,
    ReadOnly,
}

impl Mounts {
    fn read() -> io::Result<Self> {
        let text = std::fs::read("/proc/self/mountinfo")?;
        // Of several at one place the last is on top.
        Ok(Self(text.split(|byte| *byte == b'\n').filter_map(Self::entry).collect()))
    }

    /// The place and the access in a line, of which they are the fifth and the sixth field.
    fn entry(line: &[u8]) -> Option<(PathBuf, NamespaceAccess)> {
        let mut fields = line.split(|byte| *byte == b' ').skip(4);
        let (place, options) = (fields.next()?, fields.next()?);
        let is_read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
        let access = if is_read_only { NamespaceAccess::ReadOnly } else { NamespaceAccess::Writable };
        Some((PathBuf::from(OsString::from_vec(unescaped(place))), access))
    }
}

/// A name as it is: blanks, newlines and backslashes are written as a backslash and three octal digits.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut found = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        found.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    found
}

/// Which network the commands have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamespaceNetwork {
    /// A new one, with a loopback interface.
    Own,
    /// That of the machine.
    Open,
}

/// Moves this process into the namespaces. It has one thread and no children. Gives a listener in the network too,
/// unless that is the machine's.
pub(crate) fn enter(network: NamespaceNetwork) -> io::Result<(Base, Option<TcpListener>)> {
    let own = if network == NamespaceNetwork::Own { libc::CLONE_NEWNET } else { 0 };
    let rest = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | own;
    if kernel::unshare(rest).is_err() {
        enter_user_namespace()?;
        kernel::unshare(rest)?;
    }
    let everything = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change(c"/", everything)?;
    let mut listener = None;
    if network == NamespaceNetwork::Own {
        kernel::raise_loopback()?;
        listener = Some(TcpListener::bind((Ipv4Addr::LOCALHOST, super::PROXY_PORT))?);
    }
    let (devices, mounts) = (usable_devices(), Mounts::read()?);
    let root = kernel::open_place(c"/")?;
    kernel::set_mount(root.as_fd(), READ_ONLY | NO_SUID | NO_DEVICES)?;
    for (path, device) in &devices {
        // A device can be written on such a mount, but its mode, owner and times cannot.
        kernel::set_mount(device.as_fd(), READ_ONLY | NO_SUID)?;
        attach(device, path)?;
    }
    bound_capabilities();
    Ok((Base { empty: empty_folder()?, mounts }, listener))
}

/// A user namespace in which the user has the same number as outside.
fn enter_user_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    kernel::unshare(libc::CLONE_NEWUSER)?;
    // The files belong to root while the process is not dumpable. It has no secrets: its environment is empty, and
    // no request has arrived yet.
    let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    let written = std::fs::write("/proc/self/setgroups", "deny")
        .and_then(|()| std::fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw())))
        .and_then(|()| std::fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw())));
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    written
}

fn usable_devices() -> Vec<(&'static CStr, OwnedFd)> {
    let copy = |path: &&'static CStr| Some((*path, copy_of(kernel::open_place(path).ok()?.as_fd()).ok()?));
    DEVICES.iter().filter_map(copy).collect()
}

/// Gives the commands of a sandbox what they must not share with other sandboxes, which may do more: a view of their
/// processes, terminals, and objects shared by number or name.
pub(crate) fn give_own() -> io::Result<()> {
    // Once for a sandbox and not for each command: to make and end one costs as much as to start and end a process.
    kernel::unshare(libc::CLONE_NEWIPC)?;
    // Without terminals a command can do most of its work: those of the machine cannot be opened.
    let _ = attach_terminals();
    show_own_processes()
}

/// Puts terminals of the command's own in place of those of the machine, which belong to people. Kernels before 6.15
/// copy no mount that is attached nowhere, so the copy is made from its place.
fn attach_terminals() -> io::Result<()> {
    let terminals =
        kernel::new_file_system(c"devpts", &[(c"ptmxmode", c"0666"), (c"mode", c"0600")], NO_SUID)?;
    attach(&terminals, c"/dev/pts")?;
    let maker = kernel::open_below(terminals.as_fd(), c"ptmx")?;
    // Elsewhere it is a link to the one in the folder.
    match kernel::open_place(c"/dev/ptmx") {
        Ok(place) => attach_at(&bare_copy_of(&maker)?, &place),
        Err(_) => Ok(()),
    }
}

/// A mount of the same place that is attached nowhere yet, with all that is mounted below it.
pub(crate) fn copy_of(place: impl AsFd) -> io::Result<OwnedFd> {
    Ok(open_tree(place, c"", COPY | OpenTreeFlags::AT_RECURSIVE)?)
}

/// The same without what is mounted on it or below it.
pub(crate) fn bare_copy_of(place: impl AsFd) -> io::Result<OwnedFd> {
    Ok(open_tree(place, c"", COPY)?)
}

const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE
    .union(OpenTreeFlags::OPEN_TREE_CLOEXEC)
    .union(OpenTreeFlags::AT_EMPTY_PATH);

/// Puts a mount in place of what a path names. The path contains no symbolic link.
pub(crate) fn attach(mount: &OwnedFd, path: &CStr) -> io::Result<()> {
    attach_at(mount, &kernel::open_place(path)?)
}

pub(crate) fn attach_at(mount: &OwnedFd, place: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, c"", place, c"", flags)?)
}

fn empty_folder() -> io::Result<&'static CStr> {
    use rustix::mount::{MountFlags, mount};
    let place = FOR_EMPTY.into_iter().find(|path| kernel::open_place(path).is_ok());
    let place = place.ok_or(io::ErrorKind::NotFound)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"decurion", place, c"tmpfs", flags, c"mode=0555,size=4k,nr_inodes=1")?;
    Ok(place)
}

/// Lets no program that this process becomes or starts have more than is kept.
fn bound_capabilities() {
    for number in 0..64_u64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // Fails for an ordinary user, and for the numbers behind the last that the kernel knows.
        if !KEPT.contains(capability) && remove_capability_from_bounding_set(capability).is_err() {
            return;
        }
    }
}

/// Gives up all that is not kept, also what programs would inherit. Where no bound is set, `no_new_privs` keeps the
/// process from regaining it. Makes system calls and nothing else.
pub(crate) fn drop_capabilities() -> rustix::io::Result<()> {
    clear_ambient_capability_set()?;
    let own = capabilities(None)?;
    let kept = CapabilitySets {
        effective: own.effective & KEPT,
        permitted: own.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)
}

/// Gives the command's pid namespace a view of its processes, and bounds their number. Where the system does not allow
/// the view, as in many containers, the command sees the processes outside, but Landlock keeps it from looking into them.
fn show_own_processes() -> io::Result<()> {
    let attributes = NO_SUID | NO_DEVICES | NO_PROGRAMS;
    let view = match kernel::new_file_system(c"proc", &[], attributes) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(()),
        view => view?,
    };
    if kernel::bounds_processes_by_namespace() {
        kernel::write_below(view.as_fd(), c"sys/kernel/pid_max", MOST_PROCESSES)?;
    }
    kernel::set_mount(view.as_fd(), READ_ONLY)?;
    attach(&view, c"/proc")
}
