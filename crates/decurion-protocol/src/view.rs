//! A session as a person sees it. Takes every event in order; gives the tree of agents and tasks, what each does or
//! waits for now, the open questions, and the total cost.
//!
//! A fold and nothing else: the same events give the same view, live or from the journal. Finished tasks cost a few
//! words; no text of a conversation is kept here.

use std::collections::HashMap;

use jiff::Timestamp;

use crate::{
    AgentId, Attention, CallId, Delta, Envelope, Event, Mode, Money, Origin, Outcome, Question, QuestionId,
    SessionInfo, TaskId, TaskKind, TaskRecord, TaskState, Todo, TodoStatus, Totals, Usage, WaitReason,
};

/// How many calls of one agent are remembered as under way: more than it ever has.
const MOST_CALLS: usize = 256;

/// How much text a token is, about: for a reply that is not counted yet.
const BYTES_PER_TOKEN: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct SessionView {
    /// Which, once it is open.
    pub info: Option<SessionInfo>,
    pub root: Worker,
    pub mode: Mode,
    /// What is asked of a person, the oldest first.
    pub questions: Vec<Question>,
    /// Whether anyone works, as the session reports it; false before its first report.
    pub at_work: bool,
    /// How many prompts wait for their turn.
    pub queued: u32,
    tasks: Vec<TaskView>,
    /// Where each task is in the list.
    places: HashMap<TaskId, usize>,
    /// The first task of each kind and description, and how many there are of it.
    alike: HashMap<(Option<String>, String), (usize, u32)>,
}

/// One task: an agent, a command, or work elsewhere.
#[derive(Clone, Debug)]
pub struct TaskView {
    /// What it began as.
    pub record: TaskRecord,
    pub state: TaskState,
    pub worker: Worker,
    /// Its number among tasks of the same kind and description; none while it is the only one.
    pub twin: Option<u32>,
}

/// What an agent does and has used.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// When it began to work.
    pub began: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    /// The model it has.
    pub model: Option<String>,
    /// The branch of its worktree.
    pub worktree: Option<String>,
    pub tools: u32,
    /// Tokens of its conversation.
    pub tokens: u64,
    /// What its runs and the run under way have cost.
    pub cost: Money,
    /// Whether that is the most it can have been: the provider did not say what a reply used.
    pub cost_is_bound: bool,
    /// What it waits for; none while it moves.
    pub waits: Option<WaitReason>,
    /// What it writes, while it does.
    pub writes: Option<Writing>,
    /// How many questions it has open.
    pub asks: usize,
    /// When it was last heard of: a piece of a reply, a call, a reason to wait.
    pub heard: Option<Timestamp>,
    /// Its list of steps, as it wrote it last.
    pub todos: Vec<Todo>,
    calls: Vec<(CallId, String)>,
    /// Tokens that the replies of this run consist of, by the provider's count.
    written: u64,
    /// Bytes of the reply that is coming.
    coming: usize,
    /// How many calls were seen to begin.
    started: u32,
    /// What its runs that are over have cost.
    settled: Money,
    /// Whether its last run came to its end.
    is_done: bool,
}

/// What a reply that is coming is made of now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    Thought,
    Text,
    /// The input of a call.
    Call,
}

/// The status of an agent in one word: what a person looks for first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Has a question that only a person can answer.
    Asks,
    Works,
    /// Waits for something that comes by itself.
    Waits,
    /// Paused by a person.
    Held,
    /// Has nothing to do, and can be woken.
    Rests,
    /// Is over, and well.
    Done,
    /// Stopped before it was done.
    Stopped,
    /// Is over, and not well.
    Failed,
}

impl Standing {
    /// The status after this outcome.
    pub fn after(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed { .. } => Self::Done,
            Outcome::Killed { .. } => Self::Stopped,
            _ => Self::Failed,
        }
    }
}

/// How many stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    pub working: usize,
    pub waiting: usize,
    pub asking: usize,
    pub over: usize,
}

