//! The command line as typed. Takes argv, gives [`Args`]; nothing is decided or looked up here.

use std::ffi::OsString;

use camino::Utf8PathBuf;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as ClapArgs, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::report::Failure;

/// Run a coding agent: at a terminal, or on one prompt with -p.
#[derive(Debug, Parser)]
#[command(
    name = "decurion",
    version,
    about = "A coding agent for your terminal that never loses work",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  decurion                                        a conversation in this terminal (? shows the keys)
  decurion attach                                 return to a session in the background
  decurion demo                                   see it work, offline, on a small repository
  decurion -p \"explain src/main.rs\"               answer and exit
  git diff | decurion -p \"review this\"            prompt and standard input together
  decurion -p \"fix the test\" --allowedTools \"Edit,Bash(cargo test:*)\"
  decurion -p -c \"now add a test\"                 continue the last session of this folder
  decurion -p --output-format stream-json --verbose \"…\" one JSON object per event

Exit codes: 0 completed, 1 failed, 2 usage or configuration, 3 denied, 4 out of budget or turns,
5 stalled, 6 killed, 7 lost, 129, 130 and 143 on signals."
)]
pub struct Args {
    /// The prompt. Standard input, if piped, is put before it.
    pub prompt: Option<String>,

    #[command(flatten)]
    pub run: RunArgs,

    #[command(subcommand)]
    pub command: Option<SubCommand>,
}

/// How a run is started and shown.
#[derive(Clone, Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools)] // each is one flag of the command line
pub struct RunArgs {
    /// Answer the prompt, print the answer and exit.
    #[arg(short, long)]
    pub print: bool,

    /// Output format of -p.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output_format: OutputFormat,

    /// Input format.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub input_format: InputFormat,

    /// With stream-json: include partial messages as they arrive.
    #[arg(long)]
    pub include_partial_messages: bool,

    /// With stream-json: include the events of all hooks, not only SessionStart.
    #[arg(long)]
    pub include_hook_events: bool,

    /// With --input-format stream-json: echo each user message when it is accepted.
    #[arg(long)]
    pub replay_user_messages: bool,

    /// With stream-json: include text from foreground sub-agents, not just their tool calls.
    #[arg(long)]
    pub forward_subagent_text: bool,

    /// Verbose logging on stderr (required with stream-json for compatibility).
    #[arg(long)]
    pub verbose: bool,

    /// Append a debug log to this file, one JSON line per event.
    #[arg(long, value_name = "FILE")]
    pub debug_file: Option<Utf8PathBuf>,

    /// Model to use: an alias, an id, provider/model, or scripted:FILE.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,

    /// Model to fall back to if the primary is overloaded.
    #[arg(long, value_name = "MODEL")]
    pub fallback_model: Option<String>,

    /// Reasoning effort: low, medium, high, xhigh or max.
    #[arg(long, value_name = "LEVEL")]
    pub effort: Option<String>,

    /// Extended thinking: adaptive (the model decides), enabled or disabled.
    #[arg(long, value_name = "KIND")]
    pub thinking: Option<String>,

    /// Thinking budget in tokens; 0 turns thinking off.
    #[arg(long, value_name = "N")]
    pub max_thinking_tokens: Option<u32>,

    /// How thinking is shown: summarized or omitted.
    #[arg(long, value_name = "KIND")]
    pub thinking_display: Option<String>,

    /// Permission mode: default, acceptEdits, plan, bypassPermissions or dontAsk.
    #[arg(long, value_name = "MODE")]
    pub permission_mode: Option<String>,

    /// What answers permission requests instead of a person: stdio (the host program), or a tool of an MCP server,
    /// mcp__SERVER__TOOL.
    #[arg(long, value_name = "TOOL")]
    pub permission_prompt_tool: Option<String>,

    /// With --input-format stream-json: who answers permission questions, the host program or no one (host, none).
    #[arg(long, value_name = "WHOM")]
    pub permission_prompts: Option<PermissionPrompts>,

    /// Skip all permission checks except deny rules. The sandbox stays on.
    #[arg(long)]
    pub dangerously_skip_permissions: bool,

    /// Rules for calls that run without asking, e.g. "Edit,Bash(git log:*)"; repeatable.
    #[arg(id = "allowedTools", long = "allowedTools", alias = "allowed-tools", value_name = "RULES")]
    pub allowed_tools: Vec<String>,

