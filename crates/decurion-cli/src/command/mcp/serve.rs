//! `decurion mcp serve`: our agents as tools of other programs. Takes the flags, gives a server on standard
//! input and output, each of whose calls is an ordinary session under the usual settings and rules.

use std::sync::Arc;

use decurion_config::{FlagSettings, LoadRequest, Loaded, Plugins, rules};
use decurion_engine::agent_tools;
use decurion_engine::permission::{self, Around, Checkouts, Policy};
use decurion_engine::symlinks::Symlinks;
use decurion_engine::{Definitions as _, Models as _};
use decurion_protocol::{
    AgentDefinition, Intent, Limits, Mode, OpenSession, Persistence, Place, RuleSet, Start, Verdict,
};
use decurion_serve::{LineWriterQueue, McpServe};
use decurion_tools::{Surroundings, Tool, ToolSpec};
use serde_json::{Value, json};

use crate::command::run::block_on;
use crate::definitions::{self, LiveDefinitions};
use crate::library::Shelf;
use crate::models::Configured;
use crate::report::{Failure, note};
use crate::servers::{self, ServerFlags};
use crate::{screen, wire};

/// The tools that are offered.
const OFFERED: [&str; 3] = ["Agent", "TaskOutput", "TaskStop"];
/// The agent of a call that names none.
const USUAL: &str = "general-purpose";
/// What of a call of Agent means something here.
const TAKEN: &[&str] =
    &["description", "prompt", "subagent_type", "model", "run_in_background", "background", "max_turns"];

/// Serves until the input ends.
pub fn run(model: Option<&str>, mode: Option<&str>, allowed: &[String]) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let mode: Option<Mode> = match mode {
        Some(mode) => Some(mode.parse().map_err(|error| Failure::usage(format!("{error}")))?),
        None => None,
    };
    let flags = FlagSettings {
        model: model.map(str::to_owned),
        permission_mode: mode,
        allowed_tools: allowed.iter().flat_map(|list| rules::split_rules(list)).collect(),
        ..FlagSettings::default()
    };
    let request = LoadRequest { flags, ..LoadRequest::new(cwd, environment.clone()) };
    let loaded = Arc::new(decurion_config::load(&request)?);
    for warning in &loaded.warnings {
        note(warning);
    }
    loaded.choice()?;
    let plugins = Plugins::load(&loaded, &[]);
    let live = Arc::new(LiveDefinitions::new(&loaded, None, &plugins));
    live.announce()?;
    let declared = servers::load(&loaded, &environment, &ServerFlags::default(), &plugins)?;
    declared.announce();
    let mcp = declared.into_parts(&loaded, &environment);
    let mut models = Configured::new(Arc::clone(&loaded), model).unwatched();
    block_on(models.ask_server())??;
    if let (_, Some(remark)) = models.main(&models.default_name()).map_err(Failure::usage)? {
        note(remark);
    }
    let fallback = match loaded.settings.fallback_model.first() {
        Some(names) => models.fallback(names)?,
        None => None,
    };
    let models = Arc::new(models);
    let shelf = Arc::new(Shelf::new(&loaded, &plugins));
    let agents = Arc::clone(&live) as Arc<_>;
    let hooks = wire::hooks(&loaded, &plugins);
    let undecided = wire::undecided(&loaded);
    let given = wire::Given { models, agents, mcp: Some(mcp), library: shelf, hooks, undecided };
    let engine = wire::engine(&loaded, &environment, given);
    let offer = offer(loaded, live, Arc::new(engine), fallback);
    let lines = LineWriterQueue::to(screen::stdout())
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
    block_on(offer.serve(tokio::io::BufReader::new(tokio::io::stdin()), lines))?;
    Ok(0)
}

