//! `decurion agents`: what agents there are and what is wrong with their files. Takes a subcommand, prints
//! lists, one definition as the file it could be, or problems with their lines.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::agents::to_markdown;
use decurion_config::{AgentRequest, Agents, LoadRequest, Loaded, LoadedAgent, Plugins, Severity, Skills};
use decurion_engine::permission::{ENGINE_TOOLS, denied_type};
use decurion_protocol::{AgentDefinition, AgentSource};
use decurion_serve::progress::one_line;
use decurion_tools::Tool;
use serde_json::{Value, json};

use super::explain;
use crate::args::{AgentScope, AgentsCommand};
use crate::report::{FAILED, Failure, note, visible};
use crate::screen::TextStyle;
use crate::servers::{self, ServerFlags};
use crate::table::{TableCell, TextTable};
use crate::{library, wire};

/// Tools that exist if a server offers resources: an agent file may name them, although they are not always there.
pub const SERVER_TOOLS: [&str; 2] = decurion_tools::mcp::resources::NAMES;

/// Lists, shows or checks definitions.
pub fn run(command: AgentsCommand) -> Result<u8, Failure> {
    let (cwd, environment) = wire::surroundings()?;
    let loaded = decurion_config::inspect(&LoadRequest::new(cwd, environment.clone()))?;
    if let AgentsCommand::Create { name, scope } = &command {
        return create(&loaded, name, *scope);
    }
    let plugins = Plugins::load(&loaded, &[]);
    let mut request = request(&loaded, &plugins);
    // A check of files should report names that do not exist; a start warns only if it needs one.
    let mut of_skills = library::request(&loaded, &plugins);
    of_skills.agents =
        Some(Agents::load(&request).active().map(|agent| agent.definition.name.clone()).collect());
    let skills = Skills::load(&of_skills);
    request.skills = Some(skills.active().map(|skill| skill.name.clone()).collect());
    let servers = servers::load(&loaded, &environment, &ServerFlags::default(), &plugins)?;
    request.servers = Some(servers.all.entries.iter().map(|entry| entry.name.clone()).collect());
    match command {
        AgentsCommand::List { json } => {
            list(&Agents::load(&request), &loaded, json);
            Ok(0)
        }
        AgentsCommand::Create { .. } => Ok(0),
        AgentsCommand::Show { name, json } => show(&Agents::load(&request), &loaded, &name, json),
        AgentsCommand::Explain { name, background, model, json } => {
            let agents = Agents::load(&request);
            let agent = agents.get(&name).ok_or_else(|| unknown(&agents, &name))?;
            let mut explained =
                explain::explain(agent, &loaded, background.then_some(true), model.as_deref());
            explain::equipment(&mut explained, &agent.definition, &loaded, &skills);
            if json {
                say!("{explained}");
            } else {
                say!("{}", explain::text(&explained).trim_end());
            }
            Ok(0)
        }
        AgentsCommand::Lint { paths, json } => {
            let mut agents = checked(&request, &paths);
            // The same program reads the files beside the agents, and no other command checks them.
            if paths.is_empty() {
                agents.problems.extend(skills.problems);
            }
            Ok(lint(&agents, json))
        }
    }
}

/// Where definitions of these settings are, and the tools that they may name.
pub fn request(loaded: &Loaded, plugins: &Plugins) -> AgentRequest {
    let tools = decurion_tools::builtin();
    let names = tools.iter().map(|tool: &Arc<dyn Tool>| tool.spec().name.as_str());
    let names: Vec<&str> = names.chain(ENGINE_TOOLS).chain(SERVER_TOOLS).collect();
    let mut request = AgentRequest::new(loaded, &names);
    request.plugins = plugins.agents();
    request
}

/// The tools of a session's own agent, as far as the settings tell.
pub fn tool_names() -> Vec<String> {
    let builtin = decurion_tools::builtin();
    let mut names: Vec<String> = builtin.iter().map(|tool| tool.spec().name.clone()).collect();
    names.extend(ENGINE_TOOLS.map(str::to_owned));
    names.sort_unstable();
    names
}

fn checked(request: &AgentRequest, paths: &[Utf8PathBuf]) -> Agents {
    if paths.is_empty() { Agents::load(request) } else { Agents::check(request, paths) }
}

