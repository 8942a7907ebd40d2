//! Files that the functions of an SDK leave among ours: copies of a session without the lines that are ours alone, and
//! lines about a session at the end of its file.

use std::fs;
use std::io::Write as _;

use decurion_protocol::{Envelope, Event, Role};
use decurion_store::{Archive, ImportContext, Journal as _, adopt};
use expect_test::expect;

use crate::samples::{Home, date, run, session};

/// A session of ours as `fork_session()` of the Python SDK copied it.
const FORKED: &str = include_str!("forked_by_sdk.jsonl");

fn context() -> ImportContext {
    ImportContext {
        session: None,
        cwd: "/fallback".into(),
        version: "0.1.0".into(),
        entrypoint: "cli".into(),
        run: run(),
        now: date(0),
    }
}

fn place(home: &Home, text: &str) {
    let paths = home.paths(5);
    fs::create_dir_all(paths.transcript().parent().unwrap()).unwrap();
    fs::write(paths.transcript(), text).unwrap();
}

fn told(events: &[Envelope]) -> String {
    let line = |envelope: &Envelope| match &envelope.event {
        Event::Message { message, .. } if message.role == Role::User => {
            format!("user {:?}\n", message.text())
        }
        Event::Message { message, .. } => format!("model {:?} {}\n", message.text(), message.blocks.len()),
        Event::CallEnded { tool, output, .. } => format!("{tool} {:?}\n", output.content.text()),
        Event::SessionOpened { info } => format!("opened in {}\n", info.cwd),
        other => format!("{other:?}\n"),
    };
    events.iter().map(line).collect()
}

fn title(home: &Home) -> String {
    let listed = Archive::new(home.state()).list(None).unwrap();
    listed.into_iter().find(|one| one.session == session(5)).unwrap().title
}

#[test]
fn a_session_that_an_sdk_forked_is_made_ours() {
    let home = Home::new();
    place(&home, FORKED);
    // What a process that died on its way left.
    let project = home.paths(5).transcript().parent().unwrap().to_owned();
    fs::write(project.join(format!(".{}.jsonl.adopted", session(5))), "half of").unwrap();
    assert!(adopt(&home.paths(5), &context()).unwrap());
    let (mut writer, report, events) = home.resume(5);
    assert_eq!(report.problems(), None);
    expect![[r#"
        opened in /project
        user "<environment>\nWorking directory: /project\nNot a git repository\nPlatform: linux, shell: bash\nDate: 2026-11-16\n</environment>"
        user "remember seven"
        model "" 1
        Bash "hi"
        model "noted" 1
        Unknown(Object {"type": String("custom-title"), "sessionId": String("5e550000-0000-0000-0000-000000000005"), "customTitle": String("remember seven (fork)"), "uuid": String("08907289-67d2-4c49-aadf-5dc24ae6e77a"), "timestamp": String("2026-11-16T04:50:16.574381Z")})
    "#]].assert_eq(&told(&events));
    assert_eq!(title(&home), "remember seven (fork)");
    assert_eq!(fs::read_to_string(home.paths(5).folder().join("foreign.jsonl")).unwrap(), FORKED);
    let hidden = fs::read_dir(&project)
        .unwrap()
        .filter(|one| one.as_ref().unwrap().file_name().as_encoded_bytes()[0] == b'.');
    assert_eq!(hidden.count(), 0);
    // It goes on like any other, and is not made ours twice.
    let event = Event::Notice { level: "info".into(), text: "on".into() };
    let on = Envelope { seq: report.last_seq + 1, at: date(0), agent: None, run: run(), event };
    writer.append(&[on]).unwrap();
    drop(writer);
    let before = home.transcript(5);
    assert!(!adopt(&home.paths(5), &context()).unwrap());
    assert_eq!(home.transcript(5), before);
    assert_eq!(home.read(5).0.len(), events.len() + 1);
}

#[test]
fn what_is_ours_or_nothing_stays_as_it_is() {
    let ours = r#"{"type":"decurion","v":1}"#;
    for text in [
        "",
        "no JSON\n",
        "{\"type\":\"custom-title\",\"customTitle\":\"x\"}\n",
        &format!("torn{FORKED}{ours}\n"),
    ] {
        let home = Home::new();
        place(&home, text);
        assert!(!adopt(&home.paths(5), &context()).unwrap(), "{text:?}");
        assert_eq!(home.transcript(5), text.as_bytes());
    }
}

#[test]
fn lines_about_a_session_are_no_damage() {
    let home = Home::new();
    place(&home, FORKED);
    assert!(adopt(&home.paths(5), &context()).unwrap());
    let mut file = fs::OpenOptions::new().append(true).open(home.paths(5).transcript()).unwrap();
    let id = session(5);
    writeln!(file, "{{\"type\":\"custom-title\",\"customTitle\":\"my title\",\"sessionId\":\"{id}\"}}")
        .unwrap();
    writeln!(file, "{{\"type\":\"tag\",\"tag\":\"mine\",\"sessionId\":\"{id}\"}}").unwrap();
    let before = home.transcript(5);
    let (_writer, report, _) = home.resume(5);
    assert_eq!(report.problems(), None);
    assert_eq!(home.transcript(5), before, "they are kept");
    assert_eq!(title(&home), "my title");
}
