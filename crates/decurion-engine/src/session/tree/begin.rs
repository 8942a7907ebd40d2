//! Children begun: decided, put on record, started or queued. Takes what a call wants, gives the task that
//! does it.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use decurion_model::{Head, RequestClass, RequestTag};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    AgentDefinition, AgentId, AgentSource, Attention, Block, EndingId, Event, HookEvent, Opening, Outcome,
    Pattern, Rule, RunSpec, StartStep, TaskId, TaskKind, TaskRecord, TaskState, TaskStep, ToolSelection,
};
use decurion_tools::Tool;
use futures_util::FutureExt as _;

use crate::agent_tools::agent::offered_types;
use crate::budget::AccountId;
use crate::child::ModeStep;
use crate::child::{self, Because};
use crate::context::{Context, Prefix};
use crate::journal::Who;
use crate::permission::Grant;
use crate::ports::{Model, new_agent, new_run};
use crate::progress::Carried;
use crate::prompt;
use crate::run_handle::{Lineage, RunBuilder, RunControl, RunHandle, Voice};
use crate::session::actor::SessionActor;
use crate::session::fork;
use crate::session::resources::{Resources, Rest};
use crate::session::run_task::{Beginning, Left, Said, live, opening};
use crate::session::spec;
use crate::session_port::{Spawned, Spawning};
use crate::shell;
use crate::structured::StructuredOutput;
use crate::task::Ending;
use crate::withheld::Withheld;
use crate::worktree::Made;

use super::Outfit;
use super::prepare::Draft;
use super::requests::SessionRequest;
use super::revive::inherited;
use super::{Child, Family, Launch};

/// After how many turns in a row, each begun by notifications alone and each beginning more, that is refused.
const MOST_NOTIFIED: u32 = 3;

impl SessionActor {
    /// Decides what can be decided about a child before anything is acquired for it.
    pub(super) fn draft(&mut self, mut spawning: Spawning) -> Result<Draft, String> {
        let definition = self.definition(spawning.input.subagent_type.as_deref().unwrap_or_default())?;
        self.check_type(&definition.name)?;
        let is_fork = definition.name == fork::NAME;
        let mut remarks = Vec::new();
        inherit_rules(&mut spawning);
        let definition =
            if is_fork { definition } else { self.with_call(&definition, &mut spawning, &mut remarks) };
        let asker = &spawning.asker;
        self.check_limits(asker, is_fork)?;
        let settings = &self.core.parts.agent_settings;
        let background =
            child::background(settings, spawning.input.run_in_background, &definition, is_fork).value;
        self.check_notified(asker, background)?;
        if let Some(most) = settings.max_total
            && self.tasks.table.total() + self.slots.preparing >= most
        {
            return Err(total_reached(most));
        }
        let shares = is_fork || definition.fork_context;
        let Because { value: model, why: model_why } =
            self.child_model(asker, &spawning, &definition, shares, &mut remarks)?;
        let tools = if is_fork {
            Arc::clone(&asker.tools)
        } else {
            self.child_tools(asker, &definition, background, &model, spawning.input.effort.as_deref())?
        };
        let agent = new_agent();
        let base = Arc::clone(&tools);
        Ok(Draft { spawning, definition, model, model_why, agent, base, tools, is_fork, background, remarks })
    }

    /// The definition with what this call and the agent's memory add to it: the same one for calls that add the
    /// same, so that what is made from it is made once.
    fn with_call(
        &mut self,
        definition: &Arc<AgentDefinition>,
        spawning: &mut Spawning,
        remarks: &mut Vec<String>,
    ) -> Arc<AgentDefinition> {
        let schema = spawning.input.output_schema.take();
        let memory = definition.equipment.memory.as_deref().and_then(|scope| {
            let memory = self.core.parts.library.memory(scope, definition);
            memory.map_err(|reason| remarks.push(format!("The agent runs without its memory: {reason}"))).ok()
        });
        if schema.is_none() && memory.is_none() {
            return Arc::clone(definition);
        }
        let mut whole = (**definition).clone();
        whole.equipment.output_schema = schema.or(whole.equipment.output_schema);
        if let Some(memory) = memory {
            spawning.input.own_rules.allow.extend(child::remember(&mut whole, &memory));
        }
        let same = |(of, made): &&(Arc<AgentDefinition>, Arc<AgentDefinition>)| {
            Arc::ptr_eq(of, definition) && **made == whole
        };
        if let Some((_, made)) = self.outfits.adapted.iter().find(same) {
            return Arc::clone(made);
        }
        let made = Arc::new(whole);
        self.outfits.adapted.push((Arc::clone(definition), Arc::clone(&made)));
        made
    }

