//! The limits of Decurion's own process, and how commands are shielded from them: what was in force when
//! Decurion started is what a command gets.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::launch::ResourceLimits;
use crate::wire::LaunchNumbers;

const UNCHANGED: u64 = u64::MAX;
/// The soft limit on open files before it was raised.
static OPEN_FILES: AtomicU64 = AtomicU64::new(UNCHANGED);
/// The mask for new files before it was set.
static UMASK: AtomicU64 = AtomicU64::new(UNCHANGED);

/// Raises the soft limit on open files to the hard one. Gives the limit now in force. Commands still get
/// the old soft limit, since old programs walk through all numbers below it.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
    {
        OPEN_FILES.store(limit.current.unwrap_or(UNCHANGED), Ordering::Relaxed);
        return limit.maximum;
    }
    limit.current
}

/// Keeps some freed memory instead of returning it at once: each request and each answer takes some, and the kernel has
/// to clear the memory that it gives back.
pub fn keep_freed_memory() {
    const BYTES: i32 = 1 << 20;
    crate::sys::keep_freed_memory(BYTES);
}

/// From now on Decurion's own files are for the user alone. Commands still get the old mask.
pub fn set_umask_077() {
    let old = rustix::process::umask(Mode::from_raw_mode(0o077));
    let _ =
        UMASK.compare_exchange(UNCHANGED, u64::from(old.as_raw_mode()), Ordering::Relaxed, Ordering::Relaxed);
}

/// Makes both as they were, for a program that is a person's. Done in the new process, so it makes system calls only.
pub(crate) fn as_before() {
    if let Ok(mask) = u32::try_from(UMASK.load(Ordering::Relaxed)) {
        rustix::process::umask(Mode::from_raw_mode(mask));
    }
    let files = OPEN_FILES.load(Ordering::Relaxed);
    if files != UNCHANGED {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // It was in force before, so that it can be again.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum });
    }
}

/// The mask for new files of commands, where Decurion's own is another.
pub(crate) fn command_mask() -> Option<u32> {
    let mask = UMASK.load(Ordering::Relaxed);
    u32::try_from(mask).ok().filter(|_| mask != UNCHANGED)
}

/// The soft limit on open files now in force.
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The numbers a command gets.
pub(crate) fn numbers(limits: ResourceLimits) -> LaunchNumbers {
    let known = |value: u64| (value != UNCHANGED).then_some(value);
    LaunchNumbers {
        umask: command_mask(),
        open_files: known(OPEN_FILES.load(Ordering::Relaxed)),
        processes: limits.processes,
        file_bytes: limits.file_bytes,
        bubblewrap: false,
    }
}

/// How many bytes are free for ordinary users on this path's file system; none if unknown.
pub fn free_bytes(path: &std::path::Path) -> Option<u64> {
    let there = path.ancestors().find_map(|above| rustix::fs::statvfs(above).ok())?;
    Some(there.f_bavail.saturating_mul(there.f_frsize))
}

/// Whether a path is on a file system that is mounted read-only.
pub fn is_read_only(path: &std::path::Path) -> bool {
    let flags = rustix::fs::statvfs(path).map(|found| found.f_flag);
    flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}
