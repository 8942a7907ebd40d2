//! The tolerant reader. Takes a session's files, gives its envelopes one by one in order and a report of what
//! was not as it should be. It holds one line at a time, refuses nothing and changes nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::sync::Arc;

use decurion_protocol::event::RECORD_LEVEL;
use decurion_protocol::{AgentId, Envelope, Event, RunId};
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::decode::{
    Claimed, Decoded, DecodedLine, LineDecoder, LinePart, Trailer, bare, check, is_of_file, split_joined,
    unfinished,
};
use crate::folder::{DirHandle, How};
use crate::layout::{PROJECTS, SUBAGENTS, SessionPaths, agent_name, agent_of};

/// A line longer than this is not read.
pub(crate) const LONGEST_LINE: usize = 256 << 20;
/// How much is read at once from a file that is read alone.
const CHUNK: usize = 256 << 10;
/// How much is read at once where many files are read together.
const SMALL_CHUNK: usize = 16 << 10;
/// Files that are read together beyond this are not kept open between reads.
const OPEN_LIMIT: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayOptions {
    pub scope: Scope,
    /// Whether results for programs (`toolUseResult`) are wanted; a resume does not need them.
    pub structured: bool,
    /// Only what comes after this `seq`.
    pub after: u64,
}

/// Which files of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The session's own: the root's conversation and every session-level record.
    #[default]
    Session,
    /// The conversation of one agent.
    Agent(AgentId),
    /// All of them, merged by `seq`.
    Everything,
}

/// What was read, and what was wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Lines seen, of any kind.
    pub lines: u64,
    pub events: u64,
    /// Lines that were changed after they were written, given out as they are now.
    pub edited: u64,
    /// Damaged lines that were skipped.
    pub skipped: u64,
    /// Lines that another program added, given out as unknown events.
    pub foreign: u64,
    /// Records whose lines are not all there, left out.
    pub incomplete: u64,
    /// Lines that are missing by the count in the file.
    pub gaps: u64,
    /// Lines that were there twice, given out once.
    pub duplicates: u64,
    /// Large strings whose blob is gone; a sentence replaces them.
    pub missing_blobs: u64,
    /// Bytes of a record at the end whose rest is missing.
    pub torn_bytes: u64,
    /// Whether those bytes were moved to a side file. Only opening for writing does that.
    pub torn_moved: bool,
    /// Records of kinds that this version does not know, given out as unknown events.
    pub unknown: u64,
    /// The level of records that a reader must understand to continue the session, where that is more than this
    /// version does.
    pub needs: Option<u64>,
    /// Files of agents that cannot be read, each with the reason, left out.
    pub unreadable: Vec<String>,
    /// Files of agents that could be read but not written, each replaced by a copy. Only opening for writing does that.
    pub copied: Vec<String>,
    /// The highest `seq` seen.
    pub last_seq: u64,
    pub bytes: u64,
}

impl ReplayReport {
    /// Whether everything was as it was written.
    pub fn is_clean(&self) -> bool {
        self.problems().is_none()
    }

    /// One line for a person, if there is something to say.
    pub fn problems(&self) -> Option<String> {
        let torn = if self.torn_moved { "moved to a .torn file" } else { "skipped" };
        let counts = [
            (self.torn_bytes, "byte", format!("of an unfinished record {torn}")),
            (self.edited, "edited line", String::new()),
            (self.skipped, "damaged line", "skipped".to_owned()),
            (self.incomplete, "incomplete message", "left out".to_owned()),
            (self.gaps, "missing line", String::new()),
            (self.duplicates, "repeated line", "left out".to_owned()),
            (self.missing_blobs, "large content", "lost".to_owned()),
            (self.unknown, "record", "of a later version skipped".to_owned()),
        ];
        let words: Vec<String> = counts
            .iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, what, fate)| {
                let plural = if *count == 1 { "" } else { "s" };
                format!("{count} {what}{plural} {fate}").trim_end().to_owned()
            })
            .chain(self.unreadable.iter().map(|file| format!("left out {file}")))
            .chain(self.copied.iter().map(|file| format!("replaced {file}, which was read-only, by a copy")))
            .collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn add(&mut self, other: &Self) {
        self.lines += other.lines;
        self.events += other.events;
        self.edited += other.edited;
        self.skipped += other.skipped;
        self.foreign += other.foreign;
        self.incomplete += other.incomplete;
        self.gaps += other.gaps;
        self.duplicates += other.duplicates;
        self.missing_blobs += other.missing_blobs;
        self.unknown += other.unknown;
        self.needs = self.needs.max(other.needs);
        self.torn_bytes += other.torn_bytes;
        self.torn_moved |= other.torn_moved;
        self.unreadable.extend(other.unreadable.iter().cloned());
        self.copied.extend(other.copied.iter().cloned());
        self.last_seq = self.last_seq.max(other.last_seq);
        self.bytes += other.bytes;
    }
}

