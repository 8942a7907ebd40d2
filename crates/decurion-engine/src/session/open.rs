//! How a session is opened: new, resumed or forked. Takes what the engine is made of and what was asked for, gives a
//! session whose every decision before its first run is made.

use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::{BoxFuture, Subscribe};
use decurion_protocol::{
    AgentDefinition, Event, Link, Mode, OpenSession, PermissionUpdate, Place, PlaceError, RuleSet, RunSpec,
    SessionId, SessionSummary, Skill, Start, Worktree,
};
use decurion_store::SessionFiles;
use decurion_tools::{Http, Tool, ToolSet};

use crate::approval::Rights;
use crate::child::Isolation;
use crate::equipment::Equipment;
use crate::hook::{HookSurroundings, Hooks};
use crate::host::HostDesk;
use crate::journal::{Journal, JournalOptions};
use crate::mcp::{ServerPlace, SessionServers};
use crate::permission::Around;
use crate::ports::Model;
use crate::sandbox::ServiceSandbox;
use crate::session::actor::{Session, first_who};
use crate::session::parts::Parts;
use crate::session::resume::{Folded, Opened};
use crate::session::rights_changes::RightsChanges;
use crate::session::spec::HeadAndTools;
use crate::session::{resume, spec};
use crate::skill::SkillTool;
use crate::spill::SpillInto;
use crate::withheld::Withheld;
use crate::witness::Witness;
use crate::worktree::{AskerRules, Made, Wanted, WorktreeError, Worktrees};
use crate::{
    agent_tools, bounds, checkpoint, child, git, journal, mcp, permission, person_tools, prompt, repository,
    skill,
};

/// Where a session begins or goes on.
struct Ground {
    cwd: Utf8PathBuf,
    git_status: Option<String>,
    worktree: Option<Worktree>,
    /// Whether what is not committed did not come over.
    without: bool,
}

/// Where a recorded session goes on.
enum Again {
    /// In the shared folder.
    Shared,
    /// In the checkout that it was in.
    Taken(Made),
    /// Where it was before it entered a checkout that is gone, for this reason.
    Before(Utf8PathBuf, String),
}

impl Again {
    fn made(self) -> Option<Made> {
        if let Self::Taken(made) = self { Some(made) } else { None }
    }
}

/// The place in this process.
pub struct Engine {
    parts: Arc<Parts>,
}

impl Engine {
    /// An engine of these parts.
    pub fn new(parts: Parts) -> Self {
        Self { parts: Arc::new(parts) }
    }

    async fn begin(&self, mut request: OpenSession) -> Result<Link, PlaceError> {
        // A new session that cannot work leaves no file behind.
        let host = HostDesk::default();
        let servers = self.servers(&request, &host).await;
        let prepared = match request.start {
            Start::New { .. } => Some(self.prepare(&request, None, None, servers.as_ref())?),
            Start::Resume { .. } | Start::Fork { .. } => None,
        };
        let made = Box::pin(self.make_worktree(&mut request)).await?;
        let mut opened = match resume::open(&self.parts, &request) {
            Ok(opened) => opened,
            Err(error) => {
                self.give_back(made).await;
                return Err(error);
            }
        };
        let mut first = first_events(&opened);
        first.extend(self.mode_again(&request, &mut opened.folded.permits));
        let made = match request.start {
            Start::Resume { .. } => {
                let again = Box::pin(self.worktree_again(opened.id, &opened.folded)).await?;
                if let Again::Before(before, why) = &again {
                    first.extend(back_out(&mut opened, before, why));
                    request.cwd.clone_from(before);
                }
                if matches!(again, Again::Shared) && child::own_isolation(&request.definition).is_some() {
                    return Err(shared(&request.definition, "this session"));
                }
                again.made()
            }
            Start::New { .. } | Start::Fork { .. } => made,
        };
        let mut cwd = request.cwd.clone();
        if let Some(made) = &made {
            cwd.clone_from(&made.cwd);
            // What it entered in its middle it can leave again, and its rules count from where it was before.
            request.cwd = opened.folded.before.clone().unwrap_or_else(|| cwd.clone());
        }
        let id = opened.id;
        let who = first_who(opened.folded.spec.as_ref().map(|spec| spec.run));
        if made.is_none() {
            let own = self.directories(&request, &opened.folded.permits);
            first.extend(back_home(&mut opened, &request, &own));
        }
        let git_status = self.git_status(&cwd).await;
        let without = made.as_ref().is_some_and(|made| made.without);
        let ground = Ground { cwd, git_status, worktree: made.map(|made| made.worktree), without };
        let session = self.session(opened, request, prepared, servers, ground, &host).await?;
        first.extend(session.left_out.iter().map(|text| warning(text)));
        let link_events = session.journal.subscribe();
        let journal = session.journal.clone();
        journal
            .write(&who, first)
            .await
            .map_err(|lost| PlaceError::Storage { path: id.to_string(), source: io::Error::other(lost) })?;
        let (commands, inbox) = decurion_protocol::commands::channel();
        host.open(&journal, &who);
        session.start(inbox, who);
        let again: Option<Subscribe> = Some(Arc::new(move || journal.subscribe()));
        Ok(Link { session: id, commands, events: link_events, again })
    }

