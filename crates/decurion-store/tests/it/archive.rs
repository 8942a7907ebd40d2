//! Finding, listing, copying.

use decurion_protocol::event::{Event, MessageMeta, Origin};
use decurion_protocol::{Envelope, Message};
use decurion_store::{Archive, Found, Journal, Layout, OpenError, SessionWriter};

use crate::samples::{Home, date, envelope, info, line, prompt, recorded, run, session};

fn archive(home: &Home) -> Archive {
    Archive::new(home.state())
}

/// Records a session that was started in this directory and last written at this second.
fn record(home: &Home, number: u128, cwd: &str, text: &str, second: u64) {
    let mut info = info(number);
    info.cwd = cwd.into();
    let paths = Layout::new(home.state()).session(&info.cwd, info.session);
    let mut writer = SessionWriter::create(&paths, &info, date(0)).unwrap();
    let note = MessageMeta { origin: Origin::Note("context".into()), ..MessageMeta::default() };
    let note = Event::Message {
        message: Message::user("not this"),
        lines: vec![line(1)],
        parent: None,
        meta: Box::new(note),
    };
    let opened = Event::SessionOpened { info: Box::new(info) };
    let events = [envelope(1, opened), envelope(2, note), envelope(3, prompt(2, text))];
    writer.append(&events).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000 + second);
    let file = std::fs::File::options().append(true).open(paths.transcript()).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn sessions_are_listed_newest_first_and_by_their_directory() {
    let home = Home::new();
    record(&home, 1, "/work/a", "fix the\n  parser", 30);
    record(&home, 2, "/work/a", &"long ".repeat(100), 50);
    record(&home, 3, "/work/b", "b", 40);
    // The same folder name, another directory.
    record(&home, 4, "/work-a", "other", 60);
    let archive = archive(&home);
    let all = archive.list(None).unwrap();
    let numbers: Vec<_> = all.iter().map(|summary| summary.session).collect();
    assert_eq!(numbers, [4, 2, 3, 1].map(session));
    let of_a = archive.list(Some("/work/a".into())).unwrap();
    assert_eq!(of_a.iter().map(|summary| summary.session).collect::<Vec<_>>(), [2, 1].map(session));
    assert_eq!(of_a[1].title, "fix the parser");
    assert_eq!(of_a[1].cwd, "/work/a");
    assert_eq!(of_a[1].created, Some(date(1)));
    assert_eq!(of_a[1].modified.unwrap().as_second(), 1_800_000_030);
    assert_eq!(of_a[1].git_branch.as_deref(), Some("main"));
    assert_eq!(of_a[1].bytes, std::fs::metadata(&of_a[1].path).unwrap().len());
    assert_eq!(of_a[0].title.chars().count(), 120);
    assert_eq!(archive.latest("/work/a".into()).unwrap().unwrap().session, session(2));
    assert_eq!(archive.latest("/work-a".into()).unwrap().unwrap().session, session(4));
    assert!(archive.latest("/work/c".into()).unwrap().is_none());
}

#[test]
fn a_title_given_later_wins() {
    let home = Home::new();
    record(&home, 1, "/work/a", "first words", 1);
    let path = archive(&home).list(None).unwrap()[0].path.clone();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.extend(b"{\"type\":\"custom-title\",\"customTitle\":\"my title\"}\n");
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(archive(&home).list(None).unwrap()[0].title, "my title");
}

#[test]
fn there_is_no_index_to_lose_and_litter_is_no_session() {
    let home = Home::new();
    for number in 1..=20 {
        record(&home, number, "/work/a", "x", 1);
    }
    let project = home.state().join("projects/-work-a");
    for name in ["index.json", "notes.jsonl", "x.torn", ".tmp"] {
        std::fs::write(project.join(name), b"\0garbage\n{").unwrap();
    }
    std::fs::write(project.join(format!("{}.jsonl", session(99))), b"\0garbage\n{").unwrap();
    std::fs::write(home.state().join("projects/a-file"), b"").unwrap();
    std::fs::create_dir(project.join(format!("{}.jsonl", session(98)))).unwrap();
    assert_eq!(archive(&home).list(None).unwrap().len(), 20);
    // A damaged first line still leaves what the others say.
    let path = project.join(format!("{}.jsonl", session(1)));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(archive(&home).list(Some("/work/a".into())).unwrap().len(), 20);
}

