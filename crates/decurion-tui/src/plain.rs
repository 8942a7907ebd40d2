//! The same session as plain lines, for screen readers and simple terminals. Takes lines that a person types; prints
//! finished items and, once, each question. Nothing moves and nothing is drawn again.
#![allow(clippy::disallowed_methods)] // every line passes `safe` last

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::{Clock, Command, Link, Request};
use futures_util::StreamExt as _;
use ratatui_core::text::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::time::Instant;

use crate::app::{App, AppInput, Effect, Wants};
use crate::commands::{self, TypedText};
use crate::editor::{Beside, Edited, Signals, is_known};
use crate::perform::{Performer, TerminalEffect};
use crate::port::EditorDraft;
use crate::text::without_sequences;
use crate::{FrontEndEnd, LoopEnd, NO_SHELL, OutsideSignal, Showing, TWICE, conclude};

/// How many lines of the past are printed at the beginning.
const PAST: usize = 200;

/// Shows a session until a person leaves it or it ends.
pub async fn run(
    showing: Showing,
    signals: &mut mpsc::Receiver<OutsideSignal>,
    typed: &mut StdinLines,
) -> io::Result<FrontEndEnd> {
    let Showing { link, mut app, taken, desk, clock, .. } = showing;
    app.be_plain(io::stdin().is_terminal());
    let (errands, fruits) = mpsc::channel(64);
    let hands = Performer { commands: link.commands.clone(), desk, errands };
    let signals = Signals::new(signals);
    let printer = Printer::default();
    let terminal = typed.terminal();
    let mut talk = PlainLoop {
        link,
        app,
        taken,
        hands,
        fruits,
        signals,
        terminal,
        printer,
        is_over: false,
        interrupted: None,
    };
    // A terminal that takes no more lines is gone.
    let over = talk.live(&*clock, typed).await.unwrap_or(LoopEnd::By(OutsideSignal::Hangup));
    Ok(conclude(over, talk.link, talk.app).await)
}

/// Everything that the loop holds.
struct PlainLoop<'a> {
    link: Link,
    app: App,
    taken: u64,
    hands: Performer,
    fruits: mpsc::Receiver<AppInput>,
    signals: Signals<'a>,
    terminal: Arc<Semaphore>,
    printer: Printer,
    /// Whether the input has ended.
    is_over: bool,
    /// The time of the last interrupt by a signal.
    interrupted: Option<Instant>,
}

