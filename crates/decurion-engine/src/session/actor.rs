//! Room 1. Commands come in and are routed. One task per session owns which run is alive, the queue of
//! prompts, the mode and rules in force and the open questions; everyone else sends it commands and reads
//! events.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decurion_model::{Head, WireHead};
use decurion_protocol::{
    AgentDefinition, AgentId, Block, CallId, Command, Event, LineId, OpenSession, Outcome, OwnRules,
    Question, QuestionId, Reply, Request, RequestId, RuleSet, RunId, SessionId, Skill, Worktree,
};
use decurion_store::SessionFiles;
use decurion_tools::ToolSet;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::{Approvals, Rights};
use crate::budget::Budget;
use crate::context::Context;
use crate::equipment::Equipment;
use crate::hook::Hooks;
use crate::host::HostDesk;
use crate::journal::{Journal, Who};
use crate::mcp::SessionServers;
use crate::ports::{Instructions, Model, new_line, new_run};
use crate::run_handle::RunControl;
use crate::run_hooks::RunHooks;
use crate::session::inbox::{Inbox, Stopper};
use crate::session::listing;
use crate::session::parts::Parts;
use crate::session::run_task::Left;
use crate::session::tree::requests::{RequestSender, SessionRequest};

use crate::session::prompts::{Work, lines};
use crate::session::state::{
    Accounts, Core, Finish, Offer, Outfits, Permissions, PromptQueue, RootRun, Slots, Tasks, Workplace,
};
use crate::session_port::Sent;
use crate::task::{BY_END, BY_INTERRUPT, TaskTable};
use crate::worktree::Released;

/// A session, before its task starts.
pub struct Session {
    /// What the engine is made of.
    pub parts: Arc<Parts>,
    pub id: SessionId,
    /// What was asked for.
    pub request: OpenSession,
    /// Where its events go.
    pub journal: Journal,
    /// What its tools work with.
    pub equipment: Arc<Equipment>,
    /// The model in use.
    pub model: Arc<Model>,
    /// What stands before the conversation.
    pub head: Arc<Head>,
    /// The same in the model's bytes.
    pub wire_head: Arc<WireHead>,
    /// The name it is stored under.
    pub head_name: String,
    pub tools: Arc<ToolSet>,
    /// The checkout of its own that it works in.
    pub worktree: Option<Worktree>,
    /// Where it works: the folder that was asked for, or where that is in the checkout that it entered.
    pub cwd: camino::Utf8PathBuf,
    /// Where it works again once it leaves the checkout that it entered; none if it entered none.
    pub before: Option<camino::Utf8PathBuf>,
    pub directories: Vec<camino::Utf8PathBuf>,
    /// The conversation so far.
    pub context: Context,
    /// The lines of its record, which no prompt may be called after.
    pub lines: HashSet<LineId>,
    /// The prompt that an earlier process was at work on when it died. Sent again, it is worked on, not said again.
    pub unanswered: Option<(LineId, Vec<Block>)>,
    /// Prompts that an earlier process accepted and did not begin, in order.
    pub queued: Vec<(LineId, Vec<Block>)>,
    /// The last run on record.
    pub previous: Option<RunId>,
    /// What is told at the beginning of a conversation.
    pub opening_note: String,
    /// What may be done.
    pub rights: Rights,
    /// The hooks of the settings.
    pub hooks: Hooks,
    /// Whether it was taken up again, and how: what `SessionStart` hooks are told.
    pub source: &'static str,
    /// Its files; none where nothing is kept.
    pub files: Option<Arc<SessionFiles>>,
    /// What git said about the working directory when the session began.
    pub git_status: Option<String>,
    /// The agents that its tools were told of.
    pub agents: Vec<Arc<AgentDefinition>>,
    /// The rules in force when its tools were told of them: denied agents are left out.
    pub told_rules: Arc<RuleSet>,
    /// The instruction files that its conversation begins with.
    pub instructions: Vec<Instructions>,
    /// Instruction files that were left out, and why.
    pub left_out: Vec<String>,
    /// The skills that its tools were told of.
    pub skills: Vec<Arc<Skill>>,
    /// Its tasks so far.
    pub tasks: TaskTable,
    /// Questions of an earlier process that nobody has answered, by who asks and for which call.
    pub parked: HashMap<(Option<AgentId>, CallId), QuestionId>,
    pub servers: Option<SessionServers>,
    /// What is asked of the program that leads it.
    pub host: HostDesk,
}

