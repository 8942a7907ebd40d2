//! Paths by their text alone. Takes a path, gives it without `.` and `..`.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

/// A path without `.` and `..`, by its text alone.
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
