//! Tasks on the screen. Takes an overview, prints a list, one task, or the result of a request: for people, or as one
//! JSON object per line.

use std::io::Write as _;

use decurion_protocol::{Limits, Question, Wanted};
use decurion_serve::progress::one_line;
use serde_json::{Value, json};

use super::overview::{Overview, asker, text};
use crate::report::{Failure, note};
use crate::screen::{self, TextStyle};
use crate::table::{TableCell, TextTable, ago, short, short_ids};

/// Every task and every open question.
pub fn list(overview: &Overview, json: bool) -> Result<(), Failure> {
    if json {
        return list_json(overview);
    }
    say_if_recorded(overview);
    if overview.rows.is_empty() && overview.questions.is_empty() {
        return line("No agents or background commands.");
    }
    let length = short_ids(overview.rows.iter().map(|row| text(row, "id")));
    let mut table = TextTable::new(["ID", "STATE", "KIND", "STARTED", "DESCRIPTION"]);
    for row in &overview.rows {
        let depth = row["depth"].as_u64().unwrap_or(1).clamp(1, 16);
        let indent = "  ".repeat(usize::try_from(depth - 1).unwrap_or(0));
        let [state, kind, description] = columns(overview, row);
        let style = match row["outcome"].as_str() {
            Some("completed") => TextStyle::Good,
            Some("failed" | "lost" | "denied" | "stalled") => TextStyle::Bad,
            Some(_) => TextStyle::Warning,
            None => TextStyle::Plain,
        };
        table.row([
            TableCell::new(TextStyle::Strong, format!("{indent}{}", short(text(row, "id"), length))),
            TableCell::new(style, state),
            kind.into(),
            ago(text(row, "started").parse().ok()).into(),
            description.into(),
        ]);
    }
    table.print();
    let asked: Vec<String> = overview.questions.iter().map(|question| question.id.to_string()).collect();
    let lengths = (short_ids(asked.iter().map(String::as_str)), length);
    for question in &overview.questions {
        line(&ask(question, lengths))?;
    }
    Ok(())
}

fn list_json(overview: &Overview) -> Result<(), Failure> {
    for row in &overview.rows {
        line(&with_live(row, overview.live).to_string())?;
    }
    for question in &overview.questions {
        line(&question_json(question, overview.live).to_string())?;
    }
    Ok(())
}

pub fn show(overview: &Overview, row: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return line(&with_live(row, overview.live).to_string());
    }
    say_if_recorded(overview);
    let [state, kind, _] = columns(overview, row);
    let mut facts = vec![("id", text(row, "id").to_owned()), ("kind", kind), ("state", state)];
    facts.push(("asked", one_line(text(row, "description"))));
    facts.push(("parent", text(row, "parent").to_owned()));
    // Whole, however long: it is there to be opened.
    facts.push(("output", text(row, "output_file").replace(char::is_control, "")));
    for (name, field) in [("tools", "tool_uses"), ("tokens", "tokens")] {
        let count = row[field].as_u64().filter(|count| *count > 0);
        facts.push((name, count.map(|count| count.to_string()).unwrap_or_default()));
    }
    facts.push(("budget", limits(&row["limits"]).unwrap_or_default()));
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        line(&format!("{name:<8}{value}"))?;
    }
    for activity in row["activities"].as_array().into_iter().flatten() {
        let title = one_line(text(activity, "title"));
        match (text(activity, "tool"), title.as_str()) {
            ("", "") => {}
            ("", did) | (did, "") => line(&format!("did     {did}"))?,
            (tool, title) if title.starts_with(tool) => line(&format!("did     {title}"))?,
            (tool, title) => line(&format!("did     {tool}: {title}"))?,
        }
    }
    for question in overview.questions.iter().filter(|question| asker(question) == text(row, "id")) {
        line(&ask(question, (usize::MAX, usize::MAX)))?;
    }
    for (name, field) in [("prompt", "prompt"), ("result", "result")] {
        if !text(row, field).is_empty() {
            line(&format!("\n{name}:\n{}", plain(text(row, field))))?;
        }
    }
    Ok(())
}

