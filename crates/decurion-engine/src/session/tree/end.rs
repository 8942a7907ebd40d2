//! Tasks ended: by themselves, by someone, or with whoever began them; and the end of the wait for them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use decurion_protocol::{
    AgentId, Attention, CallId, Delivery, EndingId, Event, Outcome, TaskId, TaskKind, TaskRecord, TaskState,
    TaskStep, ToolOutput,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::child::BackgroundChoice;
use crate::journal::Who;
use crate::ports::new_shell;
use crate::run_handle::{RunControl, RunHandle};
use crate::session::actor::SessionActor;
use crate::session_port::{Looked, Spawned};
use crate::shell;
use crate::task::{BY_ANSWER, Ending, Row};

use super::delivery_policy::{self, Ended, Hearer, Told};

impl SessionActor {
    pub(super) async fn agent_ended(
        &mut self,
        agent: AgentId,
        ending: Ending,
        delivered: &HashSet<Delivery>,
    ) {
        let task: TaskId = agent.clone().into();
        self.slots.running.remove(&task);
        self.tasks.cancels.remove(&task);
        self.slots.paused_trees.remove(&task);
        self.tasks.ending.remove(&agent);
        self.tasks.closing.remove(&agent);
        self.take_back(Some(&agent), delivered);
        let completed = matches!(ending.outcome, Outcome::Completed { .. });
        // Who stops with whom: what an agent began ends with it. One that completed has waited for its
        // agents, unless a limit ended it.
        let below: Vec<TaskId> = self
            .tasks
            .table
            .children(Some(&task))
            .filter(|row| row.is_alive())
            .map(|row| row.record.task.clone())
            .collect();
        for task in below {
            self.stop(&task, "the end of its parent");
        }
        self.ended(ending).await;
        if completed && self.tasks.table.has_waiting(Some(&agent)) {
            // Something came between its last look and its end: it goes on with that.
            self.go_on(&agent).await;
        } else if !completed {
            self.discard(&agent);
        } else {
            self.tasks.runs.remove(&agent);
        }
        self.begin_queued().await;
    }

    /// Takes an agent up again because there is something to tell it.
    pub(super) async fn go_on(&mut self, agent: &AgentId) -> bool {
        let mail = self.tasks.table.waiting(Some(agent)).into_iter().find_map(|waiting| match waiting {
            Delivery::Mail(number) => self.tasks.table.mail(number),
            Delivery::Ending(_) | Delivery::Shell(_) => None,
        });
        let (parent, _) = match mail {
            Some(mail) => self.hearer(mail.from.as_ref(), agent),
            None => self.hearer(Some(agent), agent),
        };
        self.go_on_for(agent, parent).await
    }

    /// The same for whoever is told of its end from now on; none is the root.
    pub(super) async fn go_on_for(&mut self, agent: &AgentId, parent: Option<AgentId>) -> bool {
        let Some(row) = self.tasks.table.row(&agent.clone().into()) else { return false };
        let record = row.record.clone().for_parent(parent);
        let record = TaskRecord { attention: Attention::Background, ..record };
        if self.revive(agent, record, Vec::new(), None, None).await.is_err() {
            self.discard(agent);
            return false;
        }
        self.mark_told(Some(agent));
        true
    }

    /// Gives up on telling an agent of endings: it is over.
    pub(super) fn discard(&mut self, agent: &AgentId) {
        self.tasks.runs.remove(agent);
        for delivery in self.tasks.table.discard(agent) {
            self.count_unheard(&delivery, Hearer::Over);
        }
    }

    /// Counts an ending that nobody hears of, unless whoever stopped it knows.
    fn count_unheard(&mut self, delivery: &Delivery, hearer: Hearer) {
        if let Delivery::Ending(id) = delivery
            && let Some(ending) = self.tasks.table.ending(id)
            && self.told_how(id, hearer) == (Told::Nobody { counts: true })
        {
            self.tasks.unheard.push(ending.outcome.clone());
        }
    }

