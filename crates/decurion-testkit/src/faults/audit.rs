//! U1: an audit log that somebody edits. Takes a whole log, does one random thing to its files that no crash does, gives
//! whether `decurion audit verify` finds it and names it rightly.

use std::fs;
use std::path::Path;

use camino::Utf8Path;
use decurion_protocol::{AuditEntry, AuditKind, DecidedBy, Mode, PermissionEntry, SessionId, Verdict};
use decurion_store::AuditLog;
use decurion_store::audit::ProblemKind;
use jiff::Timestamp;
use serde_json::Value;

use super::stand::{HANG, brief};
use super::{Dice, Options, Report, Row, in_parallel};
use crate::proc::Home;

/// The rows of this group.
pub fn rows() -> Vec<Row> {
    vec![Row { id: "U1", what: "an audit log that is edited, cut, moved or put back", run: edited }]
}

/// So many entries has the log that is tampered with.
const ENTRIES: usize = 240;
/// A segment holds about ten of them.
const SEGMENT: u64 = 4000;
/// A head this much older than the log cannot be what a crash left.
const LONG_AGO: usize = 100;

/// What a check says about a log: nothing, or what happened and where.
pub type Verdicts = Result<Option<Found>, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What happened, as in the report of `audit verify --json`.
    pub kind: String,
    /// The name of the file.
    pub file: String,
    /// The line; 0 for the whole file.
    pub line: u64,
}

fn edited(options: &Options) -> Report {
    let log = match Whole::make() {
        Ok(log) => log,
        Err(error) => return Report::broken(error),
    };
    let tries: Vec<u64> = (0..options.count(100, 1000)).collect();
    let check = |state: &Path, anchor: Option<&str>| verify_by_binary(options, state, anchor);
    let results = in_parallel(options.width, &tries, |nth| log.attempt(options.seed, *nth, &check));
    let mut report = Report::default();
    for (nth, (name, result)) in results.into_iter().enumerate() {
        report.add(format!("{nth} {name}"), result);
    }
    report.add("control: nothing is done", log.control(&check));
    let figure = format!("audit: {} tamperings, {} not found", tries.len(), report.failures.len());
    report.figure(figure)
}

fn verify_by_binary(options: &Options, state: &Path, anchor: Option<&str>) -> Verdicts {
    let home = Home::new().map_err(|error| error.to_string())?;
    let program = home.program(options.decurion()).env("DECURION_HOME", state);
    let program = program.args(["audit", "verify", "--json"]);
    let program = anchor.iter().fold(program, |program, anchor| program.args(["--anchor", anchor]));
    let run = program.run(HANG).map_err(|error| error.to_string())?;
    let said: Value = serde_json::from_str(&run.output())
        .map_err(|_| format!("no report: {:?} {}", run.ending, brief(&run.errors)))?;
    let expected = i32::from(!said["problem"].is_null());
    if run.ending.code() != expected {
        return Err(format!("ended with {:?} for {said}", run.ending));
    }
    let Some(problem) = said["problem"].as_object() else { return Ok(None) };
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    let file = text("file").rsplit('/').next().unwrap_or_default().to_owned();
    Ok(Some(Found { kind: text("kind"), file, line: problem["line"].as_u64().unwrap_or(0) }))
}

/// A log that is as it was written.
pub struct Whole {
    lines: Vec<Line>,
    head: Vec<u8>,
    key: Vec<u8>,
    /// The last entry, as a check noted it.
    anchor: String,
    /// The head when the log had so many entries, oldest first.
    heads: Vec<(usize, Vec<u8>)>,
}

/// The files of a log, to be tampered with.
#[derive(Clone)]
struct Files {
    lines: Vec<Line>,
    head: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    has_folder: bool,
}

/// A line with its line end, and the segment that it is in.
#[derive(Clone, Debug)]
struct Line {
    segment: usize,
    bytes: Vec<u8>,
}

