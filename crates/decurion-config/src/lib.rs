//! Everything the program needs to know, with its origins. Takes the working directory, the environment and
//! the command line's settings, gives [`Loaded`]: settings, rules, providers and paths, decided once at the
//! start. This is the only crate that reads environment variables, the home folder or settings files.

pub mod agents;
mod check;
mod commands;
mod edit;
pub mod env;
pub mod error;
pub mod frontmatter;
pub mod hooks;
pub mod instructions;
pub mod jsonc;
pub mod keep;
mod layer;
pub mod mcp;
pub mod memory;
pub mod moved;
pub mod origin;
mod own;
pub mod paths;
pub mod plugins;
pub mod provider;
mod read;
mod record;
pub mod redact;
pub mod rules;
pub mod sandbox;
mod schema;
pub mod secret;
pub mod settings;
pub mod shell_env;
pub mod show;
pub mod skills;
pub mod trust;
mod variables;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::permission::Mode;

pub use agents::{
    AgentFolder, AgentOrigin, AgentProblem, AgentRequest, Agents, LoadedAgent, PluginPlace, Severity,
};
pub use env::Environment;
pub use error::{ConfigError, Warning, WarningKind};
pub use instructions::{FoundInstructions, InstructionFile, InstructionRequest};
pub use keep::{BaseUrl, KeepError, Keeper, Kept, NewProvider, NewSetting, SettingKey, keep_provider};
pub use mcp::{McpEntry, McpProblem, McpRequest, McpServers, McpState};
pub use origin::{Layer, Origin};
pub use paths::{Paths, StateProblem, current_directory};
pub use plugins::{Plugin, PluginError, PluginFrom, PluginRegistry, PluginState, Plugins};
pub use provider::{Auth, Candidate, Choice, KeySource, NoProvider, ProviderConfig, ProviderKind, Providers};
pub use redact::Redactor;
pub use rules::Rules;
pub use sandbox::{MaskedSecret, SandboxSettings};
pub use schema::settings_schema;
pub use secret::Secret;
pub use settings::Settings;
pub use shell_env::ChildEnvironment;
pub use skills::{LoadedSkill, SkillRequest, Skills};
pub use trust::{Part, PartKind, ProjectParts, Trust, TrustMode, TrustState};
pub use variables::{address_variable, key_variable, overriding};

use check::Checked;
use jsonc::{Kind, Member, Node, Position};
use origin::{Family, Place, Sources};
use read::ReadError;

pub const MANAGED_SETTINGS: &str = "/etc/decurion/settings.json";

/// What to load from.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    pub cwd: Utf8PathBuf,
    /// The environment, captured once.
    pub environment: Environment,
    /// Variables that are no settings this time, because a person has just typed what counts instead.
    pub ignored_variables: Vec<&'static str>,
    pub flags: FlagSettings,
    pub managed_path: Utf8PathBuf,
    /// Whether the folder is trusted.
    pub trust: TrustMode,
}

impl LoadRequest {
    /// Nothing on the command line, the usual place for the administrator's settings, recorded trust.
    pub fn new(cwd: Utf8PathBuf, environment: Environment) -> Self {
        Self {
            cwd,
            environment,
            ignored_variables: Vec::new(),
            flags: FlagSettings::default(),
            managed_path: MANAGED_SETTINGS.into(),
            trust: TrustMode::default(),
        }
    }
}

/// What the command line says about settings.
#[derive(Clone, Debug, Default)]
pub struct FlagSettings {
    /// `--settings`: a file, or JSON that starts with `{`.
    pub settings: Option<String>,
    /// `--setting-sources`: which of user, project and local to read, joined by commas; none reads all.
    pub setting_sources: Option<String>,
    pub model: Option<String>,
    pub permission_mode: Option<Mode>,
    /// `--allowedTools`, one rule each (see [`rules::split_rules`]).
    pub allowed_tools: Vec<String>,
    /// `--disallowedTools`, one rule each.
    pub disallowed_tools: Vec<String>,
    pub directories: Vec<String>,
}