    /// How an ending is told to whoever is to hear of it and stands like this.
    fn told_how(&self, id: &EndingId, hearer: Hearer) -> Told {
        let Some(row) = self.tasks.table.row(&id.task) else { return Told::Nobody { counts: false } };
        // The task may have been taken up again since.
        let foreground = match self.tasks.table.untold(id) {
            Some((record, _)) => record.attention == Attention::Foreground,
            None => row.is_foreground(),
        };
        let killed = matches!(row.state(), TaskState::Ended(Outcome::Killed { .. }));
        delivery_policy::told(Ended { foreground, with_hearer: row.with_hearer, killed }, hearer)
    }

    /// How whoever is to hear of a task stands.
    fn hearer_of(&self, row: &Row) -> Hearer {
        let waits = |control: &RunControl| {
            row.record.call.as_ref().is_some_and(|call| control.run.status().calls.contains(call))
        };
        let working = |control: Option<&RunControl>| match control {
            // One that was stopped and began anew waits for nothing of before.
            Some(control) if row.is_foreground() && waits(control) => Hearer::Waits,
            _ => Hearer::Works,
        };
        let Some(parent) = &row.record.parent else {
            return if self.root_runs() { working(self.root_run()) } else { Hearer::Rests };
        };
        let task: TaskId = parent.clone().into();
        if self.tasks.closing.contains_key(parent) {
            Hearer::Over
        } else if self.slots.running.contains(&task) {
            working(self.tasks.runs.get(parent))
        } else if self.is_at_work(parent) {
            Hearer::Works
        } else {
            Hearer::Over
        }
    }

    /// Whether something waits for which a root that rests is woken.
    pub fn wakes_root(&self) -> bool {
        let wakes = |delivery: &Delivery| match delivery {
            Delivery::Ending(id) => self.told_how(id, Hearer::Rests) != Told::AtRest,
            Delivery::Mail(_) => true,
            Delivery::Shell(_) => false,
        };
        self.tasks.table.waiting(None).iter().any(wakes)
    }

    /// Tells a root that rests what it is not woken for.
    pub async fn settle_root(&mut self) {
        for delivery in self.tasks.table.waiting(None) {
            let at_rest = match &delivery {
                Delivery::Ending(id) => self.told_how(id, Hearer::Rests) == Told::AtRest,
                // A conversation begins with a prompt; until then it waits.
                Delivery::Shell(_) => self.resting_leaf().await.is_some(),
                Delivery::Mail(_) => false,
            };
            if at_rest {
                self.tell_resting(&delivery).await;
            }
        }
        self.mark_told(None);
    }

    /// Puts what a run's calls were given and did not put on record back to what is to be told.
    pub fn take_back(&mut self, agent: Option<&AgentId>, delivered: &HashSet<Delivery>) {
        let handed = std::mem::take(&mut self.tasks.handed);
        for (delivery, whose) in handed {
            if whose.as_ref() != agent {
                self.tasks.handed.push((delivery, whose));
            } else if delivered.contains(&delivery) {
                self.tasks.table.deliver(&delivery);
            } else {
                self.tasks.table.put_back(whose, delivery);
            }
        }
        self.mark_told(agent);
    }

    /// Ends what an agent that is over left running. Who stops with whom: what an agent began ends with it.
    pub(super) fn end_below(&mut self, agent: &AgentId, answer: oneshot::Sender<Vec<String>>) {
        let task: TaskId = agent.clone().into();
        let alive = self.tasks.table.children(Some(&task)).filter(|row| row.is_alive());
        let below: Vec<TaskId> = alive.map(|row| row.record.task.clone()).collect();
        let named = below.iter().filter(|task| !self.tasks.reported.contains(*task));
        let rows = named.filter_map(|task| self.tasks.table.row(task));
        let told = |row: &crate::task::Row| {
            if row.is_agent() { row.record.description.clone() } else { row.record.prompt.clone() }
        };
        let words: Vec<String> = rows.map(told).collect();
        self.tasks.closing.insert(agent.clone(), (words, answer));
        for task in below {
            self.stop(&task, "the end of its parent");
        }
        self.answer_closing(agent);
    }

