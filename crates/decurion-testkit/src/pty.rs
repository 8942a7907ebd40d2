//! A program in a terminal of its own, down to the bytes. Takes a program and keys, gives every byte that it wrote, what
//! a terminal shows of them, and whether the terminal was left as it was found.
//!
//! The program is the foreground job of a session whose leader only waits, as a shell does: what the kernel does to a
//! terminal when its session ends must not hide what the program left undone.
#![allow(clippy::disallowed_methods)] // a test starts real processes; it is not part of the product

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::panic::AssertUnwindSafe;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::proc::Program;
use crate::proc::canary::Printed;
use crate::sys::{self, Ending, Modes};

/// A program asks what kind of terminal it is in, and what that says.
const ASKED: &[u8] = b"\x1b[c";
const ANSWERED: &[u8] = b"\x1b[?62;22c";
/// How many lines above the screen are remembered.
const SCROLLBACK: usize = 10_000;

/// A terminal in which a program runs. Dropping it kills both.
#[derive(Debug)]
pub struct Pty {
    /// None once the terminal was closed.
    master: Option<File>,
    /// Says how the program ended.
    report: File,
    leader: Child,
    pid: i32,
    size: (u16, u16),
    /// How the terminal was before the program had it.
    before: Modes,
    /// Everything that the program wrote.
    written: Vec<u8>,
    screen: Shown,
    ended: Option<Ending>,
    /// Whether it says nothing but what it is told to.
    silent: bool,
    printed: Printed,
}

