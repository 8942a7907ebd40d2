//! Room 7. One tool call, door to door. Takes the model's request, gives back what the model will read.
//!
//! The order is the guarantee: the input is understood, the rules are asked, a person is asked where they
//! say so, the intent is on record, and only then the tool runs; its result is on record before anyone
//! acts on it.

mod foreseen;
mod in_sandbox;

use std::ffi::OsString;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_model::event::unparsed_input;
use decurion_protocol::{
    AgentId, Answer, AskedBy, CallId, Changes, DecidedBy, Decision, Denial, Envelope, Event, HookEvent,
    Intent, PermissionUpdate, Profile, Question, QuestionId, Rule, RunSpec, TaskState, ToolContent,
    ToolOutput, Verdict, WaitReason, Worktree,
};
use decurion_tools::mcp::Elicit;
use decurion_tools::set::CallError;
use decurion_tools::{Check, PathRules, Tool, ToolContext};
use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::approval::Ask;
use crate::approval::{Heard, Rights};
use crate::audit::{self, decided_by};
use crate::bench::panicked;
pub use crate::bench::{Bench, Call};
use crate::bounds;
use crate::child;
use crate::confine::{Confinement, Place};
use crate::egress::{Connecting, Fetching};
use crate::elicit::Elicitor;
use crate::hook::HookPermission;
use crate::journal::JournalLost;
use crate::permission::{Around, NamedWrite, Policy, Walls, decide, is_inside, named_writes, suggest};
use crate::ports::new_line;
use crate::repository::look_at_disk;
use crate::rules::{self, OpenRules};
use crate::run_handle::CallingRun;
use crate::run_hooks::{CallForHooks, RunHooks};
use crate::sandbox::hints;
use crate::symlinks::Symlinks;
use crate::withheld::Withheld;
use crate::witness::Witness;
use crate::{checkpoint, mcp, permission_tool, person_tools, shell, skill};
use foreseen::foreseen;
pub use in_sandbox::Confined;
use in_sandbox::sandboxed;

/// A call that was understood, or its answer if it could not be.
pub enum Prepared {
    /// It can run, if it may.
    Ready(Box<Ready>),
    /// It cannot: this is the answer.
    Answered(Box<(Call, ToolOutput)>),
}

/// A call that can run, if it may.
pub struct Ready {
    call: Call,
    tool: Arc<dyn Tool>,
    intent: Intent,
}

/// What came of a call.
pub struct Finished {
    /// Its events as recorded.
    pub events: Vec<Arc<Envelope>>,
    /// The refusal, if it was refused, and the reason where nobody could be asked.
    pub denial: Option<(Denial, Option<String>)>,
    /// Whether whoever refused it wants the turn to end too.
    pub interrupt: bool,
    /// What hooks tell the model about it.
    pub notes: Vec<String>,
    /// Why a hook ends the run, if one does.
    pub stopped: Option<String>,
}

impl Prepared {
    fn answered(call: Call, output: ToolOutput) -> Self {
        Self::Answered(Box::new((call, output)))
    }

    /// Whether it may run beside others.
    pub fn overlaps(&self) -> bool {
        match self {
            Self::Ready(ready) => ready.intent.overlap == decurion_protocol::Overlap::Together,
            Self::Answered(..) => true,
        }
    }
}

/// Understands a call. Pure: nothing has happened yet.
pub fn prepare(bench: &Bench<'_>, call: Call) -> Prepared {
    if let Some(raw) = unparsed_input(&call.input) {
        let start: String = raw.chars().take(200).collect();
        let text = format!(
            "InputValidationError: the input of {} is not a JSON object. It was cut off or malformed, and \
             was not run. It began: {start}",
            call.name
        );
        return Prepared::answered(call, ToolOutput::usage_error(text));
    }
    let (tool, input) = match bench.run.tools.resolve(&call.name, &call.input) {
        Ok(found) => (Arc::clone(found.tool), found.input.into_owned()),
        Err(error) => {
            let known: Vec<&str> = bench.run.tools.names().collect();
            let text = match error {
                CallError::NoSuchTool(_) => format!("{error}. The tools are: {}", known.join(", ")),
                CallError::Input(_) => error.to_string(),
            };
            return Prepared::answered(call, ToolOutput::usage_error(text));
        }
    };
    let name = &tool.spec().name;
    if let Some(refused) =
        person_tools::refused(name, bench.spec.agent.is_some(), bench.run.rights.borrow().mode)
    {
        return Prepared::answered(call, refused);
    }
    let input = person_tools::as_asked(name, input);
    match tool.intent(&input, &bench.around) {
        Ok(intent) => Prepared::Ready(Box::new(Ready { call: Call { input, ..call }, tool, intent })),
        Err(error) => Prepared::answered(call, error.into()),
    }
}

/// Does a call, from its permission to its result on record.
pub async fn perform(bench: &Bench<'_>, prepared: Prepared) -> Result<Finished, JournalLost> {
    let ready = match prepared {
        Prepared::Ready(ready) => *ready,
        Prepared::Answered(answered) => {
            let (call, output) = *answered;
            return end(bench, &call, output, 0, Vec::new()).await;
        }
    };
    let name = ready.tool.spec().name.clone();
    let (ready, said) = match before(bench, ready, &name).await {
        Ok(hooked) => hooked,
        Err(answered) => {
            let (call, output) = *answered;
            return end(bench, &call, output, 0, Vec::new()).await;
        }
    };
    if let Some(reason) = said.stopped {
        return stopped(bench, Prepared::Ready(Box::new(ready)), reason).await;
    }
    let permit = permit(bench, &ready, &name, said.permission).await?;
    let mut ready = ready;
    let permit = decide_again(bench, &mut ready, &name, permit).await;
    permit.record(bench, &ready.call.id, &name, &ready.intent).await?;
    let mut finished = match permit {
        Permit::Answered(output) => end(bench, &ready.call, *output, 0, Vec::new()).await?,
        Permit::Granted { decision, by, input, seen, under, shows } => {
            let input = input.or_else(|| said.changed.then(|| ready.call.input.clone()));
            run(bench, ready, name, decision, input, Leave::new(bench, &under, seen, by, shows)).await?
        }
        Permit::Refused { decision, unanswerable, interrupt, .. } => {
            refuse(bench, ready, name, decision, unanswerable, interrupt).await?
        }
    };
    finished.notes.splice(0..0, said.notes);
    Ok(finished)
}

