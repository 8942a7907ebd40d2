//! The command line as typed. Takes argv, gives [`Args`]; nothing is decided or looked up here.

use std::ffi::OsString;

use camino::Utf8PathBuf;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as ClapArgs, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::report::Failure;

/// Runs a coding agent on a prompt, with real tools, permissions and a crash-safe transcript.
#[derive(Debug, Parser)]
#[command(
    name = "decurion",
    version,
    about = "A runtime and terminal tool for coding agents, with guarantees",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  decurion                                        a conversation in this terminal (? shows the keys)
  decurion attach                                 come back to one that was kept in the background
  decurion demo                                   see it work, offline, on a small repository
  decurion -p \"explain src/main.rs\"               answer and exit
  git diff | decurion -p \"review this\"            prompt and standard input together
  decurion -p \"fix the test\" --allowedTools \"Edit,Bash(cargo test:*)\"
  decurion -p -c \"now add a test\"                 go on with the last session of this folder
  decurion -p --output-format stream-json --verbose \"…\" one JSON object per event

Exit codes: 0 completed, 1 failed, 2 usage or configuration, 3 denied, 4 out of budget or turns,
5 stalled, 6 killed, 7 lost, 129, 130 and 143 on signals."
)]
pub struct Args {
    /// What the agent should do; standard input, if piped, is put before it.
    pub prompt: Option<String>,

    #[command(flatten)]
    pub run: RunArgs,

    #[command(subcommand)]
    pub command: Option<SubCommand>,
}

/// How a run is started and shown.
#[derive(Debug, ClapArgs)]
#[allow(clippy::struct_excessive_bools)] // each is one flag of the command line
pub struct RunArgs {
    /// Answer the prompt and exit.
    #[arg(short, long)]
    pub print: bool,

    /// What is printed: the answer, one JSON object, or one JSON line per event.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub output_format: OutputFormat,

    /// How prompts come in.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub input_format: InputFormat,

    /// With stream-json: also each piece of a reply as it arrives.
    #[arg(long)]
    pub include_partial_messages: bool,

    /// With stream-json: also what every hook did, not only those of SessionStart.
    #[arg(long)]
    pub include_hook_events: bool,

    /// With --input-format stream-json: give each message of the user back as it is taken.
    #[arg(long)]
    pub replay_user_messages: bool,

    /// With stream-json: also what agents say that are waited for, not only their calls.
    #[arg(long)]
    pub forward_subagent_text: bool,

    /// Say more on standard error; wanted by other tools together with stream-json.
    #[arg(long)]
    pub verbose: bool,

    /// Append what the parts of the program do, one JSON line each, to this file.
    #[arg(long, value_name = "FILE")]
    pub debug_file: Option<Utf8PathBuf>,

    /// The model: an alias, an id, provider/model, or scripted:FILE.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,

    /// The model to change to when that one stays overloaded.
    #[arg(long, value_name = "MODEL")]
    pub fallback_model: Option<String>,

    /// How hard the model should try: low, medium, high, xhigh, max.
    #[arg(long, value_name = "LEVEL")]
    pub effort: Option<String>,

    /// Whether the model thinks before it answers: adaptive (as it sees fit), enabled, disabled.
    #[arg(long, value_name = "KIND")]
    pub thinking: Option<String>,

    /// How many tokens it may think for; 0 for none.
    #[arg(long, value_name = "N")]
    pub max_thinking_tokens: Option<u32>,

    /// How its thoughts are shown: summarized or omitted.
    #[arg(long, value_name = "KIND")]
    pub thinking_display: Option<String>,

    /// Who is asked: default, acceptEdits, plan, bypassPermissions, dontAsk.
    #[arg(long, value_name = "MODE")]
    pub permission_mode: Option<String>,

    /// Who answers questions about calls in place of a person: stdio (the program on standard input), or a tool of an
    /// MCP server, mcp__SERVER__TOOL.
    #[arg(long, value_name = "TOOL")]
    pub permission_prompt_tool: Option<String>,

    /// With --input-format stream-json: whether the program is asked about calls (host, none).
    #[arg(long, value_name = "WHOM")]
    pub permission_prompts: Option<PermissionPrompts>,

