//! What an agent carries besides its tools. Takes each thing as it is acquired on the way to the first request;
//! gives all of it back after the last word, in one order, whatever happened in between, and tells both orders.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use decurion_protocol::{
    Delivery, Event, Outcome, ReleaseStep, SessionId, StartStep, Step, Totals, Worktree,
};

use crate::context::Context;
use crate::journal::{Journal, Who};
use crate::mcp::OwnServers;
use crate::run_handle::RunHandle;
use crate::session::run_task::Left;
use crate::task::{KeptWorktree, REMOVED};
use crate::worktree::{Made, Released, Worktrees};

/// What one run of an agent carries.
#[derive(Default)]
pub struct Resources {
    /// The steps of its start so far.
    started: Vec<Step<StartStep>>,
    /// The checkout of its own that it works in.
    worktree: Option<Box<Checkout>>,
    /// MCP servers of its own.
    pub servers: OwnServers,
}

/// A checkout that an agent works in.
struct Checkout {
    made: Made,
    /// Who takes it back.
    trees: Worktrees,
    /// For which session it is still to be taken up, where an earlier run of the agent had it.
    owed_to: Option<SessionId>,
}

impl Checkout {
    /// Whether it is there to be given back: one that was not taken up may have been given back before, or be
    /// another session's by now.
    fn is_held(&self) -> bool {
        let Some(session) = self.owed_to else { return true };
        let Worktree { repository, path, .. } = &self.made.worktree;
        let lease = path.file_name().and_then(|name| self.trees.leases().get(repository, name));
        lease.is_some_and(|lease| lease.session == session && lease.is_open())
    }
}

/// What is left of a run once all that it carried is given back.
#[derive(Default)]
pub struct Rest {
    /// How it ended, if that is on record.
    pub ending: Option<(Outcome, Totals)>,
    /// What its lines have told it.
    pub delivered: HashSet<Delivery>,
    /// The checkout it left its work in.
    pub worktree: Option<KeptWorktree>,
}

impl Resources {
    /// A step of the start was taken.
    pub fn took(&mut self, step: StartStep) {
        self.started.push(Step::plain(step));
    }

    /// The same, with what came of it.
    pub fn noted(&mut self, step: StartStep, note: impl Into<String>) {
        self.started.push(Step::noted(step, note));
    }

    /// Gives back what was acquired for an agent that does not begin after all.
    pub async fn abandon(self) {
        self.servers.release().await;
        if let Some(own) = self.worktree.filter(|own| own.is_held()) {
            Box::pin(own.trees.release(&own.made.worktree)).await;
        }
    }

    /// It works in a checkout of its own.
    pub fn work_in(&mut self, trees: Worktrees, made: Made) {
        self.worktree = Some(Box::new(Checkout { made, trees, owed_to: None }));
    }

    /// It works in the checkout that an earlier run of it had.
    pub fn work_again_in(&mut self, trees: Worktrees, made: Made, session: SessionId) {
        self.worktree = Some(Box::new(Checkout { made, trees, owed_to: Some(session) }));
    }

    /// Takes up the checkout that an earlier run had. Without it there is nothing to work in.
    pub async fn take_up(&mut self) -> Result<(), String> {
        let Some(own) = &mut self.worktree else { return Ok(()) };
        let Some(session) = own.owed_to.take() else { return Ok(()) };
        let path = own.made.worktree.path.clone();
        match Box::pin(own.trees.take_up(&own.made.worktree, session)).await {
            Ok(()) => {
                self.noted(StartStep::Worktree, format!("{path} again"));
                Ok(())
            }
            Err(error) => {
                self.worktree = None;
                Err(error.to_string())
            }
        }
    }

    /// The checkout of its own.
    pub fn made(&self) -> Option<&Made> {
        self.worktree.as_ref().map(|own| &own.made)
    }

    /// Tells the steps of the start, once.
    pub async fn tell_start(&mut self, journal: &Journal, who: &Who) {
        let steps = std::mem::take(&mut self.started);
        if !steps.is_empty() {
            tell(journal, who, Event::Prepared { steps }).await;
        }
    }

    /// Gives everything back and tells how.
    pub async fn release(self, run: &RunHandle, left: Left) -> Rest {
        let mut steps = Vec::with_capacity(ReleaseStep::ALL.len());
        let mut took = |step, note: Option<String>| steps.push(Step { step, note });
        took(ReleaseStep::Servers, self.servers.release().await);
        took(ReleaseStep::Hooks, None);
        took(ReleaseStep::Cache, None);
        let delivered = left.context.map(Context::into_delivered).unwrap_or_default();
        took(ReleaseStep::Files, None);
        took(ReleaseStep::Trace, None);
        took(ReleaseStep::Shells, end_below(run).await);
        let (worktree, note) = match self.worktree.filter(|own| own.is_held()) {
            Some(own) => {
                let kept = kept(&own.trees, own.made.worktree).await;
                let note = kept.as_ref().map_or_else(|| REMOVED.to_owned(), |kept| kept.left.clone());
                (kept, Some(note))
            }
            None => (None, None),
        };
        took(ReleaseStep::Worktree, note);
        tell(&run.journal, &run.who, Event::Released { steps }).await;
        Rest { ending: left.ending, delivered, worktree }
    }
}

/// Takes a checkout back; gives what is left in it, if it is kept.
async fn kept(trees: &Worktrees, worktree: Worktree) -> Option<KeptWorktree> {
    match Box::pin(trees.release(&worktree)).await {
        Released::Removed => None,
        Released::Kept(left) => Some(KeptWorktree { worktree, left: left.to_string() }),
    }
}

/// Ends what an agent left running; gives what that was.
async fn end_below(run: &RunHandle) -> Option<String> {
    let agent = run.who.agent.clone()?;
    // Whoever began nothing has nothing to end.
    if run.begun.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut ended = run.stopped_shells();
    ended.extend(run.session.end_below(agent).await.unwrap_or_default());
    (!ended.is_empty()).then(|| format!("ended: {}", ended.join("; ")))
}

/// Keeps an event that has something to say, shows one that has not.
async fn tell(journal: &Journal, who: &Who, event: Event) {
    if event.is_durable() {
        // A journal that is lost was found lost by the run itself.
        let _ = journal.write(who, vec![event]).await;
    } else {
        journal.publish(who, event);
    }
}
