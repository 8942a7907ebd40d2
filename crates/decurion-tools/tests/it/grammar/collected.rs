//! Commands that people and models write, and those that attacks were made of.

use std::collections::BTreeSet;

use super::stand::tamed;

/// One command in each line, in which `␤` stands for the end of a line.
const OURS: &str = include_str!("commands.txt");
const COMMON: &str = include_str!("../../../../decurion-engine/tests/it/common_commands.txt");
const RULES: &str = include_str!("../../../../decurion-engine/tests/it/permission_rows.jsonl");

/// All of them, each once.
pub fn all() -> Vec<String> {
    each_once(lines().chain(of_rules()))
}

/// The same with an eighth of those that are mostly about programs and not about the grammar; another one for another
/// seed.
pub fn some(seed: u64) -> Vec<String> {
    each_once(lines().chain(of_rules().skip((seed % 8) as usize).step_by(8)))
}

fn each_once(commands: impl Iterator<Item = String>) -> Vec<String> {
    let found: BTreeSet<String> = commands.map(|command| tamed(&command.replace('␤', "\n"))).collect();
    found.into_iter().collect()
}

fn lines() -> impl Iterator<Item = String> {
    let lines = OURS.lines().chain(COMMON.lines());
    lines.filter(|line| !line.is_empty() && !line.starts_with("# ")).map(str::to_owned)
}

/// The commands that the rows about permissions are about.
fn of_rules() -> impl Iterator<Item = String> {
    let rows = RULES.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    rows.filter(|row| row["tool"] == "Bash")
        .filter_map(|row| Some(row["input"]["command"].as_str()?.to_owned()))
}
