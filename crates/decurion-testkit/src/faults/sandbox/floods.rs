//! X5: commands that flood the machine, and whether their session still answers. Takes a fork bomb, a huge allocation, endless
//! output and many open files, one session each; gives the longest time in which the session answered meanwhile.
//!
//! Each flood is bounded by itself, so that a limit that does not hold cannot take the machine along.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report};

/// An answer that takes longer never comes.
const HANG: Duration = Duration::from_secs(60);
/// So often a session is asked during a flood.
const QUESTIONS: usize = 10;

/// Each is stopped by `timeout` at the latest.
const FLOODS: [(&str, &str); 4] = [
    ("fork bomb", FORKS),
    ("allocation", ALLOCATION),
    ("output", "echo up >> $EFFECTS; timeout 8 cat /dev/zero"),
    ("open files", FILES),
];

/// At most 2,000 processes that do nothing; unbounded bombs have taken whole machines along.
const FORKS: &str =
    "echo up >> $EFFECTS; timeout -k 1 8 bash -c 'for i in $(seq 2000); do sleep 8 & done; wait' 2>/dev/null";

/// 20 GB, of which at most half of the free memory is touched.
const ALLOCATION: &str = "echo up >> $EFFECTS; timeout 8 python3 -c '
import mmap, time
free = [int(l.split()[1]) * 1024 for l in open(\"/proc/meminfo\") if l.startswith(\"MemAvailable\")][0]
block = mmap.mmap(-1, 20 << 30)
for at in range(0, min(20 << 30, free // 2), 4096):
    block[at] = 1
time.sleep(8)'";

const FILES: &str = "echo up >> $EFFECTS; timeout 8 python3 -c '
import resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
files = []
try:
    while len(files) < 10000: files.append(open(\"/dev/null\"))
except OSError: pass
time.sleep(6)'";

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut figures = Vec::new();
    for (name, command) in FLOODS {
        // The short form leaves out what fills the memory of a machine that others use.
        if options.ci && name == "allocation" {
            figures.push("allocation: only in the full form".to_owned());
            continue;
        }
        let result = flood(options, command);
        if let Ok((longest, took)) = &result {
            figures.push(format!("{name}: {} ms (command {} ms)", longest.as_millis(), took.as_millis()));
        }
        report.add(name, result.map(drop));
    }
    report.figure(format!("longest answer of a session during a flood: {}", figures.join(", ")))
}

/// Runs one flood and asks its session meanwhile. Gives the longest answer, and how long the whole took.
fn flood(options: &Options, command: &str) -> Result<(Duration, Duration), String> {
    let call = json!({"command": command, "timeout": 60_000});
    let script = format!("when agent=main turn=1\n  call Bash {call}\nwhen\n  say \"done\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let running = stand.run("go").start().map_err(|error| error.to_string())?;
    while crate::proc::lines_of(&stand.home.effects()).is_empty() {
        if begun.elapsed() > HANG {
            return Err("the command did not start".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut answers = Vec::new();
    while let Some(time) = ask(&stand)?.filter(|_| answers.len() < QUESTIONS) {
        answers.push(time);
    }
    let longest = answers.into_iter().max().ok_or("the session was never asked while it was live")?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if run.timed_out || !run.ending.is_success() {
        return Err(format!("the session did not outlive it: {:?} {}", run.ending, brief(&run.errors)));
    }
    stand.check_left()?;
    Ok((longest, begun.elapsed()))
}

/// Asks the session for its tasks through its socket, by another process of the program; none once the session has ended.
fn ask(stand: &Stand) -> Result<Option<Duration>, String> {
    let begun = Instant::now();
    let asked =
        stand.program(stand.binary()).args(["tasks", "list"]).run(HANG).map_err(|error| error.to_string())?;
    if asked.timed_out || asked.ending.code() != 0 {
        return Err(format!("no answer: {:?} {}", asked.ending, brief(&asked.errors)));
    }
    // Of one that has ended, the record is shown instead.
    Ok((!asked.errors.contains("is not live")).then(|| begun.elapsed()))
}
