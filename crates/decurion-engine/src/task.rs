//! The task table: every agent and every shell that outlives its call, where it stands, and what is still to
//! be told of it. Takes events, live and from the record alike, refuses steps that a state does not have,
//! and lets anyone watch a state without asking.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use decurion_protocol::task::IllegalStep;
use decurion_protocol::{
    AgentId, Attention, CallId, Charge, Delivery, EndingId, Envelope, Event, Mail, Outcome, ReleaseStep,
    RunId, RunSpec, ShellLine, TaskId, TaskKind, TaskProgress, TaskRecord, TaskState, TaskStep, ToolEffect,
    Totals, Worktree,
};
use decurion_tools::Printed;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::budget::Amount;

/// What is noted of a checkout that is gone because nothing was left in it.
pub const REMOVED: &str = "removed, unchanged";

/// Who stops a turn and all that it waits for.
pub const BY_INTERRUPT: &str = "an interrupt";
/// The same by a "no" that wants the turn to end.
pub const BY_ANSWER: &str = "the answer to a question";
/// What stops all that still runs when the session closes.
pub const BY_END: &str = "the end of the session";

/// How a task ended: everything that is told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Which ending of which task.
    pub id: EndingId,
    pub outcome: Outcome,
    /// What it took, for an agent.
    pub totals: Option<Totals>,
    pub at: Timestamp,
    /// The checkout it left its work in, if it had one of its own and changed it.
    pub worktree: Option<KeptWorktree>,
}

/// A checkout in which an agent left its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptWorktree {
    pub worktree: Worktree,
    /// What is in it, in words.
    pub left: String,
}

/// What a watcher sees of a task.
#[derive(Clone, Debug)]
pub struct TaskView {
    pub state: TaskState,
    /// Its last ending, once there is one.
    pub ending: Option<Arc<Ending>>,
}

/// How a run stands: published by the run, read by everyone.
#[derive(Clone, Debug, Default)]
pub struct RunStatus {
    /// How far it has come.
    pub progress: TaskProgress,
    /// Whether its last word is said: what is left is to put that on record.
    pub ending: bool,
    /// The calls that were begun: what is under way when it is stopped.
    pub calls: HashSet<CallId>,
    /// Commands that were stopped before their calls could tell what they had printed.
    pub cut_off: HashMap<CallId, Arc<Printed>>,
}

#[derive(Debug)]
pub struct Row {
    /// What is known from its beginning; of the last one, for an agent that was taken up again.
    pub record: TaskRecord,
    pub opened: Timestamp,
    /// The record that began its work, for an agent that was taken up again its last piece of it.
    since: u64,
    /// Whether that was in a part of the root's conversation that is no part of it any more: nobody is told how it ends.
    pub dropped: bool,
    /// Whether whoever is to hear of its end was stopped with it, by the same stop.
    pub with_hearer: bool,
    /// Watched by whoever waits for it.
    pub view: watch::Sender<TaskView>,
    /// What was decided for its last run.
    pub spec: Option<Arc<RunSpec>>,
    /// How its last run stands.
    pub status: watch::Receiver<RunStatus>,
    /// What its parent was last told of that: tools and tokens.
    pub told: (u32, u64),
    /// What it has used by the record.
    pub used: Used,
}

/// What an agent has used, as far as the record of a process that is gone tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    /// Tokens and money, in all its runs.
    amount: Amount,
    /// What a request that is under way is charged as if its process dies.
    under_way: Option<Box<Charge>>,
    /// Turns since its last ending.
    pub turns: u32,
    /// Time since its last ending, in runs that did not end.
    time: Duration,
    /// When its last run began, and when it was last heard of.
    run: Option<(Timestamp, Timestamp)>,
}

