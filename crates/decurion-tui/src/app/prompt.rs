//! The prompt: keys that write it, and what becomes of it when it is sent.

use crossterm::event::KeyEvent;
use decurion_protocol::view::TaskView;
use decurion_protocol::{AgentId, Block, Command, LineId, Mode, Start};
use uuid::Uuid;

use super::open::{Overlay, program};
use super::{App, AwaitedReply, Effect, Farewell, Pressed};
use crate::commands::{self, CommandName, Topic, TypedText};
use crate::composer::vim::Took;
use crate::composer::{ComposerEdit, CursorMotion};
use crate::keymap::Action;
use crate::page::FullPage;
use crate::port::{FrontEndJob, JobPurpose};
use crate::view::item::ItemFolding;

/// How many bytes a prompt for another process's session may take in a request, which is refused beyond 16 MiB.
const LONGEST_ATTACHED: usize = (16 << 20) - (4 << 10);

/// The receiver of a prompt.
enum Addressed {
    /// The session's own agent.
    Session,
    /// One of its agents, which gets a message.
    Agent(AgentId, String),
    /// Several agents match.
    Several(String),
}

impl App {
    /// A key of vi, where those are wanted and the prompt has the keys; none if it is not one.
    pub(super) fn vim_key(&mut self, key: &KeyEvent) -> Option<Vec<Effect>> {
        let has_keys = self.page.is_none() && !self.answers() && matches!(self.open, Overlay::Nothing);
        let vim = self.vim.as_mut().filter(|_| has_keys)?;
        match vim.key(&mut self.composer, key) {
            Took::No => return None,
            Took::Yes => {
                self.known.hint = None;
                return Some(self.propose());
            }
            Took::Above => self.vertical(false),
            Took::Below => self.vertical(true),
        }
        self.known.hint = None;
        Some(Vec::new())
    }

    pub(super) fn prompt_key(&mut self, action: Action, was_escaped: bool) -> Vec<Effect> {
        if let Some(effects) = self.proposal_key(action) {
            return effects;
        }
        match action {
            Action::Submit => return self.submit(),
            Action::Newline => self.composer.insert("\n"),
            Action::Interrupt if self.is_still() => return self.escape(was_escaped),
            Action::Interrupt => return self.interrupt(),
            Action::Leave => return self.leave_key(),
            Action::EndOfInput if self.composer.is_empty() => return self.leave(),
            Action::EndOfInput => self.composer.edit(ComposerEdit::Delete(CursorMotion::Right)),
            Action::Background => return self.background(),
            Action::Mode => return self.next_mode(),
            Action::Tasks => self.open_tasks(),
            Action::History => self.open = Overlay::Search(String::new(), 0),
            Action::Help => self.open = Overlay::Help(0),
            Action::Edit(ComposerEdit::Type('?')) if self.composer.is_empty() => self.open = Overlay::Help(0),
            // What is put into the prompt meanwhile is not in the editor's hands.
            Action::Editor => return vec![Effect::Edit(self.composer.take())],
            Action::Redraw => return vec![Effect::Repaint],
            Action::Suspend => return vec![Effect::Suspend],
            Action::Up if self.composer.is_empty() && !self.sent.is_empty() => {
                let ours: Vec<LineId> = self.sent.iter().map(|(line, _)| *line).collect();
                let unqueue = |line| Command::Unqueue { line: Some(line) };
                // The last first: each is put before what is written already.
                let asked = ours.into_iter().rev();
                return asked.map(|line| self.ask_for(AwaitedReply::Unqueued, unqueue(line))).collect();
            }
            Action::Up | Action::Down => self.vertical(action == Action::Down),
            Action::Transcript => self.page = Some(FullPage::root()),
            Action::Complete | Action::PageUp | Action::PageDown => {}
            Action::Edit(edit) => {
                self.composer.edit(edit);
                return self.propose();
            }
        }
        Vec::new()
    }

    /// Sends what is written. A backslash at its end asks for another line instead.
    fn submit(&mut self) -> Vec<Effect> {
        let at_end = self.composer.cursor() == self.composer.raw().len();
        if at_end && self.composer.raw().ends_with('\\') {
            self.composer.edit(ComposerEdit::Delete(CursorMotion::Left));
            self.composer.insert("\n");
            return Vec::new();
        }
        let text = self.composer.take();
        self.end_proposals();
        if text.trim().is_empty() {
            return Vec::new();
        }
        if commands::typed(&text) == TypedText::Prompt && self.is_misspelt(&text) {
            self.composer.set(&text);
            return Vec::new();
        }
        self.history.push(&text);
        let mut effects = vec![Effect::Remember(text.clone())];
        effects.extend(self.send(text));
        effects
    }

