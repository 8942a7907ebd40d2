//! The system calls that the standard library does not offer: a shell started with no more than it needs, a terminal
//! and a job in it, and what a process and its descendants have used.
#![allow(unsafe_code)] // this module only; each block says why it is sound

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

/// What a process used, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Time in user mode.
    pub user: Duration,
    /// Time in the kernel.
    pub system: Duration,
    /// The largest resident set of any one process, in KiB. A process that was started by a larger one
    /// counts as at least as large as that was.
    pub max_rss_kib: u64,
}

impl Used {
    /// User and system time together.
    pub fn cpu(&self) -> Duration {
        self.user + self.system
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
            max_rss_kib: self.max_rss_kib.max(other.max_rss_kib),
        }
    }

    fn from_raw(raw: &libc::rusage) -> Self {
        let time = |value: libc::timeval| {
            let seconds = Duration::from_secs(u64::try_from(value.tv_sec).unwrap_or_default());
            seconds + Duration::from_micros(u64::try_from(value.tv_usec).unwrap_or_default())
        };
        Self {
            user: time(raw.ru_utime),
            system: time(raw.ru_stime),
            max_rss_kib: u64::try_from(raw.ru_maxrss).unwrap_or_default(),
        }
    }
}

/// What this process has used so far.
pub fn used_by_self() -> Used {
    used(libc::RUSAGE_SELF)
}

/// What the descendants of this process that were waited for have used.
pub fn used_by_children() -> Used {
    used(libc::RUSAGE_CHILDREN)
}

fn used(whose: libc::c_int) -> Used {
    let mut raw = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for a whole rusage; all-zero is a valid one if the call fails.
    let raw = unsafe {
        libc::getrusage(whose, raw.as_mut_ptr());
        raw.assume_init()
    };
    Used::from_raw(&raw)
}

/// The CPU time of this thread so far.
pub fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which leaves the value as it is if it fails.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

/// The system's allocator, counting what it is asked for. A program that wants to count makes it its own.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// How often memory was asked for so far, where [`Counting`] is the program's allocator.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    Signalled(i32),
}

impl Ending {
    /// Whether it exited with 0.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// As a shell would put it: the code, or 128 and the signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => 128 + signal,
        }
    }
}

/// Waits for a child, or for any child if `pid` is none; says which ended, how, and what it and those it
/// waited for used.
pub fn wait_for(pid: Option<i32>) -> io::Result<(i32, Ending, Used)> {
    let mut status = 0;
    let mut raw = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are valid for the call; all-zero is a valid rusage.
        let done = unsafe { libc::wait4(pid.unwrap_or(-1), &raw mut status, 0, raw.as_mut_ptr()) };
        if done > 0 {
            // SAFETY: zeroed, then filled by the call.
            let raw = unsafe { raw.assume_init() };
            return Ok((done, ending(status), Used::from_raw(&raw)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// How a process ended, by the status that the kernel gives.
pub fn ending(status: i32) -> Ending {
    if libc::WIFSIGNALED(status) {
        Ending::Signalled(libc::WTERMSIG(status))
    } else {
        Ending::Exited(libc::WEXITSTATUS(status))
    }
}

/// A shell that was started, and the end of the pipe from which both its outputs can be read.
#[derive(Debug)]
pub struct Shell {
    /// Its process id; to be waited for with [`wait_for`].
    pub pid: i32,
    /// Its output and error output.
    pub output: OwnedFd,
}

/// Starts `bash -c <command>` by `posix_spawn` with no input and both outputs in one pipe.
pub fn start_shell(command: &str) -> io::Result<Shell> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let program = c"/bin/bash";
    let command = CString::new(command)?;
    let arguments =
        [program.as_ptr(), c"-c".as_ptr(), command.as_ptr(), ptr::null()].map(<*const c_char>::cast_mut);
    let mut pid = 0;
    // SAFETY: actions and attributes are initialised before use and destroyed after; every string lives
    // until the call is over and both lists end with a null pointer; `environ` is not changed by anyone in
    // this process.
    let result = unsafe {
        let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
        let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::uninit();
        libc::posix_spawn_file_actions_init(actions.as_mut_ptr());
        libc::posix_spawnattr_init(attributes.as_mut_ptr());
        let null = c"/dev/null".as_ptr();
        libc::posix_spawn_file_actions_addopen(actions.as_mut_ptr(), 0, null, libc::O_RDONLY, 0);
        libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), write.as_raw_fd(), 1);
        libc::posix_spawn_file_actions_adddup2(actions.as_mut_ptr(), write.as_raw_fd(), 2);
        reset_broken_pipe(attributes.as_mut_ptr());
        let result = libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            actions.as_ptr(),
            attributes.as_ptr(),
            arguments.as_ptr(),
            environ.cast_const(),
        );
        libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr());
        libc::posix_spawnattr_destroy(attributes.as_mut_ptr());
        result
    };
    if result == 0 { Ok(Shell { pid, output: read }) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// How a terminal treats what is typed and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Of input, output, control and the rest.
    flags: [libc::tcflag_t; 4],
    /// Which characters mean something.
    characters: [libc::cc_t; libc::NCCS],
}

