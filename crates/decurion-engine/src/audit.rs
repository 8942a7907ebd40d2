//! Permission decisions for the audit log. Takes what was decided about a call and by what, gives an entry without
//! secrets to the log that the program was wired with.

use decurion_protocol::{AuditEntry, AuditKind, CallId, DecidedBy, Decision, Event, Intent, PermissionEntry};

use crate::call::Bench;
use crate::child;
use crate::journal::JournalLost;

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
    let ports = bench.ports;
    if !ports.audit.is_kept() {
        return Ok(());
    }
    let clean = |text: &str| (ports.equipment.redact)(text).unwrap_or_else(|| text.to_owned());
    let (mode, undecided, trusted) = {
        let rights = ports.rights.borrow();
        (rights.mode, rights.undecided, rights.trusted)
    };
    let entry = PermissionEntry {
        call: call.to_string(),
        tool: tool.to_owned(),
        title: clean(&intent.title),
        decision: decision.verdict,
        by,
        rule: decision.rule.as_deref().map(clean),
        mode: child::mode((mode, undecided), &ports.desk.modes, trusted).value,
        reason: clean(&decision.reason),
    };
    let entry = AuditEntry {
        at: ports.clock.date(),
        session: Some(ports.session),
        agent: ports.who.agent.clone(),
        path: ports.desk.path.clone(),
        kind: AuditKind::Permission(entry),
    };
    if let Some(text) = ports.audit.record(entry) {
        let notice = Event::Notice { level: "warning".to_owned(), text };
        ports.journal.write(&ports.who, vec![notice]).await?;
    }
    Ok(())
}
