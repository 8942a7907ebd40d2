//! The handle on the guard process. Takes a [`Launch`], gives back a running [`Process`]; starts the guard
//! at first need and again after it died.

mod groups;
mod inside;
mod meter;
mod reaper;
mod serve;
mod spawn;
mod sweep;

use std::ffi::OsString;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, Semaphore};

pub use serve::serve;
pub(crate) use sweep::{Ticks, began, children, is_ending, parent_of, strike, ticks_now, timespec};

use crate::launch::{Launch, LaunchError};
use crate::orphans::{self, Aftermath};
use crate::process::{Ends, Parcel, Process};
use crate::sandbox::{Form, Reach, Sandbox};
use crate::{limits, sandbox, sys, wire};

/// The argument of a guard that lives in namespaces, after those that make it a guard.
const SANDBOX: &str = "--sandbox";
/// The same with the network of the machine.
const SANDBOX_OPEN: &str = "--sandbox-open-network";
/// The argument with which a guard gets other bounds than those of the machine.
const BOUNDS: &str = "--bounds=";
/// What such a guard says instead of its version when the system refuses namespaces, with the error's number.
const NO_NAMESPACES: u8 = u8::MAX;

/// How long a new guard may take to say that it is there.
const GREETING_LIMIT: Duration = Duration::from_secs(20);
/// How long a command may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How many commands may run at once; more wait. Each costs Decurion three or four descriptors.
const MOST_AT_ONCE: usize = 256;

/// How to run the guard: a program whose `main` calls [`serve`] when it sees these arguments. On Linux
/// `/proc/self/exe` stays the right program when its file is replaced.
#[derive(Clone, Debug)]
pub struct GuardProgram {
    pub program: PathBuf,
    /// The arguments that make it a guard.
    pub args: Vec<OsString>,
}

/// Starts commands, through up to three guard processes per value (and its clones). When the last clone and the
/// last [`Process`] are dropped, the guard ends, and everything below it.
#[derive(Clone)]
pub struct Guard {
    shared: Arc<GuardShared>,
}

struct GuardShared {
    program: GuardProgram,
    /// The guard of commands without a sandbox.
    plain: Slot,
    /// The guard of sandboxed commands, where the system allows it namespaces.
    sandboxed: Slot,
    /// The guard of sandboxed processes that have the network of the machine although commands do not.
    machine: Slot,
    form: OnceCell<Form>,
    network: OnceLock<GuardNetwork>,
    bounds: OnceLock<(u64, u32)>,
    /// Gives sandboxes their numbers.
    numbers: RandomState,
    places: Arc<Semaphore>,
}

/// What sandboxed commands that may use the network find there.
pub enum GuardNetwork {
    /// The network of this machine.
    Open,
    /// Nothing but each other and what listens at [`crate::sandbox::PROXY_PORT`]. The listener is made in their network
    /// and given to this function, once for each guard that is started; it is called inside of the runtime.
    Proxied(Box<dyn Fn(std::net::TcpListener) + Send + Sync>),
}

/// One guard process, if it was started.
struct Slot {
    /// Where what it starts lives.
    home: GuardNamespaces,
    current: Mutex<Option<Arc<GuardConnection>>>,
}

/// The namespaces of a guard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GuardNamespaces {
    /// Those of this process.
    Host,
    /// Its own, also for the network unless that is open.
    Session,
    /// Its own, but for the network.
    Machine,
}

impl Slot {
    fn new(home: GuardNamespaces) -> Self {
        Self { home, current: Mutex::new(None) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<GuardConnection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, dead: &Arc<GuardConnection>) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, dead)) {
            *current = None;
        }
    }
}

impl Guard {
    /// A guard that is started when it is first needed.
    pub fn new(program: GuardProgram) -> Self {
        // A quarter of the descriptors at most, so that commands queue instead of failing.
        let places = usize::try_from(limits::open_files() / 8).unwrap_or(MOST_AT_ONCE);
        Self::with_capacity(program, places.clamp(4, MOST_AT_ONCE))
    }

