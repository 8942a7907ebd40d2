//! Bash: one command line in the run's working directory. Takes the text, gives its output as the model
//! reads it, bounded, and the directory the shell ended in as an effect.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::{
    Aftermath, Capture, CaptureBounds, Captured, Exit, Guard, Launch, LaunchError, Process, Rendered,
    Sandbox, shell,
};
use decurion_protocol::intent::ShellIntent;
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Intent, ToolEffect, ToolOutput};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::{
    InputError, Printed, Surroundings, Tool, ToolContext, ToolLimits, ToolSpec, bash, cargo_home, paths,
    typed,
};

const NAME: &str = "Bash";
/// How long a command that must end may take to do so by itself.
const GRACE: Duration = Duration::from_secs(2);
/// After the grace, how long until a command is given up that nothing ends.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// The least time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
const PROGRESS_CHARS: usize = 200;
/// How long a person's own command may take: he ends it himself.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// What the description says about the background.
const IN_BACKGROUND: &str = ": with `run_in_background` the command goes on while you work, its output goes to a \
    file, and you are told when it ends.";
/// What a model reads first of a command that was stopped with its turn.
const STOPPED: &str =
    "Interrupted: the command was stopped before it ended and may have done part of its work. ";
/// What a model reads of a command that succeeds and prints nothing.
pub const NO_OUTPUT: &str = "(no output)";

#[derive(Debug)]
pub struct Bash {
    spec: ToolSpec,
}

impl Default for Bash {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Bash {
    /// The tool; where nothing may run in the background, that is not offered.
    pub fn new(background: bool) -> Self {
        let mut input_schema = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1},
                "timeout": {"type": "number", "exclusiveMinimum": 0},
                "description": {"type": "string"},
                "run_in_background": {"type": "boolean"},
                "dangerouslyDisableSandbox": {"type": "boolean"}
            },
            "required": ["command"],
            "additionalProperties": false
        });
        let mut description = include_str!("shell.md").to_owned();
        if !background {
            let properties = input_schema["properties"].as_object_mut();
            properties.map(|properties| properties.shift_remove("run_in_background"));
            description = description.replace(IN_BACKGROUND, ".");
        }
        Self { spec: ToolSpec::new(NAME, &description, input_schema) }
    }
}

#[derive(Deserialize)]
struct Input {
    command: String,
    timeout: Option<f64>,
}

impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError> {
        let input = self.parse(input)?;
        let analysis = bash::analyse(&input.command, around);
        let mut intent = Intent::titled(paths::title("$", &input.command));
        if may_overlap(&analysis) {
            intent = intent.together();
        }
        let mut known = HashSet::new();
        let touches = analysis.commands.iter().flat_map(|command| &command.touches);
        intent.touches = touches.filter(|touch| known.insert(*touch)).cloned().collect();
        intent.shell = Some(analysis);
        Ok(intent)
    }

    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            match self.parse(&input) {
                Ok(input) => run(cx, &input).await,
                Err(error) => error.into(),
            }
        })
    }
}

impl Bash {
    fn parse(&self, input: &Value) -> Result<Input, InputError> {
        let parsed: Input = typed::parse(&self.spec, input)?;
        if parsed.command.contains('\0') {
            return Err(InputError::new(NAME, "`command` has a NUL character, which no command line has"));
        }
        Ok(parsed)
    }
}

/// Commands that change nothing may run beside others.
fn may_overlap(analysis: &ShellIntent) -> bool {
    let harmless = analysis.commands.iter().all(|command| command.read_only && command.doubt.is_none());
    harmless && analysis.doubt.is_none() && analysis.not_literal.is_none() && !analysis.moves
}

/// Whether the shell may end elsewhere than it began. To ask it costs a process, so it is not asked
/// where the text shows that it stays.
fn may_move(analysis: &ShellIntent) -> bool {
    const RUNNERS: [&str; 5] = [".", "source", "eval", "builtin", "command"];
    let runs_text = |word: &String| RUNNERS.contains(&word.as_str());
    analysis.moves
        || analysis.doubt.is_some()
        || analysis
            .commands
            .iter()
            .any(|command| command.doubt.is_some() || command.words.iter().any(runs_text))
}

