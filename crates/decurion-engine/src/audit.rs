//! Permission decisions for the audit log. Takes what was decided about a call and by what, gives an entry without
//! secrets to the log that the program was wired with.

use std::sync::Arc;

use decurion_protocol::{
    AgentId, AuditEntry, AuditKind, CallId, Clock, DecidedBy, Decision, Event, Intent, PermissionEntry,
    Profile, SessionId,
};

use crate::call::Bench;
use crate::child;
use crate::journal::JournalLost;
use crate::ports::Audit;
use crate::sandbox::Refusal;

/// What a decision comes from, where `ruled` is what rules and mode alone said: a hook is what made it another one.
pub(crate) fn decided_by(decision: &Decision, ruled: &Decision) -> DecidedBy {
    if decision != ruled {
        DecidedBy::Hook
    } else if decision.rule.is_some() {
        DecidedBy::Rule
    } else {
        DecidedBy::Policy
    }
}

/// Records a decision about a call. Where the log cannot be written, people are told once and the call is not held up:
/// the decision is in the transcript, too.
pub(crate) async fn record(
    bench: &Bench<'_>,
    call: &CallId,
    tool: &str,
    intent: &Intent,
    (decision, by): (&Decision, DecidedBy),
) -> Result<(), JournalLost> {
    let run = bench.run;
    if !run.audit.is_kept() {
        return Ok(());
    }
    let clean = |text: &str| (run.equipment.redact)(text).unwrap_or_else(|| text.to_owned());
    let (mode, undecided, trusted) = {
        let rights = run.rights.borrow();
        (rights.mode, rights.undecided, rights.trusted)
    };
    let entry = PermissionEntry {
        call: call.to_string(),
        tool: tool.to_owned(),
        title: clean(&intent.title),
        decision: decision.verdict,
        by,
        rule: decision.rule.as_deref().map(clean),
        mode: child::mode((mode, undecided), &run.lineage.modes, trusted).value,
        reason: clean(&decision.reason),
    };
    keep(bench, AuditKind::Permission(entry)).await
}

/// Records what a sandbox kept a command from.
pub(crate) async fn record_refusal(
    bench: &Bench<'_>,
    title: &str,
    refusal: &Refusal,
) -> Result<(), JournalLost> {
    let run = bench.run;
    let clean = |text: &str| (run.equipment.redact)(text).unwrap_or_else(|| text.to_owned());
    let form = run.equipment.sandbox.as_ref().map_or("none", |maker| maker.settings().form.name());
    let kind = AuditKind::Sandbox {
        title: clean(title),
        refused: clean(&refusal.text()),
        verified: refusal.is_verified(),
        form: form.to_owned(),
    };
    keep(bench, kind).await
}

/// Records that a command runs without the sandbox.
pub(crate) fn record_unsandboxed(bench: &Bench<'_>, call: &CallId, title: &str, profile: Option<Profile>) {
    let clean = |text: &str| (bench.run.equipment.redact)(text).unwrap_or_else(|| text.to_owned());
    let reason = match profile {
        Some(Profile::Outside) => "allowed by an answer",
        _ => "sandbox.excludedCommands",
    };
    Witness::new(bench).record(AuditKind::Unsandboxed {
        call: call.to_string(),
        title: clean(title),
        reason: reason.to_owned(),
    });
}

async fn keep(bench: &Bench<'_>, kind: AuditKind) -> Result<(), JournalLost> {
    let run = bench.run;
    if let Some(text) = run.audit.record(Witness::new(bench).entry(kind)) {
        let notice = Event::Notice { level: "warning".to_owned(), text };
        run.journal.write(&run.who, vec![notice]).await?;
    }
    Ok(())
}

/// In whose name entries are made.
#[derive(Clone)]
pub(crate) struct Witness {
    audit: Arc<dyn Audit>,
    clock: Arc<dyn Clock>,
    session: Option<SessionId>,
    agent: Option<AgentId>,
    path: String,
}

impl Witness {
    /// The agent that makes these calls.
    pub fn new(bench: &Bench<'_>) -> Self {
        let run = bench.run;
        Self {
            audit: Arc::clone(&run.audit),
            clock: Arc::clone(&run.clock),
            session: Some(run.session_id),
            agent: run.who.agent.clone(),
            path: run.lineage.path.clone(),
        }
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

    fn entry(&self, kind: AuditKind) -> AuditEntry {
        AuditEntry {
            at: self.clock.date(),
            session: self.session,
            agent: self.agent.clone(),
            path: self.path.clone(),
            kind,
        }
    }
}
