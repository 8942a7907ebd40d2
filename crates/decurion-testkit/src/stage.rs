//! An engine on a stage. Takes a script for the model and a prompt, plays it through the real loop with two
//! plain tools and a real journal, gives the log a person would tell and everything else there is to audit.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_engine::permission::Undecided;
use decurion_engine::{
    AgentSettings, Audit, Compaction, Definitions, Durability, Engine, Instructions, Library, Model, Models,
    NoAudit, NoLibrary, NoSettings, Parts, Settings,
};
use decurion_model::catalog::{ModelInfo, Price};
use decurion_model::script::Script;
use decurion_model::script_provider::ScriptedProvider;
use decurion_model::{
    BoxStream, Dialect, Gateway, GatewaySettings, Head, ModelError, ModelEvent, ModelProvider, ModelRequest,
};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentDefinition, AgentSource, Answer, Block, Clock, Command, Envelope, Event, Intent, Limits, Link, Mode,
    OpenSession, Origin, Outcome, Persistence, Place as _, PlaceError, Request, RequestId, Role, RuleSet,
    SessionId, Start, ToolEffect, ToolOutput, ToolSelection,
};
use decurion_store::Archive;
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolLimits, ToolSet, ToolSpec};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};

/// Where scripts are played.
pub struct Stage {
    folder: tempfile::TempDir,
    script: String,
    /// In which dialect the model speaks.
    pub dialect: Dialect,
    /// How the session is opened; change what a test is about.
    pub request: OpenSession,
    /// The rules of the settings.
    pub rules: RuleSet,
    pub info: ModelInfo,
    /// When conversations are shortened.
    pub compaction: Compaction,
    /// Tools besides the two plain ones.
    pub tools: Vec<Arc<dyn Tool>>,
    /// How questions are answered; none means nobody is there.
    pub answer: Option<Answer>,
    /// Where rules are kept that are to outlast the session.
    pub settings: Arc<dyn Settings>,
    /// Where permission decisions are recorded.
    pub audit: Arc<dyn Audit>,
    /// Whether `bypassPermissions` is available.
    pub bypass: bool,
    /// What `dontAsk` does with what no rule decides.
    pub undecided: Undecided,
    /// How long a question waits.
    pub answer_timeout: Option<Duration>,
    /// The agents that can be started.
    pub agents: Vec<Arc<AgentDefinition>>,
    /// Where definitions come from instead.
    pub definitions: Option<Arc<dyn Definitions>>,
    /// What the settings say about them.
    pub agent_settings: AgentSettings,
    /// The hooks of the settings.
    pub hooks: Vec<decurion_protocol::HookDeclaration>,
    /// The hooks that every definition declares for its own agents.
    pub agent_hooks: Vec<decurion_protocol::HookDeclaration>,
    /// Texts that instruct every agent.
    pub instructions: Vec<Instructions>,
    /// What agents read besides.
    pub library: Arc<dyn Library>,
    /// Names that are models of their own; any other name is the one model there is.
    pub models: Vec<String>,
    /// What some of them cost; the others cost what the facts say.
    pub prices: HashMap<String, Price>,
    /// How many tokens a reply may be.
    pub max_output: u64,
    /// Names that no provider knows.
    pub unknown_models: Vec<String>,
    /// Whether the journal is written without a thread, so that simulated time waits for it.
    pub journal_here: bool,
    pub processes: Option<decurion_exec::Guard>,
    /// What commands are kept from by the kernel.
    pub sandbox: Option<Arc<decurion_engine::sandbox::SandboxMaker>>,
    /// Their way to the network.
    pub egress: Option<Arc<decurion_engine::egress::Egress>>,
    /// Who makes checkouts of their own.
    pub worktrees: Option<decurion_engine::worktree::Worktrees>,
    pub mcp: Option<decurion_engine::mcp::McpParts>,
    /// Where dates and times come from.
    pub clock: Arc<dyn Clock>,
    /// What stands between the engine and the scripted provider, if anything.
    pub between: Option<Between>,
    /// What takes secrets out of texts.
    pub redact: decurion_engine::Redact,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// Makes a provider of a provider, to let it fail in its own way.
pub type Between = Arc<dyn Fn(Arc<dyn ModelProvider>) -> Arc<dyn ModelProvider> + Send + Sync>;

/// What a play left behind.
pub struct Played {
    /// Every event that was published, in order.
    pub events: Vec<Arc<Envelope>>,
    pub outcome: Outcome,
    pub session: SessionId,
}

/// The name of the state folder: the one that users have, since names of folders decide about rights.
const HOME: &str = ".decurion";

impl Stage {
    /// A stage for this script, in Anthropic's dialect, in the default mode with the two plain tools allowed.
    pub fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let cwd = Utf8PathBuf::from_path_buf(folder.path().join("work"))
            .unwrap_or_else(|path| panic!("not UTF-8: {}", path.display()));
        std::fs::create_dir(&cwd).unwrap_or_else(|error| panic!("{cwd}: {error}"));
        let rule = |text| decurion_protocol::Rule::parse(text, Default::default());
        let allow = ["Echo", "Poke"].into_iter().filter_map(|name| rule(name).ok()).collect();
        Self {
            folder,
            script: script.to_owned(),
            dialect: Dialect::Anthropic,
            request: request(cwd),
            rules: RuleSet { allow, ..RuleSet::default() },
            info: ModelInfo {
                name: "scripted".into(),
                window: 200_000,
                max_output: 8_000,
                price: Some(Price {
                    input: 1_000,
                    output: 5_000,
                    cache_read: 100,
                    cache_write: 1_250,
                    cache_write_hour: 2_000,
                }),
            },
            compaction: Compaction::default(),
            tools: Vec::new(),
            answer: None,
            settings: Arc::new(NoSettings),
            audit: Arc::new(NoAudit),
            bypass: true,
            undecided: Undecided::Allow,
            answer_timeout: None,
            agents: vec![Arc::new(worker())],
            definitions: None,
            // Stages without agents keep the tools they always had.
            agent_settings: AgentSettings { max_depth: 0, ..AgentSettings::default() },
            hooks: Vec::new(),
            agent_hooks: Vec::new(),
            instructions: Vec::new(),
            library: Arc::new(NoLibrary),
            models: Vec::new(),
            prices: HashMap::new(),
            max_output: 4_000,
            unknown_models: Vec::new(),
            journal_here: true,
            processes: None,
            sandbox: None,
            egress: None,
            worktrees: None,
            mcp: None,
            clock: Arc::new(CountingClock::default()),
            between: None,
            redact: Arc::new(|_: &str| None),
            sent: Arc::default(),
        }
    }