#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub rules: Rules,
    /// The providers of models.
    pub providers: Providers,
    pub paths: Paths,
    /// Whether the parts of the project that wait for trust are in effect.
    pub trust: TrustState,
    /// These parts, to be handed to [`Trust::trust_folder`] if the user agrees.
    pub project_parts: ProjectParts,
    /// Every MCP server that a settings file or `.mcp.json` declares, lowest layer first, also those that wait
    /// for trust; [`mcp::servers`] decides about them.
    pub declared_servers: Vec<(String, settings::Declared)>,
    pub warnings: Vec<Warning>,
    /// What is wrong with the settings of the user and the administrator, with flags and with variables; the rest of
    /// them is in effect.
    pub invalid: Vec<ConfigError>,
    /// What is wrong with files of the repository that are therefore not in effect. They may forbid something, so no
    /// session starts without them.
    pub broken: Vec<ConfigError>,
    /// Which of the user's, the project's and the local files count, by `--setting-sources`.
    pub layers: Vec<Layer>,
    /// Where the administrator's settings are; what else is his is beside them.
    pub managed_path: Utf8PathBuf,
    tree: Node,
    sources: Sources,
}

impl Loaded {
    /// Where the value of a key came from: `permissions.defaultMode`.
    pub fn origin(&self, key: &str) -> Option<Origin> {
        self.tree.at_path(key).map(|node| self.sources.origin(node))
    }

    /// Where an item of the list at this key was set.
    pub fn origin_of_item(&self, key: &str, index: usize) -> Option<Origin> {
        let item = self.tree.at_path(key)?.items().get(index)?;
        Some(self.sources.origin(item))
    }

    /// Every effective value with its origin, secrets replaced.
    pub fn rows(&self) -> Vec<show::Row> {
        show::rows(&self.tree, &self.sources, &Redactor::new(self.secrets(), true))
    }

    /// Everything in effect as one document, secrets replaced.
    pub fn shown(&self) -> serde_json::Value {
        show::whole(&self.tree, &Redactor::new(self.secrets(), true))
    }

    /// What cuts secrets out of text, as the settings want it: the exact secrets always, shapes of keys
    /// unless `redactSecrets` is off.
    pub fn redactor(&self) -> Redactor {
        Redactor::new(self.secrets(), self.settings.redact_secrets)
    }

    /// The model of the settings and the provider that serves it.
    pub fn choice(&self) -> Result<Choice<'_>, NoProvider> {
        self.providers.choose(self.settings.model.as_deref())
    }

    /// Every secret that the settings hold, or take from elsewhere.
    pub fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let variables = self.settings.env.values().filter_map(|value| match value {
            settings::EnvValue::Secret(secret) => Some(secret),
            settings::EnvValue::Plain(_) => None,
        });
        let masked = self.settings.secrets.iter().filter_map(|secret| secret.value.as_ref());
        self.providers.secrets().chain(variables).chain(masked)
    }
}

/// Reads, checks and layers everything: defaults, user, project, local, environment, flags, managed.
pub fn load(request: &LoadRequest) -> Result<Loaded, ConfigError> {
    let mut loaded = examine(request)?;
    let problems = loaded.invalid.drain(..).chain(loaded.broken.drain(..)).collect();
    ConfigError::of(problems).map_or(Ok(loaded), Err)
}

/// The same for commands that run no agent: a repository's file that cannot be used is left out with warnings and
/// listed in [`Loaded::broken`], so that such commands still work in its folder.
pub fn inspect(request: &LoadRequest) -> Result<Loaded, ConfigError> {
    let mut loaded = examine(request)?;
    if let Some(error) = ConfigError::of(std::mem::take(&mut loaded.invalid)) {
        return Err(error);
    }
    loaded.warnings.extend(loaded.broken.iter().map(|error| Warning {
        kind: WarningKind::File,
        origin: None,
        text: format!("these settings are not in effect: {error}"),
    }));
    Ok(loaded)
}