/// Answers a call that is not begun any more: a hook ended the run before it.
pub async fn stopped(bench: &Bench<'_>, prepared: Prepared, reason: String) -> Result<Finished, JournalLost> {
    let finished = not_begun(bench, prepared, &format!("a hook ended the run. {reason}")).await?;
    Ok(Finished { stopped: Some(reason), ..finished })
}

/// Answers a call that is not begun any more.
pub async fn not_begun(bench: &Bench<'_>, prepared: Prepared, why: &str) -> Result<Finished, JournalLost> {
    let call = match prepared {
        Prepared::Ready(ready) => ready.call,
        Prepared::Answered(answered) => answered.0,
    };
    let output = ToolOutput::error(format!("This call was not begun: {why}"));
    end(bench, &call, output, 0, Vec::new()).await
}

/// What hooks said before a call.
#[derive(Default)]
struct Said {
    permission: Option<HookPermission>,
    changed: bool,
    notes: Vec<String>,
    stopped: Option<String>,
}

/// Lets the hooks look at a call before anyone decides about it. The error is the call's answer: a hook
/// gave it an input that its tool does not understand.
async fn before(
    bench: &Bench<'_>,
    mut ready: Ready,
    name: &str,
) -> Result<(Ready, Said), Box<(Call, ToolOutput)>> {
    if !bench.run.hooks.wait_for(HookEvent::PreToolUse) {
        return Ok((ready, Said::default()));
    }
    let result = hooked(bench).before_call(&about(bench, &ready.call, name, &ready.intent)).await;
    let mut said = Said {
        permission: result.permission,
        notes: result.additional_context,
        stopped: result.stop,
        changed: false,
    };
    if let Some(input) = result.updated_input {
        ready.intent = match ready.tool.intent(&input, &bench.around) {
            Ok(intent) => intent,
            Err(error) => {
                let text = format!("a PreToolUse hook changed the input to one that does not fit: {error}");
                return Err(Box::new((ready.call, ToolOutput::error(text))));
            }
        };
        ready.call.input = input;
        said.changed = true;
    }
    Ok((ready, said))
}

fn hooked<'a>(bench: &'a Bench<'_>) -> RunHooks<'a> {
    RunHooks { run: bench.run }
}

/// What hooks need to know about a call.
fn about<'a>(bench: &Bench<'_>, call: &'a Call, name: &'a str, intent: &'a Intent) -> CallForHooks<'a> {
    let around = around(bench, &bench.run.root);
    CallForHooks { tool: name, input: &call.input, id: call.id.as_str(), intent, around }
}

enum Permit {
    /// `seen`: what was decided about, with the paths that the named ones led to then. `under`: what may be done while
    /// the call is. `shows`: private files that the question named, and that a command may read now.
    Granted {
        decision: Decision,
        by: DecidedBy,
        input: Option<Value>,
        seen: Box<Intent>,
        under: Box<Rights>,
        shows: Vec<Utf8PathBuf>,
    },
    Refused {
        decision: Decision,
        by: DecidedBy,
        unanswerable: bool,
        interrupt: bool,
    },
    /// Nobody has to decide: it cannot work, and this is its answer.
    Answered(Box<ToolOutput>),
}

impl Permit {
    /// Puts what was decided, and by what, into the audit log.
    async fn record(
        &self,
        bench: &Bench<'_>,
        call: &CallId,
        name: &str,
        intent: &Intent,
    ) -> Result<(), JournalLost> {
        match self {
            Self::Granted { decision, by, .. } | Self::Refused { decision, by, .. } => {
                audit::record(bench, call, name, intent, (decision, *by)).await
            }
            Self::Answered(_) => Ok(()),
        }
    }
}

/// Asks the rules, and hooks or a person where they say so. A hook may be stricter than the rules, and may
/// answer in a person's place, but never lets through what a rule denies.
async fn permit(
    bench: &Bench<'_>,
    ready: &Ready,
    name: &str,
    hook: Option<HookPermission>,
) -> Result<Permit, JournalLost> {
    let rights = bench.run.rights.borrow().clone();
    let policy = policy(bench, &rights);
    let seen = Box::new(seen_by_rules(bench, name, &ready.call.input, &ready.intent).await);
    let ruled = decide_under_grants(bench, &policy, name, &ready.call.input, &seen);
    let mut decision = ruled.clone();
    // What is not what was approved is for a person to look at; a hook may only refuse it.
    let lets = |hook: &HookPermission| matches!(hook, HookPermission::Allow { .. });
    let for_a_person = seen.doubt.is_some() || person_tools::is_unanswered(name, &ready.call.input);
    let hook = hook.filter(|hook| !for_a_person || !lets(hook));
    let asks = |hook: &Option<HookPermission>| matches!(hook, Some(HookPermission::Ask { .. }));
    let mut by_hook = asks(&hook);
    decision = with_hook(decision, hook, name);
    let patch = match check(bench, ready, &decision, &seen, &policy).await {
        Check::Fails(output) => return Ok(Permit::Answered(output)),
        Check::Works { patch } => patch,
    };
    let mut under = None;
    if decision.verdict == Verdict::Ask && bench.run.hooks.wait_for(HookEvent::PermissionRequest) {
        let mut result = hooked(bench).before_question(&about(bench, &ready.call, name, &ready.intent)).await;
        let given = result.updated_input.as_ref().unwrap_or(&ready.call.input);
        if person_tools::is_unanswered(name, given) {
            result.permission = result.permission.filter(|permission| !lets(permission));
        }
        let mut updates = std::mem::take(&mut result.updates);
        if !result.permission.as_ref().is_some_and(lets) {
            updates.retain(PermissionUpdate::narrows);
        }
        // What it takes away is for the calls after the one that it lets go on.
        under = Some(now(bench)).filter(|_| result.permission.as_ref().is_some_and(lets));
        change_rights(bench, "a PermissionRequest hook", updates).await?;
        if let (Some(HookPermission::Allow { .. }), Some(input)) = (&result.permission, &result.updated_input)
        {
            let decision = with_hook(decision, result.permission, name);
            let seen = match ready.tool.intent(input, &bench.around) {
                Ok(intent) => Box::new(looked_at(bench, &intent).await),
                Err(_) => seen,
            };
            return Ok(Permit::Granted {
                by: decided_by(&decision, &ruled),
                decision,
                input: result.updated_input,
                seen,
                under: Box::new(under.unwrap_or_else(|| now(bench))),
                shows: Vec::new(),
            });
        }
        by_hook |= asks(&result.permission);
        decision = with_hook(decision, result.permission, name);
    }
    let why = if by_hook { (AskedBy::Hook, None) } else { why_asked(&decision, &seen, &policy.around) };
    let by = decided_by(&decision, &ruled);
    let foreseen = foreseen(bench, ready, decision, &seen, &policy).await;
    let (decision, once, shows) = (foreseen.decision, foreseen.once, foreseen.shows);
    let ready = foreseen.shown.as_ref().unwrap_or(ready);
    match decision.verdict {
        Verdict::Allow => {
            let under = Box::new(under.unwrap_or_else(|| now(bench)));
            Ok(Permit::Granted { decision, by, input: None, seen, under, shows: Vec::new() })
        }
        Verdict::Deny => Ok(Permit::Refused { decision, by, unanswerable: false, interrupt: false }),
        Verdict::Ask if rights.answers || bench.run.permission_tool.is_some() => {
            audit::record(bench, &ready.call.id, name, &ready.intent, (&decision, by)).await?;
            let (asked_by, blocked) = why;
            ask(bench, ready, name, decision, seen, Why { asked_by, blocked, once, shows, patch }).await
        }
        Verdict::Ask => {
            let offered = match decision.profile {
                Some(Profile::Outside) => Vec::new(),
                _ if by_hook || once => Vec::new(),
                _ => would_do(bench, ready, name, &seen),
            };
            let rules: Vec<String> = offered.iter().map(ToString::to_string).collect();
            let would = match rules.as_slice() {
                [] => String::new(),
                [rule] => format!(" (the rule {rule} would allow it)"),
                several => format!(" (the rules {} would allow it)", several.join(", ")),
            };
            let reason = format!(
                "{}; permission cannot be requested in this non-interactive session{would}",
                decision.reason
            );
            let decision = Decision { verdict: Verdict::Deny, reason, ..decision };
            Ok(Permit::Refused { decision, by: DecidedBy::Nobody, unanswerable: true, interrupt: false })
        }
    }
}

