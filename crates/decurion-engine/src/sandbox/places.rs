//! Which files a rule or a guarantee is about, as they are on disk now. Takes patterns and folders, gives paths.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::placeholder::Kind;

use crate::footprint;
use crate::permission::{STARTUP_FILES, User, fixed_part, plain, special_parts};
use crate::repository::Named;

/// Our own settings in a working directory, and those of tools like us.
const OWN_SETTINGS: [&str; 3] = [".decurion", ".claude", ".mcp.json"];
/// The settings of editors, by which a program could be made to run something.
const EDITORS_SETTINGS: [&str; 3] = [".vscode", ".idea", ".devcontainer"];

/// The settings in a working directory that commands may not change.
pub(crate) fn settings_in(folder: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    OWN_SETTINGS.iter().chain(&EDITORS_SETTINGS).map(|name| folder.join(name))
}

/// Those in a folder of git that commands may not make either, with what stands for them.
pub(super) fn git_settings_to_hold(git: &Utf8Path, made: &BTreeSet<Utf8PathBuf>) -> Vec<(Utf8PathBuf, Kind)> {
    let mut found = Vec::new();
    for Within { folder, kind } in protected(git, made).filter(|within| within.kind != WithinKind::Closed) {
        let is_worktree = kind == WithinKind::Worktree;
        if !is_worktree {
            // Files in the last two name addresses. Git takes no notice of empty ones.
            found.extend(["hooks", "remotes", "branches"].map(|name| (folder.join(name), Kind::Folder)));
            found.push((folder.join("info/attributes"), Kind::File));
            found.push((folder.join("config"), Kind::File));
            found.push((folder.join("commondir"), Kind::CommonDir));
        }
        // Git reads it only where the settings of the repository say so.
        let repository = if is_worktree { git } else { &folder };
        if small(&repository.join("config"))
            .is_some_and(|text| text.to_lowercase().contains("worktreeconfig"))
        {
            found.push((folder.join("config.worktree"), Kind::File));
        }
    }
    found
}

/// What git's settings name for a checkout, with what stands for it where it does not exist.
pub(super) fn named_by_git(
    top: &Utf8Path,
    git: &[Utf8PathBuf],
    user: User<'_>,
) -> Vec<(Utf8PathBuf, Option<Kind>)> {
    let named = crate::repository::named(top, git, user).into_iter();
    named
        .map(|named| match named {
            Named::Hooks(path) => (path, Some(Kind::Folder)),
            // Git does not work with a folder in its place.
            Named::Settings(path) => (path, Some(Kind::File)),
            Named::Program(path) => (path, None),
        })
        .collect()
}

/// The top of the checkout that a folder is in.
pub(crate) fn top_of(folder: &Utf8Path) -> &Utf8Path {
    let mut above = folder.ancestors();
    above.find(|above| footprint::is_there(&above.join(".git"))).unwrap_or(folder)
}

