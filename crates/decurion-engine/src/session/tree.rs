//! The tree of agents below a session's root. Wishes of runs come in; children are decided, begun, queued,
//! taken up again, told of each other and ended here, all by the session's one task.

mod begin;
mod deliver;
mod delivery_policy;
mod end;
mod pause;
mod plan;
pub mod prepare;
mod rebudget;
pub mod relocate;
pub mod requests;
mod revive;
mod shell_lines;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use decurion_model::{Head, WireHead};
use decurion_protocol::{
    AgentDefinition, AgentId, Attention, Delivery, Event, LineId, Mail, TaskId, TaskRecord,
};
use decurion_tools::ToolSet;
use tokio::sync::oneshot;

use crate::budget::AccountId;
use crate::child::ModeStep;
use crate::context::Context;
use crate::journal::Who;
use crate::permission::Grant;
use crate::ports::Model;
use crate::progress::Carried;
use crate::run_handle::{RunControl, RunHandle};
use crate::session::actor::SessionActor;
use crate::session::listing;
use crate::session::questions::Changing;
use crate::session::resources::Resources;
use crate::session::run_task::Said;
use crate::session_port::{BackgroundShell, Looked, MayEnd, Sent};
use crate::task::Row;

pub use begin::apart;
use requests::SessionRequest;

/// An agent that wants to end: its run, the last line of its conversation, and where the answer goes.
pub type WantsToEnd = (RunHandle, Option<LineId>, oneshot::Sender<MayEnd>);

/// An agent that is ready to begin.
pub struct Launch {
    control: RunControl,
    context: Context,
    /// What it hears first; put on record before it begins.
    said: Said,
    /// What an earlier run left.
    carried: Carried,
    resources: Resources,
    /// Whether its agent has not worked before.
    first: bool,
}

impl SessionActor {
    /// Does what a run asks for. A run that is gone hears no answer.
    pub async fn grant(&mut self, request: SessionRequest) {
        match request {
            SessionRequest::Ask(ask) => self.asked(*ask).await,
            SessionRequest::Permit(agent, updates, reply) => {
                let changed = self.change_rights(Changing::InPlaceOfAPerson(agent), updates).await;
                let _ = reply.send(changed.map(drop));
            }
            SessionRequest::Spawn(spawning, reply) => self.wanted(*spawning, reply).await,
            SessionRequest::Prepared(draft, resources, reply) => {
                self.was_prepared(*draft, resources, reply).await;
            }
            SessionRequest::Abandoned => self.was_abandoned().await,
            SessionRequest::EndBelow(agent, reply) => self.end_below(&agent, reply),
            SessionRequest::OpenShell(shell, reply) => drop(reply.send(self.open_background(shell).await)),
            SessionRequest::TypedEnded(shell) => self.typed_ended(shell).await,
            SessionRequest::ShellEnded(task, output) => self.shell_ended(&task, &output).await,
            SessionRequest::Deliver(run, leaf, reply) => drop(reply.send(self.tell(&run, leaf).await)),
            SessionRequest::MayEnd(run, leaf, reply) => self.wants_to_end(run, leaf, reply).await,
            SessionRequest::Ended(agent, ending, delivered) => {
                self.agent_ended(agent, *ending, &delivered).await;
            }
            SessionRequest::Halt(agent) => self.halt(agent),
            SessionRequest::Look(task, reply) => drop(reply.send(self.look(&task))),
            SessionRequest::UnderWay(reply) => drop(reply.send(listing::under_way(&self.tasks.table))),
            SessionRequest::Claim(delivery, reply) => drop(reply.send(self.claim(delivery))),
            SessionRequest::Stop(task, by, reply) => {
                let stopped = self.stop(&task, &by).ok_or_else(|| format!("No task found with ID: {task}"));
                let _ = reply.send(stopped);
            }
            SessionRequest::Relocate(relocation, reply) => self.relocate(relocation, reply),
            SessionRequest::Plan(planning, reply) => drop(reply.send(self.plan(planning).await)),
            SessionRequest::Relocating(step) => self.relocating(*step).await,
            SessionRequest::Mail(from, to, text, reply) => {
                let wakes = !self.is_at_work(&to);
                let sent = match self.check_notified(&from, wakes) {
                    Ok(()) => self.mail(from.who.agent.clone(), &to, text).await,
                    Err(reason) => Err(reason),
                };
                let _ = reply.send(sent);
            }
        }
    }

    /// Begins a command that no run waits for.
    async fn open_background(&mut self, shell: BackgroundShell) -> Result<TaskRecord, String> {
        let BackgroundShell { run, call, command, description, cancel } = shell;
        let record = self.shell_record(&run, call, command, description, Attention::Background);
        let opened = match self.check_notified(&run, true) {
            Ok(()) => self.open_shell(&run.who, record, cancel).await,
            Err(reason) => Err(reason),
        };
        if opened.is_err() {
            run.begun.fetch_sub(1, Ordering::Relaxed);
        }
        opened
    }

    /// Tells an agent something; one that has ended is taken up again for that.
    pub async fn mail(&mut self, from: Option<AgentId>, to: &AgentId, text: String) -> Result<Sent, String> {
        let unknown = || format!("No agent found with ID: {to}");
        let row =
            self.tasks.table.row(&to.clone().into()).filter(|row| row.is_agent()).ok_or_else(unknown)?;
        let alive = row.is_alive();
        if !alive {
            self.check_type(row.record.agent_type.as_deref().unwrap_or_default())?;
        }
        let (parent, above) = self.hearer(from.as_ref(), to);
        let mail = Box::new(Mail { from, to: Some(to.clone()), text });
        let who = self.core.who.clone();
        self.record(&who, Event::Mailed { mail }).await?;
        if alive {
            self.wake(Some(to)).await;
            return Ok(Sent::Delivered);
        }
        if self.go_on_for(to, parent).await {
            Ok(Sent::Resumed { tells_sender: above })
        } else {
            Err(format!("Agent {to} cannot be resumed."))
        }
    }