/// Reads a session's files and gives each event to `sink`. An error is one of the system, never of the
/// content; a session or agent without a file is `NotFound`.
pub fn replay(
    paths: &SessionPaths,
    options: &ReplayOptions,
    sink: &mut dyn FnMut(Envelope),
) -> io::Result<ReplayReport> {
    let project = Arc::new(project_folder(paths)?);
    let session = project.sub(&paths.session().to_string(), false).ok();
    match &options.scope {
        Scope::Session => one(&project, paths.transcript_name(), session.as_ref(), options, sink),
        Scope::Agent(agent) => {
            let folder = session.as_ref().ok_or(io::ErrorKind::NotFound)?.sub(SUBAGENTS, false)?;
            one(&Arc::new(folder), agent_name(agent), session.as_ref(), options, sink)
        }
        Scope::Everything => merged(&project, paths, session.as_ref(), options, sink),
    }
}

/// The folder of a session's project.
pub(crate) fn project_folder(paths: &SessionPaths) -> io::Result<DirHandle> {
    DirHandle::root(paths.home(), false)?.sub(PROJECTS, false)?.sub(paths.project(), false)
}

fn one(
    folder: &Arc<DirHandle>,
    name: String,
    session: Option<&DirHandle>,
    options: &ReplayOptions,
    sink: &mut dyn FnMut(Envelope),
) -> io::Result<ReplayReport> {
    let lines = LineReader::alone(folder, name)?;
    let mut file = FileReplay::new(lines, options);
    while let Some(envelope) = file.next(session)? {
        sink(envelope);
    }
    Ok(file.report)
}

/// All files of a session at once, each of which is in order by itself.
fn merged(
    project: &Arc<DirHandle>,
    paths: &SessionPaths,
    session: Option<&DirHandle>,
    options: &ReplayOptions,
    sink: &mut dyn FnMut(Envelope),
) -> io::Result<ReplayReport> {
    let mut report = ReplayReport::default();
    let mut files = all_files(project, paths, session, options, &mut report.unreadable)?;
    merge(&mut files, session, &mut |envelope| {
        sink(envelope);
        ControlFlow::Continue(())
    })?;
    for file in &files {
        report.add(&file.report);
    }
    Ok(report)
}

/// The files of a session, the root's first, each at its beginning. Those of agents that cannot be opened are left
/// out and named: one bad file is no reason to refuse the session.
fn all_files(
    project: &Arc<DirHandle>,
    paths: &SessionPaths,
    session: Option<&DirHandle>,
    options: &ReplayOptions,
    unreadable: &mut Vec<String>,
) -> io::Result<Vec<FileReplay>> {
    let subagents = session.and_then(|folder| folder.sub(SUBAGENTS, false).ok()).map(Arc::new);
    let mut names: Vec<String> = match subagents.as_ref().map(|folder| folder.names()) {
        Some(Ok(names)) => names.into_iter().filter(|name| agent_of(name).is_some()).collect(),
        Some(Err(error)) => {
            unreadable.push(format!("{SUBAGENTS}: {error}"));
            Vec::new()
        }
        None => Vec::new(),
    };
    names.sort_unstable();
    let keep_open = names.len() < OPEN_LIMIT;
    let root = LineReader::alone(project, paths.transcript_name())?;
    let mut files = vec![FileReplay::new(root, options)];
    for name in names {
        if let Some(folder) = &subagents {
            match LineReader::open(folder, name.clone(), SMALL_CHUNK, keep_open) {
                Ok(lines) => files.push(FileReplay::new(lines, options)),
                Err(error) => unreadable.push(format!("{name}: {error}")),
            }
        }
    }
    Ok(files)
}

