//! The program at a terminal, as a person has it: keys in, what the screen shows out. The terminal is tmux with a server
//! of its own, the model a script on loopback.
//!
//! ```ignore
//! let terminal = Terminal::start("when\n  say \"Hello.\"\n");
//! terminal.say("hi");
//! terminal.wait_for("Hello.");
//! terminal.keys("C-c C-c");
//! assert_eq!(terminal.ended(), 0);
//! ```

mod asked;
mod beginning;
mod bottom;
mod composing;
mod demo;
mod detaching;
mod editing;
mod forms;
mod keys;
mod killed;
mod leaving;
mod mended;
mod offered;
mod pages;
mod plain;
mod printed;
mod questions;
mod replacing;
mod rewinding;
mod several;
mod shell;
mod tables;
mod talking;
mod theme;
mod typed;
mod unkept;
mod unsaid;
mod working;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decurion_testkit::proc::Program;
use decurion_testkit::tmux::Tmux;

use crate::stand::{DECURION, Stand};

/// A screen that does not show what it should by then never will. Far from what any of them needs.
const PATIENCE: Duration = Duration::from_secs(60);
pub const USUAL: (u16, u16) = (80, 24);
/// What is on the screen once a person can write: the sign before the prompt.
pub const READY: &str = "> ";

/// A terminal in which the program runs.
pub struct Terminal {
    /// Its home and its model. After the terminal, which ends what runs in that home.
    tmux: Tmux,
    pub stand: Arc<Stand>,
}

impl Terminal {
    /// The program in a terminal of the usual size, ready for a prompt, with a model that plays this script.
    pub fn start(script: &str) -> Self {
        Self::with(Stand::new(script), &[], USUAL)
    }

    /// The same in this home, with these arguments, at this size.
    pub fn with(stand: impl Into<Arc<Stand>>, arguments: &[&str], size: (u16, u16)) -> Self {
        Self::as_told(stand, size, |program| program.args(arguments)).ready()
    }

    /// The program in this home, told what it is told besides; whatever it shows first.
    pub fn as_told(
        stand: impl Into<Arc<Stand>>,
        size: (u16, u16),
        told: impl FnOnce(Program) -> Program,
    ) -> Self {
        let stand = stand.into();
        let program = told(stand.decurion());
        Self { tmux: Tmux::start(&program, size).unwrap(), stand }
    }

    /// The same once a person can write.
    #[track_caller]
    pub fn ready(self) -> Self {
        self.wait_until("a prompt", |screen| screen.contains(READY.trim_end()));
        self
    }

    /// Another terminal in the same home.
    pub fn beside(&self, arguments: &[&str]) -> Self {
        Self::as_told(Arc::clone(&self.stand), USUAL, |program| program.args(arguments))
    }

    /// A shell of the usual size, at whose prompt `$D` starts the program.
    pub fn in_shell(script: &str) -> Self {
        Self::shell_in(Stand::new(script), |program| program)
    }

    /// The same in this home, with what else its environment has.
    pub fn shell_in(stand: impl Into<Arc<Stand>>, told: impl FnOnce(Program) -> Program) -> Self {
        let terminal = Self::as_told(stand, USUAL, |program| {
            let shell = told(program.env("D", DECURION).env("PS1", "shell$ ")).instead("bash");
            shell.args(["--norc", "--noprofile", "-i"])
        });
        terminal.wait_for("shell$");
        terminal
    }

    /// Presses keys, by the names that tmux has for them, with spaces between: `Down Enter`, `C-b`, `BTab`.
    pub fn keys(&self, keys: &str) {
        self.tmux.press(&keys.split_whitespace().collect::<Vec<_>>()).unwrap();
    }

    pub fn write(&self, text: &str) {
        self.tmux.write(text).unwrap();
    }

    /// Types a text and sends it.
    pub fn say(&self, text: &str) {
        self.write(text);
        self.keys("Enter");
    }

    pub fn paste(&self, text: &str) {
        self.tmux.paste(text).unwrap();
    }

    /// Makes the terminal larger or smaller.
    pub fn resize(&self, columns: u16, rows: u16) {
        self.tmux.resize((columns, rows)).unwrap();
    }

