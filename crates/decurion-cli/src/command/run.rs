//! `decurion -p`: one prompt, answered and printed. Takes the arguments, decides everything, runs it through
//! the headless front end, gives the exit code of how it ended.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::{
    Environment, FlagSettings, KeySource, LoadRequest, Loaded, Plugins, TrustMode, TrustState, rules,
};
use decurion_engine::permission::{Undecided, denied_type};
use decurion_engine::prompt::MAIN_PROMPT;
use decurion_engine::{Definitions as _, Engine, Library, child};
use decurion_exec::Form;
use decurion_exec::keeper::Leash;
use decurion_protocol::outcome::limit_reached;
use decurion_protocol::{
    AgentDefinition, AgentSource, Block, Command, Limits, Link, Mode, OpenSession, Outcome, Place, Skill,
    SkillKind, ToolSelection,
};
use decurion_serve::socket::{Listener, LiveSessions, SessionSocket, listen};
use decurion_serve::{
    Callables, Finish, Format, Headless, HostAgent, HostCommand, HostOutput, HostReader, Initialize,
    LineWriterQueue, ListedPlugin, Patience, ProgressOutput, StopSignal, StreamFacts, StreamJson,
    WantedPlugin,
};
use decurion_tui::view::status::Windows;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::interact::first_start::{self, Begin, SetupReason};
use super::interact::{crash_notice, form};
use super::start_check::{Trouble, models_of, startable};
use crate::args::{InputFormat, OutputFormat, RunArgs};
use crate::host_facts::CommandLine;
use crate::library::Shelf;
use crate::report::{FAILED, Failure, note, visible};
use crate::{crash, debug_log, definitions, screen, servers, wire};

mod conversation;
mod request;

/// The longest prompt taken from standard input.
const MOST_INPUT: u64 = 16 << 20;

pub fn run(prompt: Option<String>, args: &RunArgs) -> Result<u8, Failure> {
    let hosted = args.input_format == InputFormat::StreamJson;
    let interactive = !args.print && !hosted;
    if let Some(failure) = prompt.as_deref().filter(|_| interactive).and_then(crate::args::misspelt) {
        return Err(failure);
    }
    if interactive && !screen::is_interactive() {
        return Err(Failure::usage("not a terminal")
            .hint("use `decurion -p \"…\"` for non-interactive runs; `decurion demo` shows how it works"));
    }
    let leash = match args.kept_by {
        None if interactive => return super::interact::keep(0),
        None => None,
        // No process would wait for this one, nor restore the terminal after it.
        Some(keeper) => Some(Leash::to(keeper).map_err(|error| {
            Failure::failed(format!("the process that keeps the terminal, {keeper}: {error}"))
        })?),
    };
    if let Some(path) = &args.debug_file {
        debug_log::start(path)?;
    }
    let (cwd, environment) = wire::surroundings()?;
    let ((loaded, ignored), prompt) = match decide(prompt, args, cwd, &environment) {
        Ok(decided) => decided,
        Err(failure) if hosted && args.output_format == OutputFormat::StreamJson => {
            return Err(refused(failure));
        }
        Err(failure) => return Err(failure),
    };
    crash::watch(loaded.paths.state.as_deref());
    if interactive {
        if let Some(at) = &args.panic_at {
            decurion_tui::fault_point::lay(at)
                .map_err(|reason| Failure::usage(format!("--panic-at: {reason}")))?;
        }
        return conversation::hold(args, prompt, (loaded, ignored), &environment, leash);
    }
    let finish = block_on(async {
        let (input, wanted) = if hosted { greeted(patience(args, &environment)).await } else { (None, None) };
        let greeting = input.as_ref().and_then(|input| input.greeting_id().map(str::to_owned));
        let session = Prepared { args, loaded: &loaded, environment: &environment, wanted: wanted.as_ref() };
        let finish = session.answer(prompt, input).await;
        if let (Err(failure), Some(greeting)) = (&finish, greeting) {
            refuse(&greeting, failure);
        }
        finish
    })??;
    Ok(conclude(&finish, args.output_format, &request::limits(args, &loaded)?))
}

