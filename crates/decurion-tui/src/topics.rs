//! Lists of what a session has and what is around it. Takes what the session or the program's own subcommands tell as
//! JSON; gives rows, and what can be done with one.

use decurion_protocol::{
    ContextKind, ContextPart, ContextUse, HookDeclaration, McpDetail, Rule, RulesInForce, Verdict,
};
use serde_json::Value;

use crate::commands::Topic;
use crate::list::{ChoiceList, ListRow, Offer};
use crate::view::agents::tokens;

/// How many lines that are not JSON are shown.
const REMARKS: usize = 3;

/// The rows of a subcommand's JSON lines. A line that is no object is a remark, such as a warning about a file: it is
/// shown below the rows, and costs none of them.
pub fn of_lines(topic: Topic, printed: &str) -> Result<ChoiceList, String> {
    let (mut rows, mut remarks) = (Vec::new(), Vec::new());
    for line in printed.lines().filter(|line| !line.trim().is_empty()) {
        match serde_json::from_str::<Value>(line) {
            Ok(row) if row.is_object() => rows.push(row),
            _ => remarks.push(line.to_owned()),
        }
    }
    let more = remarks.len().saturating_sub(REMARKS);
    remarks.truncate(REMARKS);
    if more > 0 {
        remarks.push(format!("… {more} more such lines"));
    }
    let mut list = match topic {
        Topic::Agents => agents(&rows),
        Topic::Sessions => sessions(&rows),
        Topic::Plugins => plugins(&rows),
        Topic::Worktrees => worktrees(&rows),
        Topic::Memory => memories(&rows),
        _ => ChoiceList::default(),
    };
    list.remarks = remarks;
    Ok(list)
}

fn text<'a>(row: &'a Value, member: &str) -> &'a str {
    row[member].as_str().unwrap_or_default()
}

fn agents(rows: &[Value]) -> ChoiceList {
    let row = |agent: &Value| {
        let name = text(agent, "name");
        let counts = agent["active"].as_bool().unwrap_or(true);
        let remark = if counts { "" } else { " (another of this name counts)" };
        let model = agent["model"].as_str().unwrap_or("the parent's model");
        let tools = agent["tools"].as_array().map_or_else(
            || "all tools".to_owned(),
            |tools| tools.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        );
        ListRow {
            id: format!("{name}\n{}", text(agent, "origin")),
            name: name.to_owned(),
            note: format!("{}{remark}", text(agent, "origin")),
            details: vec![text(agent, "description").to_owned(), format!("{model} · {tools}")],
            ..ListRow::default()
        }
    };
    let rows = rows.iter().filter(|agent| !agent["hidden"].as_bool().unwrap_or_default()).map(row).collect();
    let offers = [
        Offer::row('\n', "look"),
        Offer::row('e', "explain"),
        Offer::row('d', "edit"),
        Offer::all('n', "new").asking("name of the new agent"),
        Offer::all('l', "check all"),
    ];
    ChoiceList::new("Agents", rows, &offers, "no agents")
}

fn sessions(rows: &[Value]) -> ChoiceList {
    let row = |session: &Value| ListRow {
        id: text(session, "session").to_owned(),
        name: text(session, "title").to_owned(),
        when: text(session, "modified").parse().ok(),
        details: vec![format!("{} · {}", text(session, "session"), text(session, "cwd"))],
        ..ListRow::default()
    };
    let offers = [Offer::row('\n', "resume"), Offer::row('\t', "fork")];
    // A session without a prompt has nothing to continue.
    let begun = rows.iter().filter(|session| !text(session, "title").is_empty());
    ChoiceList::new(
        "Sessions in this folder",
        begun.map(row).collect(),
        &offers,
        "no earlier sessions in this folder",
    )
    .searched()
}