/// A new terminal of so many columns and rows: the side of whoever shows it, and that of programs. A program that is
/// started elsewhere at the same time inherits neither: whoever held one would keep the terminal open.
pub fn open_terminal(size: (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: no pointers; a descriptor that is given is open, and nobody else has it.
    let master = unsafe { opened(libc::posix_openpt(flags))? };
    // SAFETY: the descriptor is open; no pointers are given.
    let is_free =
        unsafe { libc::grantpt(master.as_raw_fd()) == 0 && libc::unlockpt(master.as_raw_fd()) == 0 };
    if !is_free {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open; a descriptor that is given is open, and nobody else has it.
    let slave = unsafe { opened(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))? };
    resize_terminal(&master, size)?;
    Ok((master, slave))
}

/// # Safety
/// What was given is an open descriptor that nobody else has, or negative.
unsafe fn opened(descriptor: libc::c_int) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Tells a terminal and the programs in it another size.
pub fn resize_terminal(master: &impl AsRawFd, size: (u16, u16)) -> io::Result<()> {
    let window = window(size);
    // SAFETY: the descriptor is open and the structure whole; it is only read.
    let done = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const window) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn window(size: (u16, u16)) -> libc::winsize {
    libc::winsize { ws_col: size.0, ws_row: size.1, ws_xpixel: 0, ws_ypixel: 0 }
}

/// How a terminal is set now.
pub fn modes(terminal: &impl AsRawFd) -> io::Result<Modes> {
    let mut raw = MaybeUninit::<libc::termios>::zeroed();
    // SAFETY: the pointer is valid for a whole structure, and all-zero is a valid one.
    let (done, raw) = unsafe { (libc::tcgetattr(terminal.as_raw_fd(), raw.as_mut_ptr()), raw.assume_init()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Modes { flags: [raw.c_iflag, raw.c_oflag, raw.c_cflag, raw.c_lflag], characters: raw.c_cc })
}

/// Lets a command be the foreground job of a new session in the terminal that is its input. The session's leader is a
/// process between, which tells `report` the job's id and then its status, and stays until it is killed.
pub fn led(command: &mut std::process::Command, report: &OwnedFd) {
    let report = report.as_raw_fd();
    // SAFETY: between fork and exec there is one thread, and only calls that signal handlers may make are made, with
    // values of this frame; the process that does not exec never returns.
    unsafe {
        command.pre_exec(move || {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let job = libc::fork();
            if job < 0 {
                return Err(io::Error::last_os_error());
            }
            if job > 0 {
                lead(job, report);
            }
            // Whoever is not in the foreground is stopped for wanting to be, unless it does not hear of that.
            libc::setpgid(0, 0);
            // What whoever runs the tests ignores, as under nohup, a terminal's job would not.
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE] {
                libc::signal(signal, libc::SIG_DFL);
            }
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            libc::tcsetpgrp(0, libc::getpid());
            libc::signal(libc::SIGTTOU, libc::SIG_DFL);
            Ok(())
        });
    }
}

/// The job of a leader.
static JOB: AtomicI32 = AtomicI32::new(0);

/// The terminal is gone: as a shell does, the leader tells its job.
extern "C" fn hang_up(_signal: libc::c_int) {
    let job = JOB.load(Ordering::SeqCst);
    // SAFETY: a signal to a group, which a handler may send.
    unsafe {
        libc::kill(-job, libc::SIGHUP);
        libc::kill(-job, libc::SIGCONT);
    }
}

/// Waits for a job, says how it ended, and stays.
///
/// # Safety
/// To be called in a process that was just forked, and owns nothing that has to be dropped.
unsafe fn lead(job: libc::pid_t, report: libc::c_int) -> ! {
    // SAFETY: every pointer is to a value of this frame; all calls are those that signal handlers may make.
    unsafe {
        JOB.store(job, Ordering::SeqCst);
        libc::signal(libc::SIGHUP, hang_up as *const () as libc::sighandler_t);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGTTOU, libc::SIGTSTP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::setpgid(job, job);
        libc::dup2(report, 3);
        // Also what says whether the job was started: nobody must wait for this process to close it.
        libc::syscall(libc::SYS_close_range, 4, libc::c_uint::MAX, 0);
        libc::write(3, (&raw const job).cast(), size_of::<libc::pid_t>());
        let mut status = 0;
        while libc::waitpid(job, &raw mut status, 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::write(3, (&raw const status).cast(), size_of::<libc::c_int>());
        loop {
            libc::pause();
        }
    }
}

/// Rust programs ignore broken pipes; what they start should not inherit that.
///
/// # Safety
/// The attributes must be initialised.
unsafe fn reset_broken_pipe(attributes: *mut libc::posix_spawnattr_t) {
    // SAFETY: the set is emptied before it is read; the attributes are the caller's promise.
    unsafe {
        let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGPIPE);
        libc::posix_spawnattr_setsigdefault(attributes, signals.as_ptr());
        let flags = libc::c_short::try_from(libc::POSIX_SPAWN_SETSIGDEF).unwrap_or_default();
        libc::posix_spawnattr_setflags(attributes, flags);
    }
}

unsafe extern "C" {
    static environ: *mut *mut c_char;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn a_shell_says_both_its_outputs_and_how_it_ended() {
        let shell = start_shell("echo out; echo err >&2; exit 3").unwrap();
        let mut text = String::new();
        std::fs::File::from(shell.output).read_to_string(&mut text).unwrap();
        assert_eq!(text, "out\nerr\n");
        let (pid, ending, used) = wait_for(Some(shell.pid)).unwrap();
        assert_eq!((pid, ending), (shell.pid, Ending::Exited(3)));
        assert!(used.max_rss_kib > 0);
    }

    #[test]
    fn a_killed_shell_names_its_signal() {
        let shell = start_shell("kill -9 $$").unwrap();
        let (_, ending, _) = wait_for(Some(shell.pid)).unwrap();
        assert_eq!((ending, ending.code()), (Ending::Signalled(9), 137));
    }

    #[test]
    fn waiting_for_nobody_is_an_error() {
        assert!(wait_for(Some(1)).is_err());
    }
}
