//! The life of a task. Takes a state and a step, gives the next state or says that the step is not legal.

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{AgentId, CallId, Outcome, RunId, TaskId};

/// What kind of work a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    LocalBash,
    /// An agent in this process.
    LocalAgent,
    /// An agent on another machine.
    RemoteAgent,
}

impl TaskKind {
    /// The word on the stream and in results.
    pub fn word(self) -> &'static str {
        match self {
            Self::LocalBash => "local_bash",
            Self::LocalAgent => "local_agent",
            Self::RemoteAgent => "remote_agent",
        }
    }
}

/// What is known of a task from its beginning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Its id; an agent's is the agent's own.
    pub task: TaskId,
    pub kind: TaskKind,
    /// A few words for people.
    pub description: String,
    /// The prompt or the command.
    pub prompt: String,
    /// Its parent, which is notified of its end; none is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<AgentId>,
    /// Who began it first, where that is someone else: its rights are those it had there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_parent: Option<AgentId>,
    /// The call that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The name of the definition, for an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<String>,
    /// How deep in the tree: 1 for what the root began.
    pub depth: u32,
    /// Whether someone waits for it at its beginning.
    pub attention: Attention,
    /// Where its output is.
    pub output_file: Utf8PathBuf,
}

impl TaskRecord {
    /// The same for another parent, one above the old.
    #[must_use]
    pub fn for_parent(self, parent: Option<AgentId>) -> Self {
        let first_parent = self.first_parent.or(self.parent).filter(|first| Some(first) != parent.as_ref());
        Self { parent, first_parent, ..self }
    }

    /// Who began it first; none is the root.
    pub fn began_by(&self) -> Option<&AgentId> {
        self.first_parent.as_ref().or(self.parent.as_ref())
    }
}

/// One ending of one task; an agent has one for each of its runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EndingId {
    pub task: TaskId,
    /// Which run of an agent; none for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

/// What a line of a conversation delivers, once and for all, to its reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// That a task ended.
    Ending(EndingId),
    /// A message from another agent or a person, by the number of its record.
    Mail(u64),
    /// A command that a person ran, and its result.
    Shell(CallId),
}

/// A message to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mail {
    /// The sender; none is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<AgentId>,
    /// The receiver; none is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<AgentId>,
    pub text: String,
}

/// How far a task has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskProgress {
    /// Tools used so far.
    pub tools: u32,
    /// Tokens of the last response's context.
    pub tokens: u64,
    pub duration_ms: u64,
    /// What it did last, as people read it; at most five, the newest last.
    pub activities: Vec<Activity>,
    /// What it waits for now, other than its model's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
}

/// One thing a task did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    #[serde(rename = "toolName")]
    pub tool: String,
    /// What it was given: the beginning of its input.
    pub input: String,
}

