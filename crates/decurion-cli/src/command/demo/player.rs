//! Who plays the demo: presses the keys that a person would, says what is shown, and leaves when a person wants that. Takes
//! what is typed at the terminal and what happens in the session; gives keys and captions to the screen.
//!
//! The screen knows of no demo, and the session of no player: its keys go the way of all keys.

use std::sync::Arc;
use std::time::Duration;

use decurion_model::pace::Pace;
use decurion_protocol::link::BoxStream;
use decurion_protocol::{Envelope, SessionView};
use decurion_tui::app::{AppInput, Caption};
use decurion_tui::event::{Event as Happening, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use decurion_tui::{Between, OutsideSignal};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::stage::PROMPT;

/// The speed-up once a key is pressed.
const FAST: u32 = 10;
/// The pause between two letters.
const LETTER: Duration = Duration::from_millis(28);
/// How long a caption stands before what it announces.
const SHORT: Duration = Duration::from_millis(1_000);
/// The same for what takes a little longer to read.
const MEDIUM: Duration = Duration::from_millis(1_500);
/// The same for what takes longer still.
const LONG: Duration = Duration::from_millis(2_200);
/// After this long a key that changed nothing is pressed again: the screen may not have been ready for it.
const AGAIN: Duration = Duration::from_millis(300);
/// How long nothing may happen at the end, at any speed: what has just ended may wake the agent.
const QUIET: Duration = Duration::from_millis(400);

const KEYS: &str = "any key: faster · esc: leave";
const FAST_KEYS: &str = "esc: leave";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    Out,
    Left,
}

pub struct Player {
    typed: mpsc::Receiver<Happening>,
    given: mpsc::Sender<AppInput>,
    /// Where a wish to leave goes.
    signals: mpsc::Sender<OutsideSignal>,
    events: BoxStream<'static, Arc<Envelope>>,
    view: SessionView,
    /// Whether the agent has begun to work.
    began: bool,
    pace: Pace,
    /// Whether a key was pressed.
    is_fast: bool,
}

impl Player {
    /// One who hears these events, and what stands between the terminal and the screen then.
    pub fn new(
        events: BoxStream<'static, Arc<Envelope>>,
        signals: mpsc::Sender<OutsideSignal>,
        pace: Pace,
    ) -> (Self, Between) {
        let (to_player, typed) = mpsc::channel(64);
        let (given, to_screen) = mpsc::channel(64);
        let player = Self {
            typed,
            given,
            signals,
            events,
            view: SessionView::default(),
            began: false,
            pace,
            is_fast: false,
        };
        (player, Between { typed: to_player, given: to_screen })
    }

    pub async fn play(mut self) -> Played {
        if self.act().await.is_some() {
            return Played::Out;
        }
        // Running work is stopped then, without a question.
        let _ = self.signals.try_send(OutsideSignal::Terminate);
        Played::Left
    }

    /// Everything in its order; none once a person wants to leave.
    async fn act(&mut self) -> Option<()> {
        self.say("A real session in a real repository; only the model is a script").await?;
        self.rest(LONG).await?;
        self.say("You say what you want").await?;
        for letter in PROMPT.chars() {
            self.press(KeyCode::Char(letter), KeyModifiers::NONE).await?;
            self.rest(LETTER).await?;
        }
        self.rest(SHORT).await?;
        self.press(KeyCode::Enter, KeyModifiers::NONE).await?;
        self.until(|view| view.tasks().iter().filter(|task| task.is_agent()).count() >= 3).await?;
        self.say("Three agents look around in parallel").await?;
        self.until(|view| !view.questions.is_empty()).await?;
        self.answer().await?;
        self.until(is_slow).await?;
        self.send_to_background().await?;
        self.until(|view| view.tasks().iter().any(is_fork)).await?;
        self.say("A fork, a copy of the agent, writes the commit message").await?;
        self.until(|view| view.tasks().iter().any(|task| is_fork(task) && task.state.is_ended())).await?;
        self.say("The fork has reported; the slow test still runs").await?;
        self.finish().await
    }

    /// Shows the question, and what is answered.
    async fn answer(&mut self) -> Option<()> {
        if self.view.questions.is_empty() {
            return Some(());
        }
        self.say("Decurion asks before it changes a file").await?;
        self.rest(LONG).await?;
        self.say("The demo answers: Yes").await?;
        self.rest(SHORT).await?;
        while !self.view.questions.is_empty() {
            self.press(KeyCode::Enter, KeyModifiers::NONE).await?;
            self.until_within(AGAIN, |view| view.questions.is_empty()).await?;
        }
        self.say("Yes: the agent may make this one change").await
    }

