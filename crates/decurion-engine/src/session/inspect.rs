//! How the session stands. Takes what someone wants to see, gives it as the reply of a command. Whatever takes time
//! is looked up beside the session's task, which never waits here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use decurion_model::Head;
use decurion_protocol::{
    AgentSource, ContextKind, ContextPart, ContextUse, Event, Inspected, Reply, RequestId, RulesInForce,
    TaskId, TaskKind,
};
use serde::Serialize;
use serde_json::Value;

use crate::agent_tools::task_output;
use crate::context::{Context, estimate};
use crate::git;
use crate::mcp::{self, SessionServers};
use crate::progress::refold_root;
use crate::repository;
use crate::session::actor::SessionActor;
use crate::skill;

/// How much of an output's end is shown.
const OUTPUT_END: usize = 8 << 10;

impl SessionActor {
    /// Replies with what is asked for, now or as soon as it is read.
    pub fn inspect(&mut self, id: RequestId, what: Inspected) {
        match what {
            Inspected::Context => self.inspect_context(id),
            Inspected::Servers => {
                let details = self.place.servers.as_ref().map(SessionServers::details);
                self.reply(id, held(&details.unwrap_or_default()));
            }
            Inspected::Rules => {
                let rights = self.permissions.rights.borrow();
                let rules = RulesInForce {
                    mode: rights.mode,
                    rules: (*rights.rules).clone(),
                    cwd: self.core.request.cwd.clone(),
                    directories: self.place.directories(),
                };
                self.reply(id, held(&rules));
            }
            Inspected::Hooks => self.reply(id, held(&self.root_hooks().declared())),
            Inspected::Changes => self.inspect_changes(id),
            Inspected::Output { task } => self.inspect_output(id, &task),
        }
    }

    /// A root that works has its conversation; then it is read from the record, once for all who wait.
    fn inspect_context(&mut self, id: RequestId) {
        if let Some(context) = self.resting_context() {
            let used = context_use(self, context);
            return self.reply(id, held(&used));
        }
        let frame = frame(self);
        if !lock(&self.core.reads).ask(id, frame) {
            return;
        }
        let (run, reads) = (self.root_control().run, Arc::clone(&self.core.reads));
        let (journal, who) = (self.core.journal.clone(), self.core.who.clone());
        tokio::spawn(async move {
            loop {
                // What was asked for while it was read is answered with what is on record by then.
                let asked = lock(&reads).next();
                if asked.is_empty() {
                    return;
                }
                let context = refold_root(&run, Context::new(run.voice.model.dialect)).await;
                for (request, frame) in asked {
                    let reply = match &context {
                        Some(context) => held(&filled(frame, context)),
                        None => Reply::Refused { reason: "the transcript cannot be read now".to_owned() },
                    };
                    journal.publish(&who, Event::Replied { request, reply });
                }
            }
        });
    }

    fn inspect_changes(&self, id: RequestId) {
        let parts = &self.core.parts;
        let (environment, trusted) =
            (Arc::clone(&parts.environment), self.permissions.rights.borrow().trusted);
        let (cwd, maker) = (self.core.request.cwd.clone(), parts.sandbox.clone());
        let Some(guard) = parts.processes.clone() else {
            let reason = "processes cannot be started in this run".to_owned();
            return self.reply(id, Reply::Refused { reason });
        };
        self.reply_later(id, async move {
            let changes = async {
                let sandbox = repository::sandbox_to_look(&cwd, trusted, maker).await?;
                git::changes(&guard, &environment, &cwd, sandbox).await
            };
            match changes.await {
                Ok(changes) => held(&changes),
                Err(reason) => Reply::Refused { reason },
            }
        });
    }

    fn inspect_output(&self, id: RequestId, task: &TaskId) {
        let row = self.tasks.table.rows().find(|row| row.record.task == *task);
        let Some(row) = row.filter(|row| row.record.kind == TaskKind::LocalBash) else {
            let reason = format!("no command of this session has this id: {task}");
            return self.reply(id, Reply::Refused { reason });
        };
        let file = row.record.output_file.clone();
        self.reply_later(id, async move {
            let read = tokio::task::spawn_blocking(move || task_output::end_of_file(&file, OUTPUT_END)).await;
            held(&read.unwrap_or_default())
        });
    }
}

/// Who wants to know what fills the window while the root works.
#[derive(Default)]
pub struct Reads {
    is_reading: bool,
    /// Whoever waits for the next read, each with what stands around the conversation.
    waiting: Vec<(RequestId, ContextUse)>,
}