fn list(agents: &Agents, loaded: &Loaded, json: bool) {
    let mut table = TextTable::new(["NAME", "SOURCE", "DESCRIPTION"]);
    for agent in &agents.all {
        if json {
            say!("{}", row(agent, loaded));
        } else {
            let style = if agent.shadowed_by.is_none() { TextStyle::Strong } else { TextStyle::Faint };
            table.row([
                TableCell::new(style, one_line(&agent.definition.name)),
                TableCell::new(TextStyle::Faint, place(agent)),
                remarks(agent, loaded).into(),
            ]);
        }
    }
    table.print();
    let count = |severity| agents.problems.iter().filter(|problem| problem.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    if errors + warnings > 0 {
        let counted =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let (errors, warnings) = (counted(errors, "error"), counted(warnings, "warning"));
        note(format!("{errors} and {warnings}; see `decurion agents lint`"));
    }
}

fn row(agent: &LoadedAgent, loaded: &Loaded) -> Value {
    let definition = &agent.definition;
    json!({
        "name": definition.name,
        "description": definition.description,
        "source": definition.source,
        "origin": agent.origin,
        "active": agent.shadowed_by.is_none(),
        "shadowed_by": agent.shadowed_by,
        "denied_by": denied_type(&loaded.rules.set, &definition.name).map(ToString::to_string),
        "hidden": definition.hidden,
        "model": definition.model,
        "permission_mode": definition.mode,
        "tools": definition.tools.only,
        "disallowed_tools": definition.tools.except,
    })
}

fn place(agent: &LoadedAgent) -> String {
    let source = match agent.definition.source {
        AgentSource::Builtin => return "built-in".to_owned(),
        AgentSource::User => "user",
        AgentSource::Project => "project",
        AgentSource::Plugin => "plugin",
        AgentSource::Managed => "managed",
    };
    format!("{source} ({})", agent.origin)
}

/// What distinguishes this one, then its purpose.
fn remarks(agent: &LoadedAgent, loaded: &Loaded) -> String {
    let definition = &agent.definition;
    let mut remarks = Vec::new();
    if let Some(by) = &agent.shadowed_by {
        remarks.push(format!("[not used: {by} comes first]"));
    }
    if let Some(rule) = denied_type(&loaded.rules.set, &definition.name) {
        remarks.push(format!("[denied by {rule}]"));
    }
    if definition.hidden {
        remarks.push("[hidden]".to_owned());
    }
    remarks.push(one_line(&definition.description));
    remarks.join(" ")
}

fn show(agents: &Agents, loaded: &Loaded, name: &str, json: bool) -> Result<u8, Failure> {
    let Some(agent) = agents.get(name) else { return Err(unknown(agents, name)) };
    if json {
        let mut value = row(agent, loaded);
        value["definition"] = serde_json::to_value::<&AgentDefinition>(&agent.definition).unwrap_or_default();
        value["dont_ask_denies"] = json!(agent.dont_ask_denies);
        value["problems"] = json!(problems_of(agents, agent));
        say!("{value}");
        return Ok(0);
    }
    say!("{}", to_markdown(&agent.definition).trim_end());
    note(format!("from {}", place(agent)));
    for problem in problems_of(agents, agent) {
        note(problem);
    }
    Ok(0)
}

fn problems_of<'a>(agents: &'a Agents, agent: &LoadedAgent) -> Vec<&'a decurion_config::AgentProblem> {
    let is_its = |problem: &&decurion_config::AgentProblem| {
        let named = problem.agent.as_ref().is_none_or(|name| *name == agent.definition.name);
        problem.origin == agent.origin && named && agent.definition.source != AgentSource::Builtin
    };
    agents.problems.iter().filter(is_its).collect()
}

fn unknown(agents: &Agents, name: &str) -> Failure {
    if let Some(problem) = agents.unusable(name) {
        return Failure::usage(format!("agent {name:?} cannot be used: {problem}"));
    }
    let names: Vec<&str> = agents.active().map(|agent| agent.definition.name.as_str()).collect();
    let failure = Failure::usage(format!("agent not found: {name:?}"));
    match decurion_protocol::nearest(name, names.iter().copied()).first() {
        Some(near) => failure.hint(format!("did you mean {near}?")),
        None => failure.hint(format!("agents: {}", names.join(", "))),
    }
}

/// Prints what is wrong; only errors count for the exit code.
fn lint(agents: &Agents, json: bool) -> u8 {
    for problem in &agents.problems {
        if json {
            say!("{}", json!(problem));
        } else {
            say!("{problem}");
        }
    }
    if agents.problems.is_empty() && !json {
        let all = agents.all.len();
        say!("No problems in {all} definition{}.", if all == 1 { "" } else { "s" });
    }
    if agents.has_errors() { FAILED } else { 0 }
}

/// Writes a definition that works as it is, with a comment on what else it may say.
fn create(loaded: &Loaded, name: &str, scope: AgentScope) -> Result<u8, Failure> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
        return Err(Failure::usage(format!("not a name for an agent: {:?}", visible(name)))
            .hint("a name has 1 to 64 letters, digits, `-` and `_`"));
    }
    let above = match scope {
        AgentScope::User => wire::state(&loaded.paths)?,
        AgentScope::Project => loaded.paths.root.join(".decurion"),
    };
    let file = above.join("agents").join(format!("{name}.md"));
    write_new(&file, &TEMPLATE.replace("NAME", name)).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::usage(format!("{file} exists already")),
        _ => Failure::failed(format!("cannot write {file}: {error}")),
    })?;
    say!("Created {file}. Edit it, then check it with `decurion agents lint`.");
    Ok(0)
}

fn write_new(file: &Utf8Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    std::fs::File::create_new(file)?.write_all(text.as_bytes())
}

/// Comments of the head begin with `#`; a line that is uncommented holds.
const TEMPLATE: &str = "\
---
name: NAME
# When the main agent should use this one. It decides by this sentence.
description: Describe in a sentence what NAME does. Use it when …
# The tools it has, with rules if you like. Without this line it has those of the main agent.
# tools: Read, Grep, Glob, Bash(git diff:*)
# Tools it does not have.
# disallowedTools: WebFetch
# A model or an alias. Without this line it uses the model of the main agent.
# model: haiku
# Permission mode: default, acceptEdits, plan, dontAsk.
# permissionMode: plan
# Most turns of one piece of work.
# maxTurns: 20
# Most money and tokens of all its work.
# budget: { usd: 0.50, tokens: 200000 }
# Its own git worktree and branch.
# isolation: worktree
# Work in the background.
# background: true
# A folder for its notes that outlasts it: user, project or local.
# memory: project
---
You are NAME. Say here what the agent should do and how, and what its last answer should contain:
it is all that the main agent gets from it.
";
