//! One command at a time and all processes that it leaves. Takes the command's descriptors from the guard, reads its
//! request from the control socket, runs it, reports how it ended, and ends with no process left below.
//!
//! A reaper is a copy of the guard, alone in its session and a subreaper, so that every process of its command, even a
//! detached one, becomes its child in the end. After a command that left no trace it offers itself for the next command
//! of the same sandbox; after any other it ends.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use super::groups::ControlGroup;
use super::inside;
use super::meter::{self, Meter, SessionBounds};
use super::spawn::{self, ExecArguments, Stack};
use super::sweep::{self, timespec};
use crate::launch::{self, Limit};
use crate::process::Parcel;
use crate::sandbox::enter::{self, Base};
use crate::sandbox::filter::{self, Locks, Sockets};
use crate::sandbox::mounts::{self, View};
use crate::sandbox::{Form, PathError, Sandbox, bubblewrap, kernel, landlock};
use crate::sys::{self, ProcessTraits};
use crate::wire::{self, FRAME, HEADER, ReaperOrder, ReaperReport, StartStage, WireRequest};

/// In a parcel: stdin, stdout, stderr, control, and perhaps the pipe for the directory.
pub(super) const LEAST_DESCRIPTORS: usize = 4;
pub(super) const MOST_DESCRIPTORS: usize = 5;
/// Which one is the control socket.
pub(super) const CONTROL: usize = 3;
/// The number of the directory pipe in the command.
const REPORT_NUMBER: i32 = 3;
/// The number of the link to the guard in the reaper.
const LINK_NUMBER: i32 = 4;
/// The number of the way back to the guard. Besides these two and standard error, the numbers below [`RESERVED`] lead
/// nowhere.
const RETURN_NUMBER: i32 = 5;
/// Descriptor numbers below this are never given to what arrives, so that a command's own can be laid out
/// there without treading on it.
pub(super) const RESERVED: i32 = 10;

/// How long to wait for a request that was announced.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// How long to strike at processes that do not end (another user's, or stuck in the kernel).
const SWEEP_LIMIT: Duration = Duration::from_secs(30);
/// More processes than this are a crowd.
const CROWD: usize = 64;
/// How large a file of a sandboxed command may always become, in bytes.
const LEAST_FILE: u64 = 1 << 30;
/// How often to look, while the program inside of `bwrap` starts, whether the command is still wanted.
const INSIDE_PAUSE: Duration = Duration::from_millis(100);

/// Does all of it and ends the process: with 0 if nothing is left below.
pub(super) fn run(link: &OwnedFd, guard: Pid, origin: &ReaperOrigin<'_>) -> ! {
    let reap = AssertUnwindSafe(|| reap_all(link, guard, origin));
    let done = std::panic::catch_unwind(reap).unwrap_or(false);
    sys::exit_now(i32::from(!done))
}

/// What a reaper has from its guard.
pub(super) struct ReaperOrigin<'a> {
    /// Where a parcel goes that is for another reaper.
    pub returns: &'a OwnedFd,
    /// The namespaces of sandboxed commands.
    pub namespaces: Option<&'a Base>,
    pub bounds: SessionBounds,
    /// The control group it is born in.
    pub group: Option<&'a ControlGroup>,
    /// How commands are bounded by themselves.
    pub rank: Rank,
}

/// What the kernel bounds for a process alone.
#[derive(Clone, Copy)]
pub(super) struct Rank {
    /// As the session has it.
    pub niceness: i32,
    /// For a command that takes long, so that it gives way to others.
    pub lower: i32,
    /// How many processes its user may have.
    pub processes: Option<u64>,
}

/// What a command leaves of its reaper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaperFate {
    /// Ready for the next one, and the guard knows.
    AsNew,
    /// To end, with nothing left below.
    Done,
    /// To end, and to leave the rest to the guard.
    Undone,
}

