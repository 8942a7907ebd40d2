//! Agent: another agent on a task of its own. Takes a description, a prompt and a type, gives its report, or
//! where to look for it if nobody waits.

use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentDefinition, Attention, Delivery, Intent, Outcome, RuleSet, TaskRecord, ToolContent, ToolEffect,
    ToolOutput,
};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::child::{AgentInput, AgentSettings, BackgroundChoice, FORK, ISOLATION};
use crate::notice;
use crate::permission::denied_type;
use crate::session_port::{Spawned, Spawning};
use crate::task::{Ending, TaskView};

const NAME: &str = "Agent";
/// Inputs of the ecosystem that are understood and not built yet.
const NOT_YET: [&str; 3] = ["team_name", "name", "mode"];

pub struct Agent {
    spec: ToolSpec,
    fork_by_default: bool,
    result_chars: usize,
}

impl Agent {
    /// The tool, told of those of these definitions that the rules do not deny.
    pub fn new(definitions: &[Arc<AgentDefinition>], settings: &AgentSettings, rules: &RuleSet) -> Self {
        let background = settings.background == BackgroundChoice::Model;
        let mut description = include_str!("agent.md")
            .trim_end()
            .replace("{agents}", &list(definitions, settings.forks, rules));
        if background {
            description = format!("{description}\n{}", include_str!("agent_background.md"));
        }
        Self {
            spec: ToolSpec::new(NAME, &description, schema(background)),
            fork_by_default: settings.fork_by_default && settings.forks,
            result_chars: settings.result_chars,
        }
    }

    fn parse(&self, input: &Value) -> Result<AgentInput, InputError> {
        if let Some(field) = NOT_YET.iter().find(|field| input.get(**field).is_some()) {
            return Err(InputError::new(NAME, format!("`{field}` is not available in this version")));
        }
        let mut input = input.clone();
        if let Some(members) = input.as_object_mut()
            && !self.offers("run_in_background")
        {
            members.shift_remove("run_in_background");
        }
        typed::parse(&self.spec, &input)
    }

    fn offers(&self, property: &str) -> bool {
        self.spec.input_schema["properties"].get(property).is_some()
    }

    fn kind(&self, input: &AgentInput) -> String {
        let usual = if self.fork_by_default { "fork" } else { "general-purpose" };
        input.subagent_type.clone().unwrap_or_else(|| usual.to_owned())
    }
}

/// The types that a model may be told of: neither hidden nor denied.
pub fn offered_types<'a>(
    definitions: &'a [Arc<AgentDefinition>],
    forks: bool,
    rules: &RuleSet,
) -> Vec<&'a str> {
    let shown = definitions.iter().filter(|definition| !definition.hidden);
    let names = shown.map(|definition| definition.name.as_str()).chain(forks.then_some(FORK));
    names.filter(|name| denied_type(rules, name).is_none()).collect()
}

/// One line per definition.
fn list(definitions: &[Arc<AgentDefinition>], forks: bool, rules: &RuleSet) -> String {
    let offered = offered_types(definitions, forks, rules);
    let line = |definition: &Arc<AgentDefinition>| {
        let tools = match (&definition.tools.only, definition.tools.except.is_empty()) {
            (Some(only), _) if !only.iter().any(|name| name == "*") => only.join(", "),
            (_, true) => "all".to_owned(),
            (_, false) => format!("all but {}", definition.tools.except.join(", ")),
        };
        let sees = if definition.fork_context { "; sees the conversation" } else { "" };
        let description = definition.description.trim().replace('\n', " ");
        format!("- {}: {description} (tools: {tools}{sees})", definition.name)
    };
    let is_offered = |name: &str| offered.contains(&name);
    let shown = definitions.iter().filter(|one| !one.hidden && is_offered(&one.name)).map(line);
    let fork = "- fork: a copy of yourself with this whole conversation, for a side task that needs it (tools: yours; sees the conversation)";
    shown.chain(is_offered(FORK).then(|| fork.to_owned())).collect::<Vec<_>>().join("\n")
}

