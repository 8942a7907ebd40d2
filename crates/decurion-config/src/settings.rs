//! The typed result. Takes the layered and checked tree, gives plain values with nothing left to look up.
//! Every value was checked when its document was read, so nothing here can fail.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::permission::Mode;
use decurion_protocol::{Limits, Money};
use serde_json::Value;

use crate::env::Environment;
use crate::error::{Warning, WarningKind};
use crate::jsonc::{Kind, Node};
use crate::layer::mode_of;
use crate::origin::{Family, Layer, Origin, Sources};
use crate::paths::Paths;
use crate::sandbox::{self, MaskedSecret, SandboxSettings};
use crate::secret::Secret;

/// Everything that can be set, decided. Rules and providers are apart, in `Loaded`.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch that a person sets on its own")]
pub struct Settings {
    /// The model, an alias or `provider/model`; none leaves it to the provider.
    pub model: Option<String>,
    /// The models to change to when that one stays overloaded, in order.
    pub fallback_model: Vec<String>,
    /// The definition that the main agent runs as.
    pub agent: Option<String>,
    /// How hard the model should think, in its provider's words.
    pub effort: Option<String>,
    /// Aliases and additions to the list of models.
    pub models: Models,
    /// Who is asked, and where work may happen.
    pub permissions: Permissions,
    /// Variables to set for shells, hooks and servers.
    pub env: BTreeMap<String, EnvValue>,
    /// Names of variables that shells get although they look like secrets.
    pub env_pass: Vec<String>,
    /// Hooks as declared, one per source, lowest layer first.
    pub hooks: Vec<Declared>,
    /// Whether no hooks run at all.
    pub disable_all_hooks: bool,
    /// MCP servers as declared, by name.
    pub mcp_servers: BTreeMap<String, Declared>,
    /// Servers of `.mcp.json` that are switched off.
    pub disabled_mcp_servers: Vec<String>,
    /// Servers of `.mcp.json` that are approved by name.
    pub enabled_mcp_servers: Vec<String>,
    /// Whether all of them are.
    pub enable_all_project_mcp_servers: bool,
    /// Servers that may be used, by name, command or address; none allows all. The administrator's list is the
    /// only one where there is one.
    pub allowed_mcp_servers: Vec<Vec<Value>>,
    /// Servers that may not, whatever else is set.
    pub denied_mcp_servers: Vec<Value>,
    /// How long the first prompt waits for servers that are not known yet.
    pub mcp_startup_wait: Duration,
    /// What commands may do at all.
    pub sandbox: SandboxSettings,
    /// Secrets that commands can use and not read.
    pub secrets: Vec<MaskedSecret>,
    /// A command that prints the line at the bottom of the terminal, as declared.
    pub status_line: Option<Declared>,
    /// What the terminal's background is: `dark`, `light`, or `auto` to ask it.
    pub theme: Option<String>,
    /// How a person is told who looks elsewhere.
    pub notifications: Option<String>,
    /// The keys of the prompt: `vim`, or the usual ones.
    pub editor_mode: Option<String>,
    /// Whether the terminal shows no spinner.
    pub reduced_motion: bool,
    /// Checkouts of their own for agents.
    pub worktree: Worktree,
    /// Which plugins are on, as declared.
    pub enabled_plugins: Option<Declared>,
    /// Patterns of instruction files that are not read.
    pub instruction_excludes: Vec<String>,
    /// Characters of the list of skills that a model is told; none leaves it to the model's window.
    pub skill_listing_chars: Option<usize>,
    pub durability: Durability,
    /// When the conversation is shortened.
    pub compaction: Compaction,
    /// Bounds on single calls.
    pub limits: CallLimits,
    /// Bounds on the whole run.
    pub budget: Limits,
    pub agents: Agents,
    /// Whether anything may run in the background.
    pub background_tasks: bool,
    /// Whether the main agent only coordinates.
    pub coordinator: bool,
    /// How long a headless run waits for its own background shells.
    pub print_background_wait: Duration,
    /// Whether key shapes are cut out of what is written.
    pub redact_secrets: bool,
    /// After how many days sessions may be removed.
    pub cleanup_period_days: u32,
}

