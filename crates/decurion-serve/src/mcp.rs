//! An MCP server on standard input and output: other agents' programs start ours. Takes JSON-RPC lines, gives
//! JSON-RPC lines. Each call of Agent is an ordinary session whose main agent is the one asked for; when the
//! input ends, everything that was started is ended with it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decurion_protocol::outcome::limit_reached;
use decurion_protocol::{
    Block, Command, CommandSender, Event, Limits, Link, OpenSession, Outcome, Place, Reply, Request,
    RequestId,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};
use tokio::sync::{Semaphore, watch};

use crate::headless::LineWriterQueue;
use crate::input::MOST_LINE;

/// How many sessions run at once.
const MOST_RUNNING: usize = 16;
/// How many that have ended are remembered.
const MOST_KEPT: usize = 256;
/// How long running work may take to end after its caller is gone.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long TaskOutput waits that does not say, in milliseconds.
const USUAL_WAIT: u64 = 30_000;
const LONGEST_WAIT: u64 = 600_000;
/// The versions of the protocol that are spoken.
const VERSIONS: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const PROMPT: RequestId = RequestId(1);
const FINISH: RequestId = RequestId(2);
const CLOSE: RequestId = RequestId(3);

/// What is offered, and how it is done.
pub struct McpServe {
    pub place: Arc<dyn Place>,
    /// The tools as MCP lists them: Agent, TaskOutput, TaskStop.
    pub tools: Vec<Value>,
    /// The session that a call of Agent asks for; the error is for the caller.
    pub session: Box<MakeRequest>,
    /// Version of the program.
    pub version: String,
}

/// Makes the request for a session out of a call's input.
pub type MakeRequest = dyn Fn(&Value) -> Result<OpenSession, String> + Send + Sync;

/// A session that was started for a caller.
struct Task {
    description: String,
    commands: CommandSender,
    /// How it ended; none while it runs.
    ending: watch::Receiver<Option<Outcome>>,
}

struct McpFrontEnd {
    offer: McpServe,
    out: LineWriterQueue,
    tasks: Mutex<HashMap<String, Task>>,
    /// Calls under way, by the caller's id, and the task each waits for.
    calls: Mutex<HashMap<String, watch::Sender<bool>>>,
    /// Whether the input has ended: what is only now beginning ends at once.
    over: AtomicBool,
    room: Arc<Semaphore>,
}

impl McpServe {
    /// Serves until the input ends; then ends what runs, and returns when it has ended.
    pub async fn serve<R: AsyncBufRead + Unpin>(self, input: R, out: LineWriterQueue) {
        let server = Arc::new(McpFrontEnd {
            offer: self,
            out,
            tasks: Mutex::default(),
            calls: Mutex::default(),
            over: AtomicBool::new(false),
            room: Arc::new(Semaphore::new(MOST_RUNNING)),
        });
        let mut lines = Bounded::new(input);
        let mut working = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(_) = working.join_next(), if !working.is_empty() => {}
                line = lines.next() => match line {
                    McpLine::Whole(text) => server.hear(&text, &mut working).await,
                    McpLine::TooLong => server.say(&failure(&Value::Null, -32700, "the line is too long")).await,
                    McpLine::End => break,
                },
            }
        }
        server.over.store(true, Ordering::SeqCst);
        server.end_all().await;
        drop(tokio::time::timeout(PATIENCE, async { while working.join_next().await.is_some() {} }).await);
    }
}

