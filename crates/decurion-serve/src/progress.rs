//! Events as short lines for people. Takes envelopes, gives what a person who watches wants to know: what the agent
//! does, its results, what it waits for; and for each agent and background command its start, tools and end, indented
//! by its depth.

use std::collections::{HashMap, HashSet};

use decurion_protocol::visible::is_hidden;
use decurion_protocol::{
    AgentId, Attention, Block, CallId, Envelope, Event, Message, Outcome, Role, TaskId, TaskKind, TaskRecord,
    TaskState, ToolContent, ToolOutput, Totals, WaitReason,
};

/// How many lines of a result are shown.
const RESULT_LINES: usize = 4;
/// How much of a line is shown.
const LINE_WIDTH: usize = 110;
/// How much of a warning: what to do stands at its end.
const WARNING_WIDTH: usize = 400;

#[derive(Debug, Default)]
pub struct Teller {
    tasks: HashMap<TaskId, TaskRecord>,
    /// Those that wait for a place.
    queued: HashSet<TaskId>,
    /// The tries that were announced and have not begun, by agent; none is the root.
    tries: HashMap<Option<AgentId>, u32>,
    /// The calls of the root that have not ended, by their titles.
    calls: HashMap<CallId, String>,
    /// The call whose line was the last one.
    last: Option<CallId>,
}

impl Teller {
    /// The lines for one event, often none.
    pub fn lines(&mut self, envelope: &Envelope) -> Vec<String> {
        let lines = match (&envelope.event, &envelope.agent) {
            (Event::TaskOpened { record }, _) => self.opened(record).into_iter().collect(),
            (Event::TaskChanged { task, state }, _) => self.changed(task, state).into_iter().collect(),
            (event, Some(agent)) => self.of_agent(agent, event).into_iter().collect(),
            (Event::CallEnded { call, tool, output, .. }, None) => self.ended(call, tool, output),
            (event, None) => of_root(event),
        };
        match (&envelope.event, &envelope.agent) {
            (Event::CallStarted { call, intent, .. }, None) => {
                self.calls.insert(call.clone(), one_line(&intent.title));
                self.last = Some(call.clone());
            }
            _ if !lines.is_empty() => self.last = None,
            _ => {}
        }
        lines
    }

    /// The result of a call, with its name unless its own line is directly above.
    fn ended(&mut self, call: &CallId, tool: &str, output: &ToolOutput) -> Vec<String> {
        let title = self.calls.remove(call).filter(|_| self.last.as_ref() != Some(call));
        let mut lines = result(tool, output);
        if let (Some(title), false) = (title, lines.is_empty()) {
            lines.insert(0, format!("  │ {title}:"));
        }
        lines
    }

    /// What a person should not miss of an event where the lines above are not shown: one line, often none.
    pub fn warning(&mut self, envelope: &Envelope) -> Option<String> {
        let text = match &envelope.event {
            Event::TaskOpened { record } => {
                self.tasks.insert(record.task.clone(), (**record).clone());
                return None;
            }
            Event::Notice { level, text } if level == "warning" || level == "error" => text.clone(),
            // Once for each pause: without it, a full disk looks like a model that takes its time.
            Event::Waiting { reason: Some(WaitReason::Disk { error }) } => {
                format!("the session is paused and nothing is lost; trying again every 2 s: {error}")
            }
            Event::Waiting { reason } => self.retry(envelope.agent.as_ref(), reason.as_ref())?,
            _ => return None,
        };
        Some(format!("decurion: {}", cut_line(&text, WARNING_WIDTH)))
    }

    /// The wait before another try of a request, once for each try. The first try of one request that waits because
    /// the provider refused another is not announced: the other's is.
    fn retry(&mut self, agent: Option<&AgentId>, reason: Option<&WaitReason>) -> Option<String> {
        let Some(WaitReason::Retry { attempt: attempt @ 2.., of, delay_ms, error, .. }) = reason else {
            self.tries.remove(&agent.cloned());
            return None;
        };
        if self.tries.insert(agent.cloned(), *attempt) == Some(*attempt) {
            return None;
        }
        let record = agent.and_then(|agent| self.tasks.get(&agent.clone().into()));
        let who = record.map(|record| format!("{}: ", agent_type(record))).unwrap_or_default();
        Some(format!("{who}{}", next_try(*attempt, *of, *delay_ms, error)))
    }

    fn opened(&mut self, record: &TaskRecord) -> Option<String> {
        self.tasks.insert(record.task.clone(), record.clone());
        let is_shell = record.kind == TaskKind::LocalBash;
        is_shell.then(|| format!("{}▷ {}", indent(record.depth), name(record)))
    }

