//! Room 3. The loop. Takes a decided [`RunSpec`] and its conversation, makes turns until there is an
//! [`Outcome`]. Root, named, fork, worker and member all run exactly this.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_model::{Dialect, ModelError, WireMessage};
use decurion_protocol::event::ending;
use decurion_protocol::{
    Activity, Block, CallId, Event, LineId, Message, MessageMeta, Origin, Outcome, Pattern, Skill,
    TaskProgress,
};
use decurion_tools::alias;

use crate::bench::Call;
use crate::budget::Exhausted;
use crate::call;
use crate::calls::{answer, bench};
use crate::compact::{Trigger, Unsummarised, compact};
use crate::context::{Context, Media, OpenCall, PAUSED};
use crate::journal::JournalLost;
use crate::ports::{Instructions, new_line, unused_call};
use crate::progress::{Progress, hear, record, room, take_in};
use crate::prompt;
use crate::run_handle::RunHandle;
use crate::run_hooks::{MOST_BLOCKS, RunHooks};
use crate::session_port::MayEnd;
use crate::skill;
use crate::spending::{self, LEAST_OUTPUT, Unasked};
use crate::structured;
use crate::task::BY_ANSWER;
use crate::turn::{Partial, Reply};

/// How often a model that was cut off or said nothing useful is asked to go on.
const MOST_NUDGES: u32 = 3;
/// How often in a row a reply that the provider paused is sent back to be continued.
const MOST_PAUSES: u32 = 20;

/// After how many rounds in a row with the same calls and results the model is told, and the run ended.
const REPEATED_TOLD: u32 = 3;
const REPEATED_ENDED: u32 = 6;

/// How many of the last things an agent did are shown, and how much of each.
const MOST_ACTIVITIES: usize = 5;
const MOST_INPUT: usize = 200;

/// Why the loop stopped without an outcome of its own.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The transcript cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalLost),
}

