//! Repositories on this machine that git would connect to. Takes a call of git and the folder where it begins; gives
//! why another repository's programs might run: git calls itself there, with that repository's hooks and settings.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::ShellCommand;

use super::{Repository, is_absent, looks_like_git_folder};

/// Commands of git that connect to another repository, or are the other end of such a connection.
const CONNECTS: &str = "push fetch pull clone ls-remote archive remote submodule send-pack fetch-pack receive-pack \
    upload-pack upload-archive bundle";
/// How the address of a repository on another machine begins.
const ELSEWHERE: [&str; 6] = ["https://", "http://", "ssh://", "git://", "git+ssh://", "ssh+git://"];

/// Why a program of a repository on this machine might run.
pub(super) fn doubt(command: &ShellCommand, place: &Utf8Path) -> Option<String> {
    let words = &command.words[command.assigned..];
    let connects = |word: &String| CONNECTS.split_whitespace().any(|known| known == word);
    if command.read_only || !words.iter().any(connects) {
        return None;
    }
    let unknown = || Some("cannot tell which repository git would connect to".to_owned());
    if command.unknown.iter().any(|index| *index >= command.assigned) {
        return unknown();
    }
    // In a folder that is not there git does not even begin.
    if is_absent(place) {
        return None;
    }
    let Ok(place) = place.canonicalize_utf8() else { return unknown() };
    let Ok(repository) = place.ancestors().find_map(Repository::at).transpose() else { return unknown() };
    let mut named: Vec<String> = words.iter().skip(1).map(|word| value(word).to_owned()).collect();
    let mut from: Vec<Utf8PathBuf> = vec![place.clone()];
    if let Some(repository) = repository {
        let Ok(settings) = repository.settings() else { return unknown() };
        if let Some(doubt) = settings.addresses.iter().find_map(|address| local(address)) {
            return Some(doubt);
        }
        // Older ways to write down addresses.
        let lists = ["remotes", "branches"].map(|name| repository.common.join(name));
        let filled = |list: &&Utf8PathBuf| {
            !is_absent(list) && list.read_dir_utf8().map_or(true, |mut names| names.next().is_some())
        };
        if let Some(list) = lists.iter().find(filled) {
            return Some(runs(list.as_str()));
        }
        named.extend(settings.remotes);
        from.push(repository.top);
    }
    named.retain(|word| !matches!(word.as_str(), "" | "."));
    let local = |word: &&String| {
        word.starts_with(['/', '~', '"', '\''])
            || word.to_ascii_lowercase().starts_with("file:")
            || from.iter().any(|from| is_repository(from, word))
    };
    named.iter().find(local).map(|word| runs(word))
}

fn runs(what: &str) -> String {
    format!("git would run the hooks and settings of a repository on this machine ({what})")
}

/// Why programs of the repository at an address might run; none if it is certainly on another machine.
pub(super) fn local(address: &str) -> Option<String> {
    (!is_elsewhere(address)).then(|| runs(address))
}

/// The value of an option, or the word.
fn value(word: &str) -> &str {
    match word.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => word,
    }
}

/// Whether an address is certainly that of a repository on another machine.
fn is_elsewhere(address: &str) -> bool {
    let address = address.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(address);
    // Git reads quotes and backslashes in the middle in its own way.
    if address.contains(['"', '\\']) {
        return false;
    }
    // `user@machine:path`; what has two colons names a program that makes the connection.
    let by_shell = address.split_once(':').is_some_and(|(machine, path)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "@._-".contains(c);
        !machine.is_empty()
            && machine != "file"
            && machine.chars().all(plain)
            && !path.starts_with([':', '/'])
    });
    by_shell || ELSEWHERE.iter().any(|known| address.starts_with(known))
}

/// Whether git takes what is at a path for a repository, with the endings that it tries.
fn is_repository(from: &Utf8Path, word: &str) -> bool {
    ["", ".git", "/.git"].iter().any(|ending| {
        let path = from.join(format!("{word}{ending}"));
        let git = path.file_name() == Some(".git") && path.is_file();
        git || (!is_absent(&path) && (looks_like_git_folder(&path) || !is_absent(&path.join(".git"))))
    })
}
