//! One file per subcommand: each takes its arguments and gives an exit code.

pub mod agents;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod permissions;
pub mod run;
pub mod sessions;
pub mod trust;
