//! What a killed git left in the repository. Takes what is known to be nobody's any more, removes the files
//! that would keep the next git from working.
//!
//! In a worktree whose session is dead every lock is left over, since all its processes ended with it. Locks
//! that belong to the whole repository might be a person's own: one is removed only where one of our own marks
//! was left, it is newer than the mark, and no process has it open.

use std::fs;
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_store::{Lease, Leases, Mark};

use crate::repository::small;

/// Locks that the whole repository shares and that our commands or those of agents take.
const SHARED: &[&str] =
    &["packed-refs.lock", "packed-refs.new", "config.lock", "objects/maintenance.lock", "gc.pid.lock"];

/// Removes the locks of one worktree and of its branch.
pub(super) fn clear_own(lease: &Lease) {
    // The checkout's `.git` is a file that names the folder; believed only if it is inside the repository.
    let admin = small(&lease.path.join(".git")).unwrap_or_default();
    let admin = Utf8PathBuf::from(admin.trim_start_matches("gitdir:").trim());
    let mut files = vec![lease.repository.join(format!("refs/heads/{}.lock", lease.branch))];
    if admin.parent() == Some(&lease.repository.join("worktrees")) {
        let entries = fs::read_dir(&admin).into_iter().flatten().flatten();
        let paths = entries.filter_map(|entry| Utf8PathBuf::from_path_buf(entry.path()).ok());
        files.extend(paths.filter(|path| path.extension() == Some("lock")));
    }
    for file in files {
        if fs::remove_file(&file).is_ok() {
            tracing::info!(%file, "a lock that a killed git left is gone");
        }
    }
}

/// Makes git forget a worktree whose checkout is not there or not whole: removes the folder that git keeps for
/// it. Not by git itself, which cannot list worktrees at all while one of them is half made.
pub(super) fn forget(lease: &Lease) -> std::io::Result<()> {
    let all = lease.repository.join("worktrees");
    let checkout = lease.path.join(".git");
    // Git names it like the checkout, with a number behind where that name is taken.
    for entry in fs::read_dir(&all).into_iter().flatten().flatten() {
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let Some(number) = name.strip_prefix(&lease.name) else { continue };
        let told = small(&all.join(&name).join("gitdir")).unwrap_or_default();
        let ours = if told.trim().is_empty() { number.is_empty() } else { told.trim() == checkout.as_str() };
        if ours && number.bytes().all(|byte| byte.is_ascii_digit()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    // Git keeps no empty folder of worktrees either.
    let _ = fs::remove_dir(all);
    Ok(())
}

/// Removes the repository's locks that our commands, or those of agents of dead sessions, left; `taken` is a lease
/// of a dead process whose session goes on.
pub(super) fn clear_shared(leases: &Leases, repository: &Utf8Path, taken: Option<&Lease>) {
    let marks = leases.left_marks(repository);
    let marked = marks.iter().filter_map(Mark::since);
    let (all, _) = leases.all(Some(repository)).unwrap_or_default();
    // Agents run git too, and a session that died left its lease open.
    let dead = all.iter().filter(|lease| lease.is_open() && !leases.is_alive(lease.session));
    let begun = dead.chain(taken).map(|lease| SystemTime::from(lease.created));
    if let Some(oldest) = marked.chain(begun).min() {
        for name in SHARED {
            clear_newer(&repository.join(name), oldest);
        }
    }
    for mark in marks {
        if let (Some(reference), Some(since)) = (mark.reference(), mark.since()) {
            clear_newer(&repository.join(format!("{reference}.lock")), since);
        }
        mark.done();
    }
}

fn clear_newer(file: &Utf8Path, oldest: SystemTime) {
    let modified = fs::symlink_metadata(file).and_then(|metadata| metadata.modified());
    if modified.is_ok_and(|modified| modified >= oldest) && !is_open(file) && fs::remove_file(file).is_ok() {
        tracing::info!(%file, "a lock that a killed git left is gone");
    }
}

/// Whether a process that we may look at has the file open.
fn is_open(file: &Utf8Path) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_dir(process.path().join("fd")).ok())
        .flat_map(Iterator::flatten)
        .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| target == file.as_std_path()))
}
