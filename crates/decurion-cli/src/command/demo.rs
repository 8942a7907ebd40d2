//! `decurion demo`: the ordinary headless path on a small real repository, with an embedded script in the
//! model's place. Makes a temporary folder, shows each step, and ends well only if the test then passes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_config::shell_env::shell_environment;
use decurion_config::{Environment, LoadRequest, Loaded, Plugins};
use decurion_engine::{Definitions, NoLibrary};
use decurion_exec::{Capture, CaptureBounds, Guard, Launch};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    Block, Command, Event, Limits, Mode, Persistence, Rule, SessionRequest, Start, TaskKind, ToolSelection,
};
use decurion_serve::{Finish, Format, Progress};
use decurion_store::{Archive, Found, ReplayOptions, Scope, SessionPaths};

use super::run::{Answer, Work, block_on, main_definition};
use crate::models::Configured;
use crate::report::{Failure, note};
use crate::{definitions, wire};

const SCRIPT: &str = include_str!("../demo/play.script");
const FILES: [(&str, &str); 2] =
    [("slug.sh", include_str!("../demo/slug.sh")), ("test.sh", include_str!("../demo/test.sh"))];
const PROMPT: &str = "The test of this repository fails. Find out why and repair it.";

/// Plays the demo.
pub fn run(keep: bool) -> Result<u8, Failure> {
    let folder = tempfile::Builder::new().prefix("decurion-demo-").tempdir().map_err(no_folder)?;
    let root = Utf8PathBuf::from_path_buf(folder.path().to_path_buf())
        .map_err(|path| Failure::failed(format!("not a UTF-8 path: {}", path.display())))?;
    let repository = root.join("repository");
    fs::create_dir(&repository).map_err(no_folder)?;
    let environment = Environment::capture();
    let loaded = Arc::new(decurion_config::load(&LoadRequest::new(repository.clone(), environment.clone()))?);
    let guard = wire::guard().ok_or_else(|| Failure::failed("cannot find this program's own file"))?;
    let play = Play { repository, environment, loaded, guard };
    let passed = block_on(play.act())??;
    if keep || !passed {
        say!("\nThe repository is kept in {}", folder.keep().display());
    } else {
        say!("\nThe repository was temporary; --keep keeps it.");
    }
    Ok(u8::from(!passed))
}

#[allow(clippy::needless_pass_by_value)] // the shape that `map_err` wants
fn no_folder(error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot make a temporary folder: {error}"))
}

struct Play {
    repository: Utf8PathBuf,
    environment: Environment,
    loaded: Arc<Loaded>,
    guard: Guard,
}

impl Play {
    async fn act(&self) -> Result<bool, Failure> {
        say!("Making a small git repository with a failing test in {}", self.repository);
        self.make_repository().await?;
        say!("Asking the agent: {PROMPT}\n");
        let models = Configured::new(Arc::clone(&self.loaded), Some("scripted:demo")).with_embedded(SCRIPT);
        let plugins = Plugins::default();
        let agents = Arc::new(definitions::Live::new(&self.loaded, None, &plugins));
        let given = wire::Given {
            models: Arc::new(models),
            agents: Arc::clone(&agents) as Arc<dyn Definitions>,
            mcp: None,
            library: Arc::new(NoLibrary),
            hooks: wire::hooks(&self.loaded, &plugins),
            undecided: wire::undecided(&self.loaded),
        };
        let engine = wire::engine(&self.loaded, &self.environment, given);
        let answer = Answer {
            prompts: None,
            request: self.session_request()?,
            work: Work::Asked(Command::Prompt { blocks: vec![Block::text(PROMPT)] }),
            agents: agents.all(),
            skills: Vec::new(),
            plugins,
            format: Format::Text,
            shown: decurion_serve::Facts::default(),
            progress: Progress::Inline,
            api_key_source: "none".to_owned(),
            sandbox: wire::sandbox_name(&self.loaded),
            known: Arc::new(decurion_serve::NothingKnown),
            model: None,
            windows: std::collections::BTreeMap::new(),
            replay: false,
            state: self.loaded.paths.state.clone(),
        };
        let finish = Box::pin(answer.run(&engine)).await?;
        let passed = self.test_passes().await?;
        self.report(&finish, passed);
        Ok(passed && finish.outcome.exit_code() == 0)
    }

