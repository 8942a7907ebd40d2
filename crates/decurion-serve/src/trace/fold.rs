//! The fold. Takes envelopes in the order of their numbers, gives a [`Timeline`].
//!
//! Two rules make every track a proper nesting for any record: time never runs backwards here (an earlier date is moved
//! up to the one before it), and a new activity ends those that it cannot overlap. Calls that do overlap get separate
//! tracks, and so do commands, which may outlive a run.

mod layout;

use std::collections::{BTreeMap, HashMap};

use decurion_protocol::{
    AgentId, Attention, CallId, Delivery, EndingId, Envelope, Event, Message, MessageMeta, Money, Origin,
    Outcome, QuestionId, Role, RunId, RunSpec, SessionId, Step, TaskId, TaskKind, TaskRecord, TaskState,
    Timing, ToolEffect, ToolOutput, Totals, Usage,
};
use jiff::Timestamp;
use serde_json::json;

use super::facts::{asked_facts, class, completed, selected, text};
use super::{Counter, FlowKind, Instant, SpanFacts, SpanKind, TimeSpan, Timeline};
use crate::progress::one_line;

/// A timeline in the making.
#[derive(Debug, Default)]
pub struct TimelineFold {
    session: Option<SessionId>,
    began: Option<Timestamp>,
    now: u64,
    rows: Vec<AgentRow>,
    places: HashMap<Option<AgentId>, usize>,
    spans: Vec<TimeSpan>,
    /// Calls and commands, which get their tracks at the end.
    strips: Vec<Strip>,
    shells: HashMap<TaskId, usize>,
    questions: HashMap<QuestionId, (usize, CallId)>,
    flows: Vec<Arrow>,
    /// Endings that were not told yet, by their arrows.
    untold: BTreeMap<EndingId, usize>,
    instants: Vec<Instant>,
    counters: Vec<Counter>,
}

/// What is known of one agent.
#[derive(Debug, Default)]
struct AgentRow {
    agent: Option<AgentId>,
    parent: Option<AgentId>,
    kind: String,
    description: String,
    /// What its current piece of work is called.
    task: String,
    attention: Option<Attention>,
    class: &'static str,
    outcome: Option<&'static str>,
    run: Option<OpenSpan>,
    turn: Option<OpenSpan>,
    queued: Option<u64>,
    calls: Vec<SpannedCall>,
    /// When its conversation last moved: no request was asked before that.
    moved: u64,
    /// When its last run began and ended.
    last: Option<(u64, u64)>,
    turns: u32,
    tools: u32,
    used: Usage,
    cost: Money,
    /// The arrow to its next start.
    spawn: Option<usize>,
    /// The call that began it.
    entry: Option<CallId>,
}

/// Something that has begun.
#[derive(Debug)]
struct OpenSpan {
    from: u64,
    to: u64,
    name: String,
    facts: SpanFacts,
}

/// A call that is asked about or runs.
#[derive(Debug)]
struct SpannedCall {
    id: CallId,
    strip: usize,
    tool: String,
    asked: Option<(u64, SpanFacts)>,
    running: Option<(u64, SpanFacts)>,
}

/// A stretch of time that must not overlap another on its track.
#[derive(Debug)]
struct Strip {
    row: usize,
    from: u64,
    to: u64,
    is_shell: bool,
    /// For a command: its name and facts, until it ends.
    shell: Option<(String, SpanFacts)>,
    spans: Vec<usize>,
    track: usize,
}

/// An arrow whose ends have no tracks yet.
#[derive(Debug)]
struct Arrow {
    kind: FlowKind,
    from: ArrowEnd,
    to: Option<ArrowEnd>,
    /// Whose track it must end on.
    reader: Option<AgentId>,
}

/// One end of an arrow: on a call or command, or on the agent's own track.
#[derive(Clone, Copy, Debug)]
struct ArrowEnd {
    row: usize,
    strip: Option<usize>,
    at: u64,
}

