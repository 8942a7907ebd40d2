//! Skills and commands at work. Takes a name and arguments, from the model by the Skill tool or from a person by
//! `/name`, gives the text with its arguments and the output of its inline commands in place, the rules that
//! hold while it is followed, or an agent of its own that follows it.
//!
//! Inline commands (`` !`cmd` ``) are calls of Bash: the same rules decide about them, the same people are asked.
//! What is refused says so in the text. The call of the skill is on record before the first of them runs, so
//! after a crash none runs twice.

mod listing;
pub mod slash;
mod template;

use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Event, HookEvent, Intent, OwnRules, Rule, SessionId, Skill, SkillKind, ToolEffect, ToolOutput,
};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSet, ToolSpec, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent_tools::agent;
use crate::audit::{self, decided_by};
use crate::bench::{Bench, Call};
use crate::call::{Confined, denied_agent, inline_permit, withheld};
use crate::child::AgentInput;
use crate::context::Context;
use crate::ports::Library;
use crate::prompt::OFFER;
use crate::run_handle::RunHandle;
pub use decurion_protocol::nearest;
pub use template::split as words;
use template::{Piece, Template};

pub const NAME: &str = "Skill";
/// What an inline command may take at most, in milliseconds.
const INLINE_TIMEOUT: u64 = 60_000;
/// How many inline commands a text may have.
const MOST_COMMANDS: usize = 32;
/// Characters of the list for each thousand tokens of a model's window: about one in a hundred.
const LISTING_CHARS: u64 = 40;

/// What stands in the place of the list where it is empty.
const NONE_LISTED: &str = "(There are none now. You are told if one comes that is about what you work on.)";

/// How long the list of skills may be for a model with this window, unless the settings say.
pub fn listing_budget(setting: Option<usize>, window: u64) -> usize {
    setting.unwrap_or_else(|| usize::try_from(window / 1000 * LISTING_CHARS).unwrap_or(usize::MAX))
}

pub struct SkillTool {
    spec: ToolSpec,
    library: Arc<dyn Library>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Input {
    skill: String,
    args: Option<String>,
}

impl SkillTool {
    /// The tool, told of these skills; none where there can never be any. It is offered while there are none, too:
    /// the tools of a session stay the same, and a skill may come later.
    pub fn new(skills: &[Arc<Skill>], library: &Arc<dyn Library>, budget: usize) -> Option<Self> {
        if !library.has_skills() {
            return None;
        }
        let listed: Vec<&Skill> =
            skills.iter().filter(|skill| is_listed(skill)).map(|skill| &**skill).collect();
        let list = if listed.is_empty() { NONE_LISTED.to_owned() } else { listing::list(&listed, budget) };
        let description = include_str!("skill.md").trim_end().replace("{skills}", &list);
        let schema = json!({
            "type": "object",
            "properties": {
                "skill": {"type": "string", "minLength": 1, "description": "The name of the skill, from the list"},
                "args": {"type": "string", "description": "What the skill is to work on, if it takes anything"}
            },
            "required": ["skill"],
            "additionalProperties": false
        });
        Some(Self { spec: ToolSpec::new(NAME, &description, schema), library: Arc::clone(library) })
    }
}

/// Whether a model is told of a skill from the start.
fn is_listed(skill: &Skill) -> bool {
    skill.invocable.by_model() && skill.paths.is_empty()
}

impl Tool for SkillTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input: Input = typed::parse(&self.spec, input)?;
        let name = input.skill.trim_start_matches('/');
        let skill = self.library.find(name);
        let mut intent = Intent::titled(format!("Skill {name}"));
        // An agent of its own, or words alone, keep nobody else waiting.
        if skill.as_ref().is_none_or(|skill| skill.fork) {
            intent = intent.together();
        }
        // One that the model may not call is refused by itself, with the reason.
        if skill.is_none_or(|skill| skill.allowed_tools.is_empty() || !skill.invocable.by_model()) {
            intent.words = Some("a skill is words; what they lead to is decided call by call".to_owned());
        }
        Ok(intent)
    }

    /// Never called: a skill needs the rules of its run, so the call is done where these are.
    fn run<'a>(&'a self, _cx: &'a ToolContext, _input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async { ToolOutput::error("a skill works inside a session only") })
    }
}

/// Does a call of the Skill tool.
pub async fn run(bench: &Bench<'_>, call: &Call, cx: &ToolContext, input: &Value) -> ToolOutput {
    let Ok(Input { skill: name, args }) = serde_json::from_value::<Input>(input.clone()) else {
        return ToolOutput::usage_error("the input of Skill is {skill, args?}");
    };
    let name = name.trim_start_matches('/');
    let library = &bench.run.library;
    let Some(skill) = library.find(name).filter(|skill| skill.invocable.by_model()) else {
        return ToolOutput::usage_error(unknown(&**library, name));
    };
    let args = args.unwrap_or_default();
    let body = match body(bench, &skill) {
        Ok(body) => body,
        Err(reason) => return ToolOutput::error(format!("The skill {name} cannot be read: {reason}")),
    };
    let text = expand(bench, call, cx, &skill, &body, &args).await;
    if skill.fork {
        return forked(bench, cx, &skill, text).await;
    }
    let output = ToolOutput::text(format!("Follow the skill {} now.\n\n{text}", skill.name))
        .with_structured(json!({"success": true, "commandName": skill.name}));
    let rules = own_rules(&skill);
    if rules.is_empty() && skill.hooks.is_none() {
        return output;
    }
    output.with_effect(ToolEffect::Follows { skill: skill.name.clone(), rules })
}

