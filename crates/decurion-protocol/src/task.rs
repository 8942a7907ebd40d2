//! The life of a task. Takes a state and a step, gives the next state or says that the step is not legal.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Outcome;

/// Where a task stands. [`TaskState::step`] is the only way from one to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskState {
    /// Registered, not started.
    Pending,
    /// Wants to start; too many others run.
    Queued,
    /// Working.
    Running {
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Alive, and waiting for something that will come by itself.
    Waiting {
        /// For what.
        reason: String,
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Held by something outside: a rate limit, a full disk, a person.
    Paused {
        /// By what.
        reason: String,
        /// Until when, where that is known.
        until: Option<Timestamp>,
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Done with what it had, and can be woken.
    Idle,
    /// Over, and stays so.
    Ended(Outcome),
}

/// Whether a parent waits for a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Its parent waits.
    Foreground,
    /// Nobody waits; its ending is told.
    Background,
}

/// What can happen to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TaskStep {
    /// It must wait for a place.
    Queue,
    /// It begins.
    Start {
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Nobody waits for it any more.
    Background,
    /// It waits for something that comes by itself.
    Wait {
        /// For what.
        reason: String,
    },
    /// It is held.
    Pause {
        /// By what.
        reason: String,
        /// Until when, where that is known.
        until: Option<Timestamp>,
    },
    /// It goes on.
    Continue,
    /// It rests.
    Rest,
    /// It is woken.
    Wake,
    /// It ends.
    End(Outcome),
}

/// A step that its state does not have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("a task that is {state:?} cannot take the step {step:?}")]
pub struct IllegalStep {
    /// The state it was in, and still is.
    pub state: Box<TaskState>,
    /// The step refused.
    pub step: Box<TaskStep>,
}

impl TaskState {
    /// The next state. Pure and total; a refused step leaves the task as it was.
    pub fn step(self, step: TaskStep) -> Result<Self, IllegalStep> {
        use Attention::Background;
        match (self, step) {
            (Self::Pending, TaskStep::Queue) => Ok(Self::Queued),
            (Self::Pending | Self::Queued, TaskStep::Start { attention }) => Ok(Self::Running { attention }),
            (Self::Idle, TaskStep::Wake) => Ok(Self::Running { attention: Background }),
            (Self::Running { .. }, TaskStep::Rest) => Ok(Self::Idle),
            (Self::Running { attention }, TaskStep::Wait { reason }) => {
                Ok(Self::Waiting { reason, attention })
            }
            (Self::Running { attention }, TaskStep::Pause { reason, until }) => {
                Ok(Self::Paused { reason, until, attention })
            }
            (Self::Waiting { attention, .. } | Self::Paused { attention, .. }, TaskStep::Continue) => {
                Ok(Self::Running { attention })
            }
            (state, TaskStep::Background) if state.attention() == Some(Attention::Foreground) => {
                Ok(state.attended(Background))
            }
            (state, TaskStep::End(outcome)) if !state.is_ended() => Ok(Self::Ended(outcome)),
            (state, step) => Err(IllegalStep { state: Box::new(state), step: Box::new(step) }),
        }
    }

    /// Whether it is over.
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Whether someone waits for it; none before it starts, while it rests and after it ended.
    pub fn attention(&self) -> Option<Attention> {
        match self {
            Self::Running { attention }
            | Self::Waiting { attention, .. }
            | Self::Paused { attention, .. } => Some(*attention),
            Self::Pending | Self::Queued | Self::Idle | Self::Ended(_) => None,
        }
    }

    fn attended(self, attention: Attention) -> Self {
        match self {
            Self::Running { .. } => Self::Running { attention },
            Self::Waiting { reason, .. } => Self::Waiting { reason, attention },
            Self::Paused { reason, until, .. } => Self::Paused { reason, until, attention },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_step() -> impl Strategy<Value = TaskStep> {
        let attention = prop_oneof![Just(Attention::Foreground), Just(Attention::Background)];
        prop_oneof![
            Just(TaskStep::Queue),
            attention.prop_map(|attention| TaskStep::Start { attention }),
            Just(TaskStep::Background),
            Just(TaskStep::Wait { reason: "model".into() }),
            Just(TaskStep::Pause { reason: "disk".into(), until: None }),
            Just(TaskStep::Continue),
            Just(TaskStep::Rest),
            Just(TaskStep::Wake),
            Just(TaskStep::End(Outcome::Lost)),
        ]
    }

    proptest! {
        #[test]
        fn an_ended_task_stays_ended_and_a_refused_step_changes_nothing(
            steps in prop::collection::vec(any_step(), 0..40)
        ) {
            let mut state = TaskState::Pending;
            let mut backgrounded = false;
            for step in steps {
                let before = state.clone();
                match state.step(step.clone()) {
                    Ok(next) => {
                        prop_assert!(!before.is_ended());
                        if matches!(step, TaskStep::Start { .. }) {
                            prop_assert!(matches!(before, TaskState::Pending | TaskState::Queued));
                        }
                        // Sent to the background once, it never comes back by itself.
                        backgrounded |= step == TaskStep::Background;
                        if backgrounded {
                            prop_assert_ne!(next.attention(), Some(Attention::Foreground));
                        }
                        state = next;
                    }
                    Err(refused) => {
                        prop_assert_eq!(&*refused.state, &before);
                        state = before;
                    }
                }
            }
        }
    }
}
