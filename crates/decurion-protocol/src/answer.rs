//! Answers about a call in the ecosystem's words. Takes what a program, a tool or a hook wrote (`behavior`,
//! `updatedInput`, `message`, `updatedPermissions`, `interrupt`), gives what it means, and which parts of it are not
//! obeyed. One reader for all that may answer in a person's place, so that the same words always mean the same.

use camino::Utf8PathBuf;
use serde_json::Value;

use crate::permission::RuleSource;
use crate::{PermissionUpdate, Rule, Verdict};

/// What was answered to whether a call may run.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    Allow {
        /// With this input instead.
        input: Option<Value>,
        /// The reason, if one was given.
        message: Option<String>,
        /// What else changes with it.
        changes: Changes,
    },
    Deny {
        /// What to tell the model, if anything was given.
        message: Option<String>,
        /// Whether the turn ends too.
        interrupt: bool,
    },
}

/// What is to change with an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The updates that were understood, in their order.
    pub updates: Vec<PermissionUpdate>,
    /// Whether something was not understood that was to take rights away: who allows a call together with that does
    /// not mean it to run without.
    pub missed: bool,
    /// Parts that are not obeyed, or not as written.
    pub problems: Vec<String>,
}

impl Ruling {
    /// Reads an answer. The error names the member that cannot be understood: such an answer allows nothing.
    pub fn read(answer: &Value) -> Result<Self, String> {
        let message = text(answer, "message").filter(|message| !message.is_empty()).map(str::to_owned);
        match text(answer, "behavior") {
            Some("allow") => {
                let input = match answer.get("updatedInput") {
                    None | Some(Value::Null) => None,
                    Some(input @ Value::Object(_)) => Some(input.clone()),
                    Some(_) => return Err("`updatedInput` is not an object".to_owned()),
                };
                let changes = Changes::read(answer.get("updatedPermissions"))?;
                Ok(Self::Allow { input, message, changes })
            }
            Some("deny") => {
                let interrupt = answer.get("interrupt").and_then(Value::as_bool).unwrap_or_default();
                Ok(Self::Deny { message, interrupt })
            }
            _ => Err("`behavior` is neither `allow` nor `deny`".to_owned()),
        }
    }
}

impl Changes {
    /// Of it, what only ever takes rights away.
    #[must_use]
    pub fn narrowing(mut self) -> Self {
        self.updates.retain(PermissionUpdate::narrows);
        self
    }

    fn read(updates: Option<&Value>) -> Result<Self, String> {
        let mut changes = Self::default();
        let updates = match updates {
            None | Some(Value::Null) => return Ok(changes),
            Some(Value::Array(updates)) => updates,
            Some(_) => return Err("`updatedPermissions` is not a list".to_owned()),
        };
        for update in updates {
            match read_update(update) {
                Ok(update) => changes.updates.push(update),
                Err(problem) => {
                    changes.problems.push(problem);
                    changes.missed |= takes_away(update);
                }
            }
        }
        Ok(changes)
    }
}

/// What one update changes. An error says why it is not obeyed.
fn read_update(update: &Value) -> Result<PermissionUpdate, String> {
    let word = |member: &str| text(update, member).unwrap_or("nothing");
    let (kind, destination) = (word("type"), word("destination"));
    let source = match destination {
        "session" => RuleSource::Session,
        "cliArg" => RuleSource::CliArg,
        "userSettings" => RuleSource::UserSettings,
        "projectSettings" => RuleSource::ProjectSettings,
        "localSettings" => RuleSource::LocalSettings,
        other => return Err(format!("not obeyed: {kind}: an unknown `destination`: {other}")),
    };
    let behavior = || match word("behavior") {
        "allow" => Ok(Verdict::Allow),
        "ask" => Ok(Verdict::Ask),
        "deny" => Ok(Verdict::Deny),
        other => Err(format!("not obeyed: {kind}: an unknown `behavior`: {other}")),
    };
    let rules = || {
        let rules = update.get("rules").and_then(Value::as_array);
        rules.into_iter().flatten().map(|value| rule(value, source)).collect::<Result<Vec<_>, _>>()
    };
    let directories = || {
        let all = update.get("directories").and_then(Value::as_array);
        all.into_iter().flatten().filter_map(Value::as_str).map(Utf8PathBuf::from).collect()
    };
    // Rules say themselves where they are kept.
    let is_file = RuleSource::FILES.contains(&source);
    let kept = |update| {
        if is_file { PermissionUpdate::Kept { at: source, update: Box::new(update) } } else { update }
    };
    Ok(match kind {
        "addRules" => PermissionUpdate::AddRules { behavior: behavior()?, rules: rules()? },
        "replaceRules" => PermissionUpdate::ReplaceRules { behavior: behavior()?, source, rules: rules()? },
        "removeRules" => PermissionUpdate::RemoveRules { behavior: behavior()?, rules: rules()? },
        "setMode" => {
            let mode = word("mode").parse().map_err(|error| format!("not obeyed: setMode: {error}"))?;
            kept(PermissionUpdate::SetMode { mode })
        }
        "addDirectories" => kept(PermissionUpdate::AddDirectories { directories: directories() }),
        "removeDirectories" => kept(PermissionUpdate::RemoveDirectories { directories: directories() }),
        other => return Err(format!("not obeyed: an unknown kind of update: {other}")),
    })
}