    /// The same stage on a copy of what is on the disk right now: all that a crash at this moment leaves.
    #[must_use]
    pub fn after_crash(&self, script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        copy(&self.folder.path().join(HOME), &folder.path().join(HOME));
        Self {
            folder,
            script: script.to_owned(),
            request: self.request.clone(),
            rules: self.rules.clone(),
            info: self.info.clone(),
            tools: self.tools.clone(),
            answer: self.answer.clone(),
            agents: self.agents.clone(),
            agent_settings: self.agent_settings.clone(),
            library: Arc::clone(&self.library),
            ..Self::new(script)
        }
    }

    /// The same stage with the built-in tools, of which those that read and write files are allowed.
    #[must_use]
    pub fn with_files(mut self) -> Self {
        self.tools.extend(decurion_tools::builtin_with(true));
        let rule = |text| decurion_protocol::Rule::parse(text, Default::default());
        let allowed = ["Read", "Write", "Edit", "NotebookEdit"].into_iter();
        self.rules.allow.extend(allowed.filter_map(|name| rule(name).ok()));
        self
    }

    /// The same stage with another script, for a session that goes on.
    #[must_use]
    pub fn resuming(mut self, script: &str) -> Self {
        script.clone_into(&mut self.script);
        self
    }

    /// The same with the records up to this number only: what a crash right after it would have left.
    #[must_use]
    pub fn after_crash_at(&self, seq: u64) -> Self {
        let stage = self.after_crash(&self.script);
        cut(&stage.folder.path().join(HOME), seq);
        stage
    }

    /// Takes the records after this number away, here: what a crash right after it would have left of them.
    pub fn forget_after(&self, seq: u64) {
        cut(&self.folder.path().join(HOME), seq);
    }

    /// Everything on record of a session, in order.
    pub fn recorded(&self, session: SessionId) -> Vec<Envelope> {
        crate::faults::ledger::events(&self.archive(), session)
            .unwrap_or_else(|error| panic!("the record: {error}"))
    }

    /// The archive of everything played here.
    pub fn archive(&self) -> Archive {
        Archive::new(self.home())
    }

