//! Settings into an engine. Takes what was loaded, gives a place where sessions can be opened.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_config::{
    Environment, Keeper, Loaded, Paths, Plugins, Redactor, Secret, TrustState, settings, shell_env,
};
use decurion_engine::child::{AgentSettings, BackgroundChoice};
use decurion_engine::egress::{Egress, HostSettings, Secrets};
use decurion_engine::mcp::McpParts;
use decurion_engine::permission::{Undecided, UserFiles};
use decurion_engine::sandbox::SandboxMaker;
use decurion_engine::worktree::{WorktreeSettings, Worktrees};
use decurion_engine::{
    Audit, Compaction, Definitions, Durability, Engine, Kept, Library, Models, NoAudit, Parts, Settings,
};
use decurion_exec::{Form, Git, Guard, GuardNetwork, GuardProgram, concealment};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AuditEntry, HookDeclaration, PermissionUpdate};
use decurion_store::{Archive, AuditLog, Leases};
use decurion_tools::{ToolLimits, ToolSet};

use crate::clock::SystemClock;
use crate::report::Failure;
use crate::{args, instructions};

/// Version of the program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How many agents run at once, unless the settings say.
const MOST_RUNNING: u32 = 128;
/// How long a headless run waits for a disk that refuses.
const JOURNAL_PATIENCE: Duration = Duration::from_secs(600);

/// The working directory and the environment, captured once.
pub fn surroundings() -> Result<(Utf8PathBuf, Environment), Failure> {
    Ok((decurion_config::current_directory()?, Environment::capture()))
}

/// Hides what this process was started with and commands are not given: variables that the settings take keys from, and
/// secrets among the words. What is written on the command line as JSON may hold any.
fn conceal(loaded: &Loaded) {
    concealment::hide_variables(&|name, value| {
        shell_env::is_withheld(name, value, &loaded.settings, &loaded.providers)
    });
    concealment::hide_words(loaded.secrets().map(|secret| secret.expose().as_bytes()));
    conceal_json();
}

/// Hides the words of the command line that are JSON.
pub fn conceal_json() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let json = words.iter().filter_map(|word| {
        let bytes = word.as_encoded_bytes();
        bytes.iter().position(|byte| *byte == b'{').map(|at| &bytes[at..])
    });
    concealment::hide_words(json);
}

pub fn state(paths: &Paths) -> Result<Utf8PathBuf, Failure> {
    let no_home = || {
        Failure::usage("no state folder: no home folder is known")
            .hint("set HOME, or DECURION_HOME to a folder")
    };
    paths.state.clone().ok_or_else(no_home)
}

/// What an engine is given besides the settings.
pub struct Given {
    pub models: Arc<dyn Models>,
    /// The agents that can be started.
    pub agents: Arc<dyn Definitions>,
    pub mcp: Option<McpParts>,
    /// What agents read besides.
    pub library: Arc<dyn Library>,
    /// The hooks of the settings, of plugins and of a host.
    pub hooks: Vec<HookDeclaration>,
    /// What `dontAsk` does with what no rule decides.
    pub undecided: Undecided,
}

