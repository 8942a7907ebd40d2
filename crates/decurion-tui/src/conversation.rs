//! What was said and done, as items. Takes the events of one conversation in order; gives items that are finished, which
//! never change again, and what is still coming.

use std::collections::VecDeque;

use decurion_protocol::{
    AgentId, Block, CallId, Delta, Envelope, Event, Message, Origin, Outcome, Role, ShellLine, Todo,
    ToolContent, ToolOutput,
};
use serde_json::Value;

use crate::report::Finished;
use crate::view::agents::{duration, tokens};
pub use crate::view::diff::{Change, Hunk};
use crate::view::markdown::settled;

/// The tool that runs commands.
const SHELL_TOOL: &str = "Bash";
/// The tool that starts agents.
pub(crate) const AGENT: &str = "Agent";
/// What the model is told of a call that a person declined without a word.
pub(crate) const UNWANTED: &str = "The user does not want this call, and wants you to stop and wait.";
/// The tool of a person who runs a command himself.
const SHELL: &str = "!";
/// How much of a call's output is kept to be looked at.
const MOST_OUTPUT: usize = 16 << 10;
/// What is said where parts of an answer were shown that do not follow each other.
const MISSED: &str = "a part of the answer above was missed while it came; here it is whole";

/// One piece of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// What a new conversation begins with.
    Greeting(Box<Greeting>),
    /// What a person asked.
    Prompt(String),
    /// What the model said: a whole answer, or the next blocks of one.
    Said {
        /// In Markdown.
        text: String,
        /// Whether more of the same answer stands above it.
        goes_on: bool,
    },
    /// What the model thought.
    Thought(String),
    /// A call and what came of it.
    Call(Box<Called>),
    /// A background agent or command that the model hears of now.
    Finished(Box<Finished>),
    /// What the runtime has to say.
    Notice {
        /// `info`, `warning` or `error`.
        level: String,
        /// What.
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

/// Where a person is, before anything is said.
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
    /// The tool.
    pub tool: String,
    /// What it was about, in one line.
    pub title: String,
    /// Whether it failed or was refused.
    pub failed: bool,
    /// What it gave back, or its beginning.
    pub output: String,
    /// How many lines that had.
    pub lines: usize,
    /// What it changed.
    pub change: Option<Change>,
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
    /// Which.
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// What it is about.
    pub title: String,
    /// What it has printed last.
    pub progress: String,
}

/// One conversation: the root's, or an agent's.
#[derive(Debug, Default)]
pub struct Conversation {
    agent: Option<AgentId>,
    /// What is finished and was not taken yet.
    fresh: VecDeque<Item>,
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
    /// Calls that were refused and have no result yet, and what they were about.
    refused: Vec<(CallId, String)>,
    /// What went wrong, as it was told before the end that says it again.
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
    pub fn take_finished(&mut self) -> Vec<Item> {
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

    /// Whether nothing was said yet.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Takes the next event, if it is of this conversation.
    pub fn take(&mut self, envelope: &Envelope) {
        crate::fuse::pass("conversation");
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
            Event::CallRefused { call, tool, input, .. } => {
                let asked = self.asked.iter().find(|(asked, _)| asked == call);
                let title = asked.map_or_else(|| title_of(tool, input), |(_, title)| title.clone());
                self.refused.push((call.clone(), title));
            }
            Event::Asked { question } if question.elicitation.is_none() => {
                self.asked.push((question.call.clone(), question.intent.title.clone()));
            }
            Event::CallEnded { call, tool, output, duration_ms, .. } => {
                let title = self.close(call, tool);
                self.push(Item::Call(Box::new(Called::new(tool, title, output, *duration_ms))));
            }
            Event::ShellBegun { shell } => self.calling.push(Calling {
                call: shell.call.clone(),
                tool: SHELL.to_owned(),
                title: format!("! {}", shell.command),
                progress: String::new(),
            }),
            Event::ShellEnded { shell } => {
                self.close(&shell.call, SHELL);
                self.push(Item::Call(Box::new(Called::shell(shell))));
            }
            Event::Compacted { tokens_before, .. } => self.push(Item::Shortened { tokens: *tokens_before }),
            Event::Notice { level, text } => {
                self.push(Item::Notice { level: level.clone(), text: text.clone() });
            }
            Event::RunEnded { outcome, .. } => self.end(outcome),
            _ => {}
        }
    }

    fn push(&mut self, item: Item) {
        self.is_empty = false;
        self.fresh.push_back(item);
    }

    fn message(&mut self, message: &Message, origin: &Origin) {
        match (message.role, origin) {
            (Role::User, Origin::Prompt) => {
                let text = typed_text(message);
                if !text.is_empty() {
                    self.push(Item::Prompt(text));
                }
            }
            (Role::User, Origin::Note(kind)) if kind == "notification" => {
                message.blocks.iter().filter_map(told).for_each(|text| self.push(Item::Prompt(text)));
            }
            (Role::Assistant, Origin::Model) => self.reply(message),
            (Role::Assistant, Origin::Synthetic) => {
                self.told = message.text();
                self.push(Item::Notice { level: "error".to_owned(), text: self.told.clone() });
            }
            _ => {}
        }
    }

