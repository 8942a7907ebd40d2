//! Repositories that commands put where a person's git finds them. Takes a working directory before the first command,
//! looks at what git would find in it later, and moves aside what could make it run a program. The kernel cannot keep
//! commands from making these: they are ordinary files, which become a repository together.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};

use super::ground::{Stamp, stamp};
use crate::repository::{self, Purpose};

/// The checkouts that are worked in.
#[derive(Debug, Default)]
pub(super) struct Planted(Mutex<HashMap<Utf8PathBuf, Checkout>>);

#[derive(Debug)]
struct Checkout {
    /// The repositories that git looked into before the first command.
    before: Vec<Utf8PathBuf>,
    /// Those that its index named when it was read last.
    nested: Vec<Utf8PathBuf>,
    /// The index then; none where it may have changed since.
    stamp: Option<Stamp>,
}

impl Planted {
    /// Remembers a working directory if it is the top of a checkout, before commands run in it.
    pub(super) fn watch(&self, folder: &Utf8Path) {
        let mut all = self.all();
        if all.contains_key(folder) || !has_git(folder) {
            return;
        }
        let nested = repository::gitlinks(folder);
        let before = nested.iter().filter(|nested| has_git(nested)).cloned().collect();
        all.insert(folder.to_owned(), Checkout { before, nested, stamp: None });
    }

    /// All that are watched.
    pub(super) fn watched(&self) -> Vec<Utf8PathBuf> {
        self.all().keys().cloned().collect()
    }

    /// Gives the new places of what was moved.
    pub(super) fn set_aside(&self, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
        if !self.all().contains_key(folder) {
            return Vec::new();
        }
        let mut moved = Vec::new();
        // Where `.git` is broken, git takes the folder itself for the repository.
        if repository::is_bare_by_accident(folder) {
            moved.extend(aside(folder, "HEAD"));
        }
        // Git looks into these when it is called in the outer repository.
        let new = self.new_nested(folder).into_iter().filter(|nested| has_git(nested));
        let doubtful = new.filter(|nested| repository::doubt(nested, Purpose::Change, None).is_some());
        moved.extend(doubtful.filter_map(|nested| aside(&nested, ".git")));
        moved
    }

    /// What the index of a checkout names as repositories, and was none before.
    fn new_nested(&self, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
        // The first is that of this checkout.
        let Some(own) = super::git_folders(folder).into_iter().next() else { return Vec::new() };
        let now = stamp(own.join("index").as_std_path());
        let mut all = self.all();
        let Some(checkout) = all.get_mut(folder) else { return Vec::new() };
        if now.is_none() || checkout.stamp != now {
            (checkout.stamp, checkout.nested) = (now, repository::gitlinks(folder));
        }
        checkout.nested.iter().filter(|nested| !checkout.before.contains(nested)).cloned().collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Utf8PathBuf, Checkout>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_git(folder: &Utf8Path) -> bool {
    folder.join(".git").symlink_metadata().is_ok()
}

fn aside(folder: &Utf8Path, name: &str) -> Option<Utf8PathBuf> {
    let aside = folder.join(format!("{name}.refused-{}", uuid::Uuid::new_v4().simple()));
    std::fs::rename(folder.join(name), &aside).ok().map(|()| aside)
}