    /// Starts the MCP servers of a session, and waits a little for those that nothing is known of.
    async fn servers(&self, request: &OpenSession, host: &HostDesk) -> Option<SessionServers> {
        let parts = &self.parts;
        let mcp = parts.mcp.as_ref()?;
        let rules = Arc::new(spec::rules(&parts.rules, &request.allow, &request.deny));
        let directories = self.directories(request, &RightsChanges::default());
        let sandbox = self.service_sandbox(request, rules, directories, None);
        let place = ServerPlace { processes: parts.processes.as_ref(), root: &request.cwd, sandbox };
        let (servers, problems) = SessionServers::start(mcp, place, &request.definition, host);
        for problem in problems {
            tracing::warn!("{problem}");
        }
        servers.settle().await;
        Some(servers)
    }

    /// Makes the checkout of its own that a new session asks for, or that its agent works in by its definition; its
    /// id is decided with that.
    async fn make_worktree(&self, request: &mut OpenSession) -> Result<Option<Made>, PlaceError> {
        let isolation = child::own_isolation(&request.definition);
        let name = match (&request.worktree, isolation, &request.start) {
            (Some(name), ..) => name.clone(),
            (None, Some(_), Start::New { .. }) => String::new(),
            (None, Some(_), Start::Fork { .. }) => {
                return Err(shared(&request.definition, "a fork of a session"));
            }
            (None, ..) => return Ok(None),
        };
        let Start::New { id } = request.start else {
            let text = "a worktree can only be chosen for a new session; a resumed one stays where it was";
            return Err(PlaceError::Usage(text.to_owned()));
        };
        let id = id.unwrap_or_else(|| SessionId(uuid::Uuid::new_v4()));
        request.start = Start::New { id: Some(id) };
        let trees = self.worktrees()?;
        let usage = |error: WorktreeError| PlaceError::Usage(error.to_string());
        trees.hold_for(id).map_err(usage)?;
        let name = if name.is_empty() { format!("s{}", &id.0.simple().to_string()[..8]) } else { name };
        let mut rules = spec::rules(&self.parts.rules, &request.allow, &request.deny);
        rules.deny.extend(bounds::rules(&request.definition.sandbox).deny);
        let wanted = Wanted {
            from: request.cwd.clone(),
            name,
            session: id,
            agent: None,
            description: String::new(),
            dirty: isolation == Some(Isolation::Worktree { dirty: true }),
            asker: None,
            rules: AskerRules {
                rules: Arc::new(rules),
                root: request.cwd.clone(),
                home: self.parts.home.clone(),
                directories: request.directories.clone(),
            },
        };
        trees.make(&wanted).await.map(Some).map_err(usage)
    }

    /// The checkout that a recorded session works in. One that it began in must be there, since there is no other to
    /// work in; from one that it entered there is a way back.
    async fn worktree_again(&self, session: SessionId, folded: &Folded) -> Result<Again, PlaceError> {
        let Some(spec) = &folded.spec else { return Ok(Again::Shared) };
        let Some(worktree) = spec.worktree.as_deref() else { return Ok(Again::Shared) };
        match (self.worktrees()?.take_up(worktree, session).await, &folded.before) {
            (Ok(()), _) => Ok(Again::Taken(Made {
                worktree: worktree.clone(),
                cwd: spec.cwd.clone(),
                found: true,
                without: false,
            })),
            (Err(error @ WorktreeError::Gone(_)), Some(before)) if before.is_dir() => {
                Ok(Again::Before(before.clone(), error.to_string()))
            }
            (Err(error), _) => Err(PlaceError::Usage(format!("{error}; the session is kept"))),
        }
    }

