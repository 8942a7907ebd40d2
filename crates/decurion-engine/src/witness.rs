//! In whose name the audit log has an entry. Takes who acts, gives the entry with time, session and path.

use std::sync::Arc;

use decurion_protocol::{AgentId, AuditEntry, AuditKind, Clock, SessionId};

use crate::ports::Audit;

/// In whose name entries are made.
#[derive(Clone)]
pub struct Witness {
    audit: Arc<dyn Audit>,
    clock: Arc<dyn Clock>,
    session: Option<SessionId>,
    agent: Option<AgentId>,
    path: String,
}

impl Witness {
    /// The agent of this path.
    pub fn of_agent(
        audit: &Arc<dyn Audit>,
        clock: &Arc<dyn Clock>,
        session: SessionId,
        agent: Option<AgentId>,
        path: String,
    ) -> Self {
        let (audit, clock) = (Arc::clone(audit), Arc::clone(clock));
        Self { audit, clock, session: Some(session), agent, path }
    }

    /// What a session does beside its agents; none where it has no number yet.
    pub fn of_session(audit: &Arc<dyn Audit>, clock: &Arc<dyn Clock>, session: Option<SessionId>) -> Self {
        let (audit, clock) = (Arc::clone(audit), Arc::clone(clock));
        Self { audit, clock, session, agent: None, path: String::new() }
    }

    /// Records something that happens beside the calls. That the log cannot be written is told by the next of them.
    pub fn record(&self, kind: AuditKind) {
        if self.audit.is_kept() {
            let _ = self.audit.record(self.entry(kind));
        }
    }

    pub fn entry(&self, kind: AuditKind) -> AuditEntry {
        AuditEntry {
            at: self.clock.date(),
            session: self.session,
            agent: self.agent.clone(),
            path: self.path.clone(),
            kind,
        }
    }
}
