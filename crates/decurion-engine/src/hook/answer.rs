//! What a hook says. Takes how it ended and what it printed, gives what that means at this moment; and what
//! several say together. Pure.

use decurion_protocol::{HookDeclaration, HookEvent, OnFailure, PermissionUpdate, Ruling};
use decurion_tools::mcp::Sign;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::process::{Ending, Ran};
use crate::host::HostFailure;
use crate::sandbox::{self, Refusal};

/// How much of a hook's text goes anywhere, in characters: so many from the beginning and from the end.
const HEAD_CHARS: usize = 7_000;
const TAIL_CHARS: usize = 3_000;

/// What all hooks of one moment want, together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookResult {
    /// That it does not happen, or does not end here; the reason is for the model.
    pub block: Option<String>,
    /// Whether a call may go ahead; the strictest that was said.
    pub permission: Option<HookPermission>,
    /// The input the call should have instead; the last that was said. Whoever uses it must look at its
    /// permission anew.
    pub updated_input: Option<Value>,
    /// The output the model should see instead; the last that was said.
    pub updated_output: Option<Value>,
    /// What else is to change with the answer to a question.
    pub updates: Vec<PermissionUpdate>,
    /// Texts for the model.
    pub additional_context: Vec<String>,
    /// That the run ends; the reason is for the person.
    pub stop: Option<String>,
    /// That a denied call may be tried again.
    pub retry: bool,
    /// Texts for the person.
    pub messages: Vec<String>,
    /// One for each hook that ran, in the order of their declaration.
    pub reports: Vec<HookReport>,
}

/// Whether a call may go ahead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookPermission {
    Allow {
        /// Why, if it was said.
        reason: Option<String>,
    },
    /// Only if a person says so.
    Ask {
        /// Why, if it was said.
        reason: Option<String>,
    },
    Deny {
        /// Why; for the model.
        reason: String,
    },
}

impl HookPermission {
    fn strictness(&self) -> u8 {
        match self {
            Self::Allow { .. } => 0,
            Self::Ask { .. } => 1,
            Self::Deny { .. } => 2,
        }
    }

    /// The stricter of two, the first if they are equal.
    fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }
}

/// What became of one hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookReport {
    pub event: HookEvent,
    pub command: String,
    /// Where it was declared.
    pub source: String,
    /// Its exit code, if it had one of its own.
    pub exit_code: Option<i32>,
    pub outcome: HookOutcome,
    /// What it printed, shortened.
    pub stdout: String,
    /// What it printed as errors, shortened.
    pub stderr: String,
    /// What a person should know of it.
    pub problem: Option<String>,
}

/// How a hook went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookOutcome {
    /// It exited with 0.
    Success,
    /// It exited with 2: a "no".
    Blocked,
    /// It exited with another code, which means nothing.
    Error,
    /// It crashed, hung, flooded or did not begin, so that nobody knows what it would have said.
    Failed,
}

impl HookResult {
    /// These and what a later one says.
    #[must_use]
    pub fn merge(mut self, later: Self) -> Self {
        self.block = either(self.block, later.block, |first, second| format!("{first}\n{second}"));
        self.permission = either(self.permission, later.permission, HookPermission::stricter);
        self.updated_input = later.updated_input.or(self.updated_input);
        self.updated_output = later.updated_output.or(self.updated_output);
        self.updates.extend(later.updates);
        self.additional_context.extend(later.additional_context);
        self.stop = self.stop.or(later.stop);
        self.retry |= later.retry;
        self.messages.extend(later.messages);
        self.reports.extend(later.reports);
        self
    }

    /// A sentence for the person about each hook that did not go well.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.reports.iter().filter_map(|report| {
            let HookReport { event, command, source, .. } = report;
            let problem = report.problem.as_ref()?;
            let place = if source.is_empty() { String::new() } else { format!(" ({source})") };
            Some(format!("{event} hook [{command}]{place}: {problem}"))
        })
    }
}

fn either<T>(first: Option<T>, second: Option<T>, both: impl FnOnce(T, T) -> T) -> Option<T> {
    match (first, second) {
        (Some(first), Some(second)) => Some(both(first, second)),
        (first, second) => first.or(second),
    }
}

/// What one hook says, with its report.
pub(super) fn read(event: HookEvent, hook: &HookDeclaration, ran: &Ran) -> HookResult {
    let mut reading = Reading { event, hook, result: HookResult::default(), problems: Vec::new() };
    let outcome = match &ran.ending {
        Ending::Code(0) => {
            reading.success(&ran.stdout);
            HookOutcome::Success
        }
        Ending::Code(2) => {
            let said = ran.stderr.trim();
            reading.block(if said.is_empty() { "it said no and not why" } else { said }, Voice::Errors);
            HookOutcome::Blocked
        }
        Ending::Code(code) if !matches!(code, 126 | 127) => {
            reading.error(*code, ran.stderr.trim());
            HookOutcome::Error
        }
        ending => {
            reading.failure(&failure(ending));
            HookOutcome::Failed
        }
    };
    reading.problems.extend(refused(ran).map(|refusal| refusal.advice()));
    let code = if let Ending::Code(code) = ran.ending { Some(code) } else { None };
    reading.reported(outcome, code, &ran.stdout, &ran.stderr)
}

