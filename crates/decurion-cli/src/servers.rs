//! The MCP servers of the settings and the command line. Takes what was loaded, gives the engine which there
//! are, and says what is wrong with declarations.

use std::sync::Arc;

use camino::Utf8PathBuf;
use decurion_config::mcp::{self, McpConfigError};
use decurion_config::{Environment, Loaded, McpRequest, McpServers, McpState, Plugins, TrustMode};
use decurion_engine::mcp::{McpParts, Servers};
use decurion_engine::sandbox::ServerCaches;
use decurion_protocol::mcp::{Manifests, McpHealth, McpServer, McpStatus, OfferedPrompt};
use decurion_protocol::{AgentDefinition, Clock as _};
use decurion_serve::{HostCommand, Initialize, ServerManifest};
use decurion_store::{ManifestFolder, ServerCacheFolder};
use decurion_tools::mcp::{Introduction, Logins, prompts};
use decurion_tools::oauth::Leave;

use crate::args::{InputFormat, RunArgs};
use crate::clock::SystemClock;
use crate::report::{Failure, note};

/// What the command line says about servers.
#[derive(Clone, Debug, Default)]
pub struct ServerFlags {
    pub configs: Vec<String>,
    pub strict: bool,
    /// Whether the folder is trusted for this run.
    pub trust: TrustMode,
    /// Whether a program leads the session, in which servers can live.
    pub led: bool,
    /// What those servers said of themselves beforehand.
    pub manifests: Vec<(String, ServerManifest)>,
}

impl ServerFlags {
    /// Those of a run.
    pub fn of(args: &RunArgs) -> Self {
        let trust = if args.trust_folder { TrustMode::Granted } else { TrustMode::Recorded };
        let led = args.input_format == InputFormat::StreamJson;
        Self {
            configs: args.mcp_config.clone(),
            strict: args.strict_mcp_config,
            trust,
            led,
            manifests: Vec::new(),
        }
    }

    /// The same with those of the program that leads the session.
    #[must_use]
    pub fn led(mut self, wanted: Option<&Initialize>) -> Self {
        let servers = wanted.and_then(|wanted| wanted.servers.as_ref());
        self.configs.extend(servers.map(ToString::to_string));
        self.manifests.extend(wanted.iter().flat_map(|wanted| wanted.manifests.iter().cloned()));
        self
    }
}

/// Every server that is declared.
pub struct DeclaredServers {
    pub all: McpServers,
    /// What those in the host said of themselves beforehand.
    manifests: Vec<(String, ServerManifest)>,
}

/// Reads and decides every declaration.
pub fn load(
    loaded: &Loaded,
    environment: &Environment,
    flags: &ServerFlags,
    plugins: &Plugins,
) -> Result<DeclaredServers, Failure> {
    let request = McpRequest {
        loaded,
        environment,
        configs: &flags.configs,
        strict: flags.strict,
        plugins: &plugins.servers(),
        trust: flags.trust,
        led: flags.led,
    };
    let servers = mcp::servers(&request).map_err(|error: McpConfigError| {
        Failure::usage(error.to_string()).hint(
            "--mcp-config takes a file, or JSON like {\"mcpServers\": {\"name\": {\"command\": \"…\"}}}",
        )
    })?;
    Ok(DeclaredServers { all: servers, manifests: flags.manifests.clone() })
}

impl DeclaredServers {
    /// Says what a person should know before a run.
    pub fn announce(&self) {
        for problem in &self.all.problems {
            note(problem);
        }
        for entry in &self.all.entries {
            if let McpState::Unapproved { .. } = entry.state {
                note(format!("MCP server {:?} {}", entry.name, entry.state.describe(&entry.name)));
            }
        }
    }

    /// What the engine needs.
    pub fn into_parts(self, loaded: &Loaded, environment: &Environment) -> McpParts {
        let settings = &loaded.settings;
        let service =
            decurion_config::shell_env::service_environment(environment, settings, &loaded.providers);
        McpParts {
            servers: Arc::new(self),
            environment: service.into_pairs().into(),
            manifests: manifests(loaded),
            logins: logins(loaded),
            caches: caches(loaded),
            startup_wait: settings.mcp_startup_wait,
        }
    }
}

