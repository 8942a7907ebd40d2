//! The system calls that the standard library does not offer: a shell started with no more than it needs,
//! and what a process and its descendants have used.
#![allow(unsafe_code)] // this module only; each block says why it is sound

use std::ffi::{CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;
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

    /// Both together.
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

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
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

fn ending(status: i32) -> Ending {
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
