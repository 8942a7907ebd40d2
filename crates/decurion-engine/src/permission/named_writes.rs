//! What a command that goes ahead may write outside of the working directories. Takes its text, taken apart, and whether
//! a person said yes to it; gives the paths that it plainly writes, as its text names them.

use camino::Utf8PathBuf;
use decurion_protocol::intent::ShellCommand;
use decurion_protocol::{Access, Intent};
use decurion_tools::bash;
use serde_json::Value;

use super::{Policy, Question, paths, shell};

/// A path outside of the working directories that a command may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedWrite {
    /// As the text names it.
    pub path: Utf8PathBuf,
    /// Whether it is removed, or another file is put in its place.
    pub replaced: bool,
}

/// The paths that a command may write because it names them: all of them if a person said yes to its text, otherwise
/// those that rules allow by name. Never one that is protected. A rule for a whole command opens no settings in the home
/// folder: which of them make a program run something, no list can say. A rule for the path itself does.
pub fn named_writes(policy: &Policy, intent: &Intent, answered: bool) -> Vec<NamedWrite> {
    let Some(text) = &intent.shell else { return Vec::new() };
    let question = Question { policy, tool: "Bash", input: &Value::Null, intent };
    let around = &policy.around;
    let mut found: Vec<NamedWrite> = Vec::new();
    for (index, command) in text.commands.iter().enumerate() {
        if command.inside.as_ref().is_some_and(|inside| inside.elsewhere) {
            continue;
        }
        let allowed = answered || shell::is_written_down(&question, text, index);
        for write in written_by(command) {
            let path = &write.path;
            let may = answered
                || question.is_named_by_rule(path, Access::Write)
                || (allowed && !paths::is_setting_of_user(path, around));
            let outside = !paths::is_inside(path, around) && paths::protected(path, around).is_none();
            if may && outside && !is_behind_a_link(path, command, policy) && !found.contains(&write) {
                found.push(write);
            }
        }
    }
    found
}

/// Whether a path is where a link leads that the text names: a command can have made that link, and the text does not show
/// where it leads.
fn is_behind_a_link(path: &Utf8PathBuf, command: &ShellCommand, policy: &Policy) -> bool {
    let trails = &policy.around.trails;
    let place = trails.place(path);
    let mut names =
        command.touches.iter().map(|touch| &touch.path).chain(&command.mentions).chain(&command.leads);
    place != *path || names.any(|name| name != path && trails.place(name) == place)
}

/// The paths that a command plainly writes.
fn written_by(command: &ShellCommand) -> impl Iterator<Item = NamedWrite> {
    // One that is named by a path may be anything.
    let program = command.words.get(command.assigned).filter(|word| !word.contains('/'));
    let program = program.map_or("", String::as_str);
    let in_place = program == "sed" && command.words.iter().any(|word| word.starts_with("-i"));
    let changes = in_place || bash::removes_operands(program);
    let replaced = changes || bash::replaces_target(program);
    let touched = command.touches.iter().filter(move |touch| changes || touch.access == Access::Write);
    let operands = command.mentions.iter().chain(&command.leads).filter(move |_| changes);
    touched
        .map(|touch| &touch.path)
        .chain(operands)
        .map(move |path| NamedWrite { path: path.clone(), replaced })
}
