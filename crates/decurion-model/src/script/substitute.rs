//! Fills captures into a plan: takes the groups of the patterns that fitted and facts of the request,
//! changes `$1`, `${name}` and `${seen.turn}` in texts and inputs. A `$` that names nothing known stays,
//! because scripts are full of shell commands; `$$1` and `$${name}` are those texts themselves.

use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::{AnswerPlan, CallInput, FailureBody, RequestView, ScriptStep};

/// What `$…` may stand for.
pub(super) struct Captures<'a> {
    seen: &'a RequestView,
    /// By number and, if they have one, by name. Numbers continue from pattern to pattern.
    groups: HashMap<String, String>,
    count: usize,
}

impl<'a> Captures<'a> {
    pub fn new(seen: &'a RequestView) -> Self {
        Self { seen, groups: HashMap::new(), count: 0 }
    }

    pub fn add(&mut self, regex: &Regex, found: &regex::Captures<'_>) {
        let whole = found.get(0).map_or("", |group| group.as_str());
        self.groups.entry("0".to_owned()).or_insert_with(|| whole.to_owned());
        for (place, name) in regex.capture_names().enumerate().skip(1) {
            let text = found.get(place).map_or("", |group| group.as_str());
            self.count += 1;
            self.groups.insert(self.count.to_string(), text.to_owned());
            if let Some(name) = name {
                self.groups.insert(name.to_owned(), text.to_owned());
            }
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        if let Some(fact) = name.strip_prefix("seen.") {
            return match fact {
                "agent" => Some(self.seen.agent.clone()),
                "path" => Some(self.seen.path.clone()),
                "model" => Some(self.seen.model.clone()),
                "turn" => Some(self.seen.turn.to_string()),
                "try" => Some(self.seen.attempt.to_string()),
                "text" => Some(self.seen.last_text.clone()),
                "result" => Some(self.seen.last_result.clone()),
                "first" => Some(self.seen.first_text.clone()),
                _ => None,
            };
        }
        self.groups.get(name).cloned()
    }

    fn fill(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(found) = rest.find('$') {
            filled.push_str(&rest[..found]);
            rest = &rest[found..];
            let escaped = rest.strip_prefix('$').filter(|after| reference(after).is_some());
            if let Some((_, end)) = escaped.and_then(reference) {
                filled.push_str(&rest[1..=end]);
                rest = &rest[end + 1..];
            } else if let Some((name, end)) = reference(rest)
                && let Some(value) = self.get(name)
            {
                filled.push_str(&value);
                rest = &rest[end..];
            } else {
                filled.push('$');
                rest = &rest[1..];
            }
        }
        filled.push_str(rest);
        filled
    }
}

/// The name at the head of `$1…` or `${name}…`, and where it ends.
fn reference(text: &str) -> Option<(&str, usize)> {
    let after = text.strip_prefix('$')?;
    if let Some(braced) = after.strip_prefix('{') {
        let end = braced.find('}')?;
        let name = &braced[..end];
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
        return is_name.then_some((name, end + 3));
    }
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0).then(|| (&after[..digits], digits + 1))
}

/// Fills every text of a plan.
pub(super) fn plan(plan: &mut AnswerPlan, captures: &Captures<'_>) {
    for step in &mut plan.steps {
        match step {
            ScriptStep::Say { text, .. } | ScriptStep::Think { text, .. } => *text = captures.fill(text),
            ScriptStep::Call { name, input, .. } => {
                *name = captures.fill(name);
                match input {
                    CallInput::Json(members) => object(members, captures),
                    CallInput::Raw(text) => *text = captures.fill(text),
                }
            }
            ScriptStep::Block(block) => value(block, captures),
            ScriptStep::Error { message, .. } => *message = captures.fill(message),
            ScriptStep::Raw(_)
            | ScriptStep::Delay(_)
            | ScriptStep::Reset
            | ScriptStep::Panic
            | ScriptStep::Close
            | ScriptStep::Stall(_) => {}
        }
    }
    if let Some(failure) = &mut plan.failure {
        match &mut failure.body {
            FailureBody::Error { message, .. } => *message = captures.fill(message),
            FailureBody::Raw(text) => *text = captures.fill(text),
        }
    }
}

fn object(members: &mut Map<String, Value>, captures: &Captures<'_>) {
    members.values_mut().for_each(|member| value(member, captures));
}

fn value(one: &mut Value, captures: &Captures<'_>) {
    match one {
        Value::String(text) => *text = captures.fill(text),
        Value::Array(items) => items.iter_mut().for_each(|item| value(item, captures)),
        Value::Object(members) => object(members, captures),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
