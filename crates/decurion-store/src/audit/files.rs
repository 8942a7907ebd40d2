//! The files of an audit log. Takes entries under the log's lock, gives lines in the last segment and a head file that
//! names the last line; repairs what a killed process left, and records what no crash can explain.
//!
//! `audit.key` is in the state folder; `audit/` holds the lock, the head and the segments `000001.jsonl`,
//! `000002.jsonl` and so on.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{AuditEntry, AuditKind};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::line::{AuditKey, HeadFile, LINE_LIMIT, Tip, parse};
use super::verify::ProblemKind;
use crate::folder::{DirHandle, How};
use crate::lock;

const FOLDER: &str = "audit";
const KEY: &str = "audit.key";
pub(super) const HEAD: &str = "head.json";
const LOCK: &str = "lock";
/// A segment of this length gets no more lines.
const SEGMENT_LIMIT: u64 = 16 << 20;
/// So many entries are written at once. As many, and no more, may stand behind the head after a crash.
pub(super) const BATCH: usize = 64;
/// The longest head file.
const HEAD_LIMIT: u64 = 4096;
/// How long someone else's lock is waited for: so many tries, with a pause between two of them.
const LOCK_TRIES: u32 = 1000;
const BETWEEN_TRIES: Duration = Duration::from_millis(5);
/// How often a lock file that was removed under us is made again.
const REMADE_TRIES: u32 = 16;

/// Where a log is, and how it is written.
#[derive(Clone, Debug)]
pub(super) struct LogFiles {
    state: Utf8PathBuf,
    /// Whether each append waits for the device.
    synced: bool,
    segment_limit: u64,
}

/// A line that this process wrote, to see that it is still there, and the log as it was then.
pub(super) struct LogMark {
    segment: u32,
    start: u64,
    length: usize,
    tip: Tip,
    key: AuditKey,
    /// Where the segment ended.
    end: u64,
    /// The key, the head and the segment; none where the system does not tell.
    stamps: Option<[FileStamp; 3]>,
    file: Arc<File>,
}

/// Appends to a log. Keeps its files open between two appends: to open them costs more than to write a line.
pub(super) struct Appender {
    files: LogFiles,
    handles: Option<Handles>,
    /// The last line that it wrote.
    mine: Option<LogMark>,
}

/// The folders of a log and its lock, open.
struct Handles {
    state: DirHandle,
    folder: DirHandle,
    lock: File,
}

/// Which file it is, its size, and when it was changed last: a time that no program can set.
type FileStamp = (u64, u64, i64, i64, u64);

/// Where the next line goes.
struct LogEnd {
    tip: Tip,
    segment: u32,
    /// Where the segment ends, after what a killed process left of a line is cut.
    length: u64,
    /// What no crash explains.
    damage: Option<(ProblemKind, String)>,
}

/// One line as it is on disk.
pub(super) struct LogLine {
    pub(super) segment: u32,
    /// Its number in the segment, from 1.
    pub(super) number: u64,
    /// Without the line end; of one that is too long, the beginning.
    pub(super) bytes: Vec<u8>,
    /// Whether it has a line end.
    pub(super) ended: bool,
}

/// A log as its readers have it.
pub(super) struct OpenedLog {
    pub(super) state: DirHandle,
    /// That of the segments; none if it is not there.
    pub(super) folder: Option<DirHandle>,
    /// Keeps writers out meanwhile; none where there is nothing to lock.
    _locked: Option<Locked<File>>,
}

/// A lock on the log, held until it is dropped or the process is gone.
pub(super) struct Locked<F: AsFd>(F);

