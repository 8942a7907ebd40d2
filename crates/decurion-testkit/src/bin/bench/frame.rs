//! What the terminal costs. Takes a screen with a thousand agents and ten thousand messages, and the real program at rest
//! in a terminal; gives the CPU and the allocations of one frame, and how often the program at rest woke up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use decurion_protocol::{Envelope, Event, Intent, RunId};
use decurion_testkit::faults::Options;
use decurion_testkit::faults::terminal::Session;
use decurion_testkit::sys::{allocations, thread_cpu};
use decurion_tui::app::{App, AppInput};
use decurion_tui::history::History;
use decurion_tui::keymap::Keymap;
use decurion_tui::screen::TerminalScreen;
use decurion_tui::theme::{Shades, Theme};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

const AGENTS: usize = 1_000;
const MESSAGES: usize = 10_000;
/// How often each kind of frame is drawn.
const FRAMES: usize = 500;
/// What one frame may cost.
const GOAL: Duration = Duration::from_millis(4);
const SIZE: (u16, u16) = (120, 40);
/// How long the program rests while its wake-ups are counted.
const MINUTE: Duration = Duration::from_secs(60);

pub fn run(programs: &Path) -> Result<bool> {
    let mut met = frames()?;
    met &= idle(programs)?;
    Ok(met)
}

/// What is drawn, and onto what.
struct Stage {
    app: App,
    screen: TerminalScreen<Vec<u8>>,
    seq: u64,
}

/// What one kind of frame took.
struct Taken {
    mean: Duration,
    worst: Duration,
    allocations: u64,
}

fn frames() -> Result<bool> {
    let mut stage = Stage::new();
    let begun = thread_cpu();
    stage.fill()?;
    println!(
        "{AGENTS} agents and {MESSAGES} messages at {}×{}, taken in {:.0} ms",
        SIZE.0,
        SIZE.1,
        millis(thread_cpu().saturating_sub(begun))
    );
    let agent = |nth: usize| format!("a{:016x}", nth % AGENTS);
    let mut met = true;
    let mut show = |what: &str, taken: &Taken| {
        let holds = taken.mean <= GOAL;
        met &= holds;
        println!(
            "{what:<46} {:>8.3} ms CPU (worst {:.3}), {:>6} allocations  goal ≤ {} ms  {}",
            millis(taken.mean),
            millis(taken.worst),
            taken.allocations,
            GOAL.as_millis(),
            if holds { "met" } else { "MISSED" }
        );
    };
    show("a piece of an answer", &stage.measure(Stage::say)?);
    show("a call of an agent", &stage.measure(|stage, nth| {
        let call = json!({"type": "call_started", "call": format!("k{nth}"), "tool": "Bash", "intent": Intent::titled("$ make"),
            "decision": {"decision": "allow", "rule": null, "reason": "r"}});
        stage.take(Some(&agent(nth)), call)
    })?);
    show(
        "a key",
        &stage.measure(|stage, nth| {
            stage.app.update(AppInput::Key(key(if nth % 60 == 59 {
                KeyCode::Backspace
            } else {
                KeyCode::Char('x')
            })));
            Ok(())
        })?,
    );
    show("a whole answer, which goes above", &stage.measure(Stage::answer)?);
    stage.app.update(AppInput::Key(KeyEvent::new(KeyCode::Char('t'), KeyModifiers::CONTROL)));
    show("a call of an agent, the whole tree open", &stage.measure(|stage, nth| {
        let progress = json!({"type": "waiting", "reason": if nth % 2 == 0 { json!({"reason": "model"}) } else { Value::Null }});
        stage.take(Some(&agent(nth)), progress)
    })?);
    stage.app.update(AppInput::Key(key(KeyCode::Esc)));
    stage.echo()?;
    println!("{:<46} in the very next frame", "a key that was typed");
    let begun = thread_cpu();
    let lines = stage.app.all_finished(2_000);
    println!(
        "{:<46} {:>8.3} ms CPU for {} lines",
        "everything again, after a resize",
        millis(thread_cpu().saturating_sub(begun)),
        lines.len()
    );
    Ok(met)
}

impl Stage {
    fn new() -> Self {
        let app = App::new(Theme::new(Shades::Dark), Keymap::default(), History::default(), SIZE);
        Self { app, screen: TerminalScreen::new(Vec::new(), SIZE), seq: 0 }
    }

    /// A thousand agents at work in a tree, and ten thousand messages.
    fn fill(&mut self) -> Result<()> {
        for nth in 0..AGENTS {
            let parent = (nth % 10 != 0).then(|| format!("a{:016x}", nth - nth % 10));
            let record = json!({
                "task": format!("a{nth:016x}"), "kind": "local_agent", "description": format!("part {nth} of the work"),
                "prompt": "p", "parent": parent, "depth": 1, "attention": "background", "output_file": "/x",
                "agent_type": "general-purpose",
            });
            self.take(None, json!({"type": "task_opened", "record": record}))?;
        }
        for nth in 0..MESSAGES {
            self.answer(nth)?;
        }
        self.draw()
    }

