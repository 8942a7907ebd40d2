//! Loading from real folders: each test builds a home and a project and looks at what takes effect.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
#![allow(clippy::type_complexity, reason = "tables of rows are read as rows")]

mod agents;
mod forms;
mod frontmatter;
mod hooks;
mod hostile;
mod keeping;
mod layering;
mod library;
mod mcp;
mod plugins;
mod positions;
mod providers;
mod redaction;
mod secrets;
mod stage;
mod startup;
mod trust;

#[test]
fn no_file_in_this_folder_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let listed = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else { continue };
        assert!(module == "main" || listed.contains(&format!("mod {module};")), "{name}");
    }
}
