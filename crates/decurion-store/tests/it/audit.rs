//! The audit log: what is appended comes back, a crash is told from tampering, and what cannot be written is counted.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{AuditEntry, AuditKind, SessionId};
use decurion_store::audit::{Anchor, AuditProblem, AuditReport, ProblemKind};
use decurion_store::{AuditFilter, AuditLog};
use jiff::Timestamp;

/// What somebody does to a log.
type Tampering<'a> = &'a dyn Fn(&State);

/// A state folder of its own.
struct State {
    folder: tempfile::TempDir,
}

impl State {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Utf8Path {
        Utf8Path::from_path(self.folder.path()).unwrap()
    }

    fn log(&self) -> AuditLog {
        AuditLog::open(self.path()).with_segments_of(2000)
    }

    /// Appends these entries in a process's life of its own.
    fn append(&self, numbers: std::ops::RangeInclusive<i64>) {
        let log = self.log();
        for number in numbers {
            assert_eq!(log.append(entry(number)), None);
        }
        log.close().unwrap();
    }

    fn verify(&self) -> AuditReport {
        self.log().verify(None).unwrap()
    }

    fn problem(&self) -> Option<ProblemKind> {
        self.verify().problem.map(|problem| problem.kind)
    }

    fn file(&self, name: &str) -> Utf8PathBuf {
        self.path().join("audit").join(name)
    }

    /// The names of the segments.
    fn segments(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path().join("audit"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.strip_suffix(".jsonl").is_some())
            .collect();
        names.sort();
        names
    }

    /// The numbers of the entries that can be read, and what the log says about itself.
    fn titles(&self, filter: &AuditFilter) -> Vec<String> {
        let mut titles = Vec::new();
        let title = |kind| match kind {
            AuditKind::Sandbox { title, .. } => title,
            AuditKind::Gap { count, .. } => format!("gap of {count}"),
            AuditKind::Damage { problem, .. } => format!("damage: {problem}"),
            other => other.name().to_owned(),
        };
        self.log().read(filter, &mut |recorded| titles.push(title(recorded.entry.kind))).unwrap();
        titles
    }
}

fn entry(number: i64) -> AuditEntry {
    AuditEntry {
        at: Timestamp::from_second(number).unwrap(),
        session: Some(SessionId(uuid::Uuid::from_u128(u128::from(number.unsigned_abs() % 2)))),
        agent: None,
        path: "main".into(),
        kind: AuditKind::Sandbox {
            title: number.to_string(),
            refused: "/etc".into(),
            verified: true,
            form: "test".into(),
        },
    }
}

fn numbers(range: std::ops::RangeInclusive<i64>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn entries_of_several_processes_come_back_in_order_over_several_segments() {
    let state = State::new();
    assert_eq!(state.verify(), AuditReport::default(), "no log is a whole log");
    state.append(1..=10);
    state.append(11..=30);
    assert_eq!(state.titles(&AuditFilter::default()), numbers(1..=30));
    let report = state.verify();
    assert_eq!((report.entries, &report.problem, report.unconfirmed), (30, &None, 0));
    assert!(report.segments > 1, "{report:?}");
    let session = Some(SessionId(uuid::Uuid::from_u128(1)));
    let odd = AuditFilter { session, ..AuditFilter::default() };
    assert_eq!(state.titles(&odd).len(), 15);
    let late = AuditFilter { since: Timestamp::from_second(29).ok(), ..AuditFilter::default() };
    assert_eq!(state.titles(&late), numbers(29..=30));
    let none = AuditFilter { kind: Some("egress".into()), ..AuditFilter::default() };
    assert_eq!(state.titles(&none), Vec::<String>::new());
}

#[test]
fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let state = State::new();
    state.append(1..=1);
    for file in [state.path().join("audit.key"), state.file("head.json"), state.file("000001.jsonl")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::read(state.path().join("audit.key")).unwrap().len(), 32);
}

