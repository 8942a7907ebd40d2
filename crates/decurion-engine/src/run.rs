//! Room 3. The loop. Takes a decided [`RunSpec`] and its conversation, makes turns until there is an
//! [`Outcome`]. Root, named, fork, worker and member all run exactly this.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use decurion_model::{Head, ModelError, ModelRequest, WireHead, WireMessage};
use decurion_protocol::{
    Block, CallId, Envelope, Event, LineId, Message, MessageMeta, Origin, Outcome, Pattern, RunSpec, Totals,
};

use crate::budget::{Amount, Exhausted, Reservation};
use crate::call::Call;
use crate::calls::answer;
use crate::compact::compact;
use crate::context::Context;
use crate::journal::JournalLost;
use crate::ports::{Ports, new_line, unused_call};
use crate::structured;
use crate::turn::{Reply, turn};

/// How often a model that was cut off or said nothing useful is asked to go on.
const MOST_NUDGES: u32 = 3;
/// The fewest output tokens worth asking for when money is short.
const LEAST_OUTPUT: u64 = 256;

/// No tokenizer makes more tokens of JSON than this, so a reservation is never too small.
const LEAST_BYTES_PER_TOKEN: u64 = 2;

/// What does not change while a run lives.
pub struct Run {
    /// All that was decided.
    pub spec: RunSpec,
    /// What it reaches.
    pub ports: Ports,
}

/// What changes while a run lives; the run's task alone owns it.
pub struct Progress {
    /// The conversation.
    pub context: Context,
    /// What it took so far.
    pub totals: Totals,
    /// Model turns made.
    pub turns: u32,
    nudges: u32,
    began: Duration,
    /// Why the last round of calls was refused with nobody to ask, if it was.
    denied: Option<String>,
    /// What the last reply said, with the replies it continues.
    said: String,
    /// Whether the next reply continues the last.
    continues: bool,
    repaired: Repair,
}

/// What was already tried with a request that the provider rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    Nothing,
    Refolded,
    Compacted,
}

/// Why the loop stopped without an outcome of its own.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The transcript cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalLost),
}

impl Progress {
    /// A run about to begin with this conversation.
    pub fn new(run: &Run, context: Context) -> Self {
        Self {
            context,
            totals: Totals::default(),
            turns: 0,
            nudges: 0,
            began: run.ports.clock.elapsed(),
            denied: None,
            said: String::new(),
            continues: false,
            repaired: Repair::Nothing,
        }
    }
}