    /// The same with another bound on how many commands run at once.
    pub fn with_capacity(program: GuardProgram, commands: usize) -> Self {
        let places = Arc::new(Semaphore::new(commands.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            shared: Arc::new(GuardShared {
                program,
                plain: Slot::new(GuardNamespaces::Host),
                sandboxed: Slot::new(GuardNamespaces::Session),
                machine: Slot::new(GuardNamespaces::Machine),
                form: OnceCell::new(),
                network: OnceLock::new(),
                bounds: OnceLock::new(),
                numbers: RandomState::new(),
                places,
            }),
        }
    }

    /// Starts a command. Waits first if too many are running. Dropping the future, like dropping the
    /// process, ends what was started.
    pub async fn start(&self, launch: Launch) -> Result<Process, LaunchError> {
        let (slot, form) = self.slot(launch.sandbox.as_deref()).await?;
        let mut numbers = limits::numbers(launch.limits);
        numbers.bubblewrap = form == Some(Form::Bubblewrap);
        let request = wire::encode(&launch, numbers)?;
        // The semaphore is never closed.
        let place = self.shared.places.clone().acquire_owned().await.ok();
        let sandbox = wire::sandbox_part(&request).filter(|_| !numbers.bubblewrap);
        let number = sandbox.map_or(0, |sandbox| self.shared.numbers.hash_one(sandbox).max(1));
        let (mut ends, parcel) = Ends::open(&launch, number)?;
        ends.request(&request)?;
        let connection = self.hand_over(slot, &parcel).await?;
        drop(parcel);
        let mut process = Process::new(ends, place, connection.clone())?;
        match tokio::time::timeout(START_LIMIT, process.started(&request)).await {
            Ok(Ok(())) => Ok(process),
            Ok(Err((stage, errno))) => Err(wire::launch_error(stage, errno, &launch, request.len())),
            Err(_) => {
                // Another process may have stopped it.
                connection.signal(Signal::CONT);
                Err(LaunchError::Lost)
            }
        }
    }

    /// The guard for such a process, and how its sandbox is enforced.
    async fn slot(&self, sandbox: Option<&Sandbox>) -> Result<(&Slot, Option<Form>), LaunchError> {
        let shared = &self.shared;
        let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.sees_machine) else {
            return Ok((&shared.plain, None));
        };
        let form = self.form().await?;
        let is_open = matches!(shared.network.get(), Some(GuardNetwork::Open));
        let slot = match (form, sandbox.reach) {
            (Form::Landlock | Form::Bubblewrap, _) => &shared.plain,
            (Form::Namespaces, Reach::Machine) if !is_open => &shared.machine,
            (Form::Namespaces, _) => &shared.sandboxed,
        };
        Ok((slot, Some(form)))
    }

    /// Starts the guard now, so that the first command need not wait for it.
    pub async fn warm(&self) -> Result<(), LaunchError> {
        self.connection(&self.shared.plain).await.map(drop)
    }

    /// Uses this form of sandbox, even where a stronger one works. To be called before the first command.
    pub fn force_form(&self, form: Form) {
        let _ = self.shared.form.set(form);
    }

    /// Says what sandboxed commands find in their network. To be called before the first of them; without, it is
    /// nothing but each other.
    pub fn set_network(&self, network: GuardNetwork) {
        let _ = self.shared.network.set(network);
    }

    /// Bounds commands by these bytes of memory and this number of processes, instead of three quarters of the machine's
    /// memory and 4096. To be called before the first command.
    pub fn set_bounds(&self, memory: u64, processes: u32) {
        let _ = self.shared.bounds.set((memory, processes));
    }

    /// How sandboxes are enforced here: the strongest form that works, found by trying it once.
    pub async fn form(&self) -> Result<Form, LaunchError> {
        let find = async || match self.connection(&self.shared.sandboxed).await {
            Ok(_) => Ok(Form::Namespaces),
            Err(error @ LaunchError::NoNamespaces { .. }) => {
                let found = tokio::task::spawn_blocking(sandbox::without_namespaces).await;
                found.ok().flatten().ok_or(error)
            }
            Err(error) => Err(error),
        };
        self.shared.form.get_or_try_init(find).await.copied()
    }

    /// The process id of the guard, if one was started and not found dead.
    pub fn pid(&self) -> Option<u32> {
        self.shared.plain.lock().as_ref().map(|connection| connection.pid)
    }

    /// The same of the guard of sandboxed commands.
    pub fn sandbox_pid(&self) -> Option<u32> {
        self.shared.sandboxed.lock().as_ref().map(|connection| connection.pid)
    }

