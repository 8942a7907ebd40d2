//! The shape of the tree in figures, and words to look at. Takes a checkout; prints a table (`tidy --report`), or each riddle
//! word and over-long sentence with its place (`tidy --words`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::source::{self, Kind, Source};
use crate::tidy::function_lengths;

/// Names that Rust code repeats by custom.
const IDIOMS: [&str; 2] = ["Error", "Builder"];
const LONG_FUNCTION: usize = 60;
const LONG_FILE: usize = 600;
/// The most words of a doc comment that only repeats a name.
const SHORT_DOC: usize = 3;
const LONG_SENTENCE: usize = 30;
/// Words that make a reader guess who does what.
const RIDDLES: &[&str] = &[
    "nobody",
    "whoever",
    "somebody",
    "whatever",
    "is said",
    "are said",
    "was said",
    "is told",
    "are told",
    "was told",
    "be told",
    "is heard",
    "goes on",
    "go on",
    "going on",
    "of its own",
    "of their own",
    "that there is",
    "that there are",
    "taken up",
    "take up",
    "is asked for",
    "it is for",
    "is not passed over",
    "passed over",
    "heeded",
    "in the way",
    "once it came",
    "what is to be",
    "comes of",
    "came of",
    "let go",
    "stands in",
    "whom",
    "thereby",
    "all the same",
];

/// Prints the table.
pub fn report(root: &Path) -> Result<()> {
    let sources = source::all(root)?;
    let product: Vec<&Source> = sources.iter().filter(|source| source.is_product()).collect();
    let mut crates: Vec<&str> = product.iter().map(|source| source.krate.as_str()).collect();
    crates.sort_unstable_by_key(|krate| (*krate != "engine", *krate));
    crates.dedup();
    for krate in crates {
        let cycle = largest_cycle(&product, krate);
        let lines = lines_of(&product, |source| source.krate == krate && cycle.contains(source.module()));
        let names: Vec<&str> = cycle.iter().copied().collect();
        row(
            &format!("largest import cycle, {krate}"),
            format!("{} modules, {lines} lines  {}", names.len(), names.join(" ")),
        );
    }
    for (name, count, open) in actor_fields(&product) {
        row(&format!("fields of {name}"), format!("{count} ({open} not private)"));
    }
    let engine = lines_of(&product, |source| source.krate == "engine");
    let locks: usize = product
        .iter()
        .filter(|source| source.krate == "engine")
        .map(|source| source.code.matches("Mutex<").count() + source.code.matches("RwLock<").count())
        .sum();
    row(
        "lock types per 1,000 lines, engine",
        format!("{:.2} ({locks} in {engine})", per_thousand(locks, engine)),
    );
    row("Result<_, String>, product", count(&product, |source| string_results(&source.code)));
    let names = repeated_names(&product);
    row("type names used more than once", format!("{}  {}", names.len(), names.join(" ")));
    row(&format!("doc comments of ≤ {SHORT_DOC} words"), count(&sources, short_docs));
    let long: Vec<String> = sources
        .iter()
        .flat_map(|source| function_lengths(&source.code, &source.path))
        .filter(|(length, _)| *length > LONG_FUNCTION)
        .map(|(length, name)| format!("{length} {name}"))
        .collect();
    row(&format!("functions over {LONG_FUNCTION} lines"), listed(&long));
    let long: Vec<String> = sources
        .iter()
        .filter(|source| source.lines > LONG_FILE)
        .map(|source| format!("{} {}", source.lines, source.path))
        .collect();
    row(&format!("files over {LONG_FILE} lines"), listed(&long));
    row("product lines", lines_of(&product, |_| true));
    for page in ["README.md", "ARCHITECTURE.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        row(&format!("words of {page}"), text.split_whitespace().count());
    }
    Ok(())
}

fn row(what: &str, value: impl std::fmt::Display) {
    println!("{what:<36} {value}");
}

fn listed(found: &[String]) -> String {
    let lines: Vec<String> = found.iter().map(|one| format!("\n      {one}")).collect();
    format!("{}{}", found.len(), lines.concat())
}

