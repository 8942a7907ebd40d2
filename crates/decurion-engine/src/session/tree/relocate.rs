//! The session itself goes into a checkout of its own in its middle, and out again. Takes a wish of the root, gives
//! where it works then. Git's work is done beside the session's task. That the session moves is on record after
//! the checkout is made and before it is taken back: whoever goes on after a crash is somewhere that is there,
//! and a checkout that nobody is in is settled like any that was left.

use std::panic::AssertUnwindSafe;

use decurion_protocol::{Event, TaskKind, Worktree};
use futures_util::FutureExt as _;
use tokio::sync::oneshot;

use crate::bounds;
use crate::prompt;
use crate::session::actor::SessionActor;
use crate::session_port::{Leaving, Place, Relocation};
use crate::task::Row;
use crate::worktree::{AskerRules, Left, Made, Released, Verdict, Wanted, Worktrees};

use super::requests::SessionRequest;

/// Where the answer to a wish goes; the error is for the model.
type Answer = oneshot::Sender<Result<Place, String>>;

/// A step that was taken beside the session's task.
pub enum Relocating {
    /// The checkout is made, or cannot be.
    Made(Result<Made, String>, Worktrees, Answer),
    /// What is in the checkout is known, or why it is not left.
    Looked(Result<Left, String>, Leaving, Worktrees, Answer),
    /// Nothing is under way any more; what is still to be said of it.
    Done(Option<String>),
}

impl SessionActor {
    /// Begins to go where the root wants to.
    pub(super) fn relocate(&mut self, relocation: Relocation, answer: Answer) {
        let begun = match relocation {
            Relocation::Enter { name } => self.may_enter(name).map(|(trees, wanted)| (trees, Ok(wanted))),
            Relocation::Leave { action } => {
                self.may_leave(action).map(|(trees, from)| (trees, Err((from, action))))
            }
        };
        let (trees, work) = match begun {
            Ok(begun) => begun,
            Err(reason) => {
                let _ = answer.send(Err(reason));
                return;
            }
        };
        self.place.relocating = true;
        let requests = self.core.requests.clone();
        tokio::spawn(async move {
            // A panic must not leave the session waiting for ever.
            let step = match work {
                Ok(wanted) => {
                    let made = unbroken(Box::pin(make(&trees, &wanted, &answer))).await;
                    Relocating::Made(made.unwrap_or_else(Err), trees, answer)
                }
                Err((from, action)) => {
                    let looked = unbroken(look(&trees, &from, action)).await;
                    Relocating::Looked(looked.unwrap_or_else(Err), action, trees, answer)
                }
            };
            // The session waits for what is under way before it ends, so somebody listens.
            let _ = requests.send(SessionRequest::Relocating(Box::new(step))).await;
        });
    }

    /// Goes on with what was begun.
    pub(super) async fn relocating(&mut self, step: Relocating) {
        self.place.relocating = false;
        match step {
            Relocating::Made(Ok(made), trees, answer) => self.entered(made, trees, answer).await,
            Relocating::Looked(Ok(found), action, trees, answer) => {
                self.leaves((found, action), trees, answer).await;
            }
            Relocating::Made(Err(reason), _, answer) | Relocating::Looked(Err(reason), _, _, answer) => {
                let _ = answer.send(Err(reason));
            }
            Relocating::Done(None) => {}
            Relocating::Done(Some(text)) => {
                let who = self.core.who.clone();
                let _ = self.record(&who, Event::Notice { level: "info".to_owned(), text }).await;
            }
        }
    }

    /// What the model is told of where it works, where the call that led there has no result.
    pub fn place_note(&self) -> String {
        let now = format!("The session now works in {}.", self.place.cwd);
        match &self.place.worktree {
            Some(worktree) => format!("{now}\n\n{}", prompt::in_worktree(worktree, false)),
            None => now,
        }
    }