async fn run(cx: &ToolContext, input: &Input) -> ToolOutput {
    let Some(guard) = &cx.processes else {
        return ToolOutput::error("commands cannot be started in this run");
    };
    let limit = time_limit(&cx.limits, input.timeout);
    let report_cwd = may_move(&bash::analyse(&input.command, &cx.around));
    let (variables, sandbox) = (cx.environment.to_vec(), cx.sandbox.clone());
    let env = if sandbox.as_deref().is_some_and(cargo_home::is_to_be_made) {
        let made = tokio::task::spawn_blocking(move || environment(variables, sandbox.as_deref())).await;
        let Ok(env) = made else {
            return ToolOutput::error("the environment of the command cannot be made");
        };
        env
    } else {
        environment(variables, sandbox.as_deref())
    };
    let launch = Launch {
        env,
        sandbox: cx.sandbox.clone(),
        ..shell::bash(&input.command, cx.around.cwd.as_std_path(), report_cwd)
    };
    let mut process = match start(cx, guard, launch).await {
        Ok(process) => process,
        // Stopped before it began is stopped too.
        Err(mut output) => {
            if *cx.detached.borrow() && cx.cancel.is_cancelled() {
                output.structured = Some(json!({"exitCode": null, "interrupted": true}));
            }
            return output;
        }
    };
    let path = Arc::new(OnceLock::new());
    let mut capture = capture(cx, &path);
    let ending = see_through(cx, &mut process, &mut capture, limit).await;
    let place = if report_cwd { place_after(cx, &mut process).await } else { Place::Same };
    drop(process);
    let output = Shown::new(cx, capture.finish(), path).await;
    let mut answer = answer(&ending, limit, &output, place);
    if *cx.detached.borrow() {
        // Nobody reads the text any more; whoever tells of the end needs how it came.
        let interrupted = ending.stopped == Some(Stopped::Cancelled);
        answer.structured = Some(json!({"exitCode": ending.exit.shell_code(), "interrupted": interrupted}));
    }
    answer
}

/// The variables by which programs are told where to cache, and the place of each in a folder of caches.
pub const CACHES: [(&str, &str); 3] = [("XDG_CACHE_HOME", "cache"), ("npm_config_cache", "npm"), GO_PACKAGES];
const GO_PACKAGES: (&str, &str) = ("GOMODCACHE", "go");

/// The environment of a command in this sandbox. Temporary files and caches go to the private folder: the user's own caches
/// are read-only for it, since programs outside of the sandbox run what is in them. Makes the cargo home that it names, so it
/// may take a while.
pub fn environment(
    mut variables: Vec<(OsString, OsString)>,
    sandbox: Option<&Sandbox>,
) -> Vec<(OsString, OsString)> {
    if let Some(home) = sandbox.and_then(|sandbox| cargo_home::prepare(&variables, sandbox)) {
        variables.retain(|(name, _)| name != "CARGO_HOME");
        variables.push(("CARGO_HOME".into(), home.into()));
    }
    let Some(folder) = sandbox.and_then(|sandbox| sandbox.tmp.as_ref()) else { return variables };
    // A command that only reads finds the packages that others have downloaded.
    let shown = sandbox.and_then(|sandbox| sandbox.shown_tmp.as_ref());
    if let Some(shown) = shown.filter(|_| !variables.iter().any(|(name, _)| name == GO_PACKAGES.0)) {
        variables.push((GO_PACKAGES.0.into(), shown.join(GO_PACKAGES.1).into()));
    }
    environment_in(variables, folder, folder)
}

/// The same with folders for temporary files and for caches.
pub fn environment_in(
    mut variables: Vec<(OsString, OsString)>,
    temporary: &Path,
    caches: &Path,
) -> Vec<(OsString, OsString)> {
    variables.retain(|(name, _)| !["TMPDIR", "TMP", "TEMP"].iter().any(|known| name == known));
    variables.push(("TMPDIR".into(), temporary.into()));
    let caches = CACHES.map(|(name, place)| (name, caches.join(place).into_os_string()));
    // What go puts there could not be removed otherwise.
    for (name, value) in caches.into_iter().chain([("GOFLAGS", "-modcacherw".into())]) {
        if !variables.iter().any(|(known, _)| known == name) {
            variables.push((name.into(), value));
        }
    }
    variables
}

