//! What several of these tests begin with. Takes a script, gives a stage on which agents can be started.

use decurion_engine::AgentSettings;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{AgentDefinition, AgentSource};
use decurion_testkit::stage::Stage;

/// A stage with the usual settings of agents.
pub fn stage(script: &str) -> Stage {
    let mut stage = Stage::new(script);
    stage.agent_settings = AgentSettings::default();
    stage
}

/// The same stage, on which processes really run.
pub fn with_processes(mut stage: Stage) -> Stage {
    let program = env!("CARGO_BIN_EXE_decurion-engine-guard").into();
    stage.processes = Some(Guard::new(GuardProgram { program, args: Vec::new() }));
    stage
}

/// An agent of the user's that may use what its parent may.
pub fn worker() -> AgentDefinition {
    AgentDefinition {
        name: "worker".into(),
        description: "works".into(),
        prompt: "You do a part of the work.".into(),
        source: AgentSource::User,
        ..AgentDefinition::default()
    }
}
