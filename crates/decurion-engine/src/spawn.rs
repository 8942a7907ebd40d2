//! Room 8. A [`RunSpec`] becomes a living run. Takes a decided run and its conversation, gives a task whose
//! end is on record whatever happened: completed, cancelled, or panicked.

use std::panic::AssertUnwindSafe;
use std::sync::PoisonError;
use std::time::Duration;

use decurion_protocol::{
    Block, CallId, Event, LineId, Message, MessageMeta, Opening, Origin, Outcome, Role, ToolOutput, Totals,
};
use futures_util::FutureExt as _;

use crate::context::{Context, OpenCall};
use crate::hooked::Hooked;
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::run::{Progress, Run, Stop, record, refold, run};

/// What is said at the start of a run.
#[derive(Default)]
pub struct Said {
    /// What surrounds the conversation, told once at its beginning.
    pub note: Option<String>,
    /// For a fork: the call that delegates, and what it is told about where it is.
    pub entry: Option<Entry>,
    /// The prompt.
    pub prompt: Vec<Block>,
    /// What `SessionStart` hooks are told, where the session begins with this run; else empty.
    pub starts: &'static str,
    /// Calls of an earlier run that were not begun, to be done now.
    pub left: Vec<OpenCall>,
}

/// How a fork enters its parent's conversation.
pub struct Entry {
    /// The delegating message, reduced to its own call.
    pub delegating: Message,
    /// The call.
    pub call: CallId,
    /// What answers it.
    pub output: ToolOutput,
}

/// What is left of a run.
pub struct Left {
    /// Its conversation; none if it must be read from the record again.
    pub context: Option<Context>,
    /// How it ended, if that is on record.
    pub ending: Option<(Outcome, Totals)>,
}

/// Lives a run from its first record to its last.
pub async fn live(living: Run, context: Context, said: Said) -> Left {
    let mut progress = Progress::new(&living, context);
    let began = living.ports.clock.elapsed();
    let outcome = match begin(&living, &mut progress, said).await {
        Ok(Begun::Left(left)) => attempt(&living, &mut progress, left).await,
        Ok(Begun::Refused(reason)) => {
            let report = format!("The prompt was not let through by a hook: {reason}");
            Attempt::Ended(Outcome::Completed { report, limit: None })
        }
        Err(lost) => Attempt::Ended(Outcome::Failed { error: lost.to_string() }),
    };
    let outcome = match outcome {
        Attempt::Ended(outcome) => outcome,
        Attempt::Broken(outcome) => {
            // What was under way when it stopped may be on record or not: look, rather than guess. The
            // conversation of an agent goes no further, and closing a call twice changes nothing.
            if living.spec.agent.is_some() {
                return finish(&living, progress, outcome, began).await;
            }
            match refold(&living, Context::new(living.ports.model.dialect)).await {
                Some(context) => progress.context = context,
                None => return Left { context: None, ending: None },
            }
            outcome
        }
    };
    finish(&living, progress, outcome, began).await
}

/// Puts the end of a run on record.
async fn finish(living: &Run, mut progress: Progress, outcome: Outcome, began: Duration) -> Left {
    let took = living.ports.clock.elapsed().saturating_sub(began);
    progress.totals.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    progress.totals.turns += 1;
    match end(living, &mut progress, outcome).await {
        Ok(ending) => Left { context: Some(progress.context), ending: Some(ending) },
        Err(_) => Left { context: None, ending: None },
    }
}

/// How an attempt at the work came to a stop.
enum Attempt {
    /// By itself.
    Ended(Outcome),
    /// In the middle of something.
    Broken(Outcome),
}

async fn attempt(living: &Run, progress: &mut Progress, left: Vec<OpenCall>) -> Attempt {
    let work = AssertUnwindSafe(run(living, progress, left)).catch_unwind();
    let stopped = tokio::select! {
        biased;
        () = time_is_up(living.spec.limits.seconds) => None,
        () = living.ports.cancel.cancelled() => {
            let by = living.ports.desk.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).take();
            let by = by.unwrap_or_else(|| "an interrupt".to_owned());
            Some(Attempt::Broken(Outcome::Killed { by }))
        }
        result = work => Some(match result {
            Ok(Ok(outcome)) => Attempt::Ended(outcome),
            Ok(Err(Stop::Journal(lost))) => Attempt::Ended(Outcome::Failed { error: lost.to_string() }),
            Err(_) => Attempt::Broken(Outcome::Failed {
                error: "the run failed inside Decurion; this is a bug in it".to_owned(),
            }),
        }),
    };
    stopped.unwrap_or_else(|| {
        let (budget, partial) = ("time".to_owned(), progress.said().to_owned());
        Attempt::Broken(Outcome::OutOfBudget { budget, partial })
    })
}

/// Waits for the end of the wall time; for ever without a limit. A turn asked for in time may still be
/// answered late: the limit ends that too.
async fn time_is_up(seconds: Option<u64>) {
    match seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        None => std::future::pending().await,
    }
}

