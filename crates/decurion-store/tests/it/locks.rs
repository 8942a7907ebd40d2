//! One writer at a time, whoever else wants to be.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use decurion_store::{Journal, OpenError, ReplayOptions, SessionWriter};

use crate::samples::{Home, date, envelope, info, opened, prompt, recorded};

fn open(home: &Home) -> Result<SessionWriter, OpenError> {
    let paths = home.paths(1);
    SessionWriter::resume(&paths, &info(1), date(0), &ReplayOptions::default(), &mut drop)
        .map(|opened| opened.0)
}

#[test]
fn the_second_is_told_who_holds_the_session() {
    let (home, _) = recorded(1);
    let first = open(&home).unwrap();
    let Err(OpenError::Held { session, holder }) = open(&home) else { panic!("two writers") };
    assert_eq!(session, info(1).session);
    assert_eq!(holder.pid, std::process::id());
    assert!(!holder.host.is_empty());
    assert_eq!(holder.since, Some(date(0)));
    let words = format!("process {} on {} since 2026-11-15T06:35:22Z", holder.pid, holder.host);
    assert_eq!(holder.to_string(), words);
    // Reading is free.
    assert_eq!(home.read(1).0.len(), 5);
    drop(first);
    open(&home).unwrap();
}

#[test]
fn a_note_that_says_nothing_is_no_obstacle() {
    let (home, _) = recorded(1);
    for note in ["", "garbage", &"x".repeat(10_000)] {
        std::fs::write(home.paths(1).lock(), note).unwrap();
        let first = open(&home).unwrap();
        std::fs::write(home.paths(1).lock(), note).unwrap();
        let Err(OpenError::Held { holder, .. }) = open(&home) else { panic!("two writers") };
        assert_eq!(holder.to_string(), "another process");
        drop(first);
    }
}

#[test]
fn a_session_is_created_once() {
    let home = Home::new();
    let first = home.create(1);
    let again = SessionWriter::create(&home.paths(1), &info(1), date(0));
    assert!(matches!(again, Err(OpenError::Exists(_))));
    drop(first);
    let again = SessionWriter::create(&home.paths(1), &info(1), date(0));
    assert!(matches!(again, Err(OpenError::Exists(_))));
    let other =
        SessionWriter::resume(&home.paths(2), &info(2), date(0), &ReplayOptions::default(), &mut drop);
    assert!(matches!(other, Err(OpenError::Missing(_))));
    assert!(!home.paths(2).folder().exists(), "asking leaves nothing behind");
}

/// Opens and appends as often as it can get in; gives how often that was.
fn race(home: &Home, rounds: usize) -> u64 {
    let mut opened = 0;
    for _ in 0..rounds {
        match open(home) {
            Ok(mut writer) => {
                let seq = writer.last_seq();
                writer
                    .append(&[envelope(seq + 1, prompt(1, "a")), envelope(seq + 2, prompt(2, "b"))])
                    .unwrap();
                opened += 1;
            }
            Err(OpenError::Held { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    opened
}

fn check_no_mixture(home: &Home, opened: u64) {
    let (events, report) = home.read(1);
    assert!(report.is_clean(), "{report:?}");
    let seqs: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=1 + 2 * opened).collect::<Vec<_>>());
}

#[test]
fn a_thousand_races_of_threads_mix_nothing() {
    let home = Home::new();
    home.create(1).append(&[envelope(1, opened(1))]).unwrap();
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| count.fetch_add(race(&home, 130), Ordering::Relaxed));
        }
    });
    assert!(count.load(Ordering::Relaxed) > 0);
    check_no_mixture(&home, count.load(Ordering::Relaxed));
}

const RACE_HOME: &str = "DECURION_TEST_RACE_HOME";

/// Not a test of its own: the other processes of the next one run it.
#[test]
#[ignore = "run by the race of processes"]
fn racer() {
    #[allow(clippy::disallowed_methods)]
    let Ok(home) = std::env::var(RACE_HOME) else { return };
    let paths = decurion_store::Layout::new(home).session(&info(1).cwd, info(1).session);
    let mut opened = 0u64;
    for _ in 0..25 {
        let writer = SessionWriter::resume(&paths, &info(1), date(0), &ReplayOptions::default(), &mut drop);
        let Ok((mut writer, _)) = writer else { continue };
        let seq = writer.last_seq();
        writer.append(&[envelope(seq + 1, prompt(1, "a")), envelope(seq + 2, prompt(2, "b"))]).unwrap();
        opened += 1;
    }
    println!("opened={opened};");
    // Gone without a goodbye, as a killed process would be.
    std::process::abort();
}

#[test]
#[allow(clippy::disallowed_methods)]
fn a_race_of_processes_mixes_nothing_and_the_dead_hold_nothing() {
    let home = Home::new();
    home.create(1).append(&[envelope(1, opened(1))]).unwrap();
    let program = std::env::current_exe().unwrap();
    let children: Vec<_> = (0..8)
        .map(|_| {
            Command::new(&program)
                .args(["--ignored", "--exact", "locks::racer", "--nocapture"])
                .env(RACE_HOME, home.state())
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut count = 0;
    for child in children {
        let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let number = output.split("opened=").nth(1).and_then(|rest| rest.split(';').next());
        count += number.expect("a count").parse::<u64>().unwrap();
    }
    assert!(count > 0);
    open(&home).unwrap();
    check_no_mixture(&home, count);
}
