//! A conversation as items. Takes its events in order; gives items that are finished, which never change again, and
//! those in progress.

use std::collections::VecDeque;

use decurion_protocol::choice::{self, EXIT_PLAN};
use decurion_protocol::{
    AgentId, Block, CallId, Delta, Envelope, Event, Message, Origin, Outcome, Role, ShellLine, Todo,
    ToolOutput,
};
use serde_json::Value;

use crate::report::{self, FinishedTask};
pub use crate::view::diff::{FileChange, Hunk};
use crate::view::markdown::settled;

/// The tool that starts agents.
pub(crate) const AGENT: &str = "Agent";
/// The model gets this for a call that a person declined without a reason.
pub(crate) const UNWANTED: &str = "The user does not want this call, and wants you to stop and wait.";
/// The tool of a person who runs a command himself.
pub(crate) const SHELL: &str = "!";
/// How much of a call's output is kept to be looked at.
const MOST_OUTPUT: usize = 16 << 10;
/// The message if the shown parts of an answer do not follow each other.
const MISSED: &str = "part of the answer above was missed while streaming; here it is in full";

/// One piece of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum ConversationItem {
    /// What a new conversation begins with.
    Greeting(Box<Greeting>),
    /// What a person asked.
    Prompt(String),
    /// What the model said: a whole answer, or the next blocks of one.
    Said {
        text: String,
        /// Whether more of the same answer stands above it.
        goes_on: bool,
    },
    /// What the model thought.
    Thought(String),
    /// A call and its result.
    Call(Box<Called>),
    /// A plan that a person has answered.
    Plan {
        text: String,
        /// Why it was rejected, which may be no words at all; none if it was agreed to.
        rejected: Option<String>,
    },
    /// A background agent or command that the model hears of now.
    Finished(Box<FinishedTask>),
    /// What the runtime has to say.
    Notice {
        /// `info`, `warning` or `error`.
        level: String,
        text: String,
    },
    /// The conversation was shortened here.
    Shortened {
        /// How many tokens it had.
        tokens: u64,
    },
    /// A run is over, and not well.
    Ended(Outcome),
}

/// Where the person is, shown first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of the program.
    pub version: String,
    /// The model that will answer.
    pub model: String,
    /// The folder, as people write it.
    pub folder: String,
}

/// A call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub tool: String,
    /// What it was about, in one line.
    pub title: String,
    /// Whether it failed or was refused.
    pub failed: bool,
    /// Whether it is a command that was interrupted, of which the last output matters.
    pub interrupted: bool,
    /// What it gave back, or its beginning.
    pub output: String,
    /// How many lines that had.
    pub lines: usize,
    pub change: Option<FileChange>,
    /// The list of steps that it wrote.
    pub todos: Option<Vec<Todo>>,
    /// What an agent that was waited for has used.
    pub used: Option<String>,
    /// How long it took.
    pub duration_ms: u64,
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calling {
    pub call: CallId,
    pub tool: String,
    /// What it is about.
    pub title: String,
    /// What it has printed last.
    pub progress: String,
}

/// A call that was refused.
#[derive(Debug)]
struct RefusedCall {
    call: CallId,
    /// What it was about.
    title: String,
    /// The plan, if it was one.
    plan: Option<String>,
    reason: String,
}

/// One conversation: the root's, or an agent's.
#[derive(Debug, Default)]
pub struct Conversation {
    agent: Option<AgentId>,
    /// What is finished and was not taken yet.
    fresh: VecDeque<ConversationItem>,
    /// What the model is saying, as far as it is not finished.
    saying: String,
    /// The beginning of it, as far as that is finished already.
    finished: String,
    thinking: String,
    /// Whether the answer that comes was heard from its beginning.
    from_start: bool,
    calling: Vec<Calling>,
    /// Calls that were asked about and not begun, and what they are about.
    asked: Vec<(CallId, String)>,
    /// Calls that were refused and have no result yet.
    refused: Vec<RefusedCall>,
    /// The calls of the last reply, and what they are about by their input.
    wanted: Vec<(CallId, String)>,
    /// An error that was shown, before the end that repeats it.
    told: String,
    /// How many replies the run has so far: one that ends without any says itself why.
    replies: u32,
    is_empty: bool,
}