    /// The same of the guard of sandboxed processes with the network of the machine.
    pub fn machine_pid(&self) -> Option<u32> {
        self.shared.machine.lock().as_ref().map(|connection| connection.pid)
    }

    /// Gives a parcel to a living guard. A guard found dead has not taken it, so a new one may.
    async fn hand_over(&self, slot: &Slot, parcel: &Parcel) -> Result<Arc<GuardConnection>, LaunchError> {
        let connection = self.connection(slot).await?;
        if connection.send(parcel).await.is_ok() {
            return Ok(connection);
        }
        slot.forget(&connection);
        let connection = self.connection(slot).await?;
        match connection.send(parcel).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                slot.forget(&connection);
                Err(self.no_guard(format!("it does not take orders: {error}")))
            }
        }
    }

    /// A guard that has said it is there.
    async fn connection(&self, slot: &Slot) -> Result<Arc<GuardConnection>, LaunchError> {
        let connection = {
            let mut current = slot.lock();
            if let Some(connection) = current.as_ref() {
                connection.clone()
            } else {
                let argument = match (slot.home, self.shared.network.get()) {
                    (GuardNamespaces::Host, _) => None,
                    (GuardNamespaces::Machine, _) | (GuardNamespaces::Session, Some(GuardNetwork::Open)) => {
                        Some(SANDBOX_OPEN)
                    }
                    (GuardNamespaces::Session, _) => Some(SANDBOX),
                };
                let bounds = self.shared.bounds.get();
                let bounds = bounds.map(|(memory, processes)| format!("{BOUNDS}{memory},{processes}"));
                let arguments: Vec<&str> = bounds.as_deref().into_iter().chain(argument).collect();
                let opened = GuardConnection::open(&self.shared.program, &arguments);
                let opened = Arc::new(opened.map_err(|error| self.no_guard(error.to_string()))?);
                current.insert(opened).clone()
            }
        };
        let greet = async || {
            let listener = connection.greeting().await?;
            if let (Some(listener), Some(GuardNetwork::Proxied(give))) = (listener, self.shared.network.get())
            {
                give(listener);
            }
            Ok(())
        };
        match connection.greeted.get_or_try_init(greet).await {
            Ok(()) => Ok(connection),
            Err(Unready::NoNamespaces(source)) => {
                slot.forget(&connection);
                Err(LaunchError::NoNamespaces { source })
            }
            Err(Unready::Broken(error)) => {
                slot.forget(&connection);
                Err(self.no_guard(error.to_string()))
            }
        }
    }

    fn no_guard(&self, reason: String) -> LaunchError {
        LaunchError::NoGuard { program: self.shared.program.program.clone(), reason }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// Why a guard cannot be used.
enum Unready {
    /// The system refuses it namespaces.
    NoNamespaces(io::Error),
    Broken(io::Error),
}

/// One guard process. Held by the handle and by every process it started; the last to go ends it.
pub(crate) struct GuardConnection {
    /// The guard holds the other end as its descriptor 0.
    socket: AsyncFd<OwnedFd>,
    child: Option<Child>,
    pid: u32,
    greeted: OnceCell<()>,
    /// What was found after this guard and its reapers had died.
    swept: OnceCell<Aftermath>,
}

impl GuardConnection {
    fn open(program: &GuardProgram, arguments: &[&str]) -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let socket = sys::watched(ours)?;
        let mut guards = orphans::guards();
        #[expect(clippy::disallowed_methods, reason = "the one process that nobody else can start for us")]
        let child = Command::new(&program.program)
            .args(&program.args)
            .args(arguments)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        guards.push(Pid::from_child(&child));
        drop(guards);
        Ok(Self {
            socket,
            pid: child.id(),
            child: Some(child),
            greeted: OnceCell::new(),
            swept: OnceCell::new(),
        })
    }

    /// Waits until it says that it is there. Gives the listener that it has made in its network, if it has one.
    async fn greeting(&self) -> Result<Option<std::net::TcpListener>, Unready> {
        let receive = self.socket.async_io(Interest::READABLE, |socket| Ok(receive_message(socket)?));
        let broken = |text: &'static str| Unready::Broken(io::Error::other(text));
        let received = tokio::time::timeout(GREETING_LIMIT, receive).await;
        let (bytes, fds) =
            received.map_err(|_| broken("it did not say that it is there"))?.map_err(Unready::Broken)?;
        match bytes.as_slice() {
            [] => Err(broken("it ended at once")),
            [wire::VERSION] => Ok(fds.into_iter().next().map(Into::into)),
            [NO_NAMESPACES, a, b, c, d] => {
                let errno = i32::from_le_bytes([*a, *b, *c, *d]);
                Err(Unready::NoNamespaces(io::Error::from_raw_os_error(errno)))
            }
            _ => Err(broken("it is of another version")),
        }
    }

    async fn send(&self, parcel: &Parcel) -> io::Result<()> {
        self.socket.async_io(Interest::WRITABLE, |socket| Ok(send_parcel(socket, parcel)?)).await
    }

    pub fn signal(&self, signal: Signal) {
        // Not buried yet, since `child` is buried only after this value; so the number is still its own.
        if let Some(child) = &self.child {
            let _ = rustix::process::kill_process(Pid::from_child(child), signal);
        }
    }

    /// The end of a command that was not seen. If the guard is gone as well, the processes that it left are ended here,
    /// once for all of its commands, so that all get the same result, and to the end even if this future is dropped.
    pub async fn aftermath(self: &Arc<Self>, reaper_told: bool) -> Aftermath {
        let Some(guard) = Pid::from_raw(self.pid.cast_signed()).filter(|guard| sweep::is_ending(*guard))
        else {
            return Aftermath::Ended;
        };
        if !orphans::is_adopting() {
            return if reaper_told { Aftermath::Ended } else { Aftermath::NotKnown };
        }
        let connection = Arc::clone(self);
        let swept =
            tokio::spawn(async move { connection.swept.get_or_init(|| sweep_after(guard)).await.clone() });
        swept.await.unwrap_or(Aftermath::NotKnown)
    }
}

