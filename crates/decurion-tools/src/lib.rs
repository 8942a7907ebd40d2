//! The contract of a tool, and the tools built in. Takes a model's call and what surrounds it; gives first
//! what the call would touch, without doing anything, and then, when it is run, what the model will read.
//!
//! A tool knows no agent, no model and no session. It is one file, with what the model is told about it in
//! a Markdown file beside it, and one line in [`builtin`].

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::link::BoxFuture;
use decurion_protocol::{Access, CallId, Intent, RunId, ToolOutput};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub mod alias;
pub mod bash;
mod cargo_home;
pub mod edit;
pub mod fetch;
mod files;
pub mod files_seen;
pub mod folder;
pub mod glob;
pub mod grep;
mod grep_file;
mod html;
pub mod http;
mod lines;
pub mod mcp;
mod notebook;
pub mod notebook_edit;
pub mod oauth;
mod patch;
pub mod paths;
mod printed;
pub use decurion_egress::reach;
pub mod read;
pub mod restore;
mod search;
pub mod set;
pub mod shell;
pub mod todo;
pub mod typed;
pub mod write;

pub use files::open_ordinary;
pub use files_seen::FilesSeen;
pub use http::Http;
pub use printed::Printed;
pub use search::trap_in;
pub use set::{ToolSet, builtin, builtin_with};

/// What a model is told about a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name it is called by.
    pub name: String,
    /// What it is for and how to use it.
    pub description: String,
    /// The JSON Schema of its input; see [`typed`] for the part of JSON Schema that is understood.
    pub input_schema: Value,
}

impl ToolSpec {
    /// A spec of these; the line break at the end of a description file is not part of it.
    pub fn new(name: &str, description: &str, input_schema: Value) -> Self {
        Self { name: name.to_owned(), description: description.trim_end().to_owned(), input_schema }
    }
}

pub trait Tool: Send + Sync {
    /// What the model is told. The same for the whole life of the tool.
    fn spec(&self) -> &ToolSpec;

    /// What this input would touch. Pure: no I/O, so permission, scheduling and display agree on it. An
    /// input that [`Tool::run`] would refuse as malformed is refused here in the same words.
    fn intent(&self, input: &Value, around: &Surroundings) -> Result<Intent, InputError>;

    /// Whether a call can work as things are now, before a person is asked about it. Looks and changes nothing. The tool
    /// looks again when it runs.
    fn check<'a>(&'a self, _cx: &'a ToolContext, _input: &'a Value) -> BoxFuture<'a, Check> {
        Box::pin(std::future::ready(Check::default()))
    }

    /// Does it. A failed tool is still an output: the model reads it and tries something else. Must return
    /// soon after `cx.cancel` fires, and must leave nothing half-written when it is dropped instead.
    fn run<'a>(&'a self, cx: &'a ToolContext, input: Value) -> BoxFuture<'a, ToolOutput>;
}

/// What [`Tool::check`] finds.
#[derive(Debug)]
pub enum Check {
    /// It cannot work, such as an edit of a text that is not there. This is its answer.
    Fails(Box<ToolOutput>),
    /// It may work. An edit of a file tells what it would change, in the shape of `structuredPatch`.
    Works { patch: Option<Value> },
}

impl Default for Check {
    fn default() -> Self {
        Self::Works { patch: None }
    }
}

/// Where a call happens: all that [`Tool::intent`] may know besides the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// The working directory, absolute. Relative paths start here.
    pub cwd: Utf8PathBuf,
    /// What `~` stands for.
    pub home: Option<Utf8PathBuf>,
    /// The directories the run may use, absolute; the project's comes first.
    pub directories: Vec<Utf8PathBuf>,
}

/// Built for one call, borrowed by the tool, dropped with it.
pub struct ToolContext {
    /// The run that calls.
    pub run: RunId,
    pub call: CallId,
    /// The name it was called by, which may be an older one.
    pub called: String,
    pub around: Surroundings,
    /// Fires when the call should stop.
    pub cancel: CancellationToken,
    /// Short lines about what is going on. The run holds the other end and shows them; use `try_send`,
    /// since a line that finds no room is not worth waiting for.
    pub progress: mpsc::Sender<String>,
    /// What the run has read so far.
    pub seen: Arc<FilesSeen>,
    /// Where output too long for the conversation goes.
    pub spill: Arc<dyn Spill>,
    /// The last word on paths, once links are resolved.
    pub rules: Arc<dyn PathRules>,
    /// Who starts processes; none where the run may not.
    pub processes: Option<decurion_exec::Guard>,
    /// What a command started for this call may do; none for all that this process may.
    pub sandbox: Option<Arc<decurion_exec::Sandbox>>,
    /// What a command of this call has printed so far.
    pub printed: Arc<Printed>,
    /// Held for as long as a command of this call runs.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
    /// The whole environment of a process started for this call.
    pub environment: Arc<[(OsString, OsString)]>,
    /// How much a tool may take and give.
    pub limits: Arc<ToolLimits>,
    /// The shared web client, made when it is first used.
    pub http: Http,
    /// Turns true when nobody waits for the call any more: what it says goes to its file at once, and its
    /// time is no longer limited.
    pub detached: watch::Receiver<bool>,
    /// Who puts before a person what an MCP server asks while it does this call; none declines.
    pub elicit: Option<Arc<dyn mcp::Elicit>>,
    /// What whoever runs the calls adds for tools of its own; the tools here do not look at it.
    pub host: Option<Arc<dyn Any + Send + Sync>>,
}