    /// Tells an agent that is over that nothing of it is left running, if so.
    fn answer_closing(&mut self, agent: &AgentId) {
        let task: TaskId = agent.clone().into();
        if self.tasks.table.children(Some(&task)).any(crate::task::Row::is_alive) {
            return;
        }
        if let Some((words, answer)) = self.tasks.closing.remove(agent) {
            let _ = answer.send(words);
        }
    }

    /// A task has ended: whoever waits for it has its result, anyone else is told.
    pub(super) async fn ended(&mut self, ending: Ending) {
        let parent = self.tasks.table.row(&ending.id.task).and_then(|row| row.record.parent.clone());
        self.hand_on(ending).await;
        if let Some(parent) = parent {
            self.answer_closing(&parent);
        }
    }

    async fn hand_on(&mut self, ending: Ending) {
        let Some(row) = self.tasks.table.row(&ending.id.task) else { return };
        let (parent, hearer) = (row.record.parent.clone(), self.hearer_of(row));
        let (id, delivery) = (ending.id.clone(), Delivery::Ending(ending.id.clone()));
        self.tasks.table.end(ending);
        if self.tasks.reported.remove(&id.task) {
            // Its agent's report has told of it.
            self.tasks.table.take(&delivery);
            return;
        }
        match self.told_how(&id, hearer) {
            Told::ByCall => {
                if self.tasks.table.take(&delivery) {
                    self.tasks.handed.push((delivery, parent.clone()));
                }
            }
            Told::AtRest => self.tell_resting(&delivery).await,
            // What waits to be told does both.
            Told::ByNote | Told::Waking => {}
            Told::Nobody { .. } => {
                if self.tasks.table.take(&delivery) {
                    self.count_unheard(&delivery, hearer);
                }
                return;
            }
        }
        self.wake(parent.as_ref()).await;
    }

    pub(super) fn shell_record(
        &self,
        run: &RunHandle,
        call: decurion_protocol::CallId,
        command: String,
        description: String,
        attention: Attention,
    ) -> TaskRecord {
        let task = new_shell();
        TaskRecord {
            output_file: shell::output_file(self.core.files.as_ref(), &task),
            task,
            kind: TaskKind::LocalBash,
            description: if description.is_empty() {
                command.chars().take(80).collect()
            } else {
                description
            },
            prompt: command,
            parent: run.who.agent.clone(),
            first_parent: None,
            call: Some(call),
            agent_type: None,
            depth: run.spec.depth + 1,
            attention,
        }
    }

    pub(super) async fn open_shell(
        &mut self,
        by: &Who,
        record: TaskRecord,
        cancel: CancellationToken,
    ) -> Result<TaskRecord, String> {
        if self.core.parts.agent_settings.background == BackgroundChoice::Never {
            return Err(
                "Background commands are switched off: run it without `run_in_background`.".to_owned()
            );
        }
        self.record(by, Event::TaskOpened { record: Box::new(record.clone()) }).await?;
        let start = TaskStep::Start { attention: Attention::Background };
        self.tasks.table.step(&record.task, start).map_err(|error| error.to_string())?;
        self.tasks.cancels.insert(record.task.clone(), cancel);
        self.tasks.begun += 1;
        Ok(record)
    }

