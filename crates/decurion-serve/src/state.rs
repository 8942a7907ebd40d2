//! Whether a session works, rests or needs an answer. Takes events in order, gives the state line for hosts when that
//! changes.

use std::collections::HashMap;

use decurion_protocol::{AgentId, CallId, Envelope, Event, QuestionId};

/// Which state lines a host gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateLines {
    #[default]
    Off,
    /// Everything, for its own use (`CLAUDE_CODE_SDK_READS_SESSION_STATE`).
    HostOnly,
    /// All, for the program that leads it (`CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS`).
    On,
}

/// The state of a session, as far as its events tell.
#[derive(Debug, Default)]
pub struct SessionState {
    works: bool,
    /// Open questions: the agent and the call of each.
    open: HashMap<QuestionId, (Option<AgentId>, CallId)>,
    told: Option<&'static str>,
}

impl SessionState {
    /// The new state, if an event changed it.
    pub fn take(&mut self, envelope: &Envelope) -> Option<&'static str> {
        let agent = envelope.agent.as_ref();
        match &envelope.event {
            Event::Quiet { quiet, .. } => self.works = !quiet,
            Event::Asked { question } => {
                self.open.insert(question.id, (question.agent.clone(), question.call.clone()));
            }
            Event::Answered { question, .. } => drop(self.open.remove(question)),
            Event::CallStarted { call, .. } | Event::CallEnded { call, .. } => {
                self.open.retain(|_, (whose, asked)| whose.as_ref() != agent || asked != call);
            }
            Event::RunEnded { .. } => self.open.retain(|_, (whose, _)| whose.as_ref() != agent),
            _ => return None,
        }
        let now = match (self.works, self.open.is_empty()) {
            (false, _) => "idle",
            (true, true) => "running",
            (true, false) => "requires_action",
        };
        // One that has not begun to work is not worth a word.
        let changed = self.told.unwrap_or("idle") != now;
        self.told = Some(now);
        changed.then_some(now)
    }
}
