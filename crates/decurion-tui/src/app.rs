//! The state of the screen. Takes keys, pastes, events and results of jobs; gives effects, as data, and the lines to
//! show. It has no terminal, no clock and no channel.
//!
//! A key goes to the first of these that wants it: the page over everything ([`crate::page`]), the question that is
//! shown ([`question`]), the list or menu above the prompt ([`open`]), the prompt ([`prompt`]).

mod builtin;
mod completion;
mod effects;
mod open;
mod plain;
mod prompt;
mod question;
mod show;
mod tasks;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::KeyEvent;
use decurion_protocol::commands::NO_ROOM;
use decurion_protocol::mention::{dropped_images, written};
use decurion_protocol::view::SessionView;
use decurion_protocol::{
    AgentId, Block, Command, Delivery, Envelope, Event, Limits, LineId, McpDetail, Message, Mode, Origin,
    QuestionId, Reply, Request, RequestId, Role, TaskOutputEnd, WorkingChanges,
};
use jiff::Timestamp;

pub use effects::{AppInput, Caption, Effect, Farewell, NextSession};
pub use plain::Wants;

use crate::commands::Topic;
use crate::composer::Composer;
use crate::composer::vim::Vim;
use crate::conversation::{Conversation, ConversationItem, Greeting, typed_text};
use crate::history::History;
use crate::keymap::{Action, Keymap};
use crate::list::ChoiceList;
use crate::page::{FullPage, Turned};
use crate::port::{FrontEndJob, JobPurpose, JobResult};
use crate::report::FinishedTask;
use crate::text::one_line;
use crate::theme::Theme;
use crate::topics;
use crate::view::item::ItemFolding;
use crate::view::status::{OwnStatusLine, StatusFacts};
use crate::view::working::SPINNER_PACE;

use completion::Completing;
use open::Overlay;
use question::AnswerDraft;

/// How often times that are counted change.
const SECOND: Duration = Duration::from_secs(1);
/// Work that takes this long ends with a notice for a person who looks elsewhere.
const LONG_WORK: Duration = Duration::from_secs(20);
/// How many items are kept to be drawn again; what is older is on record.
const MOST_ITEMS: usize = 5_000;
/// How many of them go when there are more.
const DROPPED_AT_ONCE: usize = 1_000;
/// The message if a requested list is ready while something else is written or open.
const READY: &str = "what you asked for is ready: ask again once nothing else is written or open";

pub struct App {
    /// The session as it stands.
    pub view: SessionView,
    /// What the status line knows besides.
    pub known: StatusFacts,
    /// What the session can be asked for besides: names of commands and agents.
    pub library: NameLibrary,
    caption: Option<Caption>,
    /// How many tokens the live line says were written, and since when it says so.
    written: Cell<(u64, Option<Timestamp>)>,
    theme: Theme,
    keymap: Keymap,
    columns: usize,
    rows: usize,
    /// How what is finished is shown.
    fold: ItemFolding,
    conversation: Conversation,
    /// What is finished, for when all is drawn again.
    items: Vec<ConversationItem>,
    /// How many are not kept any more.
    dropped: usize,
    /// How many of those that are kept are drawn.
    drawn: usize,
    /// The prompts of the conversation, to go back to.
    prompts: Vec<Prompted>,
    /// The prompt that a run was at when its process died, as far as is on record.
    cut_off: Option<(LineId, Vec<Block>)>,
    /// Prompts of ours that were given and not begun, by their lines.
    sent: VecDeque<(LineId, String)>,
    /// Prompts of others, or of an earlier process, that wait by the record.
    queued: VecDeque<(LineId, String)>,
    composer: Composer,
    vim: Option<Vim>,
    completing: Completing,
    history: History,
    open: Overlay,
    page: Option<FullPage>,
    asked: Option<AnswerDraft>,
    /// Questions whose answers the session has not taken yet.
    answered: Vec<AnswerDraft>,
    requests: u64,
    /// The commands that wait for a reply.
    waited: Vec<(u64, AwaitedReply)>,
    /// The mode that was asked for last and is not in force yet.
    wanted: Option<Mode>,
    /// Whether the program ends as soon as no agent works.
    leaving: bool,
    /// Whether the session was asked whether anybody works.
    asked_to_leave: bool,
    /// What the key that leaves did before, where one more press leaves.
    leave_pressed: Option<Pressed>,
    /// What the screen knows about the person at the keyboard.
    typist: Typist,
    /// When the turn under way began.
    turn_began: Option<Timestamp>,
    /// The theme in force while another is tried.
    theme_before: Option<Theme>,
    status: StatusLineRun,
}

