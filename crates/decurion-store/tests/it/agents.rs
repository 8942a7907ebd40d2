//! Which file an event goes to, and what holds when there are many files.

use decurion_protocol::{Envelope, Event, Outcome, TaskState};
use decurion_store::{Archive, Journal, ReplayOptions, Scope};

use crate::samples::{Home, agent, envelope, opened, prompt, read};

fn of(name: &str, seq: u64, event: Event) -> Envelope {
    Envelope { agent: Some(agent(name)), ..envelope(seq, event) }
}

fn ended(name: &str) -> Event {
    let outcome = Outcome::Completed { report: "done".into(), limit: None };
    Event::TaskChanged { task: agent(name).into(), state: TaskState::Ended(outcome) }
}

#[test]
fn a_conversation_goes_to_its_agents_file_and_everything_else_to_the_sessions() {
    let home = Home::new();
    let mut writer = home.create(1);
    let events = [
        envelope(1, opened(1)),
        of("a1", 2, prompt(1, "look")),
        of("a1", 3, ended("a1")),
        of("a2", 4, prompt(2, "look too")),
        envelope(5, prompt(3, "root")),
        of("a1", 6, prompt(4, "more")),
    ];
    writer.append(&events).unwrap();
    let seqs = |scope| read(&home.paths(1), scope).0.iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!(seqs(Scope::Session), [1, 3, 5]);
    assert_eq!(seqs(Scope::Agent(agent("a1"))), [2, 6]);
    assert_eq!(seqs(Scope::Agent(agent("a2"))), [4]);
    assert_eq!(home.read(1).0, events);
    let archive = Archive::new(home.state());
    assert_eq!(archive.agents(&home.paths(1)).unwrap(), [agent("a1"), agent("a2")]);
    assert_eq!(archive.since(&home.paths(1), 3).unwrap(), events[3..]);
    let missing = decurion_store::replay(
        &home.paths(1),
        &ReplayOptions { scope: Scope::Agent(agent("a3")), ..ReplayOptions::default() },
        &mut drop,
    );
    assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_crash_between_the_files_is_seen_in_the_numbers() {
    let home = Home::new();
    home.create(1)
        .append(&[envelope(1, opened(1)), of("a1", 2, prompt(1, "x")), of("a1", 3, ended("a1"))])
        .unwrap();
    // The session's record of the ending never made it.
    let bytes = home.transcript(1);
    let first = crate::samples::line_spans(&bytes)[0].end;
    std::fs::write(home.paths(1).transcript(), &bytes[..first]).unwrap();
    let (mut writer, report, events) = home.resume(1);
    assert_eq!(events.len(), 1);
    assert_eq!((report.last_seq, writer.last_seq()), (2, 2));
    writer.append(&[of("a1", 3, prompt(2, "y"))]).unwrap();
    let (events, report) = home.read(1);
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(report.is_clean());
}

#[test]
fn a_torn_agents_file_is_mended_when_the_session_is_taken_up() {
    let home = Home::new();
    home.create(1).append(&[envelope(1, opened(1)), of("a1", 2, prompt(1, "x"))]).unwrap();
    let path = home.paths(1).agent(&agent("a1"));
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"{\"parentUuid\":nu"].concat()).unwrap();
    let (mut writer, report, _) = home.resume(1);
    assert_eq!(report.torn_bytes, 16);
    assert!(report.torn_moved);
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    assert_eq!(std::fs::read(path.with_extension("torn")).unwrap(), b"{\"parentUuid\":nu\n");
    writer.append(&[of("a1", 3, prompt(2, "y"))]).unwrap();
    let (events, report) = read(&home.paths(1), Scope::Agent(agent("a1")));
    assert_eq!(events.len(), 2);
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn more_agents_than_open_files() {
    let home = Home::new();
    let mut writer = home.create(1);
    let mut events = vec![envelope(1, opened(1))];
    for round in 0..3u128 {
        for number in 0..150u128 {
            let seq = events.len() as u64 + 1;
            events.push(of(&format!("a{number:x}"), seq, prompt(1000 * round + number + 1, "step")));
        }
    }
    for batch in events.chunks(7) {
        writer.append(batch).unwrap();
    }
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let open = targets.filter(|target| target.starts_with(home.path())).count();
    assert!((60..=72).contains(&open), "{open} files are open");
    writer.sync().unwrap();
    assert!(writer.begin_sync().unwrap().is_none());
    let (read, report) = home.read(1);
    assert_eq!(read, events);
    assert!(report.is_clean(), "{report:?}");
    drop(writer);
    assert_eq!(home.resume(1).0.last_seq(), 451);
}

#[test]
fn read_only_agent_transcript_keeps_its_history_and_is_named() {
    let home = Home::new();
    let mut writer = home.create(1);
    writer.append(&[envelope(1, opened(1)), of("a1", 2, prompt(1, "look"))]).unwrap();
    drop(writer);
    let path = home.paths(1).agent(&agent("a1"));
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    let (mut writer, report, _) = home.resume(1);
    let told = "replaced agent-a1.jsonl, which was read-only, by a copy".to_owned();
    // The superuser may write it as it is.
    let expected = Some(told).filter(|_| !rustix::process::geteuid().is_root());
    assert_eq!(report.problems(), expected);
    writer.append(&[of("a1", 3, prompt(2, "again"))]).unwrap();
    drop(writer);
    let (events, report) = read(&home.paths(1), Scope::Agent(agent("a1")));
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2, 3]);
    assert!(report.is_clean(), "{report:?}");
}

/// Puts something that is no file there.
type MakeBad = fn(&camino::Utf8Path);

#[test]
fn one_bad_file_of_an_agent_is_left_out_and_named() {
    let make_bad: [(&str, MakeBad); 3] = [
        ("a link", |path| std::os::unix::fs::symlink("/dev/null", path).unwrap()),
        ("a folder", |path| std::fs::create_dir(path).unwrap()),
        ("a pipe", |path| rustix::fs::mkfifoat(rustix::fs::CWD, path.as_std_path(), 0o600.into()).unwrap()),
    ];
    for (what, make_bad) in make_bad {
        let home = Home::new();
        let mut writer = home.create(1);
        let events = [
            envelope(1, opened(1)),
            of("a1", 2, prompt(1, "look")),
            of("a2", 3, prompt(2, "look too")),
            envelope(4, prompt(3, "root")),
        ];
        writer.append(&events).unwrap();
        drop(writer);
        let path = home.paths(1).agent(&agent("a1"));
        std::fs::rename(&path, path.with_extension("kept")).unwrap();
        make_bad(&path);
        let (read, report) = home.read(1);
        assert_eq!(read, [&events[..1], &events[2..]].concat(), "{what}");
        let told = report.problems().unwrap_or_default();
        assert!(told.starts_with("left out agent-a1.jsonl: "), "{what}: {told}");
        // The agent may go on: what has its name is put aside, not removed.
        let (mut writer, ..) = home.resume(1);
        writer.append(&[of("a1", 5, prompt(5, "again"))]).unwrap();
        drop(writer);
        assert_eq!(home.read(1).1.problems(), None, "{what}");
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap();
        let aside = |name: String| name.starts_with("agent-a1.jsonl.") && name.strip_suffix(".bad").is_some();
        let count =
            names.filter(|name| aside(name.as_ref().unwrap().file_name().into_string().unwrap())).count();
        assert_eq!(count, 1, "{what}");
    }
}