    /// Rules for calls that are always denied; repeatable.
    #[arg(
        id = "disallowedTools",
        long = "disallowedTools",
        alias = "disallowed-tools",
        value_name = "RULES"
    )]
    pub disallowed_tools: Vec<String>,

    /// Give the agent only these tools, e.g. "Read,Bash"; "" for none, "default" for all.
    #[arg(long, value_name = "TOOLS")]
    pub tools: Option<String>,

    /// Stop after this many model turns.
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,

    /// Spending limit of the session in dollars, including its earlier runs.
    #[arg(long, value_name = "DOLLARS")]
    pub max_budget_usd: Option<f64>,

    /// Replace the built-in system prompt.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "system_prompt_file")]
    pub system_prompt: Option<String>,

    /// The same from a file.
    #[arg(long, value_name = "FILE")]
    pub system_prompt_file: Option<Utf8PathBuf>,

    /// Append to the system prompt.
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "append_system_prompt_file"
    )]
    pub append_system_prompt: Option<String>,

    /// The same from a file.
    #[arg(long, value_name = "FILE")]
    pub append_system_prompt_file: Option<Utf8PathBuf>,

    /// Additional working directory; repeatable.
    #[arg(long, value_name = "DIR")]
    pub add_dir: Vec<Utf8PathBuf>,

    /// Work in a new git worktree (--worktree=NAME names it); removed at the end if nothing changed.
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with_all = ["continue", "resume"]
    )]
    pub worktree: Option<String>,

    /// Settings for this run: a file, or inline JSON.
    #[arg(long, value_name = "FILE-OR-JSON", allow_hyphen_values = true)]
    pub settings: Option<String>,

    /// Settings files to read: user,project,local.
    #[arg(long, value_name = "SOURCES")]
    pub setting_sources: Option<String>,

    /// MCP servers for this run: a file, or JSON like {"mcpServers": {"git": {"command": "mcp-server-git"}}};
    /// repeatable.
    #[arg(long, value_name = "FILE-OR-JSON", allow_hyphen_values = true)]
    pub mcp_config: Vec<String>,

    /// Use only the MCP servers of --mcp-config.
    #[arg(long)]
    pub strict_mcp_config: bool,

    /// UUID for the new session.
    #[arg(long, value_name = "UUID")]
    pub session_id: Option<String>,

    /// Resume the last session in this folder. Prompts that were still queued are answered first.
    #[arg(short, long, conflicts_with = "resume")]
    pub r#continue: bool,

    /// Resume this session. Prompts that were still queued are answered first.
    #[arg(short, long, value_name = "ID", num_args = 0..=1, default_missing_value = "")]
    pub resume: Option<String>,

    /// With --continue or --resume: resume at this message, by its UUID. Later messages stay in the transcript but are
    /// dropped from the conversation.
    #[arg(long, value_name = "UUID")]
    pub resume_session_at: Option<String>,

    /// With --resume-session-at: the UUID of the one prompt that may be dropped; fails if more or less would be.
    #[arg(long, value_name = "UUID", requires = "resume_session_at")]
    pub resume_drops_turn: Option<String>,

    /// With --continue or --resume: fork, i.e. start a new session from that one's conversation.
    #[arg(long)]
    pub fork_session: bool,

    /// Keep no transcript and no audit log.
    #[arg(long)]
    pub no_session_persistence: bool,

    /// Fail instead of running without a transcript if the state folder is read-only.
    #[arg(long, conflicts_with = "no_session_persistence")]
    pub require_persistence: bool,

    /// Run the main agent as this agent definition.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// Agents for this run: {"name": {"description": "…", "prompt": "…", "tools": […], "model": "…"}}.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub agents: Option<String>,

    /// Load the plugin in this folder for this run; repeatable.
    #[arg(long, value_name = "DIR")]
    pub plugin_dir: Vec<Utf8PathBuf>,

    /// JSON Schema for the answer: inline JSON, or a file.
    #[arg(long, value_name = "SCHEMA", allow_hyphen_values = true)]
    pub json_schema: Option<String>,

    /// At a terminal: plain sequential output, no animation or redrawing, for screen readers and dumb terminals.
    #[arg(long, conflicts_with = "print")]
    pub plain: bool,

    /// The process that waits at the terminal for this one.
    #[arg(long, hide = true, value_name = "PID")]
    pub kept_by: Option<i32>,

    /// A fault on purpose: a point of the terminal's code and which time it is passed.
    #[arg(long, hide = true, value_name = "POINT:TIME")]
    pub panic_at: Option<String>,

    /// Trust this folder's settings for this run (for CI).
    #[arg(long)]
    pub trust_folder: bool,

    #[command(flatten)]
    pub sdk: SdkArgs,
}

/// What the Agent SDKs pass besides. Each is taken, so that programs written for them start; what has no meaning here
/// says so.
#[derive(Clone, Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools)] // each is one flag of the command line
pub struct SdkArgs {
    /// Plugins whose servers are left alone.
    #[arg(long, hide = true, value_name = "DIR")]
    pub plugin_dir_no_mcp: Vec<Utf8PathBuf>,

    /// The first line is waited for anyway.
    #[arg(long, hide = true)]
    pub await_initialize: bool,

    /// The mode bypassPermissions can be chosen later, also where the session is not started with it.
    #[arg(long, hide = true)]
    pub allow_dangerously_skip_permissions: bool,

    #[arg(long, hide = true, value_name = "N")]
    pub task_budget: Option<u64>,

    #[arg(long, hide = true, value_name = "NAMES")]
    pub betas: Option<String>,

    #[arg(long, hide = true)]
    pub session_mirror: bool,

