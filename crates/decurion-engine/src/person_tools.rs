//! Calls that are a question to a person by themselves. Takes such a call before, while and after somebody is asked;
//! gives what differs from any other call: who may not ask, what is no answer, and what the model reads of a refusal.

use decurion_protocol::choice::{self, ASK, EXIT_PLAN};
use decurion_protocol::{Mode, ToolOutput};
use serde_json::Value;

use crate::permission::ENTER_PLAN;
pub use crate::permission::PERSON_TOOLS as NAMES;

/// Why such a call is answered before anybody is asked, if so. `agent`: whether a sub-agent calls; a fork has the tools
/// of its parent to the byte and so may try. `mode`: the session's.
pub fn refused(tool: &str, agent: bool, mode: Mode) -> Option<ToolOutput> {
    if !NAMES.contains(&tool) {
        return None;
    }
    if agent {
        return Some(ToolOutput::error(format!(
            "{tool} is for the session's own agent: a sub-agent asks no person. Say in your report what is to be decided."
        )));
    }
    match (tool, mode) {
        (EXIT_PLAN, Mode::Plan) => None,
        (EXIT_PLAN, mode) => Some(ToolOutput::error(format!(
            "There is no plan to agree to: the session is not in plan mode (its mode is {mode}). Go on with the work."
        ))),
        (ENTER_PLAN, Mode::Plan) => Some(ToolOutput::error("The session is in plan mode already.")),
        _ => None,
    }
}

/// The input as a person is asked about it. Answers that a model writes itself are nobody's.
pub fn as_asked(tool: &str, input: Value) -> Value {
    let forged = || input.get("answers").is_some() || input.get("annotations").is_some();
    if tool == ASK && forged() { choice::unanswered(&input) } else { input }
}

/// Whether letting a call with this input go on answers nothing: whoever lets it go on in a person's place has not said
/// what was chosen.
pub fn is_unanswered(tool: &str, input: &Value) -> bool {
    tool == ASK && choice::chosen(input).is_empty()
}

/// What the model reads of a call that was refused.
pub fn refusal(tool: &str, reason: &str) -> String {
    match tool {
        ASK => format!("The questions were not answered: {reason}"),
        EXIT_PLAN => format!(
            "The plan was not agreed to, and the session stays in plan mode: {reason}\nChange the plan accordingly and \
             call {EXIT_PLAN} again, or ask if it is not clear what is wanted."
        ),
        _ => format!("Permission denied: {reason}"),
    }
}
