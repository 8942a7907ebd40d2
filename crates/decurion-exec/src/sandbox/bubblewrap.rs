//! The sandbox where the kernel refuses namespaces to us and grants them to `bwrap`. Takes a sandbox, gives the arguments
//! with which `bwrap` makes the same view of the files. What runs inside is this program itself (`guard/inside.rs`), which
//! adds Landlock rules and the system call filters and becomes the command.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::enter::KEPT;
use super::mounts::{PathPlan, TEMPORARY, covered, existing, plan};
use super::{PathError, Sandbox, at};
use crate::guard::timespec;

/// Where systems have it. It is never searched for elsewhere: the working directory is not to be trusted.
const PROGRAMS: [&str; 3] = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];
/// How long it may take to make a sandbox when it is tried.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to end when it is killed.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// What it takes at most.
const MOST_ARGUMENTS: usize = 9000;
const ALWAYS: [&str; 15] = [
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--die-with-parent",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--chdir",
    "/",
];
/// Numbers of capabilities by their names, of those that root keeps.
const CAPABILITIES: [(u64, &str); 8] = [
    (0, "CAP_CHOWN"),
    (1, "CAP_DAC_OVERRIDE"),
    (3, "CAP_FOWNER"),
    (4, "CAP_FSETID"),
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (10, "CAP_NET_BIND_SERVICE"),
];

/// The program, if the system has one that only root can change.
pub(crate) fn find() -> Option<PathBuf> {
    let is_root_s =
        |path: &Path| fs::metadata(path).is_ok_and(|about| about.uid() == 0 && about.mode() & 0o022 == 0);
    let is_safe = |path: &Path| path.is_file() && is_root_s(path) && path.parent().is_some_and(is_root_s);
    PROGRAMS.iter().filter_map(|path| fs::canonicalize(path).ok()).find(|path| is_safe(path))
}

/// Whether it can make a sandbox here, found by trying it.
pub(crate) fn works() -> bool {
    find().is_some_and(|program| ends_well(&program, TRIAL_LIMIT))
}

/// Whether the program makes a sandbox in this time. One that takes longer is killed: it would hold up each command too.
fn ends_well(program: &Path, limit: Duration) -> bool {
    #[expect(clippy::disallowed_methods, reason = "it is tried before there is a guard, and ends by itself")]
    let child = Command::new(program)
        .args(ALWAYS)
        .args(["--unshare-net", "--", "/bin/true"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let ends_within = |limit| {
        let Ok(end) = &end else { return false };
        let waited = || poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&timespec(limit)));
        rustix::io::retry_on_intr(waited) == Ok(1)
    };
    if !ends_within(limit) {
        let _ = child.kill();
        ends_within(KILL_LIMIT);
    }
    // What cannot be ended is not waited for.
    child.try_wait().is_ok_and(|status| status.is_some_and(|status| status.success()))
}

/// The arguments for a sandbox, each with a NUL behind it, as `--args` reads them.
pub(crate) fn arguments(sandbox: &Sandbox) -> Result<Vec<u8>, PathError> {
    let mut list = Arguments::default();
    for argument in ALWAYS {
        list.add(argument);
    }
    if !sandbox.network {
        list.add("--unshare-net");
    }
    if rustix::process::geteuid().is_root() {
        for (number, name) in CAPABILITIES {
            if KEPT.bits() & 1 << number != 0 {
                list.add("--cap-add");
                list.add(name);
            }
        }
    }
    let (own, shown) = covered(sandbox);
    let mut only_shown = Vec::new();
    for (tmp, folders) in [(&sandbox.tmp, own), (&sandbox.shown_tmp, shown)] {
        let Some(tmp) = tmp else { continue };
        existing(tmp).and_then(|place| place.ok_or(std::io::ErrorKind::NotFound.into())).map_err(at(tmp))?;
        for folder in folders.iter().map(Path::new).filter(|folder| folder.is_dir()) {
            list.bind("--bind", tmp, folder);
            only_shown.extend(shown.iter().map(Path::new).filter(|shown| *shown == folder));
        }
    }
    let emptied = add_view(&mut list, sandbox)?;
    for folder in emptied.into_iter().chain(only_shown) {
        list.on("--remount-ro", folder);
    }
    if list.count > MOST_ARGUMENTS {
        return Err(at(Path::new(""))(std::io::Error::from_raw_os_error(libc::E2BIG)));
    }
    Ok(list.bytes)
}