    #[arg(long, hide = true, value_name = "JSON")]
    pub managed_settings: Option<String>,

    #[arg(long, hide = true)]
    pub managed_settings_in_initialize: bool,

    #[arg(long, hide = true, value_name = "DIR")]
    pub project_config_root: Option<Utf8PathBuf>,

    #[arg(long, hide = true, value_name = "NAME")]
    pub channels: Vec<String>,

    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub debug: Option<String>,

    #[arg(long, hide = true)]
    pub debug_to_stderr: bool,
}

impl RunArgs {
    /// Whether the session is one that there was before.
    pub fn resumes(&self) -> bool {
        self.resume.is_some() || self.r#continue
    }
}

impl SdkArgs {
    /// A requested lock that does not exist in this version: starting without it would be worse than not starting.
    pub fn unlockable(&self) -> Option<&'static str> {
        let given = [
            (self.managed_settings.is_some(), "--managed-settings"),
            (self.managed_settings_in_initialize, "--managed-settings-in-initialize"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// What was asked for and does nothing here, in words.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let given = [
            (self.task_budget.is_some(), "--task-budget"),
            (self.betas.is_some(), "--betas"),
            (self.session_mirror, "--session-mirror"),
            (self.project_config_root.is_some(), "--project-config-root"),
            (!self.channels.is_empty(), "--channels"),
            (self.debug.is_some(), "--debug"),
            (self.debug_to_stderr, "--debug-to-stderr"),
        ];
        given.into_iter().filter(|(is_given, _)| *is_given).map(|(_, name)| name).collect()
    }
}

/// Who answers questions about calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PermissionPrompts {
    /// The program on standard input.
    Host,
    /// No one: calls that no rule allows are denied.
    None,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// The answer as text.
    Text,
    /// One JSON object with the answer, cost and usage.
    Json,
    /// One JSON object per event, as it happens.
    StreamJson,
}

/// Input format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// The argument and standard input.
    Text,
    /// One JSON object per line on standard input, from a host program that also answers questions.
    StreamJson,
}

/// How a provider is set up.
#[derive(Debug, ClapArgs)]
pub struct LoginArgs {
    /// For screen readers: plain questions, no redrawing.
    #[arg(long)]
    pub plain: bool,

    /// The process that waits at the terminal for this one.
    #[arg(long, hide = true, value_name = "PID")]
    pub kept_by: Option<i32>,
}

