//! Agents held by a person, and let go on. Takes which one and whether all below it; what changed is on record before
//! it holds, so that it holds after a restart too.

use decurion_protocol::{AgentId, Attention, Event, TaskId, TaskState, TaskStep};

use crate::session::actor::SessionActor;
use crate::task::Row;

/// Why an agent is held.
const BY_A_PERSON: &str = "paused by a person";

impl SessionActor {
    /// Holds an agent, or it and all below it. Gives how many were not held before.
    pub async fn pause(&mut self, task: &TaskId, tree: bool) -> Result<usize, String> {
        let agents = self.agents_from(task, tree, "paused")?;
        if tree {
            // What they have under way may still begin others.
            self.slots.paused_trees.extend(agents.iter().cloned());
        }
        let hold = |row: &Row| {
            let step = TaskStep::Pause { reason: BY_A_PERSON.to_owned(), until: None };
            let state = row.state();
            let held = matches!(state, TaskState::Paused { .. });
            if held { None } else { state.step(step).ok() }
        };
        let count = self.step_all(&agents, hold).await?;
        // Whoever is held has given its place up.
        self.begin_queued().await;
        Ok(count)
    }

    /// Lets an agent go on that is held, or it and all below it. Gives how many were held.
    pub async fn let_go_on(&mut self, task: &TaskId, tree: bool) -> Result<usize, String> {
        let agents = self.agents_from(task, tree, "continued")?;
        for agent in &agents {
            self.slots.paused_trees.remove(agent);
        }
        let held = |task: &&TaskId| {
            let row = self.tasks.table.row(task);
            row.is_some_and(|row| matches!(row.state(), TaskState::Paused { .. }))
        };
        let held: Vec<TaskId> = agents.iter().filter(held).cloned().collect();
        let mut places = self.places(None);
        let mut direct = Vec::new();
        for task in &held {
            let needs_none = self.is_waiting_to_end(task);
            if self.slots.running.contains(task) && (needs_none || places > 0) {
                places = places.saturating_sub(usize::from(!needs_none));
                direct.push(task.clone());
            } else if self.slots.running.contains(task) {
                self.slots.returning.push_back(task.clone());
            }
        }
        let go_on = |row: &Row| {
            let attention = row.record.attention;
            let is_direct = direct.contains(&row.record.task);
            let step = if is_direct { TaskStep::Continue } else { TaskStep::Queue { attention } };
            row.state().step(step).ok()
        };
        let count = self.step_all(&held, go_on).await?;
        for task in &direct {
            if self.is_waiting_to_end(task) {
                self.wait_for_own(task);
            }
        }
        self.begin_queued().await;
        Ok(count)
    }

    /// The state that an agent begins in, where it does not begin at once.
    pub(super) fn not_begun(&mut self, record: &decurion_protocol::TaskRecord) -> Option<TaskState> {
        let attention = record.attention;
        let parent = record.parent.clone().map(TaskId::from);
        let below_held = parent.is_some_and(|parent| self.slots.paused_trees.contains(&parent));
        if self.slots.paused_before.remove(&record.task) || below_held {
            return Some(held(attention));
        }
        (!self.has_room(Some(record))).then_some(TaskState::Queued { attention })
    }

    /// An agent that has nothing to do but to wait for its own says so.
    pub(super) fn wait_for_own(&mut self, task: &TaskId) {
        let reason = "its own agents are at work".to_owned();
        // One that is held stays held.
        let _ = self.tasks.table.step(task, TaskStep::Wait { reason });
    }

    fn is_waiting_to_end(&self, task: &TaskId) -> bool {
        task.as_str().parse::<AgentId>().is_ok_and(|agent| self.tasks.ending.contains_key(&agent))
    }

    /// The living agents that a wish is about, the one that it names first.
    fn agents_from(&self, task: &TaskId, tree: bool, done: &str) -> Result<Vec<TaskId>, String> {
        let row = self.tasks.table.row(task).ok_or_else(|| format!("no task with this id: {task}"))?;
        if !row.is_agent() {
            return Err(format!(
                "{task} is a command, and only agents can be {done}: stop it, or let it run"
            ));
        }
        if let TaskState::Ended(outcome) = row.state() {
            return Err(format!("{task} has ended already: {}", outcome.word()));
        }
        let wanted = if tree { self.tasks.table.subtree(task) } else { vec![task.clone()] };
        let living =
            |task: &TaskId| self.tasks.table.row(task).is_some_and(|row| row.is_agent() && row.is_alive());
        Ok(wanted.into_iter().filter(living).collect())
    }

    /// Takes each of these one step, all in one write. Gives how many took one.
    async fn step_all(
        &mut self,
        tasks: &[TaskId],
        next: impl Fn(&Row) -> Option<TaskState>,
    ) -> Result<usize, String> {
        let change = |task: &TaskId| {
            let state = self.tasks.table.row(task).and_then(&next)?;
            Some(Event::TaskChanged { task: task.clone(), state })
        };
        let events: Vec<Event> = tasks.iter().filter_map(change).collect();
        let count = events.len();
        if count > 0 {
            let written =
                self.core.journal.write(&self.core.who, events).await.map_err(|lost| lost.to_string())?;
            for envelope in &written {
                self.tasks.table.apply(envelope);
            }
        }
        Ok(count)
    }
}

fn held(attention: Attention) -> TaskState {
    TaskState::Paused { reason: BY_A_PERSON.to_owned(), until: None, attention }
}