/// The run's start and its prompt, in one write. Gives the calls that are still to be done.
async fn begin(living: &Run, progress: &mut Progress, said: Said) -> Result<Begun, JournalLost> {
    let left: Vec<OpenCall> = said.left.into_iter().filter(|call| !call.started).collect();
    close_open_calls(living, progress, &left).await?;
    let (told, refused) = opening_hooks(living, said.starts, &said.prompt).await;
    let mut events = vec![Event::RunStarted { spec: Box::new(living.spec.clone()) }];
    let mut parent = progress.context.leaf();
    if let Some(entry) = said.entry {
        parent = Some(enter(entry, parent, &mut events));
    }
    let note = said.note.map(|text| (vec![Block::text(text)], Origin::Note("context".to_owned())));
    let prompt = (!said.prompt.is_empty()).then_some((said.prompt, Origin::Prompt));
    let prompt = prompt.filter(|_| refused.is_none());
    let told = (!told.is_empty()).then(|| {
        let blocks = told.into_iter().map(Block::text).collect();
        (blocks, Origin::Note("hook".to_owned()))
    });
    for (blocks, origin) in note.into_iter().chain(prompt).chain(told) {
        let line = new_line();
        events.push(Event::Message {
            message: Message { role: Role::User, blocks },
            lines: vec![line],
            parent,
            meta: Box::new(MessageMeta { origin, ..Default::default() }),
        });
        parent = Some(line);
    }
    record(living, progress, events).await?;
    match refused {
        None => Ok(Begun::Left(left)),
        Some(reason) => Ok(Begun::Refused(reason)),
    }
}

/// What came of a beginning.
enum Begun {
    /// It goes on, with these calls first.
    Left(Vec<OpenCall>),
    /// A hook did not let the prompt through.
    Refused(String),
}

/// What the hooks of a beginning tell the model, and why the prompt is refused, if it is.
async fn opening_hooks(
    living: &Run,
    starts: &'static str,
    prompt: &[Block],
) -> (Vec<String>, Option<String>) {
    let hooked = Hooked { spec: &living.spec, ports: &living.ports };
    if living.spec.agent.is_some() {
        let fresh = !matches!(living.spec.opening, Opening::Resumed { .. });
        let told = if fresh { hooked.agent_start().await.additional_context } else { Vec::new() };
        return (told, None);
    }
    let mut told = Vec::new();
    if !starts.is_empty() {
        told.extend(hooked.session_start(starts).await.additional_context);
    }
    if prompt.is_empty() {
        return (told, None);
    }
    let text = Message { role: Role::User, blocks: prompt.to_vec() }.text();
    let result = hooked.prompt(&text).await;
    told.extend(result.additional_context);
    (told, result.block.or(result.stop))
}

/// The delegating message and its answer, as a fork's own first lines.
fn enter(entry: Entry, parent: Option<LineId>, events: &mut Vec<Event>) -> LineId {
    let lines: Vec<LineId> = entry.delegating.blocks.iter().map(|_| new_line()).collect();
    let last = lines.last().copied();
    let meta = MessageMeta { origin: Origin::Model, ..MessageMeta::default() };
    events.push(Event::Message { message: entry.delegating, lines, parent, meta: Box::new(meta) });
    let line = new_line();
    events.push(Event::CallEnded {
        call: entry.call,
        tool: "Agent".to_owned(),
        line,
        parent: last,
        output: Box::new(entry.output),
        duration_ms: 0,
    });
    line
}

async fn end(
    living: &Run,
    progress: &mut Progress,
    outcome: Outcome,
) -> Result<(Outcome, Totals), JournalLost> {
    close_open_calls(living, progress, &[]).await?;
    let totals = std::mem::take(&mut progress.totals);
    let event = Event::RunEnded { outcome: outcome.clone(), totals: Box::new(totals.clone()) };
    record(living, progress, vec![event]).await?;
    // A whole fan-out that ends at once must not wait for as many syncs; the journal syncs soon anyway.
    if living.spec.agent.is_none() {
        living.ports.journal.sync_soon();
    }
    Ok((outcome, totals))
}

/// Gives every call without a result one that says so: a call whose intent is on record may have had effects,
/// one without was never begun.
async fn close_open_calls(
    living: &Run,
    progress: &mut Progress,
    but: &[OpenCall],
) -> Result<(), JournalLost> {
    let events: Vec<Event> = progress
        .context
        .unanswered()
        .into_iter()
        .filter(|(call, _)| !but.iter().any(|left| left.id == *call))
        .map(|(call, started)| Event::CallEnded {
            line: new_line(),
            parent: progress.context.call_line(&call),
            call,
            tool: String::new(),
            output: Box::new(ToolOutput::error(if started { OUTCOME_UNKNOWN } else { NOT_BEGUN })),
            duration_ms: 0,
        })
        .collect();
    if events.is_empty() { Ok(()) } else { record(living, progress, events).await }
}

const OUTCOME_UNKNOWN: &str = "Interrupted: this call was begun and its end was not seen, so its outcome is \
    unknown. Look at what it may have done before doing it again.";
const NOT_BEGUN: &str = "Interrupted: this call was not begun.";
