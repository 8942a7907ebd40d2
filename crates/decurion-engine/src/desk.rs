//! What a run holds of its session. Tools of the engine and the loop send wishes here; the session's task
//! grants them one by one, so that who lives, who is told what and who may end has one owner.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_model::{Head, WireHead};
use decurion_protocol::{
    AgentId, AgentSource, CallId, Clock, Delivery, Envelope, Event, Limits, LineId, Mode, OwnRules,
    PermissionUpdate, QuestionId, RunSpec, SessionId, ShellLine, TaskId, TaskRecord, ToolOutput, WaitReason,
    Worktree,
};
use decurion_tools::{FilesSeen, Printed, ToolSet};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::budget::AccountId;
use crate::child::AgentInput;
use crate::context::Prefix;
use crate::journal::{Journal, Who};
use crate::kit::Kit;
use crate::notice;
use crate::permission::Grant;
use crate::ports::{Ask, Model};
use crate::task::{Ending, ProgressCell, TaskView};
use crate::tree::prepare::Draft;
use crate::tree::relocate::Relocating;
use crate::worktree::Left;

/// One run's place in its session: what a child of it is built from, and the way to the session's task.
pub struct Desk {
    pub who: Who,
    /// What was decided for the run.
    pub spec: Arc<RunSpec>,
    /// The way from the root, `main/<agent>/…`.
    pub path: String,
    pub model: Arc<Model>,
    /// What stands before its conversation.
    pub head: Arc<Head>,
    /// The same in bytes.
    pub wire_head: Arc<WireHead>,
    pub tools: Arc<ToolSet>,
    pub account: AccountId,
    /// The modes that definitions on the way from the root ask for.
    pub modes: Arc<[ModeStep]>,
    /// What the definitions on the way from the root let it use.
    pub grants: Arc<[Grant]>,
    /// Whose conversation stands before its own, up to which record each.
    pub inherited: Arc<[(Option<AgentId>, u64)]>,
    /// The session's task holds the other end.
    pub wishes: mpsc::Sender<Wish>,
    /// Its conversation before the message whose calls run now.
    pub prefix: Mutex<Option<Arc<Prefix>>>,
    /// Whether there is something to tell it; set by the session's task.
    pub told: Arc<AtomicBool>,
    /// How many tasks it began.
    pub begun: AtomicU32,
    /// The calls that were begun in this run: what is under way when it is stopped.
    calls: Mutex<HashSet<CallId>>,
    /// Commands that were stopped before their calls could tell what they had printed.
    cut_off: Mutex<HashMap<CallId, Arc<Printed>>>,
    /// How far it has come; its parent reads it.
    pub progress: ProgressCell,
    /// Set when it got further, so that the parent is told.
    pub parent_told: Option<Arc<AtomicBool>>,
    /// Who stopped it, if someone did.
    pub stopped_by: Mutex<Option<String>>,
    /// Shells that someone waits for, in the whole session.
    pub shells: Arc<Shells>,
    /// The rules of the skills that it follows while its calls run now.
    pub follows: Mutex<OwnRules>,
    /// Its own commands that were stopped for its end, once it came to that.
    pub left: Mutex<Vec<String>>,
    /// Whether its last word is said: what is left is to put that on record.
    pub ending: AtomicBool,
    /// Set when the session closes while the run works and nobody stopped it before.
    pub closed: AtomicBool,
    /// What was decided, as it is since the run went on in another folder.
    moved: Mutex<Option<Arc<RunSpec>>>,
    /// Its limits, as they are since a person changed them.
    pub limits: watch::Sender<Limits>,
    /// Where its task stands, which says whether it is held; none is the root's.
    state: OnceLock<watch::Receiver<TaskView>>,
    /// How long it did nothing because it was held.
    pub held: watch::Sender<Held>,
    /// Whether its request stands in line or waits to be sent again.
    in_line: watch::Sender<bool>,
}

/// How long a run did nothing because it was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// In all, without the time that it is held now.
    pub total: Duration,
    /// Since when it is held now, if it is.
    pub since: Option<Duration>,
}

impl Held {
    /// In all, by now.
    pub fn by(&self, now: Duration) -> Duration {
        self.total + self.since.map(|since| now.saturating_sub(since)).unwrap_or_default()
    }
}

/// What a definition on the way from the root says about the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeStep {
    /// The mode it asks for.
    pub mode: Option<Mode>,
    /// Where it came from.
    pub source: AgentSource,
    /// Whether its `dontAsk` denies what no rule decides.
    pub denies: bool,
}

impl ModeStep {
    /// What this definition says.
    pub fn of(definition: &decurion_protocol::AgentDefinition) -> Self {
        Self { mode: definition.mode, source: definition.source, denies: definition.dont_ask_denies }
    }
}