    pub(super) async fn shell_ended(&mut self, task: &TaskId, output: &ToolOutput) {
        self.tasks.cancels.remove(task);
        let outcome = shell_outcome(output);
        let who = self.core.who.clone();
        let event = Event::TaskChanged { task: task.clone(), state: TaskState::Ended(outcome.clone()) };
        // A journal that is lost ends the session; whoever waits for this must not wait for ever.
        let _ = self.core.journal.write(&who, vec![event]).await;
        let id = EndingId { task: task.clone(), run: None };
        let at = self.core.parts.clock.date();
        self.ended(Ending { id, outcome, totals: None, at, worktree: None }).await;
    }

    /// Ends a task and all below it; none if there is no such task.
    pub fn stop(&mut self, task: &TaskId, by: &str) -> Option<Looked> {
        let looked = self.look(task)?;
        let top = task;
        for task in self.tasks.table.subtree(task) {
            if task != *top {
                self.tasks.table.stop_with_hearer(&task);
            }
            if let Ok(agent) = task.as_str().parse::<AgentId>()
                && let Some(control) = self.tasks.runs.get(&agent)
            {
                control.blame(by);
            }
            if let Some(at) = self.slots.queue.iter().position(|launch| {
                launch.control.run.spec.agent.as_ref().is_some_and(|agent| agent.as_str() == task.as_str())
            }) {
                self.stop_queued(at, by);
            }
            if let Some(cancel) = self.tasks.cancels.get(&task) {
                cancel.cancel();
            }
        }
        Some(looked)
    }

    /// One that waits for a place begins and ends at once, so that its ending is like any other.
    pub(super) fn stop_queued(&mut self, at: usize, by: &str) {
        let Some(launch) = self.slots.queue.remove(at) else { return };
        if let Some(task) = launch.control.run.spec.agent.clone().map(TaskId::from) {
            // One that is held is let go for that.
            let _ = self.tasks.table.step(&task, TaskStep::Queue { attention: Attention::Background });
        }
        launch.control.stop(by);
        self.begin_agent(launch);
    }

    /// Ends what a run waits for; none is the root's.
    pub fn stop_foreground(&mut self, of: Option<&TaskId>, by: &str) {
        let is_waited_for = |row: &&Row| row.is_alive() && row.is_foreground();
        let waited = self.tasks.table.children(of).filter(is_waited_for);
        let waited: Vec<TaskId> = waited.map(|row| row.record.task.clone()).collect();
        for task in waited {
            self.tasks.table.stop_with_hearer(&task);
            self.stop(&task, by);
        }
        // What has ended and was only handed to the call that waited is as untold.
        let whose = of.map(TaskId::as_str);
        for (delivery, agent) in &self.tasks.handed {
            if let (Delivery::Ending(id), true) = (delivery, agent.as_ref().map(AgentId::as_str) == whose) {
                self.tasks.table.stop_with_hearer(&id.task);
            }
        }
    }

    /// Ends the turn of all who wait for an agent, and what it waits for itself; the asker ends by itself. Whoever
    /// waits for nobody, as the parent of one in the background, goes on.
    pub(super) fn halt(&mut self, asker: Option<AgentId>) {
        let asker: Option<TaskId> = asker.map(Into::into);
        let mut top = asker.clone();
        // A record that was tampered with could lead in a circle.
        for _ in 0..=self.tasks.table.total() {
            let Some(row) = top.as_ref().and_then(|task| self.tasks.table.row(task)) else { break };
            if self.hearer_of(row) != Hearer::Waits {
                break;
            }
            top = row.record.parent.clone().map(Into::into);
        }
        match top {
            top if top == asker => self.stop_foreground(asker.as_ref(), BY_ANSWER),
            Some(top) => drop(self.stop(&top, BY_ANSWER)),
            None => self.stop_turn(BY_ANSWER),
        }
    }

    pub fn stop_all(&mut self, by: &str) {
        let all: Vec<TaskId> =
            self.tasks.table.rows().filter(|row| row.is_alive()).map(|row| row.record.task.clone()).collect();
        for task in all {
            self.stop(&task, by);
        }
    }