/// The task of a session.
pub struct SessionActor {
    pub core: Core,
    pub root: RootRun,
    pub offer: Offer,
    pub prompts: PromptQueue,
    pub place: Workplace,
    pub permissions: Permissions,
    pub accounts: Accounts,
    pub tasks: Tasks,
    pub slots: Slots,
    pub outfits: Outfits,
    pub finish: Finish,
    /// Runs hold the other end.
    incoming: mpsc::Receiver<SessionRequest>,
}

/// Whether the session ends, and who asked for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    No,
    /// A front end wants to hear when it has ended.
    For(RequestId),
    /// Nobody is left to hear it.
    Unheard,
}

pub struct Running {
    pub(super) task: JoinHandle<Left>,
    pub(super) control: RunControl,
}

impl Session {
    /// Starts the session's task.
    pub fn start(self, commands: decurion_protocol::CommandReceiver, who: Who) -> JoinHandle<()> {
        let (requests, incoming) = RequestSender::channel();
        let mut budget = Budget::default();
        // A session that is resumed has one budget for all its processes.
        let account = budget.open_again(None, &self.request.limits, self.tasks.spent_in_all());
        let own = self.parts.agents.hooks_of(&self.request.definition);
        let (hooks, _) = self.hooks.and(own);
        let (cancel, reads) = (CancellationToken::new(), Arc::default());
        let Self { parts, id, request, journal, equipment, files, host, .. } = self;
        let core = Core { parts, id, request, journal, equipment, files, host, requests, who, cancel, reads };
        let owner = SessionActor {
            core,
            root: RootRun {
                previous: self.previous,
                source: self.source,
                opening_note: self.opening_note,
                session_hooks: self.hooks,
                context: Some(self.context),
                running: None,
                hooks,
                account,
                used: (0, Duration::ZERO),
                spawned: 0,
                by_notice: false,
                tasks_before: 0,
            },
            offer: Offer {
                model: self.model,
                head: self.head,
                wire_head: self.wire_head,
                head_name: self.head_name,
                tools: self.tools,
                agents: self.agents,
                skills: self.skills,
                told_rules: self.told_rules,
                own_model: None,
                thinking: None,
                command_rules: OwnRules::default(),
                told_of_plan: false,
            },
            prompts: PromptQueue {
                unanswered: self.unanswered,
                queued: self.queued,
                queue: VecDeque::new(),
                queued_bytes: 0,
                taken: self.lines,
                refilled: HashSet::new(),
                rewinds: VecDeque::new(),
                rewinding: None,
            },
            place: Workplace {
                cwd: self.cwd,
                before: self.before,
                worktree: self.worktree,
                directories: self.directories,
                git_status: self.git_status,
                instructions: self.instructions,
                servers: self.servers,
                settling: None,
                relocating: false,
            },
            permissions: Permissions {
                rights: watch::channel(self.rights).0,
                approvals: Approvals::default(),
                keeping: Vec::new(),
                parked: self.parked,
            },
            accounts: Accounts {
                budget: Arc::new(Mutex::new(budget)),
                scale: Arc::default(),
                by_agent: HashMap::new(),
            },
            tasks: Tasks { table: self.tasks, ..Tasks::default() },
            slots: Slots::default(),
            outfits: Outfits::default(),
            finish: Finish {
                finishing: None,
                patience: None,
                waiting_notice: WaitingNotice::NotDue,
                attached: true,
                shown: (true, 0),
                closing: Closing::No,
            },
            incoming,
        };
        tokio::spawn(owner.own(Inbox::new(commands)))
    }
}

/// Whether people know what the end of a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingNotice {
    NotDue,
    /// They are told then, if it still waits.
    Due(Instant),
    Given,
}

impl WaitingNotice {
    fn due(self) -> Option<Instant> {
        match self {
            Self::Due(at) => Some(at),
            Self::NotDue | Self::Given => None,
        }
    }
}

