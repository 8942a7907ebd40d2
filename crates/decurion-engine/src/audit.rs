//! Permission decisions for the audit log. Takes what was decided about a call and by what, gives an entry without
//! secrets to the log that the program was wired with.

use decurion_protocol::{AuditKind, CallId, DecidedBy, Decision, Event, Intent, PermissionEntry, Profile};

use crate::bench::Bench;
use crate::child;
use crate::journal::JournalLost;
use crate::sandbox::Refusal;
use crate::witness::Witness;

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

impl Witness {
    /// The agent that makes these calls.
    pub fn new(bench: &Bench<'_>) -> Self {
        let run = bench.run;
        let path = run.lineage.path.clone();
        Self::of_agent(&run.audit, &run.clock, run.session_id, run.who.agent.clone(), path)
    }
}
