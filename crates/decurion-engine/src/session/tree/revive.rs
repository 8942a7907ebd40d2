//! Agents taken up again: by a call, by a message, or because a process that is gone left them alive. Takes
//! their record, gives a run that goes on from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use camino::Utf8PathBuf;
use decurion_model::Head;
use decurion_protocol::agent::is_same_type;
use decurion_protocol::{
    AgentId, Attention, Block, Delivery, Envelope, Event, Limits, Message, Money, Opening, Origin, Outcome,
    ReleaseStep, RunSpec, StartStep, Step, TaskId, TaskRecord, TaskState, ToolSelection, Worktree,
};
use decurion_store::{Lease, LeaseState};

use crate::child::ModeStep;
use crate::child::{AgentInput, BackgroundChoice};
use crate::context::Context;
use crate::journal::Who;
use crate::mcp::OwnServers;
use crate::permission::denied_type;
use crate::ports::{Model, new_run};
use crate::progress::belongs;
use crate::progress::{Carried, LastReply};
use crate::run_handle::RunHandle;
use crate::session::actor::SessionActor;
use crate::session::resources::Resources;
use crate::session::run_task::Said;
use crate::session::spec;
use crate::session_port::{Spawned, Spawning};
use crate::task::{Row, TaskTable};
use crate::worktree::{Made, WorktreeError, Worktrees};

use super::Outfit;
use super::begin::{grant_of, with_answer};
use super::prepare::Answer;
use super::{Child, Family, Launch};

/// Who ended what was begun in a part of the conversation that is no part of it any more.
const GOES_ON_EARLIER: &str = "the session, which goes on from before it was begun";

impl SessionActor {
    /// `resume`: an earlier agent goes on with a new prompt; one that still works is told it.
    pub(super) async fn resume(
        &mut self,
        spawning: Spawning,
        id: &str,
        answer: &Answer,
    ) -> Result<Spawned, String> {
        let unknown = || format!("No agent found with ID: {id}");
        let agent: AgentId = id.parse().map_err(|_| unknown())?;
        let row =
            self.tasks.table.row(&agent.clone().into()).filter(|row| row.is_agent()).ok_or_else(unknown)?;
        let (record, alive) = (row.record.clone(), row.is_alive());
        let row = (row.view.subscribe(), row.spec.clone());
        self.check_resume(&spawning.asker, &agent, record.agent_type.as_deref())?;
        let same = |kind: &String| record.agent_type.as_ref().is_some_and(|own| is_same_type(own, kind));
        if spawning.input.subagent_type.as_ref().is_some_and(|kind| !same(kind)) {
            return Err(format!(
                "Agent {agent} is of type {}: leave `subagent_type` out, or give that.",
                record.agent_type.unwrap_or_default()
            ));
        }
        if alive {
            let (view, spec) = row;
            let model = spec.map(|spec| spec.model.clone()).unwrap_or_default();
            self.mail(spawning.asker.who.agent.clone(), &agent, spawning.input.prompt).await?;
            let remarks =
                vec!["The agent was still at work; it reads the prompt at its next step.".to_owned()];
            let record = TaskRecord { attention: Attention::Background, ..record };
            return Ok(Spawned { record, view, model, remarks, shared: None });
        }
        let settings = &self.core.parts.agent_settings;
        let background = match (settings.background, spawning.input.run_in_background) {
            (BackgroundChoice::Never, _) => false,
            (BackgroundChoice::Always, _) => true,
            (BackgroundChoice::Model, asked) => asked.unwrap_or(false),
        };
        self.check_notified(&spawning.asker, background)?;
        let record = TaskRecord {
            description: spawning.input.description.clone(),
            prompt: spawning.input.prompt.clone(),
            call: Some(spawning.call.clone()),
            attention: if background { Attention::Background } else { Attention::Foreground },
            ..record.for_parent(spawning.asker.who.agent.clone())
        };
        let prompt = vec![Block::text(spawning.input.prompt.clone())];
        let begun = &spawning.asker.begun;
        begun.fetch_add(1, Ordering::Relaxed);
        // Looked at after the count: whoever asked and was stopped before that did not see it.
        let revived = if answer.is_closed() {
            Err(String::new())
        } else {
            self.revive(&agent, record, prompt, Some(&spawning.input), None).await
        };
        let mut spawned = revived.inspect_err(|_| {
            begun.fetch_sub(1, Ordering::Relaxed);
        })?;
        spawned.remarks.extend(kept(&spawning.input));
        Ok(spawned)
    }

