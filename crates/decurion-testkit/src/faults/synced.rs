//! Which names and contents of a run are on the device. Takes a trace of its calls, gives what it made in a folder and
//! never synced. Belongs to T10.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The calls that [`Unsynced`] follows.
pub(super) const FOLLOWED: &str =
    "trace=openat,mkdir,mkdirat,renameat,linkat,unlinkat,write,pwrite64,fdatasync,fsync";

/// Files that were written and folders that got names, neither synced since.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// Every path that was made, synced or not.
    pub(super) made: BTreeSet<String>,
    files: BTreeSet<String>,
    names: BTreeMap<String, BTreeSet<String>>,
}

impl Unsynced {
    /// Follows a trace that shows the paths of descriptors.
    pub(super) fn follow(trace: &[String]) -> Self {
        let (mut unsynced, mut begun) = (Self::default(), HashMap::new());
        for line in trace {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if let Some(first) = call.strip_suffix("<unfinished ...>") {
                begun.insert(thread, first);
            } else if let Some((_, rest)) = call.split_once(" resumed>") {
                let first = begun.remove(thread).unwrap_or_default();
                unsynced.take(&format!("{first}{rest}"));
            } else {
                unsynced.take(call);
            }
        }
        unsynced
    }

    /// What is not on the device of what is below this folder, or is its own name.
    pub(super) fn below(&self, folder: &str) -> Vec<String> {
        let is_below = |path: &str| {
            path == folder || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        let names = self
            .names
            .iter()
            .flat_map(|(above, names)| names.iter().map(move |name| (format!("{above}/{name}"), "its name")));
        let files = self.files.iter().map(|path| (path.clone(), "what is in it"));
        names
            .chain(files)
            .filter(|(path, _)| is_below(path))
            .map(|(path, what)| format!("{what}: {path}"))
            .collect()
    }

    fn take(&mut self, call: &str) {
        let Some((name, rest)) = call.split_once('(') else { return };
        if rest.rsplit_once(" = ").is_none_or(|(_, result)| result.starts_with('-')) {
            return;
        }
        let (folders, texts) = (between(rest, '<', '>'), between(rest, '"', '"'));
        let at = |nth: usize| match (folders.get(nth), texts.get(nth)) {
            (_, Some(text)) if text.starts_with('/') => split(text),
            (Some(folder), Some(text)) => Some((folder.to_string(), text.to_string())),
            _ => None,
        };
        match name {
            "openat" if !rest.contains("O_CREAT") => {}
            "openat" | "mkdir" | "mkdirat" => {
                let Some((folder, name)) = at(0) else { return };
                self.add(folder, name);
            }
            "renameat" | "linkat" => {
                let (Some(from), Some(to)) = (at(0), at(1)) else { return };
                if self.files.contains(&path(&from)) {
                    self.files.insert(path(&to));
                }
                if name == "renameat" {
                    self.forget(&from);
                }
                self.add(to.0, to.1);
            }
            "unlinkat" => {
                let Some(gone) = at(0) else { return };
                self.forget(&gone);
            }
            "write" | "pwrite64" => self.files.extend(folders.first().map(ToString::to_string)),
            "fdatasync" | "fsync" => {
                let Some(path) = folders.first() else { return };
                self.files.remove(*path);
                self.names.remove(*path);
            }
            _ => {}
        }
    }

    fn add(&mut self, folder: String, name: String) {
        self.made.insert(format!("{folder}/{name}"));
        self.names.entry(folder).or_default().insert(name);
    }

    fn forget(&mut self, gone: &(String, String)) {
        self.made.remove(&path(gone));
        self.files.remove(&path(gone));
        if let Some(names) = self.names.get_mut(&gone.0) {
            names.remove(&gone.1);
        }
    }
}

fn path((folder, name): &(String, String)) -> String {
    format!("{folder}/{name}")
}

fn split(path: &str) -> Option<(String, String)> {
    path.rsplit_once('/').map(|(folder, name)| (folder.to_owned(), name.to_owned()))
}

/// The texts between two signs, in their order.
fn between(text: &str, open: char, close: char) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((_, after)) = rest.split_once(open)
        && let Some((inner, behind)) = after.split_once(close)
    {
        found.push(inner);
        rest = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(lines: &[&str]) -> Vec<String> {
        Unsynced::follow(&lines.iter().map(|line| format!("7 {line}")).collect::<Vec<_>>()).below("/s")
    }

    #[test]
    fn a_name_and_its_content_are_synced_apart() {
        let made = r#"openat(3</s>, ".a.tmp", O_RDWR|O_CREAT|O_EXCL, 0600) = 4</s/.a.tmp>"#;
        let write = r#"write(4</s/.a.tmp>, "x", 1) = 1"#;
        let rename = r#"renameat(3</s>, ".a.tmp", 3</s>, "a") = 0"#;
        let (file, folder) = ("fdatasync(4</s/.a.tmp>) = 0", "fsync(3</s>) = 0");
        assert_eq!(left(&[made, write, file, rename, folder]), Vec::<String>::new());
        assert_eq!(left(&[made, write, file, rename]), ["its name: /s/a"]);
        assert_eq!(left(&[made, write, rename, folder]), ["what is in it: /s/a"]);
        let failed = "fsync(3</s>) = -1 EIO (Input/output error)";
        assert_eq!(left(&[made, write, file, rename, failed]), ["its name: /s/a"]);
        assert_eq!(left(&[r#"mkdir("/s", 0700) = 0"#]), ["its name: /s"]);
    }
}
