//! What changes while a run lives, and its conversation from and to the record. Takes events, gives the run's own view.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_protocol::{
    Activity, Block, Envelope, Event, Limits, LineId, Message, MessageMeta, Origin, Timing, Totals,
};

use crate::context::{Context, Media, OpenCall};
use crate::journal::JournalLost;
use crate::ports::new_line;
use crate::run_handle::RunHandle;
use crate::spending::Charges;
use crate::turn::Partial;

/// What changes while a run lives; the run's task alone owns it.
pub struct Progress {
    pub context: Context,
    /// What it took so far.
    pub totals: Totals,
    pub turns: u32,
    /// The line of the prompt that this run began with, until that is in the conversation.
    pub untaken: Option<LineId>,
    pub nudges: u32,
    /// How often in a row the provider paused a reply.
    pub pauses: u32,
    /// How often no answer came in the shape that was asked for.
    pub missed: u32,
    pub began: Duration,
    /// How long earlier runs of the same work took.
    pub before: Duration,
    /// Whether the last reply only lacks its ending.
    pub is_final: bool,
    /// Why the last round of calls was refused with nobody to ask, if it was.
    pub denied: Option<String>,
    /// What has come of the reply that is being asked for; none while none is.
    pub partial: Option<Partial>,
    /// What the last reply said, with the replies it continues.
    pub said: String,
    /// Whether the next reply continues the last.
    pub continues: bool,
    pub repair: Repair,
    /// How full the window was when no summary could be had, until the conversation is shortened.
    pub unsummarised: Option<u64>,
    /// The last round's calls and results, and how often in a row they were the same.
    pub repeated: Option<((u64, u64), u32)>,
    /// The limits under which it was told that its budget ends, if it was.
    pub warned: Option<Limits>,
    /// How often in a row hooks sent it on.
    pub blocks: u32,
    /// The number of the last reply's record.
    pub replied_at: u64,
    /// How long the last request took, until that is on record.
    pub timing: Option<Timing>,
    /// What was used for no reply, until that is on record.
    pub(crate) charges: Charges,
    pub activities: VecDeque<Activity>,
    /// Folders whose instructions were looked for.
    pub folders: HashSet<Utf8PathBuf>,
    /// Files that skills were looked for.
    pub files: HashSet<Utf8PathBuf>,
}

/// What an earlier run left to this one.
#[derive(Default)]
pub struct Carried {
    /// Calls that were not begun, to be done first.
    pub calls: Vec<OpenCall>,
    pub last: Option<LastReply>,
    /// Turns that count for this one's limit.
    pub turns: u32,
    /// Time that counts for this one's limit.
    pub time: Duration,
}

/// The last reply of a run that did not end.
pub struct LastReply {
    /// The number of its record.
    pub seq: u64,
    pub text: String,
    /// Why the model stopped.
    pub stop_reason: Option<String>,
    /// Whether it asked for nothing and nothing was said since: all that was missing is the ending.
    pub is_final: bool,
    /// Whether it was cut off and asked to go on.
    pub continues: bool,
    /// What was refused with nobody to ask, in the round before it.
    pub denied: Option<String>,
}

/// What was already tried with a request that the provider rejected. Each is tried once until there is a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// It is sent without images and documents, because of this error.
    pub without_media: Option<String>,
    pub is_compacted: bool,
}

impl Progress {
    /// Whether its next request holds images and documents.
    pub fn media(&self) -> Media {
        if self.repair.without_media.is_some() { Media::LeftOut } else { Media::Sent }
    }

    /// What it has said last.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// A run about to begin with this conversation.
    pub fn new(run: &RunHandle, context: Context) -> Self {
        Self {
            context,
            totals: Totals::default(),
            turns: 0,
            untaken: None,
            nudges: 0,
            pauses: 0,
            missed: 0,
            began: run.clock.elapsed(),
            before: Duration::ZERO,
            is_final: false,
            denied: None,
            partial: None,
            said: String::new(),
            continues: false,
            repair: Repair::default(),
            unsummarised: None,
            repeated: None,
            warned: None,
            blocks: 0,
            replied_at: 0,
            timing: None,
            charges: Charges::default(),
            activities: VecDeque::new(),
            folders: HashSet::new(),
            files: HashSet::new(),
        }
    }

    /// The same after an earlier run of the same work.
    #[must_use]
    pub fn after(mut self, carried: &Carried) -> Self {
        (self.turns, self.before) = (carried.turns, carried.time);
        if let Some(last) = &carried.last {
            (self.replied_at, self.is_final) = (last.seq, last.is_final);
            self.said.clone_from(&last.text);
            self.continues = last.continues;
            self.denied.clone_from(&last.denied);
            self.totals.stop_reason.clone_from(&last.stop_reason);
        }
        self
    }

    /// Instruction files of folders, and skills about files, are told again when something is read again.
    pub fn forget_folders(&mut self) {
        self.folders.clear();
        self.files.clear();
    }

    /// How long the work has taken.
    pub fn elapsed(&self, run: &RunHandle) -> Duration {
        let now = run.clock.elapsed();
        let held = run.paused_by(now);
        self.before + now.saturating_sub(self.began).saturating_sub(held)
    }
}

pub fn take_in(progress: &mut Progress, heard: &[Arc<Envelope>]) {
    for envelope in heard {
        progress.context.apply(&envelope.event);
    }
}

/// Puts a prompt or a note into the conversation.
pub async fn hear(
    run: &RunHandle,
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
pub async fn record(run: &RunHandle, progress: &mut Progress, events: Vec<Event>) -> Result<(), JournalLost> {
    let written = run.journal.write(&run.who, events).await?;
    for envelope in written {
        progress.context.apply(&envelope.event);
    }
    Ok(())
}

/// How many tokens a request may hold so that the longest reply still fits the window.
pub fn room(run: &RunHandle) -> u64 {
    let window = run.voice.model.info.window;
    window.saturating_sub(run.voice.head.max_output_tokens.min(window / 2))
}

/// The conversation again, from the record.
pub async fn refold(run: &RunHandle, empty: Context) -> Option<Context> {
    run.journal.fold(0, empty, folding(run)).await
}

/// The conversation of a root that works, for whoever only looks at it.
pub async fn refold_root(run: &RunHandle, empty: Context) -> Option<Context> {
    run.journal.read_root(empty, folding(run)).await
}

/// Takes what is a run's of the record into its conversation.
fn folding(run: &RunHandle) -> impl FnMut(&mut Context, Envelope) + Send + 'static {
    let agent = run.who.agent.clone();
    let before = run.lineage.inherited.clone();
    let branches = run.journal.branches();
    move |context: &mut Context, envelope: Envelope| {
        if let Some(until) = belongs(&envelope, agent.as_ref(), &before) {
            let part = branches.part(&envelope, until);
            if envelope.agent == agent { context.take(&part) } else { context.take_inherited(&part) }
        }
    }
}

/// Whether a record is part of an agent's conversation, its own or what it inherited, and up to which record whose it
/// is was that conversation's to change.
pub fn belongs(
    envelope: &Envelope,
    agent: Option<&decurion_protocol::AgentId>,
    inherited: &[(Option<decurion_protocol::AgentId>, u64)],
) -> Option<u64> {
    if envelope.agent.as_ref() == agent {
        return Some(u64::MAX);
    }
    let from = |(whose, through): &&(_, u64)| envelope.agent == *whose && envelope.seq <= *through;
    inherited.iter().find(from).map(|(_, through)| *through)
}