    /// The limits of an agent that is taken up again: a budget in the call is given on top of what is spent.
    fn limits_again(&self, agent: &AgentId, old: &Limits, call: Option<&AgentInput>) -> Limits {
        let Some(call) = call else { return old.clone() };
        let budget = call.budget.clone().unwrap_or_default();
        let tasks = &self.tasks.table;
        let spent = match self.accounts.by_agent.get(agent) {
            Some(account) => {
                self.accounts.budget.lock().unwrap_or_else(std::sync::PoisonError::into_inner).spent(*account)
            }
            None => tasks.spent(&agent.clone().into()),
        };
        let begun = tasks.children(Some(&agent.clone().into())).count();
        let begun = u32::try_from(begun).unwrap_or(u32::MAX);
        Limits {
            turns: call.max_turns.or(budget.turns).or(old.turns),
            seconds: budget.seconds.or(old.seconds),
            tokens: budget.tokens.map(|more| spent.tokens.saturating_add(more)).or(old.tokens),
            money: budget.usd.map(|more| spent.money.plus(Money::from_dollars(more))).or(old.money),
            spawns: budget.spawns.map(|more| begun.saturating_add(more)).or(old.spawns),
        }
    }

    /// Takes an agent up again from its record.
    pub(super) async fn revive(
        &mut self,
        agent: &AgentId,
        record: TaskRecord,
        prompt: Vec<Block>,
        call: Option<&AgentInput>,
        folding: Option<Folding>,
    ) -> Result<Spawned, String> {
        let gone = || format!("Agent {agent} has no usable transcript and cannot be resumed.");
        let task: TaskId = agent.clone().into();
        self.check_type(record.agent_type.as_deref().unwrap_or_default())?;
        let old = self.tasks.table.row(&task).and_then(|row| row.spec.clone()).ok_or_else(gone)?;
        let model = self.core.parts.models.resolve(&old.model)?;
        let files = self.core.files.clone();
        let head: Head = files
            .and_then(|files| serde_json::from_slice(&files.get_head(&old.head).ok()?).ok())
            .or_else(|| self.tasks.runs.get(agent).map(|control| (*control.run.voice.head).clone()))
            .ok_or_else(gone)?;
        let spec = RunSpec {
            run: new_run(),
            opening: match &old.opening {
                fork @ Opening::Fork { .. } => fork.clone(),
                _ => Opening::Resumed { from: Some(old.run) },
            },
            limits: self.limits_again(agent, &old.limits, call),
            directories: self.still_given(&old),
            ..(*old).clone()
        };
        let folding = match folding {
            Some(folding) => Some(folding),
            None => self.folded(vec![Arc::new(spec.clone())]).await.remove(agent),
        };
        let Folding { context, mut last, worked, denied, .. } = folding.ok_or_else(gone)?;
        if let (Some(last), Some(denied)) = (&mut last, denied) {
            last.denied = Some(denied);
        }
        if context.is_empty() {
            return Err(gone());
        }
        let first = !worked;
        let carried =
            if prompt.is_empty() { self.carried(&task, &context, last) } else { Carried::default() };
        let head = Head { model: model.id.clone(), ..head };
        let family = self.family(&record);
        spec::check_limits(&spec.limits, &model).map_err(|error| error.to_string())?;
        self.check_price(&model, family.account)?;
        let resources = self.resources_again(&spec, agent)?;
        let outfit = self.old_outfit(&old, head, &model, &resources.servers);
        let control = self.child_run(spec, model, &outfit, family);
        let said = Said { prompt, ..Said::default() };
        let by = self.core.who.clone();
        let launch = Launch { control, context, said, carried, resources: Resources::default(), first };
        self.mark_told(Some(agent));
        let child = Child { launch, record, remarks: Vec::new(), shared: None };
        self.open_agent(&by, child, resources).await
    }

