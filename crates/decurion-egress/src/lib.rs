//! The only way out of the sandbox. Takes connections of sandboxed commands, gives them connections to hosts that the
//! rules of their agent allow, and a record of each.
//!
//! [`Proxy`] accepts connections, in HTTP (CONNECT and `http://` URLs) or SOCKS5 on the same port. [`Gate`] decides about
//! each, for the client that presents a token ([`Clients`]): by its [`HostRules`], by the answer of a person ([`Judge`]) and
//! by the addresses to which the name leads. Every connection ends in a record ([`Recorder`]).
//! Secrets that commands may use and not read are put into their requests here ([`Masked`]).
//!
//! What this does not prevent: data can leave towards every host that is allowed. In a tunnel on another port than 443,
//! plain bytes are not looked at, so a server that serves several names may be asked for another of them; the same holds
//! inside TLS, where a server may answer for names other than that of the hello.

pub mod address;
mod client_hello;
mod clients;
mod connection;
mod default_hosts;
mod environment;
mod fault;
mod gate;
mod host;
mod http;
mod inbound;
mod masking;
mod proxy;
pub mod reach;
mod record;
mod relay;
pub mod rules;
mod socks;
mod tunnel;

pub use clients::{Client, Clients};
pub use connection::{Dial, ProxyLimits, SystemDialer};
pub use default_hosts::DEFAULT_HOSTS;
pub use environment::environment;
pub use gate::{EgressRefusal, Gate, Grant, Judge, Reason, Resolve, SystemResolver, Verdict};
pub use host::{Host, HostError};
pub use masking::{
    Masked, MaskedError, Secret, environment_for_ca, spellings, system_roots_pem, unusable_secret_host,
};
pub use proxy::{Proxy, ProxyParts};
pub use record::{ConnectionRecord, Ending, RecordedVerdict, Recorder};
pub use rules::{HostRules, PatternError};
