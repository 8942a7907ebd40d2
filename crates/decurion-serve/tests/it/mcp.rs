//! Our agents as an MCP server: greeted, listed, called, called in the background, cancelled, and ended with the
//! input.

use std::sync::Arc;

use decurion_protocol::Place;
use decurion_serve::{LineWriterQueue, McpServe};
use decurion_testkit::stage::Stage;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

const SCRIPT: &str = "when match=/wait/\n  delay 50m\n  say \"late\"\nwhen\n  say \"the report\"\n";

/// A server that plays a script, and a caller at its other end.
struct Called {
    input: Option<tokio::io::DuplexStream>,
    output: tokio::io::Lines<BufReader<tokio::io::DuplexStream>>,
    serving: tokio::task::JoinHandle<()>,
}

/// What a thread writes, for a reader that waits.
struct Piped(tokio::sync::mpsc::UnboundedSender<Vec<u8>>);

impl std::io::Write for Piped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Called {
    fn start() -> Self {
        let stage = Stage::new(SCRIPT);
        let request = stage.request.clone();
        let place: Arc<dyn Place> = Arc::new(stage.engine());
        let session = move |input: &Value| {
            // The stage is kept as long as there are sessions in it.
            let _ = &stage;
            if input["prompt"].is_string() {
                Ok(request.clone())
            } else {
                Err("`prompt` is missing".to_owned())
            }
        };
        let tools = vec![json!({"name": "Agent", "inputSchema": {"type": "object"}})];
        let serve = McpServe { place, tools, session: Box::new(session), version: "0".into() };
        let (input, their_input) = tokio::io::duplex(1 << 20);
        let (mut their_output, output) = tokio::io::duplex(1 << 20);
        let (sender, mut written) = tokio::sync::mpsc::unbounded_channel::<Vec<u8>>();
        tokio::spawn(async move {
            while let Some(bytes) = written.recv().await {
                their_output.write_all(&bytes).await.unwrap();
            }
        });
        let lines = LineWriterQueue::to(Piped(sender)).unwrap();
        let serving = tokio::spawn(serve.serve(BufReader::new(their_input), lines));
        Self { input: Some(input), output: BufReader::new(output).lines(), serving }
    }

    async fn say(&mut self, message: &Value) {
        self.input.as_mut().unwrap().write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let line = tokio::time::timeout(std::time::Duration::from_mins(1), self.output.next_line());
        serde_json::from_str(&line.await.expect("hangs").unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        self.hear().await
    }

    async fn call(&mut self, id: u64, tool: &str, input: Value) -> (String, bool) {
        let answer = self.ask(id, "tools/call", json!({"name": tool, "arguments": input})).await;
        assert_eq!(answer["id"], id, "{answer}");
        let result = &answer["result"];
        (result["content"][0]["text"].as_str().unwrap().to_owned(), result["isError"].as_bool().unwrap())
    }
}

#[tokio::test]
async fn agents_are_called_looked_at_and_stopped() {
    let mut called = Called::start();
    let greeting = called.ask(1, "initialize", json!({"protocolVersion": "2025-06-18"})).await;
    assert_eq!(greeting["result"]["protocolVersion"], "2025-06-18");
    assert_eq!(called.ask(2, "tools/list", json!({})).await["result"]["tools"][0]["name"], "Agent");
    assert_eq!(called.ask(3, "nonsense", json!({})).await["error"]["code"], -32601);
    called.say(&json!("not a request")).await;
    called.input.as_mut().unwrap().write_all(b"{ broken\n").await.unwrap();
    assert_eq!(called.hear().await["error"]["code"], -32700);
    assert_eq!(called.call(4, "Agent", json!({"prompt": "go"})).await, ("the report".to_owned(), false));
    assert_eq!(called.call(5, "Agent", json!({})).await, ("`prompt` is missing".to_owned(), true));
    assert!(called.call(6, "Other", json!({})).await.1);
    let (launched, _) = called.call(7, "Agent", json!({"prompt": "wait", "run_in_background": true})).await;
    let launched: Value = serde_json::from_str(launched.lines().next().unwrap()).unwrap();
    let id = launched["agentId"].as_str().unwrap().to_owned();
    let state = |text: String| serde_json::from_str::<Value>(&text).unwrap()["status"].clone();
    let (text, _) = called.call(8, "TaskOutput", json!({"task_id": id, "block": false})).await;
    assert_eq!(state(text), "running");
    assert!(called.call(9, "TaskStop", json!({"task_id": id})).await.0.contains("stopped"));
    let (text, _) = called.call(10, "TaskOutput", json!({"task_id": id})).await;
    assert_eq!(state(text), "killed");
    assert!(called.call(11, "TaskOutput", json!({"task_id": "nobody"})).await.1);
    let (text, _) = called.call(12, "TaskStop", json!({"task_id": id})).await;
    assert!(text.contains("it had ended already: killed"), "{text}");
}

#[tokio::test]
async fn a_call_that_is_cancelled_is_not_answered_and_the_end_of_the_input_ends_everything() {
    let mut called = Called::start();
    let wait = json!({"name": "Agent", "arguments": {"prompt": "wait"}});
    called.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wait})).await;
    called
        .say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
        .await;
    assert_eq!(called.call(2, "Agent", json!({"prompt": "go"})).await.0, "the report");
    called.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": wait})).await;
    called.input.take();
    let limit = std::time::Duration::from_mins(1);
    tokio::time::timeout(limit, called.serving).await.expect("it goes on without anyone").unwrap();
    assert!(called.output.next_line().await.unwrap().is_none(), "nobody wants to hear of it");
}