/// What a hook reports that its sandbox kept it from. One that succeeds or says no may have printed such words for another reason.
pub(super) fn refused(ran: &Ran) -> Option<Refusal> {
    let sign = match &ran.ending {
        Ending::NotStarted(_) => return None,
        Ending::Code(0 | 2) => Sign::Sure,
        _ => Sign::Likely,
    };
    if ran.sandboxed { sandbox::reported(&ran.stderr, sign) } else { None }
}

/// What a function of the host says, with its report: as a command that exits with 0 and prints it.
pub(super) fn heard(
    event: HookEvent,
    hook: &HookDeclaration,
    said: Result<Value, HostFailure>,
) -> HookResult {
    let mut reading = Reading { event, hook, result: HookResult::default(), problems: Vec::new() };
    let printed = said.as_ref().map(Value::to_string).unwrap_or_default();
    let outcome = match said {
        // Whoever answers later is not waited for, and whoever has nothing to say says nothing.
        Ok(Value::Object(object)) if is_later(&object) => HookOutcome::Success,
        Ok(Value::Null) => HookOutcome::Success,
        Ok(Value::Object(object)) => {
            reading.json(&object);
            HookOutcome::Success
        }
        Ok(_) => {
            reading.failure("the host answered with something that is not an object");
            HookOutcome::Failed
        }
        // Whoever left before the session's end does not want to hear of it.
        Err(HostFailure::Left) if event == HookEvent::SessionEnd => HookOutcome::Success,
        Err(failure) => {
            reading.failure(&failure.to_string());
            HookOutcome::Failed
        }
    };
    reading.reported(outcome, None, &printed, "")
}

/// What people know a hook by.
fn name(hook: &HookDeclaration) -> &str {
    hook.callback.as_deref().unwrap_or(&hook.command)
}

/// Why nobody knows what it would have said.
fn failure(ending: &Ending) -> String {
    match ending {
        Ending::Code(126) => "its command cannot be executed (exit code 126)".to_owned(),
        Ending::Code(127) => "its command was not found (exit code 127)".to_owned(),
        Ending::Code(code) => format!("exit code {code}"),
        Ending::Signal(signal) => format!("it was killed by signal {signal}"),
        Ending::OverLimit(limit) => format!("it was ended: it used more than {limit}"),
        Ending::Unseen => "its end was not seen".to_owned(),
        Ending::TimedOut(limit) => format!("it was stopped after {} s", limit.as_secs_f64()),
        Ending::Flooded => "it was stopped after it had printed more than 1 MiB".to_owned(),
        Ending::NotStarted(reason) => format!("it was not started: {reason}"),
    }
}

/// How a "no" was said, which decides whether the model is told whose it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voice {
    Errors,
    Json,
}

struct Reading<'a> {
    event: HookEvent,
    hook: &'a HookDeclaration,
    result: HookResult,
    problems: Vec<String>,
}

