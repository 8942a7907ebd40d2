//! A file that is made so that one command can write it. Takes a path at which there is nothing, gives an empty file there,
//! and removes it again if the command has not written it.
//!
//! A command can only be given a file that exists; to make one itself it would need the folder.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};

/// Its time of change, in seconds since 1970: one at which nothing else was changed, and that all file systems know.
const MARK: u64 = 345_695_266;

/// An empty file of ours. It goes with this value, unless it was written.
#[derive(Debug)]
pub struct NewFile {
    folder: OwnedFd,
    name: OsString,
    file: File,
    /// When it was changed last, as long as only we did.
    changed: (i64, i64),
}

impl NewFile {
    /// Makes an empty file with the mode that a command's new file has. Fails where something is already, and if a link is
    /// on the way.
    pub fn make(path: &Path, mode: u32) -> io::Result<Self> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let folder = rustix::fs::openat2(CWD, above, flags, Mode::empty(), resolve)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&folder, name, flags, Mode::from_bits_truncate(mode))?);
        let mut made = Self { folder, name: name.to_owned(), file, changed: (0, 0) };
        match made.mark(mode) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    /// Gives it its mode, and a time at which nothing else was changed.
    fn mark(&mut self, mode: u32) -> io::Result<()> {
        if let Some(mask) = crate::limits::command_mask() {
            self.file.set_permissions(Permissions::from_mode(mode & !mask))?;
        }
        self.file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(MARK))?;
        // Not every file system keeps it.
        let marked = self.file.metadata()?;
        self.changed = (marked.mtime(), marked.mtime_nsec());
        Ok(())
    }

    fn remove(&self) {
        // If it cannot be removed any more, an empty file stays.
        let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }

    /// Whether it is still there as it was made.
    fn is_unwritten(&self) -> io::Result<bool> {
        let found = self.file.metadata()?;
        let there = rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_there = (there.st_dev, there.st_ino) == (found.dev(), found.ino());
        let is_untouched = found.len() == 0 && (found.mtime(), found.mtime_nsec()) == self.changed;
        Ok(is_there && is_untouched)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_unwritten().unwrap_or(false) {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_written_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let made: Vec<NewFile> = ["untouched", "written", "emptied", "replaced"]
            .map(|name| NewFile::make(&at(name), 0o666).unwrap())
            .into();
        std::fs::write(at("written"), "x").unwrap();
        std::fs::write(at("emptied"), "").unwrap();
        std::fs::remove_file(at("replaced")).unwrap();
        std::fs::write(at("replaced"), "").unwrap();
        drop(made);
        let left = ["untouched", "written", "emptied", "replaced"].map(|name| at(name).exists());
        assert_eq!(left, [false, true, true, true]);
    }

    #[test]
    fn nothing_is_made_behind_a_link_or_in_place_of_something() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink("real", at("way")).unwrap();
        std::os::unix::fs::symlink("real/target", at("link")).unwrap();
        std::fs::write(at("there"), "x").unwrap();
        for path in ["way/x", "link", "there", "absent/x"] {
            assert!(NewFile::make(&at(path), 0o666).is_err(), "{path}");
        }
        assert!(!at("real/x").exists() && !at("real/target").exists());
    }
}
