//! When a conversation gets too long. Takes a run's conversation, asks the same model for a summary of it,
//! and gives the run the summary and the last prompt instead. A conversation that is too long for that too is
//! summarised without its oldest tool results. Where no summary can be had, the conversation stays as it is; only a
//! window that is full is emptied without one, and that is reported.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use decurion_model::{Dialect, Head, ModelError, WireMessage};
use decurion_protocol::{Block, Envelope, Event, Message, Origin, Role, WaitReason};
use serde_json::{Value, json};

use crate::branch::Part;
use crate::budget::Exhausted;
use crate::context::{Context, Media, Omittable};
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::progress::{Progress, belongs, record, refold, room};
use crate::run_handle::RunHandle;
use crate::run_hooks::RunHooks;
use crate::spending::{self, Unasked};
use crate::turn::Reply;

/// How many bytes of conversation are one token, on the low side.
const BYTES_PER_TOKEN: u64 = 3;
/// How many bytes of what a person said are kept where a summary does not cover it, and how many of one prompt.
const MOST_KEPT: u64 = 40_000;
const MOST_OF_ONE: usize = 4_000;
/// How often a summary is asked for where the model writes none.
const TRIES: usize = 2;
/// A conversation of fewer bytes is not what makes a request too long.
const LEAST_BYTES: u64 = 4_000;
/// The smallest part worth leaving out, and about what the remark in its place takes.
const LEAST_OMITTED: u64 = 1_000;
const REMARK: u64 = 100;

/// Why a conversation is shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A person asked for it.
    Manual,
    /// By our estimate the window is nearly full.
    Estimate,
    /// The provider said that the conversation is too long.
    Overflow,
}

impl Trigger {
    /// As hooks and the record have it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Estimate | Self::Overflow => "auto",
        }
    }
}

/// Why there is no summary. The conversation is as it was.
#[derive(Debug, thiserror::Error)]
pub enum Unsummarised {
    /// The model could not be asked.
    #[error("the conversation was not shortened: {0}")]
    Model(ModelError),
    /// There is no budget for it.
    #[error("the conversation was not shortened: {0}")]
    Budget(Exhausted),
    /// The model's replies were empty.
    #[error("the conversation was not shortened: the model wrote no summary")]
    Empty,
}

const INSTRUCTIONS: &str = "\
The conversation is about to be shortened: everything above will be replaced by what you write now, so that \
the work can go on. Do not call tools. Write a summary for yourself with these parts, each as short as it can \
be without losing a fact: what the user asked for and every constraint given; what was found out, with file \
paths, names and figures; what was changed, file by file; what failed and why; what is under way right now; \
the next steps. Quote exact identifiers, commands and error messages that will be needed again.";

const NOT_WHOLE: &str = "Some of what stood above did not fit any more and is left out.";

const NO_SUMMARY: &str = "\
The earlier part of this conversation was too long and could not be summarised. Its tool results are gone; \
look again at files you need. What the user said in it:";

const EMPTIED: &str = "the conversation was too long and the model wrote no summary of it: replies and tool results \
    were dropped, and what the user said was kept";

/// Shortens the conversation, or says why it could not. Not a turn; charged to the run.
pub async fn compact(
    run: &RunHandle,
    progress: &mut Progress,
    trigger: Trigger,
    instructions: Option<&str>,
) -> Result<Result<(), Unsummarised>, JournalLost> {
    run.waits(Some(WaitReason::Compaction));
    let hooked = RunHooks { run };
    // They may take long, and nobody waits for them at an interrupt.
    let hooks = hooked.before_compaction(trigger.as_str(), instructions);
    drop(run.cancel.run_until_cancelled(hooks).await);
    let summarised = summarise(run, progress, trigger, instructions).await?;
    let is_full = trigger == Trigger::Overflow || progress.context.tokens() > room(run);
    let (summary, notice) = match summarised {
        Ok(Summary { text, omitted, bytes }) => {
            let prompts = match omitted.messages {
                0 => String::new(),
                _ => format!("\n\nWhat the user said:{}", prompts(run, bytes / 4).await),
            };
            (format!("Summary of the conversation so far:\n\n{text}{prompts}"), omitted.notice())
        }
        Err(Unsummarised::Empty) if is_full => {
            (format!("{NO_SUMMARY}{}", prompts(run, MOST_KEPT).await), Some(EMPTIED.to_owned()))
        }
        Err(error) => {
            run.waits(None);
            return Ok(Err(error));
        }
    };
    let kept = progress.context.tail(run.voice.model.info.window / 5 * BYTES_PER_TOKEN);
    let mut blocks = vec![Block::text(summary.clone())];
    if kept.is_empty() && trigger != Trigger::Manual {
        blocks.push(Block::text("Go on with the work from here."));
    }
    let compacted = Event::Compacted {
        boundary: new_line(),
        line: new_line(),
        logical_parent: progress.context.leaf(),
        summary: Message { role: Role::User, blocks },
        kept,
        trigger: trigger.as_str().to_owned(),
        tokens_before: progress.context.tokens(),
        checkpoint: Value::Null,
    };
    let notice = notice.map(|text| Event::Notice { level: "warning".to_owned(), text });
    let mut events = spending::charged(run, progress);
    events.extend(std::iter::once(compacted).chain(notice));
    record(run, progress, events).await?;
    progress.forget_folders();
    drop(run.cancel.run_until_cancelled(hooked.after_compaction(trigger.as_str(), &summary)).await);
    run.waits(None);
    Ok(Ok(()))
}

