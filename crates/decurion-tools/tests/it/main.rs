//! The built-in tools as a run uses them: an input goes in, an output, files and effects come out.

// The helpers are test code too, though no test attribute stands on them.
#![allow(clippy::unwrap_used)]

mod fetch;
mod files;
mod grammar;
mod notebooks;
mod oauth;
mod reading;
mod schemas;
mod searching;
mod shell;
mod stage;
mod writing;

#[test]
fn no_test_file_is_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") {
            assert!(main.contains(&format!("mod {module};")), "{module} is not part of the tests");
        }
    }
}
