//! Programs that have more rights than others. Takes the programs of a command, its environment and what commands can
//! write; gives the environment in which only programs are found that no command can have made, if its own are such.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Sandbox;
use decurion_protocol::Access;
use decurion_protocol::intent::{ShellCommand, ShellIntent};

use crate::symlinks::Symlinks;

/// Variables that name folders or files with code that programs run.
const NAMING_CODE: [&str; 8] =
    [PATH, "BASH_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "NODE_PATH", "PERL5LIB", "PYTHONPATH", "RUBYLIB"];
const PATH: &str = "PATH";
/// Where programs are looked for if the environment does not say.
const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub type Variables = [(OsString, OsString)];

/// What decides who can have made a program.
pub(super) struct Programs<'a> {
    pub environment: &'a Variables,
    /// Where the command begins.
    pub cwd: &'a Utf8Path,
    /// What a command with the usual rights may do.
    pub usual: Sandbox,
    /// Further folders in which commands of the session work.
    pub worked_in: Vec<PathBuf>,
    pub trails: &'a Symlinks,
}

impl Programs<'_> {
    /// What is different in the environment of these commands, if no command can have made their programs.
    pub fn trusted(&self, shell: &ShellIntent) -> Option<Vec<(OsString, OsString)>> {
        // What runs elsewhere, as in a container, is no program of this machine.
        let elsewhere =
            |command: &&ShellCommand| command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
        let trusts = |command| self.trusts(command) && self.writes_as_usual(command);
        shell.commands.iter().filter(|command| !elsewhere(command)).all(trusts).then(|| self.narrowed())
    }

    /// Whether the shell opens nothing for a command, before its program runs, that other commands cannot write.
    fn writes_as_usual(&self, command: &ShellCommand) -> bool {
        const STREAMS: [&str; 4] = ["/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"];
        let mut written = command.touches.iter().filter(|touch| touch.access == Access::Write);
        let usual = |path: &Utf8Path| {
            STREAMS.contains(&path.as_str()) || self.is_writable(self.trails.place(path).as_std_path())
        };
        command.redirections == 0 || written.all(|touch| usual(&touch.path))
    }

    fn trusts(&self, command: &ShellCommand) -> bool {
        let Some(word) = command.words.get(command.assigned) else { return false };
        if word.contains('/') {
            let named = std::iter::once(self.cwd.join(word));
            return named.chain(command.program.iter().cloned()).all(|path| self.is_safe(&path));
        }
        // What is found nowhere is a part of the shell, or is not found by the command either.
        let mut found = std::env::split_paths(self.search_path()).map(|folder| folder.join(word));
        found.find(|path| is_program(&self.cwd.as_std_path().join(path))).is_none_or(|path| {
            path.is_absolute() && Utf8PathBuf::from_path_buf(path).is_ok_and(|path| self.is_safe(&path))
        })
    }

    fn search_path(&self) -> &OsStr {
        let known = self.environment.iter().find(|(name, _)| name == PATH);
        known.map_or(OsStr::new(USUAL), |(_, value)| value)
    }

    /// The variables that name code, without what commands can write: what one of them puts there while another
    /// starts is not found.
    fn narrowed(&self) -> Vec<(OsString, OsString)> {
        let safe = |path: &PathBuf| {
            path.is_absolute() && Utf8Path::from_path(path).is_some_and(|path| self.is_safe(path))
        };
        let named = self.environment.iter().filter(|(name, _)| NAMING_CODE.iter().any(|known| name == known));
        let usual = (PATH.into(), self.search_path().to_owned());
        let all = named.filter(|(name, _)| name != PATH).cloned().chain([usual]);
        all.map(|(name, value)| {
            let left = std::env::split_paths(&value).filter(safe);
            (name, std::env::join_paths(left).unwrap_or_default())
        })
        .collect()
    }

    /// Whether no command can change what a path leads to: neither the place nor a link on the way.
    fn is_safe(&self, path: &Utf8Path) -> bool {
        let pinned = |link: &Path| self.usual.links.iter().any(|known| known == link);
        let steps = self.trails.of(path);
        let mut links = steps.iter().map(|step| step.link.as_std_path());
        let place = self.trails.place(path);
        !self.is_writable(place.as_std_path()) && links.all(|link| pinned(link) || !self.is_writable(link))
    }

    fn is_writable(&self, path: &Path) -> bool {
        let covers = |folder: &PathBuf| path.starts_with(folder);
        let mut writable = self.usual.writable.iter().chain(&self.worked_in);
        writable.any(covers) && !self.usual.read_only.iter().any(covers)
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
