//! Paths outside of the working directories that one command may write, because the answer to a question or a rule
//! allows it. Takes these paths and what the command may write anyway; adds as little as makes them writable.
//!
//! A file can only be made, removed or replaced by changing its folder. So the folder becomes writable and everything
//! else in it read-only.

use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Form;

use super::{Collected, SandboxMaker, ground};
use crate::permission::Around;
use crate::permission::{NamedWrite, is_protected};

/// A folder with more entries is not opened: each of them would have to be made read-only.
const MOST_ENTRIES: usize = 4_000;
/// Of these a command has its own.
const OWN: [&str; 3] = ["/proc", "/dev", "/sys"];

impl SandboxMaker {
    /// Makes these paths writable, but for what is always hidden. What rules deny is taken away again later.
    pub(super) fn open(&self, paths: &mut Collected, opens: &[NamedWrite], around: &Around) {
        let mut folders: Vec<Utf8PathBuf> = Vec::new();
        let mut named: Vec<PathBuf> = Vec::new();
        for NamedWrite { path, replaced } in opens {
            let place = paths.trails.place(path);
            if paths.is_writable(&place)
                || self.is_out_of_reach(paths, &place)
                || is_protected(&place, around)
            {
                continue;
            }
            named.push(place.clone().into());
            let exists = paths.exists(&place);
            if exists && !replaced {
                self.open_whole(paths, &place, around);
                continue;
            }
            let folder = self.folder_to_open(paths, &place, around);
            if folder.is_none() && exists {
                self.open_whole(paths, &place, around);
            }
            folders.extend(folder.filter(|folder| !folders.contains(folder)));
        }
        let before: Vec<PathBuf> = paths.writable.iter().map(|path| path.clone().into()).collect();
        for folder in &folders {
            paths.show(folder);
            paths.write(folder);
        }
        // With Landlock alone nothing could be made in a folder in which something is read-only.
        for folder in folders.iter().filter(|_| self.settings.form != Form::Landlock) {
            let opened = folders.iter().map(|folder| folder.as_std_path());
            let writable: Vec<&Path> =
                before.iter().chain(&named).map(PathBuf::as_path).chain(opened).collect();
            let kept = |entry: &PathBuf| !writable.contains(&entry.as_path());
            for entry in entries(folder).unwrap_or_default().into_iter().filter(kept) {
                restrict(paths, entry);
            }
        }
    }

    /// Opens a file, or a folder but for the settings in it. A folder around the home or a working directory is too much.
    fn open_whole(&self, paths: &mut Collected, place: &Utf8Path, around: &Around) {
        let home = around.home.iter().map(|home| paths.trails.place(home));
        if home.chain(paths.worked_in.iter().cloned()).any(|inner| inner.starts_with(place)) {
            return;
        }
        paths.show(place);
        paths.write(place);
        if self.settings.form == Form::Landlock {
            return;
        }
        let settings = entries(place).unwrap_or_default().into_iter();
        let protected =
            |entry: &PathBuf| Utf8Path::from_path(entry).is_some_and(|entry| is_protected(entry, around));
        settings.filter(protected).for_each(|entry| restrict(paths, entry));
    }

    /// The folder in which something is made, replaced or removed, if it can be opened.
    fn folder_to_open(&self, paths: &Collected, place: &Utf8Path, around: &Around) -> Option<Utf8PathBuf> {
        let is_folder = |path: &&Utf8Path| paths.ground.find(path.as_std_path()) == ground::Found::Folder;
        let folder = place.ancestors().skip(1).find(is_folder)?;
        let temporary = decurion_exec::sandbox::TEMPORARY.contains(&folder.as_str());
        let in_home = around.home.as_deref().is_some_and(|home| home.starts_with(folder));
        // Where nothing in it can be kept read-only, all of a home folder is too much.
        let too_much = in_home && self.settings.form == Form::Landlock;
        let closed = folder == "/" || temporary || too_much || is_protected(folder, around);
        (!closed && entries(folder).is_some()).then(|| folder.to_owned())
    }

    /// Whether a path is always hidden, or a command has its own there.
    fn is_out_of_reach(&self, paths: &Collected, place: &Utf8Path) -> bool {
        let hidden = self.settings.hidden.iter().any(|hidden| place.starts_with(paths.trails.place(hidden)));
        hidden || OWN.iter().any(|folder| place.starts_with(folder))
    }
}

/// What is in a folder; none where that is too much, or cannot be told.
fn entries(folder: &Utf8Path) -> Option<Vec<PathBuf>> {
    let found: Result<Vec<PathBuf>, _> =
        folder.read_dir().ok()?.take(MOST_ENTRIES + 1).map(|entry| entry.map(|entry| entry.path())).collect();
    found.ok().filter(|found| found.len() <= MOST_ENTRIES)
}

/// Keeps a command from changing one entry of a folder that it may write.
fn restrict(paths: &mut Collected, entry: PathBuf) {
    match Utf8PathBuf::from_path_buf(entry) {
        // Where a link leads is not in this folder, or an entry like any other.
        Ok(entry) if entry.is_symlink() => {
            paths.links.insert(entry);
        }
        Ok(entry) => {
            paths.read_only.insert(entry);
        }
        Err(entry) if entry.is_symlink() => {}
        Err(entry) => paths.unnamed_read_only.push(entry),
    }
}
