//! The table of keys: one row for each key of a settings file, with its shape, what a repository may do with it, and
//! what it sets, in the words of `decurion config schema` and the guide's settings reference.

use super::FromProject::{self, ByMember, Narrows, NarrowsIf, Never, WhenTrusted};
use super::{Key, NOTIFICATIONS, Shape, THEMES};
use crate::jsonc::{Kind, Node};

const fn ours(name: &'static str, shape: Shape, project: FromProject, what: &'static str) -> Key {
    Key { name, shape, shared: false, project, what }
}

const fn shared(name: &'static str, shape: Shape, project: FromProject, what: &'static str) -> Key {
    Key { name, shape, shared: true, project, what }
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
#[rustfmt::skip]
pub(crate) static KEYS: &[Key] = &[
    // The model, and who serves it.
    shared("model", Shape::Text, WhenTrusted, "Model of the main agent: an alias, an id, `provider/model` or `scripted:FILE`."),
    shared("fallbackModel", Shape::TextOrTexts, WhenTrusted, "Models to switch to, in this order, while `model` is overloaded. They must belong to the same provider."),
    shared("agent", Shape::Text, WhenTrusted, "Agent definition that the main agent runs as."),
    shared("effortLevel", Shape::Text, WhenTrusted, "Reasoning effort: `low`, `medium`, `high`, `xhigh` or `max`."),
    ours("provider", Shape::Text, Never, "Provider of models whose name does not include one."),
    ours("providers", Shape::Each(&PROVIDER), Never, "Model providers by name."),
    ours("models", Shape::Object(MODELS), Never, "Aliases of models and facts about them."),
    // What may be done.
    shared("permissions", Shape::Object(PERMISSIONS), ByMember, "Permission rules and the permission mode."),
    shared("allowManagedPermissionRulesOnly", Shape::Bool, Never, "In the managed settings: ignore the allow rules of all other settings files."),
    shared("allowManagedHooksOnly", Shape::Bool, Never, "In the managed settings: ignore the hooks of all other settings files."),
    shared("sandbox", Shape::Object(SANDBOX), ByMember, "The sandbox of commands, hooks and MCP servers."),
    // A repository that names hosts for a secret would get the secret.
    ours("secrets", Shape::Each(&MASKED), Never, "Environment variables that commands can use without seeing their values."),
    // What else is run.
    shared("env", Shape::Variables, WhenTrusted, "Environment variables for commands, hooks and MCP servers."),
    ours("envPass", Shape::AddedTexts, WhenTrusted, "Environment variables to pass to commands although they look like secrets."),
    shared("hooks", Shape::Gathered, WhenTrusted, "Hooks by event."),
    // It would also turn off the hooks that protect the user.
    shared("disableAllHooks", Shape::Bool, WhenTrusted, "Run no hooks."),
    ours("mcpServers", Shape::Each(&Shape::Opaque), WhenTrusted, "MCP servers by name."),
    shared("enableAllProjectMcpServers", Shape::Bool, WhenTrusted, "Approve all servers of the project's `.mcp.json`."),
    shared("enabledMcpjsonServers", Shape::AddedTexts, WhenTrusted, "Servers of the project's `.mcp.json` to approve."),
    shared("disabledMcpjsonServers", Shape::AddedTexts, Narrows, "Servers of the project's `.mcp.json` to turn off."),
    // Both can only take servers away.
    shared("allowedMcpServers", Shape::MatchersEach, Narrows, "The only MCP servers that may start. If several settings files have this list, a server must be in each."),
    shared("deniedMcpServers", Shape::Matchers, Narrows, "MCP servers that may not start."),
    ours("mcp", Shape::Object(MCP), WhenTrusted, "How MCP servers start."),
    shared("enabledPlugins", Shape::Opaque, WhenTrusted, "Plugins by name: `true` enables, `false` disables."),
    shared("worktree", Shape::Object(WORKTREE), ByMember, "Git worktrees of agents and sessions."),
    // It could leave out the instructions that protect the user.
    shared("claudeMdExcludes", Shape::AddedTexts, WhenTrusted, "Glob patterns of instruction files (`AGENTS.md`, `CLAUDE.md`) to leave out."),
    ours("skills", Shape::Object(SKILLS), WhenTrusted, "How skills are listed for the model."),
    // How it looks at a terminal.
    shared("statusLine", Shape::Opaque, WhenTrusted, "Command that prints the status line: `{\"type\": \"command\", \"command\": \"…\"}`."),
    shared("theme", Shape::Look(THEMES), Never, "Colours of the terminal interface."),
    shared("editorMode", Shape::Look(&["normal", "vim"]), Never, "Keys of the prompt."),
    ours("notifications", Shape::Look(NOTIFICATIONS), Never, "How to notify you while the terminal is not focused."),
    shared("prefersReducedMotion", Shape::Bool, Never, "Show no spinner."),
    // How much.
    ours("limits", Shape::Object(LIMITS), WhenTrusted, "Limits of single calls."),
    shared("bashOutputMaxChars", Shape::Integer(1, 10_000_000), WhenTrusted, "Another name of `limits.bashOutputChars`."),
    shared("taskOutputMaxChars", Shape::Integer(1, 10_000_000), WhenTrusted, "Another name of `limits.taskOutputChars`."),
    ours("budget", Shape::Object(BUDGET), WhenTrusted, "Limits of a session."),
    ours("agents", Shape::Object(AGENTS), WhenTrusted, "Limits and defaults of sub-agents."),
    ours("coordinator", Shape::Bool, WhenTrusted, "Reserved; has no effect in this version."),
    ours("backgroundTasks", Shape::Bool, NarrowsIf(is_false), "Allow agents and commands to run in the background."),
    ours("print", Shape::Object(PRINT), WhenTrusted, "Non-interactive runs (`-p`)."),
    ours("compaction", Shape::Object(COMPACTION), WhenTrusted, "When a conversation is summarized to make room."),
    shared("autoCompactEnabled", Shape::Bool, WhenTrusted, "Another name of `compaction.enabled`."),
    // What is kept, and how.
    ours("durability", Shape::Word(&["process", "power"]), Never, "What a record survives before it counts as written: the death of the process, or a power cut as well."),
    ours("redactSecrets", Shape::Bool, NarrowsIf(is_true), "Replace keys in tool output before the model and the transcript see them."),
    shared("cleanupPeriodDays", Shape::Integer(0, 36_500), Never, "Reserved; has no effect in this version. Remove sessions with `decurion sessions rm`."),
];

#[rustfmt::skip]
const PERMISSIONS: &[Key] = &[
    shared("allow", Shape::Rules, WhenTrusted, "Rules for calls that run without a question."),
    shared("ask", Shape::Rules, Narrows, "Rules for calls that need an answer, even if an allow rule matches."),
    shared("deny", Shape::Rules, Narrows, "Rules for calls that never run."),
    shared("defaultMode", Shape::Mode, WhenTrusted, "Permission mode at the start. A repository can set a stricter mode without trust."),
    shared("additionalDirectories", Shape::AddedTexts, WhenTrusted, "Working directories besides the project."),
    ours("dontAsk", Shape::Word(&["allow", "deny"]), NarrowsIf(is_deny), "What the mode `dontAsk` does with a call that no rule decides. Default: `allow`; `deny` if the mode comes from a `.claude` file."),
    ours("answerTimeout", Shape::Integer(1, 31_536_000), WhenTrusted, "Seconds to wait for an answer. Default: no limit."),
    shared("disableBypassPermissionsMode", Shape::Word(&["disable"]), Narrows, "Turn off the mode `bypassPermissions`."),
];

#[rustfmt::skip]
const SANDBOX: &[Key] = &[
    shared("enabled", Shape::Bool, NarrowsIf(is_true), "Use the sandbox. Default: `true`."),
    ours("required", Shape::Bool, NarrowsIf(is_true), "Start only if the sandbox can use namespaces or bubblewrap. Default: `false`."),
    shared("failIfUnavailable", Shape::Bool, NarrowsIf(is_true), "Another name of `sandbox.required`."),
    shared("autoAllowBashIfSandboxed", Shape::Bool, NarrowsIf(is_false), "Run commands that the sandbox confines without a question. Default: `false`."),
    shared("allowUnsandboxedCommands", Shape::Bool, NarrowsIf(is_false), "Let an answer run a command outside of the sandbox. Default: `true`."),
    shared("excludedCommands", Shape::AddedTexts, WhenTrusted, "Programs, or the first words of commands, that run outside of the sandbox."),
    shared("filesystem", Shape::Object(SANDBOX_FILES), ByMember, "Files and folders that commands can reach."),
    shared("network", Shape::Object(SANDBOX_NETWORK), ByMember, "Hosts that commands can reach."),
    shared("credentials", Shape::Opaque, WhenTrusted, "Accepted for compatibility; has no effect."),
    shared("ignoreViolations", Shape::Opaque, WhenTrusted, "Accepted for compatibility; has no effect."),
    shared("enableWeakerNestedSandbox", Shape::Bool, NarrowsIf(is_false), "Accepted for compatibility; has no effect."),
    shared("bwrapPath", Shape::Text, Never, "Accepted for compatibility; has no effect."),
    shared("socatPath", Shape::Text, Never, "Accepted for compatibility; has no effect."),
];

#[rustfmt::skip]
const SANDBOX_FILES: &[Key] = &[
    shared("allowWrite", Shape::AddedTexts, WhenTrusted, "Paths that commands can write, besides the working directories. They must exist."),
    shared("denyWrite", Shape::AddedTexts, Narrows, "Paths that nothing can write; may have wildcards. Also holds for the file tools."),
    shared("denyRead", Shape::AddedTexts, Narrows, "Paths that nothing can read; may have wildcards. Also holds for the file tools."),
    shared("allowRead", Shape::AddedTexts, WhenTrusted, "Paths that commands can read although they are usually hidden."),
    shared("disabled", Shape::Bool, NarrowsIf(is_false), "Turn the sandbox off."),
];

#[rustfmt::skip]
const SANDBOX_NETWORK: &[Key] = &[
    ours("open", Shape::Bool, NarrowsIf(is_false), "Give commands the network of the machine, without the proxy. Default: `false`."),
    shared("allowedDomains", Shape::AddedTexts, WhenTrusted, "Hosts that commands can reach, such as `example.com`, `*.example.com`, `localhost:8080` or `10.0.0.0/8`."),
    shared("deniedDomains", Shape::AddedTexts, Narrows, "Hosts that commands and `WebFetch` never reach."),
    shared("strictAllowlist", Shape::Bool, NarrowsIf(is_true), "Accepted for compatibility; has no effect."),
    shared("allowUnixSockets", Shape::AddedTexts, WhenTrusted, "If not empty, the same as `allowAllUnixSockets`."),
    shared("allowAllUnixSockets", Shape::Bool, NarrowsIf(is_false), "Let commands, hooks and MCP servers open Unix sockets. Default: `false`."),
    shared("allowLocalBinding", Shape::Bool, NarrowsIf(is_false), "Accepted for compatibility; has no effect."),
    shared("httpProxyPort", Shape::Integer(0, 65_535), Never, "Accepted for compatibility; has no effect."),
    shared("socksProxyPort", Shape::Integer(0, 65_535), Never, "Accepted for compatibility; has no effect."),
];

/// A secret that commands can use and not read.
#[rustfmt::skip]
static MASKED: Shape = Shape::Object(&[
    ours("hosts", Shape::Texts, Never, "Hosts that the value of the variable may be sent to."),
]);

#[rustfmt::skip]
static PROVIDER: Shape = Shape::Object(&[
    ours("kind", Shape::Word(&["anthropic", "openai"]), Never, "Protocol: Anthropic Messages, or OpenAI Chat Completions."),
    ours("baseUrl", Shape::Url, Never, "Address of the server."),
    ours("apiKey", Shape::Secret, Never, "API key. Prefer `apiKeyEnv` or `apiKeyFile`: a settings file is easily shared."),
    ours("apiKeyEnv", Shape::Text, Never, "Environment variable that holds the API key."),
    ours("apiKeyFile", Shape::Text, Never, "File that holds the API key and nothing else."),
    ours("authToken", Shape::Secret, Never, "Bearer token, instead of an API key."),
    ours("authTokenEnv", Shape::Text, Never, "Environment variable that holds the bearer token."),
    ours("headers", Shape::Headers, Never, "HTTP headers to add to each request."),
    ours("betas", Shape::Texts, Never, "Beta features to ask for (Anthropic)."),
    ours("models", Shape::Texts, Never, "Models of this server; the first one is its default."),
    ours("maxTokensField", Shape::Word(&["max_tokens", "max_completion_tokens"]), Never, "Field that limits a reply, for servers that insist on one."),
    ours("timeouts", Shape::Object(TIMEOUTS), Never, "How long to wait for the server."),
]);

#[rustfmt::skip]
const TIMEOUTS: &[Key] = &[
    ours("connectMs", Shape::Integer(1, DAY_MS), Never, "Milliseconds to wait for a connection."),
    ours("firstEventMs", Shape::Integer(1, DAY_MS), Never, "Milliseconds to wait for the first event of a reply."),
    ours("idleMs", Shape::Integer(1, DAY_MS), Never, "Milliseconds to wait for the next sign of life; keep-alives count."),
    ours("contentMs", Shape::Integer(1, DAY_MS), Never, "Milliseconds to wait for the next content of a reply."),
    ours("turnMs", Shape::Integer(1, DAY_MS), Never, "Milliseconds that a reply may take."),
    ours("patienceMs", Shape::Integer(1, 30 * DAY_MS), Never, "Milliseconds to retry while the server refuses every request."),
];

#[rustfmt::skip]
const MODELS: &[Key] = &[
    ours("aliases", Shape::Aliases, Never, "Aliases: `{\"fast\": \"model-id\"}`, or by provider: `{\"local\": {\"fast\": \"model-id\"}}`."),
    ours("catalogue", Shape::Each(&CATALOGUE_ENTRY), Never, "Facts about models by id. What is left out comes from the built-in list."),
];

#[rustfmt::skip]
static CATALOGUE_ENTRY: Shape = Shape::Object(&[
    ours("window", Shape::Integer(1000, 1_000_000_000), Never, "Context window in tokens."),
    ours("maxOutput", Shape::Integer(1, 1_000_000_000), Never, "Longest reply in tokens."),
    ours("prices", Shape::Object(PRICES), Never, "Prices in dollars per million tokens."),
]);

#[rustfmt::skip]
const PRICES: &[Key] = &[
    ours("input", Shape::Number(0.0, 1e6), Never, "Input."),
    ours("output", Shape::Number(0.0, 1e6), Never, "Output."),
    ours("cacheWrite", Shape::Number(0.0, 1e6), Never, "Input that is written to the prompt cache."),
    ours("cacheRead", Shape::Number(0.0, 1e6), Never, "Input that is read from the prompt cache."),
];

#[rustfmt::skip]
const LIMITS: &[Key] = &[
    ours("bashTimeoutMs", Shape::Integer(1, DAY_MS), WhenTrusted, "Milliseconds that a command may run if the call sets no timeout."),
    ours("bashMaxTimeoutMs", Shape::Integer(1, DAY_MS), WhenTrusted, "Longest timeout in milliseconds that a call may set."),
    ours("bashOutputChars", Shape::Integer(1, 10_000_000), WhenTrusted, "Characters of a command's output to show the model."),
    ours("taskOutputChars", Shape::Integer(1, 10_000_000), WhenTrusted, "Characters of a background task's output to show the model."),
    ours("maxOutputTokens", Shape::Integer(1, 10_000_000), WhenTrusted, "Tokens of one reply. Default: the model's own limit."),
];

#[rustfmt::skip]
const BUDGET: &[Key] = &[
    ours("turns", Shape::Integer(1, 1_000_000), WhenTrusted, "Model turns per prompt."),
    ours("usd", Shape::Number(0.0, 1e9), WhenTrusted, "Dollars."),
    ours("tokens", Shape::Integer(1, MANY), WhenTrusted, "Tokens, input and output."),
    ours("seconds", Shape::Integer(1, 31_536_000), WhenTrusted, "Seconds per prompt."),
    ours("spawns", Shape::Integer(0, 1_000_000), WhenTrusted, "Sub-agents that may be started."),
];

#[rustfmt::skip]
const AGENTS: &[Key] = &[
    ours("maxDepth", Shape::Integer(0, 64), WhenTrusted, "How deep agents may start agents; 0 turns sub-agents off."),
    ours("maxRunning", Shape::Integer(1, 100_000), WhenTrusted, "Agents that may run at the same time. More wait for a slot."),
    ours("maxTotal", Shape::Integer(0, 1_000_000), WhenTrusted, "Agents that a session may start in all."),
    ours("background", Shape::Word(&["model", "always", "never"]), WhenTrusted, "Whether an agent runs in the background: as the model decides for each call, always, or never."),
    ours("forkByDefault", Shape::Bool, WhenTrusted, "A call without an agent type starts a fork instead of `general-purpose`."),
    ours("defaultModel", Shape::Text, WhenTrusted, "Model of agents whose definition and call name none. Default: the parent's model."),
    ours("model", Shape::Text, WhenTrusted, "Model of all sub-agents, whatever definitions and calls say."),
    ours("resultBudget", Shape::Integer(1, 10_000_000), WhenTrusted, "Characters of an agent's report to show its parent."),
    ours("disabled", Shape::AddedTexts, WhenTrusted, "Built-in agents to turn off; `fork` turns off forks."),
];

#[rustfmt::skip]
const WORKTREE: &[Key] = &[
    // Only the user may name a folder outside of the project that is written to.
    shared("location", Shape::Text, Never, "Folder for worktrees. Default: `worktrees` in the state folder."),
    shared("baseRef", Shape::Text, WhenTrusted, "Commit to start from: `head` (default), `fresh` (the remote's default branch), or a revision."),
    ours("copyDirty", Shape::Bool, WhenTrusted, "Copy uncommitted changes into new worktrees. Default: `false`."),
    shared("symlinkDirectories", Shape::AddedTexts, WhenTrusted, "Accepted for compatibility; has no effect."),
    shared("sparsePaths", Shape::AddedTexts, WhenTrusted, "Accepted for compatibility; has no effect."),
    shared("bgIsolation", Shape::Text, WhenTrusted, "Accepted for compatibility; has no effect."),
];

#[rustfmt::skip]
const SKILLS: &[Key] = &[
    ours("listingChars", Shape::Integer(0, 1_000_000), WhenTrusted, "Characters of the list of skills in the prompt. Default: depends on the context window."),
];

#[rustfmt::skip]
const PRINT: &[Key] = &[
    ours("backgroundWait", Shape::Integer(0, 604_800), WhenTrusted, "Seconds to wait at the end for commands in the background."),
];

#[rustfmt::skip]
const MCP: &[Key] = &[
    ours("startupWait", Shape::Integer(0, 600_000), WhenTrusted, "Milliseconds that the first prompt waits for servers that were never seen before. Default: 900."),
];

#[rustfmt::skip]
const COMPACTION: &[Key] = &[
    ours("enabled", Shape::Bool, WhenTrusted, "Summarize automatically."),
    ours("threshold", Shape::Number(0.1, 0.99), WhenTrusted, "Share of the context window at which to summarize."),
];
