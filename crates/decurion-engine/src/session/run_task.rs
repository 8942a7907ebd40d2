//! Room 8. A [`RunSpec`] becomes a living run. Takes a decided run and its conversation, gives a task whose
//! end is on record whatever happened: completed, cancelled, or panicked.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_protocol::output::CUT_OFF;
use decurion_protocol::{
    Block, CallId, Event, LineId, Message, MessageMeta, Origin, Outcome, Role, RunSpec, StartStep,
    ToolEffect, ToolOutput, Totals,
};
use decurion_tools::ToolContext;
use decurion_tools::mcp::prompts;
use decurion_tools::shell::stopped;
use futures_util::FutureExt as _;

use crate::attach::{ATTACHMENT, Attached, attach};
use crate::bench::{Bench, Call};
use crate::call;
use crate::calls::bench;
use crate::context::{Context, OpenCall};
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::progress::{Carried, Progress, record, refold};
use crate::prompt;
use crate::run::{Stop, run, tell_about};
use crate::run_handle::RunHandle;
use crate::run_hooks::RunHooks;
use crate::session::resources::Resources;
use crate::skill::{
    self,
    slash::{self, Typed},
};
use crate::spending;
use crate::task::{BY_END, BY_INTERRUPT};
use crate::turn::Partial;
use crate::worktree::Made;

/// What is said at the start of a run.
#[derive(Default)]
pub struct Said {
    /// What surrounds the conversation, told once at its beginning.
    pub note: Option<String>,
    /// For a fork: the call that delegates, and what it is told about where it is.
    pub entry: Option<Entry>,
    pub prompt: Vec<Block>,
    /// The id of the prompt's line, where somebody knows it by that.
    pub line: Option<LineId>,
    /// The skills whose texts the prompt holds, where they bring hooks.
    pub skills: Vec<String>,
    /// What `SessionStart` hooks are told, where the session begins with this run; else empty.
    pub starts: &'static str,
}

impl Said {
    /// Tells a run that begins in a checkout of its own how the paths it hears of are called there.
    pub fn translate(&mut self, made: Option<&Made>) {
        let Some(made) = made else { return };
        let told = prompt::in_worktree(&made.worktree, made.without);
        self.note = Some(self.note.take().map_or(told.clone(), |note| format!("{note}\n\n{told}")));
    }
}

/// How a run begins.
pub enum Beginning {
    /// Nothing of it is on record yet, because a hook may refuse the prompt: the root.
    Saying(Box<Said>),
    /// Its start and its prompt are on record, so that a crash before its first step loses nothing: an agent.
    Opened {
        /// Whether the agent has not worked before.
        first: bool,
    },
}

/// How a fork enters its parent's conversation.
pub struct Entry {
    /// The delegating message, reduced to its own call.
    pub delegating: Message,
    pub call: CallId,
    pub output: ToolOutput,
}

/// What is left of a run.
pub struct Left {
    /// Its conversation; none if it must be read from the record again.
    pub context: Option<Context>,
    /// How it ended, if that is on record.
    pub ending: Option<(Outcome, Totals)>,
    /// Turns and time that counted for its limits.
    pub used: (u32, Duration),
}

impl Left {
    /// Nothing is known but what is on record.
    pub fn nothing() -> Self {
        Self { context: None, ending: None, used: (0, Duration::ZERO) }
    }
}

