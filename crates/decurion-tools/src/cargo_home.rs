//! A cargo home for sandboxed commands. Takes the user's and a private folder, gives a home in which cargo finds what the
//! user has downloaded and can put what it downloads itself.
//!
//! The user's own home is read-only for commands, because programs outside of the sandbox build and run what is in it.
//! The private one holds links to its packages. Commands can write where it is made, so everything is made relative to
//! open folders and no link is followed: whatever they put in the way, nothing is made elsewhere.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use decurion_exec::Sandbox;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with, symlinkat};

/// Its name in the private folder.
const NAME: &str = "cargo";
/// So many packages of the user are linked. More take longer than to download a few again.
const MOST: usize = 20_000;

/// The private folders in which this process has made a home, so that it looks at the disk once. Without the links that a
/// command removed, cargo downloads what it needs.
static MADE_IN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Whether [`prepare`] looks at the disk.
pub(crate) fn is_to_be_made(sandbox: &Sandbox) -> bool {
    folder_for(sandbox).is_some_and(|tmp| !is_made_in(tmp))
}

fn is_made_in(tmp: &Path) -> bool {
    MADE_IN.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|made| made == tmp)
}

/// A command that only reads finds what others have downloaded.
fn folder_for(sandbox: &Sandbox) -> Option<&Path> {
    sandbox.shown_tmp.as_deref().or(sandbox.tmp.as_deref())
}

/// The cargo home of a command in this sandbox, which is made if it is not there yet; none where it is the user's own:
/// without a private folder, or where settings let commands write there.
pub(crate) fn prepare(variables: &[(OsString, OsString)], sandbox: &Sandbox) -> Option<PathBuf> {
    let own = users(variables);
    let writable = |own: &PathBuf| sandbox.writable.iter().any(|folder| own.starts_with(folder));
    let tmp = folder_for(sandbox).filter(|_| !own.as_ref().is_some_and(writable))?;
    let home = tmp.join(NAME);
    if !is_made_in(tmp) {
        // Without the links cargo downloads what it needs, so no command fails for want of them.
        let made = own.filter(|_| home.symlink_metadata().is_err()).map(|own| make_home(&own, tmp));
        if made.is_none_or(|made| made.is_ok()) {
            MADE_IN.lock().unwrap_or_else(PoisonError::into_inner).push(tmp.to_owned());
        }
    }
    Some(home)
}

/// Makes the home under another name first: commands of several agents start at once, and none finds it half made.
fn make_home(own: &Path, tmp: &Path) -> io::Result<()> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let draft = format!("{NAME}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let folder = open(CWD, tmp.as_os_str())?;
    let home = make(&folder, draft.as_ref())?;
    let made = fill(own, &home)
        .and_then(|()| Ok(renameat_with(&folder, &draft, &folder, NAME, RenameFlags::NOREPLACE)?));
    if made.is_err() {
        // Another was faster, or the disk is full. Links are not followed here either.
        let _ = std::fs::remove_dir_all(tmp.join(&draft));
    }
    made
}

fn fill(own: &Path, home: &OwnedFd) -> io::Result<()> {
    for name in ["bin", "config", "config.toml", "env", "git"] {
        link(&own.join(name), home, name.as_ref())?;
    }
    let registry = make(home, "registry".as_ref())?;
    // The index as a whole: what cargo cannot keep of it, it fetches again.
    link_below(&own.join("registry/index"), &registry, "index", 1)?;
    link_below(&own.join("registry/cache"), &registry, "cache", 1)?;
    link_below(&own.join("registry/src"), &registry, "src", 1)
}

/// Makes a folder in which each entry of `from` is a link, or for so many levels a folder of links.
fn link_below(from: &Path, parent: &OwnedFd, name: &str, levels: usize) -> io::Result<()> {
    let folder = make(parent, name.as_ref())?;
    let Ok(entries) = from.read_dir() else { return Ok(()) };
    for entry in entries.flatten().take(MOST) {
        let name = entry.file_name();
        match name.to_str() {
            Some(text) if levels > 0 && entry.path().is_dir() => {
                link_below(&entry.path(), &folder, text, levels - 1)?;
            }
            _ => link(&entry.path(), &folder, &name)?,
        }
    }
    Ok(())
}

