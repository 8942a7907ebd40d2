//! What killed sessions have left in a folder. Takes the rules and directories at a session's start, looks at what commands
//! of these sessions made there, and removes the placeholders that no session needs.

use std::collections::BTreeSet;

use camino::Utf8Path;
use decurion_exec::placeholder::{is_placeholder, remove_abandoned};
use decurion_protocol::Intent;

use super::{Holding, SandboxMaker, places};
use crate::permission::Policy;

impl SandboxMaker {
    /// Looks at what commands of killed sessions have made in a folder, and reports what was renamed. Without such a session
    /// it costs the look into one folder.
    pub fn look_after_killed(&self, folder: &Utf8Path) {
        let Ok(folder) = folder.canonicalize_utf8() else { return };
        let top = places::top_of(&folder);
        for folder in [folder.as_path()].into_iter().chain(Some(top).filter(|top| *top != folder)) {
            self.planted.look_after_killed(folder);
        }
        for text in self.planted.take_pending() {
            (self.settings.report)(&text);
        }
    }

    /// Removes placeholders that a killed session has left. Looks at the disk: at a few names, and only where one of these
    /// is a placeholder at all that commands could meet.
    pub fn remove_abandoned(&self, folder: &Utf8Path, policy: impl FnOnce() -> Policy) {
        let git = places::git_folders(folder);
        let in_git = git
            .iter()
            .flat_map(|git| places::git_settings_to_hold(git, &BTreeSet::new()))
            .map(|(path, _)| path);
        let mut usual = places::settings_in(folder).chain(in_git);
        if !usual.any(|path| is_placeholder(path.as_std_path())) {
            return;
        }
        let seen = Intent::titled("");
        let listed = self.confine(&policy(), false, (&seen).into(), Holding::Listed);
        // Without a sandbox nothing is held either.
        let held = listed.map(|(_, held)| held).unwrap_or_default();
        // What is in a folder goes before it.
        for path in held.iter().rev().filter(|path| is_placeholder(path)) {
            remove_abandoned(path);
        }
    }
}