impl TimelineFold {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record.
    pub fn take(&mut self, envelope: &Envelope) {
        let before = self.now;
        let began = *self.began.get_or_insert(envelope.at);
        let passed = envelope.at.as_microsecond().saturating_sub(began.as_microsecond());
        self.now = self.now.max(u64::try_from(passed).unwrap_or(0));
        let (run, agent) = (envelope.run, envelope.agent.as_ref());
        match &envelope.event {
            Event::SessionOpened { info } => self.opened(info.session, before),
            Event::RunStarted { spec } => self.run_started(spec),
            Event::Message { message, meta, .. } => self.message(agent, message, meta),
            Event::CallStarted { call, tool, intent, .. } => {
                self.call_started(agent, call, tool, &intent.title);
            }
            Event::CallRefused { call, tool, decision, .. } => {
                self.call_refused(agent, call, tool, &decision.reason);
            }
            Event::CallEnded { call, tool, output, .. } => self.call_ended(agent, call, tool, output),
            Event::Compacted { trigger, tokens_before, .. } => {
                self.compacted(agent, trigger, *tokens_before);
            }
            Event::Asked { question } => {
                let facts = vec![("tool", text(&question.tool)), ("reason", text(&question.reason))];
                self.asked(question.agent.as_ref(), question.id, &question.call, &question.tool, facts);
            }
            Event::Answered { question, by, .. } => self.answered(*question, by),
            Event::TaskOpened { record } => self.task_opened(record),
            Event::TaskChanged { task, state } => self.task_changed(task, state),
            Event::Notice { level, text: words } => {
                let row = self.row(agent);
                self.instant(row, "notice", vec![("level", text(level)), ("text", text(words))]);
            }
            Event::Prepared { steps } => self.steps(agent, "prepared", steps),
            Event::Released { steps } => self.steps(agent, "released", steps),
            Event::RunEnded { outcome, totals } => self.run_ended(agent, run, outcome, totals),
            _ => {}
        }
    }

    /// The session begins, or another process takes it up: what was under way ended with the one before it.
    fn opened(&mut self, session: SessionId, last_seen: u64) {
        if self.session.replace(session).is_some() {
            self.interrupt(last_seen);
        }
    }

    /// The timeline of all that was taken.
    pub fn finish(mut self) -> Timeline {
        self.row(None);
        self.interrupt(self.now);
        let tracks = self.lay_out();
        let order = layout::order(&self.rows, &self.places);
        let mut place = vec![0; self.rows.len()];
        for (index, (row, _)) in order.iter().enumerate() {
            place[*row] = index;
        }
        let flows = self.arrows(&place);
        let agents = order.iter().map(|(row, depth)| self.lane(*row, *depth, tracks[*row])).collect();
        let mut spans = self.spans;
        for span in &mut spans {
            span.lane = place[span.lane];
        }
        spans.sort_by(|one, other| {
            let key =
                |span: &TimeSpan| (span.lane, span.track, span.from, std::cmp::Reverse(span.to), span.kind);
            key(one).cmp(&key(other))
        });
        let mut instants = self.instants;
        for instant in &mut instants {
            instant.lane = place[instant.lane];
        }
        let mut counters = self.counters;
        for counter in &mut counters {
            counter.lane = place[counter.lane];
        }
        let began = self.began.unwrap_or(Timestamp::UNIX_EPOCH);
        Timeline { session: self.session, began, end: self.now, agents, spans, flows, instants, counters }
    }

    /// The row of an agent, made where it is not known.
    fn row(&mut self, agent: Option<&AgentId>) -> usize {
        if let Some(place) = self.places.get(&agent.cloned()) {
            return *place;
        }
        let kind = if agent.is_none() { "main" } else { "agent" };
        let class = if agent.is_none() { "main" } else { "agent:custom" };
        self.rows.push(AgentRow {
            agent: agent.cloned(),
            kind: kind.to_owned(),
            class,
            ..AgentRow::default()
        });
        self.places.insert(agent.cloned(), self.rows.len() - 1);
        self.rows.len() - 1
    }

    fn instant(&mut self, lane: usize, name: &'static str, facts: SpanFacts) {
        self.instants.push(Instant { lane, at: self.now, name, facts });
    }

    /// What there was to say about an agent's start or end.
    fn steps<T: serde::Serialize>(&mut self, agent: Option<&AgentId>, name: &'static str, steps: &[Step<T>]) {
        let row = self.row(agent);
        let word = |step: &T| json!(step).as_str().unwrap_or_default().to_owned();
        let noted = |step: &Step<T>| Some(format!("{}: {}", word(&step.step), step.note.as_ref()?));
        let notes: Vec<String> = steps.iter().filter_map(noted).collect();
        self.instant(row, name, vec![("steps", json!(steps.len())), ("notes", text(&notes.join("; ")))]);
    }

    /// Puts a span on an agent's own track.
    fn span(&mut self, lane: usize, kind: SpanKind, open: OpenSpan, unfinished: bool) {
        let OpenSpan { from, to, name, facts } = open;
        self.spans.push(TimeSpan { lane, track: 0, kind, name, from, to: to.max(from), facts, unfinished });
    }