/// Aliases and additions to the list of models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    /// Alias to model, for every provider.
    pub aliases: BTreeMap<String, String>,
    /// Provider to alias to model; goes before the above.
    pub provider_aliases: BTreeMap<String, BTreeMap<String, String>>,
    /// Facts about models by id.
    pub catalogue: BTreeMap<String, CatalogueEntry>,
}

impl Models {
    /// What an alias stands for on a provider.
    pub fn alias(&self, provider: &str, name: &str) -> Option<&str> {
        let own = self.provider_aliases.get(provider).and_then(|aliases| aliases.get(name));
        own.or_else(|| self.aliases.get(name)).map(String::as_str)
    }
}

/// Facts about one model; what is not given is left to the built-in list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CatalogueEntry {
    /// Tokens it can see.
    pub window: Option<u64>,
    /// Tokens it can write in one reply.
    pub max_output: Option<u64>,
    /// Dollars for a million tokens read.
    pub input_price: Option<f64>,
    /// Dollars for a million tokens written.
    pub output_price: Option<f64>,
    /// Dollars for a million tokens put into the cache.
    pub cache_write_price: Option<f64>,
    /// Dollars for a million tokens read from the cache.
    pub cache_read_price: Option<f64>,
}

/// Who is asked, and where work may happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The mode at the start.
    pub default_mode: Mode,
    /// Directories that may be used besides the project's.
    pub additional_directories: Vec<Utf8PathBuf>,
    /// What the mode `dontAsk` does with what no rule decides.
    pub dont_ask: DontAsk,
    /// How long a question waits; none is for ever.
    pub answer_timeout: Option<Duration>,
    /// Whether `bypassPermissions` is not available.
    pub disable_bypass: bool,
}

/// What the mode `dontAsk` does with what no rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontAsk {
    /// It goes ahead and is logged.
    #[default]
    Allow,
    Deny,
}

/// The value of a variable that settings add. Never printed: people copy keys into variables of any name.
#[derive(Clone, PartialEq, Eq)]
pub enum EnvValue {
    Plain(String),
    /// One whose name says that it is a secret.
    Secret(Secret),
}

impl std::fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "a text",
            Self::Secret(_) => "a secret",
        })
    }
}

impl EnvValue {
    /// The value itself, for the process that is given it.
    pub fn expose(&self) -> &str {
        match self {
            Self::Plain(text) => text,
            Self::Secret(secret) => secret.expose(),
        }
    }
}

/// Something that is kept as declared for the part of the program that understands it. It may hold secrets
/// (a server's variables, a hook's headers), so only its place is printed.
#[derive(Clone, PartialEq)]
pub struct Declared {
    pub value: Value,
    pub origin: Origin,
    /// The same, in which every part knows its place.
    pub(crate) node: Node,
    /// Whether the user's own answers have written it, although it stands in a file of the project.
    pub(crate) is_own: bool,
}

impl Declared {
    /// The same, written by the user's own answers or not.
    pub(crate) fn own(self, is_own: bool) -> Self {
        Self { is_own, ..self }
    }
}

impl std::fmt::Debug for Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "declared at {}", self.origin)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Handed to the kernel: any death of the process is survived.
    #[default]
    Process,
    /// On the disk: a power cut is survived too.
    Power,
}

/// When the conversation is shortened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compaction {
    /// Whether it happens by itself.
    pub enabled: bool,
    /// At which share of the window.
    pub threshold: f64,
}

