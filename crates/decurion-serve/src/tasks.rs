//! What the stream knows of sub-agents and background commands. Takes events in order, gives the fields of
//! the `task_*` lines, whose message a line is, and the counts that a result carries.

use std::collections::{BTreeMap, HashMap};

use decurion_protocol::outcome::limit_reached;
use decurion_protocol::{
    Activity, AgentId, Attention, Block, CallId, EndingId, Limits, Message, Outcome, RunId, TaskId, TaskKind,
    TaskProgress, TaskRecord, TaskState, Totals,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// One `system` line to be: its subtype and its own fields.
pub type SystemLine = (&'static str, Value);

/// Every task of a stream, and what became of it.
#[derive(Debug, Default)]
pub struct TaskLedger {
    rows: HashMap<TaskId, TaskRow>,
    /// Those in the background, in the order they went there.
    background: Vec<TaskId>,
    /// What calls that may start an agent asked for, until they did or ended.
    requested: HashMap<CallId, Option<bool>>,
    counts: AgentCounts,
}

/// Where an agent came from.
#[derive(Debug)]
pub struct Begun {
    /// The call that began it.
    pub call: String,
    /// The call that began the agent which made that one; none for the root's.
    pub parent_call: Option<String>,
}

#[derive(Debug)]
struct TaskRow {
    record: TaskRecord,
    run: RunId,
    /// The word of its last `task_updated`; an ended one takes no more steps.
    status: &'static str,
    /// Tool uses shown so far.
    shown: u32,
}

/// How many agents there were, and what became of them.
#[derive(Debug, Default)]
struct AgentCounts {
    spawned: u64,
    asked_background: u64,
    asked_foreground: u64,
    asked_nothing: u64,
    started_in_background: u64,
    max_depth: u32,
    by_agents: u64,
    completed: u64,
    failed: u64,
    killed_by_parent: u64,
    killed_by_user: u64,
    killed_by_system: u64,
    by_type: BTreeMap<String, u64>,
}

impl TaskLedger {
    /// Remembers what the calls of a message ask for, as far as they may start an agent.
    pub fn called(&mut self, message: &Message) {
        for (call, name, input) in message.calls() {
            if matches!(name, "Agent" | "Task") {
                let wish = input.get("run_in_background").and_then(Value::as_bool);
                self.requested.insert(call.clone(), wish);
            }
        }
    }

    /// Forgets a call that has its result.
    pub fn answered(&mut self, call: &CallId) {
        self.requested.remove(call);
    }

    /// A task was begun. A command starts now; an agent with its run.
    pub fn opened(&mut self, record: &TaskRecord, by: RunId) -> Vec<SystemLine> {
        let is_new = !self.rows.contains_key(&record.task);
        let row = TaskRow { record: record.clone(), run: by, status: "pending", shown: 0 };
        self.rows.insert(record.task.clone(), row);
        if record.kind == TaskKind::LocalBash {
            return self.started(&record.task, by);
        }
        if is_new {
            let wish = record.call.as_ref().and_then(|call| self.requested.remove(call)).flatten();
            self.counts.spawn(record, wish);
        }
        Vec::new()
    }

    /// An agent's run begins.
    pub fn run_started(&mut self, agent: &AgentId, run: RunId) -> Vec<SystemLine> {
        self.started(&agent.clone().into(), run)
    }

    fn started(&mut self, task: &TaskId, run: RunId) -> Vec<SystemLine> {
        let Some(row) = self.rows.get_mut(task) else { return Vec::new() };
        row.run = run;
        row.status = "running";
        row.shown = 0;
        let backgrounded = row.record.attention == Attention::Background;
        let line = ("task_started", started_fields(&row.record, run, backgrounded));
        let mut lines = Vec::new();
        if backgrounded {
            lines.extend(self.put_in_background(task));
        }
        lines.push(line);
        lines
    }

    /// A task took a step that is on record.
    pub fn changed(&mut self, task: &TaskId, state: &TaskState, at: Timestamp) -> Vec<SystemLine> {
        if let TaskState::Ended(outcome) = state {
            return self.ended(task, outcome, None, at);
        }
        let Some(row) = self.rows.get_mut(task) else { return Vec::new() };
        let mut patch = Map::new();
        let went_back =
            state.attention() == Some(Attention::Background) && row.record.attention == Attention::Foreground;
        if went_back {
            row.record.attention = Attention::Background;
            patch.insert("is_backgrounded".to_owned(), json!(true));
        }
        let status = match state {
            TaskState::Paused { .. } => "paused",
            TaskState::Queued { .. } => "pending",
            _ => "running",
        };
        if status != row.status && state.attention().is_some() {
            row.status = status;
            patch.insert("status".to_owned(), json!(status));
        }
        let line = ("task_updated", json!({"task_id": task, "run_id": row.run, "patch": patch}));
        let mut lines = Vec::new();
        if went_back {
            lines.extend(self.put_in_background(task));
        }
        if !patch.is_empty() {
            lines.push(line);
        }
        lines
    }

    /// An agent's run is over.
    pub fn run_ended(
        &mut self,
        agent: &AgentId,
        outcome: &Outcome,
        totals: &Totals,
        at: Timestamp,
    ) -> Vec<SystemLine> {
        self.ended(&agent.clone().into(), outcome, Some(totals), at)
    }

    fn ended(
        &mut self,
        task: &TaskId,
        outcome: &Outcome,
        totals: Option<&Totals>,
        at: Timestamp,
    ) -> Vec<SystemLine> {
        let Some(row) = self.rows.get_mut(task) else { return Vec::new() };
        if is_terminal(row.status) {
            return Vec::new();
        }
        row.status = outcome.status();
        let mut patch = json!({"status": outcome.status(), "end_time": at.as_millisecond().max(0)});
        if let (Some(error), "failed") = (error_of(outcome), outcome.status()) {
            patch["error"] = json!(error);
        }
        let mut lines = vec![
            ("task_updated", json!({"task_id": task, "run_id": row.run, "patch": patch})),
            ("task_notification", notification(row, outcome, totals)),
        ];
        if row.record.kind != TaskKind::LocalBash {
            self.counts.end(outcome);
        }
        if let Some(place) = self.background.iter().position(|other| other == task) {
            self.background.remove(place);
            lines.push(self.snapshot());
        }
        lines
    }

    /// One line for each tool use since the last.
    pub fn progressed(&mut self, task: &TaskId, progress: &TaskProgress) -> Vec<SystemLine> {
        let Some(row) = self.rows.get_mut(task) else { return Vec::new() };
        let fresh = progress.tools.saturating_sub(row.shown) as usize;
        row.shown = progress.tools;
        let skipped = progress.activities.len().saturating_sub(fresh);
        let new = &progress.activities[skipped..];
        // Forgotten ones are still counted.
        let before = progress.tools.saturating_sub(u32::try_from(new.len()).unwrap_or(u32::MAX));
        let line = |(count, activity): (u32, &Activity)| {
            let fields = json!({
                "task_id": task, "run_id": row.run, "tool_use_id": call_of(&row.record),
                "description": activity_words(activity), "subagent_type": type_of(&row.record),
                "usage": {
                    "total_tokens": progress.tokens, "tool_uses": count, "duration_ms": progress.duration_ms,
                },
                "last_tool_name": activity.tool,
            });
            ("task_progress", fields)
        };
        (before + 1..).zip(new).map(line).collect()
    }

    /// Whether someone waits for an agent: it is in the foreground.
    pub fn is_waited_for(&self, agent: &AgentId) -> bool {
        let row = self.rows.get(&agent.clone().into());
        row.is_some_and(|row| row.record.attention == Attention::Foreground)
    }

    /// Which call began an agent, and which began the agent that made that call.
    pub fn task_of(&self, agent: &AgentId) -> Option<Begun> {
        let row = self.rows.get(&agent.clone().into())?;
        let parent = row.record.parent.clone().and_then(|parent| self.rows.get(&parent.into()));
        let parent_call = parent.map(|parent| call_of(&parent.record).to_owned());
        Some(Begun { call: call_of(&row.record).to_owned(), parent_call })
    }

    /// Marks a line as an agent's: by the call that started it, its id, its type and its description.
    pub fn sign(&self, agent: &AgentId, line: &mut Map<String, Value>) {
        line.insert("agent_id".to_owned(), json!(agent));
        let Some(row) = self.rows.get(&agent.clone().into()) else { return };
        line.insert("parent_tool_use_id".to_owned(), json!(call_of(&row.record)));
        line.insert("subagent_type".to_owned(), json!(type_of(&row.record)));
        line.insert("task_description".to_owned(), json!(row.record.description));
    }

    /// Whether this call started the agent: a fork repeats it at the head of its own conversation, where it is not new.
    pub fn is_entry(&self, agent: Option<&AgentId>, call: &CallId) -> bool {
        let row = agent.and_then(|agent| self.rows.get(&agent.clone().into()));
        row.is_some_and(|row| row.record.call.as_ref() == Some(call))
    }

    /// The run that an ending is about; a command's is that of its agent.
    pub fn run_of(&self, ending: &EndingId) -> Option<RunId> {
        ending.run.or_else(|| self.rows.get(&ending.task).map(|row| row.run))
    }

    /// The counts for a result.
    pub fn stats(&self) -> Value {
        let counts = &self.counts;
        json!({
            "spawned": counts.spawned,
            "requested": {
                "background": counts.asked_background, "foreground": counts.asked_foreground,
                "unset": counts.asked_nothing,
            },
            "started_in_background": counts.started_in_background,
            "max_depth": counts.max_depth,
            "spawned_by_subagents": counts.by_agents,
            "completed": counts.completed,
            "failed": counts.failed,
            "killed": {
                "parent": counts.killed_by_parent, "user": counts.killed_by_user,
                "system": counts.killed_by_system,
            },
            // Refusals are results of calls like others; the events do not tell them apart.
            "refused": {"depth_limit": 0, "concurrency_limit": 0, "budget": 0},
            "by_type": counts.by_type,
        })
    }

    fn put_in_background(&mut self, task: &TaskId) -> Option<SystemLine> {
        if self.background.contains(task) {
            return None;
        }
        self.background.push(task.clone());
        Some(self.snapshot())
    }

    fn snapshot(&self) -> SystemLine {
        let entry = |task: &TaskId| {
            let row = self.rows.get(task)?;
            let mut entry = json!({
                "task_id": task, "run_id": row.run, "task_type": row.record.kind.word(),
                "description": row.record.description,
            });
            if let Some(agent_type) = &row.record.agent_type {
                entry["subagent_type"] = json!(agent_type);
            }
            if let Some(parent) = &row.record.parent {
                entry["parent_task_id"] = json!(parent);
            }
            Some(entry)
        };
        let tasks: Vec<Value> = self.background.iter().filter_map(entry).collect();
        ("background_tasks_changed", json!({"tasks": tasks}))
    }
}

impl AgentCounts {
    fn spawn(&mut self, record: &TaskRecord, wish: Option<bool>) {
        self.spawned += 1;
        match wish {
            Some(true) => self.asked_background += 1,
            Some(false) => self.asked_foreground += 1,
            None => self.asked_nothing += 1,
        }
        self.started_in_background += u64::from(record.attention == Attention::Background);
        self.max_depth = self.max_depth.max(record.depth);
        self.by_agents += u64::from(record.parent.is_some());
        *self.by_type.entry(type_of(record).to_owned()).or_default() += 1;
    }

    fn end(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Completed { .. } => self.completed += 1,
            Outcome::Killed { by } => match by.as_str() {
                "a person" | "an interrupt" | "the answer to a question" => self.killed_by_user += 1,
                "the end of the session" => self.killed_by_system += 1,
                _ => self.killed_by_parent += 1,
            },
            _ => self.failed += 1,
        }
    }
}

fn is_terminal(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "killed")
}

