//! Operations of git that were left unfinished. Takes a folder of git, gives the programs that git runs when the operation
//! is continued, and the files by which it would run one that nothing shows.

use std::collections::BTreeSet;

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use crate::repository::small;

/// What is still to be done of a rebase.
const LIST: &str = "rebase-merge/git-rebase-todo";
/// The strategies that git has itself. Of another one it runs the program `git-merge-NAME`, and NAME may be a path.
const STRATEGIES: [&str; 6] = ["ort", "recursive", "resolve", "octopus", "ours", "subtree"];

/// The lines of a list that run a program.
pub(super) fn programs(git: &Utf8Path) -> BTreeSet<String> {
    let list = git.join(LIST);
    let Some(text) = small(&list) else {
        return list.symlink_metadata().map(|_| format!("{list} cannot be read")).into_iter().collect();
    };
    text.lines().filter(|line| runs(line)).map(|line| line.trim().to_owned()).collect()
}

/// `exec COMMAND` or `x COMMAND`.
fn runs(line: &str) -> bool {
    matches!(line.split_ascii_whitespace().next(), Some("exec" | "x"))
}

/// Files by which git runs a program of any name, or reads and writes files elsewhere, when an operation is continued; with
/// what they say.
pub(super) fn settings(git: &Utf8Path) -> BTreeSet<(Utf8PathBuf, String)> {
    /// Takes the folder of git and the text of the file.
    type IsDoubtful = fn(&Utf8Path, &str) -> bool;
    const FILES: [(&str, IsDoubtful); 4] = [
        ("rebase-merge/strategy", |_, text| !STRATEGIES.contains(&text.trim())),
        ("sequencer/opts", |_, text| names_strategy(text)),
        ("rebase-apply/apply-opt", |_, text| writes_list(text)),
        ("MERGE_RR", reaches_out),
    ];
    let doubtful = FILES.iter().filter_map(|(name, is_doubtful)| {
        let path = git.join(name);
        // What is not text, or too long, git may read all the same.
        let text = path.symlink_metadata().ok().map(|_| small(&path).unwrap_or_default())?;
        (text.is_empty() && !is_empty(&path) || !text.is_empty() && is_doubtful(git, &text))
            .then_some((path, text))
    });
    doubtful.collect()
}

fn is_empty(path: &Utf8Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
}

/// Whether the options of a cherry-pick or a revert name a strategy that git does not have itself. Git reads them as it
/// reads its settings.
fn names_strategy(text: &str) -> bool {
    let named = text.lines().filter_map(|line| {
        let (_, after) = line.split_at_checked(line.to_ascii_lowercase().find("strategy")?)?;
        after["strategy".len()..].trim_start().strip_prefix('=')
    });
    named.map(str::trim).any(|name| !STRATEGIES.contains(&name)) || text.contains('\\')
}

/// Whether the options with which `git am` applies patches make it write a list of files to a place that they name:
/// `--build-fake-ancestor`, which may be shortened.
fn writes_list(text: &str) -> bool {
    let plain: String = text.chars().filter(|letter| !matches!(letter, '\'' | '\\')).collect();
    plain.split_whitespace().any(|word| word.starts_with("--bu"))
}

/// Whether the list of conflicts that git resolves by itself, and whose resolutions it keeps, names a file that is not in
/// the checkout.
fn reaches_out(git: &Utf8Path, text: &str) -> bool {
    let top = checkout(git);
    text.split('\0').filter_map(|entry| entry.split_once('\t')).any(|(_, path)| {
        let path = Utf8Path::new(path);
        let is_plain = path.components().all(|part| matches!(part, Utf8Component::Normal(_)));
        let is_link = |path: &Utf8Path| top.as_ref().is_none_or(|top| top.join(path).is_symlink());
        !is_plain || path.ancestors().any(is_link)
    })
}

/// The checkout that a folder of git is for, also that of a worktree or a submodule, if it is there.
fn checkout(git: &Utf8Path) -> Option<Utf8PathBuf> {
    if git.file_name() == Some(".git") {
        return git.parent().map(Utf8Path::to_owned);
    }
    let of_worktree = || Some(git.join(small(&git.join("gitdir"))?.trim()).parent()?.to_owned());
    let of_submodule = || {
        let config = small(&git.join("config"))?;
        let mut values =
            config.lines().filter_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='));
        Some(git.join(values.next()?.trim().trim_matches('"')))
    };
    of_worktree().or_else(of_submodule).filter(|top| top.is_dir())
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
        std::fs::write(git.join(LIST), "#".repeat(300 << 10)).unwrap();
        assert_eq!(programs(git).len(), 1, "too long to be read");
        assert_eq!(programs(&git.join("absent")), BTreeSet::new());
    }

    #[test]
    fn settings_that_run_other_programs_are_told_from_usual_ones() {
        let files = [
            ("rebase-merge/strategy", "ort\n", "/../evil\n"),
            ("sequencer/opts", "[options]\n\tstrategy = ours\n", "[options]\n\tstrategy = x\n"),
            ("sequencer/opts", "[options]\n\tsignoff = true\n", "[options] Strategy=ours/../x\n"),
            ("sequencer/opts", "[options]\n\tstrategy-option = theirs\n", "[options]\n\tstrategy=o\\\nx\n"),
            ("rebase-apply/apply-opt", " '-p2'", " '--build-fake-ancestor=/x'"),
            ("rebase-apply/apply-opt", "", " '--bu=/x'"),
            ("MERGE_RR", "1\ta/b\0", "1\ta/b\x002\t../x\0"),
            ("MERGE_RR", "1\tb\0", "1\t/x\0"),
            ("MERGE_RR", "1\ta/link2\0", "1\tlink/a\0"),
        ];
        let folder = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(folder.path()).unwrap();
        std::fs::create_dir_all(root.join("top")).unwrap();
        std::os::unix::fs::symlink("/", root.join("top/link")).unwrap();
        for (kept, text) in
            [("gitdir", "../top/.git\n"), ("config", "[core]\n\tworktree = ../top\n"), ("none", "")]
        {
            let git = root.join(format!("kept-{kept}"));
            std::fs::create_dir(&git).unwrap();
            std::fs::write(git.join(kept), text).unwrap();
            for (path, doubtful) in [("a/b", kept == "none"), ("link/x", true)] {
                std::fs::write(git.join("MERGE_RR"), format!("1\t{path}\0")).unwrap();
                assert_eq!(settings(&git).len(), usize::from(doubtful), "{kept} {path}");
            }
        }
        for (name, usual, other) in files {
            let folder = tempfile::tempdir().unwrap();
            let git = Utf8Path::from_path(folder.path()).unwrap().join(".git");
            let path = git.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("/", folder.path().join("link")).unwrap();
            std::fs::write(&path, usual).unwrap();
            assert_eq!(settings(&git), BTreeSet::new(), "{usual}");
            std::fs::write(&path, other).unwrap();
            assert_eq!(settings(&git), [(path.clone(), other.to_owned())].into(), "{other}");
            std::fs::write(&path, b"\xff").unwrap();
            assert_eq!(settings(&git).len(), 1, "{name}");
        }
    }
}
