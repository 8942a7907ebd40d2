//! The examples of the Python SDK's source package, as they are. Takes each script from the package that
//! `cargo xtask test --install` unpacked; only the environment is ours: a `claude` on the path that is this
//! program, and the address of a model. Each must end well and without a traceback.

use std::path::Path;

use decurion_testkit::proc::Finished;

use crate::sdk::{PROGRAMS, hosted, installed, nothing_is_left, script_of};
use crate::stand::{DECURION, Stand, finished};

/// An example, its arguments, and what it must have printed.
type Example = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The ones that take no time.
const QUICK: &[Example] = &[
    ("quick_start.py", &[], &["Claude: A plain answer.", "The result was: Created hello.txt.", "Cost: $"]),
    ("agents.py", &[], &["No bugs found", "It defines an agent", "There are many"]),
    ("filesystem_agents.py", &[], &["A plain answer."]),
    ("include_partial_messages.py", &[], &["content_block_delta"]),
    ("plugin_example.py", &[], &["demo-plugin"]),
    ("setting_sources.py", &["all"], &["User Settings Only"]),
    ("stderr_callback_example.py", &[], &["Captured"]),
    ("system_prompt.py", &[], &["Claude: A plain answer."]),
    ("tools_option.py", &[], &["Read", "Glob", "Grep"]),
    ("streaming_mode_trio.py", &[], &["Claude: A plain answer."]),
    ("tool_permission_callback.py", &[], &["Redirecting write from", "Tool Usage Summary", "1. Tool:"]),
];

/// The ones about functions of the host.
const HOSTED: &[Example] = &[
    ("hooks.py", &["all"], &["Command contains invalid pattern: foo.sh", "Security policy blocks writes"]),
    ("mcp_calculator.py", &[], &["15 + 27 = 42", "√144 = 12.0", "2^8 = 256"]),
];

/// The ones that wait: they interrupt a turn after a while.
const SLOW: &[Example] = &[
    ("streaming_mode.py", &["all"], &["Why not."]),
    ("streaming_mode_ipython.py", &[], &["Why not.", "Total messages: "]),
];

/// The one that ends with the SDK's exception: its last case asks for more than its budget, and the SDK raises whenever
/// a session ends with an error, as it documents.
const RAISING: &str = "max_budget_usd.py";

/// Runs one example in a copy of the package, so that nothing is written into the installed one.
fn run(stand: &Stand, name: &str, arguments: &[&str]) -> Finished {
    let package = stand.home.path().join("package");
    copy(&installed("source"), &package);
    let commands = stand.home.path().join("bin");
    std::fs::create_dir(&commands).unwrap();
    std::os::unix::fs::symlink(DECURION, commands.join("claude")).unwrap();
    let example = stand
        .home
        .program(installed("venv/bin/python"))
        .arg("-B")
        .args(name.ends_with("_ipython.py").then(|| format!("{PROGRAMS}/tools/cells.py")))
        .arg(package.join("examples").join(name))
        .args(arguments)
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", commands.display()));
    finished(hosted(example, &stand.model))
}

/// Copies the folders of examples and sources.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What is wrong with how an example went.
fn problems(ended: &Finished, wanted: &[&str]) -> Vec<String> {
    let output = ended.output();
    let mut problems: Vec<String> = wanted
        .iter()
        .filter(|text| !output.contains(*text))
        .map(|text| format!("it did not print {text:?}"))
        .collect();
    if ended.ending.code() != 0 {
        problems.push(format!("its exit code is {}", ended.ending.code()));
    }
    if output.contains("Traceback") || ended.errors.contains("Traceback") {
        problems.push("a traceback".to_owned());
    }
    problems
}

fn check(examples: &[Example]) {
    let script = script_of("examples");
    for (name, arguments, wanted) in examples {
        let stand = Stand::new(&script);
        let ended = run(&stand, name, arguments);
        assert_eq!(problems(&ended, wanted), Vec::<String>::new(), "{name}: {ended:#?}");
        assert_eq!(stand.model.problems(), Vec::<String>::new(), "{name}");
        nothing_is_left(&stand.home);
    }
}

#[test]
fn the_examples_of_the_python_sdk_run() {
    check(QUICK);
}

#[test]
fn its_examples_with_functions_of_the_host_run() {
    check(HOSTED);
}

#[test]
fn its_examples_that_interrupt_run() {
    check(SLOW);
}

#[test]
fn its_example_of_a_budget_runs_to_its_end() {
    let stand = Stand::new(&script_of("examples"));
    let ended = run(&stand, RAISING, &[]);
    let output = ended.output();
    for wanted in
        ["Without Budget Limit", "Status: success", "Status: error_max_budget_usd", "Budget limit exceeded!"]
    {
        assert!(output.contains(wanted), "{wanted}: {ended:#?}");
    }
    assert!(ended.errors.contains("ResultError"), "{ended:#?}");
    assert_eq!(stand.model.problems(), Vec::<String>::new());
    nothing_is_left(&stand.home);
}

/// An example that a newer package brings is not overlooked.
#[test]
fn every_example_of_the_package_is_named() {
    let named = QUICK.iter().chain(HOSTED).chain(SLOW).map(|(name, ..)| *name).chain([RAISING]);
    let mut named: Vec<String> = named.map(str::to_owned).collect();
    let entries = std::fs::read_dir(installed("source/examples")).unwrap().flatten();
    let mut there: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "py"))
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
}