/// The plan of the view, without symbolic links: `bwrap` follows them.
fn steps(sandbox: &Sandbox) -> Vec<(&Path, PathPlan)> {
    plan(sandbox).into_iter().filter(|(_, plan)| *plan != PathPlan::PinLink).collect()
}

/// Adds what is not as it is outside. Gives the hidden folders, which are empty and still to be made read-only.
fn add_view<'a>(list: &mut Arguments, sandbox: &'a Sandbox) -> Result<Vec<&'a Path>, PathError> {
    let mut emptied = Vec::new();
    let temporary: Vec<&Path> =
        TEMPORARY.iter().filter(|_| sandbox.tmp.is_some()).map(|path| Path::new(*path)).collect();
    let steps = steps(sandbox);
    for (path, change) in &steps {
        if let (PathPlan::Show, Ok(target)) = (change, std::fs::read_link(path)) {
            list.bind("--symlink", &target, path);
            continue;
        }
        let Some(place) = existing(path).map_err(at(path))? else { continue };
        // Everything is bound from the files outside, so a step must not bring back what a step above it covered.
        let above = steps.iter().filter(|(above, plan)| {
            *plan != PathPlan::Pin && path.starts_with(above) && (above != path || plan < change)
        });
        let covers =
            temporary.iter().filter(|above| path.starts_with(above)).map(|above| (*above, PathPlan::Hide));
        let nearest =
            above.copied().chain(covers).max_by_key(|(above, plan)| (above.components().count(), *plan));
        let nearest = nearest.map(|(_, plan)| plan);
        match change {
            PathPlan::Write => list.bind("--bind", path, path),
            PathPlan::PinLink => {}
            PathPlan::Pin | PathPlan::ReadOnly | PathPlan::Hide if nearest == Some(PathPlan::Hide) => {}
            PathPlan::Pin if nearest == Some(PathPlan::Write) => list.bind("--bind", path, path),
            PathPlan::Show | PathPlan::Pin | PathPlan::ReadOnly => list.bind("--ro-bind", path, path),
            PathPlan::Hide => {
                let about = rustix::fs::fstat(&place).map_err(|errno| at(path)(errno.into()))?;
                let kind = rustix::fs::FileType::from_raw_mode(about.st_mode);
                if kind == rustix::fs::FileType::Directory {
                    list.on("--tmpfs", path);
                    emptied.push(*path);
                } else {
                    list.bind("--ro-bind", Path::new("/dev/null"), path);
                }
            }
        }
    }
    Ok(emptied)
}

/// Bytes of what is noted about a path.
const NOTE: usize = 16;
/// The note about a symbolic link that is shown, of which only a copy is there.
const LINK: [u8; NOTE] = [0xFF; NOTE];

/// Notes what each path of the view is outside, for [`verify`].
pub(crate) fn note(sandbox: &Sandbox) -> Result<Vec<u8>, PathError> {
    let temporary = sandbox.tmp.iter().chain(&sandbox.shown_tmp).map(PathBuf::as_path);
    let paths = steps(sandbox).into_iter().chain(temporary.map(|path| (path, PathPlan::Write)));
    let note = |(path, plan)| match plan {
        PathPlan::Show if Path::is_symlink(path) => Ok(LINK),
        _ => note_of(path).map_err(at(path)),
    };
    let notes: Result<Vec<_>, _> = paths.map(note).collect();
    Ok(notes?.concat())
}

