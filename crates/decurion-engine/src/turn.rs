//! Room 5. One model stream → one message. Takes a request, gives the whole reply, and shows its pieces as
//! they come; what waits and why is shown too, and kept with how long it was.

use std::collections::BTreeMap;
use std::time::Duration;

use decurion_model::catalog::same_model;
use decurion_model::{GatewayEvent, Head, ModelError, ModelEvent, ModelRequest};
use decurion_protocol::{
    Block, Clock, Delta, Event, Message, MessageMeta, Origin, Timing, WaitKind, WaitReason,
};

use crate::budget::Exhausted;
use crate::journal::JournalLost;
use crate::run_handle::RunHandle;
use crate::spending::Held;

#[derive(Debug)]
pub struct Reply {
    /// What the model said.
    pub message: Message,
    /// What the provider said about it.
    pub meta: MessageMeta,
    /// The model that was changed to, if the one asked for stayed overloaded.
    pub fell_back_to: Option<String>,
}

/// The text of a reply that is not whole yet: all that a person has read of it. Calls and thinking are left out, since no
/// provider takes back a part of them.
#[derive(Debug, Default)]
pub struct Partial {
    message_id: Option<String>,
    model: Option<String>,
    texts: BTreeMap<u32, String>,
    /// How long they are.
    bytes: usize,
}

/// More than any model writes in one reply. A second copy of a stream without end is not for us to hold.
const MOST_OF_PARTIAL: usize = 1 << 20;
const NOT_KEPT: &str = "\n[the rest of this reply was not kept]";

impl Partial {
    fn saw(&mut self, delta: &Delta) {
        match delta {
            Delta::Started { message_id, model, .. } => {
                *self = Self {
                    message_id: Some(message_id.clone()),
                    model: Some(model.clone()),
                    ..Self::default()
                };
            }
            Delta::Text { index, text } if self.bytes < MOST_OF_PARTIAL => {
                self.bytes += text.len();
                let kept = self.texts.entry(*index).or_default();
                kept.push_str(text);
                if self.bytes >= MOST_OF_PARTIAL {
                    kept.push_str(NOT_KEPT);
                }
            }
            _ => {}
        }
    }

