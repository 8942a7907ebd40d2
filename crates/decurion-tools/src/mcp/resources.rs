//! ListMcpResources and ReadMcpResource: what servers offer to be read. Takes a server's name and an
//! address, gives the listing or the content, bounded like any result.

use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bridge::failed;
use super::content;
use super::server::Server;
use crate::{InputError, Surroundings, Tool, ToolContext, ToolSpec, paths, typed};

const LIST: &str = "ListMcpResources";
const READ: &str = "ReadMcpResource";
/// The names of both tools.
pub const NAMES: [&str; 2] = [LIST, READ];
/// How many resources a listing shows.
const MOST_LISTED: usize = 500;

/// Both tools, if any of these servers has resources, as far as is known now.
pub fn tools(servers: &[Server]) -> Vec<Arc<dyn Tool>> {
    let has = |server: &&Server| {
        server.offered().or_else(|| server.approved()).is_some_and(|manifest| manifest.resources)
    };
    let servers: Arc<[Server]> = servers.iter().filter(has).cloned().collect();
    if servers.is_empty() {
        return Vec::new();
    }
    vec![Arc::new(List::new(Arc::clone(&servers))), Arc::new(ReadResource::new(servers))]
}

#[derive(Debug)]
struct List {
    spec: ToolSpec,
    servers: Arc<[Server]>,
}

impl List {
    fn new(servers: Arc<[Server]>) -> Self {
        let schema = json!({
            "type": "object",
            "properties": {"server": {"type": "string", "description": "only this server's"}},
            "additionalProperties": false
        });
        let description = "Lists what the MCP servers offer to be read, one per line: server, address, name.";
        Self { spec: ToolSpec::new(LIST, description, schema), servers }
    }
}

#[derive(Deserialize)]
struct ListInput {
    server: Option<String>,
}

impl Tool for List {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _: &Surroundings) -> Result<Intent, InputError> {
        let input: ListInput = typed::parse(&self.spec, input)?;
        let title = input.server.as_deref().unwrap_or("all servers");
        Ok(Intent::titled(paths::title("MCP resources of", title)).together())
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let input: ListInput = match typed::parse(&self.spec, &input) {
                Ok(input) => input,
                Err(error) => return error.into(),
            };
            let wanted =
                |server: &&Server| input.server.as_ref().is_none_or(|name| *name == server.declared().name);
            let servers: Vec<&Server> = self.servers.iter().filter(wanted).collect();
            if servers.is_empty() {
                return ToolOutput::error(no_such(
                    &self.servers,
                    input.server.as_deref().unwrap_or_default(),
                ));
            }
            let mut lines = Vec::new();
            for server in servers {
                list_one(server, cx, &mut lines).await;
            }
            ToolOutput::text(if lines.is_empty() { "(no resources)".to_owned() } else { lines.join("\n") })
        })
    }
}

async fn list_one(server: &Server, cx: &ToolContext, lines: &mut Vec<String>) {
    let name = &server.declared().name;
    match server.ask("resources/list", json!({}), &cx.cancel).await {
        Ok(result) => {
            let resources = result.get("resources").and_then(Value::as_array);
            for resource in resources.into_iter().flatten().take(MOST_LISTED) {
                let get = |key: &str| resource.get(key).and_then(Value::as_str).unwrap_or_default();
                lines.push(format!("{name}\t{}\t{}", get("uri"), get("name")));
            }
        }
        Err(error) => lines.push(format!("{name}\tcannot be listed: {error}")),
    }
}

fn no_such(servers: &[Server], name: &str) -> String {
    let known: Vec<&str> = servers.iter().map(|server| server.declared().name.as_str()).collect();
    format!("no MCP server with resources is called {name:?}; there are: {}", known.join(", "))
}

#[derive(Debug)]
struct ReadResource {
    spec: ToolSpec,
    servers: Arc<[Server]>,
}

impl ReadResource {
    fn new(servers: Arc<[Server]>) -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "server": {"type": "string", "description": "the server's name"},
                "uri": {"type": "string", "description": "the resource's address"}
            },
            "required": ["server", "uri"],
            "additionalProperties": false
        });
        let description = "Reads one resource of an MCP server, by the address that ListMcpResources shows.";
        Self { spec: ToolSpec::new(READ, description, schema), servers }
    }
}

#[derive(Deserialize)]
struct ReadInput {
    server: String,
    uri: String,
}

impl Tool for ReadResource {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _: &Surroundings) -> Result<Intent, InputError> {
        let input: ReadInput = typed::parse(&self.spec, input)?;
        Ok(Intent::titled(paths::title("MCP resource", &format!("{} {}", input.server, input.uri)))
            .together())
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let input: ReadInput = match typed::parse(&self.spec, &input) {
                Ok(input) => input,
                Err(error) => return error.into(),
            };
            let Some(server) = self.servers.iter().find(|server| server.declared().name == input.server)
            else {
                return ToolOutput::error(no_such(&self.servers, &input.server));
            };
            match server.ask("resources/read", json!({"uri": input.uri}), &cx.cancel).await {
                Ok(result) => content::resource_result(cx, &result).await,
                Err(error) => failed(server, &error),
            }
        })
    }
}