/// What is said about a name that no skill has.
fn unknown(library: &dyn Library, name: &str) -> String {
    if library.find(name).is_some() {
        return format!("The skill {name} can only be called by the user, as /{name}.");
    }
    let skills = library.skills();
    let names = skills.iter().filter(|skill| skill.invocable.by_model()).map(|skill| skill.name.as_str());
    let near = nearest(name, names);
    if near.is_empty() {
        return format!("Unknown skill: {name}. The skills are listed in the description of this tool.");
    }
    format!("Unknown skill: {name}. Did you mean {}?", near.join(" or "))
}

/// The rules that hold while a skill is followed. An entry that cannot be read allows nothing, and forbids its
/// whole tool where it forbids.
pub fn own_rules(skill: &Skill) -> OwnRules {
    let read = |text: &String| Rule::parse(text, RuleSource::Command);
    let whole = |text: &String| Rule {
        tool: text.split('(').next().unwrap_or_default().trim().to_owned(),
        specifier: None,
        source: RuleSource::Command,
    };
    OwnRules {
        allow: skill.allowed_tools.iter().filter_map(|text| read(text).ok()).collect(),
        deny: skill.disallowed_tools.iter().map(|text| read(text).unwrap_or_else(|_| whole(text))).collect(),
        instead: false,
    }
}

/// Whether one that a person typed is followed by an agent of its own, which the model is told to call.
pub fn is_by_agent(skill: &Skill, tools: &ToolSet) -> bool {
    skill.fork && skill.invocable.by_model() && tools.get(NAME).is_some()
}

/// The rules that hold for what a person typed: those of the skill, or that it may be called.
pub fn typed_rules(skill: &Skill, tools: &ToolSet) -> OwnRules {
    if !is_by_agent(skill, tools) {
        return own_rules(skill);
    }
    // What a person calls nobody is asked about; what its agent may do is decided where that begins.
    let called =
        Rule { tool: NAME.to_owned(), specifier: Some(skill.name.clone()), source: RuleSource::Command };
    OwnRules { allow: vec![called], ..OwnRules::default() }
}

/// The text of a skill with everything in its place.
pub async fn expand(
    bench: &Bench<'_>,
    call: &Call,
    cx: &ToolContext,
    skill: &Skill,
    body: &str,
    args: &str,
) -> String {
    let template = Template::parse(body);
    let values = values(skill, args, bench.spec.session);
    let mut text = String::new();
    let mut commands = 0;
    for piece in template.fill(&values) {
        match piece {
            Piece::Text(words) => text.push_str(&words),
            Piece::Command(command) => {
                commands += 1;
                if commands > MOST_COMMANDS {
                    text.push_str("[not run: too many commands in one text]");
                } else {
                    text.push_str(&inline(bench, call, cx, &skill.name, &command).await);
                }
            }
        }
    }
    framed(skill, &text)
}

/// A skill's other files are named from its folder.
fn framed(skill: &Skill, text: &str) -> String {
    match skill.kind {
        SkillKind::Skill => format!("Base directory for this skill: {}\n\n{}", skill.folder, text.trim()),
        SkillKind::Command => text.trim().to_owned(),
    }
}

fn values(skill: &Skill, args: &str, session: SessionId) -> template::Values {
    template::Values::new(args, &skill.arguments, skill.folder.as_str(), &session.to_string())
}

/// The text of a skill as part of an agent's opening: nobody calls it with arguments, and nothing of it runs.
pub fn preloaded(skill: &Skill, body: &str, session: SessionId) -> String {
    let template = Template::parse(body);
    let pieces = template.fill(&values(skill, "", session));
    let text: String = pieces
        .into_iter()
        .map(|piece| match piece {
            Piece::Text(words) => words,
            Piece::Command(command) => format!("[run it yourself if you need it: `{command}`]"),
        })
        .collect();
    framed(skill, &text)
}