    /// The definition of this name, without regard to case.
    pub(super) fn definition(&self, name: &str) -> Result<Arc<AgentDefinition>, String> {
        if let Some(found) = self.core.parts.agents.find(name) {
            return Ok(found);
        }
        let all = self.core.parts.agents.all();
        let forks = self.core.parts.agent_settings.forks;
        if forks && name.eq_ignore_ascii_case(fork::NAME) {
            return Ok(Arc::new(fork::definition()));
        }
        let known = offered_types(&all, forks, &self.permissions.rights.borrow().rules);
        Err(format!("Agent type '{name}' not found. The types are: {}", known.join(", ")))
    }

    pub(super) fn check_limits(&self, asker: &RunHandle, is_fork: bool) -> Result<(), String> {
        let settings = &self.core.parts.agent_settings;
        if asker.spec.depth >= settings.max_depth {
            return Err(format!(
                "The limit of nesting is reached (agents.max_depth = {}): do the work yourself.",
                settings.max_depth
            ));
        }
        if is_fork && asker.spec.pattern == Pattern::Fork {
            return Err("A fork cannot fork again: do the work yourself.".to_owned());
        }
        let begun = asker.begun.load(Ordering::Relaxed);
        if asker.limits().spawns.is_some_and(|most| begun >= most) {
            return Err(format!(
                "The budget of sub-agents is used up ({begun} begun): do the work yourself."
            ));
        }
        Ok(())
    }

    pub(super) fn check_notified(&self, asker: &RunHandle, background: bool) -> Result<(), String> {
        if background
            && asker.who.agent.is_none()
            && self.root.by_notice
            && self.slots.notified >= MOST_NOTIFIED
        {
            return Err(format!(
                "{MOST_NOTIFIED} turns in a row were begun by notifications alone and each began more work in \
                 the background. No more is begun until the user says something: finish with what there is."
            ));
        }
        Ok(())
    }

    /// Decides everything about a new child.
    pub(super) async fn make_child(
        &mut self,
        mut draft: Draft,
        made: Option<&Made>,
    ) -> Result<Child, String> {
        if let Some(made) = made {
            draft.spawning.cwd.clone_from(&made.cwd);
        }
        let outfit = self.outfit(&draft).await?;
        let Draft { spawning, definition, model, model_why, agent, is_fork, background, remarks, .. } = draft;
        let (spawning, asker) = (&spawning, &spawning.asker);
        let shares = is_fork || definition.fork_context;
        let prefix = if shares { shared_prefix(spawning) } else { None };
        let mut spec = RunSpec {
            model_why: Some(model_why),
            ..self.child_spec(spawning, &definition, &model, &outfit, (&agent, prefix.as_deref()))
        };
        if let Some(made) = made {
            spec.worktree = Some(Box::new(made.worktree.clone()));
            spec.directories
                .retain(|directory| made.worktree.origins().all(|origin| apart(directory, origin)));
        }
        spec::check_limits(&spec.limits, &model).map_err(|error| error.to_string())?;
        self.check_price(&model, asker.lineage.account)?;
        let context = match &prefix {
            Some(prefix) => Context::after(prefix),
            None => Context::new(model.dialect).knowing(Arc::clone(&spawning.seen)),
        };
        let shared = prefix.as_ref().filter(|_| is_fork);
        let shared = shared.map(|prefix| fork::share(&outfit.wire_head, prefix, &spawning.input.prompt));
        let mut said = self.opening(spawning, prefix.as_deref(), is_fork, &spec);
        said.translate(made);
        let family = Family {
            path: format!("{}/{agent}", asker.lineage.path),
            modes: asker.lineage.modes.iter().copied().chain([ModeStep::of(&definition)]).collect(),
            grants: asker.lineage.grants.iter().cloned().chain(grant_of(&definition)).collect(),
            account: asker.lineage.account,
            parent: asker.who.agent.clone(),
        };
        let control = self.child_run(spec, model, &outfit, family);
        let record = self.agent_record(spawning, &definition, &agent, background);
        let launch = Launch {
            control,
            context,
            said,
            carried: Carried::default(),
            resources: Resources::default(),
            first: true,
        };
        Ok(Child { launch, record, remarks, shared })
    }

