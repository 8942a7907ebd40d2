//! Which files a rule or a guarantee is about, as they are on disk now. Takes patterns and folders, gives paths.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use camino::{Utf8Path, Utf8PathBuf};

use crate::permission::{fixed_part, pattern_covers, special_parts};

/// More files than this are not looked through for one rule.
pub(super) const MOST: usize = 200_000;
/// A folder that was changed this shortly before it was read may have been changed again since, at the same time by
/// its file system's clock.
const UNSURE: Duration = Duration::from_secs(2);

/// Files in a working directory by which a program could be made to run something, or to change what we allow.
const SETTINGS: [&str; 6] = [".decurion", ".claude", ".mcp.json", ".vscode", ".idea", ".devcontainer"];

/// The settings in a working directory that commands may not change.
pub(super) fn settings_in(folder: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    SETTINGS.iter().map(|name| folder.join(name)).collect::<Vec<_>>().into_iter()
}

/// Empty folders in place of settings that do not exist yet: only what exists can be made read-only. An empty folder
/// is nothing to git, and none of ours stays when the program ends.
#[derive(Debug, Default)]
pub(super) struct Placeholders(Mutex<BTreeSet<Utf8PathBuf>>);

impl Placeholders {
    /// What is held open in the folder of a repository; elsewhere trust protects.
    const NAMES: [&str; 4] = [".decurion", ".claude", ".vscode", ".git/hooks"];