    /// A whole reply: what of it was not shown while it came. Whoever hears it late may have missed a part of it, so that
    /// what is left is taken from the reply itself.
    fn reply(&mut self, message: &Message) {
        let (saying, finished) = (std::mem::take(&mut self.saying), std::mem::take(&mut self.finished));
        self.thinking.clear();
        // Whoever came in the middle of it has heard a part, and reads it whole now.
        let from_start = std::mem::take(&mut self.from_start);
        let is_new = finished.is_empty() && (saying.is_empty() || !from_start);
        for block in &message.blocks {
            match block {
                Block::Thinking { thinking, .. } if !thinking.trim().is_empty() => {
                    self.push(Item::Thought(thinking.clone()));
                }
                Block::Text { text } if is_new && !text.trim().is_empty() => {
                    self.push(Item::Said { text: text.clone(), goes_on: false });
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
            self.push(Item::Notice { level: "warning".to_owned(), text: MISSED.to_owned() });
            self.say_rest(&text, false);
        }
    }

    /// The end of an answer, as far as there is something in it.
    fn say_rest(&mut self, rest: &str, goes_on: bool) {
        let text = rest.trim_end();
        if !text.is_empty() {
            self.push(Item::Said { text: text.to_owned(), goes_on });
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
                // What follows begins anew; whoever misses that has not heard its beginning.
                self.from_start = false;
                self.saying.clear();
                self.thinking.clear();
                if was_shown {
                    let text = format!("the answer above broke off and is asked for again: {reason}");
                    self.push(Item::Notice { level: "warning".to_owned(), text });
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
                self.push(Item::Said { text: done, goes_on });
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
        if let Some(at) = self.refused.iter().position(|(refused, _)| refused == call) {
            let (_, title) = self.refused.swap_remove(at);
            self.calling.retain(|calling| calling.call != *call);
            return format!("refused: {title}");
        }
        let at = self.calling.iter().position(|calling| calling.call == *call);
        let begun = at.map(|at| self.calling.remove(at).title);
        begun.or(asked).unwrap_or_else(|| tool.to_owned())
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
                self.push(Item::Notice { level: "warning".to_owned(), text: report.clone() });
            }
            Outcome::Completed { limit: None, .. } => {}
            Outcome::Failed { error: said } | Outcome::Stalled { waiting_for: said } if *said == told => {}
            _ => self.push(Item::Ended(outcome.clone())),
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
        let text = for_people(tool, output);
        Self {
            tool: tool.to_owned(),
            title,
            failed: output.is_error,
            lines: read_lines(output).unwrap_or_else(|| text.lines().count()),
            output: cut(&text, MOST_OUTPUT).to_owned(),
            change: output.structured.as_ref().and_then(Change::reported),
            todos: output.todos(),
            used: output.structured.as_ref().and_then(used),
            duration_ms,
        }
    }
}

/// What a call gave back, without what only the model has to know.
fn for_people(tool: &str, output: &ToolOutput) -> String {
    let structured = |member: &str| output.structured.as_ref().and_then(|value| value.get(member));
    if tool == SHELL_TOOL && structured("backgroundTaskId").is_some()
        || structured("isAsync") == Some(&Value::Bool(true))
    {
        return "running in the background".to_owned();
    }
    // What follows the first block says who it was and where its work is.
    if let (AGENT, ToolContent::Blocks(blocks)) = (tool, &output.content)
        && let Some(Block::Text { text }) = blocks.first()
    {
        return text.clone();
    }
    let text = output.content.text();
    if !output.is_error {
        return text;
    }
    let bare = text.strip_prefix("<tool_use_error>").and_then(|text| text.strip_suffix("</tool_use_error>"));
    let bare = bare.unwrap_or(&text);
    bare.strip_prefix("Permission denied: ").unwrap_or(bare).replace(UNWANTED, "you declined")
}

/// What an agent that was waited for has used: tools, tokens and time.
fn used(structured: &Value) -> Option<String> {
    let number = |member: &str| structured.get(member).and_then(Value::as_u64);
    let tools = number("totalToolUseCount")?;
    let plural = if tools == 1 { "" } else { "s" };
    let (used, ms) = (number("totalTokens").unwrap_or(0), number("totalDurationMs").unwrap_or(0));
    Some(format!("{tools} tool{plural} · {} · {}", tokens(used), duration(ms)))
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

/// How many lines of a file were read, as people count them: the model is also told that nothing is behind the last.
fn read_lines(output: &ToolOutput) -> Option<usize> {
    let content = &output.structured.as_ref().filter(|told| told["type"] == "text")?["file"]["content"];
    content.as_str().map(|content| content.lines().count())
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

/// The beginning of a text, whole characters only.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes.min(text.len()))]
}

/// What somebody is told while it works, as it was written; none of a notification that tells something else.
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

    fn words(item: &Item) -> String {
        match item {
            Item::Said { text, goes_on: true } => format!("… {text}"),
            Item::Said { text, goes_on: false } => text.clone(),
            Item::Notice { text, .. } => format!("({text})"),
            other => format!("{other:?}"),
        }
    }
}
