//! Records that are too long for a line.

use decurion_protocol::Event;
use decurion_store::Journal;
use serde_json::json;

use crate::samples::{Home, call_ended, envelope, opened, prompt, read};

fn large(letter: &str) -> String {
    format!("{}\n\"é\"", letter.repeat(3 << 20))
}

#[test]
fn large_strings_are_kept_beside_the_line_and_come_back() {
    let home = Home::new();
    let output = decurion_protocol::ToolOutput::text(large("a"))
        .with_structured(json!({"stdout": large("a"), "other": large("b"), "n": 1.1}));
    let events = [
        envelope(1, opened(1)),
        envelope(2, prompt(1, &large("c"))),
        envelope(3, call_ended("x", 3, output)),
        envelope(4, Event::Notice { level: "info".into(), text: large("d") }),
        envelope(5, prompt(4, "small")),
    ];
    let mut writer = home.create(1);
    writer.append(&events).unwrap();
    writer.sync().unwrap();
    assert!(home.transcript(1).len() < 5000);
    // The same string twice is one file.
    let blobs = home.paths(1).folder().join("blobs");
    let names: Vec<_> = std::fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 4);
    let (read_back, report) = home.read(1);
    assert!(read_back == events, "large contents differ");
    assert!(report.is_clean());

    // A blob that was changed or is gone is said to be lost, and the record is still there.
    std::fs::write(&names[0], "changed").unwrap();
    std::fs::remove_file(&names[1]).unwrap();
    let (read_back, report) = home.read(1);
    assert_eq!(read_back.len(), 5);
    assert!((2..=3).contains(&report.missing_blobs), "{report:?}");
    assert!(!report.is_clean());
    drop(writer);
    assert_eq!(home.resume(1).2.len(), 5);
}

#[test]
fn a_reference_that_someone_wrote_is_content() {
    let home = Home::new();
    let secret = large("s");
    let mut writer = home.create(1);
    writer.append(&[envelope(1, prompt(1, &secret))]).unwrap();
    let blobs = home.paths(1).folder().join("blobs");
    let name = std::fs::read_dir(blobs).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let forged = json!({"$blob": name, "bytes": 1});
    let output = decurion_protocol::ToolOutput::text("x").with_structured(forged.clone());
    let mut big = output.clone();
    big.content = large("z").into();
    let events = [envelope(2, call_ended("x", 3, output)), envelope(3, call_ended("y", 4, big))];
    writer.append(&events).unwrap();
    let (read, _) = read(&home.paths(1), decurion_store::Scope::Session);
    assert!(read[1..] == events);
}

#[test]
fn a_record_of_many_small_strings_stays_whole() {
    let home = Home::new();
    let many: Vec<String> = (0..200_000).map(|number| format!("line {number}")).collect();
    let output = decurion_protocol::ToolOutput::text("x").with_structured(json!(many));
    let event = envelope(1, call_ended("x", 3, output));
    home.create(1).append(std::slice::from_ref(&event)).unwrap();
    let (read, report) = home.read(1);
    assert!(read == [event]);
    assert!(report.is_clean());
}