fn started_fields(record: &TaskRecord, run: RunId, backgrounded: bool) -> Value {
    let mut fields = json!({
        "task_id": record.task, "run_id": run, "tool_use_id": call_of(record),
        "description": record.description, "is_backgrounded": backgrounded,
        "task_type": record.kind.word(),
    });
    if record.kind == TaskKind::LocalBash {
        if record.parent.is_some() {
            fields["owned_by_subagent"] = json!(true);
        }
    } else {
        fields["subagent_type"] = json!(type_of(record));
        fields["spawn_depth"] = json!(record.depth);
        fields["prompt"] = json!(record.prompt);
    }
    if let Some(parent) = &record.parent {
        fields["parent_task_id"] = json!(parent);
    }
    fields
}

fn notification(row: &TaskRow, outcome: &Outcome, totals: Option<&Totals>) -> Value {
    let status = if outcome.status() == "killed" { "stopped" } else { outcome.status() };
    let mut fields = json!({
        "task_id": row.record.task, "run_id": row.run, "tool_use_id": call_of(&row.record),
        "status": status, "output_file": row.record.output_file, "summary": summary(&row.record, outcome),
    });
    if let Some(totals) = totals {
        fields["usage"] = json!({
            "total_tokens": totals.context_tokens, "tool_uses": totals.tool_uses,
            "duration_ms": totals.duration_ms,
        });
    }
    fields
}

