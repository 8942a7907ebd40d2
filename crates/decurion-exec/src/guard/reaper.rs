//! One command and all it leaves behind. Takes the command's descriptors, reads its request from the
//! control socket, runs it, reports how it ended, and ends with nothing left below.
//!
//! A reaper is a copy of the guard, alone in its session and a subreaper, so that every process of its
//! command, however it detached itself, ends up as a child of it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use super::sweep::{self, timespec};
use crate::wire::{self, FRAME, HEADER, Order, Report, Request, Stage};
use crate::{launch, sys};

/// In a parcel: stdin, stdout, stderr, control, and perhaps the pipe for the directory.
pub(super) const LEAST_DESCRIPTORS: usize = 4;
pub(super) const MOST_DESCRIPTORS: usize = 5;
/// Which one is the control socket.
pub(super) const CONTROL: usize = 3;
/// The number of the directory pipe in the command.
const REPORT_NUMBER: i32 = 3;
/// The number of the control socket in the reaper; what is above is closed.
const CONTROL_NUMBER: i32 = 4;

/// How long to wait for a request that was announced.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// How long to strike at processes that do not end (another user's, or stuck in the kernel).
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

/// Does all of it and ends the process: with 0 if nothing is left below.
pub(super) fn run(parcel: &[OwnedFd], guard: Pid) -> ! {
    let done = std::panic::catch_unwind(|| reap_one(parcel, guard)).unwrap_or(false);
    sys::exit_now(i32::from(!done))
}

fn reap_one(parcel: &[OwnedFd], guard: Pid) -> bool {
    let Some((control, signals)) = settle(parcel, guard) else { return true };
    let Some(request) = read_request(&control) else {
        report(&control, Report::Failed(Stage::Request, libc::EBADMSG));
        return true;
    };
    match begin(&request) {
        Ok((main, launch)) => {
            // The command has its own copies; ours would keep its outputs open.
            sys::close_range(0, REPORT_NUMBER.cast_unsigned());
            drop(request);
            Watch { control, signals, launch: Some(launch), main, status: None, until: None }.finish()
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
            report(&control, Report::Failed(Stage::Fork, errno));
            true
        }
    }
}

/// Makes the copy of the guard a reaper. `None` if there is nobody left to work for.
fn settle(parcel: &[OwnedFd], guard: Pid) -> Option<(OwnedFd, OwnedFd)> {
    // The guard's end is told by a signal that we hold back and read like the others.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok()?;
    if rustix::process::getppid() != Some(guard) {
        return None;
    }
    rustix::process::setsid().ok()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok()?;
    sys::set_name(c"decurion-reaper");
    for (fd, number) in parcel.iter().take(CONTROL).zip(0..) {
        sys::place(fd, number).ok()?;
    }
    if let Some(fd) = parcel.get(CONTROL + 1) {
        sys::place(fd, REPORT_NUMBER).ok()?;
    }
    let control = sys::place_owned(&parcel[CONTROL], CONTROL_NUMBER).ok()?;
    sys::close_range(CONTROL_NUMBER.cast_unsigned() + 1, u32::MAX);
    let signals = sys::signal_queue(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).ok()?;
    Some((control, signals))
}

fn read_request(control: &OwnedFd) -> Option<Request> {
    let until = Instant::now() + REQUEST_LIMIT;
    let mut header = [0; HEADER];
    fill(control, &mut header, until)?;
    let mut blob = vec![0; wire::request_length(&header)?];
    blob[..HEADER].copy_from_slice(&header);
    fill(control, &mut blob[HEADER..], until)?;
    wire::decode(blob)
}

fn fill(control: &OwnedFd, mut buffer: &mut [u8], until: Instant) -> Option<()> {
    while !buffer.is_empty() {
        match rustix::net::recv(control, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return None,
            Ok((length, _)) => buffer = buffer.get_mut(length..)?,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let left = until.checked_duration_since(Instant::now())?;
                let _ = poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&timespec(left)));
            }
            Err(_) => return None,
        }
    }
    Some(())
}

