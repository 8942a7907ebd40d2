//! MCP servers as data: which exist (decided by the settings), what each offered when it was approved, and their
//! status. The code that talks to them is in the tools; nothing here does.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long a server may take to start and say what it offers, unless its declaration says otherwise.
pub const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call may take, unless the declaration says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_mins(2);

/// A server, decided: variables are expanded and nothing is left to look up. Its variables and headers may
/// be secrets, so printing it for debugging shows only names.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpServer {
    /// The name people gave it.
    pub name: String,
    /// What stands for it in the names of its tools: `mcp__<this>__<tool>`. Unique among a session's servers.
    pub short: String,
    /// How to reach it.
    pub transport: McpTransport,
    /// Whether every agent gets its own process.
    pub private: bool,
    /// How long it may take to start and say what it offers.
    pub start_timeout: Duration,
    /// How long one call may take.
    pub call_timeout: Duration,
    /// Where it came from.
    pub source: McpSource,
    /// A fingerprint of its declaration as written: equal declarations share a process, an approval is of one
    /// fingerprint, and what it offered is kept under it.
    pub hash: String,
}

/// How a server is reached.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum McpTransport {
    /// A program that speaks over its standard input and output.
    Stdio {
        command: String,
        args: Vec<String>,
        /// Variables besides those every server gets.
        env: BTreeMap<String, String>,
        /// Where it starts; none is the project's folder.
        cwd: Option<Utf8PathBuf>,
    },
    Http {
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
    /// HTTP with server-sent events, as old servers have it.
    Sse {
        /// The address of the stream.
        url: String,
        /// Headers of every request.
        headers: BTreeMap<String, String>,
    },
    /// It lives in the program that leads the session, under its name.
    Host,
}

impl McpTransport {
    /// The word for it in declarations.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stdio { .. } => "stdio",
            Self::Http { .. } => "http",
            Self::Sse { .. } => "sse",
            Self::Host => "sdk",
        }
    }

    /// One line for people: the command or the address, without variables and headers.
    pub fn summary(&self) -> String {
        match self {
            Self::Stdio { command, args, .. } => {
                std::iter::once(command).chain(args).map(String::as_str).collect::<Vec<_>>().join(" ")
            }
            Self::Http { url, .. } | Self::Sse { url, .. } => url.clone(),
            Self::Host => "in the program that leads the session".to_owned(),
        }
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {}, {:.8})", self.name, self.transport.name(), self.source, self.hash)
    }
}

impl fmt::Debug for McpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a server was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpSource {
    Plugin,
    User,
    Project,
    /// The project's files for this user alone.
    Local,
    Flag,
    Agent,
    Managed,
    /// The program that leads the session.
    Sdk,
}

impl McpSource {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::User => "user",
            Self::Project => "project",
            Self::Local => "local",
            Self::Flag => "flag",
            Self::Agent => "agent",
            Self::Managed => "managed",
            Self::Sdk => "sdk",
        }
    }
}

impl fmt::Display for McpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a server offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Its tools, by name.
    pub tools: Vec<OfferedTool>,
    /// Its prompts, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<OfferedPrompt>,
    /// Whether it has resources.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resources: bool,
}

impl Manifest {
    /// The tool of this name, in the server's words.
    pub fn tool(&self, name: &str) -> Option<&OfferedTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// A tool in its server's words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OfferedTool {
    pub name: String,
    /// Its own description.
    pub description: String,
    /// The JSON Schema of its input.
    pub input_schema: Value,
    /// Whether it says that it changes nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A prompt in its server's words; a person gets it by the command `/mcp__server__prompt`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OfferedPrompt {
    pub name: String,
    /// Its own description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// The names of its arguments, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<String>,
    /// Those of them that must be given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<String>,
}

/// Keeps what servers offered when they were first used or approved, by the fingerprint of their
/// declaration.
pub trait Manifests: Send + Sync {
    /// What was kept; none for a server that is not known, or where it cannot be read.
    fn load(&self, hash: &str) -> Option<Manifest>;

    /// Keeps this in place of what was kept before.
    fn keep(&self, hash: &str, manifest: &Manifest) -> io::Result<()>;
}

/// How a server of a session is doing, for listings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct McpStatus {
    pub name: String,
    /// How it is doing.
    pub status: McpHealth,
    /// Where it came from.
    pub source: McpSource,
    /// Why, where it is not connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a person can type to get its prompts, without the slash, as far as is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// All known facts about a server of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct McpDetail {
    /// How it is doing.
    #[serde(flatten)]
    pub status: McpStatus,
    /// The word for how it is reached; none where its declaration cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// What it calls itself, and in which version, while it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_itself: Option<(String, String)>,
    /// Its tools, as far as is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<OfferedTool>,
}

/// How a server is doing, in the words of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum McpHealth {
    Connected,
    /// It is being started, now or again in a while.
    Pending,
    /// It is given up.
    Failed,
    /// A person must log in.
    NeedsAuth,
    /// It is switched off, or waits for trust or approval.
    Disabled,
}

impl McpHealth {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Pending => "pending",
            Self::Failed => "failed",
            Self::NeedsAuth => "needs-auth",
            Self::Disabled => "disabled",
        }
    }
}
