//! Everything that can be observed. The journal keeps the durable ones, and every front end, trace and
//! parent reads the same stream.

use std::collections::BTreeMap;

use camino::Utf8PathBuf;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentId, Answer, Block, CallId, Decision, Delivery, FileBefore, HostRequest, HostRequestId, Intent,
    Limits, LineId, Mail, Message, Mode, Money, Outcome, PermissionUpdate, Question, QuestionId, ReleaseStep,
    Reply, RequestId, RunId, RunSpec, SessionId, ShellLine, StartStep, Step, TaskId, TaskProgress,
    TaskRecord, TaskState, ToolEffect, ToolOutput, Usage, Wanted, Worktree,
};

/// The level of records that this version understands. It stands on every record that [must be
/// understood](Event::must_be_understood), as `must`. A reader that meets a higher level, or one that it cannot read,
/// opens the session for reading only. A change that an older reader would misunderstand raises the level; new members
/// and new kinds that a reader may ignore do not.
pub const RECORD_LEVEL: u64 = 1;

/// One event with its place in the session's order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Counts durable events per session from 1; a transient one repeats the last.
    pub seq: u64,
    /// When, for people. Nothing is ordered by it.
    pub at: Timestamp,
    /// Whose event; none is the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    pub run: RunId,
    pub event: Event,
}

