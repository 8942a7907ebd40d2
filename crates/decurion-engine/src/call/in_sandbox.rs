//! A command in its sandbox, part of room 7. Takes a call that may run, and what was decided about it. Gives what the
//! model reads of it: what came of the command, what the sandbox kept it from, and, where a person allows more because
//! of that, what came of running it again.

use std::ffi::OsString;
use std::sync::Arc;

use decurion_exec::new_file::NewFile;
use decurion_exec::{Form, Sandbox};
use decurion_protocol::{AskedBy, Decision, Event, Mode, Profile, ToolContent, ToolOutput, Verdict};
use decurion_tools::ToolContext;
use serde_json::Value;

use super::foreseen::may_leave;
use super::{Bench, Call, Leave, Permit, Why, Work, ask, now};
use crate::audit;
use crate::bounds;
use crate::egress::Pass;
use crate::journal::JournalLost;
use crate::sandbox::{Compiled, Fixed, Refusal, RefusalKind, RefusedHost, Remedy, Wanted, hints, may_tell};

/// Runs a call in its sandbox. A command that the sandbox kept from something says so.
pub(super) async fn sandboxed(
    bench: &Bench<'_>,
    work: &Work,
    leave: &Leave,
    profile: Option<Profile>,
) -> Result<ToolOutput, JournalLost> {
    let (mut output, refused) = confined_run(bench, work, leave, profile).await?;
    let Some((refusal, remedy)) = refused else { return Ok(output) };
    // What ended well needs nothing more: it is only told.
    let remedy = remedy.filter(|remedy| output.is_error && may_ask(bench, leave, profile, *remedy));
    if let Some(remedy) = remedy {
        let reads = profile == Some(Profile::ReadOnly);
        return widened(bench, work, leave, (remedy, reads), (refusal, output)).await;
    }
    refusal.explain(&mut output, None);
    Ok(output)
}

/// Runs a call in the sandbox of this profile. Gives what the sandbox kept it from, which is on record.
async fn confined_run(
    bench: &Bench<'_>,
    work: &Work,
    leave: &Leave,
    profile: Option<Profile>,
) -> Result<(ToolOutput, Option<(Refusal, Option<Remedy>)>), JournalLost> {
    let made = new_files(bench, leave, profile).await;
    let mut confined = match leave.confined(bench, &work.call, profile).await {
        Ok(confined) => confined,
        Err(reason) => return Ok((not_started(&reason), None)),
    };
    if let Some(confined) = confined.as_mut().filter(|confined| confined.sandbox.is_some()) {
        confined.made = made;
    }
    let mut output = work.run(bench, confined.as_ref()).await;
    let Some(mut confined) = confined else { return Ok((output, None)) };
    remove_unwritten(std::mem::take(&mut confined.made)).await;
    tidy(bench, leave, &mut output).await;
    confined.explain_failures(&mut output);
    let Findings { hints, refused } = confined.look(bench, work, &output, leave, profile).await;
    for hint in hints {
        output.content = ToolContent::Text(format!("{}\n[{hint}]", output.content.text()));
    }
    // What a command that ended well printed proves nothing about itself.
    let stopped = refused.as_ref().map(|(refusal, _)| refusal).filter(|_| output.is_error);
    confined.tell(bench, stopped).await?;
    if let Some(refusal) = stopped.filter(|_| bench.run.audit.is_kept()) {
        audit::record_refusal(bench, &leave.seen.title, refusal).await?;
    }
    Ok((output, refused))
}

/// Makes the files that the command may write, that its text plainly makes and that do not exist yet.
async fn new_files(bench: &Bench<'_>, leave: &Leave, profile: Option<Profile>) -> Made {
    let maker = bench.run.equipment.sandbox.clone();
    let Some(maker) = maker.filter(|_| profile.is_none() && !leave.opens.is_empty()) else {
        return Made::default();
    };
    let (opens, policy, seen) = (leave.opens.clone(), leave.policy.clone(), leave.seen.clone());
    let make = move || maker.make_named_files(&opens, &policy, &seen);
    Arc::new(tokio::task::spawn_blocking(make).await.unwrap_or_default())
}

/// Removes those that the command has not written, beside the runtime. A command in the background has them longer.
async fn remove_unwritten(made: Made) {
    if !made.is_empty() {
        // The files are removed when the last one who knows of them lets go.
        let _ = tokio::task::spawn_blocking(move || drop(made)).await;
    }
}