    fn child_spec(
        &self,
        spawning: &Spawning,
        definition: &AgentDefinition,
        model: &Model,
        outfit: &Outfit,
        (agent, prefix): (&AgentId, Option<&Prefix>),
    ) -> RunSpec {
        let asker = &spawning.asker;
        let modes: Vec<ModeStep> =
            asker.lineage.modes.iter().copied().chain([ModeStep::of(definition)]).collect();
        let trusted = self.core.parts.agent_settings.trusted;
        let is_fork = definition.name == fork::NAME;
        let rights = self.permissions.rights.borrow().clone();
        RunSpec {
            run: new_run(),
            session: self.core.id,
            agent: Some(agent.clone()),
            parent: Some(asker.who.run),
            depth: asker.spec.depth + 1,
            pattern: if is_fork { Pattern::Fork } else { Pattern::Named },
            // The prompt is in the stored head; a copy on every run's record would only cost bytes.
            definition: Arc::new(AgentDefinition {
                prompt: String::new(),
                sandbox: definition.sandbox.within(&asker.spec.definition.sandbox),
                ..definition.clone()
            }),
            head: outfit.head_name.clone(),
            tools: outfit.tools.names().map(str::to_owned).collect(),
            opening: prefix.map_or(Opening::Fresh, |prefix| Opening::Fork {
                parent: asker.who.agent.clone(),
                through: prefix.through,
                call: spawning.call.clone(),
            }),
            model: model.name.clone(),
            model_why: None,
            fallback_model: asker.spec.fallback_model.clone(),
            mode: child::mode((rights.mode, rights.undecided), &modes, trusted).value,
            cwd: spawning.cwd.clone(),
            directories: directories(asker, &spawning.cwd),
            worktree: asker.now().worktree.clone(),
            limits: child::limits(&spawning.input, definition),
            servers: Vec::new(),
            own_rules: spawning.input.own_rules.clone(),
            session_model: None,
        }
    }

    fn agent_record(
        &self,
        spawning: &Spawning,
        definition: &AgentDefinition,
        agent: &AgentId,
        background: bool,
    ) -> TaskRecord {
        TaskRecord {
            task: agent.clone().into(),
            kind: TaskKind::LocalAgent,
            description: spawning.input.description.clone(),
            prompt: spawning.input.prompt.clone(),
            parent: spawning.asker.who.agent.clone(),
            first_parent: None,
            call: Some(spawning.call.clone()),
            agent_type: Some(definition.name.clone()),
            depth: spawning.asker.spec.depth + 1,
            attention: if background { Attention::Background } else { Attention::Foreground },
            output_file: self.link_output(agent),
        }
    }

    /// The tools of a child that is no fork: chosen once for all that are alike.
    fn child_tools(
        &self,
        asker: &RunHandle,
        definition: &Arc<AgentDefinition>,
        background: bool,
        model: &Arc<Model>,
        effort: Option<&str>,
    ) -> Result<Arc<decurion_tools::ToolSet>, String> {
        let alike = |outfit: &&Arc<Outfit>| outfit.fits(asker, definition, model, background, effort);
        match self.outfits.made.iter().find(alike) {
            Some(outfit) => Ok(Arc::clone(&outfit.base)),
            None => child_tools(asker, definition, background, &self.core.parts.agent_settings),
        }
    }

    /// The tools and the head of a child: its parent's own for a fork, else made once for all children that
    /// are alike.
    async fn outfit(&mut self, draft: &Draft) -> Result<Arc<Outfit>, String> {
        let Draft { spawning, definition, model, base, tools, is_fork, background, .. } = draft;
        let asker = &spawning.asker;
        let effort = spawning.input.effort.as_deref();
        let alike = |outfit: &&Arc<Outfit>| {
            outfit.fits(asker, definition, model, *background, effort) && Arc::ptr_eq(&outfit.tools, tools)
        };
        if let Some(outfit) = self.outfits.made.iter().find(alike).filter(|_| !is_fork) {
            return Ok(Arc::clone(outfit));
        }
        let (head, wire_head) = if *is_fork {
            (Arc::clone(&asker.voice.head), Arc::clone(&asker.voice.wire_head))
        } else {
            let above = Some(&*asker.voice.head).filter(|_| Arc::ptr_eq(model, &asker.voice.model));
            let head = child_head(model, definition, tools, effort, above);
            let wire_head = Arc::new(model.dialect.head(&head));
            (Arc::new(head), wire_head)
        };
        let outfit = Arc::new(Outfit {
            head_name: self.keep_head(&head).await?,
            tools: Arc::clone(tools),
            base: Arc::clone(base),
            head,
            wire_head,
            of: (Arc::clone(definition), Arc::clone(&asker.tools), Arc::clone(model)),
            background: *background,
            depth: asker.spec.depth,
            effort: effort.map(str::to_owned),
        });
        if !is_fork {
            // Those with servers that nobody uses any more are of no use to anyone.
            let in_use = |outfit: &Arc<Outfit>| {
                Arc::ptr_eq(&outfit.tools, &outfit.base) || Arc::strong_count(&outfit.tools) > 1
            };
            self.outfits.made.retain(in_use);
            self.outfits.made.push(Arc::clone(&outfit));
        }
        Ok(outfit)
    }