/// Bounds on single calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// How long a command runs if it asks for nothing else.
    pub bash_timeout: Duration,
    /// How long a command may ask for.
    pub bash_max_timeout: Duration,
    /// Characters of a command's output that the model is shown.
    pub bash_output_chars: usize,
    /// Characters of a task's output that the model is shown.
    pub task_output_chars: usize,
    /// Tokens of one reply; none leaves it to the model's own limit.
    pub max_output_tokens: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    /// How deep they may start each other.
    pub max_depth: u32,
    /// How many run at once in a tree.
    pub max_running: Option<u32>,
    /// How many a tree may have in all.
    pub max_total: Option<u32>,
    /// Who decides whether one runs in the background.
    pub background: BackgroundChoice,
    /// Whether an agent without a type is a fork.
    pub fork_by_default: bool,
    /// The model of definitions that name none.
    pub default_model: Option<String>,
    /// The model of all, whatever calls and definitions say.
    pub model: Option<String>,
    /// Characters of a report that its parent is shown.
    pub result_budget: usize,
    /// Built-in definitions that are switched off.
    pub disabled: Vec<String>,
}

/// Checkouts of their own for agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worktree {
    /// Where they are made; none is in the state folder.
    pub location: Option<Utf8PathBuf>,
    /// The commit they begin with; none is what is checked out.
    pub base: Option<String>,
    /// Whether changes that are not committed are copied over.
    pub copy_dirty: bool,
}

/// Who decides whether a sub-agent runs in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundChoice {
    /// The model, call by call.
    #[default]
    Model,
    Always,
    Never,
}

impl Settings {
    pub(crate) fn from_tree(
        tree: &Node,
        sources: &Sources,
        paths: &Paths,
        environment: &Environment,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let read = Read { tree, sources };
        Self {
            model: read.text("model"),
            fallback_model: read.texts("fallbackModel"),
            agent: read.text("agent"),
            effort: read.text("effortLevel"),
            models: read.models(),
            permissions: read.permissions(paths, warnings),
            env: read.env(),
            env_pass: read.texts("envPass"),
            hooks: read.hooks(),
            disable_all_hooks: read.bool("disableAllHooks"),
            mcp_servers: read.servers(),
            disabled_mcp_servers: read.texts("disabledMcpjsonServers"),
            enabled_mcp_servers: read.texts("enabledMcpjsonServers"),
            enable_all_project_mcp_servers: read.bool("enableAllProjectMcpServers"),
            allowed_mcp_servers: read.allowed_servers(),
            denied_mcp_servers: read
                .tree
                .get("deniedMcpServers")
                .map_or(&[][..], Node::items)
                .iter()
                .map(Node::to_value)
                .collect(),
            mcp_startup_wait: Duration::from_millis(read.integer("mcp.startupWait").unwrap_or(900)),
            sandbox: read.sandbox(paths, warnings),
            secrets: sandbox::masked(tree, sources, environment, warnings),
            status_line: read.declared("statusLine"),
            theme: read.text("theme"),
            editor_mode: read.text("editorMode"),
            notifications: read.text("notifications"),
            reduced_motion: read.bool("prefersReducedMotion"),
            worktree: read.worktree(paths, warnings),
            enabled_plugins: read.declared("enabledPlugins"),
            instruction_excludes: read.texts("claudeMdExcludes"),
            skill_listing_chars: read
                .integer("skills.listingChars")
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX)),
            durability: match read.text("durability").as_deref() {
                Some("power") => Durability::Power,
                _ => Durability::Process,
            },
            compaction: Compaction {
                enabled: read.bool("compaction.enabled"),
                threshold: read.number("compaction.threshold").unwrap_or(0.8),
            },
            limits: read.limits(),
            budget: Limits {
                turns: read.small("budget.turns"),
                money: read.number("budget.usd").map(Money::from_dollars),
                tokens: read.integer("budget.tokens"),
                seconds: read.integer("budget.seconds"),
                spawns: read.small("budget.spawns"),
            },
            agents: read.agents(),
            background_tasks: read.bool("backgroundTasks"),
            coordinator: read.bool("coordinator"),
            print_background_wait: Duration::from_secs(read.integer("print.backgroundWait").unwrap_or(600)),
            redact_secrets: read.bool("redactSecrets"),
            cleanup_period_days: read.small("cleanupPeriodDays").unwrap_or(30),
        }
    }
}