/// The loop. Calls that an earlier run left are done first.
pub async fn run(run: &RunHandle, progress: &mut Progress, left: Vec<OpenCall>) -> Result<Outcome, Stop> {
    if !left.is_empty()
        && let Some(outcome) = work(run, progress, left.into_iter().map(Call::from).collect()).await?
    {
        return Ok(outcome);
    }
    skill::arm(run, &progress.context);
    // It had said its last word when its process died.
    if progress.is_final
        && !run.is_told()
        && let Some(outcome) = finish(run, progress).await?
    {
        return Ok(outcome);
    }
    loop {
        run.wait_while_paused(&*run.clock).await;
        if run.is_told() {
            listen(run, progress).await;
        }
        if let Some(outcome) = at_limit(run, progress) {
            return Ok(outcome);
        }
        match last_turn(run, progress) {
            Some(budget) => warn(run, progress, budget).await?,
            None => encourage(run, progress).await?,
        }
        if is_full(run, progress) {
            let before = progress.context.tokens();
            let compacted = compact(run, progress, Trigger::Estimate, None).await?;
            // Without a summary the conversation stays as it is, and the provider decides whether it fits.
            progress.unsummarised = compacted.is_err().then_some(before);
        }
        let reply = match ask(run, progress).await {
            Ok(reply) => reply,
            Err(Refusal::Paused) => continue,
            Err(Refusal::Unasked(Unasked::Budget(exhausted))) => {
                return over_budget(run, progress, exhausted).await;
            }
            Err(Refusal::Unasked(Unasked::Journal(lost))) => return Err(lost.into()),
            Err(Refusal::Unasked(Unasked::Model(error))) => match recover(run, progress, error).await? {
                None => continue,
                Some(outcome) => return Ok(outcome),
            },
        };
        progress.turns += 1;
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

/// Hears what waits for the run: endings, messages, how far others have come.
async fn listen(run: &RunHandle, progress: &mut Progress) {
    let heard = run.session.deliver(run.clone(), progress.context.leaf()).await;
    take_in(progress, &heard.unwrap_or_default());
}

/// Whether the run may end; if not, it has heard why. Gives the shells that were stopped for it.
async fn may_end(run: &RunHandle, progress: &mut Progress) -> Option<Vec<String>> {
    // Whoever began nothing and was told nothing has nothing to wait for; what comes too late is found by
    // the session when it hears of the end.
    if run.begun.load(Ordering::Relaxed) == 0 && !run.is_told() {
        return Some(Vec::new());
    }
    match run.session.may_end(run.clone(), progress.context.leaf()).await {
        None => Some(Vec::new()),
        Some(MayEnd::Yes(stopped)) => Some(stopped),
        Some(MayEnd::Hear(heard)) => {
            take_in(progress, &heard);
            None
        }
    }
}

/// The limit that ends the run before its next turn, if one does.
fn at_limit(run: &RunHandle, progress: &Progress) -> Option<Outcome> {
    let limits = run.limits();
    if limits.turns.is_some_and(|most| progress.turns >= most) {
        // For a child, reaching its turns is a normal result that says so.
        return Some(match run.spec.pattern {
            Pattern::Root => out_of_budget(progress, "turns"),
            _ => Outcome::Completed { report: progress.said.clone(), limit: Some("turns".to_owned()) },
        });
    }
    let elapsed = progress.elapsed(run);
    let late = limits.seconds.is_some_and(|most| elapsed >= Duration::from_secs(most));
    late.then(|| out_of_budget(progress, "time"))
}

/// Which budget an agent's next turn is the last of, if it is: it gets the chance to report what it has. The root is asked by a person who set its limits.
fn last_turn(run: &RunHandle, progress: &Progress) -> Option<&'static str> {
    if run.spec.agent.is_none() || progress.turns == 0 {
        return None;
    }
    let limits = run.limits();
    if limits.turns.is_some_and(|most| progress.turns + 1 >= most) {
        return Some("turns");
    }
    let elapsed = progress.elapsed(run);
    if limits.seconds.is_some_and(|most| elapsed >= Duration::from_secs(most) * 9 / 10) {
        return Some("time");
    }
    let budget = run.budget.lock().unwrap_or_else(PoisonError::into_inner);
    // What the last request took is about what the next will; twice that is one turn and its report.
    let next = progress.context.tokens() + LEAST_OUTPUT;
    budget.unspent_tokens(run.lineage.account).is_some_and(|left| left < 2 * next).then_some("tokens")
}

/// Tells an agent that its budget ends.
async fn warn(run: &RunHandle, progress: &mut Progress, budget: &str) -> Result<(), JournalLost> {
    let limits = run.limits();
    if progress.warned.replace(limits).is_some() {
        return Ok(());
    }
    let text = format!(
        "Your budget ({budget}) allows one more turn. Do not call tools now: report what you have found or done \
         so far, and what is missing."
    );
    hear(run, progress, vec![Block::text(text)], Origin::Note("budget".to_owned())).await
}

/// Tells an agent that was told that its budget ends, and then was given more.
async fn encourage(run: &RunHandle, progress: &mut Progress) -> Result<(), JournalLost> {
    let limits = run.limits();
    if progress.warned.take_if(|then| *then != limits).is_none() {
        return Ok(());
    }
    let text = "Your budget was raised: there is more than one turn left. Go on with your work.";
    hear(run, progress, vec![Block::text(text)], Origin::Note("budget".to_owned())).await
}

fn out_of_budget(progress: &Progress, budget: &str) -> Outcome {
    Outcome::OutOfBudget { budget: budget.to_owned(), partial: progress.said.clone() }
}

/// Ends a run whose next request does not fit its budget. A person reads how much is missing; the parent of an agent
/// reads how the agent ended.
async fn over_budget(
    run: &RunHandle,
    progress: &mut Progress,
    exhausted: Exhausted,
) -> Result<Outcome, Stop> {
    if run.spec.agent.is_none() {
        let text = format!("budget: {exhausted}; it was not sent. Raise the limit to continue");
        record(run, progress, vec![Event::Notice { level: "warning".to_owned(), text }]).await?;
    }
    Ok(out_of_budget(progress, exhausted.word()))
}

/// Whether the conversation should be shortened before the next request. After an attempt that failed, only once it
/// has grown.
fn is_full(run: &RunHandle, progress: &Progress) -> bool {
    let compaction = &run.compaction;
    let limit = room(run) * compaction.at_percent / 100;
    let grown = progress.unsummarised.map_or(0, |before| before + run.voice.model.info.window / 20);
    compaction.automatic && progress.context.tokens() > limit.max(grown)
}

/// Why there is no reply.
enum Refusal {
    /// The run was paused before there was a reply.
    Paused,
    Unasked(Unasked),
}

/// One request: reserved, sent, settled.
async fn ask(run: &RunHandle, progress: &mut Progress) -> Result<Reply, Refusal> {
    let messages = match &run.spec.definition.reminder {
        None => progress.context.request(progress.media()),
        Some(text) => progress.context.request_reminding(text, progress.media()),
    };
    let messages: Arc<[WireMessage]> = messages.into();
    let counted = progress.context.counted();
    let (input, is_new) = (spending::weigh(run, &messages, counted), counted.is_none());
    progress.partial = Some(Partial::default());
    let ask = spending::ask(run, progress, input, (&run.voice.head, &run.voice.wire_head), &messages);
    let reply = tokio::select! {
        biased;
        reply = Box::pin(ask) => reply.map_err(Refusal::Unasked),
        () = run.gives_way() => {
            run.waits(None);
            Err(Refusal::Paused)
        }
    };
    progress.partial = None;
    let reply = reply?;
    if is_new {
        spending::learn(run, &messages, &reply);
    }
    Ok(reply)
}

/// What to do about a request that failed for good: shorten the conversation if it is too long, try once without
/// images and documents, or end. Any other refusal leaves the conversation as it is.
async fn recover(
    run: &RunHandle,
    progress: &mut Progress,
    error: ModelError,
) -> Result<Option<Outcome>, Stop> {
    match &error {
        ModelError::Rejected { .. } if progress.media() == Media::Sent && progress.context.has_media() => {
            progress.repair.without_media = Some(error.to_string());
            Ok(None)
        }
        ModelError::TooLong { .. } if !progress.repair.is_compacted && progress.context.has_history() => {
            let compacted = compact(run, progress, Trigger::Overflow, None).await?;
            progress.repair.is_compacted = true;
            match compacted {
                Ok(()) => Ok(None),
                Err(Unsummarised::Model(error)) => fail(run, progress, &error).await.map(Some),
                Err(Unsummarised::Budget(exhausted)) => over_budget(run, progress, exhausted).await.map(Some),
                Err(Unsummarised::Empty) => fail(run, progress, &error).await.map(Some),
            }
        }
        _ => fail(run, progress, &error).await.map(Some),
    }
}

/// Ends the run with what the provider said, also as a message that people see and the model does not.
async fn fail(run: &RunHandle, progress: &mut Progress, error: &ModelError) -> Result<Outcome, Stop> {
    progress.totals.error_status = error.status();
    let too_long = matches!(error, ModelError::TooLong { .. });
    progress.totals.error = Some(if too_long { ending::TOO_LONG } else { error.word() }.to_owned());
    let text = error.to_string();
    let event = Event::Message {
        message: Message::assistant(vec![Block::text(text.clone())]),
        lines: vec![new_line()],
        parent: progress.context.leaf(),
        meta: Box::new(MessageMeta {
            origin: Origin::Synthetic,
            request_id: error.request_id().map(str::to_owned),
            timing: progress.timing.take(),
            error: Some(error.word().to_owned()),
            error_status: error.status(),
            ..MessageMeta::default()
        }),
    };
    let mut events = spending::charged(run, progress);
    events.push(event);
    record(run, progress, events).await?;
    RunHooks { run }.failed(&text, &progress.said).await;
    Ok(match error {
        ModelError::Stalled { .. } => Outcome::Stalled { waiting_for: text },
        _ => Outcome::Failed { error: text },
    })
}

/// Puts the reply on record and gives its calls.
async fn record_reply(
    run: &RunHandle,
    progress: &mut Progress,
    reply: Reply,
) -> Result<Vec<Call>, JournalLost> {
    let Reply { mut message, mut meta, fell_back_to } = reply;
    rename_duplicates(&mut message, &progress.context, run.voice.model.dialect);
    let info = spending::info(run, fell_back_to.as_deref());
    meta.cost = meta.usage.as_ref().filter(|_| info.price.is_some()).map(|usage| info.cost(usage));
    meta.timing = progress.timing.take();
    let text = message.text();
    if meta.stop_reason.as_deref() != Some(PAUSED) {
        progress.pauses = 0;
    }
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
    let mut events = spending::charged(run, progress);
    if let Some(error) = std::mem::take(&mut progress.repair).without_media {
        events.extend(media_omitted(error));
    }
    events.push(Event::Message { message, lines, parent, meta: Box::new(meta) });
    let written = run.journal.write(&run.who, events).await?;
    take_in(progress, &written);
    progress.replied_at = written.last().map_or(0, |envelope| envelope.seq);
    Ok(calls)
}

/// What is on record where a request was accepted only without images and documents.
fn media_omitted(error: String) -> Vec<Event> {
    let text = format!(
        "images and documents so far are left out of the conversation, because the provider rejected the request \
         with them: {error}"
    );
    vec![Event::MediaOmitted { error }, Event::Notice { level: "warning".to_owned(), text }]
}

/// Asks the hooks whether the run may end. Gives what to do instead: go on, or end otherwise.
async fn stop_hooks(run: &RunHandle, progress: &mut Progress) -> Result<Option<Option<Outcome>>, Stop> {
    let hooked = RunHooks { run };
    let result = hooked.stop(progress.blocks > 0, &progress.said).await;
    if let Some(reason) = result.stop {
        progress.totals.error = Some(ending::HOOK.to_owned());
        return Ok(Some(Some(Outcome::Killed { by: format!("a hook: {reason}") })));
    }
    // What is said besides a "no" is for the model too, which goes on with it.
    let told = result.additional_context.join("\n");
    let (reason, text) = match result.block {
        Some(reason) if told.is_empty() => (reason.clone(), format!("Stop hook feedback:\n{reason}")),
        Some(reason) => (reason.clone(), format!("Stop hook feedback:\n{reason}\n\n{told}")),
        None if told.is_empty() => return Ok(None),
        None => (told.clone(), told),
    };
    progress.blocks += 1;
    if progress.blocks > MOST_BLOCKS {
        let text =
            format!("hooks kept the run from ending {MOST_BLOCKS} times in a row; it ends now: {reason}");
        record(run, progress, vec![Event::Notice { level: "warning".to_owned(), text }]).await?;
        return Ok(None);
    }
    hear(run, progress, vec![Block::text(text)], Origin::Note("hook".to_owned())).await?;
    Ok(Some(None))
}

/// The report, with the shells that ended with the run.
fn with_stopped(said: &str, stopped: &[String]) -> String {
    if stopped.is_empty() {
        return said.to_owned();
    }
    format!(
        "{said}\n\n[Background commands that were still running and ended with this agent: {}]",
        stopped.join("; ")
    )
}

/// Gives a second call of the same id another one: a provider rejects a conversation with both. Ids are compared as they
/// stand in a request.
fn rename_duplicates(message: &mut Message, context: &Context, dialect: Dialect) {
    let mut here: Vec<CallId> = Vec::new();
    for block in &mut message.blocks {
        if let Block::ToolUse { id, .. } = block {
            let is_here = |candidate: &CallId| here.contains(&dialect.call_id(candidate));
            *id = unused_call(id, |candidate| context.knows_call(candidate) || is_here(candidate));
            here.push(dialect.call_id(id));
        }
    }
}

/// Runs the calls of a reply; gives an outcome if one of them ended the run.
async fn work(run: &RunHandle, progress: &mut Progress, calls: Vec<Call>) -> Result<Option<Outcome>, Stop> {
    let answers = structured::answers(&calls);
    let asked = asked(&calls);
    progress.totals.turns += u32::try_from(calls.len()).unwrap_or(u32::MAX);
    let starts_agent = calls.iter().any(|call| alias::tool(&call.name) == "Agent");
    let before = || progress.context.prefix(progress.replied_at.saturating_sub(1)).map(Arc::new);
    let prefix = if starts_agent { before() } else { None };
    if run.spec.agent.is_some() {
        tell_progress(run, progress, &calls);
    }
    let round = answer(run, &mut progress.context, calls, prefix).await?;
    skill::arm(run, &progress.context);
    progress.denied = None;
    if let Some(outcome) = same_again(run, progress, (asked, round.results)).await? {
        return Ok(Some(outcome));
    }
    if !round.notes.is_empty() {
        let blocks = round.notes.into_iter().map(Block::text).collect();
        hear(run, progress, blocks, Origin::Note("hook".to_owned())).await?;
    }
    tell_about(run, progress, &round.saw).await?;
    if let Some(reason) = round.stopped {
        progress.totals.error = Some(ending::HOOK.to_owned());
        return Ok(Some(Outcome::Killed { by: format!("a hook: {reason}") }));
    }
    for (denial, reason) in round.denials {
        if let Some(reason) = reason {
            progress.denied = Some(unasked(&denial.tool, &reason));
        }
        progress.totals.denials.push(denial);
    }
    if round.interrupt {
        let outcome = Outcome::Killed { by: BY_ANSWER.to_owned() };
        return Ok(Some(outcome));
    }
    let tried = !answers.is_empty();
    if let Some(value) = structured::accepted(answers, &round.answered) {
        progress.said = value.to_string();
        progress.totals.structured = Some(value);
        return conclude(run, progress).await;
    }
    Ok(tried.then(|| missed(progress)).flatten())
}

/// Counts an answer that did not come in the shape that was asked for; too many end the run.
fn missed(progress: &mut Progress) -> Option<Outcome> {
    progress.missed += 1;
    if progress.missed < structured::MOST_TRIES {
        return None;
    }
    progress.totals.error = Some(ending::STRUCTURED_OUTPUT.to_owned());
    let error =
        format!("no answer came in the shape that was asked for, in {} tries", structured::MOST_TRIES);
    Some(Outcome::Failed { error })
}

/// The work is done: the end, unless a hook or something still to be heard sends the run on.
async fn conclude(run: &RunHandle, progress: &mut Progress) -> Result<Option<Outcome>, Stop> {
    if let Some(outcome) = stop_hooks(run, progress).await? {
        return Ok(outcome);
    }
    let Some(stopped) = may_end(run, progress).await else { return Ok(None) };
    // An answer in the shape that was asked for is the answer, whatever else was refused.
    Ok(Some(match progress.denied.take().filter(|_| progress.totals.structured.is_none()) {
        Some(reason) => Outcome::Denied { reason, partial: progress.said.clone() },
        None => Outcome::Completed { report: with_stopped(&progress.said, &stopped), limit: None },
    }))
}

/// Tells a run of the instructions and the skills that are about files it has just read or changed.
pub async fn tell_about(
    run: &RunHandle,
    progress: &mut Progress,
    saw: &[Utf8PathBuf],
) -> Result<(), JournalLost> {
    instruct(run, progress, saw).await?;
    offer(run, progress, saw).await
}

/// Tells a run of the instruction files on the way to what it has just read, each once.
async fn instruct(run: &RunHandle, progress: &mut Progress, saw: &[Utf8PathBuf]) -> Result<(), JournalLost> {
    let mut told: Vec<Instructions> = Vec::new();
    let cwd = run.now().cwd.clone();
    let withheld = call::withheld(&bench(run, &progress.context));
    let mut left_out: Vec<Event> = Vec::new();
    for path in saw {
        // The files of one folder have the same instructions.
        let Some(folder) = path.parent() else { continue };
        if !progress.folders.insert(folder.to_owned()) {
            continue;
        }
        let (readable, denied) = withheld.split(&run.library.nested(&cwd, path));
        left_out.extend(denied.into_iter().map(|text| Event::Notice { level: "warning".to_owned(), text }));
        for instructions in readable {
            let known = &progress.context.state().instructed;
            // An instruction file that was read is known.
            let is_known = known.contains(&instructions.path)
                || instructions.path == *path
                || told.iter().any(|other| other.path == instructions.path);
            if !is_known {
                told.push(instructions);
            }
        }
    }
    if !left_out.is_empty() {
        run.journal.write(&run.who, left_out).await?;
    }
    if told.is_empty() {
        return Ok(());
    }
    let blocks = told.iter().map(|one| Block::text(prompt::instruction(one))).collect();
    hear(run, progress, blocks, Origin::Note(prompt::INSTRUCTIONS.to_owned())).await
}

/// Tells a run of the skills that are about files it has just read or changed, each once.
async fn offer(run: &RunHandle, progress: &mut Progress, saw: &[Utf8PathBuf]) -> Result<(), JournalLost> {
    if run.tools.get(skill::NAME).is_none() {
        return Ok(());
    }
    let mut told: Vec<Arc<Skill>> = Vec::new();
    let withheld = call::withheld(&bench(run, &progress.context));
    let now = run.now();
    // Patterns count from the project's own folder, so a file in a checkout is the one that it stands for.
    let at_home =
        |path: &Utf8Path| now.worktree.as_ref().map_or_else(|| path.to_owned(), |tree| tree.home(path));
    let cwd = at_home(&now.cwd);
    for path in saw {
        if !progress.files.insert(path.clone()) {
            continue;
        }
        for skill in run.library.concerning(&cwd, &at_home(path)) {
            let state = progress.context.state();
            let is_known = state.offered.contains(&skill.name) || told.contains(&skill);
            if skill.invocable.by_model() && !is_known && withheld.standing(&skill.path).is_none() {
                told.push(skill);
            }
        }
    }
    if told.is_empty() {
        return Ok(());
    }
    let blocks = told.iter().map(|skill| Block::text(skill::offer(skill))).collect();
    hear(run, progress, blocks, Origin::Note(prompt::OFFERED.to_owned())).await
}

/// Why a run was denied what it needed, with what would have allowed it.
pub fn unasked(tool: &str, reason: &str) -> String {
    format!("{tool} was not allowed: {reason}")
}

/// A number that is the same for rounds with the same calls. Looking again at a task is no sign of a loop.
fn asked(calls: &[Call]) -> Option<u64> {
    if calls.iter().any(|call| alias::tool(&call.name) == "TaskOutput") {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    for call in calls {
        (&call.name, call.input.to_string()).hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Notices a model that does the same again and again with the same result: tells it, and later ends it.
async fn same_again(
    run: &RunHandle,
    progress: &mut Progress,
    round: (Option<u64>, u64),
) -> Result<Option<Outcome>, Stop> {
    let (Some(asked), results) = round else {
        progress.repeated = None;
        return Ok(None);
    };
    let times = match progress.repeated {
        Some((before, times)) if before == (asked, results) => times + 1,
        _ => 1,
    };
    progress.repeated = Some(((asked, results), times));
    if times == REPEATED_TOLD {
        let text = format!(
            "You have made the same call {times} times in a row and it gave the same result each time. It will \
             not change: do something else, or say what keeps you."
        );
        hear(run, progress, vec![Block::text(text)], Origin::Note("repetition".to_owned())).await?;
    }
    let waiting_for = format!("the same call was made {times} times in a row with the same result");
    Ok((times >= REPEATED_ENDED).then_some(Outcome::Stalled { waiting_for }))
}

/// Shows how far an agent has come, to whoever watches and to its parent.
fn tell_progress(run: &RunHandle, progress: &mut Progress, calls: &[Call]) {
    progress.totals.tool_uses += u32::try_from(calls.len()).unwrap_or(u32::MAX);
    for call in calls {
        let input: String = call.input.to_string().chars().take(MOST_INPUT).collect();
        progress.activities.push_back(Activity { tool: call.name.clone(), input });
    }
    while progress.activities.len() > MOST_ACTIVITIES {
        progress.activities.pop_front();
    }
    let elapsed = progress.elapsed(run);
    let now = TaskProgress {
        tools: progress.totals.tool_uses,
        tokens: progress.totals.context_tokens,
        duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        activities: progress.activities.iter().cloned().collect(),
        waiting: None,
    };
    run.publish_progress(now.clone());
    if let Some(agent) = &run.spec.agent {
        let event = Event::TaskProgressed { task: agent.clone().into(), progress: Box::new(now) };
        run.journal.publish(&run.who, event);
    }
}

/// Whether a reply ended in its middle, so that the next one continues it.
pub fn is_cut(stop_reason: Option<&str>) -> bool {
    matches!(stop_reason, Some("max_tokens" | "model_context_window_exceeded" | PAUSED))
}

/// The model asked for nothing more: the end, unless it was cut off or owes an answer.
async fn finish(run: &RunHandle, progress: &mut Progress) -> Result<Option<Outcome>, Stop> {
    let owes_shape = run.tools.get(structured::NAME).is_some() && progress.totals.structured.is_none();
    let stop_reason = progress.totals.stop_reason.as_deref();
    progress.continues = is_cut(stop_reason);
    let nudge = match stop_reason {
        Some("refusal") => {
            progress.totals.error = Some(ending::REFUSAL.to_owned());
            let error = "the model refused to answer".to_owned();
            return Ok(Some(Outcome::Failed { error }));
        }
        Some(PAUSED) => return Ok(paused(progress)),
        Some("max_tokens") => {
            "Your reply was cut off at the output limit. Continue exactly where it stopped."
        }
        // The window is full now, so that the conversation is shortened before the next request.
        Some("model_context_window_exceeded") => {
            "Your reply was cut off because the context window was full. Continue where it stopped."
        }
        _ if owes_shape => {
            if let Some(outcome) = missed(progress) {
                return Ok(Some(outcome));
            }
            let nudge = Block::text(structured::NUDGE);
            hear(run, progress, vec![nudge], Origin::Note("continue".to_owned())).await?;
            return Ok(None);
        }
        _ => return conclude(run, progress).await,
    };
    progress.nudges += 1;
    if progress.nudges > MOST_NUDGES {
        let error = format!("the model did not come to an end after {MOST_NUDGES} reminders: {nudge}");
        return Ok(Some(Outcome::Failed { error }));
    }
    hear(run, progress, vec![Block::text(nudge)], Origin::Note("continue".to_owned())).await?;
    Ok(None)
}

/// Lets a reply that the provider paused be sent back to be continued; too many pauses end the run.
fn paused(progress: &mut Progress) -> Option<Outcome> {
    progress.pauses += 1;
    let error = format!("the provider paused the reply {MOST_PAUSES} times in a row without ending it");
    (progress.pauses > MOST_PAUSES).then_some(Outcome::Failed { error })
}