    fn changed(&mut self, task: &TaskId, state: &TaskState) -> Option<String> {
        let queued = self.queued.remove(task);
        let record = self.tasks.get(task)?;
        let how = match state {
            TaskState::Ended(outcome) => ending(outcome),
            TaskState::Queued { .. } => {
                let put_back = !self.queued.insert(task.clone()) || queued;
                if put_back { "continues in the background" } else { "waits until another has ended" }
                    .to_owned()
            }
            TaskState::Running { .. } if queued => "begins".to_owned(),
            TaskState::Running { attention: Attention::Background } => {
                "continues in the background".to_owned()
            }
            TaskState::Paused { reason, .. } => format!("paused: {}", one_line(reason)),
            _ => return None,
        };
        Some(format!("{}□ {} {how}", indent(record.depth), name(record)))
    }

    fn of_agent(&self, agent: &AgentId, event: &Event) -> Option<String> {
        let record = self.tasks.get(&agent.clone().into())?;
        let (indent, kind) = (indent(record.depth), agent_type(record));
        Some(match event {
            Event::RunStarted { .. } => {
                let where_to = if record.attention == Attention::Background { " (background)" } else { "" };
                format!("{indent}▶ {}{where_to}", name(record))
            }
            Event::CallStarted { intent, .. } => format!("{indent}● {kind}: {}", one_line(&intent.title)),
            Event::CallRefused { tool, decision, .. } => {
                format!("{indent}✗ {kind}: {tool} refused: {}", one_line(&decision.reason))
            }
            Event::Waiting { reason: Some(reason) } => format!("{indent}{kind}: {}", waiting(reason)?),
            Event::Compacted { .. } => format!("{indent}… {kind}: conversation shortened"),
            Event::RunEnded { outcome, totals } => {
                format!("{indent}■ {} {}{}", name(record), ending(outcome), took(totals))
            }
            _ => return None,
        })
    }
}

/// The lines for an event of the session's own agent.
fn of_root(event: &Event) -> Vec<String> {
    match event {
        Event::Message { message, .. } if message.role == Role::Assistant => said(message),
        Event::CallStarted { intent, .. } => vec![format!("● {}", one_line(&intent.title))],
        Event::CallRefused { tool, decision, .. } => {
            vec![format!("✗ {tool} refused: {}", one_line(&decision.reason))]
        }
        Event::Waiting { reason: Some(reason) } => waiting(reason).into_iter().collect(),
        Event::Compacted { tokens_before, .. } => {
            vec![format!("… conversation shortened (was about {tokens_before} tokens)")]
        }
        Event::Notice { text, .. } => vec![format!("! {}", one_line(text))],
        _ => Vec::new(),
    }
}

fn indent(depth: u32) -> String {
    // Deeper levels look the same, and a line must stay a line.
    "  ".repeat(depth.min(12) as usize)
}

fn agent_type(record: &TaskRecord) -> String {
    one_line(record.agent_type.as_deref().unwrap_or("agent"))
}

fn name(record: &TaskRecord) -> String {
    match record.kind {
        TaskKind::LocalBash => format!("background command: {}", one_line(&record.description)),
        TaskKind::LocalAgent | TaskKind::RemoteAgent => {
            format!("{}: {}", agent_type(record), one_line(&record.description))
        }
    }
}

fn ending(outcome: &Outcome) -> String {
    let why = match outcome {
        Outcome::Completed { limit, .. } => limit.as_ref().map(|limit| format!("at its limit of {limit}")),
        Outcome::Failed { error } => Some(one_line(error)),
        Outcome::Killed { by } => Some(format!("stopped by {}", one_line(by))),
        Outcome::Stalled { waiting_for } => Some(one_line(waiting_for)),
        Outcome::OutOfBudget { budget, .. } => Some(one_line(budget)),
        Outcome::Denied { reason, .. } => Some(one_line(reason)),
        Outcome::Lost => None,
    };
    let word = outcome.word().replace('_', " ");
    why.map_or_else(|| word.clone(), |why| format!("{word}: {why}"))
}

fn took(totals: &Totals) -> String {
    let uses = if totals.tool_uses == 1 { "use" } else { "uses" };
    format!(" ({} tool {uses}, {} tokens)", totals.tool_uses, totals.context_tokens)
}

fn said(message: &Message) -> Vec<String> {
    // The last text is the answer, which is printed by itself.
    let has_calls = message.calls().next().is_some();
    let text = message.text();
    if has_calls && !text.trim().is_empty() { vec![format!("  {}", one_line(&text))] } else { Vec::new() }
}