/// Whether a call that somebody would be asked about can work. Of files beyond the directories of the run it tells nothing
/// before somebody agrees.
async fn check(
    bench: &Bench<'_>,
    ready: &Ready,
    decision: &Decision,
    seen: &Intent,
    policy: &Policy,
) -> Check {
    let has_asker = bench.run.rights.borrow().answers || bench.run.permission_tool.is_some();
    let is_inside = seen.touches.iter().all(|touch| is_inside(&touch.path, &policy.around));
    if decision.verdict != Verdict::Ask || !has_asker || !is_inside {
        return Check::default();
    }
    let rules = OpenRules::new(policy.clone(), seen.clone()).confined(Confinement::of(&bench.spec));
    let (progress, _) = mpsc::channel(1);
    let cx = context(bench, &ready.call, Arc::new(rules), progress);
    let redact = &bench.run.equipment.redact;
    match ready.tool.check(&cx, &ready.call.input).await {
        Check::Fails(output) => Check::Fails(Box::new(clean(redact, *output))),
        Check::Works { mut patch } => {
            if let Some(patch) = &mut patch {
                clean_value(redact, patch);
            }
            Check::Works { patch }
        }
    }
}

/// What a hook or a person changed is another call: the rules that deny hold for it too, and it is what goes
/// on record.
async fn decide_again(bench: &Bench<'_>, ready: &mut Ready, name: &str, permit: Permit) -> Permit {
    let Permit::Granted { decision, by, input: Some(input), under, shows, .. } = permit else {
        return permit;
    };
    let refused = |decision: Decision| {
        let by = decided_by(&decision, &decision);
        Permit::Refused { decision, by, unanswerable: false, interrupt: false }
    };
    match ready.tool.intent(&input, &bench.around) {
        Ok(intent) => ready.intent = intent,
        Err(error) => {
            let reason = format!("the changed input does not fit: {error}");
            return refused(Decision { verdict: Verdict::Deny, reason, rule: None, profile: None });
        }
    }
    let seen = Box::new(seen_by_rules(bench, name, &input, &ready.intent).await);
    let policy = policy(bench, &under);
    let again = decide_under_grants(bench, &policy, name, &input, &seen);
    if again.verdict == Verdict::Deny {
        return refused(again);
    }
    Permit::Granted { decision, by, input: Some(input), seen, under, shows }
}

/// A decision after a hook has spoken.
fn with_hook(decision: Decision, hook: Option<HookPermission>, name: &str) -> Decision {
    match (decision.verdict, hook) {
        (Verdict::Deny, _) | (_, None) | (Verdict::Allow, Some(HookPermission::Allow { .. })) => decision,
        (_, Some(HookPermission::Deny { reason })) => {
            let reason = format!("PreToolUse:{name} hook error: {reason}");
            Decision { verdict: Verdict::Deny, reason, rule: None, profile: None }
        }
        (_, Some(HookPermission::Ask { reason })) => {
            let reason = reason.unwrap_or_else(|| "a hook wants a person to decide".to_owned());
            Decision { verdict: Verdict::Ask, reason, rule: None, profile: None }
        }
        (Verdict::Ask, Some(HookPermission::Allow { reason })) => {
            let reason = reason.unwrap_or_else(|| "a hook allows it".to_owned());
            Decision { verdict: Verdict::Allow, reason, rule: None, profile: None }
        }
    }
}

/// What may be done in the session now.
fn now(bench: &Bench<'_>) -> Rights {
    bench.run.rights.borrow().clone()
}

/// Where rules count from, for a call that happens here.
fn around(bench: &Bench<'_>, root: &Utf8Path) -> Around {
    rules::around(&bench.around, root, &bench.spec, &bench.run.equipment.user_files)
}

/// What the run may do now: the session's rights, less what the definitions on the way to it take away.
fn policy(bench: &Bench<'_>, rights: &Rights) -> Policy {
    let mut around = around(bench, &root(bench));
    // Also what was taken away since the call was prepared; where it works a run stays.
    around.directories = rights.left_of(&around.directories);
    let run = bench.run;
    let mode = child::mode((rights.mode, rights.undecided), &run.lineage.modes, rights.trusted).value;
    let bounds = bounds::rules(&bench.spec.definition.sandbox);
    let rules = rights.rules_for(&run.lineage.path, &[&bench.spec.own_rules, &bench.follows, &bounds]);
    let policy = Policy::new(mode, rules, around);
    let undecided = child::undecided(rights.undecided, &bench.run.lineage.modes);
    let walls = bench.run.equipment.sandbox.as_ref().map_or(Walls::Absent, |maker| maker.walls());
    // What the settings exempt is not exempt from what a definition takes away.
    let maker = bench.run.equipment.sandbox.as_ref().filter(|_| bench.spec.definition.sandbox.is_empty());
    let excluded = maker.map(|maker| maker.excluded()).unwrap_or_default();
    Policy { undecided, walls, excluded, ..policy }
}