impl SessionView {
    /// Takes the next event.
    pub fn take(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::SessionOpened { info } => self.info = Some((**info).clone()),
            Event::ModeChanged { .. } | Event::RightsChanged { .. } if envelope.agent.is_none() => {
                self.mode = envelope.event.mode().unwrap_or(self.mode);
            }
            Event::Quiet { quiet, queued } => (self.at_work, self.queued) = (!quiet, *queued),
            Event::Asked { question } => self.ask(question),
            Event::Answered { question, .. } => self.let_go(|open| open.id == *question),
            Event::TaskOpened { record } => self.open(record, envelope.at),
            Event::TaskChanged { task, state } => self.change(task, state, envelope.at),
            Event::TaskProgressed { task, progress } => {
                if let Some(view) = self.place(task) {
                    view.worker.tools = view.worker.tools.max(progress.tools);
                    view.worker.tokens = progress.tokens.max(view.worker.tokens);
                }
            }
            Event::RunStarted { spec } => {
                if spec.agent.is_none() {
                    self.mode = spec.mode;
                }
                self.began(envelope.agent.as_ref());
                self.work(envelope);
            }
            Event::RunEnded { outcome, .. } => {
                self.work(envelope);
                self.ended(envelope.agent.as_ref(), outcome);
                self.let_go(|open| open.agent == envelope.agent);
            }
            // A call that was asked about and runs was settled otherwise, by the answer to another question say.
            Event::CallStarted { call, .. } => {
                self.work(envelope);
                self.let_go(|open| open.agent == envelope.agent && open.call == *call);
            }
            // A call that is over without an answer, by an interrupt say, wants none any more.
            Event::CallEnded { call, .. } => {
                self.work(envelope);
                self.let_go(|open| open.agent == envelope.agent && open.call == *call);
            }
            _ => self.work(envelope),
        }
    }

    /// What concerns one worker alone.
    fn work(&mut self, envelope: &Envelope) {
        if let Some(worker) = self.worker(envelope.agent.as_ref()) {
            worker.take(&envelope.event, envelope.at);
        }
    }

    /// An agent starts a run. If its parent waits for it, only its runs are reported.
    fn began(&mut self, agent: Option<&AgentId>) {
        let view = agent.and_then(|agent| self.place(&TaskId::from(agent.clone())));
        if let Some(view) = view.filter(|view| view.state.attention().is_none()) {
            view.state = TaskState::Running { attention: view.record.attention };
        }
    }

    /// An agent has ended a run, and with it its task: no other event says so.
    fn ended(&mut self, agent: Option<&AgentId>, outcome: &Outcome) {
        let view = agent.and_then(|agent| self.place(&TaskId::from(agent.clone())));
        if let Some(view) = view {
            view.state = TaskState::Ended(outcome.clone());
        }
    }

    /// No agent works on the events so far: they are the record of a process that is gone. Work that continues is
    /// reported anew.
    pub fn settle(&mut self) {
        self.questions.clear();
        (self.at_work, self.queued) = (false, 0);
        let workers = self.tasks.iter_mut().map(|task| {
            if !task.state.is_ended() {
                task.state = TaskState::Idle;
            }
            &mut task.worker
        });
        for worker in workers.chain([&mut self.root]) {
            worker.asks = 0;
            if let (None, Some(began)) = (worker.ended, worker.began) {
                worker.end(began);
            }
        }
    }

    fn worker(&mut self, agent: Option<&AgentId>) -> Option<&mut Worker> {
        match agent {
            None => Some(&mut self.root),
            Some(agent) => self.place(&TaskId::from(agent.clone())).map(|view| &mut view.worker),
        }
    }

    fn place(&mut self, task: &TaskId) -> Option<&mut TaskView> {
        self.places.get(task).map(|at| &mut self.tasks[*at])
    }

    /// A question that is reported again is the same question.
    fn ask(&mut self, question: &Question) {
        if !self.questions.iter().any(|open| open.id == question.id) {
            self.questions.push(question.clone());
            if let Some(worker) = self.worker(question.agent.as_ref()) {
                worker.asks += 1;
            }
        }
    }

    /// Forgets questions that no longer need an answer.
    fn let_go(&mut self, mut is_moot: impl FnMut(&Question) -> bool) {
        if self.questions.is_empty() {
            return;
        }
        let (moot, open) = std::mem::take(&mut self.questions).into_iter().partition(|open| is_moot(open));
        self.questions = open;
        let moot: Vec<Question> = moot;
        for question in moot {
            if let Some(worker) = self.worker(question.agent.as_ref()) {
                worker.asks = worker.asks.saturating_sub(1);
            }
        }
    }

    /// An opened task runs, unless the same write says that it waits for a slot: its start is not an event.
    fn open(&mut self, record: &TaskRecord, at: Timestamp) {
        let began = Worker { began: Some(at), ..Worker::default() };
        let state = TaskState::Running { attention: record.attention };
        if let Some(view) = self.place(&record.task) {
            // It continues, perhaps with another parent.
            (view.record, view.state) = (record.clone(), state);
            (view.worker.began, view.worker.ended) = (Some(at), None);
            return;
        }
        let twin = self.twin_of(record);
        self.places.insert(record.task.clone(), self.tasks.len());
        self.tasks.push(TaskView { record: record.clone(), state, worker: began, twin });
    }

    /// The number of a new task among those that look like it. The first of them gets its own with the second.
    fn twin_of(&mut self, record: &TaskRecord) -> Option<u32> {
        let looks = (record.agent_type.clone(), record.description.clone());
        let (first, count) = self.alike.entry(looks).or_insert((self.tasks.len(), 0));
        *count += 1;
        if *count == 1 {
            return None;
        }
        self.tasks[*first].twin = Some(1);
        Some(*count)
    }

    fn change(&mut self, task: &TaskId, state: &TaskState, at: Timestamp) {
        let Some(view) = self.place(task) else { return };
        view.state = state.clone();
        if state.is_ended() {
            view.worker.end(at);
            self.let_go(|open| open.agent.clone().map(TaskId::from).as_ref() == Some(task));
        } else {
            view.worker.ended = None;
        }
    }

    /// All tasks, in the order in which they were begun.
    pub fn tasks(&self) -> &[TaskView] {
        &self.tasks
    }

    pub fn task(&self, task: &TaskId) -> Option<&TaskView> {
        self.places.get(task).map(|at| &self.tasks[*at])
    }

    /// The open question with this id.
    pub fn question(&self, id: QuestionId) -> Option<&Question> {
        self.questions.iter().find(|question| question.id == id)
    }

    /// How many tasks stand how.
    pub fn standings(&self) -> Standings {
        let mut counts = Standings::default();
        for task in &self.tasks {
            match task.standing() {
                Standing::Works => counts.working += 1,
                Standing::Waits | Standing::Held => counts.waiting += 1,
                Standing::Asks => counts.asking += 1,
                Standing::Done | Standing::Stopped | Standing::Failed => counts.over += 1,
                Standing::Rests => {}
            }
        }
        counts
    }

    /// Whether that is the most it can have been.
    pub fn cost_is_bound(&self) -> bool {
        self.root.cost_is_bound || self.tasks.iter().any(|task| task.worker.cost_is_bound)
    }

    /// What everybody has cost.
    pub fn cost(&self) -> Money {
        self.tasks.iter().fold(self.root.cost, |sum, task| sum.plus(task.worker.cost))
    }

    /// Whether the root waits for a task that could continue in the background.
    pub fn has_foreground(&self) -> bool {
        let is_waited_for = |task: &TaskView| task.state.attention() == Some(Attention::Foreground);
        self.tasks.iter().any(|task| task.record.parent.is_none() && is_waited_for(task))
    }

    /// Whether a task is not over and not at rest.
    pub fn has_work(&self) -> bool {
        self.tasks.iter().any(|task| task.state.attention().is_some())
    }

    /// Whether any agent works or asks, as far as the journal shows.
    pub fn is_working(&self) -> bool {
        self.root.is_running() || self.has_work() || !self.questions.is_empty()
    }

    /// Whether no agent works, no prompt waits and no question is open.
    pub fn is_over(&self) -> bool {
        // A run that is over is not enough, nor is one that has not begun: the next may be about to.
        !self.at_work && !self.has_work() && self.questions.is_empty() && self.queued == 0
    }

    /// The tasks that run in the background.
    pub fn background(&self) -> impl Iterator<Item = &TaskView> {
        self.tasks.iter().filter(|task| task.state.attention() == Some(Attention::Background))
    }

    /// The tree with those that are over behind all others.
    pub fn ordered(&self) -> Ordered<'_> {
        let mut ordered = Ordered::default();
        // The depths of those that a row stands below, with what they are in the whole tree.
        let mut above: Vec<usize> = Vec::new();
        for (depth, task) in self.rows() {
            if task.state.is_ended() {
                ordered.over.push(task);
                continue;
            }
            while above.last().is_some_and(|last| *last >= depth) {
                above.pop();
            }
            ordered.live.push((above.len(), task));
            above.push(depth);
        }
        let place = |task: &&TaskView| {
            let failed = task.standing() == Standing::Failed;
            (!failed, std::cmp::Reverse(task.worker.ended))
        };
        ordered.over.sort_by_key(place);
        ordered
    }

    /// The tree as rows: each task below the one that began it, in the order of their beginning, with its depth from 0.
    pub fn rows(&self) -> Vec<(usize, &TaskView)> {
        let mut children: HashMap<Option<&str>, Vec<usize>> = HashMap::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let parent = task.record.parent.as_ref();
            // One whose parent is not known stands at the top rather than nowhere.
            let known = parent.filter(|parent| self.places.contains_key(&TaskId::from((*parent).clone())));
            children.entry(known.map(AgentId::as_str)).or_default().push(at);
        }
        let mut rows = Vec::with_capacity(self.tasks.len());
        let mut shown = vec![false; self.tasks.len()];
        let mut open: Vec<(usize, usize)> = Vec::new();
        let push = |open: &mut Vec<(usize, usize)>, depth, parent: Option<&str>| {
            let below = children.get(&parent).map_or(&[][..], Vec::as_slice);
            open.extend(below.iter().rev().map(|at| (depth, *at)));
        };
        push(&mut open, 0, None);
        let mut rest = 0..self.tasks.len();
        loop {
            // A damaged record can make a task its own ancestor; it is shown without a parent.
            let next = open.pop().or_else(|| rest.find(|at| !shown[*at]).map(|at| (0, at)));
            let Some((depth, at)) = next else { break };
            if std::mem::replace(&mut shown[at], true) {
                continue;
            }
            let task = &self.tasks[at];
            rows.push((depth, task));
            push(&mut open, depth + 1, Some(task.record.task.as_str()));
        }
        rows
    }
}