    fn take(&mut self, agent: Option<&str>, event: Value) -> Result<()> {
        let event: Event = serde_json::from_value(event)?;
        ensure!(!matches!(event, Event::Unknown(_)), "not an event: {event:?}");
        let agent = agent.map(str::parse).transpose().context("an id")?;
        self.seq += 1;
        let at = Timestamp::from_second(i64::try_from(self.seq)?)?;
        let envelope = Envelope { seq: self.seq, at, agent, run: RunId(Uuid::nil()), event };
        self.app.update(AppInput::Event(Arc::new(envelope)));
        Ok(())
    }

    /// A prompt or an answer, whole.
    fn answer(&mut self, nth: usize) -> Result<()> {
        let line = Uuid::from_u128(nth as u128 + 1);
        let (role, origin) = if nth.is_multiple_of(2) { ("user", "prompt") } else { ("assistant", "model") };
        let text = format!("Message {nth} has **some** text, `code` in it, and a list:\n\n- one\n- two\n");
        let message = json!({"role": role, "content": [{"type": "text", "text": text}]});
        self.take(None, json!({"type": "message", "message": message, "lines": [line], "parent": null, "meta": {"origin": origin}}))
    }

    /// A piece of an answer that is coming.
    fn say(&mut self, nth: usize) -> Result<()> {
        let text = if nth % 20 == 19 { ".\n\n" } else { " and some more words" };
        self.take(None, json!({"type": "delta", "delta": {"delta": "text", "index": 0, "text": text}}))
    }

    fn draw(&mut self) -> Result<()> {
        let now = Timestamp::from_second(i64::try_from(self.seq)?)?;
        let finished = self.app.finished();
        let (live, cursor) = self.app.live(now);
        self.screen.draw(&finished, &live, cursor)?;
        Ok(())
    }

    fn measure(&mut self, mut happens: impl FnMut(&mut Self, usize) -> Result<()>) -> Result<Taken> {
        let (mut sum, mut worst) = (Duration::ZERO, Duration::ZERO);
        let before = allocations();
        for nth in 0..FRAMES {
            let begun = thread_cpu();
            happens(self, nth)?;
            self.draw()?;
            let took = thread_cpu().saturating_sub(begun);
            (sum, worst) = (sum + took, worst.max(took));
        }
        let frames = u32::try_from(FRAMES)?;
        Ok(Taken { mean: sum / frames, worst, allocations: (allocations() - before) / u64::from(frames) })
    }

    /// That a letter is on the screen in the frame after it was typed.
    fn echo(&mut self) -> Result<()> {
        for letter in "wxyz日".chars() {
            self.app.update(AppInput::Key(key(KeyCode::Char(letter))));
            let (live, _) = self.app.live(Timestamp::UNIX_EPOCH);
            let shown: Vec<String> = live.iter().map(ToString::to_string).collect();
            ensure!(
                shown.iter().any(|line| line.ends_with(letter)),
                "{letter} is not in the next frame: {shown:#?}"
            );
            self.draw()?;
        }
        Ok(())
    }
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The real program, with a conversation behind it and nothing to do.
fn idle(programs: &Path) -> Result<bool> {
    let options = Options::new(programs);
    let script = |_: &Path| "when\n  say \"That is all.\"\n".to_owned();
    let mut session = Session::start(&options, script).map_err(anyhow::Error::msg)?;
    session.say("hello").map_err(anyhow::Error::msg)?;
    session.pty.wait_for("That is all.", MINUTE).map_err(anyhow::Error::msg)?;
    // What comes after an answer is over soon.
    session.pty.rest(Duration::from_secs(5))?;
    session.pty.forget();
    let before = wakes(&session.stand.processes());
    session.pty.rest(MINUTE)?;
    let after = wakes(&session.stand.processes());
    let mut woken = 0;
    for (who, count) in &after {
        let earlier = before.iter().find(|(known, _)| known == who).map_or(0, |(_, count)| *count);
        if *count > earlier {
            println!("    {who}: {}", count - earlier);
        }
        woken += count - earlier;
    }
    let written = session.pty.written().len();
    let holds = woken == 0 && written == 0;
    println!(
        "{:<46} {woken} wake-ups and {written} bytes in {} s, of {} threads  goal 0  {}",
        "at rest in a terminal",
        MINUTE.as_secs(),
        after.len(),
        if holds { "met" } else { "MISSED" }
    );
    session.leave().map_err(anyhow::Error::msg)?;
    Ok(holds)
}

/// How often each thread of these processes went to sleep by itself: once for each time that it woke up.
fn wakes(processes: &[i32]) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for pid in processes {
        for entry in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let count = field("voluntary_ctxt_switches:").and_then(|count| count.parse().ok()).unwrap_or(0);
            let name = field("Name:").unwrap_or("?");
            all.push((format!("{pid}/{} {name}", entry.file_name().to_string_lossy()), count));
        }
    }
    all
}