/// What a call that was allowed may do.
struct Leave {
    policy: Policy,
    /// What was decided about, with the paths that the named ones led to then.
    seen: Box<Intent>,
    /// Paths outside of the working directories that a command may write, because its text names them and the answer to
    /// a question, or a rule, allows that.
    opens: Vec<NamedWrite>,
    /// Private files that a command may read: someone said yes to a question that named them.
    shows: Vec<Utf8PathBuf>,
}

impl Leave {
    fn new(
        bench: &Bench<'_>,
        under: &Rights,
        seen: Box<Intent>,
        by: DecidedBy,
        shows: Vec<Utf8PathBuf>,
    ) -> Self {
        let policy = policy(bench, under);
        let answered = matches!(by, DecidedBy::Person | DecidedBy::Host | DecidedBy::Tool);
        let opens = named_writes(&policy, &seen, answered);
        Self { policy, seen, opens, shows }
    }

    /// For files that the call opens itself.
    fn rules(&self, bench: &Bench<'_>) -> OpenRules {
        let rules = OpenRules::new(self.policy.clone(), (*self.seen).clone());
        rules.confined(Confinement::of(&bench.spec))
    }
}

/// What the run may not be told of files, by the rules now.
pub fn withheld(bench: &Bench<'_>) -> Withheld {
    let rules = policy(bench, &bench.run.rights.borrow()).rules;
    let (root, around) = (&bench.run.root, &bench.around);
    Withheld::new(&rules, root, &around.cwd, bench.spec.worktree.as_deref(), around.home.as_deref())
}

/// Where rules count from: for a run in a checkout of its own, the folder there that the session's own is.
fn root(bench: &Bench<'_>) -> Utf8PathBuf {
    let root = &bench.run.root;
    Confinement::of(&bench.spec).and_then(|bounds| bounds.translated(root)).unwrap_or_else(|| root.clone())
}

/// The decision under every grant from the root to the run: the one that allows least holds.
fn decide_under_grants(
    bench: &Bench<'_>,
    policy: &Policy,
    name: &str,
    input: &Value,
    seen: &Intent,
) -> Decision {
    let bounds = Confinement::of(&bench.spec);
    if let Some(reason) = bounds.as_ref().and_then(|bounds| bounds.refuses(seen, place)) {
        return Decision { verdict: Verdict::Deny, reason, rule: None, profile: None };
    }
    let fetched = seen.host.as_deref().filter(|_| name == "WebFetch");
    if let Some(reason) = fetched.and_then(|host| bounds::refuses_fetch(&bench.spec, host, None)) {
        return Decision { verdict: Verdict::Deny, reason, rule: None, profile: None };
    }
    for grant in bench.run.lineage.grants.iter() {
        let decision = decide(&Policy { grant: grant.clone(), ..policy.clone() }, name, input, seen);
        if decision.verdict == Verdict::Deny {
            return by_definition(decision, &bench.spec);
        }
    }
    by_definition(decide(policy, name, input, seen), &bench.spec)
}

/// A decision that names the agent's definition where that is what denies.
fn by_definition(decision: Decision, spec: &RunSpec) -> Decision {
    let rule = decision.rule.as_deref().filter(|_| decision.verdict == Verdict::Deny);
    match rule.and_then(|rule| bounds::denial(spec, rule, &decision.reason)) {
        Some(reason) => Decision { reason, ..decision },
        None => decision,
    }
}

/// Asks about a command that is part of another call, as if it were a call of its own. Gives the rules it runs
/// under and its input, which a hook or a person may have changed; the error is why it does not run.
pub async fn inline_permit(
    bench: &Bench<'_>,
    call: Call,
    tool: &Arc<dyn Tool>,
) -> Result<(OpenRules, Value, Option<Confined>), String> {
    let intent = tool.intent(&call.input, &bench.around).map_err(|error| error.to_string())?;
    let ready = Ready { call, tool: Arc::clone(tool), intent };
    let name = tool.spec().name.clone();
    let (mut ready, said) =
        before(bench, ready, &name).await.map_err(|answered| answered.1.content.text().clone())?;
    if let Some(reason) = said.stopped {
        return Err(reason);
    }
    let permit = permit(bench, &ready, &name, said.permission).await.map_err(|lost| lost.to_string())?;
    let permit = decide_again(bench, &mut ready, &name, permit).await;
    let recorded = permit.record(bench, &ready.call.id, &name, &ready.intent).await;
    recorded.map_err(|lost| lost.to_string())?;
    match permit {
        Permit::Granted { decision, by, input, seen, under, shows } => {
            let leave = Leave::new(bench, &under, seen, by, shows);
            let confined = leave.confined(bench, &ready.call, decision.profile).await?;
            Ok((leave.rules(bench), input.unwrap_or(ready.call.input), confined))
        }
        Permit::Refused { decision, .. } => Err(decision.reason),
        Permit::Answered(output) => Err(output.content.text()),
    }
}

/// The same for a call that nobody is asked about: what would be asked about is refused.
pub async fn unasked_permit(
    bench: &Bench<'_>,
    call: Call,
    tool: &Arc<dyn Tool>,
) -> Result<(OpenRules, Value), String> {
    let intent = tool.intent(&call.input, &bench.around).map_err(|error| error.to_string())?;
    let name = tool.spec().name.clone();
    let ready = Ready { call, tool: Arc::clone(tool), intent };
    let (ready, said) =
        before(bench, ready, &name).await.map_err(|answered| answered.1.content.text().clone())?;
    if let Some(reason) = said.stopped {
        return Err(reason);
    }
    let under = now(bench);
    let seen = Box::new(seen_by_rules(bench, &name, &ready.call.input, &ready.intent).await);
    let policy = policy(bench, &under);
    let ruled = decide_under_grants(bench, &policy, &name, &ready.call.input, &seen);
    let mut decision = with_hook(ruled.clone(), said.permission, &name);
    let mut by = decided_by(&decision, &ruled);
    if decision.verdict == Verdict::Ask {
        (decision.verdict, by) = (Verdict::Deny, DecidedBy::Nobody);
    }
    let recorded = audit::record(bench, &ready.call.id, &name, &ready.intent, (&decision, by)).await;
    recorded.map_err(|lost| lost.to_string())?;
    if decision.verdict != Verdict::Allow {
        return Err(decision.reason);
    }
    Ok((Leave::new(bench, &under, seen, by, Vec::new()).rules(bench), ready.call.input))
}

