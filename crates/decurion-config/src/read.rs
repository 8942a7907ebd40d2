//! Reading small files that anyone may have put there. Takes a path and a bound, gives the bytes, nothing
//! where there is no file, or what is wrong. Never waits: a pipe or a device in a settings file's place is
//! refused rather than read.

use std::fs::File;
use std::io::{self, Read};

use camino::Utf8Path;
use rustix::fs::{Mode, OFlags};
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

/// The bytes of a file, or none if there is no such file.
pub(crate) fn whole(path: &Utf8Path, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
    open(path)?.map(|file| bounded(file, limit)).transpose()
}

/// Opens an ordinary file, or gives none if there is no such file.
pub(crate) fn open(path: &Utf8Path) -> Result<Option<File>, ReadError> {
    // NONBLOCK: opening a pipe that nobody writes to must not hang the start.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path.as_std_path(), flags, Mode::empty()) {
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