fn rule(value: &Value, source: RuleSource) -> Result<Rule, String> {
    let tool = text(value, "toolName").unwrap_or_default();
    let written = match text(value, "ruleContent") {
        Some(content) => format!("{tool}({content})"),
        None => tool.to_owned(),
    };
    Rule::parse(&written, source).map_err(|error| error.to_string())
}

/// Whether a change that was not understood was to take rights away.
fn takes_away(update: &Value) -> bool {
    match (text(update, "type"), text(update, "behavior")) {
        (Some("addRules" | "replaceRules"), behavior) => behavior != Some("allow"),
        (Some("removeRules"), behavior) => behavior == Some("allow"),
        (Some("removeDirectories"), _) => true,
        (Some("setMode"), _) => text(update, "mode") == Some("plan"),
        _ => false,
    }
}

fn text<'a>(value: &'a Value, member: &str) -> Option<&'a str> {
    value.get(member).and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_says_what_it_says_or_what_is_wrong_with_it() {
        let rules = json!([{"toolName": "Bash", "ruleContent": "git push *"}, {"toolName": "Read"}]);
        let add = |behavior: &str, destination: &str| {
            json!({"behavior": "allow", "updatedPermissions": [
                {"type": "addRules", "rules": rules, "behavior": behavior, "destination": destination},
            ]})
        };
        let rows = [
            json!({"behavior": "allow"}),
            json!({"behavior": "allow", "updatedInput": {"a": 1}, "message": "fine"}),
            json!({"behavior": "allow", "updatedInput": "x"}),
            json!({"behavior": "allow", "updatedPermissions": {}}),
            add("allow", "session"),
            add("allow", "userSettings"),
            add("deny", "moon"),
            add("allow", "moon"),
            json!({"behavior": "allow", "updatedPermissions": [
                {"type": "setMode", "mode": "acceptEdits", "destination": "localSettings"},
                {"type": "addDirectories", "directories": ["/x"], "destination": "session"},
            ]}),
            json!({"behavior": "deny", "message": "", "interrupt": true}),
            json!({"behavior": "maybe"}),
            json!([]),
        ];
        let line = |row: &Value| match Ruling::read(row) {
            Ok(Ruling::Allow { input, message, changes }) => {
                let Changes { updates, missed, problems } = changes;
                let updates = json!(updates);
                format!("allow {input:?} {message:?} {updates} missed {missed} {problems:?}\n")
            }
            Ok(deny) => format!("{deny:?}\n"),
            Err(error) => format!("error {error}\n"),
        };
        expect![[r#"
            allow None None [] missed false []
            allow Some(Object {"a": Number(1)}) Some("fine") [] missed false []
            error `updatedInput` is not an object
            error `updatedPermissions` is not a list
            allow None None [{"type":"add_rules","behavior":"allow","rules":[{"tool":"Bash","specifier":"git push *","source":"session"},{"tool":"Read","source":"session"}]}] missed false []
            allow None None [{"type":"add_rules","behavior":"allow","rules":[{"tool":"Bash","specifier":"git push *","source":"userSettings"},{"tool":"Read","source":"userSettings"}]}] missed false []
            allow None None [] missed true ["not obeyed: addRules: an unknown `destination`: moon"]
            allow None None [] missed false ["not obeyed: addRules: an unknown `destination`: moon"]
            allow None None [{"type":"kept","at":"localSettings","update":{"type":"set_mode","mode":"acceptEdits"}},{"type":"add_directories","directories":["/x"]}] missed false []
            Deny { message: None, interrupt: true }
            error `behavior` is neither `allow` nor `deny`
            error `behavior` is neither `allow` nor `deny`
        "#]].assert_eq(&rows.iter().map(line).collect::<String>());
    }
}