    /// Who hears of an agent that goes on because of what someone said, and whether that is the one who said it:
    /// whoever it works for, however far above; of what others ask, the nearest above that is at work.
    pub fn hearer(&self, from: Option<&AgentId>, to: &AgentId) -> (Option<AgentId>, bool) {
        let mut at = self.tasks.table.row(&to.clone().into()).and_then(|row| row.record.parent.clone());
        let mut nearest = None;
        // A record that was tampered with could lead in a circle.
        for _ in 0..=self.tasks.table.total() {
            let Some(above) = at else { break };
            if from == Some(&above) {
                return (Some(above), true);
            }
            if nearest.is_none() && self.is_at_work(&above) {
                nearest = Some(above.clone());
            }
            at = self.tasks.table.row(&above.into()).and_then(|row| row.record.parent.clone());
        }
        if from.is_none() { (None, true) } else { (nearest, false) }
    }

    /// Whether an agent has not ended.
    pub fn is_at_work(&self, agent: &AgentId) -> bool {
        self.tasks.table.row(&agent.clone().into()).is_some_and(Row::is_alive)
    }

    fn look(&self, task: &TaskId) -> Option<Looked> {
        let row = self.tasks.table.row(task)?;
        Some(Looked {
            record: row.record.clone(),
            view: row.view.subscribe(),
            status: row.status.clone(),
            model: row.spec.as_ref().map(|spec| spec.model.clone()).unwrap_or_default(),
        })
    }

    fn claim(&mut self, delivery: Delivery) -> bool {
        let Delivery::Ending(id) = &delivery else { return false };
        let Some(whose) = self.tasks.table.row(&id.task).map(|row| row.record.parent.clone()) else {
            return false;
        };
        let taken = self.tasks.table.take(&delivery);
        if taken {
            self.tasks.handed.push((delivery, whose.clone()));
            self.mark_told(whose.as_ref());
        }
        taken
    }

    /// Puts an event of the session on record and takes it into the table.
    pub async fn record(&mut self, who: &Who, event: Event) -> Result<(), String> {
        let written = self.core.journal.write(who, vec![event]).await.map_err(|lost| lost.to_string())?;
        for envelope in &written {
            self.tasks.table.apply(envelope);
        }
        Ok(())
    }

    /// Whether nobody works, waits for a place or is still to be told something.
    pub fn is_quiet(&self) -> bool {
        self.slots.running.is_empty()
            && self.slots.queue.is_empty()
            && self.tasks.typed.is_empty()
            && self.tasks.table.is_quiet()
    }

    /// The same, commands in the background left out.
    pub fn agents_are_quiet(&self) -> bool {
        self.slots.queue.is_empty()
            && self.tasks.typed.is_empty()
            && self.only_shells()
            && self.tasks.table.is_all_told()
    }

    /// Whether an agent, or one that it works for, is in the background.
    pub fn is_behind(&self, agent: &AgentId) -> bool {
        let mut at = Some(agent.clone());
        for _ in 0..=self.tasks.table.total() {
            let row = at.clone().and_then(|agent| self.tasks.table.row(&agent.into()));
            let Some(row) = row else { return false };
            if !row.is_foreground() {
                return true;
            }
            at.clone_from(&row.record.parent);
        }
        false
    }

    /// Whether only shells of the root are alive.
    pub fn only_shells(&self) -> bool {
        self.slots.running.is_empty() && self.tasks.table.rows().all(|row| !row.is_alive() || !row.is_agent())
    }

    /// The command lines that run in the background.
    pub fn background_commands(&self) -> Vec<String> {
        let alive = self.tasks.table.rows().filter(|row| row.is_alive() && !row.is_agent());
        alive.map(|row| row.record.prompt.clone()).collect()
    }

    /// Whether any task is alive.
    pub fn is_alive(&self) -> bool {
        !self.slots.running.is_empty()
            || !self.tasks.cancels.is_empty()
            || !self.tasks.typed.is_empty()
            || self.slots.preparing > 0
            || self.place.relocating
    }
}

/// A child that was decided.
struct Child {
    launch: Launch,
    record: TaskRecord,
    remarks: Vec<String>,
    shared: Option<(u64, u64)>,
}

/// What an agent has from those above it.
struct Family {
    path: String,
    modes: Arc<[ModeStep]>,
    grants: Arc<[Grant]>,
    account: AccountId,
    parent: Option<AgentId>,
}

/// The tools and the head of a child; the same for all that are alike.
pub struct Outfit {
    tools: Arc<ToolSet>,
    /// The same less those of servers of its own, which others that are alike have anew.
    base: Arc<ToolSet>,
    head: Arc<Head>,
    wire_head: Arc<WireHead>,
    head_name: String,
    /// What it was made from: the definition, the parent's tools and the model.
    of: (Arc<AgentDefinition>, Arc<ToolSet>, Arc<Model>),
    background: bool,
    depth: u32,
    effort: Option<String>,
}

impl Outfit {
    /// Whether a child of this parent would be made the same.
    fn fits(
        &self,
        run: &RunHandle,
        definition: &Arc<AgentDefinition>,
        model: &Arc<Model>,
        background: bool,
        effort: Option<&str>,
    ) -> bool {
        let (own, tools, made_for) = &self.of;
        Arc::ptr_eq(own, definition)
            && Arc::ptr_eq(tools, &run.tools)
            && Arc::ptr_eq(made_for, model)
            && self.background == background
            && self.depth == run.spec.depth
            && self.effort.as_deref() == effort
    }
}
