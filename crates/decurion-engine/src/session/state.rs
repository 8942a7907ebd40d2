//! What the session's task owns, in parts. Takes nothing and gives nothing by itself: each part is changed by the files
//! of its room, and no part is known outside of the session's side.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decurion_model::{Head, Thinking, WireHead};
use decurion_protocol::{
    AgentDefinition, AgentId, Block, CallId, Delivery, LineId, OpenSession, Outcome, OwnRules, Persistence,
    QuestionId, RequestId, RuleSet, RunId, SessionId, Skill, TaskId, Worktree,
};
use decurion_store::SessionFiles;
use decurion_tools::ToolSet;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::{Approvals, Rights};
use crate::budget::{AccountId, Budget};
use crate::context::Context;
use crate::equipment::Equipment;
use crate::foreground::ForegroundShells;
use crate::hook::Hooks;
use crate::host::HostDesk;
use crate::journal::{Journal, Who};
use crate::mcp::SessionServers;
use crate::ports::{Instructions, Model};
use crate::run_handle::RunControl;
use crate::scale::Scale;
use crate::session::actor::{Closing, Running, WaitingNotice};
use crate::session::inspect::Reads;
use crate::session::parts::Parts;
use crate::session::prompts::Work;
use crate::session::tree::requests::RequestSender;
use crate::session::tree::{Launch, Outfit, WantsToEnd, apart};
use crate::task::TaskTable;

/// What stays as it was decided while a session lives.
pub struct Core {
    /// What the engine is made of.
    pub parts: Arc<Parts>,
    pub id: SessionId,
    /// What was asked for.
    pub request: OpenSession,
    /// Where its events go.
    pub journal: Journal,
    /// What its tools work with.
    pub equipment: Arc<Equipment>,
    /// Its files; none where nothing is kept.
    pub files: Option<Arc<SessionFiles>>,
    /// What is asked of the program that leads it.
    pub host: HostDesk,
    /// The end that runs are given.
    pub requests: RequestSender,
    /// In whose name the session speaks.
    pub who: Who,
    /// Every run's is a child of this.
    pub cancel: CancellationToken,
    /// Whoever wants to know what fills the window while the root works.
    pub reads: Arc<Mutex<Reads>>,
}

impl Core {
    /// Whether something of it outlasts the process.
    pub fn is_kept(&self) -> bool {
        self.request.persistence != Persistence::Off && self.files.is_some()
    }
}

/// The run of the root, and what goes from one of its runs to the next.
pub struct RootRun {
    /// The last run on record.
    pub previous: Option<RunId>,
    /// Whether it was taken up again, and how: what `SessionStart` hooks are told.
    pub source: &'static str,
    /// What is told at the beginning of a conversation.
    pub opening_note: String,
    /// The hooks of the settings.
    pub session_hooks: Hooks,
    /// The conversation; none while a run has it.
    pub context: Option<Context>,
    pub running: Option<Running>,
    /// The root's hooks, the same for all its runs: the session's, its definition's, its skills'.
    pub hooks: Hooks,
    pub account: AccountId,
    /// Turns, time and tasks that the root has used since the user's last prompt: what its limits count.
    pub used: (u32, Duration),
    pub spawned: u32,
    /// Whether the root's run was begun by notifications alone, and how many tasks there were then.
    pub by_notice: bool,
    pub tasks_before: u32,
}

/// What the root's model is, and what it was told that there is.
pub struct Offer {
    /// The model in use.
    pub model: Arc<Model>,
    /// What stands before the conversation.
    pub head: Arc<Head>,
    /// The same in the model's bytes.
    pub wire_head: Arc<WireHead>,
    /// The name it is stored under.
    pub head_name: String,
    pub tools: Arc<ToolSet>,
    /// The agents that its tools were told of.
    pub agents: Vec<Arc<AgentDefinition>>,
    /// The skills that its tools were told of.
    pub skills: Vec<Arc<Skill>>,
    /// The rules in force when its tools were told of them: denied agents are left out.
    pub told_rules: Arc<RuleSet>,
    /// The session's own model, while a command has another.
    pub own_model: Option<Arc<Model>>,
    /// How the model is to think, where that was changed.
    pub thinking: Option<Thinking>,
    /// The rules of the command that the root follows now.
    pub command_rules: OwnRules,
    /// Whether the model was told last that the session plans.
    pub told_of_plan: bool,
}

/// Prompts and other work that wait for the root to rest.
pub struct PromptQueue {
    /// The prompt that an earlier process was at work on when it died. Sent again, it is worked on, not said again.
    pub unanswered: Option<(LineId, Vec<Block>)>,
    /// Prompts that an earlier process accepted and did not begin, in order.
    pub queued: Vec<(LineId, Vec<Block>)>,
    pub queue: VecDeque<(RequestId, Work)>,
    /// How many bytes of prompts wait there.
    pub queued_bytes: usize,
    /// The ids of lines on record when the session was opened, and of prompts that senders chose since.
    pub taken: HashSet<LineId>,
    /// Prompts that an earlier process had accepted, and that their sender may send again.
    pub refilled: HashSet<LineId>,
    /// Whoever wants files put back as soon as nobody works, which prompt's, and whether only to be told what would be.
    pub rewinds: VecDeque<(RequestId, LineId, bool)>,
    /// Done when files are put back. Nothing begins before that.
    pub rewinding: Option<JoinHandle<()>>,
}