/// The loop.
pub async fn run(run: &Run, progress: &mut Progress) -> Result<Outcome, Stop> {
    loop {
        if let Some(outcome) = at_limit(run, progress) {
            return Ok(outcome);
        }
        if is_full(run, &progress.context) {
            compact(run, progress, "auto", None).await?;
        }
        let reply = match ask(run, progress).await {
            Ok(reply) => reply,
            Err(Refusal::Budget(exhausted)) => return Ok(out_of_budget(progress, exhausted.word())),
            Err(Refusal::Model(error)) => match recover(run, progress, error).await? {
                None => continue,
                Some(outcome) => return Ok(outcome),
            },
        };
        progress.turns += 1;
        progress.repaired = Repair::Nothing;
        let calls = record_reply(run, progress, reply).await?;
        if calls.is_empty() {
            match finish(run, progress).await? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
        if let Some(outcome) = work(run, progress, calls).await? {
            return Ok(outcome);
        }
    }
}

/// Puts a prompt or a note into the conversation.
pub async fn hear(
    run: &Run,
    progress: &mut Progress,
    blocks: Vec<Block>,
    origin: Origin,
) -> Result<(), JournalLost> {
    let message = Message { role: decurion_protocol::Role::User, blocks };
    let meta = MessageMeta { origin, ..MessageMeta::default() };
    let parent = progress.context.leaf();
    let event = Event::Message { message, lines: vec![new_line()], parent, meta: Box::new(meta) };
    record(run, progress, vec![event]).await
}

/// Writes events, then takes them into the conversation.
pub async fn record(run: &Run, progress: &mut Progress, events: Vec<Event>) -> Result<(), JournalLost> {
    let written = run.ports.journal.write(&run.ports.who, events).await?;
    for envelope in written {
        progress.context.apply(&envelope.event);
    }
    Ok(())
}

/// The limit that ends the run before its next turn, if one does.
fn at_limit(run: &Run, progress: &Progress) -> Option<Outcome> {
    let limits = &run.spec.limits;
    if limits.turns.is_some_and(|most| progress.turns >= most) {
        // For a child, reaching its turns is a normal result that says so.
        return Some(match run.spec.pattern {
            Pattern::Root => out_of_budget(progress, "turns"),
            _ => Outcome::Completed { report: progress.said.clone(), limit: Some("turns".to_owned()) },
        });
    }
    let elapsed = run.ports.clock.elapsed().saturating_sub(progress.began);
    let late = limits.seconds.is_some_and(|most| elapsed >= Duration::from_secs(most));
    late.then(|| out_of_budget(progress, "time"))
}

fn out_of_budget(progress: &Progress, budget: &str) -> Outcome {
    Outcome::OutOfBudget { budget: budget.to_owned(), partial: progress.said.clone() }
}

/// Whether the conversation should be shortened before the next request.
fn is_full(run: &Run, context: &Context) -> bool {
    let model = &run.ports.model;
    let window = model.info.window;
    let room = window.saturating_sub(run.ports.head.max_output_tokens.min(window / 2));
    run.ports.compaction.automatic && context.tokens() > room * run.ports.compaction.at_percent / 100
}

/// Why there is no reply.
enum Refusal {
    Budget(Exhausted),
    Model(ModelError),
}

/// One request: reserved, sent, settled.
async fn ask(run: &Run, progress: &mut Progress) -> Result<Reply, Refusal> {
    let mut request = request(run, run.ports.wire_head.clone(), progress.context.request());
    let (reservation, output) = reserve(run, request.len()).map_err(Refusal::Budget)?;
    if output < run.ports.head.max_output_tokens {
        let head = Head { max_output_tokens: output, ..(*run.ports.head).clone() };
        request.head = Arc::new(run.ports.model.dialect.head(&head));
    }
    let reply = timed_turn(run, progress, request).await;
    settle(run, progress, reservation, reply.as_ref().ok());
    reply.map_err(Refusal::Model)
}

/// A request of this run.
pub(crate) fn request(run: &Run, head: Arc<WireHead>, messages: Vec<WireMessage>) -> ModelRequest {
    ModelRequest { head, messages, tag: run.ports.tag.clone(), fallback: run.ports.fallback.clone() }
}

/// Asks the model, and counts the time that took.
pub(crate) async fn timed_turn(
    run: &Run,
    progress: &mut Progress,
    request: ModelRequest,
) -> Result<Reply, ModelError> {
    let began = run.ports.clock.elapsed();
    let reply = turn(&run.ports.model.gateway, request, &run.ports.journal, &run.ports.who).await;
    let took = run.ports.clock.elapsed().saturating_sub(began);
    progress.totals.api_duration_ms += u64::try_from(took.as_millis()).unwrap_or(0);
    reply
}

/// Sets aside what a request of so many bytes may cost at most. Where money is short, fewer output tokens
/// are asked for.
pub(crate) fn reserve(run: &Run, bytes: u64) -> Result<(Reservation, u64), Exhausted> {
    let ports = &run.ports;
    let input = bytes / LEAST_BYTES_PER_TOKEN;
    let mut budget = ports.budget.lock().unwrap_or_else(PoisonError::into_inner);
    let mut output = ports.head.max_output_tokens;
    if let (Some(left), Some(price)) = (budget.money_left(ports.account), &ports.model.info.price) {
        let for_input = ports.model.most(input, 0).unwrap_or_default();
        let affordable = left.0.saturating_sub(for_input.0).checked_div(price.output).unwrap_or(output);
        output = output.min(affordable);
        if output < LEAST_OUTPUT {
            return Err(Exhausted::Money);
        }
    }
    let money = ports.model.most(input, output).unwrap_or_default();
    let tokens = input + output;
    budget.reserve(ports.account, Amount { tokens, money }).map(|reservation| (reservation, output))
}

/// Replaces what was set aside by what was used, and adds it to the totals.
pub(crate) fn settle(run: &Run, progress: &mut Progress, reservation: Reservation, reply: Option<&Reply>) {
    let model = &run.ports.model;
    let usage = &reply.and_then(|reply| reply.meta.usage.clone()).unwrap_or_default();
    let cost = model.info.cost(usage);
    let mut budget = run.ports.budget.lock().unwrap_or_else(PoisonError::into_inner);
    budget.settle(reservation, Amount { tokens: usage.context_tokens(), money: cost });
    let Some(reply) = reply else { return };
    let totals = &mut progress.totals;
    totals.usage.add(usage);
    totals.cost = totals.cost.plus(cost);
    totals.stop_reason.clone_from(&reply.meta.stop_reason);
    let answered = reply.fell_back_to.clone().unwrap_or_else(|| model.id.clone());
    let entry = totals.models.entry(answered).or_default();
    entry.usage.add(usage);
    entry.cost = entry.cost.plus(cost);
    entry.window = model.info.window;
    entry.max_output = model.info.max_output;
}

/// What to do about a request that failed for good: shorten or repair the conversation and go on, or end.
async fn recover(run: &Run, progress: &mut Progress, error: ModelError) -> Result<Option<Outcome>, Stop> {
    match (&error, progress.repaired) {
        (ModelError::Rejected { .. }, Repair::Nothing) if progress.context.has_media() => {
            let empty = Context::without_media(run.ports.model.dialect);
            if let Some(context) = refold(run, empty).await {
                progress.context = context;
            }
            progress.repaired = Repair::Refolded;
            Ok(None)
        }
        (ModelError::TooLong { .. } | ModelError::Rejected { .. }, Repair::Nothing | Repair::Refolded)
            if progress.turns > 0 || progress.context.tokens() > run.ports.model.info.window / 4 =>
        {
            compact(run, progress, "auto", None).await?;
            progress.repaired = Repair::Compacted;
            Ok(None)
        }
        _ => fail(run, progress, &error).await.map(Some),
    }
}

/// The conversation again, from the record.
pub async fn refold(run: &Run, empty: Context) -> Option<Context> {
    let agent = run.ports.who.agent.clone();
    let take = move |context: &mut Context, envelope: Envelope| {
        if envelope.agent == agent {
            context.apply(&envelope.event);
        }
    };
    run.ports.journal.fold(0, empty, take).await
}

/// Ends the run with what the provider said, also as a message that people see and the model does not.
async fn fail(run: &Run, progress: &mut Progress, error: &ModelError) -> Result<Outcome, Stop> {
    progress.totals.error_status = error.status();
    let text = error.to_string();
    let event = Event::Message {
        message: Message::assistant(vec![Block::text(text.clone())]),
        lines: vec![new_line()],
        parent: progress.context.leaf(),
        meta: Box::new(MessageMeta {
            origin: Origin::Synthetic,
            request_id: error.request_id().map(str::to_owned),
            ..MessageMeta::default()
        }),
    };
    record(run, progress, vec![event]).await?;
    Ok(match error {
        ModelError::Stalled { .. } => Outcome::Stalled { waiting_for: text },
        _ => Outcome::Failed { error: text },
    })
}

/// Puts the reply on record and gives its calls.
async fn record_reply(run: &Run, progress: &mut Progress, reply: Reply) -> Result<Vec<Call>, JournalLost> {
    let Reply { mut message, mut meta, .. } = reply;
    rename_duplicates(&mut message, &progress.context);
    let info = &run.ports.model.info;
    meta.cost = meta.usage.as_ref().filter(|_| info.price.is_some()).map(|usage| info.cost(usage));
    let text = message.text();
    match std::mem::take(&mut progress.continues) {
        true => progress.said.push_str(&text),
        false if !text.is_empty() => progress.said = text,
        false => {}
    }
    let lines: Vec<LineId> = message.blocks.iter().map(|_| new_line()).collect();
    let calls = message
        .blocks
        .iter()
        .zip(&lines)
        .filter_map(|(block, line)| match block {
            Block::ToolUse { id, name, input } => {
                Some(Call { id: id.clone(), name: name.clone(), input: input.clone(), line: Some(*line) })
            }
            _ => None,
        })
        .collect();
    let parent = progress.context.leaf();
    record(run, progress, vec![Event::Message { message, lines, parent, meta: Box::new(meta) }]).await?;
    Ok(calls)
}

/// Gives a second call of the same id another one: a provider rejects a conversation with both.
fn rename_duplicates(message: &mut Message, context: &Context) {
    let mut here: Vec<CallId> = Vec::new();
    for block in &mut message.blocks {
        if let Block::ToolUse { id, .. } = block {
            *id = unused_call(id, |candidate| context.knows_call(candidate) || here.contains(candidate));
            here.push(id.clone());
        }
    }
}

/// Runs the calls of a reply; gives an outcome if one of them ended the run.
async fn work(run: &Run, progress: &mut Progress, calls: Vec<Call>) -> Result<Option<Outcome>, Stop> {
    let answers = structured::answers(&calls);
    progress.totals.turns += u32::try_from(calls.len()).unwrap_or(u32::MAX);
    let round = answer(run, &mut progress.context, calls).await?;
    progress.denied = None;
    for (denial, unanswerable) in round.denials {
        if unanswerable {
            progress.denied = Some(format!("{} was not allowed and nobody could be asked", denial.tool));
        }
        progress.totals.denials.push(denial);
    }
    if round.interrupt {
        let outcome = Outcome::Killed { by: "the answer to a question".to_owned() };
        return Ok(Some(outcome));
    }
    if let Some(value) = structured::accepted(&run.ports.tools, answers) {
        let report = value.to_string();
        progress.totals.structured = Some(value);
        return Ok(Some(Outcome::Completed { report, limit: None }));
    }
    Ok(None)
}

/// The model asked for nothing more: the end, unless it was cut off or owes an answer.
async fn finish(run: &Run, progress: &mut Progress) -> Result<Option<Outcome>, Stop> {
    let nudge = match progress.totals.stop_reason.as_deref() {
        Some("refusal") => {
            let error = "the model refused to answer".to_owned();
            return Ok(Some(Outcome::Failed { error }));
        }
        Some("max_tokens") => {
            progress.continues = true;
            "Your reply was cut off at the output limit. Continue exactly where it stopped."
        }
        _ if run.ports.tools.get(structured::NAME).is_some() => structured::NUDGE,
        _ => {
            return Ok(Some(match progress.denied.take() {
                Some(reason) => Outcome::Denied { reason, partial: progress.said.clone() },
                None => Outcome::Completed { report: progress.said.clone(), limit: None },
            }));
        }
    };
    progress.nudges += 1;
    if progress.nudges > MOST_NUDGES {
        let error = format!("the model did not come to an end after {MOST_NUDGES} reminders: {nudge}");
        return Ok(Some(Outcome::Failed { error }));
    }
    hear(run, progress, vec![Block::text(nudge)], Origin::Note("continue".to_owned())).await?;
    Ok(None)
}
