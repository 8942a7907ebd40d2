//! What a sandbox will refuse a command, known from its text before it runs, so that the question about the command can say
//! so. Takes the text, taken apart; gives what an ordinary Yes would not allow, and the private files that it names. Looks
//! at the disk.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::ShellCommand;
use decurion_protocol::{Access, Intent, Touch, Verdict};
use decurion_tools::bash;
use serde_json::Value;

use super::opened::{is_denied, is_plain, is_temporary, mode_of};
use super::refusal::{RefusalKind, denies};
use super::removal::behind_options;
use super::{Holding, SandboxMaker, Variables, git_folders};
use crate::permission::{Around, NamedWrite, Policy, decide, fixed_part, is_inside, named_writes};
use crate::symlinks::Symlinks;

/// Private files that a call names to read them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedSecrets {
    /// One that belongs to Decurion, which no command sees.
    pub own: Option<Utf8PathBuf>,
    /// Keys and the like, which are hidden from commands unless a person shows them.
    pub hidden: Vec<Utf8PathBuf>,
    /// Links by which the call names them, that are hidden themselves.
    pub links: Vec<Utf8PathBuf>,
}

impl SandboxMaker {
    /// What a command plainly does that needs more than the usual rights, as a sentence without its full stop. None for a
    /// command that does anything else besides, or runs something that commands can have made: it can still ask once it
    /// has failed.
    pub fn needs_outside(&self, policy: &Policy, seen: &Intent, environment: &Variables) -> Option<String> {
        let text = seen.shell.as_ref().filter(|text| is_plain(text))?;
        let is_simple = |command: &ShellCommand| {
            let program = program(command);
            let changes_files = bash::removes_operands(program) || bash::replaces_target(program);
            let is_understood = command.doubt.is_none() && command.unknown.is_empty();
            let is_plain = is_understood && command.hazards.is_empty() && command.assigned == 0;
            is_plain
                && (command.read_only || command.files_only || changes_files || changes_git_settings(command))
        };
        if policy.excluded.covers(text) || !text.commands.iter().all(is_simple) {
            return None;
        }
        self.trusted(policy, text, environment).ok()??;
        if !self.calls_git_only_in_protected(policy, seen) {
            return None;
        }
        let named = named_writes(policy, seen, true);
        if named.iter().any(|write| is_denied(policy, &write.path)) {
            return None;
        }
        // `cp a b` names `b/a` as well, for the case that `b` is a folder.
        let is_other_target = |write: &&NamedWrite| {
            let above = write.path.parent();
            above.is_some_and(|above| !above.is_dir() && named.iter().any(|other| other.path == above))
        };
        let mut judged = named.iter().filter(|write| !is_other_target(write));
        let beyond = judged.find(|write| !self.can_write(policy, write) && !can_be_made(text, write));
        if let Some(NamedWrite { path, .. }) = beyond {
            return Some(format!("the sandbox lets no command make, replace or remove {path}"));
        }
        let of_git = text.commands.iter().find(|command| changes_git_settings(command))?;
        let from = of_git.repositories.first().unwrap_or(&policy.around.cwd);
        let settings = git_folders(&from.canonicalize_utf8().ok()?).pop()?.join("config");
        // Commands can change those of a repository that they made.
        let (sandbox, _) = self.confine(policy, false, seen.into(), Holding::Listed).ok()?;
        let is_protected = denies(&sandbox, RefusalKind::Write, settings.as_std_path());
        (is_protected && !is_denied(policy, &settings))
            .then(|| format!("the sandbox lets no command change {settings}"))
    }

    /// Whether the folder of git of each repository that a text names is one whose settings commands cannot change: git
    /// runs what such settings and hooks name.
    fn calls_git_only_in_protected(&self, policy: &Policy, seen: &Intent) -> bool {
        let commands = seen.shell.iter().flat_map(|text| &text.commands);
        let mut calls = commands.filter(|command| program(command) == "git").peekable();
        if calls.peek().is_none() {
            return true;
        }
        let Ok((sandbox, _)) = self.confine(policy, false, seen.into(), Holding::Listed) else {
            return false;
        };
        let is_protected = |folder: &Utf8PathBuf| {
            let git = folder.canonicalize_utf8().ok().and_then(|folder| git_folders(&folder).pop());
            git.is_none_or(|git| denies(&sandbox, RefusalKind::Write, git.join("config").as_std_path()))
        };
        let here = std::slice::from_ref(&policy.around.cwd);
        let mut places = calls
            .flat_map(|call| if call.repositories.is_empty() { here } else { call.repositories.as_slice() });
        places.all(is_protected)
    }

