//! The system calls of the sandbox that safe wrappers do not offer.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_int, c_long, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

/// Attributes of a mount.
pub(crate) const READ_ONLY: u64 = 0x1;
pub(crate) const NO_SUID: u64 = 0x2;
pub(crate) const NO_DEVICES: u64 = 0x4;
pub(crate) const NO_PROGRAMS: u64 = 0x8;

/// The kernel's `struct mount_attr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Changes the attributes of the mount that a descriptor refers to, and of those below it.
pub(crate) fn set_mount(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    const RECURSIVE: c_int = 0x8000;
    change_mount(mount, RECURSIVE, set, 0)
}

/// The same for that mount alone.
pub(crate) fn set_this_mount(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    change_mount(mount, 0, set, 0)
}

/// Lets that mount alone be written, as far as its file system can be. One that a more privileged process made
/// read-only stays so.
pub(crate) fn make_writable(mount: BorrowedFd<'_>) -> io::Result<()> {
    match change_mount(mount, 0, 0, READ_ONLY) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        done => done,
    }
}

fn change_mount(mount: BorrowedFd<'_>, flags: c_int, set: u64, clear: u64) -> io::Result<()> {
    let attributes = MountAttributes { set, clear, propagation: 0, user_namespace: 0 };
    // SAFETY: the kernel reads an empty string and a structure of the size given.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// Moves this process, which has one thread, into new namespaces. Makes one system call and nothing else.
pub(crate) fn unshare(flags: c_int) -> io::Result<()> {
    // SAFETY: takes flags; the callers have one thread, so no other loses what it shares with this one.
    checked(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Splits the process in two like [`crate::sys::fork`]; the new one is the first of a new pid namespace and has its own
/// mount namespace.
pub(crate) fn fork_into_namespaces() -> io::Result<Option<Pid>> {
    let flags = c_long::from(libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::SIGCHLD);
    // SAFETY: without CLONE_VM this is a fork. The process has one thread, so no lock can be held by a thread that
    // the copy lacks; the caller's code in the copy uses nothing that libc caches about the process.
    match checked(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) })? {
        0 => Ok(None),
        pid => Ok(Pid::from_raw(c_int::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Tries what the guard of sandboxed commands does first: new namespaces, with one for users among them or not, and a
/// change of a mount in them. May be called beside other threads.
pub(crate) fn try_namespaces(user: bool) -> io::Result<()> {
    extern "C" fn change_mounts(_: *mut c_void) -> c_int {
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: the kernel reads two strings; the others are not used with these flags.
        let done = unsafe {
            libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null())
        };
        let attributes = MountAttributes { set: READ_ONLY, clear: 0, propagation: 0, user_namespace: 0 };
        // SAFETY: the kernel reads a string and a structure of the size given; the mounts are those of the new namespace.
        let set = || unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                c"/".as_ptr(),
                0,
                &raw const attributes,
                size_of::<MountAttributes>(),
            )
        };
        let done = if done == 0 { set() } else { done.into() };
        // SAFETY: ends the new process at once; nothing of ours is touched. The number is that of libc for this thread,
        // which stands still, so it is not read by anybody else.
        unsafe { libc::_exit(if done == 0 { 0 } else { *libc::__errno_location() }) }
    }
    const STACK: usize = 16 << 10;
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    // The one for a network costs more than all others together, and may be refused when they are not.
    let namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWPID;
    let flags = libc::CLONE_VM
        | libc::CLONE_VFORK
        | libc::SIGCHLD
        | namespaces
        | if user { libc::CLONE_NEWUSER } else { 0 };
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the new process has its own stack, makes one system call and ends, while this thread waits.
    let pid = checked(unsafe { libc::clone(change_mounts, top, flags, std::ptr::null_mut()) }.into())?;
    let pid = Pid::from_raw(c_int::try_from(pid).map_err(io::Error::other)?);
    let ended = loop {
        match rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => break ended?,
        }
    };
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::Other.into()),
    }
}

