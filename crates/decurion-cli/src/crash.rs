//! A fault in the program itself. Takes a panic anywhere in it; gives a report in a file that only its owner can read,
//! and a message for the person as soon as the terminal is free.
//!
//! Not every panic is an end: one in a tool or an agent is caught and ends only that. So the terminal is not touched
//! here; the code that has it restores it on its way out.

use std::backtrace::Backtrace;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::Clock as _;
use decurion_tui::terminal;

use crate::clock::SystemClock;
use crate::report::{note, visible};
use crate::wire;

/// One process writes so many reports at most: a fault that repeats itself must not fill a disk.
const MOST: u32 = 8;

/// Messages that wait until the terminal is free.
static UNTOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// How many reports there are.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// Keeps a report of every panic from now on, in the state folder.
pub fn watch(state: Option<&Utf8Path>) {
    let Some(folder) = state.map(|state| state.join("reports")) else { return };
    std::panic::set_hook(Box::new(move |panic| {
        if WRITTEN.fetch_add(1, Ordering::Relaxed) >= MOST {
            return;
        }
        let what = words(panic);
        let kept = match keep(&folder, &what) {
            Ok(path) => format!("the report is in {path}"),
            Err(error) => format!("its report cannot be kept in {folder}: {error}"),
        };
        let mut untold = UNTOLD.lock().unwrap_or_else(PoisonError::into_inner);
        untold.push(format!("a fault in the program: {}", visible(&what)));
        untold.push(kept);
        drop(untold);
        if !terminal::is_taken() {
            tell();
        }
    }));
}

/// Prints the waiting messages.
pub fn tell() {
    let untold = std::mem::take(&mut *UNTOLD.lock().unwrap_or_else(PoisonError::into_inner));
    untold.iter().for_each(note);
}

fn words(panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("no words");
    match panic.location() {
        Some(place) => format!("{message} ({}:{})", place.file(), place.line()),
        None => message.to_owned(),
    }
}

fn keep(folder: &Utf8Path, what: &str) -> io::Result<Utf8PathBuf> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let date = SystemClock::new().date();
    let number = WRITTEN.load(Ordering::Relaxed);
    let name = format!("{}-{}-{number}.txt", date.strftime("%Y%m%d-%H%M%S"), std::process::id());
    let path = folder.join(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
    let traced = Backtrace::force_capture();
    write!(file, "decurion {}\n{date}\nthread {thread}\n\n{what}\n\n{traced}\n", wire::VERSION)?;
    Ok(path)
}