    fn home(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.folder.path().join(HOME)).unwrap_or_default()
    }

    /// The bodies of all requests so far, in order.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where definitions come from.
    fn definitions(&self) -> Arc<dyn Definitions> {
        match &self.definitions {
            Some(definitions) => Arc::clone(definitions),
            None => Arc::new(Fixed { agents: self.agents.clone(), hooks: self.agent_hooks.clone() }),
        }
    }

    /// The engine of this stage.
    pub fn engine(&self) -> Engine {
        let script = Script::parse(&self.script).unwrap_or_else(|error| panic!("the script: {error}"));
        let gateway = |dialect: Dialect| {
            let inner = ScriptedProvider::speaking(dialect, script.clone());
            let provider: Arc<dyn ModelProvider> = Arc::new(Recorder { inner, sent: Arc::clone(&self.sent) });
            let provider = self.between.as_ref().map_or(Arc::clone(&provider), |between| between(provider));
            Arc::new(Gateway::new(provider, GatewaySettings::default()))
        };
        let (usual, chat) = (gateway(self.dialect), gateway(Dialect::OpenAiChat));
        let model = |name: &str| {
            let gateway = if name.starts_with(CHAT) { &chat } else { &usual };
            let price = self.prices.get(name).copied().or(self.info.price).filter(|_| name != UNPRICED);
            Arc::new(Model {
                name: name.into(),
                id: name.into(),
                dialect: gateway.dialect(),
                gateway: Arc::clone(gateway),
                info: ModelInfo { price, ..self.info.clone() },
                head: Head { model: name.into(), max_output_tokens: self.max_output, ..Head::default() },
            })
        };
        let models = Cast {
            usual: model("scripted"),
            others: self.models.iter().map(|name| model(name)).collect(),
            unknown: self.unknown_models.clone(),
        };
        let plain: [Arc<dyn Tool>; 2] = [Arc::new(Plain::echo()), Arc::new(Plain::poke())];
        Engine::new(Parts {
            models: Arc::new(models),
            tools: Arc::new(ToolSet::new(plain.into_iter().chain(self.tools.iter().cloned()))),
            archive: Arc::new(self.archive()),
            clock: Arc::clone(&self.clock),
            mcp: self.mcp.clone(),
            agents: self.definitions(),
            agent_settings: self.agent_settings.clone(),
            library: Arc::clone(&self.library),
            skill_listing_chars: None,
            background_wait: Duration::from_secs(600),
            processes: self.processes.clone(),
            sandbox: self.sandbox.clone(),
            egress: self.egress.clone(),
            denied_hosts: Vec::new(),
            environment: Arc::from([]),
            tool_limits: Arc::new(ToolLimits::default()),
            rules: self.rules.clone(),
            settings: Arc::clone(&self.settings),
            audit: Arc::clone(&self.audit),
            mode: Mode::Default,
            bypass: self.bypass,
            undecided: self.undecided,
            answer_timeout: self.answer_timeout,
            home: None,
            user_files: Arc::default(),
            directories: Vec::new(),
            git_branch: None,
            foreign: Vec::new(),
            instructions: self.instructions.clone(),
            machine: "a stage".into(),
            durability: Durability::Process,
            journal_patience: Some(Duration::from_secs(5)),
            journal_here: self.journal_here,
            compaction: self.compaction,
            hooks: self.hooks.clone(),
            hook_environment: Arc::from([]),
            redact: Arc::clone(&self.redact),
            worktrees: self.worktrees.clone(),
            version: "0".into(),
        })
    }

    /// Plays one prompt in a new or resumed session and closes it.
    pub async fn play(&self, prompt: &str) -> Played {
        self.play_all(self.request.clone(), &[prompt]).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Plays several prompts one after another in the session of this request.
    pub async fn play_all(&self, request: OpenSession, prompts: &[&str]) -> Result<Played, PlaceError> {
        let mut link = self.engine().open(request).await?;
        let mut events = Vec::new();
        let mut outcome = Outcome::Lost;
        for (index, prompt) in prompts.iter().enumerate() {
            let command = Command::Prompt { blocks: vec![Block::text(*prompt)] };
            send(&link, index as u64, command).await;
            outcome = self.listen(&mut link, &mut events).await;
        }
        send(&link, u64::MAX - 1, Command::Finish).await;
        while let Some(envelope) = link.events.next().await {
            let closed =
                matches!(&envelope.event, Event::Replied { request, .. } if request.0 == u64::MAX - 1);
            events.push(envelope);
            if closed {
                break;
            }
        }
        Ok(Played { events, outcome, session: link.session })
    }

    /// Reads events until a run ends, answering questions on the way.
    pub async fn listen(&self, link: &mut Link, events: &mut Vec<Arc<Envelope>>) -> Outcome {
        while let Some(envelope) = link.events.next().await {
            events.push(Arc::clone(&envelope));
            match &envelope.event {
                Event::RunEnded { outcome, .. } if envelope.agent.is_none() => return outcome.clone(),
                Event::Asked { question } => {
                    if let Some(answer) = &self.answer {
                        let command = Command::Answer {
                            question: question.id,
                            answer: answer.clone(),
                            updates: Vec::new(),
                            by: "test".into(),
                        };
                        send(link, 1_000_000, command).await;
                    }
                }
                _ => {}
            }
        }
        Outcome::Lost
    }

    /// Plays a prompt and gives the log of it.
    pub async fn log(&self, prompt: &str) -> String {
        render(&self.play(prompt).await.events)
    }
}