    /// Of the directories that an agent had, those in what the session has now: rights only shrink going down.
    fn still_given(&self, old: &RunSpec) -> Vec<Utf8PathBuf> {
        let checkouts = old.worktree.as_deref().into_iter().chain(&self.place.worktree).map(|own| &own.path);
        let home = [&self.core.request.cwd, &self.place.cwd].into_iter().chain(&self.place.before);
        let has: Vec<&Utf8PathBuf> = home.chain(&self.place.directories).chain(checkouts).collect();
        let still = |directory: &&Utf8PathBuf| has.iter().any(|one| directory.starts_with(one));
        old.directories.iter().filter(still).cloned().collect()
    }

    /// What an agent that goes on carries again. Its checkout is taken up by its own task, since git may take
    /// long; there is no other to work in.
    fn resources_again(&self, spec: &RunSpec, agent: &AgentId) -> Result<Resources, String> {
        let mut resources = self.worktree_again(spec)?;
        if let Some(servers) = &self.place.servers {
            // Tools that it had from servers of an agent above it too: that one may be gone by now.
            let line = self.line(&agent.clone().into());
            let own = &agent.clone().into();
            let above = line.iter().filter(|row| row.record.task != *own);
            let above = above.filter_map(|row| row.spec.as_ref()).map(|spec| &*spec.definition);
            resources.servers = servers.desk().lease_again(above, &spec.definition, &spec.tools, agent);
        }
        Ok(resources)
    }

    fn worktree_again(&self, spec: &RunSpec) -> Result<Resources, String> {
        let mut resources = Resources::default();
        let Some(worktree) = spec.worktree.as_deref() else { return Ok(resources) };
        if !is_own(spec) {
            // That of an agent above it, which takes it up and gives it back, or one that the session was in.
            self.is_free(worktree)?;
            return if worktree.path.is_dir() {
                Ok(resources)
            } else {
                Err(WorktreeError::Gone(worktree.path.clone()).to_string())
            };
        }
        let trees = self.worktrees()?;
        let made = Made { worktree: worktree.clone(), cwd: spec.cwd.clone(), found: true, without: false };
        resources.work_again_in(trees, made, self.core.id);
        Ok(resources)
    }

    /// A checkout that the session has left may be another's by now.
    fn is_free(&self, worktree: &Worktree) -> Result<(), String> {
        let Some(trees) = &self.core.parts.worktrees else { return Ok(()) };
        let name = worktree.path.file_name().unwrap_or_default();
        let Some(lease) = trees.leases().get(&worktree.repository, name) else { return Ok(()) };
        if lease.session != self.core.id && trees.leases().is_alive(lease.session) {
            let Lease { name, session, .. } = lease;
            return Err(WorktreeError::InUse { name, session }.to_string());
        }
        Ok(())
    }

    /// Takes back the checkouts of agents that had ended, or had not begun, when the process died.
    async fn settle_worktrees(&mut self) {
        let Some(trees) = self.core.parts.worktrees.clone() else { return };
        let session = self.core.id;
        let (leases, _) = trees.leases().all(None).unwrap_or_default();
        for lease in leases.into_iter().filter(|lease| lease.session == session) {
            if lease.state == LeaseState::Kept {
                self.tell_kept(&trees, &lease).await;
            }
            if !lease.is_open() {
                continue;
            }
            let Some(agent) = lease.agent.clone() else {
                self.settle_left(&trees, &lease).await;
                continue;
            };
            let row = self.tasks.table.row(&agent.clone().into());
            if row.is_some_and(crate::task::Row::is_alive) {
                continue;
            }
            let run = row.and_then(|row| row.spec.as_ref()).map(|spec| spec.run);
            let left = Box::pin(trees.settle_own(&lease)).await;
            if let (Some(left), Some(run)) = (left, run) {
                let steps = vec![Step::noted(ReleaseStep::Worktree, left.to_string())];
                let who = Who { run, agent: Some(agent) };
                let _ = self.record(&who, Event::Released { steps }).await;
            }
        }
    }

    /// Puts on record that an ended agent's checkout was kept, where the process died before it could: whoever is told
    /// of the ending is told where the work is.
    async fn tell_kept(&mut self, trees: &Worktrees, lease: &Lease) {
        let Some(agent) = lease.agent.clone() else { return };
        let task: TaskId = agent.clone().into();
        let spec = self.tasks.table.row(&task).and_then(|row| row.spec.clone()).filter(|spec| is_own(spec));
        let Some(worktree) = spec.as_ref().and_then(|spec| spec.worktree.as_deref()) else { return };
        if worktree.path != lease.path || !self.tasks.table.lacks_worktree(&task) {
            return;
        }
        let (_, left) = Box::pin(trees.look(worktree)).await;
        let steps = vec![Step::noted(ReleaseStep::Worktree, left.to_string())];
        let who = Who { run: spec.as_ref().map_or(self.core.who.run, |spec| spec.run), agent: Some(agent) };
        let _ = self.record(&who, Event::Released { steps }).await;
    }

