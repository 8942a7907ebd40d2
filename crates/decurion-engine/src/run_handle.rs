//! What one run holds: what was decided for it, the services of its session, and the way to the session's task. Takes
//! what the session publishes about the run, gives what the run publishes about itself; one `watch` each way.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_model::{Head, RequestTag, WireHead};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentId, CallId, Clock, Event, Limits, OwnRules, QuestionId, RunSpec, SessionId, TaskProgress,
    WaitReason, Worktree,
};
use decurion_tools::{Printed, ToolSet};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::approval::{Ask, Person, Rights, ShownQuestion};
use crate::budget::{AccountId, Budget};
use crate::child::ModeStep;
use crate::context::Prefix;
use crate::equipment::Equipment;
use crate::foreground::ForegroundShells;
use crate::hook::Hooks;
use crate::journal::{Journal, Who};
use crate::notice;
use crate::permission::Grant;
use crate::ports::{Audit, Compaction, Fallback, Library, Model};
use crate::scale::Scale;
use crate::session_port::SessionPort;
use crate::task::{RunStatus, TaskView};

/// A run, as its loop, its tools and its session see it. Cheap to clone.
#[derive(Clone)]
pub struct RunHandle(Arc<RunParts>);

/// What a run is made of. Nothing here changes but through the two `watch`es, a few flags and a counter.
pub struct RunParts {
    pub who: Who,
    /// What was decided for the run. Where it works now is in [`RunHandle::now`].
    pub spec: Arc<RunSpec>,
    pub lineage: Lineage,
    pub voice: Voice,
    /// Who asks, for the provider's queue and for scripts.
    pub tag: RequestTag,
    pub tools: Arc<ToolSet>,
    /// The hooks in force for it.
    pub hooks: Hooks,
    pub cancel: CancellationToken,
    /// How many tasks it began.
    pub begun: AtomicU32,
    told: Arc<AtomicBool>,
    parent_told: Option<Arc<AtomicBool>>,
    services: Services,
    facts: watch::Receiver<RunFacts>,
    status: watch::Sender<RunStatus>,
    /// How long it did nothing because it was paused. Its own task listens to this and the next: a signal that came
    /// with each change of its status would wake it for nothing.
    paused: watch::Sender<PausedTime>,
    /// Whether its request stands in line or waits to be sent again.
    in_line: watch::Sender<bool>,
}

/// What a run has from those above it.
pub struct Lineage {
    /// The way from the root, `main/<agent>/…`.
    pub path: String,
    pub account: AccountId,
    /// The modes that definitions on the way from the root ask for.
    pub modes: Arc<[ModeStep]>,
    /// What the definitions on the way from the root let it use.
    pub grants: Arc<[Grant]>,
    /// Whose conversation stands before its own, up to which record each.
    pub inherited: Arc<[(Option<AgentId>, u64)]>,
}

/// How a run talks to its model.
#[derive(Clone)]
pub struct Voice {
    pub model: Arc<Model>,
    /// What stands before the conversation.
    pub head: Arc<Head>,
    /// The same in the model's bytes.
    pub wire_head: Arc<WireHead>,
    /// The models to change to.
    pub fallbacks: Arc<[Fallback]>,
}

/// What every run of a session reaches.
#[derive(Clone)]
pub struct Services {
    pub session_id: SessionId,
    /// The way to the session's task.
    pub session: Arc<dyn SessionPort>,
    /// Where permission decisions are recorded.
    pub audit: Arc<dyn Audit>,
    /// Where the session was started: rules count from here, for every run.
    pub root: Utf8PathBuf,
    pub journal: Journal,
    /// What runs may do now; the session's task holds the other end.
    pub rights: watch::Receiver<Rights>,
    /// The tree of accounts, a small leaf that everyone touches briefly.
    pub budget: Arc<Mutex<Budget>>,
    /// What providers counted for requests of the session.
    pub scale: Arc<Scale>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// What tools work with.
    pub equipment: Arc<Equipment>,
    /// What agents read besides.
    pub library: Arc<dyn Library>,
    /// The session's MCP servers, for their prompts.
    pub servers: Arc<[decurion_tools::mcp::Server]>,
    /// The tool that answers questions in a person's place.
    pub permission_tool: Option<Arc<str>>,
    /// When conversations are shortened.
    pub compaction: Compaction,
    /// Commands that a run waits for, in the whole session.
    pub shells: Arc<ForegroundShells>,
}

/// What the session publishes about a run.
#[derive(Clone)]
pub struct RunFacts {
    /// What was decided, with where the run works now.
    now: Arc<RunSpec>,
    /// Its limits, as they are since a person changed them.
    limits: Limits,
    /// Who stopped it first.
    stopped_by: Option<String>,
    /// Whether the session closed while the run worked and was not stopped before.
    closed: bool,
    /// Where its task stands, which says whether it is paused; none is the root's.
    task: Option<watch::Receiver<TaskView>>,
    /// Background commands that were stopped for its end.
    stopped_shells: Vec<String>,
}