pub async fn send(link: &Link, id: u64, command: Command) {
    // A session that is gone shows itself by the end of its events.
    let _ = link.commands.send(Request { id: RequestId(id), command }).await;
}

/// Plays a script and compares the log.
pub async fn check(script: &str, expected: &expect_test::Expect) {
    expected.assert_eq(&Stage::new(script).log("go").await);
}

/// Copies a folder with everything in it; links stay links.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    let check =
        |result: std::io::Result<()>| result.unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    check(std::fs::create_dir_all(to));
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_symlink() {
            check(std::fs::read_link(&path).and_then(|link| std::os::unix::fs::symlink(link, &target)));
        } else if path.is_dir() {
            copy(&path, &target);
        } else {
            check(std::fs::copy(&path, &target).map(drop));
        }
    }
}

/// Takes the lines of later records out of all transcripts in a folder.
fn cut(folder: &std::path::Path, seq: u64) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            cut(&path, seq);
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let is_early = |line: &&str| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
                line["seq"].as_u64().is_none_or(|number| number <= seq)
            };
            let kept: String = text.lines().filter(is_early).flat_map(|line| [line, "\n"]).collect();
            std::fs::write(&path, kept).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

fn request(cwd: Utf8PathBuf) -> OpenSession {
    OpenSession {
        start: Start::New { id: None },
        cwd,
        worktree: None,
        directories: Vec::new(),
        definition: AgentDefinition {
            name: "main".into(),
            description: "on a stage".into(),
            prompt: "You are on a stage.".into(),
            tools: ToolSelection::default(),
            model: None,
            mode: None,
            limits: Limits::default(),
            source: AgentSource::Builtin,
            ..AgentDefinition::default()
        },
        system: None,
        append_system: None,
        model: None,
        thinking: None,
        effort: None,
        fallback_model: None,
        mode: None,
        allow: Vec::new(),
        deny: Vec::new(),
        tools: ToolSelection::default(),
        limits: Limits::default(),
        output_schema: None,
        answers: false,
        permission_tool: None,
        checkpoints: false,
        bypass: false,
        persistence: Persistence::Required,
        entrypoint: "test".into(),
    }
}

/// The log of events as a person would tell it: what was said, called, answered, refused, and how it ended.
/// Agents and shells are numbered in the order they were begun, and their lines are moved in.
pub fn render(events: &[Arc<Envelope>]) -> String {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut log = String::new();
    for envelope in events {
        if let Event::TaskOpened { record } = &envelope.event {
            let id = record.task.to_string();
            if !names.iter().any(|(known, _)| *known == id) {
                names.push((id, format!("#{}", names.len() + 1)));
            }
        }
        let Some(lines) = line(&envelope.event) else { continue };
        let before = envelope.agent.as_ref().map_or_else(String::new, |agent| format!("    {agent} "));
        for line in lines.lines() {
            log.push_str(&format!("{before}{line}\n"));
        }
    }
    names.iter().fold(log, |log, (id, name)| log.replace(id, name))
}

