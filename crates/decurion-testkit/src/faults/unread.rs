//! C5: a host that stops reading its pipe while a hundred agents work. Takes the same work with a host that reads and with
//! one that does not, gives whether the second missed anything once it read on, whether the agents waited for it, and how
//! much more memory it took.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use decurion_store::{Archive, Found, ReplayOptions, Scope, replay};
use serde_json::{Value, json};
use uuid::Uuid;

use super::agents::general_call;
use super::stand::{HANG, RUN, Stand, brief};
use super::{Options, Report, Row};
use crate::proc::{Running, peak_memory_kib};

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "C5", what: "a host that stops reading while a hundred agents work", run: row }]
}

const AGENTS: usize = 100;
/// How often each agent reads the file before it reports, each time from another line: the same again is a loop.
const READS: usize = 8;
/// How large the file is: what all have read is far more than may be held.
const FILE: usize = 20_000;
/// How much more memory it may take than with a host that reads.
const MORE_KIB: u64 = 32 << 10;

fn row(options: &Options) -> Report {
    let pause = Duration::from_secs(options.count(3, 30));
    let (read, unread) = match (hosted(options, None), hosted(options, Some(pause))) {
        (Ok(read), Ok(unread)) => (read, unread),
        (Err(problem), _) => return Report::broken(format!("a host that reads: {problem}")),
        (_, Err(problem)) => return Report::broken(format!("a host that does not read: {problem}")),
    };
    let mut report = Report::default();
    let same = if unread.kinds == read.kinds {
        Ok(())
    } else {
        Err(format!("told {:?}, not {:?}", unread.kinds, read.kinds))
    };
    report.add("nothing is lost", same);
    let bounded = if unread.peak_kib <= read.peak_kib + MORE_KIB {
        Ok(())
    } else {
        Err(format!("{} KiB instead of {}", unread.peak_kib, read.peak_kib))
    };
    report.add("memory is bounded", bounded);
    let figure = format!(
        "{AGENTS} agents, {} lines ({} kB): all work was done {:.1} s into {} s of silence (with a host that reads: {:.1} s); \
         peak {} KiB against {} KiB; lost: {}",
        unread.lines,
        unread.bytes / 1000,
        unread.worked.as_secs_f64(),
        pause.as_secs(),
        read.worked.as_secs_f64(),
        unread.peak_kib,
        read.peak_kib,
        if unread.kinds == read.kinds { "0" } else { "some" },
    );
    report.figure(figure)
}

/// What a host saw, and what that cost.
struct Seen {
    /// How many lines of each kind that must arrive.
    kinds: BTreeMap<String, usize>,
    lines: usize,
    bytes: usize,
    peak_kib: u64,
    /// When the agents were through.
    worked: Duration,
}

/// Leads one session; with a pause, reads nothing for so long and at least until all agents are through.
fn hosted(options: &Options, pause: Option<Duration>) -> Result<Seen, String> {
    let stand =
        Stand::new(options, |work| script(&work.to_string_lossy())).map_err(|error| error.to_string())?;
    std::fs::write(stand.home.work().join("file"), "x\n".repeat(FILE / 2))
        .map_err(|error| error.to_string())?;
    let session = Uuid::new_v4();
    let mut running = start(&stand, session, pause.is_none())?;
    let begun = Instant::now();
    say(&mut running, &json!({"type": "user", "message": {"role": "user", "content": "go"}}))?;
    let wanted = 1 + AGENTS * (READS + 1);
    let arrived = stand.model.wait_for_requests(wanted, HANG).len();
    let worked = begun.elapsed();
    if arrived < wanted {
        return Err(format!("only {arrived} of {wanted} requests came: somebody waits for the host"));
    }
    // What it says is heard while it does not read.
    let request = json!({"subtype": "set_permission_mode", "mode": "bypassPermissions"});
    say(&mut running, &json!({"type": "control_request", "request_id": "meanwhile", "request": request}))?;
    std::thread::sleep(pause.unwrap_or_default().saturating_sub(begun.elapsed()));
    std::fs::write(stand.home.work().join("go"), "").map_err(|error| error.to_string())?;
    let is =
        |line: &str, kind: &str| serde_json::from_str::<Value>(line).is_ok_and(|line| line["type"] == kind);
    // Which of the two comes first is not for the host to say.
    for _ in 0..2 {
        let found = running.wait_for_line(HANG, |line| is(line, "result") || is(line, "control_response"));
        found.ok_or("the result or the answer did not come")?;
    }
    let peak_kib = stand.processes().into_iter().filter_map(peak_memory_kib).max();
    let peak_kib = peak_kib.ok_or("its memory cannot be read")?;
    running.hang_up();
    let run = running.finish(HANG).map_err(|error| error.to_string())?;
    if run.timed_out || !run.ending.is_success() {
        return Err(format!("ended with {:?}: {}", run.ending, brief(&run.errors)));
    }
    stand.check_left()?;
    check_record(&stand, session)?;
    let kinds = kinds(&run.lines)?;
    let bytes = run.lines.iter().map(String::len).sum();
    Ok(Seen { kinds, lines: run.lines.len(), bytes, peak_kib, worked })
}

