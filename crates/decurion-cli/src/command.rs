//! One file per subcommand: each takes its arguments and gives an exit code.

pub mod agents;
pub mod attach;
pub mod audit;
pub mod config;
pub mod demo;
pub mod doctor;
mod explain;
pub mod interact;
pub mod login;
pub mod mcp;
pub mod merge;
pub mod pages;
pub mod permissions;
pub mod plugin;
pub mod proofs;
pub mod run;
pub mod sandbox;
pub mod sessions;
mod start_check;
pub mod tasks;
pub mod trace;
pub mod trust;
pub mod worktrees;