/// What there is to say of an ending: an agent's report, or a sentence.
fn summary(record: &TaskRecord, outcome: &Outcome) -> String {
    if record.kind == TaskKind::LocalBash {
        let how = match (outcome, error_of(outcome)) {
            (Outcome::Completed { report, .. }, _) if report.is_empty() => "completed".to_owned(),
            (Outcome::Completed { report, .. }, _) => format!("completed with {report}"),
            (Outcome::Killed { .. }, _) => "was stopped".to_owned(),
            (_, Some(error)) if error.starts_with("exit code") => format!("failed with {error}"),
            (_, error) => format!("failed: {}", error.unwrap_or_default()),
        };
        return format!("Background command \"{}\" {how}", record.description);
    }
    match outcome {
        Outcome::Completed { report, .. } => report.clone(),
        Outcome::Killed { .. } => record.description.clone(),
        _ => error_of(outcome).unwrap_or_default(),
    }
}

/// What went wrong, in words.
fn error_of(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Completed { .. } | Outcome::Killed { .. } => None,
        Outcome::Failed { error } => Some(error.clone()),
        Outcome::Stalled { waiting_for } => Some(format!("no progress: {waiting_for}")),
        Outcome::OutOfBudget { budget, .. } => Some(limit_reached(budget, &Limits::default())),
        Outcome::Denied { reason, .. } => Some(format!("denied: {reason}")),
        Outcome::Lost => Some("its process died before it ended".to_owned()),
    }
}