impl Conversation {
    /// That of this agent; none is the root.
    pub fn of(agent: Option<AgentId>) -> Self {
        Self { agent, is_empty: true, ..Self::default() }
    }

    /// What is finished since this was asked last.
    pub fn take_finished(&mut self) -> Vec<ConversationItem> {
        self.fresh.drain(..).collect()
    }

    /// What the model is saying: the part that may still change, and whether some of it stands above.
    pub fn saying(&self) -> Option<(&str, bool)> {
        (!self.saying.trim().is_empty()).then_some((self.saying.as_str(), !self.finished.is_empty()))
    }

    /// What it is thinking.
    pub fn thinking(&self) -> Option<&str> {
        (!self.thinking.is_empty()).then_some(self.thinking.as_str())
    }

    /// The calls under way.
    pub fn calling(&self) -> &[Calling] {
        &self.calling
    }

    /// Whether there is no item yet.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Takes the next event, if it is of this conversation.
    pub fn take(&mut self, envelope: &Envelope) {
        crate::fault_point::pass("conversation");
        if envelope.agent != self.agent {
            return;
        }
        match &envelope.event {
            Event::Message { message, meta, .. } => {
                self.replies += u32::from(message.role == Role::Assistant);
                self.message(message, &meta.origin);
            }
            Event::Delta { delta } => self.delta(delta),
            Event::CallStarted { call, tool, intent, .. } => self.calling.push(Calling {
                call: call.clone(),
                tool: tool.clone(),
                title: intent.title.clone(),
                progress: String::new(),
            }),
            Event::CallProgress { call, text } => self.progress(call, text),
            // Its result, which follows, says why.
            Event::CallRefused { call, tool, input, decision, .. } => {
                let asked = self.asked.iter().find(|(asked, _)| asked == call);
                let title = asked.map_or_else(|| title_of(tool, input), |(_, title)| title.clone());
                let plan = choice::plan(input).filter(|_| tool == EXIT_PLAN).map(str::to_owned);
                let (call, reason) = (call.clone(), decision.reason.clone());
                self.refused.push(RefusedCall { call, title, plan, reason });
            }
            Event::Asked { question } if question.elicitation.is_none() => {
                self.asked.push((question.call.clone(), question.intent.title.clone()));
            }
            Event::CallEnded { call, tool, output, duration_ms, .. } => {
                self.call_ended(call, tool, output, *duration_ms);
            }
            Event::ShellBegun { shell } => self.calling.push(Calling {
                call: shell.call.clone(),
                tool: SHELL.to_owned(),
                title: format!("! {}", shell.command),
                progress: String::new(),
            }),
            Event::ShellEnded { shell } => {
                self.close(&shell.call, SHELL);
                self.push(ConversationItem::Call(Box::new(Called::shell(shell))));
            }
            Event::Compacted { tokens_before, .. } => {
                self.push(ConversationItem::Shortened { tokens: *tokens_before });
            }
            Event::Notice { level, text } => {
                self.push(ConversationItem::Notice { level: level.clone(), text: text.clone() });
            }
            Event::RunEnded { outcome, .. } => self.end(outcome),
            _ => {}
        }
    }

    fn call_ended(&mut self, call: &CallId, tool: &str, output: &ToolOutput, duration_ms: u64) {
        let refused = self.refused.iter_mut().find(|refused| refused.call == *call);
        let rejected = refused.and_then(|refused| {
            let reason = report::refusal(&refused.reason);
            Some(ConversationItem::Plan { text: refused.plan.take()?, rejected: Some(reason) })
        });
        // An event that closes a call of another agent has no tool.
        let calling = self.calling.iter().find(|calling| calling.call == *call);
        let tool = calling.filter(|_| tool.is_empty()).map_or(tool, |calling| &calling.tool).to_owned();
        let title = self.close(call, &tool);
        let agreed =
            report::agreed_plan(&tool, output).map(|text| ConversationItem::Plan { text, rejected: None });
        let item = rejected.or(agreed);
        self.push(item.unwrap_or_else(|| {
            ConversationItem::Call(Box::new(Called::new(&tool, title, output, duration_ms)))
        }));
    }

