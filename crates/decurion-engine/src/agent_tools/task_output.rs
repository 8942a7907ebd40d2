//! TaskOutput: how a task stands and what it has said. Takes its id, waits for its end if asked to, gives
//! the end of its output.

use std::time::Duration;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    Delivery, Intent, Outcome, TaskId, TaskKind, TaskOutputEnd, TaskState, ToolEffect, ToolOutput,
};
use decurion_tools::{InputError, Surroundings, Tool, ToolContext, ToolSpec, typed};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NO_SESSION, caller};
use crate::child::AgentSettings;
use crate::notice;
use crate::run_handle::RunHandle;
use crate::session_port::Looked;
use crate::task::TaskView;

const NAME: &str = "TaskOutput";
const DESCRIPTION: &str = "Shows how a background task (an agent or a command) stands and what it has said. \
    With `block` (the default) it waits for the end of the task, up to `timeout` milliseconds (30000 unless \
    given, at most 600000); without, it answers at once. You are told when a task ends anyway: use this only \
    when nothing else is left to do.";
/// How much of a file's end is read to find so many characters.
const BYTES_PER_CHAR: usize = 4;

pub struct TaskOutput {
    spec: ToolSpec,
    most_chars: usize,
}

#[derive(Deserialize)]
struct Input {
    task_id: String,
    #[serde(default = "yes")]
    block: bool,
    timeout: Option<u64>,
    #[serde(skip)]
    filter: Option<String>,
}

/// What is shown of a task's output.
struct Shown {
    text: String,
    /// Whether there is more.
    cut: bool,
}

fn yes() -> bool {
    true
}

impl TaskOutput {
    /// The tool with this bound on what it shows.
    pub fn new(settings: &AgentSettings) -> Self {
        let schema = json!({
            "type": "object",
            "properties": {
                "task_id": {"type": "string", "minLength": 1},
                "block": {"type": "boolean"},
                "timeout": {"type": "integer", "minimum": 0, "maximum": 600_000}
            },
            "required": ["task_id"],
            "additionalProperties": false
        });
        Self { spec: ToolSpec::new(NAME, DESCRIPTION, schema), most_chars: settings.output_chars }
    }

    /// `filter` is a field of an older name: understood, not offered.
    fn parse(&self, input: &Value) -> Result<Input, InputError> {
        let Some(Value::String(filter)) = input.get("filter") else { return typed::parse(&self.spec, input) };
        let mut rest = input.clone();
        if let Some(members) = rest.as_object_mut() {
            members.shift_remove("filter");
        }
        let input: Input = typed::parse(&self.spec, &rest)?;
        Ok(Input { filter: Some(filter.clone()), ..input })
    }
}

impl Tool for TaskOutput {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, _around: &Surroundings) -> Result<Intent, InputError> {
        let input = self.parse(input)?;
        Ok(Intent::titled(format!("output of {}", input.task_id)).together())
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input) {
                Ok(input) => self.look(cx, input).await,
                Err(error) => error.into(),
            }
        })
    }
}

impl TaskOutput {
    async fn look(&self, cx: &ToolContext, input: Input) -> ToolOutput {
        let Some(caller) = caller(cx) else { return ToolOutput::error(NO_SESSION) };
        let unknown = || ToolOutput::usage_error(format!("No task found with ID: {}", input.task_id));
        let Ok(task) = input.task_id.parse::<TaskId>() else { return unknown() };
        let Some(Some(mut looked)) = caller.run.session.look(task).await else {
            return unknown();
        };
        let limit = Duration::from_millis(input.timeout.unwrap_or(30_000));
        let waited = input.block && wait(cx, &mut looked, limit).await;
        let view = looked.view.borrow().clone();
        let status = match (view.state.is_ended(), waited, input.block) {
            (true, ..) => "success",
            (false, false, true) => "timeout",
            (false, ..) => "not_ready",
        };
        let output = self.output(&looked, &view, input.filter.as_deref()).await;
        let mut result = match &view.ending {
            // The older name of this tool gave what a call that waits gives.
            Some(ending) if cx.called.starts_with("AgentOutput") && looked.gave_a_report() => {
                let content = notice::completed(&looked.record, ending, &output.text);
                let value = notice::completed_value(&looked.record, ending, &looked.model, &output.text);
                ToolOutput { content, ..ToolOutput::text("") }.with_structured(value)
            }
            _ => ToolOutput::text(text(status, &looked, &view, &output.text))
                .with_structured(value(status, &looked, &view, &output)),
        };
        if let Some(delivery) = claimed(&caller.run, &looked, &view).await {
            result = result.with_effect(ToolEffect::Delivered { delivery });
        }
        result
    }