    /// Run every call that no deny rule forbids, without asking.
    #[arg(long)]
    pub dangerously_skip_permissions: bool,

    /// Rules that need no question, e.g. "Edit,Bash(git log:*)"; may be given several times.
    #[arg(id = "allowedTools", long = "allowedTools", alias = "allowed-tools", value_name = "RULES")]
    pub allowed_tools: Vec<String>,

    /// Rules that are never allowed; may be given several times.
    #[arg(
        id = "disallowedTools",
        long = "disallowedTools",
        alias = "disallowed-tools",
        value_name = "RULES"
    )]
    pub disallowed_tools: Vec<String>,

    /// Offer only these tools, e.g. "Read,Bash"; "" for none, "default" for all.
    #[arg(long, value_name = "TOOLS")]
    pub tools: Option<String>,

    /// End after this many model turns.
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,

    /// Never spend more than this on the session, earlier runs of it included.
    #[arg(long, value_name = "DOLLARS")]
    pub max_budget_usd: Option<f64>,

    /// Use this instead of the built-in system prompt.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "system_prompt_file")]
    pub system_prompt: Option<String>,

    /// The same from a file.
    #[arg(long, value_name = "FILE")]
    pub system_prompt_file: Option<Utf8PathBuf>,

    /// Add this to the system prompt.
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

    /// A further directory the tools may use; may be given several times.
    #[arg(long, value_name = "DIR")]
    pub add_dir: Vec<Utf8PathBuf>,

    /// Work in a git worktree of its own (--worktree=NAME names it); removed at the end if nothing changed.
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with_all = ["continue", "resume"]
    )]
    pub worktree: Option<String>,

    /// Settings for this run: a file, or JSON itself.
    #[arg(long, value_name = "FILE-OR-JSON", allow_hyphen_values = true)]
    pub settings: Option<String>,

    /// Which settings files are read: user,project,local.
    #[arg(long, value_name = "SOURCES")]
    pub setting_sources: Option<String>,

    /// MCP servers for this run: a file, or JSON like {"mcpServers": {"git": {"command": "mcp-server-git"}}}; may be given
    /// several times.
    #[arg(long, value_name = "FILE-OR-JSON", allow_hyphen_values = true)]
    pub mcp_config: Vec<String>,

    /// Only the MCP servers of --mcp-config.
    #[arg(long)]
    pub strict_mcp_config: bool,

    /// Use this UUID for the new session.
    #[arg(long, value_name = "UUID")]
    pub session_id: Option<String>,

    /// Go on with the last session of this folder. Prompts that it accepted and did not begin are answered first.
    #[arg(short, long, conflicts_with = "resume")]
    pub r#continue: bool,

    /// Go on with this session. Prompts that it accepted and did not begin are answered first.
    #[arg(short, long, value_name = "ID")]
    pub resume: Option<String>,

    /// With --continue or --resume: go on from this message, by its uuid; what came after it stays in the transcript and
    /// is no part of the conversation any more.
    #[arg(long, value_name = "UUID")]
    pub resume_session_at: Option<String>,

    /// With --resume-session-at: the prompt whose turn is to fall away, by its uuid; if more or less would, nothing is done.
    #[arg(long, value_name = "UUID", requires = "resume_session_at")]
    pub resume_drops_turn: Option<String>,

    /// With --continue or --resume: begin a new session with what that one holds.
    #[arg(long)]
    pub fork_session: bool,

    /// Keep no transcript and no audit entries.
    #[arg(long)]
    pub no_session_persistence: bool,

    /// Fail rather than run without a transcript where the state folder cannot be written.
    #[arg(long, conflicts_with = "no_session_persistence")]
    pub require_persistence: bool,

    /// The agent that the session itself runs as.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// Agents for this run: {"name": {"description": "…", "prompt": "…", "tools": […], "model": "…"}}.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub agents: Option<String>,

    /// Use the plugin in this folder for this run; may be given several times.
    #[arg(long, value_name = "DIR")]
    pub plugin_dir: Vec<Utf8PathBuf>,

    /// A JSON Schema the answer must satisfy: JSON, or a file.
    #[arg(long, value_name = "SCHEMA", allow_hyphen_values = true)]
    pub json_schema: Option<String>,

    /// At a terminal: lines of text one below the other and nothing that moves, for screen readers and plain terminals.
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
#[derive(Debug, ClapArgs)]
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
    /// A lock that is asked for and cannot be put on: going on without it would be worse than not to begin.
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