    /// Ends the wait for foreground tasks: one, by its id or its call's, or all that the root waits for. Gives how many.
    /// Whoever works below goes on with what it waits for itself: its work would end with it.
    pub async fn background(&mut self, target: Option<&str>) -> Result<usize, String> {
        if self.core.parts.agent_settings.background == BackgroundChoice::Never {
            return Err("background tasks are switched off".to_owned());
        }
        let wanted = |of: Option<&AgentId>, task: &str, call: Option<&str>| {
            target.map_or(of.is_none(), |target| target == task || Some(target) == call)
        };
        let agents: Vec<TaskId> = self
            .tasks
            .table
            .rows()
            .filter(|row| row.is_alive() && row.is_foreground())
            .map(|row| &row.record)
            .filter(|record| {
                let call = record.call.as_ref().map(decurion_protocol::CallId::as_str);
                wanted(record.parent.as_ref(), record.task.as_str(), call)
            })
            .map(|record| record.task.clone())
            .collect();
        let mut count = 0;
        for task in agents {
            count += usize::from(self.send_behind(&task).await?);
        }
        for shell in self.tasks.shells.all() {
            // It may have ended while another was put on record.
            let of = shell.run.who.agent.as_ref();
            if !wanted(of, "", Some(shell.call.as_str())) || !self.tasks.shells.has(&shell) {
                continue;
            }
            let (call, command) = (shell.call.clone(), shell.command.clone());
            let description = shell.description.clone();
            let record = self.shell_record(&shell.run, call, command, description, Attention::Background);
            // Its end is the task's from here on, whatever happens while that is written.
            shell.detached.send_replace(Some(Arc::new(record.clone())));
            shell.run.begun.fetch_add(1, Ordering::Relaxed);
            self.open_shell(&shell.run.who, record, shell.cancel.clone()).await?;
            count += 1;
        }
        // Those that are shown already and start in a moment.
        let tasks = &self.tasks.table;
        let is_open = |call: &CallId| tasks.rows().any(|row| row.record.call.as_ref() == Some(call));
        count += self
            .tasks
            .shells
            .send_behind(|agent, call| !is_open(call) && wanted(agent, "", Some(call.as_str())));
        if count == 0 {
            let what = target.map_or_else(
                || "nothing is waited for".to_owned(),
                |target| format!("no foreground task with this id: {target}"),
            );
            return Err(what);
        }
        Ok(count)
    }

    /// Sends one agent to the background; false if it is there already or over.
    async fn send_behind(&mut self, task: &TaskId) -> Result<bool, String> {
        let Ok(state) = self.tasks.table.step(task, TaskStep::Background) else { return Ok(false) };
        let who = self.core.who.clone();
        self.record(&who, Event::TaskChanged { task: task.clone(), state }).await?;
        Ok(true)
    }

    /// Sends an agent that was just begun to the background, if that was wanted before it was there.
    pub(super) async fn send_begun_behind(
        &mut self,
        call: &CallId,
        begun: Result<Spawned, String>,
    ) -> Result<Spawned, String> {
        let spawned = begun?;
        if self.tasks.shells.is_behind(call) {
            self.send_behind(&spawned.record.task).await?;
        }
        Ok(spawned)
    }
}

/// How a shell that nobody waited for ended.
fn shell_outcome(output: &ToolOutput) -> Outcome {
    let value = output.structured.as_ref();
    let code = value.and_then(|value| value.get("exitCode")).and_then(serde_json::Value::as_i64);
    let interrupted = value.is_some_and(|value| value["interrupted"] == true);
    match (interrupted, code) {
        (true, _) => Outcome::Killed { by: "a stop".to_owned() },
        (false, Some(0)) => Outcome::Completed { report: "exit code 0".to_owned(), limit: None },
        (false, Some(code)) => Outcome::Failed { error: format!("exit code {code}") },
        (false, None) => Outcome::Failed { error: output.content.text().chars().take(500).collect() },
    }
}
