//! A tool of an MCP server that answers in a person's place (`--permission-prompt-tool`). Takes a question about a
//! call, gives the tool's answer; one that cannot be had or understood is a refusal, and says why.

use std::sync::Arc;

use decurion_protocol::{Answer, Question};
use decurion_tools::mcp::{Server, bridge};
use decurion_tools::{Tool, ToolContext};
use serde_json::{Value, json};

/// Asks the tool of this name.
pub async fn answer(servers: &[Server], name: &str, question: &Question, cx: &ToolContext) -> Answer {
    let given = match find(servers, name, cx).await {
        Ok(tool) => ask(&*tool, question, cx).await,
        Err(reason) => Err(reason),
    };
    given.unwrap_or_else(|reason| Answer::Deny {
        message: format!("{name}, which answers in this session, could not be asked: {reason}"),
        interrupt: false,
    })
}

/// The tool, once its server has said that it offers it.
async fn find(servers: &[Server], name: &str, cx: &ToolContext) -> Result<Arc<dyn Tool>, String> {
    let server = servers.iter().filter(|server| is_of(&server.declared().short, name));
    // One server's name may begin with another's.
    let server = server.max_by_key(|server| server.declared().short.len());
    let server = server.ok_or("there is no MCP server that it could be of")?;
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

async fn ask(tool: &dyn Tool, question: &Question, cx: &ToolContext) -> Result<Answer, String> {
    let input = json!({"tool_name": question.tool, "input": question.input, "tool_use_id": question.call});
    let output = tool.run(cx, input).await;
    let text = output.content.text();
    if output.is_error {
        return Err(text.clone());
    }
    let value: Value = serde_json::from_str(&text)
        .map_err(|_| "it answered something else than a JSON object with `behavior`".to_owned())?;
    read(&value)
}

/// What the answer says. It holds for this call alone.
fn read(value: &Value) -> Result<Answer, String> {
    let text = |member: &str| value.get(member).and_then(Value::as_str);
    match text("behavior") {
        Some("allow") => match value.get("updatedInput") {
            None | Some(Value::Null) => {
                Ok(Answer::Allow { input: None, rules: Vec::new(), everywhere: false })
            }
            Some(input @ Value::Object(_)) => {
                Ok(Answer::Allow { input: Some(input.clone()), rules: Vec::new(), everywhere: false })
            }
            Some(_) => Err("`updatedInput` of its answer is not an object".to_owned()),
        },
        Some("deny") => {
            let message = text("message").filter(|message| !message.is_empty());
            let interrupt = value.get("interrupt").and_then(Value::as_bool).unwrap_or_default();
            Ok(Answer::Deny { message: message.unwrap_or("it said no").to_owned(), interrupt })
        }
        _ => Err("`behavior` of its answer is neither `allow` nor `deny`".to_owned()),
    }
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

    #[test]
    fn an_answer_that_is_not_understood_is_none() {
        for (value, expected) in [
            (json!({"behavior": "maybe"}), "`behavior` of its answer is neither `allow` nor `deny`"),
            (json!([]), "`behavior` of its answer is neither `allow` nor `deny`"),
            (
                json!({"behavior": "allow", "updatedInput": "x"}),
                "`updatedInput` of its answer is not an object",
            ),
        ] {
            assert_eq!(read(&value).unwrap_err(), expected);
        }
        let allow = |input| Answer::Allow { input, rules: Vec::new(), everywhere: false };
        assert_eq!(read(&json!({"behavior": "allow"})).unwrap(), allow(None));
        let changed = json!({"behavior": "allow", "updatedInput": {"a": 1}});
        assert_eq!(read(&changed).unwrap(), allow(Some(json!({"a": 1}))));
        let deny = json!({"behavior": "deny", "message": "no", "interrupt": true});
        assert_eq!(read(&deny).unwrap(), Answer::Deny { message: "no".into(), interrupt: true });
    }
}