fn offer(
    loaded: Arc<Loaded>,
    live: Arc<LiveDefinitions>,
    place: Arc<dyn Place>,
    fallback_model: Option<String>,
) -> McpServe {
    let ours = agent_tools::all(&live.all(), &wire::agent_settings(&loaded), &loaded.rules.set);
    let ours: Vec<Arc<dyn Tool>> =
        ours.into_iter().filter(|tool| OFFERED.contains(&tool.spec().name.as_str())).collect();
    let listed = |tool: &Arc<dyn Tool>| {
        let spec = tool.spec();
        let (description, schema) = taken(spec);
        json!({"name": spec.name, "description": description, "inputSchema": schema})
    };
    let tools = ours.iter().map(listed).collect();
    let agent = ours.into_iter().find(|tool| tool.spec().name == "Agent");
    let session = Box::new(move |input: &Value| {
        let around = Surroundings {
            cwd: loaded.paths.cwd.clone(),
            home: loaded.paths.home.clone(),
            directories: vec![loaded.paths.cwd.clone()],
        };
        if let Some(agent) = &agent {
            let intent = agent.intent(input, &around).map_err(|error| error.to_string())?;
            may_begin(&loaded, input, &intent)?;
        }
        let members = input.as_object().into_iter().flatten();
        if let Some((key, _)) = members.into_iter().find(|(key, _)| !TAKEN.contains(&key.as_str())) {
            return Err(format!("`{key}` means nothing where an agent is started from another program"));
        }
        let name = input["subagent_type"].as_str().unwrap_or(USUAL);
        let definition = live.find(name).ok_or_else(|| {
            let all = live.all();
            let known = agent_tools::agent::offered_types(&all, false, &loaded.rules.set);
            format!("Agent type '{name}' not found. The types are: {}", known.join(", "))
        })?;
        let fallback_model = fallback_model.clone();
        Ok(OpenSession { fallback_model, ..request(&loaded, &definition, input) })
    });
    McpServe { place, tools, session, version: wire::VERSION.to_owned() }
}

/// A tool as it is taken here: of Agent, what means something to another program.
fn taken(spec: &ToolSpec) -> (String, Value) {
    let (mut description, mut schema) = (spec.description.clone(), spec.input_schema.clone());
    if spec.name == "Agent"
        && let Some(members) = schema.get_mut("properties").and_then(Value::as_object_mut)
    {
        let is_taken = |key: &String| TAKEN.contains(&key.as_str());
        let others: Vec<String> =
            members.keys().filter(|key| !is_taken(key)).map(|key| format!("`{key}`")).collect();
        members.retain(|key, _| is_taken(key));
        let of_others = |line: &&str| others.iter().any(|other| line.contains(other.as_str()));
        description = description.lines().filter(|line| !of_others(line)).collect::<Vec<_>>().join("\n");
    }
    (description, schema)
}

/// What the rules deny an agent of ours they deny another program too. Only those: whether to call was decided
/// there, and each of the session's own calls is decided as always.
fn may_begin(loaded: &Loaded, input: &Value, intent: &Intent) -> Result<(), String> {
    let rules = RuleSet { deny: loaded.rules.set.deny.clone(), ..RuleSet::default() };
    let paths = &loaded.paths;
    let around = Around {
        cwd: paths.cwd.clone(),
        root: paths.root.clone(),
        directories: Vec::new(),
        home: paths.home.clone(),
        user_files: std::sync::Arc::default(),
        checkout: None,
        checkouts: Checkouts::default(),
        trails: Symlinks::default(),
    };
    let policy = Policy::new(Mode::BypassPermissions, Arc::new(rules), around);
    let decision = permission::decide(&policy, "Agent", input, intent);
    match decision.verdict {
        Verdict::Deny => Err(format!("Permission denied: {}", decision.reason)),
        Verdict::Allow | Verdict::Ask => Ok(()),
    }
}

/// The lower of two limits, where there are any.
fn lower(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

/// The session that a call asks for: its main agent is the one named.
fn request(loaded: &Loaded, definition: &AgentDefinition, input: &Value) -> OpenSession {
    let named = |model: &String| model != "inherit";
    let turns = input["max_turns"].as_u64().and_then(|turns| u32::try_from(turns).ok());
    let usual = &loaded.settings.budget;
    OpenSession {
        start: Start::New { id: None },
        cwd: loaded.paths.cwd.clone(),
        worktree: None,
        directories: Vec::new(),
        definition: definition.clone(),
        system: None,
        append_system: None,
        model: input["model"].as_str().map(str::to_owned).or_else(|| definition.model.clone()).filter(named),
        thinking: None,
        effort: None,
        fallback_model: None,
        mode: definitions::mode(definition, loaded),
        allow: Vec::new(),
        deny: Vec::new(),
        tools: definition.tools.clone(),
        limits: Limits {
            // A caller may ask for less than was decided here, never for more.
            turns: lower(turns, definition.limits.turns.or(usual.turns)),
            seconds: definition.limits.seconds.or(usual.seconds),
            tokens: definition.limits.tokens.or(usual.tokens),
            money: definition.limits.money.or(usual.money),
            spawns: definition.limits.spawns.or(usual.spawns),
        },
        output_schema: None,
        answers: false,
        permission_tool: None,
        checkpoints: false,
        bypass: false,
        persistence: Persistence::Usual,
        entrypoint: "mcp".to_owned(),
    }
}