/// The settings, and the variables that are no settings this time.
type Decided = (Arc<Loaded>, Vec<&'static str>);

/// The result of settings and flags before a person is asked for more; and the prompt, if any.
fn decide(
    prompt: Option<String>,
    args: &RunArgs,
    cwd: Utf8PathBuf,
    environment: &Environment,
) -> Result<(Decided, Option<String>), Failure> {
    // What a person has just typed counts, also when the settings are read again.
    let mut ignored = Vec::new();
    let mut loaded = load(args, cwd.clone(), environment, &mut ignored)?;
    let is_asked = !args.print && args.input_format == InputFormat::Text && first_start::somebody();
    if is_asked && first_start::is_undecided(&loaded) && asked_trust(args, &loaded, environment)? {
        loaded = load(args, cwd, environment, &mut ignored)?;
    }
    announce(&loaded);
    if args.resume.as_deref() == Some("") {
        return Err(request::no_id(&loaded));
    }
    if let Some(flag) = args.sdk.unlockable() {
        return Err(Failure::usage(format!(
            "{flag} is not supported; refusing to start, because ignoring it would loosen a restriction"
        ))
        .hint("put the restriction into the managed settings file, or leave the option out"));
    }
    check_rules(&loaded)?;
    check_sandbox(&loaded)?;
    check_secrets(&loaded)?;
    for flag in args.sdk.without_effect() {
        note(format!("{flag} has no effect in this version"));
    }
    let prompt = match args.input_format {
        InputFormat::StreamJson => check_hosted(args, prompt.as_deref())?,
        InputFormat::Text if !args.print => prompt,
        InputFormat::Text => Some(whole_prompt(prompt)?),
    };
    Ok(((loaded, ignored), prompt))
}

fn asked_trust(args: &RunArgs, loaded: &Loaded, environment: &Environment) -> Result<bool, Failure> {
    block_on(async {
        let mut form = form::Questions::take(environment, args.plain, None)?;
        let asked = first_start::trust(&mut form, loaded).await;
        form.end().await?;
        asked
    })?
}

/// Asks a person what to do about settings with which no session can start.
fn asked_trouble(args: &RunArgs, trouble: &Trouble, environment: &Environment) -> Result<Begin, Failure> {
    if matches!(trouble, Trouble::Unreadable { own_file: None, .. } | Trouble::Elsewhere(_)) {
        return Ok(Begin::Leave);
    }
    block_on(async {
        let mut form = form::Questions::take(environment, args.plain, None)?;
        let asked = match trouble {
            Trouble::Unreadable { own_file: Some(file), failure } => {
                first_start::correct(&mut form, file, failure).await
            }
            Trouble::NoModel { paths, candidates, problem } => {
                let why = problem.as_ref().map_or(SetupReason::First, SetupReason::Problem);
                first_start::choose(&mut form, (paths, environment), candidates, why).await
            }
            Trouble::Unreadable { own_file: None, .. } | Trouble::Elsewhere(_) => Ok(Begin::Leave),
        };
        form.end().await?;
        asked
    })?
}

/// The failure, told to the program that leads us if it greets: it waits for an answer.
fn refused(failure: Failure) -> Failure {
    let greeting = block_on(async {
        let (input, _) = greeted(Patience::Short).await;
        input.and_then(|input| input.greeting_id().map(str::to_owned))
    });
    if let Ok(Some(greeting)) = greeting {
        refuse(&greeting, &failure);
    }
    failure
}

/// Warns if there is no sandbox although it is not switched off; if one is required, that is an error.
pub fn check_sandbox(loaded: &Loaded) -> Result<(), Failure> {
    let settings = &loaded.settings.sandbox;
    let reason = match wire::sandbox_form(loaded) {
        Ok(Form::Namespaces) => return Ok(()),
        Ok(Form::Bubblewrap) => {
            note(
                "the system refuses namespaces to this program: commands are sandboxed by bubblewrap, see docs/src/sandbox.md",
            );
            return Ok(());
        }
        // It protects less, see the documentation.
        Ok(Form::Landlock) if settings.required => {
            return Err(Failure::usage(
                "the system refuses namespaces: commands could be sandboxed by Landlock alone, which protects less",
            )
            .hint("`sandbox.required` (or `failIfUnavailable`) asks for more; docs/src/sandbox.md says how to allow namespaces"));
        }
        Ok(Form::Landlock) => {
            note(
                "the system refuses namespaces: commands are sandboxed by Landlock alone, see docs/src/sandbox.md",
            );
            return Ok(());
        }
        Err(reason) => reason,
    };
    if settings.required {
        return Err(Failure::usage(format!("commands cannot be sandboxed: {reason}"))
            .hint("the setting `sandbox.required` (or `failIfUnavailable`) asks for a sandbox"));
    }
    if settings.enabled {
        note(format!(
            "commands run without a sandbox, under the permission rules alone: {reason} \
             (`sandbox.enabled: false` accepts that)"
        ));
    }
    Ok(())
}

/// Refuses rules with a misspelt tool that were to forbid something or to ask about it.
fn check_rules(loaded: &Loaded) -> Result<(), Failure> {
    let lost: Vec<String> = super::doctor::lost_restrictions(loaded).collect();
    if lost.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(lost.join("\n")).hint(
        "no session starts without a rule that restricts: correct the name of the tool, or remove the rule",
    ))
}

