//! Files in a folder of git by which a person's git writes elsewhere or runs a program. Takes the folder, gives these files
//! and what they say.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use camino::Utf8Path;

use super::planted::ASIDE;
use super::{places, unfinished};
use crate::repository;

/// As many names are looked at in one folder of git.
const MOST_NAMES: usize = 200_000;
/// What git takes its settings from: a link to one of these leads git's own writes into them.
const SETTINGS: [&str; 8] =
    ["hooks", "config", "config.worktree", "commondir", "gitdir", "attributes", "remotes", "branches"];

/// What git writes at the top of its folder, and the folders that it writes in.
const WRITTEN: [&str; 16] = [
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "NOTES_EDITMSG",
    "SQUASH_MSG",
    "index",
    "packed-refs",
    "shallow",
    "logs",
    "modules",
    "objects",
    "refs",
    "rr-cache",
    "worktrees",
];

/// A file, and what it says or where it leads.
pub(super) type Files = BTreeSet<(PathBuf, OsString)>;

/// How far a folder of git is looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The names in the folder itself.
    Top,
    /// All of it, but for the objects.
    Whole,
}

/// The files in a folder of git by which git would write elsewhere or run a program, and whether there is more than was
/// looked at.
pub(super) fn find(git: &Utf8Path, depth: Depth) -> (Files, bool) {
    let within = match depth {
        Depth::Top => vec![git.to_owned()],
        Depth::Whole => places::all_within(git).into_iter().map(|within| within.folder).collect(),
    };
    let stores: BTreeSet<PathBuf> = within.iter().map(|folder| folder.join("objects").into()).collect();
    let (mut found, is_cut) = links(git, depth, &stores);
    let settings = within.iter().flat_map(|folder| unfinished::settings(folder));
    found.extend(settings.map(|(path, text)| (path.into(), text.into())));
    if depth == Depth::Whole {
        found.extend(within.iter().filter_map(|folder| list_of_files(folder)));
    }
    (found, is_cut)
}

/// The list of the files of a checkout in its folder of git if it names other files, with the first of these.
pub(super) fn list_of_files(own: &Utf8Path) -> Option<(PathBuf, OsString)> {
    Some((own.join("index").into(), repository::stray_path(own)?.into()))
}

/// Links through which git would write elsewhere, with where they lead; and folders that cannot be listed, so that such a
/// link may be in them. `stores` are where objects are kept.
fn links(git: &Utf8Path, depth: Depth, stores: &BTreeSet<PathBuf>) -> (Files, bool) {
    let (mut found, mut seen) = (Files::new(), 0);
    let mut folders = VecDeque::from([git.as_std_path().to_owned()]);
    let add = |found: &mut Files, folder: &Path, path: PathBuf| {
        let target = path.read_link().unwrap_or_default();
        found.extend(leads_out(git, folder, &path, &target).then(|| (path, target.into_os_string())));
    };
    // There may be too many other names to come to these.
    for path in WRITTEN.map(|name| git.join(name)).into_iter().filter(|path| path.is_symlink()) {
        add(&mut found, git.as_std_path(), path.into());
    }
    while let Some(folder) = folders.pop_front() {
        let entries = std::fs::read_dir(&folder);
        if entries.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
            found.insert((folder, OsString::new()));
            continue;
        }
        for entry in entries.into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            // Files cost no look of their own.
            seen += usize::from(!kind.is_file());
            if seen > MOST_NAMES {
                return (found, true);
            }
            if kind.is_symlink() {
                let is_aside = folder == git.as_std_path() && name.to_string_lossy().contains(ASIDE);
                if !is_aside {
                    add(&mut found, &folder, path);
                }
            } else if kind.is_dir() && depth == Depth::Whole && !holds_objects(stores, &folder, &name) {
                folders.push_back(path);
            }
        }
    }
    (found, false)
}

/// Whether a folder of git holds objects alone, whose files git makes anew and never opens for writing.
fn holds_objects(stores: &BTreeSet<PathBuf>, folder: &Path, name: &OsStr) -> bool {
    // Git writes in the other folders there by their names.
    let is_hex = name.len() == 2 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit);
    is_hex && stores.contains(folder)
}

/// Whether a link leads out of a folder of git, or to settings in it.
fn leads_out(git: &Utf8Path, folder: &Path, link: &Path, target: &Path) -> bool {
    // Git makes what is not there.
    let absent = || {
        let target = folder.join(target);
        Some(target.parent()?.canonicalize().ok()?.join(target.file_name()?))
    };
    let Some(place) = link.canonicalize().ok().or_else(absent) else { return true };
    let Ok(within) = place.strip_prefix(git) else { return true };
    let is_setting = |part: Component<'_>| SETTINGS.iter().any(|name| part.as_os_str() == *name);
    // Git would take what is behind it for a worktree or a submodule of this name.
    let is_repository =
        link.strip_prefix(git).is_ok_and(|link| link.starts_with("modules") || link.starts_with("worktrees"));
    // A link to a link that leads nowhere is followed by git again.
    is_repository
        || place.is_symlink()
        || within.components().next().is_none()
        || within.components().any(is_setting)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn links_that_lead_out_of_a_folder_of_git_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let git = root.join(".git");
        let named_objects = "logs/refs/heads/objects/ab";
        for name in ["refs/heads", "objects/ab", "worktrees/w", named_objects, "logs/objects/not hex"] {
            std::fs::create_dir_all(git.join(name)).unwrap();
        }
        std::fs::write(root.join("file"), "").unwrap();
        let links = [
            ("FETCH_HEAD", "../file", true),
            ("MERGE_MSG", "../absent", true),
            ("SQUASH_MSG", "../no/folder", true),
            ("COMMIT_EDITMSG", "config", true),
            ("MERGE_MODE", "dangling", true),
            ("dangling", "../absent", true),
            ("logs/other", "..", true),
            ("logs/refs/heads/objects/ab/x", "/file", true),
            ("logs/objects/not hex/x", "/file", true),
            ("worktrees/w/ORIG_HEAD", "/file", true),
            ("HEAD", "refs/heads/main", false),
            ("refs/heads/z", "../../packed-refs", false),
            ("objects/ab/c", "../../../file", false),
            ("index.refused-1", "../file", false),
        ];
        for (link, target, _) in links {
            std::os::unix::fs::symlink(target, git.join(link)).unwrap();
        }
        let unnamed = git.join("logs").join(OsStr::from_bytes(b"\xff"));
        std::os::unix::fs::symlink("/file", &unnamed).unwrap();
        let named = |depth| {
            find(Utf8Path::from_path(&git).unwrap(), depth)
                .0
                .into_iter()
                .map(|(path, _)| path)
                .collect::<BTreeSet<_>>()
        };
        let expected = |top: bool| {
            let all = links.iter().filter(|(link, _, found)| *found && !(top && link.contains('/')));
            let all = all.map(|(link, ..)| git.join(link));
            all.chain(Some(unnamed.clone()).filter(|_| !top)).collect::<BTreeSet<_>>()
        };
        assert_eq!(named(Depth::Whole), expected(false));
        assert_eq!(named(Depth::Top), expected(true));
    }
}
