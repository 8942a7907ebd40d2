//! The task table: every shell and agent of a session, where it stands, and who waits for it. Takes steps,
//! refuses those its state does not have, and lets anyone watch a state without asking.

use std::collections::BTreeMap;

use decurion_protocol::task::IllegalStep;
use decurion_protocol::{RunId, TaskId, TaskState, TaskStep};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// All tasks of a session. Owned by the session's task.
#[derive(Debug, Default)]
pub struct TaskTable {
    rows: BTreeMap<TaskId, Row>,
}

#[derive(Debug)]
struct Row {
    run: RunId,
    /// Watched by whoever waits for the task.
    state: watch::Sender<TaskState>,
    /// Ends its work.
    cancel: CancellationToken,
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// There is no such task.
    #[error("no task with this id: {0}")]
    Unknown(TaskId),
    /// Its state does not have this step.
    #[error(transparent)]
    Illegal(#[from] IllegalStep),
}

impl TaskTable {
    /// Registers a task, pending. One that is known is taken up again, as a resume does.
    pub fn open(
        &mut self,
        task: TaskId,
        run: RunId,
        cancel: CancellationToken,
    ) -> watch::Receiver<TaskState> {
        let (state, watcher) = watch::channel(TaskState::Pending);
        self.rows.insert(task, Row { run, state, cancel });
        watcher
    }

    /// Takes a step and gives the state it led to.
    pub fn step(&mut self, task: &TaskId, step: TaskStep) -> Result<TaskState, StepError> {
        let row = self.rows.get_mut(task).ok_or_else(|| StepError::Unknown(task.clone()))?;
        let next = row.state.borrow().clone().step(step)?;
        row.state.send_replace(next.clone());
        Ok(next)
    }

    /// Asks a task to end. Idempotent: one that ended stays as it is.
    pub fn stop(&self, task: &TaskId) -> Result<(), StepError> {
        let row = self.rows.get(task).ok_or_else(|| StepError::Unknown(task.clone()))?;
        row.cancel.cancel();
        Ok(())
    }

    /// Where a task stands, and in which run.
    pub fn state(&self, task: &TaskId) -> Option<(RunId, TaskState)> {
        self.rows.get(task).map(|row| (row.run, row.state.borrow().clone()))
    }

    /// Whether nothing is alive.
    pub fn is_quiet(&self) -> bool {
        self.rows.values().all(|row| matches!(*row.state.borrow(), TaskState::Ended(_) | TaskState::Idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::{Attention, Outcome};

    #[tokio::test]
    async fn a_watcher_is_released_by_the_background_step_and_the_task_goes_on() {
        let mut table = TaskTable::default();
        let task: TaskId = "b12345678".parse().unwrap();
        let mut watcher = table.open(task.clone(), crate::ports::new_run(), CancellationToken::new());
        table.step(&task, TaskStep::Start { attention: Attention::Foreground }).unwrap();
        let parted = |state: &TaskState| state.attention() != Some(Attention::Foreground);
        assert!(!parted(&watcher.borrow()));
        table.step(&task, TaskStep::Background).unwrap();
        assert!(parted(&watcher.wait_for(parted).await.unwrap()));
        assert!(!table.is_quiet());
        table.step(&task, TaskStep::End(Outcome::Lost)).unwrap();
        assert!(table.is_quiet());
        assert!(matches!(table.step(&task, TaskStep::Wake), Err(StepError::Illegal(_))));
    }
}