impl ReaperFate {
    fn the_end(done: bool) -> Self {
        if done { Self::Done } else { Self::Undone }
    }
}

fn reap_all(link: &OwnedFd, guard: Pid, origin: &ReaperOrigin<'_>) -> bool {
    let namespaces = origin.namespaces;
    // The guard has no id in another pid namespace; the end of the link shows that it is gone.
    let guard = namespaces.is_none().then_some(guard);
    let mut meter = Meter::new(origin.bounds, origin.group);
    let Some((link, returns, signals)) = settle(link, origin.returns, guard) else { return true };
    let mut stack = Stack::new();
    let mut walls = SandboxRules { namespaces, made: None };
    let reaper = ReaperState { link, returns, signals, standing: ProcessTraits::now(), rank: origin.rank };
    while let Some(parcel) = next_parcel(&reaper.link, &reaper.signals) {
        if walls.are_outdated() {
            give_back(&parcel, &reaper.returns);
            return true;
        }
        match reap_one(parcel, &reaper, &mut stack, &mut walls, &mut meter) {
            ReaperFate::AsNew => {}
            ReaperFate::Done => return true,
            ReaperFate::Undone => return false,
        }
    }
    true
}

/// What a reaper has from its first command to its last.
struct ReaperState {
    /// The guard holds the other end, if it has further use for us.
    link: OwnedFd,
    returns: OwnedFd,
    signals: OwnedFd,
    /// As it was before the first.
    standing: ProcessTraits,
    rank: Rank,
}

fn reap_one(
    parcel: Parcel,
    own: &ReaperState,
    stack: &mut Stack,
    walls: &mut SandboxRules<'_>,
    meter: &mut Meter,
) -> ReaperFate {
    let mut descriptors = parcel.descriptors;
    let control = descriptors.remove(CONTROL);
    let Some((request, blob)) = read_request(&control) else {
        report(&control, ReaperReport::Failed(StartStage::Request, libc::EBADMSG));
        return ReaperFate::Done;
    };
    let start =
        CommandStart { request: &request, descriptors: &descriptors, control: &control, rank: own.rank };
    let begun = match &blob {
        Some(blob) => start.begin_wrapped(stack, blob),
        None => walls.around(&request).and_then(|made| start.begin(stack, made)),
    };
    match begun {
        Ok(main) => {
            report(&control, ReaperReport::Started(main.as_raw_nonzero().get()));
            // The command has its own copies; ours would keep its outputs open.
            drop(descriptors);
            drop(request);
            let alone = walls.namespaces.is_some();
            let look = (Instant::now() + meter::FIRST_LOOK, meter::FIRST_LOOK);
            let (status, until, strays, wrapped) = (None, None, false, blob.is_some());
            Watch { control, own, main, status, until, strays, alone, wrapped, meter, look }.finish()
        }
        Err((stage, errno)) => {
            report(&control, ReaperReport::Failed(stage, errno));
            // A `bwrap` that was ended may leave what it had started, for the guard to end.
            ReaperFate::the_end(!has_children())
        }
    }
}

/// Buries the dead. Whether others are left.
fn has_children() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Makes the copy of the guard a reaper. `None` if Decurion is gone.
fn settle(link: &OwnedFd, returns: &OwnedFd, guard: Option<Pid>) -> Option<(OwnedFd, OwnedFd, OwnedFd)> {
    // A signal reports the guard's end; we block it and read it like the others.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok()?;
    if guard.is_some_and(|guard| rustix::process::getppid() != Some(guard)) {
        return None;
    }
    rustix::process::setsid().ok()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok()?;
    sys::set_name(c"decurion-reaper");
    let link = sys::place_owned(link, LINK_NUMBER).ok()?;
    let returns = sys::place_owned(returns, RETURN_NUMBER).ok()?;
    // The guard's way to Decurion is not ours; its other low numbers lead nowhere and keep their places.
    sys::place(rustix::stdio::stderr(), 0).ok()?;
    sys::close_range(RESERVED.cast_unsigned(), u32::MAX);
    let signals = sys::signal_queue(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).ok()?;
    Some((link, returns, signals))
}