/// Forks the command. Gives its id and a pipe that ends when it has become the program, or brings the
/// reason why it has not.
fn begin(request: &Request) -> io::Result<(Pid, OwnedFd)> {
    let (reasons, failing) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let reaper = rustix::process::getpid();
    // Made before the fork, so that the copy has little to do.
    let programs = candidates(request);
    let argv: Vec<&[u8]> = request.argv().collect();
    let envp: Vec<&[u8]> = request.envp().collect();
    if let Some(pid) = sys::fork()? {
        return Ok((pid, reasons));
    }
    let (stage, errno) = match prepare(request, reaper) {
        Ok(()) => (Stage::Program, sys::execute(&programs, &argv, &envp)),
        Err((stage, errno)) => (stage, errno.raw_os_error()),
    };
    let _ = rustix::io::write(&failing, &Report::Failed(stage, errno).to_bytes());
    sys::exit_now(127)
}

/// The paths at which the program may be, each with its closing NUL.
fn candidates(request: &Request) -> Vec<Vec<u8>> {
    let program = request.program();
    if program.contains(&b'/') {
        return vec![[program, b"\0"].concat()];
    }
    let path = request.search_path().unwrap_or(b"/usr/local/bin:/usr/bin:/bin");
    let folders =
        path.split(|byte| *byte == b':').map(|folder| if folder.is_empty() { b"." } else { folder });
    let found = folders.map(|folder| [folder, b"/", program, b"\0"].concat());
    if program.is_empty() { Vec::new() } else { found.collect() }
}

/// In the command's process, before it becomes the program.
fn prepare(request: &Request, reaper: Pid) -> Result<(), (Stage, Errno)> {
    let setup = |errno| (Stage::Setup, errno);
    rustix::process::setpgid(None, None).map_err(setup)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(setup)?;
    if rustix::process::getppid() != Some(reaper) {
        sys::exit_now(127);
    }
    limit(request).map_err(setup)?;
    if let Some(mask) = request.numbers.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    }
    let directory = std::ffi::CStr::from_bytes_with_nul(request.directory());
    let directory = directory.map_err(|_| (Stage::Directory, Errno::INVAL))?;
    rustix::process::chdir(directory).map_err(|errno| (Stage::Directory, errno))?;
    sys::release_signals();
    Ok(())
}

fn limit(request: &Request) -> Result<(), Errno> {
    let numbers = request.numbers;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    if let Some(files) = numbers.open_files {
        // Only the soft limit: a command may raise it again, as it could have without us.
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum })?;
    }
    for (resource, value) in [(Resource::Nproc, numbers.processes), (Resource::Fsize, numbers.file_bytes)] {
        if let Some(value) = value {
            // A lower limit that is in force already stays.
            let maximum = rustix::process::getrlimit(resource).maximum;
            let value = maximum.map_or(value, |maximum| maximum.min(value));
            rustix::process::setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
        }
    }
    Ok(())
}

struct Watch {
    /// Decurion holds the other end (and the guard a copy of this one).
    control: OwnedFd,
    signals: OwnedFd,
    /// Brings the reason of a failed start; `None` once the command is known to run.
    launch: Option<OwnedFd>,
    main: Pid,
    status: Option<WaitStatus>,
    /// While the command is being asked to end: when asking is over.
    until: Option<Instant>,
}

/// Why the watch is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// The command ended.
    Ended,
    /// It never ran.
    NotStarted,
    /// It was asked to end and has not.
    Overdue,
    /// Nobody wants to know any more.
    Abandoned,
    /// The guard is gone.
    GuardLost,
}

impl Watch {
    /// `true` if nothing is left below.
    fn finish(mut self) -> bool {
        match self.watch() {
            Over::Ended => {
                let clean = !self.bury();
                self.report_status(clean);
                clean || {
                    let done = self.sweep();
                    report(&self.control, Report::Swept);
                    done
                }
            }
            Over::Overdue => {
                let done = self.sweep();
                self.report_status(true);
                done
            }
            Over::GuardLost => {
                let done = self.sweep();
                report(&self.control, Report::Unknown);
                done
            }
            Over::NotStarted | Over::Abandoned => self.sweep(),
        }
    }