/// Reads values out of the tree by the path of their key.
struct Read<'a> {
    tree: &'a Node,
    sources: &'a Sources,
}

impl Read<'_> {
    fn text(&self, path: &str) -> Option<String> {
        self.tree.at_path(path)?.text().map(str::to_owned)
    }

    fn texts(&self, path: &str) -> Vec<String> {
        let items = self.tree.at_path(path).map_or(&[][..], Node::items);
        items.iter().filter_map(Node::text).map(str::to_owned).collect()
    }

    fn bool(&self, path: &str) -> bool {
        self.tree.at_path(path).and_then(Node::bool).unwrap_or(false)
    }

    fn integer(&self, path: &str) -> Option<u64> {
        self.tree.at_path(path)?.integer()
    }

    fn small(&self, path: &str) -> Option<u32> {
        self.integer(path).map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn size(&self, path: &str, default: usize) -> usize {
        self.integer(path).and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
    }

    fn number(&self, path: &str) -> Option<f64> {
        self.tree.at_path(path)?.number()
    }

    fn declared(&self, path: &str) -> Option<Declared> {
        self.tree.at_path(path).map(|node| self.declaration(node))
    }

    fn declaration(&self, node: &Node) -> Declared {
        let (value, origin) = (node.to_value(), self.sources.origin(node));
        Declared { value, origin, node: node.clone(), is_own: false }
    }

    fn models(&self) -> Models {
        let mut models = Models::default();
        for member in self.tree.at_path("models.aliases").map_or(&[][..], Node::members) {
            match member.value.text() {
                Some(model) => drop(models.aliases.insert(member.key.clone(), model.to_owned())),
                None => drop(models.provider_aliases.insert(member.key.clone(), text_map(&member.value))),
            }
        }
        for member in self.tree.at_path("models.catalogue").map_or(&[][..], Node::members) {
            let integer = |key| member.value.get(key).and_then(Node::integer);
            let price = |key| member.value.at_path(key).and_then(Node::number);
            let entry = CatalogueEntry {
                window: integer("window"),
                max_output: integer("maxOutput"),
                input_price: price("prices.input"),
                output_price: price("prices.output"),
                cache_write_price: price("prices.cacheWrite"),
                cache_read_price: price("prices.cacheRead"),
            };
            models.catalogue.insert(member.key.clone(), entry);
        }
        models
    }

    fn permissions(&self, paths: &Paths, warnings: &mut Vec<Warning>) -> Permissions {
        let node = self.tree.at_path("permissions.defaultMode");
        let mut default_mode = node.and_then(mode_of).unwrap_or_default();
        let disable_bypass = self.tree.at_path("permissions.disableBypassPermissionsMode").is_some();
        if disable_bypass && default_mode == Mode::BypassPermissions {
            default_mode = Mode::Default;
            let text =
                "permissions.defaultMode: bypassPermissions is switched off here, default is used".to_owned();
            let origin = node.map(|node| self.sources.origin(node));
            warnings.push(Warning { kind: WarningKind::Ignored, origin, text });
        }
        // In the ecosystem's files the authors of `dontAsk` meant "deny".
        let foreign = node.is_some_and(|node| self.sources.get(node.source).family == Family::Shared);
        let dont_ask = match self.text("permissions.dontAsk").as_deref() {
            Some("deny") => DontAsk::Deny,
            None if foreign => DontAsk::Deny,
            _ => DontAsk::Allow,
        };
        Permissions {
            default_mode,
            additional_directories: self.directories(paths),
            dont_ask,
            answer_timeout: self.integer("permissions.answerTimeout").map(Duration::from_secs),
            disable_bypass,
        }
    }

    /// Relative ones start from the project's root in its files, and from the working directory elsewhere.
    fn directories(&self, paths: &Paths) -> Vec<Utf8PathBuf> {
        let items = self.tree.at_path("permissions.additionalDirectories").map_or(&[][..], Node::items);
        let mut directories: Vec<Utf8PathBuf> = Vec::new();
        for item in items {
            let Some(text) = item.text() else { continue };
            let in_repository = self.sources.layer_of(item).is_in_repository();
            let base: &Utf8Path = if in_repository { &paths.root } else { &paths.cwd };
            let directory = paths.expand(text, base);
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        directories
    }

    fn env(&self) -> BTreeMap<String, EnvValue> {
        let members = self.tree.get("env").map_or(&[][..], Node::members);
        let values = members.iter().filter_map(|member| {
            let value = match &member.value.kind {
                Kind::Text(text) => EnvValue::Plain(text.clone()),
                Kind::Secret(secret) => EnvValue::Secret(secret.clone()),
                _ => return None,
            };
            Some((member.key.clone(), value))
        });
        values.collect()
    }

    fn hooks(&self) -> Vec<Declared> {
        let managed_only = self
            .tree
            .get("allowManagedHooksOnly")
            .is_some_and(|node| node.bool() == Some(true) && self.sources.layer_of(node) == Layer::Managed);
        let items = self.tree.get("hooks").map_or(&[][..], Node::items);
        let wanted =
            items.iter().filter(|item| !managed_only || self.sources.layer_of(item) == Layer::Managed);
        wanted.map(|item| self.declaration(item)).collect()
    }

    fn servers(&self) -> BTreeMap<String, Declared> {
        let members = self.tree.get("mcpServers").map_or(&[][..], Node::members);
        members.iter().map(|member| (member.key.clone(), self.declaration(&member.value))).collect()
    }

    fn worktree(&self, paths: &Paths, warnings: &mut Vec<Warning>) -> Worktree {
        for key in ["symlinkDirectories", "sparsePaths", "bgIsolation"] {
            if let Some(node) = self.tree.at_path(&format!("worktree.{key}")) {
                let text = format!("`worktree.{key}` has no effect here");
                let origin = Some(self.sources.origin(node));
                warnings.push(Warning { kind: WarningKind::Ignored, origin, text });
            }
        }
        Worktree {
            location: self.text("worktree.location").map(|text| paths.expand(&text, &paths.cwd)),
            base: match self.text("worktree.baseRef").as_deref() {
                None | Some("head") => None,
                Some("fresh") => Some("refs/remotes/origin/HEAD".to_owned()),
                Some(name) => Some(name.to_owned()),
            },
            copy_dirty: self.bool("worktree.copyDirty"),
        }
    }

    fn sandbox(&self, paths: &Paths, warnings: &mut Vec<Warning>) -> SandboxSettings {
        for key in sandbox::WITHOUT_EFFECT {
            if let Some(node) = self.tree.at_path(&format!("sandbox.{key}")) {
                let text = format!("`sandbox.{key}` has no effect here");
                let origin = Some(self.sources.origin(node));
                warnings.push(Warning { kind: WarningKind::Ignored, origin, text });
            }
        }
        for key in ["allowWrite", "allowRead"] {
            let list = self.tree.at_path(&format!("sandbox.filesystem.{key}"));
            for node in list.map_or(&[][..], Node::items) {
                let text = node.text().unwrap_or_default();
                if text.strip_suffix("/**").unwrap_or(text).contains(['*', '?', '[']) {
                    let origin = Some(self.sources.origin(node));
                    let text = format!("`sandbox.filesystem.{key}` takes paths, and no patterns: {text}");
                    warnings.push(Warning { kind: WarningKind::Ignored, origin, text });
                }
            }
        }
        self.warn_of_absent(paths, warnings);
        let switch = |key: &str| self.tree.at_path(&format!("sandbox.{key}")).and_then(Node::bool);
        let places = |key: &str| -> Vec<Utf8PathBuf> {
            let texts = self.texts(&format!("sandbox.filesystem.{key}"));
            texts.iter().map(|text| sandbox::place(text, paths)).collect()
        };
        SandboxSettings {
            enabled: switch("enabled").unwrap_or(true) && switch("filesystem.disabled") != Some(true),
            required: switch("required").or_else(|| switch("failIfUnavailable")).unwrap_or(false),
            asks_less: switch("autoAllowBashIfSandboxed").unwrap_or(false),
            allows_outside: switch("allowUnsandboxedCommands").unwrap_or(true),
            excluded: self.texts("sandbox.excludedCommands"),
            writable: places("allowWrite"),
            readable: places("allowRead"),
            network_open: switch("network.open").unwrap_or(false),
            allowed_hosts: self.texts("sandbox.network.allowedDomains"),
            denied_hosts: self.texts("sandbox.network.deniedDomains"),
            unix_sockets: switch("network.allowAllUnixSockets").unwrap_or(false)
                || !self.texts("sandbox.network.allowUnixSockets").is_empty(),
        }
    }

    /// Reports what commands cannot write although the settings allow it, because it does not exist.
    fn warn_of_absent(&self, paths: &Paths, warnings: &mut Vec<Warning>) {
        let list = self.tree.at_path("sandbox.filesystem.allowWrite");
        for node in list.map_or(&[][..], Node::items) {
            let text = node.text().unwrap_or_default();
            let place = sandbox::place(text, paths);
            if !text.contains(['*', '?', '[']) && !place.exists() {
                let origin = Some(self.sources.origin(node));
                let text = format!(
                    "sandbox.filesystem.allowWrite: {text} does not exist, so commands cannot write it; make it first: mkdir -p {place}"
                );
                warnings.push(Warning { kind: WarningKind::Ignored, origin, text });
            }
        }
    }

    /// The lists of all layers. None of them widens another, and an empty one allows nothing.
    fn allowed_servers(&self) -> Vec<Vec<Value>> {
        let lists = self.tree.get("allowedMcpServers").map_or(&[][..], Node::items);
        lists.iter().map(|list| list.items().iter().map(Node::to_value).collect()).collect()
    }

    fn limits(&self) -> CallLimits {
        let timeout = Duration::from_millis(self.integer("limits.bashTimeoutMs").unwrap_or(120_000));
        let longest = Duration::from_millis(self.integer("limits.bashMaxTimeoutMs").unwrap_or(600_000));
        CallLimits {
            bash_timeout: timeout,
            // Whoever lengthens the ordinary time-out means commands to have it.
            bash_max_timeout: longest.max(timeout),
            bash_output_chars: self.size("limits.bashOutputChars", 30_000),
            task_output_chars: self.size("limits.taskOutputChars", 32_000),
            max_output_tokens: self.small("limits.maxOutputTokens"),
        }
    }

    fn agents(&self) -> Agents {
        Agents {
            max_depth: self.small("agents.maxDepth").unwrap_or(1),
            max_running: self.small("agents.maxRunning"),
            max_total: self.small("agents.maxTotal"),
            background: match self.text("agents.background").as_deref() {
                Some("always") => BackgroundChoice::Always,
                Some("never") => BackgroundChoice::Never,
                _ => BackgroundChoice::Model,
            },
            fork_by_default: self.bool("agents.forkByDefault"),
            default_model: self.text("agents.defaultModel"),
            model: self.text("agents.model"),
            result_budget: self.size("agents.resultBudget", 30_000),
            disabled: self.texts("agents.disabled"),
        }
    }
}

fn text_map(node: &Node) -> BTreeMap<String, String> {
    let members = node.members().iter();
    members.filter_map(|member| Some((member.key.clone(), member.value.text()?.to_owned()))).collect()
}
