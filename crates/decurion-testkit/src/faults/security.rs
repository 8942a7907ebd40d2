//! Hostile names, folders and secrets. Takes options, gives one report per row: names that want to leave the
//! state folder, links laid where we are about to write, repositories that want to be obeyed, keys that must
//! not be found anywhere.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{AgentId, CallId, Envelope, Event, RunId, SessionId, TaskId};
use decurion_store::{Journal as _, Layout, ReplayOptions, SessionFiles, SessionPaths, SessionWriter};
use jiff::Timestamp;
use uuid::Uuid;

use super::stand::{HANG, Stand, brief};
use super::{Dice, Options, Report, Row, has_program, in_parallel};

mod hostile;
mod secrets;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![
        Row { id: "S2", what: "names and ids that are paths", run: names },
        Row { id: "S3", what: "links and files laid where we write", run: races },
        Row { id: "S4", what: "hostile repositories", run: hostile::row },
        Row { id: "S6", what: "secrets in files, outputs and the environment", run: secrets::row },
    ]
}

/// Every path below a folder, links not followed.
fn tree(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

// ---- S2 ----

/// Names that want out.
const BAD_NAMES: &[&str] = &[
    "../../../escaped",
    "..",
    ".",
    "/tmp/escaped",
    "../escaped\0",
    "a/../../../../escaped",
    "..\\..\\escaped",
    "%2e%2e%2fescaped",
    "..%00/escaped",
    "~/escaped",
    "$HOME/escaped",
    "$(touch escaped)",
    "`touch escaped`",
    "; touch escaped",
    "escaped\n../escaped",
    "\u{ff0e}\u{ff0e}\u{2215}escaped",
    "\u{202e}depacse",
    "-rf",
    "--help",
    "CON",
    "a\tb",
    "'\"",
    "{}",
    "*",
    "|escaped",
    "11111111-2222-4333-8444-55555555555/",
    "11111111-2222-4333-8444-5555555555..",
    "{11111111-2222-4333-8444-555555555555}",
    "11111111222243338444555555555555",
    "urn:uuid:11111111-2222-4333-8444-555555555555",
];

fn names(options: &Options) -> Report {
    let mut report = Report::default();
    let fuzzed = options.count(2_000, 100_000);
    report.add("the store", fuzz_store(options.seed, fuzzed));
    let names: Vec<&str> = BAD_NAMES.to_vec();
    for (name, result) in
        names.iter().zip(in_parallel(options.width, &names, |name| as_session(options, name)))
    {
        report.add(format!("session id {name:?}"), result);
    }
    for (name, result) in names.iter().zip(in_parallel(options.width, &names, |name| as_call(options, name)))
    {
        report.add(format!("call id {name:?}"), result);
    }
    let opens = traced_opens(options);
    let seen = opens.as_ref().copied().unwrap_or_default();
    report.add("opens for writing", opens.map(drop));
    let (hostile, escaped) = (names.len() * 2, report.failures.len());
    report.figure(format!(
        "{fuzzed} fuzzed names at the store, {hostile} hostile ids through the binary: {escaped} got out of the \
         state folder; {seen} opens for writing traced inside it"
    ))
}

/// Random names of every kind through every way in which a name becomes a file.
fn fuzz_store(seed: u64, count: u64) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let root = Utf8Path::from_path(folder.path()).ok_or("not UTF-8")?;
    let paths = Layout::new(root.join("outer/state")).session(Utf8Path::new("/a/b"), session(1));
    let files = SessionFiles::open(&paths).map_err(|error| error.to_string())?;
    let mut dice = Dice::new(seed, 5);
    for _ in 0..count {
        let name = fuzzed_name(&mut dice);
        if let Ok(id) = name.parse::<SessionId>() {
            let spelled = id.to_string();
            if spelled.len() != 36 || spelled.contains(['/', '.']) {
                return Err(format!("a session id {name:?}"));
            }
        }
        if let Ok(id) = name.parse::<TaskId>() {
            drop(files.task_output(&id, 10));
        }
        if let Ok(id) = name.parse::<AgentId>() {
            drop(files.put_agent_meta(&id, b"{}"));
        }
        drop(files.put_head(&name, b"{}"));
        drop(files.get_head(&name));
        let spilled =
            files.tool_result(&CallId(name.clone()), 10).map_err(|error| format!("{name:?}: {error}"))?;
        if !spilled.path().is_file() || spilled.path().parent() != Some(&paths.folder().join("tool-results"))
        {
            return Err(format!("{name:?} became {}", spilled.path()));
        }
    }
    let (outer, state) = (root.join("outer"), root.join("outer/state"));
    let is_outside = |path: &PathBuf| !path.starts_with(&state) && *path != outer;
    let outside: Vec<PathBuf> = tree(folder.path()).into_iter().filter(is_outside).collect();
    if outside.is_empty() { Ok(()) } else { Err(format!("outside: {outside:?}")) }
}