    // Runs.

    fn run_started(&mut self, spec: &RunSpec) {
        let row = self.row(spec.agent.as_ref());
        self.stop(row, self.now);
        let facts = selected(self.rows[row].attention, spec);
        let now = self.now;
        let state = &mut self.rows[row];
        state.kind = one_line(&spec.definition.name);
        state.class = class(spec);
        (state.moved, state.tools, state.outcome) = (now, 0, None);
        let name = if state.task.is_empty() { state.kind.clone() } else { state.task.clone() };
        let run = vec![
            ("agent", json!(state.agent)),
            ("type", text(&spec.definition.name)),
            ("model", text(&spec.model)),
            ("run", json!(spec.run)),
        ];
        state.run = Some(OpenSpan { from: now, to: now, name, facts: run });
        if let Some(arrow) = state.spawn.take() {
            self.flows[arrow].to = Some(ArrowEnd { row, strip: None, at: now });
        }
        if self.rows[row].turns == 0 {
            self.count(row);
        }
        self.instant(row, "selected", facts);
    }

    /// A record of a conversation belongs to a run, also where the run's own was lost or made elsewhere.
    fn within_run(&mut self, row: usize) {
        let now = self.now;
        let state = &mut self.rows[row];
        if state.run.is_none() {
            state.moved = now;
            let facts = vec![("agent", json!(state.agent)), ("recorded", json!("elsewhere"))];
            state.run = Some(OpenSpan { from: now, to: now, name: "earlier".to_owned(), facts });
        }
    }

    /// The same, of an agent that works: if it waited for a place, that is over.
    fn working(&mut self, row: usize) {
        self.within_run(row);
        self.end_queue(row, self.rows[row].moved, true);
    }

    fn run_ended(&mut self, agent: Option<&AgentId>, run: RunId, outcome: &Outcome, totals: &Totals) {
        let row = self.row(agent);
        let now = self.now;
        let state = &mut self.rows[row];
        state.outcome = Some(outcome.word());
        let facts = completed(outcome, totals, state.tools);
        if let Some(open) = &mut state.run {
            open.facts.push(("outcome", json!(outcome.word())));
        }
        self.end_run(row, now, false);
        self.instant(row, "completed", facts);
        // One that was lost with its process ended where that was last seen.
        if let (Some(agent), Some((began, rested))) = (agent, self.rows[row].last) {
            let id = EndingId { task: agent.clone().into(), run: Some(run) };
            let from = ArrowEnd { row, strip: None, at: inside(began, rested) };
            self.ended(id, from, self.rows[row].parent.clone());
        }
    }

    fn end_run(&mut self, row: usize, at: u64, unfinished: bool) {
        self.end_calls(row, at);
        self.end_turn(row);
        self.end_queue(row, at, true);
        if let Some(mut run) = self.rows[row].run.take() {
            run.to = at;
            self.rows[row].last = Some((run.from, at));
            // What was recorded elsewhere has no end here, and lacks none.
            let unfinished = unfinished && run.name != "earlier";
            self.span(row, SpanKind::Run, run, unfinished);
        }
    }

    /// The running activities of an agent have no recorded end.
    fn stop(&mut self, row: usize, at: u64) {
        if self.rows[row].run.is_some() {
            self.end_run(row, at, true);
        }
    }

    fn interrupt(&mut self, at: u64) {
        for row in 0..self.rows.len() {
            self.stop(row, at);
        }
        let open: Vec<TaskId> = self.shells.keys().cloned().collect();
        for task in open {
            self.shell_ended(&task, at, None);
        }
        self.questions.clear();
    }

    // Turns.

    fn message(&mut self, agent: Option<&AgentId>, message: &Message, meta: &MessageMeta) {
        let row = self.row(agent);
        self.within_run(row);
        let is_reply = message.role == Role::Assistant
            && match meta.origin {
                // A fork repeats the message that began it; that one was asked for by its parent.
                Origin::Model => meta.message_id.is_some() || meta.timing.is_some(),
                Origin::Synthetic => true,
                _ => false,
            };
        if is_reply {
            self.reply(row, message, meta);
        }
        self.rows[row].moved = self.now;
        for delivery in &meta.delivers {
            self.told(delivery, ArrowEnd { row, strip: None, at: self.now });
        }
    }