impl Reading<'_> {
    /// What was read, with the report of it.
    fn reported(self, outcome: HookOutcome, exit_code: Option<i32>, out: &str, err: &str) -> HookResult {
        let Self { event, hook, mut result, problems } = self;
        result.reports.push(HookReport {
            event,
            command: name(hook).to_owned(),
            source: hook.source.clone(),
            exit_code,
            outcome,
            stdout: shortened(out),
            stderr: shortened(err),
            problem: (!problems.is_empty()).then(|| problems.join("; ")),
        });
        result
    }

    fn success(&mut self, stdout: &str) {
        match spoken(stdout) {
            Spoken::Json(object) => self.json(&object),
            Spoken::Later => self.problems.push("`async` is not available in this version".to_owned()),
            Spoken::Text { text, torn } => {
                if torn {
                    self.problems
                        .push("it printed what begins like JSON and is not, taken as text".to_owned());
                }
                if self.event.takes_text_as_context() && !text.is_empty() {
                    self.result.additional_context.push(shortened(text));
                }
            }
        }
    }

    fn block(&mut self, reason: &str, voice: Voice) {
        let reason = match voice {
            Voice::Errors => format!("[{}]: {}", name(self.hook), shortened(reason)),
            Voice::Json => reason.to_owned(),
        };
        if !self.event.can_block() {
            return self.problems.push(format!("it said no, which this event does not take: {reason}"));
        }
        if self.event.decides_permission() {
            self.permission(HookPermission::Deny { reason: reason.clone() });
        }
        self.result.block.get_or_insert(reason);
    }

    /// An exit code without a meaning: nothing was said, unless the hook must succeed.
    fn error(&mut self, code: i32, stderr: &str) {
        let first_line = shortened(stderr.lines().next().unwrap_or_default());
        let separator = if first_line.is_empty() { "" } else { ": " };
        self.problems.push(format!("it exited with {code}{separator}{first_line}"));
        if self.hook.on_failure == OnFailure::Block {
            self.block(&format!("it failed with exit code {code}"), Voice::Errors);
        }
    }

    /// Never an approval: a call is asked about, unless the declaration wants otherwise.
    fn failure(&mut self, what: &str) {
        self.problems.push(what.to_owned());
        match self.hook.on_failure {
            OnFailure::Block => self.block(&format!("it failed: {what}"), Voice::Errors),
            OnFailure::Default => self.ask(what),
            OnFailure::Continue => {}
        }
    }

    /// It said something about what may happen that nobody understands.
    fn unclear(&mut self, what: &str) {
        self.problems.push(what.to_owned());
        if self.hook.on_failure != OnFailure::Continue {
            self.ask(what);
        }
    }

    fn ask(&mut self, why: &str) {
        if self.event.decides_permission() {
            let reason = Some(format!("the hook [{}] gave no usable answer: {why}", name(self.hook)));
            self.permission(HookPermission::Ask { reason });
        }
    }

    fn permission(&mut self, said: HookPermission) {
        self.result.permission = either(self.result.permission.take(), Some(said), HookPermission::stricter);
    }

    fn json(&mut self, object: &Map<String, Value>) {
        match present(object, "continue") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => {
                let reason = self.text(object, "stopReason");
                self.result.stop = Some(reason.unwrap_or_else(|| "a hook ended the run".to_owned()));
            }
            Some(_) => self.unclear("`continue` is neither true nor false"),
        }
        let message = self.text(object, "systemMessage");
        self.result.messages.extend(message);
        self.decision(object);
        match present(object, "hookSpecificOutput") {
            None => {}
            Some(Value::Object(specific)) => self.specific(specific),
            Some(_) => self.unclear("`hookSpecificOutput` is not an object"),
        }
    }

    fn decision(&mut self, object: &Map<String, Value>) {
        let reason = self.text(object, "reason");
        match present(object, "decision").map(|decision| decision.as_str().unwrap_or_default()) {
            None => {}
            Some("block") => self.no(reason),
            // Elsewhere there is nothing to approve.
            Some("approve") if self.event == HookEvent::PreToolUse => {
                self.permission(HookPermission::Allow { reason });
            }
            Some("approve") if self.event != HookEvent::PermissionRequest => {}
            Some(_) => self.unclear("`decision` is not one that this event takes"),
        }
    }

    fn no(&mut self, reason: Option<String>) {
        match reason.filter(|reason| !reason.trim().is_empty()) {
            Some(reason) => self.block(&reason, Voice::Json),
            None => self.block("it said no and not why", Voice::Errors),
        }
    }

    fn specific(&mut self, specific: &Map<String, Value>) {
        let named = present(specific, "hookEventName").map(|name| name.as_str().unwrap_or_default());
        // Definitions declare a sub-agent's end by the first name.
        let also = (self.event == HookEvent::SubagentStop).then_some(HookEvent::Stop);
        let fits = |name| self.event.name() == name || also.is_some_and(|event| event.name() == name);
        if !named.is_none_or(fits) {
            return self.unclear("`hookSpecificOutput` is for another event");
        }
        for (key, value) in specific.iter().filter(|(_, value)| !value.is_null()) {
            match (self.event, key.as_str()) {
                (_, "hookEventName" | "permissionDecisionReason") => {}
                (_, "additionalContext") => {
                    let context = self.text(specific, key).filter(|context| !context.is_empty());
                    self.result.additional_context.extend(context);
                }
                (HookEvent::PreToolUse, "permissionDecision") => self.permission_decision(specific, value),
                (HookEvent::PreToolUse, "updatedInput") => self.updated_input(value),
                (HookEvent::PostToolUse, "updatedToolOutput" | "updatedMCPToolOutput") => {
                    self.result.updated_output = Some(value.clone());
                }
                (HookEvent::PermissionRequest, "decision") => self.answer(value),
                (HookEvent::PermissionDenied, "retry") => self.result.retry = value.as_bool() == Some(true),
                _ => self.problems.push(format!("`{key}` has no effect in this version")),
            }
        }
    }

    fn permission_decision(&mut self, specific: &Map<String, Value>, value: &Value) {
        let reason = self.text(specific, "permissionDecisionReason");
        match value.as_str() {
            Some("allow") => self.permission(HookPermission::Allow { reason }),
            Some("ask") => self.permission(HookPermission::Ask { reason }),
            Some("deny") => self.no(reason),
            Some("defer") => self.unclear("`defer` is not available in this version"),
            _ => self.unclear("`permissionDecision` must be allow, ask or deny"),
        }
    }

    fn updated_input(&mut self, value: &Value) {
        if value.is_object() {
            self.result.updated_input = Some(value.clone());
        } else {
            self.unclear("`updatedInput` is not an object");
        }
    }

    /// To a question that a person would be asked.
    fn answer(&mut self, value: &Value) {
        if !value.is_object() {
            return self.unclear("`decision` is not an object");
        }
        match Ruling::read(value) {
            Ok(Ruling::Allow { input, message, changes }) => {
                self.permission(HookPermission::Allow { reason: message.as_deref().map(shortened) });
                self.result.updated_input = input.or(self.result.updated_input.take());
                self.problems.extend(changes.problems);
                self.result.updates.extend(changes.updates);
                if changes.missed {
                    self.unclear(
                        "it allows the call with less rights than now, and which was not understood",
                    );
                }
            }
            Ok(Ruling::Deny { message, interrupt }) => {
                let message = message.as_deref().map(shortened);
                if interrupt {
                    self.result.stop =
                        Some(message.clone().unwrap_or_else(|| "a hook ended the run".to_owned()));
                }
                self.no(message);
            }
            Err(problem) => self.unclear(&problem),
        }
    }

    fn text(&mut self, object: &Map<String, Value>, key: &str) -> Option<String> {
        let text = present(object, key)?.as_str().map(shortened);
        if text.is_none() {
            self.problems.push(format!("`{key}` is not a text"));
        }
        text
    }
}