/// The engine of these settings.
pub fn engine(loaded: &Arc<Loaded>, environment: &Environment, given: Given) -> Engine {
    conceal(loaded);
    let Given { models, agents, mcp, library, hooks, undecided } = given;
    let settings = &loaded.settings;
    let shell = shell_environment(loaded, environment);
    let service = decurion_config::shell_env::service_environment(environment, settings, &loaded.providers)
        .into_pairs();
    let redactor = redactor(loaded);
    let processes = guard();
    let sandbox = sandbox(loaded, environment);
    if let Some(maker) = &sandbox {
        maker.look_after_killed(&loaded.paths.cwd);
        maker.remove_abandoned(&loaded.paths.cwd, || crate::command::sandbox::policy(loaded, Some(maker)));
    }
    let egress = sandbox
        .as_ref()
        .zip(processes.as_ref())
        .and_then(|(maker, guard)| connect(loaded, maker, guard, environment));
    Engine::new(Parts {
        models,
        worktrees: worktrees(loaded, environment, processes.clone()),
        tools: Arc::new(ToolSet::new(decurion_tools::builtin_with(settings.background_tasks))),
        mcp,
        agents,
        agent_settings: agent_settings(loaded),
        library,
        skill_listing_chars: settings.skill_listing_chars,
        background_wait: settings.print_background_wait,
        archive: Arc::new(Archive::new(state_folder(loaded))),
        clock: Arc::new(SystemClock::new()),
        processes,
        sandbox,
        egress,
        denied_hosts: settings.sandbox.denied_hosts.clone(),
        environment: shell,
        tool_limits: Arc::new(tool_limits(&settings.limits)),
        rules: loaded.rules.set.clone(),
        settings: Arc::new(SettingsFiles(Keeper::new(loaded))),
        audit: audit(loaded),
        mode: settings.permissions.default_mode,
        bypass: !settings.permissions.disable_bypass,
        undecided,
        answer_timeout: settings.permissions.answer_timeout,
        home: loaded.paths.home.clone(),
        user_files: user_files(loaded),
        directories: settings.permissions.additional_directories.clone(),
        git_branch: instructions::git_branch(&loaded.paths.cwd),
        foreign: loaded.paths.shared.iter().cloned().collect(),
        instructions: instructions::load(loaded),
        machine: format!("Platform: {}, shell: bash", std::env::consts::OS),
        durability: match settings.durability {
            settings::Durability::Process => Durability::Process,
            settings::Durability::Power => Durability::Power,
        },
        journal_patience: Some(JOURNAL_PATIENCE),
        journal_here: false,
        compaction: compaction(settings.compaction),
        hooks,
        hook_environment: service.into(),
        redact: Arc::new(move |text: &str| match redactor.redact(text) {
            std::borrow::Cow::Borrowed(_) => None,
            std::borrow::Cow::Owned(clean) => Some(clean),
        }),
        version: VERSION.to_owned(),
    })
}

/// How commands are sandboxed; the error is why they are not.
pub fn sandbox_form(loaded: &Loaded) -> Result<Form, String> {
    if !loaded.settings.sandbox.enabled {
        return Err("switched off in the settings".to_owned());
    }
    decurion_exec::sandbox::probe()
}

/// The same for people: the form, or "none".
pub fn sandbox_name(loaded: &Loaded) -> String {
    match sandbox_form(loaded) {
        Ok(form) => form.name().to_owned(),
        Err(_) if loaded.settings.sandbox.enabled => "none".to_owned(),
        Err(_) => "off".to_owned(),
    }
}

/// Tells the guard how commands are sandboxed. Gives their way to the network, if they do not have the machine's.
pub fn connect(
    loaded: &Loaded,
    maker: &SandboxMaker,
    guard: &Guard,
    environment: &Environment,
) -> Option<Arc<Egress>> {
    let settings = &loaded.settings.sandbox;
    guard.force_form(maker.settings().form);
    if settings.network_open {
        guard.set_network(GuardNetwork::Open);
        return None;
    }
    let egress = Arc::new(Egress::new(host_settings(loaded), masked(loaded, maker, environment)));
    let serving = Arc::clone(&egress);
    guard.set_network(GuardNetwork::Proxied(Box::new(move |listener| serving.serve(listener))));
    Some(egress)
}

/// The hosts of the settings, and of the repository's remotes as they are now: before any command could write the file
/// that names them.
fn host_settings(loaded: &Loaded) -> HostSettings {
    let settings = &loaded.settings.sandbox;
    let root = Some(&loaded.paths.cwd).filter(|_| loaded.trust.is_trusted());
    HostSettings {
        allowed: settings.allowed_hosts.clone(),
        denied: settings.denied_hosts.clone(),
        remotes: root.map(|root| decurion_engine::egress::remote_hosts(root)).unwrap_or_default(),
    }
}

/// The hosts that commands reach without a question, each with what lists it.
pub fn listed_hosts(loaded: &Loaded) -> Vec<(String, String)> {
    let secrets = secrets(loaded).into_iter().flat_map(|secret| secret.hosts);
    let secrets = secrets.map(|host| (host, "the setting secrets".to_owned()));
    Egress::new(host_settings(loaded), None).hosts(&loaded.rules.set).into_iter().chain(secrets).collect()
}

