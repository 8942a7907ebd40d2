//! Prompts and other work that wait for the root to rest. Takes what front ends hand in, gives it to the root in its order;
//! a prompt is on record before its sender hears that it was accepted.

use std::collections::VecDeque;
use std::sync::Arc;

use decurion_protocol::size::size_of;
use decurion_protocol::{Block, Event, LineId, Reply, RequestId};
use decurion_tools::Surroundings;
use tokio::task::JoinHandle;

use crate::permission::{Around, Checkouts, Policy};
use crate::session::rewind::Rewind;

use crate::symlinks::Symlinks;

use super::actor::{SessionActor, done};

/// Why files are not put back now.
const STILL_AT_WORK: &str = "files are restored only while nothing is running; wait until the turn and its agents have ended, or \
    interrupt them, and try again";

/// Stands for the request of work that an earlier process had accepted.
const NO_REQUEST: RequestId = RequestId(u64::MAX);

/// How many prompts wait, and with how many bytes, before no more are taken.
const MOST_QUEUED: usize = 1_000;
const MOST_QUEUED_BYTES: usize = 32 << 20;

/// How many wait, with those that are refused in their turn.
const MOST_REFUSED: usize = 10_000;

/// What can be queued.
pub enum Work {
    /// Words, and the id of their line.
    Prompt(Vec<Block>, LineId),
    Compact(Option<String>),
    /// These words, which are on record and were never answered.
    Again(Vec<Block>, LineId),
    /// A prompt that there was no room for, and why: its turn fails at once, in its place among the others.
    Refused(String),
    /// Nothing but what waits to be told.
    Notices,
}

impl Work {
    /// How many bytes of memory it holds, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Prompt(blocks, _) | Self::Again(blocks, _) => size_of(blocks),
            Self::Compact(words) => words.as_ref().map_or(0, String::len),
            Self::Refused(_) | Self::Notices => 0,
        }
    }
}

/// The ids of what waits.
pub(super) fn lines<'a>(queue: impl IntoIterator<Item = &'a (RequestId, Work)>) -> Vec<LineId> {
    let line = |(_, work): &(RequestId, Work)| match work {
        Work::Prompt(_, line) | Work::Again(_, line) => Some(*line),
        Work::Compact(_) | Work::Refused(_) | Work::Notices => None,
    };
    queue.into_iter().filter_map(line).collect()
}

impl SessionActor {
    /// A prompt under an id of its sender's. Sent again, because nobody knows whether it arrived, it is taken once; one
    /// that nobody answered before the process died is worked on now, unless that is under way.
    pub(super) async fn submit(&mut self, id: RequestId, line: LineId, blocks: Vec<Block>) {
        if !self.prompts.taken.insert(line) {
            // Its sender does not know that an earlier process had accepted it.
            if self.prompts.refilled.remove(&line) {
                return self.reply(id, done());
            }
            if self.prompts.unanswered.take_if(|(open, _)| *open == line).is_some() {
                // Whatever runs next in this conversation answers it too.
                if self.root.running.is_some() || !self.prompts.queue.is_empty() {
                    return self.reply(id, done());
                }
                return self.enqueue(id, Work::Again(blocks, line));
            }
            let reason = format!("a message with this id was taken already: {line}");
            return self.reply(id, Reply::Refused { reason });
        }
        self.accept(id, line, blocks).await;
    }

    /// Puts a prompt behind what waits. It is on record before its sender hears that it was accepted.
    pub(super) async fn accept(&mut self, id: RequestId, line: LineId, blocks: Vec<Block>) {
        if self.is_full().is_none() {
            let event = Event::Queued { line, blocks: blocks.clone() };
            if let Err(lost) = self.core.journal.write(&self.core.who, vec![event]).await {
                self.prompts.taken.remove(&line);
                return self.reply(id, Reply::Refused { reason: lost.to_string() });
            }
        }
        self.enqueue(id, Work::Prompt(blocks, line));
    }

    /// Puts the prompts that an earlier process accepted and did not begin into the queue again, behind the one that
    /// it was at work on.
    pub(super) async fn refill_queue(&mut self) {
        let queued = std::mem::take(&mut self.prompts.queued);
        if queued.is_empty() {
            return;
        }
        let text = match queued.len() {
            1 => "a prompt was queued when the session ended; it is worked on now".to_owned(),
            count => format!("{count} prompts were queued when the session ended; they are worked on now"),
        };
        let notice = Event::Notice { level: "info".to_owned(), text };
        // A journal that is lost is found lost by the next run.
        let _ = self.core.journal.write(&self.core.who, vec![notice]).await;
        let cut_off = self.prompts.unanswered.take().map(|(line, blocks)| Work::Again(blocks, line));
        let waiting = queued.into_iter().map(|(line, blocks)| Work::Prompt(blocks, line));
        for work in cut_off.into_iter().chain(waiting) {
            if let Work::Prompt(_, line) | Work::Again(_, line) = &work {
                self.prompts.refilled.insert(*line);
            }
            self.prompts.queued_bytes += work.bytes();
            self.prompts.queue.push_back((NO_REQUEST, work));
        }
    }

    /// Why nothing more can wait, if so. Whatever is too long for that is still taken when nothing waits.
    pub(super) fn is_full(&self) -> Option<String> {
        let (count, bytes) = (self.prompts.queue.len(), self.prompts.queued_bytes);
        let full = count >= MOST_QUEUED || bytes >= MOST_QUEUED_BYTES;
        full.then(|| {
            format!(
                "there was no room for this prompt: {count} with {bytes} bytes waited already (at most {MOST_QUEUED}, and \
                 {MOST_QUEUED_BYTES} bytes); send it again when some of them are done"
            )
        })
    }

