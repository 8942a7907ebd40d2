//! B1, B2, B3: commands that do not end well. Takes shell commands that daemonise, flood or read what they
//! write, runs them through the real tool, gives what is left of them, in processes, memory and bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;

use super::stand::{HANG, Stand, brief, ended_well, kill};
use super::{Options, Report, Row, in_parallel};
use crate::proc::{Finished, peak_memory_kib};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row {
            id: "B1",
            what: "commands that daemonise, ignore signals, fork a thousand times",
            run: leftovers,
        },
        Row { id: "B2", what: "commands that print a gigabyte", run: floods },
        Row { id: "B3", what: "commands that read their own output", run: echoes },
    ]
}

/// The most that is kept of one command's output.
const FILE_LIMIT: u64 = 64 << 20;
/// The most that a flood may add to the program's memory.
const MEMORY_LIMIT_KIB: u64 = 4 << 10;
/// How long what a command left may last after the end; the figure says how long it did.
const LEFT_LIMIT: Duration = Duration::from_secs(20);

/// Commands, the time each may take in ms, and whether it can only end by being stopped. `SLEEP` sleeps for
/// a time by which its processes are known, whatever environment they have.
const COMMANDS: [(&str, &str, u64); 14] = [
    ("its own session", "setsid SLEEP & echo begun", 0),
    ("nohup", "nohup SLEEP >/dev/null 2>&1 & echo begun", 0),
    ("double fork", "( ( SLEEP & ) & ) ; echo begun", 0),
    ("ignores SIGTERM", "trap '' TERM INT HUP; SLEEP; SLEEP", 500),
    (
        "ignores SIGTERM in another session",
        "setsid bash -c \"trap '' TERM HUP INT; while :; do SLEEP; done\" & wait",
        500,
    ),
    ("a thousand children", "for i in $(seq 1000); do SLEEP & done; echo begun", 0),
    ("waits for input", "cat; read line; echo ended", 0),
    ("closes everything", "setsid bash -c 'exec 0<&- 1>&- 2>&-; SLEEP' & echo begun", 0),
    ("holds the output", "(setsid bash -c 'SLEEP; echo late' &) ; echo begun", 0),
    (
        "forks on and on",
        "f() { (sleep 0.02; f) & }; f; setsid bash -c \"f() { (SLEEP) & (sleep 0.02; f) & }; f\" & sleep 0.2",
        0,
    ),
    ("stopped", "SLEEP & kill -STOP $!; setsid bash -c 'kill -STOP $$; SLEEP' & echo begun", 0),
    ("an empty environment", "env -i setsid SLEEP & env -i SLEEP & echo begun", 0),
    ("a coprocess and pipes", "coproc SLEEP; SLEEP | SLEEP & echo begun", 0),
    ("changes its name", "(exec -a harmless SLEEP) & (exec -a '' SLEEP) & echo begun", 0),
];

fn leftovers(options: &Options) -> Report {
    let mut report = Report::default();
    let results =
        in_parallel(options.width, &COMMANDS, |(_, command, timeout)| leftover(options, command, *timeout));
    let mut slowest = Duration::ZERO;
    for ((name, ..), result) in COMMANDS.iter().zip(results) {
        report.add(name, result.map(|took| slowest = slowest.max(took)));
    }
    let clean = report.runs - report.failures.len() as u64;
    let figure = format!(
        "{clean} of {} commands left no process (all gone {} ms after the end at most)",
        report.runs,
        slowest.as_millis()
    );
    report.figure(figure)
}

