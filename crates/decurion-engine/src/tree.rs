//! The tree of agents below a session's root. Wishes of runs come in; children are decided, begun, queued,
//! taken up again, told of each other and ended here, all by the session's one task.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use decurion_model::{Head, RequestClass, RequestTag};
use decurion_protocol::{
    AgentDefinition, AgentId, AgentSource, Attention, Block, Delivery, EndingId, Envelope, Event, HookEvent,
    LineId, Mail, Message, MessageMeta, Opening, Origin, Outcome, Pattern, QuestionId, Role, RunSpec, TaskId,
    TaskKind, TaskRecord, TaskState, TaskStep, ToolOutput, ToolSelection,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::child::{self, BackgroundChoice};
use crate::context::{Context, OpenCall};
use crate::desk::{Desk, Links, Looked, MayEnd, ModeStep, Shells, Spawned, Spawning, Wish};
use crate::fork;
use crate::journal::Who;
use crate::notice;
use crate::permission::Grant;
use crate::ports::{Model, Ports, new_agent, new_line, new_run, new_shell};
use crate::prompt;
use crate::run::{Run, belongs};
use crate::session::Owner;
use crate::shell;
use crate::spawn::{Said, live};
use crate::spec;
use crate::task::{Ending, TaskTable};

/// The most bytes of one message that tells of endings.
const MOST_NOTICE: usize = 100_000;
/// After how many turns in a row, each begun by notifications alone and each beginning more, that is refused.
const MOST_NOTIFIED: u32 = 3;

/// What the session's task keeps about its tree.
#[derive(Default)]
pub struct Tree {
    /// Every task, and what is still to be told.
    pub tasks: TaskTable,
    /// How each living task is ended.
    cancels: HashMap<TaskId, CancellationToken>,
    /// The desks of living agents.
    desks: HashMap<AgentId, Arc<Desk>>,
    /// Set when there is something to tell an agent; none is the root.
    told: HashMap<Option<AgentId>, Arc<AtomicBool>>,
    /// Agents that want to end and wait for their own agents.
    ending: HashMap<AgentId, (Arc<Desk>, Option<LineId>, oneshot::Sender<MayEnd>)>,
    /// Agents that wait for a place.
    queue: VecDeque<Launch>,
    /// Agents that have begun and not ended.
    running: HashSet<TaskId>,
    /// Endings that a waiting call was given, and whose.
    handed: Vec<(Delivery, Option<AgentId>)>,
    /// Questions of an earlier process that nobody has answered, by who asks and for which call.
    pub parked: HashMap<(Option<AgentId>, decurion_protocol::CallId), QuestionId>,
    /// Endings that nobody was told of, because whoever should have been was over.
    pub unheard: Vec<Outcome>,
    /// Shells that someone waits for.
    pub shells: Arc<Shells>,
    /// How many notification turns in a row began new background work.
    pub notified: u32,
    /// Heads that are stored already.
    heads: HashSet<String>,
}

impl Tree {
    /// The tree that a record tells of.
    pub fn new(
        tasks: TaskTable,
        parked: HashMap<(Option<AgentId>, decurion_protocol::CallId), QuestionId>,
    ) -> Self {
        Self { tasks, parked, ..Self::default() }
    }
}

/// An agent that is ready to begin.
struct Launch {
    run: Run,
    context: Context,
    said: Said,
}

impl Owner {
    /// Grants a wish.
    pub async fn grant(&mut self, wish: Wish) {
        match wish {
            Wish::Ask(ask) => self.asked(*ask).await,
            Wish::Spawn { spawning, answer } => {
                let spawned = self.spawn(*spawning).await;
                let _ = answer.send(spawned);
            }
            Wish::OpenShell { desk, call, command, description, cancel, answer } => {
                let record = self.shell_record(&desk, call, command, description, Attention::Background);
                let opened = self.open_shell(&desk.who, record, cancel).await;
                let _ = answer.send(opened);
            }
            Wish::ShellEnded { task, output } => self.shell_ended(&task, &output).await,
            Wish::Deliver { desk, leaf, answer } => {
                let told = self.tell(&desk, leaf).await;
                let _ = answer.send(told);
            }
            Wish::End { desk, leaf, answer } => self.wants_to_end(desk, leaf, answer).await,
            Wish::Ended { agent, ending, delivered } => self.agent_ended(agent, *ending, &delivered).await,
            Wish::Look { task, answer } => {
                let _ = answer.send(self.look(&task));
            }
            Wish::Claim { delivery, answer } => {
                let _ = answer.send(self.claim(delivery));
            }
            Wish::Stop { task, by, answer } => {
                let stopped = self.stop(&task, &by).ok_or_else(|| format!("No task found with ID: {task}"));
                let _ = answer.send(stopped);
            }
            Wish::Mail { from, to, text, answer } => {
                let sent = self.mail(from.who.agent.clone(), &to, text).await;
                let _ = answer.send(sent);
            }
        }
    }

    // ── beginning ──────────────────────────────────────────────────────────────────────────────────

    /// Begins an agent, or takes one up again.
    async fn spawn(&mut self, spawning: Spawning) -> Result<Spawned, String> {
        if let Some(id) = spawning.input.resume.clone() {
            return self.resume(spawning, &id).await;
        }
        let definition = self.definition(spawning.input.subagent_type.as_deref().unwrap_or_default())?;
        let is_fork = definition.name == fork::NAME;
        self.check_limits(&spawning.desk, is_fork)?;
        let settings = &self.session.parts.agent_settings;
        let background =
            child::background(settings, spawning.input.run_in_background, &definition, is_fork).value;
        self.check_notified(&spawning.desk, background)?;
        let made = self.make_child(&spawning, &definition, is_fork, background)?;
        self.session.parts.agent_settings.max_total.map_or(Ok(()), |most| {
            if self.tree.tasks.total() < most { Ok(()) } else { Err(total_reached(most)) }
        })?;
        spawning.desk.begun.fetch_add(1, Ordering::Relaxed);
        self.open_agent(&spawning.desk.who, made).await
    }

    /// The definition of this name, without regard to case.
    fn definition(&self, name: &str) -> Result<Arc<AgentDefinition>, String> {
        let all = self.session.parts.agents.all();
        let found = all.iter().find(|definition| definition.name.eq_ignore_ascii_case(name)).cloned();
        if let Some(found) = found {
            return Ok(found);
        }
        if name.eq_ignore_ascii_case(fork::NAME) {
            return Ok(Arc::new(fork::definition()));
        }
        let known: Vec<&str> = all
            .iter()
            .filter(|definition| !definition.hidden)
            .map(|definition| definition.name.as_str())
            .collect();
        Err(format!("Agent type '{name}' not found. The types are: {}, fork", known.join(", ")))
    }

    fn check_limits(&self, desk: &Desk, is_fork: bool) -> Result<(), String> {
        let settings = &self.session.parts.agent_settings;
        if desk.spec.depth >= settings.max_depth {
            return Err(format!(
                "The limit of nesting is reached (agents.max_depth = {}): do the work yourself.",
                settings.max_depth
            ));
        }
        if is_fork && desk.spec.pattern == Pattern::Fork {
            return Err("A fork cannot fork again: do the work yourself.".to_owned());
        }
        let begun = desk.begun.load(Ordering::Relaxed);
        if desk.spec.limits.spawns.is_some_and(|most| begun >= most) {
            return Err(format!(
                "The budget of sub-agents is used up ({begun} begun): do the work yourself."
            ));
        }
        Ok(())
    }

    fn check_notified(&self, desk: &Desk, background: bool) -> Result<(), String> {
        if background && desk.who.agent.is_none() && self.by_notice && self.tree.notified >= MOST_NOTIFIED {
            return Err(format!(
                "{MOST_NOTIFIED} turns in a row were begun by notifications alone and each began more work in \
                 the background. No more is begun until the user says something: finish with what there is."
            ));
        }
        Ok(())
    }

    /// Decides everything about a new child.
    fn make_child(
        &mut self,
        spawning: &Spawning,
        definition: &Arc<AgentDefinition>,
        is_fork: bool,
        background: bool,
    ) -> Result<Child, String> {
        let desk = &spawning.desk;
        let parts = Arc::clone(&self.session.parts);
        let settings = &parts.agent_settings;
        let mut remarks = Vec::new();
        let shares = is_fork || definition.fork_context;
        let prefix = if shares { fork::prefix(desk) } else { None };
        let delegating = prefix.as_ref().and_then(|prefix| prefix.delegating(&spawning.call));
        let model = self.child_model(desk, spawning, definition, shares, &mut remarks)?;
        let tools = if is_fork {
            Arc::clone(&desk.tools)
        } else {
            child_tools(desk, definition, background, settings)?
        };
        let (head, wire_head) = if is_fork {
            (Arc::clone(&desk.head), Arc::clone(&desk.wire_head))
        } else {
            let head = child_head(&model, definition, &tools, spawning.input.effort.as_deref());
            let wire = Arc::new(model.dialect.head(&head));
            (Arc::new(head), wire)
        };
        let head_name = self.keep_head(&head)?;
        let agent = new_agent();
        let opening = match (&prefix, &delegating) {
            (Some(prefix), Some(_)) => Opening::Fork {
                parent: desk.who.agent.clone(),
                through: prefix.through,
                call: spawning.call.clone(),
            },
            _ => Opening::Fresh,
        };
        if shares && delegating.is_none() {
            tracing::warn!(call = %spawning.call, "the delegating call was not found; the child starts afresh");
        }
        let step = ModeStep::of(definition);
        let modes: Arc<[ModeStep]> = desk.modes.iter().copied().chain([step]).collect();
        let mode = child::mode(self.rights.borrow().mode, &modes, settings.trusted).value;
        let run = new_run();
        let spec = RunSpec {
            run,
            session: self.session.id,
            agent: Some(agent.clone()),
            parent: Some(desk.who.run),
            depth: desk.spec.depth + 1,
            pattern: if is_fork { Pattern::Fork } else { Pattern::Named },
            // The prompt is in the stored head; a copy on every run's record would only cost bytes.
            definition: Arc::new(AgentDefinition { prompt: String::new(), ..(**definition).clone() }),
            head: head_name,
            tools: tools.names().map(str::to_owned).collect(),
            opening,
            model: model.name.clone(),
            fallback_model: desk.spec.fallback_model.clone(),
            mode,
            cwd: spawning.cwd.clone(),
            directories: directories(desk, &spawning.cwd),
            limits: child::limits(&spawning.input, definition),
        };
        spec::check_limits(&spec.limits, &model).map_err(|error| error.to_string())?;
        let context = match (&prefix, &delegating) {
            (Some(prefix), Some(_)) => Context::after(prefix),
            _ => Context::new(model.dialect).knowing(Arc::clone(&spawning.seen)),
        };
        let shared = prefix.as_ref().filter(|_| is_fork && delegating.is_some());
        let shared = shared.map(|prefix| fork::share(&wire_head, prefix, &spawning.input.prompt));
        let said = self.opening(spawning, delegating, is_fork);
        let grants = desk.grants.iter().cloned().chain(grant_of(definition)).collect();
        let family = Family {
            path: format!("{}/{agent}", desk.path),
            modes,
            grants,
            account: desk.account,
            parent: desk.who.agent.clone(),
        };
        let run = self.child_run(spec, model, (head, wire_head), tools, family);
        let record = TaskRecord {
            task: agent.clone().into(),
            kind: TaskKind::LocalAgent,
            description: spawning.input.description.clone(),
            prompt: spawning.input.prompt.clone(),
            parent: desk.who.agent.clone(),
            call: Some(spawning.call.clone()),
            agent_type: Some(definition.name.clone()),
            depth: desk.spec.depth + 1,
            attention: if background { Attention::Background } else { Attention::Foreground },
            output_file: self.link_output(&agent),
        };
        Ok(Child { launch: Launch { run, context, said }, record, remarks, shared })
    }

    fn child_model(
        &self,
        desk: &Desk,
        spawning: &Spawning,
        definition: &AgentDefinition,
        shares: bool,
        remarks: &mut Vec<String>,
    ) -> Result<Arc<Model>, String> {
        let parts = &self.session.parts;
        let call = spawning.input.model.as_deref();
        let wanted = child::model(&parts.agent_settings, call, definition, shares, &desk.model.name);
        if shares && call.is_some_and(|name| name != "inherit" && name != desk.model.name) {
            remarks.push("`model` was ignored: who sees the conversation has its parent's model.".to_owned());
        }
        if wanted.value == desk.model.name {
            return Ok(Arc::clone(&desk.model));
        }
        match parts.models.resolve(&wanted.value) {
            Ok(model) => Ok(model),
            // An alias that this provider does not have is no reason not to work.
            Err(_) if child::is_alias(&wanted.value) => {
                remarks.push(format!(
                    "The model `{}` is not known to the provider in use; the agent runs on {}.",
                    wanted.value, desk.model.name
                ));
                Ok(Arc::clone(&desk.model))
            }
            Err(reason) => Err(reason),
        }
    }

    /// What a child hears first.
    fn opening(&self, spawning: &Spawning, delegating: Option<Message>, is_fork: bool) -> Said {
        let prompt = vec![Block::text(spawning.input.prompt.clone())];
        if let Some(delegating) = delegating {
            let entry = fork::entry(delegating, spawning.call.clone(), &spawning.input.description);
            return Said { entry: Some(entry), prompt, ..Said::default() };
        }
        let parts = &self.session.parts;
        let note = (!is_fork).then(|| {
            prompt::opening_note(&prompt::Scene {
                cwd: &spawning.cwd,
                directories: &directories(&spawning.desk, &spawning.cwd),
                git_branch: parts.git_branch.as_deref(),
                machine: &parts.machine,
                date: parts.clock.date(),
                instructions: &parts.instructions,
            })
        });
        Said { note, prompt, ..Said::default() }
    }

    fn keep_head(&mut self, head: &Head) -> Result<String, String> {
        let bytes = serde_json::to_vec(head).map_err(|error| error.to_string())?;
        let name = spec::head_name(&bytes);
        if self.tree.heads.insert(name.clone())
            && let Some(files) = &self.session.files
        {
            files.put_head(&name, &bytes).map_err(|error| format!("cannot use the state folder: {error}"))?;
        }
        Ok(name)
    }

    fn link_output(&self, agent: &AgentId) -> camino::Utf8PathBuf {
        let files = self.session.files.as_ref();
        let task: TaskId = agent.clone().into();
        match files.map(|files| files.link_task(agent)) {
            Some(Ok(path)) => path,
            Some(Err(error)) => {
                tracing::warn!(%error, %agent, "the output file of an agent could not be made");
                shell::output_file(files, &task)
            }
            None => shell::output_file(None, &task),
        }
    }

    /// A run of an agent with all that it reaches.
    fn child_run(
        &mut self,
        spec: RunSpec,
        model: Arc<Model>,
        heads: (Arc<Head>, Arc<decurion_model::WireHead>),
        tools: Arc<decurion_tools::ToolSet>,
        family: Family,
    ) -> Run {
        let account = self
            .budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .open(Some(family.account), &spec.limits);
        let class = match spec.definition.source {
            AgentSource::Builtin => RequestClass::AgentBuiltin,
            _ => RequestClass::AgentCustom,
        };
        let tag = RequestTag { agent: spec.definition.name.clone(), path: family.path.clone(), class };
        let inherited = inherited(&self.tree.tasks, &spec);
        let mut own = self.session.parts.agents.hooks_of(&spec.definition);
        // They become active once it has begun, so they do not see that.
        own.retain(|hook| hook.event != HookEvent::SubagentStart);
        let hooks = if own.is_empty() { self.session.hooks.clone() } else { self.session.hooks.and(own).0 };
        let links = Links {
            grants: family.grants,
            inherited,
            wishes: self.wishes.clone(),
            told: self.told(spec.agent.clone()),
            progress: Arc::default(),
            parent_told: Some(self.told(family.parent)),
            shells: Arc::clone(&self.tree.shells),
        };
        let shared = Arc::new(spec.clone());
        let desk = Desk::new(
            shared,
            family.path,
            Arc::clone(&model),
            heads.clone(),
            Arc::clone(&tools),
            account,
            family.modes,
            links,
        );
        let ports = Ports {
            who: desk.who.clone(),
            desk: Arc::new(desk),
            model,
            head: heads.0,
            wire_head: heads.1,
            fallback: spec.fallback_model.clone(),
            tag,
            tools,
            hooks,
            account,
            cancel: self.cancel.child_token(),
            shared: self.shared_ports(),
        };
        Run { spec, ports }
    }

    /// Puts a child on record and begins it, or queues it.
    async fn open_agent(&mut self, by: &Who, child: Child) -> Result<Spawned, String> {
        let Child { launch, record, remarks, shared } = child;
        let event = Event::TaskOpened { record: Box::new(record.clone()) };
        self.record(by, event).await?;
        let task = record.task.clone();
        let Some(row) = self.tree.tasks.row_mut(&task) else {
            return Err("the task table is gone".to_owned());
        };
        row.progress = Arc::clone(&launch.run.ports.desk.progress);
        row.spec = Some(Arc::new(launch.run.spec.clone()));
        row.told = (0, 0);
        let view = row.view.subscribe();
        let model = launch.run.ports.model.name.clone();
        self.tree.cancels.insert(task.clone(), launch.run.ports.cancel.clone());
        if self.has_room() {
            self.begin_agent(launch);
        } else {
            let _ = self.tree.tasks.step(&task, TaskStep::Queue);
            self.tree.queue.push_back(launch);
        }
        Ok(Spawned { record, view, model, remarks, shared })
    }

    /// Whether another agent may run. One that waits for its own agents does no work and is not counted.
    fn has_room(&self) -> bool {
        let most = self.session.parts.agent_settings.max_running as usize;
        if self.tree.running.len() < most {
            return true;
        }
        let waits = |task: &&TaskId| {
            self.tree
                .tasks
                .children(Some(task))
                .any(|row| row.is_agent() && row.is_alive() && row.is_foreground())
        };
        let waiting = self.tree.running.iter().filter(waits).count();
        self.tree.running.len() - waiting < most
    }

    fn begin_agent(&mut self, launch: Launch) {
        let Launch { run, context, said } = launch;
        let Some(agent) = run.spec.agent.clone() else { return };
        let task: TaskId = agent.clone().into();
        let attention = self.tree.tasks.row(&task).map_or(Attention::Background, |row| row.record.attention);
        if self.tree.tasks.step(&task, TaskStep::Start { attention }).is_err() {
            return;
        }
        self.tree.running.insert(task);
        self.tree.desks.insert(agent.clone(), Arc::clone(&run.ports.desk));
        let wishes = self.wishes.clone();
        let (run_id, journal, who) = (run.spec.run, run.ports.journal.clone(), run.ports.who.clone());
        tokio::spawn(async move {
            let left = live(run, context, said).await;
            let delivered = left.context.map(|context| context.into_delivered()).unwrap_or_default();
            let (outcome, totals) =
                left.ending.map_or((Outcome::Lost, None), |(outcome, totals)| (outcome, Some(totals)));
            drop((journal, who));
            let id = EndingId { task: agent.clone().into(), run: Some(run_id) };
            let ending = Box::new(Ending { id, outcome, totals });
            // A session that is gone has nobody left to tell.
            let _ = wishes.send(Wish::Ended { agent, ending, delivered }).await;
        });
    }

    /// Begins what waits for a place, as far as there is one.
    fn begin_queued(&mut self) {
        while !self.tree.queue.is_empty() && self.has_room() {
            if let Some(launch) = self.tree.queue.pop_front() {
                self.begin_agent(launch);
            }
        }
    }

    // ── going on ───────────────────────────────────────────────────────────────────────────────────

    /// `resume`: an earlier agent goes on with a new prompt; one that still works is told it.
    async fn resume(&mut self, spawning: Spawning, id: &str) -> Result<Spawned, String> {
        let unknown = || format!("No agent found with ID: {id}");
        let agent: AgentId = id.parse().map_err(|_| unknown())?;
        let row =
            self.tree.tasks.row(&agent.clone().into()).filter(|row| row.is_agent()).ok_or_else(unknown)?;
        let (record, alive) = (row.record.clone(), row.is_alive());
        let same =
            |kind: &String| record.agent_type.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(kind));
        if spawning.input.subagent_type.as_ref().is_some_and(|kind| !same(kind)) {
            return Err(format!(
                "Agent {agent} is of type {}: leave `subagent_type` out, or give that.",
                record.agent_type.unwrap_or_default()
            ));
        }
        if alive {
            let view = row.view.subscribe();
            let model = row.spec.as_ref().map(|spec| spec.model.clone()).unwrap_or_default();
            self.mail(spawning.desk.who.agent.clone(), &agent, spawning.input.prompt).await?;
            let remarks =
                vec!["The agent was still at work; it reads the prompt at its next step.".to_owned()];
            let record = TaskRecord { attention: Attention::Background, ..record };
            return Ok(Spawned { record, view, model, remarks, shared: None });
        }
        let settings = &self.session.parts.agent_settings;
        let background = match (settings.background, spawning.input.run_in_background) {
            (BackgroundChoice::Never, _) => false,
            (BackgroundChoice::Always, _) => true,
            (BackgroundChoice::Model, asked) => asked.unwrap_or(false),
        };
        let record = TaskRecord {
            description: spawning.input.description.clone(),
            prompt: spawning.input.prompt.clone(),
            parent: spawning.desk.who.agent.clone(),
            call: Some(spawning.call.clone()),
            attention: if background { Attention::Background } else { Attention::Foreground },
            ..record
        };
        spawning.desk.begun.fetch_add(1, Ordering::Relaxed);
        let prompt = vec![Block::text(spawning.input.prompt)];
        self.revive(&agent, record, prompt, spawning.input.max_turns).await
    }

    /// Takes an agent up again from its record.
    async fn revive(
        &mut self,
        agent: &AgentId,
        record: TaskRecord,
        prompt: Vec<Block>,
        turns: Option<u32>,
    ) -> Result<Spawned, String> {
        let gone = || format!("Agent {agent} has no usable transcript and cannot go on.");
        let task: TaskId = agent.clone().into();
        let old = self.tree.tasks.row(&task).and_then(|row| row.spec.clone()).ok_or_else(gone)?;
        let model = self.session.parts.models.resolve(&old.model)?;
        let files = self.session.files.clone();
        let head: Head = files
            .and_then(|files| serde_json::from_slice(&files.get_head(&old.head).ok()?).ok())
            .or_else(|| self.tree.desks.get(agent).map(|desk| (*desk.head).clone()))
            .ok_or_else(gone)?;
        let only = Some(old.tools.to_vec());
        let tools = self.session.all_tools.select(&ToolSelection { only, except: Vec::new() }).set;
        let spec = RunSpec {
            run: new_run(),
            opening: match &old.opening {
                fork @ Opening::Fork { .. } => fork.clone(),
                _ => Opening::Resumed { from: Some(old.run) },
            },
            limits: decurion_protocol::Limits { turns: turns.or(old.limits.turns), ..old.limits.clone() },
            ..(*old).clone()
        };
        let (context, left) = self.folded(&spec, &model).await.ok_or_else(gone)?;
        if context.is_empty() {
            return Err(gone());
        }
        let head = Head { model: model.id.clone(), ..head };
        let heads = (Arc::new(head.clone()), Arc::new(model.dialect.head(&head)));
        let family = self.family(&record);
        let run = self.child_run(spec, model, heads, Arc::new(tools), family);
        let left = if prompt.is_empty() { left } else { Vec::new() };
        let said = Said { prompt, left, ..Said::default() };
        let by = self.who.clone();
        self.open_agent(
            &by,
            Child { launch: Launch { run, context, said }, record, remarks: Vec::new(), shared: None },
        )
        .await
    }

    /// An agent's conversation from the record, and its last calls that have no result.
    async fn folded(&self, spec: &RunSpec, model: &Model) -> Option<(Context, Vec<OpenCall>)> {
        let agent = spec.agent.clone();
        let before = inherited(&self.tree.tasks, spec);
        let take = move |(context, last): &mut (Context, Vec<Block>), envelope: Envelope| {
            if !belongs(&envelope, agent.as_ref(), &before) {
                return;
            }
            if let Event::Message { message, .. } = &envelope.event
                && message.role == Role::Assistant
            {
                last.clone_from(&message.blocks);
            }
            context.apply(&envelope.event);
        };
        let empty = (Context::new(model.dialect), Vec::new());
        let (context, last) = self.session.journal.fold(0, empty, take).await?;
        let left = context.open_calls(&last);
        Some((context, left))
    }

    /// What an agent has from those above it, by their records.
    fn family(&self, record: &TaskRecord) -> Family {
        let mut above = Vec::new();
        let mut at = Some(record.task.clone());
        while let Some(row) = at.and_then(|task| self.tree.tasks.row(&task)) {
            above.push(row);
            at = row.record.parent.clone().map(TaskId::from);
        }
        above.reverse();
        let specs = || above.iter().filter_map(|row| row.spec.as_ref());
        let step = |spec: &Arc<RunSpec>| ModeStep::of(&spec.definition);
        let parent = record.parent.as_ref().and_then(|parent| self.tree.desks.get(parent));
        Family {
            path: above.iter().fold("main".to_owned(), |path, row| format!("{path}/{}", row.record.task)),
            modes: specs().map(step).collect(),
            grants: specs().filter_map(|spec| grant_of(&spec.definition)).collect(),
            account: parent.map_or(self.account, |desk| desk.account),
            parent: record.parent.clone(),
        }
    }

    /// Begins again what a process that is gone left alive, and tells of what cannot go on.
    pub async fn take_up(&mut self) {
        let alive: Vec<TaskRecord> =
            self.tree.tasks.rows().filter(|row| row.is_alive()).map(|row| row.record.clone()).collect();
        for record in alive {
            let task = record.task.clone();
            let agent = self.tree.tasks.row(&task).and_then(crate::task::Row::agent);
            let record = TaskRecord { attention: Attention::Background, ..record };
            let revived = match agent {
                Some(agent) => self.revive(&agent, record, Vec::new(), None).await.map(drop),
                None => Err("its process is gone".to_owned()),
            };
            if revived.is_err() {
                let state = TaskState::Ended(Outcome::Lost);
                let who = self.who.clone();
                let _ = self.record(&who, Event::TaskChanged { task, state }).await;
            }
        }
        let agents: Vec<Option<AgentId>> =
            self.tree.tasks.rows().filter_map(|row| row.agent()).map(Some).chain([None]).collect();
        for agent in agents {
            self.mark_told(agent.as_ref());
        }
    }

    // ── telling ────────────────────────────────────────────────────────────────────────────────────

    /// The flag that says that there is something to tell an agent.
    pub fn told(&mut self, agent: Option<AgentId>) -> Arc<AtomicBool> {
        Arc::clone(self.tree.told.entry(agent).or_default())
    }

    fn mark_told(&mut self, agent: Option<&AgentId>) {
        let waits = self.tree.tasks.has_waiting(agent);
        self.told(agent.cloned()).store(waits, Ordering::Release);
    }

    /// Tells an agent what waits for it, in lines of its own conversation.
    async fn tell(&mut self, desk: &Arc<Desk>, leaf: Option<LineId>) -> Vec<Arc<Envelope>> {
        self.told(desk.who.agent.clone()).store(false, Ordering::Release);
        let mut notices = self.notices(desk.who.agent.as_ref());
        notices.extend(self.differences(desk.who.agent.as_ref()));
        let mut parent = leaf;
        let mut events = Vec::new();
        for (blocks, delivers) in batches(notices) {
            let line = new_line();
            let meta = MessageMeta {
                origin: Origin::Note("notification".to_owned()),
                delivers,
                ..MessageMeta::default()
            };
            let message = Message { role: Role::User, blocks };
            events.push(Event::Message { message, lines: vec![line], parent, meta: Box::new(meta) });
            parent = Some(line);
        }
        if events.is_empty() {
            return Vec::new();
        }
        match self.session.journal.write(&desk.who, events).await {
            Ok(written) => {
                written.iter().for_each(|envelope| self.tree.tasks.apply(envelope));
                written
            }
            // The run finds the journal lost itself.
            Err(_) => Vec::new(),
        }
    }

    /// What an agent is to be told, in words.
    fn notices(&self, agent: Option<&AgentId>) -> Vec<(String, Option<Delivery>)> {
        let tasks = &self.tree.tasks;
        let most = self.session.parts.agent_settings.result_chars;
        let words = |delivery: &Delivery| match delivery {
            Delivery::Ending(id) => {
                let (row, ending) = (tasks.row(&id.task)?, tasks.ending(id)?);
                let shown = ends(notice::report(&ending.outcome), most);
                Some(notice::notification(&row.record, &ending, &shown))
            }
            Delivery::Mail(number) => {
                let mail = tasks.mail(*number)?;
                let from = mail.from.as_ref().map_or("main", AgentId::as_str);
                Some(notice::mail(from, &mail.text))
            }
        };
        let waiting = tasks.waiting(agent);
        // An ending that was overtaken by another of the same task is told by that one.
        waiting.into_iter().map(|delivery| (words(&delivery).unwrap_or_default(), Some(delivery))).collect()
    }

    /// How much further an agent's agents have come.
    fn differences(&mut self, agent: Option<&AgentId>) -> Vec<(String, Option<Delivery>)> {
        let parent = agent.cloned().map(TaskId::from);
        let running = |row: &&crate::task::Row| row.is_agent() && row.is_alive() && !row.is_foreground();
        let children: Vec<TaskId> = self
            .tree
            .tasks
            .children(parent.as_ref())
            .filter(running)
            .map(|row| row.record.task.clone())
            .collect();
        let mut found = Vec::new();
        for task in children {
            let Some(row) = self.tree.tasks.row_mut(&task) else { continue };
            let progress = row.progress();
            if let Some(text) = notice::difference(&row.record, &progress, row.told) {
                row.told = (progress.tools, progress.tokens);
                found.push((text, None));
            }
        }
        found
    }

    async fn wants_to_end(&mut self, desk: Arc<Desk>, leaf: Option<LineId>, answer: oneshot::Sender<MayEnd>) {
        let agent = desk.who.agent.clone();
        if self.tree.tasks.has_waiting(agent.as_ref()) {
            let told = self.tell(&desk, leaf).await;
            let _ = answer.send(MayEnd::Hear(told));
            return;
        }
        // The root rests between its turns, and is woken.
        let Some(agent) = agent else {
            let _ = answer.send(MayEnd::Yes(Vec::new()));
            return;
        };
        let task: TaskId = agent.clone().into();
        let busy = self.tree.tasks.children(Some(&task)).any(|row| row.is_agent() && row.is_alive());
        if busy {
            let reason = "its own agents are at work".to_owned();
            let _ = self.tree.tasks.step(&task, TaskStep::Wait { reason });
            self.tree.ending.insert(agent, (desk, leaf, answer));
            return;
        }
        let stopped = self.stop_shells(&task);
        let _ = answer.send(MayEnd::Yes(stopped));
    }

    /// Ends the shells of an agent that ends; gives what they were.
    fn stop_shells(&mut self, task: &TaskId) -> Vec<String> {
        let shells: Vec<(TaskId, String)> = self
            .tree
            .tasks
            .children(Some(task))
            .filter(|row| !row.is_agent() && row.is_alive())
            .map(|row| (row.record.task.clone(), row.record.prompt.clone()))
            .collect();
        for (shell, _) in &shells {
            self.stop(shell, "the end of its agent");
        }
        shells.into_iter().map(|(_, command)| command).collect()
    }

    /// Lets an agent hear that waits to end, now that there is something.
    async fn wake(&mut self, agent: Option<&AgentId>) {
        self.mark_told(agent);
        let Some((desk, leaf, answer)) = agent.and_then(|agent| self.tree.ending.remove(agent)) else {
            return;
        };
        if let Some(agent) = &desk.who.agent {
            let _ = self.tree.tasks.step(&agent.clone().into(), TaskStep::Continue);
        }
        self.wants_to_end(desk, leaf, answer).await;
    }

    // ── ending ─────────────────────────────────────────────────────────────────────────────────────

    async fn agent_ended(&mut self, agent: AgentId, ending: Ending, delivered: &HashSet<Delivery>) {
        let task: TaskId = agent.clone().into();
        self.tree.running.remove(&task);
        self.tree.cancels.remove(&task);
        self.tree.ending.remove(&agent);
        self.take_back(Some(&agent), delivered);
        let completed = matches!(ending.outcome, Outcome::Completed { .. });
        if !completed {
            // Who stops with whom: what an agent began ends with it unless it completed.
            let below: Vec<TaskId> = self
                .tree
                .tasks
                .children(Some(&task))
                .filter(|row| row.is_alive())
                .map(|row| row.record.task.clone())
                .collect();
            for task in below {
                self.stop(&task, "the end of its parent");
            }
        }
        self.ended(ending).await;
        if completed && self.tree.tasks.has_waiting(Some(&agent)) {
            // Something came between its last look and its end: it goes on with that.
            self.go_on(&agent).await;
        } else if !completed {
            self.discard(&agent);
        } else {
            self.tree.desks.remove(&agent);
        }
        self.begin_queued();
    }

    /// Takes an agent up again because there is something to tell it.
    async fn go_on(&mut self, agent: &AgentId) -> bool {
        let Some(row) = self.tree.tasks.row(&agent.clone().into()) else { return false };
        let record = TaskRecord { attention: Attention::Background, ..row.record.clone() };
        if self.revive(agent, record, Vec::new(), None).await.is_err() {
            self.discard(agent);
            return false;
        }
        self.mark_told(Some(agent));
        true
    }

    fn discard(&mut self, agent: &AgentId) {
        self.tree.desks.remove(agent);
        for delivery in self.tree.tasks.discard(agent) {
            if let Delivery::Ending(id) = &delivery
                && let Some(ending) = self.tree.tasks.ending(id)
            {
                self.tree.unheard.push(ending.outcome.clone());
            }
        }
    }

    /// Puts what a run's calls were given and did not put on record back to what is to be told.
    pub fn take_back(&mut self, agent: Option<&AgentId>, delivered: &HashSet<Delivery>) {
        let handed = std::mem::take(&mut self.tree.handed);
        for (delivery, whose) in handed {
            if whose.as_ref() != agent {
                self.tree.handed.push((delivery, whose));
            } else if !delivered.contains(&delivery) {
                self.tree.tasks.put_back(whose, delivery);
            }
        }
        self.mark_told(agent);
    }

    /// A task has ended: whoever waits for it has its result, anyone else is told.
    async fn ended(&mut self, ending: Ending) {
        let Some(row) = self.tree.tasks.row(&ending.id.task) else { return };
        let (parent, foreground) = (row.record.parent.clone(), row.is_foreground());
        let delivery = Delivery::Ending(ending.id.clone());
        self.tree.tasks.end(ending);
        if foreground && self.tree.tasks.take(&delivery) {
            self.tree.handed.push((delivery, parent.clone()));
        }
        // A parent that is over hears nothing; what it left alive was stopped with it.
        if let Some(parent) = &parent
            && !self.tree.running.contains(&parent.clone().into())
            && self.tree.tasks.row(&parent.clone().into()).is_some_and(|row| !row.is_alive())
        {
            self.discard(parent);
            return;
        }
        self.wake(parent.as_ref()).await;
    }

    fn shell_record(
        &self,
        desk: &Desk,
        call: decurion_protocol::CallId,
        command: String,
        description: String,
        attention: Attention,
    ) -> TaskRecord {
        let task = new_shell();
        TaskRecord {
            output_file: shell::output_file(self.session.files.as_ref(), &task),
            task,
            kind: TaskKind::LocalBash,
            description: if description.is_empty() {
                command.chars().take(80).collect()
            } else {
                description
            },
            prompt: command,
            parent: desk.who.agent.clone(),
            call: Some(call),
            agent_type: None,
            depth: desk.spec.depth + 1,
            attention,
        }
    }

    async fn open_shell(
        &mut self,
        by: &Who,
        record: TaskRecord,
        cancel: CancellationToken,
    ) -> Result<TaskRecord, String> {
        if self.session.parts.agent_settings.background == BackgroundChoice::Never {
            return Err(
                "Background commands are switched off: run it without `run_in_background`.".to_owned()
            );
        }
        self.record(by, Event::TaskOpened { record: Box::new(record.clone()) }).await?;
        let start = TaskStep::Start { attention: Attention::Background };
        self.tree.tasks.step(&record.task, start).map_err(|error| error.to_string())?;
        self.tree.cancels.insert(record.task.clone(), cancel);
        Ok(record)
    }

    async fn shell_ended(&mut self, task: &TaskId, output: &ToolOutput) {
        self.tree.cancels.remove(task);
        let outcome = shell_outcome(output);
        let who = self.who.clone();
        let event = Event::TaskChanged { task: task.clone(), state: TaskState::Ended(outcome.clone()) };
        if self.session.journal.write(&who, vec![event]).await.is_ok() {
            let id = EndingId { task: task.clone(), run: None };
            self.ended(Ending { id, outcome, totals: None }).await;
        }
    }

    /// Ends a task and all below it; none if there is no such task.
    pub fn stop(&mut self, task: &TaskId, by: &str) -> Option<Looked> {
        let looked = self.look(task)?;
        for task in self.tree.tasks.subtree(task) {
            if let Ok(agent) = task.as_str().parse::<AgentId>()
                && let Some(desk) = self.tree.desks.get(&agent)
            {
                desk.stopped_by
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert_with(|| by.to_owned());
            }
            if let Some(at) = self.tree.queue.iter().position(|launch| {
                launch.run.spec.agent.as_ref().is_some_and(|agent| agent.as_str() == task.as_str())
            }) {
                self.stop_queued(at, by);
            }
            if let Some(cancel) = self.tree.cancels.get(&task) {
                cancel.cancel();
            }
        }
        Some(looked)
    }

    /// One that waits for a place begins and ends at once, so that its ending is like any other.
    fn stop_queued(&mut self, at: usize, by: &str) {
        let Some(launch) = self.tree.queue.remove(at) else { return };
        let desk = &launch.run.ports.desk;
        desk.stopped_by.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| by.to_owned());
        launch.run.ports.cancel.cancel();
        self.begin_agent(launch);
    }

    /// Ends what someone at the root waits for.
    pub fn stop_foreground(&mut self, by: &str) {
        let waited: Vec<TaskId> = self
            .tree
            .tasks
            .children(None)
            .filter(|row| row.is_alive() && row.is_foreground())
            .map(|row| row.record.task.clone())
            .collect();
        for task in waited {
            self.stop(&task, by);
        }
    }

    /// Ends everything.
    pub fn stop_all(&mut self, by: &str) {
        let all: Vec<TaskId> =
            self.tree.tasks.rows().filter(|row| row.is_alive()).map(|row| row.record.task.clone()).collect();
        for task in all {
            self.stop(&task, by);
        }
    }

    /// Ends the wait for foreground tasks: one, by its id or its call's, or all. Gives how many.
    pub async fn background(&mut self, target: Option<&str>) -> Result<usize, String> {
        if self.session.parts.agent_settings.background == BackgroundChoice::Never {
            return Err("background tasks are switched off".to_owned());
        }
        let wanted = |task: &str, call: Option<&str>| {
            target.is_none_or(|target| target == task || Some(target) == call)
        };
        let agents: Vec<TaskId> = self
            .tree
            .tasks
            .rows()
            .filter(|row| row.is_alive() && row.is_foreground())
            .filter(|row| {
                wanted(
                    row.record.task.as_str(),
                    row.record.call.as_ref().map(decurion_protocol::CallId::as_str),
                )
            })
            .map(|row| row.record.task.clone())
            .collect();
        let mut count = 0;
        for task in agents {
            if let Ok(state) = self.tree.tasks.step(&task, TaskStep::Background) {
                let who = self.who.clone();
                self.record(&who, Event::TaskChanged { task, state }).await?;
                count += 1;
            }
        }
        for shell in self.tree.shells.all() {
            if wanted("", Some(shell.call.as_str())) {
                let record = self.shell_record(
                    &shell.desk,
                    shell.call.clone(),
                    shell.command.clone(),
                    shell.description.clone(),
                    Attention::Background,
                );
                let record = self.open_shell(&shell.desk.who, record, shell.cancel.clone()).await?;
                shell.desk.begun.fetch_add(1, Ordering::Relaxed);
                shell.detached.send_replace(Some(Arc::new(record)));
                count += 1;
            }
        }
        if count == 0 {
            let what = target.map_or_else(
                || "nothing is waited for".to_owned(),
                |target| format!("no foreground task with this id: {target}"),
            );
            return Err(what);
        }
        Ok(count)
    }

    // ── small ──────────────────────────────────────────────────────────────────────────────────────

    /// Tells an agent something; whether it was taken up again for that.
    pub async fn mail(&mut self, from: Option<AgentId>, to: &AgentId, text: String) -> Result<bool, String> {
        let unknown = || format!("No agent found with ID: {to}");
        let row = self.tree.tasks.row(&to.clone().into()).filter(|row| row.is_agent()).ok_or_else(unknown)?;
        let alive = row.is_alive();
        let mail = Box::new(Mail { from, to: Some(to.clone()), text });
        let who = self.who.clone();
        self.record(&who, Event::Mailed { mail }).await?;
        if alive {
            self.wake(Some(to)).await;
            return Ok(false);
        }
        if self.go_on(to).await { Ok(true) } else { Err(format!("Agent {to} cannot go on.")) }
    }

    fn look(&self, task: &TaskId) -> Option<Looked> {
        let row = self.tree.tasks.row(task)?;
        Some(Looked {
            record: row.record.clone(),
            view: row.view.subscribe(),
            progress: Arc::clone(&row.progress),
        })
    }

    fn claim(&mut self, delivery: Delivery) -> bool {
        let Delivery::Ending(id) = &delivery else { return false };
        let Some(whose) = self.tree.tasks.row(&id.task).map(|row| row.record.parent.clone()) else {
            return false;
        };
        let taken = self.tree.tasks.take(&delivery);
        if taken {
            self.tree.handed.push((delivery, whose.clone()));
            self.mark_told(whose.as_ref());
        }
        taken
    }

    /// Puts an event of the session on record and takes it into the table.
    pub async fn record(&mut self, who: &Who, event: Event) -> Result<(), String> {
        let written = self.session.journal.write(who, vec![event]).await.map_err(|lost| lost.to_string())?;
        written.iter().for_each(|envelope| self.tree.tasks.apply(envelope));
        Ok(())
    }

    /// Whether nobody works, waits for a place or is still to be told something.
    pub fn is_quiet(&self) -> bool {
        self.tree.running.is_empty() && self.tree.queue.is_empty() && self.tree.tasks.is_quiet()
    }

    /// Whether only shells of the root are alive.
    pub fn only_shells(&self) -> bool {
        self.tree.running.is_empty() && self.tree.tasks.rows().all(|row| !row.is_alive() || !row.is_agent())
    }

    /// Whether any task is alive.
    pub fn is_alive(&self) -> bool {
        !self.tree.running.is_empty() || !self.tree.cancels.is_empty()
    }
}