impl PlainLoop<'_> {
    async fn live(&mut self, clock: &dyn Clock, typed: &mut StdinLines) -> io::Result<LoopEnd> {
        self.printer.print(&self.app.unshown(PAST))?;
        let mut effects = self.app.begin();
        loop {
            if self.is_over {
                effects.extend(self.app.refuse_all());
            }
            let over = self.do_all(&mut effects).await?;
            self.print(clock)?;
            if let Some(over) = over {
                return Ok(over);
            }
            // An editor was open, and more is to be done since.
            if effects.is_empty() {
                match self.next(typed).await {
                    PlainStep::On(next) => effects = next,
                    PlainStep::Over(over) => return Ok(over),
                }
            }
        }
    }

    /// Performs these; effects that must follow them are left there.
    async fn do_all(&mut self, effects: &mut Vec<Effect>) -> io::Result<Option<LoopEnd>> {
        let mut over = None;
        for effect in std::mem::take(effects) {
            match self.hands.take(effect).await {
                None
                | Some(TerminalEffect::Repaint | TerminalEffect::Copy(_) | TerminalEffect::Notify(_)) => {}
                Some(TerminalEffect::Leave(farewell)) => over = Some(LoopEnd::Left(farewell)),
                Some(TerminalEffect::Stay(reason)) => self.app.say("warning", reason),
                Some(TerminalEffect::Call) => ring()?,
                Some(TerminalEffect::NoRoom(request)) => effects.extend(self.app.no_room(request)),
                Some(TerminalEffect::Suspend) => self.suspend(),
                Some(TerminalEffect::Edit(draft)) => {
                    let Self { app, link, signals, taken, .. } = self;
                    let _editors = self.terminal.acquire().await;
                    let is_prompt = matches!(draft, EditorDraft::Text(_));
                    let beside = Beside { app, link, signals, taken: *taken };
                    match beside.edit(&*self.hands.desk, draft).await {
                        Edited::Done(later) => {
                            effects.extend(later);
                            // There is no prompt to look at it once more.
                            if is_prompt && let Some(text) = app.take_draft() {
                                effects.extend(prompt(app, &text));
                            }
                        }
                        Edited::By(signal) => return Ok(Some(LoopEnd::By(signal))),
                        Edited::SessionOver => return Ok(Some(LoopEnd::Session)),
                    }
                }
            }
        }
        Ok(over)
    }

    /// Prints what is finished, and what must be decided.
    fn print(&mut self, clock: &dyn Clock) -> io::Result<()> {
        let app = &mut self.app;
        if let Some(draft) = app.say_draft() {
            self.hands.desk.remember(&draft);
        }
        // There is no line at the bottom in which it could stand for a moment.
        if let Some(hint) = app.known.hint.take() {
            app.say("info", hint);
        }
        self.printer.print(&app.finished())?;
        self.printer.print(&app.take_reading())?;
        let asked = app.plain(clock.date());
        self.printer.decide(&asked, app.wants(), app.is_resting() && !self.is_over)
    }

    /// Waits for the next event; gives what to do then.
    async fn next(&mut self, typed: &mut StdinLines) -> PlainStep {
        PlainStep::On(tokio::select! {
            biased;
            Some(signal) = self.signals.recv() => return self.signalled(signal),
            line = typed.next(), if !self.is_over => {
                self.printer.typed();
                self.is_over = line.is_none();
                match line {
                    Some(line) => type_line(&mut self.app, &line),
                    None => self.app.leave_when_done(),
                }
            }
            Some(fruit) = self.fruits.recv() => self.app.update(fruit),
            event = self.link.events.next() => match event {
                Some(event) if is_known(&event, self.taken) => Vec::new(),
                Some(event) => self.app.update(AppInput::Event(event)),
                None => return PlainStep::Over(LoopEnd::Session),
            },
            () = self.link.commands.closed() => return PlainStep::Over(LoopEnd::Session),
        })
    }

    fn signalled(&mut self, signal: OutsideSignal) -> PlainStep {
        // Once the input has ended, one is enough.
        let twice = self.is_over || self.interrupted.is_some_and(|before| before.elapsed() < TWICE);
        match signal {
            OutsideSignal::Suspend => {
                self.suspend();
                PlainStep::On(Vec::new())
            }
            OutsideSignal::Interrupt if !twice => {
                self.interrupted = Some(Instant::now());
                PlainStep::On(self.app.update(AppInput::Interrupt))
            }
            signal => PlainStep::Over(LoopEnd::By(signal)),
        }
    }

    fn suspend(&mut self) {
        if !self.hands.desk.suspend() {
            self.app.say("info", NO_SHELL);
        }
    }
}

/// Whether the loop continues, and with what.
enum PlainStep {
    On(Vec<Effect>),
    Over(LoopEnd),
}

/// What a line means: a key, a prompt, or an answer to what is asked or open.
fn type_line(app: &mut App, line: &str) -> Vec<Effect> {
    if let Some(letter) = control_letter(line) {
        return app.update(AppInput::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)));
    }
    let text: String = without_sequences(line).chars().filter(|letter| !is_key(*letter)).collect();
    if text != line {
        app.say("warning", "keys that are not text were dropped from this line");
        // Without them it is no empty line, which would decide something.
        if text.trim().is_empty() {
            return Vec::new();
        }
    }
    take_line(app, &text)
}

/// The letter of the one key with control held that a line consists of, which does what it does elsewhere.
fn control_letter(line: &str) -> Option<char> {
    let mut letters = line.chars();
    let letter = letters.next().filter(|letter| letters.next().is_none() && is_key(*letter))?;
    let letter = char::from_u32(u32::from(letter) + 0x60)?;
    letter.is_ascii_lowercase().then_some(letter)
}

