//! Ways from a repository to files that are not its own. Takes the folders of git for one checkout; gives what in them
//! makes git read elsewhere: a command that only shows something would show any file of the user that way.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::{is_absent, names_another, small};

/// How long the paths of the folders that are still to be looked at may be together.
const MOST_WAITING_BYTES: usize = 16 << 20;

/// Files in a checkout that git reads by itself.
const READ_BY_GIT: [&str; 5] =
    [".gitignore", ".gitattributes", ".gitmodules", ".mailmap", ".git-blame-ignore-revs"];
/// Files in a folder of git that make it read objects or commits from elsewhere.
const BORROWS: [&str; 3] = ["info/grafts", "objects/info/alternates", "objects/info/http-alternates"];

/// Whether a checkout's folder of git belongs to it: it lies in the checkout, or says itself that it is for this one.
pub(super) fn is_own(top: &Utf8Path, own: &Utf8Path, common: &Utf8Path, stands_here: bool) -> bool {
    let git = top.join(".git");
    if git == own {
        // What is in the folder is looked at as a whole.
        return common == own && std::fs::symlink_metadata(&git).is_ok_and(|found| found.is_dir());
    }
    let Ok(top) = top.canonicalize_utf8() else { return false };
    let named = |file: &Utf8Path, from: &Utf8Path, before: &str| {
        straight(from, small(file)?.strip_prefix(before)?.trim_end_matches(['\n', '\r']))
    };
    let Some(own) = named(&git, &top, "gitdir: ") else { return false };
    if !names_another(&own.join("commondir")) {
        return stands_here || own.starts_with(&top);
    }
    // A checkout that git added to the repository.
    let common = named(&own.join("commondir"), &own, "");
    let back = small(&own.join("gitdir")).map(|text| own.join(text.trim_end_matches(['\n', '\r'])));
    own.parent()
        .is_some_and(|list| list.file_name() == Some("worktrees") && list.parent() == common.as_deref())
        && back.and_then(|back| back.canonicalize_utf8().ok()) == Some(top.join(".git"))
}

/// Where a path leads, if there is no link on its way: behind one it may be another place for another process.
pub(super) fn straight(from: &Utf8Path, value: &str) -> Option<Utf8PathBuf> {
    let from = from.canonicalize_utf8().ok()?;
    // Up only at the beginning, so that no link is left out.
    let mut parts = Utf8Path::new(value).components().skip_while(|part| *part == Utf8Component::ParentDir);
    if value.is_empty() || parts.any(|part| part == Utf8Component::ParentDir) {
        return None;
    }
    let path = decurion_tools::bash::normal(&from.join(value));
    (path.canonicalize_utf8().ok()? == path).then_some(path)
}

/// What in a folder of git makes git read elsewhere. Looks at no more names than are left.
pub(super) fn within(common: &Utf8Path, names_left: &mut usize) -> Option<String> {
    let elsewhere = |path: &Utf8Path| format!("git would read elsewhere, by {path}");
    let mut borrows = BORROWS.iter().map(|name| common.join(name)).filter(|path| !is_absent(path));
    let named = Some(common.join("commondir")).filter(|path| names_another(path));
    if let Some(path) = named.or_else(|| borrows.next()) {
        return Some(elsewhere(&path));
    }
    let (mut folders, mut waiting_bytes) = (vec![common.to_owned()], common.as_str().len());
    while let Some(folder) = folders.pop() {
        waiting_bytes -= folder.as_str().len();
        let unknown = || format!("whether git would read elsewhere is not known: {folder}");
        let Ok(entries) = folder.read_dir_utf8() else { return Some(unknown()) };
        for entry in entries {
            let is_bounded = *names_left > 0 && waiting_bytes <= MOST_WAITING_BYTES;
            let Some(entry) = entry.ok().filter(|_| is_bounded) else { return Some(unknown()) };
            *names_left -= 1;
            let Ok(kind) = entry.file_type() else { return Some(unknown()) };
            // Git only runs what is there, which is looked at as hooks.
            if folder == common && entry.file_name() == "hooks" {
                continue;
            }
            if kind.is_symlink() {
                return Some(elsewhere(entry.path()));
            }
            // Objects, whose names are those of their content.
            let name = entry.file_name();
            let objects = folder.file_name() == Some("objects") && name.len() == 2;
            if kind.is_dir() && !(objects && name.bytes().all(|byte| byte.is_ascii_hexdigit())) {
                waiting_bytes += entry.path().as_str().len();
                folders.push(entry.into_path());
            }
        }
    }
    None
}

/// A file in a checkout that git reads by itself and that is a link to elsewhere.
pub(super) fn beside(top: &Utf8Path) -> Option<String> {
    let links = READ_BY_GIT.iter().map(|name| top.join(name)).filter(|path| path.is_symlink());
    let inside = |path: &Utf8PathBuf| {
        let (path, top) = (path.canonicalize_utf8(), top.canonicalize_utf8());
        matches!((path, top), (Ok(path), Ok(top)) if path.starts_with(&top))
    };
    let mut outside = links.filter(|path| !inside(path));
    outside.next().map(|path| format!("git would read elsewhere, by {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_that_are_looked_at_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let common = Utf8Path::from_path(folder.path()).unwrap().join(".git");
        let mut deep = common.join("refs");
        while deep.as_str().len() < 3_500 {
            deep.push("d".repeat(250));
        }
        std::fs::create_dir_all(&deep).unwrap();
        let mut names_left = 100;
        assert_eq!(within(&common, &mut names_left), None);
        assert!(names_left < 100);
        names_left = 3;
        let doubt = within(&common, &mut names_left).unwrap();
        assert!(doubt.contains("is not known"), "{doubt}");
        // As much as is held for folders that wait.
        for number in 0..=MOST_WAITING_BYTES / 3_500 {
            std::fs::create_dir(deep.join(format!("{number:0>230}"))).unwrap();
        }
        let doubt = within(&common, &mut 1_000_000).unwrap();
        assert!(doubt.contains("is not known"), "{doubt}");
    }
}