enum Spoken<'a> {
    Json(Map<String, Value>),
    /// That the answer comes later.
    Later,
    Text {
        text: &'a str,
        /// Whether it looks as if it should have been JSON.
        torn: bool,
    },
}

fn spoken(stdout: &str) -> Spoken<'_> {
    let text = stdout.trim();
    if !text.starts_with('{') {
        return Spoken::Text { text, torn: false };
    }
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(object) if is_later(&object) => Spoken::Later,
        Ok(object) => Spoken::Json(object),
        Err(_) => {
            // Who answers later says so in the first line, and may print anything after it.
            let first_line = text.lines().next().unwrap_or_default();
            match serde_json::from_str::<Map<String, Value>>(first_line) {
                Ok(object) if is_later(&object) => Spoken::Later,
                _ => Spoken::Text { text, torn: true },
            }
        }
    }
}

/// Whether it says that the answer comes later.
fn is_later(object: &Map<String, Value>) -> bool {
    object.get("async") == Some(&Value::Bool(true))
}

/// A field that is there and says something.
fn present<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// The text with its middle cut out, if it is long.
fn shortened(text: &str) -> String {
    let characters = text.chars().count();
    if characters <= HEAD_CHARS + TAIL_CHARS {
        return text.to_owned();
    }
    let byte = |character| text.char_indices().nth(character).map_or(text.len(), |(byte, _)| byte);
    let (head, tail) = (byte(HEAD_CHARS), byte(characters - TAIL_CHARS));
    let cut = characters - HEAD_CHARS - TAIL_CHARS;
    format!("{}\n\n[{cut} characters cut here]\n\n{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use decurion_exec::{Exit, Limit};
    use std::time::Duration;

    use HookEvent::{
        PermissionDenied, PermissionRequest, PostToolUse, PreToolUse, SessionEnd, SessionStart, Stop,
        SubagentStart, SubagentStop, UserPromptSubmit,
    };
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    fn ran(ending: Ending, stdout: &str, stderr: &str) -> Ran {
        Ran { ending, stdout: stdout.to_owned(), stderr: stderr.to_owned(), sandboxed: false }
    }

    /// What a hook says, in a line: only what is there.
    fn shown(result: &HookResult) -> String {
        let mut words = Vec::new();
        match &result.permission {
            None => {}
            Some(HookPermission::Allow { reason }) => words.push(format!("allow {reason:?}")),
            Some(HookPermission::Ask { reason }) => words.push(format!("ask {reason:?}")),
            Some(HookPermission::Deny { reason }) => words.push(format!("deny {reason:?}")),
        }
        let texts = [("block", &result.block), ("stop", &result.stop)];
        words.extend(texts.iter().filter_map(|(word, text)| Some(format!("{word} {:?}", text.as_ref()?))));
        let values = [("input", &result.updated_input), ("output", &result.updated_output)];
        words.extend(values.iter().filter_map(|(word, value)| Some(format!("{word} {}", value.as_ref()?))));
        words.extend(result.updates.iter().map(|update| format!("update {}", json!(update))));
        words.extend(result.additional_context.iter().map(|text| format!("context {text:?}")));
        words.extend(result.messages.iter().map(|text| format!("message {text:?}")));
        words.extend(result.retry.then(|| "retry".to_owned()));
        words.extend(
            result.reports.iter().filter_map(|report| Some(format!("({})", report.problem.as_ref()?))),
        );
        if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
    }

    fn said(event: HookEvent, on_failure: OnFailure, ran: &Ran) -> HookResult {
        read(event, &HookDeclaration { on_failure, ..HookDeclaration::new(event, "cmd") }, ran)
    }

    fn check(rows: &[(HookEvent, Ran)], expected: &Expect) {
        let line = |(event, ran): &(HookEvent, Ran)| {
            let how = match &ran.ending {
                Ending::Code(0) => ran.stdout.trim().to_owned(),
                ending => format!("{ending:?} {:?}", ran.stderr),
            };
            format!("{event} {how}\n    {}\n", shown(&said(*event, OnFailure::Default, ran)))
        };
        expected.assert_eq(&rows.iter().map(line).collect::<String>());
    }

    #[test]
    fn exit_codes() {
        let refused = |event| (event, ran(Ending::Code(2), "{\"decision\": \"approve\"}", "no\nway\n"));
        let mut rows: Vec<_> = HookEvent::ALL.into_iter().map(refused).collect();
        rows.push((PreToolUse, ran(Ending::Code(2), "", " \n")));
        rows.push((PreToolUse, ran(Ending::Code(1), "{\"decision\": \"approve\"}", "oops\nmore\n")));
        rows.push((SubagentStart, ran(Ending::Code(1), "text", "")));
        rows.push((Stop, ran(Ending::Code(255), "", "")));
        check(
            &rows,
            &expect![[r#"
            SessionStart Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            SessionEnd Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            UserPromptSubmit Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PreToolUse Code(2) "no\nway\n"
                deny "[cmd]: no\nway", block "[cmd]: no\nway"
            PostToolUse Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PostToolUseFailure Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PostToolBatch Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PermissionRequest Code(2) "no\nway\n"
                deny "[cmd]: no\nway", block "[cmd]: no\nway"
            PermissionDenied Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            Stop Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            StopFailure Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            SubagentStart Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            SubagentStop Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PreCompact Code(2) "no\nway\n"
                block "[cmd]: no\nway"
            PostCompact Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            Notification Code(2) "no\nway\n"
                (it said no, which this event does not take: [cmd]: no
            way)
            PreToolUse Code(2) " \n"
                deny "[cmd]: it said no and not why", block "[cmd]: it said no and not why"
            PreToolUse Code(1) "oops\nmore\n"
                (it exited with 1: oops)
            SubagentStart Code(1) ""
                (it exited with 1)
            Stop Code(255) ""
                (it exited with 255)
        "#]],
        );
    }

    #[test]
    fn texts() {
        let rows = [
            (UserPromptSubmit, " remember \n"),
            (SessionStart, "hello"),
            (SubagentStart, "hello"),
            (SubagentStart, ""),
            (PreToolUse, "fine by me"),
            (Stop, "bye"),
            (SessionStart, "{\"decision\": "),
            (PreToolUse, "{\"decision\": \"approve\""),
            (PreToolUse, "{\"decision\": \"approve\"} and more"),
            (PreToolUse, "[\"decision\", \"approve\"]"),
            (PreToolUse, "{\"async\": true, \"asyncTimeout\": 5}"),
            (SessionStart, "{\"async\": true}\nworking on it"),
        ];
        let rows = rows.map(|(event, stdout)| (event, ran(Ending::Code(0), stdout, "")));
        check(
            &rows,
            &expect![[r#"
            UserPromptSubmit remember
                context "remember"
            SessionStart hello
                context "hello"
            SubagentStart hello
                context "hello"
            SubagentStart 
                nothing
            PreToolUse fine by me
                nothing
            Stop bye
                nothing
            SessionStart {"decision":
                context "{\"decision\":", (it printed what begins like JSON and is not, taken as text)
            PreToolUse {"decision": "approve"
                (it printed what begins like JSON and is not, taken as text)
            PreToolUse {"decision": "approve"} and more
                (it printed what begins like JSON and is not, taken as text)
            PreToolUse ["decision", "approve"]
                nothing
            PreToolUse {"async": true, "asyncTimeout": 5}
                (`async` is not available in this version)
            SessionStart {"async": true}
            working on it
                (`async` is not available in this version)
        "#]],
        );
    }

    #[test]
    fn json() {
        let specific = |event: HookEvent, mut output: Value| {
            output["hookEventName"] = json!(event.name());
            (event, json!({"hookSpecificOutput": output}))
        };
        let rows = vec![
            (Stop, json!({})),
            (Stop, json!({"continue": true, "suppressOutput": true, "decision": null, "reason": null})),
            (PostToolUse, json!({"continue": false, "stopReason": "enough"})),
            (PreToolUse, json!({"continue": false})),
            (PreToolUse, json!({"continue": "no"})),
            (Stop, json!({"systemMessage": "look", "decision": "block", "reason": "not done"})),
            (SubagentStop, json!({"decision": "block"})),
            (Stop, json!({"decision": "approve"})),
            (SubagentStart, json!({"decision": "block", "reason": "do not start"})),
            (SessionEnd, json!({"decision": "block", "reason": "stay"})),
            (PreToolUse, json!({"decision": "block", "reason": "no"})),
            (PreToolUse, json!({"decision": "approve", "reason": "yes"})),
            (PreToolUse, json!({"decision": "deny"})),
            (PreToolUse, json!({"decision": ["approve"]})),
            (PermissionRequest, json!({"decision": "approve"})),
            (PermissionRequest, json!({"decision": "block", "reason": "no"})),
            specific(
                PreToolUse,
                json!({"permissionDecision": "allow", "updatedInput": {"a": 1}, "additionalContext": "c"}),
            ),
            specific(PreToolUse, json!({"permissionDecision": "deny", "permissionDecisionReason": "no"})),
            specific(PreToolUse, json!({"permissionDecision": "deny"})),
            specific(PreToolUse, json!({"permissionDecision": "ask", "permissionDecisionReason": "sure?"})),
            specific(PreToolUse, json!({"permissionDecision": "defer"})),
            specific(PreToolUse, json!({"permissionDecision": "denied"})),
            specific(PreToolUse, json!({"permissionDecision": "allow", "updatedInput": "rm"})),
            specific(PreToolUse, json!({"permissionDecision": "allow", "permissionDecisionReason": 5})),
            specific(PreToolUse, json!({"updatedToolOutput": "x", "decision": {"behavior": "allow"}})),
            (
                PreToolUse,
                json!({"hookSpecificOutput": {"hookEventName": "PostToolUse", "permissionDecision": "allow"}}),
            ),
            (PreToolUse, json!({"hookSpecificOutput": {"permissionDecision": "allow"}})),
            (PreToolUse, json!({"hookSpecificOutput": "allow"})),
            (
                PreToolUse,
                json!({"decision": "approve", "hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no"}}),
            ),
            specific(
                PostToolUse,
                json!({"updatedToolOutput": {"a": 1}, "additionalContext": "c", "classifierContext": "x"}),
            ),
            specific(PostToolUse, json!({"permissionDecision": "allow"})),
            specific(
                PermissionRequest,
                json!({"decision": {"behavior": "allow", "updatedInput": {"a": 1}, "updatedPermissions": []}}),
            ),
            specific(
                PermissionRequest,
                json!({"decision": {"behavior": "deny", "message": "no", "interrupt": true}}),
            ),
            specific(PermissionRequest, json!({"decision": {"behavior": "deny"}})),
            specific(PermissionRequest, json!({"decision": {"behavior": "perhaps", "updatedInput": {}}})),
            specific(PermissionRequest, json!({"decision": "allow"})),
            specific(PermissionDenied, json!({"retry": true})),
            specific(SubagentStart, json!({"additionalContext": "c"})),
            (
                SubagentStop,
                json!({"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "c"}}),
            ),
            (
                Stop,
                json!({"hookSpecificOutput": {"hookEventName": "SubagentStop", "additionalContext": "c"}}),
            ),
            specific(UserPromptSubmit, json!({"additionalContext": ["c"], "sessionTitle": "t"})),
        ];
        let rows = rows.into_iter().map(|(event, json)| (event, ran(Ending::Code(0), &json.to_string(), "")));
        check(
            &rows.collect::<Vec<_>>(),
            &expect![[r#"
                Stop {}
                    nothing
                Stop {"continue":true,"suppressOutput":true,"decision":null,"reason":null}
                    nothing
                PostToolUse {"continue":false,"stopReason":"enough"}
                    stop "enough"
                PreToolUse {"continue":false}
                    stop "a hook ended the run"
                PreToolUse {"continue":"no"}
                    ask Some("the hook [cmd] gave no usable answer: `continue` is neither true nor false"), (`continue` is neither true nor false)
                Stop {"systemMessage":"look","decision":"block","reason":"not done"}
                    block "not done", message "look"
                SubagentStop {"decision":"block"}
                    block "[cmd]: it said no and not why"
                Stop {"decision":"approve"}
                    nothing
                SubagentStart {"decision":"block","reason":"do not start"}
                    (it said no, which this event does not take: do not start)
                SessionEnd {"decision":"block","reason":"stay"}
                    (it said no, which this event does not take: stay)
                PreToolUse {"decision":"block","reason":"no"}
                    deny "no", block "no"
                PreToolUse {"decision":"approve","reason":"yes"}
                    allow Some("yes")
                PreToolUse {"decision":"deny"}
                    ask Some("the hook [cmd] gave no usable answer: `decision` is not one that this event takes"), (`decision` is not one that this event takes)
                PreToolUse {"decision":["approve"]}
                    ask Some("the hook [cmd] gave no usable answer: `decision` is not one that this event takes"), (`decision` is not one that this event takes)
                PermissionRequest {"decision":"approve"}
                    ask Some("the hook [cmd] gave no usable answer: `decision` is not one that this event takes"), (`decision` is not one that this event takes)
                PermissionRequest {"decision":"block","reason":"no"}
                    deny "no", block "no"
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"allow","updatedInput":{"a":1},"additionalContext":"c","hookEventName":"PreToolUse"}}
                    allow None, input {"a":1}, context "c"
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"deny","permissionDecisionReason":"no","hookEventName":"PreToolUse"}}
                    deny "no", block "no"
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"deny","hookEventName":"PreToolUse"}}
                    deny "[cmd]: it said no and not why", block "[cmd]: it said no and not why"
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"ask","permissionDecisionReason":"sure?","hookEventName":"PreToolUse"}}
                    ask Some("sure?")
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"defer","hookEventName":"PreToolUse"}}
                    ask Some("the hook [cmd] gave no usable answer: `defer` is not available in this version"), (`defer` is not available in this version)
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"denied","hookEventName":"PreToolUse"}}
                    ask Some("the hook [cmd] gave no usable answer: `permissionDecision` must be allow, ask or deny"), (`permissionDecision` must be allow, ask or deny)
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"allow","updatedInput":"rm","hookEventName":"PreToolUse"}}
                    ask Some("the hook [cmd] gave no usable answer: `updatedInput` is not an object"), (`updatedInput` is not an object)
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"allow","permissionDecisionReason":5,"hookEventName":"PreToolUse"}}
                    allow None, (`permissionDecisionReason` is not a text)
                PreToolUse {"hookSpecificOutput":{"updatedToolOutput":"x","decision":{"behavior":"allow"},"hookEventName":"PreToolUse"}}
                    (`updatedToolOutput` has no effect in this version; `decision` has no effect in this version)
                PreToolUse {"hookSpecificOutput":{"hookEventName":"PostToolUse","permissionDecision":"allow"}}
                    ask Some("the hook [cmd] gave no usable answer: `hookSpecificOutput` is for another event"), (`hookSpecificOutput` is for another event)
                PreToolUse {"hookSpecificOutput":{"permissionDecision":"allow"}}
                    allow None
                PreToolUse {"hookSpecificOutput":"allow"}
                    ask Some("the hook [cmd] gave no usable answer: `hookSpecificOutput` is not an object"), (`hookSpecificOutput` is not an object)
                PreToolUse {"decision":"approve","hookSpecificOutput":{"permissionDecision":"deny","permissionDecisionReason":"no"}}
                    deny "no", block "no"
                PostToolUse {"hookSpecificOutput":{"updatedToolOutput":{"a":1},"additionalContext":"c","classifierContext":"x","hookEventName":"PostToolUse"}}
                    output {"a":1}, context "c", (`classifierContext` has no effect in this version)
                PostToolUse {"hookSpecificOutput":{"permissionDecision":"allow","hookEventName":"PostToolUse"}}
                    (`permissionDecision` has no effect in this version)
                PermissionRequest {"hookSpecificOutput":{"decision":{"behavior":"allow","updatedInput":{"a":1},"updatedPermissions":[]},"hookEventName":"PermissionRequest"}}
                    allow None, input {"a":1}
                PermissionRequest {"hookSpecificOutput":{"decision":{"behavior":"deny","message":"no","interrupt":true},"hookEventName":"PermissionRequest"}}
                    deny "no", block "no", stop "no"
                PermissionRequest {"hookSpecificOutput":{"decision":{"behavior":"deny"},"hookEventName":"PermissionRequest"}}
                    deny "[cmd]: it said no and not why", block "[cmd]: it said no and not why"
                PermissionRequest {"hookSpecificOutput":{"decision":{"behavior":"perhaps","updatedInput":{}},"hookEventName":"PermissionRequest"}}
                    ask Some("the hook [cmd] gave no usable answer: `behavior` is neither `allow` nor `deny`"), (`behavior` is neither `allow` nor `deny`)
                PermissionRequest {"hookSpecificOutput":{"decision":"allow","hookEventName":"PermissionRequest"}}
                    ask Some("the hook [cmd] gave no usable answer: `decision` is not an object"), (`decision` is not an object)
                PermissionDenied {"hookSpecificOutput":{"retry":true,"hookEventName":"PermissionDenied"}}
                    retry
                SubagentStart {"hookSpecificOutput":{"additionalContext":"c","hookEventName":"SubagentStart"}}
                    context "c"
                SubagentStop {"hookSpecificOutput":{"hookEventName":"Stop","additionalContext":"c"}}
                    context "c"
                Stop {"hookSpecificOutput":{"hookEventName":"SubagentStop","additionalContext":"c"}}
                    (`hookSpecificOutput` is for another event)
                UserPromptSubmit {"hookSpecificOutput":{"additionalContext":["c"],"sessionTitle":"t","hookEventName":"UserPromptSubmit"}}
                    (`additionalContext` is not a text; `sessionTitle` has no effect in this version)
            "#]],
        );
    }

    #[test]
    fn a_hook_that_used_too_much_is_reported_with_the_limit() {
        let exit = Exit::OverLimit(Limit::Memory { mebibytes: 18_079 });
        let said = said(Stop, OnFailure::Default, &ran(exit.into(), "", ""));
        let problem = said.reports[0].problem.as_deref().unwrap();
        assert!(problem.contains("it was ended: it used more than 17 GiB of memory"), "{problem}");
    }

    #[test]
    fn failures_are_never_approvals() {
        let approval = "{\"decision\": \"approve\"}";
        let endings = [
            Ending::Signal(11),
            Ending::Code(126),
            Ending::Code(127),
            Ending::TimedOut(Duration::from_millis(1500)),
            Ending::Flooded,
            Ending::OverLimit(Limit::Processes(4096)),
            Ending::Unseen,
            Ending::NotStarted("no such program".into()),
        ];
        for ending in endings {
            for event in HookEvent::ALL {
                let said = |on_failure| said(event, on_failure, &ran(ending.clone(), approval, ""));
                let [ordinary, lenient, strict] =
                    [OnFailure::Default, OnFailure::Continue, OnFailure::Block].map(said);
                let asks = matches!(ordinary.permission, Some(HookPermission::Ask { .. }));
                assert_eq!(asks, event.decides_permission(), "{event} {ending:?}");
                assert_eq!((ordinary.block, lenient.permission, lenient.block), (None, None, None));
                assert_eq!(strict.block.is_some(), event.can_block(), "{event} {ending:?}");
                let denies = matches!(strict.permission, Some(HookPermission::Deny { .. }));
                assert_eq!(denies, event.decides_permission(), "{event} {ending:?}");
                for result in [&ordinary.reports, &lenient.reports, &strict.reports] {
                    assert_eq!(result[0].outcome, HookOutcome::Failed);
                    assert!(result[0].problem.is_some());
                }
            }
        }
    }

    #[test]
    fn a_hook_that_must_succeed_blocks_with_any_other_code() {
        let failed = ran(Ending::Code(1), "", "trace\n");
        let rows = [
            (PreToolUse, OnFailure::Continue, "(it exited with 1: trace)"),
            (
                PreToolUse,
                OnFailure::Block,
                "deny \"[cmd]: it failed with exit code 1\", block \"[cmd]: it failed with exit code 1\", \
                 (it exited with 1: trace)",
            ),
            (
                Stop,
                OnFailure::Block,
                "block \"[cmd]: it failed with exit code 1\", (it exited with 1: trace)",
            ),
        ];
        for (event, on_failure, expected) in rows {
            assert_eq!(shown(&said(event, on_failure, &failed)), expected);
        }
        let unclear = ran(Ending::Code(0), "{\"decision\": \"perhaps\"}", "");
        assert_eq!(said(PreToolUse, OnFailure::Continue, &unclear).permission, None);
    }

    #[test]
    fn the_strictest_of_several_wins_whatever_their_order() {
        let allow = HookPermission::Allow { reason: None };
        let ask = HookPermission::Ask { reason: Some("sure?".into()) };
        let deny = HookPermission::Deny { reason: "no".into() };
        let with = |permission: &Option<HookPermission>| HookResult {
            permission: permission.clone(),
            ..HookResult::default()
        };
        let ranked = [None, Some(allow), Some(ask), Some(deny)];
        for (first_rank, first) in ranked.iter().enumerate() {
            for (second_rank, second) in ranked.iter().enumerate() {
                let merged = with(first).merge(with(second)).permission;
                assert_eq!(merged, ranked[first_rank.max(second_rank)]);
            }
        }
    }

    #[test]
    fn what_several_say_is_gathered_in_order() {
        let result = |name: &str| HookResult {
            block: Some(format!("block {name}")),
            permission: Some(HookPermission::Ask { reason: Some(name.into()) }),
            updated_input: Some(json!({"from": name})),
            updated_output: Some(json!(name)),
            updates: vec![PermissionUpdate::SetMode { mode: decurion_protocol::Mode::Plan }],
            additional_context: vec![format!("context {name}")],
            stop: Some(format!("stop {name}")),
            retry: name == "b",
            messages: vec![format!("message {name}")],
            reports: vec![],
        };
        let expected = "ask Some(\"a\"), block \"block a\\nblock b\", stop \"stop a\", input {\"from\":\"b\"}, \
                        output \"b\", update {\"type\":\"set_mode\",\"mode\":\"plan\"}, \
                        update {\"type\":\"set_mode\",\"mode\":\"plan\"}, context \"context a\", context \"context b\", message \"message a\", \
                        message \"message b\", retry";
        assert_eq!(shown(&result("a").merge(result("b"))), expected);
        assert_eq!(result("a").merge(HookResult::default()), result("a"));
        assert_eq!(HookResult::default().merge(result("a")), result("a"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let most = HEAD_CHARS + TAIL_CHARS;
        assert_eq!(shortened(&"é".repeat(most)), "é".repeat(most));
        let long = shortened(&format!("{}{}", "é".repeat(most), "x"));
        assert!(
            long.starts_with("éé") && long.ends_with("éx") && long.contains("\n[1 characters cut here]\n")
        );
        let flood = "é".repeat(2 * most);
        for result in [
            said(PreToolUse, OnFailure::Default, &ran(Ending::Code(2), &flood, &flood)),
            said(SessionStart, OnFailure::Default, &ran(Ending::Code(0), &flood, &flood)),
            said(
                Stop,
                OnFailure::Default,
                &ran(Ending::Code(0), &json!({"decision": "block", "reason": flood}).to_string(), ""),
            ),
        ] {
            let texts = result.block.iter().chain(&result.additional_context);
            let reports = result.reports.iter().flat_map(|report| [&report.stdout, &report.stderr]);
            for text in texts.chain(reports) {
                assert!(text.chars().count() <= most + 100 && text.matches("cut here").count() <= 1);
            }
        }
    }

    #[test]
    fn problems_name_the_hook() {
        let mut hook = HookDeclaration::new(Stop, "./check");
        let problems = |hook: &HookDeclaration| {
            let result = read(Stop, hook, &ran(Ending::Signal(9), "", ""));
            result.problems().collect::<Vec<_>>()
        };
        assert_eq!(problems(&hook), ["Stop hook [./check]: it was killed by signal 9"]);
        hook.source = "f.json:1:2".into();
        assert_eq!(problems(&hook), ["Stop hook [./check] (f.json:1:2): it was killed by signal 9"]);
    }
}
