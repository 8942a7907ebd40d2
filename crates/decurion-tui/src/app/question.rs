//! The question that is shown, and the keys that answer it. A question stays until the session has taken an answer, so
//! that none is lost.

use std::collections::BTreeSet;

use decurion_protocol::choice::Subject;
use decurion_protocol::{
    Answer, Command, ElicitationAction, Elicited, PermissionUpdate, Question, QuestionId,
};

use serde_json::Value;

use super::open::Overlay;
use super::{App, AwaitedReply, Effect};
use crate::composer::{Composer, ComposerEdit, CursorMotion};
use crate::conversation::UNWANTED;
use crate::keymap::Action;
use crate::page::FullPage;
use crate::steps::{ChoiceEffect, Offered, QuestionStep, StepChoice, StepResult, steps};
use crate::view::item::ItemFolding;
use crate::view::question::agents_below_root;

/// The model gets this if there is no person left to ask.
const NOBODY: &str = "The user's input has ended, so no one can answer.";

/// An answer that is being chosen.
pub(super) struct AnswerDraft {
    pub question: QuestionId,
    /// What was chosen in the steps before.
    pub picked: StepChoice,
    /// Which of the answers the next key is about.
    pub chosen: usize,
    /// Those that are chosen, where several can be.
    pub marked: BTreeSet<usize>,
    /// The text that is being written, and whether it belongs to a refusal.
    pub note: Option<AnswerNote>,
    /// Whether it was ever on the screen.
    pub seen: bool,
    /// Whether the person chose to answer it. A question that appears while the person writes or reads takes no key
    /// that was not meant for it.
    pub turned_to: bool,
    /// Whether keys were typed into the prompt since it is shown: then further keys go there too.
    pub written_over: bool,
}

/// Words that belong to an answer.
pub(super) struct AnswerNote {
    pub words: Composer,
    pub refuses: bool,
}

impl AnswerNote {
    fn new(refuses: bool) -> Self {
        Self { words: Composer::default(), refuses }
    }
}

impl AnswerDraft {
    fn new(question: &Question) -> Self {
        let mut asked = Self {
            question: question.id,
            picked: StepChoice::default(),
            chosen: 0,
            marked: BTreeSet::new(),
            note: None,
            seen: false,
            turned_to: false,
            written_over: false,
        };
        asked.begin_step(question);
        asked
    }

    /// A step in which nothing can be chosen begins with writing.
    fn begin_step(&mut self, question: &Question) {
        (self.chosen, self.marked) = (0, BTreeSet::new());
        let step = steps(question).into_iter().nth(self.picked.step);
        self.note = step.filter(|step| step.offers.is_empty()).map(|_| AnswerNote::new(false));
        if let (Some(note), Some(before)) = (&mut self.note, self.picked.written(question)) {
            note.words.set(&before);
        }
    }
}

impl App {
    /// Shows the oldest question that is open and not answered; one that was answered elsewhere goes away.
    pub(super) fn follow_questions(&mut self) {
        let is_open = |asked: &AnswerDraft| self.view.question(asked.question).is_some();
        self.answered.retain(is_open);
        self.asked = self.asked.take().filter(is_open);
        if self.asked.is_none() {
            let is_answered = |open: &Question| self.answered.iter().any(|asked| asked.question == open.id);
            let mut open = self.view.questions.iter().filter(|open| !is_answered(open));
            self.asked = open.next().map(AnswerDraft::new);
        }
    }

    /// What is shown was drawn: keys from here on may be about it.
    pub fn drawn_once(&mut self) {
        if let Some(asked) = self.asked.as_mut().filter(|_| self.page.is_none()) {
            asked.seen = true;
        }
    }

    pub(super) fn shown_question(&self) -> Option<(&AnswerDraft, &Question)> {
        let asked = self.asked.as_ref()?;
        Some((asked, self.view.question(asked.question)?))
    }

