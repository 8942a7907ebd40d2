//! Reading small files that anyone may have put there. Takes a path and a bound, gives the bytes, nothing
//! where there is no file, or what is wrong. Never waits: a pipe or a device in a settings file's place is
//! refused rather than read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use camino::Utf8Path;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("not an ordinary file")]
    NotAFile,
    #[error("longer than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Io(#[from] io::Error),
}

// NONBLOCK: opening a pipe that nobody writes to must not hang the start.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The bytes of a file, or none if there is no such file.
pub(crate) fn whole(path: &Utf8Path, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
    open(path)?.map(|file| bounded(file, limit)).transpose()
}

/// Opens an ordinary file, or gives none if there is no such file.
pub(crate) fn open(path: &Utf8Path) -> Result<Option<File>, ReadError> {
    ordinary(rustix::fs::open(path.as_std_path(), FLAGS, Mode::empty()))
}

/// The same for a path that has no links in it: where there is one by now, the file is not read.
pub(crate) fn open_place(path: &Utf8Path) -> Result<Option<File>, ReadError> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(CWD, path.as_std_path(), FLAGS, Mode::empty(), resolve) {
        // Inside of a sandbox, ours among them.
        Err(Errno::NOSYS) => ordinary(walk(path)),
        opened => ordinary(opened),
    }
}

/// The same name by name.
fn walk(path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
    let passing = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut opened = rustix::fs::openat(CWD, "/", passing, Mode::empty())?;
    let mut names = path.as_str().split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let flags = if names.peek().is_some() { passing } else { FLAGS };
        opened = rustix::fs::openat(&opened, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(opened)
}

fn ordinary(opened: rustix::io::Result<OwnedFd>) -> Result<Option<File>, ReadError> {
    let file = match opened {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::NXIO | Errno::NODEV) => return Err(ReadError::NotAFile),
        Err(error) => return Err(ReadError::Io(error.into())),
    };
    if file.metadata()?.is_file() { Ok(Some(file)) } else { Err(ReadError::NotAFile) }
}

/// All bytes of an open file, if there are not too many. The size it claims is only a hint.
pub(crate) fn bounded(file: File, limit: usize) -> Result<Vec<u8>, ReadError> {
    let claimed = file.metadata().map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(limit));
    let mut bytes = Vec::with_capacity(claimed.min(limit) + 1);
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit { Err(ReadError::TooLarge(limit)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8PathBuf;

    #[test]
    fn a_place_is_not_read_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::fs::write(root.join("real/file"), "text").unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        assert!(open(&root.join("link/file")).unwrap().is_some());
        assert!(open_place(&root.join("real/file")).unwrap().is_some());
        assert!(open_place(&root.join("none")).unwrap().is_none());
        assert!(matches!(open_place(&root.join("link/file")), Err(ReadError::Io(_))));
        assert!(walk(&root.join("real/file")).is_ok());
        assert_eq!(walk(&root.join("none")).unwrap_err(), Errno::NOENT);
        assert_eq!(walk(&root.join("link/file")).unwrap_err(), Errno::NOTDIR);
    }
}