/// The decision that an agent of this type may not be started here, if a rule says so.
pub fn denied_agent(bench: &Bench<'_>, kind: &str) -> Option<Decision> {
    let mut intent = Intent::titled("");
    intent.agent = Some(kind.to_owned());
    let policy = policy(bench, &bench.run.rights.borrow());
    let decision = decide_under_grants(bench, &policy, "Agent", &Value::Null, &intent);
    Some(decision).filter(|decision| decision.verdict == Verdict::Deny)
}

/// What rules are asked about: the call with the places that its paths lead to, and with the type of the agent that it
/// continues.
async fn seen_by_rules(bench: &Bench<'_>, name: &str, input: &Value, intent: &Intent) -> Intent {
    let mut intent = looked_at(bench, intent).await;
    if let Some(kind) = continued_type(bench, name, input).await {
        intent.agent = Some(kind);
    }
    intent
}

/// The type of the earlier agent that a call starts again: by `resume`, or by a message to one that has ended.
async fn continued_type(bench: &Bench<'_>, name: &str, input: &Value) -> Option<String> {
    let text = |key: &str| input.get(key).and_then(Value::as_str);
    let (named, by_message) = match name {
        "Agent" => (text("resume")?, false),
        "SendMessage" => (text("to")?, true),
        _ => return None,
    };
    let task = named.parse::<AgentId>().ok()?.into();
    let looked = bench.run.session.look(task).await??;
    let ended = matches!(looked.view.borrow().state, TaskState::Ended(_) | TaskState::Idle);
    looked.record.agent_type.filter(|_| ended || !by_message)
}

/// The rules see the paths as named and as what they lead to, and what git would find where it is called.
async fn looked_at(bench: &Bench<'_>, intent: &Intent) -> Intent {
    let trusted = bench.run.rights.borrow().trusted;
    let trusted = trusted.then(|| bench.run.root.clone());
    look_at_disk(intent.clone(), bench.around.cwd.clone(), trusted).await
}

/// Where a path leads. One that does not exist yet leads where the nearest folder above it does.
fn place(path: &Utf8Path) -> Place {
    let real = Symlinks::on_disk().place(path);
    // What is directly below the root and does not exist is no path, most likely.
    let could_be = |folder: &Utf8Path| folder != "/" && folder.exists();
    let there = path.exists() || path.parent().is_some_and(could_be);
    Place { path: real, there }
}

/// What made a call one that is asked about where no hook did, and the path that is beyond its directories.
fn why_asked(decision: &Decision, seen: &Intent, around: &Around) -> (AskedBy, Option<Utf8PathBuf>) {
    if decision.rule.is_some() {
        return (AskedBy::Rule, None);
    }
    let beyond = seen.touches.iter().find(|touch| !is_inside(&touch.path, around));
    match beyond {
        Some(touch) => (AskedBy::WorkingDir, Some(touch.path.clone())),
        None => (AskedBy::Other, None),
    }
}

/// Rules that together would let this call go ahead unasked; none where no rule that is offered would.
fn would_do(bench: &Bench<'_>, ready: &Ready, name: &str, seen: &Intent) -> Vec<Rule> {
    let input = &ready.call.input;
    let offered = suggest(name, input, seen, &around(bench, &bench.run.root));
    let policy = policy(bench, &now(bench));
    let mut rules = (*policy.rules).clone();
    rules.allow.extend(offered.iter().cloned());
    let then = decide_under_grants(bench, &Policy { rules: rules.into(), ..policy }, name, input, seen);
    if then.verdict == Verdict::Allow { offered } else { Vec::new() }
}

/// Why a call is asked about.
struct Why {
    asked_by: AskedBy,
    /// The path that is beyond its directories.
    blocked: Option<Utf8PathBuf>,
    /// Whether the answer is for this call alone.
    once: bool,
    /// Private files that the question names, and that a Yes shows to the command.
    shows: Vec<Utf8PathBuf>,
    /// What it would change in a file.
    patch: Option<Value>,
}

