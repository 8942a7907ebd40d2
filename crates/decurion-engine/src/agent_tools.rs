//! The tools by which agents start, watch, stop and tell each other. Each takes a model's call and sends the
//! session a wish; the rest is waiting and words.

use std::sync::Arc;

use decurion_protocol::{AgentDefinition, RuleSet};
use decurion_tools::{Tool, ToolContext};

use crate::child::{AgentSettings, BackgroundChoice};
use crate::run_handle::CallingRun;

pub mod agent;
pub mod ask;
pub mod plan;
pub mod send_message;
pub mod task_output;
pub mod task_stop;
pub mod worktree;

/// The tools, told of those of these definitions that the rules do not deny.
pub fn all(
    definitions: &[Arc<AgentDefinition>],
    settings: &AgentSettings,
    rules: &RuleSet,
) -> Vec<Arc<dyn Tool>> {
    let agent = Arc::new(agent::Agent::new(definitions, settings, rules));
    if settings.background == BackgroundChoice::Never {
        return vec![agent];
    }
    vec![
        agent,
        Arc::new(task_output::TaskOutput::new(settings)),
        Arc::new(task_stop::TaskStop::default()),
        Arc::new(send_message::SendMessage::default()),
    ]
}

/// The tools by which the root asks a person, for what they want and for a plan.
pub fn asking() -> Vec<Arc<dyn Tool>> {
    let ask: Arc<dyn Tool> = Arc::new(ask::AskUserQuestion::default());
    std::iter::once(ask).chain(plan::both()).collect()
}

/// The run that calls.
fn caller(cx: &ToolContext) -> Option<Arc<CallingRun>> {
    Arc::clone(cx.host.as_ref()?).downcast::<CallingRun>().ok()
}

/// What is said where a tool of the engine is called outside it.
const NO_SESSION: &str = "this tool works inside a session only, and the session is gone";
