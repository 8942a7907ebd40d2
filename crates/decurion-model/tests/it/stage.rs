//! What the tests share: requests, players of scripts that count, and readable logs of what came out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use decurion_model::reply::StreamDecoder;
use decurion_model::script::Script;
use decurion_model::script_provider::ScriptedProvider;
use decurion_model::{
    BoxStream, Dialect, Gateway, GatewayEvent, GatewaySettings, Head, ModelError, ModelEvent, ModelProvider,
    ModelRequest, RequestClass, RequestTag,
};
use decurion_protocol::event::WaitReason;
use decurion_protocol::{Block, Delta, Message};
use futures_util::StreamExt;

pub fn head() -> Head {
    Head {
        model: "claude-test".into(),
        system: vec!["be brief".into()],
        max_output_tokens: 1000,
        ..Head::default()
    }
}

pub fn request_in(dialect: Dialect, messages: &[Message]) -> ModelRequest {
    let messages: Vec<_> = messages.iter().map(|message| dialect.message(message)).collect();
    ModelRequest::new(Arc::new(dialect.head(&head())), messages)
}

pub fn request(text: &str) -> ModelRequest {
    request_in(Dialect::Anthropic, &[Message::user(text)])
}

pub fn tagged(path: &str, text: &str) -> ModelRequest {
    let class = if path == "main" { RequestClass::Main } else { RequestClass::AgentBuiltin };
    let agent = if path == "main" { "main" } else { "worker" };
    let tag = RequestTag { agent: agent.into(), path: path.into(), class };
    ModelRequest { tag, ..request(text) }
}

/// A scripted model that remembers who asked.
pub struct Player {
    script: ScriptedProvider,
    pub requests: AtomicUsize,
    pub paths: Mutex<Vec<String>>,
    pub models: Mutex<Vec<String>>,
    pub times: Mutex<Vec<tokio::time::Instant>>,
}

impl Player {
    pub fn new(script: &str) -> Arc<Self> {
        Self::speaking(Dialect::Anthropic, script)
    }

    pub fn speaking(dialect: Dialect, script: &str) -> Arc<Self> {
        Arc::new(Self {
            script: ScriptedProvider::speaking(dialect, Script::parse(script).unwrap()),
            requests: AtomicUsize::new(0),
            paths: Mutex::default(),
            models: Mutex::default(),
            times: Mutex::default(),
        })
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn gateway(self: &Arc<Self>) -> Gateway {
        Gateway::new(self.clone(), GatewaySettings::default())
    }
}

impl ModelProvider for Player {
    fn dialect(&self) -> Dialect {
        self.script.dialect()
    }

    fn stream(&self, request: ModelRequest) -> BoxStream<'static, Result<ModelEvent, ModelError>> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.paths.lock().unwrap().push(request.tag.path.clone());
        self.models.lock().unwrap().push(request.head.model.clone());
        self.times.lock().unwrap().push(tokio::time::Instant::now());
        self.script.stream(request)
    }
}

/// Everything a provider gave.
pub async fn all(
    provider: &dyn ModelProvider,
    request: ModelRequest,
) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut stream = provider.stream(request);
    let (mut events, mut error) = (Vec::new(), None);
    while let Some(item) = stream.next().await {
        assert!(error.is_none(), "an item after the error: {item:?}");
        match item {
            Ok(ModelEvent::Alive) => {}
            Ok(event) => events.push(event),
            Err(failure) => error = Some(failure),
        }
    }
    (events, error)
}

/// What a gateway gives of a request, without when it is sent.
pub fn shown(
    gateway: &Gateway,
    request: ModelRequest,
) -> BoxStream<'static, Result<GatewayEvent, ModelError>> {
    let is_shown = |item: &Result<GatewayEvent, ModelError>| *item != Ok(GatewayEvent::Sending);
    gateway.stream(request).filter(move |item| std::future::ready(is_shown(item))).boxed()
}

/// Everything a gateway gave.
pub async fn turn(gateway: &Gateway, request: ModelRequest) -> (Vec<GatewayEvent>, Option<ModelError>) {
    let mut stream = shown(gateway, request);
    let (mut events, mut error) = (Vec::new(), None);
    while let Some(item) = stream.next().await {
        assert!(error.is_none(), "an item after the error: {item:?}");
        match item {
            Ok(event) => events.push(event),
            Err(failure) => error = Some(failure),
        }
    }
    (events, error)
}

