//! A terminal that a test types into and looks at: tmux with a server of its own. Takes a program and keys, gives what
//! the screen and its scrollback show, as a person would see it.
#![allow(clippy::disallowed_methods)] // a test starts tmux and sleeps between two looks; it is not part of the product

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::proc::Program;
use crate::proc::canary::Printed;

/// How the terminal behaves: it stays when its program has ended, and holds no key back to see whether more follows.
const SETTINGS: &str = "set -g remain-on-exit on
set -g remain-on-exit-format ''
set -g history-limit 50000
set -g default-terminal tmux-256color
set -g escape-time 0
set -g status off
set -g focus-events off
";
/// The pause between two looks at a screen.
const LOOK: Duration = Duration::from_millis(10);

/// A terminal in which one program runs. Dropping it ends the terminal, and with it the program.
#[derive(Debug)]
pub struct Tmux {
    /// The server's socket is in here; nobody else knows it.
    folder: TempDir,
    printed: Printed,
}

impl Tmux {
    /// A terminal of so many columns and rows, in which this program runs.
    pub fn start(program: &Program, size: (u16, u16)) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tmux-").tempdir()?;
        std::fs::write(folder.path().join("settings"), SETTINGS)?;
        let tmux = Self { folder, printed: program.printed().clone() };
        let command = program.command();
        let mut server = tmux.client();
        server.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        server.args(["new-session", "-d", "-x", &size.0.to_string(), "-y", &size.1.to_string()]);
        if let Some(cwd) = command.get_current_dir() {
            server.arg("-c").arg(cwd);
        }
        server.arg("--").arg(command.get_program()).args(command.get_args());
        checked(&server.output()?)?;
        Ok(tmux)
    }

    /// Presses keys by the names that tmux gives them, such as `C-b`, `Escape`, `Up` or `x`.
    pub fn press(&self, keys: &[&str]) -> io::Result<()> {
        self.ask(&[&["send-keys", "--"], keys].concat()).map(drop)
    }

    /// Types a text letter by letter.
    pub fn write(&self, text: &str) -> io::Result<()> {
        self.ask(&["send-keys", "-l", "--", text]).map(drop)
    }

    /// Pastes a text, as a terminal tells a program that it is one.
    pub fn paste(&self, text: &str) -> io::Result<()> {
        let mut load = self.client().args(["load-buffer", "-"]).stdin(Stdio::piped()).spawn()?;
        if let Some(mut pipe) = load.stdin.take() {
            pipe.write_all(text.as_bytes())?;
        }
        load.wait()?;
        self.ask(&["paste-buffer", "-p"]).map(drop)
    }

    /// Makes the terminal larger or smaller.
    pub fn resize(&self, size: (u16, u16)) -> io::Result<()> {
        self.ask(&["resize-window", "-x", &size.0.to_string(), "-y", &size.1.to_string()]).map(drop)
    }

    /// What the screen shows now, without empty rows at its end.
    pub fn screen(&self) -> io::Result<String> {
        self.ask(&["capture-pane", "-p"]).map(|text| text.trim_end().to_owned())
    }

    /// The same with the sequences that colour it.
    pub fn coloured(&self) -> io::Result<String> {
        self.ask(&["capture-pane", "-p", "-e"]).map(|text| text.trim_end().to_owned())
    }

    /// Everything: what has gone up into the scrollback and what is on the screen.
    pub fn scrollback(&self) -> io::Result<String> {
        self.ask(&["capture-pane", "-p", "-S", "-"]).map(|text| text.trim_end().to_owned())
    }

    /// What tmux knows by one of its names: `alternate_on`, `cursor_flag`, `pane_title`.
    pub fn fact(&self, name: &str) -> io::Result<String> {
        self.ask(&["display-message", "-p", &format!("#{{{name}}}")]).map(|text| text.trim_end().to_owned())
    }

    /// The exit code of the program, 128 and more for a signal; none while it runs.
    pub fn code(&self) -> io::Result<Option<i32>> {
        let facts = self.fact("pane_dead}:#{pane_dead_status}:#{pane_dead_signal")?;
        let number = |text: &str| text.parse::<i32>().unwrap_or(0);
        Ok(match facts.split(':').collect::<Vec<_>>()[..] {
            // It has let go of the terminal, and tmux did not hear how it ended. It asks again when another child ends.
            ["1", "", ""] => {
                self.ask(&["run-shell", "true"])?;
                None
            }
            ["1", status, ""] => Some(number(status)),
            ["1", _, signal] => Some(128 + number(signal)),
            _ => None,
        })
    }

    /// The process that runs in it.
    pub fn pid(&self) -> io::Result<i32> {
        self.fact("pane_pid")?.parse().map_err(io::Error::other)
    }

    /// Looks at the screen until it fits; the last look is the error if it never does.
    pub fn wait(&self, limit: Duration, fits: impl Fn(&str) -> bool) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        loop {
            let screen = self.screen().map_err(|error| error.to_string())?;
            if fits(&screen) {
                // What is drawn may arrive in pieces: the whole of it fits too.
                std::thread::sleep(LOOK);
                let again = self.screen().map_err(|error| error.to_string())?;
                if fits(&again) {
                    return Ok(again);
                }
            }
            if Instant::now() >= deadline {
                return Err(screen);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn client(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(self.socket()).arg("-f").arg(self.folder.path().join("settings"));
        command.env_remove("TMUX").stdin(Stdio::null());
        command
    }

    fn socket(&self) -> PathBuf {
        Path::join(self.folder.path(), "socket")
    }

    fn ask(&self, arguments: &[&str]) -> io::Result<String> {
        checked(&self.client().args(arguments).output()?)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let shown = self.scrollback().unwrap_or_default();
        self.printed.search("a program in tmux", shown.as_bytes());
        let _ = self.ask(&["kill-server"]);
    }
}

fn checked(output: &Output) -> io::Result<String> {
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("tmux: {}", errors.trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
