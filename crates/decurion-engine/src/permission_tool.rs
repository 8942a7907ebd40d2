//! A tool of an MCP server that answers in a person's place (`--permission-prompt-tool`). Takes a question about a
//! call, gives the tool's answer; one that cannot be had or understood is a refusal, and says why.

use std::sync::Arc;

use decurion_protocol::{Answer, Changes, Question, Ruling};
use decurion_tools::mcp::{Server, bridge};
use decurion_tools::{Tool, ToolContext};
use serde_json::{Value, json};

/// Asks the tool of this name; gives its answer, and what is to change with it.
pub async fn answer(
    servers: &[Server],
    name: &str,
    question: &Question,
    cx: &ToolContext,
) -> (Answer, Changes) {
    let given = match find(servers, name, cx).await {
        Ok(tool) => ask(&*tool, question, cx).await,
        Err(reason) => Err(reason),
    };
    match given {
        Ok(Ruling::Allow { changes, .. }) if changes.missed => {
            let message = format!("{name} allows it with less rights than now, and which was not understood");
            (Answer::Deny { message, interrupt: false }, changes.narrowing())
        }
        Ok(Ruling::Allow { input, changes, .. }) => {
            (Answer::Allow { input, rules: Vec::new(), everywhere: false }, changes)
        }
        Ok(Ruling::Deny { message, interrupt }) => {
            let message = message.unwrap_or_else(|| "it said no".to_owned());
            (Answer::Deny { message, interrupt }, Changes::default())
        }
        Err(reason) => {
            let message = format!("{name}, which answers in this session, could not be asked: {reason}");
            (Answer::Deny { message, interrupt: false }, Changes::default())
        }
    }
}

/// The tool, once its server has said that it offers it.
async fn find(servers: &[Server], name: &str, cx: &ToolContext) -> Result<Arc<dyn Tool>, String> {
    let server = servers.iter().filter(|server| is_of(&server.declared().short, name));
    // One server's name may begin with another's.
    let server = server.max_by_key(|server| server.declared().short.len());
    let server = server.ok_or("no MCP server has this prompt")?;
    server.ready(&cx.cancel).await.map_err(|error| error.to_string())?;
    let tools = bridge::tools(server);
    let found = tools.into_iter().find(|tool| tool.spec().name == name);
    found.ok_or_else(|| format!("MCP server {:?} offers no such tool", server.declared().name))
}

/// Whether a tool of this name may be one of this server's.
fn is_of(server: &str, tool: &str) -> bool {
    let rest = tool.strip_prefix("mcp__").and_then(|rest| rest.strip_prefix(server));
    rest.is_some_and(|rest| rest.starts_with("__"))
}

async fn ask(tool: &dyn Tool, question: &Question, cx: &ToolContext) -> Result<Ruling, String> {
    let input = json!({"tool_name": question.tool, "input": question.input, "tool_use_id": question.call});
    let output = tool.run(cx, input).await;
    let text = output.content.text();
    if output.is_error {
        return Err(text.clone());
    }
    let value: Value = serde_json::from_str(&text)
        .map_err(|_| "it answered something else than a JSON object with `behavior`".to_owned())?;
    Ruling::read(&value).map_err(|problem| format!("its answer was not understood: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_be_of_several_servers_by_its_name() {
        for (server, tool, is) in [
            ("a", "mcp__a__b__c", true),
            ("a__b", "mcp__a__b__c", true),
            ("a__b__c", "mcp__a__b__c", false),
            ("a", "mcp__ab__c", false),
            ("a", "a__b", false),
        ] {
            assert_eq!(is_of(server, tool), is, "{server} {tool}");
        }
    }
}
