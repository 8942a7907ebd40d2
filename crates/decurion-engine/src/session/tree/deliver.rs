//! Agents told of each other. Takes what has ended and what was said, gives lines of the conversation of
//! whoever must know, each thing once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use decurion_protocol::{
    AgentId, Block, Delivery, Envelope, Event, LineId, Message, MessageMeta, Origin, Role, ShellLine, TaskId,
    TaskState, TaskStep,
};
use tokio::sync::oneshot;

use crate::journal::Who;
use crate::notice;
use crate::ports::new_line;
use crate::run_handle::RunHandle;
use crate::session::actor::SessionActor;
use crate::session_port::MayEnd;
use crate::task::Row;

/// The most bytes of one message that tells of endings.
const MOST_NOTICE: usize = 100_000;

/// Where the rest of a report is.
const IN_FILE: &str = "all of it is at the end of the output file";

impl SessionActor {
    /// The flag that says that there is something to tell an agent.
    pub fn told(&mut self, agent: Option<AgentId>) -> Arc<AtomicBool> {
        Arc::clone(self.tasks.told.entry(agent).or_default())
    }

    pub(super) fn mark_told(&mut self, agent: Option<&AgentId>) {
        let waits = self.tasks.table.has_waiting(agent);
        self.told(agent.cloned()).store(waits, Ordering::Release);
    }

    /// Tells an agent what waits for it, in lines of its own conversation.
    pub(super) async fn tell(&mut self, run: &RunHandle, leaf: Option<LineId>) -> Vec<Arc<Envelope>> {
        self.told(run.who.agent.clone()).store(false, Ordering::Release);
        let mut notices = self.notices(run.who.agent.as_ref());
        notices.extend(self.differences(run.who.agent.as_ref()));
        self.write_notices(&run.who, leaf, notices).await
    }

    /// Writes what is told, in lines of the conversation of whoever is told.
    async fn write_notices(
        &mut self,
        who: &Who,
        leaf: Option<LineId>,
        notices: Vec<(String, Option<Delivery>)>,
    ) -> Vec<Arc<Envelope>> {
        let mut parent = leaf;
        let mut events = Vec::new();
        for (blocks, delivers) in batches(notices) {
            let line = new_line();
            let shell = matches!(delivers.first(), Some(Delivery::Shell(_)));
            let meta = MessageMeta {
                origin: if shell { Origin::Shell } else { Origin::Note("notification".to_owned()) },
                delivers,
                ..MessageMeta::default()
            };
            let message = Message { role: Role::User, blocks };
            events.push(Event::Message { message, lines: vec![line], parent, meta: Box::new(meta) });
            parent = Some(line);
        }
        if events.is_empty() {
            return Vec::new();
        }
        match self.core.journal.write(who, events).await {
            Ok(written) => {
                for envelope in &written {
                    self.tasks.table.apply(envelope);
                }
                written
            }
            // The run finds the journal lost itself.
            Err(_) => Vec::new(),
        }
    }

    /// Puts one thing into the conversation of a root that rests, without beginning a turn.
    pub(super) async fn tell_resting(&mut self, delivery: &Delivery) {
        let notices =
            self.notices(None).into_iter().filter(|(_, one)| one.as_ref() == Some(delivery)).collect();
        let leaf = self.resting_leaf().await;
        let who = self.core.who.clone();
        for envelope in self.write_notices(&who, leaf, notices).await {
            self.hear_resting(&envelope.event);
        }
    }

    /// What an agent is to be told, in words.
    pub(super) fn notices(&self, agent: Option<&AgentId>) -> Vec<(String, Option<Delivery>)> {
        let tasks = &self.tasks.table;
        let most = self.core.parts.agent_settings.result_chars;
        let words = |delivery: &Delivery| match delivery {
            Delivery::Ending(id) => {
                let (record, ending) = tasks.untold(id)?;
                let shown = notice::shortened(notice::report(ending), most, IN_FILE);
                Some(notice::notification(record, ending, &shown))
            }
            Delivery::Mail(number) => {
                let mail = tasks.mail(*number)?;
                let from = mail.from.as_ref().map_or("main", AgentId::as_str);
                Some(notice::mail(from, &mail.text))
            }
            Delivery::Shell(call) => tasks.shell(call).map(ShellLine::message),
        };
        let waiting = tasks.waiting(agent);
        waiting.into_iter().map(|delivery| (words(&delivery).unwrap_or_default(), Some(delivery))).collect()
    }

