//! Permission rules. Takes the layered settings, gives the rule set that the policy decides by, with the
//! place each rule was written at.

use decurion_protocol::permission::{Rule, RuleSet, RuleSource};
use serde::Serialize;

use crate::jsonc::Node;
use crate::origin::{Layer, Origin, Place, Sources};
use crate::paths::Paths;

/// The rules in force and where each was written; the lists run in parallel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rules {
    pub set: RuleSet,
    /// The places of `set.allow`.
    pub allow_origins: Vec<Origin>,
    /// The places of `set.ask`.
    pub ask_origins: Vec<Origin>,
    /// The places of `set.deny`.
    pub deny_origins: Vec<Origin>,
}

impl Rules {
    /// Takes the rules out of checked settings. Where the administrator wants only his own rules, those of
    /// others that allow are left out; those that forbid or ask stay, since they only narrow.
    ///
    /// Paths that the sandbox denies are rules like others, so that they hold for every tool.
    pub(crate) fn from_tree(tree: &Node, sources: &Sources, paths: &Paths) -> Self {
        let managed_only = tree
            .get("allowManagedPermissionRulesOnly")
            .is_some_and(|node| node.bool() == Some(true) && sources.layer_of(node) == Layer::Managed);
        let mut rules = Self::default();
        let everyone = |_: &Node| true;
        let managed = |node: &Node| !managed_only || sources.layer_of(node) == Layer::Managed;
        (rules.set.allow, rules.allow_origins) = list(tree, "permissions.allow", sources, managed);
        (rules.set.ask, rules.ask_origins) = list(tree, "permissions.ask", sources, everyone);
        (rules.set.deny, rules.deny_origins) = list(tree, "permissions.deny", sources, everyone);
        for (key, tool) in [("denyRead", "Read"), ("denyWrite", "Edit")] {
            let items = tree.at_path(&format!("sandbox.filesystem.{key}")).map_or(&[][..], Node::items);
            for item in items {
                let Some(path) = item.text().filter(|path| !path.trim().is_empty()) else { continue };
                rules.set.deny.push(Rule::about_path(
                    tool,
                    &absolute(path, paths),
                    rule_source(item, sources),
                ));
                rules.deny_origins.push(sources.origin(item));
            }
        }
        rules
    }
}

/// A pattern of paths of the settings; a relative one begins at the project's folder.
fn absolute(path: &str, paths: &Paths) -> String {
    if path.starts_with(['/', '~']) {
        return path.to_owned();
    }
    let special = ['*', '?', '[', '{', '\\'];
    let root: String = paths.root.as_str().chars().fold(String::new(), |mut root, c| {
        if special.contains(&c) {
            root.push('\\');
        }
        root.push(c);
        root
    });
    format!("{root}/{}", path.strip_prefix("./").unwrap_or(path))
}

fn list(
    tree: &Node,
    path: &str,
    sources: &Sources,
    wanted: impl Fn(&Node) -> bool,
) -> (Vec<Rule>, Vec<Origin>) {
    let items = tree.at_path(path).map_or(&[][..], Node::items);
    let parsed = items.iter().filter(|item| wanted(item)).filter_map(|item| {
        let rule = Rule::parse(item.text()?, rule_source(item, sources)).ok()?;
        Some((rule, sources.origin(item)))
    });
    parsed.unzip()
}

fn rule_source(item: &Node, sources: &Sources) -> RuleSource {
    let source = sources.get(item.source);
    match source.place {
        Place::Flag(name) if name != "--settings" => RuleSource::CliArg,
        _ => source.layer.rule_source(),
    }
}

/// Splits the value of `--allowedTools` and the like: rules apart by commas or blanks, except inside of their
/// parentheses.
pub fn split_rules(text: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let mut rule = String::new();
    let mut depth = 0_usize;
    for character in text.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && (character == ',' || character.is_whitespace()) {
            if !rule.is_empty() {
                rules.push(std::mem::take(&mut rule));
            }
        } else {
            rule.push(character);
        }
    }
    if !rule.is_empty() {
        rules.push(rule);
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_on_the_command_line_are_told_apart() {
        for (text, expected) in [
            ("Read,Edit", vec!["Read", "Edit"]),
            ("Bash(git log:*) Edit", vec!["Bash(git log:*)", "Edit"]),
            ("Bash(echo a, b),  mcp__x__y", vec!["Bash(echo a, b)", "mcp__x__y"]),
            ("Bash(echo (a) b)", vec!["Bash(echo (a) b)"]),
            (" , ", vec![]),
            ("Bash(x", vec!["Bash(x"]),
        ] {
            assert_eq!(split_rules(text), expected, "{text}");
        }
    }
}
