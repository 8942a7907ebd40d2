//! Starts, bounds and ends operating-system processes. Takes a [`Launch`], gives back a [`Process`], and
//! later its [`Exit`]; nothing a process started outlives it, and nothing outlives Decurion.
//!
//! Every process is started by a *guard* ([`Guard`]): one small process per session, which forks one
//! *reaper* per command. The reaper adopts whatever the command leaves behind and ends it. The guard and
//! its reapers notice when Decurion is gone, however it went, and end everything. Where both are killed, Decurion itself
//! ends what they left ([`adopt_orphans`]).

pub mod capture;
pub mod concealment;
pub mod foreground;
pub mod git;
pub mod guard;
pub mod keeper;
pub mod launch;
pub mod limits;
pub mod lineage;
pub mod new_file;
pub mod placeholder;
pub mod process;
pub mod sandbox;
pub mod shell;

mod orphans;
mod sys;
mod wire;

pub use capture::{Capture, CaptureBounds, Captured, Rendered};
pub use git::{Git, GitError};
pub use guard::{Guard, GuardNetwork, GuardProgram};
pub use launch::{Exit, Launch, LaunchError, Limit, Output, ResourceLimits, Stdin};
pub use limits::{free_bytes, is_read_only, keep_freed_memory, raise_file_limit, set_umask_077};
pub use lineage::is_from_below;
pub use orphans::{Aftermath, adopt as adopt_orphans};
pub use process::{Process, ProcessStopper};
pub use sandbox::{Form, Reach, Sandbox};