/// Refuses secrets that cannot be masked, and reports where no command will have any.
fn check_secrets(loaded: &Loaded) -> Result<(), Failure> {
    let unusable: Vec<String> = super::doctor::unusable_secrets(loaded).collect();
    if !unusable.is_empty() {
        return Err(Failure::usage(unusable.join("\n")).hint(
            "expected a list of hosts like \"api.example.com\", \"*.example.com\" or \"example.com:8443\"",
        ));
    }
    let secrets = wire::secrets(loaded);
    let reason = match wire::sandbox_form(loaded) {
        _ if secrets.is_empty() => return Ok(()),
        Ok(Form::Namespaces) if loaded.settings.sandbox.network_open => {
            "sandbox.network.open is set".to_owned()
        }
        Ok(Form::Namespaces) => return Ok(()),
        Ok(Form::Bubblewrap | Form::Landlock) => "the system refuses namespaces".to_owned(),
        Err(reason) => reason,
    };
    note(format!("the setting `secrets` has no effect, and commands do not have them: {reason}"));
    Ok(())
}

/// Tells the program that leads us why there is no session.
fn refuse(greeting: &str, failure: &Failure) {
    let reason = std::iter::once(&failure.message).chain(&failure.hints).map(String::as_str);
    print_early(decurion_serve::refusal(greeting, &reason.collect::<Vec<_>>().join("; ")));
}

/// Prints a line when there is no session. Its reader may be gone, which changes nothing.
fn print_early(mut line: Vec<u8>) {
    line.push(b'\n');
    let mut out = screen::stdout();
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

/// The lines of a program that leads us.
pub type HostInput = HostReader<tokio::io::BufReader<tokio::io::Stdin>>;

/// The lines of the program that leads us, and what it wants of the session, if it says so before it gives work.
async fn greeted(patience: Patience) -> (Option<Box<HostInput>>, Option<Initialize>) {
    let mut input = Box::new(HostReader::new(tokio::io::BufReader::new(tokio::io::stdin())));
    let wanted = input.greeting(patience, &mut print_early).await.cloned();
    (Some(input), wanted)
}

/// How long a session waits for its program's wishes. A resumed one may have agents that continue by themselves; only
/// programs that introduce themselves, as the Agent SDKs do, delay that.
fn patience(args: &RunArgs, environment: &Environment) -> Patience {
    if !args.resumes() || sdk(environment).is_some() || args.sdk.await_initialize {
        Patience::Long
    } else {
        Patience::Short
    }
}

/// The Agent SDK that started us, if one did.
fn sdk(environment: &Environment) -> Option<&str> {
    environment.get("CLAUDE_CODE_ENTRYPOINT").filter(|entry| entry.starts_with("sdk-"))
}

/// All that decides what a session is.
struct Prepared<'a> {
    args: &'a RunArgs,
    loaded: &'a Arc<Loaded>,
    environment: &'a Environment,
    wanted: Option<&'a Initialize>,
}