fn leftover(options: &Options, command: &str, timeout: u64) -> Result<Duration, String> {
    // A number that no other process has among its arguments.
    let token = format!("86{}", Uuid::new_v4().as_u128() % 1_000_000_000_000);
    let command = command.replace("SLEEP", &format!("sleep {token}"));
    let mut input = json!({"command": command});
    if timeout > 0 {
        input["timeout"] = timeout.into();
    }
    let script = format!("when turn=1\n  call Bash {input}\nwhen\n  say \"Done.\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let left = loop {
        let left = with_argument(&token);
        if left.is_empty() && stand.processes().is_empty() {
            break None;
        }
        if begun.elapsed() > LEFT_LIMIT {
            break Some(left.len() + stand.processes().len());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    with_argument(&token).into_iter().for_each(kill);
    ended_well(&run)?;
    match left {
        None => Ok(begun.elapsed()),
        Some(count) => Err(format!("{count} processes left")),
    }
}

/// The processes with this text in one of their arguments.
fn with_argument(text: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let finder = memchr::memmem::Finder::new(text.as_bytes());
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| u32::try_from(*pid).is_ok_and(|pid| pid != std::process::id()))
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| finder.find(&line).is_some()))
        .collect()
}

fn floods(options: &Options) -> Report {
    let bytes = options.count(256 << 20, 1 << 30);
    let commands = [
        ("zeros in one line", format!("head -c {bytes} /dev/zero"), bytes, 0),
        ("dd", format!("dd if=/dev/zero bs=1M count={} 2>/dev/null", bytes >> 20), bytes, 0),
        ("lines", format!("yes 'the same line again and again' | head -c {bytes}"), bytes, 0),
        (
            "to both outputs",
            format!("head -c {} /dev/zero; head -c {} /dev/zero >&2", bytes / 2, bytes / 2),
            bytes,
            0,
        ),
        ("without end", "yes".to_owned(), 0, 1_000),
    ];
    let mut report = Report::default();
    let base = match flood(options, "echo one", 0, 0) {
        Ok(flood) => flood.rss_kib,
        Err(problem) => return Report::broken(format!("a small command: {problem}")),
    };
    let (mut most, mut slowest, mut largest) = (0, f64::INFINITY, 0);
    for (name, command, bytes, timeout) in commands {
        let result = flood(options, &command, bytes, timeout).and_then(|flood| {
            most = most.max(flood.rss_kib.saturating_sub(base));
            largest = largest.max(flood.file);
            if bytes > 0 {
                #[allow(clippy::cast_precision_loss)] // a figure for people
                let rate = bytes as f64 / 1e6 / flood.took.as_secs_f64();
                slowest = slowest.min(rate);
            }
            flood.judge(base)
        });
        report.add(name, result);
    }
    let figure = format!(
        "memory of the program at most {base} KiB + {most} KiB, file at most {:.1} MiB, {} MB consumed at {slowest:.0} \
         MB/s or more",
        mebibytes(largest),
        bytes >> 20
    );
    report.figure(figure)
}

#[allow(clippy::cast_precision_loss)] // a figure for people
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

struct Flood {
    rss_kib: u64,
    file: u64,
    took: Duration,
    request: usize,
}

impl Flood {
    fn judge(&self, base: u64) -> Result<(), String> {
        if self.file > FILE_LIMIT {
            return Err(format!("a file of {} bytes", self.file));
        }
        if self.rss_kib > base + MEMORY_LIMIT_KIB {
            return Err(format!("memory of {} KiB, {base} KiB without a flood", self.rss_kib));
        }
        if self.request > 400_000 {
            return Err(format!("a request of {} bytes", self.request));
        }
        Ok(())
    }
}

