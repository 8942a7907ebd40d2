//! What a child needs before it can begin and that takes time. Takes a child that was decided, gives it what it
//! carries, or the reason why it does not begin, without holding up the session's task meanwhile: a failing
//! step gives back exactly what was acquired before it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use decurion_protocol::{AgentDefinition, AgentId, RuleSet, StartStep};
use decurion_tools::ToolSet;
use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use crate::approval::Rights;
use crate::bounds;
use crate::child::{self, Isolation};
use crate::mcp::{ServerDesk, SessionServers};
use crate::ports::Model;
use crate::session::actor::SessionActor;
use crate::session::resources::Resources;
use crate::session_port::{Spawned, Spawning};
use crate::worktree::{AskerRules, Wanted, Worktrees};

use super::requests::SessionRequest;

/// A child that was decided and has not begun.
pub struct Draft {
    /// What is wanted, by whom.
    pub spawning: Spawning,
    pub definition: Arc<AgentDefinition>,
    pub model: Arc<Model>,
    pub model_why: String,
    pub agent: AgentId,
    /// Its tools, out of its parent's; a fork has exactly those.
    pub base: Arc<ToolSet>,
    /// The same, with those of servers of its own.
    pub tools: Arc<ToolSet>,
    /// Whether it is a copy of its parent.
    pub is_fork: bool,
    /// Whether nobody waits for it.
    pub background: bool,
    /// Things the model that asked should know.
    pub remarks: Vec<String>,
}

/// What is said where preparing itself fails.
const BROKEN: &str = "The agent was not begun: preparing it failed inside Decurion; this is a bug in it.";

/// Where the answer to a wish for a child goes.
pub(super) type Answer = oneshot::Sender<Result<Spawned, String>>;

/// What a child needs that takes time.
struct Needs {
    /// A checkout of its own, and who makes it.
    worktree: Option<(Wanted, Result<Worktrees, String>)>,
    /// The way to MCP servers of its own.
    servers: Option<ServerDesk>,
}

impl Needs {
    /// What this child needs; none where it can begin at once.
    fn of(draft: &Draft, owner: &SessionActor) -> Option<Self> {
        let has_own = ServerDesk::has_own(&draft.definition);
        let servers = owner.place.servers.as_ref().filter(|_| has_own).map(SessionServers::desk);
        let worktree = child::isolation(&draft.spawning.input, &draft.definition).map(|isolation| {
            let Isolation::Worktree { dirty } = isolation;
            let wanted = Wanted {
                from: draft.spawning.cwd.clone(),
                name: draft.agent.to_string(),
                session: owner.core.id,
                agent: Some(draft.agent.clone()),
                description: draft.spawning.input.description.clone(),
                dirty,
                asker: draft.spawning.asker.now().worktree.as_deref().cloned(),
                rules: AskerRules {
                    rules: rules_of(draft, &owner.permissions.rights.borrow()),
                    root: owner.core.request.cwd.clone(),
                    home: owner.core.equipment.home.clone(),
                    directories: owner.place.directories(),
                },
            };
            (wanted, owner.worktrees())
        });
        (worktree.is_some() || servers.is_some()).then_some(Self { worktree, servers })
    }

    /// Acquires it, in the order of an agent's start.
    async fn acquire(
        self,
        draft: &Draft,
        mut resources: Resources,
        answer: &mut Answer,
    ) -> Result<Resources, String> {
        if let Some((wanted, trees)) = self.worktree {
            let trees = trees?;
            let made =
                trees.make(&wanted).await.map_err(|error| format!("The agent was not begun: {error}"))?;
            resources
                .noted(StartStep::Worktree, format!("{} from {}", made.worktree.path, made.worktree.base));
            resources.work_in(trees, made);
        }
        if let Some(desk) = self.servers {
            resources.servers = desk.lease(&draft.definition, &draft.agent);
            // Whoever asked is stopped with the session: nobody is kept by servers that hang.
            desk.settle(&mut resources.servers, answer.closed()).await;
        }
        Ok(resources)
    }
}

/// What may not be copied into a child's checkout: what is denied to the asker, and to the child, whose commands can read
/// git's objects.
fn rules_of(draft: &Draft, rights: &Rights) -> Arc<RuleSet> {
    let Spawning { asker: run, follows, .. } = &draft.spawning;
    let [asker, child] =
        [&run.spec.definition, &draft.definition].map(|definition| bounds::rules(&definition.sandbox));
    rights.rules_for(&run.lineage.path, &[&run.spec.own_rules, follows, &asker, &child])
}