fn lines_of(sources: &[&Source], of: impl Fn(&Source) -> bool) -> usize {
    sources.iter().filter(|source| of(source)).map(|source| source.lines).sum()
}

fn count<'a>(
    sources: impl IntoIterator<Item = &'a (impl std::borrow::Borrow<Source> + 'a)>,
    of: impl Fn(&Source) -> usize,
) -> usize {
    sources.into_iter().map(|source| of(source.borrow())).sum()
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn per_thousand(count: usize, lines: usize) -> f64 {
    count as f64 * 1000.0 / lines.max(1) as f64
}

/// The modules of a crate that all reach each other by imports; empty where no two do.
fn largest_cycle<'a>(sources: &[&'a Source], krate: &str) -> BTreeSet<&'a str> {
    let own: Vec<&Source> = sources.iter().filter(|source| source.krate == krate).copied().collect();
    let is_root = |source: &Source| matches!(source.name.as_str(), "lib.rs" | "main.rs");
    let modules: Vec<&str> = own
        .iter()
        .filter(|source| !is_root(source))
        .map(|source| source.module())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let index = |name: &str| modules.iter().position(|module| *module == name);
    // What the crate itself exports leads to where it is defined.
    let mut exported = BTreeMap::new();
    for root in own.iter().filter(|source| is_root(source)) {
        for module in &modules {
            for (at, _) in root.code.match_indices(&format!("use {module}::")) {
                let tail = &root.code[at..];
                let names = tail[..tail.find(';').unwrap_or(0)].split(|letter: char| !is_word(letter));
                exported.extend(
                    names.filter(|name| name.starts_with(char::is_uppercase)).map(|name| (name, *module)),
                );
            }
        }
    }
    let mut reaches = vec![vec![false; modules.len()]; modules.len()];
    for source in own.iter().filter(|source| !is_root(source)) {
        let Some(from) = index(source.module()) else { continue };
        for name in imports(source) {
            let module = exported.get(name).copied().unwrap_or(name);
            if let Some(to) = index(module) {
                reaches[from][to] = true;
            }
        }
    }
    for middle in 0..modules.len() {
        for from in 0..modules.len() {
            if reaches[from][middle] {
                let further = reaches[middle].clone();
                reaches[from].iter_mut().zip(further).for_each(|(known, more)| *known |= more);
            }
        }
    }
    let cycle = |from: usize| (0..modules.len()).filter(move |to| *to != from).collect::<Vec<_>>();
    let cycles = (0..modules.len()).map(|from| {
        let mut all: BTreeSet<&str> = cycle(from)
            .into_iter()
            .filter(|to| reaches[from][*to] && reaches[*to][from])
            .map(|to| modules[to])
            .collect();
        if !all.is_empty() {
            all.insert(modules[from]);
        }
        all
    });
    cycles.max_by_key(BTreeSet::len).unwrap_or_default()
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// What a file names of its crate: the first part of each path that begins at the root.
fn imports(source: &Source) -> Vec<&str> {
    let depth = source.name.matches('/').count() + 1;
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for prefix in ["crate::", &up] {
        for (at, _) in source.code.match_indices(prefix) {
            let before = &source.code[..at];
            if before.ends_with(|letter: char| is_word(letter) || letter == ':') {
                continue;
            }
            found.extend(first_parts(&source.code[at + prefix.len()..]));
        }
    }
    found
}

/// The first word, or that of each branch of `{a::b, c}`.
fn first_parts(rest: &str) -> Vec<&str> {
    let word = |text: &'_ str| text.find(|letter: char| !is_word(letter)).unwrap_or(text.len());
    let Some(group) = rest.strip_prefix('{') else { return vec![&rest[..word(rest)]] };
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, letter) in group.char_indices() {
        let ends = depth == 0 && matches!(letter, ',' | '}');
        if ends {
            let part = group[start..at].trim_start();
            parts.push(&part[..word(part)]);
            start = at + 1;
        }
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    parts
}