/// What came of a command that a person ran himself.
#[derive(Debug, Default)]
pub struct Typed {
    /// What it printed, cut in the middle where it is long.
    pub output: String,
    /// Its exit code, if it has one of its own.
    pub exit_code: Option<i32>,
    /// What else there is to say of its end.
    pub remark: Option<String>,
    /// Where all of a long output is.
    pub file: Option<Utf8PathBuf>,
}

/// Runs a command for a person: as a call would, but for as long as it takes and by no rules. It moves nobody.
pub async fn typed(cx: &ToolContext, command: &str) -> Typed {
    let said = |remark: String| Typed { remark: Some(remark), ..Typed::default() };
    let Some(guard) = &cx.processes else { return said("commands cannot be started in this session".into()) };
    let launch =
        Launch { env: cx.environment.to_vec(), ..shell::bash(command, cx.around.cwd.as_std_path(), false) };
    let mut process = match start(cx, guard, launch).await {
        Ok(process) => process,
        Err(output) => return said(output.content.text()),
    };
    let path = Arc::new(OnceLock::new());
    let mut capture = capture(cx, &path);
    let ending = see_through(cx, &mut process, &mut capture, NO_LIMIT).await;
    drop(process);
    let shown = Shown::new(cx, capture.finish(), path).await;
    let stopped = ending.stopped.map(|_| "interrupted".to_owned());
    let is_remarkable = matches!(ending.exit, Exit::Unknown | Exit::OverLimit(_));
    let unknown = || failure(&ending, NO_LIMIT).filter(|_| is_remarkable);
    Typed {
        output: shown.text,
        exit_code: ending.exit.shell_code(),
        remark: stopped.or_else(unknown),
        file: shown.file.map(|(path, _)| path),
    }
}

/// Starts a command; the error is what is said of one that was not.
async fn start(cx: &ToolContext, guard: &Guard, launch: Launch) -> Result<Process, ToolOutput> {
    if cx.cancel.is_cancelled() {
        return Err(ToolOutput::error("interrupted before the command was started"));
    }
    // A command may be at work before its start is told. Whoever cancels just then is told what it did, if
    // that can be learnt, and never that it did not begin.
    let mut starting = std::pin::pin!(guard.start(launch));
    let started = tokio::select! {
        biased;
        started = &mut starting => started,
        () = cx.cancel.cancelled() => {
            let late = tokio::time::timeout(GRACE, starting).await;
            let text = "interrupted while the command was being started; it may have begun";
            late.map_err(|_| ToolOutput::error(text))?
        }
    };
    match started {
        Ok(process) => Ok(process),
        Err(error) => Err(not_started(cx, error).await),
    }
}

fn time_limit(limits: &ToolLimits, asked: Option<f64>) -> Duration {
    let most = limits.bash_max_timeout;
    let asked = asked.map(|asked| Duration::try_from_secs_f64(asked / 1000.0).unwrap_or(most));
    asked.unwrap_or(limits.bash_default_timeout).min(most)
}

/// The answer of a command that was stopped with its turn, as far as its output came.
pub fn stopped(output: &str) -> ToolOutput {
    let text = if output.is_empty() {
        format!("{STOPPED}It had printed nothing.")
    } else {
        format!("{STOPPED}Its output so far:\n{output}")
    };
    let shown = Shown { text: output.to_owned(), file: None };
    ToolOutput::error(text).with_structured(structured(&shown, true))
}

/// How a command ended, and whether we made it.
struct Ending {
    exit: Exit,
    stopped: Option<Stopped>,
    /// What became of what it started, where its end was not seen.
    aftermath: Aftermath,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    Cancelled,
    TimedOut,
}

/// Reads the output until the command ends, by itself or because its time is up or it is not wanted.
async fn see_through(
    cx: &ToolContext,
    process: &mut Process,
    capture: &mut Capture,
    limit: Duration,
) -> Ending {
    let (exit, stopped) = exit_of(cx, process, capture, limit).await;
    Ending { exit, stopped, aftermath: process.aftermath().clone() }
}

