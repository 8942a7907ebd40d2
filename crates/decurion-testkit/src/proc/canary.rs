//! Secrets that every test home has. Takes the folders of a home when a test is done with it, and what the programs that
//! were started in it have printed; gives where one of the secrets turned up: neither files nor output may hold one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

// In two parts each, so that a copy of this file in a test home is no leak.

/// The key that programs under test are given for their provider.
pub const PROVIDER_KEY: &str = concat!("canary-4c1d", "-provider-key");
/// What a secret file in each home folder holds.
const FILE_KEY: &str = concat!("canary-4c1d", "-file-of-a-person");
/// What both begin with.
const CANARY: &[u8] = concat!("canary-4c1d", "-").as_bytes();
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

/// What the programs of a home have printed. Each of them has a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Printed(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    may_leak: AtomicBool,
    /// The programs that printed a secret.
    leaks: Mutex<Vec<String>>,
}

impl Printed {
    /// Searches what a program has printed.
    pub(crate) fn search(&self, program: &str, output: &[u8]) {
        if is_in(output) {
            self.0.leaks.lock().unwrap_or_else(PoisonError::into_inner).push(program.to_owned());
        }
    }

    /// The programs that printed a secret.
    pub(super) fn leaks(&self) -> Vec<String> {
        self.0.leaks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn let_secrets_leak(&self) {
        self.0.may_leak.store(true, Ordering::Relaxed);
    }

    pub(super) fn may_leak(&self) -> bool {
        self.0.may_leak.load(Ordering::Relaxed)
    }
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
    use std::time::Duration;

    use super::*;
    use crate::proc::Home;
    use crate::pty::Pty;
    use crate::tmux::Tmux;

    #[test]
    fn a_secret_that_was_copied_is_found() {
        let home = Home::new().unwrap();
        let planted = file_in(&home.home());
        assert_eq!(files_with_one(home.path(), &planted), Vec::<PathBuf>::new());
        let copy = home.work().join("copy");
        fs::copy(&planted, &copy).unwrap();
        assert_eq!(files_with_one(home.path(), &planted), [copy]);
        assert!(is_refused(home));
    }

    /// Whether the home complains of a secret when it is dropped.
    fn is_refused(home: Home) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(home))).is_err()
    }

    #[test]
    fn a_secret_that_a_program_prints_is_found() {
        const HANG: Duration = Duration::from_secs(60);
        let shows = ["cat ~/.ssh/canary", "cat ~/.ssh/canary >&2"];
        for (command, refused) in
            shows.map(|command| (command, true)).into_iter().chain([("ls ~/.ssh", false)])
        {
            let home = Home::new().unwrap();
            let run = home.program("sh").args(["-c", command]).run(HANG).unwrap();
            assert!(run.ending.is_success());
            assert_eq!(is_refused(home), refused, "{command}");
            let home = Home::new().unwrap();
            let mut pty = Pty::start(&home.program("sh").args(["-c", command]), (80, 24)).unwrap();
            assert!(pty.end(HANG).unwrap().is_some_and(crate::sys::Ending::is_success));
            pty.forget();
            drop(pty);
            assert_eq!(is_refused(home), refused, "{command} in a terminal");
        }
    }

    #[test]
    fn a_secret_on_the_screen_of_tmux_is_found() {
        let home = Home::new().unwrap();
        let tmux =
            Tmux::start(&home.program("sh").args(["-c", "cat ~/.ssh/canary; read x"]), (80, 24)).unwrap();
        tmux.wait(Duration::from_secs(60), |screen| screen.contains("canary")).unwrap();
        drop(tmux);
        assert!(is_refused(home));
    }
}