/// The same for commands that tell what is wrong with the settings: every problem is listed, and what can be used is in
/// effect.
pub fn examine(request: &LoadRequest) -> Result<Loaded, ConfigError> {
    let wanted = wanted_layers(request.flags.setting_sources.as_deref())?;
    let paths = Paths::discover(&request.cwd, &request.environment)?;
    let (recorded, problem) = match request.trust {
        TrustMode::Refused => (Trust::default(), None),
        TrustMode::Recorded | TrustMode::Granted => Trust::open(&paths),
    };
    let (mut loader, mut project) = up_to_project(&paths, &wanted, &recorded, None);
    let trust = match request.trust {
        TrustMode::Granted => TrustState::Trusted,
        TrustMode::Recorded | TrustMode::Refused => recorded.check(&paths.root, &project.parts),
    };
    if request.trust == TrustMode::Recorded {
        loader.warnings.extend(problem);
    }
    for document in project.documents.drain(..) {
        layer::merge(&mut loader.tree, document.split.at_once);
        if trust.is_trusted() || document.is_own {
            layer::merge(&mut loader.tree, document.split.waiting);
        }
    }
    let variables = variables::from_environment(
        &request.environment,
        &request.ignored_variables,
        &mut loader.sources,
        &mut loader.warnings,
        &mut loader.invalid,
    );
    layer::merge(&mut loader.tree, variables);
    loader.flags(&request.flags);
    loader.own_file(Layer::Managed, Family::Ours, &request.managed_path);
    let Loader { sources, mut warnings, servers, invalid, broken, tree, .. } = loader;
    let providers = Providers::from_tree(&tree, &sources, &request.environment, &paths, &mut warnings);
    let settings = Settings::from_tree(&tree, &sources, &paths, &request.environment, &mut warnings);
    let rules = Rules::from_tree(&tree, &sources, &paths);
    if paths.state.is_none() {
        let text = "HOME is not set or not an absolute path, so sessions are not kept: set HOME, or DECURION_HOME to a folder"
            .to_owned();
        warnings.push(Warning { kind: WarningKind::File, origin: None, text });
    }
    warnings.extend(shell_env::not_passed(&settings, &providers).map(|name| Warning {
        kind: WarningKind::Ignored,
        origin: None,
        text: format!("envPass: a provider's key or a masked secret is never passed on: {name}"),
    }));
    Ok(Loaded {
        settings,
        rules,
        providers,
        paths,
        trust,
        project_parts: project.parts,
        declared_servers: servers,
        warnings,
        invalid,
        broken,
        layers: wanted,
        managed_path: request.managed_path.clone(),
        tree,
        sources,
    })
}

/// The settings of the user, and what the files of the project say, which is not yet in effect. One file can be taken to
/// say something else than it does.
fn up_to_project<'a>(
    paths: &'a Paths,
    wanted: &[Layer],
    recorded: &'a Trust,
    instead: Option<(&'a Utf8Path, &'a str)>,
) -> (Loader<'a>, Project) {
    let mut loader = Loader {
        sources: Sources::default(),
        warnings: Vec::new(),
        servers: Vec::new(),
        invalid: Vec::new(),
        broken: Vec::new(),
        tree: layer::empty(),
        paths,
        recorded,
        instead,
    };
    loader.defaults();
    let files = paths.settings_files();
    let (own, repository): (Vec<_>, Vec<_>) = files
        .into_iter()
        .filter(|(layer, ..)| wanted.contains(layer))
        .partition(|(layer, ..)| *layer == Layer::User);
    for (layer, family, file) in own {
        loader.own_file(layer, family, &file);
    }
    let mut project = loader.project(repository, wanted.contains(&Layer::Project));
    agents::add_project_parts(paths, wanted, &mut project.parts);
    skills::add_project_parts(paths, wanted, &mut project.parts);
    instructions::add_project_parts(paths, wanted, &mut project.parts);
    (loader, project)
}