/// Pieces that are dangerous together, put together by chance.
fn fuzzed_name(dice: &mut Dice) -> String {
    let pieces = [
        "..", "/", "\\", "\0", "a", "escaped", ".", "~", "%2e", "\u{2215}", "\u{ff0e}", "\n", "-", "_", "9",
        "é", " ",
    ];
    let count = dice.below(9);
    (0..count).map(|_| pieces[usize::try_from(dice.below(pieces.len() as u64)).unwrap_or_default()]).collect()
}

/// A hostile text wherever the binary takes a session's id.
fn as_session(options: &Options, name: &str) -> Result<(), String> {
    if name.contains('\0') {
        // Cannot be an argument at all.
        return Ok(());
    }
    let stand = Stand::new(options, |_| "when\n say \"x\"".into()).map_err(|error| error.to_string())?;
    let before = tree(stand.home.path());
    let ways: [Vec<String>; 4] = [
        vec!["-p".into(), "x".into(), format!("--session-id={name}")],
        vec!["-p".into(), "x".into(), format!("--resume={name}")],
        vec!["sessions".into(), "show".into(), "--".into(), name.into()],
        vec!["sessions".into(), "export".into(), "--".into(), name.into()],
    ];
    for arguments in ways {
        let run =
            stand.program(stand.binary()).args(&arguments).run(HANG).map_err(|error| error.to_string())?;
        if run.ending.code() != 2 {
            return Err(format!("{arguments:?}: {:?} {}", run.ending, brief(&run.errors)));
        }
    }
    same_tree(&stand, &before)
}

fn same_tree(stand: &Stand, before: &BTreeSet<PathBuf>) -> Result<(), String> {
    let after = tree(stand.home.path());
    let new: Vec<&PathBuf> = after.difference(before).collect();
    if new.is_empty() { Ok(()) } else { Err(format!("new files: {new:?}")) }
}

/// A hostile text as the id of a call whose output spills into a file.
fn as_call(options: &Options, name: &str) -> Result<(), String> {
    let id = serde_json::Value::from(name);
    let script =
        format!("when turn=1\n  call Bash as {id} {{\"command\": \"seq 1 9000\"}}\nwhen\n  say \"done\"\n");
    let stand = Stand::new(options, |_| script).map_err(|error| error.to_string())?;
    let before = tree(stand.home.path());
    let run = stand.run("go").run(HANG).map_err(|error| error.to_string())?;
    if run.ending.code() != 0 {
        return Err(format!("{:?} {} {:?}", run.ending, brief(&run.errors), stand.model.problems()));
    }
    let after = tree(stand.home.path());
    let outside: Vec<&PathBuf> =
        after.difference(&before).filter(|path| !path.starts_with(stand.home.state())).collect();
    if outside.is_empty() { Ok(()) } else { Err(format!("outside: {outside:?}")) }
}

/// A whole run with a hostile call under `strace`: everything opened for writing lies in the state folder.
fn traced_opens(options: &Options) -> Result<usize, String> {
    if !has_program("strace") {
        return Err("strace is not installed".into());
    }
    let script = "when turn=1\n  call Bash as \"../../../escaped\" {\"command\": \"seq 1 9000\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(options, |_| script.into()).map_err(|error| error.to_string())?;
    // A sandbox makes folders in a mount namespace, which the trace cannot tell apart.
    stand.home.switch_sandbox_off().map_err(|error| error.to_string())?;
    let trace: Vec<String> = [
        "-y",
        "-s",
        "4096",
        "-e",
        "trace=openat,openat2,open,creat,mkdirat,mkdir,renameat,renameat2,linkat,symlinkat",
    ]
    .map(str::to_owned)
    .into();
    let run = stand
        .traced(&trace, "11111111-2222-4333-8444-555555555555", "go")
        .run(HANG)
        .map_err(|error| error.to_string())?;
    if run.ending.code() != 0 {
        return Err(format!("{:?} {}", run.ending, brief(&run.errors)));
    }
    let state = stand.home.state();
    let state = state.to_string_lossy();
    let lines = stand.trace();
    let writes = |line: &&String| {
        ["O_WRONLY", "O_RDWR", "O_CREAT", "mkdir", "rename", "linkat", "symlinkat"]
            .iter()
            .any(|word| line.contains(word))
    };
    // The path of a call that was interrupted by another thread's is in the line that began it.
    let begins = |line: &&String| !line.contains("= -1 ") && !line.contains(" resumed>");
    let opened: Vec<&String> = lines.iter().filter(writes).filter(begins).collect();
    // The shell's own redirections, devices and the control groups of commands are not files of ours.
    let others = ["/dev/", "<pipe:", "\"/sys/fs/cgroup/", "</sys/fs/cgroup/"];
    let strange =
        |line: &&&String| !line.contains(&*state) && !others.iter().any(|other| line.contains(other));
    match opened.iter().find(strange) {
        Some(line) => Err(format!("outside: {line}")),
        None if opened.is_empty() => Err(format!("nothing was traced: {} lines", lines.len())),
        None => Ok(opened.len()),
    }
}