fn flood(options: &Options, command: &str, bytes: u64, timeout: u64) -> Result<Flood, String> {
    let limit = if timeout > 0 { timeout } else { 300_000 };
    let input = json!({"command": command, "timeout": limit});
    // The second call keeps the program alive while its memory is looked at.
    let script = format!(
        "when turn=1\n  call Bash {input}\nwhen turn=2\n  say \"second turn\"\n  \
         call Bash command=\"read -t 20 line < $EFFECTS; echo looked\"\nwhen\n  say \"Done.\"\n"
    );
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let pipe = stand.home.effects();
    fs::remove_file(&pipe).map_err(|error| error.to_string())?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .map_err(|error| error.to_string())?;
    let limit = Duration::from_secs(600);
    let mut running = stand.run("go").start().map_err(|error| error.to_string())?;
    let called = running.wait_for_line(HANG, |line| line.contains("tool_use"));
    let begun = Instant::now();
    let ended = running.wait_for_line(limit, |line| line.contains("tool_result"));
    let took = begun.elapsed();
    let second = running.wait_for_line(HANG, |line| line.contains("second turn"));
    let rss_kib = peak_memory_kib(running.pid).unwrap_or_default();
    if called.is_none() || ended.is_none() || second.is_none() {
        let run = running.finish(Duration::from_secs(1)).map_err(|error| error.to_string())?;
        return Err(format!("no end of {bytes} bytes: {} {}", brief(&run.output()), brief(&run.errors)));
    }
    // Opening waits for the reader; the call has begun or will.
    fs::write(&pipe, "\n").map_err(|error| error.to_string())?;
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    stand.check_left()?;
    let file = largest_file(&stand.home.state());
    let request = stand.model.requests().iter().map(|one| one.body.len()).max().unwrap_or_default();
    Ok(Flood { rss_kib, file, took, request })
}

fn largest_file(folder: &Path) -> u64 {
    files(folder)
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|status| status.len())
        .max()
        .unwrap_or(0)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn echoes(options: &Options) -> Report {
    let mut report = Report::default();
    let mut largest = 0;
    let cases = [
        ("the working directory, again and again", "while :; do cat *; done", false),
        ("everything below, hidden or not", "while :; do cat $(find . -type f); done", false),
        ("the state folder inside of the working directory", "while :; do cat $(find . -type f); done", true),
        (
            "its own file as it grows",
            "seq 1 20000; while :; do cat $(find . -path '*tool-results*' -type f); done",
            true,
        ),
    ];
    for (name, command, inside) in cases {
        report.add(name, echo(options, command, inside).map(|size| largest = largest.max(size)));
    }
    let figure = format!(
        "{} commands that read what they print: growth stops at {:.1} MiB (the bound is {} MiB), 0 files in the workspace",
        report.runs,
        mebibytes(largest),
        FILE_LIMIT >> 20
    );
    report.figure(figure)
}

fn echo(options: &Options, command: &str, inside: bool) -> Result<u64, String> {
    let input = json!({"command": command, "timeout": 2_000});
    let script = format!("when turn=1\n  call Bash {input}\nwhen\n  say \"Done.\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let work = stand.home.work();
    fs::write(work.join("seed.txt"), "a line of the seed\n".repeat(50_000))
        .map_err(|error| error.to_string())?;
    let state = if inside { work.join(".decurion") } else { stand.home.state() };
    if !inside {
        // It was not made by the program.
        fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
    }
    let program = stand.run("go").env("DECURION_HOME", &state);
    let run: Finished = program.run(HANG).map_err(|error| error.to_string())?;
    ended_well(&run)?;
    stand.check_left()?;
    let size = largest_file(&state);
    if size > FILE_LIMIT {
        return Err(format!("a file of {size} bytes"));
    }
    if !inside {
        let found: Vec<PathBuf> = files(&work);
        if found.len() != 1 {
            return Err(format!("files in the workspace: {found:?}"));
        }
    }
    private(&state)?;
    Ok(size)
}

/// Nobody else may look into anything below.
fn private(folder: &Path) -> Result<(), String> {
    let outputs: Vec<PathBuf> = files(folder);
    if !outputs.iter().any(|path| path.to_string_lossy().contains("tool-results")) {
        return Err("the output was not kept in a file".into());
    }
    for path in &outputs {
        let mode = |path: &Path| fs::metadata(path).map(|status| status.permissions().mode() & 0o777);
        let parent = path.parent().unwrap_or(folder);
        if mode(path).ok() != Some(0o600) || mode(parent).ok() != Some(0o700) {
            return Err(format!("others may read {}", path.display()));
        }
    }
    Ok(())
}
