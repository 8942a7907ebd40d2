//! Answers for benches: a fixed pattern that is found without parsing the request. Takes the bytes of a
//! body, gives one shell call per turn until enough turns have passed, then a closing text.

use decurion_model::script::{AnswerPlan, CallInput, RequestView, ScriptStep};
use decurion_protocol::Usage;
use memchr::memmem;
use serde_json::{Map, Value, json};

/// A pattern of answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// How many turns of an agent (or of the root, if it starts none) call the shell.
    pub rounds: u32,
    /// How many agents the root starts in its first turn; with 0 the root does the rounds itself.
    pub agents: u32,
    pub command: String,
}

impl Rounds {
    /// So many rounds of `true`.
    pub fn new(rounds: u32) -> Self {
        Self { rounds, agents: 0, command: "true".into() }
    }

    /// What can be seen of a request without parsing it. A quote inside a text is escaped, so the pattern
    /// occurs nowhere but at the head of a message.
    pub(super) fn seen(path: &str, body: &[u8]) -> RequestView {
        let spoken = memmem::find_iter(body, br#""role":"assistant""#).count();
        RequestView {
            agent: path.rsplit('/').next().unwrap_or_default().to_owned(),
            path: path.to_owned(),
            model: "test-model".into(),
            turn: u32::try_from(spoken).unwrap_or(u32::MAX).saturating_add(1),
            attempt: 1,
            bytes: body.len() as u64,
            ..RequestView::default()
        }
    }

    pub(super) fn plan(&self, seen: &RequestView) -> AnswerPlan {
        let is_root = !seen.path.contains('/');
        let steps = match (is_root && self.agents > 0, seen.turn) {
            (true, 1) => (1..=self.agents).map(agent_call).collect(),
            (false, turn) if turn <= self.rounds => {
                // Each differs from the last, since the same call again and again is a loop.
                let description = format!("round {turn}");
                vec![call("Bash", &json!({"command": self.command, "description": description}))]
            }
            _ => vec![ScriptStep::Say {
                text: "all rounds are done".into(),
                chunk: 64,
                every: std::time::Duration::ZERO,
            }],
        };
        AnswerPlan {
            line: 0,
            failure: None,
            steps,
            stop: None,
            usage: Usage { input_tokens: seen.bytes / 4, output_tokens: 20, ..Usage::default() },
            model: None,
            message_id: None,
            splits: Vec::new(),
            cut: None,
        }
    }
}

fn agent_call(number: u32) -> ScriptStep {
    call(
        "Agent",
        &json!({
            "description": format!("worker {number}"),
            "prompt": format!("do the rounds of worker {number}"),
            "subagent_type": "general-purpose",
            "run_in_background": false,
        }),
    )
}

fn call(name: &str, input: &Value) -> ScriptStep {
    let input = CallInput::Json(input.as_object().cloned().unwrap_or_else(Map::new));
    ScriptStep::Call { name: name.into(), id: None, input }
}