    /// Shows that a slow command need not be waited for.
    async fn send_to_background(&mut self) -> Option<()> {
        if !is_slow(&self.view) {
            return Some(());
        }
        self.say("The agent waits for the slow test").await?;
        self.rest(MEDIUM).await?;
        self.say("The demo presses ctrl+b: the test moves to the background").await?;
        self.rest(SHORT).await?;
        while is_slow(&self.view) {
            self.press(KeyCode::Char('b'), KeyModifiers::CONTROL).await?;
            self.until_within(AGAIN, |view| !is_slow(view)).await?;
        }
        Some(())
    }

    /// Waits for the end of all work, and leaves.
    async fn finish(&mut self) -> Option<()> {
        self.until(|view| view.tasks().iter().all(|task| task.state.is_ended())).await?;
        self.say("Finished background work wakes the agent").await?;
        loop {
            self.until(|view| !view.questions.is_empty()).await?;
            self.answer().await?;
            self.until_within(QUIET, |view| !view.is_over()).await?;
            if self.is_over() {
                break;
            }
        }
        self.say("Done: the test passes, and every step was recorded").await?;
        self.rest(LONG).await?;
        self.press(KeyCode::Char('d'), KeyModifiers::CONTROL).await
    }

    /// Whether the agent has started and no agent works any more.
    fn is_over(&self) -> bool {
        self.began && self.view.is_over()
    }

    async fn say(&mut self, words: &str) -> Option<()> {
        let keys = if self.is_fast { FAST_KEYS } else { KEYS };
        let caption = Caption { words: words.to_owned(), keys: keys.to_owned() };
        self.given.send(AppInput::Caption(caption)).await.ok()
    }

    async fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Option<()> {
        self.given.send(AppInput::Key(KeyEvent::new(code, modifiers))).await.ok()
    }

    /// Waits so long, at the pace of the demo.
    async fn rest(&mut self, time: Duration) -> Option<()> {
        let pace = self.pace.clone();
        let wait = pace.wait(time);
        tokio::pin!(wait);
        loop {
            tokio::select! {
                () = &mut wait => return Some(()),
                heard = self.hear() => heard?,
            }
        }
    }

    /// Waits until the session is in this state, or no agent works any more.
    async fn until(&mut self, is_so: impl Fn(&SessionView) -> bool) -> Option<()> {
        while !is_so(&self.view) && !self.is_over() {
            self.hear().await?;
        }
        Some(())
    }

    /// The same for so long at most, at any pace.
    async fn until_within(&mut self, time: Duration, is_so: impl Fn(&SessionView) -> bool) -> Option<()> {
        let wait = tokio::time::sleep(time);
        tokio::pin!(wait);
        while !is_so(&self.view) {
            tokio::select! {
                () = &mut wait => break,
                heard = self.hear() => heard?,
            }
        }
        Some(())
    }

    /// Takes what a person types or what happens in the session; none once it is time to leave.
    async fn hear(&mut self) -> Option<()> {
        tokio::select! {
            happening = self.typed.recv() => match happening? {
                Happening::Key(key) if key.kind == KeyEventKind::Release => {}
                Happening::Key(key) if leaves(&key) => return None,
                Happening::Key(key) if suspends(&key) => {
                    let _ = self.given.try_send(AppInput::Key(key));
                }
                Happening::Key(_) | Happening::Paste(_) => {
                    self.is_fast = true;
                    self.pace.set(FAST);
                }
                _ => {}
            },
            event = self.events.next() => {
                self.view.take(&*event?);
                self.began |= self.view.at_work;
            }
        }
        Some(())
    }
}

fn leaves(key: &KeyEvent) -> bool {
    key.code == KeyCode::Esc
        || key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd'))
}

/// The one key that is a person's own also here.
fn suspends(key: &KeyEvent) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('z')
}

fn is_slow(view: &SessionView) -> bool {
    view.root.calls().any(|title| title.contains("slow"))
}

fn is_fork(task: &decurion_protocol::view::TaskView) -> bool {
    task.record.agent_type.as_deref() == Some("fork")
}
