//! Operations of git that a command left unfinished. Takes a folder of git, gives the programs that git runs when the
//! operation is continued, and puts stops in their place.

use std::collections::BTreeSet;
use std::io::Write as _;

use camino::Utf8Path;

use super::planted::{aside, opened};

/// The folder of a rebase, and its list of what is still to be done.
const REBASE: &str = "rebase-merge";
const LIST: &str = "git-rebase-todo";

/// The lines of a list that run a program.
pub(super) fn programs(git: &Utf8Path) -> BTreeSet<String> {
    let text = crate::repository::small(&git.join(REBASE).join(LIST)).unwrap_or_default();
    text.lines().filter(|line| runs(line)).map(str::to_owned).collect()
}

/// Puts `break` in place of the programs that are not known: the rebase stops there when it is continued. Gives them.
pub(super) fn stop_before(git: &Utf8Path, known: &BTreeSet<String>) -> Option<Vec<String>> {
    let folder = git.join(REBASE);
    let list = folder.join(LIST);
    list.symlink_metadata().ok()?;
    // Without its folder the rebase cannot be continued.
    let Some(text) = crate::repository::small(&list) else {
        return aside(git, REBASE, git).map(|_| vec![format!("what cannot be read in {list}")]);
    };
    let is_new = |line: &str| runs(line) && !known.contains(line);
    let new: Vec<String> = text.lines().filter(|line| is_new(line)).map(str::to_owned).collect();
    if new.is_empty() {
        return None;
    }
    let stopped = text.lines().map(|line| if is_new(line) { "break" } else { line });
    let text: String = stopped.flat_map(|line| [line, "\n"]).collect();
    if replace(&folder, &text).is_none() {
        aside(git, REBASE, git)?;
    }
    Some(new)
}

fn replace(folder: &Utf8Path, text: &str) -> Option<()> {
    let (_opened, folder) = opened(folder)?;
    let other = folder.join(format!("{LIST}.{}", uuid::Uuid::new_v4().simple()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&other).ok()?;
    file.write_all(text.as_bytes()).ok()?;
    std::fs::rename(&other, folder.join(LIST)).ok()
}

/// `exec COMMAND` or `x COMMAND`.
fn runs(line: &str) -> bool {
    matches!(line.split_ascii_whitespace().next(), Some("exec" | "x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebase_stops_where_a_command_planned_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let git = camino::Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let list = git.join(REBASE).join(LIST);
        std::fs::create_dir(git.join(REBASE)).unwrap();
        std::fs::write(&list, "pick 1 x\nexec make test\n\tx touch a\n# exec b\nlabel exec\n").unwrap();
        let known = programs(&git);
        assert_eq!(known.len(), 2);
        assert_eq!(stop_before(&git, &known), None);
        assert_eq!(stop_before(&git, &["exec make test".to_owned()].into()).unwrap(), ["\tx touch a"]);
        let text = std::fs::read_to_string(&list).unwrap();
        assert_eq!(text, "pick 1 x\nexec make test\nbreak\n# exec b\nlabel exec\n");
        assert_eq!(stop_before(&git.join("absent"), &BTreeSet::new()), None);
        // What we cannot read, git may.
        std::fs::write(&list, b"exec \xff\n").unwrap();
        assert!(stop_before(&git, &known).is_some() && !list.exists());
    }
}