    async fn give_back(&self, made: Option<Made>) {
        if let (Some(made), Some(trees)) = (made, &self.parts.worktrees) {
            Box::pin(trees.give_back(&made)).await;
        }
    }

    fn worktrees(&self) -> Result<&Worktrees, PlaceError> {
        let text = "worktrees need a state folder and a git that can be started";
        self.parts.worktrees.as_ref().ok_or_else(|| PlaceError::Usage(text.to_owned()))
    }

    /// The model and what stands before the conversation.
    fn prepare(
        &self,
        request: &OpenSession,
        recorded: Option<&RunSpec>,
        files: Option<&SessionFiles>,
        servers: Option<&SessionServers>,
    ) -> Result<(Arc<Model>, HeadAndTools), PlaceError> {
        let parts = &self.parts;
        // A command's model was for its turn alone, however that ended.
        let own = |spec: &RunSpec| spec.session_model.clone().unwrap_or_else(|| spec.model.clone());
        let model_name = request.model.clone().or_else(|| recorded.map(own));
        let model_name = model_name.unwrap_or_else(|| parts.models.default_name());
        // Whoever made the request has said which model an alias came to.
        let (model, _) = parts.models.main(&model_name).map_err(PlaceError::Model)?;
        spec::check_limits(&request.limits, &model)?;
        let fallbacks = parts.models.fallbacks(&model, request.fallback_model.as_deref());
        spec::check_fallbacks(&request.limits, &fallbacks)?;
        let recorded_head = recorded
            .zip(files)
            .and_then(|(spec, files)| serde_json::from_slice(&files.get_head(&spec.head).ok()?).ok());
        let all = self.all_tools(servers, &model, request);
        let mut made = spec::root_head(request, recorded_head.as_ref(), &all, &model)?;
        if servers.is_some() {
            // A server's tools are known when it is; until then nobody can say that there is no such tool.
            made.unknown.retain(|name| !mcp::is_servers(name));
        }
        // Whoever selects tools does not know whether there is somebody to ask.
        made.unknown.retain(|name| !person_tools::NAMES.contains(&name.as_str()));
        if !made.unknown.is_empty() {
            let known: Vec<&str> = all.names().collect();
            return Err(PlaceError::Usage(format!(
                "no such tool: {} (the tools are {})",
                made.unknown.join(", "),
                known.join(", ")
            )));
        }
        Ok((model, made))
    }

    /// Every tool there is, those of the engine told of the agents and skills as they are now; those that ask a person
    /// where somebody answers.
    fn all_tools(
        &self,
        servers: Option<&SessionServers>,
        model: &Model,
        request: &OpenSession,
    ) -> Arc<ToolSet> {
        let parts = &self.parts;
        let rules = spec::rules(&parts.rules, &request.allow, &request.deny);
        let mut ours =
            own_tools(parts, &parts.agents.all(), &parts.library.skills(), model, (&rules, &request.cwd));
        if request.answers {
            ours.extend(agent_tools::asking());
        }
        if ours.is_empty() && servers.is_none() {
            return Arc::clone(&parts.tools);
        }
        let theirs = servers.map(SessionServers::tools).unwrap_or_default();
        Arc::new(ToolSet::new(parts.tools.iter().cloned().chain(ours).chain(theirs)))
    }

    /// What git says about the working directory, if it says so in a moment.
    async fn git_status(&self, cwd: &Utf8Path) -> Option<String> {
        let parts = &self.parts;
        parts.git_branch.as_ref()?;
        let (guard, trusted) = (parts.processes.as_ref()?, parts.agent_settings.trusted);
        let sandbox = repository::sandbox_to_look(cwd, trusted, parts.sandbox.clone()).await.ok()?;
        git::status(guard, &parts.environment, cwd, sandbox).await
    }

    /// What the kernel keeps the hooks and servers of a session from that has these rules and directories.
    fn service_sandbox(
        &self,
        request: &OpenSession,
        rules: Arc<RuleSet>,
        directories: Vec<Utf8PathBuf>,
        session: Option<SessionId>,
    ) -> Option<ServiceSandbox> {
        let parts = &self.parts;
        let around = Around {
            cwd: request.cwd.clone(),
            root: request.cwd.clone(),
            directories,
            home: parts.home.clone(),
            user_files: Arc::clone(&parts.user_files),
            checkouts: permission::Checkouts::of(&request.cwd, std::iter::empty()),
            ..Around::default()
        };
        let witness = Witness::of_session(&parts.audit, &parts.clock, session);
        let sandbox = ServiceSandbox::new(parts.sandbox.clone()?, rules, around);
        Some(sandbox.recorded_by(witness, Arc::clone(&parts.redact)))
    }

