//! Proposals for the word at the cursor: commands after a slash, files and agents after an at sign. Takes the prompt as it
//! changes; gives what fits, and the keys that take one.

use ratatui_core::text::Line;

use super::{App, Effect};
use crate::commands;
use crate::completion::{Choices, Completion, CompletionKind, Naming};
use crate::keymap::Action;
use crate::port::{FrontEndJob, JobPurpose};
use crate::view::popup::Popup;

/// How many are proposed.
const MOST_FOUND: usize = 50;
/// How many rows they take.
const ROWS: usize = 8;

#[derive(Default)]
pub(super) struct Completing {
    naming: Option<Naming>,
    found: Vec<Completion>,
    chosen: usize,
    /// The word whose proposals were closed with Esc.
    closed: Option<String>,
    /// The files of the project, once they are known.
    paths: Vec<Completion>,
    /// All completions after an at sign, until an agent starts or ends.
    mentions: Choices,
    asked: bool,
}

impl App {
    /// Whether something is proposed.
    pub(super) fn proposes(&self) -> bool {
        !self.completing.found.is_empty()
    }

    /// Proposes what fits now.
    pub(super) fn propose(&mut self) -> Vec<Effect> {
        let naming = Naming::at(self.composer.raw(), self.composer.cursor());
        if naming.as_ref().map(|naming| &naming.word) == self.completing.closed.as_ref() && naming.is_some() {
            return Vec::new();
        }
        self.completing.closed = None;
        let mut effects = Vec::new();
        let began = naming.is_some() && self.completing.naming.is_none();
        let found = match naming.as_ref().map(|naming| (naming.what, naming.word.as_str())) {
            None => Vec::new(),
            Some((CompletionKind::Command, word)) => {
                self.commands().find(word, MOST_FOUND).into_iter().cloned().collect()
            }
            Some((CompletionKind::Mention, word)) => {
                if began {
                    self.completing.mentions = self.mentions();
                }
                if !std::mem::replace(&mut self.completing.asked, true) {
                    effects.push(Effect::Errand(JobPurpose::Paths, FrontEndJob::Paths));
                }
                self.completing.mentions.find(word, MOST_FOUND).into_iter().cloned().collect()
            }
        };
        if naming != self.completing.naming {
            self.completing.chosen = 0;
        }
        (self.completing.naming, self.completing.found) = (naming, found);
        effects
    }

    /// The files of the project are known.
    pub(super) fn paths_came(&mut self, paths: Vec<String>) -> Vec<Effect> {
        let choice = |text: String| Completion { text, description: String::new() };
        self.completing.paths = paths.into_iter().map(choice).collect();
        self.completing.mentions = self.mentions();
        self.propose()
    }

    fn commands(&self) -> Choices {
        let choice =
            |text: &str, description: &str| Completion { text: text.into(), description: description.into() };
        let ours = commands::all().map(|(name, words)| choice(name, words));
        let theirs = self.library.skills.iter().map(|(name, words)| choice(name, words));
        Choices::new(ours.chain(theirs).collect())
    }

    /// Agents at work, by their ids; kinds of agents; files.
    fn mentions(&self) -> Choices {
        let at_work = self.view.tasks().iter().filter(|task| task.is_agent() && !task.state.is_ended());
        let at_work = at_work.map(|task| Completion {
            text: task.record.task.to_string(),
            description: format!("tell it: {}", crate::view::agents::name(task)),
        });
        let kinds = self
            .library
            .agents
            .iter()
            .map(|(name, words)| Completion { text: name.clone(), description: format!("agent · {words}") });
        Choices::new(at_work.chain(kinds).chain(self.completing.paths.iter().cloned()).collect())
    }

    /// A key while something is proposed; none if it is not for that.
    pub(super) fn proposal_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        if !self.proposes() {
            return None;
        }
        let last = self.completing.found.len() - 1;
        match action {
            Action::Up => self.completing.chosen = self.completing.chosen.saturating_sub(1),
            Action::Down => self.completing.chosen = (self.completing.chosen + 1).min(last),
            Action::Complete => return Some(self.take_proposal()),
            Action::Submit => {
                let is_command = self
                    .completing
                    .naming
                    .as_ref()
                    .is_some_and(|naming| naming.what == CompletionKind::Command);
                let effects = self.take_proposal();
                return if is_command { None } else { Some(effects) };
            }
            Action::Interrupt => {
                self.completing.closed = self.completing.naming.take().map(|naming| naming.word);
                self.completing.found.clear();
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn take_proposal(&mut self) -> Vec<Effect> {
        let (Some(naming), Some(choice)) =
            (self.completing.naming.take(), self.completing.found.get(self.completing.chosen).cloned())
        else {
            return Vec::new();
        };
        let text = naming.replacement(self.composer.raw(), &choice.text);
        self.composer.replace(naming.range, &text);
        self.completing.found.clear();
        self.propose()
    }

    /// Nothing is proposed any more, and files are looked up anew for the next prompt.
    pub(super) fn end_proposals(&mut self) {
        let paths = std::mem::take(&mut self.completing.paths);
        self.completing = Completing { paths, ..Completing::default() };
    }

    /// What is proposed, as lines.
    pub(super) fn proposals(&self) -> Vec<Line<'static>> {
        let Some(naming) = self.completing.naming.as_ref().filter(|_| self.proposes()) else {
            return Vec::new();
        };
        let sign = if naming.what == CompletionKind::Command { "/" } else { "@" };
        let found: Vec<&Completion> = self.completing.found.iter().collect();
        let (theme, columns, chosen) = (&self.theme, self.columns, self.completing.chosen);
        Popup { theme, columns, most: ROWS.min(self.rows / 3).max(1), sign, chosen }.lines(&found)
    }
}
