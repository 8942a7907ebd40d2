//! The program in the terminal's foreground: this one, or for a while another one, such as an editor. Takes the program
//! to run, and from other tasks the wish that it end; gives how it ended, with the terminal back in our control.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid, kill_current_process_group,
    kill_process_group, set_parent_process_death_signal, waitid, waitpid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use crate::guard::parent_of;
use crate::{limits, orphans, sys};

/// How often to check whether we were continued.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// A person's program in front, while there is one. One thread runs it, another may end it.
#[derive(Debug, Default)]
pub struct Front(Mutex<ForegroundState>);

#[derive(Debug, Default)]
struct ForegroundState {
    /// The group of what runs. Its number is its own until it is waited for, which happens under the lock.
    group: Option<Pid>,
    /// Whether nothing is to be run any more.
    is_over: bool,
}

/// How to ask a program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRequest {
    /// It is asked to.
    Terminate,
    /// Its terminal is gone.
    Hangup,
    /// It has no choice.
    Kill,
}

impl Front {
    /// Runs a program at the terminal until it ends, without capturing its output. It has its own process group, so
    /// that keys typed there reach no other process, and the signal mask and limits that this program was started with.
    pub fn run(&self, program: &OsStr, arguments: &[OsString]) -> io::Result<ExitStatus> {
        orphans::not_adopting(|| self.run_in_front(program, arguments))
    }

    fn run_in_front(&self, program: &OsStr, arguments: &[OsString]) -> io::Result<ExitStatus> {
        let outside = "the terminal cannot be lent: this program's process group is outside of its pid namespace; start it with `setsid --ctty` there";
        let own = sys::group(None)?.ok_or_else(|| io::Error::other(outside))?;
        let group = self.start(program, arguments, own)?;
        let status = loop {
            let status = match self.wait(group) {
                Ok(Some(status)) => status,
                Ok(None) => continue,
                Err(error) => {
                    self.lock().group = None;
                    hand_over(group, own);
                    return Err(error);
                }
            };
            let Some(signal) = status.stopping_signal() else { break status };
            let is_ours = in_front().is_some_and(|front| front == own || front == group);
            if !(is_about_terminal(signal) && is_ours) {
                hand_over(group, own);
                // Without a shell no process would continue us, so we continue at once.
                stop_group();
            }
            hand_over(own, group);
            let _ = kill_process_group(group, Signal::CONT);
        };
        hand_over(group, own);
        Ok(ExitStatus::from_raw(status.as_raw()))
    }

    /// Lets what runs end, if something does. Nothing is run from here on.
    pub fn end(&self, how: EndRequest) {
        let mut state = self.lock();
        state.is_over = true;
        let Some(group) = state.group else { return };
        let signal = match how {
            EndRequest::Terminate => Signal::TERM,
            EndRequest::Hangup => Signal::HUP,
            EndRequest::Kill => Signal::KILL,
        };
        let _ = kill_process_group(group, signal);
        // A stopped process receives the signal when it continues.
        let _ = kill_process_group(group, Signal::CONT);
    }

    fn start(&self, program: &OsStr, arguments: &[OsString], own: Pid) -> io::Result<Pid> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a person's own program, at the terminal, which ends with us"
        )]
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        // A background process does not take the terminal.
        let is_in_front = in_front() == Some(own);
        sys::before_exec(&mut command, if is_in_front { begin_in_front } else { begin });
        let mut state = self.lock();
        if state.is_over {
            return Err(io::Error::other("the program is about to end"));
        }
        let group = Pid::from_child(&command.spawn()?);
        state.group = Some(group);
        Ok(group)
    }

    /// Waits until it has ended or was stopped; none if it has gone on meanwhile.
    fn wait(&self, group: Pid) -> io::Result<Option<WaitStatus>> {
        let wanted = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(group), wanted) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut state = self.lock();
        let status = waitpid(Some(group), WaitOptions::UNTRACED | WaitOptions::NOHANG)?;
        let status = status.map(|(_, status)| status);
        if status.is_some_and(|status| status.stopping_signal().is_none()) {
            state.group = None;
        }
        Ok(status)
    }

    fn lock(&self) -> MutexGuard<'_, ForegroundState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a program was stopped because it stood in the background.
fn is_about_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGTTIN | libc::SIGTTOU)
}

fn begin() -> io::Result<()> {
    limits::as_before();
    set_parent_process_death_signal(Some(Signal::HUP))?;
    Ok(())
}

fn begin_in_front() -> io::Result<()> {
    give_terminal(getpid());
    begin()
}

/// The group that has the terminal.
fn in_front() -> Option<Pid> {
    tcgetpgrp(io::stdin()).ok()
}

/// Whether this program's own group has the terminal.
pub(crate) fn is_in_front() -> bool {
    in_front().is_some_and(|front| sys::group(None).is_ok_and(|own| own == Some(front)))
}

/// Gives the terminal from one group to another; where a third has it, the shell for example, it stays there.
fn hand_over(from: Pid, to: Pid) {
    if in_front() == Some(from) {
        give_terminal(to);
    }
}

fn give_terminal(group: Pid) {
    // The system stops a background process that does this, unless it blocks that signal.
    let _ = sys::without(libc::SIGTTOU, || tcsetpgrp(io::stdin(), group));
}

/// Stops all processes of this program's group, as the shell does; returns when they continue. Without a shell it stops
/// nothing and returns false.
pub fn stop_group() -> bool {
    if !has_shell() {
        return false;
    }
    sys::count_continued();
    let before = sys::continued();
    if kill_current_process_group(Signal::STOP).is_err() {
        return false;
    }
    // Another thread may be the one that takes the signal, and this one some steps further by then.
    while sys::continued() == before {
        let _ = poll(&mut [], Some(&LOOK));
    }
    true
}

/// Whether there is a shell that would continue this program's group after a stop: an ancestor in the same session, as
/// the system itself checks. There is none if the terminal was opened for this program.
pub(crate) fn has_shell() -> bool {
    let (Ok(session), Ok(group)) = (sys::session(None), sys::group(None)) else { return false };
    if session == group {
        return false;
    }
    let mut process = getpid();
    while let Some(parent) = parent_of(process) {
        match sys::group(Some(parent)) {
            Ok(same) if same == group => process = parent,
            _ => return sys::session(Some(parent)).is_ok_and(|above| above == session),
        }
    }
    false
}