/// A wait for commands in the background that is shorter needs no word.
const UNTOLD_WAIT: Duration = Duration::from_secs(5);
/// How many worktrees that dead sessions left are looked at when a session starts.
const MOST_SETTLED: usize = 64;
/// How long a session that ends waits for that.
const SETTLING_LIMIT: Duration = Duration::from_secs(10);

impl SessionActor {
    pub(super) async fn own(mut self, mut inbox: Inbox) {
        let stopper = self.stopper();
        let begin = async {
            self.take_up().await;
            self.refill_queue().await;
            self.next().await;
        };
        inbox.hear_during(stopper, Box::pin(begin)).await;
        self.show_quiet(false);
        let settling = self
            .core
            .parts
            .worktrees
            .clone()
            .map(|trees| tokio::spawn(async move { trees.settle_dead(MOST_SETTLED).await }));
        let mut seen_rights = self.permissions.rights.subscribe();
        loop {
            self.step(&mut inbox).await;
            // An answer is with its call by now: what it changed is for the others.
            if seen_rights.has_changed().unwrap_or(false) {
                seen_rights.mark_unchanged();
                self.permissions.approvals.reconsider();
            }
            let stopper = self.stopper();
            inbox.hear_during(stopper, self.next()).await;
            self.show_quiet(false);
            self.finish_if_quiet();
            if self.finish.closing != Closing::No && self.root.running.is_none() && !self.is_alive() {
                break;
            }
        }
        self.show_quiet(true);
        if let Some(rewinding) = self.prompts.rewinding.take() {
            // Files that are being put back are put back wholly, and it is on record.
            let _ = rewinding.await;
        }
        self.finish_keeping().await;
        self.say_goodbye(&mut inbox).await;
        if let Some(servers) = self.place.servers.take() {
            servers.close().await;
        }
        let worktree = self.leave_worktree().await;
        if let Some(settling) = settling {
            // A git that is ended in the middle leaves its locks to the next start.
            let _ = tokio::time::timeout(SETTLING_LIMIT, settling).await;
        }
        self.core.journal.close().await;
        if let Some(trees) = &self.core.parts.worktrees {
            trees.let_go(self.core.id);
        }
        if let Closing::For(request) = self.finish.closing {
            let value = serde_json::json!({"unheard": worst(&self.tasks.unheard), "worktree": worktree});
            self.reply(request, Reply::Done { value });
        }
    }

    /// Does the next thing that is to be done. What came before an interrupt that has stopped the turn, and the
    /// interrupt, go first: the turn's end would begin a prompt that was to be withdrawn, or that it would stop too.
    pub(super) async fn step(&mut self, inbox: &mut Inbox) {
        if let Some(request) = inbox.before_interrupt() {
            return self.obey(inbox, Some(request)).await;
        }
        let stopper = self.stopper();
        tokio::select! {
            biased;
            left = finished(&mut self.root.running) => inbox.hear_during(stopper, self.root_ended(left)).await,
            Some(request) = self.incoming.recv() => inbox.hear_during(stopper, Box::pin(self.grant(request))).await,
            over = over(&mut self.permissions.approvals) => match over {
                Over::Late(question) => inbox.hear_during(stopper, self.expired(question)).await,
                Over::Withdrawn(question) => inbox.hear_during(stopper, self.withdrawn(&question)).await,
            },
            () = until(self.finish.waiting_notice.due()) => inbox.hear_during(stopper, self.tell_of_waiting()).await,
            () = until(self.finish.patience) => inbox.hear_during(stopper, self.stop_root_shells()).await,
            notice = heard(&mut self.place.servers) => {
                inbox.hear_during(stopper, self.tell_of_server(notice)).await;
            }
            () = settled(&mut self.place.settling) => self.place.settling = None,
            () = settled(&mut self.prompts.rewinding) => self.prompts.rewinding = None,
            request = inbox.recv(), if self.finish.attached => self.obey(inbox, request).await,
        }
    }

    /// Does what a command wants; none is that nobody can send one any more.
    pub(super) async fn obey(&mut self, inbox: &mut Inbox, request: Option<Request>) {
        match request {
            Some(request) if self.finish.closing == Closing::No => {
                inbox.hear_during(self.stopper(), Box::pin(self.command(request))).await;
            }
            Some(request) => self.answer_host(request),
            None => self.left(),
        }
    }