    /// Takes back a checkout that the session was entering or leaving when the process died: it works elsewhere.
    async fn settle_left(&mut self, trees: &Worktrees, lease: &Lease) {
        let own = self.place.worktree.as_ref();
        if own.is_some_and(|own| own.path == lease.path && own.repository == lease.repository) {
            return;
        }
        // An agent of the session that goes on in it needs it as it is.
        let there = |row: &Row| {
            let own = row.spec.as_ref().and_then(|spec| spec.worktree.as_deref());
            own.filter(|own| row.is_alive() && own.path == lease.path).cloned()
        };
        let left = match self.tasks.table.rows().find_map(there) {
            Some(worktree) => Some(Box::pin(trees.keep_as_it_is(&worktree)).await),
            None => Box::pin(trees.settle_own(lease)).await,
        };
        if let Some(left) = left {
            let text =
                format!("a worktree that the session left is kept: {} on {}: {left}", left.path, left.branch);
            let who = self.core.who.clone();
            let _ = self.record(&who, Event::Notice { level: "info".to_owned(), text }).await;
        }
    }

    /// What a run that goes on with the same work has from the one before it.
    fn carried(&self, task: &TaskId, context: &Context, last: Option<LastMessage>) -> Carried {
        let used = self.tasks.table.row(task).map(|row| row.used.clone()).unwrap_or_default();
        let calls = last.as_ref().map(|last| context.open_calls(&last.message.blocks)).unwrap_or_default();
        let last = last.map(LastMessage::into_reply);
        // What was begun is not done again; it gets a result that says so.
        let calls = calls.into_iter().filter(|call| !call.started).collect();
        Carried { calls, last, turns: used.turns, time: used.time() }
    }

    /// Sees to what was owed to agents that are over: one that completed goes on with a message, anything else
    /// has nobody left to hear it.
    async fn settle_old(&mut self) {
        let over: Vec<(AgentId, bool)> = self
            .tasks
            .table
            .rows()
            .filter(|row| !row.is_alive())
            .filter_map(|row| {
                Some((row.agent()?, matches!(row.state(), TaskState::Ended(Outcome::Completed { .. }))))
            })
            .filter(|(agent, _)| self.tasks.table.has_waiting(Some(agent)))
            .collect();
        for (agent, completed) in over {
            let mail =
                self.tasks.table.waiting(Some(&agent)).iter().any(|one| matches!(one, Delivery::Mail(_)));
            if !(mail && completed && self.go_on(&agent).await) {
                self.discard(&agent);
            }
        }
    }

    /// Whether an agent may be taken up by a run: by the root, or by one that it is below of.
    fn check_resume(&self, run: &RunHandle, agent: &AgentId, kind: Option<&str>) -> Result<(), String> {
        self.check_limits(run, false)?;
        if let Some(own) = &run.who.agent
            && (own == agent
                || !self.tasks.table.subtree(&own.clone().into()).contains(&agent.clone().into()))
        {
            return Err(format!("Agent {agent} is not one of yours; only agents above it can resume it."));
        }
        kind.map_or(Ok(()), |kind| self.check_type(kind))
    }

    /// Why no agent of this type may be started or continued, if a rule denies it: asked by every way in, after the name
    /// was resolved to its definition.
    pub(super) fn check_type(&self, kind: &str) -> Result<(), String> {
        match denied_type(&self.permissions.rights.borrow().rules, kind) {
            Some(rule) => Err(format!("denied by {rule}")),
            None => Ok(()),
        }
    }

