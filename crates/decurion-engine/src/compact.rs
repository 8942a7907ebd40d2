//! When a conversation gets too long. Takes a run's conversation, asks the same model for a summary of it,
//! and goes on with the summary and the last prompt; where even that fails, with what can be kept without
//! a model.

use std::collections::VecDeque;
use std::sync::Arc;

use decurion_model::{Dialect, Head};
use decurion_protocol::{Block, Envelope, Event, Message, Origin, Role, WaitReason};
use serde_json::{Value, json};

use crate::branch::Part;
use crate::hooked::Hooked;
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::run::{Progress, Run, belongs, record, request, reserve, settle, timed_turn};

/// How many bytes of conversation are one token, on the low side.
const BYTES_PER_TOKEN: u64 = 3;
/// How many bytes of what a person said are kept where there is no summary.
const MOST_KEPT: usize = 40_000;
/// How often a summary is asked for.
const TRIES: usize = 2;

const INSTRUCTIONS: &str = "\
The conversation is about to be shortened: everything above will be replaced by what you write now, so that \
the work can go on. Do not call tools. Write a summary for yourself with these parts, each as short as it can \
be without losing a fact: what the user asked for and every constraint given; what was found out, with file \
paths, names and figures; what was changed, file by file; what failed and why; what is under way right now; \
the next steps. Quote exact identifiers, commands and error messages that will be needed again.";

const NO_SUMMARY: &str = "\
The earlier part of this conversation was too long and could not be summarised. Its tool results are gone; \
look again at files you need. What the user said in it:";

/// Shortens the conversation. Not a turn; charged to the run.
pub async fn compact(
    run: &Run,
    progress: &mut Progress,
    trigger: &str,
    instructions: Option<&str>,
) -> Result<(), JournalLost> {
    let ports = &run.ports;
    ports.desk.waits(&ports.journal, Some(WaitReason::Compaction));
    let hooked = Hooked { spec: &run.spec, ports };
    // They may take long, and nobody waits for them at an interrupt.
    drop(ports.cancel.run_until_cancelled(hooked.before_compaction(trigger, instructions)).await);
    let tokens_before = progress.context.tokens();
    let kept = progress.context.tail(ports.model.info.window / 5 * BYTES_PER_TOKEN);
    let summary = match summarise(run, progress, instructions).await {
        Some(text) => format!("Summary of the conversation so far:\n\n{text}"),
        None => without_a_model(run).await,
    };
    let mut blocks = vec![Block::text(summary.clone())];
    if kept.is_empty() && trigger == "auto" {
        blocks.push(Block::text("Go on with the work from here."));
    }
    let event = Event::Compacted {
        boundary: new_line(),
        line: new_line(),
        logical_parent: progress.context.leaf(),
        summary: Message { role: Role::User, blocks },
        kept,
        trigger: trigger.to_owned(),
        tokens_before,
        checkpoint: Value::Null,
    };
    record(run, progress, vec![event]).await?;
    progress.forget_folders();
    drop(ports.cancel.run_until_cancelled(hooked.after_compaction(trigger, &summary)).await);
    ports.desk.waits(&ports.journal, None);
    Ok(())
}

/// The model's summary; none if it could not be had.
async fn summarise(run: &Run, progress: &mut Progress, instructions: Option<&str>) -> Option<String> {
    let mut text = INSTRUCTIONS.to_owned();
    if let Some(instructions) = instructions {
        text.push_str("\n\nPay special attention to: ");
        text.push_str(instructions);
    }
    for _ in 0..TRIES {
        let head = Arc::new(run.ports.model.dialect.head(&without_calls(run)));
        let request = request(run, head, progress.context.request_with(Block::text(text.clone())));
        let (held, _) = reserve(run, request.len()).ok()?;
        let reply = timed_turn(run, progress, request).await;
        let stop_reason = progress.totals.stop_reason.clone();
        settle(run, progress, held, reply.as_ref().ok());
        progress.totals.stop_reason = stop_reason;
        match reply.map(|reply| reply.message.text()) {
            Ok(summary) if !summary.trim().is_empty() => return Some(summary),
            _ => {}
        }
    }
    None
}

/// The run's head with tools that may not be called: a conversation that holds calls must still name them.
fn without_calls(run: &Run) -> Head {
    let mut head = (*run.ports.head).clone();
    if !head.tools.is_empty() {
        let choice = match run.ports.model.dialect {
            Dialect::Anthropic => json!({"type": "none"}),
            Dialect::OpenAiChat => json!("none"),
        };
        head.extra.insert("tool_choice".to_owned(), choice);
    }
    head
}

/// What a person said, newest last and bounded: all that can be kept for sure.
async fn without_a_model(run: &Run) -> String {
    let agent = run.ports.who.agent.clone();
    let before = run.ports.desk.inherited.clone();
    let branches = run.ports.journal.branches();
    let take = move |said: &mut VecDeque<String>, envelope: Envelope| {
        if let Some(until) = belongs(&envelope, agent.as_ref(), &before)
            && let Part::Whole(Event::Message { message, meta, .. }) = branches.part(&envelope, until)
            && message.role == Role::User
            && meta.origin == Origin::Prompt
        {
            said.push_back(message.text());
            while said.len() > 1 && said.iter().map(String::len).sum::<usize>() > MOST_KEPT {
                said.pop_front();
            }
        }
    };
    let said = run.ports.journal.fold(0, VecDeque::new(), take).await.unwrap_or_default();
    said.iter().fold(NO_SUMMARY.to_owned(), |text, said| text + "\n\n> " + said)
}