impl<F: AsFd> Drop for Locked<F> {
    fn drop(&mut self) {
        // Closing it is not enough: a process that another thread is starting has a copy until its program begins.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl LogFiles {
    pub(super) fn new(state: &Utf8Path, synced: bool) -> Self {
        Self { state: state.to_owned(), synced, segment_limit: SEGMENT_LIMIT }
    }

    /// The same with shorter segments, so that tests have several.
    pub(super) fn with_segments_of(self, bytes: u64) -> Self {
        Self { segment_limit: bytes, ..self }
    }

    pub(super) fn state(&self) -> &Utf8Path {
        &self.state
    }

    pub(super) fn folder(&self) -> Utf8PathBuf {
        self.state.join(FOLDER)
    }

    pub(super) fn key_path(&self) -> Utf8PathBuf {
        self.state.join(KEY)
    }

    /// The key and the end of the log, and whether the last line that this process wrote is still there.
    fn look(
        &self,
        state: &DirHandle,
        folder: &DirHandle,
        mine: Option<&LogMark>,
    ) -> io::Result<(AuditKey, LogEnd)> {
        let (key, mut end) = self.open(state, folder)?;
        if let Some(mark) = mine.filter(|mark| !is_there(folder, mark)) {
            let detail = format!("entry {}, written by the same process, is gone or changed", mark.tip.seq);
            end.damage.get_or_insert((ProblemKind::RolledBack, detail));
        }
        Ok((key, end))
    }

    /// The key and the end of the log, both made if there is nothing yet.
    fn open(&self, state: &DirHandle, folder: &DirHandle) -> io::Result<(AuditKey, LogEnd)> {
        let old = read_key(state);
        let segments = segments(folder)?;
        let Some(key) = old else {
            let key = new_key()?;
            let end = if segments.is_empty() {
                // The head comes first: a key without a head means that the log was removed.
                let head = HeadFile { tip: Tip::default(), segment: 1, length: 0 };
                self.put_head(folder, &key, &head)?;
                LogEnd { tip: head.tip, segment: 1, length: 0, damage: None }
            } else {
                let detail = format!("the key {KEY} was missing; earlier entries cannot be checked any more");
                recover(folder, &key, &segments, (ProblemKind::KeyMissing, detail))?
            };
            state.replace_synced(KEY, &key.0)?;
            return Ok((key, end));
        };
        let end = match read_head(folder, &key) {
            FoundHead::Valid(head) => behind(folder, &key, head)?,
            FoundHead::Missing => {
                let detail = format!("the head file {HEAD} was missing");
                recover(folder, &key, &segments, (ProblemKind::HeadMissing, detail))?
            }
            FoundHead::Changed => {
                let detail = format!("the head file {HEAD} was changed");
                recover(folder, &key, &segments, (ProblemKind::HeadChanged, detail))?
            }
        };
        Ok((key, end))
    }

    fn put_head(&self, folder: &DirHandle, key: &AuditKey, head: &HeadFile) -> io::Result<()> {
        let bytes = key.head(head)?;
        if self.synced {
            return folder.replace_synced(HEAD, &bytes);
        }
        match folder.file(HEAD, How::InPlace) {
            // A killed process leaves the old bytes or the new ones, since they lie in one page. A file system writes
            // out the whole file where a name is moved over another.
            Ok(file) if file.metadata()?.len() == bytes.len() as u64 => file.write_all_at(&bytes, 0),
            _ => folder.replace(HEAD, &bytes).map(drop),
        }
    }

    /// The folders of the log for a reader, locked against writers as far as that is possible; none if there is no log.
    pub(super) fn for_reading(&self) -> io::Result<Option<OpenedLog>> {
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let state = match DirHandle::root(&self.state, false) {
            Err(error) if missing(&error) => return Ok(None),
            other => other?,
        };
        let folder = match state.sub(FOLDER, false) {
            Err(error) if missing(&error) => {
                return Ok(Some(OpenedLog { state, folder: None, _locked: None }));
            }
            other => other?,
        };
        let locked = match folder.file(LOCK, How::Read) {
            Ok(file) => Some(lock_file(&folder, file, FlockOperation::NonBlockingLockShared)?),
            Err(_) => None,
        };
        Ok(Some(OpenedLog { state, folder: Some(folder), _locked: locked }))
    }
}

impl Appender {
    pub(super) fn new(files: LogFiles) -> Self {
        Self { files, handles: None, mine: None }
    }