/// The program with a reader between it and us that begins when it may.
fn start(stand: &Stand, session: Uuid, reads: bool) -> Result<Running, String> {
    let wait = if reads { "" } else { "until [ -e go ]; do sleep 0.05; done; " };
    let pipeline = format!("\"$@\" | {{ {wait}exec cat; }}; exit ${{PIPESTATUS[0]}}");
    let limit = format!(r#"{{"agents":{{"maxRunning":{AGENTS}}}}}"#);
    let program = stand.program("bash").args(["-c", &pipeline, "bash"]).arg(stand.binary()).args(RUN);
    let program = program.args(["--input-format", "stream-json", "--settings", &limit]);
    program.args(["--session-id", &session.to_string()]).start_talking().map_err(|error| error.to_string())
}

fn say(running: &mut Running, line: &Value) -> Result<(), String> {
    running.say(&line.to_string()).map_err(|error| error.to_string())
}

fn script(work: &str) -> String {
    let calls: String = (1..=AGENTS).map(|number| general_call(&format!("part {number}"), false)).collect();
    let reads: String = (1..=READS)
        .map(|turn| {
            format!(
                "when turn={turn}\n  call Read {}\n",
                json!({"file_path": format!("{work}/file"), "offset": turn})
            )
        })
        .collect();
    format!(
        "when agent=main turn=1\n{calls}when agent=main\n  say \"all have reported\"\n{reads}when\n  say \"this is what I found\"\n"
    )
}

/// How many lines there are of each kind that nobody may miss; each must be whole.
fn kinds(lines: &[String]) -> Result<BTreeMap<String, usize>, String> {
    let mut kinds = BTreeMap::new();
    for line in lines {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("not a line: {error}: {}", brief(line)))?;
        let word = |member: &str| value[member].as_str().unwrap_or_default().to_owned();
        let kind = match (word("type"), word("subtype")) {
            (kind, _) if matches!(kind.as_str(), "assistant" | "user" | "result" | "control_response") => {
                kind
            }
            (_, kind)
                if matches!(
                    kind.as_str(),
                    "init" | "task_started" | "task_updated" | "task_notification"
                ) =>
            {
                kind
            }
            _ => continue,
        };
        *kinds.entry(kind).or_default() += 1;
    }
    Ok(kinds)
}

/// That the record is whole.
fn check_record(stand: &Stand, session: Uuid) -> Result<(), String> {
    let home = Utf8PathBuf::from_path_buf(stand.home.state()).map_err(|_| "a path is not text")?;
    let Some(Found::Ours(paths)) = Archive::new(home).find(decurion_protocol::SessionId(session), &[]) else {
        return Err("no record".into());
    };
    let options = ReplayOptions { scope: Scope::Everything, structured: false, after: 0 };
    let report = replay(&paths, &options, &mut drop).map_err(|error| error.to_string())?;
    report.problems().map_or(Ok(()), |problems| Err(format!("the record is not whole: {problems}")))
}
