//! The command that judges a merge. Takes a checkout, runs it there with bounds, keeps what it said in a file;
//! gives why the merge may not stand, or nothing.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use decurion_exec::capture::SpillWriter;
use decurion_exec::{Capture, CaptureBounds, Exit, Guard, shell};

/// The most of a gate's output that is kept.
const MOST_OUTPUT: u64 = 64 << 20;
/// How long a gate has to end by itself when its time is up.
const GRACE: Duration = Duration::from_secs(2);

/// A command that must succeed.
#[derive(Clone, Debug)]
pub struct Gate {
    pub command: String,
    /// How long it may run.
    pub timeout: Duration,
    pub environment: Arc<[(OsString, OsString)]>,
}

impl Gate {
    /// Runs it; gives why it does not let the merge through.
    pub(super) async fn run(&self, guard: &Guard, at: &Utf8Path, output: &Utf8Path) -> Option<String> {
        let path = output.to_owned();
        // What one merge left of this name must not be added to.
        let _ = std::fs::remove_file(&path);
        let open = Box::new(move || {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            Ok(Box::new(file) as SpillWriter)
        });
        let bounds = CaptureBounds { head: 0, tail: 0, file: MOST_OUTPUT };
        let mut capture = Capture::with_spill(bounds, open);
        let launch =
            shell::bash(&self.command, at.as_std_path(), false).env(self.environment.iter().cloned());
        let mut process = match guard.start(launch).await {
            Ok(process) => process,
            Err(error) => return Some(format!("could not be started: {error}")),
        };
        let running = process.collect(&mut capture, None, |_| {});
        let Ok(exit) = tokio::time::timeout(self.timeout, running).await else {
            process.stop(GRACE).await;
            return Some(format!("took longer than {} s", self.timeout.as_secs()));
        };
        drop(capture.finish());
        match exit {
            Exit::Code(0) => None,
            exit => Some(exit.to_string()),
        }
    }
}