// ---- S3 ----

fn session(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(0x5e55_0000_0000_4000_8000_0000_0000_0000 + number))
}

fn info(session: SessionId) -> SessionInfo {
    SessionInfo {
        session,
        cwd: "/home/someone/a-project".into(),
        version: "0".into(),
        git_branch: None,
        entrypoint: "cli".into(),
        imported_from: None,
        forked_from: None,
    }
}

fn races(options: &Options) -> Report {
    let mut report = Report::default();
    let rounds: Vec<u64> = (0..options.count(100, 1_000)).collect();
    let results = in_parallel(options.width, &rounds, |number| race(*number));
    let mut written = 0;
    for (number, result) in rounds.iter().zip(results) {
        written += u64::from(result == Ok(true));
        report.add(format!("race {number}"), result.map(drop));
    }
    let won = report.failures.len();
    let laid: Vec<usize> = (0..LAID.len()).collect();
    for (at, result) in laid.iter().zip(in_parallel(options.width, &laid, |at| laid_before(options, *at))) {
        report.add(format!("the binary, {}", LAID[*at]), result);
    }
    let sprung = report.failures.len() - won;
    report.figure(format!(
        "{won} of {} races won by the attacker ({written} sessions written all the same), {sprung} of {} traps laid \
         before the binary started sprung",
        rounds.len(),
        LAID.len()
    ))
}

/// What an attacker would like to have changed.
struct Victim {
    folder: tempfile::TempDir,
}

impl Victim {
    fn new() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        fs::create_dir(folder.path().join("folder")).map_err(|error| error.to_string())?;
        fs::write(folder.path().join("file"), CONTENT).map_err(|error| error.to_string())?;
        Ok(Self { folder })
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("folder")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("file")
    }

    fn new_file(&self) -> PathBuf {
        self.folder.path().join("new")
    }

    /// That nothing was done to it.
    fn check(&self) -> Result<(), String> {
        let content = fs::read_to_string(self.file()).unwrap_or_default();
        // Links are the attacker's own, laid through links of his; we never make any.
        let made = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|status| !status.is_symlink());
        let found: BTreeSet<PathBuf> = tree(self.folder.path()).into_iter().filter(made).collect();
        let wanted = BTreeSet::from([self.folder(), self.file()]);
        if content == CONTENT && found == wanted {
            Ok(())
        } else {
            Err(format!("{found:?} with {content:?}"))
        }
    }
}

const CONTENT: &str = "the victim's own words";

/// A session is written while a thread lays links at every name it could use. Says whether it could be.
fn race(number: u64) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let home = Utf8PathBuf::from_path_buf(folder.path().join("state")).map_err(|_| "not UTF-8")?;
    let victim = Victim::new()?;
    let paths = Layout::new(home).session(Utf8Path::new("/home/someone/a-project"), session(number.into()));
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        scope.spawn(|| attack(&paths, &victim, &stop));
        let mut written = 0;
        for again in 0..8 {
            // A record so large that part of it goes into a file of its own, now and then.
            let large = again == 0 && number.is_multiple_of(10);
            written += usize::from(write_session(&paths, number, large).is_ok());
        }
        stop.store(true, Ordering::Relaxed);
        written
    });
    victim.check()?;
    Ok(written > 0)
}