#[test]
fn a_session_is_found_by_its_id_ours_first() {
    let home = Home::new();
    record(&home, 1, "/work/a", "x", 1);
    let foreign = home.path().join("foreign");
    let project = foreign.join("projects/-work-z");
    std::fs::create_dir_all(&project).unwrap();
    for number in [1, 2] {
        std::fs::write(project.join(format!("{}.jsonl", session(number))), "{}\n").unwrap();
    }
    let archive = archive(&home);
    let Some(Found::Ours(paths)) = archive.find(session(1), std::slice::from_ref(&foreign)) else { panic!() };
    assert_eq!(paths, Layout::new(home.state()).session("/work/a".into(), session(1)));
    let found = archive.find(session(2), std::slice::from_ref(&foreign));
    assert_eq!(found, Some(Found::Foreign(project.join(format!("{}.jsonl", session(2))))));
    assert_eq!(archive.find(session(2), &[]), None);
    assert_eq!(archive.find(session(3), &[foreign]), None);
}

fn is_said(envelope: &Envelope) -> bool {
    matches!(envelope.event, Event::Message { .. } | Event::CallEnded { .. } | Event::Compacted { .. })
}

#[test]
fn a_fork_is_a_session_of_its_own() {
    let (home, events) = recorded(200);
    let holder = home.resume(1).0;
    let mut info = info(2);
    info.cwd = "/elsewhere".into();
    info.forked_from = Some(session(1));
    let mut given = Vec::new();
    let mut keep = |envelope: Envelope| is_said(&envelope).then_some(envelope);
    let (mut writer, report) = archive(&home)
        .fork(&home.paths(1), &info, run(), date(9), &mut keep, &mut |event| given.push(event))
        .unwrap();
    assert!(report.is_clean());
    let conversation = events.iter().filter(|event| is_said(event));
    let expected: Vec<&Event> = conversation.map(|event| &event.event).collect();
    assert_eq!(given[1..].iter().map(|event| &event.event).collect::<Vec<_>>(), expected);
    assert_eq!(given.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=601).collect::<Vec<_>>());
    writer.append(&[envelope(602, prompt(9999, "another way"))]).unwrap();
    let paths = Layout::new(home.state()).session("/elsewhere".into(), session(2));
    assert_eq!(writer.paths(), &paths);
    let text = std::fs::read_to_string(paths.transcript()).unwrap();
    assert!(text.lines().next().unwrap().contains(&format!(r#""forked_from":"{}""#, session(1))));
    assert!(text.lines().skip(1).all(|line| line.contains(&format!(r#""sessionId":"{}""#, session(2)))));
    drop((holder, writer));
    assert_eq!(home.read(1).0, events, "the first is as it was");
}

#[test]
fn a_fork_of_nothing_leaves_nothing() {
    let home = Home::new();
    let error = archive(&home)
        .fork(&home.paths(1), &info(2), run(), date(0), &mut Some, &mut drop)
        .map(drop)
        .unwrap_err();
    assert!(matches!(error, OpenError::Missing(id) if id == session(1)), "{error}");
    assert!(!home.paths(2).transcript().exists());
}

#[test]
fn an_export_holds_everything() {
    let (home, events) = recorded(3);
    let mut out = Vec::new();
    archive(&home).export(&home.paths(1), &mut out).unwrap();
    let lines = out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let read: Vec<Envelope> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert_eq!(read, events);
    // A reader that goes away is an error, not a panic.
    let mut closed: &mut [u8] = &mut [];
    assert!(archive(&home).export(&home.paths(1), &mut closed).is_err());
}