impl Prepared<'_> {
    /// Decides it, opens the session and answers.
    async fn answer(&self, prompt: Option<String>, input: Option<Box<HostInput>>) -> Result<Finish, Failure> {
        let prepared = Box::pin(self.prepare(prompt, input)).await;
        let (answer, engine) = prepared.inspect_err(|failure| self.conclude_early(failure))?;
        Box::pin(answer.run(&engine)).await
    }

    /// Prints the result of work that could not begin, for a program that reads results.
    fn conclude_early(&self, failure: &Failure) {
        let is_read = self.args.print && self.args.output_format != OutputFormat::Text;
        if is_read && failure.code == FAILED {
            print_early(decurion_serve::not_started(&failure.message));
        }
    }

    async fn prepare(
        &self,
        prompt: Option<String>,
        input: Option<Box<HostInput>>,
    ) -> Result<(Answer, Engine), Failure> {
        let Self { args, loaded, environment, wanted } = *self;
        let plugins = self.plugins();
        let live = definitions::LiveDefinitions::new(loaded, self.agents()?.as_deref(), &plugins);
        live.announce()?;
        let live = Arc::new(live);
        let only = wanted.and_then(|wanted| wanted.skills.clone());
        let shelf = Arc::new(Shelf::new(loaded, &plugins).telling_of(only));
        let main = definitions::main_agent(args, loaded, &live)?;
        let initial = main.as_ref().and_then(|definition| definition.initial_prompt.as_deref());
        let work = match (prompt, input) {
            (_, Some(input)) => Work::Hosted { input, greeted: wanted.is_some() },
            (prompt, None) if !args.print => {
                Work::Interactive(prompt.map(|prompt| work(&begun(prompt, initial))))
            }
            (prompt, None) => Work::Asked(work(&begun(prompt.unwrap_or_default(), initial))),
        };
        let mut request = request::session_request(
            args,
            loaded,
            main.as_deref(),
            wanted,
            sdk(environment).unwrap_or("cli"),
        )?;
        request.checkpoints = matches!(work, Work::Interactive(_))
            || is_on(environment, "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING");
        equip(&mut request, &*shelf);
        let models = Arc::new(models_of(loaded, &mut request, matches!(work, Work::Interactive(_))).await?);
        let mut agents = live.all();
        agents.retain(|definition| denied_type(&loaded.rules.set, &definition.name).is_none());
        let flags = servers::ServerFlags::of(args).led(wanted);
        let servers = servers::load(loaded, environment, &flags, &plugins)?;
        servers.announce();
        let prompts = Some(servers::ServerPrompts::of(&servers, loaded));
        let is_interactive = matches!(work, Work::Interactive(_));
        let windows = Windows::new({
            let models = Arc::clone(&models);
            move |model| models.window(model)
        });
        let model = is_interactive.then(|| models.main_name(request.model.as_deref())).flatten();
        let key_source = key_source(loaded);
        let known = Arc::new(CommandLine {
            loaded: Arc::clone(loaded),
            models: Arc::clone(&models),
            servers: servers.all.clone(),
            key_source: key_source.clone(),
        });
        let mcp = servers.into_parts(loaded, environment);
        let skills = shelf.skills();
        let mut hooks = wire::hooks(loaded, &plugins);
        let theirs = wanted.map(|wanted| wanted.hooks.clone()).unwrap_or_default();
        decurion_engine::hook::problems(&theirs).iter().for_each(note);
        hooks.extend(theirs);
        // Programs written for the Agent SDKs lock a session with this mode: there it denies, against the setting here.
        let undecided = match sdk(environment) {
            Some(_) => Undecided::Deny,
            None => wire::undecided(loaded),
        };
        let given = wire::Given { models, agents: live, mcp: Some(mcp), library: shelf, hooks, undecided };
        let engine = wire::engine(loaded, environment, given);
        let answer = Answer {
            skills,
            prompts,
            plugins,
            request,
            work,
            agents,
            format: args.output_format.into(),
            shown: StreamFacts {
                partial: args.include_partial_messages,
                led: args.input_format == InputFormat::StreamJson,
                agent_text: args.forward_subagent_text
                    || wanted.is_some_and(|wanted| wanted.forward_subagent_text)
                    || is_on(environment, "CLAUDE_CODE_FORWARD_SUBAGENT_TEXT"),
                hooks: args.include_hook_events,
                state: state_lines(environment),
                ..StreamFacts::default()
            },
            progress: match (args.verbose, args.output_format) {
                (true, OutputFormat::Text) => ProgressOutput::Apart(lines(screen::stderr())?),
                (false, OutputFormat::Text) => ProgressOutput::Warnings(lines(screen::stderr())?),
                _ => ProgressOutput::Off,
            },
            api_key_source: key_source,
            sandbox: wire::sandbox_name(loaded),
            known,
            model,
            windows,
            replay: args.replay_user_messages,
            state: loaded.paths.state.clone().filter(|_| !args.no_session_persistence),
        };
        Ok((answer, engine))
    }

    /// The plugins in use: those of the settings, of the command line and of the host.
    fn plugins(&self) -> Plugins {
        let wanted = self.wanted.iter().flat_map(|wanted| &wanted.plugins);
        let (bare, whole): (Vec<_>, Vec<_>) = wanted.partition(|plugin| plugin.without_servers);
        let folder = |plugin: &WantedPlugin| Utf8PathBuf::from(plugin.path.as_str());
        let mut leave = self.args.sdk.plugin_dir_no_mcp.clone();
        leave.extend(bare.into_iter().map(folder));
        let mut all = self.args.plugin_dir.clone();
        all.extend(whole.into_iter().map(folder));
        all.extend(leave.iter().cloned());
        let mut plugins = Plugins::load(self.loaded, &all);
        plugins.leave_servers_of(self.loaded, &leave);
        plugins.warnings.iter().for_each(note);
        plugins
    }

    /// The agents of the command line and those of the host, which count more.
    fn agents(&self) -> Result<Option<String>, Failure> {
        let theirs = self.wanted.and_then(|wanted| wanted.agents.as_ref()).and_then(Value::as_object);
        let (Some(theirs), Some(ours)) = (theirs, &self.args.agents) else {
            let theirs = theirs.map(|agents| Value::Object(agents.clone()).to_string());
            return Ok(theirs.or_else(|| self.args.agents.clone()));
        };
        let mut all: serde_json::Map<String, Value> = serde_json::from_str(ours)
            .map_err(|error| Failure::usage(format!("--agents is not a JSON object: {error}")))?;
        all.extend(theirs.clone());
        Ok(Some(Value::Object(all).to_string()))
    }
}

