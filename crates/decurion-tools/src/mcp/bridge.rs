//! A server's tool as one of ours. Takes a server and what it offers, gives a [`Tool`] named
//! `mcp__server__tool` whose schema is the server's and whose words are the approved ones.

use decurion_protocol::link::BoxFuture;
use decurion_protocol::mcp::OfferedTool;
use decurion_protocol::{Intent, ToolContent, ToolOutput};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::content;
use super::server::{RequestError, Server};
use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, paths};

/// The longest name that providers take.
const NAME_CHARS: usize = 64;
/// How much of a description models are shown.
const DESCRIPTION_CHARS: usize = 2_048;

/// One tool of a server.
#[derive(Debug)]
pub struct McpTool {
    spec: ToolSpec,
    server: Server,
    tool: OfferedTool,
}

/// The tools of a server as far as they are known now.
pub fn tools(server: &Server) -> Vec<std::sync::Arc<dyn Tool>> {
    let made = server.tools().into_iter().map(|tool| McpTool::new(server, tool));
    made.map(|tool| std::sync::Arc::new(tool) as std::sync::Arc<dyn Tool>).collect()
}

/// The name a server's tool is called by here: only letters, digits, `_` and `-`, and not too long; a name
/// that had to be changed ends in a part of its fingerprint, so that no two become one.
pub fn tool_name(server: &str, tool: &str) -> String {
    let plain: String = tool
        .chars()
        .map(|one| if one.is_ascii_alphanumeric() || "_-".contains(one) { one } else { '_' })
        .collect();
    let name = format!("mcp__{server}__{plain}");
    if plain == tool && name.len() <= NAME_CHARS {
        return name;
    }
    let mark: String =
        Sha256::digest(tool.as_bytes()).iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    let kept: String = name.chars().take(NAME_CHARS - 7).collect();
    format!("{kept}_{mark}")
}

impl McpTool {
    /// This tool of this server.
    pub fn new(server: &Server, tool: OfferedTool) -> Self {
        let name = tool_name(&server.declared().short, &tool.name);
        let description: String = tool.description.chars().take(DESCRIPTION_CHARS).collect();
        // Providers take objects only, and some servers leave the type out.
        let mut schema = tool.input_schema.clone();
        if let Value::Object(members) = &mut schema {
            members.entry("type").or_insert_with(|| "object".into());
        }
        Self { spec: ToolSpec::new(&name, &description, schema), server: server.clone(), tool }
    }
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _: &Surroundings) -> Result<Intent, InputError> {
        if !input.is_object() {
            return Err(InputError::new(&*self.spec.name, "the input is not an object"));
        }
        let title = format!("{} {}", self.server.declared().name, self.tool.name);
        let mut intent = Intent::titled(paths::title("MCP", &title));
        intent.doubt = self.server.changed(&self.tool.name);
        // What a server says of itself counts only as long as it is what was approved.
        if self.tool.read_only && intent.doubt.is_none() {
            intent = intent.together();
        }
        Ok(intent)
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.server.call(&self.tool.name, input, cx).await {
                Ok(result) => explained(&self.server, content::call_result(cx, &result).await),
                Err(error) => failed(&self.server, &error),
            }
        })
    }
}

/// The same result, with the reason where the server's sandbox is it.
fn explained(server: &Server, mut output: ToolOutput) -> ToolOutput {
    if output.is_error
        && let Some(reason) = server.explain(&output.content.text())
    {
        output.content = ToolContent::Text(format!("{}\n[{reason}]", output.content.text()));
    }
    output
}

/// What the model reads of a request that got no result.
pub(crate) fn failed(server: &Server, error: &RequestError) -> ToolOutput {
    let name = &server.declared().name;
    ToolOutput::error(match error {
        RequestError::Unreachable(text) => text.clone(),
        error => format!("MCP server {name:?}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::tool_name;

    #[test]
    fn names_are_plain_short_and_apart() {
        assert_eq!(tool_name("git", "git_log"), "mcp__git__git_log");
        assert_eq!(tool_name("x", "Bash"), "mcp__x__Bash");
        let (one, other) = (tool_name("x", "a.b"), tool_name("x", "a/b"));
        assert!(one.starts_with("mcp__x__a_b_") && one != other, "{one} {other}");
        let long = tool_name("server", &"t".repeat(200));
        assert_eq!(long.len(), 64);
        assert_ne!(long, tool_name("server", &"t".repeat(201)));
    }
}
