//! Commands that would remove a repository and fail half way. Takes the commands of a text and what is read-only for them;
//! gives the command and what it would fail at.

use std::path::PathBuf;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::{ShellCommand, ShellIntent};

use super::places;
use decurion_tools::bash::git_option_takes_value;

/// A plainly written command that would remove a repository or a worktree of which something is read-only.
pub(super) fn half_way<'a>(
    shell: &ShellIntent,
    cwd: &Utf8Path,
    read_only: &(impl Iterator<Item = &'a PathBuf> + Clone),
) -> Option<(String, Utf8PathBuf)> {
    let known = || read_only.clone().filter_map(|path| Utf8Path::from_path(path));
    shell.commands.iter().find_map(|command| {
        let removed = removed_by(command, cwd);
        // What does not exist is held only while commands run, and nothing would be lost.
        let stops = |path: &&Utf8Path| {
            removed.iter().any(|folder| path.starts_with(folder)) && is_of_git(path) && path.exists()
        };
        known().find(stops).map(|path| (command.text.clone(), path.to_owned()))
    })
}

fn is_of_git(path: &Utf8Path) -> bool {
    path.components().any(|part| part.as_str() == ".git")
        || path.parent().is_some_and(crate::repository::looks_like_git_folder)
}

/// The folders that a command removes with all that is in them.
fn removed_by(command: &ShellCommand, cwd: &Utf8Path) -> Vec<Utf8PathBuf> {
    let words: Vec<&str> = command.words.iter().skip(command.assigned).map(String::as_str).collect();
    match words.as_slice() {
        ["rm", rest @ ..] if rest.iter().any(|word| is_recursive(word)) => {
            // Of a link only the link is removed.
            let named = command.mentions.iter().filter(|path| !path.is_symlink());
            named.filter_map(|path| path.canonicalize_utf8().ok()).collect()
        }
        ["git", rest @ ..] => {
            let from = command.repositories.first().map_or(cwd, |from| from.as_path());
            match behind_options(rest) {
                ["worktree", "remove", operands @ ..] => worktree(from, operands),
                ["worktree", "prune", options @ ..] if !options.iter().any(|word| is_dry(word)) => {
                    pruned(from)
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// The subcommand of git and what is behind it.
pub(super) fn behind_options<'a, 'w>(words: &'a [&'w str]) -> &'a [&'w str] {
    let mut rest = words;
    while let [option, behind @ ..] = rest
        && option.starts_with('-')
    {
        rest = if git_option_takes_value(option) { behind.get(1..).unwrap_or_default() } else { behind };
    }
    rest
}

fn is_recursive(word: &str) -> bool {
    word == "--recursive" || is_short(word, &['r', 'R'])
}

fn is_dry(word: &str) -> bool {
    word == "--dry-run" || is_short(word, &['n'])
}

/// Whether a word is short options with one of these.
fn is_short(word: &str, letters: &[char]) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.contains(letters))
}

/// What `git worktree remove` would remove: the checkout, and what git keeps of it.
fn worktree(from: &Utf8Path, operands: &[&str]) -> Vec<Utf8PathBuf> {
    let Some(named) = operands.iter().find(|word| !word.starts_with('-')) else { return Vec::new() };
    let top = from.join(named);
    // It may be named by the end of its path too.
    let kept = kept_worktrees(from).into_iter().find(|(_, checkout)| {
        checkout.canonicalize_utf8().ok() == top.canonicalize_utf8().ok() || checkout.ends_with(named)
    });
    kept.map(|(kept, checkout)| vec![checkout, kept]).unwrap_or_default()
}

/// What `git worktree prune` would remove: worktrees whose checkout is gone.
fn pruned(from: &Utf8Path) -> Vec<Utf8PathBuf> {
    let gone = kept_worktrees(from).into_iter().filter(|(_, checkout)| !checkout.join(".git").exists());
    gone.map(|(kept, _)| kept).collect()
}

/// The worktrees of a repository: where git keeps them, and where they are checked out.
fn kept_worktrees(from: &Utf8Path) -> Vec<(Utf8PathBuf, Utf8PathBuf)> {
    let Some(git) = from.canonicalize_utf8().ok().and_then(|from| places::git_folders(&from).pop()) else {
        return Vec::new();
    };
    let entries = git.join("worktrees").read_dir_utf8().into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let kept = git.join("worktrees").join(entry.file_name());
        let checkout = kept.join(crate::repository::small(&kept.join("gitdir"))?.trim());
        Some((kept, checkout.parent()?.to_owned()))
    });
    named.collect()
}
