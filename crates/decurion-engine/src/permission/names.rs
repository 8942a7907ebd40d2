//! Whether a rule names a tool. Takes the name in a rule and the names of the tools, gives what is wrong with it.

use decurion_protocol::choice::{ASK, EXIT_PLAN};
use decurion_protocol::nearest;
use decurion_tools::mcp::resources;
use decurion_tools::{alias, builtin};

/// Tools that the engine brings, beside those of the tool set.
pub const ENGINE_TOOLS: [&str; 7] =
    ["Agent", "EnterWorktree", "ExitWorktree", "SendMessage", "Skill", "TaskOutput", "TaskStop"];

/// The tool that begins planning.
pub const ENTER_PLAN: &str = "EnterPlanMode";

/// The tools that are for a person at the root, and offered only where there is one.
pub const PERSON_TOOLS: [&str; 3] = [ASK, ENTER_PLAN, EXIT_PLAN];

/// Tools of other programs that read the same settings files, and tools of earlier times: a rule about one of them has no
/// effect here and is no mistake.
const FOREIGN: [&str; 8] = [
    "KillBash",
    "LS",
    "ListMcpResourcesTool",
    "MultiEdit",
    "NotebookRead",
    "ReadMcpResourceTool",
    "SlashCommand",
    "WebSearch",
];

/// The name of a tool that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such tool: {name}{}", near.as_ref().map(|near| format!(" (did you mean {near}?)")).unwrap_or_default())]
pub struct UnknownTool {
    name: String,
    /// The tool that may be meant.
    pub near: Option<String>,
}

/// Whether a tool is one of an MCP server's, by its name.
pub fn is_servers(name: &str) -> bool {
    name.starts_with("mcp__") || resources::NAMES.contains(&name)
}

/// Why a rule for this tool would never match, if so; `further` are tools beside the built-in ones. Tools of MCP servers
/// are known by their prefix, since a server may start later.
pub fn unknown_tool(name: &str, further: &[&str]) -> Option<UnknownTool> {
    let is_pattern = name.contains('*') || is_servers(name);
    if is_pattern || alias::is_alias(name) || FOREIGN.contains(&name) {
        return None;
    }
    let tools = builtin();
    let own = tools.iter().map(|tool| tool.spec().name.as_str());
    let engine = ENGINE_TOOLS.into_iter().chain(PERSON_TOOLS).chain(resources::NAMES);
    let known: Vec<&str> = own.chain(engine).chain(further.iter().copied()).collect();
    if known.contains(&name) {
        return None;
    }
    let near = nearest(name, known.into_iter()).into_iter().next().map(str::to_owned);
    Some(UnknownTool { name: name.to_owned(), near })
}