impl SessionActor {
    /// Begins an agent, or takes one up again; one that needs something first is begun when it has it.
    pub(super) async fn wanted(&mut self, spawning: Spawning, mut answer: Answer) {
        if let Some(id) = spawning.input.resume.clone() {
            let call = spawning.call.clone();
            let resumed = self.resume(spawning, &id, &answer).await;
            let _ = answer.send(self.send_begun_behind(&call, resumed).await);
            return;
        }
        let draft = match self.draft(spawning) {
            Ok(draft) => draft,
            Err(reason) => {
                let _ = answer.send(Err(reason));
                return;
            }
        };
        draft.spawning.asker.begun.fetch_add(1, Ordering::Relaxed);
        let resources = started();
        let Some(needs) = Needs::of(&draft, self) else {
            return self.prepared(draft, Ok(resources), answer).await;
        };
        self.slots.preparing += 1;
        let requests = self.core.requests.clone();
        tokio::spawn(async move {
            // A panic must not leave the session waiting for ever.
            let acquired =
                AssertUnwindSafe(needs.acquire(&draft, resources, &mut answer)).catch_unwind().await;
            let resources = acquired.unwrap_or_else(|_| Err(BROKEN.to_owned()));
            let draft = Box::new(draft);
            // The session waits for what is being prepared before it ends, so somebody listens.
            let _ = requests.send(SessionRequest::Prepared(draft, resources, answer)).await;
        });
    }

    /// A child that needed something has it, or cannot have it.
    pub(super) async fn was_prepared(
        &mut self,
        draft: Draft,
        resources: Result<Resources, String>,
        answer: Answer,
    ) {
        self.slots.preparing -= 1;
        self.prepared(draft, resources, answer).await;
        self.begin_queued().await;
    }

    async fn prepared(&mut self, draft: Draft, resources: Result<Resources, String>, answer: Answer) {
        let asker = draft.spawning.asker.clone();
        let begun = match resources {
            Err(reason) => Err(reason),
            // Whoever asked was stopped meanwhile: nobody would wait for it, stop it or hear of it.
            Ok(resources) if answer.is_closed() => {
                self.abandon(resources);
                Err(String::new())
            }
            Ok(resources) => {
                let call = draft.spawning.call.clone();
                let begun = self.begin_draft(draft, resources).await;
                self.send_begun_behind(&call, begun).await
            }
        };
        if begun.is_err() {
            asker.begun.fetch_sub(1, Ordering::Relaxed);
        }
        let _ = answer.send(begun);
    }

    async fn begin_draft(&mut self, mut draft: Draft, mut resources: Resources) -> Result<Spawned, String> {
        let by = draft.spawning.asker.who.clone();
        if let Some(servers) = &self.place.servers {
            draft.remarks.append(&mut resources.servers.remarks);
            draft.tools = servers.desk().with_own(&draft.tools, &resources.servers, &draft.definition);
        }
        match self.make_child(draft, resources.made()).await {
            Ok(child) => self.open_agent(&by, child, resources).await,
            Err(reason) => {
                self.abandon(resources);
                Err(reason)
            }
        }
    }
}

impl SessionActor {
    /// Gives back what an agent that does not begin would have carried, while the session goes on.
    pub(super) fn abandon(&mut self, resources: Resources) {
        self.slots.preparing += 1;
        let requests = self.core.requests.clone();
        tokio::spawn(async move {
            let _ = AssertUnwindSafe(resources.abandon()).catch_unwind().await;
            let _ = requests.send(SessionRequest::Abandoned).await;
        });
    }

    /// What an agent that did not begin would have carried is given back.
    pub(super) async fn was_abandoned(&mut self) {
        self.slots.preparing -= 1;
        self.begin_queued().await;
    }

    /// Who makes checkouts for agents of this session.
    pub(super) fn worktrees(&self) -> Result<Worktrees, String> {
        let trees = self.core.parts.worktrees.clone();
        let trees = trees.ok_or("Worktrees need a state folder and a git that can be started.".to_owned())?;
        if self.core.files.is_none() {
            // Without a transcript there is no lock that says that its leases are alive.
            trees.hold_for(self.core.id).map_err(|error| error.to_string())?;
        }
        Ok(trees)
    }
}

/// What is decided already when a child is drafted.
fn started() -> Resources {
    let mut resources = Resources::default();
    for step in [StartStep::Definition, StartStep::Model, StartStep::Id, StartStep::Tools] {
        resources.took(step);
    }
    resources
}