/// The secrets that commands can use and not read.
pub fn secrets(loaded: &Loaded) -> Vec<decurion_engine::egress::Secret> {
    let usable = |secret: &decurion_config::MaskedSecret| {
        Some(decurion_engine::egress::Secret {
            name: secret.name.clone(),
            value: secret.value.as_ref()?.expose().to_owned(),
            hosts: secret.hosts.clone(),
        })
    };
    loaded.settings.secrets.iter().filter_map(usable).collect()
}

fn masked(loaded: &Loaded, maker: &SandboxMaker, environment: &Environment) -> Option<Secrets> {
    let secrets = secrets(loaded);
    // Without their own network commands reach no proxy that would replace the placeholders.
    if secrets.is_empty() || maker.settings().form != Form::Namespaces {
        return None;
    }
    let now = decurion_protocol::Clock::date(&SystemClock::new()).into();
    let shell = shell_environment(loaded, environment);
    let masked = Secrets::new(secrets, now, &maker.settings().temporary, &shell);
    masked.inspect_err(|error| crate::report::note(format!("commands have no secrets: {error}"))).ok()
}

/// What programs of the user run or read, because variables name it.
pub fn user_files(loaded: &Loaded) -> Arc<UserFiles> {
    let moved = &loaded.paths.moved;
    Arc::new(UserFiles { git: moved.git.clone(), files: moved.files.clone(), folders: moved.folders.clone() })
}

/// What cuts secrets out of text; masked ones also where they are encoded.
fn redactor(loaded: &Loaded) -> Redactor {
    let spelled =
        secrets(loaded).into_iter().flat_map(|secret| decurion_engine::egress::spellings(&secret.value));
    let spelled: Vec<Secret> = spelled.map(Secret::new).collect();
    Redactor::new(loaded.secrets().chain(&spelled), loaded.settings.redact_secrets)
}

/// The sandbox of commands; none where it is off or the system has none.
pub fn sandbox(loaded: &Loaded, environment: &Environment) -> Option<Arc<SandboxMaker>> {
    let form = sandbox_form(loaded).ok()?;
    let (settings, paths) = (&loaded.settings.sandbox, &loaded.paths);
    let readable = |path: &Utf8PathBuf| !settings.readable.contains(path);
    let secrets = decurion_config::sandbox::secrets(paths).into_iter().filter(readable);
    let mut visible = decurion_config::sandbox::programs(paths, environment);
    visible.extend(settings.readable.iter().cloned());
    Some(Arc::new(SandboxMaker::new(decurion_engine::sandbox::SandboxSettings {
        form,
        asks_less: settings.asks_less,
        allows_outside: settings.allows_outside,
        excluded: settings.excluded.clone(),
        writable: settings.writable.clone(),
        hidden: secrets.collect(),
        personal: decurion_config::sandbox::personal(paths),
        visible,
        temporary: decurion_config::sandbox::temporary(environment),
        network_open: settings.network_open,
        unix_sockets: settings.unix_sockets,
        own: paths.state.clone().map(|folder| {
            let shown = decurion_config::sandbox::scripts(&folder);
            decurion_engine::sandbox::OwnFolder { folder, shown }
        }),
        report: |text| crate::report::note(text),
    })))
}

/// The settings files of this start, as the engine writes them.
struct SettingsFiles(Keeper);

impl Settings for SettingsFiles {
    fn keep(&self, at: RuleSource, update: &PermissionUpdate) -> Result<Kept, String> {
        let kept = self.0.keep(at, update).map_err(|error| error.to_string())?;
        Ok(Kept { file: kept.file, remark: kept.remark })
    }
}

/// The audit log of the state folder; none where there is no home.
fn audit(loaded: &Loaded) -> Arc<dyn Audit> {
    let Some(state) = &loaded.paths.state else { return Arc::new(NoAudit) };
    let synced = loaded.settings.durability == settings::Durability::Power;
    Arc::new(AuditFile(Some(AuditLog::open(state).synced(synced))))
}

/// The audit log as the engine fills it. It is there until the program ends.
struct AuditFile(Option<AuditLog>);

impl Audit for AuditFile {
    fn record(&self, entry: AuditEntry) -> Option<String> {
        self.0.as_ref()?.append(entry)
    }
}

impl Drop for AuditFile {
    fn drop(&mut self) {
        if let Some(Err(unwritten)) = self.0.take().map(AuditLog::close) {
            crate::report::note(unwritten);
        }
    }
}

