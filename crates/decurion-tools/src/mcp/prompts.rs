//! Prompts of servers. Takes what a person typed as `/mcp__server__prompt words`, gives what the server makes of
//! it as blocks, bounded like any result, or why there is nothing to send.
//!
//! The text is the server's: nothing in it is filled in or run.

use decurion_protocol::mcp::OfferedPrompt;
use decurion_protocol::{Block, ToolContent};
use serde_json::{Map, Value, json};

use super::bridge::{failed, tool_name};
use super::content;
use super::server::Server;
use crate::ToolContext;

/// What every such command begins with.
const PREFIX: &str = "mcp__";
/// How many prompts of one server a session tells of; each run's record has their names.
const MOST_LISTED: usize = 100;

/// Whether this is the name of a server's prompt, whoever may have it.
pub fn is_prompt(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains("__"))
}

/// What a person types to get this prompt of the server with this short name, without the slash.
pub fn command_name(short: &str, prompt: &str) -> String {
    tool_name(short, prompt)
}

/// The commands of a server as far as they are known now.
pub fn commands(server: &Server) -> Vec<String> {
    let known = server.offered().or_else(|| server.approved());
    let short = &server.declared().short;
    let prompts = known.iter().flat_map(|known| &known.prompts).take(MOST_LISTED);
    prompts.map(|prompt| command_name(short, &prompt.name)).collect()
}

/// What to send in the place of a command. A server that is being started is waited for.
pub async fn get(
    servers: &[Server],
    command: &str,
    words: &[String],
    cx: &ToolContext,
) -> Result<Vec<Block>, String> {
    let server = addressed(servers, command).ok_or_else(|| no_server(servers, command))?;
    let name = &server.declared().name;
    let ready = server.ready(&cx.cancel).await.map_err(|error| failed(server, &error).content.text())?;
    let short = &server.declared().short;
    let is_meant = |prompt: &&OfferedPrompt| command_name(short, &prompt.name) == command;
    let prompt = ready.manifest.prompts.iter().find(is_meant);
    let prompt = prompt.ok_or_else(|| no_prompt(server, &ready.manifest.prompts, command))?;
    let wrong = |why: &str| format!("MCP server {name:?}, prompt {:?}: {why}", prompt.name);
    let arguments = arguments(prompt, words).map_err(|why| wrong(&why))?;
    let params = json!({"name": prompt.name, "arguments": arguments});
    let result =
        server.ask("prompts/get", params, &cx.cancel).await.map_err(|error| wrong(&error.to_string()))?;
    let content = content::prompt_result(cx, &result).await;
    content.map(blocks).ok_or_else(|| wrong("it is empty"))
}

/// The server that a command names. Short names may hold what parts them from the rest: the longest counts.
fn addressed<'a>(servers: &'a [Server], command: &str) -> Option<&'a Server> {
    let rest = command.strip_prefix(PREFIX)?;
    let named = |server: &&Server| {
        rest.strip_prefix(server.declared().short.as_str()).is_some_and(|rest| rest.starts_with("__"))
    };
    servers.iter().filter(named).max_by_key(|server| server.declared().short.len())
}

fn no_server(servers: &[Server], command: &str) -> String {
    let known: Vec<&str> = servers.iter().map(|server| server.declared().short.as_str()).collect();
    let known = match known.join(", ") {
        known if known.is_empty() => "this session has none".to_owned(),
        known => format!("there are: {known}"),
    };
    format!("There is no MCP server for /{command}; {known}. To see why one is missing: decurion mcp list")
}

fn no_prompt(server: &Server, offered: &[OfferedPrompt], command: &str) -> String {
    let declared = server.declared();
    let known: Vec<String> = offered
        .iter()
        .take(20)
        .map(|prompt| format!("/{}", command_name(&declared.short, &prompt.name)))
        .collect();
    let known = match known.join(", ") {
        known if known.is_empty() => "it offers none".to_owned(),
        known => format!("it offers {known}"),
    };
    format!("MCP server {:?} has no prompt for /{command}; {known}", declared.name)
}

/// The words in the places that the prompt declares, in order; the last takes what is left.
fn arguments(prompt: &OfferedPrompt, words: &[String]) -> Result<Map<String, Value>, String> {
    let names = &prompt.arguments;
    let Some(last) = names.len().checked_sub(1) else {
        return if words.is_empty() {
            Ok(Map::new())
        } else {
            Err(format!("it takes no arguments, and was given: {}", words.join(" ")))
        };
    };
    let mut given = Map::new();
    for (index, name) in names.iter().enumerate().take(words.len()) {
        let value = if index == last { words[index..].join(" ") } else { words[index].clone() };
        given.insert(name.clone(), value.into());
    }
    match prompt.required.iter().find(|name| !given.contains_key(*name)) {
        Some(missing) => {
            let usage: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
            Err(format!("the argument {missing:?} is missing; it takes {}", usage.join(" ")))
        }
        None => Ok(given),
    }
}

fn blocks(content: ToolContent) -> Vec<Block> {
    match content {
        ToolContent::Text(text) => vec![Block::Text { text }],
        ToolContent::Blocks(blocks) => blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_to_the_declared_arguments_in_order() {
        let shown = |names: &[&str], required: &[&str], words: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
            let prompt = OfferedPrompt {
                arguments: owned(names),
                required: owned(required),
                ..OfferedPrompt::default()
            };
            match arguments(&prompt, &owned(words)) {
                Ok(given) => Value::Object(given).to_string(),
                Err(why) => why,
            }
        };
        for (names, required, words, expected) in [
            (
                &["city", "state"][..],
                &["city"][..],
                &["Berlin", "BE"][..],
                r#"{"city":"Berlin","state":"BE"}"#,
            ),
            (&["city", "state"], &["city"], &["Berlin"], r#"{"city":"Berlin"}"#),
            (&["city", "state"], &["city"], &["Berlin", "a", "b c"], r#"{"city":"Berlin","state":"a b c"}"#),
            (&["city", "state"], &["city"], &[], "the argument \"city\" is missing; it takes <city> <state>"),
            (&["a", "b"], &["b"], &["x"], "the argument \"b\" is missing; it takes <a> <b>"),
            (&[], &[], &[], "{}"),
            (&[], &[], &["a", "b"], "it takes no arguments, and was given: a b"),
        ] {
            assert_eq!(shown(names, required, words), expected, "{names:?} {words:?}");
        }
    }

    #[test]
    fn what_is_a_prompts_name() {
        assert!(is_prompt("mcp__ev__simple-prompt"));
        assert!(!is_prompt("mcp__ev") && !is_prompt("review") && !is_prompt("a__b"));
    }
}
