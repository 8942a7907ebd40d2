//! One directory, held open. Takes single names, gives files opened relative to the handle: no link is
//! followed, nothing but a regular file is opened, and what is made is private to its owner.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// A directory by its handle; its path is kept for messages only.
#[derive(Debug)]
pub(crate) struct DirHandle {
    handle: OwnedFd,
    path: Utf8PathBuf,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// To read what is there.
    Read,
    /// To read and to add at the end; made if it is not there.
    Append,
    /// The same, and it must be there.
    AppendExisting,
    /// The same, and it must not be there yet.
    New,
    /// To overwrite parts of what is there.
    InPlace,
}

impl DirHandle {
    /// The state folder, or another root that the caller vouches for: links on the way to it are followed.
    pub(crate) fn root(path: &Utf8Path, create: bool) -> io::Result<Self> {
        if create && !path.is_dir() {
            make_root(path)?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path.as_std_path(), flags, Mode::empty())?;
        Ok(Self { handle, path: path.to_owned() })
    }

    /// A folder in this one.
    pub(crate) fn sub(&self, name: &str, create: bool) -> io::Result<Self> {
        check(name)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::openat(&self.handle, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if create => {
                match rustix::fs::mkdirat(&self.handle, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                rustix::fs::openat(&self.handle, name, flags, Mode::empty())?
            }
            other => other?,
        };
        Ok(Self { handle, path: self.path.join(name) })
    }

    /// A regular file in this folder.
    pub(crate) fn file(&self, name: &str, how: How) -> io::Result<File> {
        check(name)?;
        // Non-blocking, so that a pipe put in a file's place cannot hold us up before we see what it is.
        let common = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let flags = common
            | match how {
                How::Read => OFlags::RDONLY,
                How::Append => OFlags::RDWR | OFlags::APPEND | OFlags::CREATE,
                How::AppendExisting => OFlags::RDWR | OFlags::APPEND,
                How::New => OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL,
                How::InPlace => OFlags::RDWR,
            };
        let handle = rustix::fs::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?;
        if FileType::from_raw_mode(rustix::fs::fstat(&handle)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(File::from(handle))
    }

    /// A small file's content; one larger than `limit` is an error.
    pub(crate) fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file(name, How::Read)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "file is larger than it may be"));
        }
        Ok(bytes)
    }

    /// Writes a file whose name stands for its content: one that is there and whole stays as it is. Gives back a
    /// handle of what is there.
    pub(crate) fn put_once(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        check(name)?;
        // A power loss can leave the name with nothing, or zeros, behind it; then it is written again.
        let limit = bytes.len() as u64;
        if self.read(name, limit).is_ok_and(|there| there == bytes) {
            return self.file(name, How::Read);
        }
        self.replace(name, bytes)
    }

    /// Writes a file that is either the old one or the new one, never a part.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        self.replace_with(name, |file| file.write_all(bytes))
    }

    /// The same so that it survives a power loss.
    pub(crate) fn replace_synced(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace_with(name, |file| file.write_all(bytes).and_then(|()| file.sync_data()))?;
        self.sync()
    }

    /// Puts a copy that can be written in the place of a file that can only be read; it survives a power loss.
    pub(crate) fn replace_by_copy(&self, name: &str) -> io::Result<File> {
        let mut old = self.file(name, How::Read)?;
        self.replace_with(name, |file| io::copy(&mut old, file).and_then(|_| file.sync_data()))?;
        self.sync()?;
        self.file(name, How::AppendExisting)
    }

    /// The same, where `fill` writes the new one. If that fails, the old one stays.
    pub(crate) fn replace_with(
        &self,
        name: &str,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        check(name)?;
        let temporary = format!(".{}.tmp", random_word());
        let mut file = self.temporary(&temporary)?;
        match fill(&mut file).and_then(|()| self.rename(&temporary, name)) {
            Ok(()) => Ok(file),
            Err(error) => {
                let _ = self.remove(&temporary);
                Err(error)
            }
        }
    }

    /// Writes a file that is whole or not there; one that is there stays, which is an error. `synced`, so that it
    /// survives a power loss.
    pub(crate) fn put_new(&self, name: &str, bytes: &[u8], synced: bool) -> io::Result<()> {
        check(name)?;
        let temporary = format!(".{}.tmp", random_word());
        let mut file = self.temporary(&temporary)?;
        let written = file.write_all(bytes).and_then(|()| if synced { file.sync_data() } else { Ok(()) });
        let linked = written.and_then(|()| {
            let flags = AtFlags::empty();
            Ok(rustix::fs::linkat(&self.handle, temporary.as_str(), &self.handle, name, flags)?)
        });
        let _ = self.remove(&temporary);
        if synced { linked.and_then(|()| self.sync()) } else { linked }
    }

    /// A file that will be renamed. Locked, so that one of a dead process can be recognized.
    fn temporary(&self, name: &str) -> io::Result<File> {
        #[cfg(test)]
        faults::make(self);
        let file = self.file(name, How::New)?;
        // Where there are no locks nothing is cleared either.
        let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(file)
    }

    /// Removes the temporary files that dead processes left.
    pub(crate) fn clear_temporaries(&self) {
        let names = self.names().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with('.') && name.strip_suffix(".tmp").is_some()) {
            let Ok(file) = self.file(name, How::AppendExisting) else { continue };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = self.remove(name);
            }
        }
    }

    /// Gives a file another name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check(from)?;
        check(to)?;
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    /// Makes a link of this name to a target.
    pub(crate) fn link(&self, name: &str, target: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.handle, name)?)
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Removes a folder that is empty.
    pub(crate) fn remove_folder(&self, name: &str) -> io::Result<()> {
        check(name)?;
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::REMOVEDIR)?)
    }

    /// Whether there is something of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        check(name).is_ok() && self.stat(name).is_ok()
    }

    /// What is known of a name, without following a link.
    pub(crate) fn stat(&self, name: &str) -> io::Result<rustix::fs::Stat> {
        Ok(rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The names in it that are text, in no order.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            if let Ok(name) = entry?.file_name().to_str()
                && name != "."
                && name != ".."
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Another handle of the same folder.
    pub(crate) fn twin(&self) -> io::Result<Self> {
        Ok(Self { handle: self.handle.try_clone()?, path: self.path.clone() })
    }

    /// Makes the names in it survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        faults::sync(self)?;
        Ok(rustix::fs::fsync(&self.handle)?)
    }

    /// Another handle of the same folder, which has something new to sync: what a failed sync dropped is not written
    /// by the next one of the same handle.
    pub(crate) fn renewed(&self) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, ".", flags, Mode::empty())?;
        let renewed = Self { handle, path: self.path.clone() };
        let temporary = format!(".{}.tmp", random_word());
        drop(renewed.temporary(&temporary)?);
        renewed.remove(&temporary)?;
        Ok(renewed)
    }

    /// Takes a lock, unless another process has it. It goes with the last handle of the folder that is made from this one.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        let lock = || rustix::fs::flock(&self.handle, FlockOperation::NonBlockingLockExclusive);
        match rustix::io::retry_on_intr(lock) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }
}