/// What can happen. An event is a fact that some reader must act on; anything else is a field of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The session's file was created, or another process resumed it.
    SessionOpened {
        /// The facts that hold for the session.
        info: Box<SessionInfo>,
    },
    RunStarted {
        /// All that was decided for it.
        spec: Box<RunSpec>,
    },
    /// A whole message joined the conversation: a prompt, a note, or the model's reply.
    Message {
        message: Message,
        /// One id per line it takes in the transcript: one per block of an assistant's message, else one.
        lines: Vec<LineId>,
        /// The line before it in the chain.
        parent: Option<LineId>,
        /// Where it came from and what it cost.
        #[serde(default)]
        meta: Box<MessageMeta>,
    },
    /// A call is about to run. After a crash, a call with this and no end has an unknown outcome.
    CallStarted {
        call: CallId,
        tool: String,
        /// What it would touch, and its title.
        intent: Box<Intent>,
        decision: Decision,
        /// The input as it runs, where a hook or a person changed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
    },
    /// A call was not run because of a rule, a mode, or an answer.
    CallRefused {
        call: CallId,
        tool: String,
        input: Value,
        decision: Decision,
        /// Whether it needed a person's answer, and there was no person to ask.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unanswerable: bool,
    },
    /// A call has its result, which joins the conversation.
    CallEnded {
        call: CallId,
        /// The tool, for readers that did not see its start.
        tool: String,
        /// The id of the line that holds the result.
        line: LineId,
        /// The line of the call's own block.
        parent: Option<LineId>,
        output: Box<ToolOutput>,
        /// How long it ran.
        duration_ms: u64,
    },
    /// The conversation was shortened: what came before is now this summary and a preserved tail.
    Compacted {
        /// The id of the boundary line.
        boundary: LineId,
        /// The id of the summary's line.
        line: LineId,
        /// The last line of the conversation before it.
        logical_parent: Option<LineId>,
        /// The summary, as the next request will carry it.
        summary: Message,
        /// The messages kept after it, by the id of the first line of each.
        kept: Vec<LineId>,
        /// Who asked: `auto` or `manual`.
        trigger: String,
        tokens_before: u64,
        /// State that a reader starting here must know.
        checkpoint: Value,
    },
    /// A person must decide.
    Asked { question: Box<Question> },
    Answered {
        question: QuestionId,
        answer: Answer,
        /// Who ended it: `user`, `host`, `nobody`.
        by: String,
    },
    /// A task was begun.
    TaskOpened {
        /// What is known of it.
        record: Box<TaskRecord>,
    },
    /// A task took a step.
    TaskChanged {
        task: TaskId,
        /// Where it stands now.
        state: TaskState,
    },
    /// An agent has another budget from here on.
    Rebudgeted { task: TaskId, limits: Limits },
    /// Below a limit: a request is about to be sent, was under way when the limit came, or is under way no more.
    Reserved {
        /// What the request is charged as if the process dies before its end is on record; none once it is over and
        /// used nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        charge: Option<Box<Charge>>,
    },
    /// Something was used besides the replies of the conversation.
    Charged {
        /// What, and for what.
        charge: Box<Charge>,
    },
    /// A person runs a command himself. After a crash, one with this and no end has an unknown outcome.
    ShellBegun { shell: Box<ShellLine> },
    /// It has ended. Its message joins the conversation by itself, once ([`Origin::Shell`]).
    ShellEnded {
        /// The command and its result.
        shell: Box<ShellLine>,
    },
    /// A message to an agent, to be delivered to it once.
    Mailed {
        /// The message, its sender and its receiver.
        mail: Box<Mail>,
    },
    /// The session's mode is now this.
    ModeChanged { mode: Mode },
    /// An answer or the leading program changed what is allowed for the rest of the session. Recorded before the answer
    /// that it came with, and restored when the session is resumed.
    RightsChanged {
        /// What changed, as it is held.
        updates: Vec<PermissionUpdate>,
        /// The agent that it holds for, with all below it; none is everyone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        only: Option<AgentId>,
    },
    /// The session's own conversation moved to another folder: it entered a worktree, or left it. Recorded after the
    /// worktree is made, and before it is removed.
    Relocated {
        /// Where it works now.
        cwd: Utf8PathBuf,
        /// The checkout that it entered; none if it left one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worktree: Option<Box<Worktree>>,
        /// Where it works again once it leaves that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<Utf8PathBuf>,
    },
    /// A file is about to be changed, and this is what it holds. On record before the call begins, and before a file
    /// is put back.
    Checkpointed {
        /// The call that changes it; none where it is put back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<CallId>,
        /// The file, by the path that holds no links.
        path: Utf8PathBuf,
        before: FileBefore,
    },
    /// The root's conversation continues from an earlier line: later messages are no longer part of it, and tasks that
    /// were started later are ended without a notice. The transcript keeps all lines.
    Branched {
        /// The last line that stays.
        at: LineId,
        /// The number of the record that holds it.
        through: u64,
    },
    /// A prompt was accepted and waits for its turn, which begins with the [`Event::Message`] that has its line. On
    /// record before its sender hears that it was accepted.
    Queued {
        /// The line of its message.
        line: LineId,
        /// What it says, as it was sent.
        blocks: Vec<Block>,
    },
    /// Prompts that waited will have no turn: they were taken back, or refused when it came.
    Unqueued {
        /// The lines that their messages would have had.
        lines: Vec<LineId>,
    },
    /// The images and documents so far are left out of later requests: the provider rejected a request with them and
    /// accepted it without.
    MediaOmitted {
        /// How the provider rejected them.
        error: String,
    },
    /// A sandboxed command connected to a host, or tried to.
    Connection {
        /// The call that runs the command.
        call: CallId,
        host: String,
        port: u16,
        /// The address that was used.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// Why it was refused, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
        /// Bytes sent to the host.
        bytes_up: u64,
        /// Bytes received from it.
        bytes_down: u64,
        /// How long it was open, in milliseconds.
        duration_ms: u64,
    },
    /// Something a person should know; kept in the transcript.
    Notice {
        /// `info`, `warning` or `error`.
        level: String,
        text: String,
    },
    /// A run is over.
    RunEnded { outcome: Outcome, totals: Box<Totals> },

    /// An agent is ready for its first request: the steps taken, in order. Kept only where one has something to
    /// say that no other event says.
    Prepared { steps: Vec<Step<StartStep>> },
    /// An agent has released its resources: the steps, in order. Recorded only if a step has a note.
    Released { steps: Vec<Step<ReleaseStep>> },

    /// Part of a reply that is still coming (transient; provisional until its `Message`).
    Delta { delta: Delta },
    /// A running call says something (transient).
    CallProgress { call: CallId, text: String },
    /// How far a task has come (transient).
    TaskProgressed { task: TaskId, progress: Box<TaskProgress> },
    /// Why nothing moves right now, or that it moves again (transient).
    Waiting {
        /// The reason; none means that the wait is over.
        reason: Option<WaitReason>,
    },
    /// Whether anyone works, and how many prompts wait, now that this changed (transient). A session is quiet if no
    /// agent works, waits for a slot or has an undelivered message; a background command alone does not count as work.
    Quiet {
        /// Whether the whole tree is quiet.
        quiet: bool,
        /// Prompts that were given and not begun.
        #[serde(default)]
        queued: u32,
    },
    /// Another model answers from here on, since the one that was asked stays overloaded (transient).
    FellBack {
        /// The one asked for.
        from: String,
        /// The one that answers.
        to: String,
    },
    /// A hook begins (transient).
    HookStarted { hook: HookRun },
    /// A hook has ended (transient; its effect, if any, is recorded).
    HookEnded {
        hook: HookRun,
        /// What it printed, shortened.
        stdout: String,
        /// What it printed as errors, shortened.
        stderr: String,
        /// Its exit code, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        ending: HookEnding,
    },
    /// The session asks its leading program for something (transient).
    HostAsked { request: Box<HostRequest> },
    /// The session no longer waits for an answer of its leading program (transient).
    HostReleased { request: HostRequestId },
    /// The answer to a command (transient).
    Replied {
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// A kind of event that this version does not know, kept and passed through.
    #[serde(untagged)]
    Unknown(Value),
}

