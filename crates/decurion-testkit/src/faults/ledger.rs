//! Who was told what. Takes the events of a session, gives what went wrong between endings and messages on one
//! side and the lines that deliver them on the other: lost, told twice, told to the wrong one, told without a word.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use decurion_protocol::{
    AgentId, Block, Delivery, EndingId, Envelope, Event, Outcome, SessionId, TaskId, TaskKind, TaskState,
    ToolEffect,
};
use decurion_store::Archive;

/// The deliveries of a session.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Who is to be told of each task; none is the root.
    parents: HashMap<TaskId, Option<AgentId>>,
    /// What is to be told, and to whom.
    owed: BTreeMap<Delivery, Option<AgentId>>,
    /// How often each was told, and to whom.
    told: BTreeMap<Delivery, Vec<Option<AgentId>>>,
    /// Deliveries whose line says nothing about them.
    wordless: Vec<EndingId>,
    /// The record that began each task first, and those that the root's conversation no longer knows of.
    opened: HashMap<TaskId, u64>,
    dropped: HashSet<TaskId>,
    /// How each agent ended last.
    ends: HashMap<AgentId, Outcome>,
    /// The size in bytes of each message that delivers something.
    pub messages: Vec<usize>,
    /// Agents that began, in the order they did.
    pub begun: Vec<AgentId>,
}

impl Ledger {
    /// The ledger of these events.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Self {
        let mut ledger = Self::default();
        for envelope in events {
            ledger.take(envelope);
        }
        ledger
    }

    /// The ledger of a session on disk.
    pub fn read(archive: &Archive, session: SessionId) -> Result<Self, String> {
        Ok(Self::of(&events(archive, session)?))
    }

    fn take(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::Branched { through, .. } => {
                let is_roots = |task: &TaskId| self.parents.get(task).is_some_and(Option::is_none);
                let after = self.opened.iter().filter(|(task, seq)| *seq > through && is_roots(task));
                self.dropped.extend(after.map(|(task, _)| task.clone()));
            }
            Event::TaskOpened { record } => {
                self.opened.entry(record.task.clone()).or_insert(envelope.seq);
                if self.parents.insert(record.task.clone(), record.parent.clone()).is_none()
                    && record.kind != TaskKind::LocalBash
                    && let Ok(agent) = record.task.as_str().parse()
                {
                    self.begun.push(agent);
                }
            }
            Event::RunEnded { outcome, .. } => {
                if let Some(agent) = &envelope.agent {
                    self.ends.insert(agent.clone(), outcome.clone());
                    self.owe(EndingId { task: agent.clone().into(), run: Some(envelope.run) });
                }
            }
            Event::TaskChanged { task, state: TaskState::Ended(outcome) } => {
                // An agent that was begun and never ran is ended by whoever takes the session up.
                if let Some(agent) = self.begun.iter().find(|agent| agent.as_str() == task.as_str()) {
                    self.ends.insert(agent.clone(), outcome.clone());
                }
                self.owe(EndingId { task: task.clone(), run: None });
            }
            Event::ShellEnded { shell } => {
                self.owed.insert(Delivery::Shell(shell.call.clone()), None);
            }
            Event::Mailed { mail } => {
                self.owed.insert(Delivery::Mail(envelope.seq), mail.to.clone());
            }
            Event::Message { message, meta, .. } if !meta.delivers.is_empty() => {
                let text = |block: &Block| match block {
                    Block::Text { text } => text.clone(),
                    _ => String::new(),
                };
                let text: String = message.blocks.iter().map(text).collect();
                self.messages.push(text.len());
                for delivery in &meta.delivers {
                    self.tell(delivery, envelope.agent.as_ref());
                    if let Delivery::Ending(id) = delivery
                        && !text.contains(&format!("<task-id>{}</task-id>", id.task))
                    {
                        self.wordless.push(id.clone());
                    }
                }
            }
            Event::CallEnded { output, .. } => {
                for effect in &output.effects {
                    if let ToolEffect::Delivered { delivery } = effect {
                        self.tell(delivery, envelope.agent.as_ref());
                    }
                }
            }
            _ => {}
        }
    }

    fn owe(&mut self, id: EndingId) {
        let to = self.parents.get(&id.task).cloned().flatten();
        self.owed.insert(Delivery::Ending(id), to);
    }

    fn tell(&mut self, delivery: &Delivery, to: Option<&AgentId>) {
        self.told.entry(delivery.clone()).or_default().push(to.cloned());
    }

    /// How many endings there were.
    pub fn endings(&self) -> usize {
        self.owed.keys().filter(|owed| matches!(owed, Delivery::Ending(_))).count()
    }

    /// How many things were told.
    pub fn deliveries(&self) -> usize {
        self.told.values().map(Vec::len).sum()
    }

    /// How the agents ended.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.ends.values()
    }

    /// Everything that was not told exactly once to the one it is for. Who did not complete is told nothing more.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (owed, to) in &self.owed {
            let heard = self.told.get(owed).map_or(&[][..], Vec::as_slice);
            match heard {
                [] if self.is_over(to.as_ref()) || self.is_dropped(owed) => {}
                [] => found.push(format!("lost: {owed:?} for {}", name(to.as_ref()))),
                [one] if one == to => {}
                [one] => found.push(format!("told to {} instead: {owed:?}", name(one.as_ref()))),
                many => found.push(format!("double: {owed:?} was told {} times", many.len())),
            }
        }
        for told in self.told.keys().filter(|told| !self.owed.contains_key(told)) {
            found.push(format!("told before it was on record: {told:?}"));
        }
        for id in &self.wordless {
            // One that was overtaken by a later ending of the same task is told by that one.
            let later = |told: &&Delivery| matches!(told, Delivery::Ending(other) if other.task == id.task && other != id);
            if self.told.keys().find(later).is_none() {
                found.push(format!("lost: told without a word: {id:?}"));
            }
        }
        found
    }

    fn is_dropped(&self, owed: &Delivery) -> bool {
        matches!(owed, Delivery::Ending(id) if self.dropped.contains(&id.task))
    }

    fn is_over(&self, agent: Option<&AgentId>) -> bool {
        let ended = agent.and_then(|agent| self.ends.get(agent));
        ended.is_some_and(|outcome| !matches!(outcome, Outcome::Completed { .. }))
    }
}

