//! Files outside of the working directories that one command may write, because the answer to a question or a rule allows
//! it. Takes these paths and what the command may write anyway; adds those that are files already.
//!
//! A file can only be made, removed or replaced by changing its folder, and in a folder that a command may change it can
//! make anything. So that is left to the question whether the command may run without the sandbox.

use camino::Utf8Path;

use super::{Collected, SandboxMaker};
use crate::permission::{Around, NamedWrite, is_protected};

/// Of these a command has its own.
const OWN: [&str; 3] = ["/proc", "/dev", "/sys"];

impl SandboxMaker {
    /// Makes the files among these paths writable, but for what is always hidden. What rules deny is taken away again later.
    pub(super) fn open_named_files(&self, paths: &mut Collected, named: &[NamedWrite], around: &Around) {
        for NamedWrite { path, .. } in named.iter().filter(|write| !write.replaced) {
            let place = paths.trails.place(path);
            let is_file = place.symlink_metadata().is_ok_and(|found| found.is_file());
            let is_closed = self.is_out_of_reach(paths, &place) || is_protected(&place, around);
            if is_file && !is_closed && !paths.is_writable(&place) {
                paths.show(&place);
                paths.write(&place);
            }
        }
    }

    /// Whether a path is always hidden, or a command has its own there.
    fn is_out_of_reach(&self, paths: &Collected, place: &Utf8Path) -> bool {
        let hidden = self.settings.hidden.iter().any(|hidden| place.starts_with(paths.trails.place(hidden)));
        hidden || OWN.iter().any(|folder| place.starts_with(folder))
    }
}