    fn push(&mut self, item: ConversationItem) {
        self.is_empty = false;
        self.fresh.push_back(item);
    }

    fn message(&mut self, message: &Message, origin: &Origin) {
        match (message.role, origin) {
            (Role::User, Origin::Prompt) => {
                let text = typed_text(message);
                if !text.is_empty() {
                    self.push(ConversationItem::Prompt(text));
                }
            }
            (Role::User, Origin::Note(kind)) if kind == "notification" => {
                message
                    .blocks
                    .iter()
                    .filter_map(told)
                    .for_each(|text| self.push(ConversationItem::Prompt(text)));
            }
            (Role::Assistant, Origin::Model) => self.reply(message),
            (Role::Assistant, Origin::Synthetic) => {
                self.told = message.text();
                self.push(ConversationItem::Notice { level: "error".to_owned(), text: self.told.clone() });
            }
            _ => {}
        }
    }

    /// A whole reply: the part that was not shown while streaming. A late listener may have missed a part, so the rest
    /// is taken from the reply itself.
    fn reply(&mut self, message: &Message) {
        let (saying, finished) = (std::mem::take(&mut self.saying), std::mem::take(&mut self.finished));
        self.thinking.clear();
        // A late listener has a part only, and now gets the whole.
        let from_start = std::mem::take(&mut self.from_start);
        let is_new = finished.is_empty() && (saying.is_empty() || !from_start);
        self.wanted.clear();
        for block in &message.blocks {
            match block {
                Block::ToolUse { id, name, input, .. } => {
                    self.wanted.push((id.clone(), title_of(name, input)));
                }
                Block::Thinking { thinking, .. } if !thinking.trim().is_empty() => {
                    self.push(ConversationItem::Thought(thinking.clone()));
                }
                Block::Text { text } if is_new && !text.trim().is_empty() => {
                    self.push(ConversationItem::Said { text: text.clone(), goes_on: false });
                }
                _ => {}
            }
        }
        if is_new {
            return;
        }
        let text = message.text();
        if let Some(rest) = after(&text, &finished) {
            self.say_rest(rest, !finished.is_empty());
        } else {
            self.push(ConversationItem::Notice { level: "warning".to_owned(), text: MISSED.to_owned() });
            self.say_rest(&text, false);
        }
    }

    /// The end of an answer, as far as there is something in it.
    fn say_rest(&mut self, rest: &str, goes_on: bool) {
        let text = rest.trim_end();
        if !text.is_empty() {
            self.push(ConversationItem::Said { text: text.to_owned(), goes_on });
        }
    }

    fn delta(&mut self, delta: &Delta) {
        match delta {
            Delta::Started { .. } => {
                self.from_start = true;
                self.saying.clear();
                self.thinking.clear();
                self.finished.clear();
            }
            Delta::BlockStarted { .. } if !self.saying.is_empty() && !self.saying.ends_with("\n\n") => {
                self.saying.push_str("\n\n");
            }
            Delta::Text { text, .. } => self.say(text),
            Delta::Thinking { text, .. } => self.thinking.push_str(text),
            Delta::Discarded { reason } => {
                let was_shown = !std::mem::take(&mut self.finished).is_empty();
                // The next part begins anew; a listener that misses it has no beginning.
                self.from_start = false;
                self.saying.clear();
                self.thinking.clear();
                if was_shown {
                    let text = format!("the answer above broke off; retrying: {reason}");
                    self.push(ConversationItem::Notice { level: "warning".to_owned(), text });
                }
            }
            _ => {}
        }
    }