/// The model's summary of a conversation.
struct Summary {
    text: String,
    /// What it does not cover.
    omitted: Omitted,
    /// The bytes of the messages that it was made of, which fit the window.
    bytes: u64,
}

/// Asks the model for a summary, of less and less of the conversation while it is too long.
async fn summarise(
    run: &RunHandle,
    progress: &mut Progress,
    trigger: Trigger,
    instructions: Option<&str>,
) -> Result<Result<Summary, Unsummarised>, JournalLost> {
    let mut text = INSTRUCTIONS.to_owned();
    if let Some(instructions) = instructions {
        text.push_str("\n\nPay special attention to: ");
        text.push_str(instructions);
    }
    let head = without_calls(run);
    let wire_head = Arc::new(run.voice.model.dialect.head(&head));
    let (mut media, mut most) = (progress.media(), most_bytes(run, progress, trigger));
    let (mut blank, mut sent) = (0, u64::MAX);
    loop {
        let (messages, omitted) = match most {
            None => (progress.context.request_with(Block::text(text.clone()), media), Omitted::default()),
            Some(most) => omit(run, progress, most, &text).await,
        };
        let messages: Arc<[WireMessage]> = messages.into();
        let bytes = messages.iter().map(|message| message.bytes.len() as u64).sum();
        // What is left out was counted, so the count is of no use for the rest.
        let counted = progress.context.counted().filter(|_| most.is_none());
        let input = spending::weigh(run, &messages, counted);
        let stop_reason = progress.totals.stop_reason.clone();
        let reply = spending::ask(run, progress, input, (&head, &wire_head), &messages).await;
        progress.totals.stop_reason = stop_reason;
        let reply = match reply {
            Err(Unasked::Budget(exhausted)) => return Ok(Err(Unsummarised::Budget(exhausted))),
            Err(Unasked::Journal(lost)) => return Err(lost),
            Err(Unasked::Model(error)) => Err(error),
            Ok(reply) => {
                spending::charge_summary(run, progress, &reply);
                Ok(reply)
            }
        };
        match reply.as_ref().map(said) {
            Ok(text) if !text.trim().is_empty() => return Ok(Ok(Summary { text, omitted, bytes })),
            Ok(_) | Err(ModelError::Empty { .. }) if blank + 1 < TRIES => blank += 1,
            Ok(_) | Err(ModelError::Empty { .. }) => return Ok(Err(Unsummarised::Empty)),
            Err(ModelError::TooLong { .. }) if bytes > LEAST_BYTES && bytes < sent => {
                (sent, most) = (bytes, Some(bytes / 3 * 2));
            }
            Err(ModelError::Rejected { .. }) if media == Media::Sent && progress.context.has_media() => {
                media = Media::LeftOut;
            }
            Err(error) => return Ok(Err(Unsummarised::Model(error.clone()))),
        }
    }
}

/// The summary that a reply holds; a refusal is none.
fn said(reply: &Reply) -> String {
    match reply.meta.stop_reason.as_deref() {
        Some("refusal") => String::new(),
        _ => reply.message.text(),
    }
}

