//! Disks that fail, for the writer's tests: every write, cut and sync can be made to.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use camino::Utf8Path;
use decurion_protocol::event::SessionInfo;
use decurion_protocol::{Block, CallId, Envelope, Event, LineId, Message, RunId, SessionId, ToolOutput};
use jiff::Timestamp;
use rustix::io::Errno;
use uuid::Uuid;

use crate::disk::{DiskAccess, DiskFile};
use crate::{Journal, Layout, ReplayOptions, Scope, SessionPaths, SessionWriter, WriteError, replay};

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum DiskFault {
    Error(Errno),
    /// After this many bytes, with no room.
    Short(usize),
    /// The same, and the half line cannot be taken back either.
    ShortForGood(usize),
}

#[derive(Default)]
struct FaultState {
    writes: usize,
    syncs: usize,
    /// Which write fails, how, and how many tries after it do too.
    write_fault: Option<(usize, DiskFault, usize)>,
    sync_fault: Option<(usize, usize)>,
    /// What was written since the last good sync; gone when a sync fails.
    rewritten: usize,
    /// Each handle that a sync of failed, by its number, and those that were synced again.
    handles: usize,
    failed: Vec<usize>,
    trusted: Vec<usize>,
}

#[derive(Clone, Default)]
struct FaultyDisk(Arc<Mutex<FaultState>>);

struct FaultyFile {
    file: File,
    disk: FaultyDisk,
    /// The same for all twins.
    handle: usize,
}

impl DiskAccess for FaultyDisk {
    fn adopt(&self, file: File) -> Box<dyn DiskFile> {
        let mut state = self.0.lock().unwrap();
        state.handles += 1;
        Box::new(FaultyFile { file, disk: self.clone(), handle: state.handles })
    }
}

impl FaultyDisk {
    fn fault(&self) -> Option<DiskFault> {
        let mut state = self.0.lock().unwrap();
        state.writes += 1;
        let (at, fault, tries) = state.write_fault?;
        (at..=at + tries).contains(&state.writes).then_some(fault)
    }
}

impl DiskFile for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.disk.fault() {
            None => DiskFile::write(&mut self.file, bytes),
            Some(DiskFault::Error(error)) => Err(error.into()),
            Some(DiskFault::Short(count) | DiskFault::ShortForGood(count)) if count > 0 => {
                // The rest of it fails in the next call.
                let count = count.min(bytes.len());
                let mut state = self.disk.0.lock().unwrap();
                if let Some((_, DiskFault::Short(left) | DiskFault::ShortForGood(left), _)) =
                    &mut state.write_fault
                {
                    *left = 0;
                }
                DiskFile::write(&mut self.file, &bytes[..count])
            }
            Some(_) => Err(Errno::NOSPC.into()),
        }
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        if let Some((_, DiskFault::ShortForGood(_), _)) = self.disk.0.lock().unwrap().write_fault {
            return Err(Errno::IO.into());
        }
        self.file.truncate(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        state.syncs += 1;
        match state.sync_fault {
            Some((at, tries)) if (at..=at + tries).contains(&state.syncs) => {
                state.failed.push(self.handle);
                Err(Errno::IO.into())
            }
            _ => {
                // As the kernel does it: a handle that has told its error says that all is well.
                if state.failed.contains(&self.handle) {
                    state.trusted.push(self.handle);
                }
                self.file.sync()
            }
        }
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.0.lock().unwrap().rewritten += bytes.len();
        self.file.write_at(bytes, offset)
    }

    fn twin(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Self { file: self.file.try_clone()?, disk: self.disk.clone(), handle: self.handle }))
    }
}

fn info() -> SessionInfo {
    SessionInfo {
        session: SessionId(Uuid::from_u128(1)),
        cwd: "/work".into(),
        version: "0".into(),
        git_branch: None,
        entrypoint: "test".into(),
        imported_from: None,
        forked_from: None,
    }
}

/// Two hundred events of the root and of two agents.
fn events() -> Vec<Envelope> {
    let line = |number: u64| LineId(Uuid::from_u128(number.into()));
    let event = |seq: u64| match seq % 4 {
        0 => Event::Notice { level: "info".into(), text: format!("notice {seq}") },
        1 => Event::Message {
            message: Message::user(format!("prompt {seq}")),
            lines: vec![line(seq * 10)],
            parent: None,
            meta: Box::default(),
        },
        2 => Event::Message {
            message: Message::assistant(vec![Block::text("one"), Block::text("two"), Block::text("three")]),
            lines: vec![line(seq * 10), line(seq * 10 + 1), line(seq * 10 + 2)],
            parent: None,
            meta: Box::default(),
        },
        _ => Event::CallEnded {
            call: CallId(format!("call {seq}")),
            tool: "Bash".into(),
            line: line(seq * 10),
            parent: None,
            output: Box::new(ToolOutput::text("x".repeat(usize::try_from(seq).unwrap()))),
            duration_ms: 1,
        },
    };
    let agent = |seq: u64| match seq % 3 {
        0 => None,
        number => Some(format!("a{number}").parse().unwrap()),
    };
    let run = RunId(Uuid::from_u128(7));
    let at = Timestamp::UNIX_EPOCH;
    (1..=200).map(|seq| Envelope { seq, at, agent: agent(seq), run, event: event(seq) }).collect()
}