    pub(super) fn child_model(
        &self,
        asker: &RunHandle,
        spawning: &Spawning,
        definition: &AgentDefinition,
        shares: bool,
        remarks: &mut Vec<String>,
    ) -> Result<Because<Arc<Model>>, String> {
        let parts = &self.core.parts;
        let call = spawning.input.model.as_deref();
        let wanted = child::model(&parts.agent_settings, call, definition, shares, &asker.voice.model.name);
        let other = |name: &str| name != "inherit" && name != asker.voice.model.name;
        let forced = parts.agent_settings.forced_model.as_deref();
        for (who, named) in [("`model`", call), ("DECURION_SUBAGENT_MODEL", forced)] {
            if shares && named.is_some_and(other) {
                remarks.push(format!("{who} was ignored: who sees the conversation has its parent's model."));
            }
        }
        let inherited = |why| Because { value: Arc::clone(&asker.voice.model), why };
        if wanted.value == asker.voice.model.name {
            return Ok(inherited(wanted.why));
        }
        match parts.models.resolve(&wanted.value) {
            Ok(value) => Ok(Because { value, why: wanted.why }),
            // An alias that this provider does not have is no reason not to work.
            Err(_) if child::is_alias(&wanted.value) => {
                remarks.push(format!(
                    "The model `{}` is not known to the provider in use; the agent runs on {}.",
                    wanted.value, asker.voice.model.name
                ));
                Ok(inherited(format!(
                    "`{}` is not known to the provider, so it is the parent's",
                    wanted.value
                )))
            }
            Err(reason) => {
                let own = definition.path.as_ref().filter(|_| call.is_none() && forced.is_none());
                let file = spawning.input.model_from.as_ref().filter(|_| forced.is_none()).or(own);
                let file = file.map(|file| format!(" ({file})")).unwrap_or_default();
                let by_skill = spawning.input.model_from.is_some() && forced.is_none();
                let why = if by_skill { "the skill names it" } else { wanted.why.as_str() };
                Err(format!(
                    "The agent {} cannot run on the model `{}`; {why}: {reason}{file}",
                    definition.name, wanted.value
                ))
            }
        }
    }

    /// What a child hears first.
    pub(super) fn opening(
        &self,
        spawning: &Spawning,
        prefix: Option<&Prefix>,
        is_fork: bool,
        spec: &RunSpec,
    ) -> Said {
        let prompt = vec![Block::text(spawning.input.prompt.clone())];
        let skills = spawning.input.skill.iter().cloned().collect();
        if let Some(delegating) = prefix.and_then(|prefix| prefix.delegating(&spawning.call)) {
            let entry = fork::entry(delegating, spawning.call.clone(), &spawning.input.description);
            return Said { entry: Some(entry), prompt, skills, ..Said::default() };
        }
        let parts = &self.core.parts;
        let note = (!is_fork).then(|| {
            let (root, home) = (&self.core.request.cwd, parts.home.as_deref());
            let rules = self.permissions.rights.borrow().rules_for("", &[&spec.own_rules]);
            let withheld = Withheld::new(&rules, root, &spawning.cwd, spec.worktree.as_deref(), home);
            let (instructions, _) = withheld.split(&parts.instructions);
            prompt::opening_note(&prompt::Scene {
                cwd: &spawning.cwd,
                directories: &spec.directories,
                git_branch: spec
                    .worktree
                    .as_ref()
                    .map_or(parts.git_branch.as_deref(), |own| Some(&own.branch)),
                // Of a checkout of its own nothing was asked.
                git_status: self.place.git_status.as_deref().filter(|_| spec.worktree.is_none()),
                machine: &parts.machine,
                date: parts.clock.date(),
                instructions: &instructions,
            })
        });
        Said { note, prompt, skills, ..Said::default() }
    }

