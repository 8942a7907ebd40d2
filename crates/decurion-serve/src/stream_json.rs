//! Events as the ecosystem's stream-json. Takes envelopes in order, gives the JSON lines that programs made
//! for that stream read: init, assistant, user, stream_event, system messages, result. Agents of every depth
//! are shown, each line with the call that started its agent.

use std::borrow::Cow;
use std::collections::HashMap;

use decurion_protocol::event::ending;
use decurion_protocol::{
    AgentId, Block, CallId, Decision, Delivery, Delta, Denial, Envelope, Event, HookEvent, HookRun, LineId,
    McpStatus, Message, MessageMeta, Mode, Origin, Outcome, Reply, Role, RunId, RunSpec, SessionId,
    ToolOutput, Totals, Usage, WaitReason, Worktree,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::state::{SessionState, StateLines};
use crate::tasks::{SystemLine, TaskLedger, is_delegation};

/// The version of the ecosystem's stream that these lines follow; hosts look for it.
const STREAM_VERSION: &str = "2.1.325";

/// What the stream says that is not in any event.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is one thing that is shown or not
pub struct StreamFacts {
    /// Where the key came from, never the key.
    pub api_key_source: String,
    pub version: String,
    /// Which sandbox is in force.
    pub sandbox: String,
    /// Whether pieces of replies are shown as they come.
    pub partial: bool,
    /// Whether a program leads the session.
    pub led: bool,
    /// Whether what agents that someone waits for say and think is shown; what they do always is, and so is all of
    /// those in the background.
    pub agent_text: bool,
    /// Whether every hook is shown, or only those of the session's start.
    pub hooks: bool,
    /// Whether the session's state is reported.
    pub state: StateLines,
    /// The session's transcript, where the whole of what is cut in a line is found; none where none is kept.
    pub transcript: Option<String>,
}

/// What a program can call besides tools, by name.
#[derive(Clone, Debug, Default)]
pub struct Callables {
    /// What a person can type behind a slash.
    pub commands: Vec<String>,
    pub skills: Vec<String>,
    /// The plugins in use.
    pub plugins: Vec<ListedPlugin>,
}

/// A plugin in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedPlugin {
    pub name: String,
    pub path: String,
    /// Where it came from.
    pub source: String,
    /// Its version, as it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The state of one stream.
#[derive(Debug)]
pub struct StreamJson {
    session: SessionId,
    facts: StreamFacts,
    agents: Vec<String>,
    listed: Callables,
    results: u64,
    model: String,
    /// Usage of the message under way, as the provider first reported it.
    usage: Usage,
    tasks: TaskLedger,
    /// Why the root works now.
    cause: TurnCause,
    /// What every run took so far, the agents' included.
    whole: Totals,
    /// The same since the last result.
    since: Totals,
    /// Whether there is one result only, which then tells of everything.
    one_result: bool,
    /// Whether what the host says is echoed.
    replay: bool,
    /// The worktree that the session works in: its path and branch.
    worktree: Option<(String, String)>,
    state: SessionState,
    queued: u32,
    turn: RootTurn,
    /// Hooks that were shown to begin and not to end.
    hooks: Vec<HookRun>,
    /// Calls that run: their tool, since when, and when it was last told of them.
    calls: HashMap<CallId, (String, Timestamp, Timestamp)>,
}

/// What is known of the root's turn.
#[derive(Debug, Default)]
struct RootTurn {
    began: Option<Timestamp>,
    /// Milliseconds until the first piece of a reply.
    first: Option<u64>,
    /// Whether the model is asked and has not answered.
    asked: bool,
    /// Since when the conversation is being shortened.
    shortening: Option<Timestamp>,
}

/// How long a call runs before its first progress line, and the time between two, in milliseconds.
const PROGRESS_EVERY: u64 = 1_000;

/// The member of a result that names the session's worktree.
pub(crate) const WORKTREE_PATH: &str = "worktreePath";
pub(crate) const WORKTREE_BRANCH: &str = "worktreeBranch";

/// Why the root works.
#[derive(Debug, Default)]
enum TurnCause {
    /// Nothing is known yet.
    #[default]
    Unknown,
    Prompt,
    /// A task ended; during which run.
    Notification(Option<RunId>),
}

impl StreamJson {
    /// A stream of this session.
    pub fn new(session: SessionId, facts: StreamFacts) -> Self {
        Self {
            session,
            facts,
            agents: Vec::new(),
            listed: Callables::default(),
            results: 0,
            model: String::new(),
            usage: Usage::default(),
            tasks: TaskLedger::default(),
            cause: TurnCause::Unknown,
            whole: Totals::default(),
            since: Totals::default(),
            one_result: false,
            replay: false,
            worktree: None,
            state: SessionState::default(),
            queued: 0,
            turn: RootTurn::default(),
            hooks: Vec::new(),
            calls: HashMap::new(),
        }
    }

    /// Where all of what a line tells is kept, in words.
    pub(crate) fn place(&self, line: &Value) -> String {
        let Some(transcript) = &self.facts.transcript else {
            return "this session keeps no transcript that would have it".to_owned();
        };
        let (kind, agent) = (line.get("type"), line.get("agent_id").and_then(Value::as_str));
        let file = match (agent, transcript.strip_suffix(".jsonl")) {
            (Some(agent), Some(folder)) => format!("{folder}/subagents/agent-{agent}.jsonl"),
            _ => transcript.clone(),
        };
        match line.get("uuid").and_then(Value::as_str).filter(|_| kind.is_some_and(is_recorded)) {
            Some(uuid) => format!("all of it is in {file}, uuid {uuid}"),
            None => format!("all of it is in {file}"),
        }
    }

    /// The same, naming the skills, commands and plugins at hand.
    #[must_use]
    pub fn with_library(mut self, listed: Callables) -> Self {
        self.listed = listed;
        self
    }

    /// The same, naming the agents that can be started.
    #[must_use]
    pub fn with_agents(mut self, names: Vec<String>) -> Self {
        self.agents = names;
        self
    }

    /// The same for a reader that sees the last result only.
    #[must_use]
    pub fn with_one_result(mut self) -> Self {
        self.one_result = true;
        self
    }

    /// The same, echoing what the host says with the id that it is on record under.
    #[must_use]
    pub fn with_replay(mut self, replay: bool) -> Self {
        self.replay = replay;
        self
    }

    /// The model of the last run.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The version of the program.
    pub(crate) fn version(&self) -> &str {
        &self.facts.version
    }

    /// What all runs so far took.
    pub(crate) fn totals(&self) -> &Totals {
        &self.whole
    }

    /// The same in the form for hosts.
    pub(crate) fn session_usage(&self) -> Value {
        json!({
            "total_cost_usd": self.whole.cost.dollars(),
            "total_api_duration_ms": self.whole.api_duration_ms,
            "total_duration_ms": self.whole.duration_ms,
            "total_lines_added": 0,
            "total_lines_removed": 0,
            "model_usage": model_usage(&self.whole),
        })
    }

    /// The lines for one event, often none.
    pub fn lines(&mut self, envelope: &Envelope) -> Vec<Value> {
        let mut lines = self.own_lines(envelope);
        lines.extend(self.state_line(envelope));
        lines
    }

    fn state_line(&mut self, envelope: &Envelope) -> Option<Value> {
        if self.facts.state == StateLines::Off {
            return None;
        }
        let state = self.state.take(envelope)?;
        let mut line = self.system("session_state_changed", json!({"state": state}));
        if self.facts.state == StateLines::HostOnly {
            line["sdk_host_only"] = json!(true);
        }
        Some(line)
    }

    fn own_lines(&mut self, envelope: &Envelope) -> Vec<Value> {
        let agent = envelope.agent.as_ref();
        match &envelope.event {
            Event::RunStarted { spec } => match agent {
                None => self.root_started(spec, envelope.at),
                Some(agent) => {
                    let lines = self.tasks.run_started(agent, envelope.run);
                    self.system_lines(lines)
                }
            },
            Event::RunEnded { outcome, totals } => self.run_ended(envelope, outcome, totals),
            Event::TaskOpened { record } => {
                let lines = self.tasks.opened(record, envelope.run);
                self.system_lines(lines)
            }
            Event::TaskChanged { task, state } => {
                let lines = self.tasks.changed(task, state, envelope.at);
                self.system_lines(lines)
            }
            Event::TaskProgressed { task, progress } => {
                let lines = self.tasks.progressed(task, progress);
                self.system_lines(lines)
            }
            Event::Message { message, lines, meta, .. } => self.message(envelope, message, lines, meta),
            Event::CallStarted { call, tool, .. } => {
                self.calls.insert(call.clone(), (tool.clone(), envelope.at, envelope.at));
                Vec::new()
            }
            Event::CallProgress { call, .. } => self.call_goes_on(envelope, call).into_iter().collect(),
            Event::CallEnded { call, line, output, .. } => self.call_ended(envelope, call, *line, output),
            Event::CallRefused { call, tool, decision, .. } => {
                vec![self.refused(agent, call, tool, decision)]
            }
            // How an agent's own conversation is shortened is not the host's.
            event @ Event::Compacted { .. } if agent.is_none() => self.compacted(event, envelope.at),
            Event::Waiting { reason: Some(reason) } => self.waiting(envelope, reason),
            Event::Delta { delta } if agent.is_none() => self.delta(delta, envelope.at),
            Event::ModeChanged { mode } => {
                vec![self.system("status", json!({"status": null, "permissionMode": shown_mode(*mode)}))]
            }
            Event::FellBack { from, to } => vec![self.fell_back(from, to)],
            Event::Quiet { queued, .. } => {
                self.queued = *queued;
                Vec::new()
            }
            Event::HookStarted { hook } if self.shows_hook(hook) => {
                self.hooks.push(hook.clone());
                vec![self.system("hook_started", hook_fields(hook))]
            }
            Event::HookEnded { hook, .. } => match self.hooks.iter().position(|open| open.id == hook.id) {
                Some(at) => {
                    self.hooks.swap_remove(at);
                    vec![self.hook_response(&envelope.event, hook)]
                }
                None => Vec::new(),
            },
            Event::Replied { reply: Reply::Done { value }, .. } if value.get("unheard").is_some() => {
                // The last message of the session: work that still runs ends with it, without a message.
                let left = std::mem::take(&mut self.hooks);
                left.into_iter()
                    .map(|hook| self.hook_response(&Event::hook_cancelled(hook.clone()), &hook))
                    .collect()
            }
            Event::Relocated { worktree, .. } if agent.is_none() => {
                self.works_in(worktree.as_deref());
                Vec::new()
            }
            Event::Notice { text, level } => {
                // A host knows no level above a warning.
                let level = if level == "error" { "warning" } else { level };
                vec![self.system("informational", json!({"content": text, "level": level}))]
            }
            _ => Vec::new(),
        }
    }

    fn root_started(&mut self, spec: &RunSpec, at: Timestamp) -> Vec<Value> {
        self.turn = RootTurn { began: Some(at), ..RootTurn::default() };
        self.model.clone_from(&spec.model);
        self.cause = TurnCause::Unknown;
        self.works_in(spec.worktree.as_deref());
        vec![self.init(spec)]
    }

    fn works_in(&mut self, worktree: Option<&Worktree>) {
        self.worktree = worktree.map(|own| (own.path.to_string(), own.branch.clone()));
    }

    fn run_ended(&mut self, envelope: &Envelope, outcome: &Outcome, totals: &Totals) -> Vec<Value> {
        add(&mut self.whole, totals);
        add(&mut self.since, totals);
        let Some(agent) = &envelope.agent else { return vec![self.result(outcome, totals)] };
        let lines = self.tasks.run_ended(agent, outcome, totals, envelope.at);
        self.system_lines(lines)
    }

    fn refused(&self, agent: Option<&AgentId>, call: &CallId, tool: &str, decision: &Decision) -> Value {
        let mut line = self.system(
            "permission_denied",
            json!({
                "tool_name": tool,
                "tool_use_id": call,
                "decision_reason_type": if decision.rule.is_some() { "rule" } else { "mode" },
                "decision_reason": decision.reason,
                "message": decision.reason,
            }),
        );
        if let Some(agent) = agent {
            line["agent_id"] = json!(agent);
        }
        line
    }

    fn call_ended(
        &mut self,
        envelope: &Envelope,
        call: &CallId,
        line: LineId,
        output: &ToolOutput,
    ) -> Vec<Value> {
        if self.tasks.is_entry(envelope.agent.as_ref(), call) {
            return Vec::new();
        }
        self.tasks.answered(call);
        self.calls.remove(call);
        vec![self.tool_result(envelope, call.as_str(), line, output)]
    }

    fn init(&self, spec: &RunSpec) -> Value {
        self.system(
            "init",
            json!({
                "cwd": spec.cwd,
                "tools": &*spec.tools,
                "mcp_servers": servers(&spec.servers),
                "model": spec.model.split_once('/').map_or(spec.model.as_str(), |(_, model)| model),
                "permissionMode": shown_mode(spec.mode),
                "slash_commands": self.commands(&spec.servers),
                "terminal_slash_commands": [],
                "apiKeySource": self.facts.api_key_source,
                "claude_code_version": STREAM_VERSION,
                "output_style": "default",
                "agents": self.agents,
                "skills": self.listed.skills,
                "plugins": self.listed.plugins,
                "capabilities": [],
                "memory_paths": {},
                "original_cwd": spec.cwd,
                "additional_directories": spec.directories,
                "messaging_socket_path": null,
                "fast_mode_state": "off",
                "view_mode": "default",
                "decurion_version": self.facts.version,
                "sandbox": self.facts.sandbox,
            }),
        )
    }

    /// What a person can type behind a slash: the library's, ours, and the prompts of servers as far as they are
    /// known.
    fn commands<'a>(&'a self, servers: &'a [McpStatus]) -> Vec<&'a str> {
        let own = self.listed.commands.iter().map(String::as_str).chain(["compact"]);
        own.chain(servers.iter().flat_map(|server| &server.commands).map(String::as_str)).collect()
    }

    /// One line per block of the model's message, one for an agent's prompt; prompts and notes of the root
    /// are not echoed.
    fn message(
        &mut self,
        envelope: &Envelope,
        message: &Message,
        lines: &[LineId],
        meta: &MessageMeta,
    ) -> Vec<Value> {
        let agent = envelope.agent.as_ref();
        if message.role == Role::User {
            return match (agent, &meta.origin) {
                (None, origin) => {
                    self.told(meta);
                    let echoes = self.replay && *origin == Origin::Prompt;
                    let mut echo = if echoes { self.prompt(envelope, message, lines) } else { Vec::new() };
                    for line in &mut echo {
                        line["isReplay"] = json!(true);
                    }
                    echo
                }
                (Some(_), Origin::Prompt) => self.prompt(envelope, message, lines),
                (Some(_), _) => Vec::new(),
            };
        }
        if is_delegation(&self.tasks, agent, message) {
            return Vec::new();
        }
        self.tasks.called(message);
        if agent.is_none() {
            self.turn.asked = false;
        }
        let quiet = agent.is_some_and(|agent| !self.facts.agent_text && self.tasks.is_waited_for(agent));
        let synthetic = meta.origin == Origin::Synthetic;
        let model = if synthetic { "<synthetic>" } else { meta.model.as_deref().unwrap_or(&self.model) };
        let id = meta.message_id.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let usage = meta.usage.as_ref().unwrap_or(&self.usage);
        let line = |(block, line): (&Block, &LineId)| {
            let mut value = self.chain("assistant", envelope, *line);
            value.insert(
                "message".to_owned(),
                json!({
                    "id": id, "type": "message", "role": "assistant", "model": model,
                    "content": [shown_block(block)], "stop_reason": null, "stop_sequence": null, "usage": usage,
                }),
            );
            if let Some(request_id) = &meta.request_id {
                value.insert("request_id".to_owned(), json!(request_id));
            }
            if synthetic {
                value.insert("is_api_error_message".to_owned(), json!(true));
                let error = meta.error.as_deref().unwrap_or("unknown");
                value.insert("error".to_owned(), json!(error));
                value.insert("api_error_status".to_owned(), json!(meta.error_status));
            }
            Value::Object(value)
        };
        let is_shown = |(block, _): &(&Block, &LineId)| {
            !quiet || synthetic || !matches!(block, Block::Text { .. } | Block::Thinking { .. })
        };
        message.blocks.iter().zip(lines).filter(is_shown).map(line).collect()
    }

    /// Remembers why the root works: by its first message that is a prompt or tells of something.
    fn told(&mut self, meta: &MessageMeta) {
        let ending = |delivery: &Delivery| match delivery {
            Delivery::Ending(ending) => self.tasks.run_of(ending),
            Delivery::Mail(_) | Delivery::Shell(_) => None,
        };
        match (&self.cause, &meta.origin) {
            (TurnCause::Unknown, Origin::Prompt) => self.cause = TurnCause::Prompt,
            (TurnCause::Unknown, Origin::Note(what)) if what == "notification" => {
                self.cause = TurnCause::Notification(meta.delivers.iter().find_map(ending));
            }
            _ => {}
        }
    }

    /// What an agent is asked.
    fn prompt(&self, envelope: &Envelope, message: &Message, lines: &[LineId]) -> Vec<Value> {
        let line = |line: &LineId| {
            let mut value = self.chain("user", envelope, *line);
            value.insert("message".to_owned(), json!({"role": "user", "content": message.blocks}));
            Value::Object(value)
        };
        lines.first().map(line).into_iter().collect()
    }

    fn tool_result(&self, envelope: &Envelope, call: &str, line: LineId, output: &ToolOutput) -> Value {
        let mut value = self.chain("user", envelope, line);
        value.insert(
            "message".to_owned(),
            json!({"role": "user", "content": [{
                "tool_use_id": call, "type": "tool_result",
                "content": output.content, "is_error": output.is_error,
            }]}),
        );
        let structured = match (&output.structured, output.is_error) {
            (Some(structured), _) => structured.clone(),
            (None, true) => json!(format!("Error: {}", output.content.text())),
            (None, false) => json!(output.content.text()),
        };
        value.insert("tool_use_result".to_owned(), structured);
        Value::Object(value)
    }

    /// The conversation was shortened: that it is done, and where.
    fn compacted(&mut self, event: &Event, at: Timestamp) -> Vec<Value> {
        let Event::Compacted { boundary, line, logical_parent, kept, trigger, tokens_before, .. } = event
        else {
            return Vec::new();
        };
        let mut metadata = json!({"trigger": trigger, "pre_tokens": tokens_before});
        if let Some(since) = self.turn.shortening.take() {
            metadata["duration_ms"] = json!(milliseconds(since, at));
        }
        if let (Some(head), Some(tail)) = (kept.first(), kept.last()) {
            metadata["preserved_segment"] =
                json!({"head_uuid": head, "anchor_uuid": line, "tail_uuid": tail});
            metadata["preserved_messages"] = json!({"anchor_uuid": line, "uuids": kept});
        }
        let mut line = self.system("compact_boundary", json!({"compact_metadata": metadata}));
        if let Some(parent) = logical_parent {
            line["logical_parent_uuid"] = json!(parent);
        }
        line["uuid"] = json!(boundary);
        vec![self.system("status", json!({"status": null, "compact_result": "success"})), line]
    }

    fn waiting(&mut self, envelope: &Envelope, reason: &WaitReason) -> Vec<Value> {
        let agent = envelope.agent.as_ref();
        match reason {
            WaitReason::Retry { attempt, of, delay_ms, status, error, .. } => {
                // One that waits in the pause of another has not failed itself.
                let attempt = attempt.saturating_sub(1).max(1);
                if let Some(agent) = agent {
                    return self.agent_retries(agent, attempt, reason, envelope.at).into_iter().collect();
                }
                let fields = json!({
                    "attempt": attempt, "max_retries": of, "retry_delay_ms": delay_ms,
                    "error_status": status, "error": failure_word(*status), "message": error,
                });
                vec![self.system("api_retry", fields)]
            }
            WaitReason::Compaction if agent.is_some() => Vec::new(),
            WaitReason::Compaction => {
                self.turn.shortening = Some(envelope.at);
                vec![self.system("status", json!({"status": "compacting"}))]
            }
            WaitReason::Budget => {
                vec![
                    self.system(
                        "informational",
                        json!({"content": waits_for_budget(agent), "level": "info"}),
                    ),
                ]
            }
            WaitReason::Disk { error } => vec![self.system(
                "informational",
                json!({
                    "content": format!("disk: the session is paused, nothing is lost ({error})"),
                    "level": "warning",
                }),
            )],
            WaitReason::Model if agent.is_none() => {
                self.turn.asked = true;
                let line = || self.system("status", json!({"status": "requesting"}));
                self.facts.partial.then(line).into_iter().collect()
            }
            WaitReason::Model | WaitReason::Turn { .. } | WaitReason::Permission { .. } => Vec::new(),
        }
    }

    /// An agent's request is tried again: told as progress of the call that began it.
    fn agent_retries(
        &self,
        agent: &AgentId,
        attempt: u32,
        reason: &WaitReason,
        at: Timestamp,
    ) -> Option<Value> {
        let WaitReason::Retry { of, delay_ms, status, .. } = reason else { return None };
        let task = self.tasks.task_of(agent)?;
        let call = CallId(task.call.clone());
        let elapsed = self.calls.get(&call).map_or(0, |(_, since, _)| milliseconds(*since, at));
        Some(json!({
            "type": "tool_progress", "tool_use_id": call, "tool_name": "Agent",
            "parent_tool_use_id": task.parent_call, "elapsed_time_seconds": seconds(elapsed),
            "task_id": agent, "session_id": self.session, "uuid": Uuid::new_v4(),
            "subagent_retry": {
                "agent_id": agent, "attempt": attempt, "max_retries": of.unwrap_or(0),
                "retry_delay_ms": delay_ms, "error_status": status, "error_category": failure_word(*status),
            },
        }))
    }

    /// A progress line of a call.
    fn call_goes_on(&mut self, envelope: &Envelope, call: &CallId) -> Option<Value> {
        let (tool, since, told) = self.calls.get_mut(call)?;
        if milliseconds(*told, envelope.at) < PROGRESS_EVERY {
            return None;
        }
        *told = envelope.at;
        let elapsed = milliseconds(*since, envelope.at);
        let mut line = json!({
            "type": "tool_progress", "tool_use_id": call, "tool_name": tool, "parent_tool_use_id": null,
            "elapsed_time_seconds": seconds(elapsed), "session_id": self.session, "uuid": Uuid::new_v4(),
        });
        if let Some(agent) = &envelope.agent {
            line["task_id"] = json!(agent);
            line["parent_tool_use_id"] = json!(self.tasks.task_of(agent).map(|task| task.call));
        }
        Some(line)
    }

    fn fell_back(&self, from: &str, to: &str) -> Value {
        let content = format!("{from} stays overloaded; {to} answers");
        let fields = json!({
            "trigger": "overloaded", "original_model": from, "fallback_model": to, "content": content,
            "level": "warning",
        });
        self.system("model_fallback", fields)
    }

    fn shows_hook(&self, hook: &HookRun) -> bool {
        self.facts.hooks || hook.event == HookEvent::SessionStart.name()
    }

    fn hook_response(&self, event: &Event, hook: &HookRun) -> Value {
        let mut fields = hook_fields(hook);
        if let Event::HookEnded { stdout, stderr, exit_code, ending, .. } = event {
            fields["stdout"] = json!(stdout);
            fields["stderr"] = json!(stderr);
            let both = if stdout.is_empty() || stderr.is_empty() { "" } else { "\n" };
            fields["output"] = json!(format!("{stdout}{both}{stderr}"));
            fields["outcome"] = json!(ending);
            if let Some(code) = exit_code {
                fields["exit_code"] = json!(code);
            }
        }
        self.system("hook_response", fields)
    }

    fn delta(&mut self, delta: &Delta, at: Timestamp) -> Vec<Value> {
        let mut first = None;
        if let Delta::Started { usage, .. } = delta {
            self.usage = usage.clone();
            if let (None, Some(began)) = (self.turn.first, self.turn.began) {
                self.turn.first = Some(milliseconds(began, at));
            }
            first = self.turn.first;
        }
        if !self.facts.partial {
            return Vec::new();
        }
        let line = |event: Value| {
            let mut line = json!({
                "type": "stream_event", "event": event, "parent_tool_use_id": null,
                "session_id": self.session, "uuid": Uuid::new_v4(),
            });
            if let Some(first) = first {
                line["ttft_ms"] = json!(first);
            }
            line
        };
        raw_events(delta).into_iter().map(line).collect()
    }

    /// The result of a prompt that never started: its sender waits for one.
    pub(crate) fn not_begun(&mut self, error: String) -> Value {
        // Nothing of what is under way is its.
        let (since, turn) = (std::mem::take(&mut self.since), std::mem::take(&mut self.turn));
        let cause = std::mem::replace(&mut self.cause, TurnCause::Prompt);
        let line = self.result(&Outcome::Failed { error }, &Totals::default());
        (self.since, self.turn, self.cause) = (since, turn, cause);
        line
    }

    /// Whether a notice woke the root, and not a prompt.
    pub(crate) fn is_woken(&self) -> bool {
        matches!(self.cause, TurnCause::Notification(_))
    }

    /// How many prompts wait.
    pub(crate) fn queued(&self) -> u32 {
        self.queued
    }

    /// The end of a run of the root: what it took itself, and what everything took until now.
    fn result(&mut self, outcome: &Outcome, totals: &Totals) -> Value {
        let index = self.results;
        self.results += 1;
        let ending = match outcome {
            // The leading program sees each refusal, and all of them with the result.
            Outcome::Denied { partial, .. } if self.facts.led => ResultWords::done(partial),
            outcome => ResultWords::of(outcome, totals, self.turn.asked),
        };
        let part = if self.one_result { &self.whole } else { &self.since };
        let mut line = json!({
            "type": "result", "subtype": ending.subtype, "is_error": ending.is_error,
            "duration_ms": totals.duration_ms, "duration_api_ms": self.whole.api_duration_ms,
            "num_turns": totals.turns, "stop_reason": totals.stop_reason,
            "terminal_reason": ending.terminal_reason, "session_id": self.session,
            "total_cost_usd": self.whole.cost.dollars(), "usage": usage(&part.usage),
            "modelUsage": model_usage(&self.whole), "permission_denials": denials(&part.denials),
            "api_error_status": totals.error_status, "subagent_stats": self.tasks.stats(),
            "uuid": Uuid::new_v4(), "queued_turn_count": self.queued, "result_index": index,
            "outcome": outcome.word(),
        });
        self.since = Totals::default();
        if let Value::Object(members) = &mut line {
            if let Some(result) = ending.result {
                members.insert("result".to_owned(), json!(result));
            }
            if let Some(error) = ending.error {
                members.insert("errors".to_owned(), json!([error]));
            }
            if let Some(first) = self.turn.first {
                members.insert("ttft_ms".to_owned(), json!(first));
            }
            if let Some(structured) = &totals.structured {
                members.insert("structured_output".to_owned(), structured.clone());
            }
            if let Some((path, branch)) = &self.worktree {
                members.insert(WORKTREE_PATH.to_owned(), json!(path));
                members.insert(WORKTREE_BRANCH.to_owned(), json!(branch));
            }
            if let TurnCause::Notification(run) = self.cause {
                let mut origin = json!({"kind": "task-notification"});
                if let Some(run) = run {
                    origin["runId"] = json!(run);
                }
                members.insert("origin".to_owned(), origin);
            }
        }
        line
    }

    fn system_lines(&self, lines: Vec<SystemLine>) -> Vec<Value> {
        lines.into_iter().map(|(subtype, fields)| self.system(subtype, fields)).collect()
    }

    fn system(&self, subtype: &str, fields: Value) -> Value {
        let mut line = Map::new();
        line.insert("type".to_owned(), json!("system"));
        line.insert("subtype".to_owned(), json!(subtype));
        if let Value::Object(fields) = fields {
            line.extend(fields);
        }
        line.insert("session_id".to_owned(), json!(self.session));
        line.insert("uuid".to_owned(), json!(Uuid::new_v4()));
        Value::Object(line)
    }

    fn chain(&self, kind: &str, envelope: &Envelope, line: LineId) -> Map<String, Value> {
        let mut value = Map::new();
        value.insert("type".to_owned(), json!(kind));
        value.insert("parent_tool_use_id".to_owned(), Value::Null);
        value.insert("session_id".to_owned(), json!(self.session));
        value.insert("uuid".to_owned(), json!(line));
        value.insert("timestamp".to_owned(), json!(timestamp(envelope.at)));
        if let Some(agent) = &envelope.agent {
            self.tasks.sign(agent, &mut value);
        }
        value
    }
}

/// A date as the ecosystem writes it: UTC with milliseconds.
pub fn timestamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// How long it is from one moment to another; nothing if a clock was set back.
fn milliseconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_millisecond().saturating_sub(from.as_millisecond())).unwrap_or(0)
}