fn result(tool: &str, output: &ToolOutput) -> Vec<String> {
    let told = output.structured.as_ref();
    if told.is_some_and(|told| told["isAsync"] == true || told["backgroundTaskId"].is_string()) {
        return vec!["  │ running in the background".to_owned()];
    }
    let text = match &output.content {
        // What follows an agent's report is for its parent.
        ToolContent::Blocks(blocks) if tool == "Agent" => match blocks.first() {
            Some(Block::Text { text }) => text.clone(),
            _ => String::new(),
        },
        content => content.text(),
    };
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut lines: Vec<String> =
        all.iter().take(RESULT_LINES).map(|line| format!("  │ {}", one_line(line))).collect();
    if all.len() > RESULT_LINES {
        lines.push(format!("  │ … {} more lines", all.len() - RESULT_LINES));
    }
    lines
}

fn waiting(reason: &WaitReason) -> Option<String> {
    match reason {
        WaitReason::Retry { attempt, of, delay_ms, error, .. } => {
            Some(format!("… {}", next_try(*attempt, *of, *delay_ms, error)))
        }
        WaitReason::Turn { ahead } => Some(format!("… waiting for the provider, {ahead} before us")),
        WaitReason::Disk { error } => {
            Some(format!("… disk: session paused, nothing lost, trying again every 2 s ({error})"))
        }
        WaitReason::Compaction => Some("… shortening the conversation".to_owned()),
        WaitReason::Budget => Some("… waiting for budget that other requests have reserved".to_owned()),
        WaitReason::Model | WaitReason::Permission { .. } => None,
    }
}

fn next_try(attempt: u32, of: Option<u32>, delay_ms: u64, error: &str) -> String {
    let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
    let seconds = delay_ms.div_ceil(1000);
    format!("try {attempt}{of} in {seconds} s: {}", one_line(error))
}

/// Text made safe for a terminal and cut to a line: control characters never reach the screen.
pub fn one_line(text: &str) -> String {
    cut_line(text, LINE_WIDTH)
}

fn cut_line(text: &str, width: usize) -> String {
    let line: String = text
        .chars()
        .map(|character| if character == '\n' || character == '\t' { ' ' } else { character })
        .filter(|character| !is_hidden(*character))
        .take(width + 1)
        .collect();
    if line.chars().count() > width { line.chars().take(width).chain(['…']).collect() } else { line }
}

#[cfg(test)]
mod tests {
    use decurion_protocol::{AgentId, Envelope, Event, RunId, WaitReason};

    use super::{Teller, one_line};

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(one_line("a\u{1b}[31mb\u{7}\r\nc\u{9b}2J"), "a[31mb c2J");
    }

    fn waiting(teller: &mut Teller, agent: Option<&AgentId>, reason: Option<WaitReason>) -> Option<String> {
        let (run, event) = (RunId(Default::default()), Event::Waiting { reason });
        teller.warning(&Envelope { seq: 1, at: Default::default(), agent: agent.cloned(), run, event })
    }

    #[test]
    fn a_disk_that_refuses_is_a_warning_and_a_model_that_takes_its_time_is_not() {
        let teller = &mut Teller::default();
        let full = WaitReason::Disk { error: "no space left on device".to_owned() };
        let wanted = "decurion: the session is paused and nothing is lost; trying again every 2 s: no space left on device";
        assert_eq!(waiting(teller, None, Some(full)).as_deref(), Some(wanted));
        assert_eq!(waiting(teller, None, Some(WaitReason::Model)), None);
    }

    #[test]
    fn each_try_is_a_warning_once_for_each_agent() {
        let retry = |attempt, of: Option<u32>| {
            let (error, rate_limited) = ("busy".to_owned(), of.is_none());
            Some(WaitReason::Retry { attempt, of, delay_ms: 1_500, status: None, error, rate_limited })
        };
        let (teller, agent) = (&mut Teller::default(), "a0123456789abcdef".parse::<AgentId>().unwrap());
        let two = Some("decurion: try 2 of 5 in 2 s: busy".to_owned());
        assert_eq!(waiting(teller, None, retry(2, Some(5))), two);
        // The same wait, as the queue of the provider sees it.
        assert_eq!(waiting(teller, None, retry(2, None)), None);
        // Another request waits because of it, and has not failed.
        assert_eq!(waiting(teller, Some(&agent), retry(1, None)), None);
        assert_eq!(waiting(teller, Some(&agent), retry(2, Some(5))), two);
        assert_eq!(waiting(teller, None, None), None);
        let three = Some("decurion: try 3 of 5 in 2 s: busy".to_owned());
        assert_eq!(waiting(teller, None, retry(3, Some(5))), three);
        // The next request counts its own tries.
        assert_eq!(waiting(teller, None, None), None);
        assert_eq!(waiting(teller, None, retry(2, Some(5))), two);
    }
}