/// Whether a character is a key and no text.
fn is_key(letter: char) -> bool {
    letter.is_control() && letter != '\t'
}

/// What a line of text means.
fn take_line(app: &mut App, line: &str) -> Vec<Effect> {
    let word = line.trim();
    let press = |app: &mut App, code| app.update(AppInput::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    let number = word.parse::<usize>().ok();
    let mut letters = word.chars();
    let letter = letters.next().filter(|_| letters.next().is_none());
    match app.wants() {
        Wants::Words => {
            for letter in word.chars() {
                press(app, KeyCode::Char(letter));
            }
            press(app, KeyCode::Enter)
        }
        // Without a word nothing is decided: it is asked again.
        Wants::Answer { marked: Some(0) | None } if word.is_empty() => Vec::new(),
        Wants::Answer { .. } | Wants::Choice { chosen: true } if word.is_empty() => {
            press(app, KeyCode::Enter)
        }
        // Nor with words, which could mean anything, unless they are a command.
        Wants::Answer { .. } if !is_command(word) => app.answer_line(word),
        Wants::Choice { .. } if word.is_empty() || word == "q" => {
            app.close_open();
            Vec::new()
        }
        Wants::Choice { .. } if number.is_some() => app.choose_number(number.unwrap_or_default()),
        // A letter that is about a row is about one that was chosen.
        Wants::Choice { chosen: false } if letter.is_some_and(|letter| app.is_about_a_row(letter)) => {
            Vec::new()
        }
        Wants::Reading if word.is_empty() || word == "q" => press(app, KeyCode::Esc),
        Wants::Choice { .. } if letter.is_some() => {
            let letter = letter.unwrap_or_default();
            app.task_letter(letter).unwrap_or_else(|| press(app, KeyCode::Char(letter)))
        }
        Wants::Choice { .. } if is_command(word) => {
            app.close_open();
            prompt(app, line)
        }
        Wants::Choice { .. } => {
            app.say("warning", "not a number or letter from above (q closes)");
            Vec::new()
        }
        Wants::Prompt if word == "?" => press(app, KeyCode::Char('?')),
        Wants::Answer { .. } | Wants::Prompt | Wants::Reading => prompt(app, line),
    }
}

/// Whether a line is a command even while a question is open.
fn is_command(line: &str) -> bool {
    matches!(commands::typed(line), TypedText::Ours(..) | TypedText::Shell(_))
}

/// A line that is a prompt, or a message to the agent whose conversation is open. Other open lists are closed.
fn prompt(app: &mut App, line: &str) -> Vec<Effect> {
    app.close_reading();
    let waits = app.would_wait();
    let mut effects = app.update(AppInput::Paste(line.to_owned()));
    effects.extend(app.update(AppInput::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE))));
    let is_prompt =
        |effect: &Effect| matches!(effect, Effect::Send(Request { command: Command::Submit { .. }, .. }));
    if waits && effects.iter().any(is_prompt) {
        app.say("info", "queued: sent when the agent is done with its current turn");
    }
    effects
}

/// The lines of standard input. There is one reader in a process, for all sessions that follow each other: its holder
/// gets the next line.
pub struct StdinLines {
    /// Requests a line: none is read without a request.
    ask: std::sync::mpsc::Sender<()>,
    read: mpsc::Receiver<String>,
    is_asked: bool,
    terminal: Arc<Semaphore>,
}

impl StdinLines {
    /// Begins to read. The thread ends with the program.
    pub fn of_stdin() -> Self {
        let terminal = Arc::new(Semaphore::new(1));
        let runtime = Handle::current();
        let shared = Arc::clone(&terminal);
        let is_terminal = io::stdin().is_terminal();
        let lines = Self::of(move || {
            let _ours = is_terminal.then(|| until_typed(&shared, &runtime));
            let mut bytes = Vec::new();
            let read = io::stdin().lock().read_until(b'\n', &mut bytes);
            read.is_ok_and(|count| count > 0).then(|| {
                let text = String::from_utf8_lossy(&bytes);
                text.trim_end_matches(['\n', '\r']).to_owned()
            })
        });
        Self { terminal, ..lines }
    }