/// The tree as a person looks through it: who still does something, and who does not any more.
#[derive(Clone, Debug, Default)]
pub struct Ordered<'a> {
    /// Tasks that are not over, each below the nearest of these that began it, with its depth from 0.
    pub live: Vec<(usize, &'a TaskView)>,
    /// Tasks that are over: those that failed first, and of each the last to end first.
    pub over: Vec<&'a TaskView>,
}

impl<'a> Ordered<'a> {
    /// All of them, as they stand one below the other.
    pub fn all(&self) -> impl Iterator<Item = &'a TaskView> + '_ {
        self.live.iter().map(|(_, task)| *task).chain(self.over.iter().copied())
    }
}

impl TaskView {
    /// Whether it is an agent.
    pub fn is_agent(&self) -> bool {
        self.record.kind != TaskKind::LocalBash
    }

    pub fn standing(&self) -> Standing {
        match &self.state {
            TaskState::Ended(outcome) => Standing::after(outcome),
            _ if self.worker.asks > 0 => Standing::Asks,
            TaskState::Paused { .. } => Standing::Held,
            TaskState::Pending | TaskState::Queued { .. } | TaskState::Waiting { .. } => Standing::Waits,
            TaskState::Running { .. } if self.worker.is_stuck() => Standing::Waits,
            TaskState::Running { .. } => Standing::Works,
            TaskState::Idle => Standing::Rests,
        }
    }
}

