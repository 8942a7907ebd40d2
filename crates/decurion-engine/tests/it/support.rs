//! What several of these tests begin with. Takes a script, gives a stage on which agents can be started; talks to a session
//! on it.

use decurion_engine::AgentSettings;
use decurion_exec::{Guard, GuardProgram};
use decurion_protocol::{AgentDefinition, AgentSource, Block, Command, Event, Link, SessionRequest, Start};
use decurion_testkit::stage::{Stage, send};
use futures_util::StreamExt as _;

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

/// Asks for this, as request 1.
pub async fn prompt(link: &Link, text: &str) {
    let blocks = vec![Block::text(text)];
    send(link, 1, Command::Prompt { blocks }).await;
}

/// Reads until an event is what is looked for.
pub async fn until<T>(link: &mut Link, wanted: impl Fn(&Event, bool) -> Option<T>) -> T {
    while let Some(envelope) = link.events.next().await {
        if let Some(found) = wanted(&envelope.event, envelope.agent.is_some()) {
            return found;
        }
    }
    panic!("the session ended before");
}

/// The request that opens a session again.
pub fn again(stage: &Stage, link: &Link) -> SessionRequest {
    SessionRequest { start: Start::Resume { id: link.session, at: None }, ..stage.request.clone() }
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