impl Used {
    /// Takes in one event of the agent's own.
    fn apply(&mut self, envelope: &Envelope) {
        let at = envelope.at;
        match &envelope.event {
            // What is decided about it is not its work.
            Event::TaskChanged { .. } => return,
            Event::RunStarted { .. } => {
                self.time = self.time();
                self.run = Some((at, at));
            }
            Event::Message { meta, .. } => {
                if let Some(usage) = &meta.usage {
                    let money = meta.cost.unwrap_or_default();
                    self.amount.add(Amount { tokens: usage.context_tokens(), money });
                    self.turns += 1;
                    self.under_way = None;
                }
            }
            Event::Reserved { charge } => self.under_way.clone_from(charge),
            Event::Charged { charge } => {
                self.amount.add(amount(charge));
                self.under_way = None;
            }
            Event::RunEnded { .. } => self.under_way = None,
            _ => {}
        }
        if let Some((_, last)) = &mut self.run {
            *last = at;
        }
    }

    /// Tokens and money, a request that was under way as the most it can have used.
    fn spent(&self) -> Amount {
        let mut spent = self.amount;
        spent.add(self.under_way.as_deref().map(amount).unwrap_or_default());
        spent
    }

    /// Time since its last ending, without that in which no process was there.
    pub fn time(&self) -> Duration {
        // A clock that was set back in between has lost the time; it must not count as much as was set back.
        let run = self.run.map(|(began, last)| Duration::try_from(last.duration_since(began)));
        self.time + run.and_then(Result::ok).unwrap_or_default()
    }
}

/// What something was charged as.
fn amount(charge: &Charge) -> Amount {
    Amount { tokens: charge.usage.context_tokens(), money: charge.cost.unwrap_or_default() }
}