/// The layers that `--setting-sources` asks for.
fn wanted_layers(words: Option<&str>) -> Result<Vec<Layer>, ConfigError> {
    let Some(words) = words else { return Ok(vec![Layer::User, Layer::Project, Layer::Local]) };
    let words = words.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| match word {
            "user" => Ok(Layer::User),
            "project" => Ok(Layer::Project),
            "local" => Ok(Layer::Local),
            _ => Err(ConfigError::SettingSources { word: word.to_owned() }),
        })
        .collect()
}

/// The settings as far as they are layered.
struct Loader<'a> {
    sources: Sources,
    warnings: Vec<Warning>,
    servers: Vec<(String, settings::Declared)>,
    invalid: Vec<ConfigError>,
    broken: Vec<ConfigError>,
    tree: Node,
    paths: &'a Paths,
    /// What the user agreed to and has answered.
    recorded: &'a Trust,
    /// What a file is taken to say.
    instead: Option<(&'a Utf8Path, &'a str)>,
}

/// What a repository's files say, told apart and not yet in effect.
struct Project {
    documents: Vec<ProjectDocument>,
    /// What waits for trust, without the files that the user's own answers have written.
    parts: ProjectParts,
}

/// One file of a repository.
struct ProjectDocument {
    split: layer::Split,
    /// Whether all of it that would wait for trust was written by the user's own answers.
    is_own: bool,
}

