//! What machines can check about the shape of the tree. Takes the workspace, gives every violation at once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::rooms;
use crate::seeds::{DOCUMENT, Proof, TestName, parse};

/// Which crate may know which. ARCHITECTURE.md draws the same table; change it there first.
const LAYERS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("model", &["protocol"]),
    ("store", &["protocol"]),
    ("exec", &["protocol"]),
    ("egress", &["protocol"]),
    ("config", &["protocol"]),
    ("tools", &["protocol", "exec", "egress"]),
    ("engine", &["protocol", "model", "store", "tools", "exec", "egress"]),
    ("serve", &["protocol"]),
    ("tui", &["protocol"]),
    ("cli", &["protocol", "model", "store", "exec", "egress", "config", "tools", "engine", "serve", "tui"]),
    ("testkit", &["protocol", "model", "store", "exec", "tools", "engine", "tui"]),
];

/// What may be linked in: licences, bans and sources.
const DENY: &str = "deny.toml";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Runs every check and prints the mirror: the longest functions and files.
pub fn run() -> Result<()> {
    let metadata = metadata()?;
    let mut problems = Vec::new();
    layers(&metadata, &mut problems);
    packages(&metadata, &mut problems)?;
    let sources = rust_files(&root().join("crates"))?;
    module_docs(&sources, &mut problems);
    rooms::check(&root().join("crates/decurion-engine/src"), &sources, &mut problems)?;
    forgotten_tests(&mut problems)?;
    machine_paths(&mut problems)?;
    named_tests(&mut problems)?;
    mirror(&sources);
    if problems.is_empty() {
        eprintln!("tidy: {} files, layers, docs, tests and licences in order", sources.len());
        return Ok(());
    }
    bail!("tidy found {} problem(s):\n{}", problems.len(), problems.join("\n"));
}

fn metadata() -> Result<Value> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn ours(name: &str) -> Option<&str> {
    name.strip_prefix("decurion-")
}

fn array<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn layers(metadata: &Value, problems: &mut Vec<String>) {
    for package in array(metadata, "packages").filter(|package| package["source"].is_null()) {
        let Some(name) = ours(text(package, "name")) else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == name) else {
            problems.push(format!("decurion-{name}: not in the table of layers"));
            continue;
        };
        for dependency in array(package, "dependencies") {
            let Some(to) = ours(text(dependency, "name")) else { continue };
            let for_tests = dependency["kind"] == "dev" && (to == "testkit" || to == name);
            if !for_tests && !allowed.contains(&to) {
                problems.push(format!("decurion-{name} may not know decurion-{to}"));
            }
        }
    }
}

/// Sources, licences and bans of everything that is linked in, as `deny.toml` has them.
fn packages(metadata: &Value, problems: &mut Vec<String>) -> Result<()> {
    let rules = fs::read_to_string(root().join(DENY)).with_context(|| format!("cannot read {DENY}"))?;
    let licences = entries(&rules, "licenses", "allow")?;
    let banned = entries(&rules, "bans", "deny")?;
    let registries = entries(&rules, "sources", "allow-registry")?;
    for package in array(metadata, "packages") {
        let name = text(package, "name");
        if banned.contains(&name) {
            problems.push(format!("{name}: banned by {DENY}"));
        }
        let known =
            |source: &str| source.strip_prefix("registry+").is_some_and(|url| registries.contains(&url));
        if let Some(source) = package["source"].as_str().filter(|source| !known(source)) {
            problems.push(format!("{name}: source not in {DENY}: {source}"));
        }
        let licence = text(package, "license");
        let fits = |part: &str| licences.contains(&part.trim().trim_matches(['(', ')']));
        // "A OR B" needs one that fits, "A AND B" needs all; the old form "A/B" means OR.
        let fine = licence.replace('/', " OR ").split(" OR ").any(|choice| choice.split(" AND ").all(fits));
        if !fine {
            problems.push(format!("{name}: licence not in {DENY}: {licence:?}"));
        }
    }
    Ok(())
}

/// The entries of a list in `deny.toml`: the first text in quotes of each of its lines.
fn entries<'a>(rules: &'a str, table: &str, key: &str) -> Result<Vec<&'a str>> {
    let (header, opening) = (format!("[{table}]"), format!("{key} = ["));
    let in_table = rules.lines().skip_while(|line| *line != header).skip(1);
    let in_list =
        in_table.take_while(|line| !line.starts_with('[')).skip_while(|line| *line != opening).skip(1);
    let lines = in_list.take_while(|line| *line != "]");
    let found: Vec<&str> = lines.filter_map(|line| line.split('"').nth(1)).collect();
    if found.is_empty() {
        bail!("{DENY}: no entries in `{key}` of {header}");
    }
    Ok(found)
}

pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn module_docs(sources: &[PathBuf], problems: &mut Vec<String>) {
    for path in sources {
        let content = fs::read_to_string(path).unwrap_or_default();
        if !content.trim_start().starts_with("//!") {
            problems
                .push(format!("{}: does not open with what comes in and what goes out (//!)", short(path)));
        }
    }
}