impl McpFrontEnd {
    async fn hear(self: &Arc<Self>, line: &[u8], working: &mut tokio::task::JoinSet<()>) {
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            return self.say(&failure(&Value::Null, -32700, "the line is not JSON")).await;
        };
        let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
        let id = message.get("id").cloned().filter(|id| id.is_string() || id.is_number());
        let params = message.get("params").cloned().unwrap_or_default();
        match (method, id) {
            ("notifications/cancelled", _) => self.cancel(&params["requestId"]),
            (_, None) | ("", _) => {}
            ("initialize", Some(id)) => self.say(&success(&id, &self.greeting(&params))).await,
            ("ping", Some(id)) => self.say(&success(&id, &json!({}))).await,
            ("tools/list", Some(id)) => self.say(&success(&id, &json!({"tools": self.offer.tools}))).await,
            ("tools/call", Some(id)) => {
                // Created before the next line is read, which may be the cancellation or the end.
                let (cancel, cancelled) = watch::channel(false);
                lock(&self.calls).insert(id.to_string(), cancel);
                working.spawn(Arc::clone(self).call(id, params, cancelled));
            }
            (_, Some(id)) => self.say(&failure(&id, -32601, "there is no such method")).await,
        }
    }

    async fn say(&self, message: &Value) {
        let _ = self.out.send(message.to_string().into_bytes()).await;
    }

    fn greeting(&self, params: &Value) -> Value {
        let asked = params["protocolVersion"].as_str().unwrap_or_default();
        let version = VERSIONS.iter().find(|version| **version == asked).unwrap_or(&VERSIONS[0]);
        json!({
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "decurion", "version": self.offer.version},
        })
    }

    fn cancel(&self, id: &Value) {
        if let Some(call) = lock(&self.calls).get(&id.to_string()) {
            call.send_replace(true);
        }
    }

    async fn call(self: Arc<Self>, id: Value, params: Value, cancelled: watch::Receiver<bool>) {
        let input = params.get("arguments").cloned().unwrap_or_else(|| json!({}));
        let token = params["_meta"]["progressToken"].clone();
        let answer = match params["name"].as_str().unwrap_or_default() {
            "Agent" | "Task" => self.agent(&input, cancelled.clone(), token).await,
            "TaskOutput" => self.output(&input, cancelled.clone()).await,
            "TaskStop" => self.stop(&input).await,
            other => Err(format!("there is no such tool: {other}")),
        };
        lock(&self.calls).remove(&id.to_string());
        // The caller that cancelled wants no answer.
        if *cancelled.borrow() {
            return;
        }
        let (text, is_error) = match answer {
            Ok(answer) => answer,
            Err(reason) => (reason, true),
        };
        let result = json!({"content": [{"type": "text", "text": text}], "isError": is_error});
        self.say(&success(&id, &result)).await;
    }

    async fn agent(
        self: &Arc<Self>,
        input: &Value,
        cancelled: watch::Receiver<bool>,
        token: Value,
    ) -> Result<(String, bool), String> {
        let request = (self.offer.session)(input)?;
        // Taken before anything is waited for, and kept until the session is over.
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| {
            format!("{MOST_RUNNING} agents are at work already, which is the most at once; wait for one")
        })?;
        let link = self.offer.place.open(request).await.map_err(|error| error.to_string())?;
        let task = link.session.to_string();
        let (ended, ending) = watch::channel(None);
        let prompt = input["prompt"].as_str().unwrap_or_default().to_owned();
        let description = input["description"].as_str().unwrap_or_default().to_owned();
        let commands = link.commands.clone();
        self.remember(&task, Task { description, commands: commands.clone(), ending: ending.clone() });
        let background = input["run_in_background"].as_bool().unwrap_or(false);
        let token = Some(token).filter(|token| !background && !token.is_null());
        let server = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = server.follow(link, prompt, token).await;
            drop(room);
            ended.send_replace(Some(outcome));
        });
        if background && self.over.load(Ordering::SeqCst) {
            close(&commands).await;
        }
        if background {
            let launched = json!({"status": "async_launched", "agentId": task});
            return Ok((format!("{launched}\nLook with TaskOutput, stop with TaskStop."), false));
        }
        let outcome = tokio::select! {
            biased;
            () = fired(cancelled) => {
                close(&commands).await;
                wait(ending).await
            }
            outcome = wait(ending.clone()) => outcome,
        };
        Ok(told(&outcome))
    }

    /// Gives a session its prompt and listens until its whole tree is quiet.
    async fn follow(&self, mut link: Link, prompt: String, token: Option<Value>) -> Outcome {
        let work = Command::Prompt { blocks: vec![Block::text(prompt)] };
        for (id, command) in [(PROMPT, work), (FINISH, Command::Finish)] {
            if link.commands.send(Request { id, command }).await.is_err() {
                return Outcome::Lost;
            }
        }
        let mut outcome = Outcome::Lost;
        let mut steps = 0_u64;
        while let Some(envelope) = link.events.next().await {
            match &envelope.event {
                Event::RunEnded { outcome: ended, .. } if envelope.agent.is_none() => outcome = ended.clone(),
                Event::CallStarted { intent, .. } => {
                    steps += 1;
                    if let Some(token) = &token {
                        let params =
                            json!({"progressToken": token, "progress": steps, "message": intent.title});
                        let note =
                            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
                        self.out.try_send(note.to_string().into_bytes());
                    }
                }
                Event::Replied { request: FINISH | CLOSE, reply } => {
                    if let Reply::Done { value } = reply {
                        tell_worktree(&mut outcome, &value["worktree"]);
                    }
                    break;
                }
                _ => {}
            }
        }
        outcome
    }

    fn remember(&self, id: &str, task: Task) {
        let mut tasks = lock(&self.tasks);
        if tasks.len() >= MOST_KEPT {
            let over: Vec<String> = tasks
                .iter()
                .filter(|(_, task)| task.ending.borrow().is_some())
                .map(|(id, _)| id.clone())
                .take(MOST_KEPT / 2)
                .collect();
            for id in over {
                tasks.remove(&id);
            }
        }
        tasks.insert(id.to_owned(), task);
    }

    async fn output(
        &self,
        input: &Value,
        cancelled: watch::Receiver<bool>,
    ) -> Result<(String, bool), String> {
        let (id, ending, description) = self.task(input)?;
        let block = input["block"].as_bool().unwrap_or(true);
        let limit = input["timeout"].as_u64().unwrap_or(USUAL_WAIT).min(LONGEST_WAIT);
        if block {
            let waiting = tokio::time::timeout(Duration::from_millis(limit), wait(ending.clone()));
            tokio::select! {
                _ = waiting => {}
                () = fired(cancelled) => {}
            }
        }
        let ended = ending.borrow().clone();
        let status = match &ended {
            None => "running",
            Some(Outcome::Completed { .. }) => "completed",
            Some(Outcome::Killed { .. }) => "killed",
            Some(_) => "failed",
        };
        let mut value =
            json!({"task_id": id, "task_type": "local_agent", "status": status, "description": description});
        if let Some(outcome) = &ended {
            value["outcome"] = json!(outcome.word());
            value["output"] = json!(told(outcome).0);
        }
        Ok((value.to_string(), false))
    }

    async fn stop(&self, input: &Value) -> Result<(String, bool), String> {
        let (id, ending, description) = self.task(input)?;
        let before = ending.borrow().as_ref().map(Outcome::word);
        let commands = lock(&self.tasks).get(&id).map(|task| task.commands.clone());
        let message = match (before, commands) {
            (Some(word), _) => format!("it had ended already: {word}"),
            (None, None) => "it is not known any more".to_owned(),
            (None, Some(commands)) => {
                close(&commands).await;
                match tokio::time::timeout(PATIENCE, wait(ending)).await {
                    Ok(_) => "stopped".to_owned(),
                    Err(_) => "it is being stopped".to_owned(),
                }
            }
        };
        let value =
            json!({"message": message, "task_id": id, "task_type": "local_agent", "command": description});
        Ok((value.to_string(), false))
    }

    fn task(&self, input: &Value) -> Result<(String, watch::Receiver<Option<Outcome>>, String), String> {
        let id = input["task_id"].as_str().ok_or("`task_id` is missing")?;
        let tasks = lock(&self.tasks);
        let task = tasks.get(id).ok_or_else(|| format!("No task found with ID: {id}"))?;
        Ok((id.to_owned(), task.ending.clone(), task.description.clone()))
    }

    /// Ends everything that runs, and waits for that.
    async fn end_all(&self) {
        for call in lock(&self.calls).values() {
            call.send_replace(true);
        }
        let all: Vec<_> =
            lock(&self.tasks).values().map(|task| (task.commands.clone(), task.ending.clone())).collect();
        for (commands, ending) in &all {
            if ending.borrow().is_none() {
                close(commands).await;
            }
        }
        let ending = async {
            for (_, ending) in all {
                wait(ending).await;
            }
        };
        drop(tokio::time::timeout(PATIENCE, ending).await);
    }
}