/// Lays and takes away links until told to stop.
fn attack(paths: &SessionPaths, victim: &Victim, stop: &AtomicBool) {
    let folder = paths.folder();
    let transcript = paths.transcript();
    let task: Option<TaskId> = "b12345678".parse().ok();
    let mut traps: Vec<(PathBuf, PathBuf)> = vec![
        (transcript.clone().into(), victim.new_file()),
        (transcript.with_extension("torn").into(), victim.file()),
        (folder.clone().into(), victim.folder()),
        (paths.lock().into(), victim.file()),
        (folder.join("heads").into(), victim.folder()),
        (folder.join("tool-results").into(), victim.folder()),
        (folder.join("tasks").into(), victim.folder()),
        (folder.join("blobs").into(), victim.folder()),
        (folder.join("subagents").into(), victim.folder()),
    ];
    traps.extend(task.map(|task| (paths.task_output(&task).into(), victim.new_file())));
    // The one folder he makes himself, before there is any link it could lead through.
    if let Some(project) = transcript.parent() {
        let _ = fs::create_dir_all(project);
    }
    while !stop.load(Ordering::Relaxed) {
        for (path, target) in &traps {
            let _ = symlink(target, path);
        }
        for (path, _) in &traps {
            // Only the link itself; what we made meanwhile stays.
            if fs::symlink_metadata(path).is_ok_and(|status| status.file_type().is_symlink()) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Everything that is ever written for a session.
fn write_session(paths: &SessionPaths, number: u64, large: bool) -> Result<(), String> {
    let info = info(session(number.into()));
    let now = Timestamp::UNIX_EPOCH;
    let run = RunId(Uuid::from_u128(7));
    let mut writer = if let Ok(writer) = SessionWriter::create(paths, &info, now) {
        writer
    } else {
        let options = ReplayOptions::default();
        SessionWriter::resume(paths, &info, now, &options, &mut drop).map_err(|error| error.to_string())?.0
    };
    let seq = writer.last_seq() + 1;
    let text = "x".repeat(if large { 2 << 20 } else { 100 });
    let event = Event::Notice { level: "info".into(), text };
    writer
        .append(&[Envelope { seq, at: now, agent: None, run, event }])
        .map_err(|error| error.to_string())?;
    let files = SessionFiles::open(paths).map_err(|error| error.to_string())?;
    files.put_head("abc", b"{}").map_err(|error| error.to_string())?;
    let mut spilled =
        files.tool_result(&CallId("toolu_1".into()), 1_000).map_err(|error| error.to_string())?;
    spilled.append(b"result").map_err(|error| error.to_string())?;
    let task: TaskId =
        "b12345678".parse().map_err(|error: decurion_protocol::id::InvalidId| error.to_string())?;
    let mut output = files.task_output(&task, 1_000).map_err(|error| error.to_string())?;
    output.append(b"output").map_err(|error| error.to_string())
}

/// Traps that are there before the binary starts, by the name below the state folder they are laid at.
const LAID: &[&str] = &[
    "projects",
    "the project's folder",
    "the transcript",
    "the session's folder",
    "the lock",
    "the heads",
    "the results",
];

fn laid_before(options: &Options, at: usize) -> Result<(), String> {
    let id = "11111111-2222-4333-8444-555555555555";
    let script = "when turn=1\n  call Bash {\"command\": \"seq 1 9000\"}\nwhen\n  say \"done\"\n";
    let stand = Stand::new(options, |_| script.into()).map_err(|error| error.to_string())?;
    let victim = Victim::new()?;
    let transcript = stand.transcript(id);
    let project = transcript.parent().map(Path::to_owned).unwrap_or_default();
    let folder = project.join(id);
    let state = stand.home.state();
    let (path, target) = match at {
        0 => (state.join("projects"), victim.folder()),
        1 => (project, victim.folder()),
        2 => (transcript, victim.new_file()),
        3 => (folder, victim.folder()),
        4 => (folder.join("lock"), victim.file()),
        5 => (folder.join("heads"), victim.folder()),
        _ => (folder.join("tool-results"), victim.folder()),
    };
    let parent = path.parent().map(Path::to_owned).unwrap_or_default();
    fs::create_dir_all(parent).map_err(|error| error.to_string())?;
    symlink(target, &path).map_err(|error| error.to_string())?;
    let run = stand.run_as(id, "go").run(HANG).map_err(|error| error.to_string())?;
    if run.timed_out || run.errors.contains("panicked") {
        return Err(format!("{:?} {}", run.ending, brief(&run.errors)));
    }
    victim.check()
}