    fn reply(&mut self, row: usize, message: &Message, meta: &MessageMeta) {
        self.working(row);
        let (now, moved) = (self.now, self.rows[row].moved);
        // Nothing is asked before every call is answered: one that is still open lost its end.
        self.end_calls(row, moved);
        self.end_turn(row);
        let asked = meta
            .timing
            .as_ref()
            .map_or(moved, |timing| now.saturating_sub(timing.ms.saturating_mul(1_000)).max(moved));
        let state = &mut self.rows[row];
        state.turns += 1;
        let class = state.class;
        let name = format!("turn {}", state.turns);
        state.turn = Some(OpenSpan { from: asked, to: now, name, facts: SpanFacts::new() });
        let usage = meta.usage.clone().unwrap_or_default();
        state.used.add(&usage);
        state.cost = state.cost.plus(meta.cost.unwrap_or_default());
        let name = match (&meta.model, &meta.origin) {
            (Some(model), _) => one_line(model),
            (None, Origin::Synthetic) => "failed request".to_owned(),
            (None, _) => "model".to_owned(),
        };
        let facts = asked_facts(class, message, meta, &usage);
        self.span(row, SpanKind::Model, OpenSpan { from: asked, to: now, name, facts }, false);
        if let Some(timing) = &meta.timing {
            self.waits(row, asked, timing);
        }
        self.count(row);
    }

    /// The waits within a request that was asked at this time and ends now.
    fn waits(&mut self, row: usize, asked: u64, timing: &Timing) {
        let mut earliest = asked;
        for wait in &timing.waits {
            let from = asked.saturating_add(wait.after_ms.saturating_mul(1_000)).clamp(earliest, self.now);
            let to = from.saturating_add(wait.ms.saturating_mul(1_000)).min(self.now);
            let kind = SpanKind::from(wait.kind);
            let name = match kind {
                SpanKind::WaitTurn => "wait for the provider",
                SpanKind::WaitLimit => "rate limit",
                SpanKind::WaitRetry => "wait to try again",
                _ => "waits",
            };
            let name = name.to_owned();
            self.span(row, kind, OpenSpan { from, to, name, facts: SpanFacts::new() }, false);
            earliest = to;
        }
    }

    fn end_turn(&mut self, row: usize) {
        if let Some(turn) = self.rows[row].turn.take() {
            self.span(row, SpanKind::Turn, turn, false);
        }
    }

    fn compacted(&mut self, agent: Option<&AgentId>, trigger: &str, tokens: u64) {
        let row = self.row(agent);
        self.working(row);
        let moved = self.rows[row].moved;
        self.end_calls(row, moved);
        self.end_turn(row);
        let facts = vec![("trigger", text(trigger)), ("tokens_before", json!(tokens))];
        let open = OpenSpan { from: moved, to: self.now, name: "compaction".to_owned(), facts };
        self.span(row, SpanKind::Compaction, open, false);
        self.rows[row].moved = self.now;
    }

    fn count(&mut self, row: usize) {
        let state = &self.rows[row];
        self.counters.push(Counter {
            lane: row,
            at: self.now,
            input: state.used.input_tokens,
            output: state.used.output_tokens,
            cache_read: state.used.cache_read_input_tokens,
            cache_write: state.used.cache_creation_input_tokens,
            cost: state.cost.dollars(),
        });
    }

    // Calls.

    /// The place of a call that is not over, made where there is none.
    fn call(&mut self, row: usize, id: &CallId, tool: &str) -> usize {
        if let Some(place) = self.rows[row].calls.iter().position(|call| call.id == *id) {
            return place;
        }
        let (from, spans) = (self.now, Vec::new());
        self.strips.push(Strip { row, from, to: from, is_shell: false, shell: None, spans, track: 0 });
        let (strip, tool) = (self.strips.len() - 1, one_line(if tool.is_empty() { "call" } else { tool }));
        let calls = &mut self.rows[row].calls;
        calls.push(SpannedCall { id: id.clone(), strip, tool, asked: None, running: None });
        calls.len() - 1
    }

    fn call_started(&mut self, agent: Option<&AgentId>, id: &CallId, tool: &str, title: &str) {
        let row = self.row(agent);
        self.working(row);
        let place = self.call(row, id, tool);
        self.end_question(row, place, self.now, None);
        let facts = vec![("call", text(&id.0)), ("title", text(title))];
        let state = &mut self.rows[row];
        state.calls[place].running = Some((self.now, facts));
        state.tools += 1;
        state.moved = self.now;
    }