/// The call that began a task; one that no call began is known by its own id.
fn call_of(record: &TaskRecord) -> &str {
    record.call.as_ref().map_or(record.task.as_str(), CallId::as_str)
}

fn type_of(record: &TaskRecord) -> &str {
    record.agent_type.as_deref().unwrap_or("agent")
}

/// What an agent does with a tool, in one line. Of an input it is the member
/// that says most.
fn activity_words(activity: &Activity) -> String {
    let Ok(Value::Object(input)) = serde_json::from_str::<Value>(&activity.input) else {
        // An input that was cut off is no line to read.
        let is_input = activity.input.starts_with('{');
        return if is_input { activity.tool.clone() } else { activity.input.clone() };
    };
    let members = ["description", "command", "file_path", "path", "pattern", "url", "prompt"];
    let said = members.iter().find_map(|member| input.get(*member).and_then(Value::as_str));
    match said {
        Some(said) if activity.tool == "Bash" => format!("Running {said}"),
        Some(said) if activity.tool == "Agent" => said.to_owned(),
        Some(said) => format!("{} {said}", activity.tool),
        None => activity.tool.clone(),
    }
}

/// Whether a message is the delegating one that a fork's own conversation begins with.
pub fn is_delegation(tasks: &TaskLedger, agent: Option<&AgentId>, message: &Message) -> bool {
    message.blocks.iter().any(|block| matches!(block, Block::ToolUse { id, .. } if tasks.is_entry(agent, id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activity_is_told_by_what_it_touches() {
        let rows = [
            ("Bash", r#"{"command": "ls", "description": "list"}"#, "Running list"),
            ("Bash", r#"{"command": "ls"}"#, "Running ls"),
            ("Read", r#"{"file_path": "/a/b"}"#, "Read /a/b"),
            ("Agent", r#"{"description": "inner", "prompt": "x"}"#, "inner"),
            ("Odd", r#"{"number": 1}"#, "Odd"),
            ("Write", r#"{"content": "cut off he"#, "Write"),
            ("Read", "Read src/main.rs", "Read src/main.rs"),
        ];
        for (tool, title, expected) in rows {
            let activity = Activity { tool: tool.to_owned(), input: title.to_owned() };
            assert_eq!(activity_words(&activity), expected, "{title}");
        }
    }
}