fn not_started(reason: &str) -> ToolOutput {
    ToolOutput::error(format!("the command was not started: {reason}"))
}

/// Whether a person can be asked to let a command do more than its sandbox does.
fn may_ask(bench: &Bench<'_>, leave: &Leave, profile: Option<Profile>, remedy: Remedy) -> bool {
    let mode = leave.policy.mode;
    if bench.run.cancel.is_cancelled() {
        return false;
    }
    if remedy == Remedy::Outside {
        return may_leave(bench, mode);
    }
    // What only reads had no effect. Anything else has run, perhaps with effects, and only a person says whether it runs
    // again.
    let stand_in = bench.run.permission_tool.is_some();
    let answered = match profile {
        Some(Profile::ReadOnly) => now(bench).answers || stand_in,
        _ => now(bench).answers && !stand_in,
    };
    answered && !matches!(mode, Mode::Plan | Mode::DontAsk | Mode::BypassPermissions)
}

/// Undoes what the kernel could not stop, and says what of that and of what is lost a model should know, beside the runtime.
async fn tidy(bench: &Bench<'_>, leave: &Leave, output: &mut ToolOutput) {
    let around = &leave.policy.around;
    let Some(maker) = bench.run.equipment.sandbox.clone().filter(|maker| maker.has_to_tidy(around)) else {
        return;
    };
    let (around, seen) = (around.clone(), leave.seen.clone());
    let texts = tokio::task::spawn_blocking(move || maker.tidy(&around, &seen)).await;
    for text in texts.unwrap_or_default() {
        output.content = ToolContent::Text(format!("{}\n[{text}]", output.content.text()));
    }
}

/// Asks a person whether a command, which could perhaps only read, may run again with what it lacked.
async fn widened(
    bench: &Bench<'_>,
    work: &Work,
    leave: &Leave,
    (remedy, reads): (Remedy, bool),
    (refusal, mut output): (Refusal, ToolOutput),
) -> Result<ToolOutput, JournalLost> {
    let wider = (remedy == Remedy::Outside).then_some(Profile::Outside);
    let reason = refusal.question(remedy, reads);
    let decision = Decision { verdict: Verdict::Ask, rule: None, reason, profile: wider };
    let (mut ready, seen) = (work.ready(&leave.seen), leave.seen.clone());
    if wider.is_some() {
        // Whoever answers for a person sees what is asked.
        ready.call.input["dangerouslyDisableSandbox"] = Value::Bool(true);
    }
    let permit = ask(
        bench,
        &ready,
        &work.call.name,
        decision,
        seen,
        Why { asked_by: AskedBy::Other, blocked: None, once: true, shows: Vec::new(), patch: None },
    )
    .await?;
    permit.record(bench, &work.call.id, &work.call.name, &leave.seen).await?;
    let unchanged = |input: &Option<Value>| {
        input.as_ref().is_none_or(|input| *input == work.input || *input == ready.call.input)
    };
    match permit {
        // This question named what was refused, and no secret.
        Permit::Granted { decision, by, input, under, shows, .. } if unchanged(&input) => {
            let leave = Leave::new(bench, &under, leave.seen.clone(), by, shows);
            let text = refusal.notice(remedy);
            let notice = Event::Notice { level: "info".to_owned(), text };
            bench.run.journal.write(&bench.run.who, vec![notice]).await?;
            let (mut output, refused) = confined_run(bench, work, &leave, decision.profile).await?;
            if let Some((refusal, _)) = refused {
                refusal.explain(&mut output, None);
            }
            return Ok(output);
        }
        // What a person would rather have run is another call, which the model may make.
        Permit::Granted { .. } | Permit::Answered(_) => refusal.explain(&mut output, None),
        Permit::Refused { decision, .. } => refusal.explain(&mut output, Some(&decision.reason)),
    }
    Ok(output)
}

