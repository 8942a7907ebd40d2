//! The guide in `docs/src`: its generated pages are what the program says, its links lead somewhere, and the two front
//! pages stay short. `UPDATE_EXPECT=1` writes the generated pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use expect_test::ExpectFile;
use serde_json::{Map, Value};

use crate::stand::Stand;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const NOTE: &str = "<!-- Generated: UPDATE_EXPECT=1 cargo test -p decurion-cli --test it guide -->\n\n";

fn page(name: &str) -> ExpectFile {
    ExpectFile { path: Path::new(ROOT).join("docs/src").join(name), position: file!() }
}

fn printed(stand: &Stand, arguments: &[&str]) -> String {
    let ended = stand.run(arguments);
    assert_eq!(ended.ending.code(), 0, "{ended:?}");
    ended.lines.iter().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

#[test]
fn the_page_of_the_command_line_is_what_help_prints() {
    let stand = Stand::new("when\n  say \"x\"\n");
    let mut text = format!(
        "# Command line\n\n{NOTE}What `decurion --help` and `decurion COMMAND --help` print. `decurion man` and `decurion \
         completions SHELL` give the same to `man` and to your shell.\n"
    );
    describe(&stand, &[], &mut text);
    page("command-line.md").assert_eq(&text);
}

/// Appends the help of a command and of those below it.
fn describe(stand: &Stand, words: &[&str], text: &mut String) {
    let help = printed(stand, &[words, &["--help"]].concat());
    let heading = [&["decurion"], words].concat().join(" ");
    let depth = "#".repeat(2 + words.len().min(2));
    text.push_str(&format!("\n{depth} {heading}\n\n```text\n{}\n```\n", help.trim_end()));
    let commands = help.split("Commands:\n").nth(1).unwrap_or_default();
    let rows = commands.lines().take_while(|line| !line.is_empty());
    let names =
        rows.filter_map(|row| row.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    for name in names.filter(|name| *name != "help") {
        describe(stand, &[words, &[name]].concat(), text);
    }
}

#[test]
fn the_settings_reference_is_the_schema_that_the_program_prints() {
    let stand = Stand::new("when\n  say \"x\"\n");
    let schema: Value = serde_json::from_str(&printed(&stand, &["config", "schema"])).unwrap();
    let mut text = format!(
        "# Settings reference\n\n{NOTE}Every key of a settings file, from the table by which Decurion checks settings. \
         [Settings](settings.md) says which files there are and how they combine. `decurion config schema` prints the same \
         as a JSON Schema.\n\n\
         *Repository* says whether a repository's own settings can set the key: **yes**; **stricter**, which is yes \
         for the stricter value, and after `decurion trust` for the other; **trusted**, which is only after `decurion \
         trust`; or **no**. `null` leaves a key unset.\n"
    );
    section(&schema["properties"], "", &mut text);
    page("settings-reference.md").assert_eq(&text);
}

/// Appends a table of keys, then one for each key that is an object of keys itself.
fn section(properties: &Value, above: &str, text: &mut String) {
    let heading = if above.is_empty() { "Top level" } else { above };
    text.push_str(&format!("\n## {heading}\n\n| key, value | |\n|---|---|\n"));
    let mut inner = Vec::new();
    for (name, key) in properties.as_object().unwrap().iter().filter(|(name, _)| *name != "$schema") {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        let each = &key["additionalProperties"];
        let below = [(&key["properties"], path.clone()), (&each["properties"], format!("{path}.NAME"))];
        let table = below.into_iter().find(|(members, _)| members.is_object());
        let value = match &table {
            Some((_, path)) => format!("[object](#{})", path.replace('.', "").to_lowercase()),
            None => value_of(key),
        };
        text.push_str(&format!("| `{name}`<br>{value} | {} |\n", meaning(key)));
        inner.extend(table);
    }
    for (members, path) in inner {
        section(members, &path, text);
    }
}

fn meaning(key: &Value) -> String {
    let mut text = key["description"].as_str().unwrap().replace('|', "\\|");
    let mut facts = Vec::new();
    if let Some(default) = key.get("default") {
        facts.push(format!("Default: `{}`.", default.to_string().replace('"', "")));
    }
    if let Some(names) = key["x-variables"].as_array() {
        let names = names.iter().map(|name| match name.as_str().unwrap().split_once(' ') {
            Some((name, remark)) => format!("`{name}` {remark}"),
            None => format!("`{}`", name.as_str().unwrap()),
        });
        let names: Vec<String> = names.collect();
        facts.push(format!("Variable: {}.", names.join(", ")));
    }
    if let Some(rule) = key["x-repository"].as_str() {
        facts.push(format!("Repository: {rule}."));
    }
    if !facts.is_empty() {
        text.push_str(&format!("<br>{}", facts.join(" ")));
    }
    text
}

/// What a key takes, in words.
fn value_of(key: &Value) -> String {
    if let Some(words) = key["enum"].as_array() {
        let words: Vec<String> =
            words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    if key["anyOf"].is_array() {
        return "string, or list of strings".to_owned();
    }
    let bounded = |kind: &str| format!("{kind}, {} to {}", key["minimum"], key["maximum"]);
    match key["type"][0].as_str().unwrap() {
        "boolean" => "`true`, `false`".to_owned(),
        kind @ ("integer" | "number") => bounded(kind),
        "string" if key["pattern"].as_str().is_some_and(|pattern| pattern.starts_with("^http")) => {
            "URL".to_owned()
        }
        "array" if key["items"]["anyOf"].is_array() => {
            "list of names, `{serverName}`, `{serverCommand}` or `{serverUrl}`".to_owned()
        }
        "array" => "list of strings".to_owned(),
        kind => kind.to_owned(),
    }
}

/// The pages of the guide.
fn pages() -> BTreeSet<String> {
    let names = std::fs::read_dir(Path::new(ROOT).join("docs/src")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_page =
        |name: &String| Path::new(name).extension().is_some_and(|end| end == "md") && name != "SUMMARY.md";
    names.filter(is_page).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a Markdown text links to, without addresses of other machines and examples in code.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let targets = prose.flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
    targets.filter(|target| !target.starts_with("http")).map(str::to_owned).collect()
}

/// The anchor that mdBook and GitHub give to a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() {
    let source = Path::new(ROOT).join("docs/src");
    let listed: BTreeSet<String> = links(&read(&source.join("SUMMARY.md"))).into_iter().collect();
    assert_eq!(pages(), listed);
    let mut texts: Vec<PathBuf> = pages().iter().map(|page| source.join(page)).collect();
    texts.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
            .map(|name| Path::new(ROOT).join(name)),
    );
    for text in texts {
        for link in links(&read(&text)) {
            let (file, part) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { text.clone() } else { text.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", text.display());
            let headings =
                || read(&target).lines().filter(|line| line.starts_with('#')).map(anchor).collect::<Vec<_>>();
            assert!(
                part.is_empty() || headings().iter().any(|anchor| anchor == part),
                "{}: {link}",
                text.display()
            );
        }
    }
}

#[test]
fn the_front_pages_are_short() {
    for (name, most_lines, most_words) in [("README.md", 150, 900), ("ARCHITECTURE.md", 300, 1200)] {
        let text = read(&Path::new(ROOT).join(name));
        let (lines, words) = (text.lines().count(), text.split_whitespace().count());
        assert!(lines <= most_lines && words <= most_words, "{name}: {lines} lines, {words} words");
    }
}

#[test]
fn the_schema_that_is_printed_describes_every_key() {
    let stand = Stand::new("when\n  say \"x\"\n");
    let schema: Value = serde_json::from_str(&printed(&stand, &["config", "schema"])).unwrap();
    let empty = Map::new();
    let mut waiting = vec![&schema];
    let mut count = 0;
    while let Some(object) = waiting.pop() {
        for (name, key) in object["properties"].as_object().unwrap_or(&empty) {
            assert!(name == "$schema" || key["description"].is_string(), "{name}");
            count += 1;
            waiting.extend([key, &key["additionalProperties"]]);
        }
    }
    assert!(count > 120, "{count}");
}