/// How long a run did nothing because it was paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PausedTime {
    /// In all, without the pause that it is in now.
    total: Duration,
    /// Since when it is paused now, if it is.
    since: Option<Duration>,
}

impl PausedTime {
    /// In all, by now.
    fn by(&self, now: Duration) -> Duration {
        self.total + self.since.map(|since| now.saturating_sub(since)).unwrap_or_default()
    }
}

/// A run as one of its calls sees it: what the engine's own tools are given.
pub struct CallingRun {
    pub run: RunHandle,
    /// The conversation before the message with the call; only where that message starts an agent.
    pub prefix: Option<Arc<Prefix>>,
    /// The rules of the skills that the run follows: agents that it starts are bound by the same.
    pub follows: OwnRules,
}

/// What a run is built from.
pub struct RunBuilder {
    pub spec: RunSpec,
    pub lineage: Lineage,
    pub voice: Voice,
    pub tag: RequestTag,
    pub tools: Arc<ToolSet>,
    pub hooks: Hooks,
    pub cancel: CancellationToken,
    /// How many of its tasks are alive already, from an earlier run.
    pub begun: u32,
    /// Set when there is something to tell it.
    pub told: Arc<AtomicBool>,
    /// Set when it got further, so that its parent is told.
    pub parent_told: Option<Arc<AtomicBool>>,
    pub services: Services,
}

impl RunBuilder {
    /// The run, and the session's end of it.
    pub fn build(self) -> RunControl {
        let spec = Arc::new(self.spec);
        let (facts, seen) = watch::channel(RunFacts {
            limits: spec.limits.clone(),
            now: Arc::clone(&spec),
            stopped_by: None,
            closed: false,
            task: None,
            stopped_shells: Vec::new(),
        });
        let run = RunHandle(Arc::new(RunParts {
            who: Who { run: spec.run, agent: spec.agent.clone() },
            spec,
            lineage: self.lineage,
            voice: self.voice,
            tag: self.tag,
            tools: self.tools,
            hooks: self.hooks,
            cancel: self.cancel,
            begun: AtomicU32::new(self.begun),
            told: self.told,
            parent_told: self.parent_told,
            services: self.services,
            facts: seen,
            status: watch::Sender::default(),
            paused: watch::Sender::default(),
            in_line: watch::Sender::default(),
        }));
        RunControl { run, facts }
    }
}

impl Deref for RunHandle {
    type Target = RunParts;
    fn deref(&self) -> &RunParts {
        &self.0
    }
}

impl Deref for RunParts {
    type Target = Services;
    fn deref(&self) -> &Services {
        &self.services
    }
}

impl RunHandle {
    /// What was decided for the run, with where it works now.
    pub fn now(&self) -> Arc<RunSpec> {
        Arc::clone(&self.facts.borrow().now)
    }

    /// Its limits as they are now.
    pub fn limits(&self) -> Limits {
        self.facts.borrow().limits.clone()
    }

    /// Who stopped it, if it was stopped.
    pub fn stopped_by(&self) -> Option<String> {
        self.facts.borrow().stopped_by.clone()
    }

    /// Whether the session closed while the run worked.
    pub fn is_closed(&self) -> bool {
        self.facts.borrow().closed
    }

    /// The background commands that were stopped for its end.
    pub fn stopped_shells(&self) -> Vec<String> {
        self.facts.borrow().stopped_shells.clone()
    }

