//! What we answer a server, and what we hear from it besides results: its requests (roots, elicitation; no
//! sampling), its progress, and that its lists have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ErrorData;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    ClientConfig, ElicitRequestParams, ElicitResult, Implementation, ProgressNotificationParam,
    ProgressToken, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use serde_json::json;
use tokio::sync::{Notify, mpsc};

use super::elicit::{Calls, InCall};
use super::{Elicit, McpHost, Notice};

/// The longest line of progress that is shown.
const PROGRESS_CHARS: usize = 200;

/// Our end of a connection; clones are the same.
#[derive(Clone)]
pub(crate) struct Client(Arc<Inner>);

struct Inner {
    name: String,
    host: McpHost,
    /// Who wants to know how a request is doing.
    progress: Mutex<HashMap<ProgressToken, mpsc::Sender<String>>>,
    /// Fires when a list has changed; however often that is said, once.
    changed: Notify,
    /// The calls under way, in whose name the server may ask a person.
    calls: Calls,
}

impl Client {
    pub fn new(name: &str, host: &McpHost) -> Self {
        let (name, host) = (name.to_owned(), host.clone());
        let (progress, changed, calls) = (Mutex::default(), Notify::new(), Calls::default());
        Self(Arc::new(Inner { name, host, progress, changed, calls }))
    }

    /// Waits until the server says that one of its lists has changed.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Sends the progress of a request there, until the given value is dropped.
    pub fn follow(&self, token: ProgressToken, lines: mpsc::Sender<String>) -> Following<'_> {
        self.lock().insert(token.clone(), lines);
        Following { client: self, token }
    }

    /// Lets the server ask a person in the name of a call, until the given value is dropped.
    pub fn calling(&self, elicit: Option<&Arc<dyn Elicit>>) -> InCall<'_> {
        self.0.calls.begin(elicit)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ProgressToken, mpsc::Sender<String>>> {
        self.0.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request whose progress is shown.
pub(crate) struct Following<'a> {
    client: &'a Client,
    token: ProgressToken,
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.client.lock().remove(&self.token);
    }
}

#[expect(deprecated, reason = "servers in use ask for roots")]
impl ClientHandler for Client {
    fn get_info(&self) -> ClientConfig {
        // A protocol's own words are always read; the fallback says that nothing is offered.
        let capabilities = json!({"roots": {"listChanged": false}, "elicitation": {"form": {}, "url": {}}});
        let capabilities = serde_json::from_value(capabilities).unwrap_or_default();
        let us = Implementation::new("decurion", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(capabilities, us).with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn list_roots(
        &self,
        _: RequestContext<RoleClient>,
    ) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        let root = rmcp::model::Root::new(format!("file://{}", self.0.host.root));
        Ok(rmcp::model::ListRootsResult::new(vec![root]))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let (name, notice) = (&self.0.name, &self.0.host.notice);
        let tell = |text: &str| notice(Notice { server: name.clone(), text: text.to_owned() });
        Ok(self.0.calls.ask(name, params, &context.ct, &tell).await)
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let follower = self.lock().get(&params.progress_token).cloned();
        let Some(follower) = follower else { return };
        let number =
            |value: f64| if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
        let mut line = number(params.progress);
        if let Some(total) = params.total {
            line = format!("{line} of {}", number(total));
        }
        if let Some(message) = params.message {
            line = format!("{line}: {message}");
        }
        let clean = line.chars().filter(|character| !character.is_control()).take(PROGRESS_CHARS).collect();
        // A line that finds no room is not worth waiting for.
        let _ = follower.try_send(clean);
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }
}
