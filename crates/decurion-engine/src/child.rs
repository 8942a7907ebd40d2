//! Room 2, for children. Who asks + what is asked + the definition → every decision about a sub-agent, each
//! with its reason. Pure, so that `explain` prints exactly what a start would do.

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentDefinition, AgentSource, Limits, Mode, Money, OwnRules, Rule};
use decurion_tools::alias;
use serde::Deserialize;
use serde_json::Value;

use crate::permission::{Undecided, effective_mode};
use crate::ports::Memory;
use crate::prompt;

/// What a definition on the way from the root says about the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeStep {
    /// The mode it asks for.
    pub mode: Option<Mode>,
    /// Where it came from.
    pub source: AgentSource,
    /// Whether its `dontAsk` denies what no rule decides.
    pub denies: bool,
}

impl ModeStep {
    /// What this definition says.
    pub fn of(definition: &decurion_protocol::AgentDefinition) -> Self {
        Self { mode: definition.mode, source: definition.source, denies: definition.dont_ask_denies }
    }
}

/// The type of agents that are a copy of their parent.
pub const FORK: &str = "fork";

/// The tool by which an agent gives a report of a shape that was asked for.
pub const REPORT_TOOL: &str = "StructuredOutput";

/// The tools by which the session's own agent moves the session.
pub const WORKTREE_TOOLS: [&str; 2] = ["EnterWorktree", "ExitWorktree"];

/// Tools that no sub-agent has: they need the person at the root.
pub const NEVER_FOR_AGENTS: &[&str] = &[
    "AskUserQuestion",
    "EnterPlanMode",
    "EnterWorktree",
    "ExitPlanMode",
    "ExitWorktree",
    "TeamCreate",
    "TeamDelete",
];

/// Tools that only built-in definitions have besides.
pub const NEVER_FOR_CUSTOM: &[&str] = &["ListAgents"];

/// Tools that an agent has in the background, besides those of MCP servers.
pub const BACKGROUND: &[&str] = &[
    "Agent",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "NotebookEdit",
    "Read",
    "SendMessage",
    "Skill",
    "StructuredOutput",
    "TaskOutput",
    "TaskStop",
    "TodoWrite",
    "WebFetch",
    "Write",
];

/// What the model asked for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AgentInput {
    /// A few words for people.
    pub description: String,
    /// All that the child is told.
    pub prompt: String,
    pub subagent_type: Option<String>,
    pub model: Option<String>,
    /// Whether nobody waits for it.
    pub run_in_background: Option<bool>,
    pub resume: Option<String>,
    pub max_turns: Option<u32>,
    /// How hard its model thinks.
    pub effort: Option<String>,
    pub budget: Option<BudgetInput>,
    /// Where it works, if not where its parent does.
    pub isolation: Option<String>,
    /// The JSON Schema that its report must satisfy.
    pub output_schema: Option<Value>,
    /// The file that names the model, where no model did; never the model's to say.
    #[serde(skip)]
    pub model_from: Option<camino::Utf8PathBuf>,
    /// Rules of its own; never the model's to say.
    #[serde(skip)]
    pub own_rules: OwnRules,
    /// The skill that its prompt is the text of, where that brings hooks; never the model's to say.
    #[serde(skip)]
    pub skill: Option<String>,
}

/// Where an agent works, if not where its parent does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// In a checkout of its own.
    Worktree {
        /// Whether what is not committed is copied into it.
        dirty: bool,
    },
}

/// The words for it in a call.
pub const ISOLATION: &[&str] = &["worktree", "worktree+dirty"];

/// Limits as a model or a definition writes them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetInput {
    /// Tokens of all classes.
    pub tokens: Option<u64>,
    pub usd: Option<f64>,
    pub seconds: Option<u64>,
    pub spawns: Option<u32>,
    pub turns: Option<u32>,
}

/// What the settings say about sub-agents.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentSettings {
    /// How deep they may nest.
    pub max_depth: u32,
    /// How many run at once.
    pub max_running: u32,
    /// How many there may be in a session.
    pub max_total: Option<u32>,
    /// Who decides about the background.
    pub background: BackgroundChoice,
    /// Whether an agent without a type is a fork.
    pub fork_by_default: bool,
    /// The model of definitions that name none.
    pub default_model: Option<String>,
    /// The model of all, whatever calls and definitions say.
    pub forced_model: Option<String>,
    /// Characters of a report that its parent is shown.
    pub result_chars: usize,
    /// Characters of a task's output that its parent is shown.
    pub output_chars: usize,
    /// Whether the project's definitions may widen a mode.
    pub trusted: bool,
    /// Whether there are forks.
    pub forks: bool,
}