/// The folders in which git keeps the repository that a folder is in: one, or two for a worktree. None where they lie
/// elsewhere and do not say themselves that they are for this folder: a command can make a file or a link that names
/// any folder.
pub(crate) fn git_folders(folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut names = folder.ancestors().map(|above| above.join(".git"));
    let found = names.find_map(|git| Some((footprint::name(&git).ok()?.file_type(), git)));
    let Some((kind, found)) = found else { return Vec::new() };
    if kind.is_dir() {
        return vec![found];
    }
    let top = found.parent().unwrap_or(folder);
    let place = |path: Utf8PathBuf| footprint::place(&path).ok();
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

/// The tops of all checkouts of the repository that a folder is in, with those that are known already. None where there
/// is only one.
pub(crate) fn checkouts(folder: &Utf8Path, known: impl Iterator<Item = Utf8PathBuf>) -> Vec<Utf8PathBuf> {
    let mut found: Vec<Utf8PathBuf> = known.collect();
    let top = folder.ancestors().find(|above| footprint::is_there(&above.join(".git")));
    found.extend(top.map(Utf8Path::to_owned));
    if let Some(common) = git_folders(folder).pop() {
        found.extend(common.parent().filter(|_| common.file_name() == Some(".git")).map(Utf8Path::to_owned));
        let linked = footprint::entries(&common.join("worktrees"));
        let named = linked.filter_map(|entry| {
            let own = entry.path();
            Some(own.join(small(&own.join("gitdir"))?.trim()))
        });
        found.extend(named.filter_map(|git| git.parent().map(Utf8Path::to_owned)));
    }
    found.sort();
    found.dedup();
    if found.len() > 1 { found } else { Vec::new() }
}

fn is_git(folder: &Utf8PathBuf) -> bool {
    footprint::is_folder(&folder.join("objects")) && footprint::is_file(&folder.join("HEAD"))
}

/// Whether a folder of git says that it is for this checkout: as one of its worktrees, or by its settings, as that of a
/// submodule does.
fn belongs_to(top: &Utf8Path, own: &Utf8Path, common: &Utf8Path) -> bool {
    if own != common {
        let back = small(&own.join("gitdir")).map(|text| own.join(text.trim()));
        return back.and_then(|back| footprint::place(&back).ok())
            == footprint::place(&top.join(".git")).ok();
    }
    let config = small(&own.join("config")).unwrap_or_default();
    let values =
        config.lines().filter_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='));
    let mut named =
        values.filter_map(|value| footprint::place(&own.join(value.trim().trim_matches('"'))).ok());
    own.starts_with(top) || named.any(|named| named == top)
}

/// The text of a small file; none for everything else, such as a pipe.
fn small(path: &Utf8Path) -> Option<String> {
    crate::repository::small(path)
}

/// What in a repository's own folder makes git run programs or names addresses, also that of its submodules and worktrees,
/// but for those that commands made.
pub(super) fn git_settings(git: &Utf8Path, made: &BTreeSet<Utf8PathBuf>) -> Vec<Utf8PathBuf> {
    const NAMES: [&str; 8] = [
        "hooks",
        "config",
        "config.worktree",
        "info/attributes",
        "commondir",
        "gitdir",
        "remotes",
        "branches",
    ];
    let within = protected(git, made);
    let settings = |within: Within| match within.kind {
        WithinKind::Closed => vec![within.folder],
        _ => NAMES.map(|name| within.folder.join(name)).into(),
    };
    within.flat_map(settings).collect()
}

/// The worktrees of a repository that lie in a folder, as git keeps them.
pub(super) fn worktrees_below(git: &Utf8Path, folder: &Utf8Path) -> Vec<Utf8PathBuf> {
    let within = folders_within(git).into_iter().filter(|within| within.kind == WithinKind::Worktree);
    let is_below = |within: &Within| {
        let named = small(&within.folder.join("gitdir")).map(|text| Utf8PathBuf::from(text.trim()));
        named.is_some_and(|named| crate::permission::normal(&named).starts_with(folder))
    };
    within.filter(is_below).map(|within| within.folder).collect()
}

/// A folder in which git keeps a repository or one of its worktrees.
pub(super) struct Within {
    pub folder: Utf8PathBuf,
    pub kind: WithinKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithinKind {
    Repository,
    Worktree,
    /// A folder of these that cannot be listed, is too deep, or has too much in it or names that are not text: not all
    /// that is in it is known.
    Closed,
}

/// As many names of worktrees and of submodules in a folder of git are protected each: a command can make any number.
const MOST_WITHIN: usize = 2_000;
/// As many are looked at to find those that commands made.
const MOST_LOOKED_AT: usize = 100_000;

/// A folder of git, and those of its worktrees and submodules in it, but for worktrees that commands made.
fn protected<'a>(git: &Utf8Path, made: &'a BTreeSet<Utf8PathBuf>) -> impl Iterator<Item = Within> + use<'a> {
    let is_made = |within: &Within| made.iter().any(|made| within.folder.starts_with(made));
    folders_within(git).into_iter().filter(move |within| !is_made(within))
}

/// A folder of git, and those of its worktrees and submodules in it that are protected.
pub(super) fn folders_within(git: &Utf8Path) -> Vec<Within> {
    within(git, MOST_WITHIN)
}

/// The same for a look at what commands made.
pub(super) fn all_within(git: &Utf8Path) -> Vec<Within> {
    within(git, MOST_LOOKED_AT)
}

