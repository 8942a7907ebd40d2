//! The guard process. Takes parcels of descriptors from Decurion, gives each to a reaper that has no other, and
//! ends everything below it when Decurion is gone.
//!
//! It has one thread, holds no request (a reaper reads its own), and does nothing while nothing happens.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions};

use super::groups::{ControlGroup, Groups, Places};
use super::meter::{self, SessionBounds};
use super::reaper::Rank;
use super::sweep::{self, FIRST_PAUSE, LONGEST_PAUSE, timespec};
use super::{inside, reaper, receive_parcel, send_message, send_parcel};
use crate::process::Parcel;
use crate::sandbox::enter::{self, Base};
use crate::sandbox::kernel;
use crate::{sys, wire};

/// How many reapers may be used again. More than that end with their first command.
const MOST_KEPT: usize = 64;
/// How many of them stay when nothing has happened for a while, so that a crowd of commands leaves no crowd of idle reapers.
const MOST_RESTING: usize = 8;
/// After so long; where the others still work then, after twice as long, and so on.
const REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// How long the guard tries to end what is below it once Decurion is gone.
const LAST_EFFORT: Duration = Duration::from_secs(10);
/// How much of that time the reapers have to end what is theirs.
const REAPERS_FIRST: Duration = Duration::from_secs(2);
/// A reaper that was stopped more often than this is taken for being under attack.
const STOPS_FORGIVEN: u8 = 3;

/// Runs the guard on descriptor 0, to its end. For `main`, before there is any other thread. With [`super::SANDBOX`] as
/// its last argument it is the guard of sandboxed commands.
pub fn serve() -> ! {
    let last = std::env::args_os().next_back().unwrap_or_default();
    let sandbox = match last.to_str() {
        Some(super::SANDBOX) => Some(enter::NamespaceNetwork::Own),
        Some(super::SANDBOX_OPEN) => Some(enter::NamespaceNetwork::Open),
        _ => None,
    };
    if last.to_str() == Some(inside::INSIDE) {
        sys::exit_now(inside::run());
    }
    // A panic here must end as the loss of the guard, which the reapers and Decurion know how to handle.
    let run = || GuardServer::open(sandbox).map_or(70, GuardServer::run);
    sys::exit_now(std::panic::catch_unwind(run).unwrap_or(70))
}

struct GuardServer {
    /// Decurion holds the other end; its closing is the order to end everything.
    socket: OwnedFd,
    signals: OwnedFd,
    /// Where reapers give parcels back, and the end that they have of it.
    returned: (OwnedFd, OwnedFd),
    reapers: Vec<Reaper>,
    /// While orphans of a reaper that was killed are left, which are ours to end: when to look again.
    orphans: Option<Duration>,
    /// How long nothing must happen before idle reapers are ended.
    rest: Duration,
    /// The namespaces it lives in, for the guard of sandboxed commands.
    namespaces: Option<Base>,
    /// What commands may use.
    bounds: SessionBounds,
    /// Where the system lets us make some.
    groups: Option<Groups>,
    /// How commands are bounded by themselves.
    rank: Rank,
}

struct Reaper {
    pid: Pid,
    /// The number of its commands' sandbox.
    sandbox: u64,
    /// The control socket of its latest command. Kept open until the reaper and all its orphans are gone:
    /// closing it tells Decurion so. A reaper that offers itself again has told the end in words, and so
    /// this waits for its next command.
    control: OwnedFd,
    /// Where its next command goes, and where it offers itself for it; `None` if it is to have no other.
    link: Option<OwnedFd>,
    stops: u8,
    group: Option<ControlGroup>,
}

impl Reaper {
    fn stop_forks(&self) {
        if let Some(group) = &self.group {
            group.stop_forks();
        }
    }

    /// Takes the offer of one that waits for its next command.
    fn take_offer(&mut self) -> bool {
        let Some(link) = &self.link else { return false };
        match rustix::net::recv(link, &mut [0_u8; 1], RecvFlags::DONTWAIT) {
            Ok((1, _)) => return true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Dead, or not to be trusted.
            _ => self.link = None,
        }
        false
    }
}