    /// Appends at most [`BATCH`] entries.
    pub(super) fn append(&mut self, entries: &[AuditEntry]) -> io::Result<()> {
        let Self { files, handles, mine } = self;
        for _ in 0..REMADE_TRIES {
            let open = match handles.take().filter(|open| open.are_named(files)) {
                Some(open) => open,
                None => Handles::open(files)?,
            };
            let locked = lock_file(&open.folder, &open.lock, FlockOperation::NonBlockingLockExclusive)?;
            // A lock on a removed file excludes no one.
            if lock::is_named(&open.folder, LOCK, &open.lock)? {
                let appended = append_locked(files, &open, entries, mine);
                drop(locked);
                *handles = Some(open);
                return appended;
            }
        }
        Err(io::Error::other("the lock file of the audit log keeps being replaced"))
    }
}

impl Handles {
    fn open(files: &LogFiles) -> io::Result<Self> {
        let state = DirHandle::root(&files.state, true)?;
        let folder = state.sub(FOLDER, true)?;
        let lock = folder.file(LOCK, How::Append)?;
        Ok(Self { state, folder, lock })
    }

    /// Whether the path of the log still leads to its folder.
    fn are_named(&self, files: &LogFiles) -> bool {
        let named = rustix::fs::lstat(files.folder().as_std_path());
        let same = |named: rustix::fs::Stat| {
            self.folder.stat(".").is_ok_and(|own| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
        };
        named.is_ok_and(same)
    }
}

/// Appends entries while the log is locked. If the last line that this process wrote is not there any more, the log was
/// put back to an earlier state, and that is recorded.
fn append_locked(
    files: &LogFiles,
    Handles { state, folder, .. }: &Handles,
    entries: &[AuditEntry],
    mine: &mut Option<LogMark>,
) -> io::Result<()> {
    let Some(at) = entries.first().map(|entry| entry.at) else { return Ok(()) };
    // Behind a full segment there may be another one that a killed process began.
    let is_last = |mark: &&LogMark| mark.end < files.segment_limit && mark.is_last(state, folder);
    let last = mine.as_ref().filter(is_last);
    let (key, mut end) = match last {
        Some(mark) => {
            let end = LogEnd { tip: mark.tip, segment: mark.segment, length: mark.end, damage: None };
            (mark.key.clone(), end)
        }
        None => files.look(state, folder, mine.as_ref())?,
    };
    if end.length >= files.segment_limit {
        (end.segment, end.length) = (end.segment.saturating_add(1), 0);
    }
    let damage = end.damage.take().map(|(problem, detail)| {
        let kind = AuditKind::Damage { problem: problem.name().to_owned(), detail };
        AuditEntry::own(at, kind)
    });
    let file = match last {
        Some(mark) => Arc::clone(&mark.file),
        None => Arc::new(folder.file(&segment_name(end.segment), How::Append)?),
    };
    let mut bytes = Vec::new();
    if last.is_none() && end.length > 0 && !ends_with_line_end(&file, end.length)? {
        // The rest of a cut line stays, on a line of its own.
        bytes.push(b'\n');
    }
    let (mut tip, mut line) = (end.tip, (0, 0));
    for entry in damage.iter().chain(entries) {
        let start = bytes.len();
        tip = encode(&key, tip, entry, &mut bytes)?;
        line = (end.length + start as u64, bytes.len() - start - 1);
    }
    let head = HeadFile { tip, segment: end.segment, length: end.length + bytes.len() as u64 };
    let written = (&*file)
        .write_all(&bytes)
        .and_then(|()| if files.synced { file.sync_data() } else { Ok(()) })
        .and_then(|()| files.put_head(folder, &key, &head));
    if let Err(error) = written {
        // All of it or nothing: the same entries are tried again. What cannot be cut now, the next append cuts.
        let _ = file.set_len(end.length);
        return Err(error);
    }
    // A segment that was replaced meanwhile is another file.
    let is_same = lock::is_named(folder, &segment_name(head.segment), &file).unwrap_or(false);
    let stamps = stamps(state, folder, head.segment).filter(|_| is_same);
    let (segment, (start, length), end) = (head.segment, line, head.length);
    *mine = Some(LogMark { segment, start, length, tip, key, end, stamps, file });
    Ok(())
}

impl LogMark {
    /// Whether nothing has happened to the log since: then its end need not be looked for.
    fn is_last(&self, state: &DirHandle, folder: &DirHandle) -> bool {
        self.stamps.is_some() && self.stamps == stamps(state, folder, self.segment)
    }
}

/// What the key, the head and a segment are now.
fn stamps(state: &DirHandle, folder: &DirHandle, segment: u32) -> Option<[FileStamp; 3]> {
    let stamp = |folder: &DirHandle, name: &str| {
        let found = folder.stat(name).ok()?;
        Some((found.st_dev, found.st_ino, found.st_size, found.st_ctime, found.st_ctime_nsec))
    };
    Some([stamp(state, KEY)?, stamp(folder, HEAD)?, stamp(folder, &segment_name(segment))?])
}

/// What there is of a head file.
pub(super) enum FoundHead {
    Valid(HeadFile),
    Missing,
    Changed,
}

pub(super) fn read_head(folder: &DirHandle, key: &AuditKey) -> FoundHead {
    match folder.read(HEAD, HEAD_LIMIT) {
        Ok(bytes) => key.read_head(&bytes).map_or(FoundHead::Changed, FoundHead::Valid),
        Err(error) if error.kind() == io::ErrorKind::NotFound => FoundHead::Missing,
        Err(_) => FoundHead::Changed,
    }
}

/// The key; none if there is none or it is no key.
pub(super) fn read_key(state: &DirHandle) -> Option<AuditKey> {
    let bytes = state.read(KEY, 32).ok()?;
    bytes.try_into().ok().map(AuditKey)
}

fn new_key() -> io::Result<AuditKey> {
    let mut key = [0; 32];
    let mut filled = 0;
    while filled < key.len() {
        match rustix::rand::getrandom(&mut key[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(AuditKey(key))
}

/// The segments there are, in their order.
pub(super) fn segments(folder: &DirHandle) -> io::Result<Vec<u32>> {
    let number = |name: &String| {
        let number = name.strip_suffix(".jsonl")?.parse().ok()?;
        (segment_name(number) == *name).then_some(number)
    };
    let mut numbers: Vec<u32> = folder.names()?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

pub(super) fn segment_name(segment: u32) -> String {
    format!("{segment:06}.jsonl")
}

/// The end of a log whose head is right: the lines that a killed process wrote behind it count, the beginning of a line
/// at the very end is cut.
fn behind(folder: &DirHandle, key: &AuditKey, head: HeadFile) -> io::Result<LogEnd> {
    let mut end = LogEnd { tip: head.tip, segment: head.segment, length: head.length, damage: None };
    loop {
        let file = match folder.file(&segment_name(end.segment), How::AppendExisting) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                end.length = 0;
                break;
            }
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        // A segment that is too short lacks entries: the number of the next one shows that.
        end.length = end.length.min(length);
        follow(key, &file, &mut end)?;
        let next = end.segment.saturating_add(1);
        if !folder.has(&segment_name(next)) {
            break;
        }
        (end.segment, end.length) = (next, 0);
    }
    if end.tip.seq.saturating_sub(head.tip.seq) > BATCH as u64 {
        let detail = format!("the head file {HEAD} named entry {}, which is long past", head.tip.seq);
        end.damage = Some((ProblemKind::HeadChanged, detail));
    }
    Ok(end)
}

/// Follows the chain from `end` to the end of its segment, and cuts a line there that has no line end.
fn follow(key: &AuditKey, file: &File, end: &mut LogEnd) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::Start(end.length))?;
    loop {
        let (bytes, length, ended) = read_line(&mut reader)?;
        if !ended {
            // The writer was killed in the middle of it.
            if length > 0 {
                file.set_len(end.length)?;
            }
            return Ok(());
        }
        end.length += length;
        if let Some(parsed) = parse(&bytes).filter(|parsed| parsed.follows(end.tip))
            && key.sealed(&bytes)
        {
            end.tip = parsed.tip();
        }
    }
}

/// The end of a log whose head is no help: behind the last line that its key made, or else the last that reads as one.
fn recover(
    folder: &DirHandle,
    key: &AuditKey,
    segments: &[u32],
    damage: (ProblemKind, String),
) -> io::Result<LogEnd> {
    let (mut sealed, mut any) = (None, Tip::default());
    for line in LogLines::new(folder, segments.to_vec()) {
        let line = line?;
        if let Some(parsed) = parse(&line.bytes) {
            any = parsed.tip();
            if key.sealed(&line.bytes) {
                sealed = Some(any);
            }
        }
    }
    let segment = segments.last().copied().unwrap_or(1);
    let length =
        folder.stat(&segment_name(segment)).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    Ok(LogEnd { tip: sealed.unwrap_or(any), segment, length, damage: Some(damage) })
}

fn encode(key: &AuditKey, tip: Tip, entry: &AuditEntry, bytes: &mut Vec<u8>) -> io::Result<Tip> {
    let raw = |entry: &AuditEntry| serde_json::value::to_raw_value(entry);
    let line = |raw: &RawValue| key.line(tip, raw);
    let (mut made, mut next) = line(&raw(entry)?)?;
    if made.len() > LINE_LIMIT {
        let reason = format!("an entry of {} bytes is longer than a line may be", made.len());
        let kind = AuditKind::Gap { count: 1, reason };
        (made, next) = line(&raw(&AuditEntry { kind, ..entry.clone() })?)?;
    }
    bytes.append(&mut made);
    bytes.push(b'\n');
    Ok(next)
}

fn ends_with_line_end(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

/// Whether a line is still where it was written.
fn is_there(folder: &DirHandle, mark: &LogMark) -> bool {
    let mut bytes = vec![0; mark.length];
    let read = folder
        .file(&segment_name(mark.segment), How::Read)
        .and_then(|file| file.read_exact_at(&mut bytes, mark.start));
    read.is_ok() && *Sha256::digest(&bytes) == mark.tip.hash
}

fn lock_file<F: AsFd>(folder: &DirHandle, file: F, how: FlockOperation) -> io::Result<Locked<F>> {
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&file, how) {
            Ok(()) => return Ok(Locked(file)),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_TRIES),
            Err(error) => return Err(error.into()),
        }
    }
    let text = format!("another process holds the lock {}", folder.path().join(LOCK));
    Err(io::Error::new(io::ErrorKind::WouldBlock, text))
}

/// The lines of a log, one after the other.
pub(super) struct LogLines<'a> {
    folder: &'a DirHandle,
    segments: std::vec::IntoIter<u32>,
    open: Option<(u32, u64, BufReader<File>)>,
}

