//! Events as the ecosystem's stream-json. Takes envelopes in order, gives the JSON lines that programs made
//! for that stream read: init, assistant, user, stream_event, system messages, result. Agents of every depth
//! are shown, each line with the call that started its agent.

use decurion_protocol::{
    AgentId, Block, CallId, Decision, Delivery, Delta, Denial, Envelope, Event, LineId, McpStatus, Message,
    MessageMeta, Mode, Origin, Outcome, Role, RunId, RunSpec, SessionId, ToolOutput, Totals, Usage,
    WaitReason, Worktree,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::tasks::{SystemLine, Tasks, is_delegation};

/// The version of the ecosystem's stream that these lines follow; hosts look for it.
const STREAM_VERSION: &str = "2.1.325";

/// What the stream says that is not in any event.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Where the key came from, never the key.
    pub api_key_source: String,
    /// Version of Decurion.
    pub version: String,
    /// Which sandbox is in force.
    pub sandbox: String,
    /// Whether pieces of replies are shown as they come.
    pub partial: bool,
}

/// What a program can call besides tools, by name.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// What a person can type behind a slash.
    pub commands: Vec<String>,
    /// The skills.
    pub skills: Vec<String>,
    /// The plugins in use.
    pub plugins: Vec<ListedPlugin>,
}

/// A plugin in use.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedPlugin {
    /// Its name.
    pub name: String,
    /// Its folder.
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
    facts: Facts,
    agents: Vec<String>,
    listed: Listed,
    results: u64,
    model: String,
    /// Usage of the message under way, as the provider first reported it.
    usage: Usage,
    tasks: Tasks,
    /// Why the root works now.
    cause: Cause,
    /// What every run took so far, the agents' included.
    whole: Totals,
    /// The same since the last result.
    since: Totals,
    /// Whether there is one result only, which then tells of everything.
    one_result: bool,
    /// The checkout of its own that the session works in: where, and on which branch.
    worktree: Option<(String, String)>,
}

/// Where a result tells of the checkout of its own that the session works in.
pub(crate) const WORKTREE_PATH: &str = "worktreePath";
pub(crate) const WORKTREE_BRANCH: &str = "worktreeBranch";

/// Why the root works.
#[derive(Debug, Default)]
enum Cause {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// Someone asked.
    Prompt,
    /// A task ended; during which run.
    Notification(Option<RunId>),
}

impl StreamJson {
    /// A stream of this session.
    pub fn new(session: SessionId, facts: Facts) -> Self {
        Self {
            session,
            facts,
            agents: Vec::new(),
            listed: Listed::default(),
            results: 0,
            model: String::new(),
            usage: Usage::default(),
            tasks: Tasks::default(),
            cause: Cause::Unknown,
            whole: Totals::default(),
            since: Totals::default(),
            one_result: false,
            worktree: None,
        }
    }