    /// More of an answer. What nothing that follows can change is finished.
    fn say(&mut self, text: &str) {
        self.saying.push_str(text);
        if !self.from_start {
            return;
        }
        // Only a line that ends can settle what is above it.
        if !text.contains('\n') {
            return;
        }
        let end = settled(&self.saying);
        if end > 0 {
            let rest = self.saying.split_off(end);
            let mut done = std::mem::replace(&mut self.saying, rest);
            done.truncate(done.trim_end().len());
            if !done.is_empty() {
                let goes_on = !self.finished.is_empty();
                self.finished.push_str(&done);
                self.push(ConversationItem::Said { text: done, goes_on });
            }
        }
    }

    fn progress(&mut self, call: &CallId, text: &str) {
        if let Some(calling) = self.calling.iter_mut().find(|calling| calling.call == *call) {
            let last = text.trim_end().rsplit('\n').next().unwrap_or_default();
            if !last.trim().is_empty() {
                cut(last, 400).clone_into(&mut calling.progress);
            }
        }
    }

    /// A call is over: what it was about.
    fn close(&mut self, call: &CallId, tool: &str) -> String {
        let asked = self.asked.iter().position(|(asked, _)| asked == call);
        let asked = asked.map(|at| self.asked.swap_remove(at).1);
        if let Some(at) = self.refused.iter().position(|refused| refused.call == *call) {
            let title = self.refused.swap_remove(at).title;
            self.calling.retain(|calling| calling.call != *call);
            return format!("refused: {title}");
        }
        let at = self.calling.iter().position(|calling| calling.call == *call);
        let begun = at.map(|at| self.calling.remove(at).title);
        let wanted = self.wanted.iter().find(|(wanted, _)| wanted == call).map(|(_, title)| title.clone());
        begun.or(asked).or(wanted).unwrap_or_else(|| tool.to_owned())
    }

    /// No more of what is being said will come, or be looked at: what there is of it is finished.
    pub fn break_off(&mut self) {
        self.thinking.clear();
        let (rest, finished) = (std::mem::take(&mut self.saying), std::mem::take(&mut self.finished));
        self.say_rest(&rest, !finished.is_empty());
    }

    fn end(&mut self, outcome: &Outcome) {
        self.calling.clear();
        self.asked.clear();
        self.refused.clear();
        self.break_off();
        let (told, replies) = (std::mem::take(&mut self.told), std::mem::take(&mut self.replies));
        match outcome {
            Outcome::Completed { limit: None, report } if replies == 0 && !report.trim().is_empty() => {
                self.push(ConversationItem::Notice { level: "warning".to_owned(), text: report.clone() });
            }
            Outcome::Completed { limit: None, .. } => {}
            Outcome::Failed { error: said } | Outcome::Stalled { waiting_for: said } if *said == told => {}
            _ => self.push(ConversationItem::Ended(outcome.clone())),
        }
    }
}

impl Called {
    /// A command that a person ran.
    fn shell(shell: &ShellLine) -> Self {
        let ending = shell.ending.clone().unwrap_or_default();
        let code = ending.exit_code.filter(|code| *code != 0).map(|code| format!("exit code {code}"));
        let mut output = cut(&ending.output, MOST_OUTPUT).trim_end().to_owned();
        for remark in code.iter().chain(&ending.remark) {
            output.push_str(if output.is_empty() { "" } else { "\n" });
            output.push_str(remark);
        }
        Self {
            tool: SHELL.to_owned(),
            title: format!("! {}", shell.command),
            failed: ending.exit_code.is_some_and(|code| code != 0),
            interrupted: false,
            lines: ending.output.lines().count()
                + usize::from(code.is_some())
                + usize::from(ending.remark.is_some()),
            output,
            change: None,
            todos: None,
            used: None,
            duration_ms: ending.duration_ms,
        }
    }

