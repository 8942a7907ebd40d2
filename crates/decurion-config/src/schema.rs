//! Every key there is, in one table: what it takes, whether files of the ecosystem (`.claude`) share it, and
//! what a repository may do with it. Checking, layering, trust and listings all read this table, so a key
//! that is added here is known everywhere, and one that says nothing about repositories cannot exist.

use crate::jsonc::{Kind, Node};

pub(crate) struct Key {
    pub name: &'static str,
    pub shape: Shape,
    /// Also read from `.claude` files.
    pub shared: bool,
    pub project: FromProject,
}

/// What happens to a key in a file of a repository (project and local layer).
#[derive(Clone, Copy)]
pub(crate) enum FromProject {
    /// It can only narrow: always in effect.
    Narrows,
    /// In effect at once if it narrows, else only when the folder is trusted.
    NarrowsIf(fn(&Node) -> bool),
    /// In effect only when the folder is trusted.
    WhenTrusted,
    /// Decided by its members.
    ByMember,
    /// Never taken from a repository, trusted or not: where data goes, what is paid, what is kept.
    Never,
}

/// What a key takes.
pub(crate) enum Shape {
    Bool,
    Text,
    /// A text that is never shown.
    Secret,
    Url,
    Word(&'static [&'static str]),
    Mode,
    /// How a terminal looks or feels: one of these words. The ecosystem's files may have others.
    Look(&'static [&'static str]),
    /// A whole number between these, both included.
    Integer(u64, u64),
    /// A number between these, both included.
    Number(f64, f64),
    /// A list of texts; a higher layer replaces it.
    Texts,
    /// A list of texts; layers add to it.
    AddedTexts,
    /// One text or a list of them; a higher layer replaces it.
    TextOrTexts,
    /// A list of permission rules; layers add to it.
    Rules,
    /// A list of MCP servers by name, command or address; layers add to it.
    Matchers,
    /// The same, one list per source: each of them must be met.
    MatchersEach,
    /// Environment variables: names to texts.
    Variables,
    /// HTTP headers: names to texts that are never shown.
    Headers,
    /// Aliases of models: name to model, or provider to name to model.
    Aliases,
    /// An object of these keys.
    Object(&'static [Key]),
    /// An object of any keys, each with this shape.
    Each(&'static Shape),
    /// An object that is kept as it is; a higher layer replaces it.
    Opaque,
    /// An object that is kept as it is, one per source.
    Gathered,
}

impl Shape {
    /// What to say was expected.
    pub(crate) fn expected(&self) -> String {
        match self {
            Self::Bool => "true or false".to_owned(),
            Self::Text | Self::Secret => "a non-empty string".to_owned(),
            Self::Url => "an http or https address without user, query or fragment".to_owned(),
            Self::Word(words) | Self::Look(words) => format!("one of {}", words.join(", ")),
            Self::Mode => format!("one of {}", MODES.join(", ")),
            Self::Integer(least, most) => format!("a whole number from {least} to {most}"),
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Texts | Self::AddedTexts => "an array of strings".to_owned(),
            Self::TextOrTexts => "a string or an array of strings".to_owned(),
            Self::Rules => "an array of rules".to_owned(),
            Self::Matchers | Self::MatchersEach => {
                "an array of names, or of {serverName}, {serverCommand} or {serverUrl}".to_owned()
            }
            Self::Variables => "an object of variable names and strings".to_owned(),
            Self::Headers => "an object of header names and strings".to_owned(),
            Self::Aliases => "an object of names and models".to_owned(),
            Self::Object(_) | Self::Each(_) | Self::Opaque | Self::Gathered => "an object".to_owned(),
        }
    }

    /// The value that a text may mean which is none of this shape, as it is written.
    pub(crate) fn meant(&self, text: &str) -> Option<String> {
        let near = |words: &[&'static str]| {
            let near = decurion_protocol::nearest(text, words.iter().copied()).into_iter().next()?;
            Some(format!("{near:?}"))
        };
        match self {
            Self::Word(words) | Self::Look(words) => near(words),
            Self::Mode => near(&MODES),
            Self::Bool => ["true", "false"].contains(&text).then(|| text.to_owned()),
            Self::Integer(..) | Self::Number(..) => text.parse::<f64>().is_ok().then(|| text.to_owned()),
            _ => None,
        }
    }
}

const MODES: [&str; 6] = ["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk", "bubble"];

/// The themes: by the terminal's background, on a dark or a light one (with the ecosystem's variants), or no colours.
const THEMES: &[&str] = &[
    "auto",
    "dark",
    "light",
    "dark-ansi",
    "light-ansi",
    "dark-high-contrast",
    "light-high-contrast",
    "dark-daltonized",
    "light-daltonized",
    "none",
];

/// How a person is told who looks elsewhere: as the terminal is known to do it, not at all, by its bell, or so.
const NOTIFICATIONS: &[&str] = &["auto", "off", "bell", "osc9", "osc777", "osc99"];

/// Finds a key in a table.
pub(crate) fn find<'a>(keys: &'a [Key], name: &str) -> Option<&'a Key> {
    keys.iter().find(|key| key.name == name)
}

