//! Commands and agents that a run waits for. Takes those that are about to start and those that did, gives which of them
//! a person sends to the background.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decurion_protocol::{AgentId, CallId, TaskRecord};
use decurion_tools::Printed;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::run_handle::RunHandle;

/// The commands and agents of a session that a run waits for. A small leaf: each foreground command touches it twice.
#[derive(Default)]
pub struct ForegroundShells(Mutex<Foreground>);

#[derive(Default)]
struct Foreground {
    started: Vec<Arc<ForegroundShell>>,
    coming: Vec<Coming>,
}

/// A command or an agent whose call is on record and that is not started yet.
struct Coming {
    agent: Option<AgentId>,
    call: CallId,
    /// Whether nobody waits for it any more.
    is_behind: bool,
}

/// Holds the place of a command or an agent until its call is over.
pub struct Expected<'a> {
    shells: &'a ForegroundShells,
    call: CallId,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.shells.lock().coming.retain(|coming| coming.call != self.call);
    }
}

/// A shell that someone waits for.
pub struct ForegroundShell {
    pub run: RunHandle,
    pub call: CallId,
    pub command: String,
    /// What it is for.
    pub description: String,
    /// What it has printed so far.
    pub printed: Arc<Printed>,
    pub cancel: CancellationToken,
    /// Turns to its record when nobody waits for it any more.
    pub detached: watch::Sender<Option<Arc<TaskRecord>>>,
}

impl ForegroundShells {
    /// Expects one: it can be sent to the background from now on.
    pub fn expect(&self, agent: Option<AgentId>, call: &CallId) -> Expected<'_> {
        self.lock().coming.push(Coming { agent, call: call.clone(), is_behind: false });
        Expected { shells: self, call: call.clone() }
    }

    /// Sends those to the background that are expected and not started yet, and that are meant; gives how many.
    pub fn send_behind(&self, is_meant: impl Fn(Option<&AgentId>, &CallId) -> bool) -> usize {
        let Foreground { started, coming } = &mut *self.lock();
        let is_coming = |call: &CallId| !started.iter().any(|shell| shell.call == *call);
        let meant = coming
            .iter_mut()
            .filter(|one| !one.is_behind && is_coming(&one.call) && is_meant(one.agent.as_ref(), &one.call));
        meant.map(|one| one.is_behind = true).count()
    }

    /// Whether nobody waits any more for a command or an agent that is about to start.
    pub fn is_behind(&self, call: &CallId) -> bool {
        self.lock().coming.iter().any(|coming| coming.call == *call && coming.is_behind)
    }

    pub fn add(&self, shell: Arc<ForegroundShell>) {
        self.lock().started.push(shell);
    }

    pub fn remove(&self, shell: &Arc<ForegroundShell>) {
        self.lock().started.retain(|other| !Arc::ptr_eq(other, shell));
    }

    /// Whether one is still waited for.
    pub fn has(&self, shell: &Arc<ForegroundShell>) -> bool {
        self.lock().started.iter().any(|other| Arc::ptr_eq(other, shell))
    }

    pub fn all(&self) -> Vec<Arc<ForegroundShell>> {
        self.lock().started.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Foreground> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_sent_behind_between_its_record_and_its_start() {
        let shells = ForegroundShells::default();
        let (first, second) = (CallId("c1".to_owned()), CallId("c2".to_owned()));
        let of_root = |agent: Option<&AgentId>, _: &CallId| agent.is_none();
        let expected = shells.expect(None, &first);
        let _other = shells.expect("a0123456789abcdef".parse().ok(), &second);
        assert_eq!((shells.send_behind(of_root), shells.is_behind(&first)), (1, true));
        assert_eq!((shells.send_behind(of_root), shells.is_behind(&second)), (0, false));
        drop(expected);
        assert!(!shells.is_behind(&first));
    }
}