/// What is to be found.
struct Expected {
    kinds: Vec<ProblemKind>,
    /// The line at which it must be found, where there is one such line.
    at: Option<usize>,
    /// Whether it can only be found by what was noted before.
    needs_anchor: bool,
}

fn expect(kind: ProblemKind) -> Expected {
    Expected { kinds: vec![kind], at: None, needs_anchor: false }
}

fn expect_at(kind: ProblemKind, line: usize) -> Expected {
    Expected { at: Some(line), ..expect(kind) }
}

impl Whole {
    /// Writes one, a few entries at a time, as several processes would.
    pub fn make() -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let state = Utf8Path::from_path(folder.path()).ok_or("the folder's name is no text")?;
        let (mut heads, step) = (Vec::new(), 20);
        for first in (0..ENTRIES).step_by(step) {
            let log = AuditLog::open(state).with_segments_of(SEGMENT);
            (first..first + step).for_each(|number| drop(log.append(entry(number))));
            log.close().map_err(|error| error.to_string())?;
            let head = fs::read(state.join("audit/head.json")).map_err(|error| error.to_string())?;
            heads.push((first + step, head));
        }
        let report = AuditLog::open(state).verify(None).map_err(|error| error.to_string())?;
        let mut lines = Vec::new();
        for segment in 1..=report.segments {
            let bytes =
                fs::read(state.join("audit").join(name(segment))).map_err(|error| error.to_string())?;
            let split = bytes.split_inclusive(|byte| *byte == b'\n');
            lines.extend(split.map(|bytes| Line { segment, bytes: bytes.to_vec() }));
        }
        let key = fs::read(state.join("audit.key")).map_err(|error| error.to_string())?;
        let head = heads.last().map(|(_, head)| head.clone()).unwrap_or_default();
        Ok(Self { lines, head, key, anchor: report.anchor.unwrap_or_default(), heads })
    }

    fn files(&self) -> Files {
        Files {
            lines: self.lines.clone(),
            head: Some(self.head.clone()),
            key: Some(self.key.clone()),
            has_folder: true,
        }
    }

    /// A log that nobody touched is whole.
    pub fn control(&self, check: &dyn Fn(&Path, Option<&str>) -> Verdicts) -> Result<(), String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        self.files().write(folder.path())?;
        for anchor in [None, Some(&*self.anchor)] {
            if let Some(found) = check(folder.path(), anchor)? {
                return Err(format!("found {found:?} in a whole log"));
            }
        }
        Ok(())
    }

    /// Tampers once and checks. Gives what was done, and what is wrong with what was found.
    pub fn attempt(
        &self,
        seed: u64,
        nth: u64,
        check: &dyn Fn(&Path, Option<&str>) -> Verdicts,
    ) -> (&'static str, Result<(), String>) {
        let mut files = self.files();
        let mut dice = Dice::new(seed, nth);
        let kinds = u64::try_from(TAMPERINGS.len()).unwrap_or(1);
        let (name, tamper) = TAMPERINGS[usize::try_from(nth % kinds).unwrap_or(0)];
        let expected = tamper(&mut files, &mut dice, self);
        (name, self.judge(&files, &expected, check))
    }

    fn judge(
        &self,
        files: &Files,
        expected: &Expected,
        check: &dyn Fn(&Path, Option<&str>) -> Verdicts,
    ) -> Result<(), String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        files.write(folder.path())?;
        let anchor = expected.needs_anchor.then_some(&*self.anchor);
        let found = check(folder.path(), anchor)?.ok_or("not found")?;
        let named = |kind: &ProblemKind| kind.name().replace(' ', "_");
        if !expected.kinds.iter().any(|kind| named(kind) == found.kind) {
            return Err(format!("named wrongly: {found:?}, expected {:?}", expected.kinds));
        }
        match expected.at.map(|at| files.place(at)) {
            Some((file, line)) if (&file, line) != (&found.file, found.line) => {
                Err(format!("found in another line: {found:?}, expected {file}:{line}"))
            }
            _ => Ok(()),
        }
    }
}