/// The user's own home.
fn users(variables: &[(OsString, OsString)]) -> Option<PathBuf> {
    let get = |wanted: &str| variables.iter().rev().find(|(name, _)| name == wanted).map(|(_, value)| value);
    let named = get("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| get("HOME").map(|home| Path::new(home).join(".cargo"))).filter(|home| home.is_absolute())
}

fn open(folder: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

fn make(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    mkdirat(folder, name, Mode::RWXU)?;
    open(folder, name)
}

fn link(target: &Path, folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if target.symlink_metadata().is_ok() {
        symlinkat(target, folder, name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn variables(home: &Path) -> Vec<(OsString, OsString)> {
        vec![("HOME".into(), home.into())]
    }

    #[test]
    fn packages_of_the_user_are_linked_and_folders_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let (home, tmp) = (folder.path().join("home"), folder.path().join("tmp"));
        fs::create_dir_all(home.join(".cargo/registry/cache/index-1")).unwrap();
        fs::write(home.join(".cargo/registry/cache/index-1/a-1.crate"), "a").unwrap();
        fs::create_dir(&tmp).unwrap();
        let sandbox = Sandbox { tmp: Some(tmp.clone()), ..Sandbox::default() };
        for _ in 0..2 {
            assert_eq!(prepare(&variables(&home), &sandbox), Some(tmp.join("cargo")));
        }
        let cache = tmp.join("cargo/registry/cache/index-1");
        assert!(cache.symlink_metadata().unwrap().is_dir());
        assert_eq!(
            fs::read_link(cache.join("a-1.crate")).unwrap(),
            home.join(".cargo/registry/cache/index-1/a-1.crate")
        );
        assert!(!tmp.join("cargo/credentials.toml").exists());
    }

    #[test]
    fn no_link_in_the_way_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (tmp, outside) = (folder.path().join("tmp"), folder.path().join("outside"));
        fs::create_dir(&tmp).unwrap();
        fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, tmp.join("cargo")).unwrap();
        let sandbox = Sandbox { tmp: Some(tmp.clone()), ..Sandbox::default() };
        prepare(&variables(folder.path()), &sandbox);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn commands_that_start_at_once_all_find_the_whole_home() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        let cache = "registry/cache/index-1";
        fs::create_dir_all(home.join(".cargo").join(cache)).unwrap();
        fs::create_dir(home.join(".cargo/registry/src")).unwrap();
        for number in 0..20 {
            fs::write(home.join(".cargo").join(cache).join(format!("a-{number}.crate")), "a").unwrap();
        }
        for round in 0..5 {
            let tmp = folder.path().join(round.to_string());
            fs::create_dir(&tmp).unwrap();
            let sandbox = Sandbox { tmp: Some(tmp.clone()), ..Sandbox::default() };
            let start = || {
                let made = prepare(&variables(&home), &sandbox).unwrap();
                assert_eq!(fs::read_dir(made.join(cache)).unwrap().count(), 20);
                assert!(made.join("registry/src").is_dir());
            };
            std::thread::scope(|scope| {
                for thread in [(); 4].map(|()| scope.spawn(start)) {
                    thread.join().unwrap();
                }
            });
            assert_eq!(fs::read_dir(&tmp).unwrap().count(), 1, "drafts are removed");
        }
    }

    #[test]
    fn a_home_that_commands_may_write_is_used_itself() {
        let sandbox = Sandbox {
            tmp: Some("/nowhere".into()),
            writable: vec!["/home/u/.cargo".into()],
            ..Sandbox::default()
        };
        assert_eq!(prepare(&variables(Path::new("/home/u")), &sandbox), None);
        assert_eq!(prepare(&variables(Path::new("/home/v")), &sandbox), Some("/nowhere/cargo".into()));
    }
}