    /// Whether settings or rules let commands write a path anyway.
    fn can_write(&self, policy: &Policy, write: &NamedWrite) -> bool {
        let trails = Symlinks::on_disk();
        let listed = self.settings.writable.iter().any(|folder| write.path.starts_with(trails.place(folder)));
        let touches = vec![Touch { path: write.path.clone(), access: Access::Write }];
        let intent = Intent { touches, ..Intent::titled("") };
        let allowed = || decide(policy, "Edit", &Value::Null, &intent).verdict == Verdict::Allow;
        listed || is_temporary(&write.path) || allowed()
    }

    /// The private files that a call names to read them. Those that are worked in are none.
    pub fn named_secrets(&self, seen: &Intent, around: &Around) -> NamedSecrets {
        let trails = Symlinks::on_disk();
        let hidden: Vec<Utf8PathBuf> = self.settings.hidden.iter().map(|path| trails.place(path)).collect();
        let own = self.settings.own.as_ref().map(|own| trails.place(&own.folder));
        let commands = seen.shell.iter().flat_map(|text| &text.commands);
        let named = commands.clone().flat_map(|command| &command.touches).chain(&seen.touches);
        let named = named.filter(|touch| touch.access == Access::Read).map(|touch| touch.path.clone());
        let wide = commands.flat_map(|command| &command.wide).filter(|wide| wide.access == Access::Read);
        let mut found = NamedSecrets::default();
        for path in named.chain(wide.map(|wide| fixed_part(&wide.pattern))) {
            let is_hidden = hidden.iter().any(|secret| path.starts_with(secret));
            if !is_hidden || !path.exists() || is_inside(&path, around) {
                continue;
            }
            // What a link leads to is named as well.
            if trails.place(&path) != path {
                found.links.push(path);
                continue;
            }
            if own.as_ref().is_some_and(|own| path.starts_with(own)) {
                found.own.get_or_insert(path);
            } else if !found.hidden.contains(&path) {
                found.hidden.push(path);
            }
        }
        found
    }
}

/// Whether a file is there, or is made before the command starts.
fn can_be_made(text: &decurion_protocol::intent::ShellIntent, write: &NamedWrite) -> bool {
    let path = &write.path;
    if write.replaced {
        return false;
    }
    // A folder that is there is made again by nothing.
    path.exists() || path.parent().is_some_and(Utf8Path::is_dir) && mode_of(text, path).is_some()
}

/// The name of a program that is found by it. One that is named by a path may be anything.
fn program(command: &ShellCommand) -> &str {
    command.words.get(command.assigned).filter(|word| !word.contains('/')).map_or("", String::as_str)
}

/// Whether a call of git writes the settings of its repository.
fn changes_git_settings(command: &ShellCommand) -> bool {
    let words: Vec<&str> = command.words.iter().skip(command.assigned).map(String::as_str).collect();
    let ["git", rest @ ..] = words.as_slice() else { return false };
    if command.read_only {
        return false;
    }
    match behind_options(rest) {
        ["remote", subcommand, ..] => {
            matches!(*subcommand, "add" | "remove" | "rm" | "rename" | "set-url" | "set-branches")
        }
        ["branch", options @ ..] => {
            let options_of_settings = ["-m", "-M", "--move", "-u", "--unset-upstream"];
            let changes =
                |word: &&str| word.starts_with("--set-upstream-to") || options_of_settings.contains(word);
            options.iter().any(changes)
        }
        ["config", options @ ..] => {
            !options.iter().any(|word| matches!(*word, "--global" | "--system" | "-f" | "--file"))
        }
        _ => false,
    }
}