    /// How much further an agent's agents have come.
    pub(super) fn differences(&mut self, agent: Option<&AgentId>) -> Vec<(String, Option<Delivery>)> {
        let parent = agent.cloned().map(TaskId::from);
        let running = |row: &&crate::task::Row| row.is_agent() && row.is_alive() && !row.is_foreground();
        let children: Vec<TaskId> = self
            .tasks
            .table
            .children(parent.as_ref())
            .filter(running)
            .map(|row| row.record.task.clone())
            .collect();
        let mut found = Vec::new();
        for task in children {
            let Some(row) = self.tasks.table.row_mut(&task) else { continue };
            let progress = row.progress();
            if let Some(text) = notice::difference(&row.record, &progress, row.told) {
                row.told = (progress.tools, progress.tokens);
                found.push((text, None));
            }
        }
        found
    }

    pub(super) async fn wants_to_end(
        &mut self,
        run: RunHandle,
        leaf: Option<LineId>,
        answer: oneshot::Sender<MayEnd>,
    ) {
        let agent = run.who.agent.clone();
        let hears =
            if agent.is_some() { self.tasks.table.has_waiting(agent.as_ref()) } else { self.wakes_root() };
        if hears {
            if agent.is_none() {
                // Its turn is over; what comes now is begun by what it is told.
                self.count_notified();
                self.root.by_notice = true;
            }
            let told = self.tell(&run, leaf).await;
            let _ = answer.send(MayEnd::Hear(told));
            return;
        }
        // The root rests between its turns, and is woken.
        let Some(agent) = agent else {
            let _ = answer.send(MayEnd::Yes(Vec::new()));
            return;
        };
        let task: TaskId = agent.clone().into();
        let busy = self.tasks.table.children(Some(&task)).any(|row| row.is_agent() && row.is_alive());
        if busy {
            self.wait_for_own(&task);
            self.tasks.ending.insert(agent, (run, leaf, answer));
            self.begin_queued().await;
            return;
        }
        let stopped = self.stop_shells(&task);
        if let Some(control) = self.tasks.runs.get(&agent) {
            control.shells_stopped(stopped.clone());
        }
        let _ = answer.send(MayEnd::Yes(stopped));
    }

    /// Ends the shells of an agent that ends; gives what they were.
    pub(super) fn stop_shells(&mut self, task: &TaskId) -> Vec<String> {
        let shells: Vec<(TaskId, String)> = self
            .tasks
            .table
            .children(Some(task))
            .filter(|row| !row.is_agent() && row.is_alive())
            .map(|row| (row.record.task.clone(), row.record.prompt.clone()))
            .collect();
        for (shell, _) in &shells {
            self.tasks.reported.insert(shell.clone());
            self.stop(shell, "the end of its agent");
        }
        shells.into_iter().map(|(_, command)| command).collect()
    }

    /// Lets an agent hear that waits to end, now that there is something.
    pub(super) async fn wake(&mut self, agent: Option<&AgentId>) {
        self.mark_told(agent);
        let Some((run, leaf, answer)) = agent.and_then(|agent| self.tasks.ending.remove(agent)) else {
            return;
        };
        let task: Option<TaskId> = run.who.agent.clone().map(Into::into);
        let waits = |row: &Row| matches!(row.state(), TaskState::Waiting { .. });
        // One that is held hears it when it is let go on.
        if let Some(task) = task.filter(|task| self.tasks.table.row(task).is_some_and(waits)) {
            let _ = self.tasks.table.step(&task, TaskStep::Continue);
        }
        self.wants_to_end(run, leaf, answer).await;
    }
}

/// Messages of at most so many bytes, each with what it delivers.
fn batches(notices: Vec<(String, Option<Delivery>)>) -> Vec<(Vec<Block>, Vec<Delivery>)> {
    let mut found: Vec<(Vec<Block>, Vec<Delivery>)> = Vec::new();
    let mut size = 0;
    // What a person ran is a message of its own.
    let alone = |delivery: Option<&Delivery>| matches!(delivery, Some(Delivery::Shell(_)));
    for (text, delivery) in notices {
        let parts = alone(delivery.as_ref()) || found.last().is_some_and(|(_, told)| alone(told.first()));
        if found.is_empty() || parts || size + text.len() > MOST_NOTICE {
            found.push((Vec::new(), Vec::new()));
            size = 0;
        }
        size += text.len();
        if let Some((blocks, delivers)) = found.last_mut() {
            if !text.is_empty() {
                blocks.push(Block::text(text));
            }
            delivers.extend(delivery);
        }
    }
    found
}