/// What a terminal makes of bytes.
struct Shown(vt100::Parser);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl Pty {
    /// Starts a program in a terminal of so many columns and rows.
    pub fn start(program: &Program, size: (u16, u16)) -> io::Result<Self> {
        let (master, slave) = sys::open_terminal(size)?;
        let before = sys::modes(&master)?;
        let (report, reporter) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let like = program.command();
        let mut command = Command::new(like.get_program());
        command.args(like.get_args()).env_clear();
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if !like.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm-256color");
        }
        if let Some(folder) = like.get_current_dir() {
            command.current_dir(folder);
        }
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        sys::led(&mut command, &reporter);
        let leader = command.spawn()?;
        drop((command, reporter));
        let mut report = File::from(report);
        let pid = number(&mut report)?;
        let screen = Shown(vt100::Parser::new(size.1, size.0, SCROLLBACK));
        let master = Some(File::from(master));
        Ok(Self {
            master,
            report,
            leader,
            pid,
            size,
            before,
            written: Vec::new(),
            screen,
            ended: None,
            silent: false,
            printed: program.printed().clone(),
        })
    }

    /// The process id of the program.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Answers nothing from here on: whoever tries answers writes them.
    pub fn keep_silent(&mut self) {
        self.silent = true;
    }

    /// Types bytes, as they come from a keyboard.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        // In pieces, with a look at the output between them: who writes and does not read waits for ever.
        for piece in bytes.as_ref().chunks(512) {
            self.pump(Duration::ZERO)?;
            self.master()?.write_all(piece)?;
        }
        Ok(())
    }

    /// Makes the terminal larger or smaller.
    pub fn resize(&mut self, size: (u16, u16)) -> io::Result<()> {
        sys::resize_terminal(self.master()?, size)?;
        self.size = size;
        let parser = &mut self.screen.0;
        // The parser has troubles of its own with very small screens; they are not what is tried here.
        if std::panic::catch_unwind(AssertUnwindSafe(|| parser.screen_mut().set_size(size.1, size.0)))
            .is_err()
        {
            self.renew();
        }
        Ok(())
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.pid).ok_or_else(|| io::Error::other("no such process"))?;
        Ok(kill_process(pid, signal)?)
    }

    /// Closes the terminal, as when its window is closed.
    pub fn close(&mut self) {
        self.master = None;
    }

    /// Takes what the program writes within this time. Gives whether anything came.
    pub fn pump(&mut self, time: Duration) -> io::Result<bool> {
        let Some(master) = &mut self.master else {
            std::thread::sleep(time);
            return Ok(false);
        };
        let wait = Timespec::try_from(time).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(master, PollFlags::IN)];
        if poll(&mut ready, Some(&wait))? == 0 || !ready[0].revents().contains(PollFlags::IN) {
            return Ok(false);
        }
        let mut piece = [0; 16 << 10];
        let count = match master.read(&mut piece) {
            Ok(count) => count,
            // Nobody has the terminal any more.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.written.extend_from_slice(&piece[..count]);
        self.answer(count)?;
        let parser = &mut self.screen.0;
        if std::panic::catch_unwind(AssertUnwindSafe(|| parser.process(&piece[..count]))).is_err() {
            self.renew();
        }
        Ok(count > 0)
    }

    /// Answers the one question that every terminal answers, if it is in what came last: what kind of terminal it is.
    fn answer(&mut self, count: usize) -> io::Result<()> {
        // A question may be cut in two.
        let from = self.written.len().saturating_sub(count + ASKED.len() - 1);
        if !self.silent && memchr::memmem::find(&self.written[from..], ASKED).is_some() {
            self.master()?.write_all(ANSWERED)?;
        }
        Ok(())
    }

    /// Takes what the program writes for so long.
    pub fn rest(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.pump(left.min(Duration::from_millis(20)))?;
            if left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Waits until the screen shows this; gives the screen, which is the error if it never does.
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<String, String> {
        self.wait(limit, |screen| screen.contains(text))
            .map_err(|screen| format!("the screen never showed {text:?}:\n{screen}"))
    }

    /// Waits until the screen fits.
    pub fn wait(&mut self, limit: Duration, fits: impl Fn(&str) -> bool) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        loop {
            let screen = self.screen();
            if fits(&screen) {
                return Ok(screen);
            }
            if Instant::now() >= deadline {
                return Err(screen);
            }
            self.pump(Duration::from_millis(20)).map_err(|error| error.to_string())?;
        }
    }

    /// Waits for the end of the program and takes all that it wrote; none if it does not come in time.
    pub fn end(&mut self, limit: Duration) -> io::Result<Option<Ending>> {
        let deadline = Instant::now() + limit;
        while self.ended.is_none() {
            let now = Instant::now();
            if now >= deadline {
                return Ok(None);
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut ready = [PollFd::new(&self.report, PollFlags::IN)];
            if poll(&mut ready, Some(&wait))? > 0 {
                let status = number(&mut self.report)?;
                self.ended = Some(sys::ending(status));
            } else {
                self.pump(Duration::from_millis(2))?;
            }
        }
        while self.pump(Duration::ZERO)? {}
        Ok(self.ended)
    }

    /// What the screen shows, without empty rows at its end.
    pub fn screen(&self) -> String {
        let contents = self.screen.0.screen().contents();
        contents.trim_end().to_owned()
    }

    /// The screen with everything that a terminal knows of it.
    pub fn shown(&self) -> &vt100::Screen {
        self.screen.0.screen()
    }

    /// Every byte that was written so far.
    pub fn written(&self) -> &[u8] {
        &self.written
    }

    /// Forgets what was written so far.
    pub fn forget(&mut self) {
        self.printed.search("a program in a terminal", &self.written);
        self.written.clear();
    }

    /// What is other than it was before the program had the terminal. Of one that was closed nothing is left.
    pub fn left_behind(&self) -> Vec<String> {
        if self.master.is_none() {
            return Vec::new();
        }
        let screen = self.screen.0.screen();
        let mut left = Vec::new();
        if let Some(master) = &self.master {
            match sys::modes(master) {
                Ok(now) if now == self.before => {}
                Ok(now) => left.push(format!("modes {now:?} instead of {:?}", self.before)),
                Err(error) => left.push(format!("no modes: {error}")),
            }
        }
        let states = [
            (screen.hide_cursor(), "the cursor is hidden"),
            (screen.bracketed_paste(), "pastes are bracketed"),
            (screen.alternate_screen(), "the alternate screen is shown"),
            (screen.application_cursor(), "arrows are an application's"),
            (screen.mouse_protocol_mode() != vt100::MouseProtocolMode::None, "the mouse is reported"),
        ];
        left.extend(states.into_iter().filter(|(is, _)| *is).map(|(_, what)| what.to_owned()));
        left.extend(open_modes(&self.written).into_iter().map(|mode| format!("mode {mode} is left on")));
        left
    }

    /// How the terminal's modes are now.
    pub fn modes(&self) -> io::Result<Modes> {
        self.master.as_ref().ok_or_else(closed).and_then(sys::modes)
    }

    /// How they were before the program had it.
    pub fn modes_before(&self) -> Modes {
        self.before
    }

    fn master(&mut self) -> io::Result<&mut File> {
        self.master.as_mut().ok_or_else(closed)
    }

    /// Begins with an empty screen.
    fn renew(&mut self) {
        self.screen = Shown(vt100::Parser::new(self.size.1.max(2), self.size.0.max(4), SCROLLBACK));
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.signal(Signal::KILL);
        }
        let _ = self.leader.kill();
        let _ = self.leader.wait();
        self.forget();
    }
}

