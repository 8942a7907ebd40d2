//! Paths as texts. Takes paths as they are written and where they are relative to; gives absolute ones
//! without `.` and `..`, by their text alone.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::Climb;

/// The absolute, normalised path.
pub(crate) fn absolute(directory: &Utf8Path, text: &str) -> Utf8PathBuf {
    normal(&directory.join(text))
}

/// A path without `.` and `..`.
pub fn normal(path: &Utf8Path) -> Utf8PathBuf {
    let mut found = Utf8PathBuf::from("/");
    for component in path.components() {
        match component {
            Utf8Component::ParentDir => {
                found.pop();
            }
            Utf8Component::Normal(name) => found.push(name),
            Utf8Component::RootDir | Utf8Component::CurDir | Utf8Component::Prefix(_) => {}
        }
    }
    found
}

/// A path that goes up, as it is written; none for one that does not. A glob counts up to its first part that is not
/// fixed.
pub(crate) fn climb(directory: &Utf8Path, text: &str, glob: bool) -> Option<Climb> {
    if !directory.as_str().contains("..") && !text.contains("..") {
        return None;
    }
    let mut written = if text.starts_with('/') { Utf8PathBuf::from("/") } else { directory.to_owned() };
    for part in text.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if glob && is_special(part) {
            break;
        }
        written.push(if glob { plain(part) } else { part.to_owned() });
    }
    let climbs = written.components().any(|component| component == Utf8Component::ParentDir);
    climbs.then(|| Climb { path: normal(&written), written })
}

/// A part of a glob that is fixed, without the backslashes that make it so.
fn plain(part: &str) -> String {
    let mut characters = part.chars();
    let mut found = String::with_capacity(part.len());
    while let Some(c) = characters.next() {
        found.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    found
}

/// The absolute form of a glob. One that climbs after a part which is not fixed may lead anywhere, and
/// becomes `/`.
pub(crate) fn absolute_glob(directory: &Utf8Path, glob: &str) -> String {
    let joined = if glob.starts_with('/') {
        glob.to_owned()
    } else {
        format!("{}/{glob}", super::expand::escape(directory.as_str()))
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.pop() {
                Some(before) if is_special(before) => return "/".to_owned(),
                _ => {}
            },
            // Before bash 5.2 a glob such as `.*` finds the parent directory.
            part if finds_parent(part) => return "/".to_owned(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Whether a component of a glob may stand for `..`.
fn finds_parent(component: &str) -> bool {
    let rest = component.strip_prefix('.').filter(|_| is_special(component));
    rest.is_some_and(|rest| rest.starts_with('[') || rest.chars().all(|c| matches!(c, '*' | '?' | '.')))
}

/// Whether a component of a glob is more than a plain name.
pub(crate) fn is_special(component: &str) -> bool {
    let mut escaped = false;
    for c in component.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '*' | '?' | '[' => return true,
            _ => {}
        }
    }
    false
}

/// A program's name without its directory, and whether that directory is one of the system's, so that the
/// name means what it says.
pub(crate) fn program(word: &str) -> (String, bool) {
    match word.rsplit_once('/') {
        None => (word.to_owned(), true),
        Some((directory, name)) => (
            name.to_owned(),
            matches!(directory, "/bin" | "/usr/bin" | "/usr/local/bin" | "/sbin" | "/usr/sbin"),
        ),
    }
}