    /// The hooks of the settings, for one session.
    fn hooks(
        &self,
        request: &OpenSession,
        session: SessionId,
        host: &HostDesk,
        sandbox: Option<ServiceSandbox>,
    ) -> Hooks {
        let parts = &self.parts;
        let around = HookSurroundings {
            processes: parts.processes.clone(),
            sandbox,
            environment: Arc::clone(&parts.hook_environment),
            cwd: request.cwd.clone(),
            project: request.cwd.clone(),
            session,
            host: host.clone(),
        };
        let (hooks, problems) = Hooks::new(parts.hooks.clone(), around);
        for problem in problems {
            tracing::warn!("{problem}");
        }
        hooks
    }

    /// The further directories at the start: those that are given now, and what was changed about them.
    fn directories(&self, request: &OpenSession, permits: &RightsChanges) -> Vec<Utf8PathBuf> {
        let given = request.directories.iter().chain(&self.parts.directories).cloned();
        permits.directories(given.collect())
    }

    /// A session is in the mode that it was in, unless another is asked for; that is the last word about it then. A
    /// mode that is not to be had any more is not taken up.
    fn mode_again(&self, request: &OpenSession, permits: &mut RightsChanges) -> Vec<Event> {
        let Some(recorded) = permits.mode else { return Vec::new() };
        let gone =
            spec::check_later_mode(recorded, &self.parts, request).err().filter(|_| request.mode.is_none());
        let mode = match &gone {
            Some(_) => self.parts.mode,
            None => request.mode.unwrap_or(recorded),
        };
        permits.change_mode(mode);
        let notice = gone.map(|reason| {
            let text = format!("the session continues in mode {mode}: {reason}");
            Event::Notice { level: "warning".to_owned(), text }
        });
        let updates = vec![PermissionUpdate::SetMode { mode }];
        let changed = (mode != recorded).then_some(Event::RightsChanged { updates, only: None });
        notice.into_iter().chain(changed).collect()
    }

    /// The mode at the start, if it is available.
    fn mode(&self, request: &OpenSession, recorded: Option<Mode>) -> Result<Mode, PlaceError> {
        let mode = request.mode.or(recorded).unwrap_or(self.parts.mode);
        spec::check_mode(mode, self.parts.bypass).map_err(PlaceError::Usage)?;
        Ok(mode)
    }

    /// The mode that holds once a plan is agreed to, in a session that begins in this mode.
    fn before_plan(&self, mode: Mode, permits: &RightsChanges) -> Mode {
        let known = Some(mode).filter(|mode| *mode != Mode::Plan).or(permits.before_plan);
        known.or(Some(self.parts.mode).filter(|mode| *mode != Mode::Plan)).unwrap_or_default()
    }