/// The position of a reader in a record. It keeps the position in each file, so that continuing costs only the new
/// part.
#[derive(Debug, Default)]
pub struct Bookmark {
    /// The last event that was given out.
    pub after: u64,
    /// The last event that should have been given out and was dropped, until a reader asks.
    pub lost: Option<u64>,
    /// Whether only what is in the session's own file is wanted.
    root_only: bool,
    files: HashMap<String, FilePosition>,
}

impl Bookmark {
    /// Behind the event of this number.
    pub fn after(seq: u64) -> Self {
        Self { after: seq, ..Self::default() }
    }

    /// At the beginning of the session's own file; those of its agents are not read where they are apart from it.
    pub fn of_root() -> Self {
        Self { root_only: true, ..Self::default() }
    }
}

/// Where reading one file continues.
#[derive(Clone, Copy, Debug)]
struct FilePosition {
    offset: u64,
    ordinal: u64,
    seq: u64,
    sealed: (u64, u64),
    date: Timestamp,
    run: RunId,
    /// The number of the next event, if it was looked at.
    coming: Option<u64>,
}

/// Continues from a bookmark, all files merged, while they are being written: gives the events after it up to `until`,
/// which must be written, or until `sink` has enough.
pub(crate) fn read_on(
    paths: &SessionPaths,
    bookmark: &mut Bookmark,
    until: u64,
    sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
) -> io::Result<()> {
    let project = Arc::new(project_folder(paths)?);
    let session = project.sub(&paths.session().to_string(), false).ok();
    let options = ReplayOptions { scope: Scope::Everything, structured: true, after: bookmark.after };
    let mut files = if bookmark.root_only {
        vec![FileReplay::new(LineReader::alone(&project, paths.transcript_name())?, &options)]
    } else {
        all_files(&project, paths, session.as_ref(), &options, &mut Vec::new())?
    };
    for file in &mut files {
        file.until = Some(until);
        if let Some(mark) = bookmark.files.get(&file.lines.name) {
            file.go_to(*mark)?;
        }
    }
    merge(&mut files, session.as_ref(), &mut |envelope| {
        bookmark.after = bookmark.after.max(envelope.seq);
        sink(envelope)
    })?;
    for file in files {
        let mark = FilePosition { coming: file.coming.or(file.beyond), ..file.given };
        bookmark.files.insert(file.lines.name, mark);
    }
    Ok(())
}

fn merge(
    files: &mut [FileReplay],
    session: Option<&DirHandle>,
    sink: &mut dyn FnMut(Envelope) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut order = BinaryHeap::with_capacity(files.len());
    for (index, file) in files.iter_mut().enumerate() {
        order.extend(file.look(session)?.map(|seq| Reverse((seq, index))));
    }
    while let Some(Reverse((_, index))) = order.pop() {
        let file = &mut files[index];
        let head = file.take(session)?;
        order.extend(file.look(session)?.map(|seq| Reverse((seq, index))));
        if head.is_some_and(|head| sink(head).is_break()) {
            break;
        }
    }
    Ok(())
}

/// One file, event by event.
struct FileReplay {
    lines: LineReader,
    report: ReplayReport,
    structured: bool,
    after: u64,
    /// Later lines are not read: the writer may be in the middle of one. With such a bound, a long event that must wait
    /// for its turn is read again then: otherwise one of each file would be held.
    until: Option<u64>,
    is_over: bool,
    /// The number of the first event that is not read for that.
    beyond: Option<u64>,
    /// The event that is given out next, and its number, which is known for longer.
    head: Option<Envelope>,
    coming: Option<u64>,
    /// Where the record that was given out last ends.
    given: FilePosition,
    /// A record of which more lines must come.
    group: Option<LinePart>,
    /// An edited message of which no more lines come, and the record behind it.
    ended: Option<Envelope>,
    behind: Option<Envelope>,
    /// Lines that a lost line end ran together, waiting to be read.
    joined: Vec<Vec<u8>>,
    last_ordinal: u64,
    /// The count and the highest number of the unharmed lines: those of edited ones tell nothing.
    sealed: (u64, u64),
    last_date: Timestamp,
    /// The run that the next lines of the chain share until one says otherwise.
    run: RunId,
    /// The agent whose file it is.
    agent: Option<AgentId>,
    /// Where the last record ends that was read.
    whole_end: u64,
    /// Where the record begins whose lines are unharmed and not all there yet.
    unfinished: Option<u64>,
    /// How many bytes of an unfinished record ran together with whole ones.
    torn_end: u64,
    /// Whether the line that is read now ran together with others.
    is_joined: bool,
}

