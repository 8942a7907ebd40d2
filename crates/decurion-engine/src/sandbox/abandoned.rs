//! What killed sessions have left in a folder. Takes the rules and directories at a session's start, removes the
//! placeholders there that no session needs.

use std::collections::BTreeSet;

use camino::Utf8Path;
use decurion_exec::placeholder::{is_placeholder, remove_abandoned};
use decurion_protocol::Intent;

use super::{Holding, SandboxMaker, places};
use crate::permission::Policy;

impl SandboxMaker {
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