    /// The tools and the head that were recorded; shared by all agents with the same.
    fn old_outfit(
        &mut self,
        old: &Arc<RunSpec>,
        head: Head,
        model: &Arc<Model>,
        own: &OwnServers,
    ) -> Arc<Outfit> {
        let same = |outfit: &&Arc<Outfit>| {
            outfit.head_name == old.head
                && Arc::ptr_eq(&outfit.of.2, model)
                && outfit.tools.names().eq(old.tools.iter())
        };
        // One with servers of its own has them anew.
        let is_plain = own.leases.is_empty();
        if let Some(outfit) = self.outfits.made.iter().find(same).filter(|_| is_plain) {
            return Arc::clone(outfit);
        }
        let only = Some(old.tools.to_vec());
        let all = match &self.place.servers {
            Some(servers) => servers.desk().with_own(&self.offer.tools, own, &old.definition),
            None => Arc::clone(&self.offer.tools),
        };
        let tools = all.select(&ToolSelection { only, except: Vec::new() }).set;
        let has_answer = old.tools.iter().any(|name| name == crate::structured::NAME);
        // A schema that was usable still is.
        let tools =
            if has_answer { with_answer(tools.clone(), &old.definition).unwrap_or(tools) } else { tools };
        let tools = Arc::new(tools);
        let outfit = Arc::new(Outfit {
            base: Arc::clone(&tools),
            tools,
            wire_head: Arc::new(model.dialect.head(&head)),
            head: Arc::new(head),
            head_name: old.head.clone(),
            of: (Arc::clone(&old.definition), Arc::clone(&self.offer.tools), Arc::clone(model)),
            background: true,
            depth: old.depth,
            effort: None,
        });
        if is_plain {
            self.outfits.made.push(Arc::clone(&outfit));
        }
        outfit
    }

    /// The conversations of these agents from the record, read once for all of them.
    pub(super) async fn folded(&self, agents: Vec<Arc<RunSpec>>) -> HashMap<AgentId, Folding> {
        let folding = |spec: Arc<RunSpec>| {
            let agent = spec.agent.clone()?;
            let dialect = self.core.parts.models.resolve(&spec.model).ok()?.dialect;
            let before = inherited(&self.tasks.table, &spec);
            Some((
                agent,
                Folding { context: Context::new(dialect), last: None, worked: false, denied: None, before },
            ))
        };
        let empty: HashMap<AgentId, Folding> = agents.into_iter().filter_map(folding).collect();
        let branches = self.core.journal.branches();
        let take = move |all: &mut HashMap<AgentId, Folding>, envelope: Envelope| {
            if let Some(own) = envelope.agent.as_ref().and_then(|agent| all.get_mut(agent)) {
                own.apply(&envelope);
            }
            for (agent, folding) in all.iter_mut().filter(|(_, folding)| !folding.before.is_empty()) {
                if envelope.agent.as_ref() != Some(agent)
                    && let Some(until) = belongs(&envelope, Some(agent), &folding.before)
                {
                    folding.context.take_inherited(&branches.part(&envelope, until));
                }
            }
        };
        self.core.journal.fold(0, empty, take).await.unwrap_or_default()
    }

    /// What the root's run left that was at work when its process died: calls that it had not begun, and its last reply.
    pub async fn root_carried(&self, context: &Context) -> Carried {
        let (context_of, before) = (Context::new(self.offer.model.dialect), Arc::from([]));
        let empty = Folding { context: context_of, last: None, worked: false, denied: None, before };
        let take = |folding: &mut Folding, envelope: Envelope| {
            if envelope.agent.is_none() {
                folding.apply(&envelope);
            }
        };
        let Some(folding) = self.core.journal.fold(0, empty, take).await else {
            return Carried::default();
        };
        // One that was said something after it belongs to what was before that.
        let last = folding.last.filter(|last| !last.answered);
        let calls = last.as_ref().map(|last| context.open_calls(&last.message.blocks)).unwrap_or_default();
        let calls = calls.into_iter().filter(|call| !call.started).collect();
        Carried { calls, last: last.map(LastMessage::into_reply), ..Carried::default() }
    }

    /// The tasks from below the root to this one, by who began whom.
    fn line(&self, task: &TaskId) -> Vec<&Row> {
        let mut above = Vec::new();
        let mut at = Some(task.clone());
        while let Some(row) = at.and_then(|task| self.tasks.table.row(&task)) {
            if above.len() > self.tasks.table.rows().count() {
                break;
            }
            above.push(row);
            at = row.record.began_by().cloned().map(TaskId::from);
        }
        above.reverse();
        above
    }