fn line(event: &Event) -> Option<String> {
    Some(match event {
        Event::Message { message, meta, .. } if message.role == Role::User => match &meta.origin {
            Origin::Prompt => format!("user   {:?}\n", message.text()),
            Origin::Note(kind) if kind == "context" => return None,
            Origin::Note(kind) if kind == "notification" => {
                let told = |block: &Block| match block {
                    Block::Text { text } => format!("told   {}\n", told_of(text)),
                    _ => String::new(),
                };
                message.blocks.iter().map(told).collect()
            }
            Origin::Shell => format!("shell  {:?}\n", message.text()),
            origin => format!("note   {:?} {origin:?}\n", message.text()),
        },
        Event::Message { message, meta, .. } => {
            let who = if meta.origin == Origin::Synthetic { "error" } else { "model" };
            message.blocks.iter().map(|block| format!("{who}  {}\n", told(block))).collect()
        }
        Event::CallStarted { call: _, tool, decision, .. } => {
            format!("start  {tool} ({})\n", decision.rule.as_deref().unwrap_or("no rule"))
        }
        Event::CallRefused { tool, decision, .. } => format!("refuse {tool}: {}\n", decision.reason),
        Event::CallEnded { output, .. } => {
            let mark = if output.is_error { "✗" } else { "→" };
            format!("{mark}      {:?}\n", short(&output.content.text()))
        }
        Event::Asked { question } => format!("ask    {}: {}\n", question.tool, question.reason),
        Event::Answered { by, .. } => format!("answer by {by}\n"),
        Event::Compacted { trigger, kept, .. } => format!("compact {trigger}, {} kept\n", kept.len()),
        // Every request begins so.
        Event::Waiting { reason: Some(decurion_protocol::WaitReason::Model) } => return None,
        Event::Waiting { reason: Some(reason) } => format!("wait   {}\n", waited(reason)),
        Event::Notice { text, .. } => format!("notice {text}\n"),
        Event::TaskOpened { record } => {
            format!("begin  {} {} {:?}\n", record.task, record.kind.word(), record.attention)
        }
        Event::TaskChanged { task, state } => format!("task   {task} {}\n", short(&format!("{state:?}"))),
        Event::Charged { charge } => {
            format!("charge {:?} {} tokens\n", charge.kind, charge.usage.context_tokens())
        }
        Event::Rebudgeted { task, limits } => format!("budget {task} {}\n", limited(limits)),
        Event::ShellBegun { shell } => format!("$      {}\n", shell.command),
        Event::ShellEnded { shell } => {
            let ending = shell.ending.clone().unwrap_or_default();
            let (code, remark) = (ending.exit_code, ending.remark.unwrap_or_default());
            let line = format!("$ end  {:?} {code:?} {}", short(&ending.output), short(&remark));
            format!("{}\n", line.trim_end())
        }
        Event::Mailed { mail } => format!("mail   {:?}\n", mail.text),
        Event::RunEnded { outcome, .. } => format!("end    {}\n", ended(outcome)),
        _ => return None,
    })
}

/// The limits that there are.
fn limited(limits: &Limits) -> String {
    let all = serde_json::to_value(limits).unwrap_or_default();
    let given = all.as_object().into_iter().flatten().filter(|(_, limit)| !limit.is_null());
    given.map(|(name, limit)| format!("{name}={limit}")).collect::<Vec<_>>().join(" ")
}

/// The task, the status and the result of a notification.
fn told_of(text: &str) -> String {
    let element = |name: &str| {
        let from = text.find(&format!("<{name}>"))? + name.len() + 2;
        let to = text[from..].find(&format!("</{name}>"))? + from;
        Some(&text[from..to])
    };
    match (element("task-id"), element("status")) {
        (Some(task), Some(status)) => {
            format!(
                "{task} {status} {:?}",
                element("result").or_else(|| element("summary")).unwrap_or_default()
            )
        }
        _ => format!("{:?}", short(text)),
    }
}

fn told(block: &Block) -> String {
    match block {
        Block::Text { text } => format!("{:?}", short(text)),
        Block::ToolUse { name, input, .. } => format!("calls {name} {input}"),
        Block::Thinking { thinking, .. } => format!("thinks {:?}", short(thinking)),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

fn waited(reason: &decurion_protocol::WaitReason) -> String {
    match reason {
        decurion_protocol::WaitReason::Retry { attempt, of, status, .. } => {
            format!("try {attempt} of {of:?} after status {status:?}")
        }
        decurion_protocol::WaitReason::Permission { .. } => "for an answer".to_owned(),
        other => format!("{other:?}"),
    }
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed { report, limit: None } => format!("completed {:?}", short(report)),
        other => short(&serde_json::to_string(other).unwrap_or_default()),
    }
}

/// A text that fits a line of the log, without the ids that differ from run to run.
fn short(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.find("(request id req_") {
        let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "(request id)");
    }
    if text.chars().count() <= 200 { text } else { text.chars().take(200).chain(['…']).collect() }
}