    /// What this gives, line by line, to its end.
    fn of(mut read: impl FnMut() -> Option<String> + Send + 'static) -> Self {
        let (ask, asked) = std::sync::mpsc::channel();
        let (sender, lines) = mpsc::channel(1);
        let thread = move || {
            while asked.recv().is_ok() {
                let Some(line) = read() else { return };
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        };
        // Without a thread nothing can be typed, and the receiver says so by its end.
        let _ = std::thread::Builder::new().name("lines".to_owned()).spawn(thread);
        Self { ask, read: lines, is_asked: false, terminal: Arc::new(Semaphore::new(1)) }
    }

    /// The holder of the one permit has the terminal: nothing is read from it meanwhile.
    fn terminal(&self) -> Arc<Semaphore> {
        Arc::clone(&self.terminal)
    }

    /// The next one; none at the end. Cancelling the wait loses none.
    pub async fn next(&mut self) -> Option<String> {
        if !self.is_asked {
            // A reader that is gone says so by the end of its lines.
            let _ = self.ask.send(());
            self.is_asked = true;
        }
        let line = self.read.recv().await;
        self.is_asked = false;
        line
    }
}

/// Waits until a line was typed that is for us. Waiting in a read would not do: a read under way takes input meant for
/// an editor, and one that begins while the editor has the terminal stops the program.
fn until_typed<'a>(terminal: &'a Semaphore, runtime: &Handle) -> Option<SemaphorePermit<'a>> {
    let stdin = io::stdin();
    let is_typed = |limit: Option<&Timespec>| {
        // If that is unknown, the read will say why.
        !matches!(poll(&mut [PollFd::new(&stdin, PollFlags::IN)], limit), Ok(0) | Err(Errno::INTR))
    };
    loop {
        while !is_typed(None) {}
        let ours = runtime.block_on(terminal.acquire()).ok();
        if is_typed(Some(&Timespec::default())) {
            return ours;
        }
    }
}

/// What was printed last of what must be decided.
#[derive(Default)]
struct Printer {
    asked: Vec<String>,
    wants: Option<Wants>,
    prompted: bool,
}

impl Printer {
    fn print(&mut self, lines: &[Line<'_>]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        if std::mem::take(&mut self.prompted) {
            writeln!(out)?;
        }
        for line in lines {
            writeln!(out, "{}", safe(line))?;
        }
        out.flush()
    }

    /// A line was typed: open questions are printed again.
    fn typed(&mut self) {
        self.prompted = false;
        if self.wants != Some(Wants::Reading) {
            self.wants = None;
        }
    }

    /// Prints what must be decided, once, or that a prompt can be written. A text that is being read grows at its end;
    /// changes of a list are not printed until the person types.
    fn decide(&mut self, lines: &[Line<'_>], wants: Wants, resting: bool) -> io::Result<()> {
        let asked: Vec<String> = lines.iter().map(safe).collect();
        let same = self.wants == Some(wants);
        let told = match wants {
            Wants::Choice { .. } if same => asked.len(),
            Wants::Reading if same => {
                asked.iter().zip(&self.asked).take_while(|(new, old)| new == old).count()
            }
            _ if same && asked == self.asked => asked.len(),
            _ => 0,
        };
        self.print(&lines[told..])?;
        if wants == Wants::Reading && !same {
            self.print(&[Line::raw("(an empty line closes it)")])?;
        }
        (self.asked, self.wants) = (asked, Some(wants));
        if resting && !self.prompted {
            let mut out = io::stdout().lock();
            out.write_all(b"> ")?;
            out.flush()?;
            self.prompted = true;
        }
        Ok(())
    }
}

fn ring() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(b"\x07")?;
    out.flush()
}

/// A line without anything that commands the terminal.
fn safe(line: &Line<'_>) -> String {
    line.to_string().chars().filter(|letter| !letter.is_control()).collect()
}
