//! Room 8. A [`RunSpec`] becomes a living run. Takes a decided run and its conversation, gives a task whose
//! end is on record whatever happened: completed, cancelled, or panicked.

use std::panic::AssertUnwindSafe;

use decurion_protocol::{Block, Event, Origin, Outcome, Role, ToolOutput};
use futures_util::FutureExt as _;

use crate::context::Context;
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::run::{Progress, Run, Stop, record, refold, run};

/// What is said at the start of a run.
pub struct Said {
    /// What surrounds the conversation, told once at its beginning.
    pub note: Option<String>,
    /// The prompt.
    pub prompt: Vec<Block>,
}

/// What is left of a run: its conversation; none if it must be read from the record again.
pub type Left = Option<Context>;

/// Lives a run from its first record to its last.
pub async fn live(living: Run, context: Context, said: Said) -> Left {
    let mut progress = Progress::new(&living, context);
    let began = living.ports.clock.elapsed();
    let outcome = match begin(&living, &mut progress, said).await {
        Ok(()) => attempt(&living, &mut progress).await,
        Err(lost) => Attempt::Ended(Outcome::Failed { error: lost.to_string() }),
    };
    let outcome = match outcome {
        Attempt::Ended(outcome) => outcome,
        Attempt::Broken(outcome) => {
            // What was under way when it stopped may be on record or not: look, rather than guess.
            match refold(&living, Context::new(living.ports.model.dialect)).await {
                Some(context) => progress.context = context,
                None => return None,
            }
            outcome
        }
    };
    let took = living.ports.clock.elapsed().saturating_sub(began);
    progress.totals.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    progress.totals.turns += 1;
    end(&living, &mut progress, outcome).await.ok()?;
    Some(progress.context)
}

/// How an attempt at the work came to a stop.
enum Attempt {
    /// By itself.
    Ended(Outcome),
    /// In the middle of something.
    Broken(Outcome),
}

async fn attempt(living: &Run, progress: &mut Progress) -> Attempt {
    let work = AssertUnwindSafe(run(living, progress)).catch_unwind();
    tokio::select! {
        biased;
        () = living.ports.cancel.cancelled() => {
            Attempt::Broken(Outcome::Killed { by: "an interrupt".to_owned() })
        }
        result = work => match result {
            Ok(Ok(outcome)) => Attempt::Ended(outcome),
            Ok(Err(Stop::Journal(lost))) => Attempt::Ended(Outcome::Failed { error: lost.to_string() }),
            Err(_) => Attempt::Broken(Outcome::Failed {
                error: "the run failed inside Decurion; this is a bug in it".to_owned(),
            }),
        },
    }
}

/// The run's start and its prompt, in one write.
async fn begin(living: &Run, progress: &mut Progress, said: Said) -> Result<(), JournalLost> {
    close_open_calls(living, progress).await?;
    let mut events = vec![Event::RunStarted { spec: Box::new(living.spec.clone()) }];
    let mut parent = progress.context.leaf();
    let note = said.note.map(|text| (vec![Block::text(text)], Origin::Note("context".to_owned())));
    let prompt = (!said.prompt.is_empty()).then_some((said.prompt, Origin::Prompt));
    for (blocks, origin) in note.into_iter().chain(prompt) {
        let line = new_line();
        events.push(Event::Message {
            message: decurion_protocol::Message { role: Role::User, blocks },
            lines: vec![line],
            parent,
            meta: Box::new(decurion_protocol::MessageMeta { origin, ..Default::default() }),
        });
        parent = Some(line);
    }
    record(living, progress, events).await
}

async fn end(living: &Run, progress: &mut Progress, outcome: Outcome) -> Result<(), JournalLost> {
    close_open_calls(living, progress).await?;
    let totals = Box::new(std::mem::take(&mut progress.totals));
    record(living, progress, vec![Event::RunEnded { outcome, totals }]).await?;
    living.ports.journal.sync_soon();
    Ok(())
}

/// Gives every call without a result one that says so: a call whose intent is on record may have had effects,
/// one without was never begun.
async fn close_open_calls(living: &Run, progress: &mut Progress) -> Result<(), JournalLost> {
    let events: Vec<Event> = progress
        .context
        .unanswered()
        .into_iter()
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