/// Where output too long for the conversation goes.
pub trait Spill: Send + Sync {
    /// Makes a new, empty file for the output of this call, readable by the user alone. The call's id is
    /// a model's text and must not become part of the path unchecked. The extension comes without its dot.
    fn create(&self, call: &CallId, extension: &str) -> io::Result<SpillFile>;
}

/// A file made by a [`Spill`].
pub struct SpillFile {
    /// Where it is, for the model to read later.
    pub path: Utf8PathBuf,
    /// Open for writing; flushed by whoever writes it, when all is written.
    pub file: Box<dyn io::Write + Send>,
}

/// The last word on a path. Permission is decided before a call on the paths it names; what those lead to
/// is known only when they are opened, and what a search comes across only while it runs. Tools ask here at
/// that moment, with the path that holds no links, so that a deny rule cannot be walked around.
pub trait PathRules: Send + Sync {
    /// Why this access is refused, if a rule refuses it. Called once per file of a search: must be quick.
    fn refuses(&self, path: &Utf8Path, access: Access) -> Option<String>;

    /// Whether this very place was decided about, so that a link which leads to it out of the allowed
    /// directories is no surprise.
    fn decided(&self, _path: &Utf8Path) -> bool {
        false
    }

    /// What the rules say about an address that a host turned out to have.
    fn address(&self, _address: IpAddr) -> AddressRule {
        AddressRule::Unnamed
    }

    /// Whether a rule allows exactly this host.
    fn names_host(&self, _host: &str) -> bool {
        false
    }
}

/// What rules say about an address of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressRule {
    /// One names it, or its network, and allows it.
    Allowed,
    /// One denies it; why.
    Denied(String),
    Unnamed,
}

/// Rules that refuse nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRules;

impl PathRules for NoRules {
    fn refuses(&self, _path: &Utf8Path, _access: Access) -> Option<String> {
        None
    }
}

/// How much a tool may take and give. Sizes are in bytes unless the name says characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolLimits {
    /// How long a command may run that does not say.
    pub bash_default_timeout: Duration,
    /// How long a command may ask to run.
    pub bash_max_timeout: Duration,
    /// Characters of a result that go into the conversation whole.
    pub inline_chars: usize,
    /// Characters kept from the beginning of a longer one.
    pub head_chars: usize,
    /// Characters kept from its end.
    pub tail_chars: usize,
    /// How much of an output is kept in its file.
    pub spill_bytes: u64,
    /// The most that one read gives.
    pub read_bytes: u64,
    /// The most that one read gives when asked for a large one.
    pub read_large_bytes: u64,
    /// Where a long line is cut.
    pub line_chars: usize,
    /// The largest image, as sent.
    pub image_bytes: u64,
    pub document_bytes: u64,
    /// The largest file that is edited or written.
    pub edit_bytes: u64,
    /// The most paths a Glob gives.
    pub glob_paths: usize,
    /// The most lines or paths a Grep gives that does not say.
    pub grep_entries: usize,
    /// The largest file a Grep looks into.
    pub grep_file_bytes: u64,
    /// The largest page fetched.
    pub fetch_bytes: u64,
    /// How long a fetch may take in all.
    pub fetch_timeout: Duration,
    /// How many redirects are followed.
    pub fetch_redirects: usize,
    /// Characters of a page given at once.
    pub fetch_chars: usize,
    /// Permissions of a new file in the user's tree. The process's own umask is for its own state.
    pub new_file_mode: u32,
    /// Permissions of a new directory in the user's tree.
    pub new_directory_mode: u32,
}

impl Default for ToolLimits {
    fn default() -> Self {
        Self {
            bash_default_timeout: Duration::from_mins(2),
            bash_max_timeout: Duration::from_mins(10),
            inline_chars: 30_000,
            head_chars: 10_000,
            tail_chars: 20_000,
            spill_bytes: 64 << 20,
            read_bytes: 256 << 10,
            read_large_bytes: 4 << 20,
            line_chars: 2_000,
            image_bytes: 5_000_000,
            document_bytes: 10_000_000,
            edit_bytes: 16 << 20,
            glob_paths: 100,
            grep_entries: 250,
            grep_file_bytes: 64 << 20,
            fetch_bytes: 10_000_000,
            fetch_timeout: Duration::from_secs(30),
            fetch_redirects: 5,
            fetch_chars: 50_000,
            new_file_mode: 0o644,
            new_directory_mode: 0o755,
        }
    }
}

/// An input that does not fit its tool: every issue, each naming its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputError {
    pub tool: String,
    /// One line each; never empty.
    pub issues: Vec<String>,
}

impl InputError {
    /// An error of one issue.
    pub fn new(tool: impl Into<String>, issue: impl Into<String>) -> Self {
        Self { tool: tool.into(), issues: vec![issue.into()] }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputValidationError: {} failed due to the following issue(s):", self.tool)?;
        for issue in &self.issues {
            write!(f, "\n{issue}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InputError {}

impl From<InputError> for ToolOutput {
    fn from(error: InputError) -> Self {
        Self::usage_error(error.to_string())
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("run", &self.run)
            .field("call", &self.call)
            .field("around", &self.around)
            .finish_non_exhaustive()
    }
}
