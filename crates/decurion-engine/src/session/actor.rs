//! Room 1. Commands come in and are routed. One task per session owns which run is alive, the queue of
//! prompts, the mode and rules in force and the open questions; everyone else sends it commands and reads
//! events.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decurion_model::{Head, RequestClass, RequestTag, Thinking, WireHead};
use decurion_protocol::size::size_of;
use decurion_protocol::{
    AgentDefinition, AgentId, Answer, Block, CallId, Command, DecidedBy, ElicitationAction, Elicited, Event,
    LineId, Mode, OpenSession, Outcome, OwnRules, PermissionUpdate, Persistence, Question, QuestionId, Reply,
    Request, RequestId, RuleSet, RunId, SessionId, Skill, ThinkingChange, Totals, Worktree,
};
use decurion_store::SessionFiles;
use decurion_tools::{Surroundings, ToolSet};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::approval::Ask;
use crate::approval::{Approvals, Heard, Rights};
use crate::budget::Budget;
use crate::compact::{Trigger, compact};
use crate::context::Context;
use crate::equipment::Equipment;
use crate::hook::Hooks;
use crate::host::HostDesk;
use crate::journal::{Journal, Who};
use crate::mcp::{self, SessionServers};
use crate::permission::{Around, Checkouts, Policy};
use crate::ports::{Instructions, Model, NoAudit, new_line, new_run};
use crate::progress::Carried;
use crate::progress::{Progress, record, refold};
use crate::run_handle::{Lineage, RunBuilder, RunControl, RunHandle, Services, Voice};
use crate::run_hooks::RunHooks;
use crate::session::inbox::{Inbox, Stopper};
use crate::session::listing;
use crate::session::open::own_tools;
use crate::session::parts::Parts;
use crate::session::resources::Resources;
use crate::session::rewind::Rewind;
use crate::session::rights_changes;
use crate::session::rights_changes::{Change, Keep};
use crate::session::run_task::{Beginning, Left, Said, live, opening};
use crate::session::spec::{self, Decided};
use crate::session::tree::requests::{RequestSender, SessionRequest};

use crate::session::state::{
    Accounts, Core, Finish, Offer, Outfits, Permissions, PromptQueue, RootRun, Slots, Tasks, Workplace,
};
use crate::session_port::Sent;
use crate::skill::slash::{self, Typed};
use crate::symlinks::Symlinks;
use crate::task::{BY_END, BY_INTERRUPT, TaskTable};
use crate::worktree::Released;
use crate::{elicit, skill};

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
    fn bytes(&self) -> usize {
        match self {
            Self::Prompt(blocks, _) | Self::Again(blocks, _) => size_of(blocks),
            Self::Compact(words) => words.as_ref().map_or(0, String::len),
            Self::Refused(_) | Self::Notices => 0,
        }
    }
}