async fn ask(
    bench: &Bench<'_>,
    ready: &Ready,
    name: &str,
    decision: Decision,
    seen: Box<Intent>,
    Why { asked_by, blocked, once, shows, patch }: Why,
) -> Result<Permit, JournalLost> {
    let question = Question {
        id: QuestionId(uuid::Uuid::new_v4()),
        agent: bench.spec.agent.clone(),
        path: bench.run.lineage.path.split('/').map(str::to_owned).collect(),
        call: ready.call.id.clone(),
        tool: name.to_owned(),
        input: ready.call.input.clone(),
        intent: ready.intent.clone(),
        reason: decision.reason.clone(),
        asked_by,
        blocked,
        // That a command runs without a sandbox is never a rule.
        suggestions: match decision.profile {
            Some(Profile::Outside) => Vec::new(),
            _ if once => Vec::new(),
            _ => would_do(bench, ready, name, &seen),
        },
        // The session knows, when it takes the question on.
        behind: false,
        patch,
        elicitation: None,
    };
    let waiting = WaitReason::Permission { question: question.id };
    bench.run.waits(Some(waiting));
    let (heard, words) = if let Some(tool) = &bench.run.permission_tool {
        let (answer, changes) = answered_by(bench, ready, tool, &question).await;
        complain(bench, tool, changes.problems).await?;
        // What its answer takes away is for later calls.
        let under = now(bench);
        change_rights(bench, tool, changes.updates).await?;
        (Some(Heard { answer, under, by: DecidedBy::Tool }), format!("answered by {tool}"))
    } else {
        // What a hook wants a person to decide, no rule decides.
        let rules_may_settle = asked_by != AskedBy::Hook && !once && seen.doubt.is_none();
        let call = rules_may_settle.then_some((ready, &*seen));
        match answered(bench, name, question, call).await {
            Replied::Person(heard) => (heard, "answered".to_owned()),
            Replied::Rules(permit) => {
                bench.run.waits(None);
                return Ok(permit);
            }
        }
    };
    bench.run.waits(None);
    let by = heard.as_ref().map_or(DecidedBy::Nobody, |heard| heard.by);
    Ok(match heard.map(|heard| (heard.answer, heard.under)) {
        Some((Answer::Allow { input, .. }, under)) => {
            // What a person changed is taken as it is now.
            let changed = input.as_ref().and_then(|input| ready.tool.intent(input, &bench.around).ok());
            let given = input.as_ref().unwrap_or(&ready.call.input);
            let intent = changed.as_ref().unwrap_or(&ready.intent);
            let now = Box::new(seen_by_rules(bench, name, given, intent).await);
            // An answer may take days; a command goes by its links when it runs, not when it was asked about. That an
            // agent which it writes to ended meanwhile is no such change.
            let same = Intent { agent: seen.agent.clone(), ..(*now).clone() } == *seen;
            if changed.is_none() && !same {
                let reason = "a link that it goes by was changed since it was asked about".to_owned();
                let decision = Decision { verdict: Verdict::Deny, reason, rule: None, profile: None };
                let by = DecidedBy::Policy;
                return Ok(Permit::Refused { decision, by, unanswerable: false, interrupt: false });
            }
            let decision =
                Decision { verdict: Verdict::Allow, reason: format!("{words}: allow"), ..decision };
            // Another call was not asked about.
            let shows = if *given == ready.call.input { shows } else { Vec::new() };
            Permit::Granted { decision, by, input, seen: now, under: Box::new(under), shows }
        }
        Some((Answer::Deny { message, interrupt }, _)) => Permit::Refused {
            decision: Decision {
                verdict: Verdict::Deny,
                reason: refusal_reason(message),
                rule: None,
                profile: None,
            },
            by,
            unanswerable: false,
            interrupt,
        },
        // The session's task takes no answer to a server for an answer about a call.
        Some((Answer::Elicited(_), _)) | None => Permit::Refused {
            decision: Decision {
                verdict: Verdict::Deny,
                reason: format!("{}; the host disconnected before it answered", decision.reason),
                rule: None,
                profile: None,
            },
            by: DecidedBy::Nobody,
            unanswerable: true,
            interrupt: false,
        },
    })
}

/// Why a call was refused, as the model reads it.
fn refusal_reason(message: String) -> String {
    if message.trim().is_empty() { "the user refused this call".to_owned() } else { message }
}

/// What has ended a question.
enum Replied {
    /// Whoever is attached to the session; none if nobody can answer any more.
    Person(Option<Heard>),
    /// Rules, or a mode, that came to be meanwhile.
    Rules(Permit),
}

/// Asks whoever is attached to the session, until the answer to another question or a change of mode settles it, where
/// rules can settle this call.
async fn answered(
    bench: &Bench<'_>,
    name: &str,
    question: Question,
    call: Option<(&Ready, &Intent)>,
) -> Replied {
    let (answer, mut answered) = oneshot::channel();
    let rights_changed = Arc::new(Notify::new());
    let asked =
        Ask { who: bench.run.who.clone(), question, answer, rights_changed: Arc::clone(&rights_changed) };
    if bench.run.session.ask(Box::new(asked)).await.is_none() {
        return Replied::Person(None);
    }
    hooked(bench).asking(name);
    loop {
        tokio::select! {
            biased;
            heard = &mut answered => return Replied::Person(heard.ok()),
            () = rights_changed.notified() => {}
        }
        let Some((ready, seen)) = call else { continue };
        if let Some(permit) = settled(bench, ready, name, seen).await {
            return Replied::Rules(permit);
        }
    }
}

/// What the rules say now of a call that is asked about, if they say something; the same call as then.
async fn settled(bench: &Bench<'_>, ready: &Ready, name: &str, seen: &Intent) -> Option<Permit> {
    let under = now(bench);
    let again = Box::new(seen_by_rules(bench, name, &ready.call.input, &ready.intent).await);
    if (Intent { agent: seen.agent.clone(), ..(*again).clone() }) != *seen {
        return None;
    }
    let policy = policy(bench, &under);
    let decision = decide_under_grants(bench, &policy, name, &ready.call.input, &again);
    let decision = foreseen(bench, ready, decision, &again, &policy).await.decision;
    let by = decided_by(&decision, &decision);
    match decision.verdict {
        Verdict::Allow => Some(Permit::Granted {
            decision,
            by,
            input: None,
            seen: again,
            under: Box::new(under),
            shows: Vec::new(),
        }),
        Verdict::Deny => Some(Permit::Refused { decision, by, unanswerable: false, interrupt: false }),
        Verdict::Ask => None,
    }
}

/// Has the session change what may be done, as whoever answers in a person's place wants, before the call goes on.
async fn change_rights(
    bench: &Bench<'_>,
    by: &str,
    updates: Vec<PermissionUpdate>,
) -> Result<(), JournalLost> {
    if updates.is_empty() {
        return Ok(());
    }
    match bench.run.session.permit(bench.spec.agent.clone(), updates).await {
        Some(Err(reason)) => complain(bench, by, vec![format!("not obeyed: {reason}")]).await,
        // A session that is gone has no rights to change.
        Some(Ok(())) | None => Ok(()),
    }
}

/// Tells people what is wrong with an answer.
async fn complain(bench: &Bench<'_>, by: &str, problems: Vec<String>) -> Result<(), JournalLost> {
    let notice =
        |problem: String| Event::Notice { level: "warning".to_owned(), text: format!("{by}: {problem}") };
    let notices: Vec<Event> = problems.into_iter().map(notice).collect();
    if !notices.is_empty() {
        bench.run.journal.write(&bench.run.who, notices).await?;
    }
    Ok(())
}

/// The answer of the tool that stands in a person's place, and what is to change with it.
async fn answered_by(bench: &Bench<'_>, ready: &Ready, tool: &str, question: &Question) -> (Answer, Changes) {
    let rules = OpenRules::new(policy(bench, &bench.run.rights.borrow()), ready.intent.clone());
    let (progress, _) = mpsc::channel(1);
    let cx = context(bench, &ready.call, Arc::new(rules), progress);
    permission_tool::answer(&bench.run.servers, tool, question, &cx).await
}

