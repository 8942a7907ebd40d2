//! The result of an agent, a command or a call, as a person reads it. Takes how it ended, or the text for the model;
//! gives the words without what only the model needs.

use decurion_protocol::choice::{ASK, EXIT_PLAN};
use decurion_protocol::output::CUT_OFF;
use decurion_protocol::view::{Standing, TaskView};
use decurion_protocol::{Block, Outcome, ToolContent, ToolOutput};
use serde_json::Value;

use crate::conversation::{AGENT, UNWANTED};
use crate::text::one_line;
use crate::view::agents::{self, duration, tokens};

/// The tool that runs commands.
pub(crate) const SHELL_TOOL: &str = "Bash";

/// The longest sentence that is shown of a report.
const LONGEST: usize = 300;
/// The names in the journal of what stopped it, if a person did.
const BY_HAND: [&str; 2] = ["a person", "a stop"];

/// A task that ended, as the conversation tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedTask {
    /// What it was: "Explore · find the callers", "$ npm test".
    pub name: String,
    pub outcome: Outcome,
    /// Tools, tokens, cost and time.
    pub used: String,
}

impl FinishedTask {
    /// What a task has come to, if it has ended.
    pub fn of(task: &TaskView) -> Option<Self> {
        let decurion_protocol::TaskState::Ended(outcome) = &task.state else { return None };
        let now = task.worker.ended?;
        let used = agents::used(&task.worker, now);
        Some(Self { name: agents::name(task), outcome: outcome.clone(), used })
    }

    /// How it ended, in a word.
    pub fn standing(&self) -> Standing {
        Standing::after(&self.outcome)
    }

    /// How it ended, in words.
    pub fn ending(&self) -> String {
        ending(&self.outcome)
    }

    /// What it said in the end, in a sentence.
    pub fn says(&self) -> Option<String> {
        says(&self.outcome)
    }
}

/// How an agent's work ended, in words.
pub fn ending(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed { limit: None, .. } => "finished".to_owned(),
        Outcome::Completed { limit: Some(limit), .. } => format!("stopped at its limit of {limit}"),
        Outcome::Failed { .. } => "failed".to_owned(),
        Outcome::Killed { by } if BY_HAND.contains(&by.as_str()) => "stopped".to_owned(),
        Outcome::Killed { by } => format!("stopped by {}", one_line(by)),
        Outcome::Stalled { .. } => "made no progress".to_owned(),
        Outcome::OutOfBudget { budget, .. } => format!("used up its budget ({budget})"),
        Outcome::Denied { .. } => "was denied what it needed".to_owned(),
        Outcome::Lost => "lost with its process".to_owned(),
    }
}

/// The last message of an agent, in a sentence.
pub fn says(outcome: &Outcome) -> Option<String> {
    first_sentence(match outcome {
        Outcome::Completed { report, .. } => report,
        Outcome::Failed { error } => error,
        Outcome::Stalled { waiting_for } => waiting_for,
        Outcome::OutOfBudget { partial, .. } => partial,
        Outcome::Denied { reason, .. } => reason,
        Outcome::Killed { .. } | Outcome::Lost => return None,
    })
}

/// The first sentence of a text in Markdown, without headings, rules and marks.
pub fn first_sentence(text: &str) -> Option<String> {
    let is_sentence = |line: &&str| {
        let is_mark = line.starts_with('#') || line.starts_with("```") || line.starts_with('|');
        !is_mark && line.chars().any(char::is_alphanumeric)
    };
    let line = text
        .lines()
        .map(str::trim)
        .find(is_sentence)
        .or_else(|| text.lines().map(str::trim).find(|line| !line.is_empty()))?;
    let line = one_line(line.trim_start_matches(['#', '-', '*', '>', ' '])).replace("**", "");
    let end = line.find(". ").map_or(line.len(), |at| at + 1);
    let sentence = &line[..end];
    Some(sentence[..sentence.floor_char_boundary(LONGEST)].to_owned())
}