/// Who decides whether a sub-agent runs in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundChoice {
    /// The model, call by call.
    #[default]
    Model,
    Always,
    /// Never, and there is no background at all.
    Never,
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            max_depth: 1,
            max_running: 128,
            max_total: None,
            background: BackgroundChoice::Model,
            fork_by_default: false,
            default_model: None,
            forced_model: None,
            result_chars: 30_000,
            output_chars: 32_000,
            trusted: false,
            forks: true,
        }
    }
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because<T> {
    pub value: T,
    pub why: String,
}

/// Whether a model's name is one that every provider is asked for in its own way.
pub fn is_alias(name: &str) -> bool {
    matches!(name, "sonnet" | "opus" | "haiku" | "fable" | "opusplan")
}

fn because<T>(value: T, why: impl Into<String>) -> Because<T> {
    Because { value, why: why.into() }
}

/// Which model: the environment, the call, the definition, the default, the parent. A name that means
/// nothing to the provider is the caller's to warn about.
pub fn model(
    settings: &AgentSettings,
    call: Option<&str>,
    definition: &AgentDefinition,
    shares_cache: bool,
    parent: &str,
) -> Because<String> {
    let inherited = |why: &str| because(parent.to_owned(), why);
    if shares_cache {
        return inherited("it sees its parent's conversation, so it has its parent's model");
    }
    let named = |name: &str, who: &str| match name {
        "inherit" => inherited(&format!("{who} says `inherit`")),
        name => because(name.to_owned(), format!("{who} names it")),
    };
    match (&settings.forced_model, call, &definition.model, &settings.default_model) {
        (Some(name), ..) => named(name, "DECURION_SUBAGENT_MODEL"),
        (None, Some(name), ..) => named(name, "the call"),
        (None, None, Some(name), _) => named(name, "the definition"),
        (None, None, None, Some(name)) => named(name, "`agents.default_model`"),
        (None, None, None, None) => inherited("nothing names one, so it is the parent's"),
    }
}

/// What became of one tool of the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolDecision {
    pub tool: String,
    /// Why the child does not have it; none if it does.
    pub removed: Option<String>,
}

/// Which of the parent's tools the child has, in their order.
pub fn tools(
    parent: &[&str],
    definition: &AgentDefinition,
    background: bool,
    may_spawn: bool,
) -> Vec<ToolDecision> {
    let decide = |tool: &str| -> Option<String> {
        let is_mcp = tool.starts_with("mcp__");
        let named = |list: &[String]| list.iter().any(|entry| names(entry, tool));
        if tool == REPORT_TOOL {
            Some("it is its parent's, for the answer to another question".to_owned())
        } else if NEVER_FOR_AGENTS.contains(&tool) {
            Some("no sub-agent has it".to_owned())
        } else if definition.source != AgentSource::Builtin && NEVER_FOR_CUSTOM.contains(&tool) {
            Some("only built-in agents have it".to_owned())
        } else if tool == "Agent" && !may_spawn {
            Some("it would be deeper than `agents.max_depth`".to_owned())
        } else if background && !is_mcp && !BACKGROUND.contains(&tool) {
            Some("it needs a person, and the agent runs in the background".to_owned())
        } else if named(&definition.tools.except) {
            Some("`disallowedTools` names it".to_owned())
        } else if is_mcp || definition.tools.only.as_deref().is_none_or(named) {
            None
        } else {
            Some("`tools` does not name it".to_owned())
        }
    };
    parent.iter().map(|tool| ToolDecision { tool: (*tool).to_owned(), removed: decide(tool) }).collect()
}

/// Tools that keep a memory.
const MEMORY_TOOLS: [&str; 3] = ["Read", "Write", "Edit"];

/// Gives an agent its memory: what it is told of it, the tools to keep it where its own list has none, for that
/// folder alone, and the rules by which no question is asked there.
pub fn remember(definition: &mut AgentDefinition, memory: &Memory) -> Vec<Rule> {
    let text = prompt::memory(memory);
    definition.prompt = format!("{}\n\n{text}", definition.prompt.trim_end());
    let folder = memory.folder.as_str();
    // A path that a pattern would read otherwise gets no rule: then questions are asked.
    if folder.contains(['*', '?', '[', ']', '{', '}', '\\', '(', ')', ',']) {
        return Vec::new();
    }
    let below = format!("/{folder}/**");
    if let Some(only) = &mut definition.tools.only {
        for tool in MEMORY_TOOLS {
            if !only.iter().any(|entry| entry == "*" || entry == tool) {
                only.push(format!("{tool}({below})"));
            }
        }
    }
    let rule = |tool: &str| Rule {
        tool: tool.to_owned(),
        specifier: Some(below.clone()),
        source: RuleSource::Command,
    };
    MEMORY_TOOLS.into_iter().map(rule).collect()
}

