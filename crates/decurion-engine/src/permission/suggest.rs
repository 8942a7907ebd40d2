//! Rules to offer with a question. Takes a call; gives rules that would allow it and little else: the exact
//! command or a reviewed prefix, never an interpreter.

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Access, Intent, Rule};
use serde_json::Value;

use super::{Around, Class, class, commands, web};

/// Programs and subcommands of which a prefix is safe to remember.
const REVIEWED: [&str; 34] = [
    "npm test",
    "npm run build",
    "npm run test",
    "npm run lint",
    "npm ci",
    "npm install",
    "yarn test",
    "pnpm test",
    "cargo build",
    "cargo test",
    "cargo check",
    "cargo clippy",
    "cargo fmt",
    "cargo doc",
    "cargo bench",
    "go test",
    "go build",
    "go vet",
    "go fmt",
    "git add",
    "git commit",
    "git stash",
    "git fetch",
    "git pull",
    "git switch",
    "git checkout",
    "git branch",
    "git merge",
    "pytest",
    "ruff check",
    "mypy",
    "tsc",
    "eslint",
    "prettier",
];

/// Rules that would have allowed this call.
pub fn suggest(tool: &str, input: &Value, intent: &Intent, around: &Around) -> Vec<Rule> {
    let rule = |tool: &str, specifier: Option<String>| Rule {
        tool: tool.to_owned(),
        specifier,
        source: RuleSource::Session,
    };
    match class(tool, input) {
        Class::Shell => shell(intent),
        Class::Read | Class::Write => intent
            .touches
            .iter()
            .take(4)
            .map(|touch| {
                let path = match touch.path.strip_prefix(&around.cwd) {
                    Ok(inside) => format!("./{inside}"),
                    Err(_) => format!("/{}", touch.path),
                };
                rule(if touch.access == Access::Write { "Edit" } else { "Read" }, Some(path))
            })
            .collect(),
        Class::Web => {
            let url = input.get("url").and_then(Value::as_str).unwrap_or("");
            match web::address(url) {
                Ok(address) if address.odd.is_none() => {
                    vec![rule("WebFetch", Some(format!("domain:{}", address.host)))]
                }
                _ => Vec::new(),
            }
        }
        Class::Skill => {
            let name = input.get("skill").and_then(Value::as_str).map(str::to_owned);
            name.map(|name| rule(tool, Some(name))).into_iter().collect()
        }
        Class::Mcp => vec![rule(tool, None)],
        Class::Agent | Class::Free | Class::Ask | Class::Other => Vec::new(),
    }
}

fn shell(intent: &Intent) -> Vec<Rule> {
    let Some(shell) = &intent.shell else { return Vec::new() };
    if shell.doubt.is_some() || shell.commands.iter().any(|command| command.doubt.is_some()) {
        return Vec::new();
    }
    let mut rules: Vec<Rule> = Vec::new();
    for command in &shell.commands {
        let elsewhere = command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
        if command.read_only || command.wrapper || elsewhere || !command.unknown.is_empty() {
            continue;
        }
        let own = commands::without_harmless_assignments(command);
        let prefix = REVIEWED.iter().find(|prefix| {
            let words: Vec<&str> = prefix.split(' ').collect();
            own.iter().map(String::as_str).take(words.len()).eq(words.iter().copied())
        });
        let specifier = match prefix {
            Some(prefix) => format!("{prefix} *"),
            None => command.text.clone(),
        };
        let rule = Rule { tool: "Bash".to_owned(), specifier: Some(specifier), source: RuleSource::Session };
        if !rules.contains(&rule) && rules.len() < 8 {
            rules.push(rule);
        }
    }
    rules
}
