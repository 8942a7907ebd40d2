//! The system calls that safe wrappers do not offer: forking, a process's signals and its descriptor
//! numbers. Takes and gives plain values; every `unsafe` of the crate is here, in
//! `concealment.rs`, in `guard/spawn.rs` or in `sandbox/kernel.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long, c_uint};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Splits the process in two. `None` in the new one.
///
/// Only called in the guard and its reapers, which have one thread each (checked by the guard at its start), so the
/// copy is complete and may use the allocator.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the process has one thread, so no lock can be held by a thread that the copy lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the process at once, running nothing that was registered for its end.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Kills every process but this one, the first of a pid namespace.
pub(crate) fn kill_all_others() -> io::Result<()> {
    // SAFETY: takes two numbers. The caller has seen that it is the first process of its namespace.
    checked(unsafe { libc::kill(-1, libc::SIGKILL) }).map(drop)
}

/// Makes `number` another name of `fd`, kept when the process is replaced.
pub(crate) fn place(fd: impl AsFd, number: RawFd) -> io::Result<()> {
    // SAFETY: dup2 takes two numbers; the callers pass numbers no Rust value of the process owns.
    checked(unsafe { libc::dup2(fd.as_fd().as_raw_fd(), number) }).map(drop)
}

/// The same, closed when the process is replaced, and owned.
pub(crate) fn place_owned(fd: impl AsFd, number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: dup3 takes two numbers and flags; see `place`.
    checked(unsafe { libc::dup3(fd.as_fd().as_raw_fd(), number, libc::O_CLOEXEC) })?;
    // SAFETY: dup3 just made the number valid, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes charge of a descriptor that was passed to the program by its number.
pub(crate) fn adopt(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl with F_GETFD only asks about a number.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    // SAFETY: the number is open; it was passed for this purpose and the caller takes it once.
    open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// The number of the process that connected to a socket; none where it has none here.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<Option<Pid>> {
    let nobody = libc::ucred { pid: 0, uid: 0, gid: 0 };
    Ok(Pid::from_raw(option(&socket, libc::SO_PEERCRED, nobody)?.pid))
}

/// The process itself, whichever has its number by now.
pub(crate) fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let number: RawFd = option(&socket, libc::SO_PEERPIDFD, -1)?;
    // SAFETY: the kernel just made the descriptor for us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The session of a process (none: of this one). It has no number here if it began outside of our pid namespace, as
/// with `docker exec` or `unshare --pid`; `rustix` takes such an answer for a process.
pub(crate) fn session(of: Option<Pid>) -> io::Result<Option<Pid>> {
    // SAFETY: takes a number and gives one.
    checked(unsafe { libc::getsid(Pid::as_raw(of)) }).map(Pid::from_raw)
}

/// The group of a process (none: of this one). It has no number here where it was begun outside, as above.
pub(crate) fn group(of: Option<Pid>) -> io::Result<Option<Pid>> {
    // SAFETY: takes a number and gives one.
    checked(unsafe { libc::getpgid(Pid::as_raw(of)) }).map(Pid::from_raw)
}

/// What the kernel says about a socket. `T` is the plain value that it gives for `name`.
fn option<T: Copy>(socket: &impl AsFd, name: c_int, mut value: T) -> io::Result<T> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let target = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the kernel writes at most `length` bytes to the value, which is ours, has that size, and is of integers
    // for both names that are asked for.
    let done = unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, name, target, &raw mut length)
    };
    checked(done).map(|_| value)
}

/// Lets the runtime tell when a descriptor can be read or written.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` gives the same open number for as long as it exists, and it is moved in.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE | Interest::WRITABLE) };
    watched.map_err(Into::into)
}

/// Closes all descriptors from `first` to `last`.
pub(crate) fn close_range(first: u32, last: u32) {
    // SAFETY: only numbers are passed; the callers close ranges in a fresh copy of the process, in which
    // the values that owned them are never used or dropped.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
    if !done {
        let last = last.min(rustix::process::getrlimit(rustix::process::Resource::Nofile).current_max());
        for number in first..=last {
            // SAFETY: as above; closing a number that is not open does nothing.
            unsafe { libc::close(number.cast_signed()) };
        }
    }
}

trait CurrentMax {
    fn current_max(self) -> u32;
}

impl CurrentMax for rustix::process::Rlimit {
    fn current_max(self) -> u32 {
        self.current.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(65_536)
    }
}

/// What another process of the same user can change about this one, and what its children inherit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessTraits {
    limits: Vec<Option<(u64, u64)>>,
    priority: c_int,
    io_priority: c_long,
    scheduler: c_int,
    processors: Option<Vec<u8>>,
}

impl ProcessTraits {
    /// As it is now.
    pub fn now() -> Self {
        // Resources are numbered; there are 16.
        let limit = |resource: c_uint| {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the kernel writes one structure, which is ours.
            let read = unsafe { libc::getrlimit(resource, &raw mut limit) };
            (read == 0).then_some((limit.rlim_cur, limit.rlim_max))
        };
        // SAFETY: takes numbers and gives one; 0 is this process.
        let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: as above; 1 says that a process is meant.
        let io_priority = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
        // SAFETY: as above.
        let scheduler = unsafe { libc::sched_getscheduler(0) };
        let mut set = vec![0_u8; 1024];
        // SAFETY: the kernel writes at most that many bytes to the list, which is ours.
        let length = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, set.len(), set.as_mut_ptr()) };
        Self {
            limits: (0..16).map(limit).collect(),
            priority,
            io_priority,
            scheduler,
            processors: (length > 0).then_some(set),
        }
    }
}