async fn refuse(
    bench: &Bench<'_>,
    ready: Ready,
    tool: String,
    decision: Decision,
    unanswerable: bool,
    interrupt: bool,
) -> Result<Finished, JournalLost> {
    if bench.run.hooks.wait_for(HookEvent::PermissionDenied) {
        let about = about(bench, &ready.call, &tool, &ready.intent);
        hooked(bench).after_refusal(&about, &decision.reason).await;
    }
    let Ready { call, intent, .. } = ready;
    let mut output = ToolOutput::error(person_tools::refusal(&tool, &decision.reason));
    name_own_temporary(bench, &tool, &intent, &mut output).await;
    let unasked = unanswerable.then(|| decision.reason.clone());
    let refused = Event::CallRefused {
        call: call.id.clone(),
        tool: tool.clone(),
        input: call.input.clone(),
        decision,
        unanswerable,
    };
    let denial = Denial { tool, call: call.id.clone(), input: call.input.clone() };
    let mut finished = end(bench, &call, output, 0, vec![refused]).await?;
    finished.denial = Some((denial, unasked));
    finished.interrupt = interrupt;
    if interrupt {
        // A session that is gone has nothing to stop.
        let _ = bench.run.session.halt(bench.run.who.agent.clone()).await;
    }
    Ok(finished)
}

async fn run(
    bench: &Bench<'_>,
    ready: Ready,
    tool: String,
    decision: Decision,
    changed: Option<Value>,
    leave: Leave,
) -> Result<Finished, JournalLost> {
    let profile = decision.profile;
    let rules = leave.rules(bench);
    let Ready { mut call, tool: implementation, intent } = ready;
    let started = Event::CallStarted {
        call: call.id.clone(),
        tool: tool.clone(),
        intent: Box::new(intent.clone()),
        decision,
        input: changed.clone(),
    };
    let rules: Arc<dyn PathRules> = Arc::new(rules);
    let mut beginning = checkpoint::before(bench, &call.id, &tool, &intent, &rules).await;
    beginning.push(started);
    // Before it is on record: whoever stops the run in between must not say that it was not begun.
    bench.run.begins(&call.id);
    // Whoever sees that it runs can send it to the background, though it starts in a moment.
    let shells = &bench.run.shells;
    let is_waited_for = matches!(tool.as_str(), "Bash" | "Agent");
    let _expected = is_waited_for.then(|| shells.expect(bench.spec.agent.clone(), &call.id));
    let mut events = bench.run.journal.write(&bench.run.who, beginning).await?;
    let called = std::mem::replace(&mut call.name, tool);
    let input = changed.unwrap_or_else(|| call.input.clone());
    let began = bench.run.clock.elapsed();
    let work = Work { call, called, tool: implementation, input, rules };
    let output = Box::pin(sandboxed(bench, &work, &leave, profile)).await?;
    let Work { call, .. } = work;
    let took = bench.run.clock.elapsed().saturating_sub(began);
    let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let mut output = clean(&bench.run.equipment.redact, output);
    name_own_temporary(bench, &call.name, &intent, &mut output).await;
    let result = after(bench, &call, &intent, &mut output, took).await;
    let mut finished = end(bench, &call, output, took, Vec::new()).await?;
    events.append(&mut finished.events);
    Ok(Finished { events, notes: result.0, stopped: result.1, ..finished })
}

/// Adds to what a model reads of a file tool that commands have a folder of their own for temporary files, where the tool
/// named a path in it.
async fn name_own_temporary(bench: &Bench<'_>, tool: &str, intent: &Intent, output: &mut ToolOutput) {
    const FILE_TOOLS: [&str; 6] = ["Read", "Edit", "Write", "Grep", "Glob", "NotebookEdit"];
    let Some(maker) = bench.run.equipment.sandbox.clone().filter(|_| FILE_TOOLS.contains(&tool)) else {
        return;
    };
    let around = around(bench, &root(bench));
    let outside = intent.touches.iter().map(|touch| &touch.path).filter(|path| !is_inside(path, &around));
    let paths: Vec<Utf8PathBuf> = outside.cloned().collect();
    let (fails, writes) = (output.is_error, tool == "Write");
    let look = move || {
        let named = paths.iter().find(|path| hints::is_temporary(path))?;
        if writes && !fails {
            let private = maker.temporary().ok()?;
            let shared = maker.settings().writable.iter().map(Utf8PathBuf::as_path).chain([private]);
            return (!shared.into_iter().any(|folder| named.starts_with(folder))).then(|| {
                format!("Commands have a /tmp of their own and do not see this file. What both see is in {private}.")
            });
        }
        let file = hints::own_temporary(named, maker.made_temporary()?).filter(|_| fails)?;
        Some(format!("Commands have a /tmp of their own: what they call {named} is {file} for this tool."))
    };
    if let Ok(Some(hint)) = tokio::task::spawn_blocking(look).await {
        output.content = ToolContent::Text(format!("{}\n[{hint}]", output.content.text()));
    }
}

/// Lets the hooks look at what came of a call. Gives what they tell the model, and why the run ends, if it
/// does.
async fn after(
    bench: &Bench<'_>,
    call: &Call,
    intent: &Intent,
    output: &mut ToolOutput,
    took: u64,
) -> (Vec<String>, Option<String>) {
    let event = if output.is_error { HookEvent::PostToolUseFailure } else { HookEvent::PostToolUse };
    if !bench.run.hooks.wait_for(event) {
        return (Vec::new(), None);
    }
    let about = about(bench, call, &call.name, intent);
    let result = hooked(bench).after_call(&about, output, took).await;
    match result.updated_output {
        Some(Value::String(text)) => output.content = ToolContent::Text(text),
        Some(other) => output.content = ToolContent::Text(other.to_string()),
        None => {}
    }
    let blocked = result
        .block
        .map(|reason| format!("PostToolUse:{} hook blocking error from command: {reason}", call.name));
    (blocked.into_iter().chain(result.additional_context).collect(), result.stop)
}

/// A call that is begun.
struct Work {
    call: Call,
    /// The name it was called by.
    called: String,
    tool: Arc<dyn Tool>,
    input: Value,
    rules: Arc<dyn PathRules>,
}

impl Work {
    /// The same as it was asked about.
    fn ready(&self, seen: &Intent) -> Ready {
        let call = Call { input: self.input.clone(), ..self.call.clone() };
        Ready { call, tool: Arc::clone(&self.tool), intent: seen.clone() }
    }