impl Files {
    fn write(&self, state: &Path) -> Result<(), String> {
        let put = |name: &str, bytes: &[u8]| {
            fs::write(state.join(name), bytes).map_err(|error| format!("{name}: {error}"))
        };
        if let Some(key) = &self.key {
            put("audit.key", key)?;
        }
        if !self.has_folder {
            return Ok(());
        }
        fs::create_dir(state.join("audit")).map_err(|error| error.to_string())?;
        if let Some(head) = &self.head {
            put("audit/head.json", head)?;
        }
        for lines in self.lines.chunk_by(|one, next| one.segment == next.segment) {
            let bytes: Vec<u8> = lines.iter().flat_map(|line| line.bytes.clone()).collect();
            put(&format!("audit/{}", name(lines[0].segment)), &bytes)?;
        }
        Ok(())
    }

    /// The file and the number of a line.
    fn place(&self, at: usize) -> (String, u64) {
        let Some(line) = self.lines.get(at) else { return (String::new(), 0) };
        let before = self.lines[..at].iter().filter(|other| other.segment == line.segment).count();
        (name(line.segment), before as u64 + 1)
    }

    fn last(&self) -> usize {
        self.lines.len() - 1
    }

    fn any(&self, dice: &mut Dice) -> usize {
        dice.place(self.lines.len())
    }

    /// Two different lines, the earlier one first.
    fn two(&self, dice: &mut Dice) -> (usize, usize) {
        let first = dice.place(self.last());
        (first, first + 1 + dice.place(self.last() - first))
    }

    fn segments(&self) -> usize {
        self.lines.last().map_or(0, |line| line.segment)
    }

    /// Puts bytes before a line, or behind the last one.
    fn insert(&mut self, at: usize, bytes: Vec<u8>) {
        let segment = self.lines.get(at).map_or(self.segments(), |line| line.segment);
        self.lines.insert(at, Line { segment, bytes });
    }

    /// Takes a line out; what follows it in its segment moves up.
    fn remove(&mut self, at: usize) -> Line {
        self.lines.remove(at)
    }
}

type Tamper = fn(&mut Files, &mut Dice, &Whole) -> Expected;

/// What can be done to a log without its key.
const TAMPERINGS: [(&str, Tamper); 20] = [
    ("delete a line", delete_line),
    ("delete several lines", delete_lines),
    ("insert a forged line", insert_forged),
    ("insert words", insert_words),
    ("insert a copy of a line", insert_copy),
    ("swap two lines", swap_lines),
    ("move a line", move_line),
    ("cut a line short", cut_line),
    ("cut a line short with its line end", cut_line_end),
    ("change a byte", change_byte),
    ("replace a line by one made with another key", replace_line),
    ("cut lines off the end", cut_end),
    ("cut bytes off the end", cut_bytes),
    ("remove a segment", remove_segment),
    ("swap two segments", swap_segments),
    ("remove the head", |files, _, _| {
        files.head = None;
        expect(ProblemKind::HeadMissing)
    }),
    ("change the head", change_head),
    ("put an old head in place", old_head),
    ("remove or change the key or everything else", remove_key_or_folder),
    ("put an old log with its head in place", put_back),
];

fn delete_line(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    if at == files.last() {
        files.remove(at);
        return expect(ProblemKind::Truncated);
    }
    files.remove(at);
    expect_at(ProblemKind::Deleted, at)
}

fn delete_lines(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (first, last) = files.two(dice);
    let reaches_end = last == files.last();
    files.lines.drain(first..=last);
    if reaches_end { expect(ProblemKind::Truncated) } else { expect_at(ProblemKind::Deleted, first) }
}