/// The prompts of a session's servers, for hosts.
pub struct ServerPrompts {
    servers: Vec<McpServer>,
    manifests: Option<Arc<dyn Manifests>>,
}

impl ServerPrompts {
    /// Those of these servers.
    pub fn of(servers: &DeclaredServers, loaded: &Loaded) -> Self {
        Self { servers: servers.all(), manifests: manifests(loaded) }
    }

    /// As commands, as far as it is known what the servers offer.
    pub fn commands(&self) -> Vec<HostCommand> {
        let known = |server: &McpServer| {
            let manifest = self.manifests.as_ref()?.load(&server.hash)?;
            Some(
                manifest
                    .prompts
                    .into_iter()
                    .map(|prompt| command(&server.short, &prompt))
                    .collect::<Vec<_>>(),
            )
        };
        self.servers.iter().filter_map(known).flatten().collect()
    }
}

fn command(short: &str, prompt: &OfferedPrompt) -> HostCommand {
    let argument = |name: &String| {
        if prompt.required.contains(name) { format!("<{name}>") } else { format!("[{name}]") }
    };
    HostCommand {
        name: prompts::command_name(short, &prompt.name),
        description: prompt.description.chars().filter(|one| !one.is_control()).take(500).collect(),
        hint: prompt.arguments.iter().map(argument).collect::<Vec<_>>().join(" "),
    }
}

/// Where it is kept what servers offered.
pub fn manifests(loaded: &Loaded) -> Option<Arc<dyn Manifests>> {
    let state = loaded.paths.state.as_ref()?;
    Some(Arc::new(ManifestFolder::new(state)))
}

/// Where logins are kept.
pub fn logins(loaded: &Loaded) -> Option<Arc<dyn Logins>> {
    let folder = ManifestFolder::new(loaded.paths.state.as_ref()?);
    Some(Arc::new(KeptServer { folder, clock: SystemClock::new() }))
}

/// Where servers cache what they download.
pub fn caches(loaded: &Loaded) -> Option<Arc<dyn ServerCaches>> {
    let state = loaded.paths.state.as_ref()?;
    Some(Arc::new(CacheFolders(ServerCacheFolder::new(state))))
}

struct CacheFolders(ServerCacheFolder);

impl ServerCaches for CacheFolders {
    fn folder(&self, name: &str) -> std::io::Result<Utf8PathBuf> {
        self.0.folder(name)
    }
}

struct KeptServer {
    folder: ManifestFolder,
    clock: SystemClock,
}

impl Logins for KeptServer {
    fn load(&self, hash: &str) -> Option<Leave> {
        serde_json::from_slice(&self.folder.login(hash)?).ok()
    }

    fn keep(&self, hash: &str, leave: &Leave) -> std::io::Result<()> {
        self.folder.keep_login(hash, &serde_json::to_vec(leave)?)
    }

    fn now(&self) -> i64 {
        self.clock.date().as_second()
    }
}

impl Servers for DeclaredServers {
    fn introductions(&self) -> Vec<(String, Introduction)> {
        let introduced = |(name, manifest): &(String, ServerManifest)| {
            let ServerManifest { initialize, tools } = manifest.clone();
            (name.clone(), Introduction { initialize, tools })
        };
        self.manifests.iter().map(introduced).collect()
    }

    fn all(&self) -> Vec<McpServer> {
        self.all.ready().cloned().collect()
    }

    fn of(&self, definition: &AgentDefinition) -> (Vec<McpServer>, Vec<String>) {
        let wanted = self.all.for_agent(definition);
        (wanted.servers, wanted.problems.iter().map(ToString::to_string).collect())
    }

    fn off(&self) -> Vec<McpStatus> {
        let off = self.all.entries.iter().filter(|entry| entry.state != McpState::Ready);
        off.map(|entry| McpStatus {
            name: entry.name.clone(),
            status: match entry.state {
                McpState::Unusable(_) => McpHealth::Failed,
                _ => McpHealth::Disabled,
            },
            source: entry.source,
            reason: Some(entry.state.describe(&entry.name)),
            commands: Vec::new(),
        })
        .collect()
    }
}