/// What a call gave back.
pub fn for_people(tool: &str, output: &ToolOutput) -> String {
    let structured = output.structured.as_ref();
    let member = |name: &str| structured.and_then(|value| value.get(name));
    if is_interrupted(tool, output) {
        return member("stdout").and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    if output.is_error {
        return failure(tool, &output.content.text());
    }
    let is_detached = tool == SHELL_TOOL && member("backgroundTaskId").is_some();
    if is_detached || member("isAsync") == Some(&Value::Bool(true)) {
        return "running in the background".to_owned();
    }
    match tool {
        ASK => {
            let text = output.content.text();
            text.strip_prefix("What the user chose:\n").map_or(text.clone(), str::to_owned)
        }
        "EnterPlanMode" => "nothing is changed until you agree to a plan".to_owned(),
        "SendMessage" if member("resumedAgentId").is_some() => "restarted with this message".to_owned(),
        "SendMessage" => "delivered".to_owned(),
        "TaskStop" => "stopped".to_owned(),
        "TaskOutput" => member("task").map(looked_at).unwrap_or_default(),
        "Skill" => "instructions read".to_owned(),
        "EnterWorktree" => worktree(structured),
        // What follows the first block says who it was and where its work is.
        AGENT => match &output.content {
            ToolContent::Blocks(blocks) => match blocks.first() {
                Some(Block::Text { text }) => text.clone(),
                _ => String::new(),
            },
            ToolContent::Text(text) => text.clone(),
        },
        _ => output.content.text(),
    }
}

/// Why a call failed.
fn failure(tool: &str, text: &str) -> String {
    if text.starts_with(CUT_OFF) {
        return CUT_OFF.to_owned();
    }
    // The model needs its id and its worktree to continue.
    let is_for_model = |line: &&str| {
        tool == AGENT && (line.starts_with("agentId: ") || line.starts_with("Its transcript: "))
    };
    let lines: Vec<&str> = text.lines().filter(|line| !is_for_model(line)).collect();
    let text = lines.join("\n").replace("<tool_use_error>", "").replace("</tool_use_error>", "");
    refusal(text.strip_prefix("Permission denied: ").unwrap_or(&text))
}

/// Why a call was refused.
pub fn refusal(reason: &str) -> String {
    reason.replace(UNWANTED, "you declined").replace("the user refused this call", "you declined")
}

/// The plan that a person approved, if the call was one.
pub fn agreed_plan(tool: &str, output: &ToolOutput) -> Option<String> {
    let plan = output.structured.as_ref()?.get("plan")?.as_str()?;
    (tool == EXIT_PLAN && !output.is_error).then(|| plan.to_owned())
}

/// Whether a command was stopped before its end.
pub fn is_interrupted(tool: &str, output: &ToolOutput) -> bool {
    tool == SHELL_TOOL && output.structured.as_ref().is_some_and(|value| value["interrupted"] == true)
}

/// What was seen of a task that was looked at.
fn looked_at(task: &Value) -> String {
    let member = |name: &str| task[name].as_str().unwrap_or_default();
    format!("{}: {}\n{}", member("description"), member("status"), member("output")).trim_end().to_owned()
}

fn worktree(structured: Option<&Value>) -> String {
    let member = |name: &str| structured.and_then(|value| value[name].as_str()).unwrap_or_default();
    format!("{} on {}", member("worktreePath"), member("worktreeBranch"))
}

/// What an agent that was waited for has used: tools, tokens and time.
pub fn used(structured: &Value) -> Option<String> {
    let number = |member: &str| structured.get(member).and_then(Value::as_u64);
    let tools = number("totalToolUseCount")?;
    let plural = if tools == 1 { "" } else { "s" };
    let (used, ms) = (number("totalTokens").unwrap_or(0), number("totalDurationMs").unwrap_or(0));
    Some(format!("{tools} tool{plural} · {} · {}", tokens(used), duration(ms)))
}

/// How many lines of a file were read, as people count them: the model is also told that nothing is behind the last.
pub fn read_lines(output: &ToolOutput) -> Option<usize> {
    let content = &output.structured.as_ref().filter(|told| told["type"] == "text")?["file"]["content"];
    content.as_str().map(|content| content.lines().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sentence_skips_headings_and_marks() {
        for (text, sentence) in [
            ("## Findings\n\n- **Two** callers use it. Both are old.", "Two callers use it."),
            ("\n\nDone", "Done"),
            ("# Only a heading", "Only a heading"),
            ("```\ncode()\n```", "code()"),
            ("See src/a.rs:3 and v1.2.3 of it", "See src/a.rs:3 and v1.2.3 of it"),
        ] {
            assert_eq!(first_sentence(text).as_deref(), Some(sentence), "{text:?}");
        }
        assert_eq!(first_sentence(" \n"), None);
    }
}
