//! The user's and the project's instruction files. Takes the folders, gives the texts every agent is told.

use camino::Utf8Path;
use decurion_config::Paths;
use decurion_engine::Instructions;

/// The names looked for in each place; the first that is there is taken.
const NAMES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// How much of one file is read.
const MOST_BYTES: usize = 64 * 1024;

/// The user's file, then the project's, then those between the project's root and the working directory.
pub fn load(paths: &Paths) -> Vec<Instructions> {
    let mut found = Vec::new();
    for folder in [paths.state.as_deref(), paths.shared.as_deref()].into_iter().flatten() {
        if let Some(instructions) = in_folder(folder) {
            found.push(instructions);
            break;
        }
    }
    let below = paths.cwd.strip_prefix(&paths.root).unwrap_or(Utf8Path::new(""));
    let mut folder = paths.root.clone();
    found.extend(in_folder(&folder));
    for part in below.components() {
        folder.push(part);
        found.extend(in_folder(&folder));
    }
    found
}

fn in_folder(folder: &Utf8Path) -> Option<Instructions> {
    NAMES.iter().find_map(|name| {
        let path = folder.join(name);
        let bytes = std::fs::read(&path).ok()?;
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if text.len() > MOST_BYTES {
            let cut = (0..=MOST_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(cut);
            text.push_str("\n[… the rest of this file was left out]");
        }
        (!text.trim().is_empty()).then_some(Instructions { path, text })
    })
}

/// The branch of the repository that holds this folder, read from its files: no process is started.
pub fn git_branch(cwd: &Utf8Path) -> Option<String> {
    let git = cwd.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists())?;
    // In a worktree `.git` is a file that names the folder.
    let folder = match std::fs::read_to_string(&git) {
        Ok(link) => git.parent()?.join(link.trim().strip_prefix("gitdir: ")?),
        Err(_) => git,
    };
    let head = std::fs::read_to_string(folder.join("HEAD")).ok()?;
    let head = head.trim();
    Some(head.strip_prefix("ref: refs/heads/").unwrap_or("HEAD").to_owned())
}