struct FaultStage {
    _folder: tempfile::TempDir,
    paths: SessionPaths,
    disk: FaultyDisk,
    writer: SessionWriter,
}

fn stage() -> FaultStage {
    let folder = tempfile::tempdir().unwrap();
    let home = Utf8Path::from_path(folder.path()).unwrap();
    let paths = Layout::new(home).session(&info().cwd, info().session);
    let disk = FaultyDisk::default();
    let writer =
        SessionWriter::create_on(Box::new(disk.clone()), &paths, &info(), Timestamp::UNIX_EPOCH).unwrap();
    FaultStage { _folder: folder, paths, disk, writer }
}

fn read(paths: &SessionPaths) -> Vec<Envelope> {
    let mut events = Vec::new();
    let options = ReplayOptions { scope: Scope::Everything, structured: true, after: 0 };
    let report = replay(paths, &options, &mut |envelope| events.push(envelope)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    events
}

/// Every file of a session ends with a whole line at any time, unless even the cutting fails.
fn check_no_half_lines(paths: &SessionPaths) {
    let agents = ["a1", "a2"].map(|agent| paths.agent(&agent.parse().unwrap()));
    for path in agents.iter().chain([&paths.transcript()]) {
        let bytes = std::fs::read(path).unwrap_or_default();
        assert!(bytes.is_empty() || bytes.ends_with(b"}\n"), "{path}");
    }
}

#[test]
fn a_disk_that_refuses_any_one_write_loses_and_repeats_nothing() {
    let faults = [
        DiskFault::Error(Errno::NOSPC),
        DiskFault::Error(Errno::DQUOT),
        DiskFault::Error(Errno::IO),
        DiskFault::Short(1),
        DiskFault::Short(700),
        DiskFault::ShortForGood(300),
    ];
    let events = events();
    for nth in 1..=200 {
        let fault = faults[nth % faults.len()];
        let tries = 1 + nth % 4;
        // Enough writes for every one of the two hundred to be met.
        let size = if nth > 150 { 1 } else { 3 };
        let mut stage = stage();
        stage.disk.0.lock().unwrap().write_fault = Some((nth, fault, tries));
        let mut failures = 0;
        for (number, batch) in events.chunks(size).enumerate() {
            let mut result = stage.writer.append(batch);
            while let Err(error) = result {
                assert!(error.holds(), "{error}");
                assert!(stage.writer.held_bytes() > 0);
                let full = matches!(error, WriteError::Full { .. });
                assert_eq!(full, fault != DiskFault::Error(Errno::IO), "{error}");
                if !matches!(fault, DiskFault::ShortForGood(_)) {
                    check_no_half_lines(&stage.paths);
                }
                failures += 1;
                // The caller may come back with nothing or with the same batch.
                result = stage.writer.append(if number % 2 == 0 { &[] } else { batch });
            }
            assert_eq!(stage.writer.held_bytes(), 0);
        }
        check_no_half_lines(&stage.paths);
        assert_eq!(read(&stage.paths), events, "write {nth} {fault:?}");
        assert!(failures > 0, "the fault was never met: {nth}");
    }
}

#[test]
fn what_comes_while_the_disk_is_full_waits_its_turn() {
    let events = events();
    let mut stage = stage();
    stage.disk.0.lock().unwrap().write_fault = Some((4, DiskFault::Error(Errno::NOSPC), 60));
    let mut held = 0;
    for batch in events.chunks(5) {
        if let Err(error) = stage.writer.append(batch) {
            assert!(error.holds());
            held = held.max(stage.writer.held_bytes());
            // What is on disk is a beginning of the whole, never a later part without an earlier one.
            let root: Vec<u64> = read(&stage.paths).iter().map(|event| event.seq).collect();
            assert!(root.len() < 40, "{root:?}");
        }
    }
    assert!(held > 10_000);
    stage.disk.0.lock().unwrap().write_fault = None;
    stage.writer.append(&[]).unwrap();
    assert_eq!(read(&stage.paths), events);
}

#[test]
fn more_than_may_be_held_is_refused_and_may_come_again() {
    let mut stage = stage();
    stage.disk.0.lock().unwrap().write_fault = Some((1, DiskFault::Error(Errno::NOSPC), 1_000_000));
    let template = events().remove(0);
    // Below the size at which a string would go to a file of its own.
    let text = "x".repeat(900_000);
    let mut refused = None;
    for seq in 1..100 {
        let message = Message::user(text.as_str());
        let lines = vec![LineId(Uuid::from_u128(seq.into()))];
        let event = Event::Message { message, lines, parent: None, meta: Box::default() };
        let envelope = Envelope { seq, agent: None, event, ..template.clone() };
        match stage.writer.append(std::slice::from_ref(&envelope)) {
            Err(WriteError::TooMuchHeld { held }) => {
                assert!(held <= crate::jsonl::HELD_LIMIT);
                refused = Some(envelope);
                break;
            }
            Err(error) => assert!(error.holds()),
            Ok(()) => panic!("the disk is full"),
        }
    }
    let refused = refused.expect("a limit");
    stage.disk.0.lock().unwrap().write_fault = None;
    stage.writer.append(std::slice::from_ref(&refused)).unwrap();
    assert_eq!(stage.writer.last_seq(), refused.seq);
    assert_eq!(read(&stage.paths).len() as u64, refused.seq);
}

#[test]
fn after_a_failed_sync_the_end_is_written_again() {
    let events = events();
    for (nth, tries) in (1..=20).flat_map(|nth| [(nth, 0), (nth, 1), (nth, 4)]) {
        let mut stage = stage();
        stage.disk.0.lock().unwrap().sync_fault = Some((nth, tries));
        for batch in events.chunks(20) {
            stage.writer.append(batch).unwrap();
            let mut again = 0;
            while let Err(error) = stage.writer.sync() {
                assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                again += 1;
                assert!(again < 10);
            }
        }
        let state = stage.disk.0.lock().unwrap();
        assert!(state.rewritten > 0, "sync {nth}");
        assert!(state.trusted.is_empty(), "a handle whose sync failed is never believed again: sync {nth}");
        drop(state);
        assert!(stage.writer.begin_sync().unwrap().is_none(), "all is synced");
        assert_eq!(read(&stage.paths), events);
    }
}

#[test]
fn what_is_appended_during_a_sync_is_synced_by_the_next() {
    let events = events();
    let mut stage = stage();
    stage.writer.append(&events[..50]).unwrap();
    let job = stage.writer.begin_sync().unwrap().expect("something to sync");
    stage.writer.append(&events[50..]).unwrap();
    // It fails, and what came during it is rewritten with the rest.
    stage.disk.0.lock().unwrap().sync_fault = Some((1, 2));
    let synced = job.run();
    stage.writer.end_sync(synced).unwrap();
    assert!(stage.disk.0.lock().unwrap().rewritten > 0);
    stage.writer.sync().unwrap();
    assert!(stage.writer.begin_sync().unwrap().is_none());
    assert_eq!(read(&stage.paths), events);
}

#[test]
fn a_blob_whose_sync_failed_is_written_anew() {
    let text = "x".repeat(2 << 20);
    for tries in [0, 1, 4] {
        let mut stage = stage();
        let message = Message::user(text.as_str());
        let lines = vec![LineId(Uuid::from_u128(1))];
        let event = Event::Message { message, lines, parent: None, meta: Box::default() };
        let envelope = Envelope { seq: 1, agent: None, event, ..events().remove(0) };
        stage.writer.append(std::slice::from_ref(&envelope)).unwrap();
        let blobs = stage.paths.folder().join("blobs");
        let name = std::fs::read_dir(&blobs).unwrap().next().unwrap().unwrap().path();
        let inode = |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        let before = inode(&name);
        // Open, so that the file system cannot give its number to the new one.
        let _first = std::fs::File::open(&name).unwrap();
        stage.disk.0.lock().unwrap().sync_fault = Some((1, tries));
        let mut failures = 0;
        while stage.writer.sync().is_err() {
            failures += 1;
            assert!(failures < 10);
        }
        assert!(failures > 0);
        assert_ne!(inode(&name), before, "it is another file");
        assert!(stage.disk.0.lock().unwrap().trusted.is_empty(), "after {tries}");
        assert!(stage.writer.begin_sync().unwrap().is_none());
        assert_eq!(read(&stage.paths), [envelope]);
    }
}

#[test]
fn failed_sync_keeps_a_blob_that_earlier_records_name() {
    let mut stage = stage();
    // One line that is too long, of so many strings that the last one is synced at once.
    let large = |seq: u64, letters: &str| {
        let block = |letter: char| Block::text(letter.to_string().repeat(64 << 10));
        let message = Message { blocks: letters.chars().map(block).collect(), ..Message::user("") };
        let lines = vec![LineId(Uuid::from_u128(seq.into()))];
        let event = Event::Message { message, lines, parent: None, meta: Box::default() };
        Envelope { seq, agent: None, event, ..events().remove(0) }
    };
    let first = large(1, "abcdefghijklmnopq");
    stage.writer.append(std::slice::from_ref(&first)).unwrap();
    stage.writer.sync().unwrap();
    let syncs = stage.disk.0.lock().unwrap().syncs;
    stage.disk.0.lock().unwrap().sync_fault = Some((syncs + 1, 0));
    let second = large(2, "ABCDEFGHIJKLMNOPa");
    stage.writer.append(std::slice::from_ref(&second)).unwrap_err();
    assert_eq!(read(&stage.paths), std::slice::from_ref(&first), "the failure costs no earlier content");
    stage.writer.append(&[]).unwrap();
    assert_eq!(read(&stage.paths), [first, second]);
}

#[test]
fn sync_that_cannot_begin_forgets_no_folder_and_no_blob() {
    use crate::disk::FolderRef;
    let mut stage = stage();
    let message = Message::user("x".repeat(2 << 20));
    let lines = vec![LineId(Uuid::from_u128(1))];
    let event = Event::Message { message, lines, parent: None, meta: Box::default() };
    let envelope = Envelope { seq: 1, agent: None, event, ..events().remove(0) };
    stage.writer.append(std::slice::from_ref(&envelope)).unwrap();
    // The blob and a folder cannot be synced.
    stage.disk.0.lock().unwrap().sync_fault = Some((1, 0));
    let mut synced = stage.writer.begin_sync().unwrap().expect("something to sync").run();
    synced.folders = vec![FolderRef::Project];
    stage.writer.end_sync(synced).unwrap_err();
    // Neither can the blob be written anew, because a folder has its name.
    let blobs = stage.paths.folder().join("blobs");
    let blob = std::fs::read_dir(&blobs).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&blob).unwrap();
    std::fs::create_dir(&blob).unwrap();
    assert!(stage.writer.begin_sync().is_err());
    assert_eq!(stage.writer.doubtful, [FolderRef::Project]);
    std::fs::remove_dir(&blob).unwrap();
    let job = stage.writer.begin_sync().unwrap().expect("something to sync");
    let places: Vec<FolderRef> = job.folders.iter().map(|(place, _)| *place).collect();
    assert_eq!((places, job.blobs.len()), (vec![FolderRef::Project, FolderRef::Blobs], 1));
    stage.writer.end_sync(job.run()).unwrap();
    assert_eq!(read(&stage.paths), [envelope]);
}

