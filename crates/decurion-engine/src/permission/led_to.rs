//! Where settings lead that programs follow. Takes a working directory, gives the places that links among its protected
//! settings, or git's settings, name: whoever writes there changes what git, an editor or Decurion runs.

use camino::{Utf8Path, Utf8PathBuf};

use crate::footprint;
use crate::repository::{Named, named};
use crate::sandbox::{git_folders, settings_in, top_of};

/// Settings are not nested deeper.
const DEEPEST: usize = 4;
/// Nor are there more of them.
const MOST_NAMES: usize = 2_000;

/// Links are followed, so that the places have none in them.
pub(crate) fn led_to(folder: &Utf8Path, home: Option<&Utf8Path>) -> Vec<Utf8PathBuf> {
    let git = git_folders(folder);
    let top = top_of(folder);
    let paths = named(top, &git, home).into_iter().map(|named| match named {
        Named::Hooks(path) | Named::Settings(path) | Named::Program(path) => path,
    });
    let named = paths.map(|path| path.canonicalize_utf8().unwrap_or(path));
    named.chain(linked_from(folder, &git)).collect()
}

/// The same of links alone.
pub(crate) fn linked_from(folder: &Utf8Path, git: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
    let settings =
        settings_in(folder).chain(git.iter().flat_map(|git| [git.join("hooks"), git.join("config")]));
    let mut found = Vec::new();
    let (mut waiting, mut seen): (Vec<_>, usize) = (settings.map(|path| (path, 0)).collect(), 0);
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