/// Texts that sessions get from the start, or keep for later ones.
fn memories(rows: &[Value]) -> ChoiceList {
    let row = |file: &Value| ListRow {
        id: text(file, "path").to_owned(),
        name: text(file, "shown").to_owned(),
        note: text(file, "about").to_owned(),
        ..ListRow::default()
    };
    ChoiceList::new(
        "Instructions and memory",
        rows.iter().map(row).collect(),
        &[Offer::row('\n', "edit")],
        "no instruction or memory files; /init writes AGENTS.md",
    )
}

fn plugins(rows: &[Value]) -> ChoiceList {
    let row = |plugin: &Value| {
        let (name, state) = (text(plugin, "name"), text(plugin, "state").to_owned());
        let details = vec![text(plugin, "description").to_owned(), text(plugin, "path").to_owned()];
        ListRow { id: name.to_owned(), name: name.to_owned(), note: state, details, ..ListRow::default() }
    };
    let offers = [
        Offer::row('e', "on"),
        Offer::row('d', "off"),
        Offer::all('a', "add").asking("folder of the plugin"),
    ];
    ChoiceList::new(
        "Plugins (changes apply to new sessions)",
        rows.iter().map(row).collect(),
        &offers,
        "no plugin was added; a adds one",
    )
}

fn worktrees(rows: &[Value]) -> ChoiceList {
    let row = |tree: &Value| ListRow {
        id: text(tree, "name").to_owned(),
        name: text(tree, "name").to_owned(),
        note: format!("{} · {}", text(tree, "found").replace('_', " "), text(tree, "branch")),
        details: vec![text(tree, "description").to_owned(), text(tree, "path").to_owned()],
        ..ListRow::default()
    };
    let offers = [Offer::row('x', "remove"), Offer::all('c', "remove all that are unchanged")];
    ChoiceList::new("Worktrees", rows.iter().map(row).collect(), &offers, "no Decurion worktrees here")
}

/// What the session told of itself.
pub fn of_inspected(topic: Topic, value: Value) -> Result<ChoiceList, String> {
    let wrong = |error: serde_json::Error| error.to_string();
    Ok(match topic {
        Topic::Rules => rules(&serde_json::from_value(value).map_err(wrong)?),
        Topic::Hooks => hooks(&serde_json::from_value::<Vec<HookDeclaration>>(value).map_err(wrong)?),
        Topic::Servers => servers(&serde_json::from_value::<Vec<McpDetail>>(value).map_err(wrong)?),
        Topic::Context => context(&serde_json::from_value(value).map_err(wrong)?),
        _ => ChoiceList::default(),
    })
}

fn rules(in_force: &RulesInForce) -> ChoiceList {
    let rules = &in_force.rules;
    let of = |verdict: Verdict, word: &'static str, rules: &[Rule]| {
        let row = move |rule: &Rule| {
            let source = serde_json::to_value(rule.source).unwrap_or_default();
            let source = source.as_str().unwrap_or_default();
            let note = format!("{word} · {}", source.strip_suffix("Settings").unwrap_or(source));
            let id = serde_json::to_string(&(verdict, rule)).unwrap_or_default();
            ListRow { id, name: rule.to_string(), note, ..ListRow::default() }
        };
        rules.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows = of(Verdict::Deny, "never", &rules.deny);
    rows.extend(of(Verdict::Ask, "asks", &rules.ask));
    rows.extend(of(Verdict::Allow, "allowed", &rules.allow));
    let offers = [
        Offer::all('a', "allow").asking("allow (for example Bash(cargo test:*))"),
        Offer::all('s', "ask").asking("ask about"),
        Offer::all('d', "deny").asking("never allow"),
        Offer::row('x', "remove").asking("remove this rule, also from its file? y, then enter"),
    ];
    let title = format!("Rules in force · mode {}", in_force.mode);
    ChoiceList::new(title, rows, &offers, "no rules: every call that may change something is asked about")
}

