//! Where settings lead that programs follow. Takes a working directory, gives the places that links among its protected
//! settings, or git's settings, name: whoever writes there changes what git, an editor or Decurion runs.

use camino::{Utf8Path, Utf8PathBuf};

use super::User;
use crate::footprint;
use crate::repository::{Named, named};
use crate::sandbox::{git_folders, settings_in, top_of};

/// Settings are not nested deeper.
const DEEPEST: usize = 4;
/// Nor are there more of them.
const MOST_NAMES: usize = 2_000;

/// Links are followed, so that the places have none in them.
pub(crate) fn led_to(folder: &Utf8Path, user: User<'_>) -> Vec<Utf8PathBuf> {
    let git = git_folders(folder);
    let top = top_of(folder);
    let paths = named(top, &git, user).into_iter().map(|named| match named {
        Named::Hooks(path) | Named::Settings(path) | Named::Program(path) => path,
    });
    let named = paths.map(|path| path.canonicalize_utf8().unwrap_or(path));
    named.chain(linked_from(folder, &git, user)).collect()
}

/// The same of links alone, also of those that the user's own settings are: whoever keeps them in a repository of
/// dotfiles, and works there, has them in the working directory.
pub(crate) fn linked_from(folder: &Utf8Path, git: &[Utf8PathBuf], user: User<'_>) -> Vec<Utf8PathBuf> {
    let settings =
        settings_in(folder).chain(git.iter().flat_map(|git| [git.join("hooks"), git.join("config")]));
    let mut found = Vec::new();
    let named = user
        .files
        .into_iter()
        .flat_map(|files| files.git.iter().chain(&files.files).chain(&files.folders))
        .cloned();
    let is_link = |path: &Utf8Path| footprint::name(path).is_ok_and(|found| found.file_type().is_symlink());
    for path in user.home.into_iter().flat_map(settings_of_user) {
        // A folder above may be the link, such as `~/.config`.
        let below = path.ancestors().take_while(|above| Some(*above) != user.home);
        if below.into_iter().any(is_link) {
            found.extend(footprint::place(&path));
        }
    }
    // One that does not exist can be made.
    let made = |path: &Utf8Path| Some(footprint::place(path.parent()?).ok()?.join(path.file_name()?));
    found.extend(named.filter_map(|path| footprint::place(&path).ok().or_else(|| made(&path))));
    let of_user = user.home.into_iter().flat_map(folders_of_user);
    let (mut waiting, mut seen): (Vec<_>, usize) =
        (settings.chain(of_user).map(|path| (path, 0)).collect(), 0);
    while let Some((path, depth)) = waiting.pop() {
        seen += 1;
        let Ok(kind) = footprint::name(&path).map(|found| found.file_type()) else { continue };
        if kind.is_symlink() {
            found.extend(footprint::place(&path));
        } else if kind.is_dir() && depth < DEEPEST && seen < MOST_NAMES {
            waiting.extend(footprint::entries(&path).map(|entry| (entry.into_path(), depth + 1)));
        }
    }
    found
}

/// Folders among these, in which people keep links to what they work on.
fn folders_of_user(home: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    const FOLDERS: [&str; 2] = [".claude", ".decurion"];
    const NAMES: [&str; 5] = ["agents", "commands", "hooks", "plugins", "skills"];
    FOLDERS.into_iter().flat_map(move |folder| NAMES.map(|name| home.join(folder).join(name)))
}

/// The files and folders in a home folder that Decurion, tools like it and git read their settings from.
fn settings_of_user(home: &Utf8Path) -> impl Iterator<Item = Utf8PathBuf> {
    const FOLDERS: [&str; 2] = [".claude", ".decurion"];
    const NAMES: [&str; 12] = [
        "AGENTS.md",
        "CLAUDE.md",
        "agents",
        "bin",
        "commands",
        "hooks",
        "keys.json",
        "mcp.json",
        "plugins",
        "settings.json",
        "settings.local.json",
        "skills",
    ];
    const OTHERS: [&str; 6] =
        [".claude", ".claude.json", ".config/git", ".config/git/config", ".decurion", ".gitconfig"];
    let inner = FOLDERS.into_iter().flat_map(|folder| NAMES.map(|name| format!("{folder}/{name}")));
    let all: Vec<Utf8PathBuf> = inner.chain(OTHERS.map(str::to_owned)).map(|name| home.join(name)).collect();
    all.into_iter()
}