    /// The reply as far as it came, if anything of it did.
    pub fn into_message(self) -> Option<(Message, MessageMeta)> {
        let texts = self.texts.into_values().filter(|text| !text.trim().is_empty());
        let blocks: Vec<Block> = texts.map(Block::text).collect();
        let (message_id, model) = (self.message_id, self.model);
        let meta = MessageMeta { origin: Origin::Model, message_id, model, ..MessageMeta::default() };
        (!blocks.is_empty()).then(|| (Message::assistant(blocks), meta))
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub enum Broken {
    /// The gateway gave up.
    Model(ModelError),
    /// What the tries so far used leaves too little for another.
    Budget(Exhausted),
    /// What is about to be used cannot be put on record.
    Journal(JournalLost),
}

/// Asks and listens until the reply is whole or the gateway gives up. Where the tries so far leave too little for all the
/// output that the head asks for, the next one asks for less. Dropping the future cancels.
pub async fn turn(
    run: &RunHandle,
    head: &Head,
    request: ModelRequest,
    held: &mut Held,
    (waits, mut partial): (&mut Waits<'_>, Option<&mut Partial>),
) -> Result<Reply, Broken> {
    let (journal, who) = (&run.journal, &run.who);
    journal.publish(who, Event::Waiting { reason: Some(WaitReason::Model) });
    let mut asked = run.voice.model.gateway.turn(request);
    let mut blocks: Vec<(u32, Block)> = Vec::new();
    let mut fell_back_to = None;
    let mut whole = None;
    let mut limits = held.limits();
    loop {
        let item = tokio::select! {
            biased;
            // The request may have been sent without a limit that the next process must keep.
            Ok(()) = limits.changed() => {
                record(run, held.relimited()).await?;
                continue;
            }
            item = asked.next() => item,
        };
        let Some(item) = item else { break };
        let item = item.map_err(|error| {
            held.refused();
            Broken::Model(error)
        });
        match item? {
            GatewayEvent::Model(ModelEvent::Accepted(_) | ModelEvent::Alive) => {}
            GatewayEvent::Model(ModelEvent::Delta(delta)) => {
                held.saw(&delta);
                if let Some(partial) = &mut partial {
                    partial.saw(&delta);
                }
                journal.publish(who, Event::Delta { delta });
            }
            GatewayEvent::Model(ModelEvent::Block { index, block }) => blocks.push((index, block)),
            GatewayEvent::Model(ModelEvent::Completed(reply)) => whole = Some(reply),
            GatewayEvent::Sending => record(run, held.sending()).await?,
            GatewayEvent::Waiting(reason) => {
                record(run, held.rests()).await?;
                waits.begin(reason.kind());
                run.waits(Some(reason));
            }
            GatewayEvent::Resumed => {
                waits.begin(None);
                run.waits(None);
            }
            GatewayEvent::Discarded { reason, shown, stalled, again } => {
                blocks.clear();
                whole = None;
                if let Some(partial) = &mut partial {
                    **partial = Partial::default();
                }
                if shown {
                    journal.publish(who, Event::Delta { delta: Delta::Discarded { reason } });
                }
                if !held.broke_off(stalled) && again {
                    asked.step_aside();
                    record(run, held.rests()).await?;
                    held.reserve_again(run, head).await.map_err(Broken::Budget)?;
                    asked.set_head(&held.wire_head(run, head));
                }
            }
            GatewayEvent::FellBack { from, to } => {
                held.fell_back(&to);
                fell_back_to = Some(to.clone());
                journal.publish(who, Event::FellBack { from, to });
            }
        }
    }
    // The gateway ends a stream either with a complete reply or with an error.
    let reply = whole.ok_or(Broken::Model(ModelError::Empty { request_id: None }))?;
    blocks.sort_by_key(|(index, _)| *index);
    let model = fell_back_to.as_ref().unwrap_or(&run.voice.model.id);
    let asked_model = (!same_model(model, &reply.model)).then(|| model.clone());
    Ok(Reply {
        message: Message::assistant(blocks.into_iter().map(|(_, block)| block).collect()),
        meta: MessageMeta {
            origin: Origin::Model,
            message_id: Some(reply.message_id),
            request_id: reply.request_id,
            model: Some(reply.model),
            asked_model,
            stop_reason: reply.stop_reason,
            usage: Some(reply.usage),
            ..MessageMeta::default()
        },
        fell_back_to,
    })
}

/// Puts on record what a request is about to use, or has used.
async fn record(run: &RunHandle, events: Vec<Event>) -> Result<(), Broken> {
    if events.is_empty() {
        return Ok(());
    }
    run.journal.write(&run.who, events).await.map(drop).map_err(Broken::Journal)
}

/// What a reply waits for, while it does.
pub struct Waits<'a> {
    clock: &'a dyn Clock,
    began: Duration,
    open: Option<(WaitKind, u64)>,
    timing: Timing,
}

impl<'a> Waits<'a> {
    /// Of a reply that is asked for now.
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, began: clock.elapsed(), open: None, timing: Timing::default() }
    }

    /// Another wait begins, or none: the one before it is over.
    fn begin(&mut self, kind: Option<WaitKind>) {
        let now = self.so_far();
        if let Some((kind, from)) = self.open.take() {
            self.timing.waited(kind, from, now);
        }
        self.open = kind.map(|kind| (kind, now));
    }

    /// The whole, now that the reply is there or given up.
    pub fn finish(mut self) -> Timing {
        self.timing.ms = self.so_far();
        if let Some((kind, from)) = self.open.take() {
            self.timing.waited(kind, from, self.timing.ms);
        }
        self.timing
    }

    fn so_far(&self) -> u64 {
        u64::try_from(self.clock.elapsed().saturating_sub(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_end_is_kept_up_to_a_bound() {
        let mut partial = Partial::default();
        for _ in 0..100 {
            partial.saw(&Delta::Text { index: 0, text: "x".repeat(64 << 10) });
        }
        let text = partial.into_message().unwrap().0.text();
        assert_eq!(text.len(), MOST_OF_PARTIAL + NOT_KEPT.len());
        assert!(text.ends_with(NOT_KEPT));
    }
}
