//! The terminal front end through its public face: what is drawn, as text.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::needless_raw_string_hashes)]

mod bottom;
mod calls;
mod caption;
mod code;
mod commanding;
mod deciding;
mod diff;
mod help;
mod leaving;
mod live_line;
mod looks;
mod markdown;
mod popup;
mod screens;
mod todos;
mod tree;
mod working;

/// A test file that is not named above would never run.
#[test]
fn no_file_is_forgotten() {
    let main = include_str!("main.rs");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            continue;
        }
        let name = entry.file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap_or("main");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name}");
    }
}