impl Leave {
    /// For a command that it starts; none where nothing is kept from it. The error is why it cannot be started.
    pub(super) async fn confined(
        &self,
        bench: &Bench<'_>,
        call: &Call,
        profile: Option<Profile>,
    ) -> Result<Option<Confined>, String> {
        if call.name != "Bash" || self.seen.shell.is_none() {
            return Ok(None);
        }
        let limits = &bench.spec.definition.sandbox;
        let Some(maker) = bench.run.equipment.sandbox.clone() else {
            return bounds::refuses_outside(&bench.spec).map_or(Ok(None), Err);
        };
        let rules = Arc::clone(&self.policy.rules);
        let (policy, seen, opens) = (self.policy.clone(), self.seen.clone(), self.opens.clone());
        let shows = self.shows.clone();
        // What the settings exempt is not exempt from what a definition takes away.
        let environment = Arc::clone(&bench.run.equipment.environment);
        let environment = Some(environment).filter(|_| limits.is_empty());
        let egress = bench.run.equipment.egress.clone();
        let (secrets, may_connect) = (egress.clone(), bounds::may_connect(limits, egress.is_some()));
        // All of it looks at files, and the first one of a session removes what killed sessions have left.
        let compile = move || {
            let compiled = maker.compile(
                &policy,
                profile,
                Wanted { seen: &seen, opens: &opens, shows: &shows },
                environment.as_deref(),
            );
            let Compiled { mut sandbox, environment, .. } = compiled.map_err(|error| error.to_string())?;
            let mut masked = Vec::new();
            if let Some(sandbox) = &mut sandbox {
                sandbox.network &= may_connect;
                let equipped = secrets.map_or(Ok(Vec::new()), |secrets| secrets.equip(sandbox));
                masked = equipped.map_err(|error| format!("cannot prepare masked secrets: {error}"))?;
            }
            Ok::<_, String>((sandbox, [masked, environment].concat()))
        };
        let compiled = tokio::task::spawn_blocking(compile).await.map_err(|error| error.to_string())?;
        let (sandbox, variables) = compiled?;
        let Some(sandbox) = sandbox else {
            if let Some(reason) = bounds::refuses_outside(&bench.spec) {
                return Err(reason);
            }
            audit::record_unsandboxed(bench, &call.id, &self.seen.title, profile);
            return Ok(Some(Confined { sandbox: None, pass: None, variables, made: Made::default() }));
        };
        let egress = egress.filter(|_| sandbox.network);
        let pass = egress.map(|egress| egress.admit(super::connecting(bench, call), &rules)).transpose();
        let pass = pass.map_err(|error| format!("it cannot be given a way to the network: {error}"))?;
        let (sandbox, pass) = (Some(Arc::new(sandbox)), pass.map(Arc::new));
        Ok(Some(Confined { sandbox, pass, variables, made: Made::default() }))
    }
}

/// How one command is run.
#[derive(Clone)]
pub struct Confined {
    /// None where it runs without one.
    sandbox: Option<Arc<Sandbox>>,
    pass: Option<Arc<Pass>>,
    /// Masked secrets and what makes them work, and where programs are looked for that have more rights.
    variables: Vec<(OsString, OsString)>,
    /// Files that it can write and that did not exist.
    made: Made,
}

/// Files that go with the last one who has them, unless they were written.
type Made = Arc<Vec<NewFile>>;

impl Confined {
    /// The same call with its command in the sandbox.
    pub fn around(this: Option<&Self>, cx: ToolContext) -> ToolContext {
        let Some(Self { sandbox, pass, variables, made }) = this else { return cx };
        let mut environment = cx.environment.to_vec();
        let own = variables.iter().cloned().chain(pass.iter().flat_map(|pass| pass.environment()));
        for (name, value) in own {
            environment.retain(|(known, _)| *known != name);
            environment.push((name, value));
        }
        let held: Arc<dyn std::any::Any + Send + Sync> = Arc::new((pass.clone(), Arc::clone(made)));
        let held = (pass.is_some() || !made.is_empty()).then_some(held);
        ToolContext { sandbox: sandbox.clone(), held, environment: environment.into(), ..cx }
    }

    /// Adds to what a model reads which hosts could not be reached, and that no rule is the reason. A command that ended
    /// well may have lost it, as in `curl … | head`.
    fn explain_failures(&self, output: &mut ToolOutput) {
        let failed = self.failed();
        if !failed.is_empty() {
            let (said, failed) = (output.content.text(), failed.join("; "));
            let text = format!("{said}\n[{failed}. The sandbox lets the command reach the host.]");
            output.content = ToolContent::Text(text);
        }
    }