/// Limits in words; none where there are none.
pub fn limits(limits: &Value) -> Option<String> {
    let limits: Limits = serde_json::from_value(limits.clone()).ok()?;
    let words = [
        limits.turns.map(|turns| format!("{turns} turns")),
        limits.money.map(|money| format!("${:.2}", money.dollars())),
        limits.tokens.map(|tokens| format!("{tokens} tokens")),
        limits.seconds.map(|seconds| format!("{seconds} s")),
        limits.spawns.map(|spawns| format!("{spawns} agents")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// The result of a request.
pub fn done(json: bool, value: &Value, words: impl FnOnce() -> String) -> Result<(), Failure> {
    if json { line(&value.to_string()) } else { line(&plain(&words())) }
}

/// One line on standard output. A reader who left is not worth a panic.
pub fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Text on standard output, at once.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = screen::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::failed(format!("cannot print: {error}")))
}

/// Text of several lines made safe for a terminal: nothing in it can move the cursor or change colours.
pub fn plain(text: &str) -> String {
    text.chars().filter(|letter| matches!(letter, '\n' | '\t') || !letter.is_control()).collect()
}

fn say_if_recorded(overview: &Overview) {
    if !overview.live {
        note(format!("session {} is not running; this is what it recorded", overview.session));
    }
}

/// State, kind and description.
fn columns(overview: &Overview, row: &Value) -> [String; 3] {
    let state = match row["outcome"].as_str() {
        Some(outcome) => outcome.to_owned(),
        None if overview.live => one_line(text(row, "state")),
        // Its process is gone, and what became of it is not on record.
        None => format!("was {}", one_line(text(row, "state"))),
    };
    let kind = match (text(row, "type"), row["agent_type"].as_str()) {
        ("local_bash", _) => "command".to_owned(),
        (_, Some(agent_type)) => format!("agent {}", one_line(agent_type)),
        (_, None) => "agent".to_owned(),
    };
    [state, kind, one_line(text(row, "description"))]
}

/// A question in words, with shortened ids of the question and its agent.
fn ask(question: &Question, (own, of_tasks): (usize, usize)) -> String {
    let title = if question.intent.title.is_empty() { &question.tool } else { &question.intent.title };
    let asked = format!(
        "? {}  {} asks: {} ({})",
        short(&question.id.to_string(), own),
        short(asker(question), of_tasks),
        one_line(title),
        one_line(&question.reason)
    );
    match question.elicitation.as_ref().map(|elicitation| &elicitation.wanted) {
        None => asked,
        Some(Wanted::Url { url, .. }) => format!("{asked}\n    address: {}", plain(url)),
        Some(Wanted::Form { schema }) => {
            format!("{asked}\n    form (answer with --content): {}", plain(&schema.to_string()))
        }
    }
}

fn with_live(row: &Value, live: bool) -> Value {
    let mut row = row.clone();
    row["live"] = json!(live);
    row
}

fn question_json(question: &Question, live: bool) -> Value {
    let mut value = json!({
        "type": "question",
        "id": question.id,
        "task": question.agent,
        "path": question.path,
        "tool_use_id": question.call,
        "tool": question.tool,
        "title": question.intent.title,
        "input": question.input,
        "reason": question.reason,
        "live": live,
    });
    if let Some(elicitation) = &question.elicitation {
        value["elicitation"] = json!(elicitation);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::{CallId, Elicitation, Intent};

    #[test]
    fn what_a_server_asks_is_shown_with_its_form_or_its_whole_address() {
        let question = |wanted| Question {
            asked_by: Default::default(),
            blocked: None,
            id: "77777777-2222-4333-8444-555555555555".parse().unwrap(),
            agent: None,
            path: Vec::new(),
            call: CallId("c".into()),
            tool: "mcp__s__t".into(),
            input: Value::Null,
            intent: Intent::titled("MCP server s asks"),
            reason: "Who?".into(),
            suggestions: Vec::new(),
            behind: false,
            patch: None,
            elicitation: Some(Box::new(Elicitation {
                server: "s".into(),
                message: "Who?".into(),
                calls: 1,
                wanted,
            })),
        };
        let form = question(Wanted::Form { schema: json!({"type": "object", "title": "\u{9b}2J"}) });
        let address = format!("https://a.example/{}", "x".repeat(400));
        let url = question(Wanted::Url { url: address.clone(), id: "1".into() });
        let start = "? 77777777-2222-4333-8444-555555555555  main asks: MCP server s asks (Who?)\n    ";
        let shown = "form (answer with --content): {\"type\":\"object\",\"title\":\"2J\"}";
        assert_eq!(ask(&form, (99, 99)), format!("{start}{shown}"));
        assert_eq!(ask(&url, (99, 99)), format!("{start}address: {address}"));
        assert_eq!(question_json(&form, true)["elicitation"]["mode"], "form");
    }

    #[test]
    fn what_a_task_printed_cannot_move_the_cursor() {
        assert_eq!(plain("a\u{1b}[2Jb\r\n\tc\u{7}\u{9b}d"), "a[2Jb\n\tcd");
    }
}