async fn exit_of(
    cx: &ToolContext,
    process: &mut Process,
    capture: &mut Capture,
    limit: Duration,
) -> (Exit, Option<Stopped>) {
    let stopper = process.stopper();
    let mut progress = Progress { lines: &cx.progress, printed: &cx.printed, last: Instant::now() };
    let mut collecting = pin!(process.collect(capture, None, |piece| progress.see(piece)));
    let stopped = tokio::select! {
        biased;
        exit = &mut collecting => return (exit, None),
        () = cx.cancel.cancelled() => Stopped::Cancelled,
        () = time_is_up(cx.detached.clone(), limit) => Stopped::TimedOut,
    };
    stopper.stop(GRACE);
    let exit = tokio::time::timeout(GRACE + GIVEN_UP, collecting).await.unwrap_or(Exit::Unknown);
    (exit, Some(stopped))
}

/// Waits for the end of the time; for ever once nobody waits for the command.
async fn time_is_up(mut detached: watch::Receiver<bool>, limit: Duration) {
    let alone = async { detached.wait_for(|detached| *detached).await.map(drop) };
    tokio::select! {
        biased;
        Ok(()) = alone => std::future::pending().await,
        () = tokio::time::sleep(limit) => {}
    }
}

/// Shows the last line of the output now and then, when something comes.
struct Progress<'a> {
    lines: &'a mpsc::Sender<String>,
    printed: &'a Printed,
    /// When the command began, then when a line was shown last.
    last: Instant,
}

impl Progress<'_> {
    fn see(&mut self, piece: &[u8]) {
        self.printed.add(piece);
        if self.last.elapsed() < PROGRESS_EVERY {
            return;
        }
        let end = &piece[piece.len().saturating_sub(4 * PROGRESS_CHARS)..];
        let line =
            end.rsplit(|byte| matches!(byte, b'\n' | b'\r')).find(|line| !line.trim_ascii().is_empty());
        if let Some(line) = line {
            let text = String::from_utf8_lossy(line);
            let shown =
                text.chars().filter(|character| !character.is_control()).take(PROGRESS_CHARS).collect();
            if self.lines.try_send(shown).is_ok() {
                self.last = Instant::now();
            }
        }
    }
}

fn capture(cx: &ToolContext, path: &Arc<OnceLock<Utf8PathBuf>>) -> Capture {
    let limits = &cx.limits;
    // What is shown whole must be held whole, whatever the width of its characters.
    let tail = limits.tail_chars.max(limits.inline_chars.saturating_sub(limits.head_chars));
    let bounds =
        CaptureBounds { file: limits.spill_bytes, ..CaptureBounds::for_chars(limits.head_chars, tail) };
    let (spill, call, path) = (cx.spill.clone(), cx.call.clone(), path.clone());
    Capture::with_spill(
        bounds,
        Box::new(move || {
            let made = spill.create(&call, "txt")?;
            let _ = path.set(made.path);
            Ok(made.file)
        }),
    )
    .diverted_by(cx.detached.clone())
}

/// The output as the model reads it.
struct Shown {
    text: String,
    /// Where all of it is, if it was cut, and how much of it is there.
    file: Option<(Utf8PathBuf, u64)>,
}

impl Shown {
    async fn new(cx: &ToolContext, captured: Captured, path: Arc<OnceLock<Utf8PathBuf>>) -> Self {
        let limits = &cx.limits;
        let Rendered { mut head, tail, cut } =
            captured.render(limits.inline_chars, limits.head_chars, limits.tail_chars);
        if cut == 0 {
            head.truncate(head.trim_end_matches(['\n', '\r']).len());
            return Self { text: head, file: None };
        }
        let total = captured.total;
        let kept = match captured.file_bytes {
            Some(bytes) => Ok(path.get().cloned().map(|path| (path, bytes))),
            None => match captured.whole() {
                Some(whole) => keep(cx, whole).await.map(Some),
                None => Err(captured.file_error.unwrap_or_else(|| io::ErrorKind::Other.into())),
            },
        };
        let place = match &kept {
            Ok(Some((path, bytes))) if *bytes == total => format!("; all of it ({total} bytes) is in {path}"),
            Ok(Some((path, bytes))) => format!("; the first {bytes} of {total} bytes are in {path}"),
            Ok(None) => String::new(),
            Err(error) => format!("; it could not be kept in a file: {error}"),
        };
        let text =
            format!("{head}\n\n[{cut} bytes cut here{place}]\n\n{}", tail.trim_end_matches(['\n', '\r']));
        Self { text, file: kept.ok().flatten() }
    }
}