fn closed() -> io::Error {
    io::Error::other("the terminal is closed")
}

/// A number as the leader tells it.
fn number(report: &mut File) -> io::Result<i32> {
    let mut bytes = [0; 4];
    report.read_exact(&mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// Those private modes that were switched on, or off where on is usual, and never back.
fn open_modes(written: &[u8]) -> Vec<String> {
    let mut modes: Vec<(String, bool)> = Vec::new();
    let text = String::from_utf8_lossy(written);
    for rest in text.split("\x1b[?").skip(1) {
        let Some(end) = rest.find(|letter: char| !matches!(letter, '0'..='9' | ';')) else { continue };
        let on = match rest.as_bytes()[end] {
            b'h' => true,
            b'l' => false,
            _ => continue,
        };
        for mode in rest[..end].split(';') {
            // Three names of one thing, and each of them ends it.
            let mode = if matches!(mode, "47" | "1047" | "1049") { "1049" } else { mode };
            match modes.iter_mut().find(|(known, _)| known == mode) {
                Some((_, state)) => *state = on,
                None => modes.push((mode.to_owned(), on)),
            }
        }
    }
    // Wrapping and the cursor are on in a terminal that nobody has touched.
    let usual = |mode: &str| matches!(mode, "7" | "25");
    modes.into_iter().filter(|(mode, on)| *on != usual(mode)).map(|(mode, _)| mode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::Home;

    const LIMIT: Duration = Duration::from_secs(30);

    fn shell(home: &Home, script: &str) -> Pty {
        Pty::start(&home.program("bash").args(["--norc", "-c", script]), (40, 10)).unwrap()
    }

    #[test]
    fn keys_go_in_and_a_screen_comes_out() {
        let home = Home::new().unwrap();
        let mut pty = shell(&home, "read -r line; printf 'heard \\033[1m%s\\033[0m\\n' \"$line\"; exit 3");
        pty.write("hello\r").unwrap();
        pty.wait_for("heard hello", LIMIT).unwrap();
        assert_eq!(pty.end(LIMIT).unwrap(), Some(Ending::Exited(3)));
        assert_eq!(pty.left_behind(), Vec::<String>::new());
        assert!(pty.written().windows(4).any(|bytes| bytes == b"\x1b[1m"));
    }

    #[test]
    fn what_is_left_behind_is_seen() {
        let home = Home::new().unwrap();
        let mut pty = shell(
            &home,
            "stty raw -echo; printf '\\033[?25l\\033[?2004h\\033[?1049h\\033[?2026h'; kill -9 $$",
        );
        assert_eq!(pty.end(LIMIT).unwrap(), Some(Ending::Signalled(9)));
        let left = pty.left_behind().join(", ");
        for what in ["modes", "cursor", "bracketed", "alternate", "mode 2026", "mode 25 "] {
            assert!(left.contains(what), "no {what} in {left}");
        }
    }

    #[test]
    fn a_closed_terminal_hangs_up_and_a_signal_arrives() {
        let home = Home::new().unwrap();
        let mut pty = shell(&home, "trap 'exit 7' HUP; echo ready; while :; do sleep 0.01; done");
        pty.wait_for("ready", LIMIT).unwrap();
        pty.close();
        assert_eq!(pty.end(LIMIT).unwrap(), Some(Ending::Exited(7)));
        let mut pty = shell(&home, "trap 'exit 8' TERM; echo ready; while :; do sleep 0.01; done");
        pty.wait_for("ready", LIMIT).unwrap();
        pty.signal(Signal::TERM).unwrap();
        assert_eq!(pty.end(LIMIT).unwrap(), Some(Ending::Exited(8)));
    }

    #[test]
    fn a_resize_is_told() {
        let home = Home::new().unwrap();
        let mut pty = shell(&home, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.01; done");
        pty.wait_for("ready", LIMIT).unwrap();
        pty.resize((33, 9)).unwrap();
        pty.wait_for("9 33", LIMIT).unwrap();
    }
}
