//! Facts about a run, a request and an end besides their times. Takes protocol values, gives short facts: none is
//! longer than a line.

use decurion_protocol::{
    AgentSource, Attention, Message, MessageMeta, Opening, Origin, Outcome, Pattern, RunSpec, Totals, Usage,
};
use serde_json::{Value, json};

use super::SpanFacts;
use crate::progress::one_line;

/// A text of any origin as a short value.
pub(super) fn text(words: &str) -> Value {
    Value::String(one_line(words))
}

/// Which tag a run's requests have.
pub(super) fn class(spec: &RunSpec) -> &'static str {
    match (&spec.agent, spec.definition.source) {
        (None, _) => "main",
        (Some(_), AgentSource::Builtin) => "agent:builtin",
        (Some(_), _) => "agent:custom",
    }
}

/// What was decided for a run.
pub(super) fn selected(attention: Option<Attention>, spec: &RunSpec) -> SpanFacts {
    let mut facts = vec![
        ("type", text(&spec.definition.name)),
        ("source", json!(spec.definition.source)),
        ("model", text(&spec.model)),
        ("why", spec.model_why.as_deref().map_or(Value::Null, text)),
        ("background", json!(attention == Some(Attention::Background))),
        ("fork", json!(spec.pattern == Pattern::Fork)),
        ("depth", json!(spec.depth)),
        ("request", json!(class(spec))),
    ];
    if matches!(spec.opening, Opening::Resumed { .. }) {
        facts.push(("resumed", json!(true)));
    }
    facts
}

/// The result of a run.
pub(super) fn completed(outcome: &Outcome, totals: &Totals, tools: u32) -> SpanFacts {
    let usage = &totals.usage;
    let mut facts = vec![
        ("outcome", json!(outcome.word())),
        ("duration_ms", json!(totals.duration_ms)),
        ("model_ms", json!(totals.api_duration_ms)),
        ("input_tokens", json!(usage.input_tokens)),
        ("output_tokens", json!(usage.output_tokens)),
        ("cache_read_tokens", json!(usage.cache_read_input_tokens)),
        ("cache_write_tokens", json!(usage.cache_creation_input_tokens)),
        ("cost_usd", json!(totals.cost.dollars())),
        ("tools", json!(tools)),
    ];
    let why = match outcome {
        Outcome::Completed { limit, .. } => limit.as_deref(),
        Outcome::Failed { error } => Some(error.as_str()),
        Outcome::Killed { by } => Some(by.as_str()),
        Outcome::Stalled { waiting_for } => Some(waiting_for.as_str()),
        Outcome::OutOfBudget { budget, .. } => Some(budget.as_str()),
        Outcome::Denied { reason, .. } => Some(reason.as_str()),
        Outcome::Lost => None,
    };
    facts.extend(why.map(|why| ("why", text(why))));
    facts
}

/// What is known of one request.
pub(super) fn asked_facts(
    class: &'static str,
    message: &Message,
    meta: &MessageMeta,
    usage: &Usage,
) -> SpanFacts {
    let mut facts = vec![("request", json!(class))];
    if meta.usage.is_some() {
        facts.extend([
            ("input_tokens", json!(usage.input_tokens)),
            ("output_tokens", json!(usage.output_tokens)),
            ("cache_read_tokens", json!(usage.cache_read_input_tokens)),
            ("cache_write_tokens", json!(usage.cache_creation_input_tokens)),
        ]);
    }
    facts.extend(meta.stop_reason.as_deref().map(|reason| ("stop_reason", text(reason))));
    facts.extend(meta.request_id.as_deref().map(|id| ("request_id", text(id))));
    if meta.origin == Origin::Synthetic {
        facts.push(("error", text(&message.text())));
    }
    let calls = message.calls().count();
    if calls > 0 {
        facts.push(("calls", json!(calls)));
    }
    facts
}