    fn may_enter(&self, name: Option<String>) -> Result<(Worktrees, Wanted), String> {
        self.is_settled()?;
        if let Some(worktree) = &self.place.worktree {
            let how =
                if self.place.before.is_some() { "leave it with ExitWorktree first" } else { "stay in it" };
            return Err(format!("The session works in a worktree already, {}: {how}.", worktree.path));
        }
        let random = || format!("w{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let wanted = Wanted {
            from: self.place.cwd.clone(),
            name: name.unwrap_or_else(random),
            session: self.core.id,
            agent: None,
            description: String::new(),
            dirty: false,
            asker: None,
            // The setting `worktree.copyDirty` copies changes without being asked.
            rules: AskerRules {
                rules: self
                    .permissions
                    .rights
                    .borrow()
                    .rules_for("main", &[&bounds::rules(&self.core.request.definition.sandbox)]),
                root: self.core.request.cwd.clone(),
                home: self.core.equipment.home.clone(),
                directories: self.place.directories(),
            },
        };
        Ok((self.worktrees()?, wanted))
    }

    fn may_leave(&self, action: Leaving) -> Result<(Worktrees, Worktree), String> {
        self.is_settled()?;
        let worktree = match (&self.place.worktree, &self.place.before) {
            (Some(worktree), Some(_)) => worktree.clone(),
            (Some(_), None) => {
                return Err("The session began in its worktree (--worktree), and stays there until it ends."
                    .to_owned());
            }
            (None, _) => return Err("The session works in no worktree that it could leave.".to_owned()),
        };
        let inside = self.works_in(&worktree);
        if action != Leaving::Keep && !inside.is_empty() {
            return Err(format!(
                "The worktree is not removed while it is worked in ({}): wait for that, stop it with TaskStop, or \
                 keep the worktree.",
                inside.join("; ")
            ));
        }
        Ok((self.worktrees()?, worktree))
    }

    fn is_settled(&self) -> Result<(), String> {
        let text = "The session is on its way into or out of a worktree already.";
        if self.place.relocating { Err(text.to_owned()) } else { Ok(()) }
    }

    /// Who else works in the session's checkout, or may: where a command works is not known.
    fn works_in(&self, worktree: &Worktree) -> Vec<String> {
        let is_there = |row: &Row| match row.record.kind {
            TaskKind::LocalBash => true,
            _ => row
                .spec
                .as_ref()
                .and_then(|spec| spec.worktree.as_ref())
                .is_some_and(|own| own.path == worktree.path),
        };
        let rows = self.tasks.table.rows().filter(|row| row.is_alive() && is_there(row));
        let mut found: Vec<String> =
            rows.map(|row| format!("{} {}", row.record.task, row.record.description)).collect();
        if self.slots.preparing > 0 {
            found.push("an agent that is about to begin".to_owned());
        }
        found
    }

    /// The checkout is made: the session works in it once that is on record.
    async fn entered(&mut self, made: Made, trees: Worktrees, answer: Answer) {
        // Whoever asked was stopped meanwhile: nobody would know where the session is.
        if answer.is_closed() {
            return self.give_back(trees, made);
        }
        let before = self.place.cwd.clone();
        let (worktree, cwd) = (made.worktree.clone(), made.cwd.clone());
        let event = Event::Relocated {
            cwd: cwd.clone(),
            worktree: Some(Box::new(worktree.clone())),
            before: Some(before.clone()),
        };
        let who = self.core.who.clone();
        if let Err(lost) = self.record(&who, event).await {
            let _ = answer.send(Err(lost));
            return self.give_back(trees, made);
        }
        self.place.cwd.clone_from(&cwd);
        (self.place.worktree, self.place.before) = (Some(worktree.clone()), Some(before));
        self.move_root();
        let _ = answer.send(Ok(Place { cwd, worktree, without: made.without, left: None, gone: false }));
    }

