//! Room 2. Who asks + what is asked → [`RunSpec`]. Takes a front end's request and what was recorded, gives
//! one plain value with nothing left to look up. Pure, so that every decision can be tested as a table.

use std::sync::Arc;

use decurion_model::{Head, ToolSchema};
use decurion_protocol::{
    Limits, McpStatus, Mode, OpenSession, Opening, Pattern, PlaceError, Rule, RuleSet, RunId, RunSpec,
    SessionId, Worktree,
};
use decurion_tools::{Tool, ToolSet};
use sha2::{Digest as _, Sha256};

use crate::ports::{Fallback, Model, new_run};
use crate::prompt;
use crate::session::parts::Parts;
use crate::skill;
use crate::structured::StructuredOutput;

/// What stands before a conversation, and the tools it names.
pub struct HeadAndTools {
    /// System prompt, tool schemas, settings.
    pub head: Head,
    /// The tools it names.
    pub tools: ToolSet,
    /// Names that were asked for and do not exist.
    pub unknown: Vec<String>,
}

/// The head of the root: what the request says, else what was recorded, else the built-in prompt and tools.
pub fn root_head(
    request: &OpenSession,
    recorded: Option<&Head>,
    all: &ToolSet,
    model: &Model,
) -> Result<HeadAndTools, PlaceError> {
    let chosen = all.select(&request.tools);
    let mut tools = chosen.set;
    if let Some(schema) = &request.output_schema {
        let tool = StructuredOutput::new(schema).map_err(PlaceError::Usage)?;
        tools = ToolSet::new(tools.iter().cloned().chain([Arc::new(tool) as Arc<dyn Tool>]));
    }
    let says_system = request.system.is_some() || request.append_system.is_some();
    let says_tools = request.tools != decurion_protocol::ToolSelection::default();
    let recorded_system = recorded.filter(|_| !says_system).map(|head| head.system.clone());
    let base = request.system.as_deref().unwrap_or(&request.definition.prompt);
    let system = recorded_system.unwrap_or_else(|| prompt::system(base, request.append_system.as_deref()));
    // A recorded head's schemas are kept to the byte, so that a provider's cache still holds them; a tool
    // that no longer exists must not be offered.
    let kept = recorded
        .filter(|_| !says_tools && request.output_schema.is_none())
        .map(|head| head.tools.clone())
        .filter(|schemas| schemas.iter().all(|schema| tools.get(&schema.name).is_some()));
    let schemas = kept.unwrap_or_else(|| tools.iter().map(|tool| schema(&**tool)).collect());
    if tools.len() != schemas.len() {
        let only = Some(schemas.iter().map(|schema| schema.name.clone()).collect());
        tools = all.select(&decurion_protocol::ToolSelection { only, except: Vec::new() }).set;
    }
    let head = root_settings(request, model, Head { system, tools: schemas, ..Head::default() });
    Ok(HeadAndTools { head, tools, unknown: chosen.unknown })
}

/// A head of the root with the settings of its model, and how it should think as the session was asked for.
pub fn root_settings(request: &OpenSession, model: &Model, head: Head) -> Head {
    let own = &model.head;
    let effort = request.effort.clone().or_else(|| request.definition.effort.clone());
    Head {
        model: model.id.clone(),
        system: head.system,
        tools: head.tools,
        thinking: request.thinking.clone().or_else(|| own.thinking.clone()),
        effort: effort.or_else(|| own.effort.clone()),
        ..own.clone()
    }
}

/// What a model is told about a tool.
pub fn schema(tool: &dyn Tool) -> ToolSchema {
    let spec = tool.spec();
    ToolSchema {
        name: spec.name.clone(),
        description: spec.description.clone(),
        input_schema: spec.input_schema.clone(),
    }
}

/// The same tools, those of these names replaced.
pub fn with_tools(tools: &ToolSet, fresh: &[Arc<dyn Tool>]) -> ToolSet {
    let replaced = |tool: &Arc<dyn Tool>| {
        let same = fresh.iter().find(|other| other.spec().name == tool.spec().name);
        Arc::clone(same.unwrap_or(tool))
    };
    ToolSet::new(tools.iter().map(replaced).collect::<Vec<_>>())
}

/// Writes what a head says of agents and skills again; every other schema stays to the byte.
pub fn describe_again(head: &mut Head, tools: &ToolSet) {
    for name in ["Agent", skill::NAME] {
        let own = head.tools.iter_mut().find(|schema| schema.name == name);
        if let (Some(own), Some(tool)) = (own, tools.get(name)) {
            *own = schema(&**tool);
        }
    }
}

/// Writes the schemas of a head for these tools; those of tools that no server brought stay to the byte.
pub fn describe_servers(head: &mut Head, tools: &ToolSet) {
    let old = std::mem::take(&mut head.tools);
    let kept = |name: &str| old.iter().find(|schema| schema.name == name && !crate::mcp::is_servers(name));
    let schemas =
        tools.iter().map(|tool| kept(&tool.spec().name).cloned().unwrap_or_else(|| schema(&**tool)));
    head.tools = schemas.collect();
}