/// All tasks of a session, and what is still to be told. Owned by the session's task.
#[derive(Debug, Default)]
pub struct TaskTable {
    /// What the root has used by the record.
    root: Used,
    rows: BTreeMap<TaskId, Row>,
    /// What each agent has not been told yet, in the order it happened; none is the root.
    outbox: BTreeMap<Option<AgentId>, VecDeque<Delivery>>,
    /// Endings that nobody was told of yet, each with the record it belongs to: a task may be taken up again
    /// before its last ending is told.
    endings: BTreeMap<EndingId, (TaskRecord, Arc<Ending>)>,
    /// Messages that were not delivered yet, by the number of their record.
    mail: BTreeMap<u64, Mail>,
    /// Commands of a person that run, by the record, and those that ended and were not told of.
    typed: BTreeMap<CallId, ShellLine>,
    shells: BTreeMap<CallId, ShellLine>,
    /// What was delivered while it was still on its way here.
    early: BTreeSet<Delivery>,
    total: u32,
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// There is no such task.
    #[error("no task with this id: {0}")]
    Unknown(TaskId),
    /// Its state does not have this step.
    #[error(transparent)]
    Illegal(#[from] IllegalStep),
}

impl TaskTable {
    /// Takes one event in; those that are about no task change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        match envelope.agent.clone() {
            Some(agent) => {
                if let Some(row) = self.rows.get_mut(&agent.into()) {
                    row.used.apply(envelope);
                }
            }
            // What stands before its first run was used by another session or program.
            None if self.root.run.is_some() || matches!(envelope.event, Event::RunStarted { .. }) => {
                self.root.apply(envelope);
            }
            None => {}
        }
        match &envelope.event {
            Event::TaskOpened { record } => self.begin((**record).clone(), envelope.at, envelope.seq),
            Event::Branched { through, .. } => self.drop_after(*through),
            Event::RunStarted { spec } => {
                if let Some(row) = spec.agent.clone().and_then(|agent| self.rows.get_mut(&agent.into())) {
                    row.spec = Some(Arc::new((**spec).clone()));
                }
            }
            Event::Rebudgeted { task, limits } => {
                let row = self.rows.get_mut(task);
                if let Some(spec) = row.and_then(|row| row.spec.as_mut()) {
                    Arc::make_mut(spec).limits = limits.clone();
                }
            }
            Event::TaskChanged { task, state } => self.changed(task, state.clone(), envelope.at),
            Event::RunEnded { outcome, totals } => {
                if let Some(agent) = &envelope.agent {
                    let id = EndingId { task: agent.clone().into(), run: Some(envelope.run) };
                    let totals = Some((**totals).clone());
                    self.end(Ending {
                        id,
                        outcome: outcome.clone(),
                        totals,
                        at: envelope.at,
                        worktree: None,
                    });
                }
            }
            Event::Released { steps } => {
                let kept = steps.iter().find(|step| step.step == ReleaseStep::Worktree);
                let left = kept.and_then(|step| step.note.clone()).filter(|note| note != REMOVED);
                if let (Some(agent), Some(left)) = (&envelope.agent, left) {
                    self.keep_worktree(
                        &EndingId { task: agent.clone().into(), run: Some(envelope.run) },
                        left,
                    );
                }
            }
            Event::ShellBegun { shell } => drop(self.typed.insert(shell.call.clone(), (**shell).clone())),
            Event::ShellEnded { shell } => {
                self.typed.remove(&shell.call);
                self.shells.insert(shell.call.clone(), (**shell).clone());
                self.put(None, Delivery::Shell(shell.call.clone()));
            }
            Event::Mailed { mail } => self.post(envelope.seq, (**mail).clone()),
            Event::Message { meta, .. } => meta.delivers.iter().for_each(|delivery| self.deliver(delivery)),
            Event::CallEnded { output, .. } => {
                for effect in &output.effects {
                    if let ToolEffect::Delivered { delivery } = effect {
                        self.deliver(delivery);
                    }
                }
            }
            _ => {}
        }
    }

    /// Registers a task, pending. One that is known is taken up again, as a resume does.
    pub fn open(&mut self, record: TaskRecord, at: Timestamp) {
        self.begin(record, at, 0);
    }

    fn begin(&mut self, record: TaskRecord, at: Timestamp, since: u64) {
        let view = TaskView { state: TaskState::Pending, ending: None };
        if let Some(row) = self.rows.get_mut(&record.task) {
            // One that was left alive by a process that is gone goes on with the same work.
            if row.state().is_ended() {
                (row.since, row.dropped) = (since, false);
            }
            (row.record, row.opened, row.with_hearer) = (record, at, false);
            row.view.send_replace(view);
            return;
        }
        self.total += 1;
        let row = Row {
            view: watch::Sender::new(view),
            opened: at,
            since,
            dropped: false,
            with_hearer: false,
            spec: None,
            status: watch::Sender::default().subscribe(),
            told: (0, 0),
            used: Used::default(),
            record: record.clone(),
        };
        self.rows.insert(record.task, row);
    }

    /// Shows what a task used by its ending, where no run in this process says more.
    pub fn count_endings(&mut self) {
        for row in self.rows.values_mut() {
            let ending = row.view.borrow().ending.clone();
            if let Some(totals) = ending.as_ref().and_then(|ending| ending.totals.as_ref()) {
                let progress = TaskProgress {
                    tools: totals.tool_uses,
                    tokens: totals.context_tokens,
                    duration_ms: totals.duration_ms,
                    ..TaskProgress::default()
                };
                let status = RunStatus { progress, ..RunStatus::default() };
                row.status = watch::Sender::new(status).subscribe();
            }
        }
    }

    /// The root's conversation goes on from this record: whatever it began after it, and all below that, is told to
    /// nobody any more. What an agent that goes on began itself is its own.
    fn drop_after(&mut self, through: u64) {
        let begun = self.children(None).filter(|row| row.since > through).map(|row| row.record.task.clone());
        let dropped: BTreeSet<TaskId> = begun.flat_map(|task| self.subtree(&task)).collect();
        for (_, row) in self.rows.iter_mut().filter(|(task, _)| dropped.contains(task)) {
            row.dropped = true;
        }
        self.endings.retain(|id, _| !dropped.contains(&id.task));
        let from = |mail: &Mail| {
            mail.to.is_none() && mail.from.clone().is_some_and(|agent| dropped.contains(&agent.into()))
        };
        self.mail.retain(|_, mail| !from(mail));
        let (endings, mail) = (&self.endings, &self.mail);
        for waiting in self.outbox.values_mut() {
            waiting.retain(|delivery| match delivery {
                Delivery::Ending(id) => endings.contains_key(id),
                Delivery::Mail(number) => mail.contains_key(number),
                Delivery::Shell(_) => true,
            });
        }
    }

    /// Takes a step and gives the state it led to.
    pub fn step(&mut self, task: &TaskId, step: TaskStep) -> Result<TaskState, StepError> {
        let row = self.rows.get_mut(task).ok_or_else(|| StepError::Unknown(task.clone()))?;
        let next = row.view.borrow().state.clone().step(step)?;
        row.attend(&next);
        row.view.send_modify(|view| view.state = next.clone());
        Ok(next)
    }

    /// Ends a task; its ending is now to be told. One that ended stays as it is.
    pub fn end(&mut self, ending: Ending) {
        let Some(row) = self.rows.get_mut(&ending.id.task) else { return };
        if row.view.borrow().state.is_ended() {
            return;
        }
        row.used = Used { amount: row.used.spent(), ..Used::default() };
        // A process that is gone has left nothing but these words.
        let whole_turn = |by: &str| [BY_INTERRUPT, BY_ANSWER].contains(&by);
        row.with_hearer |= matches!(&ending.outcome, Outcome::Killed { by } if whole_turn(by));
        let delivery = Delivery::Ending(ending.id.clone());
        let (to, ending, dropped) = (row.record.parent.clone(), Arc::new(ending), row.dropped);
        if !dropped {
            self.endings.insert(ending.id.clone(), (row.record.clone(), Arc::clone(&ending)));
        }
        row.view.send_modify(|view| {
            view.state = TaskState::Ended(ending.outcome.clone());
            view.ending = Some(ending);
        });
        if !dropped {
            self.put(to, delivery);
        }
    }

    /// Whether a task's ending is still to be told and says nothing of a checkout.
    pub fn lacks_worktree(&self, task: &TaskId) -> bool {
        let ending = self.rows.get(task).and_then(|row| row.view.borrow().ending.clone());
        ending.is_some_and(|ending| ending.worktree.is_none() && self.endings.contains_key(&ending.id))
    }

    /// An agent's ending is also that it left work in a checkout of its own.
    fn keep_worktree(&mut self, id: &EndingId, left: String) {
        let Some(row) = self.rows.get_mut(&id.task) else { return };
        let Some(worktree) = row.spec.as_ref().and_then(|spec| spec.worktree.as_deref().cloned()) else {
            return;
        };
        // One that could not be taken up again ended without a run.
        let of_run = |ending: &Arc<Ending>| ending.id == *id || ending.id.run.is_none();
        let Some(ending) = row.view.borrow().ending.clone().filter(of_run) else { return };
        let worktree = Some(KeptWorktree { worktree, left });
        let ending = Arc::new(Ending { worktree, ..(*ending).clone() });
        if let Some((_, told)) = self.endings.get_mut(&ending.id) {
            *told = Arc::clone(&ending);
        }
        row.view.send_modify(|view| view.ending = Some(ending));
    }

    fn changed(&mut self, task: &TaskId, state: TaskState, at: Timestamp) {
        if let TaskState::Ended(outcome) = state {
            let id = EndingId { task: task.clone(), run: None };
            self.end(Ending { id, outcome, totals: None, at, worktree: None });
        } else if let Some(row) = self.rows.get_mut(task).filter(|row| !row.state().is_ended()) {
            row.attend(&state);
            if row.state().is_held() && matches!(state, TaskState::Running { .. }) {
                // It waited for a place or was held until now; that is not its own time.
                row.used.time = row.used.time();
                row.used.run = Some((at, at));
            }
            row.view.send_modify(|view| view.state = state);
        }
    }

    fn post(&mut self, number: u64, mail: Mail) {
        let to = mail.to.clone();
        self.mail.insert(number, mail);
        self.put(to, Delivery::Mail(number));
    }

    fn put(&mut self, to: Option<AgentId>, delivery: Delivery) {
        if !self.early.remove(&delivery) {
            self.outbox.entry(to).or_default().push_back(delivery);
        }
    }

    /// Takes note that something was told. It may be told before it arrives here, by a call that waited.
    pub fn deliver(&mut self, delivery: &Delivery) {
        self.take(delivery);
        let known = match delivery {
            Delivery::Ending(id) => self.endings.remove(id).is_some() || self.ending(id).is_some(),
            Delivery::Mail(number) => {
                self.mail.remove(number);
                true
            }
            Delivery::Shell(call) => {
                self.shells.remove(call);
                true
            }
        };
        if !known {
            self.early.insert(delivery.clone());
        }
    }

    /// Whether whoever began a task knows that it ended.
    pub fn is_told(&self, row: &Row) -> bool {
        row.view.borrow().ending.as_ref().is_some_and(|ending| !self.endings.contains_key(&ending.id))
    }

    /// An ending that was not told yet, with the record it belongs to.
    pub fn untold(&self, id: &EndingId) -> Option<(&TaskRecord, &Ending)> {
        self.endings.get(id).map(|(record, ending)| (record, &**ending))
    }

    /// Takes something out that will be told by a waiting call; whether it was there.
    pub fn take(&mut self, delivery: &Delivery) -> bool {
        for waiting in self.outbox.values_mut() {
            if let Some(at) = waiting.iter().position(|candidate| candidate == delivery) {
                waiting.remove(at);
                return true;
            }
        }
        false
    }

    /// Whoever is to hear of a task's end is being stopped with it.
    pub fn stop_with_hearer(&mut self, task: &TaskId) {
        if let Some(row) = self.rows.get_mut(task) {
            row.with_hearer = true;
        }
    }

    /// Puts something back that a call was given and did not tell.
    pub fn put_back(&mut self, to: Option<AgentId>, delivery: Delivery) {
        self.outbox.entry(to).or_default().push_front(delivery);
    }

    /// Gives up on telling an agent of endings: it is over. What was said to it stays, in case it goes on.
    pub fn discard(&mut self, agent: &AgentId) -> Vec<Delivery> {
        let Some(waiting) = self.outbox.get_mut(&Some(agent.clone())) else { return Vec::new() };
        let (kept, given_up): (VecDeque<Delivery>, VecDeque<Delivery>) =
            std::mem::take(waiting).into_iter().partition(|one| matches!(one, Delivery::Mail(_)));
        *waiting = kept;
        given_up.into()
    }

    /// What an agent is to be told, in order.
    pub fn waiting(&self, agent: Option<&AgentId>) -> Vec<Delivery> {
        self.outbox.get(&agent.cloned()).map(|waiting| waiting.iter().cloned().collect()).unwrap_or_default()
    }

    /// Whether there is something to tell an agent.
    pub fn has_waiting(&self, agent: Option<&AgentId>) -> bool {
        self.outbox.get(&agent.cloned()).is_some_and(|waiting| !waiting.is_empty())
    }

    /// A command that a person ran and that was not told of.
    pub fn shell(&self, call: &CallId) -> Option<&ShellLine> {
        self.shells.get(call)
    }

    /// The commands of a person that have begun and not ended.
    pub fn typed(&self) -> Vec<ShellLine> {
        self.typed.values().cloned().collect()
    }

    /// A message by the number of its record.
    pub fn mail(&self, number: u64) -> Option<&Mail> {
        self.mail.get(&number)
    }

    /// One ending, if it is the task's last.
    pub fn ending(&self, id: &EndingId) -> Option<Arc<Ending>> {
        let row = self.rows.get(&id.task)?;
        row.view.borrow().ending.clone().filter(|ending| ending.id == *id)
    }

    pub fn row(&self, task: &TaskId) -> Option<&Row> {
        self.rows.get(task)
    }

    /// A task, to change it.
    pub fn row_mut(&mut self, task: &TaskId) -> Option<&mut Row> {
        self.rows.get_mut(task)
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// How many there ever were.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// A task and everything below it, itself first.
    pub fn subtree(&self, task: &TaskId) -> Vec<TaskId> {
        let mut found = vec![task.clone()];
        let mut at = 0;
        while at < found.len() {
            let children: Vec<TaskId> =
                self.children(Some(&found[at])).map(|row| row.record.task.clone()).collect();
            found.extend(children.into_iter().filter(|child| !found.contains(child)).collect::<Vec<_>>());
            at += 1;
        }
        found
    }

    /// What a task and everything below it has spent by the record; nothing for one that is new.
    pub fn spent(&self, task: &TaskId) -> Amount {
        let mut spent = Amount::default();
        if self.rows.contains_key(task) {
            let below = self.subtree(task);
            below.iter().filter_map(|task| self.rows.get(task)).for_each(|row| spent.add(row.used.spent()));
        }
        spent
    }

    /// What the root and all tasks have used by the record.
    pub fn spent_in_all(&self) -> Amount {
        let mut spent = self.root.spent();
        self.rows.values().for_each(|row| spent.add(row.used.spent()));
        spent
    }

    /// What was under way when the process died that wrote the record, and whose it was; none is the root.
    pub fn lost(&self) -> Vec<(Option<TaskId>, Charge)> {
        let root = std::iter::once((None, &self.root));
        let used = root.chain(self.rows.iter().map(|(task, row)| (Some(task.clone()), &row.used)));
        used.filter_map(|(task, used)| Some((task, used.under_way.as_deref()?.clone()))).collect()
    }

    /// The tasks an agent began; none is the root's.
    pub fn children(&self, parent: Option<&TaskId>) -> impl Iterator<Item = &Row> {
        let parent = parent.map(TaskId::as_str);
        self.rows.values().filter(move |row| row.record.parent.as_ref().map(AgentId::as_str) == parent)
    }

    /// Whether nothing is alive and nothing is left to tell anyone who could hear it.
    pub fn is_quiet(&self) -> bool {
        self.rows.values().all(|row| !row.is_alive()) && self.is_all_told()
    }

    /// Whether everyone who is not over was told all there is to tell.
    pub fn is_all_told(&self) -> bool {
        let is_over = |agent: &AgentId| {
            let row = self.rows.get(&TaskId::from(agent.clone()));
            row.is_some_and(|row| !row.is_alive())
        };
        // What a person ran is told with the next prompt, and nobody waits for that.
        let waits = |delivery: &Delivery| !matches!(delivery, Delivery::Shell(_));
        let heard = |whose: &Option<AgentId>, waiting: &VecDeque<Delivery>| {
            !waiting.iter().any(waits) || whose.as_ref().is_some_and(is_over)
        };
        self.outbox.iter().all(|(whose, waiting)| heard(whose, waiting))
    }
}

