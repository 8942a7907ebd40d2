//! The user's and the project's instruction files for the engine, and the branch they are on. Takes the settings, gives
//! the texts for every agent.

use std::io::Read as _;

use camino::Utf8Path;
use decurion_config::{InstructionRequest, Loaded};
use decurion_engine::Instructions;

use crate::report::note;

/// Files of git that name a branch are shorter.
const MOST_BYTES: u64 = 64 * 1024;

/// The texts for every agent; what is left out of them is reported.
pub fn load(loaded: &Loaded) -> Vec<Instructions> {
    let (request, problems) = InstructionRequest::new(loaded);
    let found = request.load();
    for warning in problems.iter().chain(&found.warnings) {
        note(warning);
    }
    found
        .files
        .into_iter()
        .map(|file| Instructions {
            path: file.path,
            place: file.place,
            imported_by: file.imported_by,
            text: file.text,
        })
        .collect()
}

/// The branch of the repository that holds this folder, read from its files: no process is started.
pub fn git_branch(cwd: &Utf8Path) -> Option<String> {
    let git = cwd.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    let text = |file: &Utf8Path| {
        // A pipe in place of one of these files is not waited for, whenever it came there.
        let file = decurion_tools::open_ordinary(file.as_std_path()).ok()?;
        std::io::read_to_string(file.take(MOST_BYTES)).ok()
    };
    // In a worktree `.git` is a file that names the folder.
    let folder = match text(&git) {
        Some(link) => git.parent()?.join(link.trim().strip_prefix("gitdir: ")?),
        None => git,
    };
    let head = text(&folder.join("HEAD"))?;
    let head = head.trim();
    Some(head.strip_prefix("ref: refs/heads/").unwrap_or("HEAD").to_owned())
}
