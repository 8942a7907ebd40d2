//! Events as the ecosystem's stream-json. Takes envelopes in order, gives the JSON lines that programs made
//! for that stream read: init, assistant, user, stream_event, system messages, result.

use decurion_protocol::{
    AgentId, Block, Delta, Envelope, Event, LineId, Message, MessageMeta, Origin, Outcome, Role, RunSpec,
    SessionId, ToolOutput, Totals, Usage, WaitReason,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use uuid::Uuid;

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

/// The state of one stream.
#[derive(Debug)]
pub struct StreamJson {
    session: SessionId,
    facts: Facts,
    results: u64,
    model: String,
    /// Usage of the message under way, as the provider first reported it.
    usage: Usage,
}

impl StreamJson {
    /// A stream of this session.
    pub fn new(session: SessionId, facts: Facts) -> Self {
        Self { session, facts, results: 0, model: String::new(), usage: Usage::default() }
    }

    /// The lines for one event, often none.
    pub fn lines(&mut self, envelope: &Envelope) -> Vec<Value> {
        match &envelope.event {
            Event::RunStarted { spec } => {
                self.model.clone_from(&spec.model);
                vec![self.init(spec)]
            }
            Event::Message { message, lines, meta, .. } => self.message(envelope, message, lines, meta),
            Event::CallEnded { call, line, output, .. } => {
                vec![self.tool_result(envelope, call.as_str(), *line, output)]
            }
            Event::CallRefused { call, tool, decision, .. } => vec![self.system(
                "permission_denied",
                json!({
                    "tool_name": tool,
                    "tool_use_id": call,
                    "decision_reason_type": if decision.rule.is_some() { "rule" } else { "mode" },
                    "decision_reason": decision.reason,
                    "message": decision.reason,
                }),
            )],
            Event::Compacted { boundary, logical_parent, trigger, tokens_before, .. } => {
                vec![self.compact_boundary(*boundary, *logical_parent, trigger, *tokens_before)]
            }
            Event::Waiting { reason: Some(reason) } => self.waiting(reason),
            Event::Delta { delta } => self.delta(envelope, delta),
            Event::RunEnded { outcome, totals } => vec![self.result(outcome, totals)],
            Event::Notice { text, .. } => {
                vec![self.system("informational", json!({"content": text, "level": "info"}))]
            }
            _ => Vec::new(),
        }
    }

    fn init(&self, spec: &RunSpec) -> Value {
        self.system(
            "init",
            json!({
                "cwd": spec.cwd,
                "tools": &*spec.tools,
                "mcp_servers": [],
                "model": spec.model.split_once('/').map_or(spec.model.as_str(), |(_, model)| model),
                "permissionMode": spec.mode,
                "slash_commands": ["compact"],
                "terminal_slash_commands": [],
                "apiKeySource": self.facts.api_key_source,
                "claude_code_version": STREAM_VERSION,
                "output_style": "default",
                "agents": [],
                "skills": [],
                "plugins": [],
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

    /// One line per block of the model's message; prompts and notes are not echoed.
    fn message(
        &mut self,
        envelope: &Envelope,
        message: &Message,
        lines: &[LineId],
        meta: &MessageMeta,
    ) -> Vec<Value> {
        if message.role == Role::User {
            return Vec::new();
        }
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

    fn waiting(&self, reason: &WaitReason) -> Vec<Value> {
        match reason {
            WaitReason::Retry { attempt, of, delay_ms, status, error, .. } => vec![self.system(
                "api_retry",
                json!({
                    // One that waits in the pause of another has not failed itself.
                    "attempt": attempt.saturating_sub(1).max(1), "max_retries": of, "retry_delay_ms": delay_ms,
                    "error_status": status, "error": error,
                }),
            )],
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

    fn delta(&mut self, envelope: &Envelope, delta: &Delta) -> Vec<Value> {
        if let Delta::Started { usage, .. } = delta {
            self.usage = usage.clone();
        }
        if !self.facts.partial {
            return Vec::new();
        }
        let line = |event: Value| {
            json!({
                "type": "stream_event", "event": event, "parent_tool_use_id": envelope.agent,
                "session_id": self.session, "uuid": Uuid::new_v4(),
            })
        };
        raw_events(delta).into_iter().map(line).collect()
    }

    fn result(&mut self, outcome: &Outcome, totals: &Totals) -> Value {
        let index = self.results;
        self.results += 1;
        let ending = Ending::of(outcome);
        let mut line = json!({
            "type": "result", "subtype": ending.subtype, "is_error": ending.is_error,
            "duration_ms": totals.duration_ms, "duration_api_ms": totals.api_duration_ms,
            "num_turns": totals.turns, "stop_reason": totals.stop_reason,
            "terminal_reason": ending.terminal_reason, "session_id": self.session,
            "total_cost_usd": totals.cost.dollars(), "usage": usage(&totals.usage),
            "modelUsage": model_usage(totals), "permission_denials": denials(totals),
            "api_error_status": totals.error_status, "subagent_stats": no_subagents(),
            "uuid": Uuid::new_v4(), "queued_turn_count": 0, "result_index": index,
            "outcome": outcome.word(),
        });
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
        }
        line
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
        value.insert("parent_tool_use_id".to_owned(), json!(envelope.agent.as_ref().map(AgentId::as_str)));
        value.insert("session_id".to_owned(), json!(self.session));
        value.insert("uuid".to_owned(), json!(line));
        value.insert("timestamp".to_owned(), json!(timestamp(envelope.at)));
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

fn denials(totals: &Totals) -> Vec<Value> {
    let denial = |denial: &decurion_protocol::Denial| json!({"tool_name": denial.tool, "tool_use_id": denial.call, "tool_input": denial.input});
    totals.denials.iter().map(denial).collect()
}

fn no_subagents() -> Value {
    json!({
        "spawned": 0, "requested": {"background": 0, "foreground": 0, "unset": 0},
        "started_in_background": 0, "max_depth": 0, "spawned_by_subagents": 0, "completed": 0, "failed": 0,
        "killed": {"parent": 0, "user": 0, "system": 0},
        "refused": {"depth_limit": 0, "concurrency_limit": 0, "budget": 0}, "by_type": {},
    })
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
