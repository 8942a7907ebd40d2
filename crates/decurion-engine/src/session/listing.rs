//! Tasks for people and programs who look from outside. Takes a row of the table, gives its record as JSON.

use decurion_protocol::{Attention, Outcome, TaskKind, TaskState};
use serde_json::{Value, json};

use crate::agent_tools::task_output::state_word;
use crate::task::{Row, TaskTable};

/// A task as `decurion tasks --json` prints it.
pub fn row(table: &TaskTable, row: &Row) -> Value {
    let view = row.view.borrow().clone();
    let record = &row.record;
    let progress = row.progress();
    let ending = view.ending.as_ref();
    json!({
        "id": record.task,
        "type": record.kind.word(),
        "description": record.description,
        "prompt": record.prompt,
        "agent_type": record.agent_type,
        "parent": record.parent,
        "tool_use_id": record.call,
        "depth": record.depth,
        "status": state_word(&view.state),
        "state": state(&view.state, progress.waiting.as_deref()),
        "started": row.opened,
        "ended": ending.map(|ending| ending.at),
        "outcome": ending.map(|ending| ending.outcome.word()),
        "result": ending.map(|ending| crate::notice::report(ending)),
        "error": ending.and_then(|ending| match &ending.outcome {
            Outcome::Failed { error } => Some(error.clone()),
            other => crate::notice::remark(other),
        }),
        "backgrounded": record.attention == Attention::Background,
        "notified": table.is_told(row),
        "reported": {"tool_uses": row.told.0, "tokens": row.told.1},
        "output_file": record.output_file,
        "limits": row.spec.as_ref().map(|spec| &spec.limits),
        "tool_uses": progress.tools,
        "tokens": progress.tokens,
        "activities": progress.activities,
    })
}

/// How much of a text hooks are told.
const MOST_TEXT: usize = 1000;

/// What works in the background now, as hooks are told of it.
pub fn under_way(table: &TaskTable) -> Vec<Value> {
    table.rows().filter_map(brief).collect()
}

/// A task that works in the background, in brief; none for any other.
fn brief(row: &Row) -> Option<Value> {
    let view = row.view.borrow().clone();
    let record = &row.record;
    if view.state.is_ended() || record.attention != Attention::Background {
        return None;
    }
    let short = |text: &str| match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}… [+{} chars]", &text[..end], text[end..].chars().count()),
        None => text.to_owned(),
    };
    let mut told = json!({
        "id": record.task,
        "type": if record.kind == TaskKind::LocalBash { "shell" } else { "subagent" },
        "status": state_word(&view.state),
        "description": short(&record.description),
    });
    match record.kind {
        TaskKind::LocalBash => told["command"] = json!(short(&record.prompt)),
        _ => told["agent_type"] = json!(record.agent_type),
    }
    Some(told)
}

/// The state in a word or two.
fn state(state: &TaskState, waiting: Option<&str>) -> String {
    if let (TaskState::Running { .. }, Some(reason)) = (state, waiting) {
        return format!("waiting: {reason}");
    }
    match state {
        TaskState::Pending => "pending".to_owned(),
        TaskState::Queued { .. } => "queued".to_owned(),
        TaskState::Running { attention: Attention::Foreground } => "running in the foreground".to_owned(),
        TaskState::Running { attention: Attention::Background } => "running in the background".to_owned(),
        TaskState::Waiting { reason, .. } => format!("waiting: {reason}"),
        TaskState::Paused { reason, .. } => format!("held: {reason}"),
        TaskState::Idle => "idle".to_owned(),
        TaskState::Ended(outcome) => outcome.word().to_owned(),
    }
}