/// Where a task stands. [`TaskState::step`] is the only way from one to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskState {
    Pending,
    /// Wants to start; too many others run.
    Queued {
        /// Whether someone waits for it.
        attention: Attention,
    },
    Running {
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Alive, and waiting for something that will come by itself.
    Waiting {
        reason: String,
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// Held by something outside: a rate limit, a full disk, a person.
    Paused {
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
    Foreground,
    /// No one waits; its end is delivered as a notice.
    Background,
}

/// What can happen to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum TaskStep {
    /// It must wait for a place.
    Queue {
        /// Whether someone waits for it.
        attention: Attention,
    },
    Start {
        /// Whether someone waits for it.
        attention: Attention,
    },
    /// No one waits for it any longer.
    Background,
    /// It waits for something that comes by itself.
    Wait {
        reason: String,
    },
    Pause {
        reason: String,
        /// Until when, where that is known.
        until: Option<Timestamp>,
    },
    Continue,
    Rest,
    Wake,
    End(Outcome),
}

/// A step that its state does not have.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("a task that is {state:?} cannot take the step {step:?}")]
pub struct IllegalStep {
    /// The state it was in, and still is.
    pub state: Box<TaskState>,
    pub step: Box<TaskStep>,
}

impl TaskState {
    /// The next state. Pure and total; a refused step leaves the task as it was.
    pub fn step(self, step: TaskStep) -> Result<Self, IllegalStep> {
        use Attention::Background;
        match (self, step) {
            // A resumed agent may have to wait for a slot again.
            (Self::Pending, TaskStep::Queue { attention })
            | (Self::Paused { attention, .. }, TaskStep::Queue { .. }) => Ok(Self::Queued { attention }),
            (Self::Pending, TaskStep::Start { attention })
            | (Self::Queued { attention }, TaskStep::Start { .. }) => Ok(Self::Running { attention }),
            (Self::Idle, TaskStep::Wake) => Ok(Self::Running { attention: Background }),
            (Self::Running { .. }, TaskStep::Rest) => Ok(Self::Idle),
            (Self::Running { attention }, TaskStep::Wait { reason }) => {
                Ok(Self::Waiting { reason, attention })
            }
            (
                Self::Queued { attention } | Self::Running { attention } | Self::Waiting { attention, .. },
                TaskStep::Pause { reason, until },
            ) => Ok(Self::Paused { reason, until, attention }),
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

    /// Whether it must not do anything until it is resumed or gets a slot.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Paused { .. } | Self::Queued { .. })
    }

    /// Whether someone waits for it; none before that is decided, while it rests and after it ended.
    pub fn attention(&self) -> Option<Attention> {
        match self {
            Self::Queued { attention }
            | Self::Running { attention }
            | Self::Waiting { attention, .. }
            | Self::Paused { attention, .. } => Some(*attention),
            Self::Pending | Self::Idle | Self::Ended(_) => None,
        }
    }

    fn attended(self, attention: Attention) -> Self {
        match self {
            Self::Queued { .. } => Self::Queued { attention },
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
            attention.clone().prop_map(|attention| TaskStep::Queue { attention }),
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

    #[test]
    fn whoever_takes_an_agent_over_does_not_change_who_began_it() {
        let record: TaskRecord = serde_json::from_str(
            r#"{"task":"a3","kind":"local_agent","description":"d","prompt":"p","parent":"a2","depth":3,"attention":"background","output_file":"/x"}"#,
        )
        .unwrap();
        let began_by = |record: &TaskRecord| record.began_by().map(ToString::to_string);
        let moved = record.clone().for_parent(Some("a1".parse().unwrap()));
        assert_eq!(
            (moved.parent.as_ref().map(AgentId::as_str), began_by(&moved)),
            (Some("a1"), Some("a2".into()))
        );
        let again = moved.for_parent(None);
        assert_eq!((again.parent.clone(), began_by(&again)), (None, Some("a2".into())));
        assert_eq!(again.for_parent(Some("a2".parse().unwrap())), record);
    }

    #[test]
    fn each_state_has_its_steps_and_no_others() {
        use Attention::{Background, Foreground};
        let queued = |attention| TaskState::Queued { attention };
        let running = |attention| TaskState::Running { attention };
        let waiting = |attention| TaskState::Waiting { reason: "model".into(), attention };
        let paused = |attention| TaskState::Paused { reason: "disk".into(), until: None, attention };
        let steps = [
            ("queue", TaskStep::Queue { attention: Foreground }),
            ("start", TaskStep::Start { attention: Foreground }),
            ("background", TaskStep::Background),
            ("wait", TaskStep::Wait { reason: "model".into() }),
            ("pause", TaskStep::Pause { reason: "disk".into(), until: None }),
            ("continue", TaskStep::Continue),
            ("rest", TaskStep::Rest),
            ("wake", TaskStep::Wake),
            ("end", TaskStep::End(Outcome::Lost)),
        ];
        let ended = || TaskState::Ended(Outcome::Lost);
        let rows: [(TaskState, &[(&str, TaskState)]); 11] = [
            (
                TaskState::Pending,
                &[("queue", queued(Foreground)), ("start", running(Foreground)), ("end", ended())],
            ),
            (
                queued(Foreground),
                &[
                    ("start", running(Foreground)),
                    ("background", queued(Background)),
                    ("pause", paused(Foreground)),
                    ("end", ended()),
                ],
            ),
            (
                queued(Background),
                &[("start", running(Background)), ("pause", paused(Background)), ("end", ended())],
            ),
            (
                running(Foreground),
                &[
                    ("background", running(Background)),
                    ("wait", waiting(Foreground)),
                    ("pause", paused(Foreground)),
                    ("rest", TaskState::Idle),
                    ("end", ended()),
                ],
            ),
            (
                running(Background),
                &[
                    ("wait", waiting(Background)),
                    ("pause", paused(Background)),
                    ("rest", TaskState::Idle),
                    ("end", ended()),
                ],
            ),
            (
                waiting(Foreground),
                &[
                    ("background", waiting(Background)),
                    ("pause", paused(Foreground)),
                    ("continue", running(Foreground)),
                    ("end", ended()),
                ],
            ),
            (
                waiting(Background),
                &[("pause", paused(Background)), ("continue", running(Background)), ("end", ended())],
            ),
            (
                paused(Foreground),
                &[
                    ("queue", queued(Foreground)),
                    ("background", paused(Background)),
                    ("continue", running(Foreground)),
                    ("end", ended()),
                ],
            ),
            (
                paused(Background),
                &[("queue", queued(Background)), ("continue", running(Background)), ("end", ended())],
            ),
            (TaskState::Idle, &[("wake", running(Background)), ("end", ended())]),
            (ended(), &[]),
        ];
        for (state, known) in rows {
            for (name, step) in &steps {
                let next = state.clone().step(step.clone()).ok();
                let expected = known.iter().find(|(known, _)| known == name).map(|(_, next)| next.clone());
                assert_eq!(next, expected, "{state:?} and {name}");
            }
        }
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
                            let waits = matches!(before, TaskState::Pending | TaskState::Queued { .. });
                            prop_assert!(waits);
                        }
                        // One that is held works only after it was let go on, and takes no other way out.
                        if matches!(before, TaskState::Paused { .. }) && !next.is_ended() {
                            let let_go = matches!(step, TaskStep::Continue | TaskStep::Queue { .. });
                            prop_assert!(let_go || next.is_held());
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