impl Loader<'_> {
    fn defaults(&mut self) {
        let source = self.sources.add(Layer::Default, Family::Ours, Place::Builtin);
        let read = self.document(schema::DEFAULTS, source);
        self.tree = self.usable(read).unwrap_or_else(layer::empty);
    }

    /// What can be used of a document that the user or the administrator wrote; what is wrong with it is listed.
    fn usable(&mut self, read: Result<Checked, ConfigError>) -> Option<Node> {
        match read {
            Ok(Checked { root, problems }) => {
                self.invalid.extend(problems);
                Some(root)
            }
            Err(error) => {
                self.invalid.push(error);
                None
            }
        }
    }

    /// A file that the user or the administrator wrote: it takes effect as it is.
    fn own_file(&mut self, layer: Layer, family: Family, file: &Utf8Path) {
        if let Some(read) = self.file(layer, family, file).transpose()
            && let Some(document) = self.usable(read)
        {
            self.own_document(document);
        }
    }

    /// What its `env` says about our own settings comes just below what it says itself.
    fn own_document(&mut self, document: Node) {
        let variables =
            variables::from_document(&document, &self.sources, &mut self.warnings, &mut self.invalid);
        self.servers.extend(mcp::declared_in(&document, |node| self.sources.origin(node)));
        layer::merge(&mut self.tree, variables);
        layer::merge(&mut self.tree, document);
    }

    fn project(&mut self, files: Vec<(Layer, Family, Utf8PathBuf)>, with_servers: bool) -> Project {
        let mut project = Project { documents: Vec::new(), parts: ProjectParts::default() };
        let mut mode =
            self.tree.at_path("permissions.defaultMode").and_then(layer::mode_of).unwrap_or_default();
        if with_servers && let Some((name, document)) = self.project_servers() {
            self.add_to_project(&mut project, &mut mode, name, document);
        }
        for (layer, family, file) in files {
            let document = match self.file(layer, family, &file) {
                Ok(Some(Checked { root, problems })) if problems.is_empty() => root,
                Ok(Some(Checked { problems, .. })) => {
                    self.broken.extend(problems);
                    continue;
                }
                Ok(None) => continue,
                Err(error) => {
                    self.broken.push(error);
                    continue;
                }
            };
            let name = file.strip_prefix(&self.paths.root).unwrap_or(&file).as_str();
            self.add_to_project(&mut project, &mut mode, name, document);
        }
        project
    }

    fn add_to_project(&mut self, project: &mut Project, mode: &mut Mode, name: &str, document: Node) {
        let split = layer::split(document, *mode, &self.sources, &mut self.warnings);
        let parts = ProjectParts::of(name, &split.waiting, &self.sources);
        let is_own = parts
            .fingerprints()
            .get(name)
            .is_some_and(|fingerprint| self.recorded.is_own(&self.paths.root, name, fingerprint));
        if !is_own {
            project.parts.extend(parts);
        }
        let declared = mcp::declared_in(&split.waiting, |node| self.sources.origin(node));
        self.servers.extend(declared.into_iter().map(|(server, declared)| (server, declared.own(is_own))));
        // A later file may not undo what this one narrowed.
        if let Some(narrower) = split.at_once.at_path("permissions.defaultMode").and_then(layer::mode_of) {
            *mode = narrower;
        }
        project.documents.push(ProjectDocument { split, is_own });
    }

    /// The servers of `.mcp.json`. A broken one is reported and declares nothing: it is not a settings file,
    /// and it cannot forbid anything.
    fn project_servers(&mut self) -> Option<(&'static str, Node)> {
        let file = self.paths.root.join(".mcp.json");
        // While commands run, an empty folder keeps them from making this file.
        if file.is_dir() {
            return None;
        }
        let read = self.text(Layer::Project, &file).and_then(|text| {
            let Some(text) = text else { return Ok(None) };
            let source = self.sources.add(Layer::Project, Family::Ours, Place::File(file.clone()));
            let mut parsed = self.parse(&text, source)?;
            if parsed.root.get("mcpServers").is_none()
                && let Some(servers) = mcp::unwrapped(&parsed.root).cloned()
            {
                let (at, value) = (servers.at, servers);
                parsed.root.kind = Kind::Object(vec![Member { key: "mcpServers".to_owned(), at, value }]);
            }
            if parsed.root.get("mcpServers").is_none() && !parsed.root.members().is_empty() {
                let origin = Some(self.sources.origin(&parsed.root));
                let text = "it declares no servers: expected {\"mcpServers\": {name: server}}".to_owned();
                self.warnings.push(Warning { kind: WarningKind::File, origin, text });
            }
            if let Kind::Object(members) = &mut parsed.root.kind {
                members.retain(|member| member.key == "mcpServers");
            }
            let Checked { root, problems } = check::document(parsed, &self.sources, &mut self.warnings);
            ConfigError::of(problems).map_or(Ok(Some(root)), Err)
        });
        match read {
            Ok(document) => document.map(|document| (".mcp.json", document)),
            Err(error) => {
                let text = format!("its servers are not used: {error}");
                self.warnings.push(Warning { kind: WarningKind::File, origin: None, text });
                None
            }
        }
    }

    fn flags(&mut self, flags: &FlagSettings) {
        let read = match flags.settings.as_deref().map(str::trim) {
            None | Some("") => None,
            Some(json) if json.starts_with('{') => {
                let source = self.sources.add(Layer::Flag, Family::Ours, Place::Flag("--settings"));
                Some(self.document(json, source))
            }
            Some(path) => {
                let file = self.paths.expand(path, &self.paths.cwd);
                let document = self.file(Layer::Flag, Family::Ours, &file);
                Some(document.and_then(|found| found.ok_or(ConfigError::NoSuchSettings { file })))
            }
        };
        if let Some(document) = read.and_then(|read| self.usable(read)) {
            self.own_document(document);
        }
        for (flag, document) in flag_documents(flags) {
            let source = self.sources.add(Layer::Flag, Family::Ours, Place::Flag(flag));
            let root = with_source(document, source);
            let document = jsonc::Document { root, repeated: Vec::new() };
            let checked = check::document(document, &self.sources, &mut self.warnings);
            if let Some(checked) = self.usable(Ok(checked)) {
                layer::merge(&mut self.tree, checked);
            }
        }
    }

    /// A checked settings file, or none if there is no such file.
    fn file(
        &mut self,
        layer: Layer,
        family: Family,
        file: &Utf8Path,
    ) -> Result<Option<Checked>, ConfigError> {
        let Some(text) = self.text(layer, file)? else { return Ok(None) };
        let source = self.sources.add(layer, family, Place::File(file.to_owned()));
        self.document(&text, source).map(Some)
    }

    fn document(&mut self, text: &str, source: u16) -> Result<Checked, ConfigError> {
        let parsed = self.parse(text, source)?;
        Ok(check::document(parsed, &self.sources, &mut self.warnings))
    }

    fn parse(&self, text: &str, source: u16) -> Result<jsonc::Document, ConfigError> {
        jsonc::parse(text, source).map_err(|error| ConfigError::Syntax {
            origin: self.sources.origin_at(source, error.at),
            message: error.message,
        })
    }

    fn text(&mut self, layer: Layer, file: &Utf8Path) -> Result<Option<String>, ConfigError> {
        if let Some((_, text)) = self.instead.filter(|(other, _)| *other == file) {
            return Ok(Some(text.to_owned()));
        }
        let bytes = match read::whole(file, jsonc::MAX_BYTES) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => bytes,
            Err(ReadError::NotAFile) => return Err(ConfigError::NotAFile { file: file.to_owned() }),
            Err(ReadError::TooLarge(limit)) => {
                return Err(ConfigError::TooLarge { file: file.to_owned(), limit });
            }
            // A user's folder that cannot be entered at all means a session without memory, which the
            // caller announces; a file in it that cannot be read may hold rules, so that is an error.
            Err(ReadError::Io(error)) if layer == Layer::User && !can_enter(file.parent()) => {
                let text = format!("these settings are not in effect ({error}): {file}");
                self.warnings.push(Warning { kind: WarningKind::File, origin: None, text });
                return Ok(None);
            }
            Err(ReadError::Io(source)) => {
                return Err(ConfigError::Unreadable { file: file.to_owned(), source });
            }
        };
        String::from_utf8(bytes).map(Some).map_err(|error| self.not_text(layer, file, &error))
    }

    fn not_text(&mut self, layer: Layer, file: &Utf8Path, error: &std::string::FromUtf8Error) -> ConfigError {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let good = String::from_utf8_lossy(good);
        let line = good.matches('\n').count() + 1;
        let column = good.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let source = self.sources.add(layer, Family::Ours, Place::File(file.to_owned()));
        let at = Position { line: number(line), column: number(column) };
        ConfigError::Syntax { origin: self.sources.origin_at(source, at), message: "the file is not UTF-8" }
    }
}

