//! Secrets that every test home has. Takes the folders of a home when a test is done with it, gives the files in which
//! one of the secrets turned up: neither our own files nor those of commands may hold one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The key that programs under test are given for their provider.
pub const PROVIDER_KEY: &str = "canary-4c1d-provider-key";
/// What a secret file in each home folder holds.
const FILE_KEY: &str = "canary-4c1d-file-of-a-person";
/// What both begin with.
const CANARY: &[u8] = b"canary-4c1d-";
/// Larger files are binaries and floods.
const LARGEST: u64 = 16 << 20;

/// Puts a secret file in a home folder.
pub(super) fn plant(home: &Path) -> io::Result<()> {
    fs::create_dir(home.join(".ssh"))?;
    fs::write(file_in(home), FILE_KEY)
}

/// The secret file of a home folder.
pub fn file_in(home: &Path) -> PathBuf {
    home.join(".ssh/canary")
}

/// Whether a text holds a secret.
pub(crate) fn is_in(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, CANARY).is_some()
}

/// The files below a folder that hold a secret, but for the secret file itself.
pub(super) fn files_with_one(folder: &Path, planted: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(status) = entry.path().symlink_metadata() else { continue };
            let path = entry.path();
            if status.is_dir() {
                folders.push(path);
            } else if status.is_file() && status.len() <= LARGEST && path != planted {
                // One that the test has made unreadable is not looked at.
                if fs::read(&path).is_ok_and(|bytes| is_in(&bytes)) {
                    found.push(path);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::Home;

    #[test]
    fn a_secret_that_was_copied_is_found() {
        let home = Home::new().unwrap();
        let planted = file_in(&home.home());
        assert_eq!(files_with_one(home.path(), &planted), Vec::<PathBuf>::new());
        let copy = home.work().join("copy");
        fs::copy(&planted, &copy).unwrap();
        assert_eq!(files_with_one(home.path(), &planted), [copy]);
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(home)));
        assert!(dropped.is_err());
    }
}
