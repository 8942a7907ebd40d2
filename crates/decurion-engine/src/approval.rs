//! Questions in the air. Takes a question from a call, gives back what a person, a program or nobody
//! answered. The session's task owns the open ones; a call holds the other end of one of them.

use std::collections::HashMap;
use std::sync::Arc;

use decurion_protocol::{Answer, Mode, Question, QuestionId, RuleSet};
use tokio::sync::oneshot;

/// What a run may do now. The session's task owns it; runs see each change at their next call.
#[derive(Clone, Debug)]
pub struct Rights {
    /// The mode in force.
    pub mode: Mode,
    /// The rules in force.
    pub rules: Arc<RuleSet>,
    /// Whether anyone attached can answer a question.
    pub answers: bool,
}

/// The open questions, each with the call that waits for it.
#[derive(Debug, Default)]
pub struct Approvals {
    open: HashMap<QuestionId, (Question, oneshot::Sender<Answer>)>,
}

impl Approvals {
    /// Takes a question on.
    pub fn open(&mut self, question: Question, waiting: oneshot::Sender<Answer>) {
        self.open.insert(question.id, (question, waiting));
    }

    /// Hands the answer to the call that waits; none if there is no such open question, because it was
    /// answered before or its call is gone.
    pub fn answer(&mut self, id: QuestionId, answer: Answer) -> Option<Question> {
        let (question, waiting) = self.open.remove(&id)?;
        waiting.send(answer).ok().map(|()| question)
    }

    /// The questions still open.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.open.values().map(|(question, _)| question)
    }
}
