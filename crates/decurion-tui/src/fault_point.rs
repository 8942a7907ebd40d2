//! A fault on purpose, for the fault matrix. Takes the name of a point and which time it is to be; panics there, once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where, and how often that is passed until it burns.
static LAID: OnceLock<(String, AtomicU64)> = OnceLock::new();

/// Lays one, written like `draw:3`. Only the first counts.
pub fn lay(at: &str) -> Result<(), String> {
    let wrong = || format!("not a point and a number, like draw:3: {at}");
    let (point, time) = at.rsplit_once(':').ok_or_else(wrong)?;
    let time: u64 = time.parse().map_err(|_| wrong())?;
    let _ = LAID.set((point.to_owned(), AtomicU64::new(time)));
    Ok(())
}

/// Passes a point. Where nothing was laid, which is always but in a test, this looks at one word of memory.
pub fn pass(point: &str) {
    if let Some((laid, left)) = LAID.get()
        && laid == point
    {
        assert!(left.fetch_sub(1, Ordering::Relaxed) != 1, "a fault on purpose at {point}");
    }
}
