//! A server that lives in the program that leads the session. Takes our messages, hands each to that program, and gives
//! what it answers as the server's: a transport without a wire of its own.
//!
//! Requests are under way side by side. What the server said of itself beforehand is answered here, without asking.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{HostMessages, Introduction};

/// How many answers wait to be taken.
const MOST_WAITING: usize = 64;
/// The error of a request that the program did not carry to its server and back, as the protocol counts them.
const NOT_CARRIED: ErrorCode = ErrorCode(-32_000);

/// The way to one server.
pub(crate) struct HostedTransport {
    server: String,
    leader: Arc<dyn HostMessages>,
    introduction: Option<Introduction>,
    /// How long anything may take; whoever asks has limits of its own, which are shorter.
    limit: Duration,
    answers: (mpsc::Sender<ServerJsonRpcMessage>, mpsc::Receiver<ServerJsonRpcMessage>),
    /// Requests that were not answered. Dropping one takes it back.
    under_way: HashMap<RequestId, AbortOnDropHandle<()>>,
}

impl HostedTransport {
    pub fn new(server: &str, leader: Arc<dyn HostMessages>, limit: Duration) -> Self {
        let introduction = leader.introduction(server);
        let (server, answers) = (server.to_owned(), mpsc::channel(MOST_WAITING));
        Self { server, leader, introduction, limit, answers, under_way: HashMap::new() }
    }

    fn request(&mut self, id: RequestId, message: Value) {
        let answers = self.answers.0.clone();
        let asking = match self.known(&message) {
            Some(result) => {
                let answer: Result<Value, String> = Ok(json!({"result": result}));
                Box::pin(std::future::ready(answer)) as decurion_protocol::link::BoxFuture<'static, _>
            }
            None => self.leader.send(&self.server, message.clone(), self.limit),
        };
        let named = id.clone();
        let task = tokio::spawn(async move {
            let answer = read(&named, &message, asking.await);
            // One that nobody takes any more is nobody's.
            drop(answers.send(answer).await);
        });
        self.under_way.retain(|_, task| !task.is_finished());
        self.under_way.insert(id, AbortOnDropHandle::new(task));
    }

    /// What is known without asking.
    fn known(&self, message: &Value) -> Option<Value> {
        let Introduction { initialize, tools } = self.introduction.as_ref()?;
        match message["method"].as_str()? {
            "initialize" => Some(initialize.clone()),
            "tools/list" => tools.clone(),
            _ => None,
        }
    }

    fn tell(&mut self, message: Value) {
        let taken_back = message["params"]["requestId"].clone();
        let is_greeting = message["method"] == "notifications/initialized";
        let is_taken_back = message["method"] == "notifications/cancelled";
        // A server that introduced itself is past the greeting.
        if !(is_greeting && self.introduction.is_some()) {
            let telling = self.leader.send(&self.server, message, self.limit);
            drop(tokio::spawn(async move { drop(telling.await) }));
        }
        if is_taken_back && let Ok(id) = serde_json::from_value::<RequestId>(taken_back) {
            self.under_way.remove(&id);
        }
    }
}

impl Transport<RoleClient> for HostedTransport {
    type Error = Infallible;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let value = serde_json::to_value(&message).unwrap_or_default();
        match message {
            ClientJsonRpcMessage::Request(request) => self.request(request.id, value),
            ClientJsonRpcMessage::Notification(_) => self.tell(value),
            // It cannot have asked us anything.
            ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_) => {}
        }
        std::future::ready(Ok(()))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.answers.1.recv().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.under_way.clear();
        self.answers.1.close();
        Ok(())
    }
}

/// The answer to a request, whatever the program said.
fn read(id: &RequestId, request: &Value, answer: Result<Value, String>) -> ServerJsonRpcMessage {
    let failed = |reason: String| {
        let begun = request["method"] == "tools/call";
        let unknown = if begun { "; whether it did what was asked is not known" } else { "" };
        let error = ErrorData::new(NOT_CARRIED, format!("{reason}{unknown}"), None);
        ServerJsonRpcMessage::error(error, Some(id.clone()))
    };
    let mut answer = match answer {
        Ok(Value::Object(answer)) => answer,
        Ok(_) => return failed("the host's answer is not a message".to_owned()),
        Err(reason) => return failed(reason),
    };
    // It is the answer to this, whatever number the program gave it.
    answer.insert("jsonrpc".to_owned(), json!("2.0"));
    answer.insert("id".to_owned(), json!(id));
    answer.retain(|key, value| {
        matches!(key.as_str(), "jsonrpc" | "id" | "result") || (key == "error" && !value.is_null())
    });
    if answer.contains_key("error") {
        answer.remove("result");
    }
    let message = serde_json::from_value::<ServerJsonRpcMessage>(Value::Object(answer));
    match message {
        Ok(message @ (ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_))) => message,
        _ => failed("the host's answer is neither a result nor an error".to_owned()),
    }
}