impl FileReplay {
    fn new(lines: LineReader, options: &ReplayOptions) -> Self {
        Self {
            agent: agent_of(&lines.name),
            lines,
            report: ReplayReport::default(),
            structured: options.structured,
            after: options.after,
            until: None,
            is_over: false,
            beyond: None,
            head: None,
            coming: None,
            given: FilePosition {
                offset: 0,
                ordinal: 0,
                seq: 0,
                sealed: (0, 0),
                date: Timestamp::UNIX_EPOCH,
                run: RunId(Uuid::nil()),
                coming: None,
            },
            group: None,
            ended: None,
            behind: None,
            joined: Vec::new(),
            last_ordinal: 0,
            sealed: (0, 0),
            last_date: Timestamp::UNIX_EPOCH,
            run: RunId(Uuid::nil()),
            whole_end: 0,
            unfinished: None,
            torn_end: 0,
            is_joined: false,
        }
    }

    /// Continues where an earlier reader stopped.
    fn go_to(&mut self, mark: FilePosition) -> io::Result<()> {
        self.read_from(mark)?;
        (self.given, self.coming) = (mark, mark.coming);
        Ok(())
    }

    /// Reads from a place between two records on.
    fn read_from(&mut self, mark: FilePosition) -> io::Result<()> {
        self.lines.go_to(mark.offset)?;
        (self.whole_end, self.last_ordinal, self.sealed) = (mark.offset, mark.ordinal, mark.sealed);
        (self.report.last_seq, self.last_date, self.run) = (mark.seq, mark.date, mark.run);
        (self.group, self.unfinished) = (None, None);
        Ok(())
    }

    /// This place in the file, with what is known there.
    fn here(&self, offset: u64) -> FilePosition {
        FilePosition {
            offset,
            ordinal: self.last_ordinal,
            seq: self.report.last_seq,
            sealed: self.sealed,
            date: self.last_date,
            run: self.run,
            coming: None,
        }
    }

    /// The number of the event that is given out next.
    fn look(&mut self, session: Option<&DirHandle>) -> io::Result<Option<u64>> {
        if self.coming.is_none() {
            let can_go_back = self.is_between_records();
            self.head = self.next(session)?;
            let coming = self.head.as_ref().map(|head| head.seq);
            let is_long = self.lines.buffer.len() > self.lines.chunk;
            if self.until.is_some() && can_go_back && self.head.is_some() && is_long {
                self.go_to(self.given)?;
                (self.head, self.lines.buffer) = (None, Vec::new());
                self.joined.clear();
                self.behind = None;
            }
            self.coming = coming;
        }
        Ok(self.coming.filter(|seq| self.until.is_none_or(|until| *seq <= until)))
    }

    /// The event that was looked at.
    fn take(&mut self, session: Option<&DirHandle>) -> io::Result<Option<Envelope>> {
        self.coming = None;
        self.head.take().map_or_else(|| self.next(session), |head| Ok(Some(head)))
    }

    /// Whether everything that was read is given out. Not so in the middle of joined lines, and where an edited message
    /// ended with the first line of the next record: there is no position to return to.
    fn is_between_records(&self) -> bool {
        self.joined.is_empty() && self.behind.is_none() && self.group.is_none()
    }

    /// Remembers that everything up to here is given out.
    fn mark(&mut self) {
        if self.is_between_records() {
            self.given = self.here(self.whole_end);
        }
    }

    fn next(&mut self, session: Option<&DirHandle>) -> io::Result<Option<Envelope>> {
        self.mark();
        if let Some(behind) = self.behind.take() {
            return Ok(Some(behind));
        }
        let read = self.read_next(session)?;
        let Some(ended) = self.ended.take() else { return Ok(read) };
        self.behind = read;
        Ok(Some(ended))
    }

