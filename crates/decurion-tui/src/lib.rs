//! The interactive front end. Takes a session's [`Link`]; draws it in a terminal and turns keys into commands.
//!
//! [`run`] is the one loop: what comes in goes to [`app::App`], which gives effects and lines; the effects are done here
//! and the lines drawn by [`screen::TerminalScreen`].

pub mod ansi;
pub mod app;
pub mod budget;
pub mod code;
pub mod commands;
pub mod completion;
pub mod composer;
pub mod conversation;
mod editor;
pub mod fault_point;
pub mod form;
pub mod history;
pub mod keymap;
pub mod links;
pub mod list;
pub mod page;
mod perform;
pub mod plain;
pub mod port;
pub mod report;
pub mod screen;
pub mod steps;
pub mod terminal;
mod terminal_events;
pub mod text;
pub mod theme;
pub mod topics;
pub mod view;

pub use crossterm::event;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{Event as Happening, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use decurion_protocol::{Clock, Command, Event, Link, Request, RequestId, SessionView};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use app::{App, AppInput, Effect, Farewell, NextSession};
use editor::{Beside, Edited, Signals, is_known};
use perform::{Performer, TerminalEffect};
use port::{EditorDraft, FrontEndPort};
use screen::TerminalScreen;
use terminal::OwnedTerminal;
use terminal_events::TerminalEvents;

/// What happens in the session is shown at most so often; keys are shown at once.
const FRAME: Duration = Duration::from_millis(33);
/// How long a terminal that is being resized must rest before all is drawn again.
const RESIZED: Duration = Duration::from_millis(80);
/// The longest time without a redraw during a resize.
const RESIZING: Duration = Duration::from_millis(400);
/// How long the session may take to end.
const GOODBYE: Duration = Duration::from_secs(10);
/// The message if no shell could continue us.
const NO_SHELL: &str = "there is no shell to go back to";
/// Two interrupts from outside within this are one that means it.
const TWICE: Duration = Duration::from_secs(1);

/// A wish from outside of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideSignal {
    /// Interrupt the turn; twice in a second: leave.
    Interrupt,
    Terminate,
    /// The terminal is gone.
    Hangup,
    /// Let the shell have its turn.
    Suspend,
}

#[derive(Debug)]
pub enum FrontEndEnd {
    Left,
    /// The session ended by itself.
    Over,
    /// The person left, and the work continues without a terminal.
    Kept(Link, Box<SessionView>),
    /// Another session is wanted in its place.
    Next(Box<NextSession>),
    /// A signal asked for it.
    By(OutsideSignal),
}

/// What is shown, and with what.
pub struct Showing {
    pub link: Link,
    /// The screen, with what is on record already taken.
    pub app: App,
    /// The number of the last event that it has taken.
    pub taken: u64,
    /// What the program does for it.
    pub desk: Arc<dyn FrontEndPort>,
    pub clock: Arc<dyn Clock>,
    /// The demo's player between the terminal and the screen, if any.
    pub between: Option<Between>,
}

/// A player between the terminal and the screen, which presses keys in a person's place.
pub struct Between {
    /// Gets what is typed at the terminal.
    pub typed: mpsc::Sender<Happening>,
    /// What the screen takes, as if it had been typed there.
    pub given: mpsc::Receiver<AppInput>,
}

impl Between {
    /// What it gives next. One that is gone, or was never there, gives nothing.
    async fn next(between: &mut Option<Self>) -> AppInput {
        let given = match between {
            Some(between) => between.given.recv().await,
            None => None,
        };
        match given {
            Some(input) => input,
            None => std::future::pending().await,
        }
    }
}

/// Draws a session until a person leaves it or it ends.
pub async fn run(showing: Showing, signals: &mut mpsc::Receiver<OutsideSignal>) -> io::Result<FrontEndEnd> {
    let Showing { link, app, taken, desk, clock, between } = showing;
    let terminal = OwnedTerminal::take(app.known.notices)?;
    let screen = TerminalScreen::new(FrameWriter, OwnedTerminal::size()).linking(app.known.links.clone());
    let (errands, fruits) = mpsc::channel(64);
    let hands = Performer { commands: link.commands.clone(), desk, errands };
    let mut window = Window {
        link,
        app,
        taken,
        hands,
        clock,
        signals: Signals::new(signals),
        terminal,
        screen,
        keys: TerminalEvents::new()?,
        between,
        fruits,
        later: VecDeque::new(),
        interrupted: None,
        normal: OwnedTerminal::size(),
        resized: None,
        drawn: None,
        dirty: true,
    };
    let ended = window.live().await;
    // Where another session takes this one's place, it has that too.
    if !matches!(ended, Ok(LoopEnd::Left(Farewell::Next(_))))
        && let Some(draft) = window.app.say_draft()
    {
        window.hands.desk.remember(&draft);
    }
    // Drawing errors are ignored: work that is to be kept continues even if the terminal dies just now.
    let _ = match ended {
        // A terminal that is gone shows nothing, or is a shell's again.
        Ok(LoopEnd::By(OutsideSignal::Hangup)) | Err(_) => window.screen.abandon(),
        // The last message may not have been drawn yet.
        Ok(_) => {
            window.app.break_off();
            let drawn = window.draw();
            drawn.and(window.screen.leave())
        }
    };
    // A terminal that cannot be written to any more is gone, and the session ends as it does then.
    let over = ended.unwrap_or(LoopEnd::By(OutsideSignal::Hangup));
    Ok(conclude(over, window.link, window.app).await)
}