    fn send(&mut self, text: String) -> Vec<Effect> {
        match commands::typed(&text) {
            // A person's own command of that name is theirs.
            TypedText::Ours(CommandName::Prompt(_), _) if self.has_skill(&text) => self.submit_prompt(text),
            TypedText::Ours(CommandName::Prompt(words), rest) => {
                let name = commands::looks_like(text.trim_start()).unwrap_or_default();
                self.submit_blocks(text.clone(), commands::prompt_of(name, words, rest))
            }
            TypedText::Ours(command, rest) => self.run(command, rest),
            TypedText::Memory(line) => {
                vec![Effect::Errand(JobPurpose::Say, FrontEndJob::Memorize(line.to_owned()))]
            }
            TypedText::Shell(command) => {
                vec![self.ask("!", Command::Shell { command: command.to_owned() })]
            }
            TypedText::Prompt => {
                match self.addressed(&text) {
                    Addressed::Session => {}
                    Addressed::Agent(agent, words) => return vec![self.tell(agent, words)],
                    Addressed::Several(names) => {
                        self.say("warning", format!("ambiguous; use an id: {names}"));
                        self.composer.set(&text);
                        return Vec::new();
                    }
                }
                self.submit_prompt(text)
            }
        }
    }

    /// Gives a prompt to the session's own agent.
    fn submit_prompt(&mut self, text: String) -> Vec<Effect> {
        let bytes = || serde_json::to_string(&text).map_or(usize::MAX, |text| text.len());
        if self.known.attached() && bytes() > LONGEST_ATTACHED {
            let words = "too long for a session in another process; put it into a file and name that";
            self.say("warning", words);
            self.composer.set(&text);
            return Vec::new();
        }
        let blocks = vec![Block::text(text.clone())];
        self.submit_blocks(text, blocks)
    }

    /// Gives a prompt that was typed as this text.
    fn submit_blocks(&mut self, text: String, blocks: Vec<Block>) -> Vec<Effect> {
        let line = LineId(Uuid::new_v4());
        self.sent.push_back((line, text));
        vec![self.ask_for(AwaitedReply::Prompt(line), Command::Submit { line, blocks })]
    }

    /// Whether a text calls a skill or a command of the person's own.
    fn has_skill(&self, text: &str) -> bool {
        let name = commands::looks_like(text.trim_start());
        self.library.skills.iter().any(|(known, _)| Some(known.as_str()) == name)
    }

    /// Whether anybody works, or will as soon as it is his turn.
    pub(super) fn has_any_work(&self) -> bool {
        let calls = !self.conversation.calling().is_empty();
        self.view.at_work || self.view.has_work() || calls || !self.sent.is_empty()
    }

    /// A prompt that begins with `@` and the id or the kind of an agent at work is for that agent.
    fn addressed(&self, text: &str) -> Addressed {
        let address = text.trim().strip_prefix('@').and_then(|text| text.split_once(char::is_whitespace));
        let Some((name, words)) = address else { return Addressed::Session };
        let name = name.trim_end_matches([':', ',']);
        let fits = |task: &&TaskView| {
            let is_kind = task.record.agent_type.as_deref() == Some(name);
            task.is_agent() && (task.record.task.as_str() == name || is_kind && !task.state.is_ended())
        };
        let fitting: Vec<&str> =
            self.view.tasks().iter().filter(fits).map(|task| task.record.task.as_str()).collect();
        match fitting[..] {
            [] => Addressed::Session,
            [one] => one
                .parse()
                .map_or(Addressed::Session, |agent| Addressed::Agent(agent, words.trim().to_owned())),
            _ => Addressed::Several(fitting.iter().map(|id| format!("@{id}")).collect::<Vec<_>>().join(", ")),
        }
    }

    /// Does what a command of our own says.
    fn run(&mut self, command: CommandName, rest: &str) -> Vec<Effect> {
        match command {
            CommandName::Help if self.fold == ItemFolding::Printed => self.open = Overlay::Help(0),
            CommandName::Help => {
                let lines: Vec<String> = self.whole_help().iter().map(ToString::to_string).collect();
                self.page = Some(FullPage::text("help", lines.join("\n")));
            }
            CommandName::Status => return self.ask_for_status(),
            CommandName::Copy => return self.copy(),
            CommandName::Diff => return self.ask_for_changes(),
            CommandName::AddDir => return self.add_directory(rest),
            // It was sent already.
            CommandName::Prompt(_) => {}
            CommandName::Transcript => self.page = Some(FullPage::root()),
            CommandName::Tasks => self.open_tasks(),
            CommandName::Quit => return self.leave(),
            CommandName::Cost => self.say("info", crate::view::status::costs(&self.view)),
            CommandName::Model if rest.is_empty() => return self.list(Topic::Models),
            CommandName::Model => {
                return vec![self.ask("model", Command::SetModel { model: rest.to_owned() })];
            }
            CommandName::Compact => {
                let instructions = (!rest.is_empty()).then(|| rest.to_owned());
                return vec![self.ask("compact", Command::Compact { instructions })];
            }
            CommandName::Clear => return self.go_to(Start::New { id: None }),
            CommandName::Login => return self.log_in(),
            CommandName::Continue => return program(JobPurpose::Latest, &["sessions", "list", "--json"]),
            CommandName::Fork => {
                let here = self.view.info.as_ref().map(|info| info.session);
                let fork = here.map(|from| self.go_to(Start::Fork { from, id: None, at: None }));
                return fork.unwrap_or_default();
            }
            CommandName::List(topic) => return self.list(topic),
            CommandName::Print(words) => return program(JobPurpose::Page(words.join(" ")), words),
            CommandName::Trace => return self.trace(rest),
            CommandName::Export => return self.export(rest),
            CommandName::StatusLine => {
                let wish = if rest.is_empty() { "Show the folder, the branch and the model." } else { rest };
                let text = format!("Use the statusline-setup agent to set up my status line. {wish}");
                return self.submit_prompt(text);
            }
            CommandName::Team => self.say("info", "no team is at work in this session; /tasks shows who is"),
            CommandName::Vim => {
                self.set_vim(self.vim.is_none());
                let state = if self.vim.is_some() { "on" } else { "off" };
                self.known.hint = Some(format!("vim mode {state}"));
            }
        }
        Vec::new()
    }