    fn new(tool: &str, title: String, output: &ToolOutput, duration_ms: u64) -> Self {
        let text = report::for_people(tool, output);
        Self {
            tool: tool.to_owned(),
            title,
            failed: output.is_error,
            interrupted: report::is_interrupted(tool, output),
            lines: report::read_lines(output).unwrap_or_else(|| text.lines().count()),
            // Of a command that failed the end says why.
            output: if output.is_error && tool == report::SHELL_TOOL {
                without_middle(&text, MOST_OUTPUT)
            } else {
                cut(&text, MOST_OUTPUT).to_owned()
            },
            change: output.structured.as_ref().and_then(FileChange::reported),
            todos: output.todos(),
            used: output.structured.as_ref().and_then(report::used),
            duration_ms,
        }
    }
}

/// What a call that was never looked at is about, as far as its input tells.
fn title_of(tool: &str, input: &Value) -> String {
    let about = ["command", "file_path", "notebook_path", "url", "pattern", "description"];
    match about.iter().find_map(|member| input[*member].as_str()) {
        Some(command) if tool == "Bash" => format!("$ {command}"),
        Some(about) => format!("{tool} {about}"),
        None => tool.to_owned(),
    }
}

/// A prompt as it was typed: of a person's own command the model reads more than that.
pub fn typed_text(message: &Message) -> String {
    let text = message.text();
    let between = |from: &str, to: &str| {
        let rest = text.split_once(from)?.1;
        rest.split_once(to).map(|(inner, _)| inner)
    };
    if !text.starts_with("<command-message>") {
        return text;
    }
    match (between("<command-name>", "</command-name>"), between("<command-args>", "</command-args>")) {
        (Some(name), Some(args)) => format!("{name} {args}"),
        (Some(name), None) => name.to_owned(),
        (None, _) => text,
    }
}

/// What follows in a text after its beginning; none if it begins otherwise. The space between blocks is not the same while
/// a text comes and once it is whole.
fn after<'a>(text: &'a str, beginning: &str) -> Option<&'a str> {
    let mut rest = text;
    for letter in beginning.chars().filter(|letter| !letter.is_whitespace()) {
        rest = rest.trim_start().strip_prefix(letter)?;
    }
    // A line that is indented stays so.
    Some(rest.trim_start_matches(['\n', '\r']))
}

/// The first line of a text and its end, where it is longer than that.
fn without_middle(text: &str, bytes: usize) -> String {
    let Some((first, rest)) = text.split_once('\n').filter(|_| text.len() > bytes) else {
        return cut(text, bytes).to_owned();
    };
    let end = &rest[rest.ceil_char_boundary(rest.len().saturating_sub(bytes))..];
    format!("{}\n{end}", cut(first, bytes))
}

/// The beginning of a text, whole characters only.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes.min(text.len()))]
}

