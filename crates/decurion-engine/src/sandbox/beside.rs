//! What a command made beside a project that lies below `/tmp`. Commands have a `/tmp` of their own, so that only they see
//! it, and it is removed at the end. Takes the working directories and the text of the command; gives a sentence that says
//! so, once per session. Looks at the disk.

use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::sandbox::TEMPORARY;
use decurion_protocol::{Access, Intent};

use super::SandboxMaker;
use crate::permission::{Around, is_inside};

/// Whether a session was told.
#[derive(Debug, Default)]
pub(super) struct Told(AtomicBool);

impl SandboxMaker {
    /// Whether commands could make something there, and nobody was told of it yet.
    pub(super) fn can_lose(&self, around: &Around) -> bool {
        !self.told_beside.0.load(Ordering::Relaxed)
            && around.places().any(|place| below_temporary(place).is_some())
    }

    /// What commands have made beside the project that nothing else sees, if nobody was told of it yet.
    pub(super) fn lost_beside(&self, around: &Around, seen: &Intent) -> Option<String> {
        let mut projects =
            around.places().filter_map(|place| Some((place.parent()?, below_temporary(place)?)));
        let (above, below) = projects.next().filter(|_| self.can_lose(around))?;
        let private = self.made_temporary()?;
        let lost = |path: &Utf8PathBuf| {
            let own =
                below_temporary(path).is_some_and(|below| private.join(below).symlink_metadata().is_ok());
            own && path.symlink_metadata().is_err()
        };
        // Directly in `/tmp` are the temporary files of every program.
        let has_own_folder = below.components().count() > 1;
        let entries = private.join(below.parent()?).read_dir_utf8().into_iter().flatten().flatten();
        let found = entries.filter(|_| has_own_folder).map(|entry| above.join(entry.file_name()));
        let named = climbing(seen).filter(|path| path.parent() == Some(above) && !is_inside(path, around));
        let path = named.chain(found).find(lost)?;
        self.told_beside.0.store(true, Ordering::Relaxed);
        Some(format!(
            "{path} is in the /tmp that commands have of their own: nothing else sees it, and it is removed when Decurion \
             ends. To keep what commands make there, the user can add {above} to the setting \
             sandbox.filesystem.allowWrite, or move the project out of /tmp."
        ))
    }
}

/// A path without the folder for temporary files that it is in.
fn below_temporary(path: &Utf8Path) -> Option<&Utf8Path> {
    TEMPORARY.iter().find_map(|folder| path.strip_prefix(folder).ok()).filter(|below| *below != "")
}

/// The paths that a text writes and names by going up.
fn climbing(seen: &Intent) -> impl Iterator<Item = Utf8PathBuf> {
    let commands =
        seen.shell.iter().flat_map(|text| &text.commands).filter(|command| !command.climbs.is_empty());
    let touches = commands.flat_map(|command| &command.touches);
    touches.filter(|touch| touch.access == Access::Write).map(|touch| touch.path.clone())
}