    /// Writes a trace of this session to a file.
    fn trace(&mut self, file: &str) -> Vec<Effect> {
        let Some(session) = self.view.info.as_ref().map(|info| info.session.to_string()) else {
            self.say("info", "there is no session yet");
            return Vec::new();
        };
        let name = format!("trace-{session}.json");
        let file = if file.is_empty() { name.as_str() } else { file };
        self.say("info", format!("writing {file}"));
        program(JobPurpose::Say, &["trace", &session, "-o", file])
    }

    /// Whether nothing is under way that could be interrupted.
    fn is_still(&self) -> bool {
        !self.view.at_work && self.sent.is_empty() && self.conversation.calling().is_empty()
    }

    /// Ends the turn under way; with nothing under way it does nothing.
    pub(super) fn interrupt(&mut self) -> Vec<Effect> {
        if self.is_still() {
            return Vec::new();
        }
        vec![self.ask("interrupt", Command::Interrupt)]
    }

    /// Once: what is written goes, or the turn. Twice: the program.
    pub(super) fn leave_key(&mut self) -> Vec<Effect> {
        if matches!(self.open, Overlay::List(Topic::Leaving, _)) {
            // One press too many is no decision to stop the work.
            if self.leave_pressed == Some(Pressed::Warned) {
                return vec![Effect::Leave(Farewell::Close)];
            }
            self.leave_pressed = Some(Pressed::Warned);
            self.known.hint = Some("press again to stop it and leave".to_owned());
            return Vec::new();
        }
        if self.leave_pressed.is_some() {
            self.known.hint = None;
            let effects = self.leave();
            self.leave_pressed = None;
            return effects;
        }
        self.page = None;
        self.leave_pressed = Some(Pressed::Interrupted);
        self.known.hint = Some("press again to leave".to_owned());
        if !self.composer.is_empty() {
            self.leave_pressed = Some(Pressed::Emptied);
            self.composer.take();
            self.end_proposals();
            return Vec::new();
        }
        self.interrupt()
    }

    /// Leaves; where something still works, asks first what becomes of it.
    pub(super) fn leave(&mut self) -> Vec<Effect> {
        // A second press of the key that ends the turn has that behind it.
        let is_ended = self.leave_pressed == Some(Pressed::Interrupted);
        let has_work = if is_ended { self.view.has_work() } else { self.has_any_work() };
        if !self.known.attached() && has_work {
            self.page = None;
            return self.list(Topic::Leaving);
        }
        vec![Effect::Leave(Farewell::Close)]
    }

    fn background(&mut self) -> Vec<Effect> {
        // A command in the foreground is no task yet, only a call.
        if self.view.has_foreground() || self.view.root.calls().next().is_some() {
            return vec![self.ask("background", Command::Background { target: None })];
        }
        self.known.hint = Some("nothing runs in the foreground".to_owned());
        Vec::new()
    }

    fn next_mode(&mut self) -> Vec<Effect> {
        // From what was asked for already, where that is not in force yet.
        let mode = match self.wanted.unwrap_or(self.view.mode) {
            Mode::Default | Mode::Bubble => Mode::AcceptEdits,
            Mode::AcceptEdits => Mode::Plan,
            Mode::Plan if self.known.can_bypass => Mode::BypassPermissions,
            _ => Mode::Default,
        };
        self.wanted = Some(mode);
        vec![self.ask_for(AwaitedReply::Mode(mode), Command::SetMode { mode })]
    }

    /// Up and down go through the rows of the prompt, and beyond them through earlier ones.
    fn vertical(&mut self, down: bool) {
        if self.composer.vertical(down, self.room()) {
            return;
        }
        let now = self.composer.text();
        let found = if down { self.history.following() } else { self.history.previous(&now) };
        if let Some(text) = found.map(str::to_owned) {
            self.composer.set(&text);
        }
    }

    pub(super) fn room(&self) -> usize {
        self.columns.saturating_sub(2).max(2)
    }
}