impl GuardServer {
    fn open(sandbox: Option<enter::NamespaceNetwork>) -> Option<Self> {
        let socket = sys::adopt(0)?;
        // What a careless parent of Decurion left open is not for commands. Nothing else is open yet.
        sys::close_range(3, u32::MAX);
        let one_thread = rustix::fs::stat("/proc/self/task").is_ok_and(|status| status.st_nlink == 3);
        if !one_thread {
            return None;
        }
        sys::set_name(c"decurion-guard");
        // Fails only where we lead a group already; then the terminal's signals do not reach us either.
        let _ = rustix::process::setsid();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).ok()?;
        // Not to keep a file system busy.
        let _ = rustix::process::chdir("/");
        sys::default_signals();
        let ends = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE];
        let signals = reserve_low_numbers().and_then(|()| sys::signal_queue(&ends).ok())?;
        let returned = pair().ok()?;
        // The first while the file systems are as the machine has them.
        let (places, bounds) = (Places::find(), bounds_asked().unwrap_or_else(SessionBounds::of_machine));
        let (namespaces, listener) = match sandbox.map(enter::enter).transpose() {
            Ok(entered) => entered.map_or((None, None), |(base, listener)| (Some(base), listener)),
            Err(error) => {
                let _ = rustix::net::send(&socket, &refusal(&error), SendFlags::NOSIGNAL);
                return None;
            }
        };
        match listener {
            Some(listener) => send_message(&socket, &[wire::VERSION], &[listener.as_fd()]).ok()?,
            None => drop(rustix::net::send(&socket, &[wire::VERSION], SendFlags::NOSIGNAL).ok()?),
        }
        // After the greeting: it takes milliseconds, and the first command is mostly not there yet.
        let groups = places.and_then(|places| Groups::make(places, bounds));
        let processes = if groups.is_some() { None } else { meter::user_s_processes(bounds) };
        let rank = rise_above_commands(processes);
        let reapers = Vec::new();
        let (orphans, rest) = (None, REST);
        Some(Self { socket, signals, returned, reapers, orphans, rest, namespaces, bounds, groups, rank })
    }

    fn run(mut self) -> i32 {
        loop {
            let (asked, signalled, returned) = self.wait();
            if asked || signalled || returned {
                self.rest = REST;
            } else if self.orphans.is_none() {
                self.thin_out();
                self.rest = (self.rest * 2).min(LONGEST_REST);
            }
            if signalled && self.take_signals() {
                break;
            }
            if self.orphans.is_some() {
                self.sweep_orphans();
            }
            if returned {
                self.take_returned();
            }
            if asked && !self.take_parcels() {
                break;
            }
        }
        self.end_everything()
    }

    /// Waits for something to do: (a parcel, a signal, a parcel that was given back).
    fn wait(&self) -> (bool, bool, bool) {
        let mut fds =
            [&self.socket, &self.signals, &self.returned.0].map(|fd| PollFd::new(fd, PollFlags::IN));
        // Orphans that resist are looked at again, without keeping new work waiting.
        let rest = (self.kept() > MOST_RESTING).then_some(self.rest);
        let pause = self.orphans.or(rest).map(timespec);
        if poll(&mut fds, pause.as_ref()).is_err() {
            return (false, true, false);
        }
        let [asked, signalled, returned] = fds.map(|fd| !fd.revents().is_empty());
        (asked, signalled, returned)
    }

    /// Whether one of them asks the guard to end.
    fn take_signals(&mut self) -> bool {
        let mut end = false;
        while let Some(signal) = sys::next_signal(&self.signals) {
            end |= !matches!(signal, libc::SIGCHLD | libc::SIGPIPE);
        }
        self.reap();
        end
    }

    /// Buries the dead and looks after the stopped. `false` once there are no children.
    fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(child)) => child,
                Ok(None) => return true,
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            };
            let Some(at) = self.reapers.iter().position(|reaper| reaper.pid == pid) else { continue };
            if status.stopped() {
                wake(&mut self.reapers[at]);
            } else if status.exit_status() == Some(0) {
                self.reapers.remove(at);
            } else {
                // Its work is not done. The entry stays, without spared children, until it is.
                self.orphans = Some(FIRST_PAUSE);
                self.reapers[at].stop_forks();
                self.reapers[at].pid = rustix::process::getpid();
                self.reapers[at].link = None;
            }
        }
    }

    /// Strikes at what killed reapers left. Their entries go when nothing is left.
    fn sweep_orphans(&mut self) {
        let spared: Vec<Pid> = self.reapers.iter().map(|reaper| reaper.pid).collect();
        if !sweep::strike(&spared).is_empty() {
            self.orphans = self.orphans.map(|pause| (pause * 2).min(LONGEST_PAUSE));
            return;
        }
        let own = rustix::process::getpid();
        self.reapers.retain(|reaper| reaper.pid != own);
        self.orphans = None;
    }

    /// `false` when Decurion is gone.
    fn take_parcels(&mut self) -> bool {
        loop {
            match receive_parcel(&self.socket) {
                Ok(Some(parcel)) => self.launch(parcel),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                // Descriptors could not be made; their other ends see that as a failed start.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {}
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// What could not be received, or what was sent by one who was killed before, is seen at its other end as a failed start.
    fn take_returned(&mut self) {
        while let Ok(Some(parcel)) = receive_parcel(&self.returned.0) {
            self.launch(parcel);
        }
    }

    fn launch(&mut self, mut parcel: Parcel) {
        if parcel.descriptors.len() < reaper::LEAST_DESCRIPTORS {
            return;
        }
        if let Some(at) = self.hand_to_idle(&parcel) {
            let mut reaper = self.reapers.remove(at);
            // The one before goes: its command is over.
            reaper.control = parcel.descriptors.swap_remove(reaper::CONTROL);
            // Behind those that have been idle for longer.
            self.reapers.push(reaper);
            return;
        }
        let origin = reaper::ReaperOrigin {
            returns: &self.returned.1,
            namespaces: self.namespaces.as_ref(),
            bounds: self.bounds,
            group: self.groups.as_ref().and_then(Groups::next),
            rank: self.rank,
        };
        let made = hand_to_new(&parcel, &origin);
        let control = parcel.descriptors.swap_remove(reaper::CONTROL);
        match made {
            Ok((pid, link)) => {
                let link = self.makes_room().then_some(link);
                let group = self.groups.as_mut().and_then(Groups::advance);
                self.groups = self.groups.take().filter(|groups| groups.next().is_some());
                let sandbox = parcel.sandbox;
                self.reapers.push(Reaper { pid, sandbox, control, link, stops: 0, group });
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
                let report = wire::ReaperReport::Failed(wire::StartStage::Fork, errno).to_bytes();
                let _ = rustix::net::send(&control, &report, SendFlags::NOSIGNAL);
            }
        }
    }

    /// Gives a parcel to a reaper of the same sandbox that has offered itself and still lives.
    fn hand_to_idle(&mut self, parcel: &Parcel) -> Option<usize> {
        // The latest first: its memory is the warmest.
        for (at, reaper) in self.reapers.iter_mut().enumerate().rev() {
            if reaper.sandbox != parcel.sandbox || !reaper.take_offer() {
                continue;
            }
            if reaper.link.as_ref().is_some_and(|link| send_parcel(link, parcel).is_ok()) {
                return Some(at);
            }
            reaper.link = None;
        }
        None
    }

    /// How many reapers may be used again.
    fn kept(&self) -> usize {
        self.reapers.iter().filter(|reaper| reaper.link.is_some()).count()
    }

    /// Whether another reaper may be used again. At the limit, an idle one is ended.
    fn makes_room(&mut self) -> bool {
        self.kept() < MOST_KEPT || self.let_go()
    }

    /// Lets idle reapers go that are more than those that stay.
    fn thin_out(&mut self) {
        while self.kept() > MOST_RESTING && self.let_go() {}
    }

    /// Lets the first idle reaper go: that which was given its last command before the others. `false` if none is idle.
    fn let_go(&mut self) -> bool {
        let idle = self.reapers.iter_mut().find_map(|reaper| reaper.take_offer().then_some(reaper));
        idle.is_some_and(|idle| idle.link.take().is_some())
    }

    /// Ends everything below. 0 if nothing is left. The reapers end what is theirs: if they were struck before it, what
    /// they watch would survive a guard that is killed in that moment.
    fn end_everything(&mut self) -> i32 {
        // Decurion must not send what is not taken any more.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let own = rustix::process::getpid();
        for reaper in self.reapers.iter().filter(|reaper| reaper.pid != own) {
            let _ = rustix::process::kill_process(reaper.pid, Signal::TERM);
        }
        self.reapers.iter().for_each(Reaper::stop_forks);
        while self.reap() && begun.elapsed() < LAST_EFFORT {
            let spared: Vec<Pid> = self.reapers.iter().map(|reaper| reaper.pid).collect();
            sweep::strike(if begun.elapsed() < REAPERS_FIRST { &spared } else { &[] });
            pause = sweep::rest(&self.signals, pause);
        }
        i32::from(self.reap())
    }
}

fn wake(reaper: &mut Reaper) {
    reaper.stops = reaper.stops.saturating_add(1);
    // The link was tampered with: the reaper ends with its current command.
    reaper.link = None;
    let signal = if reaper.stops > STOPS_FORGIVEN { Signal::KILL } else { Signal::CONT };
    let _ = rustix::process::kill_process(reaper.pid, signal);
}

/// Sent instead of the version if the kernel refuses the namespaces.
fn refusal(error: &io::Error) -> [u8; 5] {
    let [a, b, c, d] = error.raw_os_error().unwrap_or(0).to_le_bytes();
    [super::NO_NAMESPACES, a, b, c, d]
}

/// Lets the guard and its reapers run before the commands that they may have to end, as far as this user may. Gives the
/// priority that commands have.
fn rise_above_commands(processes: Option<u64>) -> Rank {
    const HIGHEST: i32 = -20;
    const LOWEST: i32 = 19;
    const LOWER_BY: i32 = 5;
    let niceness = rustix::process::getpriority_process(None).unwrap_or(0);
    let _ = rustix::process::setpriority_process(None, HIGHEST);
    Rank { niceness, lower: (niceness + LOWER_BY).min(LOWEST), processes }
}

/// The bounds that the guard was given, as `--bounds=BYTES,PROCESSES`.
fn bounds_asked() -> Option<SessionBounds> {
    let given = std::env::args_os().find_map(|argument| {
        argument.to_str().and_then(|argument| argument.strip_prefix(super::BOUNDS)).map(str::to_owned)
    })?;
    let (memory, processes) = given.split_once(',')?;
    Some(SessionBounds { memory: memory.parse().ok()?, processes: processes.parse().ok()? })
}

/// Makes a reaper for a parcel. Gives its id and the way to it.
fn hand_to_new(parcel: &Parcel, origin: &reaper::ReaperOrigin<'_>) -> io::Result<(Pid, OwnedFd)> {
    let (ours, theirs) = pair()?;
    send_parcel(&ours, parcel)?;
    let guard = rustix::process::getpid();
    let forked = if origin.namespaces.is_some() { kernel::fork_into_namespaces() } else { sys::fork() };
    match forked? {
        None => reaper::run(&theirs, guard, origin),
        Some(pid) => Ok((pid, ours)),
    }
}

fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn reserve_low_numbers() -> Option<()> {
    use std::os::fd::{AsRawFd, IntoRawFd};
    loop {
        let null = std::fs::File::open("/dev/null").ok()?;
        if null.as_raw_fd() >= reaper::RESERVED {
            return Some(());
        }
        // Left open on purpose, for as long as the guard lives.
        let _ = null.into_raw_fd();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One whose offer may be waiting, and its own end of the link.
    fn example(sandbox: u64, offers: bool) -> (Reaper, OwnedFd) {
        let (ours, theirs) = pair().unwrap();
        if offers {
            rustix::net::send(&theirs, &[wire::VERSION], SendFlags::NOSIGNAL).unwrap();
        }
        let (pid, control) = (rustix::process::getpid(), pair().unwrap().0);
        (Reaper { pid, sandbox, control, link: Some(ours), stops: 0, group: None }, theirs)
    }

    fn server(reapers: Vec<Reaper>) -> GuardServer {
        let (socket, signals) = pair().unwrap();
        GuardServer {
            socket,
            signals,
            returned: pair().unwrap(),
            reapers,
            orphans: None,
            rest: REST,
            namespaces: None,
            bounds: SessionBounds::of_machine(),
            groups: None,
            rank: Rank { niceness: 0, lower: 0, processes: None },
        }
    }

    fn parcel(sandbox: u64) -> Parcel {
        let descriptor = || pair().unwrap().0;
        Parcel { sandbox, descriptors: std::iter::repeat_with(descriptor).take(4).collect() }
    }

    #[test]
    fn a_parcel_goes_to_a_reaper_that_offered_itself_and_lives_and_to_it_once() {
        let ((idle, idle_end), (busy, busy_end), (dead, dead_end)) =
            (example(0, true), example(0, false), example(0, true));
        // Not by dropping it: a command another test starts may hold a copy until its exec.
        rustix::net::shutdown(&dead_end, rustix::net::Shutdown::Both).unwrap();
        let mut server = server(vec![idle, busy, dead]);
        assert_eq!(server.hand_to_idle(&parcel(0)), Some(0));
        assert_eq!(server.hand_to_idle(&parcel(0)), None);
        let kept: Vec<bool> = server.reapers.iter().map(|reaper| reaper.link.is_some()).collect();
        assert_eq!(kept, [true, true, false]);
        let received = receive_parcel(&idle_end).unwrap().unwrap();
        assert_eq!(received.descriptors.len(), reaper::LEAST_DESCRIPTORS);
        assert_eq!(receive_parcel(&idle_end).err(), Some(Errno::AGAIN));
        assert_eq!(receive_parcel(&busy_end).err(), Some(Errno::AGAIN));
    }

    #[test]
    fn a_parcel_goes_to_a_reaper_of_its_sandbox_alone() {
        let (reapers, ends): (Vec<_>, Vec<_>) =
            [0, 7, 8].map(|sandbox| example(sandbox, true)).into_iter().unzip();
        let mut server = server(reapers);
        assert_eq!(server.hand_to_idle(&parcel(9)), None);
        assert_eq!(server.hand_to_idle(&parcel(7)), Some(1));
        assert_eq!(server.hand_to_idle(&parcel(0)), Some(0));
        let received = ends.iter().map(|end| receive_parcel(end).ok().flatten().map(|parcel| parcel.sandbox));
        assert_eq!(received.collect::<Vec<_>>(), [Some(0), Some(7), None]);
    }

    #[test]
    fn the_reaper_that_was_idle_for_longest_makes_room() {
        let busy = (1..3).map(|sandbox| example(sandbox, false));
        let idle = (3..=MOST_KEPT as u64).map(|sandbox| example(sandbox, true));
        let (reapers, _ends): (Vec<_>, Vec<_>) = busy.chain(idle).unzip();
        let mut server = server(reapers);
        let kept = |server: &GuardServer| -> Vec<u64> {
            let kept = server.reapers.iter().filter(|reaper| reaper.link.is_some());
            kept.map(|reaper| reaper.sandbox).collect()
        };
        let all = kept(&server);
        assert!(server.makes_room());
        assert_eq!(kept(&server), [&all[..2], &all[3..]].concat());
        // With one fewer than may be kept nobody goes.
        assert!(server.makes_room());
        assert_eq!(kept(&server).len(), MOST_KEPT - 1);
        // Those that work stay, and the latest of the others.
        server.thin_out();
        assert_eq!(kept(&server), [&all[..2], &all[MOST_KEPT + 2 - MOST_RESTING..]].concat());
    }
}