    /// Takes the session's own checkout back, by the same rule as an agent's, and says what is left in it; gives the
    /// same for whoever asked for the end.
    pub(super) async fn leave_worktree(&mut self) -> Option<Value> {
        let (worktree, trees) = (self.place.worktree.as_ref()?, self.core.parts.worktrees.as_ref()?);
        let Released::Kept(left) = Box::pin(trees.release(worktree)).await else { return None };
        let text = format!("the session's worktree is kept: {} on {}: {left}", left.path, left.branch);
        let notice = Event::Notice { level: "info".to_owned(), text };
        let _ = self.core.journal.write(&self.core.who, vec![notice]).await;
        Some(serde_json::json!({"path": left.path, "branch": left.branch, "left": left.to_string()}))
    }

    pub(super) async fn command(&mut self, Request { id, command }: Request) {
        match command {
            Command::Prompt { blocks } => self.accept(id, new_line(), blocks).await,
            Command::Submit { line, blocks } => self.submit(id, line, blocks).await,
            Command::Unqueue { line } => self.unqueue(id, line).await,
            Command::Inspect { what } => self.inspect(id, what),
            Command::Permit { updates } => self.permit(id, updates).await,
            Command::SetThinking { tokens } => {
                self.set_thinking(tokens);
                self.reply(id, done());
            }
            Command::Change { model, thinking, updates } => {
                self.change(id, model.as_deref(), thinking, updates).await;
            }
            Command::SetServers { servers } => self.set_servers(id, servers),
            Command::ReconnectServer { server } => self.reconnect_server(id, &server),
            Command::ToggleServer { server, on } => self.toggle_server(id, &server, on),
            Command::Rewind { to, dry_run } => self.rewind(id, to, dry_run),
            Command::Compact { instructions } => self.enqueue(id, Work::Compact(instructions)),
            Command::Answer { question, answer, updates, by } => {
                self.answered(id, (question, answer), updates, by).await;
            }
            Command::AnswerHost { .. } => self.answer_host(Request { id, command }),
            Command::Interrupt => self.interrupt(id),
            Command::SetMode { mode } => self.set_mode(id, mode).await,
            Command::SetModel { model } => self.change(id, Some(&model), None, Vec::new()).await,
            Command::Close { .. } => self.close(Closing::For(id)),
            Command::Stop { task } => {
                let stopped = self.stop(&task, "a person").map(|_| 1);
                self.reply_count(id, stopped.ok_or_else(|| format!("no task with this id: {task}")));
            }
            Command::Background { target } => {
                let sent = self.background(target.as_deref()).await;
                self.reply_count(id, sent);
            }
            Command::Pause { task, tree } => {
                let held = self.pause(&task, tree).await;
                self.reply_count(id, held);
            }
            Command::Continue { task, tree } => {
                let gone_on = self.let_go_on(&task, tree).await;
                self.reply_count(id, gone_on);
            }
            Command::Rebudget { task, limits } => {
                let reply = match self.rebudget(&task, &limits).await {
                    Ok(limits) => Reply::Done { value: serde_json::json!(limits) },
                    Err(reason) => Reply::Refused { reason },
                };
                self.reply(id, reply);
            }
            Command::Shell { command } => {
                let reply = match self.run_typed(command).await {
                    Ok(call) => Reply::Done { value: serde_json::json!({"call": call}) },
                    Err(reason) => Reply::Refused { reason },
                };
                self.reply(id, reply);
            }
            Command::Tell { agent, text } => {
                let told =
                    self.mail(None, &agent, text).await.map(|sent| usize::from(sent != Sent::Delivered));
                self.reply_count(id, told);
            }
            Command::Tasks => {
                let table = &self.tasks.table;
                let tasks = table.rows().map(|row| listing::row(table, row)).collect();
                self.reply(id, Reply::Done { value: Value::Array(tasks) });
            }
            Command::Finish => self.finish.finishing = Some(id),
        }
    }