/// Where a session works, and with which servers.
pub struct Workplace {
    /// Where it works: the folder that was asked for, or where that is in the checkout that it entered.
    pub cwd: camino::Utf8PathBuf,
    /// Where it works again once it leaves the checkout that it entered; none if it entered none.
    pub before: Option<camino::Utf8PathBuf>,
    /// The checkout of its own that it works in.
    pub worktree: Option<Worktree>,
    pub directories: Vec<camino::Utf8PathBuf>,
    /// What git said about the working directory when the session began.
    pub git_status: Option<String>,
    /// The instruction files that its conversation begins with.
    pub instructions: Vec<Instructions>,
    pub servers: Option<SessionServers>,
    /// Done when the servers that live in the host have said what they offer, or took too long for that.
    pub settling: Option<JoinHandle<()>>,
    /// Whether the session is on its way into a checkout of its own, or out of one.
    pub relocating: bool,
}

impl Workplace {
    /// The further directories as they are now: in a checkout that was entered, those of the one it was made from
    /// are somewhere else.
    pub fn directories(&self) -> Vec<camino::Utf8PathBuf> {
        let entered = self.worktree.as_ref().filter(|_| self.before.is_some());
        let mut directories = self.directories.clone();
        if let Some(entered) = entered {
            directories.retain(|directory| entered.origins().all(|origin| apart(directory, origin)));
        }
        directories
    }
}

/// What may be done, and who is asked about it.
pub struct Permissions {
    /// Runs watch the other end.
    pub rights: watch::Sender<Rights>,
    pub approvals: Approvals,
    /// Settings that are being written.
    pub keeping: Vec<JoinHandle<()>>,
    /// Questions of an earlier process that nobody has answered, by who asks and for which call.
    pub parked: HashMap<(Option<AgentId>, decurion_protocol::CallId), QuestionId>,
}

/// What agents may spend, and what they did.
pub struct Accounts {
    /// The tree of accounts.
    pub budget: Arc<Mutex<Budget>>,
    /// What providers counted for requests.
    pub scale: Arc<Scale>,
    /// The accounts of agents; they outlast their runs.
    pub by_agent: HashMap<AgentId, AccountId>,
}

/// Agents and commands below the root, and what is still to be told of them.
#[derive(Default)]
pub struct Tasks {
    /// Every task, and what is still to be told.
    pub table: TaskTable,
    /// How each living task is ended.
    pub cancels: HashMap<TaskId, CancellationToken>,
    /// The runs of living agents.
    pub runs: HashMap<AgentId, RunControl>,
    /// Set when there is something to tell an agent; none is the root.
    pub told: HashMap<Option<AgentId>, Arc<AtomicBool>>,
    /// Agents that want to end and wait for their own agents.
    pub ending: HashMap<AgentId, WantsToEnd>,
    /// Agents that are over but for what they left running, and who waits for the end of that.
    pub closing: HashMap<AgentId, (Vec<String>, oneshot::Sender<Vec<String>>)>,
    /// Endings that a waiting call was given, and whose.
    pub handed: Vec<(Delivery, Option<AgentId>)>,
    /// Endings that nobody was told of, because whoever should have been was over.
    pub unheard: Vec<Outcome>,
    /// Shells that ended with their agent and are named in its report.
    pub reported: HashSet<TaskId>,
    /// Commands that a person runs himself, and how each is ended.
    pub typed: HashMap<CallId, CancellationToken>,
    /// Shells that someone waits for.
    pub shells: Arc<ForegroundShells>,
    /// How often anything was begun or taken up again.
    pub begun: u32,
}

/// Which agents work now, and which wait for a slot.
#[derive(Default)]
pub struct Slots {
    /// Agents that wait for a place.
    pub queue: VecDeque<Launch>,
    /// Agents that have begun and not ended.
    pub running: HashSet<TaskId>,
    /// Agents that were held, may go on and wait for a place.
    pub returning: VecDeque<TaskId>,
    /// Agents that were held with all below them: what they still begin is held too.
    pub paused_trees: HashSet<TaskId>,
    /// Agents that were held when the process before this one died.
    pub paused_before: HashSet<TaskId>,
    /// How many agents are being prepared that have not begun.
    pub preparing: u32,
    /// How many notification turns in a row began new background work.
    pub notified: u32,
}

/// What children that are alike share: tools, heads, definitions.
#[derive(Default)]
pub struct Outfits {
    /// Heads that are stored already.
    pub heads: HashSet<String>,
    /// Definitions with what calls and memories added to them, each with the one it was made from.
    pub adapted: Vec<(Arc<AgentDefinition>, Arc<AgentDefinition>)>,
    /// Tools and heads of children begun so far.
    pub made: Vec<Arc<Outfit>>,
}

/// How a session comes to its end.
pub struct Finish {
    /// Whoever wants the session to close when it is quiet.
    pub finishing: Option<RequestId>,
    /// When the root's shells are no longer waited for.
    pub patience: Option<Instant>,
    /// Whether people know what the end of the session waits for.
    pub waiting_notice: WaitingNotice,
    /// Whether somebody can still send commands.
    pub attached: bool,
    /// Whether the tree was quiet and how many prompts waited, as whoever listens was told last.
    pub shown: (bool, u32),
    pub closing: Closing,
}