/// Writes an output to a file that was short enough to be held, but is too long to be shown.
async fn keep(cx: &ToolContext, whole: Vec<u8>) -> io::Result<(Utf8PathBuf, u64)> {
    let (spill, call) = (cx.spill.clone(), cx.call.clone());
    let writing = tokio::task::spawn_blocking(move || {
        let mut made = spill.create(&call, "txt")?;
        made.file.write_all(&whole)?;
        made.file.flush()?;
        Ok((made.path, whole.len() as u64))
    });
    writing.await.map_err(io::Error::other)?
}

/// Where the shell ended.
enum Place {
    Same,
    Moved(Utf8PathBuf),
    /// Outside the directories of the run; it goes back.
    Outside(Utf8PathBuf, Utf8PathBuf),
}

/// Where the shell says that it ended. A command can forge that, so only a directory without links or `..` in its path
/// that is in a directory of the run counts.
async fn place_after(cx: &ToolContext, process: &mut Process) -> Place {
    let told = process.cwd().await.and_then(|path| Utf8PathBuf::from_path_buf(path).ok());
    let Some(told) = told.filter(|told| *told != cx.around.cwd) else { return Place::Same };
    let around = cx.around.clone();
    let compare = move || {
        // Paths of ours may have links; what the shell tells has none.
        let resolved = |path: &Utf8Path| path.canonicalize_utf8().unwrap_or_else(|_| path.to_owned());
        if resolved(&around.cwd) == told {
            return Place::Same;
        }
        let is_real =
            told.is_dir() && told.canonicalize_utf8().is_ok_and(|real| real.as_str() == told.as_str());
        let inside = around.directories.iter().any(|directory| told.starts_with(resolved(directory)));
        if is_real && inside { Place::Moved(told) } else { Place::Outside(told, around.cwd) }
    };
    tokio::task::spawn_blocking(compare).await.unwrap_or(Place::Same)
}

fn answer(ending: &Ending, limit: Duration, output: &Shown, place: Place) -> ToolOutput {
    let failure = failure(ending, limit);
    let mut text = match (&failure, output.text.is_empty()) {
        (None, true) => NO_OUTPUT.to_owned(),
        (None, false) => output.text.clone(),
        (Some(failure), true) => failure.clone(),
        (Some(failure), false) => format!("{failure}\n{}", output.text),
    };
    if let Place::Outside(there, here) = &place {
        text =
            format!("{text}\n[the shell is back in {here}: {there} is outside the directories of this run]");
    }
    let interrupted = ending.stopped == Some(Stopped::Cancelled);
    let mut answer = ToolOutput { is_error: failure.is_some(), ..ToolOutput::text(text) };
    if failure.is_none() || interrupted {
        answer.structured = Some(structured(output, interrupted));
    }
    if let Place::Moved(cwd) = place {
        answer = answer.with_effect(ToolEffect::Moved { cwd });
    }
    answer
}

/// The first line of the answer, for a command that did not succeed.
fn failure(ending: &Ending, limit: Duration) -> Option<String> {
    match (ending.stopped, ending.exit) {
        (Some(Stopped::Cancelled), _) => {
            Some("interrupted: the command was stopped; its output so far:".into())
        }
        (Some(Stopped::TimedOut), _) => {
            let seconds = limit.as_secs_f64();
            Some(format!("Exit code 143\nCommand timed out after {seconds} s and was stopped"))
        }
        (None, Exit::Unknown) => Some(format!(
            "outcome unknown: {} It may have done part of its work: check before running it again",
            what_became(&ending.aftermath)
        )),
        (None, exit @ Exit::OverLimit(_)) => {
            let code = exit.shell_code().unwrap_or_default();
            Some(format!("Exit code {code}\nCommand was ended: it {exit}"))
        }
        (None, exit) => exit.shell_code().filter(|code| *code != 0).map(|code| format!("Exit code {code}")),
    }
}

/// What became of a command whose end was not seen.
fn what_became(aftermath: &Aftermath) -> String {
    let watchers = "the processes that watch commands were killed";
    let (killed, left) = match aftermath {
        Aftermath::Ended => {
            return "the process that watched the command was killed, and the command with it.".to_owned();
        }
        Aftermath::NotKnown => return format!("{watchers}. What the command started may still run."),
        Aftermath::Swept { killed, left } => (killed, left),
    };
    let killed = match killed {
        0 => "nothing else of the command was found".to_owned(),
        1 => "1 process that was left of the command was killed after that".to_owned(),
        many => format!("{many} processes that were left of the command were killed after that"),
    };
    if left.is_empty() {
        return format!("{watchers}; {killed}.");
    }
    let left: Vec<String> = left.iter().map(u32::to_string).collect();
    format!("{watchers}; {killed}. These could not be killed and still run: {}.", left.join(", "))
}