/// A child that was decided.
struct Child {
    launch: Launch,
    record: TaskRecord,
    remarks: Vec<String>,
    shared: Option<(u64, u64)>,
}

/// What an agent has from those above it.
struct Family {
    path: String,
    modes: Arc<[ModeStep]>,
    grants: Arc<[Grant]>,
    account: crate::budget::AccountId,
    parent: Option<AgentId>,
}

fn total_reached(most: u32) -> String {
    format!("The limit of tasks in a session is reached (agents.max_total = {most}): do the work yourself.")
}

fn child_tools(
    desk: &Desk,
    definition: &AgentDefinition,
    background: bool,
    settings: &child::AgentSettings,
) -> Result<Arc<decurion_tools::ToolSet>, String> {
    let names: Vec<&str> = desk.tools.names().collect();
    let may_spawn = child::may_spawn(settings, definition, desk.spec.depth + 1);
    let kept: Vec<String> = child::tools(&names, definition, background, may_spawn)
        .into_iter()
        .filter(|tool| tool.removed.is_none())
        .map(|tool| tool.tool)
        .collect();
    if kept.is_empty() && definition.tools.only.is_some() {
        return Err(format!("Agent type '{}' has no tool that its parent may use.", definition.name));
    }
    Ok(Arc::new(desk.tools.select(&ToolSelection { only: Some(kept), except: Vec::new() }).set))
}

