//! Files in a folder of git by which a person's git writes elsewhere or runs a program. Takes the folder, gives these files
//! and what they say.

use std::collections::{BTreeSet, VecDeque};

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::{places, unfinished};

/// As many names are looked at in one folder of git.
const MOST_NAMES: usize = 200_000;
/// What git takes its settings from: a link to one of these leads git's own writes into them.
const SETTINGS: [&str; 8] =
    ["hooks", "config", "config.worktree", "commondir", "gitdir", "attributes", "remotes", "branches"];

/// A file, and what it says or where it leads.
pub(super) type Files = BTreeSet<(Utf8PathBuf, String)>;

/// How far a folder of git is looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The names in the folder itself.
    Top,
    /// All of it, but for the objects.
    Whole,
}

/// The files in a folder of git by which git would write elsewhere or run a program.
pub(super) fn find(git: &Utf8Path, depth: Depth) -> Files {
    let mut found = links(git, depth);
    let within = match depth {
        Depth::Top => vec![git.to_owned()],
        Depth::Whole => places::folders_within(git).into_iter().map(|within| within.folder).collect(),
    };
    found.extend(within.iter().flat_map(|folder| unfinished::settings(folder)));
    found
}

/// Links through which git would write elsewhere, with where they lead.
fn links(git: &Utf8Path, depth: Depth) -> Files {
    let (mut found, mut seen) = (Files::new(), 0);
    let mut folders = VecDeque::from([git.to_owned()]);
    while let Some(folder) = folders.pop_front() {
        for entry in folder.read_dir_utf8().into_iter().flatten().flatten() {
            seen += 1;
            if seen > MOST_NAMES {
                return found;
            }
            let path = folder.join(entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_symlink() {
                let aside = folder == git && entry.file_name().contains(super::planted::ASIDE);
                let target = path.read_link_utf8().map(String::from).unwrap_or_default();
                found.extend((!aside && leads_out(git, &folder, &path, &target)).then_some((path, target)));
            } else if kind.is_dir() && depth == Depth::Whole && !holds_objects(&folder, entry.file_name()) {
                folders.push_back(path);
            }
        }
    }
    found
}

/// Whether a folder of git holds objects alone, whose files git makes anew and never opens for writing.
fn holds_objects(folder: &Utf8Path, name: &str) -> bool {
    folder.file_name() == Some("objects") && name.len() == 2
}

/// Whether a link leads out of a folder of git, or to settings in it.
fn leads_out(git: &Utf8Path, folder: &Utf8Path, link: &Utf8Path, target: &str) -> bool {
    // Git makes what is not there.
    let absent = || {
        let target = folder.join(target);
        Some(target.parent()?.canonicalize_utf8().ok()?.join(target.file_name()?))
    };
    let Some(place) = link.canonicalize_utf8().ok().or_else(absent) else { return true };
    let Ok(within) = place.strip_prefix(git) else { return true };
    let is_setting = |part: Utf8Component<'_>| SETTINGS.contains(&part.as_str());
    within.components().next().is_none() || within.components().any(is_setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_out_of_a_folder_of_git_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let git = root.join(".git");
        for name in ["refs/heads", "objects/ab", "logs", "worktrees/w"] {
            std::fs::create_dir_all(git.join(name)).unwrap();
        }
        std::fs::write(root.join("file"), "").unwrap();
        let links = [
            ("FETCH_HEAD", "../file", true),
            ("MERGE_MSG", "../absent", true),
            ("SQUASH_MSG", "../no/folder", true),
            ("COMMIT_EDITMSG", "config", true),
            ("logs/refs", "..", true),
            ("worktrees/w/ORIG_HEAD", "/file", true),
            ("HEAD", "refs/heads/main", false),
            ("refs/heads/z", "../../packed-refs", false),
            ("objects/ab/c", "../../../file", false),
            ("index.refused-1", "../file", false),
        ];
        for (link, target, _) in links {
            std::os::unix::fs::symlink(target, git.join(link)).unwrap();
        }
        let named = |depth| find(&git, depth).into_iter().map(|(path, _)| path).collect::<BTreeSet<_>>();
        let expected = |top: bool| {
            let all = links.iter().filter(|(link, _, found)| *found && !(top && link.contains('/')));
            all.map(|(link, ..)| git.join(link)).collect::<BTreeSet<_>>()
        };
        assert_eq!(named(Depth::Whole), expected(false));
        assert_eq!(named(Depth::Top), expected(true));
    }
}