    /// Tells people what was refused where no question can tell them.
    async fn tell(&self, bench: &Bench<'_>, refusal: Option<&Refusal>) -> Result<(), JournalLost> {
        if now(bench).answers {
            return Ok(());
        }
        let hosts = self.pass.as_ref().map(|pass| pass.refused()).unwrap_or_default();
        let lines = hosts.iter().map(RefusedHost::line).chain(refusal.and_then(Refusal::line));
        let notice = |line| Event::Notice { level: "warning".to_owned(), text: format!("sandbox: {line}") };
        let notices: Vec<Event> = lines.map(notice).collect();
        if !notices.is_empty() {
            bench.run.journal.write(&bench.run.who, notices).await?;
        }
        Ok(())
    }

    /// Why hosts that the command may reach were not reached.
    fn failed(&self) -> Vec<String> {
        self.pass.as_ref().map(|pass| pass.failed()).unwrap_or_default()
    }

    /// Looks at what came of the command, beside the runtime: what it was kept from, if it says so or the proxy does, and
    /// what may have kept it from a service or a folder.
    async fn look(
        &self,
        bench: &Bench<'_>,
        work: &Work,
        output: &ToolOutput,
        leave: &Leave,
        profile: Option<Profile>,
    ) -> Findings {
        let hosts = self.pass.as_ref().map(|pass| pass.refused()).unwrap_or_default();
        let (Some(maker), Some(sandbox)) = (bench.run.equipment.sandbox.clone(), self.sandbox.clone()) else {
            return Findings::default();
        };
        if hosts.is_empty() && !may_tell(output) {
            return Findings::default();
        }
        let failed = !self.failed().is_empty();
        let refused_hosts = !hosts.is_empty();
        let command = work.input.get("command").and_then(Value::as_str).unwrap_or("").to_owned();
        let (output, policy, seen) = (output.clone(), leave.policy.clone(), leave.seen.clone());
        let look = move || {
            let settings = maker.settings();
            let printed = output.content.text();
            let has_own_network =
                sandbox.network && !settings.network_open && settings.form == Form::Namespaces;
            let loopback = has_own_network && output.is_error && !failed;
            let loopback = loopback.then(|| hints::own_loopback(&printed, &command)).flatten();
            let missing = output.is_error.then(|| hints::missing_folder(&printed, &settings.writable));
            let set_id = output.is_error.then(|| hints::set_id_bit(&printed, &command)).flatten();
            let refused = maker.refused(&output, &hosts, &sandbox, (&policy, profile, &seen));
            // Then it is known what was refused.
            let refused = refused.filter(|(refusal, _)| set_id.is_none() || refusal.is_verified());
            let hints = loopback.into_iter().chain(missing.flatten()).chain(set_id).collect();
            Findings { hints, refused }
        };
        let Findings { hints, refused } = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        let refused = refused.and_then(|(refusal, remedy)| {
            let is_failure = refusal.kind == RefusalKind::Network && !refusal.is_verified() && failed;
            (!is_failure).then(|| self.attributed(bench, (refusal, remedy), refused_hosts))
        });
        Findings { hints, refused }
    }

    /// The same refusal with the person or the definition that it is due to.
    fn attributed(
        &self,
        bench: &Bench<'_>,
        (mut refusal, remedy): (Refusal, Option<Remedy>),
        refused_hosts: bool,
    ) -> (Refusal, Option<Remedy>) {
        // A person who refused a host is not asked for everything at once.
        let declined = self.pass.as_ref().filter(|_| refused_hosts).and_then(|pass| pass.declined());
        refusal.fixed = refusal.fixed.or(declined.map(Fixed::Person));
        if refusal.kind == RefusalKind::Network && !refusal.is_verified() {
            let through_proxy = bench.run.equipment.egress.is_some();
            let closed = bounds::closes_network(&bench.spec, through_proxy);
            refusal.fixed = refusal.fixed.or(closed.map(Fixed::Definition));
        }
        let limits = &bench.spec.definition.sandbox;
        if let Some(Fixed::Rule(rule)) = &mut refusal.fixed
            && let Some(key) = bounds::key_of(limits, rule)
        {
            *rule = format!("{rule} ({key} in {})", bounds::source(&bench.spec));
        }
        let remedy = remedy.filter(|_| refusal.fixed.is_none());
        (refusal, remedy)
    }
}

/// What a look at the output of a command found.
#[derive(Default)]
struct Findings {
    /// What may have kept it from a service or a folder, as sentences.
    hints: Vec<String>,
    /// What its sandbox kept it from, and what it would need.
    refused: Option<(Refusal, Option<Remedy>)>,
}
