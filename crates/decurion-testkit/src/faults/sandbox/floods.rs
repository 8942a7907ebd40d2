//! X5: commands that flood the machine, and whether their session still answers. Takes a fork bomb, a huge allocation, endless
//! output and many open files, one session each; gives the longest time in which the session answered meanwhile.
//!
//! How long an answer takes on a loaded machine says little about the session. So an idle session is asked at the same time:
//! its answers are the clock, and the flooded session is stuck if the idle one has answered many times and it has not.
//!
//! Each flood is bounded by itself, so that a limit that does not hold cannot take the machine along.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::faults::stand::{Stand, brief};
use crate::faults::{Options, Report};
use crate::proc::{Running, wait_for_lines};

/// A session has answered before an idle one answers so many times, whatever its commands do. With the pauses these are a
/// second at least.
const MOST: usize = 20;
/// An answer that takes longer never comes.
const HANG: Duration = Duration::from_secs(60);
/// A session is asked again so long after it has answered, throughout the flood.
const PAUSE: Duration = Duration::from_millis(50);

/// One command that floods. It appends to `$EFFECTS` that it is up, and at its end how much it did.
struct Flood {
    name: &'static str,
    command: String,
    /// What its session must say of its end; nothing where no bound is met.
    ended_by: Option<&'static str>,
    /// What it must have done at least.
    least: u64,
    unit: &'static str,
}

/// Each is stopped by `timeout` at the latest.
fn floods(options: &Options) -> Vec<Flood> {
    // The short form stays below the bounds: it shares its machine.
    let bounded = |text| Some(text).filter(|_| !options.ci);
    let (count, seconds) = if options.ci { ("2000", "8") } else { ("6000", "20") };
    let forks = FORKS.replace("COUNT", count).replace("SECONDS", seconds);
    let mut floods = vec![
        Flood {
            name: "fork bomb",
            command: forks,
            ended_by: bounded("used more than 4096 processes"),
            least: 0,
            unit: "",
        },
        Flood { name: "output", command: OUTPUT.into(), ended_by: None, least: 1, unit: " MB/s" },
        Flood { name: "open files", command: FILES.into(), ended_by: None, least: 10_000, unit: " files" },
    ];
    if !options.ci {
        let whole = fits_memory();
        let command = ALLOCATION.replace("PART", if whole { "1" } else { "2" });
        let ended_by = whole.then_some("of memory");
        floods.push(Flood { name: "allocation", command, ended_by, least: 0, unit: "" });
    }
    floods
}

/// Processes that do nothing. Unbounded bombs have taken whole machines along, so that their number is bounded here too.
const FORKS: &str = "echo up >> $EFFECTS; timeout -k 1 SECONDS bash -c 'for i in $(seq COUNT); do sleep SECONDS & done; wait' 2>/dev/null";