/// A key that a misspelt one may mean.
#[derive(Clone, Copy)]
pub(crate) struct Meant {
    /// The key, below the object at hand.
    pub path: &'static str,
    /// Whether it restricts something, so that the restriction would not hold.
    pub restricts: bool,
}

/// The key of a table that a word may mean which is none of them; in files that other programs `share`, one of those that
/// such files have.
pub(crate) fn meant(keys: &'static [Key], word: &str, shared: bool) -> Option<Meant> {
    let known = || keys.iter().filter(|key| key.shared || !shared);
    let is_root = std::ptr::eq(keys, KEYS);
    // Rules that stand one level too high.
    let above = RULES.iter().find(|path| is_root && !shared && path.rsplit('.').next() == Some(word));
    if let Some(path) = above {
        return Some(Meant { path, restricts: !path.ends_with("allow") });
    }
    if keys.iter().any(|key| key.name == word) {
        return None;
    }
    let near = decurion_protocol::nearest(word, known().map(|key| key.name)).into_iter().next()?;
    let key = find(keys, near)?;
    Some(Meant { path: key.name, restricts: key.restricts() })
}

/// The lists of rules.
const RULES: [&str; 3] = ["permissions.allow", "permissions.ask", "permissions.deny"];
/// Keys that may restrict something, whatever a repository may do with them.
const RESTRICTING: [&str; 5] =
    ["allowManagedHooksOnly", "allowManagedPermissionRulesOnly", "defaultMode", "hooks", "secrets"];

impl Key {
    /// Whether it, or one of its members, takes something away.
    fn restricts(&self) -> bool {
        let by_member = |members: &[Key]| members.iter().any(Key::restricts);
        match (&self.project, &self.shape) {
            (Narrows | NarrowsIf(_), _) => true,
            (ByMember, Shape::Object(members)) => by_member(members),
            _ => RESTRICTING.contains(&self.name),
        }
    }
}

use FromProject::{ByMember, Narrows, NarrowsIf, Never, WhenTrusted};

const fn ours(name: &'static str, shape: Shape, project: FromProject) -> Key {
    Key { name, shape, shared: false, project }
}

const fn shared(name: &'static str, shape: Shape, project: FromProject) -> Key {
    Key { name, shape, shared: true, project }
}

fn is_true(node: &Node) -> bool {
    node.kind == Kind::Bool(true)
}

fn is_false(node: &Node) -> bool {
    node.kind == Kind::Bool(false)
}

fn is_deny(node: &Node) -> bool {
    node.text() == Some("deny")
}

const DAY_MS: u64 = 86_400_000;
const MANY: u64 = 1_000_000_000_000;

