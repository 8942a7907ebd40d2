//! One command at a time and all it leaves behind. Takes the command's descriptors from the guard, reads
//! its request from the control socket, runs it, reports how it ended, and ends with nothing left below.
//!
//! A reaper is a copy of the guard, alone in its session and a subreaper, so that every process of its
//! command, however it detached itself, ends up as a child of it. After a command that left no trace it is
//! as good as new and offers itself for the next one; after any other it ends.

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

use super::groups::Group;
use super::inside;
use super::meter::{self, Bounds, Meter};
use super::spawn::{self, Program, Stack};
use super::sweep::{self, timespec};
use crate::launch::{self, Limit};
use crate::sandbox::enter::{self, Base};
use crate::sandbox::filter::{self, Locks, Sockets};
use crate::sandbox::mounts::{self, View};
use crate::sandbox::{Form, PathError, Sandbox, bubblewrap, kernel, landlock};
use crate::sys::{self, Standing};
use crate::wire::{self, FRAME, HEADER, Order, Report, Request, Stage};

/// In a parcel: stdin, stdout, stderr, control, and perhaps the pipe for the directory.
pub(super) const LEAST_DESCRIPTORS: usize = 4;
pub(super) const MOST_DESCRIPTORS: usize = 5;
/// Which one is the control socket.
pub(super) const CONTROL: usize = 3;
/// The number of the directory pipe in the command.
const REPORT_NUMBER: i32 = 3;
/// The number of the link to the guard in the reaper. The others below [`RESERVED`] lead nowhere.
const LINK_NUMBER: i32 = 4;
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
pub(super) fn run(link: &OwnedFd, guard: Pid, origin: &Origin<'_>) -> ! {
    let reap = AssertUnwindSafe(|| reap_all(link, guard, origin));
    let done = std::panic::catch_unwind(reap).unwrap_or(false);
    sys::exit_now(i32::from(!done))
}

/// What a reaper has from its guard.
pub(super) struct Origin<'a> {
    /// The namespaces of sandboxed commands.
    pub namespaces: Option<&'a Base>,
    pub bounds: Bounds,
    /// The control group it is born in.
    pub group: Option<&'a Group>,
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
enum After {
    /// As it was before, and the guard knows.
    AsNew,
    /// To end, with nothing left below.
    Done,
    /// To end, and to leave the rest to the guard.
    Undone,
}

impl After {
    fn the_end(done: bool) -> Self {
        if done { Self::Done } else { Self::Undone }
    }
}

fn reap_all(link: &OwnedFd, guard: Pid, origin: &Origin<'_>) -> bool {
    let namespaces = origin.namespaces;
    // The guard has no number in a pid namespace of its own; the end of the link tells that it is gone.
    let guard = namespaces.is_none().then_some(guard);
    let mut meter = Meter::new(origin.bounds, origin.group);
    let Some((link, signals)) = settle(link, guard) else { return true };
    let mut stack = Stack::new();
    let mut walls = Walls { namespaces, used: false, kept: Vec::new() };
    let reaper = Own { link, signals, standing: Standing::now(), rank: origin.rank };
    while let Some(parcel) = next_parcel(&reaper.link, &reaper.signals) {
        match reap_one(parcel, &reaper, &mut stack, &mut walls, &mut meter) {
            After::AsNew => {}
            After::Done => return true,
            After::Undone => return false,
        }
    }
    true
}

/// What a reaper has from its first command to its last.
struct Own {
    /// The guard holds the other end, if it has further use for us.
    link: OwnedFd,
    signals: OwnedFd,
    /// As it was before the first.
    standing: Standing,
    rank: Rank,
}