impl Event {
    /// The part that is recorded, if not all of it: the query of an address that a server wants visited is for the
    /// person who is asked now, since it may grant access to anyone who has it.
    pub fn on_record(&self) -> Option<Self> {
        let Self::Asked { question } = self else { return None };
        let Wanted::Url { url, .. } = &question.elicitation.as_ref()?.wanted else { return None };
        let place = url.split(['?', '#']).next().filter(|place| place.len() < url.len())?;
        let mut kept = question.clone();
        if let Some(Wanted::Url { url, .. }) = kept.elicitation.as_mut().map(|asked| &mut asked.wanted) {
            *url = format!("{place}?…");
        }
        Some(Self::Asked { question: kept })
    }

    /// The end of a hook whose result is no longer needed.
    pub fn hook_cancelled(hook: HookRun) -> Self {
        let (stdout, stderr) = (String::new(), String::new());
        Self::HookEnded { hook, stdout, stderr, exit_code: None, ending: HookEnding::Cancelled }
    }

    /// The mode that the session is in from here on, where that changes.
    pub fn mode(&self) -> Option<Mode> {
        match self {
            Self::ModeChanged { mode } => Some(*mode),
            Self::RightsChanged { updates, only: None } => {
                updates.iter().rev().find_map(|update| match update {
                    PermissionUpdate::SetMode { mode } => Some(*mode),
                    _ => None,
                })
            }
            _ => None,
        }
    }

    /// Whether a reader that does not understand this record must not continue the session, because passing it over
    /// could widen rights or repeat work. Such a record is marked in the transcript ([`RECORD_LEVEL`]).
    pub fn must_be_understood(&self) -> bool {
        matches!(
            self,
            // What a run may do, and within which limits.
            Self::RunStarted { .. }
                | Self::ModeChanged { .. }
                | Self::RightsChanged { .. }
                | Self::Rebudgeted { .. }
                // Where the session's own calls work: without it they would work outside of its worktree.
                | Self::Relocated { .. }
                // A call that was begun, a run and a task that are over or paused: each would be done again.
                | Self::CallStarted { .. }
                | Self::RunEnded { .. }
                | Self::TaskOpened { .. }
                | Self::TaskChanged { .. }
                // Prompts that wait and that were withdrawn: an older version would repeat one, or a later version
                // would find one behind all messages since.
                | Self::Queued { .. }
                | Self::Unqueued { .. }
                // What was dropped from the conversation would be back in it, with the tasks that were ended for that.
                | Self::Branched { .. }
        )
    }

    /// Whether the journal keeps it. Everything else is shown and forgotten.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Prepared { steps } => return steps.iter().any(|step| step.note.is_some()),
            Self::Released { steps } => return steps.iter().any(|step| step.note.is_some()),
            _ => {}
        }
        !matches!(
            self,
            Self::Delta { .. }
                | Self::CallProgress { .. }
                | Self::TaskProgressed { .. }
                | Self::Waiting { .. }
                | Self::Quiet { .. }
                | Self::FellBack { .. }
                | Self::HookStarted { .. }
                | Self::HookEnded { .. }
                | Self::HostAsked { .. }
                | Self::HostReleased { .. }
                | Self::Replied { .. }
        )
    }
}

/// The facts that hold for a session and stand on every line of its transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    pub session: SessionId,
    /// Where it was started.
    pub cwd: Utf8PathBuf,
    /// Version of Decurion that wrote it.
    pub version: String,
    /// The git branch at the start, if it is a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_branch: Option<String>,
    /// Which door it came through, e.g. `cli`.
    pub entrypoint: String,
    /// The foreign transcript it continues, as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
    /// The session it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
}

/// Where a message came from and what it cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageMeta {
    /// Why it is there.
    pub origin: Origin,
    /// The provider's id of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The provider's id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The model that answered, by its own word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model that was asked, where that is another one than the one that answered says it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_model: Option<String>,
    /// Why the model stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// What the response used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    /// What it tells its reader, once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delivers: Vec<Delivery>,
    /// How long the model took, and what was waited for; none if this was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// Which kind of failure it tells of, where the runtime speaks: `rate_limit`, `authentication_failed` …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The HTTP status of that failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_status: Option<u16>,
    /// The skills whose texts it holds: their hooks are its reader's from then on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// What its reader knows by it, besides the words: the files that are attached to a prompt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<ToolEffect>,
}