/// A message to a working agent, as it was written; none for a notification.
fn told(block: &Block) -> Option<String> {
    let Block::Text { text } = block else { return None };
    let (_, rest) = text.trim().strip_prefix("<message from=\"")?.split_once(">\n")?;
    let words = rest.strip_suffix("\n</message>")?;
    Some(words.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_of_which_the_end_was_not_heard_is_shown_to_its_end() {
        // Nothing of it was finished: the whole text takes the place of what was heard.
        assert_eq!(shown(&["start", "The fir"], &["The first line."]), ["The first line."]);
        // A paragraph was, once a line of the next one was there: what follows it is the rest.
        let text = "One.\n\nTwo.\n\n    three();\n\nFour.";
        let rest = "… Two.\n\n    three();\n\nFour.";
        assert_eq!(shown(&["start", "One.\n\nTwo.\n"], &[text]), ["One.", rest]);
        let rest = "…     three();\n\nFour.";
        assert_eq!(shown(&["start", "One.\n\nTwo.\n\n    three();\n"], &[text]), ["One.\n\nTwo.", rest]);
        // The beginning of what was asked for again was missed.
        let text = "One, two\n\nthree\n\nfour";
        assert_eq!(shown(&["start", "Oh.", "discard", "two\n\nthree\n\nfour"], &[text]), [text]);
    }

    #[test]
    fn an_answer_of_which_the_middle_was_not_heard_is_shown_whole_again() {
        let text = "One.\n\nTwo.\n\nThree.\n\nFour.";
        let notice = format!("({MISSED})");
        let shown = shown(&["start", "One.\n\nTw", "ree.\n\nFour.\n", "Five."], &[text]);
        assert_eq!(shown, ["One.\n\nTwree.", notice.as_str(), text]);
    }

    #[test]
    fn an_answer_that_was_heard_is_shown_once() {
        let blocks = ["One.\n\n- two\n- three\n", "\nFour.\n\n```\nfive\n```\n", "Six."];
        for size in 1..9 {
            let mut heard = vec!["start"];
            for text in blocks {
                heard.push("block");
                let at = |at: usize| text.floor_char_boundary(at.min(text.len()));
                heard.extend((0..text.len()).step_by(size).map(|from| &text[from..at(from + size)]));
            }
            let shown = shown(&heard, &blocks).concat();
            let letters = shown.replace('…', "").split_whitespace().collect::<String>();
            assert_eq!(letters, "One.-two-threeFour.```five```Six.", "{size}: {shown}");
        }
        // Whoever came in the middle of it reads every block.
        assert_eq!(shown(&["Six."], &blocks), blocks);
    }

    #[test]
    fn an_agents_answer_is_no_less_whole() {
        let mut conversation = Conversation::of("a0123456789abcdef".parse().ok());
        hear(&mut conversation, &["start", "One.\n\nTwo.\nTh"], &["One.\n\nTwo.\nThree."]);
        let shown: Vec<String> = conversation.take_finished().iter().map(words).collect();
        assert_eq!(shown, ["One.", "… Two.\nThree."]);
    }

    fn take(conversation: &mut Conversation, event: Value) {
        let event: Event = serde_json::from_value(event).unwrap();
        assert!(!matches!(event, Event::Unknown(_)), "{event:?}");
        let run = decurion_protocol::RunId(uuid::Uuid::nil());
        let at = jiff::Timestamp::UNIX_EPOCH;
        conversation.take(&Envelope { seq: 1, at, agent: conversation.agent.clone(), run, event });
    }

    /// What is shown of an answer of which these pieces were heard while it came, and then these blocks as a whole.
    fn shown(heard: &[&str], blocks: &[&str]) -> Vec<String> {
        let mut conversation = Conversation::of(None);
        hear(&mut conversation, heard, blocks);
        conversation.take_finished().iter().map(words).collect()
    }

    fn hear(conversation: &mut Conversation, heard: &[&str], blocks: &[&str]) {
        let delta = |delta: Value| json!({"type": "delta", "delta": delta});
        for piece in heard {
            take(
                conversation,
                delta(match *piece {
                    "start" => json!({"delta": "started", "message_id": "m", "model": "m", "usage": {}}),
                    "block" => {
                        json!({"delta": "block_started", "index": 0, "block": {"type": "text", "text": ""}})
                    }
                    "discard" => json!({"delta": "discarded", "reason": "lost"}),
                    text => json!({"delta": "text", "index": 0, "text": text}),
                }),
            );
        }
        let blocks: Vec<Value> = blocks.iter().map(|text| json!({"type": "text", "text": text})).collect();
        take(
            conversation,
            json!({"type": "message", "lines": [], "parent": null,
            "message": {"role": "assistant", "content": blocks}, "meta": {"origin": "model"}}),
        );
    }

    fn words(item: &ConversationItem) -> String {
        match item {
            ConversationItem::Said { text, goes_on: true } => format!("… {text}"),
            ConversationItem::Said { text, goes_on: false } => text.clone(),
            ConversationItem::Notice { text, .. } => format!("({text})"),
            other => format!("{other:?}"),
        }
    }
}