/// What the screen knows about the person at the keyboard.
#[derive(Clone, Copy, Debug, Default)]
struct Typist {
    /// Whether the last key was the one that empties the prompt, or goes back, when it is pressed twice.
    escaped: bool,
    /// Whether the terminal has lost the focus, as far as it says.
    looks_elsewhere: bool,
    /// Whether what is typed is on the terminal already, since it echoes.
    echoes: bool,
}

/// What a person can name.
#[derive(Clone, Debug, Default)]
pub struct NameLibrary {
    /// Skills and commands: the name without its slash, and its description.
    pub skills: Vec<(String, String)>,
    /// Kinds of agents, and their descriptions.
    pub agents: Vec<(String, String)>,
    /// Models by their names.
    pub models: Vec<String>,
}

/// A prompt of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Prompted {
    line: LineId,
    /// The line before it.
    before: Option<LineId>,
    text: String,
    /// Which item it is, counted from the first.
    item: usize,
}

/// What the key that leaves did when it was pressed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    /// It took away what was written.
    Emptied,
    /// It ended the turn, if there was one.
    Interrupted,
    /// It said that what works would be stopped.
    Warned,
}

/// What a reply is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AwaitedReply {
    /// To tell if it is refused.
    Refusal(&'static str),
    /// To say that this rule holds for the session, and how to keep it.
    Rule(&'static str, String),
    /// To list what it holds.
    List(Topic),
    /// To show what a command has printed.
    Output,
    /// To tell what an agent may use now.
    Budget,
    /// To continue from this mode, or to say why not.
    Mode(Mode),
    /// To leave if no agent works then either.
    Leaving,
    /// To write a prompt again that was not taken.
    Prompt(LineId),
    /// To ask again what was not answered.
    Answer(QuestionId),
    /// To write it again.
    Unqueued,
    /// To give back what an agent was not told.
    Told(AgentId, String),
    /// To show what is in force.
    Status,
    /// To show what is changed.
    Changes,
    /// To tell what was put back, and to go back in the conversation too.
    Rewound(Option<LineId>),
}

/// A status line of a person's own.
#[derive(Clone, Debug, Default)]
struct StatusLineRun {
    /// Whether a run of it is under way.
    asked: bool,
    /// Whether something has changed since.
    due: bool,
}

impl App {
    /// A screen of this size, with nothing on it.
    pub fn new(theme: Theme, keymap: Keymap, history: History, size: (u16, u16)) -> Self {
        Self {
            view: SessionView::default(),
            known: StatusFacts::default(),
            library: NameLibrary::default(),
            caption: None,
            theme,
            keymap,
            columns: usize::from(size.0),
            rows: usize::from(size.1),
            fold: ItemFolding::Folded,
            conversation: Conversation::of(None),
            items: Vec::new(),
            dropped: 0,
            drawn: 0,
            written: Cell::default(),
            prompts: Vec::new(),
            cut_off: None,
            sent: VecDeque::new(),
            queued: VecDeque::new(),
            composer: Composer::default(),
            vim: None,
            completing: Completing::default(),
            history,
            open: Overlay::Nothing,
            page: None,
            asked: None,
            answered: Vec::new(),
            requests: 0,
            waited: Vec::new(),
            wanted: None,
            leaving: false,
            asked_to_leave: false,
            leave_pressed: None,
            typist: Typist::default(),
            turn_began: None,
            theme_before: None,
            status: StatusLineRun::default(),
        }
    }

    /// Another size. Everything is drawn again.
    pub fn resize(&mut self, size: (u16, u16)) {
        (self.columns, self.rows) = (usize::from(size.0), usize::from(size.1));
    }

    /// Shows where the person is, before anything else.
    pub fn greet(&mut self, greeting: Greeting) {
        self.items.push(ConversationItem::Greeting(Box::new(greeting)));
    }

    /// Says something to the person at the terminal, in its place in the conversation.
    pub fn say(&mut self, level: &str, text: impl Into<String>) {
        self.items.push(ConversationItem::Notice { level: level.to_owned(), text: text.into() });
    }

    /// The person leaves: a partial answer stays above.
    pub fn break_off(&mut self) {
        self.conversation.break_off();
        self.items.extend(self.conversation.take_finished());
    }

    /// Whether something on the screen changes by itself with time.
    pub fn moves(&self) -> bool {
        self.is_busy() || self.view.has_work()
    }

    /// How long what is on the screen stays as it is, if nothing comes in; none while nothing moves.
    pub fn pace(&self) -> Option<Duration> {
        let spins =
            self.is_busy() && self.view.root.asks == 0 && !self.known.reduced_motion && self.page.is_none();
        self.moves().then_some(if spins { SPINNER_PACE } else { SECOND })
    }

    /// Whether the session's own agent works.
    fn is_busy(&self) -> bool {
        self.view.at_work && self.view.root.is_running()
    }

    /// Takes the recorded events, in order, before anything is shown. If the session is live elsewhere, its agents are
    /// shown as working.
    pub fn recall(&mut self, past: &[Envelope]) {
        for envelope in past {
            self.take(envelope);
        }
        // A copy has the prompts of the session that it was made of, and none of its runs.
        let is_run = |envelope: &Envelope| {
            envelope.agent.is_none() && matches!(envelope.event, Event::RunStarted { .. })
        };
        if !past.iter().any(is_run) {
            self.cut_off = None;
        }
        if !self.known.attached() {
            self.view.settle();
        }
        self.follow_questions();
    }

    /// All that was taken so far stands above already, from when this session was shown here before.
    pub fn is_above(&mut self) {
        self.drawn = self.items.len();
    }

    /// Writes a text into the prompt, for a person to continue.
    pub fn draft(&mut self, text: &str) {
        self.composer.set(text);
    }

    /// Keys as in vi, or not.
    pub fn set_vim(&mut self, on: bool) {
        self.vim = on.then(Vim::default);
    }

    /// Whether one key decides something.
    pub fn wants_a_key(&self) -> bool {
        let writes = self.asked.as_ref().is_some_and(|asked| asked.note.is_some());
        !writes
            && (self.answers()
                || !matches!(self.open, Overlay::Nothing | Overlay::Search(..))
                || self.page.is_some())
    }

    /// Whether a prompt is waited for.
    pub fn is_resting(&self) -> bool {
        !self.is_busy() && !self.wants_a_key()
    }

    /// The effects at the start: run the status line, and note that work continues that a crash has cut off.
    pub fn begin(&mut self) -> Vec<Effect> {
        self.status.due = true;
        let mut effects = self.ask_status();
        if !self.known.attached() {
            self.sent.append(&mut self.queued);
        }
        if let Some((line, blocks)) = self.cut_off.take().filter(|_| !self.known.attached()) {
            self.say("info", "the session ended at this prompt; its work continues (esc stops it)");
            effects.push(self.ask("continue", Command::Submit { line, blocks }));
        }
        effects
    }

    /// Takes what came in.
    pub fn update(&mut self, input: AppInput) -> Vec<Effect> {
        let effects = self.take_in(input);
        self.heed_writing();
        effects
    }

    fn take_in(&mut self, input: AppInput) -> Vec<Effect> {
        match input {
            AppInput::Key(key) => {
                crate::fault_point::pass("key");
                self.key(&key)
            }
            AppInput::Paste(text) => {
                crate::fault_point::pass("paste");
                // What is typed takes a first press of the key that leaves back, and so does this.
                if self.leave_pressed.take().is_some() {
                    self.known.hint = None;
                }
                // What is pasted goes to the prompt, which has the keys then.
                if matches!(&self.open, Overlay::Tasks(tasks) if tasks.budget.is_none())
                    && self.page.is_none()
                {
                    self.open = Overlay::Nothing;
                }
                let images = dropped_images(&text).filter(|_| self.writes_prompt());
                let text = images
                    .map_or(text, |images| images.iter().map(|path| format!("{} ", written(path))).collect());
                self.writing().paste_text(&text);
                self.propose()
            }
            AppInput::Edited(text) => {
                let meanwhile = self.composer.take();
                self.composer.set(text.trim_end_matches('\n'));
                if !meanwhile.is_empty() {
                    self.composer.put_before(&meanwhile);
                }
                Vec::new()
            }
            AppInput::Event(envelope) => self.event(&envelope),
            AppInput::Done(purpose, fruit) => self.done(purpose, fruit),
            AppInput::Interrupt => self.interrupt(),
            AppInput::Caption(caption) => {
                self.caption = Some(caption);
                Vec::new()
            }
        }
    }

    /// Keeps account of prompts that wait and were not sent from here.
    fn take_queued(&mut self, event: &Event) {
        match event {
            Event::Queued { line, blocks } if !self.sent.iter().any(|(sent, _)| sent == line) => {
                let message = Message { role: Role::User, blocks: blocks.clone() };
                self.queued.push_back((*line, message.text()));
            }
            Event::Message { lines, .. } | Event::Unqueued { lines } => {
                self.queued.retain(|(line, _)| !lines.contains(line));
            }
            Event::Branched { .. } => self.queued.clear(),
            _ => {}
        }
    }

    /// What happened, as far as it changes what is shown.
    fn take(&mut self, envelope: &Envelope) {
        self.take_queued(&envelope.event);
        self.view.take(envelope);
        self.conversation.take(envelope);
        self.items.extend(self.conversation.take_finished());
        self.take_endings(envelope);
        if let Event::Message { message, lines, parent, meta } = &envelope.event
            && envelope.agent.is_none()
            && matches!((message.role, &meta.origin), (Role::User, Origin::Prompt))
        {
            self.prompted(message, lines.first().copied(), *parent);
        }
        match &envelope.event {
            Event::RunEnded { outcome, .. } if outcome.leaves_question() => {}
            Event::RunEnded { .. } | Event::Branched { .. } if envelope.agent.is_none() => {
                self.cut_off = None;
            }
            _ => {}
        }
        if let Event::Branched { at, .. } = &envelope.event {
            let kept = self.prompts.iter().position(|prompt| prompt.before == Some(*at));
            if let Some(kept) = kept {
                let from = self.prompts[kept].item.saturating_sub(self.dropped);
                self.items.truncate(from);
                self.drawn = self.drawn.min(from);
                self.prompts.truncate(kept);
            }
        }
        self.forget();
    }

    /// Says which background work the main agent hears of, which is why it begins a turn.
    fn take_endings(&mut self, envelope: &Envelope) {
        let Event::Message { meta, .. } = &envelope.event else { return };
        if envelope.agent.is_some() || !matches!(meta.origin, Origin::Note(_)) {
            return;
        }
        let ended = meta.delivers.iter().filter_map(|delivery| match delivery {
            Delivery::Ending(ending) => self.view.task(&ending.task).and_then(FinishedTask::of),
            _ => None,
        });
        let ended: Vec<ConversationItem> =
            ended.map(|finished| ConversationItem::Finished(Box::new(finished))).collect();
        self.items.extend(ended);
    }

    fn event(&mut self, envelope: &Arc<Envelope>) -> Vec<Effect> {
        crate::fault_point::pass("event");
        let (asked_before, was_at_work) = (self.view.questions.len(), self.view.at_work);
        self.take(envelope);
        if let Some(page) = &mut self.page {
            page.take(envelope);
        }
        let mut effects = Vec::new();
        if let Event::Replied { request, reply } = &envelope.event {
            effects.extend(self.replied(*request, reply));
        }
        self.follow_questions();
        if matches!(envelope.event, Event::Quiet { quiet: true, queued: 0 }) {
            self.take_back_unbegun();
        }
        // A person who looks elsewhere is notified when needed, and when the work is done.
        let is_done = was_at_work && !self.view.at_work && self.view.root.began.is_some();
        if !was_at_work && self.view.at_work {
            self.turn_began = Some(envelope.at);
        }
        if self.view.questions.len() > asked_before || is_done {
            effects.push(Effect::Call);
            effects.extend(self.notify(is_done.then_some(envelope.at)));
        }
        effects.extend(self.leave_if_done());
        if envelope.event.is_durable() {
            self.status.due = true;
        }
        effects.extend(self.ask_status());
        effects
    }

    /// The terminal has the focus, or has lost it.
    pub fn set_focus(&mut self, has: bool) {
        self.typist.looks_elsewhere = !has;
    }

    /// Tells a person who looks elsewhere that something is asked, or that long work has ended at this time.
    fn notify(&self, done: Option<Timestamp>) -> Option<Effect> {
        if !self.typist.looks_elsewhere {
            return None;
        }
        let text = match (done, self.view.questions.last()) {
            (None, Some(question)) => {
                let command = question.input["command"].as_str().filter(|_| question.tool == "Bash");
                let words = command.map_or_else(|| question.title(), |command| format!("Run: {command}"));
                format!("Question: {}", one_line(&words))
            }
            (Some(at), _) => {
                let took = at.duration_since(self.turn_began?).unsigned_abs();
                if took < LONG_WORK {
                    return None;
                }
                let folder =
                    self.view.info.as_ref().and_then(|info| info.cwd.file_name()).unwrap_or_default();
                format!(
                    "Done after {}: {}",
                    crate::view::agents::duration(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
                    one_line(folder)
                )
            }
            (None, None) => return None,
        };
        Some(Effect::Notify(text))
    }

    /// Whether no agent works and none of our prompts is waiting.
    fn is_done(&self) -> bool {
        self.view.is_over() && self.sent.is_empty()
    }

    /// Leaves once no agent works, if requested. An end may still have to be delivered to a parent, which then
    /// continues: the session is asked once more, and has delivered it by then.
    fn leave_if_done(&mut self) -> Vec<Effect> {
        if !self.leaving || self.asked_to_leave || !self.is_done() {
            return Vec::new();
        }
        self.asked_to_leave = true;
        vec![self.ask_for(AwaitedReply::Leaving, Command::Tasks)]
    }

    fn prompted(&mut self, message: &Message, line: Option<LineId>, before: Option<LineId>) {
        let text = typed_text(message);
        let is_ours = self.sent.iter().any(|(sent, _)| Some(*sent) == line);
        // A terminal that echoes has shown it, and a screen reader has said it, when it was typed.
        if self.typist.echoes && is_ours && self.items.last() == Some(&ConversationItem::Prompt(text.clone()))
        {
            self.items.pop();
        }
        self.sent.retain(|(sent, _)| Some(*sent) != line);
        self.cut_off = line.map(|line| (line, message.blocks.clone()));
        if let Some(line) = line.filter(|_| !text.is_empty()) {
            // Its item is the last that was made of this event.
            let item = self.dropped + self.items.len().saturating_sub(1);
            self.prompts.push(Prompted { line, before, text, item });
        }
    }

    /// Lets go of the oldest items: what a terminal shows again is bounded, and all of it is on record.
    fn forget(&mut self) {
        // Items that are not drawn yet are dropped only if they would grow without bound: while a page is open.
        let must = self.items.len() > 2 * MOST_ITEMS;
        if self.items.len() > MOST_ITEMS && (must || self.drawn >= DROPPED_AT_ONCE) {
            self.items.drain(..DROPPED_AT_ONCE);
            self.dropped += DROPPED_AT_ONCE;
            self.drawn = self.drawn.saturating_sub(DROPPED_AT_ONCE);
        }
    }

    /// The session has no room for a request, which was not sent.
    pub(crate) fn no_room(&mut self, request: RequestId) -> Vec<Effect> {
        self.replied(request, &Reply::Refused { reason: NO_ROOM.to_owned() })
    }

    fn replied(&mut self, request: RequestId, reply: &Reply) -> Vec<Effect> {
        let Some(at) = self.waited.iter().position(|(id, _)| *id == request.0) else { return Vec::new() };
        let (_, waits) = self.waited.remove(at);
        match (waits, reply) {
            (AwaitedReply::Refusal(what), Reply::Refused { reason }) => {
                self.say("warning", format!("{what}: {reason}"));
            }
            (AwaitedReply::Rule(..), Reply::Refused { reason }) => {
                self.say("warning", format!("permissions: {reason}"));
            }
            (AwaitedReply::Rule(list, rule), Reply::Done { .. }) => {
                let words = format!(
                    "Added for this session: {list} {rule}. To keep it, add it to \"permissions\": {{\"{list}\": […]}} in \
                     ~/.decurion/settings.json."
                );
                self.say("info", words);
            }
            (AwaitedReply::Refusal("model"), Reply::Done { value }) => self.uses_model(value),
            (AwaitedReply::Refusal(_) | AwaitedReply::Answer(_), Reply::Done { value }) => {
                self.not_done(value);
            }
            (AwaitedReply::Status, Reply::Done { value }) => {
                self.show_status(
                    &serde_json::from_value::<Vec<McpDetail>>(value.clone()).unwrap_or_default(),
                );
            }
            (AwaitedReply::Status, Reply::Refused { .. }) => self.show_status(&[]),
            (AwaitedReply::Changes, Reply::Done { value }) => {
                self.show_changes(
                    serde_json::from_value::<WorkingChanges>(value.clone()).unwrap_or_default(),
                );
            }
            (AwaitedReply::Changes, Reply::Refused { reason }) => {
                self.known.hint = None;
                self.say("warning", format!("/diff: {reason}"));
            }
            (AwaitedReply::Answer(question), Reply::Refused { reason }) => {
                self.say("warning", format!("answer: {reason}"));
                self.answer_again(question);
            }
            (AwaitedReply::List(topic), Reply::Done { value }) => {
                match topics::of_inspected(topic, value.clone()) {
                    Ok(list) => self.open_list(topic, list),
                    Err(error) => self.say("error", error),
                }
            }
            (AwaitedReply::Unqueued, Reply::Done { value }) => {
                let gone =
                    serde_json::from_value::<Vec<LineId>>(value["cancelled"].clone()).unwrap_or_default();
                // Each is put before what is there already.
                for line in gone.into_iter().rev() {
                    self.write_again(line);
                }
            }
            (AwaitedReply::Prompt(_), Reply::Done { .. }) => {}
            (AwaitedReply::Told(agent, text), Reply::Done { .. }) => self.was_told(&agent, &text),
            (AwaitedReply::Told(agent, text), Reply::Refused { reason }) => {
                self.say("warning", reason.clone());
                self.tell_again(&agent, &text);
            }
            (AwaitedReply::Mode(mode), reply) => {
                self.wanted.take_if(|wanted| *wanted == mode);
                if let Reply::Refused { reason } = reply {
                    self.say("warning", format!("mode: {reason}"));
                }
            }
            (AwaitedReply::Leaving, _) => {
                if self.leaving && self.is_done() {
                    return vec![Effect::Leave(Farewell::Close)];
                }
                self.asked_to_leave = false;
            }
            (AwaitedReply::Prompt(line), Reply::Refused { reason }) => {
                self.write_again(line);
                self.say("warning", reason.clone());
            }
            (AwaitedReply::Rewound(then), Reply::Done { value }) => return self.rewound(then, value),
            (AwaitedReply::Output, Reply::Done { value }) => {
                let end: TaskOutputEnd = serde_json::from_value(value.clone()).unwrap_or_default();
                // Its page may be closed by now.
                let Some(page) = self.page.take_if(|page| page.is_awaited()) else { return Vec::new() };
                let title = page.title;
                let text = if end.text.is_empty() { "no output".to_owned() } else { end.text };
                self.page = Some(FullPage::text(format!("{title} · {} bytes", end.bytes), text));
            }
            (AwaitedReply::Budget, Reply::Done { value }) => {
                let limits = serde_json::from_value::<Limits>(value.clone()).unwrap_or_default();
                self.known.hint = Some(format!("Budget: {}", crate::budget::words(&limits)));
            }
            (
                AwaitedReply::Budget
                | AwaitedReply::Output
                | AwaitedReply::List(_)
                | AwaitedReply::Unqueued
                | AwaitedReply::Rewound(_),
                Reply::Refused { reason },
            ) => {
                self.say("warning", reason.clone());
            }
        }
        Vec::new()
    }

    /// Tells an agent something.
    fn tell(&mut self, agent: AgentId, text: String) -> Effect {
        self.ask_for(AwaitedReply::Told(agent.clone(), text.clone()), Command::Tell { agent, text })
    }

    /// Says that an agent gets a message at its next step.
    fn was_told(&mut self, agent: &AgentId, text: &str) {
        let task = self.view.task(&agent.clone().into());
        let name = task.map_or_else(|| agent.to_string(), crate::view::agents::name);
        self.say("info", format!("told {name}: {text}"));
    }

    /// Gives back a message that an agent did not get, where it was written, or in the prompt if that is closed.
    fn tell_again(&mut self, agent: &AgentId, text: &str) {
        match self.page.as_mut().filter(|page| page.agent_id() == Some(agent)) {
            Some(page) => page.not_told(text),
            None => self.composer.put_before(&format!("@{agent} {text}")),
        }
    }

    /// No agent works and no prompt waits: a prompt that was sent and never started, because of a hook or a typing
    /// mistake, is given back.
    fn take_back_unbegun(&mut self) {
        let is_taken =
            |line: LineId| !self.waited.iter().any(|(_, waits)| *waits == AwaitedReply::Prompt(line));
        let unbegun: Vec<LineId> =
            self.sent.iter().map(|(line, _)| *line).filter(|line| is_taken(*line)).collect();
        for line in unbegun.into_iter().rev() {
            self.write_again(line);
        }
    }

    /// Puts a prompt that waits no more before what is written now.
    fn write_again(&mut self, line: LineId) {
        let Some(at) = self.sent.iter().position(|(sent, _)| *sent == line) else { return };
        if let Some((_, text)) = self.sent.remove(at) {
            self.composer.put_before(&text);
        }
    }

    /// What of an answer or a change was not done.
    /// Another model was chosen, which has not answered yet.
    fn uses_model(&mut self, value: &serde_json::Value) {
        let Some(model) = value["model"].as_str() else { return };
        self.say("info", format!("{model} answers from the next prompt on"));
        self.view.root.model = Some(model.to_owned());
    }

    fn not_done(&mut self, value: &serde_json::Value) {
        if let Some(reason) = value["not_done"].as_str() {
            self.say("warning", reason);
        }
    }

    /// A command for the session; a refusal is shown.
    fn ask(&mut self, what: &'static str, command: Command) -> Effect {
        self.ask_for(AwaitedReply::Refusal(what), command)
    }

    fn ask_for(&mut self, waits: AwaitedReply, command: Command) -> Effect {
        self.requests += 1;
        self.waited.push((self.requests, waits));
        Effect::Send(Request { id: RequestId(self.requests), command })
    }

    /// The result of a job.
    fn done(&mut self, purpose: JobPurpose, fruit: Result<JobResult, String>) -> Vec<Effect> {
        if purpose == JobPurpose::Status {
            return self.status_came(fruit);
        }
        let fruit = match fruit {
            Ok(fruit) => fruit,
            Err(reason) => {
                // Without a past, what it does from here on is shown.
                if let JobPurpose::Past(agent) = &purpose {
                    self.past_came(agent.as_ref(), &[]);
                }
                // A row without a preview is a row.
                if let JobPurpose::Preview(row) = &purpose {
                    self.preview_came(row, "");
                    return Vec::new();
                }
                self.say("error", reason);
                return Vec::new();
            }
        };
        match (purpose, fruit) {
            (JobPurpose::List(topic), JobResult::Text(printed)) => match topics::of_lines(topic, &printed) {
                Ok(mut list) => {
                    let here = self.view.info.as_ref().map(|info| info.session.to_string());
                    list.rows.retain(|row| Some(&row.id) != here.as_ref());
                    self.open_list(topic, list);
                    return self.ask_for_preview();
                }
                Err(error) => self.say("error", error),
            },
            (JobPurpose::Page(title), JobResult::Text(text)) if self.may_open() => {
                self.page = Some(FullPage::text(title, text));
            }
            (JobPurpose::Page(_), JobResult::Text(_)) => self.known.hint = Some(READY.to_owned()),
            (JobPurpose::Consent(words), JobResult::Text(text)) => self.consent_came(words, &text),
            (JobPurpose::Say, JobResult::Text(text)) => {
                let text = text.trim_end();
                self.say("info", if text.is_empty() { "done" } else { text });
            }
            (JobPurpose::Paths, JobResult::Paths(paths)) => return self.paths_came(paths),
            (JobPurpose::AddDirectory, JobResult::File(path)) => return self.directory_found(path),
            (JobPurpose::Preview(row), JobResult::Text(text)) => self.preview_came(&row, &text),
            (JobPurpose::Edit, JobResult::File(path)) => return vec![Effect::EditFile(path)],
            (JobPurpose::Latest, JobResult::Text(printed)) => return self.latest(&printed),
            (JobPurpose::Past(agent), JobResult::Past(past)) => {
                self.past_came(agent.as_ref(), &past);
            }
            _ => {}
        }
        Vec::new()
    }

    /// Whether something may open without taking keys that were meant for what is written or asked.
    fn may_open(&self) -> bool {
        self.page.is_none() && self.composer.is_empty() && !self.answers()
    }

    fn open_list(&mut self, topic: Topic, list: ChoiceList) {
        let is_free = match &self.open {
            Overlay::Nothing => self.may_open(),
            Overlay::List(open, _) => *open == topic,
            _ => false,
        };
        if is_free {
            self.open = Overlay::List(topic, list);
        } else {
            self.known.hint = Some(READY.to_owned());
        }
    }

    fn past_came(&mut self, agent: Option<&AgentId>, past: &[Envelope]) {
        if let Some(page) = self.page.as_mut().filter(|page| page.agent_id() == agent) {
            page.past(past);
        }
    }

    fn status_came(&mut self, fruit: Result<JobResult, String>) -> Vec<Effect> {
        self.status.asked = false;
        self.known.own = match fruit {
            Ok(JobResult::Text(text)) => OwnStatusLine::Says(text),
            Ok(_) => OwnStatusLine::Nothing,
            Err(reason) => OwnStatusLine::Failed(reason),
        };
        self.ask_status()
    }

    /// Asks for a person's own status line, one at a time.
    pub fn ask_status(&mut self) -> Vec<Effect> {
        if !self.known.has_own || self.status.asked || !self.status.due {
            return Vec::new();
        }
        self.status = StatusLineRun { asked: true, due: false };
        let facts = crate::view::status::facts(&self.view, &self.known);
        vec![Effect::Errand(JobPurpose::Status, FrontEndJob::Status(Box::new(facts)))]
    }

    /// Whether what is written is a prompt.
    fn writes_prompt(&self) -> bool {
        let is_noting = self.answers() && self.asked.as_ref().is_some_and(|asked| asked.note.is_some());
        self.page.is_none() && !is_noting && matches!(self.open, Overlay::Nothing)
    }

    /// The text that keys go to.
    fn writing(&mut self) -> &mut Composer {
        let answers = self.answers();
        if let Some(page) = self.page.as_mut().filter(|page| page.agent_id().is_some()) {
            return &mut page.words;
        }
        if let Some(note) = self.asked.as_mut().filter(|_| answers).and_then(|asked| asked.note.as_mut()) {
            return &mut note.words;
        }
        match &mut self.open {
            Overlay::List(_, list) => list.writing().unwrap_or(&mut self.composer),
            Overlay::Tasks(tasks) => tasks.budget.as_mut().unwrap_or(&mut self.composer),
            _ => &mut self.composer,
        }
    }

    fn key(&mut self, key: &KeyEvent) -> Vec<Effect> {
        if let Some(effects) = self.vim_key(key) {
            return effects;
        }
        let was_escaped = std::mem::take(&mut self.typist.escaped);
        let Some(action) = self.keymap.action(key) else { return Vec::new() };
        if action != Action::Leave {
            (self.known.hint, self.leave_pressed) = (None, None);
        }
        if let Some(effects) = self.page_key(action) {
            return effects;
        }
        // This key works even while other questions are open.
        if action == Action::Interrupt && std::mem::take(&mut self.leaving) {
            return Vec::new();
        }
        if let Some(effects) = self.question_key(action) {
            return effects;
        }
        if let Some(effects) = self.open_key(action) {
            return effects;
        }
        self.prompt_key(action, was_escaped)
    }

    fn page_key(&mut self, action: Action) -> Option<Vec<Effect>> {
        let page = self.page.as_mut()?;
        match page.key(action, self.rows) {
            Turned::Stays => {}
            Turned::Closed => self.page = None,
            Turned::Passed => return None,
            Turned::Told(text) => {
                let agent = page.agent_id()?.clone();
                return Some(vec![self.tell(agent, text)]);
            }
        }
        Some(Vec::new())
    }
}