    /// What an agent has from those above it, by their records.
    pub(super) fn family(&self, record: &TaskRecord) -> Family {
        let above = self.line(&record.task);
        let specs = || above.iter().filter_map(|row| row.spec.as_ref());
        let step = |spec: &Arc<RunSpec>| ModeStep::of(&spec.definition);
        let parent = record.parent.as_ref().and_then(|parent| self.accounts.by_agent.get(parent));
        Family {
            path: above.iter().fold("main".to_owned(), |path, row| format!("{path}/{}", row.record.task)),
            modes: specs().map(step).collect(),
            grants: specs().filter_map(|spec| grant_of(&spec.definition)).collect(),
            account: parent.copied().unwrap_or(self.root.account),
            parent: record.parent.clone(),
        }
    }

    /// Takes up an agent that was alive; gives how it has ended instead, if it cannot go on.
    async fn continue_from(
        &mut self,
        agent: &AgentId,
        record: TaskRecord,
        folding: Option<Folding>,
    ) -> Option<Outcome> {
        let spec = self.tasks.table.row(&record.task).and_then(|row| row.spec.clone());
        if let Err(error) = self.check_type(record.agent_type.as_deref().unwrap_or_default()) {
            return Some(Outcome::Failed { error });
        }
        // Where it worked may be gone, or another's by now, and that is worth more than that it is lost.
        if let Some(Err(error)) = spec.map(|spec| self.worktree_again(&spec)) {
            return Some(Outcome::Failed { error });
        }
        self.revive(agent, record, Vec::new(), None, folding).await.err().map(|_| Outcome::Lost)
    }

    /// Puts on record what requests are charged as that were under way when the process before this one died. The
    /// accounts know it already.
    async fn charge_lost(&mut self) {
        for (task, charge) in self.tasks.table.lost() {
            let row = task.as_ref().and_then(|task| self.tasks.table.row(task));
            let run = row.and_then(|row| row.spec.as_ref()).map_or(self.core.who.run, |spec| spec.run);
            let who = Who { run, agent: row.and_then(Row::agent) };
            let _ = self.record(&who, Event::Charged { charge: Box::new(charge) }).await;
        }
    }

    /// Begins again what a process that is gone left alive, and tells of what cannot go on.
    pub async fn take_up(&mut self) {
        self.charge_lost().await;
        let mut alive: Vec<TaskRecord> =
            self.tasks.table.rows().filter(|row| row.is_alive()).map(|row| row.record.clone()).collect();
        let held = |row: &&Row| matches!(row.state(), TaskState::Paused { .. });
        self.slots.paused_before =
            self.tasks.table.rows().filter(held).map(|row| row.record.task.clone()).collect();
        // Whoever began something first: its account is the one above, and what it began ends with it.
        alive.sort_by_key(|record| record.depth);
        let specs = |record: &TaskRecord| self.tasks.table.row(&record.task).and_then(|row| row.spec.clone());
        let mut folded = match alive.iter().filter_map(specs).collect::<Vec<_>>() {
            none if none.is_empty() => HashMap::new(),
            some => self.folded(some).await,
        };
        for record in alive {
            let task = record.task.clone();
            let agent = self.tasks.table.row(&task).and_then(crate::task::Row::agent);
            let record = TaskRecord { attention: Attention::Background, ..record };
            let folding = agent.as_ref().and_then(|agent| folded.remove(agent));
            let dropped = self.tasks.table.row(&task).is_some_and(|row| row.dropped);
            let orphan = record.parent.as_ref().is_some_and(|parent| !self.is_at_work(parent));
            let ended = match (agent, folding) {
                _ if dropped => Some(Outcome::Killed { by: GOES_ON_EARLIER.to_owned() }),
                _ if orphan => Some(Outcome::Killed { by: "the end of its parent".to_owned() }),
                (Some(agent), folding @ Some(_)) => self.continue_from(&agent, record, folding).await,
                _ => Some(Outcome::Lost),
            };
            if let Some(outcome) = ended {
                let state = TaskState::Ended(outcome);
                let who = self.core.who.clone();
                let _ = self.record(&who, Event::TaskChanged { task, state }).await;
            }
        }
        self.settle_worktrees().await;
        self.settle_old().await;
        self.settle_typed().await;
        self.settle_root().await;
        let agents: Vec<Option<AgentId>> =
            self.tasks.table.rows().filter_map(crate::task::Row::agent).map(Some).chain([None]).collect();
        for agent in agents {
            self.mark_told(agent.as_ref());
        }
    }
}