    fn report(&self, finish: &Finish, passed: bool) {
        say!("\nWhat happened");
        say!("  the agent: {}", finish.outcome.word());
        say!("  the test:  {}", if passed { "passes now" } else { "still fails" });
        let archive = self.loaded.paths.state.clone().map(Archive::new);
        let found = archive.and_then(|archive| archive.find(finish.session, &[]));
        if let Some(Found::Ours(paths)) = found {
            say!("  the work:  {}", Counts::of(&paths));
            say!("  transcript: {}", paths.transcript());
            say!("  read it:    decurion sessions show {}", finish.session);
            say!("  see it:     decurion trace {} --svg demo.svg", finish.session);
        }
    }

    fn session_request(&self) -> Result<SessionRequest, Failure> {
        let rule = |text: &str| {
            Rule::parse(text, RuleSource::CliArg).map_err(|error| Failure::failed(error.to_string()))
        };
        Ok(SessionRequest {
            start: Start::New { id: None },
            cwd: self.repository.clone(),
            worktree: None,
            directories: Vec::new(),
            definition: main_definition(),
            system: None,
            append_system: None,
            model: Some("scripted:demo".to_owned()),
            thinking: None,
            effort: None,
            fallback_model: None,
            mode: Some(Mode::Default),
            allow: vec![rule("Edit")?, rule("Bash(./test.sh:*)")?],
            deny: Vec::new(),
            tools: ToolSelection::default(),
            limits: Limits::default(),
            output_schema: None,
            answers: false,
            permission_tool: None,
            checkpoints: false,
            bypass: false,
            persistence: Persistence::Usual,
            entrypoint: "demo".to_owned(),
        })
    }

    async fn make_repository(&self) -> Result<(), Failure> {
        for (name, content) in FILES {
            let path = self.repository.join(name);
            fs::write(&path, content).map_err(no_folder)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(no_folder)?;
        }
        self.git(&["init", "--quiet"]).await?;
        self.git(&["add", "."]).await?;
        let identity = ["-c", "user.name=demo", "-c", "user.email=demo@localhost"];
        let commit = ["commit", "--quiet", "--no-gpg-sign", "--message", "A slug maker and its test"];
        self.git(&[&identity[..], &commit[..]].concat()).await
    }

    async fn git(&self, args: &[&str]) -> Result<(), Failure> {
        let (code, output) = self.start("git", args).await?;
        if code == Some(0) {
            return Ok(());
        }
        Err(Failure::failed(format!("git {} failed: {output}", args.join(" "))))
    }

    async fn test_passes(&self) -> Result<bool, Failure> {
        let (code, output) = self.start("bash", &["./test.sh"]).await?;
        if code != Some(0) {
            note(output);
        }
        Ok(code == Some(0))
    }

    async fn start(&self, program: &str, args: &[&str]) -> Result<(Option<i32>, String), Failure> {
        let loaded = &self.loaded;
        let environment = shell_environment(&self.environment, &loaded.settings, &loaded.providers);
        let launch =
            Launch::new(program, &self.repository).args(args.iter().copied()).env(environment.into_pairs());
        let mut process = self
            .guard
            .start(launch)
            .await
            .map_err(|error| Failure::failed(format!("cannot run {program}: {error}")))?;
        let mut output = Capture::new(CaptureBounds::for_chars(4_000, 4_000));
        let exit = process.collect(&mut output, None, |_| {}).await;
        let output = output.finish().render(8_000, 4_000, 4_000);
        Ok((exit.shell_code(), format!("{}{}", output.head, output.tail)))
    }
}

/// What a session did, counted from its record.
#[derive(Default)]
struct Counts {
    calls: usize,
    agents: HashSet<String>,
    commands: usize,
}

impl Counts {
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

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { calls, agents, commands } = self;
        write!(
            f,
            "{calls} tool calls by {} agents, {commands} command(s) in the background",
            agents.len() + 1
        )
    }
}
