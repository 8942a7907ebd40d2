//! The agents that can be started, as their files are now. Takes the settings, gives the engine definitions
//! that are read again when a file has changed.

use std::sync::{Arc, Mutex, PoisonError};

use decurion_config::agents::{AgentOrigin, Severity};
use decurion_config::{AgentRequest, Agents, Loaded, LoadedAgent, Plugins};
use decurion_engine::Definitions;
use decurion_engine::permission::{denied_type, effective_mode};
use decurion_protocol::{AgentDefinition, HookDeclaration, Mode};

use crate::args::RunArgs;
use crate::command::agents;
use crate::report::{Failure, note, visible};

/// Definitions that follow their files.
pub struct LiveDefinitions {
    loaded: Arc<Loaded>,
    request: AgentRequest,
    agents: Mutex<LoadedDefinitions>,
}

/// What was read last.
struct LoadedDefinitions {
    agents: Agents,
    /// Those that count, whole; the same ones each time, so that what is made from them can be shared.
    active: Vec<Arc<AgentDefinition>>,
}

impl LoadedDefinitions {
    fn load(request: &AgentRequest) -> Self {
        let agents = Agents::load(request);
        let active = agents.active().map(whole).collect();
        Self { agents, active }
    }
}

impl LiveDefinitions {
    /// Those of these settings, of `--agents` and of plugins.
    pub fn new(loaded: &Arc<Loaded>, flag: Option<&str>, plugins: &Plugins) -> Self {
        let mut request = agents::request(loaded, plugins);
        request.flag = flag.map(str::to_owned);
        let agents = Mutex::new(LoadedDefinitions::load(&request));
        Self { loaded: Arc::clone(loaded), request, agents }
    }

    /// Why a definition that someone names cannot be used, where one was found.
    pub fn problem(&self, name: &str) -> Option<String> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.agents.unusable(name).map(ToString::to_string)
    }

    /// Prints each error that keeps a definition from being used and, for definitions from the command line or a host,
    /// which no `lint` can check, the warnings too. A text that holds no definitions at all is a failure.
    pub fn announce(&self) -> Result<(), Failure> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in &agents.agents.problems {
            let is_given = problem.origin == AgentOrigin::Flag;
            match problem.severity {
                Severity::Error => {}
                Severity::Warning if is_given => {}
                Severity::Warning | Severity::Note => continue,
            }
            if is_given && problem.agent.is_none() && problem.line.is_none() {
                return Err(Failure::usage(problem.to_string())
                    .hint(r#"give a JSON object: {"NAME": {"description": "…", "prompt": "…"}}"#));
            }
            note(visible(&problem.to_string()));
        }
        Ok(())
    }

    /// Looks at the definitions as their files are now.
    fn look<T>(&self, at: impl FnOnce(&LoadedDefinitions) -> T) -> T {
        let mut held = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if held.agents.is_stale(&self.request) {
            *held = LoadedDefinitions::load(&self.request);
        }
        at(&held)
    }
}

impl Definitions for LiveDefinitions {
    fn all(&self) -> Vec<Arc<AgentDefinition>> {
        self.look(|held| held.active.clone())
    }

    fn find(&self, name: &str) -> Option<Arc<AgentDefinition>> {
        self.look(|held| {
            let found = &held.agents.get(name)?.definition.name;
            held.active.iter().find(|definition| definition.name == *found).cloned()
        })
    }

    fn hooks_of(&self, definition: &AgentDefinition) -> Vec<HookDeclaration> {
        self.loaded.hooks_of(definition).declarations
    }
}

/// The definition with what its place says about it.
fn whole(agent: &LoadedAgent) -> Arc<AgentDefinition> {
    if !agent.dont_ask_denies || agent.definition.mode != Some(Mode::DontAsk) {
        return Arc::clone(&agent.definition);
    }
    Arc::new(AgentDefinition { dont_ask_denies: true, ..(*agent.definition).clone() })
}

/// The definition that the session itself runs as: `--agent`, or that of the settings, or the usual one.
pub fn main_agent(
    args: &RunArgs,
    loaded: &Loaded,
    live: &LiveDefinitions,
) -> Result<Option<Arc<AgentDefinition>>, Failure> {
    let Some(name) = args.agent.as_deref().or(loaded.settings.agent.as_deref()) else { return Ok(None) };
    if let Some(definition) = live.find(name) {
        return match denied_type(&loaded.rules.set, &definition.name) {
            Some(rule) => {
                let text = format!("--agent: agents of type {} are denied by {rule}", definition.name);
                Err(Failure::usage(text).hint("`decurion agents list` shows which types are denied"))
            }
            None => Ok(Some(definition)),
        };
    }
    let reason = live.problem(name).unwrap_or_else(|| format!("agent not found: {name}"));
    Err(Failure::usage(format!("--agent: {reason}")).hint("`decurion agents list` shows all there are"))
}

/// The mode of a session that runs as this definition.
pub fn mode(definition: &AgentDefinition, loaded: &Loaded) -> Option<Mode> {
    definition.mode?;
    let session = loaded.settings.permissions.default_mode;
    let trusted = loaded.trust.is_trusted();
    let (mode, why) = effective_mode(session, definition.mode, definition.source, trusted);
    if Some(mode) != definition.mode {
        note(format!("agent {:?}: {why}", definition.name));
    }
    Some(mode)
}