/// Whether a run's checkout is its own, rather than that of an agent above it.
fn is_own(spec: &RunSpec) -> bool {
    let name = spec.worktree.as_ref().and_then(|worktree| worktree.path.file_name());
    name.is_some() && name == spec.agent.as_ref().map(AgentId::as_str)
}

/// What a call may not change about an agent that is taken up again.
fn kept(input: &AgentInput) -> Option<String> {
    let named = [("model", &input.model), ("effort", &input.effort), ("isolation", &input.isolation)];
    let ignored: Vec<String> =
        named.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| format!("`{name}`")).collect();
    let text = format!("{} was ignored: an agent keeps what it began with.", ignored.join(" and "));
    (!ignored.is_empty()).then_some(text)
}

/// An agent's conversation while it is read from the record.
pub(super) struct Folding {
    pub(super) context: Context,
    /// Its own last reply.
    last: Option<LastMessage>,
    /// Whether it has worked, or its hooks have spoken.
    worked: bool,
    /// Which tool was refused with nobody to ask, since that reply.
    denied: Option<String>,
    /// Whose conversation stands before its own.
    before: Arc<[(Option<AgentId>, u64)]>,
}

/// An agent's last reply by the record.
struct LastMessage {
    message: Message,
    seq: u64,
    /// What it said, with the replies it continues; of one that only calls, what was said before.
    text: String,
    stop_reason: Option<String>,
    /// Whether something was said since.
    answered: bool,
    /// Which tool of the round before was refused with nobody to ask.
    denied: Option<String>,
}

impl LastMessage {
    fn into_reply(self) -> LastReply {
        let asks = self.asks();
        let is_final = !asks && !self.answered;
        let continues = self.answered && self.is_cut();
        LastReply {
            seq: self.seq,
            text: self.text,
            stop_reason: self.stop_reason,
            is_final,
            continues,
            denied: self.denied,
        }
    }

    fn asks(&self) -> bool {
        self.message.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }))
    }

    /// Whether it was cut off.
    fn is_cut(&self) -> bool {
        crate::run::is_cut(self.stop_reason.as_deref())
    }
}

impl Folding {
    fn apply(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::Message { message, meta, .. } if meta.origin == Origin::Model && meta.usage.is_some() => {
                self.worked = true;
                let (before, denied) = (self.last.take(), self.denied.take());
                let text = match (before, message.text()) {
                    (Some(before), text) if before.is_cut() => before.text + &text,
                    (Some(before), text) if text.is_empty() => before.text,
                    (_, text) => text,
                };
                let (message, stop_reason) = (message.clone(), meta.stop_reason.clone());
                let seq = envelope.seq;
                self.last = Some(LastMessage { message, seq, text, stop_reason, answered: false, denied });
            }
            Event::Message { meta, .. } => {
                self.worked |=
                    matches!(&meta.origin, Origin::Note(kind) if kind == "hook" || kind == "skill");
                if let Some(last) = &mut self.last {
                    last.answered = true;
                }
            }
            Event::Prepared { steps } => {
                self.worked |= steps.iter().any(|step| step.step == StartStep::StartHooks);
            }
            Event::Compacted { .. } => {
                if let Some(last) = &mut self.last {
                    last.answered = true;
                }
            }
            Event::CallRefused { tool, decision, unanswerable: true, .. } => {
                self.denied = Some(crate::run::unasked(tool, &decision.reason));
            }
            Event::RunEnded { outcome, .. } if outcome.leaves_question() => {}
            // What follows any other ending is new work: nothing of the old is carried into it.
            Event::RunEnded { .. } => (self.worked, self.last, self.denied) = (true, None, None),
            _ => {}
        }
        self.context.apply(&envelope.event);
    }
}

/// Whose conversations stand before a run's own, and up to where.
pub(super) fn inherited(tasks: &TaskTable, spec: &RunSpec) -> Arc<[(Option<AgentId>, u64)]> {
    let mut found = Vec::new();
    let mut opening = Some(spec.opening.clone());
    while let Some(Opening::Fork { parent, through, .. }) = opening {
        found.push((parent.clone(), through));
        let above = parent.and_then(|parent| tasks.row(&parent.into()));
        opening = above.and_then(|row| row.spec.as_ref()).map(|spec| spec.opening.clone());
    }
    found.into()
}