    /// The end of what the task has said, at most so many characters in all.
    async fn output(&self, looked: &Looked, view: &TaskView, filter: Option<&str>) -> Shown {
        let file = looked.record.output_file.clone();
        let all = |text: String| Shown { text, cut: false };
        let Shown { text, cut } = match (looked.record.kind, &view.ending) {
            (TaskKind::LocalBash, _) => {
                let (file, most) = (file.clone(), self.most_chars * BYTES_PER_CHAR);
                let reading = tokio::task::spawn_blocking(move || read_end(&file, most));
                reading.await.unwrap_or_else(|_| all(String::new()))
            }
            (_, Some(ending)) => all(notice::report(ending).to_owned()),
            (_, None) => all(notice::digest(&looked.status.borrow().progress)),
        };
        let text = match filter {
            None => text,
            Some(filter) => text.lines().filter(|line| line.contains(filter)).collect::<Vec<_>>().join("\n"),
        };
        end_of(Shown { text, cut }, self.most_chars, file.as_str())
    }
}

/// Waits for the end; false if the time was up or the call is not wanted any more.
async fn wait(cx: &ToolContext, looked: &mut Looked, limit: Duration) -> bool {
    let ended = async { looked.view.wait_for(|view| view.state.is_ended()).await.is_ok() };
    tokio::select! {
        biased;
        ended = ended => ended,
        () = cx.cancel.cancelled() => false,
        () = tokio::time::sleep(limit) => false,
    }
}

/// Takes the telling of an ending over, if the task is the caller's own.
async fn claimed(run: &RunHandle, looked: &Looked, view: &TaskView) -> Option<Delivery> {
    let delivery = Delivery::Ending(view.ending.as_ref()?.id.clone());
    if looked.record.parent != run.who.agent {
        return None;
    }
    let claimed = run.session.claim(delivery.clone()).await?;
    claimed.then_some(delivery)
}

/// The end of what a command has printed, for whoever looks from outside.
pub(crate) fn end_of_file(path: &camino::Utf8Path, most: usize) -> TaskOutputEnd {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let Shown { text, cut } = read_end(path, most);
    TaskOutputEnd { text, bytes, cut }
}

/// The last bytes of a file, as text.
fn read_end(path: &camino::Utf8Path, most: usize) -> Shown {
    use std::io::{Read as _, Seek as _, SeekFrom};
    // A file that is not there is an output that did not come yet.
    let Ok(mut file) = std::fs::File::open(path) else { return Shown { text: String::new(), cut: false } };
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let start = length.saturating_sub(most as u64);
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(start)).is_ok() {
        let _ = file.take(most as u64).read_to_end(&mut bytes);
    }
    // Where the beginning was cut, so may be its first character.
    let torn =
        if start > 0 { bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count() } else { 0 };
    Shown { text: String::from_utf8_lossy(&bytes[torn..]).into_owned(), cut: start > 0 }
}

/// The last characters, with a first line that names the whole; all of it within the bound.
fn end_of(shown: Shown, most: usize, file: &str) -> Shown {
    let text = &shown.text;
    let count = text.chars().count();
    if count <= most && !shown.cut {
        return shown;
    }
    let header = format!("[Truncated. Full output: {file}]\n\n");
    let room = most.saturating_sub(header.chars().count());
    let rest: String = text.chars().skip(count - room.min(count)).collect();
    Shown { text: format!("{header}{rest}"), cut: true }
}

fn text(status: &str, looked: &Looked, view: &TaskView, output: &str) -> String {
    let mut parts = vec![
        format!("<retrieval_status>{status}</retrieval_status>"),
        format!("<task_id>{}</task_id>", looked.record.task),
        format!("<task_type>{}</task_type>", looked.record.kind.word()),
        format!("<status>{}</status>", state_word(&view.state)),
    ];
    if let Some(reason) = reason(&view.state).or_else(|| waits(looked)) {
        parts.push(format!("<reason>{}</reason>", notice::escape(&reason)));
    }
    if let Some(code) = exit_code(view) {
        parts.push(format!("<exit_code>{code}</exit_code>"));
    }
    if let Some(Outcome::Failed { error }) = view.ending.as_ref().map(|ending| &ending.outcome)
        && looked.record.kind != TaskKind::LocalBash
    {
        parts.push(format!("<error>{}</error>", notice::escape(error)));
    }
    if !output.is_empty() {
        parts.push(format!("<output>\n{output}\n</output>"));
    }
    parts.join("\n\n")
}

fn value(status: &str, looked: &Looked, view: &TaskView, output: &Shown) -> Value {
    let record = &looked.record;
    let mut task = json!({
        "task_id": record.task,
        "task_type": record.kind.word(),
        "status": state_word(&view.state),
        "description": record.description,
        "output": output.text,
        "wasTruncated": output.cut,
    });
    let outcome = view.ending.as_ref().map(|ending| &ending.outcome);
    if let Some(outcome) = outcome {
        task["outcome"] = json!(outcome.word());
    }
    match record.kind {
        TaskKind::LocalBash => task["exitCode"] = json!(exit_code(view)),
        TaskKind::LocalAgent | TaskKind::RemoteAgent => {
            task["prompt"] = json!(record.prompt);
            task["result"] = json!(view.ending.as_deref().map(notice::report));
            if let Some(Outcome::Failed { error }) = outcome {
                task["error"] = json!(error);
            }
        }
    }
    json!({"retrieval_status": status, "task": task})
}