fn insert_forged(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (at, from) = (dice.place(files.lines.len() + 1), files.any(dice));
    let text = String::from_utf8_lossy(&files.lines[from].bytes).replace("\"deny\"", "\"allow\"");
    files.insert(at, text.replace("call-", "CALL-").into_bytes());
    expect_at(ProblemKind::Inserted, at)
}

fn insert_words(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = dice.place(files.lines.len() + 1);
    let words: [&[u8]; 5] = [b"\n", b"{}\n", b"null\n", b"\xff\xfe\x00\n", b"{\"seq\":1}\n"];
    files.insert(at, words[dice.place(words.len())].to_vec());
    expect_at(ProblemKind::Inserted, at)
}

fn insert_copy(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (from, mut at) = (files.any(dice), dice.place(files.lines.len() + 1));
    let copy = files.lines[from].bytes.clone();
    files.insert(at, copy);
    // Before itself it is the copy that stands right, and the line itself that is one too many.
    if at == from {
        at += 1;
    }
    // Far before its place it looks like a line that was moved.
    let kinds = vec![ProblemKind::Inserted, ProblemKind::Reordered];
    Expected { kinds, ..expect_at(ProblemKind::Inserted, at) }
}

fn swap_lines(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (first, second) = files.two(dice);
    let bytes = files.lines[first].bytes.clone();
    files.lines[first].bytes = std::mem::replace(&mut files.lines[second].bytes, bytes);
    expect_at(ProblemKind::Reordered, first)
}

fn move_line(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (first, second) = files.two(dice);
    let (from, to) = if dice.below(2) == 0 { (first, second) } else { (second, first) };
    let line = files.remove(from);
    files.insert(to, line.bytes);
    expect_at(ProblemKind::Reordered, first)
}

fn cut_line(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    let bytes = &mut files.lines[at].bytes;
    bytes.truncate(dice.place(bytes.len() - 1));
    bytes.push(b'\n');
    expect_at(ProblemKind::Changed, at)
}

fn cut_line_end(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    let bytes = &mut files.lines[at].bytes;
    bytes.truncate(1 + dice.place(bytes.len() - 1));
    let is_last = at == files.last();
    expect_at(if is_last { ProblemKind::Truncated } else { ProblemKind::Changed }, at)
}

fn change_byte(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    let bytes = &mut files.lines[at].bytes;
    let place = dice.place(bytes.len() - 1);
    bytes[place] ^= u8::try_from(1 + dice.below(255)).unwrap_or(1);
    expect_at(ProblemKind::Changed, at)
}

/// The same entry at the same place, in a log of the attacker's own making.
fn replace_line(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    if let Ok(other) = Whole::make_short() {
        files.lines[at].bytes.clone_from(&other);
    }
    expect_at(ProblemKind::Changed, at)
}

fn cut_end(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let left = files.any(dice);
    files.lines.truncate(left);
    expect(ProblemKind::Truncated)
}

fn cut_bytes(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let at = files.any(dice);
    files.lines.truncate(at + 1);
    let bytes = &mut files.lines[at].bytes;
    bytes.truncate(dice.place(bytes.len()));
    expect(ProblemKind::Truncated)
}

fn remove_segment(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let (all, gone) = (files.segments(), 1 + dice.place(files.segments()));
    let first = files.lines.iter().position(|line| line.segment == gone).unwrap_or(0);
    files.lines.retain(|line| line.segment != gone);
    if gone == all { expect(ProblemKind::Truncated) } else { expect_at(ProblemKind::Deleted, first) }
}

fn swap_segments(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    let all = files.segments();
    let first = 1 + dice.place(all - 1);
    let second = first + 1 + dice.place(all - first);
    for line in &mut files.lines {
        line.segment = match line.segment {
            segment if segment == first => second,
            segment if segment == second => first,
            segment => segment,
        };
    }
    files.lines.sort_by_key(|line| line.segment);
    let at = files.lines.iter().position(|line| line.segment == first).unwrap_or(0);
    expect_at(ProblemKind::Reordered, at)
}

