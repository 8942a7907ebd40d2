//! What is done for both front ends alike. Takes what the screen wants done; does what is about the session, the program
//! or another time, and gives back what is about the terminal.

use std::sync::Arc;

use decurion_protocol::{CommandSender, RequestId};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::app::{AppInput, Effect, Farewell};
use crate::port::{EditorDraft, FrontEndPort};

/// What is about the terminal.
pub(crate) enum TerminalEffect {
    /// End the program, or what it shows.
    Leave(Farewell),
    /// Stay, although the person wanted to leave, and say why.
    Stay(String),
    /// Open a text in an editor.
    Edit(EditorDraft),
    Suspend,
    Repaint,
    Call,
    /// Tell a person who looks elsewhere.
    Notify(String),
    /// Put this text on the clipboard.
    Copy(String),
    /// Tell that the session has no room for this request.
    NoRoom(RequestId),
}

/// The receivers of effects besides the terminal.
pub(crate) struct Performer {
    pub commands: CommandSender,
    pub desk: Arc<dyn FrontEndPort>,
    /// The receiver of results of jobs.
    pub errands: mpsc::Sender<AppInput>,
}

impl Performer {
    /// Does it, or gives what is left to do at the terminal.
    pub async fn take(&self, effect: Effect) -> Option<TerminalEffect> {
        match effect {
            // The screen does not wait for room: an interrupt could not be typed meanwhile.
            Effect::Send(request) => match self.commands.try_send(request) {
                Err(TrySendError::Full(request)) => return Some(TerminalEffect::NoRoom(request.id)),
                // A session that does not listen any more is over, which its events tell.
                Ok(()) | Err(TrySendError::Closed(_)) => {}
            },
            Effect::Remember(prompt) => self.desk.remember(&prompt),
            Effect::Errand(purpose, errand) => {
                let (work, sender) = (self.desk.run(errand), self.errands.clone());
                tokio::spawn(async move {
                    let fruit = work.await;
                    // The receiver may be gone.
                    let _ = sender.send(AppInput::Done(purpose, fruit)).await;
                });
            }
            Effect::Leave(farewell) => {
                let gone = self.desk.let_go(&farewell).await;
                return Some(gone.map_or_else(TerminalEffect::Stay, |()| TerminalEffect::Leave(farewell)));
            }
            Effect::Edit(text) => return Some(TerminalEffect::Edit(EditorDraft::Text(text))),
            Effect::EditFile(path) => return Some(TerminalEffect::Edit(EditorDraft::File(path))),
            Effect::Suspend => return Some(TerminalEffect::Suspend),
            Effect::Repaint => return Some(TerminalEffect::Repaint),
            Effect::Call => return Some(TerminalEffect::Call),
            Effect::Notify(text) => return Some(TerminalEffect::Notify(text)),
            Effect::Copy(text) => return Some(TerminalEffect::Copy(text)),
        }
        None
    }
}