fn child_head(
    model: &Model,
    definition: &AgentDefinition,
    tools: &decurion_tools::ToolSet,
    effort: Option<&str>,
) -> Head {
    let effort = effort.map(str::to_owned).or_else(|| definition.effort.clone());
    Head {
        model: model.id.clone(),
        system: prompt::system(&definition.prompt, None),
        tools: tools.iter().map(|tool| spec::schema(&**tool)).collect(),
        effort: effort.or_else(|| model.head.effort.clone()),
        ..model.head.clone()
    }
}

/// What a definition lets its agent use, where it says more than names.
fn grant_of(definition: &AgentDefinition) -> Option<Grant> {
    let only = definition.tools.only.as_ref().map(|names| names.iter().map(String::as_str));
    let except = definition.tools.except.iter().map(String::as_str);
    let narrows =
        definition.tools.only.iter().flatten().chain(&definition.tools.except).any(|name| name.contains('('));
    // A list that cannot be read grants nothing by what it cannot say.
    narrows.then(|| Grant::parse(only, except).unwrap_or_default())
}

/// The directories of a child: its parent's, and where that was started.
fn directories(desk: &Desk, cwd: &camino::Utf8Path) -> Vec<camino::Utf8PathBuf> {
    let mut all = vec![desk.spec.cwd.clone()];
    all.extend(desk.spec.directories.iter().cloned());
    all.retain(|directory| directory != cwd);
    all.dedup();
    all
}