    /// Stores a head under the name of what it holds, once.
    pub async fn keep_head(&mut self, head: &Head) -> Result<String, String> {
        let bytes = serde_json::to_vec(head).map_err(|error| error.to_string())?;
        let name = spec::head_name(&bytes);
        if self.outfits.heads.contains(&name) {
            return Ok(name);
        }
        if let Some(files) = &self.core.files {
            let stored = crate::session::open::put_head(files, &name, bytes).await;
            stored.map_err(|error| format!("cannot use the state folder: {error}"))?;
        }
        self.outfits.heads.insert(name.clone());
        Ok(name)
    }

    pub(super) fn link_output(&self, agent: &AgentId) -> camino::Utf8PathBuf {
        let files = self.core.files.as_ref();
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
    pub(super) fn child_run(
        &mut self,
        spec: RunSpec,
        model: Arc<Model>,
        outfit: &Outfit,
        family: Family,
    ) -> RunControl {
        let account = self.account_of(&spec, family.account);
        let class = match spec.definition.source {
            AgentSource::Builtin => RequestClass::AgentBuiltin,
            _ => RequestClass::AgentCustom,
        };
        let tag = RequestTag { agent: spec.definition.name.clone(), path: family.path.clone(), class };
        let inherited = inherited(&self.tasks.table, &spec);
        let mut own = self.core.parts.agents.hooks_of(&spec.definition);
        // They become active once it has begun, so they do not see that.
        own.retain(|hook| hook.event != HookEvent::SubagentStart);
        let (hooks, _) = self.root.session_hooks.and(own);
        let fallbacks = self.core.parts.models.fallbacks(&model, spec.fallback_model.as_deref());
        let voice = Voice {
            model,
            head: Arc::clone(&outfit.head),
            wire_head: Arc::clone(&outfit.wire_head),
            fallbacks,
        };
        let lineage =
            Lineage { path: family.path, account, modes: family.modes, grants: family.grants, inherited };
        let (told, parent_told) = (self.told(spec.agent.clone()), self.told(family.parent));
        RunBuilder {
            begun: self.children_begun(spec.agent.as_ref()),
            spec,
            lineage,
            voice,
            tag,
            tools: Arc::clone(&outfit.tools),
            hooks,
            cancel: self.core.cancel.child_token(),
            told,
            parent_told: Some(parent_told),
            services: self.services(),
        }
        .build()
    }

    /// Refuses a model without a price below an account that limits money: its cost could not be counted.
    pub(super) fn check_price(&self, model: &Model, account: AccountId) -> Result<(), String> {
        let limited =
            self.accounts.budget.lock().unwrap_or_else(PoisonError::into_inner).money_left(account).is_some();
        if limited && model.info.price.is_none() {
            return Err(format!(
                "The money budget of this session needs the price of the model, which is not known: {}. Use \
                 another model, or do the work yourself.",
                model.name
            ));
        }
        Ok(())
    }

    /// The account of an agent: the one it has, or a new one that knows what it spent before.
    fn account_of(&mut self, spec: &RunSpec, parent: AccountId) -> AccountId {
        let mut budget = self.accounts.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(agent) = &spec.agent else { return budget.open(Some(parent), &spec.limits) };
        if let Some(account) = self.accounts.by_agent.get(agent) {
            budget.limit(*account, parent, &spec.limits);
            return *account;
        }
        let spent = self.tasks.table.spent(&agent.clone().into());
        let account = budget.open_again(Some(parent), &spec.limits, spent);
        self.accounts.by_agent.insert(agent.clone(), account);
        account
    }

    /// How many tasks an agent has begun.
    fn children_begun(&self, agent: Option<&AgentId>) -> u32 {
        let Some(task) = agent.cloned().map(TaskId::from) else { return 0 };
        if self.tasks.table.row(&task).is_none() {
            return 0;
        }
        u32::try_from(self.tasks.table.children(Some(&task)).count()).unwrap_or(u32::MAX)
    }

    /// Puts a child on record, with its start and its prompt, and begins it, or queues it.
    pub(super) async fn open_agent(
        &mut self,
        by: &Who,
        child: Child,
        mut resources: Resources,
    ) -> Result<Spawned, String> {
        let Child { mut launch, record, remarks, shared } = child;
        let waits = self.not_begun(&record);
        let queued = waits.is_some();
        if let Err(reason) = self.record_opening(by, &mut launch, &record, waits).await {
            self.abandon(resources);
            return Err(reason);
        }
        // The task, what stands before its conversation and its mode are one record.
        for step in [StartStep::Task, StartStep::SystemPrompt, StartStep::Mode] {
            resources.took(step);
        }
        self.tasks.begun += 1;
        let task = record.task.clone();
        let Some(row) = self.tasks.table.row_mut(&task) else {
            return Err("the task table is gone".to_owned());
        };
        row.status = launch.control.run.watch_status();
        row.told = (0, 0);
        let view = row.view.subscribe();
        let model = launch.control.run.voice.model.name.clone();
        self.keep_meta(&record, &launch.control.run.spec);
        self.tasks.cancels.insert(task, launch.control.run.cancel.clone());
        resources.took(StartStep::Cancellation);
        launch.resources = resources;
        if queued {
            self.slots.queue.push_back(launch);
        } else {
            self.begin_agent(launch);
        }
        Ok(Spawned { record, view, model, remarks, shared })
    }

    /// Everything that another process would need to begin the child in this one's place, in one commit.
    async fn record_opening(
        &mut self,
        by: &Who,
        launch: &mut Launch,
        record: &TaskRecord,
        waits: Option<TaskState>,
    ) -> Result<(), String> {
        let who = launch.control.run.who.clone();
        let said = std::mem::take(&mut launch.said);
        let first = opening(&launch.control.run.spec, &launch.context, said, &launch.carried.calls);
        let opened = Event::TaskOpened { record: Box::new(record.clone()) };
        let mut parts = vec![(by.clone(), vec![opened]), (who.clone(), first)];
        if let Some(state) = waits {
            let task = record.task.clone();
            parts.push((by.clone(), vec![Event::TaskChanged { task, state }]));
        }
        let written = self.core.journal.write_all(parts).await.map_err(|lost| lost.to_string())?;
        for envelope in &written {
            self.tasks.table.apply(envelope);
            if envelope.agent == who.agent && envelope.run == who.run {
                launch.context.apply(&envelope.event);
            }
        }
        Ok(())
    }

    /// Writes what other readers want to know of an agent beside its transcript. A cache, so its loss is none.
    pub(super) fn keep_meta(&self, record: &TaskRecord, spec: &RunSpec) {
        let (Some(files), Some(agent)) = (&self.core.files, &spec.agent) else { return };
        let mut meta = serde_json::json!({
            "agentType": record.agent_type,
            "isBuiltIn": spec.definition.source == AgentSource::Builtin,
            "description": record.description,
            "toolUseId": record.call,
            "spawnDepth": record.depth,
            "requestShape": if record.attention == Attention::Foreground { "foreground" } else { "background" },
        });
        if let Some(parent) = &record.parent {
            meta["parentAgentId"] = serde_json::json!(parent);
        }
        if let Err(error) = files.put_agent_meta(agent, meta.to_string().as_bytes()) {
            tracing::warn!(%error, %agent, "the notes on an agent could not be written");
        }
    }

    /// Whether another agent may run.
    pub(super) fn has_room(&self, opened: Option<&TaskRecord>) -> bool {
        let most = self.core.parts.agent_settings.max_running as usize;
        self.slots.running.len() < most || self.places(opened) > 0
    }

    /// How many more agents may run. One that waits for its own agents or is held does no work and is not counted, nor
    /// is one that will wait for the agent to be opened now.
    pub(super) fn places(&self, opened: Option<&TaskRecord>) -> usize {
        let most = self.core.parts.agent_settings.max_running as usize;
        let running = &self.slots.running;
        let waited_for = |row: &&crate::task::Row| row.is_agent() && row.is_alive() && row.is_foreground();
        let parents = self
            .tasks
            .table
            .rows()
            .filter(waited_for)
            .map(|row| &row.record)
            .chain(opened.filter(|record| record.attention == Attention::Foreground))
            .filter_map(|record| record.parent.as_ref().map(AgentId::as_str));
        let is_held = |task: &&TaskId| self.tasks.table.row(task).is_some_and(|row| row.state().is_held());
        let idle: HashSet<&str> = parents
            .chain(self.tasks.ending.keys().map(AgentId::as_str))
            .chain(running.iter().filter(is_held).map(TaskId::as_str))
            .collect();
        let idle = running.iter().filter(|task| idle.contains(task.as_str())).count();
        most.saturating_sub(running.len() - idle)
    }

    pub(super) fn begin_agent(&mut self, launch: Launch) {
        let Launch { control, context, carried, first, mut resources, .. } = launch;
        let run = control.run.clone();
        let Some(agent) = run.spec.agent.clone() else { return };
        let task: TaskId = agent.clone().into();
        let attention = self.tasks.table.row(&task).map_or(Attention::Background, |row| row.record.attention);
        if self.tasks.table.step(&task, TaskStep::Start { attention }).is_err() {
            return;
        }
        self.slots.running.insert(task);
        if let Some(row) = self.tasks.table.row(&agent.clone().into()) {
            control.follow(row.view.subscribe());
        }
        self.tasks.runs.insert(agent.clone(), control);
        let (requests, clock) = (self.core.requests.clone(), Arc::clone(&run.clock));
        let run_id = run.spec.run;
        tokio::spawn(async move {
            // A panic outside the loop itself is an ending too.
            let living = live(&run, &mut resources, context, Beginning::Opened { first }, carried);
            let left = AssertUnwindSafe(living).catch_unwind().await;
            let left = left.unwrap_or_else(|_| Left::nothing());
            let rest = AssertUnwindSafe(resources.release(&run, left)).catch_unwind().await;
            let Rest { ending, delivered, worktree } = rest.unwrap_or_default();
            let (outcome, totals) =
                ending.map_or((Outcome::Lost, None), |(outcome, totals)| (outcome, Some(totals)));
            let id = EndingId { task: agent.clone().into(), run: Some(run_id) };
            let ending = Box::new(Ending { id, outcome, totals, at: clock.date(), worktree });
            // A session that is gone has nobody left to tell.
            let _ = requests.send(SessionRequest::Ended(agent, ending, delivered)).await;
        });
    }

    /// Begins what waits for a place, as far as there is one.
    pub(super) async fn begin_queued(&mut self) {
        while self.has_room(None) {
            if let Some(task) = self.slots.returning.pop_front() {
                self.return_to_work(task).await;
                continue;
            }
            let Some(at) = self.slots.queue.iter().position(|launch| !self.is_paused(launch)) else { return };
            let Some(launch) = self.slots.queue.remove(at) else { return };
            if let Some(task) = launch.control.run.spec.agent.clone().map(TaskId::from)
                && let Some(attention) = self.tasks.table.row(&task).and_then(|row| row.state().attention())
            {
                let (who, state) = (self.core.who.clone(), TaskState::Running { attention });
                // The run finds a lost journal itself.
                let _ = self.core.journal.write(&who, vec![Event::TaskChanged { task, state }]).await;
            }
            self.begin_agent(launch);
        }
    }
}

impl SessionActor {
    /// An agent that was held has a place again.
    async fn return_to_work(&mut self, task: TaskId) {
        let state = self.tasks.table.row(&task).map(crate::task::Row::state);
        // It may have ended or been held again since.
        let Some(TaskState::Queued { attention }) = state else { return };
        let who = self.core.who.clone();
        let state = TaskState::Running { attention };
        // The run finds a lost journal itself.
        if self.record(&who, Event::TaskChanged { task: task.clone(), state }).await.is_err() {
            let _ = self.tasks.table.step(&task, TaskStep::Start { attention });
        }
    }