    /// Waits until the screen shows this text; gives the screen.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait_until(text, |screen| screen.contains(text))
    }

    /// Waits until the screen shows this text and nothing is under way; gives the screen.
    #[track_caller]
    pub fn wait_settled(&self, text: &str) -> String {
        self.wait_for(text);
        // A text may be there before its turn is over, which only the title tells.
        self.wait_fact("pane_title", |title| !title.starts_with('●'));
        self.wait_until(text, |screen| screen.contains(text) && !screen.contains('◌'))
    }

    /// Waits until a text is on record, and not only on the screen.
    #[track_caller]
    pub fn wait_recorded(&self, text: &str) {
        let is_record = |path: &&std::path::PathBuf| !path.ends_with("prompts.jsonl");
        self.wait_that(text, || {
            self.stand.written().iter().filter(is_record).any(|path| text_of(path).contains(text))
        });
    }

    /// Waits until the screen does not show this text any more; gives the screen.
    #[track_caller]
    pub fn wait_gone(&self, text: &str) -> String {
        self.wait_until(&format!("no {text}"), |screen| !screen.contains(text))
    }

    /// Waits until the screen fits; gives the screen.
    #[track_caller]
    pub fn wait_until(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        match self.tmux.wait(PATIENCE, fits) {
            Ok(screen) => screen,
            Err(screen) => panic!("the screen never showed {what}; it shows\n{screen}"),
        }
    }

    /// What the screen shows now.
    pub fn screen(&self) -> String {
        self.tmux.screen().unwrap()
    }

    /// Everything from the beginning, with what has gone up.
    pub fn scrollback(&self) -> String {
        self.tmux.scrollback().unwrap()
    }

    /// What tmux knows by one of its names, such as `alternate_on` or `cursor_flag`.
    pub fn fact(&self, name: &str) -> String {
        self.tmux.fact(name).unwrap()
    }

    /// The screen with the sequences that colour it.
    pub fn coloured(&self) -> String {
        self.tmux.coloured().unwrap()
    }

    /// Waits until what tmux knows by this name fits; gives it.
    #[track_caller]
    pub fn wait_fact(&self, name: &str, fits: impl Fn(&str) -> bool) -> String {
        self.wait_until(name, |_| fits(&self.fact(name)));
        self.fact(name)
    }

    /// Waits until something outside of the terminal is so.
    #[track_caller]
    pub fn wait_that(&self, what: &str, is_so: impl Fn() -> bool) {
        self.wait_until(what, |_| is_so());
    }

    /// Takes the state folder away, whatever is being written there at that moment.
    pub fn lose_state(&self) {
        let state = self.stand.home.state();
        self.wait_that("no state folder", || {
            let _ = std::fs::remove_dir_all(&state);
            !state.exists()
        });
    }

    /// Lets those go on who wait for the file `go` in the home folder.
    pub fn go(&self) {
        std::fs::write(self.stand.home.home().join("go"), "").unwrap();
    }

    /// The process that runs in it, which waits for the one that works.
    pub fn keeper(&self) -> i32 {
        self.tmux.pid().unwrap()
    }

    /// The process that works, and draws on the terminal.
    pub fn worker(&self) -> i32 {
        let keeper = self.keeper();
        let children = text_of(format!("/proc/{keeper}/task/{keeper}/children"));
        children.split_whitespace().next().and_then(|pid| pid.parse().ok()).unwrap_or_else(|| {
            panic!("the keeper {keeper} has no child: {children:?}");
        })
    }

    /// Kills it, as nobody can prevent.
    pub fn kill_worker(&self) {
        kill(self.worker());
    }

    /// The request that the model was asked last, whole, by the agent with this path.
    pub fn last_request(&self, agent: &str) -> String {
        let requests = self.stand.model.requests();
        let last = requests.iter().rfind(|request| request.agent == agent).expect("it asked the model");
        String::from_utf8_lossy(&last.body).into_owned()
    }

    /// Waits until the program has ended; gives its exit code.
    #[track_caller]
    pub fn ended(&self) -> i32 {
        self.wait_until("the end of the program", |_| self.tmux.code().unwrap().is_some());
        self.tmux.code().unwrap().unwrap()
    }
}

/// An agent in the background that stands still until a file is there.
const BEHIND: &str = "when agent=main turn=1
  call Agent {\"description\": \"look around\", \"prompt\": \"Look.\", \"subagent_type\": \"Explore\", \"run_in_background\": true}
when agent=main turn=2
  say \"It looks.\"
when agent=main
  say \"It has reported.\"
when agent=Explore turn=1
  call Bash {\"command\": \"while [ ! -e $HOME/go ]; do sleep 0.02; done\", \"description\": \"Stand still\"}
when
  say \"Nothing here.\"
";

/// Writes a file in the folder that the program works in.
fn put(stand: &Stand, path: &str, text: &str) {
    put_in(&stand.home.work(), path, text);
}

/// Writes a file below a folder.
fn put_in(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// The text of a file; empty if there is none.
fn text_of(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Kills a process, as nobody can prevent.
fn kill(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}
