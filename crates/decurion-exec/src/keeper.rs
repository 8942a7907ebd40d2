//! The keeper of a terminal. Takes the program that a person started, starts it once more as a child that does the work,
//! and waits; gives how the child ended, with the terminal as it was before.
//!
//! Two processes, for two promises: work can outlive the terminal that it was begun at, since the shell waits for the
//! keeper only, and a terminal is usable again even after the one that drew on it was killed.
//!
//! | from | to | signal | means |
//! |---|---|---|---|
//! | keeper | child | `TERM`, `HUP` | as it came |
//! | keeper | child | `USR1` | `INT` came: both are in the terminal's group, and the child would count its own twice |
//! | keeper | child | `USR2` | `TSTP` came: the child gives the terminal back and stops the whole group |
//! | keeper | child | `CONT` | as it came |
//! | child | keeper | `USR1` | the child goes on alone |
//!
//! A child that has no use for them yet takes no notice of `USR1` and `USR2`; `INT` and `TSTP` do to it then what they do
//! to any program, and a keeper whose child is stopped stops too.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, waitpid};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::{foreground, limits, sys};

/// How the child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnding {
    Exited(u8),
    /// By this signal. What it drew may still be there.
    Killed {
        signal: i32,
        /// Whether it had the terminal to itself then.
        held: bool,
    },
    /// Not at all: it continues without a terminal.
    WentOn,
}

/// The id that a child is given to know its keeper by.
pub fn own_id() -> i32 {
    getpid().as_raw_nonzero().get()
}

/// Runs the program as a child at this terminal until it ends or detaches. The process must have one thread.
pub fn keep(program: &OsStr, arguments: &[OsString]) -> io::Result<ChildEnding> {
    let terminal = tcgetattr(io::stdin()).ok();
    let watched = [
        libc::SIGCHLD,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTSTP,
        libc::SIGCONT,
    ]
    .into_iter()
    .chain([libc::SIGUSR1])
    .collect::<Vec<_>>();
    let signals = sys::signal_queue(&watched)?;
    // From its first moment on, and until it has a use for them.
    sys::ignore(&[libc::SIGUSR1, libc::SIGUSR2]);
    #[expect(clippy::disallowed_methods, reason = "this process itself, once more; it ends with its keeper")]
    let mut command = Command::new(program);
    sys::before_exec(command.args(arguments), || {
        // It finds everything as this one did, or it would take our mask for the person's.
        limits::as_before();
        Ok(())
    });
    let child = Pid::from_child(&command.spawn()?);
    let mut is_stopped = false;
    let ending = loop {
        while let Some(signal) = sys::next_signal(&signals) {
            is_stopped &= signal != libc::SIGCONT;
            match pass_on(signal) {
                // Not waited for yet, so that its number is its own.
                Passed::To(signal) => drop(kill_process(child, signal)),
                Passed::LetGo => return Ok(ChildEnding::WentOn),
                Passed::Nothing => {}
            }
        }
        // The shell learns about this process only.
        if std::mem::take(&mut is_stopped) && foreground::has_shell() {
            let _ = rustix::process::kill_current_process_group(Signal::STOP);
        }
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG | WaitOptions::UNTRACED)? {
            if let Some(ending) = ended(status) {
                break ending;
            }
            // Stopped; but if the shell has just continued both, that is still to be read.
            is_stopped = true;
            continue;
        }
        let mut ready = [PollFd::new(&signals, PollFlags::IN)];
        let _ = poll(&mut ready, None);
    };
    let Some(terminal) = terminal else { return Ok(ending) };
    let ending = match ending {
        ChildEnding::Killed { signal, .. } => ChildEnding::Killed { signal, held: is_held(&terminal) },
        ending => ending,
    };
    give_back(&terminal);
    Ok(ending)
}

/// What a signal to the keeper means for the child.
enum Passed {
    To(Signal),
    LetGo,
    Nothing,
}

fn pass_on(signal: i32) -> Passed {
    match signal {
        libc::SIGTERM | libc::SIGQUIT => Passed::To(Signal::TERM),
        libc::SIGHUP => Passed::To(Signal::HUP),
        libc::SIGINT => Passed::To(Signal::USR1),
        libc::SIGTSTP => Passed::To(Signal::USR2),
        libc::SIGCONT => Passed::To(Signal::CONT),
        libc::SIGUSR1 => Passed::LetGo,
        _ => Passed::Nothing,
    }
}

/// How the child ended, if it did.
fn ended(status: WaitStatus) -> Option<ChildEnding> {
    let exited = status.exit_status().map(|code| ChildEnding::Exited(u8::try_from(code).unwrap_or(1)));
    let killed = |signal| ChildEnding::Killed { signal, held: false };
    exited.or_else(|| status.terminating_signal().map(killed))
}

/// Whether a program reads every key of the terminal, and none did before.
fn is_held(before: &Termios) -> bool {
    let reads_lines = |terminal: &Termios| terminal.local_modes.contains(LocalModes::ICANON);
    // An editor has its own group.
    foreground::is_in_front()
        && reads_lines(before)
        && tcgetattr(io::stdin()).is_ok_and(|now| !reads_lines(&now))
}

/// Lets the terminal be as it was, where the child did not.
fn give_back(before: &Termios) {
    // In the background of a shell this would stop us; there the shell has the terminal, and has put it right.
    if foreground::is_in_front() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
    }
}

/// What holds a child to its keeper.
#[derive(Clone, Copy, Debug)]
pub struct Leash {
    keeper: Pid,
}

impl Leash {
    /// A link to the keeper with this id: the end of the keeper is now a hangup for us. It is an error if the keeper is
    /// gone already, since no process would restore the terminal.
    ///
    /// To be called by the first thread of a program, which receives the signal of a keeper's end.
    pub fn to(keeper: i32) -> io::Result<Self> {
        // What the keeper holds back to read it is held back here too, until it is released.
        sys::release_signals();
        rustix::process::set_parent_process_death_signal(Some(Signal::HUP))?;
        let keeper = Pid::from_raw(keeper).filter(|keeper| getppid() == Some(*keeper));
        keeper.map(|keeper| Self { keeper }).ok_or_else(|| io::Error::other("it is gone"))
    }

    /// Detaches from the terminal: its end, and that of its shell or the keeper, no longer reach us.
    pub fn let_go(self) -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(None)?;
        let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::process::setsid()?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        kill_process(self.keeper, Signal::USR1)?;
        Ok(())
    }
}