/// The state folder; without a home one that cannot be created, so that sessions stay in memory.
pub fn state_folder(loaded: &Loaded) -> Utf8PathBuf {
    loaded.paths.state.clone().unwrap_or_else(|| "/dev/null/decurion".into())
}

/// The environment of shells.
pub fn shell_environment(loaded: &Loaded, environment: &Environment) -> Arc<[(OsString, OsString)]> {
    let settings = &loaded.settings;
    decurion_config::shell_env::shell_environment(environment, settings, &loaded.providers)
        .into_pairs()
        .into()
}

/// The worktrees of these settings; none where there is no state folder or nothing can be started.
pub fn worktrees(loaded: &Loaded, environment: &Environment, processes: Option<Guard>) -> Option<Worktrees> {
    let settings = &loaded.settings;
    let shell = shell_environment(loaded, environment);
    let worktree = WorktreeSettings {
        location: settings.worktree.location.clone(),
        writable: [&settings.sandbox.writable[..], &settings.permissions.additional_directories].concat(),
        base: settings.worktree.base.clone(),
        copy_dirty: settings.worktree.copy_dirty,
        trusted: loaded.trust.is_trusted().then(|| loaded.paths.root.clone()),
    };
    let leases = Leases::new(loaded.paths.state.clone()?);
    let leases = leases.synced(settings.durability == settings::Durability::Power);
    let git = Git::new(processes?, &shell, &loaded.paths.state.clone()?.join("run/git"));
    Some(Worktrees::new(git, leases, worktree, Arc::new(SystemClock::new())))
}

/// Who starts processes: this program again, as their guard.
pub fn guard() -> Option<Guard> {
    let program = std::env::current_exe().ok()?;
    Some(Guard::new(GuardProgram { program, args: vec![args::GUARD.into()] }))
}

fn tool_limits(limits: &settings::CallLimits) -> ToolLimits {
    let usual = ToolLimits::default();
    let inline_chars = limits.bash_output_chars;
    ToolLimits {
        bash_default_timeout: limits.bash_timeout,
        bash_max_timeout: limits.bash_max_timeout,
        inline_chars,
        head_chars: inline_chars / 3,
        tail_chars: inline_chars - inline_chars / 3,
        ..usual
    }
}

/// The hooks of the settings and of plugins; problems with them are reported.
pub fn hooks(loaded: &Loaded, plugins: &Plugins) -> Vec<HookDeclaration> {
    let (own, theirs) = (loaded.hooks(), plugins.hooks(loaded));
    for warning in own.warnings.iter().chain(&theirs.warnings) {
        crate::report::note(warning);
    }
    own.declarations.into_iter().chain(theirs.declarations).collect()
}

/// What the settings say about sub-agents.
pub fn agent_settings(loaded: &Loaded) -> AgentSettings {
    let is_fork = |name: &String| name.eq_ignore_ascii_case(decurion_engine::fork::NAME);
    let settings = &loaded.settings;
    let agents = &settings.agents;
    AgentSettings {
        max_depth: agents.max_depth,
        max_running: agents.max_running.unwrap_or(MOST_RUNNING),
        max_total: agents.max_total,
        background: match (settings.background_tasks, agents.background) {
            (false, _) | (true, settings::BackgroundChoice::Never) => BackgroundChoice::Never,
            (true, settings::BackgroundChoice::Always) => BackgroundChoice::Always,
            (true, settings::BackgroundChoice::Model) => BackgroundChoice::Model,
        },
        fork_by_default: agents.fork_by_default,
        default_model: agents.default_model.clone(),
        forced_model: agents.model.clone(),
        result_chars: agents.result_budget,
        output_chars: settings.limits.task_output_chars,
        trusted: !matches!(loaded.trust, TrustState::Untrusted { .. }),
        forks: !agents.disabled.iter().any(is_fork),
    }
}

/// What `dontAsk` does with what no rule decides.
pub fn undecided(loaded: &Loaded) -> Undecided {
    match loaded.settings.permissions.dont_ask {
        settings::DontAsk::Allow => Undecided::Allow,
        settings::DontAsk::Deny => Undecided::Deny,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share between 0 and 1, checked
fn compaction(settings: settings::Compaction) -> Compaction {
    Compaction { automatic: settings.enabled, at_percent: (settings.threshold * 100.0).round() as u64 }
}
