//! What is left when a guard and its reapers are killed together. Takes nothing; ends the processes below a dead guard
//! that became children of this process, and gives how many there were and which could not be ended.
//!
//! A process that adopts orphans ([`adopt`]) becomes the parent of everything below a guard once guard and reapers are
//! gone, even of processes that hid. Its own children have another session: a guard begins a new one, and nothing below
//! it can join ours. A shell that became this program (`exec`) may have left it children too; those began before.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::guard::{Ticks, began, children, is_ending, strike, ticks_now};
use crate::sys;

/// How long to strike at processes that do not end (another user's, or stuck in the kernel).
const LIMIT: Duration = Duration::from_secs(5);
/// How long to wait before looking again at what was struck.
const PAUSE: Duration = Duration::from_millis(2);

/// The living guards of this process. Code that starts or reaps one holds the lock meanwhile.
static GUARDS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());
static ADOPTS: AtomicBool = AtomicBool::new(false);
static BEFORE: OnceLock<AdoptionStart> = OnceLock::new();

/// What this process had when it began to adopt.
struct AdoptionStart {
    children: Vec<Pid>,
    at: Ticks,
}

/// What became of a command whose end was not seen, and of all that it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Aftermath {
    /// Its guard or its reaper lived on and ended everything.
    #[default]
    Ended,
    /// Both were gone. This process looked for what they left.
    Swept {
        /// How many processes were found and killed.
        killed: usize,
        /// Those that could not be killed.
        left: Vec<u32>,
    },
    /// Both were gone, and this process does not adopt what they leave.
    NotKnown,
}

/// Makes this process the one to which everything below a dead guard comes. For a program's start; the only children
/// that it starts in other sessions must be guards. Not for the first process of a container, to which every orphan
/// there comes.
pub fn adopt() {
    if getpid().is_init() {
        return;
    }
    let Some(at) = ticks_now() else { return };
    BEFORE.get_or_init(|| AdoptionStart { children: children(getpid()), at });
    ADOPTS.store(set_child_subreaper(Some(getpid())).is_ok(), Ordering::Relaxed);
}

/// Whether this process has adopted what dead guards left all the time.
pub(crate) fn is_adopting() -> bool {
    ADOPTS.load(Ordering::Relaxed)
}

/// Runs a person's own program. What it leaves behind on purpose is not ours to adopt, nor to end.
pub(crate) fn not_adopting<T>(act: impl FnOnce() -> T) -> T {
    if !ADOPTS.swap(false, Ordering::Relaxed) {
        return act();
    }
    let _ = set_child_subreaper(None);
    let done = act();
    adopt();
    done
}

pub(crate) fn guards() -> MutexGuard<'static, Vec<Pid>> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends what dead guards left to this process, and what is below that. Blocks until it is gone or resists.
pub(crate) fn sweep() -> Aftermath {
    let begun = Instant::now();
    let mut found = HashSet::new();
    loop {
        let (alive, buried) = {
            let guards = guards();
            let (orphans, others): (Vec<Pid>, Vec<Pid>) =
                children(getpid()).into_iter().partition(|child| is_orphan(*child, &guards));
            let alive: Vec<Pid> = orphans.iter().copied().filter(|orphan| !bury(*orphan)).collect();
            let buried = alive.len() < orphans.len();
            (if alive.is_empty() { Vec::new() } else { strike(&others) }, buried)
        };
        found.extend(alive.iter().copied());
        // The children of one that ended came to us after we looked.
        let done = alive.is_empty() && !buried;
        if done || begun.elapsed() > LIMIT {
            let alive = alive.into_iter().filter(|pid| !is_ending(*pid));
            let left: Vec<u32> = alive.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()).collect();
            return Aftermath::Swept { killed: found.len() - left.len(), left };
        }
        if !alive.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether a child came from a dead guard.
fn is_orphan(child: Pid, guards: &[Pid]) -> bool {
    let (Ok(own), Ok(session)) = (sys::session(None), sys::session(Some(child))) else { return false };
    if guards.contains(&child) || session == own {
        return false;
    }
    let Some(before) = BEFORE.get() else { return false };
    !before.children.contains(&child) && began(child).is_none_or(|began| began >= before.at)
}

/// Buries a child if it has ended.
fn bury(child: Pid) -> bool {
    matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(Some(_)) | Err(_))
}