    pub fn make(&self, folder: &Utf8Path) {
        if !folder.join(".git").is_dir() {
            return;
        }
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in Self::NAMES.map(|name| folder.join(name)) {
            // One that is empty already was left by a process that was killed.
            let ours = std::fs::create_dir(&path).is_ok()
                || std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
            if ours {
                made.insert(path);
            }
        }
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for path in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).iter() {
            // Fails for one that is not empty any more, which is another's by now.
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// The folders in which git keeps the repository that a folder is in: one, or two for a worktree. None where they lie
/// elsewhere and do not say themselves that they are for this folder: a command can make a file or a link that names
/// any folder.
pub(crate) fn git_folders(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut names = folder.ancestors().map(|above| above.join(".git"));
    let found = names.find_map(|git| Some((git.symlink_metadata().ok()?.file_type(), git)));
    let Some((kind, found)) = found else { return Vec::new() };
    if kind.is_dir() {
        return vec![found];
    }
    let top = found.parent().unwrap_or(folder);
    let place = |path: Utf8PathBuf| path.canonicalize_utf8().ok();
    if kind.is_symlink() {
        let inside = |path: &Utf8PathBuf| path.starts_with(top) && is_git(path);
        return place(found.clone()).filter(inside).into_iter().collect();
    }
    let text = small(&found).unwrap_or_default();
    let Some(named) = text.strip_prefix("gitdir:").map(str::trim) else { return Vec::new() };
    let Some(own) = place(top.join(named)) else { return Vec::new() };
    let common = small(&own.join("commondir")).map_or_else(|| own.clone(), |text| own.join(text.trim()));
    let Some(common) = place(common).filter(|common| is_git(common) && own.starts_with(common)) else {
        return Vec::new();
    };
    if !belongs_to(top, &own, &common) {
        return Vec::new();
    }
    if own == common { vec![own] } else { vec![own, common] }
}

fn is_git(folder: &Utf8PathBuf) -> bool {
    folder.join("objects").is_dir() && folder.join("HEAD").is_file()
}

/// Whether a folder of git says that it is for this checkout: as one of its worktrees, or by its settings, as that of a
/// submodule does.
fn belongs_to(top: &Utf8Path, own: &Utf8Path, common: &Utf8Path) -> bool {
    if own != common {
        let back = small(&own.join("gitdir")).map(|text| own.join(text.trim()));
        return back.and_then(|back| back.canonicalize_utf8().ok())
            == top.join(".git").canonicalize_utf8().ok();
    }
    let config = small(&own.join("config")).unwrap_or_default();
    let values =
        config.lines().filter_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='));
    let mut named =
        values.filter_map(|value| own.join(value.trim().trim_matches('"')).canonicalize_utf8().ok());
    own.starts_with(top) || named.any(|named| named == top)
}

/// The text of a small file; none for everything else, such as a pipe.
fn small(path: &Utf8Path) -> Option<String> {
    crate::repository::small(path)
}

/// What in a repository's own folder makes git run programs, also that of its submodules and worktrees.
pub(super) fn git_settings(git: &Utf8Path) -> Vec<Utf8PathBuf> {
    const NAMES: [&str; 6] = ["hooks", "config", "config.worktree", "info/attributes", "commondir", "gitdir"];
    /// Submodules of submodules lie in folders of folders.
    const DEEPEST: usize = 4;
    let mut found = NAMES.map(|name| git.join(name)).to_vec();
    let worktrees = git.join("worktrees").read_dir_utf8().into_iter().flatten().flatten();
    let own = worktrees.map(|entry| entry.path().join("config.worktree"));
    found.extend(own.filter(|file| file.symlink_metadata().is_ok()));
    let mut folders = vec![(git.join("modules"), DEEPEST)];
    for entry in git.join("worktrees").read_dir_utf8().into_iter().flatten().flatten() {
        found.extend(NAMES.map(|name| entry.path().join(name)));
    }
    while let Some((folder, left)) = folders.pop() {
        for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
            let path = folder.join(entry.file_name());
            if ["HEAD", "config", "objects"].iter().any(|name| path.join(name).exists()) {
                found.extend(NAMES.map(|name| path.join(name)));
                folders.extend((left > 0).then(|| (path.join("modules"), left - 1)));
            } else if left > 0 && path.is_dir() {
                folders.push((path, left - 1));
            }
        }
    }
    found
}

/// Takes away a file by which git would look for a repository's settings elsewhere. It belongs to worktrees alone, and
/// cannot be kept from being made in another repository: git refuses to work beside whatever else has its name. Gives
/// where it was put.
pub(super) fn undo_redirection(folder: &Utf8Path) -> Option<Utf8PathBuf> {
    // The last is that of the repository itself, not of a worktree.
    let git = git_folders(folder).pop()?;
    let redirection = git.join("commondir");
    redirection.symlink_metadata().ok()?;
    let aside = git.join(format!("commondir.refused-{}", uuid::Uuid::new_v4().simple()));
    std::fs::rename(&redirection, &aside).ok().map(|()| aside)
}

/// The settings of programs in a home folder that is worked in: names that begin with a dot, unless a working
/// directory is below.
pub(super) fn dot_names(
    folder: &Utf8Path,
    home: Option<&Utf8Path>,
    folders: &[Utf8PathBuf],
) -> Vec<Utf8PathBuf> {
    let Some(home) = home.filter(|home| home.starts_with(folder)) else { return Vec::new() };
    let entries = home.read_dir_utf8().into_iter().flatten().flatten();
    let dotted =
        entries.filter(|entry| entry.file_name().starts_with('.')).map(|entry| home.join(entry.file_name()));
    dotted.filter(|path| !folders.iter().any(|folder| folder.starts_with(path))).collect()
}

/// The file or folder that a pattern covers with all below it; none where it covers only some of that.
pub(super) fn whole(pattern: &str) -> Option<Utf8PathBuf> {
    let rest = special_parts(pattern);
    rest.iter().all(|part| *part == "**").then(|| fixed_part(pattern))
}

/// What folders contain, read again only where they changed.
#[derive(Debug, Default)]
pub(super) struct Listings(Mutex<HashMap<Utf8PathBuf, Listing>>);

#[derive(Clone, Debug)]
struct Listing {
    changed: SystemTime,
    read: SystemTime,
    entries: Vec<(String, bool)>,
}

impl Listings {
    /// The files and folders that a pattern covers; of a folder that it covers nothing below. Patterns that may cover
    /// anything are looked for in these folders. The error is the folder that has too much in it.
    pub fn matching(&self, pattern: &str, folders: &[Utf8PathBuf]) -> Result<Vec<Utf8PathBuf>, Utf8PathBuf> {
        if let Some(path) = whole(pattern) {
            return Ok(if path == "/" { folders.to_vec() } else { vec![path] });
        }
        let begin = fixed_part(pattern);
        let below = folders.iter().filter(|folder| folder.starts_with(&begin)).cloned();
        let mut roots: Vec<Utf8PathBuf> = below.collect();
        if folders.iter().any(|folder| begin.starts_with(folder)) || (roots.is_empty() && begin != "/") {
            roots.push(begin);
        }
        let mut found = Vec::new();
        for root in roots {
            self.search(&root, pattern, &mut found)?;
        }
        Ok(found)
    }