/// Gives a parcel to the guard for another reaper. No one has read its request, so the command starts once or not at
/// all, even if this reaper is killed.
fn give_back(parcel: &Parcel, returns: &OwnedFd) {
    if let Err(errno) = super::send_parcel(returns, parcel) {
        report(&parcel.descriptors[CONTROL], ReaperReport::Failed(StartStage::Fork, errno.raw_os_error()));
    }
}

/// Waits for the descriptors of the next command. `None` when there will be none.
fn next_parcel(link: &OwnedFd, signals: &OwnedFd) -> Option<Parcel> {
    loop {
        match super::receive_parcel(link) {
            Ok(Some(parcel)) => return (parcel.descriptors.len() >= LEAST_DESCRIPTORS).then_some(parcel),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
        let mut fds = [PollFd::new(link, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        if !only_children_stir(signals) {
            return None;
        }
    }
}

/// Takes all waiting signals. `false` if one of them is about us.
fn only_children_stir(signals: &OwnedFd) -> bool {
    let mut only = true;
    while let Some(signal) = sys::next_signal(signals) {
        only &= signal == libc::SIGCHLD;
    }
    only
}

/// The request; also its bytes, if another program is to read it.
fn read_request(control: &OwnedFd) -> Option<(WireRequest, Option<Vec<u8>>)> {
    let until = Instant::now() + REQUEST_LIMIT;
    let mut header = [0; HEADER];
    fill(control, &mut header, until)?;
    let mut blob = vec![0; wire::request_length(&header)?];
    blob[..HEADER].copy_from_slice(&header);
    fill(control, &mut blob[HEADER..], until)?;
    let copy = wire::wants_bubblewrap(&header).then(|| blob.clone());
    Some((wire::decode(blob)?, copy))
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

/// What a command is started with.
struct CommandStart<'a> {
    request: &'a WireRequest,
    descriptors: &'a [OwnedFd],
    control: &'a OwnedFd,
    rank: Rank,
}

impl CommandStart<'_> {
    /// Starts the command. Gives its id, or where that failed and why.
    fn begin(&self, stack: &mut Stack, made: Option<&SandboxParts>) -> Result<Pid, (StartStage, i32)> {
        let program = ExecArguments::new(self.request, candidates(self.request));
        let program = program.ok_or((StartStage::Request, libc::EINVAL))?;
        let apply = || made.map_or(Ok(()), |made| made.confinement.apply());
        self.spawn(stack, &program, made.map(|made| made.only_reads), &apply)
    }

    /// The same for a sandbox that `bwrap` makes. Waits until the program inside of it has become the command.
    fn begin_wrapped(&self, stack: &mut Stack, blob: &[u8]) -> Result<Pid, (StartStage, i32)> {
        let sandbox = &self.request.sandbox().ok_or((StartStage::Request, libc::EBADMSG))?;
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        let failed = |error| (StartStage::Restrictions, number(error));
        let at = |PathError { path, source }| {
            (StartStage::Mounts, wire::path_error(number(source), &path, sandbox))
        };
        let blob = [blob, &bubblewrap::note(sandbox).map_err(at)?].concat();
        let arguments = bubblewrap::arguments(sandbox).map_err(at)?;
        let place = bubblewrap::find().ok_or((StartStage::Restrictions, libc::ENOENT))?;
        let own = std::fs::File::open("/proc/self/exe").map_err(failed)?;
        let (reports, their_reports) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| failed(errno.into()))?;
        let (arguments, blob) = (in_memory(&arguments).map_err(failed)?, in_memory(&blob).map_err(failed)?);
        let given: [OwnedFd; 4] = [arguments, own.into(), blob, their_reports];
        let argv = wrapped_arguments();
        let place = [place.as_os_str().as_bytes(), b"\0"].concat();
        let program = ExecArguments::bare(place, &argv).ok_or((StartStage::Request, libc::EINVAL))?;
        let main = self.spawn(stack, &program, Some(sandbox.only_reads()), &|| {
            // `bwrap` refuses to run with some of an ordinary user's capabilities.
            let _ = rustix::thread::clear_ambient_capability_set();
            let mut pairs = given.iter().zip(inside::NUMBERS);
            pairs.try_for_each(|(fd, place)| sys::place(fd, place)).map_err(number)
        })?;
        drop(given);
        let Err(failed) = self.wait_inside(&reports) else { return Ok(main) };
        let _ = rustix::process::kill_process(main, Signal::KILL);
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(main), WaitOptions::empty()) {}
        Err(failed)
    }

    /// Waits for what the program inside reports: that it becomes the command now, and then nothing.
    fn wait_inside(&self, reports: &OwnedFd) -> Result<(), (StartStage, i32)> {
        let until = Instant::now() + REQUEST_LIMIT;
        let mut bytes = Vec::new();
        loop {
            let ready = poll(&mut [PollFd::new(reports, PollFlags::IN)], Some(&timespec(INSIDE_PAUSE)));
            if ready == Ok(0) && (abandoned(self.control) || until <= Instant::now()) {
                return Err((StartStage::Setup, libc::ECANCELED));
            }
            let mut piece = [0_u8; 2 * FRAME];
            let length = match ready {
                Ok(1..) => rustix::io::read(reports, &mut piece).unwrap_or(0),
                _ => continue,
            };
            if length == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..length]);
        }
        let frames = bytes.chunks_exact(FRAME);
        match frames.filter_map(|frame| ReaperReport::from_bytes(frame.try_into().ok()?)).next_back() {
            Some(ReaperReport::Started(_)) => Ok(()),
            Some(ReaperReport::Failed(stage, errno)) => Err((stage, errno)),
            // `bwrap` itself failed.
            _ => Err((StartStage::Restrictions, libc::ECHILD)),
        }
    }

    /// Starts a program, after something was done in its process. Of one in a sandbox: whether it may write nothing but its
    /// private folder.
    fn spawn(
        &self,
        stack: &mut Stack,
        program: &ExecArguments<'_>,
        only_reads: Option<bool>,
        last: &impl Fn() -> Result<(), i32>,
    ) -> Result<Pid, (StartStage, i32)> {
        let reaper = rustix::process::getpid();
        let failure = Cell::new(None);
        let started = spawn::spawn(stack, &|| {
            let _ = rustix::process::setpriority_process(None, self.rank.niceness);
            failure.set(Some(match self.prepare(reaper, only_reads) {
                // While we were blocked, perhaps by a directory that does not answer, no order was read.
                Ok(()) if abandoned(self.control) => (StartStage::Setup, libc::ECANCELED),
                Ok(()) => match last() {
                    Ok(()) => (StartStage::Program, program.run()),
                    Err(errno) => (StartStage::Restrictions, errno),
                },
                Err((stage, errno)) => (stage, errno.raw_os_error()),
            }));
        });
        let main =
            started.map_err(|error| (StartStage::Fork, error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        let Some(failed) = failure.get() else { return Ok(main) };
        // It has ended, or is about to; there is no other process below.
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(main), WaitOptions::empty()) {}
        Err(failed)
    }

    /// In the command's process, before it becomes the program; so without allocating.
    fn prepare(&self, reaper: Pid, only_reads: Option<bool>) -> Result<(), (StartStage, Errno)> {
        let request = self.request;
        let setup = |errno| (StartStage::Setup, errno);
        // Without the control socket they are in the order of their numbers; all else closes by itself.
        for (fd, number) in self.descriptors.iter().zip(0..=REPORT_NUMBER) {
            sys::place(fd, number)
                .map_err(|error| setup(Errno::from_io_error(&error).unwrap_or(Errno::BADF)))?;
        }
        rustix::process::setpgid(None, None).map_err(setup)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(setup)?;
        if rustix::process::getppid() != Some(reaper) {
            sys::exit_now(127);
        }
        limit(request, self.rank).map_err(setup)?;
        if let Some(mask) = request.numbers.umask {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
        }
        let directory = std::ffi::CStr::from_bytes_with_nul(request.directory());
        let directory = directory.map_err(|_| (StartStage::Directory, Errno::INVAL))?;
        rustix::process::chdir(directory).map_err(|errno| (StartStage::Directory, errno))?;
        if let Some(most) = only_reads.map(most_file_bytes) {
            lower(Resource::Fsize, most).map_err(setup)?;
        }
        sys::release_signals();
        Ok(())
    }
}