    /// The next record, without an edited message that ended with it.
    fn read_next(&mut self, session: Option<&DirHandle>) -> io::Result<Option<Envelope>> {
        while !self.is_over {
            if let Some(line) = self.joined.pop() {
                self.is_joined = true;
                let envelope = self.line(&line, session);
                if envelope.is_some() || self.ended.is_some() {
                    return Ok(envelope);
                }
                continue;
            }
            let span = match self.lines.next() {
                Ok(span) => span,
                // What is left of an agent's file is used; the session's own must be readable.
                Err(error) if self.agent.is_some() => {
                    self.report.unreadable.push(format!("the rest of {}: {error}", self.lines.name));
                    self.is_over = true;
                    None
                }
                Err(error) => return Err(error),
            };
            let Some(span) = span else {
                self.finish();
                return Ok(None);
            };
            let before = self.before_line();
            self.report.lines += 1;
            self.is_joined = false;
            // The buffer leaves its owner while the line is read from it, so that nothing is copied.
            let buffer = std::mem::take(&mut self.lines.buffer);
            let envelope = match span {
                LineSpan::Whole { start, end } => self.line(&buffer[start..end], session),
                LineSpan::Torn { start, end } => self.last_line(&buffer[start..end], session),
                LineSpan::TooLong => self.skip(),
            };
            self.lines.buffer = buffer;
            if let Some((mark, report)) = before.filter(|_| self.ended.is_some() && self.joined.is_empty()) {
                self.report = ReplayReport { events: report.events + 1, ..report };
                self.read_from(mark)?;
                return Ok(None);
            }
            if envelope.is_some() || self.ended.is_some() {
                return Ok(envelope);
            }
        }
        Ok(None)
    }

    /// The start of the next line, if it may show that an edited message has ended. It is then read again, so that
    /// there is a position between the two.
    fn before_line(&self) -> Option<(FilePosition, ReplayReport)> {
        let is_edited = self.group.as_ref().is_some_and(|group| group.edited);
        is_edited.then(|| (self.here(self.lines.line_start), self.report.clone()))
    }

    fn line(&mut self, line: &[u8], session: Option<&DirHandle>) -> Option<Envelope> {
        let is_nulls = line.contains(&0);
        let line = bare(line);
        match check(line) {
            // A line was here once.
            DecodedLine::Empty if is_nulls => self.skip(),
            DecodedLine::Empty => {
                self.unfinished = None;
                None
            }
            DecodedLine::Ours(trailer) => self.ours(line, trailer, session),
            DecodedLine::Edited(claimed) => self.edited(line, claimed, session),
            DecodedLine::Foreign(value) => {
                self.whole();
                self.report.foreign += 1;
                Some(self.unknown(value))
            }
            DecodedLine::Bad => {
                let parts = split_joined(line);
                if parts.is_empty() {
                    return self.skip();
                }
                self.joined.extend(parts.iter().rev().map(|part| part.to_vec()));
                None
            }
        }
    }

    /// The last line where it has no end: it lost only that, or it is unfinished.
    fn last_line(&mut self, line: &[u8], session: Option<&DirHandle>) -> Option<Envelope> {
        let torn = unfinished(line);
        let (whole, _) = line.split_at(line.len() - torn);
        if whole.is_empty() {
            self.unfinished.get_or_insert(self.lines.line_start);
            return None;
        }
        self.torn_end = torn as u64;
        self.line(whole, session)
    }

    /// A line that was changed. Its place in the file tells where it belongs where its own numbers cannot be right; what
    /// follows an edit is never taken for a repetition of it.
    fn edited(&mut self, line: &[u8], claimed: Claimed, session: Option<&DirHandle>) -> Option<Envelope> {
        let last = self.report.last_seq;
        let least = if self.group.is_some() { last } else { last.saturating_add(1) };
        let seq = claimed.seq_after(last, least);
        // It was there before the current writer began.
        let seq = self.until.map_or(seq, |until| seq.min(until));
        let trailer = Trailer { run: claimed.run, seq, ordinal: self.last_ordinal + 1 };
        self.last_ordinal = trailer.ordinal;
        self.decode(line, trailer, true, session)
    }

    fn ours(&mut self, line: &[u8], trailer: Trailer, session: Option<&DirHandle>) -> Option<Envelope> {
        if self.until.is_some_and(|until| trailer.seq > until) {
            (self.is_over, self.beyond) = (true, Some(trailer.seq));
            return None;
        }
        // Both numbers must have been seen: a new event is never taken for an old one.
        if trailer.ordinal <= self.sealed.0 && trailer.seq <= self.sealed.1 {
            self.whole();
            self.report.duplicates += 1;
            return None;
        }
        self.report.gaps += trailer.ordinal.saturating_sub(self.last_ordinal + 1);
        self.last_ordinal = trailer.ordinal;
        self.sealed = (trailer.ordinal, self.sealed.1.max(trailer.seq));
        self.decode(line, trailer, false, session)
    }