/// Runs one inline command as a call of Bash, if the rules or a person let it; gives what stands in its place.
async fn inline(bench: &Bench<'_>, call: &Call, cx: &ToolContext, skill: &str, command: &str) -> String {
    let Some(bash) = bench.run.tools.get("Bash").cloned() else {
        return format!("[not run, because there is no shell here: `{command}`]");
    };
    let input = json!({"command": command, "timeout": INLINE_TIMEOUT});
    let own = Call { input, name: "Bash".to_owned(), ..call.clone() };
    let (rules, input, confined) = match inline_permit(bench, own, &bash).await {
        Ok(permitted) => permitted,
        Err(reason) => return format!("[not run: `{command}`: {reason}]"),
    };
    let clean = |text: String| (bench.run.equipment.redact)(&text).unwrap_or(text);
    let text = clean(format!("skill {skill} runs: {command}"));
    let noted = Event::Notice { level: "info".to_owned(), text };
    if bench.run.journal.write(&bench.run.who, vec![noted]).await.is_err() {
        return format!("[not run, because it could not be put on record: `{command}`]");
    }
    let cx = ToolContext {
        run: cx.run,
        call: cx.call.clone(),
        called: "Bash".to_owned(),
        around: cx.around.clone(),
        cancel: cx.cancel.clone(),
        progress: cx.progress.clone(),
        seen: Arc::clone(&cx.seen),
        spill: Arc::clone(&cx.spill),
        rules: Arc::new(rules),
        processes: cx.processes.clone(),
        sandbox: None,
        printed: Arc::default(),
        held: None,
        environment: Arc::clone(&cx.environment),
        limits: Arc::clone(&cx.limits),
        http: cx.http.clone(),
        detached: cx.detached.clone(),
        elicit: None,
        host: cx.host.clone(),
    };
    let cx = Confined::around(confined.as_ref(), cx);
    // What a prompt holds is not looked at again.
    clean(bash.run(&cx, input).await.content.text().trim_end().to_owned())
}

/// Lets an agent of its own follow a skill.
async fn forked(bench: &Bench<'_>, cx: &ToolContext, skill: &Skill, prompt: String) -> ToolOutput {
    let kind = skill.agent.clone().unwrap_or_else(|| "general-purpose".to_owned());
    if let Some(decision) = denied_agent(bench, &kind) {
        let intent = Intent::titled(format!("agent {kind} for the skill {}", skill.name));
        let by = decided_by(&decision, &decision);
        // A journal that is lost ends the run.
        let _ = audit::record(bench, &cx.call, "Agent", &intent, (&decision, by)).await;
        return ToolOutput::error(format!("The skill {} needs an agent: {}", skill.name, decision.reason));
    }
    let input = AgentInput {
        description: format!("skill {}", skill.name),
        prompt,
        subagent_type: Some(kind),
        model: skill.model.clone(),
        model_from: Some(skill.path.clone()),
        effort: skill.effort.clone(),
        run_in_background: Some(false),
        own_rules: OwnRules { instead: !skill.allowed_tools.is_empty(), ..own_rules(skill) },
        skill: skill.hooks.is_some().then(|| skill.name.clone()),
        ..AgentInput::default()
    };
    agent::start(cx, input, bench.run.equipment.result_chars).await
}

/// The text of a skill, unless a rule forbids to read the file that it is a link to. The error is for the model.
pub fn body(bench: &Bench<'_>, skill: &Skill) -> Result<String, String> {
    match withheld(bench).standing(&skill.path) {
        Some(reason) => Err(format!("{}: {reason}", skill.path)),
        None => bench.run.library.body(skill),
    }
}

/// The skills that a definition names, in its agent's opening.
#[derive(Default)]
pub struct Preloaded {
    pub texts: Vec<String>,
    /// Those that bring hooks.
    pub hooked: Vec<String>,
    /// The names that mean nothing.
    pub missing: Vec<String>,
}

/// Reads the skills that a definition names.
pub fn preload(bench: &Bench<'_>) -> Preloaded {
    let (library, session) = (&bench.run.library, bench.spec.session);
    let mut read = Preloaded::default();
    for name in &bench.spec.definition.equipment.skills {
        let found = library.find(name).and_then(|skill| Some((body(bench, &skill).ok()?, skill)));
        match found {
            Some((body, skill)) => {
                let text = preloaded(&skill, &body, session);
                read.texts.push(format!("{}\n\n{text}", slash::header(&skill.name, "")));
                read.hooked.extend(skill.hooks.is_some().then(|| skill.name.clone()));
            }
            None => read.missing.push(name.clone()),
        }
    }
    read
}

/// Puts the hooks of the skills that an agent has read in force: for that agent, not for those below it. They
/// are looked up by name each time a conversation is taken up, so that trust that was taken back holds.
pub fn arm(run: &RunHandle, context: &Context) {
    let library = &run.library;
    let declared = |name: &str| {
        let Some(skill) = library.find(name) else { return Vec::new() };
        let mut hooks = library.hooks_of(&skill);
        // The end of an agent below the root has another name.
        if run.spec.agent.is_some() {
            let stops = hooks.iter_mut().filter(|hook| hook.event == HookEvent::Stop);
            stops.for_each(|hook| hook.event = HookEvent::SubagentStop);
        }
        hooks
    };
    for problem in run.hooks.learn(&context.state().skills, declared) {
        tracing::warn!("{problem}");
    }
}

/// A skill as a model is told of it that has come to a file the skill is about.
pub fn offer(skill: &Skill) -> String {
    let line = listing::list(&[skill], usize::MAX);
    format!(
        "{OFFER}{}\">\nThis skill is about files like those you have just read or changed. Call it with the Skill \
         tool if it fits what you do:\n{line}\n</skill>",
        skill.name
    )
}