/// A file in memory with this content, to be read from its start.
fn in_memory(content: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(c"decurion", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, content)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

/// What `bwrap` is started with: this program is to run inside, with the arguments that make it a guard.
fn wrapped_arguments() -> Vec<Vec<u8>> {
    let first = ["bwrap", "--args", &inside::ARGUMENTS_NUMBER.to_string(), "--"].map(str::to_owned);
    let program = format!("/proc/self/fd/{}", inside::PROGRAM_NUMBER);
    let own = std::env::args_os().skip(1).chain([inside::INSIDE.into()]);
    let all = first.into_iter().chain([program]).map(std::ffi::OsString::from).chain(own);
    all.map(|argument| [argument.as_bytes(), b"\0"].concat()).collect()
}

/// Whether Decurion no longer waits for the command.
fn abandoned(control: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    !matches!(
        rustix::net::recv(control, &mut [0_u8; 1], flags),
        Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR)
    )
}

/// The paths at which the program may be, each with its closing NUL.
pub(super) fn candidates(request: &WireRequest) -> Vec<Vec<u8>> {
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

/// How large a file may become that a sandboxed command writes, so that one that runs away does not fill the disk. Looks
/// at the file system of the working directory.
fn most_file_bytes(only_reads: bool) -> u64 {
    let free = rustix::fs::statvfs(c".").map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    if only_reads { LEAST_FILE } else { LEAST_FILE.max(free / 2) }
}

/// Sets a limit of the kernel. A lower one that is in force already stays.
fn lower(resource: Resource, value: u64) -> Result<(), Errno> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let value = maximum.map_or(value, |maximum| maximum.min(value));
    rustix::process::setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
}