fn schema(background: bool) -> Value {
    let mut properties = json!({
        "description": {"type": "string", "description": "The task in 3 to 5 words, for people"},
        "prompt": {"type": "string", "minLength": 1, "description": "Everything the agent needs to know: it sees nothing else"},
        "subagent_type": {"type": "string", "description": "Which agent"},
        "model": {"type": "string", "description": "sonnet, opus, haiku, inherit, or the id of a model; leave it out unless asked for"},
        "resume": {"type": "string", "description": "The id of an earlier agent to continue"},
        "max_turns": {"type": "integer", "exclusiveMinimum": 0},
        "effort": {"type": "string"},
        "isolation": {
            "type": "string",
            "enum": ISOLATION,
            "description": "worktree: a git checkout of its own, on its own branch, kept if it changes something; +dirty: with what is not committed here"
        },
        "output_schema": {"type": "object", "description": "A JSON Schema that its report must satisfy; the report is then JSON"},
        "budget": {
            "type": "object",
            "description": "The most it may use",
            "properties": {
                "tokens": {"type": "integer", "exclusiveMinimum": 0},
                "usd": {"type": "number", "exclusiveMinimum": 0},
                "seconds": {"type": "integer", "exclusiveMinimum": 0},
                "spawns": {"type": "integer", "minimum": 0},
                "turns": {"type": "integer", "exclusiveMinimum": 0}
            },
            "additionalProperties": false
        }
    });
    if background && let Some(members) = properties.as_object_mut() {
        let property =
            json!({"type": "boolean", "description": "Return at once; you are notified when it ends"});
        members.insert("run_in_background".to_owned(), property);
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": ["description", "prompt"],
        "additionalProperties": false
    })
}

impl Tool for Agent {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input = self.parse(input)?;
        // Who is taken up again is known only when it is looked up, and was allowed when it began.
        if input.resume.is_some() {
            return Ok(Intent::titled(format!("resume: {}", input.description)).together());
        }
        let kind = self.kind(&input);
        let mut intent = Intent::titled(format!("{kind}: {}", input.description)).together();
        intent.agent = Some(kind);
        Ok(intent)
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input) {
                Ok(mut input) => {
                    if input.resume.is_none() {
                        input.subagent_type = Some(self.kind(&input));
                    }
                    start(cx, input, self.result_chars).await
                }
                Err(error) => error.into(),
            }
        })
    }
}

/// Starts an agent and waits for it, unless nobody has to.
pub(crate) async fn start(cx: &ToolContext, input: AgentInput, result_chars: usize) -> ToolOutput {
    let Some(caller) = caller(cx) else { return ToolOutput::error(NO_SESSION) };
    let spawning = Box::new(Spawning {
        asker: caller.run.clone(),
        call: cx.call.clone(),
        input,
        cwd: cx.around.cwd.clone(),
        seen: Arc::clone(&cx.seen),
        prefix: caller.prefix.clone(),
        follows: caller.follows.clone(),
    });
    let mut spawned = match caller.run.session.spawn(spawning).await {
        Some(Ok(spawned)) => spawned,
        Some(Err(reason)) => return ToolOutput::error(reason),
        None => return ToolOutput::error(NO_SESSION),
    };
    if spawned.record.attention == Attention::Background {
        return launched(&spawned, false);
    }
    match attend(&mut spawned).await {
        Some(ending) => completed(cx, &spawned, &ending, result_chars).await,
        None => launched(&spawned, true),
    }
}

/// The report, cut to its budget, the whole of it in a file.
async fn completed(cx: &ToolContext, spawned: &Spawned, ending: &Ending, result_chars: usize) -> ToolOutput {
    let shown = crate::spill::within(cx, notice::report(ending), result_chars).await;
    let effect = ToolEffect::Delivered { delivery: Delivery::Ending(ending.id.clone()) };
    if let Outcome::Failed { error } = &ending.outcome {
        let TaskRecord { task, output_file, .. } = &spawned.record;
        let mut text = format!("The agent failed: {error}\nagentId: {task}\nIts transcript: {output_file}");
        if notice::partial(ending).is_some() {
            text = format!("{text}\nWhat it had said by then:\n{shown}");
        }
        return ToolOutput::error(text).with_effect(effect);
    }
    let mut content = notice::completed(&spawned.record, ending, &shown);
    if let ToolContent::Blocks(blocks) = &mut content {
        let remarks = spawned.remarks.iter().map(decurion_protocol::Block::text);
        blocks.splice(1..1, remarks);
    }
    let value = notice::completed_value(&spawned.record, ending, &spawned.model, &shown);
    ToolOutput { content, ..ToolOutput::text("") }.with_structured(value).with_effect(effect)
}

fn launched(spawned: &Spawned, by_user: bool) -> ToolOutput {
    let text = notice::launched(&spawned.record, &spawned.remarks);
    let content = ToolContent::Blocks(vec![decurion_protocol::Block::text(text)]);
    let value = notice::launched_value(&spawned.record, &spawned.model, by_user, spawned.shared);
    ToolOutput { content, ..ToolOutput::text("") }.with_structured(value)
}

/// Waits until the agent has ended, or nobody has to wait for it any more.
async fn attend(spawned: &mut Spawned) -> Option<Arc<Ending>> {
    let parted =
        |view: &TaskView| view.ending.is_some() || view.state.attention() == Some(Attention::Background);
    match spawned.view.wait_for(parted).await {
        Ok(view) => view.ending.clone(),
        Err(_) => None,
    }
}