/// How many bytes of messages the first request for a summary may hold; none if the conversation fits as it is.
fn most_bytes(run: &RunHandle, progress: &mut Progress, trigger: Trigger) -> Option<u64> {
    let room = room(run) * BYTES_PER_TOKEN;
    match trigger {
        // What was sent was too long, whatever we think of it.
        Trigger::Overflow => Some(room.min(progress.context.bytes(Media::LeftOut) / 3 * 2)),
        Trigger::Manual | Trigger::Estimate => {
            (progress.context.tokens() * BYTES_PER_TOKEN > room).then_some(room)
        }
    }
}

/// What of a conversation its summary does not cover.
#[derive(Debug, Default, PartialEq, Eq)]
struct Omitted {
    results: usize,
    inputs: usize,
    messages: usize,
}

impl Omitted {
    fn notice(&self) -> Option<String> {
        let nothing = *self == Self::default();
        (!nothing).then(|| format!("the conversation was too long to be summarised whole; left out: {self}"))
    }
}

impl fmt::Display for Omitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.results, "of the oldest tool results"),
            (self.inputs, "of the oldest tool inputs"),
            (self.messages, "of the oldest messages"),
        ];
        let parts: Vec<_> = parts.iter().filter(|(count, _)| *count > 0).collect();
        for (index, (count, what)) in parts.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {what}")?;
        }
        Ok(())
    }
}

/// The messages of a request for a summary that holds at most so many bytes, as far as that can be: images go first,
/// then the oldest tool results, then the oldest inputs, then the oldest messages.
async fn omit(
    run: &RunHandle,
    progress: &mut Progress,
    most: u64,
    text: &str,
) -> (Vec<WireMessage>, Omitted) {
    let last = Block::text(format!("{NOT_WHOLE} {text}"));
    let mut excess = progress.context.bytes(Media::LeftOut).saturating_sub(most);
    let mut parts = HashSet::new();
    for (part, bytes) in progress.context.omittable() {
        if excess > 0 && bytes >= LEAST_OMITTED {
            excess = excess.saturating_sub(bytes - REMARK);
            parts.insert(part);
        }
    }
    let results = parts.iter().filter(|part| matches!(part, Omittable::Result(_))).count();
    let inputs = parts.len() - results;
    let shorter = if parts.is_empty() {
        None
    } else {
        refold(run, Context::omitting(run.voice.model.dialect, parts)).await
    };
    let (messages, missing) = match shorter {
        Some(mut shorter) => shorter.request_within(most, last, Media::LeftOut),
        None => progress.context.request_within(most, last, Media::LeftOut),
    };
    (messages, Omitted { results, inputs, messages: missing })
}

/// The run's head with tools that may not be called: a conversation that holds calls must still name them.
fn without_calls(run: &RunHandle) -> Head {
    let mut head = (*run.voice.head).clone();
    if !head.tools.is_empty() {
        let choice = match run.voice.model.dialect {
            Dialect::Anthropic => json!({"type": "none"}),
            Dialect::OpenAiChat => json!("none"),
        };
        head.extra.insert("tool_choice".to_owned(), choice);
    }
    head
}

/// What a person said, each prompt quoted and newest last, in about so many bytes.
async fn prompts(run: &RunHandle, most: u64) -> String {
    let agent = run.who.agent.clone();
    let before = run.lineage.inherited.clone();
    let branches = run.journal.branches();
    let most = usize::try_from(most.min(MOST_KEPT)).unwrap_or_default();
    let take = move |said: &mut VecDeque<String>, envelope: Envelope| {
        if let Some(until) = belongs(&envelope, agent.as_ref(), &before)
            && let Part::Whole(Event::Message { message, meta, .. }) = branches.part(&envelope, until)
            && message.role == Role::User
            && meta.origin == Origin::Prompt
        {
            let text = message.text();
            let end = text.char_indices().nth(MOST_OF_ONE).map_or(text.len(), |(end, _)| end);
            let cut = if end < text.len() { "…" } else { "" };
            said.push_back(format!("{}{cut}", &text[..end]));
            while said.len() > 1 && said.iter().map(String::len).sum::<usize>() > most {
                said.pop_front();
            }
        }
    };
    let said = run.journal.fold(0, VecDeque::new(), take).await.unwrap_or_default();
    said.iter().fold(String::new(), |text, said| text + "\n\n> " + said)
}