/// What was used for no reply of the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charge {
    pub kind: ChargeKind,
    /// The model that was asked.
    pub model: String,
    /// What it used. Where the provider did not say, the most it can have been.
    pub usage: Usage,
    /// What that cost; none without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// What something was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChargeKind {
    /// A reply that broke off and was asked for again, or given up.
    BrokenOff,
    /// A reply that was stopped before its end.
    Stopped,
    /// A summary of the conversation.
    Summary,
    /// A request that was under way when its process died: the most it can have used.
    Lost,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// One run of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRun {
    /// Tells it from others.
    pub id: String,
    /// The event that it waits for.
    pub event: String,
    /// The event and what it was about, as `Event:subject`.
    pub name: String,
}

/// How a hook went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEnding {
    /// As a hook should: it ran to its end and did not fail.
    Success,
    /// It failed, or said no by its exit code.
    Error,
    /// Its result is no longer needed: the work that it was for was interrupted, or is over.
    Cancelled,
}

/// How many waits of one reply are listed.
const MOST_WAITS: usize = 12;

/// How long a reply took, from the moment it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timing {
    /// Milliseconds until it was whole, or given up.
    pub ms: u64,
    /// What was waited for meanwhile, in order, none over another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// One wait of a reply; three short values on the wire, since it stands on a line of the transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(WaitKind, u64, u64)", into = "(WaitKind, u64, u64)")]
pub struct Wait {
    pub kind: WaitKind,
    /// Milliseconds after the reply was asked for.
    pub after_ms: u64,
    pub ms: u64,
}

/// What a reply waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// Others used the provider.
    Turn,
    Limit,
    /// A request that failed was tried again.
    Retry,
    /// Several waits that are not told apart, or one of a kind that this version does not know.
    #[serde(other)]
    Other,
}

impl From<(WaitKind, u64, u64)> for Wait {
    fn from((kind, after_ms, ms): (WaitKind, u64, u64)) -> Self {
        Self { kind, after_ms, ms }
    }
}

impl From<Wait> for (WaitKind, u64, u64) {
    fn from(wait: Wait) -> Self {
        (wait.kind, wait.after_ms, wait.ms)
    }
}

impl Timing {
    /// Adds a wait that began and ended this many milliseconds after the request was sent. A wait that continues the
    /// last one for the same reason is merged with it, and those after the first few become one, so that the list stays
    /// short.
    pub fn waited(&mut self, kind: WaitKind, from: u64, to: u64) {
        let is_full = self.waits.len() >= MOST_WAITS;
        match self.waits.last_mut() {
            Some(last) if is_full || last.kind == kind && last.after_ms.saturating_add(last.ms) >= from => {
                if last.kind != kind {
                    last.kind = WaitKind::Other;
                }
                last.ms = to.saturating_sub(last.after_ms);
            }
            _ if to > from => self.waits.push(Wait { kind, after_ms: from, ms: to - from }),
            _ => {}
        }
    }
}

impl WaitReason {
    /// What a wait for this counts as in a reply's timing; none if it is none of a reply's.
    pub fn kind(&self) -> Option<WaitKind> {
        match self {
            Self::Turn { .. } => Some(WaitKind::Turn),
            Self::Retry { rate_limited: true, .. } => Some(WaitKind::Limit),
            Self::Retry { .. } => Some(WaitKind::Retry),
            Self::Model | Self::Disk { .. } | Self::Permission { .. } | Self::Compaction | Self::Budget => {
                None
            }
        }
    }
}

/// What a run took, from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// What its responses used, added up.
    pub usage: Usage,
    pub cost: Money,
    /// Tool results plus one: the ecosystem's count of turns.
    pub turns: u32,
    pub duration_ms: u64,
    /// Time spent waiting for models.
    pub api_duration_ms: u64,
    /// The same per model.
    pub models: BTreeMap<String, ModelTotals>,
    /// Calls that were refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// Why the model stopped last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The answer in the shape that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// The HTTP status of the failure that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_status: Option<u16>,
    /// Which kind of failure ended it, where its outcome alone does not say: the word of a provider's failure
    /// (`rate_limit` …), or one of [`ending`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub tool_uses: u32,
    /// Tokens of the last response with all that it read: the size of the conversation.
    #[serde(skip_serializing_if = "is_zero_u64")]
    pub context_tokens: u64,
    /// What the last response used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_usage: Option<Usage>,
    /// The last line of an agent's conversation: one that ends before it has lost its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<LineId>,
    /// What an agent had said last when it was stopped, failed or stalled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