fn limit(request: &WireRequest, rank: Rank) -> Result<(), Errno> {
    let numbers = request.numbers;
    // With 0 the kernel still hands the memory to a program that the system names for it; with 1 it does neither.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) })?;
    if let Some(files) = numbers.open_files {
        // Only the soft limit: a command may raise it again, as it could have without us.
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum })?;
    }
    let processes = [numbers.processes, rank.processes].into_iter().flatten().min();
    for (resource, value) in [(Resource::Nproc, processes), (Resource::Fsize, numbers.file_bytes)] {
        if let Some(value) = value {
            lower(resource, value)?;
        }
    }
    Ok(())
}

/// What sandboxes a reaper's commands, which all have the same sandbox.
struct SandboxRules<'a> {
    /// None where the system refuses them.
    namespaces: Option<&'a Base>,
    /// For the commands before.
    made: Option<SandboxParts>,
}

/// What was made for a sandbox, to be used again.
struct SandboxParts {
    /// The sandbox as it was asked for.
    part: Vec<u8>,
    /// Whether it lets commands write nothing but their private folder.
    only_reads: bool,
    basis: ReaperBasis,
    confinement: ChildConfinement,
}

/// What it depends on.
enum ReaperBasis {
    /// A view of the files. A filtered process cannot make another.
    View(View),
    /// Can be made again.
    Rules(landlock::RulesetInputs),
}

