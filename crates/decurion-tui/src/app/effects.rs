//! What comes into the screen and what it wants done.

use std::sync::Arc;

use crossterm::event::KeyEvent;
use decurion_protocol::{Envelope, Mode, Request, Start};

use crate::port::{FrontEndJob, JobPurpose, JobResult};
use crate::theme::Shades;

#[derive(Clone, Debug)]
pub enum AppInput {
    Key(KeyEvent),
    /// Text that was pasted.
    Paste(String),
    /// Something happened in the session.
    Event(Arc<Envelope>),
    /// The text from an editor.
    Edited(String),
    /// The result of a job.
    Done(JobPurpose, Result<JobResult, String>),
    /// A signal asks for the end of the turn.
    Interrupt,
    /// Something else is to be said about what is shown.
    Caption(Caption),
}

/// What the program around says about what is shown, in a line below everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caption {
    pub words: String,
    /// What a person can do meanwhile, where there is room for it.
    pub keys: String,
}

/// What the terminal or the session is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Ask this of the session.
    Send(Request),
    /// End the program, or what it shows.
    Leave(Farewell),
    /// Open a text in an editor.
    Edit(String),
    /// Open a file in an editor.
    EditFile(String),
    Suspend,
    Repaint,
    Call,
    /// Tell a person who looks elsewhere.
    Notify(String),
    /// Put this text on the clipboard.
    Copy(String),
    /// Keep a prompt for later sessions.
    Remember(String),
    /// Do something that takes a while.
    Errand(JobPurpose, FrontEndJob),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Farewell {
    /// All that works is stopped.
    Close,
    /// It continues without a terminal.
    Keep,
    /// Another session takes its place.
    Next(Box<NextSession>),
}

/// The session that takes the place of another, and what goes over to it.
#[derive(Clone, Debug, PartialEq)]
pub struct NextSession {
    pub start: Start,
    /// What is written in its prompt.
    pub draft: String,
    /// The mode of the one before, and its model once that was asked.
    pub mode: Mode,
    pub model: Option<String>,
    /// The theme that was chosen.
    pub shades: Shades,
    /// Whether a provider is set up before that.
    pub log_in: bool,
}