/// Kinds of endings of a run that are no failure of a provider.
pub mod ending {
    /// The answer did not come in the shape that was asked for.
    pub const STRUCTURED_OUTPUT: &str = "structured_output_retries";
    pub const REFUSAL: &str = "refusal";
    /// The conversation is too long for the model.
    pub const TOO_LONG: &str = "prompt_too_long";
    /// A hook ended it.
    pub const HOOK: &str = "hook";
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
pub(crate) fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

/// What one model was used for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelTotals {
    /// What its responses used.
    pub usage: Usage,
    pub cost: Money,
    /// The size of its window.
    pub window: u64,
    /// The most it writes in one response.
    pub max_output: u64,
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Denial {
    pub tool: String,
    pub call: CallId,
    pub input: Value,
}

/// Why a message is in the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    #[default]
    Prompt,
    Model,
    /// The runtime tells the model something; the word says what (`context`, `notification`, `hook` …).
    Note(String),
    /// A person ran a command, and this is its result; `ShellEnded` has its parts.
    Shell,
    /// The runtime speaks in the model's place about a failure; not sent to the model.
    Synthetic,
}

/// Part of a reply that is still coming, in the order a provider streams it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "delta", rename_all = "snake_case")]
pub enum Delta {
    /// A reply begins. Anything provisional before it is void.
    Started {
        message_id: String,
        /// The model that answers.
        model: String,
        /// What is known of its use so far.
        usage: Usage,
    },
    /// A block begins, empty.
    BlockStarted {
        index: u32,
        /// The block as it begins.
        block: Block,
    },
    /// More text of a block.
    Text { index: u32, text: String },
    /// More reasoning of a block.
    Thinking { index: u32, text: String },
    /// The seal of a reasoning block.
    Signature { index: u32, signature: String },
    /// More of a call's input, as JSON text.
    Input {
        index: u32,
        /// Part of the JSON.
        json: String,
    },
    /// A block is whole.
    BlockEnded { index: u32 },
    /// The reply is whole.
    Ended {
        /// Why the model stopped.
        stop_reason: Option<String>,
        usage: Usage,
    },
    /// The parts of this reply that were shown are void; the request is sent again.
    Discarded { reason: String },
}

/// Why a run does not move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum WaitReason {
    Model,
    /// The provider asked us to wait, or a request failed and is tried again.
    Retry {
        /// Which try comes next, from 2.
        attempt: u32,
        /// How many there may be; none is unlimited.
        of: Option<u32>,
        delay_ms: u64,
        /// The HTTP status, if there was one.
        status: Option<u16>,
        error: String,
        /// Whether it is the provider's limit rather than a fault.
        rate_limited: bool,
    },
    /// Others use the provider now.
    Turn {
        /// How many are before us.
        ahead: u32,
    },
    /// The transcript cannot be written.
    Disk {
        /// What the system said.
        error: String,
    },
    /// A person must answer.
    Permission {
        question: QuestionId,
    },
    /// The conversation is being shortened.
    Compaction,
    /// What the request may cost fits the budget, but not beside what other requests have reserved.
    Budget,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_joined_bounded_and_short_on_the_wire() {
        let mut timing = Timing { ms: 9_000, ..Timing::default() };
        timing.waited(WaitKind::Turn, 0, 5);
        timing.waited(WaitKind::Turn, 5, 7);
        timing.waited(WaitKind::Limit, 7, 7);
        timing.waited(WaitKind::Limit, 20, 8_000);
        let text = serde_json::to_string(&timing).unwrap();
        assert_eq!(text, r#"{"ms":9000,"waits":[["turn",0,7],["limit",20,7980]]}"#);
        assert_eq!(serde_json::from_str::<Timing>(&text).unwrap(), timing);
        let later = r#"{"ms":1,"waits":[["tides",0,1]],"more":2}"#;
        assert_eq!(serde_json::from_str::<Timing>(later).unwrap().waits[0].kind, WaitKind::Other);
        for try_again in 0..100 {
            timing.waited(WaitKind::Retry, 9_000 + try_again * 10, 9_005 + try_again * 10);
        }
        assert_eq!(timing.waits.len(), MOST_WAITS);
        let last = |kind, ms| Wait { kind, after_ms: 9_090, ms };
        assert_eq!(timing.waits[MOST_WAITS - 1], last(WaitKind::Retry, 905));
        timing.waited(WaitKind::Limit, 10_000, 10_500);
        assert_eq!(timing.waits[MOST_WAITS - 1], last(WaitKind::Other, 1_410));
    }
}