    /// Everything about a session that is decided before its first run.
    async fn session(
        &self,
        opened: Opened,
        request: OpenSession,
        prepared: Option<(Arc<Model>, HeadAndTools)>,
        servers: Option<SessionServers>,
        Ground { cwd, git_status, worktree, without }: Ground,
        host: &HostDesk,
    ) -> Result<Session, PlaceError> {
        let parts = &self.parts;
        let (model, made) = if let Some(prepared) = prepared {
            prepared
        } else {
            let (spec, files) = (opened.folded.spec.as_ref(), opened.files.as_deref());
            self.prepare(&request, spec, files, servers.as_ref())?
        };
        let head_name = store_head(&made.head, opened.files.as_ref()).await?;
        let permits = &opened.folded.permits;
        let directories = self.directories(&request, permits);
        let mode = self.mode(&request, permits.mode)?;
        let mut rights = Rights {
            gone: Arc::default(),
            mode,
            before_plan: self.before_plan(mode, permits),
            rules: Arc::new(spec::rules(&parts.rules, &request.allow, &request.deny)),
            scoped: Arc::default(),
            undecided: parts.undecided,
            trusted: parts.agent_settings.trusted,
            answers: request.answers,
        };
        permits.renew(&mut rights);
        let withheld =
            Withheld::new(&rights.rules, &request.cwd, &cwd, worktree.as_ref(), parts.home.as_deref());
        let (instructions, mut left_out) = withheld.split(&parts.instructions);
        let mut opening_note = prompt::opening_note(&prompt::Scene {
            cwd: &cwd,
            directories: &directories,
            git_branch: worktree.as_ref().map_or(parts.git_branch.as_deref(), |own| Some(&own.branch)),
            git_status: git_status.as_deref(),
            machine: &parts.machine,
            date: parts.clock.date(),
            instructions: &instructions,
        });
        if let Some(worktree) = &worktree {
            opening_note = format!("{opening_note}\n\n{}", prompt::in_worktree(worktree, without));
        }
        let equipment = equipment(parts, opened.files.as_ref(), request.checkpoints);
        let rules = Arc::clone(&rights.rules);
        let sandbox = self.service_sandbox(&request, rules, directories.clone(), Some(opened.id));
        let transcripts = vec![equipment.transcript.clone(), equipment.transcript.with_extension("")];
        let sandbox = sandbox.map(|sandbox| sandbox.showing(transcripts));
        let hooks = self.hooks(&request, opened.id, host, sandbox);
        let source = match request.start {
            Start::New { .. } => "startup",
            Start::Resume { .. } => "resume",
            Start::Fork { .. } => "fork",
        };
        let recorded = opened.folded.spec.is_some();
        if recorded {
            // Its conversation has begun already.
            left_out.clear();
        }
        let journal = start_journal(parts, opened.journal)?.branched(opened.folded.branches);
        Ok(Session {
            id: opened.id,
            journal,
            equipment,
            wire_head: Arc::new(model.dialect.head(&made.head)),
            head: Arc::new(made.head),
            head_name,
            tools: Arc::new(made.tools),
            worktree,
            cwd,
            before: opened.folded.before,
            lines: opened.folded.lines,
            unanswered: opened.folded.unanswered,
            queued: opened.folded.queued,
            directories,
            context: opened.folded.context,
            previous: opened.folded.spec.map(|spec| spec.run),
            opening_note,
            git_status,
            skills: if recorded { Vec::new() } else { parts.library.skills() },
            told_rules: Arc::clone(&rights.rules),
            instructions,
            left_out,
            rights,
            hooks,
            source,
            files: opened.files,
            // A head from the record may tell of others.
            agents: if recorded { Vec::new() } else { parts.agents.all() },
            tasks: opened.folded.tasks,
            parked: opened.folded.parked,
            servers,
            host: host.clone(),
            model,
            parts: Arc::clone(parts),
            request,
        })
    }
}

impl Place for Engine {
    fn open(&self, request: OpenSession) -> BoxFuture<'_, Result<Link, PlaceError>> {
        Box::pin(self.begin(request))
    }

    fn sessions(&self) -> BoxFuture<'_, Result<Vec<SessionSummary>, PlaceError>> {
        Box::pin(async {
            self.parts.archive.list(None).map_err(|source| PlaceError::Storage {
                path: self.parts.archive.layout().home().to_string(),
                source,
            })
        })
    }
}

/// The tools of the engine, told of these agents and skills.
pub fn own_tools(
    parts: &Parts,
    agents: &[Arc<AgentDefinition>],
    skills: &[Arc<Skill>],
    model: &Model,
    (rules, root): (&RuleSet, &Utf8Path),
) -> Vec<Arc<dyn Tool>> {
    let settings = &parts.agent_settings;
    let mut ours =
        if settings.max_depth == 0 { Vec::new() } else { agent_tools::all(agents, settings, rules) };
    let budget = skill::listing_budget(parts.skill_listing_chars, model.info.window);
    if parts.worktrees.is_some() {
        ours.extend(agent_tools::worktree::both());
    }
    let withheld = Withheld::new(rules, root, root, None, parts.home.as_deref());
    let may_tell = |skill: &&Arc<Skill>| withheld.standing(&skill.path).is_none();
    let skills: Vec<Arc<Skill>> = skills.iter().filter(may_tell).cloned().collect();
    if let Some(tool) = SkillTool::new(&skills, &parts.library, budget) {
        ours.push(Arc::new(tool));
    }
    ours
}

/// Why an agent that works in a checkout of its own does not go on in a session that has none.
fn shared(definition: &AgentDefinition, what: &str) -> PlaceError {
    PlaceError::Usage(format!(
        "the agent {} works in a checkout of its own (`isolation`), and {what} is in the shared folder; begin a new \
         session with it",
        definition.name
    ))
}

fn warning(text: &str) -> Event {
    Event::Notice { level: "warning".to_owned(), text: text.to_owned() }
}