impl Reads {
    /// Takes a request in; tells whether nobody reads yet.
    fn ask(&mut self, id: RequestId, frame: ContextUse) -> bool {
        self.waiting.push((id, frame));
        !std::mem::replace(&mut self.is_reading, true)
    }

    /// All who wait now; none ends the reading.
    fn next(&mut self) -> Vec<(RequestId, ContextUse)> {
        self.is_reading = !self.waiting.is_empty();
        std::mem::take(&mut self.waiting)
    }
}

fn lock(reads: &Mutex<Reads>) -> MutexGuard<'_, Reads> {
    reads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reply that holds this.
pub fn held(value: &impl Serialize) -> Reply {
    match serde_json::to_value(value) {
        Ok(value) => Reply::Done { value },
        Err(error) => Reply::Refused { reason: error.to_string() },
    }
}

/// What fills the window now.
fn context_use(session: &SessionActor, context: &Context) -> ContextUse {
    filled(frame(session), context)
}

/// What stands around a conversation: all but the messages.
fn frame(session: &SessionActor) -> ContextUse {
    let model = &session.offer.model;
    let (window, compaction) = (model.info.window, session.core.parts.compaction);
    let room = window.saturating_sub(session.offer.head.max_output_tokens.min(window / 2));
    ContextUse {
        model: model.id.clone(),
        window,
        compacts_at: compaction.automatic.then(|| room * compaction.at_percent / 100),
        parts: around(&session.offer.head, session),
        ..ContextUse::default()
    }
}

/// The same with the messages. Where a provider has counted the whole, the estimates of its parts are made to add up to
/// that.
fn filled(mut used: ContextUse, context: &Context) -> ContextUse {
    let sum = |parts: &[ContextPart]| parts.iter().map(|part| part.tokens).sum::<u64>();
    let (memory, head): (Vec<_>, Vec<_>) =
        std::mem::take(&mut used.parts).into_iter().partition(|part| part.kind == ContextKind::Memory);
    used.total = context.tokens_with(sum(&head));
    used.parts = head;
    if !context.is_empty() {
        // Told at the beginning, so that they are part of what was said.
        let tokens = context.messages_estimated().saturating_sub(sum(&memory));
        used.parts.extend(memory);
        used.parts.push(part(ContextKind::Messages, "", "", tokens));
    }
    let estimated = sum(&used.parts);
    for part in &mut used.parts {
        part.tokens = (part.tokens * used.total).checked_div(estimated).unwrap_or(part.tokens);
    }
    used.last = context.last_usage().cloned();
    used
}

fn part(kind: ContextKind, name: &str, of: &str, tokens: u64) -> ContextPart {
    ContextPart { kind, name: name.to_owned(), of: of.to_owned(), tokens }
}

/// The parts of a head, and the instruction files that stand at the beginning of the conversation.
fn around(head: &Head, session: &SessionActor) -> Vec<ContextPart> {
    let system = head.system.iter().map(String::len).sum();
    let mut all = vec![part(ContextKind::System, "", "", estimate(system))];
    let custom = session.offer.agents.iter().filter(|one| one.source != AgentSource::Builtin && !one.hidden);
    let agents: Vec<ContextPart> = custom
        .map(|one| {
            let tokens = estimate(one.name.len() + one.description.len());
            part(ContextKind::Agent, &one.name, &word(one.source), tokens)
        })
        .collect();
    let servers = session.place.servers.as_ref().map(SessionServers::all).unwrap_or_default();
    for schema in &head.tools {
        let bytes = schema.name.len() + schema.description.len() + schema.input_schema.to_string().len();
        let mut tokens = estimate(bytes);
        let kind = match schema.name.as_str() {
            name if mcp::is_servers(name) => ContextKind::McpTool,
            name if name == skill::NAME => ContextKind::Skills,
            name => {
                if name == "Agent" {
                    tokens = tokens.saturating_sub(agents.iter().map(|agent| agent.tokens).sum());
                }
                ContextKind::Tool
            }
        };
        let of = servers
            .iter()
            .find(|server| schema.name.starts_with(&format!("mcp__{}__", server.declared().short)));
        let of = of.map_or("", |server| server.declared().name.as_str());
        all.push(part(kind, &schema.name, of, tokens));
    }
    if head.tools.iter().any(|schema| schema.name == "Agent") {
        all.extend(agents);
    }
    all.extend(
        session
            .place
            .instructions
            .iter()
            .map(|one| part(ContextKind::Memory, one.path.as_str(), "", estimate(one.text.len()))),
    );
    all
}

/// A source in the word of files.
fn word(source: AgentSource) -> String {
    serde_json::to_value(source).ok().as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
}