impl Row {
    /// Remembers that nobody waits for it any more, for when its state does not say.
    fn attend(&mut self, next: &TaskState) {
        if next.attention() == Some(Attention::Background) {
            self.record.attention = Attention::Background;
        }
    }

    pub fn state(&self) -> TaskState {
        self.view.borrow().state.clone()
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        !matches!(self.view.borrow().state, TaskState::Ended(_) | TaskState::Idle)
    }

    /// Whether its parent waits for it.
    pub fn is_foreground(&self) -> bool {
        match self.view.borrow().state.attention() {
            Some(attention) => attention == Attention::Foreground,
            None => self.record.attention == Attention::Foreground,
        }
    }

    /// Whether it is an agent.
    pub fn is_agent(&self) -> bool {
        self.record.kind != TaskKind::LocalBash
    }

    /// The agent it is.
    pub fn agent(&self) -> Option<AgentId> {
        if self.is_agent() { self.record.task.as_str().parse().ok() } else { None }
    }

    pub fn run(&self) -> Option<RunId> {
        self.spec.as_ref().map(|spec| spec.run)
    }

    /// How far it has come.
    pub fn progress(&self) -> TaskProgress {
        self.status.borrow().progress.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: &str, parent: Option<&str>, attention: Attention) -> TaskRecord {
        TaskRecord {
            task: task.parse().unwrap(),
            kind: if task.starts_with('b') { TaskKind::LocalBash } else { TaskKind::LocalAgent },
            description: "work".into(),
            prompt: "do it".into(),
            parent: parent.map(|parent| parent.parse().unwrap()),
            first_parent: None,
            call: None,
            agent_type: None,
            depth: 1,
            attention,
            output_file: "/tmp/x".into(),
        }
    }

