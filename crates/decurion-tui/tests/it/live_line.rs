//! What the live line costs while work goes on: how often it changes, and how many bytes that takes. The time is counted, not
//! waited for.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use decurion_tui::app::App;
use decurion_tui::screen::TerminalScreen;
use decurion_tui::theme::Shades;
use jiff::Timestamp;
use ratatui_core::text::Line;
use serde_json::{Value, json};

use crate::screens::{app_in, happen, said};

/// The terminal of the budget: 120 columns, with colours.
const SIZE: (u16, u16) = (120, 30);
/// How long a frame is shown at least while pieces of a reply come.
const FRAME: Duration = Duration::from_millis(33);
/// How long is looked.
const LOOK: Duration = Duration::from_secs(60);

fn delta(delta: &Value) -> (Option<&'static str>, Value) {
    (None, json!({"type": "delta", "delta": delta}))
}

/// A session whose main agent works.
fn at_work() -> App {
    let mut app = app_in(Shades::Dark, &[said("user", "prompt", &json!("peel"))], SIZE);
    app.known.model = Some("anthropic/claude-sonnet-5-5".to_owned());
    app.view.at_work = true;
    app.view.root.began = Some(Timestamp::UNIX_EPOCH);
    app.view.root.ended = None;
    app
}

fn moment(after: Duration) -> Timestamp {
    // Not where a second begins.
    Timestamp::from_millisecond(1_130 + i64::try_from(after.as_millis()).unwrap()).unwrap()
}

/// A terminal that counts what is written to it.
#[derive(Clone, Default)]
struct Counted(Rc<Cell<usize>>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.set(self.0.get() + bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Draws what is to be seen at this moment; gives how many bytes that took.
fn draw(app: &mut App, screen: &mut TerminalScreen<Counted>, count: &Counted, after: Duration) -> usize {
    count.0.set(0);
    let finished = app.finished();
    let (live, cursor) = app.live(moment(after));
    screen.draw(&finished, &live, cursor).unwrap();
    count.0.get()
}

#[test]
fn a_silent_provider_costs_at_most_four_updates_a_second_of_200_bytes() {
    let (mut app, count) = (at_work(), Counted::default());
    let mut screen = TerminalScreen::new(count.clone(), SIZE);
    let (mut after, mut updates) = (Duration::ZERO, Vec::new());
    draw(&mut app, &mut screen, &count, after);
    let cursor = draw(&mut app, &mut screen, &count, after);
    while after < LOOK {
        after += app.pace().expect("it works");
        // What only puts the cursor where it is changes nothing that is seen.
        updates.extend(Some(draw(&mut app, &mut screen, &count, after)).filter(|bytes| *bytes > cursor));
    }
    let (most, longest) = (updates.len() as u64, updates.iter().max().copied().unwrap_or_default());
    assert!(most > LOOK.as_secs(), "nothing moves: {most} updates");
    assert!(most <= 4 * LOOK.as_secs(), "{most} updates in {LOOK:?}");
    assert!(longest <= 200, "{longest} bytes");
}

#[test]
fn nothing_is_drawn_while_nobody_works() {
    let (mut app, count) = (at_work(), Counted::default());
    app.view.at_work = false;
    app.view.root.ended = Some(Timestamp::UNIX_EPOCH);
    assert_eq!(app.pace(), None);
    let mut screen = TerminalScreen::new(count.clone(), SIZE);
    draw(&mut app, &mut screen, &count, Duration::ZERO);
    let before = draw(&mut app, &mut screen, &count, Duration::ZERO);
    assert_eq!(draw(&mut app, &mut screen, &count, LOOK), before, "time alone changes nothing");
}

#[test]
fn the_live_line_changes_no_more_often_while_a_reply_streams() {
    let mut app = at_work();
    let started = json!({"delta": "started", "message_id": "m", "model": "m", "usage": {}});
    happen(&mut app, 1, &delta(&started));
    let (mut after, mut changes, mut before) = (Duration::ZERO, 0_u64, String::new());
    while after < LOOK {
        // Some 600 tokens a second.
        happen(&mut app, 1, &delta(&json!({"delta": "text", "index": 0, "text": "pomegranate ".repeat(7)})));
        after += FRAME;
        let lines: Vec<Line<'static>> = app.live(moment(after)).0;
        let line = lines.iter().map(ToString::to_string).find(|line| line.contains("esc to interrupt"));
        let line = line.expect("no live line");
        changes += u64::from(line != before);
        before = line;
    }
    assert!(before.contains("k tok"), "{before}");
    assert!((LOOK.as_secs()..=4 * LOOK.as_secs() + 1).contains(&changes), "{changes} changes in {LOOK:?}");
}