impl Worker {
    /// Whether it has begun to work and not ended.
    pub fn is_running(&self) -> bool {
        self.began.is_some() && self.ended.is_none()
    }

    fn take(&mut self, event: &Event, at: Timestamp) {
        if is_sign_of_life(event) {
            self.heard = Some(at);
        }
        match event {
            Event::RunStarted { spec } => {
                (self.began, self.ended, self.waits) = (Some(at), None, None);
                (self.written, self.coming) = (0, 0);
                // What a run without an end has cost stays.
                self.settled = self.cost;
                self.model = Some(spec.model.clone());
                self.worktree = spec.worktree.as_ref().map(|worktree| worktree.branch.clone());
            }
            Event::Relocated { worktree, .. } => {
                self.worktree = worktree.as_ref().map(|worktree| worktree.branch.clone());
            }
            Event::Message { meta, .. } => {
                if meta.origin == Origin::Prompt {
                    self.next_prompt();
                }
                (self.writes, self.coming) = (None, 0);
                self.charge(meta.cost, meta.usage.as_ref());
                self.written += meta.usage.as_ref().map_or(0, |usage| usage.output_tokens);
                if let Some(usage) = meta.usage.as_ref().filter(|usage| !usage.is_estimated()) {
                    self.tokens = usage.context_tokens();
                }
            }
            // The steps of what was gone back over are not to be done any more.
            Event::Branched { .. } => self.todos.clear(),
            Event::Charged { charge } => self.charge(charge.cost, Some(&charge.usage)),
            Event::CallStarted { call, intent, .. } => {
                // Told in two ways, of which either may be ahead.
                self.started += 1;
                self.tools = self.tools.max(self.started);
                self.waits = None;
                if self.calls.len() < MOST_CALLS {
                    self.calls.push((call.clone(), intent.title.clone()));
                }
            }
            Event::CallEnded { call, output, .. } => {
                self.calls.retain(|(open, _)| open != call);
                if let Some(todos) = output.todos() {
                    self.todos = todos;
                }
            }
            Event::Delta { delta } => self.write(delta),
            Event::Waiting { reason } => self.waits.clone_from(reason),
            Event::RunEnded { totals, outcome } => {
                self.is_done = matches!(outcome, Outcome::Completed { .. });
                self.end_run(totals, at);
            }
            _ => {}
        }
    }