/// One test binary per crate, and every file in it declared.
fn forgotten_tests(problems: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root().join("crates"))? {
        let tests = entry?.path().join("tests");
        if !tests.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&tests)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                problems.push(format!("{}: tests belong in tests/it/, one binary per crate", short(&path)));
            }
        }
        let main = fs::read_to_string(tests.join("it/main.rs")).unwrap_or_default();
        let declared: BTreeSet<&str> = main
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod "))
            .filter_map(|rest| rest.split([';', ' ']).next())
            .collect();
        for entry in fs::read_dir(tests.join("it"))? {
            let path = entry?.path();
            let is_module = path.extension().is_some_and(|extension| extension == "rs");
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if is_module && stem != "main" && !declared.contains(stem) {
                problems.push(format!("{}: a forgotten test, not declared in main.rs", short(&path)));
            }
        }
    }
    Ok(())
}

/// Nothing committed may name a folder of the machine it was written on.
fn machine_paths(problems: &mut Vec<String>) -> Result<()> {
    let files = Command::new("git").args(["ls-files"]).current_dir(root()).output()?;
    let mark = format!("/{}/main", "work");
    for name in String::from_utf8_lossy(&files.stdout).lines() {
        let content = fs::read_to_string(root().join(name)).unwrap_or_default();
        if content.contains(&mark) {
            problems.push(format!("{name}: names a folder of one machine"));
        }
    }
    Ok(())
}

/// Every test that the seed coverage names is there, and its rows are rows.
fn named_tests(problems: &mut Vec<String>) -> Result<()> {
    let text =
        fs::read_to_string(root().join(DOCUMENT)).with_context(|| format!("cannot read {DOCUMENT}"))?;
    let (rows, mut wrong) = parse(&text);
    problems.append(&mut wrong);
    for row in rows {
        let Proof::Covered { test, path, old, .. } = &row.proof else { continue };
        let at = || format!("{DOCUMENT}:{}: {}", row.line, row.id);
        match fs::read_to_string(root().join(path)) {
            Err(_) => problems.push(format!("{} changes a file that is not there: {path}", at())),
            // A rename may leave it behind: said here, and an error of `seeds`.
            Ok(text) if text.matches(old.as_str()).count() != 1 => {
                eprintln!("{} quotes what is not in {path}, or more than once: {old}", at());
            }
            Ok(_) => {}
        }
        if !exists(test) {
            problems.push(format!("{} names a test that is not there: {test}", at()));
        }
    }
    Ok(())
}

/// Looks for `fn name(` in the file of the test's module: the longest part of its path that is a file.
fn exists(test: &TestName) -> bool {
    let package = root().join("crates").join(&test.package);
    let (folder, main) = match test.kind.as_str() {
        "it" => (package.join("tests/it"), "main.rs"),
        "lib" => (package.join("src"), "lib.rs"),
        _ => (package.join("src"), "main.rs"),
    };
    let mut modules: Vec<&str> = test.name.split("::").collect();
    let Some(name) = modules.pop() else { return false };
    let mut file = folder.join(main);
    for length in (1..=modules.len()).rev() {
        let module = folder.join(modules[..length].join("/"));
        let found =
            [module.with_extension("rs"), module.join("mod.rs")].into_iter().find(|path| path.is_file());
        if let Some(found) = found {
            file = found;
            break;
        }
    }
    fs::read_to_string(file).unwrap_or_default().contains(&format!("fn {name}("))
}

/// A mirror, not a gate.
fn mirror(sources: &[PathBuf]) {
    let mut functions: Vec<(usize, String)> = sources
        .iter()
        .flat_map(|path| function_lengths(&fs::read_to_string(path).unwrap_or_default(), &short(path)))
        .collect();
    functions.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    eprintln!("longest functions:");
    for (length, name) in functions.iter().take(10) {
        eprintln!("  {length:>4}  {name}");
    }
    let mut files: Vec<(usize, String)> = sources
        .iter()
        .map(|path| (fs::read_to_string(path).unwrap_or_default().lines().count(), short(path)))
        .collect();
    files.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    eprintln!("longest files:");
    for (length, name) in files.iter().take(10) {
        eprintln!("  {length:>4}  {name}");
    }
}

/// Length of each function, by the closing brace at the indentation of its `fn` line.
pub fn function_lengths(content: &str, path: &str) -> Vec<(usize, String)> {
    let mut open: Option<(usize, usize, String)> = None;
    let mut lengths = Vec::new();
    for (number, line) in content.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match &open {
            None if is_function(line.trim_start()) && !line.trim_end().ends_with(';') => {
                let name = line.trim_start().split('(').next().unwrap_or_default().to_owned();
                if !line.trim_end().ends_with('}') {
                    open = Some((number, indent, name));
                }
            }
            Some((start, at, name)) if indent == *at && line.trim_start().starts_with('}') => {
                lengths.push((number - start + 1, format!("{path}:{} {name}", start + 1)));
                open = None;
            }
            _ => {}
        }
    }
    lengths
}

fn is_function(line: &str) -> bool {
    let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
    let mut rest = line;
    while let Some(word) = words.iter().find(|word| rest.starts_with(**word)) {
        rest = &rest[word.len()..];
    }
    rest.starts_with("fn ")
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