/// 20 GiB, of which all is touched or at most half of the free memory.
const ALLOCATION: &str = "echo up >> $EFFECTS; timeout 50 python3 -c '
import mmap
free = [int(l.split()[1]) * 1024 for l in open(\"/proc/meminfo\") if l.startswith(\"MemAvailable\")][0]
block = mmap.mmap(-1, 20 << 30)
for at in range(0, min(20 << 30, free // PART), 4096):
    block[at] = 1'";

/// Whether the whole allocation fits this machine, so that nothing else suffers if its bound does not hold, and is beyond
/// the bound of three quarters of the memory.
fn fits_memory() -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let find = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes >> 20)
    };
    let gibibytes = (find("MemTotal:"), find("MemAvailable:"));
    matches!(gibibytes, (Some(total), Some(free)) if free >= 21 && total / 4 * 3 < 20)
}

/// As much as the session takes: it reads what commands print.
const OUTPUT: &str = "echo up >> $EFFECTS; timeout 20 python3 -c '
import os, time
block, count, begun = bytes(1 << 20), 0, time.monotonic()
while time.monotonic() < begun + 8: count += os.write(1, block)
open(os.environ[\"EFFECTS\"], \"a\").write(str(int(count / (time.monotonic() - begun) / 1e6)) + \"\\n\")'";

const FILES: &str = "echo up >> $EFFECTS; timeout 8 python3 -c '
import os, resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
effects = open(os.environ[\"EFFECTS\"], \"a\", buffering=1)
files = []
try:
    while len(files) < 10000: files.append(open(\"/dev/null\"))
except OSError: pass
effects.write(str(len(files)) + \"\\n\")
time.sleep(6)'";

/// Lives longer than each flood.
const IDLE: &str = "echo up >> $EFFECTS; exec sleep 600";

pub(super) fn row(options: &Options) -> Report {
    let mut report = Report::default();
    let mut figures = Vec::new();
    for flood in floods(options) {
        let result = run(options, &flood);
        if let Ok(Answered { longest, beats, took, did }) = &result {
            let end = flood.ended_by.map(|text| format!(", ended: {text}")).unwrap_or_default();
            let did = did.map(|count| format!(", {count}{}", flood.unit)).unwrap_or_default();
            let (longest, took) = (longest.as_millis(), took.as_millis());
            figures.push(format!(
                "{}: {longest} ms, {beats} answers of an idle one meanwhile (command {took} ms{did}{end})",
                flood.name
            ));
        }
        let result = result.and_then(|Answered { longest, beats, did, .. }| match did.unwrap_or_default() {
            did if did < flood.least => Err(format!("no flood: {did}{} of {}", flood.unit, flood.least)),
            _ if beats >= MOST => {
                let longest = longest.as_millis();
                Err(format!("an answer took {longest} ms, in which an idle session answered {beats} times"))
            }
            _ => Ok(()),
        });
        report.add(flood.name, result);
    }
    report.figure(format!("longest answer of a session during a flood: {}", figures.join(", ")))
}

/// How a session answered while a command flooded the machine.
struct Answered {
    longest: Duration,
    /// How often an idle session answered during one answer of this one, at most.
    beats: usize,
    /// How long the whole took.
    took: Duration,
    /// How much the flood did, if it says so.
    did: Option<u64>,
}

/// Runs one flood and asks its session meanwhile.
fn run(options: &Options, flood: &Flood) -> Result<Answered, String> {
    let (idle, _lives) = start(options, IDLE)?;
    let begun = Instant::now();
    let (stand, running) = start(options, &flood.command)?;
    let (beats, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (answers, clock) = std::thread::scope(|scope| {
        let clock = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ask(&idle)?.ok_or("the idle session has ended")?;
                beats.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
            Ok::<(), String>(())
        });
        let answers = ask_to_the_end(&stand, &beats);
        is_over.store(true, Ordering::Relaxed);
        (answers, clock.join().unwrap_or_else(|_| Err("the clock panicked".into())))
    });
    clock.map_err(|problem| format!("no idle session to compare with: {problem}"))?;
    let answers = answers?;
    let longest = answers.iter().map(|(time, _)| *time).max();
    let longest = longest.ok_or("the session was never asked while it was live")?;
    let beats = answers.iter().map(|(_, beats)| *beats).max().unwrap_or_default();
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if run.timed_out || !run.ending.is_success() {
        return Err(format!("the session did not outlive it: {:?} {}", run.ending, brief(&run.errors)));
    }
    let took = begun.elapsed();
    stand.check_left()?;
    let told =
        stand.model.requests().last().map(|request| String::from_utf8_lossy(&request.body).into_owned());
    match (flood.ended_by, told.unwrap_or_default()) {
        (Some(end), told) if !told.contains(end) => {
            Err(format!("no bound ended it ({end}): {}", brief(&told)))
        }
        _ => {
            let did = crate::proc::lines_of(&stand.home.effects()).pop().and_then(|line| line.parse().ok());
            Ok(Answered { longest, beats, took, did })
        }
    }
}

/// Starts a session with one command, which says that it is up.
fn start(options: &Options, command: &str) -> Result<(Stand, Running), String> {
    let call = json!({"command": command, "timeout": 600_000});
    let script = format!("when agent=main turn=1\n  call Bash {call}\nwhen\n  say \"done\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let running = stand.run("go").start().map_err(|error| error.to_string())?;
    match wait_for_lines(&stand.home.effects(), 1, HANG) {
        Ok(0) => Err("the command did not start".into()),
        Ok(_) => Ok((stand, running)),
        Err(error) => Err(error.to_string()),
    }
}

/// Asks a session until it ends. Gives how long each answer took, and how often an idle session answered meanwhile.
fn ask_to_the_end(stand: &Stand, beats: &AtomicUsize) -> Result<Vec<(Duration, usize)>, String> {
    let mut answers = Vec::new();
    loop {
        let before = beats.load(Ordering::Relaxed);
        let Some(time) = ask(stand)? else { return Ok(answers) };
        answers.push((time, beats.load(Ordering::Relaxed) - before));
        std::thread::sleep(PAUSE);
    }
}

/// Asks the session for its tasks through its socket, by another process of the program; none once the session has ended.
fn ask(stand: &Stand) -> Result<Option<Duration>, String> {
    let begun = Instant::now();
    let asked =
        stand.program(stand.binary()).args(["tasks", "list"]).run(HANG).map_err(|error| error.to_string())?;
    if ["ended before it replied", "has ended"].iter().any(|text| asked.errors.contains(text)) {
        return Ok(None);
    }
    if asked.errors.contains("Connection reset by peer") {
        // It ended before it took the connection. If not, it answers now.
        return ask(stand);
    }
    if asked.timed_out || asked.ending.code() != 0 {
        return Err(format!("no answer: {:?} {}", asked.ending, brief(&asked.errors)));
    }
    // Of one that has ended, the record is shown instead.
    Ok((!asked.errors.contains("is not running")).then(|| begun.elapsed()))
}