    /// Hands the host's answer to whoever waits for it. A session that ends does nothing else that it is told.
    pub(super) fn answer_host(&self, Request { id, command }: Request) {
        let Command::AnswerHost { request, answer } = command else { return };
        match self.core.host.answer(request, answer) {
            Ok(()) => self.reply(id, done()),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    /// Nobody is attached any more: nobody answers for the host, and the session ends.
    pub(super) fn left(&mut self) {
        self.finish.attached = false;
        self.core.host.leave();
        if self.finish.closing == Closing::No {
            self.close(Closing::Unheard);
        }
    }

    /// The last hooks. The host may be asked for them, so that its answers are handed in meanwhile.
    pub(super) async fn say_goodbye(&mut self, inbox: &mut Inbox) {
        let last = self.root_control();
        let hooked = RunHooks { run: &last.run };
        let mut said = std::pin::pin!(hooked.session_end("other"));
        loop {
            tokio::select! {
                biased;
                _ = &mut said => break,
                request = inbox.recv(), if self.finish.attached => match request {
                    Some(request) => self.answer_host(request),
                    None => self.left(),
                },
            }
        }
        self.core.host.leave();
    }

    pub fn reply(&self, request: RequestId, reply: Reply) {
        self.core.journal.publish(&self.core.who, Event::Replied { request, reply });
    }

    pub(super) fn reply_count(&self, request: RequestId, result: Result<usize, String>) {
        self.reply(
            request,
            match result {
                Ok(count) => Reply::Done { value: Value::from(count) },
                Err(reason) => Reply::Refused { reason },
            },
        );
    }

    /// Tells whoever listens what happened to a server.
    pub(super) async fn tell_of_server(&mut self, notice: decurion_tools::mcp::Notice) {
        self.warn(format!("MCP server {:?}: {}", notice.server, notice.text)).await;
    }

    /// Tells whoever listens that something is not as they may think.
    pub(super) async fn warn(&self, text: String) {
        let event = Event::Notice { level: "warning".to_owned(), text };
        // A journal that is lost is found lost by the next run.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
    }

    /// Tells whoever listens that everyone has come to rest, or that someone works again. A command that nobody
    /// waits for may run for ever, so it counts for nothing here; at the end nothing does.
    pub(super) fn show_quiet(&mut self, over: bool) {
        let resting =
            self.root.running.is_none() && self.prompts.queue.is_empty() && self.slots.preparing == 0;
        let quiet = over || resting && self.agents_are_quiet();
        let now = (quiet, u32::try_from(self.prompts.queue.len()).unwrap_or(u32::MAX));
        if now != self.finish.shown {
            self.finish.shown = now;
            self.core.journal.publish(&self.core.who, Event::Quiet { quiet, queued: now.1 });
        }
    }

    /// Closes when asked to finish and nothing is left to do.
    pub(super) fn finish_if_quiet(&mut self) {
        let Some(request) = self.finish.finishing else { return };
        if self.root.running.is_some() || !self.prompts.queue.is_empty() || self.finish.closing != Closing::No
        {
            return;
        }
        if self.is_quiet() {
            self.close(Closing::For(request));
        } else if self.only_shells() && !self.wakes_root() {
            let (now, wait) = (Instant::now(), self.core.parts.background_wait);
            self.finish.patience.get_or_insert(now + wait);
            if self.finish.waiting_notice == WaitingNotice::NotDue && !wait.is_zero() {
                self.finish.waiting_notice = WaitingNotice::Due(now + UNTOLD_WAIT.min(wait / 2));
            }
        } else {
            self.finish.patience = None;
            if self.finish.waiting_notice.due().is_some() {
                self.finish.waiting_notice = WaitingNotice::NotDue;
            }
        }
    }

    /// Tells people once what the end of the session waits for.
    pub(super) async fn tell_of_waiting(&mut self) {
        self.finish.waiting_notice = WaitingNotice::Given;
        let (commands, wait) = (self.background_commands(), self.core.parts.background_wait);
        let Some(first) = commands.first() else { return };
        let more = match commands.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let first: String = first.chars().take(80).collect();
        let text = format!(
            "waiting up to {} s for a command in the background: {first}{more} (Ctrl-C ends it; the setting \
             print.backgroundWait changes the time)",
            wait.as_secs()
        );
        let event = Event::Notice { level: "warning".to_owned(), text };
        // A journal that is lost ends the session all the same.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
    }

    /// The root's shells were waited for long enough.
    pub(super) async fn stop_root_shells(&mut self) {
        self.finish.patience = None;
        let seconds = self.core.parts.background_wait.as_secs();
        let text = format!("background commands were stopped after {seconds} s (print.background_wait)");
        let event = Event::Notice { level: "warning".to_owned(), text };
        // A journal that is lost ends the session all the same.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
        self.stop_all(BY_END);
        self.stop_typed();
    }

    pub(super) fn interrupt(&mut self, id: RequestId) {
        self.stop_turn(BY_INTERRUPT);
        self.stop_typed();
        self.reply(
            id,
            Reply::Done { value: serde_json::json!({"still_queued": lines(&self.prompts.queue)}) },
        );
    }

    /// Ends the root's turn, and all that it waits for.
    pub fn stop_turn(&mut self, by: &str) {
        if let Some(running) = &self.root.running {
            running.control.stop(by);
        }
        self.stop_foreground(None, by);
    }

    pub(super) fn close(&mut self, closing: Closing) {
        self.prompts.queue.clear();
        self.prompts.queued_bytes = 0;
        for (id, ..) in std::mem::take(&mut self.prompts.rewinds) {
            self.reply(id, Reply::Refused { reason: "the session ends".to_owned() });
        }
        if let Some(running) =
            self.root.running.as_ref().filter(|running| !running.control.run.cancel.is_cancelled())
        {
            let mut asked = self.permissions.approvals.questions();
            let is_asking = asked.any(|asked| asked.agent.is_none() && asked.elicitation.is_none());
            let by = if is_asking { Outcome::BY_END_ASKING } else { BY_END };
            running.control.close(by);
        }
        self.stop_all(BY_END);
        self.core.cancel.cancel();
        self.core.journal.hurry();
        self.finish.closing = closing;
    }

    /// What a command can stop while the session's task waits for something else.
    pub(super) fn stopper(&self) -> Stopper {
        let turn = self.root.running.as_ref().map(|running| running.control.clone());
        let stop_turn = Box::new(move || {
            if let Some(turn) = &turn {
                turn.stop(BY_INTERRUPT);
            }
        });
        Stopper { stop_turn, journal: self.core.journal.clone() }
    }
}

pub(super) fn done() -> Reply {
    Reply::Done { value: Value::Null }
}

/// Waits for the running work; for ever if there is none. A panic there leaves nothing but the record.
async fn finished(running: &mut Option<Running>) -> Left {
    match running {
        Some(running) => (&mut running.task).await.unwrap_or_else(|_| Left::nothing()),
        None => std::future::pending().await,
    }
}

/// A question that is over without an answer.
enum Over {
    /// Its time is up.
    Late(QuestionId),
    /// Its call or its server stopped waiting.
    Withdrawn(Box<Question>),
}

/// Waits until a question is over without an answer; for ever if none can be.
async fn over(approvals: &mut Approvals) -> Over {
    let due = approvals.first_due();
    let late = async {
        match due {
            Some((until, question)) => {
                tokio::time::sleep_until(until).await;
                question
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        question = approvals.withdrawn() => Over::Withdrawn(Box::new(question)),
        question = late => Over::Late(question),
    }
}

/// Waits for servers of the host; for ever if nobody does.
async fn settled(settling: &mut Option<JoinHandle<()>>) {
    match settling {
        Some(settling) => drop(settling.await),
        None => std::future::pending().await,
    }
}

/// Waits for news of the servers; for ever if there are none.
async fn heard(servers: &mut Option<SessionServers>) -> decurion_tools::mcp::Notice {
    match servers {
        Some(servers) => servers.notice().await,
        None => std::future::pending().await,
    }
}

/// Waits until then; for ever if there is no then.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// The worst of these endings, as it is written.
fn worst(endings: &[Outcome]) -> Option<&Outcome> {
    endings.iter().max_by_key(|outcome| outcome.badness()).filter(|outcome| outcome.badness() > 0)
}

/// The first run id of a session that has none yet: events before its first run need one.
pub fn first_who(previous: Option<RunId>) -> Who {
    Who { run: previous.unwrap_or_else(new_run), agent: None }
}