#[allow(clippy::cast_precision_loss)] // of centuries
fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1_000.0
}

/// A mode of ours alone goes by the name of the one it is a kind of.
fn shown_mode(mode: Mode) -> Mode {
    if mode == Mode::Bubble { Mode::Default } else { mode }
}

/// A block as hosts read it: they expect the seal of every thought, also of a provider that makes none.
fn shown_block(block: &Block) -> Cow<'_, Block> {
    match block {
        Block::Thinking { thinking, signature: None, extra } => Cow::Owned(Block::Thinking {
            thinking: thinking.clone(),
            signature: Some(String::new()),
            extra: extra.clone(),
        }),
        other => Cow::Borrowed(other),
    }
}

/// Whether lines of this type are those of the transcript, by their id.
fn is_recorded(kind: &Value) -> bool {
    matches!(kind.as_str(), Some("assistant" | "user"))
}

fn hook_fields(hook: &HookRun) -> Value {
    json!({"hook_id": hook.id, "hook_name": hook.name, "hook_event": hook.event})
}

fn waits_for_budget(agent: Option<&AgentId>) -> String {
    let waiting = "waiting for budget that other requests have reserved";
    match agent {
        None => format!("budget: {waiting}"),
        Some(agent) => format!("budget: agent {agent} is {waiting}"),
    }
}