    /// A person asks for something else: the steps of what is done are not those of that.
    fn next_prompt(&mut self) {
        let are_done = self.todos.iter().all(|todo| todo.status == TodoStatus::Completed);
        if std::mem::take(&mut self.is_done) || are_done {
            self.todos.clear();
        }
    }

    fn charge(&mut self, cost: Option<Money>, usage: Option<&Usage>) {
        let cost = cost.unwrap_or_default();
        self.cost = self.cost.plus(cost);
        self.cost_is_bound |= cost > Money::default() && usage.is_some_and(Usage::is_estimated);
    }

    fn write(&mut self, delta: &Delta) {
        let (writes, more) = match delta {
            Delta::Thinking { text, .. } => (Some(Writing::Thought), text.len()),
            Delta::Text { text, .. } => (Some(Writing::Text), text.len()),
            Delta::Input { json, .. } => (Some(Writing::Call), json.len()),
            Delta::Ended { .. } => (None, 0),
            Delta::Discarded { .. } => {
                self.coming = 0;
                (None, 0)
            }
            _ => return,
        };
        self.writes = writes;
        self.coming += more;
        self.waits = None;
    }

    /// Tokens that this run has written: counted by the provider, and estimated for the reply that is coming.
    pub fn written(&self) -> u64 {
        self.written + (self.coming / BYTES_PER_TOKEN) as u64
    }

    /// What this run has cost so far.
    pub fn run_cost(&self) -> Money {
        Money(self.cost.0.saturating_sub(self.settled.0))
    }

