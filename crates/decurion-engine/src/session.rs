//! The session's side of the engine: the actor that owns a session's state, and what it starts, resumes and ends. Takes
//! commands and requests of runs, gives events; the loop's side knows none of it but [`crate::session_port`].
//!
//! | file | takes | makes |
//! |---|---|---|
//! | `actor.rs`, `state.rs`, `inbox.rs`, `prompts.rs`, `questions.rs`, `root.rs` | commands of front ends, requests of runs | work for a run |
//! | `parts.rs`, `open.rs`, `resume.rs`, `rights_changes.rs` | what was asked for, a journal | a session, as it was if it is resumed |
//! | `spec.rs`, `fork.rs` | a request and what was recorded | a `RunSpec` |
//! | `tree.rs`, `tree/` | what runs want of agents | agents begun, paused, told, revived and ended |
//! | `run_task.rs`, `resources.rs` | a run and its conversation | a living run, and its ending on record |
//! | `inspect.rs`, `listing.rs`, `rewind.rs`, `settings_writer.rs`, `servers.rs` | one command each | its reply |

pub mod actor;
pub mod fork;
pub mod inbox;
pub mod inspect;
pub mod listing;
pub mod open;
pub mod parts;
pub mod prompts;
pub mod questions;
pub mod resources;
pub mod resume;
pub mod rewind;
pub mod rights_changes;
pub mod root;
pub mod run_task;
pub mod servers;
pub mod settings_writer;
pub mod spec;
pub mod state;
pub mod tree;