/// Whether a host asked, by its environment, for state lines.
fn state_lines(environment: &Environment) -> decurion_serve::StateLines {
    match (
        is_on(environment, "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"),
        is_on(environment, "CLAUDE_CODE_SDK_READS_SESSION_STATE"),
    ) {
        (true, _) => decurion_serve::StateLines::On,
        (false, true) => decurion_serve::StateLines::HostOnly,
        (false, false) => decurion_serve::StateLines::Off,
    }
}

fn is_on(environment: &Environment, name: &str) -> bool {
    environment
        .get(name)
        .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"))
}

/// A prompt with what its agent's definition begins with.
fn begun(prompt: String, initial: Option<&str>) -> String {
    match initial {
        Some(initial) => format!("{initial}\n\n{prompt}"),
        None => prompt,
    }
}

/// What is answered, and how it is shown.
pub struct Answer {
    pub request: OpenSession,
    /// What to do in it.
    pub work: Work,
    /// The agents that can be started: none that a rule denies.
    pub agents: Vec<Arc<AgentDefinition>>,
    /// The skills and commands at hand.
    pub skills: Vec<Arc<Skill>>,
    /// The prompts of MCP servers.
    pub prompts: Option<servers::ServerPrompts>,
    /// The plugins in use.
    pub plugins: Plugins,
    pub format: Format,
    /// What is printed besides.
    pub shown: StreamFacts,
    /// Where progress is shown.
    pub progress: ProgressOutput,
    /// Where the key came from.
    pub api_key_source: String,
    /// How commands are sandboxed, for people.
    pub sandbox: String,
    /// What a host can ask of us.
    pub known: Arc<dyn decurion_serve::HostFacts>,
    /// The name of the model that will answer first, for a session at a terminal.
    pub model: Option<String>,
    /// How many tokens each model can take, for a session at a terminal.
    pub windows: Windows,
    /// Whether what a host says is given back to it.
    pub replay: bool,
    /// Where other terminals find the session; none where it keeps no files.
    pub state: Option<Utf8PathBuf>,
}

impl Answer {
    /// Opens the session and answers.
    pub async fn run(self, place: &dyn Place) -> Result<Finish, Failure> {
        let mut signals = signals().map_err(|error| Failure::failed(format!("no signals: {error}")))?;
        let cwd = self.request.cwd.clone();
        let home = cwd.clone();
        // From before it is opened: a resumed session writes to its journal soon after.
        if let (Work::Asked(_), Format::Text) = (&self.work, self.format)
            && let Some((_, words)) =
                crash_notice::of(&self.request, self.state.as_deref(), "ask for it in the prompt")
        {
            note(words);
        }
        let link = place.open(self.request).await?;
        let door = self.state.as_deref().and_then(|state| open_door(state, cwd, &link));
        let facts = StreamFacts {
            api_key_source: self.api_key_source,
            version: wire::VERSION.to_owned(),
            sandbox: self.sandbox.clone(),
            transcript: self.state.as_deref().map(|state| {
                let files = decurion_store::Layout::new(state).session(&home, link.session);
                files.transcript().to_string()
            }),
            ..self.shown
        };
        let names = self.agents.iter().map(|definition| definition.name.clone()).collect();
        let stream = StreamJson::new(link.session, facts)
            .with_agents(names)
            .with_library(listed(&self.skills, &self.plugins))
            .with_replay(self.replay);
        let out = match self.work {
            Work::Asked(_) | Work::Interactive(_) => lines(screen::stdout())?,
            Work::Hosted { .. } => watched()?,
        };
        let headless = Headless { link, format: self.format, stream, out, progress: self.progress };
        let finish = match self.work {
            Work::Asked(work) => headless.answer(work, &mut signals).await,
            Work::Interactive(_) => return Err(Failure::failed("this session is shown at a terminal")),
            Work::Hosted { input, greeted } => {
                let (agents, mut commands) = (host_agents(&self.agents), host_commands(&self.skills));
                commands.extend(self.prompts.iter().flat_map(servers::ServerPrompts::commands));
                let (known, problems) = (self.known, lines(screen::stderr())?);
                let host = HostOutput { agents, commands, known, problems, greeted };
                headless.converse(host, *input, &mut signals).await
            }
        };
        if let Some(door) = door {
            door.finish().await;
        }
        finish.map_err(|error| Failure::failed(format!("cannot print: {error}")))
    }
}

