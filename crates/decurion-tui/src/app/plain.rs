//! The screen without a screen: what a front end of plain lines asks of it. Takes numbers and lines instead of keys; gives
//! what is waited for, and numbered lines that say how to answer.

use std::collections::BTreeSet;

use jiff::Timestamp;
use ratatui_core::text::Line;

use super::open::Overlay;
use super::tasks::TaskPanel;
use super::{App, Effect, Farewell};
use crate::steps::steps;
use crate::view::agents::Panel;
use crate::view::item::ItemFolding;
use crate::view::question::Asking;

/// What the next line that is typed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    Prompt,
    /// The number of an answer, or of several, of which an empty line takes those that are marked.
    Answer {
        /// How many are; none where only one can be chosen.
        marked: Option<usize>,
    },
    /// A number or a letter for what is open; `chosen` once a number was given.
    Choice {
        chosen: bool,
    },
    /// Words for what is open.
    Words,
    /// Anything: a text is being read.
    Reading,
}

impl App {
    /// From here on finished items are printed for a person with lines instead of keys.
    pub fn be_plain(&mut self, echoes: bool) {
        (self.fold, self.typist.echoes) = (ItemFolding::Printed, echoes);
    }

    /// The help or the whole conversation at once, for plain mode, which has no pages.
    pub fn take_reading(&mut self) -> Vec<Line<'static>> {
        if matches!(self.open, Overlay::Help(_)) {
            self.open = Overlay::Nothing;
            return self.whole_help();
        }
        let Some(mut page) = self.page.take_if(|page| page.is_root()) else { return Vec::new() };
        let mut lines = vec![Line::raw("the whole conversation:")];
        lines.extend(page.all((&self.items, self.dropped), &self.theme, self.columns));
        lines.push(Line::raw("end of the conversation"));
        lines
    }

    /// What the next line is about.
    pub fn wants(&self) -> Wants {
        if self.page.is_some() {
            return Wants::Reading;
        }
        if let Some(asked) = self.asked.as_ref().filter(|_| self.answers()) {
            if asked.note.is_some() {
                return Wants::Words;
            }
            let several = self.offered().is_some_and(|(_, several)| several);
            return Wants::Answer { marked: several.then_some(asked.marked.len()) };
        }
        match &self.open {
            Overlay::Nothing => Wants::Prompt,
            Overlay::Help(_) => Wants::Reading,
            Overlay::Search(..) => Wants::Words,
            Overlay::Tasks(tasks) if tasks.budget.is_some() => Wants::Words,
            Overlay::List(_, list) if list.is_writing() => Wants::Words,
            Overlay::Tasks(tasks) => Wants::Choice { chosen: tasks.chosen.is_some() },
            Overlay::List(_, list) => Wants::Choice { chosen: list.picked },
        }
    }

    /// How many answers there are to choose from, and whether several can be.
    fn offered(&self) -> Option<(usize, bool)> {
        let (asked, question) = self.shown_question()?;
        let step = steps(question).into_iter().nth(asked.picked.step)?;
        Some((step.offers.len(), step.several))
    }

    /// Answers with the number in a line, or marks all numbers in it if several are allowed. A line with anything else
    /// decides nothing, and gets a hint.
    pub fn answer_line(&mut self, line: &str) -> Vec<Effect> {
        let Some((offers, several)) = self.offered() else { return Vec::new() };
        let number = |word: &str| word.parse().ok().filter(|number| (1..=offers).contains(number));
        let words = line.split([',', ' ']).filter(|word| !word.is_empty());
        let numbers: Option<BTreeSet<usize>> = words.map(number).collect();
        let numbers = numbers.filter(|numbers| numbers.len() == 1 || several && !numbers.is_empty());
        let Some(numbers) = numbers else {
            self.say("warning", format!("that is not the number of an answer (1 to {offers})"));
            return Vec::new();
        };
        // In their order: the text to be written comes last, with the others marked.
        numbers.into_iter().flat_map(|number| self.answer_number(number)).collect()
    }

    /// Whether a prompt that is sent now waits for its turn.
    pub fn would_wait(&self) -> bool {
        self.is_busy() || !self.sent.is_empty()
    }

    /// Chooses a row of what is open by its number, from 1 on. What can only be chosen is done at once.
    pub fn choose_number(&mut self, number: usize) -> Vec<Effect> {
        let at = number.wrapping_sub(1);
        match &mut self.open {
            Overlay::Tasks(tasks) if at < self.view.tasks().len() => {
                tasks.chosen = self.view.ordered().all().nth(at).map(|task| task.record.task.clone());
                tasks.asked = None;
            }
            Overlay::List(_, list) if at < list.rows.len() => {
                (list.chosen, list.picked) = (at, true);
                if list.only_takes() {
                    return self.open_key(crate::keymap::Action::Submit).unwrap_or_default();
                }
            }
            _ => self.say("warning", format!("nothing above has the number {number}")),
        }
        Vec::new()
    }

    /// Whether a letter would do something with a row of what is open.
    pub fn is_about_a_row(&self, letter: char) -> bool {
        let Overlay::List(_, list) = &self.open else { return true };
        list.offers.iter().any(|offer| offer.key == letter && offer.of_row)
    }

    /// Closes a text that is being read, unless it is the conversation of an agent that takes messages.
    pub fn close_reading(&mut self) {
        if self.page.as_ref().is_some_and(|page| page.agent_id().is_none()) {
            self.page = None;
        }
        if self.page.is_none() && self.wants() == Wants::Reading {
            self.open = Overlay::Nothing;
        }
    }

    /// Closes what is open above the prompt.
    pub fn close_open(&mut self) {
        self.open = Overlay::Nothing;
    }

    /// The draft in the prompt, which is invisible in plain mode.
    pub fn take_draft(&mut self) -> Option<String> {
        Some(self.composer.take()).filter(|text| !text.trim().is_empty())
    }

    /// Says what was written and not sent, where the prompt is not drawn, or not any more; gives it.
    pub fn say_draft(&mut self) -> Option<String> {
        let draft = self.take_draft()?;
        self.say("info", format!("not sent: {draft}"));
        Some(draft)
    }

    /// The input has ended: leaves as soon as all requested work is done.
    pub fn leave_when_done(&mut self) -> Vec<Effect> {
        self.leaving = true;
        if self.known.attached() {
            return vec![Effect::Leave(Farewell::Close)];
        }
        if !self.is_done() {
            self.say("info", "end of input: leaves when everything is done (control-c leaves now)");
        }
        self.leave_if_done()
    }

    /// What must be decided or was asked for, as lines that are printed once.
    pub fn plain(&mut self, now: Timestamp) -> Vec<Line<'static>> {
        // They are printed before another line is read.
        self.drawn_once();
        if let Some(page) = &mut self.page {
            return page.all((&self.items, self.dropped), &self.theme, self.columns);
        }
        if let Some((asked, question)) = self.shown_question().filter(|_| self.answers()) {
            let (theme, columns) = (&self.theme, self.columns);
            let waiting = self.view.questions.len();
            let (step, marked) = (asked.picked.step, &asked.marked);
            // No answer is the one that an empty line would give.
            let chosen = None;
            let (rows, question) = (usize::MAX, &self.named(question));
            let answers = asked.picked.chosen();
            let asking = Asking { theme, columns, rows, step, chosen, marked, answers, waiting };
            let mut lines = asking.lines(question);
            lines.push(Line::raw(match self.wants() {
                Wants::Words => "write it in one line",
                Wants::Answer { marked: Some(0) } => "type the numbers to select, such as 1,2",
                Wants::Answer { marked: Some(_) } => {
                    "an empty line confirms the selection; a number selects or deselects one"
                }
                _ => "type a number to answer",
            }));
            return lines;
        }
        match &self.open {
            Overlay::Nothing => Vec::new(),
            Overlay::Tasks(tasks) => self.plain_tasks(tasks, now),
            Overlay::List(_, list) => list.numbered(),
            Overlay::Help(_) | Overlay::Search(..) => self.panel(now),
        }
    }

    fn plain_tasks(&self, tasks: &TaskPanel, now: Timestamp) -> Vec<Line<'static>> {
        let columns = self.columns.saturating_sub(5).max(20);
        let panel = Panel { theme: &self.theme, columns, most: usize::MAX, now, chosen: None, all: true };
        let rows = panel.lines(&self.view);
        if rows.is_empty() {
            return vec![Line::raw("no agents or background commands yet; an empty line closes")];
        }
        let numbered = |(at, row): (usize, Line<'static>)| Line::raw(format!("{:>3}. {row}", at + 1));
        let mut lines: Vec<Line<'static>> = rows.into_iter().enumerate().map(numbered).collect();
        let chosen =
            self.view.ordered().all().position(|task| Some(&task.record.task) == tasks.chosen.as_ref());
        if let Some(asked) = tasks.asked {
            let question = self.task_question(tasks, asked);
            lines.push(Line::raw(format!("{question} type y, or anything else for no")));
            return lines;
        }
        lines.push(Line::raw(match (chosen, &tasks.budget) {
            (_, Some(_)) => "its budget in one line, such as 10 turns or $2".to_owned(),
            (Some(at), None) => format!(
                "a number chooses; {} is chosen: enter looks, x stops, p pauses or resumes (P: whole subtree), b to the background, $ budget, r resumes, q closes",
                at + 1
            ),
            (None, None) => "type a number to choose one, q to close".to_owned(),
        }));
        lines
    }
}