#[test]
fn unfinished_line_of_a_killed_process_is_no_tampering_and_is_mended() {
    let state = State::new();
    state.append(1..=3);
    let segment = state.file("000001.jsonl");
    let whole = fs::read(&segment).unwrap();
    let line = whole.split_inclusive(|byte| *byte == b'\n').next().unwrap().to_vec();
    for cut in [1, line.len() / 2, line.len() - 1] {
        fs::write(&segment, [&whole, &line[..cut]].concat()).unwrap();
        let report = state.verify();
        assert_eq!((report.problem, report.entries, report.unfinished_bytes), (None, 3, cut));
    }
    state.append(4..=4);
    let report = state.verify();
    assert_eq!((report.problem, report.entries, report.unfinished_bytes), (None, 4, 0));
    assert_eq!(state.titles(&AuditFilter::default()), numbers(1..=4));
}

#[test]
fn process_that_is_killed_before_its_head_leaves_a_whole_log() {
    let state = State::new();
    state.append(1..=8);
    let old = fs::read(state.file("head.json")).unwrap();
    // Over the end of a segment, too.
    state.append(9..=20);
    assert!(state.segments().len() > 1);
    fs::write(state.file("head.json"), &old).unwrap();
    let report = state.verify();
    assert_eq!((report.problem, report.entries, report.unconfirmed), (None, 20, 12));
    state.append(21..=21);
    let report = state.verify();
    assert_eq!((report.problem, report.entries, report.unconfirmed), (None, 21, 0), "the head is repaired");
    // No process writes so much at once.
    state.append(22..=200);
    fs::write(state.file("head.json"), &old).unwrap();
    assert_eq!(state.problem(), Some(ProblemKind::HeadChanged));
}