#[tokio::test]
async fn no_more_than_sixteen_run_however_fast_they_are_asked_for() {
    let mut called = Called::start();
    let wait = json!({"name": "Agent", "arguments": {"prompt": "wait", "run_in_background": true}});
    let burst: String = (0..20)
        .map(|id| {
            format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": wait}))
        })
        .collect();
    called.input.as_mut().unwrap().write_all(burst.as_bytes()).await.unwrap();
    let mut refused = Vec::new();
    for _ in 0..20 {
        let answer = called.hear().await;
        if answer["result"]["isError"] == true {
            refused.push(answer["result"]["content"][0]["text"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused[0].starts_with("16 agents are at work already"), "{refused:?}");
    called.input.take();
    let limit = std::time::Duration::from_mins(1);
    tokio::time::timeout(limit, called.serving).await.expect("it goes on without anyone").unwrap();
}

#[tokio::test]
async fn who_ends_makes_room_and_nobody_else_does() {
    let mut called = Called::start();
    let wait = json!({"prompt": "wait", "run_in_background": true});
    let mut tasks = Vec::new();
    for id in 0..16 {
        let (launched, is_error) = called.call(id, "Agent", wait.clone()).await;
        assert!(!is_error, "{launched}");
        let launched: Value = serde_json::from_str(launched.lines().next().unwrap()).unwrap();
        tasks.push(launched["agentId"].clone());
    }
    // One that nobody waits for has its place as long as it runs, and one that is waited for needs one too.
    assert!(called.call(20, "Agent", wait.clone()).await.1);
    assert!(called.call(21, "Agent", json!({"prompt": "go"})).await.1);
    called.call(22, "TaskStop", json!({"task_id": tasks[3]})).await;
    assert_eq!(called.call(23, "Agent", json!({"prompt": "go"})).await, ("the report".to_owned(), false));
    assert!(!called.call(24, "Agent", wait.clone()).await.1);
    assert!(called.call(25, "Agent", wait).await.1);
}

#[tokio::test]
async fn a_line_that_is_too_long_is_refused_and_the_next_is_heard() {
    let mut called = Called::start();
    let piece = vec![b'x'; 1 << 20];
    let mut input = called.input.take().unwrap();
    for _ in 0..17 {
        input.write_all(&piece).await.unwrap();
    }
    input.write_all(b"\n").await.unwrap();
    called.input = Some(input);
    assert_eq!(called.hear().await["error"]["message"], "the line is too long");
    assert_eq!(called.ask(1, "ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn a_wait_for_an_agent_has_an_end() {
    let mut called = Called::start();
    let wait = json!({"prompt": "wait", "run_in_background": true});
    let (launched, _) = called.call(1, "Agent", wait).await;
    let launched: Value = serde_json::from_str(launched.lines().next().unwrap()).unwrap();
    let look = json!({"task_id": launched["agentId"], "timeout": 1});
    assert!(called.call(2, "TaskOutput", look.clone()).await.0.contains("running"));
    // One that is cancelled is not answered; what is asked next is.
    let look =
        json!({"name": "TaskOutput", "arguments": {"task_id": launched["agentId"], "timeout": 600_000}});
    called.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": look})).await;
    called
        .say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}))
        .await;
    assert_eq!(called.ask(4, "ping", json!({})).await["id"], 4);
    called.input.take();
    let limit = std::time::Duration::from_mins(1);
    tokio::time::timeout(limit, called.serving).await.expect("somebody waits on").unwrap();
    assert!(called.output.next_line().await.unwrap().is_none());
}

#[tokio::test]
async fn of_agents_that_have_ended_the_last_few_hundred_are_known() {
    let mut called = Called::start();
    let launch = async |called: &mut Called, id: u64, prompt: &str| {
        let (launched, _) =
            called.call(id, "Agent", json!({"prompt": prompt, "run_in_background": true})).await;
        let launched: Value = serde_json::from_str(launched.lines().next().unwrap()).unwrap();
        launched["agentId"].clone()
    };
    let running = launch(&mut called, 1, "wait").await;
    let mut ended = Vec::new();
    for id in 2..302 {
        let task = launch(&mut called, id, "go").await;
        called.call(1000 + id, "TaskOutput", json!({"task_id": task})).await;
        ended.push(task);
    }
    let mut known = 0;
    for (id, task) in (2000..).zip(&ended) {
        let is_error = called.call(id, "TaskOutput", json!({"task_id": task, "block": false})).await.1;
        known += usize::from(!is_error);
    }
    assert!((128..256).contains(&known), "{known}");
    let look = json!({"task_id": running, "block": false});
    assert!(
        called.call(5000, "TaskOutput", look).await.0.contains("running"),
        "one at work is not forgotten"
    );
}
