//! Writes into folders that commands can change at the same time. Takes a path or an open folder; follows no symbolic link
//! below it, and replaces nothing that it was not told to replace.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::Utf8Path;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::sandbox::kernel;

/// What may be done to a file or a folder that git makes; the mask of the process takes from it.
const FILE_MODE: u32 = 0o666;
const FOLDER_MODE: u32 = 0o777;

/// Opens a folder; its path must have no symbolic link.
pub(super) fn open(path: &Utf8Path) -> io::Result<OwnedFd> {
    let place = kernel::open_place(&CString::new(path.as_str())?);
    let place = place.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other(format!("there is a symbolic link on the way to {path}")),
        _ => error,
    })?;
    Ok(open_in(place.as_fd(), OsStr::new("."))?)
}

/// Opens a folder in an open one, and makes it first where there is nothing.
pub(super) fn make(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    make_as(folder, name, Mode::from_raw_mode(FOLDER_MODE))
}

fn make_as(folder: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(folder, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open_in(folder, name).map_err(|error| {
        let name = name.to_string_lossy();
        io::Error::new(io::Error::from(error).kind(), format!("{name} is not a folder: {error}"))
    })
}

fn open_in(folder: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Makes a file where there is nothing.
pub(super) fn create_file(folder: BorrowedFd<'_>, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    new_file(folder, name)?.write_all(bytes)
}

fn new_file(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(FILE_MODE))?))
}

/// Makes a file in place of what is there; of a symbolic link, the link is replaced.
pub(super) fn replace_file(folder: BorrowedFd<'_>, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    let new = unfinished(folder);
    create_file(folder, &new, bytes)?;
    rustix::fs::renameat(folder, &new, folder, name).map_err(|error| {
        let _ = rustix::fs::unlinkat(folder, &new, AtFlags::empty());
        error.into()
    })
}

/// A free name, for what gets another name once it is complete.
fn unfinished(folder: BorrowedFd<'_>) -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".decurion-{}-{number}", std::process::id()));
        if rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            return name;
        }
    }
}

/// What an open folder holds.
pub(super) fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        names.extend(Some(name).filter(|name| name != "." && name != ".."));
    }
    Ok(names)
}

/// Moves an entry of a folder that only we can change. Folders are merged; over a file goes only the same file.
pub(super) fn merge(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>) -> io::Result<()> {
    let about = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(about.st_mode) != FileType::Directory {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", name.to_string_lossy()));
        return merge_file(from, name, to).map_err(named);
    }
    let within = open_in(from, name)?;
    let place = make_as(to, name, Mode::from_raw_mode(about.st_mode & FOLDER_MODE))?;
    for entry in names(within.as_fd())? {
        merge(within.as_fd(), &entry, place.as_fd())?;
    }
    Ok(rustix::fs::unlinkat(from, name, AtFlags::REMOVEDIR)?)
}

