//! Where the demo plays. Takes an empty folder; gives a git repository in it with a failing test, a model that plays a
//! script, and the request for a session there.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_config::shell_env::shell_environment;
use decurion_config::{Environment, LoadRequest, Loaded, Plugins};
use decurion_engine::{Definitions, Engine, NoLibrary};
use decurion_exec::{Capture, CaptureBounds, Guard, Launch};
use decurion_model::pace::Pace;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{
    AgentDefinition, Limits, Mode, OpenSession, Persistence, Rule, Start, ToolSelection,
};

use super::no_folder;
use crate::command::run::main_definition;
use crate::models::Configured;
use crate::report::{Failure, note};
use crate::{definitions, wire};

/// The script of a log.
pub const LOGGED: &str = include_str!("../../demo/play.script");
/// The script where a person watches: the first rule that fits answers.
pub const WATCHED: &str =
    concat!(include_str!("../../demo/watched.script"), include_str!("../../demo/play.script"));
/// What the agent is asked.
pub const PROMPT: &str = "The test of this repository fails. Find out why and repair it.";
/// The model that plays the script.
pub const MODEL: &str = "scripted:demo";
/// The rule that lets the agent run the test.
pub const RUN_TEST: &str = "Bash(./test.sh:*)";

const FILES: [(&str, &str); 2] =
    [("slug.sh", include_str!("../../demo/slug.sh")), ("test.sh", include_str!("../../demo/test.sh"))];

/// The repository, and what a session in it needs.
pub struct DemoStage {
    pub repository: Utf8PathBuf,
    /// The environment of everything that runs there.
    pub environment: Environment,
    pub loaded: Arc<Loaded>,
    guard: Guard,
}

impl DemoStage {
    /// One in this folder.
    pub fn new(folder: &Utf8Path, environment: Environment) -> Result<Self, Failure> {
        let repository = folder.join("repository");
        fs::create_dir(&repository).map_err(no_folder)?;
        let loaded =
            Arc::new(decurion_config::load(&LoadRequest::new(repository.clone(), environment.clone()))?);
        let guard = wire::guard().ok_or_else(|| Failure::failed("cannot find this program's own file"))?;
        Ok(Self { repository, environment, loaded, guard })
    }

    /// The engine for sessions, with a model that plays this script at this pace; and its agents.
    pub fn engine(&self, script: &'static str, pace: Pace) -> (Engine, Vec<Arc<AgentDefinition>>) {
        let models = Configured::new(Arc::clone(&self.loaded), Some(MODEL)).with_embedded(script, pace);
        let plugins = Plugins::default();
        let agents = Arc::new(definitions::LiveDefinitions::new(&self.loaded, None, &plugins));
        let given = wire::Given {
            models: Arc::new(models),
            agents: Arc::clone(&agents) as Arc<dyn Definitions>,
            mcp: None,
            library: Arc::new(NoLibrary),
            hooks: wire::hooks(&self.loaded, &plugins),
            undecided: wire::undecided(&self.loaded),
        };
        let all = agents.all();
        (wire::engine(&self.loaded, &self.environment, given), all)
    }

    /// The request for a session in which these rules allow, and a person answers or there is none.
    pub fn session(&self, allowed: &[&str], answers: bool) -> Result<OpenSession, Failure> {
        let rule = |text: &&str| {
            Rule::parse(text, RuleSource::CliArg).map_err(|error| Failure::failed(error.to_string()))
        };
        Ok(OpenSession {
            start: Start::New { id: None },
            cwd: self.repository.clone(),
            worktree: None,
            directories: Vec::new(),
            definition: main_definition(),
            system: None,
            append_system: None,
            model: Some(MODEL.to_owned()),
            thinking: None,
            effort: None,
            fallback_model: None,
            mode: Some(Mode::Default),
            allow: allowed.iter().map(rule).collect::<Result<_, _>>()?,
            deny: Vec::new(),
            tools: ToolSelection::default(),
            limits: Limits::default(),
            output_schema: None,
            answers,
            permission_tool: None,
            checkpoints: false,
            bypass: false,
            persistence: Persistence::Usual,
            entrypoint: "demo".to_owned(),
        })
    }

    pub async fn make_repository(&self) -> Result<(), Failure> {
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

    /// Whether the test passes now.
    pub async fn test_passes(&self) -> Result<bool, Failure> {
        let (code, output) = self.start("bash", &["./test.sh"]).await?;
        if code != Some(0) {
            note(output);
        }
        Ok(code == Some(0))
    }

    async fn git(&self, args: &[&str]) -> Result<(), Failure> {
        let (code, output) = self.start("git", args).await?;
        if code == Some(0) {
            return Ok(());
        }
        Err(Failure::failed(format!("git {} failed: {output}", args.join(" "))))
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