/// The session's actor and the structs it is made of: how many fields each has, and how many of them are not private.
fn actor_fields(sources: &[&Source]) -> Vec<(String, usize, usize)> {
    let mut structs = BTreeMap::new();
    for source in sources.iter().filter(|source| source.krate == "engine") {
        for (at, _) in source.code.match_indices("struct ") {
            let rest = &source.code[at + "struct ".len()..];
            let name = &rest[..rest.find(|letter: char| !is_word(letter)).unwrap_or(0)];
            let head = rest.find(['{', ';', '(']).filter(|open| rest[*open..].starts_with('{'));
            let Some(open) = head else { continue };
            let body = &rest[open..rest.find("\n}").unwrap_or(open)];
            let fields: Vec<(bool, &str)> = body
                .lines()
                .filter(|line| {
                    line.len() - line.trim_start().len() == 4 && line.trim_start().starts_with(is_word)
                })
                .filter_map(|line| line.trim().split_once(": "))
                .map(|(field, kind)| (field.starts_with("pub"), kind.trim_end_matches(',')))
                .collect();
            structs.insert(name, fields);
        }
    }
    let Some(actor) = ["SessionActor", "Owner"].into_iter().find(|name| structs.contains_key(name)) else {
        return Vec::new();
    };
    let parts = structs[actor].iter().map(|(_, kind)| *kind).filter(|kind| structs.contains_key(kind));
    let names: BTreeSet<&str> = parts.collect();
    let fields = |name: &str| {
        let fields = &structs[name];
        (name.to_owned(), fields.len(), fields.iter().filter(|(is_open, _)| *is_open).count())
    };
    std::iter::once(actor).chain(names).map(fields).collect()
}

/// How often a result has a text as its error.
fn string_results(code: &str) -> usize {
    let is_one = |(at, name): (usize, &str)| {
        let inner = &code[at + name.len()..];
        let (mut depth, mut comma) = (0_usize, None);
        for (at, letter) in inner.char_indices() {
            match letter {
                '<' | '(' | '[' => depth += 1,
                // The arrow of a function is no bracket.
                '>' if inner[..at].ends_with('-') => {}
                '>' if depth == 0 => {
                    return comma.is_some_and(|comma: usize| {
                        inner[comma + 1..at].trim().trim_end_matches(',') == "String"
                    });
                }
                '>' | ')' | ']' => depth = depth.saturating_sub(1),
                ',' if depth == 0 && !inner[at + 1..].trim_start().starts_with('>') => comma = Some(at),
                ';' | '{' => return false,
                _ => {}
            }
        }
        false
    };
    code.match_indices("Result<").filter(|one| is_one(*one)).count()
}

/// Names of types that are defined in two places.
fn repeated_names(sources: &[&Source]) -> Vec<String> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        for line in source.code.lines() {
            let words: Vec<&str> =
                line.split(|letter: char| !is_word(letter)).filter(|word| !word.is_empty()).collect();
            let at = words.iter().position(|word| matches!(*word, "struct" | "enum" | "trait" | "type"));
            let is_item = |at: &usize| {
                words[..*at].iter().all(|word| matches!(*word, "pub" | "crate" | "super" | "in" | "unsafe"))
            };
            let Some(at) = at.filter(is_item) else { continue };
            // A type that an implementation gives is named by its trait.
            let is_inner = words[at] == "type" && line.starts_with(' ');
            if let Some(name) =
                words.get(at + 1).filter(|name| !is_inner && name.starts_with(char::is_uppercase))
            {
                *names.entry(name).or_default() += 1;
            }
        }
    }
    let repeated = names.into_iter().filter(|(name, count)| *count > 1 && !IDIOMS.contains(name));
    repeated.map(|(name, count)| format!("{name}×{count}")).collect()
}

fn short_docs(source: &Source) -> usize {
    let is_short = |text: &str| text.split_whitespace().count() <= SHORT_DOC;
    source.texts.iter().filter(|text| text.kind == Kind::Doc && is_short(&text.text)).count()
}

