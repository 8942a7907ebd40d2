//! The way from a run to its session. The loop, its calls and the engine's tools name the session only by this trait; the
//! session's task answers one request after the other, so that who lives, who is told what and who may end has one owner.
//!
//! Each method waits for its answer. `None` is a session that is gone; dropping the wait takes the request back as far as
//! the session has not begun with it.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentId, CallId, Delivery, Envelope, LineId, Mode, OwnRules, PermissionUpdate, SessionId, TaskId,
    TaskRecord, ToolOutput, Worktree,
};
use decurion_tools::FilesSeen;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::approval::Ask;
use crate::child::AgentInput;
use crate::context::Prefix;
use crate::run_handle::RunHandle;
use crate::task::{Ending, RunStatus, TaskView};
use crate::worktree::Left;

/// What a run asks of its session.
pub trait SessionPort: Send + Sync {
    /// A person must decide. The answer comes on the question's own channel.
    fn ask(&self, ask: Box<Ask>) -> BoxFuture<'_, Option<()>>;

    /// Changes what may be done, as a hook or a tool wants that answers in a person's place, for a call of this agent's;
    /// none is the root's. The error says what of it is not done.
    fn permit(
        &self,
        agent: Option<AgentId>,
        updates: Vec<PermissionUpdate>,
    ) -> BoxFuture<'_, Option<Result<(), String>>>;

    /// Begins an agent, or revives one. The error is for the model.
    fn spawn(&self, spawning: Box<Spawning>) -> BoxFuture<'_, Option<Result<Spawned, String>>>;

    /// Ends all that an agent left running: answered when it has ended, with which commands and agents were alive.
    fn end_below(&self, agent: AgentId) -> BoxFuture<'_, Option<Vec<String>>>;

    /// Begins a command that no run waits for. The error is for the model.
    fn open_shell(&self, shell: BackgroundShell) -> BoxFuture<'_, Option<Result<TaskRecord, String>>>;

    /// A command that no run waits for has ended.
    fn shell_ended(&self, task: TaskId, output: Box<ToolOutput>) -> BoxFuture<'_, Option<()>>;

    /// Tells a run what waits for it; `leaf` is the last line of its conversation. Gives the lines that tell it, as
    /// recorded.
    fn deliver(&self, run: RunHandle, leaf: Option<LineId>) -> BoxFuture<'_, Option<Vec<Arc<Envelope>>>>;

    /// Whether a run may end: answered when it may, or with what it must hear first.
    fn may_end(&self, run: RunHandle, leaf: Option<LineId>) -> BoxFuture<'_, Option<MayEnd>>;

    /// Ends the turn of this agent, and of all who wait for it; none is the root.
    fn halt(&self, agent: Option<AgentId>) -> BoxFuture<'_, Option<()>>;

    /// All there is to see of a task.
    #[allow(clippy::option_option)] // no session, and no such task
    fn look(&self, task: TaskId) -> BoxFuture<'_, Option<Option<Looked>>>;

    /// What works in the background now, as hooks are told of it.
    fn under_way(&self) -> BoxFuture<'_, Option<Vec<Value>>>;

    /// Takes the telling of a delivery over; false if another run has.
    fn claim(&self, delivery: Delivery) -> BoxFuture<'_, Option<bool>>;

    /// Ends a task and all below it. Gives it as it was.
    fn stop(&self, task: TaskId, by: String) -> BoxFuture<'_, Option<Result<Looked, String>>>;

    /// Plans before anything is changed, or works because the plan was agreed to. The error is for the model.
    fn plan(&self, planning: Planning) -> BoxFuture<'_, Option<Result<Planned, String>>>;

    /// Lets the session work in a worktree of its own, or again where it did before. The error is for the model.
    fn relocate(&self, relocation: Relocation) -> BoxFuture<'_, Option<Result<Place, String>>>;

    /// Tells an agent something.
    fn mail(&self, from: RunHandle, to: AgentId, text: String)
    -> BoxFuture<'_, Option<Result<Sent, String>>>;
}

/// A command that begins in the background.
pub struct BackgroundShell {
    pub run: RunHandle,
    pub call: CallId,
    pub command: String,
    /// What it is for.
    pub description: String,
    pub cancel: CancellationToken,
}

/// Whether a session plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planning {
    Enter,
    Leave,
}

/// How a session goes on that plans, or has planned.
pub struct Planned {
    pub mode: Mode,
    /// Where its plan is kept; none where nothing of it is.
    pub archive: Option<Arc<decurion_store::Archive>>,
    pub session: SessionId,
}

/// Where a session wants to work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// In a checkout of its own.
    Enter {
        /// Its name; none is one that nobody has.
        name: Option<String>,
    },
    /// Where it worked before.
    Leave {
        /// What becomes of the checkout.
        action: Leaving,
    },
}

/// What becomes of a checkout that the session leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Keep,
    /// It goes; one with work in it is not left.
    Remove,
    /// It goes, whatever is in it.
    Discard,
}

/// Where a session works now.
#[derive(Clone, Debug)]
pub struct Place {
    /// Whether what is not committed did not come over.
    pub without: bool,
    pub cwd: Utf8PathBuf,
    /// The checkout that it entered or left.
    pub worktree: Worktree,
    /// What was in a checkout that it left.
    pub left: Option<Left>,
    /// Whether that is gone.
    pub gone: bool,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Its reader is at work.
    Delivered,
    /// Its reader had ended and was taken up again.
    Resumed {
        /// Whether the sender is told of its end; else its parent is.
        tells_sender: bool,
    },
}

/// Whether a run may end.
pub enum MayEnd {
    /// It may; these shells of its own were stopped for that.
    Yes(Vec<String>),
    /// Not before it has heard this.
    Hear(Vec<Arc<Envelope>>),
}

/// An agent that a call wants to begin.
pub struct Spawning {
    /// The run that wants it.
    pub asker: RunHandle,
    pub call: CallId,
    /// What the model asked for.
    pub input: AgentInput,
    /// Where the asker is now.
    pub cwd: Utf8PathBuf,
    /// What the asker has read.
    pub seen: Arc<FilesSeen>,
    /// Its conversation before the message with the call.
    pub prefix: Option<Arc<Prefix>>,
    /// The rules of the skills that it follows.
    pub follows: OwnRules,
}

/// An agent that was begun.
#[derive(Debug)]
pub struct Spawned {
    /// What is known of it.
    pub record: TaskRecord,
    pub view: watch::Receiver<TaskView>,
    /// The model it runs on.
    pub model: String,
    /// Things the model that asked should know.
    pub remarks: Vec<String>,
    /// Bytes of its first request that its parent's had too, and all of them; for a fork.
    pub shared: Option<(u64, u64)>,
}

/// A task as someone sees it who looks.
#[derive(Clone)]
pub struct Looked {
    /// What is known of it.
    pub record: TaskRecord,
    pub view: watch::Receiver<TaskView>,
    /// How far it has come.
    pub status: watch::Receiver<RunStatus>,
    /// The model of an agent.
    pub model: String,
}

impl Looked {
    /// Whether it is an agent that ended and did not fail.
    pub fn gave_a_report(&self) -> bool {
        let view = self.view.borrow();
        let failed = |ending: &Ending| matches!(ending.outcome, decurion_protocol::Outcome::Failed { .. });
        self.record.kind != decurion_protocol::TaskKind::LocalBash
            && view.ending.as_ref().is_some_and(|ending| !failed(ending))
    }
}