/// Lives a run to its last record.
pub async fn live(
    living: &RunHandle,
    resources: &mut Resources,
    context: Context,
    beginning: Beginning,
    carried: Carried,
) -> Left {
    let mut progress = Progress::new(living, context).after(&carried);
    if let Beginning::Saying(said) = &beginning {
        progress.untaken = said.line;
    }
    let began = living.clock.elapsed();
    let outcome = match beginning {
        // One that was stopped before it began needs nothing any more.
        Beginning::Opened { .. } if living.cancel.is_cancelled() => Attempt::Broken(killed(living)),
        Beginning::Opened { first } => match resources.take_up().await {
            Ok(()) => attempt(living, resources, &mut progress, carried, (first, began)).await,
            Err(error) => Attempt::Ended(Outcome::Failed { error }),
        },
        // Hooks, and the commands and questions of a typed skill, may take long.
        Beginning::Saying(said) => {
            let beginning = Box::pin(begin(living, &mut progress, *said, &carried.calls));
            let begun = living.cancel.run_until_cancelled(beginning).await;
            match begun {
                None => Attempt::Broken(killed(living)),
                Some(Ok(None)) => attempt(living, resources, &mut progress, carried, (false, began)).await,
                Some(Ok(Some(Refused::ByHook(reason)))) => {
                    let report = format!("The prompt was not let through by a hook: {reason}");
                    Attempt::Ended(Outcome::Completed { report, limit: None })
                }
                Some(Ok(Some(Refused::Mistaken(error)))) => Attempt::Ended(Outcome::Failed { error }),
                Some(Err(lost)) => Attempt::Ended(Outcome::Failed { error: lost.to_string() }),
            }
        }
    };
    let outcome = match outcome {
        Attempt::Ended(outcome) => outcome,
        Attempt::Broken(outcome) => {
            // What was under way when it stopped may be on record or not: look, rather than guess. The
            // conversation of an agent goes no further, and closing a call twice changes nothing.
            if living.spec.agent.is_some() {
                return finish(living, progress, outcome, began).await;
            }
            match refold(living, Context::new(living.voice.model.dialect)).await {
                Some(context) => progress.context = context,
                None => return Left::nothing(),
            }
            outcome
        }
    };
    finish(living, progress, outcome, began).await
}

/// Puts the end of a run on record.
async fn finish(living: &RunHandle, mut progress: Progress, outcome: Outcome, began: Duration) -> Left {
    let took = living.clock.elapsed().saturating_sub(began);
    progress.totals.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    progress.totals.turns += 1;
    let cut_short =
        matches!(outcome, Outcome::Killed { .. } | Outcome::Stalled { .. } | Outcome::Failed { .. });
    if cut_short && living.spec.agent.is_some() && !progress.said().is_empty() {
        progress.totals.partial = Some(progress.said().to_owned());
    }
    let used = (progress.turns, progress.elapsed(living));
    match end(living, &mut progress, outcome).await {
        Ok(ending) => Left { context: Some(progress.context), ending: Some(ending), used },
        Err(_) => Left::nothing(),
    }
}

/// How an attempt at the work came to a stop.
enum Attempt {
    Ended(Outcome),
    /// In the middle of something.
    Broken(Outcome),
}