/// Checks inside that each path is what `bwrap` was to make of it: it resolves paths by name, and a folder may have
/// been replaced by a link meanwhile.
pub(crate) fn verify(sandbox: &Sandbox, notes: &[u8]) -> Result<(), PathError> {
    let wrong = |path: &Path| at(path)(std::io::Error::from_raw_os_error(libc::ELOOP));
    let steps = steps(sandbox);
    let mut notes = notes.chunks_exact(NOTE);
    for (path, change) in &steps {
        let outside = notes.next().ok_or_else(|| wrong(path))?;
        if *change == PathPlan::Show && outside == LINK {
            continue;
        }
        let inside = note_of(path).map_err(at(path))?;
        let is_there = inside != [0; NOTE];
        let holds = match change {
            PathPlan::Write => {
                inside == outside || steps.iter().any(|(other, plan)| other == path && plan > change)
            }
            PathPlan::Hide => !is_there || inside != outside,
            PathPlan::ReadOnly => {
                let flags = rustix::fs::statvfs(*path).map(|found| found.f_flag);
                !is_there || flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
            }
            PathPlan::Show | PathPlan::Pin | PathPlan::PinLink => true,
        };
        if !holds {
            return Err(wrong(path));
        }
    }
    let (own, shown) = covered(sandbox);
    for (tmp, folders) in [(&sandbox.tmp, own), (&sandbox.shown_tmp, shown)] {
        let Some(tmp) = tmp else { continue };
        let outside = notes.next().ok_or_else(|| wrong(tmp))?;
        let folders = folders.iter().map(Path::new).filter(|folder| folder.is_dir());
        if !folders.map(note_of).all(|note| note.is_ok_and(|note| note == outside)) {
            return Err(wrong(tmp));
        }
    }
    Ok(())
}

/// The file system and the number of what is at a path; zeros if nothing is.
fn note_of(path: &Path) -> std::io::Result<[u8; NOTE]> {
    let Some(place) = existing(path)? else { return Ok([0; NOTE]) };
    let about = rustix::fs::fstat(&place)?;
    let mut note = [0; NOTE];
    note[..8].copy_from_slice(&about.st_dev.to_le_bytes());
    note[8..].copy_from_slice(&about.st_ino.to_le_bytes());
    Ok(note)
}

#[derive(Default)]
struct Arguments {
    bytes: Vec<u8>,
    count: usize,
}

impl Arguments {
    fn add(&mut self, argument: impl AsRef<std::ffi::OsStr>) {
        self.bytes.extend_from_slice(argument.as_ref().as_bytes());
        self.bytes.push(0);
        self.count += 1;
    }

    fn on(&mut self, option: &str, path: &Path) {
        self.add(option);
        self.add(path);
    }

    fn bind(&mut self, option: &str, from: &Path, to: &Path) {
        self.on(option, from);
        self.add(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a child of the test itself, which ends by itself")]
    fn program_that_hangs_does_not_work_and_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let hangs = folder.path().join("hangs");
        // Not written by this process: a child that another test starts could still have it open.
        let make = "printf '#!/bin/sh\nexec \"$0.sleep\" 60\n' > \"$0\" && chmod 755 \"$0\" && \
                    ln -s \"$(command -v sleep)\" \"$0.sleep\"";
        assert!(Command::new("sh").args(["-c", make]).arg(&hangs).status().unwrap().success());
        assert!(!ends_well(&hangs, Duration::ZERO));
        // A killed process has no command line any more.
        let marker = hangs.as_os_str().as_bytes();
        let is_alive = |process: std::fs::DirEntry| {
            std::fs::read(process.path().join("cmdline"))
                .is_ok_and(|line| line.windows(marker.len()).any(|part| part == marker))
        };
        assert!(!std::fs::read_dir("/proc").unwrap().flatten().any(is_alive));
        assert!(!ends_well(Path::new("/bin/false"), TRIAL_LIMIT));
        assert!(ends_well(Path::new("/bin/true"), TRIAL_LIMIT));
        assert!(!ends_well(&folder.path().join("none"), TRIAL_LIMIT));
    }

    #[test]
    fn all_capabilities_that_are_kept_have_a_name() {
        let named = CAPABILITIES.iter().fold(0, |sum, (number, _)| sum | 1_u64 << number);
        assert_eq!(named, KEPT.bits());
    }
}
