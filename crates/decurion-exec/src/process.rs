//! One running command. Gives its outputs as they come and its [`Exit`] at the end; dropping it ends the
//! command and everything it started, at once.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::capture::Capture;
use crate::guard::GuardConnection;
use crate::launch::{Exit, Launch, LaunchError, Output, Stdin};
use crate::orphans::Aftermath;
use crate::wire::{FRAME, ReaperOrder, ReaperReport, StartStage};

/// How long to wait, after a command ended, for the last of what it left to be gone.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);
/// How long to continue reading after that. The writers are gone, so only the rest of the pipe is still to come; unless
/// a process outside got the pipe, which must not keep us waiting.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// A directory is not longer than this; twice, since it may be sent twice.
const LONGEST_REPORT: u64 = 2 * 4096 + 8;

/// A command that was started. Dropping it kills it and all its descendants.
pub struct Process {
    /// Where to write, for [`Stdin::Piped`]. Dropping it is the end of the command's input.
    pub stdin: Option<pipe::Sender>,
    /// The command's output, both streams if they are merged.
    pub stdout: Option<pipe::Receiver>,
    /// Its errors, for [`Output::Separate`].
    pub stderr: Option<pipe::Receiver>,
    pid: u32,
    /// The reaper holds the other end. The only strong reference, so that dropping it closes it.
    control: Arc<UnixStream>,
    reports: Reports,
    cwd: Option<pipe::Receiver>,
    exit: Option<Exit>,
    swept: bool,
    /// Writes an input that is larger than a pipe.
    _feeding: Option<AbortOnDropHandle<()>>,
    _place: Option<OwnedSemaphorePermit>,
    aftermath: Aftermath,
    /// Keeps the guard alive.
    guard: Arc<GuardConnection>,
}

/// Asks a process to end, from elsewhere. Holding it keeps nothing alive.
#[derive(Clone, Debug)]
pub struct ProcessStopper(Weak<UnixStream>);

