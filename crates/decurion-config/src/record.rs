//! Small records of what the user agreed to or chose, one file each in the state folder. Takes a file, gives
//! what it holds, or changes it under a lock, whole: readers see the old record or the new one.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

use camino::Utf8Path;
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::read;
use crate::trust::hex;

const MAX_BYTES: usize = 4 << 20;

/// What a record holds; nothing where there is none. One that others could have written is not believed.
pub(crate) fn read<T: DeserializeOwned + Default>(
    file: &Utf8Path,
    is_current: impl FnOnce(&T) -> bool,
) -> Result<T, String> {
    let opened = read::open(file).map_err(|error| format!("its record cannot be read ({error})"))?;
    let Some(opened) = opened else { return Ok(T::default()) };
    let metadata = opened.metadata().map_err(|error| format!("its record cannot be read ({error})"))?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.mode() & 0o022 != 0 || (metadata.uid() != user && user != 0) {
        return Err("others can change its record".to_owned());
    }
    let bytes =
        read::bounded(opened, MAX_BYTES).map_err(|error| format!("its record cannot be read ({error})"))?;
    match serde_json::from_slice::<T>(&bytes) {
        Ok(record) if is_current(&record) => Ok(record),
        Ok(_) => Err("its record is of another version".to_owned()),
        Err(_) => Err("its record is damaged".to_owned()),
    }
}

/// Writes what `next` makes of the record as it is on disk now, and gives that.
pub(crate) fn change<T: Serialize>(file: &Utf8Path, next: impl FnOnce() -> T) -> io::Result<T> {
    let _held = lock(&file.with_extension("lock"))?;
    let record = next();
    replace(file, &serde_json::to_vec_pretty(&record)?, None)?;
    Ok(record)
}

/// Waits until nobody else holds this lock; it is held as long as what is given.
pub(crate) fn lock(file: &Utf8Path) -> io::Result<File> {
    let lock = lock_file(file)?;
    // Where locks do not exist the rename still keeps the file whole; the last writer counts.
    let _held = rustix::fs::flock(&lock, FlockOperation::LockExclusive);
    Ok(lock)
}

/// Opens a lock that nobody may hold yet.
pub(crate) fn lock_file(file: &Utf8Path) -> io::Result<File> {
    let folder = file.parent().unwrap_or(file);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    private_file(file, false)
}

/// Written beside, synced, then renamed: readers see the old file or the new one. It is its owner's alone, unless
/// other permissions are given.
pub(crate) fn replace(file: &Utf8Path, bytes: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let beside = file.with_extension(format!("{}.tmp", hex(&random)));
    let written = private_file(&beside, true).and_then(|mut output| {
        output.write_all(bytes)?;
        if let Some(permissions) = permissions {
            output.set_permissions(permissions)?;
        }
        output.sync_all()?;
        fs::rename(&beside, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

fn private_file(path: &Utf8Path, new: bool) -> io::Result<File> {
    let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = File::options();
    options.write(true).mode(0o600).custom_flags(no_follow);
    if new {
        options.create_new(true)
    } else {
        options.create(true).truncate(false)
    };
    options.open(path)
}