    fn call_refused(&mut self, agent: Option<&AgentId>, id: &CallId, tool: &str, reason: &str) {
        let row = self.row(agent);
        self.working(row);
        if let Some(place) = self.rows[row].calls.iter().position(|call| call.id == *id) {
            self.end_question(row, place, self.now, None);
        }
        self.rows[row].moved = self.now;
        let facts = vec![("tool", text(tool)), ("call", text(&id.0)), ("reason", text(reason))];
        self.instant(row, "refused", facts);
    }

    fn call_ended(&mut self, agent: Option<&AgentId>, id: &CallId, tool: &str, output: &ToolOutput) {
        let row = self.row(agent);
        if self.rows[row].run.is_none() {
            // The next process gives cut-off calls a result before their agent continues.
            return self.instant(
                row,
                "closed",
                vec![("call", text(&id.0)), ("is_error", json!(output.is_error))],
            );
        }
        self.working(row);
        let now = self.now;
        // The result that a fork begins with is not a call.
        let is_entry = self.rows[row].entry.as_ref() == Some(id) && agent.is_some();
        self.rows[row].moved = now;
        let mut strip = None;
        if !is_entry {
            let place = self.call(row, id, tool);
            let call = &mut self.rows[row].calls[place];
            strip = Some(call.strip);
            let (_, facts) = call.running.get_or_insert_with(|| (now, vec![("call", text(&id.0))]));
            facts.push(("is_error", json!(output.is_error)));
            self.end_call(row, place, now, false);
        }
        let from = strip.map_or(now, |strip| self.strips[strip].from);
        let end = ArrowEnd { row, strip, at: inside(from, now) };
        for effect in &output.effects {
            if let ToolEffect::Delivered { delivery } = effect {
                self.told(delivery, end);
            }
        }
    }

    fn asked(
        &mut self,
        agent: Option<&AgentId>,
        question: QuestionId,
        id: &CallId,
        tool: &str,
        facts: SpanFacts,
    ) {
        let row = self.row(agent);
        self.working(row);
        let place = self.call(row, id, tool);
        self.rows[row].calls[place].asked = Some((self.now, facts));
        self.rows[row].moved = self.now;
        self.questions.insert(question, (row, id.clone()));
    }

    fn answered(&mut self, question: QuestionId, by: &str) {
        let Some((row, id)) = self.questions.remove(&question) else { return };
        if let Some(place) = self.rows[row].calls.iter().position(|call| call.id == id) {
            self.end_question(row, place, self.now, Some(by));
            self.rows[row].moved = self.now;
        }
    }

    /// Ends the question about a call, if one is open.
    fn end_question(&mut self, row: usize, place: usize, at: u64, by: Option<&str>) {
        let call = &mut self.rows[row].calls[place];
        let Some((from, mut facts)) = call.asked.take() else { return };
        if let Some(by) = by {
            facts.push(("by", text(by)));
        }
        let strip = call.strip;
        let name = format!("permission: {}", call.tool);
        let open = OpenSpan { from, to: at, name, facts };
        self.strip_span(strip, SpanKind::Permission, open, by.is_none());
    }

    fn end_call(&mut self, row: usize, place: usize, at: u64, unfinished: bool) {
        self.end_question(row, place, at, None);
        let call = self.rows[row].calls.swap_remove(place);
        if let Some((from, facts)) = call.running {
            let open = OpenSpan { from, to: at, name: call.tool, facts };
            self.strip_span(call.strip, SpanKind::Tool, open, unfinished);
        }
        let strip = &mut self.strips[call.strip];
        strip.to = at.max(strip.from);
        if let Some(turn) = &mut self.rows[row].turn {
            turn.to = turn.to.max(at);
        }
    }

    /// Ends every call of an agent that has no end on record.
    fn end_calls(&mut self, row: usize, at: u64) {
        while !self.rows[row].calls.is_empty() {
            self.end_call(row, 0, at, true);
        }
    }

    fn strip_span(&mut self, strip: usize, kind: SpanKind, open: OpenSpan, unfinished: bool) {
        let row = self.strips[strip].row;
        self.strips[strip].spans.push(self.spans.len());
        self.span(row, kind, open, unfinished);
    }

    // Tasks.

