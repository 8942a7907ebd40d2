//! Standard input without hanging. Takes a stream, tells whether something will come.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long an open pipe may stay silent before it counts as one without a writer.
const PATIENCE: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

/// Whether there is something to read, or its end. A pipe that stays silent is left alone: programs are often started
/// with one that is never written to or closed.
pub fn has_data(input: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(input, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&PATIENCE)), Ok(1..))
}