/// Prints what a reader may stumble over: in strings with several words, comments, and pages.
pub fn words(root: &Path, places: &[String]) -> Result<()> {
    let is_wanted = |path: &str| places.is_empty() || places.iter().any(|place| path.starts_with(place));
    let mut found = 0;
    for source in source::all(root)?.iter().filter(|source| is_wanted(&source.path)) {
        for text in &source.texts {
            let kind = match text.kind {
                Kind::String if text.text.trim().contains(' ') => "string",
                Kind::Doc => "doc",
                Kind::Comment => "comment",
                _ => continue,
            };
            found += look(&source.path, text.line, kind, &text.text);
        }
    }
    let files = Command::new("git").args(["ls-files", "*.md"]).current_dir(root).output()?;
    for path in String::from_utf8_lossy(&files.stdout).lines().filter(|path| is_wanted(path)) {
        let text = fs::read_to_string(root.join(path)).unwrap_or_default();
        let mut is_code = false;
        for (line, text) in text.lines().enumerate() {
            is_code ^= text.trim_start().starts_with("```");
            if !is_code {
                found += look(path, line + 1, "page", text);
            }
        }
    }
    println!("{found} to look at");
    Ok(())
}

/// Prints the sentences of a text that have a riddle word or are too long; gives how many.
fn look(path: &str, line: usize, kind: &str, text: &str) -> usize {
    let mut found = 0;
    for sentence in sentences(text) {
        let lower = format!(" {} ", sentence.to_lowercase());
        let has = |word: &&&str| {
            lower.match_indices(**word).any(|(at, _)| {
                let end = lower[at + word.len()..].chars().next();
                !lower[..at].ends_with(is_word) && !end.is_some_and(is_word)
            })
        };
        let mut reasons: Vec<String> = RIDDLES.iter().filter(has).map(|word| format!("{word:?}")).collect();
        let length = sentence.split_whitespace().count();
        if length > LONG_SENTENCE {
            reasons.push(format!("{length} words"));
        }
        if !reasons.is_empty() {
            found += 1;
            println!("{path}:{line}: {kind}: {}: {sentence}", reasons.join(", "));
        }
    }
    found
}

/// The sentences of a text; an empty line ends one too, and so does a new item of a list.
fn sentences(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in text.replace("\\n", "\n").lines() {
        let line = line.trim().trim_end_matches('\\');
        // A row of a table or an example stands for itself, as an item of a list does.
        let is_row = line.contains("  ");
        if line.is_empty() || is_row || line.starts_with(['-', '*', '|', '#']) {
            found.push(String::new());
        }
        for word in line.split_whitespace() {
            let last = found.last_mut().filter(|last| !last.ends_with(['.', '?', '!', '|']));
            match last {
                Some(last) if last.is_empty() => last.push_str(word),
                Some(last) => *last = format!("{last} {word}"),
                None => found.push(word.to_owned()),
            }
        }
        if is_row {
            found.push(String::new());
        }
    }
    found.retain(|sentence| !sentence.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_in_groups_and_through_super() {
        assert_eq!(first_parts("{a::{b, c}, d, e::*}; f"), ["a", "d", "e"]);
        assert_eq!(first_parts("run::Run"), ["run"]);
        let code = "use crate::{a, b::C}; use super::super::d; fn f() { $crate::g!(); my_crate::h }";
        let source = source::parse("x".to_owned(), "x".to_owned(), "in/file.rs".to_owned(), code);
        assert_eq!(imports(&source), ["a", "b", "g", "d"]);
    }

    #[test]
    fn results_with_a_text_as_error_are_counted() {
        let code =
            "Result<(), String> Result<Vec<(u8, String)>, Error> Result<Map<A, B>, String> Result<String>";
        assert_eq!(string_results(code), 2);
    }

    #[test]
    fn sentences_end_at_stops_and_rows() {
        let text = "One is long\n two. Three:\n  - item\n\na   row\nlast";
        assert_eq!(sentences(text), ["One is long two.", "Three:", "- item", "a row", "last"]);
    }
}
