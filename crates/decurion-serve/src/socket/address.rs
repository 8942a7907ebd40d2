//! Where a socket is. Takes a path of any length, gives a handle of its folder and a name short enough for the
//! system, and keeps both private to their owner.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// The longest path the system takes for a socket, less the zero at its end.
const LONGEST: usize = 107;

/// A socket's path, by its folder and its name in it.
#[derive(Debug)]
pub struct SocketAddress {
    folder: OwnedFd,
    name: String,
    path: Utf8PathBuf,
}

/// The identity of a file, independent of its name: device and number.
pub type SocketIdentity = (u64, u64);

impl SocketAddress {
    /// For the owner: the folder is made if it is not there, and must be private.
    pub fn for_owner(path: &Utf8Path) -> io::Result<Self> {
        if let Some(folder) = path.parent()
            && !folder.is_dir()
        {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let address = Self::open(path)?;
        let stat = rustix::fs::fstat(&address.folder)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let text = format!("the folder of {path} belongs to another user: {}", stat.st_uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if stat.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&address.folder, Mode::RWXU)?;
        }
        Ok(address)
    }

    /// For a client: the folder as it is.
    pub fn open(path: &Utf8Path) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("not a socket's path: {path}"));
        let name = path.file_name().ok_or_else(invalid)?.to_owned();
        let folder = path.parent().filter(|folder| !folder.as_str().is_empty());
        let folder = folder.unwrap_or(Utf8Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder.as_std_path(), flags, Mode::empty())?;
        Ok(Self { folder, name, path: path.to_owned() })
    }

    /// The path to bind or to connect to, which is good as long as this lives.
    pub fn reach(&self) -> PathBuf {
        if self.path.as_str().len() <= LONGEST {
            return self.path.as_std_path().to_owned();
        }
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd())).join(&self.name)
    }

    /// Makes a socket that was just bound the owner's alone.
    pub fn protect(&self) -> io::Result<SocketIdentity> {
        rustix::fs::chmodat(&self.folder, self.name.as_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        self.identity()
    }

    /// Which file has the name now.
    pub fn identity(&self) -> io::Result<SocketIdentity> {
        let stat = rustix::fs::statat(&self.folder, self.name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Removes the file, if there is one.
    pub fn remove(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.folder, self.name.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub fn path(&self) -> &Utf8Path {
        &self.path
    }
}