async fn attempt(
    living: &RunHandle,
    resources: &mut Resources,
    progress: &mut Progress,
    carried: Carried,
    (first, began): (bool, Duration),
) -> Attempt {
    let most = living.limits().seconds.map(Duration::from_secs);
    let has_time = most.is_none_or(|most| most > carried.time) || !carried.calls.is_empty();
    let work = async {
        if living.spec.agent.is_some() {
            ready(living, resources, progress, first).await?;
        }
        run(living, progress, carried.calls).await
    };
    let work = AssertUnwindSafe(work).catch_unwind();
    let stopped = tokio::select! {
        biased;
        // One that has no time left ends by itself at its first step, and hears what it was told before.
        () = time_is_up(living, carried.time, began), if has_time => None,
        () = living.cancel.cancelled() => Some(Attempt::Broken(killed(living))),
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

fn killed(living: &RunHandle) -> Outcome {
    Outcome::Killed { by: living.stopped_by().unwrap_or_else(|| BY_INTERRUPT.to_owned()) }
}

/// Waits for the end of the wall time; for ever without a limit, and while the run is held, which is not its own time.
/// A turn asked for in time may still be answered late: the limit ends that too.
async fn time_is_up(living: &RunHandle, before: Duration, began: Duration) {
    living.time_is_up(|| before + living.clock.elapsed().saturating_sub(began)).await;
}

/// The last steps of an agent's start.
async fn ready(
    living: &RunHandle,
    resources: &mut Resources,
    progress: &mut Progress,
    first: bool,
) -> Result<(), JournalLost> {
    match resources.servers.names() {
        Some(names) => resources.noted(StartStep::Servers, names),
        None => resources.took(StartStep::Servers),
    }
    let mut events = Vec::new();
    if first {
        let (told, ran) = agent_hooks(living).await;
        if !told.is_empty() {
            let blocks = told.into_iter().map(Block::text).collect();
            say(blocks, Origin::Note("hook".to_owned()), &progress.context, &mut events);
        }
        match ran {
            0 => resources.took(StartStep::StartHooks),
            // On record, so that they are not told twice of one start.
            ran => resources.noted(StartStep::StartHooks, format!("{ran} told")),
        }
    }
    resources.took(StartStep::OwnHooks);
    match preload(living, &progress.context, first, &mut events) {
        Some(note) => resources.noted(StartStep::Skills, note),
        None => resources.took(StartStep::Skills),
    }
    // In one write: after a crash both were told or neither was.
    if !events.is_empty() {
        record(living, progress, events).await?;
    }
    for step in [StartStep::Context, StartStep::Request] {
        resources.took(step);
    }
    resources.tell_start(&living.journal, &living.who).await;
    Ok(())
}

/// The texts of the skills that an agent's definition names, one block each. Gives what there is to say of it.
fn preload(living: &RunHandle, context: &Context, first: bool, events: &mut Vec<Event>) -> Option<String> {
    let definition = &living.spec.definition;
    if !first || definition.equipment.skills.is_empty() {
        return None;
    }
    let skill::Preloaded { texts, hooked, missing } = skill::preload(&bench(living, context));
    let mut note = format!("{} loaded", texts.len());
    if !texts.is_empty() {
        let blocks = (texts.into_iter().map(Block::text).collect(), new_line());
        say_skills(blocks, hooked, Origin::Note("skill".to_owned()), context, events);
    }
    if !missing.is_empty() {
        let names = missing.join(", ");
        note = format!("{note}, not found: {names}");
        let text = format!("agent {}: no such skill: {names}", definition.name);
        events.push(Event::Notice { level: "warning".to_owned(), text });
    }
    Some(note)
}

/// What the hooks of an agent's start tell its model, and how many there were.
async fn agent_hooks(living: &RunHandle) -> (Vec<String>, usize) {
    let hooked = RunHooks { run: living };
    let result = hooked.agent_start().await;
    (result.additional_context, result.reports.len())
}

/// The root's start and its prompt, in one write. Calls that are left to be done stay open. Gives why a hook refuses the prompt, if one does.
async fn begin(
    living: &RunHandle,
    progress: &mut Progress,
    mut said: Said,
    left: &[OpenCall],
) -> Result<Option<Refused>, JournalLost> {
    skill::arm(living, &progress.context);
    // Not whether there is a note: where a session has moved to is told in its middle too.
    let first = progress.context.is_empty();
    let (told, mut refused) = root_hooks(living, said.starts, &said.prompt).await;
    if refused.is_some() {
        said.prompt.clear();
    }
    let typed = said.prompt.clone();
    match command(living, &progress.context, &said.prompt).await {
        Heard::Words => {}
        Heard::Command { blocks, hooked } => {
            said.prompt = blocks;
            said.skills.extend(hooked);
        }
        Heard::Mistaken(text) => {
            said.prompt.clear();
            refused = Some(Refused::Mistaken(text));
        }
    }
    let is_said = !said.prompt.is_empty();
    let mut events = opening(&living.spec, &progress.context, said, left);
    let attached =
        if is_said { attach(&bench(living, &progress.context), &typed).await } else { Attached::default() };
    let saw: Vec<Utf8PathBuf> = attached.effects.iter().filter_map(ToolEffect::seen).collect();
    say_attached(attached, &progress.context, &mut events);
    if !told.is_empty() {
        let blocks = told.into_iter().map(Block::text).collect();
        say(blocks, Origin::Note("hook".to_owned()), &progress.context, &mut events);
    }
    preload(living, &progress.context, first, &mut events);
    record(living, progress, events).await?;
    progress.untaken.take_if(|_| is_said);
    tell_about(living, progress, &saw).await?;
    Ok(refused)
}

/// What the hooks of a beginning tell the root's model, and why the prompt is refused, if it is.
async fn root_hooks(
    living: &RunHandle,
    starts: &'static str,
    prompt: &[Block],
) -> (Vec<String>, Option<Refused>) {
    let hooked = RunHooks { run: living };
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
    (told, result.block.or(result.stop).map(Refused::ByHook))
}

/// Why a prompt goes no further.
enum Refused {
    /// A hook does not let it through.
    ByHook(String),
    /// It is a command that does not exist.
    Mistaken(String),
}

/// What a prompt turned out to be.
enum Heard {
    /// Words, to be sent as they are.
    Words,
    /// A command: this is sent in its place.
    Command {
        blocks: Vec<Block>,
        /// The command's name, where it brings hooks for whoever follows it.
        hooked: Option<String>,
    },
    /// A command that does not exist.
    Mistaken(String),
}

/// Puts the text of a command in the place of its name. What stands behind the first block goes along.
async fn command(living: &RunHandle, context: &Context, prompt: &[Block]) -> Heard {
    let library = &living.library;
    let (skill, args) = match slash::read(prompt, &**library) {
        Typed::Words => return Heard::Words,
        Typed::Mistaken(text) => return Heard::Mistaken(text),
        Typed::Prompt(name, args) => return servers_prompt(living, context, prompt, &name, &args).await,
        Typed::Command(skill, args) => (skill, args),
    };
    let body = match skill::body(&bench(living, context), &skill) {
        Ok(body) => body,
        Err(reason) => return Heard::Mistaken(format!("/{} cannot be read: {reason}", skill.name)),
    };
    let by_agent = skill::is_by_agent(&skill, &living.tools);
    let text = if by_agent {
        format!(
            "The user calls the skill {}. Call it with the Skill tool now, with these arguments: {args}",
            skill.name
        )
    } else {
        let bench = bench(living, context);
        let (call, cx) = typed_call(&bench);
        skill::expand(&bench, &call, &cx, &skill, &body, &args).await
    };
    let mut blocks = vec![Block::text(slash::header(&skill.name, &args)), Block::text(text)];
    blocks.extend(prompt.iter().skip(1).cloned());
    let hooked = (skill.hooks.is_some() && !by_agent).then(|| skill.name.clone());
    Heard::Command { blocks, hooked }
}

/// The call that a typed command stands for, and what it works with.
fn typed_call(bench: &Bench<'_>) -> (Call, ToolContext) {
    let id = CallId(format!("command_{}", new_line().0.simple()));
    let call = Call { id, name: skill::NAME.to_owned(), input: serde_json::Value::Null, line: None };
    let (progress, _) = tokio::sync::mpsc::channel(1);
    let cx = call::context(bench, &call, Arc::new(decurion_tools::NoRules), progress);
    (call, cx)
}

/// Puts a server's prompt in the place of its name. A text of the server's is words: nothing in it is run.
async fn servers_prompt(
    living: &RunHandle,
    context: &Context,
    prompt: &[Block],
    name: &str,
    args: &str,
) -> Heard {
    let (_, cx) = typed_call(&bench(living, context));
    let servers = Arc::clone(&living.servers);
    let mut given = match prompts::get(&servers, name, &skill::words(args), &cx).await {
        Ok(given) => given,
        Err(text) => return Heard::Mistaken(text),
    };
    for block in &mut given {
        // What a prompt holds is not looked at again.
        if let Block::Text { text } = block {
            *text = (living.equipment.redact)(text).unwrap_or_else(|| std::mem::take(text));
        }
    }
    let mut blocks = vec![Block::text(slash::header(name, args))];
    blocks.append(&mut given);
    blocks.extend(prompt.iter().skip(1).cloned());
    Heard::Command { blocks, hooked: None }
}

/// The records that a run begins with: results for calls that have none and are not done now, its start, and
/// what it is told.
pub fn opening(spec: &RunSpec, context: &Context, said: Said, left: &[OpenCall]) -> Vec<Event> {
    let is_left = |call: &CallId, _| left.iter().any(|open| open.id == *call);
    let mut events = closing(context, is_left, |_| false, |_| None);
    events.push(Event::RunStarted { spec: Box::new(spec.clone()) });
    if let Some(entry) = said.entry {
        enter(entry, context, &mut events);
    }
    if let Some(note) = said.note {
        say(vec![Block::text(note)], Origin::Note(prompt::CONTEXT.to_owned()), context, &mut events);
    }
    if !said.prompt.is_empty() {
        let line = said.line.unwrap_or_else(new_line);
        say_skills((said.prompt, line), said.skills, Origin::Prompt, context, &mut events);
    }
    events
}

/// Adds a message of the user's side behind what stands there.
fn say(blocks: Vec<Block>, origin: Origin, context: &Context, events: &mut Vec<Event>) {
    say_skills((blocks, new_line()), Vec::new(), origin, context, events);
}

/// The same, where it holds the texts of skills that bring hooks.
fn say_skills(
    (blocks, line): (Vec<Block>, LineId),
    skills: Vec<String>,
    origin: Origin,
    context: &Context,
    events: &mut Vec<Event>,
) {
    events.push(Event::Message {
        message: Message { role: Role::User, blocks },
        lines: vec![line],
        parent: leaf(context, events),
        meta: Box::new(MessageMeta { origin, skills, ..Default::default() }),
    });
}

/// Adds the files that are attached to a prompt behind it, and tells the person of them.
fn say_attached(attached: Attached, context: &Context, events: &mut Vec<Event>) {
    let Attached { blocks, effects, notices } = attached;
    if !blocks.is_empty() {
        let origin = Origin::Note(ATTACHMENT.to_owned());
        events.push(Event::Message {
            message: Message { role: Role::User, blocks },
            lines: vec![new_line()],
            parent: leaf(context, events),
            meta: Box::new(MessageMeta { origin, effects, ..Default::default() }),
        });
    }
    events.extend(notices);
}

/// The last line of a conversation once these events are in it.
fn leaf(context: &Context, events: &[Event]) -> Option<LineId> {
    let line = |event: &Event| match event {
        Event::Message { lines, .. } => lines.last().copied(),
        Event::CallEnded { line, .. } => Some(*line),
        _ => None,
    };
    events.iter().rev().find_map(line).or_else(|| context.leaf())
}

/// The delegating message and its answer, as a fork's own first lines.
fn enter(entry: Entry, context: &Context, events: &mut Vec<Event>) {
    let parent = leaf(context, events);
    let lines: Vec<LineId> = entry.delegating.blocks.iter().map(|_| new_line()).collect();
    let last = lines.last().copied();
    let meta = MessageMeta { origin: Origin::Model, ..MessageMeta::default() };
    events.push(Event::Message { message: entry.delegating, lines, parent, meta: Box::new(meta) });
    events.push(Event::CallEnded {
        call: entry.call,
        tool: "Agent".to_owned(),
        line: new_line(),
        parent: last,
        output: Box::new(entry.output),
        duration_ms: 0,
    });
}

async fn end(
    living: &RunHandle,
    progress: &mut Progress,
    outcome: Outcome,
) -> Result<(Outcome, Totals), JournalLost> {
    // Whoever reads of the end may act on it before the run's task is gone.
    living.is_ending();
    let mut events = spending::charged(living, progress);
    let mut totals = std::mem::take(&mut progress.totals);
    let is_left = |_: &CallId, begun: bool| outcome.leaves_question() && !begun;
    let cut_off = |call: &CallId| {
        let printed = living.status().cut_off.get(call).cloned()?;
        Some(call::clean(&living.equipment.redact, stopped(&printed.shown())))
    };
    let has_begun = |call: &CallId| living.status().calls.contains(call);
    events.extend(closing(&progress.context, is_left, has_begun, cut_off));
    let note = match &outcome {
        Outcome::Killed { by } if by == BY_INTERRUPT => Some(REPLY_INTERRUPTED),
        Outcome::Killed { by } if by == BY_END => Some(REPLY_CLOSED),
        _ => None,
    };
    if let (Some(partial), Some(note), None) = (progress.partial.take(), note, &living.spec.agent) {
        interrupted(partial, note, &progress.context, &mut events);
    }
    totals.leaf = leaf(&progress.context, &events).filter(|_| living.spec.agent.is_some());
    // A session that closes before a prompt has begun works on it when it is opened again, as after a crash.
    let is_closed = living.is_closed();
    let untaken = progress.untaken.take().filter(|_| !is_closed);
    events.extend(untaken.map(|line| Event::Unqueued { lines: vec![line] }));
    events.push(Event::RunEnded { outcome: outcome.clone(), totals: Box::new(totals.clone()) });
    record(living, progress, events).await?;
    // A whole fan-out that ends at once must not wait for as many syncs; the journal syncs soon anyway.
    if living.spec.agent.is_none() {
        living.journal.sync_soon();
    }
    Ok((outcome, totals))
}

/// Adds what a person has read of a reply that did not come to its end, and a note why.
fn interrupted(partial: Partial, note: &str, context: &Context, events: &mut Vec<Event>) {
    if let Some((message, meta)) = partial.into_message() {
        let lines = message.blocks.iter().map(|_| new_line()).collect();
        let parent = leaf(context, events);
        events.push(Event::Message { message, lines, parent, meta: Box::new(meta) });
    }
    say(vec![Block::text(note)], Origin::Note("interrupt".to_owned()), context, events);
}

const REPLY_INTERRUPTED: &str = "Interrupted: the user stopped this turn here, before the reply was complete. Do not \
    continue it unless the user asks for that.";
const REPLY_CLOSED: &str = "Interrupted: the session was closed here, before the reply was complete. Do not continue it \
    unless the user asks for that.";

/// Results that say so for calls that have none: a call whose intent is on record may have had effects, one
/// without was never begun. The conversation hears of an intent only with the call's end, so that whoever was stopped
/// in between knows better. Those that are left, by whether they were begun, stay without a result.
fn closing(
    context: &Context,
    is_left: impl Fn(&CallId, bool) -> bool,
    has_begun: impl Fn(&CallId) -> bool,
    cut_off: impl Fn(&CallId) -> Option<ToolOutput>,
) -> Vec<Event> {
    let known = |(call, started): (CallId, bool)| {
        let started = started || has_begun(&call);
        (call, started)
    };
    let close = |(call, started): (CallId, bool)| Event::CallEnded {
        line: new_line(),
        parent: context.call_line(&call),
        output: Box::new(match cut_off(&call) {
            Some(output) => output,
            None if started => ToolOutput::error(format!("{CUT_OFF} {LOOK_FIRST}")),
            None => ToolOutput::error(NOT_BEGUN),
        }),
        call,
        tool: String::new(),
        duration_ms: 0,
    };
    let open = context.unanswered().into_iter();
    open.map(known).filter(|(call, started)| !is_left(call, *started)).map(close).collect()
}

/// What the model is told besides, who may try it again.
const LOOK_FIRST: &str = "Look at what it may have done before doing it again.";
const NOT_BEGUN: &str = "Interrupted: this call was not begun.";
