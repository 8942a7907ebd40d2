//! Which module of the engine may name which. Takes the engine's sources, gives every arrow that points backwards, every
//! import cycle that is too large, and every module that the table of `lib.rs` does not name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Result;

/// The room that builds on all others: no other may name it. `lib.rs` may, it only lists and exports.
const TOP: &str = "session";
/// How many modules may know each other in a circle.
const LARGEST_CYCLE: usize = 3;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// Checks the sources of one crate.
pub fn check(source: &Path, files: &[std::path::PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let mut graph = Graph::new();
    for file in files {
        let Ok(path) = file.strip_prefix(source) else { continue };
        let Some(module) = module(path) else { continue };
        let named = graph.entry(module.clone()).or_default();
        named.extend(imports(&fs::read_to_string(file)?).into_iter().filter(|name| *name != module));
    }
    let modules: BTreeSet<String> = graph.keys().cloned().collect();
    for named in graph.values_mut() {
        named.retain(|name| modules.contains(name));
    }
    let lib = fs::read_to_string(source.join("lib.rs"))?;
    let table: String = lib.lines().filter(|line| line.starts_with("//! |")).collect();
    let unlisted = modules.iter().filter(|module| !table.contains(&format!("`{module}`")));
    problems
        .extend(unlisted.map(|module| format!("{}: the table does not name `{module}`", source.display())));
    problems.extend(faults(&graph).into_iter().map(|fault| format!("{}: {fault}", source.display())));
    Ok(())
}

/// The module at the root of the crate that a file belongs to.
fn module(path: &Path) -> Option<String> {
    let first = path.iter().next()?.to_str()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main" | "bin")).then(|| name.to_owned())
}

/// The modules at the root of the crate that a text names, tests and comments left out.
fn imports(text: &str) -> BTreeSet<String> {
    let tests = ["", "pub(crate) "].map(|visible| format!("\n#[cfg(test)]\n{visible}mod "));
    let end = tests.iter().filter_map(|tests| text.find(tests)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        match after.strip_prefix('{') {
            Some(list) => found.extend(listed(list)),
            None => found.extend(name(after)),
        }
    }
    found
}

/// The names at the outermost level of a list of imports.
fn listed(list: &str) -> Vec<String> {
    let (mut depth, mut start, mut found) = (0_u32, true, Vec::new());
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if letter.is_whitespace() => {}
            _ if start && depth == 0 => {
                start = false;
                found.extend(name(&list[at..]));
            }
            _ => {}
        }
    }
    found
}

fn name(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// What is wrong with the arrows.
fn faults(graph: &Graph) -> Vec<String> {
    let backwards = graph.iter().filter(|(module, named)| *module != TOP && named.contains(TOP));
    let backwards = backwards.map(|(module, _)| format!("`{module}` may not name `{TOP}`"));
    let large = cycles(graph).into_iter().filter(|cycle| cycle.len() > LARGEST_CYCLE);
    let large = large.map(|cycle| format!("{} modules import each other: {}", cycle.len(), cycle.join(", ")));
    backwards.chain(large).collect()
}

/// The modules that reach each other, by groups.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reach(graph, module))).collect();
    let mut groups: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, below) in &reached {
        let mutual =
            below.iter().filter(|other| reached.get(**other).is_some_and(|back| back.contains(module)));
        groups.insert(mutual.map(|other| (*other).clone()).collect());
    }
    groups.into_iter().filter(|group| group.len() > 1).collect()
}

/// All that a module names, by however many steps.
fn reach<'a>(graph: &'a Graph, module: &'a String) -> BTreeSet<&'a String> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![module]);
    while let Some(at) = waiting.pop() {
        for next in graph.get(at).into_iter().flatten() {
            if found.insert(next) {
                waiting.push(next);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in arrows {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            graph.entry((*to).to_owned()).or_default();
        }
        graph
    }

    #[test]
    fn imports_are_read_in_every_form() {
        let text = "// crate::comment\nuse crate::{a, b::{c, d}, e};\nfn f() { crate::g::h(); }\nuse crate::i::J;\n\
                    #[cfg(test)]\nmod tests { use crate::k; }";
        let found: Vec<String> = imports(text).into_iter().collect();
        assert_eq!(found.join(" "), "a b e g i");
    }

    #[test]
    fn no_room_names_the_session_and_cycles_stay_small() {
        let fine = graph(&[("session", "run"), ("run", "call"), ("a", "b"), ("b", "c"), ("c", "a")]);
        assert!(faults(&fine).is_empty(), "{:?}", faults(&fine));
        let backwards = graph(&[("session", "run"), ("run", "session")]);
        assert_eq!(faults(&backwards), ["`run` may not name `session`"]);
        let large = graph(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]);
        assert_eq!(faults(&large), ["4 modules import each other: a, b, c, d"]);
    }
}