/// Waits for one key at a terminal that shows no session. None for a key without a letter, after a signal to end, or
/// once the terminal is gone.
pub async fn one_key(signals: &mut mpsc::Receiver<OutsideSignal>) -> io::Result<Option<char>> {
    let _terminal = OwnedTerminal::take(terminal::Notices::Off)?;
    let mut keys = TerminalEvents::new()?;
    let letter = loop {
        tokio::select! {
            _ = signals.recv() => break None,
            happening = keys.next() => match happening {
                Some(Ok(Happening::Key(key))) if key.kind != KeyEventKind::Release => break letter(&key),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break None,
            },
        }
    };
    keys.end().await;
    Ok(letter)
}

fn letter(key: &KeyEvent) -> Option<char> {
    match key.code {
        KeyCode::Char(letter) if !key.modifiers.contains(KeyModifiers::CONTROL) => Some(letter),
        _ => None,
    }
}

/// Ends the session, if it is to end. One of another process continues.
async fn conclude(over: LoopEnd, mut link: Link, app: App) -> FrontEndEnd {
    let is_kept = matches!(over, LoopEnd::Session | LoopEnd::Left(Farewell::Keep));
    if !is_kept && !app.known.attached() {
        // A person who leaves a question or a turn has ended it: resuming the session must not continue it unasked. What
        // was cut off by the terminal's end continues.
        let stops_turn = matches!(over, LoopEnd::Left(Farewell::Close)) && app.view.at_work;
        if stops_turn || matches!(over, LoopEnd::Left(_)) && !app.view.questions.is_empty() {
            let request = Request { id: RequestId(u64::MAX - 1), command: Command::Interrupt };
            let _ = link.commands.send(request).await;
        }
        close(&mut link, "the person at the terminal has left").await;
    }
    match over {
        LoopEnd::Session => FrontEndEnd::Over,
        LoopEnd::Left(Farewell::Keep) => FrontEndEnd::Kept(link, Box::new(app.view)),
        LoopEnd::Left(Farewell::Close) => FrontEndEnd::Left,
        LoopEnd::Left(Farewell::Next(next)) => FrontEndEnd::Next(next),
        LoopEnd::By(signal) => FrontEndEnd::By(signal),
    }
}

/// The terminal as a frame is written to it: at once, so that none is seen in pieces.
struct FrameWriter;

impl io::Write for FrameWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Everything that the loop holds.
struct Window<'a> {
    link: Link,
    app: App,
    taken: u64,
    hands: Performer,
    clock: Arc<dyn Clock>,
    signals: Signals<'a>,
    terminal: OwnedTerminal,
    screen: TerminalScreen<FrameWriter>,
    keys: TerminalEvents,
    between: Option<Between>,
    fruits: mpsc::Receiver<AppInput>,
    /// Effects that wait for the end of an editor.
    later: VecDeque<Effect>,
    /// The time of the last interrupt by a signal.
    interrupted: Option<Instant>,
    /// The size at which the normal buffer was drawn.
    normal: (u16, u16),
    /// When the terminal was resized first and last, until that is shown.
    resized: Option<(Instant, Instant)>,
    /// When was drawn last.
    drawn: Option<Instant>,
    /// Whether something is to be drawn.
    dirty: bool,
}

/// Whether the loop continues.
enum LoopStep {
    On,
    Over(LoopEnd),
}

/// Why it does not.
enum LoopEnd {
    Session,
    Left(Farewell),
    /// A signal said so.
    By(OutsideSignal),
}

