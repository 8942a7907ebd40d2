//! Operations of git that were left unfinished. Takes a folder of git, gives the programs that git runs when the operation
//! is continued.

use std::collections::BTreeSet;

use camino::Utf8Path;

/// What is still to be done of a rebase.
const LIST: &str = "rebase-merge/git-rebase-todo";

/// The lines of a list that run a program.
pub(super) fn programs(git: &Utf8Path) -> BTreeSet<String> {
    let text = crate::repository::small(&git.join(LIST)).unwrap_or_default();
    text.lines().filter(|line| runs(line)).map(|line| line.trim().to_owned()).collect()
}

/// `exec COMMAND` or `x COMMAND`.
fn runs(line: &str) -> bool {
    matches!(line.split_ascii_whitespace().next(), Some("exec" | "x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_a_rebase_are_its_exec_lines() {
        let folder = tempfile::tempdir().unwrap();
        let git = Utf8Path::from_path(folder.path()).unwrap();
        std::fs::create_dir(git.join("rebase-merge")).unwrap();
        std::fs::write(git.join(LIST), "pick 1 x\nexec make test\n\tx touch a\n# exec b\nlabel exec\n")
            .unwrap();
        assert_eq!(programs(git), ["exec make test", "x touch a"].map(str::to_owned).into());
        assert_eq!(programs(&git.join("absent")), BTreeSet::new());
    }
}
