//! The kit's own tests, in one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::needless_pass_by_value)] // in a test a panic is the report

mod dialects;
mod mcp;
mod mcp_addresses;
mod mcp_elicitation;
mod mcp_sessions;
mod programs;
mod server;
mod stream_schema;
mod trace_events;
mod validate_anthropic;
mod validate_openai;

/// A test file that is not listed above would never run.
#[test]
fn no_test_file_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let listed = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") {
            assert!(listed.contains(&format!("mod {module};")), "{name} is not listed in main.rs");
        }
    }
}
