//! Starts a program without copying the process that starts it. Takes what to run and what to do in the new
//! process before; gives back its id, once it has become the program or has ended.
//!
//! The new process borrows our memory, and we stand still until it lets go of it. So it can leave word of a
//! failure in a variable, but it must leave everything else as it is: no allocation, no lock, no panic.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::marker::PhantomData;

use rustix::process::Pid;

use crate::sys;
use crate::wire::WireRequest;

/// Far more than the few calls before the program begins need; only what is used is ever touched.
const STACK: usize = 256 << 10;
/// What every platform is content with.
const ALIGNMENT: usize = 16;

/// Where the new process keeps its variables while it runs in our memory. Can be used again.
pub(super) struct Stack(Vec<u8>);

impl Stack {
    pub fn new() -> Self {
        Self(vec![0; STACK])
    }

    fn top(&mut self) -> *mut c_void {
        let end = self.0.as_mut_ptr_range().end;
        end.wrapping_sub(end.addr() % ALIGNMENT).cast()
    }
}

/// Runs `work` in a new process that borrows our memory. The process ends when `work` comes back, so `work`
/// is to become a program. It must not allocate, take locks or panic.
pub(super) fn spawn<F: Fn()>(stack: &mut Stack, work: &F) -> io::Result<Pid> {
    extern "C" fn enter<F: Fn()>(work: *mut c_void) -> c_int {
        // SAFETY: it is the reference given to `clone` below, whose owner stands still until we are done.
        (unsafe { &*work.cast::<F>() })();
        sys::exit_now(127)
    }
    let argument = std::ptr::from_ref(work).cast_mut().cast();
    // SAFETY: this process has one thread, which waits until the new one has left our memory, so nothing is used by two
    // at once. The new one has its own stack, never returns into our frames, and has its own descriptors, directory,
    // limits and signals, since the flags share none of them.
    let pid = unsafe {
        libc::clone(enter::<F>, stack.top(), libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, argument)
    };
    Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)
}

/// A program with its arguments and environment, in the form the kernel takes.
pub(super) struct ExecArguments<'a> {
    places: Vec<Vec<u8>>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    _strings: PhantomData<&'a WireRequest>,
}

impl<'a> ExecArguments<'a> {
    /// `None` if a string does not end with a NUL. `places` are where the program may be.
    pub fn new(request: &'a WireRequest, places: Vec<Vec<u8>>) -> Option<Self> {
        let whole = places.iter().all(|place| terminated(place).is_some());
        let argv = request.argv().map(terminated).chain([Some(std::ptr::null())]).collect::<Option<_>>()?;
        let envp = request.envp().map(terminated).chain([Some(std::ptr::null())]).collect::<Option<_>>()?;
        whole.then_some(Self { places, argv, envp, _strings: PhantomData })
    }

    /// The same for these arguments, each with its closing NUL, and no environment.
    pub fn bare(place: Vec<u8>, arguments: &'a [Vec<u8>]) -> Option<Self> {
        terminated(&place)?;
        let argv = arguments.iter().map(|text| terminated(text)).chain([Some(std::ptr::null())]);
        let argv = argv.collect::<Option<_>>()?;
        Some(Self { places: vec![place], argv, envp: vec![std::ptr::null()], _strings: PhantomData })
    }

    /// Replaces the process by the first of the places that can be run. Comes back only to say why not.
    pub fn run(&self) -> c_int {
        let mut reason = libc::ENOENT;
        for place in &self.places {
            // SAFETY: the place is NUL-terminated; both arrays end with a null pointer and point to
            // NUL-terminated strings that the borrowed request keeps (checked and built in `new`).
            unsafe { libc::execve(place.as_ptr().cast(), self.argv.as_ptr(), self.envp.as_ptr()) };
            match io::Error::last_os_error().raw_os_error() {
                // Like a shell: continue the search, and remember a file that exists but could not be run.
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => reason = libc::EACCES,
                other => return other.unwrap_or(libc::EIO),
            }
        }
        reason
    }
}

fn terminated(text: &[u8]) -> Option<*const c_char> {
    CStr::from_bytes_with_nul(text).ok().map(CStr::as_ptr)
}