/// Lines of bounded length. Reading can be given up at any await and gone on with later.
struct Bounded<R> {
    reader: R,
    line: Vec<u8>,
    too_long: bool,
}

enum McpLine {
    Whole(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncBufRead + Unpin> Bounded<R> {
    fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), too_long: false }
    }

    async fn next(&mut self) -> McpLine {
        loop {
            let Ok(bytes @ [_, ..]) = self.reader.fill_buf().await else { return McpLine::End };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + piece.len() > MOST_LINE {
                self.too_long = true;
                self.line = Vec::new();
            } else if !self.too_long {
                self.line.extend_from_slice(piece);
            }
            let taken = piece.len() + usize::from(end.is_some());
            self.reader.consume(taken);
            if end.is_none() {
                continue;
            }
            if std::mem::take(&mut self.too_long) {
                return McpLine::TooLong;
            }
            let line = std::mem::take(&mut self.line);
            if !line.trim_ascii().is_empty() {
                return McpLine::Whole(line);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn close(commands: &CommandSender) {
    let command = Command::Close { reason: "the caller wants no more of it".to_owned() };
    let _ = commands.send(Request { id: CLOSE, command }).await;
}

/// Waits for an ending.
async fn wait(mut ending: watch::Receiver<Option<Outcome>>) -> Outcome {
    match ending.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or(Outcome::Lost),
        Err(_) => Outcome::Lost,
    }
}

/// Waits until a call is cancelled.
async fn fired(mut cancelled: watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Adds to an ending where the work is, if it is in a checkout of the session's own.
fn tell_worktree(outcome: &mut Outcome, kept: &Value) {
    let (Some(path), Some(branch), Some(left)) =
        (kept["path"].as_str(), kept["branch"].as_str(), kept["left"].as_str())
    else {
        return;
    };
    let told = match outcome {
        Outcome::Completed { report, .. } => report,
        Outcome::OutOfBudget { partial, .. } | Outcome::Denied { partial, .. } => partial,
        Outcome::Failed { error } => error,
        Outcome::Stalled { waiting_for } => waiting_for,
        Outcome::Killed { by } => by,
        Outcome::Lost => return,
    };
    told.push_str(&format!("\n\nThe work is in a separate checkout: {path} on {branch}: {left}"));
}

/// An ending as the caller reads it, and whether it is a failure.
fn told(outcome: &Outcome) -> (String, bool) {
    match outcome {
        Outcome::Completed { report, .. } => (report.clone(), false),
        Outcome::Failed { error } => (format!("failed: {error}"), true),
        Outcome::Killed { by } => (format!("stopped by {by}"), true),
        Outcome::Stalled { waiting_for } => (format!("stalled: {waiting_for}"), true),
        Outcome::OutOfBudget { budget, partial } => {
            (format!("{}. So far: {partial}", limit_reached(budget, &Limits::default())), true)
        }
        Outcome::Denied { reason, partial } => (format!("denied: {reason}. So far: {partial}"), true),
        Outcome::Lost => ("its process died before it ended".to_owned(), true),
    }
}

fn success(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn failure(id: &Value, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
