//! MCP servers: other programs' tools. Takes servers as the settings decided them, gives tools like any
//! other, named `mcp__server__tool`.
//!
//! A [`Pool`] has one [`Server`] per distinct declaration; whoever uses it holds a [`Lease`], and the last to
//! let go ends it. A server is an actor that starts, watches and restarts its process (or address); calls go
//! straight to the connection. Nothing a server does — dying, hanging, flooding, lying — reaches further than
//! its own calls.

pub mod bridge;
mod client;
mod content;
mod elicit;
mod hosted;
mod lines;
pub(crate) mod link;
pub mod manifest;
mod metered;
pub mod pool;
pub mod prompts;
pub mod resources;
mod ring;
pub mod server;
mod sse;
mod web;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_exec::Launch;
use decurion_protocol::link::BoxFuture;
use decurion_protocol::mcp::{Manifests, McpServer};
use decurion_protocol::{Elicitation, Elicited};
use serde_json::Value;

use crate::oauth::Leave;

pub use pool::{Lease, Pool};
pub use server::{Server, State};

/// What servers are given and whom they reach.
#[derive(Clone)]
pub struct McpHost {
    /// Who starts processes; none where there are none.
    pub processes: Option<decurion_exec::Guard>,
    /// The whole environment of a server, before its own variables.
    pub environment: Arc<[(OsString, OsString)]>,
    /// Where servers start, and what they are told is being worked on.
    pub root: Utf8PathBuf,
    /// What was offered before; none keeps nothing.
    pub manifests: Option<Arc<dyn Manifests>>,
    /// Logins at servers by address; none has none.
    pub logins: Option<Arc<dyn Logins>>,
    /// The way to servers that live in the program that leads the session; none where nobody does.
    pub leader: Option<Arc<dyn HostMessages>>,
    /// Puts programs into their sandbox; none starts them without one.
    pub sandbox: Option<Arc<dyn Confine>>,
    /// The first pause before a server that went away is started again: [`server::FIRST_PAUSE`], or less in
    /// tests.
    pub pause: Duration,
    /// Who is told when a server is given up or changes what it offers. Must be quick.
    pub notice: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl fmt::Debug for McpHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpHost").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Keeps the programs of servers from what they may not do.
pub trait Confine: Send + Sync {
    /// The same launch in the server's sandbox, or as it is where the settings exempt the server. Looks at the disk. The
    /// error is why it cannot be started.
    fn confine(&self, server: &McpServer, launch: Launch) -> Result<Launch, String>;

    /// What the sandbox kept a server from, and what to do about it, as far as what it printed tells.
    fn explain(&self, server: &McpServer, printed: &str, sign: Sign) -> Option<String>;
}

/// How sure it has to be that a sandbox was the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It may have been: the program failed.
    Likely,
    /// Nothing else can have been.
    Sure,
}

/// Something about a server that a person should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub server: String,
    /// What happened, and what to do.
    pub text: String,
}

/// Leave that servers by address have given us, by the fingerprint of their declaration.
pub trait Logins: Send + Sync {
    /// What was given; none where nobody logged in.
    fn load(&self, hash: &str) -> Option<Leave>;

    /// Keeps this in place of what was kept before.
    fn keep(&self, hash: &str, leave: &Leave) -> io::Result<()>;

    /// The time, in seconds since 1970.
    fn now(&self) -> i64;
}

/// Carries messages to servers that live in the program that leads the session.
pub trait HostMessages: Send + Sync {
    /// Gives a JSON-RPC message to the server of this name; the server's answer, which for a notification says
    /// nothing, or why there is none. Asked at once, so that messages keep their order; dropping the future takes the
    /// message back.
    fn send(
        &self,
        server: &str,
        message: Value,
        limit: Duration,
    ) -> BoxFuture<'static, Result<Value, String>>;

    /// What the server of this name said of itself beforehand, given away to the first connection; none if it is to
    /// be asked.
    fn introduction(&self, _server: &str) -> Option<Introduction> {
        None
    }
}

/// What a server said of itself beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct Introduction {
    /// Its answer to `initialize`.
    pub initialize: Value,
    /// Its answer to `tools/list`; none if that is to be asked.
    pub tools: Option<Value>,
}

/// Puts what a server asks before a person, in the name of one call of its tools.
pub trait Elicit: Send + Sync {
    /// The person's answer, or a refusal where nobody can be asked. Dropping the future takes the question back.
    fn ask(&self, elicitation: Elicitation) -> BoxFuture<'_, Elicited>;
}
