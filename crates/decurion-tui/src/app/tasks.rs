//! The tree while it has the keys. Takes keys; moves in it, opens one, and does with it what was asked for and confirmed.
//!
//! No letter does anything by itself: it asks, and only `enter` after it (`y` and `enter` for what cannot be taken back)
//! answers. Words that are typed without looking arrive in the prompt, and nothing is done.

use decurion_protocol::view::{Standing, TaskView};
use decurion_protocol::{Command, Inspected, TaskId};

use super::open::Overlay;
use super::{App, AwaitedReply, Effect};
use crate::composer::{Composer, ComposerEdit, CursorMotion};
use crate::keymap::Action;
use crate::page::FullPage;
use crate::port::{FrontEndJob, JobPurpose};

/// The tree, with one chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct TaskPanel {
    pub chosen: Option<TaskId>,
    /// A budget that is being written.
    pub budget: Option<Composer>,
    /// What is asked about before it is done.
    pub asked: Option<TaskConfirmation>,
}

/// Something to do with the chosen one, not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskConfirmation {
    /// The letter of it.
    letter: char,
    /// Whether `y` was typed after it.
    agreed: bool,
}

impl TaskConfirmation {
    /// What a letter asks for; none for one that is no command.
    fn by(letter: char) -> Option<Self> {
        matches!(letter, 'x' | 'p' | 'P' | 'b' | 'r').then_some(Self { letter, agreed: false })
    }

    /// Whether a yes is needed besides `enter`.
    pub fn is_final(self) -> bool {
        self.letter == 'x'
    }

    fn is_confirmed(self) -> bool {
        self.agreed || !self.is_final()
    }

    /// The letters that were typed.
    fn typed(self) -> String {
        let yes = if self.agreed { "y" } else { "" };
        format!("{}{yes}", self.letter)
    }
}

impl App {
    pub(super) fn open_tasks(&mut self) {
        let chosen = self.view.ordered().all().next().map(|task| task.record.task.clone());
        self.open = Overlay::Tasks(TaskPanel { chosen, ..TaskPanel::default() });
    }

