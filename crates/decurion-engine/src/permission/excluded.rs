//! Commands that the settings let run without the sandbox. Takes the entries of `sandbox.excludedCommands` and a text that
//! was taken apart; tells whether all of the text is named.

use std::sync::Arc;

use decurion_protocol::intent::{ShellCommand, ShellIntent};

/// The first words of the commands that run without the sandbox.
#[derive(Clone, Debug, Default)]
pub struct Excluded(Arc<[Vec<String>]>);

impl Excluded {
    /// Reads the entries: `docker`, `docker:*` and `docker *` are the same.
    pub fn new(entries: &[String]) -> Self {
        let words = |text: &String| decurion_tools::bash::rule_words(text.trim_end_matches([':', '*', ' ']));
        Self(entries.iter().filter_map(words).filter(|words| !words.is_empty()).collect())
    }

    /// Whether all commands of a text are named.
    pub fn covers(&self, shell: &ShellIntent) -> bool {
        let named = |command: &ShellCommand| self.0.iter().any(|words| command.words.starts_with(words));
        let covered = |command: &ShellCommand| named(command) || self.runs_in_named(shell, command);
        let literal = shell.doubt.is_none() && shell.not_literal.is_none();
        literal && !shell.commands.is_empty() && shell.commands.iter().all(covered)
    }

    /// Whether a named command runs this one elsewhere, such as in a container, so that it is not for the shell. With a
    /// doubt about the named one it could run here.
    fn runs_in_named(&self, shell: &ShellIntent, command: &ShellCommand) -> bool {
        let mut outer = command;
        while let Some(inside) = outer.inside.as_ref().filter(|inside| inside.elsewhere) {
            match shell.commands.get(inside.command) {
                Some(next) if !std::ptr::eq(next, outer) => outer = next,
                _ => return false,
            }
        }
        let named = self.0.iter().any(|words| outer.words.starts_with(words));
        !std::ptr::eq(outer, command) && named && outer.doubt.is_none()
    }
}