fn within(git: &Utf8Path, most: usize) -> Vec<Within> {
    /// Submodules of submodules lie in folders of folders.
    const DEEPEST: usize = 16;
    let worktrees = git.join("worktrees");
    let mut found = vec![Within { folder: git.to_owned(), kind: WithinKind::Repository }];
    let mut modules = vec![git.join("modules")];
    let closed = |folder: &Utf8Path| Within { folder: folder.to_owned(), kind: WithinKind::Closed };
    if !is_absent(&worktrees) {
        let mut entries = footprint::entries(&worktrees);
        for entry in entries.by_ref().take(most) {
            // A worktree has submodules of its own.
            modules.push(entry.path().join("modules"));
            found.push(Within { folder: entry.into_path(), kind: WithinKind::Worktree });
        }
        let is_whole = entries.next().is_none() && !footprint::has_unnamed(&worktrees);
        if !is_whole || footprint::is_closed(&worktrees) {
            found.push(closed(&worktrees));
        }
    }
    let modules = modules.iter().filter(|modules| !is_absent(modules));
    let mut folders: Vec<_> = modules.map(|modules| (modules.clone(), modules, DEEPEST)).collect();
    let mut seen = 0;
    while let Some((folder, modules, left)) = folders.pop() {
        if footprint::is_closed(&folder) || footprint::has_unnamed(&folder) {
            found.push(closed(&folder));
        }
        for entry in footprint::entries(&folder) {
            seen += 1;
            if seen > most {
                found.extend(folders.iter().map(|(_, modules, _)| closed(modules)));
                found.push(closed(modules));
                return found;
            }
            // Behind a link everything could be looked through.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = folder.join(entry.file_name());
            if ["HEAD", "config", "objects"].iter().any(|name| footprint::leads_somewhere(&path.join(name))) {
                folders.extend((left > 0).then(|| (path.join("modules"), modules, left - 1)));
                found.push(Within { folder: path, kind: WithinKind::Repository });
            } else if left > 0 && footprint::is_folder(&path) {
                folders.push((path, modules, left - 1));
            } else {
                found.push(closed(&path));
            }
        }
    }
    found
}