/// What a run asks of its session.
pub enum Wish {
    /// A person must decide.
    Ask(Box<Ask>),
    /// Change what may be done, as a hook or a tool wants that answers in a person's place.
    Permit {
        /// For whose call; none is the root's.
        agent: Option<AgentId>,
        updates: Vec<PermissionUpdate>,
        /// When it is done; the error says what of it is not.
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// Begin an agent, or take one up again.
    Spawn {
        /// What is wanted, by whom.
        spawning: Box<Spawning>,
        /// What came of it; the error is for the model.
        answer: oneshot::Sender<Result<Spawned, String>>,
    },
    /// An agent that was decided has what it needs to begin, or cannot have it.
    Prepared {
        draft: Box<Draft>,
        /// What it carries, or why it does not begin; for the model.
        kit: Result<Kit, String>,
        /// What came of it; the error is for the model.
        answer: oneshot::Sender<Result<Spawned, String>>,
    },
    /// What an agent that does not begin would have carried is given back.
    Abandoned,
    /// End all that an agent left running: answered when it has ended.
    EndBelow {
        agent: AgentId,
        /// Which commands and agents were alive, in words.
        answer: oneshot::Sender<Vec<String>>,
    },
    /// Begin a shell that nobody waits for.
    OpenShell {
        desk: Arc<Desk>,
        call: CallId,
        /// The command and what it is for.
        command: String,
        description: String,
        cancel: CancellationToken,
        answer: oneshot::Sender<Result<TaskRecord, String>>,
    },
    /// A command that a person ran has ended.
    TypedEnded { shell: Box<ShellLine> },
    /// A shell that nobody waits for has ended.
    ShellEnded { task: TaskId, output: Box<ToolOutput> },
    /// Tell an agent what waits for it, now.
    Deliver {
        desk: Arc<Desk>,
        /// The last line of its conversation.
        leaf: Option<LineId>,
        /// The lines that tell it, as recorded.
        answer: oneshot::Sender<Vec<Arc<Envelope>>>,
    },
    /// Whether an agent may end: answered when it may, or with what it must hear first.
    End {
        desk: Arc<Desk>,
        /// The last line of its conversation.
        leaf: Option<LineId>,
        answer: oneshot::Sender<MayEnd>,
    },
    /// A run of an agent is over, and that is on record.
    Ended {
        agent: AgentId,
        ending: Box<Ending>,
        /// What its lines have told it.
        delivered: HashSet<Delivery>,
    },
    /// Whoever was asked wants the turn to end: of the asker, and of all who wait for it.
    Halt {
        /// The asker; none is the root.
        agent: Option<AgentId>,
    },
    /// Look at a task.
    Look {
        task: TaskId,
        /// All there is to see.
        answer: oneshot::Sender<Option<Looked>>,
    },
    /// What works in the background now, as hooks are told of it.
    UnderWay { answer: oneshot::Sender<Vec<serde_json::Value>> },
    /// Take the telling of a delivery over; false if someone else has.
    Claim {
        delivery: Delivery,
        /// Whether it is now the asker's.
        answer: oneshot::Sender<bool>,
    },
    /// End a task and all below it.
    Stop {
        task: TaskId,
        by: String,
        /// The tasks that were alive.
        answer: oneshot::Sender<Result<Looked, String>>,
    },
    /// Plan before anything is changed, or work because the plan was agreed to.
    Plan {
        /// Which of the two.
        planning: Planning,
        /// What came of it; the error is for the model.
        answer: oneshot::Sender<Result<Planned, String>>,
    },
    /// Let the session work in a checkout of its own, or again where it did before.
    Relocate {
        /// Which of the two.
        relocation: Relocation,
        /// What came of it; the error is for the model.
        answer: oneshot::Sender<Result<Place, String>>,
    },
    /// A step of that was taken, beside the session's task.
    Relocating(Box<Relocating>),
    /// Tell an agent something.
    Mail {
        from: Arc<Desk>,
        to: AgentId,
        text: String,
        /// What became of it.
        answer: oneshot::Sender<Result<Sent, String>>,
    },
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

/// A wish to begin an agent.
pub struct Spawning {
    pub desk: Arc<Desk>,
    pub call: CallId,
    /// What the model asked for.
    pub input: AgentInput,
    /// Where the asker is now.
    pub cwd: Utf8PathBuf,
    /// What the asker has read.
    pub seen: Arc<FilesSeen>,
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
    pub progress: ProgressCell,
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

/// The shells that someone waits for. A small leaf: each foreground command touches it twice.
#[derive(Default)]
pub struct Shells(Mutex<Vec<Arc<ForegroundShell>>>, Mutex<Vec<Coming>>);

/// A command or an agent whose call is on record and that is not started yet.
struct Coming {
    agent: Option<AgentId>,
    call: CallId,
    /// Whether nobody waits for it any more.
    is_behind: bool,
}

/// Holds the place of a command or an agent until its call is over.
pub struct Expected<'a> {
    shells: &'a Shells,
    call: CallId,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.shells.coming().retain(|coming| coming.call != self.call);
    }
}

/// A shell that someone waits for.
pub struct ForegroundShell {
    pub desk: Arc<Desk>,
    pub call: CallId,
    pub command: String,
    /// What it is for.
    pub description: String,
    /// What it has printed so far.
    pub printed: Arc<Printed>,
    pub cancel: CancellationToken,
    /// Turns to its record when nobody waits for it any more.
    pub detached: watch::Sender<Option<Arc<TaskRecord>>>,
}

impl Shells {
    /// Expects one: it can be sent to the background from now on.
    pub fn expect(&self, agent: Option<AgentId>, call: &CallId) -> Expected<'_> {
        self.coming().push(Coming { agent, call: call.clone(), is_behind: false });
        Expected { shells: self, call: call.clone() }
    }