/// A failed request in the word that hosts know, as far as its status tells.
fn failure_word(status: Option<u16>) -> &'static str {
    match status {
        Some(429) => "rate_limit",
        Some(529) => "overloaded",
        Some(402) => "billing_error",
        Some(401 | 403) => "authentication_failed",
        Some(404) => "model_not_found",
        Some(400..=499) => "invalid_request",
        _ => "server_error",
    }
}

/// An outcome in the words of a result.
struct ResultWords<'a> {
    subtype: &'static str,
    terminal_reason: &'static str,
    is_error: bool,
    result: Option<&'a str>,
    error: Option<&'a str>,
}

impl<'a> ResultWords<'a> {
    fn done(report: &'a str) -> Self {
        Self {
            subtype: "success",
            terminal_reason: "completed",
            is_error: false,
            result: Some(report),
            error: None,
        }
    }

    fn of(outcome: &'a Outcome, totals: &Totals, asked: bool) -> Self {
        let kind = totals.error.as_deref();
        let failed = |terminal_reason, error| Self {
            subtype: "error_during_execution",
            terminal_reason,
            is_error: true,
            result: None,
            error: Some(error),
        };
        match outcome {
            Outcome::Completed { report, .. } => Self::done(report),
            Outcome::Failed { error } => match kind {
                Some(ending::STRUCTURED_OUTPUT) => Self {
                    subtype: "error_max_structured_output_retries",
                    ..failed("structured_output_retry_exhausted", error)
                },
                Some(ending::REFUSAL) => failed("model_error", error),
                Some(ending::TOO_LONG) => failed("prompt_too_long", error),
                Some(_) => failed("api_error", error),
                None => failed("turn_setup_failed", error),
            },
            Outcome::Stalled { waiting_for } => failed("api_error", waiting_for),
            Outcome::Killed { by } if kind == Some(ending::HOOK) => failed("hook_stopped", by),
            Outcome::Killed { by } if asked => failed("aborted_streaming", by),
            Outcome::Killed { by } => failed("aborted_tools", by),
            Outcome::Lost => {
                failed("turn_setup_failed", "the run was lost: its process died before it ended")
            }
            Outcome::Denied { reason, partial } => {
                Self { result: Some(partial), ..failed("permission_denied", reason) }
            }
            Outcome::OutOfBudget { budget, .. } => match budget.as_str() {
                "turns" => Self { subtype: "error_max_turns", ..failed("max_turns", "turn limit reached") },
                "money" => {
                    Self { subtype: "error_max_budget_usd", ..failed("budget_exhausted", "budget exhausted") }
                }
                "tokens" => failed("budget_exhausted", "token budget exhausted"),
                _ => failed("budget_exhausted", "time limit reached"),
            },
        }
    }
}