/// Ends what a guard that has died left to this process.
async fn sweep_after(guard: Pid) -> Aftermath {
    let swept = tokio::task::spawn_blocking(move || {
        // Only then is all that was below it ours.
        let _ = waitid(WaitId::Pid(guard), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        orphans::sweep()
    });
    swept.await.unwrap_or(Aftermath::NotKnown)
}

/// Reaps a guard. Processes that it may have left are ended, if no caller waited for its commands.
fn bury(mut child: Child) {
    let pid = Pid::from_child(&child);
    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let status = {
        let mut guards = orphans::guards();
        let status = child.wait();
        guards.retain(|guard| *guard != pid);
        status
    };
    // One that ended by itself has left nothing.
    if !status.is_ok_and(|status| status.success()) && orphans::is_adopting() {
        orphans::sweep();
    }
}

impl Drop for GuardConnection {
    fn drop(&mut self) {
        // The socket closes after this, and the guard ends. It must be reaped, which takes a while.
        if let Some(child) = self.child.take() {
            let _ = std::thread::Builder::new().stack_size(256 << 10).spawn(move || bury(child));
        }
    }
}

/// Sends a parcel, or none of it.
fn send_parcel(socket: &OwnedFd, parcel: &Parcel) -> Result<(), Errno> {
    let fds: Vec<BorrowedFd<'_>> = parcel.descriptors.iter().map(AsFd::as_fd).collect();
    send_message(socket, &parcel.sandbox.to_le_bytes(), &fds)
}

/// Sends a message with its descriptors, or none of it.
fn send_message(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(reaper::MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// One parcel; `None` when the other side is gone.
fn receive_parcel(socket: &OwnedFd) -> Result<Option<Parcel>, Errno> {
    let (bytes, descriptors) = receive_message(socket)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let sandbox = u64::from_le_bytes(bytes.try_into().map_err(|_| Errno::BADMSG)?);
    Ok(Some(Parcel { sandbox, descriptors }))
}

/// One message with its descriptors; empty when the other side is gone.
fn receive_message(socket: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
    let mut bytes = [0_u8; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(reaper::MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut parcel = Vec::with_capacity(reaper::MOST_DESCRIPTORS);
    for item in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = item {
            parcel.extend(descriptors);
        }
    }
    Ok((bytes[..message.bytes].to_vec(), parcel))
}
