//! Paths as texts. Takes paths as they are written and where they are relative to; gives absolute ones
//! without `.` and `..`, by their text alone.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

/// The absolute, normalised path.
pub(crate) fn absolute(directory: &Utf8Path, text: &str) -> Utf8PathBuf {
    normal(&directory.join(text))
}

/// A path without `.` and `..`.
pub(crate) fn normal(path: &Utf8Path) -> Utf8PathBuf {
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
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
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

/// The leading directories of a glob that are plain names.
pub(crate) fn fixed_part(glob: &str) -> &str {
    let mut end = 0;
    for part in glob.split_inclusive('/') {
        if is_special(part) {
            break;
        }
        end += part.len();
    }
    let fixed = &glob[..end];
    if fixed.len() > 1 { fixed.trim_end_matches('/') } else { fixed }
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
