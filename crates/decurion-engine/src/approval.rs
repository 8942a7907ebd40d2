//! Questions in the air. Takes a question from a call, gives back what a person, a program or nobody
//! answered. The session's task owns the open ones; a call holds the other end of one of them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use camino::Utf8PathBuf;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentId, Answer, DecidedBy, Mode, OwnRules, Question, QuestionId, Rule, RuleSet};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use decurion_protocol::WaitReason;
use decurion_protocol::link::BoxFuture;

use crate::journal::Who;
use crate::permission::Undecided;

/// What a run may do now. The session's task owns it; runs see each change at their next call.
#[derive(Clone, Debug)]
pub struct Rights {
    /// The mode in force.
    pub mode: Mode,
    /// The mode that holds again once a plan is agreed to.
    pub before_plan: Mode,
    /// The rules in force.
    pub rules: Arc<RuleSet>,
    /// Rules that allow something to an agent and all below it only.
    pub scoped: Arc<Vec<(AgentId, Rule)>>,
    /// Directories that were the session's and are no more, for anybody.
    pub gone: Arc<Vec<Utf8PathBuf>>,
    /// What `dontAsk` does with what no rule decides.
    pub undecided: Undecided,
    /// Whether the project's definitions may widen the mode.
    pub trusted: bool,
    /// Whether anyone attached can answer a question.
    pub answers: bool,
}

impl Rights {
    /// Another mode from now on.
    pub fn change_mode(&mut self, mode: Mode) {
        if mode == Mode::Plan && self.mode != Mode::Plan {
            self.before_plan = self.mode;
        }
        self.mode = mode;
    }

    /// Of the directories that a run was given, those that nobody took away since.
    pub fn left_of(&self, directories: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
        directories.iter().filter(|directory| !self.gone.contains(directory)).cloned().collect()
    }

    /// The rules in force for whoever stands at this path from the root and has these of its own.
    pub fn rules_for(&self, path: &str, own: &[&OwnRules]) -> Arc<RuleSet> {
        let covers = |agent: &AgentId| path.split('/').any(|name| name == agent.as_str());
        let answered: Vec<&Rule> =
            self.scoped.iter().filter(|(agent, _)| covers(agent)).map(|(_, rule)| rule).collect();
        if answered.is_empty() && own.iter().all(|own| own.is_empty()) {
            return Arc::clone(&self.rules);
        }
        let mut rules = (*self.rules).clone();
        if own.iter().any(|own| own.instead) {
            rules.allow.retain(|rule| rule.source != RuleSource::Session);
        }
        rules.allow.extend(answered.into_iter().cloned());
        for own in own {
            rules.allow.extend(own.allow.iter().cloned());
            rules.deny.extend(own.deny.iter().cloned());
        }
        Arc::new(rules)
    }
}

/// The open questions, each with the call that waits for it.
#[derive(Debug, Default)]
pub struct Approvals {
    open: HashMap<QuestionId, Open>,
}

/// An answer, and what holds for the call that it is about.
#[derive(Clone, Debug)]
pub struct Heard {
    pub answer: Answer,
    /// What may be done while that call is done: what its answer takes away is for later ones.
    pub under: Rights,
    pub by: DecidedBy,
}

#[derive(Debug)]
struct Open {
    question: Question,
    waiting: oneshot::Sender<Heard>,
    rights_changed: Arc<Notify>,
    /// When it is too late to answer; none is never.
    until: Option<Instant>,
}

impl Approvals {
    /// Takes a question on.
    pub fn open(&mut self, ask: Ask, until: Option<Instant>) {
        let Ask { question, answer: waiting, rights_changed, .. } = ask;
        self.open.insert(question.id, Open { question, waiting, rights_changed, until });
    }

    /// Has the calls that wait look whether they still have to be asked about.
    pub fn reconsider(&self) {
        self.open.values().for_each(|open| open.rights_changed.notify_one());
    }

    /// Hands the answer to the call that waits; none if there is no such open question, because it was
    /// answered before or its call is gone.
    pub fn answer(&mut self, id: QuestionId, answer: Heard) -> Option<Question> {
        let Open { question, waiting, .. } = self.open.remove(&id)?;
        waiting.send(answer).ok().map(|()| question)
    }

    /// The questions still open.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.open.values().filter(|open| !open.waiting.is_closed()).map(|open| &open.question)
    }

    /// Waits until a call or a server stops waiting for its answer; removes that question and gives it.
    pub async fn withdrawn(&mut self) -> Question {
        poll_fn(|cx| {
            let mut gone = self.open.extract_if(|_, open| open.waiting.poll_closed(cx).is_ready());
            gone.next().map_or(Poll::Pending, |(_, open)| Poll::Ready(open.question))
        })
        .await
    }

    /// The question whose time is up first, and when.
    pub fn first_due(&self) -> Option<(Instant, QuestionId)> {
        let due = self.open.iter().filter_map(|(id, open)| Some((open.until?, *id)));
        due.min_by_key(|(until, _)| *until)
    }
}

/// A question on its way to the session's task.
pub struct Ask {
    pub who: Who,
    pub question: Question,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Heard>,
    /// Told when what may be done has changed while it is open: it may not have to be asked any more.
    pub rights_changed: Arc<Notify>,
}

/// The way from a call to a person.
pub trait Person: Send + Sync {
    /// Hands a question in; none if the session is gone.
    fn ask(&self, ask: Box<Ask>) -> BoxFuture<'_, Option<()>>;

    /// Shows what the run waits for.
    fn waits(&self, reason: Option<WaitReason>);
}

/// That a run waits for an answer, while this lives.
pub struct ShownQuestion<'a>(&'a dyn Person);

impl<'a> ShownQuestion<'a> {
    pub fn new(person: &'a dyn Person, question: QuestionId) -> Self {
        person.waits(Some(WaitReason::Permission { question }));
        Self(person)
    }
}

impl Drop for ShownQuestion<'_> {
    fn drop(&mut self) {
        self.0.waits(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_leaves_when_its_call_stops_waiting() {
        let question = serde_json::json!({
            "id": uuid::Uuid::from_u128(1), "agent": null, "call": "c1", "tool": "Bash",
            "input": {"command": "x"}, "intent": {"title": "x", "overlap": "together"}, "reason": "no rule",
        });
        let question: Question = serde_json::from_value(question).unwrap();
        let mut approvals = Approvals::default();
        let (waiting, call) = oneshot::channel();
        let until = Instant::now() + std::time::Duration::from_secs(30);
        let who = Who { run: decurion_protocol::RunId(uuid::Uuid::nil()), agent: None };
        let ask = Ask { who, question: question.clone(), answer: waiting, rights_changed: Arc::default() };
        approvals.open(ask, Some(until));
        assert!(approvals.first_due().is_some());
        drop(call);
        assert_eq!(approvals.withdrawn().await.id, question.id);
        assert!(approvals.open.is_empty());
    }
}
