//! What git's settings name: the folder of hooks, further files of settings, programs. Takes a checkout with the folders
//! of git for it, gives the paths. Whoever can change what is there makes git run something.
//!
//! Settings are read generously: a word too many is a file that commands cannot change, a word too few is a hole.

use camino::{Utf8Path, Utf8PathBuf};

use super::{config, small};
use crate::footprint;
use crate::permission::User;

/// Git itself follows no more includes within includes.
const DEEPEST: usize = 10;
/// No more files of settings are read.
const MOST_FILES: usize = 50;

/// Settings that name files of text, which run nothing.
const TEXTS: [(&str, &str); 4] =
    [("core", "excludesfile"), ("commit", "template"), ("mailmap", "file"), ("blame", "ignorerevsfile")];

/// Something that settings name. It need not exist, but for a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// A folder with hooks.
    Hooks(Utf8PathBuf),
    /// A file with further settings.
    Settings(Utf8PathBuf),
    /// A file in the checkout that is a program, or is given to one.
    Program(Utf8PathBuf),
}

/// What is named for a checkout: by the repository's own settings, and by those of the user and the system, which can
/// name a folder of hooks in every checkout.
pub(crate) fn named(top: &Utf8Path, git: &[Utf8PathBuf], user: User<'_>) -> Vec<Named> {
    let User { home, files } = user;
    let own = git.iter().flat_map(|git| [git.join("config"), git.join("config.worktree")]);
    let own: Vec<Utf8PathBuf> = own.collect();
    let users = home.iter().flat_map(|home| [home.join(".gitconfig"), home.join(".config/git/config")]);
    let moved = files.into_iter().flat_map(|files| files.git.iter().cloned());
    let users: Vec<Utf8PathBuf> = users.chain(moved).chain([Utf8PathBuf::from("/etc/gitconfig")]).collect();
    let mut reader = Reader { top, home, is_own: true, files: 0, found: Vec::new() };
    for (files, is_own) in [(own, true), (users, false)] {
        reader.is_own = is_own;
        for file in &files {
            reader.read(file, 0);
        }
    }
    reader.found.sort();
    reader.found.dedup();
    reader.found
}

struct Reader<'a> {
    top: &'a Utf8Path,
    home: Option<&'a Utf8Path>,
    /// Whether these are the settings of the repository. Those of users name a program in a checkout by its whole path.
    is_own: bool,
    files: usize,
    found: Vec<Named>,
}

impl Reader<'_> {
    fn read(&mut self, file: &Utf8Path, depth: usize) {
        self.files += 1;
        if depth > DEEPEST || self.files > MOST_FILES {
            return;
        }
        let Some(text) = small(file) else { return };
        let mut section = String::new();
        // A value may go on in the next line.
        for line in text.replace("\\\r\n", " ").replace("\\\n", " ").lines() {
            let mut line = line.trim();
            if let Some((header, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
                section = header.to_ascii_lowercase();
                // A setting may stand behind it.
                line = rest.trim();
            }
            let Some((name, value)) = line.split_once('=') else { continue };
            // A comment may stand behind it.
            let end = if value.contains('"') { None } else { value.find(['#', ';']) };
            let value = value[..end.unwrap_or(value.len())].trim().replace('"', "").replace("\\\\", "\\");
            self.setting(&section, &name.trim().to_ascii_lowercase(), &value, file, depth);
        }
    }

    fn setting(&mut self, section: &str, name: &str, value: &str, file: &Utf8Path, depth: usize) {
        let kind = section.split([' ', '\t', '.']).next().unwrap_or_default();
        match (kind, name) {
            ("include" | "includeif", "path") => {
                let beside = file.parent().unwrap_or(self.top);
                let included = self.path(beside, value);
                if self.is_own || included.starts_with(self.top) {
                    self.found.push(Named::Settings(included.clone()));
                }
                self.read(&included, depth + 1);
            }
            ("core", "hookspath") => {
                let hooks = self.path(self.top, value);
                // Husky's scripts are beside the folder that calls them.
                let scripts =
                    hooks.parent().filter(|_| hooks.file_name() == Some("_")).map(Utf8Path::to_owned);
                self.found.extend([hooks].into_iter().chain(scripts).map(Named::Hooks));
            }
            _ if TEXTS.contains(&(kind, name)) => {}
            _ if !config::is_harmless(kind, kind != section, name) => {
                let words =
                    value.split(|letter: char| letter.is_whitespace() || "'!;|&()<>=`$%".contains(letter));
                let whole = |word: &&str| word.starts_with('/') || word.starts_with("~/");
                let words = words.filter(|word| !word.is_empty() && (self.is_own || whole(word)));
                let files = words.map(|word| self.path(self.top, word));
                let files = files.filter(|path| self.is_own || path.starts_with(self.top));
                self.found.extend(
                    files.filter(|path| footprint::is_file(path)).map(Named::Program).collect::<Vec<_>>(),
                );
            }
            _ => {}
        }
    }

    /// A path as git reads it in settings.
    fn path(&self, from: &Utf8Path, value: &str) -> Utf8PathBuf {
        let path = match (value.strip_prefix("~/"), self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => from.join(value),
        };
        decurion_tools::bash::normal(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::UserFiles;

    #[test]
    fn settings_name_hooks_further_settings_and_programs() {
        let folder = tempfile::tempdir().unwrap();
        let top = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
        let (git, home) = (top.join(".git"), top.join("home"));
        for folder in ["home", ".git", "tools"] {
            std::fs::create_dir_all(top.join(folder)).unwrap();
        }
        for file in ["tools/clean.sh", "tools/merge", "README", "main"] {
            std::fs::write(top.join(file), "").unwrap();
        }
        let own = "[core] hooksPath = \".husky/_\"\n[include]\n\tpath = ../more # x\n[branch \"main\"]\n\tmerge = main\n\
                   [filter \"x\"]\n clean = sh \\\n './tools/clean.sh' %f\n[includeIf \"gitdir:~/\"]\n PATH = ~/absent\n\
                   [remote \"o\"]\n url = README\n[commit]\n template = README\n";
        std::fs::write(git.join("config"), own).unwrap();
        std::fs::write(
            top.join("more"),
            "[merge \"y\"]\n\tdriver = tools/merge %A\n[alias]\n\tx = !cat nothing\n",
        )
        .unwrap();
        std::fs::write(home.join(".gitconfig"), "[core]\nhookspath=.hooks\neditor = cat README\n").unwrap();
        // What variables name, and what is named there by whole paths.
        let global = home.join("global");
        std::fs::write(&global, format!("[core]\n\tpager = {top}/main\n\teditor = /bin/sh\n")).unwrap();
        let files = UserFiles { git: vec![global, "/elsewhere".into()], ..UserFiles::default() };
        let user = User { home: Some(&home), files: Some(&files) };
        let expected = [
            Named::Hooks(top.join(".hooks")),
            Named::Hooks(top.join(".husky")),
            Named::Hooks(top.join(".husky/_")),
            Named::Settings(home.join("absent")),
            Named::Settings(top.join("more")),
            Named::Program(top.join("main")),
            Named::Program(top.join("tools/clean.sh")),
            Named::Program(top.join("tools/merge")),
        ];
        assert_eq!(named(&top, std::slice::from_ref(&git), user), expected);
        // Settings that include themselves end too.
        std::fs::write(top.join("more"), "[include]\npath = more\n").unwrap();
        assert_eq!(named(&top, &[git], User::default()).len(), 5);
    }
}