fn can_enter(folder: Option<&Utf8Path>) -> bool {
    folder.is_some_and(|folder| rustix::fs::access(folder.as_std_path(), rustix::fs::Access::EXEC_OK).is_ok())
}

/// Flags that are settings, each as a document of its own.
fn flag_documents(flags: &FlagSettings) -> Vec<(&'static str, Node)> {
    let text = |text: &str| Node { kind: Kind::Text(text.to_owned()), ..layer::empty() };
    let texts = |list: &[String]| Node {
        kind: Kind::List(list.iter().map(|item| text(item)).collect()),
        ..layer::empty()
    };
    let mut documents = Vec::new();
    let mut add = |flag: &'static str, key: &str, value: Node| {
        let mut document = layer::empty();
        check::put(&mut document, key, value);
        documents.push((flag, document));
    };
    if let Some(model) = &flags.model {
        add("--model", "model", text(model));
    }
    if let Some(mode) = flags.permission_mode {
        add("--permission-mode", "permissions.defaultMode", text(mode.name()));
    }
    for (flag, key, list) in [
        ("--allowedTools", "permissions.allow", &flags.allowed_tools),
        ("--disallowedTools", "permissions.deny", &flags.disallowed_tools),
        ("--add-dir", "permissions.additionalDirectories", &flags.directories),
    ] {
        if !list.is_empty() {
            add(flag, key, texts(list));
        }
    }
    documents
}

fn with_source(node: Node, source: u16) -> Node {
    let kind = match node.kind {
        Kind::List(items) => Kind::List(items.into_iter().map(|item| with_source(item, source)).collect()),
        Kind::Object(members) => Kind::Object(
            members
                .into_iter()
                .map(|member| Member { value: with_source(member.value, source), ..member })
                .collect(),
        ),
        other => other,
    };
    Node { at: node.at, source, kind }
}
