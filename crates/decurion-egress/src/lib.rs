//! The only way out of the sandbox. Takes connections of sandboxed commands, gives them connections to hosts that the
//! rules of their agent allow, and a record of each.
//!
//! [`gate`] decides about a connection, [`rules`] about a host, [`address`] about an address; [`clients`] knows who asks.

pub mod address;
pub mod clients;
pub mod default_hosts;
pub mod gate;
pub mod host;
pub mod rules;

pub use clients::{Client, Clients};
pub use default_hosts::DEFAULT_HOSTS;
pub use gate::{Gate, Grant, Judge, Reason, Refusal, Resolve, SystemResolver, Verdict};
pub use host::{Host, HostError};
pub use rules::{HostRules, PatternError};
