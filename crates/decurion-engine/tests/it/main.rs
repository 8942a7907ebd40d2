//! Behaviour of the engine, played on a stage: a script for the model and the log it must produce.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod agents;
mod agents_again;
mod agents_answers;
mod agents_crash;
mod agents_limits;
mod agents_rights;
mod agents_words;
mod asking;
mod auditing;
mod branching;
mod budgets;
mod carrying;
mod children;
mod damage;
mod elicitation;
mod endings;
mod faults;
mod folding;
mod holding;
mod hooking;
mod hooks;
mod hosting;
mod interrupts;
mod isolated;
mod keeping;
mod library;
mod linked;
mod loops;
mod merging;
mod overflow;
mod permission;
mod permits;
mod planning;
mod queueing;
mod rebudgeting;
mod rejections;
mod relocating;
mod resuming;
mod rewinding;
mod sandboxes;
mod stuck_disk;
mod support;
mod typing;
mod worktrees;
