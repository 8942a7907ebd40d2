//! What a question about a call says about the sandbox, part of room 7. Takes a call that is to be asked about; gives the
//! question with what a Yes does, so that one answer is enough, or the refusal where no answer would help.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::{Decision, Intent, Mode, Profile, Verdict};
use serde_json::Value;

use super::{Bench, Ready, now};
use crate::permission::{Policy, Walls};
use crate::sandbox::{NamedSecrets, first_of};

/// As many private files are named in a question.
const MOST_NAMED: usize = 3;

pub(super) struct Foreseen {
    /// The decision with its reason, and the profile that a Yes gives the command.
    pub decision: Decision,
    /// The call as whoever answers sees it, if that is not how the model asked for it.
    pub shown: Option<Ready>,
    /// Whether the answer is for this call alone: no rule is offered.
    pub once: bool,
    /// Private files that the question names, and that a Yes shows to the command.
    pub shows: Vec<Utf8PathBuf>,
}

/// Adds to the question about a call what its sandbox would refuse in spite of a Yes.
pub(super) async fn foreseen(
    bench: &Bench<'_>,
    ready: &Ready,
    decision: Decision,
    seen: &Intent,
    policy: &Policy,
) -> Foreseen {
    let unchanged = |decision| Foreseen { decision, shown: None, once: false, shows: Vec::new() };
    let maker = bench.run.equipment.sandbox.clone();
    let Some(maker) = maker.filter(|_| decision.verdict == Verdict::Ask) else { return unchanged(decision) };
    let is_command = seen.shell.is_some();
    let is_inside = is_command && decision.profile.is_none();
    let is_walled = is_inside && policy.walls != Walls::Absent;
    let may_leave = is_walled && may_leave(bench, policy.mode);
    // Then no answer helps such a command.
    let may_never_leave = is_walled && !maker.settings().allows_outside;
    let (own_seen, own_policy) = (seen.clone(), policy.clone());
    let environment = Arc::clone(&bench.run.equipment.environment);
    let look = move || {
        let excluded = own_seen.shell.as_ref().is_some_and(|text| own_policy.excluded.covers(text));
        let outside = (may_leave || may_never_leave)
            .then(|| maker.needs_outside(&own_policy, &own_seen, &environment))
            .flatten();
        let secrets = if excluded {
            NamedSecrets::default()
        } else {
            maker.named_secrets(&own_seen, &own_policy.around)
        };
        (outside, secrets)
    };
    let Ok((outside, secrets)) = tokio::task::spawn_blocking(look).await else { return unchanged(decision) };
    if let Some(path) = secrets.own.filter(|_| is_inside) {
        let reason = format!("it reads {path}, which belongs to Decurion and is hidden from every command");
        let decision = Decision { verdict: Verdict::Deny, reason, rule: None, profile: None };
        return unchanged(decision);
    }
    if let Some(what) = outside.as_ref().filter(|_| may_never_leave) {
        let reason = format!(
            "sandbox.allowUnsandboxedCommands is false, and {what}; the user can run it in a terminal"
        );
        let decision = Decision { verdict: Verdict::Deny, reason, rule: None, profile: None };
        return unchanged(decision);
    }
    let mut reason = decision.reason;
    let once = !secrets.hidden.is_empty();
    if once {
        let named = first_of(&secrets.hidden, MOST_NAMED);
        reason = format!("{reason}. Keys or other private files are in {named}");
        if is_inside && outside.is_none() {
            reason += "; commands see it only if you say Yes, and then for this one time";
        }
    }
    let shows = if once { [secrets.hidden, secrets.links].concat() } else { Vec::new() };
    let Some(what) = outside else {
        return Foreseen { decision: Decision { reason, ..decision }, shown: None, once, shows };
    };
    let reason = format!("{reason}; {what}. Run all of it without the sandbox, with all your rights?");
    let mut shown =
        Ready { call: ready.call.clone(), tool: ready.tool.clone(), intent: ready.intent.clone() };
    // Whoever answers for a person sees what is asked.
    shown.call.input["dangerouslyDisableSandbox"] = Value::Bool(true);
    let decision = Decision { reason, profile: Some(Profile::Outside), ..decision };
    Foreseen { decision, shown: Some(shown), once, shows }
}

/// Whether a person can let a command of this run leave the sandbox.
pub(super) fn may_leave(bench: &Bench<'_>, mode: Mode) -> bool {
    let allowed = bench.run.equipment.sandbox.as_ref().is_some_and(|maker| maker.settings().allows_outside);
    allowed
        && bench.spec.definition.sandbox.is_empty()
        && !matches!(mode, Mode::Plan | Mode::DontAsk | Mode::BypassPermissions)
        && now(bench).answers
        && bench.run.permission_tool.is_none()
}