/// The keys of a settings file.
pub(crate) static KEYS: &[Key] = &[
    // Which model, and who serves it.
    shared("model", Shape::Text, WhenTrusted),
    shared("fallbackModel", Shape::TextOrTexts, WhenTrusted),
    shared("agent", Shape::Text, WhenTrusted),
    shared("effortLevel", Shape::Text, WhenTrusted),
    ours("provider", Shape::Text, Never),
    ours("providers", Shape::Each(&PROVIDER), Never),
    ours("models", Shape::Object(MODELS), Never),
    // What may be done.
    shared("permissions", Shape::Object(PERMISSIONS), ByMember),
    shared("allowManagedPermissionRulesOnly", Shape::Bool, Never),
    shared("allowManagedHooksOnly", Shape::Bool, Never),
    shared("sandbox", Shape::Object(SANDBOX), ByMember),
    // A repository that names hosts for a secret would get the secret.
    ours("secrets", Shape::Each(&MASKED), Never),
    // What is run besides.
    shared("env", Shape::Variables, WhenTrusted),
    ours("envPass", Shape::AddedTexts, WhenTrusted),
    shared("hooks", Shape::Gathered, WhenTrusted),
    // It would also switch off the hooks by which a user guards himself.
    shared("disableAllHooks", Shape::Bool, WhenTrusted),
    ours("mcpServers", Shape::Each(&Shape::Opaque), WhenTrusted),
    shared("enableAllProjectMcpServers", Shape::Bool, WhenTrusted),
    shared("enabledMcpjsonServers", Shape::AddedTexts, WhenTrusted),
    shared("disabledMcpjsonServers", Shape::AddedTexts, Narrows),
    // Both only ever take servers away.
    shared("allowedMcpServers", Shape::MatchersEach, Narrows),
    shared("deniedMcpServers", Shape::Matchers, Narrows),
    ours("mcp", Shape::Object(MCP), WhenTrusted),
    shared("enabledPlugins", Shape::Opaque, WhenTrusted),
    shared("worktree", Shape::Object(WORKTREE), ByMember),
    // It could leave out the instructions by which a user guards himself.
    shared("claudeMdExcludes", Shape::AddedTexts, WhenTrusted),
    ours("skills", Shape::Object(SKILLS), WhenTrusted),
    // How it looks at a terminal.
    shared("statusLine", Shape::Opaque, WhenTrusted),
    shared("theme", Shape::Look(THEMES), Never),
    shared("editorMode", Shape::Look(&["normal", "vim"]), Never),
    ours("notifications", Shape::Look(NOTIFICATIONS), Never),
    shared("prefersReducedMotion", Shape::Bool, Never),
    // How much.
    ours("limits", Shape::Object(LIMITS), WhenTrusted),
    shared("bashOutputMaxChars", Shape::Integer(1, 10_000_000), WhenTrusted),
    shared("taskOutputMaxChars", Shape::Integer(1, 10_000_000), WhenTrusted),
    ours("budget", Shape::Object(BUDGET), WhenTrusted),
    ours("agents", Shape::Object(AGENTS), WhenTrusted),
    ours("coordinator", Shape::Bool, WhenTrusted),
    ours("backgroundTasks", Shape::Bool, NarrowsIf(is_false)),
    ours("print", Shape::Object(PRINT), WhenTrusted),
    ours("compaction", Shape::Object(COMPACTION), WhenTrusted),
    shared("autoCompactEnabled", Shape::Bool, WhenTrusted),
    // What is kept, and how.
    ours("durability", Shape::Word(&["process", "power"]), Never),
    ours("redactSecrets", Shape::Bool, NarrowsIf(is_true)),
    shared("cleanupPeriodDays", Shape::Integer(0, 36_500), Never),
];

/// Keys of the ecosystem that say the same as one of ours.
pub(crate) const MOVED: &[(&str, &str)] = &[
    ("autoCompactEnabled", "compaction.enabled"),
    ("bashOutputMaxChars", "limits.bashOutputChars"),
    ("taskOutputMaxChars", "limits.taskOutputChars"),
];

