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

use decurion_exec::Sandbox;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, symlinkat};

/// Its name in the private folder.
const NAME: &str = "cargo";
/// So many packages of the user are linked. More take longer than to download a few again.
const MOST: usize = 20_000;

/// Where cargo's home is for a command in this sandbox; none where it is the user's own: without a private folder, or where
/// settings let commands write there.
pub(crate) fn private(variables: &[(OsString, OsString)], sandbox: &Sandbox) -> Option<PathBuf> {
    let own = users(variables);
    let writable = |own: &PathBuf| sandbox.writable.iter().any(|folder| own.starts_with(folder));
    // A command that only reads finds what others have downloaded.
    let tmp = sandbox.shown_tmp.as_ref().or(sandbox.tmp.as_ref());
    tmp.filter(|_| !own.as_ref().is_some_and(writable)).map(|tmp| tmp.join(NAME))
}

/// Makes the private home for a text that seems to use cargo, if it is not there yet.
pub(crate) fn prepare(
    text: &str,
    cwd: &Path,
    variables: &[(OsString, OsString)],
    sandbox: Option<&Sandbox>,
) -> io::Result<()> {
    let Some(sandbox) = sandbox else { return Ok(()) };
    let (Some(own), Some(home)) = (users(variables), private(variables, sandbox)) else { return Ok(()) };
    let used = text.contains(NAME) || cwd.ancestors().any(|folder| folder.join("Cargo.toml").exists());
    if !used || home.symlink_metadata().is_ok() {
        return Ok(());
    }
    let Some(tmp) = home.parent() else { return Ok(()) };
    let tmp = open(CWD, tmp.as_os_str())?;
    let home = make(&tmp, NAME.as_ref())?;
    for name in ["bin", "config", "config.toml", "env", "git"] {
        link(&own.join(name), &home, name.as_ref())?;
    }
    let registry = make(&home, "registry".as_ref())?;
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
        prepare("ls", &tmp, &variables(&home), Some(&sandbox)).unwrap();
        assert!(!tmp.join("cargo").exists());
        for _ in 0..2 {
            prepare("cargo build", &tmp, &variables(&home), Some(&sandbox)).unwrap();
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
        prepare("cargo build", &tmp, &variables(folder.path()), Some(&sandbox)).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn a_home_that_commands_may_write_is_used_itself() {
        let sandbox = Sandbox {
            tmp: Some("/tmp/x".into()),
            writable: vec!["/home/u/.cargo".into()],
            ..Sandbox::default()
        };
        assert_eq!(private(&variables(Path::new("/home/u")), &sandbox), None);
        assert_eq!(private(&variables(Path::new("/home/v")), &sandbox), Some("/tmp/x/cargo".into()));
    }
}
