//! The root: what its next run is made of, what it is told before, and what is left of it at its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use decurion_model::{RequestClass, RequestTag, Thinking};
use decurion_protocol::{
    AgentDefinition, Block, Event, LineId, Outcome, OwnRules, PermissionUpdate, Persistence, Reply,
    RequestId, ThinkingChange, Totals,
};
use decurion_tools::ToolSet;

use crate::compact::{Trigger, compact};
use crate::context::Context;
use crate::hook::Hooks;
use crate::mcp::{self, SessionServers};
use crate::ports::{Model, NoAudit};
use crate::progress::Carried;
use crate::progress::{Progress, record, refold};
use crate::run_handle::{Lineage, RunBuilder, RunControl, RunHandle, Services, Voice};
use crate::session::open::own_tools;
use crate::session::resources::Resources;
use crate::session::run_task::{Beginning, Left, Said, live, opening};
use crate::session::spec::{self, Decided};

use crate::skill;
use crate::skill::slash::{self, Typed};

use super::actor::{Closing, Running, SessionActor, done};
use super::prompts::Work;
use super::questions::Changing;

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

impl SessionActor {
    /// Starts the next piece of work if nothing runs: what was asked for, else what waits to be told.
    pub(super) async fn next(&mut self) {
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

    /// Whether a prompt must wait until servers of the host have said what they offer, which they can only when the
    /// session is open. Everything else goes on meanwhile.
    pub(super) fn awaits_servers(&mut self) -> bool {
        if self.place.settling.is_none()
            && matches!(self.prompts.queue.front(), Some((_, Work::Prompt(..) | Work::Again(..))))
        {
            self.place.settling = self.place.servers.as_mut().and_then(SessionServers::settle_hosted);
        }
        self.place.settling.is_some()
    }

    /// A command that a person typed brings its rules for what it leads to, and may bring its model.
    pub(super) async fn heed_command(&mut self, prompt: &[Block]) {
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
    pub(super) async fn tell_of_agents(&mut self) {
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
    pub(super) async fn tell_of_servers(&mut self) {
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

    /// The conversation, from memory or from the record.
    pub(super) async fn take_context(&mut self) -> Context {
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

    pub(super) async fn root_ended(&mut self, left: Left) {
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

    /// Changes all of this, or nothing where something of it cannot be.
    pub(super) async fn change(
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
    pub(super) fn resolved(&self, name: &str) -> Result<(Arc<Model>, Option<String>), String> {
        let first =
            || self.core.request.model.clone().unwrap_or_else(|| self.core.parts.models.default_name());
        let name = if name == "default" { first() } else { name.to_owned() };
        let (model, remark) = self.core.parts.models.main(&name)?;
        spec::check_limits(&self.core.request.limits, &model).map_err(|error| error.to_string())?;
        Ok((model, remark))
    }

    /// How much the model of the next turn may think; whoever speaks to it keeps that within what it takes.
    pub(super) fn set_thinking(&mut self, tokens: Option<u64>) {
        let thinking = tokens.map(|tokens| match tokens {
            0 => Thinking::Disabled,
            budget_tokens => Thinking::Enabled { budget_tokens, display: None },
        });
        self.offer.thinking = thinking;
        self.use_model(Arc::clone(&self.offer.model));
    }

    pub(super) fn use_model(&mut self, model: Arc<Model>) {
        let mut head = spec::root_settings(&self.core.request, &model, (*self.offer.head).clone());
        if let Some(thinking) = &self.offer.thinking {
            head.thinking = Some(thinking.clone());
        }
        self.offer.wire_head = Arc::new(model.dialect.head(&head));
        self.offer.head = Arc::new(head);
        self.offer.model = model;
    }
}