fn change_head(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    if let Some(head) = &mut files.head {
        let place = dice.place(head.len());
        head[place] ^= u8::try_from(1 + dice.below(255)).unwrap_or(1);
    }
    if dice.below(2) == 0 {
        // So that the head would fit what is left.
        files.lines.pop();
    }
    expect(ProblemKind::HeadChanged)
}

fn old_head(files: &mut Files, dice: &mut Dice, whole: &Whole) -> Expected {
    let old = whole.heads.iter().filter(|(entries, _)| entries + LONG_AGO <= ENTRIES).count();
    files.head = whole.heads.get(dice.place(old)).map(|(_, head)| head.clone());
    expect(ProblemKind::HeadChanged)
}

fn remove_key_or_folder(files: &mut Files, dice: &mut Dice, _: &Whole) -> Expected {
    match dice.below(3) {
        0 => {
            files.key = None;
            expect(ProblemKind::KeyMissing)
        }
        1 => {
            let byte = dice.place(32);
            files.key.iter_mut().for_each(|key| key[byte] ^= 1);
            expect_at(ProblemKind::Changed, 0)
        }
        _ => {
            files.has_folder = false;
            expect(ProblemKind::Deleted)
        }
    }
}

fn put_back(files: &mut Files, dice: &mut Dice, whole: &Whole) -> Expected {
    let (entries, head) = &whole.heads[dice.place(whole.heads.len() - 1)];
    files.lines.truncate(*entries);
    files.head = Some(head.clone());
    Expected { needs_anchor: true, ..expect(ProblemKind::RolledBack) }
}

impl Whole {
    /// The first line of another log.
    fn make_short() -> Result<Vec<u8>, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let state = Utf8Path::from_path(folder.path()).ok_or("the folder's name is no text")?;
        let log = AuditLog::open(state);
        drop(log.append(entry(0)));
        log.close().map_err(|error| error.to_string())?;
        fs::read(state.join("audit").join(name(1))).map_err(|error| error.to_string())
    }
}

fn name(segment: usize) -> String {
    format!("{segment:06}.jsonl")
}

fn entry(number: usize) -> AuditEntry {
    let entry = PermissionEntry {
        call: format!("call-{number}"),
        tool: "Bash".to_owned(),
        title: format!("$ make step-{number}"),
        decision: if number.is_multiple_of(3) { Verdict::Deny } else { Verdict::Allow },
        by: DecidedBy::Rule,
        rule: Some("Bash(make:*)".to_owned()),
        mode: Mode::Default,
        reason: "as the rule says".to_owned(),
    };
    AuditEntry {
        at: Timestamp::UNIX_EPOCH,
        session: Some(SessionId(uuid::Uuid::nil())),
        agent: None,
        path: "main".to_owned(),
        kind: AuditKind::Permission(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(state: &Path, anchor: Option<&str>) -> Verdicts {
        let state = Utf8Path::from_path(state).unwrap();
        let anchor = anchor.map(|anchor| anchor.parse().unwrap());
        let report = AuditLog::open(state).verify(anchor).map_err(|error| error.to_string())?;
        Ok(report.problem.map(|problem| Found {
            kind: problem.kind.name().replace(' ', "_"),
            file: problem.file.file_name().unwrap_or_default().to_owned(),
            line: problem.line,
        }))
    }

    #[test]
    fn a_thousand_tamperings_are_found_and_named() {
        let log = Whole::make().unwrap();
        assert_eq!(log.lines.len(), ENTRIES);
        assert!(log.files().segments() > 5);
        log.control(&verify).unwrap();
        let wrong: Vec<String> = (0..1000)
            .filter_map(|nth| {
                let (name, result) = log.attempt(1, nth, &verify);
                result.err().map(|problem| format!("{nth} {name}: {problem}"))
            })
            .collect();
        assert_eq!(wrong, Vec::<String>::new(), "seed 1");
    }
}