    fn decode(
        &mut self,
        line: &[u8],
        trailer: Trailer,
        edited: bool,
        session: Option<&DirHandle>,
    ) -> Option<Envelope> {
        self.report.last_seq = self.report.last_seq.max(trailer.seq);
        if let Some(run) = trailer.run
            && is_of_file(line, self.agent.is_some())
        {
            self.run = run;
        }
        if trailer.seq <= self.after {
            self.whole();
            return None;
        }
        let mut decoder = LineDecoder {
            structured: self.structured,
            session,
            missing_blobs: &mut self.report.missing_blobs,
            run: self.run,
            date: self.last_date,
            edited,
            needs: None,
        };
        let mut decoded = decoder.decode(line, trailer);
        if matches!(decoded, Decoded::Nonsense)
            && !edited
            && let Some(envelope) = decoder.unknown(line, trailer, self.last_date)
        {
            decoded = Decoded::Whole(envelope);
        }
        // What a person made of a record is theirs to say, also where they changed the mark of one that is understood.
        let needs = decoder.needs.filter(|needs| !edited || *needs > RECORD_LEVEL && decoded.is_unknown());
        self.report.needs = self.report.needs.max(needs);
        if edited
            && let (Decoded::Whole(envelope) | Decoded::Part(LinePart { envelope, .. }), Some(agent)) =
                (&mut decoded, &self.agent)
        {
            envelope.agent = Some(agent.clone());
        }
        if matches!(decoded, Decoded::Nonsense) {
            self.drop_group();
            return self.skip();
        }
        self.report.edited += u64::from(edited);
        self.report.unknown += u64::from(decoded.is_unknown());
        match decoded {
            Decoded::Whole(envelope) => {
                self.drop_group();
                Some(self.give(envelope))
            }
            Decoded::Part(part) => self.part(if edited { self.placed(part) } else { part }),
            Decoded::Nonsense => None,
        }
    }

    /// An edited line of several, with the place that it has by those before it.
    fn placed(&self, part: LinePart) -> LinePart {
        let (index, count) = match &self.group {
            Some(group) if part.index > 0 && group.index + 1 < group.count => (group.index + 1, group.count),
            Some(_) => (part.index, part.count),
            None => (0, part.count),
        };
        LinePart { index, count, edited: true, ..part }
    }

    fn part(&mut self, part: LinePart) -> Option<Envelope> {
        let ends = part.is_whole();
        if part.index == 0 {
            self.drop_group();
            let begins = (!part.edited && !self.is_joined).then_some(self.lines.line_start);
            (self.group, self.unfinished) = (Some(part), begins);
            return None;
        }
        if part.edited {
            self.unfinished = None;
        }
        if let Some(mut group) = self.group.take()
            && group.join(part)
        {
            if ends {
                return Some(self.give(group.envelope));
            }
            self.group = Some(group);
            return None;
        }
        // A line before it is gone. Counted once, with the record's last line.
        if ends {
            self.report.incomplete += 1;
            self.whole();
        }
        None
    }

    fn give(&mut self, envelope: Envelope) -> Envelope {
        self.whole();
        self.last_date = envelope.at;
        self.report.events += 1;
        envelope
    }

    /// A line of another program, in the place where it stands.
    fn unknown(&mut self, value: Value) -> Envelope {
        let date = value.get("timestamp").and_then(Value::as_str).and_then(|text| text.parse().ok());
        let agent = value.get("agentId").and_then(Value::as_str).and_then(|text| text.parse().ok());
        self.report.events += 1;
        Envelope {
            seq: self.report.last_seq,
            at: date.unwrap_or(self.last_date),
            agent,
            run: self.run,
            event: Event::Unknown(value),
        }
    }

    /// No more lines of the last record come. Of an edited message those that are there count: how many there are was
    /// only claimed.
    fn drop_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        if group.edited && matches!(group.envelope.event, Event::Message { .. }) {
            self.report.events += 1;
            self.ended = Some(group.envelope);
        } else {
            self.report.incomplete += 1;
        }
    }

    /// Everything up to here is whole.
    fn whole(&mut self) {
        self.whole_end = self.lines.consumed;
        self.unfinished = None;
    }

    /// Passes over a damaged line.
    fn skip(&mut self) -> Option<Envelope> {
        self.report.skipped += 1;
        self.whole();
        None
    }

    fn finish(&mut self) {
        self.report.bytes = self.lines.consumed;
        if let Some(start) = self.unfinished {
            // An unfinished record at the end is a torn one, counted by its bytes.
            self.group = None;
            self.report.torn_bytes = self.lines.consumed - start;
        } else {
            self.drop_group();
            self.report.torn_bytes = self.torn_end;
        }
    }
}