/// How many freed bytes the allocator keeps at the end of its memory, and from which size on it has the kernel map a piece.
/// Does nothing where the allocator is not that of glibc.
pub(crate) fn keep_freed_memory(bytes: c_int) {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers, and changes nothing that was allocated.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
        libc::mallopt(libc::M_MMAP_THRESHOLD, bytes);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Whether there is memory, a semaphore or a message queue of System V in this IPC namespace. These stay when the process
/// that made them ends.
pub(crate) fn has_shared_by_number() -> bool {
    // From the kernel's interface; the C library has no names for all of them. Each call fills a structure with numbers
    // and gives at this place how many there are.
    const SHM_INFO: c_int = 14;
    const SEM_INFO: c_int = 19;
    const MSG_INFO: c_int = 12;
    const SEMAPHORES: usize = 7;
    let (mut memory, mut semaphores, mut queues) = ([0_u64; 16], [0 as c_int; 32], [0 as c_int; 32]);
    // SAFETY: the kernel writes one structure of less than 128 bytes each, which is ours and aligned for it; the first
    // number, of a set that nobody asks for, is not used.
    let done = unsafe {
        [
            libc::shmctl(0, SHM_INFO, memory.as_mut_ptr().cast()),
            libc::semctl(0, 0, SEM_INFO, semaphores.as_mut_ptr()),
            libc::msgctl(0, MSG_INFO, queues.as_mut_ptr().cast()),
        ]
    };
    // The first field of the first structure is a number of half the size.
    let memory = memory[0].to_ne_bytes().first_chunk().map_or(0, |bytes| c_int::from_ne_bytes(*bytes));
    done.iter().any(|result| *result < 0) || [memory, semaphores[SEMAPHORES], queues[0]] != [0; 3]
}

/// Holds these signals back and gives a descriptor to read them from.
pub(crate) fn signal_queue(signals: &[c_int]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: set is initialised; the old mask is not asked for.
    checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) })?;
    // SAFETY: set is initialised; -1 asks for a new descriptor.
    let fd = checked(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
    // SAFETY: signalfd just made it, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next signal waiting in a queue.
pub(crate) fn next_signal(queue: &OwnedFd) -> Option<c_int> {
    // Only the number at the start is of interest, but the kernel gives whole records.
    let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let length = rustix::io::read(queue, &mut record).ok()?;
    let number = record.first_chunk().filter(|_| length >= 4)?;
    c_int::try_from(u32::from_ne_bytes(*number)).ok()
}

/// Holds no signal back.
pub(crate) fn release_signals() {
    let set = signal_set(&[]);
    // SAFETY: set is initialised; the old mask is not asked for.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
}

/// Has this done in the new process just before it becomes the program. It makes system calls and nothing else: the copy
/// has one thread, and other threads may have held locks.
pub(crate) fn before_exec(command: &mut Command, act: fn() -> io::Result<()>) {
    // SAFETY: the function captures nothing, and the callers' only read numbers and make system calls.
    unsafe { command.pre_exec(act) };
}

/// Lets these signals do nothing, also to the programs that this one starts.
pub(crate) fn ignore(signals: &[c_int]) {
    for signal in signals {
        // SAFETY: the numbers are constants of libc; no function of ours is registered.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Does something while one signal is held back from this thread.
pub(crate) fn without<T>(signal: c_int, act: impl FnOnce() -> T) -> T {
    let set = signal_set(&[signal]);
    let mut before = signal_set(&[]);
    // SAFETY: both sets are initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before) };
    let done = act();
    // SAFETY: the set is what was in force, or empty, which is initialised too.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    done
}

static CONTINUED: AtomicU32 = AtomicU32::new(0);

/// Counts from now on how often this process is continued.
pub(crate) fn count_continued() {
    extern "C" fn count(_: c_int) {
        CONTINUED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the function does what a signal handler may: it adds to an atomic number.
    unsafe { libc::signal(libc::SIGCONT, count as *const () as libc::sighandler_t) };
}

/// How often it was.
pub(crate) fn continued() -> u32 {
    CONTINUED.load(Ordering::Relaxed)
}

/// Gives every signal its default action, also those that our parent ignored.
pub(crate) fn default_signals() {
    // The kernel's own record of a signal's meaning, zero for the default. Asked without libc, which
    // would refuse the numbers it keeps for itself.
    const DEFAULT: [u64; 4] = [0; 4];
    let none = std::ptr::null_mut::<u64>();
    for signal in 1..=64_i64 {
        // SAFETY: the kernel reads a record of at most 32 bytes and writes none; the last argument is the
        // size of its signal set. The two signals that cannot be changed are refused harmlessly.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), none, 8_usize) };
    }
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set before it is taken.
    let mut set: libc::sigset_t = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for signal in signals {
        // SAFETY: set is initialised; the numbers are constants of libc.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

/// The name shown in process lists, at most 15 bytes.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads a NUL-terminated string, at most 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME as c_int, name.as_ptr(), 0 as c_uint, 0 as c_uint, 0 as c_uint) };
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
