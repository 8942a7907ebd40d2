//! What came of an agent or a command, in a line for a person. Takes how it ended and what it used; gives the words.

use decurion_protocol::Outcome;
use decurion_protocol::view::TaskView;

use crate::text::one_line;
use crate::view::agents;

/// The longest sentence that is shown of a report.
const LONGEST: usize = 300;

/// A task that ended, as the conversation tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// What it was: "Explore · find the callers", "$ npm test".
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Tools, tokens, cost and time.
    pub used: String,
}

impl Finished {
    /// What a task has come to, if it has ended.
    pub fn of(task: &TaskView) -> Option<Self> {
        let decurion_protocol::TaskState::Ended(outcome) = &task.state else { return None };
        let now = task.worker.ended?;
        let used = agents::used(&task.worker, now);
        Some(Self { name: agents::name(task), outcome: outcome.clone(), used })
    }

    /// Whether it did what it was to do.
    pub fn succeeded(&self) -> bool {
        matches!(self.outcome, Outcome::Completed { limit: None, .. })
    }

    /// How it ended, in words.
    pub fn ending(&self) -> String {
        match &self.outcome {
            Outcome::Completed { limit: None, .. } => "finished".to_owned(),
            Outcome::Completed { limit: Some(limit), .. } => format!("stopped at its limit of {limit}"),
            Outcome::Failed { .. } => "failed".to_owned(),
            Outcome::Killed { by } => format!("was stopped by {}", one_line(by)),
            Outcome::Stalled { .. } => "made no progress".to_owned(),
            Outcome::OutOfBudget { budget, .. } => format!("used up its budget ({budget})"),
            Outcome::Denied { .. } => "was denied what it needed".to_owned(),
            Outcome::Lost => "was lost with its process".to_owned(),
        }
    }

    /// What it said in the end, in a sentence.
    pub fn says(&self) -> Option<String> {
        first_sentence(match &self.outcome {
            Outcome::Completed { report, .. } => report,
            Outcome::Failed { error } => error,
            Outcome::Stalled { waiting_for } => waiting_for,
            Outcome::OutOfBudget { partial, .. } => partial,
            Outcome::Denied { reason, .. } => reason,
            Outcome::Killed { .. } | Outcome::Lost => return None,
        })
    }
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