fn name(agent: Option<&AgentId>) -> &str {
    agent.map_or("main", AgentId::as_str)
}

/// Every event of a session on disk.
pub fn events(archive: &Archive, session: SessionId) -> Result<Vec<Envelope>, String> {
    let Some(decurion_store::Found::Ours(paths)) = archive.find(session, &[]) else {
        return Err(format!("lost: no session {session} on disk"));
    };
    archive.since(&paths, 0).map_err(|error| format!("the session cannot be read: {error}"))
}

/// The archive of a state folder.
pub fn archive(state: &Path) -> Result<Archive, String> {
    let state = camino::Utf8PathBuf::from_path_buf(state.to_owned());
    state.map(Archive::new).map_err(|path| format!("not UTF-8: {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::{LineId, Message, MessageMeta, Origin, RunId, Totals};
    use uuid::Uuid;

    fn envelope(agent: Option<&str>, event: Event) -> Envelope {
        let agent = agent.map(|agent| agent.parse().unwrap());
        Envelope { seq: 7, at: jiff::Timestamp::UNIX_EPOCH, agent, run: RunId(Uuid::nil()), event }
    }

    fn ended(agent: &str) -> Envelope {
        let outcome = Outcome::Completed { report: "x".into(), limit: None };
        envelope(Some(agent), Event::RunEnded { outcome, totals: Box::<Totals>::default() })
    }

    fn told(agent: &str, by: Option<&str>) -> Envelope {
        let id = EndingId { task: agent.parse().unwrap(), run: Some(RunId(Uuid::nil())) };
        let meta = MessageMeta {
            origin: Origin::Note("notification".into()),
            delivers: vec![Delivery::Ending(id)],
            ..MessageMeta::default()
        };
        let message = Message::user(format!("<task-id>{agent}</task-id>"));
        let lines = vec![LineId(Uuid::nil())];
        envelope(by, Event::Message { message, lines, parent: None, meta: Box::new(meta) })
    }

    /// The first word of each problem.
    fn words(events: &[Envelope]) -> Vec<String> {
        let first = |problem: &String| problem.split([':', ' ']).next().unwrap_or_default().to_owned();
        Ledger::of(events).problems().iter().map(first).collect()
    }

    #[test]
    fn what_is_lost_double_or_told_to_another_is_seen() {
        assert_eq!(words(&[ended("a1"), told("a1", None)]), Vec::<String>::new());
        assert_eq!(words(&[ended("a1")]), ["lost"]);
        assert_eq!(words(&[ended("a1"), told("a1", None), told("a1", None)]), ["double"]);
        assert_eq!(words(&[ended("a1"), told("a1", Some("a2"))]), ["told"]);
        assert_eq!(words(&[told("a1", None)]), ["told"]);
        let mut silent = told("a1", None);
        if let Event::Message { message, .. } = &mut silent.event {
            message.blocks.clear();
        }
        assert_eq!(words(&[ended("a1"), silent]), ["lost"]);
    }
}