const PERMISSIONS: &[Key] = &[
    shared("allow", Shape::Rules, WhenTrusted),
    shared("ask", Shape::Rules, Narrows),
    shared("deny", Shape::Rules, Narrows),
    shared("defaultMode", Shape::Mode, WhenTrusted),
    shared("additionalDirectories", Shape::AddedTexts, WhenTrusted),
    ours("dontAsk", Shape::Word(&["allow", "deny"]), NarrowsIf(is_deny)),
    ours("answerTimeout", Shape::Integer(1, 31_536_000), WhenTrusted),
    shared("disableBypassPermissionsMode", Shape::Word(&["disable"]), Narrows),
];

const SANDBOX: &[Key] = &[
    shared("enabled", Shape::Bool, NarrowsIf(is_true)),
    ours("required", Shape::Bool, NarrowsIf(is_true)),
    shared("failIfUnavailable", Shape::Bool, NarrowsIf(is_true)),
    shared("autoAllowBashIfSandboxed", Shape::Bool, NarrowsIf(is_false)),
    shared("allowUnsandboxedCommands", Shape::Bool, NarrowsIf(is_false)),
    shared("excludedCommands", Shape::AddedTexts, WhenTrusted),
    shared(
        "filesystem",
        Shape::Object(&[
            shared("allowWrite", Shape::AddedTexts, WhenTrusted),
            shared("denyWrite", Shape::AddedTexts, Narrows),
            shared("denyRead", Shape::AddedTexts, Narrows),
            shared("allowRead", Shape::AddedTexts, WhenTrusted),
            shared("disabled", Shape::Bool, NarrowsIf(is_false)),
        ]),
        ByMember,
    ),
    shared(
        "network",
        Shape::Object(&[
            ours("open", Shape::Bool, NarrowsIf(is_false)),
            shared("allowedDomains", Shape::AddedTexts, WhenTrusted),
            shared("deniedDomains", Shape::AddedTexts, Narrows),
            shared("strictAllowlist", Shape::Bool, NarrowsIf(is_true)),
            shared("allowUnixSockets", Shape::AddedTexts, WhenTrusted),
            shared("allowAllUnixSockets", Shape::Bool, NarrowsIf(is_false)),
            shared("allowLocalBinding", Shape::Bool, NarrowsIf(is_false)),
            shared("httpProxyPort", Shape::Integer(0, 65_535), Never),
            shared("socksProxyPort", Shape::Integer(0, 65_535), Never),
        ]),
        ByMember,
    ),
    shared("credentials", Shape::Opaque, WhenTrusted),
    shared("ignoreViolations", Shape::Opaque, WhenTrusted),
    shared("enableWeakerNestedSandbox", Shape::Bool, NarrowsIf(is_false)),
    shared("bwrapPath", Shape::Text, Never),
    shared("socatPath", Shape::Text, Never),
];

/// A secret that commands can use and not read.
static MASKED: Shape = Shape::Object(&[ours("hosts", Shape::Texts, Never)]);

static PROVIDER: Shape = Shape::Object(&[
    ours("kind", Shape::Word(&["anthropic", "openai"]), Never),
    ours("baseUrl", Shape::Url, Never),
    ours("apiKey", Shape::Secret, Never),
    ours("apiKeyEnv", Shape::Text, Never),
    ours("apiKeyFile", Shape::Text, Never),
    ours("authToken", Shape::Secret, Never),
    ours("authTokenEnv", Shape::Text, Never),
    ours("headers", Shape::Headers, Never),
    ours("betas", Shape::Texts, Never),
    ours("models", Shape::Texts, Never),
    ours("maxTokensField", Shape::Word(&["max_tokens", "max_completion_tokens"]), Never),
    ours(
        "timeouts",
        Shape::Object(&[
            ours("connectMs", Shape::Integer(1, DAY_MS), Never),
            ours("firstEventMs", Shape::Integer(1, DAY_MS), Never),
            ours("idleMs", Shape::Integer(1, DAY_MS), Never),
            ours("contentMs", Shape::Integer(1, DAY_MS), Never),
            ours("turnMs", Shape::Integer(1, DAY_MS), Never),
            ours("patienceMs", Shape::Integer(1, 30 * DAY_MS), Never),
        ]),
        Never,
    ),
]);