    fn is_paused(&self, launch: &Launch) -> bool {
        let task = launch.control.run.spec.agent.clone().map(TaskId::from);
        let row = task.and_then(|task| self.tasks.table.row(&task));
        row.is_some_and(|row| matches!(row.state(), TaskState::Paused { .. }))
    }
}

/// The conversation that a child shares with its parent, if the delegating call is in it.
fn shared_prefix(spawning: &Spawning) -> Option<Arc<Prefix>> {
    let prefix = spawning.prefix.clone().filter(|prefix| prefix.delegating(&spawning.call).is_some());
    if prefix.is_none() {
        tracing::warn!(call = %spawning.call, "the delegating call was not found; the child starts afresh");
    }
    prefix
}

/// What its parent may not do, or not without a question, a child may not either.
fn inherit_rules(spawning: &mut Spawning) {
    let parent = &spawning.asker.spec.own_rules;
    let own = &mut spawning.input.own_rules;
    if parent.instead {
        own.add(parent);
    } else {
        own.deny.extend(parent.deny.iter().cloned());
    }
    own.deny.extend(spawning.follows.deny.iter().cloned());
}

fn total_reached(most: u32) -> String {
    format!("The limit of tasks in a session is reached (agents.max_total = {most}): do the work yourself.")
}

fn child_tools(
    asker: &RunHandle,
    definition: &AgentDefinition,
    background: bool,
    settings: &child::AgentSettings,
) -> Result<Arc<decurion_tools::ToolSet>, String> {
    let names: Vec<&str> = asker.tools.names().collect();
    let may_spawn = child::may_spawn(settings, definition, asker.spec.depth + 1);
    let kept: Vec<String> = child::tools(&names, definition, background, may_spawn)
        .into_iter()
        .filter(|tool| tool.removed.is_none())
        .map(|tool| tool.tool)
        .collect();
    if kept.is_empty() && definition.tools.only.is_some() {
        return Err(format!("Agent type '{}' has no tool that its parent may use.", definition.name));
    }
    let chosen = asker.tools.select(&ToolSelection { only: Some(kept), except: Vec::new() }).set;
    with_answer(chosen, definition).map(Arc::new)
}

/// The tools, with the one for the report where the definition says what that must be.
pub(super) fn with_answer(
    tools: decurion_tools::ToolSet,
    definition: &AgentDefinition,
) -> Result<decurion_tools::ToolSet, String> {
    let Some(schema) = &definition.equipment.output_schema else { return Ok(tools) };
    let answer = StructuredOutput::new(schema).map_err(|reason| format!("`output_schema`: {reason}"))?;
    Ok(decurion_tools::ToolSet::new(tools.iter().cloned().chain([Arc::new(answer) as Arc<dyn Tool>])))
}

fn child_head(
    model: &Model,
    definition: &AgentDefinition,
    tools: &decurion_tools::ToolSet,
    effort: Option<&str>,
    above: Option<&Head>,
) -> Head {
    let effort = effort.map(str::to_owned).or_else(|| definition.effort.clone());
    // Of those above it an agent has how to think where it has their model; another may know nothing of that.
    let own = above.unwrap_or(&model.head);
    Head {
        model: model.id.clone(),
        system: prompt::system(&definition.prompt, None),
        tools: tools.iter().map(|tool| spec::schema(&**tool)).collect(),
        thinking: own.thinking.clone(),
        effort: effort.or_else(|| own.effort.clone()),
        ..model.head.clone()
    }
}

/// What a definition lets its agent use, where it says more than names. An entry that cannot be read grants
/// nothing, and forbids its whole tool where it forbids.
pub(super) fn grant_of(definition: &AgentDefinition) -> Option<Grant> {
    let tools = &definition.tools;
    if !tools.only.iter().flatten().chain(&tools.except).any(|name| name.contains('(')) {
        return None;
    }
    let read = |text: &String| Rule::parse(text, RuleSource::Command);
    let whole = |text: &String| Rule {
        tool: text.split('(').next().unwrap_or_default().trim().to_owned(),
        specifier: None,
        source: RuleSource::Command,
    };
    let everything = tools.only.iter().flatten().any(|name| name == "*");
    let only = tools.only.as_ref().filter(|_| !everything);
    Some(Grant {
        only: only.map(|names| names.iter().filter_map(|name| read(name).ok()).collect()),
        except: tools.except.iter().map(|name| read(name).unwrap_or_else(|_| whole(name))).collect(),
    })
}

/// Whether neither of two folders is inside the other.
pub fn apart(one: &camino::Utf8Path, other: &camino::Utf8Path) -> bool {
    !one.starts_with(other) && !other.starts_with(one)
}

/// The directories of a child: its parent's, and where that was started.
fn directories(asker: &RunHandle, cwd: &camino::Utf8Path) -> Vec<camino::Utf8PathBuf> {
    let parent = asker.now();
    let mut all = vec![parent.cwd.clone()];
    all.extend(parent.directories.iter().cloned());
    all.retain(|directory| directory != cwd);
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_grants_nothing() {
        let grant = |only: &[&str], except: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let tools = ToolSelection { only: Some(owned(only)), except: owned(except) };
            grant_of(&AgentDefinition { tools, ..AgentDefinition::default() })
        };
        let texts = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let broken = grant(&["Bash(git:*)", "Read("], &["Edit(", "Write(/x/**)"]).unwrap();
        assert_eq!(texts(&broken.only.unwrap()), "Bash(git:*)");
        assert_eq!(texts(&broken.except), "Edit Write(/x/**)");
        assert_eq!(grant(&["Bash", "Read"], &[]), None, "names alone are what the tools are chosen by");
        assert_eq!(grant(&["*", "Bash(x)"], &[]).unwrap().only, None);
    }
}