#[test]
fn what_is_removed_is_still_missed_after_the_next_append() {
    let cut_two = |state: &State| {
        let last = state.file(state.segments().last().unwrap());
        let text = fs::read_to_string(&last).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        fs::write(&last, lines[..lines.len() - 2].concat()).unwrap();
    };
    let remove = |state: &State, name: &str| fs::remove_file(state.path().join(name)).unwrap();
    let cases: [(&str, Tampering<'_>, ProblemKind, ProblemKind); 6] = [
        ("lines", &cut_two, ProblemKind::Truncated, ProblemKind::Deleted),
        (
            "lines and head",
            &|state| {
                cut_two(state);
                remove(state, "audit/head.json");
            },
            ProblemKind::HeadMissing,
            ProblemKind::HeadMissing,
        ),
        (
            "head",
            &|state| remove(state, "audit/head.json"),
            ProblemKind::HeadMissing,
            ProblemKind::HeadMissing,
        ),
        ("key", &|state| remove(state, "audit.key"), ProblemKind::KeyMissing, ProblemKind::Changed),
        (
            "the whole folder",
            &|state| fs::remove_dir_all(state.path().join("audit")).unwrap(),
            ProblemKind::Deleted,
            ProblemKind::HeadMissing,
        ),
        (
            "half a line",
            &|state| {
                let last = state.file(state.segments().last().unwrap());
                let bytes = fs::read(&last).unwrap();
                fs::write(&last, &bytes[..bytes.len() - 30]).unwrap();
            },
            ProblemKind::Truncated,
            ProblemKind::Changed,
        ),
    ];
    for (name, tamper, before, after) in cases {
        let state = State::new();
        state.append(1..=20);
        assert_eq!(state.problem(), None, "{name}");
        tamper(&state);
        assert_eq!(state.problem(), Some(before), "{name}");
        state.append(21..=22);
        assert_eq!(state.problem(), Some(after), "{name}, and more was written");
        let titles = state.titles(&AuditFilter::default());
        assert!(titles.ends_with(&numbers(21..=22)), "{name}: new entries are kept: {titles:?}");
    }
}

#[test]
fn log_that_is_put_back_is_noticed_by_the_process_that_wrote_to_it_and_by_an_anchor() {
    let state = State::new();
    state.append(1..=5);
    let old: Vec<(String, Vec<u8>)> = ["head.json", "000001.jsonl"]
        .map(|name| (name.to_owned(), fs::read(state.file(name)).unwrap()))
        .into();
    state.append(6..=7);
    let anchor: Anchor = state.verify().anchor.unwrap().parse().unwrap();
    assert_eq!(state.log().verify(Some(anchor)).unwrap().problem, None);
    let put_back = || old.iter().for_each(|(name, bytes)| fs::write(state.file(name), bytes).unwrap());
    put_back();
    assert_eq!(state.problem(), None, "an old log with its old head looks whole by itself");
    let found = state.log().verify(Some(anchor)).unwrap().problem.unwrap();
    assert_eq!(found.kind, ProblemKind::RolledBack);
    // A process that lives on remembers what it wrote.
    let log = state.log();
    log.append(entry(8));
    while state.verify().entries < 6 {
        std::thread::yield_now();
    }
    put_back();
    log.append(entry(9));
    log.close().unwrap();
    let AuditProblem { kind, line, detail, .. } = state.verify().problem.unwrap();
    assert_eq!((kind, line), (ProblemKind::RolledBack, 6), "{detail}");
    assert_eq!(state.titles(&AuditFilter::default())[5..], ["damage: rolled back", "9"]);
}

#[test]
fn process_that_lives_on_writes_where_the_log_is_now() {
    let moved = |state: &State| fs::rename(state.path().join("audit"), state.path().join("moved")).unwrap();
    let replaced = |state: &State, name: &str| {
        fs::copy(state.file(name), state.file("copy")).unwrap();
        fs::rename(state.file("copy"), state.file(name)).unwrap();
    };
    let cases: [(Tampering<'_>, &[&str]); 4] = [
        (&moved, &["damage: head missing", "3"]),
        (&|state| replaced(state, "000001.jsonl"), &["1", "2", "3"]),
        (&|state| replaced(state, "head.json"), &["1", "2", "3"]),
        (&|state| fs::remove_file(state.file("lock")).unwrap(), &["1", "2", "3"]),
    ];
    for (at, (tamper, titles)) in cases.iter().enumerate() {
        let state = State::new();
        let log = AuditLog::open(state.path());
        for number in 1..=2 {
            log.append(entry(number));
            while state.verify().entries < number.unsigned_abs() {
                std::thread::yield_now();
            }
        }
        tamper(&state);
        log.append(entry(3));
        log.close().unwrap();
        assert_eq!(state.titles(&AuditFilter::default()), *titles, "{at}");
        assert!(state.file("lock").exists(), "{at}");
    }
}

#[test]
fn head_is_written_in_place_while_its_length_stays() {
    use std::os::unix::fs::MetadataExt as _;
    let state = State::new();
    let log = AuditLog::open(state.path());
    let mut heads = Vec::new();
    for number in 1..=5 {
        log.append(entry(number));
        while state.verify().entries < number.unsigned_abs() {
            std::thread::yield_now();
        }
        let head = fs::metadata(state.file("head.json")).unwrap();
        heads.push((head.len(), head.ino()));
    }
    log.close().unwrap();
    assert_eq!(state.problem(), None);
    for pair in heads.windows(2) {
        assert_eq!(pair[0].0 == pair[1].0, pair[0].1 == pair[1].1, "{heads:?}");
    }
    assert!(heads.windows(2).any(|pair| pair[0] == pair[1]), "{heads:?}");
}

#[test]
fn lines_of_two_histories_do_not_make_one() {
    let state = State::new();
    let names = ["head.json", "000001.jsonl"];
    let read = || names.map(|name| fs::read(state.file(name)).unwrap());
    state.append(1..=3);
    let old = read();
    state.append(4..=5);
    let [_, first] = read();
    names.iter().zip(&old).for_each(|(name, bytes)| fs::write(state.file(name), bytes).unwrap());
    state.append(14..=15);
    let [_, second] = read();
    let line =
        |bytes: &[u8], at: usize| bytes.split_inclusive(|byte| *byte == b'\n').nth(at).unwrap().to_vec();
    // Each line is authentic and every number is right, but entry 5 was written behind another entry 4.
    let spliced = [old[1].clone(), line(&second, 3), line(&first, 4)].concat();
    fs::write(state.file("000001.jsonl"), spliced).unwrap();
    let AuditProblem { kind, line, detail, .. } = state.verify().problem.unwrap();
    assert_eq!((kind, line), (ProblemKind::Inserted, 5), "{detail}");
}

#[test]
fn log_that_was_being_made_when_its_process_was_killed_is_made_by_the_next() {
    let state = State::new();
    state.append(1..=1);
    // The head comes before the key, and both before the first entry.
    fs::remove_file(state.path().join("audit.key")).unwrap();
    fs::remove_file(state.file("000001.jsonl")).unwrap();
    state.append(2..=2);
    assert_eq!((state.problem(), state.titles(&AuditFilter::default())), (None, numbers(2..=2)));
}

#[test]
fn entries_that_cannot_be_written_are_kept_then_counted_and_told_once() {
    let state = State::new();
    // A file where the folder should be: nothing can be written.
    fs::write(state.path().join("audit"), "").unwrap();
    let log = state.log();
    let told: Vec<String> = (1..=5000).filter_map(|number| log.append(entry(number))).collect();
    assert!(told.len() <= 1, "{told:?}");
    fs::remove_file(state.path().join("audit")).unwrap();
    log.close().unwrap();
    let titles = state.titles(&AuditFilter::default());
    let counted = titles.iter().filter_map(|title| title.strip_prefix("gap of "));
    let counted: Vec<usize> = counted.map(|count| count.parse().unwrap()).collect();
    let written: Vec<i64> = titles.iter().filter_map(|title| title.parse().ok()).collect();
    assert!(!counted.is_empty() && written.is_sorted(), "{counted:?}");
    assert_eq!(written.len() + counted.iter().sum::<usize>(), 5000, "every entry is there or counted");
    let report = state.verify();
    assert_eq!((report.problem, report.unwritten), (None, counted.iter().sum::<usize>() as u64));
}

#[test]
fn log_that_can_never_be_written_says_how_much_is_lost() {
    let state = State::new();
    fs::write(state.path().join("audit"), "").unwrap();
    let log = state.log();
    log.append(entry(1));
    log.append(entry(2));
    let unwritten = log.close().unwrap_err();
    assert_eq!(unwritten.count, 2, "{unwritten}");
    assert!(unwritten.to_string().contains("2 audit entries could not be written: "), "{unwritten}");
}

#[test]
fn writers_at_the_same_time_make_one_chain() {
    let state = State::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let state = &state;
            // Each has its own log, so its own lock: as different processes have.
            scope.spawn(move || {
                (0..10).for_each(|round| state.append(writer * 1000 + round..=writer * 1000 + round));
            });
        }
    });
    let report = state.verify();
    assert_eq!((report.problem, report.entries), (None, 40));
    let mut titles = state.titles(&AuditFilter::default());
    titles.sort();
    titles.dedup();
    assert_eq!(titles.len(), 40, "none is lost and none is doubled");
}

#[test]
fn entry_of_a_later_version_survives() {
    let state = State::new();
    let text = r#"{"at":"1970-01-01T00:00:00Z","kind":"teleport","to":"moon"}"#;
    let log = state.log();
    log.append(serde_json::from_str(text).unwrap());
    log.close().unwrap();
    assert_eq!(state.verify().problem, None);
    assert_eq!(state.titles(&AuditFilter::default()), ["teleport"]);
    let filter = AuditFilter { kind: Some("teleport".into()), ..AuditFilter::default() };
    state.log().read(&filter, &mut |one| assert_eq!((one.raw.as_str(), one.believed), (text, true))).unwrap();
}