impl Process {
    pub(crate) fn new(
        ends: Ends,
        place: Option<OwnedSemaphorePermit>,
        guard: Arc<GuardConnection>,
    ) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::Resources { what: "the command's pipes", source };
        let (stdin, feeding) = ends.stdin.open().map_err(failed)?;
        let receiver = |fd: Option<OwnedFd>| fd.map(pipe::Receiver::from_owned_fd).transpose();
        let control = UnixStream::from_std(ends.control.into()).map_err(failed)?;
        Ok(Self {
            stdin,
            stdout: receiver(Some(ends.stdout)).map_err(failed)?,
            stderr: receiver(ends.stderr).map_err(failed)?,
            pid: 0,
            control: Arc::new(control),
            reports: Reports { sent: ends.requested, ..Reports::default() },
            cwd: receiver(ends.cwd).map_err(failed)?,
            exit: None,
            swept: false,
            _feeding: feeding,
            _place: place,
            aftermath: Aftermath::default(),
            guard,
        })
    }

    /// Sends the rest of the request and waits until the command runs, or says why it does not. A reaper
    /// that was killed before it could tell leaves a process that has ended as [`Exit::Unknown`].
    pub(crate) async fn started(&mut self, request: &[u8]) -> Result<(), (StartStage, i32)> {
        while self.reports.sent < request.len() {
            // A reaper that refuses the request says why before it hangs up.
            let Ok(()) = self.control.writable().await else { break };
            match self.control.try_write(&request[self.reports.sent..]) {
                Ok(length) => self.reports.sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        match self.reports.next(&self.control).await {
            Some(ReaperReport::Started(pid)) => {
                self.pid = pid.unsigned_abs();
                Ok(())
            }
            Some(ReaperReport::Failed(stage, errno)) => Err((stage, errno)),
            // The waiting caller gets the error.
            _ => Ok(()),
        }
    }

    /// The process id of the command, which is also its process group; 0 if it was never told. In a sandbox with
    /// namespaces it is the number inside, which means another process outside, or none.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A handle to ask this process to end.
    pub fn stopper(&self) -> ProcessStopper {
        ProcessStopper(Arc::downgrade(&self.control))
    }

    /// Waits until the command has ended and everything it left is gone. Can be cancelled and called again. Outputs
    /// that are not read can keep a command from ending.
    pub async fn wait(&mut self) -> Exit {
        while self.exit.is_none() {
            match self.reports.next(&self.control).await {
                Some(ReaperReport::Exited { code, clean }) => self.ended(Exit::Code(code), clean),
                Some(ReaperReport::Signalled { signal, clean }) => self.ended(Exit::Signal(signal), clean),
                Some(ReaperReport::OverLimit { limit, clean }) => self.ended(Exit::OverLimit(limit), clean),
                report @ (Some(ReaperReport::Unknown) | None) => {
                    self.aftermath = self.guard.aftermath(report.is_some()).await;
                    self.ended(Exit::Unknown, true);
                }
                Some(ReaperReport::Started(_) | ReaperReport::Failed(..) | ReaperReport::Swept) => {}
            }
        }
        if !self.swept {
            // The reaper reports it, or the stream ends. A process that cannot be ended must not block the caller.
            let _ = timeout(SWEEP_LIMIT, self.reports.next(&self.control)).await;
            self.swept = true;
        }
        self.exit.unwrap_or(Exit::Unknown)
    }

    /// What became of what it started, where its end was not seen. To be called after [`Process::wait`].
    pub fn aftermath(&self) -> &Aftermath {
        &self.aftermath
    }

    fn ended(&mut self, exit: Exit, clean: bool) {
        self.exit = Some(exit);
        self.swept = clean;
    }

    /// Asks the command to end, kills everything after `grace`, and waits for that.
    pub async fn stop(&mut self, grace: Duration) -> Exit {
        self.stopper().stop(grace);
        // The reaper keeps the time; the limit here is for a reaper that was itself tampered with.
        timeout(grace + SWEEP_LIMIT, self.wait()).await.unwrap_or(Exit::Unknown)
    }

    /// Reads the outputs to their end and waits for the command: errors go to `errors`, or nowhere.
    /// `observe` sees each piece of output as it comes.
    pub async fn collect(
        &mut self,
        output: &mut Capture,
        errors: Option<&mut Capture>,
        mut observe: impl FnMut(&[u8]),
    ) -> Exit {
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let reading = async {
            let mut ignored = Capture::new(crate::CaptureBounds::NOTHING);
            tokio::join!(
                output.drain(stdout, &mut observe),
                errors.unwrap_or(&mut ignored).drain(stderr, |_: &[u8]| {}),
            );
        };
        let mut reading = pin!(reading);
        let exit = tokio::select! {
            biased;
            () = &mut reading => return self.wait().await,
            exit = self.wait() => exit,
        };
        let _ = timeout(READ_LIMIT, reading).await;
        exit
    }

    /// The directory the command told at its end, for [`Launch::report_cwd`]; `None` if it told none. To
    /// be called after [`Process::wait`].
    pub async fn cwd(&mut self) -> Option<PathBuf> {
        let mut told = Vec::new();
        let reader = self.cwd.take()?;
        let _ = timeout(READ_LIMIT, reader.take(LONGEST_REPORT).read_to_end(&mut told)).await;
        directory_told(&told)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its guard may have been stopped, and then would not hear of it. Awake, it wakes the reaper.
        if self.exit.is_none() {
            self.guard.signal(Signal::CONT);
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("pid", &self.pid).field("exit", &self.exit).finish_non_exhaustive()
    }
}

impl ProcessStopper {
    /// Asks the command to end, and lets its reaper kill everything after `grace`; at once if it is zero.
    /// Does nothing if the process is gone. Asking again can only make it sooner.
    pub fn stop(&self, grace: Duration) {
        if let Some(control) = self.0.upgrade() {
            // Eight bytes always find room: the reaper has read what was sent before.
            let _ = rustix::net::send(&*control, &ReaperOrder::Stop(grace).to_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

/// The last directory in what a shell told: each is a NUL, the path and a line feed.
fn directory_told(told: &[u8]) -> Option<PathBuf> {
    let last = told.rsplit(|byte| *byte == 0).next()?;
    let path = last.strip_suffix(b"\n")?;
    path.starts_with(b"/").then(|| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))
}

/// Reports as they arrive, perhaps in pieces.
#[derive(Default)]
struct Reports {
    /// How much of the request was sent.
    sent: usize,
    bytes: [u8; FRAME],
    filled: usize,
}

impl Reports {
    /// The next one; `None` at the end of the stream, or if it makes no sense. Can be cancelled.
    async fn next(&mut self, control: &UnixStream) -> Option<ReaperReport> {
        loop {
            control.readable().await.ok()?;
            match control.try_read(&mut self.bytes[self.filled..]) {
                Ok(0) => return None,
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            if self.filled == FRAME {
                self.filled = 0;
                return ReaperReport::from_bytes(self.bytes);
            }
        }
    }
}

/// Our ends of a command's descriptors, before the command exists.
pub(crate) struct Ends {
    stdin: ProcessInput,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
    cwd: Option<OwnedFd>,
    control: OwnedFd,
    requested: usize,
}

/// What a command is started with, on its way to a reaper.
pub(crate) struct Parcel {
    /// The same number for the same sandbox, which alone goes to a reaper that has restricted itself; 0 for commands that
    /// any other reaper can start.
    pub sandbox: u64,
    /// The command's ends, in the order the reaper expects.
    pub descriptors: Vec<OwnedFd>,
}

enum ProcessInput {
    Nothing,
    Rest(OwnedFd, Vec<u8>),
    Ours(OwnedFd),
}

impl Ends {
    pub fn open(launch: &Launch, sandbox: u64) -> Result<(Self, Parcel), LaunchError> {
        Self::make(launch, sandbox)
            .map_err(|errno| LaunchError::Resources { what: "the command's pipes", source: errno.into() })
    }

    fn make(launch: &Launch, sandbox: u64) -> Result<(Self, Parcel), Errno> {
        let (stdin, their_stdin) = input(&launch.stdin)?;
        let (stdout, their_stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, their_stderr) = match launch.output {
            Output::Merged => (None, rustix::io::fcntl_dupfd_cloexec(&their_stdout, 0)?),
            Output::Separate => {
                let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                (Some(ours), theirs)
            }
        };
        let (control, their_control) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&control, true)?;
        let mut descriptors = vec![their_stdin, their_stdout, their_stderr, their_control];
        let mut cwd = None;
        if launch.report_cwd {
            let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            cwd = Some(ours);
            descriptors.push(theirs);
        }
        let parcel = Parcel { sandbox, descriptors };
        Ok((Self { stdin, stdout, stderr, cwd, control, requested: 0 }, parcel))
    }

    /// Puts the request into the control socket, as much of it as fits, before the reaper exists.
    pub fn request(&mut self, request: &[u8]) -> Result<(), LaunchError> {
        match rustix::net::send(&self.control, request, SendFlags::NOSIGNAL) {
            Ok(length) => self.requested = length,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => {
                return Err(LaunchError::Resources { what: "the command's request", source: errno.into() });
            }
        }
        Ok(())
    }
}

fn input(stdin: &Stdin) -> Result<(ProcessInput, OwnedFd), Errno> {
    if let Stdin::Empty = stdin {
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        return Ok((ProcessInput::Nothing, null));
    }
    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let Stdin::Bytes(bytes) = stdin else { return Ok((ProcessInput::Ours(ours), theirs)) };
    rustix::io::ioctl_fionbio(&ours, true)?;
    // Most inputs fit into the pipe at once.
    let written = match rustix::io::write(&ours, bytes) {
        Ok(length) => length,
        Err(Errno::AGAIN) => 0,
        Err(errno) => return Err(errno),
    };
    let rest = &bytes[written..];
    Ok((
        if rest.is_empty() { ProcessInput::Nothing } else { ProcessInput::Rest(ours, rest.to_vec()) },
        theirs,
    ))
}

impl ProcessInput {
    fn open(self) -> io::Result<(Option<pipe::Sender>, Option<AbortOnDropHandle<()>>)> {
        Ok(match self {
            Self::Nothing => (None, None),
            Self::Ours(fd) => (Some(pipe::Sender::from_owned_fd(fd)?), None),
            Self::Rest(fd, rest) => {
                let mut sender = pipe::Sender::from_owned_fd(fd)?;
                let feeding = tokio::spawn(async move {
                    // A command may well end without reading all of it.
                    let _ = sender.write_all(&rest).await;
                });
                (None, Some(AbortOnDropHandle::new(feeding)))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_directory_told_counts() {
        let told = |bytes: &[u8]| directory_told(bytes).map(PathBuf::into_os_string);
        assert_eq!(told(b"\0/a b\n"), Some("/a b".into()));
        assert_eq!(told(b"\0/a\n\0/b\n"), Some("/b".into()));
        assert_eq!(told(b"\0/a\nb\n"), Some("/a\nb".into()));
        assert_eq!(told(b""), None);
        assert_eq!(told(b"\0/torn"), None);
        assert_eq!(told(b"\0relative\n"), None);
    }
}
