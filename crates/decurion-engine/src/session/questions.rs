//! Questions of runs, and what may be done. Takes a question, an answer, or a change of the rights; gives the answer to the
//! call that waits, after both are on record.

use decurion_protocol::{
    AgentId, Answer, DecidedBy, ElicitationAction, Elicited, Event, Mode, PermissionUpdate, Question,
    QuestionId, Reply, RequestId,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::approval::Ask;
use crate::approval::Heard;
use crate::session::rights_changes;
use crate::session::rights_changes::{Change, Keep};
use crate::session::spec::{self};

use crate::elicit;

use super::actor::{SessionActor, done};

/// Why what may be done changes.
#[derive(Debug, PartialEq)]
pub enum Changing {
    /// A host wants it.
    ByItself,
    /// A hook or a tool wants it that answers in a person's place, for a call of this agent's; none is the root's.
    InPlaceOfAPerson(Option<AgentId>),
}

impl SessionActor {
    /// Takes a question on. One that an earlier process had asked already is the same question still.
    pub async fn asked(&mut self, mut ask: Ask) {
        // What a server asks is asked once: its call ends with the process.
        if ask.question.elicitation.is_none() {
            let asker = (ask.question.agent.clone(), ask.question.call.clone());
            // It is on record again, so that whoever attached since sees it.
            ask.question.id = self.permissions.parked.remove(&asker).unwrap_or(ask.question.id);
        }
        ask.question.behind = ask.question.agent.as_ref().is_some_and(|agent| self.is_behind(agent));
        let event = Event::Asked { question: Box::new(ask.question.clone()) };
        if self.core.journal.write(&ask.who, vec![event]).await.is_ok() {
            let until = self.core.parts.answer_timeout.map(|patience| Instant::now() + patience);
            self.permissions.approvals.open(ask, until);
        }
    }

    /// Answers a question whose time is up, as anyone else would.
    pub(super) async fn expired(&mut self, question: QuestionId) {
        let seconds = self.core.parts.answer_timeout.unwrap_or_default().as_secs();
        let message = format!("no answer within {seconds} seconds (`permissions.answerTimeout`)");
        let answer = Answer::Deny { message, interrupt: false };
        let event = Event::Answered { question, answer: answer.clone(), by: "nobody".to_owned() };
        // A journal that is lost ends the run; the call must not wait beyond that.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
        let under = self.permissions.rights.borrow().clone();
        self.permissions.approvals.answer(question, Heard { answer, under, by: DecidedBy::Nobody });
    }

    /// Records that a server stopped waiting for its answer. A call's question is closed by the end of the call.
    pub(super) async fn withdrawn(&mut self, question: &Question) {
        if question.elicitation.is_none() {
            return;
        }
        let question = question.id;
        let answer = Answer::Elicited(Elicited::plain(ElicitationAction::Cancel));
        let event = Event::Answered { question, answer, by: "nobody".to_owned() };
        // A journal that is lost is found lost by the next run.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
    }

    /// Hands an answer to the call that waits for it. What it changes for later calls is on record before it, in the
    /// same write: whoever finds the answer there finds that too. Nobody gets more than the session may have, and an
    /// agent in the background gets nothing for the others; what of it cannot be done keeps nothing else from being
    /// done.
    pub(super) async fn answered(
        &mut self,
        id: RequestId,
        (question, answer): (QuestionId, Answer),
        updates: Vec<PermissionUpdate>,
        by: String,
    ) {
        let Some(asked) = self.permissions.approvals.questions().find(|open| open.id == question) else {
            let reason = format!("no open question with this id: {question}");
            return self.reply(id, Reply::Refused { reason });
        };
        let behind = asked.agent.clone().filter(|agent| self.is_behind(agent));
        let given = answer.clone();
        let answer = match elicit::fitting(asked, rights_changes::of_session(answer)) {
            Ok(answer) => answer,
            Err(reason) => return self.reply(id, Reply::Refused { reason }),
        };
        let mut change = self.changing();
        if let Answer::Allow { rules, everywhere, .. } = &answer {
            change.allow(rules, behind.as_ref().filter(|_| !everywhere));
            change.keep_allowed(&given);
        }
        // What the answer takes away holds from the next call on; the one that it lets go on is let go on.
        let under = change.rights.clone();
        for update in &updates {
            change.take_with_answer(update, behind.is_some());
        }
        let mut events = change.events();
        let decided_by = DecidedBy::answering(&by);
        events.push(Event::Answered { question, answer: answer.on_record(), by });
        if let Err(lost) = self.core.journal.write(&self.core.who, events).await {
            return self.reply(id, Reply::Refused { reason: lost.to_string() });
        }
        let value = change.not_done().map_or(Value::Null, |reason| serde_json::json!({"not_done": reason}));
        let keeps = self.adopt(change);
        self.permissions.approvals.answer(question, Heard { answer, under, by: decided_by });
        self.keep(id, keeps, value);
    }

    pub(super) async fn set_mode(&mut self, id: RequestId, mode: Mode) {
        if let Err(reason) = spec::check_later_mode(mode, &self.core.parts, &self.core.request) {
            return self.reply(id, Reply::Refused { reason });
        }
        match self.core.journal.write(&self.core.who, vec![Event::ModeChanged { mode }]).await {
            Ok(_) => {
                self.permissions.rights.send_modify(|rights| rights.change_mode(mode));
                self.reply(id, done());
            }
            Err(lost) => self.reply(id, Reply::Refused { reason: lost.to_string() }),
        }
    }

    /// Changes what may be done, because a host wants it.
    pub(super) async fn permit(&mut self, id: RequestId, updates: Vec<PermissionUpdate>) {
        let known: Vec<&str> = self.core.parts.tools.names().collect();
        if let Some(reason) = updates.iter().find_map(|update| rights_changes::names_no_tool(update, &known))
        {
            return self.reply(id, Reply::Refused { reason });
        }
        match self.change_rights(Changing::ByItself, updates).await {
            Ok(keeps) => self.keep(id, keeps, Value::Null),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    /// Changes what may be done. Nobody gets more than the session may have, nor does any agent that a hook answers
    /// for. What cannot be done is refused and keeps nothing else from being done. Gives what is to be written into
    /// settings; the error says what was not done.
    pub async fn change_rights(
        &mut self,
        by: Changing,
        updates: Vec<PermissionUpdate>,
    ) -> Result<Vec<Keep>, String> {
        let mut change = self.changing();
        for update in &updates {
            match &by {
                Changing::ByItself => change.take(update),
                Changing::InPlaceOfAPerson(None) => change.take_with_answer(update, false),
                Changing::InPlaceOfAPerson(Some(agent)) => change.take_for(update, agent),
            }
        }
        if by != Changing::ByItself {
            change.keep_nothing();
        }
        let over = change.not_done().map_or(Ok(Vec::new()), Err);
        let events = change.events();
        // Whoever only wants a change hears of it whole or not at all.
        if events.is_empty() || by == Changing::ByItself && over.is_err() {
            return over;
        }
        self.core.journal.write(&self.core.who, events).await.map_err(|lost| lost.to_string())?;
        let keeps = self.adopt(change);
        over.map(|_| keeps)
    }

    /// What may be done now, to be changed.
    pub(super) fn changing(&self) -> Change {
        let bypass = spec::check_later_mode(Mode::BypassPermissions, &self.core.parts, &self.core.request);
        Change::new(&self.permissions.rights.borrow(), &self.place.directories, bypass)
    }

    /// Lets what was changed, and is on record, hold; gives what of it is to be written into settings.
    pub(super) fn adopt(&mut self, change: Change) -> Vec<Keep> {
        let Change { rights, directories, keeps, .. } = change;
        if self.place.directories != directories {
            self.place.directories = directories;
            if let Some(running) = &self.root.running {
                let now = running.control.run.now();
                let worktree = now.worktree.as_deref().cloned();
                running.control.move_to(now.cwd.clone(), worktree, self.place.directories());
            }
        }
        self.permissions.rights.send_replace(rights);
        keeps
    }
}