    /// The checkout can be left: the session works where it did before once that is on record, and then the checkout
    /// is dealt with.
    async fn leaves(&mut self, (found, action): (Left, Leaving), trees: Worktrees, answer: Answer) {
        // What runs there may have begun since it was asked for.
        let worktree = match self.may_leave(action) {
            Ok((_, worktree)) if !answer.is_closed() => worktree,
            Ok(_) => return,
            Err(reason) => {
                let _ = answer.send(Err(reason));
                return;
            }
        };
        let Some(cwd) = self.place.before.clone() else { return };
        let event = Event::Relocated { cwd: cwd.clone(), worktree: None, before: None };
        let who = self.core.who.clone();
        if let Err(lost) = self.record(&who, event).await {
            let _ = answer.send(Err(lost));
            return;
        }
        self.place.cwd.clone_from(&cwd);
        (self.place.worktree, self.place.before) = (None, None);
        self.move_root();
        self.place.relocating = true;
        let requests = self.core.requests.clone();
        tokio::spawn(async move {
            let (left, gone) = match unbroken(leave(&trees, &worktree, action)).await {
                Ok(Released::Removed) => (found, true),
                Ok(Released::Kept(left)) => (left, false),
                // Its lease is as it was, and the next start deals with it.
                Err(broken) => (Left { problem: Some(broken), ..found }, false),
            };
            let what = if gone { "gone, with what was in it" } else { "kept" };
            let text = format!(
                "the worktree that the session left is {what}: {} on {}: {left}",
                left.path, left.branch
            );
            let told =
                answer.send(Ok(Place { cwd, worktree, without: false, left: Some(left), gone })).is_ok();
            // Whoever asked was stopped meanwhile: it is said all the same.
            let untold = (!told).then_some(text);
            let _ = requests.send(SessionRequest::Relocating(Box::new(Relocating::Done(untold)))).await;
        });
    }

    /// The root's run goes on where the session works now; those that run already keep what they have.
    fn move_root(&self) {
        if let Some(root) = self.root_run() {
            root.move_to(self.place.cwd.clone(), self.place.worktree.clone(), self.place.directories());
        }
    }

    /// Takes a checkout back that nobody has worked in.
    fn give_back(&mut self, trees: Worktrees, made: Made) {
        self.place.relocating = true;
        let requests = self.core.requests.clone();
        tokio::spawn(async move {
            let _ = unbroken(Box::pin(trees.give_back(&made))).await;
            let _ = requests.send(SessionRequest::Relocating(Box::new(Relocating::Done(None)))).await;
        });
    }
}

/// What is said where moving itself fails.
const BROKEN: &str = "moving the session failed inside Decurion; this is a bug in it";

/// What comes of some work, also if it panics.
async fn unbroken<T>(work: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| BROKEN.to_owned())
}

/// Takes a checkout back that the session has left.
async fn leave(trees: &Worktrees, worktree: &Worktree, action: Leaving) -> Released {
    match action {
        Leaving::Keep => Released::Kept(Box::pin(trees.keep_as_it_is(worktree)).await),
        Leaving::Remove => Box::pin(trees.release(worktree)).await,
        Leaving::Discard => Box::pin(trees.discard(worktree)).await,
    }
}

/// Makes a checkout, and takes it back if whoever asked is gone.
async fn make(trees: &Worktrees, wanted: &Wanted, answer: &Answer) -> Result<Made, String> {
    let made = trees.make(wanted).await.map_err(|error| format!("The session stays where it is: {error}"))?;
    if answer.is_closed() {
        Box::pin(trees.give_back(&made)).await;
        return Err(String::new());
    }
    Ok(made)
}

/// Looks at what is in a checkout that is to be left; the error says why it is not.
async fn look(trees: &Worktrees, worktree: &Worktree, action: Leaving) -> Result<Left, String> {
    let (verdict, left) = Box::pin(trees.look(worktree)).await;
    if action == Leaving::Remove && verdict == Verdict::Changed {
        return Err(format!(
            "The worktree {} has work in it that would be lost: {left}. The session is still in it. Keep it with \
             `action: \"keep\"`, or, if the user wants to lose that work, call again with `discard_changes: true`.",
            worktree.path
        ));
    }
    Ok(left)
}
