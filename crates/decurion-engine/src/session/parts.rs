//! What an engine is made of. Takes every decision of whoever wires the program; the engine reads no configuration.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_exec::Guard;
use decurion_protocol::{Clock, HookDeclaration, Mode, RuleSet};
use decurion_tools::{ToolLimits, ToolSet};

use crate::child::AgentSettings;
use crate::egress::Egress;
use crate::journal::Durability;
use crate::mcp::McpParts;
use crate::permission::{Undecided, UserFiles};
use crate::sandbox::SandboxMaker;
use crate::worktree::Worktrees;

use crate::ports::{Audit, Compaction, Definitions, Instructions, Library, Models, Redact, Settings};

/// All that an engine is made of.
pub struct Parts {
    pub models: Arc<dyn Models>,
    /// Every tool there is, less those of the engine.
    pub tools: Arc<ToolSet>,
    /// The MCP servers; none where there are none.
    pub mcp: Option<McpParts>,
    /// The agents that can be started.
    pub agents: Arc<dyn Definitions>,
    /// What the settings say about them.
    pub agent_settings: AgentSettings,
    /// What agents read besides.
    pub library: Arc<dyn Library>,
    /// Characters of the list of skills; none leaves it to the model's window.
    pub skill_listing_chars: Option<usize>,
    /// How long a session that is to finish waits for the shells of its root.
    pub background_wait: Duration,
    pub archive: Arc<decurion_store::Archive>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    pub processes: Option<Guard>,
    /// What commands are kept from by the kernel; none where nothing is.
    pub sandbox: Option<Arc<SandboxMaker>>,
    /// The way to the network for sandboxed commands; none where they have that of the machine, or no sandbox.
    pub egress: Option<Arc<Egress>>,
    /// Hosts that the settings deny, for tools that connect themselves.
    pub denied_hosts: Vec<String>,
    /// The environment of shells.
    pub environment: Arc<[(OsString, OsString)]>,
    /// What tools may take and give.
    pub tool_limits: Arc<ToolLimits>,
    /// The rules of the settings.
    pub rules: RuleSet,
    /// Where rules are kept that are to outlast the session.
    pub settings: Arc<dyn Settings>,
    /// Where permission decisions are recorded.
    pub audit: Arc<dyn Audit>,
    /// The mode of the settings.
    pub mode: Mode,
    /// Whether the mode `bypassPermissions` is available.
    pub bypass: bool,
    /// What `dontAsk` does with what no rule decides.
    pub undecided: Undecided,
    /// How long a question waits for its answer; none is for ever.
    pub answer_timeout: Option<Duration>,
    /// What `~` stands for.
    pub home: Option<Utf8PathBuf>,
    /// What programs of the user run or are configured by elsewhere than in the home folder.
    pub user_files: Arc<UserFiles>,
    /// Further directories of the settings.
    pub directories: Vec<Utf8PathBuf>,
    /// The git branch of the working directory.
    pub git_branch: Option<String>,
    /// Configuration folders of other programs whose transcripts can be taken up.
    pub foreign: Vec<Utf8PathBuf>,
    /// Texts that instruct every agent.
    pub instructions: Vec<Instructions>,
    /// Facts about the machine for the model: platform, shell.
    pub machine: String,
    pub durability: Durability,
    /// How long a journal that cannot be written is tried; none is for ever.
    pub journal_patience: Option<Duration>,
    /// Whether the journal is written where it is asked for; for simulated time.
    pub journal_here: bool,
    /// When conversations are shortened.
    pub compaction: Compaction,
    /// The hooks of the settings.
    pub hooks: Vec<HookDeclaration>,
    /// The environment of hooks.
    pub hook_environment: Arc<[(OsString, OsString)]>,
    /// Takes secrets out of tool output.
    pub redact: Redact,
    /// Makes checkouts of their own for agents; none where there is no state folder or nothing can be started.
    pub worktrees: Option<Worktrees>,
    /// Version of the program, for the record.
    pub version: String,
}