/// Whom questions about calls go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PermissionPrompts {
    /// The program on standard input.
    Host,
    /// Nobody: what no rule allows is denied.
    None,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// The answer.
    Text,
    /// One object with the answer and what it took.
    Json,
    /// One object per event, as it happens.
    StreamJson,
}

/// How prompts come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// From the argument and standard input.
    Text,
    /// A program on standard input, one JSON object per line, which also answers questions.
    StreamJson,
}

/// Everything else the program does.
#[derive(Debug, Subcommand)]
pub enum SubCommand {
    /// Watch an agent repair a failing test: offline, real tools, a real repository in a temporary folder.
    Demo {
        /// Keep the folder and say where it is.
        #[arg(long)]
        keep: bool,
    },
    /// Look at the agents there are, and check their files.
    #[command(subcommand)]
    Agents(AgentsCommand),
    /// Look at plugins, add one, switch one on or off.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Test and explain permission rules.
    #[command(subcommand)]
    Permissions(PermissionsCommand),
    /// Show what was allowed and denied, by what or whom, and check that this record was not edited.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Show the settings in force.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at recorded sessions.
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Look at the agents and commands of a session, stop them, tell them something, answer their questions.
    Tasks(TasksArgs),
    /// Look at the checkouts that agents work in, and remove those that nobody needs.
    #[command(subcommand)]
    Worktrees(WorktreesCommand),
    /// Merge the branches of agents that have ended, one after the other, without touching any checkout.
    Merge(MergeArgs),
    /// Show where the time of a session went: a trace for Perfetto, or a picture.
    Trace(TraceArgs),
    /// MCP servers: which there are, add and remove them, try and approve them; or be one.
    #[command(subcommand)]
    Mcp(McpCommand),
    /// Show what the sandbox lets a command do, or run a command in it.
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Trust this folder's settings, after showing what they run and widen; or take that back.
    Trust(TrustArgs),
    /// Show a live session of another process in this terminal; leaving it ends nothing.
    Attach(AttachArgs),
    /// List the sessions that live in some process, at a terminal or kept in the background.
    Ps {
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Say what this installation has: providers, state folder, sandbox.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Which session to show.
#[derive(Debug, ClapArgs)]
pub struct AttachArgs {
    /// Its id, or the beginning of it; the only one of this folder if left out.
    pub session: Option<String>,
    /// Lines of text one below the other and nothing that moves.
    #[arg(long)]
    pub plain: bool,
}

/// What to do about the trust in a folder.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Hooks, servers, allow rules and whatever else in a repository's files runs a program or widens what is allowed is off \
until you agree to it. It is shown as it is written; on a terminal you are asked, elsewhere --yes says that you have \
looked. A change of any part asks again.")]
pub struct TrustArgs {
    /// Only show the parts, and whether they are trusted.
    #[arg(long, conflicts_with_all = ["yes", "revoke"])]
    pub list: bool,
    /// Do not ask.
    #[arg(long, conflicts_with = "revoke")]
    pub yes: bool,
    /// Take it back.
    #[arg(long)]
    pub revoke: bool,
}

/// Look at the agents there are, and check their files.
#[derive(Debug, Subcommand)]
pub enum AgentsCommand {
    /// Every agent, where it comes from, and which of equal names counts.
    List {
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// One agent as the file it could be, built in or not.
    Show {
        /// Which agent; upper and lower case are the same.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// What one agent would run with if the session's own agent started it now, and why.
    Explain {
        /// Which agent; upper and lower case are the same.
        name: String,
        /// As if it were started in the background.
        #[arg(long)]
        background: bool,
        /// The model that the call names.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// What is wrong with the files of agents, skills and commands, with line numbers; exits 1 where one cannot
    /// be used.
    Lint {
        /// Files or folders of agents; every place where they, skills and commands are looked for if left out.
        paths: Vec<Utf8PathBuf>,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
}

/// MCP servers: which there are, add and remove them, try and approve them; or be one.
#[derive(Debug, Subcommand)]
pub enum McpCommand {
    /// Every server, where it is declared, and whether it may be started.
    List {
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// One server: how it is reached, and what it offered when it was approved.
    Get {
        /// Which server.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Declare a server.
    #[command(after_help = "Examples:
  decurion mcp add git -- uvx mcp-server-git --repository .
  decurion mcp add --scope project --env LEVEL=2 db -- npx -y some-server
  decurion mcp add --transport http --header \"Authorization: Bearer ${TOKEN}\" issues https://example.org/mcp

Variables written ${NAME} or ${NAME:-default} are filled in when the server is started.")]
    Add {
        /// Its name; its tools are called mcp__NAME__tool.
        name: String,
        /// The program and its arguments (after --), or the address.
        #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND-OR-URL")]
        target: Vec<String>,
        /// How it is reached.
        #[arg(short, long, default_value = "stdio")]
        transport: TransportWord,
        /// Whose it is: user (every folder), project (.mcp.json, shared), local (this folder, yours alone).
        #[arg(short, long, default_value = "local")]
        scope: ScopeWord,
        /// A variable of its environment, NAME=VALUE; may be given several times.
        #[arg(short, long, value_name = "NAME=VALUE")]
        env: Vec<String>,
        /// A header of every request, "Name: value"; may be given several times.
        #[arg(short = 'H', long, value_name = "HEADER")]
        header: Vec<String>,
    },
    /// Declare a server by its JSON.
    AddJson {
        /// Its name.
        name: String,
        /// {"command": …, "args": […]} or {"type": "http", "url": …}.
        json: String,
        /// Whose it is: user, project or local.
        #[arg(short, long, default_value = "local")]
        scope: ScopeWord,
    },
    /// Remove a declaration.
    Remove {
        /// Which server.
        name: String,
        /// Where from; everywhere if left out.
        #[arg(short, long)]
        scope: Option<ScopeWord>,
    },
    /// Start a server, ask what it offers, and stop it again; shows what it wrote last where that fails.
    Test {
        /// Which server.
        name: String,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Let a project's server be started as it is declared now, and accept what it offers now. Shows both first,
    /// with what changed, and asks.
    Approve {
        /// Which server.
        name: String,
        /// Do not ask.
        #[arg(short, long)]
        yes: bool,
    },
    /// Log in to a server by its address, in a browser (OAuth).
    Login {
        /// Which server.
        name: String,
        /// What to ask leave for, in the server's words.
        #[arg(long, value_name = "SCOPE")]
        scope: Option<String>,
    },
    /// Forget a login.
    Logout {
        /// Which server.
        name: String,
    },
    /// Be a server on standard input and output: other agents can start ours (Agent, TaskOutput, TaskStop).
    Serve {
        /// The model of the agents.
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// Who is asked: nobody can be, so what no rule allows is denied unless a mode says otherwise.
        #[arg(long, value_name = "MODE")]
        permission_mode: Option<String>,
        /// Rules that need no question; may be given several times.
        #[arg(id = "serveAllowed", long = "allowedTools", value_name = "RULES")]
        allowed_tools: Vec<String>,
    },
}

/// Whose a declaration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScopeWord {
    /// Every folder.
    User,
    /// Everyone who works on this project.
    Project,
    /// This folder, yours alone.
    Local,
}

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportWord {
    /// A program's standard input and output.
    Stdio,
    /// Streamable HTTP.
    Http,
    /// Server-sent events, as old servers have it.
    Sse,
}

/// Look at plugins, add one, switch one on or off.
///
/// A plugin is a folder with agents, skills, commands, hooks and servers. It runs programs, so it is used only
/// once you added it, and only as long as its hooks, servers and allow rules are what they were then.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Every plugin that was added, and whether it is on.
    List {
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// What is wrong with a plugin's folder, with line numbers; exits 1 where it cannot be used.
    Validate {
        /// The plugin's folder.
        path: Utf8PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add the plugin in this folder and switch it on as it is now.
    Add {
        /// The plugin's folder.
        path: Utf8PathBuf,
    },
    /// Switch a plugin on as it is now, also after it has changed.
    Enable {
        /// Which plugin.
        name: String,
    },
    /// Switch a plugin off.
    Disable {
        /// Which plugin.
        name: String,
    },
    /// Forget a plugin; its folder stays.
    Remove {
        /// Which plugin.
        name: String,
    },
}

/// Test and explain permission rules.
#[derive(Debug, Subcommand)]
pub enum PermissionsCommand {
    /// Read calls as JSON lines and print the decision for each, one JSON line per call.
    #[command(
        after_help = "Each line: {\"mode\":\"default\",\"rules\":{\"allow\":[],\"ask\":[],\"deny\":[]},\
        \"tool\":\"Bash\",\"input\":{\"command\":\"ls\"},\"cwd\":\"/repo\"}
Prints:    {\"decision\":\"allow\",\"rule\":null,\"reason\":\"…\"}"
    )]
    Check {
        /// A file of JSON lines; standard input if left out.
        file: Option<Utf8PathBuf>,
    },
    /// Explain the decision about a command line or about calls, part by part.
    #[command(after_help = "\
Example:
  decurion permissions explain 'make install'

Of a command line it prints the decision in a session of this folder, and what the sandbox lets the command do.
Nothing is run.")]
    Explain {
        /// A command line, or a file of JSON lines; standard input if left out.
        call: Option<String>,
        /// Explain a command line as if a person or a rule had allowed it.
        #[arg(long)]
        allowed: bool,
        /// A command line's explanation as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Look at the sandbox of commands, or use it.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Show whether a command would be asked about, and what it could write, read and reach.
    #[command(after_help = "\
Example:
  decurion sandbox explain 'for f in *.rs; do wc -l \"$f\"; done'

The rules, directories and settings are those of a session in this folder. Nothing is run.")]
    Explain {
        /// The command line, as a model would give it to Bash.
        command: String,
        /// Explain it as if a person or a rule had allowed it.
        #[arg(long)]
        allowed: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a program in the sandbox that commands of a session in this folder have.
    #[command(after_help = "\
Example:
  decurion sandbox run -- npm test
  decurion sandbox run --read-only -- bash -c 'cat */*.toml'

Its exit code is that of the program; 126 if it could not be started.")]
    Run {
        /// Let it change nothing and reach no network.
        #[arg(long)]
        read_only: bool,
        /// The program and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<std::ffi::OsString>,
    },
}

/// Show the settings in force.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Every effective value.
    Show {
        /// And where each comes from.
        #[arg(long)]
        origin: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Show what was allowed and denied, by what or whom, and check that this record was not edited.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Print the entries of the audit log, oldest first.
    #[command(after_help = "Examples:
  decurion audit show --last 20                 the latest decisions of all sessions
  decurion audit show --session 5f3a --since 2h one session (the beginning of its id), the last two hours
  decurion audit show --json | jq -c 'select(.entry.decision == \"deny\") | .entry.title'

A line is: time (UTC), session, agent, and what was decided: allow, ask or deny, the tool, what it was to do, and in \
brackets what decided (a rule, the policy of the mode, a hook, a person, the host, a permission tool, or nobody) with \
the mode and the reason. An ask is followed by a line with the answer.")]
    Show(AuditShow),
    /// Check that no entry was changed, deleted, inserted, moved or cut off.
    #[command(after_help = "Examples:
  decurion audit verify
  decurion audit verify --anchor 57:9f2c…   must still hold entry 57 as it was

Exit codes: 0 the log is whole, 1 it is not (file, line and what happened are named) or cannot be read.

Each entry carries the hash of the one before and a code made with the key ~/.decurion/audit.key. A program that can \
read that key can forge the log. A log that is put back to an earlier state together with its head file looks whole: \
keep the printed anchor elsewhere and give it to a later check to find that. Log and key deleted together look like \
a new log.")]
    Verify {
        /// An anchor that an earlier check printed: the log must still hold that entry.
        #[arg(long, value_name = "NUMBER:HASH")]
        anchor: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Which entries of the audit log to print.
#[derive(Debug, ClapArgs)]
pub struct AuditShow {
    /// Only of this session: its id or the beginning of it.
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only of this kind.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<AuditKindWord>,
    /// Only since then: 2026-05-01T12:00:00Z, 2026-05-01, or how long ago (30m, 2h, 7d).
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only the last N of them.
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// As JSON lines.
    #[arg(long)]
    pub json: bool,
}

/// A kind of audit entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuditKindWord {
    /// Decisions about tool calls.
    Permission,
    /// What the sandbox refused.
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

/// Look at recorded sessions.
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List sessions, newest first.
    List {
        /// Of every folder, not only this one.
        #[arg(long)]
        all: bool,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Print one conversation.
    Show {
        /// Which session.
        id: String,
        /// As JSON lines, one per message.
        #[arg(long)]
        json: bool,
    },
    /// Write one session whole.
    Export {
        /// Which session.
        id: String,
        /// As one JSON object (the default is the transcript's own lines).
        #[arg(long)]
        json: bool,
        /// Where to; standard output if left out.
        #[arg(short, long)]
        output: Option<Utf8PathBuf>,
    },
}

/// Look at the checkouts that agents work in, and remove those that nobody needs.
#[derive(Debug, Subcommand)]
pub enum WorktreesCommand {
    /// Every worktree of this repository: who uses it, or what was left in it.
    List {
        /// Of every repository, not only this one.
        #[arg(long)]
        all: bool,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove what is unchanged or half made and belongs to no living session; work is kept and listed.
    Clean {
        /// Of every repository, not only this one.
        #[arg(long)]
        all: bool,
        /// Only say what would be removed.
        #[arg(long)]
        dry_run: bool,
        /// As JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove one worktree of this repository and its branch, by the name that `list` shows.
    ///
    /// It must belong to no living session, and all that is in it must be merged, into decurion/merged or the branch
    /// that is checked out here.
    Remove {
        /// Which: an agent's id, or the name that was given to it.
        name: String,
        /// Also if work in it is not merged: that work is lost.
        #[arg(long)]
        discard: bool,
    },
}

/// Merge the branches of agents that have ended.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  decurion merge                                  all that have ended, oldest first, into decurion/merged
  decurion merge --dry-run                        what would merge and what would conflict
  decurion merge --gate \"cargo test\"             only what passes, each judged on top of those before
  git merge --ff-only decurion/merged             then take the result over, where you are

Each is merged by a commit of its own onto what was merged before. What conflicts, or fails the gate, is told
and stays on its branch. A worktree is removed only when all that is in it is in the target.

Exit codes: 0 everything is merged, 1 something is not, 2 usage.")]
pub struct MergeArgs {
    /// Agents, worktrees or branches; all agents that have ended if left out.
    #[arg(value_name = "AGENT-OR-BRANCH")]
    pub which: Vec<String>,

    /// All agents that have ended (the default).
    #[arg(long, conflicts_with = "which")]
    pub all: bool,

    /// The branch that moves; made from what is checked out if it is not there.
    #[arg(long, value_name = "BRANCH", default_value = decurion_engine::merge::TARGET)]
    pub into: String,

    /// A shell command that must succeed after each merge, in a checkout of its own.
    #[arg(long, value_name = "COMMAND")]
    pub gate: Option<String>,

    /// How long the gate may take for one merge.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, requires = "gate")]
    pub gate_timeout: u64,

    /// Only forecast; the gate does not run and nothing is changed.
    #[arg(long)]
    pub dry_run: bool,

    /// As one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Look at the agents and commands of a session, from any terminal.
#[derive(Debug, ClapArgs)]
pub struct TasksArgs {
    #[command(subcommand)]
    pub command: Option<TasksCommand>,

    /// The session; if left out, the live one of this folder, else its latest.
    #[arg(long, value_name = "ID", global = true)]
    pub session: Option<String>,

    /// As JSON lines.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Show where the time of a session went.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Every agent is a track: its runs, waits for a place, turns, requests, rate limits, tries
again, questions, calls and background commands, with arrows from the call that began an
agent to its start and from its end to where that was told. A session that was killed or
still runs is traced up to its last record; what has no end there is marked `unfinished`.

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
    /// Which session; the latest of this folder if left out.
    pub session: Option<String>,

    /// Where the trace goes; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<Utf8PathBuf>,

    /// Draw a picture into this file; without -o, only that.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<Utf8PathBuf>,

    /// Replace files that are there.
    #[arg(long)]
    pub force: bool,

    /// Say as JSON what was written.
    #[arg(long)]
    pub json: bool,
}

/// What to do about tasks. An id may be cut short as long as it is clear.
#[derive(Debug, Subcommand)]
pub enum TasksCommand {
    /// Every task and every open question (the default).
    List,
    /// One task.
    Show {
        /// Which.
        id: String,
    },
    /// Print a task's output as it grows; exits as the task ends.
    Follow {
        /// Which.
        id: String,
    },
    /// End a task and everything below it.
    Stop {
        /// Which.
        id: String,
    },
    /// Hold an agent: what it has under way comes to its end, and it begins nothing more.
    ///
    /// It keeps no place among those that work and none in the line for the provider, its time does not run, and it
    /// is still held when its session is resumed. It can be told things meanwhile, stopped, and given another budget.
    Pause {
        /// Which.
        id: String,
        /// Everything below it too, with whatever it still begins.
        #[arg(long)]
        tree: bool,
    },
    /// Let an agent go on that is held; where too many work, it waits for a place.
    Continue {
        /// Which.
        id: String,
        /// Everything below it too.
        #[arg(long)]
        tree: bool,
    },
    /// Show an agent's budget, or give it another while it works.
    #[command(
        after_help = "What is not given stays as it is. Tokens and dollars are totals: they count what the agent and
those below it have used already, in all its runs. Turns and seconds count from its last
prompt. More than is left above it, in the budgets of the agents that it works for and of
the session, is refused; one that has ended has the new budget when it is resumed.

Examples:
  decurion tasks budget a01             what it may use
  decurion tasks budget a01 --turns 40  let it go on beyond its 20 turns
  decurion tasks budget a01 --usd 0.50 --tokens 200000
  decurion tasks budget a01 --turns 60 && decurion tasks resume a01"
    )]
    Budget {
        /// Which.
        id: String,
        /// Model turns.
        #[arg(long, value_name = "N")]
        turns: Option<u32>,
        /// Dollars.
        #[arg(long, value_name = "DOLLARS")]
        usd: Option<f64>,
        /// Tokens of all classes.
        #[arg(long, value_name = "N")]
        tokens: Option<u64>,
        /// Wall time, without that in which it is held.
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// Agents that it may start.
        #[arg(long, value_name = "N")]
        spawns: Option<u32>,
    },
    /// Tell an agent something; one that has ended goes on with it.
    Resume {
        /// Which.
        id: String,
        /// What to tell it; to continue, if left out.
        prompt: Option<String>,
    },
    /// Answer a question.
    Answer {
        /// The question, or the task that asks it; `main` for the session's own agent.
        #[arg(value_name = "QUESTION-OR-TASK")]
        target: String,
        /// Whether the call may run; or the server that asks is answered.
        verdict: Verdict,
        /// With deny: what the agent is told.
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
        /// With allow, where an MCP server asks: the filled-in form as JSON, or `-` to read it from standard
        /// input, which no other user of this machine sees. It goes to the server and into no record.
        #[arg(long, value_name = "JSON")]
        content: Option<String>,
    },
}

/// An answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Verdict {
    /// The call runs.
    Allow,
    /// It does not.
    Deny,
}

/// The first argument of the process that guards the processes we start.
pub const GUARD: &str = "__guard";

/// Whether this process was started to be the guard.
pub fn is_guard(argv: &[OsString]) -> bool {
    argv.get(1).is_some_and(|first| first == GUARD)
}

/// The arguments as they are understood, and those that were passed over. A program that leads us may be newer than we
/// are and pass what we do not know: it is said and does no harm. A person who mistypes a flag is told instead.
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

/// What is said of a word too many, which would pass for a command; none for other mistakes.
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
            Failure::usage(format!("a command goes before the options: {name} {word}"))
                .hint(format!("`decurion {name} {word} --help` shows the options it takes"))
                .hint("a prompt of several words goes in quotes"),
        );
    }
    Some(
        Failure::usage(format!("one argument too many: {}", crate::report::visible(word)))
            .hint("the prompt is one argument: put it in quotes")
            .hint("several rules go into one --allowedTools, with commas between them")
            .hint("the name of a worktree is given with an equals sign: --worktree=NAME"),
    )
}