/// Whether an entry of a list means a tool.
fn names(entry: &str, tool: &str) -> bool {
    let name = alias::tool(entry.split('(').next().unwrap_or(entry).trim());
    name == "*" || name == tool || (name.starts_with("mcp__") && tool.starts_with(&format!("{name}__")))
}

/// Whether nobody waits for it.
pub fn background(
    settings: &AgentSettings,
    call: Option<bool>,
    definition: &AgentDefinition,
    is_fork: bool,
) -> Because<bool> {
    match settings.background {
        BackgroundChoice::Never => because(false, "background work is switched off"),
        BackgroundChoice::Always => because(true, "`agents.background` says always"),
        BackgroundChoice::Model => match (call, definition.background, is_fork) {
            (Some(asked), ..) => because(asked, "the call says so"),
            (None, true, _) => because(true, "the definition says so"),
            (None, false, true) => because(true, "a fork runs in the background unless asked otherwise"),
            (None, false, false) => because(false, "nothing asks for the background"),
        },
    }
}

/// The mode that the definitions on the way from the root leave of the session's. The session's mode comes with
/// what its `dontAsk` does: where that denies, no definition gives more.
pub fn mode(session: (Mode, Undecided), steps: &[ModeStep], trusted: bool) -> Because<Mode> {
    let (session, undecided) = session;
    let start = because(session, format!("the session's mode: {session}"));
    let decide = |(parent, denies): (Because<Mode>, bool), step: &ModeStep| {
        let shut = parent.value == Mode::DontAsk && denies;
        let denies = denies || step.denies && step.mode == Some(Mode::DontAsk);
        if shut && step.mode.is_some_and(|mode| mode != Mode::Plan) {
            let why = "the parent is denied what no rule allows, and rights only shrink";
            return (because(Mode::DontAsk, why), denies);
        }
        let (mode, why) = effective_mode(parent.value, step.mode, step.source, trusted);
        (because(mode, why), denies)
    };
    steps.iter().fold((start, undecided == Undecided::Deny), decide).0
}

/// What `dontAsk` does with what no rule decides: where a definition on the way means "deny", that holds.
pub fn undecided(session: Undecided, steps: &[ModeStep]) -> Undecided {
    let denies = steps.iter().any(|step| step.denies && step.mode == Some(Mode::DontAsk));
    if denies { Undecided::Deny } else { session }
}

/// Where it works: what the call says, else the definition.
pub fn isolation(call: &AgentInput, definition: &AgentDefinition) -> Option<Isolation> {
    call.isolation.as_deref().map(named_isolation).or_else(|| own_isolation(definition))
}

/// Where an agent of this definition works, if nobody says otherwise; a session's own agent too.
pub fn own_isolation(definition: &AgentDefinition) -> Option<Isolation> {
    definition.equipment.isolation.as_deref().map(named_isolation)
}

fn named_isolation(name: &str) -> Isolation {
    Isolation::Worktree { dirty: name == "worktree+dirty" }
}

/// Its limits: what the call says, else the definition.
pub fn limits(call: &AgentInput, definition: &AgentDefinition) -> Limits {
    let usual = definition.limits.clone();
    let budget = call.budget.clone().unwrap_or_default();
    Limits {
        turns: call.max_turns.or(budget.turns).or(usual.turns),
        money: budget.usd.map(Money::from_dollars).or(usual.money),
        tokens: budget.tokens.or(usual.tokens),
        seconds: budget.seconds.or(usual.seconds),
        spawns: budget.spawns.or(usual.spawns),
    }
}