    fn ending(task: &str) -> Ending {
        let id = EndingId { task: task.parse().unwrap(), run: None };
        Ending { id, outcome: Outcome::Lost, totals: None, at: Timestamp::UNIX_EPOCH, worktree: None }
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_agent_late() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let hour = 3_600;
        let forward = Used { run: Some((at(0), at(hour))), ..Used::default() };
        assert_eq!(forward.time(), Duration::from_secs(3_600));
        let back = Used { run: Some((at(25 * hour), at(hour))), ..Used::default() };
        assert_eq!(back.time(), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_watcher_is_released_by_the_background_step_and_the_task_goes_on() {
        let mut table = TaskTable::default();
        let task: TaskId = "b12345678".parse().unwrap();
        table.open(record("b12345678", None, Attention::Foreground), Timestamp::UNIX_EPOCH);
        let mut watcher = table.row(&task).unwrap().view.subscribe();
        table.step(&task, TaskStep::Start { attention: Attention::Foreground }).unwrap();
        let parted = |view: &TaskView| view.state.attention() == Some(Attention::Background);
        assert!(!parted(&watcher.borrow()));
        table.step(&task, TaskStep::Background).unwrap();
        assert!(parted(&watcher.wait_for(parted).await.unwrap()));
        assert!(!table.is_quiet());
        table.end(ending("b12345678"));
        assert!(matches!(table.step(&task, TaskStep::Wake), Err(StepError::Illegal(_))));
        assert!(!table.is_quiet(), "its ending was not told");
        table.deliver(&Delivery::Ending(ending("b12345678").id));
        assert!(table.is_quiet());
    }

    #[test]
    fn an_ending_is_told_once_whichever_comes_first() {
        let mut table = TaskTable::default();
        for task in ["b1", "b2"] {
            table.open(record(task, Some("a1"), Attention::Background), Timestamp::UNIX_EPOCH);
        }
        let parent: AgentId = "a1".parse().unwrap();
        let delivery = |task: &str| Delivery::Ending(ending(task).id);
        table.deliver(&delivery("b1"));
        table.end(ending("b1"));
        table.end(ending("b2"));
        table.end(ending("b2"));
        assert_eq!(table.waiting(Some(&parent)), [delivery("b2")]);
        table.deliver(&delivery("b2"));
        assert!(!table.has_waiting(Some(&parent)) && table.is_quiet());
    }

    #[test]
    fn an_ended_task_is_not_made_alive_by_a_late_step() {
        let mut table = TaskTable::default();
        table.open(record("b1", None, Attention::Foreground), Timestamp::UNIX_EPOCH);
        table.end(ending("b1"));
        let running = TaskState::Running { attention: Attention::Background };
        table.changed(&"b1".parse().unwrap(), running, Timestamp::UNIX_EPOCH);
        assert!(!table.row(&"b1".parse().unwrap()).unwrap().is_alive());
    }

    #[test]
    fn what_was_said_to_an_agent_that_is_over_waits_until_it_goes_on() {
        let mut table = TaskTable::default();
        let agent: AgentId = "a1".parse().unwrap();
        table.open(record("a1", None, Attention::Background), Timestamp::UNIX_EPOCH);
        table.open(record("b2", Some("a1"), Attention::Background), Timestamp::UNIX_EPOCH);
        table.post(7, Mail { from: None, to: Some(agent.clone()), text: "hurry".into() });
        table.end(ending("b2"));
        table.end(ending("a1"));
        assert_eq!(table.discard(&agent), [Delivery::Ending(ending("b2").id)]);
        assert_eq!(table.waiting(Some(&agent)), [Delivery::Mail(7)]);
        table.deliver(&Delivery::Ending(ending("a1").id));
        assert!(table.is_quiet(), "nobody is there to hear it");
    }

    fn envelope(at: i64, event: Event) -> Envelope {
        let agent = Some("a1".parse().unwrap());
        let at = Timestamp::from_second(at).unwrap();
        Envelope { seq: 1, at, agent, run: RunId(uuid::Uuid::nil()), event }
    }

    fn reply() -> Event {
        let usage = decurion_protocol::Usage { input_tokens: 10, ..Default::default() };
        let meta = decurion_protocol::MessageMeta { usage: Some(usage), ..Default::default() };
        let message = decurion_protocol::Message::assistant(Vec::new());
        Event::Message { message, lines: Vec::new(), parent: None, meta: Box::new(meta) }
    }

    #[test]
    fn what_an_agent_used_is_counted_from_its_prompt_to_its_ending() {
        let mut table = TaskTable::default();
        let task: TaskId = "a1".parse().unwrap();
        table.open(record("a1", None, Attention::Background), Timestamp::UNIX_EPOCH);
        let used = |table: &TaskTable| {
            let used = table.row(&task).unwrap().used.clone();
            (used.turns, used.time().as_secs(), used.amount.tokens)
        };
        let spec: RunSpec = serde_json::from_value(serde_json::json!({
            "run": uuid::Uuid::nil(), "session": uuid::Uuid::nil(), "agent": "a1", "depth": 1, "pattern": "named",
            "definition": {"name": "x", "description": "", "prompt": ""}, "head": "", "tools": [],
            "opening": {"opening": "fresh"}, "model": "m", "mode": "default", "cwd": "/", "directories": [],
            "limits": {}
        }))
        .unwrap();
        let started = || Event::RunStarted { spec: Box::new(spec.clone()) };
        let step = |state| Event::TaskChanged { task: task.clone(), state };
        table.apply(&envelope(0, started()));
        table.apply(&envelope(0, step(TaskState::Queued { attention: Attention::Background })));
        table.apply(&envelope(600, step(TaskState::Running { attention: Attention::Background })));
        table.apply(&envelope(603, reply()));
        assert_eq!(used(&table), (1, 3, 10), "waiting for a place is not its time");
        let paused =
            TaskState::Paused { reason: String::new(), until: None, attention: Attention::Background };
        table.apply(&envelope(603, step(paused)));
        table.apply(&envelope(604, reply()));
        table.apply(&envelope(700, step(TaskState::Running { attention: Attention::Background })));
        table.apply(&envelope(701, reply()));
        assert_eq!(used(&table), (3, 5, 30), "nor is it that someone holds it");
        // The process dies for a while; another goes on.
        table.apply(&envelope(900, started()));
        table.apply(&envelope(902, reply()));
        assert_eq!(used(&table), (4, 7, 40));
        table.end(ending("a1"));
        assert_eq!(used(&table), (0, 0, 40), "what it spent stays");
    }

    #[test]
    fn a_subtree_holds_everything_below() {
        let mut table = TaskTable::default();
        for (task, parent) in [("a1", None), ("a2", Some("a1")), ("b3", Some("a2")), ("a4", None)] {
            table.open(record(task, parent, Attention::Background), Timestamp::UNIX_EPOCH);
        }
        let names = |task: &str| -> Vec<String> {
            table.subtree(&task.parse().unwrap()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(names("a1"), ["a1", "a2", "b3"]);
        assert_eq!(names("a4"), ["a4"]);
    }
}
