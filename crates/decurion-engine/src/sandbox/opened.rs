//! Files outside of the working directories that one command may write, because the answer to a question or a rule allows
//! it. Takes these paths and what the command may write anyway; adds those that are files already, and makes those that
//! the text plainly makes.
//!
//! A file can only be made, removed or replaced by changing its folder, and in a folder that a command may change it can
//! make anything. So a new file is made empty before the command starts, and removed afterwards if the command has not
//! written it. Folders, and files that are removed or replaced, are left to the question whether the command may run
//! without the sandbox.

use std::os::unix::fs::PermissionsExt as _;

use camino::Utf8Path;
use decurion_exec::new_file::NewFile;
use decurion_exec::sandbox::TEMPORARY;
use decurion_protocol::intent::{ShellCommand, ShellIntent};
use decurion_protocol::{Access, Intent, Mode, Touch, Verdict};
use serde_json::Value;

use super::{Collected, SandboxMaker};
use crate::permission::{Around, NamedWrite, Policy, decide, is_protected};
use crate::symlinks::Symlinks;

/// Of these a command has its own.
const OWN: [&str; 3] = ["/proc", "/dev", "/sys"];
/// The mode of a new file, less the mask of the command.
const NEW: u32 = 0o666;

impl SandboxMaker {
    /// Makes the files among these paths writable, but for what is always hidden. What rules deny is taken away again later.
    pub(super) fn open_named_files(&self, paths: &mut Collected, named: &[NamedWrite], around: &Around) {
        for NamedWrite { path, .. } in named.iter().filter(|write| !write.replaced) {
            let place = paths.trails.place(path);
            let is_file = place.symlink_metadata().is_ok_and(|found| found.is_file());
            let is_closed = self.is_out_of_reach(&paths.trails, &place) || is_protected(&place, around);
            if is_file && !is_closed && !paths.is_writable(&place) {
                paths.show(&place);
                paths.write(&place);
            }
        }
    }

    /// Makes the files among these paths that do not exist and that the text plainly makes, and no other. They are removed
    /// with the result unless they were written. Looks at the disk.
    pub fn make_named_files(&self, named: &[NamedWrite], policy: &Policy, seen: &Intent) -> Vec<NewFile> {
        let text = seen.shell.as_ref().filter(|text| policy.mode != Mode::Plan && is_plain(text));
        let Some(text) = text else { return Vec::new() };
        let trails = Symlinks::on_disk();
        let may_make = |path: &Utf8Path| {
            let is_absent =
                path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
            let around = &policy.around;
            let is_closed = self.is_out_of_reach(&trails, path) || is_protected(path, around);
            // There commands can make it themselves.
            let is_writable =
                self.settings.writable.iter().any(|folder| path.starts_with(trails.place(folder)));
            is_absent && !is_closed && !is_writable && !is_temporary(path) && !is_denied(policy, path)
        };
        let new = named.iter().filter(|write| !write.replaced && may_make(&write.path));
        new.filter_map(|write| {
            let mode = mode_of(text, &write.path)?;
            // A command that cannot be helped fails as before.
            NewFile::make(write.path.as_std_path(), mode).ok()
        })
        .collect()
    }

    /// Whether a path is always hidden, or a command has its own there.
    fn is_out_of_reach(&self, trails: &Symlinks, place: &Utf8Path) -> bool {
        let hidden = self.settings.hidden.iter().any(|hidden| place.starts_with(trails.place(hidden)));
        hidden || OWN.iter().any(|folder| place.starts_with(folder))
    }
}

/// Whether a text is simple commands one after the other, all of which are understood.
pub(super) fn is_plain(text: &ShellIntent) -> bool {
    text.doubt.is_none()
        && text.not_literal.is_none()
        && text.commands.iter().all(|command| command.inside.is_none())
}

/// Whether a file is in a folder that commands have one of their own for. Those below it they do not have.
pub(super) fn is_temporary(path: &Utf8Path) -> bool {
    path.parent().is_some_and(|folder| TEMPORARY.contains(&folder.as_str()))
}

/// Whether a rule denies writing a file.
pub(super) fn is_denied(policy: &Policy, path: &Utf8Path) -> bool {
    let touches = vec![Touch { path: path.to_owned(), access: Access::Write }];
    let decision = decide(policy, "Edit", &Value::Null, &Intent { touches, ..Intent::titled("") });
    // Where no person can be asked, a question is a refusal too; this one was answered.
    decision.verdict == Verdict::Deny && decision.rule.is_some()
}

/// The mode of the file that a text makes at a path, if the first of its commands that names the path makes a file there.
/// One before it could ask whether there is one.
pub(super) fn mode_of(text: &ShellIntent, path: &Utf8Path) -> Option<u32> {
    let names = |command: &&ShellCommand| {
        let touches = command.touches.iter().map(|touch| &touch.path);
        touches.chain(&command.mentions).chain(&command.leads).any(|named| named == path)
    };
    let command = text.commands.iter().find(names)?;
    let writes = command.touches.iter().filter(|touch| touch.path == path);
    if !writes.clone().all(|touch| touch.access == Access::Write) || writes.count() == 0 {
        return None;
    }
    let words = command.words.get(command.assigned..)?;
    let (program, operands) = words.split_first()?;
    let name = path.file_name()?;
    let program = program.rsplit('/').next()?;
    if ["echo", "printf"].contains(&program) || !operands.iter().any(|word| word.contains(name)) {
        // Only a redirection can name it, and that makes a file.
        return (command.redirections > 0).then_some(NEW);
    }
    if operands.iter().any(|word| word.starts_with('-')) {
        return None;
    }
    match program {
        "touch" | "tee" => Some(NEW),
        // The copy of a program is one.
        "cp" => {
            let mut sources = command.touches.iter().filter(|touch| touch.access == Access::Read);
            let source = sources.next().filter(|_| operands.len() == 2)?;
            let found = source.path.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some(found.permissions().mode() & 0o777)
        }
        _ => None,
    }
}