/// What stands after all discarding: the reply's blocks, and whether it was completed exactly once.
pub fn kept(events: &[GatewayEvent]) -> Vec<Block> {
    let last = events.iter().rposition(|event| matches!(event, GatewayEvent::Discarded { .. }));
    let valid = &events[last.map_or(0, |at| at + 1)..];
    let completed = |event: &&GatewayEvent| matches!(event, GatewayEvent::Model(ModelEvent::Completed(_)));
    assert_eq!(events.iter().filter(completed).count(), 1, "{events:?}");
    assert!(valid.iter().any(|event| completed(&event)), "{events:?}");
    valid
        .iter()
        .filter_map(|event| match event {
            GatewayEvent::Model(ModelEvent::Block { block, .. }) => Some(block.clone()),
            _ => None,
        })
        .collect()
}

/// Decodes bytes cut into these chunks.
pub fn decode<'a>(
    dialect: Dialect,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut decoder = StreamDecoder::new(dialect, 7);
    let mut out = VecDeque::new();
    for chunk in chunks {
        if let Err(error) = decoder.feed(chunk, &mut out) {
            return (out.into(), Some(error));
        }
    }
    let error = decoder.finish(&mut out).err();
    (out.into(), error)
}

/// One line per event, for expectations.
pub fn log(events: &[ModelEvent]) -> String {
    let lines: Vec<String> = events.iter().map(line).collect();
    lines.join("\n")
}

fn line(event: &ModelEvent) -> String {
    match event {
        ModelEvent::Accepted(accepted) => format!("accepted {:?}", accepted.request_id),
        ModelEvent::Alive => "alive".to_owned(),
        ModelEvent::Delta(Delta::Started { message_id, model, .. }) => {
            format!("started {message_id} {model}")
        }
        ModelEvent::Delta(Delta::BlockStarted { index, block }) => {
            format!("{index} starts {}", serde_json::to_string(block).unwrap())
        }
        ModelEvent::Delta(Delta::Text { index, text }) => format!("{index} text {text:?}"),
        ModelEvent::Delta(Delta::Thinking { index, text }) => format!("{index} thinking {text:?}"),
        ModelEvent::Delta(Delta::Signature { index, signature }) => format!("{index} signature {signature}"),
        ModelEvent::Delta(Delta::Input { index, json }) => format!("{index} input {json}"),
        ModelEvent::Delta(Delta::BlockEnded { index }) => format!("{index} ends"),
        ModelEvent::Delta(Delta::Ended { stop_reason, .. }) => format!("ended {stop_reason:?}"),
        ModelEvent::Delta(other) => format!("{other:?}"),
        ModelEvent::Block { index, block } => format!("{index} = {}", serde_json::to_string(block).unwrap()),
        ModelEvent::Completed(reply) => format!(
            "completed {} {} stop {:?} usage {}",
            reply.message_id,
            reply.model,
            reply.stop_reason,
            serde_json::to_string(&reply.usage).unwrap()
        ),
    }
}

/// One line per event of a gateway; pieces of a reply are only counted.
pub fn outline(events: &[GatewayEvent]) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut pieces = 0;
    for event in events {
        let text = match event {
            GatewayEvent::Model(ModelEvent::Completed(reply)) => format!("completed by {}", reply.model),
            GatewayEvent::Model(_) => {
                pieces += 1;
                continue;
            }
            GatewayEvent::Sending => continue,
            GatewayEvent::Waiting(WaitReason::Retry { attempt, of, status, rate_limited, .. }) => {
                format!("waiting to try {attempt} of {of:?}, status {status:?}, limit {rate_limited}")
            }
            GatewayEvent::Waiting(other) => format!("waiting {other:?}"),
            GatewayEvent::Resumed => "resumed".to_owned(),
            GatewayEvent::Discarded { reason, .. } => format!("discarded: {reason}"),
            GatewayEvent::FellBack { from, to } => format!("fell back from {from} to {to}"),
        };
        if pieces > 0 {
            lines.push(format!("({pieces} pieces)"));
            pieces = 0;
        }
        lines.push(text);
    }
    lines.join("\n")
}