const MODELS: &[Key] =
    &[ours("aliases", Shape::Aliases, Never), ours("catalogue", Shape::Each(&CATALOGUE_ENTRY), Never)];

static CATALOGUE_ENTRY: Shape = Shape::Object(&[
    ours("window", Shape::Integer(1000, 1_000_000_000), Never),
    ours("maxOutput", Shape::Integer(1, 1_000_000_000), Never),
    ours(
        "prices",
        Shape::Object(&[
            ours("input", Shape::Number(0.0, 1e6), Never),
            ours("output", Shape::Number(0.0, 1e6), Never),
            ours("cacheWrite", Shape::Number(0.0, 1e6), Never),
            ours("cacheRead", Shape::Number(0.0, 1e6), Never),
        ]),
        Never,
    ),
]);

const LIMITS: &[Key] = &[
    ours("bashTimeoutMs", Shape::Integer(1, DAY_MS), WhenTrusted),
    ours("bashMaxTimeoutMs", Shape::Integer(1, DAY_MS), WhenTrusted),
    ours("bashOutputChars", Shape::Integer(1, 10_000_000), WhenTrusted),
    ours("taskOutputChars", Shape::Integer(1, 10_000_000), WhenTrusted),
    ours("maxOutputTokens", Shape::Integer(1, 10_000_000), WhenTrusted),
];

const BUDGET: &[Key] = &[
    ours("turns", Shape::Integer(1, 1_000_000), WhenTrusted),
    ours("usd", Shape::Number(0.0, 1e9), WhenTrusted),
    ours("tokens", Shape::Integer(1, MANY), WhenTrusted),
    ours("seconds", Shape::Integer(1, 31_536_000), WhenTrusted),
    ours("spawns", Shape::Integer(0, 1_000_000), WhenTrusted),
];

const AGENTS: &[Key] = &[
    ours("maxDepth", Shape::Integer(0, 64), WhenTrusted),
    ours("maxRunning", Shape::Integer(1, 100_000), WhenTrusted),
    ours("maxTotal", Shape::Integer(0, 1_000_000), WhenTrusted),
    ours("background", Shape::Word(&["model", "always", "never"]), WhenTrusted),
    ours("forkByDefault", Shape::Bool, WhenTrusted),
    ours("defaultModel", Shape::Text, WhenTrusted),
    // The one model for every sub-agent, whatever calls and definitions say.
    ours("model", Shape::Text, WhenTrusted),
    ours("resultBudget", Shape::Integer(1, 10_000_000), WhenTrusted),
    ours("disabled", Shape::AddedTexts, WhenTrusted),
];

const WORKTREE: &[Key] = &[
    // A folder outside of the project that is written to is the user's to name.
    shared("location", Shape::Text, Never),
    shared("baseRef", Shape::Text, WhenTrusted),
    ours("copyDirty", Shape::Bool, WhenTrusted),
    shared("symlinkDirectories", Shape::AddedTexts, WhenTrusted),
    shared("sparsePaths", Shape::AddedTexts, WhenTrusted),
    shared("bgIsolation", Shape::Text, WhenTrusted),
];
const SKILLS: &[Key] = &[ours("listingChars", Shape::Integer(0, 1_000_000), WhenTrusted)];

const PRINT: &[Key] = &[ours("backgroundWait", Shape::Integer(0, 604_800), WhenTrusted)];

const MCP: &[Key] = &[ours("startupWait", Shape::Integer(0, 600_000), WhenTrusted)];

const COMPACTION: &[Key] =
    &[ours("enabled", Shape::Bool, WhenTrusted), ours("threshold", Shape::Number(0.1, 0.99), WhenTrusted)];

/// The lowest layer, as a settings file.
pub(crate) const DEFAULTS: &str = include_str!("defaults.jsonc");