    /// Sends those to the background that are expected and not started yet, and that are meant; gives how many.
    pub fn send_behind(&self, is_meant: impl Fn(Option<&AgentId>, &CallId) -> bool) -> usize {
        let started = self.lock();
        let is_coming = |call: &CallId| !started.iter().any(|shell| shell.call == *call);
        let mut coming = self.coming();
        let meant = coming
            .iter_mut()
            .filter(|one| !one.is_behind && is_coming(&one.call) && is_meant(one.agent.as_ref(), &one.call));
        meant.map(|one| one.is_behind = true).count()
    }

    /// Whether nobody waits any more for a command or an agent that is about to start.
    pub fn is_behind(&self, call: &CallId) -> bool {
        self.coming().iter().any(|coming| coming.call == *call && coming.is_behind)
    }

    fn coming(&self) -> std::sync::MutexGuard<'_, Vec<Coming>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, shell: Arc<ForegroundShell>) {
        self.lock().push(shell);
    }

    pub fn remove(&self, shell: &Arc<ForegroundShell>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, shell));
    }

    /// Whether one is still waited for.
    pub fn has(&self, shell: &Arc<ForegroundShell>) -> bool {
        self.lock().iter().any(|other| Arc::ptr_eq(other, shell))
    }

    pub fn all(&self) -> Vec<Arc<ForegroundShell>> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<ForegroundShell>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Remembers that a call is about to begin.
    pub fn begins(&self, call: &CallId) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).insert(call.clone());
    }

    /// Remembers what a command has printed that is stopped before its call can tell.
    pub fn cuts_off(&self, call: &CallId, printed: Arc<Printed>) {
        let mut cut_off = self.cut_off.lock().unwrap_or_else(PoisonError::into_inner);
        cut_off.insert(call.clone(), printed);
    }

    /// What a command had printed that was stopped with its call.
    pub fn cut_off(&self, call: &CallId) -> Option<Arc<Printed>> {
        self.cut_off.lock().unwrap_or_else(PoisonError::into_inner).get(call).cloned()
    }

    /// Whether a call may have begun.
    pub fn has_begun(&self, call: &CallId) -> bool {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).contains(call)
    }

    /// A desk of these.
    #[allow(clippy::too_many_arguments)] // all of it is one run's; a builder would only rename it
    pub fn new(
        spec: Arc<RunSpec>,
        path: String,
        model: Arc<Model>,
        heads: (Arc<Head>, Arc<WireHead>),
        tools: Arc<ToolSet>,
        account: AccountId,
        modes: Arc<[ModeStep]>,
        links: Links,
    ) -> Self {
        Self {
            who: Who { run: spec.run, agent: spec.agent.clone() },
            limits: watch::Sender::new(spec.limits.clone()),
            spec,
            path,
            model,
            head: heads.0,
            wire_head: heads.1,
            tools,
            account,
            modes,
            grants: links.grants,
            inherited: links.inherited,
            wishes: links.wishes,
            prefix: Mutex::default(),
            told: links.told,
            begun: AtomicU32::new(links.begun),
            calls: Mutex::default(),
            cut_off: Mutex::default(),
            progress: links.progress,
            parent_told: links.parent_told,
            stopped_by: Mutex::default(),
            shells: links.shells,
            follows: Mutex::default(),
            left: Mutex::default(),
            ending: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            moved: Mutex::default(),
            state: OnceLock::new(),
            held: watch::Sender::default(),
            in_line: watch::Sender::default(),
        }
    }

    /// From now on the run looks there whether it is held.
    pub fn watch(&self, state: watch::Receiver<TaskView>) {
        // It begins once.
        let _ = self.state.set(state);
    }

    /// Waits while the run is held. Whoever is about to begin something asks here first.
    pub async fn hold(&self, clock: &dyn Clock) {
        let Some(state) = self.state.get() else { return };
        if !state.borrow().state.is_held() {
            return;
        }
        self.held.send_modify(|held| held.since = Some(clock.elapsed()));
        // A table that is gone holds nobody.
        let _ = state.clone().wait_for(|view| !view.state.is_held()).await;
        self.held.send_modify(|held| *held = Held { total: held.by(clock.elapsed()), since: None });
    }

    /// Waits until the run is held while its request stands in line: whoever does nothing takes nobody's place there.
    pub async fn gives_way(&self) {
        let Some(state) = self.state.get() else { return std::future::pending().await };
        let (mut state, mut in_line) = (state.clone(), self.in_line.subscribe());
        loop {
            let held = state.borrow_and_update().state.is_held();
            if held && *in_line.borrow_and_update() {
                return;
            }
            let gone = tokio::select! {
                changed = state.changed() => changed.is_err(),
                changed = in_line.changed() => changed.is_err(),
            };
            if gone {
                return std::future::pending().await;
            }
        }
    }

    /// What was decided for the run, with where it works now.
    pub fn now(&self) -> Arc<RunSpec> {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(moved.as_ref().unwrap_or(&self.spec))
    }

    /// The run goes on elsewhere.
    pub fn move_to(&self, cwd: Utf8PathBuf, worktree: Option<Worktree>, directories: Vec<Utf8PathBuf>) {
        let worktree = worktree.map(Box::new);
        let spec = RunSpec { cwd, worktree, directories, ..(*self.spec).clone() };
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(spec));
    }

    /// Sends a wish and waits for its answer; none if the session is gone.
    pub async fn wish<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Wish) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.wishes.send(make(answer)).await.ok()?;
        answered.await.ok()
    }

    /// Shows what the run waits for, to whoever looks and to whoever listens.
    pub fn waits(&self, journal: &Journal, reason: Option<WaitReason>) {
        let words = reason.as_ref().and_then(notice::waiting);
        let in_line =
            matches!(&reason, Some(WaitReason::Turn { .. } | WaitReason::Retry { .. } | WaitReason::Budget));
        self.in_line.send_if_modified(|now| std::mem::replace(now, in_line) != in_line);
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).waiting = words;
        journal.publish(&self.who, Event::Waiting { reason });
    }

    /// Shows that the run waits for an answer to a question, until what is returned is dropped.
    pub fn show_question<'a>(&'a self, journal: &'a Journal, question: QuestionId) -> ShownQuestion<'a> {
        self.waits(journal, Some(WaitReason::Permission { question }));
        ShownQuestion { desk: self, journal }
    }

    /// Whether there is something to tell the run.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }
}