/// Skills, commands and plugins in the form for hosts.
fn listed(skills: &[Arc<Skill>], plugins: &Plugins) -> Callables {
    let names = |wanted: fn(&Skill) -> bool| {
        let mut names: Vec<String> =
            skills.iter().filter(|skill| wanted(skill)).map(|skill| skill.name.clone()).collect();
        names.sort_unstable_by_key(|name| name.to_lowercase());
        names
    };
    Callables {
        commands: names(|skill| skill.invocable.by_user()),
        skills: names(|skill| skill.kind == SkillKind::Skill),
        plugins: plugins
            .active()
            .map(|plugin| ListedPlugin {
                name: plugin.name.clone(),
                path: plugin.root.to_string(),
                source: plugin.source(),
                version: plugin.version.clone(),
            })
            .collect(),
    }
}

/// What a person can type after a slash, in the form for hosts.
fn host_commands(skills: &[Arc<Skill>]) -> Vec<HostCommand> {
    let typed = skills.iter().filter(|skill| skill.invocable.by_user());
    let compact = HostCommand {
        name: "compact".to_owned(),
        description: "Shorten the conversation to a summary".to_owned(),
        hint: "[what to pay attention to]".to_owned(),
    };
    let typed = typed.map(|skill| HostCommand {
        name: skill.name.clone(),
        description: skill.description.clone(),
        hint: skill.argument_hint.clone().unwrap_or_default(),
    });
    std::iter::once(compact).chain(typed).collect()
}

/// Agents in the form for hosts.
fn host_agents(agents: &[Arc<AgentDefinition>]) -> Vec<HostAgent> {
    let shown = agents.iter().filter(|definition| !definition.hidden);
    shown
        .map(|definition| HostAgent {
            name: definition.name.clone(),
            description: definition.description.clone(),
            model: definition.model.clone(),
        })
        .collect()
}

/// The work to do.
pub enum Work {
    Asked(Command),
    /// What a person says at the terminal, beginning with this.
    Interactive(Option<Command>),
    /// What a program says.
    Hosted {
        input: Box<HostInput>,
        /// Whether the session is as its first line wants it.
        greeted: bool,
    },
}

/// A host sends its prompts as it goes, and reads events while it does.
fn check_hosted(args: &RunArgs, prompt: Option<&str>) -> Result<Option<String>, Failure> {
    if args.output_format != OutputFormat::StreamJson {
        return Err(Failure::usage("--input-format stream-json goes with --output-format stream-json"));
    }
    if prompt.is_some_and(|prompt| !prompt.is_empty()) {
        return Err(Failure::usage("with --input-format stream-json the prompt comes on standard input")
            .hint(r#"send {"type":"user","message":{"role":"user","content":"…"}}"#));
    }
    Ok(None)
}

/// Lets other terminals see and steer the session (`decurion tasks`); it works without that too.
pub fn open_door(state: &Utf8Path, cwd: Utf8PathBuf, link: &Link) -> Option<Listener> {
    let events = link.again.clone()?;
    let from_below = |socket: BorrowedFd<'_>| decurion_exec::is_from_below(socket);
    let door =
        SessionSocket { session: link.session, cwd, commands: link.commands.clone(), events, from_below };
    let path = LiveSessions::new(state).socket(link.session);
    match listen(&path, door) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(%error, %path, "no control socket for other terminals");
            None
        }
    }
}

fn lines(out: impl std::io::Write + Send + 'static) -> Result<LineWriterQueue, Failure> {
    LineWriterQueue::to(out).map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

/// Standard output, watched for the end of its reader: a host that dies gives no other sign.
fn watched() -> Result<LineWriterQueue, Failure> {
    screen::stdout_descriptor()
        .and_then(|pipe| LineWriterQueue::to(screen::stdout())?.watching(pipe))
        .map_err(|error| Failure::failed(format!("cannot watch standard output: {error}")))
}

/// Runs a future on the program's one runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start the runtime: {error}")))?;
    let value = runtime.block_on(future);
    // A thread that waits for a disk or a pipe must not keep a finished program alive.
    runtime.shutdown_background();
    Ok(value)
}