impl SandboxRules<'_> {
    /// Whether the next command needs another reaper.
    fn are_outdated(&self) -> bool {
        self.made.as_ref().is_some_and(|made| matches!(&made.basis, ReaperBasis::View(view) if !view.holds()))
    }

    /// Makes the command's view of the files, and what is needed to restrict its process. None for one without a sandbox.
    fn around(&mut self, request: &WireRequest) -> Result<Option<&SandboxParts>, (StartStage, i32)> {
        let part = request.sandbox_part();
        if self.made.as_ref().is_some_and(|made| Some(made.part.as_slice()) != part) {
            // The guard tells sandboxes apart by their numbers. Should two have the same, neither gets the other.
            return Err((StartStage::Request, libc::EBADMSG));
        }
        let Some(part) = part else { return Ok(None) };
        let holds = |made: &SandboxParts| !matches!(&made.basis, ReaperBasis::Rules(rules) if !rules.holds());
        if !self.made.as_ref().is_some_and(holds) {
            let sandbox = request.sandbox().ok_or((StartStage::Request, libc::EBADMSG))?;
            let (basis, confinement) = self.make(&sandbox)?;
            let (part, only_reads) = (part.to_vec(), sandbox.only_reads());
            self.made = Some(SandboxParts { part, only_reads, basis, confinement });
        }
        Ok(self.made.as_ref())
    }

    fn make(&self, sandbox: &Sandbox) -> Result<(ReaperBasis, ChildConfinement), (StartStage, i32)> {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        let (basis, form) = match self.namespaces {
            Some(base) => {
                enter::give_own().map_err(|error| (StartStage::Mounts, number(&error)))?;
                let view = mounts::make(sandbox, base).map_err(|error| {
                    (StartStage::Mounts, wire::path_error(number(&error.source), &error.path, sandbox))
                })?;
                (ReaperBasis::View(view), Form::Namespaces)
            }
            None => (ReaperBasis::Rules(landlock::RulesetInputs::take(sandbox)), Form::Landlock),
        };
        let confinement = ChildConfinement::make(sandbox, form)?;
        if self.made.is_none() {
            // Here and not in each command, because the kernel compiles it each time.
            filter_calls(sandbox, form)?;
        }
        Ok((basis, confinement))
    }
}

/// What a sandboxed command's process does to itself just before it becomes the program.
pub(super) struct ChildConfinement {
    ruleset: Option<OwnedFd>,
}

impl ChildConfinement {
    /// Called where the command's view of the files is.
    pub fn make(sandbox: &Sandbox, form: Form) -> Result<Self, (StartStage, i32)> {
        let ruleset = landlock::ruleset(sandbox, form).map_err(|error| {
            let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
            (StartStage::Mounts, wire::path_error(errno, &error.path, sandbox))
        })?;
        if ruleset.is_none() && form == Form::Landlock {
            return Err((StartStage::Restrictions, libc::EOPNOTSUPP));
        }
        Ok(Self { ruleset })
    }

    /// Between fork and exec: only system calls.
    pub fn apply(&self) -> Result<(), i32> {
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        enter::drop_capabilities().map_err(Errno::raw_os_error)?;
        // Not once for all commands, like the filter: a command in the domain of its reaper could end it.
        self.ruleset.as_ref().map_or(Ok(()), |ruleset| kernel::restrict(ruleset.as_fd())).map_err(number)
    }
}

/// Lets this process, and all that it starts, make only the system calls of a sandboxed command from now on, and gain no
/// rights by programs.
pub(super) fn filter_calls(sandbox: &Sandbox, form: Form) -> Result<(), (StartStage, i32)> {
    let failed = |errno| (StartStage::Restrictions, errno);
    let sockets = Sockets { internet: sandbox.network, unix: sandbox.unix_sockets };
    let locks = if sandbox.only_reads() { Locks::Pretended } else { Locks::Held };
    let filter = filter::compile(sockets, locks, form).ok_or(failed(libc::ENOSYS))?;
    rustix::thread::set_no_new_privs(true).map_err(|errno| failed(errno.raw_os_error()))?;
    let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    kernel::filter_calls(&filter).map_err(|error| failed(number(error)))
}

