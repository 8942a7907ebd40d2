//! Everything the crate promises, tested from outside: what goes onto the wire, what comes off it in any
//! cut, scripts, and the gateway in simulated time.
// Helpers count as tests: what cannot go on should stop.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string)]

mod decode;
mod gateway;
mod loopback;
mod script;
mod stage;
mod wire;

#[test]
fn no_test_file_is_forgotten() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(here.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name} is not run");
    }
}