/// Signals as they come.
pub fn signals() -> std::io::Result<mpsc::Receiver<StopSignal>> {
    heard([
        (SignalKind::interrupt(), StopSignal::Interrupt),
        (SignalKind::terminate(), StopSignal::Terminate),
        (SignalKind::hangup(), StopSignal::Hangup),
    ])
}

/// These signals from now on, each as what it means here.
pub fn heard<Meaning: Copy + Send + 'static>(
    kinds: impl IntoIterator<Item = (SignalKind, Meaning)>,
) -> std::io::Result<mpsc::Receiver<Meaning>> {
    // A file that may not grow fails one write, which is waited out; it must not end the program.
    drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
    let (sender, receiver) = mpsc::channel(4);
    for (kind, meaning) in kinds {
        let mut stream = signal(kind)?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if sender.send(meaning).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

/// Says how it ended where the answer does not, and gives the exit code.
pub fn conclude(finish: &Finish, format: OutputFormat, limits: &Limits) -> u8 {
    if let (Some(kept), OutputFormat::Text) = (&finish.worktree, format) {
        note(format!("the session's worktree is kept: {} on {}: {}", kept.path, kept.branch, kept.left));
    }
    match finish.signal {
        Some(StopSignal::Interrupt) => return 130,
        Some(StopSignal::Terminate) => return 143,
        Some(StopSignal::Hangup) => return 129,
        None => {}
    }
    if format == OutputFormat::Text {
        match &finish.outcome {
            Outcome::Completed { .. } => {}
            Outcome::Failed { error } => note(error),
            Outcome::Killed { by } => note(format!("stopped by {by}")),
            Outcome::Stalled { waiting_for } => note(format!("stalled: {waiting_for}")),
            Outcome::OutOfBudget { budget, .. } => note(limit_reached(budget, limits)),
            Outcome::Denied { reason, .. } => {
                let reason = visible(reason);
                note(format!(
                    "denied: {reason}\n  add rules with --allowedTools, or to permissions.allow in the settings"
                ));
            }
            Outcome::Lost => note("the run was lost: its process died before it ended"),
        }
    }
    if let Some(error) = &finish.unwritten {
        note(format!("cannot write the answer to standard output: {error}"));
        return FAILED;
    }
    // The program saw each refusal with its result; it is no failure of the session.
    if let (true, Outcome::Denied { .. }) = (finish.led, &finish.outcome) {
        return 0;
    }
    finish.outcome.exit_code()
}

fn load(
    args: &RunArgs,
    cwd: Utf8PathBuf,
    environment: &Environment,
    ignored: &mut Vec<&'static str>,
) -> Result<Arc<Loaded>, Failure> {
    let split = |lists: &[String]| lists.iter().flat_map(|list| rules::split_rules(list)).collect();
    let flags = FlagSettings {
        settings: args.settings.clone(),
        setting_sources: args.setting_sources.clone(),
        model: args.model.clone(),
        permission_mode: permission_mode(args)?,
        allowed_tools: split(&args.allowed_tools),
        disallowed_tools: split(&args.disallowed_tools),
        directories: args.add_dir.iter().flat_map(|given| directory(&cwd, given)).collect(),
    };
    let trust = if args.trust_folder { TrustMode::Granted } else { TrustMode::Recorded };
    let mut request = LoadRequest { flags, trust, ..LoadRequest::new(cwd, environment.clone()) };
    let is_asked = !args.print && args.input_format == InputFormat::Text && first_start::somebody();
    loop {
        request.ignored_variables.clone_from(ignored);
        let trouble = match startable(&request, is_asked && !args.resumes()) {
            Ok(loaded) => return Ok(loaded),
            Err(trouble) => trouble,
        };
        let begin = if is_asked { asked_trouble(args, &trouble, environment)? } else { Begin::Leave };
        match begin {
            Begin::LookAgain => {}
            Begin::Use(set) => *ignored = decurion_config::overriding(environment, &set.provider),
            // Then the same question again.
            Begin::Demo => super::demo::run_in_front()?,
            Begin::Leave => return Err(trouble.into_failure(is_asked)),
        }
    }
}

/// A directory that the tools may use, as it is named and as what it leads to: calls name either.
fn directory(cwd: &Utf8Path, given: &Utf8Path) -> Vec<String> {
    let Ok(real) = cwd.join(given).canonicalize_utf8() else {
        note(format!("--add-dir is ignored: no such directory: {given}"));
        return Vec::new();
    };
    let plain = given.components().all(|part| !matches!(part, camino::Utf8Component::ParentDir));
    let named = cwd.join(given);
    let mut both = vec![real.to_string()];
    both.extend((plain && named != real).then(|| named.to_string()));
    both
}

fn permission_mode(args: &RunArgs) -> Result<Option<Mode>, Failure> {
    if args.dangerously_skip_permissions {
        return Ok(Some(Mode::BypassPermissions));
    }
    let parse = |mode: &String| mode.parse().map_err(|error| Failure::usage(format!("{error}")));
    args.permission_mode.as_ref().map(parse).transpose()
}

/// What a person should know before it starts.
fn announce(loaded: &Loaded) {
    for warning in super::doctor::stops_nothing(loaded) {
        note(warning);
    }
    if loaded.settings.permissions.default_mode == Mode::BypassPermissions {
        note("all permission checks but deny rules are skipped");
    }
    let parts = loaded.project_parts.parts().len();
    if let (TrustState::Untrusted { .. }, 1..) = (&loaded.trust, parts) {
        note(format!(
            "this folder is not trusted: {} (`decurion trust` reviews them, --trust-folder trusts them for one run)",
            if parts == 1 {
                "1 setting is disabled".to_owned()
            } else {
                format!("{parts} settings are disabled")
            }
        ));
    }
}

/// The argument and what is piped in, joined.
fn whole_prompt(argument: Option<String>) -> Result<String, Failure> {
    let piped = piped_input(argument.is_some())?;
    let prompt = match (piped, argument) {
        // A command is what a prompt begins with.
        (Some(piped), Some(argument)) if argument.starts_with('/') => format!("{argument}\n\n{piped}"),
        (Some(piped), Some(argument)) => format!("{piped}\n\n{argument}"),
        (Some(piped), None) => piped,
        (None, Some(argument)) => argument,
        (None, None) => String::new(),
    };
    if prompt.trim().is_empty() {
        return Err(Failure::usage("no prompt given")
            .hint("give one as an argument or on standard input: decurion -p \"explain this project\""));
    }
    Ok(prompt)
}

/// What is on standard input, if that is a pipe or a file.
fn piped_input(has_argument: bool) -> Result<Option<String>, Failure> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() || (has_argument && !crate::input::has_data(&stdin)) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(MOST_INPUT + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    if bytes.len() as u64 > MOST_INPUT {
        return Err(Failure::usage(format!("standard input is longer than {MOST_INPUT} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::usage(format!("standard input is not UTF-8 text, from byte {at} on"))
            .hint("convert it first, or put it into a file and name the file in the prompt")
    })?;
    Ok(Some(text.trim_end().to_owned()).filter(|text| !text.is_empty()))
}

/// What a prompt asks for: work, or one of the commands that are typed like a prompt.
fn work(prompt: &str) -> Command {
    let trimmed = prompt.trim();
    match trimmed.strip_prefix("/compact") {
        Some(rest) if rest.is_empty() || rest.starts_with(char::is_whitespace) => {
            let instructions = Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
            Command::Compact { instructions }
        }
        _ => Command::Prompt { blocks: vec![Block::text(prompt)] },
    }
}

/// Gives the session's own agent what its definition has it carry.
fn equip(request: &mut OpenSession, library: &dyn Library) {
    let Some(scope) = request.definition.equipment.memory.clone() else { return };
    match library.memory(&scope, &request.definition) {
        Ok(memory) => {
            let mut whole = request.definition.clone();
            request.allow.extend(child::remember(&mut whole, &memory));
            // The tools stay as the definition has them: a person is there to be asked.
            request.definition.prompt = whole.prompt;
        }
        Err(reason) => note(format!("the agent runs without its memory: {reason}")),
    }
}

pub fn main_definition() -> AgentDefinition {
    AgentDefinition {
        name: "main".to_owned(),
        description: "The session's own agent".to_owned(),
        prompt: MAIN_PROMPT.to_owned(),
        tools: ToolSelection::default(),
        model: None,
        mode: None,
        limits: Limits::default(),
        source: AgentSource::Builtin,
        ..AgentDefinition::default()
    }
}

fn key_source(loaded: &Loaded) -> String {
    match loaded.choice() {
        Ok(decurion_config::Choice::Provider { provider, .. }) => match &provider.key_source {
            None => "none".to_owned(),
            Some(KeySource::Variable(name)) => name.clone(),
            Some(KeySource::File(_) | KeySource::Settings(_)) => "settings".to_owned(),
        },
        _ => "none".to_owned(),
    }
}

impl From<OutputFormat> for Format {
    fn from(format: OutputFormat) -> Self {
        match format {
            OutputFormat::Text => Self::Text,
            OutputFormat::Json => Self::Json,
            OutputFormat::StreamJson => Self::StreamJson,
        }
    }
}