/// Whether an agent of this definition at this depth may start others. A definition can only forbid.
pub fn may_spawn(settings: &AgentSettings, definition: &AgentDefinition, depth: u32) -> bool {
    depth < settings.max_depth && definition.max_depth != Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::ToolSelection;

    fn definition(model: Option<&str>) -> AgentDefinition {
        AgentDefinition { name: "x".into(), model: model.map(str::to_owned), ..AgentDefinition::default() }
    }

    #[test]
    fn the_first_that_names_a_model_decides() {
        #[rustfmt::skip]
        let rows = [
            // forced, call, definition, default, forks, result
            (None, None, None, None, false, "parent"),
            (None, None, None, Some("d"), false, "d"),
            (None, None, Some("f"), Some("d"), false, "f"),
            (None, Some("c"), Some("f"), Some("d"), false, "c"),
            (Some("e"), Some("c"), Some("f"), Some("d"), false, "e"),
            (None, Some("inherit"), Some("f"), Some("d"), false, "parent"),
            (None, None, Some("inherit"), Some("d"), false, "parent"),
            (Some("inherit"), Some("c"), None, None, false, "parent"),
            (Some("e"), Some("c"), Some("f"), Some("d"), true, "parent"),
        ];
        for (forced, call, own, default, forks, expected) in rows {
            let settings = AgentSettings {
                forced_model: forced.map(str::to_owned),
                default_model: default.map(str::to_owned),
                ..AgentSettings::default()
            };
            let decided = model(&settings, call, &definition(own), forks, "parent");
            assert_eq!(decided.value, expected, "{forced:?} {call:?} {own:?} {default:?}: {}", decided.why);
        }
    }

    #[test]
    fn three_words_name_a_model_with_every_provider() {
        for name in ["sonnet", "opus", "haiku"] {
            assert!(is_alias(name), "{name}");
        }
        assert!(!is_alias("sonnet-4") && !is_alias("provider/model"));
    }

    /// Only, except, background, may spawn, source, what is left.
    type ToolRow =
        (Option<&'static [&'static str]>, &'static [&'static str], bool, bool, AgentSource, &'static str);

    #[test]
    fn a_child_has_what_its_parent_has_less_what_it_may_not() {
        let parent = ["Agent", "AskUserQuestion", "Bash", "ListAgents", "Monitor", "Read", "mcp__git__log"];
        #[rustfmt::skip]
        let rows: &[ToolRow] = &[
            (None, &[], false, true, AgentSource::Builtin, "Agent Bash ListAgents Monitor Read mcp__git__log"),
            (None, &[], false, true, AgentSource::User, "Agent Bash Monitor Read mcp__git__log"),
            (None, &[], false, false, AgentSource::User, "Bash Monitor Read mcp__git__log"),
            (None, &[], true, true, AgentSource::User, "Agent Bash Read mcp__git__log"),
            (Some(&["Read", "Edit"]), &[], false, true, AgentSource::User, "Read mcp__git__log"),
            (Some(&["*"]), &["Bash", "mcp__git"], false, true, AgentSource::User, "Agent Monitor Read"),
            (Some(&["Task", "Bash(git:*)"]), &["mcp__git__log"], false, true, AgentSource::User, "Agent Bash"),
            (Some(&["Read"]), &["Read"], false, true, AgentSource::User, "mcp__git__log"),
        ];
        for (only, except, background, spawn, source, left) in rows {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let selection = ToolSelection { only: only.map(owned), except: owned(except) };
            let definition = AgentDefinition { tools: selection, source: *source, ..definition(None) };
            let decided = tools(&parent, &definition, *background, *spawn);
            let kept: Vec<&str> =
                decided.iter().filter(|tool| tool.removed.is_none()).map(|tool| tool.tool.as_str()).collect();
            assert_eq!(kept.join(" "), *left, "{decided:?}");
        }
    }

    #[test]
    fn the_background_is_decided_by_settings_call_definition_and_form_in_this_order() {
        use BackgroundChoice::{Always, Model, Never};
        #[rustfmt::skip]
        let rows = [
            (Model, None, false, false, false), (Model, Some(true), false, false, true),
            (Model, None, true, false, true), (Model, Some(false), true, true, false),
            (Model, None, false, true, true), (Always, Some(false), false, false, true),
            (Never, Some(true), true, true, false),
        ];
        for (choice, call, own, fork, expected) in rows {
            let settings = AgentSettings { background: choice, ..AgentSettings::default() };
            let definition = AgentDefinition { background: own, ..definition(None) };
            assert_eq!(background(&settings, call, &definition, fork).value, expected, "{choice:?} {call:?}");
        }
    }

    #[test]
    fn modes_only_shrink_on_the_way_down() {
        let step = |mode, source| ModeStep { mode, source, denies: false };
        let user = |mode| step(Some(mode), AgentSource::User);
        #[rustfmt::skip]
        let rows: &[(Mode, &[ModeStep], bool, Mode)] = &[
            (Mode::Default, &[], false, Mode::Default),
            (Mode::Default, &[step(None, AgentSource::User)], false, Mode::Default),
            (Mode::Plan, &[user(Mode::BypassPermissions)], false, Mode::Plan),
            (Mode::BypassPermissions, &[user(Mode::Default)], false, Mode::BypassPermissions),
            (Mode::BypassPermissions, &[user(Mode::Plan)], false, Mode::Plan),
            (Mode::Default, &[user(Mode::AcceptEdits), user(Mode::Default)], false, Mode::AcceptEdits),
            (Mode::Default, &[step(Some(Mode::AcceptEdits), AgentSource::Project)], false, Mode::Default),
            (Mode::Default, &[step(Some(Mode::AcceptEdits), AgentSource::Project)], true, Mode::AcceptEdits),
            (Mode::Default, &[step(Some(Mode::DontAsk), AgentSource::Plugin)], true, Mode::Default),
            (Mode::Default, &[user(Mode::Plan), user(Mode::AcceptEdits)], true, Mode::Plan),
        ];
        for (session, steps, trusted, expected) in rows {
            let decided = mode((*session, Undecided::Allow), steps, *trusted);
            assert_eq!(decided.value, *expected, "{session} {steps:?}: {}", decided.why);
        }
    }

    #[test]
    fn who_is_denied_what_no_rule_allows_gives_no_more_to_its_agents() {
        let step = |mode, denies| ModeStep { mode: Some(mode), source: AgentSource::User, denies };
        let (edits, plan) = (step(Mode::AcceptEdits, false), step(Mode::Plan, false));
        let denies = step(Mode::DontAsk, true);
        #[rustfmt::skip]
        let rows: &[(Mode, Undecided, &[ModeStep], Mode)] = &[
            (Mode::DontAsk, Undecided::Allow, &[edits], Mode::AcceptEdits),
            (Mode::DontAsk, Undecided::Deny, &[edits], Mode::DontAsk),
            (Mode::DontAsk, Undecided::Deny, &[plan], Mode::Plan),
            (Mode::Default, Undecided::Allow, &[denies, edits], Mode::DontAsk),
            (Mode::Default, Undecided::Deny, &[edits], Mode::AcceptEdits),
        ];
        for (session, undecided, steps, expected) in rows {
            let decided = mode((*session, *undecided), steps, false);
            assert_eq!(decided.value, *expected, "{session} {steps:?}: {}", decided.why);
        }
    }

    #[test]
    fn dont_ask_denies_where_a_definition_on_the_way_means_that() {
        let step = |mode, denies| ModeStep { mode, source: AgentSource::User, denies };
        let meant = step(Some(Mode::DontAsk), true);
        assert_eq!(undecided(Undecided::Allow, &[]), Undecided::Allow);
        assert_eq!(undecided(Undecided::Allow, &[step(Some(Mode::DontAsk), false)]), Undecided::Allow);
        assert_eq!(undecided(Undecided::Allow, &[step(Some(Mode::Plan), true)]), Undecided::Allow);
        assert_eq!(undecided(Undecided::Allow, &[meant, step(None, false)]), Undecided::Deny);
        assert_eq!(undecided(Undecided::Deny, &[]), Undecided::Deny);
    }

    #[test]
    fn the_calls_limits_come_before_the_definitions() {
        let usual = Limits { turns: Some(9), tokens: Some(900), seconds: Some(90), ..Limits::default() };
        let definition = AgentDefinition { limits: usual, ..definition(None) };
        let budget = BudgetInput { turns: Some(5), tokens: Some(500), ..BudgetInput::default() };
        #[rustfmt::skip]
        let rows = [
            // max_turns, budget, turns, tokens
            (None, None, 9, 900),
            (None, Some(budget.clone()), 5, 500),
            (Some(3), None, 3, 900),
            (Some(3), Some(budget), 3, 500),
        ];
        for (max_turns, budget, turns, tokens) in rows {
            let decided = limits(&AgentInput { max_turns, budget, ..AgentInput::default() }, &definition);
            assert_eq!((decided.turns, decided.tokens), (Some(turns), Some(tokens)));
            assert_eq!(decided.seconds, Some(90), "what the call does not say stays");
        }
    }

    #[test]
    fn depth_counts_from_the_root() {
        let settings = |max_depth| AgentSettings { max_depth, ..AgentSettings::default() };
        let limited = |below| AgentDefinition { max_depth: Some(below), ..definition(None) };
        assert!(may_spawn(&settings(1), &definition(None), 0));
        assert!(!may_spawn(&settings(1), &definition(None), 1));
        assert!(may_spawn(&settings(3), &definition(None), 2));
        assert!(!may_spawn(&settings(3), &limited(0), 1), "the definition says no further");
        assert!(may_spawn(&settings(3), &limited(1), 1));
    }
}