/// Whether nothing is certainly at a path: most repositories have neither worktrees nor submodules.
fn is_absent(path: &Utf8Path) -> bool {
    footprint::name(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The settings of programs in a home folder that is worked in: names that begin with a dot, unless a working
/// directory is below.
pub(super) fn dot_names(
    folder: &Utf8Path,
    home: Option<&Utf8Path>,
    folders: &[Utf8PathBuf],
) -> Vec<Utf8PathBuf> {
    let Some(home) = home.filter(|home| home.starts_with(folder)) else { return Vec::new() };
    let entries = footprint::entries(home);
    let dotted =
        entries.filter(|entry| entry.file_name().starts_with('.')).map(|entry| home.join(entry.file_name()));
    dotted.filter(|path| !folders.iter().any(|folder| folder.starts_with(path))).collect()
}

/// What in a home folder that is worked in shells, git and desktops read and run, with what stands for it.
pub(super) fn startup_files_to_hold(folder: &Utf8Path, home: Option<&Utf8Path>) -> Vec<(Utf8PathBuf, Kind)> {
    // Where these exist, commands cannot write there either.
    const FOLDERS: [&str; 3] = [".config", ".local", ".ssh"];
    let Some(home) = home.filter(|home| home.starts_with(folder)) else { return Vec::new() };
    let files = STARTUP_FILES.iter().map(|name| match *name {
        ".bash_profile" => (*name, Kind::BashProfile),
        ".bash_login" => (*name, Kind::BashLogin),
        _ => (*name, Kind::File),
    });
    let folders = FOLDERS.iter().map(|name| (*name, Kind::Folder));
    files.chain(folders).map(|(name, kind)| (home.join(name), kind)).collect()
}

/// The file or folder that a pattern covers with all below it; none where it covers only some of that.
pub(super) fn whole(pattern: &str) -> Option<Utf8PathBuf> {
    let rest = special_parts(pattern);
    rest.iter().all(|part| *part == "**").then(|| fixed_part(pattern))
}

/// The folders in which a pattern with wildcards may cover something. One that begins nowhere in particular is looked
/// for in the working directories. What may not be changed is looked for only where a command may write.
pub(super) fn roots(
    pattern: &str,
    reading: bool,
    folders: &[Utf8PathBuf],
    writable: &BTreeSet<Utf8PathBuf>,
) -> Vec<Utf8PathBuf> {
    let begin = fixed_part(pattern);
    if begin == "/" {
        return folders.to_vec();
    }
    if reading {
        return vec![begin];
    }
    let mut found: Vec<Utf8PathBuf> =
        folders.iter().chain(writable).filter(|folder| folder.starts_with(&begin)).cloned().collect();
    if writable.iter().any(|folder| begin.starts_with(folder)) {
        found.push(begin);
    }
    found
}

/// The name that a pattern means in every folder, if it is about a name alone.
pub(super) fn bare_name(pattern: &str) -> Option<String> {
    pattern.strip_prefix("/**/").filter(|name| !name.contains('/')).and_then(plain)
}

/// What there is of repositories in a folder, but for its own.
#[derive(Debug, Default)]
pub(super) struct Repositories {
    /// Their folders of git: `.git`, which may be a file, or for a repository without a checkout the folder that it lies in.
    pub git: Vec<Utf8PathBuf>,
    /// Folders whose names are not text. Nothing in them is looked at.
    pub unnamed: Vec<PathBuf>,
    /// Whether there is more than was looked at: too many names, or paths that are too long.
    pub is_cut: bool,
}

/// Looks for repositories in a folder. Looks at no more names than it may, nearer ones first. For a folder that cannot be
/// read, `open` is called, and tells whether to try again.
pub(super) fn repositories_in(folder: &Utf8Path, open: &mut dyn FnMut(&Utf8Path) -> bool) -> Repositories {
    /// A folder costs a look of its own, and a file only its name.
    const MOST_FOLDERS: usize = 200_000;
    const MOST_NAMES: usize = 2_000_000;
    let (mut found, mut names, mut seen) = (Repositories::default(), 0, 0);
    let mut folders = VecDeque::from([folder.to_owned()]);
    while let Some(current) = folders.pop_front() {
        let (mut below, mut has_head) = (Vec::new(), false);
        let entries = std::fs::read_dir(&current).or_else(|error| {
            let is_closed = error.kind() == std::io::ErrorKind::PermissionDenied;
            if is_closed && open(&current) { std::fs::read_dir(&current) } else { Err(error) }
        });
        found.is_cut |=
            entries.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::InvalidFilename);
        for entry in entries.into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            (names, seen) = (names + 1, seen + usize::from(is_folder));
            if seen > MOST_FOLDERS || names > MOST_NAMES {
                found.is_cut = true;
                return found;
            }
            let Ok(name) = entry.file_name().into_string() else {
                found.unnamed.extend(is_folder.then(|| entry.path()));
                continue;
            };
            has_head |= name == "HEAD";
            if name == ".git" {
                found.git.extend((current != folder).then(|| current.join(name)));
            } else if is_folder {
                below.push(name);
            }
        }
        if has_head && crate::repository::looks_like_git_folder(&current) {
            found.git.push(current.clone());
        }
        folders.extend(below.iter().map(|name| current.join(name)));
    }
    found
}

/// Whether a folder whose name need not be text is a repository, or has one in it.
pub(super) fn holds_repository(folder: &Path) -> bool {
    const MOST_NAMES: usize = 20_000;
    let mut left = MOST_NAMES;
    let mut folders = VecDeque::from([folder.to_owned()]);
    while let Some(current) = folders.pop_front() {
        let entries = std::fs::read_dir(&current);
        if entries.is_err() {
            // Nobody knows.
            return true;
        }
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            left = left.saturating_sub(1);
            if left == 0 || name == ".git" || name == "HEAD" {
                return true;
            }
            folders.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn repositories_are_found_with_and_without_a_checkout() {
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        for name in
            [".git/objects", "a/b/.git", "x.git/objects/HEAD", "x.git/refs", "x.git/c/.git", "no/refs", "led"]
        {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for (name, text) in
            [("x.git/HEAD", "ref: x"), ("no/HEAD", ""), ("led/HEAD", ""), ("led/commondir", "../x.git")]
        {
            std::fs::write(root.join(name), text).unwrap();
        }
        std::fs::create_dir(root.join("f")).unwrap();
        std::fs::write(root.join("f/.git"), "gitdir: ../x.git\n").unwrap();
        let mut found = repositories_in(&root, &mut |_| false).git;
        found.sort();
        assert_eq!(found, ["a/b/.git", "f/.git", "led", "x.git", "x.git/c/.git"].map(|name| root.join(name)));
        assert_eq!(
            repositories_in(&root.join("x.git"), &mut |_| false).git,
            [root.join("x.git"), root.join("x.git/c/.git")]
        );
    }
}