struct Watch<'a> {
    /// Decurion holds the other end (and the guard a copy of this one).
    control: OwnedFd,
    own: &'a ReaperState,
    main: Pid,
    status: Option<WaitStatus>,
    /// While the command is being asked to end: when asking is over.
    until: Option<Instant>,
    /// Whether others than the command itself were buried.
    strays: bool,
    /// Whether all other processes that can be seen are the command's.
    alone: bool,
    /// Whether the command runs below two processes of `bwrap`.
    wrapped: bool,
    meter: &'a mut Meter,
    /// When to look next at what it uses, and the pause before.
    look: (Instant, Duration),
}

/// Why the watch is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchEnd {
    Ended,
    /// It was asked to end and has not.
    Overdue,
    /// It uses more than it may.
    Excessive(Limit),
    /// Decurion no longer waits for it.
    Abandoned,
    /// The guard is gone.
    GuardLost,
}

impl Watch<'_> {
    fn finish(mut self) -> ReaperFate {
        match self.watch() {
            WatchEnd::Ended => self.ended(),
            WatchEnd::Overdue => {
                let done = self.sweep();
                self.report_status(true);
                ReaperFate::the_end(done)
            }
            WatchEnd::Excessive(limit) => {
                let done = self.sweep();
                report(&self.control, ReaperReport::OverLimit { limit, clean: true });
                ReaperFate::the_end(done)
            }
            WatchEnd::GuardLost => {
                let done = self.sweep();
                report(&self.control, ReaperReport::Unknown);
                ReaperFate::the_end(done)
            }
            WatchEnd::Abandoned => ReaperFate::the_end(self.sweep()),
        }
    }

    fn ended(mut self) -> ReaperFate {
        let clean = !self.bury();
        // The guard is told before Decurion, so that we are ready once Decurion knows of the end.
        let ready = clean && self.as_new() && offer(&self.own.link);
        self.report_status(clean);
        if ready {
            return ReaperFate::AsNew;
        }
        let done = clean || {
            let done = self.sweep();
            report(&self.control, ReaperReport::Swept);
            done
        };
        ReaperFate::the_end(done)
    }

    /// Whether the command did nothing that could affect the next one. Without children left, no process of it can act
    /// any more.
    fn as_new(&self) -> bool {
        !self.strays
            && self.until.is_none()
            && self.status.is_some()
            && only_children_stir(&self.own.signals)
            && ProcessTraits::now() == self.own.standing
            // It goes with its namespace, and that with us.
            && !(self.alone && sys::has_shared_by_number())
    }

    fn watch(&mut self) -> WatchEnd {
        loop {
            let (ordered, signalled) = self.wait();
            if signalled && let Some(over) = self.take_signals() {
                return over;
            }
            // While it is being asked to end, what it left has the rest of the time to end too.
            if self.status.is_some() && (self.until.is_none() || !self.bury()) {
                return WatchEnd::Ended;
            }
            if ordered && !self.take_order() {
                return WatchEnd::Abandoned;
            }
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return WatchEnd::Overdue;
            }
            if let Some(limit) = self.look_at_use() {
                return WatchEnd::Excessive(limit);
            }
        }
    }

    /// Looks now and then whether the command uses too much.
    fn look_at_use(&mut self) -> Option<Limit> {
        let (due, pause) = self.look;
        let now = Instant::now();
        if now < due {
            return None;
        }
        if pause == meter::FIRST_LOOK {
            let _ = rustix::process::setpriority_pgrp(Some(self.main), self.own.rank.lower);
        }
        let pause = (pause * 2).min(meter::LONGEST_PAUSE);
        self.look = (now + pause, pause);
        self.meter.look()
    }

    /// Waits for something to do: (an order, a signal).
    fn wait(&self) -> (bool, bool) {
        let mut fds =
            [PollFd::new(&self.control, PollFlags::IN), PollFd::new(&self.own.signals, PollFlags::IN)];
        let due = self.until.map_or(self.look.0, |until| until.min(self.look.0));
        let left = timespec(due.saturating_duration_since(Instant::now()));
        if poll(&mut fds, Some(&left)).is_err() {
            return (false, true);
        }
        (!fds[0].revents().is_empty(), !fds[1].revents().is_empty())
    }

    /// `false` once Decurion no longer waits for the command.
    fn take_order(&mut self) -> bool {
        let mut bytes = [0; FRAME];
        match rustix::net::recv(&self.control, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((FRAME, _)) => {
                if let Some(ReaperOrder::Stop(grace)) = ReaperOrder::from_bytes(bytes) {
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
            if self.wrapped {
                return self.ask_inside_to_end();
            }
            // A stopped process would not hear it, so it is woken as well.
            for signal in [Signal::TERM, Signal::CONT] {
                if rustix::process::kill_process_group(self.main, signal).is_err() {
                    // It has left its own group.
                    let _ = rustix::process::kill_process(self.main, signal);
                }
            }
        }
    }

    /// Asks the processes below those of `bwrap`, with which all would be killed.
    fn ask_inside_to_end(&self) {
        let below = |pids: Vec<Pid>| pids.into_iter().flat_map(sweep::children).collect::<Vec<_>>();
        let mut found = below(below(vec![self.main]));
        while !found.is_empty() {
            for pid in &found {
                for signal in [Signal::TERM, Signal::CONT] {
                    let _ = rustix::process::kill_process(*pid, signal);
                }
            }
            found = below(found);
        }
    }

    fn take_signals(&mut self) -> Option<WatchEnd> {
        if !only_children_stir(&self.own.signals) {
            return Some(WatchEnd::GuardLost);
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
                Ok(Some(_)) => self.strays = true,
                Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Ends everything below. `true` if that worked.
    fn sweep(&mut self) -> bool {
        self.meter.stop_forks();
        let begun = Instant::now();
        let mut pause = sweep::FIRST_PAUSE;
        while self.bury() {
            if begun.elapsed() > SWEEP_LIMIT {
                return false;
            }
            if self.alone {
                let _ = sys::kill_all_others();
            } else {
                // A crowd is looked through once most of it is gone.
                if self.meter.kill_group() < CROWD {
                    sweep::strike(&[]);
                }
            }
            pause = sweep::rest(&self.own.signals, pause);
        }
        true
    }

    fn report_status(&mut self, clean: bool) {
        let limit = self.meter.at_end();
        let exit = self.status.and_then(|status| {
            let code = status.exit_status().map(launch::Exit::Code);
            code.or_else(|| status.terminating_signal().map(launch::Exit::Signal))
        });
        report(
            &self.control,
            match (exit, limit) {
                (Some(launch::Exit::Code(0)), _) => ReaperReport::Exited { code: 0, clean },
                (Some(_), Some(limit)) => ReaperReport::OverLimit { limit, clean },
                (Some(launch::Exit::Code(code)), _) => ReaperReport::Exited { code, clean },
                (Some(launch::Exit::Signal(signal)), _) => ReaperReport::Signalled { signal, clean },
                _ => ReaperReport::Unknown,
            },
        );
    }
}

fn report(control: &OwnedFd, report: ReaperReport) {
    // The receiver may be gone.
    let _ = rustix::net::send(control, &report.to_bytes(), SendFlags::NOSIGNAL);
}

/// Tells the guard that we are ready for another command. `false` if it wants none of us.
fn offer(link: &OwnedFd) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(link, &[wire::VERSION], flags).is_ok()
}