    /// Takes back what is not begun yet. That is on record before it is confirmed.
    pub(super) async fn unqueue(&mut self, id: RequestId, line: Option<LineId>) {
        let is_meant = |work: &Work| match work {
            Work::Prompt(_, own) | Work::Again(_, own) => line.is_none_or(|line| line == *own),
            Work::Compact(_) | Work::Refused(_) | Work::Notices => line.is_none(),
        };
        let prompts = self.prompts.queue.iter().filter_map(|(_, work)| match work {
            Work::Prompt(_, line) if is_meant(work) => Some(*line),
            _ => None,
        });
        let prompts: Vec<LineId> = prompts.collect();
        if !prompts.is_empty() {
            let event = Event::Unqueued { lines: prompts };
            if let Err(lost) = self.core.journal.write(&self.core.who, vec![event]).await {
                return self.reply(id, Reply::Refused { reason: lost.to_string() });
            }
        }
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut self.prompts.queue).into_iter().partition(|(_, work)| is_meant(work));
        self.prompts.queue = kept;
        self.prompts.queued_bytes = self.prompts.queue.iter().map(|(_, work)| work.bytes()).sum();
        let cancelled = lines(&gone);
        for (_, work) in gone {
            match work {
                Work::Prompt(_, line) => drop(self.prompts.taken.remove(&line)),
                // It is on record all the same.
                Work::Again(blocks, line) => self.prompts.unanswered = Some((line, blocks)),
                Work::Compact(_) | Work::Refused(_) | Work::Notices => {}
            }
        }
        self.reply(id, Reply::Done { value: serde_json::json!({"cancelled": cancelled}) });
    }

    /// Puts work behind what waits. Whoever floods is told so in the place of each result, and at last not even that.
    pub(super) fn enqueue(&mut self, id: RequestId, work: Work) {
        let work = match self.is_full() {
            None => work,
            Some(reason) => {
                if let Work::Prompt(_, line) = &work {
                    // It was not taken: it may be sent again.
                    self.prompts.taken.remove(line);
                }
                if self.prompts.queue.len() >= MOST_REFUSED {
                    return self.reply(id, Reply::Refused { reason });
                }
                Work::Refused(reason)
            }
        };
        self.prompts.queued_bytes += work.bytes();
        self.prompts.queue.push_back((id, work));
        self.reply(id, done());
    }

    /// The prompt that the process before was at work on, where something waits to be told and a person can answer: a
    /// question that was open is asked again before that is heard, and what was ended is heard at the next step.
    pub(super) fn cut_off_first(&mut self) -> Option<Work> {
        if !self.permissions.rights.borrow().answers || self.core.journal.is_lost() || !self.wakes_root() {
            return None;
        }
        let (line, blocks) = self.prompts.unanswered.take()?;
        // Whoever sends it again is told that it is worked on.
        self.prompts.refilled.insert(line);
        Some(Work::Again(blocks, line))
    }

    /// Files are put back only where nobody may be about to change them.
    pub(super) fn rewind(&mut self, id: RequestId, to: LineId, dry_run: bool) {
        let works = self.root.running.as_ref().is_some_and(|running| !running.control.run.status().ending);
        if works || !self.prompts.queue.is_empty() {
            return self.reply(id, Reply::Refused { reason: STILL_AT_WORK.to_owned() });
        }
        self.prompts.rewinds.push_back((id, to, dry_run));
    }

    /// Puts files back before anything else begins; gives whether that is under way.
    pub(super) fn rewinds_first(&mut self) -> bool {
        while self.prompts.rewinding.is_none()
            && let Some((id, to, dry_run)) = self.prompts.rewinds.pop_front()
        {
            if self.agents_are_quiet() && self.slots.preparing == 0 {
                self.prompts.rewinding = Some(self.begin_rewind(id, to, dry_run));
            } else {
                self.reply(id, Reply::Refused { reason: STILL_AT_WORK.to_owned() });
            }
        }
        self.prompts.rewinding.is_some()
    }

    pub(super) fn begin_rewind(&self, request: RequestId, to: LineId, dry_run: bool) -> JoinHandle<()> {
        let rights = self.permissions.rights.borrow().clone();
        let mut directories = vec![self.place.cwd.clone()];
        directories.extend(self.place.directories());
        let home = self.core.equipment.home.clone();
        let around = Around {
            cwd: self.place.cwd.clone(),
            root: self.core.request.cwd.clone(),
            directories: directories.clone(),
            home: home.clone(),
            user_files: Arc::clone(&self.core.equipment.user_files),
            checkout: None,
            checkouts: Checkouts::of(&self.core.request.cwd, std::iter::empty()),
            trails: Symlinks::on_disk(),
        };
        let rewind = Rewind {
            to,
            dry_run,
            journal: self.core.journal.clone(),
            who: self.core.who.clone(),
            keeper: self.core.equipment.checkpoints.clone(),
            policy: Policy::new(rights.mode, Arc::clone(&rights.rules), around),
            around: Surroundings { cwd: self.place.cwd.clone(), home, directories },
        };
        let (journal, who) = (self.core.journal.clone(), self.core.who.clone());
        tokio::spawn(async move {
            let reply = rewind.run().await;
            journal.publish(&who, Event::Replied { request, reply });
        })
    }
}
