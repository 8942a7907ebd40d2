//! Sessions, the loop, permission, tasks: a [`Place`] where agents run.
//!
//! A prompt walks through these rooms in one direction; each takes what the one before made. The session's side
//! (`session`) may name all others; no other room names the session but by `session_port`.
//!
//! | room | files | takes | makes |
//! |---|---|---|---|
//! | 1 session | `session` | commands, requests of runs | a `RunSpec`, a living run, its ending on record |
//! | 2 loop | `run`, `progress`, `spending`, `compact` | a run and its conversation | turns, until an outcome |
//! | 3 context | `context`, `branch` | the journal so far | the messages of a request |
//! | 4 turn | `turn` | a request | one message |
//! | 5 calls | `calls`, `structured` | the message's calls | an order, and what may overlap |
//! | 6 call | `call`, `shell`, `skill`, `agent_tools`, `attach`, `run_hooks`, `permission_tool`, `person_tools`, `elicit`, `checkpoint`, `audit`, `witness`, `spill` | one call | its result |
//! | 7 way to the session | `run_handle`, `session_port`, `foreground`, `approval`, `bench`, `equipment` | what a run wants of its session | an answer |
//! | 8 rules | `permission`, `rules`, `bounds`, `confine`, `symlinks`, `withheld` | what a call would touch | whether it may |
//! | 9 walls | `sandbox`, `egress`, `footprint`, `small_file`, `repository`, `git` | the rules | what the kernel and the proxy let through |
//! | 10 around | `mcp`, `hook`, `host`, `worktree`, `merge` | servers, hooks, the host, git worktrees | tools, answers, folders |
//! | 11 facts | `task`, `budget`, `child`, `notice`, `prompt`, `ports`, `scale` | events, settings | tables, decisions, texts |
//! | 12 journal | `journal`, `live` | events | numbered lines on disk, then the same to every reader |
//!
//! The engine never prints, reads no configuration, and names no front end and no provider.

pub mod agent_tools;
pub mod approval;
mod attach;
mod audit;
mod bench;
pub mod bounds;
mod branch;
pub mod budget;
mod call;
mod calls;
pub mod checkpoint;
pub mod child;
mod compact;
mod confine;
pub mod context;
pub mod egress;
mod elicit;
mod equipment;
mod footprint;
mod foreground;
mod git;
pub mod hook;
pub mod host;
pub mod journal;
mod live;
pub mod mcp;
pub mod merge;
pub mod notice;
pub mod permission;
mod permission_tool;
mod person_tools;
pub mod ports;
mod progress;
pub mod prompt;
pub mod repository;
mod rules;
mod run;
pub mod run_handle;
mod run_hooks;
pub mod sandbox;
mod scale;
mod session;
mod session_port;
mod shell;
pub mod skill;
mod small_file;
pub mod spending;
mod spill;
mod structured;
pub mod symlinks;
pub mod task;
mod turn;
mod withheld;
mod witness;
pub mod worktree;

pub use child::AgentSettings;
pub use journal::Durability;
pub use ports::{
    Audit, Compaction, Definitions, Instructions, Kept, Library, Memory, Model, Models, NoAudit, NoLibrary,
    NoSettings, Redact, Settings,
};
pub use session::open::Engine;
pub use session::parts::Parts;
pub use session::{fork, listing};