impl<'a> LogLines<'a> {
    pub(super) fn new(folder: &'a DirHandle, segments: Vec<u32>) -> Self {
        Self { folder, segments: segments.into_iter(), open: None }
    }
}

impl Iterator for LogLines<'_> {
    type Item = io::Result<LogLine>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((segment, number, reader)) = &mut self.open {
                match read_line(reader) {
                    Ok((_, 0, _)) => self.open = None,
                    Ok((bytes, _, ended)) => {
                        *number += 1;
                        return Some(Ok(LogLine { segment: *segment, number: *number, bytes, ended }));
                    }
                    Err(error) => return Some(Err(error)),
                }
                continue;
            }
            let segment = self.segments.next()?;
            match self.folder.file(&segment_name(segment), How::Read) {
                Ok(file) => self.open = Some((segment, 0, BufReader::new(file))),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The next line without its line end, cut to the limit; how long it is with it; and whether it has one.
fn read_line(reader: &mut BufReader<impl io::Read>) -> io::Result<(Vec<u8>, u64, bool)> {
    let mut bytes = Vec::new();
    let limit = LINE_LIMIT as u64 + 1;
    let mut length = reader.take(limit).read_until(b'\n', &mut bytes)? as u64;
    let mut last = bytes.last().copied();
    let mut more = Vec::new();
    while last != Some(b'\n') && length >= limit {
        more.clear();
        let read = reader.take(limit).read_until(b'\n', &mut more)? as u64;
        if read == 0 {
            break;
        }
        (length, last) = (length + read, more.last().copied());
    }
    let ended = last == Some(b'\n');
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok((bytes, length, ended))
}