/// A provider that keeps what it is sent.
struct Recorder {
    inner: ScriptedProvider,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ModelProvider for Recorder {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        let body = request.segments().concat();
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        self.inner.stream(request)
    }
}

/// What the names of models begin with that speak like OpenAI's, among [`Stage::models`].
pub const CHAT: &str = "chat/";
/// The name of a model that has no price, among [`Stage::models`].
pub const UNPRICED: &str = "unpriced";

struct Cast {
    usual: Arc<Model>,
    others: Vec<Arc<Model>>,
    unknown: Vec<String>,
}

impl Models for Cast {
    fn resolve(&self, name: &str) -> Result<Arc<Model>, String> {
        if self.unknown.iter().any(|unknown| unknown == name) {
            return Err(format!("no provider knows this model: {name}"));
        }
        let other = self.others.iter().find(|model| model.name == name);
        Ok(Arc::clone(other.unwrap_or(&self.usual)))
    }

    fn sibling(&self, of: &Model, id: &str) -> ModelInfo {
        self.resolve(id).map_or_else(|_| of.info.clone(), |model| model.info.clone())
    }

    fn default_name(&self) -> String {
        "scripted".into()
    }
}

struct Fixed {
    agents: Vec<Arc<AgentDefinition>>,
    hooks: Vec<decurion_protocol::HookDeclaration>,
}

impl Definitions for Fixed {
    fn all(&self) -> Vec<Arc<AgentDefinition>> {
        self.agents.clone()
    }

    fn hooks_of(&self, definition: &AgentDefinition) -> Vec<decurion_protocol::HookDeclaration> {
        // The main agent is not one of them.
        if definition.name == "main" { Vec::new() } else { self.hooks.clone() }
    }
}

/// A plain agent that may use what its parent may.
fn worker() -> AgentDefinition {
    AgentDefinition {
        name: "worker".into(),
        description: "does a part of the work".into(),
        prompt: "You do a part of the work.".into(),
        ..AgentDefinition::default()
    }
}

/// A clock that moves a millisecond each time it is asked: no run takes no time, and none takes another.
#[derive(Default)]
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn date(&self) -> Timestamp {
        let passed = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp::from_millisecond(1_800_000_000_000 + i64::try_from(passed).unwrap_or(0))
            .unwrap_or_default()
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A tool without surprises: says what it is told to.
pub struct Plain {
    spec: ToolSpec,
    together: bool,
}

impl Plain {
    /// A tool of this name that gives back its text and has effects.
    pub fn named(name: &str) -> Self {
        Self { spec: spec(name), together: false }
    }

    /// Gives back its text; may run beside others.
    pub fn echo() -> Self {
        Self { spec: spec("Echo"), together: true }
    }

    /// The same, with effects: runs alone.
    pub fn poke() -> Self {
        Self { spec: spec("Poke"), together: false }
    }
}

fn spec(name: &str) -> ToolSpec {
    ToolSpec {
        name: name.to_owned(),
        description: format!("{name} gives back its text; fails or panics if that says so."),
        input_schema: json!({
            "type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"],
            "additionalProperties": false,
        }),
    }
}

impl Tool for Plain {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        if !input["text"].is_string() {
            return Err(InputError::new(&*self.spec.name, "the required field `text` is missing"));
        }
        let intent = Intent::titled(format!("{} {}", self.spec.name, input["text"]));
        Ok(if self.together { intent.together() } else { intent })
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let text = input["text"].as_str().unwrap_or_default();
            match text {
                "fail" => ToolOutput::error("failed as asked"),
                "panic" => panic!("as asked"),
                "hang" => {
                    cx.cancel.cancelled().await;
                    ToolOutput::error("interrupted")
                }
                _ if text.starts_with("see ") => ToolOutput::text(text).with_effect(ToolEffect::Saw {
                    path: text.trim_start_matches("see ").into(),
                    hash: "00".into(),
                }),
                _ => ToolOutput::text(text),
            }
        })
    }
}