    fn watch(&mut self) -> Over {
        loop {
            let (launched, ordered, signalled) = self.wait();
            if launched && !self.take_launch() {
                return Over::NotStarted;
            }
            if signalled && let Some(over) = self.take_signals() {
                return over;
            }
            // While it is being asked to end, what it left has the rest of the time to end too.
            if self.status.is_some() && (self.until.is_none() || !self.bury()) {
                // It may have ended before the news of its start were read.
                return if self.take_launch() { Over::Ended } else { Over::NotStarted };
            }
            if ordered && !self.take_order() {
                return Over::Abandoned;
            }
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Over::Overdue;
            }
        }
    }

    /// Waits for something to do: (news of the start, an order, a signal).
    fn wait(&self) -> (bool, bool, bool) {
        let launch = self.launch.as_ref().map_or(self.control.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(launch, PollFlags::IN),
        ];
        let count = if self.launch.is_some() { 3 } else { 2 };
        let left = self.until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        if poll(&mut fds[..count], left.as_ref()).is_err() {
            return (false, false, true);
        }
        let ready = |at: usize| at < count && !fds[at].revents().is_empty();
        (ready(2), ready(0), ready(1))
    }

    /// `false` if the command could not be started, which is reported.
    fn take_launch(&mut self) -> bool {
        let Some(launch) = self.launch.take() else { return true };
        let mut bytes = [0; FRAME];
        match rustix::io::read(&launch, &mut bytes) {
            Ok(FRAME) => {
                let failed = Report::from_bytes(bytes);
                report(&self.control, failed.unwrap_or(Report::Failed(Stage::Setup, libc::EIO)));
                false
            }
            Err(Errno::INTR) => {
                self.launch = Some(launch);
                true
            }
            _ => {
                report(&self.control, Report::Started(self.main.as_raw_nonzero().get()));
                true
            }
        }
    }

    /// `false` when Decurion has let go of the command.
    fn take_order(&mut self) -> bool {
        let mut bytes = [0; FRAME];
        match rustix::net::recv(&self.control, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((FRAME, _)) => {
                if let Some(Order::Stop(grace)) = Order::from_bytes(bytes) {
                    self.ask_to_end(grace);
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            _ => false,
        }
    }

    fn ask_to_end(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        // A second order can only make it sooner.
        self.until = Some(self.until.map_or(until, |earlier| earlier.min(until)));
        if self.status.is_none() && !grace.is_zero() {
            // A stopped process would not hear it, so it is woken as well.
            for signal in [Signal::TERM, Signal::CONT] {
                if rustix::process::kill_process_group(self.main, signal).is_err() {
                    // It has left its own group.
                    let _ = rustix::process::kill_process(self.main, signal);
                }
            }
        }
    }

    fn take_signals(&mut self) -> Option<Over> {
        while let Some(signal) = sys::next_signal(&self.signals) {
            if signal != libc::SIGCHLD {
                return Some(Over::GuardLost);
            }
        }
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = matches!(rustix::process::waitid(WaitId::Pid(self.main), peek), Ok(Some(_)));
        if ended && self.status.is_none() && self.until.is_none() {
            // Before it is buried, while its number cannot be anyone else's.
            let _ = rustix::process::kill_process_group(self.main, Signal::KILL);
        }
        self.bury();
        None
    }

    /// Buries the dead. `false` if there are no children any more.
    fn bury(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Ends everything below. `true` if that worked.
    fn sweep(&mut self) -> bool {
        let begun = Instant::now();
        let mut pause = sweep::FIRST_PAUSE;
        while self.bury() {
            if begun.elapsed() > SWEEP_LIMIT {
                return false;
            }
            sweep::strike(&[]);
            pause = sweep::rest(&self.signals, pause);
        }
        true
    }

    fn report_status(&self, clean: bool) {
        let exit = self.status.and_then(|status| {
            let code = status.exit_status().map(launch::Exit::Code);
            code.or_else(|| status.terminating_signal().map(launch::Exit::Signal))
        });
        report(
            &self.control,
            match exit {
                Some(launch::Exit::Code(code)) => Report::Exited { code, clean },
                Some(launch::Exit::Signal(signal)) => Report::Signalled { signal, clean },
                _ => Report::Unknown,
            },
        );
    }
}

fn report(control: &OwnedFd, report: Report) {
    // Nobody may be there to hear it.
    let _ = rustix::net::send(control, &report.to_bytes(), SendFlags::NOSIGNAL);
}
