//! The session plans before it works, and works once a plan is agreed to. Takes a wish of the root, gives the mode that
//! holds then; the change is on record before it holds.

use std::sync::Arc;

use decurion_protocol::choice::EXIT_PLAN;
use decurion_protocol::{Event, Mode};

use crate::prompt;
use crate::session::actor::SessionActor;
use crate::session::spec;
use crate::session_port::{Planned, Planning};

impl SessionActor {
    /// Begins or ends planning. The error is for the model.
    pub(super) async fn plan(&mut self, planning: Planning) -> Result<Planned, String> {
        let now = self.permissions.rights.borrow().mode;
        let mode = match planning {
            Planning::Enter => Mode::Plan,
            Planning::Leave if now == Mode::Plan => self.mode_after_plan(),
            // Whoever agreed to the plan has chosen another mode with that, or since.
            Planning::Leave => now,
        };
        if mode != now {
            let who = self.core.who.clone();
            self.record(&who, Event::ModeChanged { mode }).await?;
            self.permissions.rights.send_modify(|rights| rights.change_mode(mode));
        }
        self.offer.told_of_plan = mode == Mode::Plan;
        let archive = self.core.is_kept().then(|| Arc::clone(&self.core.parts.archive));
        Ok(Planned { mode, archive, session: self.core.id })
    }

    /// What the model is told with a prompt of whether it plans: with each while it does, since the mode may have been
    /// changed by anybody, and once when it does no longer.
    pub fn plan_note(&mut self) -> Option<String> {
        let plans = self.permissions.rights.borrow().mode == Mode::Plan;
        let told = std::mem::replace(&mut self.offer.told_of_plan, plans);
        let note = match (plans, told) {
            (true, _) => prompt::planning(self.offer.tools.get(EXIT_PLAN).is_some()),
            (false, true) => prompt::PLANNED,
            (false, false) => return None,
        };
        Some(note.to_owned())
    }

    /// The mode that held before, if it is still to be had.
    fn mode_after_plan(&self) -> Mode {
        let before = self.permissions.rights.borrow().before_plan;
        match spec::check_later_mode(before, &self.core.parts, &self.core.request) {
            Ok(()) => before,
            Err(_) => Mode::Default,
        }
    }
}
