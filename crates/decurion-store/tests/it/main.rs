//! What the store promises, seen from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod adopting;
mod agents;
mod archive;
mod audit;
mod blobs;
mod conformance;
mod damaged;
mod edited;
mod golden;
mod import;
mod later;
mod leases;
mod locks;
mod outputs;
mod places;
mod round_trip;
mod samples;
mod size;
mod torn;

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