    /// Whether there is something to tell the run.
    pub fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// How the run stands, for whoever looks.
    pub fn status(&self) -> watch::Ref<'_, RunStatus> {
        self.status.borrow()
    }

    /// Changes of how the run stands.
    pub fn watch_status(&self) -> watch::Receiver<RunStatus> {
        self.status.subscribe()
    }

    /// How long the run was paused, by now.
    pub fn paused_by(&self, now: Duration) -> Duration {
        self.paused.borrow().by(now)
    }

    /// Says how far the run has come, to whoever looks and to its parent.
    pub fn publish_progress(&self, progress: TaskProgress) {
        self.status.send_modify(|status| status.progress = progress);
        if let Some(parent) = &self.parent_told {
            parent.store(true, Ordering::Release);
        }
    }

    /// The last word is said: what is left is to put that on record.
    pub fn is_ending(&self) {
        self.status.send_modify(|status| status.ending = true);
    }

    /// Remembers that a call is about to begin.
    pub fn begins(&self, call: &CallId) {
        self.status.send_modify(|status| {
            status.calls.insert(call.clone());
        });
    }

    /// Remembers what a command has printed that is stopped before its call can tell.
    pub fn cuts_off(&self, call: &CallId, printed: Arc<Printed>) {
        self.status.send_modify(|status| drop(status.cut_off.insert(call.clone(), printed)));
    }

    /// Waits while the run is paused. Ask here before anything is begun.
    pub async fn wait_while_paused(&self, clock: &dyn Clock) {
        let Some(task) = self.facts.borrow().task.clone() else { return };
        if !task.borrow().state.is_held() {
            return;
        }
        let began = clock.elapsed();
        self.paused.send_modify(|paused| paused.since = Some(began));
        // A table that is gone pauses nothing.
        let _ = task.clone().wait_for(|view| !view.state.is_held()).await;
        let ended = clock.elapsed();
        self.paused.send_modify(|paused| *paused = PausedTime { total: paused.by(ended), since: None });
    }

    /// Waits until the run is paused while its request stands in line: a paused run takes no place there.
    pub async fn gives_way(&self) {
        let Some(mut task) = self.facts.borrow().task.clone() else { return std::future::pending().await };
        let mut in_line = self.in_line.subscribe();
        loop {
            let paused = task.borrow_and_update().state.is_held();
            if paused && *in_line.borrow_and_update() {
                return;
            }
            let gone = tokio::select! {
                changed = task.changed() => changed.is_err(),
                changed = in_line.changed() => changed.is_err(),
            };
            if gone {
                return std::future::pending().await;
            }
        }
    }

    /// Waits for the end of the time that the run may take, of which `spent` is gone by now; for ever without a limit
    /// and while it is paused.
    pub async fn time_is_up(&self, spent: impl Fn() -> Duration) {
        let (mut facts, mut pauses) = (self.facts.clone(), self.paused.subscribe());
        let mut may_change = true;
        loop {
            let paused = *pauses.borrow_and_update();
            let most = facts.borrow_and_update().limits.seconds.map(Duration::from_secs);
            let up = async {
                match most.filter(|_| paused.since.is_none()) {
                    Some(most) => tokio::time::sleep((most + paused.total).saturating_sub(spent())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = pauses.changed() => {}
                // A session that has let go of the run says nothing more of it.
                changed = facts.changed(), if may_change => may_change = changed.is_ok(),
                () = up => return,
            }
        }
    }

    /// Shows what the run waits for, to whoever looks and to whoever listens.
    pub fn waits(&self, reason: Option<WaitReason>) {
        let words = reason.as_ref().and_then(notice::waiting);
        let in_line =
            matches!(&reason, Some(WaitReason::Turn { .. } | WaitReason::Retry { .. } | WaitReason::Budget));
        self.in_line.send_if_modified(|now| std::mem::replace(now, in_line) != in_line);
        self.status.send_modify(|status| status.progress.waiting = words);
        self.journal.publish(&self.who, Event::Waiting { reason });
    }

    /// Shows that the run waits for an answer to a question, until what is returned is dropped.
    pub fn show_question(&self, question: QuestionId) -> ShownQuestion<'_> {
        ShownQuestion::new(self, question)
    }
}

impl Person for RunHandle {
    fn ask(&self, ask: Box<Ask>) -> BoxFuture<'_, Option<()>> {
        self.session.ask(ask)
    }

    fn waits(&self, reason: Option<WaitReason>) {
        RunHandle::waits(self, reason);
    }
}

/// The session's end of a run: what it publishes about the run, and its handle.
#[derive(Clone)]
pub struct RunControl {
    pub run: RunHandle,
    facts: watch::Sender<RunFacts>,
}

impl RunControl {
    /// Stops the run; who did it first counts.
    pub fn stop(&self, by: &str) {
        self.blame(by);
        self.run.cancel.cancel();
    }

    /// Says who will have stopped the run, once it is.
    pub fn blame(&self, by: &str) {
        self.facts.send_modify(|facts| {
            facts.stopped_by.get_or_insert_with(|| by.to_owned());
        });
    }

    /// The session closes while the run works.
    pub fn close(&self, by: &str) {
        self.blame(by);
        self.facts.send_modify(|facts| facts.closed = true);
    }

    /// The run goes on elsewhere.
    pub fn move_to(&self, cwd: Utf8PathBuf, worktree: Option<Worktree>, directories: Vec<Utf8PathBuf>) {
        let worktree = worktree.map(Box::new);
        let spec = RunSpec { cwd, worktree, directories, ..(*self.run.spec).clone() };
        self.facts.send_modify(|facts| facts.now = Arc::new(spec));
    }

    pub fn limit(&self, limits: Limits) {
        self.facts.send_modify(|facts| facts.limits = limits);
    }

    /// From now on the run looks there whether it is paused.
    pub fn follow(&self, task: watch::Receiver<TaskView>) {
        self.facts.send_modify(|facts| facts.task = Some(task));
    }

    /// These background commands of the run were stopped for its end.
    pub fn shells_stopped(&self, commands: Vec<String>) {
        self.facts.send_modify(|facts| facts.stopped_shells = commands);
    }
}