/// Where a line is in the reader's buffer.
pub(crate) enum LineSpan {
    /// A line and its end.
    Whole { start: usize, end: usize },
    /// The last line, which has no end.
    Torn { start: usize, end: usize },
    /// A line longer than any may be.
    TooLong,
}

/// A file line by line, through a buffer that grows only as far as the longest line.
pub(crate) struct LineReader {
    folder: Arc<DirHandle>,
    name: String,
    file: Option<File>,
    keep_open: bool,
    chunk: usize,
    pub(crate) buffer: Vec<u8>,
    /// The part of the buffer that is read and not given out yet.
    start: usize,
    filled: usize,
    /// Where in the file the next read begins.
    offset: u64,
    /// Where in the file the last line given out begins and ends.
    line_start: u64,
    pub(crate) consumed: u64,
}

impl LineReader {
    /// A file that is read from its beginning to its end, and nothing else with it.
    pub(crate) fn alone(folder: &Arc<DirHandle>, name: String) -> io::Result<Self> {
        Self::open(folder, name, CHUNK, true)
    }

    pub(crate) fn open(
        folder: &Arc<DirHandle>,
        name: String,
        chunk: usize,
        keep_open: bool,
    ) -> io::Result<Self> {
        let file = folder.file(&name, How::Read)?;
        Ok(Self {
            folder: Arc::clone(folder),
            name,
            file: keep_open.then_some(file),
            keep_open,
            chunk,
            buffer: Vec::new(),
            start: 0,
            filled: 0,
            offset: 0,
            line_start: 0,
            consumed: 0,
        })
    }

    /// Reads from here on.
    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(offset))?;
        }
        (self.start, self.filled) = (0, 0);
        (self.offset, self.consumed) = (offset, offset);
        Ok(())
    }

    /// The next line, none at the end of the file.
    pub(crate) fn next(&mut self) -> io::Result<Option<LineSpan>> {
        let mut searched = self.start;
        self.line_start = self.consumed;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..self.filled]) {
                let (start, end) = (self.start, searched + at);
                self.start = end + 1;
                self.consumed += (self.start - start) as u64;
                return Ok(Some(LineSpan::Whole { start, end }));
            }
            if self.filled - self.start > LONGEST_LINE {
                return self.pass_over().map(Some);
            }
            self.make_room();
            searched = self.filled;
            if self.fill()? == 0 {
                let (start, end) = (self.start, self.filled);
                self.start = end;
                self.consumed += (end - start) as u64;
                return Ok((end > start).then_some(LineSpan::Torn { start, end }));
            }
        }
    }

    /// Drops the rest of a line that is too long.
    fn pass_over(&mut self) -> io::Result<LineSpan> {
        loop {
            self.consumed += (self.filled - self.start) as u64;
            (self.start, self.filled) = (0, 0);
            if self.fill()? == 0 {
                return Ok(LineSpan::TooLong);
            }
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[..self.filled]) {
                self.start = at + 1;
                self.consumed += self.start as u64;
                return Ok(LineSpan::TooLong);
            }
        }
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.filled, 0);
        self.filled -= self.start;
        self.start = 0;
        let wanted = self.filled + self.chunk;
        if self.buffer.len() < wanted {
            // Doubling, so that a long line is not copied for every chunk of it.
            let size = wanted.max(if self.filled == 0 { 0 } else { self.buffer.len() * 2 });
            self.buffer.resize(size, 0);
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut file = if let Some(file) = self.file.take() {
            file
        } else {
            let mut file = self.folder.file(&self.name, How::Read)?;
            file.seek(SeekFrom::Start(self.offset))?;
            file
        };
        let end = self.buffer.len();
        let count = loop {
            match file.read(&mut self.buffer[self.filled..end]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.filled += count;
        self.offset += count as u64;
        if self.keep_open {
            self.file = Some(file);
        }
        Ok(count)
    }
}
