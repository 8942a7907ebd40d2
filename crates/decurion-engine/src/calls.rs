//! Room 6. Several calls of one message: which may run together, answers in asking order. Takes the calls,
//! gives back what came of them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures_util::future::join_all;

use crate::bench::{Bench, Call};
use crate::call::{Finished, Prepared, not_begun, perform, prepare, stopped};
use crate::context::{Context, Prefix};
use crate::journal::JournalLost;
use crate::run_handle::RunHandle;
use crate::run_hooks::RunHooks;
use crate::skill;
use crate::structured;
use camino::Utf8PathBuf;
use decurion_protocol::{CallId, Denial, Event, HookEvent, ToolEffect};
use decurion_tools::Surroundings;
use serde_json::{Value, json};

/// Why a call behind one that was refused like that is not begun.
const ENDED: &str = "a call before it was refused, and with that the turn was ended.";

/// What came of all calls of a message.
#[derive(Debug, Default)]
pub struct Round {
    /// Calls that were refused, each with the reason where nobody could be asked.
    pub denials: Vec<(Denial, Option<String>)>,
    /// Whether someone wants the turn to end.
    pub interrupt: bool,
    /// What hooks tell the model.
    pub notes: Vec<String>,
    /// Why a hook ends the run, if one does.
    pub stopped: Option<String>,
    /// A number that is the same for rounds with the same results.
    pub results: u64,
    /// The files whose content the run now knows.
    pub saw: Vec<Utf8PathBuf>,
    /// Answers in the shape that was asked for which were taken, each with its input where that was changed.
    pub answered: Vec<(CallId, Option<Value>)>,
    /// Each call and its result, where hooks want to see them.
    seen: Option<Vec<Value>>,
}

/// Answers every call. Calls are split in order into runs of calls that may overlap and calls that run
/// alone; one that runs alone may change the directory, so the next is only then understood.
pub async fn answer(
    run: &RunHandle,
    context: &mut Context,
    calls: Vec<Call>,
    prefix: Option<Arc<Prefix>>,
) -> Result<Round, JournalLost> {
    let bench = |context: &Context| Bench { prefix: prefix.clone(), ..bench(run, context) };
    let hooked = RunHooks { run };
    let mut round = Round::default();
    let mut inputs = Vec::new();
    if run.hooks.wait_for(HookEvent::PostToolBatch) {
        round.seen = Some(Vec::new());
        inputs.extend(calls.iter().map(|call| (call.id.clone(), call.input.clone())));
    }
    let mut together: Vec<Prepared> = Vec::new();
    for call in calls {
        let prepared = prepare(&bench(context), call);
        if prepared.overlaps() {
            together.push(prepared);
            continue;
        }
        flush(&bench(context), context, &mut together, &mut round).await?;
        run.wait_while_paused(&*run.clock).await;
        // What ran before may have moved the shell or changed what was read.
        let bench = bench(context);
        let finished = match &round.stopped {
            Some(reason) => stopped(&bench, prepared, reason.clone()).await?,
            None if round.interrupt => not_begun(&bench, prepared, ENDED).await?,
            None => perform(&bench, prepared).await?,
        };
        take(context, finished, &mut round);
    }
    flush(&bench(context), context, &mut together, &mut round).await?;
    if let Some(mut seen) = round.seen.take() {
        for call in &mut seen {
            let id = call["tool_use_id"].as_str();
            let input = inputs.iter().find(|(known, _): &&(CallId, Value)| Some(known.as_str()) == id);
            call["tool_input"] = input.map(|(_, input)| input.clone()).unwrap_or_default();
        }
        let result = hooked.after_calls(seen).await;
        round.notes.extend(result.block.into_iter().chain(result.additional_context));
        round.stopped = round.stopped.take().or(result.stop);
    }
    Ok(round)
}

async fn flush(
    bench: &Bench<'_>,
    context: &mut Context,
    together: &mut Vec<Prepared>,
    round: &mut Round,
) -> Result<(), JournalLost> {
    if together.is_empty() {
        return Ok(());
    }
    bench.run.wait_while_paused(&*bench.run.clock).await;
    let (reason, interrupt) = (&round.stopped, round.interrupt);
    let finished = join_all(together.drain(..).map(|prepared| async {
        match reason {
            Some(reason) => stopped(bench, prepared, reason.clone()).await,
            None if interrupt => not_begun(bench, prepared, ENDED).await,
            None => perform(bench, prepared).await,
        }
    }))
    .await;
    for finished in finished {
        take(context, finished?, round);
    }
    Ok(())
}

fn take(context: &mut Context, finished: Finished, round: &mut Round) {
    let mut changed = None;
    for envelope in &finished.events {
        context.apply(&envelope.event);
        if let Event::CallStarted { input, .. } = &envelope.event {
            changed.clone_from(input);
        }
        if let Event::CallEnded { call, tool, output, .. } = &envelope.event {
            round.saw.extend(output.effects.iter().filter_map(ToolEffect::seen));
            if let Some(seen) = &mut round.seen {
                let response = output.content.text();
                seen.push(json!({"tool_name": tool, "tool_use_id": call, "tool_response": response}));
            }
            if tool == structured::NAME && !output.is_error {
                round.answered.push((call.clone(), changed.take()));
            }
            let mut hasher = DefaultHasher::new();
            (round.results, output.is_error, output.content.text()).hash(&mut hasher);
            round.results = hasher.finish();
        }
    }
    round.denials.extend(finished.denial);
    round.interrupt |= finished.interrupt;
    round.notes.extend(finished.notes);
    round.stopped = round.stopped.take().or(finished.stopped);
}

/// Where the next call happens and what the run has read by then.
pub fn bench<'a>(run: &'a RunHandle, context: &Context) -> Bench<'a> {
    skill::arm(run, context);
    let state = context.state();
    let spec = run.now();
    let mut directories = vec![spec.cwd.clone()];
    directories.extend(run.rights.borrow().left_of(&spec.directories));
    Bench {
        run,
        prefix: None,
        around: Surroundings {
            cwd: state.cwd.clone().unwrap_or_else(|| spec.cwd.clone()),
            home: run.equipment.home.clone(),
            directories,
        },
        seen: state.seen.clone(),
        follows: state.follows.clone(),
        spec,
    }
}
