//! Requests of runs on their way to the session's task. Implements [`SessionPort`] over a channel; the steps that the
//! session's task has done beside itself come back through the same channel.

use std::collections::HashSet;
use std::sync::Arc;

use decurion_protocol::link::BoxFuture;
use decurion_protocol::{
    AgentId, Delivery, Envelope, LineId, PermissionUpdate, ShellLine, TaskId, TaskRecord, ToolOutput,
};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::approval::Ask;
use crate::run_handle::RunHandle;
use crate::session::resources::Resources;
use crate::session::tree::prepare::Draft;
use crate::session::tree::relocate::Relocating;
use crate::session_port::{
    BackgroundShell, Looked, MayEnd, Place, Planned, Planning, Relocation, Sent, SessionPort, Spawned,
    Spawning,
};
use crate::task::Ending;

/// Where the answer to a request goes.
pub type Reply<T> = oneshot::Sender<T>;

/// What the session's task is asked for by its runs, and by work that it has done beside itself.
pub enum SessionRequest {
    Ask(Box<Ask>),
    Permit(Option<AgentId>, Vec<PermissionUpdate>, Reply<Result<(), String>>),
    Spawn(Box<Spawning>, Reply<Result<Spawned, String>>),
    /// An agent that was decided has the resources that it needs to begin, or why it cannot have them.
    Prepared(Box<Draft>, Result<Resources, String>, Reply<Result<Spawned, String>>),
    /// The resources of an agent that does not begin are released.
    Abandoned,
    EndBelow(AgentId, Reply<Vec<String>>),
    OpenShell(BackgroundShell, Reply<Result<TaskRecord, String>>),
    /// A command that a person ran has ended.
    TypedEnded(Box<ShellLine>),
    ShellEnded(TaskId, Box<ToolOutput>),
    Deliver(RunHandle, Option<LineId>, Reply<Vec<Arc<Envelope>>>),
    MayEnd(RunHandle, Option<LineId>, Reply<MayEnd>),
    /// A run of an agent is over, and that is on record; with what its lines have told it.
    Ended(AgentId, Box<Ending>, HashSet<Delivery>),
    Halt(Option<AgentId>),
    Look(TaskId, Reply<Option<Looked>>),
    UnderWay(Reply<Vec<Value>>),
    Claim(Delivery, Reply<bool>),
    Stop(TaskId, String, Reply<Result<Looked, String>>),
    Plan(Planning, Reply<Result<Planned, String>>),
    Relocate(Relocation, Reply<Result<Place, String>>),
    /// A step of that was taken.
    Relocating(Box<Relocating>),
    Mail(RunHandle, AgentId, String, Reply<Result<Sent, String>>),
}

/// The way to a session's task. None of its waits ends before the session has answered or is gone.
#[derive(Clone)]
pub struct RequestSender(mpsc::Sender<SessionRequest>);

impl RequestSender {
    pub fn channel() -> (Self, mpsc::Receiver<SessionRequest>) {
        let (sender, receiver) = mpsc::channel(64);
        (Self(sender), receiver)
    }

    /// Hands a request in; none if the session is gone.
    pub async fn send(&self, request: SessionRequest) -> Option<()> {
        self.0.send(request).await.ok()
    }

    /// The same, and waits for the answer.
    async fn request<T>(&self, make: impl FnOnce(Reply<T>) -> SessionRequest) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.send(make(reply)).await?;
        answer.await.ok()
    }
}

impl SessionPort for RequestSender {
    fn ask(&self, ask: Box<Ask>) -> BoxFuture<'_, Option<()>> {
        Box::pin(self.send(SessionRequest::Ask(ask)))
    }

    fn permit(
        &self,
        agent: Option<AgentId>,
        updates: Vec<PermissionUpdate>,
    ) -> BoxFuture<'_, Option<Result<(), String>>> {
        Box::pin(self.request(|reply| SessionRequest::Permit(agent, updates, reply)))
    }

    fn spawn(&self, spawning: Box<Spawning>) -> BoxFuture<'_, Option<Result<Spawned, String>>> {
        Box::pin(self.request(|reply| SessionRequest::Spawn(spawning, reply)))
    }

    fn end_below(&self, agent: AgentId) -> BoxFuture<'_, Option<Vec<String>>> {
        Box::pin(self.request(|reply| SessionRequest::EndBelow(agent, reply)))
    }

    fn open_shell(&self, shell: BackgroundShell) -> BoxFuture<'_, Option<Result<TaskRecord, String>>> {
        Box::pin(self.request(|reply| SessionRequest::OpenShell(shell, reply)))
    }

    fn shell_ended(&self, task: TaskId, output: Box<ToolOutput>) -> BoxFuture<'_, Option<()>> {
        Box::pin(self.send(SessionRequest::ShellEnded(task, output)))
    }

    fn deliver(&self, run: RunHandle, leaf: Option<LineId>) -> BoxFuture<'_, Option<Vec<Arc<Envelope>>>> {
        Box::pin(self.request(move |reply| SessionRequest::Deliver(run, leaf, reply)))
    }

    fn may_end(&self, run: RunHandle, leaf: Option<LineId>) -> BoxFuture<'_, Option<MayEnd>> {
        Box::pin(self.request(move |reply| SessionRequest::MayEnd(run, leaf, reply)))
    }

    fn halt(&self, agent: Option<AgentId>) -> BoxFuture<'_, Option<()>> {
        Box::pin(self.send(SessionRequest::Halt(agent)))
    }

    fn look(&self, task: TaskId) -> BoxFuture<'_, Option<Option<Looked>>> {
        Box::pin(self.request(|reply| SessionRequest::Look(task, reply)))
    }

    fn under_way(&self) -> BoxFuture<'_, Option<Vec<Value>>> {
        Box::pin(self.request(SessionRequest::UnderWay))
    }

    fn claim(&self, delivery: Delivery) -> BoxFuture<'_, Option<bool>> {
        Box::pin(self.request(|reply| SessionRequest::Claim(delivery, reply)))
    }

    fn stop(&self, task: TaskId, by: String) -> BoxFuture<'_, Option<Result<Looked, String>>> {
        Box::pin(self.request(|reply| SessionRequest::Stop(task, by, reply)))
    }

    fn plan(&self, planning: Planning) -> BoxFuture<'_, Option<Result<Planned, String>>> {
        Box::pin(self.request(move |reply| SessionRequest::Plan(planning, reply)))
    }

    fn relocate(&self, relocation: Relocation) -> BoxFuture<'_, Option<Result<Place, String>>> {
        Box::pin(self.request(|reply| SessionRequest::Relocate(relocation, reply)))
    }

    fn mail(
        &self,
        from: RunHandle,
        to: AgentId,
        text: String,
    ) -> BoxFuture<'_, Option<Result<Sent, String>>> {
        Box::pin(self.request(move |reply| SessionRequest::Mail(from, to, text, reply)))
    }
}