    /// The run's own sum is exact, where the replies told one by one may miss some.
    fn end_run(&mut self, totals: &Totals, at: Timestamp) {
        self.settled = self.settled.plus(totals.cost);
        self.cost = self.settled;
        self.tools = self.tools.max(totals.tool_uses);
        if totals.context_tokens > 0 {
            self.tokens = totals.context_tokens;
        }
        self.end(at);
    }

    fn end(&mut self, at: Timestamp) {
        self.ended = Some(at);
        (self.waits, self.writes) = (None, None);
        self.calls.clear();
    }

    /// Whether it waits for something other than its model's reply.
    fn is_stuck(&self) -> bool {
        self.waits.as_ref().is_some_and(|reason| *reason != WaitReason::Model)
    }

    /// The calls under way, as people read them, the oldest first.
    pub fn calls(&self) -> impl Iterator<Item = &str> {
        self.calls.iter().map(|(_, title)| title.as_str())
    }
}

/// Whether an event shows that a worker, its model or one of its tools is doing something.
fn is_sign_of_life(event: &Event) -> bool {
    matches!(
        event,
        Event::RunStarted { .. }
            | Event::Message { .. }
            | Event::Delta { .. }
            | Event::CallStarted { .. }
            | Event::CallProgress { .. }
            | Event::CallEnded { .. }
            | Event::Waiting { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A view that has taken these events: who, and what as JSON.
    fn view(events: &[(Option<&str>, serde_json::Value)]) -> SessionView {
        let mut view = SessionView::default();
        for (seq, (agent, event)) in events.iter().enumerate() {
            let event: Event = serde_json::from_value(event.clone()).unwrap();
            assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
            let at = format!("2026-01-01T00:00:{seq:02}Z").parse().unwrap();
            let (seq, agent) = (seq as u64, agent.map(|agent| agent.parse().unwrap()));
            view.take(&Envelope { seq, at, agent, run: crate::RunId(uuid::Uuid::nil()), event });
        }
        view
    }

    fn opened(task: &str, parent: Option<&str>, kind: &str) -> serde_json::Value {
        json!({"type": "task_opened", "record": {
            "task": task, "kind": kind, "description": format!("work of {task}"), "prompt": "p", "parent": parent,
            "depth": 1, "attention": "foreground", "output_file": "/x",
        }})
    }

    fn changed(task: &str, state: &serde_json::Value) -> serde_json::Value {
        json!({"type": "task_changed", "task": task, "state": state})
    }

    fn asked(number: u128, agent: Option<&str>) -> serde_json::Value {
        json!({"type": "asked", "question": {
            "id": uuid::Uuid::from_u128(number), "agent": agent, "call": "c", "tool": "Bash", "input": {},
            "intent": crate::Intent::titled("$ ls"), "reason": "r",
        }})
    }

    fn running() -> serde_json::Value {
        json!({"state": "running", "attention": "foreground"})
    }

    #[test]
    fn a_tree_is_shown_below_whoever_began_it() {
        let view = view(&[
            (None, opened("a1", None, "local_agent")),
            (None, opened("a2", None, "local_agent")),
            (None, opened("b3", Some("a1"), "local_bash")),
            (None, opened("a4", Some("a1"), "local_agent")),
            (None, opened("a5", Some("a4"), "local_agent")),
            (None, opened("a6", Some("nobody"), "local_agent")),
            (None, opened("a7", Some("a7"), "local_agent")),
        ]);
        let rows: Vec<String> =
            view.rows().iter().map(|(depth, task)| format!("{depth} {}", task.record.task)).collect();
        assert_eq!(rows, ["0 a1", "1 b3", "1 a4", "2 a5", "0 a2", "0 a6", "0 a7"]);
    }

    #[test]
    fn what_is_opened_runs_unless_it_waits_for_a_place() {
        let opened = (None, opened("a1", None, "local_agent"));
        assert!(view(std::slice::from_ref(&opened)).has_foreground());
        let queued = (None, changed("a1", &json!({"state": "queued", "attention": "foreground"})));
        let ended = (None, changed("a1", &json!({"state": "ended", "outcome": "lost"})));
        let standing = |events: &[_]| view(events).tasks()[0].standing();
        assert_eq!(standing(&[opened.clone(), queued]), Standing::Waits);
        assert_eq!(standing(&[opened.clone(), ended.clone()]), Standing::Failed);
        assert_eq!(standing(&[opened.clone(), ended, opened]), Standing::Works);
    }

    #[test]
    fn an_agent_ends_with_its_run_and_runs_again_with_the_next() {
        let totals = serde_json::to_value(Totals::default()).unwrap();
        let outcome = json!({"outcome": "completed", "report": "done"});
        let ended = json!({"type": "run_ended", "outcome": outcome, "totals": totals});
        let mut view = view(&[(None, opened("a1", None, "local_agent")), (Some("a1"), ended)]);
        assert_eq!((view.tasks()[0].standing(), view.has_work()), (Standing::Done, false));
        view.began(Some(&"a1".parse().unwrap()));
        assert_eq!((view.tasks()[0].standing(), view.has_work()), (Standing::Works, true));
        view.settle();
        assert_eq!((view.tasks()[0].standing(), view.has_work()), (Standing::Rests, false));
    }

    #[test]
    fn calls_that_are_told_twice_are_counted_once() {
        let started = |call: &str| {
            let intent = crate::Intent::titled("$ ls");
            let decision = json!({"decision": "allow", "rule": null, "reason": "r"});
            json!({"type": "call_started", "call": call, "tool": "Bash", "intent": intent, "decision": decision})
        };
        let told = |tools: u32| json!({"type": "task_progressed", "task": "a1", "progress": {"tools": tools, "tokens": 0, "duration_ms": 0, "activities": []}});
        let view = view(&[
            (None, opened("a1", None, "local_agent")),
            (None, told(1)),
            (Some("a1"), started("c1")),
            (Some("a1"), started("c2")),
            (None, told(2)),
        ]);
        assert_eq!(view.tasks()[0].worker.tools, 2);
    }

    #[test]
    fn where_everybody_stands_is_known() {
        let mut events = vec![
            (None, opened("a1", None, "local_agent")),
            (None, changed("a1", &running())),
            (None, opened("a2", None, "local_agent")),
            (None, changed("a2", &running())),
            (Some("a2"), asked(1, Some("a2"))),
            (Some("a2"), asked(1, Some("a2"))),
            (None, asked(2, None)),
            (None, opened("a3", None, "local_agent")),
            (None, changed("a3", &json!({"state": "ended", "outcome": "failed", "error": "e"}))),
        ];
        let counts = |working, waiting, asking, over| Standings { working, waiting, asking, over };
        let first = view(&events);
        assert_eq!(first.standings(), counts(1, 0, 1, 1));
        assert_eq!((first.questions.len(), first.root.asks), (2, 1));
        assert!(first.has_foreground());
        events.push((Some("a1"), json!({"type": "waiting", "reason": {"reason": "turn", "ahead": 3}})));
        events.push((
            None,
            json!({"type": "answered", "question": uuid::Uuid::from_u128(1), "by": "x",
                "answer": {"behavior": "deny", "message": "no"}}),
        ));
        assert_eq!(view(&events).standings(), counts(1, 1, 0, 1));
        // What a call asked for goes with it, and what an agent asked goes with that.
        let output = serde_json::to_value(crate::ToolOutput::text("interrupted")).unwrap();
        let mut ended_call = events.clone();
        ended_call.push((
            None,
            json!({"type": "call_ended", "call": "c", "tool": "Bash", "line": uuid::Uuid::nil(), "parent": null,
                "output": output, "duration_ms": 5}),
        ));
        assert_eq!(view(&ended_call).questions.len(), 0);
        events.push((Some("a2"), asked(3, Some("a2"))));
        events.push((None, changed("a2", &json!({"state": "ended", "outcome": "killed", "by": "you"}))));
        let last = view(&events);
        assert_eq!(last.standings(), counts(0, 1, 0, 2));
        assert_eq!(last.questions.len(), 1);
    }
}