    /// A key while the tree has the focus; none if it is for the prompt, which has the focus from then on.
    pub(super) fn tasks_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        let Overlay::Tasks(tasks) = &mut self.open else { return None };
        if tasks.budget.is_some() {
            return self.budget_key(action);
        }
        if let Some(asked) = tasks.asked.take() {
            return self.asked_key(asked, action);
        }
        match action {
            Action::Interrupt | Action::Tasks => self.open = Overlay::Nothing,
            Action::Up => self.choose_task(-1),
            Action::Down => self.choose_task(1),
            Action::PageUp => self.choose_task(-10),
            Action::PageDown => self.choose_task(10),
            Action::Submit => return Some(self.open_task()),
            Action::Edit(ComposerEdit::Type('$')) if tasks.chosen.is_some() => {
                tasks.budget = Some(Composer::default());
            }
            Action::Edit(ComposerEdit::Type(letter))
                if tasks.chosen.is_some() && TaskConfirmation::by(letter).is_some() =>
            {
                tasks.asked = TaskConfirmation::by(letter);
            }
            Action::Edit(_) | Action::Newline => {
                self.open = Overlay::Nothing;
                return None;
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    /// A key after the letter of something to do.
    fn asked_key(&mut self, asked: TaskConfirmation, action: Action) -> Option<Vec<Effect>> {
        let Overlay::Tasks(tasks) = &mut self.open else { return None };
        match action {
            Action::Submit if asked.is_confirmed() => {
                let task = tasks.chosen.clone()?;
                return Some(self.do_task(asked.letter, task));
            }
            Action::Edit(ComposerEdit::Type('y')) if asked.is_final() && !asked.agreed => {
                tasks.asked = Some(TaskConfirmation { agreed: true, ..asked });
            }
            Action::Edit(ComposerEdit::Type('n')) if asked.is_final() && !asked.agreed => {}
            // It was the beginning of a word.
            Action::Edit(ComposerEdit::Type(_)) => {
                self.open = Overlay::Nothing;
                self.composer.insert(&asked.typed());
                return None;
            }
            // The question stays: what is typed next is not meant for the prompt.
            Action::Submit => {
                tasks.asked = Some(asked);
                self.known.hint = Some("press y first, then enter (esc: no)".to_owned());
            }
            Action::Interrupt | Action::Edit(ComposerEdit::Delete(CursorMotion::Left)) => {}
            other => return self.tasks_key(other),
        }
        Some(Vec::new())
    }

    /// A key while a budget is written. One that makes no sense stays, to be corrected.
    fn budget_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        let Overlay::Tasks(tasks) = &mut self.open else { return None };
        let budget = tasks.budget.as_mut()?;
        match action {
            Action::Edit(edit) => budget.edit(edit),
            Action::Submit => match crate::budget::parse(budget.raw().trim()) {
                Ok(limits) => {
                    tasks.budget = None;
                    let task = tasks.chosen.clone()?;
                    return Some(vec![
                        self.ask_for(AwaitedReply::Budget, Command::Rebudget { task, limits }),
                    ]);
                }
                Err(reason) => self.known.hint = Some(reason),
            },
            Action::Interrupt => tasks.budget = None,
            _ => return None,
        }
        Some(Vec::new())
    }

    fn choose_task(&mut self, step: isize) {
        let rows: Vec<&TaskView> = self.view.ordered().all().collect();
        let Overlay::Tasks(tasks) = &self.open else { return };
        let at = rows.iter().position(|task| Some(&task.record.task) == tasks.chosen.as_ref());
        let next = at.map_or(0, |at| at.saturating_add_signed(step).min(rows.len().saturating_sub(1)));
        let chosen = rows.get(next).map(|task| task.record.task.clone());
        self.open = Overlay::Tasks(TaskPanel { chosen, ..TaskPanel::default() });
    }

    /// The live conversation or output of the chosen task.
    fn open_task(&mut self) -> Vec<Effect> {
        let Overlay::Tasks(TaskPanel { chosen: Some(task), .. }) = &self.open else { return Vec::new() };
        let Some(view) = self.view.task(task) else { return Vec::new() };
        let title = crate::view::agents::name(view);
        if view.is_agent()
            && let Ok(agent) = task.as_str().parse::<decurion_protocol::AgentId>()
        {
            self.page = Some(FullPage::agent(title, agent.clone()));
            return vec![Effect::Errand(
                JobPurpose::Past(Some(agent.clone())),
                FrontEndJob::Past(Some(agent)),
            )];
        }
        let what = Inspected::Output { task: task.clone() };
        self.page = Some(FullPage::awaited(title, "loading the output …"));
        vec![self.ask_for(AwaitedReply::Output, Command::Inspect { what })]
    }

    fn do_task(&mut self, letter: char, task: TaskId) -> Vec<Effect> {
        match letter {
            'x' => vec![self.ask("stop", Command::Stop { task })],
            'b' => vec![self.ask("background", Command::Background { target: Some(task.to_string()) })],
            'p' | 'P' => {
                let tree = letter == 'P';
                let (what, command) = if self.is_held(&task) {
                    ("continue", Command::Continue { task, tree })
                } else {
                    ("pause", Command::Pause { task, tree })
                };
                vec![self.ask(what, command)]
            }
            'r' => match task.as_str().parse() {
                Ok(agent) => {
                    let text = "Continue with your work.".to_owned();
                    vec![self.ask("resume", Command::Tell { agent, text })]
                }
                Err(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn is_held(&self, task: &TaskId) -> bool {
        self.view.task(task).is_some_and(|view| view.standing() == Standing::Held)
    }

    /// What is asked, with the one that it is about.
    pub(super) fn task_question(&self, tasks: &TaskPanel, asked: TaskConfirmation) -> String {
        let chosen = tasks.chosen.as_ref().and_then(|task| self.view.task(task));
        let name = chosen.map(crate::view::agents::name).unwrap_or_default();
        let is_held = chosen.is_some_and(|task| task.standing() == Standing::Held);
        match (asked.letter, is_held) {
            ('x', _) => format!("stop {name}?"),
            ('p', false) => format!("pause {name}?"),
            ('P', false) => format!("pause {name} and its sub-agents?"),
            ('p', true) => format!("let {name} continue?"),
            ('P', true) => format!("let {name} and its sub-agents continue?"),
            ('b', _) => format!("send {name} to the background?"),
            _ => format!("tell {name} to continue?"),
        }
    }

    /// How it is answered.
    pub(super) fn task_answer(asked: TaskConfirmation) -> &'static str {
        match (asked.is_final(), asked.agreed) {
            (true, false) => "y, then enter · esc: no",
            (true, true) | (false, _) => "enter · esc: no",
        }
    }

    /// A letter that was typed as a line, which is deliberate: only irreversible actions ask for confirmation.
    pub fn task_letter(&mut self, letter: char) -> Option<Vec<Effect>> {
        let Overlay::Tasks(tasks) = &mut self.open else { return None };
        let task = tasks.chosen.clone()?;
        let asked = tasks.asked.take();
        Some(match (asked, TaskConfirmation::by(letter)) {
            (Some(asked), _) if letter == 'y' => self.do_task(asked.letter, task),
            (Some(_), _) => Vec::new(),
            (None, Some(asked)) if asked.is_final() => {
                tasks.asked = Some(asked);
                Vec::new()
            }
            (None, Some(asked)) => self.do_task(asked.letter, task),
            (None, None) => {
                if letter == '$' {
                    tasks.budget = Some(Composer::default());
                }
                Vec::new()
            }
        })
    }
}