/// The name under which a head is stored: what it holds decides it.
pub fn head_name(head: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(head).iter().fold(String::with_capacity(64), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// One run of the root.
pub fn root(
    session: SessionId,
    request: &OpenSession,
    decided: &Decided<'_>,
    previous: Option<RunId>,
) -> RunSpec {
    RunSpec {
        run: new_run(),
        session,
        agent: None,
        parent: None,
        depth: 0,
        pattern: Pattern::Root,
        definition: Arc::new(decurion_protocol::AgentDefinition {
            // The prompt is in the stored head; a copy on every run's record would only cost bytes.
            prompt: String::new(),
            ..request.definition.clone()
        }),
        head: decided.head_name.to_owned(),
        tools: decided.tools.names().map(str::to_owned).collect(),
        opening: match previous {
            None => Opening::Fresh,
            from => Opening::Resumed { from },
        },
        model: decided.model.name.clone(),
        model_why: Some(match (decided.session_model, &request.model) {
            (Some(_), _) => "the command asks for it, for its own turn".to_owned(),
            (None, Some(_)) => "it was asked for with the session".to_owned(),
            (None, None) => "nothing else was asked for, so it is the default".to_owned(),
        }),
        fallback_model: request.fallback_model.clone(),
        mode: decided.mode,
        cwd: decided.cwd.to_owned(),
        directories: decided.directories.to_vec(),
        worktree: decided.worktree.cloned().map(Box::new),
        limits: request.limits.clone(),
        servers: decided.servers.clone(),
        own_rules: decided.own_rules.clone(),
        session_model: decided.session_model.map(str::to_owned),
    }
}

/// What was decided for the session before its runs.
pub struct Decided<'a> {
    /// Name of the stored head.
    pub head_name: &'a str,
    pub tools: &'a ToolSet,
    pub model: &'a Model,
    /// Where the session works.
    pub cwd: &'a camino::Utf8Path,
    /// The checkout of its own that the session works in.
    pub worktree: Option<&'a Worktree>,
    pub mode: Mode,
    pub directories: &'a [camino::Utf8PathBuf],
    /// How the MCP servers are doing.
    pub servers: Vec<McpStatus>,
    /// Rules that hold for the run alone.
    pub own_rules: decurion_protocol::OwnRules,
    /// The session's own model, while a command has another.
    pub session_model: Option<&'a str>,
}

/// The rules in force: those of the settings, and those of the command line.
pub fn rules(settings: &RuleSet, allow: &[Rule], deny: &[Rule]) -> RuleSet {
    let mut rules = settings.clone();
    rules.allow.extend_from_slice(allow);
    rules.deny.extend_from_slice(deny);
    rules
}

/// Refuses a mode that the settings switched off.
pub fn check_mode(mode: Mode, bypass: bool) -> Result<(), String> {
    if mode == Mode::BypassPermissions && !bypass {
        let reason =
            "the mode bypassPermissions is switched off by `permissions.disableBypassPermissionsMode`";
        return Err(reason.to_owned());
    }
    Ok(())
}

/// Refuses a mode that nobody may choose once the session runs: whoever starts it decides whether it may ever work
/// without asking.
pub fn check_later_mode(mode: Mode, parts: &Parts, request: &OpenSession) -> Result<(), String> {
    check_mode(mode, parts.bypass)?;
    let started = request.mode == Some(mode) || parts.mode == mode;
    if mode == Mode::BypassPermissions && !started && !request.bypass {
        let reason = "the mode bypassPermissions is for sessions that were started for it; start this one with \
                      --allow-dangerously-skip-permissions (`allowDangerouslySkipPermissions`) to choose it later";
        return Err(reason.to_owned());
    }
    Ok(())
}

/// Refuses models to change to whose cost a money limit could not count.
pub fn check_fallbacks(limits: &Limits, fallbacks: &[Fallback]) -> Result<(), PlaceError> {
    match fallbacks.iter().find(|fallback| limits.money.is_some() && fallback.info.price.is_none()) {
        Some(fallback) => Err(PlaceError::Usage(format!(
            "a money budget needs the price of the fallback model, which is not known; add it under \
             `models.catalogue` in the settings, or leave the fallback out: {}",
            fallback.id
        ))),
        None => Ok(()),
    }
}

/// Refuses limits that cannot be kept.
pub fn check_limits(limits: &Limits, model: &Model) -> Result<(), PlaceError> {
    if limits.money.is_some() && model.info.price.is_none() {
        return Err(PlaceError::Usage(format!(
            "a money budget needs the price of the model, which is not known; add it under \
             `models.catalogue` in the settings, or limit turns instead: {}",
            model.name
        )));
    }
    Ok(())
}
