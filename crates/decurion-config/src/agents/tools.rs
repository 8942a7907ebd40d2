//! The names of tools in a definition. Takes the lists as written and the names of the tools there are, gives
//! a selection in today's names, what to say about it, and whether anything is left.

use decurion_protocol::permission::RuleSource;
use decurion_protocol::{Rule, ToolSelection};
use serde_json::Value;

use crate::agents::Severity;
use crate::frontmatter::{Entry, unquoted};
use crate::rules::split_rules;

/// Names of other times and what does their work now. Those with `true` are as good as the new name.
const OTHER_NAMES: &[(&str, &str, bool)] = &[
    ("Task", "Agent", true),
    ("AgentOutput", "TaskOutput", true),
    ("AgentOutputTool", "TaskOutput", true),
    ("BashOutput", "TaskOutput", true),
    ("KillShell", "TaskStop", true),
    ("KillBash", "TaskStop", true),
    ("ListMcpResourcesTool", "ListMcpResources", true),
    ("ReadMcpResourceTool", "ReadMcpResource", true),
    ("MultiEdit", "Edit", false),
    ("NotebookRead", "Read", false),
    ("LS", "Glob", false),
];

/// The texts of a list: a YAML list, or one text with commas. None where it is neither.
pub(crate) fn texts(entry: &Entry) -> Option<Vec<String>> {
    match &entry.value {
        Value::Null => Some(Vec::new()),
        Value::String(text) => Some(split(text)),
        Value::Array(items) => {
            let split_item = |item: &Value| match item {
                Value::String(text) => Some(split(text)),
                Value::Number(number) => Some(vec![number.to_string()]),
                _ => None,
            };
            Some(items.iter().map(split_item).collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}

/// A bracket that was not closed is not part of a name.
fn split(text: &str) -> Vec<String> {
    let text = text.trim();
    let text = text.strip_prefix('[').map_or(text, |rest| rest.strip_suffix(']').unwrap_or(rest));
    split_rules(text).iter().map(|name| unquoted(name).to_owned()).filter(|name| !name.is_empty()).collect()
}

/// What to say about one name, and how bad it is.
pub(crate) type Remark = (Severity, String);

/// Puts the names of a list into today's, each once.
pub(crate) fn current(names: Vec<String>, key: &str, known: &[String]) -> (Vec<String>, Vec<Remark>) {
    let (mut list, mut remarks) = (Vec::with_capacity(names.len()), Vec::new());
    for name in names {
        let (name, remark) = current_name(name, key, known);
        remarks.extend(remark);
        remarks.extend(rule_remark(&name, key));
        if !list.contains(&name) {
            list.push(name);
        }
    }
    (list, remarks)
}

/// What to say about a rule that cannot be read, and what is made of it then.
fn rule_remark(written: &str, key: &str) -> Option<Remark> {
    let error = Rule::parse(written, RuleSource::Command).err().filter(|_| written.contains('('))?;
    let made = match key {
        "disallowedTools" => "the whole tool is forbidden",
        _ => "it allows nothing",
    };
    Some((Severity::Warning, format!("`{key}`: {}, so {made}: {written}", error.reason)))
}

fn current_name(written: String, key: &str, known: &[String]) -> (String, Option<Remark>) {
    let base = base(&written);
    if is_there(base, known) {
        return (written, None);
    }
    let renamed = |now: &str| written.replacen(base, now, 1);
    let is_known = |name: &str| known.iter().any(|known| known == name);
    if let Some((old, now, same)) =
        OTHER_NAMES.iter().find(|(old, now, _)| old.eq_ignore_ascii_case(base) && is_known(now))
    {
        let remark =
            |what: &str| (Severity::Note, format!("`{key}`: {old} is a tool of earlier times; {what}"));
        return match (same, key) {
            (true, _) => (renamed(now), None),
            // Who forbids an old tool does not mean the one that came after it.
            (false, "disallowedTools") => (written.clone(), Some(remark("it does not exist here"))),
            (false, _) => (renamed(now), Some(remark(&format!("{now} is used")))),
        };
    }
    if let Some(now) = known.iter().find(|known| known.eq_ignore_ascii_case(base)) {
        let remark = (Severity::Warning, format!("`{key}`: {base} is spelled {now}"));
        return (renamed(now), Some(remark));
    }
    let remark = (Severity::Warning, format!("`{key}`: no such tool: {base}"));
    (written, Some(remark))
}

/// The tool that an entry is about: a rule's parentheses narrow it, they do not name another.
fn base(entry: &str) -> &str {
    entry.split('(').next().unwrap_or(entry).trim()
}

/// Whether a name may stand for a tool. Those of MCP servers are known only when these are connected.
fn is_there(name: &str, known: &[String]) -> bool {
    name == "*" || name.starts_with("mcp__") || known.iter().any(|known| known == name)
}

/// Whether a selection leaves any tool at all.
pub(crate) fn leaves_any(selection: &ToolSelection, known: &[String]) -> bool {
    let removed = |name: &str| {
        selection.except.iter().map(|entry| base(entry)).any(|except| {
            except == "*"
                || except == name
                || except.strip_suffix('*').is_some_and(|start| {
                    except.starts_with("mcp__") && name.starts_with("mcp__") && name.starts_with(start)
                })
        })
    };
    match &selection.only {
        None => known.iter().any(|name| !removed(name)),
        Some(only) => {
            only.iter().map(|entry| base(entry)).any(|name| is_there(name, known) && !removed(name))
        }
    }
}