    /// Runs the tool, showing what it says meanwhile. A tool that panics has failed; nothing else has.
    async fn run(&self, bench: &Bench<'_>, confined: Option<&Confined>) -> ToolOutput {
        let Self { call, tool, input, .. } = self;
        let (progress, mut said) = mpsc::channel(16);
        let cx = context(bench, call, Arc::clone(&self.rules), progress);
        let cx = Confined::around(confined, ToolContext { called: self.called.clone(), ..cx });
        let mut running = std::pin::pin!(async {
            if tool.spec().name == "Bash" {
                return shell::run(bench, call, Arc::clone(tool), cx, input.clone()).await;
            }
            if tool.spec().name == skill::NAME {
                let output = AssertUnwindSafe(skill::run(bench, call, &cx, input)).catch_unwind().await;
                return output.unwrap_or_else(|_| panicked(&call.name));
            }
            let output = AssertUnwindSafe(tool.run(&cx, input.clone())).catch_unwind().await;
            output.unwrap_or_else(|_| panicked(&call.name))
        });
        loop {
            tokio::select! {
                biased;
                output = &mut running => return output,
                Some(text) = said.recv() => {
                    let event = Event::CallProgress { call: call.id.clone(), text };
                    bench.run.journal.publish(&bench.run.who, event);
                }
            }
        }
    }
}

/// What a tool is given for one call.
pub fn context(
    bench: &Bench<'_>,
    call: &Call,
    rules: Arc<dyn PathRules>,
    progress: mpsc::Sender<String>,
) -> ToolContext {
    let equipment = &bench.run.equipment;
    ToolContext {
        run: bench.spec.run,
        call: call.id.clone(),
        called: String::new(),
        around: bench.around.clone(),
        cancel: bench.run.cancel.child_token(),
        progress,
        seen: Arc::clone(&bench.seen),
        spill: Arc::clone(&equipment.spill),
        rules,
        processes: equipment.processes.clone(),
        sandbox: None,
        printed: Arc::default(),
        held: None,
        environment: environment(&equipment.environment, bench.spec.worktree.as_deref()),
        limits: Arc::clone(&equipment.limits),
        http: if call.name == "WebFetch" {
            equipment
                .http
                .clone()
                .through(Arc::new(Fetching::new(connecting(bench, call), &equipment.denied_hosts)))
        } else {
            equipment.http.clone()
        },
        detached: tokio::sync::watch::channel(false).1,
        elicit: mcp::is_servers(&call.name).then(|| Arc::new(Elicitor::new(bench, call)) as Arc<dyn Elicit>),
        host: Some(Arc::new(CallingRun {
            run: bench.run.clone(),
            prefix: bench.prefix.clone(),
            follows: bench.follows.clone(),
        })),
    }
}

/// The environment of commands. In a checkout of its own git does not look further up: without its `.git` the
/// checkout would be taken for a part of whatever repository is above it.
pub(crate) fn environment(
    usual: &Arc<[(OsString, OsString)]>,
    worktree: Option<&Worktree>,
) -> Arc<[(OsString, OsString)]> {
    let Some(above) = worktree.and_then(|worktree| worktree.path.parent()) else {
        return Arc::clone(usual);
    };
    let ceiling = ("GIT_CEILING_DIRECTORIES".into(), above.as_str().into());
    usual.iter().filter(|(name, _)| *name != "GIT_CEILING_DIRECTORIES").cloned().chain([ceiling]).collect()
}

/// Takes secrets out of what goes into the conversation and the transcript.
pub(crate) fn clean(redact: &crate::ports::Redact, mut output: ToolOutput) -> ToolOutput {
    match &mut output.content {
        ToolContent::Text(text) => clean_text(redact, text),
        ToolContent::Blocks(blocks) => {
            for block in blocks {
                if let decurion_protocol::Block::Text { text } = block {
                    clean_text(redact, text);
                }
            }
        }
    }
    if let Some(structured) = &mut output.structured {
        clean_value(redact, structured);
    }
    output
}

fn clean_value(redact: &crate::ports::Redact, value: &mut Value) {
    match value {
        Value::String(text) => clean_text(redact, text),
        Value::Array(items) => items.iter_mut().for_each(|item| clean_value(redact, item)),
        Value::Object(members) => members.values_mut().for_each(|member| clean_value(redact, member)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn clean_text(redact: &crate::ports::Redact, text: &mut String) {
    if let Some(clean) = redact(text) {
        *text = clean;
    }
}

/// Puts the result on record.
async fn end(
    bench: &Bench<'_>,
    call: &Call,
    output: ToolOutput,
    duration_ms: u64,
    mut before: Vec<Event>,
) -> Result<Finished, JournalLost> {
    before.push(Event::CallEnded {
        call: call.id.clone(),
        tool: call.name.clone(),
        line: new_line(),
        parent: call.line,
        output: Box::new(output),
        duration_ms,
    });
    let events = bench.run.journal.write(&bench.run.who, before).await?;
    Ok(Finished { events, denial: None, interrupt: false, notes: Vec::new(), stopped: None })
}

/// The call in whose name connections are made.
fn connecting(bench: &Bench<'_>, call: &Call) -> Connecting {
    let run = bench.run;
    Connecting {
        spec: Arc::clone(&bench.spec),
        call: call.id.clone(),
        who: run.who.clone(),
        path: run.lineage.path.clone(),
        modes: Arc::clone(&run.lineage.modes),
        journal: run.journal.clone(),
        rights: run.rights.clone(),
        witness: Witness::new(bench),
        person: Arc::new(run.clone()),
    }
}

#[cfg(test)]
mod tests {
    use decurion_protocol::{Access, Touch};

    use super::*;

    #[test]
    fn a_question_names_the_first_path_beyond_the_directories_of_the_run() {
        let around = Around { cwd: "/project".into(), root: "/project".into(), ..Around::default() };
        let touching = |paths: &[&str]| {
            let touch = |path: &&str| Touch { path: (*path).into(), access: Access::Write };
            Intent { touches: paths.iter().map(touch).collect(), ..Intent::titled("t") }
        };
        let decision = |rule: Option<&str>| Decision {
            verdict: Verdict::Ask,
            rule: rule.map(str::to_owned),
            reason: String::new(),
            profile: None,
        };
        for (rule, paths, expected) in [
            (None, &["/project/a", "/etc/b", "/c"][..], (AskedBy::WorkingDir, Some("/etc/b"))),
            (None, &["/project/a"], (AskedBy::Other, None)),
            (Some("Write"), &["/etc/b"], (AskedBy::Rule, None)),
        ] {
            let (by, path) = why_asked(&decision(rule), &touching(paths), &around);
            assert_eq!((by, path.as_deref().map(Utf8Path::as_str)), expected);
        }
    }
}