/// That a run waits for an answer, while this lives.
pub struct ShownQuestion<'a> {
    desk: &'a Desk,
    journal: &'a Journal,
}

impl Drop for ShownQuestion<'_> {
    fn drop(&mut self) {
        self.desk.waits(self.journal, None);
    }
}

/// What ties a desk to others.
pub struct Links {
    /// What it may use.
    pub grants: Arc<[Grant]>,
    /// Whose conversation stands before its own.
    pub inherited: Arc<[(Option<AgentId>, u64)]>,
    /// The way to the session's task.
    pub wishes: mpsc::Sender<Wish>,
    /// Set when there is something to tell it.
    pub told: Arc<AtomicBool>,
    /// How far it has come.
    pub progress: ProgressCell,
    /// Set when it got further.
    pub parent_told: Option<Arc<AtomicBool>>,
    /// Shells that someone waits for.
    pub shells: Arc<Shells>,
    /// How many of its tasks are alive already, from an earlier run.
    pub begun: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_sent_behind_between_its_record_and_its_start() {
        let shells = Shells::default();
        let (first, second) = (CallId("c1".to_owned()), CallId("c2".to_owned()));
        let of_root = |agent: Option<&AgentId>, _: &CallId| agent.is_none();
        let expected = shells.expect(None, &first);
        let _other = shells.expect("a0123456789abcdef".parse().ok(), &second);
        assert_eq!((shells.send_behind(of_root), shells.is_behind(&first)), (1, true));
        assert_eq!((shells.send_behind(of_root), shells.is_behind(&second)), (0, false));
        drop(expected);
        assert!(!shells.is_behind(&first));
    }
}