fn merge_file(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>) -> io::Result<()> {
    let moved = match rename_new(from, name, to, name) {
        Err(Errno::XDEV) => {
            let copy = unfinished(to);
            copy_entry(from, name, to, &copy)?;
            let moved = rename_new(to, &copy, to, name);
            if moved.is_err() {
                let _ = rustix::fs::unlinkat(to, &copy, AtFlags::empty());
            }
            moved
        }
        moved => moved,
    };
    match moved {
        Err(Errno::EXIST) if is_same(from, to, name).unwrap_or(false) => {}
        moved => moved?,
    }
    match rustix::fs::unlinkat(from, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Gives an entry another name, which nothing has.
fn rename_new(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>, new: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
        // The file system, or the sandbox that we run in, has no such call.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(from, name, to, new, AtFlags::empty())?;
            rustix::fs::unlinkat(from, name, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Copies a file, a symbolic link or a folder with all in it, to where there is nothing.
pub(super) fn copy_entry(
    from: BorrowedFd<'_>,
    name: &OsStr,
    to: BorrowedFd<'_>,
    new: &OsStr,
) -> io::Result<()> {
    let about = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::Directory => {
            rustix::fs::mkdirat(to, new, Mode::from_raw_mode(about.st_mode & FOLDER_MODE))?;
            let (within, place) = (open_in(from, name)?, open_in(to, new)?);
            let mut entries = names(within.as_fd())?.into_iter();
            entries.try_for_each(|entry| copy_entry(within.as_fd(), &entry, place.as_fd(), &entry))
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(from, name, Vec::new())?;
            Ok(rustix::fs::symlinkat(target, to, new)?)
        }
        FileType::RegularFile => {
            let (mut file, mut copy) = (open_file(from, name)?, new_file(to, new)?);
            io::copy(&mut file, &mut copy)?;
            copy.set_permissions(fs::Permissions::from_mode(about.st_mode & FOLDER_MODE))
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn open_file(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Whether two folders have the same file of this name.
fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    let (one, other) = (open_file(one, name)?, open_file(other, name)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let both = left.len().min(right.len());
        if both == 0 || left[..both] != right[..both] {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(both);
        other.consume(both);
    }
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    /// From a folder in memory, where there is one: files cannot be renamed from there.
    #[test]
    fn merge_replaces_nothing_and_follows_no_link() {
        let memory = Utf8Path::new("/dev/shm");
        let source = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let (source, target) = (source.unwrap(), tempfile::tempdir().unwrap());
        let path = |folder: &tempfile::TempDir| {
            Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap()
        };
        let (from, to) = (path(&source), path(&target));
        for (name, text) in [("lfs/new", "new"), ("lfs/same", "same"), ("lfs/other", "ours")] {
            fs::create_dir_all(from.join(name).parent().unwrap()).unwrap();
            fs::write(from.join(name), text).unwrap();
        }
        fs::create_dir_all(from.join("linked")).unwrap();
        fs::write(from.join("linked/file"), "ours").unwrap();
        std::os::unix::fs::symlink("new", from.join("lfs/link")).unwrap();
        for name in ["lfs", "outside"] {
            fs::create_dir(to.join(name)).unwrap();
        }
        fs::write(to.join("lfs/same"), "same").unwrap();
        fs::write(to.join("lfs/other"), "theirs").unwrap();
        std::os::unix::fs::symlink("outside", to.join("linked")).unwrap();
        let merge = |name: &str| {
            let (from, to) = (open(&from).unwrap(), open(&to).unwrap());
            merge(from.as_fd(), OsStr::new(name), to.as_fd()).map_err(|error| error.to_string())
        };
        assert!(merge("lfs").unwrap_err().starts_with("other: "));
        fs::remove_file(to.join("lfs/other")).unwrap();
        merge("lfs").unwrap();
        assert!(merge("linked").unwrap_err().starts_with("linked is not a folder"));
        for (name, text) in [("new", "new"), ("same", "same"), ("other", "ours"), ("link", "new")] {
            assert_eq!(fs::read_to_string(to.join("lfs").join(name)).unwrap(), text);
        }
        assert!(!from.join("lfs").exists() && from.join("linked/file").exists());
        assert_eq!(
            (
                fs::read_dir(to.join("lfs")).unwrap().count(),
                fs::read_dir(to.join("outside")).unwrap().count()
            ),
            (4, 0)
        );
    }

    #[test]
    fn copy_is_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/c"), "text").unwrap();
        fs::set_permissions(root.join("a/b/c"), fs::Permissions::from_mode(0o444)).unwrap();
        std::os::unix::fs::symlink("b/c", root.join("a/link")).unwrap();
        let open = open(&root).unwrap();
        let copy = || copy_entry(open.as_fd(), OsStr::new("a"), open.as_fd(), OsStr::new("z"));
        copy().unwrap();
        assert_eq!(fs::read_to_string(root.join("z/link")).unwrap(), "text");
        assert_eq!(fs::read_link(root.join("z/link")).unwrap(), std::path::Path::new("b/c"));
        assert_eq!(fs::metadata(root.join("z/b/c")).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(copy().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn file_is_replaced_and_what_a_link_names_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        fs::write(root.join("theirs"), "theirs").unwrap();
        std::os::unix::fs::symlink("theirs", root.join("link")).unwrap();
        std::os::unix::fs::symlink(".", root.join("here")).unwrap();
        let opened = open(&root).unwrap();
        assert!(create_file(opened.as_fd(), OsStr::new("link"), b"ours").is_err());
        replace_file(opened.as_fd(), OsStr::new("link"), b"ours").unwrap();
        assert_eq!(fs::read_to_string(root.join("theirs")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(root.join("link")).unwrap(), "ours");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 3);
        let error = open(&root.join("here")).unwrap_err().to_string();
        assert!(error.contains("symbolic link on the way"), "{error}");
    }
}