fn reap_one(
    mut parcel: Vec<OwnedFd>,
    own: &Own,
    stack: &mut Stack,
    walls: &mut Walls<'_>,
    meter: &mut Meter,
) -> After {
    let control = parcel.remove(CONTROL);
    let Some((request, blob)) = read_request(&control) else {
        report(&control, Report::Failed(Stage::Request, libc::EBADMSG));
        return After::Done;
    };
    let start = Start { request: &request, parcel: &parcel, control: &control, rank: own.rank };
    let begun = match (&request.sandbox, &blob) {
        (Some(sandbox), Some(blob)) => start.begin_wrapped(stack, sandbox, blob),
        (Some(sandbox), None) => walls.around(sandbox).and_then(|walls| start.begin(stack, Some(walls))),
        (None, _) => start.begin(stack, None),
    };
    match begun {
        Ok(main) => {
            report(&control, Report::Started(main.as_raw_nonzero().get()));
            // The command has its own copies; ours would keep its outputs open.
            drop(parcel);
            drop(request);
            let alone = walls.namespaces.is_some();
            let look = (Instant::now() + meter::FIRST_LOOK, meter::FIRST_LOOK);
            let (status, until, strays, wrapped) = (None, None, false, blob.is_some());
            Watch { control, own, main, status, until, strays, alone, wrapped, meter, look }.finish()
        }
        Err((stage, errno)) => {
            report(&control, Report::Failed(stage, errno));
            // A `bwrap` that was ended may leave what it had started, for the guard to end.
            After::the_end(!has_children())
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

/// Makes the copy of the guard a reaper. `None` if there is nobody left to work for.
fn settle(link: &OwnedFd, guard: Option<Pid>) -> Option<(OwnedFd, OwnedFd)> {
    // The guard's end is told by a signal that we hold back and read like the others.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).ok()?;
    if guard.is_some_and(|guard| rustix::process::getppid() != Some(guard)) {
        return None;
    }
    rustix::process::setsid().ok()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok()?;
    sys::set_name(c"decurion-reaper");
    let link = sys::place_owned(link, LINK_NUMBER).ok()?;
    // The guard's way to Decurion is not ours; its other low numbers lead nowhere and keep their places.
    sys::place(rustix::stdio::stderr(), 0).ok()?;
    sys::close_range(RESERVED.cast_unsigned(), u32::MAX);
    let signals = sys::signal_queue(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).ok()?;
    Some((link, signals))
}

/// Waits for the descriptors of the next command. `None` when there will be none.
fn next_parcel(link: &OwnedFd, signals: &OwnedFd) -> Option<Vec<OwnedFd>> {
    loop {
        match super::receive_descriptors(link) {
            Ok(Some(parcel)) => return (parcel.len() >= LEAST_DESCRIPTORS).then_some(parcel),
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

/// The request; and as it came, if it is for another program to read.
fn read_request(control: &OwnedFd) -> Option<(Request, Option<Vec<u8>>)> {
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
struct Start<'a> {
    request: &'a Request,
    parcel: &'a [OwnedFd],
    control: &'a OwnedFd,
    rank: Rank,
}

impl Start<'_> {
    /// Starts the command. Gives its id, or where that failed and why.
    fn begin(&self, stack: &mut Stack, confinement: Option<&Confinement>) -> Result<Pid, (Stage, i32)> {
        let program = Program::new(self.request, candidates(self.request));
        let program = program.ok_or((Stage::Request, libc::EINVAL))?;
        self.spawn(stack, &program, &|| confinement.map_or(Ok(()), Confinement::apply))
    }

    /// The same for a sandbox that `bwrap` makes. Waits until the program inside of it has become the command.
    fn begin_wrapped(&self, stack: &mut Stack, sandbox: &Sandbox, blob: &[u8]) -> Result<Pid, (Stage, i32)> {
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        let failed = |error| (Stage::Restrictions, number(error));
        let at =
            |PathError { path, source }| (Stage::Mounts, wire::path_error(number(source), &path, sandbox));
        let blob = [blob, &bubblewrap::note(sandbox).map_err(at)?].concat();
        let arguments = bubblewrap::arguments(sandbox).map_err(at)?;
        let place = bubblewrap::find().ok_or((Stage::Restrictions, libc::ENOENT))?;
        let own = std::fs::File::open("/proc/self/exe").map_err(failed)?;
        let (reports, their_reports) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| failed(errno.into()))?;
        let (arguments, blob) = (in_memory(&arguments).map_err(failed)?, in_memory(&blob).map_err(failed)?);
        let given: [OwnedFd; 4] = [arguments, own.into(), blob, their_reports];
        let argv = wrapped_arguments();
        let place = [place.as_os_str().as_bytes(), b"\0"].concat();
        let program = Program::bare(place, &argv).ok_or((Stage::Request, libc::EINVAL))?;
        let main = self.spawn(stack, &program, &|| {
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
    fn wait_inside(&self, reports: &OwnedFd) -> Result<(), (Stage, i32)> {
        let until = Instant::now() + REQUEST_LIMIT;
        let mut bytes = Vec::new();
        loop {
            let ready = poll(&mut [PollFd::new(reports, PollFlags::IN)], Some(&timespec(INSIDE_PAUSE)));
            if ready == Ok(0) && (abandoned(self.control) || until <= Instant::now()) {
                return Err((Stage::Setup, libc::ECANCELED));
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
        match frames.filter_map(|frame| Report::from_bytes(frame.try_into().ok()?)).next_back() {
            Some(Report::Started(_)) => Ok(()),
            Some(Report::Failed(stage, errno)) => Err((stage, errno)),
            // `bwrap` itself failed.
            _ => Err((Stage::Restrictions, libc::ECHILD)),
        }
    }

    /// Starts a program, after something was done in its process.
    fn spawn(
        &self,
        stack: &mut Stack,
        program: &Program<'_>,
        last: &impl Fn() -> Result<(), i32>,
    ) -> Result<Pid, (Stage, i32)> {
        let reaper = rustix::process::getpid();
        let failure = Cell::new(None);
        let started = spawn::spawn(stack, &|| {
            let _ = rustix::process::setpriority_process(None, self.rank.niceness);
            failure.set(Some(match prepare(self.request, self.parcel, reaper, self.rank) {
                // While we stood still, perhaps before a directory that does not answer, nobody listened.
                Ok(()) if abandoned(self.control) => (Stage::Setup, libc::ECANCELED),
                Ok(()) => match last() {
                    Ok(()) => (Stage::Program, program.run()),
                    Err(errno) => (Stage::Restrictions, errno),
                },
                Err((stage, errno)) => (stage, errno.raw_os_error()),
            }));
        });
        let main = started.map_err(|error| (Stage::Fork, error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        let Some(failed) = failure.get() else { return Ok(main) };
        // It has ended, or is about to; there is nobody else below.
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(main), WaitOptions::empty()) {}
        Err(failed)
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

/// Whether Decurion has let go of the command.
fn abandoned(control: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    !matches!(
        rustix::net::recv(control, &mut [0_u8; 1], flags),
        Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR)
    )
}

/// The paths at which the program may be, each with its closing NUL.
pub(super) fn candidates(request: &Request) -> Vec<Vec<u8>> {
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

/// In the command's process, before it becomes the program; so without allocating.
fn prepare(request: &Request, parcel: &[OwnedFd], reaper: Pid, rank: Rank) -> Result<(), (Stage, Errno)> {
    let setup = |errno| (Stage::Setup, errno);
    // Without the control socket they are in the order of their numbers; all else closes by itself.
    for (fd, number) in parcel.iter().zip(0..=REPORT_NUMBER) {
        sys::place(fd, number).map_err(|error| setup(Errno::from_io_error(&error).unwrap_or(Errno::BADF)))?;
    }
    rustix::process::setpgid(None, None).map_err(setup)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(setup)?;
    if rustix::process::getppid() != Some(reaper) {
        sys::exit_now(127);
    }
    limit(request, rank).map_err(setup)?;
    if let Some(mask) = request.numbers.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask));
    }
    let directory = std::ffi::CStr::from_bytes_with_nul(request.directory());
    let directory = directory.map_err(|_| (Stage::Directory, Errno::INVAL))?;
    rustix::process::chdir(directory).map_err(|errno| (Stage::Directory, errno))?;
    if let Some(most) = request.sandbox.as_ref().map(most_file_bytes) {
        lower(Resource::Fsize, most).map_err(setup)?;
    }
    sys::release_signals();
    Ok(())
}

/// How large a file may become that a sandboxed command writes, so that one that runs away does not fill the disk. Looks
/// at the file system of the working directory.
fn most_file_bytes(sandbox: &Sandbox) -> u64 {
    let free = rustix::fs::statvfs(c".").map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    if sandbox.only_reads() { LEAST_FILE } else { LEAST_FILE.max(free / 2) }
}

/// Sets a limit of the kernel. A lower one that is in force already stays.
fn lower(resource: Resource, value: u64) -> Result<(), Errno> {
    let maximum = rustix::process::getrlimit(resource).maximum;
    let value = maximum.map_or(value, |maximum| maximum.min(value));
    rustix::process::setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
}

fn limit(request: &Request, rank: Rank) -> Result<(), Errno> {
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

/// What a sandboxed command's process does to itself just before it becomes the program.
pub(super) struct Confinement {
    ruleset: Option<OwnedFd>,
    filter: filter::Program,
    /// Whether the IPC namespace of the session is to be left: bubblewrap has done so, and Landlock alone cannot.
    unshares_ipc: bool,
}

/// What sandboxes a reaper's commands.
struct Walls<'a> {
    /// None where the system refuses them.
    namespaces: Option<&'a Base>,
    /// Whether the mount namespace has been changed for a command.
    used: bool,
    /// Of the latest commands, which left nothing behind. The last is the one whose namespace the reaper is in.
    kept: Vec<Kept>,
}

/// How many sandboxes a reaper keeps: one for commands that only read, one for others, and one more.
const MOST_KEPT: usize = 3;

/// What was made for a command, to be used again.
struct Kept {
    sandbox: Sandbox,
    basis: Basis,
    confinement: Confinement,
}

/// What it depends on.
enum Basis {
    /// A view of the files, in a mount namespace.
    View(View, OwnedFd),
    Rules(landlock::Basis),
}

impl Basis {
    fn holds(&self) -> bool {
        match self {
            Self::View(view, _) => view.holds(),
            Self::Rules(basis) => basis.holds(),
        }
    }
}

impl Walls<'_> {
    /// Makes the command's view of the files, and what is needed to restrict its process.
    fn around(&mut self, sandbox: &Sandbox) -> Result<&Confinement, (Stage, i32)> {
        let kept = match self.take_kept(sandbox) {
            Some(kept) => kept,
            None => self.make(sandbox)?,
        };
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(kept);
        self.kept.last().map(|kept| &kept.confinement).ok_or((Stage::Restrictions, libc::EINVAL))
    }

    /// What was made for such a sandbox before, if it would be made the same now.
    fn take_kept(&mut self, sandbox: &Sandbox) -> Option<Kept> {
        let at = self.kept.iter().position(|kept| kept.sandbox == *sandbox)?;
        let is_here = at + 1 == self.kept.len();
        let kept = self.kept.remove(at);
        if let (Basis::View(_, namespace), false) = (&kept.basis, is_here) {
            enter::return_to(namespace).ok()?;
        }
        kept.basis.holds().then_some(kept)
    }

    fn make(&mut self, sandbox: &Sandbox) -> Result<Kept, (Stage, i32)> {
        let number = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        let mounts = |error: io::Error| (Stage::Mounts, number(&error));
        let (basis, form) = match self.namespaces {
            Some(base) => {
                let used = std::mem::replace(&mut self.used, true);
                let given = if used { base.renew() } else { enter::give_own() };
                given.map_err(mounts)?;
                let view = mounts::make(sandbox, base).map_err(|error| {
                    (Stage::Mounts, wire::path_error(number(&error.source), &error.path, sandbox))
                })?;
                let namespace = std::fs::File::open("/proc/self/ns/mnt").map_err(mounts)?;
                (Basis::View(view, namespace.into()), Form::Namespaces)
            }
            None => (Basis::Rules(landlock::Basis::take(sandbox)), Form::Landlock),
        };
        let confinement = Confinement::make(sandbox, form)?;
        Ok(Kept { sandbox: sandbox.clone(), basis, confinement })
    }
}

impl Confinement {
    /// Called where the command's view of the files is.
    pub fn make(sandbox: &Sandbox, form: Form) -> Result<Self, (Stage, i32)> {
        let ruleset = landlock::ruleset(sandbox, form).map_err(|error| {
            let errno = error.source.raw_os_error().unwrap_or(libc::EINVAL);
            (Stage::Mounts, wire::path_error(errno, &error.path, sandbox))
        })?;
        if ruleset.is_none() && form == Form::Landlock {
            return Err((Stage::Restrictions, libc::EOPNOTSUPP));
        }
        let sockets = Sockets { internet: sandbox.network, unix: sandbox.unix_sockets };
        let locks = if sandbox.only_reads() { Locks::Pretended } else { Locks::Held };
        let filter = filter::compile(sockets, locks, form).ok_or((Stage::Restrictions, libc::ENOSYS))?;
        Ok(Self { ruleset, filter, unshares_ipc: form == Form::Namespaces })
    }

    /// Between fork and exec: only system calls.
    pub fn apply(&self) -> Result<(), i32> {
        let number = |error: io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
        if self.unshares_ipc {
            // Otherwise what it shares by number or name would be there for the next command, which may do more.
            kernel::unshare(libc::CLONE_NEWIPC).map_err(number)?;
        }
        enter::drop_capabilities().map_err(Errno::raw_os_error)?;
        rustix::thread::set_no_new_privs(true).map_err(Errno::raw_os_error)?;
        if let Some(ruleset) = &self.ruleset {
            kernel::restrict(ruleset.as_fd()).map_err(number)?;
        }
        kernel::filter_calls(&self.filter).map_err(number)
    }
}

struct Watch<'a> {
    /// Decurion holds the other end (and the guard a copy of this one).
    control: OwnedFd,
    own: &'a Own,
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
enum Over {
    /// The command ended.
    Ended,
    /// It was asked to end and has not.
    Overdue,
    /// It uses more than it may.
    Excessive(Limit),
    /// Nobody wants to know any more.
    Abandoned,
    /// The guard is gone.
    GuardLost,
}

impl Watch<'_> {
    fn finish(mut self) -> After {
        match self.watch() {
            Over::Ended => self.ended(),
            Over::Overdue => {
                let done = self.sweep();
                self.report_status(true);
                After::the_end(done)
            }
            Over::Excessive(limit) => {
                let done = self.sweep();
                report(&self.control, Report::OverLimit { limit, clean: true });
                After::the_end(done)
            }
            Over::GuardLost => {
                let done = self.sweep();
                report(&self.control, Report::Unknown);
                After::the_end(done)
            }
            Over::Abandoned => After::the_end(self.sweep()),
        }
    }

    fn ended(mut self) -> After {
        let clean = !self.bury();
        // The guard is told first, so that whoever hears of the end finds us ready.
        let ready = clean && self.as_new() && offer(&self.own.link);
        self.report_status(clean);
        if ready {
            return After::AsNew;
        }
        let done = clean || {
            let done = self.sweep();
            report(&self.control, Report::Swept);
            done
        };
        After::the_end(done)
    }

    /// Whether the command did nothing that could matter to the next one. With no children left there is
    /// nobody of it who could still do something.
    fn as_new(&self) -> bool {
        !self.strays
            && self.until.is_none()
            && self.status.is_some()
            && only_children_stir(&self.own.signals)
            && Standing::now() == self.own.standing
    }

    fn watch(&mut self) -> Over {
        loop {
            let (ordered, signalled) = self.wait();
            if signalled && let Some(over) = self.take_signals() {
                return over;
            }
            // While it is being asked to end, what it left has the rest of the time to end too.
            if self.status.is_some() && (self.until.is_none() || !self.bury()) {
                return Over::Ended;
            }
            if ordered && !self.take_order() {
                return Over::Abandoned;
            }
            if self.until.is_some_and(|until| until <= Instant::now()) {
                return Over::Overdue;
            }
            if let Some(limit) = self.look_at_use() {
                return Over::Excessive(limit);
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

    fn take_signals(&mut self) -> Option<Over> {
        if !only_children_stir(&self.own.signals) {
            return Some(Over::GuardLost);
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
                (Some(launch::Exit::Code(0)), _) => Report::Exited { code: 0, clean },
                (Some(_), Some(limit)) => Report::OverLimit { limit, clean },
                (Some(launch::Exit::Code(code)), _) => Report::Exited { code, clean },
                (Some(launch::Exit::Signal(signal)), _) => Report::Signalled { signal, clean },
                _ => Report::Unknown,
            },
        );
    }
}

fn report(control: &OwnedFd, report: Report) {
    // Nobody may be there to hear it.
    let _ = rustix::net::send(control, &report.to_bytes(), SendFlags::NOSIGNAL);
}

/// Tells the guard that we are ready for another command. `false` if it wants none of us.
fn offer(link: &OwnedFd) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(link, &[wire::VERSION], flags).is_ok()
}
