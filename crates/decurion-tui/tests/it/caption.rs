//! What the program around says about what is shown: below everything else, and never in place of a question.

use decurion_tui::app::{App, AppInput, Caption};
use serde_json::json;

use crate::screens::{app, asked};

fn caption(app: &mut App, words: &str, keys: &str) {
    app.update(AppInput::Caption(Caption { words: words.to_owned(), keys: keys.to_owned() }));
}

fn live(app: &App) -> Vec<String> {
    let lines = app.live(jiff::Timestamp::from_second(100).unwrap()).0;
    lines.iter().map(ToString::to_string).collect()
}

#[test]
fn stands_below_everything_until_the_next_one() {
    let mut app = app(&[], (40, 24));
    let before = live(&app);
    caption(&mut app, "one", "esc: leave");
    caption(&mut app, "two\u{1b}[2J", "esc: leave");
    let lines = live(&app);
    assert_eq!(lines[..before.len()], before);
    assert_eq!(lines[before.len()..], ["", "▶ two␛[2J                     esc: leave"]);
}

#[test]
fn keys_give_way_to_words_and_words_to_the_edge() {
    let mut app = app(&[], (20, 24));
    caption(&mut app, "twelve words", "esc: leave");
    assert_eq!(live(&app).pop().unwrap(), "▶ twelve words");
    caption(&mut app, "more than twenty columns", "esc");
    assert_eq!(live(&app).pop().unwrap(), "▶ more than twenty …");
}

#[test]
fn a_question_stays_whole_above_it() {
    let long: String = (0..40).map(|line| format!("echo {line}\n")).collect();
    let asked = asked(None, &[], "Bash", &json!({"command": long}), &[]);
    for rows in [10, 12, 14, 24] {
        let mut app = app(&asked, (60, rows));
        caption(&mut app, "now it asks", "");
        let lines = live(&app);
        let shown = lines.join("\n");
        assert!(lines.len() <= usize::from(rows), "{rows}: {shown}");
        assert!(shown.contains("1. Yes, this once") && shown.ends_with("▶ now it asks"), "{rows}: {shown}");
    }
}
