//! The doors as programs meet them: real sockets in temporary folders, a session that only echoes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clients;
mod headless;
mod hosts;
mod leading;
mod mcp;
mod playing;
mod shown;
mod sockets;
mod stage;
mod tracing;
mod unread;

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