    fn task_opened(&mut self, record: &TaskRecord) {
        let parent = self.row(record.parent.as_ref());
        let calls = &self.rows[parent].calls;
        let by = record.call.as_ref().and_then(|id| calls.iter().find(|call| call.id == *id));
        let from = by.map(|call| ArrowEnd { row: parent, strip: Some(call.strip), at: self.now });
        if record.kind == TaskKind::LocalBash {
            return self.shell_opened(record, parent, from);
        }
        let Ok(agent) = record.task.as_str().parse::<AgentId>() else { return };
        let is_new = !self.places.contains_key(&Some(agent.clone()));
        let row = self.row(Some(&agent));
        let task = one_line(&record.description);
        let state = &mut self.rows[row];
        if is_new || state.description.is_empty() {
            state.description.clone_from(&task);
            state.parent = record.began_by().cloned();
        }
        if let Some(kind) = &record.agent_type {
            state.kind = one_line(kind);
        }
        state.task = task;
        state.attention = Some(record.attention);
        state.entry.clone_from(&record.call);
        if let Some(from) = from {
            state.spawn = Some(self.flows.len());
            self.flows.push(Arrow { kind: FlowKind::Spawn, from, to: None, reader: Some(agent) });
        }
    }

    fn shell_opened(&mut self, record: &TaskRecord, row: usize, from: Option<ArrowEnd>) {
        let facts = vec![("task", text(record.task.as_str())), ("command", text(&record.prompt))];
        let name = one_line(if record.description.is_empty() { &record.prompt } else { &record.description });
        self.strips.push(Strip {
            row,
            from: self.now,
            to: self.now,
            is_shell: true,
            shell: Some((name, facts)),
            spans: Vec::new(),
            track: 0,
        });
        let strip = self.strips.len() - 1;
        self.shells.insert(record.task.clone(), strip);
        if let Some(from) = from {
            let to = Some(ArrowEnd { row, strip: Some(strip), at: self.now });
            self.flows.push(Arrow { kind: FlowKind::Spawn, from, to, reader: None });
        }
    }

    fn task_changed(&mut self, task: &TaskId, state: &TaskState) {
        if let TaskState::Ended(outcome) = state {
            return self.shell_ended(task, self.now, Some(outcome));
        }
        let Ok(agent) = task.as_str().parse::<AgentId>() else { return };
        let Some(row) = self.places.get(&Some(agent)).copied() else { return };
        match state {
            TaskState::Queued { .. } if self.rows[row].run.is_some() => {
                self.rows[row].queued.get_or_insert(self.now);
                self.rows[row].moved = self.now;
            }
            TaskState::Running { .. } => self.end_queue(row, self.now, false),
            _ => {}
        }
    }

    fn end_queue(&mut self, row: usize, at: u64, unfinished: bool) {
        if let Some(from) = self.rows[row].queued.take() {
            self.rows[row].moved = at;
            let open = OpenSpan { from, to: at, name: "queue".to_owned(), facts: SpanFacts::new() };
            self.span(row, SpanKind::Queue, open, unfinished);
        }
    }

    /// A command is over; without an outcome, its result is unknown.
    fn shell_ended(&mut self, task: &TaskId, at: u64, outcome: Option<&Outcome>) {
        let Some(strip) = self.shells.remove(task) else { return };
        let Some((name, mut facts)) = self.strips[strip].shell.take() else { return };
        if let Some(outcome) = outcome {
            facts.push(("outcome", json!(outcome.word())));
        }
        let (row, from) = (self.strips[strip].row, self.strips[strip].from);
        self.strips[strip].to = at;
        self.strip_span(strip, SpanKind::Shell, OpenSpan { from, to: at, name, facts }, outcome.is_none());
        if outcome.is_some() {
            let id = EndingId { task: task.clone(), run: None };
            let end = ArrowEnd { row, strip: Some(strip), at: inside(from, at) };
            self.ended(id, end, self.rows[row].agent.clone());
        }
    }

    /// Something ended, and an agent is to be notified.
    fn ended(&mut self, id: EndingId, from: ArrowEnd, reader: Option<AgentId>) {
        self.untold.insert(id, self.flows.len());
        self.flows.push(Arrow { kind: FlowKind::Report, from, to: None, reader });
    }

    fn told(&mut self, delivery: &Delivery, end: ArrowEnd) {
        if let Delivery::Ending(id) = delivery
            && let Some(arrow) = self.untold.remove(id)
        {
            self.flows[arrow].to = Some(end);
        }
    }
}

/// A moment inside of a stretch that ends at this one, so that a reader finds the stretch there.
fn inside(from: u64, to: u64) -> u64 {
    to.saturating_sub(1).max(from).min(to)
}