/// Whose conversations stand before a run's own, and up to where.
fn inherited(tasks: &TaskTable, spec: &RunSpec) -> Arc<[(Option<AgentId>, u64)]> {
    let mut found = Vec::new();
    let mut opening = Some(spec.opening.clone());
    while let Some(Opening::Fork { parent, through, .. }) = opening {
        found.push((parent.clone(), through));
        let above = parent.and_then(|parent| tasks.row(&parent.into()));
        opening = above.and_then(|row| row.spec.as_ref()).map(|spec| spec.opening.clone());
    }
    found.into()
}

/// Messages of at most so many bytes, each with what it delivers.
fn batches(notices: Vec<(String, Option<Delivery>)>) -> Vec<(Vec<Block>, Vec<Delivery>)> {
    let mut found: Vec<(Vec<Block>, Vec<Delivery>)> = Vec::new();
    let mut size = 0;
    for (text, delivery) in notices {
        if found.is_empty() || size + text.len() > MOST_NOTICE {
            found.push((Vec::new(), Vec::new()));
            size = 0;
        }
        size += text.len();
        if let Some((blocks, delivers)) = found.last_mut() {
            if !text.is_empty() {
                blocks.push(Block::text(text));
            }
            delivers.extend(delivery);
        }
    }
    found
}

/// The beginning and the end of a text that is too long.
fn ends(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most / 3).collect();
    let tail: String = text.chars().skip(count - (most - most / 3)).collect();
    format!(
        "{head}\n\n[{} characters cut here; all of it is at the end of the output file]\n\n{tail}",
        count - most
    )
}

/// How a shell that nobody waited for ended.
fn shell_outcome(output: &ToolOutput) -> Outcome {
    let value = output.structured.as_ref();
    let code = value.and_then(|value| value.get("exitCode")).and_then(serde_json::Value::as_i64);
    let interrupted = value.is_some_and(|value| value["interrupted"] == true);
    match (interrupted, code) {
        (true, _) => Outcome::Killed { by: "a stop".to_owned() },
        (false, Some(0)) => Outcome::Completed { report: "exit code 0".to_owned(), limit: None },
        (false, Some(code)) => Outcome::Failed { error: format!("exit code {code}") },
        (false, None) => Outcome::Failed { error: output.content.text().chars().take(500).collect() },
    }
}
