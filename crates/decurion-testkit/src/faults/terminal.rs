//! The program at a terminal, for rows that damage it there. Takes options and a script, gives a session that a row types
//! into, and judges what it wrote and left.

use std::io;
use std::time::Duration;

use super::Options;
use super::stand::{GONE, Stand, brief};
use crate::pty::Pty;
use crate::server::Settings;
use crate::sys::Ending;

/// A screen that does not show what it should by then never will.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const USUAL: (u16, u16) = (100, 30);
/// What is on the screen as soon as a person can write.
pub const READY: &str = ">";

/// A session at a terminal.
#[derive(Debug)]
pub struct Session {
    /// The terminal. Before the stand, which ends what is left.
    pub pty: Pty,
    /// Its home and model.
    pub stand: Stand,
}

/// What is special about a session.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Arguments of the program.
    pub arguments: Vec<String>,
    /// Variables of its environment.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Whether a person is asked about what calls would do.
    pub asks: bool,
    /// The user's settings, as JSON; none if empty.
    pub settings: String,
}

impl Session {
    /// The program in a terminal of the usual size, ready for a prompt.
    pub fn start(options: &Options, script: impl FnOnce(&std::path::Path) -> String) -> Result<Self, String> {
        Self::with(options, script, |_| {}, &Setting::default())
    }

    /// The same with a model and a program that are set otherwise.
    pub fn with(
        options: &Options,
        script: impl FnOnce(&std::path::Path) -> String,
        set: impl FnOnce(&mut Settings),
        setting: &Setting,
    ) -> Result<Self, String> {
        let mut session = Self::begin(options, script, set, setting)?;
        session.pty.wait_for(READY, PATIENCE)?;
        Ok(session)
    }

    /// The same, not waiting for the program to be ready.
    pub fn begin(
        options: &Options,
        script: impl FnOnce(&std::path::Path) -> String,
        set: impl FnOnce(&mut Settings),
        setting: &Setting,
    ) -> Result<Self, String> {
        let stand = Stand::with(options, script, set).map_err(said)?;
        if !setting.settings.is_empty() {
            std::fs::write(stand.home.state().join("settings.json"), &setting.settings).map_err(said)?;
        }
        // An editor that comes up by chance goes at once.
        let mut program = stand.program(stand.binary()).args(&setting.arguments).env("VISUAL", "true");
        if !setting.asks {
            program = program.arg("--dangerously-skip-permissions");
        }
        for (name, value) in &setting.environment {
            program = program.env(name, value);
        }
        let pty = Pty::start(&program, USUAL).map_err(said)?;
        Ok(Self { pty, stand })
    }

    /// Types a prompt and sends it.
    pub fn say(&mut self, text: &str) -> Result<(), String> {
        self.pty.write(format!("{text}\r")).map_err(said)
    }

    /// Leaves by Ctrl+D at an empty prompt, and judges what is left.
    pub fn leave(&mut self) -> Result<(), String> {
        self.pty.write([4]).map_err(said)?;
        self.ended(0)
    }

    /// Waits for an end with this code, and judges what is left.
    pub fn ended(&mut self, code: i32) -> Result<(), String> {
        match self.pty.end(PATIENCE).map_err(said)? {
            None => Err(format!("it goes on; the screen shows {}", brief(&self.pty.screen()))),
            Some(ending) if ending.code() != code => {
                Err(format!("{ending:?}: {}", brief(&self.pty.screen())))
            }
            Some(_) => self.judge(),
        }
    }

    /// That the terminal is as it was and nobody is left.
    pub fn judge(&self) -> Result<(), String> {
        let left = self.pty.left_behind();
        if !left.is_empty() {
            return Err(format!("the terminal is not restored: {}", left.join(", ")));
        }
        self.stand.wait_until_gone(GONE).map(drop)
    }

    /// How it ended, if it has within this time.
    pub fn end(&mut self, limit: Duration) -> Result<Option<Ending>, String> {
        self.pty.end(limit).map_err(said)
    }
}

/// An error of the system as a row reports it.
#[allow(clippy::needless_pass_by_value)] // as `map_err` wants it
pub fn said(error: io::Error) -> String {
    error.to_string()
}
