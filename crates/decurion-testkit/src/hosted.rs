//! MCP servers that live in the program that leads a session. Takes a stage, gives it one such server, which whoever
//! plays the program answers for.

use std::sync::Arc;
use std::time::Duration;

use decurion_engine::mcp::{McpParts, Servers};
use decurion_protocol::AgentDefinition;
use decurion_protocol::mcp::{McpServer, McpSource, McpTransport};
use decurion_tools::mcp::Introduction;
use serde_json::{Value, json};

use crate::stage::Stage;

/// How long a first prompt waits for the server.
pub const STARTUP_WAIT: Duration = Duration::from_secs(5);
/// How long a call of it may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

struct Hosted(McpServer, Option<Introduction>);

impl Servers for Hosted {
    fn all(&self) -> Vec<McpServer> {
        vec![self.0.clone()]
    }

    fn of(&self, _: &AgentDefinition) -> (Vec<McpServer>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    fn introductions(&self) -> Vec<(String, Introduction)> {
        self.1.iter().map(|introduction| (self.0.name.clone(), introduction.clone())).collect()
    }
}

/// Gives a stage a server `calc` of the host, whose tools may be used.
pub fn with_calc(mut stage: Stage, introduction: Option<Introduction>) -> Stage {
    let server = McpServer {
        name: "calc".into(),
        short: "calc".into(),
        transport: McpTransport::Host,
        private: false,
        start_timeout: Duration::from_secs(30),
        call_timeout: CALL_TIMEOUT,
        source: McpSource::Sdk,
        hash: "calc".into(),
    };
    let rule = decurion_protocol::Rule::parse("mcp__calc", Default::default());
    stage.rules.allow.extend(rule);
    stage.mcp = Some(McpParts {
        caches: None,
        servers: Arc::new(Hosted(server, introduction)),
        environment: Arc::from([]),
        manifests: None,
        logins: None,
        startup_wait: STARTUP_WAIT,
    });
    stage
}

/// What the server says of itself.
pub fn greeting() -> Value {
    let us = json!({"name": "calc", "version": "1"});
    json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": us})
}

/// The list of its tools: one that adds.
pub fn offers() -> Value {
    let schema = json!({"type": "object"});
    let hints = json!({"readOnlyHint": true});
    json!({"tools": [{"name": "add", "description": "adds", "inputSchema": schema, "annotations": hints}]})
}

/// What the server answers to a message, as a program in use has it: also to one that wants no answer.
pub fn serve(message: &Value) -> Value {
    let number = |name: &str| message["params"]["arguments"][name].as_i64();
    let result = match message["method"].as_str() {
        Some("initialize") => greeting(),
        Some("tools/list") => offers(),
        Some("tools/call") => {
            let Some((a, b)) = number("a").zip(number("b")) else {
                let error = json!({"code": -32602, "message": "no numbers"});
                return json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            };
            json!({"content": [{"type": "text", "text": (a + b).to_string()}]})
        }
        _ => return json!({"jsonrpc": "2.0", "result": {}}),
    };
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}