#[test]
fn folders_with_new_names_are_synced_with_the_lines_that_need_them() {
    use crate::disk::FolderRef;
    let mut stage = stage();
    let message = |seq: u64, agent: Option<&str>, text: &str| {
        let message = Message::user(text);
        let lines = vec![LineId(Uuid::from_u128(seq.into()))];
        let event = Event::Message { message, lines, parent: None, meta: Box::default() };
        let agent = agent.map(|agent| agent.parse().unwrap());
        Envelope { seq, agent, event, ..events().remove(0) }
    };
    let large = "x".repeat(2 << 20);
    let steps = [
        (
            message(1, None, "first"),
            vec![FolderRef::Home, FolderRef::Projects, FolderRef::Project, FolderRef::Session],
            "all that lead to a new session",
        ),
        (message(2, None, "second"), vec![], "nothing has a new name"),
        (
            message(3, Some("a1"), "third"),
            vec![FolderRef::Session, FolderRef::Subagents],
            "the first agent's folder",
        ),
        (message(4, Some("a2"), "fourth"), vec![FolderRef::Subagents], "a second agent's file"),
        (message(5, None, &large), vec![FolderRef::Session, FolderRef::Blobs], "the first large content"),
    ];
    for (envelope, expected, what) in steps {
        stage.writer.append(std::slice::from_ref(&envelope)).unwrap();
        let job = stage.writer.begin_sync().unwrap().expect("something to sync");
        let places: Vec<FolderRef> = job.folders.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, expected, "{what}");
        // A folder whose sync failed is synced again, with nothing new in it.
        let mut synced = job.run();
        synced.folders.clone_from(&places);
        let error = stage.writer.end_sync(synced);
        assert!(error.is_ok());
        let again = stage.writer.begin_sync().unwrap();
        let again: Vec<FolderRef> =
            again.iter().flat_map(|job| job.folders.iter().map(|(place, _)| *place)).collect();
        assert_eq!(again, places, "{what}, after a failure");
    }
}