    /// The same, naming the skills, commands and plugins at hand.
    #[must_use]
    pub fn with_library(mut self, listed: Listed) -> Self {
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

    /// The lines for one event, often none.
    pub fn lines(&mut self, envelope: &Envelope) -> Vec<Value> {
        let agent = envelope.agent.as_ref();
        match &envelope.event {
            Event::RunStarted { spec } => match agent {
                None => self.root_started(spec),
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
            Event::CallEnded { call, line, output, .. } => self.call_ended(envelope, call, *line, output),
            Event::CallRefused { call, tool, decision, .. } => {
                vec![self.refused(agent, call, tool, decision)]
            }
            // How an agent's own conversation is shortened is not the host's.
            Event::Compacted { boundary, logical_parent, trigger, tokens_before, .. } if agent.is_none() => {
                vec![self.compact_boundary(*boundary, *logical_parent, trigger, *tokens_before)]
            }
            Event::Waiting { reason: Some(reason) } => self.waiting(agent, reason),
            Event::Delta { delta } if agent.is_none() => self.delta(delta),
            Event::Relocated { worktree, .. } if agent.is_none() => {
                self.works_in(worktree.as_deref());
                Vec::new()
            }
            Event::Notice { text, level } => {
                vec![self.system("informational", json!({"content": text, "level": level}))]
            }
            _ => Vec::new(),
        }
    }

    fn root_started(&mut self, spec: &RunSpec) -> Vec<Value> {
        self.model.clone_from(&spec.model);
        self.cause = Cause::Unknown;
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
                // A mode of ours alone goes by the name of the one it is a kind of.
                "permissionMode": if spec.mode == Mode::Bubble { Mode::Default } else { spec.mode },
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
                (None, _) => {
                    self.told(meta);
                    Vec::new()
                }
                (Some(_), Origin::Prompt) => self.prompt(envelope, message, lines),
                (Some(_), _) => Vec::new(),
            };
        }
        if is_delegation(&self.tasks, agent, message) {
            return Vec::new();
        }
        self.tasks.called(message);
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
                    "content": [block], "stop_reason": null, "stop_sequence": null, "usage": usage,
                }),
            );
            if let Some(request_id) = &meta.request_id {
                value.insert("request_id".to_owned(), json!(request_id));
            }
            if synthetic {
                value.insert("is_api_error_message".to_owned(), json!(true));
                value.insert("error".to_owned(), json!("unknown"));
            }
            Value::Object(value)
        };
        message.blocks.iter().zip(lines).map(line).collect()
    }

    /// Remembers why the root works: by its first message that is a prompt or tells of something.
    fn told(&mut self, meta: &MessageMeta) {
        let ending = |delivery: &Delivery| match delivery {
            Delivery::Ending(ending) => self.tasks.run_of(ending),
            Delivery::Mail(_) => None,
        };
        match (&self.cause, &meta.origin) {
            (Cause::Unknown, Origin::Prompt) => self.cause = Cause::Prompt,
            (Cause::Unknown, Origin::Note(what)) if what == "notification" => {
                self.cause = Cause::Notification(meta.delivers.iter().find_map(ending));
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

    fn compact_boundary(
        &self,
        boundary: LineId,
        parent: Option<LineId>,
        trigger: &str,
        tokens: u64,
    ) -> Value {
        let metadata = json!({"compact_metadata": {"trigger": trigger, "pre_tokens": tokens}});
        let mut line = self.system("compact_boundary", metadata);
        if let Some(parent) = parent {
            line["logical_parent_uuid"] = json!(parent);
        }
        line["uuid"] = json!(boundary);
        line
    }

    fn waiting(&self, agent: Option<&AgentId>, reason: &WaitReason) -> Vec<Value> {
        match reason {
            WaitReason::Retry { attempt, of, delay_ms, status, error, .. } => {
                let mut fields = json!({
                    // One that waits in the pause of another has not failed itself.
                    "attempt": attempt.saturating_sub(1).max(1), "max_retries": of, "retry_delay_ms": delay_ms,
                    "error_status": status, "error": error,
                });
                if let Some(agent) = agent {
                    fields["agent_id"] = json!(agent);
                }
                vec![self.system("api_retry", fields)]
            }
            WaitReason::Compaction if agent.is_some() => Vec::new(),
            WaitReason::Compaction => vec![self.system("status", json!({"status": "compacting"}))],
            WaitReason::Disk { error } => vec![self.system(
                "informational",
                json!({
                    "content": format!("disk: the session is paused, nothing is lost ({error})"),
                    "level": "warning",
                }),
            )],
            WaitReason::Model | WaitReason::Turn { .. } | WaitReason::Permission { .. } => Vec::new(),
        }
    }

    fn delta(&mut self, delta: &Delta) -> Vec<Value> {
        if let Delta::Started { usage, .. } = delta {
            self.usage = usage.clone();
        }
        if !self.facts.partial {
            return Vec::new();
        }
        let line = |event: Value| {
            json!({
                "type": "stream_event", "event": event, "parent_tool_use_id": null,
                "session_id": self.session, "uuid": Uuid::new_v4(),
            })
        };
        raw_events(delta).into_iter().map(line).collect()
    }

    /// The end of a run of the root: what it took itself, and what everything took until now.
    fn result(&mut self, outcome: &Outcome, totals: &Totals) -> Value {
        let index = self.results;
        self.results += 1;
        let ending = Ending::of(outcome);
        let part = if self.one_result { &self.whole } else { &self.since };
        let mut line = json!({
            "type": "result", "subtype": ending.subtype, "is_error": ending.is_error,
            "duration_ms": totals.duration_ms, "duration_api_ms": self.whole.api_duration_ms,
            "num_turns": totals.turns, "stop_reason": totals.stop_reason,
            "terminal_reason": ending.terminal_reason, "session_id": self.session,
            "total_cost_usd": self.whole.cost.dollars(), "usage": usage(&part.usage),
            "modelUsage": model_usage(&self.whole), "permission_denials": denials(&part.denials),
            "api_error_status": totals.error_status, "subagent_stats": self.tasks.stats(),
            "uuid": Uuid::new_v4(), "queued_turn_count": 0, "result_index": index,
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
            if let Some(structured) = &totals.structured {
                members.insert("structured_output".to_owned(), structured.clone());
            }
            if let Some((path, branch)) = &self.worktree {
                members.insert(WORKTREE_PATH.to_owned(), json!(path));
                members.insert(WORKTREE_BRANCH.to_owned(), json!(branch));
            }
            if let Cause::Notification(run) = self.cause {
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

/// An outcome in the words of a result.
struct Ending<'a> {
    subtype: &'static str,
    terminal_reason: &'static str,
    is_error: bool,
    result: Option<&'a str>,
    error: Option<&'a str>,
}

impl<'a> Ending<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let failed = |terminal_reason, error| Self {
            subtype: "error_during_execution",
            terminal_reason,
            is_error: true,
            result: None,
            error: Some(error),
        };
        match outcome {
            Outcome::Completed { report, .. } => Self {
                subtype: "success",
                terminal_reason: "completed",
                is_error: false,
                result: Some(report),
                error: None,
            },
            Outcome::Failed { error } => failed("api_error", error),
            Outcome::Stalled { waiting_for } => failed("api_error", waiting_for),
            Outcome::Killed { by } => failed("aborted_tools", by),
            Outcome::Lost => failed("turn_setup_failed", "the end of the run was not seen"),
            Outcome::Denied { reason, partial } => {
                Self { result: Some(partial), ..failed("permission_denied", reason) }
            }
            Outcome::OutOfBudget { budget, .. } => match budget.as_str() {
                "turns" => Self {
                    subtype: "error_max_turns",
                    ..failed("max_turns", "the limit of turns was reached")
                },
                "money" => Self {
                    subtype: "error_max_budget_usd",
                    ..failed("budget_exhausted", "the money budget is used up")
                },
                "tokens" => failed("budget_exhausted", "the token budget is used up"),
                _ => failed("budget_exhausted", "the time budget is used up"),
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
            vec![json!({"type": "content_block_start", "index": index, "content_block": block})]
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