/// Whether a sync of folders failed and none went well since.
#[derive(Debug, Default)]
pub(crate) struct SyncDoubt(Mutex<bool>);

impl SyncDoubt {
    /// Does `write`, then syncs the folders above what it wrote. The kernel reports a failed sync once and success when
    /// asked again, so after a failure each folder gets a fresh handle and something new to sync. One thread at a time:
    /// another one would believe the handle whose failure was just reported to the first.
    pub(crate) fn sync_after(
        &self,
        write: impl FnOnce() -> io::Result<()>,
        above: &[&DirHandle],
    ) -> io::Result<()> {
        let mut is_doubtful = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write()?;
        let was_doubtful = std::mem::replace(&mut *is_doubtful, true);
        for folder in above {
            if was_doubtful { folder.renewed()?.sync()? } else { folder.sync()? }
        }
        *is_doubtful = false;
        Ok(())
    }
}

/// Makes a folder and those above it that are missing, so that their names survive a power loss. That happens once for
/// a state folder, so that it is not asked whether it must.
fn make_root(path: &Utf8Path) -> io::Result<()> {
    let missing: Vec<&Utf8Path> = path.ancestors().take_while(|above| !above.is_dir()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let synced = missing.iter().rev().try_for_each(|made| match made.parent() {
        Some(above) if !above.as_str().is_empty() => sync_names(above),
        _ => sync_names(Utf8Path::new(".")),
    });
    if synced.is_err() {
        // The next try would believe what is there.
        for made in missing {
            let _ = std::fs::remove_dir(made);
        }
    }
    synced
}

/// Syncs a folder that is not ours. One that may not be read, or cannot be synced, is skipped.
fn sync_names(folder: &Utf8Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced = rustix::fs::open(folder.as_std_path(), flags, Mode::empty()).and_then(rustix::fs::fsync);
    match synced {
        Err(Errno::ACCESS | Errno::PERM | Errno::INVAL | Errno::NOTSUP | Errno::ROFS) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Sixteen hex digits that cannot be guessed.
pub(crate) fn random_word() -> String {
    let mut bytes = [0u8; 8];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // Without a source of randomness the exclusive creation still refuses a name that is taken.
            Err(_) => break,
        }
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}

/// A name is one step, never a path.
fn check(name: &str) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.len() > 255 || name.contains(['/', '\0']) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a file name: {name:?}")));
    }
    Ok(())
}

/// Syncs of folders that fail once and then succeed, as Linux reports them.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::RefCell;
    use std::collections::HashSet;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[derive(Default)]
    struct State {
        failing: Option<Utf8PathBuf>,
        changed: HashSet<Utf8PathBuf>,
        syncs: Vec<(Utf8PathBuf, Sync)>,
    }

    /// A sync of a folder: by which handle, and whether a file was made in it since the one before.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Sync {
        pub(crate) handle: i32,
        pub(crate) has_new: bool,
    }

    thread_local! {
        static STATE: RefCell<State> = RefCell::default();
    }

    /// Lets the next sync of this folder fail on this thread.
    pub(crate) fn fail_next_sync(folder: &Utf8Path) {
        STATE.with_borrow_mut(|state| state.failing = Some(folder.to_owned()));
    }

    /// The syncs of this folder on this thread since the last look.
    pub(crate) fn syncs(folder: &Utf8Path) -> Vec<Sync> {
        let is_of = |(path, _): &mut (Utf8PathBuf, Sync)| path == folder;
        STATE.with_borrow_mut(|state| state.syncs.extract_if(.., is_of).map(|(_, sync)| sync).collect())
    }

    pub(super) fn make(folder: &DirHandle) {
        STATE.with_borrow_mut(|state| state.changed.insert(folder.path.clone()));
    }

    pub(super) fn sync(folder: &DirHandle) -> io::Result<()> {
        STATE.with_borrow_mut(|state| {
            let has_new = state.changed.remove(&folder.path);
            state.syncs.push((folder.path.clone(), Sync { handle: folder.handle.as_raw_fd(), has_new }));
            let fails = state.failing.take_if(|failing| *failing == folder.path).is_some();
            if fails { Err(Errno::IO.into()) } else { Ok(()) }
        })
    }
}