fn structured(output: &Shown, interrupted: bool) -> Value {
    let mut value = json!({
        "stdout": output.text, "stderr": "", "interrupted": interrupted, "isImage": false, "noOutputExpected": false,
    });
    if let Some((path, bytes)) = &output.file {
        value["persistedOutputPath"] = json!(path);
        value["persistedOutputSize"] = json!(bytes);
    }
    value
}

async fn not_started(cx: &ToolContext, error: LaunchError) -> ToolOutput {
    match error {
        LaunchError::Directory { .. } => directory_gone(cx).await,
        LaunchError::TooLarge { .. } => {
            ToolOutput::error(format!("{error}\nWrite the long part to a file and use that in the command."))
        }
        LaunchError::Lost => ToolOutput::error(format!("outcome unknown: {error}")),
        other => ToolOutput::error(format!("the command was not started: {other}")),
    }
}

/// Goes back to the first directory of the run that is there, so that the next command can start.
async fn directory_gone(cx: &ToolContext) -> ToolOutput {
    let gone = cx.around.cwd.clone();
    let directories = cx.around.directories.clone();
    let find = move || directories.into_iter().find(|directory| directory.is_dir());
    let found = tokio::task::spawn_blocking(find).await.ok().flatten();
    match found.filter(|found| *found != gone) {
        Some(cwd) => ToolOutput::error(format!(
            "working directory is gone: {gone}\nThe command was not run. The shell is now in {cwd}; run it again from there if it fits."
        ))
        .with_effect(ToolEffect::Moved { cwd }),
        None => ToolOutput::error(format!(
            "working directory is gone or cannot be entered: {gone}\nThe command was not run. Make the directory again (the Write tool makes missing parents) before the next command."
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_that_ended_a_command_is_named() {
        let exit = Exit::OverLimit(decurion_exec::Limit::Memory { mebibytes: 18_079 });
        let ending = Ending { exit, stopped: None, aftermath: Aftermath::Ended };
        let said = failure(&ending, NO_LIMIT).unwrap();
        assert_eq!(said, "Exit code 137\nCommand was ended: it used more than 17 GiB of memory");
    }

    #[test]
    fn what_could_not_be_killed_is_named() {
        let said = |killed, left: &[u32]| what_became(&Aftermath::Swept { killed, left: left.to_vec() });
        assert!(said(0, &[]).ends_with("nothing else of the command was found."));
        assert!(said(1, &[]).ends_with("1 process that was left of the command was killed after that."));
        let resisting = said(2, &[7, 8]);
        assert!(resisting.contains("2 processes that were left"), "{resisting}");
        assert!(resisting.ends_with("These could not be killed and still run: 7, 8."), "{resisting}");
        assert!(what_became(&Aftermath::NotKnown).ends_with("may still run."));
    }

    #[tokio::test(start_paused = true)]
    async fn progress_is_the_last_line_now_and_then() {
        let (sender, mut lines) = mpsc::channel(2);
        let mut progress = Progress { lines: &sender, printed: &Printed::default(), last: Instant::now() };
        let mut see = async |after: u64, piece: &[u8]| {
            tokio::time::advance(Duration::from_millis(after)).await;
            progress.see(piece);
            lines.try_recv().ok()
        };
        // What a short command says is in its result soon enough.
        assert_eq!(see(0, b"first\n").await, None);
        assert_eq!(see(999, b"second\n").await, None);
        assert_eq!(see(1, b"third\nfo\x1b[1mur\xffth\r\n \n").await.as_deref(), Some("fo[1mur\u{FFFD}th"));
        assert_eq!(see(999, b"fifth\n").await, None);
        // Nothing to show is not counted as shown.
        assert_eq!(see(1, b" \n\n").await, None);
        assert_eq!(see(0, b"sixth").await.as_deref(), Some("sixth"));
        assert_eq!(see(1000, &vec![b'x'; 100_000]).await, Some("x".repeat(PROGRESS_CHARS)));
    }
}
