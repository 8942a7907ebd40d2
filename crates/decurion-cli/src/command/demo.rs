//! `decurion demo`: a real session on a small real repository, with an embedded script in the model's place. In a
//! terminal it plays in the real interface; elsewhere, and with `--fast`, it is the ordinary headless path. Takes the
//! flags; succeeds only if the repository's test then passes, and leaves no files behind without `--keep`.
//!
//! | file | what |
//! |---|---|
//! | `ending.rs` | the timeline and the next steps, shown in the terminal afterwards |
//! | `player.rs` | presses the keys and shows captions |
//! | `stage.rs` | the repository, the model and the session |
//! | `interactive.rs` | the demo in the real interface |

mod ending;
mod interactive;
mod player;
mod stage;

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_config::{Environment, Plugins};
use decurion_exec::foreground::Front;
use decurion_protocol::{Block, Command, Event, TaskKind};
use decurion_serve::{Finish, Format, ProgressOutput};
use decurion_store::{Archive, Found, ReplayOptions, Scope, SessionPaths};
use decurion_tui::terminal::OwnedTerminal;
use decurion_tui::view::status::Windows;
use tempfile::TempDir;

use super::run::{Answer, Work, block_on};
use crate::args::DemoArgs;
use crate::report::{Failure, note};
use crate::{screen, wire};
use stage::{DemoStage, PROMPT};

/// A terminal with fewer columns or rows cannot show what there is to see.
const SMALLEST: (u16, u16) = (60, 20);
/// The pace of a log: without waits.
const AT_ONCE: u32 = 1_000_000;

pub fn run(args: &DemoArgs) -> Result<u8, Failure> {
    if let (Some(keeper), Some(folder)) = (args.kept_by, &args.folder) {
        return interactive::run(keeper, folder, args.keep);
    }
    let is_shown = !args.fast && screen::is_interactive() && has_keys(&Environment::capture());
    if is_shown && is_large() { interactive::keep(args.keep) } else { log(args.keep) }
}

/// Plays it at this terminal in another process, and comes back.
pub fn run_in_front() -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot tell which program this is: {error}")))?;
    let ended = Front::default().run(program.as_os_str(), &[OsString::from("demo")]);
    ended.map(drop).map_err(|error| Failure::failed(format!("cannot start the demo: {error}")))
}

/// Whether the terminal is one in which a cursor can be moved.
fn has_keys(environment: &Environment) -> bool {
    environment.get("TERM").is_some_and(|term| term != "dumb")
}

fn is_large() -> bool {
    let (columns, rows) = OwnedTerminal::size();
    let is_large = columns >= SMALLEST.0 && rows >= SMALLEST.1;
    if !is_large {
        let (wide, high) = SMALLEST;
        note(format!(
            "terminal too small for the real interface: {columns}×{rows}; playing the demo as a log"
        ));
        note(format!("make it {wide}×{high} or larger and run `decurion demo` again to see it there"));
    }
    is_large
}

/// A folder that is gone afterwards.
fn temporary() -> Result<(TempDir, Utf8PathBuf), Failure> {
    let folder = tempfile::Builder::new().prefix("decurion-demo-").tempdir().map_err(no_folder)?;
    let path = Utf8PathBuf::from_path_buf(folder.path().to_path_buf())
        .map_err(|path| Failure::failed(format!("not a UTF-8 path: {}", path.display())))?;
    Ok((folder, path))
}

#[allow(clippy::needless_pass_by_value)] // the shape that `map_err` wants
fn no_folder(error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot make a temporary folder: {error}"))
}

/// Plays it as a log.
fn log(keep: bool) -> Result<u8, Failure> {
    let (folder, root) = temporary()?;
    let stage = DemoStage::new(&root, Environment::capture())?;
    let passed = block_on(act(&stage))??;
    if keep || !passed {
        say!("\nThe repository is kept in {}", folder.keep().display());
    } else {
        say!("\nThe repository was temporary; --keep keeps it.");
    }
    Ok(u8::from(!passed))
}

async fn act(stage: &DemoStage) -> Result<bool, Failure> {
    say!("Making a small git repository with a failing test in {}", stage.repository);
    stage.make_repository().await?;
    say!("Asking the agent: {PROMPT}\n");
    let pace = decurion_model::pace::Pace::new(AT_ONCE);
    let (engine, agents) = stage.engine(stage::LOGGED, pace);
    let answer = Answer {
        prompts: None,
        request: stage.session(&["Edit", stage::RUN_TEST], false)?,
        work: Work::Asked(Command::Prompt { blocks: vec![Block::text(PROMPT)] }),
        agents,
        skills: Vec::new(),
        plugins: Plugins::default(),
        format: Format::Text,
        shown: decurion_serve::StreamFacts::default(),
        progress: ProgressOutput::Inline,
        api_key_source: "none".to_owned(),
        sandbox: wire::sandbox_name(&stage.loaded),
        known: Arc::new(decurion_serve::NothingKnown),
        model: None,
        windows: Windows::default(),
        replay: false,
        state: stage.loaded.paths.state.clone(),
    };
    let finish = Box::pin(answer.run(&engine)).await?;
    let passed = stage.test_passes().await?;
    report(stage, &finish, passed);
    Ok(passed && finish.outcome.exit_code() == 0)
}

fn report(stage: &DemoStage, finish: &Finish, passed: bool) {
    say!("\nWhat happened");
    say!("  the agent: {}", finish.outcome.word());
    say!("  the test:  {}", if passed { "passes now" } else { "still fails" });
    let archive = stage.loaded.paths.state.clone().map(Archive::new);
    let found = archive.and_then(|archive| archive.find(finish.session, &[]));
    if let Some(Found::Ours(paths)) = found {
        say!("  the work:  {}", DemoCounts::of(&paths));
        say!("  transcript: {}", paths.transcript());
        say!("  read it:    decurion sessions show {}", finish.session);
        say!("  see it:     decurion trace {} --svg demo.svg", finish.session);
    }
}

/// What a session did, counted from its record.
#[derive(Default)]
struct DemoCounts {
    calls: usize,
    agents: HashSet<String>,
    commands: usize,
}

impl DemoCounts {
    fn of(paths: &SessionPaths) -> Self {
        let mut counts = Self::default();
        let options = ReplayOptions { scope: Scope::Everything, ..ReplayOptions::default() };
        // What cannot be read is not counted.
        let _ = decurion_store::replay(paths, &options, &mut |envelope| match envelope.event {
            Event::CallEnded { .. } => counts.calls += 1,
            Event::TaskOpened { record } if record.kind == TaskKind::LocalBash => counts.commands += 1,
            Event::TaskOpened { record } => drop(counts.agents.insert(record.task.to_string())),
            _ => {}
        });
        counts
    }
}

impl std::fmt::Display for DemoCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { calls, agents, commands } = self;
        let plural = if *commands == 1 { "" } else { "s" };
        let agents = agents.len() + 1;
        write!(f, "{calls} tool calls by {agents} agents, {commands} command{plural} in the background")
    }
}