/// What is recorded before the first run.
fn first_events(opened: &Opened) -> Vec<Event> {
    let begun = Event::SessionOpened { info: Box::new(opened.info.clone()) };
    let notices = opened.notices.iter().map(|text| warning(text));
    std::iter::once(begun).chain(opened.branched.clone()).chain(notices).collect()
}

/// A session that goes its own way works where it was asked for, wherever the one that it came from is; one that goes
/// on does so unless its shell is in a folder that is its own to work in.
fn back_home(opened: &mut Opened, request: &OpenSession, directories: &[Utf8PathBuf]) -> Option<Event> {
    let (context, cwd) = (&mut opened.folded.context, &request.cwd);
    let there = context.state().cwd.as_ref()?;
    let stays = match request.start {
        Start::Fork { .. } => there == cwd,
        Start::New { .. } | Start::Resume { .. } => {
            let mut own = directories.iter().chain([cwd]);
            own.any(|folder| there.starts_with(folder))
        }
    };
    if stays {
        return None;
    }
    let event = Event::Relocated { cwd: cwd.clone(), worktree: None, before: None };
    context.apply(&event);
    Some(event)
}

/// A session whose checkout is gone works where it was before it entered that, and says so.
fn back_out(opened: &mut Opened, before: &Utf8Path, why: &str) -> [Event; 2] {
    let event = Event::Relocated { cwd: before.to_owned(), worktree: None, before: None };
    opened.folded.context.apply(&event);
    opened.folded.before = None;
    let text = format!("{why}; the session continues where it was before it entered the worktree: {before}");
    [event, Event::Notice { level: "warning".to_owned(), text }]
}

fn start_journal(parts: &Parts, store: Box<dyn decurion_store::Journal>) -> Result<Journal, PlaceError> {
    let options = JournalOptions {
        clock: Arc::clone(&parts.clock),
        durability: parts.durability,
        last_seq: store.last_seq(),
        give_up_after: parts.journal_patience,
        retry_every: journal::RETRY_EVERY,
        here: parts.journal_here,
    };
    Journal::start(store, options)
        .map_err(|source| PlaceError::Storage { path: "the journal's thread".to_owned(), source })
}

/// Stores a head under the name of what it holds.
async fn store_head(
    head: &decurion_model::Head,
    files: Option<&Arc<SessionFiles>>,
) -> Result<String, PlaceError> {
    let bytes = serde_json::to_vec(head).map_err(|error| PlaceError::Usage(error.to_string()))?;
    let name = spec::head_name(&bytes);
    if let Some(files) = files {
        let failed = |source| PlaceError::Storage { path: files.path().to_string(), source };
        put_head(files, &name, bytes).await.map_err(failed)?;
    }
    Ok(name)
}

/// Stores a head under its name; where that waits for the device, on a thread for such work.
pub async fn put_head(files: &Arc<SessionFiles>, name: &str, head: Vec<u8>) -> std::io::Result<()> {
    if !files.is_synced() {
        return files.put_head(name, &head);
    }
    let (files, name) = (Arc::clone(files), name.to_owned());
    tokio::task::spawn_blocking(move || files.put_head(&name, &head)).await.map_err(std::io::Error::other)?
}

fn equipment(parts: &Parts, files: Option<&Arc<SessionFiles>>, checkpoints: bool) -> Arc<Equipment> {
    let keeper = checkpoint::Keeper { files: files.cloned(), limits: Arc::clone(&parts.tool_limits) };
    let spill_into = Arc::new(SpillInto {
        files: files.cloned(),
        limit: parts.tool_limits.spill_bytes,
        redact: Arc::clone(&parts.redact),
    });
    Arc::new(Equipment {
        processes: parts.processes.clone(),
        sandbox: parts.sandbox.clone(),
        egress: parts.egress.clone(),
        denied_hosts: parts.denied_hosts.clone(),
        environment: Arc::clone(&parts.environment),
        spill: Arc::clone(&spill_into) as Arc<dyn decurion_tools::Spill>,
        spill_into,
        transcript: files.map(|files| files.path().with_extension("jsonl")).unwrap_or_default(),
        limits: Arc::clone(&parts.tool_limits),
        http: Http::default(),
        home: parts.home.clone(),
        user_files: Arc::clone(&parts.user_files),
        redact: Arc::clone(&parts.redact),
        result_chars: parts.agent_settings.result_chars,
        checkpoints: checkpoints.then_some(keeper),
    })
}
