//! MCP servers that a host sets, reconnects and switches. Takes its commands, gives each reply once it is known what came
//! of it; the session's task never waits for a server here.

use std::collections::BTreeMap;

use decurion_protocol::mcp::McpServer;
use decurion_protocol::{Event, Reply, RequestId};
use decurion_tools::mcp::Server;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::mcp::up;

use super::actor::SessionActor;

impl SessionActor {
    /// Uses these servers; replies when each new one has come up, has failed, or was waited for long enough.
    pub fn set_servers(&mut self, id: RequestId, wanted: Vec<McpServer>) {
        let Some(servers) = &mut self.place.servers else { return self.no_servers(id) };
        let (added, removed) = servers.set(wanted);
        let patience = servers.patience();
        self.reply_later(id, async move {
            let names: Vec<String> = added.iter().map(|server| server.declared().name.clone()).collect();
            let came = join_all(added.iter().map(|server| up(server, patience))).await;
            let failed = names.iter().zip(came).filter_map(|(name, came)| Some((name.clone(), came.err()?)));
            let errors: BTreeMap<String, String> = failed.collect();
            Reply::Done { value: json!({"added": names, "removed": removed, "errors": errors}) }
        });
    }

    /// Connects to a server again; replies when it has come up or has not.
    pub fn reconnect_server(&self, id: RequestId, name: &str) {
        let Some(servers) = &self.place.servers else { return self.no_servers(id) };
        match servers.reconnect(name) {
            Ok(server) => self.reply_when_up(id, server),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    /// Switches a server off, or on again; what it offers is told with the next prompt.
    pub fn toggle_server(&mut self, id: RequestId, name: &str, on: bool) {
        let Some(servers) = &mut self.place.servers else { return self.no_servers(id) };
        match servers.toggle(name, on) {
            Ok(Some(server)) => self.reply_when_up(id, server),
            Ok(None) => self.reply(id, Reply::Done { value: Value::Null }),
            Err(reason) => self.reply(id, Reply::Refused { reason }),
        }
    }

    fn reply_when_up(&self, id: RequestId, server: Server) {
        let patience = server.declared().start_timeout;
        self.reply_later(id, async move {
            match up(&server, patience).await {
                Ok(()) => Reply::Done { value: Value::Null },
                Err(reason) => Reply::Refused { reason },
            }
        });
    }

    fn no_servers(&self, id: RequestId) {
        let reason = "this session has no MCP servers".to_owned();
        self.reply(id, Reply::Refused { reason });
    }

    /// Replies as soon as this is known, beside the session's task.
    pub fn reply_later(&self, request: RequestId, reply: impl Future<Output = Reply> + Send + 'static) {
        let (journal, who) = (self.core.journal.clone(), self.core.who.clone());
        tokio::spawn(async move {
            let reply = reply.await;
            journal.publish(&who, Event::Replied { request, reply });
        });
    }
}
