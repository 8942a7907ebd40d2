//! The doors for programs and scripts. Takes a [`decurion_protocol::Link`] and a prompt or a host's lines,
//! gives lines: the answer, one JSON object, or a JSON line per event. This crate cannot name the engine.

pub mod control;
pub mod converse;
pub mod headless;
mod host;
pub mod initialize;
pub mod input;
mod lines;
pub mod mcp;
pub mod progress;
pub mod socket;
mod state;
pub mod stream_json;
mod tasks;
pub mod trace;
mod truncate;

pub use control::{HostFacts, NothingKnown};
pub use converse::{HostAgent, HostCommand, HostOutput, not_started, refusal};
pub use headless::{Finish, Format, Headless, LineWriterQueue, ProgressOutput, SessionWorktree, StopSignal};
pub use initialize::{Initialize, ServerManifest, WantedPlugin};
pub use input::{HostReader, Patience};
pub use mcp::McpServe;
pub use state::StateLines;
pub use stream_json::{Callables, ListedPlugin, StreamFacts, StreamJson};