/// Opens a path that contains no symbolic link, for use as a place only.
pub(crate) fn open_place(path: &CStr) -> io::Result<OwnedFd> {
    use rustix::fs::OFlags;
    open_without_links(path, OFlags::PATH | OFlags::CLOEXEC)
}

/// The same for a path that may itself be a symbolic link, which is opened then.
pub(crate) fn open_link(path: &CStr) -> io::Result<OwnedFd> {
    use rustix::fs::OFlags;
    open_without_links(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)
}

fn open_without_links(path: &CStr, flags: rustix::fs::OFlags) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, ResolveFlags, openat2};
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(CWD, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS) => walk_without_links(path, flags),
        opened => Ok(opened?),
    }
}

/// The same name by name, where the system does not offer it in one step: inside of another sandbox of ours.
fn walk_without_links(path: &CStr, flags: rustix::fs::OFlags) -> io::Result<OwnedFd> {
    use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
    let mut place = openat(CWD, c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = path.to_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        place = openat(&place, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let may_be_link = names.peek().is_none() && flags.contains(OFlags::NOFOLLOW);
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
        if kind == FileType::Symlink && !may_be_link {
            return Err(Errno::LOOP.into());
        }
    }
    Ok(place)
}

/// The same for an entry of an open folder, without looking at its path again.
pub(crate) fn open_entry(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    use rustix::fs::{FileType, Mode, OFlags, openat};
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = openat(folder, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Ok(entry),
    }
}

/// The same for a path below an open folder.
pub(crate) fn open_below(folder: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat2(folder, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH)?)
}

/// A new, empty folder in memory, attached nowhere yet.
pub(crate) fn new_folder() -> io::Result<OwnedFd> {
    new_file_system(c"tmpfs", &[(c"mode", c"0755")], NO_SUID | NO_DEVICES)
}

/// A mount of a new file system of this kind, attached nowhere yet.
pub(crate) fn new_file_system(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    };
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        fsconfig_set_string(context.as_fd(), *name, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    let attributes = u32::try_from(attributes).map_err(io::Error::other)?;
    let attributes = MountAttrFlags::from_bits_retain(attributes);
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Writes to a file below an open folder.
pub(crate) fn write_below(folder: BorrowedFd<'_>, path: &CStr, text: &[u8]) -> io::Result<()> {
    use rustix::fs::{Mode, OFlags, openat};
    let file = openat(folder, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::io::write(file, text)? == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Whether each pid namespace has its own bound on the number of processes. Otherwise writing it would change the bound
/// of the whole machine.
pub(crate) fn bounds_processes_by_namespace() -> bool {
    const SINCE: (u32, u32) = (6, 14);
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= SINCE)
}

/// Switches the loopback interface of the network namespace on.
pub(crate) fn raise_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all bytes zero is a valid value of this structure of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *target = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(io::Error::other)?;
    // SAFETY: the kernel reads the structure, whose name ends with a NUL.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    checked(done.into()).map(drop)
}

/// Restricts this process by a Landlock ruleset. Makes one system call and nothing else.
pub(crate) fn restrict(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor and flags.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) }).map(drop)
}

/// Filters the system calls of this process from now on. Makes one system call and nothing else.
pub(crate) fn filter_calls(program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` instructions, which both types lay out as the kernel does, and writes nothing.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
        .map(drop)
}

fn checked(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;

    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn walk_refuses_the_links_that_one_step_refuses() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::fs::write(root.join("real/file"), "").unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        for name in
            ["", "real", "real/file", "link", "link/file", "real/none", "real/file/below", "real//file"]
        {
            let path = CString::new(root.join(name).as_os_str().as_bytes()).unwrap();
            for flags in [OFlags::PATH, OFlags::PATH | OFlags::NOFOLLOW] {
                let opened = |opened: io::Result<OwnedFd>| {
                    let about = opened.map(|place| rustix::fs::fstat(place).unwrap());
                    about.map(|about| (about.st_dev, about.st_ino)).map_err(|error| error.raw_os_error())
                };
                let walked = opened(walk_without_links(&path, flags));
                assert_eq!(walked, opened(open_without_links(&path, flags)), "{name} {flags:?}");
            }
        }
    }
}
