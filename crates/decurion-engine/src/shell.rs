//! A command line as a task. Takes a call of Bash; while its parent waits, it is a call like any other; sent
//! to the background, at its start or later, the wait ends and the work goes on, never begun anew.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use decurion_protocol::{CallId, TaskId, TaskRecord, ToolOutput};
use decurion_store::SessionFiles;
use decurion_tools::{Spill, SpillFile, Tool, ToolContext};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bench::{Bench, Call, panicked};
use crate::foreground::ForegroundShell;
use crate::notice;
use crate::run_handle::RunHandle;
use crate::session_port::BackgroundShell;
use crate::spill::SpillInto;

/// Runs the command until it ends, or until nobody waits for it any more.
pub async fn run(
    bench: &Bench<'_>,
    call: &Call,
    tool: Arc<dyn Tool>,
    mut cx: ToolContext,
    input: Value,
) -> ToolOutput {
    let run = bench.run;
    let text = |field: &str| input.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let cancel = CancellationToken::new();
    let output_of = Arc::new(OnceLock::new());
    let detach = watch::Sender::new(false);
    cx.cancel = cancel.clone();
    cx.detached = detach.subscribe();
    cx.spill = Arc::new(TaskSpill {
        usual: Arc::clone(&cx.spill),
        into: bench.run.equipment.spill_into.clone(),
        task: Arc::clone(&output_of),
    });
    let shell = Arc::new(ForegroundShell {
        run: run.clone(),
        call: call.id.clone(),
        command: text("command"),
        description: text("description"),
        printed: Arc::clone(&cx.printed),
        cancel: cancel.clone(),
        detached: watch::Sender::new(None),
    });
    let by_user = run.shells.is_behind(&call.id);
    if by_user || input.get("run_in_background") == Some(&Value::Bool(true)) {
        // Counted first: an agent that ends now looks there for what it left running.
        run.begun.fetch_add(1, Ordering::Relaxed);
        // In a task of its own: once it is on record, it must begin and end, whatever becomes of the call.
        let beginning = tokio::spawn(begin_detached(shell, tool, cx, input, (output_of, detach, by_user)));
        return beginning.await.unwrap_or_else(|_| panicked("Bash"));
    }
    let mut detached = shell.detached.subscribe();
    let mut attached = Attached::new(&shell, tool, cx, input);
    tokio::select! {
        biased;
        output = attached.output() => attached.ended(output),
        record = record_of(&mut detached) => {
            let _ = output_of.set(record.task.clone());
            detach.send_replace(true);
            supervise(run, record.task.clone(), attached.part());
            launched(&record, true)
        }
    }
}

/// Begins a command that nobody waits for.
async fn begin_detached(
    shell: Arc<ForegroundShell>,
    tool: Arc<dyn Tool>,
    cx: ToolContext,
    input: Value,
    (output_of, detach, by_user): (Arc<OnceLock<TaskId>>, watch::Sender<bool>, bool),
) -> ToolOutput {
    let run = shell.run.clone();
    let background = BackgroundShell {
        run: run.clone(),
        call: shell.call.clone(),
        command: shell.command.clone(),
        description: shell.description.clone(),
        cancel: shell.cancel.clone(),
    };
    let record = match run.session.open_shell(background).await {
        Some(Ok(record)) => record,
        Some(Err(reason)) => return ToolOutput::error(reason),
        None => return ToolOutput::error("the session is gone"),
    };
    let _ = output_of.set(record.task.clone());
    detach.send_replace(true);
    supervise(&run, record.task.clone(), start(tool, cx, input));
    launched(&record, by_user)
}

fn start(tool: Arc<dyn Tool>, cx: ToolContext, input: Value) -> JoinHandle<ToolOutput> {
    tokio::spawn(async move {
        let output = AssertUnwindSafe(tool.run(&cx, input)).catch_unwind().await;
        output.unwrap_or_else(|_| panicked(&tool.spec().name))
    })
}

/// Sees to it that the session hears of the end.
fn supervise(run: &RunHandle, task: TaskId, work: JoinHandle<ToolOutput>) {
    let session = Arc::clone(&run.session);
    tokio::spawn(async move {
        let output = Box::new(work.await.unwrap_or_else(|_| panicked("Bash")));
        // A session that is gone has ended its shells itself.
        let _ = session.shell_ended(task, output).await;
    });
}

fn launched(record: &TaskRecord, by_user: bool) -> ToolOutput {
    let mut value = json!({
        "stdout": "", "stderr": "", "interrupted": false, "isImage": false, "noOutputExpected": false,
        "backgroundTaskId": record.task,
    });
    if by_user {
        value["backgroundedByUser"] = json!(true);
        value["code"] = json!(0);
    }
    ToolOutput::text(notice::shell_launched(record, by_user)).with_structured(value)
}

async fn record_of(detached: &mut watch::Receiver<Option<Arc<TaskRecord>>>) -> Arc<TaskRecord> {
    let found = match detached.wait_for(Option::is_some).await {
        Ok(record) => record.clone(),
        Err(_) => None,
    };
    match found {
        Some(record) => record,
        None => std::future::pending().await,
    }
}

/// A command that someone waits for. Dropped before its end, it is ended.
struct Attached {
    shell: Arc<ForegroundShell>,
    work: Option<JoinHandle<ToolOutput>>,
}

impl Attached {
    fn new(shell: &Arc<ForegroundShell>, tool: Arc<dyn Tool>, cx: ToolContext, input: Value) -> Self {
        shell.run.shells.add(Arc::clone(shell));
        Self { shell: Arc::clone(shell), work: Some(start(tool, cx, input)) }
    }

    async fn output(&mut self) -> ToolOutput {
        let Some(work) = &mut self.work else { return std::future::pending().await };
        let output = work.await.unwrap_or_else(|_| panicked("Bash"));
        self.work = None;
        output
    }

    /// The result of work that has ended. If it was made a task just then, its end is that task's.
    fn ended(&self, output: ToolOutput) -> ToolOutput {
        let Some(record) = self.shell.detached.borrow().clone() else { return output };
        let work = tokio::spawn(async move { output });
        supervise(&self.shell.run, record.task.clone(), work);
        launched(&record, true)
    }

    /// The work itself, which now goes on without us.
    fn part(&mut self) -> JoinHandle<ToolOutput> {
        self.work.take().unwrap_or_else(|| tokio::spawn(async { panicked("Bash") }))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.shell.run.shells.remove(&self.shell);
        let Some(work) = self.work.take() else { return };
        let record = self.shell.detached.borrow().clone();
        if let Some(record) = record {
            // Made a task just now: it goes on, and its end is heard of.
            supervise(&self.shell.run, record.task.clone(), work);
        } else {
            self.shell.cancel.cancel();
            work.abort();
            self.shell.run.cuts_off(&self.shell.call, Arc::clone(&self.shell.printed));
        }
    }
}

/// Output goes to the task's own file once it is one.
struct TaskSpill {
    usual: Arc<dyn Spill>,
    into: Arc<SpillInto>,
    task: Arc<OnceLock<TaskId>>,
}

impl Spill for TaskSpill {
    fn create(&self, call: &CallId, extension: &str) -> io::Result<SpillFile> {
        match self.task.get() {
            None => self.usual.create(call, extension),
            Some(task) => self.into.task(task),
        }
    }
}

/// The file of a task's output, if the session keeps files.
pub fn output_file(files: Option<&Arc<SessionFiles>>, task: &TaskId) -> camino::Utf8PathBuf {
    files.map_or_else(|| "(this session keeps no files)".into(), |files| files.task_path(task))
}