/// The word of the ecosystem for a state.
pub fn state_word(state: &TaskState) -> &'static str {
    match state {
        TaskState::Pending | TaskState::Queued { .. } => "pending",
        TaskState::Running { .. } | TaskState::Waiting { .. } | TaskState::Paused { .. } => "running",
        TaskState::Idle => "completed",
        TaskState::Ended(outcome) => outcome.status(),
    }
}

fn reason(state: &TaskState) -> Option<String> {
    match state {
        TaskState::Waiting { reason, .. } => Some(format!("waiting: {reason}")),
        TaskState::Paused { reason, .. } => Some(format!("held: {reason}")),
        TaskState::Queued { .. } => Some("queued: too many others run".to_owned()),
        _ => None,
    }
}

/// What the run of a task itself says that it waits for.
fn waits(looked: &Looked) -> Option<String> {
    if looked.view.borrow().state.is_ended() {
        return None;
    }
    looked.status.borrow().progress.waiting.clone()
}

/// The code a shell ended with, from the words of its outcome.
fn exit_code(view: &TaskView) -> Option<i32> {
    let ending = view.ending.as_ref()?;
    let text = match &ending.outcome {
        Outcome::Completed { report, .. } => report,
        Outcome::Failed { error } => error,
        _ => return None,
    };
    text.strip_prefix("exit code ")?.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_the_bound_holds_with_its_header() {
        let file = "/state/tasks/b1.output";
        let whole = |text: &str| Shown { text: text.to_owned(), cut: false };
        assert_eq!(end_of(whole("short"), 100, file).text, "short");
        let forged = end_of(whole("[Truncated. Full output: x]"), 100, file);
        assert!(!forged.cut, "what a task prints itself does not count");
        let long = format!("{}é€😀end", "x".repeat(500));
        for most in 60..120 {
            let Shown { text, cut } = end_of(whole(&long), most, file);
            assert!(cut);
            assert_eq!(text.chars().count(), most);
            assert!(text.starts_with("[Truncated. Full output: /state/tasks/b1.output]\n\n"), "{text}");
            assert!(text.ends_with("é€😀end"), "{text}");
        }
    }

    #[test]
    fn an_output_of_wide_characters_is_said_to_be_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().join("b1.output")).unwrap();
        std::fs::write(&path, "😀".repeat(120)).unwrap();
        let read = read_end(&path, 100 * BYTES_PER_CHAR);
        assert_eq!((read.text.chars().count(), read.cut), (100, true));
        assert!(end_of(read, 100, path.as_str()).cut);
        assert!(!read_end(&path, 120 * BYTES_PER_CHAR).cut);
    }

    #[test]
    fn the_end_of_a_file_is_read_and_a_missing_one_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = camino::Utf8PathBuf::from_path_buf(folder.path().join("b1.output")).unwrap();
        assert_eq!(read_end(&path, 100).text, "");
        std::fs::write(&path, "one\ntwo é").unwrap();
        assert_eq!(read_end(&path, 100).text, "one\ntwo é");
        assert_eq!(read_end(&path, 4).text, "o é");
        assert_eq!(read_end(&path, 1).text, "", "half a character is none");
    }

    #[test]
    fn every_state_has_a_word_of_the_ecosystem() {
        use decurion_protocol::Attention::Background;
        let reason = || "r".to_owned();
        let partial = || "p".to_owned();
        let rows = [
            (TaskState::Pending, "pending"),
            (TaskState::Queued { attention: Background }, "pending"),
            (TaskState::Running { attention: Background }, "running"),
            (TaskState::Waiting { reason: reason(), attention: Background }, "running"),
            (TaskState::Paused { reason: reason(), until: None, attention: Background }, "running"),
            (TaskState::Idle, "completed"),
            (TaskState::Ended(Outcome::Completed { report: partial(), limit: None }), "completed"),
            (TaskState::Ended(Outcome::Failed { error: reason() }), "failed"),
            (TaskState::Ended(Outcome::Killed { by: reason() }), "killed"),
            (TaskState::Ended(Outcome::Stalled { waiting_for: reason() }), "failed"),
            (TaskState::Ended(Outcome::OutOfBudget { budget: reason(), partial: partial() }), "failed"),
            (TaskState::Ended(Outcome::Denied { reason: reason(), partial: partial() }), "failed"),
            (TaskState::Ended(Outcome::Lost), "failed"),
        ];
        for (state, word) in rows {
            assert_eq!(state_word(&state), word, "{state:?}");
        }
    }
}