pub struct Running {
    task: JoinHandle<Left>,
    control: RunControl,
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

/// Why files are not put back now.
const STILL_AT_WORK: &str = "files are restored only while nothing is running; wait until the turn and its agents have ended, or \
    interrupt them, and try again";
/// Stands for the request of work that an earlier process had accepted.
const NO_REQUEST: RequestId = RequestId(u64::MAX);
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
/// How many prompts wait, and with how many bytes, before no more are taken.
const MOST_QUEUED: usize = 1_000;
const MOST_QUEUED_BYTES: usize = 32 << 20;
/// How many wait, with those that are refused in their turn.
const MOST_REFUSED: usize = 10_000;
/// How many worktrees that dead sessions left are looked at when a session starts.
const MOST_SETTLED: usize = 64;
/// How long a session that ends waits for that.
const SETTLING_LIMIT: Duration = Duration::from_secs(10);

impl SessionActor {
    async fn own(mut self, mut inbox: Inbox) {
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
    async fn step(&mut self, inbox: &mut Inbox) {
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
    async fn obey(&mut self, inbox: &mut Inbox, request: Option<Request>) {
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
    async fn leave_worktree(&mut self) -> Option<Value> {
        let (worktree, trees) = (self.place.worktree.as_ref()?, self.core.parts.worktrees.as_ref()?);
        let Released::Kept(left) = Box::pin(trees.release(worktree)).await else { return None };
        let text = format!("the session's worktree is kept: {} on {}: {left}", left.path, left.branch);
        let notice = Event::Notice { level: "info".to_owned(), text };
        let _ = self.core.journal.write(&self.core.who, vec![notice]).await;
        Some(serde_json::json!({"path": left.path, "branch": left.branch, "left": left.to_string()}))
    }

    async fn command(&mut self, Request { id, command }: Request) {
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
    fn answer_host(&self, Request { id, command }: Request) {
        let Command::AnswerHost { request, answer } = command else { return };
        match self.core.host.answer(request, answer) {
            Ok(()) => self.reply(id, done()),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    /// Nobody is attached any more: nobody answers for the host, and the session ends.
    fn left(&mut self) {
        self.finish.attached = false;
        self.core.host.leave();
        if self.finish.closing == Closing::No {
            self.close(Closing::Unheard);
        }
    }

    /// The last hooks. The host may be asked for them, so that its answers are handed in meanwhile.
    async fn say_goodbye(&mut self, inbox: &mut Inbox) {
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

    fn reply_count(&self, request: RequestId, result: Result<usize, String>) {
        self.reply(
            request,
            match result {
                Ok(count) => Reply::Done { value: Value::from(count) },
                Err(reason) => Reply::Refused { reason },
            },
        );
    }

    /// A prompt under an id of its sender's. Sent again, because nobody knows whether it arrived, it is taken once; one
    /// that nobody answered before the process died is worked on now, unless that is under way.
    async fn submit(&mut self, id: RequestId, line: LineId, blocks: Vec<Block>) {
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
    async fn accept(&mut self, id: RequestId, line: LineId, blocks: Vec<Block>) {
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
    async fn refill_queue(&mut self) {
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
    fn is_full(&self) -> Option<String> {
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
    async fn unqueue(&mut self, id: RequestId, line: Option<LineId>) {
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
    fn enqueue(&mut self, id: RequestId, work: Work) {
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

    /// Starts the next piece of work if nothing runs: what was asked for, else what waits to be told.
    async fn next(&mut self) {
        if self.root.running.is_some() || self.finish.closing != Closing::No {
            return;
        }
        if self.rewinds_first() || self.awaits_servers() {
            return;
        }
        let asked = self.prompts.queue.pop_front().map(|(_, work)| work).or_else(|| self.cut_off_first());
        self.prompts.queued_bytes =
            self.prompts.queued_bytes.saturating_sub(asked.as_ref().map_or(0, Work::bytes));
        self.root.by_notice = asked.is_none();
        let work = match asked {
            Some(work @ (Work::Prompt(..) | Work::Again(..))) => {
                self.slots.notified = 0;
                (self.root.used, self.root.spawned) = ((0, Duration::ZERO), 0);
                work
            }
            Some(work) => work,
            // Whoever were woken could not put on record that it was, and would be woken again.
            None if self.core.journal.is_lost() => return self.close(Closing::Unheard),
            None if self.wakes_root() => Work::Notices,
            None => return,
        };
        self.root.tasks_before = self.tasks.begun;
        if let Work::Prompt(prompt, _) | Work::Again(prompt, _) = &work {
            self.tell_of_agents().await;
            self.tell_of_servers().await;
            self.heed_command(prompt).await;
        }
        let context = self.take_context().await;
        let control = self.root_control();
        let run = control.run.clone();
        self.core.who = run.who.clone();
        self.root.previous = Some(run.spec.run);
        let (turns, time) = self.root.used;
        let carried = Carried { turns, time, ..Carried::default() };
        let moved = context.state().moved_untold.then(|| self.place_note());
        let task = match work {
            Work::Prompt(prompt, line) => {
                let note = context.is_empty().then(|| self.root.opening_note.clone()).or(moved);
                let notes: Vec<String> = note.into_iter().chain(self.plan_note()).collect();
                let note = (!notes.is_empty()).then(|| notes.join("\n\n"));
                let starts = std::mem::take(&mut self.root.source);
                let said = Said { note, prompt, line: Some(line), starts, ..Said::default() };
                tokio::spawn(speak(run, context, said, carried))
            }
            Work::Again(..) => {
                let carried = self.root_carried(&context).await;
                let starts = std::mem::take(&mut self.root.source);
                let said = Said { note: moved, starts, ..Said::default() };
                tokio::spawn(speak(run, context, said, carried))
            }
            Work::Notices => {
                let said = Said { note: moved, ..Said::default() };
                tokio::spawn(speak(run, context, said, carried))
            }
            Work::Compact(instructions) => tokio::spawn(shorten(run, context, instructions, self.root.used)),
            Work::Refused(reason) => tokio::spawn(refuse(run, context, reason, self.root.used)),
        };
        self.root.running = Some(Running { task, control });
    }

    /// The prompt that the process before was at work on, where something waits to be told and a person can answer: a
    /// question that was open is asked again before that is heard, and what was ended is heard at the next step.
    fn cut_off_first(&mut self) -> Option<Work> {
        if !self.permissions.rights.borrow().answers || self.core.journal.is_lost() || !self.wakes_root() {
            return None;
        }
        let (line, blocks) = self.prompts.unanswered.take()?;
        // Whoever sends it again is told that it is worked on.
        self.prompts.refilled.insert(line);
        Some(Work::Again(blocks, line))
    }

    /// Files are put back only where nobody may be about to change them.
    fn rewind(&mut self, id: RequestId, to: LineId, dry_run: bool) {
        let works = self.root.running.as_ref().is_some_and(|running| !running.control.run.status().ending);
        if works || !self.prompts.queue.is_empty() {
            return self.reply(id, Reply::Refused { reason: STILL_AT_WORK.to_owned() });
        }
        self.prompts.rewinds.push_back((id, to, dry_run));
    }

    /// Puts files back before anything else begins; gives whether that is under way.
    fn rewinds_first(&mut self) -> bool {
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

    fn begin_rewind(&self, request: RequestId, to: LineId, dry_run: bool) -> JoinHandle<()> {
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

    /// Whether a prompt must wait until servers of the host have said what they offer, which they can only when the
    /// session is open. Everything else goes on meanwhile.
    fn awaits_servers(&mut self) -> bool {
        if self.place.settling.is_none()
            && matches!(self.prompts.queue.front(), Some((_, Work::Prompt(..) | Work::Again(..))))
        {
            self.place.settling = self.place.servers.as_mut().and_then(SessionServers::settle_hosted);
        }
        self.place.settling.is_some()
    }

    /// A command that a person typed brings its rules for what it leads to, and may bring its model.
    async fn heed_command(&mut self, prompt: &[Block]) {
        self.offer.command_rules = OwnRules::default();
        let Typed::Command(skill, _) = slash::read(prompt, &*self.core.parts.library) else { return };
        self.offer.command_rules = skill::typed_rules(&skill, &self.offer.tools);
        if skill::is_by_agent(&skill, &self.offer.tools) {
            return;
        }
        let Some(name) = skill.model.as_deref().filter(|name| *name != "inherit") else { return };
        let usable = self.core.parts.models.resolve(name).and_then(|model| {
            let checked = spec::check_limits(&self.core.request.limits, &model);
            checked.map(|()| model).map_err(|error| error.to_string())
        });
        match usable {
            Ok(model) => {
                let own = Arc::clone(&self.offer.model);
                self.use_model(model);
                self.offer.own_model = Some(own);
            }
            Err(reason) => {
                let (file, own) = (&skill.path, &self.offer.model.name);
                self.warn(format!(
                    "/{}: its model `{name}` cannot be used, so {own} works: {reason} ({file})",
                    skill.name
                ))
                .await;
            }
        }
    }

    /// Tells the Agent tool of definitions that changed. Only a user's prompt does that: between prompts what
    /// stands before the conversation stays as it is, and with it the provider's cache.
    async fn tell_of_agents(&mut self) {
        let (now, skills) = (self.core.parts.agents.all(), self.core.parts.library.skills());
        let same = |(old, new): (&Arc<AgentDefinition>, &Arc<AgentDefinition>)| old == new;
        let same_agents =
            now.len() == self.offer.agents.len() && self.offer.agents.iter().zip(&now).all(same);
        let rules = Arc::clone(&self.permissions.rights.borrow().rules);
        if same_agents && self.offer.skills == skills && rules.deny == self.offer.told_rules.deny {
            return;
        }
        let fresh =
            own_tools(&self.core.parts, &now, &skills, &self.offer.model, (&rules, &self.core.request.cwd));
        self.offer.told_rules = rules;
        let tools = spec::with_tools(&self.offer.tools, &fresh);
        let mut head = (*self.offer.head).clone();
        spec::describe_again(&mut head, &tools);
        if head == *self.offer.head {
            (self.offer.agents, self.offer.skills) = (now, skills);
            return;
        }
        // A head that cannot be stored could not be resumed from: the old one stays.
        match self.keep_head(&head).await {
            Ok(name) => {
                (self.offer.agents, self.offer.skills) = (now, skills);
                self.offer.head_name = name;
                self.offer.wire_head = Arc::new(self.offer.model.dialect.head(&head));
                (self.offer.head, self.offer.tools) = (Arc::new(head), Arc::new(tools));
            }
            Err(error) => tracing::warn!(%error, "the agents that changed could not be told of"),
        }
    }

    /// Offers what the MCP servers have come to offer, or takes back what they no longer do; at a user's prompt
    /// only, like the above.
    async fn tell_of_servers(&mut self) {
        let Some(servers) = &self.place.servers else { return };
        let offered = ToolSet::new(servers.tools()).select(&self.core.request.tools).set;
        let offered: Vec<_> = offered.iter().cloned().collect();
        let Some(tools) = mcp::refreshed(&self.offer.tools, &offered) else { return };
        let mut head = (*self.offer.head).clone();
        spec::describe_servers(&mut head, &tools);
        match self.keep_head(&head).await {
            Ok(name) => {
                self.offer.head_name = name;
                self.offer.wire_head = Arc::new(self.offer.model.dialect.head(&head));
                (self.offer.head, self.offer.tools) = (Arc::new(head), Arc::new(tools));
            }
            Err(error) => tracing::warn!(%error, "the tools of MCP servers could not be told of"),
        }
    }

    /// Tells whoever listens what happened to a server.
    async fn tell_of_server(&mut self, notice: decurion_tools::mcp::Notice) {
        self.warn(format!("MCP server {:?}: {}", notice.server, notice.text)).await;
    }

    /// Tells whoever listens that something is not as they may think.
    async fn warn(&self, text: String) {
        let event = Event::Notice { level: "warning".to_owned(), text };
        // A journal that is lost is found lost by the next run.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
    }

    /// The conversation, from memory or from the record.
    async fn take_context(&mut self) -> Context {
        let dialect = self.offer.model.dialect;
        // A turn that began with another model has left a conversation in that one's form.
        if let Some(context) = self.root.context.take().filter(|context| context.dialect() == dialect) {
            return context;
        }
        let run = self.root_control().run;
        let empty = || Context::new(dialect);
        refold(&run, empty()).await.unwrap_or_else(empty)
    }

    /// The next run of the root.
    pub fn root_control(&mut self) -> RunControl {
        let decided = Decided {
            head_name: &self.offer.head_name,
            tools: &self.offer.tools,
            model: &self.offer.model,
            mode: self.permissions.rights.borrow().mode,
            cwd: &self.place.cwd,
            worktree: self.place.worktree.as_ref(),
            directories: &self.place.directories(),
            servers: self.place.servers.as_ref().map(SessionServers::status).unwrap_or_default(),
            own_rules: self.offer.command_rules.clone(),
            session_model: self.offer.own_model.as_ref().map(|model| model.name.as_str()),
        };
        let spec = spec::root(self.core.id, &self.core.request, &decided, self.root.previous);
        let fallbacks = self.core.request.fallback_model.as_deref();
        let voice = Voice {
            model: Arc::clone(&self.offer.model),
            head: Arc::clone(&self.offer.head),
            wire_head: Arc::clone(&self.offer.wire_head),
            fallbacks: self.core.parts.models.fallbacks(&self.offer.model, fallbacks),
        };
        let lineage = Lineage {
            path: "main".to_owned(),
            account: self.root.account,
            modes: Arc::from([]),
            grants: Arc::from([]),
            inherited: Arc::from([]),
        };
        let (tools, hooks) = (Arc::clone(&self.offer.tools), self.root.hooks.clone());
        let tag = RequestTag { agent: "main".into(), path: "main".into(), class: RequestClass::Main };
        let (begun, told) = (self.root.spawned, self.told(None));
        RunBuilder {
            spec,
            lineage,
            voice,
            tag,
            tools,
            hooks,
            cancel: self.core.cancel.child_token(),
            begun,
            told,
            parent_told: None,
            services: self.services(),
        }
        .build()
    }

    /// What every run of the session reaches.
    pub fn services(&self) -> Services {
        Services {
            session_id: self.core.id,
            session: Arc::new(self.core.requests.clone()),
            audit: match self.core.request.persistence {
                // It leaves nothing behind, and titles of calls are a part of what was said.
                Persistence::Off => Arc::new(NoAudit),
                Persistence::Usual | Persistence::Required => Arc::clone(&self.core.parts.audit),
            },
            root: self.core.request.cwd.clone(),
            journal: self.core.journal.clone(),
            rights: self.permissions.rights.subscribe(),
            budget: Arc::clone(&self.accounts.budget),
            scale: Arc::clone(&self.accounts.scale),
            clock: Arc::clone(&self.core.parts.clock),
            equipment: Arc::clone(&self.core.equipment),
            library: Arc::clone(&self.core.parts.library),
            servers: self.place.servers.as_ref().map(SessionServers::all).unwrap_or_default(),
            permission_tool: self.core.request.permission_tool.as_deref().map(Arc::from),
            compaction: self.core.parts.compaction,
            shells: Arc::clone(&self.tasks.shells),
        }
    }

    /// Takes note of the end of a turn of the root: whether it was begun by notifications alone, and began more.
    pub fn count_notified(&mut self) {
        if self.root.by_notice {
            let began_more = self.tasks.begun > self.root.tasks_before;
            self.slots.notified = if began_more { self.slots.notified + 1 } else { 0 };
        }
        self.root.tasks_before = self.tasks.begun;
    }

    /// The last line of a root that rests.
    pub async fn resting_leaf(&mut self) -> Option<LineId> {
        let context = self.take_context().await;
        self.root.context.insert(context).leaf()
    }

    /// The conversation of a root that rests.
    pub fn resting_context(&self) -> Option<&Context> {
        self.root.context.as_ref()
    }

    /// The hooks of the root.
    pub fn root_hooks(&self) -> &Hooks {
        &self.root.hooks
    }

    /// Takes a line into the conversation of a root that rests.
    pub fn hear_resting(&mut self, event: &Event) {
        if let Some(context) = &mut self.root.context {
            context.apply(event);
        }
    }

    /// The run of the root, as others see it.
    pub fn root_run(&self) -> Option<&RunControl> {
        self.root.running.as_ref().map(|running| &running.control)
    }

    /// Whether the root has a run.
    pub fn root_runs(&self) -> bool {
        self.root.running.is_some()
    }

    async fn root_ended(&mut self, left: Left) {
        if let Some(running) = self.root.running.take() {
            self.root.spawned = running.control.run.begun.load(Ordering::Relaxed);
        }
        self.root.used = left.used;
        // What stood open in its conversation was before it.
        self.prompts.unanswered = None;
        self.count_notified();
        let delivered = left.context.as_ref().map(|context| context.delivered().clone()).unwrap_or_default();
        self.root.context = left.context;
        self.take_back(None, &delivered);
        self.settle_root().await;
        if let Some(own) = self.offer.own_model.take() {
            self.use_model(own);
        }
    }

    /// Tells whoever listens that everyone has come to rest, or that someone works again. A command that nobody
    /// waits for may run for ever, so it counts for nothing here; at the end nothing does.
    fn show_quiet(&mut self, over: bool) {
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
    fn finish_if_quiet(&mut self) {
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
    async fn tell_of_waiting(&mut self) {
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
    async fn stop_root_shells(&mut self) {
        self.finish.patience = None;
        let seconds = self.core.parts.background_wait.as_secs();
        let text = format!("background commands were stopped after {seconds} s (print.background_wait)");
        let event = Event::Notice { level: "warning".to_owned(), text };
        // A journal that is lost ends the session all the same.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
        self.stop_all(BY_END);
        self.stop_typed();
    }

    /// Takes a question on. One that an earlier process had asked already is the same question still.
    pub async fn asked(&mut self, mut ask: Ask) {
        // What a server asks is asked once: its call ends with the process.
        if ask.question.elicitation.is_none() {
            let asker = (ask.question.agent.clone(), ask.question.call.clone());
            // It is on record again, so that whoever attached since sees it.
            ask.question.id = self.permissions.parked.remove(&asker).unwrap_or(ask.question.id);
        }
        ask.question.behind = ask.question.agent.as_ref().is_some_and(|agent| self.is_behind(agent));
        let event = Event::Asked { question: Box::new(ask.question.clone()) };
        if self.core.journal.write(&ask.who, vec![event]).await.is_ok() {
            let until = self.core.parts.answer_timeout.map(|patience| Instant::now() + patience);
            self.permissions.approvals.open(ask, until);
        }
    }

    /// Answers a question whose time is up, as anyone else would.
    async fn expired(&mut self, question: QuestionId) {
        let seconds = self.core.parts.answer_timeout.unwrap_or_default().as_secs();
        let message = format!("no answer within {seconds} seconds (`permissions.answerTimeout`)");
        let answer = Answer::Deny { message, interrupt: false };
        let event = Event::Answered { question, answer: answer.clone(), by: "nobody".to_owned() };
        // A journal that is lost ends the run; the call must not wait beyond that.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
        let under = self.permissions.rights.borrow().clone();
        self.permissions.approvals.answer(question, Heard { answer, under, by: DecidedBy::Nobody });
    }

    /// Records that a server stopped waiting for its answer. A call's question is closed by the end of the call.
    async fn withdrawn(&mut self, question: &Question) {
        if question.elicitation.is_none() {
            return;
        }
        let question = question.id;
        let answer = Answer::Elicited(Elicited::plain(ElicitationAction::Cancel));
        let event = Event::Answered { question, answer, by: "nobody".to_owned() };
        // A journal that is lost is found lost by the next run.
        let _ = self.core.journal.write(&self.core.who, vec![event]).await;
    }

    /// Hands an answer to the call that waits for it. What it changes for later calls is on record before it, in the
    /// same write: whoever finds the answer there finds that too. Nobody gets more than the session may have, and an
    /// agent in the background gets nothing for the others; what of it cannot be done keeps nothing else from being
    /// done.
    async fn answered(
        &mut self,
        id: RequestId,
        (question, answer): (QuestionId, Answer),
        updates: Vec<PermissionUpdate>,
        by: String,
    ) {
        let Some(asked) = self.permissions.approvals.questions().find(|open| open.id == question) else {
            let reason = format!("no open question with this id: {question}");
            return self.reply(id, Reply::Refused { reason });
        };
        let behind = asked.agent.clone().filter(|agent| self.is_behind(agent));
        let given = answer.clone();
        let answer = match elicit::fitting(asked, rights_changes::of_session(answer)) {
            Ok(answer) => answer,
            Err(reason) => return self.reply(id, Reply::Refused { reason }),
        };
        let mut change = self.changing();
        if let Answer::Allow { rules, everywhere, .. } = &answer {
            change.allow(rules, behind.as_ref().filter(|_| !everywhere));
            change.keep_allowed(&given);
        }
        // What the answer takes away holds from the next call on; the one that it lets go on is let go on.
        let under = change.rights.clone();
        for update in &updates {
            change.take_with_answer(update, behind.is_some());
        }
        let mut events = change.events();
        let decided_by = DecidedBy::answering(&by);
        events.push(Event::Answered { question, answer: answer.on_record(), by });
        if let Err(lost) = self.core.journal.write(&self.core.who, events).await {
            return self.reply(id, Reply::Refused { reason: lost.to_string() });
        }
        let value = change.not_done().map_or(Value::Null, |reason| serde_json::json!({"not_done": reason}));
        let keeps = self.adopt(change);
        self.permissions.approvals.answer(question, Heard { answer, under, by: decided_by });
        self.keep(id, keeps, value);
    }

    fn interrupt(&mut self, id: RequestId) {
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

    async fn set_mode(&mut self, id: RequestId, mode: Mode) {
        if let Err(reason) = spec::check_later_mode(mode, &self.core.parts, &self.core.request) {
            return self.reply(id, Reply::Refused { reason });
        }
        match self.core.journal.write(&self.core.who, vec![Event::ModeChanged { mode }]).await {
            Ok(_) => {
                self.permissions.rights.send_modify(|rights| rights.change_mode(mode));
                self.reply(id, done());
            }
            Err(lost) => self.reply(id, Reply::Refused { reason: lost.to_string() }),
        }
    }

    /// Changes what may be done, because a host wants it.
    async fn permit(&mut self, id: RequestId, updates: Vec<PermissionUpdate>) {
        let known: Vec<&str> = self.core.parts.tools.names().collect();
        if let Some(reason) = updates.iter().find_map(|update| rights_changes::names_no_tool(update, &known))
        {
            return self.reply(id, Reply::Refused { reason });
        }
        match self.change_rights(Changing::ByItself, updates).await {
            Ok(keeps) => self.keep(id, keeps, Value::Null),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    /// Changes what may be done. Nobody gets more than the session may have, nor does any agent that a hook answers
    /// for. What cannot be done is refused and keeps nothing else from being done. Gives what is to be written into
    /// settings; the error says what was not done.
    pub async fn change_rights(
        &mut self,
        by: Changing,
        updates: Vec<PermissionUpdate>,
    ) -> Result<Vec<Keep>, String> {
        let mut change = self.changing();
        for update in &updates {
            match &by {
                Changing::ByItself => change.take(update),
                Changing::InPlaceOfAPerson(None) => change.take_with_answer(update, false),
                Changing::InPlaceOfAPerson(Some(agent)) => change.take_for(update, agent),
            }
        }
        if by != Changing::ByItself {
            change.keep_nothing();
        }
        let over = change.not_done().map_or(Ok(Vec::new()), Err);
        let events = change.events();
        // Whoever only wants a change hears of it whole or not at all.
        if events.is_empty() || by == Changing::ByItself && over.is_err() {
            return over;
        }
        self.core.journal.write(&self.core.who, events).await.map_err(|lost| lost.to_string())?;
        let keeps = self.adopt(change);
        over.map(|_| keeps)
    }

    /// What may be done now, to be changed.
    fn changing(&self) -> Change {
        let bypass = spec::check_later_mode(Mode::BypassPermissions, &self.core.parts, &self.core.request);
        Change::new(&self.permissions.rights.borrow(), &self.place.directories, bypass)
    }

    /// Lets what was changed, and is on record, hold; gives what of it is to be written into settings.
    fn adopt(&mut self, change: Change) -> Vec<Keep> {
        let Change { rights, directories, keeps, .. } = change;
        if self.place.directories != directories {
            self.place.directories = directories;
            if let Some(running) = &self.root.running {
                let now = running.control.run.now();
                let worktree = now.worktree.as_deref().cloned();
                running.control.move_to(now.cwd.clone(), worktree, self.place.directories());
            }
        }
        self.permissions.rights.send_replace(rights);
        keeps
    }

    /// Changes all of this, or nothing where something of it cannot be.
    async fn change(
        &mut self,
        id: RequestId,
        model: Option<&str>,
        thinking: Option<ThinkingChange>,
        updates: Vec<PermissionUpdate>,
    ) {
        let model = match model.map(|name| self.resolved(name)).transpose() {
            Ok(model) => model,
            Err(reason) => return self.reply(id, Reply::Refused { reason }),
        };
        if let Err(reason) = self.change_rights(Changing::ByItself, updates).await {
            return self.reply(id, Reply::Refused { reason });
        }
        match thinking {
            Some(ThinkingChange::AsBegun) => self.set_thinking(None),
            Some(ThinkingChange::AtMost(tokens)) => self.set_thinking(Some(tokens)),
            None => {}
        }
        let Some((model, remark)) = model else { return self.reply(id, done()) };
        if let Some(remark) = remark {
            self.warn(remark).await;
        }
        let value = serde_json::json!({"model": model.name});
        // Whoever chooses a model while a command has its own means the session's.
        if self.offer.own_model.is_some() {
            self.offer.own_model = Some(model);
        } else {
            self.use_model(model);
        }
        self.reply(id, Reply::Done { value });
    }

    /// The model of this name, if the session can use it. A model of another dialect reads the conversation again from
    /// the record.
    fn resolved(&self, name: &str) -> Result<(Arc<Model>, Option<String>), String> {
        let first =
            || self.core.request.model.clone().unwrap_or_else(|| self.core.parts.models.default_name());
        let name = if name == "default" { first() } else { name.to_owned() };
        let (model, remark) = self.core.parts.models.main(&name)?;
        spec::check_limits(&self.core.request.limits, &model).map_err(|error| error.to_string())?;
        Ok((model, remark))
    }

    /// How much the model of the next turn may think; whoever speaks to it keeps that within what it takes.
    fn set_thinking(&mut self, tokens: Option<u64>) {
        let thinking = tokens.map(|tokens| match tokens {
            0 => Thinking::Disabled,
            budget_tokens => Thinking::Enabled { budget_tokens, display: None },
        });
        self.offer.thinking = thinking;
        self.use_model(Arc::clone(&self.offer.model));
    }

    fn use_model(&mut self, model: Arc<Model>) {
        let mut head = spec::root_settings(&self.core.request, &model, (*self.offer.head).clone());
        if let Some(thinking) = &self.offer.thinking {
            head.thinking = Some(thinking.clone());
        }
        self.offer.wire_head = Arc::new(model.dialect.head(&head));
        self.offer.head = Arc::new(head);
        self.offer.model = model;
    }

    fn close(&mut self, closing: Closing) {
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
    fn stopper(&self) -> Stopper {
        let turn = self.root.running.as_ref().map(|running| running.control.clone());
        let stop_turn = Box::new(move || {
            if let Some(turn) = &turn {
                turn.stop(BY_INTERRUPT);
            }
        });
        Stopper { stop_turn, journal: self.core.journal.clone() }
    }
}

/// Why what may be done changes.
#[derive(Debug, PartialEq)]
pub enum Changing {
    /// A host wants it.
    ByItself,
    /// A hook or a tool wants it that answers in a person's place, for a call of this agent's; none is the root's.
    InPlaceOfAPerson(Option<AgentId>),
}

/// The ids of what waits.
fn lines<'a>(queue: impl IntoIterator<Item = &'a (RequestId, Work)>) -> Vec<LineId> {
    let line = |(_, work): &(RequestId, Work)| match work {
        Work::Prompt(_, line) | Work::Again(_, line) => Some(*line),
        Work::Compact(_) | Work::Refused(_) | Work::Notices => None,
    };
    queue.into_iter().filter_map(line).collect()
}

fn done() -> Reply {
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

/// Shortens the conversation because someone asked.
async fn shorten(
    run: RunHandle,
    context: Context,
    instructions: Option<String>,
    used: (u32, Duration),
) -> Left {
    let mut progress = Progress::new(&run, context);
    let outcome = match compact(&run, &mut progress, Trigger::Manual, instructions.as_deref()).await {
        Ok(Ok(())) => Outcome::Completed { report: "The conversation was shortened.".into(), limit: None },
        Ok(Err(unsummarised)) => Outcome::Failed { error: unsummarised.to_string() },
        Err(lost) => Outcome::Failed { error: lost.to_string() },
    };
    // As at the end of every run: whoever reads of it may act on it.
    run.is_ending();
    let totals = std::mem::take(&mut progress.totals);
    let event = Event::RunEnded { outcome: outcome.clone(), totals: Box::new(totals.clone()) };
    match run.journal.write(&run.who, vec![event]).await {
        Ok(_) => Left { context: Some(progress.context), ending: Some((outcome, totals)), used },
        Err(_) => Left::nothing(),
    }
}

/// The turn of a prompt that there was no room for.
async fn refuse(run: RunHandle, context: Context, error: String, used: (u32, Duration)) -> Left {
    let mut progress = Progress::new(&run, context);
    let (outcome, totals) = (Outcome::Failed { error }, Totals::default());
    let mut events = opening(&run.spec, &progress.context, Said::default(), &[]);
    events.push(Event::RunEnded { outcome: outcome.clone(), totals: Box::new(totals.clone()) });
    run.is_ending();
    match record(&run, &mut progress, events).await {
        Ok(()) => Left { context: Some(progress.context), ending: Some((outcome, totals)), used },
        Err(_) => Left::nothing(),
    }
}

/// A run of the root. What it carries is the session's, so it gives nothing back.
async fn speak(run: RunHandle, context: Context, said: Said, carried: Carried) -> Left {
    live(&run, &mut Resources::default(), context, Beginning::Saying(Box::new(said)), carried).await
}

/// The first run id of a session that has none yet: events before its first run need one.
pub fn first_who(previous: Option<RunId>) -> Who {
    Who { run: previous.unwrap_or_else(new_run), agent: None }
}
