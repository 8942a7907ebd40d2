//! The program from outside: arguments and requests in, lines, exit codes and files out.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agent_sandbox;
mod agents;
mod agents_stream;
mod audit;
mod bad_input;
mod broken_settings;
mod command_line;
mod denied_types;
mod edit_attacks;
mod equipment;
mod escapes;
mod exit_codes;
mod git_attacks;
mod given_attacks;
mod glob_attacks;
mod guide;
mod hosting;
mod hosts_gone;
mod inside;
mod led;
mod left_by_commands;
mod long_hooks;
mod long_requests;
mod masked;
mod models;
mod moved;
mod option_attacks;
mod own_children;
mod private;
mod protected;
mod questions;
mod repositories;
mod rule_attacks;
mod sandbox;
mod sandbox_git;
mod sandbox_questions;
mod sandbox_rules;
mod sandbox_worktrees;
mod sdk;
mod sdk_examples;
mod sdk_guide;
mod servers;
mod services;
mod sessions;
mod shell_attacks;
mod stand;
mod survivors;
mod talk;
mod tasks;
mod terminal;
mod thirty_turns;
mod traces;
mod way_attacks;
mod withheld;
mod worktrees;

/// A test file that is not named above would never run.
#[test]
fn no_file_is_forgotten() {
    let main = include_str!("main.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap_or("main");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name}");
    }
}