fn usage(usage: &Usage) -> Value {
    let mut value = json!(usage);
    if let Value::Object(members) = &mut value {
        let server = json!({"web_search_requests": 0, "web_fetch_requests": 0});
        members.entry("server_tool_use").or_insert(server);
        members.entry("service_tier").or_insert(Value::Null);
        let cache = json!({"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0});
        members.entry("cache_creation").or_insert(cache);
    }
    value
}

fn model_usage(totals: &Totals) -> Value {
    let entry = |(model, used): (&String, &decurion_protocol::ModelTotals)| {
        let value = json!({
            "inputTokens": used.usage.input_tokens,
            "outputTokens": used.usage.output_tokens,
            "cacheReadInputTokens": used.usage.cache_read_input_tokens,
            "cacheCreationInputTokens": used.usage.cache_creation_input_tokens,
            "webSearchRequests": 0,
            "costUSD": used.cost.dollars(),
            "contextWindow": used.window,
            "maxOutputTokens": used.max_output,
        });
        (model.clone(), value)
    };
    Value::Object(totals.models.iter().map(entry).collect())
}

/// The servers as hosts know them.
fn servers(all: &[McpStatus]) -> Vec<Value> {
    let one =
        |server: &McpStatus| json!({"name": server.name, "status": server.status, "source": server.source});
    all.iter().map(one).collect()
}

fn denials(denials: &[Denial]) -> Vec<Value> {
    let denial = |denial: &Denial| json!({"tool_name": denial.tool, "tool_use_id": denial.call, "tool_input": denial.input});
    denials.iter().map(denial).collect()
}

/// Adds what adds up of a run.
fn add(sum: &mut Totals, run: &Totals) {
    sum.usage.add(&run.usage);
    sum.cost = sum.cost.plus(run.cost);
    sum.api_duration_ms += run.api_duration_ms;
    sum.duration_ms += run.duration_ms;
    sum.denials.extend(run.denials.iter().cloned());
    for (model, used) in &run.models {
        let entry = sum.models.entry(model.clone()).or_default();
        entry.usage.add(&used.usage);
        entry.cost = entry.cost.plus(used.cost);
        (entry.window, entry.max_output) = (used.window, used.max_output);
    }
}

/// A delta as the events of the Messages API.
fn raw_events(delta: &Delta) -> Vec<Value> {
    let piece = |index: &u32, delta: Value| {
        vec![json!({"type": "content_block_delta", "index": index, "delta": delta})]
    };
    match delta {
        Delta::Started { message_id, model, usage } => vec![json!({"type": "message_start", "message": {
            "id": message_id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage,
        }})],
        Delta::BlockStarted { index, block } => {
            vec![json!({"type": "content_block_start", "index": index, "content_block": shown_block(block)})]
        }
        Delta::Text { index, text } => piece(index, json!({"type": "text_delta", "text": text})),
        Delta::Thinking { index, text } => piece(index, json!({"type": "thinking_delta", "thinking": text})),
        Delta::Signature { index, signature } => {
            piece(index, json!({"type": "signature_delta", "signature": signature}))
        }
        Delta::Input { index, json: part } => {
            piece(index, json!({"type": "input_json_delta", "partial_json": part}))
        }
        Delta::BlockEnded { index } => vec![json!({"type": "content_block_stop", "index": index})],
        Delta::Ended { stop_reason, usage } => vec![
            json!({"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": null},
                "usage": usage}),
            json!({"type": "message_stop"}),
        ],
        Delta::Discarded { .. } => Vec::new(),
    }
}