    /// Whether keys answer the question that is shown, or covered by a page: only one that was in sight before.
    pub(super) fn answers(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.seen) && self.would_answer()
    }

    /// Whether keys answer the question as soon as it is in sight, which is how it is drawn.
    pub(super) fn would_answer(&self) -> bool {
        let is_free = self.composer.is_empty() && matches!(self.open, Overlay::Nothing);
        self.asked.as_ref().is_some_and(|asked| is_free && !asked.written_over || asked.turned_to)
    }

    /// Takes note that something is being written, where that is seen and is not yet sent.
    pub(super) fn heed_writing(&mut self) {
        if let Some(asked) = self.asked.as_mut().filter(|_| !self.composer.is_empty()) {
            asked.written_over = self.fold != ItemFolding::Printed;
        }
    }

    /// The input has ended: open questions are refused.
    pub fn refuse_all(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some((_, question)) = self.shown_question() {
            let answer = refusal(question, NOBODY, false);
            effects.extend(self.answer(answer, Vec::new()));
        }
        effects
    }

    /// A key while a question is shown; none if it is not for that.
    pub(super) fn question_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        if !self.answers() {
            // A question cannot be focused before it was in sight, nor with a key that takes a proposal.
            let turns =
                action == Action::Complete && !self.proposes() && matches!(self.open, Overlay::Nothing);
            let asked = self.asked.as_mut().filter(|asked| turns && asked.seen)?;
            asked.turned_to = true;
            return Some(Vec::new());
        }
        let asked = self.asked.as_mut()?;
        let question = self.view.question(asked.question)?;
        let step = steps(question).into_iter().nth(asked.picked.step)?;
        if asked.note.is_some() {
            return self.note_key(action, &step);
        }
        let last = step.offers.len().saturating_sub(1);
        match action {
            Action::Up => asked.chosen = asked.chosen.saturating_sub(1),
            Action::Down | Action::Complete => asked.chosen = (asked.chosen + 1).min(last),
            Action::Submit => return Some(self.submit_step(&step)),
            Action::Edit(ComposerEdit::Move(CursorMotion::Left)) if asked.picked.step > 0 => {
                return Some(self.step_back());
            }
            Action::Edit(ComposerEdit::Type(' ')) if step.several => asked.mark(asked.chosen),
            Action::Edit(ComposerEdit::Type(digit @ '1'..='9')) => {
                return Some(self.answer_number(digit as usize - '0' as usize));
            }
            Action::Interrupt => return Some(self.decline()),
            // The whole of what is asked, where it is cut.
            Action::Transcript => {
                let question = self.named(question);
                let asker: String = agents_below_root(&question).map(|agent| format!("{agent} › ")).collect();
                let title = format!("{asker}{}", question.title());
                self.page = Some(FullPage::text(title, whole(&question)));
            }
            // The person writes: further keys are for the prompt.
            Action::Edit(_) | Action::Newline => {
                asked.turned_to = false;
                return None;
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn note_key(&mut self, action: Action, step: &QuestionStep) -> Option<Vec<Effect>> {
        let note = self.asked.as_mut()?.note.as_mut()?;
        match action {
            Action::Submit => {
                let (text, refuses) = (note.words.take(), note.refuses);
                if refuses {
                    return Some(self.answer(Answer::Deny { message: text, interrupt: false }, Vec::new()));
                }
                // Besides what is marked, where several can be.
                let mut answers = self.asked.as_ref()?.labels(step);
                answers.push(text);
                return Some(self.pick(step, answers, None));
            }
            Action::Interrupt if step.offers.is_empty() => {
                let cancel = Elicited::plain(ElicitationAction::Cancel);
                return Some(self.answer(Answer::Elicited(cancel), Vec::new()));
            }
            Action::Interrupt => self.asked.as_mut()?.note = None,
            Action::Edit(ComposerEdit::Move(CursorMotion::Left))
                if note.words.is_empty() && !note.refuses && step.offers.is_empty() =>
            {
                return Some(self.step_back());
            }
            Action::Edit(edit) => note.words.edit(edit),
            Action::Newline => note.words.insert("\n"),
            Action::Leave | Action::Suspend | Action::Redraw | Action::Background => return None,
            // The prompt is not in sight: nothing may change it.
            _ => {}
        }
        Some(Vec::new())
    }

    /// The answer with this number, from 1 on, where those are in sight; marks it where several can be.
    pub fn answer_number(&mut self, number: usize) -> Vec<Effect> {
        let Some(asked) = self.asked.as_mut() else { return Vec::new() };
        let Some(question) = self.view.question(asked.question) else { return Vec::new() };
        let step = steps(question).into_iter().nth(asked.picked.step);
        let Some((step, at)) = step.zip(number.checked_sub(1)) else { return Vec::new() };
        let Some(offered) = step.offers.get(at) else { return Vec::new() };
        asked.chosen = at;
        if step.several && matches!(offered.what, ChoiceEffect::Label(_)) {
            asked.mark(at);
            return Vec::new();
        }
        self.choose(&step, at)
    }

    /// Enter: what is marked where several can be, else what is chosen.
    fn submit_step(&mut self, step: &QuestionStep) -> Vec<Effect> {
        let Some(asked) = &self.asked else { return Vec::new() };
        let (at, labels) = (asked.chosen, asked.labels(step));
        let writes = step.offers.get(at).is_some_and(|offered| offered.what == ChoiceEffect::Other);
        if labels.is_empty() || writes { self.choose(step, at) } else { self.pick(step, labels, None) }
    }

    fn choose(&mut self, step: &QuestionStep, at: usize) -> Vec<Effect> {
        let Some(offered) = step.offers.get(at) else { return Vec::new() };
        let Some(asked) = &mut self.asked else { return Vec::new() };
        match offered.what.clone() {
            ChoiceEffect::Answer(answer, updates) => self.answer(answer, updates),
            ChoiceEffect::Stop => self.decline(),
            ChoiceEffect::Refuse => {
                asked.note = Some(AnswerNote::new(true));
                Vec::new()
            }
            ChoiceEffect::Other => {
                asked.note = Some(AnswerNote::new(false));
                Vec::new()
            }
            ChoiceEffect::Label(label) => self.pick(step, vec![label], None),
            ChoiceEffect::Value(value) => self.pick(step, Vec::new(), Some(value)),
            ChoiceEffect::Next => self.pick(step, Vec::new(), None),
            ChoiceEffect::Back => self.step_back(),
        }
    }

    /// To the question before, with what was chosen there.
    fn step_back(&mut self) -> Vec<Effect> {
        let Some(asked) = &mut self.asked else { return Vec::new() };
        let Some(question) = self.view.question(asked.question) else { return Vec::new() };
        let Some(before) = asked.picked.back() else { return Vec::new() };
        asked.begin_step(question);
        let Some(step) = steps(question).into_iter().nth(asked.picked.step) else { return Vec::new() };
        let is_chosen =
            |offered: &Offered| matches!(&offered.what, ChoiceEffect::Label(label) if before.contains(label));
        let chosen =
            step.offers.iter().enumerate().filter(|(_, offered)| is_chosen(offered)).map(|(at, _)| at);
        let chosen: BTreeSet<usize> = chosen.collect();
        asked.chosen = chosen.first().copied().unwrap_or(0);
        if step.several {
            asked.marked = chosen;
        }
        Vec::new()
    }

    /// No, and the turn ends.
    fn decline(&mut self) -> Vec<Effect> {
        let Some((_, question)) = self.shown_question() else { return Vec::new() };
        let answer = refusal(question, UNWANTED, true);
        self.answer(answer, Vec::new())
    }

    /// What was chosen at a step: the next one, or the answer.
    fn pick(
        &mut self,
        step: &QuestionStep,
        answers: Vec<String>,
        value: Option<serde_json::Value>,
    ) -> Vec<Effect> {
        let Some(asked) = &mut self.asked else { return Vec::new() };
        let Some(question) = self.view.question(asked.question) else { return Vec::new() };
        match asked.picked.take(question, step, answers, value) {
            StepResult::Next => {
                asked.begin_step(question);
                Vec::new()
            }
            StepResult::Answer(answer) => self.answer(answer, Vec::new()),
        }
    }

    /// Answers the question that is shown. The next one is shown at once; this one is kept until the session has taken the
    /// answer.
    fn answer(&mut self, answer: Answer, updates: Vec<PermissionUpdate>) -> Vec<Effect> {
        let Some(mut asked) = self.asked.take() else { return Vec::new() };
        let question = asked.question;
        // Should the session refuse it, it is asked again from its beginning, with what was written.
        if let Some(open) = self.view.question(question) {
            asked = AnswerDraft { picked: asked.picked.again(), ..AnswerDraft::new(open) };
            asked.begin_step(open);
            self.answered.push(asked);
        }
        self.follow_questions();
        let command = Command::Answer { question, answer, updates, by: "terminal".to_owned() };
        vec![self.ask_for(AwaitedReply::Answer(question), command)]
    }

    /// The session has not taken the answer: it is asked again.
    pub(super) fn answer_again(&mut self, question: QuestionId) {
        if let Some(at) = self.answered.iter().position(|asked| asked.question == question) {
            self.asked = Some(self.answered.remove(at));
        }
    }
}

/// No, as an answer to any question.
fn refusal(question: &Question, message: &str, interrupt: bool) -> Answer {
    match question.elicitation {
        Some(_) => Answer::Elicited(Elicited::plain(ElicitationAction::Cancel)),
        None => Answer::Deny { message: message.to_owned(), interrupt },
    }
}

/// Everything that a call would be given, why it is asked, and every answer.
fn whole(question: &Question) -> String {
    let mut text = match (question.subject(), &question.input) {
        (Subject::Plan(plan), _) => plan,
        (_, Value::Object(members)) => members.iter().map(member).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    };
    if question.subject() == Subject::Call {
        text.push_str(&format!("\n\nReason: {}", question.reason));
    }
    for step in steps(question) {
        text.push_str("\n\n");
        text.push_str(&step.title);
        for (at, offered) in step.offers.iter().enumerate() {
            text.push_str(&format!("\n{}. {}", at + 1, offered.words));
            if !offered.details.is_empty() {
                text.push_str(&format!("\n   {}", offered.details));
            }
        }
    }
    text
}

/// One thing that a call would be given; a text as it is.
fn member((name, value): (&String, &Value)) -> String {
    match value.as_str() {
        Some(text) if text.contains('\n') => format!("{name}:\n{text}"),
        Some(text) => format!("{name}: {text}"),
        None => format!("{name}: {value}"),
    }
}

impl AnswerDraft {
    /// What is marked, where several can be.
    fn labels(&self, step: &QuestionStep) -> Vec<String> {
        let label = |at: &usize| match &step.offers.get(*at)?.what {
            ChoiceEffect::Label(label) => Some(label.clone()),
            _ => None,
        };
        self.marked.iter().filter_map(label).collect()
    }

    fn mark(&mut self, at: usize) {
        if !self.marked.remove(&at) {
            self.marked.insert(at);
        }
    }
}