fn hooks(hooks: &[HookDeclaration]) -> ChoiceList {
    let row = |hook: &HookDeclaration| ListRow {
        id: String::new(),
        name: hook.event.to_string(),
        note: [hook.matcher.as_deref().unwrap_or("all"), hook.callback.as_deref().unwrap_or(&hook.command)]
            .join(" · "),
        details: vec![hook.source.clone()],
        ..ListRow::default()
    };
    ChoiceList::new("Hooks in force", hooks.iter().map(row).collect(), &[], "no hooks")
}

fn servers(servers: &[McpDetail]) -> ChoiceList {
    let row = |server: &McpDetail| {
        let tools: Vec<&str> = server.tools.iter().map(|tool| tool.name.as_str()).collect();
        let status = &server.status;
        ListRow {
            id: format!("{}\n{}", status.name, status.status.name()),
            name: status.name.clone(),
            note: format!("{} · {} tools", status.status.name(), tools.len()),
            details: vec![status.reason.clone().unwrap_or_default(), tools.join(", ")],
            ..ListRow::default()
        }
    };
    let offers = [Offer::row('r', "reconnect"), Offer::row('t', "enable or disable")];
    ChoiceList::new(
        "MCP servers",
        servers.iter().map(row).collect(),
        &offers,
        "no MCP servers; `decurion mcp add` declares one",
    )
}

fn context(used: &ContextUse) -> ChoiceList {
    let share = |part: u64| part.saturating_mul(100).checked_div(used.window).unwrap_or(0);
    let row = |part: &ContextPart| ListRow {
        id: String::new(),
        name: match (&part.kind, part.name.as_str()) {
            (kind, "") => kind_words(*kind).to_owned(),
            (kind, name) => format!("{} {name}", kind_words(*kind)),
        },
        note: format!("{} · {}%", tokens(part.tokens), share(part.tokens)),
        details: vec![part.of.clone()],
        ..ListRow::default()
    };
    let mut parts = used.parts.clone();
    parts.sort_by_key(|part| std::cmp::Reverse(part.tokens));
    let title = format!(
        "Context of {}: {} {} of {} ({}%)",
        used.model,
        bar(used.total, used.window),
        tokens(used.total),
        tokens(used.window),
        share(used.total)
    );
    let all = parts.iter().map(row);
    let free = used.window.saturating_sub(used.total);
    let compacts = used.compacts_at.map(|at| format!(" · compacts by itself at {}", tokens(at)));
    let free = ListRow {
        name: "free".to_owned(),
        note: format!("{} · {}%{}", tokens(free), share(free), compacts.unwrap_or_default()),
        ..ListRow::default()
    };
    ChoiceList::new(title, std::iter::once(free).chain(all).collect(), &[], "no messages yet")
}

/// How full a window is, in a few signs.
fn bar(used: u64, window: u64) -> String {
    const WIDE: u64 = 20;
    let full = used.saturating_mul(WIDE).checked_div(window).unwrap_or(0).min(WIDE);
    let sign = |at: u64| if at < full || at == 0 && used > 0 { '█' } else { '░' };
    (0..WIDE).map(sign).collect()
}

fn kind_words(kind: ContextKind) -> &'static str {
    match kind {
        ContextKind::System => "system prompt",
        ContextKind::Tool => "tool",
        ContextKind::McpTool => "server's tool",
        ContextKind::Agent => "agent",
        ContextKind::Skills => "skills",
        ContextKind::Memory => "instructions",
        ContextKind::Messages => "conversation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_row_costs_no_row_and_is_told() {
        let printed = "warning: a.md:3: odd\n{\"name\": \"one\", \"origin\": \"built in\"}\n[1]\n{\"name\": \"two\"}\nb\nc\n\n";
        let list = of_lines(Topic::Agents, printed).unwrap();
        let names: Vec<&str> = list.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(list.remarks, ["warning: a.md:3: odd", "[1]", "b", "… 1 more such lines"]);
        assert!(of_lines(Topic::Sessions, "").unwrap().rows.is_empty());
    }
}