impl Window<'_> {
    async fn live(&mut self) -> io::Result<LoopEnd> {
        for effect in self.app.begin() {
            if let LoopStep::Over(over) = self.do_it(effect).await? {
                return Ok(over);
            }
        }
        // A terminal may have been resized before anybody listened.
        if OwnedTerminal::size() == self.screen.size() {
            self.draw()?;
        } else {
            self.resize()?;
        }
        loop {
            while let Some(effect) = self.later.pop_front() {
                if let LoopStep::Over(over) = self.do_it(effect).await? {
                    return Ok(over);
                }
            }
            let frame = self.next_frame();
            let going = tokio::select! {
                biased;
                Some(signal) = self.signals.recv() => self.signalled(signal).await?,
                key = self.keys.next() => self.happened(key).await?,
                Some(fruit) = self.fruits.recv() => self.update(fruit).await?,
                input = Between::next(&mut self.between) => self.given(input).await?,
                event = self.link.events.next() => match event {
                    Some(event) if is_known(&event, self.taken) => LoopStep::On,
                    Some(event) => self.update(AppInput::Event(event)).await?,
                    None => LoopStep::Over(LoopEnd::Session),
                },
                () = self.link.commands.closed() => LoopStep::Over(LoopEnd::Session),
                () = sleep_until(frame), if frame.is_some() => {
                    self.draw()?;
                    LoopStep::On
                }
            };
            if let LoopStep::Over(over) = going {
                return Ok(over);
            }
        }
    }

    /// When something is drawn next, if nothing comes in: a person's terminal rests while nothing moves.
    fn next_frame(&self) -> Option<Instant> {
        if let Some((first, last)) = self.resized {
            return Some((last + RESIZED).min(first + RESIZING));
        }
        let drawn = self.drawn?;
        if self.dirty {
            return Some(drawn + FRAME);
        }
        self.app.pace().map(|pace| drawn + pace)
    }

    /// Something happened at the terminal. One that is gone ends the loop.
    async fn happened(&mut self, happening: Option<io::Result<Happening>>) -> io::Result<LoopStep> {
        let Some(Ok(mut happening)) = happening else {
            return Ok(LoopStep::Over(LoopEnd::By(OutsideSignal::Hangup)));
        };
        let mut changes = false;
        loop {
            // Nothing on the screen is about the focus.
            changes |= !matches!(happening, Happening::FocusGained | Happening::FocusLost);
            if let LoopStep::Over(over) = self.take(happening).await? {
                return Ok(LoopStep::Over(over));
            }
            // All that was typed is shown at once.
            match self.keys.ready() {
                Some(next) => happening = next?,
                None => break,
            }
        }
        if changes && self.resized.is_none() {
            self.draw()?;
        }
        Ok(LoopStep::On)
    }

    /// Something was given as if it had been typed, and is shown as soon.
    async fn given(&mut self, input: AppInput) -> io::Result<LoopStep> {
        let going = self.update(input).await?;
        if matches!(going, LoopStep::On) && self.resized.is_none() {
            self.draw()?;
        }
        Ok(going)
    }

    async fn take(&mut self, happening: Happening) -> io::Result<LoopStep> {
        if let Some(between) = self.between.as_ref().filter(|_| !matches!(happening, Happening::Resize(..))) {
            // A player that cannot keep up with keys has enough of them.
            let _ = between.typed.try_send(happening);
            return Ok(LoopStep::On);
        }
        match happening {
            Happening::Key(key) if key.kind != KeyEventKind::Release => self.update(AppInput::Key(key)).await,
            Happening::FocusGained | Happening::FocusLost => {
                self.app.set_focus(happening == Happening::FocusGained);
                Ok(LoopStep::On)
            }
            Happening::Paste(text) => self.update(AppInput::Paste(text)).await,
            Happening::Resize(..) => {
                let now = Instant::now();
                self.resized = Some((self.resized.map_or(now, |(first, _)| first), now));
                Ok(LoopStep::On)
            }
            _ => Ok(LoopStep::On),
        }
    }

    async fn update(&mut self, input: AppInput) -> io::Result<LoopStep> {
        fault_point::pass("update");
        self.dirty = true;
        for effect in self.app.update(input) {
            if let LoopStep::Over(over) = self.do_it(effect).await? {
                return Ok(LoopStep::Over(over));
            }
        }
        Ok(LoopStep::On)
    }

    async fn do_it(&mut self, effect: Effect) -> io::Result<LoopStep> {
        fault_point::pass("effect");
        match self.hands.take(effect).await {
            None => {}
            Some(TerminalEffect::Leave(farewell)) => return Ok(LoopStep::Over(LoopEnd::Left(farewell))),
            Some(TerminalEffect::Stay(reason)) => self.app.say("warning", reason),
            Some(TerminalEffect::Edit(draft)) => return self.edit(draft).await,
            Some(TerminalEffect::Suspend) => self.suspend()?,
            Some(TerminalEffect::Repaint) => self.repaint()?,
            Some(TerminalEffect::Call) => self.terminal.ring()?,
            Some(TerminalEffect::Notify(text)) => self.terminal.notify(&text)?,
            Some(TerminalEffect::Copy(text)) => self.terminal.copy(&text)?,
            Some(TerminalEffect::NoRoom(request)) => self.later.extend(self.app.no_room(request)),
        }
        Ok(LoopStep::On)
    }

    /// Gives the terminal to an editor until that is closed.
    async fn edit(&mut self, draft: EditorDraft) -> io::Result<LoopStep> {
        self.screen.leave()?;
        self.keys.end().await;
        self.terminal.pause();
        let Self { app, link, signals, taken, .. } = self;
        let edited = Beside { app, link, signals, taken: *taken }.edit(&*self.hands.desk, draft).await;
        let held = self.terminal.go_on();
        match edited {
            Edited::Done(effects) => {
                held?;
                self.keys.go_on()?;
                self.later.extend(effects);
                self.repaint()?;
                Ok(LoopStep::On)
            }
            Edited::By(signal) => Ok(LoopStep::Over(LoopEnd::By(signal))),
            Edited::SessionOver => Ok(LoopStep::Over(LoopEnd::Session)),
        }
    }

    fn suspend(&mut self) -> io::Result<()> {
        self.screen.leave()?;
        self.terminal.pause();
        let suspended = self.hands.desk.suspend();
        self.terminal.go_on()?;
        if !suspended {
            self.app.say("info", NO_SHELL);
        }
        self.repaint()
    }

    async fn signalled(&mut self, signal: OutsideSignal) -> io::Result<LoopStep> {
        fault_point::pass("signal");
        match signal {
            OutsideSignal::Terminate | OutsideSignal::Hangup => Ok(LoopStep::Over(LoopEnd::By(signal))),
            OutsideSignal::Suspend => {
                self.suspend()?;
                Ok(LoopStep::On)
            }
            OutsideSignal::Interrupt => {
                let before = self.interrupted.replace(Instant::now());
                if before.is_some_and(|before| before.elapsed() < TWICE) {
                    return Ok(LoopStep::Over(LoopEnd::By(signal)));
                }
                self.update(AppInput::Interrupt).await
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        fault_point::pass("draw");
        if self.resized.take().is_some() {
            return self.resize();
        }
        // The news of a resize is lost if it comes together with a key.
        if OwnedTerminal::size() != self.screen.size() {
            let now = Instant::now();
            self.resized = Some((now, now));
            return Ok(());
        }
        self.terminal.title(&self.app.title())?;
        (self.drawn, self.dirty) = (Some(Instant::now()), false);
        if let Some((page, cursor)) = self.app.page() {
            return self.screen.page(&page, cursor);
        }
        // The terminal has wrapped what is below the page that was open, while that was shown at another size.
        if self.normal != self.screen.size() {
            return self.repaint();
        }
        let finished = self.app.finished();
        let (live, cursor) = self.app.live(self.clock.date());
        self.screen.draw(&finished, &live, cursor)?;
        self.app.drawn_once();
        Ok(())
    }

    /// A terminal that is only higher or lower keeps what is on it.
    fn resize(&mut self) -> io::Result<()> {
        fault_point::pass("resize");
        let size = OwnedTerminal::size();
        if size.0 == self.screen.size().0 && self.screen.set_rows(size.1) {
            self.app.resize(size);
            // Below a page it may be of another width still.
            if self.normal.0 == size.0 {
                self.normal = size;
            }
            return self.draw();
        }
        self.repaint()
    }

    fn repaint(&mut self) -> io::Result<()> {
        fault_point::pass("repaint");
        let size = OwnedTerminal::size();
        let from = self.app.place_of_line(self.screen.owned(size), usize::from(self.normal.0));
        self.app.resize(size);
        (self.drawn, self.dirty) = (Some(Instant::now()), false);
        if let Some((page, cursor)) = self.app.page() {
            return self.screen.repaint_page(size, &page, cursor);
        }
        self.normal = size;
        let finished = self.app.finished_from(from);
        let (live, cursor) = self.app.live(self.clock.date());
        self.screen.repaint(size, &finished, &live, cursor)?;
        self.app.drawn_once();
        Ok(())
    }
}

/// Lets a session end, and waits for it for a while.
pub async fn close(link: &mut Link, reason: &str) {
    let id = RequestId(u64::MAX);
    let command = Command::Close { reason: reason.to_owned() };
    if link.commands.send(Request { id, command }).await.is_err() {
        return;
    }
    let ended = async {
        while let Some(event) = link.events.next().await {
            if matches!(&event.event, Event::Replied { request, .. } if *request == id) {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(GOODBYE, ended).await;
}

async fn sleep_until(moment: Option<Instant>) {
    if let Some(moment) = moment {
        tokio::time::sleep_until(moment).await;
    }
}