    fn search(
        &self,
        root: &Utf8Path,
        pattern: &str,
        found: &mut Vec<Utf8PathBuf>,
    ) -> Result<(), Utf8PathBuf> {
        let mut folders = vec![root.to_owned()];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for (name, is_folder) in self.entries(&folder) {
                seen += 1;
                if seen > MOST {
                    return Err(root.to_owned());
                }
                let path = folder.join(name);
                if pattern_covers(pattern, &path) {
                    found.push(path);
                } else if is_folder {
                    folders.push(path);
                }
            }
        }
        Ok(())
    }

    fn entries(&self, folder: &Utf8Path) -> Vec<(String, bool)> {
        let changed = std::fs::symlink_metadata(folder).and_then(|about| about.modified()).ok();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |listing: &&Listing| {
            Some(listing.changed) == changed
                && listing.read.duration_since(listing.changed).is_ok_and(|age| age > UNSURE)
        };
        if let Some(listing) = known.get(folder).filter(fits) {
            return listing.entries.clone();
        }
        #[expect(clippy::disallowed_methods, reason = "compared with the times of files")]
        let read = SystemTime::now();
        let entries: Vec<(String, bool)> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                Some((entry.file_name().into_string().ok()?, is_folder))
            })
            .collect();
        if let Some(changed) = changed {
            known.insert(folder.to_owned(), Listing { changed, read, entries: entries.clone() });
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &[Utf8PathBuf], root: &Utf8Path) -> Vec<String> {
        let mut names: Vec<String> =
            found.iter().map(|path| path.strip_prefix(root).unwrap_or(path).to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn patterns_find_what_is_there_now() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        for name in ["a/b", "keys"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in [".env", "a/.env", "a/b/x.pem", "a/b/y", "keys/k"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let listings = Listings::default();
        let find =
            |pattern: &str| names(&listings.matching(pattern, std::slice::from_ref(&root)).unwrap(), &root);
        assert_eq!(find("/**/.env"), [".env", "a/.env"]);
        assert_eq!(find(&format!("{root}/keys/**")), ["keys"]);
        assert_eq!(find(&format!("{root}/a/**/*.pem")), ["a/b/x.pem"]);
        assert_eq!(find(&format!("{root}/not/there")), ["not/there"]);
        std::fs::write(root.join("a/b/.env"), "").unwrap();
        assert_eq!(find("/**/.env"), [".env", "a/.env", "a/b/.env"]);
    }

    #[test]
    fn the_file_of_a_worktree_names_only_repositories() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let git = root.join("main/.git");
        for name in ["main/.git/objects", "main/.git/worktrees/w", "w", "lie"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(git.join("HEAD"), "ref: refs/heads/main").unwrap();
        std::fs::write(git.join("worktrees/w/commondir"), "../..\n").unwrap();
        std::fs::write(git.join("worktrees/w/gitdir"), format!("{root}/w/.git\n")).unwrap();
        std::fs::write(root.join("w/.git"), format!("gitdir: {git}/worktrees/w\n")).unwrap();
        std::fs::write(root.join("lie/.git"), "gitdir: /etc\n").unwrap();
        assert_eq!(git_folders(&root.join("main")), std::slice::from_ref(&git));
        assert_eq!(git_folders(&root.join("w")), [git.join("worktrees/w"), git.clone()]);
        assert!(git_folders(&root.join("lie")).is_empty());
        // What does not say itself that it is for this folder is not: the file or link may be a command's.
        for name in ["stolen", "linked"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("stolen/.git"), format!("gitdir: {git}\n")).unwrap();
        std::os::unix::fs::symlink(&git, root.join("linked/.git")).unwrap();
        for name in ["stolen", "linked"] {
            assert!(git_folders(&root.join(name)).is_empty(), "{name}");
        }
        std::fs::write(git.join("config"), format!("[core]\n\tworktree = {root}/stolen\n")).unwrap();
        assert_eq!(git_folders(&root.join("stolen")), std::slice::from_ref(&git));
    }
}