/// Everything else the program does.
#[derive(Debug, Subcommand)]
pub enum SubCommand {
    /// Watch an agent fix a failing test: offline, with real tools, in a temporary repository.
    ///
    /// In a terminal it plays in the real interface: any key makes it faster, esc leaves.
    Demo(DemoArgs),
    /// Set up a model provider: key, model, local servers.
    Login(LoginArgs),
    /// List and lint agents.
    #[command(subcommand)]
    Agents(AgentsCommand),
    /// Manage plugins.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Test and explain permission rules.
    #[command(subcommand)]
    Permissions(PermissionsCommand),
    /// Show and verify the audit log.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Show and change the settings.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// List, show, export and remove sessions.
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// List, steer, pause and stop the agents and commands of a session; answer their questions.
    Tasks(TasksArgs),
    /// List and clean up agents' worktrees.
    #[command(subcommand)]
    Worktrees(WorktreesCommand),
    /// Merge the branches of finished agents one by one, without touching any checkout.
    Merge(MergeArgs),
    /// Export a session's timeline: a Perfetto trace, or an SVG picture.
    Trace(TraceArgs),
    /// Manage MCP servers, or run as one.
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Show what the sandbox allows, or run a program in it.
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Review and trust this folder's settings, or revoke trust.
    Trust(TrustArgs),
    /// Attach to a running session (detaching leaves it running).
    Attach(AttachArgs),
    /// List running sessions.
    Ps {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Check the installation: providers, state folder, sandbox.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:
  decurion completions bash > ~/.local/share/bash-completion/completions/decurion
  decurion completions zsh > ~/.zfunc/_decurion          with ~/.zfunc in $fpath
  decurion completions fish > ~/.config/fish/completions/decurion.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands into a folder.
    Man {
        /// Write decurion.1 and a page for each command into this folder.
        #[arg(long, value_name = "DIR")]
        dir: Option<Utf8PathBuf>,
    },
}

/// Which session to attach to.
#[derive(Debug, ClapArgs)]
pub struct AttachArgs {
    /// The session's id or a prefix of it [default: the only one running in this folder].
    pub session: Option<String>,
    /// Plain sequential output, no redrawing.
    #[arg(long)]
    pub plain: bool,
}

/// Review or change the trust in this folder.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Some settings of a repository run programs or grant permissions: hooks, servers, allow rules and others. They are off \
until you trust them. This command shows them as they are written, and asks; without a terminal, --yes is the answer. \
After a change of any part it asks again.")]
pub struct TrustArgs {
    /// Only show what needs trust, and whether it is trusted.
    #[arg(long, conflicts_with_all = ["yes", "revoke"])]
    pub list: bool,
    /// Don't ask for confirmation.
    #[arg(long, conflicts_with = "revoke")]
    pub yes: bool,
    /// Revoke trust.
    #[arg(long)]
    pub revoke: bool,
}

/// List and lint agents.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// List agents, where each is defined, and which definition of a name wins.
    List {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Print one agent as a definition file.
    Show {
        /// The agent's name (case-insensitive).
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what an agent would run with if the main agent started it now, and why.
    Explain {
        /// The agent's name (case-insensitive).
        name: String,
        /// Assume it is started in the background.
        #[arg(long)]
        background: bool,
        /// The model named in the call.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a definition file with a comment on each field, to be edited.
    Create {
        /// The agent's name.
        name: String,
        /// The folder: user (~/.decurion/agents) or project (.decurion/agents).
        #[arg(short, long, default_value = "project")]
        scope: AgentScope,
    },
    /// Check the files of agents, skills and commands; prints problems with line numbers and exits with 1 if one
    /// cannot be used.
    Lint {
        /// Files or folders to check [default: every place where agents, skills and commands are looked for].
        paths: Vec<Utf8PathBuf>,
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
}

/// Who sees an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AgentScope {
    /// All folders.
    User,
    /// Everyone who works on this project.
    Project,
}

/// Manage MCP servers, or run as one.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// List servers, where each is declared, and whether it may be started.
    List {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Show one server: how it is reached, and what it offered when it was approved.
    Get {
        /// The server's name.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add a server.
    #[command(after_help = "Examples:
  decurion mcp add git -- uvx mcp-server-git --repository .
  decurion mcp add --scope project --env LEVEL=2 db -- npx -y some-server
  decurion mcp add --transport http --header \"Authorization: Bearer ${TOKEN}\" issues https://example.org/mcp

Variables written ${NAME} or ${NAME:-default} are filled in when the server is started.")]
    Add {
        /// The server's name; its tools are called mcp__NAME__tool.
        name: String,
        /// The program and its arguments (after --), or the URL.
        #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND-OR-URL")]
        target: Vec<String>,
        /// The transport.
        #[arg(short, long, default_value = "stdio")]
        transport: TransportWord,
        /// Scope: user (all folders), project (.mcp.json, shared), local (this folder, only you).
        #[arg(short, long, default_value = "local")]
        scope: ScopeWord,
        /// Environment variable, NAME=VALUE; repeatable.
        #[arg(short, long, value_name = "NAME=VALUE")]
        env: Vec<String>,
        /// HTTP header, "Name: value"; repeatable.
        #[arg(short = 'H', long, value_name = "HEADER")]
        header: Vec<String>,
    },
    /// Add a server from JSON.
    AddJson {
        /// The server's name.
        name: String,
        /// {"command": …, "args": […]} or {"type": "http", "url": …}.
        json: String,
        /// Scope: user, project or local.
        #[arg(short, long, default_value = "local")]
        scope: ScopeWord,
    },
    /// Remove a server.
    Remove {
        /// The server's name.
        name: String,
        /// Scope to remove it from [default: all].
        #[arg(short, long)]
        scope: Option<ScopeWord>,
    },
    /// Start a server, list what it offers and stop it; prints its last output if that fails.
    Test {
        /// The server's name.
        name: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Approve a project's server as it is declared now, with what it offers now. Shows both first, with what
    /// changed, and asks.
    Approve {
        /// The server's name.
        name: String,
        /// Don't ask for confirmation.
        #[arg(short, long)]
        yes: bool,
    },
    /// Log in to a remote server in a browser (OAuth).
    Login {
        /// The server's name.
        name: String,
        /// OAuth scope to request.
        #[arg(long, value_name = "SCOPE")]
        scope: Option<String>,
    },
    /// Forget a login.
    Logout {
        /// The server's name.
        name: String,
    },
    /// Run as an MCP server on standard input and output, so that other agents can start ours (Agent, TaskOutput,
    /// TaskStop).
    Serve {
        /// Model of the agents.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// Permission mode. No person can be asked, so calls that no rule or mode allows are denied.
        #[arg(long, value_name = "MODE")]
        permission_mode: Option<String>,
        /// Rules for calls that are allowed; repeatable.
        #[arg(id = "serveAllowed", long = "allowedTools", value_name = "RULES")]
        allowed_tools: Vec<String>,
    },
}

/// Who a declaration or setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeWord {
    /// All folders.
    User,
    /// Everyone who works on this project.
    Project,
    /// This folder, only you.
    Local,
}

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportWord {
    /// A program's standard input and output.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// Server-sent events, for old servers.
    Sse,
}

/// Manage plugins.
///
/// A plugin is a folder with agents, skills, commands, hooks and servers. It runs programs, so it is used only
/// once you added it, and only as long as its hooks, servers and allow rules are what they were then.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// List plugins and whether each is enabled.
    List {
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Check a plugin's folder; prints problems with line numbers and exits with 1 if it cannot be used.
    Validate {
        /// The plugin's folder.
        path: Utf8PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add the plugin in this folder and enable it as it is now. Shows what it runs first, and asks.
    Add {
        /// The plugin's folder.
        path: Utf8PathBuf,
        #[command(flatten)]
        consent: PluginConsent,
    },
    /// Enable a plugin as it is now, also after a change. Shows what it runs first, and asks.
    Enable {
        /// The plugin's name.
        name: String,
        #[command(flatten)]
        consent: PluginConsent,
    },
    /// Disable a plugin.
    Disable {
        /// The plugin's name.
        name: String,
    },
    /// Remove a plugin; its folder stays.
    Remove {
        /// The plugin's name.
        name: String,
    },
}

/// How a person agrees to what a plugin runs.
#[derive(Debug, clap::Args)]
pub struct PluginConsent {
    /// Don't ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
    /// Where there is something to agree to, only print it, as JSON.
    #[arg(long, hide = true)]
    pub preview: bool,
    /// The fingerprint of what was shown and agreed to.
    #[arg(long, hide = true)]
    pub as_shown: Option<String>,
}

/// Test and explain permission rules.
#[derive(Debug, Subcommand)]
pub enum PermissionsCommand {
    /// Decide calls given as JSON lines, one JSON line per decision.
    #[command(
        after_help = "Each line: {\"mode\":\"default\",\"rules\":{\"allow\":[],\"ask\":[],\"deny\":[]},\
        \"tool\":\"Bash\",\"input\":{\"command\":\"ls\"},\"cwd\":\"/repo\"}
Prints:    {\"decision\":\"allow\",\"rule\":null,\"reason\":\"…\"}

A row without rules and cwd is decided as in a session of this folder, with its settings. A row that gives either \
stands for itself: no settings are used, and without cwd it is decided for the folder /home/user/project."
    )]
    Check {
        /// A file of JSON lines [default: standard input].
        file: Option<Utf8PathBuf>,
    },
    /// Explain why a command line or call would be allowed, asked about or denied.
    #[command(after_help = "\
Example:
  decurion permissions explain 'make install'

Of a command line it prints the decision in a session of this folder, and what the sandbox lets the command do.
Rows are decided as by `permissions check`. Nothing is run.")]
    Explain {
        /// A command line, or a file of JSON lines [default: standard input].
        call: Option<String>,
        /// Assume that a person or a rule has allowed it.
        #[arg(long)]
        allowed: bool,
        /// Print the explanation of a command line as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Show what the sandbox allows, or run a program in it.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Show what a command could read, write and reach, and whether it would be asked about.
    #[command(after_help = "\
Example:
  decurion sandbox explain 'for f in *.rs; do wc -l \"$f\"; done'

The rules, directories and settings are those of a session in this folder. Nothing is run.")]
    Explain {
        /// The command line, as a model would give it to Bash.
        command: String,
        /// Assume that a person or a rule has allowed it.
        #[arg(long)]
        allowed: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a program in the sandbox that a session in this folder would use.
    #[command(after_help = "\
Example:
  decurion sandbox run -- npm test
  decurion sandbox run --read-only -- bash -c 'cat */*.toml'

Its exit code is that of the program; 126 if it could not be started.")]
    Run {
        /// Read-only: no writes, no network.
        #[arg(long)]
        read_only: bool,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<std::ffi::OsString>,
    },
}

/// Show and change the settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print the effective values: all, or that of one key and what is below it.
    Show {
        /// The key, its parts joined by dots, such as agents.maxDepth or permissions.
        key: Option<String>,
        /// Print where each value comes from.
        #[arg(long)]
        origin: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of the settings file, so that editors complete and check it.
    #[command(after_help = "Example:
  decurion config schema > ~/.decurion/settings.schema.json
  and as the first key of ~/.decurion/settings.json: \"$schema\": \"./settings.schema.json\"")]
    Schema,
    /// Set one value in a settings file; comments and everything else stay as they are.
    #[command(after_help = "Examples:
  decurion config set model sonnet
  decurion config set agents.maxDepth 3
  decurion config set permissions.deny '[\"Read(.env)\"]' --scope project
  decurion config set 'models.catalogue.\"gpt-5.4\".window' 400000

The value is checked like one in the file. Keys of providers are not taken here, since command lines are recorded by \
shells: set apiKeyEnv or apiKeyFile.")]
    Set {
        /// The key, its parts joined by dots; a part with dots itself in double quotes.
        key: String,
        /// The value: JSON, or a string without quotes.
        value: String,
        /// The file: user (~/.decurion/settings.json), project (.decurion/settings.json) or local
        /// (.decurion/settings.local.json: this project, only you).
        #[arg(short, long, default_value = "user")]
        scope: ScopeWord,
    },
    /// Remove one value from a settings file; comments and everything else stay as they are.
    Unset {
        /// The key, its parts joined by dots; a part with dots itself in double quotes.
        key: String,
        /// The file: user, project or local.
        #[arg(short, long, default_value = "user")]
        scope: ScopeWord,
    },
}

/// Show and verify the audit log.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Print entries, oldest first.
    #[command(after_help = "Examples:
  decurion audit show --last 20                 the latest decisions of all sessions
  decurion audit show --session 5f3a --since 2h one session (the beginning of its id), the last two hours
  decurion audit show --json | jq -c 'select(.entry.decision == \"deny\") | .entry.title'

A line is: when, session, agent, the result (allow, ask or deny), the call, what decided (a rule, the policy of the \
mode, a hook, a person, the host, a permission tool, or no answer), the mode and the reason. An ask is followed by a \
line with the answer. --json has exact times and whole ids. Without --last the latest 1000 entries are shown.")]
    Show(AuditShow),
    /// Check that no entry was changed, deleted, inserted, moved or cut off.
    #[command(after_help = "Examples:
  decurion audit verify
  decurion audit verify --anchor 57:9f2c…   must still hold entry 57 as it was

Exit codes: 0 the log is whole, 1 it is not (file, line and what happened are named) or cannot be read.

Each entry carries the hash of the one before and a code made with the key ~/.decurion/audit.key. A program that can \
read that key can forge the log. To detect a log that was reset to an earlier state together with its head file, \
keep the printed anchor elsewhere and pass it to a later check. Log and key deleted together look like \
a new log.")]
    Verify {
        /// An anchor that an earlier check printed: the log must still hold that entry.
        #[arg(long, value_name = "NUMBER:HASH")]
        anchor: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Which entries of the audit log to print.
#[derive(Debug, ClapArgs)]
pub struct AuditShow {
    /// Only this session (id or prefix).
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only this kind.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<AuditKindWord>,
    /// Only since then: 2026-05-01T12:00:00Z, 2026-05-01, or a time ago (30m, 2h, 7d).
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only the last N.
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// Print JSON lines.
    #[arg(long)]
    pub json: bool,
}

/// A kind of audit entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditKindWord {
    /// Permission decisions.
    Permission,
    /// Refusals by the sandbox.
    Sandbox,
    /// Commands that ran without the sandbox.
    Unsandboxed,
    /// Connections to other machines.
    Egress,
    /// Entries that could not be written.
    Gap,
    /// Damage that was found when an entry was written.
    Damage,
}

impl AuditKindWord {
    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::Sandbox => "sandbox",
            Self::Unsandboxed => "unsandboxed",
            Self::Egress => "egress",
            Self::Gap => "gap",
            Self::Damage => "damage",
        }
    }
}

/// List, show, export and remove sessions.
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, newest first.
    List {
        /// All folders, not only this one.
        #[arg(long)]
        all: bool,
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Print one conversation.
    Show {
        /// The session's id or a prefix of it.
        id: String,
        /// Print JSON lines, one per message.
        #[arg(long)]
        json: bool,
    },
    /// Remove one session and everything it recorded, but for its worktrees; asks first.
    Rm {
        /// The session's id or a prefix of it.
        id: String,
        /// Don't ask for confirmation.
        #[arg(long)]
        yes: bool,
    },
    /// Export one session.
    Export {
        /// The session's id or a prefix of it.
        id: String,
        /// One JSON object instead of the transcript's lines.
        #[arg(long)]
        json: bool,
        /// Output file [default: standard output].
        #[arg(short, long)]
        output: Option<Utf8PathBuf>,
    },
}

/// List and clean up agents' worktrees.
#[derive(Debug, Subcommand)]
pub enum WorktreesCommand {
    /// List the worktrees of this repository: who uses each, and what was left in it.
    List {
        /// All repositories, not only this one.
        #[arg(long)]
        all: bool,
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove unchanged and half-made worktrees that no running session uses; work is kept and listed.
    Clean {
        /// All repositories, not only this one.
        #[arg(long)]
        all: bool,
        /// Only print what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// Print JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove one worktree of this repository and its branch, by the name that `list` shows.
    ///
    /// No running session may use it, and everything in it must be merged into decurion/merged or the branch that is
    /// checked out here.
    Remove {
        /// The worktree: an agent's id, or its name.
        name: String,
        /// Remove it even if it has unmerged work, which is lost.
        #[arg(long)]
        discard: bool,
    },
}

/// Merge the branches of finished agents.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  decurion merge                                  all finished agents, first finished first
  decurion merge --dry-run                        what would merge and what would conflict
  decurion merge --gate \"cargo test\"             only what passes, each tested on top of those before
  git merge --ff-only decurion/merged             then update your own branch

Branches are merged one after the other, each by a separate commit, in the order in which the agents finished: of two
that conflict, the first is merged. A branch that conflicts or fails the gate is reported and kept. A worktree is removed
only when all changes in it are merged.

Exit codes: 0 everything is merged, 1 something is not, 2 usage.")]
pub struct MergeArgs {
    /// Agents, worktrees or branches [default: all finished agents, in the order in which they finished].
    #[arg(value_name = "AGENT-OR-BRANCH")]
    pub which: Vec<String>,

    /// All finished agents (the default).
    #[arg(long, conflicts_with = "which")]
    pub all: bool,

    /// Target branch; created from the current commit if it does not exist.
    #[arg(long, value_name = "BRANCH", default_value = decurion_engine::merge::TARGET)]
    pub into: String,

    /// A shell command that must succeed after each merge; runs in a separate checkout.
    #[arg(long, value_name = "COMMAND")]
    pub gate: Option<String>,

    /// Time limit of the gate per merge.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, requires = "gate")]
    pub gate_timeout: u64,

    /// Only predict conflicts; the gate does not run and nothing changes.
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// How the demo is played.
#[derive(Debug, ClapArgs)]
pub struct DemoArgs {
    /// Keep the repository (in the interface: and the session) and print its path.
    #[arg(long)]
    pub keep: bool,

    /// Print a log at full speed instead of playing in the real interface.
    #[arg(long)]
    pub fast: bool,

    /// The process that waits at the terminal for this one.
    #[arg(long, hide = true, value_name = "PID", requires = "folder")]
    pub kept_by: Option<i32>,

    /// Where that process wants it played.
    #[arg(long, hide = true, value_name = "FOLDER", requires = "kept_by")]
    pub folder: Option<Utf8PathBuf>,
}

/// List, steer, pause and stop the agents and commands of a session, from any terminal.
#[derive(Debug, ClapArgs)]
pub struct TasksArgs {
    #[command(subcommand)]
    pub command: Option<TasksCommand>,

    /// The session [default: the running one in this folder, else its latest].
    #[arg(long, value_name = "ID", global = true)]
    pub session: Option<String>,

    /// Print JSON lines.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Export a session's timeline.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Every agent is a track: its runs, waits for a slot, turns, requests, rate limits, retries,
questions, calls and background commands. Arrows lead from the call that started an agent
to its start, and from its end to its notice. A session that was killed or still runs is
traced up to its last record; spans without an end are marked `unfinished`.

Examples:
  decurion trace                           the latest session of this folder
  decurion trace 01234567-… -o trace.json  that session, for https://ui.perfetto.dev
  decurion trace --svg trace.svg           a picture of the same, for any browser
  decurion trace -o - | jq '.traceEvents | length'

Without -o and --svg the trace goes to trace-<id>.json in this folder. Nothing leaves this
machine: the Perfetto page reads the file in your browser. Files are for you alone (0600),
since they name commands and files of the session."
)]
pub struct TraceArgs {
    /// The session [default: the latest in this folder].
    pub session: Option<String>,

    /// Trace file; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<Utf8PathBuf>,

    /// Write an SVG picture to this file; without -o, only that.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<Utf8PathBuf>,

    /// Overwrite existing files.
    #[arg(long)]
    pub force: bool,

    /// Print what was written as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A task id may be abbreviated as long as it is unique.
#[derive(Debug, Subcommand)]
pub enum TasksCommand {
    /// List tasks and open questions (the default).
    List,
    /// Show one task.
    Show {
        /// The task's id.
        id: String,
    },
    /// Follow a task's output; exits with the task's status.
    Follow {
        /// The task's id.
        id: String,
    },
    /// Stop a task and everything below it.
    Stop {
        /// The task's id.
        id: String,
    },
    /// Pause an agent: calls that run are finished, and nothing new is started.
    ///
    /// A paused agent takes no slot and no place in the provider's queue, its time limit does not run, and it stays paused
    /// when its session is resumed. It can be messaged, stopped and given another budget meanwhile.
    Pause {
        /// The task's id.
        id: String,
        /// The whole subtree.
        #[arg(long)]
        tree: bool,
    },
    /// Resume a paused agent (queued if at the concurrency limit).
    Continue {
        /// The task's id.
        id: String,
        /// The whole subtree.
        #[arg(long)]
        tree: bool,
    },
    /// Show or change an agent's budget while it works.
    #[command(
        after_help = "Limits that are not given stay as they are. Tokens and dollars are totals: they include what the
agent and its children have used already, in all runs. Turns and seconds count from its last
prompt. The budgets of its parents and of the session bound it. An agent that has ended gets
the new budget when it is resumed.

Examples:
  decurion tasks budget a01             what it may use
  decurion tasks budget a01 --turns 40  let it continue beyond its 20 turns
  decurion tasks budget a01 --usd 0.50 --tokens 200000
  decurion tasks budget a01 --turns 60 && decurion tasks resume a01"
    )]
    Budget {
        /// The task's id.
        id: String,
        /// Model turns.
        #[arg(long, value_name = "N")]
        turns: Option<u32>,
        /// Dollars.
        #[arg(long, value_name = "DOLLARS")]
        usd: Option<f64>,
        /// Tokens, input and output.
        #[arg(long, value_name = "N")]
        tokens: Option<u64>,
        /// Wall-clock time, excluding pauses.
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// Number of agents it may start.
        #[arg(long, value_name = "N")]
        spawns: Option<u32>,
    },
    /// Send a message to an agent (restarts it if finished).
    Resume {
        /// The task's id.
        id: String,
        /// The message [default: continue].
        prompt: Option<String>,
    },
    /// Answer a question.
    Answer {
        /// The question's id or the task that asks; `main` for the main agent.
        #[arg(value_name = "QUESTION-OR-TASK")]
        target: String,
        /// allow or deny.
        verdict: Verdict,
        /// With deny: what to tell the agent.
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
        /// With allow, if an MCP server asks: the completed form as JSON, or `-` to read it from standard input, where other
        /// users of this machine cannot see it. It goes to the server and is not recorded.
        #[arg(long, value_name = "JSON")]
        content: Option<String>,
    },
}

/// An answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verdict {
    /// Let the call run.
    Allow,
    /// Refuse it.
    Deny,
}

/// The first argument of the process that guards the processes we start.
pub const GUARD: &str = "__guard";

/// Whether this process was started to be the guard.
pub fn is_guard(argv: &[OsString]) -> bool {
    argv.get(1).is_some_and(|first| first == GUARD)
}

/// The arguments as they are understood, and those that were ignored. A program that leads us may be newer and pass
/// unknown flags: they are reported and ignored. For a person, an unknown flag is an error.
pub fn parse(argv: &[OsString]) -> (Result<Args, clap::Error>, Vec<String>) {
    let (mut argv, mut passed_over) = (argv.to_vec(), Vec::new());
    loop {
        let parsed = Args::try_parse_from(&argv);
        let Err(error) = &parsed else { return (parsed, passed_over) };
        let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
            return (parsed, passed_over);
        };
        let is_it = |word: &OsString| {
            word.to_str().is_some_and(|word| word.split('=').next() == flag.split('=').next())
        };
        let at = argv.iter().position(is_it);
        let (Some(at), true) = (at, is_led(&argv) && error.kind() == ErrorKind::UnknownArgument) else {
            return (parsed, passed_over);
        };
        passed_over.push(flag.clone());
        // Prompts come on standard input, so that a word behind it can only be its value.
        let values = argv[at + 1..].iter().take_while(|word| !word.as_encoded_bytes().starts_with(b"-"));
        let end = at
            + 1
            + if argv[at].to_str().is_some_and(|word| word.contains('=')) { 0 } else { values.count() };
        argv.drain(at..end);
    }
}

/// The error without the advice to use a flag that is hidden, because a program passes it or a test.
pub fn without_hidden(mut error: clap::Error) -> clap::Error {
    let is_hidden = |flag: &str| {
        let long = flag.trim_start_matches("--");
        Args::command().get_arguments().any(|arg| arg.is_hide_set() && arg.get_long() == Some(long))
    };
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::SuggestedArg)
        && is_hidden(flag)
    {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Whether these are the arguments of a program that leads us.
fn is_led(argv: &[OsString]) -> bool {
    let is_format = |pair: &[OsString]| pair[0] == "--input-format" && pair[1] == "stream-json";
    argv.windows(2).any(is_format) || argv.iter().any(|word| word == "--input-format=stream-json")
}

/// Why a word that stands for a prompt is none: a slip makes it the name of a command, which would cost a request.
pub fn misspelt(word: &str) -> Option<Failure> {
    let commands = Args::command();
    let mut names = commands.get_subcommands().map(clap::Command::get_name);
    let meant = names.find(|name| word.len() > 3 && decurion_protocol::nearest::is_one_slip(word, name))?;
    let word = crate::report::visible(word);
    Some(
        Failure::usage(format!("unknown command {word:?} (did you mean {meant:?}?)"))
            .hint(format!("to send it as a prompt: decurion -p {word:?}")),
    )
}

/// The error for an extra argument that could be mistaken for a command; none for other mistakes.
pub fn surplus(error: &clap::Error, argv: &[OsString]) -> Option<Failure> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let commands = Args::command();
    if error.kind() != ErrorKind::ArgumentConflict || commands.find_subcommand(word).is_some() {
        return None;
    }
    // `--model X mcp serve`: what stands behind an option is the prompt, but not if it reads like this.
    let before = argv.windows(2).find(|pair| pair[1] == *word.as_str()).and_then(|pair| pair[0].to_str());
    let command = before.and_then(|before| commands.find_subcommand(before));
    if let Some(command) = command.filter(|command| command.find_subcommand(word).is_some()) {
        let name = command.get_name();
        return Some(
            Failure::usage(format!("subcommand {name} {word} must come before the options"))
                .hint(format!("`decurion {name} {word} --help` shows the options it takes"))
                .hint("a prompt of several words goes in quotes"),
        );
    }
    if let Some(failure) = before.and_then(misspelt) {
        return Some(failure);
    }
    Some(
        Failure::usage(format!("unexpected argument {:?}", crate::report::visible(word)))
            .hint("the prompt is one argument: put it in quotes")
            .hint("several rules go into one --allowedTools, with commas between them")
            .hint("the name of a worktree is given with an equals sign: --worktree=NAME"),
    )
}
